"""Choosing the regret tree's size by leave-one-out, and a look at what it does on kinds of work it never saw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from wattune.core.features import Features
from wattune.core.governor import Governor
from wattune.core.settings import Setting
from wattune.core.stats import mean, percentile, standard_error
from wattune.learning.folds import folds
from wattune.learning.labeltree import Encoder, Question, question_counts
from wattune.learning.refine import by_saving
from wattune.learning.regrettree import MAX_LEAVES, RegretNode, RegretTree
from wattune.learning.table import WorkloadRows, shared_settings


@dataclass(frozen=True, slots=True)
class RegretCandidate:
    """What of the regret tree is searched."""

    min_samples_leaf: int
    prune_pct: float


@dataclass(frozen=True, slots=True)
class RegretSpace:
    """The regret tree's fixed parameters and its candidates.

    Attributes:
        features: features the tree may ask for.
        max_leaves: most leaves.
        min_samples_leaf: leaf sizes tried.
        prune_pct: prices of a leaf tried, mean percent of loss.
        tolerance_pct: near-ties within it go to the faster clock.
        leaf: ``mean`` or ``worst``.
        level: level of the leaves' conformal intervals.
        abstain_beyond: factor outside the training range beyond which the governor declines; None: it never does.
        apart: a feature whose equals are left out together; empty: every workload by itself.
        tolerated_loss_pct: loss against MAXN that is no reason to decline.
        levels: levels tried inside the training folds instead of `level`; empty: that one.
        beyonds: factors tried there instead of `abstain_beyond`; empty: that one.
        tell_apart: leaves whose clock may lose are told apart by what it saves (:func:`by_saving`), with at least this many
            workloads on either side, and a small leaf is not believed to spread less than its own workloads; 0: neither.
    """

    features: tuple[str, ...]
    max_leaves: int = MAX_LEAVES
    min_samples_leaf: tuple[int, ...] = (1, 2, 3)
    prune_pct: tuple[float, ...] = (0.0, 0.02, 0.05, 0.1)
    tolerance_pct: float = 0.5
    leaf: str = "mean"
    level: float = 0.9
    abstain_beyond: float | None = 1.5
    apart: str = ""
    tolerated_loss_pct: float = 0.0
    levels: tuple[float, ...] = ()
    beyonds: tuple[float, ...] = ()
    tell_apart: int = 0

    @property
    def cautions(self) -> tuple[tuple[float, float | None], ...]:
        """Levels and factors to choose from, the most careful pair first; one pair where nothing is tried."""
        if self.abstain_beyond is None:
            return ((self.level, None),)
        levels = sorted(self.levels or (self.level,), reverse=True)
        return tuple(product(levels, sorted(self.beyonds or (self.abstain_beyond,))))

    def with_caution(self, level: float, beyond: float | None) -> RegretSpace:
        """The same with one level and one factor."""
        return replace(self, level=level, abstain_beyond=beyond, levels=(), beyonds=())

    @property
    def candidates(self) -> tuple[RegretCandidate, ...]:
        """All combinations, in a fixed order."""
        return tuple(
            RegretCandidate(size, price) for size, price in product(self.min_samples_leaf, self.prune_pct)
        )


class RegretModel:
    """A regret tree fitted on workloads.

    A setting that a workload was not measured at counts as its nearest measured clock. Among near-ties MAXN comes last: it
    is no clock, and a leaf holds it only where it is clearly best (elsewhere declining keeps it). Missing features are filled as
    :class:`Encoder` says, and the governor's answer names them.

    Args:
        rows: training workloads.
        space: fixed parameters.
        candidate: the searched ones.
    """

    def __init__(self, rows: Sequence[WorkloadRows], space: RegretSpace, candidate: RegretCandidate) -> None:
        self.rows, self.space, self.encoder = rows, space, Encoder(rows, space.features)
        settings = sorted(shared_settings(rows), key=lambda s: -1.0 if isinstance(s, str) else s)
        energy = [[row.measured.energy_j(row.nearest(s)) for s in settings] for row in rows]
        self.tree = RegretTree(
            max_leaves=space.max_leaves,
            min_samples_leaf=candidate.min_samples_leaf,
            prune_pct=candidate.prune_pct,
            tolerance_pct=space.tolerance_pct,
            leaf=space.leaf,
        ).fit(self._matrix([row.features for row in rows]), energy, settings)

    def _matrix(self, many: Sequence[Features]) -> Any:
        return self.encoder.matrix(many, np.float64)

    def pruned(self, prune_pct: float) -> RegretModel:
        """The same grown tree, pruned otherwise."""
        other = object.__new__(RegretModel)
        other.rows, other.space, other.encoder = self.rows, self.space, self.encoder
        other.tree = self.tree.pruned(prune_pct)
        return other

    def predict(self, features: Features) -> Setting:
        """The setting for a workload."""
        setting: Setting = self.tree.predict(self._matrix([features]))[0]
        return setting

    def answers(self) -> Question | Setting:
        """The tree's questions as far as an answer depends on them: sibling leaves with the same setting are merged."""

        def below(node: RegretNode) -> Question | Setting:
            if node.column is None or node.yes is None or node.no is None:
                setting: Setting = self.tree.settings_[node.choice]
                return setting
            feature, category = self.encoder.columns[node.column]
            small, large = below(node.yes), below(node.no)
            if not isinstance(small, Question) and small == large:
                return small
            if category is not None:  # the column is 1 for the category: "x <= 0.5" is the other answer
                return Question(feature, None, category, large, small)
            return Question(feature, node.threshold, None, small, large)

        return below(self.tree.root_)

    def questions(self) -> Question | Setting:
        """The questions that ship: beside those that answers depend on, those that tell a leaf's workloads apart."""
        answers, space = self.answers(), self.space
        if not space.tell_apart:
            return answers
        return by_saving(
            answers, self.rows, self.encoder, max_leaves=space.max_leaves, least=space.tell_apart
        )


