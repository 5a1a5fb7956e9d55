"""Sweep CSVs: recorded energy over clock settings, read with every check, written canonically.

Required columns: ``board, workload, gpu_mhz, energy_j, time_s``; the optional ones are in :data:`NUMBERS` and
:data:`TEXTS`; others are kept as they are. ``setting`` = ``maxn`` marks the baseline. The user's page of this
format is `docs/recorded.md`.
"""

from __future__ import annotations

import csv
import gzip
import io
import math
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattune.boards.base import BoardInfo
from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.features import FeatureValue
from wattune.core.measurement import Measurement
from wattune.core.numbers import decimal_number
from wattune.core.settings import MAXN, Setting, setting_label, sort_settings
from wattune.core.stats import mean
from wattune.io import are_same, clear_os_errors, is_file, kind_of, read_data, write_bytes

REQUIRED = ("board", "workload", "gpu_mhz", "energy_j", "time_s")
NUMBERS = (
    "power_w",
    "gpu_util_pct",
    "energy_module_j",
    "gpu_mhz_mean",
    "temp_c_max",
    "cpu_mhz",
    "emc_mhz",
    "layers",
    "hidden",
    "params_m",
    "seq_len",
    "batch_size",
)
"""Optional columns that hold numbers; blank where unknown."""

TEXTS = ("setting", "repeat", "model", "task", "family", "precision", "part", "power_mode", "rails", "source")
"""Optional columns that hold text (`repeat` holds whole numbers from 0)."""

DESCRIPTIVE = (
    "model",
    "task",
    "family",
    "layers",
    "hidden",
    "params_m",
    "seq_len",
    "batch_size",
    "precision",
    "part",
)
"""Columns that describe a workload: they must not change from row to row of one workload."""

HIGHEST_MHZ = 10_000.0
"""No GPU runs faster; what says more was written in Hz or kHz."""

LOWEST_TOP_MHZ = 10.0
"""No GPU's highest clock is lower; a table that says less was written in GHz."""

SANE = (1e-9, 1e12)
"""Least and most that an energy (J) or a time (s) can be: the most is a kilowatt for thirty years."""

OTHER_KNOBS = ("cpu_mhz", "emc_mhz")
PARTS = ("train", "held_out")

_FORMAT = f"A sweep CSV with the columns {', '.join(REQUIRED)} was expected (docs/recorded.md)."
_IMPORT = "Foreign tables become sweeps with `wattune import sweep`."
_ORDER = (
    "board",
    "workload",
    "setting",
    "gpu_mhz",
    "repeat",
    "energy_j",
    "time_s",
    *NUMBERS,
    *(name for name in TEXTS if name not in ("setting", "repeat")),
)
SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab"}
"""What stands between fields, as spreadsheets of different countries write it."""

