"""The meter: readings to energy, gaps, filter and codes, its own accounting; certificates and the judgement of baselines."""

from __future__ import annotations

import dataclasses
import errno
import itertools
import json
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.benches.meter import VirtualTime
from wattune.boards.jetson.findings import Filter, Findings, GpuNode, PowerMode, RailChannel
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import InputError
from wattune.profiling.certificate import certify, judge_baseline, spread
from wattune.profiling.meter import Meter
from wattune.profiling.windows import Failures, Point, RailEnergy, Rules, rail_energy, rail_power, set_energy

TAU_S = 0.43
ORIN = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
NODE = "sys/devices/gpu/devfreq/gpu"
TABLE = (306_000_000, 612_000_000, 816_000_000, 1_300_500_000)
MAXN = PowerMode("MAXN", 0)


def channel(label: str, code_ma: float | None = 20.0) -> RailChannel:
    return RailChannel(label, "1-0040", "ina3221", f"sys/{label}/mv", f"sys/{label}/ma", None, 1e-3, code_ma)


def node(**changes: object) -> GpuNode:
    one = GpuNode(NODE, "sys/devices/gpu", TABLE, TABLE[0], TABLE[-1], TABLE[0], "nvhost_podgov")
    return dataclasses.replace(one, **changes)  # type: ignore[arg-type]


def findings(root: Path = Path("/nowhere"), **changes: object) -> Findings:
    found = Findings(
        sysfs=Sysfs(root), board="jetson-agx-orin-64gb", kind="jetson", gpu=node(),
        rails={label: channel(label) for label in ORIN}, gpu_cpu=ORIN[:2], module=ORIN, filter=Filter(512, 430),
        zones={"gpu": "sys/zone/gpu", "cpu": "sys/zone/cpu"}, cooling={"devfreq-gpu": "sys/cooling"},
        counters={"oc1": "sys/oc1", "oc2": "sys/oc2"}, power_mode=MAXN, boot_id="a",
    )  # fmt: skip
    return dataclasses.replace(found, **changes)  # type: ignore[arg-type]


class Desk:
    """A board on the desk: files whose content a test sets, a clock that only sleeping moves."""

    def __init__(self) -> None:
        self.time = VirtualTime(100.0)
        self.files: dict[str, int | str] = {
            f"{NODE}/cur_freq": TABLE[-1], f"{NODE}/min_freq": TABLE[0], f"{NODE}/max_freq": TABLE[-1],
            "sys/devices/gpu/load": 990, "sys/zone/gpu": 45000, "sys/zone/cpu": 44000, "sys/cooling": 0,
            "sys/oc1": 10, "sys/oc2": 20, "proc/sys/kernel/random/boot_id": "a",
        }  # fmt: skip
        for label in ORIN:
            self.files |= {f"sys/{label}/mv": 20000, f"sys/{label}/ma": 1000}
        self.reads: dict[str, int] = {}

    def read(self, path: str) -> str:
        self.reads[path] = self.reads.get(path, 0) + 1
        value = self.files[path]
        if isinstance(value, str) and value.startswith("E"):
            raise OSError(getattr(errno, value), os.strerror(getattr(errno, value)))
        return f"{value}\n"

    def set(self, t_s: float, path: str, value: int | str) -> None:
        self.time.at(100.0 + t_s, lambda: self.files.__setitem__(path, value))

    def meter(self, found: Findings | None = None, **options: object) -> Meter:
        found = found or findings()
        return Meter(found, clock=self.time, sleep=self.time.sleep, reader=self.read, **options)  # type: ignore[arg-type]

    def measured(self, seconds: float, found: Findings | None = None, **options: object) -> Meter:
        meter = self.meter(found, **options)
        meter.start()
        meter.run(seconds)
        meter.stop(tail=False)
        return meter


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(t, p, 0.1) for t, p in pairs]


def energy(
    series: list[Point], t0: float, t1: float, *, hz: float = 5.0, tau_s: float | None = 0.0, label: str = "A"
) -> RailEnergy:
    return rail_energy(label, series, Failures(), t0, t1, Rules(1 / hz, max(1.0, 5 / hz), tau_s))


# --- one reading ------------------------------------------------------------------------------------------------------


