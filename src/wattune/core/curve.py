"""Measured points of one workload over the settings of a sweep, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattune.core.settings import MAXN, Setting, sort_settings


@dataclass(frozen=True, slots=True)
class Point:
    """Energy and time of the same work at one setting.

    Attributes:
        energy_j: energy, joules.
        time_s: duration, seconds; None where the source has none.
    """

    energy_j: float
    time_s: float | None = None


@dataclass(frozen=True)
class EnergyCurve:
    """Energy and time of one workload at every measured setting.

    Attributes:
        points: setting -> point; at least one.
    """

    points: Mapping[Setting, Point]
    settings: tuple[Setting, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not self.points:
            raise ValueError("an energy curve needs at least one point")
        object.__setattr__(self, "settings", tuple(sort_settings(self.points)))

    @property
    def clocks(self) -> tuple[float, ...]:
        """The pinned clocks, MHz, ascending."""
        return tuple(s for s in self.settings if not isinstance(s, str))

    @property
    def oracle(self) -> Setting:
        """The setting of least energy, ``maxn`` included; ties go to the lower clock."""
        return min(self.settings, key=lambda s: self.points[s].energy_j)

    @property
    def best_clock(self) -> float:
        """The pinned clock of least energy; ties go to the lower clock."""
        return min(self.clocks, key=lambda s: self.points[s].energy_j)

    def energy_j(self, setting: Setting) -> float:
        """Energy at a measured setting, joules."""
        return self.points[setting].energy_j

    def regret_pct(self, setting: Setting) -> float:
        """100 (E / E_oracle - 1)."""
        return 100.0 * (self.energy_j(setting) / self.energy_j(self.oracle) - 1.0)

    def saving_pct(self, setting: Setting) -> float | None:
        """100 (1 - E / E_maxn); None where the baseline was not measured."""
        if MAXN not in self.points:
            return None
        return 100.0 * (1.0 - self.energy_j(setting) / self.energy_j(MAXN))

    def slowdown_pct(self, setting: Setting) -> float | None:
        """100 (T / T_maxn - 1); None where the baseline or a time is missing."""
        if MAXN not in self.points:
            return None
        here, base = self.points[setting].time_s, self.points[MAXN].time_s
        if here is None or base is None:
            return None
        return 100.0 * (here / base - 1.0)
