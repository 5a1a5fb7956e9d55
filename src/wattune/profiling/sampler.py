"""Reads files at a steady rate with as little work as can be: the part of the meter that runs while something is measured.

Files are opened once and read again from the start, one `pread` each, which makes a driver compute its answer anew. What a file
does not answer is the name of its error, never a number. Run as a script this is the meter's own process: it imports nothing of
ours, so it starts fast, and it ends when whoever started it does.
"""

from __future__ import annotations

import errno
import json
import os
import select
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import NamedTuple

Value = int | str
"""What a file said: its number, or the name of the error (``EIO``, ``empty``)."""

MAX_BYTES = 64
FLUSH_S = 1.0
MOVED = 0.1
"""A current that changed by more than this share may have changed the voltage."""

REFRESH_S = 5.0
"""How often files that are kept open are looked at: on a real board they never go away by themselves."""

LASTING = frozenset({errno.EAGAIN, errno.ENODATA, errno.EINVAL, errno.EBUSY})
"""Errors of a block that is off or busy; after any other one the file is opened anew (its driver may have been bound again)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is read, and how often.

    Attributes:
        rails: files of the power monitors, for each rail its voltage and current, or its power alone. Current or power are read at
            every sample; a voltage once in `slow_period_s` and whenever the current moved by a tenth since (a supply gives way to
            its load, and to nothing else), which spares half of the transfers on the monitors' bus.
        state: other files read at every sample.
        load: the GPU's load; empty where there is none. It is read at every sample while the GPU is busy and otherwise with
            the slow ones: reading it more often than the rail-gating delay would keep an idle GPU powered.
        slow: files read once in `slow_period_s` seconds.
        period_s: time between two samples.
    """

    rails: tuple[tuple[str, ...], ...]
    state: tuple[str, ...]
    load: str
    slow: tuple[str, ...]
    period_s: float
    slow_period_s: float = 1.0


class Sample(NamedTuple):
    """One sample.

    Attributes:
        begin_s: when the first rail was about to be read, `end_s` when the last one was; seconds, monotonic.
        rails: values in the order of the plan, those of all rails in a row; `state` likewise.
        load: per mille; None where it was not read this time.
        slow: None where they were not read this time.
    """

    begin_s: float
    end_s: float
    rails: tuple[Value, ...]
    state: tuple[Value, ...]
    load: Value | None
    slow: tuple[Value, ...] | None


class File:
    """A file kept open.

    Args:
        path: which.
    """

    __slots__ = ("_handle", "_path")

    def __init__(self, path: str) -> None:
        self._path = path
        self._handle: int | None = None

    def __call__(self) -> bytes:
        """Its content now.

        Raises:
            OSError: as the driver gives it.
        """
        if self._handle is None:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(self._handle, MAX_BYTES, 0)
        except OSError as error:
            if error.errno not in LASTING:
                self.close()
            raise

    def refresh(self) -> None:
        """Let a file that was deleted go; reading it again looks for another one of that name."""
        if self._handle is None:
            return
        try:
            gone = os.fstat(self._handle).st_nlink == 0
        except OSError:
            gone = True
        if gone:
            self.close()

    def close(self) -> None:
        """Close it; the next read opens it again."""
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


def number(read: Callable[[], bytes | str]) -> Value:
    """What a file says, as a number or as the name of what went wrong."""
    try:
        text = read()
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, type(error).__name__)
    try:
        return int(text)
    except ValueError:
        return "not a number" if text.strip() else "empty"


class _Rail:
    """A rail's files, and the voltage as last read."""

    __slots__ = ("_at_ma", "_mv", "_second", "first")

    def __init__(self, first: Callable[[], bytes | str], second: Callable[[], bytes | str] | None) -> None:
        self.first, self._second = first, second
        self._mv: Value = "unread"
        self._at_ma = 0

    def files(self) -> tuple[Callable[[], bytes | str], ...]:
        return (self.first,) if self._second is None else (self.first, self._second)

    def read(self, everything: bool) -> tuple[Value, ...]:
        if self._second is None:
            return (number(self.first),)
        ma = number(self._second)
        held, at = self._mv, self._at_ma
        if everything or isinstance(held, str) or (isinstance(ma, int) and abs(ma - at) > MOVED * abs(at)):
            held = self._mv = number(self.first)
            self._at_ma = ma if isinstance(ma, int) else 0
        return held, ma


