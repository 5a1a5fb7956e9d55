"""The running board against the virtual one and against the rules of its drivers, in a time of the test's own."""

from __future__ import annotations

import errno
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from wattune.boards.virtual.board import DEFAULT_CONSTANTS, VirtualBoard
from wattune.boards.virtual.constants import BoardFile, board_files, find_board_file, load_board_file
from wattune.boards.virtual.emulator.machine import Machine
from wattune.boards.virtual.model import (
    idle_run,
    leak_w,
    leakage_factor,
    rail_powers_w,
    run_step,
    steady_temperature_c,
)
from wattune.core.errors import InputError
from wattune.core.settings import MAXN, Setting
from wattune.core.workload import LengthBin, PhaseCost, StepCost, Workload

ORIN = load_board_file(DEFAULT_CONSTANTS)
TOP_HZ = ORIN.clocks_hz[-1]
TAU_S = 0.43
"""Time constant of the power monitors: 512 samples of three channels of 2 x 140 us."""

START_S = 5000.0  # a board that has been up for a while
NOTHING = PhaseCost(0.0, 0.0, 0.0)


def make_file(base: BoardFile = ORIN, **values: float) -> BoardFile:
    """The board without run-to-run noise and with some constants replaced."""
    quiet = {"power_noise_rel": 0.0, "time_noise_rel": 0.0} | values
    return replace(base, constants=replace(base.constants, **quiet))


QUIET = make_file()


def make_workload(
    flops: float, moved: float, launches: float, *, precision: str = "fp16", name: str = "m-t"
) -> Workload:
    """A workload of three lengths; the middle one has the given operations per step."""

    def step(scale: float) -> StepCost:
        return StepCost(
            forward=PhaseCost(flops * scale / 3, moved * scale / 3, launches * 0.3),
            backward=PhaseCost(flops * scale * 2 / 3, moved * scale * 0.5, launches * 0.6),
            optimizer=PhaseCost(0.0, moved / 6, launches * 0.1),
        )

    bins = tuple(
        LengthBin(tokens, share, step(scale))
        for tokens, share, scale in ((48, 0.3, 0.6), (80, 0.5, 1.0), (128, 0.2, 1.6))
    )
    return Workload(name, "m", "t", "bert", 6, 128, 14.0, 50.0, 32, precision, 3000, bins)


SATURATED = make_workload(1.2e12, 4e10, 800, precision="fp32")
MIXED = make_workload(1.2e12, 1.2e10, 1500)
STARVED = make_workload(1e10, 5e8, 800)
WORKLOADS = {"saturated": SATURATED, "mixed": MIXED, "starved": STARVED}

ENDLESS_COST = PhaseCost(1e17, 2e15, 10)
ENDLESS = replace(
    SATURATED, id="endless", bins=(LengthBin(80, 1.0, StepCost(ENDLESS_COST, NOTHING, NOTHING)),)
)
"""One phase that outlasts every test: its power depends on clock and temperature only."""


class Time:
    """A clock that moves when told."""

    def __init__(self) -> None:
        self.now = START_S

    def __call__(self) -> float:
        return self.now


class Bench:
    """A machine and its time."""

    def __init__(
        self,
        workload: Workload | None,
        *,
        file: BoardFile = QUIET,
        pin_mhz: float | None = None,
        jetpack: str = "6",
        power_mode: str | None = None,
        seed: int = 0,
    ) -> None:
        self.time = Time()
        self.machine = Machine(
            file, jetpack=jetpack, workload=workload, clock=self.time, power_mode=power_mode, seed=seed
        )
        if pin_mhz is not None:
            self.pin(pin_mhz)

    def pin(self, mhz: float) -> None:
        hz = round(mhz * 1e6)
        self.machine.devfreq.write_max("0\n")
        self.machine.devfreq.write_min(f"{hz}\n")
        self.machine.devfreq.write_max(f"{hz}\n")

    def unpin(self) -> None:
        self.machine.devfreq.write_min("0\n")
        self.machine.devfreq.write_max("0\n")

    def go(self, seconds: float) -> Machine:
        self.time.now += seconds
        self.machine.advance()
        return self.machine

    def go_to(self, seconds: float) -> Machine:
        """On to so many seconds after the start."""
        self.time.now = START_S + seconds
        self.machine.advance()
        return self.machine

    @property
    def mhz(self) -> float:
        return self.machine.devfreq.cur_hz / 1e6

    def energy_j(self, rails: str = "module") -> float:
        return sum(self.machine.true_energy_j[label] for label in self.machine.rail_sets[rails])

    def clocks(self, n: int, every_s: float) -> list[float]:
        """The clock after each of `n` intervals."""
        seen = []
        for _ in range(n):
            self.go(every_s)
            seen.append(self.mhz)
        return seen


def powers_w(file: BoardFile, mhz: float, temp_c: float, workload: Workload | None) -> dict[str, float]:
    """What the model says each rail carries: `ENDLESS`'s phase, or idle and powered."""
    c = file.constants
    idle = idle_run(c, mhz, gated=False)
    run = run_step(c, workload.bins[0].cost, workload.precision, mhz)[0] if workload is not None else idle
    powers = rail_powers_w(c, file.rails, run, leakage_factor(c, temp_c))
    return dict(zip((rail.label for rail in file.rails), powers, strict=True))


