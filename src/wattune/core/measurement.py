"""What one measured window says about one workload at one setting, and the trace it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattune.core.settings import Setting

Provenance = str
"""``measured`` (our own reading of a real board), ``recorded`` (others' sweeps) or ``simulated``."""

PROVENANCES = ("measured", "recorded", "simulated")


@dataclass(frozen=True, slots=True)
class Trace:
    """Rail powers sampled over time.

    Attributes:
        t_s: strictly increasing timestamps, seconds; shape ``(n,)``.
        power_w: rail label -> samples in watts, each of shape ``(n,)``.
    """

    t_s: Sequence[float]
    power_w: Mapping[str, Sequence[float]]

    def energy_j(self, rails: Sequence[str]) -> float | None:
        """Energy of a set of rails, trapezoid over the real timestamps.

        Returns:
            Joules; None where a named rail is not in the trace (a smaller sum would be wrong) or where there are
            fewer than two samples.
        """
        if len(self.t_s) < 2 or any(rail not in self.power_w for rail in rails):
            return None
        total = 0.0
        for rail in rails:
            p = self.power_w[rail]
            total += sum(
                0.5 * (p[i] + p[i + 1]) * (self.t_s[i + 1] - self.t_s[i]) for i in range(len(self.t_s) - 1)
            )
        return total


@dataclass(frozen=True, slots=True)
class Measurement:
    """One repeat of one setting, scaled to the workload's unit of work (one epoch of fine-tuning).

    Attributes:
        setting: the pinned clock in MHz or ``maxn``.
        repeat: number of the repeat, from 0.
        energy_j: energy of the rail set ``gpu_cpu`` where the board has it, else as the source defines it.
        energy_module_j: energy of the module's total; None where unknown.
        time_s: duration; None where the source has none.
        gpu_util_pct: mean GPU utilisation, 0..100; None where unknown.
        gpu_mhz_mean: mean clock while running; None where unknown.
        temp_c_max: highest GPU temperature; None where unknown.
        window_steps: training steps in the measured window; None where the source does not say.
        window_s: length of the measured window, seconds; None where the source does not say.
    """

    setting: Setting
    repeat: int
    energy_j: float
    time_s: float | None
    energy_module_j: float | None = None
    gpu_util_pct: float | None = None
    gpu_mhz_mean: float | None = None
    temp_c_max: float | None = None
    window_steps: int | None = None
    window_s: float | None = None
