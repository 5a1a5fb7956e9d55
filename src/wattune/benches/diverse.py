"""`wattune bench diverse`: on which kinds of work a governor pays, and on which one fixed clock is enough.

The workloads of ``conf/workloads/diverse.yaml`` are measured on the modelled board in each of its power modes, with noise; policies
are judged on its noise-free energy. Families are kept apart: whoever chooses for a family has learned from the others alone.
"""

from __future__ import annotations

import csv
import io
import logging
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattune.benches.probe import VIRTUAL_NOISE, probe_curve
from wattune.boards.virtual.board import VirtualBoard
from wattune.config import Config, compose, to_config
from wattune.core.curve import Point
from wattune.core.governor import Governor
from wattune.core.policies import Published, best_fixed_clock
from wattune.core.probe import DOUBT_ERRORS
from wattune.core.settings import MAXN, FrequencyTable, Setting
from wattune.core.stats import bootstrap_mean_ci95, mean, percentile
from wattune.io import read_text, sha256_of, write_json, write_text
from wattune.learning.export import train_governor, train_regret_governor
from wattune.learning.folds import folds
from wattune.learning.judge import noise_floor, steps_per_epoch, whole_run
from wattune.learning.regretsearch import RegretSpace
from wattune.learning.table import FeatureTable, WorkloadRows
from wattune.stages._tables import fill
from wattune.stages.features import measured_table
from wattune.stages.profile import board_of
from wattune.stages.train import regret_space, search_space
from wattune.workloads.diverse import SEED as DRAWN
from wattune.workloads.diverse import diverse, entries

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
PAGE, RESULT = Path("docs/diverse.md"), Path("docs/diverse.json")
EXPERIMENT = "diverse"
APART = "family"
RESAMPLES, SEED = 2000, 0
DECIMALS = 4

FFG_SHARE = 0.5
"""Bar: mean regret of mlg-regret+probe, as a share of FFG's in the same power mode."""

LOW_CLOCK = 0.9
"""MAXN clocks low where its mean clock is below this share of the mode's highest."""

WORST_SAVING_PCT = -0.5
"""Bar: no choice saves less than this."""

PROBING = "mlg-regret+probe"
POLICIES = {
    "maxn": "clocks unpinned",
    "ffg-board": "one fixed clock for all power modes, the nearest the mode has",
    "ffg": "one fixed clock for each power mode",
    "published": "the paper's printed rules",
    "mlg": "label tree, one for each power mode",
    "mlg-regret": "regret tree, one for each power mode, free to decline",
    PROBING: "the same, and where it declines the first steps of the run are a probe",
    "mlg-regret-tree": "the same, never declining and never probing",
    "oracle": "the best setting",
}
"""Policy -> what it is."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One policy's setting for one workload in one power mode, on the noise-free curve.

    Attributes:
        policy: a key of :data:`POLICIES`.
        setting: what it chose.
        regret_pct: against the best setting.
        saving_pct: against MAXN.
        slowdown_pct: against MAXN.
        declined: whether MAXN was left untouched because nobody knew better.
        probed_pct: energy of the run that went to probing, beyond the same steps at `setting`; None where nothing was probed.
    """

    policy: str
    setting: Setting
    regret_pct: float
    saving_pct: float
    slowdown_pct: float
    declined: bool = False
    probed_pct: float | None = None


@dataclass(frozen=True)
class Case:
    """A workload in a power mode, and what the policies chose for it."""

    row: WorkloadRows
    mode: str
    maxn_clock_share: float
    choices: Mapping[str, Choice]

    @property
    def clocks_low(self) -> bool:
        """Whether MAXN runs well below the mode's highest clock by itself."""
        return self.maxn_clock_share < LOW_CLOCK


@dataclass(frozen=True)
class Campaign:
    """What was measured in one power mode.

    Attributes:
        config: the experiment in that mode.
        table: the measurements.
        maxn_clock_share: workload -> mean clock under MAXN over the mode's highest.
    """

    config: Config
    table: FeatureTable
    maxn_clock_share: Mapping[str, float]


