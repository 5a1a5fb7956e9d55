"""``wattune clockd``: a small daemon that holds the GPU's clock for users who may not write the node.

It listens at a socket that only root and one group may connect to, and takes one line of JSON for a request, of three kinds:

    {"do": "pin", "hz": 612000000}   {"do": "restore"}   {"do": "status"}

One client holds the clock; it is restored when that client asks for it, hangs up or ends, and when the daemon is stopped. If the
daemon is killed, the watchdog of its lease restores. A client names a clock of the board's table and nothing else: no path, no
command, no other file.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import fcntl
import grp
import json
import logging
import os
import pwd
import selectors
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from wattune import __version__
from wattune.boards.jetson.diagnosis import why_no_clock
from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.boards.jetson.root import add_root_argument, sysfs_of
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError, WattuneError
from wattune.core.settings import hz_to_mhz, setting_label
from wattune.governing import state
from wattune.governing.bounds import read_bounds, reason_of, refusal
from wattune.governing.client import (
    GROUP,
    NO_PERMISSION,
    SOCKET,
    VARIABLE,
    socket_address,
    why_not_writable,
)
from wattune.governing.lease import Lease, refuse_read_only

log = logging.getLogger("wattune")

MAX_LINE = 1024
"""Bytes of a request, its newline left out."""

MAX_CLIENTS = 32
LINE_S = 5.0
"""A line that was begun must end within this time."""

IDLE_S = 60.0
"""A client that holds nothing and asks nothing is let go after this time."""

TICK_S = 0.5
LOOK_S = 1.0
"""A board without a GPU node is looked at again at most this often."""

KEPT = 20
"""Events and pins of a lease that are kept; a client may move it a million times."""

SD_LISTEN_FDS_START = 3
REQUESTS = {"pin": {"do", "hz"}, "restore": {"do"}, "status": {"do"}}
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# --- the command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune clockd``."""
    add_root_argument(parser)
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help=f"where to listen (default: ${VARIABLE}, else /run/wattune/{SOCKET}, under --root DIR in DIR/run/wattune or beside"
        " a mounted tree); unused where systemd hands the socket over",
    )
    parser.add_argument(
        "--group", default=GROUP, help="the group that may connect, besides root (default: %(default)s)"
    )
    parser.add_argument(
        "--recover",
        action="store_true",
        help="do not listen: restore what a killed daemon or run left pinned, and return",
    )


def run(args: argparse.Namespace) -> int:
    """Serve until a signal ends it; returns the exit code.

    Raises:
        InputError: the root is no folder.
        BoardError: not permitted to set the clock, another daemon listens, or the socket cannot be made.
    """
    sysfs = sysfs_of(args)
    recover(sysfs)
    if args.recover:
        sysfs.close()
        return 0
    daemon = Daemon(sysfs)
    daemon.refuse_where_not_permitted()
    given = os.environ.get(VARIABLE)
    path = args.socket or (Path(given) if given else None)
    with contextlib.ExitStack() as stack:
        listener = listener_of_systemd()
        if listener is None:
            path = path or place_to_listen(sysfs)
            listener = stack.enter_context(listening(path, args.group))
            where = str(path)
        else:
            stack.enter_context(listener)
            where = str(listener.getsockname())
        sys.stdout.write(f"listening at {where}\n")
        sys.stdout.flush()
        daemon.serve(listener)
    return 0


def recover(sysfs: Sysfs) -> None:
    """Restore what dead holders left pinned; what was left on purpose stays. Never raises for what one file says."""
    for item in state.stale(sysfs):
        if item.record is None or item.record.detached:
            continue
        try:
            lock = state.lock_node(sysfs, item.path.parent, item.record.node)
        except WattuneError:
            continue  # somebody else deals with it
        try:
            record = state.load(item.path, sysfs)  # its watchdog may have dealt with it meanwhile
            if record is not None and not record.detached:
                outcome = record.put_back(sysfs)
                if outcome.kind in ("restored", "gone"):
                    state.remove(item.path)
                log.warning(
                    "wattune: %s ended without restoring the GPU clock. %s", record.holder, outcome.text
                )
        except WattuneError as error:
            log.warning("wattune: %s", error)
        finally:
            lock.release()


