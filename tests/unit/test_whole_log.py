"""The paper's way of measuring: known answers, refusals, and a page that says what the command found."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.constants import load_board_file
from wattune.boards.virtual.whole_log import NO_SET_UP, LogParts, SetUp, WholeLogBoard
from wattune.core.errors import InputError
from wattune.core.settings import MAXN, Setting
from wattune.core.workload import Workload
from wattune.workloads.build import build_evaluation, build_workload
from wattune.workloads.catalogue import TASKS

ROOT = Path(__file__).parents[2]
CONSTANTS = ROOT / "src/wattune/boards/virtual/jetson-agx-orin-64gb.json"
SETTINGS: tuple[Setting, ...] = (306.0, 816.0, 1300.5, MAXN)
NOTHING = LogParts()


@pytest.fixture(scope="module")
def quiet() -> VirtualBoard:
    """The default board without run-to-run noise."""
    file = load_board_file(CONSTANTS)
    return VirtualBoard(
        file=replace(file, constants=replace(file.constants, power_noise_rel=0.0, time_noise_rel=0.0))
    )


@pytest.fixture(scope="module")
def workload() -> Workload:
    return build_workload("bert-small", "mrpc", batch_size=32, precision="fp16")


def whole_log(board: VirtualBoard, parts: LogParts = NOTHING, **options: object) -> WholeLogBoard:
    return WholeLogBoard(board, lambda _: parts, **options)  # type: ignore[arg-type]


def energy(board: WholeLogBoard, workload: Workload, setting: Setting, seed: int = 1) -> float:
    return board.measure(workload, setting, repeat=0, steps=10, seed=seed).energy_j


class TestKnownAnswers:
    def test_a_log_of_training_alone_is_the_steady_meter(
        self, quiet: VirtualBoard, workload: Workload
    ) -> None:
        board = whole_log(quiet, set_up=NO_SET_UP)
        for setting in SETTINGS:
            truth = quiet.noise_free(workload, setting)
            found = board.measure(workload, setting, repeat=0, steps=10, seed=1)
            for name in ("energy_j", "time_s", "energy_module_j", "gpu_util_pct", "gpu_mhz_mean"):
                assert getattr(found, name) == pytest.approx(getattr(truth, name)), name
            assert found.window_s == pytest.approx(truth.time_s)

    def test_the_noise_is_the_boards(self, workload: Workload) -> None:
        noisy = VirtualBoard(CONSTANTS)
        found = whole_log(noisy, set_up=NO_SET_UP).measure(workload, 612.0, repeat=0, steps=10, seed=5)
        power, time = noisy.run_noise(workload, 612.0, repeat=0, seed=5)
        truth = noisy.noise_free(workload, 612.0)
        assert (power, time) != (1.0, 1.0)
        assert found.energy_j == pytest.approx(truth.energy_j * power * time)
        assert found.time_s == pytest.approx(truth.time_s * time)

    def test_a_long_set_up_dilutes_the_mean(self, quiet: VirtualBoard, workload: Workload) -> None:
        """Idling switched off for N seconds, the mean power is the mixture's; in the limit that of idling."""
        truth = quiet.noise_free(workload, 612.0)
        rails = quiet.file.module_rails
        idle_w = (
            quiet.constants.gated_gpu_w
            + quiet.constants.cpu_idle_w
            + sum(r.base_w for r in rails if r.gpu_cpu)
        )
        for idle_s in (10.0, 1000.0):
            set_up = replace(NO_SET_UP, before_python_s=idle_s, gated=True)
            mean_w = (truth.energy_j + idle_w * idle_s) / (truth.time_s + idle_s)
            found = energy(whole_log(quiet, set_up=set_up), workload, 612.0)
            assert found == pytest.approx(mean_w * truth.time_s)
            assert found < truth.energy_j

    def test_more_rows_parameters_and_evaluation_lengthen_the_log(
        self, quiet: VirtualBoard, workload: Workload
    ) -> None:
        evaluation = build_evaluation("bert-small", "mrpc", precision="fp16")
        logs = [
            whole_log(quiet, parts).measure(w, 612.0, repeat=0, steps=1, seed=1)
            for parts, w in (
                (NOTHING, workload),
                (LogParts(10_000), workload),
                (LogParts(10_000), replace(workload, params_m=1000.0)),
                (LogParts(10_000, evaluation), replace(workload, params_m=1000.0)),
            )
        ]
        assert len({m.time_s for m in logs}) == 1
        lengths = [m.window_s or 0.0 for m in logs]
        assert lengths == sorted(set(lengths))

    def test_a_baseline_left_pinned_is_the_energy_at_816(
        self, quiet: VirtualBoard, workload: Workload
    ) -> None:
        parts = LogParts(4076, build_evaluation("bert-small", "mrpc", precision="fp16"))
        pinned, verified = whole_log(quiet, parts, left_pinned=True), whole_log(quiet, parts)
        assert energy(pinned, workload, MAXN) == pytest.approx(energy(pinned, workload, 816.0))
        assert energy(verified, workload, MAXN) != pytest.approx(energy(verified, workload, 816.0), rel=0.01)
        assert energy(pinned, workload, 612.0) == energy(verified, workload, 612.0)
        noisy = whole_log(VirtualBoard(CONSTANTS), parts, left_pinned=True)
        assert energy(noisy, workload, MAXN) != energy(noisy, workload, 816.0)  # a run of its own

    def test_the_clock_falls_under_maxn_while_the_gpu_waits(
        self, quiet: VirtualBoard, workload: Workload
    ) -> None:
        board = whole_log(quiet, set_up=replace(NO_SET_UP, imports_s=1e5))
        at = {s: board.measure(workload, s, repeat=0, steps=1, seed=1) for s in SETTINGS}
        assert at[MAXN].gpu_mhz_mean == pytest.approx(306.0, rel=0.01)
        watts = {s: m.energy_j / (m.time_s or 1.0) for s, m in at.items()}
        assert watts[MAXN] == pytest.approx(watts[306.0], rel=0.01)
        assert watts[306.0] < watts[816.0] < watts[1300.5]


