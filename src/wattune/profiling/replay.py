"""`wattune replay`: policies judged on recorded sweeps, each board apart, each workload by what the others taught."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.boards.sweepfile import Sweep, SweepWorkload, provenance_of, read_sweep
from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.governor import Governor, parse_governor
from wattune.core.objectives import (
    ENERGY,
    Objective,
    answer_at,
    baseline_of,
    choose,
    cost_of,
    parse_objective,
    scaled,
)
from wattune.core.policies import Published, best_fixed_clock
from wattune.core.probe import STARTS, Probe, ProbeResult
from wattune.core.settings import MAXN, FrequencyTable, Setting, setting_label
from wattune.core.stats import mean
from wattune.io import read_data
from wattune.terminal import Block, Column, Table, rendered

log = logging.getLogger(__name__)

POLICIES = ("ffg", "maxn", "mlg", "mlg-regret", "oracle", "probe", "published")
TREES = ("mlg", "mlg-regret")
"""Policies that are read from a governor file."""

ELSEWHERE = ("curve",)
"""Policies that learn from features, which a recorded sweep has after the stage `features` only."""

REFERENCE_MHZ = 1300.5
"""Clock nearest to which a sweep's utilisation is read, as in ``conf/sweep``."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a policy's choice costs on one recorded curve.

    Attributes:
        workload: as the sweep writes it.
        board: as the sweep writes it.
        oracle: setting of least energy.
        chosen: the policy's setting (its nearest measured clock).
        regret_pct: what the objective minimises (energy by default) above the oracle's, percent.
        saving_pct: against MAXN; None where the sweep has no such row.
        slowdown_pct: against MAXN; None without that row or without times.
        probes: clocks measured in order to choose, MHz.
        steps: training steps these took.
        feasible: the setting keeps the objective's limit.
        reason: one sentence where it does not.
        epochs: how many units of the recorded work the objective's battery holds; None without one.
    """

    workload: str
    board: str
    oracle: Setting
    chosen: Setting
    regret_pct: float
    saving_pct: float | None
    slowdown_pct: float | None
    probes: tuple[float, ...] = ()
    steps: int = 0
    feasible: bool = True
    reason: str = ""
    epochs: float | None = None

    def document(self) -> dict[str, Any]:
        """The JSON shape scripts rely on."""
        return {
            "workload": self.workload,
            "board": self.board,
            "oracle_mhz": self.oracle,
            "chosen_mhz": self.chosen,
            "regret_pct": self.regret_pct,
            "saving_pct": self.saving_pct,
            "slowdown_pct": self.slowdown_pct,
            "probes": list(self.probes),
            "steps": self.steps,
            "feasible": self.feasible,
            "reason": self.reason,
            "epochs": self.epochs,
        }


def _expected_of_others(workload: SweepWorkload, others: Sequence[SweepWorkload]) -> dict[Setting, Point]:
    """Mean energy and time of the other workloads at the settings they share, each relative to its own baseline.

    Raises:
        InputError: there is no other workload, or they share no clock.
    """
    if not others:
        raise InputError(
            f"The best fixed clock of '{workload.id}' cannot be learned: it is the only workload of board '{workload.board}'.",
            "At least two workloads per board were expected.",
            "Add sweeps of other workloads, or choose another policy with --policy.",
        )
    shared = set(others[0].curve.settings).intersection(*(other.curve.settings for other in others))
    if all(isinstance(setting, str) for setting in shared):
        raise InputError(f"The workloads of board '{workload.board}' share no clock.", "ffg needs one.")
    curves = [other.curve.points for other in others]
    bases = [points[baseline_of(points)] for points in curves]
    expected: dict[Setting, Point] = {}
    for setting in shared:
        energies = [
            points[setting].energy_j / base.energy_j for points, base in zip(curves, bases, strict=True)
        ]
        pairs = [(points[setting].time_s, base.time_s) for points, base in zip(curves, bases, strict=True)]
        times = [here / base for here, base in pairs if here is not None and base is not None]
        expected[setting] = Point(mean(energies), mean(times) if len(times) == len(pairs) else None)
    return expected


def _fixed(workload: SweepWorkload, others: Sequence[SweepWorkload], objective: Objective) -> Setting:
    """The one clock that served the objective best on the other workloads; limits are counted in this workload's baseline."""
    expected = _expected_of_others(workload, others)
    if objective == ENERGY:
        return best_fixed_clock([other.curve for other in others])
    points = workload.curve.points
    return choose(scaled(expected, points[baseline_of(points)]), objective).setting


