"""The clock daemon over a mounted emulated board: clients with and without permission, kills on either side, hostile input."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import random
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kills
import others
from kills import Mounted
from wattune.boards.virtual.emulator import fuse
from wattune.boards.virtual.emulator.tree import File
from wattune.core.errors import BoardError, InputError
from wattune.governing import client, state
from wattune.governing.bounds import Bounds
from wattune.governing.client import ClockdLease, open_lease
from wattune.governing.lease import Lease

pytestmark = pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not()))

NOBODY = 65534
MEMBER_GID = 1
MEMBER_GROUP = grp.getgrgid(MEMBER_GID).gr_name
"""A group that is everywhere; stands in for the group wattune."""

DAEMON = """
import argparse, logging, sys
from wattune.core.errors import WattuneError
from wattune.governing import clockd
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
parser = argparse.ArgumentParser()
clockd.add_arguments(parser)
parser.add_argument("--set", nargs=2, action="append", default=[])
args = parser.parse_args()
for name, value in args.set:
    setattr(clockd, name, type(getattr(clockd, name))(value))
try:
    sys.exit(clockd.run(args))
except WattuneError as error:
    sys.stderr.write(f"wattune: {error}\\n")
    sys.exit(error.exit_code)
"""
CLIENT = f"""
from wattune.core.errors import WattuneError
from wattune.governing.client import open_lease
def member():
    os.setgroups([{MEMBER_GID}]); os.setgid({NOBODY}); os.setuid({NOBODY})
def stranger():
    os.setgroups([]); os.setgid({NOBODY}); os.setuid({NOBODY})
"""
HOLD = """
member()
with open_lease(sysfs, node, 612):
    say("go")
    time.sleep(60)
"""


STARTED: list[subprocess.Popen[str]] = []


@pytest.fixture(autouse=True)
def none_left() -> Iterator[None]:
    """Daemons of a test that failed are ended."""
    before = len(STARTED)
    yield
    for process in STARTED[before:]:
        if process.poll() is None:
            process.kill()
            process.communicate()
    del STARTED[before:]


class Daemon:
    """A running daemon of a board."""

    def __init__(self, board: Mounted, *arguments: str) -> None:
        self.board = board
        self.path = board.root / "run/wattune/clockd.sock"
        command = [
            sys.executable,
            "-c",
            DAEMON,
            "--root",
            str(board.root),
            "--group",
            MEMBER_GROUP,
            *arguments,
        ]
        self.process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(kills.SOURCE)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        STARTED.append(self.process)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        assert first == f"listening at {self.path}\n", (first, self.process.communicate(timeout=10))

    def connect(self) -> Raw:
        return Raw(self.path)

    def status(self) -> dict[str, Any]:
        with self.connect() as raw:
            answer: dict[str, Any] = raw.ask({"do": "status"})
        assert answer["ok"] is True
        return answer

    def stop(self, number: signal.Signals = signal.SIGTERM) -> str:
        """End it; returns what it said."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.communicate(timeout=20)[1]


class Raw:
    """A client that may say anything."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(20)
        with client.socket_address(path) as address:
            self.socket.connect(address)

    def ask(self, request: object) -> Any:
        return self.say(json.dumps(request).encode() + b"\n")

    def say(self, data: bytes) -> Any:
        self.socket.sendall(data)
        return self.answer()

    def answer(self) -> Any:
        data = b""
        while not data.endswith(b"\n"):
            more = self.socket.recv(65536)
            if not more:
                return None
            data += more
        return json.loads(data)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()


def whole_root(board: Mounted) -> Mounted:
    """The files outside ``sys`` by which discovery knows a board."""
    for path, entry in board.tree.walk():
        if path.startswith(("etc/", "proc/sys/kernel/osrelease")) and isinstance(entry, File):
            where = board.root / path
            where.parent.mkdir(parents=True, exist_ok=True)
            where.write_text(entry.read())
    return board


@pytest.fixture
def board() -> Iterator[Mounted]:
    with others.open_folder() as folder, kills.mounted(folder) as board:
        yield whole_root(board)


@pytest.fixture
def daemon(board: Mounted) -> Iterator[Daemon]:
    daemon = Daemon(board)
    try:
        yield daemon
    finally:
        said = daemon.stop()
        assert "Traceback" not in said
        assert board.restored(5)


root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become others")


def run(board: Mounted, script: str) -> subprocess.Popen[str]:
    return board.run(CLIENT + script)


def pinned(board: Mounted, mhz: float = 612) -> bool:
    return board.bounds == (mhz * 1e6, mhz * 1e6)


def direct_lease(daemon: Daemon, clock: float) -> ClockdLease:
    """A client that asks the daemon although it need not."""
    return ClockdLease(daemon.board.sysfs, daemon.board.node(), clock, path=daemon.path)


# --- who may


@root_only
def test_a_member_of_the_group_pins_moves_verifies_and_restores(board: Mounted, daemon: Daemon) -> None:
    process = run(
        board,
        """
