"""Reading and writing a board's files, under the machine's root or another one."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MAX_BYTES = 1 << 16


class Sysfs:
    """A file tree with ``sys``, ``proc`` and ``etc``.

    Files are read with one `read(2)` and written with one `write(2)`, as drivers expect; nothing is created or truncated.

    Args:
        root: where the tree lies; ``/`` is the machine itself.
        timeout_s: give a read or write up after this time (a deadlocked driver never returns); None waits for ever.
    """

    def __init__(self, root: Path = Path("/"), *, timeout_s: float | None = None) -> None:
        self.root, self.timeout_s = root, timeout_s

    @property
    def is_machine(self) -> bool:
        """Whether this is the machine itself and not a tree elsewhere."""
        return self.root == Path("/")

    def path(self, relative: str) -> Path:
        """The file's path on this machine, e.g. for ``sys/class/devfreq``."""
        return self.root / relative.lstrip("/")

    def read(self, relative: str) -> str:
        """A file's text, without the newline or NUL at its end.

        Raises:
            OSError: as the driver gives it; ``TimeoutError`` where it did not return in time.
        """
        return self._in_time(lambda: read_file(self.path(relative)), relative)

    def write(self, relative: str, text: str) -> None:
        """Write a text to a file that is there, newline added.

        Raises:
            OSError: as the driver gives it; ``TimeoutError`` where it did not return in time.
        """
        self._in_time(lambda: write_file(self.path(relative), text), relative)

    def names(self, relative: str) -> list[str]:
        """Sorted names in a folder.

        Raises:
            OSError: it is missing, or no folder.
        """
        return self._in_time(lambda: sorted(os.listdir(self.path(relative))), relative)

    def exists(self, relative: str) -> bool:
        """Whether something is there."""
        return self.path(relative).exists()

    def real(self, relative: str) -> str:
        """What a link leads to, as a path in this tree (links in a tree elsewhere may be absolute)."""
        path = self.path(relative).resolve()
        try:
            return str(path.relative_to(self.root.resolve()))
        except ValueError:
            return str(path).lstrip("/")

    def _in_time(self, call: Callable[[], T], what: str) -> T:
        if self.timeout_s is None:
            return call()
        done: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                done.append(call())
            except BaseException as error:  # noqa: BLE001  # handed to the caller below
                failed.append(error)

        thread = threading.Thread(target=work, daemon=True, name=f"sysfs {what}")
        thread.start()
        thread.join(self.timeout_s)
        if failed:
            raise failed[0]
        if not done:
            raise TimeoutError(errno.ETIMEDOUT, f"no answer within {self.timeout_s:g} s", what)
        return done[0]


def read_file(path: Path) -> str:
    """One read of a file. Python's own file objects take EAGAIN, which a powered-off block gives, for something else."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, MAX_BYTES).decode("utf-8", "replace").rstrip("\n\0")
    finally:
        os.close(handle)


def write_file(path: Path, text: str) -> None:
    """One write to a file that is there."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        data = f"{text}\n".encode()
        if os.write(handle, data) != len(data):
            raise OSError(errno.EIO, "the write was cut short", str(path))
    finally:
        os.close(handle)
