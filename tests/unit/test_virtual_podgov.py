from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.boards.virtual.model import PhaseRun
from wattune.boards.virtual.podgov import PodGov, Segment, simulate

N = 11
POLL_S = 0.025


def same_at_every_clock(time_s: float, busy: float) -> tuple[PhaseRun, ...]:
    """A phase that takes no notice of the clock."""
    return tuple(PhaseRun(time_s, busy, 1.0, 1.0, 1.0, 1.0) for _ in range(N))


def clocks_at_polls(segments: Sequence[Segment]) -> list[int]:
    """Index of the clock in each polling window."""
    return [s.index for s in segments for _ in range(round(s.duration_s / POLL_S))]


def test_a_load_of_95_percent_jumps_to_the_top_at_the_first_poll() -> None:
    segments = simulate([[same_at_every_clock(10 * POLL_S, 0.95)]], PodGov(N), POLL_S)
    assert clocks_at_polls(segments) == [0] + 9 * [10]


def test_a_starved_gpu_descends_one_step_per_poll_to_the_bottom() -> None:
    segments = simulate([[same_at_every_clock(20 * POLL_S, 0.4)]], PodGov(N, index=10), POLL_S)
    assert clocks_at_polls(segments) == [10, 9, 8, 7, 6, 5, 4, 3, 2, 1] + 10 * [0]


def test_step_response() -> None:
    # Worked by hand from the rule: the average starts at 0 and follows the load with 1/8 per poll; it passes 600 at the
    # 11th poll of a load of 800 (613) and 700 at the 16th (702); then four steps up per poll.
    governor = PodGov(N, index=3)
    averages, indices = [], []
    for _ in range(18):
        indices.append(governor.poll(800))
        averages.append(governor.average)
    assert averages == [
        100,
        187,
        263,
        330,
        388,
        439,
        484,
        523,
        557,
        587,
        613,
        636,
        656,
        674,
        689,
        702,
        714,
        724,
    ]
    assert indices == [2, 1] + 13 * [0] + [4, 8, 10]
    # and back: a load of 300 keeps climbing while the average is above 700, holds down to 600, then one step a poll
    assert [(governor.poll(300), governor.average) for _ in range(6)] == [
        (10, 671),
        (10, 624),
        (9, 583),
        (8, 547),
        (7, 516),
        (6, 489),
    ]


def test_a_load_between_the_margins_holds_the_clock() -> None:
    governor = PodGov(N, index=5)
    governor.average = 650
    assert [governor.poll(650) for _ in range(50)] == 50 * [5]


def test_polls_fall_on_time_whatever_the_steps_do() -> None:
    # Phases of 10 ms, one of three busy: each window of 25 ms sees 20-40 % load, so the clock falls once per window.
    step = [same_at_every_clock(0.01, 1.0), same_at_every_clock(0.01, 0.0), same_at_every_clock(0.01, 0.0)]
    segments = simulate([step] * 100, PodGov(N, index=10), POLL_S)
    time_s, changes = 0.0, []
    for before, after in itertools.pairwise(segments):
        time_s += before.duration_s
        if after.index != before.index:
            changes.append(round(time_s / POLL_S, 6))
    assert changes == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]


def test_work_left_goes_on_at_the_new_clocks_pace() -> None:
    # 0.1 s at the bottom, 0.05 s elsewhere: a quarter is done in the first window, the rest at twice the pace.
    phase = (
        PhaseRun(0.1, 1.0, 1.0, 1.0, 1.0, 1.0),
        *(PhaseRun(0.05, 1.0, 2.0, 1.0, 1.0, 1.0) for _ in range(N - 1)),
    )
    segments = simulate([[phase]], PodGov(N), POLL_S)
    assert [(s.index, pytest.approx(s.duration_s)) for s in segments] == [(0, 0.025), (10, 0.0375)]


def _slow_simulation(steps: Sequence[Sequence[Sequence[PhaseRun]]], governor: PodGov) -> tuple[float, float]:
    """Time and clock-weighted time by taking one short tick after another; no jumps over windows."""
    tick = POLL_S / 50
    time_s = weighted = busy = 0.0
    ticks = 0
    for phases in steps:
        for by_clock in phases:
            work = 1.0
            while work > 1e-9:
                run = by_clock[governor.index]
                work -= tick / run.time_s
                time_s += tick
                weighted += tick * governor.index
                busy += tick * run.busy
                ticks += 1
                if ticks == 50:
                    governor.poll(int(1000 * busy / POLL_S + 1e-9))
                    ticks, busy = 0, 0.0
    return time_s, weighted


@given(
    st.lists(st.tuples(st.integers(1, 400), st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=6),
    st.integers(0, N - 1),
)
def test_jumping_over_windows_changes_nothing(phases: list[tuple[int, float, float]], start: int) -> None:
    # Durations are whole ticks at every clock, so that the slow simulation is exact.
    steps = [
        [
            tuple(
                PhaseRun(ticks * POLL_S / 50, low + (high - low) * i / N, 1.0, 1.0, 1.0, 1.0)
                for i in range(N)
            )
            for ticks, low, high in phases
        ]
    ] * 4
    segments = simulate(steps, PodGov(N, index=start), POLL_S)
    time_s, weighted = _slow_simulation(steps, PodGov(N, index=start))
    assert sum(s.duration_s for s in segments) == pytest.approx(time_s)
    assert sum(s.duration_s * s.index for s in segments) == pytest.approx(weighted, abs=1e-9)


@given(
    st.lists(st.tuples(st.floats(1e-4, 3.0), st.floats(0, 1)), min_size=1, max_size=5),
    st.integers(0, N - 1),
)
def test_every_step_is_done_once(phases: list[tuple[float, float]], start: int) -> None:
    steps = [[tuple(PhaseRun(t / (1 + i), b, 1.0, 1.0, 1.0, 1.0) for i in range(N)) for t, b in phases]] * 3
    segments = simulate(steps, PodGov(N, index=start), POLL_S)
    for number in range(3):
        done = sum(s.duration_s / s.run.time_s for s in segments if s.step == number)
        assert done == pytest.approx(len(phases))
    assert [s.step for s in segments] == sorted(s.step for s in segments)
