"""The workload that a command line describes, as features: by flags, a feature file, the catalogue, a model and data of one's own."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from wattune.core.errors import InputError
from wattune.core.features import is_number
from wattune.core.numbers import decimal_number, whole_number
from wattune.core.objectives import add_objective_argument

DEFAULT_GOVERNOR = "models/governor.json"


def add_workload_arguments(parser: argparse.ArgumentParser, *, objective: bool = True) -> None:
    """The arguments that describe a workload, name a governor and, where wanted, an objective."""
    add_feature_arguments(parser)
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
        type=decimal_number,
        metavar="T",
        help="what the work takes at MAXN, for limits in seconds and watts",
    )
    parser.add_argument(
        "--maxn-energy-j",
        type=decimal_number,
        metavar="E",
        help="its energy at MAXN, for limits in watts and a battery",
    )


def add_feature_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that describe a workload."""
    from wattune.workloads.finetune import command

    parser.add_argument("--model", help="model id of the catalogue, e.g. bert-base")
    parser.add_argument("--task", help="task id of the catalogue, e.g. mnli")
    parser.add_argument(
        "--config",
        metavar="FOLDER_OR_ID",
        help="a model of your own, in place of --model (needs the extra train)",
    )
    command.add_data_arguments(parser)
    parser.add_argument("--batch-size", type=count, help="examples per step")
    parser.add_argument("--precision", choices=("fp32", "fp16", "bf16"), help="arithmetic of the training")
    parser.add_argument(
        "--method",
        choices=("full", "lora", "bitfit"),
        help="what is trained, for governors that ask for operation counts (default: full)",
    )
    parser.add_argument(
        "--seq-len", type=decimal_number, metavar="L", help="mean tokens per example before padding"
    )
    parser.add_argument(
        "--gpu-util", type=decimal_number, metavar="U", help="GPU utilisation at the reference clock, percent"
    )
    parser.add_argument(
        "--features",
        type=Path,
        metavar="FILE",
        help="file of feature values, JSON or `name: value` lines; flags override it",
    )


def given_features(args: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the user said, and what the catalogue knows of the model and task beside it."""
    from wattune.core.features import check_feature
    from wattune.io import read_text
    from wattune.running.describe import parse_features
    from wattune.workloads.catalogue import catalogue_features

    given: dict[str, Any] = {}
    if args.features is not None:
        document = parse_features(read_text(args.features, "The feature file"), str(args.features))
        for name, value in document.items():
            check_feature(name, value, str(args.features))
        given.update({name: value for name, value in document.items() if value is not None})
    for name, value in (
        ("seq_len", args.seq_len),
        ("gpu_util_ref_pct", args.gpu_util),
        ("batch_size", args.batch_size),
    ):
        if value is not None:
            check_feature(name, value)
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


def features_for(args: argparse.Namespace, governor: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """As :func:`given_features`, with what a governor asks for besides and a model can tell."""
    given, assumed = given_features(args)
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
        float(reference) if is_number(reference) else None,
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
        or not is_number(reference) or args.config is not None or args.data or not (args.model and args.task)
    ):  # fmt: skip
        return {}
    try:
        board = VirtualBoard(file, power_mode=governor.power_mode)
    except InputError:  # a power mode that the model does not have
        return {}
    known = board.noise_free(catalogue_workload(args), board.info.table.nearest(float(reference)))
    return {} if known.gpu_util_pct is None else {name: round(known.gpu_util_pct, 2)}


def catalogue_workload(args: argparse.Namespace) -> Any:
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


def count(text: str) -> int:
    """A whole number a training job can have: 1 to a million."""
    try:
        value = whole_number(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 1_000_000:
        raise argparse.ArgumentTypeError(f"'{text[:40]}' is not a whole number from 1 to 1000000")
    return value
