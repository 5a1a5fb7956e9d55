"""Every workload's curves with everybody's choices, and energy against time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from wattune.core.settings import MAXN, Setting, setting_label
from wattune.report.axes import Scale, around, tick_label, ticks
from wattune.report.facts import Facts, Work, cost, pareto
from wattune.report.heatmap import MOST, describe
from wattune.report.marks import label, mark, swatch
from wattune.report.markup import Markup, coordinate, details, exact, number, significant, tag

WIDTH, LEFT, RIGHT = 340.0, 74.0, 8.0
SLOT = 30.0
"""Room at the right for ``maxn``, which is no clock."""
LANE, PANEL, GAP = 12.0, 60.0, 13.0
PARETO_HEIGHT, PARETO_LEFT, PARETO_BOTTOM = 150.0, 46.0, 26.0


def _mhz(setting: Setting) -> str:
    return setting_label(setting) + ("" if isinstance(setting, str) else " MHz")


class _Places:
    """Where the settings of a workload lie on the axis of clocks."""

    def __init__(self, work: Work) -> None:
        clocks = work.curve.clocks
        end = WIDTH - RIGHT - (SLOT if MAXN in work.curve.points else 6.0)
        self.scale = Scale(clocks[0], clocks[-1], LEFT + 6.0, end)
        self.maxn_x = WIDTH - RIGHT - 8.0

    def __call__(self, setting: Setting) -> float:
        return self.maxn_x if isinstance(setting, str) else self.scale(setting)


def _flat_spans(work: Work, x: _Places) -> list[tuple[float, float]]:
    """Where the energy is within 1 % of the optimum, from and to; halfway to the neighbours outside at most.

    Between two measured clocks the edge lies where a straight line crosses.
    """
    curve, clocks = work.curve, work.curve.clocks
    flat = set(work.flat)
    limit = 1.01 * curve.energy_j(curve.oracle)
    spans: list[tuple[float, float]] = []
    for i, clock in enumerate(clocks):
        if clock not in flat:
            continue
        ends = []
        for neighbour in (clocks[i - 1] if i else None, clocks[i + 1] if i + 1 < len(clocks) else None):
            if neighbour is None or neighbour in flat:
                ends.append(x(clock) if neighbour is None else x(neighbour))
                continue
            here, there = curve.energy_j(clock), curve.energy_j(neighbour)
            ends.append(x(clock) + (x(neighbour) - x(clock)) * (limit - here) / (there - here))
        if spans and spans[-1][1] >= ends[0]:
            spans[-1] = (spans[-1][0], ends[1])
        else:
            spans.append((ends[0], ends[1]))
    if MAXN in flat:
        spans.append((x(MAXN) - 6.0, x(MAXN) + 6.0))
    return spans


def _panel(
    title: str, value: Callable[[Setting], float | None], work: Work, x: _Places, top: float
) -> list[Markup]:
    """One curve: a dot for every measured setting, a dashed line at the level of MAXN."""
    known = {s: v for s in work.curve.settings if (v := value(s)) is not None}
    parts = [tag("text", title, class_="axis", x=0, y=top + PANEL / 2 + 3)]
    if not known:
        return [*parts, tag("text", "unknown", class_="tick", x=LEFT + 10, y=top + PANEL / 2 + 3)]
    low, high = around(list(known.values()))
    y = Scale(low, high, top + PANEL, top)
    for tick in ticks(low, high, 3):
        parts.append(tag("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick)))
        parts.append(
            tag("text", tick_label(tick), class_="tick", x=LEFT - 4, y=y(tick) + 3.5, text_anchor="end")
        )
    if MAXN in known:
        level = y(known[MAXN])
        parts.append(tag("line", class_="maxn", x1=LEFT, x2=WIDTH - RIGHT, y1=level, y2=level))
    points = [(x(s), y(v)) for s, v in known.items() if not isinstance(s, str)]
    if points:
        parts.append(tag("path", class_="curve", d=_line(points)))
    parts.append(tag("path", class_="dots", d=_dots([(x(s), y(v)) for s, v in known.items()])))
    return parts


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{coordinate(x)} {coordinate(y)}" for x, y in points)


def _dots(points: Sequence[tuple[float, float]]) -> str:
    return "".join(f"M{coordinate(x)} {coordinate(y)}h0" for x, y in points)


def _curves(facts: Facts, work: Work) -> Markup:
    """Choices in lanes, one policy each, above time, power and energy on one axis of clocks."""
    x = _Places(work)
    policies = [p for p in work.outcomes if p != "maxn"]
    lanes_end = 4.0 + LANE * len(policies)
    panels: list[tuple[str, Callable[[Setting], float | None]]] = [
        ("time, s", lambda s: work.curve.points[s].time_s),
        ("power, W", lambda s: work.power_w.get(s)),
        ("energy, J", lambda s: work.curve.points[s].energy_j),
    ]
    bottom = lanes_end + GAP + len(panels) * (PANEL + GAP) - GAP
    parts = [
        tag("rect", class_="flat", x=a, y=0, width=max(b - a, 2.0), height=bottom)
        for a, b in _flat_spans(work, x)
    ]
    chosen = dict.fromkeys(o.setting for p, o in work.outcomes.items() if p != "maxn")
    best = work.curve.oracle
    parts += [
        tag("line", class_="best" if s == best else "chosen", x1=x(s), x2=x(s), y1=4, y2=bottom)
        for s in chosen
    ]
    for i, policy in enumerate(policies):
        y = 4.0 + LANE * (i + 0.5)
        name = "name shipped" if policy == facts.shipped else "name"
        parts.append(tag("text", policy, class_=name, x=LEFT - 4, y=y + 3.5, text_anchor="end"))
        parts.append(tag("line", class_="lane", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y))
        parts.append(mark(policy, x(work.outcomes[policy].setting), y))
    top = lanes_end + GAP
    for title, value in panels:
        parts += _panel(title, value, work, x, top)
        top += PANEL + GAP
    clocks = work.curve.clocks
    for tick in ticks(clocks[0], clocks[-1], 4):
        parts.append(tag("text", f"{tick:g}", class_="tick", x=x(tick), y=bottom + 13, text_anchor="middle"))
    if MAXN in work.curve.points:
        parts.append(tag("text", "maxn", class_="tick", x=x(MAXN) + 8, y=bottom + 13, text_anchor="end"))
    parts.append(tag("text", "MHz", class_="axis", x=0, y=bottom + 13))
    choices = "; ".join(f"{p} {_mhz(o.setting)}" for p, o in work.outcomes.items() if p != "maxn")
    return tag(
        *("svg", *parts),
        viewBox=f"0 0 {WIDTH:g} {coordinate(bottom + 20)}",
        class_="curves",
        role="img",
        aria_label=f"{work.id}: time, power and energy against the GPU clock. Choices: {choices}.",
        data_xs=",".join(coordinate(x(s)) for s in work.curve.settings),
        data_bottom=bottom,
    )


def _pareto(work: Work) -> Markup | None:
    """Energy against time of every setting; the settings that none beats in both are joined."""
    points = {s: (p.time_s, p.energy_j) for s, p in work.curve.points.items() if p.time_s is not None}
    if len(points) < 2:
        return None
    settings = list(points)
    values = [(t, e) for t, e in points.values() if t is not None]
    front = pareto(values)
    x = Scale(*around([t for t, _ in values]), PARETO_LEFT, WIDTH - RIGHT)
    y = Scale(*around([e for _, e in values]), PARETO_HEIGHT - PARETO_BOTTOM, 6.0)
    places = [(x(t), y(e)) for t, e in values]
    parts: list[Markup] = []
    for tick in ticks(y.low, y.high, 3):
        parts.append(tag("line", class_="grid", x1=PARETO_LEFT, x2=WIDTH - RIGHT, y1=y(tick), y2=y(tick)))
        parts.append(
            tag(
                "text", tick_label(tick), class_="tick", x=PARETO_LEFT - 4, y=y(tick) + 3.5, text_anchor="end"
            )
        )
    parts += [
        tag("text", tick_label(tick), class_="tick", x=x(tick), y=PARETO_HEIGHT - 13, text_anchor="middle")
        for tick in ticks(x.low, x.high, 4)
    ]
    parts.append(tag("path", class_="front", d=_line([places[i] for i in front])))
    parts.append(tag("path", class_="dots", d=_dots(places)))
    chosen = {o.setting for p, o in work.outcomes.items() if p != "maxn"}
    parts += [
        tag("circle", class_="chosen", cx=a, cy=b, r=5)
        for s, (a, b) in zip(settings, places, strict=True)
        if s in chosen
    ]
    named = [i for i, s in enumerate(settings) if i in front or s in chosen or s == MAXN]
    named.sort(key=lambda i: (settings[i] not in chosen, settings[i] != MAXN, i))
    wanted = [(*places[i], setting_label(settings[i]), "spot") for i in named]
    parts += _labels(wanted, places, (PARETO_LEFT, WIDTH))
    parts.append(tag("text", "J", class_="axis", x=0, y=12))
    parts.append(tag("text", "s", class_="axis", x=WIDTH - RIGHT, y=PARETO_HEIGHT - 1, text_anchor="end"))
    names = ", ".join(setting_label(settings[i]) for i in front)
    return tag(
        *("svg", *parts),
        viewBox=f"0 0 {WIDTH:g} {PARETO_HEIGHT:g}",
        class_="pareto",
        role="img",
        aria_label=f"{work.id}: energy against time. Pareto front, fastest first: {names}.",
    )


def _values(work: Work) -> Markup:
    """The numbers behind the drawing; the script reads them from here."""
    chosen: dict[Setting, list[str]] = {}
    for policy, outcome in work.outcomes.items():
        chosen.setdefault(outcome.setting, []).append(policy)
    head = tag(
        "tr",
        *(
            tag("th", t, scope="col")
            for t in ("MHz", "time s", "power W", "energy J", "above best %", "chosen by")
        ),
    )
    rows = [
        tag(
            "tr",
            tag("th", setting_label(s), scope="row"),
            *(tag("td", significant(v)) for v in (p.time_s, work.power_w.get(s), p.energy_j)),
            tag("td", number(work.curve.regret_pct(s), 2)),
            tag("td", ", ".join(chosen.get(s, ()))),
        )
        for s, p in ((s, work.curve.points[s]) for s in work.curve.settings)
    ]
    return details("values", tag("table", tag("thead", head), tag("tbody", *rows), class_="values"))


def _about(work: Work) -> str:
    said = []
    if work.size:
        said.append(work.size)
    tokens, batch = work.features.get("seq_len"), work.features.get("batch_size")
    if tokens is not None:
        said.append(f"{number(float(tokens))} tokens")
    if batch is not None:
        said.append(f"batch {float(batch):g}")
    if work.notes.get("precision"):
        said.append(work.notes["precision"])
    return ", ".join(said)


def _card(facts: Facts, work: Work, index: int) -> Markup:
    flat = ", ".join(setting_label(s) for s in work.flat)
    outcome = work.outcomes[facts.shipped]
    return tag(
        "article",
        tag("h4", work.id),
        tag("p", _about(work), class_="about"),
        _curves(facts, work),
        tag("p", f"best {_mhz(work.curve.oracle)}; within 1 %: {flat}", class_="readout", aria_live="polite"),
        _pareto(work) or tag("p", "Energy against time: unknown, the source gives no times.", class_="about"),
        _values(work),
        class_="card work",
        id=f"w{index}",
        data_workload=work.id,
        data_choice=setting_label(outcome.setting),
        **describe(work),
    )


def legend(facts: Facts) -> Markup:
    """What the drawings of the cards mean."""
    items = [tag("li", swatch(p), label(p)) for p in facts.policies if p != "maxn"]
    items += [
        tag(
            "li", tag("span", class_="key flat"), "within 1 % of the optimum (between clocks: straight lines)"
        ),
        *([tag("li", tag("span", class_="key dashed"), "level of MAXN")] if facts.baseline else []),
        tag("li", tag("span", class_="key front"), "Pareto front: no setting is both faster and cheaper"),
    ]
    return tag("ul", *items, class_="legend")


def cards(facts: Facts) -> Markup:
    """One card per workload, unfolded model by model."""
    models: dict[str, list[tuple[int, Work]]] = {}
    for i, work in enumerate(facts.works[:MOST]):
        models.setdefault(work.model or "workloads", []).append((i, work))
    groups = [
        details(
            f"{model} ({len(members)})",
            tag("div", *(_card(facts, work, i) for i, work in members), class_="cards"),
            open_=order == 0,
            class_="group",
        )
        for order, (model, members) in enumerate(models.items())
    ]
    return tag("div", *groups)


# --- energy against time over all workloads ---------------------------------------------------------------------------

OVER_WIDTH, OVER_HEIGHT = 400.0, 310.0
_MARGINS = (50.0, 10.0, 18.0, 40.0)
"""Left, right, top, bottom."""


def _policy_points(facts: Facts) -> dict[str, tuple[float, float]]:
    """Mean time and energy of every policy, on the axes of :meth:`Facts.clock_means`."""
    if facts.baseline:
        results = {p: facts.result(p, "all") for p in facts.policies}
        return {
            p: (r["mean_slowdown_pct"], r["mean_saving_pct"])
            for p, r in results.items()
            if r.get("mean_slowdown_pct") is not None
        }
    points = {}
    for policy in facts.policies:
        costs = [cost(w, w.outcomes[policy].setting, baseline=False) for w in facts.works]
        points[policy] = (sum(c[0] for c in costs) / len(costs), sum(c[1] for c in costs) / len(costs))
    return points


def _overview(
    facts: Facts,
    clocks: Sequence[tuple[Setting, float, float]],
    points: Mapping[str, tuple[float, float]],
    *,
    close: bool,
) -> Markup:
    """Mean energy against mean time; `close` looks at the policies alone."""
    left, right, top, bottom = _MARGINS
    seen = (
        [v for p, v in points.items() if p != "maxn"]
        if close
        else [*points.values(), *((a, b) for _, a, b in clocks)]
    )
    (x_low, x_high), (y_low, y_high) = around([p[0] for p in seen], 0.16), around([p[1] for p in seen], 0.16)
    x = Scale(x_low, x_high, left, OVER_WIDTH - right)
    better_up = (OVER_HEIGHT - bottom, top) if facts.baseline else (top, OVER_HEIGHT - bottom)
    y = Scale(y_low, y_high, *better_up)
    inside = [c for c in clocks if x_low <= c[1] <= x_high and y_low <= c[2] <= y_high]
    parts: list[Markup] = []
    for tick in ticks(y.low, y.high, 6):
        parts.append(tag("line", class_="grid", x1=left, x2=OVER_WIDTH - right, y1=y(tick), y2=y(tick)))
        parts.append(
            tag("text", tick_label(tick), class_="tick", x=left - 6, y=y(tick) + 3.5, text_anchor="end")
        )
    for tick in ticks(x.low, x.high, 7):
        parts.append(tag("line", class_="grid", x1=x(tick), x2=x(tick), y1=top, y2=OVER_HEIGHT - bottom))
        parts.append(
            tag(
                "text",
                tick_label(tick),
                class_="tick",
                x=x(tick),
                y=OVER_HEIGHT - bottom + 14,
                text_anchor="middle",
            )
        )
    sign = -1.0 if facts.baseline else 1.0
    if not close:
        front = pareto([(a, sign * b) for _, a, b in clocks])
        parts.append(
            tag("path", class_="front", d=_line([(x(clocks[i][1]), y(clocks[i][2])) for i in front]))
        )
    parts += [
        tag(
            "circle",
            class_="clock",
            cx=x(a),
            cy=y(b),
            r=3,
            data_setting=setting_label(s),
            data_value=exact(round(b, 6)),
        )
        for s, a, b in inside
    ]
    named = [p for p in points if p != "maxn"] if close else []
    labels = [(x(points[p][0]), y(points[p][1]), label(p), "name") for p in named]
    labels += [(x(a), y(b), setting_label(s), "spot") for s, a, b in inside]
    parts += _labels(labels, [(a, b) for a, b, _, _ in labels], (left, OVER_WIDTH))
    for policy, (a, b) in points.items():
        if close and policy == "maxn":
            continue
        parts.append(mark(policy, x(a), y(b)))
    what = (
        ("slowdown against MAXN, mean %", "saving against MAXN, mean %")
        if facts.baseline
        else ("time above the fastest setting, mean %", "energy above the best setting, mean % (less is up)")
    )
    middle = (left + OVER_WIDTH - right) / 2
    parts.append(tag("text", what[0], class_="axis", x=middle, y=OVER_HEIGHT - 6, text_anchor="middle"))
    parts.append(
        tag(
            *("text", what[1]),
            class_="axis",
            transform=f"translate(12 {coordinate((top + OVER_HEIGHT - bottom) / 2)}) rotate(-90)",
            text_anchor="middle",
        )
    )
    title = "The policies, close up" if close else "One clock for everything, and the policies"
    drawing = tag(
        *("svg", *parts),
        viewBox=f"0 0 {OVER_WIDTH:g} {OVER_HEIGHT:g}",
        role="img",
        aria_label=f"{title}: {what[1]} against {what[0]}",
    )
    return tag("figure", tag("figcaption", title), drawing)


def _labels(
    wanted: Sequence[tuple[float, float, str, str]],
    points: Sequence[tuple[float, float]],
    span: tuple[float, float],
) -> list[Markup]:
    """Labels beside their points, where there is room; one that finds none is left out.

    Args:
        wanted: place, text and class of each, the most important first.
        points: what labels must not cover.
        span: how far they may reach to the left and to the right.
    """
    taken: list[tuple[float, float, float, float]] = []
    parts = []
    for x, y, text, style in wanted:
        width = 5.9 * len(text)
        sides, middle = (9.0, -9.0 - width), -width / 2
        spots = (
            *((s, 4.0) for s in sides),
            (middle, -9.0),
            (middle, 17.0),
            *((s, h) for s in sides for h in (-8.0, 16.0)),
        )
        for dx, dy in spots:
            box = (x + dx, y + dy - 9, x + dx + width, y + dy + 2)
            clear = all(box[2] < b[0] or box[0] > b[2] or box[3] < b[1] or box[1] > b[3] for b in taken)
            free = not any(
                box[0] - 4 < a < box[2] + 4 and box[1] - 4 < b < box[3] + 4
                for a, b in points
                if (a, b) != (x, y)
            )
            if clear and free and box[0] > span[0] and box[2] < span[1] and box[1] > 0:
                taken.append(box)
                parts.append(tag("text", text, class_=style, x=x + dx, y=y + dy))
                break
    return parts


def energy_against_time(facts: Facts) -> Markup:
    """The overview: one setting for all workloads against the policies."""
    clocks = facts.clock_means()
    if not clocks:
        return tag("p", "Not every setting has a time, so energy cannot be held against time.")
    points = _policy_points(facts)
    return tag(
        "div",
        tag(
            "div",
            *(_overview(facts, clocks, points, close=close) for close in (False, True)),
            class_="figures two",
        ),
        tag("ul", *(tag("li", swatch(p), label(p)) for p in points), class_="legend"),
    )
