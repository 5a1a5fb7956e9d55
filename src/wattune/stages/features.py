"""Stage `features`: one tidy table from all cells, or from a recorded sweep."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattune.boards.base import Board, BoardInfo
from wattune.boards.recorded import RecordedBoard, to_measurement
from wattune.boards.sweepfile import DESCRIPTIVE
from wattune.boards.virtual.constants import load_board_file
from wattune.config import Config, load_params
from wattune.core.errors import InputError
from wattune.core.features import COST_FEATURES, FeatureValue
from wattune.core.measurement import Measurement
from wattune.core.settings import FrequencyTable, setting_label
from wattune.core.stats import mean
from wattune.core.workload import Workload
from wattune.io import clear_os_errors, write_text
from wattune.learning.costs import DIGITS, cost_features
from wattune.learning.table import COLUMNS, FeatureTable, load_features
from wattune.profiling.cells import Cell, SweepProtocol, fingerprint, load_cells, parse_cell
from wattune.profiling.sweep import measure_cell
from wattune.stages._main import run
from wattune.stages._tables import csv_text
from wattune.stages.profile import PROFILES, board_of, settings_in, settings_of, workload_of

log = logging.getLogger(__name__)

FEATURES = Path("data/features/features.csv")


def _text(value: object) -> str:
    """A value for the table: so many significant digits, blank for unknown."""
    if value is None:
        return ""
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else str(value)


def _row(
    info: BoardInfo,
    workload: str,
    description: Mapping[str, Any],
    measurement: Measurement,
    util_ref_pct: float | None,
    noise_free: Measurement | None,
    power_w: float | None = None,
    costs: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    if power_w is None and measurement.time_s is not None:
        power_w = measurement.energy_j / measurement.time_s
    row = {
        "board": info.id,
        "provenance": info.provenance,
        "power_mode": info.power_mode,
        "rails": info.rails,
        **{name: description.get(name) for name in DESCRIPTIVE},
        "workload": workload,
        "setting": setting_label(measurement.setting),
        "gpu_mhz": None if isinstance(measurement.setting, str) else measurement.setting,
        "repeat": measurement.repeat,
        "energy_j": measurement.energy_j,
        "energy_module_j": measurement.energy_module_j,
        "time_s": measurement.time_s,
        "power_w": power_w,
        "gpu_util_pct": measurement.gpu_util_pct,
        "gpu_mhz_mean": measurement.gpu_mhz_mean,
        "temp_c_max": measurement.temp_c_max,
        "gpu_util_ref_pct": util_ref_pct,
        "energy_noise_free_j": None if noise_free is None else noise_free.energy_j,
        "time_noise_free_s": None if noise_free is None else noise_free.time_s,
        **(costs or {}),
    }
    return {name: _text(value) for name, value in row.items()}


def utilisation_at(cells: list[Cell], reference_mhz: float | None) -> float | None:
    """Mean measured utilisation at the clock nearest to the reference, percent; None where a repeat has none.

    Without a reference it is the highest clock measured.
    """
    clocks = FrequencyTable(cell.setting for cell in cells if not isinstance(cell.setting, str))
    nearest = clocks.top if reference_mhz is None else clocks.nearest(reference_mhz)
    values = [m.gpu_util_pct for cell in cells if cell.setting == nearest for m in cell.repeats]
    known = [v for v in values if v is not None]
    return mean(known) if known and len(known) == len(values) else None


def cell_rows(
    info: BoardInfo, cells: list[Cell], reference_mhz: float | None, costs: Mapping[str, Any] | None = None
) -> Iterator[dict[str, str]]:
    """Rows of one workload's cells; `costs` are its features from operation counts, where they are asked for."""
    util = utilisation_at(cells, reference_mhz)
    for cell in cells:
        for measurement in cell.repeats:
            yield _row(info, cell.workload, cell.features, measurement, util, cell.noise_free, costs=costs)


def wants_costs(config: Config) -> bool:
    """Whether a tree may ask for features from operation counts; tables of others keep their columns."""
    return bool({*config.train.features, *config.train.regret.features} & set(COST_FEATURES))


def columns_of(config: Config) -> tuple[str, ...]:
    """Columns of the feature table."""
    return (*COLUMNS, *(c for c in COST_FEATURES if c not in COLUMNS)) if wants_costs(config) else COLUMNS


def costs_of(config: Config, root: Path, workload: Workload, method: str) -> dict[str, FeatureValue] | None:
    """Features from operation counts, of the modelled board named in `config`; None where nobody asks for them.

    Raises:
        InputError: the board has no constants file, from which utilisation is computed.
    """
    if not wants_costs(config):
        return None
    file = load_board_file(root / config.board.constants)
    mode = config.board.power_mode or file.power_mode
    return cost_features(workload, method, file, mode, config.features.reference_mhz)


