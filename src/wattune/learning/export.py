"""From a fitted tree to the governor that ships: plain data, the same bytes for the same rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar

from wattune.core.features import Features, FeatureValue
from wattune.core.governor import Governor, canonical_json, governor_document, parse_governor
from wattune.core.settings import Setting
from wattune.core.stats import mean
from wattune.core.tree import Leaf, Node, Split, Tree
from wattune.learning.folds import folds
from wattune.learning.labeltree import Encoder, LabelTree, Question
from wattune.learning.loocv import SearchResult, SearchSpace, search
from wattune.learning.regretsearch import RegretModel, RegretSearch, RegretSpace, search_regret
from wattune.learning.spread import Spread, reached_level, spread_of
from wattune.learning.table import FeatureTable, WorkloadRows, baseline_of, rows_digest, shared_settings

DECIMALS = 5
POLICY = "mlg"
REGRET_POLICY = "mlg-regret"

Found = TypeVar("Found", SearchResult, RegretSearch)


def _round(value: float) -> float:
    return round(value, DECIMALS) + 0.0  # no negative zero


def _round_up(value: float) -> float:
    """To three decimals and never down: a limit that the file keeps is kept by the work it stands for."""
    return math.ceil(round(1000.0 * value, 6)) / 1000.0


def _leaf(
    picked: Setting, rows: Sequence[WorkloadRows], settings: tuple[Setting, ...], baseline: str | None
) -> Leaf:
    def reference(row: WorkloadRows) -> Setting:
        return row.measured.oracle if baseline is None else "maxn"

    def rel_energy(setting: Setting) -> float | None:
        values = [
            row.measured.energy_j(setting) / row.measured.energy_j(reference(row))
            for row in rows
            if setting in row.measured.points
        ]
        return _round(mean(values)) if values else None

    def times(setting: Setting) -> list[float]:
        values = []
        for row in rows:
            if setting in row.measured.points:
                here = row.measured.points[setting].time_s
                base = row.measured.points[reference(row)].time_s
                if here is None or base is None:
                    return []
                values.append(here / base)
        return values

    savings = [s for s in (row.measured.saving_pct(row.nearest(picked)) for row in rows) if s is not None]
    known = baseline is not None
    relative = [times(setting) for setting in settings]
    return Leaf(
        setting=picked,
        n=len(rows),
        expected_saving_pct=_round(mean(savings)) if known else None,
        saving_range_pct=(_round(min(savings)), _round(max(savings))) if known else None,
        rel_energy=tuple(rel_energy(s) for s in settings),
        rel_time=tuple(_round(mean(found)) if found else None for found in relative),
        rel_time_max=tuple(_round_up(max(found)) if found else None for found in relative),
    )


class Fitted(Protocol):
    """A fitted tree of any kind."""

    encoder: Encoder

    def questions(self) -> Question | Setting:
        """The tree's questions."""


def to_tree(
    fitted: Fitted, rows: Sequence[WorkloadRows], settings: tuple[Setting, ...], baseline: str | None
) -> Tree:
    """The tree as data, each leaf with the evidence of the training rows that reach it.

    Args:
        fitted: the fitted tree.
        rows: the rows it was fitted on.
        settings: the settings of the governor.
        baseline: ``maxn``, or None where it was not measured on all rows.
    """
    nodes: list[Node] = []

    def add(question: Question | Setting, here: list[tuple[WorkloadRows, dict[str, FeatureValue]]]) -> int:
        index = len(nodes)
        if not isinstance(question, Question):
            nodes.append(_leaf(question, [row for row, _ in here], settings, baseline))
            return index
        split = Split(question.feature, question.threshold, question.category, 0, 0)
        nodes.append(split)  # takes its place; the children's places are known below
        left = add(question.yes, [pair for pair in here if split.goes_left(pair[1])])
        right = add(question.no, [pair for pair in here if not split.goes_left(pair[1])])
        nodes[index] = Split(split.feature, split.threshold, split.category, left, right)
        return index

    add(fitted.questions(), [(row, fitted.encoder.complete(row.features)) for row in rows])
    return Tree(nodes)


@dataclass(frozen=True)
class Training(Generic[Found]):
    """A trained governor, its document and the search behind it."""

    governor: Governor
    document: dict[str, Any]
    search: Found


def train_governor(
    table: FeatureTable,
    rows: Sequence[WorkloadRows],
    space: SearchSpace,
    *,
    objective: str = "energy",
    reference_mhz: float | None = None,
) -> Training[SearchResult]:
    """Choose hyper-parameters on `rows`, fit on them, and write the governor's document.

    Args:
        table: where board, provenance, power mode and rails are named; its other rows are not looked at.
        rows: the training workloads.
        space: the candidates.
        objective: what is minimised.
        reference_mhz: clock at which `gpu_util_ref_pct` was read.
    """
    found = search(rows, space)
    best = found.best

    def fit(some: Sequence[WorkloadRows]) -> LabelTree:
        return LabelTree(some, space.features, best.candidate, space.seed)

    document = _Fit(table, rows, fit, space.apart).document(
        policy=POLICY,
        objective=objective,
        level=space.level,
        abstain_beyond=space.abstain_beyond,
        training={
            "hyper_parameters": {
                "max_depth": best.candidate.max_depth,
                "min_samples_leaf": best.candidate.min_samples_leaf,
                "criterion": best.candidate.criterion,
            },
            "loo_accuracy": None if best.loo_accuracy is None else _round(best.loo_accuracy),
            "loo_regret_pct": None if best.loo_regret_pct is None else _round(best.loo_regret_pct),
            "reference_mhz": reference_mhz,
            "seed": space.seed,
        },
    )
    return Training(parse_governor(canonical_json(document)), document, found)


