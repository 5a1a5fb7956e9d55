"""`wattune bench pipeline`: time a clean pipeline, a second one and one changed workload in a clone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from wattune.core.errors import BoardError, InputError

LIMITS = {"clean_s": 150.0, "second_s": 5.0, "peak_memory_mb": 1536.0}
"""What the pipeline promises on two cores."""

CHANGED_WORKLOAD = "bert-base-sst2"


def _tree_rss_mb(root_pid: int) -> float:
    """Resident memory of a process and all its descendants, MB (shared pages counted in each)."""
    parents: dict[int, int] = {}
    resident: dict[int, float] = {}
    page_mb = os.sysconf("SC_PAGE_SIZE") / 1e6
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            resident[int(entry.name)] = int((entry / "statm").read_text().split()[1]) * page_mb
        except (OSError, IndexError, ValueError):  # the process ended between listing and reading
            continue
    total = 0.0
    for pid in resident:
        ancestor = pid
        while ancestor not in (0, root_pid):
            ancestor = parents.get(ancestor, 0)
        total += resident[pid] if ancestor == root_pid else 0.0
    return total


def _timed(command: list[str], cwd: Path, env: dict[str, str]) -> tuple[float, float, str]:
    """Run a command; returns seconds, peak memory of its process tree in MB, and its output."""
    peak = 0.0
    begin = time.perf_counter()
    with subprocess.Popen(
        command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as run:
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.1):
                peak = max(peak, _tree_rss_mb(run.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        output = run.communicate()[0]
        done.set()
        watcher.join()
    if run.returncode:
        raise BoardError(
            f"`{' '.join(command)}` failed in the clone.",
            "A clean run was expected.",
            f"Its last lines: {output[-600:]}",
        )
    return time.perf_counter() - begin, peak, output


def _stages_run(output: str) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", output)


def run() -> dict[str, Any]:
    """Time the pipeline in a fresh clone: a clean run, a second run, and a run after changing one workload.

    Returns:
        Seconds, stages that ran, peak memory in MB, and whether every limit holds (`ok`).

    Raises:
        InputError: not in a git checkout with commits.
        BoardError: a run failed.
    """
    root = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="wattune-bench-") as folder:
        clone = Path(folder) / "clone"
        cloned = subprocess.run(
            ["git", "clone", "-q", str(root), str(clone)], capture_output=True, text=True, check=False
        )
        if cloned.returncode:
            raise InputError(
                "The benchmark needs a git checkout with at least one commit.",
                cloned.stderr.strip(),
                "Run it in the repository root.",
            )
        env = {**os.environ, "PYTHONPATH": str(clone / "src")}
        env.pop("MLFLOW_TRACKING_URI", None)
        repro = [sys.executable, "-m", "dvc", "repro"]
        clean_s, peak_mb, output = _timed(repro, clone, env)
        clean_ran = _stages_run(output)
        second_s, _, output = _timed(repro, clone, env)
        second_ran = _stages_run(output)
        change = [sys.executable, "-m", "wattune.stages.params", "--experiment", "paper"]
        _timed([*change, f"workloads.{CHANGED_WORKLOAD}.batch_size=64"], clone, env)
        changed_s, _, output = _timed(repro, clone, env)
        changed_ran = _stages_run(output)
    reprofiled = [stage for stage in changed_ran if stage.startswith("profile@")]
    return {
        "workloads": sum(stage.startswith("profile@") for stage in clean_ran),
        "clean_s": round(clean_s, 1),
        "clean_limit_s": LIMITS["clean_s"],
        "second_s": round(second_s, 2),
        "second_limit_s": LIMITS["second_s"],
        "second_ran": second_ran,
        "changed_s": round(changed_s, 1),
        "changed_ran": changed_ran,
        "peak_memory_mb": round(peak_mb),
        "peak_memory_limit_mb": LIMITS["peak_memory_mb"],
        "ok": (
            clean_s <= LIMITS["clean_s"]
            and second_s <= LIMITS["second_s"]
            and not second_ran
            and reprofiled == [f"profile@{CHANGED_WORKLOAD}"]
            and peak_mb <= LIMITS["peak_memory_mb"]
        ),
    }
