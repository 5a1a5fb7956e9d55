"""Fit a board's free constants to measured curves, with priors: what `wattune validate` repeats and the board's file records.

The constants with a prior in the board's file are free. Least squares in their logarithms: every point of a curve weighs by the
curve's granted error after prediction and measurement are scaled to the same geometric mean; the levels weigh apart; each constant is
pulled to its prior by its prior's spread. The posterior spread over the prior's says what the data identify.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattune.boards.virtual.constants import PARTS, BoardFile
from wattune.boards.virtual.model import (
    clock_tree_w,
    leak_w,
    leakage_factor,
    run_step,
    steady_temperature_c,
)
from wattune.core.stats import mean
from wattune.validation.source import Source

MAX_EVALUATIONS = 60
TOLERANCE = 1e-5
"""Relative change of cost or constants at which the search stops: far below what a curve of single runs can tell."""
IDLE_C = 35.0
"""Die temperature of an idle board in a room, with the fan of the developer kit."""


@dataclass(frozen=True, slots=True)
class Level:
    """A published figure of the board itself, in watts, that calibrates along with the curves.

    Attributes:
        name: what it is.
        measured_w: the figure; `sd_w` the error we grant it.
        predict_w: the model's answer.
        citation: where it was published.
    """

    name: str
    measured_w: float
    sd_w: float
    predict_w: Callable[[BoardFile], float]
    citation: str


@dataclass(frozen=True, slots=True)
class Fit:
    """A calibrated board.

    Attributes:
        file: the board with the fitted constants.
        posterior_over_prior: constant -> standard deviation after over before (logarithms): near 1, the data say nothing about it.
        pull: constant -> distance from its prior in prior standard deviations.
    """

    file: BoardFile
    posterior_over_prior: Mapping[str, float]
    pull: Mapping[str, float]


def idle_gpu_w(file: BoardFile, mhz: float) -> float:
    """The GPU's rail without work, clocked and not gated, at `IDLE_C`."""
    c = file.constants
    return clock_tree_w(c, mhz) + leak_w(c, mhz) * leakage_factor(c, IDLE_C)


def predict(file: BoardFile, source: Source) -> list[float]:
    """The model's answer to a source: its quantity per step at each of its clocks (what `VirtualBoard.steady` says, faster)."""
    if source.power_mode:
        file = file.in_mode(source.power_mode)
    c, job = file.constants, source.workload
    rails = [rail for rail in file.rails if rail.label in source.rails]
    weight = {part: sum(part in rail.parts for rail in rails) for part in PARTS}
    summed_base_w = sum(rail.base_w for rail in rails) + weight["sys"] * c.sys_base_w
    module_base_w = sum(rail.base_w for rail in file.module_rails) + c.sys_base_w
    answers = []
    for mhz in source.mhz:
        time_s = gpu_j = leak_j = cpu_j = dram_j = 0.0
        for length_bin in job.bins:
            for run in run_step(c, length_bin.cost, job.precision, mhz):
                t = length_bin.share * run.time_s
                time_s += t
                gpu_j += t * run.gpu_w
                leak_j += t * run.leak_w
                cpu_j += t * run.cpu_w
                dram_j += t * run.dram_w
        if source.quantity == "time":
            answers.append(time_s)
            continue
        temp_c = steady_temperature_c(c, (gpu_j + cpu_j + dram_j) / time_s + module_base_w, leak_j / time_s)
        joules = (
            weight["gpu"] * (gpu_j + leak_j * leakage_factor(c, temp_c))
            + weight["cpu"] * cpu_j
            + weight["dram"] * dram_j
            + summed_base_w * time_s
        )
        answers.append(joules if source.quantity == "energy" else joules / time_s)
    return answers


def log_ratios(file: BoardFile, source: Source) -> list[float]:
    """Logarithm of predicted over measured, per clock, in the measurement's unit of work."""
    steps = source.steps or 1.0
    scale = 1.0 if source.quantity == "power" else steps
    return [math.log(p * scale / m) for p, m in zip(predict(file, source), source.measured, strict=True)]


