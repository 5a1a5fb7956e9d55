"""Telling apart, among the workloads of one leaf, those that its clock serves well from those that it may cost energy.

A tree grown on energy lost stops where one clock serves all: it does not care by how much. Whoever may decline does: one leaf for work
that saves a fifth and for work that saves nothing has an interval which includes a loss, and MAXN would be kept for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from wattune.core.settings import MAXN, Setting
from wattune.learning.labeltree import Encoder, Question, question_counts
from wattune.learning.regrettree import SAME, between
from wattune.learning.table import WorkloadRows

Place = tuple[bool, ...]
"""The way to a leaf: yes or no at every question."""


def by_saving(
    tree: Question | Setting, rows: Sequence[WorkloadRows], encoder: Encoder, *, max_leaves: int, least: int
) -> Question | Setting:
    """The tree with further questions in leaves whose clock saves on some workloads and may lose on others.

    No answer changes: both sides of such a question keep the leaf's clock, each with an expectation and an interval of its own. Of
    all leaves in which some training workload loses, the one is split first whose question explains most of the savings'
    squared differences, until the tree has `max_leaves`.

    Args:
        tree: the questions of a fitted tree.
        rows: the training workloads; a tree of workloads without a baseline is returned as it is.
        encoder: the rows' encoder.
        max_leaves: most leaves.
        least: fewest training workloads on either side of a question.
    """
    matrix = encoder.matrix([row.features for row in rows], np.float64)
    while question_counts(tree)[0] < max_leaves:
        best: tuple[float, Place, Question] | None = None
        for place, setting, here in _leaves(tree, (), np.arange(len(rows)), matrix, encoder):
            savings = [rows[i].measured.saving_pct(rows[i].nearest(setting)) for i in here]
            known = [s for s in savings if s is not None]
            if setting == MAXN or len(known) < len(savings) or min(known, default=0.0) >= 0.0:
                continue
            found = _question(matrix[here], np.asarray(known), encoder, setting, least)
            if found is not None and (best is None or found[0] > best[0] + SAME):
                best = (found[0], place, found[1])
        if best is None:
            break
        tree = _with(tree, best[1], best[2])
    return tree


def _leaves(tree: Question | Setting, place: Place, here: Any, matrix: Any, encoder: Encoder) -> Any:
    """Way, setting and rows of every leaf."""
    if not isinstance(tree, Question):
        return [(place, tree, here)]
    column = encoder.columns.index((tree.feature, tree.category))
    values = matrix[here, column]
    yes = values > 0.5 if tree.category is not None else values <= tree.threshold
    return [
        *_leaves(tree.yes, (*place, True), here[yes], matrix, encoder),
        *_leaves(tree.no, (*place, False), here[~yes], matrix, encoder),
    ]


def _question(
    x: Any, savings: Any, encoder: Encoder, setting: Setting, least: int
) -> tuple[float, Question] | None:
    """How much of the squared differences the best question explains, and the question; None where there is none."""
    best: tuple[float, Question] | None = None
    n, whole = len(savings), savings.sum()
    for column, (feature, category) in enumerate(encoder.columns):
        order = np.lexsort((savings, x[:, column]))  # sums then do not depend on the order of rows
        values, sums = x[order, column], np.add.accumulate(savings[order])
        counts = np.arange(1, n)
        places = np.flatnonzero((values[1:] > values[:-1]) & (counts >= least) & (n - counts >= least))
        if not len(places):
            continue
        yes, k = sums[places], counts[places]
        gains = yes**2 / k + (whole - yes) ** 2 / (n - k) - whole**2 / n
        at = int(np.flatnonzero(gains >= gains.max() - SAME)[0])
        if gains[at] > SAME and (best is None or gains[at] > best[0] + SAME):
            threshold = None
            if category is None:
                threshold = between(float(values[places[at]]), float(values[places[at] + 1]))
            best = (float(gains[at]), Question(feature, threshold, category, setting, setting))
    return best


def _with(tree: Question | Setting, place: Place, question: Question) -> Question | Setting:
    """The tree with a question instead of the leaf at `place`."""
    if not place or not isinstance(tree, Question):
        return question
    if place[0]:
        return replace(tree, yes=_with(tree.yes, place[1:], question))
    return replace(tree, no=_with(tree.no, place[1:], question))
