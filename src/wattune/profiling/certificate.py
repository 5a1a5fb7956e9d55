"""What a measurement rests on, in one document: every number somebody needs to believe it or not."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattune import __version__
from wattune.boards.jetson.findings import Findings, GpuNode, PowerMode
from wattune.core.measurement import Provenance
from wattune.core.settings import hz_to_mhz, setting_label
from wattune.profiling.meter import Cost, Meter, Window

SCHEMA_VERSION = 1
EMULATOR_STATUS = "emulator/status.json"
"""A file that only emulated trees have."""

BUSY_CORE_W = {"jetson-agx-orin-64gb": 1.7, "jetson-agx-orin-32gb": 1.7, "jetson-agx-xavier": 1.3}
"""What one busy CPU core adds to the CPU's rail, watts: an assumption (the value to which the modelled boards were fitted)."""

BUSY_PCT = 90.0
"""From this mean load on a governor that follows demand would have raised the clock."""

ONE_CLOCK_SHARE = 0.99
CLOCK_TOLERANCE = 0.01
UNKNOWN_SHARE = 0.1
DEMAND_GOVERNORS = ("nvhost_podgov", "simple_ondemand", "wmark_simple")


@dataclass(frozen=True, slots=True)
class Judgement:
    """Whether a run with unpinned clocks may stand as the baseline.

    Attributes:
        accepted: whether it may.
        label: what it may be called: ``MAXN`` in that power mode only, else ``maxn (MODE)``; empty where refused.
        reasons: why it is refused.
        notes: what else should be known.
    """

    accepted: bool
    label: str
    reasons: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self) | {"reasons": list(self.reasons), "notes": list(self.notes)}


def judge_baseline(
    before: Findings,
    after: Findings,
    clocks_s: Mapping[str, float],
    *,
    util_pct: float | None = None,
    cooling: Mapping[str, int | None] | None = None,
    events: Mapping[str, int | None] | None = None,
    bounds_hz: Sequence[tuple[float, int | None, int | None]] = (),
) -> Judgement:
    """Hold power mode, limits and the clocks seen against each other: a baseline is refused unless they agree.

    A clock that somebody left pinned, or that a limit holds down, makes every saving against it wrong, and nothing in the
    energy figure shows it.

    Args:
        before: the board before the run; `after` after it.
        after: see `before`.
        clocks_s: GPU clock in MHz -> seconds, as :class:`~wattune.profiling.meter.Window` has it.
        util_pct: mean load of the GPU; None where unknown.
        cooling: highest states of the cooling devices; `events` over-current events.
        events: see `cooling`.
        bounds_hz: bounds of the clock seen meanwhile, as :class:`~wattune.profiling.meter.Window` has them.
    """
    one, two = before.gpu, after.gpu
    if one is None or two is None:
        return Judgement(
            False, "", ("The GPU's clock node was not found, so nothing shows that it was unpinned.",)
        )
    reasons = [
        f"The clock was pinned at {setting_label(hz_to_mhz(gpu.max_hz))} MHz {when} the run."
        for gpu, when in ((one, "before"), (two, "after"))
        if len(gpu.table_hz) > 1 and gpu.min_hz == gpu.max_hz
    ]
    notes: list[str] = []
    if (one.min_hz, one.max_hz) != (two.min_hz, two.max_hz):
        reasons.append(
            f"The bounds of the clock were {_bounds(one)} before the run and {_bounds(two)} after it."
        )
    else:
        others = {(low, high) for _, low, high in bounds_hz if low is not None and high is not None}
        reasons += [
            f"The bounds of the clock were {_mhz(low)} to {_mhz(high)} MHz for a time, and {_bounds(one)} before the run."
            for low, high in sorted(others - {(one.min_hz, one.max_hz)})
        ]
    if before.boot_id != after.boot_id:
        reasons.append("The board was rebooted during the run.")
    if _name(before.power_mode) != _name(after.power_mode):
        reasons.append(
            f"The power mode was {_name(before.power_mode)} before the run and {_name(after.power_mode)} after it."
        )
    governors = {one.governor, two.governor}
    if len(governors) > 1:
        reasons.append(f"The governor was {one.governor} before the run and {two.governor} after it.")
    elif one.governor in ("userspace", "powersave"):
        reasons.append(f"The governor {one.governor} does not follow the load.")
    elif one.governor not in DEMAND_GOVERNORS:
        notes.append(f"The governor was {one.governor}, not the board's usual one.")
    reasons += _clock_reasons(one, clocks_s, util_pct)
    mode, top_hz = before.power_mode, one.table_hz[-1] if one.table_hz else one.max_hz
    is_maxn = mode is not None and mode.name.upper().startswith("MAXN")
    if is_maxn and one.max_hz < top_hz and one.min_hz != one.max_hz:
        reasons.append(
            f"The power mode is {_name(mode)}, but the clock is capped at {_mhz(one.max_hz)} MHz of {_mhz(top_hz)} MHz."
        )
    reasons += [
        f"The cooling device {name} capped the clock (state {n})." for name, n in (cooling or {}).items() if n
    ]
    reasons += [f"The over-current counter {name} moved by {n}." for name, n in (events or {}).items() if n]
    if reasons:
        return Judgement(False, "", tuple(reasons), tuple(notes))
    if mode is None:
        notes.append("The power mode is unknown, so this row is not called MAXN.")
    label = "MAXN" if is_maxn else f"maxn ({_name(mode)})"
    return Judgement(True, label, (), tuple(notes))


