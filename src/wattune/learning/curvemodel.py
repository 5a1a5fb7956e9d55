"""The policy `curve`: a workload's physical curve predicted from its features, then the setting an objective asks for.

Over the clock x (a share of the table's top clock) a workload has two parameters, and a board two:

- time, relative to the top clock: ``share / x + 1 - share`` (Hsu & Feng, SC 2005, with their beta as `share`);
- power, relative to the top clock: ``static + (1 - static) x V(x)^2`` (Chandrakasan, Sheng & Brodersen, IEEE JSSC 27(4), 1992);
- voltage: a floor up to a knee, then straight to 1 at the top; one for all workloads of a board.

Each is fitted to the training workloads' curves; a ridge regression on few features then predicts share, static and what MAXN takes
against the top clock. It is no policy to ship (nobody can read a regression as one reads a tree) but the reference that tells whether
a tree of at most eight leaves costs anything.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.features import Features
from wattune.core.objectives import ENERGY, Objective, choose
from wattune.core.settings import MAXN, Setting
from wattune.core.stats import mean, standard_error
from wattune.learning.labeltree import Encoder
from wattune.learning.table import WorkloadRows

POLICY = "curve"
PENALTIES = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Ridge penalties tried, in standardised features."""

SHARES = np.linspace(0.01, 0.99, 50)
KNEES = np.linspace(0.1, 0.8, 15)
FLOORS = np.linspace(0.4, 1.0, 13)
LOGARITHMIC = ("layers", "hidden", "seq_len", "params_m", "batch_size")
"""Features that act by their ratio."""


@dataclass(frozen=True, slots=True)
class Board:
    """What all workloads of a board share.

    Attributes:
        clocks: MHz, ascending; the last one is the top clock.
        knee: share of the top clock up to which the voltage stays at its floor.
        floor: least voltage over the top clock's.
    """

    clocks: tuple[float, ...]
    knee: float
    floor: float


@dataclass(frozen=True, slots=True)
class Shape:
    """What a workload's curve has of its own.

    Attributes:
        share: part of the time at the top clock that scales with 1/x.
        static: part of the power at the top clock that no clock changes.
        maxn_energy: energy under MAXN over that at the top clock; None without that baseline.
        maxn_time: time likewise; None where unknown.
        misfit_pct: root mean square of the fitted energies' relative error, percent.
    """

    share: float
    static: float
    maxn_energy: float | None
    maxn_time: float | None
    misfit_pct: float = 0.0


def log_time(share: Any, x: Any) -> Any:
    """Logarithm of the time over that at the top clock."""
    return np.log(share / x + 1.0 - share)


def log_power(static: Any, x: Any, knee: float, floor: float) -> Any:
    """Logarithm of the power over that at the top clock."""
    volts = np.where(x <= knee, floor, floor + (1.0 - floor) * (x - knee) / (1.0 - knee))
    return np.log(static + (1.0 - static) * x * volts**2)


def curve_of(shape: Shape, board: Board) -> EnergyCurve:
    """The curve of a shape: energy and time over those at the top clock."""
    x = np.asarray(board.clocks) / board.clocks[-1]
    times = np.exp(log_time(shape.share, x))
    energies = times * np.exp(log_power(shape.static, x, board.knee, board.floor))
    points: dict[Setting, Point] = {
        mhz: Point(float(e), float(t)) for mhz, e, t in zip(board.clocks, energies, times, strict=True)
    }
    if shape.maxn_energy is not None:
        points[MAXN] = Point(shape.maxn_energy, shape.maxn_time)
    return EnergyCurve(points)


def _centred(values: Any) -> Any:
    return values - values.mean(axis=-1, keepdims=True)


