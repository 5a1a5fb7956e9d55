"""Time and power of a training step at a clock: a roofline with soft maxima, leakage that rises with temperature, rails.

Structure (values and their sources are in the board's file):

- Time of a phase (forward, backward, optimizer): a soft maximum (p-norm) of compute time ``flops / (flop per clock x
  efficiency x f)`` and memory time ``bytes x DRAM share / bandwidth(f)``: the roofline of time of Choi et al. (IPDPS 2013),
  softened; to it the clocks every kernel takes besides its work; and a soft maximum of that with launch time ``launches x
  launch cost``. Compute and memory overlap little, since the kernels that need the one and those that need the other run
  in turn; launching overlaps more, since kernels are queued. So the two norms have exponents of their own.
- Power in parts: the GPU (leakage growing with V and with temperature, a clock tree ``f V^2``, energy per operation and
  per byte ``V^2``), the CPU (a base, and more while a thread issues kernels), DRAM (energy per byte) and the rest of
  the module (constant). The board's file says which rail feeds which part.
- Temperature: ambient plus thermal resistance times the module's power, first order in time. Leakage heats and heat leaks:
  the steady state is the fixed point.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from wattune.boards.virtual.constants import BoardConstants, Rail
from wattune.core.errors import InputError
from wattune.core.workload import PhaseCost, StepCost

MODEL_VERSION = 2
"""Raise it whenever the same constants would give other answers: measured cells carry it in their fingerprint."""

OPTIMIZER_DRAM_SHARE = 1.0
"""The optimizer streams through parameters and moments once: caches cannot keep them."""

LEAKAGE_REFERENCE_C = 50.0
"""Temperature at which the constant `static_w` holds."""

LEAKAGE_FLOOR = 0.2
"""Share of that leakage which is left at any low temperature."""

RUNAWAY_C = 150.0
"""Where a fixed point of leakage and heat is given up: no part survives it."""

VOLTAGE_SPAN_MHZ = 500.0
"""Span above the knee over which `voltage_slope_v_per_mhz` is the mean slope."""

HALF_PRECISIONS = frozenset({"fp16", "bf16"})


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One phase of a step at one clock, power in parts.

    Attributes:
        time_s: duration.
        busy: share of it in which the GPU computes or moves data, 0..1.
        gpu_w: mean power of the GPU and what shares its rail, without leakage.
        leak_w: leakage on that rail at `LEAKAGE_REFERENCE_C`.
        cpu_w: mean power of the CPU.
        dram_w: mean power of DRAM traffic.
    """

    time_s: float
    busy: float
    gpu_w: float
    leak_w: float
    cpu_w: float
    dram_w: float


def leakage_factor(c: BoardConstants, temp_c: float) -> float:
    """Leakage at a die temperature, relative to `LEAKAGE_REFERENCE_C`.

    Linear: what an exponential looks like over the tens of degrees that a cooled board moves through.
    """
    return max(LEAKAGE_FLOOR, 1.0 + c.leak_per_c * (min(temp_c, RUNAWAY_C) - LEAKAGE_REFERENCE_C))


def steady_temperature_c(c: BoardConstants, other_w: float, leak_w: float) -> float:
    """Die temperature at which heat and leakage agree.

    Args:
        c: the board.
        other_w: module power without leakage.
        leak_w: leakage at `LEAKAGE_REFERENCE_C`.
    """
    temp_c = LEAKAGE_REFERENCE_C
    for _ in range(200):
        after = c.ambient_c + c.thermal_resistance_c_per_w * (other_w + leak_w * leakage_factor(c, temp_c))
        if abs(after - temp_c) < 1e-9 or after > RUNAWAY_C:
            return after
        temp_c = after
    return temp_c


def rail_powers_w(
    c: BoardConstants, rails: Iterable[Rail], run: PhaseRun, leakage: float
) -> tuple[float, ...]:
    """Power of each rail, watts.

    Args:
        c: the board.
        rails: its rails.
        run: what the parts draw.
        leakage: the leakage factor at the die's temperature.
    """
    parts = {
        "gpu": run.gpu_w + run.leak_w * leakage,
        "cpu": run.cpu_w,
        "dram": run.dram_w,
        "sys": c.sys_base_w,
    }
    return tuple(rail.base_w + sum(parts[part] for part in rail.parts) for rail in rails)


def voltage_v(c: BoardConstants, mhz: float) -> float:
    """GPU voltage at a clock: a floor up to the knee, then a power law."""
    above = max(0.0, mhz - c.voltage_knee_mhz) / VOLTAGE_SPAN_MHZ
    return float(c.voltage_floor_v + c.voltage_slope_v_per_mhz * VOLTAGE_SPAN_MHZ * above**c.voltage_exponent)


