"""Whole runs at several clocks: the clock touches nothing that is learnt, and where something differs it is said and named."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("omegaconf")
from test_finetune_sweep import FULL, TINY, Emulated, emulated, fake_board  # noqa: F401

from fake_worker import EPOCH
from wattune.config import Config, to_config
from wattune.core.errors import BoardError, InputError
from wattune.core.settings import MAXN, Setting
from wattune.profiling.accuracy import TrainedRun, compare_runs
from wattune.stages.accuracy import _kept, check_accuracy
from wattune.stages.profile import board_of

pytestmark = pytest.mark.long
NAME = "bert-small-sst2"
STEPS = 37
"""No multiple of what a report holds: the last block is a shorter one."""


def config(**accuracy: Any) -> Config:
    return to_config(
        {
            "board": {"kind": "jetson", "id": "", "load": {"kind": "finetune"}},
            "workload_ids": [NAME],
            "workloads": {NAME: {"model": "bert-small", "task": "sst2", "max_length": 128}},
            "sweep": {"clocks_mhz": [306.0, 612.0, 1020.0]},
            "accuracy": {"workloads": [NAME], "steps": STEPS, **accuracy},
        }
    )


def runs_made(folder: Path) -> int:
    return int((folder / "runs").read_text())


def test_whole_runs_at_the_lowest_and_highest_clock_and_unpinned_are_the_same_and_made_once(
    emulated: Emulated,  # noqa: F811
    tmp_path: Path,
) -> None:
    path = tmp_path / "accuracy.json"
    board, _ = fake_board(emulated, tmp_path)
    document = check_accuracy(config(), NAME, board, path, tmp_path / "aside")
    assert [run["setting"] for run in document["runs"]] == [MAXN, 306.0, 1020.0]
    for run in document["runs"]:
        assert run["losses"]["steps"] == run["steps"] == STEPS
        assert run["evaluation"] == {"accuracy": 0.8, "pearson": None, "loss": 0.5, "examples": 100}
        assert 0.01 * STEPS < run["time_s"] < 20.0
    assert document["runs"][0]["pin_held"] is None
    assert document["untouched"] is document["same_losses"] is document["same_evaluation"] is True
    assert "0.8000 on 100 examples" in document["text"]
    assert document["complete"]
    assert document["provenance"] == "simulated"
    assert emulated.bounds == FULL
    assert runs_made(tmp_path) == 1 + 3
    assert (
        check_accuracy(config(), NAME, fake_board(emulated, tmp_path)[0], path, tmp_path / "aside")
        == document
    )
    assert runs_made(tmp_path) == 1 + 3  # all were kept
    more = check_accuracy(
        config(clocks_mhz=[306.0, 612.0]), NAME, fake_board(emulated, tmp_path)[0], path, tmp_path / "aside"
    )
    assert [run["setting"] for run in more["runs"]] == [MAXN, 306.0, 612.0, 1020.0]  # and what was there
    assert runs_made(tmp_path) == 1 + 3 + 1 + 1  # a trial, and the one clock that was missing
    other = check_accuracy(config(steps=0), NAME, fake_board(emulated, tmp_path)[0], path, tmp_path / "aside")
    assert [run["steps"] for run in other["runs"]] == [len(EPOCH)] * 3  # the job's own: one epoch
    made = runs_made(tmp_path)
    back = check_accuracy(config(), NAME, fake_board(emulated, tmp_path)[0], path, tmp_path / "aside")
    assert [run["steps"] for run in back["runs"]] == [STEPS] * 4  # taken back
    assert runs_made(tmp_path) == made
    assert len(list((tmp_path / "aside").iterdir())) == 1


@pytest.mark.parametrize(
    ("behaviour", "said", "losses", "evaluation"),
    [
        (
            "other-loss@3",
            "306 not as most of maxn, 306, 1020. The validation split says the same of all",
            False,
            True,
        ),
        (
            "other-score@4",
            "says differs: 1020 not as most of maxn, 306, 1020 (maxn: accuracy 0.8000",
            True,
            False,
        ),
        ("no-validation@0", "no validation split", True, None),
    ],
)
def test_what_differs_is_named(
    emulated: Emulated,  # noqa: F811
    tmp_path: Path,
    behaviour: str,
    said: str,
    losses: bool,
    evaluation: bool | None,
) -> None:
    board, _ = fake_board(emulated, tmp_path, behaviour)
    document = check_accuracy(config(), NAME, board, tmp_path / "accuracy.json", tmp_path / "aside")
    assert (document["same_losses"], document["same_evaluation"]) == (losses, evaluation)
    assert document["untouched"] is (losses and evaluation is not False)
    assert said in document["text"]


def test_runs_of_another_process_that_computes_otherwise_are_made_again(
    emulated: Emulated,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As after an update of torch, or with another number of threads: bits then differ for another reason than the clock."""
    path, aside = tmp_path / "accuracy.json", tmp_path / "aside"
    with pytest.raises(BoardError):
        check_accuracy(config(), NAME, fake_board(emulated, tmp_path, "die@3")[0], path, aside)
    monkeypatch.setenv("FAKE_COMPUTES_WITH", "other threads")
    document = check_accuracy(config(), NAME, fake_board(emulated, tmp_path)[0], path, aside)
    assert {run["computes_with"] for run in document["runs"]} == {"other threads"}
    assert len(document["runs"]) == 3
    assert document["untouched"]
    (kept,) = aside.iterdir()
    assert [run["computes_with"] for run in json.loads(kept.read_text())["runs"]] == ["fake"]


