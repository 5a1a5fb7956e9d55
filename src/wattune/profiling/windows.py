"""From readings of a rail to the energy of a window: gaps, the monitor's filter, its codes.

What a power monitor of a Jetson shows is not the power but an exponential mean of it with the time constant tau, cut off to whole
codes of the current. Two corrections follow from that.

*The filter.* With the true power P and the shown one F, the filter is tau dF/dt = P - F. Integrated over a window from t0 to t1 this
is exact, whatever the load does: energy = integral of F + tau (F(t1) - F(t0)). So a window needs no settling to be right; it needs F
at its two ends, which is why a mark takes a sample at once.

*The codes.* A current that is cut off to whole codes is half a code too low on the average of all currents, so half a code is added
wherever one is shown. Under a steady load the error of that is fixed, up to half a code either way, and no number of samples makes
it smaller: it is given as a bound. Where the code is zero (or negative) nothing is added, and the bound is a whole code.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from wattune.boards.jetson.findings import RailChannel
from wattune.profiling.sampler import Value

BUS_CODE_MV = 8
"""Resolution of the bus voltage of an INA3221."""

GAP_PERIODS = 2.5
"""An interval longer than this many sampling periods is a gap."""

BRIDGE_PERIODS = 5.0
"""A gap longer than this many periods, and than `BRIDGE_S`, is not bridged."""

BRIDGE_S = 1.0
DEFAULT_TAU_S = 0.43
"""What NVIDIA's images configure; assumed, and said so, where the filter could not be read."""

SHORT_S = 5.0
"""Windows shorter than this are of low confidence (the filter's lag and the codes weigh too much)."""


class Point(NamedTuple):
    """A rail's power at a time; `bound_w` is how far off its code may be, None where the resolution is unknown."""

    t_s: float
    power_w: float
    bound_w: float | None


def rail_power(channel: RailChannel, values: Sequence[Value]) -> tuple[float, float | None] | str:
    """A rail's power and its bound from one reading.

    Args:
        channel: the rail.
        values: millivolts and milliamperes, or the power in the rail's own unit.

    Returns:
        Watts and the bound in watts, or why there is none.
    """
    for value in values:
        if isinstance(value, str):
            return value
    if not values:
        return "no file"
    if len(values) == 1:
        return values[0] * channel.power_unit_w, None  # type: ignore[operator]  # no text is left
    mv, ma = values
    assert isinstance(mv, int)
    assert isinstance(ma, int)
    power_w = mv * ma * 1e-6
    if channel.code_ma is None:
        return power_w, None
    code_w = mv * channel.code_ma * 1e-6
    bus_w = BUS_CODE_MV * abs(ma) * 1e-6
    if ma > 0:
        return power_w + code_w / 2, code_w / 2 + bus_w
    return power_w, code_w + bus_w


@dataclass(frozen=True, slots=True)
class Gap:
    """Time without readings.

    Attributes:
        start_s: the last reading before it, seconds from the window's start (negative where it began before).
        length_s: how long.
        rails: which rails had none.
        bridged: whether the trapezoid goes across; if not, there is no energy.
        reason: errors read meanwhile, or that no sample was taken.
    """

    start_s: float
    length_s: float
    rails: tuple[str, ...]
    bridged: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """How readings become energy.

    Attributes:
        period_s: time between two samples as asked for.
        bridge_s: longest gap that is bridged.
        tau_s: the filter's time constant; None where unknown: then the lag is not corrected but counted as uncertainty.
    """

    period_s: float
    bridge_s: float
    tau_s: float | None

    @property
    def gap_s(self) -> float:
        """Intervals longer than this are gaps."""
        return GAP_PERIODS * self.period_s


