"""Workloads against policies: what each choice costs, one table per measure."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from wattune.core.settings import setting_label
from wattune.report.facts import Facts, Work
from wattune.report.marks import label
from wattune.report.markup import Markup, exact, number, scrolling, tag

MOST = 150
"""Workloads shown; beyond that the page becomes too heavy for a phone."""


@dataclass(frozen=True, slots=True)
class Measure:
    """What a table shows.

    Attributes:
        key: column of ``policies.csv``.
        title: in words.
        edges: where one shade ends and the next begins.
        zero: shades below this one are losses, drawn in the other colour.
        digits: decimals shown.
    """

    key: str
    title: str
    edges: tuple[float, ...]
    zero: int
    digits: int


REGRET = Measure("regret_pct", "Regret %", (0.1, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0), 0, 2)
SAVING = Measure("saving_pct", "Saving %", (-5.0, -0.005, 5.0, 10.0, 15.0, 20.0, 25.0), 2, 1)
SLOWDOWN = Measure("slowdown_pct", "Slowdown %", (1.0, 10.0, 25.0, 50.0, 75.0, 100.0, 150.0), 0, 0)


def describe(work: Work) -> dict[str, str | None]:
    """What a workload is filtered by."""
    family = work.features.get("family")
    return {
        "data_family": None if family is None else str(family),
        "data_size": work.size,
        "data_task": work.task,
        "data_model": work.model,
    }


def shade(measure: Measure, value: float) -> str:
    """The class of a value: h0, the palest, to h7; l0 and l1 are losses."""
    step = bisect_right(measure.edges, value)
    return f"l{measure.zero - 1 - step}" if step < measure.zero else f"h{step - measure.zero}"


def _legend(measure: Measure) -> Markup:
    edges = measure.edges
    spans = []
    for step in range(len(edges) + 1):
        middle = (edges[0] - 1.0) if step == 0 else (edges[step - 1] + 1e-9)
        zeroed = [0.0 if abs(e) < 0.01 else e for e in edges]
        if step == 0:
            text = f"< {number(zeroed[0], 1 if zeroed[0] % 1 else 0)}"
        elif step == len(edges):
            text = f"≥ {zeroed[-1]:g}"
        else:
            text = f"{zeroed[step - 1]:g} to {zeroed[step]:g}".replace("-", "−")
        spans.append(tag("span", text, class_=shade(measure, middle)))
    return tag("p", *spans, class_="scale")


def _table(facts: Facts, measure: Measure, works: Sequence[Work]) -> Markup:
    policies = [p for p in facts.policies if p != "maxn" or measure is REGRET]
    header = [
        tag("th", "workload", scope="col"),
        *(
            tag("th", label(p), scope="col", data_policy=p, class_="shipped" if p == facts.shipped else None)
            for p in policies
        ),
    ]
    rows = []
    for i, work in enumerate(works):
        cells = []
        for policy in policies:
            outcome = work.outcomes[policy]
            value = getattr(outcome, measure.key)
            if value is None:
                cells.append(tag("td", "–"))
                continue
            hint = f"{label(policy)}: {setting_label(outcome.setting)}{'' if isinstance(outcome.setting, str) else ' MHz'}"
            cells.append(
                tag(
                    *("td", number(value, measure.digits)),
                    class_=shade(measure, value),
                    data_value=exact(value),
                    title=hint,
                )
            )
        name = tag("th", tag("a", work.id, href=f"#w{i}"), scope="row")
        rows.append(tag("tr", name, *cells, class_="work", data_workload=work.id, **describe(work)))
    made = tag(
        "table", tag("thead", tag("tr", *header)), tag("tbody", *rows), class_="heat", data_column=measure.key
    )
    return scrolling(made, f"{measure.title} of every policy on every workload")


def heat_map(facts: Facts) -> Markup:
    """The tables, switched without a script."""
    first = facts.works[0].outcomes[facts.shipped]
    measures = [SAVING] if first.saving_pct is not None else []
    measures.append(REGRET)
    if first.slowdown_pct is not None and facts.has_times:
        measures.append(SLOWDOWN)
    works = facts.works[:MOST]
    switches, panes = [], []
    for i, measure in enumerate(measures):
        switches.append(tag("input", type="radio", name="measure", id=f"measure{i}", checked=i == 0))
        switches.append(tag("label", measure.title, for_=f"measure{i}"))
        panes.append(tag("div", _legend(measure), _table(facts, measure, works), class_="pane"))
    left_out = len(facts.works) - len(works)
    note = (
        tag(
            "p",
            f"The first {MOST} of {len(facts.works)} workloads; all of them are in reports/evaluate/policies.csv.",
        )
        if left_out
        else None
    )
    return tag("div", *switches, tag("div", *panes, class_="panes"), note, class_="switch")
