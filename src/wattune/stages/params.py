"""`make params`: compile ``conf/`` into ``params.yaml``; for a recorded sweep, check and merge its files first."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from wattune.boards.recorded import choose_board
from wattune.boards.sweepfile import read_sweep, write_sweep
from wattune.config import PARAMS, compose, load_params
from wattune.core.errors import InputError
from wattune.io import read_text, write_text
from wattune.stages._main import run

log = logging.getLogger(__name__)

CONF = Path("conf")
HEADER = "# Compiled from conf/ by `make params`: do not edit, edit conf/.\n"


def params_text(document: dict[str, Any]) -> str:
    """The text of ``params.yaml``."""
    import yaml

    return HEADER + yaml.safe_dump(document, sort_keys=False, width=120, default_flow_style=None)


def take_in(data: Path | None, board: str, target: Path) -> None:
    """Check a recorded sweep and put it, merged, where the pipeline reads it.

    Raises:
        InputError: no data given and none there from before, not a valid sweep, or several boards and none named.
    """
    if data is None and not target.is_file():
        raise InputError(
            "No recorded sweep was given.",
            "A sweep CSV, or a folder of them, was expected (docs/recorded.md).",
            "Type `make repro EXPERIMENT=recorded DATA=FILE_OR_DIR`.",
        )
    sweep = read_sweep(data if data is not None else target)
    for warning in sweep.warnings:
        log.warning("%s", warning)
    chosen = choose_board(sweep, board)
    workloads = sweep.of_board(chosen)
    if len(workloads) < 2:
        raise InputError(
            f"The sweep holds one workload of board '{chosen}' ('{workloads[0].id}').",
            "At least two were expected, to learn from one and judge on the other.",
            "Add sweeps of other workloads; `wattune replay` looks at single ones.",
        )
    if data is not None and write_sweep(sweep.rows, target):
        log.info("%s: %d rows of %d boards.", target, len(sweep.rows), len(sweep.boards))
    log.info("Board: %s.", chosen)


def check() -> None:
    """Compare ``params.yaml`` with ``conf/``.

    Raises:
        InputError: they differ.
    """
    import yaml

    experiment = load_params().experiment
    there = yaml.safe_load(read_text(PARAMS, "The parameter file", "Run `make params`."))
    if there != compose(CONF, experiment):
        raise InputError(
            f"{PARAMS} is not what conf/ compiles to for experiment '{experiment}'.",
            "It is compiled, not edited.",
            f"Run `make params EXPERIMENT={experiment}`.",
        )


def main() -> None:
    """Compile, or compare with ``--check``."""
    parser = argparse.ArgumentParser(prog="python -m wattune.stages.params", description=__doc__)
    parser.add_argument(
        "--experiment", default="paper", help="a name in conf/experiment (default: %(default)s)"
    )
    parser.add_argument("--data", type=Path, help="recorded sweep: a CSV file or a folder of them")
    parser.add_argument("--board", default="", help="which board of the recorded sweep")
    parser.add_argument("--check", action="store_true", help="compare params.yaml with conf/, write nothing")
    parser.add_argument("overrides", nargs="*", help="Hydra overrides, e.g. sweep.repeats=5")
    args = parser.parse_args()
    if args.check:
        check()
        return
    overrides = list(args.overrides)
    if args.board:
        overrides.append(f"board.id='{args.board}'")
    document = compose(CONF, args.experiment, overrides)
    board = document["board"]
    if board["kind"] == "recorded":
        take_in(args.data, board["id"], Path(board["data"]))
    elif args.data is not None or args.board:
        raise InputError(
            f"DATA and BOARD are for recorded sweeps; experiment '{args.experiment}' uses a {board['kind']} board.",
            hint="Type `make repro EXPERIMENT=recorded DATA=FILE_OR_DIR`.",
        )
    text = params_text(document)
    if not PARAMS.is_file() or PARAMS.read_text(encoding="utf-8") != text:
        write_text(PARAMS, text)
        log.info("%s: experiment '%s', %d workloads.", PARAMS, args.experiment, len(document["workloads"]))


if __name__ == "__main__":
    sys.exit(run(main))