def measure(root: Path, mode: str, overrides: Sequence[str] = (), seed: int = DRAWN) -> Campaign:
    """Measure every workload of the experiment in a power mode.

    Args:
        root: repository root.
        mode: name of the mode.
        overrides: Hydra overrides, e.g. ``["sweep.repeats=1"]``.
        seed: another one than that of ``conf/workloads/diverse.yaml`` draws other shapes, and other noise.
    """
    document = compose(root / "conf", EXPERIMENT, [f"board.power_mode={mode}", *overrides])
    if seed != DRAWN:
        drawn = entries(diverse(seed=seed))
        document |= {"workloads": drawn, "workload_ids": list(drawn)}
        document["sweep"]["seed"] += seed
    return measure_config(to_config(document), root)


def measure_config(config: Config, root: Path) -> Campaign:
    """Measure every workload of `config` on its modelled board."""
    board = board_of(config, root)
    with tempfile.TemporaryDirectory(prefix="wattune-bench-") as folder:
        path = Path(folder) / "features.csv"
        table = measured_table(config, board, config.sweep, path, root)
        rows = list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))
    clocks: dict[str, list[float]] = {}
    for row in rows:
        if row["setting"] == MAXN:
            clocks.setdefault(row["workload"], []).append(float(row["gpu_mhz_mean"]))
    top = board.info.table.top
    return Campaign(config, table, {name: mean(values) / top for name, values in clocks.items()})


def _choice(policy: str, row: WorkloadRows, setting: Setting, *, declined: bool = False) -> Choice:
    setting = row.nearest(setting)
    return _of_run(policy, row, setting, row.judged.points[setting], declined=declined)


def _of_run(
    policy: str, row: WorkloadRows, setting: Setting, run: Point, *, declined: bool, probed: bool = False
) -> Choice:
    """A choice by what the whole run took."""
    curve = row.judged
    maxn, alone = curve.points[MAXN], curve.points[setting]
    assert run.time_s is not None  # the modelled board knows times
    assert maxn.time_s is not None
    return Choice(
        policy,
        setting,
        regret_pct=100.0 * (run.energy_j / curve.energy_j(curve.oracle) - 1.0),
        saving_pct=100.0 * (1.0 - run.energy_j / maxn.energy_j),
        slowdown_pct=100.0 * (run.time_s / maxn.time_s - 1.0),
        declined=declined,
        probed_pct=100.0 * (run.energy_j / alone.energy_j - 1.0) if probed else None,
    )


def probe_declined(governor: Governor, row: WorkloadRows, seed: str) -> Choice:
    """The first steps of a run as the probe, for work that the governor declined to name a clock for.

    The run is an epoch. It begins with MAXN untouched, for as many steps as a clock is measured for; then clocks are measured as
    everywhere (`core/probe.py`), each reading off by noise that the reader knows. The clock found is kept where it beats MAXN by
    more than noise explains, by the rule of `wattune run` (:meth:`wattune.core.probe.ProbeResult.shown_to_beat`). What all that
    takes is part of the run.

    Args:
        governor: whose leaf is the curve expected beforehand, where there is one.
        row: the workload.
        seed: same seed, same noise.
    """
    curve, steps = row.judged, steps_per_epoch(row)
    assert steps is not None  # the workloads of this set are jobs of a known data set
    noisy = random.Random(f"{seed}|{MAXN}")

    def left_alone() -> Point:
        return Point(curve.energy_j(MAXN) * math.exp(noisy.gauss(0.0, VIRTUAL_NOISE)))

    base = left_alone()
    result = probe_curve(
        curve,
        noise_rel=VIRTUAL_NOISE,
        seed=seed,
        unit_steps=steps,
        prior=governor.prior(row.features),
        known_noise_rel=VIRTUAL_NOISE,
    )
    kept, readings = result.shown_to_beat(base, left_alone)
    setting: Setting = MAXN if kept is None else kept
    before: tuple[Setting, ...] = (*[MAXN] * readings, *result.probes) if result.probes else ()
    share = result.steps / len(result.probes) / steps if result.probes else 0.0
    run = whole_run(curve, setting, before, share)
    return _of_run(PROBING, row, setting, run, declined=kept is None, probed=bool(before))


def _board_clock(campaigns: Sequence[Campaign], left_out: str) -> float:
    """The fixed clock of least mean relative energy over all modes; a mode without it stands with its nearest clock."""
    rows = [r for c in campaigns for r in c.table.workloads if r.features[APART] != left_out]
    clocks = sorted({clock for row in rows for clock in row.measured.clocks})
    return min(clocks, key=lambda clock: mean([row.measured.regret_pct(row.nearest(clock)) for row in rows]))


