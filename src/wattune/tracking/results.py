"""What the stages left behind, read together and checked to belong together."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.errors import IntegrityError
from wattune.core.governor import Governor, parse_governor
from wattune.core.policies import POLICY_ORDER
from wattune.io import read_json, read_text

GOVERNOR = Path("models/governor.json")
MODEL_CARD = Path("models/model_card.md")
FEATURES = Path("data/features/features.csv")
TRAIN_METRICS = Path("reports/train/metrics.json")
LOOCV = Path("reports/train/loocv.csv")
METRICS = Path("reports/evaluate/metrics.json")
POLICIES = Path("reports/evaluate/policies.csv")
FIGURES = Path("reports/evaluate/figures")
DECISION = Path("reports/gate/decision.json")
REPORT = Path("reports/index.html")
REGISTRATION = Path("reports/publish/registration.json")

_HINT = "Run `dvc repro` in the repository root."


@dataclass(frozen=True)
class Results:
    """Everything known about one governor.

    Attributes:
        metrics: ``reports/evaluate/metrics.json`` without ``_meta``, in the order of the policies.
        meta: its ``_meta``.
        train: ``reports/train/metrics.json``.
        decision: ``reports/gate/decision.json``.
        rows: ``reports/evaluate/policies.csv``, one dict of texts per policy and workload.
    """

    governor: Governor
    metrics: dict[str, dict[str, Any]]
    meta: dict[str, Any]
    train: dict[str, Any]
    decision: dict[str, Any]
    rows: list[dict[str, str]]

    @property
    def policy(self) -> str:
        """The governor's policy, under whose name it was judged."""
        return self.governor.policy


def policy_place(policy: str) -> int:
    """Place of a policy in tables, from 0; unknown ones come last."""
    return POLICY_ORDER.index(policy) if policy in POLICY_ORDER else len(POLICY_ORDER)


def read_csv_rows(path: Path, what: str) -> list[dict[str, str]]:
    """Read a CSV file as dicts of texts.

    Raises:
        InputError: missing or not readable.
    """
    return list(csv.DictReader(io.StringIO(read_text(path, what, _HINT))))


def read_results(root: Path) -> Results:
    """Read the stages' files under `root`.

    Raises:
        InputError: a file is missing or not readable.
        IntegrityError: the governor was refused, or the reports are about another governor.
    """
    governor = parse_governor(read_text(root / GOVERNOR, "The governor file", _HINT))
    metrics = read_json(root / METRICS, "The evaluation", _HINT)
    train = read_json(root / TRAIN_METRICS, "The training report", _HINT)
    decision = read_json(root / DECISION, "The gate's decision", _HINT)
    meta = metrics.pop("_meta")
    for path, digest in ((METRICS, meta["governor_digest"]), (DECISION, decision["governor_digest"])):
        if digest != governor.digest:
            raise IntegrityError(
                f"{path} is about governor {digest[:12]}, but {GOVERNOR} is {governor.digest[:12]}.",
                "Reports and governor of the same run were expected.",
                "Run `dvc repro` and try again.",
            )
    return Results(
        governor=governor,
        metrics={
            name: metrics[name] for name in sorted(metrics, key=lambda name: (policy_place(name), name))
        },
        meta=meta,
        train=train,
        decision=decision,
        rows=read_csv_rows(root / POLICIES, "The table of policies"),
    )
