"""A workload: one model fine-tuned on one task, and what a training step of it costs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PhaseCost:
    """Operation cost of one phase of a training step.

    Attributes:
        flops: floating-point operations of matrix multiplications and convolutions.
        bytes: bytes read and written by all kernels, each counted unfused.
        launches: kernel launches.
    """

    flops: float
    bytes: float
    launches: float

    def __add__(self, other: PhaseCost) -> PhaseCost:
        return PhaseCost(self.flops + other.flops, self.bytes + other.bytes, self.launches + other.launches)


@dataclass(frozen=True, slots=True)
class StepCost:
    """Operation cost of one training step, by phase; `optimizer` includes gradient clipping."""

    forward: PhaseCost
    backward: PhaseCost
    optimizer: PhaseCost

    @property
    def total(self) -> PhaseCost:
        """The three phases summed."""
        return self.forward + self.backward + self.optimizer


@dataclass(frozen=True, slots=True)
class LengthBin:
    """A share of an epoch's batches that are padded to the same length.

    Attributes:
        tokens: padded sequence length of the batch (its longest member, dynamic padding).
        share: fraction of batches, sums to 1 over a workload's bins.
        cost: operation cost of one step on such a batch.
    """

    tokens: int
    share: float
    cost: StepCost


@dataclass(frozen=True, slots=True)
class Workload:
    """A model x task fine-tuning job with everything a modelled board needs to run it.

    Attributes:
        id: ``<model>-<task>``.
        family: architecture family, e.g. ``bert``, ``deberta-v2``, ``gpt-neox``.
        params_m: parameters of the pretrained model, millions (base model with its embeddings).
        seq_len: mean tokens per example before padding (the paper's feature).
        precision: ``fp32``, ``fp16`` or ``bf16`` (the latter two with automatic mixed precision).
        steps_per_epoch: optimizer steps in one pass over the training split.
        bins: distribution of padded batch lengths with their step costs.
    """

    id: str
    model: str
    task: str
    family: str
    layers: int
    hidden: int
    params_m: float
    seq_len: float
    batch_size: int
    precision: str
    steps_per_epoch: int
    bins: tuple[LengthBin, ...]


SMALL_MODELS = frozenset({"bert-small", "bert-medium", "pythia-31m", "pythia-70m"})
SMALL_MAX_PARAMS_M = 71.0
"""Pythia-70M has 70.4 million parameters; the paper's small class is "up to 70M"."""


def size_class(model: str | None, params_m: float | None) -> str | None:
    """``small`` or ``large`` as the paper splits its results; None where neither name nor size is known."""
    if model in SMALL_MODELS:
        return "small"
    if params_m is None:
        return None
    return "small" if params_m <= SMALL_MAX_PARAMS_M else "large"
