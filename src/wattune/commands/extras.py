"""Which set of optional packages a command lacks: the base install is the standard library only."""

from __future__ import annotations

import importlib.util

from wattune.core.errors import BoardError

EXTRAS = {
    "pipeline": (
        *("dvc", "hydra", "omegaconf", "mlflow", "pandas", "sklearn", "numpy", "scipy", "matplotlib"),
        *("rich", "yaml", "mfusepy"),
    ),
    "pull": ("sqlalchemy", "alembic"),
    "train": ("torch", "transformers", "datasets", "accelerate", "peft", "sentencepiece"),
    "jetson": ("jtop",),
}
"""Extra of ``pyproject.toml`` -> what its packages are called when they are imported; each in the first that has it."""


def lacking(error: ModuleNotFoundError) -> BoardError | None:
    """What to say where a module is missing; None where no extra brings it, which is a bug.

    Args:
        error: of the import.
    """
    module = (error.name or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    if extra is None or importlib.util.find_spec(module) is not None:  # it is there, and a part of it is not
        return None
    return BoardError(
        f"The Python package '{module}' is not installed.",
        f"It is part of the optional set of packages '{extra}'.",
        f"Install it with `pip install 'wattune[{extra}]'`.",
    )
