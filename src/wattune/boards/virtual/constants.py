"""Modelled boards as data: one file per board, one set of constants per board, none per workload; read with checks.

File format (``schema_version`` 2), JSON (or YAML, where PyYAML is installed)::

    {"schema_version": 2, "board": id, "soc": "tegra234", "power_mode": name of the default mode, "clocks_hz": [306000000, ...],
     "calibration": {"status": "calibrated" | "uncalibrated", "against": [text]},
     "power_modes": [{"name", "id", "gpu_max_hz", "tpcs", "cpus", "cpu_max_mhz", "emc_max_mhz", "source"}],
     "rails": [{"label", "chip", "channel", "bus_v", "shunt_uohm", "parts": [part], "base_w", "inside": label or null,
                "gpu_cpu": bool}],
     "constants": {name: {"value": number, "unit": text, "source": text, "prior": {"value": number, "log_sd": number}}}}

The names and units of the constants are the fields of :class:`BoardConstants`; all are needed, no other is known. A constant
with a ``prior`` is free in the calibration (`wattune validate` refits it); one without is fixed. Adding a board is adding a
file to ``boards/virtual/`` (or naming one anywhere).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from wattune.core.errors import BoardError, InputError
from wattune.core.settings import FrequencyTable

SCHEMA_VERSION = 2
MAY_BE_ZERO = frozenset(
    {
        "host_gap_s",
        "kernel_clocks",
        "leak_per_c",
        "power_noise_rel",
        "time_noise_rel",
        "voltage_slope_v_per_mhz",
    }
)
NEVER_ZERO = frozenset({"gpu_max_hz", "tpcs", "cpus", "cpu_max_mhz", "emc_max_mhz", "bus_v", "shunt_uohm"})
MAX_NUMBER = 1e300
PARTS = ("gpu", "cpu", "dram", "sys")
"""What a rail may feed: the GPU with its clock tree and leakage, the CPU cluster, DRAM traffic, the rest of the module."""


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
        kernel_clocks: GPU clocks that a kernel takes besides its work: start, drain, what does not fill the GPU.
        host_gap_s: time per step in which nothing is issued (batch collation, copy, bookkeeping).
        kernel_overlap_exponent: exponent of the soft maximum of compute and memory time; 1 is one after the other.
        launch_overlap_exponent: exponent of the soft maximum of that and launch time.
        voltage_floor_v: GPU voltage up to the knee.
        voltage_knee_mhz: clock at which the voltage leaves its floor.
        voltage_slope_v_per_mhz: mean rise per MHz over the first 500 MHz above the knee.
        voltage_exponent: exponent of the rise; 1 is a straight line.
        static_w: leakage of the GPU's rail at the floor voltage and 50 C, growing with voltage and temperature.
        leak_per_c: growth of that leakage per degree, as a share of its value at 50 C.
        clock_tree_w_per_mhz_v2: clock distribution, per MHz and square volt.
        energy_per_flop_fp32_j: dynamic energy of one operation at one volt.
        energy_per_flop_half_j: the same for 16-bit precisions.
        energy_per_byte_j: dynamic energy of one byte of kernel traffic in the GPU and SoC, at one volt.
        cpu_idle_w: CPU rail with nothing running.
        cpu_base_w: CPU rail while a training process waits for the GPU.
        cpu_launch_w: additional power while a thread issues kernels.
        sys_base_w: the module's other rails without DRAM traffic.
        dram_energy_per_byte_j: energy of one byte of DRAM traffic, on the rail that feeds the DRAM.
        gated_gpu_w: the GPU's rail while the GPU is rail-gated (what remains is the SoC's share).
        railgate_delay_s: idle time after which the GPU is gated.
        podgov_poll_s: polling interval of the demand-driven governor.
        ambient_c: air temperature.
        thermal_resistance_c_per_w: steady-state rise of the GPU's temperature per watt of module power.
        thermal_time_constant_s: time constant of that rise.
        throttle_c: die temperature above which the GPU's clock is capped.
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
    kernel_clocks: float = _constant("clock")
    host_gap_s: float = _constant("s")
    kernel_overlap_exponent: float = _constant("1")
    launch_overlap_exponent: float = _constant("1")
    voltage_floor_v: float = _constant("V")
    voltage_knee_mhz: float = _constant("MHz")
    voltage_slope_v_per_mhz: float = _constant("V/MHz")
    voltage_exponent: float = _constant("1")
    static_w: float = _constant("W")
    leak_per_c: float = _constant("1/C")
    clock_tree_w_per_mhz_v2: float = _constant("W/(MHz V^2)")
    energy_per_flop_fp32_j: float = _constant("J/(flop V^2)")
    energy_per_flop_half_j: float = _constant("J/(flop V^2)")
    energy_per_byte_j: float = _constant("J/(byte V^2)")
    cpu_idle_w: float = _constant("W")
    cpu_base_w: float = _constant("W")
    cpu_launch_w: float = _constant("W")
    sys_base_w: float = _constant("W")
    dram_energy_per_byte_j: float = _constant("J/byte")
    gated_gpu_w: float = _constant("W")
    railgate_delay_s: float = _constant("s")
    podgov_poll_s: float = _constant("s")
    ambient_c: float = _constant("C")
    thermal_resistance_c_per_w: float = _constant("C/W")
    thermal_time_constant_s: float = _constant("s")
    throttle_c: float = _constant("C")
    power_noise_rel: float = _constant("1")
    time_noise_rel: float = _constant("1")


UNITS: dict[str, str] = {f.name: f.metadata["unit"] for f in fields(BoardConstants)}
"""Constant -> unit, in the order of the file."""


@dataclass(frozen=True, slots=True)
class Prior:
    """What was believed of a constant before the fit: a value and the standard deviation of its logarithm."""

    value: float
    log_sd: float


@dataclass(frozen=True, slots=True)
class Rail:
    """A monitored supply rail.

    Attributes:
        label: as the power monitor names it, e.g. ``VDD_GPU_SOC``.
        chip: i2c address of its INA3221, e.g. ``1-0040``.
        channel: its channel, 1 to 3.
        bus_v: supply voltage.
        shunt_uohm: shunt resistor; one code of 40 uV over it is the current's resolution.
        parts: what it feeds, of `PARTS`.
        base_w: constant power on it besides.
        inside: rail that contains this one, so that it must not be added to it; None for most.
        gpu_cpu: whether it belongs to the rail set ``gpu_cpu``.
    """

    label: str
    chip: str
    channel: int
    bus_v: float
    shunt_uohm: int
    parts: tuple[str, ...]
    base_w: float
    inside: str | None
    gpu_cpu: bool


@dataclass(frozen=True, slots=True)
class PowerMode:
    """A power mode: caps that nvpmodel sets.

    Attributes:
        name: e.g. ``MODE_30W``; `id` is nvpmodel's number.
        gpu_max_hz: cap of the GPU's clock.
        tpcs: texture processing clusters left on.
        cpus: CPU cores left on; `cpu_max_mhz` caps their clock.
        emc_max_mhz: cap of the memory clock.
        source: where the figures come from.
    """

    name: str
    id: int
    gpu_max_hz: int
    tpcs: int
    cpus: int
    cpu_max_mhz: float
    emc_max_mhz: float
    source: str


@dataclass(frozen=True, slots=True)
class BoardFile:
    """A board's file, checked.

    Attributes:
        board: board id.
        soc: e.g. ``tegra234``.
        power_mode: name of the mode the board is in unless told otherwise.
        table: clocks of the GPU, MHz; `clocks_hz` the same in Hz, ascending.
        constants: the numbers; `sources` where each comes from; `priors` those that are free in the calibration.
        calibrated: whether measurements of this very board fixed the constants; `calibrated_against` names them.
        rails: monitored supplies.
        power_modes: name -> mode.
        document: the file's content as read (its digest identifies the board's answers).
    """

    board: str
    soc: str
    power_mode: str
    table: FrequencyTable
    clocks_hz: tuple[int, ...]
    constants: BoardConstants
    sources: Mapping[str, str]
    priors: Mapping[str, Prior]
    calibrated: bool
    calibrated_against: tuple[str, ...]
    rails: tuple[Rail, ...]
    power_modes: Mapping[str, PowerMode]
    document: dict[str, Any]

    @property
    def module_rails(self) -> tuple[Rail, ...]:
        """Rails whose sum is the module's power: all that lie inside no other."""
        return tuple(rail for rail in self.rails if rail.inside is None)

    def mode(self, name: str | None = None) -> PowerMode:
        """A power mode by name, case-insensitive; the default one for None.

        Raises:
            InputError: no such mode.
        """
        name = name or self.power_mode
        for mode in self.power_modes.values():
            if mode.name.lower() == name.lower():
                return mode
        raise InputError(
            f"{self.board} has no power mode '{name}'.", f"One of {', '.join(self.power_modes)} was expected."
        )

    def in_mode(self, name: str) -> BoardFile:
        """The board in another power mode: its clocks capped, its constants scaled.

        Compute and what the GPU can pull from memory scale with the TPCs left on, issuing kernels with the CPU's clock (its power
        with the square), the bandwidth's ceiling with the memory clock. These are priors, no sweep in another mode being public.
        """
        full, mode, c = self.mode(), self.mode(name), self.constants
        tpcs, cpu = mode.tpcs / full.tpcs, mode.cpu_max_mhz / full.cpu_max_mhz
        clocks = tuple(hz for hz in self.clocks_hz if hz <= mode.gpu_max_hz)
        scaled = replace(
            c,
            flop_per_clock_fp32=c.flop_per_clock_fp32 * tpcs,
            flop_per_clock_half=c.flop_per_clock_half * tpcs,
            bytes_per_clock=c.bytes_per_clock * tpcs,
            bandwidth_ceiling_byte_per_s=c.bandwidth_ceiling_byte_per_s * mode.emc_max_mhz / full.emc_max_mhz,
            launch_cost_s=c.launch_cost_s / cpu,
            host_gap_s=c.host_gap_s / cpu,
            cpu_base_w=c.cpu_base_w * cpu * cpu,
            cpu_launch_w=c.cpu_launch_w * cpu * cpu,
        )
        return replace(
            self,
            power_mode=mode.name,
            clocks_hz=clocks,
            table=FrequencyTable.from_hz(clocks),
            constants=scaled,
        )


