"""Workloads that need a governor: every catalogue model in many shapes of work, drawn once from a seed.

The paper's workloads differ little in what they ask of the board, so that one fixed clock is nearly as good as any rule. These span
batch 1 to 512, length 16 to 1024, three precisions, and full, LoRA and BitFit fine-tuning. ``python -m wattune.workloads.diverse``
writes ``conf/workloads/diverse.yaml``; a test demands that the file is what this module draws.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

from wattune.io import write_text
from wattune.workloads.catalogue import MODELS, find_model
from wattune.workloads.opcost import PRECISIONS, methods_of, polynomials

CONF = Path("conf/workloads/diverse.yaml")
SEED = 0
PER_MODEL = 20
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
LENGTHS = (16, 32, 64, 128, 256, 512, 1024)
TASK = "qnli"
"""Only its number of rows counts: batches are packed to a fixed length."""

HELD_OUT_FAMILIES = frozenset({"llama", "qwen2"})
"""Families that no training workload of the set belongs to."""

MEMORY_BYTES = 48e9
"""Of the 64 GB that CPU and GPU of an AGX Orin share, what is left to a training process (our assumption)."""

WEIGHT_BYTES, TRAINED_BYTES = 4, 12
"""Per parameter its fp32 value; per trained one also its gradient and AdamW's two moments."""


Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Job:
    """One configuration.

    Attributes:
        model: model id.
        method: ``full``, ``lora`` or ``bitfit``.
        batch_size: examples per step.
        tokens: length of every batch.
        precision: ``fp32``, ``fp16`` or ``bf16``.
    """

    model: str
    method: str
    batch_size: int
    tokens: int
    precision: str

    @property
    def id(self) -> str:
        """Id of the workload; dots, which ids do not have, become underscores."""
        name = self.model.replace(".", "_")
        return f"{name}-{self.method}-b{self.batch_size}-l{self.tokens}-{self.precision}"

    @property
    def family(self) -> str:
        """Family of its model."""
        return find_model(self.model).family

    @property
    def part(self) -> str:
        """``held_out`` for `HELD_OUT_FAMILIES`, else ``train``."""
        return "held_out" if self.family in HELD_OUT_FAMILIES else "train"


def memory_bytes(job: Job) -> float:
    """A generous bound of what training takes: weights, gradients, moments, and every tensor the forward pass writes.

    Half of the forward pass's unfused traffic is writing, and more than what it writes is not kept for the backward pass.
    """
    costs = polynomials(job.model, job.precision, job.method)
    weights = WEIGHT_BYTES * max(find_model(job.model).params, costs.params)
    activations = costs.step_cost(job.batch_size, job.tokens).forward.bytes / 2
    return weights + TRAINED_BYTES * costs.params + activations


def longest(model: str) -> int:
    """Positions of a model."""
    return int(find_model(model).hf_config["max_position_embeddings"])


def _dealt(rng: random.Random, values: Sequence[Value], number: int) -> list[Value]:
    """`number` values, each as often as any other, shuffled."""
    cards = [v for _ in range(-(-number // len(values))) for v in rng.sample(values, len(values))][:number]
    rng.shuffle(cards)
    return cards


def _draw(model: str, count: int, seed: int) -> list[Job]:
    """Shapes of one model: every batch size, length, precision and method as often as any other, in random company.

    A batch that does not fit into memory is halved until it does.
    """
    rng = random.Random(f"{seed}|{model}")
    lengths = [length for length in LENGTHS if length <= longest(model)]
    kinds = list(product(methods_of(model), PRECISIONS))

    found: list[Job] = []
    while len(found) < count:
        need = count - len(found)
        hands = zip(
            _dealt(rng, kinds, need), _dealt(rng, BATCHES, need), _dealt(rng, lengths, need), strict=True
        )
        for (method, precision), batch, length in hands:
            job = Job(model, method, batch, length, precision)
            while memory_bytes(job) > MEMORY_BYTES and job.batch_size > 1:
                job = replace(job, batch_size=job.batch_size // 2)
            if memory_bytes(job) <= MEMORY_BYTES and job not in found:
                found.append(job)
    return sorted(found, key=lambda j: (j.method, j.batch_size, j.tokens, j.precision))


def diverse(per_model: int = PER_MODEL, seed: int = SEED) -> tuple[Job, ...]:
    """The set, model by model in the order of the catalogue; another `seed` draws other shapes of the same models."""
    return tuple(job for model in MODELS for job in _draw(model, per_model, seed))


def entries(jobs: Sequence[Job]) -> dict[str, dict[str, Any]]:
    """Jobs as entries of a workloads file, by id."""
    order = ("model", "task", "part", "batch_size", "precision", "max_length", "method", "tokens")
    found = {}
    for job in jobs:
        fields = asdict(job) | {"task": TASK, "part": job.part, "max_length": job.tokens}
        found[job.id] = {name: fields[name] for name in order}
    return found


def conf_text() -> str:
    """The text of ``conf/workloads/diverse.yaml``."""
    lines = [
        f"# {PER_MODEL} shapes of each of {len(MODELS)} models, packed to a fixed length; made by"
        " `python -m wattune.workloads.diverse`, do not edit.",
        "# Held out are the families that nothing here is trained on:"
        f" {', '.join(sorted(HELD_OUT_FAMILIES))}.",
    ]
    for name, entry in entries(diverse()).items():
        lines.append(f"{name}: {{{', '.join(f'{key}: {value}' for key, value in entry.items())}}}")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the file."""
    write_text(CONF, conf_text())


if __name__ == "__main__":
    main()
