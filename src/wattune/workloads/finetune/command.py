"""`wattune fetch` and `wattune finetune`: the cache filled ahead of time, and a run tried by hand with the clocks untouched."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import logging
import statistics
import sys
from typing import Any, Protocol

from wattune.core.errors import BoardError, InputError
from wattune.workloads.finetune import hub
from wattune.workloads.finetune.faults import RunFailedError
from wattune.workloads.finetune.spec import DEVICES, GLUE, KINDS, MADE_UP, METHODS, PRECISIONS, FinetuneSpec

log = logging.getLogger(__name__)

SETTLE_STEPS = 5
"""Steps at the beginning of a run that no time or energy is taken from: caches fill, kernels are chosen."""


class Meter(Protocol):
    """What reads a GPU's power (:class:`wattune.boards.nvml.NvmlMeter`)."""

    why_not: str
    name: str

    def energy_j(self) -> float | None:
        """Energy since some moment, joules."""

    def power_w(self) -> float | None:
        """Power now, watts."""


def _out(text: str) -> None:
    sys.stdout.write(text + "\n")


def _columns(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _check_installed(*modules: str) -> None:
    """Name what is not installed before model and data are asked for, which nothing could use.

    Raises:
        BoardError: a package is missing.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise BoardError(
            f"This needs {', '.join(modules)}; not installed: {', '.join(missing)}.",
            "The extra `train` was expected.",
            "Install it with `make setup EXTRAS=train` or `pip install 'wattune[train]'`.",
        )


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that say what data of one's own are."""
    parser.add_argument(
        "--data",
        default="",
        metavar="PATH",
        help="a .csv, .tsv, .jsonl or .txt file, a folder of load_from_disk, an id of the Hub, or 'made-up'",
    )
    parser.add_argument(
        "--text-columns", type=_columns, default=(), metavar="A[,B]", help="columns of the text, or of a pair"
    )
    parser.add_argument("--label-column", default="", metavar="NAME", help="column of the class or value")
    parser.add_argument(
        "--kind", default="", choices=KINDS, help="what is learnt; default: by task and columns"
    )


# --- fetch ----------------------------------------------------------------------------------------------------------


def add_fetch_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `wattune fetch`."""
    parser.add_argument("model", metavar="MODEL", help="model id of the catalogue, or an id of the Hub")
    parser.add_argument(
        "task",
        nargs="?",
        default="",
        metavar="TASK",
        help="task id, or a data set's id on the Hub; the model alone where not given",
    )
    parser.add_argument(
        "--task-path", default="", metavar="ID", help="a data set of the Hub in place of the task's own"
    )
    parser.add_argument("--subset", default="", metavar="NAME", help="configuration of that data set")
    parser.add_argument("--revision", default="", metavar="REV", help="branch, tag or commit of the model")
    parser.add_argument("--trust-pickle", action="store_true", help="also take weights that are a pickle")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def run_fetch(args: argparse.Namespace) -> int:
    """Put a model and its data into the local cache; returns the exit code."""
    path = args.task_path or (args.task if "/" in args.task else "")
    task = "" if path and path == args.task else args.task
    model_alone = not task and not path
    spec = FinetuneSpec(
        model=args.model, task=task, path=path, subset=args.subset, revision=args.revision,
        trust_pickle=args.trust_pickle,
    )  # fmt: skip
    if not model_alone:  # a job that has no data is none
        spec.check()
    if path and not spec.hub_data:
        raise InputError(
            f"{path} lies on this machine already.",
            "A data set's id on the Hub was expected.",
            "Leave --task-path out.",
        )
    _check_installed("huggingface_hub", "datasets")
    data = "" if model_alone else path or GLUE
    hub.check_at_hand(spec.checkpoint, data, spec.fetch_words)
    found = [
        hub.fetch_model(
            spec.checkpoint, revision=spec.revision, trust_pickle=spec.trust_pickle, fetch=spec.fetch_words
        )
    ]
    if data:
        subset = args.subset if path else (spec.job.glue if spec.job is not None else "")
        found.append(hub.fetch_dataset(data, subset))
    if args.json:
        _out(
            json.dumps(
                [{"name": f.name, "folder": str(f.folder), "size_mb": f.size_mb} for f in found], indent=2
            )
        )
    else:
        for one in found:
            _out(f"{one.name}: {one.size_mb:.1f} MB in {one.folder}")
        _out("Both load without a network now." if data else "It loads without a network now.")
    return 0


# --- finetune -------------------------------------------------------------------------------------------------------


def add_finetune_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `wattune finetune`."""
    parser.add_argument(
        "model", metavar="MODEL", help="model id of the catalogue, an id of the Hub, or a folder"
    )
    parser.add_argument(
        "task", nargs="?", default="", metavar="TASK", help="task id of the catalogue; not needed with --data"
    )
    add_data_arguments(parser)
    parser.add_argument(
        "--held-out", type=float, default=0.0, metavar="SHARE", help="of the examples, to evaluate on"
    )
    parser.add_argument(
        "--method",
        default="full",
        choices=METHODS,
        help="which parameters are trained (default: %(default)s)",
    )
    parser.add_argument("--rank", type=int, default=8, help="rank of LoRA (default: %(default)s)")
    parser.add_argument(
        "--precision",
        default="auto",
        choices=("auto", *PRECISIONS),
        help="arithmetic (default: %(default)s, the best that the device can do)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        choices=DEVICES,
        help="where it trains (default: %(default)s, the GPU where there is one)",
    )
    parser.add_argument(
        "--batch-size", type=int, metavar="N", help="examples per step; default: the catalogue's, else 32"
    )
    parser.add_argument(
        "--accumulation",
        type=int,
        default=1,
        metavar="N",
        help="forward passes per step (default: %(default)s)",
    )
    parser.add_argument("--max-length", type=int, metavar="N", help="longest sequence kept, tokens")
    parser.add_argument("--learning-rate", type=float, metavar="R", help="its peak; default: by method")
    parser.add_argument(
        "--seed", type=int, default=42, help="of weights and order of examples (default: %(default)s)"
    )
    parser.add_argument(
        "--steps", type=int, default=50, metavar="N", help="how many are run (default: %(default)s)"
    )
    parser.add_argument(
        "--random-weights",
        action="store_true",
        help="the architecture only: with --data made-up nothing is downloaded",
    )
    parser.add_argument("--trust-pickle", action="store_true", help="also load weights that are a pickle")
    parser.add_argument(
        "--check",
        action="store_true",
        help="run it twice: are the losses the same bit for bit, and the accuracy?",
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def spec_of(args: argparse.Namespace) -> FinetuneSpec:
    """The job that the arguments describe.

    Raises:
        InputError: no job can come from them.
    """
    return FinetuneSpec(
        model=args.model, task=args.task, path=args.data, text_columns=args.text_columns,
        label_column=args.label_column, kind=args.kind, held_out=args.held_out, method=args.method, rank=args.rank,
        precision=args.precision, device=args.device, batch_size=args.batch_size, accumulation=args.accumulation,
        max_length=args.max_length, learning_rate=args.learning_rate, seed=args.seed, max_steps=args.steps,
        from_config=args.random_weights, trust_pickle=args.trust_pickle,
    ).check()  # fmt: skip


def run_finetune(args: argparse.Namespace, meter: Meter) -> int:
    """Train by hand, with the clocks as they are; returns the exit code.

    Args:
        args: of the command line.
        meter: reads the GPU's power.
    """
    spec = spec_of(args)
    if args.steps <= SETTLE_STEPS:
        raise InputError(
            f"{args.steps} steps were asked for.",
            f"More than {SETTLE_STEPS} were expected: so many are run before anything is timed.",
        )
    _check_installed("torch", "transformers", "accelerate", *(["datasets"] if spec.hub_data else []))
    hub.check_at_hand("" if spec.needs_no_checkpoint else spec.checkpoint, spec.hub_data, spec.fetch_words)
    from wattune.workloads.finetune.job import Job

    job = Job(spec)
    about = job.ready()
    log.info(
        "%s on %s, %s: %d steps of %d examples; their time is told after the first %d.",
        about["name"], job.device, job.precision, args.steps, job.batch_size * job.accumulation, SETTLE_STEPS,
    )  # fmt: skip
    first = _one_run(job, "first", meter if job.device == "cuda" else None, args.steps)
    document: dict[str, Any] = {
        name: about[name]
        for name in (
            "name",
            "device",
            "precision",
            "examples",
            "steps_per_epoch",
            "params_m",
            "trainable_m",
            "features",
        )
    }
    document |= {"batch_size": job.batch_size, "accumulation": job.accumulation, "gpu": meter.name or None}
    document |= {key: value for key, value in first.items() if key != "losses"}
    document["power_reason"] = _why_no_power(document, job.device, meter)
    document["peak_memory_mb"] = job.peak_memory_mb()
    # What a model makes of made-up sentences says nothing; it is looked at where two runs are to be compared.
    document["evaluation"] = _evaluated(job) if spec.path != MADE_UP or args.check else None
    if args.check:
        second = _one_run(job, "second", None, args.steps)
        document["same_losses"] = first["losses"] == second["losses"]
        document["same_evaluation"] = (
            None if document["evaluation"] is None else _evaluated(job) == document["evaluation"]
        )
    if args.json:
        _out(json.dumps(document, indent=2, allow_nan=False))
    else:
        _say(document)
    return 1 if document.get("same_losses") is False else 0


def _why_no_power(document: dict[str, Any], device: str, meter: Meter) -> str | None:
    if document["power_w"] is not None:
        return None
    if device != "cuda":
        return "it was trained on the CPU"
    return meter.why_not or "the run was too short for a reading"


def _one_run(job: Any, run: str, meter: Meter | None, steps_asked: int) -> dict[str, Any]:
    """One run; times and energy from the end of step `SETTLE_STEPS` on, when it is also said how long the rest takes."""
    times: list[float] = []
    losses: list[float] = []
    tokens: list[int] = []
    energies: list[float | None] = []
    powers: list[float] = []

    def hear(answer: dict[str, Any]) -> None:
        if answer["said"] == "changed":
            for heard in (times, losses, tokens, energies, powers):
                heard.clear()
        if answer["said"] != "block":
            return
        times.append(answer["t"])
        if len(times) == SETTLE_STEPS:
            each = statistics.median(b - a for a, b in itertools.pairwise(times))
            log.info(
                "A step takes about %.3g s; the rest about %.0f s.", each, each * (steps_asked - SETTLE_STEPS)
            )
        losses.extend(answer["loss"])
        tokens.extend(answer["tokens"])
        if meter is not None and answer["steps"] >= SETTLE_STEPS:
            energies.append(meter.energy_j())
            power = meter.power_w()
            powers.extend([] if power is None else [power])

    try:
        job.train(run, 1, hear, lambda: None)
    except RunFailedError as error:
        raise BoardError(
            error.what, "A loss that stays a number near where it began was expected.",
            "Lower --learning-rate, or take another --precision.",
        ) from error  # fmt: skip
    spans = [b - a for a, b in zip(times[SETTLE_STEPS - 1 :], times[SETTLE_STEPS:], strict=False)]
    duration_s = times[-1] - times[SETTLE_STEPS - 1]
    energy_j = None
    if energies and energies[0] is not None and energies[-1] is not None:
        energy_j = energies[-1] - energies[0]
    power_w = energy_j / duration_s if energy_j else (statistics.fmean(powers) if powers else None)
    steps = len(spans)
    return {
        "steps": len(times),
        "timed_steps": steps,
        "step_time_s": statistics.fmean(spans),
        "step_time_median_s": statistics.median(spans),
        "tokens_per_s": sum(tokens[SETTLE_STEPS:]) / duration_s,
        "power_w": power_w,
        "energy_per_step_j": None if power_w is None else power_w * duration_s / steps,
        "power_from": None
        if power_w is None
        else ("energy counter" if energy_j else "readings at the ends of steps"),
        "loss_first": losses[0],
        "loss_last": losses[-1],
        "losses": losses,
    }


def _evaluated(job: Any) -> dict[str, Any] | None:
    if job.validation is None:
        return None
    answer: dict[str, Any] = job.evaluate()
    answer.pop("said")
    return answer


def _say(document: dict[str, Any]) -> None:
    where = document["gpu"] if document["device"] == "cuda" and document["gpu"] else document["device"]
    _out(
        f"{document['name']} on {where}, {document['precision']}, batch {document['batch_size']} x"
        f" {document['accumulation']}: {document['trainable_m']:.2f} of {document['params_m']:.2f} million parameters trained"
    )
    _out(
        f"{document['timed_steps']} steps after the first {SETTLE_STEPS}: {1e3 * document['step_time_s']:.1f} ms each"
        f" (median {1e3 * document['step_time_median_s']:.1f}), {document['tokens_per_s']:.0f} tokens a second"
    )
    if document["power_w"] is None:
        _out(f"Power: unknown, {document['power_reason']}.")
    else:
        _out(
            f"Power: {document['power_w']:.1f} W, {document['energy_per_step_j']:.3g} J a step (NVML, {document['power_from']})."
        )
    _out(
        f"Loss {document['loss_first']:.4f} -> {document['loss_last']:.4f}; peak memory {document['peak_memory_mb']:.0f} MB."
    )
    evaluation = document["evaluation"]
    if evaluation is not None:
        score = next(
            (
                f"{name} {evaluation[name]:.4f}, "
                for name in ("accuracy", "pearson")
                if evaluation[name] is not None
            ),
            "",
        )
        _out(f"On {evaluation['examples']} held-out examples: {score}loss {evaluation['loss']:.4f}.")
    if "same_losses" in document:
        same = "the same losses bit for bit" if document["same_losses"] else "OTHER losses"
        judged = {True: " and the same evaluation", False: " and ANOTHER evaluation", None: ""}[
            document["same_evaluation"]
        ]
        _out(f"A second run from the same seed had {same}{judged}.")
    _out("The clocks were left as they were.")


def features_of(args: argparse.Namespace) -> dict[str, Any]:
    """Features of a job with a model or data of one's own, for `choose` and `explain`.

    Args:
        args: of the command line: ``config`` (a folder or an id of the Hub), ``model``, ``task``, ``batch_size`` and those of
            :func:`add_data_arguments`.

    Raises:
        InputError: model or data are not as they must be.
        BoardError: something is missing: a package, the network.
    """
    spec = FinetuneSpec(
        model=args.model or "", name_or_path=args.config or "", task=args.task or "", path=args.data, text_columns=args.text_columns,
        label_column=args.label_column, kind=args.kind, batch_size=args.batch_size,
    )  # fmt: skip
    if spec.task or spec.path:
        spec.check()
    hub.check_at_hand(spec.checkpoint, spec.hub_data if spec.path else "", spec.fetch_words)
    from wattune.workloads.finetune.features import job_features, model_features

    return job_features(spec) if spec.path else model_features(spec)
