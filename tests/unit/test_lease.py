"""The lease against the devfreq rules of every kernel, in memory: what is written, when, and what is put back."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattune.boards.jetson.findings import GpuNode
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.emulator.devfreq import Devfreq
from wattune.core.errors import BoardError, InputError, IntegrityError
from wattune.governing import state
from wattune.governing.bounds import Bounds, own_pairs, put_back
from wattune.governing.lease import Lease, match_clock

KERNELS = ("4.9", "5.10", "5.15", "6.8")
ORIN_MHZ = (306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224, 1300.5)
TABLE = tuple(round(mhz * 1e6) for mhz in ORIN_MHZ)
TOP = TABLE[-1]
NODE = "sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu"
COOLER = "sys/class/thermal/cooling_device0/cur_state"


class Board(Sysfs):
    """A node's files in memory, with a log of what was written; a hook may fail or meddle."""

    def __init__(self, root: Path, kernel: str = "5.15", low: int = TABLE[0], high: int = TOP) -> None:
        super().__init__(root)
        self.devfreq = Devfreq(TABLE, kernel=kernel, cap_hz=TOP)
        self.devfreq.apply_power_mode(high, low)
        self.boot, self.cooling = "boot-1", 0
        self.written: list[tuple[str, int]] = []
        self.highest = 0
        self.before: Callable[[str, str], None] = lambda operation, name: None

    def read(self, relative: str) -> str:
        name = relative.rsplit("/", 1)[-1]
        self.before("read", name)
        if name == "boot_id":
            return self.boot
        if name == "cur_state":
            return str(self.cooling)
        if name == "cur_freq":
            return str(self.devfreq.cur_hz)
        if not relative.startswith(NODE):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", relative)
        return {"min_freq": self.devfreq.read_min, "max_freq": self.devfreq.read_max}[name]().strip()

    def write(self, relative: str, text: str) -> None:
        folder, name = relative.rsplit("/", 1)
        assert folder == NODE
        self.before("write", name)
        {"min_freq": self.devfreq.write_min, "max_freq": self.devfreq.write_max}[name](f"{text}\n")
        self.written.append((name, int(text)))
        self.highest = max(self.highest, self.devfreq.bounds_hz()[1])

    @property
    def bounds(self) -> Bounds:
        return Bounds(int(self.devfreq.read_min()), int(self.devfreq.read_max()))

    def node(self, read_only: str = "") -> GpuNode:
        low, high = self.bounds
        return GpuNode(NODE, None, TABLE, low, high, TABLE[0], "nvhost_podgov", read_only)

    def lease(self, clock: float, **kwargs: object) -> Lease:
        return Lease(self, self.node(), clock, watchdog=False, **{"cooling": {"gpu": COOLER}, **kwargs})  # type: ignore[arg-type]

    @property
    def file(self) -> Path:
        return self.root / "run/wattune/lease-17000000.gpu.json"


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


# --- what is set and put back


indexes = st.integers(0, len(TABLE) - 1)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150)
@given(
    st.sampled_from(KERNELS),
    st.tuples(indexes, indexes).map(sorted),
    indexes,
    st.lists(indexes, max_size=5),
    st.booleans(),
)
def test_any_pin_and_moves_end_in_the_bounds_found_and_never_pass_the_cap(
    tmp_path_factory, kernel, span, first, moves, fails
):
    board = Board(tmp_path_factory.mktemp("r"), kernel, TABLE[span[0]], TABLE[span[1]])
    found, cap = board.bounds, TABLE[span[1]]
    clocks = [TABLE[i] for i in (first, *moves)]
    if clocks[0] > cap:
        with pytest.raises(BoardError, match="above the upper bound"):
            board.lease(clocks[0]).__enter__()
        assert board.written == []
        return
    with contextlib.suppress(KeyError), board.lease(clocks[0]) as lease:
        for hz in clocks[1:]:
            if hz > cap:
                with pytest.raises(BoardError, match="above the upper bound"):
                    lease.move(hz)
            else:
                lease.move(hz)
                assert board.bounds == (hz, hz)
        assert board.bounds == (lease.hz, lease.hz)
        assert json.loads(board.file.read_text())["saved_max_hz"] == found.max_hz
        if fails:
            raise KeyError
    assert board.bounds == found
    assert board.highest <= cap
    assert not board.file.exists()


