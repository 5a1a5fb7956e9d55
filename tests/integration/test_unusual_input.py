"""Data that teach little or nothing, through `train`, `choose` and `replay`: a documented answer or one sentence."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("hydra")

from synthetic import rows, write

from wattune.cli import main
from wattune.config import Config, to_config
from wattune.core.errors import InputError
from wattune.stages.train import train

Rows = list[dict[str, object]]
TREES = ("mlg", "mlg-regret")
FILES = {"mlg": "models/governor-mlg.json", "mlg-regret": "models/governor-regret.json"}


def some(**more: object) -> Rows:
    return rows(models=("bert-small", "bert-base"), held_out=False, repeats=2, **more)  # type: ignore[arg-type]


def each(change: Callable[[dict[str, object]], dict[str, object]]) -> Rows:
    return [row | change(row) for row in some()]


def mhz_of(row: dict[str, object]) -> float:
    return 1300.5 if row["setting"] == "maxn" else float(str(row["gpu_mhz"]))


def contradictory() -> Rows:
    """Every workload twice, the second with the features of the first and its optimum at the other end."""
    ordinary = some()
    steep = [
        row | {"workload": f"{row['workload']}-again", "energy_j": 1000.0 * mhz_of(row)} for row in some()
    ]
    return [*ordinary, *steep]


ANSWERED: dict[str, Callable[[], Rows]] = {
    "one training workload": lambda: [r for r in some() if r["workload"] == some()[0]["workload"]],
    "one class": lambda: each(lambda r: {"energy_j": 1000.0 + abs(mhz_of(r) - 612.0)}),
    "constant features": lambda: each(
        lambda r: {"family": "bert", "layers": 12, "hidden": 768, "seq_len": 40, "gpu_util_ref_pct": 80}
    ),
    "missing utilisation": lambda: each(lambda r: {"gpu_util_ref_pct": "", "gpu_util_pct": ""}),
    "energy that rises with the clock": lambda: each(lambda r: {"energy_j": mhz_of(r)}),
    "energy that falls with the clock": lambda: each(lambda r: {"energy_j": 2000.0 - mhz_of(r)}),
    "contradictory duplicates": contradictory,
}

REFUSED: dict[str, tuple[Callable[[], Rows], str, str]] = {
    "a table with one clock": (
        lambda: [r for r in some() if r["setting"] in ("612", "maxn")],
        "At least two",
        "one clock only",
    ),
    "a feature that is NaN": (
        lambda: each(lambda r: {"layers": "nan"}),
        "layers is 'nan'",
        "layers is 'nan'",
    ),
    "a repeat that contradicts itself": (
        lambda: [*some(), some()[0] | {"energy_j": 1.0}],
        "stands there twice",
        "a duplicate of",
    ),
}
"""Rows, what `train` says of them, and what `replay` says."""


def sweep(path: Path, table: Rows) -> Path:
    columns = (
        *("board", "workload", "setting", "gpu_mhz", "repeat", "energy_j", "time_s"),
        *("family", "layers", "hidden", "seq_len", "gpu_util_pct"),
    )  # fmt: skip
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for row in table:
            writer.writerow(row | {"setting": "maxn" if row["setting"] == "maxn" else ""})
    return path


@pytest.fixture
def config() -> Config:
    return to_config({"train": {"max_depth": [1, 2], "min_samples_leaf": [1], "criterion": ["gini"]}})


@pytest.mark.parametrize("case", ANSWERED)
def test_it_is_answered_from_the_measured_settings(
    case: str, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = ANSWERED[case]()
    write(tmp_path / "data/features/features.csv", table)
    train(config, tmp_path)
    clocks = {mhz_of(row) for row in table if row["setting"] != "maxn"}
    recorded = str(sweep(tmp_path / "sweep.csv", table))
    for tree in TREES:
        governor = str(tmp_path / FILES[tree])
        assert (
            main(["choose", "--model", "bert-base", "--task", "qnli", "--governor", governor, "--json"]) == 0
        )
        answer = json.loads(capsys.readouterr().out)
        assert answer["mhz"] == "maxn" or answer["mhz"] in clocks
        if case == "one training workload" and tree == "mlg-regret":
            assert (answer["mhz"], answer["abstained"]) == ("maxn", True)
        if case == "missing utilisation":
            assert "gpu_util_ref_pct" not in answer["assumed"], "no tree asks for what nobody measured"
        if case == "constant features":
            assert "and" not in answer["rule"].split("->")[0], "nothing to tell workloads by"
        assert main(["replay", recorded, "--policy", tree, "--governor", governor, "--json"]) == 0
        assert all(r["regret_pct"] >= 0.0 for r in json.loads(capsys.readouterr().out))
    for policy in ("probe", "oracle", *(() if case == "one training workload" else ("ffg",))):
        assert main(["replay", recorded, "--policy", policy, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        if "with the clock" in case and policy != "ffg":
            end = min(clocks) if "rises" in case else max(clocks)
            assert {r["oracle_mhz"] for r in found} == {end}
            assert max(r["regret_pct"] for r in found) < 2.0, (
                "the end is found where there is no inner minimum"
            )
    report = json.loads((tmp_path / "reports/train/curve.json").read_text())
    assert report["loo_regret_pct"] is None or report["loo_regret_pct"] >= 0.0


def test_one_workload_teaches_no_other_and_replay_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sweep(tmp_path / "s.csv", ANSWERED["one training workload"]())
    assert main(["replay", str(path), "--policy", "ffg"]) == 2
    assert "the only workload of board" in capsys.readouterr().err


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused_in_a_sentence(
    case: str, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, by_train, by_replay = REFUSED[case]
    table = make()
    write(tmp_path / "data/features/features.csv", table)
    with pytest.raises(InputError, match=by_train) as caught:
        train(config, tmp_path)
    assert "\n" not in str(caught.value)
    for policy in ("probe", "oracle"):
        assert main(["replay", str(sweep(tmp_path / "s.csv", table)), "--policy", policy]) == 2
        said = capsys.readouterr().err
        assert by_replay in said
        assert "Traceback" not in said


@pytest.mark.parametrize("value", ["NaN", "Infinity", '"nan"', "true"])
def test_choose_takes_no_feature_that_is_no_number(
    value: str, config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "data/features/features.csv", some())
    train(config, tmp_path)
    features = tmp_path / "f.json"
    features.write_text(f'{{"layers": {value}, "seq_len": 40}}')
    for tree in TREES:
        assert main(["choose", "--features", str(features), "--governor", str(tmp_path / FILES[tree])]) == 2
        assert f"layers in {features} is" in capsys.readouterr().err


def test_held_out_rows_alone_teach_nothing_and_the_hint_names_the_column(
    config: Config, tmp_path: Path
) -> None:
    write(tmp_path / "data/features/features.csv", each(lambda r: {"part": "held_out"}))
    with pytest.raises(InputError, match="all its workloads are held out") as caught:
        train(config, tmp_path)
    assert "the column part" in str(caught.value)
