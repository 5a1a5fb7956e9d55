"""Board trees for tests: golden ones written by hand from the facts, one per board and JetPack, and the emulator's as plain files.

A golden tree is a plain folder: bounds do not clamp and nothing hangs. Where that matters, mount the emulator's tree.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wattune.boards.virtual.emulator.tree import File, Tree

if TYPE_CHECKING:
    from wattune.boards.virtual.emulator.machine import Machine

BOOT_ID = "11111111-2222-3333-4444-555555555555"
BUS = "sys/bus/i2c/drivers"


def put(root: Path, path: str, content: object) -> Path:
    """Write a file with its folders; a newline is added where the text ends in neither that nor NUL."""
    where = root / path
    where.parent.mkdir(parents=True, exist_ok=True)
    text = str(content)
    where.write_text(text if text.endswith(("\n", "\0")) or not text else text + "\n")
    return where


def put_link(root: Path, path: str, to: str, *, absolute: bool = False) -> None:
    """Link `path` to `to`, both from the root; `absolute` writes the link as a board has it (``/sys/...``)."""
    where = root / path
    where.parent.mkdir(parents=True, exist_ok=True)
    where.symlink_to("/" + to if absolute else posixpath.relpath(to, posixpath.dirname(path)))


def write_tree(root: Path, files: Mapping[str, object], links: Mapping[str, str] | None = None) -> Path:
    """Write files and relative links; returns the root."""
    root.mkdir(parents=True, exist_ok=True)
    for path, content in files.items():
        put(root, path, content)
    for path, to in (links or {}).items():
        put_link(root, path, to)
    return root


def snapshot(tree: Tree, root: Path) -> Path:
    """The emulator's tree at this moment as plain files; what cannot be read is absent. Returns the root."""
    root.mkdir(parents=True, exist_ok=True)
    for path, entry in list(tree.walk()):
        where = root / path
        where.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, File):
            try:
                where.write_text(entry.read())
            except OSError:
                continue
            where.chmod(entry.mode)
        else:
            where.symlink_to(entry.target)
    return root


def emulated_machine(
    *,
    board: str = "jetson-agx-orin-64gb",
    jetpack: str = "6",
    power_mode: str | None = None,
    clock: Callable[[], float] | None = None,
) -> tuple[Machine, Tree]:
    """An idle emulated board and its tree."""
    from wattune.boards.virtual.constants import find_board_file
    from wattune.boards.virtual.emulator.layout import build_tree
    from wattune.boards.virtual.emulator.machine import Machine

    timing = {} if clock is None else {"clock": clock}
    machine = Machine(find_board_file(board), jetpack=jetpack, workload=None, power_mode=power_mode, **timing)
    return machine, build_tree(machine, **timing)