def train_regret_governor(
    table: FeatureTable,
    rows: Sequence[WorkloadRows],
    space: RegretSpace,
    *,
    objective: str = "energy",
    reference_mhz: float | None = None,
) -> Training[RegretSearch]:
    """As :func:`train_governor`, for the tree that learns from energy loss; its leaves carry their spread.

    With a single training workload no spread is known: the governor then declines every workload, if it may.
    """
    regret = _Regret(table, rows, space, objective=objective, reference_mhz=reference_mhz)
    level, beyond = choose_caution(table, rows, space)
    document = regret.document(level, beyond)
    return Training(parse_governor(canonical_json(document)), document, regret.found)


def choose_caution(
    table: FeatureTable, rows: Sequence[WorkloadRows], space: RegretSpace
) -> tuple[float, float | None]:
    """The level and the factor at which to decline, by what governors of some training workloads lose on the others.

    Workloads (whole kinds of them, where ``space.apart`` says so) are left out in turn. The pair is taken by which fewest of
    them lose more against MAXN than is tolerated, then the one that wastes least energy, then the more careful one. Only the
    training workloads' own measurements count.
    """
    cautions = space.cautions
    if len(cautions) == 1:
        return cautions[0]
    losses = dict.fromkeys(cautions, 0)
    wasted_pct = dict.fromkeys(cautions, 0.0)
    for out, others in folds(rows, space.apart):
        regret = _Regret(table, others, space)
        for caution in cautions:
            governor = parse_governor(canonical_json(regret.document(*caution)))
            for row in out:
                setting = row.nearest(governor.decide(row.features).setting)
                saving = row.measured.saving_pct(setting)
                losses[caution] += saving is not None and saving < -space.tolerated_loss_pct
                wasted_pct[caution] += row.measured.regret_pct(setting)
    return min(cautions, key=lambda caution: (losses[caution], _round(wasted_pct[caution])))


class _Regret:
    """The regret tree fitted on some workloads, as documents that decline more or less easily."""

    def __init__(
        self,
        table: FeatureTable,
        rows: Sequence[WorkloadRows],
        space: RegretSpace,
        *,
        objective: str = "energy",
        reference_mhz: float | None = None,
    ) -> None:
        self.found = search_regret(rows, space)
        self.space, self.objective, self.reference_mhz = space, objective, reference_mhz
        self.fit = _Fit(table, rows, self._model, space.apart, widened=space.tell_apart > 0)

    def _model(self, some: Sequence[WorkloadRows]) -> RegretModel:
        return RegretModel(some, self.space, self.found.best.candidate)

    def document(self, level: float, beyond: float | None) -> dict[str, Any]:
        """The governor's document."""
        best, space = self.found.best, self.space
        return self.fit.document(
            policy=REGRET_POLICY,
            objective=self.objective,
            level=level,
            abstain_beyond=beyond,
            tolerated_loss_pct=space.tolerated_loss_pct,
            training={
                "hyper_parameters": {
                    "max_leaves": space.max_leaves,
                    "min_samples_leaf": best.candidate.min_samples_leaf,
                    "prune_pct": best.candidate.prune_pct,
                    "tolerance_pct": space.tolerance_pct,
                    "leaf": space.leaf,
                },
                "loo_regret_pct": None if best.loo_regret_pct is None else _round(best.loo_regret_pct),
                "reference_mhz": self.reference_mhz,
            },
        )


class _Fit:
    """A tree fitted on some workloads, and how far off its leaves may be; written as a governor's document."""

    def __init__(
        self,
        table: FeatureTable,
        rows: Sequence[WorkloadRows],
        fit: Callable[[Sequence[WorkloadRows]], Fitted],
        apart: str,
        *,
        widened: bool = False,
    ) -> None:
        self.table, self.rows, self.fit, self.apart, self.widened = table, rows, fit, apart, widened
        self.fitted = fit(rows)
        self.settings, self.baseline = shared_settings(rows), baseline_of(rows)
        self.tree = to_tree(self.fitted, rows, self.settings, self.baseline)

    @cached_property
    def spread(self) -> Spread:
        """Every row against the tree of the others."""

        def grow(some: Sequence[WorkloadRows]) -> tuple[Tree, Callable[[Features], Features]]:
            one = self.fit(some)
            return to_tree(one, some, shared_settings(some), baseline_of(some)), one.encoder.complete

        return spread_of(self.tree, self.rows, grow, self.apart, widened=self.widened)

    def document(
        self,
        *,
        policy: str,
        objective: str,
        level: float | None,
        abstain_beyond: float | None,
        training: dict[str, Any],
        tolerated_loss_pct: float = 0.0,
    ) -> dict[str, Any]:
        """The governor's document; with a `level` its leaves carry their spread."""
        table, rows = self.table, self.rows
        return governor_document(
            board=table.board,
            power_mode=table.power_mode,
            provenance=table.provenance,
            objective=objective,
            policy=policy,
            rails=table.rails,
            baseline=self.baseline,
            settings=self.settings,
            features=self.fitted.encoder.ranges,
            tree=self.tree if level is None else self.spread.at(level),
            training={
                "fingerprint": rows_digest(rows, judged=False),
                "n_workloads": len(rows),
                **training,
                **({} if level is None else {"conformal_level": reached_level(len(rows), level)}),
            },
            abstain_beyond=abstain_beyond,
            tolerated_loss_pct=tolerated_loss_pct,
        )
