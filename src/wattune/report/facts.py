"""What the page is made of: the files of the pipeline, read and held together, with nothing made up between them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError, IntegrityError
from wattune.core.features import FEATURES, FeatureValue
from wattune.core.governor import Governor
from wattune.core.settings import MAXN, Setting, parse_setting
from wattune.core.stats import mean
from wattune.io import read_json, read_text
from wattune.report.marks import in_order

CURVES = Path("reports/evaluate/curves.csv")
VALIDATION = Path("reports/validate/validation.json")
PROFILES = Path("data/profiles")
RECORDED = "recorded"

FLAT_PCT = 1.0
"""Settings within this much of the optimum are called flat."""

CERTIFICATE_PARTS = ("window", "filter", "rails", "sets", "gaps", "own_cost", "warnings")
"""What the page reads of a certificate."""

_HINT = "Run `dvc repro`."


@dataclass(frozen=True, slots=True)
class Outcome:
    """One row of ``policies.csv``.

    Attributes:
        setting: the setting judged.
        saving_pct: against MAXN; None without that baseline.
        regret_pct: against the oracle.
        slowdown_pct: against MAXN; None without that baseline or without times.
    """

    setting: Setting
    saving_pct: float | None
    regret_pct: float
    slowdown_pct: float | None
    time_s: float | None


@dataclass(frozen=True)
class Work:
    """One workload judged.

    Attributes:
        id: workload id; `model`, `task`, `size` None where unknown.
        model: see `id`.
        task: see `id`.
        size: see `id`.
        features: feature -> value, None where unknown; `notes` are columns that describe it and are no features.
        notes: see `features`.
        curve: judged energy and time at every setting.
        power_w: mean power at every setting; None where unknown.
        outcomes: policy -> what its choice costs.
    """

    id: str
    model: str | None
    task: str | None
    size: str | None
    features: Mapping[str, FeatureValue]
    notes: Mapping[str, str]
    curve: EnergyCurve
    power_w: Mapping[Setting, float | None]
    outcomes: Mapping[str, Outcome]

    @property
    def flat(self) -> tuple[Setting, ...]:
        """The settings within 1 % of the optimum."""
        return tuple(s for s in self.curve.settings if self.curve.regret_pct(s) <= FLAT_PCT)


@dataclass(frozen=True)
class Evidence:
    """What was measured, as the cells say.

    Attributes:
        cells: cells read; 0 where the data come from a recording.
        repeats: measurements in them.
        certificates: of every measurement that has one.
        why_none: one sentence where there are no certificates.
    """

    cells: int
    repeats: int
    certificates: tuple[Mapping[str, Any], ...]
    why_none: str = ""


@dataclass(frozen=True)
class Facts:
    """Everything the page shows.

    Attributes:
        governors: the one that ships first.
        meta: ``_meta`` of ``metrics.json``.
        metrics: the rest of it, in the order of policies.
        decision: the gate's.
        works: the workloads judged, in the order of ``policies.csv``.
        validation: ``validation.json``; None where the modelled boards were not validated.
        evidence: what the cells say.
    """

    governors: tuple[Governor, ...]
    meta: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Any]]
    decision: Mapping[str, Any]
    works: tuple[Work, ...]
    validation: Mapping[str, Any] | None
    evidence: Evidence

    @property
    def shipped(self) -> str:
        """The policy that ships."""
        return self.governors[0].policy

    @property
    def policies(self) -> tuple[str, ...]:
        """The policies judged, in the order of tables."""
        return tuple(self.metrics)

    @property
    def baseline(self) -> bool:
        """Whether savings against MAXN are known."""
        return self.meta["baseline"] == MAXN

    @property
    def has_times(self) -> bool:
        """Whether every judged setting has a time."""
        return all(p.time_s is not None for work in self.works for p in work.curve.points.values())

    @property
    def fixed_mhz(self) -> float | None:
        """The best fixed clock; None where there is none."""
        return self.meta.get("ffg_mhz")

    def groups(self) -> list[str]:
        """Groups of workloads that every policy has figures for: all, sizes, then tasks as ``task NAME``."""
        every = list(self.metrics.values())
        sizes = [name for name in every[0] if name != "tasks" and all(name in groups for groups in every)]
        tasks = [
            t for t in every[0].get("tasks", {}) if all(t in groups.get("tasks", {}) for groups in every)
        ]
        return sizes + ([f"task {task}" for task in tasks] if len(tasks) > 1 else [])

    def result(self, policy: str, group: str) -> Mapping[str, Any]:
        """The figures of a policy on a group of :meth:`groups`."""
        groups = self.metrics[policy]
        result: Mapping[str, Any] = (
            groups["tasks"][group.removeprefix("task ")] if group.startswith("task ") else groups[group]
        )
        return result

    def pair(self, policy: str, against: str) -> Mapping[str, Any] | None:
        """The comparison of two policies, as it stands in the metrics; None where it was not made."""
        found: Mapping[str, Any] | None = next(
            (p for p in self.meta.get("pairs", ()) if (p["policy"], p["against"]) == (policy, against)), None
        )
        return found

    def clock_means(self) -> list[tuple[Setting, float, float]]:
        """What one setting for all workloads would cost: setting, mean slowdown, mean saving, percent.

        Without a baseline: time above each workload's fastest setting, and energy above its optimum. Over the settings that
        every workload has; empty without times.
        """
        if not self.has_times:
            return []
        shared = [s for s in self.works[0].curve.settings if all(s in w.curve.points for w in self.works)]
        made = []
        for setting in shared:
            costs = [cost(work, setting, baseline=self.baseline) for work in self.works]
            made.append((setting, mean([c[0] for c in costs]), mean([c[1] for c in costs])))
        return made


def cost(work: Work, setting: Setting, *, baseline: bool) -> tuple[float, float]:
    """Time and energy of a setting, percent: slowdown and saving against MAXN, or above the fastest and the best setting."""
    curve = work.curve
    if baseline:
        return curve.slowdown_pct(setting) or 0.0, curve.saving_pct(setting) or 0.0
    here = curve.points[setting].time_s or 0.0
    fastest = min(p.time_s for p in curve.points.values() if p.time_s is not None)
    return 100.0 * (here / fastest - 1.0), curve.regret_pct(setting)


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the points that no other one beats in both time and energy (both: less is better), by time."""
    front: list[int] = []
    for i in sorted(range(len(points)), key=lambda i: points[i]):
        if not front or points[i][1] < points[front[-1]][1]:
            front.append(i)
    return front


