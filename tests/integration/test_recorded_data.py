"""Others' measured sweeps, where `WATTUNE_DATA` names a folder that has them: the commands of docs/recorded.md, run as printed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from wattune.boards.sweepfile import read_sweep
from wattune.profiling.replay import replay

ROOT = Path(__file__).parents[2]
DATA = os.environ.get("WATTUNE_DATA", "")


@pytest.fixture(scope="module")
def converted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not DATA or not (Path(DATA) / "orin_agx_finetuning_energy.csv").is_file():
        pytest.skip("WATTUNE_DATA names no folder with others' sweeps")
    folder = tmp_path_factory.mktemp("converted")
    page = (ROOT / "docs/recorded.md").read_text()
    commands = re.findall(
        r'^    (wattune import sweep "\$WATTUNE_DATA.*?)(?=\n\n)', page, re.MULTILINE | re.DOTALL
    )
    assert len(commands) == 3
    for command in commands:
        script = f'wattune() {{ "{sys.executable}" -m wattune "$@"; }}\n{command}'
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        subprocess.run(["bash", "-euc", script], cwd=folder, env=environment, check=True, capture_output=True)
    return folder


def test_the_published_optima_come_out(converted: Path) -> None:
    curves = {w.id: w.curve for w in read_sweep(converted / "orin-finetuning.csv").workloads}
    optimum = {name: curve.oracle for name, curve in curves.items()}
    assert optimum == {
        "Pythia-14M QNLI fine-tune": 408.0,
        "microsoft/deberta-v2-xlarge QNLI fine-tune": 612.0,
        "microsoft/deberta-v2-xlarge SST-2 fine-tune": 714.0,
    }
    sst2 = curves["microsoft/deberta-v2-xlarge SST-2 fine-tune"]
    assert sst2.saving_pct(714.0) == pytest.approx(21.77, abs=0.01)
    assert curves["microsoft/deberta-v2-xlarge QNLI fine-tune"].saving_pct(612.0) is None


def test_slices_have_the_whole_clock_table(converted: Path) -> None:
    xavier = read_sweep(converted / "xavier-training.csv").workloads
    assert [len(w.curve.clocks) for w in xavier] == [14, 14, 14]
    inference = read_sweep(converted / "orin-inference.csv").workloads
    assert [len(w.curve.clocks) for w in inference] == [11] * 6
    assert all(p.time_s for w in (*xavier, *inference) for p in w.curve.points.values())


def test_policies_replay_on_them(converted: Path) -> None:
    sweep = read_sweep(converted)
    assert all(result.regret_pct == 0 for result in replay(sweep, "oracle"))
    by_board: dict[str, list[float]] = {}
    for result in replay(sweep, "ffg"):
        by_board.setdefault(result.board, []).append(result.regret_pct)
    assert sum(by_board["jetson-agx-orin-64gb"]) / 3 == pytest.approx(2.406, abs=0.01)
    assert sum(by_board["jetson-agx-orin"]) / 6 == pytest.approx(1.148, abs=0.01)


def test_three_probes_find_the_optimum_of_real_sweeps(converted: Path) -> None:
    regrets: dict[bool, list[float]] = {True: [], False: []}
    for result in replay(read_sweep(converted), "probe"):
        assert len(result.probes) <= 3
        regrets[result.board == "jetson-agx-orin"].append(result.regret_pct)
    training, inference = regrets[False], regrets[True]
    assert sum(training) / len(training) <= 0.15
    assert max(training) <= 0.6
    assert sum(inference) / len(inference) <= 0.6
    assert max(inference) <= 2.0
