"""Which files a board has and where: the trees of the boards and JetPacks we play, bound to a running machine.

Files are as NVIDIA's drivers and the mainline ones make them. Not played: memory and CPU load (the figures in ``proc`` stand
still), engines other than the GPU, and the limits of the power monitors (they can be read, not written).
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattune.boards.virtual.constants import Rail
from wattune.boards.virtual.emulator.boardtree import BoardTree
from wattune.boards.virtual.emulator.devfreq import PODGOV, invalid, parse_number
from wattune.boards.virtual.emulator.tree import File
from wattune.core.errors import InputError

if TYPE_CHECKING:
    from wattune.boards.virtual.emulator.machine import Machine

CHIPS = ("1-0040", "1-0041")
FIRST_CHIP_HWMON = 3
SAMPLES = (1, 4, 16, 64, 128, 256, 512, 1024)
CYCLE_MS = 0.84
"""How many readings an INA3221 can average, and how long one of all its channels takes."""

CURRENT_LIMIT_MA = 32760
"""Alarm limits as the driver starts with: none in effect."""

BASE = "sys/firmware/devicetree/base"
CPU_MIN_KHZ = 115200


@dataclass(frozen=True)
class _Soc:
    """What the boards of a system-on-chip share; `zones` maps a zone's name on JetPack 5 to the machine's zone."""

    model: str
    compatible: tuple[str, ...]
    gpu: str
    jetpacks: tuple[str, ...]
    boardids: str
    soc_id: int
    cluster: int
    cpu_part: tuple[str, str]
    nvpmodel: str
    zones: dict[str, str]


_SOCS = {
    "tegra234": _Soc(
        model="NVIDIA Jetson AGX Orin Developer Kit",
        compatible=("nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234"),
        gpu="ga10b",
        jetpacks=("5", "6", "7.2"),
        boardids="3701:0005",
        soc_id=35,
        cluster=4,
        cpu_part=("0x41", "0xd42"),
        nvpmodel="nvpmodel_p3701_0000.conf",
        zones={
            **{f"{zone}-therm": zone.lower() for zone in ("CPU", "GPU", "CV0", "CV1", "CV2")},
            **{f"{zone}-therm": zone.lower() for zone in ("SOC0", "SOC1", "SOC2", "tj")},
            "Tboard_tegra": "tboard",
            "Tdiode_tegra": "tdiode",
        },
    ),
    "tegra194": _Soc(
        model="Jetson-AGX",
        compatible=("nvidia,p2972-0000", "nvidia,tegra194"),
        gpu="gv11b",
        jetpacks=("5",),
        boardids="2888:0001",
        soc_id=25,
        cluster=2,
        cpu_part=("0x4e", "0x004"),
        nvpmodel="nvpmodel_t194.conf",
        zones={
            "CPU-therm": "cpu",
            "GPU-therm": "gpu",
            "AUX-therm": "soc0",
            "AO-therm": "soc1",
            "Tboard_tegra": "tboard",
            "Tdiode_tegra": "tdiode",
            "thermal-fan-est": "tj",
        },
    ),
}

_RELEASES = {  # JetPack -> /etc/nv_tegra_release, kernel
    "5": (
        "# R35 (release), REVISION: 4.1, GCID: 33958178, BOARD: t186ref, EABI: aarch64, DATE: Tue Aug  1 19:57:35 UTC 2023\n",
        "5.10.120-tegra",
    ),
    "6": (
        "# R36 (release), REVISION: 4.7, GCID: 42132812, BOARD: generic, EABI: aarch64, DATE: Thu Sep 18 22:54:44 UTC 2025\n"
        "# KERNEL_VARIANT: oot\nTARGET_USERSPACE_LIB_DIR=nvidia\nTARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia\n",
        "5.15.148-tegra",
    ),
    "7.2": (
        "# R39 (release), REVISION: 2.0, GCID: 0, BOARD: generic, EABI: aarch64, DATE: Thu Jan  1 00:00:00 UTC 1970\n"
        "# KERNEL_VARIANT: oot\nTARGET_USERSPACE_LIB_DIR=nvidia\nTARGET_USERSPACE_LIB_DIR_PATH=usr/lib/aarch64-linux-gnu/nvidia\n",
        "6.8.12-tegra",
    ),
}


def check_board(soc: str, board: str, jetpack: str) -> None:
    """Refuse a JetPack that the board's system-on-chip does not have.

    Raises:
        InputError: names the JetPacks there are.
    """
    if soc not in _SOCS:
        raise InputError(
            f"The files of a {soc} board ({board}) are not known.",
            f"A board of {' or '.join(_SOCS)} was expected.",
        )
    if jetpack not in _SOCS[soc].jetpacks:
        raise InputError(
            f"{board} has no JetPack '{jetpack}' here.",
            f"One of {', '.join(_SOCS[soc].jetpacks)} was expected.",
            f"Type `--jetpack {_SOCS[soc].jetpacks[-1]}`, or choose another board.",
        )


def default_jetpack(soc: str) -> str:
    """JetPack 6 where the board has it, else its newest."""
    known = _SOCS[soc].jetpacks if soc in _SOCS else ()
    return "6" if "6" in known or not known else known[-1]


def build_tree(machine: Machine, *, clock: Callable[[], float] = time.monotonic) -> BoardTree:
    """The files of a machine's board and JetPack.

    Args:
        machine: the running board; every read and write happens under its lock, brought to the present first.
        clock: seconds, for the late node.

    Raises:
        InputError: the board does not exist with that JetPack.
    """
    check_board(machine.file.soc, machine.file.board, machine.jetpack)
    return _Builder(machine, clock).build()


class _Builder:
    def __init__(self, machine: Machine, clock: Callable[[], float]) -> None:
        self.machine = machine
        self.soc = _SOCS[machine.file.soc]
        self.old = machine.jetpack == "5"
        self.platform = "sys/devices/platform" + ("" if self.old else "/bus@0")
        device = f"sys/devices/17000000.{self.soc.gpu}" if self.old else f"{self.platform}/17000000.gpu"
        self.tree = BoardTree(device, clock)
        self.faults = self.tree.faults

    def build(self) -> BoardTree:
        for part in (
            self.identity, self.gpu, self.devfreq, self.power_monitors, self.other_hwmon, self.thermal,
            self.cpus, self.clocks, self.power_modes,
        ):  # fmt: skip
            part()
        return self.tree

    # Ways to add a file

    def text(self, path: str, content: object) -> None:
        """A file that never changes; a newline is added where it ends in neither that nor NUL."""
        fixed = _line(content)
        self.tree.add(path, File(lambda: fixed))

    def value(
        self,
        path: str,
        read: Callable[[], object],
        write: Callable[[str], None] | None = None,
        *,
        hangs: str = "",
    ) -> None:
        """A file computed from the machine; `hangs` is the name by which a fault makes it hang."""
        machine = self.machine

        def locked_read() -> str:
            with machine.lock:
                machine.advance()
                return _line(read())

        def locked_write(text: str) -> None:
            with machine.lock:
                machine.advance()
                assert write is not None
                write(text)

        if hangs:
            self.faults.can_hang.append(hangs)
        self.tree.add(
            path,
            File(
                locked_read,
                None if write is None else locked_write,
                (lambda: hangs in self.faults.hanging) if hangs else None,
            ),
        )

    # Parts of the tree

    def identity(self) -> None:
        soc, machine = self.soc, self.machine
        release, kernel = _RELEASES[machine.jetpack]
        for name, text in {
            "model": soc.model, "nvidia,boardids": soc.boardids, "serial-number": "0000000000000",
        }.items():  # fmt: skip
            self.text(f"{BASE}/{name}", text + "\0")
        self.text(f"{BASE}/compatible", "".join(f"{name}\0" for name in soc.compatible))
        self.tree.link("proc/device-tree", BASE)
        self.text("sys/devices/soc0/family", "Tegra")
        self.text("sys/devices/soc0/machine", soc.model)
        self.text("sys/devices/soc0/soc_id", soc.soc_id)
        self.text("etc/nv_tegra_release", release)
        self.text("proc/sys/kernel/osrelease", kernel)
        self.text("proc/version", f"Linux version {kernel} (simulated) #1 SMP PREEMPT")
        self.value("proc/sys/kernel/random/boot_id", lambda: machine.boot_id)
        self.value("proc/uptime", lambda: f"{machine.uptime_s:.2f} {machine.uptime_s * machine.cpus:.2f}")
        self.text(
            "proc/meminfo",
            "".join(
                f"{name + ':':<16}{kb:>8} kB\n"
                for name, kb in {
                    "MemTotal": 64349184, "MemFree": 45678900, "MemAvailable": 58000000, "Buffers": 120000,
                    "Cached": 6200000, "SwapCached": 0, "SReclaimable": 240000, "SwapTotal": 0, "SwapFree": 0,
                    "NvMapMemUsed": 4194304,
                }.items()
            ),
        )  # fmt: skip

    def gpu(self) -> None:
        machine, devfreq, device = self.machine, self.machine.devfreq, self.tree.gpu_device
        node_name = self.soc.gpu if self.old else "gpu"
        of_node = f"{BASE}/{node_name}" if self.old else f"{BASE}/bus@0/gpu@17000000"
        self.text(f"{of_node}/name", node_name + "\0")
        self.text(f"{of_node}/compatible", f"nvidia,{self.soc.gpu}\0")
        self.tree.link(f"{device}/of_node", of_node)
        self.tree.link(f"{device}/devfreq_dev", self.tree.node)
        self.tree.link("sys/devices/gpu.0" if self.old else "sys/devices/platform/gpu.0", device)

        def load() -> int:
            return 0 if machine.railgated else machine.load_permille

        def set_railgate(text: str) -> None:
            machine.railgate_enable = _flag(text)

        def set_power_control(text: str) -> None:
            if text.strip() not in ("auto", "on"):
                raise invalid()
            machine.power_control = text.strip()

        def reset_counters() -> str:
            before = devfreq.counters()
            devfreq.reset_counters()
            return before

        def tpc_pg_mask() -> int:
            modes = machine.power_modes
            full = max(mode.tpcs for mode in modes.values())
            return (1 << full) - (1 << modes[machine.power_mode].tpcs)

        self.value(f"{device}/load", load, hangs="load")
        self.value(f"{device}/railgate_enable", lambda: int(machine.railgate_enable), set_railgate)
        self.value(f"{device}/power/control", lambda: machine.power_control, set_power_control)
        self.value(f"{device}/power/runtime_status", lambda: "suspended" if machine.railgated else "active")
        self.text(f"{device}/railgate_delay", round(machine.file.constants.railgate_delay_s * 1e3))
        self.value(f"{device}/is_railgated", lambda: "yes" if machine.railgated else "no")
        self.value(f"{device}/gpu_powered_on", lambda: int(not machine.railgated))
        self.value(f"{device}/counters", devfreq.counters)
        self.value(f"{device}/counters_reset", reset_counters)
        self.value(f"{device}/tpc_pg_mask", tpc_pg_mask)
        for name in ("gpc_pg_mask", "fbp_pg_mask", "tpc_fs_mask", "emc3d_ratio", "force_idle"):
            self.text(f"{device}/{name}", 750 if name == "emc3d_ratio" else 0)
        if machine.jetpack == "7.2":
            return

        def set_scaling(text: str) -> None:
            devfreq.scaling_enabled = _flag(text)
            devfreq.update()

        def set_user(text: str) -> None:
            devfreq.request_enabled = _flag(text)
            devfreq.update()

        def set_request(text: str) -> None:
            devfreq.request_hz = parse_number(text)
            devfreq.update()

        self.value(f"{device}/enable_3d_scaling", lambda: int(devfreq.scaling_enabled), set_scaling)
        self.value(f"{device}/user", lambda: int(devfreq.request_enabled), set_user)
        self.value(f"{device}/freq_request", lambda: devfreq.request_hz, set_request)

    def devfreq(self) -> None:
        devfreq, tree, node = self.machine.devfreq, self.tree, self.tree.node
        name = node.rsplit("/", 1)[-1]

        def add(file: str, read: Callable[[], object], write: Callable[[str], None] | None = None) -> None:
            self.value(f"{node}/{file}", read, write, hangs=file)

        add("min_freq", devfreq.read_min, devfreq.write_min)
        add("max_freq", devfreq.read_max, devfreq.write_max)
        add("cur_freq", lambda: devfreq.cur_hz)
        add("target_freq", lambda: devfreq.cur_hz)
        add("governor", devfreq.read_governor, devfreq.write_governor)
        add("available_governors", lambda: " ".join(devfreq.available_governors))
        add("available_frequencies", lambda: " ".join(map(str, devfreq.table_hz)))
        add("polling_interval", lambda: devfreq.poll_ms, devfreq.write_polling_interval)
        add("trans_stat", devfreq.trans_stat, devfreq.write_trans_stat)
        add("userspace/set_freq", devfreq.read_set_freq, devfreq.write_set_freq)
        self.text(f"{node}/name", name)
        self.text(f"{node}/timer", "deferrable")
        tree.link(f"{node}/device", tree.gpu_device)
        tree.link(f"{node}/subsystem", "sys/class/devfreq")
        tree.link(f"sys/class/devfreq/{name}", node)
        podgov_files = tuple(
            f"{tree.gpu_device}/{file}" for file in ("enable_3d_scaling", "user", "freq_request")
        )

        def governor_changed(governor: str) -> None:
            (tree.show if governor == "userspace" else tree.hide)(f"{node}/userspace")
            for path in podgov_files:
                (tree.show if governor == PODGOV else tree.hide)(path)

        devfreq.on_governor = governor_changed
        governor_changed(devfreq.governor)

    def power_monitors(self) -> None:
        bus = f"{self.platform}/c240000.i2c/i2c-1"
        for number, chip in enumerate(CHIPS, FIRST_CHIP_HWMON):
            device = f"{bus}/{chip}"
            hwmon = f"{device}/hwmon/hwmon{number}"
            self.text(f"{device}/name", "ina3221")
            for path in (f"sys/bus/i2c/drivers/ina3221/{chip}", f"sys/bus/i2c/devices/{chip}"):
                self.tree.link(path, device)
            self.tree.link(f"{device}/driver", "sys/bus/i2c/drivers/ina3221")
            self.hwmon(hwmon, "ina3221", device)
            self.value(f"{hwmon}/samples", lambda: self.machine.filter_samples, self.set_samples)
            self.value(f"{hwmon}/update_interval", lambda: round(self.machine.filter_samples * CYCLE_MS))
            on_chip = {rail.channel: rail for rail in self.machine.file.rails if rail.chip == chip}
            enabled = {channel: channel in on_chip or self.old for channel in (1, 2, 3)}
            for channel in (1, 2, 3):
                self.channel(hwmon, channel, on_chip.get(channel), enabled)
            self.chip_sums(hwmon, list(on_chip.values()), enabled)

    def set_samples(self, text: str) -> None:
        """Store of ``samples``, for both chips at once: the driver takes the nearest of what the chip can do."""
        wanted = parse_number(text)
        self.machine.filter_samples = min(SAMPLES, key=lambda n: abs(n - wanted))

    def channel(self, hwmon: str, channel: int, rail: Rail | None, enabled: dict[int, bool]) -> None:
        """One channel: on JetPack 5 one without a rail is labelled NC and reads 0, later it is disabled and has no label."""
        if rail is not None or self.old:
            self.text(f"{hwmon}/in{channel}_label", rail.label if rail is not None else "NC")
        shunt_uohm = rail.shunt_uohm if rail is not None else 2000

        def reading() -> tuple[int, int]:
            if rail is not None:
                self.faults.check_rail(rail.label)
            if not enabled[channel]:
                raise OSError(errno.ENODATA, "No data available")
            return self.machine.rail(rail.label) if rail is not None else (0, 0)

        def enable(text: str) -> None:
            enabled[channel] = _flag(text)

        self.value(f"{hwmon}/in{channel}_input", lambda: reading()[0])
        self.value(f"{hwmon}/curr{channel}_input", lambda: reading()[1])
        self.value(f"{hwmon}/in{channel + 3}_input", lambda: _shunt_uv(reading()[1], shunt_uohm))
        self.value(f"{hwmon}/in{channel}_enable", lambda: int(enabled[channel]), enable)
        self.text(f"{hwmon}/shunt{channel}_resistor", shunt_uohm)
        for limit in ("crit", "max"):
            self.text(f"{hwmon}/curr{channel}_{limit}", CURRENT_LIMIT_MA)
            self.text(f"{hwmon}/curr{channel}_{limit}_alarm", 0)

    def chip_sums(self, hwmon: str, rails: list[Rail], enabled: dict[int, bool]) -> None:
        """The chip's sum of shunt voltages, and of currents where all shunts are equal."""

        def currents() -> list[tuple[Rail, int]]:
            return [(rail, self.machine.rail(rail.label)[1]) for rail in rails if enabled[rail.channel]]

        self.text(f"{hwmon}/in7_label", "sum of shunt voltages")
        self.value(
            f"{hwmon}/in7_input", lambda: sum(_shunt_uv(ma, rail.shunt_uohm) for rail, ma in currents())
        )
        if len({rail.shunt_uohm for rail in rails}) == 1:
            self.value(f"{hwmon}/curr4_input", lambda: sum(ma for _, ma in currents()))
            self.text(f"{hwmon}/curr4_crit", CURRENT_LIMIT_MA)
            self.text(f"{hwmon}/curr4_crit_alarm", 0)

    def hwmon(self, folder: str, name: str, device: str) -> None:
        self.text(f"{folder}/name", name)
        self.tree.link(f"{folder}/device", device)
        self.tree.link(f"sys/class/hwmon/{folder.rsplit('/', 1)[-1]}", folder)

    def other_hwmon(self) -> None:
        machine, pwm = self.machine, [57]

        def set_pwm(text: str) -> None:
            value = parse_number(text)
            if value > 255:
                raise invalid()
            pwm[0] = value

        fan, tach = "sys/devices/platform/pwm-fan", f"{self.platform}/39c0000.tachometer"
        self.hwmon(f"{fan}/hwmon/hwmon0", "pwmfan", fan)
        self.value(f"{fan}/hwmon/hwmon0/pwm1", lambda: pwm[0], set_pwm)
        self.text(f"{fan}/hwmon/hwmon0/pwm1_enable", 1)
        self.hwmon(f"{tach}/hwmon/hwmon1", "pwm_tach", tach)
        self.value(f"{tach}/hwmon/hwmon1/rpm", lambda: pwm[0] * 12)
        throttle = "sys/devices/platform/soctherm-oc-event"
        self.hwmon(f"{throttle}/hwmon/hwmon2", "soctherm_oc", throttle)
        for counter in machine.oc_counts:
            self.value(
                f"{throttle}/hwmon/hwmon2/{counter}_event_cnt",
                lambda counter=counter: machine.oc_counts[counter],  # type: ignore[misc]
            )
            self.text(f"{throttle}/hwmon/hwmon2/{counter}_throt_en", 1)

    def thermal(self) -> None:
        machine, folder = self.machine, "sys/devices/virtual/thermal"

        def temperature(zone: str) -> Callable[[], int]:
            def read() -> int:
                if zone == "gpu" and machine.railgated:
                    raise OSError(errno.EAGAIN, "Resource temporarily unavailable")
                return machine.temperature_mc(zone)

            return read

        zones = self.soc.zones if self.old else {f"{z}-thermal": z for z in self.soc.zones.values()}
        zones = {label: zone for label, zone in zones.items() if self.old or zone not in ("tboard", "tdiode")}
        for number, (label, zone) in enumerate(zones.items()):
            path = f"{folder}/thermal_zone{number}"
            self.text(f"{path}/type", label)
            self.text(f"{path}/mode", "enabled")
            self.text(f"{path}/policy", "step_wise")
            self.value(f"{path}/temp", temperature(zone))
            for trip, (kind, mc) in enumerate(
                zip(("passive", "critical"), machine.trips_mc.get(zone, ()), strict=False)
            ):
                self.text(f"{path}/trip_point_{trip}_type", kind)
                self.text(f"{path}/trip_point_{trip}_temp", mc)
            self.tree.link(f"sys/class/thermal/thermal_zone{number}", path)
        gpu = "thermal-devfreq-0" if self.old else f"devfreq-{self.tree.gpu_device.rsplit('/', 1)[-1]}"
        coolers: dict[str, Callable[[], int]] = {gpu: lambda: machine.cooling_state, "pwm-fan": lambda: 1}
        for number, (kind, state) in enumerate(coolers.items()):
            path = f"{folder}/cooling_device{number}"
            self.text(f"{path}/type", kind)
            self.text(f"{path}/max_state", 3)
            self.value(f"{path}/cur_state", state)
            self.tree.link(f"sys/class/thermal/cooling_device{number}", path)

    def cpus(self) -> None:
        machine, folder = self.machine, "sys/devices/system/cpu"
        modes = machine.power_modes
        count = max(mode.cpus for mode in modes.values())
        top_khz = round(max(mode.cpu_max_mhz for mode in modes.values()) * 1e3)

        def max_khz() -> int:
            return round(modes[machine.power_mode].cpu_max_mhz * 1e3)

        self.text(f"{folder}/present", f"0-{count - 1}")
        self.text(f"{folder}/possible", f"0-{count - 1}")
        self.value(f"{folder}/online", lambda: f"0-{machine.cpus - 1}")
        for first in range(0, count, self.soc.cluster):
            policy = f"{folder}/cpufreq/policy{first}"
            files: dict[str, Callable[[], object]] = {
                "scaling_cur_freq": lambda: round(machine.cpu_mhz * 1e3),
                "scaling_min_freq": lambda: CPU_MIN_KHZ,
                "scaling_max_freq": max_khz,
                "cpuinfo_cur_freq": lambda: round(machine.cpu_mhz * 1e3),
                "cpuinfo_min_freq": lambda: CPU_MIN_KHZ,
                "cpuinfo_max_freq": lambda: top_khz,
                "scaling_governor": lambda: "schedutil",
                "scaling_driver": lambda: "tegra194",
            }
            for name, read in files.items():
                self.value(f"{policy}/{name}", _while_online(machine, first, read))
        for cpu in range(count):
            path = f"{folder}/cpu{cpu}"
            self.value(f"{path}/online", lambda cpu=cpu: int(cpu < machine.cpus))  # type: ignore[misc]
            self.tree.link(f"{path}/cpufreq", f"{folder}/cpufreq/policy{cpu - cpu % self.soc.cluster}")
            for state, name in enumerate(("WFI", "c7" if self.soc.cluster == 4 else "C6")):
                self.text(f"{path}/cpuidle/state{state}/name", name)
                self.text(f"{path}/cpuidle/state{state}/disable", 0)
        implementer, part = self.soc.cpu_part

        def cpuinfo() -> str:
            return "".join(
                f"processor\t: {cpu}\nmodel name\t: ARMv8 Processor rev 1 (v8l)\nBogoMIPS\t: 62.50\n"
                "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm dcpop\n"
                f"CPU implementer\t: {implementer}\nCPU architecture: 8\nCPU variant\t: 0x0\nCPU part\t: {part}\n"
                "CPU revision\t: 1\n\n"
                for cpu in range(machine.cpus)
            )

        def stat() -> str:
            ticks = int(machine.uptime_s * 100)
            lines = [f"cpu  0 0 0 {ticks * machine.cpus} 0 0 0 0 0 0"]
            lines += [f"cpu{cpu} 0 0 0 {ticks} 0 0 0 0 0 0" for cpu in range(machine.cpus)]
            return "\n".join([*lines, "ctxt 0", "processes 1", "procs_running 1", "procs_blocked 0"])

        self.value("proc/cpuinfo", cpuinfo)
        self.value("proc/stat", stat)

    def clocks(self) -> None:
        machine, folder = self.machine, "sys/kernel/debug/bpmp/debug/clk"
        top_hz = round(max(mode.emc_max_mhz for mode in machine.power_modes.values()) * 1e6)

        def cap_hz() -> int:
            return round(machine.power_modes[machine.power_mode].emc_max_mhz * 1e6)

        self.value(f"{folder}/emc/rate", lambda: round(machine.emc_mhz * 1e6))
        self.text(f"{folder}/emc/max_rate", top_hz)
        self.text(f"{folder}/emc/min_rate", 204_000_000)
        self.text(f"{folder}/emc/mrq_rate_locked", 0)
        self.text(f"{folder}/emc/state", 1)
        cap = "nvpmodel_emc_cap/emc_iso_cap" if self.old else "nvpmodel_clk_cap/emc"
        self.value(f"sys/kernel/{cap}", cap_hz)
        if self.soc.gpu == "ga10b":
            for gpc in (0, 1):
                self.value(
                    f"{folder}/nafll_gpc{gpc}/pto_counter",
                    lambda: 0 if machine.railgated else machine.devfreq.cur_hz,
                )

    def power_modes(self) -> None:
        machine = self.machine
        self.text(f"etc/nvpmodel/{self.soc.nvpmodel}", self.nvpmodel_conf())
        self.tree.link("etc/nvpmodel.conf", f"etc/nvpmodel/{self.soc.nvpmodel}")
        self.value(
            "var/lib/nvpmodel/status",
            lambda: f"pmode:{machine.power_modes[machine.power_mode].id:04d} fmode:fan_mode_quiet",
        )

    def nvpmodel_conf(self) -> str:
        modes = sorted(self.machine.power_modes.values(), key=lambda mode: mode.id)
        cpus, tpcs = max(mode.cpus for mode in modes), max(mode.tpcs for mode in modes)
        top_hz = self.machine.devfreq.table_hz[-1]
        lines = ["< PARAM TYPE=FILE NAME=CPU_ONLINE >"]
        lines += [f"CORE_{cpu} /sys/devices/system/cpu/cpu{cpu}/online" for cpu in range(cpus)]
        lines += [
            "",
            "< PARAM TYPE=FILE NAME=TPC_POWER_GATING >",
            f"TPC_PG_MASK /{self.tree.gpu_device}/tpc_pg_mask",
        ]
        lines += ["", "< PARAM TYPE=CLOCK NAME=GPU >", f"FREQ_TABLE /{self.tree.node}/available_frequencies"]
        lines += [f"MAX_FREQ /{self.tree.node}/max_freq", f"MIN_FREQ /{self.tree.node}/min_freq"]
        lines += [f"FREQ_TABLE_KNEXT /{self.tree.gpu_device}/devfreq_dev/available_frequencies"]
        lines += [
            f"{bound}_FREQ_KNEXT /{self.tree.gpu_device}/devfreq_dev/{bound.lower()}_freq"
            for bound in ("MAX", "MIN")
        ]
        for mode in modes:
            lines += ["", f"< POWER_MODEL ID={mode.id} NAME={mode.name} >"]
            lines += [f"CPU_ONLINE CORE_{cpu} {int(cpu < mode.cpus)}" for cpu in range(cpus)]
            lines += [f"TPC_POWER_GATING TPC_PG_MASK {(1 << tpcs) - (1 << mode.tpcs)}", "GPU MIN_FREQ 0"]
            lines += [f"GPU MAX_FREQ {-1 if mode.gpu_max_hz >= top_hz else mode.gpu_max_hz}"]
        default = self.machine.file.mode()
        return "\n".join([*lines, "", f"< PM_CONFIG DEFAULT={default.id} >"])


def _line(content: object) -> str:
    text = str(content)
    return text if text.endswith(("\n", "\0")) else text + "\n"


def _flag(text: str) -> bool:
    return parse_number(text) != 0


def _shunt_uv(current_ma: int, shunt_uohm: int) -> int:
    return current_ma * shunt_uohm // 1000


def _while_online(machine: Machine, cpu: int, read: Callable[[], object]) -> Callable[[], object]:
    """A policy's file: EBUSY once its CPUs are off, as cpufreq has it."""

    def check() -> object:
        if cpu >= machine.cpus:
            raise OSError(errno.EBUSY, "Device or resource busy")
        return read()

    return check
