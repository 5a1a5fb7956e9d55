"""A governor of diverse work asks for operation counts: `choose` computes them as the training table has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("hydra")

from wattune.benches import diverse as bench
from wattune.cli import main
from wattune.config import compose, to_config
from wattune.core.features import COST_FEATURES
from wattune.core.governor import Governor, parse_governor
from wattune.io import write_text
from wattune.learning.export import canonical_json, train_regret_governor
from wattune.learning.table import FeatureTable, WorkloadRows
from wattune.stages.train import regret_space

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[FeatureTable, Governor, Path]:
    """``experiment=diverse`` on a twelfth of its workloads and few clocks, its regret governor and the governor's file."""
    config = to_config(
        compose(ROOT / "conf", "diverse", ["board.power_mode=MODE_50W", "sweep.clocks_mhz=[306,510,816]"])
    )
    kept = list(config.workloads)[::12]
    config.workloads = {name: config.workloads[name] for name in kept}
    config.workload_ids = kept
    table = bench.measure_config(config, ROOT).table
    training = train_regret_governor(table, table.training, regret_space(config.train))
    path = tmp_path_factory.mktemp("governor") / "diverse.json"
    write_text(path, canonical_json(training.document))
    return table, training.governor, path


def flags(row: WorkloadRows) -> list[str]:
    f = row.features
    return [
        *("--model", str(row.model), "--seq-len", str(f["seq_len"]), "--batch-size", str(int(f["batch_size"] or 0))),
        *("--precision", str(f["precision"]), "--method", str(f["method"])),
    ]  # fmt: skip


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_line_chooses_what_the_governor_does_in_process(
    trained: tuple[FeatureTable, Governor, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """On work held out too, so that every count is the one of the table that the governor was trained on."""
    table, governor, path = trained
    assert {f.name for f in governor.features} <= set(COST_FEATURES)
    answers = set()
    for row in table.workloads:
        decision = governor.decide(row.features)
        answer = ask(capsys, "choose", *flags(row), "--governor", str(path))
        assert (answer["mhz"], answer["rule"]) == (decision.setting, decision.rule), row.id
        assert answer["in_range"] == decision.in_range
        assert answer["assumed"] == {}
        answers.add(answer["rule"])
    assert len(answers) > 1


def test_what_nobody_says_is_assumed_and_named(
    trained: tuple[FeatureTable, Governor, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(trained[2])
    bare = ask(capsys, "choose", "--model", "SmolLM2-135M", "--task", "qnli", "--governor", path)
    assert bare["assumed"]["method"] == "full"
    assert {"precision", "step_gflop", "expected_util_pct"} <= set(bare["assumed"])
    other = ask(
        capsys, "explain", "--model", "SmolLM2-135M", "--task", "qnli", "--method", "lora", "--governor", path
    )
    assert other["assumed"]["step_gbyte"] < bare["assumed"]["step_gbyte"], "LoRA moves no optimizer state"
    assert "method" not in other["assumed"]


def test_a_feature_file_wins_over_counting(
    trained: tuple[FeatureTable, Governor, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_text(tmp_path / "f.yaml", "expected_util_pct: 12.5\nmethod: bitfit\n")
    argv = ("--model", "bert-base", "--task", "qnli", "--features", str(tmp_path / "f.yaml"))
    answer = ask(capsys, "choose", *argv, "--governor", str(trained[2]))
    assert "expected_util_pct" not in answer["assumed"]
    assert "method" not in answer["assumed"]


def test_a_model_without_a_length_is_refused(
    trained: tuple[FeatureTable, Governor, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["choose", "--model", "bert-base", "--governor", str(trained[2])]) == 2
    assert "--task or --seq-len" in capsys.readouterr().err


def test_a_mode_that_the_model_of_the_board_lacks_leaves_the_defaults(
    trained: tuple[FeatureTable, Governor, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from wattune.core.governor import document_digest

    document = dict(trained[1].document) | {"power_mode": "MODE_X"}
    document["digest"] = document_digest(document)
    path = tmp_path / "other.json"
    write_text(path, canonical_json(document))
    assert parse_governor(path.read_bytes()).power_mode == "MODE_X"
    answer = ask(capsys, "choose", "--model", "bert-base", "--task", "qnli", "--governor", str(path))
    defaults = {f.name: f.default for f in trained[1].features}
    assert answer["assumed"]["step_gflop"] == defaults["step_gflop"]
