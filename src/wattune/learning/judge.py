"""Judging policies on workloads they have not seen, and the figures that sum it up."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattune.core.compare import compare_all
from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.governor import Governor
from wattune.core.policies import POLICY_ORDER, Fixed, Governed, Maxn, Policy, Published, best_fixed_clock
from wattune.core.probe import Probe
from wattune.core.settings import FrequencyTable, Setting, setting_label
from wattune.core.stats import bootstrap_mean_ci95, mean, percentile
from wattune.learning.curvemodel import CurveModel
from wattune.learning.export import train_governor, train_regret_governor
from wattune.learning.loocv import SearchSpace
from wattune.learning.regretsearch import RegretSpace
from wattune.learning.table import (
    FeatureTable,
    WorkloadRows,
    baseline_of,
    mean_curve,
    repeat_noise_rel,
    rows_digest,
)
from wattune.workloads.catalogue import TASKS

log = logging.getLogger(__name__)

METRICS_SCHEMA_VERSION = 1
DECIMALS = 6
SIZES = ("large", "small")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one policy's choice costs on one workload, on its judged curve.

    Attributes:
        policy: name of the policy.
        row: the workload.
        setting: the measured setting judged: the policy's own, or the nearest measured clock.
        energy_j: energy there, joules; with what the policy spent on measuring, where it measures.
        time_s: time there, seconds, likewise; None where unknown.
        saving_pct: against MAXN; None without that baseline.
        regret_pct: against the oracle.
        slowdown_pct: against MAXN; None without that baseline or without times.
        oracle_setting: the setting of least judged energy.
    """

    policy: str
    row: WorkloadRows
    setting: Setting
    energy_j: float
    time_s: float | None
    saving_pct: float | None
    regret_pct: float
    slowdown_pct: float | None
    oracle_setting: Setting


@dataclass(frozen=True)
class Judgement:
    """All outcomes and where they come from.

    Attributes:
        table: the table judged.
        split: ``held_out`` or ``leave_one_out``.
        judged: the workloads judged.
        n_training: workloads the shipped governor learned from.
        baseline: ``maxn`` where every judged workload has that row, else None.
        outcomes: policy by policy in the order of tables, each in the order of `judged`.
        ffg_mhz: the best fixed clock of the training workloads; None where they share no clock.
        governor: the shipped governor.
    """

    table: FeatureTable
    split: str
    judged: tuple[WorkloadRows, ...]
    n_training: int
    baseline: str | None
    outcomes: tuple[Outcome, ...]
    ffg_mhz: float | None
    governor: Governor

    @property
    def policies(self) -> tuple[str, ...]:
        """Names of the policies judged, in the order of tables."""
        return tuple(dict.fromkeys(outcome.policy for outcome in self.outcomes))

    def of(self, policy: str) -> tuple[Outcome, ...]:
        """The outcomes of one policy, in the order of `judged`."""
        return tuple(outcome for outcome in self.outcomes if outcome.policy == policy)


def fixed_clock(rows: Sequence[WorkloadRows]) -> float | None:
    """FFG's clock on these rows; None where they share no clock."""
    try:
        return best_fixed_clock([row.measured for row in rows])
    except ValueError:
        log.warning("The training workloads share no clock: the best fixed clock (ffg) is left out.")
        return None


def _policies(
    rows: Sequence[WorkloadRows], governors: Sequence[Governor], *, published_util: bool
) -> list[Policy]:
    table = FrequencyTable({clock for row in rows for clock in row.measured.clocks})
    ffg = fixed_clock(rows)
    return [
        Maxn(),
        *([] if ffg is None else [Fixed(ffg)]),
        Published(table),
        *([Published(table, with_util=True)] if published_util else []),
        *(Governed(governor) for governor in governors),
    ]


def whole_run(curve: EnergyCurve, setting: Setting, before: Sequence[Setting], share: float) -> Point:
    """Energy and time of a run at a setting, of which some was spent at others before that one was found.

    Args:
        curve: energy and time of the whole run at every setting.
        setting: what the rest of it runs at.
        before: the settings of the first steps.
        share: part of the run spent at each of these.
    """
    here, there = curve.points[setting], [curve.points[s] for s in before]
    times = [p.time_s for p in there if p.time_s is not None]
    time_s = None
    if here.time_s is not None and len(times) == len(there):
        time_s = here.time_s + share * sum(t - here.time_s for t in times)
    return Point(here.energy_j + share * sum(p.energy_j - here.energy_j for p in there), time_s)


