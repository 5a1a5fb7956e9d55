"""Faults that can be put on the running board by name: what goes wrong on real ones."""

from __future__ import annotations

import errno
import math
from typing import TYPE_CHECKING

from wattune.boards.virtual.emulator import supervisor
from wattune.core.errors import InputError

if TYPE_CHECKING:
    from wattune.boards.virtual.emulator.boardtree import BoardTree
    from wattune.boards.virtual.emulator.machine import Machine

FAULTS = {
    "rail-eio": "rail-eio LABEL: reading that rail fails with EIO",
    "rail-enodata": "rail-enodata LABEL: reading that rail fails with ENODATA",
    "late-node": "late-node SECONDS: the devfreq node is absent for that long",
    "hang": "hang FILE: reads and writes of that file (min_freq, max_freq, load ...) do not return until cleared",
    "thermal-cap": "thermal-cap HZ: the cooling device caps the clock",
    "overheat": "overheat DEGREES: the die is that much hotter, until it throttles by itself",
    "power-mode": "power-mode NAME: somebody switches the power mode under us",
    "reboot": "reboot: new boot id, bounds and counters as after a boot, an empty run folder",
    "overcurrent": "overcurrent [COUNTER]: an over-current event is counted (oc2 where not given)",
    "clear": "clear: all faults off",
}
"""Name -> its form and what it does."""


def in_force(machine: Machine, tree: BoardTree) -> list[str]:
    """The faults in force, as they would be typed."""
    kinds = {errno.EIO: "rail-eio", errno.ENODATA: "rail-enodata"}
    found = [f"{kinds[code]} {label}" for label, code in tree.faults.rails.items()]
    found += [f"hang {name}" for name in sorted(tree.faults.hanging)]
    if (until := tree.faults.late_until) is not None and until > tree.clock():
        found.append(f"late-node {until - tree.clock():.1f}")
    if machine.thermal_cap_hz is not None:
        found.append(f"thermal-cap {machine.thermal_cap_hz}")
    if machine.extra_heat_c:
        found.append(f"overheat {machine.extra_heat_c:g}")
    return found


def apply(text: str, machine: Machine, tree: BoardTree) -> None:
    """Put a fault on the board, or take all off.

    Args:
        text: name and argument, as in `FAULTS`.
        machine: the board.
        tree: its files.

    Raises:
        InputError: unknown name or argument; the message lists the known ones.
    """
    name, *rest = text.split() or [""]
    if name not in FAULTS:
        raise InputError(
            f"There is no fault '{name[:80]}'.",
            f"One of {', '.join(FAULTS)} was expected.",
            "Type for example `fault rail-eio VDD_GPU_SOC`.",
        )
    argument = rest[0] if rest else "oc2" if name == "overcurrent" else ""
    takes_none = name in ("reboot", "clear")
    if len(rest) > 1 or bool(argument) == takes_none:
        raise InputError(
            f"The fault '{text.strip()[:80]}' is not complete or has too many words.",
            f"Its form is {FAULTS[name].split(':')[0]}.",
            "Type it in that form.",
        )
    faults = tree.faults
    with machine.lock:
        machine.advance()
        if name in ("rail-eio", "rail-enodata"):
            label = _one_of(argument, [rail.label for rail in machine.file.rails], "rail")
            faults.rails[label] = errno.EIO if name == "rail-eio" else errno.ENODATA
        elif name == "late-node":
            tree.vanish(_number(argument, name))
        elif name == "hang":
            faults.hanging.add(_one_of(argument, faults.can_hang, "file that can hang"))
        elif name == "thermal-cap":
            clocks = [str(hz) for hz in machine.devfreq.table_hz]
            machine.thermal_cap_hz = int(_one_of(argument, clocks, "clock in Hz"))
        elif name == "overheat":
            machine.extra_heat_c = _number(argument, name)
        elif name == "power-mode":
            machine.set_power_mode(_one_of(argument, list(machine.power_modes), "power mode"))
        elif name == "overcurrent":
            machine.overcurrent(_one_of(argument, list(machine.oc_counts), "counter"))
        elif name == "reboot":
            machine.reboot()
            if tree.run is not None:
                supervisor.empty_folder(tree.run)
        else:
            faults.rails.clear()
            faults.hanging.clear()
            tree.appear()
            machine.thermal_cap_hz = None
            machine.extra_heat_c = 0.0


def _one_of(word: str, known: list[str], what: str) -> str:
    if word not in known:
        raise InputError(
            f"'{word[:80]}' is no {what} of this board.",
            f"One of {', '.join(known)} was expected.",
            "Type one of these names.",
        )
    return word


def _number(word: str, name: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e6:
        raise InputError(
            f"'{word[:80]}' is no usable number for the fault {name}.",
            "A number from 0 to 1000000 was expected.",
            f"Type for example `fault {name} 20`.",
        )
    return value
