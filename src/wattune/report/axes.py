"""Scales and ticks of the drawings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to places on the drawing, linear.

    Attributes:
        low: least value; `high` the greatest.
        high: see `low`.
        start: place of `low`; `end` that of `high`.
        end: see `start`.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where `value` lies."""
        if self.high == self.low:
            return (self.start + self.end) / 2
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)

    def clip(self, value: float) -> float:
        """Where `value` lies, or the end of the scale that it is beyond."""
        return self(min(max(value, self.low), self.high))


def around(values: Sequence[float], room: float = 0.08) -> tuple[float, float]:
    """Least and greatest of `values` with some room on either side."""
    low, high = min(values), max(values)
    extra = room * (high - low) or 0.1 * abs(high) or 1.0
    return low - extra, high + extra


def ticks(low: float, high: float, most: int) -> list[float]:
    """Round values between `low` and `high`: steps of 1, 2 or 5 times a power of ten, at most `most` of them."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / max(most, 1)))
    for factor in (1, 2, 5, 10, 20, 50):
        step = factor * power
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
        if last - first + 1 <= most:
            return [round(i * step, 12) + 0.0 for i in range(first, last + 1)]
    return [low]


def tick_label(value: float) -> str:
    """A round value in few letters: 53414 J is 53.4 k."""
    for divisor, suffix in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= 10 * divisor or (abs(value) >= divisor and suffix == "M"):
            return f"{value / divisor:g}{suffix}".replace("-", "−")
    return f"{value:g}".replace("-", "−")
