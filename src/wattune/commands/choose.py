"""`wattune choose` and `wattune explain`."""

from __future__ import annotations

import argparse
import math
from typing import Any

from wattune.commands.answers import clock, energy, out, out_json
from wattune.commands.workload import features_for
from wattune.core.errors import InputError
from wattune.core.features import is_number


def run(args: argparse.Namespace) -> int:
    """Handle ``wattune choose`` and ``wattune explain``; returns the exit code."""
    from wattune.core.objectives import parse_objective
    from wattune.running.choosing import load_governor

    objective, unit = parse_objective(args.objective), _unit(args)
    governor = load_governor(args.governor)
    given, from_catalogue = features_for(args, governor)
    decision = governor.decide_for(given, objective, unit)
    asked = {feature.name for feature in governor.features}
    assumed = {name: value for name, value in from_catalogue.items() if name in asked} | decision.assumed
    if args.json:
        out_json(
            {
                "mhz": decision.setting,
                "rule": decision.rule,
                "expected_saving_pct": decision.expected_saving_pct,
                "expected_slowdown_pct": decision.expected_slowdown_pct,
                "in_range": decision.in_range,
                "out_of_range": list(decision.out_of_range),
                "abstained": decision.abstained,
                "reason": decision.reason,
                "saving_interval_pct": decision.saving_interval_pct,
                "objective": objective.text,
                "feasible": decision.feasible,
                "limit_reason": decision.limit_reason,
                "epochs": decision.epochs,
                "assumed": assumed,
                "governor": governor.digest,
                "provenance": governor.provenance,
                **(_explanation(governor, given) if args.command == "explain" else {}),
            }
        )
        return 0
    if args.command == "explain":
        return _explain(governor, objective, decision, given, assumed)
    out(f"{clock(decision.setting)}  ({decision.rule})")
    out(_expectation(governor, decision))
    say_limit(decision)
    _say_how_held(governor, objective, decision)
    _say_caveats(governor, decision, assumed)
    return 0


def _unit(args: argparse.Namespace) -> Any:
    """What one unit of the work takes at MAXN, as far as it was said."""
    from wattune.core.curve import Point

    for flag, value in (("--maxn-time-s", args.maxn_time_s), ("--maxn-energy-j", args.maxn_energy_j)):
        if value is not None and not (is_number(value) and value > 0):
            raise InputError(f"{flag} is {value:g}.", "A number above 0 was expected.")
    if args.maxn_time_s is None and args.maxn_energy_j is None:
        return None
    return Point(math.nan if args.maxn_energy_j is None else args.maxn_energy_j, args.maxn_time_s)


def _say_how_held(governor: Any, objective: Any, decision: Any) -> None:
    """What a limit in time is held against, beside the mean that is printed."""
    if objective.limited not in ("max_slowdown_pct", "deadline_s") or decision.abstained:
        return
    if governor.knows_slowest:
        out(
            "The limit is held against the slowest training workload of the leaf; the time above is their mean."
        )
    else:
        out("The limit is held against the mean of the leaf; a workload of it may take longer.")


def say_limit(decision: Any) -> None:
    """What a decision of a governor, or an answer of an objective, says of its limit."""
    if not decision.feasible:
        out(f"The limit cannot be kept: {getattr(decision, 'limit_reason', decision.reason)}")
    if decision.epochs is not None:
        out(f"The battery holds {decision.epochs:.4g} units of this work.")


def _expectation(governor: Any, decision: Any) -> str:
    if decision.abstained:
        return "Nothing is changed, so nothing is saved or lost."
    if decision.expected_saving_pct is None:
        return "Saving against MAXN: unknown (the training data have no MAXN baseline)."
    slowdown = decision.expected_slowdown_pct
    time = "time unknown" if slowdown is None else f"{slowdown:+.1f} % time"
    return (
        f"Expected against MAXN: {energy(decision.expected_saving_pct)}, {time}"
        f" (mean of the training workloads in this leaf; {governor.provenance})."
    )


def _say_caveats(governor: Any, decision: Any, assumed: dict[str, Any]) -> None:
    if decision.abstained:
        out(f"Declined, the clocks are left alone: {decision.reason}.")
    if not decision.in_range:
        out(f"Outside what the governor was trained on: {', '.join(decision.out_of_range)}.")
    if assumed:
        out("Assumed: " + ", ".join(f"{name} = {value}" for name, value in sorted(assumed.items())) + ".")
    out(f"Governor {governor.digest[:12]} for {governor.board}, provenance: {governor.provenance}.")


def _explanation(governor: Any, given: dict[str, Any]) -> dict[str, Any]:
    from wattune.core.explain import because, flips

    return {
        "tree": governor.tree.text().split("\n"),
        "because": because(governor, given),
        "flips": [flip.document() for flip in flips(governor, given)],
    }


def _explain(
    governor: Any, objective: Any, decision: Any, given: dict[str, Any], assumed: dict[str, Any]
) -> int:
    from wattune.core.explain import because, flips
    from wattune.core.features import FEATURES

    out(
        f"Policy {governor.policy} for {governor.board} in mode {governor.power_mode}, {governor.provenance}:\n"
    )
    out(governor.tree.text())
    out(f"\nThis workload: {decision.rule}")
    path = because(governor, given)
    out(
        "Because " + ",\n    and ".join(path) + "."
        if path
        else "The tree asks nothing: every workload gets this clock."
    )
    out(_expectation(governor, decision))
    others = flips(governor, given)
    for flip in others:
        unit = FEATURES[flip.feature].unit
        now = flip.value if isinstance(flip.value, str) else f"{flip.value:g}"
        to = flip.to if isinstance(flip.to, str) else f"{flip.to:g} {unit}".rstrip()
        verb = "were" if flip.direction == "is" else f"were {flip.direction}"
        out(f"If {flip.feature} (now {now}) {verb} {to}: {clock(flip.setting)}.")
    if path and not others:
        out("No change of a single feature changes the answer.")
    say_limit(decision)
    _say_how_held(governor, objective, decision)
    _say_caveats(governor, decision, assumed)
    return 0
