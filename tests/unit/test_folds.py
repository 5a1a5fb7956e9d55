"""What is left out together: no kind stands on both sides, every row is left out once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn")
from wattune.core.curve import EnergyCurve, Point
from wattune.learning.folds import folds
from wattune.learning.loocv import SearchSpace, search
from wattune.learning.regretsearch import RegretSpace, search_regret
from wattune.learning.spread import left_out
from wattune.learning.table import WorkloadRows


def row(name, family, layers=1.0, best=500.0):
    clocks = (300.0, 500.0, 700.0)
    points = {c: Point(100.0 + abs(c - best) / 10.0, 1.0) for c in clocks} | {"maxn": Point(150.0, 0.9)}
    curve = EnergyCurve(points)
    features = {"family": family, "layers": layers}
    return WorkloadRows(name, "train", None, None, None, features, curve, (curve,), None, {})


@given(st.lists(st.sampled_from("abcd"), min_size=2, max_size=12))
def test_a_kind_never_stands_on_both_sides_and_every_row_is_left_out_once(families):
    rows = [row(f"w{i}", family) for i, family in enumerate(families)]
    seen = []
    for out, others in folds(rows, "family"):
        assert len(out) + len(others) == len(rows)
        if len(set(families)) > 1:
            assert not {r.features["family"] for r in out} & {r.features["family"] for r in others}
        seen += [r.id for r in out]
    assert sorted(seen) == sorted(r.id for r in rows)


def test_one_kind_or_an_unknown_one_leaves_single_rows_out():
    alike = [row(f"w{i}", "a") for i in range(3)]
    unknown = [row("x", None), row("y", "a"), row("z", "b")]
    for rows in (alike, unknown):
        assert [len(out) for out, _ in folds(rows, "family")] == [1, 1, 1]
    assert [len(out) for out, _ in folds(unknown)] == [1, 1, 1]
    assert folds(alike[:1], "family") == []


def test_searches_kept_apart_never_see_the_family_they_pick_for():
    """Family a wants 300, family b 700: who has seen its own family knows, who has not picks the other's clock."""
    rows = [row(f"a{i}", "a", best=300.0) for i in range(3)] + [
        row(f"b{i}", "b", best=700.0) for i in range(3)
    ]
    labels = SearchSpace(("family",), (2,), (1,), ("gini",))
    apart = SearchSpace(("family",), (2,), (1,), ("gini",), apart="family")
    assert search(rows, labels).best.predicted_mhz == (300.0,) * 3 + (700.0,) * 3
    assert search(rows, apart).best.predicted_mhz == (700.0,) * 3 + (300.0,) * 3
    one = RegretSpace(("family",), min_samples_leaf=(1,), prune_pct=(0.0,), tolerance_pct=0.0)
    kept = RegretSpace(
        ("family",), min_samples_leaf=(1,), prune_pct=(0.0,), tolerance_pct=0.0, apart="family"
    )
    assert search_regret(rows, one).best.predicted == (300.0,) * 3 + (700.0,) * 3
    assert search_regret(rows, kept).best.predicted == (700.0,) * 3 + (300.0,) * 3


def test_spreads_kept_apart_show_what_a_new_family_loses():
    from wattune.core.tree import Leaf, Tree

    rows = [row(f"a{i}", "a", best=300.0) for i in range(2)] + [
        row(f"b{i}", "b", best=700.0) for i in range(2)
    ]

    def grow(some):
        best = some[0].measured.best_clock
        return Tree([Leaf(best, len(some), 10.0, None, (), ())]), dict

    assert [one.regret_pct for one in left_out(rows, grow, "family")] == pytest.approx([40.0] * 4)
    assert left_out(rows[:1], grow, "family") == ()