def judge_campaigns(campaigns: Sequence[Campaign]) -> list[Case]:
    """Every policy's choice for every workload, each family by those who learned from the others."""
    cases = []
    for campaign in campaigns:
        table, train = campaign.table, campaign.config.train
        clocks = FrequencyTable({clock for row in table.workloads for clock in row.measured.clocks})
        for out, others in folds(table.workloads, APART):
            ffg = best_fixed_clock([row.measured for row in others])
            ffg_board = _board_clock(campaigns, str(out[0].features[APART]))
            label = train_governor(table, others, search_space(train)).governor
            regret = train_regret_governor(table, others, regret_space(train)).governor
            log.info("%s: %s judged.", table.power_mode, out[0].features[APART])
            for row in out:
                decision = regret.decide(row.features)
                leaf = regret.tree.walk(regret.complete(row.features)[0])[0]
                settings: dict[str, Setting] = {
                    "maxn": MAXN,
                    "ffg-board": ffg_board,
                    "ffg": ffg,
                    "published": Published(clocks).choose(row.features),
                    "mlg": label.decide(row.features).setting,
                    "mlg-regret": decision.setting,
                    "mlg-regret-tree": leaf.setting,
                    "oracle": row.judged.oracle,
                }
                choices = {
                    name: _choice(name, row, s, declined=name == "mlg-regret" and decision.abstained)
                    for name, s in settings.items()
                }
                seed = f"{campaign.config.sweep.seed}|{table.power_mode}|{row.id}"
                choices[PROBING] = (
                    probe_declined(regret, row, seed)
                    if decision.abstained
                    else replace(choices["mlg-regret"], policy=PROBING)
                )
                share = campaign.maxn_clock_share[row.id]
                cases.append(Case(row, table.power_mode, share, choices))
    return cases


# --- what declining costs, what features and training workloads add ---------------------------------------------------

CAUTION = ((0.9, 1.5), (0.9, 3.0), (0.95, 1.5), (0.95, 3.0), (0.98, 1.5), (0.98, 3.0))
"""Conformal level of the leaves' intervals, and factor outside the training range, at which the governor declines."""

OTHER_DRAW = 2
"""Seed of the draw on which the rule is checked again: other shapes of the same models, measured with other noise."""

SHAPE_FEATURES = ("layers", "hidden", "seq_len", "batch_size", "method", "precision")
"""What is known of a job without counting operations."""

TRAINING_SIZES, DRAWS = (5, 10, 20, 40, 80, 160), 4
ONE_MODE = "MAXN"
"""Features and training sizes are tried in this mode alone."""


def _trees(
    campaign: Campaign, space: RegretSpace, size: int | None = None, draw: int = 0
) -> Iterator[tuple[WorkloadRows, Governor]]:
    """Every workload with the governor of the other families, or of `size` workloads drawn from them."""
    for out, others in folds(campaign.table.workloads, APART):
        rows = others
        if size is not None:
            rng = random.Random(f"{SEED}|{draw}|{out[0].features[APART]}")
            rows = tuple(rng.sample(others, min(size, len(others))))
        governor = train_regret_governor(campaign.table, rows, space).governor
        for row in out:
            yield row, governor


def _one_caution(campaign: Campaign) -> RegretSpace:
    """The campaign's space for trees that never decline: how easily they would need not be chosen."""
    space = regret_space(campaign.config.train)
    return space.with_caution(*space.cautions[0])


def _tree_regret_pct(row: WorkloadRows, governor: Governor) -> float:
    leaf = governor.tree.walk(governor.complete(row.features)[0])[0]
    return row.judged.regret_pct(row.nearest(leaf.setting))


def caution(
    campaigns: Sequence[Campaign], settings: Sequence[tuple[float, float]] = CAUTION
) -> list[dict[str, Any]]:
    """What `mlg-regret` loses and risks as it declines more easily, over all modes."""
    found = []
    for level, beyond in settings:
        regrets, savings, declined = [], [], 0
        for campaign in campaigns:
            space = regret_space(campaign.config.train).with_caution(level, beyond)
            for row, governor in _trees(campaign, space):
                decision = governor.decide(row.features)
                choice = _choice("mlg-regret", row, decision.setting)
                regrets.append(choice.regret_pct)
                savings.append(choice.saving_pct)
                declined += decision.abstained
        found.append(
            {
                "level": level,
                "beyond": beyond,
                "mean_regret_pct": _rounded(mean(regrets)),
                "declined": declined,
                "losses_beyond_half_pct": sum(s < WORST_SAVING_PCT for s in savings),
                "min_saving_pct": _rounded(min(savings)),
                "n": len(regrets),
            }
        )
    return found