@pytest.mark.parametrize("kind", ["die", "hang", "nan"])
def test_a_lost_run_costs_no_other_and_leaves_nothing_in_the_way(
    emulated: Emulated,  # noqa: F811
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, scratch = tmp_path / "accuracy.json", tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    board, load = fake_board(emulated, tmp_path, f"{kind}@3")
    with pytest.raises(BoardError):
        check_accuracy(config(), NAME, board, path, tmp_path / "aside")
    assert emulated.bounds == FULL
    assert load.pid is None
    assert not [p for p in scratch.iterdir() if p.name.startswith(("tmp", "wattune-finetune"))]
    document = json.loads(path.read_text())
    assert [run["setting"] for run in document["runs"]] == [MAXN]
    assert not document["complete"]
    assert document["untouched"] is None
    document = check_accuracy(config(), NAME, fake_board(emulated, tmp_path)[0], path, tmp_path / "aside")
    assert document["untouched"]
    assert runs_made(tmp_path) == 3 + 1 + 2


WHOLE = {"mark": "1", "runs": [TrainedRun(306.0, 5, 1.0, {"digest": "a"}, None, 32, 1, True, "x").as_json()]}
DAMAGED = (
    *("", "{", "[]", '{"runs": 3}', '{"mark": 1, "runs": [{"setting": 1}]}', '{"mark": "1"}'),
    *(
        json.dumps({"mark": "1", "runs": [WHOLE["runs"][0] | {name: value}]})
        for name, value in (
            ("losses", 5), ("losses", {}), ("evaluation", 0.8), ("setting", "fast"), ("steps", "5"), ("batch_size", None), ("more", 1),
        )
    ),
)  # fmt: skip


def test_what_is_whole_is_read(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.json"
    path.write_text(json.dumps(WHOLE))
    assert [one.as_json() for one in _kept(path, tmp_path / "aside", "1").values()] == WHOLE["runs"]


@pytest.mark.parametrize("text", DAMAGED)
def test_what_is_damaged_is_no_document(tmp_path: Path, text: str) -> None:
    path = tmp_path / "accuracy.json"
    path.write_text(text)
    assert _kept(path, tmp_path / "aside", "1") == {}
    assert not path.exists()
    assert (tmp_path / "aside/accuracy-damaged.json").read_text() == text


def test_a_damaged_document_is_made_anew(emulated: Emulated, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "accuracy.json"
    path.write_text("{")
    assert check_accuracy(
        config(clocks_mhz=[306.0]), NAME, fake_board(emulated, tmp_path)[0], path, tmp_path / "aside"
    )["untouched"]


def test_a_real_training_learns_the_same_at_every_clock(emulated: Emulated, tmp_path: Path) -> None:  # noqa: F811
    for name in ("torch", "transformers", "accelerate"):
        pytest.importorskip(name)
    conf = config(steps=11, clocks_mhz=[408.0])
    conf.board.root = str(emulated.root)
    conf.board.load.finetune = TINY
    conf.board.load.emulated_steps = True
    conf.board.live = replace(conf.board.live, hz=20.0, start_temp_c=0.0, idle_s=0.0)
    document = check_accuracy(conf, NAME, board_of(conf), tmp_path / "accuracy.json", tmp_path / "aside")
    assert document["untouched"] is document["same_losses"] is document["same_evaluation"] is True
    slow, fast = document["runs"][1], document["runs"][0]
    assert slow["losses"]["first"] == pytest.approx(math.log(2), abs=0.1)
    assert slow["losses"]["steps"] == 11
    assert slow["evaluation"]["examples"] > 0
    assert slow["time_s"] > 1.3 * fast["time_s"]  # and yet it was another clock
    assert emulated.bounds == FULL


def one(
    setting: Setting, digest: str = "a", batch: int = 32, computes: str = "a", **evaluation: Any
) -> TrainedRun:
    said = {"accuracy": 0.9, "pearson": None, "loss": 0.1, "examples": 5} | evaluation
    return TrainedRun(setting, 5, 1.0, {"digest": digest}, said, batch, 32 // batch, None, computes)


def test_runs_that_cannot_be_compared_say_so() -> None:
    assert compare_runs([]).untouched is None
    assert compare_runs([one(MAXN)]).untouched is None
    verdict = compare_runs([one(MAXN), one(306.0, batch=16)])
    assert verdict.untouched is None
    assert "16 x 2, 32 x 1" in verdict.text
    verdict = compare_runs([one(MAXN), one(306.0, computes="b")])
    assert verdict.untouched is None
    assert "(a; b)" in verdict.text


def test_of_two_runs_neither_is_the_usual_one() -> None:
    verdict = compare_runs([one(MAXN), one(306.0, "b")])
    assert verdict.same_losses is False
    assert "maxn and 306 do not agree" in verdict.text


@pytest.mark.parametrize("name", ["accuracy", "pearson", "loss", "examples"])
def test_no_figure_may_differ(name: str) -> None:
    base = {"accuracy": None, "pearson": 0.5} if name == "pearson" else {}
    runs = [one(MAXN, **base), one(306.0, **base), one(612.0, **{**base, name: math.nextafter(0.1, 1)})]
    verdict = compare_runs(runs)
    assert (verdict.same_losses, verdict.same_evaluation, verdict.untouched) == (True, False, False)
    assert "612 not as most of" in verdict.text


def test_boards_on_which_nothing_is_fine_tuned_are_refused() -> None:
    with pytest.raises(InputError, match="nothing is fine-tuned"):
        to_config({"accuracy": {"workloads": [NAME]}})
    with pytest.raises(InputError, match="nothing is fine-tuned"):
        to_config({"board": {"kind": "jetson"}, "accuracy": {"workloads": [NAME]}})
    with pytest.raises(InputError, match="at least 0"):
        config(steps=-1)
