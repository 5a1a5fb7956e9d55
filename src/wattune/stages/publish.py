"""Stage `publish`: project the pipeline's files onto MLflow; ``wattune publish`` is the same by hand."""

from __future__ import annotations

import logging
import sys
from dataclasses import asdict
from pathlib import Path

from wattune.config import PARAMS, load_params
from wattune.io import write_json
from wattune.stages._main import run
from wattune.tracking.publish import publish
from wattune.tracking.results import REGISTRATION
from wattune.tracking.store import repository_root

log = logging.getLogger(__name__)


def main(root: Path | None = None) -> None:
    """Publish what lies under `root` (the repository around the current folder by default)."""
    root = root or repository_root()
    registration = publish(root, asdict(load_params(root / PARAMS)))
    write_json(root / REGISTRATION, registration)
    log.info(
        "%s",
        f"{registration['model']} version {registration['version']}: {registration['champion']['reason']}",
    )


if __name__ == "__main__":
    sys.exit(run(main))
