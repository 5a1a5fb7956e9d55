"""The meter: rails, clock, load and temperatures of a board over time, and the energy of any window of it.

    with Meter(findings) as meter:
        begin = meter.mark("start")
        ...
        end = meter.mark("end")
    print(meter.window(begin, end).sets["gpu_cpu"].energy_j)

It samples in a thread of its own, or in a process of its own (``process=True``) where the interpreter is busy with other things.
Five samples a second are enough: the power monitors' filter lets nothing faster through. :mod:`wattune.profiling.windows` says how
readings become energy.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import subprocess
import sys
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

from wattune.boards.jetson.findings import Findings, PowerMode, RailChannel
from wattune.core.errors import InputError
from wattune.profiling import sampler as sampling
from wattune.profiling.sampler import Plan, Sample, Sampler, Value, pace
from wattune.profiling.windows import (
    BRIDGE_PERIODS,
    BRIDGE_S,
    DEFAULT_TAU_S,
    GAP_PERIODS,
    SHORT_S,
    Failures,
    Gap,
    Point,
    RailEnergy,
    Rules,
    SetEnergy,
    merge_gaps,
    rail_energy,
    rail_power,
    set_energy,
)

T = TypeVar("T")

DEFAULT_HZ, MIN_HZ, MAX_HZ = 5.0, 1.0, 50.0
SETTLE_TAUS = 5.0
"""Time constants after which a change has gone through the filter (0.7 % of it is left)."""

PATIENCE_S = 2.0
"""How long a driver that does not answer is waited for, where somebody wants something of the meter."""

SLOW_PERIOD_S = 1.0
"""How often temperatures, coolers and counters are read."""

BOUNDS = ("min_freq", "max_freq")
TOO_SLOW = "read took too long"
"""A sample whose reads took longer than a period is not used: what it says belongs to no moment."""

OFF_MC = -200_000
"""A zone whose block is powered off reads -256 degrees."""

BOOT_ID = "proc/sys/kernel/random/boot_id"


@dataclass(frozen=True, slots=True)
class Mark:
    """A named moment; `change` says that load or clock changed there."""

    name: str
    t_s: float
    change: bool


@dataclass(frozen=True, slots=True)
class Cost:
    """What the meter itself used: CPU seconds within `wall_s` seconds, and how many samples it took."""

    cpu_s: float
    wall_s: float
    samples: int

    @property
    def share(self) -> float:
        """Share of one CPU core."""
        return self.cpu_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Window:
    """What the meter saw between two moments.

    Attributes:
        t0_s: start, seconds on the meter's clock; `t1_s` the end.
        rails: energy of each rail; `sets` of ``gpu_cpu`` and ``module``.
        gaps: gaps of all rails.
        samples: how many lie in the window; `missed` were due and not taken (late), `slow` took longer than a period and were
            not used, `duplicates` had a stamp not later than the one before and were not used.
        rate_hz: samples per second achieved, those at marks not counted; `longest_s` the longest time between two.
        read_mean_s: how long reading all rails took, `read_max_s` at most.
        clocks_s: GPU clock in MHz -> seconds; ``unknown`` where it could not be read.
        bounds_hz: bounds of the clock, each with the time from which they held; None where they could not be read.
        util_pct: mean load of the GPU, over time; None where unknown.
        temps_start_c: temperature of each zone at the start; `temps_end_c` and `temps_max_c` likewise; None where it has none.
        cooling_max: highest state of each cooling device of the GPU (0 is not capped); None where unknown.
        events: over-current counter -> events in the window; None where unknown.
        invalid: why the window must not be used; empty where it may.
        warnings: sentences for people.
    """

    t0_s: float
    t1_s: float
    rails: dict[str, RailEnergy]
    sets: dict[str, SetEnergy]
    gaps: tuple[Gap, ...]
    samples: int
    missed: int
    slow: int
    duplicates: int
    rate_hz: float
    longest_s: float
    read_mean_s: float
    read_max_s: float
    clocks_s: dict[str, float]
    bounds_hz: tuple[tuple[float, int | None, int | None], ...]
    util_pct: float | None
    temps_start_c: dict[str, float | None]
    temps_end_c: dict[str, float | None]
    temps_max_c: dict[str, float | None]
    cooling_max: dict[str, int | None]
    events: dict[str, int | None]
    invalid: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def duration_s(self) -> float:
        """Length."""
        return self.t1_s - self.t0_s


class Meter:
    """Samples a board.

    Args:
        findings: the board.
        hz: samples per second, 1 to 50.
        process: sample in a process of its own instead of a thread.
        all_rails: also sample rails that are in no set.
        bridge_s: longest gap that is bridged; five periods and at least one second where not given.
        power_mode: asks for the power mode; called at start and end only (it can stall the board).
        clock: seconds, monotonic.
        sleep: sleeps so many seconds. Where given, no thread is started: call :meth:`run`.
        reader: reads a file of the tree, by its path in it; files kept open where not given.

    Raises:
        InputError: `hz` out of range.

    Attributes:
        findings: as given.
        rails: the rails that are sampled.
        period_s: time between two samples.
        marks: moments named so far.
        boot_ids: at start and end; power_modes: likewise. None where unknown or not yet asked.
    """

    def __init__(
        self,
        findings: Findings,
        *,
        hz: float = DEFAULT_HZ,
        process: bool = False,
        all_rails: bool = False,
        bridge_s: float | None = None,
        power_mode: Callable[[Findings], PowerMode | None] | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] | None = None,
        reader: Callable[[str], str] | None = None,
    ) -> None:
        if not MIN_HZ <= hz <= MAX_HZ:
            raise InputError(
                f"A meter cannot run at {hz:g} samples per second.",
                f"{MIN_HZ:g} to {MAX_HZ:g} were expected (the power monitors' filter makes more than {DEFAULT_HZ:g} useless).",
                f"Type `--hz {DEFAULT_HZ:g}`.",
            )
        self.findings, self.period_s = findings, 1.0 / hz
        self._in_process, self._clock, self._sleep, self._reader = process, clock, sleep, reader
        self._bridge_s = max(BRIDGE_S, BRIDGE_PERIODS * self.period_s) if bridge_s is None else bridge_s
        self._ask_power_mode = power_mode
        sets = (*(findings.gpu_cpu or ()), *(findings.module or ()))
        self.rails: dict[str, RailChannel] = {
            label: rail for label, rail in findings.rails.items() if all_rails or not sets or label in sets
        }
        self.marks: list[Mark] = []
        self.boot_ids: tuple[str | None, str | None] = (None, None)
        self.power_modes: tuple[PowerMode | None, PowerMode | None] = (None, None)
        self._files = {label: _files(rail) for label, rail in self.rails.items()}
        # A node that must not be written may hang when read too (Thor): then it must not hold up the rails.
        self._apart = bool(findings.gpu and findings.gpu.read_only) and sleep is None and not process
        self._node = findings.gpu if not (findings.gpu and findings.gpu.read_only and process) else None
        self._points: dict[str, list[Point]] = {label: [] for label in self.rails}
        self._failures = {label: Failures() for label in self.rails}
        self._stamps: list[float] = []
        self._reads_s: list[float] = []
        self._slow_at: list[float] = []
        self._duplicates_at: list[float] = []
        self._missed_at: list[tuple[float, int]] = []
        self._states: list[tuple[float, tuple[Value, ...]]] = []
        self._bounds: list[tuple[float, tuple[Value, ...]]] = []
        self._loads: list[tuple[float, Value]] = []
        self._slows: list[tuple[float, tuple[Value, ...]]] = []
        self._lock, self._sampling = threading.Lock(), threading.Lock()
        self._stop = threading.Event()
        self._sampler: Sampler | None = None
        self._threads: list[threading.Thread] = []
        self._child: _Child | None = None
        self._began_s: float | None = None
        self._ended_s: float | None = None
        self._until_s = float("inf")
        self._cpu_s: dict[str, float] = {}
        self._taken = 0

    # --- life

    @property
    def tau_s(self) -> float:
        """The filter's time constant, or the one assumed where it could not be read."""
        return self.findings.filter.tau_s if self.findings.filter.tau_s is not None else DEFAULT_TAU_S

    @property
    def settle_s(self) -> float:
        """How long a change takes to go through the filter: five time constants."""
        return SETTLE_TAUS * self.tau_s

    @property
    def running(self) -> bool:
        """Whether it is sampling."""
        return self._began_s is not None and self._ended_s is None

    def __enter__(self) -> Meter:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(tail=kind is None)

    def start(self) -> None:
        """Begin to sample; once only."""
        assert self._began_s is None, "a meter runs once"
        self.boot_ids = (self._boot_id(), None)
        self.power_modes = (self._power_mode(), None)
        plan = self.plan()
        self._began_s = self._clock()
        if self._in_process:
            self._child = _Child(plan, self._receive)
            return
        self._sampler = Sampler(plan, self._open, self._clock)
        if self._sleep is not None:
            return
        loops = (
            [("rails slow", self.period_s), ("state", self.period_s)]
            if self._apart
            else [(ALL, self.period_s)]
        )
        for parts, period_s in loops:
            thread = threading.Thread(
                target=self._loop, args=(parts, period_s), daemon=True, name=f"meter {parts}"
            )
            thread.start()
            self._threads.append(thread)

    def stop(self, *, tail: bool = True) -> None:
        """End sampling.

        Args:
            tail: first go on until the filter has settled after the last mark, or after now where there is none.
        """
        if not self.running:
            return
        if tail:
            end = self.marks[-1].t_s if self.marks else self._clock()
            self._pause(end + self.settle_s - self._clock())
        self._stop.set()
        if self._child is not None:
            self._child.close()
        for thread in self._threads:
            thread.join(PATIENCE_S)
        self._ended_s = self._clock()
        self.boot_ids = (self.boot_ids[0], self._boot_id())
        self.power_modes = (self.power_modes[0], self._power_mode())
        if self._sampler is not None and not any(thread.is_alive() for thread in self._threads):
            self._sampler.close()

    def run(self, seconds: float) -> None:
        """Sample for so long in the caller's own thread; only where `sleep` was given."""
        assert self._sleep is not None, "the meter's own thread does that"
        self._until_s = self._clock() + seconds
        self._loop(ALL, self.period_s)

    def settle(self) -> None:
        """Wait until the last mark has gone through the filter."""
        if self.marks:
            self._pause(self.marks[-1].t_s + self.settle_s - self._clock())

    def mark(self, name: str, *, change: bool = True) -> float:
        """Name this moment and take a sample at it.

        Args:
            name: e.g. ``start``.
            change: load or clock change here.

        Returns:
            The moment, seconds on the meter's clock: that of the sample, where one could be taken.
        """
        t_s = self._sample_now()
        self.marks.append(Mark(name, t_s, change))
        return t_s

    def cost(self) -> Cost:
        """What it used so far."""
        began = self._clock() if self._began_s is None else self._began_s
        ended = self._clock() if self._ended_s is None else self._ended_s
        with self._lock:
            return Cost(sum(self._cpu_s.values()), ended - began, self._taken)

    def readings(self, label: str) -> tuple[Point, ...]:
        """A rail's powers so far, in order of time (half a code added, the filter's lag still in them).

        Raises:
            KeyError: the rail is not sampled.
        """
        with self._lock:
            return tuple(self._points[label])

    def forget(self, before_s: float) -> None:
        """Let readings from before a moment go; windows must begin after it from then on.

        Args:
            before_s: the moment, seconds on the meter's clock.
        """
        with self._lock:
            for points in self._points.values():
                del points[: max(bisect_left(points, before_s, key=lambda p: p.t_s) - 1, 0)]
            for failures in self._failures.values():
                gone = bisect_left(failures.t_s, before_s)
                del failures.t_s[:gone], failures.names[:gone]
            gone = max(bisect_left(self._stamps, before_s) - 1, 0)
            del self._stamps[:gone], self._reads_s[:gone]
            for stamped in (self._states, self._bounds, self._loads, self._slows):
                del stamped[: max(bisect_left(stamped, before_s, key=lambda s: s[0]) - 1, 0)]
            self._slow_at = [t for t in self._slow_at if t >= before_s]
            self._duplicates_at = [t for t in self._duplicates_at if t >= before_s]
            self._missed_at = [(t, n) for t, n in self._missed_at if t >= before_s]
            self.marks = [mark for mark in self.marks if mark.t_s >= before_s]

    # --- taking samples

    def plan(self, *, rails_only: bool = False) -> Plan:
        """What is read.

        Args:
            rails_only: leave clock, load, temperatures and counters out.
        """
        found, gpu = self.findings, self._node

        def place(path: str) -> str:
            return path if self._reader is not None else str(found.sysfs.path(path))

        rails = tuple(tuple(map(place, files)) for files in self._files.values() if files)
        if rails_only:
            return Plan(rails, (), "", (), self.period_s)
        bounds = tuple(f"{gpu.path}/{name}" for name in BOUNDS) if gpu else ()
        return Plan(
            rails=rails,
            state=(place(f"{gpu.path}/cur_freq"), *map(place, bounds)) if gpu else (),
            load=place(f"{gpu.device}/load") if gpu and gpu.device else "",
            slow=tuple(
                place(path)
                for path in (*found.zones.values(), *found.cooling.values(), *found.counters.values())
            ),
            period_s=self.period_s,
            slow_period_s=SLOW_PERIOD_S,
        )

    def _open(self, path: str) -> Callable[[], bytes | str]:
        reader = self._reader
        if reader is None:
            return sampling.File(path)
        return lambda: reader(path)

    def _loop(self, parts: str, period_s: float) -> None:
        """The sampling thread."""
        sampler, began = self._sampler, time.thread_time()
        before = self._cpu_s.get(parts, 0.0)
        assert sampler is not None
        # Only the loop that reads the rails shares the files with `mark`.
        shared = self._sampling if "rails" in parts else threading.Lock()

        def take() -> None:
            with shared:
                self._accept(sampler.sample(parts=parts), with_power="rails" in parts)
            with self._lock:
                self._cpu_s[parts] = before + time.thread_time() - began

        def wait(seconds: float) -> bool:
            if self._sleep is None:
                return self._stop.wait(max(0.0, seconds))
            left = self._until_s - self._clock()
            if seconds > 0:
                self._sleep(min(seconds, max(left, 0.0)))
            return self._clock() >= self._until_s

        def missed(at: float, n: int) -> None:
            if "rails" in parts:
                with self._lock:
                    self._missed_at.append((at, n))

        pace(take, wait, self._clock, period_s, missed)

    def _sample_now(self) -> float:
        """Take a sample in the caller's thread, or ask the child for one; returns when."""
        if not self.running:
            return self._clock()
        if self._child is not None:
            now = self._clock()
            self._child.ask(b"m")
            return now
        assert self._sampler is not None
        if not self._sampling.acquire(timeout=PATIENCE_S):  # a driver hangs: the gap will be seen
            return self._clock()
        began = time.thread_time()
        try:
            sample = self._sampler.sample(parts="rails slow" if self._apart else ALL, everything=True)
            t_s = self._accept(sample)
        finally:
            self._sampling.release()
        with self._lock:
            self._cpu_s["mark"] = self._cpu_s.get("mark", 0.0) + time.thread_time() - began
        return t_s

    def _accept(self, sample: Sample, *, with_power: bool = True) -> float:
        """Store a sample; returns its moment. Without `with_power` it is one of the clock alone."""
        t_s = 0.5 * (sample.begin_s + sample.end_s)
        with self._lock:
            if sample.state:
                self._states.append((sample.end_s, sample.state[:1]))
                bounds = sample.state[1:]
                if bounds and (not self._bounds or self._bounds[-1][1] != bounds):
                    self._bounds.append((sample.end_s, bounds))
            if sample.load is not None:
                self._loads.append((sample.end_s, sample.load))
            if sample.slow is not None:
                self._slows.append((sample.end_s, sample.slow))
            if not with_power:
                return t_s
            self._taken += 1
            if sample.end_s - sample.begin_s > self.period_s:
                self._slow_at.append(t_s)
                for failures in self._failures.values():
                    failures.t_s.append(t_s)
                    failures.names.append(TOO_SLOW)
                return t_s
            if self._stamps and t_s <= self._stamps[-1]:
                self._duplicates_at.append(t_s)
                return t_s
            self._stamps.append(t_s)
            self._reads_s.append(sample.end_s - sample.begin_s)
            at = 0
            for label, files in self._files.items():
                values = sample.rails[at : at + len(files)]
                at += len(files)
                power = rail_power(self.rails[label], values)
                if isinstance(power, str):
                    self._failures[label].t_s.append(t_s)
                    self._failures[label].names.append(power)
                else:
                    self._points[label].append(Point(t_s, *power))
        return t_s

    def _receive(self, record: dict[str, object], cpu_s: float) -> None:
        """Samples from the child; `cpu_s` is what our listening cost."""
        samples, missed = record["samples"], record["missed"]
        assert isinstance(samples, list)
        assert isinstance(missed, list)
        for begin, end, rails, state, load, slow in samples:
            self._accept(
                Sample(begin, end, tuple(rails), tuple(state), load, None if slow is None else tuple(slow))
            )
        with self._lock:
            self._missed_at.extend((at, n) for at, n in missed)
            self._cpu_s["process"] = float(record["cpu_s"])  # type: ignore[arg-type]  # it is a number
            self._cpu_s["listener"] = cpu_s

    def _pause(self, seconds: float) -> None:
        if seconds <= 0:
            return
        if self._sleep is not None:
            self.run(seconds)
        else:
            time.sleep(seconds)

    def _boot_id(self) -> str | None:
        try:
            return (self._reader or self.findings.sysfs.read)(BOOT_ID).strip()
        except OSError:
            return None

    def _power_mode(self) -> PowerMode | None:
        if self._ask_power_mode is not None:
            return self._ask_power_mode(self.findings)
        return self.findings.power_mode if not self._stop.is_set() else None

    # --- windows

    def window(self, t0_s: float, t1_s: float) -> Window:
        """What was seen between two moments.

        Raises:
            InputError: the end is not after the start.
        """
        if not t1_s > t0_s:
            raise InputError(
                f"A window from {t0_s:.3f} s to {t1_s:.3f} s has no length.",
                "An end after the start was expected.",
                "Give two marks of the meter in their order.",
            )
        if self._child is not None and self.running:
            self._child.ask(b"f")
        elif self.running and (not self._stamps or self._stamps[-1] < t1_s):
            self._sample_now()
        with self._lock:
            return self._window(t0_s, t1_s)

    def energies(self, t0_s: float, t1_s: float) -> dict[str, SetEnergy]:
        """Energy of each rail set between two moments, while it still samples; a sample should have been taken at about the second."""
        with self._lock:
            return self._energies(t0_s, t1_s)[1]

    def _energies(self, t0_s: float, t1_s: float) -> tuple[dict[str, RailEnergy], dict[str, SetEnergy]]:
        found = self.findings
        rules = Rules(self.period_s, self._bridge_s, found.filter.tau_s)
        rails = {
            label: rail_energy(label, points, self._failures[label], t0_s, t1_s, rules)
            for label, points in self._points.items()
        }
        sets = {
            "gpu_cpu": set_energy(found.gpu_cpu, rails, "gpu_cpu"),
            "module": set_energy(found.module, rails, "module"),
        }
        return rails, sets

    def _window(self, t0_s: float, t1_s: float) -> Window:
        found = self.findings
        rules = Rules(self.period_s, self._bridge_s, found.filter.tau_s)
        rails, sets = self._energies(t0_s, t1_s)
        lo, hi = bisect_left(self._stamps, t0_s), bisect_right(self._stamps, t1_s)
        reads = self._reads_s[lo:hi]
        steps = [t0_s, *self._stamps[lo:hi], t1_s]
        states = _held(self._states, t0_s, t1_s, rules.gap_s)
        held = _held(self._loads, t0_s, t1_s, GAP_PERIODS * max(self.period_s, SLOW_PERIOD_S))
        loads = [(v, s) for v, s in held if isinstance(v, int)]
        load_s = sum(s for _, s in loads)
        clocks: dict[str, float] = {}
        for values, seconds in states:
            name = f"{values[0] / 1e6:g}" if values and isinstance(values[0], int) else "unknown"
            clocks[name] = clocks.get(name, 0.0) + seconds
        start, end, between = self._slow_at_edges(t0_s, t1_s)
        zones, cooling = len(found.zones), len(found.cooling)
        temps = [
            dict(zip(found.zones, map(_celsius, s[:zones] or [None] * zones), strict=True))
            for s in (start, end)
        ]
        highest: dict[str, float | None] = {}
        for number, zone in enumerate(found.zones):
            seen = [c for s in between if (c := _celsius(s[number])) is not None]
            highest[zone] = max(seen, default=None)
        capped: dict[str, int | None] = {}
        for number, name in enumerate(found.cooling, zones):
            states_seen = [s[number] for s in between]
            known = [v for v in states_seen if isinstance(v, int)]
            capped[name] = max(known, default=None)
        events, invalid = self._events(start, end, zones + cooling)
        bounds = _changes(self._bounds, t0_s, t1_s)
        if len(bounds) > 1:
            invalid.append("The bounds of the GPU's clock were changed during the window.")
        if any(self.boot_ids) and self.boot_ids[1] is not None and self.boot_ids[0] != self.boot_ids[1]:
            invalid.append("The board was rebooted.")
        return Window(
            t0_s=t0_s, t1_s=t1_s, rails=rails, sets=sets, gaps=merge_gaps(rails),
            samples=hi - lo,
            missed=sum(n for at, n in self._missed_at if t0_s <= at <= t1_s + self.period_s),
            slow=sum(t0_s <= at <= t1_s for at in self._slow_at),
            duplicates=sum(t0_s <= at <= t1_s for at in self._duplicates_at),
            rate_hz=(hi - lo - sum(t0_s <= mark.t_s <= t1_s for mark in self.marks)) / (t1_s - t0_s),
            longest_s=max(b - a for a, b in itertools.pairwise(steps)),
            read_mean_s=sum(reads) / len(reads) if reads else 0.0,
            read_max_s=max(reads, default=0.0),
            clocks_s=dict(sorted(clocks.items(), key=lambda item: _order(item[0]))),
            bounds_hz=tuple((max(at - t0_s, 0.0), low, high) for at, low, high in bounds),
            util_pct=sum(v * s for v, s in loads) / load_s / 10 if load_s > 0 else None,
            temps_start_c=temps[0], temps_end_c=temps[1], temps_max_c=highest,
            cooling_max=capped, events=events, invalid=tuple(invalid),
            warnings=tuple(self._warnings(t0_s, t1_s, capped, events)),
        )  # fmt: skip

    def _slow_at_edges(
        self, t0_s: float, t1_s: float
    ) -> tuple[tuple[Value, ...], tuple[Value, ...], list[tuple[Value, ...]]]:
        """Slow readings nearest before the start and after the end (or nearest inside), and all between those."""
        stamps = [t for t, _ in self._slows]
        if not stamps:
            return (), (), []
        first = max(bisect_right(stamps, t0_s) - 1, 0)
        last = min(bisect_left(stamps, t1_s), len(stamps) - 1)
        if (
            first < last and t0_s - stamps[first] > stamps[first + 1] - t0_s
        ):  # one right after the start is nearer
            first += 1
        values = [v for _, v in self._slows[first : last + 1]]
        return self._slows[first][1], self._slows[last][1], values

    def _events(
        self, start: tuple[Value, ...], end: tuple[Value, ...], offset: int
    ) -> tuple[dict[str, int | None], list[str]]:
        events: dict[str, int | None] = {}
        invalid = []
        for number, name in enumerate(self.findings.counters, offset):
            a, b = (start[number], end[number]) if start and end else ("", "")
            events[name] = b - a if isinstance(a, int) and isinstance(b, int) else None
            delta = events[name]
            if delta is not None and delta < 0:
                events[name] = None
                invalid.append(f"The counter {name} went backwards, from {a} to {b}: the board was rebooted.")
        return events, invalid

    def _warnings(
        self, t0_s: float, t1_s: float, cooling: dict[str, int | None], events: dict[str, int | None]
    ) -> Iterator[str]:
        found = self.findings
        if found.filter.tau_s is None:
            yield f"The power monitors' averaging could not be read; {DEFAULT_TAU_S} s is assumed, and lag is not corrected."
        if self.period_s > self.tau_s:
            yield (
                f"{1 / self.period_s:g} samples per second are fewer than the power monitors' filter needs "
                f"({1 / self.tau_s:.1f}): a load that comes and goes between them is missed."
            )
        if t1_s - t0_s < SHORT_S:
            yield f"The window is shorter than {SHORT_S:g} s: low confidence."
        if found.gpu is not None and self._node is None:
            yield "The GPU's clock was not read: on this board that may hang, and a meter in a process of its own could not go on."
        if found.module is None:
            yield "The module's total is unknown on this board."
        changes = [m for m in self.marks if m.change and m.t_s < t0_s]
        if changes and t0_s - changes[-1].t_s < self.settle_s:
            yield (
                f"The window begins {t0_s - changes[-1].t_s:.2f} s after '{changes[-1].name}'; the power monitors need "
                f"{self.settle_s:.2f} s to settle."
            )
        for name, state in cooling.items():
            if state:
                yield f"The cooling device {name} capped the GPU's clock (state {state})."
        for name, n in events.items():
            if n:
                yield f"The over-current counter {name} moved by {n}."


