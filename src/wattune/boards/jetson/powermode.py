"""The power mode in force, from nvpmodel's files or its own answer; what ``jetson_clocks --show`` says.

Nothing here ever switches a mode: that may ask for a reboot, hang, or reset clocks that were pinned.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattune.boards.jetson.findings import PowerMode
from wattune.boards.jetson.sysfs import Sysfs

CONF = "etc/nvpmodel.conf"
STATUS = "var/lib/nvpmodel/status"
QUERY_TIMEOUT_S = 5.0
UNCAPPED = (-1, 2147483647)

_MODE_LINE = re.compile(r"^\s*NV Power Mode\s*:\s*(\S.*?)\s*$")
_NUMBER_LINE = re.compile(r"^\s*(\d+)\s*$")
_STATUS = re.compile(r"\bpmode:\s*(\d+)")
_MODEL = re.compile(r"<\s*POWER_MODEL\b([^>]*)>")
_DEFAULT = re.compile(r"<\s*PM_CONFIG\b[^>]*\bDEFAULT\s*=\s*(\d+)")
_GPU_CAP = re.compile(r"^\s*GPU\s+MAX_FREQ\s+(-?\d+)\s*$")
_RANGE = re.compile(r"(\S+)\s+MinFreq=(-?\d+)\s+MaxFreq=(-?\d+)\s+CurrentFreq=(-?\d+)")


def parse_query(text: str) -> PowerMode | None:
    """What ``nvpmodel -q`` printed: the line ``NV Power Mode:``, and the first line after it that is a number alone.

    Warnings before, between and after are passed over. None where no mode is named.
    """
    lines = text.splitlines()
    for index, line in enumerate(lines):
        if match := _MODE_LINE.match(line):
            numbers = (_NUMBER_LINE.match(other) for other in lines[index + 1 :])
            return PowerMode(match[1], next((int(found[1]) for found in numbers if found), None))
    return None


def query_failed(text: str) -> bool:
    """Whether nvpmodel's output tells of an error; its exit code may be 0 all the same."""
    return any("NVPM ERROR" in line or "failed to" in line.lower() for line in text.splitlines())


def parse_status(text: str) -> int | None:
    """The mode's id in ``/var/lib/nvpmodel/status``, e.g. ``pmode:0002 fmode:fan_mode_quiet``."""
    match = _STATUS.search(text)
    return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class Conf:
    """nvpmodel's configuration: `names` by id, `default` id, `gpu_max_hz` by id (None: not capped)."""

    names: Mapping[int, str]
    default: int | None
    gpu_max_hz: Mapping[int, int | None]


def parse_conf(text: str) -> Conf:
    """Parse ``/etc/nvpmodel.conf``; attributes may come in any order, modes may be of the owner's making."""
    names: dict[int, str] = {}
    caps: dict[int, int | None] = {}
    now: int | None = None
    for raw in text.splitlines():
        line = raw.split("#", 1)[0]
        if match := _MODEL.search(line):
            attributes = {key.upper(): value for key, value in re.findall(r"(\w+)\s*=\s*([^\s>]+)", match[1])}
            number = attributes.get("ID", "")
            now = int(number) if number.isdecimal() else None
            if now is not None and "NAME" in attributes:
                names[now] = attributes["NAME"]
        elif line.lstrip().startswith("<"):
            now = None
        elif now is not None and (cap := _GPU_CAP.match(line)):
            caps[now] = None if int(cap[1]) in UNCAPPED else int(cap[1])
    default = _DEFAULT.search(text)
    return Conf(names, int(default[1]) if default else None, caps)


@dataclass(frozen=True, slots=True)
class ClockRange:
    """Bounds and present value of a clock, in the unit the tool printed (GPU and EMC: Hz, CPU: kHz)."""

    min: int
    max: int
    cur: int

    @property
    def pinned(self) -> bool:
        """Both bounds are equal."""
        return self.min == self.max


@dataclass(frozen=True, slots=True)
class Clocks:
    """What ``jetson_clocks --show`` printed; whatever it did not say is None or absent.

    Attributes:
        soc: e.g. ``tegra234``; `machine` the board's own text.
        gpus: GPU clocks by the name printed, in Hz: ``GPU``, or ``gpu-gpc-0`` and ``gpu-nvd-0`` on a Thor.
        cpus: CPU number -> clocks in kHz.
        emc: memory clock, Hz.
        active_tpcs: how many TPCs are on.
        power_mode: name of the mode.
        offline: CPU numbers of cores that are off; the clock printed for one is its last.
        unread: numbers of lines that speak of a clock and could not be read.
    """

    soc: str | None = None
    machine: str | None = None
    gpus: Mapping[str, ClockRange] = field(default_factory=dict)
    cpus: Mapping[int, ClockRange] = field(default_factory=dict)
    emc: ClockRange | None = None
    active_tpcs: int | None = None
    power_mode: str | None = None
    offline: frozenset[int] = frozenset()
    unread: tuple[int, ...] = ()


