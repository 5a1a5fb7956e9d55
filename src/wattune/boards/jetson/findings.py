"""What a look at a board finds: each thing with its path, each failure with its reason, the others unharmed."""

from __future__ import annotations

from dataclasses import dataclass, field

from wattune.boards.jetson.sysfs import Sysfs


@dataclass(frozen=True, slots=True)
class GpuNode:
    """The GPU's devfreq node.

    Attributes:
        path: folder of the node in the tree, resolved, e.g. ``sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu``.
        device: folder of the GPU itself (``load``, ``railgate_enable``); None where it has none of these files (Thor).
        table_hz: ``available_frequencies``, ascending.
        min_hz: lower bound when it was looked at; `max_hz` the upper one, which is the power mode's cap unless something is pinned.
        cur_hz: the clock then; None where it could not be read.
        governor: e.g. ``nvhost_podgov``.
        read_only: why this node must not be written; empty where it may.
    """

    path: str
    device: str | None
    table_hz: tuple[int, ...]
    min_hz: int
    max_hz: int
    cur_hz: int | None
    governor: str
    read_only: str = ""

    @property
    def usable_hz(self) -> tuple[int, ...]:
        """Clocks of the table within both bounds found, up to the upper one where the clock is pinned.

        What may be set without defeating the power mode, whose caps the bounds are.
        """
        low = 0 if self.min_hz == self.max_hz else self.min_hz
        return tuple(hz for hz in self.table_hz if low <= hz <= self.max_hz)


@dataclass(frozen=True, slots=True)
class RailChannel:
    """A monitored supply.

    Attributes:
        label: e.g. ``VDD_GPU_SOC``.
        chip: where it was found, e.g. ``1-0040``; `driver` is ``ina3221``, ``ina3221x`` or ``ina238``.
        millivolt: file of the bus voltage; `milliampere` of the current; None where the chip gives power alone.
        power: file of the power; None where it must be computed. `power_unit_w` is what one unit of it is (1e-3, or 1e-6 in hwmon).
        code_ma: resolution of the current (40 uV over the shunt); None where unknown.
    """

    label: str
    chip: str
    driver: str
    millivolt: str | None
    milliampere: str | None
    power: str | None
    power_unit_w: float
    code_ma: float | None


@dataclass(frozen=True, slots=True)
class Filter:
    """Averaging of the power monitors as found: ``samples`` and ``update_interval`` (ms); None where it could not be read."""

    samples: int | None
    update_interval_ms: int | None

    @property
    def tau_s(self) -> float | None:
        """Time constant of the low-pass: an INA3221 averages recursively over its samples, 0.84 ms each; None where unknown."""
        return None if self.samples is None else self.samples * 0.84e-3


@dataclass(frozen=True, slots=True)
class PowerMode:
    """The power mode in force; `id` is nvpmodel's number."""

    name: str
    id: int | None


@dataclass(slots=True)
class Findings:
    """A board as found.

    Attributes:
        sysfs: where it was looked for.
        board: our id; None for a Jetson that is not in the table, and for anything that is no Jetson.
        kind: ``jetson``, or what else it is (``dgx-spark``, ``raspberry-pi``, ``x86``, ``other``).
        model: the board's own text; `soc` e.g. ``tegra234``; `l4t` e.g. ``36.4.7``; `jetpack` e.g. ``6``: None where unknown.
        kernel: ``uname -r``'s text.
        gpu: the GPU's node; None where there is none (the reason is in `errors`).
        rails: monitored supplies by label.
        gpu_cpu: labels of the rail set ``gpu_cpu``; None where the board has no such rails.
        module: labels whose sum is the module's power; None where unknown.
        filter: averaging of the monitors.
        zones: name of a thermal zone (lower case, without ``-therm``/``-thermal``) -> its ``temp`` file.
        counters: over-current counters, name -> file; `cooling` cooling devices of the GPU, type -> ``cur_state`` file.
        power_mode: None where it could not be found.
        boot_id: None where it could not be read.
        emulated: whether the tree says that it is emulated, as it was first looked at; None before.
        found: what -> path. `errors`: what -> reason.
        warnings: sentences for people. `problems`: what cannot work, why, and what to type.
    """

    sysfs: Sysfs
    board: str | None = None
    kind: str = "other"
    model: str = ""
    soc: str | None = None
    l4t: str | None = None
    jetpack: str | None = None
    kernel: str = ""
    gpu: GpuNode | None = None
    rails: dict[str, RailChannel] = field(default_factory=dict)
    gpu_cpu: tuple[str, ...] | None = None
    module: tuple[str, ...] | None = None
    filter: Filter = Filter(None, None)
    zones: dict[str, str] = field(default_factory=dict)
    counters: dict[str, str] = field(default_factory=dict)
    cooling: dict[str, str] = field(default_factory=dict)
    power_mode: PowerMode | None = None
    boot_id: str | None = None
    emulated: bool | None = None
    found: dict[str, str] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def energy_set(self) -> str | None:
        """The rail set that energies of this board are of: ``gpu_cpu`` where there is one, else ``module``; None where neither is."""
        return "gpu_cpu" if self.gpu_cpu else "module" if self.module else None
