"""What is left out together when a choice is checked on the training workloads: single workloads, or whole kinds."""

from __future__ import annotations

from collections.abc import Sequence

from wattune.learning.table import WorkloadRows

Fold = tuple[tuple[WorkloadRows, ...], tuple[WorkloadRows, ...]]
"""Rows left out, and the others."""


def folds(rows: Sequence[WorkloadRows], apart: str = "") -> list[Fold]:
    """Every row left out once.

    Args:
        rows: workloads.
        apart: a feature; rows that share its value are left out together. Empty, or where fewer than two values are known or a
            row has none: every row by itself.

    Returns:
        The folds, in the order in which their first rows come; none for a single row.
    """
    if len(rows) < 2:
        return []
    kinds = [row.features.get(apart) for row in rows] if apart else [None]
    if None in kinds or len(set(kinds)) < 2:
        return [((row,), tuple(other for other in rows if other is not row)) for row in rows]
    pairs = list(zip(rows, kinds, strict=True))
    return [
        (tuple(row for row, own in pairs if own == kind), tuple(row for row, own in pairs if own != kind))
        for kind in dict.fromkeys(kinds)
    ]
