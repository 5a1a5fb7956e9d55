"""The policy `curve`: shapes that are known are found again, and what cannot be learned is said."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
from synthetic import load, rows

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.objectives import Objective, choose
from wattune.core.settings import MAXN
from wattune.core.stats import mean
from wattune.learning.curvemodel import (
    PENALTIES,
    Board,
    CurveModel,
    Shape,
    choose_penalty,
    curve_of,
    curve_report,
    fit_board,
    fit_shape,
)
from wattune.learning.export import train_regret_governor
from wattune.learning.judge import probed, steps_per_epoch
from wattune.learning.regretsearch import RegretSpace
from wattune.learning.table import FeatureTable, WorkloadRows, repeat_noise_rel

CLOCKS = (306.0, 510.0, 714.0, 918.0, 1122.0, 1300.5)
BOARD = Board(CLOCKS, 0.4, 0.7)
NAMES = ("family", "layers", "hidden", "seq_len", "gpu_util_ref_pct")


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> FeatureTable:
    return load(tmp_path_factory.mktemp("features") / "features.csv", rows())


@pytest.mark.parametrize("share", [0.21, 0.61, 0.95])
@pytest.mark.parametrize("static", [0.11, 0.41, 0.81])
def test_a_shape_is_found_again_whatever_its_level(share: float, static: float) -> None:
    truth = curve_of(Shape(share, static, 0.9, 1.1), BOARD)
    scaled = EnergyCurve(
        {s: Point(7000.0 * p.energy_j, 300.0 * (p.time_s or 0)) for s, p in truth.points.items()}
    )
    found = fit_shape(scaled, BOARD)
    assert (found.share, found.static) == (pytest.approx(share, abs=0.011), pytest.approx(static, abs=0.011))
    assert found.maxn_energy == pytest.approx(0.9, rel=0.02)
    assert found.maxn_time == pytest.approx(1.1, rel=0.02)
    timeless = EnergyCurve({s: Point(p.energy_j) for s, p in scaled.points.items() if s != MAXN})
    again = fit_shape(timeless, BOARD)
    assert again.misfit_pct < 0.5
    assert (again.maxn_energy, again.maxn_time) == (None, None)
    assert timeless.regret_pct(curve_of(again, BOARD).best_clock) < 0.2


def test_the_boards_knee_and_floor_are_found_again() -> None:
    curves = [curve_of(Shape(s, p, None, None), BOARD) for s in (0.5, 0.9) for p in (0.2, 0.6)]
    found = fit_board(curves)
    assert (found.knee, found.floor) == (pytest.approx(0.4, abs=0.051), pytest.approx(0.7, abs=0.051))


def test_unseen_workloads_lose_little_and_objectives_are_answered(table: FeatureTable) -> None:
    model = CurveModel(table.training, NAMES)
    lost = [row.judged.regret_pct(row.nearest(model.choose(row.features))) for row in table.held_out]
    assert mean(lost) < 0.5
    row = next(r for r in table.held_out if r.id == "bert-large-mnli")
    expected = model.predict(row.features)
    for objective in (Objective("edp"), Objective(max_slowdown_pct=10.0)):
        told = CurveModel(table.training, NAMES, objective=objective, board=model.board)
        assert told.choose(row.features) == choose(expected.points, objective).setting


def test_the_penalty_is_chosen_by_a_plain_leave_one_out(table: FeatureTable) -> None:
    some = table.training[:6]
    board = fit_board([row.measured for row in some])
    best, lost = choose_penalty(some, NAMES, board)
    for penalty in PENALTIES[::3]:
        plain = []
        for out in some:
            others = [row for row in some if row is not out]
            chosen = CurveModel(others, NAMES, penalty=penalty, board=board).choose(out.features)
            plain.append(out.measured.regret_pct(out.nearest(chosen)))
        assert lost[penalty] == pytest.approx(plain)
    assert mean(lost[best]) == pytest.approx(min(mean(losses) for losses in lost.values()))


def test_the_report_is_that_of_the_model(table: FeatureTable) -> None:
    model = CurveModel(table.training, NAMES)
    report = curve_report(table.training, model)
    chosen = [c for c in report["candidates"] if c["chosen"]]
    assert [c["penalty"] for c in chosen] == [report["penalty"]]
    assert (
        chosen[0]["loo_regret_pct"]
        == report["loo_regret_pct"]
        == min(c["loo_regret_pct"] for c in report["candidates"])
    )
    assert 0.0 <= report["mean_misfit_pct"] <= report["max_misfit_pct"]


class TestUnusualInput:
    def test_one_workload_answers_with_its_own_curve(self, table: FeatureTable) -> None:
        row = table.training[0]
        model = CurveModel([row], NAMES)
        assert model.penalty == PENALTIES[-1]
        assert row.measured.regret_pct(model.choose({})) < 2.0
        assert curve_report([row], model)["loo_regret_pct"] is None

    def test_constant_and_unknown_features_say_nothing(self, table: FeatureTable) -> None:
        blank = dict.fromkeys(NAMES)
        some = [
            replace(row, features={**row.features, **blank, "layers": 12.0}) for row in table.training[:5]
        ]
        model = CurveModel(some, NAMES)
        assert model.predict({}) == model.predict({"layers": 24.0, "family": "bert"})

    def test_missing_utilisation_is_filled(self, table: FeatureTable) -> None:
        model = CurveModel(table.training, NAMES)
        features = dict(table.held_out[0].features)
        default = next(r.default for r in model.encoder.ranges if r.name == "gpu_util_ref_pct")
        without = model.predict({**features, "gpu_util_ref_pct": None})
        assert without == model.predict({**features, "gpu_util_ref_pct": default})

    def test_a_single_clock_is_refused(self) -> None:
        with pytest.raises(InputError, match="single clock"):
            fit_board([EnergyCurve({510.0: Point(1.0, 1.0)})])

    @pytest.mark.parametrize("rise", [-1.0, 1.0])
    def test_curves_without_an_inner_minimum(self, rise: float, table: FeatureTable) -> None:
        def bent(row: WorkloadRows) -> WorkloadRows:
            curve = EnergyCurve(
                {m: Point((m / 1300.5) ** rise, 1.0 if rise > 0 else 1300.5 / m) for m in CLOCKS}
            )
            return replace(row, measured=curve, repeats=(curve,), noise_free=None)

        some = [bent(row) for row in table.training[:4]]
        assert CurveModel(some, NAMES).choose(some[0].features) == CLOCKS[0 if rise > 0 else -1]


class TestProbe:
    def test_noise_is_read_off_the_repeats(self, table: FeatureTable) -> None:
        assert repeat_noise_rel(table.training) == pytest.approx(0.02, rel=0.1)  # what `rows` draws
        assert repeat_noise_rel([replace(table.training[0], repeats=table.training[0].repeats[:1])]) is None

    def test_its_steps_are_paid_for_by_one_epoch(self, table: FeatureTable) -> None:
        space = RegretSpace(features=NAMES, min_samples_leaf=(1,), prune_pct=(0.0,))
        governor = train_regret_governor(table, table.training, space).governor
        row = next(r for r in table.held_out if r.id == "bert-base-qqp")
        assert steps_per_epoch(row) == math.ceil(363846 / 32)
        (outcome,) = probed(row, governor, 0.02, MAXN)
        there = row.judged.energy_j(outcome.setting)
        assert there < outcome.energy_j < 1.01 * there
        assert outcome.regret_pct == pytest.approx(
            100.0 * (outcome.energy_j / row.judged.energy_j(row.judged.oracle) - 1.0)
        )
        short = next(r for r in table.held_out if r.id == "bert-base-wnli")  # 20 steps: not probed
        (unprobed,) = probed(short, governor, 0.02, MAXN)
        expected = governor.expected_curve(short.features)
        assert expected is not None
        assert unprobed.setting == expected.best_clock
        assert unprobed.energy_j == short.judged.energy_j(unprobed.setting)
        foreign = replace(row, task="corpus")
        assert steps_per_epoch(foreign) is None
        assert probed(foreign, governor, None, MAXN)


def test_without_times(tmp_path: Path) -> None:
    """Rows without times still give a curve, its times those of the fitted law."""
    timeless = load(tmp_path / "f.csv", rows(time=False, noise_free=False))
    model = CurveModel(timeless.training, NAMES)
    lost = [row.judged.regret_pct(row.nearest(model.choose(row.features))) for row in timeless.held_out]
    assert mean(lost) < 1.0
