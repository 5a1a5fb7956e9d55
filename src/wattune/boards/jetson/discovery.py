"""Looking at a board: what is there, with its path; what is not, with the reason, the rest unharmed.

Nothing is taken for granted: node names, hwmon numbers, rails, tables and modes differ between boards and between releases.
Only files that are needed are read (reading some, such as ``counters_reset``, changes the board).
"""

from __future__ import annotations

import errno
import math
import os
import platform
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatch

from wattune.boards.jetson import boards, powermode, reading
from wattune.boards.jetson.diagnosis import diagnose
from wattune.boards.jetson.findings import Filter, Findings, GpuNode, RailChannel
from wattune.boards.jetson.sysfs import Sysfs

RETRY_EVERY_S = 0.1
THOR_TIMEOUT_S = 2.0
NEVER_C = (-100.0, 300.0)
"""Temperatures outside are no temperatures: -256 is what a powered-off block says."""

DEVFREQ = "sys/class/devfreq"
DEVICE_TREES = ("proc/device-tree", "sys/firmware/devicetree/base")
GPU_FALLBACKS = (
    "sys/devices/gpu.0",
    "sys/devices/platform/gpu.0",
    "sys/devices/platform/bus@0/*.gpu",
    *(
        f"sys/devices/{folder}*.{name}"
        for folder in ("platform/", "")
        for name in ("gpu", "ga10b", "gv11b", "gp10b", "gm20b")
    ),
)
_NO_GPU = (
    "gpu-nvd*", "*.vic", "*.nvenc*", "*.nvdec*", "*.nvjpg*", "*.nvdla*", "*.pva*", "bwmgr*", "*emc*", "*.cbb", "*.host1x", "ufs*",
)  # fmt: skip
_GPU_COMPATIBLE = {"nvidia,ga10b", "nvidia,gv11b", "nvidia,gp10b", "nvidia,gm20b"}
_GPU_NAMES = {"ga10b", "gv11b", "gp10b", "gm20b", "gb10b", "gpu"}
_GPU_NODE = re.compile(r"[0-9a-f]+\.(ga10b|gv11b|gp10b|gm20b|gb10b|gpu)")
_COOLERS = ("gpu", "devfreq", "ga10b", "gv11b", "gp10b", "gm20b")

CURRENT_CODE_NV = 40_000
"""Resolution of an INA3221's current: 40 uV over the shunt; divided by microohms it is milliamperes."""

_I2C_DRIVERS = ("ina3221", "ina3221x", "ina238")
_CHIP = re.compile(r"\d+-[0-9a-f]{4}")
_MONITOR_FOLDER = re.compile(r"hwmon\d+|iio[:_]device\d*")
_ZONE_SUFFIX = re.compile(r"[-_](therm|thermal|tegra)$")
_CONSTANT_ZONES = ("pmic",)

_RELEASE = re.compile(r"#?\s*R(\d+)\s*\(release\),\s*REVISION:\s*(\d+(?:\.\d+)*)")
_JETPACKS = {
    "35.1": "5.0.2", "35.1.0": "5.0.2", "35.2.1": "5.1", "35.3.1": "5.1.1", "35.4.1": "5.1.2", "35.5.0": "5.1.3", "35.6.0": "5.1.4",
    "36.3.0": "6.0", "36.4.0": "6.1", "36.4.3": "6.2", "36.4.4": "6.2.1", "38.2.0": "7.0", "38.4.0": "7.1", "39.2.0": "7.2",
}  # fmt: skip
_MAJORS = {"32": "4", "34": "5", "35": "5", "36": "6", "38": "7", "39": "7"}
_KERNELS = {"4.9": "4", "5.10": "5", "5.15": "6", "6.8": "7"}

THOR_READ_ONLY = "writing min_freq or max_freq on a Thor can hang in the kernel for good (seen on JetPack 7.2), so it is never done"


