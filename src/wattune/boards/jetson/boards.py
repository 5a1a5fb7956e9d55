"""The boards we know by their module's part number: which rails sum to what, and their power modes' names for reference.

Clock tables, bounds and modes in force are always read from the board itself; nothing here is used to set anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

SOCS = {"tegra210", "tegra186", "tegra194", "tegra234", "tegra264"}
SOC_IDS = {33: "tegra210", 24: "tegra186", 25: "tegra194", 35: "tegra234", 38: "tegra264"}
"""``/sys/devices/soc0/soc_id`` -> system-on-chip, for where the device tree is hidden."""

DEVKIT_AGX_ORIN = "p3701-0000"
"""The developer kit's module: 32 GB in early units, 64 GB in later ones."""
LARGE_MEMORY_KB = 40 * 2**20
"""Between the 32 and the 64 GB module."""

AGX_ORIN_GPU_CPU = ("VDD_GPU_SOC", "VDD_CPU_CV")
_AGX_ORIN = (*AGX_ORIN_GPU_CPU, "VIN_SYS_5V0")
_AGX_NOTE = "VDDQ_VDD2_1V8AO is part of VIN_SYS_5V0 and never added to it."
_INPUT = ("VDD_IN",)
_INPUT_NOTE = (
    "VDD_IN is the module's total; CPU and GPU share one rail, so that there is no power of the GPU alone."
)
_ORIN_NANO_MODES = {0: "15W", 1: "7W"}


@dataclass(frozen=True, slots=True)
class Board:
    """A known board.

    Attributes:
        id: our id.
        parts: how its entries in ``compatible`` begin, without ``nvidia,``.
        gpu_cpu: rails of the set ``gpu_cpu``; None where no rails are that.
        module: rails that sum to the module's power.
        modes: nvpmodel's ids, for reference: names decide, ids differ between releases.
        nominal_mhz: mode -> the clock it is advertised to reach; lower tables mean old firmware.
        note: what to know about its rails.
    """

    id: str
    parts: tuple[str, ...]
    gpu_cpu: tuple[str, ...] | None
    module: tuple[str, ...]
    modes: Mapping[int, str] = field(default_factory=dict)
    nominal_mhz: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


BOARDS = (
    Board(
        "jetson-agx-orin-64gb",
        ("p3701-0005",),
        AGX_ORIN_GPU_CPU,
        _AGX_ORIN,
        {0: "MAXN", 1: "MODE_15W", 2: "MODE_30W", 3: "MODE_50W"},
        {"MAXN": 1300.5},
        _AGX_NOTE,
    ),
    Board(
        "jetson-agx-orin-32gb",
        ("p3701-0004",),
        AGX_ORIN_GPU_CPU,
        _AGX_ORIN,
        {0: "MAXN", 1: "MODE_15W", 2: "MODE_30W", 3: "MODE_40W"},
        {"MAXN": 930.75},
        _AGX_NOTE,
    ),
    Board(
        "jetson-agx-orin-industrial",
        ("p3701-0008",),
        AGX_ORIN_GPU_CPU,
        _AGX_ORIN,
        note=_AGX_NOTE + " Rails of the carrier (CVB_...) are not the module's.",
    ),
    Board(
        "jetson-orin-nx-16gb",
        ("p3767-0000",),
        None,
        _INPUT,
        {0: "MAXN", 1: "10W", 2: "15W", 3: "25W"},
        {"MAXN": 918.0, "MAXN_SUPER": 1173.0},
        _INPUT_NOTE,
    ),
    Board(
        "jetson-orin-nx-8gb",
        ("p3767-0001",),
        None,
        _INPUT,
        {0: "MAXN", 1: "10W", 2: "15W", 3: "20W"},
        {"MAXN_SUPER": 1173.0},
        _INPUT_NOTE,
    ),
    Board(
        "jetson-orin-nano-8gb",
        ("p3767-0003", "p3767-0005"),
        None,
        _INPUT,
        _ORIN_NANO_MODES,
        {"MAXN_SUPER": 1020.0, "25W": 918.0},
        _INPUT_NOTE,
    ),
    Board(
        "jetson-orin-nano-4gb",
        ("p3767-0004",),
        None,
        _INPUT,
        {0: "10W", 1: "7W_AI", 2: "7W_CPU"},
        {"MAXN_SUPER": 1020.0},
        _INPUT_NOTE,
    ),
    Board(
        "jetson-agx-xavier",
        ("p2888", "p2972", "p2822", "jetson-xavier", "galen"),
        ("GPU", "CPU"),
        ("GPU", "CPU", "SOC", "CV", "VDDRQ", "SYS5V"),
        {
            0: "MAXN",
            1: "MODE_10W",
            2: "MODE_15W",
            3: "MODE_30W_ALL",
            4: "MODE_30W_6CORE",
            5: "MODE_30W_4CORE",
            6: "MODE_30W_2CORE",
            7: "MODE_15W_DESKTOP",
        },
        {"MAXN": 1377.0},
    ),
    Board(
        "jetson-xavier-nx",
        ("p3668", "jetson-xavier-nx"),
        None,
        _INPUT,
        {
            0: "MODE_15W_2CORE",
            1: "MODE_15W_4CORE",
            2: "MODE_15W_6CORE",
            3: "MODE_10W_2CORE",
            4: "MODE_10W_4CORE",
            5: "MODE_10W_DESKTOP",
            6: "MODE_20W_2CORE",
            7: "MODE_20W_4CORE",
            8: "MODE_20W_6CORE",
        },
        note=_INPUT_NOTE,
    ),
    Board(
        "jetson-agx-thor",
        ("p3834",),
        None,
        ("VIN",),
        {0: "MAXN", 1: "120W", 2: "90W", 3: "70W"},
        note="VIN is the power of the whole system; it is not the sum of the other rails.",
    ),
    Board(
        "jetson-nano",
        ("p3448", "p3450", "jetson-nano"),
        None,
        ("POM_5V_IN",),
        {0: "MAXN", 1: "5W"},
        note="POM_5V_IN is the module's total; the other rails are inside it.",
    ),
)

