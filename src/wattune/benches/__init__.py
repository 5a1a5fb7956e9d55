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

DRAWN = ("diverse",)
"""Those whose workloads are drawn by a seed that may be another."""


def _module(name: str) -> Any:
    return import_module(f"wattune.benches.{name.replace('-', '_')}")


def run(name: str, seed: int | None = None) -> dict[str, Any]:
    """Run a benchmark.

    Args:
        name: one of `BENCHMARKS`.
        seed: of one of `DRAWN`: which workloads are drawn; None for its own.

    Returns:
        Its result as plain data.
    """
    return dict(_module(name).run(**({} if seed is None else {"seed": seed})))


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


def check_seed(name: str, seed: int | None, *, write: bool = False) -> None:
    """Refuse a seed that nothing is drawn by, or whose result no page shows.

    Raises:
        InputError: the benchmark draws nothing, the seed is below 0, or the page is to be written.
    """
    if seed is None:
        return
    if name not in DRAWN:
        raise InputError(
            f"The benchmark '{name}' draws no workloads.", f"`--seed` goes with {', '.join(DRAWN)}."
        )
    if seed < 0:
        raise InputError(f"--seed is {seed}.", "A whole number of at least 0 was expected.")
    if write:
        raise InputError(
            "--seed and --write were given.",
            "One of them was expected: the page shows the seeds it was made with.",
        )


def write(name: str, document: dict[str, Any]) -> None:
    """Save the result of a benchmark where docs/ shows it."""
    _module(name).write(document)