def test_a_reading_gets_half_a_code_and_a_bound_of_half_a_code() -> None:
    power = rail_power(channel("VDD_GPU_SOC"), [19864, 260])
    assert isinstance(power, tuple)
    assert power[0] == pytest.approx(5.16464 + 0.19864)
    assert power[1] == pytest.approx(0.19864 + 0.00208)


@pytest.mark.parametrize("ma", [0, -20])
def test_nothing_is_added_to_a_code_of_zero_or_less_and_the_sign_stays(ma: int) -> None:
    power = rail_power(channel("VDD_GPU"), [19864, ma])
    assert isinstance(power, tuple)
    assert power[0] == pytest.approx(19864 * ma * 1e-6)
    assert power[1] == pytest.approx(0.39728, abs=1e-3)


def test_b27_the_unit_of_a_power_file_is_the_rails_own() -> None:
    vin = RailChannel("VIN", "1-0044", "ina238", None, None, "p", 1e-6, None)
    assert rail_power(vin, [19780000]) == (pytest.approx(19.78), None)


@pytest.mark.parametrize("values", [["EIO", 260], [19864, "ENODATA"], [19864, "empty"], []])
def test_a_reading_that_failed_is_no_number(values: list[int | str]) -> None:
    assert isinstance(rail_power(channel("A"), values), str)


# --- energy of a window -----------------------------------------------------------------------------------------------


def test_a_trapezoid_over_real_stamps() -> None:
    one = energy(points((0, 10), (0.2, 10), (0.35, 20), (0.6, 20)), 0.1, 0.5)
    assert one.energy_j == pytest.approx(0.1 * 10 + 0.15 * 15 + 0.15 * 20)
    assert one.gaps == ()
    assert one.bound_j == pytest.approx(0.1 * 0.4)


def test_b33_a_hole_is_bridged_by_the_real_stamps_and_flagged() -> None:
    series = points(*((float(t), 10.0 + t) for t in (0, 1, 2, 3, 4, 7, 8, 9)))
    one = energy(series, 0.0, 9.0, hz=1.0)
    assert one.energy_j == pytest.approx(9 * 14.5)
    assert [(g.start_s, g.length_s, g.bridged) for g in one.gaps] == [(4.0, 3.0, True)]
    assert one.coverage_pct == pytest.approx(100 * 6 / 9)


def test_a_gap_past_the_limit_leaves_no_energy() -> None:
    one = energy(points((0, 10), (0.2, 10), (1.3, 10), (1.5, 10)), 0.0, 1.5)
    assert one.energy_j is None
    assert "gap of 1.10 s" in one.reason
    assert [g.bridged for g in one.gaps] == [False]


@pytest.mark.parametrize(("t0", "t1"), [(-1.0, 1.0), (0.0, 2.5), (-3.0, -2.0), (3.0, 4.0)])
def test_a_window_outside_the_readings_has_no_energy(t0: float, t1: float) -> None:
    one = energy(points(*((0.2 * n, 10.0) for n in range(6))), t0, t1)
    assert one.energy_j is None
    assert one.gaps
    assert one.reason


def test_no_reading_at_all_says_why() -> None:
    failures = Failures([0.0, 0.2, 0.4], ["EIO", "EIO", "ENODATA"])
    one = rail_energy("VDD_IN", [], failures, 0.0, 0.5, Rules(0.2, 1.0, TAU_S))
    assert one.energy_j is None
    assert one.reason == "VDD_IN gave no reading (2 x EIO, 1 x ENODATA)."
    assert one.failed == {"EIO": 2, "ENODATA": 1}
    assert one.coverage_pct == 0.0


@given(
    power=st.lists(st.floats(0, 60), min_size=8, max_size=60),
    cuts=st.tuples(st.floats(0.01, 0.99), st.floats(0.01, 0.99), st.floats(0.01, 0.99)),
)
def test_windows_add_up(power: list[float], cuts: tuple[float, float, float]) -> None:
    """Two windows side by side have the energy of the one they make, wherever the cut lies; so no energy is made or lost."""
    series = points(*((0.2 * n, p) for n, p in enumerate(power)))
    a, b, c = sorted(cut * 0.2 * (len(power) - 1) for cut in cuts)
    if min(b - a, c - b) < 1e-3:
        return
    parts = [energy(series, *ends, tau_s=TAU_S).energy_j for ends in ((a, b), (b, c), (a, c))]
    assert parts[0] + parts[1] == pytest.approx(parts[2], abs=1e-6)


