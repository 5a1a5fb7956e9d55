"""The modelled board, measured the way arXiv 2607.05933 measured its own.

The scripts published by that group log the rails from 2 s before Python starts until the evaluation has ended, take the
mean power of the whole log and multiply it by the time of training alone; every setting is run once. Where training is
long against the rest of the log this is the energy of training; where it is short it is mostly the power of loading.

What a log holds beside training is not published. The durations below are priors: orders of magnitude, chosen before any saving
was looked at and never fitted to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

from wattune.boards.base import BoardInfo
from wattune.boards.virtual.board import Steady, VirtualBoard
from wattune.boards.virtual.model import PhaseRun, idle_run
from wattune.boards.virtual.podgov import PodGov, simulate
from wattune.core.measurement import Measurement
from wattune.core.settings import MAXN, Setting
from wattune.core.workload import Workload
from wattune.io import sha256_of

WHOLE_LOG_VERSION = 1
"""Raise it whenever the same set-up and board would give other answers: it is part of the board's digest."""

LEFT_PINNED_MHZ = 816.0
"""Where the group's sweep scripts pin the clock in their pre-flight check; their baseline branch does not undo it."""

BEFORE_PYTHON_S = 2.0
"""The scripts start logging 2 s before Python (published scripts)."""

IMPORTS_S = 10.0
"""Prior: importing torch, transformers and datasets takes 4 to 5 s on a desktop core, about twice that on a Cortex-A78AE."""

DATA_SET_S = 3.0
"""Prior: opening a cached GLUE task with `datasets`, and the tokenizer."""

TOKENISED_ROWS_PER_S = 5000.0
"""Prior: `datasets.map` with a fast tokenizer yields 10 to 20 thousand short examples a second on a desktop. Taken as done
in every run; the library may find them in its cache from the second run on."""

MODEL_S = 4.0
"""Prior: creating the CUDA context and loading the kernel libraries on a Jetson."""

MODEL_BYTES_PER_S = 0.5e9
"""Prior: reading the fp32 checkpoint and copying it to the GPU."""

FP32_BYTES = 4


@dataclass(frozen=True, slots=True)
class SetUp:
    """What happens in a log before training.

    Attributes:
        before_python_s: idle time at the start.
        imports_s: importing libraries.
        data_set_s: opening the data set and the tokenizer.
        rows_per_s: examples tokenised a second.
        model_s: CUDA context.
        model_bytes_per_s: rate at which a checkpoint is loaded.
        gated: the GPU is switched off meanwhile, as a board does that nothing keeps awake; else it idles at the clock set.
    """

    before_python_s: float = BEFORE_PYTHON_S
    imports_s: float = IMPORTS_S
    data_set_s: float = DATA_SET_S
    rows_per_s: float = TOKENISED_ROWS_PER_S
    model_s: float = MODEL_S
    model_bytes_per_s: float = MODEL_BYTES_PER_S
    gated: bool = False

    def busy_s(self, rows: int, params_m: float) -> float:
        """Time in which one CPU core works and the GPU waits."""
        loading_s = params_m * 1e6 * FP32_BYTES / self.model_bytes_per_s
        return self.imports_s + self.data_set_s + rows / self.rows_per_s + self.model_s + loading_s

    def scaled(self, factor: float) -> SetUp:
        """The same with all durations times `factor`."""
        return replace(
            self,
            before_python_s=self.before_python_s * factor,
            imports_s=self.imports_s * factor,
            data_set_s=self.data_set_s * factor,
            rows_per_s=self.rows_per_s / factor,
            model_s=self.model_s * factor,
            model_bytes_per_s=self.model_bytes_per_s / factor,
        )


NO_SET_UP = SetUp(0.0, 0.0, 0.0, float("inf"), 0.0, float("inf"))


@dataclass(frozen=True, slots=True)
class LogParts:
    """What the log of a workload holds beside training.

    Attributes:
        rows: examples tokenised.
        evaluation: the pass over the validation split; its `steps_per_epoch` are all of its batches. None for no evaluation.
    """

    rows: int = 0
    evaluation: Workload | None = None


Stretch = tuple[float, Steady]
"""A part of the log: how often, and what one of it costs."""


