"""From which training step to which a window goes: steps are counted by looking, or reported with their times.

A window begins and ends at a step's end, so that energy and time belong to whole steps. A load that counts is looked at often; one
that reports (:class:`wattune.profiling.finetune_load.FinetuneLoad`) is listened to until the stopping rule is content.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from wattune.core.errors import BoardError
from wattune.profiling.finetune_load import FinetuneLoad
from wattune.profiling.load import Load
from wattune.profiling.meter import SETTLE_TAUS, Meter
from wattune.profiling.window_rule import Block, Extrapolation, WindowRule
from wattune.profiling.windows import DEFAULT_TAU_S

WATCH_S = 0.5
"""How often bounds, clock and load are looked at during a window."""

POLLS_PER_STEP = 50
"""How often the steps file is read per step: an edge is then known to 2 % of a step."""
POLL_S = (0.002, 0.05)

DRIFT, DRIFT_SIGMAS, DRIFT_STEPS = 0.1, 4.0, 8
"""The step time of a window's halves may differ by this share, or by so many standard errors; with fewer steps nothing is said."""

KNOWN_TAUS = 2.0
"""Shortest block of the stopping rule, in time constants of a filter that is known: its lag is corrected exactly, and what is off at
an edge is too much for one block and too little for the next. Where it is not known a block is no shorter than the filter settles."""


class Rules(Protocol):
    """How a real board is measured; see :class:`wattune.config.LiveConf`."""

    hz: float
    warmup_steps: int
    min_window_s: float
    start_temp_c: float
    cool_down_s: float
    max_temp_c: float
    start_s: float
    stall_s: float
    idle_s: float
    attempts: int
    free_memory_mb: int

    @property
    def window(self) -> RuleSettings:
        """When the window of a load that reports ends."""


class RuleSettings(Protocol):
    """See :class:`wattune.config.WindowConf`."""

    ci_pct: float
    block_s: float
    min_s: float
    max_s: float
    min_steps: int
    max_steps: int
    min_blocks: int
    full_epoch: bool
    epochs: int


@dataclass(slots=True)
class Span:
    """From which step to which a window goes.

    Attributes:
        begin_s: when it begins; `end_s` when it ends; seconds on the meter's clock.
        end_s: see `begin_s`.
        first: steps finished before it; `last` at its end.
        last: see `first`.
        edges: times and counts of finished steps in it.
        broken: why it cannot be used; empty where it can.
        extrapolation: of a load that reports its steps.
    """

    begin_s: float
    end_s: float
    first: int
    last: int
    edges: list[tuple[float, int]]
    broken: str = ""
    extrapolation: Extrapolation | None = None


@dataclass(slots=True)
class Pace:
    """Time of a step as last seen, in seconds."""

    step_s: float = 0.1


def follow_counts(
    load: Load, meter: Meter, steps: int, *, rules: Rules, pace: Pace, watch: Callable[[], None]
) -> Span:
    """Follow a load that counts, from its filter's settling on: so many steps, and at least `min_window_s`.

    Args:
        load: the load.
        meter: marks where the span begins and ends.
        steps: how many.
        rules: warm-up steps, shortest window and longest stall.
        pace: learns the time of a step.
        watch: called every now and then.

    Raises:
        BoardError: no step is finished for too long, or the load ended.
    """
    meter.settle()
    edges: list[tuple[float, int]] = []
    counter = _Counter(load, rules.stall_s, pace, watch)
    try:
        counter.beyond(counter.steps + rules.warmup_steps)
        begin, first = meter.mark("window begins", change=False), counter.steps
        edges.append((begin, first))
        counter.edges = edges
        counter.beyond(first + steps - 1, until_s=begin + rules.min_window_s)
        end, last = meter.mark("window ends", change=False), counter.steps
    except _CountedBackError as error:
        begin, first = (edges[0][0] if edges else meter.marks[0].t_s), counter.steps
        end, last = meter.mark("window ends", change=False), counter.steps
        return Span(begin, end, first, last, edges, str(error))
    return Span(begin, end, first, last, edges)


def _rule(asked: RuleSettings, tau_s: float | None) -> tuple[WindowRule, float]:
    """The stopping rule and its shortest block, both no shorter than the power monitors' filter lets them be."""
    least_s = KNOWN_TAUS * tau_s if tau_s is not None else SETTLE_TAUS * DEFAULT_TAU_S
    return (
        WindowRule(
            ci_pct=asked.ci_pct, min_s=max(asked.min_s, 2 * SETTLE_TAUS * (tau_s or DEFAULT_TAU_S)), max_s=asked.max_s,
            min_steps=asked.min_steps, max_steps=asked.max_steps, min_blocks=asked.min_blocks, full_epoch=asked.full_epoch,
        ),
        max(asked.block_s, least_s),
    )  # fmt: skip