# --- energy


pieces = st.lists(st.one_of(st.floats(1e-4, 0.4), st.floats(0.0, 0.02)), min_size=1, max_size=60)
running = st.sampled_from(["saturated", "mixed", "starved", None])
pins = st.sampled_from([306.0, 816.0, 1300.5, None])


def in_pieces(lengths: Sequence[float], what: str | None, pin: float | None, file: BoardFile) -> list[Bench]:
    """The same span in one go and in pieces."""
    workload = WORKLOADS[what] if what is not None else None
    once, often = (Bench(workload, file=file, pin_mhz=pin) for _ in range(2))
    for length in lengths:
        often.go(length)
    once.go_to(often.time.now - START_S)
    return [once, often]


@settings(max_examples=60, deadline=None)
@given(pieces, running, pins)
def test_how_often_one_looks_changes_nothing(
    lengths: list[float], what: str | None, pin: float | None
) -> None:
    once, often = in_pieces(lengths, what, pin, QUIET)
    a, b = once.machine, often.machine
    assert b.true_energy_j == pytest.approx(a.true_energy_j, rel=1e-6)
    assert b.temp_c == pytest.approx(a.temp_c, rel=1e-6)
    assert b.uptime_s == pytest.approx(a.uptime_s, abs=1e-6)
    assert abs(a.steps_done - b.steps_done) <= 1
    assert a.devfreq.cur_hz == b.devfreq.cur_hz
    assert all(a.rail(label)[0] == b.rail(label)[0] for label in a.true_energy_j)
    assert all(abs(a.rail(label)[1] - b.rail(label)[1]) <= 20 for label in a.true_energy_j)


@settings(max_examples=30, deadline=None)
@example([0.3125, 0.0078125], 0.0625, "saturated", 306.0)
@given(pieces, st.floats(0.001, 0.1), running, pins)
def test_how_often_one_looks_changes_nothing_over_a_workloads_end(
    lengths: list[float], every_s: float, what: str | None, pin: float | None
) -> None:
    benches = in_pieces(lengths, what, pin, QUIET)
    for bench in benches:
        bench.machine.set_workload(None)  # a second later the GPU is gated
    end = benches[0].time.now - START_S + 1.0
    for _ in range(math.floor(1.0 / every_s)):
        benches[1].go(every_s)
    once, often = (bench.go_to(end) for bench in benches)
    assert once.railgated
    assert often.railgated
    assert often.true_energy_j == pytest.approx(once.true_energy_j, rel=1e-6)


@pytest.mark.parametrize("what", [*WORKLOADS, None])
def test_the_energy_is_the_integral_of_the_power(what: str | None) -> None:
    bench = Bench(WORKLOADS[what] if what is not None else None)
    integral = dict.fromkeys(bench.machine.true_power_w, 0.0)
    dt = 0.0005
    for _ in range(12000):  # 6 s: the governor's climb, many phases
        machine = bench.go(dt)
        for label, power_w in machine.true_power_w.items():
            integral[label] += power_w * dt
    for label, joules in bench.machine.true_energy_j.items():
        assert integral[label] == pytest.approx(joules, rel=2e-3)
        assert joules > 0
    assert bench.machine.true_energy_j["VDDQ_VDD2_1V8AO"] < bench.machine.true_energy_j["VIN_SYS_5V0"]


def test_a_phase_draws_what_the_model_says() -> None:
    bench = Bench(ENDLESS, pin_mhz=816.0)
    bench.go(1e-3)
    temp_c = bench.machine.temp_c
    assert bench.machine.true_power_w == pytest.approx(powers_w(QUIET, 816.0, temp_c, ENDLESS), rel=1e-4)
    bench.go(300.0)
    warm_c = bench.machine.temp_c
    assert warm_c > temp_c + 10
    assert bench.machine.true_power_w == pytest.approx(powers_w(QUIET, 816.0, warm_c, ENDLESS), rel=1e-4)


def test_energy_only_grows_and_is_kept_over_a_reboot() -> None:
    bench = Bench(MIXED)
    before = 0.0
    for action in (lambda: None, bench.machine.reboot, lambda: bench.machine.set_power_mode("MODE_30W")):
        action()
        bench.go(1.0)
        assert bench.energy_j() > before + 5.0
        before = bench.energy_j()


# --- the virtual board says the same


FAST = make_file(thermal_time_constant_s=3.0)
"""Warm in half a minute; the steady state does not know how long it took."""


