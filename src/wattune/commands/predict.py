"""`wattune predict` and `wattune opcost`: the modelled board and the count of operations, asked by hand."""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from wattune.commands.answers import clock, energy, out, out_json
from wattune.commands.choose import say_limit
from wattune.commands.workload import catalogue_workload, count
from wattune.core.errors import InputError
from wattune.core.objectives import add_objective_argument
from wattune.core.settings import setting_label


def add_predict_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `wattune predict`."""
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="model id of the catalogue")
    which.add_argument(
        "--config", type=Path, metavar="HF_CONFIG.json", help="any Hugging Face config (needs torch)"
    )
    parser.add_argument("--task", required=True, help="task id of the catalogue")
    parser.add_argument(
        "--batch-size", type=count, help="examples per step; default: the catalogue's, 32 for a config file"
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16"),
        help="arithmetic of the training; default: the catalogue's, else fp16",
    )
    parser.add_argument(
        "--max-length", type=count, default=256, help="longest sequence kept, tokens (default: %(default)s)"
    )
    parser.add_argument("--constants", type=Path, metavar="FILE", help="another board's constants")
    add_objective_argument(parser, default=None)
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_opcost_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `wattune opcost`."""
    parser.add_argument("--write", action="store_true", help="recount the committed table (needs torch)")
    parser.add_argument("--model", help="model id of the catalogue (from the committed table)")
    parser.add_argument("--config", type=Path, metavar="HF_CONFIG.json", help="count any Hugging Face config")
    parser.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16"),
        default="fp32",
        help="arithmetic of the training (default: %(default)s)",
    )
    parser.add_argument(
        "--batch-size", type=count, default=8, help="examples per step (default: %(default)s)"
    )
    parser.add_argument(
        "--seq-len", type=count, default=128, help="tokens per example (default: %(default)s)"
    )


def _objective_answer(text: str, rows: list[dict[str, Any]], steps: int) -> Any:
    """What an objective asks for, over predictions per step, counted per epoch of `steps` steps."""
    from wattune.core.curve import Point
    from wattune.core.objectives import choose, parse_objective

    points = {row["mhz"]: Point(row["energy_j"] * steps, row["time_s"] * steps) for row in rows}
    return choose(points, parse_objective(text))


def run_predict(args: argparse.Namespace) -> int:
    """Handle ``wattune predict``; returns the exit code."""
    from wattune.boards.virtual.board import DEFAULT_CONSTANTS, VirtualBoard
    from wattune.terminal import Column, Table, figures, rendered
    from wattune.workloads.build import build_from_config

    if args.config is not None:
        workload = build_from_config(
            args.config,
            args.task,
            batch_size=32 if args.batch_size is None else args.batch_size,
            precision=args.precision or "fp16",
            max_length=args.max_length,
        )
    else:
        workload = catalogue_workload(args)
    board = VirtualBoard(args.constants or DEFAULT_CONSTANTS)
    rows = board.predict(workload)
    answer = None
    if args.objective is not None:
        answer = _objective_answer(args.objective, rows, workload.steps_per_epoch)
    if args.json:
        said = None if answer is None else {"objective": args.objective, **answer.document()}
        out_json(rows if said is None else {"settings": rows, "answer": said})
        return 0
    how = "SIMULATED" if board.info.calibrated else "SIMULATED, board UNCALIBRATED"
    title = f"{workload.id}, batch {workload.batch_size}, {workload.precision}, on {board.info.id}: {how}, per step"
    energies, times = (figures([row[name] for row in rows]) for name in ("energy_j", "time_s"))
    cells = list(zip([setting_label(row["mhz"]) for row in rows], energies, times, strict=True))
    columns = [Column(name, number=True) for name in ("setting MHz", "energy (J)", "time (s)")]
    if (shown := rendered([Table(columns, cells, title)], sys.stdout)) is not None:
        out(shown)
    else:
        out(title)
        out(f"{'setting':>10} {'energy (J)':>12} {'time (s)':>10}")
        for row in rows:
            out(f"{setting_label(row['mhz']):>10} {row['energy_j']:>12.4g} {row['time_s']:>10.4g}")
    if answer is not None:
        out(
            f"{args.objective}: {clock(answer.setting)}, {energy(answer.saving_pct)} and"
            f" {answer.slowdown_pct:+.1f} % time against {setting_label(answer.baseline)}"
            f" ({answer.energy_j:.4g} J and {answer.time_s:.4g} s per epoch)."
        )
        say_limit(answer)
    return 0


def run_opcost(args: argparse.Namespace) -> int:
    """Handle ``wattune opcost``; returns the exit code."""
    from wattune.workloads import opcost

    if args.write:
        path = opcost.write_table()
        logging.getLogger("wattune").info("Wrote %s.", path)
        return 0
    if args.config is not None:
        cost = opcost.count_config(args.config, args.precision).step_cost(args.batch_size, args.seq_len)
    elif args.model is not None:
        from wattune.workloads.catalogue import find_model

        cost = opcost.step_cost(find_model(args.model).id, args.precision, args.batch_size, args.seq_len)
    else:
        raise InputError("Nothing to count was given.", "One of --write, --model and --config was expected.")
    out_json(
        {
            name: {"flops": phase.flops, "bytes": phase.bytes, "launches": phase.launches}
            for name, phase in (
                ("forward", cost.forward),
                ("backward", cost.backward),
                ("optimizer", cost.optimizer),
                ("total", cost.total),
            )
        }
    )
    return 0
