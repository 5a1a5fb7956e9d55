"""What `wattune validate` found, for people: tables in the terminal and in ``docs/validation.md``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from wattune.core.settings import setting_label
from wattune.terminal import Block, Column, Table
from wattune.validation.datafiles import ABSENT, FAMILIES

ORIN, XAVIER = "jetson-agx-orin-64gb", "jetson-agx-xavier"


def markdown(block: Block) -> str:
    """A table in Markdown, which reads in a terminal too; text as it is."""
    if not isinstance(block, Table):
        assert isinstance(block, str)  # nothing else is made here
        return block
    rows = [[column.name for column in block.columns], *block.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(w) for cell, w in zip(cells, widths, strict=True)) + " |"

    ruler = "|" + "|".join("-" * (w + 2) for w in widths) + "|"
    return "\n".join([line(rows[0]), ruler, *map(line, rows[1:])])


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = (0,)) -> Table:
    """A table of numbers but for the columns `texts`."""
    columns = [Column(name, number=n not in texts) for n, name in enumerate(header)]
    return Table(columns, [list(row) for row in rows])


def number(value: Any, digits: int = 2) -> str:
    """A figure, a range, or a dash where there is none."""
    if value is None:
        return "-"
    if isinstance(value, list):
        return " to ".join(f"{v:g}" for v in value)
    return value if isinstance(value, str) else f"{value:.{digits}f}"


def _clock(value: Any) -> str:
    return "-" if value is None else setting_label(value)


def _curves(name: str, entry: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    curves = entry.get("curves")
    return list(curves.items()) if curves else [(name, entry)]


def sources_table(sources: Mapping[str, Any], names: Iterable[str]) -> Table:
    """Errors per curve."""
    rows = []
    for name in names:
        entry = sources[name]
        if entry == ABSENT:
            rows.append([name, ABSENT, *["-"] * 7])
            continue
        for curve, row in _curves(name, entry):
            rows.append(
                [
                    curve,
                    row["used_for"],
                    str(row["n"]),
                    number(row["mean_err_pct"]),
                    number(row["max_err_pct"]),
                    number(row["left_out_max_err_pct"]),
                    f"{_clock(row['predicted_mhz'])} / {_clock(row['measured_mhz'])}",
                    number(row["regret_pct"]),
                    number(row["level_err_pct"], 1),
                ]
            )
    header = [
        "source", "used for", "n", "mean error %", "max error %", "left out: max %", "optimum MHz: model / measured",
        "regret %", "level %",
    ]  # fmt: skip
    return _table(header, rows, (0, 1))


def bars_table(bars: Iterable[Mapping[str, Any]]) -> Table:
    """The demands and whether they hold."""
    verdict = {True: "yes", False: "NO", None: "absent"}
    return _table(
        ["demand", "found", "at most", "holds"],
        [[b["name"], number(b["value"]), f"{b['limit']:g}", verdict[b["passed"]]] for b in bars],
        (0, 3),
    )


def figures_table(figures: Mapping[str, Any]) -> Table:
    """Single published figures and the model's answers."""
    return _table(
        ["figure", "published", "model", "unit", "note"],
        [
            [name, number(f["published"]), number(f["predicted"], 1), f["unit"], f["note"]]
            for name, f in figures.items()
        ],
        (0, 3, 4),
    )


def constants_table(calibration: Mapping[str, Any]) -> Table:
    """Free constants: value, prior, and what the data say."""
    return _table(
        ["constant", "value", "prior", "pull (sd)", "spread after / before", "rests on"],
        [
            [
                name,
                f"{c['value']:.4g}",
                f"{c['prior']['value']:.4g}",
                f"{c['pull_sd']:+.1f}",
                number(c["posterior_over_prior"]),
                "data" if c["identified"] else "prior",
            ]
            for name, c in calibration["constants"].items()
        ],
        (0, 5),
    )


