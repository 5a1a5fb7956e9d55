"""The features a governor may ask for: names, units, kinds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

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
    """

    name: str
    unit: str
    kind: Literal["number", "category"]
    meaning: str


FEATURES: dict[str, FeatureSpec] = {
    spec.name: spec
    for spec in (
        FeatureSpec("family", "", "category", "architecture family of the model, e.g. bert"),
        FeatureSpec("layers", "layers", "number", "transformer blocks"),
        FeatureSpec("hidden", "units", "number", "width of the hidden state"),
        FeatureSpec("seq_len", "tokens", "number", "mean tokens per example before padding"),
        FeatureSpec("gpu_util_ref_pct", "%", "number", "GPU utilisation at the reference clock"),
        FeatureSpec("params_m", "10^6", "number", "parameters of the model"),
        FeatureSpec("batch_size", "examples", "number", "examples per step"),
        FeatureSpec("method", "", "category", "what is trained: full, lora or bitfit"),
        FeatureSpec("precision", "", "category", "fp32, fp16 or bf16"),
        FeatureSpec("power_mode", "", "category", "power mode of the board, e.g. MODE_30W"),
        FeatureSpec("step_gflop", "10^9", "number", "floating-point operations of a training step"),
        FeatureSpec("step_gbyte", "10^9 bytes", "number", "unfused kernel traffic of a training step"),
        FeatureSpec("step_kernels", "kernels", "number", "kernel launches of a training step"),
        FeatureSpec("flop_per_byte", "flop/byte", "number", "arithmetic intensity of a training step"),
        FeatureSpec(
            "expected_util_pct", "%", "number", "GPU utilisation at the top clock, computed beforehand"
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
