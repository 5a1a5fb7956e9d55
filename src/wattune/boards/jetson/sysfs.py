"""Reading and writing a board's files, under the machine's root or another one."""

from __future__ import annotations

import copy
import errno
import json
import os
import select
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from wattune.boards.jetson import filework
from wattune.boards.jetson.filework import read_file, write_file

__all__ = ["Sysfs", "read_file", "write_file"]

MAX_LINKS = 40
START_TIMEOUT_S = 20.0
"""For the helper process to come up, on a board that is busy."""


class Sysfs:
    """A file tree with ``sys``, ``proc`` and ``etc``.

    Files are read with one `read(2)` and written with one `write(2)`, as drivers expect; nothing is created or truncated.
    Links in a tree elsewhere are followed within it, absolute ones too: nothing outside it is ever read or written.

    Args:
        root: where the tree lies; ``/`` is the machine itself.
        timeout_s: give a read or write up after this time (a deadlocked driver never returns); None waits for ever. With a
            limit the work is done by a helper process, which is left behind where it hangs: a thread of our own would
            keep us from ending. A write that was given up may still take effect later.
    """

    def __init__(self, root: Path = Path("/"), *, timeout_s: float | None = None) -> None:
        self.root, self.timeout_s = root, timeout_s
        self._helper: _Helper | None = None
        self._lock = threading.Lock()

    @property
    def is_machine(self) -> bool:
        """Whether this is the machine itself and not a tree elsewhere."""
        return self.root == Path("/")

    def typed(self, words: str) -> str:
        """What to type to have a command of ours work on this tree, ``wattune restore --root DIR`` for example.

        Args:
            words: the subcommand and its options.
        """
        return f"wattune {words}" + ("" if self.is_machine else f" --root {shlex.quote(str(self.root))}")

    def within(self, timeout_s: float) -> Sysfs:
        """The same tree with a time limit."""
        other = copy.copy(self)
        other.timeout_s, other._helper, other._lock = timeout_s, None, threading.Lock()
        return other

    def path(self, relative: str) -> Path:
        """The file's path on this machine, e.g. for ``sys/class/devfreq``; in a tree elsewhere with its links followed.

        Raises:
            OSError: its links are a loop.
        """
        if self.is_machine:
            return self.root / relative.lstrip("/")
        return self.root / self._followed(relative)

    def read(self, relative: str) -> str:
        """A file's text, without the newline or NUL at its end.

        Raises:
            OSError: as the driver gives it; ``TimeoutError`` where it did not return in time.
        """
        path = self.path(relative)
        if self.timeout_s is None:
            return read_file(path)
        return str(self._ask("read", path))

    def write(self, relative: str, text: str) -> None:
        """Write a text to a file that is there, newline added.

        Raises:
            OSError: as the driver gives it; ``TimeoutError`` where it did not return in time.
        """
        path = self.path(relative)
        if self.timeout_s is None:
            write_file(path, text)
        else:
            self._ask("write", path, text)

    def names(self, relative: str) -> list[str]:
        """Sorted names in a folder.

        Raises:
            OSError: it is missing, or no folder.
        """
        path = self.path(relative)
        if self.timeout_s is None:
            return filework.list_folder(path)
        return [str(name) for name in self._ask("list", path)]

    def exists(self, relative: str) -> bool:
        """Whether something is there."""
        try:
            return os.path.exists(self.path(relative))  # noqa: PTH110  # unlike pathlib's it never raises
        except OSError:
            return False

    def real(self, relative: str) -> str:
        """What a link leads to, as a path in this tree (links in a tree elsewhere may be absolute); a loop leads to itself."""
        if self.is_machine:
            return os.path.realpath(self.path(relative)).lstrip("/")
        try:
            return self._followed(relative)
        except OSError:
            return relative.lstrip("/")

    def close(self) -> None:
        """End the helper process, where there is one."""
        with self._lock:
            if self._helper is not None:
                self._helper.leave()
                self._helper = None

    def _followed(self, relative: str) -> str:
        """The path with all links resolved as if the root were ``/``."""
        root = str(self.root.absolute())
        done: list[str] = []
        left, links = relative.split("/")[::-1], 0
        while left:
            part = left.pop()
            if part in ("", "."):
                continue
            if part == "..":
                del done[-1:]
                continue
            try:
                target = os.readlink(os.path.join(root, *done, part))  # noqa: PTH115, PTH118  # on the way of every read
            except OSError:
                done.append(part)
                continue
            links += 1
            if links > MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), relative)
            if target.startswith("/"):
                done.clear()
                if target.startswith(f"{root}/"):
                    target = target[len(root) :]
            left.extend(target.split("/")[::-1])
        return "/".join(done)

    def _ask(self, operation: str, path: Path, text: str = "") -> Any:
        assert self.timeout_s is not None
        with self._lock:
            if self._helper is None:
                self._helper = _Helper()
            try:
                answer = self._helper.ask([operation, str(path.absolute()), text], self.timeout_s)
            except (TimeoutError, BrokenPipeError) as error:
                self._helper.leave()
                self._helper = None
                reason = f"no answer within {self.timeout_s:g} s"
                raise TimeoutError(errno.ETIMEDOUT, reason, str(path)) from error
            except (
                BaseException
            ):  # interrupted: an answer that is still to come must not be taken for the next one's
                self._helper.leave()
                self._helper = None
                raise
        if len(answer) == 2:
            raise OSError(answer[0], answer[1], str(path))
        return answer[0]


class _Helper:
    """The process that works for a `Sysfs` with a time limit."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(filework.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._pending = b""
        self._line(START_TIMEOUT_S)

    def ask(self, request: list[str], timeout_s: float) -> list[Any]:
        """Send a request and wait for its answer.

        Raises:
            TimeoutError: no answer in time.
            BrokenPipeError: the helper is gone.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        answer: list[Any] = json.loads(self._line(timeout_s))
        return answer

    def leave(self) -> None:
        """End it; one that hangs in the kernel is left behind."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        try:
            self._process.wait(0.05)
        except subprocess.TimeoutExpired:
            return

    def _line(self, timeout_s: float) -> bytes:
        assert self._process.stdout is not None
        handle, until = self._process.stdout.fileno(), time.monotonic() + timeout_s
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while b"\n" not in self._pending:
            left_ms = (until - time.monotonic()) * 1e3
            if left_ms <= 0 or not poll.poll(left_ms):
                raise TimeoutError
            data = os.read(handle, filework.MAX_BYTES)
            if not data:
                raise BrokenPipeError
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return line
