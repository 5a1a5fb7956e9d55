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

from wattune.boards.jetson import boards, powermode
from wattune.boards.jetson.findings import Filter, Findings, GpuNode, RailChannel
from wattune.boards.jetson.sysfs import Sysfs

RETRY_EVERY_S = 0.1
THOR_TIMEOUT_S = 2.0
NEVER_C = (-100.0, 300.0)
"""Temperatures outside are no temperatures: -256 is what a powered-off block says."""

EMULATED = "emulator/status.json"
"""A file that only an emulated board has."""

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


def reason_of(error: OSError) -> str:
    """Why a file could not be read, in words."""
    return {
        errno.ENOENT: "it is not there",
        errno.ENODATA: "its channel is switched off (ENODATA)",
        errno.EAGAIN: "its block is powered off or not ready (EAGAIN)",
        errno.EACCES: "no permission (EACCES)",
        errno.ETIMEDOUT: error.strerror or "no answer",
    }.get(error.errno or 0, error.strerror or str(error))


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
    _say(findings)
    return findings


# --- who it is --------------------------------------------------------------------------------------------------------


def _identity(findings: Findings) -> None:
    sysfs = findings.sysfs
    for tree in DEVICE_TREES:
        if model := _text(sysfs, f"{tree}/model"):
            findings.model = model.replace("\0", " ").strip()
            findings.found["model"] = f"{tree}/model"
            break
    compatible = _compatible(findings)
    findings.kernel = _text(sysfs, "proc/sys/kernel/osrelease") or ""
    if not findings.kernel:
        match = re.match(r"Linux version (\S+)", _text(sysfs, "proc/version") or "")
        findings.kernel = match[1] if match else os.uname().release if sysfs.is_machine else ""
    findings.boot_id = _text(sysfs, "proc/sys/kernel/random/boot_id") or None
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
            findings.model = _text(sysfs, "sys/class/dmi/id/product_name") or ""


def _compatible(findings: Findings) -> list[str]:
    for tree in DEVICE_TREES:
        text = _text(findings.sysfs, f"{tree}/compatible")
        if text:
            findings.found["compatible"] = f"{tree}/compatible"
            return [entry.strip() for entry in text.split("\0") if entry.strip()]
    return []


def _soc_without_device_tree(findings: Findings) -> str | None:
    """A container may hide the device tree; then the system-on-chip's own files say it is a Tegra."""
    sysfs = findings.sysfs
    number = _number(sysfs, "sys/devices/soc0/soc_id")
    if _text(sysfs, "sys/devices/soc0/family") == "Tegra":
        findings.found["soc"] = "sys/devices/soc0/soc_id"
        return boards.SOC_IDS.get(number or 0, "tegra")
    if findings.kernel.endswith("-tegra"):
        findings.found["soc"] = "proc/sys/kernel/osrelease"
        return "tegra"
    return None


def _other_kind(findings: Findings, compatible: Sequence[str]) -> str:
    sysfs = findings.sysfs
    product = _text(sysfs, "sys/class/dmi/id/product_name") or ""
    texts = [product, findings.model, _text(sysfs, "etc/dgx-release") or ""]
    texts += [
        _text(sysfs, f"proc/driver/nvidia/gpus/{gpu}/information") or ""
        for gpu in _names(sysfs, "proc/driver/nvidia/gpus")
    ]
    if any(re.search(r"DGX[ _]Spark|\bGB10\b", text) for text in texts):
        return "dgx-spark"
    if any(entry.startswith("raspberrypi,") for entry in compatible) or findings.model.startswith(
        "Raspberry Pi"
    ):
        return "raspberry-pi"
    cpuinfo = _text(sysfs, "proc/cpuinfo") or ""
    if re.search(r"^vendor_id\s*:\s*(GenuineIntel|AuthenticAMD|HygonGenuine)", cpuinfo, re.MULTILINE):
        return "x86"
    if sysfs.is_machine and platform.machine() in ("x86_64", "AMD64", "i686"):
        return "x86"
    return "other"