def settled(
    workload: Workload, pin: float | None, *, power_mode: str | None = None, file: BoardFile = FAST
) -> tuple[float, float, Bench]:
    """Mean module power and step time over a whole shuffle of 200 steps, once warm; the bench at its end."""
    bench = Bench(workload, file=file, pin_mhz=pin, power_mode=power_mode)
    machine = bench.go(60.0)
    look_s = 0.02

    def run_to(steps: int) -> tuple[float, float]:
        while machine.steps_done < steps:
            bench.go(look_s)
        return bench.time.now, bench.energy_j()

    first = -(-machine.steps_done // 200) * 200  # every shuffle holds each length by its share
    (start_s, start_j), (end_s, end_j) = run_to(first), run_to(first + 200)
    return (end_j - start_j) / (end_s - start_s), (end_s - start_s) / 200, bench


@pytest.mark.parametrize("pin", [306.0, 816.0, 1300.5])
@pytest.mark.parametrize("what", list(WORKLOADS))
def test_a_pinned_clock_agrees_with_the_virtual_board(what: str, pin: float) -> None:
    workload = WORKLOADS[what]
    watts, step_s, bench = settled(workload, pin)
    truth = VirtualBoard(file=QUIET).noise_free(workload, pin)
    assert truth.time_s is not None
    assert truth.energy_module_j is not None
    assert step_s == pytest.approx(truth.time_s / workload.steps_per_epoch, rel=0.015)
    assert watts == pytest.approx(truth.energy_module_j / truth.time_s, rel=0.015)
    gpu_cpu = bench.energy_j("gpu_cpu") / bench.energy_j()
    assert gpu_cpu == pytest.approx(truth.energy_j / truth.energy_module_j, rel=0.03)
    assert bench.machine.temp_c == pytest.approx(truth.temp_c_max, abs=2.0)
    assert bench.mhz == pin


@pytest.mark.parametrize("what", list(WORKLOADS))
def test_maxn_agrees_with_the_virtual_board(what: str) -> None:
    workload = WORKLOADS[what]
    watts, step_s, _ = settled(workload, None)
    truth = VirtualBoard(file=QUIET).noise_free(workload, MAXN)
    assert truth.time_s is not None
    assert truth.energy_module_j is not None
    assert step_s == pytest.approx(truth.time_s / workload.steps_per_epoch, rel=0.02)
    assert watts == pytest.approx(truth.energy_module_j / truth.time_s, rel=0.02)


@pytest.mark.parametrize("board", list(board_files()))
def test_every_board_that_comes_along_runs_as_its_virtual_one(board: str) -> None:
    file = make_file(find_board_file(board))
    mhz = list(file.table)[len(file.table) // 2]
    truth = VirtualBoard(file=file).noise_free(MIXED, mhz)
    assert truth.time_s is not None
    assert truth.energy_module_j is not None
    watts, step_s, bench = settled(MIXED, mhz, file=make_file(file, thermal_time_constant_s=3.0))
    assert bench.mhz == mhz
    assert step_s == pytest.approx(truth.time_s / MIXED.steps_per_epoch, rel=0.015)
    assert watts == pytest.approx(truth.energy_module_j / truth.time_s, rel=0.015)


@pytest.mark.parametrize("setting", [408.0, 612.0, MAXN])
def test_another_power_mode_agrees_with_the_virtual_board(setting: Setting) -> None:
    pin = None if isinstance(setting, str) else setting
    watts, step_s, _ = settled(SATURATED, pin, power_mode="MODE_30W")
    truth = VirtualBoard(file=QUIET, power_mode="MODE_30W").noise_free(SATURATED, setting)
    assert truth.time_s is not None
    assert truth.energy_module_j is not None
    assert step_s == pytest.approx(truth.time_s / SATURATED.steps_per_epoch, rel=0.02)
    assert watts == pytest.approx(truth.energy_module_j / truth.time_s, rel=0.02)


def test_the_step_count_is_the_time_over_the_step() -> None:
    one = replace(MIXED, bins=(replace(MIXED.bins[1], share=1.0),))
    bench = Bench(one, pin_mhz=612.0)
    step_s = sum(run.time_s for run in run_step(QUIET.constants, one.bins[0].cost, "fp16", 612.0))
    for n in (1, 7, 201, 500):  # over a shuffle's end
        bench.go_to((n - 0.01) * step_s)
        assert bench.machine.steps_done == n - 1
        bench.go_to((n + 0.01) * step_s)
        assert bench.machine.steps_done == n
    bench.machine.set_workload(None)
    bench.go(60.0)
    assert bench.machine.steps_done == 500


def test_the_noise_is_fixed_by_the_seed_and_of_its_constants_size() -> None:
    noisy = replace(ORIN, constants=replace(ORIN.constants, power_noise_rel=0.05, time_noise_rel=0.05))
    same = [Bench(MIXED, file=noisy, pin_mhz=612.0, seed=3) for _ in range(2)]
    for bench in same:
        bench.go(20.0)
    assert same[0].machine.true_energy_j == same[1].machine.true_energy_j
    quiet = Bench(ENDLESS, pin_mhz=612.0)
    quiet.go(0.1)
    logs = []
    for seed in range(60):
        bench = Bench(ENDLESS, file=noisy, pin_mhz=612.0, seed=seed)
        bench.go(0.1)
        logs.append(math.log(bench.energy_j() / quiet.energy_j()))
    assert len(set(logs)) == 60
    assert abs(sum(logs) / 60) < 3 * 0.05 / math.sqrt(60)
    assert 0.035 < math.sqrt(sum(v * v for v in logs) / 60) < 0.065


# --- the power monitors


COLD = make_file(leak_per_c=0.0)
"""Leakage that does not follow temperature: power is constant within a phase, so the filter can be computed by hand."""


def expected_ma(watts: float, bus_v: float) -> int:
    return math.floor(watts / bus_v * 1e3 / 20) * 20


@pytest.mark.parametrize("at_tau", [0.1, 1.0, 2.0, 5.0])
def test_the_step_response_of_a_workload_that_starts(at_tau: float) -> None:
    bench = Bench(None, file=COLD, pin_mhz=816.0)
    bench.go(5.0)
    idle = dict(bench.machine.true_power_w)
    bench.machine.set_workload(ENDLESS)
    machine = bench.go(at_tau * TAU_S)
    work = powers_w(COLD, 816.0, 50.0, ENDLESS)
    assert machine.true_power_w == pytest.approx(work)
    reached = 1 - math.exp(-at_tau)
    for rail in COLD.rails:
        _, ma = machine.rail(rail.label)
        step_w = work[rail.label] - idle[rail.label]
        assert step_w > 0.5
        filtered_w = idle[rail.label] + reached * step_w
        # The true time constant is 512 x 0.84 ms = 0.4301 s: 0.02 % beside the nominal one.
        slack_ma = 1e-3 * step_w / rail.bus_v * 1e3
        assert filtered_w / rail.bus_v * 1e3 - 20 - slack_ma <= ma <= filtered_w / rail.bus_v * 1e3 + slack_ma


@pytest.mark.parametrize("at_tau", [1.0, 2.0])
def test_the_step_response_of_a_pin(at_tau: float) -> None:
    bench = Bench(ENDLESS, file=COLD, pin_mhz=1300.5)
    bench.go(10.0)
    high, low = (powers_w(COLD, mhz, 50.0, ENDLESS) for mhz in (1300.5, 306.0))
    for rail in COLD.rails:
        assert bench.machine.rail(rail.label)[1] == expected_ma(high[rail.label], rail.bus_v)
    bench.pin(306.0)
    machine = bench.go(at_tau * TAU_S)
    assert machine.true_power_w == pytest.approx(low)
    for rail in COLD.rails:
        w = low[rail.label] + (high[rail.label] - low[rail.label]) * math.exp(-at_tau)
        assert machine.rail(rail.label)[1] == pytest.approx(w / rail.bus_v * 1e3 - 10, abs=10.5)
    bench.go(20 * TAU_S)
    for rail in COLD.rails:
        assert bench.machine.rail(rail.label)[1] == expected_ma(low[rail.label], rail.bus_v)


def test_fewer_samples_filter_less() -> None:
    bench = Bench(ENDLESS, file=COLD, pin_mhz=1300.5)
    bench.go(10.0)
    bench.machine.filter_samples = 64
    bench.pin(306.0)
    bench.go(TAU_S)  # eight of its time constants now
    low = powers_w(COLD, 306.0, 50.0, ENDLESS)["VDD_GPU_SOC"]
    high = powers_w(COLD, 1300.5, 50.0, ENDLESS)["VDD_GPU_SOC"]
    filtered = low + (high - low) * math.exp(-8)
    assert bench.machine.rail("VDD_GPU_SOC")[1] == pytest.approx(
        filtered / COLD.rails[0].bus_v * 1e3 - 10, abs=10.5
    )


actions = st.lists(
    st.tuples(st.floats(0.0, 2.0), st.booleans(), st.sampled_from(list(ORIN.table))), min_size=1, max_size=8
)


@settings(max_examples=60, deadline=None)
@given(actions)
def test_codes_are_the_filtered_truth_truncated(doings: list[tuple[float, bool, float]]) -> None:
    bench = Bench(None, file=COLD)
    bench.machine.railgate_enable = False
    filtered = dict(bench.machine.true_power_w)  # it starts settled
    for seconds, works, mhz in doings:
        bench.machine.set_workload(ENDLESS if works else None)
        bench.pin(mhz)
        machine = bench.go(seconds)
        power = powers_w(COLD, mhz, 50.0, ENDLESS if works else None)
        for rail in COLD.rails:
            label = rail.label
            filtered[label] = power[label] + (filtered[label] - power[label]) * math.exp(-seconds / 0.43008)
            mv, ma = machine.rail(label)
            assert (mv % 8, ma % 20) == (0, 0)
            assert isinstance(mv, int)
            assert isinstance(ma, int)
            assert rail.bus_v * 1e3 - 8 < mv <= rail.bus_v * 1e3
            true_ma = filtered[label] / rail.bus_v * 1e3
            assert -1e-3 < true_ma - ma < 20 + 1e-3


def test_a_board_that_idled_for_long_reads_its_idle_power() -> None:
    machine = Bench(None).machine
    idle = idle_run(QUIET.constants, 306.0, gated=True)
    powers = rail_powers_w(QUIET.constants, QUIET.rails, idle, 1.0)
    for rail, watts in zip(QUIET.rails, powers, strict=True):
        assert machine.rail(rail.label) == (round(rail.bus_v * 1e3) // 8 * 8, expected_ma(watts, rail.bus_v))
    # 2.34 W at 19.86 V are 117.8 mA: five codes of 20 mA.
    known = make_file(
        replace(QUIET, rails=(replace(QUIET.rails[0], bus_v=19.86), *QUIET.rails[1:])), gated_gpu_w=2.34
    )
    assert Bench(None, file=known).machine.rail("VDD_GPU_SOC") == (19856, 100)
    with pytest.raises(KeyError):
        machine.rail("VDD_IN")


# --- rail-gating


@pytest.mark.parametrize("ran_s", [3.0, 3.013, 3.0249])
@pytest.mark.parametrize("every_s", [0.001, 0.07, 0.499])
def test_an_idle_gpu_is_gated_after_its_delay(ran_s: float, every_s: float) -> None:
    bench = Bench(ENDLESS)
    bench.go(ran_s)
    bench.machine.set_workload(None)
    for _ in range(math.floor(0.4991 / every_s)):
        assert not bench.go(every_s).railgated
    assert not bench.go_to(ran_s + 0.499).railgated
    assert bench.machine.true_power_w["VDD_GPU_SOC"] > QUIET.constants.gated_gpu_w
    assert bench.go_to(ran_s + 0.501).railgated
    assert bench.machine.true_power_w["VDD_GPU_SOC"] == QUIET.constants.gated_gpu_w
    bench.machine.set_workload(MIXED)
    assert not bench.go(0.01).railgated


@pytest.mark.parametrize("how", ["power_control", "railgate_enable"])
def test_gating_can_be_forbidden_and_lifted(how: str) -> None:
    bench = Bench(None, pin_mhz=816.0)
    forbid, allow = ("on", "auto") if how == "power_control" else (False, True)
    setattr(bench.machine, how, forbid)
    machine = bench.go(5.0)
    assert not machine.railgated
    assert machine.true_power_w == pytest.approx(powers_w(QUIET, 816.0, machine.temp_c, None), rel=1e-4)
    assert machine.temperature_mc("gpu") > 25_000
    setattr(machine, how, allow)
    assert bench.go(1.0).railgated
    setattr(machine, how, forbid)
    assert not bench.go(0.05).railgated


def test_a_gated_gpu_has_no_temperature_and_no_load() -> None:
    bench = Bench(None)
    machine = bench.go(2.0)
    assert machine.railgated
    assert machine.load_permille == 0
    with pytest.raises(OSError, match="temporarily unavailable") as caught:
        machine.temperature_mc("gpu")
    assert caught.value.errno == errno.EAGAIN
    assert machine.temperature_mc("tj") == round(machine.temp_c * 1e3)
    assert machine.temperature_mc("tboard") < machine.temperature_mc("cpu") < machine.temperature_mc("tj")
    machine.set_workload(MIXED)
    bench.go(1.0)
    assert machine.temperature_mc("gpu") == round(machine.temp_c * 1e3)


# --- heat


def test_the_die_warms_as_a_first_order_lag() -> None:
    bench = Bench(ENDLESS, file=COLD, pin_mhz=816.0)
    c, start_c = COLD.constants, bench.machine.temp_c
    module_w = sum(powers_w(COLD, 816.0, 50.0, ENDLESS)[rail.label] for rail in COLD.module_rails)
    goal_c = c.ambient_c + c.thermal_resistance_c_per_w * module_w
    for n in (0.5, 1.0, 2.0, 8.0):
        machine = bench.go_to(n * c.thermal_time_constant_s)
        assert machine.temp_c == pytest.approx(goal_c + (start_c - goal_c) * math.exp(-n), abs=1e-3)


def test_leakage_and_heat_settle_at_their_fixed_point() -> None:
    bench = Bench(ENDLESS, pin_mhz=816.0)
    bench.go(1500.0)
    c = QUIET.constants
    without = powers_w(make_file(static_w=1e-9), 816.0, 50.0, ENDLESS)
    other_w = sum(without[rail.label] for rail in QUIET.module_rails)
    expected_c = steady_temperature_c(c, other_w, leak_w(c, 816.0))
    assert bench.machine.temp_c == pytest.approx(expected_c, abs=1e-3)


def test_an_overheating_board_is_capped_step_by_step_and_recovers() -> None:
    bench = Bench(ENDLESS)
    bench.go(2.0)
    assert (bench.mhz, bench.machine.cooling_state) == (1300.5, 0)
    bench.machine.extra_heat_c = 90.0
    seen: list[tuple[int, float]] = []
    for _ in range(60):
        machine = bench.go(0.1)
        seen.append((machine.cooling_state, bench.mhz))
    steps = [key for key, _ in itertools.groupby(seen)]
    if steps[0] == (0, 1300.5):
        steps = steps[1:]
    assert steps == [(1, 1122.0), (2, 816.0), (3, 510.0)]
    # One state a second.
    lengths = [len(list(group)) for _, group in itertools.groupby(seen)]
    assert all(10 <= n <= 11 for n in lengths[-3:-1])
    assert bench.go(30.0).cooling_state == 3  # there is no fourth
    bench.machine.extra_heat_c = 0.0
    seen = []
    for _ in range(60):
        machine = bench.go(0.1)
        seen.append((machine.cooling_state, bench.mhz))
    assert [key for key, _ in itertools.groupby(s for s, _ in seen)][-4:] in ([3, 2, 1, 0], [2, 1, 0])
    caps = {0: 1300.5, 1: 1122.0, 2: 816.0, 3: 510.0}
    assert all(mhz <= caps[state] for state, mhz in seen)
    assert seen[-1] == (0, 1300.5)


def test_between_the_trip_and_its_hysteresis_the_state_is_held() -> None:
    bench = Bench(None)
    machine = bench.machine
    trip = QUIET.constants.throttle_c

    def hold(temp_c: float) -> int:
        machine.extra_heat_c += temp_c - machine.temp_c
        bench.go(1.05)
        return machine.cooling_state

    assert hold(trip - 0.5) == 0  # below the trip nothing starts
    assert hold(trip + 0.5) == 1
    assert [hold(trip - 1.0) for _ in range(4)] == [1, 1, 1, 1]
    assert hold(trip - 2.5) == 0


def test_a_pinned_clock_is_throttled_as_well() -> None:
    bench = Bench(ENDLESS, pin_mhz=1224.0)
    bench.machine.extra_heat_c = 90.0
    bench.go(10.0)
    assert bench.mhz == 510.0
    assert bench.machine.devfreq.bounds_hz() == (510_000_000, 510_000_000)
    bench.machine.extra_heat_c = 0.0
    bench.go(10.0)
    assert bench.mhz == 1224.0
    assert bench.machine.cooling_state == 0


def test_heat_of_its_own_making_throttles() -> None:
    """In a hot room a saturated board swings about its trip, below its top clock and above what virtual time grants it."""
    usual = VirtualBoard(file=QUIET)
    c, top = usual.constants, usual.noise_free(SATURATED, 1300.5)
    assert top.temp_c_max is not None
    room_c = c.ambient_c + c.throttle_c + 10.0 - top.temp_c_max
    values = {"ambient_c": room_c, "thermal_time_constant_s": 30.0}
    bench = Bench(SATURATED, file=make_file(**values))
    bench.go(200.0)
    temps, clocks = [], []
    for _ in range(600):
        temps.append(bench.go(0.5).temp_c)
        clocks.append(bench.mhz)
    assert c.throttle_c - 3.0 < min(temps)
    assert c.throttle_c < max(temps) < c.throttle_c + 3.0
    assert min(clocks) < max(clocks) <= 1300.5
    bound = VirtualBoard(file=make_file(**values)).noise_free(SATURATED, MAXN)
    assert bound.gpu_mhz_mean is not None
    assert bound.gpu_mhz_mean - 1.0 <= sum(clocks) / len(clocks) < 1300.5


@pytest.mark.parametrize("pin", [None, 1300.5])
def test_a_thermal_cap_holds_the_clock_at_once(pin: float | None) -> None:
    bench = Bench(ENDLESS, pin_mhz=pin)
    bench.go(2.0)
    machine = bench.machine
    assert (bench.mhz, machine.thermal_cap_hz, machine.cooling_state) == (1300.5, None, 0)
    machine.thermal_cap_hz = 714_000_000
    assert (bench.mhz, machine.cooling_state) == (714.0, 1)
    assert set(bench.clocks(100, 0.05)) == {714.0}
    assert machine.devfreq.read_max() == "714000000\n"
    machine.extra_heat_c = 90.0  # the lower of two caps holds
    bench.go(5.0)
    assert (bench.mhz, machine.cooling_state) == (510.0, 3)
    machine.extra_heat_c = 0.0
    bench.go(10.0)
    assert (bench.mhz, machine.cooling_state) == (714.0, 1)
    machine.thermal_cap_hz = None
    bench.go(0.2)
    assert (bench.mhz, machine.cooling_state) == (1300.5, 0)


def test_the_trips_are_the_boards() -> None:
    trips = Bench(None, file=make_file(throttle_c=95.0)).machine.trips_mc
    assert trips["gpu"] == trips["tj"] == (95_000, 100_500)
    assert "tdiode" not in trips


# --- power modes, boots, events


def test_a_power_mode_caps_the_clock_and_slows() -> None:
    bench = Bench(SATURATED)
    bench.go(5.0)
    before = bench.machine.steps_done
    full = bench.go(100.0).steps_done - before
    assert (bench.mhz, bench.machine.cpus, bench.machine.power_mode) == (1300.5, 12, "MAXN")
    bench.machine.set_power_mode("mode_30w")
    assert bench.mhz == 612.0
    assert (bench.machine.cpus, bench.machine.cpu_mhz, bench.machine.power_mode) == (8, 1728.0, "MODE_30W")
    assert bench.machine.devfreq.read_max() == "612000000\n"
    before = bench.machine.steps_done
    capped = bench.go(100.0).steps_done - before
    assert set(bench.clocks(20, 0.1)) == {612.0}
    # Half the clock and half the TPCs; memory at the clock's pace too.
    assert full / capped > 2.2
    bench.machine.set_power_mode("MAXN")
    bench.go(1.0)
    assert bench.mhz == 1300.5
    before = bench.machine.steps_done
    assert bench.go(100.0).steps_done - before == pytest.approx(full, rel=0.05)


def test_a_power_mode_undoes_a_pin() -> None:
    bench = Bench(SATURATED, pin_mhz=1224.0)
    bench.go(1.0)
    bench.machine.set_power_mode("MODE_30W")
    assert bench.machine.devfreq.bounds_hz() == (306_000_000, 612_000_000)
    with pytest.raises(InputError, match="no power mode"):
        bench.machine.set_power_mode("45W")
    assert bench.machine.power_mode == "MODE_30W"


def test_memory_and_cpu_clocks_follow() -> None:
    bench = Bench(ENDLESS, pin_mhz=1300.5)
    assert (bench.go(0.1).emc_mhz, bench.machine.cpu_mhz) == (3199, 2201.6)
    bench.pin(1122.0)
    assert bench.machine.emc_mhz == 2133
    bench.machine.set_workload(None)
    assert bench.go(2.0).cpu_mhz == 729.6


def test_a_reboot_starts_anew() -> None:
    bench = Bench(MIXED, pin_mhz=1224.0)
    machine = bench.machine
    machine.power_control, machine.railgate_enable, machine.filter_samples = "on", False, 4
    machine.devfreq.write_governor("userspace\n")
    machine.overcurrent()
    bench.go(30.0)
    assert machine.uptime_s == pytest.approx(30.0)
    boot_id, joules, steps = machine.boot_id, bench.energy_j(), machine.steps_done
    machine.reboot()
    assert machine.boot_id != boot_id
    assert re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", machine.boot_id)
    assert machine.uptime_s == 0.0
    assert machine.devfreq.bounds_hz() == (306_000_000, TOP_HZ)
    assert machine.devfreq.governor == "nvhost_podgov"
    assert bench.mhz == 306.0
    assert machine.oc_counts == {"oc1": 0, "oc2": 0, "oc3": 0}
    assert (machine.power_control, machine.railgate_enable, machine.filter_samples) == ("auto", True, 512)
    assert machine.devfreq.trans_stat().endswith("Total transition : 0\n")
    assert (bench.energy_j(), machine.steps_done) == (joules, steps)
    bench.go(2.5)
    assert machine.uptime_s == pytest.approx(2.5)


def test_a_reboot_keeps_the_power_mode_and_lifts_the_throttling() -> None:
    bench = Bench(ENDLESS, power_mode="MODE_50W")
    bench.machine.extra_heat_c = 90.0
    bench.go(5.0)
    assert bench.machine.cooling_state == 3
    bench.machine.extra_heat_c = 0.0
    bench.machine.reboot()
    assert bench.machine.cooling_state == 0
    assert (bench.machine.power_mode, bench.machine.devfreq.read_max()) == ("MODE_50W", "816000000\n")
    bench.go(1.0)
    assert bench.mhz == 816.0


def test_a_reboot_polls_by_its_own_interval() -> None:
    bench = Bench(ENDLESS)
    bench.machine.devfreq.write_polling_interval("60000\n")
    bench.go(1.0)
    bench.machine.reboot()
    bench.go(1.0)
    assert bench.mhz == 1300.5


def test_an_overcurrent_moves_its_counter() -> None:
    machine = Bench(MIXED).machine
    machine.overcurrent()
    machine.overcurrent("oc3")
    machine.overcurrent("oc3")
    assert machine.oc_counts == {"oc1": 0, "oc2": 1, "oc3": 2}
    with pytest.raises(KeyError):
        machine.overcurrent("oc9")


# --- governors


def trans_stat(bench: Bench) -> tuple[list[list[int]], list[int], int]:
    """Transitions, milliseconds per clock and the total."""
    *rows, last = bench.machine.devfreq.trans_stat().splitlines()[2:]
    numbers = [[int(n) for n in row.split(":")[1].split()] for row in rows]
    return [row[:-1] for row in numbers], [row[-1] for row in numbers], int(last.split(":")[1])


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 3.0), running, st.sampled_from([None, *ORIN.table])), min_size=1, max_size=8
    )
)
def test_trans_stat_accounts_for_all_time_and_every_move(
    actions: list[tuple[float, str | None, float | None]],
) -> None:
    bench = Bench(MIXED)
    for seconds, what, pin in actions:
        bench.machine.set_workload(WORKLOADS[what] if what is not None else None)
        bench.unpin() if pin is None else bench.pin(pin)
        bench.go(seconds)
    moves, ms, total = trans_stat(bench)
    n = len(ORIN.clocks_hz)
    elapsed_ms = (bench.time.now - START_S) * 1e3
    assert elapsed_ms - n - 1e-3 <= sum(ms) <= elapsed_ms + 1e-3
    assert sum(map(sum, moves)) == total
    assert all(moves[i][i] == 0 for i in range(n))
    # What is entered is left again, but for the clock at the start and the one now.
    for i, hz in enumerate(ORIN.clocks_hz):
        entered, left = sum(row[i] for row in moves), sum(moves[i])
        assert entered - left == (hz == bench.machine.devfreq.cur_hz) - (hz == ORIN.clocks_hz[0])