_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_PERHAPS_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:(?:,\d{3})+|(?:\.\d{3})+)")
_GZIP_MAGIC = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Record:
    """One line of a table as it was written.

    Attributes:
        columns: column -> text, stripped.
        where: file and line, for messages.
    """

    columns: Mapping[str, str]
    where: str


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One checked row of a sweep.

    Attributes:
        board: board as written.
        workload: workload as written.
        setting: pinned clock in MHz, or ``maxn``.
        repeat: number of the repeat, from 0.
        energy_j: energy, joules, above 0.
        time_s: duration, seconds, above 0; None where the source has none.
        numbers: the optional columns of :data:`NUMBERS` that are not blank.
        columns: all columns as text, unknown ones included.
        where: file and line, for messages.
    """

    board: str
    workload: str
    setting: Setting
    repeat: int
    energy_j: float
    time_s: float | None
    numbers: Mapping[str, float]
    columns: Mapping[str, str]
    where: str


@dataclass(frozen=True)
class SweepWorkload:
    """All rows of one workload on one board.

    Attributes:
        board: board as written.
        id: workload as written.
        rows: its rows, by setting and repeat.
        curve: mean of the repeats at every setting.
    """

    board: str
    id: str
    rows: tuple[SweepRow, ...]
    curve: EnergyCurve = field(init=False, compare=False)

    def __post_init__(self) -> None:
        settings = sort_settings({row.setting for row in self.rows})
        points = {}
        for setting in settings:
            rows = self.at(setting)
            times = [row.time_s for row in rows if row.time_s is not None]
            time_s = mean(times) if len(times) == len(rows) else None
            points[setting] = Point(mean([row.energy_j for row in rows]), time_s)
        object.__setattr__(self, "curve", EnergyCurve(points))

    def at(self, setting: Setting) -> tuple[SweepRow, ...]:
        """The repeats at a setting; empty where it was not measured."""
        return tuple(row for row in self.rows if row.setting == setting)

    def text(self, column: str) -> str | None:
        """The workload's value of a descriptive column; None where it is blank in every row or missing."""
        return next((row.columns[column] for row in self.rows if row.columns.get(column)), None)

    def number(self, column: str) -> float | None:
        """As :meth:`text`, for a number."""
        return next((row.numbers[column] for row in self.rows if column in row.numbers), None)

    def gpu_util_pct(self, reference_mhz: float | None) -> float | None:
        """Mean GPU utilisation at the clock nearest to `reference_mhz` (None: the highest one); None where not recorded."""
        clocks = self.curve.clocks
        nearest = (
            max(clocks)
            if reference_mhz is None
            else min(clocks, key=lambda clock: (abs(clock - reference_mhz), clock))
        )
        values = [row.numbers["gpu_util_pct"] for row in self.at(nearest) if "gpu_util_pct" in row.numbers]
        return mean(values) if values else None

    def features(self, reference_mhz: float | None) -> dict[str, FeatureValue]:
        """The features a governor may ask for; None where the sweep does not say."""
        return {
            "family": self.text("family"),
            "layers": self.number("layers"),
            "hidden": self.number("hidden"),
            "seq_len": self.number("seq_len"),
            "gpu_util_ref_pct": self.gpu_util_pct(reference_mhz),
            "params_m": self.number("params_m"),
            "batch_size": self.number("batch_size"),
        }


def provenance_of(rows: Iterable[SweepRow]) -> str:
    """``simulated`` where a row says so (an export of a modelled board stays what it is), else ``recorded``."""
    return "simulated" if any(row.columns.get("provenance") == "simulated" for row in rows) else "recorded"


@dataclass(frozen=True)
class Sweep:
    """Checked rows of one or more boards.

    Attributes:
        workloads: sorted by board and workload.
        warnings: what the reader did on its own account, one sentence each.
    """

    workloads: tuple[SweepWorkload, ...]
    warnings: tuple[str, ...] = ()

    @property
    def boards(self) -> tuple[str, ...]:
        """The boards, sorted."""
        return tuple(sorted({workload.board for workload in self.workloads}))

    @property
    def rows(self) -> tuple[SweepRow, ...]:
        """All rows, by board, workload, setting and repeat."""
        return tuple(row for workload in self.workloads for row in workload.rows)

    def of_board(self, board: str) -> tuple[SweepWorkload, ...]:
        """The workloads of one board."""
        return tuple(workload for workload in self.workloads if workload.board == board)


def read_sweep(paths: Path | Sequence[Path]) -> Sweep:
    """Read sweep CSVs, plain or gzip.

    Args:
        paths: a file, a folder with ``*.csv`` and ``*.csv.gz``, or several of them.

    Raises:
        InputError: missing file, empty folder, no CSV, a missing column, a bad row (named with its line), a
            duplicate, several slices of other clocks, a workload with one clock only, or no rows.
    """
    records: list[Record] = []
    files: list[Path] = []
    twice: list[str] = []
    for path in [paths] if isinstance(paths, Path) else list(paths):
        for file in _files(path):
            known = next((other for other in files if are_same(file, other)), None)
            if known is None:
                files.append(file)
                records += read_table(file, REQUIRED)
            elif file == known:
                twice.append(f"{file} was given twice; it was read once.")
            else:
                twice.append(f"{file} is the same file as {known}; it was read once.")
    sweep = check_records(records)
    return replace(sweep, warnings=(*twice, *sweep.warnings))