def _release(findings: Findings) -> None:
    """The release of Jetson Linux; one that is not known is information and nothing else."""
    path = "etc/nv_tegra_release"
    match = _RELEASE.search(_text(findings.sysfs, path) or "")
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
    match = re.search(r"^MemTotal:\s*(\d+) kB", _text(sysfs, "proc/meminfo") or "", re.MULTILINE)
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
        findings.errors["gpu"] = f"{name} of /{path} {what}: {reason_of(error)}"
        return
    if len(nodes) > 1:
        names = ", ".join(node.rsplit("/", 1)[-1] for node in nodes)
        findings.errors["gpu_nodes"] = f"{len(nodes)} GPU nodes ({names}); only the first is shown"


def _gpu_nodes(sysfs: Sysfs) -> tuple[list[str], list[str]]:
    """GPU nodes (resolved), and all names of the devfreq class."""
    names = _names(sysfs, DEVFREQ)
    nodes = [sysfs.real(f"{DEVFREQ}/{name}") for name in names if _is_gpu(sysfs, name)]
    for pattern in GPU_FALLBACKS if not nodes else ():
        for device in _expand(sysfs, pattern):
            nodes += [
                sysfs.real(f"{device}/devfreq/{name}")
                for name in _names(sysfs, f"{device}/devfreq")
                if not _refused(name)
            ]
            if _names(sysfs, f"{device}/devfreq_dev"):
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
    compatible = (_text(sysfs, f"{of_node}/compatible") or "").split("\0")
    return (
        not _GPU_COMPATIBLE.isdisjoint(compatible)
        or (_text(sysfs, f"{of_node}/name") or "").strip("\0") in _GPU_NAMES
    )


def _node(findings: Findings, path: str) -> GpuNode:
    """The node's files.

    Raises:
        OSError: a bound could not be read; ``TimeoutError`` where any read hung: then no more is tried.
    """
    sysfs = findings.sysfs
    low, high = _bound(sysfs, f"{path}/min_freq"), _bound(sysfs, f"{path}/max_freq")
    listed, current, governor = (
        _node_text(findings, path, file) for file in ("available_frequencies", "cur_freq", "governor")
    )
    table = sorted({int(hz) for hz in listed.split() if _CLOCK.fullmatch(hz)} - {0})
    cur_hz = int(current) if _CLOCK.fullmatch(current) else None
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
        findings.errors[f"gpu_{file}"] = reason_of(error)
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
                _number(sysfs, f"{folder}/{file}") for file in ("samples", "update_interval")
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
        for chip in _names(sysfs, base):
            if _CHIP.fullmatch(chip):
                for folder in _monitor_folders(sysfs, f"{base}/{chip}"):
                    found.setdefault(sysfs.real(folder), (chip, driver))
    for place in ("sys/class/hwmon", "sys/bus/iio/devices"):
        for name in _names(sysfs, place):
            folder = sysfs.real(f"{place}/{name}")
            driver = _text(sysfs, f"{folder}/name") or ""
            if driver in _I2C_DRIVERS and folder not in found:
                parts = [part for part in folder.split("/") if _CHIP.fullmatch(part)]
                if not parts and sysfs.exists(f"{folder}/device"):
                    parts = [sysfs.real(f"{folder}/device").rsplit("/", 1)[-1]]
                found[folder] = (parts[-1] if parts else name, driver)
    return sorted(((folder, *rest) for folder, rest in found.items()), key=lambda entry: (entry[1], entry[0]))


def _monitor_folders(sysfs: Sysfs, chip: str, depth: int = 3) -> Iterator[str]:
    """Folders of a chip that hold channels: its own, or ``hwmon/hwmonN``, ``iio:deviceN``, ``iio_device`` below."""
    names = _names(sysfs, chip)
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
    names = set(_names(sysfs, folder))

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
        label = _text(sysfs, f"{folder}/label") or _text(sysfs, f"{folder}/in1_label")
        yield from channel(label, ("in1_input", "curr1_input", "power1_input"), 1e-6)
    elif any(name.startswith("rail_name_") for name in names):
        for n in (0, 1, 2):
            files = (f"in_voltage{n}_input", f"in_current{n}_input", f"in_power{n}_input")
            yield from channel(_text(sysfs, f"{folder}/rail_name_{n}"), files, 1e-3)
    else:
        for n in (1, 2, 3):
            shunt_uohm = _number(sysfs, f"{folder}/shunt{n}_resistor")
            code_ma = CURRENT_CODE_NV / shunt_uohm if shunt_uohm else None
            files = (f"in{n}_input", f"curr{n}_input", f"power{n}_input")
            yield from channel(_text(sysfs, f"{folder}/in{n}_label"), files, 1e-6, code_ma)


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
            watts[label], reasons[label] = None, reason_of(read)
        else:
            watts[label] = read
    return watts, reasons