def ablation(campaign: Campaign) -> list[dict[str, Any]]:
    """The tree's loss without one feature at a time, and with the shape of model and batch instead of operation counts."""
    space = _one_caution(campaign)
    variants = {"all": space.features}
    variants |= {f"without {f}": tuple(g for g in space.features if g != f) for f in space.features}
    variants |= {"utilisation alone": ("expected_util_pct",), "shape instead of counts": SHAPE_FEATURES}
    found = []
    for name, features in variants.items():
        regrets = [
            _tree_regret_pct(row, governor)
            for row, governor in _trees(campaign, replace(space, features=features))
        ]
        low, high = bootstrap_mean_ci95(regrets, resamples=RESAMPLES, seed=SEED)
        found.append(
            {
                "features": name,
                "mean_regret_pct": _rounded(mean(regrets)),
                "ci95": [_rounded(low), _rounded(high)],
            }
        )
    return found


def learning_curve(
    campaign: Campaign, sizes: Sequence[int] = TRAINING_SIZES, draws: int = DRAWS
) -> list[dict[str, Any]]:
    """The tree's loss against the number of training workloads, drawn from the other families."""
    space = _one_caution(campaign)
    found = []
    for size in sizes:
        runs = [
            mean([_tree_regret_pct(row, governor) for row, governor in _trees(campaign, space, size, draw)])
            for draw in range(draws)
        ]
        low, high = bootstrap_mean_ci95(runs, resamples=RESAMPLES, seed=SEED)
        found.append(
            {
                "n": size,
                "draws": draws,
                "mean_regret_pct": _rounded(mean(runs)),
                "ci95": [_rounded(low), _rounded(high)],
            }
        )
    return found


# --- figures ---------------------------------------------------------------------------------------------------------


def _bands(name: str, bounds: Sequence[float], unit: str) -> Callable[[Case], str]:
    """Kinds by bounds of a feature, e.g. ``batch 1-4``."""

    def kind(case: Case) -> str:
        value = float(case.row.features[name] or 0.0)
        low = max(b for b in bounds if b <= value)
        above = [b for b in bounds if b > value]
        return f"{low:g} and more {unit}" if not above else f"{low:g} to below {above[0]:g} {unit}"

    return kind


KINDS: dict[str, Callable[[Case], str]] = {
    "power mode": lambda case: case.mode,
    "MAXN by itself": lambda case: "clocks low" if case.clocks_low else "stays near the top",
    "family": lambda case: str(case.row.features["family"]),
    "method": lambda case: str(case.row.features["method"]),
    "precision": lambda case: str(case.row.features["precision"]),
    "batch": _bands("batch_size", (1, 4, 16, 64), "examples"),
    "length": _bands("seq_len", (16, 64, 256), "tokens"),
    "model": lambda case: str(case.row.size),
    "expected utilisation": _bands("expected_util_pct", (0, 50, 80, 95), "%"),
}
"""Ways to sort the cases, none of which looks at a result but MAXN's clock."""

PAYS, ENOUGH, COSTS = "a governor pays", "FFG is enough", "FFG is better"
MATTERS = 0.25
"""Points of mean regret below which a difference, however certain, is not worth a governor."""


def _rounded(value: float) -> float:
    return round(value, DECIMALS) + 0.0


def clustered(cases: Sequence[Case], value: Callable[[Case], float]) -> tuple[float, float, float]:
    """Mean over cases and its 95 % bootstrap interval; a workload's power modes are drawn together."""
    jobs: dict[str, tuple[float, int]] = {}
    for case in cases:
        total, count = jobs.get(case.row.id, (0.0, 0))
        jobs[case.row.id] = (total + value(case), count + 1)
    sums, rng, means = list(jobs.values()), random.Random(SEED), []
    for _ in range(RESAMPLES):
        drawn = rng.choices(sums, k=len(sums))
        means.append(sum(total for total, _ in drawn) / sum(count for _, count in drawn))
    return mean([value(case) for case in cases]), percentile(means, 2.5), percentile(means, 97.5)


