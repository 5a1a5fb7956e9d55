"""Policies against chance: is a difference more than the luck of the workloads drawn?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from wattune.core.errors import InputError
from wattune.core.stats import bootstrap_mean_ci95, mean

BETTER, UNCLEAR, WORSE = "better", "not distinguishable", "worse"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One policy against another on the same workloads.

    Attributes:
        policy: the policy the verdict is about.
        against: the other one.
        difference: mean loss of `policy` minus that of `against`; below 0 is good.
        ci95: 95 % bootstrap interval of it, over workloads.
        verdict: ``better``, ``not distinguishable`` or ``worse``.
    """

    policy: str
    against: str
    difference: float
    ci95: tuple[float, float]
    verdict: str


def compare(
    policy: str,
    losses: Sequence[float],
    against: str,
    other_losses: Sequence[float],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> Comparison:
    """Compare two policies, workload by workload.

    Args:
        policy: name of the first.
        losses: its loss on every workload.
        against: name of the second.
        other_losses: its losses on the same workloads in the same order.
        resamples: bootstrap resamples.
        seed: their seed.

    Raises:
        InputError: no workloads, or not as many for both.
    """
    if not losses or len(losses) != len(other_losses):
        raise InputError(
            f"{policy} was judged on {len(losses)} workloads and {against} on {len(other_losses)}.",
            "The same workloads were expected.",
        )
    paired = [mine - theirs for mine, theirs in zip(losses, other_losses, strict=True)]
    low, high = bootstrap_mean_ci95(paired, resamples=resamples, seed=seed)
    verdict = BETTER if high < 0 else WORSE if low > 0 else UNCLEAR
    return Comparison(policy, against, mean(paired), (low, high), verdict)


def compare_all(
    losses: Mapping[str, Sequence[float]], *, resamples: int = 2000, seed: int = 0
) -> tuple[Comparison, ...]:
    """Every pair of policies, the later one of `losses` judged against the earlier one."""
    return tuple(
        compare(later, losses[later], earlier, losses[earlier], resamples=resamples, seed=seed)
        for earlier, later in combinations(losses, 2)
    )
