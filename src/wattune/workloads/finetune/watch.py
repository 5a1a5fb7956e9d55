"""What a run says while it trains: blocks of steps with their times, tokens and losses, and when a loss has gone wrong."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from wattune.workloads.finetune.faults import RunFailedError

FIRST_LOSSES = 20
"""Losses whose mean is what a run began with."""

DIVERGED_FACTOR = 10.0
DIVERGED_STEPS = 100
"""A run has diverged when the mean of its last `DIVERGED_STEPS` losses is above `DIVERGED_FACTOR` times what it began with."""


class LossWatch:
    """Tells when the losses of a run are no longer numbers, or far above where they began."""

    def __init__(self) -> None:
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=DIVERGED_STEPS)
        self.steps = 0

    def see(self, losses: list[float]) -> tuple[str, str] | None:
        """Look at the losses of more steps; returns kind and sentence of a fault, or None."""
        if not all(map(math.isfinite, losses)):
            number, loss = next((n, one) for n, one in enumerate(losses, 1) if not math.isfinite(one))
            return "nan", f"The loss of step {self.steps + number} is {loss}."
        self.steps += len(losses)
        if len(self._first) < FIRST_LOSSES:
            self._first += losses[: FIRST_LOSSES - len(self._first)]
        self._last.extend(losses)
        if len(self._last) == DIVERGED_STEPS and self.steps >= FIRST_LOSSES + DIVERGED_STEPS:
            began = sum(self._first) / len(self._first)
            now = sum(self._last) / len(self._last)
            if now > DIVERGED_FACTOR * max(began, 1e-3):
                return (
                    "diverged",
                    f"The mean loss of the last {DIVERGED_STEPS} steps is {now:.3g}; the first {len(self._first)} had {began:.3g}.",
                )
        return None


class StepWatch:
    """Sits in a training loop: counts, times and reports blocks of steps, and asks after every step whether to go on.

    Args:
        run: name of the run.
        block_steps: steps of a block.
        say: takes an answer.
        obey: asked after every step; returns why the run ends, or None. It may wait inside (a pause).
        synchronize: waits until the device has done what it was given.
        keep: what is kept of a pass's loss until the next report.
        read: makes numbers of the losses that were kept.
        max_steps: end after so many; None for never.
        launched: told the padded length of every step as it begins; None where nobody wants to know.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        run: str,
        block_steps: int,
        *,
        say: Callable[[dict[str, Any]], None],
        obey: Callable[[], str | None],
        synchronize: Callable[[], None],
        keep: Callable[[Any], Any],
        read: Callable[[list[Any]], list[float]],
        max_steps: int | None = None,
        launched: Callable[[int], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launched = launched
        self.run, self.block_steps, self.max_steps = run, block_steps, max_steps
        self._say, self._obey, self._synchronize, self._clock = say, obey, synchronize, clock
        self._keep, self._read = keep, read
        self._losses: list[Any] = []
        self._tokens: list[int] = []
        self._pass_losses: list[Any] = []
        self._pass_tokens = 0
        self._watch = LossWatch()
        self.steps = 0
        self.why: str | None = None

    def begin(self) -> None:
        """The first step is about to be made."""
        self._synchronize()
        self._say({"said": "started", "run": self.run, "t": self._clock()})

    def launch(self, length: int) -> None:
        """A forward and backward pass over sequences of this padded length is about to be made."""
        if self._launched is not None and not self._pass_losses:
            self._launched(length)

    def forward(self, loss: Any, tokens: int) -> None:
        """One forward and backward pass was made; `loss` is its share of the step's."""
        self._pass_losses.append(self._keep(loss))
        self._pass_tokens += tokens

    def step(self) -> bool:
        """A step was finished; returns whether to go on.

        Raises:
            RunFailedError: a loss went wrong.
        """
        self.steps += 1
        passes = self._pass_losses
        self._losses.append(passes[0] if len(passes) == 1 else sum(passes[1:], passes[0]))
        self._tokens.append(self._pass_tokens)
        self._pass_losses, self._pass_tokens = [], 0
        last = self.max_steps is not None and self.steps >= self.max_steps
        if last or len(self._tokens) >= self.block_steps:
            self._report()
        self.why = self._obey()
        if self.why is None and last:
            self.why = "end"
        return self.why is None

    def _report(self) -> None:
        self._synchronize()
        now = self._clock()
        losses = self._read(self._losses)
        fault = self._watch.see(losses)
        if fault is not None:
            raise RunFailedError(*fault)
        self._say(
            {
                "said": "block",
                "run": self.run,
                "steps": self.steps,
                "t": now,
                "tokens": self._tokens,
                "loss": losses,
            }
        )
        self._losses, self._tokens = [], []

    def end(self) -> None:
        """The run is over: look at the losses that no block has reported.

        Raises:
            RunFailedError: one of them went wrong.
        """
        self._synchronize()
        now = self._clock()
        fault = self._watch.see(self._read(self._losses)) if self._losses else None
        if fault is not None:
            raise RunFailedError(*fault)
        self._say(
            {"said": "stopped", "run": self.run, "steps": self.steps, "t": now, "why": self.why or "end"}
        )
