"""What watching a run costs: the steps of one real fine-tuning run with and without the watch, in pairs, in one process."""

from __future__ import annotations

import contextlib
import math
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
WARMUP_PAIRS = 2
PIPE_BYTES = 65536


def callback_overhead(
    *, step_ms: float = 20.0, block_steps: int = 10, pairs: int = 120, seed: int = 0
) -> dict[str, Any]:
    """Steps of a real run (a small BERT, the Trainer, AdamW) with the watch, against steps of the same run without it.

    Blocks of both kinds come in pairs, in random order within each pair, so that a machine that gets slower or faster
    meanwhile favours neither. The watch is the one of a sweep: it asks a channel for commands after every step, and at a
    block's end it reads the losses and writes a line into a pipe. One thread works, and its processor time is compared:
    nothing in a step waits, and other programs on the machine then count for little.

    Args:
        step_ms: length of a step, milliseconds; about, for a step has whole examples.
        block_steps: steps of a block, at whose end losses are read and a line is written.
        pairs: pairs of blocks.
        seed: of their order, the model and the data.

    Returns:
        ``callback_overhead_pct``, the median over pairs of how much longer the watched block took, with its 95 % interval
        ``interval_pct`` (from the order of the pairs; two lengths); ``in_calls_pct``, the
        time inside the watch's calls as a share of a block, the median over blocks; ``step_ms`` as it was, ``batch_size``,
        ``pairs`` and ``block_steps``.

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
    counted = paired.took[WARMUP_PAIRS:]
    longer = sorted(100.0 * (one[True] / one[False] - 1.0) for one in counted)
    return {
        "callback_overhead_pct": statistics.median(longer),
        "interval_pct": median_interval(longer),
        "in_calls_pct": statistics.median(
            100.0 * inside / one[True]
            for one, inside in zip(counted, paired.inside[WARMUP_PAIRS:], strict=True)
        ),
        "step_ms": 1e3 * statistics.median(one[False] for one in counted) / block_steps,
        "batch_size": batch,
        "pairs": pairs,
        "block_steps": block_steps,
    }


def median_interval(ordered: list[float]) -> tuple[float, float]:
    """The 95 % interval of a median from the order of its values (binomial, in its normal form); ends are cut at the extremes."""
    n = len(ordered)
    reach = 0.98 * math.sqrt(n)  # 1.96 / 2
    low, high = math.floor(n / 2 - reach), math.ceil(n / 2 + reach)
    return ordered[max(0, low - 1)], ordered[min(n - 1, high)]


class _Pairs:
    """In a watch's place in the Trainer: hands every other block or so on to the watch, and times them all."""

    def __init__(self, watch: StepWatch, block_steps: int, pairs: int, drain: Any, seed: int) -> None:
        self._watch, self._block_steps, self._drain = watch, block_steps, drain
        draw = random.Random(seed)
        self._kinds = [
            watched for _ in range(WARMUP_PAIRS + pairs) for watched in draw.sample((True, False), k=2)
        ]
        self.took: list[dict[bool, float]] = []
        self.inside: list[float] = []
        self._blocks = self._steps = 0
        self._watched, self._inside_s, self._began_s = self._kinds[0], 0.0, 0.0

    def begin(self) -> None:
        self._began_s = time.thread_time()

    def launch(self, length: int) -> None:
        if self._watched:
            entered = time.perf_counter()
            self._watch.launch(length)
            self._inside_s += time.perf_counter() - entered

    def forward(self, loss: Any, tokens: int) -> None:
        if self._watched:
            entered = time.perf_counter()
            self._watch.forward(loss, tokens)
            self._inside_s += time.perf_counter() - entered

    def step(self) -> bool:
        if self._watched:
            entered = time.perf_counter()
            self._watch.step()
            self._inside_s += time.perf_counter() - entered
        self._steps += 1
        if self._steps == self._block_steps:
            self._block_ends()
        return self._blocks < len(self._kinds)

    def _block_ends(self) -> None:
        took_s = time.thread_time() - self._began_s
        if self._blocks % 2 == 0:
            self.took.append({})
        self.took[-1][self._watched] = took_s
        if self._watched:
            self.inside.append(self._inside_s)
            self._drain()
        self._blocks, self._steps, self._inside_s = self._blocks + 1, 0, 0.0
        if self._blocks < len(self._kinds):
            self._watched = self._kinds[self._blocks]
        self._began_s = time.thread_time()


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
    try:
        yield Channel(None, into), lambda: os.read(out, PIPE_BYTES)
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