import json
member()
lease = open_lease(sysfs, node, 612)
say("go")
with lease:
    bounds = [[sysfs.read(f"{node.path}/{name}") for name in ("min_freq", "max_freq")]]
    assert lease.check() and lease.verify(load_seen=True)
    lease.move(1301)
    bounds.append([sysfs.read(f"{node.path}/{name}") for name in ("min_freq", "max_freq")])
    time.sleep(0.4)
    lease.observe(1300000000, 90.0)
say(json.dumps([bounds, lease.receipt()]))
""",
    )
    out, said = process.communicate(timeout=20)
    assert process.returncode == 0, said
    bounds, receipt = json.loads(out)
    assert bounds == [["612000000"] * 2, ["1300500000"] * 2]
    assert receipt["found"] == {"min_mhz": 306.0, "max_mhz": 1300.5}
    assert [pin["mhz"] for pin in receipt["pins"]] == [612.0, 1300.5]
    assert (receipt["verified"], receipt["restored"], receipt["ended"]) == (True, True, "done")
    assert receipt["boot_id"] == board.machine.boot_id
    assert receipt["through"] == str(daemon.path)
    assert board.restored(0)


@root_only
def test_who_is_no_member_is_refused_and_told_how_to_become_one(board: Mounted, daemon: Daemon) -> None:
    process = run(
        board,
        """
say("go")
stranger()
try:
    open_lease(sysfs, node, 612).__enter__()
except WattuneError as error:
    sys.stderr.write(str(error))
    sys.exit(error.exit_code)
""",
    )
    _, said = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "You may not use the clock daemon" in said
    assert "usermod -aG wattune" in said
    assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o660
    assert daemon.path.stat().st_gid == MEMBER_GID
    assert daemon.status()["held"] is None


@root_only
def test_without_a_daemon_both_ways_are_named(board: Mounted) -> None:
    process = run(
        board,
        """
say("go")
stranger()
try:
    open_lease(sysfs, node, 612)
except WattuneError as error:
    sys.stderr.write(str(error))
    sys.exit(error.exit_code)
""",
    )
    _, said = process.communicate(timeout=20)
    assert process.returncode == 3
    assert "min_freq may not be written by you, and no clock daemon listens at" in said
    assert "with sudo, or set the daemon up once" in said


def test_a_group_that_does_not_exist_leaves_the_socket_to_root(board: Mounted) -> None:
    daemon = Daemon(board, "--group", "no-such-group")
    assert stat.S_IMODE(daemon.path.stat().st_mode) == 0o600
    assert "groupadd --system no-such-group" in daemon.stop()


@root_only
def test_a_daemon_that_may_not_write_says_so_at_the_start(board: Mounted) -> None:
    process = run(
        board,
        """
from wattune.governing.clockd import Daemon
say("go")
stranger()
try:
    Daemon(sysfs).refuse_where_not_permitted()
except WattuneError as error:
    sys.stderr.write(str(error))
    sys.exit(error.exit_code)
