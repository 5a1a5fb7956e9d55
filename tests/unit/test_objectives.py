"""Objectives on curves whose answers can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.objectives import Objective, choose, pareto_front
from wattune.core.settings import MAXN, Setting

# energy, time and so power: 300: 2 W, 600: 3.33 W, 900: 6 W, maxn: 8 W
POINTS: dict[Setting, Point] = {
    300.0: Point(120.0, 60.0),
    600.0: Point(100.0, 30.0),
    900.0: Point(132.0, 22.0),
    MAXN: Point(160.0, 20.0),
}


@pytest.mark.parametrize(
    ("objective", "setting"),
    [
        (Objective(), 600.0),
        (Objective("edp"), 900.0),  # 2904 against 3000
        (Objective("ed2p"), 900.0),  # 63888 against 64000
        (Objective("energy", max_slowdown_pct=10.0), 900.0),
        (Objective("energy", max_slowdown_pct=0.0), MAXN),
        (Objective("energy", deadline_s=22.0), 900.0),
        (Objective("time", max_power_w=4.0), 600.0),
        (Objective("time"), MAXN),
        (Objective("battery_wh", battery_wh=1.0), 600.0),
    ],
)
def test_the_setting_an_objective_asks_for(objective: Objective, setting: Setting) -> None:
    answer = choose(POINTS, objective)
    assert answer.setting == setting
    assert answer.feasible
    assert answer.slowdown_pct == pytest.approx(100 * ((POINTS[setting].time_s or 0) / 20 - 1))
    assert answer.saving_pct == pytest.approx(100 * (1 - POINTS[setting].energy_j / 160))


def test_a_battery_says_how_many_epochs_fit() -> None:
    assert choose(POINTS, Objective("battery_wh", battery_wh=10.0)).epochs == pytest.approx(360.0)


@pytest.mark.parametrize(
    ("objective", "nearest", "says"),
    [
        (Objective("energy", deadline_s=10.0), MAXN, "deadline_s = 10"),
        (Objective("time", max_power_w=1.0), 300.0, "with 2"),
    ],
)
def test_what_cannot_be_had_says_so_and_names_the_nearest(
    objective: Objective, nearest: Setting, says: str
) -> None:
    answer = choose(POINTS, objective)
    assert (answer.setting, answer.feasible) == (nearest, False)
    assert says in answer.reason


def test_without_maxn_the_fastest_setting_is_the_baseline() -> None:
    pinned = {s: p for s, p in POINTS.items() if s != MAXN}
    answer = choose(pinned, Objective("energy", max_slowdown_pct=40.0))
    assert (answer.setting, answer.baseline) == (600.0, 900.0)


@pytest.mark.parametrize("name", ["edp", "ed2p", "time"])
def test_times_that_are_missing_are_asked_for(name: str) -> None:
    with pytest.raises(InputError, match="needs times"):
        choose({300.0: Point(1.0), 600.0: Point(2.0, 1.0)}, Objective(name))
    assert choose({300.0: Point(1.0), 600.0: Point(2.0)}).slowdown_pct is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "speed"},
        {"name": "edp", "deadline_s": 3.0},
        {"deadline_s": -1.0},
        {"deadline_s": float("nan")},
        {"name": "time", "max_power_w": 0.0},
        {"name": "battery_wh"},
        {"battery_wh": 3.0},
    ],
)
def test_bad_objectives(wrong: dict) -> None:
    with pytest.raises(InputError):
        Objective(**wrong)


def test_one_limit_at_a_time_and_something_to_choose_from() -> None:
    with pytest.raises(InputError, match="One limit"):
        choose(POINTS, Objective(max_slowdown_pct=10.0, deadline_s=30.0))
    with pytest.raises(InputError, match="no setting"):
        choose({})


curves = st.dictionaries(
    st.floats(100, 2000),
    st.builds(Point, st.floats(1, 1e6), st.floats(1e-3, 1e4)),
    min_size=1,
    max_size=12,
)


@given(curves)
def test_energy_is_the_curves_own_optimum(points: dict[Setting, Point]) -> None:
    curve = EnergyCurve(points)
    assert curve.energy_j(choose(points).setting) == curve.energy_j(curve.oracle)


@given(curves)
def test_the_front_holds_what_nothing_beats(points: dict[Setting, Point]) -> None:
    front = pareto_front(points)

    def beaten(s: Setting) -> bool:
        p = points[s]
        return any(
            q.energy_j <= p.energy_j
            and (q.time_s or 0) <= (p.time_s or 0)
            and (q.energy_j, q.time_s) != (p.energy_j, p.time_s)
            for q in points.values()
        )

    assert not any(beaten(s) for s in front)
    kept = {(points[s].energy_j, points[s].time_s) for s in front}
    assert all(beaten(s) or (points[s].energy_j, points[s].time_s) in kept for s in points)
    assert [points[s].time_s for s in front] == sorted(points[s].time_s or 0 for s in front)


def test_the_front_of_the_example() -> None:
    assert pareto_front(POINTS) == [MAXN, 900.0, 600.0]
    assert pareto_front({300.0: Point(1.0)}) == []
