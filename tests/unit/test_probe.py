"""The probe on curves whose optimum is known, and on tables and readings that are not as one would like."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.objectives import Objective
from wattune.core.probe import (
    DOUBT_ERRORS,
    MAX_STEPS,
    Measure,
    Probe,
    ProbeResult,
    _misfit,
    law_at,
    library,
)

ORIN = [306.0, 408.0, 510.0, 612.0, 714.0, 816.0, 918.0, 1020.0, 1122.0, 1224.0, 1300.5]
DESKTOP = [210.0 + 30.0 * i for i in range(60)]
UNEVEN = [300.0, 420.0, 555.0, 1110.0, 1125.0, 1140.0, 1710.0, 1980.0]


def curve(table: list[float], static: float = 0.3, scaling: float = 0.8, rise: float = 2.5) -> EnergyCurve:
    """Sums of powers of the clock, a law that the library does not have."""
    points = {}
    for mhz in table:
        x = mhz / max(table)
        time = scaling / x + 1.0 - scaling
        points[mhz] = Point((static + (1.0 - static) * x**rise) * time, time)
    return EnergyCurve(points)


def reader(truth: EnergyCurve, noise: float = 0.0, seed: int = 0, times: bool = True) -> Measure:
    rng = random.Random(seed)

    def measure(mhz: float) -> tuple[float, float | None]:
        point = truth.points[mhz]
        time_s = (point.time_s or 1.0) * math.exp(rng.gauss(0, noise))
        return point.energy_j * math.exp(rng.gauss(0, noise)), time_s if times else None

    return measure


@pytest.mark.parametrize("table", [ORIN, DESKTOP, UNEVEN, [500.0, 900.0, 1000.0, 1900.0]])
@pytest.mark.parametrize("static", [0.1, 0.3, 0.6])
@pytest.mark.parametrize("scaling", [0.2, 0.6, 1.0])
@pytest.mark.parametrize("times", [True, False])
def test_it_comes_near_the_optimum_of_a_law_it_does_not_have(
    table: list[float], static: float, scaling: float, times: bool
) -> None:
    truth = curve(table, static, scaling)
    result = Probe(table, reader(truth, times=times)).run()
    assert truth.regret_pct(result.chosen) < (3.0 if times else 5.0)
    assert len(result.probes) == len(set(result.probes)) <= 3
    assert result.steps == 10 * len(result.probes) <= MAX_STEPS


def test_under_noise_the_mean_loss_stays_small() -> None:
    losses = []
    for seed in range(30):
        truth = curve(DESKTOP, 0.1 + 0.02 * seed, 1.0 - 0.02 * seed)
        losses.append(truth.regret_pct(Probe(DESKTOP, reader(truth, 0.01, seed)).run().chosen))
    assert sum(losses) / len(losses) < 0.6


def test_curves_of_the_library_are_found_again() -> None:
    losses = []
    for law in library()[40:80]:
        logs = [law_at(law, mhz / ORIN[-1]) for mhz in ORIN]
        truth = EnergyCurve(
            {m: Point(math.exp(e), math.exp(t)) for m, (e, t) in zip(ORIN, logs, strict=True)}
        )
        losses.append(truth.regret_pct(Probe(ORIN, reader(truth)).run().chosen))
    assert sum(losses) / len(losses) < 0.5


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e3), st.sampled_from([0.1, 1.0, 2.5]))
@settings(max_examples=10, deadline=None)
def test_units_do_not_matter(joules: float, seconds: float, mhz: float) -> None:
    truth = curve(ORIN)
    plain = Probe(ORIN, reader(truth)).run()
    scaled = EnergyCurve(
        {m * mhz: Point(p.energy_j * joules, (p.time_s or 0) * seconds) for m, p in truth.points.items()}  # type: ignore[operator]
    )
    other = Probe(scaled.clocks, reader(scaled)).run()
    assert other.probes == pytest.approx([p * mhz for p in plain.probes])
    assert other.chosen == pytest.approx(plain.chosen * mhz)
    assert other.energy_j == pytest.approx(plain.energy_j * joules)


@pytest.mark.parametrize(
    ("shape", "end"), [(lambda x: 1 / x, -1), (lambda x: x**1.5, 0)], ids=["falling", "rising"]
)
@pytest.mark.parametrize("table", [ORIN, DESKTOP])
def test_curves_without_an_inner_minimum_end_at_an_end(
    shape: Callable[[float], float], end: int, table: list[float]
) -> None:
    truth = EnergyCurve({m: Point(shape(m / table[-1]), 1.0 if end == 0 else table[-1] / m) for m in table})
    result = Probe(table, reader(truth)).run()
    assert result.chosen == table[end]


def test_small_tables() -> None:
    one = Probe([900.0], lambda _: (5.0, 1.0)).run()
    assert (one.chosen, one.probes, one.why) == (900.0, (900.0,), "the table has one clock")
    two = EnergyCurve({400.0: Point(9.0), 900.0: Point(5.0)})
    assert Probe([900.0, 400.0], reader(two, times=False)).run().chosen == 900.0
    three = EnergyCurve({400.0: Point(9.0), 500.0: Point(3.0), 900.0: Point(5.0)})
    assert Probe(three.clocks, reader(three, times=False)).run().chosen == 500.0


@pytest.mark.parametrize("table", [[], [300.0, 300.0], [0.0, 5.0], [float("nan")]])
def test_tables_that_are_none(table: list[float]) -> None:
    with pytest.raises(InputError):
        Probe(table, lambda _: (1.0, 1.0))


@pytest.mark.parametrize("reading", [(0.0, 1.0), (float("nan"), 1.0), (1.0, -2.0), (float("inf"), None)])
def test_readings_that_are_none(reading: tuple[float, float | None]) -> None:
    with pytest.raises(InputError, match="measured at"):
        Probe(ORIN, lambda _: reading).run()


def test_an_objective_that_needs_times_asks_for_them() -> None:
    with pytest.raises(InputError, match="needs times"):
        Probe(ORIN, lambda _: (1.0, None), objective=Objective("edp")).run()


def test_a_time_missing_at_one_clock_is_no_fault() -> None:
    truth = curve(ORIN)
    full = reader(truth)
    result = Probe(ORIN, lambda mhz: (full(mhz)[0], None if mhz > 900 else full(mhz)[1])).run()
    assert truth.regret_pct(result.chosen) < 3.0


def test_it_starts_at_the_priors_clock_and_stops_where_nothing_is_left_to_gain() -> None:
    truth = curve(ORIN)
    result = Probe(ORIN, reader(truth), prior=truth).run()
    assert result.probes[0] == truth.best_clock
    assert result.prior_kept
    assert truth.regret_pct(result.chosen) < 1.0
    short = Probe(ORIN, reader(truth), run_steps=3, unit_steps=3).run()
    assert len(short.probes) == 2
    assert short.stopped_early
    assert "costs" in short.why


@pytest.mark.parametrize("steps", [3, 20, 199])
def test_a_run_too_short_for_two_probes_goes_by_its_prior(steps: int) -> None:
    truth, expected = curve(ORIN), curve(ORIN, static=0.4)
    result = Probe(ORIN, reader(truth), prior=expected, run_steps=steps, unit_steps=steps).run()
    assert (result.chosen, result.probes, result.steps) == (expected.best_clock, (), 0)
    assert (result.energy_j, result.extra_j, result.predicted) == (0.0, 0.0, {})
    assert "less than two steps" in result.why
    late = Objective("energy", deadline_s=2.0)  # an absolute time, which a prior does not know
    assert Probe(ORIN, reader(truth), prior=expected, run_steps=steps, objective=late).run().probes
    assert Probe(ORIN, reader(truth), run_steps=steps).run().probes  # nothing to go by


@given(st.integers(1, 5000), st.sampled_from([0.05, 0.3, 0.7]))
@settings(max_examples=20, deadline=None)
def test_with_a_prior_all_its_energy_stays_within_a_hundredth_of_the_run(steps: int, static: float) -> None:
    truth = curve(ORIN, static)
    result = Probe(ORIN, reader(truth), prior=truth, run_steps=steps, unit_steps=steps).run()
    assert result.energy_j <= 0.01 * truth.energy_j(truth.best_clock)
    assert result.steps <= MAX_STEPS
    energies = [truth.energy_j(mhz) for mhz in ORIN]
    two_steps_fit = 0.01 * steps * min(energies) / max(energies) >= 2  # were they taken at the dearest clock
    assert (result.steps >= 2) == two_steps_fit


def test_under_noise_a_prior_near_the_truth_is_worth_more_than_three_readings() -> None:
    """With 2 % noise the curve expected beforehand must not be talked away, nor lose more than it does alone."""
    alone, plain, informed = [], [], []
    for seed in range(12):
        truth = curve(ORIN, 0.2 + 0.02 * seed)
        expected = curve(ORIN, 0.23 + 0.02 * seed)
        alone.append(truth.regret_pct(expected.best_clock))
        plain.append(truth.regret_pct(Probe(ORIN, reader(truth, 0.02, seed)).run().chosen))
        known = Probe(ORIN, reader(truth, 0.02, seed), prior=expected, noise_rel=0.02).run()
        informed.append(truth.regret_pct(known.chosen))
    assert sum(informed) < sum(plain)
    assert sum(informed) / 12 <= sum(alone) / 12 + 0.1


def test_a_prior_of_other_clocks_without_times_still_counts() -> None:
    truth = curve(ORIN)
    coarse = EnergyCurve({mhz: Point(truth.energy_j(mhz)) for mhz in (408.0, 714.0, 1122.0)})
    result = Probe(ORIN, reader(truth), prior=coarse).run()
    assert result.prior_kept
    assert truth.regret_pct(result.chosen) < 1.0
    one = EnergyCurve({714.0: Point(1.0)})  # no shape, no family, and no less than without
    assert not Probe(ORIN, reader(truth), prior=one).run().prior_kept


@pytest.mark.parametrize("noise_rel", [-0.1, 1.0, float("nan")])
def test_an_error_that_is_no_share(noise_rel: float) -> None:
    with pytest.raises(InputError, match="error of a reading"):
        Probe(ORIN, lambda _: (1.0, 1.0), noise_rel=noise_rel)


def test_a_wrong_prior_does_not_win_against_measurements() -> None:
    truth, wrong = curve(ORIN, static=0.1), curve(ORIN, static=0.75)
    assert wrong.best_clock > truth.best_clock + 200
    result = Probe(ORIN, reader(truth), prior=wrong).run()
    assert not result.prior_kept
    assert truth.regret_pct(result.chosen) < 3.0


@pytest.mark.parametrize(("run", "each"), [(None, 10), (20, 1), (300, 1), (900, 3), (100_000, 10)])
def test_steps_stay_within_the_run(run: int | None, each: int) -> None:
    assert Probe(ORIN, lambda _: (1.0, 1.0), run_steps=run).steps_each == each


def test_energy_is_counted() -> None:
    truth = curve(ORIN)
    result = Probe(ORIN, reader(truth), unit_steps=1000, run_steps=1000).run()
    share = result.steps / len(result.probes) / 1000
    assert result.energy_j == pytest.approx(share * sum(truth.energy_j(p) for p in result.probes))
    chosen = result.predicted[result.chosen].energy_j
    assert result.extra_j == pytest.approx(result.energy_j - share * len(result.probes) * chosen)


def test_a_slowdown_limit_moves_the_choice_up() -> None:
    truth = curve(DESKTOP)
    free = Probe(DESKTOP, reader(truth)).run()
    bound = Probe(DESKTOP, reader(truth), objective=Objective("energy", max_slowdown_pct=10.0)).run()
    fastest = truth.points[DESKTOP[-1]].time_s or 0
    assert bound.chosen > free.chosen
    assert (truth.points[bound.chosen].time_s or 0) <= 1.12 * fastest
    late = Probe(DESKTOP, reader(truth), objective=Objective("energy", deadline_s=0.5 * fastest)).run()
    assert not late.feasible
    assert "deadline_s" in late.reason


def test_the_same_readings_give_the_same_answer() -> None:
    truth = curve(UNEVEN)
    probe = Probe(UNEVEN, reader(truth))
    assert probe.run() == probe.run() == Probe(UNEVEN[::-1], reader(truth)).run()


def test_a_board_needs_the_standard_library_only() -> None:
    code = (
        "import sys, wattune.core.probe; "
        "assert not {'numpy', 'scipy', 'sklearn', 'pandas'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_work_that_is_hardly_known_takes_nothing_from_the_power() -> None:
    """Steps on other batches at every clock: energy and time off by one factor each. What both say of power and voltage stands."""
    table = [float(mhz) for mhz in range(300, 1301, 100)]
    law = (6.0, 1.6, 0.45, 0.72, 0.35, 0.4, 0.25)
    truth = {mhz: tuple(math.exp(v) for v in law_at(law, mhz / table[-1])) for mhz in table}
    best = min(energy for energy, _ in truth.values())

    def loss(seed: int, *, told: bool) -> float:
        rng = random.Random(seed)

        def measure(mhz: float) -> Any:
            work = math.exp(rng.gauss(0.0, 0.05))
            energy, time = truth[mhz]
            return (energy * work, time * work, 0.05) if told else (energy * work, time * work)

        return truth[Probe(table, measure).run().chosen][0] / best - 1.0

    told, untold = ([loss(seed, told=t) for seed in range(40)] for t in (True, False))
    assert sum(told) < 0.8 * sum(untold), (sum(told), sum(untold))


@given(st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=2, max_size=4))
def test_where_the_work_is_known_nothing_changes(readings: list[tuple[float, float]]) -> None:
    energy, time = ([pair[which] for pair in readings] for which in (0, 1))
    level, time_level, squares = _misfit(energy, time, [1.0] * len(readings))
    assert level == pytest.approx(sum(energy) / len(energy), abs=1e-9)
    assert time_level == pytest.approx(sum(time) / len(time), abs=1e-9)
    plain = sum((e - level) ** 2 for e in energy) + sum((t - time_level) ** 2 for t in time)
    assert squares == pytest.approx(plain, abs=1e-9)


# --- against the clocks left alone


def probed(
    truth: EnergyCurve, maxn: Point, noise: float, seed: int, objective: Objective | None = None, **how: bool
) -> tuple[ProbeResult, Point]:
    """What a probe found under noise that it knows (or not), and a reading of the clocks left alone."""
    base = reader(EnergyCurve({1.0: maxn}), noise, seed + 10_000)(1.0)
    known = noise if how.get("told", True) else None
    result = Probe(
        ORIN, reader(truth, noise, seed), noise_rel=known, objective=objective or Objective()
    ).run()
    return result, Point(*base)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("objective", ["energy", "edp", "time"])
def test_the_error_of_the_difference_is_what_it_is_said_to_be(objective: str, told: bool) -> None:
    """Over many draws the estimate is off by about its standard error, not less: else the promise would be broken by chance."""
    off = []
    for seed in range(60):
        truth = curve(ORIN, 0.1 + 0.01 * seed, 1.0 - 0.01 * seed)
        result, base = probed(truth, truth.points[1300.5], 0.02, seed, Objective(objective), told=told)
        error = math.hypot(result.reading_error_rel, result.predicted[result.chosen].error_rel)
        there, seen = truth.points[result.chosen], result.predicted[result.chosen]
        costs = [
            {"energy": p.energy_j, "edp": p.energy_j * (p.time_s or 0), "time": p.time_s or 0}[objective]
            for p in (base, Point(seen.energy_j, seen.time_s), truth.points[1300.5], there)
        ]
        off.append((math.log(costs[0] / costs[1]) - math.log(costs[2] / costs[3])) / error)
    spread = math.sqrt(sum(o * o for o in off) / len(off))
    assert spread < (1.25 if told else 2.0)  # a noise that nobody tells is guessed from three readings
    assert spread > 0.4
    assert max(map(abs, off)) < (DOUBT_ERRORS if told else 2 * DOUBT_ERRORS)


def test_noise_alone_gives_hardly_a_clock_where_one_has_to_be_shown_to_be_better() -> None:
    """Every clock takes 1 % more than the clocks left alone, the worst case: whichever is read too low is chosen."""
    average, shown = 0, 0
    for seed in range(100):
        flat = EnergyCurve({mhz: Point(1.01, ORIN[-1] / mhz) for mhz in ORIN})
        result, base = probed(flat, Point(1.0, 1.0), 0.02, seed)
        average += result.beats([base])
        shown += result.beats([base], DOUBT_ERRORS)
    assert average > 15
    assert shown <= 1


def test_what_saves_much_is_kept_all_the_same() -> None:
    kept = 0
    for seed in range(40):
        truth = curve(ORIN)
        best = truth.energy_j(truth.best_clock)
        result, base = probed(truth, Point(best / 0.8, 1.0), 0.02, seed)
        kept += result.beats([base], DOUBT_ERRORS)
    assert kept >= 38


@given(st.floats(0.5, 2.0), st.floats(0.0, 0.05), st.integers(0, 99), st.floats(0.0, 5.0))
@settings(max_examples=40, deadline=None)
def test_who_asks_for_more_gets_no_more(level: float, noise: float, seed: int, errors: float) -> None:
    result, base = probed(curve(ORIN), Point(level, 1.0), noise, seed)
    assert result.beats([base]) or not result.beats([base], errors)
    lower = Point(base.energy_j * 0.9, base.time_s)  # MAXN that takes less is harder to beat
    assert result.beats([base], errors) or not result.beats([lower], errors)


def test_what_was_not_measured_was_not_shown() -> None:
    """A prior is a share: held against joules it would always win or always lose."""
    prior = EnergyCurve({306.0: Point(1.2, 2.0), 612.0: Point(0.7, 1.4), 1300.5: Point(1.0, 1.0)})
    result = Probe(ORIN, reader(curve(ORIN)), prior=prior, unit_steps=20, run_steps=20).run()
    assert not result.probes
    for joules in (1e-9, 1e9):
        assert result.beats([Point(joules, 1.0)])
        assert not result.beats([Point(joules, 1.0)], DOUBT_ERRORS)


def test_clocks_left_alone_that_break_a_limit_are_no_alternative() -> None:
    truth = EnergyCurve({mhz: Point(10.0, 1300.5 / mhz) for mhz in ORIN})  # the power grows with the clock
    power = Objective("time", max_power_w=6.0)
    result = Probe(ORIN, reader(truth), objective=power).run()
    assert result.feasible
    assert result.beats([Point(10.0, 1.0)], DOUBT_ERRORS)  # 10 W, and faster
    assert not result.beats([Point(5.0, 1.0)])  # 5 W, and faster
    none = Probe(ORIN, reader(truth), objective=Objective("time", max_power_w=0.1)).run()
    assert not none.feasible
    assert not none.beats([Point(0.05, 1.0)])


def test_the_clocks_left_alone_are_read_again_only_where_it_may_decide() -> None:
    """Never where the clock is worse on average, nor where it is shown at once, and three times in all."""
    for seed in range(20):
        result, _ = probed(curve(ORIN), curve(ORIN).points[1300.5], 0.02, seed)
        measured = {mhz: result.predicted[mhz] for mhz in result.probes}
        best = (
            result.chosen if result.chosen in measured else min(measured, key=lambda m: measured[m].energy_j)
        )
        there = measured[best]
        error = math.hypot(there.error_rel, result.reading_error_rel / math.sqrt(3))
        just = math.exp(1.001 * DOUBT_ERRORS * error)
        for share, reads, kept in ((0.9, 1, None), (2.0, 1, best), (1.02, 3, None), (just, 3, best)):
            point = Point(there.energy_j * share, 1.0)
            seen = [point]

            def again(point: Point = point, seen: list[Point] = seen) -> Point:
                seen.append(point)
                return point

            assert result.shown_to_beat(point, again) == (kept, reads)
            assert len(seen) == reads


def test_what_was_not_measured_is_not_kept_where_it_has_to_be_shown() -> None:
    """Curves that agree on two readings may all be wrong beyond them: here the energy rises below the lowest clock read."""
    truth = EnergyCurve({mhz: Point(0.8 if mhz > 500 else 1.3, ORIN[-1] / mhz) for mhz in ORIN})
    chosen = set()
    for seed in range(20):
        result, base = probed(truth, Point(1.0, 1.0), 0.02, seed)
        kept, _ = result.shown_to_beat(base, lambda base=base: base)
        assert kept is None or kept in result.probes
        if kept is not None:
            assert truth.energy_j(kept) < 1.0
        chosen.add(kept)
    assert chosen - {None}


@pytest.mark.parametrize("objective", ["energy", "ed2p"])
def test_work_that_is_hardly_known_shows_less(objective: str) -> None:
    """Steps on other batches in every window: their energy and time are off together, and so is what stands against them."""

    def found(work_rel: float) -> ProbeResult:
        def measure(mhz: float) -> tuple[float, float | None, float]:
            return *reader(curve(ORIN))(mhz), work_rel

        return Probe(ORIN, measure, noise_rel=0.02, objective=Objective(objective)).run()

    sure, unsure = found(0.0), found(0.05)
    size, off = (1.0, 0.05) if objective == "energy" else (math.sqrt(5.0), 0.15)
    assert sure.reading_error_rel == pytest.approx(0.02 * size)
    assert unsure.reading_error_rel == pytest.approx(math.hypot(0.02 * size, off))
    assert unsure.predicted[unsure.chosen].error_rel > sure.predicted[sure.chosen].error_rel
