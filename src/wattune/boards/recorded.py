"""A board that answers from a recorded sweep: everything it yields is marked ``recorded``."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from wattune.boards.base import BoardInfo
from wattune.boards.sweepfile import Sweep, SweepRow, SweepWorkload, provenance_of, read_sweep, sweep_text
from wattune.core.errors import InputError
from wattune.core.measurement import Measurement
from wattune.core.settings import FrequencyTable, Setting, setting_label
from wattune.io import sha256_of

UNSAID_RAILS = "as recorded"
UNSAID_POWER_MODE = "unknown"


class HasId(Protocol):
    """A workload, or anything that names one of the sweep's."""

    @property
    def id(self) -> str:
        """Name as the sweep writes it."""


class RecordedBoard:
    """One board of a recorded sweep.

    Args:
        data: sweep file, folder or several of them.
        board_id: which board, as the data write it; may stay empty where they hold one board only.

    Raises:
        InputError: the data are not a valid sweep, hold several boards and none was named, or
            not the one named.
    """

    def __init__(self, data: Path | Sequence[Path], board_id: str = "") -> None:
        sweep = read_sweep(data)
        board = choose_board(sweep, board_id)
        self.warnings = sweep.warnings
        self._workloads = {workload.id: workload for workload in sweep.of_board(board)}
        rows = [row for workload in self._workloads.values() for row in workload.rows]
        self._info = BoardInfo(
            id=board,
            provenance=provenance_of(rows),
            power_mode=_said(rows, "power_mode", UNSAID_POWER_MODE),
            rails=_said(rows, "rails", UNSAID_RAILS),
            table=FrequencyTable({row.setting for row in rows if not isinstance(row.setting, str)}),
            digest=sha256_of(sweep_text(rows)),
        )

    @property
    def info(self) -> BoardInfo:
        """Identity, clocks (of all its workloads together) and provenance."""
        return self._info

    def workloads(self) -> tuple[SweepWorkload, ...]:
        """What was recorded on this board, sorted by name."""
        return tuple(self._workloads.values())

    def measure(
        self,
        workload: HasId,
        setting: Setting,
        *,
        repeat: int,
        steps: int = 0,  # the port's
        seed: int = 0,  # the port's
    ) -> Measurement:
        """The recorded row of a repeat; `steps` and `seed` change nothing.

        Raises:
            InputError: the workload, the setting or the repeat was not recorded.
        """
        recorded = self._workloads.get(workload.id)
        if recorded is None:
            known = ", ".join(self._workloads)
            raise InputError(f"Workload '{workload.id}' was not recorded.", f"One of {known} was expected.")
        wanted = setting if isinstance(setting, str) else self._info.table.match(setting)
        rows = recorded.at(wanted)
        if not rows:
            known = ", ".join(map(setting_label, recorded.curve.settings))
            raise InputError(
                f"Workload '{recorded.id}' was not recorded at {setting_label(setting)}.",
                f"One of {known} was expected.",
            )
        if not 0 <= repeat < len(rows):
            raise InputError(
                f"Workload '{recorded.id}' has no repeat {repeat} at {setting_label(setting)}.",
                f"A repeat from 0 to {len(rows) - 1} was expected.",
            )
        return replace(to_measurement(rows[repeat]), repeat=repeat)

    def noise_free(self, workload: HasId, setting: Setting) -> None:  # the port's
        """Nobody knows what a perfect measurement would have said."""
        return


def choose_board(sweep: Sweep, board_id: str) -> str:
    """The one board meant.

    Raises:
        InputError: several boards and none was named, or the one named is not in the data.
    """
    boards = sweep.boards
    names = ", ".join(f"'{board}'" for board in boards)
    if board_id:
        if board_id not in boards:
            raise InputError(f"The board '{board_id}' is not in the sweep.", f"One of {names} was expected.")
        return board_id
    if len(boards) > 1:
        raise InputError(
            f"The sweep holds {len(boards)} boards: {names}.",
            "The pipeline takes one board at a time.",
            f"Name it: `make repro EXPERIMENT=recorded BOARD={shlex.quote(boards[0])}`.",
        )
    return boards[0]


def to_measurement(row: SweepRow) -> Measurement:
    """A recorded row as a measurement."""
    return Measurement(
        setting=row.setting,
        repeat=row.repeat,
        energy_j=row.energy_j,
        time_s=row.time_s,
        energy_module_j=row.numbers.get("energy_module_j"),
        gpu_util_pct=row.numbers.get("gpu_util_pct"),
        gpu_mhz_mean=row.numbers.get("gpu_mhz_mean"),
        temp_c_max=row.numbers.get("temp_c_max"),
    )


def _said(rows: Sequence[SweepRow], column: str, unsaid: str) -> str:
    """What the rows agree on; `unsaid` where they say nothing or differ."""
    said = {text for row in rows if (text := row.columns.get(column))}
    return said.pop() if len(said) == 1 else unsaid