class TestItSaysHowItMeasures:
    def test_in_the_board_it_presents(self) -> None:
        steady = VirtualBoard(CONSTANTS)
        boards = (
            steady,
            whole_log(steady),
            whole_log(steady, left_pinned=True),
            whole_log(steady, set_up=NO_SET_UP),
        )
        assert len({b.info.digest for b in boards}) == 4
        assert [b.info.rails for b in boards[:2]] == ["gpu_cpu", "gpu_cpu, whole log"]
        assert boards[2].info.power_mode == "MAXN, left pinned at 816 MHz"
        assert {b.info.provenance for b in boards} == {"simulated"}

    def test_it_does_not_claim_the_truth(self, workload: Workload) -> None:
        assert whole_log(VirtualBoard(CONSTANTS)).noise_free(workload, 612.0) is None

    def test_unknown_clocks_are_refused(self, workload: Workload) -> None:
        with pytest.raises(InputError, match="13 MHz"):
            energy(whole_log(VirtualBoard(CONSTANTS)), workload, 13.0)


def test_an_evaluation_is_one_forward_pass_over_the_validation_split() -> None:
    sizes = {"cola": 1043, "sst2": 872, "mrpc": 408, "stsb": 1500, "qqp": 40430, "mnli": 9815}
    sizes |= {"qnli": 5463, "rte": 277, "wnli": 71}
    assert {name: task.validation_rows for name, task in TASKS.items()} == sizes
    evaluation = build_evaluation("bert-base", "wnli", precision="fp16")
    assert (evaluation.batch_size, evaluation.steps_per_epoch) == (64, 2)
    assert all(b.cost.total == b.cost.forward for b in evaluation.bins)


def test_set_up_scales() -> None:
    twice = SetUp().scaled(2.0)
    assert twice.busy_s(5000, 100.0) == pytest.approx(2.0 * SetUp().busy_s(5000, 100.0))
    assert NO_SET_UP.busy_s(5000, 100.0) == 0.0