def _channel_w(sysfs: Sysfs, channel: RailChannel) -> float | OSError:
    """A rail's power, or why it could not be read."""
    try:
        if channel.power is not None:
            return _whole(sysfs, channel.power) * channel.power_unit_w
        if channel.millivolt is not None and channel.milliampere is not None:
            return _whole(sysfs, channel.millivolt) * _whole(sysfs, channel.milliampere) / 1e6
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
    names = [name for name in _names(sysfs, folder) if name.startswith("thermal_zone")]
    for name in sorted(names, key=_digits):
        kind = _text(sysfs, f"{folder}/{name}/type")
        if not kind:
            findings.errors[f"temperature {name}"] = "its type could not be read"
            continue
        zone = _ZONE_SUFFIX.sub("", kind.strip().lower())
        if zone.startswith(_CONSTANT_ZONES):
            continue
        if zone in findings.zones:
            zone = f"{zone}-{_digits(name)}"
        findings.zones[zone] = f"{folder}/{name}/temp"
        findings.found[f"temperature {zone}"] = f"{folder}/{name}"
    if not findings.zones:
        findings.errors["temperatures"] = f"no thermal zone in /{folder}"


def temperatures_c(findings: Findings) -> dict[str, float | None]:
    """Zone -> degrees Celsius; None where its block is powered off or it could not be read."""
    found: dict[str, float | None] = {}
    for zone, path in findings.zones.items():
        millidegrees = _number(findings.sysfs, path)
        celsius = math.nan if millidegrees is None else millidegrees / 1e3
        found[zone] = celsius if NEVER_C[0] < celsius < NEVER_C[1] else None
    return found


def gpu_load_pct(findings: Findings) -> float | None:
    """The GPU's load now, percent (the driver gives per mille); None where the board has no such file or gives an error."""
    if findings.gpu is None or findings.gpu.device is None:
        return None
    load = _number(findings.sysfs, f"{findings.gpu.device}/load")
    return load / 10 if load is not None and 0 <= load <= 1000 else None


def _counters(findings: Findings) -> None:
    sysfs = findings.sysfs
    folders = [f"sys/class/hwmon/{name}" for name in _names(sysfs, "sys/class/hwmon")]
    folders += _expand(sysfs, "sys/devices/platform/soctherm-oc-event/hwmon/hwmon*")
    for folder in folders:
        if _text(sysfs, f"{folder}/name") == "soctherm_oc":
            for file in _names(sysfs, folder):
                if match := re.fullmatch(r"(oc\d+)_event_cnt", file):
                    findings.counters.setdefault(match[1], f"{sysfs.real(folder)}/{file}")
    if findings.counters:
        findings.found["counters"] = next(iter(findings.counters.values())).rsplit("/", 1)[0]
    else:
        findings.errors["counters"] = "no over-current counters (hwmon soctherm_oc)"


def _cooling(findings: Findings) -> None:
    sysfs, folder = findings.sysfs, "sys/class/thermal"
    for name in sorted(_names(sysfs, folder), key=_digits):
        kind = _text(sysfs, f"{folder}/{name}/type") if name.startswith("cooling_device") else None
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


# --- what to say ------------------------------------------------------------------------------------------------------


def in_container(sysfs: Sysfs) -> bool:
    """Whether this looks like the inside of a container."""
    if sysfs.exists(".dockerenv") or sysfs.exists("run/.containerenv"):
        return True
    return bool(re.search(r"docker|kubepods|containerd|libpod|lxc", _text(sysfs, "proc/1/cgroup") or ""))


def _say(findings: Findings) -> None:
    if not _names(findings.sysfs, "sys"):
        findings.problems.append(
            f"{findings.sysfs.root / 'sys'} is missing or empty. The board's own /sys was expected there. "
            "In a container, start it with `docker run --runtime nvidia -v /sys:/sys ...`; otherwise give the right tree "
            "with `--root DIR`."
        )
    if findings.kind != "jetson":
        findings.problems.append(" ".join(_not_a_jetson(findings)))
        return
    _say_identity(findings)
    _say_clock(findings)
    _say_power(findings)


