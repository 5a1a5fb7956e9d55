"""Figures of the evaluation: for people, one look each; the same data give the same bytes."""

from __future__ import annotations

import io
import logging
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.settings import MAXN, Setting, setting_label, sort_settings
from wattune.io import clear_os_errors, write_bytes
from wattune.learning.judge import Judgement, Outcome
from wattune.learning.table import WorkloadRows

log = logging.getLogger(__name__)

DPI = 100
MIN_WIDTH = 6.4
ROWS_PER_PAGE = 9
MAX_PAGES = 18
MAX_CELLS = 60
INK, GREY, CURVE = "#222222", "#777777", "#4d4d4d"


@dataclass(frozen=True, slots=True)
class Style:
    """How a policy's choice is drawn: colours of Okabe and Ito, and a shape of its own, so that colour is not needed.

    Attributes:
        filled: filled marker; hollow ones are drawn around it, so that equal choices stay visible.
    """

    label: str
    color: str
    marker: str
    size: float
    filled: bool


STYLES: Mapping[str, Style] = {
    "maxn": Style("MAXN", GREY, "_", 8, True),
    "ffg": Style("FFG (one clock)", "#E69F00", "s", 10, False),
    "published": Style("published rules", "#009E73", "^", 13, False),
    "published-util": Style("published + util", "#56B4E9", "v", 13, False),
    "mlg": Style("MLG (tree)", "#D55E00", "o", 5, True),
    "mlg-regret": Style("MLG-regret", "#CC79A7", "D", 5, True),
    "curve": Style("curve", "#F0E442", "P", 6, True),
    "probe": Style("probe", "#000000", "X", 6, True),
    "oracle": Style("oracle", "#0072B2", "*", 17, False),
}
_PANELS = (("time", "s"), ("power", "W"), ("energy", "J"))


@contextmanager
def style() -> Iterator[None]:
    """The look of all figures."""
    import matplotlib as mpl

    settings = {
        "font.family": "DejaVu Sans",
        "font.size": 8.5,
        "axes.titlesize": 9,
        "axes.labelsize": 8.5,
        "xtick.labelsize": 7.5,
        "ytick.labelsize": 7.5,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": GREY,
        "axes.labelcolor": INK,
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "figure.facecolor": "white",
    }
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield


