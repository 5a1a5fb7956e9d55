"""The feature table: ``features.csv`` as workloads with their measured curves, checked when read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pandas as pd

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.features import COST_FEATURES, FEATURES, FeatureValue
from wattune.core.measurement import PROVENANCES
from wattune.core.numbers import decimal_number
from wattune.core.settings import MAXN, FrequencyTable, Setting, parse_setting, setting_label, sort_settings
from wattune.core.stats import mean
from wattune.core.workload import size_class
from wattune.io import read_text, sha256_of

COLUMNS = (
    *("board", "provenance", "power_mode", "rails", "part", "workload", "model", "task", "family", "layers"),
    *("hidden", "params_m", "seq_len", "batch_size", "precision", "setting", "gpu_mhz", "repeat", "energy_j"),
    *(
        "energy_module_j",
        "time_s",
        "power_w",
        "gpu_util_pct",
        "gpu_mhz_mean",
        "temp_c_max",
        "gpu_util_ref_pct",
    ),
    *("energy_noise_free_j", "time_noise_free_s"),
)
"""Columns of features.csv; a blank cell is unknown."""

TRAIN, HELD_OUT = "train", "held_out"
_HINT = "Rebuild the table with `dvc repro features`."


@dataclass(frozen=True)
class WorkloadRows:
    """One workload: its features and what was measured at every setting.

    Attributes:
        id: workload id.
        part: ``train``, ``held_out``, or None where the data name no parts.
        model: model id; None where unknown.
        task: task id; None where unknown.
        size: ``small`` or ``large``; None where unknown.
        features: feature -> value, None where unknown.
        measured: mean over repeats at every setting; policies learn from it.
        repeats: one curve per repeat.
        noise_free: energy and time without measurement noise; None on all but modelled boards.
        power_w: setting -> mean measured power; None where unknown.
    """

    id: str
    part: str | None
    model: str | None
    task: str | None
    size: str | None
    features: Mapping[str, FeatureValue]
    measured: EnergyCurve
    repeats: tuple[EnergyCurve, ...]
    noise_free: EnergyCurve | None
    power_w: Mapping[Setting, float | None]

    @property
    def judged(self) -> EnergyCurve:
        """The curve policies are judged on: noise-free where it is known, else the mean of repeats."""
        return self.measured if self.noise_free is None else self.noise_free

    @property
    def label_mhz(self) -> float:
        """The pinned clock of least mean energy; ties go to the lower clock."""
        return self.measured.best_clock

    def nearest(self, setting: Setting) -> Setting:
        """The measured setting standing for `setting`: itself, else the nearest clock (ties: the lower)."""
        if setting in self.measured.points:
            return setting
        clocks = self.measured.clocks
        return clocks[-1] if isinstance(setting, str) else FrequencyTable(clocks).nearest(setting)

    def judged_power_w(self, setting: Setting) -> float | None:
        """Mean power at a setting of the judged curve, watts; None where neither it nor a time is known."""
        point, power = self.judged.points[setting], self.power_w.get(setting)
        if self.noise_free is None and power is not None:
            return power
        return None if point.time_s is None else point.energy_j / point.time_s


@dataclass(frozen=True)
class FeatureTable:
    """All workloads of one board.

    Attributes:
        board: board id.
        provenance: ``measured``, ``recorded`` or ``simulated``.
        power_mode: power mode of the sweeps.
        rails: what the energies sum.
        workloads: in the order of the file.
    """

    board: str
    provenance: str
    power_mode: str
    rails: str
    workloads: tuple[WorkloadRows, ...]

    @property
    def training(self) -> tuple[WorkloadRows, ...]:
        """Workloads policies may learn from: all but the held-out ones."""
        return tuple(w for w in self.workloads if w.part != HELD_OUT)

    @property
    def held_out(self) -> tuple[WorkloadRows, ...]:
        """Workloads kept for judging; empty where the data name none."""
        return tuple(w for w in self.workloads if w.part == HELD_OUT)

    @property
    def judged_on(self) -> str:
        """What the judged curves are, in words."""
        if self.workloads[0].noise_free is None:
            return "mean of repeats"
        return "noise-free energy of the modelled board"


def baseline_of(rows: Iterable[WorkloadRows]) -> str | None:
    """``maxn`` where every workload has that row, else None: savings need a baseline."""
    return MAXN if all(MAXN in row.measured.points for row in rows) else None


def shared_settings(rows: Sequence[WorkloadRows]) -> tuple[Setting, ...]:
    """All clocks measured on any of the workloads, ascending, then ``maxn`` where all have it."""
    clocks = {clock for row in rows for clock in row.measured.clocks}
    settings: list[Setting] = [*clocks, *([MAXN] if baseline_of(rows) else [])]
    return tuple(sort_settings(settings))


def rows_digest(rows: Sequence[WorkloadRows], *, judged: bool) -> str:
    """SHA-256 over the features and curves of workloads.

    Args:
        rows: the workloads; their order does not matter.
        judged: digest the judged curves (a verdict rests on them) or the measured ones (they were learned
            from).
    """

    def points(curve: EnergyCurve) -> dict[str, list[float | None]]:
        return {setting_label(s): [curve.points[s].energy_j, curve.points[s].time_s] for s in curve.settings}

    return sha256_of(
        {
            r.id: [dict(r.features), points(r.judged if judged else r.measured)] for r in rows
        }  # keys are sorted
    )


def repeat_noise_rel(rows: Iterable[WorkloadRows]) -> float | None:
    """Relative noise of one reading of energy: what repeats of the same setting differ by; None where none was repeated."""
    squares, freedom = 0.0, 0
    for row in rows:
        for setting in row.measured.settings:
            logs = [math.log(c.energy_j(setting)) for c in row.repeats if setting in c.points]
            level = mean(logs)
            squares += sum((value - level) ** 2 for value in logs)
            freedom += len(logs) - 1
    return math.sqrt(squares / freedom) if freedom else None


def _refuse(what: str, expected: str = "", hint: str = _HINT) -> NoReturn:
    raise InputError(f"The feature table cannot be used: {what}.", expected, hint)


def _number(row: Mapping[str, str], column: str, line: int, *, least: float | None = None) -> float | None:
    text = row[column].strip()
    if not text:
        return None
    try:
        value = decimal_number(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        _refuse(
            f"line {line}: {column} is '{text}'",
            "A finite number, or a blank cell for unknown, was expected.",
        )
    if least is not None and value <= least:
        _refuse(f"line {line}: {column} is {text}", f"A number above {least:g} was expected.")
    return value


def _one_value(frame: pd.DataFrame, column: str, plural: str) -> str:
    values = sorted(set(frame[column]))
    if len(values) != 1:
        _refuse(f"it mixes {plural}: {', '.join(values)}", "The pipeline takes one board at a time.")
    if not values[0]:
        _refuse(f"the column {column} is blank", "Every row names it.")
    return str(values[0])


def _mean_point(points: Sequence[Point]) -> Point:
    times = [p.time_s for p in points if p.time_s is not None]
    return Point(mean([p.energy_j for p in points]), mean(times) if len(times) == len(points) else None)


def mean_curve(curves: Sequence[EnergyCurve]) -> EnergyCurve:
    """The mean of repeats at every setting (over the repeats that have it)."""
    settings = sort_settings({s for curve in curves for s in curve.settings})
    return EnergyCurve({s: _mean_point([c.points[s] for c in curves if s in c.points]) for s in settings})


def _workload(name: str, rows: Sequence[tuple[int, Mapping[str, str]]]) -> WorkloadRows:
    first_line, first = rows[0]
    constant = [
        c for c in ("part", "model", "task", "gpu_util_ref_pct", "precision", *FEATURES) if c in COLUMNS
    ]
    repeats: dict[int, dict[Setting, Point]] = {}
    noise_free: dict[Setting, Point] = {}
    powers: dict[Setting, list[float | None]] = {}
    for line, row in rows:
        for column in constant:
            if row[column] != first[column]:
                _refuse(
                    f"line {line}: {column} of workload {name} is '{row[column]}', "
                    f"on line {first_line} '{first[column]}'",
                    "A workload has one value for each feature.",
                )
        setting = parse_setting(row["setting"])
        repeat = int(_number(row, "repeat", line) or 0)
        energy = _number(row, "energy_j", line, least=0.0)
        if energy is None:
            _refuse(f"line {line}: energy_j is blank", "A positive number of joules was expected.")
        if setting in repeats.setdefault(repeat, {}):
            _refuse(
                f"line {line}: workload {name}, setting {row['setting']}, repeat {repeat} stands there twice"
            )
        repeats[repeat][setting] = Point(energy, _number(row, "time_s", line, least=0.0))
        powers.setdefault(setting, []).append(_number(row, "power_w", line, least=0.0))
        true_energy = _number(row, "energy_noise_free_j", line, least=0.0)
        if true_energy is not None:
            noise_free[setting] = Point(true_energy, _number(row, "time_noise_free_s", line, least=0.0))
    curves = tuple(EnergyCurve(repeats[number]) for number in sorted(repeats))
    measured = mean_curve(curves)
    if len(measured.clocks) < 2:
        _refuse(
            f"workload {name} was measured at {len(measured.clocks)} pinned clock(s)",
            "At least two pinned clocks are needed to choose between.",
        )
    if noise_free and set(noise_free) != set(measured.points):
        _refuse(
            f"workload {name} has noise-free energy at some settings only",
            "All settings or none were expected.",
        )
    features: dict[str, FeatureValue] = {
        spec.name: (first[spec.name].strip() or None)
        if spec.kind == "category"
        else _number(first, spec.name, first_line)
        for spec in FEATURES.values()
        if spec.name not in COST_FEATURES or set(COST_FEATURES) <= set(first)
    }
    params_m = features["params_m"]
    known = {s: [p for p in values if p is not None] for s, values in powers.items()}
    return WorkloadRows(
        id=name,
        part=first["part"].strip() or None,
        model=first["model"].strip() or None,
        task=first["task"].strip() or None,
        size=size_class(first["model"].strip() or None, params_m if isinstance(params_m, float) else None),
        features=features,
        measured=measured,
        repeats=curves,
        noise_free=EnergyCurve(noise_free) if noise_free else None,
        power_w={s: mean(v) if v and len(v) == len(powers[s]) else None for s, v in known.items()},
    )


def load_features(path: Path) -> FeatureTable:
    """Read ``features.csv``.

    Raises:
        InputError: missing file or columns, no rows, mixed boards or provenances, an energy that is blank,
            negative or not a number, a row that stands there twice, a workload with fewer than two clocks
            or with contradicting features, parts that are named for some workloads only, or no training
            rows.
    """
    read_text(path, "The feature table", _HINT)
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"The feature table {path} is not a CSV table ({error}).", hint=_HINT) from error
    missing = [column for column in COLUMNS if column not in frame.columns]
    if missing:
        _refuse(f"columns are missing: {', '.join(missing)}")
    if frame.empty:
        _refuse("it has no rows")
    board, provenance = _one_value(frame, "board", "boards"), _one_value(frame, "provenance", "provenances")
    if provenance not in PROVENANCES:
        _refuse(f"its provenance is '{provenance}'", f"One of {', '.join(PROVENANCES)} was expected.")
    grouped: dict[str, list[tuple[int, Mapping[str, str]]]] = {}
    for number, row in enumerate(frame.to_dict("records")):
        grouped.setdefault(row["workload"], []).append((number + 2, {str(k): str(v) for k, v in row.items()}))
    table = FeatureTable(
        board=board,
        provenance=provenance,
        power_mode=_one_value(frame, "power_mode", "power modes"),
        rails=_one_value(frame, "rails", "rail sets"),
        workloads=tuple(_workload(name, rows) for name, rows in grouped.items()),
    )
    parts = {w.part for w in table.workloads}
    if not parts <= {TRAIN, HELD_OUT, None} or (None in parts and len(parts) > 1):
        names = ", ".join(sorted(p or "blank" for p in parts))
        _refuse(f"its parts are {names}", "train and held_out, or blank for all workloads, were expected.")
    if not table.training:
        _refuse(
            "it has no training rows, all its workloads are held out",
            "At least one workload of part train, or blank parts, were expected.",
            "Correct the column part of the sweep, or the workloads in conf/, and run `dvc repro features`.",
        )
    if len({w.noise_free is None for w in table.workloads}) > 1:
        _refuse("some workloads have noise-free energy and some do not", "All or none were expected.")
    return table
