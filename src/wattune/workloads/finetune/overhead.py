"""What watching a run costs: the steps of one real fine-tuning run with and without the watch, in pairs, in one process."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from wattune.workloads.finetune.models import import_all
from wattune.workloads.finetune.tokens import StepOrder, TokenTable
from wattune.workloads.finetune.trainer import losses_of, make_trainer
from wattune.workloads.finetune.watch import StepWatch
from wattune.workloads.finetune.worker import Channel, Obedience

HIDDEN, LAYERS, VOCABULARY, LENGTH = 128, 2, 1000, 32
"""A small BERT that classifies; how many examples a step has decides how long it takes."""

FIRST_BATCHES = (4, 32)
"""Batches of the two short runs from which a step's length is estimated."""

TRIAL_STEPS, TRIAL_WARMUP = 16, 6
WARMUP_PAIRS, TIMED_BLOCKS = 2, 20
RESAMPLES = 2000
PIPE_BYTES = 65536


def callback_overhead(
    *, step_ms: float = 20.0, block_steps: int = 10, pairs: int = 120, seed: int = 0
) -> dict[str, Any]:
    """Steps of a real run (a small BERT, the Trainer, AdamW) with the watch, against steps of the same run without it.

    Of every two neighbouring steps one is watched, by lot, so that a machine that gets slower or faster meanwhile favours
    neither; ``block_steps`` of such couples, in which one report is made, are a pair. The watch is the one of a sweep: it asks a
    channel for commands after every step, and at a block's end it reads the losses and writes a line into a pipe. One thread
    works, and its processor time is compared: nothing in a step waits, and other programs on the machine count for little.

    Args:
        step_ms: length of a step, milliseconds; about, for a step has whole examples.
        block_steps: watched steps of a block, at whose end losses are read and a line is written.
        pairs: pairs of blocks.
        seed: of their order, the model and the data.

    Returns:
        ``callback_overhead_pct``, the mean over the middle 60 % of the pairs of how much longer the watched steps took, with its 95 %
        interval ``interval_pct`` (bootstrap; two numbers); ``in_calls_pct``, the time inside the watch's calls as a share of the
        steps, in a few blocks after the pairs (taking the time is in it); ``step_ms`` as it was, ``batch_size``, ``pairs`` and
        ``block_steps``.

    Raises:
        BoardError: torch or transformers is missing.
    """
    torch, _ = import_all()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        batch = _batch_of(step_ms, seed)
        with _channel() as (channel, drain):
            keep, read = losses_of("cpu")
            watch = StepWatch(
                "overhead", block_steps, say=channel.say, obey=Obedience(channel, lambda: None),
                synchronize=lambda: None, keep=keep, read=read,
            )  # fmt: skip
            paired = _Pairs(watch, block_steps, pairs, drain, seed)
            _train(paired, batch, seed)
    finally:
        torch.set_num_threads(threads)
    with_s, without_s = paired.took_s[True], paired.took_s[False]
    longer = [
        100.0 * (sum(with_s[i : i + block_steps]) / sum(without_s[i : i + block_steps]) - 1.0)
        for i in range(WARMUP_PAIRS * block_steps, len(with_s), block_steps)
    ]
    draw = random.Random(seed)
    again = sorted(middle_mean(draw.choices(longer, k=len(longer))) for _ in range(RESAMPLES))
    return {
        "callback_overhead_pct": middle_mean(longer),
        "interval_pct": (again[round(0.025 * RESAMPLES)], again[round(0.975 * RESAMPLES) - 1]),
        "in_calls_pct": 100.0 * sum(paired.inside_s) / sum(paired.timed_s),
        "step_ms": 1e3 * statistics.median(without_s),
        "batch_size": batch,
        "pairs": pairs,
        "block_steps": block_steps,
    }


def middle_mean(values: list[float]) -> float:
    """The mean of the middle 60 % of values: those that a hiccup of the machine made are left out on both sides."""
    cut = len(values) // 5
    return statistics.fmean(sorted(values)[cut : len(values) - cut])


