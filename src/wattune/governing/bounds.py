"""The two bounds of a devfreq node: read, written in the order every kernel takes, and put back only where they are still ours.

Kernel 4.9 refuses a bound that crosses the other one, so the order of the two writes matters. From 5.5 on a bound is a request
to PM-QoS: never refused, merged with those of others, and what is read is what is in force, not what was asked for
(linux: drivers/devfreq/devfreq.c). So a limit of the cooling device makes both bounds read lower while our request stands.
"""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeVar

from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError

T = TypeVar("T")

TOLERANCE_HZ = 1000
"""Kernels from 5.5 on keep bounds in kHz, the lower rounded down, the upper up."""

TRANSIENT = (errno.EAGAIN, errno.EBUSY, errno.EINTR)
PATIENCE_S = (0.05, 0.1, 0.2, 0.4)
"""Pauses before a node that is not ready (the GPU is waking or being reset) is asked again."""


class Bounds(NamedTuple):
    """``min_freq`` and ``max_freq``, Hz; 0 is no limit (kernel 4.9)."""

    min_hz: int
    max_hz: int

    def __str__(self) -> str:
        return f"{self.min_hz / 1e6:g} to {self.max_hz / 1e6:g} MHz"


def same(a: int, b: int) -> bool:
    """Whether two readings of a bound are one clock."""
    return abs(a - b) <= TOLERANCE_HZ


def same_bounds(a: Bounds, b: Bounds) -> bool:
    """Whether two pairs are the same within the kernel's rounding."""
    return same(a.min_hz, b.min_hz) and same(a.max_hz, b.max_hz)


def read_number(sysfs: Sysfs, path: str) -> int:
    """A file that holds one number.

    Raises:
        OSError: as the driver gives it; EIO where it holds no number.
    """
    text = patiently(lambda: sysfs.read(path))
    try:
        return int(text.split()[0])
    except (IndexError, ValueError):
        raise OSError(errno.EIO, f"it holds no number but '{text[:40]}'", path) from None


def read_bounds(sysfs: Sysfs, node: str) -> Bounds:
    """The bounds in force.

    Raises:
        OSError: as the driver gives it; EIO where one is below 0, which no kernel keeps.
    """
    found = Bounds(read_number(sysfs, f"{node}/min_freq"), read_number(sysfs, f"{node}/max_freq"))
    for name, hz in zip(("min_freq", "max_freq"), found, strict=True):
        if hz < 0:
            raise OSError(errno.EIO, f"'{hz}' is no clock", f"{node}/{name}")
    return found


def write_bounds(sysfs: Sysfs, node: str, wanted: Bounds) -> None:
    """Write both bounds, the one first that never crosses the other.

    Raises:
        OSError: as the driver gives it; EINVAL where it still refuses after somebody else's writes were taken into account.
    """
    for attempt in range(3):
        upper = read_number(sysfs, f"{node}/max_freq")
        raising = _limit(wanted.max_hz) >= _limit(upper)
        steps = [("max_freq", wanted.max_hz), ("min_freq", wanted.min_hz)]
        try:
            for name, hz in steps if raising else reversed(steps):
                _write(sysfs, f"{node}/{name}", hz)
        except OSError as error:
            if error.errno != errno.EINVAL or attempt == 2:
                raise
        else:
            return


def _write(sysfs: Sysfs, path: str, hz: int) -> None:
    try:
        patiently(lambda: sysfs.write(path, str(hz)))
    except OSError as error:
        error.filename = path  # write(2) does not say which file
        raise


def _limit(hz: int) -> float:
    return hz or float("inf")


def patiently(call: Callable[[], T]) -> T:
    """Call again after a pause where the node is not ready.

    Raises:
        OSError: any other fault, or still not ready after a second.
    """
    for pause in PATIENCE_S:
        try:
            return call()
        except OSError as error:
            if error.errno not in TRANSIENT:
                raise
        time.sleep(pause)
    return call()


def gpu_cooling(sysfs: Sysfs, node: str) -> tuple[str, ...]:
    """State files of the cooling devices that limit the GPU's clock, as far as their types tell."""
    folder, found = "sys/class/thermal", []
    try:
        names = sysfs.names(folder)
    except OSError:
        return ()
    for name in names:
        if not name.startswith("cooling_device"):
            continue
        try:
            kind = sysfs.read(f"{folder}/{name}/type").lower()
        except OSError:
            continue
        if node.rsplit("/", 1)[-1].lower() in kind or "gpu" in kind or kind.startswith("thermal-devfreq"):
            found.append(f"{folder}/{name}/cur_state")
    return tuple(found)


def throttled(sysfs: Sysfs, cooling: Iterable[str]) -> bool:
    """Whether a cooling device limits the GPU now; a state that cannot be read says nothing."""
    return any(_state(sysfs, path) > 0 for path in cooling)


