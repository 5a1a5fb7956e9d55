"""``wattune doctor``: what board this is, what would work on it and what would not, why, and what to type."""

from __future__ import annotations

import argparse
import errno
import getpass
import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from wattune.boards.jetson import diagnosis, discovery, jtop
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.boards.jetson.root import add_root_argument, sysfs_of
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.settings import hz_to_mhz
from wattune.terminal import Block, Column, Section, Table, rendered

SETS = ("gpu_cpu", "module")
"""Sets of rails whose sums are shown."""

LATE_NODE_S = 1.0
"""How long a node that a driver makes late is waited for."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune doctor``."""
    add_root_argument(parser)
    parser.add_argument(
        "--jtop",
        action="store_true",
        help="also ask jtop's service, where there is one, and show the difference",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run(
    args: argparse.Namespace,
    *,
    stale: Callable[[Sysfs], Iterable[object]] | None = None,
    daemon: Callable[[Sysfs], Path | None] | None = None,
) -> int:
    """Look and print; returns 0 wherever it could look, on any machine.

    Args:
        args: as :func:`add_arguments` declares them.
        stale: pins that no run minds any more, each a phrase; not looked for where None.
        daemon: the socket of a clock daemon that pins for those who may not; not looked for where None.

    Raises:
        InputError: the root is no folder.
    """
    sysfs = sysfs_of(args)
    findings = discovery.discover(sysfs, retry_s=LATE_NODE_S)
    document = report(findings, stale=stale, daemon=daemon)
    if args.jtop:
        gpu = document["gpu"] or {}
        ours = jtop.Readings(
            document["rails_w"], gpu.get("cur_mhz"), gpu.get("util_pct"), document["temps_c"]
        )
        document["jtop"] = jtop.cross_check(findings, ours)
    findings.sysfs.close()
    sysfs.close()
    shown = None if args.json else rendered(blocks(document), sys.stdout) or text(document)
    sys.stdout.write((json.dumps(document, indent=2, allow_nan=False) if shown is None else shown) + "\n")
    return 0


# --- may it be pinned -------------------------------------------------------------------------------------------------


def why_not_pinned(sysfs: Sysfs, gpu: GpuNode) -> str | None:
    """Why the clock cannot be set, with what to type, as sentences; None where it can. Nothing is written to find out."""
    if gpu.read_only:
        return (
            f"The GPU clock cannot be pinned: {gpu.read_only}. Reading works. "
            "Run the workload at the clocks as they are; `wattune doctor` and the meter work."
        )
    if not gpu.usable_hz:
        return (
            "The GPU clock cannot be pinned: no clock of its table lies within its bounds. At least one was expected. "
            "Type `sudo jetson_clocks --restore`, or reboot, to get the power mode's own bounds back."
        )
    for name in ("min_freq", "max_freq"):
        path = sysfs.path(f"{gpu.path}/{name}")
        try:
            _try_to_open(path)
        except OSError as error:
            return _refusal(error, f"/{gpu.path}/{name}")
    return None


def _try_to_open(path: os.PathLike[str]) -> None:
    """Open for writing and write nothing.

    Raises:
        OSError: as the kernel gives it.
    """
    if os.statvfs(path).f_flag & os.ST_RDONLY:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fspath(path))
    os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))


