"""A decision tree that learns from energy lost: every training row brings its whole measured curve.

Curves are flat near their optimum, so the label "the level of least energy" says little: noise decides it. Here the
loss of a leaf is the energy its one clock wastes on the leaf's rows.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from wattune.core.errors import InputError

LEAF_RULES = ("mean", "worst")
MAX_LEAVES = 8
SAME = 1e-9
"""Losses (percent) nearer than this are the same: rounding must not choose a question."""


@dataclass(frozen=True, slots=True)
class RegretNode:
    """A node of a grown tree; a leaf has no `column`.

    Attributes:
        choice: index of the setting the node picks where it is a leaf.
        cost: energy lost by that pick, percent of a row's optimum, summed over the node's rows.
        n: training rows.
        column: column asked for; yes is ``x <= threshold``.
        threshold: its bound.
        yes: the node for yes.
        no: the node for no.
    """

    choice: int
    cost: float
    n: int
    column: int | None = None
    threshold: float = 0.0
    yes: RegretNode | None = None
    no: RegretNode | None = None

    @property
    def children(self) -> tuple[RegretNode, ...]:
        """Both children, or none."""
        return () if self.yes is None or self.no is None else (self.yes, self.no)

    def leaves(self) -> Iterator[RegretNode]:
        """The leaves, yes before no."""
        if not self.children:
            yield self
        for child in self.children:
            yield from child.leaves()

    def find(self, row: Any) -> RegretNode:
        """The leaf of one row of numbers."""
        if self.column is None or self.yes is None or self.no is None:
            return self
        return (self.yes if row[self.column] <= self.threshold else self.no).find(row)


def between(low: float, high: float) -> float:
    """The shortest decimal in the middle half of the gap from `low` to `high`; it separates the two."""
    middle, reach = low + (high - low) / 2.0, (high - low) / 4.0
    for digits in range(1, 18):
        short = float(f"{middle:.{digits}g}")
        if abs(short - middle) <= reach and low <= short < high:
            return short
    return low


def lost_pct(energy: Any) -> Any:
    """Energies as percent above each row's least, shape unchanged."""
    energy = np.asarray(energy, dtype=np.float64)
    return 100.0 * (energy / energy.min(axis=1, keepdims=True) - 1.0)


def prune(node: RegretNode, price: float) -> RegretNode:
    """The subtree of least cost plus `price` per leaf; ties go to the smaller one.

    Costs add up over leaves, so the best pruning of a tree is made of the best prunings of its children.
    """
    if not node.children:
        return node
    yes, no = (prune(child, price) for child in node.children)
    leaves = [*yes.leaves(), *no.leaves()]
    if sum(leaf.cost for leaf in leaves) + price * (len(leaves) - 1) >= node.cost - SAME:
        return replace(node, column=None, yes=None, no=None)
    return replace(node, yes=yes, no=no)


