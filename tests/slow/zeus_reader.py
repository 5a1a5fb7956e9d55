"""Says what Zeus's Jetson reader sees, one JSON line each; run by the interpreter that has Zeus, in its own process.

Arguments: seconds of the energy window. Lines: the rails it found; powers, each with the board's uptime before and after; the
energy of the window.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from zeus.device.soc import get_soc


def say(document: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def main() -> None:
    soc = get_soc()
    say({"reader": type(soc).__name__, "rails": sorted(soc.power_measurement)})
    soc.get_total_energy_consumption()  # its polling process takes seconds to start
    begin = uptime()
    soc.begin_window("wattune")
    while uptime() - begin < float(sys.argv[1]):
        before = uptime()
        powers = {rail: source.measure_power() for rail, source in soc.power_measurement.items()}
        say({"from": before, "to": uptime(), "power_mw": powers})
        time.sleep(0.1)
    energy = soc.end_window("wattune")
    spent = {"cpu": energy.cpu_energy_mj, "gpu": energy.gpu_energy_mj, "total": energy.total_energy_mj}
    say({"from": begin, "to": uptime(), "energy_mj": spent})


if __name__ == "__main__":  # Zeus starts a second interpreter that reads this file again
    main()
