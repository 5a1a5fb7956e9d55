"""The `wattune` command: argument parsing and printing; every answer is computed elsewhere.

Handlers import what they need when they run, so that `wattune --help` and `wattune choose` stay fast and need the
standard library only.
"""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wattune import __version__
from wattune.benches import BENCHMARKS
from wattune.commands.answers import out, out_json
from wattune.commands.extras import lacking
from wattune.core.errors import WattuneError
from wattune.core.numbers import whole_number


def _emulate(args: argparse.Namespace) -> int:
    from wattune.boards.virtual.emulator import serve
    from wattune.commands import simulate

    return serve.run(args, simulate.emulated_board)


def _sweep(args: argparse.Namespace) -> int:
    from wattune.config import PARAMS
    from wattune.io import check_output
    from wattune.stages.profile import sweep_outside_pipeline

    if args.export is not None:
        check_output(args.export, "The sweep", PARAMS)
    try:
        written = sweep_outside_pipeline(args.workloads, Path(args.into), export=args.export)
    except KeyboardInterrupt:
        logging.getLogger("wattune").info(
            "What was measured is kept in %s; the same command goes on from there.", args.into
        )
        raise
    for path in written:
        out(str(path))
    return 0


def _pull(args: argparse.Namespace) -> int:
    from wattune.boards.jetson.discovery import discover
    from wattune.boards.jetson.root import sysfs_of
    from wattune.io import check_output
    from wattune.running.choosing import check_fits
    from wattune.tracking.pull import pull

    def check(governor: Any) -> None:
        findings = discover(sysfs_of(args))
        if findings.kind == "jetson":  # elsewhere a governor is only looked at
            for note in check_fits(governor, findings, simulated_ok=args.simulated_ok):
                logging.getLogger("wattune").warning("wattune: %s", note)

    check_output(args.output, "The governor")
    pulled = pull(args.uri, args.output, check)
    out(f"{args.output}: {pulled}")
    return 0


def _publish(_: argparse.Namespace) -> int:
    from wattune.stages.publish import main as publish

    publish()
    return 0


def _bench(args: argparse.Namespace) -> int:
    from wattune import benches

    if args.write:
        benches.check_page(args.name)
    benches.check_seed(args.name, args.seed, write=args.write)
    document = benches.run(args.name, args.seed)
    if args.write:
        benches.write(args.name, document)
    if args.json:
        out_json(document)
    else:
        out(benches.text(args.name, document))
    return 0 if document.get("ok", True) else 1


def _finetune(args: argparse.Namespace) -> int:
    from wattune.boards.nvml import NvmlMeter
    from wattune.workloads.finetune import command

    return command.run_finetune(args, NvmlMeter())


def _run(args: argparse.Namespace) -> int:
    from wattune.commands.workload import features_for
    from wattune.running.run import run

    def keep() -> Callable[[dict[str, Any]], str]:
        from wattune.tracking.runs import ready

        return ready()

    return run(args, features_of=lambda governor: features_for(args, governor), keep=keep)


def _doctor(args: argparse.Namespace) -> int:
    from wattune.boards.jetson import doctor
    from wattune.governing import client, state

    return doctor.run(args, stale=state.stale, daemon=client.find_daemon)