@settings(deadline=None, max_examples=300)
@given(
    st.sampled_from(KERNELS),
    st.tuples(indexes, indexes).map(sorted),
    indexes,
    indexes,
    st.integers(0, 30),
    st.sampled_from(["start", "move", "end"]),
)
def test_a_write_cut_short_anywhere_is_still_known_as_ours(tmp_path_factory, kernel, span, a, b, cut, when):
    """Kill the holder before any of its accesses: what stands in the lease file is enough to restore."""

    class Killed(BaseException):
        pass

    board = Board(tmp_path_factory.mktemp("r"), kernel, TABLE[span[0]], TABLE[span[1]])
    found = board.bounds
    a, b = min(a, span[1]), min(b, span[1])
    left = [cut]

    def before(operation: str, name: str) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Killed

    lease = board.lease(TABLE[a])
    try:
        if when == "start":
            board.before = before
        lease.__enter__()
        if when == "move":
            board.before = before
        lease.move(TABLE[b])
        if when == "end":
            board.before = before
        lease.__exit__(None, None, None)
    except (Killed, BoardError):
        pass
    # What a killed process leaves: its lock is free, its signals and its lease object are gone.
    board.before = lambda operation, name: None
    lease._locks.release()
    lease.ended = lease.ended or "killed"
    lease._let_go()
    state.restore_stale(board)
    assert board.bounds == found
    assert not board.file.exists()


@pytest.mark.parametrize("kernel", KERNELS)
def test_b20_the_order_of_the_writes_is_right_for_raising_and_lowering(tmp_path: Path, kernel: str) -> None:
    board = Board(tmp_path, kernel, TABLE[3], TABLE[8])
    with board.lease(TABLE[8]) as lease:
        assert board.written == [("max_freq", TABLE[8]), ("min_freq", TABLE[8])]
        board.written.clear()
        lease.move(TABLE[0])
        assert board.written == [("min_freq", TABLE[0]), ("max_freq", TABLE[0])]
        board.written.clear()
        lease.move(TABLE[5])
        assert board.written == [("max_freq", TABLE[5]), ("min_freq", TABLE[5])]
        board.written.clear()
    assert board.written == [("max_freq", TABLE[8]), ("min_freq", TABLE[3])]


def test_an_unlimited_maximum_of_kernel_4_9_is_restored_as_found(tmp_path: Path) -> None:
    board = Board(tmp_path, "4.9")
    board.devfreq._max = 0
    with board.lease(612):
        assert board.bounds == (612_000_000, 612_000_000)
    assert board.bounds == (TABLE[0], 0)