def figures(cases: Sequence[Case], policy: str) -> dict[str, Any]:
    """The figures of one policy on some cases."""
    chosen = [case.choices[policy] for case in cases]
    regrets, savings = [c.regret_pct for c in chosen], [c.saving_pct for c in chosen]
    average, low, high = clustered(cases, lambda case: case.choices[policy].regret_pct)
    return {
        "mean_regret_pct": _rounded(average),
        "ci95": [_rounded(low), _rounded(high)],
        "p95_regret_pct": _rounded(percentile(regrets, 95.0)),
        "max_regret_pct": _rounded(max(regrets)),
        "mean_saving_pct": _rounded(mean(savings)),
        "min_saving_pct": _rounded(min(savings)),
        "losses_beyond_half_pct": sum(s < WORST_SAVING_PCT for s in savings),
        "mean_slowdown_pct": _rounded(mean([c.slowdown_pct for c in chosen])),
        "declined": sum(c.declined for c in chosen),
        "n": len(chosen),
    }


def against_ffg(cases: Sequence[Case], policy: str = "mlg-regret-tree") -> dict[str, Any]:
    """A governor's tree against FFG of the same mode, and what follows for this kind of work."""
    difference, low, high = clustered(
        cases, lambda case: case.choices[policy].regret_pct - case.choices["ffg"].regret_pct
    )
    verdict = (
        PAYS
        if high < 0 and difference <= -MATTERS
        else COSTS
        if low > 0 and difference >= MATTERS
        else ENOUGH
    )
    return {
        "difference_points": _rounded(difference),
        "ci95": [_rounded(low), _rounded(high)],
        "verdict": verdict,
    }


def probing(cases: Sequence[Case]) -> dict[str, Any]:
    """What became of the work that the governor declined, and what probing it took."""
    spent = [c.probed_pct for case in cases if (c := case.choices[PROBING]).probed_pct is not None]
    return {
        "noise_rel": VIRTUAL_NOISE,
        "standard_errors": DOUBT_ERRORS,
        "declined": sum(case.choices["mlg-regret"].declined for case in cases),
        "probed": len(spent),
        "kept": sum(
            case.choices["mlg-regret"].declined and not case.choices[PROBING].declined for case in cases
        ),
        "own_energy_pct": {"mean": _rounded(mean(spent)), "max": _rounded(max(spent))} if spent else None,
    }


def summarise(cases: Sequence[Case]) -> dict[str, Any]:
    """All figures: per policy, per power mode, per kind of work, and the bars."""
    low_clocked = [case for case in cases if case.clocks_low]
    overall = {policy: figures(cases, policy) for policy in POLICIES}
    kinds = {
        way: {
            kind: {
                "n": len(group),
                **{p: _rounded(mean([c.choices[p].regret_pct for c in group])) for p in SHOWN},
                "declined": sum(c.choices["mlg-regret"].declined for c in group),
                "min_saving_pct": _rounded(
                    min(c.choices[p].saving_pct for c in group for p in ("mlg-regret", PROBING))
                ),
                "against_ffg": against_ffg(group),
            }
            for kind in sorted({kind_of(case) for case in cases}, key=_natural)
            if (group := [case for case in cases if kind_of(case) == kind])
        }
        for way, kind_of in KINDS.items()
    }

    def share(policy: str) -> float:
        return float(overall[policy]["mean_regret_pct"] / overall["ffg"]["mean_regret_pct"])

    bars = [
        _bar(f"{PROBING}'s mean regret over FFG's", share(PROBING), "<=", FFG_SHARE),
        _bar("mlg-regret-tree's, never declining", share("mlg-regret-tree"), "<=", FFG_SHARE),
        _bar(f"worst saving of {PROBING}, %", overall[PROBING]["min_saving_pct"], ">=", WORST_SAVING_PCT),
        _bar(
            "worst saving of mlg-regret, %", overall["mlg-regret"]["min_saving_pct"], ">=", WORST_SAVING_PCT
        ),
    ]
    return {
        "policies": overall,
        "without_probe": {"share_of_ffg": _rounded(share("mlg-regret"))},
        "probe": probing(cases),
        "low_clocked": {policy: figures(low_clocked, policy) for policy in POLICIES} if low_clocked else None,
        "kinds": kinds,
        "bars": bars,
        "ok": all(bar["holds"] for bar in bars),
    }


SHOWN = ("ffg", "mlg", "mlg-regret-tree", "mlg-regret", PROBING)


def _natural(kind: str) -> tuple[float, str]:
    head = kind.split()[0]
    return (float(head), kind) if head.isdigit() else (-1.0, kind)