# --- the socket


def place_to_listen(sysfs: Sysfs) -> Path:
    """Where to listen at where nobody named a place: one of those that clients look at, the first in which sockets can be made.

    The run folder of a mounted tree takes files only; then it is the folder beside it that the tree's path determines.

    Raises:
        BoardError: there is no folder that can be written.
    """
    first = state.usable_folder(sysfs)
    for folder in dict.fromkeys((first, *state.folders(sysfs))):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            _try_socket_in(folder)
        except OSError:
            continue
        return folder / SOCKET
    return first / SOCKET  # which then says why not


def _try_socket_in(folder: Path) -> None:
    """Make a socket and remove it.

    Raises:
        OSError: none can be made there.
    """
    trial = folder / f".{SOCKET}.{os.getpid()}"
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as probe:
        before = os.umask(0o177)
        try:
            with socket_address(trial) as address:
                probe.bind(address)
        finally:
            os.umask(before)
        trial.unlink()


def listener_of_systemd() -> socket.socket | None:
    """The socket systemd made for us (``LISTEN_PID``, ``LISTEN_FDS``); None where it did not.

    Raises:
        BoardError: what it handed over is no listening stream socket.
    """
    meant, count = os.environ.pop("LISTEN_PID", ""), os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if meant != str(os.getpid()):
        return None
    wrong = BoardError(
        f"systemd handed over {count or 'no'} sockets that cannot be listened at.",
        "One Unix stream socket was expected.",
        "Use wattune-clockd.socket as it is delivered.",
    )
    if count != "1":
        raise wrong
    try:
        listener = socket.socket(fileno=SD_LISTEN_FDS_START)
        listener.set_inheritable(False)
        listens = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if (listener.family, listener.type) != (socket.AF_UNIX, socket.SOCK_STREAM) or not listens:
            raise wrong
    except OSError as error:
        raise wrong from error
    return listener


