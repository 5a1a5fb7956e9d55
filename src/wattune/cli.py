"""The `wattune` command: argument parsing and printing; every answer is computed elsewhere.

Handlers import what they need when they run, so that `wattune --help` and `wattune choose` stay fast and need the
standard library only.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wattune import __version__
from wattune.benches import BENCHMARKS
from wattune.core.errors import InputError, WattuneError
from wattune.core.objectives import add_objective_argument
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


def _add_workload_arguments(parser: argparse.ArgumentParser, *, objective: bool = True) -> None:
    _add_feature_arguments(parser)
    parser.add_argument(
        "--governor",
        default=DEFAULT_GOVERNOR,
        metavar="PATH_OR_URI",
        help="the governor's file, or where it is registered (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    if not objective:
        return
    add_objective_argument(parser)
    parser.add_argument(
        "--maxn-time-s",
        type=float,
        metavar="T",
        help="what the work takes at MAXN, for limits in seconds and watts",
    )
    parser.add_argument(
        "--maxn-energy-j",
        type=float,
        metavar="E",
        help="its energy at MAXN, for limits in watts and a battery",
    )


def _add_feature_arguments(parser: argparse.ArgumentParser) -> None:
    from wattune.workloads.finetune import command

    parser.add_argument("--model", help="model id of the catalogue, e.g. bert-base")
    parser.add_argument("--task", help="task id of the catalogue, e.g. mnli")
    parser.add_argument(
        "--config",
        metavar="FOLDER_OR_ID",
        help="a model of your own, in place of --model (needs the extra train)",
    )
    command.add_data_arguments(parser)
    parser.add_argument("--batch-size", type=_count, help="examples per step")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="arithmetic of the training")
    parser.add_argument(
        "--method",
        choices=("full", "lora", "bitfit"),
        help="what is trained, for governors that ask for operation counts (default: full)",
    )
    parser.add_argument("--seq-len", type=float, metavar="L", help="mean tokens per example before padding")
    parser.add_argument(
        "--gpu-util", type=float, metavar="U", help="GPU utilisation at the reference clock, percent"
    )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="file of feature values, JSON or `name: value` lines; flags override it",
    )


def _load_governor(where: str) -> Any:
    from wattune.running.choosing import load_governor

    return load_governor(where)


def _given_features(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the user said, and what the catalogue knows of the model and task beside it."""
    from wattune.core.features import FEATURES
    from wattune.io import read_text
    from wattune.running.describe import parse_features
    from wattune.workloads.catalogue import catalogue_features

    given: dict[str, Any] = {}
    if args.features is not None:
        document = parse_features(read_text(args.features, "The feature file"), str(args.features))
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
    own = args.config is not None or bool(args.data)
    known = catalogue_features(args.model, None if own else args.task)
    if own:
        if (args.config is None) == (args.model is None):
            raise InputError(
                "--model and --config were both given." if args.model else "Data were given without a model.",
                "One of --model and --config was expected.",
                "Name a model of the catalogue, or a folder or an id of the Hub.",
            )
        from wattune.workloads.finetune.command import features_of

        known |= features_of(args)
    if not given and not known:
        raise InputError(
            "No workload was given.",
            "A model and a task, or features, were expected.",
            "For example `wattune choose --model bert-base --task mnli`.",
        )
    named = {"model": ("family", "layers", "hidden", "params_m"), "task": ("seq_len",)}
    named |= {"config": (*named["model"], *named["task"]), "data": named["task"]}
    stated = {name for flag, names in named.items() if getattr(args, flag) for name in names}
    assumed = {name: value for name, value in known.items() if name not in given and name not in stated}
    for name, value in known.items():
        given.setdefault(name, value)
    return given, assumed


