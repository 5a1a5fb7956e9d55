"""Stage `train`: choose both trees by leave-one-out, write their governors and the one that ships, and what `curve` would lose."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattune.config import Config, TrainConf, load_params
from wattune.core.governor import Governor
from wattune.core.settings import Setting, setting_label
from wattune.core.stats import mean
from wattune.io import write_json, write_text
from wattune.learning.champion import RULE, Trained, train_champion
from wattune.learning.curvemodel import CurveModel, curve_report
from wattune.learning.export import POLICY, REGRET_POLICY, Training, train_regret_governor
from wattune.learning.judge import fixed_clock
from wattune.learning.loocv import SearchSpace
from wattune.learning.regretsearch import GROUPS, RegretSearch, RegretSpace, groups_out
from wattune.learning.table import FeatureTable, WorkloadRows, load_features
from wattune.stages._main import run
from wattune.stages._tables import csv_text

log = logging.getLogger(__name__)

FEATURES = Path("data/features/features.csv")
GOVERNOR = Path("models/governor.json")
"""The one that ships: a copy of one of the two below."""

LABEL_GOVERNOR = Path("models/governor-mlg.json")
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
        tolerated_loss_pct=regret.tolerated_loss_pct,
        levels=tuple(regret.conformal_levels),
        beyonds=tuple(regret.abstain_beyonds),
        tell_apart=regret.tell_apart,
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


def candidate_rows(trained: Trained) -> list[dict[str, Any]]:
    """Rows of ``loocv.csv``: one per candidate of both searches; `chosen` marks each search's own, `ships` the champion."""

    def rounded(value: float | None) -> float | None:
        return None if value is None else round(value, 6)

    rows: list[dict[str, Any]] = []
    for index, label in enumerate(trained.labels.search.results):
        rows.append(
            {
                "policy": POLICY,
                "max_depth": label.candidate.max_depth,
                "min_samples_leaf": label.candidate.min_samples_leaf,
                "criterion": label.candidate.criterion,
                "loo_accuracy": rounded(label.loo_accuracy),
                "loo_regret_pct": rounded(label.loo_regret_pct),
                "leaves": label.leaves,
                "depth": label.depth,
                "chosen": int(index == trained.labels.search.chosen),
            }
        )
    for index, regret in enumerate(trained.regret.search.results):
        rows.append(
            {
                "policy": REGRET_POLICY,
                "min_samples_leaf": regret.candidate.min_samples_leaf,
                "prune_pct": regret.candidate.prune_pct,
                "loo_regret_pct": rounded(regret.loo_regret_pct),
                "leaves": regret.leaves,
                "depth": regret.depth,
                "chosen": int(index == trained.regret.search.chosen),
            }
        )
    return [
        {"candidate": number, **row, "ships": int(row["chosen"] and row["policy"] == trained.choice.champion)}
        for number, row in enumerate(rows)
    ]


def champion_predictions(trained: Trained) -> tuple[Setting, ...]:
    """What the champion's chosen candidate picked for every left-out training workload."""
    if trained.choice.champion == POLICY:
        return trained.labels.search.best.predicted_mhz
    return trained.regret.search.best.predicted


def prediction_rows(table: FeatureTable, trained: Trained) -> list[dict[str, Any]]:
    """Rows of ``loo_predictions.csv``: the champion's candidate on every left-out workload."""
    return [
        {
            "workload": row.id,
            "label_mhz": setting_label(row.label_mhz),
            "predicted_mhz": setting_label(setting),
            "regret_pct": round(row.measured.regret_pct(row.nearest(setting)), 6),
        }
        for row, setting in zip(table.training, champion_predictions(trained), strict=False)
    ]


def champion_report(trained: Trained) -> dict[str, Any]:
    """``champion.json``: the rule, the contenders and the one that ships."""
    choice = trained.choice
    return {
        "rule": RULE,
        "champion": choice.champion,
        "reason": choice.reason,
        "bar_pct": None if choice.bar_pct is None else round(choice.bar_pct, 6),
        "contenders": [
            {
                "policy": c.policy,
                "loo_regret_pct": None if c.loo_regret_pct is None else round(c.loo_regret_pct, 6),
                "standard_error_pct": None
                if c.standard_error_pct is None
                else round(c.standard_error_pct, 6),
                "leaves": c.leaves,
                "depth": c.depth,
            }
            for c in choice.contenders
        ],
    }


CANDIDATE_COLUMNS = (
    *("candidate", "policy", "max_depth", "min_samples_leaf", "criterion", "prune_pct", "loo_accuracy"),
    *("loo_regret_pct", "leaves", "depth", "chosen", "ships"),
)
PREDICTION_COLUMNS = ("workload", "label_mhz", "predicted_mhz", "regret_pct")


def train(config: Config, root: Path) -> None:
    """Run the stage under a repository root."""
    table, reports = load_features(root / FEATURES), root / REPORTS
    reference_mhz = config.features.reference_mhz
    if reference_mhz is None:
        reference_mhz = max((mhz for rows in table.training for mhz in rows.measured.clocks), default=None)
    space = regret_space(config.train)
    trained = train_champion(
        table,
        table.training,
        search_space(config.train),
        space,
        objective=config.objective.name,
        reference_mhz=reference_mhz,
    )
    own = next(c for c in trained.choice.contenders if c.policy == trained.choice.champion)
    picks = champion_predictions(trained)
    right = [float(row.label_mhz == pick) for row, pick in zip(table.training, picks, strict=False)]
    candidates = candidate_rows(trained)
    write_text(reports / "loocv.csv", csv_text(CANDIDATE_COLUMNS, candidates))
    write_text(reports / "loo_predictions.csv", csv_text(PREDICTION_COLUMNS, prediction_rows(table, trained)))
    write_text(reports / "tree.txt", trained.governor.tree.text() + "\n")
    write_json(
        reports / "metrics.json",
        {
            "policy": own.policy,
            "loo_accuracy": round(mean(right), 6) if right else None,
            "loo_regret_pct": None if own.loo_regret_pct is None else round(own.loo_regret_pct, 6),
            "leaves": own.leaves,
            "depth": own.depth,
            "n_training": len(table.training),
            "n_candidates": len(candidates),
            "ffg_mhz": fixed_clock(table.training),
        },
    )
    write_json(reports / "champion.json", champion_report(trained))
    write_json(reports / "mlg-regret.json", regret_report(table, trained.regret, space))
    curve = CurveModel(table.training, config.train.features)
    write_json(reports / "curve.json", curve_report(table.training, curve))
    for name, training in (("mlg", trained.labels), ("mlg-regret", trained.regret)):
        write_text(reports / f"{name}.txt", training.governor.tree.text() + "\n")
    write_json(root / GOVERNOR, trained.document)
    write_json(root / LABEL_GOVERNOR, trained.labels.document)
    write_json(root / REGRET_GOVERNOR, trained.regret.document)
    log.info("%s ships: %s", trained.choice.champion, trained.choice.reason)


def main() -> None:
    """Run the stage in the current folder."""
    train(load_params(), Path())


if __name__ == "__main__":
    sys.exit(run(main))
