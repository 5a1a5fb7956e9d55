"""Logs of tegrastats: forms of all JetPacks, cases by kind, times, gaps, and what no mixture of text may do."""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import itertools
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas import schema
from wattune.boards.jetson.tegrastats import Core, Sample, parse_line, parse_log, rail_sets
from wattune.core.errors import InputError
from wattune.profiling.importing.tegrastats import add_arguments, run, summarise, trace_text

CORES_12 = ",".join(["0%@729"] * 12)
JP5_OFF = (
    f"04-10-2025 15:18:02 RAM 4333/62801MB (lfb 1789x4MB) SWAP 19/31400MB (cached 0MB) CPU [{CORES_12}]"
    " EMC_FREQ 0%@2133 GR3D_FREQ 0%@[0,0] VIC_FREQ 729 APE 174 CV0@-256C CPU@44.5C Tboard@32C SOC2@40.093C"
    " Tdiode@33.25C SOC0@41C CV1@-256C GPU@-256C tj@44.5C SOC1@41.468C CV2@-256C VDD_GPU_SOC 2340mW/2340mW"
    " VDD_CPU_CV 390mW/399mW VIN_SYS_5V0 4019mW/4026mW NC 0mW/0mW VDDQ_VDD2_1V8AO 301mW/308mW NC 0mW/0mW"
)
JP5_BUSY = (
    "11-21-2025 08:49:48 RAM 13983/62780MB (lfb 424x4MB) SWAP 126/31390MB (cached 0MB) CPU"
    " [90%@2201,100%@2201,88%@2201,91%@2201] EMC_FREQ 1%@2133 GR3D_FREQ 14%@[407,407] VIC_FREQ 115 NVDLA0_FREQ @1600"
    " APE 174 CV0@73.625C CPU@77.281C Tboard@62C GPU@69.125C tj@77.281C VDD_GPU_SOC 3150mW/2971mW"
    " VDD_CPU_CV 14312mW/12415mW VIN_SYS_5V0 4968mW/5048mW VDDQ_VDD2_1V8AO 1091mW/1091mW"
)
XAVIER_NX = (
    "RAM 4412/7772MB (lfb 237x4MB) SWAP 139/3886MB (cached 2MB) CPU"
    " [9%@1190,6%@1190,6%@1190,5%@1190,4%@1190,8%@1267] EMC_FREQ 10%@1600 GR3D_FREQ 62%@306 APE 150 MTS fg 0% bg 0%"
    " AO@41.5C GPU@43C PMIC@100C AUX@41.5C CPU@43.5C thermal@42.55C VDD_IN 4067/4067 VDD_CPU_GPU_CV 738/738"
    " VDD_SOC 1353/1353"
)
JP6_SPACES = (
    "RAM 29114/30697MB (lfb 3x4MB)    SWAP 4915/15348MB (cached 1MB) CPU [3%@729,2%@729,off,off] EMC_FREQ 1%@2133"
    " GR3D_FREQ 0%@[305,305] NVENC      off  NVDEC    off NVJPG off NVJPG1    off         VIC        off OFA off"
    " APE           174        cpu@53.062C soc2@48.25C soc0@48.843C  gpu@47.812C tj@53.062C soc1@48.968C   "
    " VDD_GPU_SOC 3205mW/3205mW VDD_CPU_CV 4405mW/4405mW VIN_SYS_5V0 4767mW/4767mW"
)
JP6_GATED = (
    "05-09-2026 18:42:06 RAM 18207/62841MB (lfb 466x4MB) SWAP 86/31420MB (cached 0MB) CPU [14%@2188,5%@2112]"
    " EMC_FREQ 3%@2133 GR3D_FREQ 0%@[0,0] NVENC 79%@166 NVDEC off VIC 36%@115 PVA0_FREQ off APE 174"
    " cpu@52.562C tj@52.562C VDD_GPU_SOC 2412mW/2412mW VDD_CPU_CV 1607mW/1607mW VIN_SYS_5V0 4707mW/4707mW"
)
JP6_NOT_ROOT = (
    "RAM 2448/62840MB (lfb 2x4MB) SWAP 0/31420MB (cached 0MB) CPU [0%@2201,0%@2201] GR3D_FREQ 0% cpu@42C gpu@37.75C"
    " tj@42C VDD_GPU_SOC 4940mW/4940mW VDD_CPU_CV 988mW/988mW VIN_SYS_5V0 4442mW/4442mW"
)
NANO_SUPER = (
    "10-08-2026 04:35:02 RAM 6712/7620MB (lfb 12x4MB) SWAP 369/3810MB (cached 8MB) CPU"
    " [38%@1497,2%@729,1%@729,0%@729,1%@729,0%@729] EMC_FREQ 61%@2133 GR3D_FREQ 99%@[612] NVDEC off NVJPG off VIC off"
    " OFA off APE 200 cpu@57.125C soc2@55.093C soc0@56.625C gpu@58.625C tj@58.312C soc1@55.937C"
    " VDD_IN 16321mW/11204mW VDD_CPU_GPU_CV 7104mW/4944mW VDD_SOC 3120mW/3659mW"
)
JP7_ORIN = (
    "07-25-2026 09:08:28 RAM 20642/62817MB (lfb 1x2MB) CPU [23%@2201,10%@2201] EMC_FREQ 3%@3199"
    " GR3D_FREQ 12%@[1300,1300] NVENC0 off NVDLA0 off PVA0_FREQ off APE 174 cpu@52.968C/52.968C gpu@47.625C/47.625C"
    " VDD_GPU_SOC 5139mW/5139mW/5139mW VDD_CPU_CV 3268mW/3268mW/3268mW VIN_SYS_5V0 5500mW/5500mW/5500mW"
)
THOR = (
    "04-21-2026 15:50:52 RAM 105265/125772MB (lfb 34x4MB) CPU [0%@972,8%@972,0%@972] EMC_FREQ 0%@2750"
    " GR3D_FREQ @[314,314,314] NVENC0_FREQ @314 NVDEC1_FREQ @314 VIC off OFA_FREQ @315 PVA0_FREQ off APE 300"
    " cpu@37.343C tj@38.875C soc012@37.468C gpu@38.875C soc345@37.406C VDD_GPU 1962mW/1962mW"
    " VDD_CPU_SOC_MSS 5887mW/5887mW VIN_SYS_5V0 5635mW/5635mW VIN 19780mW/19780mW"
)
REAL = (JP5_OFF, JP5_BUSY, XAVIER_NX, JP6_SPACES, JP6_GATED, JP6_NOT_ROOT, NANO_SUPER, JP7_ORIN, THOR)
START = datetime(2026, 5, 9, 18, 42, 6)


