"""Where MAXN already clocks low (tiny models, one example a step) the governor must not make things worse."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

pytest.importorskip("sklearn")

from wattune.boards.virtual.board import VirtualBoard
from wattune.core.curve import EnergyCurve, Point
from wattune.core.settings import MAXN, Setting
from wattune.core.workload import size_class
from wattune.learning.export import train_regret_governor
from wattune.learning.regretsearch import RegretSpace
from wattune.learning.table import FeatureTable, WorkloadRows, mean_curve
from wattune.profiling.cells import workload_features
from wattune.workloads.build import build_workload
from wattune.workloads.catalogue import MODELS

PAPERS = tuple(name for name, spec in MODELS.items() if spec.family in ("bert", "deberta-v2", "gpt-neox"))
NOISE_REL, REPEATS = 0.015, 3
SPACE = RegretSpace(features=("family", "layers", "hidden", "seq_len", "gpu_util_ref_pct"))


def swept(board: VirtualBoard, model: str, task: str, batch_size: int, part: str) -> WorkloadRows:
    """A workload of the virtual board: three noisy repeats to learn from, the exact curve to be judged on."""
    workload = build_workload(model, task, batch_size=batch_size, precision=MODELS[model].precision)
    rng = random.Random(f"{model}|{task}|{batch_size}")
    exact: dict[Setting, Point] = {}
    util_pct = None
    for setting in (*board.info.table, MAXN):
        found = board.noise_free(workload, setting)
        exact[setting] = Point(found.energy_j, found.time_s)
        if setting == board.info.table.top:
            util_pct = found.gpu_util_pct
    repeats = tuple(
        EnergyCurve(
            {s: Point(p.energy_j * math.exp(rng.gauss(0.0, NOISE_REL)), p.time_s) for s, p in exact.items()}
        )
        for _ in range(REPEATS)
    )
    features = dict.fromkeys(("family", "layers", "hidden", "seq_len", "params_m", "batch_size"))
    features |= {k: v for k, v in workload_features(workload, part).items() if k in features}
    return WorkloadRows(
        id=f"{model}-{task}-b{batch_size}",
        part=part,
        model=model,
        task=task,
        size=size_class(model, None),
        features={**features, "gpu_util_ref_pct": util_pct},
        measured=mean_curve(repeats),
        repeats=repeats,
        noise_free=EnergyCurve(exact),
        power_w={},
    )


@pytest.fixture(scope="module")
def table() -> FeatureTable:
    board = VirtualBoard()
    rows = [
        swept(board, model, task, batch, part)
        for part, tasks in (("train", ("sst2", "qnli")), ("held_out", ("cola", "rte")))
        for model in PAPERS
        for task in tasks
        for batch in (1, MODELS[model].batch_size)
    ]
    return FeatureTable(board.info.id, "simulated", "MAXN", "gpu_cpu", tuple(rows))


def above(row: WorkloadRows, least_mhz: float) -> WorkloadRows:
    """The same workload on a board that cannot be pinned below a clock."""

    def cut(curve: EnergyCurve) -> EnergyCurve:
        return EnergyCurve({s: p for s, p in curve.points.items() if isinstance(s, str) or s >= least_mhz})

    assert row.noise_free is not None
    repeats = tuple(cut(curve) for curve in row.repeats)
    return replace(row, measured=mean_curve(repeats), repeats=repeats, noise_free=cut(row.noise_free))


def savings(table: FeatureTable, space: RegretSpace) -> dict[str, tuple[Setting, float]]:
    governor = train_regret_governor(table, table.training, space).governor
    found = {}
    for row in table.held_out:
        setting = row.nearest(governor.decide(row.features).setting)
        found[row.id] = (setting, row.judged.saving_pct(setting) or 0.0)
    return found


@pytest.mark.long
def test_with_all_clocks_no_choice_is_worse_than_maxn(table: FeatureTable) -> None:
    """One example a step leaves the GPU waiting and MAXN clocks low; there is less to gain, and nothing may be lost."""
    found = savings(table, SPACE)
    assert min(saving for _, saving in found.values()) >= -0.5
    waiting = [s for name, (_, s) in found.items() if name.endswith("-b1") and "31m" in name]
    busy = [s for name, (_, s) in found.items() if "bert-large" in name and not name.endswith("-b1")]
    assert max(waiting) < min(busy)


@pytest.mark.long
def test_where_only_high_clocks_can_be_pinned_maxn_is_kept_for_work_that_waits(table: FeatureTable) -> None:
    """There every pinned clock loses against MAXN on launch-bound work, and saves on the rest."""
    high = replace(table, workloads=tuple(above(row, 1122.0) for row in table.workloads))
    best = {row.id: row.judged.saving_pct(row.judged.best_clock) or 0.0 for row in high.held_out}
    assert min(best.values()) < -0.5 < 5.0 < max(best.values())  # or nothing would be tested
    found = savings(high, SPACE)
    assert min(saving for _, saving in found.values()) >= -0.5
    kept = {name for name, (setting, _) in found.items() if setting == MAXN}
    assert {name for name, saving in best.items() if saving < -0.5} <= kept < set(found)