@settings(max_examples=60)
@given(
    levels=st.lists(st.floats(1, 50), min_size=3, max_size=30),
    lengths=st.lists(st.floats(0.3, 4.0), min_size=30, max_size=30),
    shift=st.floats(0, 0.199),
)
def test_the_filters_lag_is_taken_out(levels: list[float], lengths: list[float], shift: float) -> None:
    """Steps behind a filter of 0.43 s, sampled at 5 Hz, windows that begin and end at a mark: the energy is right to 1 %."""
    edges = [0.0]
    for length in lengths[: len(levels)]:
        edges.append(edges[-1] + length)

    def true_j(t: float) -> float:
        return sum(p * max(0.0, min(t, b) - a) for p, a, b in zip(levels, edges, edges[1:], strict=False))

    def shown(t: float) -> float:
        f, at = levels[0], 0.0
        for p, b in zip(levels, edges[1:], strict=False):
            step = min(t, b) - at
            if step <= 0:
                break
            f, at = p + (f - p) * math.exp(-step / TAU_S), b
        return f

    t0, t1 = 0.1, edges[-1] - 0.05
    stamps = sorted({t0, t1, *(shift + 0.2 * n for n in range(int(edges[-1] / 0.2)))})
    one = energy([Point(t, shown(t), 0.0) for t in stamps], t0, t1, tau_s=TAU_S)
    assert one.energy_j is not None
    # A trapezoid cuts the corner of an exponential: at most 3 % of tau per watt of step, either way.
    jumps = sum(abs(a - b) for a, b in itertools.pairwise(levels))
    assert abs(one.energy_j - (true_j(t1) - true_j(t0))) <= 0.03 * TAU_S * jumps + 1e-6


def test_an_edge_between_two_samples_is_counted_as_uncertain() -> None:
    series = points((0, 10), (0.2, 10), (0.4, 30), (0.6, 30), (0.8, 30))
    assert energy(series, 0.2, 0.8, tau_s=TAU_S).edge_j == 0.0
    assert energy(series, 0.3, 0.8, tau_s=TAU_S).edge_j == pytest.approx(TAU_S * 20 * 0.5)
    assert energy(series, 0.2, 0.8, tau_s=None).edge_j == pytest.approx(0.43 * 20)


@pytest.mark.parametrize("lost", ORIN)
def test_b19_b26_a_sum_without_one_of_its_rails_is_unknown_and_never_smaller(lost: str) -> None:
    series = points(*((0.2 * n, 4.0) for n in range(20)))
    rails = {label: energy(series if label != lost else [], 0.0, 3.0, label=label) for label in ORIN}
    module = set_energy(ORIN, rails, "module")
    assert module.energy_j is None
    assert lost in module.reason
    assert set_energy(None, rails, "module").energy_j is None
    rails[lost] = energy(series, 0.0, 3.0)
    assert set_energy(ORIN, rails, "module").energy_j == pytest.approx(36.0)


# --- the meter --------------------------------------------------------------------------------------------------------


def test_a_steady_board_is_measured_to_the_joule() -> None:
    window = Desk().measured(20.0).window(103.0, 113.0)
    assert window.sets["module"].energy_j == pytest.approx(3 * 20.2 * 10)
    assert window.sets["gpu_cpu"].energy_j == pytest.approx(2 * 20.2 * 10)
    assert window.sets["module"].bound_j == pytest.approx(3 * 10 * (0.2 + 0.008))
    assert window.rate_hz == pytest.approx(5, abs=0.11)
    assert (window.missed, window.slow, window.duplicates, window.gaps) == (0, 0, 0, ())
    assert window.clocks_s == {"1300.5": pytest.approx(10.0)}
    assert window.bounds_hz == ((0.0, TABLE[0], TABLE[-1]),)


def test_one_bad_rail_does_not_cost_the_others_their_samples() -> None:
    desk = Desk()
    desk.set(5.0, "sys/VIN_SYS_5V0/ma", "EREMOTEIO")
    window = desk.measured(20.0).window(102.0, 112.0)
    assert window.sets["module"].energy_j is None
    assert "EREMOTEIO" in window.sets["module"].reason
    assert window.sets["gpu_cpu"].energy_j == pytest.approx(404.0)
    assert {g.rails for g in window.gaps} == {("VIN_SYS_5V0",)}


