"""A lease file that cannot be believed: what is readable in it, and the way back to a free clock without it.

What it says is shown and never acted upon. The clock is given back by the board's own word: the table's full range, up to the cap
of the power mode in force. Where somebody had set other bounds that is not what was found, so it is done only when asked for.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from wattune.boards.jetson import powermode
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, IntegrityError
from wattune.governing import state
from wattune.governing.bounds import Bounds, Outcome, fits, read_bounds, reason_of, write_bounds

_ENTRY = re.compile(
    rb'"(node|program|boot_id)"\s*:\s*"([ !#-\[\]-~]{1,200})"'
    rb'|"(saved_min_hz|saved_max_hz|pid)"\s*:\s*(\d{1,12})(?=\s*[,}])'
)
"""An entry of a lease file that stands there whole, wherever the file was cut or overwritten."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A lease file that was refused.

    Attributes:
        path: the file.
        error: why it was refused.
        readable: entry -> value as it stands there, clocks in Hz; empty where nothing can be read, and where the file is a
            link or somebody else's.
    """

    path: Path
    error: IntegrityError
    readable: dict[str, int | str]

    def __str__(self) -> str:
        """What is readable, in a few words."""
        said = [f"by {self.readable['program']}"] if "program" in self.readable else []
        if "pid" in self.readable:
            said.append(f"process {self.readable['pid']}")
        low, high = (self.readable.get(name) for name in ("saved_min_hz", "saved_max_hz"))
        if isinstance(low, int) and isinstance(high, int):
            said.append(f"bounds found {Bounds(low, high)}")
        elif isinstance(high, int):
            said.append(f"upper bound found {high / 1e6:g} MHz")
        elif isinstance(low, int):
            said.append(f"lower bound found {low / 1e6:g} MHz")
        return f"Readable in it: {', '.join(said)}." if said else "Nothing in it can be read."


def damaged_files(sysfs: Sysfs) -> list[Damaged]:
    """Lease files that are refused. Changes nothing.

    Raises:
        BoardError: a file could not be read.
    """
    looked_at = ((path, _why_refused(path, sysfs)) for path in state.lease_files(sysfs))
    return [Damaged(path, error, _readable(path)) for path, error in looked_at if error is not None]


def _why_refused(path: Path, sysfs: Sysfs) -> IntegrityError | None:
    try:
        state.load(path, sysfs)
    except IntegrityError as error:
        return error
    return None


def _readable(path: Path) -> dict[str, int | str]:
    text = b""
    with contextlib.suppress(OSError):
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        try:
            about = os.fstat(handle)
            if stat.S_ISREG(about.st_mode) and about.st_uid in (0, os.geteuid()):
                text = os.read(handle, state.MAX_BYTES)
        finally:
            os.close(handle)
    found: dict[str, int | str] = {}
    for word, words, number, digits in _ENTRY.findall(text):
        found.setdefault((word or number).decode(), words.decode() if word else int(digits))
    return found


@dataclass(frozen=True, slots=True)
class FullRange:
    """Bounds that let the clock run as the power mode allows; `by` says what the upper one rests on."""

    bounds: Bounds
    by: str


def full_range(findings: Findings, node: GpuNode, readable: dict[str, int | str]) -> FullRange | None:
    """The table's range within the cap found; None where nothing says how far the power mode lets the clock go.

    Args:
        findings: the board.
        node: its GPU's node.
        readable: of the damaged file; its upper bound counts only where the board says nothing, and if it is a clock of the table.
    """
    low, top = node.table_hz[0], node.table_hz[-1]
    mode, conf = findings.power_mode, powermode.read_conf(findings.sysfs)
    if conf is not None and mode is not None and mode.id is not None and mode.id in conf.gpu_max_hz:
        cap = conf.gpu_max_hz[mode.id] or top
        return FullRange(Bounds(low, max(low, min(cap, top))), f"the cap of {mode.name} in /{powermode.CONF}")
    if mode is not None and mode.name.upper().startswith("MAXN"):
        return FullRange(Bounds(low, top), f"the power mode {mode.name}")
    saved = readable.get("saved_max_hz")
    if isinstance(saved, int) and saved in node.table_hz:
        return FullRange(Bounds(low, saved), "the upper bound that is readable in the file")
    return None


def give_back(sysfs: Sysfs, one: Damaged, node: GpuNode, wanted: FullRange) -> Outcome:
    """Set the full range and drop the damaged file; where the bounds do not read so the file stays.

    Raises:
        BoardError: somebody holds the clock, the file is of another node, or it cannot be removed.
    """
    _must_be_of(one, node, sysfs)
    lock = state.lock_node(sysfs, one.path.parent, node.path)
    try:
        outcome = _set(sysfs, node, wanted)
        if outcome.kind == "restored":
            state.remove(one.path)
        return outcome
    finally:
        lock.release()


def free(sysfs: Sysfs, node: GpuNode, wanted: FullRange) -> Outcome:
    """Set the full range where no lease file is left to say what was found.

    Raises:
        BoardError: somebody holds the clock.
    """
    lock = state.lock_node(sysfs, state.usable_folder(sysfs), node.path)
    try:
        return _set(sysfs, node, wanted)
    finally:
        lock.release()


def _set(sysfs: Sysfs, node: GpuNode, wanted: FullRange) -> Outcome:
    try:
        write_bounds(sysfs, node.path, wanted.bounds)
        after = read_bounds(sysfs, node.path)
    except OSError as error:
        return Outcome("failed", f"The bounds could not be set to {wanted.bounds}: {reason_of(error)}.")
    if not fits(after, wanted.bounds, capped=True):
        return Outcome("failed", f"The bounds read {after} after {wanted.bounds} was written.", after)
    return Outcome("restored", f"The bounds were set to {after}, the table up to {wanted.by}.", after)


def forget(one: Damaged) -> None:
    """Drop a damaged file and leave the bounds.

    Raises:
        BoardError: somebody holds the clock, or it cannot be removed.
    """
    lock = state.lock_file(one.path)
    try:
        state.remove(one.path)
    finally:
        lock.release()


def _must_be_of(one: Damaged, node: GpuNode, sysfs: Sysfs) -> None:
    if state.state_path(one.path.parent, node.path) != one.path:
        raise BoardError(
            f"The damaged lease file {one.path} is not of this board's GPU ({node.path}).",
            "One of that node was expected.",
            f"Type `{sysfs.typed('restore --forget')}` to drop it.",
        )
