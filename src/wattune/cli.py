"""The `wattune` command: argument parsing and printing; every answer is computed elsewhere.

Handlers import what they need when they run, so that `wattune --help` and `wattune choose` stay fast and need the
standard library only.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wattune import __version__
from wattune.core.errors import InputError, WattuneError
from wattune.core.settings import Setting, setting_label

DEFAULT_GOVERNOR = "models/governor.json"
LIMITS = {"seq_len": (1.0, 1e6), "gpu_util_ref_pct": (0.0, 100.0), "batch_size": (1.0, 1e6)}
"""What a workload can be; flags outside are refused."""


def _out(text: str) -> None:
    """Results go to stdout; everything else is logged to stderr."""
    sys.stdout.write(text + "\n")


def _out_json(document: Any) -> None:
    _out(json.dumps(document, indent=2, allow_nan=False))


def _clock(setting: Setting) -> str:
    return setting_label(setting) + ("" if isinstance(setting, str) else " MHz")


# --- choose and explain ---------------------------------------------------------------------------------------------


def _add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="model id of the catalogue, e.g. bert-base")
    parser.add_argument("--task", help="task id of the catalogue, e.g. mnli")
    parser.add_argument("--batch-size", type=_count, help="examples per step")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="arithmetic of the training")
    parser.add_argument("--seq-len", type=float, metavar="L", help="mean tokens per example before padding")
    parser.add_argument(
        "--gpu-util", type=float, metavar="U", help="GPU utilisation at the reference clock, percent"
    )
    parser.add_argument(
        "--features", type=Path, metavar="FILE", help="JSON file of feature values; flags override it"
    )
    parser.add_argument(
        "--governor", default=DEFAULT_GOVERNOR, metavar="PATH_OR_URI", help="default: %(default)s"
    )
    parser.add_argument("--objective", default="energy", choices=("energy",), help="what is minimised")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _load_governor(where: str) -> Any:
    from wattune.core.governor import parse_governor
    from wattune.io import read_data

    if "://" in where or where.startswith("models:"):
        import tempfile

        from wattune.tracking.pull import pull

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "governor.json"
            pull(where, path)
            return parse_governor(path.read_text())
    return parse_governor(
        read_data(Path(where), "The governor file", "Fetch one with `wattune pull` or `make repro`.")
    )


def _given_features(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the user said, and what the catalogue knows of the model and task beside it."""
    from wattune.core.features import FEATURES
    from wattune.io import read_json
    from wattune.workloads.catalogue import catalogue_features

    given: dict[str, Any] = {}
    if args.features is not None:
        document = read_json(args.features, "The feature file")
        if not isinstance(document, dict):
            raise InputError(
                f"{args.features} is not a JSON object.", 'For example {"layers": 12, "seq_len": 40}.'
            )
        for name, value in document.items():
            if name not in FEATURES:
                raise InputError(
                    f"'{name}' in {args.features} is not a feature.", f"Known: {', '.join(FEATURES)}."
                )
            kind = FEATURES[name].kind
            good = isinstance(value, str) if kind == "category" else _is_number(value)
            if value is not None and not good:
                raise InputError(
                    f"Feature '{name}' in {args.features} is {value!r}.", f"A {kind} was expected."
                )
        given.update({name: value for name, value in document.items() if value is not None})
    for name, value in (
        ("seq_len", args.seq_len),
        ("gpu_util_ref_pct", args.gpu_util),
        ("batch_size", args.batch_size),
    ):
        if value is not None:
            low, high = LIMITS[name]
            if not (_is_number(value) and low <= value <= high):
                raise InputError(f"{name} is {value}.", f"A number from {low:g} to {high:g} was expected.")
            given[name] = float(value)
    known = catalogue_features(args.model, args.task)
    if not given and not known:
        raise InputError(
            "No workload was given.",
            "A model and a task, or features, were expected.",
            "For example `wattune choose --model bert-base --task mnli`.",
        )
    named = {"model": ("family", "layers", "hidden", "params_m"), "task": ("seq_len",)}
    stated = {name for flag, names in named.items() if getattr(args, flag) for name in names}
    assumed = {name: value for name, value in known.items() if name not in given and name not in stated}
    for name, value in known.items():
        given.setdefault(name, value)
    return given, assumed


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -1e18 < value < 1e18


