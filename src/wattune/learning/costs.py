"""Features of a job from its operation counts: known before it starts, on a board nobody measured."""

from __future__ import annotations

from dataclasses import replace

from wattune.boards.virtual.constants import BoardFile
from wattune.boards.virtual.model import run_step
from wattune.core.features import FeatureValue
from wattune.core.workload import PhaseCost, Workload

DIGITS = 10
"""Significant digits of a number in a feature table."""


def before_calibration(file: BoardFile) -> BoardFile:
    """The board as its data sheet and our priors describe it: no constant has been fitted to a measurement."""
    believed = {name: prior.value for name, prior in file.priors.items()}
    return replace(file, constants=replace(file.constants, **believed))


def mean_cost(workload: Workload) -> PhaseCost:
    """Cost of a mean step."""
    totals = [(b.share, b.cost.total) for b in workload.bins]
    return PhaseCost(
        flops=sum(share * cost.flops for share, cost in totals),
        bytes=sum(share * cost.bytes for share, cost in totals),
        launches=sum(share * cost.launches for share, cost in totals),
    )


def expected_util_pct(workload: Workload, file: BoardFile, reference_mhz: float) -> float:
    """Share of a step in which the GPU is expected to be busy, percent.

    Args:
        workload: the job.
        file: the board in its power mode, best taken `before_calibration`.
        reference_mhz: GPU clock.
    """
    time_s = busy_s = 0.0
    for length_bin in workload.bins:
        for run in run_step(file.constants, length_bin.cost, workload.precision, reference_mhz):
            time_s += length_bin.share * run.time_s
            busy_s += length_bin.share * run.time_s * run.busy
    return 100.0 * busy_s / time_s


def cost_features(
    workload: Workload, method: str, file: BoardFile, power_mode: str, reference_mhz: float | None = None
) -> dict[str, FeatureValue]:
    """The values of :data:`wattune.core.features.COST_FEATURES`, to the digits that a feature table holds.

    A job that a governor was trained on thus lies inside its training range to the last digit.

    Args:
        workload: the job.
        method: what it trains.
        file: the board's file, in its default mode; what was fitted in it is not looked at.
        power_mode: name of the mode the job will run in.
        reference_mhz: clock of the expected utilisation; the mode's highest where None or above it.
    """
    cost = mean_cost(workload)
    board = before_calibration(file).in_mode(power_mode)
    top = board.table.top
    found: dict[str, FeatureValue] = {
        "method": method,
        "precision": workload.precision,
        "power_mode": board.power_mode,
        "step_gflop": cost.flops / 1e9,
        "step_gbyte": cost.bytes / 1e9,
        "step_kernels": cost.launches,
        "flop_per_byte": cost.flops / cost.bytes,
        "expected_util_pct": expected_util_pct(workload, board, min(top, reference_mhz or top)),
    }
    return {name: float(f"{v:.{DIGITS}g}") if isinstance(v, float) else v for name, v in found.items()}
