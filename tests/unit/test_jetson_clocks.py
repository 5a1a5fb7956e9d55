"""`wattune import jetson-clocks`: units, what is off, what is pinned, and what is no such output."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.boards.jetson.powermode import parse_jetson_clocks
from wattune.cli import main
from wattune.profiling.importing.jetson_clocks import summarise

ORIN = (
    "SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin Developer Kit\nOnline CPUs: 0-11\n"
    "cpu0:  Online=1 Governor=schedutil MinFreq=729600 MaxFreq=2201600 CurrentFreq=729600 IdleStates: WFI=0 c7=0 \n"
    "GPU MinFreq=1300500000 MaxFreq=1300500000 CurrentFreq=1300500000\nActive GPU TPCs: 8\n"
    "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=2133000000 FreqOverride=1\n"
    "FAN Dynamic Speed Control=nvfancontrol hwmon0_pwm1=57\nNV Power Mode: MAXN\n"
)
THOR = (
    "gpu-gpc-0 MinFreq=315000000 MaxFreq=1575000000 CurrentFreq=315000000\n"
    "gpu-nvd-0 MinFreq=315000000 MaxFreq=1692000000 CurrentFreq=0\n"
)


@pytest.mark.parametrize("stdin", [True, False])
def test_one_document_in_mhz(
    stdin: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "show.txt").write_text(ORIN)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(ORIN.encode())))
    assert main(["import", "jetson-clocks", "-" if stdin else str(tmp_path / "show.txt"), "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["gpus"] == {
        "GPU": {"min_mhz": 1300.5, "max_mhz": 1300.5, "cur_mhz": 1300.5, "pinned": True}
    }
    assert document["cpus"]["0"] == {"min_mhz": 729.6, "max_mhz": 2201.6, "cur_mhz": 729.6, "pinned": False}
    assert document["emc"]["cur_mhz"] == 2133
    assert (document["power_mode"], document["active_tpcs"], document["soc"]) == ("MAXN", 8, "tegra234")
    assert document["provenance"] == "recorded"
    assert "GPU is pinned at 1300.5 MHz" in said.err


def test_a_thor_has_two_and_what_is_off_has_no_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "show.txt").write_text(THOR)
    assert main(["import", "jetson-clocks", str(tmp_path / "show.txt")]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert "unknown board, power mode unknown (recorded)" in said.out
    assert "gpu-gpc-0  315 to 1575 MHz, now 315 MHz" in said.out
    assert "gpu-nvd-0  315 to 1692 MHz, now off" in said.out


@pytest.mark.parametrize(
    ("good", "bad", "line"),
    [
        ("MinFreq=729600 MaxFreq=2201600", "MinFreq=2201600 MaxFreq=729600", 3),
        ("MinFreq=1300500000 MaxFreq=1300500000", "MinFreq=1300500000 MaxFreq=1300400000", 4),
        ("MinFreq=204000000 MaxFreq=3199000000", "MinFreq=3199000000 MaxFreq=204000000", 6),
    ],
)
def test_a_lower_bound_above_the_upper_one_makes_no_sense(
    good: str, bad: str, line: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert good in ORIN
    (tmp_path / "show.txt").write_text(ORIN.replace(good, bad))
    assert main(["import", "jetson-clocks", str(tmp_path / "show.txt"), "--json"]) == 0
    said = capsys.readouterr()
    assert f"1 line of a clock could not be read and is left out: {line}." in said.err
    document = json.loads(said.out)
    clocks = {3: document["cpus"], 4: document["gpus"], 6: document["emc"]}
    assert not clocks.pop(line)
    assert all(clocks.values())


def test_lines_that_make_no_sense_are_said_and_a_core_that_is_off_has_no_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line cut short is no clock of 0, nor nothing at all."""
    broken = ORIN + (
        "cpu1:  Online=0 Governor=schedutil MinFreq=729600 MaxFreq=2201600 CurrentFreq=1113600 IdleStates: WFI=0 c7=0 \n"
        "cpu2:  Online=1 Governor=schedutil MinFreq=729600 MaxFr\n"
        "DLA0_CORE MinFreq=? MaxFreq=1600000000\n"
    )
    (tmp_path / "show.txt").write_text(broken)
    assert main(["import", "jetson-clocks", str(tmp_path / "show.txt"), "--json"]) == 0
    said = capsys.readouterr()
    document = json.loads(said.out)
    assert document["cpus"]["1"] == {"min_mhz": 729.6, "max_mhz": 2201.6, "cur_mhz": None, "pinned": False}
    assert set(document["cpus"]) == {"0", "1"}
    assert "2 lines of a clock could not be read and are left out: 10, 11." in said.err
    assert document["warnings"][-1] in said.err
    (tmp_path / "show.txt").write_text("cpu2:  Online=1 MinFreq=729600 MaxFr\n")
    assert main(["import", "jetson-clocks", str(tmp_path / "show.txt")]) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Error: Run this script(/usr/bin/jetson_clocks) as a root user\n", "refusal to run without root"),
        ("", "Nothing in"),
        ("RAM 1/2MB CPU [1%@729]\n", "Nothing in"),
    ],
)
def test_what_is_no_such_output_is_bad_input(
    text: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "show.txt").write_text(text)
    assert main(["import", "jetson-clocks", str(tmp_path / "show.txt"), "--json"]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert words in said.err
    assert "sudo jetson_clocks --show" in said.err


@given(st.text(alphabet="GPUEMCcpu0123:=MinFreqMaxCurent \n", max_size=300))
def test_any_text_becomes_json(text: str) -> None:
    json.dumps(summarise(parse_jetson_clocks(text)), allow_nan=False)
