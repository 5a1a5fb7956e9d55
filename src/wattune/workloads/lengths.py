"""Token lengths: from published statistics of a task to the padded lengths of its batches.

Batches are padded to their longest example (dynamic padding, no grouping by length), so what a training step
computes on follows from the distribution of lengths and the batch size, not from the mean.

The distribution is a quantile function over ``x = -ln(1 - q)``, in which an exponential tail is a straight
line. Its upper half goes through the published median, 95th percentile, mean longest of batches of n, and
longest example; the mean longest of n draws stands at ``q = exp(-exp(-gamma) / n)``, as for exponential tails
(gamma is Euler's constant). Its lower half is a power of q between the shortest example and the median, whose
exponent gives the published mean. Pythia's lengths are BERT's scaled by the ratio of their published means.
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

from wattune.core.errors import InputError
from wattune.workloads.catalogue import LengthStats, TaskSpec

_EULER = math.exp(-0.57721566)
MAX_BINS = 12


@dataclass(frozen=True, slots=True)
class PaddedBin:
    """A share of batches padded to the same length.

    Attributes:
        tokens: padded length.
        share: fraction of batches.
    """

    tokens: int
    share: float


@dataclass(frozen=True, slots=True)
class LengthDistribution:
    """Distribution of token lengths of a task's examples.

    Attributes:
        cdf: `cdf[l]` is the fraction of examples of at most `l` tokens, `l` from 0 to the longest.
    """

    cdf: tuple[float, ...]

    def mean(self, max_length: int | None = None) -> float:
        """Mean tokens per example, truncated at `max_length`."""
        return self.longest_of(1, max_length)

    def longest_of(self, batch_size: int, max_length: int | None = None) -> float:
        """Expected longest of `batch_size` examples, tokens."""
        kept = self.cdf if max_length is None else self.cdf[:max_length]
        return math.fsum(1.0 - f**batch_size for f in kept)

    def quantile(self, q: float) -> int:
        """The least length that at least a fraction `q` of examples does not exceed."""
        return min(bisect_left(self.cdf, q), len(self.cdf) - 1)

    def padded(self, batch_size: int, max_length: int) -> list[float]:
        """Probability of each padded length, indexed by tokens."""
        powered = [f**batch_size for f in self.cdf[: max_length + 1]]
        powered[-1] = 1.0
        return [powered[0]] + [b - a for a, b in pairwise(powered)]


def _tail_x(n: float) -> float:
    """Where the mean of the longest of n draws stands on the axis ``-ln(1 - q)``."""
    return -math.log(-math.expm1(-_EULER / n))


def _cdf_at(length: float, stats: LengthStats, knots: list[tuple[float, float]], power: float) -> float:
    if length >= knots[-1][1]:
        return 1.0
    if length <= stats.shortest:
        return 0.0
    if length <= stats.median:
        return 0.5 * float(((length - stats.shortest) / (stats.median - stats.shortest)) ** (1.0 / power))
    for (x0, y0), (x1, y1) in pairwise(knots):
        if length <= y1:
            x = x0 + (x1 - x0) * (length - y0) / (y1 - y0)
            return -math.expm1(-x)
    return 1.0


def _from_knots(
    stats: LengthStats, knots: list[tuple[float, float]], power: float, scale: float
) -> LengthDistribution:
    longest = math.ceil(stats.longest * scale)
    # A length of l tokens stands for the interval of half a token to either side.
    cdf = [_cdf_at((length + 0.5) / scale, stats, knots, power) for length in range(longest + 1)]
    cdf[0], cdf[-1] = 0.0, 1.0
    return LengthDistribution(tuple(cdf))


def _power_for(stats: LengthStats, lower_mean: float) -> float:
    """Exponent of the lower half whose mean is `lower_mean`."""
    return max(1e-3, (stats.median - stats.shortest) / max(lower_mean - stats.shortest, 1e-3) - 1.0)


@functools.lru_cache(maxsize=64)
def distribution(task: TaskSpec, tokenizer: str = "bert") -> LengthDistribution:
    """Distribution of token lengths of a task's training examples.

    Args:
        task: a task of the catalogue.
        tokenizer: ``bert`` or ``pythia``.
    """
    stats = task.lengths
    scale = stats.mean_tokens(tokenizer) / stats.mean
    knots = [(math.log(2.0), float(stats.median)), (-math.log(0.05), float(stats.p95))]
    knots += [(_tail_x(n), float(y)) for n, y in stats.longest_in_batch if n < task.rows]
    knots.append((max(_tail_x(task.rows), knots[-1][0] + 0.1), float(stats.longest)))
    # Mean of the upper half of a piecewise linear function of x under exp(-x), from the median on.
    upper = stats.median
    for (x0, y0), (x1, y1) in pairwise(knots):
        upper += 2.0 * (y1 - y0) / (x1 - x0) * (math.exp(-x0) - math.exp(-x1))
    power = _power_for(stats, 2.0 * stats.mean - upper)
    return _from_knots(stats, knots, power, scale)


def padded_bins(task: TaskSpec, tokenizer: str, batch_size: int, max_length: int) -> tuple[PaddedBin, ...]:
    """Distribution of padded batch lengths in at most `MAX_BINS` bins.

    Args:
        task: a task of the catalogue.
        tokenizer: ``bert`` or ``pythia``.
        batch_size: examples per batch, drawn at random.
        max_length: longer examples are cut here.

    Raises:
        InputError: a size below 1.
    """
    if batch_size < 1 or max_length < 1:
        raise InputError(f"Batch size {batch_size}, max_length {max_length}.", "Both must be at least 1.")
    chances = distribution(task, tokenizer).padded(batch_size, max_length)
    seen = [length for length, p in enumerate(chances) if p > 1e-5]
    low, high = seen[0], seen[-1]
    width = (high - low + 1) / MAX_BINS
    groups: list[list[tuple[int, float]]] = [[] for _ in range(MAX_BINS)]
    for length, p in enumerate(chances):
        if p > 0.0:
            groups[min(MAX_BINS - 1, max(0, int((length - low) / width)))].append((length, p))
    # A bin stands at its mean, rounded so that what earlier, larger bins lost by rounding is made up for.
    shares: dict[int, float] = {}
    owed = 0.0
    for group in sorted(groups, key=lambda members: -sum(p for _, p in members)):
        share = math.fsum(p for _, p in group)
        if share > 0.0:
            mean = math.fsum(length * p for length, p in group) / share
            tokens = max(1, round(mean + max(-0.5, min(0.5, owed / share))))
            owed += (mean - tokens) * share
            shares[tokens] = shares.get(tokens, 0.0) + share
    total = math.fsum(shares.values())
    return tuple(PaddedBin(tokens, share / total) for tokens, share in sorted(shares.items()))
