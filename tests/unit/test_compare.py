"""Policies against chance."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.core.compare import BETTER, UNCLEAR, WORSE, compare, compare_all
from wattune.core.errors import InputError

LOSSES = st.lists(st.floats(0.0, 50.0), min_size=2, max_size=20)


def test_a_constant_lead_is_no_chance_and_pairing_is_used() -> None:
    """The losses spread over 40 points, their differences not at all: unpaired, nothing could be told apart."""
    worse = [0.0, 10.0, 20.0, 40.0]
    better = [loss - 0.5 for loss in worse]
    found = compare("a", better, "b", worse)
    assert (found.verdict, found.difference, found.ci95) == (BETTER, -0.5, (-0.5, -0.5))
    assert compare("b", worse, "a", better).verdict == WORSE


def test_one_workload_decides_nothing() -> None:
    """The mean differs by 1 point, all of it from one of ten workloads: a third of the resamples miss it."""
    found = compare("a", [0.0] * 9 + [10.0], "b", [0.0] * 10)
    assert found.difference == pytest.approx(1.0)
    assert found.ci95[0] == 0.0 < found.ci95[1]
    assert found.verdict == UNCLEAR


@given(LOSSES)
def test_a_policy_against_itself(losses: list[float]) -> None:
    found = compare("a", losses, "a", losses)
    assert (found.verdict, found.ci95) == (UNCLEAR, (0.0, 0.0))


@given(LOSSES, st.randoms(use_true_random=False))
def test_turned_round(losses: list[float], rng) -> None:  # type: ignore[no-untyped-def]
    others = [loss + rng.uniform(-1.0, 1.0) for loss in losses]
    one, two = (
        compare("a", losses, "b", others, resamples=200),
        compare("b", others, "a", losses, resamples=200),
    )
    assert one.difference == pytest.approx(-two.difference)
    assert one.ci95 == pytest.approx((-two.ci95[1], -two.ci95[0]))


def test_every_pair_once_the_later_against_the_earlier() -> None:
    found = compare_all({"maxn": [1.0, 2.0], "ffg": [0.0, 1.0], "oracle": [0.0, 0.0]}, resamples=20)
    assert [(c.policy, c.against) for c in found] == [("ffg", "maxn"), ("oracle", "maxn"), ("oracle", "ffg")]


def test_other_workloads_are_refused() -> None:
    with pytest.raises(InputError, match="same workloads"):
        compare("a", [1.0], "b", [1.0, 2.0])
    with pytest.raises(InputError):
        compare("a", [], "b", [])