def _bar(what: str, value: float, comparison: str, bar: float) -> dict[str, Any]:
    holds = value <= bar if comparison == "<=" else value >= bar
    return {"what": what, "value": _rounded(value), "comparison": comparison, "bar": bar, "holds": holds}


OF_OTHER_DRAW = ("seed", "n_cases", "policies", "without_probe", "probe", "bars")
"""What is kept of the other draw's figures."""


def run(
    root: Path = Path(), modes: Sequence[str] = (), overrides: Sequence[str] = (), seed: int | None = None
) -> dict[str, Any]:
    """Measure, learn, judge.

    Args:
        root: repository root.
        modes: power modes; all of the board where empty.
        overrides: Hydra overrides.
        seed: judge the workloads that this seed draws, alone; None: those of ``conf/workloads/diverse.yaml`` with all studies,
            then those of `OTHER_DRAW`.

    Raises:
        InputError: not in the repository root.
    """

    def campaigns(seed: int) -> list[Campaign]:
        found = []
        for mode in tuple(modes) or tuple(VirtualBoard().file.power_modes):
            found.append(measure(root, mode, overrides, seed))
            log.info("Seed %d, %s: %d workloads measured.", seed, mode, len(found[-1].table.workloads))
        return found

    if seed is not None:
        return judged(campaigns(seed), seed)
    document = report(campaigns(DRAWN))
    other = judged(campaigns(OTHER_DRAW), OTHER_DRAW)
    document["other_draw"] = {key: other[key] for key in OF_OTHER_DRAW}
    document["ok"] = document["ok"] and other["ok"]
    return document


def judged(campaigns: Sequence[Campaign], seed: int) -> dict[str, Any]:
    """Policies and bars on what was measured in every mode of one draw."""
    board = VirtualBoard()
    cases = judge_campaigns(campaigns)
    floors = {c.table.power_mode: noise_floor(c.table.workloads)[0] for c in campaigns}
    return {
        "schema_version": SCHEMA_VERSION,
        "board": board.info.id,
        "provenance": board.info.provenance,
        "model_digest": digest(),
        "seed": seed,
        "power_modes": [c.table.power_mode for c in campaigns],
        "n_workloads": len(campaigns[0].table.workloads),
        "n_cases": len(cases),
        "noise_floor_pct": {
            mode: None if floor is None else _rounded(floor) for mode, floor in floors.items()
        },
        **summarise(cases),
    }


def report(campaigns: Sequence[Campaign]) -> dict[str, Any]:
    """The document ``docs/diverse.json``, of what was measured in every mode, less the other draw."""
    one = next((c for c in campaigns if c.table.power_mode == ONE_MODE), campaigns[0])
    return {
        **judged(campaigns, DRAWN),
        "caution": caution(campaigns),
        "ablation": ablation(one),
        "learning_curve": learning_curve(one),
    }


def digest() -> str:
    """Digest of what the figures rest on: the board and the workloads. The page must be made anew when it changes."""
    jobs = [*diverse(), *diverse(seed=OTHER_DRAW)]
    return sha256_of([VirtualBoard().info.digest, [job.id for job in jobs]])