def _features_for(args: argparse.Namespace, governor: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """As :func:`_given_features`, with what a governor asks for besides and a model can tell."""
    given, assumed = _given_features(args)
    modelled = _modelled_utilisation(args, governor, given)
    counted, said = _counted_features(args, governor, given)
    return given | modelled | counted, assumed | modelled | {
        n: v for n, v in counted.items() if n not in said
    }


def _counted_features(
    args: argparse.Namespace, governor: Any, given: dict[str, Any]
) -> tuple[dict[str, Any], frozenset[str]]:
    """What a governor asks of operation counts and nobody said, and the names of those that the flags state.

    Only for a model of the catalogue and a board that has a model. Batches are as long as ``--seq-len`` says, else as the task's; a
    job is taken to train every weight where ``--method`` says nothing.

    Raises:
        InputError: the governor asks for them, a model is named, and neither task nor length is known.
    """
    from wattune.boards.virtual.constants import board_files, load_board_file
    from wattune.core.features import COST_FEATURES

    wanted = {feature.name for feature in governor.features} & set(COST_FEATURES) - given.keys()
    path = board_files().get(governor.board.lower())
    if not wanted or path is None or args.model is None or args.config is not None or args.data:
        return {}, frozenset()
    file = load_board_file(path)
    if governor.power_mode.upper() not in {mode.upper() for mode in file.power_modes}:
        return {}, frozenset()
    if args.task is None and "seq_len" not in given:
        raise InputError(
            "This governor asks for the cost of a training step, and the length of a batch is not known.",
            "A task or a length was expected beside the model.",
            "Add --task or --seq-len.",
        )
    from wattune.learning.costs import cost_features

    method = str(given.get("method") or args.method or "full")
    reference = governor.document.get("training", {}).get("reference_mhz")
    found = cost_features(
        _workload_of(args, given, method), method, file, governor.power_mode,
        float(reference) if _is_number(reference) else None,
    )  # fmt: skip
    stated = {"power_mode"}
    stated |= {name for name in ("method", "precision") if getattr(args, name)}
    if args.batch_size is not None and args.precision and args.method:
        stated |= set(COST_FEATURES)  # every count follows from what was said
    return {name: value for name, value in found.items() if name in wanted}, frozenset(stated)


def _workload_of(args: argparse.Namespace, given: dict[str, Any], method: str) -> Any:
    """The job that flags and feature file describe, for its operation counts."""
    from wattune.workloads.build import build_workload
    from wattune.workloads.catalogue import find_model

    model = find_model(args.model)
    length = given["seq_len"] if args.seq_len is not None or args.task is None else None
    return build_workload(
        model.id,
        args.task or "qnli",  # its lengths are not used: the batch has the length given
        batch_size=round(given.get("batch_size") or model.batch_size),
        precision=str(given.get("precision") or args.precision or model.precision),
        method=method,
        tokens=0 if length is None else max(1, round(length)),
    )


def _modelled_utilisation(args: argparse.Namespace, governor: Any, given: dict[str, Any]) -> dict[str, float]:
    """The utilisation that the modelled board shows, where the governor asks for it and nobody said it.

    Only for a workload of the catalogue and a board that has a model; the training's median would answer for every workload alike.
    """
    from wattune.boards.virtual.board import VirtualBoard
    from wattune.boards.virtual.constants import board_files

    name = "gpu_util_ref_pct"
    reference = governor.document.get("training", {}).get("reference_mhz")
    file = board_files().get(governor.board.lower())
    if (
        name in given or name not in {feature.name for feature in governor.features} or file is None
        or not _is_number(reference) or args.config is not None or args.data or not (args.model and args.task)
    ):  # fmt: skip
        return {}
    try:
        board = VirtualBoard(file, power_mode=governor.power_mode)
    except InputError:  # a power mode that the model does not have
        return {}
    known = board.noise_free(_catalogue_workload(args), board.info.table.nearest(float(reference)))
    return {} if known.gpu_util_pct is None else {name: round(known.gpu_util_pct, 2)}


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


def _unit(args: argparse.Namespace) -> Any:
    """What one unit of the work takes at MAXN, as far as it was said."""
    from wattune.core.curve import Point

    for flag, value in (("--maxn-time-s", args.maxn_time_s), ("--maxn-energy-j", args.maxn_energy_j)):
        if value is not None and not (_is_number(value) and value > 0):
            raise InputError(f"{flag} is {value:g}.", "A number above 0 was expected.")
    if args.maxn_time_s is None and args.maxn_energy_j is None:
        return None
    return Point(math.nan if args.maxn_energy_j is None else args.maxn_energy_j, args.maxn_time_s)


def _choose(args: argparse.Namespace) -> int:
    from wattune.core.objectives import parse_objective

    objective, unit = parse_objective(args.objective), _unit(args)
    governor = _load_governor(args.governor)
    given, from_catalogue = _features_for(args, governor)
    decision = governor.decide_for(given, objective, unit)
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
                "objective": objective.text,
                "feasible": decision.feasible,
                "limit_reason": decision.limit_reason,
                "epochs": decision.epochs,
                "assumed": assumed,
                "governor": governor.digest,
                "provenance": governor.provenance,
                **(_explanation(governor, given) if args.command == "explain" else {}),
            }
        )
        return 0
    if args.command == "explain":
        return _explain(governor, decision, given, assumed)
    _out(f"{_clock(decision.setting)}  ({decision.rule})")
    _out(_expectation(governor, decision))
    _say_limit(decision)
    _say_caveats(governor, decision, assumed)
    return 0


