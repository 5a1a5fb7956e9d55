"""A command run as if we were not there: its input and output are ours, signals go through, its exit code comes back.

Signals that come for us alone are passed on; those that the terminal sends to the whole group the command has got already.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

PASSED_ON = (
    signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT,
)  # fmt: skip
WATCHED = (*PASSED_ON, signal.SIGCHLD)
FROM_KERNEL = 0x80
"""``si_code`` of a signal that the terminal sends (SI_KERNEL)."""

NOT_FOUND, NOT_RUNNABLE, BY_SIGNAL = 127, 126, 128
SUBREAPER = 36
"""``PR_SET_CHILD_SUBREAPER``: what the command leaves behind becomes a child of ours, so that it is seen."""


class NotStartedError(Exception):
    """The command cannot run.

    Args:
        text: a sentence.
        exit_code: 127 not found, 126 not runnable.
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


def check_command(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """See that a command is there before anything is pinned for it.

    Raises:
        NotStartedError: it is not.
    """
    name = command[0]
    if shutil.which(name, path=environment.get("PATH")) is not None:
        return
    if (os.sep in name and _may_be_there(Path(name))) or shutil.which(
        name, mode=os.F_OK, path=environment.get("PATH")
    ):
        raise NotStartedError(f"'{name}' may not be run. Nothing was pinned.", NOT_RUNNABLE)
    raise NotStartedError(f"There is no command '{name}'. Nothing was pinned.", NOT_FOUND)


def _may_be_there(path: Path) -> bool:
    """Whether it is there, or lies where this user may not look; a shell takes both for one that may not be run."""
    try:
        return path.exists()
    except OSError:
        return True


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Signals stand in line, for this thread and those started within, until :func:`run_command` takes them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    try:
        yield
    finally:
        for number in signal.sigpending() & set(
            PASSED_ON
        ):  # what came after the command ended was meant for it
            signal.sigtimedwait({number}, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def came_already() -> int | None:
    """A signal that came before anything was started and that ends a program."""
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT} & signal.sigpending()
    return min(ends) if ends else None


def run_command(command: Sequence[str], environment: Mapping[str, str]) -> tuple[int, bool]:
    """Run it; to be called within :func:`signals_kept`.

    Args:
        command: the command and its arguments.
        environment: its environment.

    Returns:
        Its exit code (128 + n where signal n killed it), and whether processes of it still run.

    Raises:
        NotStartedError: it could not be started.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    helpers = _children()
    ignored = [n for n in PASSED_ON if signal.getsignal(n) == signal.SIG_IGN]
    defaults = [n for n in (*PASSED_ON, signal.SIGPIPE) if n not in ignored]
    try:
        pid = os.posix_spawnp(command[0], list(command), environment, setsigmask=(), setsigdef=defaults)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotStartedError(
            f"'{command[0]}' could not be run: it, or the interpreter it names, is not there.", NOT_FOUND
        ) from error
    except OSError as error:
        raise NotStartedError(f"'{command[0]}' could not be run: {error.strerror}.", NOT_RUNNABLE) from error
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        came = signal.sigwaitinfo(WATCHED)
        if came.si_signo == signal.SIGCHLD:
            _bury(_children() - helpers - {pid})
        elif came.si_code != FROM_KERNEL:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, came.si_signo)
    code = os.waitstatus_to_exitcode(status)
    _bury(_children() - helpers)
    left = [child for child in _children() - helpers if not _helps(child)]
    return (BY_SIGNAL - code if code < 0 else code), bool(left)


def _children() -> set[int]:
    """Our children now."""
    me, found = os.getpid(), set()
    for entry in os.listdir("/proc"):  # noqa: PTH208  # called at every end of a child
        if entry.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                text = Path(f"/proc/{entry}/stat").read_bytes()
                if int(text.rpartition(b")")[2].split()[1]) == me:
                    found.add(int(entry))
    return found


def _helps(pid: int) -> bool:
    """Whether it is a process of ours that reads files or keeps watch, started anew meanwhile."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"filework.py" in words or b"wattune.governing.watchdog" in words
    return True


def _bury(pids: set[int]) -> None:
    """Take the exit status of what has ended among them."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def say(text: str) -> None:
    """A line on stderr, whatever became of it."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
