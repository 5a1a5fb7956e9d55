"""The page: all parts in reading order, one self-contained file, the same bytes for the same facts."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from wattune.core.settings import setting_label
from wattune.report import heatmap, summary, trees, trust, workloads
from wattune.report.facts import Facts
from wattune.report.marks import colours, label, symbols
from wattune.report.markup import Markup, tag

_BANNER = {
    "simulated": (
        "SIMULATED",
        "A modelled board: no energy and no time on this page was measured.",
    ),
    "recorded": (
        "RECORDED BY OTHERS",
        "Somebody else measured these sweeps on a real board; they are taken as they are.",
    ),
    "measured": ("MEASURED", "These sweeps were measured on a real board by this pipeline."),
}
_SPLIT = {
    "held_out": "held-out workloads; none of them was trained on",
    "leave_one_out": "workloads, each judged by policies that never saw it",
}
_FILTERS = ("family", "model", "size", "task")


def _asset(name: str) -> str:
    return files("wattune.report").joinpath(name).read_text(encoding="utf-8")


def _header(facts: Facts) -> Markup:
    meta = facts.meta
    word, sentence = _BANNER[meta["provenance"]]
    described = (
        ("power mode", meta["power_mode"]),
        ("energy of", meta["rails"]),
        ("objective", f"least {meta['objective']}"),
        ("baseline", "MAXN, clocks unpinned" if facts.baseline else "none"),
        ("judged on", meta["judged_on"]),
        (
            "workloads",
            f"{meta['n_workloads']} {_SPLIT.get(meta['split'], meta['split'])}; {meta['n_training']} to learn from",
        ),
        ("governor", f"{facts.shipped} {facts.governors[0].digest[:12]}"),
    )
    facts_list = [tag("div", tag("dt", key), tag("dd", str(value))) for key, value in described]
    return tag(
        "header",
        tag("p", tag("strong", word), " ", sentence, class_=f"banner {meta['provenance']}"),
        tag("h1", tag("small", "Wattune report"), " ", meta["board"]),
        tag(
            "p",
            f"The GPU clock that costs least, as {label(facts.shipped)} picks it, and how far to believe it.",
            class_="lead",
        ),
        summary.tiles(facts),
        summary.verdicts(facts),
        tag("dl", *facts_list),
    )


def _filters(facts: Facts) -> Markup | None:
    """Boxes that narrow the tables and cards; of no use without a script, so it shows them."""
    boxes = []
    for key in _FILTERS:
        found = dict.fromkeys(
            d for work in facts.works if (d := heatmap.describe(work)[f"data_{key}"]) is not None
        )
        if len(found) > 1:
            options = [
                tag("option", "all", value=""),
                *(tag("option", value, value=value) for value in found),
            ]
            boxes.append(tag("label", f"{key} ", tag("select", *options, data_filter=key)))
    if not boxes and len(facts.works) < 2:
        return None
    search = tag("label", "name ", tag("input", type="search", data_filter="text", autocomplete="off"))
    return tag(
        "form",
        *boxes,
        search,
        tag("button", "reset", type="reset"),
        tag("output", f"{len(facts.works)} workloads"),
        id="filters",
        hidden=True,
        aria_label="Filter workloads",
    )


def _section(anchor: str, title: str, *content: str | None) -> Markup:
    return tag("section", tag("h2", title), *content, id=anchor)


def _sections(facts: Facts) -> list[tuple[str, str, list[str | None]]]:
    return [
        (
            "policies",
            "Policies",
            [
                tag(
                    "p",
                    "Means over workloads; lines and brackets are 95 % bootstrap intervals over workloads.",
                ),
                summary.policies(facts),
                summary.pairs(facts),
                summary.gate(facts),
            ],
        ),
        (
            "time",
            "Energy against time",
            [
                tag(
                    "p",
                    "Dots: one clock for all workloads, MHz. The line joins those that no other one beats in both time and energy"
                    " (Pareto front). Upper left is better.",
                ),
                workloads.energy_against_time(facts),
            ],
        ),
        (
            "map",
            "Workloads and policies",
            [
                tag(
                    "p",
                    "Stronger colour is more; striped cells lose. Point at a cell for its setting; a name leads to its curves.",
                ),
                _filters(facts),
                heatmap.heat_map(facts),
            ],
        ),
        (
            "curves",
            "Every workload",
            [
                tag(
                    "p",
                    "Above, who picks which clock; below, time, power and energy at every measured setting (axes do not start at 0);"
                    " last, energy against time with the settings chosen ringed.",
                ),
                workloads.legend(facts),
                workloads.cards(facts),
            ],
        ),
        ("tree", "The trees", [trees.trees(facts)]),
        ("unsure", "Where it is unsure", [trust.unsure(facts)]),
        ("validation", "The modelled board against measurements", [trust.validation(facts)]),
        ("certificates", "What the measurements rest on", [trust.certificates(facts)]),
        ("limits", "What this does not show", [trust.limits(facts)]),
    ]


def _footer(facts: Facts) -> Markup:
    clocks = ", ".join(setting_label(s) for s in facts.governors[0].settings)
    return tag(
        "footer",
        tag(
            "p", f"Clocks it may choose: {clocks} MHz. Held-out digest {facts.meta['held_out_digest'][:12]}."
        ),
        tag(
            "p",
            "Made by `dvc repro report` from data, models and the other reports. It bears no date: the same data give the same bytes.",
        ),
    )


def page(facts: Facts) -> str:
    """The whole page as HTML text."""
    script = _asset("page.js")
    css = _asset("page.css")
    count = max(len(facts.groups()), 3)
    style = (
        css
        + colours(dark=False)
        + f"@media (prefers-color-scheme:dark){{{colours(dark=True)}}}@media print{{{colours(dark=False)}}}"
        + summary.switch_rules(count)
    )
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    sections = _sections(facts)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag(
            "meta",
            http_equiv="Content-Security-Policy",
            content=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'",
        ),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"Wattune: {facts.meta['board']} ({facts.meta['provenance']})"),
        tag("style", Markup(style)),
    )
    body = tag(
        "body",
        tag("a", "Skip to the policies", href="#policies", class_="skip"),
        symbols(),
        _header(facts),
        tag(
            "nav", *(tag("a", title, href=f"#{anchor}") for anchor, title, _ in sections), aria_label="Parts"
        ),
        tag("main", *(_section(anchor, title, *content) for anchor, title, content in sections)),
        _footer(facts),
        tag("script", Markup(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"
