"""Holding a clock through the clock daemon (``wattune clockd``), for those who may not write the node themselves.

    with open_lease(sysfs, node, 612) as lease: ...

A lease through the daemon is used as a direct one is. The daemon saves, sets, reads back and restores; this side reads the bounds
and judges the clock, which needs no permission. When this process ends, however it ends, the connection does too, and the daemon
restores.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import json
import os
import select
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattune.boards.jetson.findings import GpuNode
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError, IntegrityError, WattuneError
from wattune.core.settings import hz_to_mhz, setting_label
from wattune.governing import state
from wattune.governing.bounds import Bounds, Outcome, commands, read_bounds, reason_of, same_bounds
from wattune.governing.lease import Lease, Pin, match_clock

VARIABLE = "WATTUNE_CLOCKD"
SOCKET = "clockd.sock"
GROUP = "wattune"
MACHINE_FOLDER = Path("/run/wattune")

CONNECT_S = 5.0
ANSWER_S = 40.0
"""Pinning may have to wait for another holder's watchdog, and starts one of its own."""

WATCHDOG_S = 10.0
"""How long the daemon's watchdog may take to restore after the daemon was killed."""

MAX_ANSWER = 1 << 16
MAX_PATH = 100
"""Bytes that fit into a socket's address."""

DAEMON_GONE = (
    "Start it again (`sudo systemctl restart wattune-clockd.socket`, or `sudo wattune clockd` by hand), then run the same command"
    " again; `journalctl -u wattune-clockd` says why it ended."
)

_ERRORS: dict[int, type[WattuneError]] = {e.exit_code: e for e in (InputError, BoardError, IntegrityError)}
NO_PERMISSION = (errno.EACCES, errno.EPERM, errno.EROFS)


# --- where the daemon listens


def socket_places(sysfs: Sysfs) -> list[Path]:
    """Where the daemon's socket of a tree may be, the preferred place first; ``WATTUNE_CLOCKD`` names it outright."""
    given = os.environ.get(VARIABLE)
    if given:
        return [Path(given)]
    if sysfs.is_machine:
        return [MACHINE_FOLDER / SOCKET]  # nowhere that is not root's
    folders = state.folders(sysfs)
    return [folder / SOCKET for folder in dict.fromkeys([*folders, MACHINE_FOLDER / folders[-1].name])]


@contextlib.contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """A socket's address for bind and connect, also where its path is too long for one.

    Raises:
        OSError: its folder cannot be opened.
    """
    if len(os.fsencode(path)) <= MAX_PATH:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def find_daemon(sysfs: Sysfs) -> Path | None:
    """The socket of a daemon that takes our connection; None where there is none. Never raises."""
    for path in socket_places(sysfs):
        with contextlib.suppress(OSError):
            _connected(path).close()
            return path
    return None


def _connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(CONNECT_S)
        with socket_address(path) as address:
            connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection


# --- which way


def open_lease(
    sysfs: Sysfs,
    node: GpuNode,
    clock: float,
    *,
    cooling: Mapping[str, str] | None = None,
    throttled_ok: bool = False,
) -> Lease:
    """A lease, not yet entered: a direct one where the node may be written, else one through the daemon.

    Args:
        sysfs: the tree.
        node: the GPU's node.
        clock: MHz, or Hz from 100 000 on.
        cooling: state files of the GPU's cooling devices by type; looked for where None.
        throttled_ok: pin also while a cooling device limits the clock; the daemon never does.

    Raises:
        BoardError: neither way is open; the message names both.
    """
    direct = Lease(sysfs, node, clock, cooling=cooling, throttled_ok=throttled_ok)
    refused = None if node.read_only else why_not_writable(sysfs, node)
    if refused is None or refused.errno not in NO_PERMISSION:
        return direct  # whatever else is wrong, it says so itself
    for path in socket_places(sysfs):
        with contextlib.suppress(OSError):
            if path.is_socket():
                return ClockdLease(sysfs, node, clock, path=path, cooling=cooling)
    read_only = refused.errno == errno.EROFS
    raise BoardError(
        f"The GPU clock cannot be set: {refused.filename} "
        + (
            "lies on a read-only file system (containers mount /sys so)"
            if read_only
            else "may not be written by you"
        )
        + f", and no clock daemon listens at {socket_places(sysfs)[0]}.",
        "One of the two was expected.",
        "Start the container with `-v /run/wattune:/run/wattune` on a board where the daemon runs, or with --privileged."
        if read_only
        else "Run the command with sudo, or set the daemon up once (`sudo wattune clockd`; docs/permissions.md says how).",
    )


