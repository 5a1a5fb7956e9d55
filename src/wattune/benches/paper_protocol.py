"""`wattune bench paper-protocol`: what of the paper's results comes from its way of measuring, on the modelled board.

The paper's workloads are measured in several ways, a tree is learned from each and judged as that way would judge it; several
seeds, since every campaign of single runs is a draw. The paper's figures stand beside the answers; nothing is set by them.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from wattune.boards.base import Board
from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.model import MODEL_VERSION
from wattune.boards.virtual.whole_log import NO_SET_UP, WHOLE_LOG_VERSION, LogParts, SetUp, WholeLogBoard
from wattune.config import Config, compose, to_config
from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.stats import mean
from wattune.io import read_text, sha256_of, write_json, write_text
from wattune.learning.export import train_governor
from wattune.learning.judge import Judgement, judge
from wattune.learning.table import FeatureTable
from wattune.stages.features import measured_table
from wattune.stages.profile import board_of, log_parts, settings_of, workload_of
from wattune.stages.train import search_space

RESULT = Path("docs/paper-protocol.json")
PAGE = Path("docs/paper-protocol.md")
MARK = "<!-- table -->"
SCHEMA_VERSION = 1
SEEDS = (42, 43, 44, 45, 46)
DECIMALS = 3

CASES = {
    "steady": "steady, judged on noise-free energy",
    "single": "steady, single runs",
    "whole-log": "whole log, baseline verified",
    "left-pinned": "whole log, baseline left pinned",
}
"""Ways of measuring, and their heads in the table. `single` is what one run of each setting does by itself."""

VARIANTS = {
    "half": "set-up half as long",
    "double": "set-up twice as long",
    "gated": "GPU switched off during set-up",
    "no-evaluation": "no evaluation in the log",
}
"""The whole log with other assumptions, baseline verified."""

FIGURES = {
    "mean_saving_pct": ("mean saving of mlg, %", "13.11"),
    "large_saving_pct": ("... large models", "> 22, stable"),
    "small_saving_pct": ("... small models", "positive"),
    "best_saving_pct": ("best workload, %", "26.73"),
    "worst_saving_pct": ("worst workload, %", "negative"),
    "small_spread_pct": ("spread of small workloads' savings (standard deviation), points", "not given"),
    "small_negative_pct": ("small workloads with a negative saving, %", '"some"'),
    "large_negative_pct": ("large workloads with a negative saving, %", "not given"),
    "mlg_minus_ffg_points": ("mlg minus ffg, points", "+0.9"),
    "loo_accuracy": ("leave-one-out accuracy of labels", "0.62"),
    "lowest_label_mhz": ("lowest label, MHz", "510"),
    "highest_label_mhz": ("highest label, MHz", "1122"),
    "deep_mrpc_over_qnli": ("labels, models of over 7 layers: MRPC above QNLI, MHz", "+102 (printed rules)"),
    "ffg_mhz": ("clock of ffg, MHz", "not given"),
    "mean_slowdown_pct": ("mean slowdown of mlg, %", "not given"),
    "true_saving_pct": ("the same choices on noise-free steady energy: mean saving, %", "not known"),
}
"""Figure -> its words and what the paper says (arXiv 2607.05933)."""

VARIANT_FIGURES = (
    "mean_saving_pct",
    "large_saving_pct",
    "small_saving_pct",
    "small_negative_pct",
    "mlg_minus_ffg_points",
    "loo_accuracy",
)


@dataclass(frozen=True, slots=True)
class Way:
    """One way of measuring: its protocol and its board."""

    config: Config
    board: Board


def ways(conf_dir: Path) -> dict[str, Way]:
    """All ways of measuring, by name of `CASES` and `VARIANTS`."""
    steady = to_config(compose(conf_dir, "paper"))
    paper = to_config(compose(conf_dir, "paper-protocol"))
    pinned = to_config(compose(conf_dir, "paper-protocol", ["sweep.baseline=left-pinned"]))
    board = board_of(steady)
    assert isinstance(board, VirtualBoard)  # the experiment's board

    def other(set_up: SetUp | None = None, *, evaluated: bool = True) -> Way:
        def parts_of(workload: Any) -> LogParts:
            parts = log_parts(paper.workloads[workload.id])
            return parts if evaluated else replace(parts, evaluation=None)

        return Way(paper, WholeLogBoard(board, parts_of, set_up=set_up))

    return {
        "steady": Way(steady, board),
        "single": other(NO_SET_UP, evaluated=False),
        "whole-log": Way(paper, board_of(paper)),
        "left-pinned": Way(pinned, board_of(pinned)),
        "half": other(SetUp().scaled(0.5)),
        "double": other(SetUp().scaled(2.0)),
        "gated": other(SetUp(gated=True)),
        "no-evaluation": other(evaluated=False),
    }


def campaign(way: Way, seed: int, folder: Path) -> FeatureTable:
    """The feature table of one campaign of measurements."""
    protocol = replace(way.config.sweep, seed=seed)
    return measured_table(way.config, way.board, protocol, folder / "features.csv")


def _savings(judgement: Judgement, policy: str, size: str | None = None) -> list[float]:
    outcomes = [o for o in judgement.of(policy) if size is None or o.row.size == size]
    return [o.saving_pct for o in outcomes if o.saving_pct is not None]


def _negative_pct(savings: Sequence[float]) -> float:
    return 100.0 * mean([float(s < 0.0) for s in savings])


def _deep_label(table: FeatureTable, task: str) -> float:
    """Mean label of a training task over the models of more than 7 layers, the paper's first split."""
    deep = [row for row in table.training if float(row.features["layers"] or 0.0) > 7.0]
    return mean([row.label_mhz for row in deep if row.task == task])


