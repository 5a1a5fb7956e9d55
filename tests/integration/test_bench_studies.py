"""`wattune bench studies` on synthetic tables whose answers are known, and the page that shows its figures."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("omegaconf")
from synthetic import rows, write

from wattune.benches import studies as studies
from wattune.benches.studies import TREE
from wattune.cli import main
from wattune.config import Config, load_params
from wattune.learning.judge import fixed_clock
from wattune.learning.table import FeatureTable, load_features

ROOT = Path(__file__).parents[2]
PARAMS = """
train: {max_depth: [2], min_samples_leaf: [1], criterion: [gini], regret: {prune_pct: [0.02], min_samples_leaf: [2]}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    write(folder / "data/features/features.csv", rows(noise=0.01))
    (folder / "params.yaml").write_text(PARAMS)
    return folder


@pytest.fixture(scope="module")
def config(root: Path) -> Config:
    return load_params(root / "params.yaml")


@pytest.fixture(scope="module")
def table(root: Path) -> FeatureTable:
    return load_features(root / "data/features/features.csv")


def test_noise_is_what_was_asked_for_and_repeats_itself(table: FeatureTable) -> None:
    row = table.training[0]
    quiet = studies.with_noise(row, 0.0, "a").measured
    assert all(
        quiet.energy_j(s) == pytest.approx(row.noise_free.energy_j(s)) for s in row.noise_free.settings
    )
    assert (
        studies.with_noise(row, 2.0, "a").measured.points == studies.with_noise(row, 2.0, "a").measured.points
    )
    errors = [
        100.0 * (point.energy_j / row.noise_free.energy_j(setting) - 1.0)
        for seed in range(200)
        for setting, point in studies.with_noise(row, 3.0, f"{seed}").measured.points.items()
    ]
    assert statistics.stdev(errors) == pytest.approx(3.0 / studies.REPEATS**0.5, rel=0.05)
    assert statistics.fmean(errors) == pytest.approx(0.0, abs=0.15)


def test_a_wrong_baseline_moves_maxn_alone_and_not_what_is_judged(table: FeatureTable) -> None:
    row = table.training[0]
    wrong = studies.with_wrong_baseline(row, 10.0)
    assert wrong.judged is row.judged
    assert wrong.measured.energy_j("maxn") == pytest.approx(1.1 * row.measured.energy_j("maxn"))
    assert all(wrong.measured.energy_j(c) == row.measured.energy_j(c) for c in row.measured.clocks)


@pytest.mark.long
def test_all_training_workloads_are_the_last_point_of_the_learning_curve(
    config: Config, table: FeatureTable
) -> None:
    curve = studies.learning_curve(config, table, sizes=(4, 12), draws=3)
    assert [(point["n"], point["draws"]) for point in curve] == [(4, 3), (12, 3), (len(table.training), 1)]
    clock = fixed_clock(table.training)
    expected = statistics.fmean(row.judged.regret_pct(clock) for row in table.held_out)
    assert curve[-1]["policies"]["ffg"]["mean_regret_pct"] == pytest.approx(expected, abs=1e-4)
    assert curve[-1]["policies"]["ffg"]["ci95"] is None, "there is one such training set"
    few, all_of_them = curve[0]["policies"]["mlg"], curve[-1]["policies"]["mlg"]
    assert all_of_them["mean_regret_pct"] < few["mean_regret_pct"]
    assert studies.learning_curve(config, table, sizes=(4,), draws=3)[0] == curve[0]


def test_the_figures_of_a_small_seeded_study(config: Config, table: FeatureTable) -> None:
    point = studies.learning_curve(config, table, sizes=(12,), draws=2)[0]
    found = {name: figures["mean_regret_pct"] for name, figures in point["policies"].items()}
    assert found == pytest.approx(SEEDED, abs=1e-4)


SEEDED = {"ffg": 0.4275, "mlg": 0.0899, TREE: 0.0416, "mlg-regret": 2.6718}
"""Mean regret with 12 training workloads, over two draws."""


@pytest.mark.long
def test_a_feature_that_says_nothing_is_not_missed_and_the_one_that_says_all_is(
    config: Config, table: FeatureTable
) -> None:
    """Depth and length decide the synthetic optimum, utilisation is their product; width and family only follow depth."""
    found = {(e["without"], e["policy"]): e for e in studies.ablation(config, table)}
    whole = found[None, TREE]["held_out_regret_pct"]
    assert {without for without, _ in found} == {
        None,
        "family",
        "layers",
        "hidden",
        "seq_len",
        "gpu_util_ref_pct",
    }
    assert found["family", TREE]["held_out_regret_pct"] == pytest.approx(whole, abs=1e-9)
    blind = studies.learn(config, table, table.training, without="gpu_util_ref_pct")
    assert "gpu_util_ref_pct" not in {f.name for f in blind.regret.features}
    everything = (*config.train.features,)
    config_blind = load_params_with(config, features=["family"])
    ignorant = studies.judged(studies.learn(config_blind, table, table.training), table.held_out)
    assert statistics.fmean(ignorant[TREE]["regrets"]) > whole
    assert config.train.features == list(everything), "the configuration is left as it was"


def load_params_with(config: Config, features: list[str]) -> Config:
    regret = replace(config.train.regret, features=features)
    return replace(config, train=replace(config.train, features=features, regret=regret))


@pytest.mark.long
def test_more_noise_loses_more_and_a_perfect_measurement_next_to_nothing(
    config: Config, table: FeatureTable
) -> None:
    quiet, loud = studies.noise(config, table, levels=(0.01, 20.0), seeds=2)
    for policy in ("mlg", TREE):
        assert quiet["policies"][policy]["mean_regret_pct"] < loud["policies"][policy]["mean_regret_pct"]
    assert quiet["declined"] <= loud["declined"]


@pytest.mark.long
def test_a_promise_moves_with_the_baseline_and_the_choice_does_not(
    config: Config, table: FeatureTable
) -> None:
    bold = replace(config, train=replace(config.train, regret=replace(config.train.regret, abstain=False)))
    right, high = studies.baseline(bold, table, errors=(10.0,))
    assert (right["error_pct"], high["error_pct"]) == (0.0, 10.0)
    assert high["tree_regret_pct"] == right["tree_regret_pct"]
    assert right["declined"] == high["declined"] == 0
    moved = 100.0 * (1.0 - (1.0 - right["promised_saving_pct"] / 100.0) / 1.1)
    assert high["promised_saving_pct"] == pytest.approx(moved, abs=1e-3)
    assert high["true_saving_pct"] == right["true_saving_pct"]


@pytest.mark.long
def test_a_baseline_that_seems_unbeatable_is_left_alone(config: Config, table: FeatureTable) -> None:
    low = studies.baseline(config, table, errors=(-60.0,))[0]
    assert low["true_saving_pct"] == 0.0


def test_without_noise_free_energy_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "data/features/features.csv", rows(noise_free=False, models=("bert-base", "pythia-1b")))
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "studies"]) == 2
    assert "does not suit the studies" in capsys.readouterr().err


