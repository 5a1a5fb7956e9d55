"""``wattune pin`` and ``wattune restore``: the lease by hand, with the same safety as in a run."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import signal
import sys
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

from wattune.boards.jetson.discovery import discover, gpu_load_pct
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.boards.jetson.root import add_root_argument, sysfs_of
from wattune.core.errors import BoardError, InputError
from wattune.core.settings import hz_to_mhz, setting_label
from wattune.governing import state
from wattune.governing.bounds import Bounds, read_bounds, read_number, refusal
from wattune.governing.client import ClockdLease, open_lease
from wattune.governing.lease import Lease, match_clock

log = logging.getLogger("wattune")

RETRY_S = 1.0
"""How long a node that appears late is waited for."""

CHECK_S = 1.0
TICK_S = 0.1
LOOKS = 10
"""Ticks in which the clock may show under load before the pin is reported."""


# --- pin


def add_pin_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune pin``."""
    parser.add_argument("mhz", metavar="MHZ", help="a clock of the board's table, e.g. 612 or 1300.5")
    parser.add_argument(
        "--detach",
        action="store_true",
        help="leave the clock pinned and return; `wattune restore` undoes it (as does a reboot)",
    )
    parser.add_argument(
        "--throttled-ok",
        action="store_true",
        help="pin although heat limits the clock now: then only that limit can be restored as the upper bound",
    )
    add_root_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout, once it is pinned")


def run_pin(args: argparse.Namespace) -> int:
    """Pin the clock and hold it until Ctrl-C, or leave it pinned; returns the exit code.

    Raises:
        InputError: no clock of the table.
        BoardError: no GPU, no permission, above the power mode's bound, held by somebody else, or not restored.
        IntegrityError: a damaged lease file.
    """
    mhz = _mhz(args.mhz)
    sysfs = sysfs_of(args)
    findings = discover(sysfs, retry_s=RETRY_S)
    node = _gpu(findings)
    match_clock(mhz, node.table_hz, 0)  # a clock that is none is said before anything about the board's state
    lease = open_lease(
        findings.sysfs, node, mhz, cooling=findings.cooling or None, throttled_ok=args.throttled_ok
    )
    if args.detach and isinstance(lease, ClockdLease):
        raise BoardError(
            "A pin through the clock daemon cannot be left standing: it ends with the command that asked for it.",
            "The right to write the clock yourself was expected.",
            "Leave --detach out, or run the command with sudo.",
        )
    if node.min_hz == node.max_hz:
        log.warning(
            "wattune: The clock is pinned at %g MHz already; that is what will be put back.",
            node.max_hz / 1e6,
        )
    try:
        with _stop() as stopped, lease:
            _look(lease, findings)
            _show(lease, findings, detach=args.detach, as_json=args.json)
            if args.detach:
                lease.detach()
                log.info("wattune: The pin is left standing. Type `wattune restore` to undo it.")
                return 0
            _hold(lease, findings, stopped)
    except _Stopped:
        pass
    outcome = lease.outcome
    if outcome is None or outcome.kind == "failed":
        raise BoardError(
            "The bounds of the GPU clock could not be restored." if outcome is None else outcome.text,
            "The bounds found at the start were expected.",
            "Type `wattune restore`, or reboot the board.",
        )
    if lease.lost:
        raise BoardError(
            lease.lost if outcome.kind == "left" else f"{lease.lost} {outcome.text}",
            "A clock that nobody else sets was expected.",
            "Stop other programs that set clocks (jetson_clocks, nvpmodel, jtop), then pin it again.",
        )
    log.info("wattune: %s", outcome.text)
    return 0


def _mhz(text: str) -> float:
    try:
        mhz = float(text)
    except ValueError:
        mhz = 0.0
    if not 0 < mhz < 1e5:
        raise InputError(
            f"'{text}' is no clock.",
            "A number of MHz was expected.",
            "Type for example `wattune pin 612`; `wattune doctor` lists the clocks.",
        )
    return mhz


def _gpu(findings: Findings) -> GpuNode:
    if findings.gpu is None:
        reason = findings.errors.get("gpu", "no devfreq node of a GPU was found")
        raise BoardError(
            f"There is no GPU clock to pin here: {reason}.",
            "A Jetson's GPU was expected.",
            "Type `wattune doctor` to see what was found.",
        )
    return findings.gpu


