"""Serving a tree as an ordinary folder that a poller keeps alive, where FUSE cannot be mounted.

Contents are updated in place, so that descriptors readers keep open go on showing the present. What somebody wrote into a
file with a store is found at the next poll and handed to the store; where that refuses it, the file's content is put back.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.boards.virtual.emulator import supervisor
from wattune.boards.virtual.emulator.tree import Entry, File, Tree

LIMITS = (
    "A plain directory cannot refuse a write (it is put back at the next poll), hang, or answer a read with EIO or ENODATA "
    "(the file is absent meanwhile); a value written and read back within the polling interval is the one written."
)
RESET_BY_READING = "counters_reset"
"""Mirroring it would mean reading it at every poll, and reading it resets the GPU's counters: it is left out."""

THOROUGH_EVERY = 10
"""Polls between two looks at the files nobody should have written."""
EMPTY_POLLS = 3
"""Polls for which an emptied file is left to whoever is about to write it."""


@dataclass(slots=True)
class _Copy:
    """What we last made of an entry: content (or the link's target), and the file's stamp after that."""

    content: bytes
    stamp: tuple[int, int, int] | None
    empty_polls: int = 0


class Mirror:
    """A tree mirrored into a folder.

    Args:
        tree: what is served.
        directory: where, resolved; empty.
        lock: held while names are looked up.
        refused: told the path and the reason of each write that was put back.
        run: make the board's volatile folder too, which is everybody's to write in.

    Attributes:
        period_s: time between two polls.
    """

    period_s = 0.04

    def __init__(
        self,
        tree: Tree,
        directory: Path,
        lock: AbstractContextManager[Any],
        refused: Callable[[str, str], None],
        *,
        run: bool = False,
    ) -> None:
        self._tree, self._directory, self._lock, self._refused = tree, directory, lock, refused
        self._copies: dict[str, _Copy] = {}
        self._marked: set[str] = set()
        self._polls = 0
        self._inode = directory.stat().st_ino
        if run:
            tree.run = directory / supervisor.RUN

    def poll(self) -> None:
        """Take what was written, then bring every file to the present.

        Raises:
            OSError: the folder is gone or full.
        """
        if self._directory.stat().st_ino != self._inode:
            raise OSError(errno.ENOENT, "another folder stands in its place")
        entries = self._visible()
        written = []
        for path, copy in self._copies.items():
            entry = entries.get(path)
            if isinstance(entry, File) and (entry.write is not None or self._polls % THOROUGH_EVERY == 0):
                found = self._changed(path, copy)
                if found is not None:
                    written.append((*found, path, entry))
        # In the order in which they were written: where a bound is checked against the other one, it matters.
        for _, text, path, entry in sorted(written, key=lambda w: w[0]):
            self._store(path, entry, text)
        if written:
            entries = self._visible()  # a store may have shown or hidden something
        for path in [path for path in self._copies if path not in entries]:
            self._remove(path)
        run = self._tree.run
        if not entries.keys() <= self._marked or not (self._directory / supervisor.MARKER).exists():
            self._marked |= entries.keys()
            self._mark()
        if run is not None:
            with suppress(FileExistsError):
                run.mkdir(mode=0o755)
        for path, entry in entries.items():
            self._bring(path, entry)
        self._polls += 1

    def close(self) -> None:
        """Remove what was made here."""
        with suppress(OSError):
            self._mark()  # somebody may have removed it, and it says what is ours
        supervisor.remove_mirror(self._directory)

    def _mark(self) -> None:
        supervisor.write_marker(self._directory, sorted(self._marked), run=self._tree.run is not None)

    def _visible(self) -> dict[str, Entry]:
        with self._lock:
            return {p: e for p, e in self._tree.walk() if posixpath.basename(p) != RESET_BY_READING}

    def _changed(self, path: str, copy: _Copy) -> tuple[int, str] | None:
        """When and what somebody wrote into a file, if anybody did."""
        target = self._directory / path
        try:
            stamp = _stamp(target.stat())
            content = target.read_bytes()
        except OSError:  # removed, or something else in its place: `_bring` makes it anew
            copy.stamp = None
            return None
        if stamp == copy.stamp and content == copy.content:
            return None
        if not content.strip():
            # Emptied, not yet written. A file that stays empty was never written, which a device would not notice.
            copy.empty_polls += 1
            if copy.empty_polls > EMPTY_POLLS:
                copy.empty_polls, copy.stamp = 0, None
            return None
        copy.empty_polls, copy.stamp = 0, None
        return stamp[0], content.decode(errors="replace")

    def _store(self, path: str, entry: File, text: str) -> None:
        try:
            if entry.write is None:
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
            entry.write(text)
        except OSError as error:
            self._refused(path, error.strerror or str(error))

    def _bring(self, path: str, entry: Entry) -> None:
        copy = self._copies.get(path)
        if not isinstance(entry, File):
            if copy is None:
                target = self._directory / path
                target.parent.mkdir(parents=True, exist_ok=True)
                target.symlink_to(entry.target)
                self._copies[path] = _Copy(entry.target.encode(), None)
            return
        try:
            if entry.hangs is not None and entry.hangs():
                raise OSError(errno.EIO, "it hangs")
            content = entry.read().encode()
        except OSError:
            self._remove(path)
            return
        settled = copy is not None and copy.stamp is not None and content == copy.content
        if not settled and not (copy is not None and copy.empty_polls):
            self._write(path, content, entry.mode)

    def _write(self, path: str, content: bytes, mode: int) -> None:
        target = self._directory / path
        try:
            handle = os.open(target, os.O_WRONLY | os.O_NOFOLLOW)
        except OSError:
            self._make(target, content, mode)
        else:
            try:
                _replace_in_place(handle, content)
            finally:
                os.close(handle)
        self._copies[path] = _Copy(content, _stamp(target.stat()))

    def _make(self, target: Path, content: bytes, mode: int) -> None:
        """A new file, complete from the moment it is there."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._directory / f"{supervisor.MARKER}.new"
        temporary.write_bytes(content)
        temporary.chmod(mode)
        temporary.replace(target)

    def _remove(self, path: str) -> None:
        if self._copies.pop(path, None) is None:
            return
        with suppress(OSError):
            (self._directory / path).unlink()
        folder = posixpath.dirname(path)
        with suppress(OSError):
            while folder and self._absent(folder):
                (self._directory / folder).rmdir()
                folder = posixpath.dirname(folder)

    def _absent(self, folder: str) -> bool:
        with self._lock:
            return self._tree.hidden(folder)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _replace_in_place(handle: int, content: bytes) -> None:
    """Change an open file's content so that a reader at any moment sees the old or the new one, at most with empty lines after it.

    A shorter text over a longer one would leave the longer one's tail for a moment, and a longer one could be seen cut at
    the shorter one's length: so the file has the longer length, filled up with newlines, while the text changes.
    """
    old = os.fstat(handle).st_size
    if len(content) > old:
        os.pwrite(handle, b"\n" * (len(content) - old), old)
    os.pwrite(handle, content + b"\n" * (old - len(content)), 0)
    if len(content) < old:
        os.ftruncate(handle, len(content))