""",
    )
    _, said = process.communicate(timeout=20)
    assert process.returncode == 3, said
    assert f"may not be written by you (user {NOBODY}, who is not root)" in said


def test_who_may_write_the_node_needs_no_daemon(board: Mounted, daemon: Daemon) -> None:
    if os.geteuid():
        pytest.skip("about root")
    lease = open_lease(board.sysfs, board.node(), 612)
    assert type(lease) is Lease


# --- one clock, one holder


def test_a_second_client_is_refused_by_name_and_served_afterwards(board: Mounted, daemon: Daemon) -> None:
    first, second = daemon.connect(), daemon.connect()
    assert first.ask({"do": "pin", "hz": 612000000})["found_hz"] == list(board.found)
    for request in ({"do": "pin", "hz": 306000000}, {"do": "restore"}):
        refused = second.ask(request)
        assert (refused["ok"], refused["exit_code"]) == (False, 3)
        assert f"(process {os.getpid()})" in refused["what"]
        assert "612 MHz" in refused["what"]
        assert pinned(board)
    held = second.ask({"do": "status"})["held"]
    assert (held["hz"], held["yours"], held["lost"]) == (612000000, False, None)
    assert first.ask({"do": "status"})["held"]["yours"] is True
    assert first.ask({"do": "restore"})["outcome"] == "restored"
    assert board.restored(0)
    assert second.ask({"do": "pin", "hz": 306000000})["ok"] is True
    second.socket.close()
    assert board.restored(5)
    assert first.ask({"do": "restore"})["outcome"] is None


def test_a_direct_lease_and_the_daemon_exclude_each_other(board: Mounted, daemon: Daemon) -> None:
    with Lease(board.sysfs, board.node(), 408):
        with pytest.raises(BoardError, match="already held"):
            direct_lease(daemon, 612).__enter__()
        assert pinned(board, 408)
    with direct_lease(daemon, 612):
        with pytest.raises(BoardError, match=rf"already held by .*process {daemon.process.pid}"):
            Lease(board.sysfs, board.node(), 408).__enter__()
        assert pinned(board)
    assert board.restored(0)


def test_never_above_the_cap_of_the_power_mode(tmp_path: Path) -> None:
    with kills.mounted(tmp_path, power_mode="MODE_30W") as board:
        daemon = Daemon(whole_root(board))
        with pytest.raises(BoardError, match="Take 612 MHz"):
            direct_lease(daemon, 714).__enter__()
        with direct_lease(daemon, 306) as lease:
            with pytest.raises(BoardError, match="above the upper bound"):
                lease.move(714)
            with daemon.connect() as raw:  # neither by the back door
                assert raw.ask({"do": "pin", "hz": 714000000})["exit_code"] == 3
            assert pinned(board, 306)
        daemon.stop()
        assert board.bounds == (306_000_000, 612_000_000)


def test_a_clock_that_is_none_is_the_clients_error(board: Mounted, daemon: Daemon) -> None:
    with pytest.raises(InputError, match="612 and 714"):
        direct_lease(daemon, 660).__enter__()
    with daemon.connect() as raw:
        refused = raw.ask({"do": "pin", "hz": 612000001})
        assert refused["exit_code"] == 2
        assert "612000000" in refused["expected"]
    assert board.bounds == board.found


def test_somebody_else_who_changes_the_bounds_is_left_alone(board: Mounted, daemon: Daemon) -> None:
    with direct_lease(daemon, 612) as lease:
        board.machine.set_power_mode("MODE_15W")
        want = board.bounds
        assert not lease.check()
        assert "Somebody else" in lease.lost
        assert "Somebody else" in daemon.status()["held"]["lost"]
        with pytest.raises(BoardError, match="Somebody else"):
            lease.move(306)
    assert lease.outcome is not None
    assert lease.outcome.kind == "left"
    assert board.bounds == want
    board.found = want
    assert not board.lease_file.exists()


def test_a_pin_through_the_daemon_is_not_left_standing(board: Mounted, daemon: Daemon) -> None:
    with pytest.raises(BoardError, match="cannot be left pinned"), direct_lease(daemon, 612) as lease:
        lease.detach()
    assert board.restored(0)


# --- ends of clients


@root_only
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_client_that_is_killed_leaves_the_clock_restored(
    board: Mounted, daemon: Daemon, number: signal.Signals
) -> None:
    process = run(board, HOLD)
    assert pinned(board)
    assert f"(process {process.pid}) of user nobody" in daemon.status()["held"]["by"]
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == -number, said
    assert board.restored(5)
    assert daemon.status()["held"] is None


def test_kills_of_clients_at_random_leave_the_clock_restored(board: Mounted, daemon: Daemon) -> None:
    rng = random.Random(7)
    for _ in range(6):
        process = run(
            board,
            f"""
from wattune.governing.client import ClockdLease
say("go")
while True:
    with ClockdLease(sysfs, node, 612, path=Path({str(daemon.path)!r})) as lease:
        for hz in node.usable_hz:
            lease.move(hz)
""",
        )
        time.sleep(rng.uniform(0.0, 0.6))
        process.kill()
        process.communicate(timeout=20)
        assert board.restored(10)
        assert daemon.status()["held"] is None


@pytest.mark.parametrize("how", ["fork", "inherit"])
def test_children_of_a_killed_client_do_not_keep_the_clock(board: Mounted, daemon: Daemon, how: str) -> None:
    """A forked child of ours closes its end; of one that inherited the open socket the daemon sees that it is no client."""
    child = (
        "os.fork() == 0" if how == "fork" else "subprocess.Popen(['sleep', '30'], close_fds=False) is None"
    )
    process = board.run(
        CLIENT
        + f"""
