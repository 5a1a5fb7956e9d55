"""`wattune bench window`: blocks lose no energy, windows are right as often as the rule says, and the noise is the board's own."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

pytest.importorskip("omegaconf")
from wattune.benches.window import (
    PAGE,
    RAILS,
    RESULT,
    blocks_of,
    long_run,
    parts,
    run,
    run_windows,
    summary,
    text,
)
from wattune.boards.virtual.board import VirtualBoard
from wattune.config import load_params
from wattune.core.errors import InputError
from wattune.core.settings import MAXN
from wattune.profiling.window_rule import WindowRule
from wattune.workloads.build import build_named

ROOT = Path(__file__).parents[2]
BOARD = VirtualBoard()
NAMES = ("bert-small-sst2", "bert-base-qnli", "pythia-1b-mrpc")
WORKLOADS = [build_named(name) for name in NAMES]


@pytest.mark.parametrize("setting", [306.0, 1300.5, MAXN])
def test_blocks_hold_the_recordings_energy_and_steps(setting: float) -> None:
    workload = WORKLOADS[1]
    recording = BOARD.record(workload, setting, repeat=0, steps=60, seed=5)
    rails = [rail.label for rail in BOARD.file.module_rails if rail.gpu_cpu]
    blocks = blocks_of(recording, [10] * 60, rails, 1.0)
    steps = sum(b.steps for b in blocks)
    assert all(b.duration_s >= 1.0 for b in blocks)
    assert sum(b.duration_s for b in blocks) == pytest.approx(recording.step_ends_s[steps - 1])
    assert sum(b.tokens for b in blocks) == 10 * steps
    whole = blocks_of(recording, [10] * 60, rails, recording.window_s * (1 - 1e-9))
    assert whole[0].energy_j[RAILS] == pytest.approx(recording.energy_j(rails), rel=2e-3)
    assert sum(b.energy_j[RAILS] for b in blocks) <= whole[0].energy_j[RAILS] * (1 + 1e-9)


def test_the_long_run_has_the_mean_length_of_the_bins() -> None:
    for workload in WORKLOADS:
        epoch = long_run(workload)
        assert epoch.tokens / epoch.steps == pytest.approx(sum(b.share * b.tokens for b in workload.bins))


@pytest.mark.parametrize(("every_block", "least"), [(False, 97.0), (True, 91.0)])
def test_a_hundred_windows_end_within_one_percent(every_block: bool, least: float) -> None:
    settings = [306.0, 612.0, 1020.0, 1300.5, MAXN]
    rows = run_windows(BOARD, WORKLOADS, settings, WindowRule(), windows=100, every_block=every_block)
    found = summary(rows, NAMES)
    assert found["coverage_pct"] >= least
    assert found["interval_coverage_pct"] >= 88.0
    assert len({(row["workload"], row["setting"]) for row in rows}) == len(NAMES) * len(settings)
    if every_block:
        assert found["within_noise_free_pct"] == found["coverage_pct"]
    else:  # two factors with a spread of 1 % each: no window of one run can see them
        assert 35.0 <= found["within_noise_free_pct"] <= 70.0
    assert sum(part["windows"] for part in found["by_task"].values()) == 100


def test_the_document_has_the_three_figures_and_needs_a_modelled_board(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("wattune.benches.window.overhead_of_callback", lambda: (None, "torch is not there."))
    document = run(ROOT, windows=27)
    assert document["callback_overhead_pct"] is None
    assert document["callback_overhead_reason"] == "torch is not there."
    assert set(document["holds"]) == {"coverage_pct", "mean_epoch_share_pct", "callback_overhead_pct"}
    assert "torch is not there" in text(document)
    config = load_params(ROOT / "params.yaml")
    config.workloads = {}
    with pytest.raises(InputError, match="modelled board"):
        run(ROOT, windows=1, config=config)


def test_the_page_shows_what_was_saved_and_its_words_hold() -> None:
    document = json.loads((ROOT / RESULT).read_text(encoding="utf-8"))
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    for name, part in parts(document).items():
        assert f"<!-- {name}:begin -->\n{part}\n<!-- {name}:end -->" in page, (
            "run `wattune bench window --write`"
        )
    assert document["rule"] == {**asdict(WindowRule()), "block_s": 1.0}, "run `wattune bench window --write`"
    assert document["model_digest"] == BOARD.info.digest, "run `wattune bench window --write`"
    one, anew, bars = document["one_run"], document["noise_every_block"], document["bars"]
    assert document["ok"]
    assert document["callback_overhead"]["step_ms"] == pytest.approx(20.0, rel=0.3)
    assert anew["mean_window_s"] > 2 * one["mean_window_s"]
    assert anew["mean_epoch_share_pct"] > bars["mean_epoch_share_pct"] >= one["mean_epoch_share_pct"]
    assert one["coverage_pct"] > anew["coverage_pct"] >= bars["coverage_pct"]
    shares = {task: row["mean_epoch_share_pct"] for task, row in one["by_task"].items()}
    assert 5 * max(shares["sst2"], shares["qnli"]) < shares["mrpc"]
    other = {row["variant"]: row["one_run"]["mean_epoch_share_pct"] for row in document["variants"]}
    assert other["at least 10 steps"] > bars["mean_epoch_share_pct"]
    assert 1.5 < other["blocks of five time constants"] / one["mean_epoch_share_pct"] < 2.5
