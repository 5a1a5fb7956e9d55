"""A sweep around a fine-tuning process, on a mounted emulated board in real time: one that obeys the protocol, and the real one."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("omegaconf")
from mounted import Emulated

from fake_worker import EPOCH
from schemas import schema
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.emulator import fuse
from wattune.config import LiveConf, SweepConf, WindowConf, to_config
from wattune.core.errors import BoardError
from wattune.core.settings import MAXN
from wattune.profiling.cells import parse_cell
from wattune.profiling.finetune_load import FinetuneLoad, Report, Watch
from wattune.profiling.jetson import JetsonBoard
from wattune.profiling.sweep import SettingFailedError, sweep
from wattune.profiling.trajectories import compare_losses
from wattune.workloads.build import build_named

ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests/fake_worker.py"
pytestmark = pytest.mark.long
WORKLOAD = build_named("bert-small-sst2")
FULL = (306_000_000, 1_300_500_000)
TINY = {
    "from_config": True, "path": "made-up", "device": "cpu", "precision": "fp32", "max_examples": 640, "learning_rate": 1e-3,
    "config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64},
}  # fmt: skip


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[Emulated]:
    if (why := fuse.why_not()) is not None:
        pytest.skip(why)
    root = tmp_path.resolve() / "board"
    root.mkdir()
    board = Emulated(root)
    try:
        yield board
    finally:
        board.mount.close()


def rules(**window: Any) -> LiveConf:
    quick: dict[str, Any] = {"block_s": 0.2, "min_s": 1.2, "max_s": 4.0, "ci_pct": 10.0}
    return LiveConf(
        hz=20.0, warmup_steps=2, start_temp_c=0.0, idle_s=0.0, start_s=60.0, stall_s=1.0, attempts=2,
        window=WindowConf(**quick | window),
    )  # fmt: skip


class Watched(FinetuneLoad):
    """The load, with what was truly spent when each report came."""

    def __init__(self, emulated: Emulated, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        self._board = emulated
        self.spent: dict[int, dict[str, float]] = {}

    def report(self, watch: Watch = lambda: None) -> Report:
        made = super().report(watch)
        self.spent[made.steps] = self._board.true_j()
        return made


def fake_board(
    emulated: Emulated, folder: Path, behaviour: str = "", **window: Any
) -> tuple[JetsonBoard, Watched]:
    """A board whose GPU always computes, and a process that always reports."""
    emulated.machine.set_workload(WORKLOAD)
    how = rules(**window)
    load = Watched(
        emulated, {"from_config": True, "path": "made-up", "precision": "fp32"}, {}, block_s=how.window.block_s, start_s=how.start_s,
        stall_s=how.stall_s, command=(sys.executable, str(FAKE), behaviour, str(folder)),
    )  # fmt: skip
    return JetsonBoard(Sysfs(emulated.root), load, how), load


def run_sweep(board: JetsonBoard, folder: Path, settings: list[Any]) -> None:
    sweep(board, WORKLOAD, settings, SweepConf(repeats=1, steps=8), folder / "cells", folder / "aside")


def cells_in(folder: Path) -> dict[str, Any]:
    return {path.stem: parse_cell(path.read_bytes()) for path in (folder / "cells").iterdir()}


def test_energy_between_reports_is_the_true_one_and_is_extrapolated_to_the_epoch(
    emulated: Emulated, tmp_path: Path
) -> None:
    board, load = fake_board(emulated, tmp_path)
    with board:
        m = board.measure(WORKLOAD, 612.0, repeat=0, steps=1, seed=1)
        certificate = board.last_certificate()
        run, reach = certificate["run"], certificate["extrapolation"]
        begin, end = load.spent[run["first_step"]], load.spent[run["first_step"] + run["steps"]]
        for name, window_j in (
            ("gpu_cpu", certificate["sets"]["gpu_cpu"]),
            ("module", certificate["sets"]["module"]),
        ):
            true_j = end[name] - begin[name]
            assert window_j["gross_j"] == pytest.approx(true_j, abs=window_j["bound_j"] + 0.03 * true_j)
        assert reach["ended"] == "narrow"
        assert reach["duration_s"] >= 1.2
        assert reach["epoch"]["steps"] == len(EPOCH)
        assert reach["epoch"]["tokens"] == sum(EPOCH)
        assert m.energy_j == pytest.approx(reach["energy_per_step_j"] * len(EPOCH), rel=1e-5)
        # power is steady here, so an epoch is about the window's energy per step times its steps
        assert m.energy_j == pytest.approx(
            certificate["sets"]["gpu_cpu"]["gross_j"] / run["steps"] * len(EPOCH), rel=0.1
        )
        assert m.time_s == pytest.approx(run["window_s"] / run["steps"] * len(EPOCH), rel=0.1)
        assert m.window_steps == run["steps"]
        assert certificate["training"]["batch_size"] == 32
        assert board.features()["layers"] == 2.0
    assert emulated.bounds == FULL


@pytest.mark.parametrize("kind", ["die", "hang", "garbage", "nan"])
def test_a_lost_run_fails_its_setting_and_no_other(emulated: Emulated, tmp_path: Path, kind: str) -> None:
    board, load = fake_board(emulated, tmp_path, f"{kind}@3")
    settings = [408.0, 612.0, 816.0]
    lost = board.order(WORKLOAD, settings, 42)[1]  # the trial is run 1, the first setting run 2
    with pytest.raises(BoardError, match=rf"could not be measured at {lost:g}: .*the run was lost") as failed:
        run_sweep(board, tmp_path, list(settings))
    assert not isinstance(failed.value, SettingFailedError)
    cells = cells_in(tmp_path)
    assert set(cells) == {f"{s:g}" for s in settings if s != lost}
    losses = compare_losses(list(cells.values()))
    assert losses is not None
    assert losses.different == ()
    assert losses.steps >= 64
    assert emulated.bounds == FULL
    assert load.pid is None
    board, load = fake_board(emulated, tmp_path)
    run_sweep(board, tmp_path, list(settings))  # goes on with what is missing
    assert len(cells_in(tmp_path)) == 3


def test_memory_that_is_short_is_said_and_settings_of_other_batches_are_refused(
    emulated: Emulated, tmp_path: Path
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    board, _ = fake_board(emulated, tmp_path, "oom@2")
    run_sweep(board, tmp_path, [408.0])
    (path,) = (tmp_path / "cells").iterdir()
    document = json.loads(path.read_text())
    jsonschema.validate(document, schema("cell"))
    training = document["certificates"][0]["training"]
    assert (training["batch_size"], training["accumulation"]) == (16, 2)
    assert "out of memory" in training["changes"][0]["why"]
    assert document["features"]["layers"] == 2.0
    board, _ = fake_board(emulated, tmp_path)
    with pytest.raises(
        BoardError, match=r"batches of 16 \(2 a step\) at 408; batches of 32 \(1 a step\) at 816"
    ):
        run_sweep(board, tmp_path, [408.0, 816.0])


def test_losses_that_differ_are_told_by_their_setting(
    emulated: Emulated, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    board, _ = fake_board(emulated, tmp_path, "other-loss@3")
    settings = [408.0, 612.0, 816.0]
    run_sweep(board, tmp_path, list(settings))
    losses = compare_losses(list(cells_in(tmp_path).values()))
    assert losses is not None
    assert losses.different == (f"{board.order(WORKLOAD, settings, 42)[1]:g}",)
    assert f"differ at {losses.different[0]}" in caplog.text


def test_interrupted_in_a_window_the_clock_is_given_back_and_the_process_ended(
    emulated: Emulated, tmp_path: Path
) -> None:
    emulated.machine.set_workload(WORKLOAD)
    script = (
        "import sys\nfrom pathlib import Path\nsys.path[:0] = [sys.argv[1]]\n"
        "from wattune.boards.jetson.sysfs import Sysfs\nfrom wattune.config import LiveConf, SweepConf, WindowConf\n"
        "from wattune.profiling.finetune_load import FinetuneLoad\nfrom wattune.profiling.jetson import JetsonBoard\n"
        "from wattune.profiling.sweep import sweep\nfrom wattune.stages._main import run\n"
        "from wattune.workloads.build import build_named\n"
        "work = Path(sys.argv[2])\n"
        "load = FinetuneLoad({'from_config': True, 'path': 'made-up', 'precision': 'fp32'}, {}, block_s=0.2,"
        " command=(sys.executable, sys.argv[3], '', str(work)))\n"
        "rules = LiveConf(hz=20.0, start_temp_c=0.0, idle_s=0.0, window=WindowConf(block_s=0.2, min_s=600.0, max_s=900.0))\n"
        "board = JetsonBoard(Sysfs(work / 'board'), load, rules)\n"
        "start = load.start\n"
        "load.start = lambda *a: (start(*a), print(load.pid, flush=True))\n"
        "sys.exit(run(lambda: sweep(board, build_named('bert-small-sst2'), [612.0], SweepConf(repeats=1), work / 'cells',"
        " work / 'aside')))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(ROOT / "src"), str(tmp_path), str(FAKE)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    until = time.monotonic() + 20
    while emulated.bounds != (612_000_000, 612_000_000):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=20)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert emulated.bounds == FULL
    with pytest.raises(ProcessLookupError):
        os.kill(worker, 0)


def test_a_real_trainer_takes_the_emulated_boards_time_and_energy(emulated: Emulated, tmp_path: Path) -> None:
    """A tiny model with random weights in the real Trainer; the emulated board runs every step of it."""
    for name in ("torch", "transformers", "accelerate"):
        pytest.importorskip(name)
    pytest.importorskip("pandas")
    from wattune.stages.features import features
    from wattune.stages.profile import profile

    name = "bert-large-sst2"
    live = rules(block_s=0.5, min_s=3.0, max_s=12.0, ci_pct=5.0)
    conf = to_config(
        {
            "board": {
                "kind": "jetson", "id": "", "root": str(emulated.root),
                "load": {"kind": "finetune", "finetune": TINY, "emulated_steps": True},
                "live": {
                    **{key: getattr(live, key) for key in ("hz", "warmup_steps", "start_temp_c", "idle_s", "attempts")},
                    "window": vars(live.window),
                },
            },
            "workload_ids": [name],
            "workloads": {name: {"model": "bert-large", "task": "sst2", "max_length": 128}},
            "sweep": {"clocks_mhz": [408.0, 1020.0], "repeats": 1},
        }
    )  # fmt: skip
    # The board's run-to-run noise is one draw for all runs of the process; here it is none.
    quiet = replace(emulated.machine.file.constants, power_noise_rel=0.0, time_noise_rel=0.0)
    emulated.machine._c = quiet
    result = profile(conf, name, tmp_path / "data/profiles", tmp_path / "data/superseded")
    assert set(result.measured) == {408.0, 1020.0, MAXN}
    cells = [parse_cell(p.read_bytes()) for p in (tmp_path / "data/profiles" / name).iterdir()]
    model, workload = VirtualBoard(), build_named(name)
    for cell in cells:
        (certificate,) = cell.certificates
        training, reach = certificate["training"], certificate["extrapolation"]
        assert cell.provenance == "simulated"
        assert training["device"] == "cpu"
        assert training["losses"]["first"] == pytest.approx(
            math.log(2), abs=0.1
        )  # two classes, nothing learnt yet
        assert reach["epoch"]["steps"] == 20
        expected = model.steady(workload, cell.setting)
        spent_j = sum(expected.rails_j[rail.label] for rail in model.file.module_rails if rail.gpu_cpu)
        # a cooler die, and now and then a real step that takes longer: what the model says holds to some percent
        assert reach["energy_per_step_j"] == pytest.approx(spent_j, rel=0.15)
        assert cell.features["layers"] == 24  # what the emulated board runs
    losses = compare_losses(cells)
    assert losses is not None
    assert losses.different == ()
    assert losses.steps >= 2
    features(conf, tmp_path)
    assert len((tmp_path / "data/features/features.csv").read_text().splitlines()) == 4
    assert emulated.machine.workload_id is None
    assert emulated.bounds == FULL