@pytest.mark.parametrize("value", ["ENODATA", "EAGAIN", "EIO", "ETIMEDOUT", "", "what"])
def test_a_rail_that_fails_for_a_moment_is_bridged_and_counted(value: str) -> None:
    desk = Desk()
    desk.set(5.05, "sys/VDD_CPU_CV/ma", value)
    desk.set(5.65, "sys/VDD_CPU_CV/ma", 1000)
    window = desk.measured(20.0).window(102.0, 112.0)
    assert window.sets["module"].energy_j == pytest.approx(606.0)
    (gap,) = window.gaps
    assert (gap.rails, gap.bridged) == (("VDD_CPU_CV",), True)
    assert gap.length_s == pytest.approx(0.8)
    assert sum(window.rails["VDD_CPU_CV"].failed.values()) == 3


def test_a_voltage_that_gives_way_under_load_is_read_anew() -> None:
    """It is read once a second only, and at once when the current moves."""
    desk = Desk()
    desk.set(4.9, "sys/VDD_GPU_SOC/ma", 2000)
    desk.set(4.9, "sys/VDD_GPU_SOC/mv", 19000)
    meter = desk.measured(20.0)
    assert meter.window(106.0, 116.0).rails["VDD_GPU_SOC"].energy_j == pytest.approx(19.0 * 2.01 * 10)
    first = next(p for p in meter.readings("VDD_GPU_SOC") if p.t_s >= 104.95)
    assert first.power_w == pytest.approx(19.0 * 2.01)
    assert desk.reads["sys/VDD_GPU_SOC/mv"] < 25 < 95 < desk.reads["sys/VDD_GPU_SOC/ma"]


def test_a_stall_is_a_gap_of_every_rail_and_the_missed_samples_are_counted() -> None:
    desk = Desk()
    desk.time.at(105.1, lambda: setattr(desk.time, "now_s", desk.time.now_s + 3.0))
    meter = desk.measured(20.0)
    window = meter.window(102.0, 112.0)
    (gap,) = window.gaps
    assert gap.rails == ORIN
    assert gap.reason == "no sample was taken"
    assert gap.length_s == pytest.approx(3.1, abs=0.11)
    assert window.sets["module"].energy_j is None
    assert window.clocks_s["unknown"] == pytest.approx(gap.length_s - 0.5)
    assert sum(window.clocks_s.values()) == pytest.approx(10.0)
    assert window.missed == 14
    assert meter.cost().samples + 14 == 100  # one at each fifth of a second of 20 s: none is lost silently
    assert certify(meter, window).document["gaps"][0]["length_s"] == pytest.approx(gap.length_s)


def test_a_clock_that_stands_still_adds_no_energy() -> None:
    desk = Desk()
    stuck: list[float] = []
    desk.time.at(105.0, lambda: stuck.append(desk.time.now_s))
    desk.time.at(105.5, stuck.clear)
    meter = Meter(
        findings(),
        clock=lambda: stuck[0] if stuck else desk.time.now_s,
        sleep=desk.time.sleep,
        reader=desk.read,
    )
    meter.start()
    meter.run(20.0)
    window = meter.window(102.0, 112.0)
    assert window.duplicates >= 1
    assert window.sets["module"].energy_j == pytest.approx(606.0)


def test_a_read_that_takes_longer_than_a_period_is_not_used() -> None:
    desk = Desk()
    plain = desk.read
    slow = [True]

    def read(path: str) -> str:
        if path == "sys/VDD_CPU_CV/ma" and desk.time.now_s > 105.0 and slow:
            slow.clear()
            desk.time.now_s += 0.5
        return plain(path)

    desk.read = read  # type: ignore[method-assign]
    window = desk.measured(20.0).window(102.0, 112.0)
    assert window.slow == 1
    assert window.gaps[0].reason == "1 x read took too long"
    assert [g.rails for g in window.gaps] == [ORIN]
    assert window.sets["module"].energy_j == pytest.approx(606.0)