def bandwidth_byte_per_s(c: BoardConstants, mhz: float) -> float:
    """Memory bandwidth at a clock: smooth minimum of what the clock moves and the ceiling."""
    by_clock = c.bytes_per_clock * mhz * 1e6
    q = c.bandwidth_sharpness
    return float(by_clock / (1.0 + (by_clock / c.bandwidth_ceiling_byte_per_s) ** q) ** (1.0 / q))


def clock_tree_w(c: BoardConstants, mhz: float) -> float:
    """Power of clock distribution at a clock."""
    return c.clock_tree_w_per_mhz_v2 * mhz * voltage_v(c, mhz) ** 2


def leak_w(c: BoardConstants, mhz: float) -> float:
    """Leakage at a clock's voltage and `LEAKAGE_REFERENCE_C`."""
    return c.static_w * voltage_v(c, mhz) / c.voltage_floor_v


def idle_run(c: BoardConstants, mhz: float, *, gated: bool, time_s: float = 1.0) -> PhaseRun:
    """A stretch without work: the GPU clocked, or rail-gated."""
    if gated:
        return PhaseRun(time_s, 0.0, c.gated_gpu_w, 0.0, c.cpu_idle_w, 0.0)
    return PhaseRun(time_s, 0.0, clock_tree_w(c, mhz), leak_w(c, mhz), c.cpu_idle_w, 0.0)


def _soft_maximum(a: float, b: float, p: float) -> float:
    high, low = (a, b) if a >= b else (b, a)
    return high if low == 0.0 else high * (1.0 + (low / high) ** p) ** (1.0 / p)


def is_half(precision: str) -> bool:
    """Whether matrix multiplications run in 16 bits.

    Raises:
        InputError: a precision the model does not know.
    """
    if precision in HALF_PRECISIONS:
        return True
    if precision == "fp32":
        return False
    raise InputError(f"The precision '{precision}' is not modelled.", "One of fp32, fp16, bf16 was expected.")


def run_phase(
    c: BoardConstants, cost: PhaseCost, precision: str, mhz: float, *, dram_share: float | None = None
) -> PhaseRun:
    """One phase at a pinned clock.

    Args:
        c: the board.
        cost: operations of the phase; at least one of them above 0.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        mhz: GPU clock.
        dram_share: share of the traffic that reaches DRAM; the board's constant where not given.
    """
    half = is_half(precision)
    hz = mhz * 1e6
    flop_rate = (
        c.flop_per_clock_half * c.efficiency_half if half else c.flop_per_clock_fp32 * c.efficiency_fp32
    ) * hz
    dram_bytes = cost.bytes * (c.dram_share if dram_share is None else dram_share)
    launch_s = cost.launches * c.launch_cost_s
    gpu_s = (
        _soft_maximum(
            cost.flops / flop_rate, dram_bytes / bandwidth_byte_per_s(c, mhz), c.kernel_overlap_exponent
        )
        + cost.launches * c.kernel_clocks / hz
    )
    time_s = _soft_maximum(gpu_s, launch_s, c.launch_overlap_exponent)
    v = voltage_v(c, mhz)
    per_flop = c.energy_per_flop_half_j if half else c.energy_per_flop_fp32_j
    return PhaseRun(
        time_s=time_s,
        busy=gpu_s / time_s,
        gpu_w=v
        * v
        * (
            c.clock_tree_w_per_mhz_v2 * mhz
            + (per_flop * cost.flops + c.energy_per_byte_j * cost.bytes) / time_s
        ),
        leak_w=c.static_w * v / c.voltage_floor_v,
        cpu_w=c.cpu_base_w + c.cpu_launch_w * launch_s / time_s,
        dram_w=c.dram_energy_per_byte_j * dram_bytes / time_s,
    )


def run_step(c: BoardConstants, cost: StepCost, precision: str, mhz: float) -> tuple[PhaseRun, ...]:
    """The phases of one training step at a pinned clock: forward, backward, optimizer, and the host's gap.

    A step of nothing but a forward pass is an inference; phases without operations are left out.
    """
    phases = (
        (cost.forward, c.dram_share),
        (cost.backward, c.dram_share),
        (cost.optimizer, OPTIMIZER_DRAM_SHARE),
    )
    runs = [
        run_phase(c, phase, precision, mhz, dram_share=share)
        for phase, share in phases
        if phase.flops or phase.bytes or phase.launches
    ]
    if c.host_gap_s:
        cpu_w = c.cpu_base_w + c.cpu_launch_w
        runs.append(PhaseRun(c.host_gap_s, 0.0, clock_tree_w(c, mhz), leak_w(c, mhz), cpu_w, 0.0))
    return tuple(runs)
