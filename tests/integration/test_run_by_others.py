"""Running as a user who may not write the clock: refused without the daemon, pinned through it with it, restored whatever happens."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import others
from live_boards import Served, served
from wattune.boards.virtual.emulator import fuse

pytestmark = [
    pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not())),
    pytest.mark.skipif(others.python() is None, reason="no Python that a user other than root may run"),
    pytest.mark.long,
]

TESTS = Path(__file__).parent.parent
LOOP = """
import sys, time
import wattune
with wattune.govern(mhz=510) as run:
    print("training", flush=True)
    until = time.monotonic() + float(sys.argv[1])
    while time.monotonic() < until:
        time.sleep(0.05)
        run.step()
"""


@pytest.fixture(scope="module")
def board() -> Iterator[Served]:
    with others.open_folder() as folder, served(folder / "board", workload="bert-small-wnli") as one:
        yield one


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory that is theirs too."""
    with others.open_folder() as folder:
        monkeypatch.chdir(folder)
        yield folder
        monkeypatch.undo()


@pytest.fixture
def daemon(board: Served) -> Iterator[str]:
    """Its socket; the daemon runs as root."""
    words = ["-m", "wattune", "clockd", "--root", str(board.root), "--group", "daemon"]
    one = subprocess.Popen(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": str(others.SOURCE)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert one.stdout is not None
    first = one.stdout.readline()
    assert first.startswith("listening at "), one.communicate(timeout=20)
    yield first.removeprefix("listening at ").strip()
    assert board.restored()
    one.send_signal(signal.SIGTERM)
    _, said = one.communicate(timeout=20)
    assert "Traceback" not in said


def start(board: Served, *words: str, member: bool = True, packages: bool = False) -> subprocess.Popen[str]:
    python = others.python()
    assert python is not None
    return subprocess.Popen(
        [python, *words],
        env=others.environment(packages=packages, WATTUNE_ROOT=str(board.root)),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        **others.as_nobody(*([others.MEMBER_GID] if member else [])),
    )  # fmt: skip


# --- without permission


@pytest.mark.parametrize("how", [["--mhz", "612"], ["--probe"]])
def test_it_is_refused_before_the_command_starts(board: Served, place: Path, how: list[str]) -> None:
    one = start(board, "-m", "wattune", "run", *how, "--", "touch", "ran", member=False)
    out, said = one.communicate(timeout=60)
    assert (one.returncode, out, (place / "ran").exists()) == (3, "", False), said
    assert "min_freq may not be written by you, and no clock daemon listens at" in said
    assert "sudo wattune clockd" in said
    assert "Traceback" not in said
    assert board.bounds == board.found


def test_with_best_effort_it_runs_ungoverned_and_says_so(board: Served, place: Path) -> None:
    words = ["-m", "wattune", "run", "--mhz", "612", "--best-effort", "--json", "r.json"]
    inner = ["--", "sh", "-c", f"cat {board.root}/{board.tree.node}/min_freq; sleep 3; exit 5"]
    one = start(board, *words, *inner, member=False)
    out, said = one.communicate(timeout=60)
    assert (one.returncode, out) == (5, "306000000\n"), said
    assert said.count("The command runs with the clocks left alone (--best-effort).") == 1
    receipt = json.loads((place / "r.json").read_text())
    assert (receipt["setting"], receipt["pins"], receipt["by"]) == ("maxn", [], "none")
    assert any("may not be written by you" in note for note in receipt["notes"])
    assert receipt["energy_j"]["gpu_cpu"] > 0  # reading needs no permission


def test_a_loop_is_refused_too_unless_best_effort(board: Served, place: Path) -> None:
    one = start(board, "-c", LOOP, "1", member=False)
    out, said = one.communicate(timeout=60)
    assert (one.returncode, out) == (1, "")
    assert "may not be written by you" in said.splitlines()[-1]
    one = start(board, "-c", LOOP.replace("mhz=510", "mhz=510, best_effort=True"), "1", member=False)
    out, said = one.communicate(timeout=60)
    assert (one.returncode, out) == (0, "training\n"), said
    assert "The clocks are left alone (best_effort)" in said


def test_who_is_in_no_group_is_told_how_to_join(board: Served, place: Path, daemon: str) -> None:
    one = start(board, "-m", "wattune", "run", "--mhz", "612", "--", "touch", "ran", member=False)
    _, said = one.communicate(timeout=60)
    assert (one.returncode, (place / "ran").exists()) == (3, False), said
    assert "You may not use the clock daemon" in said
    assert "usermod -aG wattune" in said


# --- through the daemon


def test_a_run_is_pinned_through_the_daemon_and_restored(board: Served, place: Path, daemon: str) -> None:
    node = f"{board.root}/{board.tree.node}"
    words = ["-m", "wattune", "run", "--mhz", "612", "--json", "r.json"]
    inner = ["--", "sh", "-c", f"cat {node}/min_freq {node}/max_freq; sleep 2; exit 6"]
    one = start(board, *words, *inner)
    out, said = one.communicate(timeout=60)
    assert (one.returncode, out.split()) == (6, ["612000000", "612000000"]), said
    assert board.restored(0)
    receipt = json.loads((place / "r.json").read_text())
    assert receipt["restored"] is True
    assert [(pin["set_mhz"], pin["through"], pin["verified"]) for pin in receipt["pins"]] == [
        (612.0, daemon, True)
    ]


@pytest.mark.slow
def test_a_probe_moves_the_clock_through_the_daemon(board: Served, place: Path, daemon: str) -> None:
    follow = [str(others.python()), str(TESTS / "follow.py"), str(board.root), "600"]
    words = ["-m", "wattune", "run", "--probe", "--probe-window", "0.2", "--json", "r.json", "--", *follow]
    one = start(board, *words)
    _, said = one.communicate(timeout=240)
    assert one.returncode == 0, said
    receipt = json.loads((place / "r.json").read_text())
    assert receipt["probe"]["gave_up"] is None, receipt["notes"]
    assert len(receipt["probe"]["measured"]) >= 2
    assert {pin["through"] for pin in receipt["pins"]} == {daemon}
    assert receipt["restored"] is True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("what", ["run", "loop"])
def test_killed_in_the_middle_the_daemon_restores(
    board: Served, place: Path, daemon: str, number: signal.Signals, what: str
) -> None:
    words = ["-c", LOOP, "60"]
    if what == "run":
        words = ["-m", "wattune", "run", "--mhz", "510", "--", "bash", "-c", "echo training; exec sleep 60"]
    one = start(board, *words)
    assert one.stdout is not None
    assert one.stdout.readline() == "training\n"
    assert board.pinned(510)
    one.send_signal(number)
    try:
        one.wait(30)
        assert board.restored()
        assert one.returncode in (-number, 128 + number)
    finally:
        os.killpg(one.pid, signal.SIGKILL) if number == signal.SIGKILL and what == "run" else None
        one.communicate(timeout=30)


@pytest.mark.skipif(
    not all(importlib.util.find_spec(name) for name in ("torch", "transformers", "accelerate")),
    reason="torch, transformers and accelerate are not installed (extra `train`)",
)
@pytest.mark.parametrize("number", [None, signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_is_pinned_through_the_daemon_and_restored(
    board: Served, place: Path, daemon: str, number: signal.Signals | None
) -> None:
    steps = 12 if number is None else 4000
    words = [
        str(TESTS / "tiny_trainer.py"),
        str(place / "r.json"),
        "mhz=510",
        f"max_steps={steps}",
        "pause=0.1",
    ]
    one = start(board, *words, packages=True)
    assert one.stdout is not None
    first = one.stdout.readline()
    if not first and "No module named" in (said := one.communicate(timeout=60)[1]):
        pytest.skip(said.splitlines()[-1])
    assert first == "training\n", one.communicate(timeout=60)
    assert board.pinned(510)
    if number is not None:
        one.send_signal(number)
    _, said = one.communicate(timeout=120)
    assert board.restored()
    if number is not None:
        assert one.returncode not in (0, None)
        return
    assert one.returncode == 0, said
    receipt = json.loads((place / "r.json").read_text())["receipt"]
    assert ([pin["through"] for pin in receipt["pins"]], receipt["restored"]) == ([daemon], True)
