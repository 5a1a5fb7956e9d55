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
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from wattune.boards.jetson.diagnosis import why_no_clock
from wattune.boards.jetson.discovery import discover, gpu_load_pct
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.boards.jetson.root import add_root_argument, sysfs_of
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError, IntegrityError
from wattune.core.numbers import decimal_number
from wattune.core.settings import hz_to_mhz, setting_label
from wattune.governing import state
from wattune.governing.bounds import Bounds, Outcome, commands, read_bounds, read_number, refusal
from wattune.governing.client import ClockdLease, open_lease
from wattune.governing.damaged import Damaged, FullRange, damaged_files, forget, free, full_range, give_back
from wattune.governing.lease import Lease, match_clock, refuse_read_only

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
    refuse_read_only(node)
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
                log.info("wattune: The pin is left standing. Type `%s` to undo it.", sysfs.typed("restore"))
                return 0
            _hold(lease, findings, stopped)
    except _Stopped:
        pass
    outcome = lease.outcome
    if outcome is None or outcome.kind == "failed":
        raise BoardError(
            "The bounds of the GPU clock could not be restored." if outcome is None else outcome.text,
            "The bounds found at the start were expected.",
            f"Type `{sysfs.typed('restore')}`, or reboot the board.",
        )
    if lease.lost:  # said in full when it was seen
        end = "the bounds are left as they are now" if outcome.kind == "left" else outcome.text.rstrip(".")
        raise lease.taken(
            f"The pin at {setting_label(lease.mhz)} MHz ended early; {end[0].lower()}{end[1:]}."
        )
    log.info("wattune: %s", outcome.text)
    return 0


def _mhz(text: str) -> float:
    try:
        mhz = decimal_number(text)
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
        what, expected, hint = why_no_clock(findings)
        raise BoardError(f"There is no GPU clock to pin here. {what}", expected, hint)
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
    which.add_argument(
        "--full-range",
        action="store_true",
        help="where a lease file is damaged, or missing: set the bounds to all clocks that the power mode allows",
    )
    add_root_argument(parser)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run_restore(args: argparse.Namespace) -> int:
    """Undo the pins whose holders are gone; returns the exit code.

    Raises:
        BoardError: the holder is alive, somebody else changed the bounds since, or they could not be written.
        IntegrityError: a damaged lease file, which was left as it is.
    """
    sysfs = sysfs_of(args)
    done = state.restore_stale(sysfs, force=args.force, forget=args.forget, pass_damaged=True)
    damaged = damaged_files(sysfs)
    findings = discover(sysfs, retry_s=RETRY_S) if damaged else None
    treated = [_treat(one, findings, args) for one in damaged if findings is not None]
    note = "" if done or treated else _without_file(sysfs, args.full_range)
    if args.json:
        document = {
            "leases": [_entry(item) for item in done],
            "damaged": [item.entry() for item in treated],
            "note": note,
        }
        sys.stdout.write(json.dumps(document, indent=2) + "\n")
    elif note:
        sys.stdout.write(note + "\n")
    else:
        for item in done:
            sys.stdout.write(f"{item.record.node.rsplit('/', 1)[-1]}: {item.outcome.text}\n")
        for one in treated:
            if one.outcome is not None:
                sys.stdout.write(f"{one.file.path.name}: {one.outcome.text}\n")
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
            f"Type `{sysfs.typed('restore --force')}` to restore them all the same, or `{sysfs.typed('restore --forget')}`"
            " to keep them."
            if changed
            else f"As root, type: {first.hint}",
        )
    for one in treated:
        one.raise_where_kept()
    return 0


def _without_file(sysfs: Sysfs, wanted: bool) -> str:
    """What there is to say, and where it is wanted to do, without a lease file: a pin may have lost its own.

    Raises:
        BoardError: the bounds could not be set.
    """
    nothing = "Nothing to restore: no clock was left pinned."
    findings = discover(sysfs, retry_s=RETRY_S)
    gpu = findings.gpu
    if gpu is None or len(gpu.table_hz) < 2 or gpu.read_only:
        return nothing
    try:
        now = read_bounds(sysfs, gpu.path)
    except OSError:
        return nothing
    if now.min_hz != now.max_hz:
        return nothing
    if not wanted:
        return (
            f"There is no lease file, but the bounds are {now}: somebody pinned that clock, or a pin of ours lost its file. To set all"
            f" clocks that the power mode allows, type `{sysfs.typed('restore --full-range')}`."
        )
    to = full_range(findings, gpu, {})
    if to is None:
        raise BoardError(
            "Nothing says how far the power mode lets the clock go.",
            "The mode's cap in nvpmodel.conf was expected.",
            "Set the power mode again, which sets the bounds: `sudo nvpmodel -m ID`.",
        )
    outcome = free(sysfs, gpu, to)
    if outcome.kind != "restored":
        raise BoardError(outcome.text, f"Bounds of {to.bounds} were expected.", "Run it as root.")
    return outcome.text


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


