"""A modelled board behind the board port: everything it yields is marked ``simulated``."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from wattune.boards.base import BoardInfo
from wattune.boards.virtual.constants import BoardConstants, load_board_file
from wattune.boards.virtual.model import (
    CPU_RAIL,
    GPU_RAIL,
    MODEL_VERSION,
    RAIL_SETS,
    SYS_RAIL,
    PhaseRun,
    is_half,
    run_step,
)
from wattune.boards.virtual.podgov import PodGov, Segment, simulate
from wattune.core.errors import InputError
from wattune.core.measurement import Measurement, Trace
from wattune.core.settings import MAXN, Setting
from wattune.core.workload import Workload
from wattune.io import sha256_of

DEFAULT_CONSTANTS = Path(__file__).with_name("jetson-agx-orin-64gb.json")
SAMPLES_PER_S = 5.0
"""The board's power monitors are low-passed with about 0.43 s: faster samples add nothing."""

LONG_RUN_STEPS = 600
WARM_UP_STEPS = 10
WARM_UP_S = 1.0

StepRuns = tuple[tuple[PhaseRun, ...], ...]
"""Per phase of a step one run per clock of the table."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A window of training steps as the power monitors saw it.

    Attributes:
        trace: rail powers, each sample the mean of its interval, stamped at the interval's middle.
        window_s: length of the window.
        steps: training steps in it.
        gpu_util_pct: mean busy share of the GPU over the window.
        gpu_mhz_mean: mean clock over the window.
    """

    trace: Trace
    window_s: float
    steps: int
    gpu_util_pct: float
    gpu_mhz_mean: float

    def energy_j(self, rails: Sequence[str]) -> float:
        """Energy of the window: trapezoid over the samples, stretched from the samples' span to the window."""
        energy = self.trace.energy_j(rails)
        assert energy is not None  # a recording has all rails and at least two samples
        return energy * self.window_s / (self.trace.t_s[-1] - self.trace.t_s[0])


