"""What to say of what was found on a board, or not: what it is, what was expected, what to type."""

from __future__ import annotations

import re
import shlex

from wattune.boards.jetson import boards, reading
from wattune.boards.jetson.findings import Findings
from wattune.boards.jetson.sysfs import Sysfs

EMULATED = "emulator/status.json"
"""A file that only an emulated board has."""


def in_container(sysfs: Sysfs) -> bool:
    """Whether this looks like the inside of a container."""
    if sysfs.exists(".dockerenv") or sysfs.exists("run/.containerenv"):
        return True
    return bool(
        re.search(r"docker|kubepods|containerd|libpod|lxc", reading.text(sysfs, "proc/1/cgroup") or "")
    )


def diagnose(findings: Findings) -> None:
    """Add problems and warnings to what was found."""
    if not reading.names(findings.sysfs, "sys"):
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
        control = shlex.quote(str(findings.sysfs.root / "emulator/control"))
        todo = f"This board is emulated: type `echo 'fault clear' > {control}`."
    else:
        todo = "Reboot the board: a driver that hangs does not recover."
    return f"The GPU's clock cannot be seen or set: {why}.", "A devfreq node was expected.", todo


def is_emulated(sysfs: Sysfs) -> bool:
    """Whether the tree is an emulated board's: what is read there is simulated."""
    return not sysfs.is_machine and sysfs.exists(EMULATED)


def _not_a_jetson(findings: Findings) -> tuple[str, str, str]:
    what = f"'{findings.model}'" if findings.model else "This machine"
    nvidia = any(
        reading.text(findings.sysfs, f"sys/bus/pci/devices/{device}/vendor") == "0x10de"
        for device in reading.names(findings.sysfs, "sys/bus/pci/devices")
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
            f"Undo it with `{findings.sysfs.typed('restore')}`, `sudo jetson_clocks --restore` or a reboot."
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
        if state := reading.number(findings.sysfs, path):
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
