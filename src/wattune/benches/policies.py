"""`wattune bench policies`: what every policy loses on workloads it has not seen, and whether chance explains it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from wattune.config import PARAMS, load_params
from wattune.core.governor import Governor, canonical_json
from wattune.core.stats import percentile
from wattune.learning.champion import train_champion
from wattune.learning.judge import judge, summarise
from wattune.learning.table import WorkloadRows, load_features
from wattune.stages.train import FEATURES, regret_report, regret_space, search_space

SCHEMA_VERSION = 1
BARS = {
    "mean_regret_pct": ("<=", 0.5),
    "p95_regret_pct": ("<=", 2.0),
    "min_saving_pct": (">=", -0.5),
    "latency_us": ("<=", 50.0),
    "governor_bytes": ("<=", 8000.0),
}
"""What `mlg-regret` promises on the paper's held-out workloads of the virtual board."""

CALLS = 2000
COLUMNS = ("mean_regret_pct", "p95_regret_pct", "max_regret_pct", "mean_saving_pct", "min_saving_pct")


def latency_us(governor: Governor, rows: tuple[WorkloadRows, ...]) -> float:
    """Median time of one decision, microseconds."""
    took = []
    for number in range(CALLS):
        features = rows[number % len(rows)].features
        begin = time.perf_counter_ns()
        governor.decide(features)
        took.append((time.perf_counter_ns() - begin) / 1000.0)
    return percentile(took, 50.0)


def run(root: Path = Path()) -> dict[str, Any]:
    """Train on the feature table under `root`, judge, compare.

    Returns:
        Per policy its figures, every pair with its interval, kinds of workloads left out, and each bar (`ok`: all hold).

    Raises:
        InputError: no parameters or no feature table.
    """
    config, table = load_params(root / PARAMS), load_features(root / FEATURES)
    conf, space = config.evaluate, regret_space(config.train)
    objective, labels = config.objective.name, search_space(config.train)
    trained = train_champion(table, table.training, labels, space, objective=objective)
    regret = trained.regret
    judgement = judge(
        table,
        trained.labels.governor,
        labels,
        published_util=conf.published_util,
        regret=(regret.governor, space),
        ships=trained.choice.champion,
        curve=config.train.features,
        probe=True,
    )
    metrics = summarise(judgement, resamples=conf.bootstrap_resamples, seed=conf.bootstrap_seed)
    meta, own = metrics["_meta"], metrics["mlg-regret"]["all"]
    rows = judgement.judged
    found = {
        **{name: own[name] for name in ("mean_regret_pct", "p95_regret_pct", "min_saving_pct")},
        "latency_us": round(latency_us(regret.governor, rows), 1),
        "governor_bytes": len(canonical_json(regret.document).encode()),
    }
    bars = [
        {
            "what": name,
            "value": found[name],
            "comparison": comparison,
            "bar": bar,
            "holds": found[name] is not None
            and (found[name] <= bar if comparison == "<=" else found[name] >= bar),
        }
        for name, (comparison, bar) in BARS.items()
    ]
    decisions = [regret.governor.decide(row.features) for row in rows]
    return {
        "schema_version": SCHEMA_VERSION,
        **{
            key: meta[key]
            for key in ("board", "provenance", "split", "judged_on", "n_workloads", "n_training")
        },
        "noise_floor_pct": meta["noise_floor_pct"],
        "policies": {name: metrics[name]["all"] for name in judgement.policies},
        "pairs": meta["pairs"],
        "champion": {"policy": trained.choice.champion, "reason": trained.choice.reason},
        "mlg_regret": {
            "declined": sum(d.abstained for d in decisions),
            "outside_range": sum(not d.in_range for d in decisions),
            "leaves": regret.search.best.leaves,
            "loo_regret_pct": regret.search.best.loo_regret_pct,
            "left_out": regret_report(table, regret, space)["left_out"],
        },
        "bars": bars,
        "ok": all(bar["holds"] for bar in bars),
    }


def _number(value: float | None, width: int = 9) -> str:
    return f"{'unknown' if value is None else format(value + 0.0, '.2f'):>{width}}"


def text(document: dict[str, Any]) -> str:
    """The result for people."""
    lines = [
        f"{document['n_workloads']} workloads ({document['split'].replace('_', ' ')}), {document['board']},"
        f" {document['provenance']}, judged on {document['judged_on']};"
        f" noise floor {_number(document['noise_floor_pct'], 1)} %",
        f"{'policy':<15}{'regret %':>9}{'p95':>9}{'max':>9}{'saving %':>9}{'worst':>9}",
    ]
    for name, figures in document["policies"].items():
        lines.append(f"{name:<15}" + "".join(_number(figures[column]) for column in COLUMNS))
    lines += [
        "",
        "difference of mean regret in points, 95 % interval over workloads (below 0: the first loses less)",
    ]
    for pair in document["pairs"]:
        low, high = pair["ci95"]
        lines.append(
            f"{pair['policy']:<15}against {pair['against']:<15}{_number(pair['regret_difference_points'])}"
            f" [{low:.2f}, {high:.2f}]  {pair['verdict']}"
        )
    lines += ["", f"ships: {document['champion']['policy']} ({document['champion']['reason']})"]
    own = document["mlg_regret"]
    lines += [
        "",
        f"mlg-regret: leaves {own['leaves']}, declined {own['declined']} of {document['n_workloads']}",
    ]
    for kind, figures in own["left_out"].items():
        lines.append(
            f"  leave one {kind} out: unknown, fewer than two are named"
            if figures is None
            else f"  leave one {kind} out: mean regret {figures['mean_regret_pct']:.2f} %, p95"
            f" {figures['p95_regret_pct']:.2f} %, max {figures['max_regret_pct']:.2f} %;"
            f" would decline {figures['declined']} of {figures['n']}"
        )
    lines.append("")
    for bar in document["bars"]:
        value = "unknown" if bar["value"] is None else f"{bar['value']:.4g}"
        verdict = "holds" if bar["holds"] else "does not hold"
        lines.append(f"{bar['what']:<18} {value:>9} {bar['comparison']} {bar['bar']:g}  {verdict}")
    return "\n".join(lines)
