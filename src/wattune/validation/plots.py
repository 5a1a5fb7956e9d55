"""A figure per source: the measured curve, the model's, and the difference."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

from wattune.boards.virtual.constants import find_board_file
from wattune.core.stats import mean
from wattune.io import write_bytes
from wattune.validation.calibrate import log_ratios, predict
from wattune.validation.report import errors_pct, families
from wattune.validation.source import Source

DPI = 100
MEASURED, MODEL = "#222222", "#D55E00"
UNITS = {"energy": "J", "time": "s", "power": "W"}


def draw(data: Path | None, folder: Path) -> list[Path]:
    """Draw every source that has a curve.

    Args:
        data: folder of others' measurements; None where there is none.
        folder: where the PNG files go.

    Returns:
        The files written.
    """
    written = []
    for entry in families(data).values():
        for source in [] if isinstance(entry, str) else entry:
            if len(source.mhz) > 1:
                path = folder / f"{source.name}.png"
                write_bytes(path, _png(source))
                written.append(path)
    return written


def _png(source: Source) -> bytes:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    file = find_board_file(source.board)
    scale = math.exp(-mean(log_ratios(file, source))) * (
        1.0 if source.quantity == "power" else source.steps or 1.0
    )
    answers = [scale * value for value in predict(file, source)]
    errors = errors_pct(file, source)
    style: dict[Any, Any] = {"font.size": 8.5, "axes.spines.top": False, "axes.spines.right": False}
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(style)
        figure = Figure(figsize=(6.4, 4.4), dpi=DPI, layout="constrained")
        FigureCanvasAgg(figure)
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        top.plot(source.mhz, source.measured, "o", color=MEASURED, label="measured")
        top.plot(
            source.mhz,
            answers,
            "-",
            color=MODEL,
            label="model, scaled to the same geometric mean (SIMULATED)",
        )
        if source.quantity == "energy":
            chosen = answers.index(min(answers))
            top.plot(
                source.mhz[chosen],
                answers[chosen],
                "*",
                color=MODEL,
                markersize=13,
                markeredgecolor="white",
                label=f"model's optimum, {source.mhz[chosen]:g} MHz",
            )
        top.set_ylim(0, 1.08 * max(*answers, *source.measured))
        top.set_ylabel(f"{source.quantity} ({UNITS[source.quantity]})")
        top.legend(frameon=False)
        top.set_title(f"{source.name}: {source.used_for}", loc="left")
        bottom.axhline(0.0, color=MEASURED, linewidth=0.8)
        bottom.bar(source.mhz, errors, width=(source.mhz[-1] - source.mhz[0]) / 40, color=MODEL)
        reach = max(1.0, *(abs(e) for e in errors)) * 1.15
        bottom.set_ylim(-reach, reach)
        bottom.set_ylabel("error (%)")
        bottom.set_xlabel("GPU clock (MHz)")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", metadata={"Software": None})
    return buffer.getvalue()
