"""The first look: what the governor saves and costs, every policy with its interval, and who beats whom beyond chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattune.core.compare import BETTER, WORSE
from wattune.core.settings import setting_label
from wattune.report.axes import Scale, tick_label, ticks
from wattune.report.facts import Facts
from wattune.report.marks import label, mark, swatch
from wattune.report.markup import Markup, data, details, exact, number, scrolling, tag


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure of merit with its interval.

    Attributes:
        key: in ``metrics.json``; `interval` likewise.
        interval: see `key`.
        title: in words.
        digits: decimals shown.
    """

    key: str
    interval: str
    title: str
    digits: int


SAVING = Measure("mean_saving_pct", "mean_saving_ci95", "Saving against MAXN, %", 1)
SLOWDOWN = Measure("mean_slowdown_pct", "mean_slowdown_ci95", "Slowdown against MAXN, %", 1)
REGRET = Measure("mean_regret_pct", "mean_regret_ci95", "Regret: energy above the best setting, %", 2)
MEASURES = (SAVING, SLOWDOWN, REGRET)

WIDTH, GUTTER, NUMBERS, ROW = 340.0, 92.0, 112.0, 22.0
TOP = 14.0


def known_measures(facts: Facts) -> list[Measure]:
    """The measures that these data have: no saving without a baseline, no slowdown without times."""
    return [m for m in MEASURES if facts.metrics[facts.shipped]["all"].get(m.key) is not None]


def _with_interval(result: Mapping[str, Any], measure: Measure) -> Markup:
    """A mean and its interval, each figure with what it stands for."""
    interval = result.get(measure.interval)
    mean = data(result.get(measure.key), measure.digits, data_key=measure.key)
    if interval is None:
        return mean
    low, high = (
        data(bound, measure.digits, data_key=f"{measure.interval}.{i}") for i, bound in enumerate(interval)
    )
    return tag("span", mean, " ", tag("small", "[", low, ", ", high, "]"), class_="figure")


def tiles(facts: Facts) -> Markup:
    """The governor that ships in a few large numbers."""
    result = facts.result(facts.shipped, "all")
    boxes = []
    words = {
        SAVING.key: "energy saved against MAXN, mean",
        SLOWDOWN.key: "longer than at MAXN, mean",
        REGRET.key: "energy above the best setting, mean",
    }
    for measure in known_measures(facts):
        low, high = result[measure.interval]
        boxes.append(
            tag(
                "li",
                tag("strong", data(result[measure.key], measure.digits, data_key=measure.key), " %"),
                tag("span", words[measure.key]),
                tag(
                    "small",
                    *("95 % interval ", data(low, measure.digits, data_key=f"{measure.interval}.0"), " to "),
                    data(high, measure.digits, data_key=f"{measure.interval}.1"),
                ),
            )
        )
    decision = facts.decision
    held = sum(rule["passed"] is True for rule in decision["rules"])
    verdict = {"accepted": "yes", "rejected": "no"}.get(str(decision["verdict"]), "–")
    why = f"{held} of {len(decision['rules'])} rules hold" if decision["rules"] else "no rule was judged"
    boxes.append(
        tag(
            "li",
            tag("strong", verdict),
            tag("span", f"passes the gate: {decision['verdict']}"),
            tag("small", f"{why}, mode {decision['mode']}"),
        )
    )
    return tag("ul", *boxes, class_="tiles", data_policy=facts.shipped, data_group="all")


def verdicts(facts: Facts) -> Markup:
    """What to think of it, in sentences that follow from the figures."""
    shipped, result = facts.shipped, facts.result(facts.shipped, "all")
    said: list[Markup] = []
    if result.get("min_saving_pct") is not None:
        low, high = (data(result[k], 1, data_key=k) for k in ("min_saving_pct", "max_saving_pct"))
        said.append(
            tag(
                "li",
                *(
                    "Over the workloads the saving of ",
                    tag("b", label(shipped)),
                    " lies between ",
                    low,
                    " % and ",
                    high,
                    " %.",
                ),
                data_policy=shipped,
                data_group="all",
            )
        )
    else:
        said.append(
            tag(
                "li",
                "There is no MAXN row for every workload: no saving and no slowdown is known, only regret.",
            )
        )
    if "ffg" in facts.metrics and shipped != "ffg":
        clock = "" if facts.fixed_mhz is None else f" ({setting_label(facts.fixed_mhz)} MHz for everything)"
        said.append(tag("li", f"Against one fixed clock{clock}: ", _chance(facts, shipped, "ffg")))
    if "oracle" in facts.metrics and shipped != "oracle":
        floor = facts.meta.get("noise_floor_pct")
        noise = (
            Markup("How much a perfect policy would lose to noise is unknown.")
            if floor is None
            else tag(
                *("span", "A perfect policy that sees only noisy measurements would lose "),
                *(data(floor, 2, data_meta="noise_floor_pct"), " %."),
            )
        )
        regret = tag(
            "span", data(result["mean_regret_pct"], 2, data_key="mean_regret_pct"), " %", data_policy=shipped
        )
        worst = tag(
            "span", data(result["max_regret_pct"], 2, data_key="max_regret_pct"), " %", data_policy=shipped
        )
        said.append(
            tag(
                "li",
                "It loses ",
                regret,
                " to the best setting of each workload, at most ",
                worst,
                ". ",
                noise,
                data_group="all",
            )
        )
    said += [
        tag("li", f"The gate refuses it: {rule['rule']}: {str(rule['reason']).rstrip('.')}.")
        for rule in facts.decision["rules"]
        if rule["passed"] is False
    ]
    return tag("ul", *said, class_="verdicts")


