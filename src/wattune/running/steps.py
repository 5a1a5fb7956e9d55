"""Where finished steps are learnt from: the loop itself, a file it counts into, or the ups and downs of the GPU's load."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from wattune.core.errors import BoardError
from wattune.profiling.load import read_steps

EDGES = 20_000
"""Ends of steps that are remembered."""

POLL_S = 0.02
"""How often a file is looked at while something is measured."""

LOAD_POLL_S = 0.01
LOW_PCT, HIGH_PCT = 0.35, 0.65
"""The load has gone down, or up, where it is within these shares of the distance between its usual low and high."""

LEAST_SWING_PCT = 15.0
"""A load that moves by less has no ups and downs to count."""

LOOK_BACK_S = 5.0


class Steps:
    """Ends of steps, with their times.

    Attributes:
        source: ``loop``, ``file`` or ``gpu load``.
        poll_s: how often :meth:`poll` wants to be called while something is measured; None where it does not matter.
    """

    source = "loop"
    poll_s: float | None = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._edges: deque[tuple[float, int]] = deque(maxlen=EDGES)
        self._lock = threading.Lock()
        self._first: int | None = None
        self.count: int | None = None

    @property
    def done(self) -> int | None:
        """Steps finished since the beginning; None where nothing was ever counted."""
        return None if self.count is None or self._first is None else self.count - self._first

    def add(self, count: int, *, first: int = 0) -> None:
        """So many steps are finished now; a count that goes back is a loop that was started anew.

        Args:
            count: the number.
            first: what the count was at the beginning, for the first call.
        """
        with self._lock:
            if self.count is None or count < self.count:
                self._edges.clear()
                self._first = first if self.count is None else count - (self.done or 0)
            if count != self.count:
                self.count = count
                self._edges.append((self._clock(), count))

    def finished(self, steps: int = 1) -> None:
        """So many more steps are finished."""
        self.add((self.count or 0) + steps)

    def edges(self, t0_s: float, t1_s: float) -> list[tuple[float, int]]:
        """Ends of steps from one moment to another."""
        with self._lock:
            return [edge for edge in self._edges if t0_s <= edge[0] <= t1_s]

    def poll(self) -> None:
        """Look, where looking is needed."""


class FileSteps(Steps):
    """Steps from a file that a loop counts into (docs/measuring.md).

    Args:
        path: the file; it need not be there yet.
        clock: seconds.
    """

    source = "file"
    poll_s = POLL_S

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.path, self.problem = path, ""

    def poll(self) -> None:
        """See :class:`Steps`; what is no number is remembered as the `problem` and counts nothing."""
        try:
            count = read_steps(self.path)
        except BoardError as error:
            self.problem = str(error)
            return
        if count is not None:
            self.add(count)


class LoadSteps(Steps):
    """Rounds of work from the GPU's load: every time it goes down and comes up again is one.

    A round need not be a step; it must only be the same work at every clock. Where the load hardly moves there are none.

    Args:
        load_pct: reads the load, percent; None where unknown.
        clock: seconds.
    """

    source = "gpu load"
    poll_s = LOAD_POLL_S

    def __init__(
        self, load_pct: Callable[[], float | None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(clock)
        self._load_pct = load_pct
        self._seen: deque[tuple[float, float]] = deque()
        self._up = True

    def poll(self) -> None:
        """See :class:`Steps`."""
        load, now = self._load_pct(), self._clock()
        if load is None:
            return
        self._seen.append((now, load))
        while now - self._seen[0][0] > LOOK_BACK_S:
            self._seen.popleft()
        ordered = sorted(load for _, load in self._seen)
        low, high = ordered[len(ordered) // 20], ordered[-1 - len(ordered) // 20]
        if high - low < LEAST_SWING_PCT:
            return
        share = (load - low) / (high - low)
        if self._up and share <= LOW_PCT:
            self._up = False
        elif not self._up and share >= HIGH_PCT:
            self._up = True
            self.finished()