def _table(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


# --- boards by hand ---------------------------------------------------------------------------------------------------

ORIN_TABLE = _table(
    "306000000 408000000 510000000 612000000 714000000 816000000 918000000 1020000000 "
    "1122000000 1224000000 1300500000"
)
ORIN_EARLY_TABLE = _table(
    "114750000 216750000 318750000 420750000 522750000 624750000 726750000 828750000 "
    "930750000 1032750000 1134750000 1236750000 1300500000"
)
XAVIER_TABLE = _table(
    "114750000 216750000 318750000 420750000 522750000 624750000 675750000 828750000 "
    "905250000 1032750000 1198500000 1236750000 1338750000 1377000000"
)
XAVIER_NX_TABLE = _table(
    "114750000 204000000 306000000 408000000 510000000 599250000 701250000 752250000 "
    "803250000 854250000 905250000 956250000 1007250000 1058250000 1109250000"
)
NANO_TABLE = tuple(76800000 * n for n in range(1, 13))

RELEASES = {
    "4": ("# R32 (release), REVISION: 7.4, GCID: 1, BOARD: t186ref, EABI: aarch64, DATE: x", "4.9.337-tegra"),
    "5": (
        "# R35 (release), REVISION: 4.1, GCID: 1, BOARD: t186ref, EABI: aarch64, DATE: x",
        "5.10.120-tegra",
    ),
    "6": (
        "# R36 (release), REVISION: 4.7, GCID: 1, BOARD: generic, EABI: aarch64, DATE: x\n# KERNEL_VARIANT: oot",
        "5.15.148-tegra",
    ),
    "7": (
        "# R38 (release), REVISION: 4.0, GCID: 1, BOARD: generic, EABI: aarch64, DATE: x\n# KERNEL_VARIANT: oot",
        "6.8.12-1002-tegra",
    ),
}

Channel = tuple[str, int, int] | None
"""Label, millivolts, milliamperes; None is a channel that is off."""


@dataclass(frozen=True)
class Chip:
    """An INA3221: where, its three channels and their shunts in microohms; `iio` is JetPack 4's way."""

    name: str
    hwmon: int
    channels: tuple[Channel, Channel, Channel]
    shunt_uohm: int
    iio: bool = False


@dataclass(frozen=True)
class Golden:
    """A board as the facts have it. `min_hz`, `max_hz`: bounds under `mode` (name, id); `expected`: what must be found."""

    board: str | None
    model: str
    compatible: tuple[str, ...]
    jetpack: str
    gpu: str
    device: str
    table: tuple[int, ...]
    min_hz: int
    max_hz: int
    mode: tuple[str, int]
    chips: tuple[Chip, ...]
    gpu_cpu_w: float | None
    module_w: float | None
    mem_gb: int = 64
    of_node: tuple[str, str] | None = ("gpu", "nvidia,ga10b")
    zones: Mapping[str, int] = field(
        default_factory=lambda: {
            "cpu-thermal": 42000,
            "gpu-thermal": 40500,
            "cv0-thermal": -256000,
            "tj-thermal": 42000,
        }
    )
    expected_temps: Mapping[str, float | None] = field(
        default_factory=lambda: {"cpu": 42.0, "gpu": 40.5, "cv0": None, "tj": 42.0}
    )


ORIN6 = "sys/devices/platform/bus@0/17000000.gpu"
ORIN5 = "sys/devices/17000000.ga10b"
XAVIER5 = "sys/devices/17000000.gv11b"
OLD_ZONES = {
    "CPU-therm": 42000,
    "GPU-therm": 40500,
    "CV0-therm": -256000,
    "Tboard_tegra": 32000,
    "PMIC-Die": 100000,
}
OLD_TEMPS: dict[str, float | None] = {"cpu": 42.0, "gpu": 40.5, "cv0": None, "tboard": 32.0}


def _agx(hwmon: int = 3, *, old: bool = False) -> tuple[Chip, ...]:
    nc: Channel = ("NC", 0, 0) if old else None
    return (
        Chip("1-0040", hwmon, (("VDD_GPU_SOC", 19864, 260), ("VDD_CPU_CV", 19864, 80), ("VIN_SYS_5V0", 5008, 920)), 2000),
        Chip("1-0041", hwmon + 1, (nc, ("VDDQ_VDD2_1V8AO", 5008, 120), nc), 2000),
    )  # fmt: skip


def _small(
    chip: str, hwmon: int, ma: tuple[int, int, int] = (3232, 1400, 616), *, soc: bool = True
) -> tuple[Chip, ...]:
    last: Channel = ("VDD_SOC", 5064, ma[2]) if soc else None
    return (Chip(chip, hwmon, (("VDD_IN", 5064, ma[0]), ("VDD_CPU_GPU_CV", 5064, ma[1]), last), 5000),)


AGX_W = (19864 * 260 + 19864 * 80) / 1e6
AGX_MODULE_W = AGX_W + 5008 * 920 / 1e6
SMALL_W = 5064 * 3232 / 1e6
XAVIER_CHIPS = (
    Chip("1-0040", 1, (("GPU", 19000, 104), ("CPU", 19000, 48), ("SOC", 19000, 96)), 5000),
    Chip("1-0041", 2, (("CV", 19000, 8), ("VDDRQ", 19000, 40), ("SYS5V", 19000, 160)), 5000),
)

GOLDEN = {
    "F1": Golden(
        "jetson-agx-orin-64gb",
        "NVIDIA Jetson AGX Orin Developer Kit",
        ("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"),
        "6",
        "17000000.gpu",
        ORIN6,
        ORIN_TABLE,
        306000000,
        612000000,
        ("MODE_30W", 2),
        _agx(),
        AGX_W,
        AGX_MODULE_W,
    ),
    "F2": Golden(
        "jetson-orin-nano-8gb",
        "NVIDIA Jetson Orin Nano Engineering Reference Developer Kit Super",
        ("nvidia,p3768-0000+p3767-0005-super", "nvidia,p3767-0005", "nvidia,tegra234"),
        "6",
        "17000000.gpu",
        ORIN6,
        ORIN_TABLE[:8],
        306000000,
        918000000,
        ("25W", 1),
        _small("1-0040", 1),
        None,
        SMALL_W,
        mem_gb=8,
    ),
    "F3": Golden(
        "jetson-agx-xavier",
        "Jetson-AGX",
        ("nvidia,p2972-0000", "nvidia,tegra194"),
        "5",
        "17000000.gv11b",
        XAVIER5,
        XAVIER_TABLE,
        318750000,
        675750000,
        ("MODE_15W", 2),
        XAVIER_CHIPS,
        19 * 0.152,
        19 * 0.456,
        mem_gb=32,
        of_node=("gv11b", "nvidia,gv11b"),
        zones=OLD_ZONES,
        expected_temps=OLD_TEMPS,
    ),
    "F4": Golden(
        "jetson-agx-orin-64gb",
        "NVIDIA Jetson AGX Orin Developer Kit",
        ("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234", "nvidia,tegra23x"),
        "5",
        "17000000.ga10b",
        ORIN5,
        ORIN_EARLY_TABLE,
        114750000,
        1300500000,
        ("MAXN", 0),
        _agx(1, old=True),
        AGX_W,
        AGX_MODULE_W,
        of_node=("ga10b", "nvidia,ga10b"),
        zones=OLD_ZONES,
        expected_temps=OLD_TEMPS,
    ),
    "agx-orin-jp7": Golden(
        "jetson-agx-orin-64gb",
        "NVIDIA Jetson AGX Orin Developer Kit",
        ("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"),
        "7",
        "17000000.gpu",
        ORIN6,
        ORIN_TABLE,
        306000000,
        1300500000,
        ("MAXN", 0),
        _agx(),
        AGX_W,
        AGX_MODULE_W,
    ),
    "agx-orin-32": Golden(
        "jetson-agx-orin-32gb",
        "Jetson AGX Orin for DSBOARD-AGX",
        ("nvidia,p3737-0000+p3701-0004", "nvidia,p3701-0004", "nvidia,tegra234"),
        "5",
        "17000000.ga10b",
        "sys/devices/platform/17000000.ga10b",
        ORIN_EARLY_TABLE[:9],
        114750000,
        930750000,
        ("MAXN", 0),
        _agx(2, old=True),
        AGX_W,
        AGX_MODULE_W,
        mem_gb=32,
        of_node=("ga10b", "nvidia,ga10b"),
        zones=OLD_ZONES,
        expected_temps=OLD_TEMPS,
    ),
    "orin-nx-16": Golden(
        "jetson-orin-nx-16gb",
        "NVIDIA Jetson Orin NX Engineering Reference Developer Kit",
        ("nvidia,p3768-0000+p3767-0000", "nvidia,p3767-0000", "nvidia,tegra234"),
        "6",
        "17000000.gpu",
        ORIN6,
        ORIN_TABLE[:7],
        306000000,
        918000000,
        ("25W", 3),
        _small("1-0040", 4),
        None,
        SMALL_W,
        mem_gb=16,
    ),
    "orin-nx-8": Golden(
        "jetson-orin-nx-8gb",
        "NVIDIA Jetson Orin NX",
        ("nvidia,p3509-0000+p3767-0001", "nvidia,tegra234"),
        "5",
        "17000000.ga10b",
        "sys/devices/platform/17000000.ga10b",
        ORIN_TABLE[:7],
        306000000,
        612000000,
        ("15W", 2),
        _small("1-0040", 3),
        None,
        SMALL_W,
        mem_gb=8,
        of_node=("ga10b", "nvidia,ga10b"),
        zones=OLD_ZONES,
        expected_temps=OLD_TEMPS,
    ),
    "orin-nano-4": Golden(
        "jetson-orin-nano-4gb",
        "NVIDIA Orin Nano Developer Kit",
        ("nvidia,p3768-0000+p3767-0004", "nvidia,tegra234"),
        "6",
        "17000000.gpu",
        "sys/devices/platform/17000000.gpu",
        (306000000, 408000000, 510000000, 612000000, 624750000),
        306000000,
        624750000,
        ("10W", 0),
        _small("1-0040", 1, soc=False),
        None,
        SMALL_W,
        mem_gb=4,
    ),
    "xavier-nx": Golden(
        "jetson-xavier-nx",
        "NVIDIA Jetson Xavier NX Developer Kit",
        ("nvidia,p3509-0000+p3668-0000", "nvidia,tegra194"),
        "5",
        "17000000.gv11b",
        "sys/devices/platform/17000000.gv11b",
        XAVIER_NX_TABLE,
        114750000,
        1109250000,
        ("MODE_20W_6CORE", 8),
        _small("7-0040", 3),
        None,
        SMALL_W,
        mem_gb=8,
        of_node=("gv11b", "nvidia,gv11b"),
        zones=OLD_ZONES,
        expected_temps=OLD_TEMPS,
    ),
    "xavier-nx-jp4": Golden(
        "jetson-xavier-nx",
        "NVIDIA Jetson Xavier NX Developer Kit",
        ("nvidia,p3449-0000+p3668-0000", "nvidia,jetson-xavier-nx", "nvidia,tegra194"),
        "4",
        "17000000.gv11b",
        XAVIER5,
        XAVIER_NX_TABLE,
        114750000,
        1109250000,
        ("MODE_15W_6CORE", 2),
        (
            Chip(
                "7-0040",
                0,
                (("VDD_IN", 5064, 3232), ("VDD_CPU_GPU_CV", 5064, 1400), ("VDD_SOC", 5064, 616)),
                5000,
                iio=True,
            ),
        ),
        None,
        SMALL_W,
        mem_gb=8,
        of_node=("gv11b", "nvidia,gv11b"),
        zones=OLD_ZONES,
        expected_temps=OLD_TEMPS,
    ),
    "nano-jp4": Golden(
        "jetson-nano",
        "NVIDIA Jetson Nano Developer Kit",
        ("nvidia,p3450-0000", "nvidia,jetson-nano", "nvidia,tegra210"),
        "4",
        "57000000.gpu",
        "sys/devices/57000000.gpu",
        NANO_TABLE,
        76800000,
        921600000,
        ("MAXN", 0),
        (
            Chip(
                "6-0040",
                0,
                (("POM_5V_IN", 5000, 800), ("POM_5V_GPU", 5000, 100), ("POM_5V_CPU", 5000, 180)),
                5000,
                iio=True,
            ),
        ),
        None,
        4.0,
        mem_gb=4,
        of_node=("gpu", "nvidia,gm20b"),
        zones=OLD_ZONES,
        expected_temps=OLD_TEMPS,
    ),
}


def golden(name: str, root: Path, *, absolute_links: bool = False) -> Path:
    """Write a golden tree (F1-F9 or another name of `GOLDEN`); returns the root."""
    root.mkdir(parents=True, exist_ok=True)
    if name in GOLDEN:
        _write(GOLDEN[name], root, absolute_links)
    else:
        {"F5": thor, "F6": workstation, "F7": raspberry_pi, "F8": bare_jetson, "F9": container}[name](root)
    return root


def identity(root: Path, model: str, compatible: tuple[str, ...], jetpack: str, mem_gb: int) -> None:
    """What says which board, release and boot it is."""
    release, kernel = RELEASES[jetpack]
    put(root, "proc/device-tree/model", model + "\0")
    put(root, "proc/device-tree/compatible", "".join(f"{name}\0" for name in compatible))
    put(root, "etc/nv_tegra_release", release)
    put(root, "proc/sys/kernel/osrelease", kernel)
    put(root, "proc/sys/kernel/random/boot_id", BOOT_ID)
    put(
        root, "proc/meminfo", f"MemTotal:       {round(mem_gb * 0.98 * 2**20)} kB\nMemFree:        1000000 kB"
    )


def gpu_node(root: Path, device: str, name: str, table: tuple[int, ...], low: int, high: int) -> str:
    """A devfreq node with its class link; returns its path."""
    node = f"{device}/devfreq/{name}"
    for file, text in {
        "available_frequencies": " ".join(map(str, table)), "min_freq": low, "max_freq": high, "cur_freq": low,
        "governor": "nvhost_podgov", "available_governors": "nvhost_podgov userspace performance simple_ondemand",
    }.items():  # fmt: skip
        put(root, f"{node}/{file}", text)
    return node


def _write(golden: Golden, root: Path, absolute: bool) -> None:
    identity(root, golden.model, golden.compatible, golden.jetpack, golden.mem_gb)
    node = gpu_node(root, golden.device, golden.gpu, golden.table, golden.min_hz, golden.max_hz)
    put_link(root, f"sys/class/devfreq/{golden.gpu}", node, absolute=absolute)
    put_link(root, f"{node}/device", golden.device, absolute=absolute)
    for file, text in {
        "load": 137,
        "railgate_enable": 1,
        "power/control": "auto",
        "counters_reset": "0 0",
    }.items():
        put(root, f"{golden.device}/{file}", text)
    if golden.of_node:
        put(root, f"{golden.device}/of_node/name", golden.of_node[0] + "\0")
        put(root, f"{golden.device}/of_node/compatible", golden.of_node[1] + "\0")
    for chip in golden.chips:
        write_chip(root, chip)
    thermal(root, golden.zones)
    power_mode(root, *golden.mode)
    oc = "sys/devices/platform/soctherm-oc-event/hwmon/hwmon9"
    put(root, f"{oc}/name", "soctherm_oc")
    for counter in (1, 2, 3):
        put(root, f"{oc}/oc{counter}_event_cnt", 0)
    put_link(root, "sys/class/hwmon/hwmon9", oc, absolute=absolute)
    put(root, "sys/class/thermal/cooling_device0/type", "pwm-fan")
    put(root, "sys/class/thermal/cooling_device0/cur_state", 1)
    put(root, "sys/class/thermal/cooling_device1/type", f"devfreq-{golden.gpu}")
    put(root, "sys/class/thermal/cooling_device1/cur_state", 0)


def power_mode(root: Path, name: str, number: int, *, others: tuple[tuple[str, int], ...] = ()) -> None:
    """nvpmodel's files."""
    modes = sorted({(name, number), *others}, key=lambda mode: mode[1])
    put(
        root,
        "etc/nvpmodel.conf",
        "\n".join(f"< POWER_MODEL ID={i} NAME={n} >\nGPU MIN_FREQ 0\nGPU MAX_FREQ -1" for n, i in modes)
        + f"\n< PM_CONFIG DEFAULT={number} >",
    )
    put(root, "var/lib/nvpmodel/status", f"pmode:{number:04d} fmode:fan_mode_quiet")


def thermal(root: Path, zones: Mapping[str, int]) -> None:
    """Thermal zones: type -> millidegrees."""
    for number, (kind, mc) in enumerate(zones.items()):
        put(root, f"sys/class/thermal/thermal_zone{number}/type", kind)
        put(root, f"sys/class/thermal/thermal_zone{number}/temp", mc)


def write_chip(root: Path, chip: Chip) -> None:
    """A power monitor, as hwmon or as JetPack 4's iio device."""
    if chip.iio:
        base = f"{BUS}/ina3221x/{chip.name}"
        put(root, f"{base}/name", "ina3221x")
        base += f"/iio:device{chip.hwmon}"
        for channel, entry in enumerate(chip.channels):
            if entry:
                label, mv, ma = entry
                put(root, f"{base}/rail_name_{channel}", label)
                put(root, f"{base}/in_voltage{channel}_input", mv)
                put(root, f"{base}/in_current{channel}_input", ma)
                put(root, f"{base}/in_power{channel}_input", mv * ma // 1000)
        return
    base = f"{BUS}/ina3221/{chip.name}/hwmon/hwmon{chip.hwmon}"
    put(root, f"{base}/name", "ina3221")
    put(root, f"{base}/samples", 512)
    put(root, f"{base}/update_interval", 430)
    put(root, f"{base}/in7_label", "sum of shunt voltages")
    put(root, f"{base}/in7_input", 1234)
    for channel, entry in enumerate(chip.channels, 1):
        put(root, f"{base}/in{channel}_enable", int(entry is not None))
        put(root, f"{base}/shunt{channel}_resistor", chip.shunt_uohm)
        if entry:
            label, mv, ma = entry
            put(root, f"{base}/in{channel}_label", label)
            put(root, f"{base}/in{channel}_input", mv)
            put(root, f"{base}/curr{channel}_input", ma)
            put(root, f"{base}/in{channel + 3}_input", ma * chip.shunt_uohm // 1000)


def thor(root: Path) -> None:
    """F5: GPU node without device files, an INA238 for the total."""
    identity(
        root,
        "NVIDIA Jetson AGX Thor Developer Kit",
        ("nvidia,p3971-0089+p3834-0008", "nvidia,p3834-0008", "nvidia,tegra264"),
        "7",
        128,
    )
    for name, low, high in (
        ("gpu-gpc-0", 315000000, 1575000000),
        ("gpu-nvd-0", 315000000, 1692000000),
        ("bwmgr", 665600000, 4266000000),
        ("8188050000.vic", 115200000, 729600000),
    ):
        for file, text in {
            "available_frequencies": f"{low} {high}",
            "min_freq": low,
            "max_freq": high,
            "cur_freq": low,
            "governor": "nvhost_podgov",
        }.items():
            put(root, f"sys/class/devfreq/{name}/{file}", text)
    write_chip(
        root,
        Chip(
            "2-0040",
            3,
            (("VDD_GPU", 19000, 0), ("VDD_CPU_SOC_MSS", 19000, 310), ("VIN_SYS_5V0", 5000, 1127)),
            2000,
        ),
    )
    ina238 = f"{BUS}/ina238/2-0044/hwmon/hwmon4"
    for file, text in {
        "name": "ina238",
        "label": "VIN",
        "power1_input": 19780000,
        "in1_input": 19780,
        "temp1_input": 40000,
    }.items():
        put(root, f"{ina238}/{file}", text)
    thermal(
        root,
        {
            "cpu-thermal": 37343,
            "tj-thermal": 38875,
            "soc012-thermal": 37468,
            "soc345-thermal": 37406,
            "gpu-thermal": 38875,
        },
    )
    power_mode(root, "120W", 1, others=(("MAXN", 0),))


def workstation(root: Path) -> None:
    """F6: x86 with an NVIDIA graphics card."""
    put(
        root,
        "proc/cpuinfo",
        "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel name\t: Intel(R) Xeon(R) W-2245\nflags\t\t: fpu sse2",
    )
    put(root, "proc/sys/kernel/osrelease", "6.8.0-50-generic")
    put(root, "proc/sys/kernel/random/boot_id", BOOT_ID)
    put(root, "sys/class/dmi/id/product_name", "Precision 5820 Tower")
    put(root, "sys/bus/pci/devices/0000:65:00.0/vendor", "0x10de")
    put(root, "sys/bus/pci/devices/0000:65:00.0/class", "0x030000")
    (root / "sys/class/devfreq").mkdir(parents=True)


def raspberry_pi(root: Path) -> None:
    """F7: an Arm board that is no Tegra; its GPU has a devfreq node too."""
    put(root, "proc/device-tree/model", "Raspberry Pi 5 Model B Rev 1.0\0")
    put(root, "proc/device-tree/compatible", "raspberrypi,5-model-b\0brcm,bcm2712\0")
    put(root, "proc/sys/kernel/osrelease", "6.6.31+rpt-rpi-2712")
    gpu_node(root, "sys/class", "1002000000.v3d", (500000000, 960000000), 500000000, 960000000)
    put(root, "sys/class/thermal/thermal_zone0/type", "cpu-thermal")
    put(root, "sys/class/thermal/thermal_zone0/temp", 51000)


def spark(root: Path) -> None:
    """A DGX Spark: aarch64, NVIDIA, no Tegra."""
    put(root, "proc/cpuinfo", "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd85")
    put(root, "proc/sys/kernel/osrelease", "6.11.0-1016-nvidia")
    put(root, "sys/class/dmi/id/sys_vendor", "NVIDIA")
    put(root, "sys/class/dmi/id/product_name", "NVIDIA_DGX_Spark")
    put(root, "proc/driver/nvidia/gpus/000f:01:00.0/information", "Model: \t\t NVIDIA GB10\nIRQ: 1")
    (root / "sys/class/devfreq").mkdir(parents=True)


def bare_jetson(root: Path) -> None:
    """F8: a Jetson whose devfreq class is empty."""
    identity(
        root,
        "NVIDIA Jetson AGX Orin Developer Kit",
        ("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"),
        "6",
        64,
    )
    (root / "sys/class/devfreq").mkdir(parents=True)
    for chip in _agx():
        write_chip(root, chip)


def container(root: Path) -> None:
    """F9: an unprivileged container on F1: no release file, firmware masked; mount its sys read-only for the rest."""
    golden("F1", root)
    put(root, ".dockerenv", "")
    for gone in (
        "etc/nv_tegra_release",
        "etc/nvpmodel.conf",
        "var/lib/nvpmodel/status",
        "proc/device-tree/model",
        "proc/device-tree/compatible",
    ):
        (root / gone).unlink()
    put(root, "sys/devices/soc0/family", "Tegra")
    put(root, "sys/devices/soc0/soc_id", 35)
