"""Figures of the evaluation: the same bytes for the same data, whatever the data lack; and the noise floor."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
pytest.importorskip("sklearn")
from synthetic import load, rows

from wattune.core.curve import EnergyCurve, Point
from wattune.learning.export import train_governor
from wattune.learning.judge import Judgement, judge, noise_floor, summarise
from wattune.learning.loocv import SearchSpace
from wattune.learning.table import WorkloadRows
from wattune.stages.figures import write_figures

SPACE = SearchSpace(("family", "layers", "seq_len"), (1, 2), (1,), ("gini",))
SMALL = {"models": ["bert-base", "pythia-31m"], "clocks": (306.0, 612.0, 918.0, 1300.5)}
RECORDED = {"held_out": False, "noise_free": False, "repeats": 1, "provenance": "recorded"}


def judged(path: Path, table: list[dict[str, object]]) -> Judgement:
    features = load(path, table)
    return judge(features, train_governor(features, features.training, SPACE).governor, SPACE)


def draw(folder: Path, judgement: Judgement) -> dict[str, bytes]:
    files = write_figures(folder, judgement, summarise(judgement, resamples=50, seed=0))
    assert sorted(files) == sorted(folder.iterdir())
    return {file.name: file.read_bytes() for file in files}


@pytest.mark.long
def test_the_same_data_give_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    folder.mkdir()
    (folder / "curves-of-yesterday.png").write_bytes(b"stale")
    first = draw(folder, judged(tmp_path / "a.csv", rows(**SMALL)))
    assert set(first) == {
        "curves-bert-base.png",
        "curves-pythia-31m.png",
        "confusion.png",
        "savings.png",
        "policies.png",
    }
    assert all(data.startswith(b"\x89PNG") and b"Software" not in data for data in first.values())
    assert draw(folder, judged(tmp_path / "b.csv", rows(**SMALL))) == first
    other = draw(folder, judged(tmp_path / "c.csv", rows(seed=1, noise=0.3, **SMALL)))
    assert other != first


def test_without_baseline_and_times(tmp_path: Path) -> None:
    drawn = draw(
        tmp_path / "f", judged(tmp_path / "a.csv", rows(**SMALL, **RECORDED, maxn=False, time=False))
    )
    assert "regret.png" in drawn
    assert "savings.png" not in drawn


@pytest.mark.long
def test_workloads_that_name_no_model(tmp_path: Path) -> None:
    table = rows(**RECORDED, clocks=(306.0, 612.0, 918.0))
    for row in table:
        row |= {
            "model": "",
            "task": "",
            "family": "",
            "layers": "",
            "workload": f"{row['workload']} / epoch 1",
        }
    drawn = draw(tmp_path / "f", judged(tmp_path / "a.csv", table))
    curves = {name for name in drawn if name.startswith("curves")}
    assert curves == {"curves-workloads.png", "curves-workloads-2.png", "curves-workloads-3.png"}


def _row(repeats: list[tuple[float, float]], noise_free: tuple[float, float] | None = None) -> WorkloadRows:
    def curve(pair: tuple[float, float]) -> EnergyCurve:
        return EnergyCurve({306.0: Point(pair[0]), 612.0: Point(pair[1])})

    curves = tuple(curve(pair) for pair in repeats)
    low, high = (sum(values) / len(repeats) for values in zip(*repeats, strict=True))
    true = None if noise_free is None else curve(noise_free)
    return WorkloadRows("w", None, None, None, None, {}, curve((low, high)), curves, true, {})


def test_noise_floor_on_a_modelled_board() -> None:
    fooled = _row([(100.0, 99.0)], noise_free=(100.0, 110.0))  # measured optimum 612, truly 10 % worse
    right = _row([(100.0, 120.0)], noise_free=(100.0, 110.0))
    floor, _ = noise_floor([fooled, right])
    assert floor == pytest.approx(5.0)


def test_noise_floor_leaves_one_repeat_out() -> None:
    floor, how = noise_floor([_row([(100.0, 110.0), (120.0, 100.0)])])  # each repeat contradicts the other
    assert floor == pytest.approx((10.0 + 20.0) / 2)
    assert "left out" in how


def test_noise_floor_is_unknown_without_repeats() -> None:
    floor, how = noise_floor([_row([(100.0, 110.0)])])
    assert floor is None
    assert how.startswith("unknown")