@contextlib.contextmanager
def listening(path: Path, group: str) -> Iterator[socket.socket]:
    """A socket to listen at, for root and a group; one left by a killed daemon is replaced.

    Raises:
        BoardError: another daemon listens there, something else is there, or it cannot be made.
    """
    lock = -1
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open(path.with_name(f"{path.name}.lock"), flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BoardError(
                f"Another clock daemon listens at {path}.",
                "One daemon per board was expected.",
                "Use that one, or stop it first: `sudo systemctl stop wattune-clockd.socket wattune-clockd`.",
            ) from None
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise OSError(errno.EEXIST, "something that is no socket is there", str(path))
            path.unlink()
        before = os.umask(0o177)
        try:
            with socket_address(path) as address:
                listener.bind(address)
        finally:
            os.umask(before)
        _open_to(path, group)
        listener.listen(MAX_CLIENTS)
    except OSError as error:
        _shut(listener, lock)
        raise BoardError(
            f"The socket {path} could not be made: {reason_of(error).lower()}.",
            "A folder you may write to was expected.",
            "Run it as root, or give --socket a place of your own.",
        ) from error
    except BaseException:
        _shut(listener, lock)
        raise
    try:
        yield listener
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
        _shut(listener, lock)


def _shut(listener: socket.socket, lock: int) -> None:
    listener.close()
    if lock >= 0:
        os.close(lock)


def _open_to(path: Path, group: str) -> None:
    """Let a group connect; where that cannot be done the socket stays ours alone."""
    try:
        os.chown(path, -1, grp.getgrnam(group).gr_gid)
        path.chmod(0o660)
    except (KeyError, PermissionError) as error:
        why = "does not exist" if isinstance(error, KeyError) else "is not one you may give it to"
        log.warning(
            "wattune: The group '%s' %s, so only you and root may connect. Type `sudo groupadd --system %s`, then start"
            " it again.",
            group,
            why,
            group,
        )


# --- the daemon


class _Peer:
    """A client: its socket, who it is, and what it has sent so far."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        size = struct.calcsize("3i")
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
        self.pid, self.uid, _ = struct.unpack("3i", credentials)
        self.started = state.process_start(self.pid)
        self.since = time.monotonic()
        self.pending = bytearray()
        self.ended = False
        self.name = f"{_program(self.pid)} (process {self.pid}) of user {_user(self.uid)}"

    @property
    def has_line(self) -> bool:
        return b"\n" in self.pending

    def lives(self) -> bool:
        """Whether its process runs, as far as it can be seen: a forked child may keep the connection open."""
        return self.started is None or state.process_start(self.pid) == self.started


def _program(pid: int) -> str:
    """A process's name, which it chooses itself: printable ASCII only."""
    try:
        text = Path(f"/proc/{pid}/comm").read_text("ascii", "replace")
    except OSError:
        text = ""
    return "".join(c for c in text if c.isascii() and c.isprintable())[:16].strip() or "a client"


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class Daemon:
    """Holds at most one lease, for one client at a time.

    Args:
        sysfs: the tree.
    """

    def __init__(self, sysfs: Sysfs) -> None:
        self._sysfs = sysfs
        self._findings: Findings | None = None
        self._looked = float("-inf")
        self._lease: Lease | None = None
        self._holder: _Peer | None = None
        self._peers: list[_Peer] = []
        self._selector = selectors.DefaultSelector()
        self._stopping = False

    def refuse_where_not_permitted(self) -> None:
        """Say at the start what would be refused at every pin.

        Raises:
            BoardError: the node may not be written by us.
        """
        node = self._look()
        if node is None or node.read_only:
            log.warning("wattune: For now no clock can be pinned: %s.", self._why_no_node().rstrip("."))
            return
        error = why_not_writable(self._sysfs, node)
        if error is not None and error.errno in NO_PERMISSION:
            raise refusal(error, node.path)

    def serve(self, listener: socket.socket) -> None:
        """Answer clients until SIGINT, SIGTERM or SIGHUP; the clock is restored at the end."""
        wake, woken = socket.socketpair()
        for end in (listener, wake, woken):
            end.setblocking(False)
        wakeup = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        previous = {number: signal.signal(number, self._stop) for number in SIGNALS}
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(wake, selectors.EVENT_READ)
        try:
            while not self._stopping:
                for key, _ in self._selector.select(self._patience_s()):
                    if key.fileobj is listener:
                        self._accept(listener)
                    elif key.fileobj is wake:
                        with contextlib.suppress(BlockingIOError):
                            wake.recv(64)
                    else:
                        self._receive(key.data)
                for peer in list(self._peers):  # one request each in turn
                    if peer.has_line and not self._stopping:
                        self._serve_one(peer)
                self._drop_overdue()
        finally:
            for peer in list(self._peers):
                self._drop(peer)
            self._selector.close()
            for number, handler in previous.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            wake.close()
            woken.close()
            self._sysfs.close()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stopping = True

    def _patience_s(self) -> float | None:
        if any(peer.has_line for peer in self._peers):
            return 0.0
        return TICK_S if self._peers else None

    # --- connections

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                time.sleep(0.1)  # it stays readable: do not spin
            return
        try:
            connection.setblocking(False)
            peer = _Peer(connection)
        except OSError:
            connection.close()
            return
        self._peers.append(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        if len(self._peers) > MAX_CLIENTS:
            self._send(peer, _refused(_busy(len(self._peers) - 1)))
            self._drop(peer)

    def _receive(self, peer: _Peer) -> None:
        if peer not in self._peers:
            return
        room = MAX_LINE + 1 - len(peer.pending)
        if room <= 0:
            return  # whole lines are waiting for their turn
        try:
            data = peer.connection.recv(room)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._drop(peer)
            return
        if not data:
            peer.ended = True
            self._selector.unregister(peer.connection)
            if not peer.has_line:
                self._drop(peer)
            return
        if not peer.pending:
            peer.since = time.monotonic()
        peer.pending += data
        if len(peer.pending) > MAX_LINE and not peer.has_line:
            self._send(peer, _refused(_no_request(f"it has more than {MAX_LINE} bytes")))
            self._drop(peer)

    def _serve_one(self, peer: _Peer) -> None:
        line, _, rest = bytes(peer.pending).partition(b"\n")
        peer.pending[:] = rest
        answer = self._answer(peer, line)
        peer.since = time.monotonic()
        if not self._send(peer, answer) or (peer.ended and not peer.has_line):
            self._drop(peer)

    def _send(self, peer: _Peer, answer: dict[str, Any]) -> bool:
        """Whether the answer went out whole; a client that does not read its answers is none."""
        data = json.dumps(answer).encode() + b"\n"
        try:
            return peer.connection.send(data) == len(data)
        except OSError:
            return False

    def _drop_overdue(self) -> None:
        now = time.monotonic()
        for peer in list(self._peers):
            waited_s = now - peer.since
            if peer.pending and not peer.has_line and waited_s > LINE_S:
                self._send(peer, _refused(_no_request(f"it did not end within {LINE_S:g} s")))
                self._drop(peer)
            elif (peer is self._holder and not peer.lives()) or (
                peer is not self._holder and waited_s > IDLE_S
            ):
                self._drop(peer)

    def _drop(self, peer: _Peer) -> None:
        """Close a connection; what its client holds is restored."""
        if peer not in self._peers:
            return
        self._peers.remove(peer)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(peer.connection)
        try:
            if peer is self._holder:
                self._end_lease("its client went away")
        finally:
            peer.connection.close()

    # --- requests

    def _answer(self, peer: _Peer, line: bytes) -> dict[str, Any]:
        try:
            request = parse_request(line)
            if request["do"] == "pin":
                answer = self._pin(peer, request["hz"])
            elif request["do"] == "restore":
                answer = self._restore(peer)
            else:
                answer = self._status(peer)
        except WattuneError as error:
            return _refused(error)
        except OSError as error:
            return _refused(refusal(error, "the GPU's devfreq node"))
        return {"ok": True, **answer}

    def _pin(self, peer: _Peer, hz: int) -> dict[str, Any]:
        self._must_be_free_for(peer)
        if self._lease is not None:
            _must_be_listed(hz, self._lease.node.table_hz)
            self._lease.move(hz)
        else:
            node = self._look()
            assert self._findings is not None
            if node is None:
                what, expected, hint = why_no_clock(self._findings)
                raise BoardError(f"There is no GPU clock to pin here. {what}", expected, hint)
            refuse_read_only(node)
            _must_be_listed(hz, node.table_hz)
            lease = Lease(self._findings.sysfs, node, hz, cooling=self._findings.cooling or None)
            lease.program = state.DAEMON
            lease.__enter__()
            self._lease, self._holder = lease, peer
        lease, saved = self._lease, self._lease.saved
        assert saved is not None
        self._trim()
        log.info("wattune: Pinned at %s MHz for %s.", setting_label(hz_to_mhz(hz)), peer.name)
        return {
            "hz": hz,
            "node": lease.node.path,
            "found_hz": list(saved),
            "state_file": str(lease.state_file),
            "cooling": list(self._findings.cooling.values()) if self._findings is not None else [],
            "notes": [text for _, text in lease.events[:-1]],  # the last one says what the answer says
        }

    def _restore(self, peer: _Peer) -> dict[str, Any]:
        self._must_be_free_for(peer)
        lease = self._end_lease("its client asked for it")
        if lease is None or lease.outcome is None:
            text = "Nothing to restore: you hold no clock."
            return {"outcome": None, "text": text, "bounds_hz": None, "capped": False}
        outcome = lease.outcome
        return {
            "outcome": outcome.kind,
            "text": outcome.text,
            "bounds_hz": None if outcome.bounds is None else list(outcome.bounds),
            "capped": lease.capped,
        }

    def _status(self, peer: _Peer) -> dict[str, Any]:
        node = self._lease.node if self._lease is not None else self._known_node()
        bounds, problem = None, ""
        if node is None:
            problem = self._why_no_node()
        else:
            try:
                bounds = list(read_bounds(self._sysfs, node.path))
            except OSError as error:
                problem = reason_of(error)
        held = None
        if self._lease is not None and self._holder is not None:
            self._lease.check()
            self._trim()
            held = {
                "hz": self._lease.hz,
                "found_hz": None if self._lease.saved is None else list(self._lease.saved),
                "by": self._holder.name,
                "yours": self._holder is peer,
                "lost": self._lease.lost or None,
            }
        return {
            "version": __version__,
            "node": None if node is None else node.path,
            "table_hz": [] if node is None else list(node.table_hz),
            "bounds_hz": bounds,
            "held": held,
            "problem": problem or None,
        }

    def _trim(self) -> None:
        """A client may move its lease a million times: forget what was long ago."""
        assert self._lease is not None
        del self._lease.events[:-KEPT], self._lease.pins[:-KEPT]

    def _must_be_free_for(self, peer: _Peer) -> None:
        if self._holder is not None and self._holder is not peer:
            assert self._lease is not None
            raise BoardError(
                f"The GPU clock is already held by {self._holder.name}, at {hz_to_mhz(self._lease.hz):g} MHz.",
                "A clock that nobody else holds was expected.",
                "Let it end, and run the same command again.",
            )

    def _end_lease(self, why: str) -> Lease | None:
        """End the lease, where there is one; how it ended is in its `outcome`."""
        lease, holder = self._lease, self._holder
        if lease is None or holder is None:
            return None
        with contextlib.suppress(BoardError):
            lease.__exit__(None, None, None)
        self._lease = self._holder = None
        text = "The clock's files do not answer." if lease.outcome is None else lease.outcome.text
        log.info("wattune: The pin of %s has ended: %s. %s", holder.name, why, text)
        return lease

    # --- the board

    def _look(self) -> GpuNode | None:
        """The GPU's node as it is now: it may appear late, and go away."""
        self._looked = time.monotonic()
        self._findings = discover(self._sysfs)
        return self._findings.gpu

    def _known_node(self) -> GpuNode | None:
        known = None if self._findings is None else self._findings.gpu
        if known is None and time.monotonic() - self._looked > LOOK_S:
            return self._look()
        return known

    def _why_no_node(self) -> str:
        findings = self._findings
        if findings is None:
            return "no node was found"
        return findings.gpu.read_only if findings.gpu is not None else why_no_clock(findings)[0]


# --- requests and answers


def parse_request(line: bytes) -> dict[str, Any]:
    """A request, checked: nothing in it is used that is not one of a few words or a number.

    Raises:
        InputError: it is none.
    """
    try:
        request = json.loads(line.decode("utf-8"))
    except (ValueError, RecursionError):
        raise _no_request("it is not JSON") from None
    if not isinstance(request, dict):
        raise _no_request("it is no JSON object")
    do = request.get("do")
    if not isinstance(do, str) or do not in REQUESTS:
        raise _no_request("what to do is none of pin, restore and status")
    if set(request) != REQUESTS[do]:
        raise _no_request(f"'{do}' takes {'hz and nothing else' if do == 'pin' else 'nothing else'}")
    if do == "pin" and (type(request["hz"]) is not int or not 0 < request["hz"] < 1 << 40):
        raise _no_request("hz is no positive whole number")
    return request


def _must_be_listed(hz: int, table_hz: tuple[int, ...]) -> None:
    if hz not in table_hz:
        near = sorted(sorted(table_hz, key=lambda entry: abs(entry - hz))[:2])
        raise InputError(
            f"{hz} Hz is not a clock of this board.",
            f"The nearest listed clocks are {' and '.join(map(str, near))} Hz.",
            "`wattune doctor` lists them all.",
        )


def _no_request(why: str) -> InputError:
    return InputError(
        f"The request was refused: {why}.",
        'One line was expected: {"do": "pin", "hz": N}, {"do": "restore"} or {"do": "status"}.',
        "docs/permissions.md describes them.",
    )


def _busy(clients: int) -> BoardError:
    return BoardError(
        f"The clock daemon has {clients} clients already.",
        "Fewer were expected: one holds the clock, others only ask.",
        "Try again in a minute.",
    )


def _refused(error: WattuneError) -> dict[str, Any]:
    return {
        "ok": False,
        "exit_code": error.exit_code,
        "what": error.what,
        "expected": error.expected,
        "hint": error.hint,
    }
