"""Says what jtop's client sees, one JSON line per update; run by the interpreter that has jetson-stats, in its own process.

Arguments: seconds between updates. The first line is the board as jtop recognised it.
"""

import json
import sys
from typing import Any

from jtop import jtop


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


with jtop(interval=float(sys.argv[1])) as board:
    say({"board": board.board})
    while board.ok():
        seconds = board.uptime.total_seconds()
        say(
            {
                "uptime": seconds,
                "gpu": dict(board.gpu),
                "power": board.power,
                "temperature": board.temperature,
            }
        )
