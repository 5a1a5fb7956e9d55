"""Time and power of a training step at a clock: a roofline with a soft maximum, and three rails.

Structure (values and their sources are in the constants file):

- Time of a phase (forward, backward, optimizer): a soft maximum (p-norm) of compute time ``flops / (flop per clock x
  efficiency x f)``, memory time ``bytes x DRAM share / bandwidth(f)`` and launch time ``launches x launch cost``: the
  roofline of time of Choi et al. (IPDPS 2013), softened. Compute and memory overlap little, since the kernels that
  need the one and those that need the other run in turn; launching overlaps more, since kernels are queued. So the
  two norms have exponents of their own.
- VDD_GPU_SOC: static power growing with V, a clock tree ``f V^2``, and energy per operation and per byte ``V^2``.
- VDD_CPU_CV: a base, and more while a thread issues kernels.
- VIN_SYS_5V0: a base, and energy per byte of DRAM traffic.
"""

from __future__ import annotations

from dataclasses import dataclass

from wattune.boards.virtual.constants import BoardConstants
from wattune.core.errors import InputError
from wattune.core.workload import PhaseCost, StepCost

MODEL_VERSION = 1
"""Raise it whenever the same constants would give other answers: measured cells carry it in their fingerprint."""

GPU_RAIL, CPU_RAIL, SYS_RAIL = "VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"
RAIL_SETS: dict[str, tuple[str, ...]] = {
    "gpu_cpu": (GPU_RAIL, CPU_RAIL),
    "module": (GPU_RAIL, CPU_RAIL, SYS_RAIL),
}
OPTIMIZER_DRAM_SHARE = 1.0
"""The optimizer streams through parameters and moments once: caches cannot keep them."""

HALF_PRECISIONS = frozenset({"fp16", "bf16"})


@dataclass(frozen=True, slots=True)
class PhaseRun:
    """One phase of a step at one clock.

    Attributes:
        time_s: duration.
        busy: share of it in which the GPU computes or moves data, 0..1.
        gpu_soc_w: mean power of VDD_GPU_SOC.
        cpu_cv_w: mean power of VDD_CPU_CV.
        sys_w: mean power of VIN_SYS_5V0.
    """

    time_s: float
    busy: float
    gpu_soc_w: float
    cpu_cv_w: float
    sys_w: float

    @property
    def gpu_cpu_j(self) -> float:
        """Energy of the phase on the rail set ``gpu_cpu``, joules."""
        return (self.gpu_soc_w + self.cpu_cv_w) * self.time_s

    @property
    def module_j(self) -> float:
        """Energy of the phase on all three rails, joules."""
        return (self.gpu_soc_w + self.cpu_cv_w + self.sys_w) * self.time_s


def voltage_v(c: BoardConstants, mhz: float) -> float:
    """GPU voltage at a clock: a floor up to the knee, then linear."""
    return c.voltage_floor_v + c.voltage_slope_v_per_mhz * max(0.0, mhz - c.voltage_knee_mhz)


def bandwidth_byte_per_s(c: BoardConstants, mhz: float) -> float:
    """Memory bandwidth at a clock: smooth minimum of what the clock moves and the ceiling."""
    by_clock = c.bytes_per_clock * mhz * 1e6
    q = c.bandwidth_sharpness
    return float(by_clock / (1.0 + (by_clock / c.bandwidth_ceiling_byte_per_s) ** q) ** (1.0 / q))


def idle_gpu_soc_w(c: BoardConstants, mhz: float) -> float:
    """VDD_GPU_SOC of a powered GPU without work: static power and clock tree."""
    v = voltage_v(c, mhz)
    return c.static_w * v / c.voltage_floor_v + c.clock_tree_w_per_mhz_v2 * mhz * v * v


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
    flop_rate = (
        c.flop_per_clock_half * c.efficiency_half if half else c.flop_per_clock_fp32 * c.efficiency_fp32
    ) * (mhz * 1e6)
    dram_bytes = cost.bytes * (c.dram_share if dram_share is None else dram_share)
    launch_s = cost.launches * c.launch_cost_s
    gpu_s = _soft_maximum(
        cost.flops / flop_rate, dram_bytes / bandwidth_byte_per_s(c, mhz), c.kernel_overlap_exponent
    )
    time_s = _soft_maximum(gpu_s, launch_s, c.launch_overlap_exponent)
    v2 = voltage_v(c, mhz) ** 2
    per_flop = c.energy_per_flop_half_j if half else c.energy_per_flop_fp32_j
    return PhaseRun(
        time_s=time_s,
        busy=gpu_s / time_s,
        gpu_soc_w=idle_gpu_soc_w(c, mhz)
        + (per_flop * cost.flops + c.energy_per_byte_j * cost.bytes) * v2 / time_s,
        cpu_cv_w=c.cpu_base_w + c.cpu_launch_w * launch_s / time_s,
        sys_w=c.sys_base_w + c.dram_energy_per_byte_j * dram_bytes / time_s,
    )


def run_step(c: BoardConstants, cost: StepCost, precision: str, mhz: float) -> tuple[PhaseRun, ...]:
    """The phases of one training step at a pinned clock: forward, backward, optimizer, and the host's gap."""
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
        runs.append(PhaseRun(c.host_gap_s, 0.0, idle_gpu_soc_w(c, mhz), cpu_w, c.sys_base_w))
    return tuple(runs)