class VirtualBoard:
    """A board that computes what it would measure.

    Args:
        constants_path: constants file; the AGX Orin 64GB where not given.

    Raises:
        InputError: the file is missing or not valid.
    """

    def __init__(self, constants_path: Path | None = None) -> None:
        file = load_board_file(Path(constants_path) if constants_path is not None else DEFAULT_CONSTANTS)
        self.constants: BoardConstants = file.constants
        self._info = BoardInfo(
            id=file.board,
            provenance="simulated",
            power_mode=file.power_mode,
            rails="gpu_cpu",
            table=file.table,
            digest=sha256_of({"constants": file.document, "model_version": MODEL_VERSION}),
        )
        self._cached: tuple[Workload, tuple[StepRuns, ...]] | None = None

    @property
    def info(self) -> BoardInfo:
        """Identity, clocks and provenance."""
        return self._info

    def measure(
        self, workload: Workload, setting: Setting, *, repeat: int, steps: int, seed: int
    ) -> Measurement:
        """See :meth:`wattune.boards.base.Board.measure`."""
        recording = self.record(workload, setting, repeat=repeat, steps=steps, seed=seed)
        per_epoch = workload.steps_per_epoch / recording.steps
        gpu_cpu_j = recording.energy_j(RAIL_SETS["gpu_cpu"])
        module_j = gpu_cpu_j + recording.energy_j((SYS_RAIL,))
        return Measurement(
            setting=self._match(setting),
            repeat=repeat,
            energy_j=gpu_cpu_j * per_epoch,
            time_s=recording.window_s * per_epoch,
            energy_module_j=module_j * per_epoch,
            gpu_util_pct=recording.gpu_util_pct,
            gpu_mhz_mean=recording.gpu_mhz_mean,
            temp_c_max=self._temperature_c(module_j / recording.window_s),
            window_steps=recording.steps,
            window_s=recording.window_s,
        )

    def noise_free(self, workload: Workload, setting: Setting) -> Measurement:
        """The expectation of :meth:`measure`: exact at a pinned clock, a long simulation under ``maxn``."""
        setting = self._match(setting)
        gpu_cpu_j, module_j, time_s, busy_s, mhz_s = self._expected_step(workload, setting)
        epoch = workload.steps_per_epoch
        return Measurement(
            setting=setting,
            repeat=0,
            energy_j=gpu_cpu_j * epoch,
            time_s=time_s * epoch,
            energy_module_j=module_j * epoch,
            gpu_util_pct=100.0 * busy_s / time_s,
            gpu_mhz_mean=mhz_s / time_s,
            temp_c_max=self._temperature_c(module_j / time_s),
        )

    def predict(self, workload: Workload) -> list[dict[str, Any]]:
        """Energy (rails ``gpu_cpu``) and time per step at every clock and under ``maxn``, noise-free."""
        rows: list[dict[str, Any]] = []
        for setting in (*self._info.table, MAXN):
            energy_j, _, time_s, _, _ = self._expected_step(workload, setting)
            rows.append({"mhz": setting, "energy_j": energy_j, "time_s": time_s})
        return rows

    def record(
        self, workload: Workload, setting: Setting, *, repeat: int, steps: int, seed: int
    ) -> Recording:
        """The window behind :meth:`measure`, with its trace (same arguments, same noise).

        Raises:
            InputError: an unknown clock or precision, no bins, or less than one step.
        """
        setting = self._match(setting)
        if steps < 1:
            raise InputError(
                f"A window of {steps} steps cannot be measured.", "At least one step was expected."
            )
        batches = draw_batches(workload, steps, f"{seed}|{workload.id}|{repeat}")
        segments = self._run(workload, setting, batches)
        noise = random.Random(f"{seed}|{workload.id}|{setting}|{repeat}")
        power_factor = _lognormal(noise, self.constants.power_noise_rel)
        time_factor = _lognormal(noise, self.constants.time_noise_rel)
        time_s = sum(s.duration_s for s in segments)
        table = self._info.table
        return Recording(
            trace=sample(segments, power_factor=power_factor, time_factor=time_factor),
            window_s=time_s * time_factor,
            steps=steps,
            gpu_util_pct=100.0 * sum(s.duration_s * s.run.busy for s in segments) / time_s,
            gpu_mhz_mean=sum(s.duration_s * table[s.index] for s in segments) / time_s,
        )

    def _match(self, setting: Setting) -> Setting:
        return setting if isinstance(setting, str) else self._info.table.match(setting)

    def _temperature_c(self, module_w: float) -> float:
        return self.constants.ambient_c + self.constants.thermal_resistance_c_per_w * module_w

    def _runs(self, workload: Workload) -> tuple[StepRuns, ...]:
        """Per bin of the workload its phases at every clock."""
        if self._cached is None or self._cached[0] != workload:
            is_half(workload.precision)
            if not workload.bins:
                raise InputError(
                    f"The workload {workload.id} has no operation cost.", "At least one bin was expected."
                )
            per_bin = []
            for length_bin in workload.bins:
                by_clock = [
                    run_step(self.constants, length_bin.cost, workload.precision, mhz)
                    for mhz in self._info.table
                ]
                per_bin.append(tuple(zip(*by_clock, strict=True)))
            self._cached = (workload, tuple(per_bin))
        return self._cached[1]

    def _run(self, workload: Workload, setting: Setting, batches: Sequence[int]) -> list[Segment]:
        """The window's segments; under ``maxn`` after a warm-up on the same batches, so that it starts settled."""
        runs = self._runs(workload)
        if not isinstance(setting, str):
            index = list(self._info.table).index(setting)
            return [
                Segment(number, index, by_clock[index].time_s, by_clock[index])
                for number, batch in enumerate(batches)
                for by_clock in runs[batch]
            ]
        warm_up = self._warm_up(runs, batches)
        governor = PodGov(len(self._info.table))
        segments = simulate((runs[b] for b in (*warm_up, *batches)), governor, self.constants.podgov_poll_s)
        return [s for s in segments if s.step >= len(warm_up)]

    def _warm_up(self, runs: Sequence[StepRuns], batches: Sequence[int]) -> list[int]:
        """Batches run before the window: at least `WARM_UP_STEPS`, and `WARM_UP_S` even at the top clock."""
        warm_up: list[int] = []
        time_s = 0.0
        while len(warm_up) < WARM_UP_STEPS or time_s < WARM_UP_S:
            batch = batches[len(warm_up) % len(batches)]
            warm_up.append(batch)
            time_s += sum(by_clock[-1].time_s for by_clock in runs[batch])
        return warm_up

    def _expected_step(
        self, workload: Workload, setting: Setting
    ) -> tuple[float, float, float, float, float]:
        """Expectation per step: gpu_cpu joules, module joules, seconds, busy seconds, MHz seconds."""
        runs = self._runs(workload)
        table = self._info.table
        if isinstance(setting, str):
            batches = draw_batches(workload, LONG_RUN_STEPS, f"noise-free|{workload.id}")
            parts = [
                (s.duration_s / LONG_RUN_STEPS, s.run, table[s.index])
                for s in self._run(workload, setting, batches)
            ]
        else:
            index = list(table).index(setting)
            parts = [
                (length_bin.share * by_clock[index].time_s, by_clock[index], setting)
                for length_bin, phases in zip(workload.bins, runs, strict=True)
                for by_clock in phases
            ]
        return (
            sum(t * (run.gpu_soc_w + run.cpu_cv_w) for t, run, _ in parts),
            sum(t * (run.gpu_soc_w + run.cpu_cv_w + run.sys_w) for t, run, _ in parts),
            sum(t for t, _, _ in parts),
            sum(t * run.busy for t, run, _ in parts),
            sum(t * mhz for t, _, mhz in parts),
        )