def test_a_mark_takes_a_sample_at_once() -> None:
    desk = Desk()
    meter = desk.meter()
    meter.start()
    meter.run(1.07)
    at = meter.mark("start")
    assert at == pytest.approx(101.07)
    assert meter._stamps[-1] == at
    assert meter._slows[-1][0] == at
    meter.run(6.0)
    end = meter.mark("end")
    meter.stop()
    assert meter._stamps[-1] == pytest.approx(end + meter.settle_s, abs=0.21)  # 5 tau after the end
    assert meter.settle_s == pytest.approx(5 * 512 * 0.84e-3)
    window = meter.window(at, end)
    assert window.sets["module"].edge_j == 0.0
    assert window.sets["module"].energy_j == pytest.approx(60.6 * (end - at))


def test_a_window_that_begins_before_the_filter_settled_says_so() -> None:
    desk = Desk()
    meter = desk.meter()
    meter.start()
    meter.mark("pin 612")
    meter.run(8.0)
    assert any("'pin 612'" in text for text in meter.window(101.0, 107.0).warnings)
    assert not any("'pin 612'" in text for text in meter.window(102.5, 107.9).warnings)
    meter.mark("pin 816")
    before = desk.time.now_s
    meter.settle()
    assert desk.time.now_s - before == pytest.approx(meter.settle_s)


def test_an_unknown_filter_is_assumed_and_said() -> None:
    window = Desk().measured(20.0, findings(filter=Filter(None, None))).window(102.0, 112.0)
    assert any("0.43 s is assumed" in text for text in window.warnings)
    assert window.sets["module"].energy_j == pytest.approx(606.0)


def test_b28_without_rails_there_is_no_energy_and_not_none_of_it() -> None:
    window = Desk().measured(12.0, findings(rails={}, gpu_cpu=None, module=None)).window(102.0, 110.0)
    assert window.sets["gpu_cpu"].energy_j is None
    assert window.sets["module"].energy_j is None
    assert window.sets["module"].reason == "This board has no known rail set module."
    assert window.samples == 41


def test_b34_the_load_is_per_mille() -> None:
    desk = Desk()
    desk.files["sys/devices/gpu/load"] = 137
    assert desk.measured(12.0).window(102.0, 110.0).util_pct == pytest.approx(13.7)


def test_the_load_of_an_idle_gpu_is_read_once_a_second_so_that_it_may_be_powered_off() -> None:
    desk = Desk()
    desk.files["sys/devices/gpu/load"] = 0
    desk.set(10.0, "sys/devices/gpu/load", 800)
    window = desk.measured(20.0).window(102.0, 110.0)
    assert window.util_pct == 0.0
    assert 55 < desk.reads["sys/devices/gpu/load"] < 65  # ten while idle, fifty while busy


@pytest.mark.parametrize("value", ["EINVAL", "EAGAIN", "EIO"])
def test_b38_a_load_that_cannot_be_read_is_unknown(value: str) -> None:
    desk = Desk()
    desk.files["sys/devices/gpu/load"] = value
    assert desk.measured(12.0).window(102.0, 110.0).util_pct is None


def test_b42_the_power_mode_is_asked_for_at_start_and_end_only() -> None:
    asked: list[float] = []
    desk = Desk()

    def ask(found: Findings) -> PowerMode:
        asked.append(desk.time.now_s)
        return MAXN if len(asked) == 1 else PowerMode("MODE_30W", 2)

    meter = desk.measured(20.0, power_mode=ask)
    assert asked == [100.0, pytest.approx(120.0)]
    certificate = certify(meter, meter.window(102.0, 112.0))
    assert not certificate.valid
    assert "MODE_30W at the end" in certificate.document["invalid"][0]


def test_b57_a_zone_that_is_off_has_no_temperature() -> None:
    desk = Desk()
    desk.files["sys/zone/cpu"] = -256000
    desk.files["sys/zone/gpu"] = "EAGAIN"
    desk.set(5.0, "sys/zone/gpu", 61500)
    window = desk.measured(20.0).window(102.0, 112.0)
    assert window.temps_start_c == {"gpu": None, "cpu": None}
    assert window.temps_end_c == {"gpu": 61.5, "cpu": None}
    assert window.temps_max_c == {"gpu": 61.5, "cpu": None}


def test_b59_counters_are_given_as_events_of_the_window() -> None:
    desk = Desk()
    desk.set(5.0, "sys/oc2", 23)
    meter = desk.measured(20.0)
    assert meter.window(102.0, 112.0).events == {"oc1": 0, "oc2": 3}
    assert any("oc2 moved by 3" in text for text in meter.window(102.0, 112.0).warnings)
    assert meter.window(107.0, 117.0).events == {"oc1": 0, "oc2": 0}


