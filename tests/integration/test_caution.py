"""How easily a regret governor declines: chosen among its training workloads, and leaves that tell safe work from unsafe."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

pytest.importorskip("sklearn")
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.core.curve import EnergyCurve, Point
from wattune.core.settings import MAXN
from wattune.core.stats import mean
from wattune.core.tree import Leaf, Split, Tree
from wattune.learning.export import choose_caution, train_regret_governor
from wattune.learning.folds import folds
from wattune.learning.labeltree import question_counts
from wattune.learning.regretsearch import RegretCandidate, RegretModel, RegretSpace
from wattune.learning.spread import LeftOut, Spread
from wattune.learning.table import FeatureTable, WorkloadRows

SPACE = RegretSpace(features=("layers", "hidden"), min_samples_leaf=(1,), prune_pct=(0.0,), apart="family")
CAREFUL = replace(SPACE, levels=(0.5, 0.95), beyonds=(1.5, 3.0), tolerated_loss_pct=0.5)


def workload(
    name: str, layers: float, saving_pct: float, family: str = "bert", hidden: float = 512.0
) -> WorkloadRows:
    """714 MHz is best among the clocks, and saves so much against MAXN."""
    energies = {510.0: 1.1, 714.0: 1.0, 1300.5: 1.4, MAXN: 1.0 / (1.0 - saving_pct / 100.0)}
    curve = EnergyCurve({s: Point(e, 1.0) for s, e in energies.items()})  # type: ignore[misc]
    features = dict.fromkeys(("params_m", "batch_size", "seq_len", "gpu_util_ref_pct"))
    known = {**features, "family": family, "layers": layers, "hidden": hidden}
    return WorkloadRows(name, "train", None, None, None, known, curve, (curve,), None, {})


def table_of(some: list[WorkloadRows]) -> FeatureTable:
    return FeatureTable("jetson-agx-orin-64gb", "simulated", "MAXN", "gpu_cpu", tuple(some))


def two_kinds(seed: int = 0) -> list[WorkloadRows]:
    """Deep models save a fifth, shallow ones nothing, and one clock serves both."""
    rng = random.Random(seed)
    return [
        workload(
            f"{family}{i}",
            rng.uniform(4, 8) if i % 2 else rng.uniform(16, 24),
            rng.uniform(-0.4, 0.4) if i % 2 else rng.uniform(18, 22),
            family,
        )
        for family in ("bert", "gpt-neox", "llama")
        for i in range(12)
    ]


class TestTellingApart:
    def test_work_that_saves_surely_is_not_declined_for_work_that_may_lose(self) -> None:
        some = two_kinds()
        plain = train_regret_governor(table_of(some), some, SPACE).governor
        apart = train_regret_governor(table_of(some), some, replace(SPACE, tell_apart=5)).governor
        assert len(plain.tree.leaves) == 1
        assert all(plain.decide(row.features).abstained for row in some)
        for row in some:
            decision = apart.decide(row.features)
            deep = float(row.features["layers"] or 0.0) > 10
            assert decision.setting == (714.0 if deep else MAXN)
            assert decision.abstained is not deep

    @settings(max_examples=40, deadline=None)
    @given(
        st.lists(
            st.tuples(
                st.sampled_from([4.0, 6.0, 12.0, 24.0]), st.sampled_from([256.0, 512.0]), st.floats(-20, 30)
            ),
            min_size=4,
            max_size=24,
        ),
        st.integers(1, 6),
    )
    def test_it_changes_no_clock_and_keeps_to_eight_leaves(
        self, made: list[tuple[float, float, float]], least: int
    ) -> None:
        some = [
            workload(f"w{i}", layers, saving, hidden=hidden)
            for i, (layers, hidden, saving) in enumerate(made)
        ]
        plain = RegretModel(some, replace(SPACE, apart=""), RegretCandidate(1, 0.0))
        told = RegretModel(some, replace(SPACE, apart="", tell_apart=least), RegretCandidate(1, 0.0))
        assert question_counts(told.questions())[0] <= 8
        governors = [
            train_regret_governor(
                table_of(some), some, replace(SPACE, apart="", tell_apart=k, abstain_beyond=None)
            )
            for k in (0, least)
        ]
        picks = [[g.governor.decide(row.features).setting for row in some] for g in governors]
        assert picks[0] == picks[1] == [plain.predict(row.features) for row in some]
        leaves = governors[1].governor.tree.leaves
        assert sum(leaf.n for leaf in leaves) == len(some)
        if len(leaves) > len(governors[0].governor.tree.leaves):
            assert sum(leaf.n >= least for leaf in leaves) >= 2

    def test_the_order_of_rows_changes_nothing(self) -> None:
        some = two_kinds()
        space = replace(CAREFUL, tell_apart=5)
        one = train_regret_governor(table_of(some), some, space).document
        other = train_regret_governor(table_of(some[::-1]), some[::-1], space).document
        assert one["nodes"] == other["nodes"]
        assert one["abstain"] == other["abstain"]


def test_a_small_leaf_is_not_believed_to_spread_less_than_its_own_rows() -> None:
    """Thirty rows that hit within a point, and five that miss by six: all together look sure at 80 %."""
    empty = Leaf(714.0, 5, 4.0, (-2.0, 10.0), (1.0,), (1.0,))
    known = (
        *(LeftOut(0.1 * (i % 10) - 0.5, 0.1) for i in range(30)),
        *(LeftOut(6.0 * s, 2.0) for s in (-1, -1, 0, 1, 1)),
    )
    home = (*([1] * 30), *([2] * 5))
    tree = Tree([Split("layers", 10.0, None, 1, 2), replace(empty, n=30), empty])
    pooled, widened = (
        Spread(tree, known, home, w).at(0.8).leaves[1].saving_interval_pct for w in (False, True)
    )
    assert pooled is not None
    assert widened is not None
    assert pooled[0] > 0.0 > widened[0] == pytest.approx(-2.0)
    big = [Spread(tree, known, home, w).at(0.8).leaves[0] for w in (False, True)]
    assert big[0] == big[1], "a leaf with rows enough keeps its own interval"


class TestChoosing:
    def test_equals_a_plain_loop_over_folds(self) -> None:
        some = two_kinds(3)
        score = {}
        for level, beyond in CAREFUL.cautions:
            savings, wasted = [], []
            for out, others in folds(some, "family"):
                governor = train_regret_governor(
                    table_of(some), others, CAREFUL.with_caution(level, beyond)
                ).governor
                for row in out:
                    setting = governor.decide(row.features).setting
                    savings.append(row.measured.saving_pct(setting) or 0.0)
                    wasted.append(row.measured.regret_pct(setting))
            score[level, beyond] = (sum(s < -0.5 for s in savings), round(mean(wasted), 5), -level, beyond)
        assert choose_caution(table_of(some), some, CAREFUL) == min(score, key=lambda pair: score[pair])

    def test_where_a_low_level_lets_training_work_lose_a_high_one_is_taken(self) -> None:
        """One in eight of a family's workloads loses 8 %: half of the residuals know nothing of it, nearly all do."""
        rng = random.Random(5)
        risky = [
            workload(f"{f}{i}", 12.0, -8.0 if i % 8 == 0 else rng.uniform(6, 8), f)
            for f in ("bert", "gpt-neox", "llama")
            for i in range(24)
        ]
        assert choose_caution(table_of(risky), risky, CAREFUL)[0] == 0.95

    def test_the_document_says_what_was_chosen(self) -> None:
        some = two_kinds()
        level, beyond = choose_caution(table_of(some), some, CAREFUL)
        document = train_regret_governor(table_of(some), some, CAREFUL).document
        assert document["abstain"] == {"beyond": beyond, "tolerated_loss_pct": 0.5}
        assert document["training"]["conformal_level"] == min(level, (len(some) - 1) / (len(some) + 1))

    def test_one_workload_leaves_the_most_careful_pair(self) -> None:
        alone = [workload("a", 12.0, 10.0)]
        assert choose_caution(table_of(alone), alone, CAREFUL) == (0.95, 1.5)

    def test_nothing_is_tried_where_it_never_declines_or_one_pair_is_given(self) -> None:
        some = two_kinds()
        never = replace(CAREFUL, abstain_beyond=None)
        assert choose_caution(table_of(some), some, never) == (0.9, None)
        assert choose_caution(table_of(some), some, SPACE) == (0.9, 1.5)
