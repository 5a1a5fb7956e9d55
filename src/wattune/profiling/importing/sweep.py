"""Foreign tables into sweep CSVs: map columns, add what is known, choose one slice of the other knobs."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.boards.sweepfile import REQUIRED, Record, Sweep, check_records, read_table, write_sweep
from wattune.core.errors import InputError
from wattune.core.numbers import decimal_number
from wattune.core.settings import MAXN
from wattune.io import check_output

_NEXT_CONDITION = re.compile(r",(?=\s*\w+=)")


@dataclass(frozen=True, slots=True)
class Condition:
    """Columns that must hold given values, all of them; numbers are compared as numbers.

    Attributes:
        text: as the user wrote it.
        wanted: column -> value.
    """

    text: str
    wanted: tuple[tuple[str, str], ...]

    def holds(self, columns: Mapping[str, str]) -> bool:
        """Whether a row meets it; the columns must exist."""
        return all(_same(columns[name], value) for name, value in self.wanted)


@dataclass(frozen=True, slots=True)
class Assignment:
    """``COLUMN=VALUE [if CONDITION]``: a constant, for all rows or for some."""

    column: str
    value: str
    condition: Condition | None


@dataclass(frozen=True, slots=True)
class Report:
    """What an import did.

    Attributes:
        n_in: rows of the table.
        n_out: rows of the sweep.
        dropped: reason -> rows left out.
        sweep: what was written.
    """

    n_in: int
    n_out: int
    dropped: Mapping[str, int]
    sweep: Sweep

    def document(self) -> dict[str, Any]:
        """The report as plain data."""
        workloads = [
            {
                "board": workload.board,
                "workload": workload.id,
                "rows": len(workload.rows),
                "clocks_mhz": list(workload.curve.clocks),
                "maxn": MAXN in workload.curve.points,
                "times": all(row.time_s is not None for row in workload.rows),
            }
            for workload in self.sweep.workloads
        ]
        return {
            "n_in": self.n_in,
            "n_out": self.n_out,
            "dropped": dict(self.dropped),
            "workloads": workloads,
            "warnings": list(self.sweep.warnings),
        }


def import_sweep(
    source: Path,
    target: Path,
    *,
    maps: Sequence[str] = (),
    sets: Sequence[str] = (),
    where: Sequence[str] = (),
    drop: Sequence[str] = (),
    maxn: Sequence[str] = (),
    keep: Sequence[str] = (),
) -> Report:
    """Turn a foreign table into a sweep CSV.

    Columns named in conditions are those of the table; where it has none of that name, the new ones.

    Args:
        source: CSV, plain or gzip.
        target: the sweep to write.
        maps: ``NEW=OLD``; ``NEW=A+B`` joins the texts of two columns.
        sets: ``COLUMN=VALUE`` or ``COLUMN=VALUE if COLUMN=VALUE[,COLUMN=VALUE]``.
        where: conditions a row must meet to be kept.
        drop: conditions that leave a row out.
        maxn: conditions that mark the MAXN baseline.
        keep: ``COLUMN=max|min|VALUE``, the slice of another knob, per workload and one after the other.
            Baseline rows in which that column is blank stay.

    Raises:
        InputError: a rule that cannot be read, names an unknown column or meets no row, or a result that is
            no sweep.
        BoardError: the target cannot be written.
    """
    records = read_table(source)
    header = list(records[0].columns)
    mapping = _mapping(maps, header, source)
    assignments = [_assignment(text) for text in sets]
    known = {*header, *mapping, *(a.column for a in assignments), "setting"}
    rules = {
        "--where": [_condition(text, "--where") for text in where],
        "--drop": [_condition(text, "--drop") for text in drop],
        "--maxn": [_condition(text, "--maxn") for text in maxn],
        "--set": [a.condition for a in assignments if a.condition is not None],
    }
    for option, conditions in rules.items():
        for condition in conditions:
            for name, _ in condition.wanted:
                _known(name, known, f"{option} {condition.text}", source)
    met: set[Condition] = set()
    dropped: dict[str, int] = {}

    def holds(condition: Condition, columns: Mapping[str, str]) -> bool:
        if condition.holds(columns):
            met.add(condition)
            return True
        return False

    rows: list[tuple[dict[str, str], Mapping[str, str], Record]] = []
    for record in records:
        new = _mapped(record.columns, mapping)
        for assignment in assignments:
            new.setdefault(assignment.column, "")
            if assignment.condition is None or holds(assignment.condition, {**new, **record.columns}):
                new[assignment.column] = assignment.value
        baseline = [
            holds(condition, {**new, "setting": "", **record.columns}) for condition in rules["--maxn"]
        ]
        if any(baseline):
            new["setting"] = MAXN
        look = {"setting": "", **new, **record.columns}
        reasons = [f"--where {c.text}" for c in rules["--where"] if not holds(c, look)]
        reasons += [f"--drop {c.text}" for c in rules["--drop"] if holds(c, look)]
        if reasons:
            dropped[reasons[0]] = dropped.get(reasons[0], 0) + 1
        else:
            rows.append((new, look, record))
    for option, conditions in rules.items():
        for condition in conditions:
            if condition not in met:
                raise InputError(
                    f"{option} {condition.text!r} meets no row of {source}.",
                    "A value that occurs in that column was expected.",
                    "Look at the column's values and correct the rule.",
                )
    for text in keep:
        rows = _keep(rows, text, known, source, dropped)
    _check_columns(rows, header, source)
    sweep = check_records([Record(new, record.where) for new, _, record in rows])
    write_sweep(sweep.rows, target)
    return Report(len(records), len(sweep.rows), dropped, sweep)


def _same(text: str, wanted: str) -> bool:
    if text == wanted:
        return True
    try:
        return decimal_number(text) == decimal_number(wanted)
    except ValueError:
        return False


def _pair(text: str, option: str, shape: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(f"{option} '{text}' cannot be read.", f"{shape} was expected.")
    return name.strip(), value.strip()


def _condition(text: str, option: str) -> Condition:
    pairs = (_pair(part, option, "COLUMN=VALUE[,COLUMN=VALUE]") for part in _NEXT_CONDITION.split(text))
    return Condition(text, tuple(pairs))


def _assignment(text: str) -> Assignment:
    plain, _, condition = text.partition(" if ")
    column, value = _pair(plain, "--set", "COLUMN=VALUE [if COLUMN=VALUE]")
    return Assignment(column, value, _condition(condition, "--set") if condition else None)


def _known(name: str, known: set[str], rule: str, source: Path) -> None:
    if name not in known:
        raise InputError(
            f"{rule}: {source} has no column '{name}'.", f"Its columns: {', '.join(sorted(known))}."
        )


def _mapping(maps: Sequence[str], header: Sequence[str], source: Path) -> dict[str, tuple[str, ...]]:
    """NEW -> the columns it is made of."""
    mapping: dict[str, tuple[str, ...]] = {}
    for text in maps:
        new, old = _pair(text, "--map", "NEW=OLD")
        parts = (old,) if old in header else tuple(part.strip() for part in old.split("+"))
        for part in parts:
            _known(part, set(header), f"--map {text}", source)
        mapping[new] = parts
    return mapping


def _mapped(columns: Mapping[str, str], mapping: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """The new columns, and the old ones that were not renamed."""
    renamed = {parts[0] for parts in mapping.values() if len(parts) == 1}
    new = {name: text for name, text in columns.items() if name not in renamed}
    for name, parts in mapping.items():
        new[name] = " ".join(columns[part] for part in parts if columns[part])
    return new


def _keep(
    rows: list[tuple[dict[str, str], Mapping[str, str], Record]],
    text: str,
    known: set[str],
    source: Path,
    dropped: dict[str, int],
) -> list[tuple[dict[str, str], Mapping[str, str], Record]]:
    """One value of a column per workload."""
    column, wanted = _pair(text, "--keep", "COLUMN=max, COLUMN=min or COLUMN=VALUE")
    _known(column, known, f"--keep {text}", source)
    chosen: dict[tuple[str, str], float] = {}
    pick = {"max": max, "min": min}.get(wanted)
    if pick is not None:
        for new, look, record in rows:
            if not look[column]:
                continue
            try:
                value = decimal_number(look[column])
            except ValueError:
                raise InputError(
                    f"{record.where}: {column} is '{look[column]}', and --keep {text} compares numbers.",
                    f"Numbers in {column}, or --keep {column}=VALUE, were expected.",
                ) from None
            group = (new.get("board", ""), new.get("workload", ""))
            chosen[group] = pick(chosen.get(group, value), value)
    kept = []
    for row in rows:
        new, look, _ = row
        here = look[column]
        if not here and new.get("setting", "").lower() == MAXN:
            kept.append(row)
            continue
        target = chosen.get((new.get("board", ""), new.get("workload", ""))) if pick else wanted
        if here and target is not None and _same(here, str(target)):
            kept.append(row)
        else:
            reason = f"--keep {text}"
            dropped[reason] = dropped.get(reason, 0) + 1
    return kept


def _check_columns(
    rows: Sequence[tuple[dict[str, str], Any, Any]], header: Sequence[str], source: Path
) -> None:
    if not rows:
        raise InputError(
            f"No row of {source} is left.",
            "At least two clocks per workload were expected.",
            "Correct --where, --drop or --keep.",
        )
    missing = [name for name in REQUIRED if name not in rows[0][0]]
    if missing:
        example = f"--map {missing[0]}=COLUMN"
        hint = " or `--set time_s=` where times are unknown" if "time_s" in missing else ""
        raise InputError(
            f"{source} gives no {', '.join(missing)}; its columns are {', '.join(header)[:300]}.",
            f"The columns {', '.join(REQUIRED)} were expected.",
            f"Say where they come from: `{example}`, or `--set {missing[0]}=VALUE` for a constant{hint}.",
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune import sweep``."""
    parser.description = (
        "Turn a foreign table (CSV, plain or gzip) into a sweep CSV. Conditions speak of the table's columns."
        " Options may be repeated, and take several values each."
    )

    def many(option: str, metavar: str, text: str) -> None:
        parser.add_argument(option, nargs="+", action="extend", default=[], metavar=metavar, help=text)

    parser.add_argument("table", type=Path, metavar="IN.csv", help="the foreign table")
    parser.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT.csv", help="the sweep to write"
    )
    many("--map", "NEW=OLD", "rename a column; NEW=A+B joins the texts of two columns")
    many(
        "--set",
        "COLUMN=VALUE",
        "a constant; 'COLUMN=VALUE if COLUMN=VALUE[,COLUMN=VALUE]' for some rows only",
    )
    many("--where", "COLUMN=VALUE", "take only such rows; COLUMN=VALUE,COLUMN=VALUE asks for both")
    many("--drop", "COLUMN=VALUE", "leave such rows out; COLUMN=VALUE,COLUMN=VALUE asks for both")
    many("--maxn", "COLUMN=VALUE", "such rows are the baseline with unpinned clocks")
    many("--keep", "COLUMN=max", "one slice of another knob per workload: max, min or a value")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """Handle ``wattune import sweep``; returns the exit code."""
    check_output(args.output, "The sweep", args.table)
    report = import_sweep(
        args.table,
        args.output,
        maps=args.map,
        sets=args.set,
        where=args.where,
        drop=args.drop,
        maxn=args.maxn,
        keep=args.keep,
    )
    document = report.document()
    for warning in document["warnings"]:
        sys.stderr.write(f"wattune: {warning}\n")
    if args.json:
        sys.stdout.write(json.dumps({"output": str(args.output), **document}, indent=2) + "\n")
        return 0
    lines = [f"{args.output}: {report.n_out} of {report.n_in} rows."]
    for workload in document["workloads"]:
        baseline = "with the MAXN baseline" if workload["maxn"] else "no MAXN baseline"
        times = "" if workload["times"] else ", times unknown"
        name, clocks = f"{workload['board']} / {workload['workload']}", len(workload["clocks_mhz"])
        lines.append(f"  {name}: {clocks} clocks, {baseline}{times}")
    lines += [f"  left out by {reason}: {n}" for reason, n in report.dropped.items()]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
