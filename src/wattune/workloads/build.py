"""Build workloads: catalogue, token lengths and operation cost put together."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wattune.core.errors import InputError
from wattune.core.workload import LengthBin, PhaseCost, StepCost, Workload
from wattune.workloads import opcost
from wattune.workloads.catalogue import TaskSpec, find_model, find_task
from wattune.workloads.lengths import distribution, padded_bins


def _bins(
    task: TaskSpec, tokenizer: str, batch_size: int, max_length: int, cost_at: Callable[[int], StepCost]
) -> tuple[LengthBin, ...]:
    return tuple(
        LengthBin(tokens=b.tokens, share=b.share, cost=cost_at(b.tokens))
        for b in padded_bins(task, tokenizer, batch_size, max_length)
    )


def _mean_tokens(task: TaskSpec, tokenizer: str, max_length: int) -> float:
    """Published mean less what truncation takes."""
    lengths = distribution(task, tokenizer)
    cut = lengths.mean() - lengths.mean(max_length)
    return task.lengths.mean_tokens(tokenizer) - cut


def _check(batch_size: int, max_length: int) -> None:
    if batch_size < 1 or max_length < 1:
        raise InputError(f"Batch size {batch_size}, max_length {max_length}.", "Both must be at least 1.")


def build_workload(
    model: str,
    task: str,
    *,
    batch_size: int,
    precision: str,
    max_length: int = 256,
    method: str = "full",
    tokens: int = 0,
    id: str | None = None,  # noqa: A002
) -> Workload:
    """A workload of the catalogue; needs no torch.

    Args:
        model: model id.
        task: task id.
        batch_size: examples per step.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        max_length: longer examples are cut here, tokens.
        method: ``full``, ``lora`` or ``bitfit``.
        tokens: every batch is packed or padded to this length, whatever the task's lengths; 0 for those.
        id: name of the workload; ``<model>-<task>`` where None.

    Raises:
        InputError: unknown model, task, precision or method, BitFit of a model without biases, or a size out of bounds.
    """
    _check(batch_size, max_length)
    if tokens < 0:
        raise InputError(f"tokens is {tokens}.", "A length, or 0 for the task's own lengths, was expected.")
    spec, job = find_model(model), find_task(task)
    polynomials = opcost.polynomials(spec.id, precision, method)
    return Workload(
        id=id or f"{spec.id}-{job.id}",
        model=spec.id,
        task=job.id,
        family=spec.family,
        layers=spec.layers,
        hidden=spec.hidden,
        params_m=spec.params_m,
        seq_len=float(tokens) or _mean_tokens(job, spec.tokenizer, max_length),
        batch_size=batch_size,
        precision=precision,
        steps_per_epoch=math.ceil(job.rows / batch_size),
        bins=(LengthBin(tokens, 1.0, polynomials.step_cost(batch_size, tokens)),)
        if tokens
        else _bins(
            job,
            spec.tokenizer,
            batch_size,
            max_length,
            lambda length: polynomials.step_cost(batch_size, length),
        ),
    )


EVALUATION_BATCH = 64
"""Examples per batch when the group's scripts evaluate."""


def build_evaluation(model: str, task: str, *, precision: str, max_length: int = 256) -> Workload:
    """One pass over a task's validation split, forward only, as a workload of its own.

    Its batches are as long as training batches of that size: lengths of every validation split are not published.

    Args:
        model: model id.
        task: task id.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        max_length: longer examples are cut here, tokens.

    Raises:
        InputError: unknown model, task or precision, or a size below 1.
    """
    workload = build_workload(
        model, task, batch_size=EVALUATION_BATCH, precision=precision, max_length=max_length
    )
    nothing = PhaseCost(0.0, 0.0, 0.0)
    return replace(
        workload,
        id=f"{workload.id}-evaluation",
        steps_per_epoch=math.ceil(find_task(task).validation_rows / EVALUATION_BATCH),
        bins=tuple(replace(b, cost=StepCost(b.cost.forward, nothing, nothing)) for b in workload.bins),
    )


def build_named(name: str) -> Workload:
    """A workload by its id, with the catalogue's batch size and precision.

    Args:
        name: ``<model>-<task>``, e.g. ``bert-base-mnli``, in any case.

    Raises:
        InputError: not such an id, or an unknown model or task.
    """
    model, dash, task = name.rpartition("-")
    if not dash:
        raise InputError(
            f"'{name}' is not a workload.", "<model>-<task> was expected, for example bert-base-mnli."
        )
    spec = find_model(model)
    return build_workload(spec.id, task, batch_size=spec.batch_size, precision=spec.precision)


def build_from_config(
    hf_config_path: Path, task: str, *, batch_size: int, precision: str, max_length: int = 256
) -> Workload:
    """A workload of any Hugging Face configuration, counted now.

    Args:
        hf_config_path: a config.json.
        task: task id.
        batch_size: examples per step.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        max_length: longer examples are cut here, tokens.

    Returns:
        The workload, named after the configuration (the folder's name where the file is called config.json).
        Decoders get Pythia's token lengths, others BERT's.

    Raises:
        InputError: not a configuration that can be counted, unknown task or precision, or a size below 1.
        BoardError: torch or transformers is missing.
    """
    _check(batch_size, max_length)
    job = find_task(task)
    path = Path(hf_config_path)
    counted = opcost.count_config(path, precision, job.labels)
    tokenizer = "pythia" if counted.decoder else "bert"
    name = path.parent.name if path.stem == "config" and path.parent.name else path.stem
    return Workload(
        id=f"{name}-{job.id}",
        model=name,
        task=job.id,
        family=counted.family,
        layers=counted.layers,
        hidden=counted.hidden,
        params_m=counted.base_params / 1e6,
        seq_len=_mean_tokens(job, tokenizer, max_length),
        batch_size=batch_size,
        precision=precision,
        steps_per_epoch=math.ceil(job.rows / batch_size),
        bins=_bins(job, tokenizer, batch_size, max_length, lambda n: counted.step_cost(batch_size, n)),
    )