def test_b59_a_counter_that_goes_backwards_makes_the_window_invalid() -> None:
    desk = Desk()
    desk.set(5.0, "sys/oc2", 1)
    window = desk.measured(20.0).window(102.0, 112.0)
    assert window.events == {"oc1": 0, "oc2": None}
    assert "rebooted" in window.invalid[0]


def test_b21_bounds_that_change_during_the_window_make_it_invalid() -> None:
    desk = Desk()
    desk.set(5.0, f"{NODE}/max_freq", TABLE[1])
    meter = desk.measured(20.0)
    assert "bounds" in meter.window(102.0, 112.0).invalid[0]
    assert meter.window(107.0, 117.0).invalid == ()
    assert meter.window(107.0, 117.0).bounds_hz == ((0.0, TABLE[0], TABLE[1]),)


def test_b21_another_boot_id_makes_the_window_invalid() -> None:
    desk = Desk()
    desk.set(5.0, "proc/sys/kernel/random/boot_id", "b")
    meter = desk.measured(20.0)
    assert "The board was rebooted." in certify(meter, meter.window(102.0, 112.0)).document["invalid"]


def test_a_cap_by_the_cooling_device_is_said() -> None:
    desk = Desk()
    desk.set(5.0, "sys/cooling", 2)
    desk.set(7.0, "sys/cooling", 0)
    window = desk.measured(20.0).window(102.0, 112.0)
    assert window.cooling_max == {"devfreq-gpu": 2}
    assert any("devfreq-gpu capped" in text for text in window.warnings)


@pytest.mark.parametrize("hz", [0.0, 0.9, 51.0, float("nan")])
def test_a_rate_out_of_range_is_refused(hz: float) -> None:
    with pytest.raises(InputError, match="samples per second"):
        Meter(findings(), hz=hz)


def test_a_rate_below_the_filters_is_warned_of() -> None:
    assert any("missed" in text for text in Desk().measured(30.0, hz=1.0).window(102.0, 122.0).warnings)
    assert Desk().measured(30.0, hz=5.0).window(102.0, 122.0).warnings == ()


def test_a_window_without_length_is_refused() -> None:
    with pytest.raises(InputError, match="no length"):
        Desk().measured(3.0).window(102.0, 102.0)


# --- files, threads and processes -------------------------------------------------------------------------------------


def lay_out(root: Path, **values: int) -> Findings:
    desk = Desk()
    for path, value in desk.files.items():
        where = root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        where.write_text(f"{values.get(path.rsplit('/', 1)[-1], value)}\n")
    return findings(root)


@pytest.mark.parametrize("process", [False, True])
def test_a_running_meter_reads_files_again_and_again(tmp_path: Path, process: bool) -> None:
    found = lay_out(tmp_path)
    with Meter(found, hz=50, process=process) as meter:
        time.sleep(0.3)
        begin = meter.mark("start")
        time.sleep(0.7)
        for label in ORIN:  # rewritten in place, as a driver would
            (tmp_path / f"sys/{label}/ma").write_text("3000\n")
        middle = meter.mark("more")
        time.sleep(0.5)
        end = meter.mark("end")
        found.filter = Filter(1, 1)  # steps are not filtered here
        live = meter.window(begin, end)
        meter.stop(tail=False)
    window = meter.window(begin, end)
    expected = 3 * (20.2 * (middle - begin) + 60.2 * (end - middle))
    assert window.sets["module"].energy_j == pytest.approx(expected, rel=0.05)
    assert live.sets["module"].energy_j == pytest.approx(window.sets["module"].energy_j, rel=0.01)
    assert window.rate_hz == pytest.approx(50, rel=0.25)
    assert 0 < meter.cost().cpu_s < 1.0
    assert meter.boot_ids == ("a", "a")


def test_the_other_process_ends_with_us_and_its_death_is_seen(tmp_path: Path) -> None:
    meter = Meter(lay_out(tmp_path), hz=20, process=True)
    meter.start()
    time.sleep(0.5)
    begin = meter.mark("start")
    assert meter._child is not None
    os.kill(meter._child._process.pid, signal.SIGKILL)
    time.sleep(1.5)
    end = meter.mark("end")
    meter.stop(tail=False)
    window = meter.window(begin, end)
    assert window.sets["module"].energy_j is None
    assert not window.gaps[0].bridged