def _state(sysfs: Sysfs, path: str) -> int:
    try:
        return int(sysfs.read(path).split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def fits(now: Bounds, pair: Bounds, *, capped: bool) -> bool:
    """Whether the bounds read are this pair, or this pair under a cooling device's limit (`capped`)."""
    if same_bounds(now, pair):
        return True
    limit = now.max_hz
    return capped and limit < _limit(pair.max_hz) and same_bounds(now, Bounds(min(pair.min_hz, limit), limit))


def own_pairs(saved: Bounds, set_hz: Sequence[int]) -> list[Bounds]:
    """Every pair of bounds that our own writes can leave behind, whole or cut short anywhere.

    A pin or its undoing is cut short with the lower bound at our clock and the upper one as found; a change of clock with
    the lower of the two clocks below the higher one. A lower bound as found under an upper one of ours is never between
    two writes of ours: that is somebody who capped the clock (a change of the power mode does so).
    """
    pairs = [Bounds(low, saved.max_hz) for low in set_hz]
    return pairs + [Bounds(low, high) for low in set_hz for high in set_hz if low <= high]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an attempt to put the bounds back.

    Attributes:
        kind: ``restored``, ``left`` (they are no longer ours), ``gone`` (the board has booted since) or ``failed``.
        text: a sentence for people.
        bounds: as read afterwards; None where they could not be read.
    """

    kind: Literal["restored", "left", "gone", "failed"]
    text: str
    bounds: Bounds | None = None


def put_back(
    sysfs: Sysfs,
    node: str,
    saved: Bounds,
    set_hz: Sequence[int],
    *,
    cooling: Iterable[str] = (),
    force: bool = False,
) -> Outcome:
    """Restore the bounds found, unless somebody else has changed them since.

    Args:
        sysfs: the tree.
        node: the devfreq node's folder.
        saved: as found before the first write.
        set_hz: clocks we may have pinned at.
        cooling: state files of the GPU's cooling devices.
        force: also where the bounds are no longer ours.

    Returns:
        What became of it; never raises for what a driver may do.
    """
    try:
        now = read_bounds(sysfs, node)
        capped = throttled(sysfs, cooling)
        ours = any(fits(now, pair, capped=capped) for pair in [*own_pairs(saved, set_hz), saved])
        if not ours and not force:
            return Outcome(
                "left",
                f"The bounds of the GPU clock are no longer what was set here: they read {now}, so somebody else"
                f" changed them, and they are left alone (found at the start: {saved}).",
                now,
            )
        write_bounds(sysfs, node, saved)
        after = read_bounds(sysfs, node)
    except OSError as error:
        return Outcome("failed", f"The bounds could not be restored to {saved}: {reason_of(error)}.")
    if same_bounds(after, saved):
        return Outcome("restored", f"The bounds are again what they were: {after}.", after)
    if after.max_hz < _limit(saved.max_hz) and fits(after, saved, capped=True):
        text = f"The bounds were restored to {saved}; a limit of the system holds them at {after} for now."
        return Outcome("restored", text, after)
    return Outcome("failed", f"The bounds read {after} after {saved} was written.", after)


def commands(sysfs: Sysfs, node: str, saved: Bounds) -> str:
    """What to type to restore the bounds by hand (the clock was lowered or kept, so the upper one goes first)."""
    upper, lower = (shlex.quote(f"{sysfs.path(node)}/{name}") for name in ("max_freq", "min_freq"))
    return f"echo {saved.max_hz} | sudo tee {upper}; echo {saved.min_hz} | sudo tee {lower}"


def reason_of(error: OSError) -> str:
    """An OSError in a few words."""
    return error.strerror or str(error)


def refusal(error: OSError, node: str) -> BoardError:
    """The message for a node that cannot be read or written."""
    path = error.filename or node
    who = "root" if os.geteuid() == 0 else f"user {os.geteuid()}, who is not root"
    reasons = {
        errno.EACCES: (
            f"{path} may not be written by you ({who}).",
            "Run the command with sudo, or give your group write permission to min_freq and max_freq of that folder.",
        ),
        errno.EROFS: (
            f"{path} lies on a read-only file system (unprivileged containers mount /sys so).",
            "Run it on the board itself, or start the container with --privileged.",
        ),
        errno.ENOENT: (
            f"{path} is not there: the GPU's devfreq node is absent or went away.",
            "Type `wattune doctor` to see what was found.",
        ),
        errno.ETIMEDOUT: (
            f"{path} does not answer: {reason_of(error)}.",
            "A driver that hangs needs a reboot of the board.",
        ),
        errno.EINVAL: (
            f"{path} refuses the clock (invalid argument): somebody else changes the bounds at the same time.",
            "Stop other programs that set clocks (jetson_clocks, nvpmodel, jtop) and try again.",
        ),
    }
    reasons[errno.EPERM] = reasons[errno.EACCES]
    what, hint = reasons.get(
        error.errno or 0,
        (
            f"{path} could not be read or written: {reason_of(error)}.",
            "Type `wattune doctor` to see what works.",
        ),
    )
    return BoardError(what, "A GPU clock whose bounds can be written was expected.", hint)