def stamped(power_mw: int, at: datetime, gpu: str = "50%@[612,612]") -> str:
    return (
        f"{at:%m-%d-%Y %H:%M:%S} RAM 1/2MB (lfb 1x4MB) CPU [1%@729] GR3D_FREQ {gpu} gpu@40C"
        f" VDD_GPU_SOC {power_mw}mW/777mW VDD_CPU_CV 1000mW/777mW VIN_SYS_5V0 4000mW/777mW"
    )


def at_seconds(*seconds: float, power_mw: int = 3000) -> bytes:
    return log(*(stamped(power_mw, START + timedelta(seconds=s)) for s in seconds))


def log(*lines: str) -> bytes:
    return ("\n".join(lines) + "\n").encode()


def summary(*lines: str, **options: Any) -> dict[str, Any]:
    return summarise(parse_log(log(*lines), **options))


# --- forms of the GPU's field [T] ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "util", "mhz", "gated"),
    [
        ("GR3D_FREQ 0%@[1300,1300]", 0, (1300, 1300), False),  # B01
        ("GR3D_FREQ 12%@[1300,1300]", 12, (1300, 1300), False),  # B01
        ("GR3D_FREQ 12 %@[1300, 1300]", 12, (1300, 1300), False),
        ("GR3D_FREQ 0%@[305,305]", 0, (305, 305), False),  # B02
        ("GR3D_FREQ 99%@[612]", 99, (612,), False),  # B02, B10
        ("GR3D_FREQ @[314,314,314]", None, (314, 314, 314), False),
        ("GR3D_FREQ 0%@[0,0]", 0, None, True),  # B06
        ("GR3D_FREQ 0%", 0, None, False),  # B07, B10
        ("GR3D_FREQ 62%@306", 62, (306,), False),  # B10
        ("GR3D_FREQ 40%@[0,612]", 40, (None, 612), False),
        (
            "GR3D_FREQ 40%@[0,0]",
            40,
            None,
            False,
        ),  # busy at 0 MHz is no reading of a clock, and not off either
        ("GR3D_FREQ off", None, None, True),
        ("GR3D 7%@76", 7, (76,), False),
        ("GR3D_FREQ 400%@[612]", None, (612,), False),
        ("GR3D_FREQ 9", None, None, False),
        ("GR3D_FREQ 12%@[13", None, None, False),
        ("xGR3D_FREQ 9%", None, None, False),
    ],
)
def test_b01_b02_b06_b10_forms_of_the_gpu(
    text: str, util: float | None, mhz: tuple[float | None, ...] | None, gated: bool
) -> None:
    sample = parse_line(text)
    assert (sample.gpu_util_pct, sample.gpu_mhz, sample.gpu_gated) == (util, mhz, gated)
    assert not sample.rails_w


def test_b06_a_gated_gpu_has_no_clock() -> None:
    document = summary(JP5_OFF)
    assert document["gpu_util_pct_mean"] == 0
    assert document["gpu_mhz"] is None
    assert document["unknown"]["gpu_mhz"] == "the GPU is off in all lines"


# --- units and rails [T] [P] -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        ("VDD_IN 5299mW/5299mW", {"VDD_IN": 5.299}),
        ("VDD_IN 4067/4067", {"VDD_IN": 4.067}),
        ("VDD_GPU_SOC 5139mW/5140mW/5141mW", {"VDD_GPU_SOC": 5.139}),
        ("VDD_GPU -392mW/0mW", {"VDD_GPU": -0.392}),  # Thor at idle: the sign is kept
        ("VIN 1mW/1mW VIN_SYS_5V0 2mW/2mW VDD_GPU 3mW/3mW", {"VIN": 0.001, "VIN_SYS_5V0": 0.002, "VDD_GPU": 0.003}),
        ("GPU 1/1 CPU 2/2 SOC 3/3 CV 0/0 VDDRQ 4/4 SYS5V 5/5",
         {"GPU": 0.001, "CPU": 0.002, "SOC": 0.003, "CV": 0.0, "VDDRQ": 0.004, "SYS5V": 0.005}),
        ("NC 0mW/0mW VDD_IN 1mW/1mW NC 0mW/0mW", {"VDD_IN": 0.001}),
        ("RAM 4333/62801MB", {}),
        ("RAM 4333/62801", {}),
        ("SWAP 1/2 STEP 3/4", {}),
        ("VDD_IN 5299mW", {}),
        ("xVDD_IN 1mW/1mW", {}),
        ("VDD_IN 1mW/1mWx", {}),
        ("VDD_IN 99999999999mW/1mW", {}),
    ],
)  # fmt: skip
def test_b03_rails_are_whole_tokens_with_or_without_unit(text: str, watts: dict[str, float]) -> None:
    assert parse_line(text).rails_w == pytest.approx(watts)