_KEYS = {
    "schema_version", "board", "soc", "power_mode", "clocks_hz", "calibration", "power_modes", "rails", "constants",
}  # fmt: skip


def parse_board_file(document: Any, where: str) -> BoardFile:
    """Check the content of a board's file.

    Args:
        document: parsed JSON.
        where: name of the file, for messages.

    Raises:
        InputError: another schema version, a missing or unknown constant, a value that is not a positive number, another
            unit than the model's, no source, or rails, modes or clocks that make no sense.
    """
    if isinstance(document, dict) and document.get("schema_version") != SCHEMA_VERSION:
        raise InputError(
            f"{where} has schema version {document.get('schema_version')!r}.",
            f"Version {SCHEMA_VERSION} was expected.",
        )
    if not isinstance(document, dict) or set(document) != _KEYS:
        raise InputError(
            f"{where} is not a board constants file.", f"The keys {', '.join(sorted(_KEYS))} were expected."
        )
    for key in ("board", "soc", "power_mode"):
        if not isinstance(document[key], str) or not document[key]:
            raise InputError(f"{key} in {where} is {document[key]!r}.", "A name was expected.")
    hz = document["clocks_hz"]
    if not isinstance(hz, list) or not all(isinstance(h, int) and _is_number(h) for h in hz):
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
    if unknown := sorted(str(name) for name in set(entries) - set(UNITS)):
        raise InputError(
            f"{where} has the unknown constant {', '.join(unknown)}.", "Only the model's are read."
        )
    values = {name: _checked(name, entries[name], where) for name in UNITS}
    status = document["calibration"]
    if (
        not isinstance(status, dict)
        or status.get("status") not in ("calibrated", "uncalibrated")
        or not isinstance(status.get("against"), list)
        or not all(isinstance(name, str) for name in status["against"])
    ):
        raise InputError(
            f"calibration in {where} is {status!r}.",
            "status (calibrated or uncalibrated) and against (a list of sources) were expected.",
        )
    modes = _list_of(PowerMode, document["power_modes"], "power_modes", where)
    if len({mode.name.lower() for mode in modes}) != len(modes):
        raise InputError(f"power_modes in {where} names a mode twice.", "Distinct names were expected.")
    rails = _list_of(Rail, document["rails"], "rails", where)
    _check_rails(rails, values["sys_base_w"], where)
    board = BoardFile(
        board=document["board"],
        soc=document["soc"],
        power_mode=document["power_mode"],
        table=FrequencyTable.from_hz(hz),
        clocks_hz=tuple(sorted(hz)),
        constants=BoardConstants(**values),
        sources={name: entries[name]["source"] for name in UNITS},
        priors={name: Prior(**entries[name]["prior"]) for name in UNITS if "prior" in entries[name]},
        calibrated=status["status"] == "calibrated",
        calibrated_against=tuple(status["against"]),
        rails=tuple(rails),
        power_modes={mode.name: mode for mode in modes},
        document=document,
    )
    if board.mode().gpu_max_hz < board.clocks_hz[0] or any(m.gpu_max_hz < board.clocks_hz[0] for m in modes):
        raise InputError(
            f"A power mode in {where} caps the GPU below its lowest clock.",
            f"gpu_max_hz of at least {board.clocks_hz[0]} was expected.",
        )
    return board