def discover(sysfs: Sysfs, *, retry_s: float = 0.0) -> Findings:
    """Look at a board.

    Args:
        sysfs: where. A Thor is read with a time limit in any case.
        retry_s: how long to look again for a GPU node or power monitors that are not there yet (drivers make them late).

    Returns:
        What was found. Never fails for what is missing; see `errors` and `problems` of the findings.
    """
    findings = Findings(sysfs)
    _identity(findings)
    if findings.soc == "tegra264" and sysfs.timeout_s is None:
        sysfs = findings.sysfs = sysfs.within(THOR_TIMEOUT_S)
    if findings.kind == "jetson":
        until = time.monotonic() + retry_s
        while True:
            _gpu(findings)
            _rails(findings)
            left_s = until - time.monotonic()
            if (findings.gpu is not None and findings.rails) or left_s <= 0:
                break
            time.sleep(min(RETRY_EVERY_S, left_s))
        _board(findings)
        _power_mode(findings)
        _counters(findings)
    _zones(findings)
    _cooling(findings)
    diagnose(findings)
    return findings


# --- who it is --------------------------------------------------------------------------------------------------------


def _identity(findings: Findings) -> None:
    sysfs = findings.sysfs
    for tree in DEVICE_TREES:
        if model := reading.text(sysfs, f"{tree}/model"):
            findings.model = model.replace("\0", " ").strip()
            findings.found["model"] = f"{tree}/model"
            break
    compatible = _compatible(findings)
    findings.kernel = reading.text(sysfs, "proc/sys/kernel/osrelease") or ""
    if not findings.kernel:
        match = re.match(r"Linux version (\S+)", reading.text(sysfs, "proc/version") or "")
        findings.kernel = match[1] if match else os.uname().release if sysfs.is_machine else ""
    findings.boot_id = reading.text(sysfs, "proc/sys/kernel/random/boot_id") or None
    if findings.boot_id is None:
        findings.errors["boot_id"] = "/proc/sys/kernel/random/boot_id could not be read"
    _release(findings)
    findings.soc = boards.soc_of(compatible)
    if not compatible and findings.soc is None:
        findings.soc = _soc_without_device_tree(findings)
    if findings.soc is not None:
        findings.kind = "jetson"
    else:
        findings.kind = _other_kind(findings, compatible)
        if not findings.model:
            findings.model = reading.text(sysfs, "sys/class/dmi/id/product_name") or ""


def _compatible(findings: Findings) -> list[str]:
    for tree in DEVICE_TREES:
        text = reading.text(findings.sysfs, f"{tree}/compatible")
        if text:
            findings.found["compatible"] = f"{tree}/compatible"
            return [entry.strip() for entry in text.split("\0") if entry.strip()]
    return []


def _soc_without_device_tree(findings: Findings) -> str | None:
    """A container may hide the device tree; then the system-on-chip's own files say it is a Tegra."""
    sysfs = findings.sysfs
    number = reading.number(sysfs, "sys/devices/soc0/soc_id")
    if reading.text(sysfs, "sys/devices/soc0/family") == "Tegra":
        findings.found["soc"] = "sys/devices/soc0/soc_id"
        return boards.SOC_IDS.get(number or 0, "tegra")
    if findings.kernel.endswith("-tegra"):
        findings.found["soc"] = "proc/sys/kernel/osrelease"
        return "tegra"
    return None


def _other_kind(findings: Findings, compatible: Sequence[str]) -> str:
    sysfs = findings.sysfs
    product = reading.text(sysfs, "sys/class/dmi/id/product_name") or ""
    texts = [product, findings.model, reading.text(sysfs, "etc/dgx-release") or ""]
    texts += [
        reading.text(sysfs, f"proc/driver/nvidia/gpus/{gpu}/information") or ""
        for gpu in reading.names(sysfs, "proc/driver/nvidia/gpus")
    ]
    if any(re.search(r"DGX[ _]Spark|\bGB10\b", text) for text in texts):
        return "dgx-spark"
    if any(entry.startswith("raspberrypi,") for entry in compatible) or findings.model.startswith(
        "Raspberry Pi"
    ):
        return "raspberry-pi"
    cpuinfo = reading.text(sysfs, "proc/cpuinfo") or ""
    if re.search(r"^vendor_id\s*:\s*(GenuineIntel|AuthenticAMD|HygonGenuine)", cpuinfo, re.MULTILINE):
        return "x86"
    if sysfs.is_machine and platform.machine() in ("x86_64", "AMD64", "i686"):
        return "x86"
    return "other"