# --- a damaged lease file


@dataclass(frozen=True, slots=True)
class _Treated:
    """What became of a damaged lease file.

    Attributes:
        file: the file.
        findings: the board.
        now: its bounds; None where they cannot be read.
        wanted: the full range; None where it is not known.
        outcome: of setting or forgetting; None where nothing was asked for, or could be done.
    """

    file: Damaged
    findings: Findings
    now: Bounds | None
    wanted: FullRange | None
    outcome: Outcome | None = None

    @property
    def removed(self) -> bool:
        return self.outcome is not None and self.outcome.kind in ("restored", "left")

    def entry(self) -> dict[str, Any]:
        wanted = None if self.wanted is None else _in_mhz(self.wanted.bounds) | {"by": self.wanted.by}
        return {
            "state_file": str(self.file.path),
            "problem": self.file.error.what,
            "readable": self.file.readable,
            "now": None if self.now is None else _in_mhz(self.now),
            "full_range": wanted,
            "outcome": None if self.outcome is None else self.outcome.kind,
            "text": None if self.outcome is None else self.outcome.text,
            "removed": self.removed,
        }

    def raise_where_kept(self) -> None:
        """Say what can be done about a file that still stands.

        Raises:
            IntegrityError: it was not asked to be dealt with.
            BoardError: it was, and could not be.
        """
        gpu = self.findings.gpu
        if self.removed:
            return
        if self.outcome is not None:
            raise BoardError(
                self.outcome.text,
                "Bounds that can be written were expected.",
                "Run the command with sudo; where it fails as root too, reboot the board, which resets them.",
            )
        now = "The bounds cannot be read now." if self.now is None else f"The bounds read {self.now} now."
        sysfs = self.findings.sysfs
        drop = f"type `{sysfs.typed('restore --forget')}` to drop the file and leave the bounds"
        if gpu is None or not gpu.table_hz or gpu.read_only:
            hint = f"Reboot the board, which resets them; {drop}."
        elif self.wanted is not None:
            by_hand = commands(sysfs, gpu.path, self.wanted.bounds)
            hint = (
                f"Type `{sysfs.typed('restore --full-range')}` (as root) to set them to {self.wanted.bounds}, the table up to"
                f" {self.wanted.by}, and drop the file; that is: {by_hand}. Or {drop}."
            )
        else:
            by_hand = commands(sysfs, gpu.path, Bounds(gpu.table_hz[0], gpu.table_hz[-1]))
            hint = (
                "How far the power mode lets the clock go is unknown: reboot the board, or, where nothing caps it, type"
                f" {by_hand}; then {drop}."
            )
        raise IntegrityError(f"{self.file.error.what} {self.file} {now}", self.file.error.expected, hint)


def _treat(one: Damaged, findings: Findings, args: argparse.Namespace) -> _Treated:
    """Do with a damaged file what the command says; without a word from the user nothing is done."""
    sysfs, gpu, now, wanted = findings.sysfs, findings.gpu, None, None
    if gpu is not None:
        with contextlib.suppress(OSError):
            now = read_bounds(sysfs, gpu.path)
        wanted = full_range(findings, gpu, one.readable) if gpu.table_hz and not gpu.read_only else None
    treated = _Treated(one, findings, now, wanted)
    if args.forget:
        forget(one)
        text = "The bounds are left as they are, and the damaged file is dropped."
        return replace(treated, outcome=Outcome("left", text, now))
    if args.full_range and gpu is not None and wanted is not None:
        outcome = give_back(sysfs, one, gpu, wanted)
        return replace(treated, outcome=outcome, now=outcome.bounds or now)
    return treated
