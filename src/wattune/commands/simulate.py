"""`wattune emulate` and `wattune validate`: the modelled boards as a live tree, and against published measurements."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from wattune.commands.answers import out, out_json
from wattune.commands.workload import count
from wattune.core.errors import InputError


def add_validate_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `wattune validate`."""
    parser.add_argument(
        "--redraws", type=count, default=6, help="how often all priors are redrawn (default: %(default)s)"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON document on stdout: an entry per source"
    )
    parser.add_argument(
        "--write-board",
        type=Path,
        metavar="FILE.json",
        help="refit a modelled board to its curves and write its file, instead of the report",
    )
    parser.add_argument(
        "--board",
        default="jetson-agx-orin-64gb",
        metavar="ID",
        help="with --write-board: which board (default: %(default)s)",
    )


def emulated_board(args: argparse.Namespace) -> Any:
    """The running board, its tree, and what names of workloads and faults mean."""
    from wattune.boards.virtual.constants import find_board_file, load_board_file
    from wattune.boards.virtual.emulator import faults, layout
    from wattune.boards.virtual.emulator.machine import Machine
    from wattune.workloads.build import build_named

    if args.constants is None:
        file = find_board_file(args.board or "jetson-agx-orin-64gb")
    else:
        file = load_board_file(args.constants)
        if args.board is not None and args.board.lower() != file.board.lower():
            raise InputError(
                f"--board says {args.board}, and {args.constants} describes {file.board}.",
                "One board was expected.",
                "Leave --board out, or name that board's file.",
            )
    jetpack = args.jetpack or layout.default_jetpack(file.soc)
    layout.check_board(file.soc, file.board, jetpack)
    if not file.calibrated:
        logging.getLogger("wattune").warning(
            "%s is uncalibrated: no measurement stands behind its numbers.", file.board
        )
    workload = None if args.workload == "idle" else build_named(args.workload)
    machine = Machine(file, jetpack=jetpack, workload=workload, power_mode=args.power_mode)
    tree = layout.build_tree(machine)
    return machine, tree, build_named, lambda text: faults.apply(text, machine, tree)


def run_validate(args: argparse.Namespace) -> int:
    """Handle ``wattune validate``; returns the exit code."""
    from wattune.io import check_output
    from wattune.profiling.progress import jobs_on
    from wattune.stages.validate import refitted, report
    from wattune.terminal import Line, rendered
    from wattune.validation import page

    if args.write_board is not None:
        check_output(args.write_board, "The board's file")
        written = refitted(args.board, args.write_board)
        if args.json:
            out_json(written)
        else:
            out(page.refit_text(written))
        return 0
    with Line() as line:
        document = report(Path(), redraws=args.redraws, told=jobs_on(line, "refits"))
    if args.json:
        out_json(document["sources"])
    else:
        out(rendered(page.blocks(document), sys.stdout) or page.text(document))
    return 0
