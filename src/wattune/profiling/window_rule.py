"""When a measured window may end: as soon as the energy of a step is known to a given share.

A window is a row of blocks of whole training steps. Batches differ in their padded length, and a short window holds others than the
epoch on the average; so energy per step is not averaged but regressed on length. With m steps and T padded tokens in a block, its
energy is taken as

    e = a m + b T + noise,    the noise's variance in proportion to m

(least squares with weights 1/m), and what is wanted is the value at the epoch's own lengths, which are known before anything runs:
energy per step = a + b (T_epoch / m_epoch). Its half-width at 95 % is

    t(0.975, n - 2) * WIDEN * s * sqrt((1/M + (x_epoch - x_mean)^2 / S) * (1 + r) / (1 - r))

with n blocks, M steps in them, s the residuals' spread, x tokens per step, S its weighted sum of squares, and r the lag-one
autocorrelation of the residuals where that is positive: blocks that follow each other are not independent. Looking after every block
whether it is narrow enough would end too early where the spread came out small by luck; a floor of blocks and the factor `WIDEN`
pay for that (measured by `wattune bench window`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

WIDEN = 1.1
"""Widening of the interval for looking after every block."""

MOST_AUTOCORRELATION = 0.9
Z975 = 1.959963984540054
"""The normal distribution's quantile at 97.5 %."""

T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Student's quantiles at 97.5 % for 1 to 10 degrees of freedom (printed tables); more are expanded around the normal's."""

NEAR_LENGTH = 0.01
"""A mean length this close to a block's, as a share of it, counts as seen."""

Why = Literal["narrow", "most seconds", "most steps", "whole epoch"]


def t975(freedom: int) -> float:
    """Student's quantile at 97.5 %.

    Args:
        freedom: degrees of freedom, at least 1.
    """
    if freedom <= len(T975):
        return T975[freedom - 1]
    z, n = Z975, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    )


@dataclass(frozen=True, slots=True)
class Block:
    """Some training steps in a row.

    Attributes:
        steps: how many.
        tokens: padded tokens in them.
        duration_s: how long they took.
        energy_j: rail set -> joules.
    """

    steps: int
    tokens: int
    duration_s: float
    energy_j: dict[str, float]


@dataclass(frozen=True, slots=True)
class Epoch:
    """What is extrapolated to.

    Attributes:
        steps: optimizer steps of one pass over the data.
        tokens: padded tokens in them.
    """

    steps: int
    tokens: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A quantity per step of the epoch.

    Attributes:
        per_step: its value, in the unit of what was regressed.
        half_width: half of its 95 % interval; None where too few blocks say anything of it.
        per_token: what one more padded token costs; None where all blocks have the same length.
        blocks: how many it rests on.
    """

    per_step: float
    half_width: float | None
    per_token: float | None
    blocks: int

    @property
    def half_width_pct(self) -> float | None:
        """The half-width as a share of the value, percent."""
        if self.half_width is None or not self.per_step > 0:
            return None
        return 100.0 * self.half_width / self.per_step


def estimate(values: Sequence[float], steps: Sequence[int], tokens: Sequence[int], epoch: Epoch) -> Estimate:
    """Predict a quantity per step of the epoch from blocks.

    Args:
        values: of every block: joules, or seconds.
        steps: steps in every block.
        tokens: padded tokens in every block.
        epoch: what is predicted.
    """
    n, all_steps = len(values), sum(steps)
    y = [value / m for value, m in zip(values, steps, strict=True)]
    x = [t / m for t, m in zip(tokens, steps, strict=True)]
    x_mean, y_mean = sum(tokens) / all_steps, sum(values) / all_steps
    spread = sum(m * (xi - x_mean) ** 2 for m, xi in zip(steps, x, strict=True))
    x_epoch = epoch.tokens / epoch.steps
    slope: float | None = None
    if n > 2 and spread > 1e-9 * all_steps * max(x_mean, 1.0) ** 2:
        slope = sum(m * (xi - x_mean) * (yi - y_mean) for m, xi, yi in zip(steps, x, y, strict=True)) / spread
    per_step = y_mean + (slope or 0.0) * (x_epoch - x_mean)
    freedom = n - (1 if slope is None else 2)
    if freedom < 1:
        return Estimate(per_step, None, slope, n)
    scaled = [
        math.sqrt(m) * (yi - y_mean - (slope or 0.0) * (xi - x_mean))
        for m, xi, yi in zip(steps, x, y, strict=True)
    ]
    squares = sum(r * r for r in scaled)
    variance = squares / freedom * (1.0 / all_steps)
    if slope is not None:
        variance += squares / freedom * (x_epoch - x_mean) ** 2 / spread
    follows = sum(a * b for a, b in itertools.pairwise(scaled)) / squares if squares > 0 else 0.0
    r = min(max(follows, 0.0), MOST_AUTOCORRELATION)
    half_width = t975(freedom) * WIDEN * math.sqrt(variance * (1 + r) / (1 - r))
    return Estimate(per_step, half_width, slope, n)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the rule says of a window so far.

    Attributes:
        why: why it may end; None where it must go on.
        energy: of the rail set that is judged.
    """

    why: Why | None
    energy: Estimate


