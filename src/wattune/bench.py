"""The project's benchmarks, printed by `wattune bench NAME`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from importlib import import_module
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


def pipeline() -> dict[str, Any]:
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


def paper_protocol() -> dict[str, Any]:
    """What of the paper's results comes from its way of measuring (docs/paper-protocol.md)."""
    from wattune.paper_protocol import run_all

    return run_all()


def text_of(name: str, document: dict[str, Any]) -> str:
    """A benchmark's result for people."""
    if name == "paper-protocol":
        from wattune.paper_protocol import table_text

        return table_text(document)
    if name == "policies":
        from wattune.bench_policies import text

        return text(document)
    if name == "monitors":
        from wattune.bench_monitors import text

        return text(document)
    if name == "studies":
        from wattune import bench_studies

        return bench_studies.text(document)
    if name == "diverse":
        from wattune import bench_diverse

        return bench_diverse.text(document)
    if name == "window":
        from wattune.bench_window import text as window_text

        return window_text(document)
    return "\n".join(f"{key:<28} {value}" for key, value in document.items())


def check_page(name: str) -> None:
    """Refuse to save what no page in docs/ shows, before anything runs.

    Raises:
        InputError: the benchmark has no page.
    """
    if name not in PAGES:
        raise InputError(
            f"The benchmark '{name}' has no page in docs/.", f"`--write` goes with {', '.join(PAGES)}."
        )


def save(name: str, document: dict[str, Any]) -> None:
    """Save the result of a benchmark where docs/ shows it."""
    import_module(PAGES[name]).write(document)


def meter() -> dict[str, Any]:
    """The meter against other readers on one emulated board: CPU time per sample, error of energy."""
    from wattune.bench_meter import run

    return run()


def policies() -> dict[str, Any]:
    """The policies on the held-out workloads of the feature table, against each other and against their bars."""
    from wattune.bench_policies import run

    return run()


def probe() -> dict[str, Any]:
    """What the probe finds with three measured clocks, recorded and simulated (two minutes)."""
    from wattune.bench_probe import run
    from wattune.stages.validate import data_folder

    return run(data_folder())


def window() -> dict[str, Any]:
    """The stopping rule on the modelled board: how often it is right, and how short its windows are."""
    from wattune.bench_window import run

    return run()


def monitors() -> dict[str, Any]:
    """This meter, Zeus and codecarbon on one emulated board and loop."""
    from wattune.bench_monitors import run

    return run()


def studies() -> dict[str, Any]:
    """How the trees' results hang on the training set, its features, its noise and its baseline (five minutes)."""
    from wattune.bench_studies import run

    return run()


def diverse() -> dict[str, Any]:
    """On which kinds of work a governor pays, in every power mode of the modelled board (minutes)."""
    from wattune.bench_diverse import run

    return run()


PAGES = {
    "paper-protocol": "wattune.paper_protocol",
    "studies": "wattune.bench_studies",
    "diverse": "wattune.bench_diverse",
}
"""Benchmark with a page in docs/ -> the module that writes it."""

BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "pipeline": pipeline,
    "paper-protocol": paper_protocol,
    "meter": meter,
    "policies": policies,
    "probe": probe,
    "monitors": monitors,
    "studies": studies,
    "diverse": diverse,
    "window": window,
}
