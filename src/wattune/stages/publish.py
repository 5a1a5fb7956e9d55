"""Stage `publish`: project the pipeline's files onto MLflow; ``wattune publish`` is the same by hand."""

from __future__ import annotations

import json
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
    before = _published(root / REGISTRATION)
    registration = publish(root, asdict(load_params(root / PARAMS)))
    write_json(root / REGISTRATION, registration)
    said = registration["champion"]["reason"]
    if registration == before:
        said = f"no run and no version is new; what was said before stands: {said}"
    log.info("%s", f"{registration['model']} version {registration['version']}: {said}")


def _published(path: Path) -> object:
    """What was published last, as far as it can be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    sys.exit(run(main))
