"""`wattune bench monitors`: this meter, Zeus and codecarbon on one emulated board and loop: what each reads, costs and can control.

Every tool runs in a process of its own in a mount namespace in which the emulated tree is the machine's /sys, unmodified, over the
same load at the same clock, and reports the energy of its window; the emulator says what was truly spent meanwhile. Zeus and
codecarbon come from the environment that `make fetch-clients` makes; what is not there is said to be `absent`. Run as a script this
file is such a process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

CLIENTS = Path(".cache/envs/clients/bin/python")
NAMESPACE_SCRIPT = Path("tests/slow/board_namespace.sh")
NAMESPACE = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"]
WORKLOAD, PIN_HZ = "bert-base-sst2", 918_000_000
WINDOW_S, SETTLE_S = 20.0, 4.0
PATIENCE_S = 120.0
JOULES_PER_KWH = 3.6e6

AARCH64 = 'import platform\nplatform.machine = platform.processor = lambda: "aarch64"\n'
"""What each interpreter is told of the processor at its start: Zeus looks for rails on this one only."""


# --- the tools, each in a process of its own


def _ours(window: Callable[[], None]) -> dict[str, Any]:
    from wattune.boards.jetson.discovery import discover
    from wattune.boards.jetson.sysfs import Sysfs
    from wattune.governing.client import why_not_writable
    from wattune.profiling.meter import Meter

    found = discover(Sysfs())
    with Meter(found) as meter:
        meter.settle()
        begin = meter.mark("begin", change=False)
        window()
        end = meter.mark("end", change=False)
    seen = meter.window(begin, end)
    may = found.gpu is not None and why_not_writable(found.sysfs, found.gpu) is None
    return {
        "reads": sorted(meter.rails),
        "energy_j": {name: one.energy_j for name, one in seen.sets.items()},
        "controls": f"GPU clock, {len(found.gpu.table_hz)} levels, put back"
        if may and found.gpu
        else "nothing here",
    }


def _zeus(window: Callable[[], None]) -> dict[str, Any]:
    from zeus.device import get_gpus  # type: ignore[import-not-found,unused-ignore]
    from zeus.device.soc import get_soc  # type: ignore[import-not-found,unused-ignore]

    soc = get_soc()
    soc.get_total_energy_consumption()  # its polling process takes seconds to start
    soc.begin_window("bench")
    window()
    energy = soc.end_window("bench")
    try:
        get_gpus()
        controls = "GPU power limit and clocks by NVML"
    except Exception as error:  # noqa: BLE001  # whatever it is, its name is the answer
        controls = f"nothing here ({type(error).__name__})"
    parts = (energy.cpu_energy_mj, energy.gpu_energy_mj)
    total = energy.total_energy_mj
    return {
        "reads": sorted(soc.power_measurement),
        "energy_j": {
            "gpu_cpu": None if None in parts else sum(parts) / 1e3,
            "module": None if total is None else total / 1e3,
        },
        "controls": controls,
    }


def _codecarbon(window: Callable[[], None]) -> dict[str, Any]:
    import psutil  # type: ignore[import-untyped,unused-ignore]
    from codecarbon import OfflineEmissionsTracker  # type: ignore[import-not-found,unused-ignore]

    psutil.PROCFS_PATH = (
        "/run/kernel-proc"  # the board's /proc has no processes; its rails are in /sys, as on a real one
    )
    tracker = OfflineEmissionsTracker(
        country_iso_code="USA",
        measure_power_secs=1,
        save_to_file=False,
        log_level="critical",
        allow_multiple_runs=True,
    )
    tracker.start()
    window()
    tracker.stop()
    data = tracker.final_emissions_data
    return {
        "reads": [f"{type(hardware).__name__} (estimated)" for hardware in tracker._hardware],
        "energy_j": {
            "gpu_cpu": (data.cpu_energy + data.gpu_energy) * JOULES_PER_KWH
            or None,  # 0 is what it says of what it does not see
            "module": data.energy_consumed * JOULES_PER_KWH or None,
        },
        "controls": "nothing",
    }


TOOLS: dict[str, Callable[[Callable[[], None]], dict[str, Any]]] = {
    "wattune": _ours,
    "zeus": _zeus,
    "codecarbon": _codecarbon,
}


def _run_tool(job: dict[str, Any]) -> dict[str, Any]:
    """What a tool says of its window, with what was truly spent in it and what the tool's processes took."""
    sys.path.insert(0, job["source"])
    marks: list[tuple[dict[str, float], float, float]] = []

    def look() -> None:
        status = json.loads((Path(job["tree"]) / "emulator/status.json").read_text())
        marks.append((status["true_energy_j"], _cpu_s(), time.monotonic()))

    def window() -> None:
        look()
        time.sleep(job["seconds"])
        look()

    said = TOOLS[job["tool"]](window)
    (before, cpu0, t0), (after, cpu1, t1) = marks
    return {
        **said,
        "true_j": {name: after[name] - before[name] for name in ("gpu_cpu", "module")},
        "cpu_pct": 100 * (cpu1 - cpu0) / (t1 - t0),
    }


