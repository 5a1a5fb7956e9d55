from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.boards.virtual.board import (
    DEFAULT_CONSTANTS,
    SAMPLES_PER_S,
    VirtualBoard,
    draw_batches,
    sample,
)
from wattune.boards.virtual.constants import load_board_file
from wattune.boards.virtual.model import MODEL_VERSION, leakage_factor, voltage_v
from wattune.core.errors import InputError
from wattune.core.settings import MAXN, Setting
from wattune.core.stats import mean
from wattune.core.workload import LengthBin, PhaseCost, StepCost, Workload


def make_workload(
    flops: float, moved: float, launches: float, *, precision: str = "fp16", steps_per_epoch: int = 3000
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
    return Workload("m-t", "m", "t", "bert", 6, 128, 14.0, 50.0, 32, precision, steps_per_epoch, bins)


SATURATED = make_workload(6e12, 2e11, 4000, precision="fp32")
MIXED = make_workload(1.2e12, 1.2e10, 1500)
STARVED = make_workload(1e10, 5e8, 800)


@pytest.fixture(scope="module")
def board() -> VirtualBoard:
    return VirtualBoard()


def changed(tmp_path: Path, **values: float) -> Path:
    """A board's file with other constants."""
    document = copy.deepcopy(json.loads(DEFAULT_CONSTANTS.read_text()))
    for name, value in values.items():
        document["constants"][name]["value"] = value
    path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
    path.write_text(json.dumps(document))
    return path


def quiet(tmp_path: Path, **values: float) -> VirtualBoard:
    """The board without run-to-run noise."""
    return VirtualBoard(changed(tmp_path, power_noise_rel=0, time_noise_rel=0, **values))


def rail_set(board: VirtualBoard, name: str) -> list[str]:
    """Labels of a rail set."""
    return [rail.label for rail in board.file.module_rails if rail.gpu_cpu or name == "module"]


@pytest.mark.parametrize("setting", [306.0, 612.0, 1300.5, MAXN])
@pytest.mark.parametrize("workload", [SATURATED, MIXED, STARVED], ids=["saturated", "mixed", "starved"])
def test_the_epochs_energy_is_the_traces_trapezoid_scaled(
    board: VirtualBoard, workload: Workload, setting: Setting
) -> None:
    measured = board.measure(workload, setting, repeat=1, steps=60, seed=7)
    trace = board.record(workload, setting, repeat=1, steps=60, seed=7).trace
    assert measured.window_s is not None
    scale = workload.steps_per_epoch / 60 * measured.window_s / (trace.t_s[-1] - trace.t_s[0])
    for rails, value in (("gpu_cpu", measured.energy_j), ("module", measured.energy_module_j)):
        total = 0.0
        for i in range(len(trace.t_s) - 1):
            at = [sum(trace.power_w[rail][j] for rail in rail_set(board, rails)) for j in (i, i + 1)]
            total += (at[0] + at[1]) / 2 * (trace.t_s[i + 1] - trace.t_s[i])
        assert value == pytest.approx(total * scale)
    assert measured.time_s == pytest.approx(measured.window_s * workload.steps_per_epoch / 60)


def test_a_recording_is_sampled_at_5_hz_and_never_with_less_than_two_samples(board: VirtualBoard) -> None:
    long = board.record(SATURATED, 612.0, repeat=0, steps=50, seed=1)
    assert len(long.trace.t_s) / long.window_s == pytest.approx(SAMPLES_PER_S, rel=0.01)
    short = board.record(STARVED, 612.0, repeat=0, steps=1, seed=1)
    assert short.window_s < 0.2
    assert len(short.trace.t_s) == 2


def test_a_trace_has_the_rails_that_make_up_the_module(board: VirtualBoard) -> None:
    assert rail_set(board, "gpu_cpu") == ["VDD_GPU_SOC", "VDD_CPU_CV"]
    recording = board.record(MIXED, 612.0, repeat=0, steps=40, seed=1)
    assert list(recording.trace.power_w) == rail_set(board, "module") != rail_set(board, "gpu_cpu")
    for power_w in recording.trace.power_w.values():
        assert len(power_w) == len(recording.trace.t_s)
        assert min(power_w) > 0


@given(
    st.lists(
        st.tuples(st.floats(1e-4, 5.0), st.floats(0.1, 60.0), st.floats(0.1, 60.0)), min_size=1, max_size=40
    ),
    st.floats(0.9, 1.1),
    st.floats(0.9, 1.1),
)
def test_sampling_keeps_the_energy_of_each_rail(
    parts: list[tuple[float, float, float]], power: float, stretch: float
) -> None:
    trace = sample([(t, (a, b)) for t, a, b in parts], ("A", "B"), power_factor=power, time_factor=stretch)
    window_s = sum(t for t, _, _ in parts) * stretch
    n = len(trace.t_s)
    assert list(trace.power_w) == ["A", "B"]
    for index, label in enumerate(trace.power_w, 1):
        values = trace.power_w[label]
        assert n == len(values) == max(2, round(window_s * SAMPLES_PER_S))
        joules = sum(part[0] * part[index] for part in parts)
        assert mean(values) * window_s == pytest.approx(joules * power * stretch, rel=1e-9)
        watts = [part[index] for part in parts]
        assert (
            min(watts) * power * (1 - 1e-6) <= min(values) <= max(values) <= max(watts) * power * (1 + 1e-6)
        )
    assert trace.t_s[0] == pytest.approx(window_s / n / 2)
    assert trace.t_s[-1] == pytest.approx(window_s * (1 - 0.5 / n))
    gaps = [b - a for a, b in itertools.pairwise(trace.t_s)]
    assert gaps == pytest.approx([window_s / n] * (n - 1))


def test_known_samples() -> None:
    # 0.3 s at 10 W and 0.3 s at 20 W are three samples of 0.2 s; the middle one holds half of each.
    trace = sample([(0.3, (10.0, 1.0)), (0.3, (20.0, 1.0))], ("A", "B"))
    assert trace.t_s == pytest.approx([0.1, 0.3, 0.5])
    assert trace.power_w["A"] == pytest.approx([10.0, 15.0, 20.0])
    assert trace.power_w["B"] == pytest.approx([1.0, 1.0, 1.0])


def test_the_same_seed_gives_the_same_measurement_and_others_do_not(board: VirtualBoard) -> None:
    for setting in (612.0, MAXN):
        first = board.measure(MIXED, setting, repeat=0, steps=50, seed=42)
        assert VirtualBoard().measure(MIXED, setting, repeat=0, steps=50, seed=42) == first
        others = [
            board.measure(MIXED, setting, repeat=1, steps=50, seed=42),
            board.measure(MIXED, setting, repeat=0, steps=50, seed=43),
            board.measure(replace(MIXED, id="other"), setting, repeat=0, steps=50, seed=42),
        ]
        assert len({first.energy_j, *(m.energy_j for m in others)}) == 4


def test_every_setting_of_a_repeat_sees_the_same_batches_in_the_same_order(tmp_path: Path) -> None:
    board = quiet(tmp_path)
    # At a clock at which launches decide nothing, the time of a window is the sum of its batches' times.
    by_setting = [board.record(SATURATED, mhz, repeat=2, steps=31, seed=5) for mhz in (612.0, 1224.0)]
    again = draw_batches(SATURATED, 31, "5|m-t|2")
    for mhz, recording in zip((612.0, 1224.0), by_setting, strict=True):
        single = [
            board.record(
                replace(SATURATED, bins=(replace(b, share=1.0),)), mhz, repeat=0, steps=1, seed=0
            ).window_s
            for b in SATURATED.bins
        ]
        assert recording.window_s == pytest.approx(sum(single[b] for b in again))
    assert again != draw_batches(SATURATED, 31, "5|m-t|3")


@given(st.integers(1, 400), st.integers(0, 10**6))
def test_a_draw_holds_every_bin_by_its_share(steps: int, seed: int) -> None:
    counts = Counter(draw_batches(MIXED, steps, str(seed)))
    assert sum(counts.values()) == steps
    for index, length_bin in enumerate(MIXED.bins):
        assert abs(counts[index] - length_bin.share * steps) < 1 + 1e-9


def test_batches_are_drawn_in_no_order() -> None:
    batches = draw_batches(MIXED, 200, "x")
    assert batches != sorted(batches)
    assert sum(a != b for a, b in itertools.pairwise(batches)) > 60


@pytest.mark.parametrize("setting", [306.0, 816.0, MAXN])
@pytest.mark.parametrize("workload", [SATURATED, MIXED, STARVED], ids=["saturated", "mixed", "starved"])
def test_measurements_converge_to_the_noise_free_value(
    board: VirtualBoard, workload: Workload, setting: Setting
) -> None:
    truth = board.noise_free(workload, setting)
    runs = [board.measure(workload, setting, repeat=r, steps=100, seed=42) for r in range(150)]
    for pick in ("energy_j", "time_s", "energy_module_j"):
        values = [getattr(m, pick) for m in runs]
        expected = getattr(truth, pick)
        spread = math.sqrt(sum((v - mean(values)) ** 2 for v in values) / (len(values) - 1))
        assert abs(mean(values) - expected) < 3 * spread / math.sqrt(len(values))
        assert 0.004 < spread / expected < 0.04
    assert mean([m.gpu_util_pct or 0 for m in runs]) == pytest.approx(truth.gpu_util_pct, abs=0.5)
    assert mean([m.gpu_mhz_mean or 0 for m in runs]) == pytest.approx(truth.gpu_mhz_mean, rel=0.01)


def test_the_noise_has_the_spread_of_its_constants(board: VirtualBoard, tmp_path: Path) -> None:
    noisy = [board.measure(SATURATED, 612.0, repeat=r, steps=50, seed=3) for r in range(300)]
    calm_board = quiet(tmp_path)
    calm = [calm_board.measure(SATURATED, 612.0, repeat=r, steps=50, seed=3) for r in range(300)]
    time_log = [math.log((a.time_s or 0) / (b.time_s or 1)) for a, b in zip(noisy, calm, strict=True)]
    power_log = [math.log(a.energy_j / b.energy_j) - t for a, b, t in zip(noisy, calm, time_log, strict=True)]
    for logs, sigma in (
        (time_log, board.constants.time_noise_rel),
        (power_log, board.constants.power_noise_rel),
    ):
        spread = math.sqrt(sum((v - mean(logs)) ** 2 for v in logs) / (len(logs) - 1))
        assert spread == pytest.approx(sigma, rel=0.15)


def test_maxn_holds_a_saturated_gpu_at_the_top_clock(board: VirtualBoard) -> None:
    maxn, top = board.noise_free(SATURATED, MAXN), board.noise_free(SATURATED, 1300.5)
    assert maxn.gpu_mhz_mean == pytest.approx(1300.5, rel=0.005)
    assert maxn.energy_j == pytest.approx(top.energy_j, rel=0.01)
    assert (maxn.gpu_util_pct or 0) > 95


def test_maxn_lets_a_starved_gpu_drift_down(board: VirtualBoard) -> None:
    maxn, top = board.noise_free(STARVED, MAXN), board.noise_free(STARVED, 1300.5)
    assert (maxn.gpu_mhz_mean or math.inf) < 700
    assert maxn.energy_j < 0.9 * top.energy_j
    assert (top.gpu_util_pct or 100) < 40


def test_the_clocks_are_matched_and_others_refused(board: VirtualBoard) -> None:
    assert board.noise_free(MIXED, 1300.0).setting == 1300.5
    assert board.measure(MIXED, 1301.0, repeat=0, steps=5, seed=0).setting == 1300.5
    for ask in (
        lambda: board.measure(MIXED, 660.0, repeat=0, steps=5, seed=0),
        lambda: board.noise_free(MIXED, 660.0),
    ):
        with pytest.raises(InputError, match=r"660 MHz is not a clock .* 612 and 714 MHz"):
            ask()


def test_bad_workloads_are_bad_input(board: VirtualBoard) -> None:
    with pytest.raises(InputError, match="int4"):
        board.noise_free(replace(MIXED, precision="int4"), 612.0)
    with pytest.raises(InputError, match="no operation cost"):
        board.noise_free(replace(MIXED, bins=()), 612.0)
    with pytest.raises(InputError, match="0 steps"):
        board.measure(MIXED, 612.0, repeat=0, steps=0, seed=0)


@pytest.mark.parametrize("setting", [306.0, 816.0, 1300.5, MAXN])
@pytest.mark.parametrize("workload", [SATURATED, MIXED, STARVED], ids=["saturated", "mixed", "starved"])
def test_the_temperature_and_the_modules_power_agree(
    board: VirtualBoard, workload: Workload, setting: Setting
) -> None:
    c, m = board.constants, board.noise_free(workload, setting)
    assert m.energy_module_j is not None
    assert m.time_s is not None
    assert m.temp_c_max is not None
    watts = m.energy_module_j / m.time_s  # with the leakage of that very temperature
    assert m.temp_c_max == pytest.approx(c.ambient_c + c.thermal_resistance_c_per_w * watts, rel=1e-9)
    assert c.ambient_c < m.temp_c_max < c.throttle_c


def test_a_higher_clock_is_hotter(board: VirtualBoard) -> None:
    temps = [board.noise_free(SATURATED, mhz).temp_c_max or 0 for mhz in board.info.table]
    assert temps == sorted(set(temps))


def test_a_hotter_room_costs_leakage_and_nothing_else(tmp_path: Path) -> None:
    cool, warm = quiet(tmp_path, ambient_c=15.0), quiet(tmp_path, ambient_c=35.0)
    for setting in (306.0, 1020.0):
        a, b = cool.noise_free(MIXED, setting), warm.noise_free(MIXED, setting)
        assert (a.time_s, a.gpu_util_pct, a.gpu_mhz_mean) == (b.time_s, b.gpu_util_pct, b.gpu_mhz_mean)
        assert (b.temp_c_max or 0) > (a.temp_c_max or 0) + 20  # heat leaks and leakage heats
        c = cool.constants
        leak_w = c.static_w * voltage_v(c, setting) / c.voltage_floor_v
        growth = leakage_factor(c, b.temp_c_max or 0) - leakage_factor(c, a.temp_c_max or 0)
        assert b.energy_j - a.energy_j == pytest.approx(leak_w * growth * (a.time_s or 0))


# --- throttling in virtual time


HOT = ["hot room", "poor heat sink", "low trip"]


def hot(tmp_path: Path, why: str) -> tuple[VirtualBoard, VirtualBoard]:
    """A board that gets 10 C too hot at its top clock, and the same one with nothing that stops it."""
    usual = quiet(tmp_path)
    c, top_c = usual.constants, usual.noise_free(SATURATED, 1300.5).temp_c_max or 0
    too_much = c.throttle_c + 10.0
    values = {
        "hot room": {"ambient_c": c.ambient_c + too_much - top_c},
        "poor heat sink": {
            "thermal_resistance_c_per_w": c.thermal_resistance_c_per_w
            * (too_much - c.ambient_c)
            / (top_c - c.ambient_c)
        },
        "low trip": {"throttle_c": top_c - 10.0},
    }[why]
    return quiet(tmp_path, **values), quiet(tmp_path, **{**values, "throttle_c": 1000.0})


@pytest.mark.parametrize("why", HOT)
def test_a_pinned_clock_that_is_too_hot_runs_at_the_highest_that_is_not(tmp_path: Path, why: str) -> None:
    board, reckless = hot(tmp_path, why)
    trip = board.constants.throttle_c
    table = list(board.info.table)
    too_hot = [mhz for mhz in table if (reckless.noise_free(SATURATED, mhz).temp_c_max or 0) > trip]
    assert 0 < len(too_hot) < len(table)
    assert too_hot == table[-len(too_hot) :]
    highest = table[-len(too_hot) - 1]
    for mhz in table:
        m, free = board.noise_free(SATURATED, mhz), reckless.noise_free(SATURATED, min(mhz, highest))
        assert m.setting == mhz  # what was asked for
        assert m.gpu_mhz_mean == pytest.approx(min(mhz, highest))  # what it ran at
        assert m.temp_c_max is not None
        assert m.temp_c_max <= trip
        assert (m.energy_j, m.time_s, m.temp_c_max) == (free.energy_j, free.time_s, free.temp_c_max)
        measured = board.measure(SATURATED, mhz, repeat=0, steps=100, seed=1)
        assert measured.gpu_mhz_mean == pytest.approx(min(mhz, highest))
        assert measured.temp_c_max is not None
        assert measured.temp_c_max <= trip + 0.5  # the window's batches are not quite the mean


@pytest.mark.parametrize("why", HOT)
def test_maxn_throttles_likewise(tmp_path: Path, why: str) -> None:
    board, _ = hot(tmp_path, why)
    top = board.noise_free(SATURATED, 1300.5)
    maxn = board.noise_free(SATURATED, MAXN)
    assert (top.gpu_mhz_mean or 0) < 1300
    assert maxn.gpu_mhz_mean == pytest.approx(top.gpu_mhz_mean, rel=0.005)
    assert (maxn.temp_c_max or math.inf) <= board.constants.throttle_c
    assert maxn.energy_j == pytest.approx(top.energy_j, rel=0.01)
    assert (maxn.time_s or 0) > 1.02 * (VirtualBoard().noise_free(SATURATED, MAXN).time_s or 0)
    measured = board.measure(SATURATED, MAXN, repeat=0, steps=100, seed=1)
    assert (measured.gpu_mhz_mean or math.inf) <= (top.gpu_mhz_mean or 0) + 1e-6
    assert (measured.temp_c_max or math.inf) <= board.constants.throttle_c + 0.5


def test_the_trip_changes_nothing_where_it_is_cool(tmp_path: Path) -> None:
    board, reckless = quiet(tmp_path), quiet(tmp_path, throttle_c=1000.0)
    warm, warm_reckless = hot(tmp_path, "hot room")
    assert (warm.noise_free(SATURATED, 1300.5).gpu_mhz_mean or 0) < 1300
    for setting in (306.0, 1300.5, MAXN):
        for workload in (SATURATED, MIXED, STARVED):
            ask: dict[str, Any] = {"repeat": 1, "steps": 30, "seed": 4}
            assert board.measure(workload, setting, **ask) == reckless.measure(workload, setting, **ask)
            assert board.noise_free(workload, setting) == reckless.noise_free(workload, setting)
        # The same room throttles one workload and not another, on one board object.
        assert warm.noise_free(STARVED, setting) == warm_reckless.noise_free(STARVED, setting)
    assert (warm.noise_free(SATURATED, 1300.5).gpu_mhz_mean or 0) < 1300


def test_the_lowest_clock_runs_however_hot_it_is(tmp_path: Path) -> None:
    board = quiet(tmp_path, throttle_c=26.0)
    for setting in (306.0, 1300.5, MAXN):
        m = board.noise_free(SATURATED, setting)
        assert m.gpu_mhz_mean == pytest.approx(306.0)
        assert (m.temp_c_max or 0) > 26.0


# --- power modes and identity


def test_a_power_mode_has_its_clocks_and_another_digest(board: VirtualBoard) -> None:
    lower = VirtualBoard(power_mode="MODE_30W")
    assert list(lower.info.table) == [306, 408, 510, 612]
    assert (board.info.power_mode, lower.info.power_mode) == ("MAXN", "MODE_30W")
    digests = {VirtualBoard(power_mode=mode).info.digest for mode in ("MODE_15W", "MODE_30W", "MODE_50W")} | {
        board.info.digest
    }
    assert len(digests) == 4
    assert VirtualBoard(power_mode="mode_30w").info == lower.info
    with pytest.raises(InputError, match=r"no power mode '45W'.*MODE_30W"):
        VirtualBoard(power_mode="45W")
    with pytest.raises(InputError, match=r"714 MHz is not a clock"):
        lower.noise_free(MIXED, 714.0)
    assert [row["mhz"] for row in lower.predict(MIXED)] == [306, 408, 510, 612, MAXN]


def test_half_the_tpcs_take_twice_the_time_where_compute_decides(board: VirtualBoard) -> None:
    compute = make_workload(5e13, 1e6, 10, precision="fp32")
    lower = VirtualBoard(power_mode="MODE_30W")
    a, b = board.noise_free(compute, 612.0), lower.noise_free(compute, 612.0)
    assert (b.time_s or 0) / (a.time_s or 1) == pytest.approx(2.0, rel=1e-3)
    # and where launching decides, the CPU's clock does
    launching = make_workload(1e8, 1e6, 5000)
    a, b = board.noise_free(launching, 612.0), lower.noise_free(launching, 612.0)
    assert (b.time_s or 0) / (a.time_s or 1) == pytest.approx(2201.6 / 1728.0, rel=1e-2)
    assert lower.noise_free(SATURATED, MAXN).gpu_mhz_mean == pytest.approx(612.0, rel=0.005)


def test_a_board_says_whether_it_is_calibrated(board: VirtualBoard, tmp_path: Path) -> None:
    assert board.info.calibrated
    document = copy.deepcopy(json.loads(DEFAULT_CONSTANTS.read_text()))
    document["calibration"] = {"status": "uncalibrated", "against": []}
    path = tmp_path / "uncalibrated.json"
    path.write_text(json.dumps(document))
    assert not VirtualBoard(path).info.calibrated
    assert board.info.provenance == "simulated"


def test_a_board_already_read_is_the_same_board(board: VirtualBoard) -> None:
    again = VirtualBoard(file=load_board_file(DEFAULT_CONSTANTS))
    assert again.info == board.info
    assert again.noise_free(MIXED, 612.0) == board.noise_free(MIXED, 612.0)


@pytest.mark.parametrize("how", ["mode", "constants"])
def test_a_file_changed_in_memory_has_another_digest(board: VirtualBoard, how: str) -> None:
    file = board.file
    other = (
        file.in_mode("MODE_30W")
        if how == "mode"
        else replace(file, constants=replace(file.constants, static_w=9.0))
    )
    answers = VirtualBoard(file=other)
    assert answers.noise_free(MIXED, 612.0).energy_j != board.noise_free(MIXED, 612.0).energy_j
    assert answers.info.digest != board.info.digest


def test_naming_the_default_mode_is_no_other_board(board: VirtualBoard) -> None:
    named = VirtualBoard(power_mode="MAXN")
    assert named.noise_free(MIXED, MAXN) == board.noise_free(MIXED, MAXN)
    assert named.info.digest == board.info.digest


def test_prediction_is_per_step_for_every_clock_and_maxn(board: VirtualBoard) -> None:
    rows = board.predict(MIXED)
    assert [row["mhz"] for row in rows] == [*board.info.table, MAXN]
    for row in rows:
        epoch = board.noise_free(MIXED, row["mhz"])
        assert row["energy_j"] * MIXED.steps_per_epoch == pytest.approx(epoch.energy_j)
        assert row["time_s"] * MIXED.steps_per_epoch == pytest.approx(epoch.time_s)


@settings(max_examples=25, deadline=None)
@given(
    st.floats(1e9, 1e13),
    st.floats(1e8, 2e11),
    st.floats(50, 5000),
    st.sampled_from(["fp32", "fp16"]),
    st.integers(1, 20),
)
def test_whole_measurements_keep_the_invariants(
    flops: float, moved: float, launches: float, precision: str, steps: int
) -> None:
    board = VirtualBoard()
    workload = make_workload(flops, moved, launches, precision=precision)
    times = [board.noise_free(workload, mhz).time_s or 0 for mhz in board.info.table]
    assert times == sorted(times, reverse=True)
    for setting in (306.0, 1300.5, MAXN):
        m = board.measure(workload, setting, repeat=0, steps=steps, seed=1)
        assert m.energy_module_j is not None
        assert m.energy_module_j > m.energy_j > 0
        assert 0 <= (m.gpu_util_pct or 0) <= 100.0001
        assert 305.999 <= (m.gpu_mhz_mean or 0) <= 1300.501
    maxn = board.noise_free(workload, MAXN)
    # The governor's long run draws 600 of the batches: its time may lie off the exact bounds by what a draw misses.
    assert times[-1] * 0.99 <= (maxn.time_s or 0) <= times[0] * 1.01


@pytest.mark.parametrize("workload", [SATURATED, MIXED, STARVED], ids=["saturated", "mixed", "starved"])
def test_a_whole_sweep_is_fast(workload: Workload) -> None:
    started = time.process_time()
    board = VirtualBoard()
    for setting in (*board.info.table, MAXN):
        board.noise_free(workload, setting)
        for repeat in range(3):
            board.measure(workload, setting, repeat=repeat, steps=200, seed=42)
    assert time.process_time() - started < 1.0  # about a tenth of it on a present-day core


CHANGED = (
    "The virtual board answers differently than before. If that is meant: raise MODEL_VERSION in "
    "wattune/boards/virtual/model.py (unless only the constants file changed, which has its own digest) and put the new "
    "values here."
)

GOLDEN: dict[tuple[str, Setting], tuple[float, float]] = {
    ("saturated", 612.0): (211191.17058606443, 14138.832394254323),
    ("saturated", "maxn"): (293717.1314408678, 7251.592359541042),
    ("mixed", 612.0): (10474.762767260296, 859.9109235676058),
    ("mixed", "maxn"): (13727.126208295755, 512.4205802596936),
    ("starved", 612.0): (1708.8154609265666, 220.17713650178194),
    ("starved", "maxn"): (1627.3630798229026, 220.15446463992004),
}


@pytest.mark.parametrize("key", list(GOLDEN), ids=str)
def test_the_answers_of_this_model_version(board: VirtualBoard, key: tuple[str, Setting]) -> None:
    workload = {"saturated": SATURATED, "mixed": MIXED, "starved": STARVED}[key[0]]
    m = board.measure(workload, key[1], repeat=0, steps=20, seed=42)
    assert MODEL_VERSION == 2, CHANGED
    assert (m.energy_j, m.time_s) == pytest.approx(GOLDEN[key], rel=1e-9), CHANGED


def test_a_recording_knows_when_each_step_ended_and_takes_the_batches_it_is_given(
    board: VirtualBoard,
) -> None:
    workload = make_workload(1.2e12, 1.2e10, 1500)
    batches = [0, 2, 1, 1, 0, 2, 2]
    _, slower = board.run_noise(workload, 612.0, repeat=0, seed=3)
    times = [
        sum(by_clock[list(board.info.table).index(612.0)].time_s for by_clock in board._runs(workload)[b])
        for b in batches
    ]
    pinned = board.record(workload, 612.0, repeat=0, steps=7, seed=3, batches=batches)
    assert pinned.step_ends_s == pytest.approx([t * slower for t in itertools.accumulate(times)])
    assert pinned.step_ends_s[-1] == pytest.approx(pinned.window_s)
    free = board.record(workload, MAXN, repeat=0, steps=7, seed=3, batches=batches)
    assert len(free.step_ends_s) == 7
    assert free.step_ends_s[-1] == pytest.approx(free.window_s)
    assert all(b > a for a, b in itertools.pairwise((0.0, *free.step_ends_s)))
