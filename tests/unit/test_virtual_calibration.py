"""The modelled board against the three published AGX Orin fine-tuning curves.

Energies: github esainulab/slmdvfs@9e14047, src/plots/DeBERTa_Xlarge.py, and its deleted plot of Pythia-14M (commit db46d36,
digitised, +-5 J). DeBERTa-v2-xlarge on QNLI ran with batch 16 in fp32; its MAXN figure is doubtful and left out. Batch and
precision of the other two are not published and assumed here: 128 and fp16 for DeBERTa on SST-2 (defaults of the same
repository's baseline script), 32 and fp16 for Pythia-14M on QNLI (no lead at all).
These curves were used to set the board's constants, so this shows a fit, not a prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from wattune.boards.virtual.board import VirtualBoard
from wattune.core.settings import MAXN
from wattune.core.workload import LengthBin, Workload
from wattune.workloads.build import build_workload
from wattune.workloads.catalogue import find_task
from wattune.workloads.lengths import padded_bins
from wattune.workloads.opcost import QUANTITIES, CostPolynomials, count_config

CLOCKS = (306.0, 408.0, 510.0, 612.0, 714.0, 816.0, 918.0, 1020.0, 1122.0, 1224.0, 1300.5)
DEBERTA_QNLI_J = (
    693591.48, 596669.90, 545930.79, 536503.90, 539312.18, 549624.25, 572217.63, 610475.85, 641276.34, 698390.84, 737041.01,
)  # fmt: skip
DEBERTA_SST2_J = (
    55292.41, 47512.24, 43025.92, 41044.05, 40927.33, 40981.54, 42053.11, 44378.81, 46298.01, 49986.88, 52475.58,
)  # fmt: skip

PYTHIA_14M_QNLI_J = (2109.0, 2026.0, 2033.0, 2071.0, 2101.0, 2255.0, 2363.0, 2532.0, 2663.0, 2706.0, 2865.0)

PYTHIA_14M = {
    "model_type": "gpt_neox",
    "num_hidden_layers": 6,
    "hidden_size": 128,
    "num_attention_heads": 4,
    "intermediate_size": 512,
    "vocab_size": 50304,
}
PYTHIA_14M_COST = CostPolynomials(
    coefficients={
        "forward": {
            "flops": (0, 0, 0, 0, 2359808, 3072),
            "bytes": (9507864, 1152, 0, 84, 116878, 696),
            "launches": (270, 0, 0, 0, 0, 0),
        },
        "backward": {
            "flops": (0, 0, 0, 0, 4719616, 6144),
            "bytes": (37636624, 768, 0, 84, 222340, 864),
            "launches": (414, 0, 0, 0, 0, 0),
        },
        "optimizer": {
            "flops": (0, 0, 0, 0, 0, 0),
            "bytes": (793423088, 0, 0, 0, 0, 0),
            "launches": (22, 0, 0, 0, 0, 0),
        },
    },
    params=7629056,
    family="gpt-neox",
    layers=6,
    hidden=128,
    base_params=14067712,
    head="sequence classification",
    decoder=True,
)
"""Pythia-14M is not in the catalogue: its cost at fp16 as `count_config` gives it, recounted below."""


def deberta_qnli() -> Workload:
    return build_workload("deberta-v2-xlarge", "qnli", batch_size=16, precision="fp32", max_length=256)


def deberta_sst2() -> Workload:
    return build_workload("deberta-v2-xlarge", "sst2", batch_size=128, precision="fp16", max_length=128)


def pythia_14m_qnli() -> Workload:
    task, cost = find_task("qnli"), PYTHIA_14M_COST
    bins = tuple(
        LengthBin(b.tokens, b.share, cost.step_cost(32, b.tokens))
        for b in padded_bins(task, "pythia", 32, 256)
    )
    steps = math.ceil(task.rows / 32)
    return Workload(
        "pythia-14m-qnli", "pythia-14m", "qnli", cost.family, 6, 128, 14.07, 50.0, 32, "fp16", steps, bins
    )


def curve(workload: Workload) -> list[float]:
    board = VirtualBoard()
    return [m.energy_j for c in CLOCKS if (m := board.noise_free(workload, c))]


def errors_pct(predicted: list[float], measured: tuple[float, ...]) -> list[float]:
    """Errors after scaling both curves to the same geometric mean."""
    scale = math.exp(sum(math.log(m / p) for p, m in zip(predicted, measured, strict=True)) / len(measured))
    return [100 * abs(scale * p / m - 1) for p, m in zip(predicted, measured, strict=True)]


@pytest.mark.parametrize(
    ("build", "measured"),
    [(deberta_qnli, DEBERTA_QNLI_J), (deberta_sst2, DEBERTA_SST2_J), (pythia_14m_qnli, PYTHIA_14M_QNLI_J)],
)
def test_shape_and_optimum(build: Callable[[], Workload], measured: tuple[float, ...]) -> None:
    predicted = curve(build())
    errors = errors_pct(predicted, measured)
    assert sum(errors) / len(errors) <= 1.5
    assert max(errors) <= 4.0
    chosen = predicted.index(min(predicted))
    assert measured[chosen] / min(measured) - 1 <= 0.005


@pytest.mark.parametrize(
    ("build", "measured"), [(deberta_qnli, DEBERTA_QNLI_J), (deberta_sst2, DEBERTA_SST2_J)]
)
def test_absolute_energy_of_an_epoch(build: Callable[[], Workload], measured: tuple[float, ...]) -> None:
    for at_clock, published in zip(curve(build()), measured, strict=True):
        assert at_clock == pytest.approx(published, rel=0.1)


def test_the_governor_keeps_pythia_14m_below_the_top_clock_as_published() -> None:
    # Published: 2091 J under MAXN, 27 % below the top clock's 2865 J and 3 % above the best; never used for the fit.
    board, workload = VirtualBoard(), pythia_14m_qnli()
    maxn, top = board.noise_free(workload, MAXN), board.noise_free(workload, 1300.5)
    assert (maxn.gpu_mhz_mean or math.inf) < 1000
    assert maxn.energy_j < 0.9 * top.energy_j


def test_pythia_14m_is_what_counting_gives() -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    counted = count_config(PYTHIA_14M, "fp16")
    for phase, rows in PYTHIA_14M_COST.coefficients.items():
        for quantity in QUANTITIES:
            assert tuple(counted.coefficients[phase][quantity]) == pytest.approx(rows[quantity], rel=0.01)
    assert counted.base_params == PYTHIA_14M_COST.base_params
