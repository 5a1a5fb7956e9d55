"""Before a sweep on a real board: is it fit, what will be measured, how long will it take and what will it cost."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from wattune.boards.jetson.discovery import temperatures_c
from wattune.boards.jetson.doctor import why_not_pinned
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError
from wattune.core.settings import MAXN, Setting, hz_to_mhz, setting_label, sort_settings
from wattune.governing import state
from wattune.profiling.meter import SETTLE_TAUS, Window
from wattune.profiling.progress import duration_text
from wattune.profiling.windows import DEFAULT_TAU_S

ASSUMED_STEP_S, ASSUMED_W = 0.3, 25.0
"""Of a training step and of a busy module: assumptions for the first estimate only, corrected after the first window."""

BUSY_PCT = 10.0
"""A GPU with this mean load before anything is started runs somebody else's work."""

FREE_DISK_MB = 100


@dataclass(frozen=True, slots=True)
class Preflight:
    """What was found fit, and the estimate.

    Attributes:
        board: our id; `power_mode` its name.
        baseline: what the row ``maxn`` will be called; None where it is not measured.
        settings: what will be measured, in order.
        windows: how many windows that makes.
        step_s: time of a step that is assumed; `estimated_s` of the whole, cooling apart.
        estimated_j: energy of it, of the module.
        warmest_c: temperature before anything runs; None where no zone answers.
        free_memory_mb: see the name; None where unknown.
        free_disk_mb: where cells are written.
        gpu_load_pct: mean load before the load is started; None where unknown or it runs already.
        idle_w: power of the idle rails by set.
        notes: sentences for people.
    """

    board: str
    power_mode: str
    baseline: str | None
    settings: tuple[Setting, ...]
    windows: int
    step_s: float
    estimated_s: float
    estimated_j: float
    warmest_c: float | None
    free_memory_mb: int | None
    free_disk_mb: int
    gpu_load_pct: float | None
    idle_w: dict[str, float | None]
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """The document for ``--json``."""
        return asdict(self) | {"settings": list(self.settings), "notes": list(self.notes)}

    def text(self) -> str:
        """For people."""
        clocks = " ".join(setting_label(setting) for setting in sort_settings(self.settings))
        warm = "temperature unknown" if self.warmest_c is None else f"{self.warmest_c:.1f} C"
        memory = (
            "free memory unknown" if self.free_memory_mb is None else f"{self.free_memory_mb} MB memory free"
        )
        load = "" if self.gpu_load_pct is None else f", GPU load {self.gpu_load_pct:.0f} %"
        idle = ", ".join(f"{name} {watts:.2f} W" for name, watts in self.idle_w.items() if watts is not None)
        lines = [
            f"{self.board}, power mode {self.power_mode}: {warm}, {memory}, {self.free_disk_mb} MB disk free{load}"
            + (f"; idle {idle}" if idle else ""),
            f"{self.windows} windows at {clocks}"
            + (f"; the unpinned row is called {self.baseline}" if self.baseline else ""),
            f"about {duration_text(self.estimated_s)} and {self.estimated_j / 1e3:.1f} kJ, cooling apart (steps of"
            f" {self.step_s:g} s and {ASSUMED_W:g} W are assumed; corrected after the first window)",
        ]
        return "\n".join([*lines, *self.notes])


def baseline_name(findings: Findings) -> str:
    """What clocks unpinned are called: ``MAXN`` in that power mode only."""
    mode = findings.power_mode
    if mode is not None and mode.name.upper().startswith("MAXN"):
        return "MAXN"
    return f"maxn ({'power mode unknown' if mode is None else mode.name})"


def settle_leases(sysfs: Sysfs) -> list[str]:
    """Put back what earlier holders of this boot left pinned; returns what was done.

    Raises:
        BoardError: a pin was left on purpose, or it could not be put back.
    """
    left = state.stale(sysfs)
    for stale in left:
        if stale.record is not None and stale.record.detached:
            raise BoardError(
                f"The GPU clock was left pinned at {stale.record.set_hz[-1] / 1e6:g} MHz on purpose ({stale.path}).",
                "A clock that is not pinned was expected.",
                f"Type `{sysfs.typed('restore')}` first.",
            )
    if not left:
        return []
    done = state.restore_stale(sysfs)
    for one in done:
        if not one.removed:
            raise BoardError(
                f"An earlier sweep left the GPU clock pinned. {one.outcome.text}",
                "Bounds as that sweep had found them were expected.",
                f"Type `{sysfs.typed('restore')}`, or as root: {one.hint}",
            )
    return [
        f"{one.record.holder} had ended without restoring the GPU clock. {one.outcome.text}" for one in done
    ]


