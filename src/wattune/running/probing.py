"""The first steps of a real run as the probe: at most three clocks measured while it trains, then one is kept.

The run is not slowed for it and loses no step: the clock moves under it, and its steps are counted. Before the first clock is
pinned a window is taken as the run found the board; that is the baseline for the saving, and the clock is given back where nothing
beats it (where a governor declined to name a clock: where nothing beats it by more than noise explains). On a run of known length
the windows together take at most one step in a hundred.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import WattuneError
from wattune.core.objectives import ENERGY, Objective
from wattune.core.probe import MAX_PROBES, RUN_SHARE, Probe, ProbeResult
from wattune.core.settings import MAXN, Setting, hz_to_mhz, setting_label
from wattune.profiling.meter import Window
from wattune.running.account import Totals
from wattune.running.session import Ended, Session
from wattune.running.steps import Edge, Steps

WINDOW_S = 5.0
LEAST_WINDOW_S = 1.0
"""A window that one step in a hundred does not fill for this long says nothing: the run is too short to probe."""

LEAST_STEPS = 3
STEADY = 0.005
"""A window goes on until the mean time of a step is known to this share (one standard error): batches differ in length."""

UNKNOWN_REL = 0.5
"""Error of a window too short to say its own."""

BLOCKS = 24
LONGEST, LONGEST_UNSAID = 12.0, 36.0
"""It ends at this many times its length in any case; the second where nobody says how much work the steps are."""

START_S = 60.0
"""How long the first steps are waited for: models are loaded and compiled first."""

WARM_STEPS = 2
"""Steps before the first window: the first ones allocate and compile."""

STALL_S = 60.0
TIMED_RATIO, TIMED_GAIN, TIMED_UTIL_PCT = 1.3, 1.05, 90.0
"""Rounds that come no faster at a clock so many times as high, while the GPU is busy all the time, are a timer's and no work."""

RATE_SLACK = 1.15
"""A clock cannot speed rounds up by more than its own ratio, nor slow them down by being higher, within this factor."""


class GaveUpError(Exception):
    """The probe cannot be finished; its text says why."""


class Live(Protocol):
    """What a probe needs of what runs."""

    def wait(self, seconds: float) -> None:
        """Let time pass, counting steps."""

    def now(self) -> float:
        """Seconds, on the clock of edges and windows."""

    def edges(self, t0_s: float, t1_s: float) -> list[Edge]:
        """Ends of steps between two moments."""

    def set_clock(self, mhz: float) -> None:
        """Pin there."""

    def leave_alone(self) -> None:
        """Put the clocks back as they were found."""

    def window(self, t0_s: float, t1_s: float) -> Window:
        """What the meter saw."""

    def throttling(self) -> str:
        """Why the clock is not what was set; empty where it is."""


@dataclass
class Measured:
    """One window.

    Attributes:
        mhz: the clock; None for the baseline.
        energy_j: energy of a step; `time_s` its time.
        work: mean work of a step in the window; 1 where nobody says.
        steps: how many lie in the window; `window_s` its length.
        util_pct: mean load of the GPU; None where unknown.
        error_rel: standard error of the work of its steps, and hence of their energy and time alike, relative.
    """

    mhz: float | None
    energy_j: float
    time_s: float
    steps: int
    window_s: float
    util_pct: float | None
    work: float = 1.0
    error_rel: float = 0.0

    @property
    def each(self) -> Point:
        """Energy and time of a unit of work."""
        return Point(self.energy_j / self.work, self.time_s / self.work)

    def document(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "mhz": "maxn" if self.mhz is None else self.mhz, "energy_j_per_step": self.energy_j, "time_s_per_step": self.time_s,
            "steps": self.steps, "window_s": round(self.window_s, 3), "gpu_util_pct": self.util_pct,
            "error_rel": round(self.error_rel, 5),
        }  # fmt: skip