def _list_of(kind: type[Any], entries: Any, key: str, where: str) -> list[Any]:
    """Entries of a list as dataclass instances, each key present and of the field's type."""
    wanted = {f.name: str(f.type) for f in fields(kind)}
    checks: dict[str, Any] = {
        "str": lambda v: isinstance(v, str) and v,
        "int": lambda v: isinstance(v, int) and _is_number(v) and v >= 0,
        "float": lambda v: _is_number(v) and v >= 0,
        "bool": lambda v: isinstance(v, bool),
        "str | None": lambda v: v is None or isinstance(v, str),
        "tuple[str, ...]": lambda v: isinstance(v, list) and all(isinstance(p, str) for p in v),
    }
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{key} in {where} is empty or not a list.", "At least one entry was expected.")
    made = []
    for number, entry in enumerate(entries, 1):
        if not isinstance(entry, dict) or set(entry) != set(wanted):
            raise InputError(
                f"Entry {number} of {key} in {where} is not usable.",
                f"The keys {', '.join(wanted)} were expected.",
            )
        for name, value in entry.items():
            if not checks[wanted[name]](value) or (value == 0 and name in NEVER_ZERO):
                raise InputError(
                    f"{name} in entry {number} of {key} in {where} is {value!r}.",
                    f"A {wanted[name]} was expected.",
                )
        made.append(kind(**{k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}))
    return made