def test_b04_a_missing_field_costs_no_other() -> None:
    sample = parse_line(
        "RAM 9135/125772MB (lfb 34x4MB) CPU [0%@972] cpu@37C tj@38C VDD_GPU 0mW/0mW VIN 19780mW/19780mW"
    )
    assert sample.ram_mb == (9135, 125772)
    assert sample.cores == (Core(0, 972),)
    assert sample.temps_c == {"cpu": 37, "tj": 38}
    assert sample.rails_w == {"VDD_GPU": 0, "VIN": 19.78}
    assert (sample.gpu_util_pct, sample.gpu_mhz, sample.emc_mhz) == (None, None, None)


def test_b05_sensors_that_are_off_and_unconnected_rails() -> None:
    sample = parse_line(JP5_OFF)
    assert sample.temps_c["gpu"] is None
    assert sample.temps_c["cv0"] is None
    assert sample.temps_c["soc1"] == 41.468
    assert list(sample.rails_w) == ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]
    assert sample.other == ()


def test_b07_order_and_fields_of_an_older_release() -> None:
    sample = parse_line(
        "RAM 2020/7852MB (lfb 1164x4MB) CPU [9%@345,21%@345,25%@345,3%@345,1%@345,1%@345] EMC_FREQ 0% GR3D_FREQ 0%"
        " PLL@42.5C MCPU@42.5C PMIC@50C thermal@42.5C VDD_SYS_GPU 114/114 VDD_SYS_CPU 536/590"
    )
    assert (sample.emc_util_pct, sample.emc_mhz) == (0, None)
    assert (sample.gpu_util_pct, sample.gpu_mhz) == (0, None)
    assert sample.cpu_online == 6
    assert "pmic" not in sample.temps_c  # a constant
    assert sample.rails_w == {"VDD_SYS_GPU": 0.114, "VDD_SYS_CPU": 0.536}


def test_b08_a_combined_rail_is_not_the_gpu() -> None:
    sets = rail_sets(parse_line(NANO_SUPER).rails_w)
    assert sets.module == ("VDD_IN",)
    assert sets.gpu is None
    assert "combined rail" in sets.reasons["gpu"]
    document = summary(NANO_SUPER)
    assert document["module_w_mean"] == 16.321
    assert document["gpu_cpu_w_mean"] is None
    assert "combined rail" in document["unknown"]["gpu_cpu_w_mean"]
    assert parse_line("GPU@46C").temps_c == parse_line("gpu@46C").temps_c == {"gpu": 46}


@pytest.mark.parametrize(
    ("line", "gpu_cpu_w", "module_w"),
    [
        (JP6_SPACES, 7.61, 12.377),  # B19: not the last rail alone
        (JP5_BUSY, 17.462, 22.43),  # VDDQ_VDD2_1V8AO is inside VIN_SYS_5V0
        (XAVIER_NX, None, 4.067),
        (THOR, None, 19.78),
        ("POM_5V_IN 4000/4000 POM_5V_GPU 500/500 POM_5V_CPU 900/900", None, 4.0),  # B24
        ("GPU 1000/1 CPU 2000/1 SOC 3000/1 CV 0/1 VDDRQ 4000/1 SYS5V 5000/1", 3.0, 15.0),
        ("VDD_GPU_SOC 1000mW/1mW VIN_SYS_5V0 1000mW/1mW", None, None),  # a smaller sum would be wrong
        ("VDD_NEW 1000mW/1mW", None, None),
    ],
)
def test_b19_b24_b31_totals_by_board(line: str, gpu_cpu_w: float | None, module_w: float | None) -> None:
    document = summary(line)
    assert document["gpu_cpu_w_mean"] == pytest.approx(gpu_cpu_w)
    assert document["module_w_mean"] == pytest.approx(module_w)
    for name, value in (("gpu_cpu", gpu_cpu_w), ("module", module_w)):
        assert (f"{name}_w_mean" in document["unknown"]) == (value is None)


def test_a_total_is_of_lines_that_have_all_its_rails() -> None:
    short = JP6_NOT_ROOT.replace(" VDD_CPU_CV 988mW/988mW", "")
    document = summary(JP6_NOT_ROOT, short, JP6_NOT_ROOT, interval_s=1.0)
    assert document["module_w_mean"] == pytest.approx(10.37)
    assert document["warnings"] == ["VDD_CPU_CV is missing in 1 of 3 samples."]


# --- CPU, engines, temperatures ----------------------------------------------------------------------------------------


def test_b09_a_core_that_is_off_has_no_clock() -> None:
    sample = parse_line("CPU [6%@729,off,off,off]")
    assert sample.cores == (Core(6, 729), None, None, None)
    assert sample.cpu_online == 1
    assert parse_line("CPU [6%,x,500%@1]").cores == (Core(6, None), None, None)


def test_the_cpus_bracket_does_not_swallow_the_gpus() -> None:
    sample = parse_line(JP6_SPACES)
    assert sample.cpu_online == 2
    assert sample.gpu_mhz == (305, 305)
    assert sample.engines["NVJPG1"] == "off"
    assert sample.engines["APE"] == "174"


def test_jetpack_7_prints_a_second_temperature() -> None:
    assert parse_line(JP7_ORIN).temps_c == {"cpu": 52.968, "gpu": 47.625}
    assert parse_line("cpu@52C/99 C tj@-3.5C").temps_c == {"cpu": 52, "tj": -3.5}