@dataclass
class LiveProbe:
    """Measures clocks while something trains, and picks one.

    Args:
        live: what runs.
        table_mhz: clocks that may be set.
        settle_s: how long the power monitors need after a change.
        objective: what is minimised, of a step.
        prior: a curve expected beforehand.
        run_steps: steps of the whole run; None where unknown.
        window_s: length of a window.
        rounds: the steps are rounds of the load, so that what the clocks do to them is checked.
        doubted: a governor declined to name a clock, so one has to be shown to beat the clocks left alone.

    Attributes:
        baseline: the window before anything was pinned; None before.
        again: further windows with the clocks left alone, after those at clocks.
        measured: those at pinned clocks.
        result: what the probe made of them; None before.
    """

    live: Live
    table_mhz: tuple[float, ...]
    settle_s: float
    objective: Objective = ENERGY
    prior: EnergyCurve | None = None
    run_steps: int | None = None
    window_s: float = WINDOW_S
    start_s: float = START_S
    rounds: bool = False
    doubted: bool = False
    baseline: Measured | None = field(init=False, default=None)
    again: list[Measured] = field(init=False, default_factory=list)
    measured: list[Measured] = field(init=False, default_factory=list)
    result: ProbeResult | None = field(init=False, default=None)
    _step_s: float = field(init=False, default=0.0)

    def run(self) -> float | None:
        """Probe; returns the clock to keep, None where the clock is better left alone.

        Raises:
            GaveUpError: it cannot be finished.
            WattuneError: a clock could not be set.
        """
        self._first_steps()
        self.baseline = self._window(None)
        probe = Probe(
            self.table_mhz,
            self._measure,
            prior=self.prior,
            objective=self.objective,
            run_steps=self.run_steps,
        )
        self.result = probe.run()
        base = self.baseline.each
        if self.doubted:
            return self.result.shown_to_beat(base, self._left_alone)[0]
        return self.result.chosen if self.result.beats([base]) else None

    def _left_alone(self) -> Point:
        """Once more what the work takes with the clocks left alone."""
        if not self.again:
            self.live.leave_alone()
        self.again.append(self._window(None))
        return self.again[-1].each

    def document(self) -> dict[str, Any]:
        """What was done, in plain values."""
        result = self.result
        return {
            "baseline": None if self.baseline is None else self.baseline.document(),
            "baseline_again": [one.document() for one in self.again],
            "measured": [one.document() for one in self.measured],
            "doubted": self.doubted,
            "chosen_mhz": None if result is None else result.chosen,
            "why": None if result is None else result.why,
            "reason": None if result is None else result.reason or None,
            "expected_loss_pct": None if result is None else round(result.expected_loss_pct, 3),
            "steps": sum(one.steps for one in self.measured),
        }

    def _measure(self, mhz: float) -> tuple[float, float, float]:
        self.live.set_clock(mhz)
        one = self._window(mhz)
        self._refuse_strange(one)
        self.measured.append(one)
        each = one.each
        assert each.time_s is not None  # steps have times
        return each.energy_j, each.time_s, one.error_rel

    def _first_steps(self) -> None:
        """Wait until it trains, and see how long a step takes."""
        live, began = self.live, self.live.now()
        while True:
            edges = live.edges(began, live.now())
            if len(edges) > WARM_STEPS:
                break
            if live.now() - began > self.start_s:
                raise GaveUpError(
                    f"{'No' if not edges else 'Hardly any'} steps were seen within {self.start_s:g} s."
                )
            live.wait(0.1)
        self._step_s = (edges[-1].t_s - edges[-2].t_s) / max(edges[-1].steps - edges[-2].steps, 1)

    def _least_steps(self) -> float:
        """Steps a window may have at most; infinite where the run's length is unknown.

        Raises:
            GaveUpError: too few.
        """
        if self.run_steps is None:
            return math.inf
        allowed = math.floor(RUN_SHARE * self.run_steps / MAX_PROBES)
        if allowed < LEAST_STEPS or allowed * self._step_s < LEAST_WINDOW_S:
            raise GaveUpError(
                f"The run is too short to probe: one step in a hundred of {self.run_steps} is {allowed} for each clock."
            )
        return allowed

    def _window(self, mhz: float | None) -> Measured:
        live = self.live
        began = live.now()
        live.wait(self.settle_s)
        settled = live.now()
        most = self._least_steps()
        while True:
            live.wait(min(max(self._step_s, 0.05), 0.5))
            now = live.now()
            edges = live.edges(settled, now)
            if len(edges) > LEAST_STEPS:
                first, last = edges[0], edges[-1]
                took = last.t_s - first.t_s
                said = last.work - first.work != last.steps - first.steps
                longest_s = (LONGEST if said else LONGEST_UNSAID) * self.window_s
                if last.steps - first.steps >= most or took >= longest_s:
                    break
                if took >= self.window_s and _spread(edges) <= STEADY:
                    break
            if now - (edges[-1].t_s if edges else began) > STALL_S:
                raise GaveUpError(f"No step was finished for {STALL_S:g} s.")
        if why := live.throttling():
            raise GaveUpError(f"The board throttled while it was measured: {why}.")
        steps, seconds = last.steps - first.steps, last.t_s - first.t_s
        window = live.window(first.t_s, last.t_s)
        name = "gpu_cpu" if window.sets["gpu_cpu"].labels else "module"
        energy_j = window.sets[name].energy_j
        if energy_j is None or energy_j <= 0:
            raise GaveUpError(f"A window has no energy: {window.sets[name].reason or 'it reads 0 J.'}")
        self._step_s = seconds / steps
        work = (last.work - first.work) / steps
        error_rel = 0.0 if said else min(_spread(edges), UNKNOWN_REL)
        return Measured(
            mhz,
            energy_j / steps,
            self._step_s,
            steps,
            seconds,
            window.util_pct,
            work if work > 0 else 1.0,
            error_rel,
        )

    def _refuse_strange(self, one: Measured) -> None:
        """Rounds counted in the load must behave as work does: faster at a higher clock, by no more than the clock's ratio."""
        if not self.rounds:
            return
        for other in self.measured:
            assert one.mhz is not None
            assert other.mhz is not None
            low, high = sorted((one, other), key=lambda m: m.mhz or 0.0)
            gain, ratio = low.time_s / high.time_s, (high.mhz or 1.0) / (low.mhz or 1.0)
            busy = min(low.util_pct or 0.0, high.util_pct or 0.0)
            timed = ratio >= TIMED_RATIO and gain < TIMED_GAIN and busy >= TIMED_UTIL_PCT
            if timed or not 1 / RATE_SLACK <= gain <= ratio * RATE_SLACK:
                raise GaveUpError(
                    f"The GPU's load has no steps that could be counted: {setting_label(high.mhz or 0.0)} MHz would be"
                    f" {gain:.2f} times as fast as {setting_label(low.mhz or 0.0)} MHz"
                    + (f", though the GPU is busy for {busy:.0f} % of the time at both." if timed else ".")
                )


