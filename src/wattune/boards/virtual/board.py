"""A modelled board behind the board port: everything it yields is marked ``simulated``."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from wattune.boards.base import BoardInfo
from wattune.boards.virtual.constants import BoardConstants, BoardFile, load_board_file
from wattune.boards.virtual.model import (
    MODEL_VERSION,
    PhaseRun,
    is_half,
    leakage_factor,
    rail_powers_w,
    run_step,
    steady_temperature_c,
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
        temp_c: die temperature, settled.
        step_ends_s: when each step ended, from the window's start.
    """

    trace: Trace
    window_s: float
    steps: int
    gpu_util_pct: float
    gpu_mhz_mean: float
    temp_c: float
    step_ends_s: tuple[float, ...]

    def energy_j(self, rails: Sequence[str]) -> float:
        """Energy of the window: trapezoid over the samples, stretched from the samples' span to the window."""
        energy = self.trace.energy_j(rails)
        assert energy is not None  # a recording has all rails and at least two samples
        return energy * self.window_s / (self.trace.t_s[-1] - self.trace.t_s[0])


@dataclass(frozen=True, slots=True)
class Steady:
    """Expectation per training step once the board is as warm as it gets.

    Attributes:
        time_s: duration of a step.
        rails_j: energy per rail (those that lie inside no other), joules.
        busy_s: time in which the GPU computes or moves data.
        mhz_s: clock integrated over time, MHz s.
        temp_c: die temperature.
    """

    time_s: float
    rails_j: dict[str, float]
    busy_s: float
    mhz_s: float
    temp_c: float


