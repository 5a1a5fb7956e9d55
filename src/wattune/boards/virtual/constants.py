"""Constants of a modelled board: one set per board, none per workload; read from JSON with checks.

File format (``schema_version`` 1)::

    {"schema_version": 1, "board": id, "power_mode": "MAXN", "clocks_hz": [306000000, ...],
     "constants": {name: {"value": number, "unit": text, "source": text}}}

The names and units are the fields of :class:`BoardConstants`; all are needed, no other is known.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from wattune.core.errors import InputError
from wattune.core.settings import FrequencyTable

SCHEMA_VERSION = 1
MAY_BE_ZERO = frozenset({"host_gap_s", "power_noise_rel", "time_noise_rel"})


def _constant(unit: str) -> Any:
    return field(metadata={"unit": unit})


@dataclass(frozen=True, slots=True)
class BoardConstants:
    """Everything the model knows about a board; units in the names and in the file.

    Attributes:
        flop_per_clock_fp32: peak floating-point operations per GPU clock without tensor cores.
        flop_per_clock_half: peak per GPU clock on tensor cores, 16-bit, dense.
        efficiency_fp32: share of that peak which matrix multiplications of a training step reach.
        efficiency_half: the same for 16-bit precisions.
        bytes_per_clock: memory traffic per GPU clock while the DRAM clock follows the GPU.
        bandwidth_ceiling_byte_per_s: bandwidth that no clock exceeds.
        bandwidth_sharpness: exponent of the smooth minimum of the two.
        dram_share: share of the unfused kernel traffic of forward and backward that reaches DRAM (the optimizer's all does).
        launch_cost_s: CPU time to issue one kernel.
        host_gap_s: time per step in which nothing is issued (batch collation, copy, bookkeeping).
        kernel_overlap_exponent: exponent of the soft maximum of compute and memory time; 1 is one after the other.
        launch_overlap_exponent: exponent of the soft maximum of that and launch time.
        voltage_floor_v: GPU voltage up to the knee.
        voltage_knee_mhz: clock at which the voltage leaves its floor.
        voltage_slope_v_per_mhz: rise above the knee.
        static_w: clock-independent power of VDD_GPU_SOC at the floor voltage, growing with the voltage.
        clock_tree_w_per_mhz_v2: clock distribution, per MHz and square volt.
        energy_per_flop_fp32_j: dynamic energy of one operation at one volt.
        energy_per_flop_half_j: the same for 16-bit precisions.
        energy_per_byte_j: dynamic energy of one byte of kernel traffic in the GPU and SoC, at one volt.
        cpu_base_w: VDD_CPU_CV while a training process waits for the GPU.
        cpu_launch_w: additional power while a thread issues kernels.
        sys_base_w: VIN_SYS_5V0 without DRAM traffic.
        dram_energy_per_byte_j: energy of one byte of DRAM traffic on VIN_SYS_5V0.
        podgov_poll_s: polling interval of the demand-driven governor.
        ambient_c: air temperature.
        thermal_resistance_c_per_w: steady-state rise of the GPU's temperature per watt of module power.
        power_noise_rel: run-to-run spread of power (standard deviation of its logarithm).
        time_noise_rel: run-to-run spread of time, likewise.
    """

    flop_per_clock_fp32: float = _constant("flop/clock")
    flop_per_clock_half: float = _constant("flop/clock")
    efficiency_fp32: float = _constant("1")
    efficiency_half: float = _constant("1")
    bytes_per_clock: float = _constant("byte/clock")
    bandwidth_ceiling_byte_per_s: float = _constant("byte/s")
    bandwidth_sharpness: float = _constant("1")
    dram_share: float = _constant("1")
    launch_cost_s: float = _constant("s")
    host_gap_s: float = _constant("s")
    kernel_overlap_exponent: float = _constant("1")
    launch_overlap_exponent: float = _constant("1")
    voltage_floor_v: float = _constant("V")
    voltage_knee_mhz: float = _constant("MHz")
    voltage_slope_v_per_mhz: float = _constant("V/MHz")
    static_w: float = _constant("W")
    clock_tree_w_per_mhz_v2: float = _constant("W/(MHz V^2)")
    energy_per_flop_fp32_j: float = _constant("J/(flop V^2)")
    energy_per_flop_half_j: float = _constant("J/(flop V^2)")
    energy_per_byte_j: float = _constant("J/(byte V^2)")
    cpu_base_w: float = _constant("W")
    cpu_launch_w: float = _constant("W")
    sys_base_w: float = _constant("W")
    dram_energy_per_byte_j: float = _constant("J/byte")
    podgov_poll_s: float = _constant("s")
    ambient_c: float = _constant("C")
    thermal_resistance_c_per_w: float = _constant("C/W")
    power_noise_rel: float = _constant("1")
    time_noise_rel: float = _constant("1")


UNITS: dict[str, str] = {f.name: f.metadata["unit"] for f in fields(BoardConstants)}
"""Constant -> unit, in the order of the file."""


@dataclass(frozen=True, slots=True)
class BoardFile:
    """A constants file, checked.

    Attributes:
        board: board id.
        power_mode: mode whose caps the clock table reflects.
        table: clocks the GPU can be pinned at.
        constants: the numbers.
        sources: constant -> where its value comes from.
        document: the file's content as read (its digest identifies the board's answers).
    """

    board: str
    power_mode: str
    table: FrequencyTable
    constants: BoardConstants
    sources: dict[str, str]
    document: dict[str, Any]


def parse_board_file(document: Any, where: str) -> BoardFile:
    """Check the content of a constants file.

    Args:
        document: parsed JSON.
        where: name of the file, for messages.

    Raises:
        InputError: another schema version, a missing or unknown constant, a value that is not a positive number, another
            unit than the model's, or no source.
    """
    expected_keys = {"schema_version", "board", "power_mode", "clocks_hz", "constants"}
    if not isinstance(document, dict) or set(document) != expected_keys:
        raise InputError(
            f"{where} is not a board constants file.",
            f"The keys {', '.join(sorted(expected_keys))} were expected.",
        )
    if document["schema_version"] != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema version {document['schema_version']!r}.",
            f"Version {SCHEMA_VERSION} was expected.",
        )
    for key in ("board", "power_mode"):
        if not isinstance(document[key], str) or not document[key]:
            raise InputError(f"{key} in {where} is {document[key]!r}.", "A name was expected.")
    hz = document["clocks_hz"]
    if not isinstance(hz, list) or not all(isinstance(h, int) and not isinstance(h, bool) for h in hz):
        raise InputError(
            f"clocks_hz in {where} is not usable.", "A list of whole numbers of Hz was expected."
        )
    entries = document["constants"]
    if not isinstance(entries, dict):
        raise InputError(
            f"constants in {where} is not a mapping.", "name -> value, unit, source was expected."
        )
    if missing := [name for name in UNITS if name not in entries]:
        raise InputError(f"{where} lacks the constant {', '.join(missing)}.", "Every constant must be given.")
    if unknown := sorted(set(entries) - set(UNITS)):
        raise InputError(
            f"{where} has the unknown constant {', '.join(unknown)}.", "Only the model's are read."
        )
    values = {name: _checked(name, entries[name], where) for name in UNITS}
    return BoardFile(
        board=document["board"],
        power_mode=document["power_mode"],
        table=FrequencyTable.from_hz(hz),
        constants=BoardConstants(**values),
        sources={name: entries[name]["source"] for name in UNITS},
        document=document,
    )


def _checked(name: str, entry: Any, where: str) -> float:
    if not isinstance(entry, dict) or set(entry) != {"value", "unit", "source"}:
        raise InputError(
            f"The constant {name} in {where} is {entry!r}.", "value, unit and source were expected."
        )
    value = entry["value"]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise InputError(f"The constant {name} in {where} is {value!r}.", "A number was expected.")
    if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
        raise InputError(f"The constant {name} in {where} is {value!r}.", "A value above 0 was expected.")
    if entry["unit"] != UNITS[name]:
        raise InputError(
            f"The constant {name} in {where} has the unit {entry['unit']!r}.",
            f"The unit {UNITS[name]!r} was expected.",
        )
    if not isinstance(entry["source"], str) or not entry["source"].strip():
        raise InputError(f"The constant {name} in {where} names no source.", "A short text was expected.")
    return float(value)


def load_board_file(path: Path) -> BoardFile:
    """Read and check a constants file.

    Raises:
        InputError: missing, not JSON or not valid (see :func:`parse_board_file`).
    """
    from wattune.io import read_json

    hint = "Name a constants file of a modelled board in conf/board/."
    return parse_board_file(read_json(path, "The board constants file", hint), str(path))