def _say_limit(decision: Any) -> None:
    """What a decision of a governor, or an answer of an objective, says of its limit."""
    if not decision.feasible:
        _out(f"The limit cannot be kept: {getattr(decision, 'limit_reason', decision.reason)}")
    if decision.epochs is not None:
        _out(f"The battery holds {decision.epochs:.4g} units of this work.")


def _expectation(governor: Any, decision: Any) -> str:
    if decision.abstained:
        return "Nothing is changed, so nothing is saved or lost."
    if decision.expected_saving_pct is None:
        return "Saving against MAXN: unknown (the training data have no MAXN baseline)."
    slowdown = decision.expected_slowdown_pct
    time = "time unknown" if slowdown is None else f"{slowdown:+.1f} % time"
    return (
        f"Expected against MAXN: {_energy(decision.expected_saving_pct)}, {time}"
        f" (mean of the training workloads in this leaf; {governor.provenance})."
    )


def _energy(saving_pct: float) -> str:
    return f"{abs(saving_pct):.1f} % {'less' if saving_pct >= 0 else 'more'} energy"


def _say_caveats(governor: Any, decision: Any, assumed: dict[str, Any]) -> None:
    if decision.abstained:
        _out(f"Declined, the clocks are left alone: {decision.reason}.")
    if not decision.in_range:
        _out(f"Outside what the governor was trained on: {', '.join(decision.out_of_range)}.")
    if assumed:
        _out("Assumed: " + ", ".join(f"{name} = {value}" for name, value in sorted(assumed.items())) + ".")
    _out(f"Governor {governor.digest[:12]} for {governor.board}, provenance: {governor.provenance}.")


def _explanation(governor: Any, given: dict[str, Any]) -> dict[str, Any]:
    from wattune.core.explain import because, flips

    return {
        "tree": governor.tree.text().split("\n"),
        "because": because(governor, given),
        "flips": [flip.document() for flip in flips(governor, given)],
    }


def _explain(governor: Any, decision: Any, given: dict[str, Any], assumed: dict[str, Any]) -> int:
    from wattune.core.explain import because, flips
    from wattune.core.features import FEATURES

    _out(
        f"Policy {governor.policy} for {governor.board} in mode {governor.power_mode}, {governor.provenance}:\n"
    )
    _out(governor.tree.text())
    _out(f"\nThis workload: {decision.rule}")
    path = because(governor, given)
    _out(
        "Because " + ",\n    and ".join(path) + "."
        if path
        else "The tree asks nothing: every workload gets this clock."
    )
    _out(_expectation(governor, decision))
    others = flips(governor, given)
    for flip in others:
        unit = FEATURES[flip.feature].unit
        now = flip.value if isinstance(flip.value, str) else f"{flip.value:g}"
        to = flip.to if isinstance(flip.to, str) else f"{flip.to:g} {unit}".rstrip()
        verb = "were" if flip.direction == "is" else f"were {flip.direction}"
        _out(f"If {flip.feature} (now {now}) {verb} {to}: {_clock(flip.setting)}.")
    if path and not others:
        _out("No change of a single feature changes the answer.")
    _say_limit(decision)
    _say_caveats(governor, decision, assumed)
    return 0


# --- pareto ---------------------------------------------------------------------------------------------------------


def _pareto(args: argparse.Namespace) -> int:
    from wattune import pareto

    if args.sweep is not None:
        if args.virtual:
            raise InputError("--sweep and --virtual were given.", "One of them was expected.")
        pareto.write(pareto.recorded_fronts(args.sweep), args.json)
        return 0
    if args.virtual:
        from wattune.boards.virtual.board import DEFAULT_CONSTANTS, VirtualBoard
        from wattune.core.curve import Point

        if args.model is None or args.task is None:
            raise InputError(
                "The virtual board needs a model and a task.", "--model and --task were expected."
            )
        workload = _catalogue_workload(args)
        board = VirtualBoard(DEFAULT_CONSTANTS)
        points = {row["mhz"]: Point(row["energy_j"], row["time_s"]) for row in board.predict(workload)}
        front = pareto.front_of(
            points,
            workload=workload.id,
            board=board.info.id,
            source="virtual board, per step",
            provenance="simulated",
            unit=pareto.PER_STEP,
        )
    else:
        governor = _load_governor(args.governor)
        given, _ = _features_for(args, governor)
        expected = governor.expected_curve(given)
        front = pareto.front_of(
            {} if expected is None else expected.points,
            workload="-".join(name.lower() for name in (args.model, args.task) if name) or "workload",
            board=governor.board,
            source=f"leaf of governor {governor.digest[:12]}",
            provenance=governor.provenance,
            unit=pareto.RELATIVE,
        )
    pareto.write([front], args.json)
    return 0