def test_b57_a_sensor_that_is_off_is_left_out_of_mean_and_maximum() -> None:
    lines = [JP5_OFF, JP5_OFF.replace("15:18:02", "15:18:03").replace("GPU@-256C", "GPU@50C")]
    document = summary(*lines)
    assert document["temps_c"]["gpu"] == document["temps_c_max"]["gpu"] == 50
    assert document["temps_c"]["cv0"] is None
    assert document["unknown"]["temps_c.cv0"] == "the sensor is off in all lines"


@pytest.mark.parametrize("line", REAL)
def test_nothing_of_a_real_line_is_left_over(line: str) -> None:
    assert parse_line(line).other == ()
    assert parse_line(line + " NEW_THING fancy=3").other in (("NEW_THING", "fancy=3"), ("fancy=3",))


# --- whole logs ---------------------------------------------------------------------------------------------------------


def test_what_a_log_says() -> None:
    lines = [
        stamped(p, START + timedelta(seconds=i), f"{10 * i}%@[612,600]")
        for i, p in enumerate((3000, 5000, 7000))
    ]
    document = summary(*lines)
    assert (document["n_samples"], document["duration_s"], document["gaps"], document["skipped_lines"]) == (
        3,
        2,
        0,
        0,
    )
    assert document["rails_w_mean"] == {"VDD_GPU_SOC": 5.0, "VDD_CPU_CV": 1.0, "VIN_SYS_5V0": 4.0}
    assert (
        document["energy_j"]["VDD_GPU_SOC"] == 10.0
    )  # and not 0.777 W, the printed average, times two seconds
    assert (document["gpu_cpu_j"], document["module_j"]) == (12.0, 20.0)
    assert document["gpu_util_pct_mean"] == 10
    assert document["gpu_mhz"] == [612, 600]
    assert document["gpu_mhz_samples"] == {"606": 3}
    assert document["cpu_online"] == 1
    assert document["temps_c"] == {"gpu": 40}
    assert document["provenance"] == "recorded"
    assert document["unknown"] == {}


@pytest.mark.parametrize("line", REAL)
def test_the_summary_has_the_promised_shape(line: str) -> None:
    jsonschema.validate(summary(line), schema("tegrastats"))


def test_b33_a_hole_is_flagged_and_duplicates_add_no_energy() -> None:
    whole = [s for s in range(10) if s not in (4, 5)]
    parsed = parse_log(at_seconds(*whole, 9, 9))
    assert parsed.gaps == ((3.0, 6.0),)
    assert parsed.repeated_lines == 2
    document = summarise(parsed)
    assert (document["gaps"], document["gap_s"], document["repeated_lines"]) == (1, 3, 2)
    assert document["energy_j"]["VDD_GPU_SOC"] == pytest.approx(27)
    assert parsed.t_s[-1] == 9  # type: ignore[index]
    assert any("stand there twice" in warning for warning in document["warnings"])


@given(
    st.sampled_from([0.1, 0.25, 1.0, 2.0, 5.0]),
    st.integers(12, 60),
    st.integers(1, 3),
    st.integers(0, 59),
    st.booleans(),
)
def test_a_line_that_stands_there_again_adds_nothing(
    period_s: float, n: int, times: int, at: int, at_the_end: bool
) -> None:
    """Whatever the interval where it is the last one; anywhere in a log of a line a second or slower."""
    lines = [stamped(3000 + 7 * i, START + timedelta(seconds=int(i * period_s))) for i in range(n)]
    at = n - 1 if at_the_end or period_s < 1 else at % n
    repeated = [*lines[: at + 1], *[lines[at]] * times, *lines[at + 1 :]]
    plain, again = parse_log(log(*lines)), parse_log(log(*repeated))
    assert again.t_s == plain.t_s
    assert again.repeated_lines == times
    assert summarise(again)["energy_j"] == summarise(plain)["energy_j"]


@given(
    st.sampled_from([0.1, 0.25, 1.0, 5.0]),
    st.integers(4, 40),
    st.data(),
    st.booleans(),
)
def test_parts_of_a_log_that_stand_there_again_add_nothing(
    period_s: float, n: int, data: st.DataObject, changes: bool
) -> None:
    """The whole log some times over, or a part of it and what follows: with whatever interval."""
    lines = [stamped(3000 + 7 * i * changes, START + timedelta(seconds=int(i * period_s))) for i in range(n)]
    per_second = max(1, round(1 / period_s))
    assume(n > per_second)  # within one second nothing goes back
    whole = lines * data.draw(st.integers(2, 4))
    plain, again = parse_log(log(*lines)), parse_log(log(*whole))
    assert (again.t_s, again.clock_jumps, again.gaps) == (plain.t_s, plain.clock_jumps, plain.gaps)
    assert again.repeated_lines == len(whole) - n
    assert summarise(again)["energy_j"] == summarise(plain)["energy_j"]
    if changes and n >= 2 * per_second + 2:  # two logs that overlap, as rotated ones do
        first = data.draw(st.integers(0, n - per_second - 2))
        last = data.draw(st.integers(first + per_second + 1, n - 1))
        overlap = parse_log(log(*lines[: last + 1], *lines[first:]))
        assert overlap.t_s == plain.t_s
        assert overlap.repeated_lines == last + 1 - first
        assert summarise(overlap)["energy_j"] == summarise(plain)["energy_j"]


