"""MAXN as what it is: nvhost_podgov, a demand-driven governor that polls the GPU's load and steps the clock.

Rule (L4T 36, NVIDIA's governor_pod_scaling.c): each poll ``load = 1000 busy / total`` and ``avg = (avg (2^k - 1) + load) /
2^k``, whole numbers; load of at least 900 jumps to the highest clock; else an average above 700 climbs four table steps and
one below 600 descends one; the table's ends clamp. A saturated GPU sits at the top clock, a starved one drifts down.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from wattune.boards.virtual.model import PhaseRun

LOAD_MAX, LOAD_TARGET, LOAD_MARGIN = 900, 700, 100  # per mille
STEPS_UP, STEPS_DOWN = 4, 1
AVERAGE_SHIFT = 3  # k


class PodGov:
    """The governor's state.

    Args:
        n_clocks: length of the clock table.
        index: clock it starts at (index into the ascending table).
    """

    __slots__ = ("average", "index", "top")

    def __init__(self, n_clocks: int, index: int = 0) -> None:
        self.top = n_clocks - 1
        self.index = index
        self.average = 0

    def poll(self, load: int) -> int:
        """One poll.

        Args:
            load: busy share of the time since the last poll, per mille.

        Returns:
            Index of the clock from now on.
        """
        self.average = (self.average * ((1 << AVERAGE_SHIFT) - 1) + load) >> AVERAGE_SHIFT
        if load >= LOAD_MAX:
            self.index = self.top
        elif self.average > LOAD_TARGET:
            self.index = min(self.top, self.index + STEPS_UP)
        elif self.average < LOAD_TARGET - LOAD_MARGIN:
            self.index = max(0, self.index - STEPS_DOWN)
        return self.index


@dataclass(slots=True)
class Segment:
    """A stretch of one phase at one clock.

    Attributes:
        step: number of the training step it belongs to, from 0.
        index: clock, index into the table.
        duration_s: its length.
        run: the phase at that clock (power and busy share).
    """

    step: int
    index: int
    duration_s: float
    run: PhaseRun


def simulate(steps: Iterable[Sequence[Sequence[PhaseRun]]], governor: PodGov, poll_s: float) -> list[Segment]:
    """Run training steps under the governor in virtual time.

    Polls fall every `poll_s` whatever the steps do, so a phase may hold many polls and a poll many phases. Work left in
    a phase when the clock changes goes on at the new clock's pace.

    Args:
        steps: per step its phases, per phase one run per clock of the table.
        governor: the governor; its state is advanced.
        poll_s: polling interval, seconds.

    Returns:
        Segments in order of time.
    """
    segments: list[Segment] = []
    to_poll, busy_s = poll_s, 0.0
    for number, phases in enumerate(steps):
        for by_clock in phases:
            work = 1.0  # share of the phase still to do
            current: Segment | None = None
            while True:
                index = governor.index
                run = by_clock[index]
                if current is None or current.index != index:
                    current = Segment(number, index, 0.0, run)
                    segments.append(current)
                need_s = work * run.time_s
                if need_s < to_poll:
                    current.duration_s += need_s
                    busy_s += need_s * run.busy
                    to_poll -= need_s
                    break
                whole_window = to_poll == poll_s
                current.duration_s += to_poll
                busy_s += to_poll * run.busy
                work -= to_poll / run.time_s
                average = governor.average
                governor.poll(int(1000.0 * busy_s / poll_s + 1e-9))
                to_poll, busy_s = poll_s, 0.0
                if whole_window and governor.index == index and governor.average == average:
                    # The state repeats itself until the phase ends: take all its whole windows at once.
                    windows = int(work * run.time_s / poll_s)
                    current.duration_s += windows * poll_s
                    work -= windows * poll_s / run.time_s
                if work <= 0.0:
                    break
    return segments
