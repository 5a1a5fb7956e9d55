"""Stage `train`: choose the trees by leave-one-out and write their governors: `mlg`, which ships, and `mlg-regret`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattune.config import Config, TrainConf, load_params
from wattune.core.governor import Governor
from wattune.core.settings import setting_label
from wattune.io import write_json, write_text
from wattune.learning.export import Training, train_governor, train_regret_governor
from wattune.learning.judge import fixed_clock
from wattune.learning.loocv import SearchResult, SearchSpace, row_regret_pct
from wattune.learning.regretsearch import GROUPS, RegretSearch, RegretSpace, groups_out
from wattune.learning.table import FeatureTable, WorkloadRows, load_features
from wattune.stages._main import run
from wattune.stages._tables import csv_text

FEATURES = Path("data/features/features.csv")
GOVERNOR = Path("models/governor.json")
REGRET_GOVERNOR = Path("models/governor-regret.json")
REPORTS = Path("reports/train")


def search_space(conf: TrainConf) -> SearchSpace:
    """The configured search."""
    return SearchSpace(
        features=tuple(conf.features),
        max_depth=tuple(conf.max_depth),
        min_samples_leaf=tuple(conf.min_samples_leaf),
        criterion=tuple(conf.criterion),
        seed=conf.seed,
        level=conf.regret.conformal_level if conf.abstain else None,
        abstain_beyond=conf.regret.abstain_beyond if conf.abstain else None,
        apart=conf.apart,
    )


def regret_space(conf: TrainConf) -> RegretSpace:
    """The configured search of the regret tree."""
    regret = conf.regret
    return RegretSpace(
        features=tuple(regret.features),
        max_leaves=regret.max_leaves,
        min_samples_leaf=tuple(regret.min_samples_leaf),
        prune_pct=tuple(regret.prune_pct),
        tolerance_pct=regret.tolerance_pct,
        leaf=regret.leaf,
        level=regret.conformal_level,
        abstain_beyond=regret.abstain_beyond if regret.abstain else None,
        apart=conf.apart,
    )


def regret_report(
    table: FeatureTable, training: Training[RegretSearch], space: RegretSpace
) -> dict[str, Any]:
    """``mlg-regret.json``: every candidate, the chosen one, and whole kinds of workloads left out.

    With kinds left out the chosen size is kept; tree, medians, ranges and spreads are learned from the others alone.
    """
    found, best = training.search, training.search.best
    fixed = replace(
        space,
        min_samples_leaf=(best.candidate.min_samples_leaf,),
        prune_pct=(best.candidate.prune_pct,),
    )

    def learn(rows: Sequence[WorkloadRows]) -> Governor:
        return train_regret_governor(table, rows, fixed).governor

    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    return {
        "loo_regret_pct": rounded(best.loo_regret_pct),
        "loo_standard_error_pct": rounded(best.standard_error_pct),
        "leaves": best.leaves,
        "depth": best.depth,
        "n_training": len(table.training),
        "left_out": {kind: groups_out(table.training, kind, learn) for kind in GROUPS},
        "candidates": [
            {
                "min_samples_leaf": r.candidate.min_samples_leaf,
                "prune_pct": r.candidate.prune_pct,
                "loo_regret_pct": rounded(r.loo_regret_pct),
                "leaves": r.leaves,
                "chosen": int(index == found.chosen),
            }
            for index, r in enumerate(found.results)
        ],
    }


def candidate_rows(training: Training[SearchResult]) -> list[dict[str, Any]]:
    """Rows of ``loocv.csv``: one per candidate."""
    found = training.search
    return [
        {
            "candidate": index,
            "max_depth": result.candidate.max_depth,
            "min_samples_leaf": result.candidate.min_samples_leaf,
            "criterion": result.candidate.criterion,
            "loo_accuracy": None if result.loo_accuracy is None else round(result.loo_accuracy, 6),
            "loo_regret_pct": None if result.loo_regret_pct is None else round(result.loo_regret_pct, 6),
            "leaves": result.leaves,
            "depth": result.depth,
            "chosen": int(index == found.chosen),
        }
        for index, result in enumerate(found.results)
    ]


def prediction_rows(table: FeatureTable, training: Training[SearchResult]) -> list[dict[str, Any]]:
    """Rows of ``loo_predictions.csv``: the chosen candidate on every left-out workload."""
    return [
        {
            "workload": row.id,
            "label_mhz": setting_label(row.label_mhz),
            "predicted_mhz": setting_label(mhz),
            "regret_pct": round(row_regret_pct(row, mhz), 6),
        }
        for row, mhz in zip(table.training, training.search.best.predicted_mhz, strict=False)
    ]


CANDIDATE_COLUMNS = (
    *(
        "candidate",
        "max_depth",
        "min_samples_leaf",
        "criterion",
        "loo_accuracy",
        "loo_regret_pct",
        "leaves",
        "depth",
    ),
    "chosen",
)
PREDICTION_COLUMNS = ("workload", "label_mhz", "predicted_mhz", "regret_pct")


def train(config: Config, root: Path) -> None:
    """Run the stage under a repository root."""
    table = load_features(root / FEATURES)
    reference_mhz = config.features.reference_mhz
    if reference_mhz is None:
        reference_mhz = max((mhz for rows in table.training for mhz in rows.measured.clocks), default=None)
    training = train_governor(
        table,
        table.training,
        search_space(config.train),
        objective=config.objective.name,
        reference_mhz=reference_mhz,
    )
    best, tree, reports = training.search.best, training.governor.tree, root / REPORTS
    write_text(reports / "loocv.csv", csv_text(CANDIDATE_COLUMNS, candidate_rows(training)))
    write_text(
        reports / "loo_predictions.csv", csv_text(PREDICTION_COLUMNS, prediction_rows(table, training))
    )
    write_text(reports / "tree.txt", tree.text() + "\n")
    write_json(
        reports / "metrics.json",
        {
            "loo_accuracy": None if best.loo_accuracy is None else round(best.loo_accuracy, 6),
            "loo_regret_pct": None if best.loo_regret_pct is None else round(best.loo_regret_pct, 6),
            "leaves": len(tree.leaves),
            "depth": tree.depth,
            "n_training": len(table.training),
            "n_candidates": len(training.search.results),
            "ffg_mhz": fixed_clock(table.training),
        },
    )
    write_json(root / GOVERNOR, training.document)
    space = regret_space(config.train)
    regret = train_regret_governor(
        table,
        table.training,
        space,
        objective=config.objective.name,
        reference_mhz=reference_mhz,
    )
    write_json(reports / "mlg-regret.json", regret_report(table, regret, space))
    write_text(reports / "mlg-regret.txt", regret.governor.tree.text() + "\n")
    write_json(root / REGRET_GOVERNOR, regret.document)


def main() -> None:
    """Run the stage in the current folder."""
    train(load_params(), Path())


if __name__ == "__main__":
    sys.exit(run(main))