@pytest.mark.parametrize(
    ("good", "bad", "name"),
    [
        ("VDD_GPU_SOC 3000mW", "VDD_GPU_SOC 3e3mW", "VDD_GPU_SOC"),
        ("VDD_GPU_SOC 3000mW", "VDD_GPU_SOC 1000000000000mW", "VDD_GPU_SOC"),
        ("VDD_GPU_SOC 3000mW/777mW", "VDD_GPU_SOC 3000.5.1mW/777mW", "VDD_GPU_SOC"),
        ("VIN_SYS_5V0 4000mW", "VIN_SYS_5V0 --5mW", "VIN_SYS_5V0"),
        ("GR3D_FREQ 50%@[612,612]", "GR3D_FREQ 5e1%@[612,612]", "GR3D_FREQ"),
        ("CPU [1%@729]", "CPU [1%@729", "CPU"),
        ("gpu@40C", "gpu@4e1C", "gpu"),
    ],
)
@pytest.mark.parametrize("n_bad", [1, 3, 8])
def test_a_value_that_cannot_be_read_is_named_and_counted(good: str, bad: str, name: str, n_bad: int) -> None:
    lines = [stamped(3000, START + timedelta(seconds=s)) for s in range(8)]
    assert all(good in line for line in lines)
    lines = [line.replace(good, bad) if s < n_bad else line for s, line in enumerate(lines)]
    document = summary(*lines)
    said = [warning for warning in document["warnings"] if "could not be read" in warning]
    if name == "gpu" and n_bad == 8:
        assert said == [], "of a zone that no line has a reading of nobody knows that it is one"
    else:
        assert said == [
            f"{name} has a value that could not be read in {n_bad} of 8 lines; there it is unknown."
        ]


def test_nothing_is_said_of_values_where_all_can_be_read() -> None:
    for line in REAL:
        assert not [w for w in summary(line, line)["warnings"] if "could not be read" in w]


@given(st.integers(1, 6), st.integers(1, 4), st.sampled_from(["", " ", "\t"]))
def test_records_whose_line_end_was_lost_are_read_one_by_one(n: int, in_one: int, between: str) -> None:
    lines = [stamped(3000 + i, START + timedelta(seconds=i)) for i in range(n * in_one)]
    joined = [between.join(lines[i : i + in_one]) for i in range(0, len(lines), in_one)]
    plain, parsed = parse_log(log(*lines)), parse_log(log(*joined))
    assert (parsed.samples, parsed.t_s, parsed.skipped_lines) == (plain.samples, plain.t_s, 0)
    said = [w for w in parsed.warnings if "more than one record" in w]
    assert said == (
        [] if in_one == 1 else [f"{n} lines hold more than one record; each was read as a line of its own."]
    )


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        (["0%@[0,0]"], "the GPU is off in all lines"),
        (["12%@[0,0]"], "the GPU is off, or its clock is 0, in all lines that say it"),
        (["0%@[0,0]", "12%@[0,0]", "0%"], "the GPU is off, or its clock is 0, in all lines that say it"),
        (["12%"], "no line says it (root is needed for it)"),
    ],
)
def test_why_there_is_no_clock(printed: list[str], reason: str) -> None:
    lines = [stamped(3000, START + timedelta(seconds=s), gpu) for s, gpu in enumerate(printed * 3)]
    assert summary(*lines)["unknown"]["gpu_mhz"] == reason


@pytest.mark.parametrize("damaged", [0, 2, 15, 29])
def test_a_copy_with_a_damaged_line_adds_that_line_at_most(damaged: int) -> None:
    lines = [stamped(3000 + i, START + timedelta(seconds=i)) for i in range(30)]
    copy = [
        line.replace("mW/777mW VDD_CPU", "mW/77 VDD_CPU") if i == damaged else line
        for i, line in enumerate(lines)
    ]
    parsed = parse_log(log(*lines, *copy))
    assert parsed.repeated_lines >= 28
    assert len(parsed.samples) <= 32
    assert parsed.t_s is not None
    assert parsed.t_s[-1] <= 31.0