ALL = "rails state slow"


class _Child:
    """The process that samples, and the thread that listens to it."""

    def __init__(self, plan: Plan, receive: Callable[[dict[str, object], float], None]) -> None:
        self._receive = receive
        self._asked = self._answered = 0
        self._news = threading.Condition()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(Path(sampling.__file__)), sampling.plan_text(plan)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is ours to handle
            cwd="/",
        )
        self._thread = threading.Thread(target=self._listen, daemon=True, name="meter listener")
        self._thread.start()

    def ask(self, letter: bytes) -> None:
        """Send a command; returns when it is answered, or after a while."""
        assert self._process.stdin is not None
        with self._news:
            self._asked += 1
            asked = self._asked
        try:
            self._process.stdin.write(letter)
            self._process.stdin.flush()
        except OSError:  # it ended; what is missing will be seen as a gap
            return
        with self._news:
            self._news.wait_for(lambda: self._answered >= asked or not self._thread.is_alive(), PATIENCE_S)

    def close(self) -> None:
        """Have it send what it has and end; a child stuck in a driver is left to itself."""
        self.ask(b"q")
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_S)
        if self._process.poll() is None:
            self._process.kill()
        self._thread.join(PATIENCE_S)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not self._thread.is_alive():
                with contextlib.suppress(OSError):
                    pipe.close()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        began = time.thread_time()
        for line in self._process.stdout:
            record = json.loads(line)
            self._receive(record, time.thread_time() - began)
            with self._news:
                self._answered = record["answered"]
                self._news.notify_all()
        with self._news:
            self._answered = sys.maxsize
            self._news.notify_all()


