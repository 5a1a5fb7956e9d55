"""A governor's answer in plain words: why this clock, and what would have to be different for another one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from wattune.core.features import FEATURES, FeatureValue
from wattune.core.governor import Governor
from wattune.core.settings import Setting
from wattune.core.tree import Split


@dataclass(frozen=True, slots=True)
class Flip:
    """The nearest change of one feature that changes the answer.

    Attributes:
        feature: which.
        value: what it is now.
        to: the threshold to pass, or the category to be.
        direction: ``above``, ``up to`` or ``is``.
        setting: the answer then.
        change_pct: how far the threshold is, relative to the present value; None for a category or a value of 0.
    """

    feature: str
    value: FeatureValue
    to: float | str
    direction: str
    setting: Setting
    change_pct: float | None

    def document(self) -> dict[str, object]:
        """Plain values."""
        return {
            "feature": self.feature, "value": self.value, "direction": self.direction, "to": self.to, "mhz": self.setting,
            "change_pct": None if self.change_pct is None else round(self.change_pct, 2),
        }  # fmt: skip


def flips(governor: Governor, given: Mapping[str, FeatureValue]) -> list[Flip]:
    """For every feature the tree asks for, the nearest change in each direction that changes the answer; nearest first.

    One feature changes and the others stay.

    Args:
        governor: the governor.
        given: what is known of the workload; the rest is assumed as the governor does.
    """
    full, _ = governor.complete(given)
    present = governor.decide(full).setting
    thresholds: dict[str, set[float]] = {}
    categories: dict[str, set[str]] = {}
    for node in governor.tree.nodes:
        if isinstance(node, Split) and node.threshold is not None:
            thresholds.setdefault(node.feature, set()).add(node.threshold)
        elif isinstance(node, Split) and node.category is not None:
            categories.setdefault(node.feature, set()).add(node.category)
    found: list[Flip] = []
    for name, places in thresholds.items():
        value = full[name]
        if value is None or isinstance(value, str):
            continue
        above = [(t, math.nextafter(t, math.inf), "above") for t in sorted(places) if t >= value]
        below = [(t, t, "up to") for t in sorted(places, reverse=True) if t < value]
        for side in (above, below):
            for threshold, tried, direction in side:
                setting = governor.decide({**full, name: tried}).setting
                if setting != present:
                    change = 100.0 * (threshold / value - 1.0) if value else None
                    found.append(Flip(name, value, threshold, direction, setting, change))
                    break
    for feature in governor.features:
        for category in sorted(categories.get(feature.name, set()) | set(feature.values)):
            if feature.name not in categories or category == full[feature.name]:
                continue
            setting = governor.decide({**full, feature.name: category}).setting
            if setting != present:
                found.append(Flip(feature.name, full[feature.name], category, "is", setting, None))
    return sorted(found, key=lambda f: (f.change_pct is None, abs(f.change_pct or 0.0)))


def because(governor: Governor, given: Mapping[str, FeatureValue]) -> list[str]:
    """The questions on this workload's path, each with what the feature is, what the workload has, and the answer."""
    full, assumed = governor.complete(given)
    lines = []
    node = governor.tree.nodes[0]
    while isinstance(node, Split):
        left = node.goes_left(full)
        spec, value = FEATURES[node.feature], full[node.feature]
        if node.category is not None:
            answer = f"{'is' if left else 'is not'} {node.category}"
            has = str(value)
        else:
            answer = f"{'is at most' if left else 'is above'} {node.threshold:g} {spec.unit}".rstrip()
            has = f"{value:g} {spec.unit}".rstrip() if isinstance(value, (int, float)) else str(value)
        note = ", assumed" if node.feature in assumed else ""
        lines.append(f"{spec.meaning} ({node.feature}: {has}{note}) {answer}")
        node = governor.tree.nodes[node.left if left else node.right]
    return lines
