"""`wattune bench window`: does the stopping rule keep its word, and how short are its windows.

Windows are taken on the modelled board as the fine-tuning process gives them: steps in the seeded order of an epoch, blocks of whole
steps, their energy from the board's five samples a second. Each is judged against the long-run energy per step.

What the board knows of noise is run-to-run: a run's power and time each differ from their expectation by one factor, which stays
for the whole run. A window within a run cannot see it, however long; repeats do. So every window is judged twice: against the
long run of its own run (`one_run`, the figures at the top), and against the noise-free expectation (`within_noise_free_pct`).
As a hard test of the rule the same spread is also drawn anew for every block, and then judged against the noise-free
expectation (`noise_every_block`).
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from wattune.boards.virtual.board import Recording, VirtualBoard, draw_batches
from wattune.config import PARAMS, Config, load_params
from wattune.core.errors import InputError, WattuneError
from wattune.core.settings import Setting, setting_label
from wattune.core.stats import mean
from wattune.core.workload import Workload
from wattune.io import read_text, write_json, write_text
from wattune.profiling.window_rule import Block, Epoch, Verdict, WindowRule
from wattune.profiling.windows import DEFAULT_TAU_S
from wattune.stages._tables import fill
from wattune.stages.profile import board_of, settings_of, workload_of

SCHEMA_VERSION = 1
PAGE = Path("docs/measuring.md")
RESULT = Path("docs/window.json")
WINDOWS = 500
BLOCK_S = 1.0
FIRST_S = 12.0
"""So much of a run is computed first; twice as much whenever the rule wants more."""

WITHIN_PCT = 1.0
BARS = {"coverage_pct": 95.0, "mean_epoch_share_pct": 10.0, "callback_overhead_pct": 1.0}
RAILS = "gpu_cpu"

VARIANTS: tuple[tuple[str, int, float, dict[str, Any]], ...] = (
    ("other seeds", 32_400, BLOCK_S, {}),
    ("other seeds again", 64_800, BLOCK_S, {}),
    ("at least 10 steps", 0, BLOCK_S, {"min_steps": 10}),
    ("blocks of five time constants", 0, 5 * DEFAULT_TAU_S, {}),
)
"""What else the figures would be: name, first seed, shortest block in seconds, and what differs in the rule."""

Factors = Callable[[int], float]
"""Block number -> factor on its energy."""


def blocks_of(
    recording: Recording, tokens: Sequence[int], rails: Sequence[str], block_s: float
) -> list[Block]:
    """A recording cut at steps' ends into blocks of at least `block_s`; what is left at the end is dropped.

    Args:
        recording: the window.
        tokens: padded tokens of every step.
        rails: what is summed.
        block_s: shortest block.
    """
    trace = recording.trace
    power_w = [sum(values) for values in zip(*(trace.power_w[rail] for rail in rails), strict=True)]
    t_s = [0.0, *trace.t_s, recording.window_s]
    power_w = [power_w[0], *power_w, power_w[-1]]
    until_j = [0.0, *accumulate(0.5 * (power_w[i] + power_w[i + 1]) * (t_s[i + 1] - t_s[i]) for i in range(len(t_s) - 1))]  # fmt: skip

    def spent_j(at_s: float) -> float:
        i = min(bisect_right(t_s, at_s), len(t_s) - 1) - 1
        share = (at_s - t_s[i]) / (t_s[i + 1] - t_s[i])
        here_w = power_w[i] + share * (power_w[i + 1] - power_w[i])
        return until_j[i] + 0.5 * (power_w[i] + here_w) * (at_s - t_s[i])

    blocks: list[Block] = []
    first, begin_s = 0, 0.0
    for step, end_s in enumerate(recording.step_ends_s, 1):
        if end_s - begin_s >= block_s:
            energy_j = spent_j(end_s) - spent_j(begin_s)
            blocks.append(Block(step - first, sum(tokens[first:step]), end_s - begin_s, {RAILS: energy_j}))
            first, begin_s = step, end_s
    return blocks


def take(
    board: VirtualBoard,
    workload: Workload,
    setting: Setting,
    seed: int,
    rule: WindowRule,
    factors: Factors,
    block_s: float = BLOCK_S,
) -> tuple[list[Block], Verdict]:
    """One window under the rule.

    Args:
        board: where.
        workload: what runs.
        setting: at which clock.
        seed: of batches and noise.
        rule: when it ends.
        factors: noise of every block.
        block_s: shortest block.
    """
    rails = [rail.label for rail in board.file.module_rails if rail.gpu_cpu]
    epoch = long_run(workload)
    order = draw_batches(workload, workload.steps_per_epoch, f"{seed}|{workload.id}|epoch")
    step_s = board.steady(workload, setting).time_s
    length_s = FIRST_S
    while True:
        steps = max(rule.min_blocks + 1, round(length_s / step_s) + 1)
        batches = [order[i % len(order)] for i in range(steps)]  # the next epoch, in the same order
        recording = board.record(workload, setting, repeat=0, steps=steps, seed=seed, batches=batches)
        blocks = blocks_of(recording, [workload.bins[b].tokens for b in batches], rails, block_s)
        blocks = [
            Block(b.steps, b.tokens, b.duration_s, {RAILS: b.energy_j[RAILS] * factors(number)})
            for number, b in enumerate(blocks)
        ]
        for n in range(1, len(blocks) + 1):
            verdict = rule.judge(blocks[:n], epoch, RAILS)
            if verdict.why is not None:
                return blocks[:n], verdict
        length_s *= 2


def long_run(workload: Workload) -> Epoch:
    """An epoch with the long-run mix of lengths."""
    steps = workload.steps_per_epoch
    return Epoch(steps, steps * sum(b.share * b.tokens for b in workload.bins))


def run_windows(
    board: VirtualBoard,
    workloads: Sequence[Workload],
    settings: Sequence[Setting],
    rule: WindowRule,
    *,
    windows: int,
    every_block: bool,
    first: int = 0,
    block_s: float = BLOCK_S,
) -> list[dict[str, Any]]:
    """Take windows, over workloads and settings in turn; one row for each.

    Args:
        board: where.
        workloads: of which.
        settings: at which.
        rule: when they end.
        windows: how many.
        every_block: draw the noise for every block instead of every run.
        first: number of the first one; it is its seed.
        block_s: shortest block.
    """
    rows: list[dict[str, Any]] = []
    constants = board.constants
    truths: dict[tuple[str, Setting], float] = {}
    for number in range(first, first + windows):
        workload = workloads[number % len(workloads)]
        draws = random.Random(f"window|{number}")
        setting = settings[(number // len(workloads) + number % len(workloads)) % len(settings)]
        if (workload.id, setting) not in truths:
            truths[workload.id, setting] = (
                board.noise_free(workload, setting).energy_j / workload.steps_per_epoch
            )
        power, duration = board.run_noise(workload, setting, repeat=0, seed=number)
        drawn: list[float] = []

        def anew(
            block: int,
            drawn: list[float] = drawn,
            draws: random.Random = draws,
            own: float = power * duration,
        ) -> float:
            """Every block's own noise instead of the run's."""
            while len(drawn) <= block:
                sigmas = (constants.power_noise_rel, constants.time_noise_rel)
                factor = 1.0
                for sigma in sigmas:
                    factor *= draws.lognormvariate(-0.5 * sigma * sigma, sigma)
                drawn.append(factor / own)
            return drawn[block]

        blocks, verdict = take(
            board, workload, setting, number, rule, anew if every_block else lambda _: 1.0, block_s
        )
        truth_j = truths[workload.id, setting]
        own_j = truth_j if every_block else truth_j * power * duration
        energy, steps = verdict.energy, sum(b.steps for b in blocks)
        rows.append(
            {
                "workload": workload.id, "task": workload.task, "setting": setting_label(setting), "ended": verdict.why,
                "blocks": len(blocks), "steps": steps, "seconds": sum(b.duration_s for b in blocks),
                "epoch_steps": workload.steps_per_epoch, "share_pct": 100.0 * steps / workload.steps_per_epoch,
                "off_pct": 100.0 * (energy.per_step / own_j - 1.0),
                "off_noise_free_pct": 100.0 * (energy.per_step / truth_j - 1.0),
                "covered": energy.half_width is not None and abs(energy.per_step - own_j) <= energy.half_width,
            }
        )  # fmt: skip
    return rows


def summary(rows: Sequence[dict[str, Any]], workload_ids: Sequence[str]) -> dict[str, Any]:
    """What the windows show, all and by task and workload."""

    def share_pct(of: Sequence[dict[str, Any]]) -> float:
        """Mean over workloads, of each over settings: a pair that got more windows weighs no more."""
        pairs: dict[str, dict[str, list[float]]] = {}
        for row in of:
            pairs.setdefault(row["workload"], {}).setdefault(row["setting"], []).append(row["share_pct"])
        return mean([mean([mean(shares) for shares in one.values()]) for one in pairs.values()])

    def figures(of: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "windows": len(of),
            "coverage_pct": round(100.0 * mean([abs(row["off_pct"]) <= WITHIN_PCT for row in of]), 1),
            "interval_coverage_pct": round(100.0 * mean([row["covered"] for row in of]), 1),
            "worst_off_pct": round(max(abs(row["off_pct"]) for row in of), 3),
            "within_noise_free_pct": round(
                100.0 * mean([abs(row["off_noise_free_pct"]) <= WITHIN_PCT for row in of]), 1
            ),
            "mean_epoch_share_pct": round(share_pct(of), 2),
            "all_steps_share_pct": round(
                100.0 * sum(row["steps"] for row in of) / sum(row["epoch_steps"] for row in of), 2
            ),
            "mean_window_s": round(mean([row["seconds"] for row in of]), 2),
            "longest_window_s": round(max(row["seconds"] for row in of), 2),
            "mean_blocks": round(mean([row["blocks"] for row in of]), 2),
            "not_narrow": sum(row["ended"] != "narrow" for row in of),
        }

    tasks = list(dict.fromkeys(row["task"] for row in rows))
    return {
        **figures(rows),
        "by_task": {task: figures([row for row in rows if row["task"] == task]) for task in tasks},
        "by_workload": {
            name: figures(own) for name in workload_ids if (own := [r for r in rows if r["workload"] == name])
        },
    }


def overhead_of_callback() -> tuple[dict[str, Any] | None, str]:
    """What the fine-tuning callback costs (`callback_overhead`), and why it is unknown where it is."""
    from wattune.workloads.finetune.overhead import callback_overhead as measure

    try:
        return measure(), ""
    except WattuneError as error:  # torch is not there
        return None, str(error)


def run(root: Path = Path(), *, windows: int = WINDOWS, config: Config | None = None) -> dict[str, Any]:
    """Take the windows on the board of ``params.yaml``.

    Args:
        root: the repository.
        windows: how many.
        config: instead of ``params.yaml``.

    Returns:
        The three figures of `BARS`, both kinds of noise, and which bars hold; `ok` where all known ones do.

    Raises:
        InputError: ``params.yaml`` names no modelled board or no training workload.
    """
    began = time.perf_counter()
    config = config if config is not None else load_params(root / PARAMS)
    board = board_of(config, root)
    workloads = [workload_of(name, conf) for name, conf in config.workloads.items() if conf.part == "train"]
    if not isinstance(board, VirtualBoard) or not workloads:
        raise InputError(
            "The windows are taken on a modelled board's training workloads, and params.yaml names none.",
            "Those of the default experiment were expected.",
            "Run `make params`.",
        )
    ids = [workload.id for workload in workloads]
    rule, settings = WindowRule(), settings_of(config, board)
    one = summary(run_windows(board, workloads, settings, rule, windows=windows, every_block=False), ids)
    anew = summary(run_windows(board, workloads, settings, rule, windows=windows, every_block=True), ids)
    variants = []
    for name, first, block_s, changed in VARIANTS:
        other = replace(rule, **changed)
        row: dict[str, Any] = {"variant": name}
        for noise, every_block in (("one_run", False), ("noise_every_block", True)):
            taken = run_windows(
                board,
                workloads,
                settings,
                other,
                windows=windows,
                every_block=every_block,
                first=first,
                block_s=block_s,
            )
            whole = summary(taken, ids)
            row[noise] = {
                name: whole[name] for name in ("coverage_pct", "mean_epoch_share_pct", "mean_window_s")
            }
        variants.append(row)
    overhead, reason = overhead_of_callback()
    found = {
        "coverage_pct": one["coverage_pct"],
        "mean_epoch_share_pct": one["mean_epoch_share_pct"],
        "callback_overhead_pct": None if overhead is None else round(overhead["callback_overhead_pct"], 3),
    }
    holds = {
        name: None
        if (value := found[name]) is None
        else (value >= bar if name == "coverage_pct" else value <= bar)
        for name, bar in BARS.items()
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "model_digest": board.info.digest,
        **found,
        "callback_overhead_reason": reason,
        "callback_overhead": overhead,
        "bars": BARS,
        "holds": holds,
        "windows": windows,
        "workloads": len(workloads),
        "settings": len(settings),
        "rule": {name: getattr(rule, name) for name in rule.__dataclass_fields__} | {"block_s": BLOCK_S},
        "one_run": one,
        "noise_every_block": anew,
        "variants": variants,
        "took_s": round(time.perf_counter() - began, 1),
        "ok": all(one is not False for one in holds.values()),
    }


def text(document: dict[str, Any], *, by_workload: bool = True) -> str:
    """The result for people; on a page without a row for each workload."""
    lines = []
    for name in BARS:  # a saved document has its keys sorted
        bar = document["bars"][name]
        value, holds = document[name], document["holds"][name]
        sign = ">=" if name == "coverage_pct" else "<="
        said = f"unknown: {document['callback_overhead_reason']}" if value is None else f"{value:g}"
        lines.append(
            f"{name:<24} {said}   ({sign} {bar:g}: {'-' if holds is None else 'yes' if holds else 'NO'})"
        )
    if (cost := document["callback_overhead"]) is not None:
        low, high = cost["interval_pct"]
        lines.append(
            f"  of steps of {cost['step_ms']:.1f} ms: {cost['pairs']} pairs of {cost['block_steps']} steps with and without, "
            f"interleaved\n  (95 % interval {low:.2f} to {high:.2f}); the time inside its calls is {cost['in_calls_pct']:.2f} %"
        )
    head = (
        f"{'':<34}{'windows':>8}{'within 1 %':>11}{'interval':>9}{'worst %':>8}{'noise-free':>11}"
        f"{'epoch %':>8}{'window s':>9}{'blocks':>7}"
    )
    for name, what in (("one_run", "noise per run"), ("noise_every_block", "noise per block")):
        lines += ["", head]
        part = document[name]
        rows = [(what, part)]
        rows += [(f"  {task}", row) for task, row in sorted(part["by_task"].items())]
        rows += (
            [(f"    {workload}", row) for workload, row in sorted(part["by_workload"].items())]
            if name == "one_run" and by_workload
            else []
        )
        for label, row in rows:
            lines.append(
                f"{label:<34}{row['windows']:>8}{row['coverage_pct']:>11.1f}{row['interval_coverage_pct']:>9.1f}"
                f"{row['worst_off_pct']:>8.2f}{row['within_noise_free_pct']:>11.1f}{row['mean_epoch_share_pct']:>8.2f}"
                f"{row['mean_window_s']:>9.2f}{row['mean_blocks']:>7.1f}"
            )
        lines.append(f"  of all steps of all epochs: {part['all_steps_share_pct']:.2f} %")
    lines += [
        "",
        f"{'otherwise':<34}{'per run: within 1 %, epoch %':>32}{'per block: within 1 %, epoch %':>34}",
    ]
    for row in document["variants"]:
        pairs = [
            f"{row[noise]['coverage_pct']:.1f}, {row[noise]['mean_epoch_share_pct']:.2f}"
            for noise in ("one_run", "noise_every_block")
        ]
        lines.append(f"  {row['variant']:<32}{pairs[0]:>32}{pairs[1]:>34}")
    return "\n".join(lines)


def parts(document: dict[str, Any]) -> dict[str, str]:
    """What the page shows between its marks."""
    return {"window": f"```text\n{text(document, by_workload=False)}\n```"}


def write(document: dict[str, Any], root: Path = Path()) -> None:
    """Save the document and refresh the page's figures.

    Raises:
        InputError: the page is missing or has no marks.
    """
    page = fill(read_text(root / PAGE, "The page"), parts(document), str(PAGE))
    kept = {key: value for key, value in document.items() if key != "took_s"}
    write_json(root / RESULT, kept)
    write_text(root / PAGE, page)