def _files(rail: RailChannel) -> tuple[str, ...]:
    """Voltage and current where the chip has them (their resolution is known), else the power."""
    if rail.millivolt is not None and rail.milliampere is not None:
        return rail.millivolt, rail.milliampere
    return (rail.power,) if rail.power is not None else ()


def _held(
    readings: Sequence[tuple[float, T]], t0_s: float, t1_s: float, longest_s: float
) -> Iterator[tuple[T | None, float]]:
    """Readings in a window, each with the seconds for which it held: until the next one, or the longest time one may stand for.

    Time for which none stands comes with None.
    """
    first = max(bisect_right(readings, t0_s, key=lambda r: r[0]) - 1, 0)
    now = t0_s
    for at in range(first, len(readings)):
        stamp, value = readings[at]
        begin = max(stamp, t0_s)
        end = min(readings[at + 1][0] if at + 1 < len(readings) else t1_s, stamp + longest_s, t1_s)
        if begin > now + (longest_s if at == first else 0.0):
            yield None, min(begin, t1_s) - now
            now = min(begin, t1_s)
        elif at == first:  # nothing was read before, but hardly any time passed
            begin = now
        if end > begin:
            yield value, end - begin
            now = end
        if now >= t1_s:
            return
    if now < t1_s:
        yield None, t1_s - now


def _changes(
    states: Sequence[tuple[float, tuple[Value, ...]]], t0_s: float, t1_s: float
) -> list[tuple[float, int | None, int | None]]:
    """The bounds in a window, each time they were others than before; unreadable ones are passed over unless there are no others."""
    found: list[tuple[float, int | None, int | None]] = []
    unknown = False
    for at, (low, high) in states:
        if at > t1_s:
            break
        if isinstance(low, str) or isinstance(high, str):
            unknown = True
            continue
        if not found or found[-1][1:] != (low, high):
            found.append((at, low, high))
    while len(found) > 1 and found[1][0] <= t0_s:
        found.pop(0)
    if not found and unknown:
        found.append((t0_s, None, None))
    return found


def _celsius(value: Value | None) -> float | None:
    return value / 1e3 if isinstance(value, int) and value > OFF_MC else None


def _order(clock: str) -> float:
    return float("inf") if clock == "unknown" else float(clock)