@dataclass(frozen=True, slots=True)
class WindowRule:
    """The stopping rule.

    Attributes:
        ci_pct: the window may end when half of the interval is at most this share of energy per step, percent.
        min_s: shortest window; `max_s` the longest.
        max_s: see `min_s`.
        min_steps: fewest steps; `max_steps` the most, 0: as many as `max_s` allows.
        max_steps: see `min_steps`.
        min_blocks: fewest blocks (5 leave three degrees of freedom).
        full_epoch: go on for as many steps as the epoch has, whatever the interval: to check the extrapolation.
    """

    ci_pct: float = 1.0
    min_s: float = 5.0
    max_s: float = 120.0
    min_steps: int = 5
    max_steps: int = 0
    min_blocks: int = 5
    full_epoch: bool = False

    def judge(self, blocks: Sequence[Block], epoch: Epoch, rails: str) -> Verdict:
        """Whether the window may end after these blocks (at least one).

        Args:
            blocks: so far, in order of time.
            epoch: what is extrapolated to.
            rails: the rail set that is judged.
        """
        energy = estimate_energy(blocks, epoch, rails)
        steps, seconds = sum(b.steps for b in blocks), sum(b.duration_s for b in blocks)
        if self.full_epoch:
            return Verdict("whole epoch" if steps >= epoch.steps else None, energy)
        floor = (
            len(blocks) >= self.min_blocks
            and steps >= self.min_steps
            and seconds >= self.min_s
            and lengths_surround(blocks, epoch)
        )
        share = energy.half_width_pct
        if floor and share is not None and share <= self.ci_pct:
            return Verdict("narrow", energy)
        if seconds >= self.max_s and len(blocks) > 1:
            return Verdict("most seconds", energy)
        if self.max_steps and steps >= self.max_steps:
            return Verdict("most steps", energy)
        return Verdict(None, energy)


def lengths_surround(blocks: Sequence[Block], epoch: Epoch) -> bool:
    """Whether the epoch's mean length lies between those of the blocks: a line is not trusted beyond them."""
    lengths = [b.tokens / b.steps for b in blocks]
    mean = epoch.tokens / epoch.steps
    near = NEAR_LENGTH * mean
    return min(lengths) - near <= mean <= max(lengths) + near


def estimate_energy(blocks: Sequence[Block], epoch: Epoch, rails: str) -> Estimate:
    """Energy per step of the epoch, joules."""
    return estimate(
        [b.energy_j[rails] for b in blocks], [b.steps for b in blocks], [b.tokens for b in blocks], epoch
    )


def estimate_time(blocks: Sequence[Block], epoch: Epoch) -> Estimate:
    """Time per step of the epoch, seconds."""
    return estimate(
        [b.duration_s for b in blocks], [b.steps for b in blocks], [b.tokens for b in blocks], epoch
    )