def _clock_reasons(gpu: GpuNode, clocks_s: Mapping[str, float], util_pct: float | None) -> list[str]:
    total = sum(clocks_s.values())
    known = {float(name): s for name, s in clocks_s.items() if name != "unknown" and s > 0}
    seen_s = sum(known.values())
    if not known or seen_s < (1 - UNKNOWN_SHARE) * total:
        share = 100 * seen_s / total if total else 0.0
        return [
            f"The clock was seen for {share:.0f} % of the run only, so nothing shows that it was unpinned."
        ]
    reasons = []
    highest, cap = max(known), hz_to_mhz(gpu.max_hz)
    if highest > cap * (1 + CLOCK_TOLERANCE):
        reasons.append(f"The clock reached {highest:g} MHz, above its limit of {cap:g} MHz.")
    usual, usual_s = max(known.items(), key=lambda item: item[1])
    if (
        len(gpu.usable_hz) > 1
        and usual_s >= ONE_CLOCK_SHARE * seen_s
        and usual < cap * (1 - CLOCK_TOLERANCE)
        and util_pct is not None
        and util_pct >= BUSY_PCT
    ):
        reasons.append(
            f"The clock stood at {usual:g} MHz while the GPU was {util_pct:.0f} % busy, although {cap:g} MHz were allowed: "
            "something held it there."
        )
    return reasons


def _bounds(gpu: GpuNode) -> str:
    return f"{_mhz(gpu.min_hz)} to {_mhz(gpu.max_hz)} MHz"


def _mhz(hz: int) -> str:
    return setting_label(hz_to_mhz(hz))


