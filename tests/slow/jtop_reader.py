"""Prints what jtop's client sees, one JSON line per update; run by the interpreter that has jetson-stats, in its own process.

Arguments: seconds between updates. The first line is the board as jtop recognised it.
"""

import json
import sys

from jtop import jtop

with jtop(interval=float(sys.argv[1])) as board:
    print(json.dumps({"board": board.board}), flush=True)
    while board.ok():
        print(
            json.dumps(
                {
                    "uptime": board.uptime.total_seconds(),
                    "gpu": dict(board.gpu.items()),
                    "power": board.power,
                    "temperature": board.temperature,
                    "emc": board.memory.get("EMC"),
                    "cpus": [cpu["online"] for cpu in board.cpu["cpu"]],
                }
            ),
            flush=True,
        )
