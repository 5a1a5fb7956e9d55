"""The port: what the pipeline asks of a board, whichever kind it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from wattune.core.measurement import Measurement, Provenance
from wattune.core.settings import FrequencyTable, Setting
from wattune.core.workload import Workload


@dataclass(frozen=True, slots=True)
class BoardInfo:
    """What a board is.

    Attributes:
        id: e.g. ``jetson-agx-orin-64gb``.
        provenance: ``measured``, ``recorded`` or ``simulated``.
        power_mode: name of the power mode found, e.g. ``MAXN``; ``unknown`` where the source does not say.
        rails: what `energy_j` sums, e.g. ``gpu_cpu``.
        table: clocks the GPU can be pinned at.
        digest: changes whenever the board would answer differently (constants, data file); part of the protocol
            fingerprint of every measured cell.
        calibrated: False for a modelled board that no measurement of that very board stands behind.
    """

    id: str
    provenance: Provenance
    power_mode: str
    rails: str
    table: FrequencyTable
    digest: str
    calibrated: bool = True


class Board(Protocol):
    """A board on which workloads can be measured at settings."""

    @property
    def info(self) -> BoardInfo:
        """Identity, clocks and provenance."""

    def measure(
        self, workload: Workload, setting: Setting, *, repeat: int, steps: int, seed: int
    ) -> Measurement:
        """Run `steps` training steps of a workload at a setting and measure them.

        Args:
            workload: the job.
            setting: a clock of the table, or ``maxn``.
            repeat: number of the repeat, from 0.
            steps: training steps in the measured window.
            seed: fixes the batches (same at every setting) and, on a modelled board, the noise.

        Returns:
            The measurement, scaled to one epoch.

        Raises:
            InputError: the clock is not in the table, or the workload is unknown to the board.
            BoardError: the board cannot do it.
        """

    def noise_free(self, workload: Workload, setting: Setting) -> Measurement | None:
        """What a perfect measurement would say; None on boards that cannot know (all but modelled ones, measured steadily)."""
