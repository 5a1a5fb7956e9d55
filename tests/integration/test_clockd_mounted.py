"""The clock daemon and its clients on a mounted tree, as `wattune emulate` makes it: no socket can lie in there."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import others
from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.emulator import fuse
from wattune.governing import client, clockd, state

pytestmark = [
    pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not())),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become others"),
]

SRC = Path(__file__).parents[2] / "src"
ENV = {**os.environ, "PYTHONPATH": str(SRC)}
NOBODY = 65534
MEMBER_GID = 1
AS_NOBODY = f"""
import os, sys, time
from pathlib import Path
from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import WattuneError
from wattune.governing import client, clockd, damaged, hand, state
sysfs = Sysfs(Path(sys.argv[1]))
node = discover(sysfs).gpu
os.setgroups([]); os.setgid(int(sys.argv[2])); os.setuid({NOBODY})
try:
    exec(sys.argv[3])
except WattuneError as error:
    print(error, file=sys.stderr)
    sys.exit(error.exit_code)
"""


@contextlib.contextmanager
def running(*words: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "wattune", *words],
        env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)


@pytest.fixture(scope="module")
def tree() -> Iterator[Path]:
    """A mounted board that trains."""
    with others.open_folder() as folder:
        root = folder / "board"
        with running("emulate", str(root), "--mode", "fuse") as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "mode: fuse\n"
            assert process.stdout.readline().startswith("ready:")
            yield root
        shutil.rmtree(state.folders(Sysfs(root))[-1], ignore_errors=True)


@pytest.fixture
def daemon(tree: Path) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    with running("clockd", "--root", str(tree), "--group", "daemon") as process:
        assert process.stdout is not None
        first = process.stdout.readline().strip()
        assert first.startswith("listening at "), process.communicate(timeout=10)
        yield process, Path(first.removeprefix("listening at "))


def nobody(tree: Path, script: str, gid: int = MEMBER_GID) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", AS_NOBODY, str(tree), str(gid), script],
        env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def bounds(tree: Path) -> list[int]:
    status = json.loads((tree / "emulator/status.json").read_text())
    return list(status["bounds_hz"])


FREE = [306000000, 1300500000]
HELD = [612000000, 612000000]
HOLD = """
lease = client.open_lease(sysfs, node, 612)
with lease:
    print("held", type(lease).__name__, flush=True)
    while True:
        time.sleep(0.1)
        if not lease.check() and lease.lost:
            raise lease.taken()
"""


def test_both_sides_find_one_place_that_the_trees_path_determines(
    tree: Path, daemon: tuple[subprocess.Popen[str], Path]
) -> None:
    _, path = daemon
    assert path.is_socket()
    assert not path.is_relative_to(tree)
    assert client.find_daemon(Sysfs(tree)) == path
    assert path.parent in state.folders(Sysfs(tree))
    assert not [p for p in path.parent.iterdir() if p.name.startswith(".")]  # the trial is gone


def test_a_member_pins_through_it_and_its_end_restores(
    tree: Path, daemon: tuple[subprocess.Popen[str], Path]
) -> None:
    process = nobody(tree, HOLD)
    assert process.stdout is not None
    assert process.stdout.readline() == "held ClockdLease\n", process.communicate(timeout=10)
    assert bounds(tree) == HELD
    process.kill()
    process.communicate(timeout=10)
    _wait_until_free(tree)


def test_who_may_not_is_told_who_holds_it_and_that_the_daemon_gives_it_back(
    tree: Path, daemon: tuple[subprocess.Popen[str], Path]
) -> None:
    holder = nobody(tree, HOLD)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held ClockdLease\n"
    stranger = nobody(tree, "state.restore_stale(sysfs)", gid=NOBODY)
    _, said = stranger.communicate(timeout=20)
    root = subprocess.run(
        [sys.executable, "-m", "wattune", "restore", "--root", str(tree)],
        env=ENV, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    still = holder.poll()
    for code, text in ((stranger.returncode, said), (root.returncode, root.stderr)):
        assert (code, still) == (3, None), (text, holder.communicate(timeout=30))
        assert f"held by the clock daemon (process {daemon[0].pid})" in text
        assert "Let its client end" in text
        assert "cli.py" not in text
    assert bounds(tree) == HELD
    holder.kill()
    holder.communicate(timeout=10)
    _wait_until_free(tree)


def test_a_daemon_that_is_stopped_is_what_its_client_is_told_to_start_again(
    tree: Path, daemon: tuple[subprocess.Popen[str], Path]
) -> None:
    process = nobody(tree, HOLD)
    assert process.stdout is not None
    assert process.stdout.readline() == "held ClockdLease\n"
    daemon[0].send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 3
    assert "The clock daemon has ended" in said
    assert "systemctl restart wattune-clockd.socket" in said
    assert "jetson_clocks" not in said
    assert bounds(tree) == FREE


def test_a_place_where_no_socket_can_be_made_is_passed_over(tree: Path, tmp_path: Path) -> None:
    """In a plain tree the run folder does, and is the first that clients look at."""
    (tmp_path / "sys").mkdir()
    (tmp_path / "run").mkdir()
    assert clockd.place_to_listen(Sysfs(tmp_path)) == tmp_path / "run/wattune/clockd.sock"
    place = clockd.place_to_listen(Sysfs(tree))
    assert place == client.socket_places(Sysfs(tree))[1]
    assert discover(Sysfs(tree)).gpu is not None


def _wait_until_free(tree: Path) -> None:
    deadline = time.monotonic() + 10
    while bounds(tree) != FREE:
        assert time.monotonic() < deadline
        time.sleep(0.05)
