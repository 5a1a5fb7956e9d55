"""`wattune bench policies` on a synthetic table: its figures are those of the pipeline, its bars are judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("omegaconf")
from synthetic import rows, write

from wattune.benches import policies as bench_policies
from wattune.cli import main
from wattune.config import load_params
from wattune.stages.evaluate import evaluate
from wattune.stages.train import train

PARAMS = """
train: {max_depth: [1], min_samples_leaf: [1], criterion: [gini], regret: {prune_pct: [0.05], min_samples_leaf: [2]}}
evaluate: {bootstrap_resamples: 100}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("root")
    models = ("bert-base", "bert-large", "pythia-410m", "deberta-v2-xlarge")
    write(folder / "data/features/features.csv", rows(models=models))
    (folder / "params.yaml").write_text(PARAMS)
    return folder


@pytest.mark.long
def test_the_figures_are_those_of_the_pipeline(root: Path) -> None:
    pytest.importorskip("matplotlib")
    config = load_params(root / "params.yaml")
    train(config, root)
    evaluate(config, root)
    metrics = json.loads((root / "reports/evaluate/metrics.json").read_text())
    found = bench_policies.run(root)
    assert found["policies"] == {name: metrics[name]["all"] for name in found["policies"]}
    assert found["pairs"] == metrics["_meta"]["pairs"]
    report = json.loads((root / "reports/train/mlg-regret.json").read_text())
    assert found["mlg_regret"]["left_out"] == report["left_out"]


def test_the_command_prints_verdicts_and_judges_the_bars(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root)
    monkeypatch.setitem(bench_policies.BARS, "latency_us", ("<=", 1e6))
    assert main(["bench", "policies", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["ok"]
    assert {bar["what"] for bar in document["bars"]} == set(bench_policies.BARS)
    text = bench_policies.text(document)
    assert "mlg-regret     against ffg" in text
    assert any(verdict in text for verdict in ("better", "not distinguishable", "worse"))
    monkeypatch.setitem(bench_policies.BARS, "mean_regret_pct", ("<=", -1.0))
    assert main(["bench", "policies"]) == 1
    assert "does not hold" in capsys.readouterr().out


def test_without_a_table_it_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS)
    monkeypatch.chdir(tmp_path)
    assert main(["bench", "policies"]) == 2
    assert "dvc repro features" in capsys.readouterr().err