import subprocess
from wattune.governing.client import ClockdLease
lease = ClockdLease(sysfs, node, 612, path=Path({str(daemon.path)!r})).__enter__()
lease._connection.set_inheritable(True)
if {child}:
    time.sleep(30)
    os._exit(0)
say("go")
time.sleep(30)
""",
        start_new_session=True,
    )
    try:
        assert pinned(board)
        process.kill()
        process.wait()
        assert board.restored(5)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=20)


# --- ends of the daemon


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_daemon_that_is_stopped_restores_and_tells_its_client(
    board: Mounted, number: signal.Signals
) -> None:
    daemon = Daemon(board)
    with direct_lease(daemon, 612) as lease:
        assert lease.check()
        said = daemon.stop(number)
        assert daemon.process.returncode == 0, said
        assert board.restored(0)
        assert not daemon.path.exists()
        assert not lease.check()
        assert "daemon has ended" in lease.lost
        with pytest.raises(BoardError, match="daemon has ended"):
            lease.move(306)
    assert lease.outcome is not None
    assert lease.outcome.kind == "restored"
    assert lease.receipt()["verified"] is False


def test_a_daemon_that_is_killed_is_outlived_by_its_watchdog(board: Mounted) -> None:
    daemon = Daemon(board)
    with direct_lease(daemon, 612) as lease:
        daemon.stop(signal.SIGKILL)
        assert board.restored(10)
    assert lease.outcome is not None
    assert lease.outcome.kind == "restored"
    assert daemon.path.is_socket()  # left behind
    with pytest.raises(BoardError, match="does not listen"):
        direct_lease(daemon, 612).__enter__()
    again = Daemon(board)  # takes its place
    with direct_lease(again, 612):
        assert pinned(board)
    again.stop()
    assert board.restored(0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_ends_of_the_daemon_at_random_leave_the_clock_restored(
    board: Mounted, number: signal.Signals
) -> None:
    rng = random.Random(number)
    for _ in range(5):
        daemon = Daemon(board)
        with daemon.connect() as raw:
            until = time.monotonic() + rng.uniform(0.0, 0.4)
            clocks = iter(lambda: rng.choice(board.node().table_hz), None)
            with contextlib.suppress(OSError, AttributeError):
                while time.monotonic() < until:
                    raw.ask({"do": "pin", "hz": next(clocks)})
                for hz in (612000000, 306000000):  # something is under way when it ends
                    raw.socket.sendall(json.dumps({"do": "pin", "hz": hz}).encode() + b"\n")
            said = daemon.stop(number)
        assert "Traceback" not in said
        assert daemon.process.returncode == (0 if number == signal.SIGTERM else -number)
        assert board.restored(0 if number == signal.SIGTERM else 10)


def test_what_a_killed_daemon_and_watchdog_left_is_recovered_at_the_next_start(board: Mounted) -> None:
    for start in (["--recover"], []):
        daemon = Daemon(board)
        raw = daemon.connect()
        assert raw.ask({"do": "pin", "hz": 612000000})["ok"] is True
        children = Path(f"/proc/{daemon.process.pid}/task/{daemon.process.pid}/children").read_text().split()
        for pid in map(int, children):
            os.kill(pid, signal.SIGKILL)
        daemon.stop(signal.SIGKILL)
        time.sleep(0.3)
        assert pinned(board)
        assert board.lease_file.exists()
        if start:
            command = [sys.executable, "-c", DAEMON, "--root", str(board.root), *start]
            environment = {**os.environ, "PYTHONPATH": str(kills.SOURCE)}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=20, check=False
            )
            assert (done.returncode, done.stdout) == (0, ""), done.stderr
        else:
            Daemon(board).stop()
        assert board.restored(0)


def test_recovery_leaves_a_pin_that_was_left_on_purpose(board: Mounted) -> None:
    with Lease(board.sysfs, board.node(), 612) as lease:
        lease.detach()
    daemon = Daemon(board)
    assert pinned(board)
    with pytest.raises(BoardError, match="on purpose"):
        direct_lease(daemon, 306).__enter__()
    daemon.stop()
    assert pinned(board)
    state.restore_stale(board.sysfs)
    assert board.restored(0)


def test_a_second_daemon_is_refused_and_the_first_goes_on(board: Mounted, daemon: Daemon) -> None:
    command = [sys.executable, "-c", DAEMON, "--root", str(board.root)]
    environment = {**os.environ, "PYTHONPATH": str(kills.SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    assert "Another clock daemon listens" in done.stderr
    assert daemon.status()["held"] is None


def test_something_else_in_the_sockets_place_is_left_alone(board: Mounted) -> None:
    place = board.root / "run/wattune/clockd.sock"
    place.parent.mkdir()
    place.write_text("precious")
    command = [sys.executable, "-c", DAEMON, "--root", str(board.root)]
    environment = {**os.environ, "PYTHONPATH": str(kills.SOURCE)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20, check=False)
    assert done.returncode == 3
    assert "no socket" in done.stderr
    assert place.read_text() == "precious"


def test_a_socket_handed_over_by_systemd_is_used_and_kept(board: Mounted) -> None:
    path = board.root / "run/handed.sock"
    listener = socket.socket(socket.AF_UNIX)
    with client.socket_address(path) as address:
        listener.bind(address)
    listener.listen()
    handed = f"""