def _chance(facts: Facts, policy: str, against: str) -> Markup:
    """The comparison of two policies in words, whichever of the two the metrics name first."""
    pair = facts.pair(policy, against)
    turned = pair is None
    pair = pair or facts.pair(against, policy)
    if pair is None:
        return tag("span", "not compared.")
    sign = -1.0 if turned else 1.0
    difference = sign * pair["regret_difference_points"]
    low, high = sorted(sign * bound for bound in pair["ci95"])
    verdict = pair["verdict"]
    if turned:
        verdict = {BETTER: WORSE, WORSE: BETTER}.get(verdict, verdict)
    return tag(
        "span",
        *(
            tag("b", verdict),
            f" ({number(difference, 2)} points of regret, 95 % interval {number(low, 2)} to {number(high, 2)}).",
        ),
    )


def _figure(facts: Facts, measure: Measure, group: str) -> Markup:
    """One measure of all policies: a mark at the mean, a line over the interval."""
    results = {policy: facts.result(policy, group) for policy in facts.policies}
    bounds = {
        policy: (result[measure.interval][0], result[measure.key], result[measure.interval][1])
        for policy, result in results.items()
        if result.get(measure.key) is not None and result.get(measure.interval) is not None
    }
    shown = {p: b for p, b in bounds.items() if measure is not REGRET or p != "maxn"} or bounds
    low = min(0.0, *(b[0] for b in shown.values()))
    high = max(0.1, *(b[2] for b in shown.values()))
    scale = Scale(low, high * 1.04, GUTTER, WIDTH - NUMBERS)
    bottom = TOP + ROW * len(bounds)
    parts: list[Markup] = []
    for value in ticks(scale.low, scale.high, 5):
        x = scale(value)
        parts.append(tag("line", class_="zero" if value == 0 else "grid", x1=x, x2=x, y1=TOP, y2=bottom))
        parts.append(tag("text", tick_label(value), class_="tick", x=x, y=bottom + 12, text_anchor="middle"))
    floor = facts.meta.get("noise_floor_pct")
    if measure is REGRET and floor is not None and floor < scale.high and group == "all":
        x = scale(floor)
        parts.append(tag("line", class_="floor", x1=x, x2=x, y1=TOP - 4, y2=bottom))
        parts.append(tag("text", "noise floor", class_="tick", x=x, y=TOP - 6, text_anchor="middle"))
    for i, (policy, (least, mean, most)) in enumerate(bounds.items()):
        y = TOP + ROW * (i + 0.5)
        beyond = mean > scale.high
        shipped = policy == facts.shipped
        parts.append(
            tag(
                "text",
                label(policy),
                class_="name shipped" if shipped else "name",
                x=GUTTER - 10,
                y=y + 3.5,
                text_anchor="end",
            )
        )
        if beyond:
            x = scale.end - 8
            parts.append(tag("path", class_="beyond", d=f"M{x:g} {y - 4:g}l8 4l-8 4z"))
        else:
            parts.append(tag("line", class_="interval", x1=scale(least), x2=scale.clip(most), y1=y, y2=y))
            parts.append(mark(policy, scale(mean), y))
        digits = measure.digits
        parts.append(
            tag(
                "text",
                tag(
                    "tspan", number(mean, digits), class_="mean", data_key=measure.key, data_value=exact(mean)
                ),
                f" [{number(least, digits)}, {number(most, digits)}]",
                class_="value",
                x=WIDTH,
                y=y + 3.5,
                text_anchor="end",
                data_policy=policy,
            )
        )
    height = bottom + 18
    drawing = tag(
        *("svg", *parts),
        viewBox=f"0 0 {WIDTH:g} {height:g}",
        role="img",
        aria_label=f"{measure.title}: means and 95 % intervals of {len(bounds)} policies; the table below has the numbers",
    )
    return tag("figure", tag("figcaption", measure.title), drawing)


