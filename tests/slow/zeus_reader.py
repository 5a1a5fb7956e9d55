"""Prints what Zeus's Jetson reader sees, one JSON line each; run by the interpreter that has Zeus, in its own process.

Arguments: seconds of the energy window. Lines: the rails it found; powers, each with the board's uptime before and after; the
energy of the window.
"""

import json
import sys
import time
from pathlib import Path

from zeus.device.soc import get_soc


def uptime() -> float:
    return float(Path("/proc/uptime").read_text().split()[0])


def main() -> None:
    soc = get_soc()
    print(json.dumps({"reader": type(soc).__name__, "rails": sorted(soc.power_measurement)}), flush=True)
    soc.get_total_energy_consumption()  # its polling process takes seconds to start
    begin = uptime()
    soc.begin_window("wattune")
    while uptime() - begin < float(sys.argv[1]):
        before = uptime()
        powers = {rail: source.measure_power() for rail, source in soc.power_measurement.items()}
        print(json.dumps({"from": before, "to": uptime(), "power_mw": powers}), flush=True)
        time.sleep(0.1)
    energy = soc.end_window("wattune")
    spent = {"cpu": energy.cpu_energy_mj, "gpu": energy.gpu_energy_mj, "total": energy.total_energy_mj}
    print(json.dumps({"from": begin, "to": uptime(), "energy_mj": spent}), flush=True)


if __name__ == "__main__":  # Zeus starts a second interpreter that reads this file again
    main()
