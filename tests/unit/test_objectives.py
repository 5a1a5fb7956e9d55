"""Objectives on curves whose answers can be worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.objectives import (
    Objective,
    answer_at,
    choose,
    cost_of,
    pareto_front,
    parse_objective,
    scaled,
)
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
        (Objective("battery", battery_wh=1.0), 600.0),
    ],
)
def test_the_setting_an_objective_asks_for(objective: Objective, setting: Setting) -> None:
    answer = choose(POINTS, objective)
    assert answer.setting == setting
    assert answer.feasible
    assert answer.slowdown_pct == pytest.approx(100 * ((POINTS[setting].time_s or 0) / 20 - 1))
    assert answer.saving_pct == pytest.approx(100 * (1 - POINTS[setting].energy_j / 160))


def test_a_battery_says_how_many_epochs_fit() -> None:
    assert choose(POINTS, Objective("battery", battery_wh=10.0)).epochs == pytest.approx(360.0)


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
        {"name": "battery"},
        {"battery_wh": 3.0},
    ],
)
def test_bad_objectives(wrong: dict) -> None:
    with pytest.raises(InputError):
        Objective(**wrong)


def test_a_bound_is_named_as_it_is() -> None:
    """0 % slower is a limit; 0 W is none."""
    assert Objective(max_slowdown_pct=0.0).limited == "max_slowdown_pct"
    with pytest.raises(InputError, match=r"max_slowdown_pct is -5\. A number of at least 0 was expected\."):
        Objective(max_slowdown_pct=-5.0)
    for name, limit in (("time", "max_power_w"), ("energy", "deadline_s"), ("battery", "battery_wh")):
        for value in (0.0, -1.0):
            with pytest.raises(InputError, match=rf"{limit} is {value:g}\. A number above 0 was expected\."):
                Objective(name, **{limit: value})


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


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("energy", Objective()),
        ("edp", Objective("edp")),
        (" energy:max_slowdown_pct=10 ", Objective(max_slowdown_pct=10.0)),
        ("energy:deadline_s=3600", Objective(deadline_s=3600.0)),
        ("time:max_power_w=20", Objective("time", max_power_w=20.0)),
        ("battery:battery_wh=50", Objective("battery", battery_wh=50.0)),
    ],
)
def test_an_objective_as_it_is_typed(text: str, objective: Objective) -> None:
    assert parse_objective(text) == objective
    assert parse_objective(objective.text) == objective
    assert objective.text == text.strip()


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "speed",
            "energy:",
            "energy:10",
            "energy:max_slowdown_pct",
            "energy:max_slowdown_pct=",
            "energy:bar=1",
        ),
        *(
            "energy:deadline_s=soon",
            "energy:deadline_s=nan",
            "energy:deadline_s=-1",
            "edp:deadline_s=3",
            "battery",
            "battery_wh:battery_wh=50",
        ),
        *(
            "energy:max_slowdown_pct=1,deadline_s=2",
            "energy:deadline_s=1,deadline_s=2",
            "time:max_slowdown_pct=3",
        ),
    ],
)
def test_what_is_no_objective_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError, match="For example: energy, edp"):
        parse_objective(text)


def test_what_somebody_else_picked_is_held_against_the_limit() -> None:
    limit = Objective(max_slowdown_pct=10.0)
    assert answer_at(POINTS, 900.0, limit).feasible
    slow = answer_at(POINTS, 600.0, limit)
    assert (slow.feasible, slow.setting, slow.slowdown_pct) == (False, 600.0, pytest.approx(50.0))
    assert "max_slowdown_pct = 10: it has 50" in slow.reason


@given(curves, st.floats(0.1, 100), st.floats(0.1, 100))
def test_units_change_no_choice(points: dict[Setting, Point], joules: float, seconds: float) -> None:
    for objective in (Objective(), Objective("edp"), Objective(max_slowdown_pct=20.0)):
        there = scaled(points, Point(joules, seconds))
        chosen = choose(there, objective).setting
        assert answer_at(points, chosen, objective).feasible == choose(points, objective).feasible
        mine, best = (cost_of(objective, points[s]) for s in (chosen, choose(points, objective).setting))
        assert mine == pytest.approx(best, rel=1e-6)