def _files(path: Path) -> list[Path]:
    kind = kind_of(path)
    if kind is None:
        raise InputError(f"The sweep {path} does not exist.", _FORMAT, "Check the path.")
    if kind != "folder":
        return [path]
    with clear_os_errors(path, "read"):
        names = sorted(p for p in path.iterdir() if p.name.endswith((".csv", ".csv.gz")))
    files = [p for p in names if is_file(p)]
    if not files:
        raise InputError(f"The folder {path} holds no .csv or .csv.gz file.", _FORMAT, _IMPORT)
    return files


def _text(path: Path) -> str:
    """The file's text; gzip is recognised by its first bytes, whatever the name."""
    try:
        data = read_data(path, "The table", "Check the path.")
        if data.startswith(_GZIP_MAGIC):
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text.", _FORMAT, _IMPORT) from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InputError(f"{path} is a damaged gzip file.", _FORMAT, "Fetch it again.") from error
    if "\0" in text:
        raise InputError(f"{path} is not a text file.", _FORMAT, _IMPORT)
    return text


def read_table(path: Path, required: Iterable[str] = ()) -> list[Record]:
    """The lines of a CSV, plain or gzip, as text.

    Fields stand between commas, semicolons or tabs; between the latter two numbers may have a decimal comma, which is read as a point.

    Args:
        path: the file.
        required: columns that must be there.

    Raises:
        InputError: not readable, no text, no CSV, a column missing or named twice, a line with too many or
            too few fields, a number whose comma may mean decimals or thousands, or no rows.
    """
    text = _text(path)
    separator = _separator(text)
    reader = _reader(text, separator)
    records: list[Record] = []
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(path, header, required)
        for fields in reader:
            if not any(text.strip() for text in fields):
                continue
            where = f"{path}, line {reader.line_num}"
            if len(fields) != len(header):
                raise InputError(
                    f"{where}: {len(fields)} fields, but the header names {len(header)} columns.",
                    f"One field per column was expected; texts with {SEPARATORS[separator]}s need double quotes.",
                )
            records.append(Record(dict(zip(header, (text.strip() for text in fields), strict=True)), where))
    except csv.Error as error:
        raise InputError(
            f"{path}, line {reader.line_num}: this is not CSV ({error}).", _FORMAT, _IMPORT
        ) from error
    if not records:
        raise InputError(f"{path} has no rows.", _FORMAT, _IMPORT)
    return records if separator == "," else _with_points(records)


def _reader(text: str, separator: str) -> Any:
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)


def _separator(text: str) -> str:
    """The first one that divides all lines alike; where none does, the one that the header has most of, for the messages."""
    for separator in SEPARATORS:
        try:
            widths = {len(fields) for fields in _reader(text, separator) if any(map(str.strip, fields))}
        except csv.Error:
            continue
        if len(widths) == 1 and min(widths) > 1:
            return separator
    return max(SEPARATORS, key=text.partition("\n")[0].count)


def _with_points(records: Sequence[Record]) -> list[Record]:
    """Decimal commas as points. That a table has them is taken from a number that can be read in no other way.

    Raises:
        InputError: a number that may be a thousand times another.
    """
    texts = [text for record in records for text in record.columns.values()]
    commas = any(_DECIMAL_COMMA.fullmatch(text) and not _PERHAPS_THOUSANDS.fullmatch(text) for text in texts)
    read = []
    for record in records:
        columns = dict(record.columns)
        for name, text in columns.items():
            if _PERHAPS_THOUSANDS.fullmatch(text) and ("." in text) == commas:
                raise InputError(
                    f"{record.where}: {name} is '{text}', whose mark may stand before decimals or after thousands.",
                    "Numbers that can be read in one way were expected.",
                    "Write it with a decimal point, and no mark after thousands.",
                )
            if _DECIMAL_COMMA.fullmatch(text):
                columns[name] = text.replace(",", ".")
        read.append(Record(columns, record.where))
    return read


def _check_header(path: Path, header: list[str], required: Iterable[str]) -> None:
    if not header:
        raise InputError(f"{path} is empty: it has no rows and no header.", _FORMAT, _IMPORT)
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise InputError(
            f"{path} names the column {', '.join(map(repr, twice))} twice.", "Distinct names were expected."
        )
    missing = [name for name in required if name not in header]
    if missing:
        plural = "s" if len(missing) > 1 else ""
        raise InputError(
            f"{path} lacks the column{plural} {', '.join(missing)}; it has {', '.join(header)[:200]}.",
            _FORMAT,
            _IMPORT,
        )


