"""The model card: what a governor is, how it was judged and where it is bad, written from facts alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wattune.core.features import FEATURES
from wattune.core.settings import setting_label
from wattune.tracking.results import Results

PROVENANCE_WORDS = {
    "measured": "Measured on a real board by this project.",
    "recorded": "Learned from sweeps that others recorded on a real board.",
    "simulated": (
        "**SIMULATED: every energy and time below comes from a modelled board, none from a measurement.** "
        "Measure on a real board before relying on a figure."
    ),
}
_RAILS = {
    "gpu_cpu": "the GPU/SoC and CPU rails (VDD_GPU_SOC + VDD_CPU_CV)",
    "gpu_cpu, whole log": (
        "the GPU/SoC and CPU rails (VDD_GPU_SOC + VDD_CPU_CV): mean power over the whole log, set-up and evaluation included, "
        "times the training time (docs/paper-protocol.md)"
    ),
    "module": "the whole module",
}
_SPLIT = {
    "held_out": "on held-out workloads, none of which was trained on",
    "leave_one_out": "leave-one-out: each workload by a governor that never saw it",
}
_MOST_CASES = 20


def number(value: float | None, digits: int = 1) -> str:
    """A number for people; an en dash where unknown."""
    return "–" if value is None else f"{value:.{digits}f}"


def with_interval(value: float | None, interval: Sequence[float] | None) -> str:
    """A mean with its 95 % interval in brackets, where there is one."""
    if value is None or interval is None:
        return number(value)
    return f"{value:.1f} [{interval[0]:.1f}, {interval[1]:.1f}]"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _result_cells(result: Mapping[str, Any]) -> list[str]:
    return [
        with_interval(result.get("mean_saving_pct"), result.get("mean_saving_ci95")),
        with_interval(result.get("mean_slowdown_pct"), result.get("mean_slowdown_ci95")),
        number(result.get("min_saving_pct")),
        number(result.get("max_saving_pct")),
        with_interval(result.get("mean_regret_pct"), result.get("mean_regret_ci95")),
        number(result.get("p95_regret_pct")),
        number(result.get("max_regret_pct")),
        str(result["n"]),
    ]


_RESULT_HEADER = (
    "saving % (mean)",
    "slowdown % (mean)",
    "worst saving %",
    "best saving %",
    "regret % (mean)",
    "regret % (p95)",
    "regret % (max)",
    "n",
)


def _facts(results: Results) -> str:
    governor, meta = results.governor, results.meta
    rails = str(meta["rails"])
    baseline = (
        "MAXN: clocks unpinned under the power mode above"
        if meta["baseline"]
        else "none: no unpinned run is known"
    )
    clocks = ", ".join(setting_label(s) for s in governor.settings)
    rows = [
        ("board", f"`{governor.board}`"),
        ("provenance", governor.provenance),
        ("power mode", governor.power_mode),
        ("objective", f"least {governor.objective} per epoch of fine-tuning"),
        ("energy counts", f"`{rails}`: {_RAILS.get(rails, 'what the source defines')}"),
        ("baseline", baseline),
        ("settings it may choose", f"{clocks} (MHz)"),
        ("digest", f"`{governor.digest}`"),
    ]
    return table(("", ""), rows)


def _judged(results: Results) -> str:
    meta = results.meta
    how = _SPLIT.get(str(meta["split"]), str(meta["split"]))
    floor = meta.get("noise_floor_pct")
    noise = (
        "The noise floor, the regret a perfect choice from the same noisy measurements would have, is not known."
        if floor is None
        else f"Noise floor: {floor:.2f} % regret ({str(meta['noise_floor_how']).rstrip('.')})."
    )
    return (
        f"{meta['n_workloads']} workloads, judged {how}, by {meta['judged_on']}. Savings and slowdowns are against MAXN, "
        f"regret against the best setting of each workload. Brackets: 95 % bootstrap interval over workloads. {noise}"
    )


def _groups(results: Results) -> str:
    own = results.metrics[results.policy]
    groups = [(name, own[name]) for name in ("all", "large", "small") if name in own]
    groups += sorted(own.get("tasks", {}).items())
    return table(("workloads", *_RESULT_HEADER), [(name, *_result_cells(result)) for name, result in groups])


def _value(row: Mapping[str, str], column: str) -> float | None:
    text = row.get(column, "")
    return None if text in ("", None) else float(text)


def negative_cases(results: Results) -> list[dict[str, str]]:
    """The rows in which the governor's choice costs more than MAXN, worst first."""
    own = [row for row in results.rows if row["policy"] == results.policy]
    worse = [row for row in own if (_value(row, "saving_pct") or 0.0) < 0.0]
    return sorted(worse, key=lambda row: (float(row["saving_pct"]), row["workload"]))


def _cases(rows: Sequence[Mapping[str, str]]) -> str:
    return table(
        ("workload", "chosen", "best", "saving %", "slowdown %", "regret %"),
        [
            (
                row["workload"],
                row["setting"],
                row["oracle_setting"],
                number(_value(row, "saving_pct")),
                number(_value(row, "slowdown_pct")),
                number(_value(row, "regret_pct")),
            )
            for row in rows
        ],
    )


