"""Stage `protocol`: what every cell of the sweep is measured under, as one small file that all `profile` stages depend on.

One dependency in place of the board's and the sweep's parameters in each of them: DVC reads and writes all of ``dvc.lock`` at every
stage, so what is said once and not once per workload is most of a clean run's time.
"""

from __future__ import annotations

import hashlib
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from wattune.config import LIVE_ONLY, Config, load_params
from wattune.io import read_data, write_json
from wattune.stages._main import run

PROTOCOL = Path("data/protocol.json")
SCHEMA_VERSION = 1


def protocol(config: Config, root: Path = Path()) -> dict[str, Any]:
    """What a cell rests on beside its workload.

    Args:
        config: the parameters.
        root: where the paths in them begin.

    Raises:
        InputError: the modelled board's file is missing.
    """
    board = asdict(config.board)
    constants = None
    if config.board.kind == "virtual":
        board = {key: value for key, value in board.items() if key not in LIVE_ONLY}
        data = read_data(
            root / config.board.constants, "The board's file", "Correct board.constants in conf/board/."
        )
        constants = hashlib.sha256(data).hexdigest()
    return {
        "schema_version": SCHEMA_VERSION,
        "board": board,
        "constants_sha256": constants,
        "sweep": asdict(config.sweep),
    }


def main() -> None:
    """Write the file."""
    write_json(PROTOCOL, protocol(load_params()))


if __name__ == "__main__":
    sys.exit(run(main))