def _name(mode: PowerMode | None) -> str:
    return mode.name if mode is not None else "power mode unknown"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A measurement's certificate; `document` is what ``--json`` prints.

    Attributes:
        document: sections of plain values, units in the names.
        valid: whether the window may be used.
    """

    document: dict[str, Any]

    @property
    def valid(self) -> bool:
        """Whether nothing speaks against the window."""
        return not self.document["invalid"]

    def as_json(self) -> dict[str, Any]:
        """The document."""
        return self.document

    def text(self) -> str:
        """The document for people."""
        return "\n".join(_lines(self.document))


def certify(
    meter: Meter,
    window: Window,
    *,
    idle: Window | None = None,
    repeats_j: Sequence[float] = (),
    baseline: Judgement | None = None,
) -> Certificate:
    """Everything the energy of a window rests on.

    Args:
        meter: what measured.
        window: what was measured.
        idle: a window of the idle board, to say what the work took above that (net).
        repeats_j: energies of repeats of the same work, for their spread.
        baseline: the judgement, where the window is a run with unpinned clocks.
    """
    found, cost = meter.findings, meter.cost()
    invalid = list(window.invalid)
    if meter.boot_ids[1] is not None and meter.boot_ids[0] != meter.boot_ids[1]:
        invalid.append("The board was rebooted.")
    if baseline is not None and not baseline.accepted:
        invalid += [f"As a baseline it is refused: {reason}" for reason in baseline.reasons]
    start, end = meter.power_modes
    if start is not None and end is not None and start != end:
        invalid.append(f"The power mode was {start.name} at the start and {end.name} at the end.")
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "provenance": provenance_of(found),
        "board": {
            "id": found.board, "kind": found.kind, "model": found.model, "soc": found.soc, "l4t": found.l4t,
            "jetpack": found.jetpack, "kernel": found.kernel,
            "boot_id_start": meter.boot_ids[0], "boot_id_end": meter.boot_ids[1],
            "power_mode_start": _mode(start), "power_mode_end": _mode(end),
        },
        "versions": {"wattune": __version__, "python": platform.python_version()},
        "window": {
            "duration_s": _round(window.duration_s), "samples": window.samples, "missed": window.missed,
            "slow": window.slow, "duplicates": window.duplicates, "asked_hz": _round(1 / meter.period_s),
            "achieved_hz": _round(window.rate_hz), "longest_interval_s": _round(window.longest_s),
            "read_mean_s": _round(window.read_mean_s, 6), "read_max_s": _round(window.read_max_s, 6),
        },
        "filter": {
            "samples": found.filter.samples, "update_interval_ms": found.filter.update_interval_ms,
            "tau_s": _round(meter.tau_s), "assumed": found.filter.tau_s is None, "settle_s": _round(meter.settle_s),
            "lag_corrected": found.filter.tau_s is not None,
        },
        "rails": {
            label: {
                "energy_j": _round(rail.energy_j), "mean_w": _over(rail.energy_j, window.duration_s), "reason": rail.reason,
                "bound_j": _round(rail.bound_j), "bound_w": _over(rail.bound_j, window.duration_s),
                "edge_j": _round(rail.edge_j), "readings": rail.readings, "failed": rail.failed,
                "unchanged_pct": _round(rail.unchanged_pct, 1), "coverage_pct": _round(rail.coverage_pct, 3),
            }
            for label, rail in window.rails.items()
        },
        "sets": {
            name: {
                "rails": list(one.labels), "scope": "on-board sensors, not the wall",
                "gross_j": _round(one.energy_j), "gross_w": _over(one.energy_j, window.duration_s), "reason": one.reason,
                "bound_j": _round(one.bound_j), "bound_w": _over(one.bound_j, window.duration_s),
                "edge_j": _round(one.edge_j), **_net(name, window, idle),
            }
            for name, one in window.sets.items()
        },
        "gaps": [
            {"start_s": _round(g.start_s), "length_s": _round(g.length_s), "rails": list(g.rails), "bridged": g.bridged,
             "reason": g.reason}
            for g in window.gaps
        ],
        "clock": {
            "seconds_at_mhz": {name: _round(s) for name, s in window.clocks_s.items()},
            "bounds_hz": [{"from_s": _round(at), "min": low, "max": high} for at, low, high in window.bounds_hz],
            "util_pct": _round(window.util_pct, 1),
        },
        "temperatures_c": {
            zone: {"start": window.temps_start_c[zone], "end": window.temps_end_c[zone], "max": window.temps_max_c[zone]}
            for zone in window.temps_start_c
        },
        "throttling": {"cooling_state_max": window.cooling_max, "over_current_events": window.events},
        "repeats": spread(repeats_j),
        "own_cost": own_cost(found, cost),
        "baseline": None if baseline is None else baseline.as_json(),
        "invalid": list(dict.fromkeys(invalid)),
        "warnings": [*window.warnings, *found.warnings],
    }  # fmt: skip
    return Certificate(document)


def provenance_of(findings: Findings) -> Provenance:
    """``measured``, or ``simulated`` where the tree says that it is emulated; looked at once: an emulator may end meanwhile."""
    if findings.emulated is None:
        findings.emulated = findings.sysfs.exists(EMULATOR_STATUS)
    return "simulated" if findings.emulated else "measured"


def own_cost(findings: Findings, cost: Cost) -> dict[str, Any]:
    """CPU time of the meter, and the joules that is worth where a figure for the board is at hand."""
    slope_w = BUSY_CORE_W.get(findings.board or "")
    per_sample = cost.cpu_s / cost.samples if cost.samples else None
    return {
        "cpu_s": _round(cost.cpu_s, 6), "cpu_share": _round(cost.share, 6), "cpu_s_per_sample": _round(per_sample, 9),
        "energy_j": None if slope_w is None else _round(cost.cpu_s * slope_w),
        "assumed_busy_core_w": slope_w,
        "reason": "no figure for a busy core of this board" if slope_w is None else "assumed, not measured",
    }  # fmt: skip


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Number, mean and spread of repeats; the spread is None for fewer than two."""
    n = len(values)
    mean = sum(values) / n if n else None
    sd = math.sqrt(sum((v - mean) ** 2 for v in values) / (n - 1)) if mean is not None and n > 1 else None
    return {
        "n": n, "mean_j": _round(mean), "sd_j": _round(sd),
        "spread_pct": _round(100 * sd / mean, 3) if sd is not None and mean else None,
    }  # fmt: skip