def profiled_rows(config: Config, root: Path) -> Iterator[dict[str, str]]:
    """Rows of the cells that ``params.yaml`` expects; folders of other workloads are left alone.

    Raises:
        InputError: a cell is missing, damaged or of another protocol, or a file is there that nobody expects.
    """
    if not config.workloads:
        raise InputError(
            "There are no workloads in params.yaml.",
            "At least one was expected: they are listed in conf/workloads/.",
            "Run `make params`, or bring a sweep with `make repro EXPERIMENT=recorded DATA=FILE_OR_DIR`.",
        )
    info = board_measured(config, root) if config.board.kind == "jetson" else board_of(config, root).info
    settings = settings_in(config, info)
    for name, conf in config.workloads.items():
        workload = workload_of(name, conf)
        expected = {setting: fingerprint(info, workload, setting, config.sweep) for setting in settings}
        cells = load_cells(root / PROFILES / name, expected)
        costs = costs_of(config, root, workload, conf.method)
        yield from cell_rows(info, cells, config.features.reference_mhz, costs)


def board_measured(config: Config, root: Path) -> BoardInfo:
    """The real board that the expected cells were measured on, by what they say: it need not be there.

    Raises:
        InputError: no cells, cells of several boards or ways of measuring, or of another board or mode than asked for.
        BoardError: cells of before they said it, and the board is not there to be asked.
    """
    paths = [path for name in config.workloads for path in sorted((root / PROFILES / name).glob("*.json"))]
    if not paths:
        raise InputError(
            f"There are no cells of the expected workloads in {root / PROFILES}.",
            "Cells that were measured on a board were expected.",
            "Run `dvc repro` on the board, or copy its data/profiles here.",
        )
    found: dict[tuple[object, ...], tuple[Path, BoardInfo]] = {}
    for path in paths:
        with clear_os_errors(path, "read"):
            data = path.read_bytes()
        try:
            info = parse_cell(data).measured_on
        except (ValueError, RecursionError):
            continue  # loading the cells says what is wrong with it
        if info is None:
            return board_of(config, root).info
        key = (info.id, info.provenance, info.power_mode, info.rails, info.digest, tuple(info.table))
        found.setdefault(key, (path, info))
    if len(found) > 1:
        (one, first), (other, second) = list(found.values())[:2]
        raise InputError(
            f"{one} and {other} were measured on different boards, or differently: {first.id} in {first.power_mode} and"
            f" {second.id} in {second.power_mode}.",
            "Cells of one board and one way of measuring were expected.",
            "Run `dvc repro` on the board, which sets the others aside.",
        )
    if not found:
        return board_of(config, root).info
    ((_, info),) = found.values()
    for what, wanted, is_there in (
        ("id", config.board.id, info.id),
        ("power_mode", config.board.power_mode, info.power_mode),
    ):
        if wanted and wanted.lower() != is_there.lower():
            raise InputError(
                f"The cells in {root / PROFILES} are of {is_there}.",
                f"{wanted} was expected (board.{what}).",
                f"Correct board.{what} (`make params`), or bring the cells of that one.",
            )
    return info


def measured_table(
    config: Config, board: Board, protocol: SweepProtocol, path: Path, root: Path = Path()
) -> FeatureTable:
    """Measure every workload of `config` now, without cells on disk, and read the table back.

    Args:
        config: workloads, settings and reference clock.
        board: where to measure.
        protocol: repeats, steps and seed.
        path: where the table goes.
        root: repository root.
    """
    settings = settings_of(config, board)
    rows: list[dict[str, str]] = []
    for name, conf in config.workloads.items():
        workload = workload_of(name, conf)
        cells = [measure_cell(board, workload, s, protocol, part=conf.part) for s in settings]
        costs = costs_of(config, root, workload, conf.method)
        rows += cell_rows(board.info, cells, config.features.reference_mhz, costs)
    write_text(path, csv_text(columns_of(config), rows))
    return load_features(path)


def recorded_rows(config: Config, root: Path) -> Iterator[dict[str, str]]:
    """Rows of one board of a recorded sweep.

    Raises:
        InputError: the sweep is missing, not valid, or holds several boards and none was named.
    """
    board = RecordedBoard(root / config.board.data, config.board.id)
    for warning in board.warnings:
        log.warning("%s", warning)
    for workload in board.workloads():
        description = {name: workload.text(name) for name in DESCRIPTIVE}
        util = workload.gpu_util_pct(config.features.reference_mhz)
        for recorded in workload.rows:
            power_w = recorded.numbers.get("power_w")
            yield _row(board.info, workload.id, description, to_measurement(recorded), util, None, power_w)


def features(config: Config, root: Path) -> None:
    """Run the stage under a repository root."""
    rows = recorded_rows if config.board.kind == "recorded" else profiled_rows
    write_text(root / FEATURES, csv_text(columns_of(config), rows(config, root)))


def main() -> None:
    """Run the stage in the current folder."""
    features(load_params(), Path())


if __name__ == "__main__":
    sys.exit(run(main))