# --- predict, opcost ------------------------------------------------------------------------------------------------


def _catalogue_workload(args: argparse.Namespace) -> Any:
    """The workload of the catalogue that the arguments describe."""
    from wattune.workloads.build import build_workload
    from wattune.workloads.catalogue import find_model

    model = find_model(args.model)
    return build_workload(
        model.id,
        args.task,
        batch_size=model.batch_size if args.batch_size is None else args.batch_size,
        precision=args.precision or model.precision,
        max_length=getattr(args, "max_length", 256),
    )


def _objective_answer(text: str, rows: list[dict[str, Any]], steps: int) -> Any:
    """What an objective asks for, over predictions per step, counted per epoch of `steps` steps."""
    from wattune.core.curve import Point
    from wattune.core.objectives import choose, parse_objective

    points = {row["mhz"]: Point(row["energy_j"] * steps, row["time_s"] * steps) for row in rows}
    return choose(points, parse_objective(text))


def _predict(args: argparse.Namespace) -> int:
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
        workload = _catalogue_workload(args)
    board = VirtualBoard(args.constants or DEFAULT_CONSTANTS)
    rows = board.predict(workload)
    answer = None
    if args.objective is not None:
        answer = _objective_answer(args.objective, rows, workload.steps_per_epoch)
    if args.json:
        said = None if answer is None else {"objective": args.objective, **answer.document()}
        _out_json(rows if said is None else {"settings": rows, "answer": said})
        return 0
    how = "SIMULATED" if board.info.calibrated else "SIMULATED, board UNCALIBRATED"
    title = f"{workload.id}, batch {workload.batch_size}, {workload.precision}, on {board.info.id}: {how}, per step"
    energies, times = (figures([row[name] for row in rows]) for name in ("energy_j", "time_s"))
    cells = list(zip([setting_label(row["mhz"]) for row in rows], energies, times, strict=True))
    columns = [Column(name, number=True) for name in ("setting MHz", "energy (J)", "time (s)")]
    if (shown := rendered([Table(columns, cells, title)], sys.stdout)) is not None:
        _out(shown)
    else:
        _out(title)
        _out(f"{'setting':>10} {'energy (J)':>12} {'time (s)':>10}")
        for row in rows:
            _out(f"{setting_label(row['mhz']):>10} {row['energy_j']:>12.4g} {row['time_s']:>10.4g}")
    if answer is not None:
        _out(
            f"{args.objective}: {_clock(answer.setting)}, {_energy(answer.saving_pct)} and"
            f" {answer.slowdown_pct:+.1f} % time against {setting_label(answer.baseline)}"
            f" ({answer.energy_j:.4g} J and {answer.time_s:.4g} s per epoch)."
        )
        _say_limit(answer)
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
    from wattune.profiling.progress import jobs_on
    from wattune.stages.validate import refitted, report
    from wattune.terminal import Line, rendered
    from wattune.validation import page

    if args.write_board is not None:
        written = refitted(args.board, args.write_board)
        if args.json:
            _out_json(written)
        else:
            _out(page.refit_text(written))
        return 0
    with Line() as line:
        document = report(Path(), redraws=args.redraws, told=jobs_on(line, "refits"))
    if args.json:
        _out_json(document["sources"])
    else:
        _out(rendered(page.blocks(document), sys.stdout) or page.text(document))
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
    from wattune.io import check_output
    from wattune.stages.profile import sweep_outside_pipeline

    if args.export is not None:
        check_output(args.export, "The sweep")
    written = sweep_outside_pipeline(args.workloads, Path(args.into), export=args.export)
    for path in written:
        _out(str(path))
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
    _out(f"{args.output}: {pulled}")
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
        _out_json(document)
    else:
        _out(benches.text(args.name, document))
    return 0 if document.get("ok", True) else 1


# --- the parser -----------------------------------------------------------------------------------------------------


def _replay_handler(args: argparse.Namespace) -> int:
    from wattune.profiling import replay

    return int(replay.run(args))


