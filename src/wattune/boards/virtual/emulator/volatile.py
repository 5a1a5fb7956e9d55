"""The board's volatile folder, ``run``: unlike the rest of a mounted tree, anybody with the right to may write there.

What is made in it lies in a private folder on the disk, which ends with the server. Nothing leads out of that folder: every
path is walked part by part from an open folder, without following links, and links cannot be made.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from wattune.boards.virtual.emulator import supervisor

NAME = supervisor.RUN
STEP = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
KEPT_FLAGS = os.O_ACCMODE | os.O_APPEND | os.O_TRUNC | os.O_SYNC
"""Of what a client opens a file with; O_DIRECT would ask for aligned buffers, say."""

UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2


def private_path() -> Path:
    """A free name for this process's private folder, which is not made yet."""
    return Path(tempfile.gettempdir()) / f"{supervisor.SOURCE}{os.getpid()}-{secrets.token_hex(8)}"


def remove_left(pid: int) -> None:
    """Remove the private folders that a dead process left: those of our own whose lock nobody holds."""
    with contextlib.suppress(OSError):
        for found in list(Path(tempfile.gettempdir()).iterdir()):
            if not found.name.startswith(f"{supervisor.SOURCE}{pid}-"):
                continue
            status = found.lstat()
            if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid():
                with supervisor.locked(found, 0) as free:
                    if free:
                        supervisor.remove_folder(found)


def below(path: str) -> bool:
    """Whether a path (it begins with a slash) is that of ``run`` or lies below."""
    return path == f"/{NAME}" or path.startswith(f"/{NAME}/")


