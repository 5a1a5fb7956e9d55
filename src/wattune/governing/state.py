"""The lease file: what has to be put back, written and flushed to disk before the first write to the board.

One file per node, ``lease-<node>.json``, and a lock file beside it, in ``run/wattune`` under the tree's root (on the machine
``/run/wattune``, or ``$XDG_RUNTIME_DIR/wattune`` for those who may not write there). The lock says whether the holder lives;
the process id in the file only names it. A file of another boot is worth nothing: the boot has reset the bounds.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, IntegrityError, WattuneError
from wattune.governing.bounds import Bounds, Outcome, commands, put_back, reason_of

SCHEMA_VERSION = 1
PATIENCE_S = 3.0
"""How long a lock is waited for whose holder is dead: its watchdog is just restoring."""

MAX_BYTES = 65536

DAEMON = "wattune clockd"
"""What the clock daemon is called in a lease file."""


@dataclass(frozen=True, slots=True)
class Record:
    """What a lease file says.

    Attributes:
        node: the devfreq node's folder in the tree.
        boot_id: of the boot it is about; None where it could not be read.
        saved_min_hz: lower bound found at the start; `saved_max_hz` the upper one.
        set_hz: clocks the node may be pinned at by us.
        cooling: state files of the GPU's cooling devices.
        pid: the holder; `started` when it started, in clock ticks after boot; `program` what it is called.
        detached: nobody holds it: the pin stands until `wattune restore`.
    """

    node: str
    boot_id: str | None
    saved_min_hz: int
    saved_max_hz: int
    set_hz: tuple[int, ...]
    cooling: tuple[str, ...]
    pid: int
    started: int | None
    program: str
    detached: bool = False

    @property
    def saved(self) -> Bounds:
        """The bounds found at the start."""
        return Bounds(self.saved_min_hz, self.saved_max_hz)

    @property
    def alive(self) -> bool:
        """Whether the holder still runs, as far as its process id tells."""
        return not self.detached and process_start(self.pid) == self.started is not None

    @property
    def is_daemon(self) -> bool:
        """Whether the clock daemon holds it, for a client of its own."""
        return self.program == DAEMON

    @property
    def holder(self) -> str:
        """The holder's name for people."""
        return f"{'the clock daemon' if self.is_daemon else self.program} (process {self.pid})"

    def put_back(self, sysfs: Sysfs, *, force: bool = False) -> Outcome:
        """Restore what it says; see :func:`wattune.governing.bounds.put_back`."""
        if another_boot(self, sysfs):
            return Outcome("gone", "The board has booted since, which has reset the bounds.")
        return put_back(sysfs, self.node, self.saved, self.set_hz, cooling=self.cooling, force=force)


@dataclass(frozen=True, slots=True)
class Stale:
    """A lease file of this boot whose holder is gone, or that was left on purpose; its text says so in a few words.

    Attributes:
        path: the file.
        record: what it says; None where it could not be read.
        problem: why it could not be read.
    """

    path: Path
    record: Record | None
    problem: str = ""

    def __str__(self) -> str:
        if self.record is None:
            return self.problem
        clocks = " or ".join(f"{hz / 1e6:g}" for hz in self.record.set_hz)
        who = "left on purpose by" if self.record.detached else "by"
        return (
            f"pinned at {clocks} MHz {who} {self.record.holder}; before that {self.record.saved}; {self.path}"
        )


# --- processes and boots


