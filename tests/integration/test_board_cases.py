"""Public bug reports that a tool like ours must survive, where no other file has them: by their kind, not their letter."""

from __future__ import annotations

import ast
import hashlib
import stat
import time
from pathlib import Path

import pytest

import trees
import wattune
from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.doctor import report
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.emulator.faults import apply
from wattune.governing.lease import Lease
from wattune.profiling.certificate import certify
from wattune.profiling.meter import Meter

PACKAGE = Path(wattune.__file__).parent
ELSEWHERE = PACKAGE / "boards/nvml.py"
"""Power of desktop and server GPUs, for trying a fine-tuning there: no module that reads a board may import it."""
SOURCES = sorted(set(PACKAGE.rglob("*.py")) - {ELSEWHERE})


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if stat.S_ISREG(path.lstat().st_mode) and path.relative_to(root).parts[0] != "run"
    }


@pytest.mark.parametrize(
    ("board", "jetpack"),
    [
        ("jetson-agx-orin-64gb", "5"),
        ("jetson-agx-orin-64gb", "6"),
        ("jetson-agx-orin-64gb", "7.2"),
        ("jetson-agx-xavier", "5"),
    ],
)
def test_b18_b47_a_pin_touches_the_two_bounds_and_nothing_else(
    tmp_path: Path, board: str, jetpack: str
) -> None:
    """Neither the fan, the governor, rail-gating, nor 3D scaling, which JetPack 7.2 no longer has."""
    _, tree = trees.emulated_machine(board=board, jetpack=jetpack)
    root = trees.snapshot(tree, tmp_path / "t")
    sysfs = Sysfs(root)
    gpu = discover(sysfs).gpu
    assert gpu is not None
    scaling = list(root.rglob("enable_3d_scaling"))
    assert bool(scaling) is (jetpack != "7.2")
    before = contents(root)
    with Lease(sysfs, gpu, gpu.table_hz[2], watchdog=False):
        during = contents(root)
    assert {path for path in before if during[path] != before[path]} == {
        f"{gpu.path}/min_freq",
        f"{gpu.path}/max_freq",
    }
    assert contents(root) == before


@pytest.mark.parametrize("module", SOURCES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_b29_b35_b36_b37_b49_nothing_is_asked_of_nvml_or_tegrastats(module: Path) -> None:
    """On a Jetson they are missing, unsupported or zero; in a container tegrastats is not there. Sysfs is read instead."""
    tree = ast.parse(module.read_text())
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [a.name for a in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert not imported & {"pynvml", "nvidia_smi", "py3nvml", "nvitop"}
    if module.name not in ("cli.py", "command.py"):  # `wattune finetune` may ask a desktop or server GPU
        assert "wattune.boards.nvml" not in module.read_text()
    started = {
        first.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("run", "Popen", "check_output", "call")
        for argument in node.args[:1]
        if isinstance(argument, (ast.List, ast.Tuple))
        for first in argument.elts[:1]
        if isinstance(first, ast.Constant)
    }
    assert not started & {"nvidia-smi", "tegrastats", "jetson_clocks"}


def test_b29_b37_what_cannot_be_read_is_null_with_a_reason_and_never_zero(tmp_path: Path) -> None:
    root = trees.golden("F5", tmp_path / "t")  # Thor: no load, no over-current counters
    found = report(discover(Sysfs(root)))
    assert found["gpu"]["util_pct"] is None
    assert "load" in found["errors"]["gpu_load"]
    empty = report(discover(Sysfs(trees.golden("F6", tmp_path / "e"))))
    assert empty["gpu"] is None
    assert empty["gpu_cpu_w"] is None
    assert empty["module_w"] is None


def test_b30_b58_the_certificate_names_its_scope_and_the_counters_as_the_kernel_does(tmp_path: Path) -> None:
    machine, tree = trees.emulated_machine()
    root = trees.snapshot(tree, tmp_path / "t")
    findings = discover(Sysfs(root))
    assert set(findings.counters) == {"oc1", "oc2", "oc3"}
    counter = root / findings.counters["oc2"]
    meter = Meter(findings, hz=20.0)
    with meter:
        begin = meter.mark("start", change=False)
        apply("overcurrent oc2", machine, tree)  # type: ignore[arg-type]
        counter.chmod(0o644)
        counter.write_text(f"{machine.oc_counts['oc2']}\n")
        time.sleep(1.5)
        end = meter.mark("end", change=False)
    window = meter.window(begin, end)
    assert window.events == {"oc1": 0, "oc2": 1, "oc3": 0}
    document = certify(meter, window).as_json()
    assert any("oc2 moved by 1" in warning for warning in document["warnings"])
    text = str(document)
    assert "on-board sensors, not the wall" in text
    assert "oc2" in text
