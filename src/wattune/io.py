"""Files: atomic writes, canonical JSON, digests; system faults become one clear sentence."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from wattune.core.errors import BoardError, InputError
from wattune.core.governor import canonical_json

_REASONS = {
    errno.ENOSPC: ("the disk is full", "Free some space and run the same command again."),
    errno.EDQUOT: ("the disk quota is used up", "Free some space and run the same command again."),
    errno.EROFS: ("the file system is read-only", "Mount it writable, or work in a folder you can write to."),
    errno.EACCES: (
        "there is no permission",
        "Give yourself write permission, or work in a folder you can write to.",
    ),
    errno.EPERM: (
        "there is no permission",
        "Give yourself write permission, or work in a folder you can write to.",
    ),
    errno.EFBIG: (
        "the file would pass the size limit",
        "Raise the limit (`ulimit -f`) and run the command again.",
    ),
    errno.ENOTDIR: (
        "a file stands where a folder is needed",
        "Move that file away and run the same command again.",
    ),
    errno.EEXIST: (
        "a file stands where a folder is needed",
        "Move that file away and run the same command again.",
    ),
}


@contextlib.contextmanager
def clear_os_errors(path: Path, verb: str = "written") -> Iterator[None]:
    """Turn an OSError inside into a BoardError that says what could not be done and why."""
    try:
        yield
    except OSError as error:
        reason, hint = _REASONS.get(
            error.errno or 0, (error.strerror or str(error), "Check the path and try again.")
        )
        raise BoardError(
            f"{path} could not be {verb}: {reason}.", "Nothing half-written was left behind.", hint
        ) from error


def kind_of(path: Path) -> Literal["file", "folder", "other"] | None:
    """What lies at a path, links followed; None where nothing does.

    Raises:
        BoardError: it may not be looked at. (`Path.exists` and its like let that out as they got it.)
    """
    try:
        mode = path.stat().st_mode
    except PermissionError as error:
        raise _no_permission(f"{path} cannot be looked at") from error
    except OSError:
        return None
    return "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"


def is_file(path: Path) -> bool:
    """Whether a regular file lies there; raises as :func:`kind_of`."""
    return kind_of(path) == "file"


def is_folder(path: Path) -> bool:
    """Whether a folder lies there; raises as :func:`kind_of`."""
    return kind_of(path) == "folder"


def are_same(one: Path, other: Path) -> bool:
    """Whether two paths name one file, by whatever names and links."""
    try:
        return one.samefile(other)
    except OSError:
        return False


def _no_permission(what: str) -> BoardError:
    return BoardError(
        f"{what}: there is no permission.",
        "A place that you may enter, and a file that you may read, were expected.",
        "Run the command as its owner, or name another one.",
    )


def write_text(path: Path, text: str) -> None:
    """Write a file atomically: a temporary file beside it, flushed to disk, then renamed.

    Raises:
        BoardError: disk full, read-only or no permission; the old file, where there was one, is untouched.
    """
    write_bytes(path, text.encode())


def write_bytes(path: Path, data: bytes) -> None:
    """As :func:`write_text`, for bytes; what is no regular file (a device, a pipe) is written into, never replaced."""
    with clear_os_errors(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            with path.open("wb", buffering=0) as device:
                device.write(data)
            return
        path = Path(os.path.realpath(path))  # what a link names is replaced, and not the link
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).chmod(0o644)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise


def write_json(path: Path, document: Any) -> None:
    """Write canonical JSON (sorted keys, newline at the end) atomically."""
    write_text(path, canonical_json(document))


def check_output(path: Path, what: str, *inputs: Path | None) -> None:
    """Refuse, before any work is done for it, a place where a file that somebody named cannot be written.

    Its folder must be there: a mistyped one would be made silently.

    Args:
        path: the file.
        what: what it is, for the message, e.g. "The receipt".
        inputs: files that are read for it and have to stay as they are; None is none.

    Raises:
        InputError: its folder is missing or may not be written to, it is a folder itself, one of the inputs, or ``-``.
        BoardError: it may not be looked at.
    """
    folder = path.parent
    if str(path) == "-":
        raise InputError(
            f"{what} cannot be written to '-'.",
            "The name of a file was expected: standard output is for the command's own answer.",
            "Name a file, or /dev/stdout.",
        )
    kind = kind_of(path)
    if kind == "other":
        return  # a device or a pipe
    if any(given is not None and are_same(path, given) for given in inputs):
        raise InputError(
            f"{what} cannot be written to {path}: it is what the command reads.",
            "Another file was expected, so that the first stays as it is.",
            "Name another one.",
        )
    if kind == "folder":
        raise InputError(
            f"{what} cannot be written to {path}: it is a folder.", "The name of a file was expected."
        )
    if not is_folder(folder):
        raise InputError(
            f"{what} cannot be written to {path}: there is no folder {folder}.",
            "A file in a folder that is there was expected.",
            f"Type `mkdir -p {shlex.quote(str(folder))}`, or name another one.",
        )
    if not os.access(folder, os.W_OK):
        raise InputError(
            f"{what} cannot be written to {path}: you may not write to its folder.",
            "A file in a folder that you may write to was expected.",
            "Name another one.",
        )


def read_text(path: Path, what: str, hint: str = "") -> str:
    """Read a text file.

    Args:
        path: the file.
        what: what it is, for the message, e.g. "The sweep file".
        hint: what to type where it is missing.

    Raises:
        InputError: missing, a folder, or not UTF-8.
        BoardError: it may not be read.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise InputError(f"{what} {path} does not exist.", hint=hint) from error
    except PermissionError as error:
        raise _no_permission(f"{what} {path} could not be read") from error
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise InputError(f"{what} {path} could not be read: {reason}.", hint=hint) from error


def read_data(path: Path, what: str, hint: str = "") -> bytes:
    """As :func:`read_text`, for bytes that something stricter will judge."""
    try:
        return path.read_bytes()
    except FileNotFoundError as error:
        raise InputError(f"{what} {path} does not exist.", hint=hint) from error
    except PermissionError as error:
        raise _no_permission(f"{what} {path} could not be read") from error
    except OSError as error:
        raise InputError(f"{what} {path} could not be read: {error.strerror}.", hint=hint) from error


def read_json(path: Path, what: str, hint: str = "") -> Any:
    """Read a JSON file.

    Raises:
        InputError: missing, not readable or not JSON.
    """
    text = read_text(path, what, hint)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{what} {path} is not complete JSON ({error}).", hint=hint) from error


def sha256_of(document: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of a document."""
    return hashlib.sha256(canonical_json(document).encode()).hexdigest()


def file_sha256(path: Path) -> str:
    """SHA-256 (hex) of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()