def test_userspace_holds_its_clock_whatever_runs() -> None:
    bench = Bench(SATURATED)
    bench.go(2.0)
    devfreq = bench.machine.devfreq
    devfreq.write_governor("userspace\n")
    assert bench.mhz == 1300.5  # until told otherwise it stays where it is
    for asked, gets in ((700_000_000, 714.0), (1_020_000_000, 1020.0), (1, 306.0), (2_000_000_000, 1300.5)):
        devfreq.write_set_freq(f"{asked}\n")
        assert bench.mhz == gets
        for workload in (SATURATED, None, STARVED):
            bench.machine.set_workload(workload)
            assert set(bench.clocks(40, 0.05)) == {gets}
    devfreq.write_max("612000000\n")  # bounds hold for every governor
    assert set(bench.clocks(20, 0.05)) == {612.0}


def test_performance_holds_the_top_clock() -> None:
    bench = Bench(STARVED)
    bench.go(3.0)
    assert bench.mhz == 306.0
    bench.machine.devfreq.write_governor("performance\n")
    assert bench.mhz == 1300.5
    assert set(bench.clocks(60, 0.05)) == {1300.5}
    bench.machine.devfreq.write_max("816000000\n")
    assert set(bench.clocks(20, 0.05)) == {816.0}
    bench.machine.devfreq.write_governor("nvhost_podgov\n")
    bench.go(3.0)
    assert bench.mhz == 306.0