def test_what_is_to_be_restored_is_on_disk_before_the_first_write(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[str] = []
    flush = os.fsync

    def fsync(handle: int) -> None:
        flush(handle)
        flushed.append(str(Path(f"/proc/self/fd/{handle}").readlink()))

    def before(operation: str, name: str) -> None:
        if operation == "write" and not board.written:
            assert flushed[-1] == str(board.file.parent)
            assert board.file.name in flushed[-2]
            saved = json.loads(board.file.read_text())
            assert (saved["saved_min_hz"], saved["saved_max_hz"]) == (TABLE[0], TOP)
            assert (saved["boot_id"], saved["pid"], saved["set_hz"]) == ("boot-1", os.getpid(), [612_000_000])

    monkeypatch.setattr(os, "fsync", fsync)
    board.before = before
    with board.lease(612):
        assert len(board.written) == 2


# --- other writers


def test_bounds_between_two_clocks_of_a_sweep_are_ours_only_while_it_moves(board: Board) -> None:
    with board.lease(612) as lease:
        lease.move(918)
        board.devfreq.apply_power_mode(918_000_000, 612_000_000)
        assert not lease.check()
    assert board.bounds == (612_000_000, 918_000_000)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("meddled", [(306, 510), (408, 918), (714, 714), (306, 612)])
def test_bounds_that_somebody_else_changed_are_left_alone(
    tmp_path: Path, kernel: str, meddled: tuple[int, int]
) -> None:
    """(306, 612) is a power mode whose cap happens to be the clock pinned: raising it would defeat that mode."""
    board = Board(tmp_path, kernel)
    low, high = (mhz * 1_000_000 for mhz in meddled)
    with board.lease(612) as lease:
        assert lease.check()
        board.devfreq.apply_power_mode(high, low)
        assert not lease.check()
        assert "Somebody else" in lease.lost
        with pytest.raises(BoardError, match="Somebody else"):
            lease.move(408)
        with pytest.raises(BoardError, match="Somebody else"):
            lease.verify(load_seen=False)
    assert board.bounds == (low, high)
    receipt = lease.receipt()
    assert (receipt["outcome"], receipt["restored"], receipt["verified"]) == ("left", False, False)
    assert any("sudo tee" in event["text"] for event in receipt["events"])
    assert not board.file.exists()


@pytest.mark.parametrize("kernel", KERNELS[1:])
@pytest.mark.parametrize("still", [True, False])
def test_heat_is_no_other_writer_and_the_request_is_withdrawn_all_the_same(
    tmp_path: Path, kernel: str, still: bool
) -> None:
    board = Board(tmp_path, kernel)
    with board.lease(918) as lease:
        board.devfreq.thermal_cap_hz, board.cooling = 510_000_000, 2
        assert board.bounds == (510_000_000, 510_000_000)
        assert lease.check()
        assert lease.capped
        if not still:
            board.devfreq.thermal_cap_hz, board.cooling = None, 0
    assert lease.outcome is not None
    assert lease.outcome.kind == "restored"
    board.devfreq.thermal_cap_hz = None
    assert board.bounds == (TABLE[0], TOP)
    assert not board.file.exists()


def test_a_throttled_gpu_is_not_pinned_unless_asked_for(board: Board) -> None:
    """Its upper bound cannot be read then: restoring what was read would leave the board capped once it is cool."""
    board.devfreq.thermal_cap_hz, board.cooling = 816_000_000, 1
    with pytest.raises(BoardError, match="being throttled"):
        board.lease(612).__enter__()
    assert board.written == []
    assert not board.file.exists()
    with board.lease(612, throttled_ok=True) as lease:
        assert lease.capped
    assert lease.saved == (TABLE[0], 816_000_000)


def test_a_limit_that_comes_between_writing_and_reading_back_leaves_no_pin(board: Board) -> None:
    def before(operation: str, name: str) -> None:
        if len(board.written) == 2:
            board.devfreq.thermal_cap_hz = 510_000_000  # no cooling device tells of it

    board.before = before
    with pytest.raises(BoardError, match="could not be pinned"):
        board.lease(918).__enter__()
    board.devfreq.thermal_cap_hz = None
    assert board.bounds == (TABLE[0], TOP)


def test_b21_a_reboot_in_between_is_no_reason_to_write(board: Board) -> None:
    with board.lease(612) as lease:
        board.boot = "boot-2"
        board.devfreq.reset()
        written = len(board.written)
    assert len(board.written) == written
    assert lease.receipt()["outcome"] == "gone"
    assert not board.file.exists()


# --- refusals: nothing is written


def test_clocks_are_matched_to_the_table() -> None:
    for clock in (1300, 1301, 1300.5, 1_300_500_000, 1_300_000_000):
        assert match_clock(clock, TABLE, TOP) == TOP
    assert match_clock(305, TABLE, TOP) == TABLE[0]
    with pytest.raises(InputError, match="612 and 714"):
        match_clock(660, TABLE, TOP)
    with pytest.raises(BoardError, match="Take 612 MHz"):
        match_clock(714, TABLE, 612_000_000)
    for clock in (0, -3, float("nan"), float("inf")):
        with pytest.raises(InputError):
            match_clock(clock, TABLE, TOP)


def test_a_read_only_node_is_refused(board: Board) -> None:
    lease = Lease(board, board.node(read_only="writing can hang on a Thor"), 612)
    with pytest.raises(BoardError, match="can hang on a Thor"):
        lease.__enter__()
    assert board.written == []
    assert not (board.root / "run").exists()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (errno.EACCES, "may not be written by you"),
        (errno.EPERM, "may not be written by you"),
        (errno.EROFS, "read-only file system"),
        (errno.ENOENT, "not there"),
        (errno.ETIMEDOUT, "does not answer"),
        (errno.EIO, "could not be read or written"),
    ],
)
@pytest.mark.parametrize("nth", [0, 1])
def test_a_write_that_fails_leaves_the_bounds_found(board: Board, code: int, words: str, nth: int) -> None:
    writes = []

    def before(operation: str, name: str) -> None:
        if operation == "write":
            writes.append(name)
            if len(writes) == nth + 1:
                raise OSError(code, os.strerror(code))

    board.before = before
    with pytest.raises(BoardError, match=words):
        board.lease(612).__enter__()
    assert board.bounds == (TABLE[0], TOP)
    assert not board.file.exists()


