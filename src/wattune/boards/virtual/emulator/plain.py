"""Serving a tree as an ordinary folder that a poller keeps alive, where FUSE cannot be mounted.

Contents are updated in place, so that descriptors readers keep open go on showing the present. What somebody wrote into a
file with a store is found at the next poll and handed to the store; where that refuses it, the file's content is put back.

A file with a store has two writers, its clients and us, and no client's write may be lost. So ours happens only where the
board's own text is another than the file's, with everybody else shut out, and not at all where the file is no longer what it
was when its content was taken: then the next poll takes what is there now.
"""

from __future__ import annotations

import errno
import fcntl
import os
import posixpath
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.boards.virtual.emulator import supervisor
from wattune.boards.virtual.emulator.tree import Entry, File, Tree

LIMITS = (
    "A plain directory cannot refuse a write (it is put back at the next poll), hang, or answer a read with EIO or ENODATA "
    "(the file is absent meanwhile); a value written and read back within the polling interval is the one written, and of several "
    "written to one file within it only the last one counts."
)
RESET_BY_READING = "counters_reset"
"""Mirroring it would mean reading it at every poll, and reading it resets the GPU's counters: it is left out."""

THOROUGH_EVERY = 10
"""Polls between two looks at the files nobody should have written."""
LEFT_POLLS = 3
"""Polls for which a file that is empty, or that somebody has open, is left to whoever is about to write it."""
SCANS = 5
"""Looks for further writes within one poll, where somebody writes without end."""
SECOND_NS = 1_000_000_000

Stamp = tuple[int, int, int]


@dataclass(slots=True)
class _Copy:
    """An entry's file when we last looked at it or wrote it: content (or the link's target), and stamp, None where it was gone."""

    content: bytes
    stamp: Stamp | None
    left_polls: int = 0


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
        written: list[tuple[int, str, str, File]] = []
        # Until nothing more is found: one write might be seen, and the one before it, to a file already looked at, not.
        for _ in range(SCANS):
            found = self._written(entries)
            if not found:
                break
            written += found
        # In the order in which they were written: where a bound is checked against the other one, it matters.
        for _, text, path, file in sorted(written, key=lambda w: w[0]):
            self._store(path, file, text)
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

    def _written(self, entries: dict[str, Entry]) -> list[tuple[int, str, str, File]]:
        """What was written since the last look: when, what, into which file."""
        written = []
        for path, copy in self._copies.items():
            entry = entries.get(path)
            if isinstance(entry, File) and (entry.write is not None or self._polls % THOROUGH_EVERY == 0):
                changed = self._changed(path, copy)
                if changed is not None:
                    written.append((*changed, path, entry))
        return written

    def _changed(self, path: str, copy: _Copy) -> tuple[int, str] | None:
        """When and what somebody wrote into a file, if anybody did."""
        try:
            handle = os.open(self._directory / path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:  # removed, or something else in its place: `_bring` makes it anew
            copy.stamp = None
            return None
        try:
            found = _look(handle)
        finally:
            os.close(handle)
        if found is None or found == (copy.content, copy.stamp):
            return None
        copy.content, copy.stamp = content, stamp = found
        if not content.strip():
            return None  # emptied, not yet written; one that stays so was never written, which a device would not notice
        copy.left_polls = 0
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
        if copy is None or copy.stamp is None or not _says(copy.content, content, entry):
            self._write(path, content, entry, copy)

    def _write(self, path: str, content: bytes, entry: File, copy: _Copy | None) -> None:
        target, shared = self._directory / path, entry.write is not None
        try:
            handle = os.open(target, (os.O_RDWR if shared else os.O_WRONLY) | os.O_NOFOLLOW)
        except OSError:
            stamp = self._make(target, content, entry.mode)
        else:
            try:
                if shared and copy is not None and not _may_rewrite(handle, copy):
                    return
                _replace_in_place(handle, content)
                stamp = _backdate(handle) if shared else _stamp(os.fstat(handle))
            finally:
                os.close(handle)
        self._copies[path] = _Copy(content, stamp)

    def _make(self, target: Path, content: bytes, mode: int) -> Stamp:
        """A new file, complete from the moment it is there; returns its stamp."""
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._directory / f"{supervisor.MARKER}.new"
        temporary.write_bytes(content)
        temporary.chmod(mode)
        stamp = _stamp(temporary.stat())
        temporary.replace(target)
        return stamp

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


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mtime_ns, status.st_size, status.st_ino


def _look(handle: int) -> tuple[bytes, Stamp] | None:
    """An open file's content and stamp; None where it is being written at this moment."""
    stamp = _stamp(os.fstat(handle))
    content = os.pread(handle, stamp[1] + 1, 0)
    return (content, stamp) if _stamp(os.fstat(handle)) == stamp else None


def _says(content: bytes, wanted: bytes, entry: File) -> bool:
    """Whether a file says what it should; what a client wrote stays, whatever newlines it ended it with."""
    return content == wanted or (entry.write is not None and content.rstrip() == wanted.rstrip())


def _may_rewrite(handle: int, copy: _Copy) -> bool:
    """Whether an open file that others write too may be rewritten; from then on until it is closed they are kept from opening it."""
    in_use = not _shut(handle) or not copy.content.strip()
    if in_use and copy.left_polls < LEFT_POLLS:
        copy.left_polls += 1
        return False
    return _look(handle) == (copy.content, copy.stamp)


def _shut(handle: int) -> bool:
    """Make all others who open a file wait until we close it; False where somebody has it open already.

    It is a lease (fcntl(2)). Where a file system has none, the moment between looking and writing stays open.
    """
    try:
        # The holder of a lease is told who waits, by a signal that ends it: let it be one that is ignored unless asked for.
        fcntl.fcntl(handle, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(handle, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EBUSY)
    return True


def _backdate(handle: int) -> Stamp:
    """Stamp a file that we wrote with a time past, and return that stamp: every write of others bears a later one.

    Kernels before 6.13 take the time from a clock with ticks of up to 10 ms, in which others may write the same as we did.
    """
    status = os.fstat(handle)
    past = (status.st_mtime_ns // SECOND_NS - 1) * SECOND_NS  # whole seconds: every file system keeps them
    try:
        os.utime(handle, ns=(past, past))
    except OSError:  # somebody else's file, put in the place of ours
        return _stamp(status)
    return past, status.st_size, status.st_ino


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