def test_the_page_shows_what_was_saved_and_the_figures_are_there(tmp_path: Path) -> None:
    document = studies.read(ROOT)
    page = (ROOT / studies.PAGE).read_text(encoding="utf-8")
    for name, table in studies.tables(document).items():
        assert f"<!-- {name}:begin -->\n{table}\n<!-- {name}:end -->" in page
    assert document["model_digest"] == studies.digest(document["board"]), (
        "run `wattune bench studies --write`"
    )
    pytest.importorskip("matplotlib")
    studies.draw(document, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"studies-learning-curve.png", "studies-noise.png"}
    for path in tmp_path.iterdir():
        assert (ROOT / studies.FIGURES / path.name).is_file()


def test_the_words_of_the_page_hold() -> None:
    document = json.loads((ROOT / studies.RESULT).read_text(encoding="utf-8"))
    curve = {point["n"]: point["policies"] for point in document["learning_curve"]}

    def loss(n: int, policy: str) -> float:
        return float(curve[n][policy]["mean_regret_pct"])

    assert all(loss(n, "ffg") < loss(n, TREE) < loss(n, "mlg") for n in (3, 6))
    assert all(max(loss(n, TREE), loss(n, "mlg")) < loss(n, "ffg") for n in (9, 12, 18, 24, 27))
    ablated = {(e["without"], e["policy"]): e for e in document["ablation"]}
    without = "gpu_util_ref_pct"
    assert ablated[without, "mlg"]["loo_regret_pct"] > ablated[None, "mlg"]["loo_regret_pct"]
    assert ablated[without, "mlg"]["held_out_regret_pct"] > ablated[None, "mlg"]["held_out_regret_pct"]
    assert ablated[without, TREE]["loo_regret_pct"] > ablated[None, TREE]["loo_regret_pct"]
    assert ablated[without, TREE]["held_out_regret_pct"] < ablated[None, TREE]["held_out_regret_pct"]
    loudest = document["noise"][-1]["policies"]
    assert (
        loudest[TREE]["mean_regret_pct"]
        < loudest["ffg"]["mean_regret_pct"]
        < loudest["mlg"]["mean_regret_pct"]
    )
    assert document["left_out"]["mlg-regret"]["kinds"]["family"]["declined"] == document["n_training"]
    wrong = {e["error_pct"]: e for e in document["baseline"]}
    assert all(wrong[e]["tree_regret_pct"] == wrong[0.0]["tree_regret_pct"] for e in wrong if e > -25.0)
    assert wrong[-25.0]["true_saving_pct"] == 0.0
