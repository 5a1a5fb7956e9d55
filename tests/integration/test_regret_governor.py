"""From the feature table to a governor that learned from energy, and that declines where it does not know."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
from synthetic import load, rows

from schemas import schema
from wattune.core.curve import EnergyCurve, Point
from wattune.core.governor import canonical_json
from wattune.core.settings import MAXN
from wattune.core.stats import mean
from wattune.learning.export import train_governor, train_regret_governor
from wattune.learning.judge import judge, summarise
from wattune.learning.loocv import SearchSpace
from wattune.learning.regretsearch import RegretModel, RegretSpace, groups_out, search_regret
from wattune.learning.spread import interval, reached_level, upper_quantile
from wattune.learning.table import FeatureTable, WorkloadRows

NUMBERS = ("layers", "hidden", "seq_len", "gpu_util_ref_pct")
SPACE = RegretSpace(features=("family", *NUMBERS), min_samples_leaf=(1, 2), prune_pct=(0.0, 0.05))
LABELS = SearchSpace(("family", *NUMBERS), max_depth=(1,), min_samples_leaf=(1,), criterion=("gini",))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> FeatureTable:
    return load(tmp_path_factory.mktemp("features") / "features.csv", rows())


def workload(
    name: str, layers: float | None, energies: dict[object, float], part: str = "train", family: str = "bert"
) -> WorkloadRows:
    curve = EnergyCurve({s: Point(e, 1.0) for s, e in energies.items()})  # type: ignore[misc]
    features = dict.fromkeys(("params_m", "batch_size", "hidden", "seq_len", "gpu_util_ref_pct"))
    known = {**features, "family": family, "layers": layers}
    return WorkloadRows(name, part, None, None, None, known, curve, (curve,), None, {})


def table_of(some: list[WorkloadRows]) -> FeatureTable:
    return FeatureTable("jetson-agx-orin-64gb", "simulated", "MAXN", "gpu_cpu", tuple(some))


def low_clocked(n: int, part: str, seed: int, *, told: bool) -> list[WorkloadRows]:
    """Work whose saving swings from -15 to +35 %: MAXN already clocks low on half of it, and says so only if `told`."""
    rng = random.Random(seed)
    made = []
    for i in range(n):
        starved = i % 2 == 0
        best = rng.uniform(0.99, 1.01)
        maxn = rng.uniform(0.86, 0.90) if starved else rng.uniform(1.3, 1.5)
        layers = (4.0 if starved else 24.0) if told else 12.0
        made.append(workload(f"{part}{i}", layers, {510.0: 1.1, 714.0: best, 1300.5: 1.4, MAXN: maxn}, part))
    return made


class TestGovernor:
    def test_the_file_answers_as_the_fitted_tree(self, table: FeatureTable) -> None:
        trained = train_regret_governor(table, table.training, SPACE)
        fitted = RegretModel(table.training, SPACE, trained.search.best.candidate)
        for row in table.workloads:
            leaf, _ = trained.governor.tree.walk(trained.governor.complete(row.features)[0])
            assert leaf.setting == fitted.predict(row.features)
        assert trained.governor.policy == "mlg-regret"
        assert len(canonical_json(trained.document)) <= 8000

    def test_the_schema_describes_it(self, table: FeatureTable) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        document = train_regret_governor(table, table.training, SPACE).document
        jsonschema.validate(document, schema("governor"))
        assert document["abstain"] == {"beyond": 1.5}
        assert all("saving_interval_pct" in node for node in document["nodes"] if "setting_hz" in node)

    def test_held_out_rows_and_the_order_of_rows_never_touch_it(self, tmp_path: Path) -> None:
        first = load(tmp_path / "a.csv", rows())
        changed = [r | {"energy_j": 1.0, "layers": 99} if r["part"] == "held_out" else r for r in rows()]
        second = load(tmp_path / "b.csv", reversed(changed))
        trained = [train_regret_governor(t, t.training, SPACE).document for t in (first, second)]
        assert trained[0]["nodes"] == trained[1]["nodes"]
        assert trained[0]["training"]["fingerprint"] == trained[1]["training"]["fingerprint"]

    def test_its_picks_lose_less_than_one_fixed_clock(self, table: FeatureTable) -> None:
        space = replace(SPACE, abstain_beyond=None)
        trained = train_regret_governor(table, table.training, space)
        labels = train_governor(table, table.training, LABELS)
        judgement = judge(table, labels.governor, LABELS, regret=(trained.governor, space))
        assert judgement.policies == ("maxn", "ffg", "published", "mlg", "mlg-regret", "oracle")
        metrics = summarise(judgement, resamples=200, seed=0)
        assert metrics["mlg-regret"]["all"]["mean_regret_pct"] < metrics["ffg"]["all"]["mean_regret_pct"]
        pairs = {(p["policy"], p["against"]): p for p in metrics["_meta"]["pairs"]}
        assert len(pairs) == 15
        mine = [o.regret_pct for o in judgement.of("mlg-regret")]
        fixed = [o.regret_pct for o in judgement.of("ffg")]
        found = pairs["mlg-regret", "ffg"]
        assert found["regret_difference_points"] == pytest.approx(mean(mine) - mean(fixed), abs=1e-6)
        assert found["ci95"][0] <= found["regret_difference_points"] <= found["ci95"][1]

    def test_free_to_decline_it_is_never_worse_than_maxn(self, table: FeatureTable) -> None:
        """On shallow models MAXN already clocks low here: some are declined, none loses more than 0.5 %."""
        governor = train_regret_governor(table, table.training, SPACE).governor
        decisions = [governor.decide(row.features) for row in table.held_out]
        assert 0 < sum(d.abstained for d in decisions) < len(decisions)
        savings = [
            row.judged.saving_pct(row.nearest(d.setting))
            for row, d in zip(table.held_out, decisions, strict=True)
        ]
        assert min(s for s in savings if s is not None) >= -0.5

    def test_leave_one_out_learns_from_the_others(self, tmp_path: Path) -> None:
        few = load(
            tmp_path / "f.csv",
            rows(held_out=False, noise_free=False, provenance="recorded", models=("bert-base", "pythia-31m")),
        )
        regret = train_regret_governor(few, few.training, SPACE).governor
        judgement = judge(
            few, train_governor(few, few.training, LABELS).governor, LABELS, regret=(regret, SPACE)
        )
        for outcome in judgement.of("mlg-regret"):
            others = [row for row in few.workloads if row is not outcome.row]
            alone = train_regret_governor(few, others, SPACE).governor.decide(outcome.row.features)
            assert outcome.setting == outcome.row.nearest(alone.setting)


class TestSearch:
    def test_leave_one_out_by_a_plain_loop(self, table: FeatureTable) -> None:
        training = table.training
        for result in search_regret(training, SPACE).results:
            lost = []
            for row in training:
                model = RegretModel([o for o in training if o is not row], SPACE, result.candidate)
                lost.append(row.measured.regret_pct(row.nearest(model.predict(row.features))))
            assert result.loo_regret_pct == pytest.approx(mean(lost))

    def test_the_smallest_tree_within_one_standard_error(self, table: FeatureTable) -> None:
        found = search_regret(table.training, SPACE)
        least = min(found.results, key=lambda r: r.loo_regret_pct or 0.0)
        bar = (least.loo_regret_pct or 0.0) + (least.standard_error_pct or 0.0)
        near = [r for r in found.results if (r.loo_regret_pct or 0.0) <= bar]
        assert found.best in near
        assert found.best.leaves == min(r.leaves for r in near)

    def test_whole_groups_out(self, table: FeatureTable) -> None:
        seen: list[set[object]] = []

        def learn(some):  # type: ignore[no-untyped-def]
            seen.append({row.features["family"] for row in some})
            return train_regret_governor(table, some, SPACE).governor

        found = groups_out(table.training, "family", learn)
        families = {"bert", "deberta-v2", "gpt-neox"}
        assert found is not None
        assert [families - others for others in seen] == [{name} for name in sorted(families)]
        assert found["n"] == 27
        assert found["declining"] == {  # a family nobody trained on is outside the range: MAXN throughout
            "mean_regret_pct": pytest.approx(
                mean([r.measured.regret_pct(MAXN) for r in table.training]), abs=1e-5
            ),
            "worst_saving_pct": 0.0,
        }
        assert 0 < found["declined"] <= 27
        assert found["mean_regret_pct"] < found["declining"]["mean_regret_pct"]
        assert groups_out([replace(row, task=None) for row in table.training], "task", learn) is None


class TestSpread:
    def test_quantiles_by_hand(self) -> None:
        values = [float(v) for v in range(1, 20)]  # 19 of them: the least and the greatest bound 90 %
        assert interval(values, 0.9) == (1.0, 19.0)
        assert interval(values, 0.8) == (2.0, 18.0)
        assert upper_quantile(values, 0.9) == 18.0
        assert upper_quantile(values[:3], 0.9) == 3.0

    def test_few_rows_reach_less(self) -> None:
        assert reached_level(2, 0.9) is None
        assert reached_level(3, 0.9) == 0.5
        assert reached_level(19, 0.9) == 0.9 == reached_level(200, 0.9)

    def test_it_covers_what_it_promises(self) -> None:
        """Fresh workloads of the same kind fall into the interval at least about as often as promised."""
        training = low_clocked(40, "train", 1, told=False)
        governor = train_regret_governor(table_of(training), training, SPACE).governor
        fresh = low_clocked(400, "held_out", 2, told=False)
        hits = []
        for row in fresh:
            leaf, _ = governor.tree.walk(governor.complete(row.features)[0])
            low, high = leaf.saving_interval_pct or (0.0, 0.0)
            hits.append(low <= (row.measured.saving_pct(leaf.setting) or 0.0) <= high)
        assert mean([float(hit) for hit in hits]) >= 0.85


class TestDeclining:
    def test_where_maxn_already_clocks_low_and_nothing_tells(self) -> None:
        """Without abstention half of the choices lose more than 10 % against MAXN; with it none loses anything."""
        everything = table_of(
            low_clocked(30, "train", 1, told=False) + low_clocked(30, "held_out", 2, told=False)
        )
        worst = {}
        for beyond in (None, 1.5):
            space = replace(SPACE, abstain_beyond=beyond)
            governor = train_regret_governor(everything, everything.training, space).governor
            decisions = [governor.decide(row.features) for row in everything.held_out]
            savings = [
                row.measured.saving_pct(d.setting)
                for row, d in zip(everything.held_out, decisions, strict=True)
            ]
            worst[beyond] = min(s for s in savings if s is not None)
        assert worst[None] < -10.0
        assert worst[1.5] >= -0.5
        assert all(d.abstained and "a loss included" in d.reason and d.setting == MAXN for d in decisions)

    def test_where_a_feature_tells_it_acts_on_one_half_and_keeps_maxn_on_the_other(self) -> None:
        everything = table_of(
            low_clocked(60, "train", 1, told=True) + low_clocked(60, "held_out", 2, told=True)
        )
        governor = train_regret_governor(everything, everything.training, SPACE).governor
        picks = {row.features["layers"]: governor.decide(row.features) for row in everything.held_out}
        assert {layers: d.setting for layers, d in picks.items()} == {4.0: MAXN, 24.0: 714.0}
        assert not any(d.abstained for d in picks.values())
        savings = [
            row.measured.saving_pct(governor.decide(row.features).setting) for row in everything.held_out
        ]
        assert min(s for s in savings if s is not None) >= -0.5

    def test_a_little_outside_is_said_and_far_outside_declined(self, table: FeatureTable) -> None:
        governor = train_regret_governor(table, table.training, SPACE).governor
        inside = dict(next(row for row in table.training if row.id == "bert-large-qnli").features)
        longest = max(float(row.features["seq_len"]) for row in table.training)
        near = governor.decide({**inside, "seq_len": longest * 1.4})
        far = governor.decide({**inside, "seq_len": longest * 1.6})
        assert (near.in_range, near.abstained, near.out_of_range) == (False, False, ("seq_len",))
        assert (far.setting, far.abstained, far.expected_saving_pct) == (MAXN, True, 0.0)
        assert far.reason == "too far outside the training range: seq_len"
        assert governor.decide({**inside, "family": "llama"}).abstained
        assert governor.decide({**inside, "layers": float("nan")}).abstained

    def test_off_for_mlg_unless_asked(self, table: FeatureTable) -> None:
        plain = train_governor(table, table.training, LABELS)
        assert "abstain" not in plain.document
        assert not any("saving_interval_pct" in node for node in plain.document["nodes"])
        assert not plain.governor.decide({"family": "llama", "layers": 9999.0}).abstained
        asked = replace(LABELS, level=0.9, abstain_beyond=1.5)
        assert train_governor(table, table.training, asked).governor.decide({"family": "llama"}).abstained


class TestUnusualInput:
    def test_one_training_workload_is_one_leaf_that_declines(self) -> None:
        alone = [workload("a", 12.0, {510.0: 1.2, 714.0: 1.0, MAXN: 1.4})]
        trained = train_regret_governor(table_of(alone), alone, SPACE)
        assert trained.search.best.loo_regret_pct is None
        assert [leaf.setting for leaf in trained.governor.tree.leaves] == [714.0]
        decision = trained.governor.decide(alone[0].features)
        assert (decision.setting, decision.reason) == (MAXN, "how far its saving spreads is unknown")

    def test_features_nobody_knows_and_constant_ones_give_one_leaf(self) -> None:
        some = [workload(f"w{i}", None, {510.0: 1.2, 714.0: 1.0, MAXN: 1.4}) for i in range(5)]
        trained = train_regret_governor(table_of(some), some, SPACE)
        assert trained.search.best.leaves == 1
        assert [f.name for f in trained.governor.features] == ["family"]
        assert trained.governor.decide({}).setting == 714.0

    def test_missing_utilisation_is_filled_and_named(self, table: FeatureTable) -> None:
        governor = train_regret_governor(table, table.training, SPACE).governor
        without = {**table.training[0].features, "gpu_util_ref_pct": None}
        default = next(f.default for f in governor.features if f.name == "gpu_util_ref_pct")
        assert governor.decide(without).assumed == {"gpu_util_ref_pct": default}

    def test_a_clock_some_were_not_measured_at_counts_as_their_nearest(self) -> None:
        some = [
            workload("a", 4.0, {510.0: 1.0, 714.0: 1.2, MAXN: 1.4}),
            workload("b", 4.0, {510.0: 1.0, 612.0: 1.1, 714.0: 1.2, MAXN: 1.4}),
        ]
        trained = train_regret_governor(table_of(some), some, SPACE)
        assert [leaf.setting for leaf in trained.governor.tree.leaves] == [510.0]

    def test_without_a_baseline_no_saving_is_known_and_the_range_alone_decides(self) -> None:
        some = [workload(f"w{i}", 4.0 + i, {510.0: 1.2, 714.0: 1.0}) for i in range(5)]
        governor = train_regret_governor(table_of(some), some, SPACE).governor
        assert governor.decide({"family": "bert", "layers": 6.0}).setting == 714.0
        far = governor.decide({"family": "bert", "layers": 60.0})
        assert (far.setting, far.expected_saving_pct, far.abstained) == (MAXN, None, True)