@dataclass(frozen=True, slots=True)
class RailEnergy:
    """Energy of a rail in a window.

    Attributes:
        energy_j: None where it cannot be said; `reason` says why.
        bound_j: how far off the codes may put it (systematic, either way); None where the resolution is unknown.
        edge_j: estimated uncertainty of the filter's state at the two edges.
        readings: how many lie in the window.
        failed: error -> how many readings failed so in the window.
        unchanged_pct: share of readings that equal the one before (a steady load gives a stuck code).
        coverage_pct: share of the window outside gaps.
        gaps: the gaps that touch the window.
    """

    energy_j: float | None
    reason: str
    bound_j: float | None
    edge_j: float
    readings: int
    failed: dict[str, int]
    unchanged_pct: float
    coverage_pct: float
    gaps: tuple[Gap, ...]


@dataclass(frozen=True, slots=True)
class SetEnergy:
    """Energy of a set of rails; attributes as of :class:`RailEnergy`, summed."""

    labels: tuple[str, ...]
    energy_j: float | None
    reason: str
    bound_j: float | None = None
    edge_j: float = 0.0


@dataclass(frozen=True, slots=True)
class Failures:
    """Readings of a rail that failed: when, and how."""

    t_s: list[float] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> dict[str, int]:
        """Error -> how often, in a time."""
        counts: dict[str, int] = {}
        for at in range(bisect_left(self.t_s, begin_s), len(self.t_s)):
            if self.t_s[at] > end_s:
                break
            counts[self.names[at]] = counts.get(self.names[at], 0) + 1
        return counts


def rail_energy(
    label: str, points: Sequence[Point], failures: Failures, t0_s: float, t1_s: float, rules: Rules
) -> RailEnergy:
    """Energy of one rail from `t0_s` to `t1_s`: trapezoid over the real stamps, corrected for the filter.

    Args:
        label: the rail.
        points: its readings in order of time, those around the window included.
        failures: its readings that failed.
        t0_s: start of the window, seconds on the points' clock.
        t1_s: end of it, later than the start.
        rules: see :class:`Rules`.
    """
    stamps = [point.t_s for point in points]
    first, last = bisect_left(stamps, t0_s), bisect_left(stamps, t1_s)
    inside = [p for p in points[first : last + 1] if p.t_s <= t1_s]
    failed = failures.between(t0_s, t1_s)
    if first and (first == len(points) or points[first].t_s > t0_s):
        first -= 1
    chain = list(points[first : last + 1])  # from the last point at or before t0 to the first at or after t1
    gaps: list[Gap] = []
    missing_s = 0.0

    def gap(begin: float, end: float, bridged: bool) -> None:
        nonlocal missing_s
        missing_s += min(end, t1_s) - max(begin, t0_s)
        reason = _errors(failures.between(begin, end)) or "no sample was taken"
        gaps.append(Gap(begin - t0_s, end - begin, (label,), bridged, reason))

    # What lies outside the readings is held for as long as an ordinary interval may last.
    before = chain[0].t_s - t0_s if chain else t1_s - t0_s
    after = t1_s - chain[-1].t_s if chain else 0.0
    if not chain or before > rules.gap_s:
        gap(t0_s, t0_s + before, bridged=False)
    if chain and after > rules.gap_s:
        gap(chain[-1].t_s, t1_s, bridged=False)
    if chain and before > 0.0:
        chain.insert(0, chain[0]._replace(t_s=t0_s))
    if chain and after > 0.0:
        chain.append(chain[-1]._replace(t_s=t1_s))
    energy = bound = 0.0
    known = bool(chain)
    for a, b in itertools.pairwise(chain):
        length = b.t_s - a.t_s
        if length <= 0.0:
            continue
        begin, end = max(a.t_s, t0_s), min(b.t_s, t1_s)
        if end <= begin:
            continue
        if (
            length > rules.gap_s
            and not (a.t_s == t0_s and before > 0.0)
            and not (b.t_s == t1_s and after > 0.0)
        ):
            gap(a.t_s, b.t_s, bridged=length <= rules.bridge_s)
        slope = (b.power_w - a.power_w) / length
        mean_w = a.power_w + slope * (0.5 * (begin + end) - a.t_s)
        energy += mean_w * (end - begin)
        if a.bound_w is None or b.bound_w is None:
            known = False
        else:
            bound += 0.5 * (a.bound_w + b.bound_w) * (end - begin)
    gaps.sort(key=lambda g: g.start_s)
    lag_s = rules.tau_s
    edge_j = 0.0
    if chain:
        start_w, start_off = _at(chain, t0_s)
        end_w, end_off = _at(chain, t1_s)
        if lag_s is not None:
            energy += lag_s * (end_w - start_w)
            edge_j = lag_s * (start_off + end_off)
        else:
            edge_j = DEFAULT_TAU_S * (start_off + end_off + abs(end_w - start_w))
    reason = ""
    if not inside and not chain:
        reason = f"{label} gave no reading" + (f" ({_errors(failed)})." if failed else ".")
    elif lost := [g for g in gaps if not g.bridged]:
        worst = max(lost, key=lambda g: g.length_s)
        reason = f"{label} has a gap of {worst.length_s:.2f} s ({worst.reason}); at most {rules.bridge_s:.2f} s are bridged."
    same = sum(a.power_w == b.power_w for a, b in itertools.pairwise(inside))
    return RailEnergy(
        energy_j=None if reason else energy,
        reason=reason,
        bound_j=bound if known and not reason else None,
        edge_j=edge_j,
        readings=len(inside),
        failed=failed,
        unchanged_pct=100.0 * same / max(1, len(inside) - 1),
        coverage_pct=max(0.0, 100.0 * (1.0 - missing_s / (t1_s - t0_s))),
        gaps=tuple(gaps),
    )


