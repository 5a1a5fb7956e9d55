"""How far to believe it: doubts of the governors, the modelled board against measurements, certificates, limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from wattune.core.governor import Governor
from wattune.core.settings import setting_label
from wattune.report.axes import Scale, tick_label, ticks
from wattune.report.facts import Facts, Work
from wattune.report.marks import label
from wattune.report.markup import (
    Markup,
    coordinate,
    data,
    details,
    number,
    scrolling,
    significant,
    table,
    tag,
)

WORST = 5
"""Rows of the list of the worst choices."""

ABSENT = "absent"


def _links(facts: Facts, works: Sequence[Work]) -> Markup:
    places = {work.id: i for i, work in enumerate(facts.works)}
    links = [tag("a", work.id, href=f"#w{places[work.id]}") for work in works]
    parts: list[Markup] = []
    for i, link in enumerate(links):
        parts += [link] if i == 0 else [Markup(", "), link]
    return tag("span", *parts)


def _range(governor: Governor, name: str) -> str:
    feature = next(f for f in governor.features if f.name == name)
    if feature.kind == "category":
        return f"{name} (trained on {', '.join(feature.values)})"
    return f"{name} (trained on {feature.low:g} to {feature.high:g} {feature.unit})".replace(" )", ")")


def _doubts(facts: Facts, governor: Governor) -> Markup:
    declined: dict[str, list[Work]] = {}
    outside: dict[tuple[str, ...], list[Work]] = {}
    for work in facts.works:
        decision = governor.decide(work.features)
        if decision.abstained:
            declined.setdefault(decision.reason, []).append(work)
        if decision.out_of_range:
            outside.setdefault(decision.out_of_range, []).append(work)
    if governor.abstain_beyond is None:
        rule = "It never declines: it answers outside its ranges too, and says so."
    else:
        rule = (
            f"It declines, leaving MAXN untouched, beyond {governor.abstain_beyond:g} times a training range, and where a leaf's"
            " saving may be a loss."
        )
    items = [tag("li", rule)]
    n = sum(len(works) for works in declined.values())
    if governor.abstain_beyond is not None:
        items.append(
            tag("li", tag("b", f"Declined {n}"), f" of {len(facts.works)} workloads", "." if not n else ":")
        )
    items += [tag("li", f"{reason}: ", _links(facts, works)) for reason, works in declined.items()]
    items += [
        tag("li", f"Outside {' and '.join(_range(governor, name) for name in names)}: ", _links(facts, works))
        for names, works in outside.items()
    ]
    if not outside:
        items.append(tag("li", "Every judged workload lies inside the ranges it was trained on."))
    width = {}
    for i, leaf in enumerate(governor.tree.leaves):
        span = leaf.saving_interval_pct or leaf.saving_range_pct
        if span is not None:
            width[i] = (
                span[1] - span[0],
                leaf,
                "expected for new workloads" if leaf.saving_interval_pct else "in training",
            )
    if width:
        spread, leaf, what = max(width.values(), key=lambda entry: entry[0])
        clock = setting_label(leaf.setting) + ("" if isinstance(leaf.setting, str) else " MHz")
        items.append(
            tag(
                "li",
                f"Widest leaf: {clock}, its saving spreads over {number(spread)} points {what} ({leaf.n} training workloads).",
            )
        )
    fewest = min(governor.tree.leaves, key=lambda leaf: leaf.n)
    clock = setting_label(fewest.setting) + ("" if isinstance(fewest.setting, str) else " MHz")
    items.append(
        tag("li", f"Thinnest leaf: {clock}, from {fewest.n} training workload{'' if fewest.n == 1 else 's'}.")
    )
    return tag("section", tag("h3", label(governor.policy)), tag("ul", *items), data_doubts=governor.policy)


def unsure(facts: Facts) -> Markup:
    """Where the governors are out of their depth, and where the one that ships does worst."""
    shipped = facts.shipped
    ranked = sorted(facts.works, key=lambda work: (-work.outcomes[shipped].regret_pct, work.id))
    worst = [work for work in ranked if work.outcomes[shipped].regret_pct > 0][:WORST]
    rows = []
    for work in worst:
        outcome = work.outcomes[shipped]
        regret = data(
            outcome.regret_pct, 2, data_policy=shipped, data_workload=work.id, data_column="regret_pct"
        )
        rows.append(
            (
                _links(facts, [work]),
                setting_label(outcome.setting),
                setting_label(work.curve.oracle),
                number(outcome.saving_pct),
                regret,
            )
        )
    head = ("workload", "chosen", "best", "saving %", "regret %")
    made: list[Markup] = [_doubts(facts, governor) for governor in facts.governors]
    if rows:
        made += [
            tag("h3", f"Where {label(shipped)} loses most"),
            scrolling(table(head, rows), "The worst choices"),
        ]
    if facts.baseline:
        losing = [work for work in facts.works if (work.outcomes[shipped].saving_pct or 0.0) < 0.0]
        if losing:
            made.append(
                tag(
                    "p", tag("b", f"Costs more than MAXN on {len(losing)} workloads: "), _links(facts, losing)
                )
            )
        else:
            made.append(tag("p", f"None of the {len(facts.works)} workloads costs more energy than at MAXN."))
    return tag("div", *made)


# --- the modelled board ------------------------------------------------------------------------------------------------


def _curves(facts: Facts) -> dict[str, Mapping[str, Any]]:
    """Published curves of this board that the model was held against."""
    found: dict[str, Mapping[str, Any]] = {}
    for name, entry in (facts.validation or {}).get("sources", {}).items():
        if entry == ABSENT:
            continue
        curves = entry.get("curves") or {name: entry}
        found |= {curve: row for curve, row in curves.items() if row.get("board") == facts.meta["board"]}
    return found


_SHAPES = ("m-4 0a4 4 0 0 0 8 0a4 4 0 0 0-8 0Z", "m0-5l5 5-5 5-5-5Z", "m-4-4l8 8m0-8l-8 8")
"""Disc, diamond and cross around a point."""


def _errors(curves: Mapping[str, Mapping[str, Any]]) -> Markup:
    """Mean, greatest and left-out errors of every curve on one scale."""
    width, gutter, row, top = 460.0, 150.0, 24.0, 6.0
    keys = (("mean_err_pct", "mean"), ("max_err_pct", "max"), ("left_out_max_err_pct", "max, left out"))
    most = max((c[k] for c in curves.values() for k, _ in keys if c.get(k) is not None), default=1.0)
    x = Scale(0.0, 1.08 * most, gutter, width - 10)
    bottom = top + row * len(curves)
    parts = []
    for tick in ticks(0.0, x.high, 6):
        parts.append(tag("line", class_="grid", x1=x(tick), x2=x(tick), y1=top, y2=bottom))
        parts.append(
            tag("text", tick_label(tick), class_="tick", x=x(tick), y=bottom + 13, text_anchor="middle")
        )
    for i, (name, curve) in enumerate(curves.items()):
        y = top + row * (i + 0.5)
        parts.append(tag("text", name, class_="name", x=gutter - 8, y=y + 3.5, text_anchor="end"))
        known = [(x(curve[k]), place) for place, (k, _) in enumerate(keys) if curve.get(k) is not None]
        if known:
            parts.append(tag("line", class_="interval", x1=x(0), x2=max(a for a, _ in known), y1=y, y2=y))
        for a, place in known:
            parts.append(
                tag("path", class_=f"error e{place}", d=f"M{coordinate(a)} {coordinate(y)}{_SHAPES[place]}")
            )
    drawing = tag(
        *("svg", *parts),
        viewBox=f"0 0 {width:g} {bottom + 20:g}",
        role="img",
        aria_label="Errors of the modelled board on published curves; the table has the numbers",
    )
    caption = "Error of the model on published curves, %: ● mean, ◆ greatest, × greatest when that curve was left out"
    return tag("figure", tag("figcaption", caption), drawing)


def validation(facts: Facts) -> Markup:
    """The modelled board against what others measured."""
    if facts.meta["provenance"] != "simulated":
        return tag(
            "p",
            f"These data are {facts.meta['provenance']}: no modelled board stands between them and the results.",
        )
    if facts.validation is None:
        return tag(
            *("p", tag("b", "Not validated in this run. ")),
            "reports/validate/validation.json is missing; `dvc repro validate` makes it.",
        )
    curves = _curves(facts)
    board = facts.meta["board"]
    if not curves:
        return tag(
            "p",
            tag("b", "Nothing to hold it against: "),
            f"no measured curve of {board} was at hand when it was validated.",
        )
    header = (
        *("published curve", "used for", "points", "mean error %", "max %", "left out: max %"),
        *("optimum: model / measured", "regret %"),
    )
    rows = [
        (
            name,
            str(c["used_for"]),
            str(c["n"]),
            *(
                data(c[k], 2, data_curve=name, data_key=k)
                for k in ("mean_err_pct", "max_err_pct", "left_out_max_err_pct")
            ),
            " / ".join(
                "–" if c[k] is None else setting_label(c[k]) for k in ("predicted_mhz", "measured_mhz")
            ),
            data(c["regret_pct"], 2, data_curve=name, data_key="regret_pct"),
        )
        for name, c in curves.items()
    ]
    names = set(curves)
    bars = [b for b in facts.validation.get("bars", ()) if b["name"].split(":")[0] in names]
    failed = [b for b in bars if b["passed"] is False]
    verdict = (
        f"{len(failed)} of {len(bars)} demands on these curves fail: {'; '.join(b['name'] for b in failed)}."
        if failed
        else f"All {len(bars)} demands on these curves hold."
    )
    absent = sum(entry == ABSENT for entry in facts.validation.get("sources", {}).values())
    fitted = [name for name, c in curves.items() if c["used_for"] == "calibration"]
    said = [
        tag("li", tag("b", verdict)),
        tag(
            *(
                "li",
                f"The model was fitted to {len(fitted)} of these {len(curves)} curves: plain errors flatter it there, ",
            ),
            "left-out ones do not.",
        ),
    ]
    if absent:
        said.append(tag("li", f"{absent} further sources of others' measurements were not at hand."))
    parts = [tag("ul", *said), _errors(curves), scrolling(table(header, rows), "Errors per published curve")]
    figures = facts.validation.get("figures", {})
    if any(name.startswith("orin_") for name in names) and figures:
        singles = [
            (
                tag("span", str(f["note"])),
                " to ".join(f"{v:g}" for v in _list(f["published"])),
                " to ".join(significant(v) for v in _list(f["predicted"])) or "–",
                str(f["unit"]),
                str(f["used_for"]),
            )
            for f in figures.values()
        ]
        parts.append(
            details(
                "Single published figures",
                scrolling(
                    table(("what", "published", "model", "unit", "used for"), singles), "Single figures"
                ),
            )
        )
    return tag("div", *parts)


def _list(value: Any) -> list[float]:
    return [] if value is None else [float(v) for v in value] if isinstance(value, list) else [float(value)]


# --- certificates ------------------------------------------------------------------------------------------------------


def _span(values: Sequence[Any], digits: int) -> str:
    known = [float(v) for v in values if v is not None]
    if not known:
        return "unknown"
    low, high = number(min(known), digits), number(max(known), digits)
    unknown = len(values) - len(known)
    return (low if low == high else f"{low} to {high}") + (f" ({unknown} unknown)" if unknown else "")


def _ratios(certificates: Sequence[Mapping[str, Any]], part: str, name: str) -> list[float | None]:
    """An error bound of a rail set in percent of its energy."""
    sets = [c["sets"].get(name, {}) for c in certificates]
    return [
        100.0 * s[part] / s["gross_j"] if s.get(part) is not None and s.get("gross_j") else None for s in sets
    ]


def certificates(facts: Facts) -> Markup:
    """What the measurements rest on, from the least to the greatest."""
    evidence = facts.evidence
    count = f"{evidence.cells} cells, {evidence.repeats} values. " if evidence.cells else ""
    if not evidence.certificates:
        return tag("p", tag("b", "No certificates. "), count, evidence.why_none)
    found = evidence.certificates
    simulated = facts.meta["provenance"] == "simulated"
    emulated = (
        tag("b", " They are an emulated board's: the meter was real, the energy was not.")
        if simulated
        else None
    )
    rails = str(facts.meta["rails"]).split(",")[0]
    discarded = [reason for c in found for reason in c.get("run", {}).get("discarded", ())]
    pins = [c["pin"] for c in found if c.get("pin") is not None]
    gaps = [gap for c in found for gap in c["gaps"]]
    rows = [
        ("length of the window, s", _span([c["window"]["duration_s"] for c in found], 1)),
        ("samples per second", _span([c["window"]["achieved_hz"] for c in found], 1)),
        ("longest interval between samples, s", _span([c["window"]["longest_interval_s"] for c in found], 2)),
        (
            "coverage of the rails, %",
            _span([r["coverage_pct"] for c in found for r in c["rails"].values()], 2),
        ),
        (f"resolution of {rails}, % of its energy", _span(_ratios(found, "bound_j", rails), 2)),
        ("time constant of the sensor's filter, s", _span([c["filter"]["tau_s"] for c in found], 2)),
        (
            "the meter's own CPU time, % of a core",
            _span([100.0 * c["own_cost"]["cpu_share"] for c in found], 2),
        ),
        ("gaps in the samples", f"{len(gaps)}, {sum(not g['bridged'] for g in gaps)} of them not bridged"),
        ("windows taken again", f"{len(discarded)}"),
        ("pins seen under load", f"{sum(bool(pin.get('verified')) for pin in pins)} of {len(pins)}"),
        ("warnings", f"{sum(len(c['warnings']) for c in found)}"),
    ]
    reasons: dict[str, int] = {}
    for text in discarded:
        reasons[text] = reasons.get(text, 0) + 1
    for c in found:
        for text in c["warnings"]:
            reasons[text] = reasons.get(text, 0) + 1
    told = [
        tag("li", f"{n} x {text}")
        for text, n in sorted(reasons.items(), key=lambda item: (-item[1], item[0]))[:20]
    ]
    return tag(
        "div",
        tag("p", count, f"{len(found)} certificates; each window that counts is valid by its own.", emulated),
        scrolling(table(("", "least to greatest"), rows, class_="certificates"), "Certificates"),
        details("Reasons and warnings", tag("ul", *told)) if told else None,
    )


# --- limits ------------------------------------------------------------------------------------------------------------


def limits(facts: Facts) -> Markup:
    """What none of this shows."""
    meta = facts.meta
    said = []
    if meta["provenance"] == "simulated":
        said.append(
            "Savings on a real board. Every energy and time here is a model's answer; trees judged on it share its simplifications."
        )
    if meta["provenance"] == "recorded":
        said.append(
            "How the recordings were made. They are taken as given: clocks, filters and temperatures are not checked."
        )
    said += [
        f"Other boards and power modes. All of this is {meta['board']} in power mode {meta['power_mode']}.",
        f"Other energies. It counts {meta['rails']}; what the wall or the battery sees is more, and has another optimum.",
        "That the cheapest clock is the right one. Energy alone was minimised; the time it takes stands beside it.",
        "Inference, other precisions or other batch sizes than those listed with the workloads.",
    ]
    floor = meta.get("noise_floor_pct")
    if floor is None:
        said.append("How much of the regret is noise: no setting was measured more than once.")
    pair = facts.pair(facts.shipped, "ffg") or facts.pair("ffg", facts.shipped)
    if pair is not None and pair["verdict"] == "not distinguishable":
        said.append(
            "That a governor is needed: on these workloads it cannot be told apart from one fixed clock."
        )
    elif pair is not None:
        said.append(
            "That a governor is needed everywhere: see how few points part it from one fixed clock, and the flat zones."
        )
    if meta["split"] == "leave_one_out":
        said.append(
            "The governor that ships, strictly: each workload was judged by one trained on all the others, not by the shipped one."
        )
    if not facts.baseline:
        said.append(
            "Savings: without an unpinned run of every workload nobody can say what would have been spent."
        )
    return tag("ul", *(tag("li", text) for text in said))