def _spread(edges: list[Edge]) -> float:
    """Standard error of the mean time of a unit of work, relative, from blocks of steps: edges seen late cancel within one."""
    size = max(1, (len(edges) - 1) // BLOCKS)
    ends = edges[::size]
    times = [(b.t_s - a.t_s) / (b.work - a.work) for a, b in itertools.pairwise(ends) if b.work > a.work]
    n = len(times)
    if n < 2:
        return math.inf
    mean = sum(times) / n
    return math.sqrt(sum((t - mean) ** 2 for t in times) / (n - 1) / n) / mean


class _Running:
    """A session as a probe sees it."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def wait(self, seconds: float) -> None:
        self._session.wait(seconds, fine=True)

    def now(self) -> float:
        return time.monotonic()

    def edges(self, t0_s: float, t1_s: float) -> list[Edge]:
        return self._session.steps.edges(t0_s, t1_s)

    def set_clock(self, mhz: float) -> None:
        self._session.hold(mhz)

    def leave_alone(self) -> None:
        self._session.let_go()

    def window(self, t0_s: float, t1_s: float) -> Window:
        assert self._session.account is not None  # checked before the probe began
        return self._session.account.window(t0_s, t1_s)

    def throttling(self) -> str:
        session, lease = self._session, self._session.held
        if lease is not None and lease.lost:
            return lease.lost
        return session.throttling()


@dataclass
class ProbeTask:
    """A session's first task: probe, keep the clock found, remember where that began.

    Attributes:
        probe: what it did; None where it could not begin.
        gave_up: why it was not finished; empty where it was.
        working: until it is done.
        otherwise: the governor's clock, held where the probe is given up; None without one.
        doubted: the governor declined to name a clock.
        find_steps: waits for steps, and gives another source of them where the session's own has none.
        held_from: what was spent, and the steps finished, when the clock to keep was set; None before.
    """

    objective: Objective = ENERGY
    prior: EnergyCurve | None = None
    run_steps: int | None = None
    window_s: float = WINDOW_S
    start_s: float = START_S
    otherwise: float | None = None
    doubted: bool = False
    find_steps: Callable[[], Steps | None] | None = None
    probe: LiveProbe | None = field(init=False, default=None)
    gave_up: str = field(init=False, default="")
    working: bool = field(init=False, default=True)
    held_from: tuple[Totals, int] | None = field(init=False, default=None)

    def __call__(self, session: Session) -> None:
        """Do it, in the session's thread."""
        try:
            self._do(session)
        except Ended:
            self.gave_up = "The run ended before it was done."
            session.undecided = "the run ended before the probe was done"
            session.note(f"The probe was not finished, so nothing was chosen. {self.gave_up}")
            raise
        finally:
            self.working = False

    def _do(self, session: Session) -> None:
        if session.account is None or session.meter is None:
            self._give_up(session, "Energy cannot be measured here.")
            return
        if self.find_steps is not None:
            session.steps = self.find_steps() or session.steps
        self.probe = LiveProbe(
            _Running(session),
            tuple(hz_to_mhz(hz) for hz in session.node.usable_hz),
            session.meter.settle_s,
            self.objective,
            self.prior,
            self.run_steps,
            self.window_s,
            self.start_s,
            rounds=session.steps.source == "gpu load",
            doubted=self.doubted,
        )
        session.probing = True
        try:
            chosen = self.probe.run()
            if chosen is None:
                session.let_go()
                more = " by more than noise explains" if self.doubted else ""
                session.note(f"No clock is better than the clocks left alone{more}, so they are.")
            else:
                session.hold(chosen)
        except (GaveUpError, WattuneError) as error:
            self.end(session, error)
            return
        finally:
            session.probing = False
        done = session.steps.done
        if done is not None:
            self.held_from = (session.account.total(), done)

    def end(self, session: Session, error: Exception) -> None:
        """What becomes of the clock where the probe was not finished: the governor's, unless it was the clock that failed."""
        if isinstance(error, GaveUpError) and self.otherwise is not None:
            session.hold(self.otherwise)
        else:
            session.let_go()
        self._give_up(session, str(error), held=session.setting)

    def _give_up(self, session: Session, why: str, held: Setting = MAXN) -> None:
        self.gave_up = why
        done = "the clocks are left alone" if isinstance(held, str) else "the governor's clock is held"
        session.note(f"The probe was given up, and {done}. {why}")
