"""Files of a board's tree as texts, names and numbers, and why one could not be read."""

from __future__ import annotations

import errno
import re
from fnmatch import fnmatch

from wattune.boards.jetson.sysfs import Sysfs

CLOCK = re.compile(r"\d{1,15}", re.ASCII)
"""A clock in Hz; more digits than that are no clock of anything."""


def reason_of(error: OSError) -> str:
    """Why a file could not be read, in words."""
    return {
        errno.ENOENT: "it is not there",
        errno.ENODATA: "its channel is switched off (ENODATA)",
        errno.EAGAIN: "its block is powered off or not ready (EAGAIN)",
        errno.EACCES: "no permission (EACCES)",
        errno.ETIMEDOUT: error.strerror or "no answer",
    }.get(error.errno or 0, error.strerror or str(error))


def text(sysfs: Sysfs, path: str) -> str | None:
    """A file's text; None where it cannot be read."""
    try:
        return sysfs.read(path)
    except OSError:
        return None


def names(sysfs: Sysfs, folder: str) -> list[str]:
    """What is in a folder; nothing where it cannot be read."""
    try:
        return sysfs.names(folder)
    except OSError:
        return []


def number(sysfs: Sysfs, path: str) -> int | None:
    """A file's whole number; None where there is none."""
    try:
        return whole(sysfs, path)
    except OSError:
        return None


def whole(sysfs: Sysfs, path: str) -> int:
    """A file's whole number.

    Raises:
        OSError: it could not be read, or what is in it is no number.
    """
    try:
        told = sysfs.read(path).strip()
    except BlockingIOError:
        told = sysfs.read(path).strip()  # not ready a moment ago; once more is enough to know
    if not re.fullmatch(r"[-+]?\d{1,18}", told):
        raise OSError(errno.EINVAL, f"'{told[:40]}' is no number" if told else "it is empty", path)
    return int(told)


def bound(sysfs: Sysfs, path: str) -> int:
    """A bound of the clock, Hz; 0 is no limit.

    Raises:
        OSError: it could not be read, or what is in it is no clock: the kernel keeps unsigned numbers (devfreq.c).
    """
    hz = whole(sysfs, path)
    if hz < 0:
        raise OSError(errno.EINVAL, f"'{hz}' is no clock", path)
    return hz


def expand(sysfs: Sysfs, pattern: str) -> list[str]:
    """Folders that match a pattern whose last part may hold wildcards."""
    folder, _, last = pattern.rpartition("/")
    return [f"{folder}/{name}" for name in names(sysfs, folder) if fnmatch(name, last)]


def digits(name: str) -> int:
    """The number in a name such as ``thermal_zone12``, to sort by; 0 where there is none."""
    return int(re.sub(r"\D", "", name) or 0)
