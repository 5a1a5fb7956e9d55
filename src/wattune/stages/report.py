"""Stage `report`: everything the pipeline found, on one page for people."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from wattune.core.governor import parse_governor
from wattune.io import read_text, write_text
from wattune.report.facts import Facts, read_evidence, read_validation, read_works
from wattune.report.page import page
from wattune.stages._main import run
from wattune.tracking.results import FEATURES, read_results

log = logging.getLogger(__name__)

PAGE = Path("reports/index.html")
OTHER_GOVERNORS = (Path("models/governor-regret.json"),)
"""Drawn beside the one that ships, where they are another one."""


def read_facts(root: Path) -> Facts:
    """Everything the page shows, from the files under `root`.

    Raises:
        InputError: a file is missing or not readable.
        IntegrityError: a governor was refused, or the files do not belong together.
    """
    results = read_results(root)
    others = [
        parse_governor(read_text(root / p, "The governor")) for p in OTHER_GOVERNORS if (root / p).is_file()
    ]
    provenance = str(results.meta["provenance"])
    return Facts(
        governors=(results.governor, *(g for g in others if g.digest != results.governor.digest)),
        meta=results.meta,
        metrics=results.metrics,
        decision=results.decision,
        works=read_works(root, FEATURES, results.rows, results.metrics),
        validation=read_validation(root),
        evidence=read_evidence(root, FEATURES, provenance),
    )


def main(root: Path = Path()) -> None:
    """Read the reports under `root`; write ``reports/index.html``."""
    text = page(read_facts(root))
    write_text(root / PAGE, text)
    log.info("report: %s, %d kB", PAGE, round(len(text.encode()) / 1000))


if __name__ == "__main__":
    sys.exit(run(main))