def _check_rails(rails: list[Rail], sys_base_w: float, where: str) -> None:
    by_label = {rail.label: rail for rail in rails}
    outer = [rail for rail in rails if rail.inside is None]

    def idle_w(rail: Rail) -> float:
        return rail.base_w + (sys_base_w if "sys" in rail.parts else 0.0)

    def fits(rail: Rail) -> bool:
        around = by_label.get(rail.inside or "")
        return around in outer and set(rail.parts) <= set(around.parts) and idle_w(rail) <= idle_w(around)

    if (
        len(by_label) != len(rails)
        or any(part not in PARTS for rail in rails for part in rail.parts)
        or sorted(part for rail in outer for part in rail.parts) != sorted(PARTS)
        or not all(fits(rail) for rail in rails if rail.inside is not None)
        or not any(rail.gpu_cpu for rail in outer)
    ):
        raise InputError(
            f"The rails in {where} do not add up.",
            f"Distinct labels were expected, each part of {', '.join(PARTS)} on exactly one rail that lies inside no other, and inside"
            " a rail only what is part of it.",
        )


def _checked(name: str, entry: Any, where: str) -> float:
    if not isinstance(entry, dict) or set(entry) - {"prior"} != {"value", "unit", "source"}:
        raise InputError(
            f"The constant {name} in {where} is {entry!r}.", "value, unit and source were expected."
        )
    _positive(name, entry["value"], where)
    if entry["unit"] != UNITS[name]:
        raise InputError(
            f"The constant {name} in {where} has the unit {entry['unit']!r}.",
            f"The unit {UNITS[name]!r} was expected.",
        )
    if not isinstance(entry["source"], str) or not entry["source"].strip():
        raise InputError(f"The constant {name} in {where} names no source.", "A short text was expected.")
    if "prior" in entry:
        prior = entry["prior"]
        if not isinstance(prior, dict) or set(prior) != {"value", "log_sd"}:
            raise InputError(
                f"The prior of {name} in {where} is {prior!r}.", "value and log_sd were expected."
            )
        for value in prior.values():
            _positive(f"{name} (its prior)", value, where)
    return float(entry["value"])