import os, sys
os.dup2({listener.fileno()}, 3)
os.environ |= {{"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1"}}
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[1:]])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", handed, DAEMON, "--root", str(board.root)],
        env={**os.environ, "PYTHONPATH": str(kills.SOURCE)},
        pass_fds=[listener.fileno()], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline().startswith("listening at ")
    with Raw(path) as raw:
        assert raw.ask({"do": "pin", "hz": 612000000})["ok"] is True
        assert pinned(board)
    assert board.restored(5)
    process.terminate()
    assert "Traceback" not in process.communicate(timeout=20)[1]
    assert process.returncode == 0
    assert path.is_socket()
    assert not (board.root / "run/wattune/clockd.sock").exists()


# --- input that is none


@pytest.mark.parametrize(
    "line",
    [
        b"", b"pin", b"{}", b"[]", b"null", b'"pin"', b"[" * 1000, b"\xff\xfe", b'{"do": "pin"}', b'{"do": ["pin"], "hz": 1}',
        b'{"do": "pin", "hz": true}', b'{"do": "pin", "hz": 6.12e8}', b'{"do": "pin", "hz": "612000000"}', b'{"do": "pin", "hz": -1}',
        b'{"do": "pin", "hz": 0}', b'{"do": "pin", "hz": NaN}', b'{"do": "pin", "hz": 1%b}' % (b"0" * 900),
        b'{"do": "pin", "hz": 612}',
        b'{"do": "pin", "hz": 612000000, "node": "sys/x"}', b'{"do": "restore", "force": true}', b'{"do": "PIN", "hz": 612000000}',
        b'{"do": "write", "path": "/etc/passwd"}', b'{"hz": 612000000}', b'\x00{"do": "pin", "hz": 612000000}',
        '{"do": "pin", "hz": 612000000}'.encode("utf-16"), b'{"do": "pin", "hz": 612000000} {"do": "status"}',
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_and_the_next_line_served(
    board: Mounted, daemon: Daemon, line: bytes
) -> None:
    with daemon.connect() as raw:
        if b"\n" in line:
            pytest.fail("one line each")
        refused = raw.say(line + b"\n")
        assert (refused["ok"], refused["exit_code"]) == (False, 2)
        assert all(refused[key] for key in ("what", "expected", "hint"))
        assert raw.ask({"do": "status"})["ok"] is True
    assert board.bounds == board.found


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Mounted, Daemon]]:
    with kills.mounted(tmp_path_factory.mktemp("fuzzed")) as board:
        daemon = Daemon(whole_root(board), "--set", "LINE_S", "0.2")
        STARTED.remove(daemon.process)
        yield board, daemon
        assert "Traceback" not in daemon.stop()
        assert board.restored(5)