def tables(document: Mapping[str, Any]) -> dict[str, str]:
    """The tables of the page, by the name of their place."""
    head = (
        "| policy | mean regret %, 95 % interval | p95 | max | mean saving % | worst | loses more than 0.5 % |"
        " mean slowdown % | declined |"
    )
    rule = "|---|---|---|---|---|---|---|---|---|"

    def policies(figures_of: Mapping[str, Any]) -> list[str]:
        lines = [head, rule]
        for name in POLICIES:
            f = figures_of[name]
            low, high = f["ci95"]
            lines.append(
                f"| {name} | {f['mean_regret_pct']:.2f} [{low:.2f}, {high:.2f}] | {f['p95_regret_pct']:.1f}"
                f" | {f['max_regret_pct']:.1f} | {f['mean_saving_pct']:.1f} | {_tenths(f['min_saving_pct'])}"
                f" | {f['losses_beyond_half_pct']} of {f['n']} | {f['mean_slowdown_pct']:.0f} | {f['declined']} |"
            )
        return lines

    floors = ", ".join(
        f"{mode} {document['noise_floor_pct'][mode]:.2f} %" for mode in document["power_modes"]
    )
    overall = [
        f"{document['provenance'].capitalize()} (`{document['board']}`): {document['n_workloads']} workloads in"
        f" {len(document['power_modes'])} power modes, {document['n_cases']} cases; families kept apart. Noise floor: {floors}.",
        "",
        *policies(document["policies"]),
    ]
    kinds = [
        f"| kind of work | cases | {' | '.join(f'{p} %' for p in SHOWN)} | tree minus FFG, points | so | declined | worst saving % |",
        f"|{'---|' * (len(SHOWN) + 6)}",
    ]
    for way in KINDS:
        for kind, g in sorted(document["kinds"][way].items(), key=lambda pair: _natural(pair[0])):
            d = g["against_ffg"]
            kinds.append(
                f"| {way}: {kind} | {g['n']} | {' | '.join(format(g[p], '.2f') for p in SHOWN)}"
                f" | {d['difference_points']:+.2f} [{d['ci95'][0]:+.2f}, {d['ci95'][1]:+.2f}] | {d['verdict']}"
                f" | {g['declined']} | {_tenths(g['min_saving_pct'])} |"
            )
    low = document["low_clocked"]
    bars = [*_bars(document["bars"]), *_probing(document)]
    found = {
        "overall": "\n".join(overall),
        "kinds": "\n".join(kinds),
        "low-clocked": "\n".join(policies(low)) if low else "No workload of this set lets MAXN clock low.",
        "bars": "\n".join(bars),
    }
    other = document.get("other_draw")
    if other is not None:
        found["other-draw"] = "\n".join(
            [
                f"Seed {other['seed']}, {other['n_cases']} cases.",
                "",
                *policies(other["policies"]),
                "",
                *_bars(other["bars"]),
                *_probing(other),
            ]
        )
    if "caution" not in document:
        return found
    caution_lines = [
        "| level | beyond | mean regret % | declined | loses more than 0.5 % | worst saving % |",
        "|---|---|---|---|---|---|",
        *(
            f"| {c['level']:g} | {c['beyond']:g} | {c['mean_regret_pct']:.2f} | {c['declined']} of {c['n']}"
            f" | {c['losses_beyond_half_pct']} | {c['min_saving_pct']:.1f} |"
            for c in document["caution"]
        ),
    ]
    return found | {
        "caution": "\n".join(caution_lines),
        "ablation": "\n".join(_losses("features", "features", document["ablation"])),
        "learning-curve": "\n".join(_losses("training workloads", "n", document["learning_curve"])),
    }


def _tenths(value: float) -> str:
    return f"{round(value, 1) + 0.0:.1f}"  # no -0.0


def _probing(document: Mapping[str, Any]) -> list[str]:
    """What is held against no bar, in sentences: the governor without a probe, and what became of what it declined."""
    probe, own = document["probe"], document["probe"]["own_energy_pct"]
    cost = (
        ""
        if own is None
        else f"; probing took {own['mean']:.2f} % of the run's energy, {own['max']:.2f} % at most"
    )
    return [
        "",
        f"Without a probe mlg-regret's mean regret is {document['without_probe']['share_of_ffg']:.2f} of FFG's.",
        f"It declined {probe['declined']} cases; {probe['probed']} of them were probed and {probe['kept']} got a clock{cost}.",
    ]


def _bars(bars: Sequence[Mapping[str, Any]]) -> list[str]:
    return ["| bar | value | needed | holds |", "|---|---|---|---|"] + [
        f"| {b['what']} | {b['value']:.2f} | {b['comparison']} {b['bar']:g} | {'yes' if b['holds'] else '**no**'} |"
        for b in bars
    ]


def _losses(words: str, key: str, entries: Sequence[Mapping[str, Any]]) -> list[str]:
    return [
        f"| {words} | mean regret of the tree %, 95 % interval |",
        "|---|---|",
        *(
            f"| {e[key]} | {e['mean_regret_pct']:.2f} [{e['ci95'][0]:.2f}, {e['ci95'][1]:.2f}] |"
            for e in entries
        ),
    ]


def text(document: Mapping[str, Any]) -> str:
    """The result for people."""
    return "\n\n".join(f"{name}\n{body}" for name, body in tables(document).items())


def write(document: dict[str, Any], root: Path = Path()) -> None:
    """Save the document and refresh the page's tables.

    Raises:
        InputError: the page is missing or has no marks.
    """
    page = fill(read_text(root / PAGE, "The page"), tables(document), str(PAGE))
    write_json(root / RESULT, document)
    write_text(root / PAGE, page)