def test_simple_ondemand_follows_the_load() -> None:
    bench = Bench(ENDLESS)
    bench.machine.devfreq.write_governor("simple_ondemand\n")
    bench.go(1.0)
    assert bench.mhz == 1300.5
    bench.machine.set_workload(STARVED)
    bench.go(1.0)
    assert bench.mhz < 1300.5


@pytest.mark.parametrize("jetpack", ["5", "6", "7.2"])
def test_maxn_holds_a_saturated_gpu_at_the_top_clock(jetpack: str) -> None:
    bench = Bench(SATURATED, jetpack=jetpack)
    bench.go(0.03)  # one poll of a full load is enough
    assert bench.mhz == 1300.5
    seen = bench.clocks(600, 0.05)
    assert seen.count(1300.5) >= 594
    assert bench.machine.load_permille > 900


def test_maxn_lets_a_starved_gpu_down_one_clock_a_poll() -> None:
    bench = Bench(STARVED, pin_mhz=1300.5)
    bench.go(2.0)
    bench.unpin()
    seen = [1300.5, *bench.clocks(600, 0.001)]
    ladder = [mhz for mhz, _ in itertools.groupby(seen)]
    assert ladder == list(reversed(ORIN.table))
    stays_ms = [len(list(group)) for _, group in itertools.groupby(seen)][1:-1]
    assert all(24 <= ms <= 26 for ms in stays_ms)