def test_readings_that_alternate_within_a_second_are_no_copies_of_each_other() -> None:
    """Also where the clock was set back before."""
    late = [stamped(2000 + i, START + timedelta(seconds=60 + i)) for i in range(3)]
    fast = [stamped(3000 + i % 2, START + timedelta(seconds=i // 10)) for i in range(40)]
    parsed = parse_log(log(*late, *fast))
    assert (len(parsed.samples), parsed.repeated_lines) == (43, 0)


def test_a_clock_that_is_set_back_over_other_readings_repeats_nothing() -> None:
    """Same times, same number of lines, other readings: all of them count."""
    lines = [stamped(3000 + i, START + timedelta(seconds=i % 6)) for i in range(12)]
    parsed = parse_log(log(*lines))
    assert (len(parsed.samples), parsed.repeated_lines, parsed.clock_jumps) == (12, 0, 1)


def test_a_board_on_which_nothing_changes_is_not_taken_for_a_repeat() -> None:
    """Ten equal lines a second, all of the log through: they are readings."""
    parsed = parse_log(at_seconds(*(i / 10 for i in range(100))))
    assert (len(parsed.samples), parsed.repeated_lines) == (100, 0)


def test_zones_that_are_off_are_named_with_how_often(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    source = tmp_path / "t.log"
    source.write_bytes(log(JP5_OFF, JP5_OFF.replace("GPU@-256C", "GPU@41C").replace("15:18:02", "15:18:03")))
    assert command(str(source)) == 0
    out = capsys.readouterr().out
    assert "no temperature (sensor off, -256) cv0, cv1, gpu (in 1 of 2 samples), cv2\n" in out
    assert command(str(source), "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["temps_off_samples"] == {"cv0": 2, "cv1": 2, "gpu": 1, "cv2": 2}
    assert document["temps_c"]["gpu"] == 41


# --- where a log comes from ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["plain", "gzip", "two gzips", "named .gz, plain"])
@pytest.mark.parametrize("stdin", [True, False])
def test_a_log_may_be_compressed_and_come_from_standard_input(
    how: str, stdin: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = at_seconds(*range(5))
    half = data.index(b"\n") + 1
    packed = {
        "plain": data,
        "gzip": gzip.compress(data),
        "two gzips": gzip.compress(data[:half]) + gzip.compress(data[half:]),
        "named .gz, plain": data,
    }[how]
    source = tmp_path / "t.log.gz"
    source.write_bytes(packed)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(packed)))
    assert command("-" if stdin else str(source), "--json", "-o", str(tmp_path / "trace.csv")) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["n_samples"], document["energy_j"]["VDD_GPU_SOC"]) == (5, 12)
    assert len((tmp_path / "trace.csv").read_text().splitlines()) == 6


def test_a_cut_gzip_is_read_as_far_as_it_goes_and_a_damaged_one_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [stamped(3000 + 13 * i % 997, START + timedelta(seconds=i)) for i in range(400)]
    packed = gzip.compress(log(*lines))
    source = tmp_path / "t.log.gz"
    source.write_bytes(packed[: len(packed) // 2])
    assert command(str(source), "--json") == 0
    said = capsys.readouterr()
    assert "is cut" in said.err
    assert 10 < json.loads(said.out)["n_samples"] < 400
    source.write_bytes(packed[:200] + b"\0" * 200 + packed[400:])
    with pytest.raises(InputError, match="damaged gzip"):
        command(str(source))


def test_a_hole_too_long_to_bridge_leaves_energy_unknown() -> None:
    document = summarise(parse_log(at_seconds(0, 1, 2, 3, 60, 61, 62)))
    assert document["gaps"] == 1
    assert document["energy_j"]["VDD_GPU_SOC"] is None
    assert "57 s" in document["unknown"]["energy_j.VDD_GPU_SOC"]
    assert document["rails_w_mean"]["VDD_GPU_SOC"] == 3


@pytest.mark.parametrize("period_s", [0.01, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 5.0])
def test_times_of_any_interval_are_within_its_second(period_s: float) -> None:
    true = [0.37 + i * period_s for i in range(max(40, int(6 / period_s)))]
    parsed = parse_log(at_seconds(*(int(t) for t in true)))
    assert parsed.t_s is not None
    assert parsed.period_s == pytest.approx(period_s, rel=0.1)
    assert all(a < b for a, b in itertools.pairwise(parsed.t_s))
    assert all(abs(t - (x - true[0])) <= 1.0 for t, x in zip(parsed.t_s, true, strict=True))
    assert parsed.gaps == ()
    assert parsed.clock_jumps == 0


@pytest.mark.parametrize(("first", "last"), [(32, 58), (35, 45), (30, 60), (34, 40), (30, 50), (37, 52)])
def test_a_hole_within_fast_lines_is_one_gap(first: int, last: int) -> None:
    true = [i / 10 for i in range(100) if not first <= i < last]
    parsed = parse_log(at_seconds(*(int(t) for t in true)))
    assert parsed.gaps is not None
    assert len(parsed.gaps) == 1
    start, end = parsed.gaps[0]
    assert end - start == pytest.approx((last - first + 1) / 10, abs=0.25)
    assert parsed.t_s == pytest.approx(true, abs=0.5)  # the stamps know it to a second


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (datetime(2026, 3, 29, 1, 59, 59), datetime(2026, 3, 29, 3, 0, 0)),  # to summer time
        (datetime(2026, 10, 25, 2, 59, 59), datetime(2026, 10, 25, 2, 0, 0)),  # and back
        (datetime(2026, 5, 9, 12, 0, 5), datetime(2026, 5, 9, 12, 0, 3)),  # set back a little
        (datetime(1970, 1, 1, 0, 1, 0), datetime(2026, 5, 9, 12, 0, 0)),  # no battery: set by the network
    ],
)
def test_jumps_of_the_clock_are_counted_and_cost_nothing(before: datetime, after: datetime) -> None:
    lines = [stamped(3000, before + timedelta(seconds=s)) for s in range(-5, 1)]
    lines += [stamped(3000, after + timedelta(seconds=s)) for s in range(6)]
    parsed = parse_log(log(*lines))
    assert parsed.clock_jumps == 1
    assert parsed.t_s == tuple(range(12))
    assert parsed.gaps == ()
    assert any("jumped" in warning for warning in parsed.warnings)


def test_an_hour_without_lines_by_day_is_a_gap() -> None:
    parsed = parse_log(at_seconds(0, 1, 2, 3, 3604, 3605))
    assert parsed.clock_jumps == 0
    assert parsed.gaps == ((3.0, 3604.0),)


def test_lines_without_times_have_none_unless_told() -> None:
    lines = [XAVIER_NX] * 5
    document = summary(*lines)
    assert (document["n_samples"], document["duration_s"], document["gaps"]) == (5, None, None)
    assert document["rails_w_mean"]["VDD_IN"] == 4.067
    assert "--interval-ms" in document["unknown"]["duration_s"]
    with pytest.raises(InputError, match="--interval-ms 1000"):
        trace_text(parse_log(log(*lines)), "x.log")
    told = summary(*lines, interval_s=0.5)
    assert (told["duration_s"], told["gaps"]) == (2.0, 0)
    assert told["module_j"] == pytest.approx(2.0 * 4.067)


def test_a_broken_line_took_its_interval_and_another_programs_did_not() -> None:
    lines = [XAVIER_NX, "RAM 4412/7772MB (lfb 23", XAVIER_NX, "Please run with sudo", XAVIER_NX]
    parsed = parse_log(log(*lines), interval_s=1.0)
    assert parsed.t_s == (0.0, 2.0, 3.0)
    assert parsed.skipped_lines == 2


def test_some_lines_without_a_time_are_put_between() -> None:
    lines = [stamped(3000, START + timedelta(seconds=s)) for s in range(12)]
    lines[0], lines[3], lines[11] = (line[20:] for line in (lines[0], lines[3], lines[11]))
    parsed = parse_log(log(*lines), interval_s=1.0)
    assert parsed.t_s == pytest.approx(range(12))
    assert parsed.gaps == ()
    assert any("3 of 12 lines have no time" in warning for warning in parsed.warnings)


def test_an_interval_that_the_log_contradicts_is_not_believed() -> None:
    parsed = parse_log(at_seconds(*range(10)), interval_s=0.1)
    assert parsed.gaps == ()
    assert any("their clock was used" in warning for warning in parsed.warnings)


@pytest.mark.parametrize("cut", [5, 25, 60, 140, 1])
def test_a_last_line_without_its_end_is_skipped(cut: int) -> None:
    whole = [stamped(3000, START + timedelta(seconds=s)) for s in range(3)]
    parsed = parse_log("\n".join([*whole[:2], whole[2][:-cut]]).encode())
    assert (len(parsed.samples), parsed.skipped_lines) == (2, 1)
    complete = parse_log("\n".join(whole).encode())
    assert (len(complete.samples), complete.skipped_lines) == (3, 0)


@pytest.mark.parametrize("cut", range(1, len(XAVIER_NX)))
def test_a_first_line_without_its_beginning_invents_nothing(cut: int) -> None:
    parsed = parse_log(log(XAVIER_NX[cut:], XAVIER_NX, XAVIER_NX))
    rails, zones = parse_line(XAVIER_NX).rails_w, parse_line(XAVIER_NX).temps_c
    for sample in parsed.samples:
        assert sample.rails_w.items() <= rails.items()
        assert sample.temps_c.items() <= zones.items()


@pytest.mark.parametrize("cut", range(1, len(XAVIER_NX)))
def test_a_line_broken_off_in_the_middle_of_the_log_invents_nothing(cut: int) -> None:
    parsed = parse_log(log(XAVIER_NX, XAVIER_NX[:cut], XAVIER_NX))
    whole = parse_line(XAVIER_NX)
    for sample in parsed.samples:
        assert sample.rails_w.items() <= whole.rails_w.items()
        assert sample.temps_c.items() <= whole.temps_c.items()
        assert sample.gpu_mhz in (None, whole.gpu_mhz)
        assert sample.cores in (None, whole.cores)


@pytest.mark.parametrize("text", ["", "\n\n  \n", "\0\0\0"])
def test_an_empty_log_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is empty"):
        parse_log(text.encode())


def test_a_log_of_something_else_is_refused_at_more_than_half() -> None:
    other = "NOT RUNNING"
    assert parse_log(log(XAVIER_NX, other)).skipped_lines == 1
    with pytest.raises(InputError, match=r"2 of 3 lines"):
        parse_log(log(XAVIER_NX, other, other))


@pytest.mark.parametrize("encode", [
    lambda text: text.replace("\n", "\r\n").encode(),
    lambda text: text.encode("utf-16"),
    lambda text: text.encode("utf-8-sig"),
    lambda text: text.encode() + b"\0" * 512 + b"\n",
    lambda text: b"\xff\xfe\xfd"[2:] + b"\xf0 junk\n" + text.encode(),
])  # fmt: skip
def test_logs_of_other_systems_are_read(encode: Any) -> None:
    lines = [NANO_SUPER.replace("04:35:02", f"04:35:0{second}") for second in (2, 3, 4)]
    parsed = parse_log(encode("\n".join(lines) + "\n"))
    assert len(parsed.samples) == 3
    assert parsed.samples[0].stamp_s is not None
    assert parsed.samples[0].rails_w["VDD_IN"] == 16.321


# --- the command --------------------------------------------------------------------------------------------------------


def command(*argv: str) -> int:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(parser.parse_args(argv))


def test_the_command_prints_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, trace = tmp_path / "t.log", tmp_path / "trace.csv"
    source.write_bytes(
        at_seconds(0, 1, 2) + b"noise\n" + log(THOR.replace("04-21-2026 15:50:52", "05-09-2026 18:42:09"))
    )
    assert command(str(source), "--json", "-o", str(trace)) == 0
    out = capsys.readouterr()
    document = json.loads(out.out)
    assert (document["n_samples"], document["skipped_lines"]) == (4, 1)
    assert "1 of 5 lines" in out.err
    rows = list(csv.DictReader(io.StringIO(trace.read_text())))
    assert [row["t_s"] for row in rows] == ["0", "1", "2", "3"]
    assert {row["provenance"] for row in rows} == {"recorded"}
    assert (rows[0]["VDD_GPU_SOC_w"], rows[0]["VIN_w"], rows[0]["gpu_util_pct"]) == ("3", "", "50")
    assert (rows[3]["VDD_GPU_SOC_w"], rows[3]["VIN_w"], rows[3]["gpu_util_pct"]) == ("", "19.78", "")
    assert (rows[3]["gpu_mhz"], rows[3]["temp_soc012_c"]) == ("314", "37.468")
    assert command(str(source)) == 0
    text = capsys.readouterr().out
    assert "4 samples over 3 s, 0 gaps, 1 lines skipped (recorded)." in text


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        command(str(tmp_path / "none.log"), "-o", str(tmp_path / "t.csv"))
    source = tmp_path / "t.log"
    source.write_bytes(log(XAVIER_NX))
    with pytest.raises(InputError, match="--interval-ms 1000"):
        command(str(source), "-o", str(tmp_path / "trace.csv"))
    assert not (tmp_path / "trace.csv").exists()
    with pytest.raises(InputError, match="it is what the command reads"):
        command(str(source), "--interval-ms", "1000", "-o", str(source))
    assert source.read_bytes() == log(XAVIER_NX)
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="there is no folder"):
        command(str(source), "--interval-ms", "1000", "-o", str(tmp_path / "file" / "trace.csv"))
    for bad in ("0", "x", "-5", "nan", "inf"):
        with pytest.raises(SystemExit):
            command(str(source), "--interval-ms", bad)


# --- any mixture --------------------------------------------------------------------------------------------------------

_WATTS = st.integers(-400, 99_999)
_UNIT = st.sampled_from(["mW", ""])
RAILS = (
    "VDD_GPU_SOC",
    "VDD_CPU_CV",
    "VIN_SYS_5V0",
    "VIN",
    "VDD_IN",
    "VDD_GPU",
    "VDDQ_VDD2_1V8AO",
    "CV",
    "SYS5V",
)
ZONES = ("cpu", "GPU", "tj", "soc012", "Tboard", "CV0")
GARBAGE = st.text(
    st.characters(codec="utf-8", exclude_characters="/@\n\r"), max_size=12
)  # no slash and no at: such a token is no field by construction


@st.composite
def fields(draw: st.DrawFn) -> tuple[str, Sample]:
    """A line of fields in any order with garbage between, and what it says."""
    want, parts = Sample(), []
    for rail in draw(st.lists(st.sampled_from(RAILS), unique=True, max_size=5)):
        now, unit = draw(_WATTS), draw(_UNIT)
        parts.append(f"{rail} {now}{unit}/{draw(_WATTS)}{unit}" + draw(st.sampled_from(["", f"/7{unit}"])))
        want.rails_w[rail] = now / 1000
    for zone in draw(st.lists(st.sampled_from(ZONES), unique=True, max_size=4)):
        celsius = draw(st.sampled_from([-256.0, -256.0, 0.0, 41.468, 44.5, 105.0]))
        parts.append(f"{zone}@{celsius:g}C" + draw(st.sampled_from(["", "/99.5C"])))
        want.temps_c[zone.lower()] = None if celsius == -256 else celsius
    if draw(st.booleans()):
        util, mhz = draw(st.integers(0, 100)), draw(st.lists(st.integers(1, 1700), min_size=1, max_size=3))
        parts.append(f"GR3D_FREQ {util}%@[{','.join(map(str, mhz))}]")
        want.gpu_util_pct, want.gpu_mhz = float(util), tuple(map(float, mhz))
    if draw(st.booleans()):
        cores = draw(
            st.lists(st.none() | st.tuples(st.integers(0, 100), st.integers(100, 2300)), max_size=12)
        )
        parts.append("CPU [" + ",".join("off" if c is None else f"{c[0]}%@{c[1]}" for c in cores) + "]")
        want.cores = tuple(None if c is None else Core(c[0], c[1]) for c in cores)
    order = draw(st.permutations(parts))
    line = "".join(f" ~{draw(GARBAGE)}~ {part}" for part in order)
    return line, want


@given(fields())
def test_fields_in_any_order_with_anything_between_come_back(case: tuple[str, Sample]) -> None:
    line, want = case
    got = parse_line(line)
    assert got.rails_w == want.rails_w
    assert got.temps_c == want.temps_c
    assert (got.gpu_util_pct, got.gpu_mhz, got.cores) == (want.gpu_util_pct, want.gpu_mhz, want.cores)


@given(st.lists(GARBAGE, max_size=20))
def test_garbage_has_no_readings(tokens: list[str]) -> None:
    sample = parse_line(" ".join(tokens))
    assert sample.rails_w == {}
    assert sample.temps_c == {}


@given(st.lists(st.one_of(st.sampled_from(REAL), st.text(max_size=60), fields().map(lambda case: case[0])), max_size=12),
       st.sampled_from([None, 0.1, 1.0]), st.booleans())  # fmt: skip
def test_no_log_crashes_and_times_rise(lines: list[str], interval_s: float | None, newline: bool) -> None:
    try:
        parsed = parse_log(
            ("\n".join(lines) + "\n" * newline).encode("utf-8", "replace"), interval_s=interval_s
        )
    except InputError:
        return
    assert len(parsed.samples) + parsed.skipped_lines + parsed.repeated_lines == parsed.n_lines
    document = summarise(parsed)
    jsonschema.validate(json.loads(json.dumps(document, allow_nan=False)), schema("tegrastats"))
    if parsed.t_s is not None:
        assert len(parsed.t_s) == len(parsed.samples)
        assert all(a < b for a, b in itertools.pairwise(parsed.t_s))
        rows = list(csv.DictReader(io.StringIO(trace_text(parsed, "x"))))
        times = [float(row["t_s"]) for row in rows]
        assert times == sorted(set(times))


@given(st.binary(max_size=300))
def test_no_bytes_crash(data: bytes) -> None:
    with contextlib.suppress(InputError):
        summarise(parse_log(data))
