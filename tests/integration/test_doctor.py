"""`wattune doctor`: what it says of golden trees, of emulated boards with their faults, and of who may write."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trees
from wattune.boards.jetson import doctor
from wattune.boards.jetson.diagnosis import why_no_clock
from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.emulator import faults, fuse
from wattune.cli import main
from wattune.core.errors import InputError

SRC = Path(__file__).parents[2] / "src"
NOBODY = 65534
PROMISED = {
    "board", "model", "provenance", "gpu", "rails_w", "gpu_cpu_w", "module_w", "temps_c", "filter", "power_mode",
    "warnings", "problems",
}  # fmt: skip
GPU = {
    "node",
    "available_mhz",
    "usable_mhz",
    "min_mhz",
    "max_mhz",
    "cur_mhz",
    "governor",
    "can_pin",
    "util_pct",
}
DOCTOR = (
    "import argparse, sys\nfrom wattune.boards.jetson import doctor\np = argparse.ArgumentParser()\n"
    "doctor.add_arguments(p)\nsys.exit(doctor.run(p.parse_args()))"
)


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    doctor.add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]):
    def ask(root: Path, *words: str) -> str:
        assert doctor.run(arguments("--root", str(root), *words)) == 0
        said = capsys.readouterr()
        assert said.err == ""
        return said.out

    return ask


@pytest.fixture
def document(ask):
    return lambda root: json.loads(ask(root, "--json"))


@contextlib.contextmanager
def mounted(jetpack: str, folder: Path, **board: Any) -> Iterator[Any]:
    """An idle emulated board, mounted; yields what puts a fault on it."""
    if reason := fuse.why_not():
        pytest.skip(reason)
    machine, tree = trees.emulated_machine(jetpack=jetpack, **board)
    folder.mkdir()
    mount = fuse.Mount(tree, folder, machine.lock)
    try:
        yield lambda text: faults.apply(text, machine, tree)  # type: ignore[arg-type]
    finally:
        faults.apply("clear", machine, tree)  # type: ignore[arg-type]
        mount.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Golden trees do not change: nothing late is waited for."""
    monkeypatch.setattr(doctor, "LATE_NODE_S", 0.0)


# --- the document -------------------------------------------------------------------------------------------------------


def test_json_of_f1_is_what_the_fact_sheet_says(document, tmp_path: Path) -> None:
    found = document(trees.golden("F1", tmp_path / "t"))
    assert set(found) >= PROMISED
    assert set(found["gpu"]) == GPU
    assert found["board"] == "jetson-agx-orin-64gb"
    assert found["provenance"] == "measured"
    assert found["gpu"]["available_mhz"][-1] == 1300.5
    assert found["gpu"]["usable_mhz"] == [306, 408, 510, 612]
    assert (found["gpu"]["min_mhz"], found["gpu"]["max_mhz"], found["gpu"]["cur_mhz"]) == (306, 612, 306)
    assert (found["gpu"]["governor"], found["gpu"]["can_pin"], found["gpu"]["util_pct"]) == (
        "nvhost_podgov",
        True,
        13.7,
    )
    assert round(found["gpu_cpu_w"], 3) == 6.754
    assert round(found["module_w"], 3) == 11.361
    assert found["rails_w"].keys() == {"VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"}
    assert found["temps_c"] == {"cpu": 42.0, "gpu": 40.5, "cv0": None, "tj": 42.0}
    assert found["filter"] == {"samples": 512, "update_interval_ms": 430}
    assert found["power_mode"] == {"name": "MODE_30W", "id": 2}
    assert (found["kind"], found["soc"], found["l4t"], found["jetpack"]) == (
        "jetson",
        "tegra234",
        "36.4.7",
        "6",
    )
    assert found["boot_id"] == trees.BOOT_ID
    assert found["problems"] == []
    assert f"/{found['found']['gpu']}" == found["gpu"]["node"]


@pytest.mark.parametrize("name", [*trees.GOLDEN, "F5", "F6", "F7", "F8", "F9"])
@pytest.mark.usefixtures("impatient")
def test_both_forms_of_every_tree(name: str, ask, tmp_path: Path) -> None:
    root = trees.golden(name, tmp_path / "t")
    found = json.loads(ask(root, "--json"))
    text = ask(root)
    assert set(found) >= PROMISED
    assert found["model"] in text
    for sentence in (*found["warnings"], *found["problems"]):
        assert sentence in text
    for label in found["rails_w"]:
        assert label in text
    assert bool(found["board"]) == (name not in ("F6", "F7", "F9"))
    assert "Traceback" not in text


