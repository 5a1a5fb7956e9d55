"""The written rule that decides which tree ships."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn")

from wattune.learning.champion import Contender, choose_champion

MLG = Contender("mlg", 0.25, 0.1, 4, 2)


@pytest.mark.parametrize(
    ("other", "champion"),
    [
        (Contender("mlg-regret", 0.34, 0.1, 2, 1), "mlg-regret"),  # within one standard error, and smaller
        (Contender("mlg-regret", 0.36, 0.1, 2, 1), "mlg"),  # beyond it
        (Contender("mlg-regret", 0.20, 0.01, 8, 3), "mlg-regret"),  # less by more than its own error
        (Contender("mlg-regret", 0.20, 0.06, 8, 3), "mlg"),  # less, but a smaller tree is as good
        (Contender("mlg-regret", 0.24, 0.1, 4, 3), "mlg-regret"),  # as small: the smaller loss
    ],
)
def test_least_loss_within_one_standard_error_then_the_smaller_tree(other: Contender, champion: str) -> None:
    for order in ([MLG, other], [other, MLG]):
        choice = choose_champion(order)
        assert choice.champion == champion
        assert choice.reason.startswith(champion)


def test_a_single_workload_leaves_the_smaller_tree() -> None:
    choice = choose_champion([Contender("mlg", None, None, 2, 1), Contender("mlg-regret", None, None, 1, 0)])
    assert (choice.champion, choice.bar_pct) == ("mlg-regret", None)


contenders = st.lists(
    st.builds(
        Contender, st.text(max_size=3), st.floats(0, 5), st.floats(0, 2), st.integers(1, 8), st.integers(0, 4)
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda c: c.policy,
)


@given(contenders)
def test_nothing_smaller_lies_within_the_bar_and_the_winner_does(some: list[Contender]) -> None:
    choice = choose_champion(some)
    won = next(c for c in some if c.policy == choice.champion)
    assert choice.bar_pct is not None
    assert (won.loo_regret_pct or 0.0) <= choice.bar_pct
    assert not [c for c in some if (c.loo_regret_pct or 0.0) <= choice.bar_pct and c.leaves < won.leaves]