def check_records(records: Sequence[Record]) -> Sweep:
    """Turn table lines into a checked sweep; see :func:`read_sweep` for the faults it refuses."""
    groups: dict[tuple[str, str], list[SweepRow]] = {}
    for record in records:
        row = _row(record)
        groups.setdefault((row.board, row.workload), []).append(row)
    if not groups:
        raise InputError("The sweep has no rows.", _FORMAT, _IMPORT)
    warnings: list[str] = []
    workloads = []
    for (board, workload), rows in sorted(groups.items()):
        _check_description(rows)
        _check_slice(rows)
        merged = _merge_repeats(rows, warnings)
        clocks = {row.setting for row in merged if row.setting != MAXN}
        if len(clocks) < 2:
            only = f"one clock only ({setting_label(min(clocks))} MHz)" if clocks else "no pinned clock"
            raise InputError(
                f"Workload '{workload}' on '{board}' has {only}, first seen in {rows[0].where}.",
                "At least two pinned GPU clocks per workload were expected: one is no sweep.",
                "Add the missing rows, or leave the workload out.",
            )
        if (top := max(row.setting for row in merged if not isinstance(row.setting, str))) < LOWEST_TOP_MHZ:
            raise InputError(
                f"The highest gpu_mhz of workload '{workload}' on '{board}' is {top:g}, less than any GPU's;"
                f" its rows begin in {rows[0].where}.",
                "Clocks in MHz were expected: GHz are multiplied by 1000.",
                "Correct the column.",
            )
        workloads.append(SweepWorkload(board, workload, tuple(merged)))
    return Sweep(tuple(workloads), tuple(warnings))


def _bad(record: Record, what: str, expected: str) -> InputError:
    return InputError(f"{record.where}: {what}.", expected, "Correct that line, or leave it out.")


def _number(record: Record, column: str, *, above: float | None = None, least: float = 0.0) -> float | None:
    """A column's number; None where blank."""
    text = record.columns.get(column, "")
    if not text:
        return None
    try:
        value = decimal_number(text)
    except ValueError:
        value = math.nan
    good = math.isfinite(value) and (value >= least if above is None else value > above)
    if not good:
        bound = f"of at least {least:g}" if above is None else f"above {above:g}"
        raise _bad(record, f"{column} is '{text}'", f"A number {bound} was expected.")
    return value


def _required_text(record: Record, column: str) -> str:
    text = record.columns.get(column, "")
    if not text:
        raise _bad(record, f"{column} is blank", "A name was expected.")
    return text


def _row(record: Record) -> SweepRow:
    board, workload = _required_text(record, "board"), _required_text(record, "workload")
    gpu_mhz = _number(record, "gpu_mhz", above=0.0)
    if gpu_mhz is not None and gpu_mhz > HIGHEST_MHZ:
        raise _bad(
            record,
            f"gpu_mhz is '{record.columns['gpu_mhz']}', more than any GPU runs at",
            f"A clock in MHz, up to {HIGHEST_MHZ:g}, was expected: Hz are divided by 1000000, kHz by 1000.",
        )
    if record.columns.get("setting", "").lower() == MAXN:
        setting: Setting = MAXN
    elif gpu_mhz is None:
        raise _bad(
            record, "gpu_mhz is blank", "A clock in MHz was expected, or 'maxn' in the column setting."
        )
    else:
        setting = gpu_mhz
    energy_j = _number(record, "energy_j", above=0.0)
    if energy_j is None:
        raise _bad(record, "energy_j is blank", "An energy in joules above 0 was expected.")
    time_s = _number(record, "time_s", above=0.0)
    for name, value in (("energy_j", energy_j), ("time_s", time_s)):
        if value is not None and not SANE[0] <= value <= SANE[1]:
            raise _bad(
                record, f"{name} is {value:g}", f"A number from {SANE[0]:g} to {SANE[1]:g} was expected."
            )
    util = _number(record, "gpu_util_pct")
    if util is not None and util > 100.0:
        raise _bad(record, f"gpu_util_pct is '{util:g}'", "A percentage from 0 to 100 was expected.")
    part = record.columns.get("part", "")
    if part and part not in PARTS:
        raise _bad(record, f"part is '{part}'", f"One of {', '.join(PARTS)} or blank was expected.")
    repeat = _number(record, "repeat")
    if repeat is not None and not repeat.is_integer():
        raise _bad(record, f"repeat is '{record.columns['repeat']}'", "A whole number from 0 was expected.")
    numbers = {name: value for name in NUMBERS if (value := _number(record, name)) is not None}
    return SweepRow(
        board=board,
        workload=workload,
        setting=setting,
        repeat=int(repeat or 0),
        energy_j=energy_j,
        time_s=time_s,
        numbers=numbers,
        columns=record.columns,
        where=record.where,
    )


