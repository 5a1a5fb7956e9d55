"""Where finished steps are learnt from: the loop itself, a file it counts into, or the ups and downs of the GPU's load."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from wattune.core.errors import BoardError
from wattune.profiling.load import read_steps

EDGES = 20_000
"""Ends of steps that are remembered."""

POLL_S = 0.02
"""How often a file is looked at while something is measured."""

REST_POLL_S = 1.0
LOAD_POLL_S = 0.01
LOW_PCT, HIGH_PCT = 0.35, 0.65
"""The load has gone down, or up, where it is within these shares of the distance between its usual low and high."""

LEAST_SWING_PCT = 15.0
"""A load that moves by less has no ups and downs to count."""

LOOK_BACK_S = 5.0


class Edge(NamedTuple):
    """The end of a step: when, how many were finished then, and how much work that was (steps where nobody says)."""

    t_s: float
    steps: int
    work: float


class Steps:
    """Ends of steps, with their times.

    Attributes:
        source: ``loop``, ``file`` or ``gpu load``.
        poll_s: how often :meth:`poll` wants to be called while something is measured; None where it does not matter.
        rest_poll_s: how often at other times, once the first step was seen.
        began: when a step was first seen to be finished, and how many were then; None before.
        problem: what was read that is no count; empty where nothing was.
        anew: from which count to which it went back, each time.
    """

    source = "loop"
    poll_s: float | None = None
    rest_poll_s: float | None = None

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._edges: deque[Edge] = deque(maxlen=EDGES)
        self._lock = threading.Lock()
        self._first: int | None = None
        self._work = 0.0
        self.problem = ""
        self.anew: list[tuple[int, int]] = []
        self.count: int | None = None
        self.began: tuple[float, int] | None = None

    @property
    def done(self) -> int | None:
        """Steps finished since the beginning; None where nothing was ever counted."""
        return None if self.count is None or self._first is None else self.count - self._first

    @property
    def work(self) -> float:
        """Work of all steps, where it is given with each."""
        return self._work

    def add(self, count: int, work: float | None = None, *, first: int = 0) -> None:
        """So many steps are finished now; a count that goes back is a loop that was started anew.

        Args:
            count: the number.
            work: how much work these were in all, in any unit (padded tokens); None where every step is as good as another.
            first: what the count was at the beginning, for the first call.
        """
        with self._lock:
            if self.count is None or count < self.count:
                self._edges.clear()
                if self.count is not None:
                    self.anew.append((self.count, count))
                self._first = first if self.count is None else -(self.done or 0)
            if count != self.count:
                self.count = count
                edge = Edge(self._clock(), count, float(count) if work is None else work)
                self._edges.append(edge)
                if self.began is None:
                    self.began = (edge.t_s, count - (self._first or 0))

    def finished(self, steps: int = 1, work: float | None = None) -> None:
        """So many more steps are finished.

        Args:
            steps: how many.
            work: how much work they were; to be given always or never.
        """
        if work is not None:
            self._work += work
        self.add((self.count or 0) + steps, None if work is None else self._work)

    def notes(self) -> Iterator[str]:
        """Sentences for people on how the count came about."""
        if self.problem:
            yield f"{self.problem} It counted nothing."
        if self.anew:
            before, after = self.anew[-1]
            yield (
                f"The count of steps went back{f' {len(self.anew)} times, at last' if len(self.anew) > 1 else ''} from {before}"
                f" to {after}: the loop was started anew, and steps before and after it are counted."
            )

    def edges(self, t0_s: float, t1_s: float) -> list[Edge]:
        """Ends of steps from one moment to another."""
        with self._lock:
            return [edge for edge in self._edges if t0_s <= edge.t_s <= t1_s]

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
    rest_poll_s = REST_POLL_S

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(clock)
        self.path = path

    def poll(self) -> None:
        """See :class:`Steps`; what is no number is remembered as the `problem` and counts nothing."""
        try:
            count = read_steps(self.path)
        except BoardError as error:
            self.problem = str(error)
            return
        if count is not None and count != self.count:
            self.add(count, self._work_said(count))

    def _work_said(self, count: int) -> float | None:
        """What the file says of the work beside the steps, if anything."""
        try:
            said = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(said, dict) or said.get("steps") != count:
            return None
        work = said.get("work")
        return float(work) if isinstance(work, (int, float)) and not isinstance(work, bool) else None


class LoadSteps(Steps):
    """Rounds of work from the GPU's load: every time it goes down and comes up again is one.

    A round need not be a step; it must only be the same work at every clock. Where the load hardly moves there are none.

    Args:
        load_pct: reads the load, percent; None where unknown.
        clock: seconds.
    """

    source = "gpu load"
    poll_s = rest_poll_s = LOAD_POLL_S  # what is not looked at is not counted

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
