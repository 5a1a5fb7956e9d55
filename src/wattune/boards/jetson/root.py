"""Which tree a board command works on: ``--root DIR``, else ``WATTUNE_ROOT``, else the machine itself."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError

VARIABLE = "WATTUNE_ROOT"
TIMEOUT_S = 2.0


def add_root_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--root DIR``."""
    parser.add_argument(
        "--root",
        type=Path,
        metavar="DIR",
        help=f"work on DIR/sys, DIR/proc, DIR/etc instead of the machine's own (default: ${VARIABLE}, else /)",
    )


def root_of(args: argparse.Namespace) -> Path:
    """The root asked for.

    Raises:
        InputError: it is no folder.
        BoardError: it may not be looked at.
    """
    given = args.root if args.root is not None else Path(os.environ.get(VARIABLE) or "/")
    root = Path(os.path.abspath(given))  # noqa: PTH100  # `DIR/..` is folded; links in DIR's own path stay as typed
    try:
        there = root.is_dir()
    except OSError as error:  # a folder above it lets nobody in
        raise BoardError(
            f"The root {given} cannot be looked at: {error.strerror}.",
            "A folder that you may enter was expected.",
            "Run the command as its owner, or name another one.",
        ) from error
    if not there:
        raise InputError(
            f"The root {given} is not a folder.",
            "A folder with sys/, proc/ and etc/ in it was expected.",
            "Make one with `wattune emulate DIR`, or leave --root and WATTUNE_ROOT away for this machine.",
        )
    return root


def sysfs_of(args: argparse.Namespace, *, timeout_s: float | None = TIMEOUT_S) -> Sysfs:
    """The tree asked for, with a time limit on its reads.

    Raises:
        InputError: the root is no folder.
    """
    return Sysfs(root_of(args), timeout_s=timeout_s)
