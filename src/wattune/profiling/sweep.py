"""The sweep: measure what is missing, keep what is there, lose nothing that was measured."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from wattune.boards.base import Board
from wattune.core.errors import BoardError
from wattune.core.features import FeatureValue
from wattune.core.measurement import Measurement
from wattune.core.settings import MAXN, Setting, setting_label
from wattune.core.workload import Workload
from wattune.io import clear_os_errors
from wattune.profiling.cells import (
    TEMPORARY,
    Cell,
    SweepProtocol,
    cell_name,
    fingerprint,
    parse_cell,
    workload_features,
    write_cell,
)
from wattune.profiling.progress import Countdown, SweepProgress
from wattune.profiling.trajectories import compare_losses, refuse_mixed_batches

_log = logging.getLogger(__name__)


class SettingFailedError(BoardError):
    """No window at a setting could be used. Others may still be measured; the board itself is all right."""


@runtime_checkable
class LiveBoard(Board, Protocol):
    """A board on which something really runs: it must be prepared, and the order of settings matters."""

    def order(self, workload: Workload, settings: Sequence[Setting], seed: int) -> list[Setting]:
        """The settings in the order in which to measure them."""

    def session(
        self,
        workload: Workload,
        settings: Sequence[Setting],
        protocol: SweepProtocol,
        folder: Path,
        told: Callable[[str, Countdown], None] | None = None,
    ) -> AbstractContextManager[object]:
        """Check that the board is fit, have the load run, and end it afterwards.

        Args:
            workload: what will be measured.
            settings: at which settings, in order.
            protocol: repeats, steps and seed.
            folder: where the cells will be written.
            told: called after every window; windows are logged where not given.
        """

    def last_certificate(self) -> Mapping[str, Any]:
        """What the last measurement rests on."""

    def features(self) -> Mapping[str, FeatureValue]:
        """Features of what ran, where they differ from what the workload says of itself."""


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep did.

    Attributes:
        kept: settings whose cell was there.
        taken_back: settings whose cell came back from an earlier run of the same protocol.
        measured: settings measured now.
        set_aside: files moved out of the way.
    """

    kept: tuple[Setting, ...]
    taken_back: tuple[Setting, ...]
    measured: tuple[Setting, ...]
    set_aside: tuple[Path, ...]


def sweep(
    board: Board,
    workload: Workload,
    settings: Sequence[Setting],
    protocol: SweepProtocol,
    folder: Path,
    superseded: Path,
    *,
    part: str = "",
    progress: SweepProgress | None = None,
) -> SweepResult:
    """Bring a workload's folder to one valid cell per setting.

    Cells of another protocol, and damaged ones, are moved to ``superseded/<workload>/...`` and taken back when
    their protocol returns. Each cell is written as soon as it is measured, atomically: an interrupted sweep goes
    on at the setting where it stopped. On a live board settings are measured in random order; one of which no window could be
    used leaves no cell (there is never a number for it): the others are measured, then the sweep fails and names it.

    Args:
        board: where to measure.
        workload: what to measure.
        settings: clocks of the board's table and ``maxn``.
        protocol: repeats, steps, seed and protocol version.
        folder: the workload's folder of cells.
        superseded: where cells go that are not of this protocol.
        part: ``train`` or ``held_out``.
        progress: shown where a person waits.

    Raises:
        InputError: a clock outside the board's table.
        BoardError: the board cannot measure, batches differ between settings, or the disk cannot be written; finished cells stay.
    """
    table = board.info.table
    settings = [s if isinstance(s, str) else table.match(s) for s in settings]
    if isinstance(board, LiveBoard):
        settings = board.order(workload, settings, protocol.seed)
    wanted = {cell_name(s): fingerprint(board.info, workload, s, protocol) for s in settings}
    aside = superseded / workload.id
    set_aside = _clear(folder, wanted, aside)
    kept: list[Setting] = []
    back: list[Setting] = []
    measured: list[Setting] = []
    cells: list[Cell] = []
    failed: dict[Setting, SettingFailedError] = {}
    features = workload_features(workload, part)

    def earlier_of(name: str) -> Path:
        return aside / wanted[name][:12] / name

    missing = [
        setting
        for setting in settings
        if not (folder / (name := cell_name(setting))).exists()
        and _readable(earlier_of(name), wanted[name]) is None
    ]
    if progress is not None:
        progress.workload(workload, len(settings), len(missing))
    with ExitStack() as stack:
        if missing and isinstance(board, LiveBoard):
            hear = None if progress is None else progress.window
            stack.enter_context(board.session(workload, missing, protocol, folder, hear))
        for setting in settings:
            name = cell_name(setting)
            path, earlier = folder / name, earlier_of(name)
            if path.exists():
                done, what = kept, "kept"
            elif _readable(earlier, wanted[name]) is not None:
                with clear_os_errors(path):
                    folder.mkdir(parents=True, exist_ok=True)
                    earlier.replace(path)
                    _remove_empty(earlier.parent, superseded)
                done, what = back, "taken back"
            else:
                if progress is not None:
                    progress.begins(setting, protocol.repeats)
                try:
                    cell = measure_cell(board, workload, setting, protocol, part=part, mark=wanted[name])
                except SettingFailedError as error:
                    _log.warning("%s", error)
                    failed[setting] = error
                    if progress is not None:
                        progress.ended(setting, "failed", None)
                    continue
                write_cell(path, cell)
                done, what = measured, "measured"
            cell_now = _readable(path, wanted[name])
            assert cell_now is not None  # just checked, moved or written
            known = dict(cell_now.features)
            told = any("training" in certificate for certificate in cell_now.certificates)
            wanted_features = known | {"part": features["part"]} if told else features
            whole = replace(cell_now, features=wanted_features, **_identity(board))
            if whole != cell_now:  # e.g. moved from training to held-out, or an older form: not measured anew
                write_cell(path, whole)
            cells.append(cell_now)
            done.append(setting)
            if progress is not None:
                progress.ended(setting, what, cell_now)
    if (losses := compare_losses(cells)) is not None:
        _log.log(logging.WARNING if losses.different else logging.INFO, "%s: %s", workload.id, losses.text())
    if failed:
        first = next(iter(failed.values()))
        names = ", ".join(setting_label(setting) for setting in failed)
        raise BoardError(
            f"Workload '{workload.id}' could not be measured at {names}: {first.what}",
            first.expected,
            f"{first.hint} Run the same command again: the {len(kept) + len(back) + len(measured)} settings that were"
            " measured are kept.",
        )
    refuse_mixed_batches(cells)
    return SweepResult(tuple(kept), tuple(back), tuple(measured), tuple(set_aside))


