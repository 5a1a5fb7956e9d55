"""The label tree, its search and the judging of policies, against scikit-learn and against hand-worked figures."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import LeaveOneOut
from sklearn.tree import DecisionTreeClassifier
from synthetic import load, rows, write

from schemas import schema
from wattune.boards.virtual.board import DEFAULT_CONSTANTS
from wattune.config import to_config
from wattune.core.errors import InputError, IntegrityError
from wattune.core.objectives import Objective, choose
from wattune.learning.export import train_governor
from wattune.learning.judge import judge, summarise
from wattune.learning.labeltree import Candidate, Encoder, LabelTree
from wattune.learning.loocv import SearchSpace, search
from wattune.learning.table import COLUMNS, FeatureTable, load_features
from wattune.stages.evaluate import evaluate
from wattune.stages.gate import gate
from wattune.stages.train import train

NUMBERS = ("layers", "hidden", "seq_len", "gpu_util_ref_pct")
SPACE = SearchSpace(
    features=("family", *NUMBERS), max_depth=(1, 2, 3), min_samples_leaf=(1, 2), criterion=("gini",), seed=0
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> FeatureTable:
    return load(tmp_path_factory.mktemp("features") / "features.csv", rows())


class TestSearch:
    def test_equals_a_plain_loop_over_scikit_learn(self, table: FeatureTable) -> None:
        """Without categories the whole search is LeaveOneOut x DecisionTreeClassifier."""
        space = SearchSpace(
            features=NUMBERS,
            max_depth=(1, 2, 3),
            min_samples_leaf=(1, 3),
            criterion=("gini", "entropy"),
            seed=0,
        )
        training = table.training
        x = np.array([[float(r.features[name]) for name in NUMBERS] for r in training])
        y = np.array([r.label_mhz for r in training])
        for result in search(training, space).results:
            hits = 0
            for keep, out in LeaveOneOut().split(x):
                c = result.candidate
                tree = DecisionTreeClassifier(
                    max_depth=c.max_depth,
                    min_samples_leaf=c.min_samples_leaf,
                    criterion=c.criterion,
                    random_state=0,
                ).fit(x[keep], y[keep])
                hits += int(tree.predict(x[out])[0] == y[out][0])
            assert result.loo_accuracy == pytest.approx(hits / len(y)), result.candidate

    def test_ties_go_to_the_simpler_tree(self, table: FeatureTable) -> None:
        found = search(table.training, SPACE)
        best = found.best
        for other in found.results:
            assert (other.loo_accuracy or 0) <= (best.loo_accuracy or 0)
            if other.loo_accuracy == best.loo_accuracy:
                assert (best.leaves, best.depth) <= (other.leaves, other.depth)

    def test_the_exported_tree_equals_scikit_learn(self, table: FeatureTable) -> None:
        trained = train_governor(table, table.training, SPACE)
        fitted = LabelTree(table.training, SPACE.features, trained.search.best.candidate, SPACE.seed)
        for row in table.workloads:
            assert trained.governor.decide(row.features).setting == fitted.predict(row.features)

    @pytest.mark.parametrize("share", [5.0, 10.0, 20.0, 40.0, 80.0])
    def test_a_limit_in_time_is_kept_by_every_training_workload(
        self, table: FeatureTable, share: float
    ) -> None:
        governor = train_governor(table, table.training, SPACE).governor
        limit = Objective("energy", max_slowdown_pct=share)
        means_break_it = 0
        for row in table.training:
            decision = governor.decide_for(row.features, limit)
            assert decision.feasible
            slowdown = row.measured.slowdown_pct(decision.setting)
            assert slowdown is not None
            assert slowdown <= share + 1e-6
            curve = governor.expected_curve(row.features)
            assert curve is not None
            by_mean = row.measured.slowdown_pct(choose(curve.points, limit).setting)
            means_break_it += by_mean is not None and by_mean > share
        if share == 10.0:
            assert means_break_it > 0  # else this test shows nothing

    def test_held_out_rows_never_touch_the_governor(self, tmp_path: Path) -> None:
        document = train_governor(
            load(tmp_path / "a.csv", rows()), load(tmp_path / "a.csv", rows()).training, SPACE
        ).document
        changed = rows()
        for row in changed:
            if row["part"] == "held_out":
                row["energy_j"] = float(str(row["energy_j"])) * 3
                row["layers"] = 99
        other = load(tmp_path / "b.csv", changed)
        assert train_governor(other, other.training, SPACE).document == document


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_exported_tree_equals_scikit_learn(data: st.DataObject) -> None:
    """Random rows, random trees; asked at the training values, in between, and far outside."""
    from wattune.core.curve import EnergyCurve, Point
    from wattune.learning.export import to_tree
    from wattune.learning.table import WorkloadRows, shared_settings

    n = data.draw(st.integers(4, 20))
    number = st.floats(0.0, 2000.0, width=32)
    families = data.draw(
        st.lists(st.sampled_from(["bert", "gpt-neox", "deberta-v2"]), min_size=n, max_size=n)
    )
    layers = data.draw(st.lists(number, min_size=n, max_size=n))
    lengths = data.draw(st.lists(number, min_size=n, max_size=n))
    best = data.draw(st.lists(st.sampled_from([510.0, 612.0, 714.0]), min_size=n, max_size=n))

    def row(i: int, family: str, depth: float, length: float) -> WorkloadRows:
        curve = EnergyCurve({s: Point(1.0 if s == best[i] else 2.0, 1.0) for s in (510.0, 612.0, 714.0)})
        features = dict.fromkeys(("params_m", "batch_size", "hidden", "gpu_util_ref_pct"))
        known = {**features, "family": family, "layers": depth, "seq_len": length}
        return WorkloadRows(f"w{i}", None, None, None, None, known, curve, (curve,), None, {})

    training = [row(i, families[i], layers[i], lengths[i]) for i in range(n)]
    candidate = Candidate(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3)), "gini")
    fitted = LabelTree(training, ("family", "layers", "seq_len"), candidate, 0)
    tree = to_tree(fitted, training, shared_settings(training), None)
    probes = [*layers, *lengths, *((a + b) / 2 for a, b in zip(layers, lengths, strict=True)), -1.0, 1e6]
    for value in probes:
        for family in ("bert", "gpt-neox", "llama"):
            value32 = float(np.float32(value))
            asked = {"family": family, "layers": value32, "seq_len": value32}
            assert tree.walk(asked)[0].setting == fitted.predict(asked)


def test_missing_numbers_become_the_training_median(tmp_path: Path) -> None:
    table = load(
        tmp_path / "f.csv", [r | {"gpu_util_ref_pct": ""} if r["model"] == "bert-base" else r for r in rows()]
    )
    known = sorted(
        float(r.features["gpu_util_ref_pct"])
        for r in table.training
        if r.features["gpu_util_ref_pct"] is not None
    )
    encoder = Encoder(table.training, ("gpu_util_ref_pct",))
    median = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
    assert encoder.complete({"gpu_util_ref_pct": None})["gpu_util_ref_pct"] == pytest.approx(median)


class TestJudge:
    def test_figures_by_hand(self, table: FeatureTable) -> None:
        trained = train_governor(table, table.training, SPACE)
        judgement = judge(table, trained.governor, SPACE)
        metrics = summarise(judgement, resamples=200, seed=0)
        assert metrics["_meta"]["split"] == "held_out"
        assert metrics["maxn"]["all"]["mean_saving_pct"] == 0
        assert metrics["oracle"]["all"]["max_regret_pct"] == 0
        ffg = judgement.of("ffg")
        clock = {o.setting for o in ffg}
        assert clock == {judgement.ffg_mhz}
        curves = [row.noise_free for row in table.held_out]
        savings = [100 * (1 - c.energy_j(judgement.ffg_mhz) / c.energy_j("maxn")) for c in curves]  # type: ignore[union-attr]
        assert metrics["ffg"]["all"]["mean_saving_pct"] == pytest.approx(
            sum(savings) / len(savings), abs=1e-5
        )
        assert metrics["ffg"]["all"]["min_saving_pct"] == pytest.approx(min(savings), abs=1e-5)
        low, high = metrics["ffg"]["all"]["mean_saving_ci95"]
        assert low < metrics["ffg"]["all"]["mean_saving_pct"] < high
        n = {g: metrics["mlg"][g]["n"] for g in ("all", "large", "small")}
        assert n == {"all": 54, "large": 30, "small": 24}
        floor = [row.judged.regret_pct(row.measured.oracle) for row in table.held_out]
        assert metrics["_meta"]["noise_floor_pct"] == pytest.approx(sum(floor) / len(floor), abs=1e-5)

    def test_leave_one_out_learns_from_the_others_only(self, tmp_path: Path) -> None:
        """Change one workload's energies beyond recognition: its own FFG clock must not move."""
        plain = rows(
            held_out=False, noise_free=False, provenance="recorded", models=("bert-base", "pythia-31m")
        )
        table = load(tmp_path / "a.csv", plain)
        first = judge(table, train_governor(table, table.training, SPACE).governor, SPACE)
        changed = [
            r | {"energy_j": 1.0 if r["setting"] == "1300.5" else 1e6}
            if r["workload"] == "bert-base-sst2"
            else r
            for r in plain
        ]
        other = load(tmp_path / "b.csv", changed)
        second = judge(other, train_governor(other, other.training, SPACE).governor, SPACE)
        assert first.split == second.split == "leave_one_out"

        def own(judgement) -> dict[str, object]:  # type: ignore[no-untyped-def]
            return {o.policy: o.setting for o in judgement.outcomes if o.row.id == "bert-base-sst2"}

        for policy in ("ffg", "mlg", "published"):
            assert own(first)[policy] == own(second)[policy]

    def test_without_a_baseline_savings_are_unknown(self, tmp_path: Path) -> None:
        table = load(
            tmp_path / "f.csv", rows(maxn=False, noise_free=False, time=False, provenance="recorded")
        )
        metrics = summarise(
            judge(table, train_governor(table, table.training, SPACE).governor, SPACE), resamples=50, seed=0
        )
        assert "maxn" not in metrics
        assert metrics["ffg"]["all"]["mean_saving_pct"] is None
        assert metrics["ffg"]["all"]["mean_slowdown_ci95"] is None
        assert metrics["ffg"]["all"]["mean_regret_pct"] >= 0

    def test_a_governor_of_other_rows_is_refused(self, table: FeatureTable, tmp_path: Path) -> None:
        other = load(tmp_path / "f.csv", rows(seed=7))
        with pytest.raises(InputError, match="not trained on this feature table"):
            judge(table, train_governor(other, other.training, SPACE).governor, SPACE)


