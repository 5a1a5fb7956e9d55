"""The stopping rule: exact where the world is a line, honest where it is not, and never outside its floor and cap."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.profiling.window_rule import (
    Block,
    Epoch,
    Extrapolation,
    WindowRule,
    estimate,
    estimate_energy,
    lengths_surround,
    t975,
)

RAILS = "gpu_cpu"


def block(steps: int, tokens: int, energy_j: float, duration_s: float = 1.0) -> Block:
    return Block(steps, tokens, duration_s, {RAILS: energy_j})


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (3, 3.18245), (10, 2.22814), (11, 2.20099), (20, 2.08596), (60, 2.0003), (1000, 1.96234)],
)
def test_students_quantiles_are_the_printed_ones(freedom: int, quantile: float) -> None:
    assert t975(freedom) == pytest.approx(quantile, abs=5e-4)


blocks_strategy = st.lists(st.tuples(st.integers(1, 40), st.integers(8, 256)), min_size=3, max_size=30)


@given(blocks_strategy, st.floats(0.01, 50), st.floats(0.0, 0.5), st.integers(10, 5000), st.integers(8, 256))
@settings(max_examples=200, deadline=None)
def test_energy_that_is_a_line_in_length_is_found_exactly(
    shape: list[tuple[int, int]], a: float, b: float, epoch_steps: int, length: int
) -> None:
    steps = [m for m, _ in shape]
    tokens = [m * each for m, each in shape]
    values = [a * m + b * t for m, t in zip(steps, tokens, strict=True)]
    epoch = Epoch(epoch_steps, epoch_steps * length)
    found = estimate(values, steps, tokens, epoch)
    if found.per_token is None:  # all blocks of one length: their own mean is all there is
        assert found.per_step == pytest.approx(sum(values) / sum(steps), rel=1e-9)
        return
    assert found.per_step == pytest.approx(a + b * length, rel=1e-6, abs=1e-6)
    assert found.per_token == pytest.approx(b, rel=1e-5, abs=1e-6)


@given(blocks_strategy, st.floats(0.1, 1000), st.integers(0, 2**30))
@settings(max_examples=100, deadline=None)
def test_units_change_nothing_but_the_unit(shape: list[tuple[int, int]], factor: float, seed: int) -> None:
    draw = random.Random(seed)
    steps, tokens = [m for m, _ in shape], [m * each for m, each in shape]
    values = [m * draw.uniform(1, 2) for m in steps]
    epoch = Epoch(100, 100 * 64)
    one = estimate(values, steps, tokens, epoch)
    other = estimate([v * factor for v in values], steps, tokens, epoch)
    assert other.per_step == pytest.approx(one.per_step * factor, rel=1e-9, abs=1e-9 * factor)
    assert other.half_width is not None
    assert one.half_width is not None
    assert other.half_width == pytest.approx(one.half_width * factor, rel=1e-6, abs=1e-9 * factor)


def noisy(
    draw: random.Random, n: int, *, sigma: float, follows: float = 0.0, steps: int = 10
) -> tuple[list[Block], Epoch]:
    """Blocks of a + b T with noise whose neighbours resemble each other by `follows`."""
    made, state = [], draw.gauss(0, 1)
    for _ in range(n):
        state = follows * state + math.sqrt(1 - follows**2) * draw.gauss(0, 1)
        tokens = sum(draw.randint(20, 120) for _ in range(steps))
        made.append(block(steps, tokens, (2.0 * steps + 0.05 * tokens) * (1 + sigma * state)))
    return made, Epoch(1000, 1000 * 70)


@pytest.mark.parametrize(("follows", "floor_pct"), [(0.0, 94.0), (0.3, 90.0), (0.6, 80.0)])
def test_intervals_hold_the_truth_about_as_often_as_they_say(follows: float, floor_pct: float) -> None:
    """Of twelve blocks; where neighbours resemble each other much, so few cannot tell how much, and intervals are too narrow."""
    held = 0
    for seed in range(400):
        blocks, epoch = noisy(random.Random(seed), 12, sigma=0.02, follows=follows)
        found = estimate_energy(blocks, epoch, RAILS)
        assert found.half_width is not None
        held += abs(found.per_step - (2.0 + 0.05 * 70)) <= found.half_width
    assert 100.0 * held / 400 >= floor_pct


def ended(rule: WindowRule, blocks: Sequence[Block], epoch: Epoch) -> tuple[int, str]:
    for n in range(1, len(blocks) + 1):
        verdict = rule.judge(blocks[:n], epoch, RAILS)
        if verdict.why is not None:
            return n, verdict.why
    return len(blocks), ""


def test_under_noise_at_least_95_of_100_windows_end_within_one_percent() -> None:
    within = 0
    for seed in range(300):
        blocks, epoch = noisy(random.Random(seed), 200, sigma=0.014)
        n, why = ended(WindowRule(), blocks, epoch)
        assert why == "narrow"
        found = estimate_energy(blocks[:n], epoch, RAILS)
        within += abs(found.per_step / (2.0 + 0.05 * 70) - 1) <= 0.01
    assert within >= 285


@given(
    st.integers(0, 2**30), st.floats(0, 0.3), st.integers(1, 20), st.floats(0.2, 3.0), st.floats(1, 8), st.floats(10, 40),
    st.integers(3, 8), st.integers(0, 300),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_no_window_ends_below_its_floor_or_above_its_cap(
    seed: int, sigma: float, steps: int, duration_s: float, min_s: float, max_s: float, min_blocks: int, max_steps: int
) -> None:  # fmt: skip
    rule = WindowRule(min_s=min_s, max_s=max_s, min_blocks=min_blocks, max_steps=max_steps)
    blocks, epoch = noisy(random.Random(seed), 250, sigma=sigma, steps=steps)
    blocks = [Block(b.steps, b.tokens, duration_s, b.energy_j) for b in blocks]
    n, why = ended(rule, blocks, epoch)
    seconds, made = n * duration_s, n * steps
    if why == "narrow":
        assert seconds >= min_s
        assert n >= min_blocks
        assert made >= rule.min_steps
        assert lengths_surround(blocks[:n], epoch)
    elif why == "most steps":
        assert made >= max_steps > 0
    else:
        assert why == "most seconds"
        assert seconds >= max_s
    assert seconds < max_s + duration_s * 2
    assert not max_steps or made < max_steps + steps


def test_a_line_is_not_trusted_beyond_the_lengths_seen() -> None:
    """Blocks without any noise, but all longer than the epoch's batches: narrow, and yet not to be believed."""
    epoch = Epoch(100, 100 * 40)
    blocks = [block(10, 10 * length, 5.0 * length) for length in (80, 90, 100, 85, 95, 99)]
    assert WindowRule().judge(blocks, epoch, RAILS).why is None
    assert WindowRule().judge([*blocks, block(10, 300, 150.0)], epoch, RAILS).why == "narrow"