@pytest.mark.parametrize("mhz", list(ORIN.table))
def test_a_pin_holds_at_once_and_for_good(mhz: float) -> None:
    bench = Bench(SATURATED)
    bench.go(1.0)
    bench.pin(mhz)
    assert bench.mhz == mhz
    for workload in (SATURATED, STARVED, None):
        bench.machine.set_workload(workload)
        assert set(bench.clocks(30, 0.05)) == {mhz}


# --- steps on demand ----------------------------------------------------------------------------------------------------


def test_steps_on_demand_are_run_at_their_length_and_nothing_in_between() -> None:
    bench = Bench(None, pin_mhz=612.0)
    machine = bench.machine
    machine.set_workload(MIXED, on_demand=True)
    bench.go(3.0)
    assert machine.steps_done == 0
    idle_j = bench.energy_j()
    bench.go(3.0)
    still_idle_j = bench.energy_j() - idle_j
    spent: dict[int, float] = {}
    for length, cost in ((50, MIXED.bins[0].cost), (200, MIXED.bins[2].cost)):
        runs = run_step(QUIET.constants, cost, "fp16", 612.0)
        took_s = sum(run.time_s for run in runs)
        machine.ask_step(length)
        before_j, before = bench.energy_j("gpu_cpu"), machine.steps_done
        bench.go(took_s * 0.99)
        assert machine.steps_done == before
        bench.go(took_s * 0.02)
        assert machine.steps_done == before + 1
        spent[length] = bench.energy_j("gpu_cpu") - before_j
        leakage = leakage_factor(QUIET.constants, machine.temp_c)
        labels = [rail.label for rail in QUIET.rails]
        expected_j = sum(
            run.time_s * rail_powers_w(QUIET.constants, QUIET.rails, run, leakage)[labels.index(label)]
            for run in runs
            for label in machine.rail_sets["gpu_cpu"]
        )
        assert spent[length] == pytest.approx(expected_j, rel=0.03)
        bench.go(2.0)
        assert machine.steps_done == before + 1
    assert spent[200] > 1.3 * spent[50]
    before_j = bench.energy_j()
    bench.go(3.0)
    assert bench.energy_j() - before_j == pytest.approx(still_idle_j, rel=0.05)


def test_steps_asked_for_together_are_run_in_their_order_without_a_gap() -> None:
    bench = Bench(None, pin_mhz=816.0)
    bench.machine.set_workload(MIXED, on_demand=True)
    bench.go(1.0)
    lengths, times = (48, 128, 80), []
    for length in lengths:
        bench.machine.ask_step(length)
        cost = next(b.cost for b in MIXED.bins if b.tokens == length)
        times.append(sum(run.time_s for run in run_step(QUIET.constants, cost, "fp16", 816.0)))
    for number, until_s in enumerate(itertools.accumulate(times), 1):
        bench.go_to(1.0 + until_s * (1 + 1e-6))
        assert bench.machine.steps_done == number
    bench.machine.set_workload(MIXED)
    with pytest.raises(InputError, match="No workload runs on demand"):
        bench.machine.ask_step(64)
