"""What LoRA and BitFit train: one rule, for counting a step's operations and for running it."""

from __future__ import annotations

from typing import Any

from wattune.core.errors import BoardError

RANK = 8
ALPHA_PER_RANK = 2
DROPOUT = 0.1
"""As in the scripts of the paper's group (github.com/esainulab/slmdvfs): r = 8, alpha = 16, dropout 0.1."""

HEADS = ("classifier", "score", "pre_classifier", "classification_head")
"""What transformers calls a classifier on top of a pretrained model: new, so that every method trains it."""


def import_peft() -> Any:
    """Import peft.

    Raises:
        BoardError: it is not installed.
    """
    try:
        import peft
    except ImportError as error:
        raise BoardError(
            "LoRA needs the package peft, which is not installed.",
            "The extra `train` was expected.",
            "Install it with `make setup EXTRAS=train` or `pip install peft`.",
        ) from error
    return peft


def lora_settings(model_type: str, rank: int = RANK) -> dict[str, Any]:
    """Arguments of peft's ``LoraConfig``: the modules that peft knows for the architecture, else all linear ones.

    Args:
        model_type: as in a Hugging Face configuration.
        rank: of the matrices added.

    Raises:
        BoardError: peft is not installed.
    """
    known = import_peft().utils.TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING
    return {
        "target_modules": known.get(model_type, "all-linear"),
        "r": rank,
        "lora_alpha": ALPHA_PER_RANK * rank,
        "lora_dropout": DROPOUT,
    }


def in_head(parameter: str, *, causal: bool) -> bool:
    """Whether a parameter belongs to a new classifier; a causal language model has none."""
    return not causal and any(part in HEADS for part in parameter.split("."))


def is_bias(parameter: str) -> bool:
    """Whether BitFit trains this parameter, its name says (arXiv 2106.10199)."""
    return parameter.rpartition(".")[2] == "bias"
