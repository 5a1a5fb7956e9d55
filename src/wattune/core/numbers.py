"""Numbers read from text that people and their tools write."""

from __future__ import annotations


def decimal_number(text: str) -> float:
    """As ``float``, without underscores between digits: they are Python's own, and ``5_00`` is a slip of the hand elsewhere.

    Raises:
        ValueError: it is no number.
    """
    if "_" in text:
        raise ValueError(f"could not convert string to float: {text!r}")
    return float(text)


def whole_number(text: str) -> int:
    """As :func:`decimal_number`, for ``int``."""
    if "_" in text:
        raise ValueError(f"invalid literal for int() with base 10: {text!r}")
    return int(text)