def fit_shape(curve: EnergyCurve, board: Board) -> Shape:
    """Least squares of the logarithms on a grid; the level is free. Without times, share and static are found together."""
    clocks = curve.clocks
    x = np.asarray(clocks) / board.clocks[-1]
    energies = np.log([curve.energy_j(mhz) for mhz in clocks])
    seconds = [curve.points[mhz].time_s for mhz in clocks]
    times = np.log([t for t in seconds if t is not None])
    shares = SHARES
    if len(times) == len(clocks):
        off = _centred(times - log_time(SHARES[:, None], x))
        shares = SHARES[[int((off**2).sum(axis=1).argmin())]]
    model = log_time(shares[:, None, None], x) + log_power(SHARES[None, :, None], x, board.knee, board.floor)
    squares = (_centred(energies - model) ** 2).mean(axis=2)
    i, j = np.unravel_index(int(squares.argmin()), squares.shape)
    top_energy, top_time = _at_top(curve, board, float(shares[i]), float(SHARES[j]))
    base = curve.points.get(MAXN)
    return Shape(
        float(shares[i]),
        float(SHARES[j]),
        None if base is None else base.energy_j / top_energy,
        None if base is None or base.time_s is None or top_time is None else base.time_s / top_time,
        100.0 * math.sqrt(squares[i, j]),
    )


def _at_top(curve: EnergyCurve, board: Board, share: float, static: float) -> tuple[float, float | None]:
    """Energy and time at the top clock as the fitted curve has them, its level set by all clocks."""
    clocks = curve.clocks
    x = np.asarray(clocks) / board.clocks[-1]
    shape = log_time(share, x) + log_power(static, x, board.knee, board.floor)
    level = float(np.mean(np.log([curve.energy_j(mhz) for mhz in clocks]) - shape))
    seconds = [t for mhz in clocks if (t := curve.points[mhz].time_s) is not None]
    if len(seconds) != len(clocks):
        return math.exp(level), None
    return math.exp(level), math.exp(float(np.mean(np.log(seconds) - log_time(share, x))))


def fit_board(curves: Sequence[EnergyCurve]) -> Board:
    """Knee and floor of least misfit over all curves.

    Raises:
        InputError: no curve, or one of a single clock.
    """
    if not curves or any(len(curve.clocks) < 2 for curve in curves):
        raise InputError(
            "A curve's shape cannot be learned: there is no workload, or one with a single clock.",
            "At least two clocks per workload were expected.",
        )
    clocks = tuple(sorted({mhz for curve in curves for mhz in curve.clocks}))

    def misfit(board: Board) -> float:
        return sum(fit_shape(curve, board).misfit_pct ** 2 for curve in curves)

    best = min((Board(clocks, float(k), 0.7) for k in KNEES), key=misfit)
    for _ in range(2):  # the two are searched in turn
        best = min((Board(clocks, best.knee, float(f)) for f in FLOORS), key=misfit)
        best = min((Board(clocks, float(k), best.floor) for k in KNEES), key=misfit)
    return best


def _logit(value: float) -> float:
    return math.log(value / (1.0 - value))


def _share(value: float) -> float:
    return float(1.0 / (1.0 + math.exp(-max(-30.0, min(30.0, value)))))