def _show(lease: Lease, findings: Findings, *, detach: bool, as_json: bool) -> None:
    node, saved = lease.node, lease.saved
    assert saved is not None
    try:
        now = read_bounds(findings.sysfs, node.path)
    except OSError as error:
        raise refusal(error, node.path) from error
    document = {
        "board": findings.board,
        "node": node.path,
        "found": _in_mhz(saved) | {"governor": node.governor},
        "set_mhz": lease.mhz,
        "read": _in_mhz(now),
        "verified": lease.verified,
        "why": lease.why,
        "detached": detach,
        "state_file": str(lease.state_file),
        "events": [text for _, text in lease.events],
    }
    if as_json:
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    else:
        held = "Left pinned" if detach else "Held until Ctrl-C, then restored"
        sys.stdout.write(
            f"found     {saved}, governor {node.governor}\n"
            f"set       {setting_label(lease.mhz)} MHz\n"
            f"read back {now}\n"
            f"{held}. {'Verified' if lease.verified else 'Unverified so far'}: {lease.pins[-1].why}.\n"
        )
    sys.stdout.flush()


def _look(lease: Lease, findings: Findings) -> None:
    """Give the clock a moment to follow, and see whether a load proves it."""
    for _ in range(LOOKS):
        with contextlib.suppress(OSError):
            cur_hz = read_number(findings.sysfs, f"{lease.node.path}/cur_freq")
            lease.observe(cur_hz, gpu_load_pct(findings))
        if lease.pins[-1].verified:
            return
        time.sleep(TICK_S)


def _hold(lease: Lease, findings: Findings, stopped: list[int]) -> None:
    """Wait, looking after bounds and clock, until a signal comes or somebody else changes the bounds."""
    next_check = time.monotonic() + CHECK_S
    known = lease.pins[-1].verified
    while not stopped:
        time.sleep(TICK_S)
        if time.monotonic() < next_check:
            continue
        next_check = time.monotonic() + CHECK_S
        if not lease.check() and lease.lost:
            return
        with contextlib.suppress(OSError):
            cur_hz = read_number(findings.sysfs, f"{lease.node.path}/cur_freq")
            lease.observe(cur_hz, gpu_load_pct(findings))
        if lease.pins[-1].verified and not known:
            known = True
            log.info("wattune: Verified: %s.", lease.why)


class _Stopped(BaseException):
    """A signal asked for the end."""


@contextlib.contextmanager
def _stop() -> Iterator[list[int]]:
    """Take the signals that end a hold as its regular end."""
    came: list[int] = []

    def stop(number: int, _: FrameType | None) -> None:
        first = not came
        came.append(number)
        if first:
            raise _Stopped

    previous = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            previous[number] = signal.signal(number, stop)
    try:
        yield came
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _in_mhz(bounds: Bounds) -> dict[str, float]:
    return {"min_mhz": hz_to_mhz(bounds.min_hz), "max_mhz": hz_to_mhz(bounds.max_hz)}


# --- restore


def add_restore_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune restore``."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--force", action="store_true", help="also where somebody else has changed the bounds since the pin"
    )
    which.add_argument(
        "--forget", action="store_true", help="leave the bounds as they are and drop what was saved"
    )
    add_root_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run_restore(args: argparse.Namespace) -> int:
    """Undo the pins whose holders are gone; returns the exit code.

    Raises:
        BoardError: the holder is alive, somebody else changed the bounds since, or they could not be written.
        IntegrityError: a damaged lease file.
    """
    done = state.restore_stale(sysfs_of(args), force=args.force, forget=args.forget)
    if args.json:
        sys.stdout.write(json.dumps({"leases": [_entry(item) for item in done]}, indent=2) + "\n")
    elif not done:
        sys.stdout.write("Nothing to restore: no clock was left pinned.\n")
    else:
        for item in done:
            sys.stdout.write(f"{item.record.node.rsplit('/', 1)[-1]}: {item.outcome.text}\n")
    sys.stdout.flush()
    kept = [item for item in done if not item.removed]
    if kept:
        first = kept[0]
        changed = first.outcome.kind == "left"
        raise BoardError(
            first.outcome.text,
            f"The bounds as pinned by {first.record.holder} were expected."
            if changed
            else f"Bounds of {first.record.saved} were expected.",
            "Type `wattune restore --force` to restore them all the same, or `wattune restore --forget` to keep them."
            if changed
            else f"As root, type: {first.hint}",
        )
    return 0


def _entry(item: state.Restored) -> dict[str, Any]:
    now = item.outcome.bounds
    return {
        "node": item.record.node,
        "outcome": item.outcome.kind,
        "text": item.outcome.text,
        "saved": _in_mhz(item.record.saved),
        "now": None if now is None else _in_mhz(now),
        "pinned_by": item.record.holder,
        "state_file": str(item.path),
        "removed": item.removed,
    }