def redraws_table(document: Mapping[str, Any]) -> Block:
    """How the results move when the priors are redrawn."""
    redraws = document["calibration"][ORIN]["redraws"]
    if not redraws:
        return "The priors were not redrawn."
    rows = []
    for curve in redraws[0]["curves"]:
        errors = [r["curves"][curve]["max_err_pct"] for r in redraws]
        clocks = sorted({r["curves"][curve]["predicted_mhz"] for r in redraws})
        rows.append([f"{curve}: max error %", _span(errors), ", ".join(map(setting_label, clocks))])
    for name in redraws[0]["best_saving"]:
        savings = [r["best_saving"][name]["saving_pct"] for r in redraws]
        clocks = sorted({r["best_saving"][name]["mhz"] for r in redraws}, key=str)
        rows.append(
            [f"{name}: best saving against MAXN %", _span(savings), ", ".join(map(setting_label, clocks))]
        )
    return _table([f"over {len(redraws)} redraws of all priors", "range", "optimum MHz"], rows)


def _span(values: Sequence[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


def polling_table(polling: Mapping[str, Any]) -> Table:
    """Sensitivity to the demand-driven governor's polling interval."""
    names = sorted(next(iter(polling.values())))
    return _table(
        ["polling interval", *(f"{name}: best saving %" for name in names)],
        [
            [f"{ms} ms", *(number(row[name]["saving_pct"]) for name in names)]
            for ms, row in sorted(polling.items(), key=lambda item: int(item[0]))
        ],
    )


def parts(document: Mapping[str, Any]) -> dict[str, str]:
    """The generated parts of ``docs/validation.md``; `larger` only where others' data were there."""
    sources = document["sources"]
    own = [name for name in sources if name.startswith("orin_") and not _is_larger(name)]
    larger = [name for name in sources if _is_larger(name)]
    made: dict[str, list[Block]] = {
        "sources": [sources_table(sources, own)],
        "bars": [bars_table(b for b in document["bars"] if not _is_larger(b["name"].split(":")[0]))],
        "figures": [figures_table(document["figures"])],
        "constants": [constants_table(document["calibration"][ORIN])],
        "redraws": [redraws_table(document)],
        "polling": [polling_table(document["polling"])],
    }
    if all(sources[name] != ABSENT for name in larger):
        xavier = document["calibration"][XAVIER]
        made["larger"] = [
            sources_table(sources, larger),
            bars_table(b for b in document["bars"] if _is_larger(b["name"].split(":")[0])),
            f"Constants of {XAVIER}:",
            constants_table(xavier),
        ]
    return {name: "\n\n".join(map(markdown, blocks)) for name, blocks in made.items()}


def _is_larger(name: str) -> bool:
    return name in FAMILIES or name.replace("_energy", "_time") in FAMILIES


def blocks(document: Mapping[str, Any]) -> list[Block]:
    """Everything, in order."""
    calibrations: list[Block] = []
    for board, c in document["calibration"].items():
        if c["against"]:
            calibrations += [
                f"Constants of {board} (free in the calibration against {', '.join(c['against']) or 'nothing'}):",
                constants_table(c),
            ]
    return [
        "The virtual boards against published measurements. What the model says is SIMULATED.",
        sources_table(document["sources"], document["sources"]),
        bars_table(document["bars"]),
        figures_table(document["figures"]),
        *calibrations,
        redraws_table(document),
        polling_table(document["polling"]),
    ]


def text(document: Mapping[str, Any]) -> str:
    """Everything as plain text."""
    return "\n\n".join(map(markdown, blocks(document)))


def refit_text(written: dict[str, Any]) -> str:
    """What `wattune validate --write-board` did, for people."""
    lines = [
        f"{written['file']}: {written['board']}, refitted to {', '.join(written['against'])} (SIMULATED)"
    ]
    for name, value in written["constants"].items():
        change = 100.0 * (value["after"] / value["before"] - 1.0)
        lines.append(f"  {name:<32} {value['before']:>12.5g} -> {value['after']:>12.5g}  ({change:+.2f} %)")
    return "\n".join(lines)
