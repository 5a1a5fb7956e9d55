"""Serving a tree as a mounted file system, through mfusepy and libfuse 2 or 3.

Contents are computed when they are read (at offset 0, as the kernel's seq_file does) and nothing of them is cached by the
kernel. Every request has a thread of its own, so that a file that hangs holds up nobody else.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib
import itertools
import os
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from wattune.boards.virtual.emulator import supervisor, volatile
from wattune.boards.virtual.emulator.tree import Entry, File, Link, Tree

DEVICE = Path("/dev/fuse")
MOUNT_TIMEOUT_S = 10.0
NAME_TIMEOUT_S = 0.2
"""How long the kernel remembers that a name exists: a node that goes away is seen to be gone after that."""
MAX_THREADS = 200
"""libfuse from 3.12 on stops at ten threads unless told otherwise, and ten hanging reads would be the end."""
POLL_S = 0.05


def why_not(device: Path = DEVICE) -> str | None:
    """The reason, as a sentence, why FUSE cannot be used here; None where nothing speaks against trying."""
    if not device.exists():
        return f"{device} is absent (the kernel module fuse is not loaded, or a container hides it)."
    try:
        os.close(os.open(device, os.O_RDWR))
    except OSError as error:
        return f"{device} could not be opened: {error.strerror}."
    try:
        _mfusepy()
    except ImportError:
        return "The Python package mfusepy is not installed (pip install mfusepy)."
    except (OSError, AttributeError) as error:
        return f"libfuse is missing or not usable: {error} (on Debian: apt-get install libfuse2 or fuse3)."
    return None


def _mfusepy() -> Any:
    return importlib.import_module("mfusepy")


class Operations:
    """What libfuse calls, named as mfusepy wants it; paths begin with a slash.

    Args:
        tree: what is served.
        lock: held while names are looked up (faults change them).
    """

    use_ns = True

    def __init__(self, tree: Tree, lock: AbstractContextManager[Any]) -> None:
        self._tree, self._lock = tree, lock
        self._handles = itertools.count(1)
        self._contents: dict[int, bytes] = {}
        self._born_ns = time.time_ns()
        self.mounted = threading.Event()
        self.stopping = threading.Event()

    def init(self, path: str) -> None:
        """The mount is there."""
        self.mounted.set()

    def _entry(self, path: str) -> Entry | None:
        with self._lock:
            return self._tree.entry(path[1:])

    def _file(self, path: str) -> File:
        entry = self._entry(path)
        if not isinstance(entry, File):
            raise OSError(errno.EISDIR if entry is None else errno.ELOOP, path)
        return entry

    def getattr(self, path: str, fh: int | None = None) -> dict[str, int]:
        """Attributes; sizes as in the real trees: a page in sys, nothing in proc, the true one elsewhere."""
        entry = self._entry(path)
        mode, size = _mode(entry), 4096
        if isinstance(entry, Link):
            size = len(entry.target)
        elif entry is not None and not path.startswith("/sys/"):
            try:
                size = 0 if path.startswith("/proc/") else len(entry.read().encode())
            except OSError:
                size = 0
        times = {f"st_{name}time": self._born_ns for name in "amc"}
        owner = {"st_uid": os.geteuid(), "st_gid": os.getegid()}
        blocks = -(-size // 512)  # without them `cp` takes a file for a hole
        return {"st_mode": mode, "st_nlink": 1, "st_size": size, "st_blocks": blocks} | times | owner

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, int, int]]:
        """Names in a folder, with their kinds."""
        with self._lock:
            names = self._tree.children(path[1:])
            kinds = [_mode(self._tree.entry(f"{path[1:]}/{name}".lstrip("/"))) for name in names]
        yield ".", stat.S_IFDIR, 0
        yield "..", stat.S_IFDIR, 0
        for name, kind in zip(names, kinds, strict=True):
            yield name, kind, 0

    def readlink(self, path: str) -> str:
        """Target of a link."""
        entry = self._entry(path)
        if not isinstance(entry, Link):
            raise OSError(errno.EINVAL, path)
        return entry.target

    def open(self, path: str, flags: int) -> int:
        """A handle; a file without a store refuses to be opened for writing, whoever asks."""
        if self._file(path).write is None and flags & os.O_ACCMODE != os.O_RDONLY:
            raise OSError(errno.EACCES, path)
        return next(self._handles)

    def release(self, path: str, fh: int) -> int:
        """The handle is closed."""
        self._contents.pop(fh, None)
        return 0

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        """Content now at offset 0; what was read there goes on to the end of the file."""
        if offset == 0 or fh not in self._contents:
            entry = self._file(path)
            self._hang(entry)
            self._contents[fh] = entry.read().encode()
        return self._contents[fh][offset : offset + size]

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        """What one system call carries goes to the file's store."""
        entry = self._file(path)
        if entry.write is None:
            raise OSError(errno.EACCES, path)
        self._hang(entry)
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise OSError(errno.EINVAL, path) from error
        entry.write(text)
        return len(data)

    def _hang(self, entry: File) -> None:
        while entry.hangs is not None and entry.hangs():
            if self.stopping.wait(POLL_S):
                raise OSError(errno.EIO, "the emulator stops")

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        """Harmless, so that ``echo ... > file`` works; refused where writing is."""
        if self._file(path).write is None:
            raise OSError(errno.EACCES, path)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        """A file system without room, as sysfs."""
        return {"f_bsize": 4096, "f_frsize": 4096, "f_namemax": 255}

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        """Accepted and forgotten."""
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        """Nothing waits to be written."""
        return 0

    fsyncdir = fsync

    def create(self, path: str, mode: int, flags: int) -> int:
        """Nobody makes files in sysfs."""
        raise OSError(errno.EACCES, path)

    def _not_permitted(self, path: str, *_: object) -> int:
        raise OSError(errno.EPERM, path)

    def mkdir(self, path: str, mode: int) -> int:
        """As `create`, with the kernel's other errno."""
        return self._not_permitted(path)

    mknod = symlink = link = rename = unlink = rmdir = chmod = chown = _not_permitted


