"""`wattune emulate` from the command line, over the modelled board: what goes wrong around it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from wattune.boards.virtual.board import DEFAULT_CONSTANTS
from wattune.boards.virtual.emulator import fuse
from wattune.boards.virtual.emulator.layout import default_jetpack

WATTUNE = [sys.executable, "-m", "wattune.cli"]
MODES = [
    "dir",
    pytest.param("fuse", marks=pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not()))),
]


def run(*arguments: str, cwd: Path | None = None, shell: str = "") -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", shell, *WATTUNE, *arguments] if shell else [*WATTUNE, *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=60, check=False)


@contextmanager
def emulated(folder: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*WATTUNE, "emulate", str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        assert lines[1].startswith("ready:"), (lines, process.stderr and process.stderr.read())
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait(timeout=20)


def status(folder: Path) -> dict:
    return json.loads((folder / "emulator/status.json").read_text())


def no_traceback(text: str) -> None:
    assert "Traceback" not in text


@pytest.mark.parametrize("mode", MODES)
def test_it_trains_without_end_and_says_that_it_is_simulated(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "board"
    with emulated(folder, "--mode", mode, "--workload", "Pythia-70M-RTE"):
        first = status(folder)
        time.sleep(0.5)
        second = status(folder)
        assert first["provenance"] == "simulated"
        assert first["workload"] == "pythia-70m-rte"
        assert second["steps"] > first["steps"]
        for rails in ("gpu_cpu", "module"):
            assert second["true_energy_j"][rails] > first["true_energy_j"][rails] > 0
        assert second["true_energy_j"]["module"] == pytest.approx(
            sum(second["true_energy_j"][r] for r in ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"))
        )
    assert not folder.exists()


@pytest.mark.parametrize("mode", MODES)
def test_a_supervisor_that_was_killed_changes_nothing_at_the_end(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "board"
    with emulated(folder, "--mode", mode) as process:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        supervisors = [
            pid for pid in children if b"supervisor.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(supervisors) == 1
        os.kill(int(supervisors[0]), signal.SIGKILL)
        time.sleep(0.2)
        process.terminate()
        assert process.wait(timeout=20) == 0
    assert not folder.exists()


def test_a_plain_folder_that_is_emptied_under_it_leaves_nothing_behind(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    with emulated(folder, "--mode", "dir") as process:
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        time.sleep(0.5)
        process.terminate()
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "not made here" not in err
    assert not folder.exists()


def test_a_long_command_is_not_echoed_whole_and_the_next_good_one_clears_the_error(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    with emulated(folder, "--mode", "dir") as process:
        (folder / "emulator/control").write_text("x" * 100_000 + "\n")
        time.sleep(0.4)
        assert len(status(folder)["last_error"]) < 500
        (folder / "emulator/control").write_text("fault hang load\n")
        time.sleep(0.4)
        assert "cannot hang" in status(folder)["last_error"]
        (folder / "emulator/control").write_text("workload idle\n")
        time.sleep(0.4)
        assert status(folder)["last_error"] is None
        process.terminate()
        _, err = process.communicate(timeout=20)
        assert len(err) < 3000


def test_a_working_directory_that_is_gone(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    done = run("emulate", "board", cwd=tmp_path, shell=f'cd {gone}; rmdir {gone}; exec "$0" "$@"')
    assert done.returncode in (2, 3)
    no_traceback(done.stderr)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is absent")
def test_an_answer_that_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    done = run("emulate", str(folder), "--mode", "dir", shell='exec "$0" "$@" >/dev/full')
    assert done.returncode == 3
    assert "could not be written" in done.stderr
    no_traceback(done.stderr)
    assert not folder.exists()


def test_another_boards_file_is_not_served_under_a_wrong_name(tmp_path: Path) -> None:
    done = run(
        "emulate", str(tmp_path / "b"), "--board", "jetson-agx-xavier", "--constants", str(DEFAULT_CONSTANTS)
    )
    assert done.returncode == 2
    assert "describes jetson-agx-orin-64gb" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--board", "jetson-tx9"), "One of jetson-agx-orin-64gb, jetson-agx-xavier was expected"),
        (("--jetpack", "4"), "One of 5, 6, 7.2 was expected"),
        (("--board", "jetson-agx-xavier", "--jetpack", "7.2"), "One of 5 was expected"),
        (("--power-mode", "MODE_99W"), "One of MAXN, MODE_15W, MODE_30W, MODE_50W was expected"),
        (("--workload", "nothing"), "<model>-<task> was expected"),
        (("--workload", "bert-base-nothing"), "nothing"),
        (("--fault", "flood"), "There is no fault 'flood'"),
        (("--constants", "none.json"), "none.json does not exist"),
    ],
)
def test_bad_arguments(tmp_path: Path, arguments: tuple[str, ...], says: str) -> None:
    folder = tmp_path / "board"
    done = run("emulate", str(folder), *arguments)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr
    no_traceback(done.stderr)
    assert not folder.exists()


@pytest.mark.parametrize(("change", "says"), [(None, "lacks the constant static_w"), (-1.0, "static_w")])
def test_a_board_file_with_a_missing_or_negative_constant(
    tmp_path: Path, change: float | None, says: str
) -> None:
    document = json.loads(DEFAULT_CONSTANTS.read_text())
    if change is None:
        del document["constants"]["static_w"]
    else:
        document["constants"]["static_w"]["value"] = change
    (tmp_path / "board.json").write_text(json.dumps(document))
    done = run("emulate", str(tmp_path / "b"), "--constants", str(tmp_path / "board.json"))
    assert done.returncode == 2
    assert says in done.stderr


def test_the_default_jetpack_is_one_the_board_has() -> None:
    assert (default_jetpack("tegra234"), default_jetpack("tegra194")) == ("6", "5")
