"""Stage `profile`: sweep the GPU clock for one workload, one file per setting.

It runs once per workload, so it imports no more than it needs.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from difflib import get_close_matches
from pathlib import Path

from wattune import terminal
from wattune.boards.base import Board, BoardInfo
from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.whole_log import LogParts, WholeLogBoard
from wattune.config import Config, WorkloadConf, load_params
from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.settings import Setting, setting_label
from wattune.core.stats import mean
from wattune.core.workload import Workload
from wattune.profiling.cells import Cell, parse_cell
from wattune.profiling.progress import SweepProgress
from wattune.profiling.sweep import LiveBoard, SweepResult, sweep, sweep_settings
from wattune.stages._main import run
from wattune.terminal import Column, Table, figures
from wattune.workloads.build import build_evaluation, build_workload
from wattune.workloads.catalogue import find_task

log = logging.getLogger(__name__)

PROFILES = Path("data/profiles")
SUPERSEDED = Path("data/superseded")


def board_of(config: Config, root: Path = Path()) -> Board:
    """The board `config` measures on.

    Raises:
        InputError: a recorded board, which cannot be swept, or constants of another board.
        BoardError: a real board that is not there, or not fit to be measured.
    """
    conf = config.board
    if conf.kind == "jetson":
        return _jetson(config, root)
    if conf.kind != "virtual":
        raise InputError(
            f"A {conf.kind} board cannot be swept.",
            "Its settings were measured by others; the pipeline starts at `features`.",
            "Run `make repro EXPERIMENT=recorded DATA=FILE`, or `make params` for the modelled board.",
        )
    board = VirtualBoard(root / conf.constants, power_mode=conf.power_mode or None)
    if board.info.id != conf.id:
        raise InputError(
            f"There is no board '{conf.id}' in {conf.constants}.",
            f"That file describes '{board.info.id}'.",
            "Correct conf/board/ and run `make params`.",
        )
    if config.sweep.meter == "whole-log":
        return WholeLogBoard(
            board,
            lambda workload: log_parts(config.workloads[workload.id]),
            left_pinned=config.sweep.baseline == "left-pinned",
        )
    return board


def _jetson(config: Config, root: Path) -> Board:
    """A real board, or an emulated one's tree."""
    from wattune.boards.jetson.root import VARIABLE
    from wattune.boards.jetson.sysfs import Sysfs
    from wattune.governing.client import open_lease
    from wattune.profiling.finetune_load import FinetuneLoad
    from wattune.profiling.jetson import JetsonBoard
    from wattune.profiling.load import CommandLoad, EmulatedLoad, ExternalLoad, Load

    conf = config.board
    if config.sweep.meter != "steady":
        raise InputError(
            f"sweep.meter is {config.sweep.meter} on a real board.",
            "`steady` was expected: the whole-log way is modelled only.",
            "Remove sweep.meter, or use experiment paper-protocol.",
        )
    given = conf.root or os.environ.get(VARIABLE) or "/"
    tree = Path(os.path.abspath(root / given))  # noqa: PTH100  # links in its own path stay as typed
    if not tree.is_dir():
        raise InputError(
            f"The tree {given} is not a folder.",
            "A folder with sys/ and proc/ in it was expected (board.root or WATTUNE_ROOT).",
            "Make one with `wattune emulate DIR`, or leave both away for this machine.",
        )
    load: Load
    if conf.load.kind == "finetune":
        load = FinetuneLoad(
            conf.load.finetune,
            conf.load.jobs,
            more=lambda workload: {"max_length": config.workloads[workload.id].max_length},
            block_s=conf.live.window.block_s,
            start_s=conf.live.start_s,
            stall_s=conf.live.stall_s,
            emulated=tree if conf.load.emulated_steps else None,
        )
    elif conf.load.kind == "external":
        steps_file = root / conf.load.steps_file if conf.load.steps_file else tree / "run/wattune/steps"
        load = ExternalLoad(steps_file)
    elif conf.load.kind == "emulated":
        load = EmulatedLoad(tree)
    else:
        load = CommandLoad(
            conf.load.command,
            lambda workload: {"max_length": config.workloads[workload.id].max_length},
        )
    return JetsonBoard(
        Sysfs(tree), load, conf.live, board_id=conf.id, power_mode=conf.power_mode, open_lease=open_lease
    )


def log_parts(conf: WorkloadConf) -> LogParts:
    """What the log of a run of this workload holds beside training."""
    task = find_task(conf.task)
    evaluation = build_evaluation(conf.model, conf.task, precision=conf.precision, max_length=conf.max_length)
    return LogParts(task.rows + task.validation_rows, evaluation)


def settings_of(config: Config, board: Board) -> list[Setting]:
    """As :func:`settings_in`, of a board that is there."""
    return settings_in(config, board.info)


def settings_in(config: Config, info: BoardInfo) -> list[Setting]:
    """The settings `config` asks for, as the board's table writes them.

    Raises:
        InputError: a clock that the board does not have.
    """
    table = info.table
    wanted = sweep_settings(config.sweep.clocks_mhz, table, config.sweep.maxn)
    try:
        settings = [s if isinstance(s, str) else table.match(s) for s in wanted]
    except InputError as error:
        raise InputError(
            f"sweep.clocks_mhz does not fit {info.id} in the power mode {info.power_mode}: {error.what}",
            error.expected,
            "Take all clocks of the board: `make params ARGS='sweep=all_clocks ...'`, or correct conf/sweep/.",
        ) from error
    if len(set(settings)) != len(settings):
        raise InputError(f"sweep.clocks_mhz names a clock twice: {config.sweep.clocks_mhz}.")
    return settings