def _release(findings: Findings) -> None:
    """The release of Jetson Linux; one that is not known is information and nothing else."""
    path = "etc/nv_tegra_release"
    match = _RELEASE.search(reading.text(findings.sysfs, path) or "")
    if match:
        findings.l4t = f"{match[1]}.{match[2]}"
        findings.found["l4t"] = path
        findings.jetpack = _JETPACKS.get(findings.l4t, _MAJORS.get(match[1]))
    elif "tegra" in findings.kernel:
        major = ".".join(findings.kernel.split(".")[:2])
        findings.jetpack = _KERNELS.get(major)


def _board(findings: Findings) -> None:
    compatible = _compatible(findings)
    top = findings.gpu.table_hz[-1] if findings.gpu is not None and findings.gpu.table_hz else None
    board, said = boards.identify(compatible, _mem_total_kb(findings.sysfs), top)
    if said:
        findings.warnings.append(said)
    if board is not None:
        findings.board = board.id
        findings.gpu_cpu, findings.module = board.gpu_cpu, board.module
        if board.gpu_cpu is None:
            findings.errors["gpu_cpu"] = f"this board has no rails of that set. {board.note}".rstrip()
        return
    parts = ", ".join(boards.parts_of(compatible)) or "its device tree cannot be read"
    findings.errors["board"] = f"no board of our table ({parts})"
    findings.warnings.append(
        f"This Jetson is not in the table of known boards ({parts}), so which rails make up its module is unknown: "
        "module power is not given."
    )
    if all(label in findings.rails for label in boards.AGX_ORIN_GPU_CPU):
        findings.gpu_cpu = boards.AGX_ORIN_GPU_CPU


def _mem_total_kb(sysfs: Sysfs) -> int | None:
    match = re.search(r"^MemTotal:\s*(\d+) kB", reading.text(sysfs, "proc/meminfo") or "", re.MULTILINE)
    return int(match[1]) if match else None


# --- the GPU ----------------------------------------------------------------------------------------------------------


def _gpu(findings: Findings) -> None:
    sysfs = findings.sysfs
    findings.gpu = None
    for key in [key for key in findings.errors if key.startswith("gpu")]:
        del findings.errors[key]
    nodes, seen = _gpu_nodes(sysfs)
    if not nodes:
        have = f" (there: {', '.join(seen)})" if seen else " (it is empty or missing)"
        findings.errors["gpu"] = (
            f"no GPU node in /{DEVFREQ}{have}, nor in {', '.join('/' + place for place in GPU_FALLBACKS[:3])}"
        )
        return
    path = nodes[0]
    findings.found["gpu"] = path
    try:
        findings.gpu = _node(findings, path)
    except OSError as error:
        what = "did not answer" if isinstance(error, TimeoutError) else "could not be read"
        name = str(error.filename or path).rsplit("/", 1)[-1]
        findings.errors["gpu"] = f"{name} of /{path} {what}: {reading.reason_of(error)}"
        return
    if len(nodes) > 1:
        names = ", ".join(node.rsplit("/", 1)[-1] for node in nodes)
        findings.errors["gpu_nodes"] = f"{len(nodes)} GPU nodes ({names}); only the first is shown"


def _gpu_nodes(sysfs: Sysfs) -> tuple[list[str], list[str]]:
    """GPU nodes (resolved), and all names of the devfreq class."""
    names = reading.names(sysfs, DEVFREQ)
    nodes = [sysfs.real(f"{DEVFREQ}/{name}") for name in names if _is_gpu(sysfs, name)]
    for pattern in GPU_FALLBACKS if not nodes else ():
        for device in reading.expand(sysfs, pattern):
            nodes += [
                sysfs.real(f"{device}/devfreq/{name}")
                for name in reading.names(sysfs, f"{device}/devfreq")
                if not _refused(name)
            ]
            if reading.names(sysfs, f"{device}/devfreq_dev"):
                nodes.append(sysfs.real(f"{device}/devfreq_dev"))
    return list(dict.fromkeys(nodes)), names


def _refused(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _NO_GPU)


def _is_gpu(sysfs: Sysfs, name: str) -> bool:
    if _refused(name):
        return False
    if _GPU_NODE.fullmatch(name) or name.startswith("gpu-gpc-"):
        return True
    of_node = f"{DEVFREQ}/{name}/device/of_node"
    compatible = (reading.text(sysfs, f"{of_node}/compatible") or "").split("\0")
    return (
        not _GPU_COMPATIBLE.isdisjoint(compatible)
        or (reading.text(sysfs, f"{of_node}/name") or "").strip("\0") in _GPU_NAMES
    )


