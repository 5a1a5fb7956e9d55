"""The project's benchmarks, `wattune bench NAME`: a module each, with ``run()`` and, where it has its own, ``text(document)``.

One whose result docs/ shows also has ``write(document)``. A result with ``"ok": false`` makes the command exit with 1.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from wattune.core.errors import InputError

BENCHMARKS = (
    "pipeline", "paper-protocol", "meter", "policies", "probe", "window", "monitors", "studies", "diverse",
)  # fmt: skip
"""In the order of the command's help."""

PAGES = ("paper-protocol", "window", "studies", "diverse")
"""Those that a page in docs/ shows."""


def _module(name: str) -> Any:
    return import_module(f"wattune.benches.{name.replace('-', '_')}")


def run(name: str) -> dict[str, Any]:
    """Run a benchmark.

    Args:
        name: one of `BENCHMARKS`.

    Returns:
        Its result as plain data.
    """
    return dict(_module(name).run())


def text(name: str, document: dict[str, Any]) -> str:
    """A benchmark's result for people; a line for each key where it has no text of its own."""
    own = getattr(_module(name), "text", None)
    if own is not None:
        return str(own(document))
    return "\n".join(f"{key:<28} {value}" for key, value in document.items())


def check_page(name: str) -> None:
    """Refuse to save what no page in docs/ shows, before anything runs.

    Raises:
        InputError: the benchmark has no page.
    """
    if name not in PAGES:
        raise InputError(
            f"The benchmark '{name}' has no page in docs/.", f"`--write` goes with {', '.join(PAGES)}."
        )


def write(name: str, document: dict[str, Any]) -> None:
    """Save the result of a benchmark where docs/ shows it."""
    _module(name).write(document)