class WholeLogBoard:
    """A modelled board whose `energy_j` is mean power over the whole log times training time.

    Args:
        board: the board.
        parts_of: what the log of a workload holds beside training.
        set_up: what happens before training.
        left_pinned: measure ``maxn`` with the clock still pinned at `LEFT_PINNED_MHZ`.

    Raises:
        InputError: `left_pinned` on a board without that clock.
    """

    def __init__(
        self,
        board: VirtualBoard,
        parts_of: Callable[[Workload], LogParts],
        *,
        set_up: SetUp | None = None,
        left_pinned: bool = False,
    ) -> None:
        self._board = board
        self._evaluating = VirtualBoard(
            file=board.file
        )  # boards remember their last workload: one for each kind
        self._parts_of = parts_of
        self._set_up = SetUp() if set_up is None else set_up
        self._left_pinned_mhz = board.info.table.match(LEFT_PINNED_MHZ) if left_pinned else None
        rails = board.file.module_rails
        self._labels = tuple(rail.label for rail in rails)
        self._gpu_cpu = tuple(rail.label for rail in rails if rail.gpu_cpu)
        mode = board.info.power_mode
        self._info = replace(
            board.info,
            rails=f"{board.info.rails}, whole log",
            power_mode=f"{mode}, left pinned at {LEFT_PINNED_MHZ:g} MHz" if left_pinned else mode,
            digest=sha256_of(
                {
                    "board": board.info.digest,
                    "whole_log_version": WHOLE_LOG_VERSION,
                    "set_up": {name: str(value) for name, value in asdict(self._set_up).items()},
                    "left_pinned": left_pinned,
                }
            ),
        )
        self._known: dict[tuple[Workload, Setting], tuple[Stretch, ...]] = {}

    @property
    def info(self) -> BoardInfo:
        """Identity, clocks and provenance; `rails` and `power_mode` say how it is measured."""
        return self._info

    def measure(
        self, workload: Workload, setting: Setting, *, repeat: int, steps: int, seed: int
    ) -> Measurement:
        """One whole run; `steps` says nothing, since a whole epoch is run.

        See :meth:`wattune.boards.base.Board.measure`. `gpu_util_pct` and `gpu_mhz_mean` are means over the log as well.
        """
        if not isinstance(setting, str):
            setting = self._info.table.match(setting)
        log = self._log(workload, setting)
        power_factor, time_factor = self._board.run_noise(workload, setting, repeat=repeat, seed=seed)
        log_s = sum(times * part.time_s for times, part in log)
        epochs, step = log[0]
        time_s = epochs * step.time_s * time_factor

        def energy_j(labels: Sequence[str]) -> float:
            logged_j = sum(times * part.rails_j[label] for times, part in log for label in labels)
            return logged_j / log_s * power_factor * time_s

        return Measurement(
            setting=setting,
            repeat=repeat,
            energy_j=energy_j(self._gpu_cpu),
            time_s=time_s,
            energy_module_j=energy_j(self._labels),
            gpu_util_pct=100.0 * sum(times * part.busy_s for times, part in log) / log_s,
            gpu_mhz_mean=sum(times * part.mhz_s for times, part in log) / log_s,
            temp_c_max=max(part.temp_c for _, part in log),
            window_steps=workload.steps_per_epoch,
            window_s=log_s * time_factor,
        )

    def noise_free(self, workload: Workload, setting: Setting) -> None:
        """None: who measures so cannot know, and judges by what was measured."""
        return

    def _log(self, workload: Workload, setting: Setting) -> tuple[Stretch, ...]:
        """The parts of a log: training first, then what else there is."""
        key = (workload, setting)
        if key not in self._known:
            at = self._left_pinned_mhz if setting == MAXN and self._left_pinned_mhz is not None else setting
            parts = self._parts_of(workload)
            log = [(float(workload.steps_per_epoch), self._board.steady(workload, at))]
            before = self._before(parts.rows, workload.params_m, at)
            if before is not None:
                log.append((1.0, before))
            if parts.evaluation is not None:
                batches = float(parts.evaluation.steps_per_epoch)
                log.append((batches, self._evaluating.steady(parts.evaluation, at)))
            self._known[key] = tuple(log)
        return self._known[key]

    def _before(self, rows: int, params_m: float, setting: Setting) -> Steady | None:
        """Everything before training; under ``maxn`` the clock falls while the GPU waits. None where it takes no time."""
        c, table = self._board.constants, self._board.info.table
        waits = (
            (self._set_up.before_python_s, c.cpu_idle_w),
            (self._set_up.busy_s(rows, params_m), c.cpu_base_w + c.cpu_launch_w),
        )

        def phase(time_s: float, cpu_w: float, mhz: float) -> PhaseRun:
            return replace(idle_run(c, mhz, gated=self._set_up.gated, time_s=time_s), cpu_w=cpu_w)

        by_clock = [[phase(time_s, cpu_w, mhz) for mhz in table] for time_s, cpu_w in waits if time_s > 0.0]
        if not by_clock:
            return None
        if isinstance(setting, str):
            governor = PodGov(len(table), len(table) - 1)
            segments = simulate([by_clock], governor, c.podgov_poll_s)
            parts = [(s.duration_s, s.run) for s in segments]
            return self._board.settled(parts, sum(s.duration_s * table[s.index] for s in segments))
        index = list(table).index(setting)
        parts = [(phases[index].time_s, phases[index]) for phases in by_clock]
        return self._board.settled(parts, sum(time_s for time_s, _ in parts) * setting)
