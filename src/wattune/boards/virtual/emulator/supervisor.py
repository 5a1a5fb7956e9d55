"""What a served folder leaves behind, and its removal: by the server, by the next start, or by a watching child.

Run as a script this file is that child: it waits for the end of its standard input, and where the server died without saying
`done` it unmounts and removes what the server made. So it imports nothing but the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

SOURCE = "wattune-emulator-"
"""What a mount of ours is called in the mount table; the server's process id follows."""

MARKER = ".wattune-emulator.json"
"""A plain tree's list of what is ours in the folder, and the server's process id."""

RUN = "run"
"""The board's volatile folder: others may write there, and what they made ends with it."""

DONE = b"done"
MNT_FORCE, MNT_DETACH = 1, 2


def mount_source(path: Path) -> str | None:
    """What is mounted at a path (not looking at the path itself, which may hang); None where nothing is."""
    found = None
    for line in Path("/proc/self/mountinfo").read_text(errors="surrogateescape").splitlines():
        fields = line.split(" ")
        if _unescape(fields[4]) == str(path):
            found = _unescape(fields[fields.index("-") + 2])  # the last one lies on top
    return found


def _unescape(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text)


def server_pid(source: str) -> int | None:
    """Process id in the name of a mount of ours; None for any other."""
    digits = source.removeprefix(SOURCE)
    return int(digits) if digits != source and digits.isdigit() else None


def unmount(path: Path, patience_s: float = 0.5) -> None:
    """Unmount: politely for a while, so that requests under way get their answer, then by force.

    Raises:
        OSError: it could not be done.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    deadline = time.monotonic() + patience_s
    flags = 0
    while libc.umount2(os.fsencode(path), flags):
        code = ctypes.get_errno()
        if code == errno.EINVAL:  # no longer a mount point
            return
        if code == errno.EPERM and (tool := shutil.which("fusermount3") or shutil.which("fusermount")):
            subprocess.run([tool, "-u", "-z", "-q", str(path)], check=False, stderr=subprocess.DEVNULL)
            if mount_source(path) is None:
                return
        if flags or code != errno.EBUSY:
            raise OSError(code, os.strerror(code), str(path))
        if time.monotonic() > deadline:
            flags = (
                MNT_FORCE | MNT_DETACH
            )  # aborts the connection, so that nobody hangs on a server that is gone
        else:
            time.sleep(0.02)


def write_marker(directory: Path, paths: Iterator[str] | list[str], *, run: bool = False) -> None:
    """Note what is about to be made in a plain tree, before it is made; `run`: also a volatile folder."""
    temporary = directory / f"{MARKER}.new"
    temporary.write_text(json.dumps({"pid": os.getpid(), "paths": list(paths), "run": run}))
    temporary.replace(directory / MARKER)


def marker_pid(directory: Path) -> int | None:
    """Process id of the server whose plain tree lies in a folder; None where none does."""
    pid = _marker(directory).get("pid")
    return pid if isinstance(pid, int) else None


def _marker(directory: Path) -> dict[str, object]:
    try:
        document = json.loads((directory / MARKER).read_text())
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def remove_mirror(directory: Path) -> None:
    """Remove a plain tree: its volatile folder, the files its marker names and the folders that are empty then, nothing else."""
    marker = _marker(directory)
    paths = marker.get("paths")
    if marker.get("run") is True:
        remove_folder(directory / RUN)
    folders: set[str] = set()
    for path in paths if isinstance(paths, list) else []:
        if not isinstance(path, str) or path.startswith("/") or ".." in path.split("/"):
            continue
        target = directory / path
        # A folder that somebody replaced by a link must not lead us out of the tree.
        if os.path.realpath(target.parent) != str(target.parent):
            continue
        with contextlib.suppress(OSError):
            target.unlink()
        folders.update(path.rsplit("/", n)[0] for n in range(1, path.count("/") + 1))
    for folder in sorted(folders, key=len, reverse=True):
        with contextlib.suppress(OSError):
            (directory / folder).rmdir()
    for name in (f"{MARKER}.new", MARKER):
        with contextlib.suppress(OSError):
            (directory / name).unlink()


def remove_folder(folder: Path) -> None:
    """Remove a folder with its content, following no links; whoever goes on writing there meanwhile is outrun."""
    for _ in range(5):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.is_dir():
            return


def empty_folder(folder: Path) -> None:
    """Remove a folder's content, following no links."""
    if folder.is_symlink():
        return
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if path.is_dir() and not path.is_symlink():
                remove_folder(path)
            else:
                path.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(directory: Path, patience_s: float) -> Iterator[bool]:
    """Hold the lock of a folder; yields whether it was free (its holder may be just about to end)."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        deadline = time.monotonic() + patience_s
        while not (free := _try_lock(handle)) and time.monotonic() < deadline:
            time.sleep(0.05)
        yield free
    finally:
        os.close(handle)


def _try_lock(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def supervised(directory: Path, *, created: bool, private: Path) -> Iterator[None]:
    """Have a child clean up after us if we are killed while inside.

    Args:
        directory: the folder, resolved.
        created: whether the folder itself is ours to remove.
        private: a folder elsewhere that is ours; it may be missing.
    """
    child = subprocess.Popen(
        [
            sys.executable,
            "-I",
            "-S",
            __file__,
            str(directory),
            str(os.getpid()),
            "created" if created else "",
            str(private),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # what ends the server's process group must not end its supervisor
        cwd="/",
    )
    try:
        yield
    finally:
        # libfuse leaves SIGPIPE at its default, and a supervisor that was killed would take us with it.
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            child.communicate(DONE, timeout=5)


def _supervise(directory: Path, pid: int, *, created: bool, private: Path) -> None:
    if sys.stdin.buffer.read() == DONE:
        return
    source = mount_source(directory)
    if source is not None and server_pid(source) == pid:
        with contextlib.suppress(OSError):
            unmount(directory, patience_s=0)
    with contextlib.suppress(FileNotFoundError), locked(private, 1.0):
        remove_folder(private)
    # The lock is free once all of the server is gone; if not, the next one is already there and does the work itself.
    with locked(directory, 1.0) as free:
        if free and marker_pid(directory) == pid:
            remove_mirror(directory)
        if free and created:
            directory.rmdir()


if __name__ == "__main__":
    with contextlib.suppress(OSError):
        _supervise(
            Path(sys.argv[1]),
            int(sys.argv[2]),
            created=sys.argv[3] == "created",
            private=Path(sys.argv[4]),
        )