@pytest.mark.usefixtures("impatient")
def test_every_problem_says_what_to_type(document, tmp_path: Path) -> None:
    for name in ("F5", "F6", "F7", "F8", "F9"):
        for problem in document(trees.golden(name, tmp_path / name))["problems"]:
            assert problem.count(". ") >= 2, problem
            assert "`" in problem or "Reboot" in problem, problem


def test_nothing_of_the_tree_is_changed(ask, tmp_path: Path) -> None:
    root = trees.golden("F1", tmp_path / "t")
    before = {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()
    }
    ask(root)
    assert {
        path: (path.read_bytes(), path.stat().st_mtime_ns) for path in root.rglob("*") if path.is_file()
    } == before


def test_a_root_that_is_no_folder_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="not a folder"):
        doctor.run(arguments("--root", str(tmp_path / "nothing")))
    monkeypatch.setenv("WATTUNE_ROOT", str(tmp_path / "nothing"))
    with pytest.raises(InputError, match="not a folder"):
        doctor.run(arguments())


def test_the_root_may_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("WATTUNE_ROOT", str(trees.golden("F2", tmp_path / "t")))
    assert doctor.run(arguments("--json")) == 0
    assert json.loads(capsys.readouterr().out)["board"] == "jetson-orin-nano-8gb"


def test_this_machine_can_be_looked_at(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.delenv("WATTUNE_ROOT", raising=False)
    assert doctor.run(arguments("--json")) == 0
    assert set(json.loads(capsys.readouterr().out)) >= PROMISED


# --- may it be pinned ---------------------------------------------------------------------------------------------------


def refusal(root: Path) -> str | None:
    findings = discover(Sysfs(root))
    assert findings.gpu is not None
    return doctor.why_not_pinned(findings.sysfs, findings.gpu)


def test_thor_cannot_be_pinned_and_is_not_even_opened_for_writing(document, tmp_path: Path) -> None:
    found = document(trees.golden("F5", tmp_path / "t"))
    assert found["gpu"]["can_pin"] is False
    assert [problem for problem in found["problems"] if "Thor" in problem and "hang" in problem]
    assert found["gpu"]["util_pct"] is None
    assert found["module_w"] == pytest.approx(19.78)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_without_permission_it_says_who_you_are_and_what_to_type() -> None:
    root = Path(tempfile.mkdtemp())
    try:
        root.chmod(0o755)
        trees.golden("F1", root)
        os.seteuid(NOBODY)
        try:
            said = refusal(root)
        finally:
            os.seteuid(0)
    finally:
        shutil.rmtree(root)
    assert said is not None
    assert f"uid {NOBODY}" in said
    for way in ("sudo wattune", "sudo wattune clockd", "packaging/60-wattune.rules"):
        assert way in said
    assert "was expected" in said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to mount")
def test_f9_a_read_only_sys_is_told_from_a_missing_permission(document, tmp_path: Path) -> None:
    root = trees.golden("F9", tmp_path / "t")
    mount = ["mount", "--bind", str(root / "sys"), str(root / "sys")]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("no mounting here")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(root / "sys")], check=True, capture_output=True)
        found = document(root)
    finally:
        subprocess.run(["umount", str(root / "sys")], check=True)
    assert found["gpu"]["can_pin"] is False
    (problem,) = [problem for problem in found["problems"] if "cannot be pinned" in problem]
    assert "read-only" in problem
    assert "--privileged" in problem
    assert found["gpu_cpu_w"] == pytest.approx(trees.AGX_W)


def test_no_clock_within_the_bounds_means_no_pin(tmp_path: Path) -> None:
    root = trees.golden("F1", tmp_path / "t")
    for file, text in (("min_freq", "1000"), ("max_freq", "2000")):
        trees.put(root, f"{trees.ORIN6}/devfreq/17000000.gpu/{file}", text)
    said = refusal(root)
    assert said is not None
    assert "no clock of its table" in said


def test_a_pin_left_behind_is_said(tmp_path: Path) -> None:
    findings = discover(Sysfs(trees.golden("F1", tmp_path / "t")))
    found = doctor.report(findings, stale=lambda _: ["pinned at 408 MHz by process 7"])
    assert [
        p
        for p in found["problems"]
        if "pinned at 408 MHz by process 7" in p and findings.sysfs.typed("restore") in p
    ]
    assert doctor.report(findings)["problems"] == []