class VirtualBoard:
    """A board that computes what it would measure.

    Args:
        constants_path: the board's file; the AGX Orin 64GB where not given.
        power_mode: name of a power mode of the file; its default mode where not given.
        file: a board already read, instead of a path.

    Raises:
        InputError: the file is missing or not valid, or has no such mode.
    """

    def __init__(
        self,
        constants_path: Path | None = None,
        *,
        power_mode: str | None = None,
        file: BoardFile | None = None,
    ) -> None:
        if file is None:
            file = load_board_file(Path(constants_path) if constants_path is not None else DEFAULT_CONSTANTS)
        if power_mode is not None and file.mode(power_mode) != file.mode():
            file = file.in_mode(power_mode)
        self.file = file
        self.constants: BoardConstants = file.constants
        self._rails = file.module_rails
        self._labels = tuple(rail.label for rail in self._rails)
        self._gpu_cpu = tuple(rail.label for rail in self._rails if rail.gpu_cpu)
        identity = {
            "model_version": MODEL_VERSION,
            "board": file.board,
            "power_mode": file.power_mode,
            "clocks_hz": file.clocks_hz,
            "rails": [asdict(rail) for rail in file.rails],
            "constants": asdict(file.constants),
        }
        self._info = BoardInfo(
            id=file.board,
            provenance="simulated",
            power_mode=file.power_mode,
            rails="gpu_cpu",
            table=file.table,
            digest=sha256_of(identity),
            calibrated=file.calibrated,
        )
        self._cached: tuple[Workload, tuple[StepRuns, ...]] | None = None
        self._cached_top: tuple[Workload, int] | None = None

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
        return Measurement(
            setting=self._match(setting),
            repeat=repeat,
            energy_j=recording.energy_j(self._gpu_cpu) * per_epoch,
            time_s=recording.window_s * per_epoch,
            energy_module_j=recording.energy_j(self._labels) * per_epoch,
            gpu_util_pct=recording.gpu_util_pct,
            gpu_mhz_mean=recording.gpu_mhz_mean,
            temp_c_max=recording.temp_c,
            window_steps=recording.steps,
            window_s=recording.window_s,
        )

    def noise_free(self, workload: Workload, setting: Setting) -> Measurement:
        """The expectation of :meth:`measure`: exact at a pinned clock, a long simulation under ``maxn``."""
        setting = self._match(setting)
        step = self.steady(workload, setting)
        epoch = workload.steps_per_epoch
        return Measurement(
            setting=setting,
            repeat=0,
            energy_j=sum(step.rails_j[label] for label in self._gpu_cpu) * epoch,
            time_s=step.time_s * epoch,
            energy_module_j=sum(step.rails_j.values()) * epoch,
            gpu_util_pct=100.0 * step.busy_s / step.time_s,
            gpu_mhz_mean=step.mhz_s / step.time_s,
            temp_c_max=step.temp_c,
        )

    def predict(self, workload: Workload) -> list[dict[str, Any]]:
        """Energy (rails ``gpu_cpu``) and time per step at every clock and under ``maxn``, noise-free."""
        rows: list[dict[str, Any]] = []
        for setting in (*self._info.table, MAXN):
            step = self.steady(workload, setting)
            energy_j = sum(step.rails_j[label] for label in self._gpu_cpu)
            rows.append({"mhz": setting, "energy_j": energy_j, "time_s": step.time_s})
        return rows

    def record(
        self,
        workload: Workload,
        setting: Setting,
        *,
        repeat: int,
        steps: int,
        seed: int,
        batches: Sequence[int] | None = None,
    ) -> Recording:
        """The window behind :meth:`measure`, with its trace (same arguments, same noise).

        Args:
            workload: see :meth:`measure`; `setting`, `repeat`, `steps` and `seed` likewise.
            setting: see `workload`.
            repeat: see `workload`.
            steps: see `workload`.
            seed: see `workload`.
            batches: the length bin of every step; drawn for the repeat where not given.

        Raises:
            InputError: an unknown clock or precision, no bins, or less than one step.
        """
        setting = self._match(setting)
        if steps < 1:
            raise InputError(
                f"A window of {steps} steps cannot be measured.", "At least one step was expected."
            )
        if batches is None:
            batches = draw_batches(workload, steps, f"{seed}|{workload.id}|{repeat}")
        segments = self._run(workload, setting, batches)
        power_factor, time_factor = self.run_noise(workload, setting, repeat=repeat, seed=seed)
        time_s = sum(s.duration_s for s in segments)
        table = self._info.table
        temp_c = self._temperature_c([(s.duration_s, s.run) for s in segments])
        return Recording(
            trace=sample(
                self._powers(segments, temp_c),
                self._labels,
                power_factor=power_factor,
                time_factor=time_factor,
            ),
            temp_c=temp_c,
            window_s=time_s * time_factor,
            steps=steps,
            gpu_util_pct=100.0 * sum(s.duration_s * s.run.busy for s in segments) / time_s,
            gpu_mhz_mean=sum(s.duration_s * table[s.index] for s in segments) / time_s,
            step_ends_s=_step_ends(segments, time_factor),
        )

    def run_noise(
        self, workload: Workload, setting: Setting, *, repeat: int, seed: int
    ) -> tuple[float, float]:
        """The factors by which one run's power and time differ from their expectation."""
        noise = random.Random(f"{seed}|{workload.id}|{setting}|{repeat}")
        power_factor = _lognormal(noise, self.constants.power_noise_rel)
        return power_factor, _lognormal(noise, self.constants.time_noise_rel)

    def _match(self, setting: Setting) -> Setting:
        return setting if isinstance(setting, str) else self._info.table.match(setting)

    def _temperature_c(self, parts: Sequence[tuple[float, PhaseRun]]) -> float:
        """Settled die temperature of a mixture of (duration, run)."""
        time_s = sum(t for t, _ in parts)
        base_w = self.constants.sys_base_w + sum(rail.base_w for rail in self._rails)
        other_w = sum(t * (run.gpu_w + run.cpu_w + run.dram_w) for t, run in parts) / time_s + base_w
        leak_w = sum(t * run.leak_w for t, run in parts) / time_s
        return steady_temperature_c(self.constants, other_w, leak_w)

    def _powers(self, segments: Sequence[Segment], temp_c: float) -> list[tuple[float, tuple[float, ...]]]:
        """Segments as (duration, power of each rail)."""
        leakage = leakage_factor(self.constants, temp_c)
        known: dict[int, tuple[float, ...]] = {}
        powers = []
        for s in segments:
            if id(s.run) not in known:
                known[id(s.run)] = rail_powers_w(self.constants, self._rails, s.run, leakage)
            powers.append((s.duration_s, known[id(s.run)]))
        return powers

    def _pinned(self, workload: Workload, index: int) -> list[tuple[float, PhaseRun]]:
        """A mean step at a clock, as (duration, run)."""
        return [
            (length_bin.share * by_clock[index].time_s, by_clock[index])
            for length_bin, phases in zip(workload.bins, self._runs(workload), strict=True)
            for by_clock in phases
        ]

    def _top(self, workload: Workload) -> int:
        """Index of the highest clock at which the die stays below its throttling temperature.

        A real board oscillates between this clock and the next; this is the lower bound.
        """
        if self._cached_top is None or self._cached_top[0] != workload:
            index = len(self._info.table) - 1
            while index and self._temperature_c(self._pinned(workload, index)) > self.constants.throttle_c:
                index -= 1
            self._cached_top = (workload, index)
        return self._cached_top[1]

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
            index = min(list(self._info.table).index(setting), self._top(workload))
            return [
                Segment(number, index, by_clock[index].time_s, by_clock[index])
                for number, batch in enumerate(batches)
                for by_clock in runs[batch]
            ]
        warm_up = self._warm_up(runs, batches)
        governor = PodGov(self._top(workload) + 1)
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

    def steady(self, workload: Workload, setting: Setting) -> Steady:
        """Expectation per training step: exact at a pinned clock, a long simulation under ``maxn``."""
        table = self._info.table
        if isinstance(setting, str):
            batches = draw_batches(workload, LONG_RUN_STEPS, f"noise-free|{workload.id}")
            segments = self._run(workload, setting, batches)
            parts = [(s.duration_s / LONG_RUN_STEPS, s.run) for s in segments]
            mhz_s = sum(s.duration_s / LONG_RUN_STEPS * table[s.index] for s in segments)
        else:
            index = min(list(table).index(setting), self._top(workload))
            parts = self._pinned(workload, index)
            mhz_s = sum(t for t, _ in parts) * table[index]
        return self.settled(parts, mhz_s)

    def settled(self, parts: Sequence[tuple[float, PhaseRun]], mhz_s: float) -> Steady:
        """Time and energy of a mixture of (duration, run) on a die as warm as that mixture makes it."""
        temp_c = self._temperature_c(parts)
        leakage = leakage_factor(self.constants, temp_c)
        rails_j = [0.0] * len(self._rails)
        for t, run in parts:
            for i, power_w in enumerate(rail_powers_w(self.constants, self._rails, run, leakage)):
                rails_j[i] += t * power_w
        return Steady(
            time_s=sum(t for t, _ in parts),
            rails_j=dict(zip(self._labels, rails_j, strict=True)),
            busy_s=sum(t * run.busy for t, run in parts),
            mhz_s=mhz_s,
            temp_c=temp_c,
        )