def _chosen(
    policy: str,
    workload: SweepWorkload,
    others: Sequence[SweepWorkload],
    governor: Governor | None,
    objective: Objective,
) -> Setting:
    curve, features = workload.curve, workload.features(REFERENCE_MHZ)
    if policy == "oracle":
        return choose(curve.points, objective).setting if objective != ENERGY else curve.oracle
    if policy == "maxn":
        setting: Setting = MAXN
    elif policy == "published":
        setting = Published(FrequencyTable(curve.clocks)).choose(features)
    elif policy in TREES:
        assert governor is not None  # checked by replay()
        setting = governor.decide_for(features, objective, curve.points[baseline_of(curve.points)]).setting
    else:
        setting = _fixed(workload, others, objective)
    if setting in curve.points:
        return setting
    if isinstance(setting, str):
        raise InputError(
            f"'{workload.id}' on board '{workload.board}' has no MAXN row.",
            "A row with setting = maxn was expected.",
            "Choose another policy with --policy.",
        )
    return FrequencyTable(curve.clocks).nearest(setting)


def prior_of(governor: Governor, workload: SweepWorkload) -> EnergyCurve | None:
    """The curve that a governor expects of a workload; None where its leaf knows fewer than two clocks."""
    expected = governor.expected_curve(workload.features(REFERENCE_MHZ))
    return expected if expected is not None and len(expected.clocks) > 1 else None


def probe_recorded(
    workload: SweepWorkload,
    *,
    prior: EnergyCurve | None = None,
    starts: tuple[float, float] = STARTS,
    objective: Objective = ENERGY,
) -> ProbeResult:
    """Probe a recorded workload: a clock that is measured answers with its first repeat, one window as on a board."""

    def measure(mhz: float) -> tuple[float, float | None]:
        row = workload.at(mhz)[0]
        return row.energy_j, row.time_s

    return Probe(workload.curve.clocks, measure, prior=prior, starts=starts, objective=objective).run()


def replay(
    sweep: Sweep, policy: str = "ffg", *, governor: Governor | None = None, objective: Objective = ENERGY
) -> list[Replayed]:
    """Judge a policy on every recorded curve.

    `ffg` learns its clock from the other workloads of the same board; `probe` measures the workload itself at a few clocks,
    with a governor's leaf as prior where one is given. A clock that a workload was not measured at is
    judged at its nearest measured one. `maxn` and `published` are rules of their own and know no objective; they are judged by it.

    Raises:
        InputError: an unknown policy, a tree without its governor, or a policy these data cannot serve.
    """
    if policy in ELSEWHERE:
        raise InputError(
            f"Policy '{policy}' learns from features and is judged in the pipeline.",
            f"One of {', '.join(POLICIES)} was expected.",
            "Judge it with `make repro EXPERIMENT=recorded DATA=FILE`.",
        )
    if policy not in POLICIES:
        raise InputError(f"There is no policy '{policy}'.", f"One of {', '.join(POLICIES)} was expected.")
    if policy not in (*TREES, "probe") and governor is not None:
        raise InputError(
            f"Policy '{policy}' reads no governor.",
            f"A governor goes with policy {', '.join(TREES)} or probe.",
            "Leave one of the two out.",
        )
    if policy in TREES and governor is None:
        raise InputError(
            f"Policy '{policy}' needs a governor.",
            "A governor.json was expected.",
            "Give it with `--governor models/governor.json`.",
        )
    strangers = [board for board in sweep.boards if governor is not None and board != governor.board]
    if governor is not None and policy in TREES and governor.policy != policy:
        raise InputError(
            f"The governor is one of policy '{governor.policy}', not '{policy}'.",
            "Its own policy was expected.",
            "Leave --policy out.",
        )
    if strangers:
        raise InputError(
            f"The governor is for board '{governor.board if governor else ''}', the sweep holds '{strangers[0]}'.",
            "A governor is trained for one board.",
            "Train one on this sweep: `make repro EXPERIMENT=recorded DATA=FILE`.",
        )
    for workload in sweep.workloads:
        _check_times(workload, objective)
    results = []
    for workload in sweep.workloads:
        others = [other for other in sweep.of_board(workload.board) if other.id != workload.id]
        curve = workload.curve
        probes: tuple[float, ...] = ()
        steps = 0
        if policy == "probe":
            prior = None if governor is None else prior_of(governor, workload)
            result = probe_recorded(workload, prior=prior, objective=objective)
            chosen: Setting = result.chosen
            probes, steps = result.probes, result.steps
        else:
            chosen = _chosen(policy, workload, others, governor, objective)
        best = curve.oracle if objective == ENERGY else choose(curve.points, objective).setting
        answer = answer_at(curve.points, chosen, objective)
        cost = cost_of(objective, curve.points[chosen]) / cost_of(objective, curve.points[best])
        results.append(
            Replayed(
                workload.id,
                workload.board,
                best,
                chosen,
                100.0 * (cost - 1.0),
                curve.saving_pct(chosen),
                curve.slowdown_pct(chosen),
                probes,
                steps,
                answer.feasible,
                answer.reason,
                answer.epochs,
            )
        )
    return results


