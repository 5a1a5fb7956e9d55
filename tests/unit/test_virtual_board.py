from __future__ import annotations

import copy
import itertools
import json
import math
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

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
from wattune.boards.virtual.model import MODEL_VERSION, RAIL_SETS, PhaseRun
from wattune.boards.virtual.podgov import Segment
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


def quiet(tmp_path: Path) -> VirtualBoard:
    """The board without run-to-run noise."""
    document = copy.deepcopy(json.loads(DEFAULT_CONSTANTS.read_text()))
    for name in ("power_noise_rel", "time_noise_rel"):
        document["constants"][name]["value"] = 0
    path = tmp_path / "quiet.json"
    path.write_text(json.dumps(document))
    return VirtualBoard(path)


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
            at = [sum(trace.power_w[rail][j] for rail in RAIL_SETS[rails]) for j in (i, i + 1)]
            total += (at[0] + at[1]) / 2 * (trace.t_s[i + 1] - trace.t_s[i])
        assert value == pytest.approx(total * scale)
    assert measured.time_s == pytest.approx(measured.window_s * workload.steps_per_epoch / 60)


def test_a_recording_is_sampled_at_5_hz_and_never_with_less_than_two_samples(board: VirtualBoard) -> None:
    long = board.record(SATURATED, 612.0, repeat=0, steps=50, seed=1)
    assert len(long.trace.t_s) / long.window_s == pytest.approx(SAMPLES_PER_S, rel=0.01)
    short = board.record(STARVED, 612.0, repeat=0, steps=1, seed=1)
    assert short.window_s < 0.2
    assert len(short.trace.t_s) == 2


@given(
    st.lists(st.tuples(st.floats(1e-4, 5.0), st.floats(0.1, 60.0)), min_size=1, max_size=40),
    st.floats(0.9, 1.1),
    st.floats(0.9, 1.1),
)
def test_sampling_keeps_the_energy(parts: list[tuple[float, float]], power: float, stretch: float) -> None:
    segments = [Segment(0, 0, t, PhaseRun(t, 1.0, w, 1.0, 1.0)) for t, w in parts]
    trace = sample(segments, power_factor=power, time_factor=stretch)
    window_s = sum(t for t, _ in parts) * stretch
    n = len(trace.t_s)
    assert n == len(trace.power_w["VDD_GPU_SOC"]) == max(2, round(window_s * SAMPLES_PER_S))
    kept = mean(trace.power_w["VDD_GPU_SOC"]) * window_s
    assert kept == pytest.approx(sum(t * w for t, w in parts) * power * stretch, rel=1e-9)
    assert trace.t_s[0] == pytest.approx(window_s / n / 2)
    assert trace.t_s[-1] == pytest.approx(window_s * (1 - 0.5 / n))


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


def test_the_temperature_follows_the_modules_power(board: VirtualBoard) -> None:
    cool, hot = board.noise_free(SATURATED, 306.0), board.noise_free(SATURATED, 1300.5)
    c = board.constants
    assert hot.energy_module_j is not None
    assert hot.time_s is not None
    watts = hot.energy_module_j / hot.time_s
    assert hot.temp_c_max == pytest.approx(c.ambient_c + c.thermal_resistance_c_per_w * watts)
    assert c.ambient_c < (cool.temp_c_max or 0) < (hot.temp_c_max or 0) < 95


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
    ("saturated", 612.0): (212091.13726768733, 14183.128916518923),
    ("saturated", "maxn"): (292637.6361017701, 7443.988175371102),
    ("mixed", 612.0): (10122.378526211322, 789.873726693173),
    ("mixed", "maxn"): (13500.75238103365, 496.7559406119685),
    ("starved", 612.0): (1761.79481371059, 220.40198239823667),
    ("starved", "maxn"): (1677.4383513468536, 220.1974192454507),
}


@pytest.mark.parametrize("key", list(GOLDEN), ids=str)
def test_the_answers_of_this_model_version(board: VirtualBoard, key: tuple[str, Setting]) -> None:
    workload = {"saturated": SATURATED, "mixed": MIXED, "starved": STARVED}[key[0]]
    m = board.measure(workload, key[1], repeat=0, steps=20, seed=42)
    assert MODEL_VERSION == 1, CHANGED
    assert (m.energy_j, m.time_s) == pytest.approx(GOLDEN[key], rel=1e-9), CHANGED
