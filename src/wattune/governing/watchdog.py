"""A small process that restores the clock when its holder is killed: SIGKILL, the OOM killer, a crash in a driver's library.

It lives in a session of its own, so that what ends the holder's process group does not end it, and waits for the end of a pipe
of which the holder has the only other end, or for the holder's own end (a forked child may have kept the pipe open). If the
lease file still stands then, it does what the holder would have done. It also keeps the holder's locks until then.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, WattuneError
from wattune.governing import state
from wattune.governing.bounds import commands

READY = b"ready\n"
DETACH = b"d"
START_S = 20.0
"""How long its start may take; a loaded board is slow."""

POLL_S = 1.0
TIMEOUT_S = 5.0
RETRY_S = (0.1, 0.2, 0.5, 1.0, 2.0, 4.0)

_START = "import sys; sys.path.append(sys.argv.pop(1)); from wattune.governing.watchdog import main; main(sys.argv[1:])"


class Watchdog:
    """The running watchdog, seen by its holder.

    Args:
        root: root of the tree.
        lease_file: what it will restore by.
        locks: open, locked files it keeps.

    Raises:
        BoardError: it could not be started.
    """

    def __init__(self, root: Path, lease_file: Path, locks: Sequence[int]) -> None:
        read_end, self._pipe = os.pipe()  # both close on exec
        package = Path(__file__).parents[2]
        command = [sys.executable, "-I", "-S", "-c", _START, str(package)]
        command += [str(root), str(lease_file), str(os.getpid()), str(read_end), ",".join(map(str, locks))]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                pass_fds=(read_end, *locks),
                start_new_session=True,
                cwd="/",
            )
        except OSError as error:
            os.close(self._pipe)
            raise _no_watchdog(error.strerror or str(error)) from error
        finally:
            os.close(read_end)
        assert self._process.stdout is not None
        with self._process.stdout as said:
            readable, _, _ = select.select([said], [], [], START_S)
            if not readable or os.read(said.fileno(), len(READY)) != READY:
                self._process.kill()
                self.dismiss()
                raise _no_watchdog("it did not get ready")

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def dismiss(self, *, detach: bool = False) -> None:
        """Let it end. Where the lease file still stands it restores first, unless told to leave the pin (`detach`)."""
        if detach:
            with contextlib.suppress(OSError):
                os.write(self._pipe, DETACH)
        self.forget()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(2.0)

    def forget(self) -> None:
        """Close our end of the pipe, as a forked child must."""
        pipe, self._pipe = self._pipe, -1
        if pipe >= 0:
            with contextlib.suppress(OSError):
                os.close(pipe)


def _no_watchdog(why: str) -> BoardError:
    return BoardError(
        f"The clock is not pinned: the process that restores it if this one is killed could not be started ({why}).",
        "A Python interpreter that can be started was expected.",
        "Free some memory, check the process limit (`ulimit -u`), and run the same command again.",
    )


# --- the process itself


def main(arguments: Sequence[str]) -> None:
    """Wait for the holder's end, then restore; `arguments` as :class:`Watchdog` gives them."""
    root, lease_file, pid, pipe, locks = arguments
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(OSError):  # it must outlive what the OOM killer chooses
        Path("/proc/self/oom_score_adj").write_text("-1000")
    holder = _Holder(int(pid))
    with contextlib.suppress(BrokenPipeError):  # the holder died meanwhile: what it left is looked at below
        os.write(1, READY)
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
    os.close(null)
    if _detached_at_end(int(pipe), holder):
        return
    try:
        _restore(Sysfs(Path(root), timeout_s=TIMEOUT_S), Path(lease_file), int(pid))
    finally:
        lock = state.Lock()
        lock.handles = [int(handle) for handle in locks.split(",") if handle]
        lock.release()


class _Holder:
    """Tells when a process has ended."""

    def __init__(self, pid: int) -> None:
        self._pid, self._started = pid, state.process_start(pid)
        self.handle: int | None = None
        with contextlib.suppress(OSError, AttributeError):  # needs Linux 5.3
            self.handle = os.pidfd_open(pid)

    def ended(self) -> bool:
        return self._started is None or state.process_start(self._pid) != self._started


def _detached_at_end(pipe: int, holder: _Holder) -> bool:
    """Wait until the holder is gone; whether it asked for the pin to be left."""
    watched = [pipe] if holder.handle is None else [pipe, holder.handle]
    while True:
        readable, _, _ = select.select(watched, [], [], POLL_S if holder.handle is None else None)
        if pipe in readable:
            return os.read(pipe, 1) == DETACH
        if readable or holder.ended():
            return False


def _restore(sysfs: Sysfs, lease_file: Path, pid: int) -> None:
    for pause in (*RETRY_S, None):
        try:
            record = state.load(lease_file, sysfs)
            if record is None or record.detached or record.pid != pid:
                return
            outcome = record.put_back(sysfs)
            if outcome.kind in ("restored", "gone"):
                state.remove(lease_file)
                _say(f"{record.holder} ended without restoring the GPU clock. {outcome.text}")
                return
            if outcome.kind == "left":
                _say(f"{record.holder} ended without restoring the GPU clock. {outcome.text}")
                return
        except WattuneError as error:
            _say(str(error))
            return
        if pause is None:
            hint = commands(sysfs, record.node, record.saved)
            _say(f"{outcome.text} Type `{sysfs.typed('restore')}`, or as root: {hint}")
            return
        time.sleep(pause)


def _say(text: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.write(f"wattune: {text}\n")
        sys.stderr.flush()