def true_curves(way: Way) -> dict[str, EnergyCurve]:
    """The noise-free energy of every workload of a way that knows it."""
    curves = {}
    for name, conf in way.config.workloads.items():
        workload = workload_of(name, conf)
        known = {s: way.board.noise_free(workload, s) for s in settings_of(way.config, way.board)}
        curves[name] = EnergyCurve(
            {s: Point(m.energy_j, m.time_s) for s, m in known.items() if m is not None}
        )
    return curves


def figures(config: Config, table: FeatureTable, truth: Mapping[str, EnergyCurve]) -> dict[str, float]:
    """Learn from a campaign, judge on its held-out workloads, and sum up.

    Args:
        config: what is learned, and how.
        table: the campaign.
        truth: workload -> its noise-free steady energy.
    """
    space = search_space(config.train)
    training = train_governor(table, table.training, space, objective=config.objective.name)
    judgement = judge(table, training.governor, space)
    savings, ffg = _savings(judgement, "mlg"), _savings(judgement, "ffg")
    large, small = _savings(judgement, "mlg", "large"), _savings(judgement, "mlg", "small")
    labels = [row.label_mhz for row in table.training]
    true = [truth[o.row.id].saving_pct(o.setting) for o in judgement.of("mlg")]
    slowdowns = [o.slowdown_pct for o in judgement.of("mlg")]
    found = {
        "mean_saving_pct": mean(savings),
        "large_saving_pct": mean(large),
        "small_saving_pct": mean(small),
        "best_saving_pct": max(savings),
        "worst_saving_pct": min(savings),
        "small_spread_pct": statistics.stdev(small),
        "small_negative_pct": _negative_pct(small),
        "large_negative_pct": _negative_pct(large),
        "mlg_minus_ffg_points": mean(savings) - mean(ffg),
        "loo_accuracy": training.search.best.loo_accuracy,
        "lowest_label_mhz": min(labels),
        "highest_label_mhz": max(labels),
        "deep_mrpc_over_qnli": _deep_label(table, "mrpc") - _deep_label(table, "qnli"),
        "ffg_mhz": judgement.ffg_mhz,
        "mean_slowdown_pct": mean([s for s in slowdowns if s is not None]),
        "true_saving_pct": mean([s for s in true if s is not None]),
    }
    return {name: round(value, DECIMALS) for name, value in found.items() if value is not None}


