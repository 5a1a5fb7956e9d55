"""The governors' trees, drawn as nested lists (they wrap on a phone), each leaf with what it rests on."""

from __future__ import annotations

from wattune.core.governor import Governor
from wattune.core.settings import MAXN, setting_label
from wattune.core.tree import Leaf, Split
from wattune.report.axes import Scale, around
from wattune.report.facts import Facts, Work
from wattune.report.marks import label
from wattune.report.markup import Markup, coordinate, exact, number, tag

SPARK_WIDTH, SPARK_HEIGHT = 132.0, 40.0
WIDE_LEAVES = 5
"""A tree of more leaves is drawn indented: side by side they would not fit."""


def home(facts: Facts, governor: Governor) -> dict[int, list[Work]]:
    """Judged workloads in each leaf, by the leaf's place among the nodes."""
    found: dict[int, list[Work]] = {}
    places = {id(node): i for i, node in enumerate(governor.tree.nodes)}
    for work in facts.works:
        leaf, _ = governor.tree.walk(governor.complete(work.features)[0])
        found.setdefault(places[id(leaf)], []).append(work)
    return found


def _spark(governor: Governor, leaf: Leaf) -> Markup | None:
    """The leaf's mean relative energy over the clocks, its own marked."""
    known = {s: e for s, e in zip(governor.settings, leaf.rel_energy, strict=True) if e is not None}
    clocks = [s for s in known if not isinstance(s, str)]
    if len(clocks) < 2:
        return None
    x = Scale(clocks[0], clocks[-1], 5, SPARK_WIDTH - 5)
    y = Scale(*around(list(known.values())), SPARK_HEIGHT, 0)
    points = "L".join(f"{coordinate(x(s))} {coordinate(y(known[s]))}" for s in clocks)
    parts = [tag("path", class_="curve", d=f"M{points}")]
    if MAXN in known:
        level = y(known[MAXN])
        parts.insert(0, tag("line", class_="maxn", x1=0, x2=SPARK_WIDTH, y1=level, y2=level))
    if not isinstance(leaf.setting, str) and leaf.setting in known:
        parts.append(tag("circle", class_="pick", cx=x(leaf.setting), cy=y(known[leaf.setting]), r=4))
    return tag(
        *("svg", *parts),
        viewBox=f"0 0 {SPARK_WIDTH:g} {SPARK_HEIGHT:g}",
        class_="spark",
        role="img",
        aria_label="mean relative energy of the leaf's training workloads against the clock",
    )


def _leaf(facts: Facts, governor: Governor, leaf: Leaf, here: list[Work], index: int) -> Markup:
    clock = setting_label(leaf.setting) + ("" if isinstance(leaf.setting, str) else " MHz")
    plural = "" if leaf.n == 1 else "s"
    lines = [
        tag(
            "span", tag("b", str(leaf.n)), f" training workload{plural}", class_="few" if leaf.n < 5 else None
        )
    ]
    if leaf.expected_saving_pct is not None:
        text = f"saving {number(leaf.expected_saving_pct)} %"
        if leaf.saving_range_pct is not None:
            text += f", {number(leaf.saving_range_pct[0])} to {number(leaf.saving_range_pct[1])} in training"
        lines.append(
            tag("span", text, data_key="expected_saving_pct", data_value=exact(leaf.expected_saving_pct))
        )
    if leaf.saving_interval_pct is not None:
        low, high = leaf.saving_interval_pct
        lines.append(tag("span", f"new workloads: {number(low)} to {number(high)} % expected"))
    if leaf.regret_bound_pct is not None:
        lines.append(tag("span", f"regret expected below {number(leaf.regret_bound_pct, 2)} %"))
    rel_time = (
        leaf.rel_time[governor.settings.index(leaf.setting)] if leaf.setting in governor.settings else None
    )
    if rel_time is not None and governor.baseline == MAXN:
        lines.append(tag("span", f"slowdown {number(100.0 * (rel_time - 1.0))} %"))
    if facts.meta["split"] == "held_out" and governor.policy in facts.metrics:
        lines.append(_judged(governor, here))
    return tag(
        "div",
        tag("strong", clock),
        _spark(governor, leaf),
        *lines,
        class_="leaf",
        data_leaf=str(index),
    )


def _judged(governor: Governor, here: list[Work]) -> Markup:
    """How the leaf did on the workloads judged."""
    outcomes = [work.outcomes[governor.policy] for work in here]
    if not outcomes:
        return tag("span", "no held-out workload came here", class_="few")
    savings = [o.saving_pct for o in outcomes if o.saving_pct is not None]
    text = f"held out: {len(outcomes)} workload{'' if len(outcomes) == 1 else 's'}"
    if len(savings) == len(outcomes):
        text += f", saving {number(min(savings))} to {number(max(savings))} %"
    return tag("span", f"{text}, regret at most {number(max(o.regret_pct for o in outcomes), 2)} %")


def _node(facts: Facts, governor: Governor, index: int, homes: dict[int, list[Work]]) -> Markup:
    node = governor.tree.nodes[index]
    if isinstance(node, Leaf):
        return _leaf(facts, governor, node, homes.get(index, []), index)
    branches = [
        tag("li", tag("span", _answer(node, left), class_="answer"), _node(facts, governor, child, homes))
        for left, child in ((True, node.left), (False, node.right))
    ]
    return Markup(tag("span", f"{node.feature}?", class_="question") + tag("ul", *branches))


def _answer(node: Split, left: bool) -> str:
    return node.text(left).removeprefix(f"{node.feature} ").replace("<=", "≤")


def _drawing(facts: Facts, governor: Governor) -> Markup:
    wide = len(governor.tree.leaves) <= WIDE_LEAVES
    ships = ", ships" if governor is facts.governors[0] else ""
    return tag(
        "section",
        tag("h3", f"{label(governor.policy)}{ships}"),
        tag(
            "div",
            tag("ul", tag("li", _node(facts, governor, 0, home(facts, governor)))),
            class_="tree wide" if wide else "tree",
            data_governor=governor.policy,
        ),
    )


def trees(facts: Facts) -> Markup:
    """Every governor's tree."""
    return tag("div", *(_drawing(facts, governor) for governor in facts.governors))