def _table(facts: Facts, group: str) -> Markup:
    has_saving, has_slowdown = (m in known_measures(facts) for m in (SAVING, SLOWDOWN))
    header = [
        "policy",
        *(("saving %", "worst", "best") if has_saving else ()),
        *(("slowdown %",) if has_slowdown else ()),
        *("regret %", "p95", "max", "n"),
    ]
    rows = []
    for policy in facts.policies:
        result = facts.result(policy, group)
        cells = []
        if has_saving:
            cells.append(_with_interval(result, SAVING))
            cells += [data(result[k], 1, data_key=k) for k in ("min_saving_pct", "max_saving_pct")]
        if has_slowdown:
            cells.append(_with_interval(result, SLOWDOWN))
        cells.append(_with_interval(result, REGRET))
        cells += [data(result[k], 2, data_key=k) for k in ("p95_regret_pct", "max_regret_pct")]
        cells.append(data(result["n"], 0, data_key="n"))
        name = tag("span", swatch(policy), label(policy))
        rows.append(
            tag(
                "tr",
                tag("th", name, scope="row"),
                *(tag("td", cell) for cell in cells),
                data_policy=policy,
                class_="shipped" if policy == facts.shipped else None,
            )
        )
    head = tag("tr", *(tag("th", text, scope="col") for text in header))
    made = tag("table", tag("thead", head), tag("tbody", *rows), class_="results")
    return scrolling(made, f"Policies on {group}")


def policies(facts: Facts) -> Markup:
    """Every policy on every group of workloads; the groups are switched without a script."""
    groups = facts.groups()
    switches, panes = [], []
    for i, group in enumerate(groups):
        n = facts.result(facts.shipped, group)["n"]
        switches.append(tag("input", type="radio", name="group", id=f"group{i}", checked=i == 0))
        switches.append(tag("label", f"{group} ", tag("small", str(n)), for_=f"group{i}"))
        figures = tag("div", *(_figure(facts, m, group) for m in known_measures(facts)), class_="figures")
        panes.append(tag("div", figures, _table(facts, group), class_="pane", data_group=group))
    return tag("div", *switches, tag("div", *panes, class_="panes"), class_="switch")


def switch_rules(count: int) -> str:
    """CSS: the pane of the switch that is on."""
    return "".join(
        f".switch>input:nth-of-type({i}):checked~.panes>.pane:nth-child({i}){{display:block}}"
        for i in range(1, count + 1)
    )


def pairs(facts: Facts) -> Markup | None:
    """Who beats whom beyond chance, as a triangle; None where the metrics compare nobody."""
    names = [
        p
        for p in facts.policies
        if any(p in (q["policy"], q["against"]) for q in facts.meta.get("pairs", ()))
    ]
    if len(names) < 2:
        return None
    header = [tag("th", "", scope="col"), *(tag("th", f"against {name}", scope="col") for name in names[:-1])]
    rows = []
    for policy in names[1:]:
        cells = []
        for against in names[:-1]:
            pair = facts.pair(policy, against)
            cells.append(tag("td") if pair is None else _pair_cell(pair))
        rows.append(tag("tr", tag("th", policy, scope="row"), *cells))
    made = tag("table", tag("thead", tag("tr", *header)), tag("tbody", *rows), class_="pairs")
    return details(
        "Who beats whom beyond chance",
        tag(
            "p",
            "Each row against each column: difference of mean regret in points with its 95 % interval (paired bootstrap over "
            "workloads); below 0 the row loses less energy.",
        ),
        scrolling(made, "Pairs of policies"),
    )


def _pair_cell(pair: Mapping[str, Any]) -> Markup:
    sign = {BETTER: "▼ ", WORSE: "▲ "}.get(pair["verdict"], "")
    low, high = pair["ci95"]
    return tag(
        "td",
        tag("b", f"{sign}{pair['verdict']}"),
        tag("br"),
        data(pair["regret_difference_points"], 2),
        tag("small", f" [{number(low, 2)}, {number(high, 2)}]"),
    )


def gate(facts: Facts) -> Markup:
    """The gate's rules."""
    words = {True: "yes", False: "NO", None: "not judged"}
    rules: Sequence[Mapping[str, Any]] = facts.decision["rules"]
    head = tag("tr", *(tag("th", t, scope="col") for t in ("rule", "found", "needed", "holds")))
    rows = [
        tag(
            "tr",
            tag("th", str(rule["rule"]), scope="row"),
            tag("td", data(rule["value"], 2)),
            tag("td", f"{rule['comparison']} {rule['threshold']:g}"),
            tag("td", words[rule["passed"]]),
        )
        for rule in rules
    ]
    if not rows:
        return tag("p", f"The gate is {facts.decision['mode']}: nothing was judged, and nothing is promoted.")
    promoted = "It may become champion." if facts.decision["promote"] else "It is not promoted."
    return details(
        f"The gate: {facts.decision['verdict']}",
        tag("p", f"Mode {facts.decision['mode']}. {promoted}"),
        scrolling(tag("table", tag("thead", head), tag("tbody", *rows)), "Rules of the gate"),
    )