def _check_description(rows: Sequence[SweepRow]) -> None:
    """Two jobs under one name would be averaged into nonsense: what describes a workload must not change."""
    for column in DESCRIPTIVE:
        first: SweepRow | None = None
        for row in rows:
            text = row.columns.get(column, "")
            if not text:
                continue
            value = row.numbers.get(column, text)
            if first is None:
                first = row
            elif value != first.numbers.get(column, first.columns[column]):
                raise InputError(
                    f"{row.where}: {column} is '{text}', but '{first.columns[column]}' in {first.where}, "
                    f"both of workload '{row.workload}'.",
                    "One description per workload was expected.",
                    "Name the jobs differently, e.g. `wattune import sweep --map workload=model+workload`.",
                )


def _check_slice(rows: Sequence[SweepRow]) -> None:
    """One slice of the other knobs only; the baseline may leave them blank."""
    slices: dict[tuple[str, ...], SweepRow] = {}
    for row in rows:
        combination = tuple(f"{row.numbers[k]:g}" if k in row.numbers else "" for k in OTHER_KNOBS)
        if row.setting == MAXN and not any(combination):
            continue
        slices.setdefault(combination, row)
    if len(slices) > 1:
        (first, one), (second, other) = list(slices.items())[:2]
        names = [name for name, a, b in zip(OTHER_KNOBS, first, second, strict=True) if a != b]
        raise InputError(
            f"Workload '{one.workload}' on '{one.board}' has {len(slices)} combinations of "
            f"{' and '.join(OTHER_KNOBS)}, e.g. in {one.where} and {other.where}.",
            "A sweep over the GPU clock at one CPU and one memory clock was expected.",
            f"Choose the slice with `wattune import sweep IN.csv -o OUT.csv --keep {names[0]}=max`.",
        )


def _merge_repeats(rows: Sequence[SweepRow], warnings: list[str]) -> list[SweepRow]:
    """Refuse duplicates; average equal settings where no `repeat` column tells them apart."""
    by_setting: dict[Setting, list[SweepRow]] = {}
    for row in rows:
        by_setting.setdefault(row.setting, []).append(row)
    merged: list[SweepRow] = []
    averaged: list[SweepRow] = []
    settings = 0
    for setting in sort_settings(by_setting):
        here = by_setting[setting]
        if len(here) > 1 and not any("repeat" in row.columns for row in here):
            averaged += here
            settings += 1
            merged.append(_average(here))
            continue
        seen: dict[int, SweepRow] = {}
        for row in here:
            if row.repeat in seen:
                raise InputError(
                    f"{row.where}: a duplicate of {seen[row.repeat].where}: workload '{row.workload}' "
                    f"on '{row.board}' at {setting_label(setting)} with repeat {row.repeat}.",
                    "One row per setting and repeat was expected.",
                    "Number the repeats in the column repeat, or leave one of the rows out.",
                )
            seen[row.repeat] = row
        merged += sorted(here, key=lambda row: row.repeat)
    if averaged:
        files = list(dict.fromkeys(row.where.rpartition(", line")[0] for row in averaged))
        named = " and ".join(filter(None, (", ".join(files[:-1]), files[-1])))
        warnings.append(
            f"{named} {'has' if len(files) == 1 else 'have'} no column 'repeat': rows of '{rows[0].workload}' on "
            f"'{rows[0].board}' that share a setting were averaged ({settings} setting{'s' if settings > 1 else ''})."
        )
    return merged


