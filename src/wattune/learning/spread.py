"""How far a leaf's promise may be off: conformal intervals from trees that had not seen the row."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from wattune.core.features import Features
from wattune.core.tree import Leaf, Node, Tree
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


@dataclass(frozen=True)
class Spread:
    """A tree, and how far off the trees of the others were on its training rows.

    Attributes:
        tree: the tree.
        known: every training row against the tree of the others.
        home: the place in the tree of every row's leaf.
        widened: a leaf that borrows the interval of all rows is not believed to spread less than its own rows do.
    """

    tree: Tree
    known: tuple[LeftOut, ...]
    home: tuple[int, ...]
    widened: bool = False

    def at(self, level: float) -> Tree:
        """The tree with intervals on its leaves, which promise to hold this share of new workloads, e.g. 0.9.

        A leaf's interval comes from its own rows where they suffice for the level (19 for 90 %), else from all rows
        together, where need be at the level they reach; below three rows it stays unknown.
        """
        reached = reached_level(len(self.known), level)
        if reached is None:
            return self.tree
        nodes: list[Node] = []
        for place, node in enumerate(self.tree.nodes):
            own = [one for one, home in zip(self.known, self.home, strict=True) if home == place]
            nodes.append(self._bounded(node, own, level, reached) if isinstance(node, Leaf) else node)
        return Tree(nodes)

    def _bounded(self, leaf: Leaf, own: Sequence[LeftOut], level: float, reached: float) -> Leaf:
        """The leaf with its interval and the bound of its regret, from its own rows or from all."""
        its_level = reached_level(len(own), level)
        bases: list[tuple[Sequence[LeftOut], float]] = (
            [(own, level)] if its_level == level else [(self.known, reached)]
        )
        if self.widened and its_level not in (None, level):
            bases.append((own, its_level or reached))
        saving, spread = leaf.expected_saving_pct, None
        residuals = [[r for one in basis if (r := one.residual_pct) is not None] for basis, _ in bases]
        if saving is not None and all(len(r) == len(b) for r, (b, _) in zip(residuals, bases, strict=True)):
            spans = [interval(r, at) for r, (_, at) in zip(residuals, bases, strict=True)]
            low, high = min(span[0] for span in spans), max(span[1] for span in spans)
            spread = (round(saving + low, DECIMALS), round(saving + high, DECIMALS))
        bound = max(upper_quantile([one.regret_pct for one in basis], at) for basis, at in bases)
        return replace(leaf, saving_interval_pct=spread, regret_bound_pct=round(bound, DECIMALS))


def spread_of(
    tree: Tree, rows: Sequence[WorkloadRows], grow: Grow, apart: str = "", *, widened: bool = False
) -> Spread:
    """How far off a tree may be: each of its training rows judged by the tree of the others.

    Args:
        tree: the tree fitted on `rows`.
        rows: its training workloads.
        grow: how it was fitted.
        apart: a feature whose equals are left out together.
        widened: see :class:`Spread`.
    """
    places = {id(node): place for place, node in enumerate(tree.nodes)}
    complete = grow(rows)[1]
    home = tuple(places[id(tree.walk(complete(row.features))[0])] for row in rows)
    return Spread(tree, left_out(rows, grow, apart), home, widened)