def _rows(path: Path, what: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(read_text(path, what, _HINT))))


def _known(text: str) -> float | None:
    return float(text) if text else None


def _feature(name: str, text: str) -> FeatureValue:
    if FEATURES[name].kind == "category":
        return text or None
    return _known(text)


def read_works(
    root: Path, features_path: Path, policies: Sequence[Mapping[str, str]], names: Iterable[str]
) -> tuple[Work, ...]:
    """The judged workloads under `root`.

    Args:
        root: of the repository.
        features_path: the feature table, relative to it.
        policies: rows of ``policies.csv``.
        names: the policies that every workload must have.

    Raises:
        InputError: a file is missing or is not that table.
        IntegrityError: the files are about different workloads or policies.
    """
    described: dict[str, dict[str, str]] = {}
    for row in _rows(root / features_path, "The feature table"):
        described.setdefault(row["workload"], row)
    curves: dict[str, list[dict[str, str]]] = {}
    for row in _rows(root / CURVES, "The table of curves"):
        curves.setdefault(row["workload"], []).append(row)
    judged: dict[str, dict[str, Mapping[str, str]]] = {}
    for outcome in policies:
        judged.setdefault(outcome["workload"], {})[outcome["policy"]] = outcome
    if not judged or set(judged) != set(curves) or not set(judged) <= set(described):
        raise IntegrityError(
            "The reports and the feature table are about different workloads.",
            f"The same workloads in {CURVES}, policies.csv and {features_path} were expected.",
            _HINT,
        )
    if any(set(rows) != set(names) for rows in judged.values()):
        raise IntegrityError(
            "policies.csv and metrics.json are about different policies.",
            f"Every workload judged by {', '.join(names)} was expected.",
            _HINT,
        )
    try:
        return tuple(_work(name, rows, curves[name], described[name]) for name, rows in judged.items())
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"The reports of the evaluation cannot be used ({error!r}).", hint=_HINT) from error


def _work(
    name: str,
    outcomes: Mapping[str, Mapping[str, str]],
    curve: Sequence[Mapping[str, str]],
    described: Mapping[str, str],
) -> Work:
    first = curve[0]
    settings = [parse_setting(row["setting"]) for row in curve]
    return Work(
        id=name,
        model=first["model"] or None,
        task=first["task"] or None,
        size=next(iter(outcomes.values()))["size"] or None,
        features={feature: _feature(feature, described.get(feature, "")) for feature in FEATURES},
        notes={column: described.get(column, "") for column in ("part", "precision")},
        curve=EnergyCurve(
            {
                s: Point(float(r["energy_j"]), _known(r["time_s"]))
                for s, r in zip(settings, curve, strict=True)
            }
        ),
        power_w={s: _known(r["power_w"]) for s, r in zip(settings, curve, strict=True)},
        outcomes={
            policy: Outcome(
                parse_setting(outcomes[policy]["setting"]),
                _known(outcomes[policy]["saving_pct"]),
                float(outcomes[policy]["regret_pct"]),
                _known(outcomes[policy]["slowdown_pct"]),
                _known(outcomes[policy]["time_s"]),
            )
            for policy in in_order(outcomes)
        },
    )


def read_evidence(root: Path, features_path: Path, provenance: str) -> Evidence:
    """What the cells of every workload in the feature table say.

    Raises:
        InputError: a cell is damaged.
    """
    if provenance == RECORDED:
        return Evidence(
            0, 0, (), "Others recorded these data; how is in their source, and no certificate came with them."
        )
    workloads = dict.fromkeys(row["workload"] for row in _rows(root / features_path, "The feature table"))
    cells = [
        read_json(path, "The cell", _HINT)
        for workload in workloads
        for path in sorted((root / PROFILES / workload).glob("*.json"))
        if not path.name.startswith(".")
    ]
    for cell in cells:
        if not isinstance(cell, dict) or not isinstance(cell.get("repeats"), list):
            raise InputError("A cell of the sweeps has no repeats.", "Complete cells were expected.", _HINT)
    certificates = tuple(c for cell in cells for c in cell.get("certificates", ()))
    if any(part not in c for c in certificates for part in CERTIFICATE_PARTS):
        raise InputError(
            "A certificate in the cells is not complete.", f"It has {', '.join(CERTIFICATE_PARTS)}.", _HINT
        )
    why = "" if certificates else "The cells carry no certificate of how they were measured."
    if not certificates and provenance == "simulated":
        why = "Nothing was measured: a model answered, and an answer needs no certificate. Sweeps of real boards carry one per repeat."
    return Evidence(len(cells), sum(len(cell["repeats"]) for cell in cells), certificates, why)


def read_validation(root: Path) -> Mapping[str, Any] | None:
    """``validation.json``; None where there is none."""
    path = root / VALIDATION
    return read_json(path, "The validation", _HINT) if path.is_file() else None
