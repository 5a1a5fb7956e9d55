"""What watching a run costs: the same steps with and without the watch, in pairs, in one process."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from typing import Any

from wattune.workloads.finetune.models import import_all
from wattune.workloads.finetune.watch import StepWatch

_SIDE = 256
"""Side of the matrices that a step multiplies."""


def callback_overhead(
    *, step_ms: float = 20.0, block_steps: int = 10, pairs: int = 30, seed: int = 0
) -> dict[str, Any]:
    """Steps of real work (products of matrices) with the watch, against the same steps without it.

    Blocks of both kinds come in pairs, in random order within each pair, so that a machine that gets slower or faster
    meanwhile favours neither. One thread works, and its processor time is compared: nothing in a step waits, and other
    programs on the machine then count for little.

    Args:
        step_ms: length of a step, milliseconds.
        block_steps: steps of a block, at whose end losses are read and a line is written.
        pairs: pairs of blocks.
        seed: of their order.

    Returns:
        ``callback_overhead_pct``, the median over pairs of how much longer the watched block took; ``in_calls_pct``, the
        time inside the watch's calls as a share of a block, the median over blocks; ``step_ms`` as it was, ``pairs`` and
        ``block_steps``.

    Raises:
        BoardError: torch or transformers is missing.
    """
    torch, _ = import_all()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, b = torch.randn(_SIDE, _SIDE), torch.randn(_SIDE, _SIDE)
    products = _products(torch, a, b, step_ms)
    sink = os.open(os.devnull, os.O_WRONLY)
    inside = [0.0]

    def say(answer: dict[str, Any]) -> None:
        os.write(sink, (json.dumps(answer) + "\n").encode())

    watch = StepWatch(
        "overhead", block_steps, say=say, obey=lambda: None, synchronize=lambda: None,
        read=lambda losses: torch.stack(losses).float().cpu().tolist(),
    )  # fmt: skip

    def block(watched: bool) -> float:
        begin = time.thread_time()
        for _ in range(block_steps):
            loss = _step(torch, a, b, products)
            if watched:
                entered = time.perf_counter()
                watch.forward(loss.detach(), 4096)
                watch.step()
                inside[0] += time.perf_counter() - entered
        return time.thread_time() - begin

    try:
        block(True), block(False)
        order = random.Random(seed)
        ratios, shares, plain_s = [], [], []
        for _ in range(pairs):
            kinds = [True, False]
            order.shuffle(kinds)
            inside[0] = 0.0
            took = {kind: block(kind) for kind in kinds}
            ratios.append(100.0 * (took[True] / took[False] - 1.0))
            shares.append(100.0 * inside[0] / took[True])
            plain_s.append(took[False])
    finally:
        os.close(sink)
        torch.set_num_threads(threads)
    return {
        "callback_overhead_pct": statistics.median(ratios),
        "in_calls_pct": statistics.median(shares),
        "step_ms": 1e3 * statistics.median(plain_s) / block_steps,
        "pairs": pairs,
        "block_steps": block_steps,
    }


def _products(torch: Any, a: Any, b: Any, step_ms: float) -> int:
    """How many products a step of that length has.

    The first products of a process take many times as long as all others; a step is therefore timed until it is long enough,
    and again.
    """
    products, settled = 1, 0
    while settled < 3:
        begin = time.thread_time()
        _step(torch, a, b, products)
        took_ms = (time.thread_time() - begin) * 1e3
        if took_ms > step_ms / 2:
            products, settled = max(1, round(products * step_ms / took_ms)), settled + 1
        else:
            products, settled = 2 * products, 0
    return products


def _step(torch: Any, a: Any, b: Any, products: int) -> Any:
    made = a
    for _ in range(products):
        made = torch.tanh(a @ b)
    return made.mean()
