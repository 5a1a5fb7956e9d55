"""How far a leaf's promise may be off: conformal intervals from trees that had not seen the row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattune.core.features import Features
from wattune.core.tree import Leaf, Tree
from wattune.learning.folds import folds
from wattune.learning.table import WorkloadRows

Grow = Callable[[Sequence[WorkloadRows]], tuple[Tree, Callable[[Features], Features]]]
"""From rows to their tree, and what fills a workload's missing features as those rows would."""

DECIMALS = 5
FEWEST = 3


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A training row against the tree of the others.

    Attributes:
        residual_pct: its saving minus what that tree's leaf expected; None without a baseline.
        regret_pct: energy lost by that tree's pick.
    """

    residual_pct: float | None
    regret_pct: float


def left_out(rows: Sequence[WorkloadRows], grow: Grow, apart: str = "") -> tuple[LeftOut, ...]:
    """Every row against the tree of the others (of other kinds, where `apart` names a feature); empty for a single row."""
    found: dict[str, LeftOut] = {}
    for out, others in folds(rows, apart):
        tree, complete = grow(others)
        for row in out:
            leaf, _ = tree.walk(complete(row.features))
            setting = row.nearest(leaf.setting)
            saving, expected = row.measured.saving_pct(setting), leaf.expected_saving_pct
            residual = None if saving is None or expected is None else saving - expected
            found[row.id] = LeftOut(residual, row.measured.regret_pct(setting))
    return tuple(found[row.id] for row in rows if found)


def reached_level(n: int, level: float) -> float | None:
    """The level that `n` left-out rows can back: `level`, or less where they are few; None below three rows.

    The widest interval there is, from the least to the greatest of `n` values, holds a new one in (n - 1) of (n + 1) cases.
    """
    return min(level, (n - 1) / (n + 1)) if n >= FEWEST else None


def upper_quantile(values: Sequence[float], level: float) -> float:
    """The conformal upper bound: the ``ceil((n + 1) level)``-th least value, the greatest where that is beyond it."""
    place = math.ceil((len(values) + 1) * level - 1e-9)
    return sorted(values)[min(max(place, 1), len(values)) - 1]


def interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """The two-sided conformal interval, half of what is left out on either side."""
    each = (1.0 + level) / 2.0
    return -upper_quantile([-v for v in values], each), upper_quantile(values, each)


def with_spread(tree: Tree, rows: Sequence[WorkloadRows], grow: Grow, level: float, apart: str = "") -> Tree:
    """The tree with intervals on its leaves.

    Each training row is judged by the tree of the others. A leaf's interval comes from its own rows where they
    suffice for the level (19 for 90 %), else from all rows together, where need be at the level they reach; below three
    rows it stays unknown.

    Args:
        tree: the tree fitted on `rows`.
        rows: its training workloads.
        grow: how it was fitted.
        level: share of new workloads that the interval promises to hold, e.g. 0.9.
        apart: a feature whose equals are left out together.
    """
    known = left_out(rows, grow, apart)
    reached = reached_level(len(known), level)
    if reached is None:
        return tree
    complete = grow(rows)[1]
    home = [id(tree.walk(complete(row.features))[0]) for row in rows]

    def bounded(leaf: Leaf) -> Leaf:
        own = [one for one, place in zip(known, home, strict=True) if place == id(leaf)]
        basis, its_level = (own, level) if reached_level(len(own), level) == level else (known, reached)
        residuals = [one.residual_pct for one in basis if one.residual_pct is not None]
        saving, spread = leaf.expected_saving_pct, None
        if saving is not None and len(residuals) == len(basis):
            low, high = interval(residuals, its_level)
            spread = (round(saving + low, DECIMALS), round(saving + high, DECIMALS))
        bound = upper_quantile([one.regret_pct for one in basis], its_level)
        return replace(leaf, saving_interval_pct=spread, regret_bound_pct=round(bound, DECIMALS))

    return Tree([bounded(node) if isinstance(node, Leaf) else node for node in tree.nodes])