def test_jtop_is_asked_only_when_told_and_its_difference_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = trees.golden("F1", tmp_path / "t")
    args = argparse.Namespace(root=root, json=True, jtop=False)
    doctor.run(args)
    assert "jtop" not in json.loads(capsys.readouterr().out)
    args.jtop = True
    doctor.run(args)
    check = json.loads(capsys.readouterr().out)["jtop"]
    assert check["available"] is False
    assert "--root" in check["reason"]
    seen = {
        "available": True,
        "version": "7.2.2",
        "rails_w": {"VDD_GPU_SOC": {"ours": 5.165, "jtop": 5.565, "difference": 0.4}},
        "gpu_mhz": {"ours": 306.0, "jtop": 306.0, "difference": 0.0},
        "gpu_util_pct": {"ours": None, "jtop": 3.0, "difference": None},
    }
    monkeypatch.setattr(doctor.jtop, "cross_check", lambda *_: seen)
    args.json = False
    doctor.run(args)
    said = capsys.readouterr().out
    assert re.search(r"VDD_GPU_SOC, W +5\.165 +5\.565 +0\.400", said)
    assert re.search(r"GPU load, % +unknown +3\.000 +unknown", said)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be somebody else")
def test_who_may_not_write_may_pin_through_the_daemon(tmp_path: Path) -> None:
    root = trees.golden("F1", tmp_path / "t")
    findings = discover(Sysfs(root))
    assert findings.gpu is not None
    table = findings.gpu.table_hz
    read_only = replace(
        findings, gpu=replace(findings.gpu, table_hz=table, read_only="writes there can hang")
    )
    socket = tmp_path / "clockd.sock"
    for looked_at, expected in ((findings, True), (read_only, False)):
        found = doctor.report(looked_at, daemon=lambda _: socket)
        assert found["gpu"]["can_pin"] is expected
    for bound in ("min_freq", "max_freq"):
        (root / findings.gpu.path / bound).unlink()
    assert doctor.report(findings)["gpu"]["can_pin"] is False
    through = doctor.report(findings, daemon=lambda _: socket)
    assert through["gpu"]["can_pin"] is True
    assert any(str(socket) in warning for warning in through["warnings"])
    assert through["problems"] == []


# --- emulated boards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("board", "jetpack"),
    [
        ("jetson-agx-orin-64gb", "5"),
        ("jetson-agx-orin-64gb", "6"),
        ("jetson-agx-orin-64gb", "7.2"),
        ("jetson-agx-xavier", "5"),
    ],
)
def test_emulated_boards(board: str, jetpack: str, document, tmp_path: Path) -> None:
    with mounted(jetpack, tmp_path / "t", board=board):
        found = document(tmp_path / "t")
    assert found["board"] == board
    assert found["gpu"]["can_pin"] is True
    assert found["module_w"] > found["gpu_cpu_w"] > 0
    assert found["jetpack"].split(".")[0] == jetpack[0]
    assert found["problems"] == []


@pytest.mark.parametrize(
    ("fault", "reason"),
    [("rail-eio", "Input/output error"), ("rail-enodata", "its channel is switched off (ENODATA)")],
)
def test_a_rail_that_fails_leaves_the_others_and_no_smaller_sum(
    fault: str, reason: str, document, tmp_path: Path
) -> None:
    with mounted("6", tmp_path / "t") as put_fault:
        put_fault(f"{fault} VIN_SYS_5V0")
        found = document(tmp_path / "t")
    assert found["rails_w"]["VIN_SYS_5V0"] is None
    assert found["rails_w"]["VDD_GPU_SOC"] > 0
    assert found["gpu_cpu_w"] > 0
    assert found["module_w"] is None
    assert found["errors"]["rail VIN_SYS_5V0"] == reason
    assert [warning for warning in found["warnings"] if "VIN_SYS_5V0" in warning]


def test_b12_a_node_that_is_late_by_half_a_second_is_waited_for(document, tmp_path: Path) -> None:
    with mounted("6", tmp_path / "t") as put_fault:
        put_fault("late-node 0.4")
        found = document(tmp_path / "t")
    assert found["gpu"]["can_pin"] is True


def test_b13_a_node_that_stays_away_is_said_with_what_to_type(document, tmp_path: Path) -> None:
    with mounted("6", tmp_path / "t") as put_fault:
        put_fault("late-node 3600")
        found = document(tmp_path / "t")
    assert found["gpu"] is None
    assert found["module_w"] > 0
    assert [problem for problem in found["problems"] if "CUDA" in problem]