class _Pairs:
    """In a watch's place in the Trainer: hands one of every two steps on to the watch, and times them all."""

    def __init__(self, watch: StepWatch, block_steps: int, pairs: int, drain: Any, seed: int) -> None:
        self._watch, self._block_steps, self._drain = watch, block_steps, drain
        draw = random.Random(seed)
        couples = (WARMUP_PAIRS + pairs) * block_steps
        self._watched = [one for _ in range(couples) for one in draw.sample((True, False), k=2)]
        self._steps, self._begin_s, self._now_watched = 0, 0.0, self._watched[0]
        self.took_s: dict[bool, list[float]] = {True: [], False: []}
        self.inside_s: list[float] = []
        self.timed_s: list[float] = []

    def begin(self) -> None:
        self._begin_s = time.thread_time()

    def launch(self, length: int) -> None:
        if self._now_watched:
            self._watch.launch(length)

    def forward(self, loss: Any, tokens: int) -> None:
        if self._steps < len(self._watched):
            if self._now_watched:
                self._watch.forward(loss, tokens)
            return
        entered_s = time.perf_counter()
        self._watch.forward(loss, tokens)
        self.inside_s.append(time.perf_counter() - entered_s)

    def step(self) -> bool:
        if self._steps < len(self._watched):
            if self._now_watched:
                self._watch.step()
            self.took_s[self._now_watched].append(time.thread_time() - self._begin_s)
        else:
            entered_s = time.perf_counter()
            self._watch.step()
            self.inside_s.append(time.perf_counter() - entered_s)
            self.timed_s.append(time.thread_time() - self._begin_s)
        self._steps += 1
        if self._steps % (2 * self._block_steps) == 0:
            self._drain()
        self._now_watched = self._steps >= len(self._watched) or self._watched[self._steps]
        self._begin_s = time.thread_time()
        return self._steps < len(self._watched) + TIMED_BLOCKS * self._block_steps


class _Timer:
    """In a watch's place: when each of a few steps ended."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def begin(self) -> None: ...

    def launch(self, length: int) -> None: ...

    def forward(self, loss: Any, tokens: int) -> None: ...

    def step(self) -> bool:
        self.ends.append(time.thread_time())
        return len(self.ends) < TRIAL_STEPS


@contextlib.contextmanager
def _channel() -> Iterator[tuple[Channel, Any]]:
    """A channel without commands whose answers go into a pipe, and what empties that."""
    out, into = os.pipe()
    os.set_blocking(out, False)

    def drain() -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(out, PIPE_BYTES)

    try:
        yield Channel(None, into), drain
    finally:
        os.close(into)
        os.close(out)


def _batch_of(step_ms: float, seed: int) -> int:
    """How many examples make a step of that length: a line through two lengths, and that result corrected once."""

    def took_ms(batch: int) -> float:
        timer = _Timer()
        _train(timer, batch, seed)
        ends = timer.ends[TRIAL_WARMUP:]
        return 1e3 * statistics.median(b - a for a, b in pairwise(ends))

    small, large = FIRST_BATCHES
    took_ms(small)  # the first run of a process is slower than all others
    low_ms, high_ms = took_ms(small), took_ms(large)
    each_ms = max((high_ms - low_ms) / (large - small), 0.01)
    batch = max(1, round(small + (step_ms - low_ms) / each_ms))
    return max(1, round(batch + (step_ms - took_ms(batch)) / each_ms))


def _train(watch: Any, batch: int, seed: int) -> None:
    """Train until the watch has seen enough."""
    import numpy as np

    _, transformers = import_all()
    transformers.set_seed(seed)
    config = transformers.BertConfig(
        hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=2, intermediate_size=4 * HIDDEN,
        vocab_size=VOCABULARY,
    )  # fmt: skip
    rows = 64 * batch
    draw = np.random.default_rng(seed)
    table = TokenTable(
        ids=draw.integers(0, VOCABULARY, rows * LENGTH, dtype=np.int32),
        starts=np.arange(rows + 1, dtype=np.int64) * LENGTH,
        types=None, labels=draw.integers(0, 2, rows), answers=None, pad_id=0, pad_left=False,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    with tempfile.TemporaryDirectory(prefix="wattune-overhead-") as folder:
        make_trainer(
            model, table, StepOrder(rows, batch, 1, seed), watch, folder=folder, device="cpu", precision="fp32",
            learning_rate=1e-5, weight_decay=0.01, warmup_steps=10, planned_steps=1000, seed=seed,
        ).train()  # fmt: skip
