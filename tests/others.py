"""Programs run by a user who is not root, with no capability left: the only way to see what such a user sees."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NOBODY = 65534
MEMBER_GID = 1
"""A group that is everywhere; stands in for the group wattune."""

SOURCE = Path(__file__).parents[1] / "src"
TRIAL = (
    "import sys; sys.path.insert(0, sys.argv[1]); import json, socket, subprocess, ctypes, wattune.cli;"
    " subprocess.run([sys.executable, '-I', '-S', '-c', ''], check=True); assert sys.version_info >= (3, 10); print('fit')"
)


def as_nobody(*groups: int) -> dict[str, Any]:
    """Arguments of `subprocess` for that user in these groups."""
    return {"user": NOBODY, "group": groups[0] if groups else NOBODY, "extra_groups": list(groups)}


@functools.cache
def python() -> str | None:
    """A Python that this user may run and that finds our source; None where there is none.

    That of the tests may lie in somebody's home. Ours needs the standard library alone, so that any other will do.
    """
    if os.geteuid() != 0:
        return None
    for path in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        with contextlib.suppress(OSError):
            done = subprocess.run(
                [path, "-I", "-S", "-c", TRIAL, str(SOURCE)],
                capture_output=True, text=True, check=False, cwd="/", **as_nobody(),
            )  # fmt: skip
            if done.stdout == "fit\n":
                return path
    return None


def environment(*, packages: bool = False, **more: str) -> dict[str, str]:
    """What such a program needs to find ours.

    Args:
        packages: and those that the tests use.
        more: further variables.
    """
    path = [str(SOURCE), *([sysconfig.get_path("purelib")] if packages else [])]
    home = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    return {**home, "PYTHONPATH": os.pathsep.join(path), **more}


@contextlib.contextmanager
def open_folder() -> Iterator[Path]:
    """A folder that everybody may write to.

    Not below pytest's own: every session of it that begins closes the folder they all share to others, also while a test runs.
    """
    made = Path(tempfile.mkdtemp(prefix="wattune-test-"))
    made.chmod(0o777)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