def _node(findings: Findings, path: str) -> GpuNode:
    """The node's files.

    Raises:
        OSError: a bound could not be read; ``TimeoutError`` where any read hung: then no more is tried.
    """
    sysfs = findings.sysfs
    low, high = reading.bound(sysfs, f"{path}/min_freq"), reading.bound(sysfs, f"{path}/max_freq")
    listed, current, governor = (
        _node_text(findings, path, file) for file in ("available_frequencies", "cur_freq", "governor")
    )
    table = sorted({int(hz) for hz in listed.split() if reading.CLOCK.fullmatch(hz)} - {0})
    cur_hz = int(current) if reading.CLOCK.fullmatch(current) else None
    if cur_hz == 0:
        cur_hz, findings.errors["gpu_cur_freq"] = None, "0: the GPU is powered off"
    elif cur_hz is None:
        findings.errors.setdefault("gpu_cur_freq", f"'{current[:40]}' is no clock")
    read_only = ""
    if findings.soc == "tegra264" or path.rsplit("/", 1)[-1].startswith("gpu-gpc-"):
        read_only = THOR_READ_ONLY
    elif not table:
        read_only = "its list of clocks (available_frequencies) could not be read"
        findings.errors.setdefault("gpu_available_frequencies", "it lists no clock")
    return GpuNode(path, _device(sysfs, path), tuple(table), low, high, cur_hz, governor, read_only)


def _node_text(findings: Findings, path: str, file: str) -> str:
    """A file of the node, empty with an entry in `errors` where it could not be read.

    Raises:
        TimeoutError: it hung.
    """
    try:
        return findings.sysfs.read(f"{path}/{file}").strip()
    except TimeoutError:
        raise
    except OSError as error:
        findings.errors[f"gpu_{file}"] = reading.reason_of(error)
        return ""


def _device(sysfs: Sysfs, node: str) -> str | None:
    """The GPU's own folder, if it has the driver's files."""
    places = [node.rsplit("/devfreq/", 1)[0]] if "/devfreq/" in node and "/class/" not in node else []
    if sysfs.exists(f"{node}/device"):
        places.insert(0, sysfs.real(f"{node}/device"))
    for place in places:
        if sysfs.exists(f"{place}/load") or sysfs.exists(f"{place}/railgate_enable"):
            return place
    return None


# --- power ------------------------------------------------------------------------------------------------------------


def _rails(findings: Findings) -> None:
    sysfs = findings.sysfs
    findings.rails, findings.filter = {}, Filter(None, None)
    for key in [key for key in findings.errors if key.startswith(("rail", "filter"))]:
        del findings.errors[key]
    filters: dict[str, Filter] = {}
    monitors = _monitors(sysfs)
    for folder, chip, driver in monitors:
        channels = list(_channels(sysfs, folder, chip, driver))
        for channel in channels:
            if channel.label in findings.rails:
                first = findings.rails[channel.label].chip
                findings.errors[f"rail {channel.label} on {chip}"] = f"a rail of that name is on {first} too"
                continue
            findings.rails[channel.label] = channel
            findings.found[f"rail {channel.label}"] = folder
        if channels and driver != "ina238":
            samples, interval = (
                reading.number(sysfs, f"{folder}/{file}") for file in ("samples", "update_interval")
            )
            filters[folder] = Filter(samples, interval)
    if not findings.rails:
        findings.errors["rails"] = (
            "no power monitor (ina3221, ina238) in /sys/bus/i2c/drivers or /sys/class/hwmon"
            if not monitors
            else "the power monitors name no rail"
        )
        return
    known = {folder: found for folder, found in filters.items() if found.samples is not None}
    if known:
        folder, findings.filter = next(iter(known.items()))
        findings.found["filter"] = folder
        if len(set(known.values())) > 1:
            findings.errors["filter_differs"] = "the power monitors average differently: " + ", ".join(
                f"{found.samples} in {folder.rsplit('/', 1)[-1]}" for folder, found in known.items()
            )
    elif filters:
        findings.errors["filter"] = "samples could not be read"
    else:
        findings.errors["filter"] = "no INA3221"


