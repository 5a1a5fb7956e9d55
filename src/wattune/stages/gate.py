"""Stage `gate`: judge the governor against the promotion rules; a rejection is recorded, not a failure."""

from __future__ import annotations

import csv
import io
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wattune.boards.virtual.constants import load_board_file
from wattune.config import CHAMPION, Config, load_params
from wattune.core.errors import InputError, IntegrityError
from wattune.core.gate import Evidence, Rule, Thresholds, judge_rules, rule_document, verdict
from wattune.core.governor import parse_governor
from wattune.io import read_json, read_text, write_json
from wattune.stages._main import run

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
GOVERNOR = Path("models/governor.json")
METRICS = Path("reports/evaluate/metrics.json")
POLICIES = Path("reports/evaluate/policies.csv")
DECISION = Path("reports/gate/decision.json")


def read_savings(path: Path) -> dict[str, dict[str, float | None]]:
    """Policy -> workload -> saving, percent, from ``policies.csv``; None without a baseline.

    Raises:
        InputError: missing or not that table.
    """
    hint = "Run `dvc repro evaluate`."
    savings: dict[str, dict[str, float | None]] = {}
    try:
        for row in csv.DictReader(io.StringIO(read_text(path, "The table of policies", hint))):
            saving = float(row["saving_pct"]) if row["saving_pct"] else None
            savings.setdefault(row["policy"], {})[row["workload"]] = saving
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{path} is not a table of policies ({error}).", hint=hint) from error
    return savings


def _known(per_workload: Mapping[str, float | None], order: list[str]) -> list[float] | None:
    values = [per_workload.get(workload) for workload in order]
    known = [v for v in values if v is not None]
    return known if known and len(known) == len(values) else None


def is_calibrated(config: Config, root: Path) -> bool:
    """Whether measurements of such a board stand behind the data: for a modelled board its file says so."""
    conf = config.board
    return conf.kind != "virtual" or load_board_file(root / conf.constants).calibrated


def gate(config: Config, root: Path) -> None:
    """Run the stage under a repository root."""
    conf = config.gate
    governor = parse_governor(read_text(root / GOVERNOR, "The governor", "Run `dvc repro train`."))
    metrics = read_json(root / METRICS, "The metrics", "Run `dvc repro evaluate`.")
    meta: dict[str, Any] = metrics["_meta"]
    if meta["governor_digest"] != governor.digest:
        raise IntegrityError(
            "The metrics were made with another governor.",
            f"Metrics of {governor.digest[:12]} were expected, these are of {meta['governor_digest'][:12]}.",
            "Run `dvc repro evaluate`.",
        )
    savings = read_savings(root / POLICIES)
    policy = governor.policy
    if conf.policy not in (CHAMPION, policy):
        raise InputError(
            f"gate.policy is '{conf.policy}', but the governor that ships is '{policy}'.",
            f"The gate judges the policy that ships: {CHAMPION}, or its name.",
            "Correct conf/gate and run `make params`.",
        )
    if policy not in savings or policy not in metrics:
        raise InputError(
            f"The policy that ships, '{policy}', was not judged.",
            f"It was expected in {METRICS} and {POLICIES}.",
            "Run `dvc repro evaluate`.",
        )
    rules: tuple[Rule, ...] = ()
    if conf.mode != "off":
        workloads = list(savings[policy])
        evidence = Evidence(
            savings_pct=_known(savings[policy], workloads),
            ffg_savings_pct=_known(savings.get("ffg", {}), workloads),
            mean_regret_pct=metrics[policy]["all"]["mean_regret_pct"],
            p95_regret_pct=metrics[policy]["all"]["p95_regret_pct"],
            depth=governor.tree.depth,
            calibrated=is_calibrated(config, root),
        )
        bars = Thresholds(
            min_mean_saving_pct=conf.min_mean_saving_pct,
            min_worst_saving_pct=conf.min_worst_saving_pct,
            max_mean_regret_pct=conf.max_mean_regret_pct,
            max_p95_regret_pct=conf.max_p95_regret_pct,
            max_depth=conf.max_depth,
        )
        resamples, seed = config.evaluate.bootstrap_resamples, config.evaluate.bootstrap_seed
        rules = judge_rules(evidence, bars, resamples=resamples, seed=seed)
    answer, promote = verdict(conf.mode, rules)
    write_json(
        root / DECISION,
        {
            "schema_version": SCHEMA_VERSION,
            "mode": conf.mode,
            "verdict": answer,
            "promote": promote,
            "policy": policy,
            "board": governor.board,
            "provenance": governor.provenance,
            "governor_digest": governor.digest,
            "held_out_digest": meta["held_out_digest"],
            "rules": [rule_document(rule) for rule in rules],
        },
    )
    log.info("gate (%s): %s", conf.mode, answer)
    for rule in rules:
        log.info("  %s %s: %s", "pass" if rule.passed else "FAIL", rule.rule, rule.reason)


def main() -> None:
    """Run the stage in the current folder."""
    gate(load_params(), Path())


if __name__ == "__main__":
    sys.exit(run(main))
