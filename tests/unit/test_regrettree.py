"""The regret tree against brute force, and what must not change its answer."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import pytest

pytest.importorskip("sklearn")
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from wattune.core.errors import InputError
from wattune.learning.regrettree import RegretNode, RegretTree, between, lost_pct, prune

TOLERANCE = 0.5


@st.composite
def tables(draw: st.DrawFn, most: int = 9) -> tuple[np.ndarray, np.ndarray]:
    """Features with ties and energies of 1 to 4 settings."""
    n, columns, clocks = draw(st.integers(1, most)), draw(st.integers(1, 3)), draw(st.integers(1, 4))
    x = [[draw(st.integers(0, 4)) for _ in range(columns)] for _ in range(n)]
    y = [[draw(st.integers(100, 160)) for _ in range(clocks)] for _ in range(n)]
    return np.array(x, dtype=float), np.array(y, dtype=float)


def leaf_cost(loss: np.ndarray, rule: str) -> float:
    """Loss of the one setting a leaf picks, summed over its rows; written apart from the tree."""
    each = [float(np.mean(column) if rule == "mean" else np.max(column)) for column in loss.T]
    fastest = max(k for k, value in enumerate(each) if value <= min(each) + TOLERANCE + 1e-9)
    return each[fastest] * len(loss)


def stump_costs(x: np.ndarray, loss: np.ndarray, least: int, rule: str) -> list[float]:
    """Cost of every question there is."""
    costs = []
    for column in range(x.shape[1]):
        for value in sorted(set(x[:, column]))[:-1]:
            yes = x[:, column] <= value
            if least <= yes.sum() <= len(x) - least:
                costs.append(leaf_cost(loss[yes], rule) + leaf_cost(loss[~yes], rule))
    return costs


def subtrees(node: RegretNode) -> Iterator[tuple[float, int]]:
    """Cost and leaves of every pruning of a tree."""
    yield node.cost, 1
    if node.children:
        for (a, n), (b, m) in itertools.product(*(list(subtrees(child)) for child in node.children)):
            yield a + b, n + m


def total(tree: RegretTree) -> float:
    return sum(leaf.cost for leaf in tree.root_.leaves())


def chosen(tree: RegretTree, x: np.ndarray) -> list[object]:
    return list(tree.predict(x))


class TestAgainstBruteForce:
    @settings(max_examples=150, deadline=None)
    @given(tables(), st.integers(1, 3), st.sampled_from(["mean", "worst"]))
    def test_two_leaves_are_the_best_two(
        self, table: tuple[np.ndarray, np.ndarray], least: int, rule: str
    ) -> None:
        x, y = table
        loss = lost_pct(y)
        tree = RegretTree(max_leaves=2, min_samples_leaf=least, leaf=rule, tolerance_pct=TOLERANCE).fit(x, y)
        best = min([leaf_cost(loss, rule), *stump_costs(x, loss, least, rule)])
        assert total(tree) == pytest.approx(best, abs=1e-6)

    @settings(max_examples=100, deadline=None)
    @given(tables(), st.integers(1, 2), st.sampled_from(["mean", "worst"]))
    def test_every_split_of_a_grown_tree_is_the_best_of_its_node(
        self, table: tuple[np.ndarray, np.ndarray], least: int, rule: str
    ) -> None:
        x, y = table
        loss = lost_pct(y)
        tree = RegretTree(min_samples_leaf=least, leaf=rule, tolerance_pct=TOLERANCE).fit(x, y)

        def check(node: RegretNode, rows: np.ndarray) -> None:
            assert node.n == len(rows) >= min(least, len(x))
            assert node.cost == pytest.approx(leaf_cost(loss[rows], rule), abs=1e-6)
            costs = stump_costs(x[rows], loss[rows], least, rule)
            if not node.children:
                if len(list(tree.root_.leaves())) < 8:  # it stopped because nothing is gained
                    assert min(costs, default=math.inf) >= node.cost - 1e-6
                return
            assert sum(child.cost for child in node.children) == pytest.approx(min(costs), abs=1e-6)
            yes = x[rows, node.column] <= node.threshold
            check(node.children[0], rows[yes])
            check(node.children[1], rows[~yes])

        check(tree.root_, np.arange(len(x)))

    @settings(max_examples=100, deadline=None)
    @given(tables(), st.floats(0.0, 20.0))
    def test_pruning_finds_the_cheapest_of_all_subtrees(
        self, table: tuple[np.ndarray, np.ndarray], price: float
    ) -> None:
        grown = RegretTree().fit(*table).grown_
        pruned = list(prune(grown, price).leaves())
        least = min(cost + price * leaves for cost, leaves in subtrees(grown))
        assert sum(leaf.cost for leaf in pruned) + price * len(pruned) == pytest.approx(least, abs=1e-6)

    @settings(max_examples=50, deadline=None)
    @given(tables(), st.sampled_from([0.0, 0.05, 1.0, 5.0]))
    def test_pruned_equals_fitted_so(self, table: tuple[np.ndarray, np.ndarray], price: float) -> None:
        assert RegretTree().fit(*table).pruned(price).root_ == RegretTree(prune_pct=price).fit(*table).root_

    def test_known_data(self) -> None:
        """Two kinds of work, each with its own best clock; the third column tells them apart, the others do not."""
        x = [[1, 5, 10], [1, 6, 20], [1, 5, 30], [1, 6, 40]]
        y = [[100, 110, 130], [100, 112, 140], [140, 110, 100], [150, 120, 100]]
        tree = RegretTree().fit(x, y, (510.0, 714.0, "maxn"))
        assert (tree.root_.column, tree.root_.threshold) == (2, 25.0)
        assert tree.predict([[1, 5, 0], [1, 6, 99]]) == [510.0, "maxn"]
        assert tree.score(x, y) == 0.0


class TestInvariants:
    @settings(max_examples=80, deadline=None)
    @given(
        tables(), st.sampled_from(["mean", "worst"]), st.floats(0.0, 3.0), st.sampled_from([0.0, 0.1, 2.0])
    )
    def test_never_worse_than_one_leaf_and_never_above_eight(
        self, table: tuple[np.ndarray, np.ndarray], rule: str, tolerance: float, price: float
    ) -> None:
        tree = RegretTree(leaf=rule, tolerance_pct=tolerance, prune_pct=price).fit(*table)
        single = RegretTree(max_leaves=1, leaf=rule, tolerance_pct=tolerance).fit(*table)
        assert total(tree) <= total(single) + 1e-6
        assert len(list(tree.root_.leaves())) <= 8
        if rule == "mean":
            assert tree.score(*table) >= single.score(*table) - 1e-6

    @settings(max_examples=80, deadline=None)
    @given(tables(), st.data())
    def test_the_order_of_rows_changes_nothing(
        self, table: tuple[np.ndarray, np.ndarray], data: st.DataObject
    ) -> None:
        x, y = table
        order = data.draw(st.permutations(range(len(x))))
        assert RegretTree().fit(x, y).root_ == RegretTree().fit(x[order], y[order]).root_

    @settings(max_examples=80, deadline=None)
    @given(tables(), st.data())
    def test_the_unit_of_each_rows_energy_changes_nothing(
        self, table: tuple[np.ndarray, np.ndarray], data: st.DataObject
    ) -> None:
        x, y = table
        factors = [[data.draw(st.floats(1e-3, 1e6))] for _ in x]
        assert chosen(RegretTree().fit(x, y), x) == chosen(RegretTree().fit(x, y * np.array(factors)), x)

    @settings(max_examples=80, deadline=None)
    @given(tables(), st.sampled_from([np.exp, np.cbrt, lambda v: 1e6 * v - 7.0, lambda v: v**3]))
    def test_a_rising_transform_of_features_changes_nothing(self, table, rise) -> None:  # type: ignore[no-untyped-def]
        x, y = table
        assert chosen(RegretTree().fit(x, y), x) == chosen(RegretTree().fit(rise(x), y), rise(x))

    @given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9))
    def test_thresholds_separate(self, one: float, two: float) -> None:
        low, high = sorted((one, two))
        if low < high:
            assert low <= between(low, high) < high


class TestLeaves:
    def test_near_ties_go_to_the_faster_setting(self) -> None:
        y = [[100.0, 100.4, 100.6]]
        assert RegretTree(tolerance_pct=0.5).fit([[0]], y).root_.choice == 1
        assert RegretTree(tolerance_pct=0.0).fit([[0]], y).root_.choice == 0
        assert RegretTree(tolerance_pct=1.0).fit([[0]], y).root_.choice == 2

    def test_mean_and_worst_differ(self) -> None:
        """One clock is best for most rows and bad for one, the other is never bad."""
        x, y = [[0]] * 4, [[100, 103], [100, 103], [100, 103], [108, 100]]
        assert RegretTree(leaf="mean", tolerance_pct=0.0).fit(x, y).root_.choice == 0
        assert RegretTree(leaf="worst", tolerance_pct=0.0).fit(x, y).root_.choice == 1

    def test_scikit_learn_can_clone_it(self) -> None:
        tree = RegretTree(max_leaves=3, leaf="worst")
        assert clone(tree).get_params() == tree.get_params()
        assert RegretTree().set_params(tolerance_pct=0.1).tolerance_pct == 0.1


class TestUnusualInput:
    def test_one_row(self) -> None:
        tree = RegretTree().fit([[3.0, 4.0]], [[120.0, 100.0]])
        assert (tree.root_.children, tree.predict([[0.0, 0.0]])) == ((), [1])

    def test_constant_features_and_none_give_one_leaf(self) -> None:
        y = [[100, 120], [120, 100], [100, 120]]
        assert RegretTree().fit([[5.0]] * 3, y).root_.children == ()
        assert RegretTree().fit(np.empty((3, 0)), y).predict(np.empty((1, 0))) == [0]

    def test_one_best_setting_gives_one_leaf(self) -> None:
        assert RegretTree().fit([[1], [2], [3]], [[100, 130]] * 3).root_.children == ()

    def test_one_setting(self) -> None:
        assert RegretTree().fit([[1], [2]], [[5.0], [7.0]]).predict([[9]]) == [0]

    def test_no_interior_minimum(self) -> None:
        """Energy that only falls or only rises with the clock: an end of the table is the answer."""
        y = [[130, 120, 110, 100], [100, 110, 120, 130]]
        assert RegretTree().fit([[1], [2]], y).predict([[1], [2]]) == [3, 0]

    def test_contradictory_duplicates_share_a_leaf_and_are_averaged(self) -> None:
        tree = RegretTree().fit([[1], [1], [1]], [[100, 140], [100, 140], [130, 100]])
        assert tree.root_.children == ()
        assert tree.predict([[1]]) == [0]  # 0, 0 and 30 % lost against 40, 40 and 0

    @pytest.mark.parametrize(
        ("x", "y", "says"),
        [
            ([[math.nan]], [[1.0]], "finite"),
            ([[math.inf]], [[1.0]], "finite"),
            ([[1.0]], [[math.nan]], "positive"),
            ([[1.0]], [[0.0]], "positive"),
            ([[1.0]], [[-1.0]], "positive"),
            ([[1.0]], [[1.0], [2.0]], "do not fit"),
            (np.empty((0, 1)), np.empty((0, 3)), "do not fit"),
            (np.empty((1, 1)), np.empty((1, 0)), "do not fit"),
        ],
    )
    def test_refused(self, x: object, y: object, says: str) -> None:
        with pytest.raises(InputError, match=says):
            RegretTree().fit(x, y)

    @pytest.mark.parametrize(
        "bad",
        [
            {"max_leaves": 0},
            {"max_leaves": 9},
            {"min_samples_leaf": 0},
            {"prune_pct": -1.0},
            {"tolerance_pct": -0.1},
            {"leaf": "median"},
        ],
    )
    def test_parameters_out_of_bounds(self, bad: dict[str, object]) -> None:
        with pytest.raises(InputError, match=next(iter(bad))):
            RegretTree(**bad).fit([[1.0]], [[1.0]])  # type: ignore[arg-type]

    def test_settings_must_name_the_columns(self) -> None:
        with pytest.raises(InputError, match="do not name"):
            RegretTree().fit([[1.0]], [[1.0, 2.0]], (510.0,))
