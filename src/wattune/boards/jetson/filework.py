"""Reads, writes and lists files as drivers expect it; run as a program it does so on request, one JSON line each.

As a program it is the helper behind a time limit: where a driver never returns, it is left behind, and nobody waits for it.
"""

from __future__ import annotations

import errno
import json
import os
import sys

MAX_BYTES = 1 << 16


def read_file(path: str | os.PathLike[str]) -> str:
    """One read of a file. Python's own file objects take EAGAIN, which a powered-off block gives, for something else."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(handle, MAX_BYTES).decode("utf-8", "replace").rstrip("\n\0")
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(handle)


def write_file(path: str | os.PathLike[str], text: str) -> None:
    """One write to a file that is there."""
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        data = f"{text}\n".encode()
        if os.write(handle, data) != len(data):
            raise OSError(errno.EIO, "the write was cut short", str(path))
    except OSError as error:
        error.filename = os.fspath(path)
        raise
    finally:
        os.close(handle)


def list_folder(path: str | os.PathLike[str]) -> list[str]:
    """Sorted names in a folder."""
    return sorted(os.listdir(path))  # noqa: PTH208  # names are what is asked for


def serve() -> None:
    """Answer requests ``[operation, path, text]`` on stdin with ``[result]`` or ``[errno, reason]`` on stdout until it ends."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        operation, path, text = json.loads(line)
        answer: list[object]
        try:
            if operation == "read":
                answer = [read_file(path)]
            elif operation == "write":
                answer = [write_file(path, text)]  # type: ignore[func-returns-value]
            else:
                answer = [list_folder(path)]
        except OSError as error:
            answer = [error.errno or errno.EIO, error.strerror or str(error)]
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    serve()