def parse_jetson_clocks(text: str) -> Clocks:
    """Parse ``jetson_clocks --show``; lines of other things are passed over, those of clocks that make no sense are counted."""
    soc = machine = power_mode = None
    tpcs: int | None = None
    gpus: dict[str, ClockRange] = {}
    cpus: dict[int, ClockRange] = {}
    emc: ClockRange | None = None
    offline, unread = set(), []
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"\s*SOC family:\s*(\S+)\s+Machine:\s*(.*?)\s*$", line):
            soc, machine = match[1], match[2] or None
        elif match := re.match(r"\s*Active GPU TPCs:\s*(\d+)", line):
            tpcs = int(match[1])
        elif match := _MODE_LINE.match(line):
            power_mode = match[1]
        elif match := re.match(r"\s*cpu(\d+):", line):
            values = re.search(r"MinFreq=(\d+)\s+MaxFreq=(\d+)\s+CurrentFreq=(\d+)", line)
            if values is not None and int(values[1]) <= int(values[2]):
                cpus[int(match[1])] = ClockRange(*map(int, values.groups()))
                if re.search(r"\bOnline=0\b", line):
                    offline.add(int(match[1]))
            else:
                unread.append(number)
        elif match := _RANGE.match(line.strip()):
            values_of = ClockRange(int(match[2]), int(match[3]), int(match[4]))
            if values_of.min > values_of.max:
                unread.append(number)
            elif match[1] == "EMC":
                emc = values_of
            elif match[1].upper().startswith("GPU"):
                gpus[match[1]] = values_of
        elif "Freq=" in line:
            unread.append(number)
    return Clocks(soc, machine, gpus, cpus, emc, tpcs, power_mode, frozenset(offline), tuple(unread))


def read_conf(sysfs: Sysfs) -> Conf | None:
    """The configuration in the tree; None where it cannot be read."""
    try:
        return parse_conf(sysfs.read(CONF))
    except OSError:
        return None


def find_power_mode(
    sysfs: Sysfs, *, query_timeout_s: float = QUERY_TIMEOUT_S
) -> tuple[PowerMode | None, str]:
    """The power mode in force.

    The files are asked first; on the machine itself ``nvpmodel -q`` is run once where they do not say it.

    Returns:
        The mode and where it was found, or None and why not.
    """
    reasons: list[str] = []
    try:
        number = parse_status(sysfs.read(STATUS))
        if number is None:
            reasons.append(f"/{STATUS} names no mode")
    except OSError as error:
        number = None
        reasons.append(f"/{STATUS}: {error.strerror or error}")
    if number is not None:
        conf = read_conf(sysfs)
        if conf is not None and number in conf.names:
            return PowerMode(conf.names[number], number), STATUS
        reasons.append(f"/{CONF} has no name for mode {number}")
    if sysfs.is_machine:
        mode, reason = query(query_timeout_s)
        if mode is not None:
            return mode, "nvpmodel -q"
        reasons.append(reason)
    return None, "; ".join(reasons)


def query(timeout_s: float = QUERY_TIMEOUT_S) -> tuple[PowerMode | None, str]:
    """Run ``nvpmodel -q`` on this machine, with nothing on its stdin; it can hang on a loaded board.

    Returns:
        The mode, or None and the reason.
    """
    program = shutil.which("nvpmodel", path="/usr/sbin:/usr/bin:/sbin:/bin")
    if program is None:
        return None, "nvpmodel is not installed here"
    try:
        process = subprocess.Popen(
            [program, "-q"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={"LC_ALL": "C", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        )
    except OSError as error:
        return None, f"nvpmodel could not be run: {error.strerror}"
    try:
        out, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()  # not waited for: it may hang in the kernel
        return None, f"nvpmodel -q did not answer within {timeout_s:g} s"
    text = out.decode("utf-8", "replace")
    mode = parse_query(text)
    if mode is None:
        said = next((f": {line.strip()}" for line in text.splitlines() if "ERROR" in line), "")
        return None, f"nvpmodel -q named no mode (exit {process.returncode}){said}"
    return mode, ""