class TestConfiguration:
    REFUSED = (
        ("paper", ["sweep.meter=total"], "whole-log"),
        ("paper", ["sweep.baseline=pinned"], "left-pinned"),
        ("paper", ["sweep.meter=whole-log"], "repeats"),
        ("paper", ["sweep.baseline=left-pinned"], "whole-log"),
        ("paper-protocol", ["sweep.baseline=left-pinned", "sweep.maxn=false"], "maxn"),
        ("paper-protocol", ["sweep.repeats=3"], "once"),
    )

    @pytest.mark.parametrize(("experiment", "overrides", "words"), REFUSED)
    def test_refusals(self, experiment: str, overrides: list[str], words: str) -> None:
        pytest.importorskip("hydra")
        from wattune.config import compose

        with pytest.raises(InputError, match=words):
            compose(ROOT / "conf", experiment, overrides)

    def test_it_is_part_of_the_fingerprint_and_of_what_is_shown(self, tmp_path: Path) -> None:
        pytest.importorskip("hydra")
        from wattune.config import compose, to_config
        from wattune.profiling.cells import fingerprint, parse_cell
        from wattune.stages.profile import profile

        pinned = to_config(compose(ROOT / "conf", "paper-protocol", ["sweep.baseline=left-pinned"]))
        pinned.board.constants = str(CONSTANTS)
        profile(pinned, "bert-small-wnli", tmp_path, tmp_path / "old")
        cell = parse_cell((tmp_path / "bert-small-wnli/maxn.json").read_bytes())
        assert (cell.rails, cell.power_mode) == ("gpu_cpu, whole log", "MAXN, left pinned at 816 MHz")
        assert (cell.noise_free, len(cell.repeats)) == (None, 1)

        info = VirtualBoard(CONSTANTS).info
        workload = build_workload("bert-small", "wnli", batch_size=32, precision="fp16")
        protocols = [
            pinned.sweep,
            replace(pinned.sweep, baseline="verified"),
            replace(pinned.sweep, baseline="verified", meter="steady"),
        ]
        assert len({fingerprint(info, workload, 612.0, p) for p in protocols}) == 3


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "docs/paper-protocol.json").read_text())
    return found


class TestPage:
    """docs/paper-protocol.md; `wattune bench paper-protocol --write` makes it anew."""

    def test_the_table_is_what_the_command_saved(self, document: dict[str, Any]) -> None:
        pytest.importorskip("pandas")
        from wattune.benches.paper_protocol import MARK, PAGE, text

        _, table, _ = (ROOT / PAGE).read_text().split(MARK)
        assert table.strip() == text(document)

    def test_it_was_saved_with_the_present_model(self, document: dict[str, Any]) -> None:
        pytest.importorskip("pandas")
        from wattune.benches.paper_protocol import model_digest

        assert document["model_digest"] == model_digest(), "run `wattune bench paper-protocol --write`"
        assert document["provenance"] == "simulated"
        assert document["set_up"] == asdict(SetUp())

    def test_its_words_hold(self, document: dict[str, Any]) -> None:
        def mean(case: str, figure: str) -> float:
            values = document["cases"][case][figure]
            return sum(values) / len(values)

        def extreme(of: Callable[[list[float]], float], case: str, figure: str) -> float:
            return of(document["cases"][case][figure])

        for case in ("steady", "single"):
            assert mean(case, "mean_saving_pct") > 13.11 + 3.0
            assert extreme(max, case, "small_negative_pct") == 0.0
            assert extreme(max, case, "highest_label_mhz") <= 816.0
            assert extreme(max, case, "deep_mrpc_over_qnli") < mean("whole-log", "deep_mrpc_over_qnli")
        assert extreme(max, "whole-log", "mean_saving_pct") < 13.11
        assert extreme(min, "whole-log", "small_negative_pct") > 0.0
        assert extreme(min, "whole-log", "highest_label_mhz") > 816.0
        assert mean("whole-log", "small_spread_pct") > 2.0 * mean("steady", "small_spread_pct")
        assert mean("whole-log", "large_saving_pct") < 22.0 - 3.0
        gains = document["cases"]["whole-log"]["mlg_minus_ffg_points"]
        assert max(gains) - min(gains) > 1.0
        assert mean("steady", "mlg_minus_ffg_points") < 0.5
        assert mean("steady", "true_saving_pct") - mean("whole-log", "true_saving_pct") < 1.0
        assert abs(mean("left-pinned", "mean_saving_pct")) < 3.0
        assert extreme(max, "left-pinned", "best_saving_pct") < 26.73 / 2