def _import_handler(args: argparse.Namespace) -> int:
    from wattune.profiling import importing, importing_jetson_clocks, importing_tegrastats

    kinds = {
        "sweep": importing.run,
        "tegrastats": importing_tegrastats.run,
        "jetson-clocks": importing_jetson_clocks.run,
    }
    return int(kinds[args.kind](args))


def _fetch(args: argparse.Namespace) -> int:
    from wattune.workloads.finetune import command

    return command.run_fetch(args)


def _finetune(args: argparse.Namespace) -> int:
    from wattune.boards.nvml import NvmlMeter
    from wattune.workloads.finetune import command

    return command.run_finetune(args, NvmlMeter())


def _pin(args: argparse.Namespace) -> int:
    from wattune.governing import hand

    return hand.run_pin(args)


def _run(args: argparse.Namespace) -> int:
    from wattune.running.run import run

    def keep() -> Callable[[dict[str, Any]], str]:
        from wattune.tracking.runs import ready

        return ready()

    return run(args, features_of=lambda governor: _features_for(args, governor), keep=keep)


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
    _add_pareto(command("pareto", _pareto, "the settings that no other beats in both energy and time"))
    explain = command("explain", _choose, "the tree and the path taken for a workload, in plain words")
    _add_workload_arguments(explain)

    from wattune.boards.jetson import doctor
    from wattune.governing import clockd, hand
    from wattune.profiling import importing, importing_jetson_clocks, importing_tegrastats, replay

    doctor.add_arguments(
        command("doctor", _doctor, "what board this is, what works on it, what does not, and what to type")
    )
    hand.add_pin_arguments(command("pin", _pin, "pin the GPU's clock by hand, and put it back"))
    from wattune.running import run

    running = command("run", _run, "a command under a governed clock, measured, with a receipt")
    _add_feature_arguments(running)
    run.add_arguments(running)
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

    importing_jetson_clocks.add_arguments(
        kinds.add_parser("jetson-clocks", help="what `jetson_clocks --show` printed, as plain data")
    )

    predict = command("predict", _predict, "the virtual board's energy and time per step at every clock")
    which = predict.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", help="model id of the catalogue")
    which.add_argument(
        "--config", type=Path, metavar="HF_CONFIG.json", help="any Hugging Face config (needs torch)"
    )
    predict.add_argument("--task", required=True, help="task id of the catalogue")
    predict.add_argument(
        "--batch-size", type=_count, help="examples per step; default: the catalogue's, 32 for a config file"
    )
    predict.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16"),
        help="arithmetic of the training; default: the catalogue's, else fp16",
    )
    predict.add_argument(
        "--max-length", type=_count, default=256, help="longest sequence kept, tokens (default: %(default)s)"
    )
    predict.add_argument("--constants", type=Path, metavar="FILE", help="another board's constants")
    add_objective_argument(predict, default=None)
    predict.add_argument("--json", action="store_true", help="one JSON document on stdout")

    validate = command("validate", _validate, "the virtual boards against published measurements")
    validate.add_argument(
        "--redraws", type=_count, default=6, help="how often all priors are redrawn (default: %(default)s)"
    )
    validate.add_argument(
        "--json", action="store_true", help="one JSON document on stdout: an entry per source"
    )
    validate.add_argument(
        "--write-board",
        type=Path,
        metavar="FILE.json",
        help="refit a modelled board to its curves and write its file, instead of the report",
    )
    validate.add_argument(
        "--board",
        default="jetson-agx-orin-64gb",
        metavar="ID",
        help="with --write-board: which board (default: %(default)s)",
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
    opcost.add_argument(
        "--precision",
        choices=("fp32", "fp16", "bf16"),
        default="fp32",
        help="arithmetic of the training (default: %(default)s)",
    )
    opcost.add_argument(
        "--batch-size", type=_count, default=8, help="examples per step (default: %(default)s)"
    )
    opcost.add_argument(
        "--seq-len", type=_count, default=128, help="tokens per example (default: %(default)s)"
    )

    from wattune.workloads.finetune import command as finetune

    finetune.add_fetch_arguments(
        command("fetch", _fetch, "model and data into the local cache, ahead of an offline run")
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
    from wattune.boards.jetson.root import add_root_argument

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
        "--seed", type=int, metavar="N", help="of diverse: judge the workloads that this seed draws instead"
    )
    bench.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


def _add_pareto(parser: argparse.ArgumentParser) -> None:
    from wattune import pareto

    _add_workload_arguments(parser, objective=False)
    pareto.add_arguments(parser)


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