def draw_batches(workload: Workload, steps: int, seed: str) -> list[int]:
    """Indices of the length bins of `steps` batches: a stratified draw by share, in random order.

    Every bin appears as often as its share asks for, up to one; the expectation over seeds is exact.
    """
    rng = random.Random(seed)
    cumulative = list(accumulate(b.share for b in workload.bins))
    start, last = rng.random(), len(cumulative) - 1
    total = cumulative[-1]
    batches = [min(last, bisect_right(cumulative, (k + start) / steps * total)) for k in range(steps)]
    rng.shuffle(batches)
    return batches


def sample(segments: Iterable[Segment], *, power_factor: float = 1.0, time_factor: float = 1.0) -> Trace:
    """Sample segments at `SAMPLES_PER_S`: each sample is the mean power of its interval, stamped at its middle.

    Args:
        segments: in order of time.
        power_factor: all powers are multiplied by it.
        time_factor: all durations are multiplied by it.

    Returns:
        A trace of at least two samples over equal intervals that fill the window.
    """
    parts = [(s.duration_s * time_factor, s.run) for s in segments]
    total_s = sum(duration for duration, _ in parts)
    n = max(2, round(total_s * SAMPLES_PER_S))
    width = total_s / n
    gpu: list[float] = []
    cpu: list[float] = []
    system: list[float] = []
    gpu_j = cpu_j = sys_j = filled = 0.0
    for duration, run in parts:
        gpu_w, cpu_w, sys_w = (
            run.gpu_soc_w * power_factor,
            run.cpu_cv_w * power_factor,
            run.sys_w * power_factor,
        )
        room = width - filled
        if duration >= room:
            gpu.append((gpu_j + gpu_w * room) / width)
            cpu.append((cpu_j + cpu_w * room) / width)
            system.append((sys_j + sys_w * room) / width)
            duration -= room
            whole = int(duration / width)
            gpu += [gpu_w] * whole
            cpu += [cpu_w] * whole
            system += [sys_w] * whole
            filled = duration - whole * width
            gpu_j, cpu_j, sys_j = gpu_w * filled, cpu_w * filled, sys_w * filled
        else:
            filled += duration
            gpu_j += gpu_w * duration
            cpu_j += cpu_w * duration
            sys_j += sys_w * duration
    if len(gpu) < n:  # rounding left the last interval open by a hair
        gpu.append(gpu_j / filled)
        cpu.append(cpu_j / filled)
        system.append(sys_j / filled)
    t_s = [(i + 0.5) * width for i in range(n)]
    return Trace(t_s, {GPU_RAIL: gpu[:n], CPU_RAIL: cpu[:n], SYS_RAIL: system[:n]})


def _lognormal(rng: random.Random, sigma: float) -> float:
    """A factor of mean 1 whose logarithm has the standard deviation `sigma`."""
    return rng.lognormvariate(-0.5 * sigma * sigma, sigma) if sigma else 1.0