def why_no_clock(findings: Findings) -> tuple[str, str, str]:
    """Why there is no GPU clock to set, where discovery found none: what was found, what was expected, what to type."""
    if findings.kind != "jetson":
        return _not_a_jetson(findings)
    why = findings.errors.get("gpu", "no devfreq node of a GPU was found")
    if "did not answer" not in why:
        todo = (
            "Run any CUDA program once (the driver may make the node when the GPU is first used), e.g. "
            "`python3 -c 'import torch; torch.zeros(1).cuda()'`, then `wattune doctor` again."
        )
    elif is_emulated(findings.sysfs):
        todo = (
            f"This board is emulated: type `echo 'fault clear' > {findings.sysfs.root / 'emulator/control'}`."
        )
    else:
        todo = "Reboot the board: a driver that hangs does not recover."
    return f"The GPU's clock cannot be seen or set: {why}.", "A devfreq node was expected.", todo


def is_emulated(sysfs: Sysfs) -> bool:
    """Whether the tree is an emulated board's: what is read there is simulated."""
    return not sysfs.is_machine and sysfs.exists(EMULATED)


def _not_a_jetson(findings: Findings) -> tuple[str, str, str]:
    what = f"'{findings.model}'" if findings.model else "This machine"
    nvidia = any(
        _text(findings.sysfs, f"sys/bus/pci/devices/{device}/vendor") == "0x10de"
        for device in _names(findings.sysfs, "sys/bus/pci/devices")
    ) or findings.sysfs.exists("proc/driver/nvidia/version")
    expected = "An NVIDIA Jetson (device tree compatible with nvidia,tegra...) was expected."
    elsewhere = (
        "Run this on the Jetson, or try it here with `wattune emulate /tmp/board` and `--root /tmp/board`."
    )
    if findings.kind == "dgx-spark":
        return (
            f"{what} is a DGX Spark, whose clocks go through NVML and not sysfs.",
            expected,
            f"Type `nvidia-smi -q -d CLOCK,POWER` for it. {elsewhere}",
        )
    if findings.kind == "raspberry-pi":
        return f"{what} is a Raspberry Pi: it has no NVIDIA GPU.", expected, elsewhere
    if findings.kind == "x86":
        card = (
            "an x86 machine with an NVIDIA card, whose clocks go through NVML (`nvidia-smi -lgc`)"
            if nvidia
            else "an x86 machine"
        )
        return f"{what} is {card}.", expected, elsewhere
    if in_container(findings.sysfs):
        return (
            f"{what} is no Jetson, or this container hides it.",
            expected,
            "On a Jetson start the container with "
            "`docker run --runtime nvidia --security-opt systempaths=unconfined -v /sys:/sys ...`; "
            f"else: {elsewhere}",
        )
    return f"{what} is no Jetson.", expected, elsewhere


def _say_identity(findings: Findings) -> None:
    if "compatible" not in findings.found:
        findings.problems.append(
            "The device tree cannot be read, so the board is not known. /proc/device-tree was expected; containers hide it. "
            "Start the container with `--security-opt systempaths=unconfined`, or run wattune on the host."
        )


def _say_clock(findings: Findings) -> None:
    gpu, mode = findings.gpu, findings.power_mode
    if gpu is None:
        findings.problems.append(" ".join(why_no_clock(findings)))
        return
    if "gpu_nodes" in findings.errors:
        findings.warnings.append(f"There are {findings.errors['gpu_nodes']}.")
    pinned = gpu.min_hz == gpu.max_hz
    if pinned:
        findings.warnings.append(
            f"The GPU clock is pinned at {gpu.max_hz / 1e6:g} MHz already (both bounds are equal), by `wattune pin`, "
            "jetson_clocks or somebody else: a baseline measured now is no unpinned one. "
            "Undo it with `wattune restore`, `sudo jetson_clocks --restore` or a reboot."
        )
    if mode is None:
        findings.warnings.append(
            f"The power mode is unknown ({findings.errors['power_mode']}): a baseline measured here cannot be called MAXN."
        )
    elif not mode.name.upper().startswith("MAXN"):
        findings.warnings.append(
            f"The power mode is {mode.name}, not MAXN: clocks up to {gpu.max_hz / 1e6:g} MHz, and savings are against this mode. "
            "Switch by hand with `sudo nvpmodel -m ID` if you want another (it may need a reboot)."
        )
    elif gpu.table_hz and not pinned and gpu.max_hz < 0.99 * gpu.table_hz[-1]:
        findings.warnings.append(
            f"The power mode is {mode.name}, but the clock's upper bound is {gpu.max_hz / 1e6:g} MHz of "
            f"{gpu.table_hz[-1] / 1e6:g}: something caps it, and a baseline measured now is not MAXN."
        )
    board = boards.BY_ID.get(findings.board or "")
    nominal = board.nominal_mhz.get(mode.name) if board is not None and mode is not None else None
    if nominal is not None and gpu.table_hz and gpu.table_hz[-1] / 1e6 < 0.97 * nominal:
        assert mode is not None
        findings.warnings.append(
            f"The firmware's table of clocks ends at {gpu.table_hz[-1] / 1e6:g} MHz, below the mode {mode.name}'s "
            f"nominal clock of {nominal:g} MHz: old firmware or the wrong image. The table is what counts."
        )
    for kind, path in findings.cooling.items():
        if state := _number(findings.sysfs, path):
            findings.warnings.append(
                f"The GPU is being throttled for heat ({kind} is at state {state}): its upper bound may be lower than the mode's."
            )