def _where_it_fails(results: Results) -> str:
    own = [row for row in results.rows if row["policy"] == results.policy]
    parts = []
    if not results.meta["baseline"]:
        parts.append("Without a MAXN baseline nobody can say on which workloads it costs more than MAXN.")
    else:
        negative = negative_cases(results)
        if not negative:
            parts.append(f"None of the {len(own)} workloads costs more energy than at MAXN.")
        else:
            parts.append(f"{len(negative)} of the {len(own)} workloads cost more energy than at MAXN:")
            parts.append(_cases(negative[:_MOST_CASES]))
            if len(negative) > _MOST_CASES:
                parts.append(
                    f"... and {len(negative) - _MOST_CASES} more, in `reports/evaluate/policies.csv`."
                )
    missed = [row for row in own if float(row["regret_pct"]) > 0]
    farthest = sorted(missed, key=lambda row: (-float(row["regret_pct"]), row["workload"]))[:3]
    if farthest:
        parts += ["Farthest from the best setting:", _cases(farthest)]
    return "\n\n".join(parts)


def gate_section(results: Results) -> str:
    """The gate's verdict and every rule, as Markdown."""
    decision = results.decision
    promote = "It may become champion." if decision["promote"] else "It is not promoted: challenger only."
    head = f"Mode `{decision['mode']}`, verdict: **{decision['verdict']}**. {promote}"
    words = {True: "yes", False: "**no**", None: "not judged"}
    rows = [
        (
            rule["rule"],
            "–" if rule["value"] is None else f"{rule['value']:.4g}",
            f"{rule['comparison']} {rule['threshold']:.4g}",
            words[rule["passed"]],
            str(rule["reason"]),
        )
        for rule in decision["rules"]
    ]
    return f"{head}\n\n{table(('rule', 'value', 'demanded', 'passed', 'reason'), rows)}" if rows else head


def tree_section(results: Results) -> str:
    """The tree as a block of text, as Markdown."""
    return f"```text\n{results.governor.tree.text()}\n```"


def _limits(results: Results) -> str:
    rows = []
    for feature in results.governor.features:
        if feature.kind == "category":
            span = ", ".join(feature.values)
        else:
            span = f"{number(feature.low)} to {number(feature.high)} {feature.unit}".rstrip()
        rows.append((f"`{feature.name}`", FEATURES[feature.name].meaning, span, _default(feature.default)))
    lines = [
        f"- Only for `{results.governor.board}` in power mode {results.governor.power_mode}; clocks, rails and the shape of "
        "the energy curve differ on every other board and mode.",
        f"- Energy counts {_RAILS.get(str(results.meta['rails']), 'what the source defines')}; another set of rails has "
        "another optimum.",
        "- It minimises energy, not time: read the slowdown beside every saving.",
        _outside(results.governor.abstain_beyond),
    ]
    if results.governor.provenance == "simulated":
        lines.append("- Nothing here was measured on a board.")
    return (
        "\n".join(lines)
        + "\n\n"
        + table(("feature", "meaning", "trained on", "assumed where nobody says"), rows)
    )


def _outside(beyond: float | None) -> str:
    if beyond is None:
        return "- Outside the ranges below it still answers, and says so (`in_range` is false)."
    return (
        "- Outside the ranges below it says so (`in_range` is false); beyond them by more than a factor of "
        f"{beyond:g}, in a family it never saw, or where its saving may be a loss, it declines and leaves the clocks alone."
    )


def _default(value: object) -> str:
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


def _training(results: Results) -> str:
    training, train = results.governor.document["training"], results.train
    hyper = ", ".join(
        f"{name} = {value}" for name, value in sorted(training.get("hyper_parameters", {}).items())
    )
    fixed = train.get("ffg_mhz")
    accuracy = train.get("loo_accuracy")
    lines = [
        f"- {training['n_workloads']} workloads; fingerprint of the training rows `{training['fingerprint']}`.",
        f"- Hyper-parameters chosen among {train['n_candidates']} candidates by leave-one-out cross-validation: {hyper}.",
        f"- Leave-one-out: {'–' if accuracy is None else f'{100 * accuracy:.1f}'} % of levels right, mean regret "
        f"{number(train.get('loo_regret_pct'), 2)} %.",
        f"- Best fixed clock of the same rows: {'–' if fixed is None else setting_label(fixed)} MHz.",
        f"- Held-out digest `{results.meta['held_out_digest']}`: only governors judged on the same digest can be compared.",
    ]
    return "\n".join(lines)


def model_card(results: Results) -> str:
    """The card as Markdown; the same facts give the same bytes."""
    governor = results.governor
    policies = [(f"`{name}`", *_result_cells(groups["all"])) for name, groups in results.metrics.items()]
    sections = [
        f"# Governor `{governor.policy}` for `{governor.board}` ({governor.provenance})",
        f"> {PROVENANCE_WORDS[governor.provenance]}",
        _facts(results),
        "## Intended use",
        "Pick the GPU clock before fine-tuning a small language model on this board: `wattune choose --model M --task T`. "
        "Not for inference, other boards, other power modes or jobs with a deadline.",
        "## Results",
        _judged(results),
        table(("policy", *_RESULT_HEADER), policies),
        f"The governor's own policy, `{governor.policy}`, by group and task:",
        _groups(results),
        "## Where it is bad",
        _where_it_fails(results),
        "## The tree",
        tree_section(results),
        "## The gate",
        gate_section(results),
        "## Limits",
        _limits(results),
        "## Training",
        _training(results),
    ]
    return "\n\n".join(sections) + "\n"