def test_a_whole_epoch_is_measured_and_says_how_far_off_the_short_window_was() -> None:
    blocks, _ = noisy(random.Random(3), 60, sigma=0.005)
    epoch = Epoch(600, sum(b.tokens for b in blocks))
    rule = WindowRule(full_epoch=True)
    n, why = ended(rule, blocks, epoch)
    assert (n, why) == (60, "whole epoch")
    whole = Extrapolation(tuple(blocks), epoch, rule, "whole epoch", epochs=4)
    true_j = sum(b.energy_j[RAILS] for b in blocks)
    assert whole.epoch_energy_j(RAILS) == (pytest.approx(true_j), None)
    assert whole.epoch_time_s() == pytest.approx(60.0)
    short_n, _ = ended(WindowRule(), blocks, epoch)
    short = estimate_energy(blocks[:short_n], epoch, RAILS)
    off = whole.check_pct(RAILS)
    assert off == pytest.approx(100 * (short.per_step * 600 / true_j - 1))
    assert off is not None
    assert abs(off) < 1.0
    document = whole.as_json(RAILS)
    assert document["run"]["energy_j"] == pytest.approx(4 * true_j, rel=1e-6)
    assert document["epoch"]["half_width_j"] is None
    assert document["epoch"]["no_interval"] == "the whole epoch was measured"


def test_two_blocks_say_a_number_and_no_interval_worth_the_name() -> None:
    epoch = Epoch(100, 6400)
    one = estimate_energy([block(10, 640, 50.0)], epoch, RAILS)
    assert (one.per_step, one.half_width, one.half_width_pct) == (5.0, None, None)
    extrapolated = Extrapolation((block(10, 640, 50.0),), epoch, WindowRule(), "most steps").as_json(RAILS)
    assert extrapolated["epoch"]["energy_j"] == 500.0
    assert extrapolated["epoch"]["no_interval"] == "too few blocks"