def _monitors(sysfs: Sysfs) -> list[tuple[str, str, str]]:
    """Folders with a power monitor's files, its chip and its driver; each once, by chip."""
    found: dict[str, tuple[str, str]] = {}
    for driver in _I2C_DRIVERS:
        base = f"sys/bus/i2c/drivers/{driver}"
        for chip in reading.names(sysfs, base):
            if _CHIP.fullmatch(chip):
                for folder in _monitor_folders(sysfs, f"{base}/{chip}"):
                    found.setdefault(sysfs.real(folder), (chip, driver))
    for place in ("sys/class/hwmon", "sys/bus/iio/devices"):
        for name in reading.names(sysfs, place):
            folder = sysfs.real(f"{place}/{name}")
            driver = reading.text(sysfs, f"{folder}/name") or ""
            if driver in _I2C_DRIVERS and folder not in found:
                parts = [part for part in folder.split("/") if _CHIP.fullmatch(part)]
                if not parts and sysfs.exists(f"{folder}/device"):
                    parts = [sysfs.real(f"{folder}/device").rsplit("/", 1)[-1]]
                found[folder] = (parts[-1] if parts else name, driver)
    return sorted(((folder, *rest) for folder, rest in found.items()), key=lambda entry: (entry[1], entry[0]))


def _monitor_folders(sysfs: Sysfs, chip: str, depth: int = 3) -> Iterator[str]:
    """Folders of a chip that hold channels: its own, or ``hwmon/hwmonN``, ``iio:deviceN``, ``iio_device`` below."""
    names = reading.names(sysfs, chip)
    if any(re.fullmatch(r"in\d+_(label|input)|rail_name_\d|power\d_input", name) for name in names):
        yield chip
        return
    for name in names if depth else ():
        if name == "hwmon" or _MONITOR_FOLDER.fullmatch(name):
            yield from _monitor_folders(sysfs, f"{chip}/{name}", depth - 1)


def _channels(sysfs: Sysfs, folder: str, chip: str, driver: str) -> Iterator[RailChannel]:
    """A monitor's channels that have a name, each with one way to its power.

    An INA238 multiplies by itself; for an INA3221 voltage times current is finer than whatever power a driver shows.
    """
    names = set(reading.names(sysfs, folder))

    def channel(
        label: str | None, files: tuple[str, str, str], unit_w: float, code_ma: float | None = None
    ) -> Iterator[RailChannel]:
        volt, amp, power = files
        label = (label or "").strip()
        if not label or label == "NC":
            return
        if power in names and (driver == "ina238" or not {volt, amp} <= names):
            yield RailChannel(label, chip, driver, None, None, f"{folder}/{power}", unit_w, code_ma)
        else:
            yield RailChannel(
                label, chip, driver, f"{folder}/{volt}", f"{folder}/{amp}", None, unit_w, code_ma
            )

    if driver == "ina238":
        label = reading.text(sysfs, f"{folder}/label") or reading.text(sysfs, f"{folder}/in1_label")
        yield from channel(label, ("in1_input", "curr1_input", "power1_input"), 1e-6)
    elif any(name.startswith("rail_name_") for name in names):
        for n in (0, 1, 2):
            files = (f"in_voltage{n}_input", f"in_current{n}_input", f"in_power{n}_input")
            yield from channel(reading.text(sysfs, f"{folder}/rail_name_{n}"), files, 1e-3)
    else:
        for n in (1, 2, 3):
            shunt_uohm = reading.number(sysfs, f"{folder}/shunt{n}_resistor")
            code_ma = CURRENT_CODE_NV / shunt_uohm if shunt_uohm else None
            files = (f"in{n}_input", f"curr{n}_input", f"power{n}_input")
            yield from channel(reading.text(sysfs, f"{folder}/in{n}_label"), files, 1e-6, code_ma)


def read_rails_w(findings: Findings) -> tuple[dict[str, float | None], dict[str, str]]:
    """Power of every rail now.

    Returns:
        Label -> watts, None where it could not be read; and label -> why not. A zero is a reading; negative ones stay.
    """
    watts: dict[str, float | None] = {}
    reasons: dict[str, str] = {}
    for label, channel in findings.rails.items():
        read = _channel_w(findings.sysfs, channel)
        if isinstance(read, OSError):
            watts[label], reasons[label] = None, reading.reason_of(read)
        else:
            watts[label] = read
    return watts, reasons


