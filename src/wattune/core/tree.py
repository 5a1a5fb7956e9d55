"""A decision tree as data: checked when read, evaluated without any library."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wattune.core.errors import IntegrityError
from wattune.core.features import Features
from wattune.core.settings import Setting, setting_label

MAX_DEPTH = 32


@dataclass(frozen=True, slots=True)
class Split:
    """An inner node. A number goes left when ``value <= threshold``, a category when ``value == category``.

    Attributes:
        feature: name of the feature asked for.
        threshold: bound for a number; None for a category.
        category: name for a category; None for a number.
        left: index of the node for yes.
        right: index of the node for no.
    """

    feature: str
    threshold: float | None
    category: str | None
    left: int
    right: int

    def goes_left(self, features: Features) -> bool:
        """Answer the node's question; the feature must be present."""
        value = features[self.feature]
        if self.category is not None:
            return value == self.category
        return float(value) <= float(self.threshold)  # type: ignore[arg-type]  # checked when read

    def text(self, left: bool) -> str:
        """The question in words, for the branch taken."""
        if self.category is not None:
            return f"{self.feature} {'is' if left else 'is not'} {self.category}"
        return f"{self.feature} {'<=' if left else '>'} {self.threshold:g}"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A leaf: the setting it picks and the evidence of its training rows.

    Attributes:
        setting: the clock in MHz, or ``maxn``.
        n: training workloads in the leaf.
        expected_saving_pct: mean saving of `setting` against MAXN over those rows; None without a baseline.
        saving_range_pct: least and greatest saving of those rows; None without a baseline.
        rel_energy: mean energy relative to the baseline, one entry per governor setting; None where not measured.
        rel_time: mean time relative to the baseline, likewise.
        saving_interval_pct: where the saving of a workload not trained on is expected (conformal); None where unknown.
        regret_bound_pct: what such a workload is expected to lose at most against its optimum; None where unknown.
        rel_time_max: the greatest relative times, which limits in time are held against; empty where they were not kept.
    """

    setting: Setting
    n: int
    expected_saving_pct: float | None
    saving_range_pct: tuple[float, float] | None
    rel_energy: tuple[float | None, ...]
    rel_time: tuple[float | None, ...]
    saving_interval_pct: tuple[float, float] | None = None
    regret_bound_pct: float | None = None
    rel_time_max: tuple[float | None, ...] = ()


Node = Split | Leaf


class Tree:
    """A binary decision tree in an array, root first, children after their parents.

    Args:
        nodes: the nodes; node 0 is the root.

    Raises:
        IntegrityError: a child outside the array or before its parent (a cycle), a node reached twice or never, or a
            path longer than 32 nodes.
    """

    __slots__ = ("nodes",)

    def __init__(self, nodes: Sequence[Node]) -> None:
        parents = [0] * len(nodes)
        depth = [0] * len(nodes)
        if not nodes:
            raise IntegrityError("The governor's tree has no nodes.", "At least one leaf was expected.")
        for index, node in enumerate(nodes):
            if not isinstance(node, Split):
                continue
            for child in (node.left, node.right):
                if not index < child < len(nodes):
                    raise IntegrityError(
                        f"The governor's tree is broken: node {index} points to node {child}.",
                        "Children must follow their parent and lie inside the tree, so that there is no cycle.",
                    )
                parents[child] += 1
                depth[child] = depth[index] + 1
                if depth[child] > MAX_DEPTH:
                    raise IntegrityError(f"The governor's tree is deeper than {MAX_DEPTH} levels.")
        if any(count != 1 for count in parents[1:]):
            raise IntegrityError(
                "The governor's tree is broken: some nodes are reached twice or never.",
                "Every node but the first must have exactly one parent.",
            )
        self.nodes = tuple(nodes)

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves, in the order of the array."""
        return tuple(node for node in self.nodes if isinstance(node, Leaf))

    @property
    def depth(self) -> int:
        """Questions on the longest path; 0 for a single leaf."""

        def below(index: int) -> int:
            node = self.nodes[index]
            return 0 if isinstance(node, Leaf) else 1 + max(below(node.left), below(node.right))

        return below(0)

    def walk(self, features: Features) -> tuple[Leaf, tuple[str, ...]]:
        """The leaf for `features` and the questions answered on the way, in words.

        Raises:
            KeyError: a feature on the path is missing.
        """
        path: list[str] = []
        node = self.nodes[0]
        while isinstance(node, Split):
            left = node.goes_left(features)
            path.append(node.text(left))
            node = self.nodes[node.left if left else node.right]
        return node, tuple(path)

    def text(self) -> str:
        """The whole tree as indented text."""
        lines: list[str] = []

        def show(index: int, indent: str) -> None:
            node = self.nodes[index]
            if isinstance(node, Leaf):
                clock = setting_label(node.setting) + ("" if isinstance(node.setting, str) else " MHz")
                saving = (
                    ""
                    if node.expected_saving_pct is None
                    else f", saving {node.expected_saving_pct:.1f} % against MAXN"
                )
                lines.append(f"{indent}-> {clock}  ({node.n} training workloads{saving})")
                return
            for left, child in ((True, node.left), (False, node.right)):
                lines.append(f"{indent}{node.text(left)}")
                show(child, indent + "|   ")

        show(0, "")
        return "\n".join(lines)