def test_a_node_that_is_waking_is_waited_for(board: Board) -> None:
    busy = [2]

    def before(operation: str, name: str) -> None:
        if operation == "write" and busy[0]:
            busy[0] -= 1
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    board.before = before
    with board.lease(612):
        assert board.bounds == (612_000_000, 612_000_000)
    assert board.bounds == (TABLE[0], TOP)


def test_a_writer_in_between_on_4_9_is_met_by_another_try(tmp_path: Path) -> None:
    board = Board(tmp_path, "4.9")
    meddled = []

    def before(operation: str, name: str) -> None:
        if operation == "write" and not meddled:
            meddled.append(name)
            board.devfreq.apply_power_mode(510_000_000, TABLE[0])  # 612 as the lower bound is refused now

    board.before = before
    with board.lease(612):
        assert board.bounds == (612_000_000, 612_000_000)


@pytest.mark.parametrize("fault", ["file", "read-only", "full"])
def test_where_nothing_can_be_saved_nothing_is_pinned(
    board: Board, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if fault == "file":
        (board.root / "run").write_text("")
    elif fault == "read-only":
        (board.root / "run").mkdir()
        monkeypatch.setattr(os, "access", lambda *args, **kwargs: False)
    else:

        def full(handle: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(BoardError, match="not pinned") as caught:
        board.lease(612).__enter__()
    assert "disk is full" in str(caught.value) or fault != "full"
    assert board.written == []
    assert not board.file.exists()


def test_a_disk_that_fills_up_in_a_sweep_stops_the_move_and_restores(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with board.lease(612) as lease:
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", full)
            with pytest.raises(BoardError, match="disk is full"):
                lease.move(408)
        assert board.bounds == (612_000_000, 612_000_000)
    assert board.bounds == (TABLE[0], TOP)


# --- proof


def test_a_clock_is_verified_only_under_load(board: Board, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wattune.governing.lease.FOLLOW_S", 0.0)
    with board.lease(1020) as lease:
        for cur, load in ((1_020_000_000, 0.0), (1_020_000_000, None), (None, 99.0), (0, 99.0)):
            lease.observe(cur, load)
            assert not lease.verified
        assert "no load was seen" in lease.why
        lease.observe(1_014_000_000, 97.0)  # what the PLL gives for 1020
        assert lease.verified
        lease.move(612)
        assert not lease.verified
        for _ in range(3):
            lease.observe(306_000_000, 97.0)
        assert lease.receipt()["pins"][1] == {
            "mhz": 612.0, "verified": False, "why": "it read 306 MHz at a load of 97 %",
        }  # fmt: skip
        lease.observe(612_000_000, 97.0)
        assert not lease.verified


def test_verify_judges_the_clock_of_a_busy_gpu(board: Board) -> None:
    with board.lease(612) as lease:
        assert not lease.verify(load_seen=False)
        board.devfreq.cur_hz = 612_000_000
        assert lease.verify(load_seen=True)
        board.devfreq.cur_hz = TABLE[0]
        with pytest.raises(BoardError, match="runs at 306 MHz under load"):
            lease.verify(load_seen=True)
    assert not lease.verified
    assert board.bounds == (TABLE[0], TOP)


# --- what earlier holders left


def leave(board: Board, clock: float = 612, *, pid: int = 2**22 + 1) -> None:
    """A pin whose holder was killed, with its watchdog."""
    with board.lease(clock) as lease:
        left = board.file.read_text().replace(f'"pid": {os.getpid()}', f'"pid": {pid}')
        pinned = board.bounds
    board.file.write_text(left)
    board.devfreq.write_min(str(pinned.min_hz))
    board.devfreq.write_max(str(pinned.max_hz))
    assert lease.ended


def test_a_stale_pin_is_restored_first_and_its_bounds_are_not_taken_for_the_boards(board: Board) -> None:
    leave(board)
    (found,) = state.stale(board)
    assert "612 MHz" in str(found)
    assert found.record is not None
    assert not found.record.alive
    with board.lease(408) as lease:
        assert lease.saved == (TABLE[0], TOP)
        assert "had ended without restoring" in lease.events[0][1]
    assert board.bounds == (TABLE[0], TOP)


def test_restore_puts_back_a_stale_pin_once(board: Board) -> None:
    leave(board)
    (done,) = state.restore_stale(board)
    assert (done.outcome.kind, done.removed) == ("restored", True)
    assert board.bounds == (TABLE[0], TOP)
    assert state.restore_stale(board) == []


def test_restore_leaves_what_somebody_else_set_unless_forced(board: Board) -> None:
    leave(board)
    board.devfreq.apply_power_mode(510_000_000, TABLE[0])
    (done,) = state.restore_stale(board)
    assert (done.outcome.kind, done.removed) == ("left", False)
    assert board.bounds == (TABLE[0], 510_000_000)
    (done,) = state.restore_stale(board, force=True)
    assert (done.outcome.kind, done.removed) == ("restored", True)
    assert board.bounds == (TABLE[0], TOP)


def test_the_lease_file_of_another_boot_is_dropped(board: Board) -> None:
    leave(board)
    board.boot = "boot-2"
    board.devfreq.reset()
    board.written.clear()
    assert state.stale(board) == []
    (done,) = state.restore_stale(board)
    assert (done.outcome.kind, done.removed) == ("gone", True)
    assert board.written == []
    leave(board)
    board.boot = "boot-3"
    board.devfreq.reset()
    with board.lease(408) as lease:
        assert "earlier boot" in lease.events[0][1]
    assert board.bounds == (TABLE[0], TOP)


def test_a_pin_left_on_purpose_stands_until_restored(board: Board) -> None:
    with board.lease(510) as lease:
        lease.detach()
    assert board.bounds == (510_000_000, 510_000_000)
    with pytest.raises(BoardError, match="on purpose"):
        board.lease(612).__enter__()
    assert board.bounds == (510_000_000, 510_000_000)
    assert len(state.stale(board)) == 1
    state.restore_stale(board)
    assert board.bounds == (TABLE[0], TOP)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"schema_version": 1', '"schema_version": 9'),
        lambda text: text.replace(NODE, "etc/passwd"),
        lambda text: text.replace(NODE, "sys/../../17000000.gpu"),
        lambda text: text.replace(str(TOP), "-1"),
        lambda text: text.replace(str(TOP), '"1300500000; rm -rf /"'),
    ],
)
def test_a_damaged_or_forged_lease_file_moves_nothing(board: Board, damage: Callable[[str], str]) -> None:
    leave(board)
    board.file.write_text(damage(board.file.read_text()))
    board.written.clear()
    for call in (lambda: state.restore_stale(board), board.lease(408).__enter__):
        with pytest.raises(IntegrityError, match="refused"):
            call()
    assert board.written == []
    (found,) = state.stale(board)
    assert "refused" in str(found)


def test_a_lease_file_of_another_user_moves_nothing(board: Board) -> None:
    if os.geteuid():
        pytest.skip("about root")
    leave(board)
    os.chown(board.file, 12345, 12345)
    with pytest.raises(IntegrityError, match="another user"):
        state.restore_stale(board)


@given(st.lists(st.sampled_from(TABLE), min_size=1, max_size=2), st.tuples(indexes, indexes).map(sorted))
def test_own_pairs_never_cross_and_never_undercut_a_cap_at_our_clock(set_hz, span):
    saved = Bounds(TABLE[span[0]], TABLE[span[1]])
    for pair in own_pairs(saved, set_hz):
        assert pair.min_hz in set_hz
        assert pair.min_hz <= pair.max_hz or pair.max_hz == saved.max_hz


def test_a_write_that_does_not_take_is_a_failure_and_keeps_the_file(
    board: Board, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wattune.governing.lease.RETRY_S", (0.0,))
    lease = board.lease(612)
    with pytest.raises(BoardError, match="wattune restore"), lease:
        board.before = lambda operation, name: (
            (_ for _ in ()).throw(OSError(errno.EIO, "I/O error")) if (operation == "write") else None
        )
    assert board.file.exists()
    receipt = lease.receipt()
    assert (receipt["restored"], receipt["outcome"]) == (False, "failed")
    assert f"echo {TOP} | sudo tee" in receipt["events"][-1]["text"]
    board.before = lambda operation, name: None
    state.restore_stale(board)
    assert board.bounds == (TABLE[0], TOP)


def test_restoring_reads_back(tmp_path: Path) -> None:
    class Deaf(Board):
        def write(self, relative: str, text: str) -> None:
            return

    board = Deaf(tmp_path, low=612_000_000, high=612_000_000)
    outcome = put_back(board, NODE, Bounds(TABLE[0], TOP), [612_000_000])
    assert outcome.kind == "failed"
    assert "read 612 to 612 MHz after" in outcome.text


def test_lease_files_lie_in_the_run_folder_or_the_users_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    machine = [Path("/run/wattune"), Path("/run/user/1000/wattune")]
    assert state.folders(Sysfs()) == machine
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert state.folders(Sysfs()) == machine[:1]
    assert state.folders(Sysfs(tmp_path))[0] == tmp_path / "run/wattune"


# --- two at once, threads, forks


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["/opt/wattune/bin/wattune", "pin", "612"], "wattune pin"),
        (["/x/src/wattune/cli.py", "clockd", "--root", "/t"], "wattune clockd"),
        (["/x/src/wattune/__main__.py", "pin", "612"], "wattune pin"),
        (["/x/site-packages/dvc/__main__.py", "repro"], "dvc"),
        (["train.py", "pin"], "train.py"),
        (["-c"], "python"),
        ([""], "python"),
        ([], "python"),
    ],
)
def test_a_holder_is_called_what_was_typed(
    argv: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert state.own_name() == name


def test_a_bound_below_0_is_no_bound(board: Board) -> None:
    """The kernel keeps unsigned numbers: a tree that says so is broken, and nothing is saved of it or written to it."""
    board.devfreq.read_min = lambda: "-5\n"  # type: ignore[method-assign]
    node = GpuNode(NODE, None, TABLE, TABLE[0], TOP, TABLE[0], "nvhost_podgov")
    with pytest.raises(BoardError, match="'-5' is no clock"):
        Lease(board, node, 612, watchdog=False, cooling={}).__enter__()
    assert board.written == []
    assert not board.file.exists()


def test_a_second_lease_names_the_first(board: Board) -> None:
    with board.lease(612):
        with pytest.raises(BoardError, match=f"already held by .*process {os.getpid()}") as caught:
            board.lease(408).__enter__()
        assert "this program itself" in str(caught.value)
        assert "kill" not in str(caught.value)
        assert board.bounds == (612_000_000, 612_000_000)
        with pytest.raises(BoardError, match="already held"):
            state.restore_stale(board)
        assert state.stale(board) == []
    assert board.bounds == (TABLE[0], TOP)


def test_another_thread_may_hold_it_and_check_it(board: Board) -> None:
    seen: list[bool] = []

    def work() -> None:
        with board.lease(612) as lease:
            seen.extend(lease.check() for _ in range(50))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True] * 50
    assert board.bounds == (TABLE[0], TOP)