class RegretTree(BaseEstimator):
    """A binary tree of at most eight leaves, grown and pruned on energy loss.

    A leaf picks the setting of least loss; settings within `tolerance_pct` of it count as ties and the fastest of them
    is taken. Growing is greedy: of all leaves the one whose best question saves most is split first, until
    `max_leaves` or until no question saves anything. The loss of a leaf is that of the setting it would pick, so that
    the training loss never exceeds a single leaf's. Pruning then removes every branch that saves less than
    `prune_pct` (mean percent over all rows) per leaf it adds.

    The answer does not depend on the order of rows, on the unit of energy, or on the scale of a feature. Rows with
    equal features and contradictory curves stay together and are averaged.

    Args:
        max_leaves: most leaves, 1 to 8.
        min_samples_leaf: fewest training rows in a leaf.
        prune_pct: mean loss, percent, that each leaf must pay for.
        tolerance_pct: loss, percent, up to which a faster setting is taken instead of the best one.
        leaf: what a leaf minimises: the ``mean`` or the ``worst`` loss of its rows.

    Attributes:
        root_: the tree.
        settings_: what `predict` returns, one per column of energies.
    """

    def __init__(
        self,
        *,
        max_leaves: int = MAX_LEAVES,
        min_samples_leaf: int = 1,
        prune_pct: float = 0.0,
        tolerance_pct: float = 0.5,
        leaf: str = "mean",
    ) -> None:
        self.max_leaves = max_leaves
        self.min_samples_leaf = min_samples_leaf
        self.prune_pct = prune_pct
        self.tolerance_pct = tolerance_pct
        self.leaf = leaf

    def fit(self, X: Any, y: Any, settings: Any = None) -> RegretTree:  # noqa: N803  # scikit-learn's names
        """Grow and prune.

        Args:
            X: features, shape ``(n, columns)``; no column is needed.
            y: energies, shape ``(n, settings)``, one row per workload, slowest setting first.
            settings: names of the settings; default: their column numbers.

        Raises:
            InputError: a hyper-parameter out of bounds, no rows, shapes that do not fit, a feature that is not finite,
                or an energy that is not a positive number.
        """
        self._check_parameters()
        x, energy = np.asarray(X, dtype=np.float64), np.asarray(y, dtype=np.float64)
        if x.ndim != 2 or energy.ndim != 2 or len(x) != len(energy) or not energy.size:
            raise InputError(
                f"Features of shape {x.shape} and energies of shape {energy.shape} do not fit.",
                "One row per workload in both, and at least one setting, were expected.",
            )
        if not np.isfinite(x).all():
            raise InputError("A feature is not a finite number.", "Missing values must be filled first.")
        if not (np.isfinite(energy) & (energy > 0)).all():
            raise InputError("An energy is not a positive number.", "Joules were expected.")
        self.settings_ = tuple(range(energy.shape[1]) if settings is None else settings)
        if len(self.settings_) != energy.shape[1]:
            raise InputError(
                f"{len(self.settings_)} settings do not name {energy.shape[1]} columns of energy."
            )
        loss = lost_pct(energy)
        order = np.lexsort(np.hstack([x, loss]).T)  # sums then do not depend on the order of rows
        self.grown_ = self._grow(x[order], loss[order])
        self.root_ = prune(self.grown_, self.prune_pct * len(x))
        self.n_features_in_ = x.shape[1]
        return self

    def pruned(self, prune_pct: float) -> RegretTree:
        """The same grown tree, pruned otherwise; equal to fitting again with that `prune_pct`."""
        other = RegretTree(**{**self.get_params(), "prune_pct": prune_pct})
        other.settings_, other.grown_, other.n_features_in_ = self.settings_, self.grown_, self.n_features_in_
        other.root_ = prune(self.grown_, prune_pct * self.grown_.n)
        return other

    def predict(self, X: Any) -> Any:  # noqa: N803  # scikit-learn's name
        """The setting for every row, as a list where settings are of mixed types."""
        return [self.settings_[self.root_.find(row).choice] for row in np.asarray(X, dtype=np.float64)]

    def score(self, X: Any, y: Any) -> float:  # noqa: N803  # scikit-learn's names
        """Minus the mean energy lost, percent: greater is better."""
        loss, rows = lost_pct(y), np.asarray(X, dtype=np.float64)
        return -float(np.mean([loss[i, self.root_.find(row).choice] for i, row in enumerate(rows)]))

    def _check_parameters(self) -> None:
        if not 1 <= self.max_leaves <= MAX_LEAVES:
            raise InputError(f"max_leaves is {self.max_leaves}.", f"1 to {MAX_LEAVES} was expected.")
        if self.min_samples_leaf < 1 or self.prune_pct < 0 or self.tolerance_pct < 0:
            raise InputError(
                f"min_samples_leaf is {self.min_samples_leaf}, prune_pct {self.prune_pct}, "
                f"tolerance_pct {self.tolerance_pct}.",
                "At least 1, 0 and 0 were expected.",
            )
        if self.leaf not in LEAF_RULES:
            raise InputError(f"leaf is '{self.leaf}'.", f"One of {', '.join(LEAF_RULES)} was expected.")

    def _pick(self, totals: Any, counts: Any) -> tuple[Any, Any]:
        """Settings picked and their costs.

        Args:
            totals: per group and setting the rows' sum of losses, or their greatest loss; shape ``(groups, settings)``.
            counts: rows per group.
        """
        each = totals / counts[:, None] if self.leaf == "mean" else totals
        near = each <= each.min(axis=1, keepdims=True) + self.tolerance_pct + SAME
        fastest_first = near[:, ::-1]  # settings ascend
        choice = each.shape[1] - 1 - np.argmax(fastest_first, axis=1)
        return choice, each[np.arange(len(each)), choice] * counts

    def _single(self, loss: Any) -> RegretNode:
        total = loss.sum(axis=0) if self.leaf == "mean" else loss.max(axis=0)
        choice, cost = self._pick(total[None, :], np.array([len(loss)]))
        return RegretNode(int(choice[0]), float(cost[0]), len(loss))

    def _best_question(self, x: Any, loss: Any) -> tuple[float, int, float] | None:
        """Cost, column and threshold of the best question; ties go to the first column, then the lower threshold."""
        gather = np.add.accumulate if self.leaf == "mean" else np.maximum.accumulate
        n, least, best = len(x), self.min_samples_leaf, None
        counts = np.arange(1, n)
        for column in range(x.shape[1]):
            order = np.argsort(x[:, column], kind="stable")
            values, sorted_loss = x[order, column], loss[order]
            allowed = (values[1:] > values[:-1]) & (counts >= least) & (n - counts >= least)
            places = np.flatnonzero(allowed)
            if not len(places):
                continue
            yes = self._pick(gather(sorted_loss)[places], counts[places])[1]
            no = self._pick(gather(sorted_loss[::-1])[::-1][places + 1], n - counts[places])[1]
            cost = yes + no
            place = int(np.flatnonzero(cost <= cost.min() + SAME)[0])
            if best is None or cost[place] < best[0] - SAME:
                split = places[place]
                best = (float(cost[place]), column, between(float(values[split]), float(values[split + 1])))
        return best

    def _grow(self, x: Any, loss: Any) -> RegretNode:
        """Split the leaf that gains most, again and again."""
        nodes: dict[int, RegretNode] = {0: self._single(loss)}
        rows = {0: np.arange(len(x))}
        children: dict[int, tuple[int, int, int, float]] = {}
        waiting: list[tuple[float, int, int, float]] = []

        def consider(place: int) -> None:
            mine = rows[place]
            found = self._best_question(x[mine], loss[mine])
            if found is not None and found[0] < nodes[place].cost - SAME:
                heapq.heappush(waiting, (found[0] - nodes[place].cost, place, found[1], found[2]))

        consider(0)
        while waiting and len(children) + 1 < self.max_leaves:
            _, place, column, threshold = heapq.heappop(waiting)
            asked = x[rows[place], column] <= threshold
            yes, no = len(nodes), len(nodes) + 1
            for child, part in ((yes, asked), (no, ~asked)):
                rows[child] = rows[place][part]
                nodes[child] = self._single(loss[rows[child]])
            children[place] = (yes, no, column, threshold)
            consider(yes)
            consider(no)

        def build(place: int) -> RegretNode:
            if place not in children:
                return nodes[place]
            yes, no, column, threshold = children[place]
            return replace(nodes[place], column=column, threshold=threshold, yes=build(yes), no=build(no))

        return build(0)
