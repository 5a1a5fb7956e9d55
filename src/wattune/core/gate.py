"""Promotion rules: what a governor must show before it may become champion. A rejection is an answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from wattune.core.stats import bootstrap_mean_ci95, mean

Comparison = Literal[">=", ">", "<="]


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Bars of the rules.

    Attributes:
        min_mean_saving_pct: least mean saving against MAXN.
        min_worst_saving_pct: least saving of the worst workload.
        max_mean_regret_pct: most mean energy above each workload's optimum.
        max_p95_regret_pct: most energy above the optimum on 95 of 100 workloads.
        max_depth: deepest tree allowed.
    """

    min_mean_saving_pct: float
    min_worst_saving_pct: float
    max_mean_regret_pct: float
    max_p95_regret_pct: float
    max_depth: int


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known of the policy judged.

    Attributes:
        savings_pct: its saving on every workload; None without a MAXN baseline.
        ffg_savings_pct: the best fixed clock's, in the same order; None where it was not judged.
        mean_regret_pct: its mean regret.
        p95_regret_pct: the 95th percentile.
        depth: questions on the longest path of its tree.
        calibrated: whether measurements of this very board stand behind the data; False for a modelled board without any.
    """

    savings_pct: Sequence[float] | None
    ffg_savings_pct: Sequence[float] | None
    mean_regret_pct: float
    p95_regret_pct: float
    depth: int
    calibrated: bool = True


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, judged.

    Attributes:
        rule: what is demanded, in words.
        value: what was found; None where unknown.
        comparison: how value and threshold must compare.
        threshold: the bar.
        passed: whether the rule holds; an unknown value never passes.
        reason: one sentence.
    """

    rule: str
    value: float | None
    comparison: Comparison
    threshold: float
    passed: bool
    reason: str


def _rule(rule: str, value: float | None, comparison: Comparison, threshold: float, unknown: str) -> Rule:
    if value is None:
        return Rule(rule, None, comparison, threshold, passed=False, reason=unknown)
    holds = {">=": value >= threshold, ">": value > threshold, "<=": value <= threshold}[comparison]
    verb = "holds" if holds else "does not hold"
    reason = f"{value:.3g} {comparison} {threshold:g} {verb}"
    return Rule(rule, round(value, 6) + 0.0, comparison, threshold, passed=holds, reason=reason)


def judge_rules(evidence: Evidence, thresholds: Thresholds, *, resamples: int, seed: int) -> tuple[Rule, ...]:
    """Judge every rule.

    Args:
        evidence: what is known.
        thresholds: the bars.
        resamples: bootstrap resamples of the two intervals (over workloads).
        seed: their seed.

    Returns:
        The rules in a fixed order. "Not worse than the best fixed clock beyond noise" fails where the whole
        95 % interval of the paired difference of savings lies below 0.
    """
    savings, ffg = evidence.savings_pct, evidence.ffg_savings_pct
    no_baseline = "The saving is unknown: the data have no MAXN baseline."
    no_ffg = no_baseline if savings is None else "The best fixed clock was not judged on these workloads."
    low = upper = None
    if savings:
        low, _ = bootstrap_mean_ci95(savings, resamples=resamples, seed=seed)
        if ffg:
            paired = [mine - fixed for mine, fixed in zip(savings, ffg, strict=True)]
            _, upper = bootstrap_mean_ci95(paired, resamples=resamples, seed=seed)
    return (
        _rule(
            "mean saving against MAXN, %",
            mean(savings) if savings else None,
            ">=",
            thresholds.min_mean_saving_pct,
            no_baseline,
        ),
        _rule("lower bound of the mean saving's 95 % interval, %", low, ">", 0.0, no_baseline),
        _rule(
            "upper bound of the 95 % interval of (saving - best fixed clock's saving), points",
            upper,
            ">=",
            0.0,
            no_ffg,
        ),
        _rule(
            "saving of the worst workload, %",
            min(savings) if savings else None,
            ">=",
            thresholds.min_worst_saving_pct,
            no_baseline,
        ),
        _rule("mean regret, %", evidence.mean_regret_pct, "<=", thresholds.max_mean_regret_pct, ""),
        _rule("regret, 95th percentile, %", evidence.p95_regret_pct, "<=", thresholds.max_p95_regret_pct, ""),
        _rule("depth of the tree", float(evidence.depth), "<=", float(thresholds.max_depth), ""),
        Rule(
            "the board's data rest on measurements of such a board (1) or on none (0)",
            float(evidence.calibrated),
            ">=",
            1.0,
            passed=evidence.calibrated,
            reason="measurements of such a board stand behind the data"
            if evidence.calibrated
            else "the modelled board is uncalibrated: nothing learnt on it may ship",
        ),
    )


def verdict(mode: str, rules: Sequence[Rule]) -> tuple[str, bool]:
    """The verdict, and whether the governor may be promoted.

    Args:
        mode: ``off`` (nothing is judged), ``dry_run`` (judged, never promoted) or ``enforce``.
        rules: the judged rules; ignored when `mode` is ``off``.
    """
    if mode == "off":
        return "not judged", False
    accepted = bool(rules) and all(rule.passed for rule in rules)
    return ("accepted" if accepted else "rejected"), accepted and mode == "enforce"


def rule_document(rule: Rule) -> dict[str, Any]:
    """A rule as plain data."""
    return asdict(rule)
