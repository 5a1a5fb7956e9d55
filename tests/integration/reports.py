"""The files the report page is made of, judged on synthetic workloads."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from synthetic import rows, write

from wattune.core.governor import Governor, canonical_json
from wattune.learning.export import train_governor, train_regret_governor
from wattune.learning.judge import CURVE_COLUMNS, POLICY_COLUMNS, curve_rows, judge, policy_rows, summarise
from wattune.learning.loocv import SearchSpace
from wattune.learning.regretsearch import RegretSpace
from wattune.learning.table import load_features
from wattune.stages._tables import csv_text

SPACE = SearchSpace(("family", "layers", "seq_len"), (1, 2), (1,), ("gini",))
REGRET_SPACE = RegretSpace(("family", "layers", "seq_len"), min_samples_leaf=(1,), prune_pct=(0.0,))
SMALL = {"models": ["bert-base", "pythia-31m"], "clocks": (306.0, 612.0, 918.0, 1300.5)}
RECORDED = {"held_out": False, "noise_free": False, "repeats": 1, "provenance": "recorded"}


def decision(governor: Governor, meta: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """A gate's decision about a governor."""
    rule = {
        "rule": "mean saving against MAXN, %",
        "value": 17.25,
        "comparison": ">=",
        "threshold": 10.0,
        "passed": True,
        "reason": "17.2 >= 10 holds",
    }
    return {
        "schema_version": 1,
        "mode": "enforce",
        "verdict": "accepted",
        "promote": True,
        "policy": governor.policy,
        "board": governor.board,
        "provenance": governor.provenance,
        "governor_digest": governor.digest,
        "held_out_digest": meta["held_out_digest"],
        "rules": [rule],
        **changes,
    }


def write_reports(
    root: Path,
    table: Iterable[dict[str, object]] | None = None,
    *,
    regret: bool = True,
    alter: Callable[[dict[str, Any]], None] = lambda metrics: None,
    **changes: Any,
) -> dict[str, Any]:
    """Write what the stage `report` reads under `root`; returns ``metrics.json``.

    Args:
        root: a folder.
        table: rows of features.csv.
        regret: also `mlg-regret`.
        alter: changes metrics.json before it is written.
        changes: of the gate's decision.
    """
    path = write(root / "data/features/features.csv", rows(**SMALL) if table is None else table)
    features = load_features(path)
    governor = train_governor(features, features.training, SPACE).governor
    told = train_regret_governor(features, features.training, REGRET_SPACE).governor if regret else None
    judgement = judge(features, governor, SPACE, regret=(told, REGRET_SPACE) if told else None)
    metrics = summarise(judgement, resamples=50, seed=0)
    alter(metrics)
    texts = {
        "models/governor.json": canonical_json(governor.document),
        "reports/train/metrics.json": "{}\n",
        "reports/evaluate/metrics.json": canonical_json(metrics),
        "reports/evaluate/policies.csv": csv_text(POLICY_COLUMNS, policy_rows(judgement)),
        "reports/evaluate/curves.csv": csv_text(CURVE_COLUMNS, curve_rows(judgement)),
        "reports/gate/decision.json": canonical_json(decision(governor, metrics["_meta"], **changes)),
    }
    if told:
        texts["models/governor-regret.json"] = canonical_json(told.document)
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return json.loads(texts["reports/evaluate/metrics.json"])