class _Parser(argparse.ArgumentParser):
    """Argparse drops what it cannot write; help that went nowhere is told by `main`, as every answer is."""

    def _print_message(self, message: str, file: Any = None) -> None:
        if file is sys.stdout:
            sys.stdout.write(message)
        else:
            super()._print_message(message, file)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    from wattune.boards.jetson import doctor
    from wattune.boards.jetson.root import add_root_argument
    from wattune.boards.virtual.emulator import serve
    from wattune.commands import choose, pareto, predict, simulate, workload
    from wattune.governing import clockd, hand
    from wattune.profiling import replay
    from wattune.profiling.importing import jetson_clocks, tegrastats
    from wattune.profiling.importing import sweep as importing_sweep
    from wattune.running import run
    from wattune.workloads.finetune import command as finetune

    parser = _Parser(prog="wattune", description="The GPU clock at which fine-tuning costs least energy.")
    parser.add_argument("--version", action="version", version=f"wattune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, handler: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(handler=handler)
        return sub

    choosing = command(
        "choose", choose.run, "the clock for a workload, the rule that fired, expected saving and slowdown"
    )
    workload.add_workload_arguments(choosing)
    pareto.add_arguments(
        command("pareto", pareto.run, "the settings that no other beats in both energy and time")
    )
    explaining = command("explain", choose.run, "the tree and the path taken for a workload, in plain words")
    workload.add_workload_arguments(explaining)
    doctor.add_arguments(
        command("doctor", _doctor, "what board this is, what works on it, what does not, and what to type")
    )
    hand.add_pin_arguments(command("pin", hand.run_pin, "pin the GPU's clock by hand, and put it back"))
    running = command("run", _run, "a command under a governed clock, measured, with a receipt")
    workload.add_feature_arguments(running)
    run.add_arguments(running)
    hand.add_restore_arguments(
        command("restore", hand.run_restore, "put back what a pin that died left behind")
    )
    clockd.add_arguments(
        command("clockd", clockd.run, "the clock daemon: pins for the group wattune, and puts back")
    )
    replay.add_arguments(command("replay", replay.run, "policies on recorded sweeps"))
    kinds = commands.add_parser(
        "import",
        help="foreign logs and tables into our formats",
        description="foreign logs and tables into our formats",
    ).add_subparsers(dest="kind", required=True, metavar="KIND")
    for name, module, text in (
        ("sweep", importing_sweep, "a foreign table into a sweep CSV"),
        ("tegrastats", tegrastats, "a log of tegrastats into a summary and a trace"),
        ("jetson-clocks", jetson_clocks, "what `jetson_clocks --show` printed, as plain data"),
    ):
        kind = kinds.add_parser(name, help=text)
        kind.set_defaults(handler=module.run)
        module.add_arguments(kind)
    predict.add_predict_arguments(
        command("predict", predict.run_predict, "the virtual board's energy and time per step at every clock")
    )
    simulate.add_validate_arguments(
        command("validate", simulate.run_validate, "the virtual boards against published measurements")
    )
    serve.add_arguments(
        command(
            "emulate", _emulate, "a live file tree that behaves like a board's sysfs, for tools and tests"
        )
    )
    predict.add_opcost_arguments(
        command(
            "opcost",
            predict.run_opcost,
            "operation cost of a training step, counted on the real architecture",
        )
    )
    finetune.add_fetch_arguments(
        command("fetch", finetune.run_fetch, "model and data into the local cache, ahead of an offline run")
    )
    finetune.add_finetune_arguments(
        command(
            "finetune",
            _finetune,
            "a fine-tuning run by hand, clocks untouched: step time, tokens, power, losses",
        )
    )

    sweep = command("sweep", _sweep, "profile workloads outside the pipeline, on the board of params.yaml")
    sweep.add_argument("workloads", nargs="+", metavar="WORKLOAD", help="<model>-<task>, e.g. bert-base-mnli")
    sweep.add_argument(
        "--into", default="data/sweeps", metavar="DIR", help="folder of the cells (default: %(default)s)"
    )
    sweep.add_argument("--export", type=Path, metavar="FILE.csv", help="also write a sweep CSV")

    pull = command("pull", _pull, "the registered governor, checked, written atomically")
    pull.add_argument("uri", nargs="?", help="models:/NAME@ALIAS, models:/NAME/VERSION, a folder or a file")
    pull.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("governor.json"),
        help="the file to write (default: %(default)s)",
    )
    pull.add_argument("--simulated-ok", action="store_true", help="take a simulated governor on a real board")
    add_root_argument(pull)

    command("publish", _publish, "the publish stage by hand")

    bench = command("bench", _bench, "the project's benchmarks")
    bench.add_argument("name", choices=BENCHMARKS, help="which benchmark")
    bench.add_argument(
        "--write",
        action="store_true",
        help="also save the result where docs/ shows it (paper-protocol, window, studies, diverse)",
    )
    bench.add_argument(
        "--seed",
        type=whole_number,
        metavar="N",
        help="of diverse: judge the workloads that this seed draws instead",
    )
    bench.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The arguments, TASK also where it stands after options: argparse takes an optional word only right behind the one before it."""
    parser = build_parser()
    args, rest = parser.parse_known_args(argv)
    if len(rest) == 1 and not rest[0].startswith("-") and getattr(args, "task", None) == "":
        args.task = rest[0]
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    logging.basicConfig(
        level=os.environ.get("LOG_LEVEL", "INFO").upper(), format="%(message)s", stream=sys.stderr
    )
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # for letters that its encoding lacks
    try:
        try:
            args = _parse(argv)
        except SystemExit:
            sys.stdout.flush()  # the parser's own answers, --help and --version, are met below likewise
            raise
        code = int(args.handler(args))
        sys.stdout.flush()  # here, so that a closed pipe is met below and not at interpreter exit
        return code
    except WattuneError as error:
        sys.stderr.write(f"wattune: {error}\n")
        return error.exit_code
    except ModuleNotFoundError as error:
        missing = lacking(error)
        if missing is None:
            raise
        sys.stderr.write(f"wattune: {missing}\n")
        return missing.exit_code
    except BrokenPipeError:
        # The reader of a pipe went away (`wattune ... | head`): nothing to say, and nothing more to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("wattune: interrupted.\n")
        return 130
    except MemoryError:
        sys.stderr.write(
            "wattune: There is not enough memory. More was expected, or less to do: end what else uses it, raise the limit"
            " (`ulimit -v`), or take less data or a smaller model, then type the same again.\n"
        )
        return 3
    except OSError as error:
        if not _has_working_directory():
            sys.stderr.write(
                "wattune: The working directory is gone. `cd` into one that is there, and try again.\n"
            )
            return 3
        if isinstance(error, PermissionError) and error.filename is not None:
            sys.stderr.write(
                f"wattune: {os.fsdecode(error.filename)} cannot be used: there is no permission."
                " A place that you may use was expected. Run the command as its owner, or name another one.\n"
            )
            return 3
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"wattune: The answer could not be written: {os.strerror(error.errno)}.\n")
        return 3


if __name__ == "__main__":
    sys.exit(main())
