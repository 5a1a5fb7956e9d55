"""A training loop as far as the emulated board is concerned: it counts the board's own steps into the steps file.

``follow.py ROOT STEPS`` ends when the board has finished so many steps, ``follow.py ROOT 0`` never.
"""

import json
import os
import sys
import time
from pathlib import Path


def main() -> None:
    root, wanted = Path(sys.argv[1]), int(sys.argv[2])
    steps_file = Path(os.environ["WATTUNE_STEPS_FILE"])
    temporary = steps_file.with_name("next")
    first = last = json.loads((root / "emulator/status.json").read_text())["steps"]
    sys.stdout.write("training\n")
    sys.stdout.flush()
    while not wanted or last - first < wanted:
        time.sleep(0.005)
        now = json.loads((root / "emulator/status.json").read_text())["steps"]
        if now != last:
            last = now
            temporary.write_text(f"{now - first}\n")
            temporary.replace(steps_file)


if __name__ == "__main__":
    main()