BY_ID = {board.id: board for board in BOARDS}


def parts_of(compatible: Iterable[str]) -> list[str]:
    """Part numbers in a device tree's ``compatible``: ``nvidia,p3737-0000+p3701-0005-super`` -> both, without the suffix."""
    parts: list[str] = []
    for entry in compatible:
        vendor, _, names = entry.partition(",")
        if vendor == "nvidia":
            parts += [name.removesuffix("-super") for name in names.split("+")]
    return list(dict.fromkeys(parts))


def soc_of(compatible: Iterable[str]) -> str | None:
    """The system-on-chip, ``tegra234``; any other Tegra by its own name; None where it is no Tegra."""
    tegras = [part for part in parts_of(compatible) if part.startswith("tegra")]
    return next((part for part in tegras if part in SOCS), tegras[0] if tegras else None)


def identify(
    compatible: Iterable[str], mem_total_kb: int | None, top_hz: int | None
) -> tuple[Board | None, str]:
    """Which board it is.

    Args:
        compatible: the entries of the device tree's ``compatible``.
        mem_total_kb: memory, kB; None where unknown.
        top_hz: the highest clock of its table; None where unknown.

    Returns:
        The board, None where it is not known, and a sentence where something had to be judged.
    """
    parts = parts_of(compatible)
    found = [
        (len(start), board)
        for board in BOARDS
        for start in board.parts
        for part in parts
        if part == start or part.startswith(f"{start}-")
    ]
    if found:
        return max(found, key=lambda pair: pair[0])[1], ""
    if DEVKIT_AGX_ORIN not in parts:
        return None, ""
    if mem_total_kb is not None:
        board = BY_ID["jetson-agx-orin-64gb" if mem_total_kb > LARGE_MEMORY_KB else "jetson-agx-orin-32gb"]
        by = f"its memory, {mem_total_kb / 2**20:.0f} GiB"
    elif top_hz is not None:
        board = BY_ID["jetson-agx-orin-64gb" if top_hz > 1_000_000_000 else "jetson-agx-orin-32gb"]
        by = f"its highest clock, {top_hz / 1e6:g} MHz"
    else:
        return (
            None,
            f"The module {DEVKIT_AGX_ORIN} has 32 or 64 GB, and neither memory nor clocks could be read.",
        )
    return board, f"The module {DEVKIT_AGX_ORIN} exists with 32 and 64 GB: taken for {board.id} by {by}."
