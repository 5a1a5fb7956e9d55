"""The diverse set: what it spans, that it is drawn the same everywhere, and that it fits the board."""

from __future__ import annotations

import collections
import subprocess
import sys
from pathlib import Path

import pytest

from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.constants import find_board_file
from wattune.core.features import COST_FEATURES
from wattune.core.workload import LengthBin, PhaseCost, StepCost, Workload
from wattune.learning.costs import before_calibration, cost_features, expected_util_pct
from wattune.workloads import diverse as module
from wattune.workloads.build import build_workload
from wattune.workloads.catalogue import MODELS
from wattune.workloads.diverse import CONF, MEMORY_BYTES, Job, conf_text, diverse, longest, memory_bytes

ROOT = Path(__file__).parents[2]


def test_the_committed_file_is_what_is_drawn():
    assert (ROOT / CONF).read_text(encoding="utf-8") == conf_text()


def test_another_process_draws_the_same():
    code = "from wattune.workloads.diverse import conf_text; print(conf_text(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.stdout == conf_text()


def test_it_spans_what_it_promises():
    jobs = diverse()
    assert len(jobs) == len({job.id for job in jobs}) >= 200
    assert {job.model for job in jobs} == set(MODELS)
    assert {job.precision for job in jobs} == {"fp32", "fp16", "bf16"}
    by_method = collections.Counter(job.method for job in jobs)
    assert set(by_method) == {"full", "lora", "bitfit"}
    assert min(by_method.values()) > 40
    assert {job.batch_size for job in jobs} >= set(module.BATCHES)
    assert {job.tokens for job in jobs} == set(module.LENGTHS)
    for model in MODELS:
        assert len({job.batch_size for job in jobs if job.model == model}) >= 4


def test_families_do_not_cross_parts():
    parts = collections.defaultdict(set)
    for job in diverse():
        parts[job.family].add(job.part)
    assert all(len(of_family) == 1 for of_family in parts.values())
    assert {family for family, of_family in parts.items() if of_family == {"held_out"}} == {"llama", "qwen2"}


def test_everything_fits_into_memory_and_positions():
    for job in diverse():
        assert memory_bytes(job) <= MEMORY_BYTES
        assert job.tokens <= longest(job.model)


def test_memory_by_hand_and_what_does_not_fit_is_left_out():
    full = Job("pythia-1b", "full", 1, 16, "fp32")
    adapters = Job("pythia-1b", "lora", 1, 16, "fp32")
    assert memory_bytes(full) > 16 * 900e6, (
        "weights, gradients and two moments of a thousand million parameters"
    )
    assert 4 * MODELS["pythia-1b"].params < memory_bytes(adapters) < 0.4 * memory_bytes(full)
    assert memory_bytes(Job("pythia-1b", "full", 512, 1024, "fp32")) > MEMORY_BYTES


@pytest.mark.parametrize("tokens", [16, 1024])
def test_a_packed_workload_has_one_length(tokens):
    packed = build_workload(
        "pythia-70m", "qnli", batch_size=4, precision="bf16", method="lora", tokens=tokens
    )
    assert [(b.tokens, b.share) for b in packed.bins] == [(tokens, 1.0)]
    assert packed.seq_len == tokens
    full = build_workload("pythia-70m", "qnli", batch_size=4, precision="bf16", tokens=tokens)
    assert packed.bins[0].cost.backward.flops < full.bins[0].cost.backward.flops


# --- features from operation counts ---


NOTHING = PhaseCost(0.0, 0.0, 0.0)


def _workload(forward, optimizer=NOTHING):
    step = StepCost(forward, NOTHING, optimizer)
    return Workload("w", "m", "t", "bert", 2, 32, 1.0, 16.0, 1, "fp32", 10, (LengthBin(16, 1.0, step),))


def test_cost_features_are_known_beforehand_and_by_hand():
    work = _workload(PhaseCost(3e9, 1e9, 100.0), PhaseCost(0.0, 1e9, 20.0))
    file = find_board_file("jetson-agx-orin-64gb")
    found = cost_features(work, "lora", file, "mode_30w", 1300.5)
    assert set(found) == set(COST_FEATURES)
    assert (found["step_gflop"], found["step_gbyte"], found["step_kernels"]) == (3.0, 2.0, 120.0)
    assert found["flop_per_byte"] == 1.5
    assert (found["method"], found["precision"], found["power_mode"]) == ("lora", "fp32", "MODE_30W")


def test_expected_utilisation_needs_no_calibration_and_knows_a_starved_gpu():
    file = find_board_file("jetson-agx-orin-64gb")
    believed = before_calibration(file)
    assert (
        believed.constants.launch_cost_s == file.priors["launch_cost_s"].value != file.constants.launch_cost_s
    )
    assert believed.constants.flop_per_clock_fp32 == file.constants.flop_per_clock_fp32, "a data sheet's"
    starved = expected_util_pct(_workload(PhaseCost(1e6, 1e6, 1000.0)), believed, 1300.5)
    busy = expected_util_pct(_workload(PhaseCost(1e13, 1e10, 1000.0)), believed, 1300.5)
    assert 0 < starved < 40 < 95 < busy <= 100


def test_expected_utilisation_orders_jobs_as_the_modelled_board_measures_them():
    board, pairs = VirtualBoard(), []
    believed = before_calibration(board.file)
    for job in diverse()[::6]:
        work = build_workload(
            job.model,
            "qnli",
            batch_size=job.batch_size,
            precision=job.precision,
            method=job.method,
            tokens=job.tokens,
        )
        measured = board.noise_free(work, 1300.5).gpu_util_pct
        pairs.append((expected_util_pct(work, believed, 1300.5), measured))
    high = [measured for expected, measured in pairs if expected > 90]
    low = [measured for expected, measured in pairs if expected < 40]
    assert high
    assert low
    assert min(high) > max(low)
