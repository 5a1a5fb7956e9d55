"""Wattune: the GPU clock at which fine-tuning on a Jetson costs the least energy."""

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {"govern": "wattune.running.loop", "WattuneCallback": "wattune.running.trainer"}
"""What a training script imports from here, and where it lies; loaded when first asked for."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'wattune' has no attribute '{name}'")
