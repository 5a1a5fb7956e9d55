"""How a command answers: results go to stdout, everything else is logged to stderr."""

from __future__ import annotations

import json
import sys
from typing import Any

from wattune.core.settings import Setting, setting_label


def out(text: str) -> None:
    """Results go to stdout; everything else is logged to stderr."""
    sys.stdout.write(text + "\n")


def out_json(document: Any) -> None:
    """One JSON document on stdout."""
    out(json.dumps(document, indent=2, allow_nan=False))


def clock(setting: Setting) -> str:
    """A setting, with its unit where it has one."""
    return setting_label(setting) + ("" if isinstance(setting, str) else " MHz")


def energy(saving_pct: float) -> str:
    """A saving, in percent, as less or more energy."""
    return f"{abs(saving_pct):.1f} % {'less' if saving_pct >= 0 else 'more'} energy"
