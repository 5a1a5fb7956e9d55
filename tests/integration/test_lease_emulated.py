"""The lease over a mounted emulated board: other processes, signals, kills, full disks, races; the hand tools."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kills
import others
from kills import Mounted
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.emulator import faults, fuse
from wattune.core.errors import BoardError
from wattune.governing import state
from wattune.governing.bounds import Bounds
from wattune.governing.lease import Lease

pytestmark = pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not()))

HOLD = """
with Lease(sysfs, node, 612):
    say("go")
    time.sleep(60)
"""
HAND = """
import argparse, logging
from wattune.core.errors import WattuneError
from wattune.governing import hand
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
parser = argparse.ArgumentParser()
which = sys.argv.pop(1)
{"pin": hand.add_pin_arguments, "restore": hand.add_restore_arguments}[which](parser)
try:
    sys.exit({"pin": hand.run_pin, "restore": hand.run_restore}[which](parser.parse_args(sys.argv[1:])))
except WattuneError as error:
    sys.stderr.write(f"wattune: {error}\\n")
    sys.exit(error.exit_code)
"""


@pytest.fixture(params=["6", "5"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Mounted]:
    with kills.mounted(tmp_path, jetpack=request.param) as board:
        yield board


@pytest.fixture
def board6(tmp_path: Path) -> Iterator[Mounted]:
    with kills.mounted(tmp_path) as board:
        yield board


def pinned(board: Mounted, mhz: float = 612) -> bool:
    return board.bounds == (mhz * 1e6, mhz * 1e6)


# --- in one process


def test_a_lease_pins_a_mounted_board_and_the_clock_follows(board: Mounted) -> None:
    with Lease(board.sysfs, board.node(), 612) as lease:
        assert pinned(board)
        assert lease.verify(load_seen=True)
        lease.move(918)
        assert board.machine.devfreq.cur_hz == 918_000_000
        assert lease.verify(load_seen=True)
        saved = json.loads(board.lease_file.read_text())
        assert saved["boot_id"] == board.machine.boot_id
        assert saved["pid"] == os.getpid()
    assert board.restored(0)
    receipt = lease.receipt()
    assert (receipt["verified"], receipt["restored"], receipt["found"]["max_mhz"]) == (True, True, 1300.5)


def test_never_above_the_cap_of_the_power_mode(tmp_path: Path) -> None:
    with kills.mounted(tmp_path, power_mode="MODE_30W") as board:
        with pytest.raises(BoardError, match="Take 612 MHz"):
            Lease(board.sysfs, board.node(), 714).__enter__()
        assert not board.lease_file.exists()
        with Lease(board.sysfs, board.node(), 306):
            assert pinned(board, 306)
        assert board.bounds == (306_000_000, 612_000_000)


@pytest.mark.parametrize("mode", ["MODE_30W", "MODE_15W", "MODE_50W"])
def test_a_power_mode_switched_meanwhile_stays(board6: Mounted, mode: str) -> None:
    """MODE_30W caps the clock at 612 MHz, which is the clock pinned here."""
    with Lease(board6.sysfs, board6.node(), 612) as lease:
        board6.machine.set_power_mode(mode)
        want = board6.bounds
        assert not lease.check()
    assert board6.bounds == want
    assert not board6.lease_file.exists()


def test_heat_caps_a_pin_and_the_pin_is_withdrawn(board: Mounted) -> None:
    with Lease(board.sysfs, board.node(), 918) as lease:
        faults.apply("thermal-cap 510000000", board.machine, board.tree)
        assert lease.check()
        assert lease.capped
    assert lease.outcome is not None
    assert lease.outcome.kind == "restored"
    faults.apply("clear", board.machine, board.tree)
    assert board.restored(0)


def test_b17_a_bound_that_hangs_costs_seconds_and_holds_no_lock(board6: Mounted) -> None:
    found = board6.node()
    faults.apply("hang min_freq", board6.machine, board6.tree)
    sysfs = Sysfs(board6.root, timeout_s=0.3)
    started = time.monotonic()
    with pytest.raises(BoardError, match="does not answer"):
        Lease(sysfs, found, 612).__enter__()
    assert time.monotonic() - started < 10
    faults.apply("clear", board6.machine, board6.tree)
    with Lease(sysfs, found, 612):
        assert pinned(board6)
    assert board6.restored(0)


# --- ends of the holder


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL, signal.SIGQUIT]
)
def test_a_signal_restores_and_ends_the_process_as_it_would_have(
    board6: Mounted, number: signal.Signals
) -> None:
    process = board6.run(HOLD)
    assert pinned(board6)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert board6.restored()
    # Python turns SIGINT into KeyboardInterrupt and then ends by that signal.
    assert process.returncode == -number, said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_whole_group_restores(board6: Mounted, number: signal.Signals) -> None:
    process = board6.run(HOLD, start_new_session=True)
    os.killpg(process.pid, number)
    process.communicate(timeout=20)
    assert board6.restored()


def test_a_second_ctrl_c_does_not_skip_the_restore(board6: Mounted) -> None:
    process = board6.run(HOLD)
    for _ in range(20):
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
        time.sleep(0.002)
    process.communicate(timeout=20)
    assert process.returncode == -signal.SIGINT
    assert board6.restored(0.5)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("sys.exit(7)", 7), ("raise KeyError(1)", 1), ("os._exit(3)", 3), ("os.abort()", -signal.SIGABRT),
        ("os.execv('/bin/true', ['true'])", 0),
        ("threading.Thread(target=lambda: os.kill(os.getpid(), signal.SIGTERM)).start(); time.sleep(60)", -15),
    ],
)  # fmt: skip
def test_every_other_end_restores(board6: Mounted, end: str, code: int) -> None:
    process = board6.run(
        f"with Lease(sysfs, node, 612):\n    say('go'); sys.stdin.read()\n    {end}\n", stdin=subprocess.PIPE
    )
    assert pinned(board6)
    process.communicate("", timeout=20)
    assert process.returncode == code
    assert board6.restored()


def test_the_end_of_the_interpreter_restores_without_a_with(board6: Mounted) -> None:
    process = board6.run(
        "lease = Lease(sysfs, node, 612).__enter__()\nsay('go'); sys.stdin.read()\n", stdin=subprocess.PIPE
    )
    assert pinned(board6)
    process.communicate("", timeout=20)
    assert process.returncode == 0
    assert board6.restored(0)


def test_handlers_of_before_are_honoured_after_and_reinstated(board6: Mounted) -> None:
    process = board6.run(
        """