def test_b17_a_read_that_never_returns_stops_neither_us_nor_the_other_rails_record(tmp_path: Path) -> None:
    found = lay_out(tmp_path)
    hang = threading.Event()

    def read(path: str) -> str:
        if path.endswith("cur_freq"):
            hang.wait(20)
        return (tmp_path / path).read_text()

    try:
        # A node that may hang (Thor): the rails go on in a thread of their own.
        thor = dataclasses.replace(found, gpu=node(read_only="writes there can hang", device=None))
        meter = Meter(thor, hz=50, reader=read)
        meter.start()
        time.sleep(1.0)
        begun = time.monotonic()
        begin, end = meter.mark("x") - 0.8, meter.mark("y")
        window = meter.window(begin, end)
        meter.stop(tail=False)
        assert time.monotonic() - begun < 6
        assert window.sets["module"].energy_j == pytest.approx(60.6 * (end - begin), rel=0.02)
        assert set(window.clocks_s) == {"unknown"}
        # Elsewhere a hang is a gap that is told, and stopping still returns.
        meter = Meter(found, hz=50, reader=read)
        meter.start()
        time.sleep(0.2)
        begun = time.monotonic()
        meter.stop(tail=False)
        assert time.monotonic() - begun < 5
        assert meter.window(begun - 0.1, begun + 1.4).sets["module"].energy_j is None
    finally:
        hang.set()


def test_a_file_that_went_away_and_came_back_is_found_again(tmp_path: Path) -> None:
    from wattune.profiling.sampler import File, number

    path = tmp_path / "curr1_input"
    path.write_text("20\n")
    file = File(str(path))
    assert number(file) == 20
    path.unlink()
    assert number(file) == 20  # still open: a driver would answer ENODEV
    file.refresh()
    assert number(file) == "ENOENT"
    path.write_text("40\n")
    assert number(file) == 40
    path.write_text("\n")
    assert number(file) == "empty"
    file.close()


# --- certificate ------------------------------------------------------------------------------------------------------


def test_a_certificate_has_gross_and_net_spread_and_own_cost() -> None:
    desk = Desk()
    desk.set(20.0, "sys/VDD_GPU_SOC/ma", 3000)
    meter = desk.measured(50.0)
    idle, busy = meter.window(102.0, 112.0), meter.window(130.0, 145.0)
    document = certify(meter, busy, idle=idle, repeats_j=(100.0, 102.0, 98.0)).as_json()
    module = document["sets"]["module"]
    assert module["gross_j"] == pytest.approx(15 * (60.2 + 40.4))
    assert module["idle_w"] == pytest.approx(60.6)
    assert module["net_j"] == pytest.approx(15 * 40.0)
    assert module["bound_w"] == pytest.approx(0.6 + 0.008 * 5, abs=1e-3)
    assert document["repeats"] == {"n": 3, "mean_j": 100.0, "sd_j": 2.0, "spread_pct": 2.0}
    assert document["own_cost"]["energy_j"] == pytest.approx(1.7 * document["own_cost"]["cpu_s"], abs=1e-3)
    assert "assumed" in document["own_cost"]["reason"]
    assert document["filter"] == {
        "samples": 512, "update_interval_ms": 430, "tau_s": 0.4301, "assumed": False, "settle_s": 2.1504,
        "lag_corrected": True,
    }  # fmt: skip
    assert document["provenance"] == "measured"
    assert document["temperatures_c"]["gpu"] == {"start": 45.0, "end": 45.0, "max": 45.0}
    assert document["rails"]["VDD_GPU_SOC"]["unchanged_pct"] == 100.0
    assert json.loads(json.dumps(document)) == document
    text = certify(meter, busy, idle=idle).text()
    assert "1509.00 J" in text
    assert "on-board sensors" in text


def test_a_certificate_of_nothing_is_written_too() -> None:
    nothing = Findings(sysfs=Sysfs(Path("/nowhere")))
    meter = Desk().measured(3.0, nothing)
    certificate = certify(meter, meter.window(100.5, 102.0))
    assert "unknown" in certificate.text()
    assert certificate.document["own_cost"]["energy_j"] is None
    assert certificate.document["sets"]["module"]["gross_j"] is None