class RunFolder:
    """What libfuse calls for paths of ``run``, named as mfusepy wants it.

    Args:
        private: the folder to make for it.
        caller: user and group of the process whose request is being answered.

    Attributes:
        path: where the content lies.

    Raises:
        OSError: the folder cannot be made.
    """

    def __init__(self, private: Path, caller: Callable[[], tuple[int, int]]) -> None:
        private.mkdir(mode=0o700)
        self.path, self._private, self._caller = private / NAME, private, caller
        self._opened: set[int] = set()
        try:
            self.path.mkdir()
            self.path.chmod(0o755)
            self._root = os.open(private, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._root, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            supervisor.remove_folder(private)
            raise

    def close(self, *, served: bool) -> None:
        """Remove it with all its content; `served`: requests may still come, so no handle may be given away again."""
        supervisor.remove_folder(self._private)
        if not served:
            for handle in (self._root, *self._opened):
                os.close(handle)
            self._opened.clear()

    @contextlib.contextmanager
    def _folder_of(self, path: str) -> Iterator[tuple[int, str]]:
        """A handle of the folder a path lies in, and the name there."""
        *folders, name = path[1:].split("/")
        if not {"", ".", ".."}.isdisjoint((*folders, name)):
            raise OSError(errno.EINVAL, path)
        handle = os.dup(self._root)
        try:
            for folder in folders:
                inner = os.open(folder, STEP, dir_fd=handle)
                os.close(handle)
                handle = inner
            yield handle, name
        finally:
            os.close(handle)

    def _open(self, path: str, flags: int, mode: int = 0) -> int:
        with self._folder_of(path) as (folder, name):
            return os.open(name, flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=folder)

    @contextlib.contextmanager
    def _handle(self, path: str, flags: int) -> Iterator[int]:
        handle = self._open(path, flags)
        try:
            yield handle
        finally:
            os.close(handle)

    def _give(self, handle: int, mode: int) -> None:
        """Make a new file or folder its creator's, with the mode asked for whatever our own umask."""
        owner = self._caller()
        if owner != (os.geteuid(), os.getegid()):
            os.fchown(handle, *owner)
        os.fchmod(handle, stat.S_IMODE(mode))

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Attributes."""
        if fh in self._opened:
            found = os.fstat(fh)
        else:
            with self._folder_of(path) as (folder, name):
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        names = ("mode", "nlink", "size", "blocks", "uid", "gid")
        times = {f"st_{name}time": getattr(found, f"st_{name}time_ns") for name in "amc"}
        return {f"st_{name}": getattr(found, f"st_{name}") for name in names} | times

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, int, int]]:
        """Names in a folder, with their kinds."""
        with self._handle(path, os.O_RDONLY | os.O_DIRECTORY) as handle, os.scandir(handle) as entries:
            found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
        yield ".", stat.S_IFDIR, 0
        yield "..", stat.S_IFDIR, 0
        for name, folder in found:
            yield name, stat.S_IFDIR if folder else stat.S_IFREG, 0

    def open(self, path: str, flags: int) -> int:
        """A handle."""
        handle = self._open(path, flags & KEPT_FLAGS)
        self._opened.add(handle)
        return handle

    def create(self, path: str, mode: int, flags: int) -> int:
        """A handle of a new file; of the old one where somebody was faster and the client does not mind."""
        try:
            handle = self._open(path, flags & KEPT_FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            if flags & os.O_EXCL:
                raise
            return self.open(path, flags)
        try:
            self._give(handle, mode)
        except OSError:
            os.close(handle)
            raise
        self._opened.add(handle)
        return handle

    def release(self, path: str, fh: int) -> int:
        """The handle is closed."""
        if fh in self._opened:
            self._opened.remove(fh)
            os.close(fh)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Bytes of a file."""
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """Bytes into a file; at its end, where it was opened so."""
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Cut or lengthen a file."""
        if fh in self._opened:
            os.ftruncate(fh, length)
        else:
            with self._handle(path, os.O_WRONLY) as handle:
                os.ftruncate(handle, length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """Flush a file to disk."""
        os.fsync(fh)
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        """Flush a folder to disk."""
        with self._handle(path, os.O_RDONLY | os.O_DIRECTORY) as handle:
            os.fsync(handle)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        """A new folder."""
        with self._folder_of(path) as (folder, name):
            os.mkdir(name, 0o700, dir_fd=folder)
        with self._handle(path, os.O_RDONLY | os.O_DIRECTORY) as handle:
            self._give(handle, mode)
        return 0

    def rmdir(self, path: str) -> int:
        """Remove an empty folder; ``run`` itself stays."""
        with self._content(path) as (folder, name):
            os.rmdir(name, dir_fd=folder)
        return 0

    def unlink(self, path: str) -> int:
        """Remove a file."""
        with self._content(path) as (folder, name):
            os.unlink(name, dir_fd=folder)
        return 0

    def rename(self, old: str, new: str) -> int:
        """Rename within ``run``, over what is there."""
        with self._content(old) as (old_folder, old_name), self._content(new) as (new_folder, new_name):
            os.rename(old_name, new_name, src_dir_fd=old_folder, dst_dir_fd=new_folder)
        return 0

    @contextlib.contextmanager
    def _content(self, path: str) -> Iterator[tuple[int, str]]:
        if path == f"/{NAME}" or not below(path):
            raise OSError(errno.EPERM, path)
        with self._folder_of(path) as found:
            yield found

    def chmod(self, path: str, mode: int) -> int:
        """Permission bits."""
        with self._handle(path, os.O_PATH) as handle:  # one may change what one may not open
            Path(f"/proc/self/fd/{handle}").chmod(stat.S_IMODE(mode))
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        """Owner; whether the caller may is the kernel's business."""
        with self._folder_of(path) as (folder, name):
            os.chown(name, uid, gid, dir_fd=folder, follow_symlinks=False)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Times, in nanoseconds; libfuse has two numbers that mean the present and the old one."""
        with self._folder_of(path) as (folder, name):
            old = os.stat(name, dir_fd=folder, follow_symlinks=False)
            now = time.time_ns()
            atime, mtime = (
                now if asked == UTIME_NOW else before if asked == UTIME_OMIT else asked
                for asked, before in zip(times or (now, now), (old.st_atime_ns, old.st_mtime_ns), strict=True)
            )
            os.utime(name, ns=(atime, mtime), dir_fd=folder, follow_symlinks=False)
        return 0
