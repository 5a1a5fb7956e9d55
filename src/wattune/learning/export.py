"""From a fitted label tree to the governor that ships: plain data, the same bytes for the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattune.core.features import FeatureValue
from wattune.core.governor import Governor, canonical_json, governor_document, parse_governor
from wattune.core.settings import Setting
from wattune.core.stats import mean
from wattune.core.tree import Leaf, Node, Split, Tree
from wattune.learning.labeltree import LabelTree, Question
from wattune.learning.loocv import SearchResult, SearchSpace, search
from wattune.learning.table import FeatureTable, WorkloadRows, baseline_of, rows_digest, shared_settings

DECIMALS = 5
POLICY = "mlg"


def _round(value: float) -> float:
    return round(value, DECIMALS) + 0.0  # no negative zero


def _leaf(
    mhz: float, rows: Sequence[WorkloadRows], settings: tuple[Setting, ...], baseline: str | None
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

    def rel_time(setting: Setting) -> float | None:
        values = []
        for row in rows:
            if setting in row.measured.points:
                here = row.measured.points[setting].time_s
                base = row.measured.points[reference(row)].time_s
                if here is None or base is None:
                    return None
                values.append(here / base)
        return _round(mean(values)) if values else None

    savings = [s for s in (row.measured.saving_pct(row.nearest(mhz)) for row in rows) if s is not None]
    known = baseline is not None
    return Leaf(
        setting=mhz,
        n=len(rows),
        expected_saving_pct=_round(mean(savings)) if known else None,
        saving_range_pct=(_round(min(savings)), _round(max(savings))) if known else None,
        rel_energy=tuple(rel_energy(s) for s in settings),
        rel_time=tuple(rel_time(s) for s in settings),
    )


def to_tree(
    fitted: LabelTree, rows: Sequence[WorkloadRows], settings: tuple[Setting, ...], baseline: str | None
) -> Tree:
    """The tree as data, each leaf with the evidence of the training rows that reach it.

    Args:
        fitted: the fitted tree.
        rows: the rows it was fitted on.
        settings: the settings of the governor.
        baseline: ``maxn``, or None where it was not measured on all rows.
    """
    nodes: list[Node] = []

    def add(question: Question | float, here: list[tuple[WorkloadRows, dict[str, FeatureValue]]]) -> int:
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
class Training:
    """A trained governor, its document and the search behind it."""

    governor: Governor
    document: dict[str, Any]
    search: SearchResult


def train_governor(
    table: FeatureTable,
    rows: Sequence[WorkloadRows],
    space: SearchSpace,
    *,
    objective: str = "energy",
    reference_mhz: float | None = None,
) -> Training:
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
    fitted = LabelTree(rows, space.features, best.candidate, space.seed)
    settings, baseline = shared_settings(rows), baseline_of(rows)
    document = governor_document(
        board=table.board,
        power_mode=table.power_mode,
        provenance=table.provenance,
        objective=objective,
        policy=POLICY,
        rails=table.rails,
        baseline=baseline,
        settings=settings,
        features=fitted.encoder.ranges,
        tree=to_tree(fitted, rows, settings, baseline),
        training={
            "fingerprint": rows_digest(rows, judged=False),
            "n_workloads": len(rows),
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