class Sampler:
    """Takes samples of a plan.

    Args:
        plan: what to read.
        open_file: makes a reader of a path; files kept open by default.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        plan: Plan,
        open_file: Callable[[str], Callable[[], bytes | str]] = File,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock, self._slow_period_s = clock, plan.slow_period_s
        self._rails = [
            _Rail(open_file(files[0]), open_file(files[1]) if len(files) > 1 else None)
            for files in plan.rails
        ]
        self._state = [open_file(path) for path in plan.state]
        self._load = open_file(plan.load) if plan.load else None
        self._slow = [open_file(path) for path in plan.slow]
        self._volts_due: float | None = None
        self._slow_due: float | None = None
        self._refresh_due = clock() + REFRESH_S
        self._busy = True

    def sample(self, *, parts: str = "rails state slow", everything: bool = False) -> Sample:
        """Read everything that is due.

        Args:
            parts: which of ``rails``, ``state`` (with the load) and ``slow`` are read at all.
            everything: read also what is not due.
        """
        begin = self._clock()
        rails: tuple[Value, ...] = ()
        if "rails" in parts:
            volts = everything or self._volts_due is None or begin >= self._volts_due
            if volts:
                self._volts_due = begin + self._slow_period_s
            rails = tuple([value for rail in self._rails for value in rail.read(volts)])
        end = self._clock()
        state: tuple[Value, ...] = ()
        load: Value | None = None
        slow: tuple[Value, ...] | None = None
        if "state" in parts:
            state = tuple([number(read) for read in self._state])
        due = everything or self._slow_due is None or begin >= self._slow_due
        if "state" in parts and self._load is not None and (self._busy or due):
            load = number(self._load)
            self._busy = load != 0
        if due and ("slow" in parts):
            self._slow_due = begin + self._slow_period_s
            slow = tuple([number(read) for read in self._slow])
        if begin >= self._refresh_due:
            self._refresh_due = begin + REFRESH_S
            for read in self._files():
                read.refresh()
        return Sample(begin, end, rails, state, load, slow)

    def _files(self) -> list[File]:
        loads = [self._load] if self._load is not None else []
        rails = [file for rail in self._rails for file in rail.files()]
        return [read for read in (*rails, *self._state, *loads, *self._slow) if isinstance(read, File)]

    def close(self) -> None:
        """Close all files."""
        for read in self._files():
            read.close()


def pace(
    take: Callable[[], object],
    wait: Callable[[float], bool],
    clock: Callable[[], float],
    period_s: float,
    missed: Callable[[float, int], object],
) -> None:
    """Take samples at whole multiples of a period until told to stop; a late one does not shift those after it.

    Args:
        take: takes a sample.
        wait: sleeps so many seconds (or not at all where negative); true: stop.
        clock: seconds.
        period_s: time between two samples.
        missed: told when, and how many samples were due and could not be taken.
    """
    started, tick = clock(), 0
    while True:
        take()
        tick += 1
        if wait(started + tick * period_s - clock()):
            return
        now = clock()
        latest = int((now - started) / period_s + 1e-9)
        if latest > tick:
            missed(now, latest - tick)
            tick = latest


def main(arguments: list[str]) -> int:
    """The meter's own process: samples as JSON lines on standard output, commands as letters on standard input.

    ``m`` samples at once, ``f`` sends what there is, ``q`` or the end of the input ends it.
    """
    plan = plan_of(arguments[0])
    parent = os.getppid()
    sampler = Sampler(plan)
    samples: list[Sample] = []
    missed: list[tuple[float, int]] = []
    answered, flushed = 0, time.monotonic()

    def flush() -> None:
        nonlocal flushed
        flushed = time.monotonic()
        record = {"samples": samples, "missed": missed, "cpu_s": time.process_time(), "answered": answered}
        text = json.dumps(record, separators=(",", ":")) + "\n"
        samples.clear()
        missed.clear()
        data = text.encode()
        while data:
            data = data[os.write(1, data) :]

    def wait(seconds: float) -> bool:
        nonlocal answered
        if time.monotonic() - flushed >= FLUSH_S:
            flush()
            if os.getppid() != parent:
                return True
        until = time.monotonic() + seconds
        while True:
            ready, _, _ = select.select([0], [], [], max(0.0, until - time.monotonic()))
            if not ready:
                return False
            letters = os.read(0, MAX_BYTES)
            if b"m" in letters:
                samples.append(sampler.sample(everything=True))
            answered += len(letters)
            if letters and b"q" not in letters:
                flush()
            else:
                return True

    try:
        pace(lambda: samples.append(sampler.sample()), wait, time.monotonic, plan.period_s,
             lambda at, n: missed.append((at, n)))  # fmt: skip
        flush()
    except BrokenPipeError:  # nobody listens any more
        return 0
    return 0


def plan_text(plan: Plan) -> str:
    """A plan as :func:`main` takes it."""
    return json.dumps(asdict(plan), separators=(",", ":"))


def plan_of(text: str) -> Plan:
    """Inverse of :func:`plan_text`."""
    document = json.loads(text)
    document["rails"] = tuple(tuple(files) for files in document["rails"])
    for name in ("state", "slow"):
        document[name] = tuple(document[name])
    return Plan(**document)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