@dataclass(frozen=True, slots=True)
class Extrapolation:
    """A finished window, extrapolated.

    Attributes:
        blocks: of the window.
        epoch: what is extrapolated to.
        rule: which ended it, `why` it did.
        why: see `rule`.
        epochs: passes over the data of the whole run.
    """

    blocks: Sequence[Block]
    epoch: Epoch
    rule: WindowRule
    why: Why
    epochs: int = 1

    def epoch_energy_j(self, rails: str) -> tuple[float, float | None]:
        """Energy of an epoch and half of its interval; where the whole epoch was measured there is no interval."""
        if self.why == "whole epoch":
            steps = sum(b.steps for b in self.blocks)
            return sum(b.energy_j[rails] for b in self.blocks) * self.epoch.steps / steps, None
        one = estimate_energy(self.blocks, self.epoch, rails)
        return one.per_step * self.epoch.steps, (
            None if one.half_width is None else one.half_width * self.epoch.steps
        )

    def epoch_time_s(self) -> float:
        """Duration of an epoch."""
        if self.why == "whole epoch":
            steps = sum(b.steps for b in self.blocks)
            return sum(b.duration_s for b in self.blocks) * self.epoch.steps / steps
        return estimate_time(self.blocks, self.epoch).per_step * self.epoch.steps

    def check_pct(self, rails: str) -> float | None:
        """How far the rule's own short window lies from the whole epoch that was measured, percent; None in other modes.

        Only where the epoch was long enough for the rule to end before it.
        """
        if self.why != "whole epoch":
            return None
        rule = replace(self.rule, full_epoch=False)
        for n in range(1, len(self.blocks)):
            verdict = rule.judge(self.blocks[:n], self.epoch, rails)
            if verdict.why is not None:
                whole, _ = self.epoch_energy_j(rails)
                return 100.0 * (verdict.energy.per_step * self.epoch.steps / whole - 1.0)
        return None

    def as_json(self, rails: str) -> dict[str, Any]:
        """What a certificate says of it: why it ended, its interval, the epoch and the whole run.

        Args:
            rails: the rail set that was judged.
        """
        per_step, seconds = (
            estimate_energy(self.blocks, self.epoch, rails),
            sum(b.duration_s for b in self.blocks),
        )
        energy_j, half_j = self.epoch_energy_j(rails)
        no_interval = (
            "the whole epoch was measured"
            if self.why == "whole epoch"
            else "too few blocks"
            if half_j is None
            else ""
        )
        steps = sum(b.steps for b in self.blocks)
        return {
            "ended": self.why, "rails": rails, "blocks": len(self.blocks), "steps": steps,
            "tokens": sum(b.tokens for b in self.blocks), "duration_s": round(seconds, 6),
            "asked_ci_pct": self.rule.ci_pct, "ci_pct": _rounded(per_step.half_width_pct),
            "energy_per_step_j": _rounded(per_step.per_step), "energy_per_token_j": _rounded(per_step.per_token, 9),
            "tokens_per_step": _rounded(sum(b.tokens for b in self.blocks) / steps),
            "epoch": {
                "steps": self.epoch.steps, "tokens": round(self.epoch.tokens), "energy_j": _rounded(energy_j),
                "half_width_j": _rounded(half_j), "no_interval": no_interval, "time_s": _rounded(self.epoch_time_s()),
                "share_measured_pct": _rounded(100.0 * steps / self.epoch.steps),
            },
            "run": {
                "epochs": self.epochs, "energy_j": _rounded(self.epochs * energy_j),
                "half_width_j": None if half_j is None else _rounded(self.epochs * half_j),
                "time_s": _rounded(self.epochs * self.epoch_time_s()),
            },
            "short_window_off_pct": _rounded(self.check_pct(rails)),
        }  # fmt: skip


def _rounded(value: float | None, digits: int = 6) -> float | None:
    return None if value is None else round(value, digits)
