"""What ``jetson_clocks --show`` printed, as plain data: ``wattune import jetson-clocks``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattune.boards.jetson.powermode import ClockRange, Clocks, parse_jetson_clocks
from wattune.core.errors import InputError
from wattune.io import read_data

PROVENANCE = "recorded"
STDIN = Path("-")
RECORD = "Record it on the board with `sudo jetson_clocks --show > FILE`."
HZ_PER_MHZ, KHZ_PER_MHZ = 1e6, 1e3


def summarise(clocks: Clocks) -> dict[str, Any]:
    """Clocks in MHz, whatever the tool's unit was; what it did not print is None or absent."""
    gpus = {name: _in_mhz(found, HZ_PER_MHZ) for name, found in clocks.gpus.items()}
    pinned = [name for name, found in gpus.items() if found["pinned"]]
    return {
        "soc": clocks.soc,
        "machine": clocks.machine,
        "power_mode": clocks.power_mode,
        "active_tpcs": clocks.active_tpcs,
        "gpus": gpus,
        "cpus": {
            str(number): _in_mhz(found, KHZ_PER_MHZ, off=number in clocks.offline)
            for number, found in sorted(clocks.cpus.items())
        },
        "emc": None if clocks.emc is None else _in_mhz(clocks.emc, HZ_PER_MHZ),
        "provenance": PROVENANCE,
        "warnings": [
            f"{name} is pinned at {gpus[name]['max_mhz']:g} MHz (both bounds are equal): what was measured so is no baseline"
            " with unpinned clocks."
            for name in pinned
        ]
        + _unread(clocks.unread),
    }


def _unread(lines: Sequence[int]) -> list[str]:
    """What is said of lines that make no sense."""
    if not lines:
        return []
    which = ", ".join(map(str, lines[:5])) + (" ..." if len(lines) > 5 else "")
    return [
        f"{len(lines)} line{'s' if len(lines) > 1 else ''} of a clock could not be read and {'are' if len(lines) > 1 else 'is'} left"
        f" out: {which}."
    ]


def _in_mhz(found: ClockRange, per_mhz: float, *, off: bool = False) -> dict[str, Any]:
    """Its bounds and its clock; what is off has none, as has a block with a clock of 0."""
    return {
        "min_mhz": found.min / per_mhz,
        "max_mhz": found.max / per_mhz,
        "cur_mhz": found.cur / per_mhz if found.cur > 0 and not off else None,
        "pinned": found.pinned,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune import jetson-clocks``."""
    parser.description = "Read what `jetson_clocks --show` printed: GPU, CPU and memory clocks, their bounds, and the power mode."
    parser.add_argument(
        "log", type=Path, metavar="FILE", help="what `jetson_clocks --show` printed; - is standard input"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(args: argparse.Namespace) -> int:
    """Handle ``wattune import jetson-clocks``; returns the exit code.

    Raises:
        InputError: it cannot be read, or says nothing.
    """
    name = "standard input" if args.log == STDIN else str(args.log)
    data = sys.stdin.buffer.read() if args.log == STDIN else read_data(args.log, "The file", RECORD)
    text = data.decode("utf-8", "replace")
    clocks = parse_jetson_clocks(text)
    if replace(clocks, unread=()) == Clocks():
        refused = "as a root user" in text
        raise InputError(
            f"{name} is jetson_clocks' refusal to run without root."
            if refused
            else f"Nothing in {name} is what `jetson_clocks --show` prints.",
            "Lines such as 'GPU MinFreq=306000000 MaxFreq=1300500000 CurrentFreq=306000000' were expected.",
            RECORD,
        )
    document = summarise(clocks)
    for warning in document["warnings"]:
        sys.stderr.write(f"wattune: {warning}\n")
    sys.stdout.write((json.dumps(document, indent=2) if args.json else "\n".join(_lines(document))) + "\n")
    return 0


def _lines(document: dict[str, Any]) -> list[str]:
    """The summary for people."""
    known = [document[name] for name in ("machine", "soc") if document[name]]
    tpcs = document["active_tpcs"]
    lines = [
        f"{', '.join(known) or 'unknown board'}, power mode {document['power_mode'] or 'unknown'}"
        f"{'' if tpcs is None else f', {tpcs} TPCs on'} ({PROVENANCE})"
    ]
    rows = {**document["gpus"], **{f"cpu{number}": found for number, found in document["cpus"].items()}}
    if document["emc"] is not None:
        rows["EMC"] = document["emc"]
    for name, found in rows.items():
        now = "off" if found["cur_mhz"] is None else f"{found['cur_mhz']:g} MHz"
        pinned = ", pinned" if found["pinned"] else ""
        lines.append(f"  {name:<10} {found['min_mhz']:g} to {found['max_mhz']:g} MHz, now {now}{pinned}")
    return lines
