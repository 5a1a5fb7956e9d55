"""One suite for every board behind the port: add a board by adding a line to `FACTORIES`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from trees import emulated_machine
from wattune.boards.base import Board
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.recorded import RecordedBoard
from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.emulator import fuse, serve
from wattune.boards.virtual.whole_log import LogParts, WholeLogBoard
from wattune.core.errors import InputError
from wattune.core.measurement import PROVENANCES, Measurement
from wattune.core.settings import MAXN, Setting
from wattune.core.workload import LengthBin, PhaseCost, StepCost, Workload
from wattune.profiling.jetson import JetsonBoard
from wattune.profiling.load import EmulatedLoad
from wattune.workloads.build import build_named


@dataclass(frozen=True, slots=True)
class Case:
    """A board with something to measure on it.

    Attributes:
        make: builds the board anew; two boards built so must answer alike.
        workload: a workload the board knows.
        settings: settings the board can answer for that workload.
        repeats: repeats it can answer, from 0.
        tolerance: how far two measurements of the same may lie apart: what runs live never takes the same time twice.
        close: takes away what was set up for it.
    """

    make: Callable[[], Board]
    workload: Workload
    settings: tuple[Setting, ...]
    repeats: int
    tolerance: float = 0.0
    close: Callable[[], None] = lambda: None


def _virtual(_: Path) -> Case:
    phase = PhaseCost(flops=5e11, bytes=5e9, launches=400)
    bins = (
        LengthBin(64, 0.5, StepCost(phase, phase + phase, PhaseCost(0, 2e9, 50))),
        LengthBin(96, 0.5, StepCost(phase + phase, phase + phase + phase, PhaseCost(0, 2e9, 50))),
    )
    workload = Workload("m-t", "m", "t", "bert", 6, 128, 14.0, 50.0, 32, "fp16", 100, bins)
    return Case(VirtualBoard, workload, (*VirtualBoard().info.table, MAXN), 3)


def _whole_log(folder: Path) -> Case:
    case = _virtual(folder)
    return replace(case, make=lambda: WholeLogBoard(VirtualBoard(), lambda _: LogParts(3200)))


def _recorded(folder: Path) -> Case:
    path = folder / "sweep.csv"
    lines = ["board,workload,setting,gpu_mhz,energy_j,time_s,repeat"]
    for repeat in range(2):
        lines += [
            f"orin,m-t,,{mhz},{1000 + mhz + repeat},{3000 / mhz},{repeat}" for mhz in (306, 612, 1300.5)
        ]
        lines.append(f"orin,m-t,maxn,,{2500 + repeat},2.4,{repeat}")
    path.write_text("\n".join(lines) + "\n")
    return Case(lambda: RecordedBoard(path), _virtual(folder).workload, (306.0, 612.0, 1300.5, MAXN), 2)


def _jetson(folder: Path) -> Case:
    """A real board as the code sees it: an emulated one, mounted, in real time."""
    if (why := fuse.why_not()) is not None:
        pytest.skip(why)
    pytest.importorskip("omegaconf")
    from wattune.config import LiveConf

    root = folder.resolve() / "board"
    root.mkdir()
    machine, tree = emulated_machine()
    machine.filter_samples = 64
    serve.Control(machine, tree, build_named, lambda _: None)
    mount = fuse.Mount(tree, root, machine.lock)
    rules = LiveConf(hz=20.0, warmup_steps=1, min_window_s=0.8, start_temp_c=0.0)
    return Case(
        lambda: JetsonBoard(Sysfs(root), EmulatedLoad(root), rules),
        build_named("bert-small-sst2"),
        (612.0, MAXN),
        1,
        tolerance=0.2,
        close=mount.close,
    )


FACTORIES: dict[str, Callable[[Path], Case]] = {
    "virtual": _virtual,
    "whole log": _whole_log,
    "recorded": _recorded,
    "jetson": _jetson,
}
"""Kind of board -> what builds its case in a temporary folder."""


LIVE = ("jetson",)
"""Boards on which something really runs: these take seconds."""


@pytest.fixture(params=[pytest.param(k, marks=[pytest.mark.long] if k in LIVE else []) for k in FACTORIES])
def case(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Case]:
    case = FACTORIES[request.param](tmp_path)
    try:
        yield case
    finally:
        case.close()


def measure(case: Case, setting: Setting, repeat: int = 0) -> Measurement:
    return case.make().measure(case.workload, setting, repeat=repeat, steps=20, seed=42)


def test_it_says_what_it_is(case: Case) -> None:
    info = case.make().info
    assert info.id
    assert info.provenance in PROVENANCES
    assert info.power_mode
    assert info.rails
    assert len(info.table) >= 1
    assert {s for s in case.settings if s != MAXN} <= set(info.table)


def test_two_boards_built_alike_agree(case: Case) -> None:
    first, second = case.make(), case.make()
    assert first.info == second.info
    for setting in case.settings:
        one, other = measure(case, setting), measure(case, setting)
        if not case.tolerance:
            assert one == other
            continue
        assert (one.setting, one.repeat) == (other.setting, other.repeat)
        assert one.energy_j == pytest.approx(other.energy_j, rel=case.tolerance)
        assert one.time_s == pytest.approx(other.time_s, rel=case.tolerance)


def test_every_setting_yields_a_sound_measurement(case: Case) -> None:
    for setting in case.settings:
        for repeat in range(case.repeats):
            m = measure(case, setting, repeat)
            assert m.setting == setting
            assert m.repeat == repeat
            assert m.energy_j > 0
            assert m.time_s is None or m.time_s > 0
            assert m.energy_module_j is None or m.energy_module_j >= m.energy_j
            assert m.gpu_util_pct is None or 0 <= m.gpu_util_pct <= 100
            assert m.gpu_mhz_mean is None or m.gpu_mhz_mean > 0
            assert m.temp_c_max is None or -40 < m.temp_c_max < 125


def test_a_clock_outside_the_table_is_bad_input(case: Case) -> None:
    with pytest.raises(InputError, match="13 MHz"):
        measure(case, 13.0)


def test_only_a_modelled_board_knows_the_truth(case: Case) -> None:
    board = case.make()
    for setting in case.settings:
        truth = board.noise_free(case.workload, setting)
        if isinstance(board, VirtualBoard):
            assert truth is not None
            assert truth.setting == setting
            assert truth.energy_j == pytest.approx(measure(case, setting).energy_j, rel=0.2)
            assert case.make().noise_free(case.workload, setting) == truth
        else:
            assert truth is None
