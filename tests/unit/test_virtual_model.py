from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from wattune.boards.virtual.board import DEFAULT_CONSTANTS
from wattune.boards.virtual.constants import BoardFile, board_files, load_board_file
from wattune.boards.virtual.model import (
    LEAKAGE_FLOOR,
    LEAKAGE_REFERENCE_C,
    RUNAWAY_C,
    VOLTAGE_SPAN_MHZ,
    PhaseRun,
    bandwidth_byte_per_s,
    clock_tree_w,
    idle_run,
    leak_w,
    leakage_factor,
    rail_powers_w,
    run_phase,
    run_step,
    steady_temperature_c,
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
boards = st.sampled_from([load_board_file(path) for path in board_files().values()])
watts = st.floats(0, 60)
temperatures = st.floats(-20, 140)
phase_runs = st.builds(PhaseRun, st.floats(1e-4, 10), st.floats(0, 1), watts, watts, watts, watts)


def peak_flop_per_s(precision: str, mhz: float) -> float:
    return (
        mhz
        * 1e6
        * (
            C.flop_per_clock_fp32 * C.efficiency_fp32
            if precision == "fp32"
            else C.flop_per_clock_half * C.efficiency_half
        )
    )


def base_w(file: BoardFile) -> float:
    """What the module draws whatever runs."""
    return file.constants.sys_base_w + sum(rail.base_w for rail in file.module_rails)


# --- time


@given(costs, precisions)
def test_a_higher_clock_never_takes_longer(cost: PhaseCost, precision: str) -> None:
    times = [run_phase(C, cost, precision, mhz).time_s for mhz in TABLE]
    assert all(later <= earlier * (1 + 1e-12) for earlier, later in itertools.pairwise(times))
    assert times[-1] > 0


@given(costs, precisions, clocks, st.sampled_from(["flops", "bytes", "launches"]), st.floats(1.0, 10.0))
def test_more_work_never_costs_less(
    cost: PhaseCost, precision: str, mhz: float, what: str, factor: float
) -> None:
    less = run_phase(C, cost, precision, mhz)
    more = run_phase(C, replace(cost, **{what: getattr(cost, what) * factor}), precision, mhz)
    tolerance = 1 - 1e-12
    assert more.time_s >= less.time_s * tolerance
    for part in ("gpu_w", "leak_w", "cpu_w", "dram_w"):
        assert getattr(more, part) * more.time_s >= getattr(less, part) * less.time_s * tolerance


@given(costs, precisions, clocks)
def test_time_lies_between_the_greatest_part_and_their_sum(
    cost: PhaseCost, precision: str, mhz: float
) -> None:
    roofline = (
        cost.flops / peak_flop_per_s(precision, mhz),
        cost.bytes * C.dram_share / bandwidth_byte_per_s(C, mhz),
    )
    kernel_s = cost.launches * C.kernel_clocks / (mhz * 1e6)
    launch_s = cost.launches * C.launch_cost_s
    run = run_phase(C, cost, precision, mhz)
    tolerance = 1e-12
    assert max(max(roofline) + kernel_s, launch_s) * (1 - tolerance) <= run.time_s
    assert run.time_s <= (sum(roofline) + kernel_s + launch_s) * (1 + tolerance)
    # The GPU is busy for the roofline and for every kernel's own clocks, and for nothing else.
    assert max(roofline) + kernel_s <= run.busy * run.time_s * (1 + tolerance)
    assert run.busy * run.time_s <= (sum(roofline) + kernel_s) * (1 + tolerance)


@given(costs, precisions, clocks)
def test_the_clocks_a_kernel_takes_add_to_its_work(cost: PhaseCost, precision: str, mhz: float) -> None:
    with_clocks = run_phase(C, cost, precision, mhz)
    without = run_phase(replace(C, kernel_clocks=0.0), cost, precision, mhz)
    gpu_s = [run.busy * run.time_s for run in (with_clocks, without)]
    assert gpu_s[0] - gpu_s[1] == pytest.approx(
        cost.launches * C.kernel_clocks / (mhz * 1e6), rel=1e-6, abs=1e-12 * gpu_s[0]
    )


def test_launch_bound_work_hardly_sees_the_clock_and_is_busy_for_its_kernels_clocks() -> None:
    n = 1000
    runs = {mhz: run_phase(C, PhaseCost(1e3, 1e3, n), "fp16", mhz) for mhz in TABLE}
    for mhz, run in runs.items():
        kernel_s, launch_s, p = (
            n * C.kernel_clocks / (mhz * 1e6),
            n * C.launch_cost_s,
            C.launch_overlap_exponent,
        )
        assert run.time_s == pytest.approx((kernel_s**p + launch_s**p) ** (1 / p), rel=1e-5)
        assert run.busy == pytest.approx(kernel_s / run.time_s, rel=1e-4)
    slow, fast = runs[TABLE[0]], runs[TABLE.top]
    assert 1.0 <= slow.time_s / fast.time_s < 1.01
    assert slow.busy > 3 * fast.busy > 0.05
    assert fast.gpu_w > slow.gpu_w


def test_compute_bound_work_scales_with_the_clock() -> None:
    at = {mhz: run_phase(C, PhaseCost(1e13, 1e3, 1), "fp32", mhz) for mhz in (408.0, 816.0)}
    assert at[408.0].time_s == pytest.approx(2 * at[816.0].time_s, rel=1e-6)
    assert at[816.0].time_s == pytest.approx(1e13 / peak_flop_per_s("fp32", 816.0), rel=1e-5)
    assert at[816.0].busy > 0.999


def test_both_half_precisions_are_one_and_faster_than_fp32() -> None:
    cost = PhaseCost(1e13, 1e3, 1)
    assert run_phase(C, cost, "fp16", 612.0) == run_phase(C, cost, "bf16", 612.0)
    assert run_phase(C, cost, "fp16", 612.0).time_s < run_phase(C, cost, "fp32", 612.0).time_s / 3


def test_the_voltage_has_a_floor_and_a_knee() -> None:
    below = [voltage_v(C, mhz) for mhz in TABLE if mhz <= C.voltage_knee_mhz]
    above = [voltage_v(C, mhz) for mhz in TABLE if mhz > C.voltage_knee_mhz]
    assert set(below) == {C.voltage_floor_v}
    assert above == sorted(set(above))
    assert above[0] > C.voltage_floor_v
    rises = [b - a for a, b in itertools.pairwise(above[:-1])]  # equal steps of 102 MHz, ever steeper
    assert rises == sorted(rises)


def test_the_voltages_slope_is_the_mean_one_over_its_span() -> None:
    for exponent in (1.0, 1.3, 2.0):
        c = replace(C, voltage_exponent=exponent)
        end = voltage_v(c, c.voltage_knee_mhz + VOLTAGE_SPAN_MHZ)
        assert (end - c.voltage_floor_v) / VOLTAGE_SPAN_MHZ == pytest.approx(c.voltage_slope_v_per_mhz)
    half = voltage_v(replace(C, voltage_exponent=2.0), C.voltage_knee_mhz + VOLTAGE_SPAN_MHZ / 2)
    assert half - C.voltage_floor_v == pytest.approx(C.voltage_slope_v_per_mhz * VOLTAGE_SPAN_MHZ / 4)


def test_the_bandwidth_follows_the_clock_and_flattens() -> None:
    got = [bandwidth_byte_per_s(C, mhz) for mhz in TABLE]
    assert got == sorted(got)
    assert got[0] == pytest.approx(C.bytes_per_clock * 306e6, rel=0.05)
    assert 0.8 * C.bandwidth_ceiling_byte_per_s < got[-1] < C.bandwidth_ceiling_byte_per_s
    assert got[-1] < 204.8e9  # the DRAM's own peak (datasheet)


# --- power in parts


@given(costs, precisions, clocks)
def test_every_part_is_positive_and_the_energy_is_the_works(
    cost: PhaseCost, precision: str, mhz: float
) -> None:
    run = run_phase(C, cost, precision, mhz)
    assert min(run.gpu_w, run.leak_w, run.cpu_w, run.dram_w) > 0
    assert 0 <= run.busy <= 1
    v2 = voltage_v(C, mhz) ** 2
    per_flop = C.energy_per_flop_fp32_j if precision == "fp32" else C.energy_per_flop_half_j
    work_j = (per_flop * cost.flops + C.energy_per_byte_j * cost.bytes) * v2
    assert (run.gpu_w - clock_tree_w(C, mhz)) * run.time_s == pytest.approx(work_j, rel=1e-6, abs=1e-9)
    assert run.dram_w * run.time_s == pytest.approx(C.dram_energy_per_byte_j * C.dram_share * cost.bytes)
    assert C.cpu_base_w <= run.cpu_w <= (C.cpu_base_w + C.cpu_launch_w) * (1 + 1e-12)
    # Leakage is there whatever runs: it follows the voltage and nothing else.
    assert run.leak_w == leak_w(C, mhz) == idle_run(C, mhz, gated=False).leak_w
    assert run.leak_w == pytest.approx(C.static_w * voltage_v(C, mhz) / C.voltage_floor_v)


def test_idle_is_the_clock_tree_and_leakage_or_what_is_left_when_gated() -> None:
    clocked = [idle_run(C, mhz, gated=False, time_s=2.0) for mhz in TABLE]
    assert [run.gpu_w for run in clocked] == [clock_tree_w(C, mhz) for mhz in TABLE]
    assert all(a.gpu_w < b.gpu_w and a.leak_w <= b.leak_w for a, b in itertools.pairwise(clocked))
    gated = [idle_run(C, mhz, gated=True, time_s=2.0) for mhz in TABLE]
    assert set(gated) == {PhaseRun(2.0, 0.0, C.gated_gpu_w, 0.0, C.cpu_idle_w, 0.0)}
    assert all(run.gpu_w + run.leak_w > C.gated_gpu_w for run in clocked)


def test_gating_saves_power_on_a_cool_board() -> None:
    idle = idle_run(C, TABLE[0], gated=False)
    temp_c = steady_temperature_c(C, idle.gpu_w + idle.cpu_w + base_w(FILE), idle.leak_w)
    assert temp_c < 35
    assert idle.gpu_w + idle.leak_w * leakage_factor(C, temp_c) > C.gated_gpu_w


def test_a_step_is_its_phases_and_the_host_gap() -> None:
    phase = PhaseCost(1e12, 1e9, 100)
    step = StepCost(phase, phase, PhaseCost(0, 0, 0))
    runs = run_step(C, step, "fp32", 612.0)
    assert len(runs) == 3
    assert runs[0] == runs[1] == run_phase(C, phase, "fp32", 612.0)
    cpu_w = C.cpu_base_w + C.cpu_launch_w
    assert runs[2] == PhaseRun(C.host_gap_s, 0.0, clock_tree_w(C, 612.0), leak_w(C, 612.0), cpu_w, 0.0)
    assert len(run_step(replace(C, host_gap_s=0.0), step, "fp32", 612.0)) == 2


def test_all_traffic_of_the_optimizer_reaches_dram() -> None:
    phase = PhaseCost(0.0, 1e10, 1)
    forward, optimizer, _ = run_step(C, StepCost(phase, PhaseCost(0, 0, 0), phase), "fp32", 612.0)
    for run, share in ((forward, C.dram_share), (optimizer, 1.0)):
        assert run.dram_w * run.time_s == pytest.approx(C.dram_energy_per_byte_j * 1e10 * share)
    assert forward.time_s / optimizer.time_s == pytest.approx(C.dram_share, rel=1e-3)


def test_an_unknown_precision_is_bad_input() -> None:
    with pytest.raises(InputError, match="int4"):
        run_phase(C, PhaseCost(1, 1, 1), "int4", 612.0)


# --- leakage and heat


def test_leakage_is_given_at_50_degrees() -> None:
    assert LEAKAGE_REFERENCE_C == 50.0
    assert leakage_factor(C, 50.0) == 1.0
    c = replace(C, leak_per_c=0.01)
    assert [leakage_factor(c, t) for t in (20.0, 50.0, 80.0, 100.0)] == pytest.approx([0.7, 1.0, 1.3, 1.5])
    assert leakage_factor(replace(C, leak_per_c=0.0), 90.0) == 1.0
    assert leakage_factor(replace(C, leak_per_c=0.05), -100.0) == LEAKAGE_FLOOR > 0


@given(temperatures, st.floats(0.01, 10), st.floats(0, 0.1))
def test_leakage_grows_with_temperature_by_leak_per_c(temp_c: float, more_c: float, per_c: float) -> None:
    c = replace(C, leak_per_c=per_c)
    cool, warm = leakage_factor(c, temp_c), leakage_factor(c, temp_c + more_c)
    assert warm >= cool >= LEAKAGE_FLOOR
    if cool > LEAKAGE_FLOOR:
        assert warm - cool == pytest.approx(per_c * more_c, abs=1e-12)
    assert leakage_factor(c, 1000.0) == leakage_factor(c, RUNAWAY_C)


@given(boards, watts, st.floats(0, 8))
def test_the_steady_temperature_heats_itself(file: BoardFile, other_w: float, leak_50_w: float) -> None:
    c = file.constants
    temp_c = steady_temperature_c(c, other_w, leak_50_w)
    assume(temp_c <= RUNAWAY_C)
    heat_w = other_w + leak_50_w * leakage_factor(c, temp_c)
    assert temp_c == pytest.approx(c.ambient_c + c.thermal_resistance_c_per_w * heat_w, abs=1e-6)
    assert temp_c >= c.ambient_c + c.thermal_resistance_c_per_w * other_w


@given(boards, watts, st.floats(0, 8), st.floats(0.01, 5), st.floats(0.01, 2))
def test_the_steady_temperature_grows_with_power(
    file: BoardFile, other_w: float, leak_50_w: float, more_w: float, more_leak_w: float
) -> None:
    c, r = file.constants, file.constants.thermal_resistance_c_per_w
    temp_c = steady_temperature_c(c, other_w, leak_50_w)
    assume(steady_temperature_c(c, other_w + more_w, leak_50_w + more_leak_w) <= RUNAWAY_C)
    # Warmer by at least what the power alone does; leakage comes on top.
    assert steady_temperature_c(c, other_w + more_w, leak_50_w) >= temp_c + r * more_w - 1e-6
    hotter = steady_temperature_c(c, other_w, leak_50_w + more_leak_w)
    assert hotter >= temp_c + r * more_leak_w * leakage_factor(c, temp_c) - 1e-6


def test_known_steady_temperatures() -> None:
    c = replace(C, ambient_c=20.0, thermal_resistance_c_per_w=0.5, leak_per_c=0.02)
    assert steady_temperature_c(c, 40.0, 0.0) == pytest.approx(40.0)
    assert steady_temperature_c(replace(c, leak_per_c=0.0), 40.0, 10.0) == pytest.approx(45.0)
    # 10 W of leakage at 50 C and 50 W besides: 20 + 0.5 (50 + 10) is 50 C itself.
    assert steady_temperature_c(c, 50.0, 10.0) == pytest.approx(50.0)
    # T = 20 + 0.5 (68 + 10 (1 + 0.02 (T - 50))) = 54 + 0.1 T
    assert steady_temperature_c(c, 68.0, 10.0) == pytest.approx(60.0)


# --- rails


@given(boards, phase_runs, st.floats(0.3, 4))
def test_the_module_is_the_sum_of_its_parts(file: BoardFile, run: PhaseRun, leakage: float) -> None:
    c = file.constants
    powers = dict(zip((r.label for r in file.rails), rail_powers_w(c, file.rails, run, leakage), strict=True))
    module_w = sum(powers[rail.label] for rail in file.module_rails)
    assert module_w == pytest.approx(sum(rail_powers_w(c, file.module_rails, run, leakage)))
    parts_w = run.gpu_w + run.leak_w * leakage + run.cpu_w + run.dram_w
    assert module_w == pytest.approx(parts_w + base_w(file))


@given(boards, phase_runs, st.floats(0.3, 4))
def test_each_part_lands_on_the_rails_that_feed_it(file: BoardFile, run: PhaseRun, leakage: float) -> None:
    parts = {
        "gpu": run.gpu_w + run.leak_w * leakage,
        "cpu": run.cpu_w,
        "dram": run.dram_w,
        "sys": file.constants.sys_base_w,
    }
    powers = rail_powers_w(file.constants, file.rails, run, leakage)
    for rail, power_w in zip(file.rails, powers, strict=True):
        assert power_w == pytest.approx(rail.base_w + sum(parts[part] for part in rail.parts))


def test_the_rails_of_orin_carry_what_their_names_say() -> None:
    run = PhaseRun(1.0, 1.0, gpu_w=10.0, leak_w=2.0, cpu_w=3.0, dram_w=5.0)
    powers = dict(zip((r.label for r in FILE.rails), rail_powers_w(C, FILE.rails, run, 1.5), strict=True))
    idle_dram_w = next(rail.base_w for rail in FILE.rails if rail.label == "VDDQ_VDD2_1V8AO")
    assert powers == pytest.approx(
        {
            "VDD_GPU_SOC": 13.0,
            "VDD_CPU_CV": 3.0,
            "VIN_SYS_5V0": C.sys_base_w + 5.0,
            "VDDQ_VDD2_1V8AO": idle_dram_w + 5.0,
        }
    )


@given(costs, precisions, clocks, temperatures)
def test_vddq_lies_inside_vin_sys(cost: PhaseCost, precision: str, mhz: float, temp_c: float) -> None:
    inner = next(rail for rail in FILE.rails if rail.label == "VDDQ_VDD2_1V8AO")
    assert inner.inside == "VIN_SYS_5V0"
    assert inner not in FILE.module_rails
    outer = next(rail for rail in FILE.rails if rail.label == inner.inside)
    leakage = leakage_factor(C, temp_c)
    for run in (
        run_phase(C, cost, precision, mhz),
        idle_run(C, mhz, gated=False),
        idle_run(C, mhz, gated=True),
    ):
        inside_w, outside_w = rail_powers_w(C, (inner, outer), run, leakage)
        assert 0 < inside_w <= outside_w


@pytest.mark.parametrize("part", ["gpu_w", "leak_w", "cpu_w", "dram_w"])
def test_a_watt_more_of_a_part_is_a_watt_more_of_the_module(part: str) -> None:
    run = run_phase(C, PhaseCost(1e12, 1e10, 500), "fp16", 816.0)
    more = replace(run, **{part: getattr(run, part) + 1.0})
    gain = [
        b - a
        for a, b in zip(
            rail_powers_w(C, FILE.rails, run, 1.5), rail_powers_w(C, FILE.rails, more, 1.5), strict=True
        )
    ]
    expected = {
        "gpu_w": [1, 0, 0, 0],
        "leak_w": [1.5, 0, 0, 0],
        "cpu_w": [0, 1, 0, 0],
        "dram_w": [0, 0, 1, 1],
    }
    assert gain == pytest.approx(expected[part])