requests = st.fixed_dictionaries(
    {},
    optional={
        "do": st.sampled_from(["pin", "restore", "status", "pins"]) | st.text(max_size=5),
        "hz": st.sampled_from([612000000, 306000000, 1300500000])
        | st.integers(-(1 << 70), 1 << 70)
        | st.floats()
        | st.text(max_size=12)
        | st.booleans(),
        "x": st.none(),
    },
).map(lambda request: json.dumps(request).encode())


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(requests | st.binary(max_size=200), max_size=6), st.binary(max_size=1500), st.booleans())
def test_no_input_crashes_the_daemon_or_sets_a_clock_off_the_table(
    fuzzed: tuple[Mounted, Daemon], lines: list[bytes], tail: bytes, reads: bool
) -> None:
    board, daemon = fuzzed
    allowed = {board.found, *(Bounds(hz, hz) for hz in board.node().table_hz)}
    with daemon.connect() as raw:
        data = b"\n".join([*lines, tail])
        with contextlib.suppress(OSError):
            raw.socket.sendall(data)
            raw.socket.shutdown(socket.SHUT_WR)
        if reads:
            with contextlib.suppress(OSError):
                while raw.socket.recv(65536):
                    pass
        assert board.bounds in allowed
    assert daemon.process.poll() is None
    assert daemon.status()["ok"] is True
    assert board.restored(5)


def test_one_shot_clients_get_their_answers_before_the_connection_ends(daemon: Daemon) -> None:
    with daemon.connect() as raw:
        raw.socket.sendall(b'{"do": "status"}\n{"do": "restore"}\n')
        raw.socket.shutdown(socket.SHUT_WR)
        said = b""
        while data := raw.socket.recv(65536):
            said += data
    first, second = map(json.loads, said.splitlines())
    assert first["bounds_hz"] == list(daemon.board.found)
    assert second["outcome"] is None


def test_a_line_that_does_not_end_is_not_waited_for(fuzzed: tuple[Mounted, Daemon]) -> None:
    board, daemon = fuzzed
    with daemon.connect() as slow, daemon.connect() as long:
        slow.socket.sendall(b'{"do": "pin", ')
        refused = long.say(b" " * 1025)
        assert "more than 1024 bytes" in refused["what"]
        assert long.answer() is None
        assert "did not end within 0.2 s" in slow.answer()["what"]
        assert slow.answer() is None
    assert board.bounds == board.found


def test_a_holder_may_be_silent_while_idle_clients_are_let_go(board: Mounted) -> None:
    daemon = Daemon(board, "--set", "IDLE_S", "0.3")
    with daemon.connect() as holder, daemon.connect() as idle:
        assert holder.ask({"do": "pin", "hz": 612000000})["ok"] is True
        assert idle.answer() is None
        time.sleep(1.0)
        assert pinned(board)
        assert holder.ask({"do": "restore"})["outcome"] == "restored"
    daemon.stop()


def test_a_client_that_never_reads_its_answers_is_dropped(board: Mounted, daemon: Daemon) -> None:
    with daemon.connect() as raw:
        raw.ask({"do": "pin", "hz": 612000000})
        with contextlib.suppress(OSError):
            for _ in range(20000):
                raw.socket.sendall(b'{"do": "status"}\n')
        assert board.restored(5)
    assert daemon.status()["held"] is None


def test_too_many_clients_are_refused_and_the_holder_is_served(board: Mounted, daemon: Daemon) -> None:
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(daemon.connect())
        holder.ask({"do": "pin", "hz": 612000000})
        for _ in range(31):
            assert stack.enter_context(daemon.connect()).ask({"do": "status"})["ok"] is True
        refused = stack.enter_context(daemon.connect())
        assert "32 clients" in refused.answer()["what"]
        assert refused.answer() is None
        assert holder.ask({"do": "pin", "hz": 306000000})["ok"] is True
    assert board.restored(5)


def test_a_million_moves_would_not_fill_the_memory(board: Mounted, daemon: Daemon) -> None:
    with daemon.connect() as raw:
        for n in range(60):
            answer = raw.ask({"do": "pin", "hz": (306000000, 612000000)[n % 2]})
        assert answer["found_hz"] == list(board.found)
        assert len(answer["notes"]) <= 20


# --- late and absent boards


def test_b12_a_node_that_appears_after_the_start_is_found(tmp_path: Path) -> None:
    with kills.mounted(tmp_path) as board:
        whole_root(board)
        another = board.root / "proc/device-tree/compatible"
        another.parent.mkdir()
        another.write_text("raspberrypi,4-model-b\0")
        daemon = Daemon(board)
        with daemon.connect() as raw:
            refused = raw.ask({"do": "pin", "hz": 612000000})
            assert (refused["exit_code"], board.bounds) == (3, board.found)
            assert "no GPU clock to pin" in refused["what"]
            assert raw.ask({"do": "status"})["problem"]
            another.unlink()
            assert raw.ask({"do": "pin", "hz": 612000000})["ok"] is True
            assert pinned(board)
        assert "For now no clock can be pinned" in daemon.stop()
        assert board.restored(0)