def _average(rows: Sequence[SweepRow]) -> SweepRow:
    first = rows[0]
    times = [row.time_s for row in rows if row.time_s is not None]
    numbers = {
        name: mean([row.numbers[name] for row in rows])
        for name in NUMBERS
        if all(name in row.numbers for row in rows)
    }
    return SweepRow(
        board=first.board,
        workload=first.workload,
        setting=first.setting,
        repeat=0,
        energy_j=mean([row.energy_j for row in rows]),
        time_s=mean(times) if len(times) == len(rows) else None,
        numbers=numbers,
        columns=first.columns,
        where=first.where,
    )


def number_text(value: float | None) -> str:
    """A number as text, without loss; blank for None."""
    if value is None:
        return ""
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(value)


def sweep_text(rows: Iterable[SweepRow]) -> str:
    """Rows as a canonical sweep CSV: fixed column order, sorted rows, the same data give the same text."""

    def place(row: SweepRow) -> tuple[str, str, float, int]:
        return row.board, row.workload, math.inf if isinstance(row.setting, str) else row.setting, row.repeat

    lines = [_cells(row) for row in sorted(rows, key=place)]
    used = {name for cells in lines for name, text in cells.items() if text}
    kept = {"setting", "repeat", *REQUIRED}
    header = [n for n in _ORDER if n in used or n in kept] + sorted(used.difference(_ORDER))
    out = io.StringIO()
    writer = csv.DictWriter(out, header, restval="", extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def _cells(row: SweepRow) -> dict[str, str]:
    pinned = not isinstance(row.setting, str)
    setting = row.columns.get("setting", "") if pinned else MAXN
    gpu_mhz = number_text(row.setting) if not isinstance(row.setting, str) else row.columns.get("gpu_mhz", "")
    numbers = {name: number_text(row.numbers.get(name)) for name in NUMBERS}
    return {
        **row.columns,
        **numbers,
        "setting": setting,
        "gpu_mhz": gpu_mhz,
        "repeat": str(row.repeat),
        "energy_j": number_text(row.energy_j),
        "time_s": number_text(row.time_s),
    }


def write_sweep(rows: Iterable[SweepRow], path: Path) -> bool:
    """Write rows as a canonical sweep CSV, atomically; gzip where the name ends in ``.gz``.

    Returns:
        False where the file already said exactly this and was left alone.

    Raises:
        BoardError: disk full, read-only or no permission.
    """
    data = sweep_text(rows).encode()
    if path.name.endswith(".gz"):
        data = gzip.compress(data, mtime=0)
    with clear_os_errors(path):
        if is_file(path) and path.read_bytes() == data:
            return False
    write_bytes(path, data)
    return True


def export_rows(
    measured: Iterable[tuple[BoardInfo, str, Mapping[str, FeatureValue], Measurement]],
) -> list[SweepRow]:
    """Measurements of our own as rows of a sweep, with their provenance.

    Args:
        measured: board, workload, descriptive columns (any of :data:`TEXTS` and :data:`NUMBERS`) and measurement of
            every repeat.
    """
    rows = []
    for info, workload, description, m in measured:
        board = info.id
        numbers = {name: getattr(m, name, None) for name in NUMBERS if name != "power_w"}
        numbers |= {name: description.get(name) for name in NUMBERS if name in DESCRIPTIVE}
        if m.time_s is not None:
            numbers["power_w"] = m.energy_j / m.time_s
        known = {name: float(v) for name, v in numbers.items() if isinstance(v, (int, float))}
        texts = {name: str(description[name]) for name in TEXTS if description.get(name)}
        origin = {"power_mode": info.power_mode, "rails": info.rails, "provenance": info.provenance}
        columns = {"board": board, "workload": workload, **texts, **origin}
        rows.append(
            SweepRow(board, workload, m.setting, m.repeat, m.energy_j, m.time_s, known, columns, "export")
        )
    return rows