def _errors(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} x {name}" for name, n in sorted(counts.items()))


def _at(chain: Sequence[Point], t_s: float) -> tuple[float, float]:
    """Shown power at a time between two points, and an estimate of how far off the straight line may be there.

    A step just after the first point lets the truth lie anywhere between the two; at a point nothing is uncertain.
    """
    at = bisect_left([point.t_s for point in chain], t_s)
    if at < len(chain) and chain[at].t_s == t_s:
        return chain[at].power_w, 0.0
    a, b = chain[at - 1], chain[at]
    share = (t_s - a.t_s) / (b.t_s - a.t_s)
    rise = b.power_w - a.power_w
    return a.power_w + share * rise, abs(rise) * min(max(share, 1 - share), 4 * share * (1 - share))


def set_energy(labels: Sequence[str] | None, rails: dict[str, RailEnergy], what: str) -> SetEnergy:
    """Energy of a rail set: None where any of its rails has none, never a smaller sum.

    Args:
        labels: its rails; None where the board has no such set.
        rails: energies by label.
        what: name of the set, for the reason.
    """
    if not labels:
        return SetEnergy((), None, f"This board has no known rail set {what}.")
    missing = [label for label in labels if label not in rails]
    if missing:
        return SetEnergy(tuple(labels), None, f"{', '.join(missing)} was not found.")
    members = [rails[label] for label in labels]
    reason = " ".join(m.reason for m in members if m.reason)
    energies = [m.energy_j for m in members if m.energy_j is not None]
    if len(energies) < len(members):
        return SetEnergy(tuple(labels), None, reason)
    bounds = [m.bound_j for m in members if m.bound_j is not None]
    return SetEnergy(
        tuple(labels),
        sum(energies),
        "",
        sum(bounds) if len(bounds) == len(members) else None,
        sum(m.edge_j for m in members),
    )


def merge_gaps(rails: dict[str, RailEnergy]) -> tuple[Gap, ...]:
    """The gaps of all rails; one that several rails share is given once."""
    found: dict[tuple[float, float, bool, str], list[str]] = {}
    for label, rail in rails.items():
        for gap in rail.gaps:
            found.setdefault((gap.start_s, gap.length_s, gap.bridged, gap.reason), []).append(label)
    return tuple(
        Gap(start, length, tuple(labels), bridged, reason)
        for (start, length, bridged, reason), labels in sorted(found.items())
    )
