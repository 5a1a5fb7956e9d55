"""Stage `card`: the model card from facts."""

from __future__ import annotations

import sys
from pathlib import Path

from wattune.io import write_text
from wattune.stages._main import run
from wattune.tracking.card import model_card
from wattune.tracking.results import MODEL_CARD, read_results


def main(root: Path = Path()) -> None:
    """Read the governor and the reports under `root`; write ``models/model_card.md``."""
    write_text(root / MODEL_CARD, model_card(read_results(root)))


if __name__ == "__main__":
    sys.exit(run(main))