def own_name() -> str:
    """What this process is called, for people: the command typed, where it is one of ours."""
    path = Path(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c") else Path("python")
    name = path.parent.name if path.name == "__main__.py" else path.name
    if name == "wattune" or path.parts[-2:] == ("wattune", "cli.py"):
        return " ".join(["wattune", *(word for word in sys.argv[1:2] if word.isalpha())])
    return name or "python"


def process_start(pid: int) -> int | None:
    """When a process started, in clock ticks after boot; None where it does not run (or has died unburied)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (OSError, IndexError, ValueError):
        return None


def boot_id(sysfs: Sysfs) -> str | None:
    """The tree's boot id; None where it has none."""
    try:
        return sysfs.read("proc/sys/kernel/random/boot_id").strip() or None
    except OSError:
        return None


def another_boot(record: Record, sysfs: Sysfs) -> bool:
    """Whether a record is of another boot; one of an unknown boot counts as of this one."""
    now = boot_id(sysfs)
    return None not in (record.boot_id, now) and record.boot_id != now


# --- where


def folders(sysfs: Sysfs) -> list[Path]:
    """Folders in which lease files of a tree may lie, the preferred one first."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if sysfs.is_machine:
        return [Path("/run/wattune"), *([Path(runtime) / "wattune"] if runtime else [])]
    # A mounted tree may let nobody make folders: then a place beside it that its path alone determines.
    tree = hashlib.sha256(os.fsencode(sysfs.root.resolve())).hexdigest()[:16]
    beside = Path("/run" if os.geteuid() == 0 else runtime or tempfile.gettempdir()) / "wattune"
    return [sysfs.root / "run/wattune", beside / f"tree-{tree}"]


def usable_folder(sysfs: Sysfs) -> Path:
    """The folder to keep the lease file in, made where it is missing.

    Raises:
        BoardError: there is none that can be written.
    """
    first, *others = folders(sysfs)
    if not sysfs.is_machine and first.parent.exists():
        others = []  # the tree has a run folder: that one, or none
    failure: tuple[Path, OSError] | None = None
    for folder in [first, *others]:
        error = _why_unusable(folder)
        if error is None:
            return folder
        failure = failure or (folder, error)
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            break
    assert failure is not None
    raise cannot_save(*failure)


def _why_unusable(folder: Path) -> OSError | None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return error
    if not os.access(folder, os.W_OK | os.X_OK):
        return PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    return None


def cannot_save(path: Path, error: OSError) -> BoardError:
    """The refusal to pin where nothing can be saved."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        reason, hint = "the disk is full", "Free some space and run the same command again."
    elif error.errno == errno.EFBIG:
        reason, hint = "the file would pass the size limit", "Raise the limit (`ulimit -f`) and try again."
    else:
        reason = reason_of(error).lower()
        hint = "Make the folder writable for you, set XDG_RUNTIME_DIR to one that is, or run with sudo."
    return BoardError(
        f"The clock is not pinned: what has to be restored could not be saved in {path} ({reason}).",
        "A place to save it was expected, so that the clock can always be restored.",
        hint,
    )


def _cannot_lock(path: Path, error: OSError) -> BoardError:
    return BoardError(
        f"The lock file {path} could not be used ({reason_of(error).lower()}), so nothing was done.",
        "A lock was expected, so that no two programs set the clock at once.",
        "Run the command with sudo, or free some space if the disk is full.",
    )


def state_path(folder: Path, node: str) -> Path:
    """The lease file of a node in a folder."""
    return folder / f"lease-{node.rsplit('/', 1)[-1]}.json"


# --- reading and writing


def save(path: Path, record: Record) -> None:
    """Write a lease file and flush it and its folder to disk; the old one stands until the new one is complete.

    Raises:
        BoardError: it could not be saved; the old file, where there was one, is untouched.
    """
    document = {"schema_version": SCHEMA_VERSION, **asdict(record)}
    temporary = path.with_name(f".{path.name}.tmp")  # the lock is held: nobody else writes it
    try:
        try:
            temporary.unlink(missing_ok=True)
            handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(document, sort_keys=True, indent=2).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _flush_folder(path.parent)
    except OSError as error:
        raise cannot_save(path, error) from error


def load(path: Path, sysfs: Sysfs) -> Record | None:
    """What a lease file of a tree says; None where there is none.

    Raises:
        IntegrityError: it is damaged, no lease file, or belongs to somebody who is neither root nor you.
        BoardError: it could not be read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _damaged(path, sysfs, "it is a link") from error
        raise BoardError(
            f"The lease file {path} could not be read: {reason_of(error)}.",
            "A file you may read was expected.",
            "Run the command as the user who pinned the clock, or with sudo.",
        ) from error
    try:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode):
            raise _damaged(path, sysfs, "it is no file")
        if about.st_uid not in (0, os.geteuid()):
            raise _damaged(path, sysfs, "it belongs to another user")
        text = os.read(handle, MAX_BYTES)
    finally:
        os.close(handle)
    try:
        document = json.loads(text)
        if document.pop("schema_version") != SCHEMA_VERSION:
            raise _damaged(path, sysfs, "it is of another version")
        record = Record(
            **document | {"set_hz": tuple(document["set_hz"]), "cooling": tuple(document["cooling"])}
        )
        _check(path, record)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _damaged(path, sysfs, "it is no complete lease file") from error
    return record


HIGHEST_HZ = 10_000_000_000
"""No GPU clocks higher, so no bound found was."""


def _check(path: Path, record: Record) -> None:
    """Refuse a record that could make us write anything but a clock into a node's bounds."""
    numbers = (record.saved_min_hz, record.saved_max_hz, *record.set_hz, record.pid)
    if not all(type(n) is int and 0 <= n < 1 << 40 for n in numbers) or not record.set_hz:
        raise ValueError
    if not record.saved_min_hz <= record.saved_max_hz <= HIGHEST_HZ:
        raise ValueError
    texts = (record.node, *record.cooling, record.program)
    if not all(isinstance(text, str) for text in texts) or type(record.detached) is not bool:
        raise TypeError
    for where in (record.node, *record.cooling):
        if not re.match(r"sys/[^\0]", where) or ".." in where.split("/"):
            raise ValueError
    if state_path(path.parent, record.node) != path:
        raise ValueError


def _damaged(path: Path, sysfs: Sysfs, why: str) -> IntegrityError:
    return IntegrityError(
        f"The lease file {path} was refused: {why}.",
        "A file as wattune writes it was expected.",
        f"Type `{sysfs.typed('restore')}`: it says what can still be read in it, and how to get the clock back.",
    )


def remove(path: Path) -> None:
    """Delete a lease file, flushed to disk.

    Raises:
        BoardError: it could not be deleted.
    """
    try:
        path.unlink(missing_ok=True)
        _flush_folder(path.parent)
    except OSError as error:
        raise BoardError(
            f"The lease file {path} could not be removed: {reason_of(error)}.",
            "The clock has been dealt with; the file is no longer needed.",
            f"Remove it by hand: `rm {shlex.quote(str(path))}`.",
        ) from error


def _flush_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- the lock


class Lock:
    """Who may touch a node: a lock file beside the lease file, and the node's own folder.

    The node's folder is what users with different run folders have in common. Locks belong to the open files, so that a
    watchdog that inherits them keeps them.

    Attributes:
        handles: the open, locked files.
    """

    def __init__(self) -> None:
        self.handles: list[int] = []

    def take(self, path: Path, *, shared_folder: Path | None) -> bool:
        """Try to lock; returns whether it is ours now.

        Args:
            path: the lock file, made where it is missing.
            shared_folder: the node's folder; None, or one that cannot be locked, is left out.

        Raises:
            OSError: the lock file cannot be made.
        """
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        self.handles.append(os.open(path, flags, 0o644))
        if shared_folder is not None:
            with contextlib.suppress(OSError):
                self.handles.append(os.open(shared_folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if all(_try_lock(handle, must=handle == self.handles[0]) for handle in self.handles):
            return True
        self.release()
        return False

    def release(self) -> None:
        """Unlock and close: also for those who inherited the open files."""
        for handle in self.handles:
            with contextlib.suppress(OSError):
                fcntl.flock(handle, fcntl.LOCK_UN)
        self.forget()

    def forget(self) -> None:
        """Close without unlocking, as a forked child must."""
        for handle in self.handles:
            with contextlib.suppress(OSError):
                os.close(handle)
        self.handles = []


def _try_lock(handle: int, *, must: bool) -> bool:
    """Whether a file is locked now; one that cannot be locked at all counts as locked unless it `must` be."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        if must:
            raise
    return True


def lock_file(path: Path) -> Lock:
    """Lock a lease file alone, whatever node it is of.

    Raises:
        BoardError: its holder lives, or the lock file cannot be used.
    """
    lock = Lock()
    try:
        if lock.take(path.with_suffix(".lock"), shared_folder=None):
            return lock
    except OSError as error:
        lock.release()
        raise _cannot_lock(path.with_suffix(".lock"), error) from error
    raise _held_by(None)


def lock_node(sysfs: Sysfs, folder: Path, node: str) -> Lock:
    """Lock a node for ourselves; a dead holder's watchdog is given time to finish.

    Raises:
        BoardError: somebody else holds it (named), or nothing can be saved in the folder.
    """
    path = state_path(folder, node)
    deadline = time.monotonic() + PATIENCE_S
    lock = Lock()
    while True:
        try:
            if lock.take(path.with_suffix(".lock"), shared_folder=sysfs.path(node)):
                return lock
        except OSError as error:
            lock.release()
            raise _cannot_lock(path.with_suffix(".lock"), error) from error
        holder = _holder(sysfs, node)
        if (holder is not None and holder.alive) or time.monotonic() > deadline:
            raise _held_by(holder)
        time.sleep(0.05)


def _held_by(holder: Record | None) -> BoardError:
    """The refusal where somebody else holds the clock."""
    if holder is None:
        end = "Let it end"
    elif holder.is_daemon:
        end = "Let its client end (`journalctl -u wattune-clockd` names it; the daemon restores then)"
    elif holder.pid == os.getpid():
        return BoardError(
            f"The GPU clock is already held by this program itself (process {holder.pid}), at {holder.set_hz[-1] / 1e6:g} MHz.",
            "One hold at a time was expected.",
            "End the first one (leave its `with`, or call its close() or stop()) before the next begins.",
        )
    else:
        end = f"Let it end, or stop it (`kill {holder.pid}`)"
    return BoardError(
        f"The GPU clock is already held by {'another process' if holder is None else holder.holder}.",
        "A clock that nobody else holds was expected.",
        f"{end}, and run the same command again.",
    )


def _holder(sysfs: Sysfs, node: str) -> Record | None:
    for folder in folders(sysfs):
        with contextlib.suppress(BoardError, IntegrityError):
            record = load(state_path(folder, node), sysfs)
            if record is not None:
                return record
    return None


# --- what dead holders left


def lease_files(sysfs: Sysfs) -> Iterator[Path]:
    """All lease files of a tree, whatever is in them."""
    for folder in folders(sysfs):
        with contextlib.suppress(OSError):
            yield from sorted(folder.glob("lease-*.json"))


def _held(path: Path) -> bool:
    """Whether the lock beside a lease file is held."""
    try:
        handle = os.open(path.with_suffix(".lock"), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(handle)
    return False


def stale(sysfs: Sysfs) -> list[Stale]:
    """Lease files of this boot that nobody holds: pins to be undone. Changes nothing and never raises."""
    found = []
    for path in lease_files(sysfs):
        try:
            record = load(path, sysfs)
        except WattuneError as error:
            found.append(Stale(path, None, error.what))
            continue
        if record is not None and not another_boot(record, sysfs) and not _held(path):
            found.append(Stale(path, record))
    return found


@dataclass(frozen=True, slots=True)
class Restored:
    """What became of one lease file.

    Attributes:
        path: the file; `record` what it said.
        outcome: what became of the bounds.
        removed: whether the file is gone.
        hint: what to type where the bounds were not restored.
    """

    path: Path
    record: Record
    outcome: Outcome
    removed: bool
    hint: str = ""


def restore_stale(
    sysfs: Sysfs, *, force: bool = False, forget: bool = False, pass_damaged: bool = False
) -> list[Restored]:
    """Put back what lease files say whose holders are gone; files of other boots are dropped.

    Args:
        sysfs: the tree.
        force: also where somebody else has changed the bounds since.
        forget: drop the files, leave the bounds.
        pass_damaged: leave damaged files to :mod:`wattune.governing.damaged`.

    Returns:
        One entry per lease file. Where bounds were left or could not be restored the file stays.

    Raises:
        BoardError: a file's holder is alive.
        IntegrityError: a file is damaged.
    """
    done = []
    for path in list(lease_files(sysfs)):
        try:
            before = load(path, sysfs)
        except IntegrityError:
            if not pass_damaged:
                raise
            continue
        if before is None:
            continue
        if before.alive and _held(path):  # said also to those who may not use the lock
            raise _held_by(before)
        lock = lock_node(sysfs, path.parent, before.node)
        try:
            record = load(path, sysfs)  # its watchdog may have dealt with it meanwhile
            if record is None:
                continue
            outcome = (
                Outcome("left", "The bounds are left as they are, and what was saved is forgotten.")
                if forget
                else record.put_back(sysfs, force=force)
            )
            removed = forget or outcome.kind in ("restored", "gone")
            if removed:
                remove(path)
            hint = "" if removed else commands(sysfs, record.node, record.saved)
            done.append(Restored(path, record, outcome, removed, hint))
        finally:
            lock.release()
    return done


def detached(record: Record) -> Record:
    """The same record, held by nobody."""
    return replace(record, detached=True)