def run_way(name: str, conf_dir: Path, seeds: Sequence[int]) -> dict[str, list[float]]:
    """The figures of one way of measuring: per figure one value per seed."""
    known = ways(conf_dir)
    way, truth = known[name], true_curves(known["steady"])
    with tempfile.TemporaryDirectory(prefix="wattune-") as folder:
        runs = [figures(way.config, campaign(way, seed, Path(folder)), truth) for seed in seeds]
    return {figure: [one[figure] for one in runs] for figure in FIGURES}


def run(conf_dir: Path = Path("conf"), seeds: Sequence[int] = SEEDS) -> dict[str, Any]:
    """Run every way of measuring with every seed, two at a time.

    Returns:
        The document ``docs/paper-protocol.json``: per case and figure one value per seed.

    Raises:
        InputError: not in the repository root.
    """
    board = ways(conf_dir)["steady"].board.info
    names = [*CASES, *VARIANTS]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        one_way = partial(run_way, conf_dir=conf_dir, seeds=tuple(seeds))
        found = dict(zip(names, pool.map(one_way, names), strict=True))
    return {
        "schema_version": SCHEMA_VERSION,
        "board": board.id,
        "provenance": board.provenance,
        "model_digest": model_digest(),
        "seeds": list(seeds),
        "set_up": asdict(SetUp()),
        "published": {figure: published for figure, (_, published) in FIGURES.items()},
        "cases": {name: found[name] for name in CASES},
        "variants": {name: {figure: found[name][figure] for figure in VARIANT_FIGURES} for name in VARIANTS},
    }


def model_digest() -> str:
    """Digest of what the figures rest on: the default board's constants and the model. The page must be made anew when it changes."""
    constants = asdict(VirtualBoard().constants)
    return sha256_of([constants, MODEL_VERSION, WHOLE_LOG_VERSION, asdict(SetUp())])


def _cell(figure: str, values: Sequence[float]) -> str:
    if figure.endswith("_mhz"):
        known = sorted(set(values))
        return " or ".join(f"{v:g}" for v in known)
    digits = 2 if figure in ("loo_accuracy", "mlg_minus_ffg_points") else 1
    if "negative" in figure or "mrpc" in figure:
        digits = 0
    sign = "+" if figure in ("mlg_minus_ffg_points", "deep_mrpc_over_qnli") else ""
    low, high = min(values), max(values)
    return f"{mean(values):{sign}.{digits}f} [{low:{sign}.{digits}f}, {high:{sign}.{digits}f}]"


def text(document: dict[str, Any]) -> str:
    """The tables of the page."""
    cases, variants = document["cases"], document["variants"]
    lines = [
        f"Simulated (`{document['board']}`); 54 held-out workloads, savings against MAXN as each way measures it. Mean over"
        f" {len(document['seeds'])} seeds [lowest, highest].",
        "",
        f"| | {' | '.join(CASES.values())} | the paper |",
        f"|---|{'---|' * (len(CASES) + 1)}",
    ]
    for figure, (words, _) in FIGURES.items():
        cells = [_cell(figure, cases[name][figure]) for name in CASES]
        lines.append(f"| {words} | {' | '.join(cells)} | {document['published'][figure]} |")
    heads = [FIGURES[figure][0].removeprefix("... ") for figure in VARIANT_FIGURES]
    lines += [
        "",
        "The whole log with other assumptions, baseline verified:",
        "",
        f"| | {' | '.join(heads)} |",
        f"|---|{'---|' * len(heads)}",
    ]
    rows = {CASES["whole-log"]: cases["whole-log"], **{VARIANTS[name]: variants[name] for name in VARIANTS}}
    for words, values in rows.items():
        lines.append(f"| {words} | {' | '.join(_cell(f, values[f]) for f in VARIANT_FIGURES)} |")
    return "\n".join(lines)


def write(document: dict[str, Any], root: Path = Path()) -> None:
    """Save the document and refresh the page's table.

    Raises:
        InputError: the page is missing or has no marks.
    """
    page = read_text(root / PAGE, "The page")
    parts = page.split(MARK)
    if len(parts) != 3:
        raise InputError(f"{PAGE} does not hold '{MARK}' twice.", "The table stands between the two.")
    write_json(root / RESULT, document)
    write_text(root / PAGE, f"{parts[0]}{MARK}\n{text(document)}\n{MARK}{parts[2]}")
