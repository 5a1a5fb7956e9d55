"""Stage `validate`: hold the virtual board against published measurements."""

from __future__ import annotations

import csv
import io
import logging
import os
import sys
from pathlib import Path
from typing import Any

from wattune.boards.virtual.constants import parse_board_file
from wattune.core.errors import InputError
from wattune.io import read_json, read_text, write_json
from wattune.stages._main import run
from wattune.validation.calibrate import fitted_document
from wattune.validation.plots import draw
from wattune.validation.report import ORIN, refit, validate

log = logging.getLogger(__name__)

METRICS = Path("reports/evaluate/metrics.json")
POLICIES = Path("reports/evaluate/policies.csv")
REPORTS = Path("reports/validate")
HELD_OUT = 54
"""Held-out workloads of the paper's experiment: only its results can stand beside the paper's."""


def data_folder() -> Path | None:
    """The folder of others' measurements, from ``WATTUNE_DATA``; None where it is not set.

    Raises:
        InputError: it is set, and there is no such folder.
    """
    named = os.environ.get("WATTUNE_DATA", "").strip()
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise InputError(
            f"WATTUNE_DATA names {folder}, and there is no such folder.",
            "A folder of others' measurements was expected.",
            "Correct it, or `unset WATTUNE_DATA`.",
        )
    return folder


def pipeline_results(root: Path) -> tuple[dict[str, Any] | None, list[float] | None]:
    """Metrics of the paper's experiment on the virtual AGX Orin and the optima of its workloads; None where there are none."""
    if not (root / METRICS).is_file() or not (root / POLICIES).is_file():
        return None, None
    metrics = read_json(root / METRICS, "The metrics")
    meta = metrics.get("_meta", {})
    is_papers = (
        meta.get("board") == ORIN and meta.get("provenance") == "simulated" and meta.get("rails") == "gpu_cpu"
    )
    if not is_papers or meta.get("n_workloads") != HELD_OUT or "mlg" not in metrics or "ffg" not in metrics:
        return None, None
    rows = csv.DictReader(io.StringIO(read_text(root / POLICIES, "The table of policies")))
    chosen = [row["setting"] for row in rows if row["policy"] == "oracle"]
    return metrics, [float(setting) for setting in chosen if setting != "maxn"]


def report(root: Path, **options: Any) -> dict[str, Any]:
    """The whole document of `wattune validate`, with the pipeline's results where there are some."""
    metrics, optima = pipeline_results(root)
    return validate(data_folder(), metrics=metrics, optima=optima, **options)


def refitted(board: str, path: Path) -> dict[str, Any]:
    """Refit a modelled board to the curves it is calibrated against, and write its file.

    Returns:
        Which file, board and curves, and every free constant before and after.

    Raises:
        InputError: no such board, or none of its curves is there.
        BoardError: the file could not be written.
    """
    before, fitted, against = refit(data_folder(), board)
    document = fitted_document(fitted)
    write_json(path, document)
    after = parse_board_file(document, str(path)).constants
    return {
        "file": str(path),
        "board": before.board,
        "against": against,
        "constants": {
            name: {"before": getattr(before.constants, name), "after": getattr(after, name)}
            for name in before.priors
        },
    }


def main() -> None:
    """Run the stage in the current folder."""
    document = report(Path())
    write_json(REPORTS / "validation.json", document)
    draw(data_folder(), REPORTS / "figures")
    failed = [bar["name"] for bar in document["bars"] if bar["passed"] is False]
    log.info(
        "validate: %s", f"NOT within the bars: {'; '.join(failed)}" if failed else "within all bars judged"
    )


if __name__ == "__main__":
    sys.exit(run(main))
