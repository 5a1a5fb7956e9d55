"""A script nobody knows anything of, as far as the emulated board is concerned: it says no step, but its GPU is busy in every one.

``gpu_script.py ROOT SECONDS OUT [PAUSE]``: steps on the board, one after the other, with so many seconds of other work in between;
0 is none, and the board then trains without end. When each step was finished goes to OUT, seconds since the beginning.
"""

import json
import random
import sys
import time
from pathlib import Path

WORKLOAD = "bert-base-sst2"


def main() -> None:
    root, seconds, out = Path(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0.12
    control, steps = root / "emulator/control", root / "emulator/steps"
    began, rng, ends = time.monotonic(), random.Random(3), []
    control.write_text(f"train {WORKLOAD}\n" if pause else f"workload {WORKLOAD}\n")
    while time.monotonic() - began < seconds:
        if not pause:
            time.sleep(0.1)
            continue
        before = int(steps.read_text())
        control.write_text(f"step {rng.choice((20, 24, 28))}\n")
        while int(steps.read_text()) == before:
            time.sleep(0.003)
        ends.append(time.monotonic() - began)
        time.sleep(pause * rng.uniform(0.9, 1.1))
    control.write_text("workload idle\n")
    out.write_text(json.dumps(ends))


if __name__ == "__main__":
    main()