class CurveModel:
    """Ridge regressions from features to shapes.

    A feature nobody gives is filled as :class:`Encoder` says; one that is the same in all rows says nothing and is left out.

    Args:
        rows: training workloads.
        features: names of the features used.
        penalty: of the ridge; None: chosen by leave-one-out.
        objective: what `choose` minimises.
        board: knee, floor and clocks, where they are known already.
        shapes: of the rows on that board, where they are.

    Attributes:
        board: what the workloads share.
        penalty: of the ridge.
        shapes: of the training workloads.
    """

    name = POLICY

    def __init__(
        self,
        rows: Sequence[WorkloadRows],
        features: Sequence[str],
        *,
        penalty: float | None = None,
        objective: Objective = ENERGY,
        board: Board | None = None,
        shapes: Sequence[Shape] | None = None,
    ) -> None:
        self.objective, self.features = objective, tuple(features)
        self.board = board or fit_board([row.measured for row in rows])
        self.shapes = tuple(shapes or [fit_shape(row.measured, self.board) for row in rows])
        self.encoder = Encoder(rows, features)
        if penalty is None:
            penalty = choose_penalty(rows, features, self.board)[0]
        self.penalty = penalty
        targets = [
            [_logit(s.share), _logit(s.static), math.log(s.maxn_energy or 1.0), math.log(s.maxn_time or 1.0)]
            for s in self.shapes
        ]
        self._has_maxn = all(s.maxn_energy is not None for s in self.shapes)
        self._has_maxn_time = all(s.maxn_time is not None for s in self.shapes)
        raw = self._raw([row.features for row in rows])
        self._centre, spread = raw.mean(axis=0), raw.std(axis=0)
        self._varies = spread > 1e-9
        self._scale = np.where(self._varies, spread, 1.0)
        x, y = self._standard(raw), np.asarray(targets)
        self._level = y.mean(axis=0)
        gram = x.T @ x + penalty * np.eye(x.shape[1])
        self._weights = np.linalg.solve(gram, x.T @ (y - self._level))

    def _raw(self, many: Sequence[Features]) -> Any:
        matrix = self.encoder.matrix(many, np.float64)
        for column, (name, _) in enumerate(self.encoder.columns):
            if name in LOGARITHMIC:
                matrix[:, column] = np.log(np.maximum(matrix[:, column], 1e-3))
        return matrix

    def _standard(self, raw: Any) -> Any:
        return ((raw - self._centre) / self._scale)[:, self._varies]

    def predict(self, features: Features) -> EnergyCurve:
        """The curve expected of a workload, relative to its top clock."""
        share, static, energy, time = self._level + (
            self._standard(self._raw([features]))[0] @ self._weights if self._varies.any() else 0.0
        )
        shape = Shape(
            min(0.99, max(0.01, _share(share))),
            min(0.99, max(0.01, _share(static))),
            math.exp(energy) if self._has_maxn else None,
            math.exp(time) if self._has_maxn_time else None,
        )
        return curve_of(shape, self.board)

    def choose(self, features: Features) -> Setting:
        """The setting that the objective asks for on the predicted curve."""
        return choose(self.predict(features).points, self.objective).setting


def choose_penalty(
    rows: Sequence[WorkloadRows], features: Sequence[str], board: Board
) -> tuple[float, dict[float, list[float]]]:
    """The penalty of least mean leave-one-out regret, ties to the greater one.

    The regression, medians and categories of a fold come from its other rows; knee and floor, two numbers of the board, from all.

    Returns:
        The penalty, and per penalty the energy lost on every left-out row, percent; the greatest penalty and nothing for a single row.
    """
    if len(rows) < 2:
        return PENALTIES[-1], {}
    lost: dict[float, list[float]] = {penalty: [] for penalty in PENALTIES}
    shapes = [fit_shape(row.measured, board) for row in rows]
    for place, out in enumerate(rows):
        others = [*rows[:place], *rows[place + 1 :]]
        known = [*shapes[:place], *shapes[place + 1 :]]
        for penalty, losses in lost.items():
            model = CurveModel(others, features, penalty=penalty, board=board, shapes=known)
            losses.append(out.measured.regret_pct(out.nearest(model.choose(out.features))))
    return min(PENALTIES, key=lambda p: (round(mean(lost[p]), 9), -p)), lost


def curve_report(rows: Sequence[WorkloadRows], model: CurveModel) -> dict[str, Any]:
    """``reports/train/curve.json``: the board's part, how well shapes fit, and the leave-one-out loss of every penalty."""
    _, lost = choose_penalty(rows, model.features, model.board)
    mine = lost.get(model.penalty, [])
    error = standard_error(mine)
    return {
        "loo_regret_pct": round(mean(mine), 6) if mine else None,
        "loo_standard_error_pct": None if error is None else round(error, 6),
        "n_training": len(rows),
        "penalty": model.penalty,
        "knee": round(model.board.knee, 6),
        "floor": round(model.board.floor, 6),
        "mean_misfit_pct": round(mean([shape.misfit_pct for shape in model.shapes]), 6),
        "max_misfit_pct": round(max(shape.misfit_pct for shape in model.shapes), 6),
        "candidates": [
            {
                "penalty": penalty,
                "loo_regret_pct": round(mean(losses), 6),
                "chosen": int(penalty == model.penalty),
            }
            for penalty, losses in lost.items()
        ],
    }
