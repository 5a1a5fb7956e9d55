"""The label tree: features as columns, scikit-learn's classifier fitted on them, its questions read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import sklearn
from sklearn.tree import DecisionTreeClassifier

from wattune.core.features import FEATURES, Features, FeatureValue
from wattune.core.governor import FeatureRange
from wattune.core.settings import Setting
from wattune.learning.table import WorkloadRows


@dataclass(frozen=True, slots=True)
class Candidate:
    """Hyper-parameters of one tree, scikit-learn's names."""

    max_depth: int
    min_samples_leaf: int
    criterion: str


class Encoder:
    """Features as a numeric matrix; everything it knows comes from the rows it is made from.

    A missing number becomes their median, a missing category their most frequent one; a category they do not
    have sets no column. A feature none of them has is left out.

    Args:
        rows: training workloads.
        names: features wanted.
    """

    def __init__(self, rows: Sequence[WorkloadRows], names: Sequence[str]) -> None:
        ranges: list[FeatureRange] = []
        columns: list[tuple[str, str | None]] = []
        for name in names:
            values = [v for row in rows if (v := row.features.get(name)) is not None]
            if not values:
                continue
            spec = FEATURES[name]
            if spec.kind == "number":
                numbers = [float(v) for v in values]  # None was left out
                ranges.append(
                    FeatureRange(name, spec.unit, spec.kind, min(numbers), max(numbers), (), median(numbers))
                )
                columns.append((name, None))
            else:
                categories = sorted({str(v) for v in values})
                default = max(categories, key=lambda c: (values.count(c), -categories.index(c)))
                ranges.append(FeatureRange(name, "", spec.kind, None, None, tuple(categories), default))
                columns.extend((name, category) for category in categories)
        self.ranges: tuple[FeatureRange, ...] = tuple(ranges)
        self.columns: tuple[tuple[str, str | None], ...] = tuple(columns)

    def complete(self, features: Features) -> dict[str, FeatureValue]:
        """The features known here, missing values filled."""
        given = {r.name: features.get(r.name) for r in self.ranges}
        return {r.name: r.default if given[r.name] is None else given[r.name] for r in self.ranges}

    def matrix(self, many: Sequence[Features], dtype: Any = np.float32) -> Any:
        """One row per workload, by default in scikit-learn's own number type, shape ``(n, columns)``."""
        full = [self.complete(features) for features in many]
        rows = [
            [
                float(f[name] or 0.0) if category is None else float(f[name] == category)
                for name, category in self.columns
            ]
            for f in full
        ]
        return np.asarray(rows, dtype=dtype).reshape(len(rows), len(self.columns))


@dataclass(frozen=True, slots=True)
class Question:
    """An inner node with its two subtrees; a leaf is a setting."""

    feature: str
    threshold: float | None
    category: str | None
    yes: Question | Setting
    no: Question | Setting


def readable_threshold(threshold: float) -> float:
    """The shortest decimal that splits scikit-learn's numbers exactly as `threshold` does.

    scikit-learn rounds features to 32-bit floats and compares them with a 64-bit threshold. Every number
    from the greatest 32-bit float not above the threshold up to the middle of the gap above it answers
    alike for all 32-bit floats and for the returned number itself; a 64-bit value may be answered otherwise
    only inside that half gap.
    """
    below = np.float32(threshold)
    if float(below) > threshold:
        below = np.nextafter(below, np.float32(-np.inf))
    above = np.nextafter(below, np.float32(np.inf))
    low, high = float(below), (float(below) + float(above)) / 2.0
    for digits in range(1, 18):
        short = float(f"{(low + high) / 2.0:.{digits}g}")
        if low <= short < high:
            return short
    return low


def question_counts(tree: Question | Setting) -> tuple[int, int]:
    """Leaves and depth of a tree."""
    if not isinstance(tree, Question):
        return 1, 0
    (yes_leaves, yes_depth), (no_leaves, no_depth) = question_counts(tree.yes), question_counts(tree.no)
    return yes_leaves + no_leaves, 1 + max(yes_depth, no_depth)


class LabelTree:
    """A classification tree from features to the clock of least energy.

    Args:
        rows: training workloads.
        names: features the tree may ask for.
        candidate: hyper-parameters.
        seed: scikit-learn's random_state (it orders questions of equal merit).
        encoder: the rows' encoder, where it is at hand.
    """

    def __init__(
        self,
        rows: Sequence[WorkloadRows],
        names: Sequence[str],
        candidate: Candidate,
        seed: int,
        encoder: Encoder | None = None,
    ) -> None:
        self.encoder = encoder or Encoder(rows, names)
        self.labels = tuple(sorted({row.label_mhz for row in rows}))
        self.classifier: DecisionTreeClassifier | None = None
        if self.encoder.columns:
            matrix = self.encoder.matrix([row.features for row in rows])
            targets = [self.labels.index(row.label_mhz) for row in rows]
            self.classifier = DecisionTreeClassifier(
                max_depth=candidate.max_depth,
                min_samples_leaf=candidate.min_samples_leaf,
                criterion=candidate.criterion,
                random_state=seed,
            )
            with sklearn.config_context(skip_parameter_validation=True, assume_finite=True):
                self.classifier.fit(matrix, targets)
        else:  # nothing to ask for: the most frequent label, ties to the lower clock
            self.labels = (max(self.labels, key=lambda mhz: (sum(r.label_mhz == mhz for r in rows), -mhz)),)

    def predict(self, features: Features) -> float:
        """The clock for a workload, MHz; in a leaf ties go to the lower clock."""
        if self.classifier is None:
            return self.labels[0]
        values = self.classifier.tree_.predict(self.encoder.matrix([features]))
        return self.labels[int(np.argmax(values.reshape(-1)))]

    def questions(self) -> Question | Setting:
        """The tree's questions; sibling leaves with the same clock are merged, which changes no answer."""
        if self.classifier is None:
            return self.labels[0]
        tree = self.classifier.tree_

        def below(node: int) -> Question | Setting:
            left, right = int(tree.children_left[node]), int(tree.children_right[node])
            if left == right:
                return self.labels[int(np.argmax(tree.value[node].reshape(-1)))]
            feature, category = self.encoder.columns[int(tree.feature[node])]
            small, large = below(left), below(right)
            if not isinstance(small, Question) and small == large:
                return small
            if category is not None:  # the column is 1 for the category: yes goes right
                return Question(feature, None, category, large, small)
            return Question(feature, readable_threshold(float(tree.threshold[node])), None, small, large)

        return below(0)
