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
    )
}
"""Known features; the paper's five come first (arXiv 2607.05933, section on the model: type, utilisation, layers,
hidden size, mean sequence length)."""

PAPER_FEATURES = ("family", "layers", "hidden", "seq_len", "gpu_util_ref_pct")