@pytest.mark.parametrize("file", ["min_freq", "cur_freq", "load"])
def test_b17_a_file_that_hangs_ends_in_time(file: str, document, tmp_path: Path) -> None:
    with mounted("7.2", tmp_path / "t") as put_fault:
        put_fault(f"hang {file}")
        started = time.monotonic()
        found = document(tmp_path / "t")
        assert time.monotonic() - started < 15
    assert found["module_w"] > 0
    if file == "load":
        assert found["gpu"]["can_pin"] is True
        assert found["gpu"]["util_pct"] is None
    else:
        assert found["gpu"] is None
        assert file in found["errors"]["gpu"]


def test_b17_the_command_itself_ends_and_lets_go_of_its_output(tmp_path: Path) -> None:
    """What hangs is left behind; who waits for the command's output must not wait for it too."""
    root = trees.golden("F5", tmp_path / "t")
    stuck = root / "sys/class/devfreq/gpu-gpc-0/max_freq"
    stuck.unlink()
    os.mkfifo(stuck)
    done = subprocess.run(
        [sys.executable, "-c", DOCTOR, "--root", str(root), "--json"],
        capture_output=True, text=True, check=False, timeout=60, env={"PYTHONPATH": str(SRC), "PATH": os.environ["PATH"]},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["gpu"] is None
    assert [problem for problem in found["problems"] if "did not answer" in problem]


def test_heat_and_mode_are_said(document, tmp_path: Path) -> None:
    with mounted("6", tmp_path / "t", power_mode="MAXN") as put_fault:
        put_fault("thermal-cap 714000000")
        found = document(tmp_path / "t")
    assert found["gpu"]["max_mhz"] == 714
    assert [warning for warning in found["warnings"] if "714" in warning and "not MAXN" in warning]


def test_what_an_emulated_board_shows_is_called_simulated(ask, tmp_path: Path) -> None:
    _, tree = trees.emulated_machine()
    root = trees.snapshot(tree, tmp_path / "t")
    trees.put(root, "emulator/status.json", "{}")
    assert json.loads(ask(root, "--json"))["provenance"] == "simulated"
    assert "simulated" in ask(root)


def test_an_orin_nano_says_why_it_has_no_gpu_cpu_and_which_set_is_used(ask, tmp_path: Path) -> None:
    root = trees.golden("F2", tmp_path / "t")
    said = ask(root)
    assert "gpu_cpu         none: this board has no rails of that set." in said
    assert "CPU and GPU share one rail" in said
    assert "energies are of the set module" in said
    found = json.loads(ask(root, "--json"))
    assert (found["gpu_cpu_w"], found["energy_set"]) == (None, "module")
    assert found["module_w"] == pytest.approx(trees.SMALL_W)
    found = json.loads(ask(trees.golden("F1", tmp_path / "agx"), "--json"))
    assert found["energy_set"] == "gpu_cpu"


def test_what_hangs_on_an_emulated_board_is_lifted_there(ask, tmp_path: Path) -> None:
    with mounted("6", tmp_path / "m") as fault:
        fault("hang max_freq")
        (problem,) = [p for p in json.loads(ask(tmp_path / "m", "--json"))["problems"] if "answer" in p]
    assert "Reboot" in problem  # no sign of an emulator in this tree
    findings = discover(Sysfs(trees.golden("F8", tmp_path / "e")))
    findings.errors["gpu"] = "max_freq did not answer"
    assert "Reboot" in why_no_clock(findings)[2]
    trees.put(tmp_path / "e", "emulator/status.json", "{}")
    assert f"echo 'fault clear' > {tmp_path / 'e/emulator/control'}" in why_no_clock(findings)[2]


# --- other commands on what is no Jetson, or must not be written --------------------------------------------------------


@pytest.mark.parametrize(
    ("tree", "found", "typed"),
    [
        (trees.workstation, "x86 machine with an NVIDIA card", "nvidia-smi -lgc"),
        (trees.raspberry_pi, "Raspberry Pi", "wattune emulate"),
        (trees.spark, "DGX Spark", "nvidia-smi -q"),
    ],
)
def test_what_is_no_jetson_is_named_where_it_should_be_pinned(
    tree: Any, found: str, typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tmp_path / "t"
    tree(root)
    assert main(["pin", "612", "--root", str(root)]) == 3
    said = capsys.readouterr()
    assert said.out == ""
    for words in (found, "An NVIDIA Jetson", typed):
        assert words in said.err


@pytest.mark.parametrize("mhz", ["612", "1575", "fast"])
def test_a_thor_says_that_it_is_read_only_before_it_judges_the_clock(
    mhz: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["pin", mhz, "--root", str(trees.golden("F5", tmp_path / "t"))])
    said = capsys.readouterr().err
    if mhz == "fast":
        assert code == 2
        return
    assert code == 3
    assert "can hang in the kernel" in said
    assert "not a clock" not in said