def _channel_w(sysfs: Sysfs, channel: RailChannel) -> float | OSError:
    """A rail's power, or why it could not be read."""
    try:
        if channel.power is not None:
            return reading.whole(sysfs, channel.power) * channel.power_unit_w
        if channel.millivolt is not None and channel.milliampere is not None:
            return reading.whole(sysfs, channel.millivolt) * reading.whole(sysfs, channel.milliampere) / 1e6
    except OSError as error:
        return error
    return OSError(errno.EOPNOTSUPP, "its chip gives neither power nor voltage and current")


def rail_sum_w(
    findings: Findings, labels: Sequence[str] | None, rails_w: Mapping[str, float | None]
) -> float | None:
    """Power of a rail set, watts; None where there is no such set or any member has no reading (never a smaller sum)."""
    if not labels or any(label not in findings.rails for label in labels):
        return None
    powers = [rails_w.get(label) for label in labels]
    return (
        None
        if any(power is None for power in powers)
        else sum(power for power in powers if power is not None)
    )


# --- temperatures, counters -------------------------------------------------------------------------------------------


def _zones(findings: Findings) -> None:
    sysfs = findings.sysfs
    folder = "sys/class/thermal"
    names = [name for name in reading.names(sysfs, folder) if name.startswith("thermal_zone")]
    for name in sorted(names, key=reading.digits):
        kind = reading.text(sysfs, f"{folder}/{name}/type")
        if not kind:
            findings.errors[f"temperature {name}"] = "its type could not be read"
            continue
        zone = _ZONE_SUFFIX.sub("", kind.strip().lower())
        if zone.startswith(_CONSTANT_ZONES):
            continue
        if zone in findings.zones:
            zone = f"{zone}-{reading.digits(name)}"
        findings.zones[zone] = f"{folder}/{name}/temp"
        findings.found[f"temperature {zone}"] = f"{folder}/{name}"
    if not findings.zones:
        findings.errors["temperatures"] = f"no thermal zone in /{folder}"


def temperatures_c(findings: Findings) -> dict[str, float | None]:
    """Zone -> degrees Celsius; None where its block is powered off or it could not be read."""
    found: dict[str, float | None] = {}
    for zone, path in findings.zones.items():
        millidegrees = reading.number(findings.sysfs, path)
        celsius = math.nan if millidegrees is None else millidegrees / 1e3
        found[zone] = celsius if NEVER_C[0] < celsius < NEVER_C[1] else None
    return found


def gpu_load_pct(findings: Findings) -> float | None:
    """The GPU's load now, percent (the driver gives per mille); None where the board has no such file or gives an error."""
    if findings.gpu is None or findings.gpu.device is None:
        return None
    load = reading.number(findings.sysfs, f"{findings.gpu.device}/load")
    return load / 10 if load is not None and 0 <= load <= 1000 else None


def _counters(findings: Findings) -> None:
    sysfs = findings.sysfs
    folders = [f"sys/class/hwmon/{name}" for name in reading.names(sysfs, "sys/class/hwmon")]
    folders += reading.expand(sysfs, "sys/devices/platform/soctherm-oc-event/hwmon/hwmon*")
    for folder in folders:
        if reading.text(sysfs, f"{folder}/name") == "soctherm_oc":
            for file in reading.names(sysfs, folder):
                if match := re.fullmatch(r"(oc\d+)_event_cnt", file):
                    findings.counters.setdefault(match[1], f"{sysfs.real(folder)}/{file}")
    if findings.counters:
        findings.found["counters"] = next(iter(findings.counters.values())).rsplit("/", 1)[0]
    else:
        findings.errors["counters"] = "no over-current counters (hwmon soctherm_oc)"


def _cooling(findings: Findings) -> None:
    sysfs, folder = findings.sysfs, "sys/class/thermal"
    for name in sorted(reading.names(sysfs, folder), key=reading.digits):
        kind = reading.text(sysfs, f"{folder}/{name}/type") if name.startswith("cooling_device") else None
        if kind and any(word in kind.lower() for word in _COOLERS):
            key = kind if kind not in findings.cooling else f"{kind} ({name})"
            findings.cooling[key] = f"{folder}/{name}/cur_state"


def _power_mode(findings: Findings) -> None:
    mode, said = powermode.find_power_mode(findings.sysfs)
    findings.power_mode = mode
    if mode is None:
        findings.errors["power_mode"] = said
    else:
        findings.found["power_mode"] = said