def _positive(name: str, value: Any, where: str) -> None:
    if not _is_number(value):
        raise InputError(f"The constant {name} in {where} is {value!r}.", "A number was expected.")
    if value < 0 or (value == 0 and name not in MAY_BE_ZERO):
        raise InputError(f"The constant {name} in {where} is {value!r}.", "A value above 0 was expected.")


def _is_number(value: Any) -> bool:
    """A number that a float can hold; YAML and JSON know larger ones."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -MAX_NUMBER <= value <= MAX_NUMBER


def load_board_file(path: Path) -> BoardFile:
    """Read and check a board's file, JSON or (``.yaml``, ``.yml``) YAML.

    Raises:
        InputError: missing, not JSON or not valid (see :func:`parse_board_file`).
        BoardError: a YAML file, and PyYAML is not installed.
    """
    from wattune.io import read_json, read_text

    what, hint = "The board constants file", "Name a board's file like those in src/wattune/boards/virtual/."
    if path.suffix.lower() not in (".yaml", ".yml"):
        return parse_board_file(read_json(path, what, hint), str(path))
    try:
        import yaml
    except ImportError as error:
        raise BoardError(
            f"{path} is YAML and PyYAML is not installed.", "JSON needs nothing.", "Run `pip install pyyaml`."
        ) from error
    try:
        document = yaml.safe_load(read_text(path, what, hint))
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{what} {path} is not YAML: {' '.join(str(error).split())}.", hint=hint) from error
    return parse_board_file(document, str(path))


def board_files() -> dict[str, Path]:
    """Board id -> its file, of the boards that come with the package."""
    return {path.stem: path for path in sorted(Path(__file__).parent.glob("jetson-*.json"))}


def find_board_file(board: str) -> BoardFile:
    """The board of that id (case-insensitive) that comes with the package.

    Raises:
        InputError: no such board.
    """
    known = board_files()
    if board.lower() not in known:
        raise InputError(
            f"There is no modelled board '{board}'.",
            f"One of {', '.join(known)} was expected.",
            "Name another board's file with --constants FILE.",
        )
    return load_board_file(known[board.lower()])