def test_the_spread_of_one_repeat_is_unknown() -> None:
    assert spread([5.0]) == {"n": 1, "mean_j": 5.0, "sd_j": None, "spread_pct": None}
    assert spread([])["mean_j"] is None


# --- a baseline that proves itself ------------------------------------------------------------------------------------

ROAMING = {"306": 4.0, "816": 3.0, "1300.5": 13.0}
HELD = {"816": 20.0}


def test_a_baseline_in_maxn_with_a_roaming_clock_is_accepted_and_called_so() -> None:
    judgement = judge_baseline(findings(), findings(), ROAMING, util_pct=97.0)
    assert (judgement.accepted, judgement.label, judgement.reasons) == (True, "MAXN", ())


@pytest.mark.parametrize(("mode", "label"), [
    (PowerMode("MODE_30W", 2), "maxn (MODE_30W)"), (PowerMode("MAXN_SUPER", 2), "MAXN"), (None, "maxn (power mode unknown)"),
])  # fmt: skip
def test_only_that_power_mode_is_called_maxn(mode: PowerMode | None, label: str) -> None:
    found = findings(power_mode=mode)
    assert judge_baseline(found, found, ROAMING).label == label


def test_a_baseline_under_a_lower_mode_may_stand_at_that_modes_cap() -> None:
    found = findings(power_mode=PowerMode("MODE_30W", 2), gpu=node(max_hz=TABLE[1]))
    judgement = judge_baseline(found, found, {"612": 20.0}, util_pct=99.0)
    assert (judgement.accepted, judgement.label) == (True, "maxn (MODE_30W)")


LOW = node(max_hz=TABLE[1])
REFUSED = [
    pytest.param({"gpu": node(min_hz=TABLE[2], max_hz=TABLE[2])}, {}, HELD, "pinned at 816 MHz before", id="left pinned"),
    pytest.param({}, {"gpu": node(min_hz=TABLE[2], max_hz=TABLE[2])}, ROAMING, "pinned at 816 MHz after", id="pinned meanwhile"),
    pytest.param({}, {}, HELD, "something held it", id="held by other means"),
    pytest.param({}, {"gpu": node(max_hz=TABLE[1])}, ROAMING, "bounds of the clock", id="bounds changed"),
    pytest.param({"gpu": LOW}, {"gpu": LOW}, {"306": 9.0, "612": 9.0}, "capped at 612", id="maxn but capped"),
    pytest.param({"gpu": LOW}, {"gpu": LOW}, ROAMING, "above its limit", id="above the limit"),
    pytest.param({}, {"power_mode": PowerMode("MODE_30W", 2)}, ROAMING, "power mode was MAXN before", id="mode switched"),
    pytest.param({}, {"boot_id": "b"}, ROAMING, "rebooted", id="reboot"),
    pytest.param({"gpu": node(governor="userspace")}, {"gpu": node(governor="userspace")}, ROAMING, "does not follow", id="userspace"),
    pytest.param({}, {"gpu": node(governor="performance")}, ROAMING, "governor was", id="governor changed"),
    pytest.param({}, {}, {"1300.5": 5.0, "unknown": 15.0}, "25 %", id="mostly unseen"),
    pytest.param({}, {}, {}, "0 %", id="unseen"),
    pytest.param({"gpu": None}, {"gpu": None}, ROAMING, "was not found", id="no node"),
]  # fmt: skip


@pytest.mark.parametrize(("before", "after", "clocks", "why"), REFUSED)
def test_a_baseline_that_does_not_agree_is_refused(before: dict, after: dict, clocks: dict, why: str) -> None:
    judgement = judge_baseline(findings(**before), findings(**after), clocks, util_pct=97.0)
    assert not judgement.accepted
    assert judgement.label == ""
    assert any(why in reason for reason in judgement.reasons), judgement.reasons


def test_a_throttled_baseline_is_refused() -> None:
    hot = judge_baseline(findings(), findings(), ROAMING, cooling={"devfreq-gpu": 1}, events={"oc2": 2})
    assert len(hot.reasons) == 2
    meter = Desk().measured(12.0)
    certificate = certify(meter, meter.window(102.0, 110.0), baseline=hot)
    assert not certificate.valid


def test_a_light_load_that_stays_at_one_clock_is_no_pin() -> None:
    assert judge_baseline(findings(), findings(), {"306": 20.0}, util_pct=20.0).accepted