def _outcome(
    policy: str, row: WorkloadRows, setting: Setting, baseline: str | None, spent: Point | None = None
) -> Outcome:
    """The outcome of a setting; `spent` is what the run took where some of it went to finding the setting."""
    curve, point = row.judged, row.judged.points[setting]
    if spent is not None:
        point = spent
        curve = EnergyCurve({**curve.points, setting: point})
    return Outcome(
        policy=policy,
        row=row,
        setting=setting,
        energy_j=point.energy_j,
        time_s=point.time_s,
        saving_pct=curve.saving_pct(setting) if baseline else None,
        regret_pct=100.0 * (point.energy_j / row.judged.energy_j(row.judged.oracle) - 1.0),
        slowdown_pct=curve.slowdown_pct(setting) if baseline else None,
        oracle_setting=row.judged.oracle,
    )


def steps_per_epoch(row: WorkloadRows) -> int | None:
    """Training steps of an epoch of a workload of the catalogue; None of any other."""
    batch = row.features.get("batch_size")
    if row.task not in TASKS or not isinstance(batch, float) or batch < 1:
        return None
    return math.ceil(TASKS[row.task].rows / batch)


def probed(
    row: WorkloadRows, governor: Governor, noise_rel: float | None, baseline: str | None
) -> tuple[Outcome, ...]:
    """The policy `probe` on one workload, which an epoch of it has to pay for; empty where it has no pinned clock to read.

    A clock that is measured answers with the workload's first repeat, one window as on a board; the steps spent there are counted at
    what they cost on the judged curve. Where the length of an epoch is unknown they cannot be.

    Args:
        row: the workload.
        governor: whose leaf is the curve expected beforehand.
        noise_rel: what is known of the noise of a reading, from the training workloads' repeats.
        baseline: as for every policy.
    """
    seen, steps = row.repeats[0], steps_per_epoch(row)
    clocks = [mhz for mhz in seen.clocks if mhz in row.judged.points]
    if not clocks:
        return ()

    def measure(mhz: float) -> tuple[float, float | None]:
        point = seen.points[mhz]
        return point.energy_j, point.time_s

    expected = governor.expected_curve(row.features)
    prior = expected if expected is not None and expected.clocks else None
    result = Probe(clocks, measure, prior=prior, noise_rel=noise_rel, unit_steps=steps, run_steps=steps).run()
    spent = None
    if steps and result.probes:
        share = result.steps / len(result.probes) / steps
        spent = whole_run(row.judged, result.chosen, result.probes, share)
    return (_outcome("probe", row, result.chosen, baseline, spent),)


def judge(
    table: FeatureTable,
    governor: Governor,
    space: SearchSpace,
    *,
    published_util: bool = False,
    regret: tuple[Governor, RegretSpace] | None = None,
    ships: str | None = None,
    curve: Sequence[str] | None = None,
    probe: bool = False,
) -> Judgement:
    """Let every policy choose on workloads it has not learned from.

    With held-out workloads the policies learn from the training rows; the governors given are those.
    Without, every workload is judged once by policies that learned everything (best fixed clock, labels,
    medians, hyper-parameters) from the other workloads. A chosen clock that a workload was not measured at
    is judged at its nearest measured clock. Policy `maxn` is left out where a judged workload has no MAXN
    row.

    Args:
        table: the feature table.
        governor: `mlg`, trained on ``table.training``.
        space: the search repeated inside every leave-one-out fold.
        published_util: also judge the printed rules with the utilisation rule.
        regret: also judge `mlg-regret`: its governor, trained on the same rows, and its search.
        ships: policy of the governor that ships; default: `governor`'s.
        curve: also judge `curve`, with these features.
        probe: also judge `probe`, with the leaves of the governor that ships as priors.

    Raises:
        InputError: the governor is of another board or was trained on other rows, or leave-one-out was
            asked of a single workload.
    """
    governors = [governor, *([regret[0]] if regret else [])]
    learned_from = {(g.board, g.document["training"].get("fingerprint")) for g in governors}
    if learned_from != {(table.board, rows_digest(table.training, judged=False))}:
        raise InputError(
            "The governor was not trained on this feature table.",
            f"One trained on its {len(table.training)} training rows of board {table.board} was expected.",
            "Run `dvc repro train`.",
        )
    shipped = next((g for g in governors if g.policy == ships), None) if ships else governor
    if shipped is None:
        raise InputError(
            f"The governor that ships is one of policy '{ships}', which was not trained.",
            f"One of {', '.join(g.policy for g in governors)} was expected.",
            "Run `dvc repro train`.",
        )
    rows = table.held_out or table.workloads
    baseline = baseline_of(rows)
    chosen: dict[str, list[Outcome]] = {name: [] for name in POLICY_ORDER}

    def more(learned_from: Sequence[WorkloadRows]) -> list[Policy]:
        return [] if curve is None else [CurveModel(learned_from, curve)]

    def let_probe(told: Sequence[Governor], learned_from: Sequence[WorkloadRows], row: WorkloadRows) -> None:
        leaves = next(g for g in told if g.policy == shipped.policy)
        chosen["probe"] += probed(row, leaves, repeat_noise_rel(learned_from), baseline)

    def let_choose(policies: Sequence[Policy], row: WorkloadRows) -> None:
        for policy in policies:
            if policy.name != "maxn" or baseline:
                setting = row.nearest(policy.choose(row.features))
                chosen[policy.name].append(_outcome(policy.name, row, setting, baseline))
        chosen["oracle"].append(_outcome("oracle", row, row.judged.oracle, baseline))

    if table.held_out:
        policies = [
            *_policies(table.training, governors, published_util=published_util),
            *more(table.training),
        ]
        for row in rows:
            let_choose(policies, row)
            if probe:
                let_probe(governors, table.training, row)
    else:
        if len(rows) < 2:
            raise InputError(
                f"The data hold one workload only ({rows[0].id}).",
                "Leave-one-out needs at least two, or a column `part` naming held-out workloads.",
                "Add sweeps of other workloads.",
            )
        for row in rows:
            others = [other for other in rows if other is not row]
            learned = [train_governor(table, others, space, objective=governor.objective).governor]
            if regret:
                told = train_regret_governor(table, others, regret[1], objective=governor.objective)
                learned.append(told.governor)
            let_choose([*_policies(others, learned, published_util=published_util), *more(others)], row)
            if probe:
                let_probe(learned, others, row)
    complete = [name for name in POLICY_ORDER if len(chosen[name]) == len(rows)]
    return Judgement(
        table=table,
        split="held_out" if table.held_out else "leave_one_out",
        judged=rows,
        n_training=len(table.training),
        baseline=baseline,
        outcomes=tuple(outcome for name in complete for outcome in chosen[name]),
        ffg_mhz=fixed_clock(table.training),
        governor=shipped,
    )