def _cpu_s() -> float:
    """CPU time so far of this process and all it has started that still run."""
    proc = Path("/run/kernel-proc") if Path("/run/kernel-proc/self").exists() else Path("/proc")
    spent: dict[int, float] = {}
    parent: dict[int, int] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
                spent[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
                parent[int(entry.name)] = int(fields[1])
    me = os.getpid()

    def below(pid: int) -> bool:
        while pid and pid != me:
            pid = parent.get(pid, 0)
        return pid == me

    return sum(seconds for pid, seconds in spent.items() if below(pid))


# --- the bench


@contextlib.contextmanager
def _emulated(folder: Path) -> Iterator[Path]:
    """An emulated board that trains, pinned."""
    from wattune.core.errors import BoardError

    tree = folder / "board"
    command = [
        sys.executable,
        "-m",
        "wattune",
        "emulate",
        str(tree),
        "--mode",
        "fuse",
        "--workload",
        WORKLOAD,
    ]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stderr is not None
    try:
        lines = [server.stdout.readline(), server.stdout.readline()]
        if not lines[1].startswith("ready"):
            raise BoardError(
                f"The emulated board did not start: {server.stderr.read().strip()}",
                "A board mounted with FUSE was expected.",
                "Try `wattune emulate DIR --mode fuse`.",
            )
        (node,) = (tree / "sys/class/devfreq").iterdir()
        for name in ("min_freq", "max_freq"):  # upwards from the lowest: any order is taken
            (node / name).write_text(f"{PIN_HZ}\n")
        time.sleep(SETTLE_S)
        yield tree
    finally:
        server.terminate()
        server.communicate(timeout=30)


def run(seconds: float = WINDOW_S) -> dict[str, Any]:
    """Measure with every tool in turn.

    Returns:
        For each tool what it reads, its energies and how far off they are, its CPU time and what it can control; or ``absent``.

    Raises:
        BoardError: no checkout, or no private mounts here.
    """
    from wattune.core.errors import BoardError

    if not NAMESPACE_SCRIPT.is_file():
        raise BoardError(
            f"{NAMESPACE_SCRIPT} is not here.",
            "The root of a checkout was expected.",
            "Change there and try again.",
        )
    may = shutil.which("unshare") and os.geteuid() == 0
    trial = subprocess.run([*NAMESPACE, "true"], capture_output=True, check=False) if may else None
    if trial is None or trial.returncode:
        raise BoardError(
            "The tools cannot be shown the emulated board: a private mount namespace needs root and util-linux's unshare.",
            "Both were expected.",
            "Run it with sudo, outside of an unprivileged container.",
        )
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="wattune-bench-") as name:
        folder = Path(name).resolve()
        (folder / "site").mkdir()
        (folder / "site/sitecustomize.py").write_text(AARCH64)
        with _emulated(folder) as tree:
            for tool in TOOLS:
                found[tool] = _ask(tool, tree, folder, seconds)
    ours = found["wattune"]
    return {
        "provenance": "simulated",
        "workload": WORKLOAD,
        "gpu_mhz": PIN_HZ / 1e6,
        "window_s": seconds,
        "tools": found,
        "ok": isinstance(ours, dict)
        and all(abs(off) <= 5.0 for off in ours["error_pct"].values() if off is not None),
    }


def _ask(tool: str, tree: Path, folder: Path, seconds: float) -> dict[str, Any] | str:
    python = sys.executable if tool == "wattune" else str(CLIENTS.absolute())
    if tool != "wattune":
        has = [python, "-c", f"import importlib.metadata as m; print(m.version({tool!r}))"]
        if not CLIENTS.exists() or subprocess.run(has, capture_output=True, check=False).returncode:
            return "absent"
    job = {
        "tool": tool,
        "tree": str(tree),
        "seconds": seconds,
        "source": str(Path(__file__).resolve().parents[2]),
    }
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    done = subprocess.run(
        [*NAMESPACE, "sh", str(NAMESPACE_SCRIPT.absolute()), str(tree), python, "-B", str(Path(__file__).resolve()), json.dumps(job)],
        capture_output=True, text=True, check=False, cwd=folder, env=environment, timeout=seconds + PATIENCE_S,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        return f"failed: {(done.stderr.strip().splitlines() or ['it said nothing'])[-1][:200]}"
    said = json.loads(lines[-1])
    version = subprocess.run(
        [python, "-c", f"import importlib.metadata as m; print(m.version({tool!r}))"],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "version": version or None,
        "reads": said["reads"],
        "energy_j": {name: None if j is None else round(j, 2) for name, j in said["energy_j"].items()},
        "true_j": {name: round(j, 2) for name, j in said["true_j"].items()},
        "error_pct": {
            name: None if j is None else round(100 * (j / said["true_j"][name] - 1), 2)
            for name, j in said["energy_j"].items()
        },
        "cpu_pct": round(said["cpu_pct"], 2),
        "controls": said["controls"],
    }


def text(document: dict[str, Any]) -> str:
    """The table for people."""
    rows = [("tool", "reads", "gpu_cpu J (true)", "off %", "module J (true)", "off %", "CPU %", "controls")]
    for name, one in document["tools"].items():
        if isinstance(one, str):
            rows.append((name, one, *[""] * 6))
            continue
        cells = []
        for rails in ("gpu_cpu", "module"):
            joules, off = one["energy_j"][rails], one["error_pct"][rails]
            cells += [
                f"{'-' if joules is None else joules} ({one['true_j'][rails]})",
                "-" if off is None else f"{off:+.1f}",
            ]
        rows.append(
            (
                f"{name} {one['version'] or ''}".strip(),
                ", ".join(one["reads"]),
                *cells,
                f"{one['cpu_pct']:.1f}",
                one["controls"],
            )
        )
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    ]
    head = (
        f"{document['workload']} at {document['gpu_mhz']:g} MHz on one emulated board (simulated),"
        f" a window of {document['window_s']:g} s each; CPU % is of one core."
    )
    return "\n".join([head, "", *lines])


if __name__ == "__main__":
    print(json.dumps(_run_tool(json.loads(sys.argv[1]))))  # noqa: T201
