"""The bench of monitors: ours is right, the others are shown as they are, and what is not installed is absent."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wattune.benches import monitors as bench_monitors
from wattune.core.errors import BoardError

pytestmark = pytest.mark.slow


def test_every_tool_is_held_against_what_was_truly_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    try:
        document = bench_monitors.run(10.0)
    except BoardError as error:
        pytest.skip(str(error))
    tools = document["tools"]
    assert abs(tools["wattune"]["error_pct"]["gpu_cpu"]) < 5.0
    assert abs(tools["wattune"]["error_pct"]["module"]) < 5.0
    assert "GPU clock" in tools["wattune"]["controls"]
    if tools["zeus"] != "absent":
        assert tools["zeus"]["reads"] == ["cpu_power_mw", "gpu_power_mw"]
        assert abs(tools["zeus"]["error_pct"]["gpu_cpu"]) < 10.0
        assert tools["zeus"]["energy_j"]["module"] is None
    assert len(bench_monitors.text(document).splitlines()) == 6


def test_what_is_not_installed_is_absent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr(bench_monitors, "CLIENTS", tmp_path / "none")
    monkeypatch.setattr(
        bench_monitors, "TOOLS", {k: v for k, v in bench_monitors.TOOLS.items() if k != "codecarbon"}
    )
    if os.geteuid() != 0:
        pytest.skip("needs root")
    try:
        document = bench_monitors.run(6.0)
    except BoardError as error:
        pytest.skip(str(error))
    assert document["tools"]["zeus"] == "absent"
    assert "absent" in bench_monitors.text(document)