def follow_reports(
    load: FinetuneLoad,
    meter: Meter,
    name: str,
    *,
    rules: Rules,
    tau_s: float | None,
    rails: str,
    watch: Callable[[], None],
) -> Span:
    """Follow a load that reports its steps: a run of its own, until the stopping rule ends it.

    Args:
        load: the load.
        meter: marks where the span and its blocks begin and end.
        name: of the run.
        rules: warm-up steps and the stopping rule's settings.
        tau_s: time constant of the power monitors' filter; None where unknown.
        rails: the set of rails whose energy is judged.
        watch: called every now and then.

    Raises:
        BoardError: the load ended or said nothing for too long.
        RunLostError: this run cannot be used.
    """
    rule, block_s = _rule(rules.window, tau_s)
    began_s = load.begin(name, in_time(watch))
    meter.mark("run begins")
    watch = in_time(watch)
    while True:
        report = load.report(watch)
        if report.steps >= rules.warmup_steps and report.t_s >= began_s + meter.settle_s:
            break
    meter.mark("window begins", change=False)
    span = Span(report.t_s, report.t_s, report.steps, report.steps, [(report.t_s, report.steps)])
    blocks: list[Block] = []
    epoch = load.answered.epoch
    tokens, block_begin_s, block_first = 0, report.t_s, report.steps
    while True:
        report = load.report(watch)
        if report.steps <= span.last:
            span.broken = (
                "Memory was short in the middle of it, so the run was begun anew with smaller batches."
            )
            meter.mark("window ends", change=False)
            span.end_s = max(span.end_s, span.begin_s + meter.period_s)
            return span
        span.end_s, span.last = report.t_s, report.steps
        span.edges.append((report.t_s, report.steps))
        tokens += sum(report.tokens)
        if report.t_s - block_begin_s < block_s:
            continue
        meter.mark("block ends", change=False)
        energies = meter.energies(block_begin_s, report.t_s)
        if energies[rails].energy_j is None:
            span.broken = energies[rails].reason
            return span
        known = {set_name: e.energy_j for set_name, e in energies.items() if e.energy_j is not None}
        blocks.append(Block(report.steps - block_first, tokens, report.t_s - block_begin_s, known))
        tokens, block_begin_s, block_first = 0, report.t_s, report.steps
        verdict = rule.judge(blocks, epoch, rails)
        if verdict.why is not None:
            span.extrapolation = Extrapolation(tuple(blocks), epoch, rule, verdict.why, rules.window.epochs)
            return span


def in_time(watch: Callable[[], None]) -> Callable[[], None]:
    """`watch`, but at most every `WATCH_S`."""
    last_s = time.monotonic()

    def limited() -> None:
        nonlocal last_s
        if time.monotonic() - last_s > WATCH_S:
            last_s = time.monotonic()
            watch()

    return limited


class _CountedBackError(Exception):
    """The load's counter went backwards: it was started anew."""


class _Counter:
    """Follows a load's steps.

    Args:
        load: the load.
        stall_s: how long it may finish none.
        pace: learns the time of a step.
        watch: called every now and then.

    Attributes:
        steps: the count as last read.
        edges: where given, times and counts of every change are added.
    """

    def __init__(self, load: Load, stall_s: float, pace: Pace, watch: Callable[[], None]) -> None:
        self._load, self._stall_s, self._pace, self._watch = load, stall_s, pace, in_time(watch)
        self.edges: list[tuple[float, int]] | None = None
        self._moved_at = time.monotonic()
        self._fresh = False
        self.steps = self._load.steps() or 0

    def beyond(self, count: int, *, until_s: float = -math.inf) -> None:
        """Wait until more than `count` steps are finished, and a step ended after `until_s`.

        Raises:
            BoardError: no step is finished for too long, or the load ended.
        """
        while True:
            moved = self._poll()
            if moved and self.steps > count and time.monotonic() >= until_s:
                return

    def _poll(self) -> bool:
        low, high = POLL_S
        time.sleep(min(max(self._pace.step_s / POLLS_PER_STEP, low), high))
        now = self._load.steps()
        t = time.monotonic()
        self._watch()
        if now is not None and now < self.steps:
            before, self.steps = self.steps, now
            self._moved_at = t
            raise _CountedBackError(
                f"The load's counter went backwards, from {before} to {now}: it was started anew."
            )
        if now is None or now == self.steps:
            if t - self._moved_at > self._stall_s:
                raise BoardError(
                    f"The load has finished no step for {self._stall_s:g} s.",
                    "A loop that trains without end was expected.",
                    "Look at it; where its steps take longer, raise board.live.stall_s.",
                )
            return False
        each = (t - self._moved_at) / (now - self.steps)
        if self._fresh:  # the first change ends a step that had begun before we looked
            self._pace.step_s += 0.2 * (each - self._pace.step_s)
        self._fresh = True
        self.steps, self._moved_at = now, t
        if self.edges is not None:
            self.edges.append((t, now))
        return True


def drift(edges: Sequence[tuple[float, int]]) -> str:
    """Why the two halves of a window do not belong together; empty where they do.

    Args:
        edges: times and counts of finished steps.
    """
    times = [(b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(edges) if b[1] > a[1]]
    half = len(times) // 2
    if half < DRIFT_STEPS:
        return ""
    first, second = times[:half], times[half:]
    means = [sum(part) / len(part) for part in (first, second)]
    errors = [
        sum((t - m) ** 2 for t in part) / (len(part) - 1) / len(part)
        for part, m in zip((first, second), means, strict=True)
    ]
    change = means[1] - means[0]
    if abs(change) <= max(DRIFT * sum(means) / 2, DRIFT_SIGMAS * math.sqrt(sum(errors))):
        return ""
    return (
        f"The load drifted: a step took {means[0] * 1e3:.1f} ms in the first half of the window and"
        f" {means[1] * 1e3:.1f} ms in the second."
    )
