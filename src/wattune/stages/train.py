"""Stage `train`: choose the label tree by leave-one-out and write the governor."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from wattune.config import Config, TrainConf, load_params
from wattune.core.settings import setting_label
from wattune.io import write_json, write_text
from wattune.learning.export import Training, train_governor
from wattune.learning.judge import fixed_clock
from wattune.learning.loocv import SearchSpace, row_regret_pct
from wattune.learning.table import FeatureTable, load_features
from wattune.stages._main import run
from wattune.stages._tables import csv_text

FEATURES = Path("data/features/features.csv")
GOVERNOR = Path("models/governor.json")
REPORTS = Path("reports/train")


def search_space(conf: TrainConf) -> SearchSpace:
    """The configured search."""
    return SearchSpace(
        features=tuple(conf.features),
        max_depth=tuple(conf.max_depth),
        min_samples_leaf=tuple(conf.min_samples_leaf),
        criterion=tuple(conf.criterion),
        seed=conf.seed,
    )


def candidate_rows(training: Training) -> list[dict[str, Any]]:
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


def prediction_rows(table: FeatureTable, training: Training) -> list[dict[str, Any]]:
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
    training = train_governor(
        table,
        table.training,
        search_space(config.train),
        objective=config.objective.name,
        reference_mhz=config.features.reference_mhz,
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


def main() -> None:
    """Run the stage in the current folder."""
    train(load_params(), Path())


if __name__ == "__main__":
    sys.exit(run(main))