def _count(text: str) -> int:
    """A whole number a training job can have: 1 to a million."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number from 1 to 1000000")
    return value


def _choose(args: argparse.Namespace) -> int:
    governor = _load_governor(args.governor)
    given, from_catalogue = _given_features(args)
    decision = governor.decide(given)
    asked = {feature.name for feature in governor.features}
    assumed = {name: value for name, value in from_catalogue.items() if name in asked} | decision.assumed
    if args.json:
        _out_json(
            {
                "mhz": decision.setting,
                "rule": decision.rule,
                "expected_saving_pct": decision.expected_saving_pct,
                "expected_slowdown_pct": decision.expected_slowdown_pct,
                "in_range": decision.in_range,
                "out_of_range": list(decision.out_of_range),
                "abstained": decision.abstained,
                "reason": decision.reason,
                "saving_interval_pct": decision.saving_interval_pct,
                "assumed": assumed,
                "governor": governor.digest,
                "provenance": governor.provenance,
                **({"tree": governor.tree.text().split("\n")} if args.command == "explain" else {}),
            }
        )
        return 0
    if args.command == "explain":
        return _explain(governor, decision, assumed)
    _out(f"{_clock(decision.setting)}  ({decision.rule})")
    _out(_expectation(governor, decision))
    _say_caveats(governor, decision, assumed)
    return 0


def _expectation(governor: Any, decision: Any) -> str:
    if decision.abstained:
        return "Nothing is changed, so nothing is saved or lost."
    if decision.expected_saving_pct is None:
        return "Saving against MAXN: unknown (the training data have no MAXN baseline)."
    slowdown = decision.expected_slowdown_pct
    time = "time unknown" if slowdown is None else f"{slowdown:+.1f} % time"
    return (
        f"Expected against MAXN: {decision.expected_saving_pct:.1f} % less energy, {time}"
        f" (mean of the training workloads in this leaf; {governor.provenance})."
    )


def _say_caveats(governor: Any, decision: Any, assumed: dict[str, Any]) -> None:
    if decision.abstained:
        _out(f"Declined, the clocks are left alone: {decision.reason}.")
    if not decision.in_range:
        _out(f"Outside what the governor was trained on: {', '.join(decision.out_of_range)}.")
    if assumed:
        _out("Assumed: " + ", ".join(f"{name} = {value}" for name, value in sorted(assumed.items())) + ".")
    _out(f"Governor {governor.digest[:12]} for {governor.board}, provenance: {governor.provenance}.")


def _explain(governor: Any, decision: Any, assumed: dict[str, Any]) -> int:
    _out(
        f"Policy {governor.policy} for {governor.board} in mode {governor.power_mode}, {governor.provenance}:\n"
    )
    _out(governor.tree.text())
    _out(f"\nThis workload: {decision.rule}")
    _out(_expectation(governor, decision))
    _say_caveats(governor, decision, assumed)
    return 0


# --- predict, opcost ------------------------------------------------------------------------------------------------


def _predict(args: argparse.Namespace) -> int:
    from wattune.boards.virtual.board import DEFAULT_CONSTANTS, VirtualBoard
    from wattune.workloads.build import build_from_config, build_workload
    from wattune.workloads.catalogue import find_model

    if args.config is not None:
        workload = build_from_config(
            args.config,
            args.task,
            batch_size=32 if args.batch_size is None else args.batch_size,
            precision=args.precision or "fp16",
            max_length=args.max_length,
        )
    else:
        model = find_model(args.model)
        workload = build_workload(
            model.id,
            args.task,
            batch_size=model.batch_size if args.batch_size is None else args.batch_size,
            precision=args.precision or model.precision,
            max_length=args.max_length,
        )
    board = VirtualBoard(args.constants or DEFAULT_CONSTANTS)
    rows = board.predict(workload)
    if args.json:
        _out_json(rows)
        return 0
    how = "SIMULATED" if board.info.calibrated else "SIMULATED, board UNCALIBRATED"
    _out(
        f"{workload.id}, batch {workload.batch_size}, {workload.precision}, on {board.info.id}: {how}, per step"
    )
    _out(f"{'setting':>10} {'energy (J)':>12} {'time (s)':>10}")
    for row in rows:
        _out(f"{setting_label(row['mhz']):>10} {row['energy_j']:>12.4g} {row['time_s']:>10.4g}")
    return 0


def _opcost(args: argparse.Namespace) -> int:
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
    _out_json(
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


# --- emulate, validate -------------------------------------------------------------------------------------------------


def _emulate(args: argparse.Namespace) -> int:
    from wattune.boards.virtual.emulator import serve

    return serve.run(args, _emulated_board)


def _validate(args: argparse.Namespace) -> int:
    from wattune.stages.validate import report
    from wattune.validation import page

    document = report(Path(), redraws=args.redraws)
    if args.json:
        _out_json(document["sources"])
    else:
        _out(page.text(document))
    return 0


def _emulated_board(args: argparse.Namespace) -> Any:
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


# --- sweep, registry, benchmarks ------------------------------------------------------------------------------------


def _sweep(args: argparse.Namespace) -> int:
    from wattune.stages.profile import sweep_outside_pipeline

    written = sweep_outside_pipeline(args.workloads, Path(args.into), export=args.export)
    for path in written:
        _out(str(path))
    return 0


def _pull(args: argparse.Namespace) -> int:
    from wattune.tracking.pull import pull

    pulled = pull(args.uri, args.output)
    _out(f"{args.output}: {pulled}")
    return 0


def _publish(_: argparse.Namespace) -> int:
    from wattune.stages.publish import main as publish

    publish()
    return 0


def _bench(args: argparse.Namespace) -> int:
    from wattune.bench import BENCHMARKS, check_page, save, text_of

    if args.write:
        check_page(args.name)
    document = BENCHMARKS[args.name]()
    if args.write:
        save(document)
    if args.json:
        _out_json(document)
    else:
        _out(text_of(args.name, document))
    return 0 if document.get("ok", True) else 1


# --- the parser -----------------------------------------------------------------------------------------------------


def _replay_handler(args: argparse.Namespace) -> int:
    from wattune.profiling import replay

    return int(replay.run(args))


def _import_handler(args: argparse.Namespace) -> int:
    from wattune.profiling import importing, importing_tegrastats

    return int((importing if args.kind == "sweep" else importing_tegrastats).run(args))


def _pin(args: argparse.Namespace) -> int:
    from wattune.governing import hand

    return hand.run_pin(args)


def _clockd(args: argparse.Namespace) -> int:
    from wattune.governing import clockd

    return clockd.run(args)


def _restore(args: argparse.Namespace) -> int:
    from wattune.governing import hand

    return hand.run_restore(args)


def _doctor(args: argparse.Namespace) -> int:
    from wattune.boards.jetson import doctor
    from wattune.governing import client, state

    return doctor.run(args, stale=state.stale, daemon=client.find_daemon)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command line."""
    parser = argparse.ArgumentParser(
        prog="wattune", description="The GPU clock at which fine-tuning costs least energy."
    )
    parser.add_argument("--version", action="version", version=f"wattune {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(
        name: str, handler: Callable[[argparse.Namespace], int], text: str
    ) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text)
        sub.set_defaults(handler=handler)
        return sub

    choose = command(
        "choose", _choose, "the clock for a workload, the rule that fired, expected saving and slowdown"
    )
    _add_workload_arguments(choose)
    explain = command("explain", _choose, "the tree and the path taken for a workload, in plain words")
    _add_workload_arguments(explain)

    from wattune.boards.jetson import doctor
    from wattune.governing import clockd, hand
    from wattune.profiling import importing, importing_tegrastats, replay

    doctor.add_arguments(
        command("doctor", _doctor, "what board this is, what works on it, what does not, and what to type")
    )
    hand.add_pin_arguments(command("pin", _pin, "pin the GPU's clock by hand, and put it back"))
    hand.add_restore_arguments(command("restore", _restore, "put back what a pin that died left behind"))
    clockd.add_arguments(
        command("clockd", _clockd, "the clock daemon: pins for the group wattune, and puts back")
    )
    replay.add_arguments(command("replay", _replay_handler, "policies on recorded sweeps"))
    kinds = command("import", _import_handler, "foreign logs and tables into our formats").add_subparsers(
        dest="kind", required=True, metavar="KIND"
    )
    importing.add_arguments(kinds.add_parser("sweep", help="a foreign table into a sweep CSV"))
    importing_tegrastats.add_arguments(
        kinds.add_parser("tegrastats", help="a log of tegrastats into a summary and a trace")
    )

    predict = command("predict", _predict, "the virtual board's energy and time per step at every clock")
    which = predict.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="model id of the catalogue")
    which.add_argument(
        "--config", type=Path, metavar="HF_CONFIG.json", help="any Hugging Face config (needs torch)"
    )
    predict.add_argument("--task", required=True, help="task id of the catalogue")
    predict.add_argument("--batch-size", type=_count, help="default: the catalogue's, 32 for a config file")
    predict.add_argument(
        "--precision", choices=("fp32", "fp16", "bf16"), help="default: the catalogue's, else fp16"
    )
    predict.add_argument("--max-length", type=_count, default=256, help="default: %(default)s tokens")
    predict.add_argument("--constants", type=Path, metavar="FILE", help="another board's constants")
    predict.add_argument("--json", action="store_true", help="one JSON document on stdout")

    validate = command("validate", _validate, "the virtual boards against published measurements")
    validate.add_argument(
        "--redraws", type=_count, default=6, help="how often all priors are redrawn (default: %(default)s)"
    )
    validate.add_argument(
        "--json", action="store_true", help="one JSON document on stdout: an entry per source"
    )

    from wattune.boards.virtual.emulator import serve

    serve.add_arguments(
        command(
            "emulate", _emulate, "a live file tree that behaves like a board's sysfs, for tools and tests"
        )
    )

    opcost = command("opcost", _opcost, "operation cost of a training step, counted on the real architecture")
    opcost.add_argument("--write", action="store_true", help="recount the committed table (needs torch)")
    opcost.add_argument("--model", help="model id of the catalogue (from the committed table)")
    opcost.add_argument("--config", type=Path, metavar="HF_CONFIG.json", help="count any Hugging Face config")
    opcost.add_argument("--precision", choices=("fp32", "fp16", "bf16"), default="fp32")
    opcost.add_argument("--batch-size", type=_count, default=8, help="default: %(default)s")
    opcost.add_argument("--seq-len", type=_count, default=128, help="default: %(default)s")

    sweep = command("sweep", _sweep, "profile workloads outside the pipeline, on the board of params.yaml")
    sweep.add_argument("workloads", nargs="+", metavar="WORKLOAD", help="<model>-<task>, e.g. bert-base-mnli")
    sweep.add_argument(
        "--into", default="data/sweeps", metavar="DIR", help="folder of the cells (default: %(default)s)"
    )
    sweep.add_argument("--export", type=Path, metavar="FILE.csv", help="also write a sweep CSV")

    pull = command("pull", _pull, "the registered governor, checked, written atomically")
    pull.add_argument("uri", nargs="?", help="models:/NAME@ALIAS, models:/NAME/VERSION, a folder or a file")
    pull.add_argument("-o", "--output", type=Path, default=Path("governor.json"), help="default: %(default)s")

    command("publish", _publish, "the publish stage by hand")

    bench = command("bench", _bench, "the project's benchmarks")
    bench.add_argument("name", choices=("pipeline", "paper-protocol", "meter", "policies", "probe", "window"))
    bench.add_argument(
        "--write", action="store_true", help="also save the result where docs/ shows it (paper-protocol)"
    )
    bench.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


def _has_working_directory() -> bool:
    try:
        Path.cwd()
    except OSError:
        return False
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    logging.basicConfig(
        level=os.environ.get("LOG_LEVEL", "INFO").upper(), format="%(message)s", stream=sys.stderr
    )
    if sys.stdout is None:  # closed by whoever started us
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
    args = build_parser().parse_args(argv)
    try:
        code = int(args.handler(args))
        sys.stdout.flush()  # here, so that a closed pipe is met below and not at interpreter exit
        return code
    except WattuneError as error:
        sys.stderr.write(f"wattune: {error}\n")
        return error.exit_code
    except BrokenPipeError:
        # The reader of a pipe went away (`wattune ... | head`): nothing to say, and nothing more to write.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        sys.stderr.write("wattune: interrupted.\n")
        return 130
    except OSError as error:
        if not _has_working_directory():
            sys.stderr.write(
                "wattune: The working directory is gone. `cd` into one that is there, and try again.\n"
            )
            return 3
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EIO) or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.stderr.write(f"wattune: The answer could not be written: {os.strerror(error.errno)}.\n")
        return 3


if __name__ == "__main__":
    sys.exit(main())