def workload_of(name: str, conf: WorkloadConf) -> Workload:
    """The workload of one entry of ``params.yaml``."""
    return build_workload(
        conf.model,
        conf.task,
        batch_size=conf.batch_size,
        precision=conf.precision,
        max_length=conf.max_length,
        method=conf.method,
        tokens=conf.tokens,
        id=name,
    )


def find_workload(config: Config, name: str) -> tuple[str, WorkloadConf]:
    """The entry of ``params.yaml`` named `name`, in whichever case.

    Raises:
        InputError: there is none; close names are listed.
    """
    by_lower = {known.lower(): known for known in config.workloads}
    known = by_lower.get(name.lower())
    if known is None:
        near = get_close_matches(name.lower(), by_lower, n=3)
        raise InputError(
            f"There is no workload '{name}' in params.yaml.",
            f"Did you mean {' or '.join(by_lower[n] for n in near)}?" if near else "Ids are <model>-<task>.",
            "The ids are listed in conf/workloads/.",
        )
    return known, config.workloads[known]


def profile(
    config: Config,
    name: str,
    folder: Path,
    superseded: Path,
    progress: SweepProgress | None = None,
    board: Board | None = None,
) -> SweepResult:
    """Bring the folder of one workload up to the protocol of `config`, on `board` where it is known already."""
    board = board_of(config) if board is None else board
    name, conf = find_workload(config, name)
    return sweep(
        board,
        workload_of(name, conf),
        settings_of(config, board),
        config.sweep,
        folder / name,
        superseded,
        part=conf.part,
        progress=progress,
    )


def sweep_outside_pipeline(names: Sequence[str], folder: Path, *, export: Path | None = None) -> list[Path]:
    """`wattune sweep`: profile workloads into a folder of their own, and export them as a sweep CSV.

    Returns:
        The folders of cells, and the export.
    """
    from wattune.boards.sweepfile import export_rows, write_sweep

    config = load_params()
    board = board_of(config)
    info = board.info
    found = [find_workload(config, name)[0] for name in names]  # all names are checked before anything runs
    written, cells, results = [], [], []
    for_people = terminal.draws(sys.stderr)
    with terminal.Line() as line:
        progress = None
        if for_people:
            progress = SweepProgress(line, len(found) * len(settings_of(config, board)), info.provenance)
        for name in found:
            result = profile(config, name, folder, folder / ".superseded", progress)
            if not for_people:
                log.info(
                    "%s: %d settings measured, %d there already.",
                    name,
                    len(result.measured),
                    len(result.kept),
                )
            written.append(folder / name)
            mine = [parse_cell(path.read_bytes()) for path in sorted((folder / name).glob("*.json"))]
            cells += mine
            results.append((result, workload_of(name, config.workloads[name]), mine))
    if shown := terminal.rendered([_summary(info, results)], sys.stderr):
        sys.stderr.write(shown + "\n")
    if export is not None:
        rows = export_rows((info, cell.workload, cell.features, m) for cell in cells for m in cell.repeats)
        write_sweep(rows, export)
        written.append(export)
    return written


def _summary(info: BoardInfo, results: Sequence[tuple[SweepResult, Workload, Sequence[Cell]]]) -> Table:
    """What a sweep found, a row for each workload: its setting of least energy (mean of the repeats) against MAXN."""
    curves = [EnergyCurve({cell.setting: _mean_of(cell) for cell in cells}) for _, _, cells in results]
    steps = [workload.steps_per_epoch for _, workload, _ in results]
    energies = figures([curve.energy_j(curve.oracle) / n for curve, n in zip(curves, steps, strict=True)])
    rows = []
    for (result, workload, _), curve, energy in zip(results, curves, energies, strict=True):
        best = curve.oracle
        saving, slowdown = curve.saving_pct(best), curve.slowdown_pct(best)
        rows.append(
            [
                workload.id,
                setting_label(best),
                energy,
                "unknown" if saving is None else f"{saving:.2f}",
                "unknown" if slowdown is None else f"{slowdown:+.1f}",
                str(len(result.measured)),
                str(len(result.kept) + len(result.taken_back)),
            ]
        )
    numbers = ("best MHz", "energy (J/step)", "saving %", "slowdown %", "settings measured", "there already")
    columns = [Column("workload"), *(Column(name, number=True) for name in numbers)]
    title = f"Settings of least energy on {info.id} in {info.power_mode}, {info.provenance} (rails {info.rails}); against MAXN"
    return Table(columns, rows, title)


def _mean_of(cell: Cell) -> Point:
    """A cell as one point of a curve; its time is unknown where that of a repeat is."""
    times = [m.time_s for m in cell.repeats if m.time_s is not None]
    energy_j = mean([m.energy_j for m in cell.repeats])
    return Point(energy_j, mean(times) if len(times) == len(cell.repeats) else None)


def workload_argument(stage: str) -> str:
    """The workload that a stage was started for.

    Raises:
        InputError: none was named, or more than one.
    """
    if len(sys.argv) != 2:
        raise InputError(
            "One workload id was expected.",
            hint=f"For example: python -m wattune.stages.{stage} bert-base-sst2",
        )
    return sys.argv[1]


def main() -> None:
    """Run the stage for the workload named on the command line."""
    name = workload_argument("profile")
    config = load_params(only=name)
    board = board_of(config)
    with terminal.Line() if isinstance(board, LiveBoard) else nullcontext() as line:
        progress = None
        if line is not None and terminal.draws(sys.stderr):
            progress = SweepProgress(line, len(settings_of(config, board)), board.info.provenance)
        result = profile(config, name, PROFILES, SUPERSEDED, progress, board)
    log.info(
        "%d settings measured, %d there already.",
        len(result.measured),
        len(result.kept) + len(result.taken_back),
    )


if __name__ == "__main__":
    sys.exit(run(main))