def new_figure(width: float, height: float) -> Any:
    """A figure of at least `MIN_WIDTH` inches."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(width, MIN_WIDTH), height), dpi=DPI)
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path, judgement: Judgement) -> None:
    """Mark the figure with where its data come from and write it."""
    table = judgement.table
    footer = (
        f"{table.board} · {table.provenance} · power mode {table.power_mode} · rails {table.rails} · judged on"
        f" {table.judged_on} · {judgement.split.replace('_', ' ')}"
    )
    save_marked(figure, path, board=table.board, provenance=table.provenance, footer=footer)


def save_marked(figure: Any, path: Path, *, board: str, provenance: str, footer: str) -> None:
    """Write a figure with its source across it and a footer below."""
    width, height = figure.get_size_inches()
    source = f"{board} · {provenance}"
    figure.text(
        *(0.5, 0.5, source.upper() if provenance == "simulated" else source),
        ha="center",
        va="center",
        rotation=20,
        fontsize=min(30.0, 72.0 * width / (0.75 * len(source))),
        color=GREY,
        alpha=0.13,
        zorder=10,
    )
    figure.text(
        *(0.08 / width, 0.06 / height),
        footer,
        fontsize=min(7.0, 72.0 * width / (0.57 * len(footer))),
        color=GREY,
        va="bottom",
    )
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
    write_bytes(path, buffer.getvalue())


def set_margins(
    figure: Any, *, left: float, right: float, top: float, bottom: float, **spaces: float
) -> None:
    """Margins in inches."""
    width, height = figure.get_size_inches()
    figure.subplots_adjust(left / width, bottom / height, 1 - right / width, 1 - top / height, **spaces)


# --- curves per model ------------------------------------------------------------------------------------------------


def _value(row: WorkloadRows, panel: str, setting: Setting) -> float | None:
    if panel == "power":
        return row.judged_power_w(setting)
    point = row.judged.points[setting]
    return point.time_s if panel == "time" else point.energy_j


def _curve_panel(
    axes: Any, row: WorkloadRows, panel: str, choices: Mapping[str, Setting], divisor: float
) -> None:
    clocks = row.judged.clocks

    def at(setting: Setting) -> float | None:
        value = _value(row, panel, setting)
        return None if value is None else value / divisor

    pairs = [(mhz, at(mhz)) for mhz in clocks]
    xs, ys = [mhz for mhz, y in pairs if y is not None], [y for _, y in pairs if y is not None]
    if not ys:
        axes.text(0.5, 0.5, "unknown", transform=axes.transAxes, ha="center", color=GREY)
        axes.set_yticks([])
        return
    level = at(MAXN) if MAXN in row.judged.points else None
    if level is not None:
        axes.axhline(level, color=GREY, linestyle="--", linewidth=1.1, zorder=1)
    axes.plot(xs, ys, color=CURVE, linewidth=1.3, marker=".", markersize=4, zorder=2)
    edge = clocks[-1] + 0.07 * (clocks[-1] - clocks[0])
    for name, setting in choices.items():
        y = at(setting)
        if name == "maxn" or y is None:
            continue
        style = STYLES[name]
        axes.plot(
            *(edge if isinstance(setting, str) else setting, y),
            linestyle="none",
            marker=style.marker,
            markersize=style.size,
            markerfacecolor=style.color if style.filled else "none",
            markeredgecolor=style.color,
            markeredgewidth=1.4,
            zorder=4 if style.filled else 3,
            clip_on=False,
        )
    low, high = min([*ys, *([level] if level else [])]), max([*ys, *([level] if level else [])])
    room = 0.12 * (high - low) or 0.1 * abs(high)
    axes.set_ylim(low - room, high + room)
    axes.set_xlim(clocks[0] - 0.06 * (clocks[-1] - clocks[0]), edge + 0.05 * (clocks[-1] - clocks[0]))


def _scaled(largest: float, unit: str) -> tuple[float, str]:
    """Divisor and unit that keep tick labels short."""
    for divisor, prefix in ((1e6, "M"), (1e3, "k")):
        if unit == "J" and largest >= divisor:
            return divisor, prefix + unit
    if unit == "s" and largest >= 7200.0:
        return 3600.0, "h"
    return 1.0, unit


def _curves_page(
    rows: Sequence[WorkloadRows],
    title: str,
    choices: Mapping[str, Mapping[str, Setting]],
    judgement: Judgement,
) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator

    panels = [
        (panel, unit)
        for panel, unit in _PANELS
        if any(_value(row, panel, s) is not None for row in rows for s in row.judged.settings)
    ]
    height = 1.15 + 1.25 * len(rows) + 0.5
    figure = new_figure(2.0 + 2.9 * len(panels), height)
    grid = figure.subplots(len(rows), len(panels), squeeze=False, sharex=False)
    for i, row in enumerate(rows):
        for j, (panel, unit) in enumerate(panels):
            axes = grid[i][j]
            known = [_value(row, panel, s) for s in row.judged.settings]
            divisor, shown = _scaled(max([v for v in known if v is not None], default=0.0), unit)
            _curve_panel(axes, row, panel, choices[row.id], divisor)
            axes.yaxis.set_major_locator(MaxNLocator(3))
            axes.set_ylabel(shown, labelpad=2)
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            if i == 0:
                axes.set_title(panel, loc="left", fontweight="bold")
            if i == len(rows) - 1:
                axes.set_xlabel("GPU clock (MHz)")
            else:
                axes.tick_params(labelbottom=False)
        name = "\n".join(textwrap.wrap(row.task or row.id, 16)[:4])
        tokens = row.features.get("seq_len")
        label = name if tokens is None or not row.task else f"{name}\n{float(tokens):.0f} tokens"
        grid[i][0].annotate(
            *(label, (0, 0.5)),
            xytext=(-56, 0),
            xycoords="axes fraction",
            textcoords="offset points",
            ha="right",
            va="center",
            fontweight="bold",
        )
    shown_policies = [p for p in judgement.policies if p != "maxn" or judgement.baseline]
    handles = [
        Line2D([], [], color=GREY, linestyle="--", linewidth=1.1, label="MAXN level (right edge: picks MAXN)")
        if name == "maxn"
        else Line2D(
            *([], []),
            linestyle="none",
            marker=STYLES[name].marker,
            markersize=STYLES[name].size * 0.8,
            markerfacecolor=STYLES[name].color if STYLES[name].filled else "none",
            markeredgecolor=STYLES[name].color,
            markeredgewidth=1.4,
            label=STYLES[name].label,
        )
        for name in shown_policies
    ]
    figure.text(
        0.1 / figure.get_figwidth(), 1 - 0.2 / height, title, fontsize=11, fontweight="bold", va="center"
    )
    figure.legend(
        handles=handles,
        loc="center left",
        bbox_to_anchor=(0.05 / figure.get_figwidth(), 1 - 0.48 / height),
        ncol=len(handles),
        frameon=False,
        fontsize=8,
        handletextpad=0.3,
        columnspacing=1.2,
    )
    set_margins(figure, left=1.6, right=0.2, top=0.92, bottom=0.62, wspace=0.3, hspace=0.22)
    return figure


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "x"


def _pages(rows: Sequence[WorkloadRows]) -> list[tuple[str, str, list[WorkloadRows]]]:
    """File name, title and workloads of each page: one model a page, at most nine workloads each."""
    models: dict[str, list[WorkloadRows]] = {}
    for row in rows:
        models.setdefault(row.model or "workloads", []).append(row)
    pages = []
    used: set[str] = set()
    for model, members in models.items():
        for start in range(0, len(members), ROWS_PER_PAGE):
            number = start // ROWS_PER_PAGE + 1
            name = f"curves-{_slug(model)}" + (f"-{number}" if number > 1 else "")
            while name in used:
                name += "-b"
            used.add(name)
            pages.append((name, model, members[start : start + ROWS_PER_PAGE]))
    return pages


# --- confusion, savings, policies ------------------------------------------------------------------------------------


def _confusion(judgement: Judgement) -> Any:
    outcomes = judgement.of(judgement.governor.policy)
    pairs = [(o.row.judged.best_clock, o.setting) for o in outcomes]
    levels = sort_settings({s for pair in pairs for s in pair})
    counts = [[sum(pair == (actual, picked) for pair in pairs) for picked in levels] for actual in levels]
    side = 0.52 * len(levels)
    figure = new_figure(max(4.6, side + 2.0), max(3.9, side + 1.9))
    axes = figure.subplots()
    most = max(max(line) for line in counts)
    axes.imshow(counts, cmap="Blues", vmin=0, vmax=most * 1.2)
    for i, line in enumerate(counts):
        for j, count in enumerate(line):
            if count:
                color = "white" if count > 0.7 * most else INK
                axes.text(j, i, str(count), ha="center", va="center", color=color, fontsize=10)
    labels = [setting_label(s) for s in levels]
    axes.set_xticks(range(len(levels)), labels, rotation=45)
    axes.set_yticks(range(len(levels)), labels)
    axes.set_xlabel(f"clock {STYLES[judgement.governor.policy].label} picks (MHz)")
    axes.set_ylabel("clock of least energy (MHz)")
    right = sum(actual == picked for actual, picked in pairs)
    near = sum(
        abs(levels.index(actual) - levels.index(picked)) == 1 for actual, picked in pairs if actual != picked
    )
    axes.set_title(f"{right} of {len(pairs)} on the level, {near} next to it", loc="left", fontweight="bold")
    set_margins(figure, left=0.85, right=0.25, top=0.45, bottom=1.0)
    return figure


def _grid(outcomes: Sequence[Outcome]) -> tuple[list[str], list[str]] | None:
    """Models and tasks where every outcome has its own cell, else None."""
    cells = [(o.row.model, o.row.task) for o in outcomes]
    if len(set(cells)) < len(cells) or any(model is None or task is None for model, task in cells):
        return None
    models = list(dict.fromkeys(str(model) for model, _ in cells))
    return models, list(dict.fromkeys(str(task) for _, task in cells))


def _heat_map(judgement: Judgement) -> Any:
    attribute = "saving_pct" if judgement.baseline else "regret_pct"
    names = [n for n in judgement.policies if n in ("ffg", judgement.governor.policy)]
    grid = _grid(judgement.of(names[-1]))
    panels: list[tuple[str, list[str], list[str], list[list[float | None]]]] = []
    if grid:
        models, tasks = grid
        for name in names:
            cells = {(o.row.model, o.row.task): getattr(o, attribute) for o in judgement.of(name)}
            panels.append(
                (STYLES[name].label, models, tasks, [[cells.get((m, t)) for t in tasks] for m in models])
            )
    else:
        names = [n for n in judgement.policies if n != "maxn"]
        rows = judgement.judged[:MAX_CELLS]
        columns = [[getattr(o, attribute) for o in judgement.of(n)[:MAX_CELLS]] for n in names]
        title = (
            ""
            if len(rows) == len(judgement.judged)
            else f"first {MAX_CELLS} of {len(judgement.judged)} workloads"
        )
        panels.append(
            (title, [r.id for r in rows], names, [list(line) for line in zip(*columns, strict=True)])
        )
    values = [v for _, _, _, lines in panels for line in lines for v in line if v is not None]
    high = max(0.1, *(abs(v) for v in values))
    n_rows, n_columns = len(panels[0][1]), len(panels[0][2])
    label_room = 0.35 + 0.075 * max(len(name) for name in panels[0][1])
    width = label_room + len(panels) * (0.62 * n_columns + 0.25) + 1.1
    figure = new_figure(max(width, 5.4), 0.33 * n_rows + 2.0)
    all_axes = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    image = None
    for axes, (title, row_names, column_names, lines) in zip(all_axes, panels, strict=True):
        numbers = [[float("nan") if v is None else v for v in line] for line in lines]
        if judgement.baseline:  # orange loses, violet saves
            image = axes.imshow(numbers, cmap="PuOr", vmin=-high, vmax=high, aspect="auto")
        else:
            image = axes.imshow(numbers, cmap="cividis_r", vmin=0.0, vmax=high, aspect="auto")
        for i, line in enumerate(lines):
            for j, value in enumerate(line):
                if value is not None:
                    color = "white" if abs(value) > 0.55 * high else INK
                    axes.text(j, i, f"{value:.1f}", ha="center", va="center", fontsize=8, color=color)
        axes.set_xticks(
            range(len(column_names)), column_names, rotation=30, ha="right", rotation_mode="anchor"
        )
        axes.set_yticks(range(len(row_names)), row_names)
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.set_title(title, loc="left", fontweight="bold")
    what = "Saving against MAXN, %" if judgement.baseline else "Regret: energy above the optimum, %"
    height = figure.get_figheight()
    figure.text(
        0.1 / figure.get_figwidth(), 1 - 0.2 / height, what, fontsize=11, fontweight="bold", va="center"
    )
    set_margins(figure, left=label_room, right=1.0, top=0.75, bottom=0.95, wspace=0.06)
    bar = figure.add_axes(
        (1 - 0.8 / figure.get_figwidth(), 0.95 / height, 0.14 / figure.get_figwidth(), 1 - 1.7 / height)
    )
    figure.colorbar(image, cax=bar)
    return figure


_GROUPS = (("all", INK), ("large", "#0072B2"), ("small", "#E69F00"))
_MEASURES = (
    ("mean_saving_pct", "mean_saving_ci95", "saving against MAXN, %"),
    ("mean_regret_pct", "mean_regret_ci95", "regret, %"),
    ("mean_slowdown_pct", "mean_slowdown_ci95", "slowdown against MAXN, %"),
)


def _bars(judgement: Judgement, metrics: Mapping[str, Any]) -> Any:
    from matplotlib.patches import Patch

    names = list(judgement.policies)
    measures = [m for m in _MEASURES if metrics[names[-1]]["all"][m[0]] is not None]
    sizes = {g: metrics[names[-1]][g]["n"] for g, _ in _GROUPS if g in metrics[names[-1]]}
    groups = [(g, color) for g, color in _GROUPS if g == "all" or 0 < sizes.get(g, 0) < sizes["all"]]
    height = 1.75 + 0.22 * len(names) * (len(groups) + 0.8)
    figure = new_figure(1.9 + 3.0 * len(measures), height)
    all_axes = figure.subplots(1, len(measures), squeeze=False, sharey=True)[0]
    thickness = 0.8 / len(groups)
    for axes, (key, interval, label) in zip(all_axes, measures, strict=True):
        limit = math.inf
        if key == "mean_regret_pct":  # the baseline's regret would dwarf the others': its bars are cut
            limit = 1.3 * max([metrics[n][g][interval][1] for n in names for g, _ in groups if n != "maxn"])
            limit = max(limit, 0.1)
        for g, (group, color) in enumerate(groups):
            for i, name in enumerate(names):
                figures = metrics[name][group]
                y = i + (g - (len(groups) - 1) / 2) * thickness
                value, (low, high) = figures[key], figures[interval]
                cut = high > limit
                text = f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
                axes.barh(y, limit if cut else value, height=thickness * 0.85, color=color, alpha=0.85)
                if not cut:
                    axes.plot([low, high], [y, y], color="black", linewidth=1.1, solid_capstyle="butt")
                axes.annotate(
                    *(f"{text} (cut)" if cut else text, (limit if cut else max(high, value, 0.0), y)),
                    xytext=(3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
        if key == "mean_regret_pct" and metrics["_meta"]["noise_floor_pct"] is not None:
            floor = metrics["_meta"]["noise_floor_pct"]
            axes.axvline(floor, color="#CC79A7", linestyle=":", linewidth=1.3)
            axes.annotate(
                *(f"noise floor {floor:.2f}", (floor, 1.0)),
                xycoords=("data", "axes fraction"),
                xytext=(2, 1),
                textcoords="offset points",
                fontsize=7,
                color="#99517d",
            )
        axes.axvline(0.0, color=GREY, linewidth=0.8)
        axes.margins(x=0.2)
        axes.set_xlabel(label)
    all_axes[0].set_yticks(range(len(names)), [STYLES[name].label for name in names])
    all_axes[0].invert_yaxis()
    count = len(judgement.judged)
    title = f"Policies on {count} {'held-out workloads' if judgement.split == 'held_out' else 'workloads, each left out'}"
    figure.text(
        0.1 / figure.get_figwidth(), 1 - 0.2 / height, title, fontsize=11, fontweight="bold", va="center"
    )
    figure.text(
        *(0.1 / figure.get_figwidth(), 1 - 0.42 / height),
        "means; lines are 95 % bootstrap intervals over workloads",
        fontsize=8,
        color=GREY,
        va="center",
    )
    figure.legend(
        handles=[Patch(color=color, alpha=0.85, label=f"{g} ({sizes[g]})") for g, color in groups],
        loc="center right",
        bbox_to_anchor=(1 - 0.1 / figure.get_figwidth(), 1 - 0.3 / height),
        ncol=len(groups),
        frameon=False,
    )
    set_margins(figure, left=1.35, right=0.3, top=0.8, bottom=0.75, wspace=0.12)
    return figure


def write_figures(folder: Path, judgement: Judgement, metrics: Mapping[str, Any]) -> list[Path]:
    """Draw all figures; PNG files already in the folder are removed first.

    Args:
        folder: where they go.
        judgement: the outcomes.
        metrics: the document ``metrics.json`` of the same judgement.

    Returns:
        The files written: ``curves-<model>.png`` (time, power and energy against the clock, every policy's choice
        marked), ``confusion.png``, ``savings.png`` (``regret.png`` without a baseline) and ``policies.png``.
    """
    with clear_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.png"):
            old.unlink()
    choices: dict[str, dict[str, Setting]] = {row.id: {} for row in judgement.judged}
    for outcome in judgement.outcomes:
        choices[outcome.row.id][outcome.policy] = outcome.setting
    written = []

    def save(name: str, figure: Any) -> None:
        written.append(folder / f"{name}.png")
        _save(figure, written[-1], judgement)

    with style():
        pages = _pages(judgement.judged)
        if len(pages) > MAX_PAGES:
            log.warning("Curves are drawn for the first %d of %d groups of workloads.", MAX_PAGES, len(pages))
        for name, title, rows in pages[:MAX_PAGES]:
            save(name, _curves_page(rows, title, choices, judgement))
        save("confusion", _confusion(judgement))
        save("savings" if judgement.baseline else "regret", _heat_map(judgement))
        save("policies", _bars(judgement, metrics))
    return written
