"""`make figures`: the pages' tables and the figures in ``docs/figures``, from what the pipeline wrote.

Parts between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->`` are replaced; nothing else is touched.
"""

from __future__ import annotations

import argparse
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

from wattune.core.errors import InputError
from wattune.core.governor import parse_governor
from wattune.core.policies import POLICY_ORDER
from wattune.io import read_json, read_text, write_bytes, write_text
from wattune.stages._main import run
from wattune.stages._tables import fill
from wattune.validation.page import parts as validation_parts

REPRO = "Run `make repro` first."
FIGURES = {
    "evaluate/figures/curves-bert-base.png": "bert-base.png",
    "evaluate/figures/policies.png": "policies.png",
    "evaluate/figures/savings.png": "savings.png",
    "validate/figures/orin_deberta_qnli.png": "validation-deberta-qnli.png",
    "validate/figures/orin_deberta_sst2.png": "validation-deberta-sst2.png",
    "validate/figures/orin_pythia14m_qnli.png": "validation-pythia14m-qnli.png",
}
"""File in reports -> file in docs/figures."""


def _interval(row: dict[str, Any]) -> str:
    low, high = row["mean_saving_ci95"]
    return f"{row['mean_saving_pct']:.1f} [{low:.1f}, {high:.1f}]"


def results_table(metrics: dict[str, Any]) -> str:
    """The result table of the README, from metrics.json."""
    meta = metrics["_meta"]
    floor = "unknown" if meta["noise_floor_pct"] is None else f"{meta['noise_floor_pct']:.2f} %"
    lines = [
        f"{meta['n_workloads']} held-out workloads on `{meta['board']}`, power mode {meta['power_mode']}, provenance"
        f" **{meta['provenance']}**, energy of rails `{meta['rails']}`, against MAXN. Judged on {meta['judged_on']}; a perfect"
        f" policy that sees only noisy measurements has a mean regret of {floor} (noise floor).",
        "",
        "| policy | mean saving %, 95 % interval | large | small | worst | best | mean regret % | p95 regret % | mean slowdown % |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for policy in POLICY_ORDER:
        if policy not in metrics:
            continue
        groups = metrics[policy]
        row = groups["all"]
        large, small = (
            f"{groups[g]['mean_saving_pct']:.1f}" if g in groups else "" for g in ("large", "small")
        )
        lines.append(
            f"| {policy} | {_interval(row)} | {large} | {small} | {row['min_saving_pct']:.1f} | {row['max_saving_pct']:.1f}"
            f" | {row['mean_regret_pct']:.2f} | {row['p95_regret_pct']:.2f} | {row['mean_slowdown_pct']:.1f} |"
        )
    return "\n".join(lines)


def dag_mermaid() -> str:
    """The pipeline as DVC draws it."""
    command = [sys.executable, "-m", "dvc", "dag", "--collapse-foreach-matrix", "--md"]
    drawn = subprocess.run(command, capture_output=True, text=True, check=False)
    if drawn.returncode:
        raise InputError("DVC could not draw the pipeline.", drawn.stderr.strip())
    return drawn.stdout.strip()


def gate_text(decision: dict[str, Any]) -> str:
    """The gate's verdict as a table."""
    lines = [
        f"Gate ({decision['mode']}): **{decision['verdict']}**.",
        "",
        "| rule | value | needed | holds |",
        "|---|---|---|---|",
    ]
    for rule in decision["rules"]:
        value = "unknown" if rule["value"] is None else f"{rule['value']:.2f}"
        verdict = {True: "yes", False: "no", None: "not judged"}[rule["passed"]]
        lines.append(f"| {rule['rule']} | {value} | {rule['comparison']} {rule['threshold']:g} | {verdict} |")
    return "\n".join(lines)


def champion_text(champion: dict[str, Any], curve: dict[str, Any]) -> str:
    """The contenders, which of them ships, and what the reference loses."""
    lines = [
        "| policy | leave-one-out regret % | standard error | leaves | depth |",
        "|---|---|---|---|---|",
    ]
    for c in champion["contenders"]:
        loss, error = (
            "unknown" if c[name] is None else f"{c[name]:.3f}"
            for name in ("loo_regret_pct", "standard_error_pct")
        )
        lines.append(f"| {c['policy']} | {loss} | {error} | {c['leaves']} | {c['depth']} |")
    reference = "unknown" if curve["loo_regret_pct"] is None else f"{curve['loo_regret_pct']:.3f} %"
    return "\n".join(
        [
            *lines,
            "",
            f"Ships: **{champion['champion']}**, for {champion['reason']}.",
            f"For reference, leave-one-out regret of `curve`: {reference} (its law misses the training curves by"
            f" {curve['mean_misfit_pct']:.2f} % on average, root mean square).",
        ]
    )


def pairs_text(
    metrics: dict[str, Any], policies: tuple[str, ...] = ("mlg", "mlg-regret", "curve", "probe")
) -> str:
    """Every learned or measuring policy against each earlier one, on the held-out workloads."""
    lines = [
        "| policy | against | difference of mean regret, points | 95 % interval | verdict |",
        "|---|---|---|---|---|",
    ]
    for pair in metrics["_meta"]["pairs"]:
        if pair["policy"] in policies and pair["against"] not in ("maxn", "oracle"):
            low, high = pair["ci95"]
            lines.append(
                f"| {pair['policy']} | {pair['against']} | {pair['regret_difference_points']:+.2f} | {low:+.2f} to {high:+.2f}"
                f" | {pair['verdict']} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Refresh the pages and docs/figures, or with ``--check`` say which page differs from the reports."""
    parser = argparse.ArgumentParser(prog="python -m wattune.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 2 where a page differs from the reports")
    check = parser.parse_args().check
    metrics = read_json(Path("reports/evaluate/metrics.json"), "The metrics", REPRO)
    meta = metrics["_meta"]
    if (meta["split"], meta["n_workloads"], meta["rails"]) != ("held_out", 54, "gpu_cpu"):
        raise InputError(
            "The reports are not those of the default experiment.",
            "54 held-out workloads, measured by steady energy of rails gpu_cpu, were expected.",
            REPRO,
        )
    governor = parse_governor(read_text(Path("models/governor.json"), "The governor", REPRO))
    decision = read_json(Path("reports/gate/decision.json"), "The gate's decision", REPRO)
    champion = read_json(Path("reports/train/champion.json"), "The champion", REPRO)
    curve = read_json(Path("reports/train/curve.json"), "The report on `curve`", REPRO)
    validation = read_json(Path("reports/validate/validation.json"), "The validation", REPRO)
    pages = {
        Path("README.md"): {
            "results": results_table(metrics),
            "gate": gate_text(decision),
            "tree": f"```text\n{governor.tree.text()}\n```",
            "dag": dag_mermaid(),
        },
        Path("docs/validation.md"): validation_parts(validation),
        Path("docs/governors.md"): {
            "champion": champion_text(champion, curve),
            "pairs": pairs_text(metrics),
        },
    }
    for page, parts in pages.items():
        old = read_text(page, "The page")
        new = fill(old, parts, str(page))
        if check and new != old:
            raise InputError(
                f"{page} does not show what the pipeline prints.", "They must agree.", "Run `make figures`."
            )
        if not check:
            write_text(page, new)
    if check:
        return
    for source, target in FIGURES.items():
        figure = Path("reports") / source
        if not figure.is_file():
            raise InputError(f"{figure} does not exist.", hint=REPRO)
        write_bytes(Path("docs/figures") / target, figure.read_bytes())
    logging.getLogger(__name__).info(
        "README.md, docs/validation.md, docs/governors.md and docs/figures are up to date."
    )


if __name__ == "__main__":
    sys.exit(run(main))