def _say_power(findings: Findings) -> None:
    if not findings.rails:
        findings.problems.append(
            f"Power cannot be measured: {findings.errors.get('rails', 'no rails')}. An INA3221 or INA238 was expected. "
            "Wait a minute after boot and type `wattune doctor` again; in a container add `-v /sys:/sys`."
        )
        return
    missing = [
        label
        for label in dict.fromkeys((*(findings.gpu_cpu or ()), *(findings.module or ())))
        if label not in findings.rails
    ]
    if missing:
        findings.warnings.append(
            f"The rails {', '.join(missing)} were not found: sums that need them are not given."
        )
    for key in ("filter", "filter_differs"):
        if key in findings.errors:
            findings.warnings.append(f"Averaging of the power monitors: {findings.errors[key]}.")
    if findings.filter.samples is not None and findings.filter.samples < 16:
        findings.warnings.append(
            f"The power monitors average over {findings.filter.samples} sample(s) only (NVIDIA's images use 512): "
            "every reading is a spot value."
        )
    for key, reason in findings.errors.items():
        if key.startswith("rail ") and " on " in key:
            findings.warnings.append(f"The {key} is left out: {reason}.")


# --- reading ----------------------------------------------------------------------------------------------------------


def _text(sysfs: Sysfs, path: str) -> str | None:
    try:
        return sysfs.read(path)
    except OSError:
        return None


def _names(sysfs: Sysfs, folder: str) -> list[str]:
    try:
        return sysfs.names(folder)
    except OSError:
        return []


def _number(sysfs: Sysfs, path: str) -> int | None:
    try:
        return _whole(sysfs, path)
    except OSError:
        return None


_CLOCK = re.compile(r"\d{1,15}", re.ASCII)
"""A clock in Hz; more digits than that are no clock of anything."""


def _whole(sysfs: Sysfs, path: str) -> int:
    """A file's whole number.

    Raises:
        OSError: it could not be read, or what is in it is no number.
    """
    try:
        text = sysfs.read(path).strip()
    except BlockingIOError:
        text = sysfs.read(path).strip()  # not ready a moment ago; once more is enough to know
    if not re.fullmatch(r"[-+]?\d{1,18}", text):
        raise OSError(errno.EINVAL, f"'{text[:40]}' is no number" if text else "it is empty", path)
    return int(text)


def _bound(sysfs: Sysfs, path: str) -> int:
    """A bound of the clock, Hz; 0 is no limit.

    Raises:
        OSError: it could not be read, or what is in it is no clock: the kernel keeps unsigned numbers (devfreq.c).
    """
    hz = _whole(sysfs, path)
    if hz < 0:
        raise OSError(errno.EINVAL, f"'{hz}' is no clock", path)
    return hz


def _expand(sysfs: Sysfs, pattern: str) -> list[str]:
    """Folders that match a pattern whose last part may hold wildcards."""
    folder, _, last = pattern.rpartition("/")
    return [f"{folder}/{name}" for name in _names(sysfs, folder) if fnmatch(name, last)]


def _digits(name: str) -> int:
    return int(re.sub(r"\D", "", name) or 0)