bounds = lambda: sysfs.read(node.path + "/max_freq")
signal.signal(signal.SIGTERM, lambda *_: say("mine " + bounds()))
with Lease(sysfs, node, 408) as lease:
    say("go")
    while not lease.ended:
        time.sleep(0.01)
    assert not lease.check()
    say(lease.ended)
os.kill(os.getpid(), signal.SIGTERM)
"""
    )
    process.send_signal(signal.SIGTERM)
    said, wrong = process.communicate(timeout=20)
    assert said.splitlines() == ["mine 1300500000", "SIGTERM came", "mine 1300500000"], wrong
    assert process.returncode == 0


def test_nohup_is_respected(board6: Mounted) -> None:
    process = board6.run(f"signal.signal(signal.SIGHUP, signal.SIG_IGN){HOLD}")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert pinned(board6)
    process.kill()
    process.communicate(timeout=20)
    assert board6.restored()


@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.CDLL(None).fork()"])
def test_forked_children_that_live_on_do_not_hold_up_the_watchdog(board6: Mounted, fork: str) -> None:
    """A fork that a library makes behind Python's back keeps pipe and locks open: the watchdog sees the holder's end all the same."""
    process = board6.run(
        f"""
import ctypes
with Lease(sysfs, node, 612):
    child = {fork}
    if not child:
        for handle in (0, 1, 2):
            os.close(handle)
        time.sleep(60)
        os._exit(0)
    say("go")
    say(str(child))
    time.sleep(60)
"""
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        process.kill()
        process.communicate(timeout=20)
        assert board6.restored()
        with Lease(board6.sysfs, board6.node(), 408):
            assert pinned(board6, 408)
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_is_terminated_leaves_its_parents_clock(board6: Mounted) -> None:
    process = board6.run(
        """
