"""Logs of tegrastats into a summary and a trace: ``wattune import tegrastats``."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from wattune.boards.jetson.tegrastats import Log, Sample, count_other, find_gaps, parse_log, rail_sets
from wattune.core.errors import InputError
from wattune.core.measurement import Trace
from wattune.core.numbers import decimal_number
from wattune.io import check_output, read_data, write_text

BRIDGED_S = 5.0
"""Energy is taken as if a gap this long were a straight line; over a longer one it is unknown."""

PROVENANCE = "recorded"


def summarise(log: Log) -> dict[str, Any]:
    """What a log says, as plain data: means over its samples, energy over its own times.

    Whatever is None has its reason under ``unknown``.
    """
    samples = log.samples
    unknown: dict[str, str] = {}
    times_unknown = "the lines carry no time, and --interval-ms was not given"
    rails = _names(sample.rails_w for sample in samples)
    sets = rail_sets(rails)
    for name, reason in sets.reasons.items():
        unknown[f"{name}_w_mean"] = reason
    utils = [sample.gpu_util_pct for sample in samples if sample.gpu_util_pct is not None]
    if not utils:
        unknown["gpu_util_pct_mean"] = "no line says it"
    clocks = _clocks(samples)
    if clocks is None:
        if all(sample.gpu_gated for sample in samples):
            unknown["gpu_mhz"] = "the GPU is off in all lines"
        elif any(sample.gpu_gated or sample.gpu_stands for sample in samples):
            unknown["gpu_mhz"] = "the GPU is off, or its clock is 0, in all lines that say it"
        else:
            unknown["gpu_mhz"] = "no line says it (root is needed for it)"
    online = [sample.cpu_online for sample in samples if sample.cpu_online is not None]
    if not online:
        unknown["cpu_online"] = "no line says it"
    temps = {
        zone: [t for sample in samples if (t := sample.temps_c.get(zone)) is not None]
        for zone in _names(sample.temps_c for sample in samples)
    }
    for zone, values in temps.items():
        if not values:
            unknown[f"temps_c.{zone}"] = "the sensor is off in all lines"
    gaps = log.gaps
    if gaps is None:
        unknown |= dict.fromkeys(("duration_s", "gaps", "gap_s", "energy_j"), times_unknown)
    energies: dict[str, float | None] = {}
    for rail in rails:
        energies[rail], reason = _energy_j(log, (rail,))
        if reason and log.t_s is not None:
            unknown[f"energy_j.{rail}"] = reason
    totals: dict[str, float | None] = {}
    for name, labels in (("gpu_cpu", sets.gpu_cpu), ("module", sets.module)):
        powers = [p for sample in samples if labels and (p := _sum_w(sample, labels)) is not None]
        totals[f"{name}_w_mean"] = fmean(powers) if powers else None
        if labels and not powers:
            unknown[f"{name}_w_mean"] = "no line has all of its rails"
        totals[f"{name}_j"], reason = _energy_j(log, labels) if labels else (None, unknown[f"{name}_w_mean"])
        if reason:
            unknown[f"{name}_j"] = reason
    return {
        "n_samples": len(samples),
        "duration_s": None if log.t_s is None else round(log.t_s[-1], 6),
        "rails_w_mean": {rail: fmean(_present(s.rails_w.get(rail) for s in samples)) for rail in rails},
        "gpu_util_pct_mean": fmean(utils) if utils else None,
        "gpu_mhz": clocks,
        "cpu_online": max(online) if online else None,
        "temps_c": {zone: fmean(values) if values else None for zone, values in temps.items()},
        "gaps": None if gaps is None else len(gaps),
        "skipped_lines": log.skipped_lines,
        "repeated_lines": log.repeated_lines,
        "provenance": PROVENANCE,
        "n_lines": log.n_lines,
        "period_s": log.period_s,
        "gap_s": None if gaps is None else round(sum(b - a for a, b in gaps), 6),
        "clock_jumps": log.clock_jumps,
        **totals,
        "energy_j": energies,
        "temps_off_samples": {
            zone: n for zone in temps if (n := sum(_is_off(sample, zone) for sample in samples))
        },
        "temps_c_max": {zone: max(values) if values else None for zone, values in temps.items()},
        "gpu_mhz_samples": _histogram(samples),
        "gpu_gated_samples": sum(sample.gpu_gated for sample in samples),
        "other_fields": dict(count_other(samples).most_common(50)),
        "unknown": unknown,
        "warnings": [*log.warnings, *_missing(samples, rails)],
    }


def trace_text(log: Log, source: str) -> str:
    """The log as a CSV: ``t_s``, ``<rail>_w``, ``gpu_mhz``, ``gpu_util_pct``, ``temp_<zone>_c``, ``provenance``.

    What a line does not say is blank, never 0.

    Raises:
        InputError: times are unknown.
    """
    if log.t_s is None:
        raise InputError(
            f"The lines of {source} carry no time.",
            "A trace needs to know how far apart they are.",
            "Give what tegrastats was started with, for example `--interval-ms 1000`.",
        )
    columns: dict[str, Callable[[Sample], float | None]] = {}
    for rail in _names(sample.rails_w for sample in log.samples):
        columns[f"{rail}_w"] = lambda sample, rail=rail: sample.rails_w.get(rail)  # type: ignore[misc]
    columns["gpu_mhz"] = _mean_clock
    columns["gpu_util_pct"] = lambda sample: sample.gpu_util_pct
    for zone in _names(sample.temps_c for sample in log.samples):
        columns[f"temp_{zone}_c"] = lambda sample, zone=zone: sample.temps_c.get(zone)  # type: ignore[misc]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["t_s", *columns, "provenance"])
    for t, sample in zip(log.t_s, log.samples, strict=True):
        cells = [_cell(column(sample)) for column in columns.values()]
        writer.writerow([_cell(round(t, 6)), *cells, PROVENANCE])
    return text.getvalue()


def _cell(value: float | None) -> str:
    return "" if value is None else repr(int(value) if value == int(value) else value)


def _names(groups: Iterable[Iterable[str]]) -> list[str]:
    return list(dict.fromkeys(name for names in groups for name in names))


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _sum_w(sample: Sample, labels: Sequence[str]) -> float | None:
    if any(label not in sample.rails_w for label in labels):
        return None
    return sum(sample.rails_w[label] for label in labels)


def _energy_j(log: Log, labels: Sequence[str]) -> tuple[float | None, str]:
    """Energy of a set of rails over the samples that have all of them, or None and why."""
    if log.t_s is None:
        return None, "the times are unknown"
    pairs = [
        (t, p)
        for t, sample in zip(log.t_s, log.samples, strict=True)
        if (p := _sum_w(sample, labels)) is not None
    ]
    if len(pairs) < 2:
        return None, "fewer than two lines have it"
    times = [t for t, _ in pairs]
    limit = BRIDGED_S if log.period_s is None else max(BRIDGED_S, 2 * log.period_s)
    holes = [b - a for a, b in find_gaps(times, log.period_s) if b - a > limit]
    if holes:
        return None, f"{len(holes)} gaps are too long to bridge, the longest is {max(holes):.4g} s"
    return Trace(times, {"sum": [p for _, p in pairs]}).energy_j(("sum",)), ""


def _is_off(sample: Sample, zone: str) -> bool:
    """Whether a line prints a zone whose sensor is off (-256 degrees)."""
    return zone in sample.temps_c and sample.temps_c[zone] is None


def _clocks(samples: Sequence[Sample]) -> list[float] | None:
    """Mean clock of each GPC over the lines that print one."""
    known = [sample.gpu_mhz for sample in samples if sample.gpu_mhz is not None]
    columns = [_present(c[i] for c in known if i < len(c)) for i in range(max(map(len, known), default=0))]
    means = [fmean(column) for column in columns if column]
    return means or None


def _mean_clock(sample: Sample) -> float | None:
    known = _present(sample.gpu_mhz or ())
    return fmean(known) if known else None


def _histogram(samples: Sequence[Sample]) -> dict[str, int]:
    """Clock in MHz -> number of samples."""
    counts = Counter(mhz for sample in samples if (mhz := _mean_clock(sample)) is not None)
    return {f"{mhz:g}": counts[mhz] for mhz in sorted(counts)}


def _missing(samples: Sequence[Sample], rails: Sequence[str]) -> list[str]:
    missing = {rail: sum(rail not in sample.rails_w for sample in samples) for rail in rails}
    return [f"{rail} is missing in {n} of {len(samples)} samples." for rail, n in missing.items() if n]


# --- the command ----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune import tegrastats``."""
    parser.description = "Read a log of tegrastats, of any JetPack: mean powers, load, clocks and temperatures; with -o a trace, too."
    parser.add_argument(
        "log",
        type=Path,
        metavar="LOG",
        help="what `tegrastats --logfile LOG` wrote, plain or gzip; - is standard input",
    )
    parser.add_argument("-o", "--output", type=Path, metavar="TRACE", help="write the samples as CSV")
    parser.add_argument(
        "--interval-ms",
        type=_interval,
        metavar="MS",
        help="time between lines, as given to tegrastats; needed where the lines carry no time",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _interval(text: str) -> float:
    """Milliseconds, from 1 to an hour."""
    try:
        value = decimal_number(text)
    except ValueError:
        value = 0.0
    if not 1 <= value <= 3.6e6:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a number of milliseconds from 1 to 3600000")
    return value


STDIN = Path("-")
GZIP = b"\x1f\x8b"
MAX_LOG_BYTES = 1 << 30
"""More is no log that somebody recorded: a year of lines a second has less than that compressed, and a bomb has more."""


def read_log(path: Path) -> tuple[bytes, str]:
    """A log's bytes, from a file or standard input, plain or gzip (told by its first bytes); and what to call it.

    A gzip file that is cut, as one is that is still being written, is read as far as it goes.

    Raises:
        InputError: it cannot be read, is damaged or far too large.
    """
    if path == STDIN:
        data, name = sys.stdin.buffer.read(), "standard input"
    else:
        data = read_data(path, "The log", "Record one with `tegrastats --interval 1000 --logfile LOG`.")
        name = str(path)
    if not data.startswith(GZIP):
        return data, name
    text = bytearray()
    try:
        while data.startswith(GZIP):  # a file may hold several, one after the other
            one = zlib.decompressobj(wbits=31)
            text += one.decompress(data, MAX_LOG_BYTES - len(text) + 1)
            if len(text) > MAX_LOG_BYTES:
                raise InputError(
                    f"{name} has more than {MAX_LOG_BYTES >> 30} GiB when decompressed.",
                    "A log of tegrastats was expected.",
                    "Split it, and read the parts.",
                )
            if not one.eof:
                sys.stderr.write(f"wattune: {name} is cut; it was read as far as it goes.\n")
                break
            data = one.unused_data
    except zlib.error as error:
        raise InputError(
            f"{name} is a damaged gzip file ({error}).",
            "A log of tegrastats, plain or gzip, was expected.",
            "Fetch it again.",
        ) from error
    return bytes(text), name


def run(args: argparse.Namespace) -> int:
    """Handle ``wattune import tegrastats``; returns the exit code."""
    if args.output is not None:
        check_output(args.output, "The trace", None if args.log == STDIN else args.log)
    data, name = read_log(args.log)
    interval_s = None if args.interval_ms is None else args.interval_ms / 1000.0
    log = parse_log(data, interval_s=interval_s, name=name)
    if args.output is not None:
        write_text(args.output, trace_text(log, name))
    document = summarise(log)
    for warning in document["warnings"]:
        sys.stderr.write(f"wattune: {warning}\n")
    if args.json:
        if args.output is not None:
            document = {"output": str(args.output), **document}
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
        return 0
    sys.stdout.write("\n".join(_lines(document)) + "\n")
    return 0


def _lines(document: dict[str, Any]) -> list[str]:
    """The summary for people."""

    def number(value: float | None, unit: str) -> str:
        return "unknown" if value is None else f"{value:.4g} {unit}"

    unknown = document["unknown"]
    seconds = document["duration_s"]
    when = "an unknown time" if seconds is None else f"{seconds:.6g} s"
    gaps = "gaps unknown" if document["gaps"] is None else f"{document['gaps']} gaps"
    lines = [
        f"{document['n_samples']} samples over {when}, {gaps}, {document['skipped_lines']} lines skipped ({PROVENANCE})."
    ]
    for rail, watts in document["rails_w_mean"].items():
        lines.append(f"  {rail:<20} {watts:9.3f} W  {number(document['energy_j'][rail], 'J')}")
    for name in ("gpu_cpu", "module"):
        watts = document[f"{name}_w_mean"]
        why = unknown.get(f"{name}_w_mean")
        if watts is None:
            lines.append(f"  {name:<20}   unknown: {why}")
        else:
            lines.append(f"  {name:<20} {watts:9.3f} W  {number(document[f'{name}_j'], 'J')}")
    clocks = document["gpu_mhz"]
    lines.append(
        f"  GPU load {number(document['gpu_util_pct_mean'], '%')}, clock "
        + (
            f"unknown: {unknown['gpu_mhz']}"
            if clocks is None
            else ", ".join(f"{mhz:.5g}" for mhz in clocks) + " MHz"
        )
    )
    cores = document["cpu_online"]
    lines.append(f"  CPU cores online {'unknown' if cores is None else cores}")
    temps = [f"{zone} {c:.1f}" for zone, c in document["temps_c"].items() if c is not None]
    lines.append(f"  temperatures (°C) {', '.join(temps) or 'unknown'}")
    off = [
        zone if document["temps_c"][zone] is None else f"{zone} (in {n} of {document['n_samples']} samples)"
        for zone, n in document["temps_off_samples"].items()
    ]
    lines += [f"  no temperature (sensor off, -256) {', '.join(off)}"] if off else []
    if "duration_s" in unknown:
        lines.append(f"Times and energy are unknown: {unknown['duration_s']}.")
    return lines