def measure_cell(
    board: Board,
    workload: Workload,
    setting: Setting,
    protocol: SweepProtocol,
    *,
    part: str = "",
    mark: str = "",
) -> Cell:
    """All repeats of one workload at one setting, and the truth where the board knows it.

    Args:
        board: where to measure.
        workload: what to measure.
        setting: a clock of the board's table, or ``maxn``.
        protocol: repeats, steps and seed.
        part: ``train`` or ``held_out``.
        mark: fingerprint of the protocol; empty for a cell that is not kept.
    """
    repeats: list[Measurement] = []
    certificates: list[Mapping[str, Any]] = []
    for repeat in range(protocol.repeats):
        repeats.append(
            board.measure(workload, setting, repeat=repeat, steps=protocol.steps, seed=protocol.seed)
        )
        if isinstance(board, LiveBoard):
            certificates.append(board.last_certificate())
    info = board.info
    return Cell(
        fingerprint=mark,
        board=info.id,
        provenance=info.provenance,
        power_mode=info.power_mode,
        rails=info.rails,
        workload=workload.id,
        setting=setting,
        features=workload_features(workload, part)
        | (dict(board.features()) if isinstance(board, LiveBoard) else {}),
        repeats=tuple(repeats),
        noise_free=board.noise_free(workload, setting),
        certificates=tuple(certificates),
        **_identity(board),
    )


def _identity(board: Board) -> dict[str, Any]:
    """What a cell of a real board must say, so that others can go on with it where that board is not."""
    if not isinstance(board, LiveBoard):
        return {}
    return {"board_digest": board.info.digest, "table_mhz": tuple(board.info.table)}


def _readable(path: Path, mark: str) -> Cell | None:
    """The cell, where it is there, whole and of this protocol."""
    try:
        cell = parse_cell(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return cell if cell.fingerprint == mark else None


def _clear(folder: Path, wanted: dict[str, str], aside: Path) -> list[Path]:
    """Remove leftovers of interrupted writes; move cells that are damaged or not of this protocol."""
    if not folder.is_dir():
        return []
    moved: list[Path] = []
    with clear_os_errors(folder, "tidied"):
        for leftover in folder.glob(TEMPORARY):
            leftover.unlink()
        for path in sorted(folder.glob("*.json")):
            data = path.read_bytes()
            try:
                mark = parse_cell(data).fingerprint
                if wanted.get(path.name) == mark:
                    continue
                target = aside / mark[:12] / path.name
                message = "%s is of another protocol; kept as %s."
            except (ValueError, RecursionError) as error:
                target = aside / f"damaged-{hashlib.sha256(data).hexdigest()[:12]}" / path.name
                message = f"%s is damaged ({error}); set aside as %s and measured again."
            target = _free(target, data)
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)
            level = logging.WARNING if "damaged" in message else logging.DEBUG
            _log.log(level, message, path, target)
            moved.append(target)
    if moved:
        _log.info("%s: %d cells of another protocol were moved to %s.", folder.name, len(moved), aside)
    return moved


def _free(target: Path, data: bytes) -> Path:
    """`target`, or a name beside it where another file with other content is there already."""
    number, free = 1, target
    while free.exists() and free.read_bytes() != data:
        number += 1
        free = target.with_name(f"{target.stem}-{number}{target.suffix}")
    return free


def _remove_empty(folder: Path, stop: Path) -> None:
    """Remove folders that became empty, up to `stop`."""
    while folder != stop and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def sweep_settings(clocks_mhz: Iterable[float], table: Iterable[float], maxn: bool) -> list[Setting]:
    """The settings a configuration asks for: its clocks, or the whole table where it names none."""
    settings: list[Setting] = list(clocks_mhz) or list(table)
    return [*settings, MAXN] if maxn else settings