BAD_TABLES = {
    "missing column": (lambda r: r, ("energy_j",), "energy_j"),
    "mixed boards": (lambda r: r | {"board": "nano"} if r["model"] == "bert-base" else r, (), "mixes boards"),
    "negative energy": (lambda r: r | {"energy_j": -1}, (), "energy_j is -1"),
    "NaN energy": (lambda r: r | {"energy_j": "nan"}, (), "finite number"),
    "no training rows": (lambda r: r | {"part": "held_out"}, (), "no training rows"),
    "one clock": (lambda r: r if r["setting"] in ("612", "maxn") else None, (), "at least two|At least two"),
    "twice": (lambda r: r | {"repeat": 0}, (), "twice"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_bad_tables(case: str, tmp_path: Path) -> None:
    change, without, says = BAD_TABLES[case]
    changed = [r for r in map(change, rows(models=("bert-base", "bert-small"))) if r is not None]
    path = write(tmp_path / "f.csv", changed, [c for c in COLUMNS if c not in without])
    with pytest.raises(InputError, match=says) as caught:
        load_features(path)
    assert "\n" not in str(caught.value)


class TestStages:
    @pytest.mark.long
    def test_the_gate_refuses_what_was_learnt_on_an_uncalibrated_board(self, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib")
        write(tmp_path / "data/features/features.csv", rows())
        config = to_config(
            {
                "board": {"constants": "board.json"},
                "train": {"max_depth": [1], "min_samples_leaf": [1], "criterion": ["gini"]},
            }
        )
        train(config, tmp_path)
        evaluate(config, tmp_path)
        document = json.loads(DEFAULT_CONSTANTS.read_text())
        verdicts = {}
        for status in ("calibrated", "uncalibrated"):
            document["calibration"]["status"] = status
            (tmp_path / "board.json").write_text(json.dumps(document))
            gate(config, tmp_path)
            decision = json.loads((tmp_path / "reports/gate/decision.json").read_text())
            verdicts[status] = [rule["passed"] for rule in decision["rules"]]
            assert decision["promote"] is all(verdicts[status])
        assert verdicts["calibrated"][-1] is True
        assert verdicts["uncalibrated"] == [*verdicts["calibrated"][:-1], False]

    @pytest.mark.long
    def test_train_evaluate_gate_write_what_the_schemas_say(self, tmp_path: Path) -> None:
        jsonschema = pytest.importorskip("jsonschema")
        pytest.importorskip("matplotlib")
        write(tmp_path / "data/features/features.csv", rows())
        config = to_config(
            {
                "board": {"constants": str(DEFAULT_CONSTANTS)},
                "train": {"max_depth": [1, 2], "min_samples_leaf": [1], "criterion": ["gini"]},
            }
        )
        train(config, tmp_path)
        evaluate(config, tmp_path)
        gate(config, tmp_path)
        read = {
            "governor": "models/governor.json",
            "regret": "models/governor-regret.json",
            "metrics": "reports/evaluate/metrics.json",
            "decision": "reports/gate/decision.json",
        }
        before = {}
        for name, path in read.items():
            before[path] = (tmp_path / path).read_bytes()
            jsonschema.validate(json.loads(before[path]), schema(name.replace("regret", "governor")))
        with (tmp_path / "reports/evaluate/policies.csv").open() as file:
            table = list(csv.DictReader(file))
        assert {r["policy"] for r in table} == {
            "maxn",
            "ffg",
            "published",
            "mlg",
            "mlg-regret",
            "curve",
            "probe",
            "oracle",
        }
        assert len(table) == len({row["policy"] for row in table}) * 54
        pictures = {p: p.read_bytes() for p in sorted((tmp_path / "reports/evaluate/figures").glob("*.png"))}
        assert len(pictures) == 12
        train(config, tmp_path)
        evaluate(config, tmp_path)
        gate(config, tmp_path)
        assert {path: (tmp_path / path).read_bytes() for path in before} == before
        assert {p: p.read_bytes() for p in pictures} == pictures

    @pytest.mark.parametrize(("reference", "written"), [(1020.0, 1020.0), (None, 1300.5)])
    def test_the_governor_says_at_which_clock_the_load_was_read(
        self, tmp_path: Path, reference: float | None, written: float
    ) -> None:
        write(tmp_path / "data/features/features.csv", rows(models=("bert-base", "pythia-31m", "bert-large")))
        config = to_config(
            {
                "train": {"max_depth": [1], "min_samples_leaf": [1], "criterion": ["gini"]},
                "features": {"reference_mhz": reference},
            }
        )
        train(config, tmp_path)
        for name in ("governor", "governor-regret"):
            document = json.loads((tmp_path / f"models/{name}.json").read_text())
            assert document["training"]["reference_mhz"] == written

    def test_gate_refuses_metrics_of_another_governor(self, tmp_path: Path) -> None:
        write(tmp_path / "data/features/features.csv", rows(models=("bert-base", "pythia-31m", "bert-large")))
        config = to_config({"train": {"max_depth": [1], "min_samples_leaf": [1], "criterion": ["gini"]}})
        train(config, tmp_path)
        evaluate(config, tmp_path)
        write(
            tmp_path / "data/features/features.csv",
            rows(seed=5, models=("bert-base", "pythia-31m", "bert-large")),
        )
        train(config, tmp_path)
        with pytest.raises(IntegrityError, match="another governor"):
            gate(config, tmp_path)