def test_handlers_that_another_thread_had_to_leave_do_not_pile_up(board: Board) -> None:
    """It may not take them away; the next lease stands on what was there before any of them, and signals still get there."""
    came: list[int] = []
    before = signal.signal(signal.SIGHUP, lambda number, _: came.append(number))
    try:
        for _ in range(3):
            lease = board.lease(612).__enter__()
            thread = threading.Thread(target=lease.__exit__, args=(None, None, None))
            thread.start()
            thread.join()
        signal.raise_signal(signal.SIGHUP)
        assert came == [signal.SIGHUP]
        with board.lease(612) as last:
            assert getattr(last._previous[signal.SIGHUP], "__self__", None) is None
        signal.raise_signal(signal.SIGHUP)
        assert len(came) == 2
        assert getattr(signal.getsignal(signal.SIGHUP), "__self__", None) is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_forked_child_changes_nothing(board: Board) -> None:
    with board.lease(612) as lease:
        child = os.fork()
        if not child:
            try:
                lease.__exit__(None, None, None)
                held = lease.check()
            finally:
                os._exit(0 if not held and board.file.exists() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert board.file.exists()
        assert lease.check()
    assert board.bounds == (TABLE[0], TOP)


def test_importing_the_lease_needs_the_standard_library_only() -> None:
    code = (
        "import sys, wattune.governing.lease, wattune.governing.watchdog as w;"
        "print(sorted({m.split('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'wattune'}))"
    )
    source = str(Path(state.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.append({source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(json.loads(done.stdout.replace("'", '"'))) <= {"__main__", "sitecustomize"}, done.stdout