def _check_times(workload: SweepWorkload, objective: Objective) -> None:
    """Refuse an objective that needs times for a workload that lacks some."""
    if not (objective.needs_time or objective.limited):
        return
    timeless = [s for s, point in workload.curve.points.items() if point.time_s is None]
    if timeless:
        first = MAXN if isinstance(timeless[0], str) else f"{setting_label(timeless[0])} MHz"
        raise InputError(
            f"The objective '{objective.text}' needs times, and '{workload.id}' on board '{workload.board}' has none at {first}.",
            "A time in seconds (column time_s) at every setting was expected.",
            "Choose the objective energy, or measure times too.",
        )


def missing_features(sweep: Sweep, policy: str) -> list[str]:
    """Sentences on features that `published` asks for and the sweep does not have."""
    if policy != "published":
        return []
    said = []
    for workload in sweep.workloads:
        features: Mapping[str, Any] = workload.features(REFERENCE_MHZ)
        blank = [name for name in ("layers", "seq_len") if features[name] is None]
        if blank:
            said.append(
                f"{workload.id} ({workload.board}): {' and '.join(blank)} unknown; the shallow, short branch is taken."
            )
    return said


def unnamed_baselines(sweep: Sweep, objective: Objective) -> list[str]:
    """Sentences on workloads without a MAXN row whose slowdown an objective limits: against what it is counted then."""
    if objective.limited != "max_slowdown_pct":
        return []
    return [
        f"{workload.id} ({workload.board}): no MAXN row, so max_slowdown_pct is counted against the fastest setting,"
        f" {setting_label(baseline_of(workload.curve.points))} MHz."
        for workload in sweep.workloads
        if MAXN not in workload.curve.points
    ]