def _caller() -> tuple[int, int]:
    uid, gid, _ = _mfusepy().fuse_get_context()
    return uid, gid


def _mode(entry: Entry | None) -> int:
    if entry is None:
        return stat.S_IFDIR | 0o755
    return stat.S_IFLNK | 0o777 if isinstance(entry, Link) else stat.S_IFREG | entry.mode


class _WithRun:
    """Sends what concerns ``run`` to its folder and everything else to the tree.

    Locks are the kernel's: without operations for them they hold among all processes on the mount. A file that is removed while
    it is open keeps existing, as libfuse has it, under a name that begins with ``.fuse_hidden``.
    """

    use_ns = True
    flag_utime_omit_ok = True
    """For libfuse 2, which otherwise drops a change of one of the times."""
    SPLIT = (
        "getattr", "open", "create", "release", "read", "write", "truncate", "fsync", "fsyncdir", "mkdir", "rmdir", "unlink",
        "chmod", "chown", "utimens",
    )  # fmt: skip
    REST = ("init", "readlink", "statfs", "mknod", "symlink", "link")

    def __init__(self, tree: Operations, run: volatile.RunFolder) -> None:
        self._tree, self._run = tree, run
        for name in self.SPLIT:
            setattr(self, name, functools.partial(self._send, name))
        for name in self.REST:
            setattr(self, name, getattr(tree, name))

    def _send(self, name: str, *args: Any) -> Any:
        return getattr(self._run if volatile.below(args[0]) else self._tree, name)(*args)

    def readdir(self, path: str, fh: int) -> Iterator[tuple[str, int, int]]:
        """Names in a folder; the root has one more."""
        yield from self._send("readdir", path, fh)
        if path == "/":
            yield volatile.NAME, stat.S_IFDIR, 0

    def rename(self, old: str, new: str) -> int:
        """Within ``run`` only."""
        return self._send("rename", old, new) if volatile.below(new) else self._tree.rename(new)


class Mount:
    """A mounted tree.

    Attributes:
        period_s: the board is to be brought to the present at least this often, also where nobody reads.

    Args:
        tree: what is served.
        directory: where, resolved.
        lock: see :class:`Operations`.
        private: a folder to make for the content of the board's volatile folder; None: the mount has none.

    Raises:
        OSError: it could not be mounted; the text says why.
    """

    period_s = 0.1

    def __init__(
        self,
        tree: Tree,
        directory: Path,
        lock: AbstractContextManager[Any],
        *,
        private: Path | None = None,
    ) -> None:
        self._operations, self._directory = Operations(tree, lock), directory
        self._run = None if private is None else volatile.RunFolder(private, _caller)
        tree.run = None if self._run is None else self._run.path
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._serve, name="fuse", daemon=True)
        # libfuse says on standard error why a mount failed, and nowhere else.
        with tempfile.TemporaryFile() as said:
            kept = os.dup(2)
            os.dup2(said.fileno(), 2)
            try:
                self._thread.start()
                deadline = time.monotonic() + MOUNT_TIMEOUT_S
                while not self._operations.mounted.wait(0.01):
                    if not self._thread.is_alive() or time.monotonic() > deadline:
                        break
            finally:
                os.dup2(kept, 2)
                os.close(kept)
            said.seek(0)
            text = " ".join(said.read().decode(errors="replace").split())
        if not self._operations.mounted.is_set():
            with contextlib.suppress(OSError):  # a mount that comes too late must not stay
                self.close()
            raise OSError(
                errno.EPERM, f"Mounting was refused ({text or self._failure or 'no answer from the kernel'})."
            )

    def _serve(self) -> None:
        mfusepy = _mfusepy()
        options: dict[str, Any] = {}
        if (mfusepy.fuse_version_major, mfusepy.fuse_version_minor) >= (3, 12):
            options["max_threads"] = MAX_THREADS
        if os.geteuid() == 0:
            options["allow_other"] = True
        try:
            mfusepy.FUSE(
                self._operations if self._run is None else _WithRun(self._operations, self._run),
                str(self._directory),
                foreground=True,
                fsname=f"{supervisor.SOURCE}{os.getpid()}",
                direct_io=True,
                default_permissions=True,
                attr_timeout=NAME_TIMEOUT_S,
                entry_timeout=NAME_TIMEOUT_S,
                **options,
            )
        except RuntimeError as error:
            self._failure = error

    def poll(self) -> None:
        """See that it is still mounted.

        Raises:
            OSError: somebody else unmounted it.
        """
        if not self._thread.is_alive():
            raise OSError(errno.ENOTCONN, "somebody else unmounted it")

    def close(self) -> None:
        """Unmount; whoever hangs on a file of ours gets EIO."""
        self._operations.stopping.set()
        try:
            supervisor.unmount(self._directory)
            self._thread.join(timeout=2)
        finally:
            if threading.current_thread() is threading.main_thread():
                # libfuse leaves SIGPIPE at its default, which kills; Python's own is to ignore it.
                signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            if self._run is not None:
                self._run.close(served=self._thread.is_alive())
