"""Reads the JSON schemas that ship with the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import wattune

FOLDER = Path(wattune.__file__).parent / "schemas"


def schema(name: str) -> dict[str, Any]:
    """The schema ``<name>.schema.json``."""
    document: dict[str, Any] = json.loads((FOLDER / f"{name}.schema.json").read_text())
    return document