@dataclass(frozen=True, slots=True)
class RegretResult:
    """One candidate's score.

    Attributes:
        candidate: the parameters.
        predicted: the setting picked for each left-out row, in the rows' order; empty for a single row.
        loo_regret_pct: mean energy lost on the left-out rows' measured curves; None for a single row.
        standard_error_pct: its standard error over rows; None below two rows.
        leaves: leaves of the tree fitted on all rows.
        depth: its depth.
    """

    candidate: RegretCandidate
    predicted: tuple[Setting, ...]
    loo_regret_pct: float | None
    standard_error_pct: float | None
    leaves: int
    depth: int


@dataclass(frozen=True, slots=True)
class RegretSearch:
    """All candidates, and the place of the chosen one."""

    results: tuple[RegretResult, ...]
    chosen: int

    @property
    def best(self) -> RegretResult:
        """The chosen candidate."""
        return self.results[self.chosen]


def search_regret(rows: Sequence[WorkloadRows], space: RegretSpace) -> RegretSearch:
    """Score every candidate by leave-one-out and choose one.

    Of the candidates whose mean loss lies within one standard error of the least, the one with fewest leaves is taken,
    then the one of least loss, then larger leaves, then the higher price.

    Args:
        rows: the training workloads, at least one.
        space: the candidates.
    """
    found: dict[RegretCandidate, dict[str, Setting]] = {candidate: {} for candidate in space.candidates}

    def models(some: Sequence[WorkloadRows]) -> dict[RegretCandidate, RegretModel]:
        grown = {
            size: RegretModel(some, space, RegretCandidate(size, 0.0)) for size in space.min_samples_leaf
        }
        return {c: grown[c.min_samples_leaf].pruned(c.prune_pct) for c in space.candidates}

    for out, others in folds(rows, space.apart):
        for candidate, model in models(others).items():
            found[candidate] |= {row.id: model.predict(row.features) for row in out}
    picks = {candidate: [one[row.id] for row in rows if one] for candidate, one in found.items()}
    results = []
    for candidate, model in models(rows).items():
        leaves, depth = question_counts(model.answers())
        lost = [
            row.measured.regret_pct(row.nearest(s)) for row, s in zip(rows, picks[candidate], strict=False)
        ]
        results.append(
            RegretResult(
                candidate=candidate,
                predicted=tuple(picks[candidate]),
                loo_regret_pct=mean(lost) if lost else None,
                standard_error_pct=standard_error(lost),
                leaves=leaves,
                depth=depth,
            )
        )
    least = min(results, key=lambda r: r.loo_regret_pct or 0.0)
    bar = (least.loo_regret_pct or 0.0) + (least.standard_error_pct or 0.0)

    def order(index: int) -> tuple[float, ...]:
        r = results[index]
        return (
            float((r.loo_regret_pct or 0.0) > bar),
            r.leaves,
            r.loo_regret_pct or 0.0,
            -r.candidate.min_samples_leaf,
            -r.candidate.prune_pct,
        )

    return RegretSearch(tuple(results), min(range(len(results)), key=order))


GROUPS: Mapping[str, Callable[[WorkloadRows], object]] = {
    "family": lambda row: row.features.get("family"),
    "task": lambda row: row.task,
    "size": lambda row: row.size,
}
"""Kinds of workloads that are left out as a whole."""


def groups_out(
    rows: Sequence[WorkloadRows], kind: str, learn: Callable[[Sequence[WorkloadRows]], Governor]
) -> dict[str, Any] | None:
    """Every group of workloads judged by a governor that learned from the other groups alone.

    Args:
        rows: the training workloads.
        kind: a key of :data:`GROUPS`.
        learn: from rows to a governor.

    Returns:
        Over all rows the loss of the tree's picks, then, with the governor free to decline, the loss, the worst saving and
        how often it declined; None where fewer than two groups are known.
    """
    names = [GROUPS[kind](row) for row in rows]
    known = sorted({str(name) for name in names if name is not None})
    if len(known) < 2 or None in names:
        return None
    picked, decided, savings, declined = [], [], [], 0
    for name in known:
        governor = learn([row for row, own in zip(rows, names, strict=True) if own != name])
        for row in (row for row, own in zip(rows, names, strict=True) if own == name):
            leaf = governor.tree.walk(governor.complete(row.features)[0])[0]
            decision = governor.decide(row.features)
            declined += decision.abstained
            picked.append(row.measured.regret_pct(row.nearest(leaf.setting)))
            decided.append(row.measured.regret_pct(row.nearest(decision.setting)))
            savings.append(row.measured.saving_pct(row.nearest(decision.setting)))
    told = [s for s in savings if s is not None]
    return {
        "groups": known,
        "mean_regret_pct": round(mean(picked), 6),
        "p95_regret_pct": round(percentile(picked, 95.0), 6),
        "max_regret_pct": round(max(picked), 6),
        "n": len(rows),
        "declined": declined,
        "declining": {
            "mean_regret_pct": round(mean(decided), 6),
            "worst_saving_pct": round(min(told), 6) + 0.0 if len(told) == len(rows) else None,
        },
    }
