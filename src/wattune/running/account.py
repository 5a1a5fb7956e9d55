"""The energy of something that may run for days: closed off every few minutes, so that neither memory nor a look at it grows.

Windows of the meter add up exactly (their edges cancel), so the sum of the parts is the whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from wattune.core.errors import InputError
from wattune.profiling.certificate import Judgement, certify
from wattune.profiling.meter import Meter, Window

PART_S = 600.0
"""Length of a part."""

KEEP_S = 30.0
"""Readings from before a part that are kept for its edge, its temperatures and its clocks."""

SETS = ("gpu_cpu", "module")


@dataclass
class Totals:
    """What was spent so far.

    Attributes:
        duration_s: how long.
        energy_j: rail set -> joules; None where it cannot be said, and `reasons` says why.
        bound_j: how far off the power monitors' codes may put it; None where unknown.
        clocks_s: GPU clock in MHz -> seconds, ``unknown`` where it could not be read.
        busy_s: load x seconds, percent seconds, over `load_s` seconds for which it is known.
        cooling_max: highest state of each cooling device; None where unknown.
        events: over-current events by counter; None where unknown.
    """

    duration_s: float = 0.0
    energy_j: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(SETS, 0.0))
    bound_j: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(SETS, 0.0))
    reasons: dict[str, str] = field(default_factory=dict)
    clocks_s: dict[str, float] = field(default_factory=dict)
    busy_s: float = 0.0
    load_s: float = 0.0
    cooling_max: dict[str, int | None] = field(default_factory=dict)
    events: dict[str, int | None] = field(default_factory=dict)

    def plus(self, window: Window) -> Totals:
        """The same with a window more."""
        energy, bound, reasons = {}, {}, dict(self.reasons)
        for name in SETS:
            one = window.sets[name]
            energy[name] = _sum(self.energy_j[name], one.energy_j)
            bound[name] = _sum(self.bound_j[name], one.bound_j)
            if one.energy_j is None:
                reasons.setdefault(name, one.reason)
        clocks = dict(self.clocks_s)
        for mhz, seconds in window.clocks_s.items():
            clocks[mhz] = clocks.get(mhz, 0.0) + seconds
        known = window.util_pct is not None
        return Totals(
            self.duration_s + window.duration_s,
            energy,
            bound,
            reasons,
            clocks,
            self.busy_s + (window.util_pct or 0.0) * window.duration_s,
            self.load_s + (window.duration_s if known else 0.0),
            {
                name: max((n for n in (n, self.cooling_max.get(name)) if n is not None), default=None)
                for name, n in window.cooling_max.items()
            },
            {name: _sum(self.events.get(name, 0), n) for name, n in window.events.items()},
        )

    @property
    def mean_power_w(self) -> dict[str, float | None]:
        """Rail set -> watts."""
        return {
            n: None if j is None or self.duration_s <= 0 else j / self.duration_s
            for n, j in self.energy_j.items()
        }

    @property
    def mhz_mean(self) -> float | None:
        """Mean clock while it could be read."""
        known = {float(name): s for name, s in self.clocks_s.items() if name != "unknown"}
        seconds = sum(known.values())
        return sum(mhz * s for mhz, s in known.items()) / seconds if seconds > 0 else None

    @property
    def util_pct(self) -> float | None:
        """Mean load of the GPU."""
        return self.busy_s / self.load_s if self.load_s > 0 else None

    @property
    def main(self) -> str:
        """The rail set that counts: ``gpu_cpu`` where the board has it."""
        return "gpu_cpu" if self.energy_j["gpu_cpu"] is not None else "module"


def _sum(a: float | None, b: float | None) -> Any:
    return None if a is None or b is None else a + b


class Account:
    """Adds up what a running meter sees.

    Args:
        meter: it runs already.
        judge: says of each part whether the clocks were free in it; None where they are held.

    Attributes:
        start_s: when it began, on the meter's clock.
        certificates: one document per part that was closed off.
    """

    def __init__(
        self, meter: Meter, *, part_s: float = PART_S, judge: Callable[[Window], Judgement] | None = None
    ) -> None:
        self.meter, self._part_s, self._judge = meter, part_s, judge
        self.start_s = self._from_s = meter.mark("begins", change=False)
        self.certificates: list[dict[str, Any]] = []
        self._closed = Totals()
        self._lock = threading.Lock()

    def tick(self, now_s: float) -> None:
        """Close a part off where it is long enough."""
        if now_s - self._from_s >= self._part_s:
            self.close()

    def close(self) -> Totals:
        """Close the present part off now; returns what was spent from the beginning."""
        with self._lock:
            now_s = self.meter.mark("part ends", change=False)
            if now_s > self._from_s:
                window = self.meter.window(self._from_s, now_s)
                self._closed = self._closed.plus(window)
                judged = None if self._judge is None else self._judge(window)
                self.certificates.append(certify(self.meter, window, baseline=judged).as_json())
                self.meter.forget(now_s - KEEP_S)
                self._from_s = now_s
            return self._closed

    def total(self, until_s: float | None = None) -> Totals:
        """What was spent from the beginning.

        Args:
            until_s: a moment of the present part; now where not given.
        """
        with self._lock:
            if until_s is None:
                until_s = self.meter.mark("look", change=False)
            if until_s <= self._from_s:
                return self._closed
            return self._closed.plus(self.meter.window(self._from_s, until_s))

    def window(self, t0_s: float, t1_s: float) -> Window:
        """A window of the last minutes.

        Raises:
            InputError: its readings were closed off already.
        """
        with self._lock:
            if t0_s < self._from_s - KEEP_S:
                raise InputError(
                    "The window lies too far back.", f"At most {self._part_s:g} s were expected."
                )
            return self.meter.window(t0_s, t1_s)
