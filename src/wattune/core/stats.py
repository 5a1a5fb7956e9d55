"""Small statistics on lists of numbers: mean, percentile, bootstrap interval of a mean."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Sequence


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean of a non-empty sequence."""
    return sum(values) / len(values)


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None below two values."""
    if len(values) < 2:
        return None
    return statistics.stdev(values) / math.sqrt(len(values))


def percentile(values: Sequence[float], q: float) -> float:
    """The `q`-th percentile (0..100), linear between order statistics (numpy's default)."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q / 100.0
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def bootstrap_mean_ci95(
    values: Sequence[float], *, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """95 % percentile bootstrap interval of the mean (resampling the given units).

    Args:
        values: one number per unit, e.g. the saving of one policy on each workload.
        resamples: number of bootstrap resamples.
        seed: seed; the same values and seed give the same interval.
    """
    rng = random.Random(seed)
    n = len(values)
    means = [sum(rng.choices(values, k=n)) / n for _ in range(resamples)]
    return percentile(means, 2.5), percentile(means, 97.5)