def refuse_unfit_clock(findings: Findings, gpu: GpuNode, *, direct: bool, pins: bool) -> None:
    """Refuse a clock that is pinned, throttled or not ours to set.

    Args:
        findings: the board.
        gpu: its node.
        direct: whether the node is written by this very process.
        pins: whether any setting is pinned.

    Raises:
        BoardError: it is unfit.
    """
    if len(gpu.table_hz) > 1 and gpu.min_hz == gpu.max_hz:
        raise BoardError(
            f"The GPU clock is pinned at {hz_to_mhz(gpu.max_hz):g} MHz already, by jetson_clocks or another program.",
            "Bounds as the power mode sets them were expected: else the baseline is none, and which clocks may be used is unknown.",
            f"Type `{findings.sysfs.typed('restore')}` or `sudo jetson_clocks --restore`, or reboot the board.",
        )
    for kind, path in findings.cooling.items():
        try:
            number = int(findings.sysfs.read(path))
        except (OSError, ValueError):
            continue
        if number:
            raise BoardError(
                f"The GPU is being throttled for heat ({kind} is at state {number}).",
                "A GPU that is not throttled was expected.",
                "Let the board cool down and run the same command again.",
            )
    if pins and direct and (refusal := why_not_pinned(findings.sysfs, gpu)) is not None:
        raise BoardError(refusal)


def _warmest_c(findings: Findings) -> float | None:
    return max((c for c in temperatures_c(findings).values() if c is not None), default=None)


def _free_memory_mb(sysfs: Sysfs) -> int | None:
    try:
        text = sysfs.read("proc/meminfo")
    except OSError:
        return None
    for name in ("MemAvailable", "MemFree"):
        if match := re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE):
            return int(match[1]) // 1024
    return None


def _free_disk_mb(folder: Path) -> int:
    where = folder
    while not where.exists() and where != where.parent:
        where = where.parent
    try:
        return shutil.disk_usage(where).free // 2**20
    except OSError as error:
        raise BoardError(
            f"The free space of {where} could not be found: {error.strerror}.", "A disk was expected."
        ) from error


def preflight(
    findings: Findings,
    settings: Sequence[Setting],
    *,
    repeats: int,
    steps: int,
    warmup_steps: int,
    min_window_s: float,
    max_temp_c: float,
    free_memory_mb: int,
    folder: Path,
    idle: Window | None = None,
    notes: Sequence[str] = (),
) -> Preflight:
    """Check everything that would spoil a sweep or end it, and say what it will take.

    Args:
        findings: the board.
        settings: what will be measured.
        repeats: windows per setting.
        steps: training steps in a window.
        warmup_steps: steps before it.
        min_window_s: shortest window.
        max_temp_c: refuse a board that is hotter.
        free_memory_mb: refuse a board with less.
        folder: where cells will be written.
        idle: a window of the idle board; None where the load runs already.
        notes: sentences to pass on.

    Raises:
        BoardError: the board is unfit; the sentence says why, and what to do.
    """
    said = list(notes)
    warmest = _warmest_c(findings)
    if warmest is None:
        said.append("No thermal zone answers, so heat cannot be watched.")
    elif warmest > max_temp_c:
        raise BoardError(
            f"The board is at {warmest:.1f} C before anything runs.",
            f"At most {max_temp_c:g} C were expected (board.live.max_temp_c).",
            "Let it cool down, look at its fan, and run the same command again.",
        )
    memory = _free_memory_mb(findings.sysfs)
    if memory is not None and memory < free_memory_mb:
        raise BoardError(
            f"{memory} MB of memory are free.",
            f"{free_memory_mb} MB were expected (board.live.free_memory_mb): a load that runs out of memory is killed.",
            "End other programs, then run the same command again.",
        )
    disk = _free_disk_mb(folder)
    if disk < FREE_DISK_MB:
        raise BoardError(
            f"{disk} MB are free where cells are written ({folder}).",
            f"{FREE_DISK_MB} MB were expected.",
            "Free some space and run the same command again.",
        )
    load = None if idle is None else idle.util_pct
    if load is not None and load > BUSY_PCT:
        raise BoardError(
            f"Something else runs on the GPU: its load is {load:.0f} % before anything was started.",
            "An idle GPU was expected.",
            "End it (`ps aux`, `sudo fuser -v /dev/nvhost-gpu`; on an emulated board: `echo workload idle > DIR/emulator/control`),"
            " then run the same command again.",
        )
    if idle is None:
        said.append(
            "The load runs already, so idle power is not measured, and whether it runs alone is unknown."
        )
    elif load is None:
        said.append("The GPU's load cannot be read, so whether something else runs on it is unknown.")
    mode = findings.power_mode
    if mode is None:
        said.append("The power mode is unknown: the unpinned row is not called MAXN.")
    tau_s = findings.filter.tau_s if findings.filter.tau_s is not None else DEFAULT_TAU_S
    seconds = (
        2 * SETTLE_TAUS * tau_s
        + (warmup_steps + 1) * ASSUMED_STEP_S
        + max(steps * ASSUMED_STEP_S, min_window_s)
    )
    windows = len(settings) * repeats
    return Preflight(
        board=findings.board or findings.model,
        power_mode="unknown" if mode is None else mode.name,
        baseline=baseline_name(findings) if MAXN in settings else None,
        settings=tuple(settings),
        windows=windows,
        step_s=ASSUMED_STEP_S,
        estimated_s=windows * seconds,
        estimated_j=windows * seconds * ASSUMED_W,
        warmest_c=warmest,
        free_memory_mb=memory,
        free_disk_mb=disk,
        gpu_load_pct=load,
        idle_w={}
        if idle is None
        else {
            name: None if one.energy_j is None else round(one.energy_j / idle.duration_s, 3)
            for name, one in idle.sets.items()
        },
        notes=tuple(said),
    )