def mean_regret_text(results: Sequence[Replayed]) -> str:
    """The mean regret in words; choices that keep no limit count, and the mean without them stands beside it."""
    kept = [r.regret_pct for r in results if r.feasible]
    text = f"mean regret {mean([r.regret_pct for r in results]):.2f} %"
    broken = len(results) - len(kept)
    if not broken:
        return text
    without = f"{mean(kept):.2f} %" if kept else "unknown: none keeps it"
    return f"{text} ({broken} of {len(results)} break the limit and count; without them {without})"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `wattune replay`."""
    parser.add_argument("sweep", nargs="+", type=Path, metavar="SWEEP", help="sweep CSVs, or folders of them")
    parser.add_argument("--policy", help=f"{', '.join(POLICIES)} (default: ffg, or the governor's)")
    parser.add_argument(
        "--governor", type=Path, metavar="PATH", help="the governor file of a tree, or the prior of probe"
    )
    parser.add_argument(
        "--objective",
        default="energy",
        metavar="NAME[:LIMIT=VALUE]",
        help="what is minimised: energy (default), edp, ed2p, time, energy:max_slowdown_pct=10, energy:deadline_s=3600,"
        " time:max_power_w=20, battery:battery_wh=50",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """`wattune replay`."""
    objective = parse_objective(args.objective)
    sweep = read_sweep(args.sweep)
    governor = None
    if args.governor is not None:
        governor = parse_governor(
            read_data(args.governor, "The governor file", "Fetch one with `wattune pull`.")
        )
    policy = args.policy or ("ffg" if governor is None else governor.policy)
    results = replay(sweep, policy, governor=governor, objective=objective)
    for sentence in [
        *sweep.warnings,
        *missing_features(sweep, policy),
        *unnamed_baselines(sweep, objective),
    ]:
        log.warning("%s", sentence)
    if args.json:
        sys.stdout.write(json.dumps([result.document() for result in results], indent=2) + "\n")
        return 0
    sys.stdout.write(
        (rendered(_blocks(results, sweep, policy), sys.stdout) or _plain(results, sweep, policy)) + "\n"
    )
    return 0


def _plain(results: Sequence[Replayed], sweep: Sweep, policy: str) -> str:
    """The results as text that scripts may cut into columns."""
    width = max(len(result.workload) for result in results)
    heading = "board  (probes, MHz)" if policy == "probe" else "board"
    lines = [
        f"{'workload':<{width}}  {'oracle':>7} {'chosen':>7} {'regret %':>9} {'saving %':>9} {'slowdown %':>11}  {heading}"
    ]
    for r in results:
        saving = "" if r.saving_pct is None else f"{r.saving_pct:.2f}"
        slowdown = "" if r.slowdown_pct is None else f"{r.slowdown_pct:.1f}"
        lines.append(
            f"{r.workload:<{width}}  {setting_label(r.oracle):>7} {setting_label(r.chosen):>7} {r.regret_pct:>9.2f}"
            f" {saving:>9} {slowdown:>11}  {r.board}"
            f"{'  (' + ', '.join(map(setting_label, r.probes)) + ')' if r.probes else ''}"
        )
    return "\n".join([*lines, *_limits(results), *_means(results, sweep, policy)])


def _limits(results: Sequence[Replayed]) -> list[str]:
    """What is to be said of limits and batteries."""
    lines = []
    for r in results:
        if not r.feasible:
            lines.append(f"{r.workload} ({r.board}): {r.reason}")
        if r.epochs is not None:
            lines.append(f"{r.workload} ({r.board}): the battery holds {r.epochs:.4g} units of this work")
    return lines


def _means(results: Sequence[Replayed], sweep: Sweep, policy: str) -> list[str]:
    """A sentence for each board."""
    lines = []
    for board in sweep.boards:
        mine = [r for r in results if r.board == board]
        savings = [r.saving_pct for r in mine if r.saving_pct is not None]
        against = f", mean saving {mean(savings):.2f} % against {MAXN} on {len(savings)}" if savings else ""
        lines.append(f"{board}: policy {policy}, {len(mine)} workloads, {mean_regret_text(mine)}{against}")
    return lines


def _blocks(results: Sequence[Replayed], sweep: Sweep, policy: str) -> list[Block]:
    """The same for a terminal."""
    columns = [
        Column("workload"), Column("oracle MHz", number=True), Column("chosen MHz", number=True), Column("regret %", number=True),
        Column("saving %", number=True), Column("slowdown %", number=True),
    ]  # fmt: skip
    if policy == "probe":
        columns += [Column("probed MHz", number=True), Column("steps", number=True)]
    if several := len(sweep.boards) > 1:
        columns.insert(1, Column("board"))
    rows = []
    for r in results:
        row = [
            r.workload, setting_label(r.oracle), setting_label(r.chosen), f"{r.regret_pct:.2f}",
            "unknown" if r.saving_pct is None else f"{r.saving_pct:.2f}",
            "unknown" if r.slowdown_pct is None else f"{r.slowdown_pct:+.1f}",
        ]  # fmt: skip
        if policy == "probe":
            row += [", ".join(map(setting_label, r.probes)), str(r.steps)]
        if several:
            row.insert(1, r.board)
        rows.append(row)
    said = {provenance_of(workload.rows) for workload in sweep.workloads}
    title = f"Policy {policy} on {', '.join(sweep.boards)}, {' and '.join(sorted(said))}; savings and slowdowns against {MAXN}"
    return [Table(columns, rows, title), "\n".join([*_limits(results), *_means(results, sweep, policy)])]