def _step_ends(segments: Sequence[Segment], time_factor: float) -> tuple[float, ...]:
    """When each step ended: the end of the last segment that carries its number."""
    ends: list[float] = []
    now_s, step = 0.0, segments[0].step
    for segment in segments:
        if segment.step != step:
            ends.append(now_s * time_factor)
            step = segment.step
        now_s += segment.duration_s
    return (*ends, now_s * time_factor)


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


def sample(
    parts: Iterable[tuple[float, tuple[float, ...]]],
    labels: Sequence[str],
    *,
    power_factor: float = 1.0,
    time_factor: float = 1.0,
) -> Trace:
    """Sample stretches of power at `SAMPLES_PER_S`: each sample is the mean of its interval, stamped at its middle.

    Args:
        parts: in order of time, (duration, power of each rail).
        labels: the rails' names.
        power_factor: all powers are multiplied by it.
        time_factor: all durations are multiplied by it.

    Returns:
        A trace of at least two samples over equal intervals that fill the window.
    """
    parts = [(duration * time_factor, powers) for duration, powers in parts]
    total_s = sum(duration for duration, _ in parts)
    n = max(2, round(total_s * SAMPLES_PER_S))
    width = total_s / n
    samples: list[list[float]] = [[] for _ in labels]
    energy = [0.0] * len(labels)
    filled = 0.0
    for duration, powers in parts:
        room = width - filled
        if duration < room:
            filled += duration
            for i, power_w in enumerate(powers):
                energy[i] += power_w * duration
            continue
        rest = duration - room
        whole = int(rest / width)
        filled = rest - whole * width
        for i, power_w in enumerate(powers):
            samples[i].append((energy[i] + power_w * room) / width)
            samples[i] += [power_w] * whole
            energy[i] = power_w * filled
    if len(samples[0]) < n:  # rounding left the last interval open by a hair
        for i in range(len(labels)):
            samples[i].append(energy[i] / filled)
    t_s = [(i + 0.5) * width for i in range(n)]
    return Trace(
        t_s,
        {
            label: [w * power_factor for w in values[:n]]
            for label, values in zip(labels, samples, strict=True)
        },
    )


def _lognormal(rng: random.Random, sigma: float) -> float:
    """A factor of mean 1 whose logarithm has the standard deviation `sigma`."""
    return rng.lognormvariate(-0.5 * sigma * sigma, sigma) if sigma else 1.0