def noise_floor(rows: Sequence[WorkloadRows]) -> tuple[float | None, str]:
    """Mean regret of a policy that picks each workload's measured optimum: what noise alone costs, percent.

    Returns:
        The floor, or None where it cannot be known, and how it was found or why it was not.
    """
    if all(row.noise_free is not None for row in rows):
        regrets = [row.judged.regret_pct(row.measured.oracle) for row in rows]
        return mean(regrets), "setting of least measured energy, judged on the noise-free energy"
    regrets = []
    for row in rows:
        for index, left_out in enumerate(row.repeats):
            others = [curve for number, curve in enumerate(row.repeats) if number != index]
            if not others:
                continue
            seen = mean_curve(others)
            shared = [s for s in seen.settings if s in left_out.points]
            if len(shared) > 1:
                pick = EnergyCurve({s: seen.points[s] for s in shared}).oracle
                regrets.append(EnergyCurve({s: left_out.points[s] for s in shared}).regret_pct(pick))
    if not regrets:
        return None, "unknown: no setting was measured more than once"
    return mean(regrets), "setting of least energy over the other repeats, judged on the repeat left out"


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DECIMALS) + 0.0  # no negative zero


def _known(values: Sequence[float | None]) -> list[float] | None:
    known = [v for v in values if v is not None]
    return known if len(known) == len(values) else None


def summary(outcomes: Sequence[Outcome], *, resamples: int, seed: int) -> dict[str, Any]:
    """The figures of one policy on one group of workloads; None where there is no baseline or no time."""

    def interval(values: list[float] | None) -> list[float | None] | None:
        if values is None:
            return None
        return [_rounded(bound) for bound in bootstrap_mean_ci95(values, resamples=resamples, seed=seed)]

    savings = _known([o.saving_pct for o in outcomes])
    slowdowns = _known([o.slowdown_pct for o in outcomes])
    regrets = [o.regret_pct for o in outcomes]
    return {
        "mean_saving_pct": _rounded(mean(savings)) if savings else None,
        "mean_saving_ci95": interval(savings),
        "max_saving_pct": _rounded(max(savings)) if savings else None,
        "min_saving_pct": _rounded(min(savings)) if savings else None,
        "mean_regret_pct": _rounded(mean(regrets)),
        "mean_regret_ci95": interval(regrets),
        "p95_regret_pct": _rounded(percentile(regrets, 95.0)),
        "max_regret_pct": _rounded(max(regrets)),
        "mean_slowdown_pct": _rounded(mean(slowdowns)) if slowdowns else None,
        "mean_slowdown_ci95": interval(slowdowns),
        "n": len(outcomes),
    }


