"""Policies: rules that pick a setting for a workload from its features.

`maxn`, `ffg`, `published`, `oracle` and every governor file (`mlg`, `mlg-regret`) are here; `curve`, which learns, is in
``learning/curvemodel.py``, and `probe`, which measures, in ``core/probe.py``. docs/governors.md says what each is for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wattune.core.curve import EnergyCurve
from wattune.core.features import Features
from wattune.core.governor import Governor
from wattune.core.settings import MAXN, FrequencyTable, Setting
from wattune.core.stats import mean

POLICY_ORDER = ("maxn", "ffg", "published", "published-util", "mlg", "mlg-regret", "curve", "probe", "oracle")
"""Order in tables, figures and the MLflow comparison."""


class Policy(Protocol):
    """A rule that picks a setting from features alone."""

    @property
    def name(self) -> str:
        """Name in tables, figures and runs."""

    def choose(self, features: Features) -> Setting:
        """The setting for a workload with these features."""


@dataclass(frozen=True, slots=True)
class Maxn:
    """The baseline: clocks unpinned."""

    name: str = "maxn"

    def choose(self, features: Features) -> Setting:
        """Always ``maxn``."""
        return MAXN


@dataclass(frozen=True, slots=True)
class Fixed:
    """The best fixed clock (FFG): one clock for every workload."""

    mhz: float
    name: str = "ffg"

    def choose(self, features: Features) -> Setting:
        """Always the same clock."""
        return self.mhz


def best_fixed_clock(curves: Sequence[EnergyCurve]) -> float:
    """FFG's clock: least mean energy relative to each workload's optimum, over clocks all curves share.

    Args:
        curves: training workloads only.

    Raises:
        ValueError: the curves share no clock.
    """
    shared = set(curves[0].clocks).intersection(*(c.clocks for c in curves[1:]))
    if not shared:
        raise ValueError("the training curves share no clock")
    return min(
        sorted(shared), key=lambda clock: mean([c.energy_j(clock) / c.energy_j(c.oracle) for c in curves])
    )


@dataclass(frozen=True, slots=True)
class Published:
    """The paper's four printed rules (arXiv 2607.05933; thresholds on layers and mean tokens).

    Clocks that are not in the board's table are replaced by the nearest entry.

    Attributes:
        table: the board's clocks.
        with_util: also apply "GPU utilisation <= 22 -> 1020 MHz". Where that node hangs in the authors' tree is not
            public; here it is asked first. Off by default, a named variant where on.
    """

    table: FrequencyTable
    with_util: bool = False

    @property
    def name(self) -> str:
        """``published`` or ``published-util``."""
        return "published-util" if self.with_util else "published"

    def choose(self, features: Features) -> Setting:
        """Apply the printed rules; features that are missing take the shallow and the short branch."""
        util = features.get("gpu_util_ref_pct")
        if self.with_util and util is not None and float(util) <= 22.0:
            return self.table.nearest(1020.0)
        layers = float(features.get("layers") or 0.0)
        seq_len = float(features.get("seq_len") or 0.0)
        if layers <= 7:
            return self.table.nearest(510.0 if seq_len <= 32.5 else 612.0)
        return self.table.nearest(714.0 if seq_len <= 53.0 else 816.0)


@dataclass(frozen=True, slots=True)
class Governed:
    """A governor file as a policy (`mlg` and every later learned tree)."""

    governor: Governor

    @property
    def name(self) -> str:
        """The policy name written in the governor."""
        return self.governor.policy

    def choose(self, features: Features) -> Setting:
        """The leaf's setting."""
        return self.governor.decide(features).setting