def orin_levels() -> list[Level]:
    """What is known of an idle AGX Orin's GPU rail."""
    return [
        Level(
            "idle_rise_w",
            2.9,
            0.4,
            idle_rise_w,
            "github lijiaxi2018/Distributed-Learning@2c63c6f (YOLO sweeps): rise from 306 to 1300 MHz between frames",
        ),
        Level(
            "idle_top_w",
            5.2,
            0.5,
            idle_top_w,
            "github jbecirovski/jetson-llm-maxperf@c19500d: VDD_GPU_SOC pinned at 1300 MHz, not gated",
        ),
    ]


def idle_rise_w(file: BoardFile) -> float:
    """Rise of the idle GPU's rail from the lowest to the highest clock."""
    return idle_gpu_w(file, file.table.top) - idle_gpu_w(file, file.table[0])


def idle_top_w(file: BoardFile) -> float:
    """The idle GPU's rail at the highest clock."""
    return idle_gpu_w(file, file.table.top)


def with_constants(file: BoardFile, values: Mapping[str, float]) -> BoardFile:
    """The board with some constants replaced."""
    return replace(file, constants=replace(file.constants, **values))


def fit(
    file: BoardFile,
    sources: Sequence[Source],
    levels: Sequence[Level] = (),
    *,
    prior_values: Mapping[str, float] | None = None,
    start: Mapping[str, float] | None = None,
) -> Fit:
    """Calibrate a board.

    Args:
        file: the board; its present values of free constants do not matter.
        sources: curves to fit.
        levels: figures to fit along.
        prior_values: other centres of the priors (how much the result rests on them).
        start: where to start the search; the priors where not given.
    """
    import numpy as np
    from scipy.optimize import least_squares

    names = list(file.priors)
    centre = {name: file.priors[name].value for name in names} | dict(prior_values or {})
    spread = np.array([file.priors[name].log_sd for name in names])

    def board_at(x: Any) -> BoardFile:
        return with_constants(
            file, {name: centre[name] * math.exp(v) for name, v in zip(names, x, strict=True)}
        )

    def residuals(x: Any) -> Any:
        board = board_at(x)
        out: list[float] = []
        for source in sources:
            ratios = log_ratios(board, source)
            middle = mean(ratios)
            out += [(r - middle) / source.shape_sd for r in ratios]
            if source.level_sd is not None:
                out.append(middle / source.level_sd)
        out += [(level.predict_w(board) - level.measured_w) / level.sd_w for level in levels]
        return np.array([*out, *(np.asarray(x) / spread)])

    first = np.array([math.log(start[n] / centre[n]) if start else 0.0 for n in names])
    result = least_squares(
        residuals, first, x_scale=0.1, max_nfev=MAX_EVALUATIONS, ftol=TOLERANCE, xtol=TOLERANCE
    )
    posterior = np.sqrt(np.diag(np.linalg.inv(result.jac.T @ result.jac)))
    return Fit(
        file=board_at(result.x),
        posterior_over_prior={n: float(p / s) for n, p, s in zip(names, posterior, spread, strict=True)},
        pull={n: float(v / s) for n, v, s in zip(names, result.x, spread, strict=True)},
    )


def redrawn_priors(file: BoardFile, seed: int) -> dict[str, float]:
    """Centres of the priors drawn anew from the priors themselves."""
    rng = random.Random(seed)
    return {name: p.value * math.exp(rng.gauss(0.0, p.log_sd)) for name, p in file.priors.items()}


def fitted_document(fitted: Fit) -> dict[str, Any]:
    """The board's file with the fitted values, five digits each."""
    document = dict(fitted.file.document)
    constants = {}
    for name, entry in document["constants"].items():
        value = getattr(fitted.file.constants, name)
        constants[name] = {**entry, "value": float(f"{value:.5g}")} if "prior" in entry else entry
    document["constants"] = constants
    return document
