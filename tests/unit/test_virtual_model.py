from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.boards.virtual.board import DEFAULT_CONSTANTS
from wattune.boards.virtual.constants import load_board_file
from wattune.boards.virtual.model import (
    bandwidth_byte_per_s,
    idle_gpu_soc_w,
    run_phase,
    run_step,
    voltage_v,
)
from wattune.core.errors import InputError
from wattune.core.workload import PhaseCost, StepCost

FILE = load_board_file(DEFAULT_CONSTANTS)
C, TABLE = FILE.constants, FILE.table

flops = st.floats(0, 1e14)
moved = st.floats(1e3, 1e12)
launches = st.floats(1, 1e5)
costs = st.builds(PhaseCost, flops, moved, launches)
precisions = st.sampled_from(["fp32", "fp16", "bf16"])
clocks = st.sampled_from(list(TABLE))


@given(costs, precisions)
def test_a_higher_clock_never_takes_longer(cost: PhaseCost, precision: str) -> None:
    times = [run_phase(C, cost, precision, mhz).time_s for mhz in TABLE]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(times))
    assert times[-1] > 0


@given(costs, precisions, clocks)
def test_power_and_energy_are_positive_and_the_module_holds_the_rest(
    cost: PhaseCost, precision: str, mhz: float
) -> None:
    run = run_phase(C, cost, precision, mhz)
    assert min(run.gpu_soc_w, run.cpu_cv_w, run.sys_w) > 0
    assert 0 <= run.busy <= 1
    assert run.module_j > run.gpu_cpu_j > 0
    assert run.gpu_soc_w >= idle_gpu_soc_w(C, mhz)


@given(costs, precisions, clocks, st.sampled_from(["flops", "bytes", "launches"]), st.floats(1.0, 10.0))
def test_more_work_never_costs_less(
    cost: PhaseCost, precision: str, mhz: float, what: str, factor: float
) -> None:
    less = run_phase(C, cost, precision, mhz)
    more = run_phase(C, replace(cost, **{what: getattr(cost, what) * factor}), precision, mhz)
    tolerance = 1 - 1e-12
    assert more.time_s >= less.time_s * tolerance
    assert more.gpu_cpu_j >= less.gpu_cpu_j * tolerance
    assert more.module_j >= less.module_j * tolerance


@given(costs, precisions, clocks)
def test_time_lies_between_the_greatest_part_and_their_sum(
    cost: PhaseCost, precision: str, mhz: float
) -> None:
    peak = (
        C.flop_per_clock_fp32 * C.efficiency_fp32
        if precision == "fp32"
        else C.flop_per_clock_half * C.efficiency_half
    )
    parts = (
        cost.flops / (peak * mhz * 1e6),
        cost.bytes * C.dram_share / bandwidth_byte_per_s(C, mhz),
        cost.launches * C.launch_cost_s,
    )
    time_s = run_phase(C, cost, precision, mhz).time_s
    assert max(parts) * (1 - 1e-12) <= time_s <= sum(parts) * (1 + 1e-12)


def test_launch_bound_work_takes_the_same_time_at_every_clock_and_leaves_the_gpu_idle() -> None:
    runs = [run_phase(C, PhaseCost(1e3, 1e3, 1000), "fp16", mhz) for mhz in TABLE]
    assert all(run.time_s == pytest.approx(1000 * C.launch_cost_s, rel=1e-6) for run in runs)
    assert all(run.busy < 0.01 for run in runs)
    assert runs[-1].gpu_soc_w > runs[0].gpu_soc_w


def test_compute_bound_work_scales_with_the_clock() -> None:
    at = {mhz: run_phase(C, PhaseCost(1e13, 1e3, 1), "fp32", mhz) for mhz in (408.0, 816.0)}
    assert at[408.0].time_s == pytest.approx(2 * at[816.0].time_s, rel=1e-6)
    assert at[816.0].busy > 0.999


def test_the_voltage_has_a_floor_and_a_knee() -> None:
    below = [voltage_v(C, mhz) for mhz in TABLE if mhz <= C.voltage_knee_mhz]
    above = [voltage_v(C, mhz) for mhz in TABLE if mhz > C.voltage_knee_mhz]
    assert set(below) == {C.voltage_floor_v}
    assert above == sorted(above)
    assert above[0] > C.voltage_floor_v


def test_the_bandwidth_follows_the_clock_and_flattens() -> None:
    got = [bandwidth_byte_per_s(C, mhz) for mhz in TABLE]
    assert got == sorted(got)
    assert got[0] == pytest.approx(C.bytes_per_clock * 306e6, rel=0.05)
    assert 0.8 * C.bandwidth_ceiling_byte_per_s < got[-1] < C.bandwidth_ceiling_byte_per_s
    assert got[-1] < 204.8e9  # the DRAM's own peak (datasheet)


def test_a_step_is_its_phases_and_the_host_gap() -> None:
    phase = PhaseCost(1e12, 1e9, 100)
    step = StepCost(phase, phase, PhaseCost(0, 0, 0))
    runs = run_step(C, step, "fp32", 612.0)
    assert len(runs) == 3
    assert (runs[2].time_s, runs[2].busy) == (C.host_gap_s, 0.0)
    assert len(run_step(replace(C, host_gap_s=0.0), step, "fp32", 612.0)) == 2


def test_an_unknown_precision_is_bad_input() -> None:
    with pytest.raises(InputError, match="int4"):
        run_phase(C, PhaseCost(1, 1, 1), "int4", 612.0)