import multiprocessing
def work(queue):
    queue.put(1)
    time.sleep(60)
context = multiprocessing.get_context("fork")
with Lease(sysfs, node, 612) as lease:
    queue = context.Queue()
    workers = [context.Process(target=work, args=(queue,)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        queue.get()
    for worker in workers:
        worker.terminate()
    for worker in workers:
        worker.join()
    say("go")
    say(" ".join(str(worker.exitcode) for worker in workers) + f" {lease.check()}")
    sys.stdin.read()
""",
        stdin=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "-15 -15 -15 True\n"
    assert pinned(board6)
    process.communicate("", timeout=20)
    assert board6.restored(0)


# --- kills at every point


def test_a_kill_before_every_single_access_leaves_the_clocks_restored(board6: Mounted) -> None:
    for nth in range(1000):
        process = board6.start([sys.executable, kills.__file__, str(board6.root), "die", str(nth)])
        said, wrong = process.communicate(timeout=30)
        assert board6.restored(), (nth, board6.bounds, wrong)
        if process.returncode == 0:
            assert said.startswith("lived")
            break
        assert process.returncode == -signal.SIGKILL, wrong
    assert nth > 30


def test_twenty_kills_at_random_leave_the_clocks_restored(board: Mounted) -> None:
    rng = random.Random(4)
    seen = {kills.kill_at_random(board, rng) for _ in range(10)}
    for _ in range(20):  # on a slow machine most come before the first pin
        if len(seen) > 1:
            break
        seen.add(kills.kill_at_random(board, rng))
    assert len(seen) > 1  # they met it pinned


def test_a_pin_left_by_a_kill_of_holder_and_watchdog_is_found_and_undone(board6: Mounted) -> None:
    process = board6.run(
        "with Lease(sysfs, node, 612) as lease:\n    say('go'); say(str(lease._watchdog.pid)); time.sleep(60)\n"
    )
    assert process.stdout is not None
    watchdog = int(process.stdout.readline())
    os.kill(watchdog, signal.SIGKILL)
    process.kill()
    process.communicate(timeout=20)
    time.sleep(0.1)
    assert pinned(board6)
    (found,) = state.stale(board6.sysfs)
    assert "612 MHz" in str(found)
    with Lease(board6.sysfs, board6.node(), 408) as lease:
        assert lease.saved == board6.found
    assert board6.restored(0)


# --- two at once


def test_of_processes_that_race_for_the_lease_one_gets_it_and_the_others_say_who(board6: Mounted) -> None:
    script = """
from wattune.core.errors import BoardError
say("go"); sys.stdin.read()
try:
    with Lease(sysfs, node, float(sys.argv[2])) as lease:
        say("held"); time.sleep(1.0); assert lease.check()
except BoardError as error:
    assert "already held by" in str(error), error
    say("refused")
"""
    for _ in range(3):
        command = [sys.executable, "-c", kills.PRELUDE + script, str(board6.root)]
        racers = [board6.start([*command, mhz], stdin=subprocess.PIPE) for mhz in ("612", "918", "408")]
        for racer in racers:
            assert racer.stdin is not None
            racer.stdin.close()
            racer.stdin = None
        said = sorted(racer.communicate(timeout=30) for racer in racers)
        assert [out for out, _ in said] == ["held\n", "refused\n", "refused\n"], said
        assert board6.restored(0)


# --- disks


def test_a_file_size_limit_refuses_to_pin(board6: Mounted) -> None:
    process = board6.run(
        """
import resource
from wattune.core.errors import BoardError
say("go")
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    Lease(sysfs, node, 612).__enter__()
except BoardError as error:
    sys.stderr.write(str(error))
    os._exit(error.exit_code)
"""
    )
    _, said = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "not pinned" in said
    assert "size limit" in said
    assert board6.restored(0)
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 10


@pytest.fixture
def tiny_disk(board6: Mounted) -> Iterator[Path]:
    """A full file system as the board's run folder."""
    folder = board6.root / "run"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "none", folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a tmpfs cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_full_disk_refuses_to_pin_and_one_that_fills_up_still_restores(
    board6: Mounted, tiny_disk: Path
) -> None:
    def fill() -> None:
        with contextlib.suppress(OSError), (tiny_disk / "full").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 512)

    (tiny_disk / "wattune").mkdir()
    fill()
    with pytest.raises(BoardError, match="disk is full"):
        Lease(board6.sysfs, board6.node(), 612).__enter__()
    assert board6.restored(0)
    (tiny_disk / "full").unlink()
    with Lease(board6.sysfs, board6.node(), 612) as lease:
        fill()
        with pytest.raises(BoardError, match="disk is full"):
            lease.move(408)
        assert pinned(board6)
    assert board6.restored(0)


# --- by hand


def hand(root: Path, *args: str, **kwargs: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "import sys\n" + HAND, *args, "--root", str(root)],
        env={**os.environ, "PYTHONPATH": str(kills.SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **kwargs,
    )


@pytest.fixture
def whole(tmp_path: Path) -> Iterator[tuple[Path, Any]]:
    """A whole emulated tree, mounted: nobody can make a run folder in it."""
    from trees import emulated_machine

    machine, tree = emulated_machine()
    root = tmp_path / "m"
    root.mkdir()
    mount = fuse.Mount(tree, root, machine.lock)
    try:
        yield root, machine
    finally:
        mount.close()
        shutil.rmtree(state.folders(Sysfs(root))[-1], ignore_errors=True)


def test_pin_holds_until_ctrl_c(whole: tuple[Path, Any]) -> None:
    root, machine = whole
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + HAND, "pin", "612", "--json", "--root", str(root)],
        env={**os.environ, "PYTHONPATH": str(kills.SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline()]
    while lines[-1] != "}\n":
        assert lines[-1], process.communicate()
        lines.append(process.stdout.readline())
    document = json.loads("".join(lines))
    assert document["found"] == {"min_mhz": 306.0, "max_mhz": 1300.5, "governor": "nvhost_podgov"}
    assert document["read"] == {"min_mhz": 612.0, "max_mhz": 612.0}
    assert (document["set_mhz"], document["verified"], document["detached"]) == (612.0, False, False)
    assert machine.devfreq.bounds_hz() == (612_000_000, 612_000_000)
    refused = hand(root, "pin", "408")
    assert refused.returncode == 3
    assert f"process {process.pid}" in refused.stderr
    refused = hand(root, "restore")
    assert (refused.returncode, refused.stdout) == (3, "")
    process.send_signal(signal.SIGINT)
    rest, said = process.communicate(timeout=20)
    assert (process.returncode, rest) == (0, ""), said
    assert "again what they were" in said
    assert machine.devfreq.bounds_hz() == (306_000_000, 1_300_500_000)


def test_a_detached_pin_stands_until_restored(whole: tuple[Path, Any]) -> None:
    root, machine = whole
    done = hand(root, "pin", "1301", "--detach")
    assert done.returncode == 0, done.stderr
    assert "set       1300.5 MHz" in done.stdout
    done = hand(root, "pin", "408")
    assert done.returncode == 3
    assert "wattune restore" in done.stderr
    assert machine.devfreq.bounds_hz() == (1_300_500_000, 1_300_500_000)
    done = hand(root, "restore", "--json")
    (entry,) = json.loads(done.stdout)["leases"]
    assert (entry["outcome"], entry["removed"], entry["now"]["min_mhz"]) == ("restored", True, 306.0)
    assert machine.devfreq.bounds_hz() == (306_000_000, 1_300_500_000)
    done = hand(root, "restore")
    assert (done.returncode, done.stdout) == (0, "Nothing to restore: no clock was left pinned.\n")


def test_restore_after_somebody_else_asks_for_force(whole: tuple[Path, Any]) -> None:
    root, machine = whole
    assert hand(root, "pin", "612", "--detach").returncode == 0
    machine.set_power_mode("MODE_15W")
    want = machine.devfreq.bounds_hz()
    done = hand(root, "restore")
    assert done.returncode == 3
    assert "--force" in done.stderr
    assert machine.devfreq.bounds_hz() == want
    assert hand(root, "restore", "--forget").returncode == 0
    assert machine.devfreq.bounds_hz() == want
    assert hand(root, "restore").returncode == 0


@pytest.fixture
def open_board() -> Iterator[Mounted]:
    """One that other users may look at."""
    with others.open_folder() as folder, kills.mounted(folder) as board:
        yield board


def test_who_may_not_write_is_told_so_and_nothing_is_left(open_board: Mounted) -> None:
    if os.geteuid():
        pytest.skip("about root")
    process = open_board.run(
        """
from wattune.core.errors import BoardError
say("go")
os.setuid(65534)
try:
    Lease(sysfs, node, 612).__enter__()
except BoardError as error:
    sys.stderr.write(str(error))
    sys.exit(error.exit_code)
"""
    )
    _, said = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "may not be written by you (user 65534, who is not root)" in said
    assert list((open_board.root / "run").iterdir()) == []
    assert open_board.restored(0)


@pytest.mark.parametrize(
    ("mhz", "code", "words"),
    [("fast", 2, "number of MHz"), ("660", 2, "612 and 714"), ("-5", 2, ""), ("0", 2, "number of MHz")],
)
def test_a_clock_that_is_none_is_bad_input(whole: tuple[Path, Any], mhz: str, code: int, words: str) -> None:
    done = hand(whole[0], "pin", mhz)
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_pin_verifies_the_clock_once_load_is_seen(whole: tuple[Path, Any]) -> None:
    from wattune.workloads.build import build_named

    root, machine = whole
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + HAND, "pin", "612", "--root", str(root)],
        env={**os.environ, "PYTHONPATH": str(kills.SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    while "Held" not in process.stdout.readline():
        pass
    machine.set_workload(build_named("bert-base-sst2"))
    assert "Verified: 612 MHz: it read 612 MHz at a load of" in process.stderr.readline()
    process.terminate()
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert machine.devfreq.bounds_hz() == (306_000_000, 1_300_500_000)


def test_pin_says_when_somebody_else_takes_over(whole: tuple[Path, Any]) -> None:
    root, machine = whole
    process = subprocess.Popen(
        [sys.executable, "-c", "import sys\n" + HAND, "pin", "612", "--root", str(root)],
        env={**os.environ, "PYTHONPATH": str(kills.SOURCE)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "Held" not in process.stdout.readline():
        pass
    machine.set_power_mode("MODE_15W")
    want = machine.devfreq.bounds_hz()
    _, said = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "Somebody else" in said
    assert machine.devfreq.bounds_hz() == want
    seen, end = said.splitlines()  # once when it is seen, once at the end with what to do, and no more
    assert f"they read {Bounds(*want)}" in seen
    assert "The pin at 612 MHz ended early; the bounds are left as they are now." in end
    assert "echo 1300500000 | sudo tee" in end


def test_a_receipt_says_a_foreign_change_once_more(board6: Mounted, caplog: pytest.LogCaptureFixture) -> None:
    with Lease(board6.sysfs, board6.node(), 612) as lease:
        board6.machine.set_power_mode("MODE_15W")
        assert not lease.check()
        assert not lease.check()
    assert [record.levelname for record in caplog.records].count("WARNING") == 1
    receipt = lease.receipt()
    assert "Somebody else changed the bounds" in receipt["lost"]
    assert receipt["outcome"] == "left"
    assert "echo 1300500000" in lease.taken().hint


def test_a_foreign_change_that_only_the_end_sees_is_said_there(
    board6: Mounted, caplog: pytest.LogCaptureFixture
) -> None:
    with Lease(board6.sysfs, board6.node(), 612) as lease:
        board6.machine.set_power_mode("MODE_15W")
    (record,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "somebody else changed them" in record.message
    assert lease.lost


def test_without_a_gpu_there_is_nothing_to_pin(tmp_path: Path) -> None:
    (tmp_path / "sys/class/devfreq").mkdir(parents=True)
    done = hand(tmp_path, "pin", "612")
    assert done.returncode == 3
    assert "no GPU clock to pin" in done.stderr
    assert not (tmp_path / "run").exists()