def _refusal(error: OSError, path: str) -> str:
    start = f"The GPU clock cannot be pinned: {path}"
    if error.errno == errno.EROFS:
        folder = path.rsplit("/", 1)[0]
        mount = shlex.quote(f"{folder}:{folder}:rw")
        return (
            f"{start} lies on a read-only file system, as /sys does in an unprivileged container. A writable one was expected. "
            f"Start the container with `--privileged`, or bind the node: `-v {mount}`; root inside is not enough."
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return (
            f"{start} may not be written by {_user()}. Root, the clock daemon or a udev rule that lets you was expected. "
            "Type `sudo wattune ...`, or set the daemon up once (`sudo wattune clockd`, or its systemd unit), or the udev rule "
            "packaging/60-wattune.rules; docs/permissions.md compares them. Everything else here works without."
        )
    if error.errno == errno.ENOENT:
        return f"{start} is gone. It was there a moment ago. Type `wattune doctor` again; the driver may be reloading."
    return (
        f"{start} cannot be opened for writing: {error.strerror}. A writable file was expected. "
        "Look at `dmesg | tail` for what the driver says."
    )


def _user() -> str:
    try:
        return f"{getpass.getuser()} (uid {os.geteuid()})"
    except (KeyError, OSError):
        return f"uid {os.geteuid()}"


# --- the document -----------------------------------------------------------------------------------------------------


def report(
    findings: Findings,
    *,
    stale: Callable[[Sysfs], Iterable[object]] | None = None,
    daemon: Callable[[Sysfs], Path | None] | None = None,
) -> dict[str, Any]:
    """What ``--json`` prints: the shape scripts rely on, and more keys behind it. Arguments as for :func:`run`."""
    sysfs, gpu = findings.sysfs, findings.gpu
    rails_w, reasons = discovery.read_rails_w(findings)
    errors = dict(findings.errors)
    errors |= {f"rail {label}": reason for label, reason in reasons.items()}
    warnings = list(findings.warnings)
    warnings += [f"The rail {label} gives no reading: {reason}." for label, reason in reasons.items()]
    problems = list(findings.problems)
    node: dict[str, Any] | None = None
    if gpu is not None:
        refusal = why_not_pinned(sysfs, gpu)
        through = daemon(sysfs) if refusal is not None and not gpu.read_only and daemon is not None else None
        if through is not None:
            warnings.append(
                f"You may not write the clock yourself; the clock daemon at {through} pins it for you."
            )
            refusal = None
        load = discovery.gpu_load_pct(findings)
        if refusal is not None:
            problems.append(refusal)
            errors["pin"] = refusal
        if load is None:
            errors["gpu_load"] = (
                "load could not be read" if gpu.device else "the board has no file for the GPU's load"
            )
        node = {
            "node": f"/{gpu.path}",
            "available_mhz": [hz_to_mhz(hz) for hz in gpu.table_hz],
            "usable_mhz": [hz_to_mhz(hz) for hz in gpu.usable_hz],
            "min_mhz": hz_to_mhz(gpu.min_hz),
            "max_mhz": hz_to_mhz(gpu.max_hz),
            "cur_mhz": None if gpu.cur_hz is None else hz_to_mhz(gpu.cur_hz),
            "governor": gpu.governor,
            "can_pin": refusal is None,
            "util_pct": load,
        }
    problems += [
        f"A pin is in force that no run minds any more ({item}). Type `{sysfs.typed('restore')}`."
        for item in (stale(sysfs) if stale is not None else ())
    ]
    mode = findings.power_mode
    return {
        "board": findings.board,
        "model": findings.model,
        "provenance": "simulated" if diagnosis.is_emulated(sysfs) else "measured",
        "gpu": node,
        "rails_w": rails_w,
        "gpu_cpu_w": discovery.rail_sum_w(findings, findings.gpu_cpu, rails_w),
        "module_w": discovery.rail_sum_w(findings, findings.module, rails_w),
        "temps_c": discovery.temperatures_c(findings),
        "filter": {
            "samples": findings.filter.samples,
            "update_interval_ms": findings.filter.update_interval_ms,
        },
        "power_mode": None if mode is None else {"name": mode.name, "id": mode.id},
        "warnings": warnings,
        "problems": problems,
        "kind": findings.kind,
        "soc": findings.soc,
        "l4t": findings.l4t,
        "jetpack": findings.jetpack,
        "kernel": findings.kernel,
        "boot_id": findings.boot_id,
        "rail_sets": {
            "gpu_cpu": None if findings.gpu_cpu is None else list(findings.gpu_cpu),
            "module": None if findings.module is None else list(findings.module),
        },
        "energy_set": findings.energy_set,
        "found": findings.found,
        "errors": errors,
    }


# --- for people -------------------------------------------------------------------------------------------------------


def text(document: dict[str, Any]) -> str:
    """The report for people, as plain text."""
    power = _power_lines(document) if document["kind"] == "jetson" else []
    lines = _plain(
        [*_before(document), Section("Power", power), Section("Temperatures", _temperature_lines(document))]
    )
    works = [Section("What works", _works(document))]
    if "jtop" in document:
        works.append(Section("Against jtop", _jtop_lines(document["jtop"])))
    return "\n".join(lines + _plain([*works, *_behind(document)])).rstrip()


def blocks(document: dict[str, Any]) -> list[Block]:
    """The report for a terminal: what has numbers as tables."""
    shown: list[Block] = [*_before(document)]
    if document["kind"] == "jetson":
        shown += [_power_table(document), Section("", _power_notes(document))]
    shown += [_temperature_table(document), Section("What works", _works(document))]
    if "jtop" in document:
        shown.append(_jtop_table(document["jtop"]))
    return [*shown, *_behind(document)]


def _before(document: dict[str, Any]) -> list[Section]:
    clock = _gpu_lines(document) if document["kind"] == "jetson" else []
    return [Section("Board", _board_lines(document)), Section("GPU clock", clock)]


def _behind(document: dict[str, Any]) -> list[Section]:
    return [
        Section("Worth knowing", document["warnings"]),
        Section("What does not, and what to type", document["problems"]),
    ]


def _plain(sections: Iterable[Section]) -> list[str]:
    return [line for s in sections if s.lines for line in (s.title, *(f"  {line}" for line in s.lines), "")]


def _board_lines(document: dict[str, Any]) -> list[str]:
    release = ", ".join(
        f"{name} {document[key]}"
        for name, key in (
            ("JetPack", "jetpack"),
            ("Jetson Linux", "l4t"),
            ("kernel", "kernel"),
            ("SoC", "soc"),
        )
        if document[key]
    )
    simulated = (
        ["An emulated board: all values here are simulated."] if document["provenance"] == "simulated" else []
    )
    return [
        f"{document['board'] or 'no known Jetson'}: {document['model'] or 'no model text'}",
        release,
        *simulated,
    ]


def _jtop_lines(check: dict[str, Any]) -> list[str]:
    if not check["available"]:
        return [f"not compared: {check['reason']}"]
    return [f"jtop {check['version']}: ours, jtop's, difference"] + [
        f"{name:<24} {_or_unknown(pair['ours'])} {_or_unknown(pair['jtop'])} {_or_unknown(pair['difference'])}"
        for name, pair in _jtop_pairs(check)
    ]


def _jtop_pairs(check: dict[str, Any]) -> list[tuple[str, dict[str, float | None]]]:
    pairs = [(f"{label}, W", pair) for label, pair in check["rails_w"].items()]
    return [*pairs, ("GPU clock, MHz", check["gpu_mhz"]), ("GPU load, %", check["gpu_util_pct"])]


def _or_unknown(value: float | None) -> str:
    return f"{'unknown':>10}" if value is None else f"{value:>10.3f}"


def _gpu_lines(document: dict[str, Any]) -> list[str]:
    gpu, mode = document["gpu"], document["power_mode"]
    lines = [
        f"power mode {mode['name']}" + ("" if mode["id"] is None else f" (id {mode['id']})")
        if mode
        else "power mode unknown"
    ]
    if gpu is None:
        return [*lines, "no node"]
    now = "unknown" if gpu["cur_mhz"] is None else f"{gpu['cur_mhz']:g} MHz"
    load = "unknown" if gpu["util_pct"] is None else f"{gpu['util_pct']:.1f} %"
    usable = set(gpu["usable_mhz"])
    clocks = " ".join(f"{mhz:g}" if mhz in usable else f"({mhz:g})" for mhz in gpu["available_mhz"])
    return [
        *lines,
        f"now {now}, load {load}, bounds {gpu['min_mhz']:g} to {gpu['max_mhz']:g} MHz, governor {gpu['governor'] or 'unknown'}",
        f"clocks (MHz; in brackets: outside the bounds): {clocks or 'unknown'}",
        gpu["node"],
    ]


def _power_lines(document: dict[str, Any]) -> list[str]:
    rails, sets = document["rails_w"], document["rail_sets"]
    width = max(map(len, [*rails, "module"]))
    lines = [f"{label:<{width}}  {_watts(power)}" for label, power in rails.items()]
    lines += [
        f"{name:<{width}}  {_watts(document[name + '_w'])}  = {' + '.join(members)}"
        for name in SETS
        if (members := sets[name])
    ]
    if reason := document["errors"].get("gpu_cpu"):
        lines.append(f"{'gpu_cpu':<{width}}  none: {reason}")
    return lines + _power_notes(document)


def _power_notes(document: dict[str, Any]) -> list[str]:
    lines = [f"energies are of the set {document['energy_set']}"] if document["errors"].get("gpu_cpu") else []
    samples = document["filter"]["samples"]
    if samples is not None:
        interval = document["filter"]["update_interval_ms"]
        every = "" if interval is None else f", a new value every {interval} ms"
        lines.append(f"averaged by the monitors over {samples} samples{every}")
    return lines


def _power_table(document: dict[str, Any]) -> Table:
    sets = document["rail_sets"]
    rows = [[label, _figure(power, 3), ""] for label, power in document["rails_w"].items()]
    rows += [
        [name, _figure(document[f"{name}_w"], 3), " + ".join(members)]
        for name in SETS
        if (members := sets[name])
    ]
    if reason := document["errors"].get("gpu_cpu"):
        rows.append(["gpu_cpu", "unknown", f"none: {reason}"])
    return Table([Column("rail or sum"), Column("power (W)", number=True), Column("sum of")], rows, "Power")


def _temperature_table(document: dict[str, Any]) -> Table:
    rows = [
        [name, _figure(celsius, 1), "powered off" if celsius is None else ""]
        for name, celsius in document["temps_c"].items()
    ]
    degrees = Column("temperature (\N{DEGREE SIGN}C)", number=True)
    return Table([Column("zone"), degrees, Column("")], rows, "Temperatures")


def _jtop_table(check: dict[str, Any]) -> Block:
    if not check["available"]:
        return Section("Against jtop", _jtop_lines(check))
    columns = [Column("value"), *(Column(name, number=True) for name in ("ours", "jtop's", "difference"))]
    rows = [
        [name, *(_figure(pair[key], 3) for key in ("ours", "jtop", "difference"))]
        for name, pair in _jtop_pairs(check)
    ]
    return Table(columns, rows, f"Against jtop {check['version']}")


def _figure(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def _watts(power: float | None) -> str:
    return "unknown" if power is None else f"{power:7.3f} W"


def _temperature_lines(document: dict[str, Any]) -> list[str]:
    temps = document["temps_c"]
    known = [f"{name} {celsius:.1f}" for name, celsius in temps.items() if celsius is not None]
    off = [name for name, celsius in temps.items() if celsius is None]
    lines = ["degrees Celsius: " + ", ".join(known)] if known else []
    return lines + (["no reading (powered off): " + ", ".join(off)] if off else [])


def _works(document: dict[str, Any]) -> list[str]:
    gpu, lines = document["gpu"], []
    measured = [name for name in SETS if document[name + "_w"] is not None]
    if measured:
        lines.append(f"measuring energy ({', '.join(measured)})")
    elif any(power is not None for power in document["rails_w"].values()):
        lines.append("measuring single rails")
    if gpu is not None and gpu["can_pin"]:
        clocks = gpu["usable_mhz"]
        lines.append(f"pinning the GPU clock: {len(clocks)} clocks from {clocks[0]:g} to {clocks[-1]:g} MHz")
    if gpu is not None and gpu["util_pct"] is not None:
        lines.append("reading the GPU's load")
    return lines or ["nothing that needs a board; `wattune choose`, `explain` and `replay` do not"]
