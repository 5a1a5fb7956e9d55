"""The features a governor may ask for: names, units, kinds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Literal, TypeGuard

from wattune.core.errors import InputError

FeatureValue = float | str | None
"""A number, a category's name, or None where nobody knows."""

Features = Mapping[str, FeatureValue]


@dataclass(frozen=True, slots=True)
class FeatureSpec:
    """One feature.

    Attributes:
        name: column of features.csv and name in governor.json.
        unit: unit of a number, empty for a category.
        kind: ``number`` or ``category``.
        meaning: one line for cards and help.
        least: the smallest number that is no mistake; `most` the largest.
    """

    name: str
    unit: str
    kind: Literal["number", "category"]
    meaning: str
    least: float = 0.0
    most: float = 0.0


FEATURES: dict[str, FeatureSpec] = {
    spec.name: spec
    for spec in (
        FeatureSpec("family", "", "category", "architecture family of the model, e.g. bert"),
        FeatureSpec("layers", "layers", "number", "transformer blocks", 1, 1e4),
        FeatureSpec("hidden", "units", "number", "width of the hidden state", 1, 1e6),
        FeatureSpec("seq_len", "tokens", "number", "mean tokens per example before padding", 1, 1e6),
        FeatureSpec("gpu_util_ref_pct", "%", "number", "GPU utilisation at the reference clock", 0, 100),
        FeatureSpec("params_m", "10^6", "number", "parameters of the model", 1e-6, 1e8),
        FeatureSpec("batch_size", "examples", "number", "examples per step", 1, 1e6),
        FeatureSpec("method", "", "category", "what is trained: full, lora or bitfit"),
        FeatureSpec("precision", "", "category", "fp32, fp16 or bf16"),
        FeatureSpec("power_mode", "", "category", "power mode of the board, e.g. MODE_30W"),
        FeatureSpec("step_gflop", "10^9", "number", "floating-point operations of a training step", 0, 1e12),
        FeatureSpec(
            "step_gbyte", "10^9 bytes", "number", "unfused kernel traffic of a training step", 0, 1e12
        ),
        FeatureSpec("step_kernels", "kernels", "number", "kernel launches of a training step", 0, 1e12),
        FeatureSpec(
            "flop_per_byte", "flop/byte", "number", "arithmetic intensity of a training step", 0, 1e12
        ),
        FeatureSpec(
            "expected_util_pct",
            "%",
            "number",
            "GPU utilisation at the top clock, computed beforehand",
            0,
            100,
        ),
    )
}
"""Known features; the paper's five come first (arXiv 2607.05933, section on the model: type, utilisation, layers,
hidden size, mean sequence length)."""

PAPER_FEATURES = ("family", "layers", "hidden", "seq_len", "gpu_util_ref_pct")

COST_FEATURES = (
    *("method", "precision", "power_mode"),
    *("step_gflop", "step_gbyte", "step_kernels", "flop_per_byte", "expected_util_pct"),
)
"""Features from operation counts and the job's description, known before it starts; tables may leave all of them out."""


def check_feature(name: str, value: object, where: str = "") -> None:
    """Refuse a value that a feature cannot have, wherever somebody wrote it; None is one that nobody knows.

    Args:
        name: of a feature.
        value: of whatever type.
        where: the file that says so, for the message.

    Raises:
        InputError: an unknown feature, a number where a name belongs or the other way round, or a number out of bounds.
    """
    in_file = f" in {where}" if where else ""
    spec = FEATURES.get(name)
    if spec is None:
        raise InputError(f"'{name}'{in_file} is not a feature.", f"Known: {', '.join(FEATURES)}.")
    if value is None:
        return
    if spec.kind == "category":
        good = isinstance(value, str) and bool(value)
        expected = "A name"
    else:
        good = is_number(value) and spec.least <= value <= spec.most
        expected = f"A number from {spec.least:g} to {spec.most:.0f}"
    if not good:
        raise InputError(f"{name}{in_file} is {shown(value)}.", f"{expected} was expected: {spec.meaning}.")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, of whatever library."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False


def shown(value: object) -> str:
    """A value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