def pairs(judgement: Judgement, *, resamples: int, seed: int) -> list[dict[str, Any]]:
    """Every policy against every other on the same workloads, by energy lost: paired bootstrap over workloads."""
    losses = {name: [o.regret_pct for o in judgement.of(name)] for name in judgement.policies}
    return [
        {
            "policy": c.policy,
            "against": c.against,
            "regret_difference_points": _rounded(c.difference),
            "ci95": [_rounded(bound) for bound in c.ci95],
            "verdict": c.verdict,
        }
        for c in compare_all(losses, resamples=resamples, seed=seed)
    ]


def summarise(judgement: Judgement, *, resamples: int, seed: int) -> dict[str, Any]:
    """The document ``reports/evaluate/metrics.json``.

    Args:
        judgement: the outcomes.
        resamples: bootstrap resamples of every interval.
        seed: their seed.
    """
    table = judgement.table
    floor, how = noise_floor(judgement.judged)
    document: dict[str, Any] = {
        "_meta": {
            "schema_version": METRICS_SCHEMA_VERSION,
            "board": table.board,
            "provenance": table.provenance,
            "power_mode": table.power_mode,
            "rails": table.rails,
            "objective": judgement.governor.objective,
            "baseline": judgement.baseline,
            "split": judgement.split,
            "judged_on": table.judged_on,
            "n_workloads": len(judgement.judged),
            "n_training": judgement.n_training,
            "held_out_digest": rows_digest(judgement.judged, judged=True),
            "noise_floor_pct": _rounded(floor),
            "noise_floor_how": how,
            "ffg_mhz": judgement.ffg_mhz,
            "governor_digest": judgement.governor.digest,
            "pairs": pairs(judgement, resamples=resamples, seed=seed),
        }
    }
    tasks = sorted({row.task for row in judgement.judged if row.task})
    for policy in judgement.policies:
        outcomes = judgement.of(policy)
        groups: dict[str, Any] = {"all": outcomes}
        groups |= {size: tuple(o for o in outcomes if o.row.size == size) for size in SIZES}
        by_task = {task: tuple(o for o in outcomes if o.row.task == task) for task in tasks}
        document[policy] = {
            name: summary(group, resamples=resamples, seed=seed) for name, group in groups.items() if group
        }
        document[policy]["tasks"] = {
            task: summary(group, resamples=resamples, seed=seed) for task, group in by_task.items()
        }
    return document


POLICY_COLUMNS = (
    *(
        "policy",
        "board",
        "provenance",
        "split",
        "workload",
        "model",
        "task",
        "size",
        "setting",
        "energy_j",
        "time_s",
    ),
    *("saving_pct", "regret_pct", "slowdown_pct", "oracle_setting"),
)
CURVE_COLUMNS = (
    "workload",
    "model",
    "task",
    "setting",
    "gpu_mhz",
    "energy_j",
    "time_s",
    "power_w",
    "rel_energy",
)
CONFUSION_COLUMNS = ("workload", "actual", "predicted")


def policy_rows(judgement: Judgement) -> list[Mapping[str, Any]]:
    """Rows of ``policies.csv``: one per policy and workload."""
    return [
        {
            "policy": o.policy,
            "board": judgement.table.board,
            "provenance": judgement.table.provenance,
            "split": judgement.split,
            "workload": o.row.id,
            "model": o.row.model,
            "task": o.row.task,
            "size": o.row.size,
            "setting": setting_label(o.setting),
            "energy_j": _rounded(o.energy_j),
            "time_s": _rounded(o.time_s),
            "saving_pct": _rounded(o.saving_pct),
            "regret_pct": _rounded(o.regret_pct),
            "slowdown_pct": _rounded(o.slowdown_pct),
            "oracle_setting": setting_label(o.oracle_setting),
        }
        for o in judgement.outcomes
    ]


def curve_rows(judgement: Judgement) -> list[Mapping[str, Any]]:
    """Rows of ``curves.csv``: the judged curves of the judged workloads."""
    return [
        {
            "workload": row.id,
            "model": row.model,
            "task": row.task,
            "setting": setting_label(setting),
            "gpu_mhz": None if isinstance(setting, str) else setting_label(setting),
            "energy_j": _rounded(row.judged.points[setting].energy_j),
            "time_s": _rounded(row.judged.points[setting].time_s),
            "power_w": _rounded(row.judged_power_w(setting)),
            "rel_energy": _rounded(row.judged.energy_j(setting) / row.judged.energy_j(row.judged.oracle)),
        }
        for row in judgement.judged
        for setting in row.judged.settings
    ]


def confusion_rows(judgement: Judgement) -> list[Mapping[str, Any]]:
    """Rows of ``confusion.csv``: the pinned clock of least judged energy against the governor's choice."""
    return [
        {
            "workload": o.row.id,
            "actual": setting_label(o.row.judged.best_clock),
            "predicted": setting_label(o.setting),
        }
        for o in judgement.of(judgement.governor.policy)
    ]