def why_not_writable(sysfs: Sysfs, node: GpuNode) -> OSError | None:
    """Why the bounds may not be written; found out without writing."""
    try:
        for name in ("min_freq", "max_freq"):
            path = sysfs.path(f"{node.path}/{name}")
            if os.statvfs(path).f_flag & os.ST_RDONLY:
                raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))
            os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
    except OSError as error:
        return error
    return None


# --- the lease


class ClockdLease(Lease):
    """A clock held on one node by the daemon for us.

    Args:
        sysfs: the tree, as the daemon sees it.
        node: the GPU's node.
        clock: MHz, or Hz from 100 000 on.
        path: the daemon's socket.
        cooling: state files of the GPU's cooling devices by type; looked for where None.

    Attributes:
        path: the daemon's socket. `state_file` is the daemon's.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        node: GpuNode,
        clock: float,
        *,
        path: Path,
        cooling: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(sysfs, node, clock, cooling=cooling, watchdog=False)
        self.path = path
        self._connection: socket.socket | None = None

    def receipt(self) -> dict[str, Any]:
        """What was found, set, seen and put back; ``through`` names the daemon's socket."""
        return super().receipt() | {"through": str(self.path)}

    def _begin(self) -> None:
        hz = match_clock(self._clock, self.node.table_hz, 0)  # the daemon knows the bounds to keep
        try:
            self._connection = _connected(self.path)
        except OSError as error:
            raise self._no_connection(error) from error
        self._connection.settimeout(ANSWER_S)
        answer = self._ask({"do": "pin", "hz": hz})
        try:
            node, found, notes = answer["node"], Bounds(*map(int, answer["found_hz"])), list(answer["notes"])
            self.state_file = Path(answer["state_file"])
        except (KeyError, TypeError, ValueError) as error:
            raise self._strange() from error
        if node != self.node.path:
            raise BoardError(
                f"The clock daemon at {self.path} has another GPU: {node}, not {self.node.path}.",
                "A daemon of this board was expected.",
                f"Unset {VARIABLE}, or start the daemon with the same --root.",
            )
        if self._cooling is None:
            self._cooling = tuple(map(str, answer.get("cooling", ())))
        self._record = state.Record(
            node=self.node.path,
            boot_id=state.boot_id(self.sysfs),
            saved_min_hz=found.min_hz,
            saved_max_hz=found.max_hz,
            set_hz=(hz,),
            cooling=self._cooling,
            pid=os.getpid(),
            started=state.process_start(os.getpid()),
            program=self.program,
        )
        self.saved = found
        atexit.register(self._at_exit)
        for text in notes:
            self._note(str(text))
        self._pinned(hz)

    def _pinned(self, hz: int) -> None:
        self.pins.append(Pin(hz, time.monotonic()))
        self._note(f"The clock daemon pinned at {setting_label(hz_to_mhz(hz))} MHz; the bounds read so.")

    def move(self, clock: float) -> int:
        """As a direct lease's, by the daemon."""
        with self._section():
            self._must_hold()
            assert self.saved is not None
            assert self._record is not None
            hz = match_clock(clock, self.node.table_hz, self.saved.max_hz)
            if not self.check():
                raise self.taken()
            self._ask({"do": "pin", "hz": hz})
            self._record = replace(self._record, set_hz=(hz,))
            self._pinned(hz)
            return hz

    def check(self) -> bool:
        """Whether the daemon still holds the clock for us, and the bounds are still ours."""
        with self._section():
            if not self.ended and not self.lost and self._hung_up():
                self.lost = "The clock daemon has ended, and no longer holds the GPU clock."
                self._lost_hint = DAEMON_GONE
                self._note(self.lost, warn=True)
            return super().check()

    def detach(self) -> None:
        """Refused.

        Raises:
            BoardError: always; the daemon restores when its client goes away.
        """
        raise BoardError(
            "A clock held through the clock daemon cannot be left pinned.",
            "A client that stays was expected: the daemon restores when it goes away.",
            "Hold it (without --detach), or pin it with sudo.",
        )

    # --- ending

    def _restore(self) -> None:
        assert self.saved is not None
        try:
            answer = self._ask({"do": "restore"})
            kind, text = answer["outcome"], str(answer["text"])
            if kind not in ("restored", "left", "gone", "failed"):
                raise self._strange()
            bounds = answer["bounds_hz"]
            outcome = Outcome(kind, text, None if bounds is None else Bounds(*map(int, bounds)))
            self._capped = self._capped or answer["capped"] is True
        except (WattuneError, KeyError, TypeError, ValueError):
            outcome = self._restored_by_watchdog(self.saved)
        self.outcome = outcome
        if outcome.kind == "left":
            self._left(outcome, self.saved)
        else:
            self._note(outcome.text, warn=outcome.kind == "failed")

    def _restored_by_watchdog(self, saved: Bounds) -> Outcome:
        """Without the daemon: see whether what it left behind restores."""
        self._hang_up()
        deadline = time.monotonic() + WATCHDOG_S
        while True:
            try:
                now = read_bounds(self.sysfs, self.node.path)
            except OSError as error:
                text = f"The clock daemon has ended, and the bounds cannot be read: {reason_of(error)}."
                return Outcome("failed", text)
            if same_bounds(now, saved):
                return Outcome("restored", f"The clock daemon has ended; the bounds are again {now}.", now)
            if time.monotonic() > deadline:
                text = f"The clock daemon has ended, and the bounds read {now}, not {saved} as found at the start."
                return Outcome("failed", text, now)
            time.sleep(0.05)

    def _by_hand(self) -> str:
        assert self.saved is not None
        by_hand = commands(self.sysfs, self.node.path, self.saved)
        return f"Type `sudo {self.sysfs.typed('restore')}`, or as root: {by_hand}"

    def _let_go(self, *, detach: bool = False) -> None:
        self._hang_up()
        super()._let_go(detach=detach)

    def _forget_in_child(self) -> None:
        self._hang_up()
        super()._forget_in_child()

    # --- the connection

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _hung_up(self) -> bool:
        """Whether the daemon has closed the connection; it says nothing unasked."""
        if self._connection is None:
            return True
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        return bool(poll.poll(0))

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request, return the answer.

        Raises:
            WattuneError: what the daemon refuses it with; BoardError also where it does not answer.
        """
        try:
            line = self._exchange(json.dumps(request).encode() + b"\n")
        except OSError as error:
            self._hang_up()
            late = isinstance(error, TimeoutError)
            raise BoardError(
                f"The clock daemon at {self.path} "
                + (f"does not answer within {ANSWER_S:g} s." if late else "has ended."),
                "An answer was expected; without its client the daemon restores the clock.",
                "Look at what it says: `journalctl -u wattune-clockd`.",
            ) from error
        try:
            answer = json.loads(line)
            done = answer["ok"]
            if done is not True:
                kind = _ERRORS[answer["exit_code"]]
                raise kind(*(str(answer[key]) for key in ("what", "expected", "hint")))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise self._strange() from error
        assert isinstance(answer, dict)
        return answer

    def _exchange(self, line: bytes) -> bytes:
        if self._connection is None:
            raise ConnectionResetError
        self._connection.sendall(line)
        deadline, answer = time.monotonic() + ANSWER_S, b""
        while not answer.endswith(b"\n"):
            if time.monotonic() > deadline:
                raise TimeoutError
            data = self._connection.recv(MAX_ANSWER)
            if not data or len(answer) > MAX_ANSWER:
                raise ConnectionResetError
            answer += data
        return answer

    def _no_connection(self, error: OSError) -> BoardError:
        if error.errno in NO_PERMISSION:
            return BoardError(
                f"You may not use the clock daemon at {self.path}.",
                f"A member of its group ({GROUP}) was expected.",
                f"Type `sudo usermod -aG {GROUP} $USER`, then log out and in again.",
            )
        return BoardError(
            f"The clock daemon does not listen at {self.path}: {reason_of(error).lower()}.",
            "A running daemon was expected.",
            "Type `sudo systemctl start wattune-clockd.socket`, or `sudo wattune clockd` by hand.",
        )

    def _strange(self) -> BoardError:
        return BoardError(
            f"The answer of the clock daemon at {self.path} makes no sense to this version of wattune.",
            "A daemon of the same version was expected.",
            "Restart it: `sudo systemctl restart wattune-clockd`.",
        )