def _net(name: str, window: Window, idle: Window | None) -> dict[str, Any]:
    """Energy above idle; None where either is unknown."""
    gross = window.sets[name].energy_j
    idle_j = idle.sets[name].energy_j if idle is not None else None
    if idle is None or idle_j is None:
        return {"idle_w": None, "net_j": None}
    idle_w = idle_j / idle.duration_s
    return {
        "idle_w": _round(idle_w),
        "net_j": None if gross is None else _round(gross - idle_w * window.duration_s),
    }


def _mode(mode: PowerMode | None) -> dict[str, Any] | None:
    return None if mode is None else {"name": mode.name, "id": mode.id}


def _round(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def _over(energy_j: float | None, seconds: float) -> float | None:
    return None if energy_j is None else round(energy_j / seconds, 4)


def _lines(d: dict[str, Any]) -> list[str]:
    board, window, filtered = d["board"], d["window"], d["filter"]
    mode, own = board["power_mode_start"], d["own_cost"]
    lines = [
        f"Certificate ({d['provenance']}): {board['id'] or board['model'] or 'unknown board'}, "
        f"power mode {mode['name'] if mode else 'unknown'}, JetPack {board['jetpack'] or 'unknown'}",
        f"window      {window['duration_s']:.2f} s, {window['samples']} samples, {window['achieved_hz']:.2f} Hz of "
        f"{window['asked_hz']:g} Hz asked, {window['missed']} missed, {window['slow']} slow, {window['duplicates']} duplicates",
        f"filter      tau {filtered['tau_s']:.3f} s{' (assumed)' if filtered['assumed'] else ''}, settled after "
        f"{filtered['settle_s']:.2f} s",
    ]
    for name, one in d["sets"].items():
        if one["gross_j"] is None:
            lines.append(f"{name:<11} unknown: {one['reason']}")
            continue
        bound = "resolution unknown" if one["bound_j"] is None else f"+-{one['bound_j']:.2f} J by the codes"
        net = "" if one["net_j"] is None else f", {one['net_j']:.2f} J above idle"
        lines.append(
            f"{name:<11} {one['gross_j']:.2f} J ({one['gross_w']:.3f} W), {bound}{net}; on-board sensors"
        )
    for label, rail in d["rails"].items():
        energy = "unknown" if rail["energy_j"] is None else f"{rail['energy_j']:.2f} J"
        failed = "".join(f", {n} x {name}" for name, n in rail["failed"].items())
        lines.append(
            f"  {label:<18} {energy}, {rail['readings']} readings, {rail['coverage_pct']:g} % covered{failed}"
        )
    lines += [
        f"gap         {gap['length_s']:.2f} s at {gap['start_s']:.2f} s, {', '.join(gap['rails'])}: {gap['reason']}"
        f"{'' if gap['bridged'] else ' (not bridged)'}"
        for gap in d["gaps"]
    ]
    clocks = d["clock"]["seconds_at_mhz"].items()
    lines.append("clock       " + (", ".join(f"{name} MHz {s:.1f} s" for name, s in clocks) or "unknown"))
    lines += [f"util        {d['clock']['util_pct']} %"] if d["clock"]["util_pct"] is not None else []
    for zone, c in d["temperatures_c"].items():
        if c["max"] is None:
            lines.append(f"  {zone:<18} off")
            continue
        first, last = (f"{c[k]:.1f}" if c[k] is not None else "off" for k in ("start", "end"))
        lines.append(f"  {zone:<18} {first} -> {last} C, at most {c['max']:.1f} C")
    joules = "unknown J" if own["energy_j"] is None else f"{own['energy_j']:.3f} J"
    lines.append(
        f"own cost    {own['cpu_s']:.3f} CPU s, {100 * own['cpu_share']:.3f} % of a core, {joules} ({own['reason']})"
    )
    if d["repeats"]["n"]:
        r = d["repeats"]
        lines.append(f"repeats     {r['n']}, mean {r['mean_j']:.2f} J, spread {r['spread_pct']} %")
    lines += [f"invalid     {text}" for text in d["invalid"]]
    lines += [f"warning     {text}" for text in d["warnings"]]
    return lines
