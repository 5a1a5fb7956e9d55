"""Stage `accuracy`, optional: whole runs of a workload at several settings, to see that the clock touches nothing that is learnt.

It exists for the workloads that ``accuracy.workloads`` names, and trains each of them once per setting. A run that is done is kept:
where the stage is interrupted, the same command goes on with the next setting; where the job or the board is another, the runs are
moved to ``data/superseded/accuracy/`` and taken back when the old ones return.
"""

from __future__ import annotations

import logging
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattune.config import Config, load_params
from wattune.core.errors import InputError
from wattune.core.settings import MAXN, Setting, setting_label
from wattune.io import clear_os_errors, read_json, sha256_of, write_json
from wattune.profiling.accuracy import TrainedRun, compare_runs, computes_with, load_of, train_at
from wattune.profiling.jetson import JetsonBoard
from wattune.stages._main import run
from wattune.stages.profile import board_of, find_workload, settings_of, workload_argument, workload_of

log = logging.getLogger(__name__)

RUNS = Path("data/accuracy")
SUPERSEDED = Path("data/superseded/accuracy")
SCHEMA_VERSION = 1


def settings_to_compare(config: Config, board: JetsonBoard) -> list[Setting]:
    """MAXN and the clocks of ``accuracy.clocks_mhz``; the lowest and the highest of the sweep where it names none.

    Raises:
        InputError: a clock that the board does not have.
    """
    table = board.info.table
    try:
        asked = [table.match(mhz) for mhz in config.accuracy.clocks_mhz]
    except InputError as error:
        raise InputError(
            f"accuracy.clocks_mhz does not fit {board.info.id}: {error.what}",
            error.expected,
            "Correct conf/ and run `make params`.",
        ) from error
    swept = sorted(s for s in settings_of(config, board) if not isinstance(s, str))
    return [MAXN, *dict.fromkeys(asked or [swept[0], swept[-1]])]


def check_accuracy(
    config: Config, name: str, board: JetsonBoard, path: Path, superseded: Path
) -> dict[str, Any]:
    """Bring the document of one workload up to date, a run at a time.

    Args:
        config: ``params.yaml``.
        name: the workload.
        board: the board, on which the fine-tuning process runs.
        path: of the document.
        superseded: where documents go whose runs were made otherwise, and damaged ones.

    Returns:
        The document: the runs and what they say together.

    Raises:
        InputError: no such workload or clock, or something else than the fine-tuning process runs.
        BoardError: the board is unfit, or a run was lost; finished runs stay.
    """
    name, conf = find_workload(config, name)
    workload, load = workload_of(name, conf), load_of(board)
    settings, seed = settings_to_compare(config, board), config.sweep.seed
    job = {key: value for key, value in load.spec_of(workload, seed).items() if key != "emulated"}
    about: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "workload": name,
        "board": board.info.id,
        "power_mode": board.info.power_mode,
        "provenance": board.info.provenance,
        "seed": seed,
        "asked_steps": config.accuracy.steps,
        "load": load.text,
        "job": job,
    }
    mark = sha256_of({**about, "digest": board.info.digest})
    runs = _kept(path, superseded, mark)
    missing = [setting for setting in settings if setting not in runs]
    if missing:
        with board.prepared(workload, missing, seed):
            now = computes_with(board)
            if others := [one for one in runs.values() if one.computes_with != now]:
                log.warning(
                    "Earlier runs were made with %s, and this process computes with %s: they are made again.",
                    others[0].computes_with, now,
                )  # fmt: skip
                _aside(
                    path,
                    superseded / f"{path.stem}-{mark[:12]}-{sha256_of(others[0].computes_with)[:8]}.json",
                )
                runs = {}
                missing = settings
            steps = config.accuracy.steps or math.ceil(load.answered.epoch.steps * job["epochs"])
            for setting in missing:
                log.info("%s: %d steps at %s.", name, steps, setting_label(setting))
                runs[setting] = train_at(board, setting, steps)
                write_json(path, _document(about, mark, settings, runs))
    document = _document(about, mark, settings, runs)
    write_json(path, document)
    return document


def _document(
    about: dict[str, Any], mark: str, settings: Sequence[Setting], runs: dict[Setting, TrainedRun]
) -> dict[str, Any]:
    """Also with the runs at settings that are no longer asked for."""
    done = [runs[setting] for setting in dict.fromkeys([*settings, *runs]) if setting in runs]
    verdict = compare_runs(done)
    return about | {
        "mark": mark,
        "complete": all(setting in runs for setting in settings),
        "runs": [one.as_json() for one in done],
        "same_losses": verdict.same_losses,
        "same_evaluation": verdict.same_evaluation,
        "untouched": verdict.untouched,
        "text": verdict.text,
    }


def _kept(path: Path, superseded: Path, mark: str) -> dict[Setting, TrainedRun]:
    """The runs of an earlier start that still count; other documents are put aside."""
    runs = None
    if path.is_file():
        found, runs = _read(path)
        if found == mark and runs is not None:
            return runs
        aside = superseded / f"{path.stem}-{found[:12] if runs is not None else 'damaged'}.json"
        _aside(path, aside)
        why = "cannot be read" if runs is None else "was made under other conditions"
        log.warning("%s %s; it is in %s now.", path, why, aside)
    earlier = superseded / f"{path.stem}-{mark[:12]}.json"
    if earlier.is_file():
        found, runs = _read(earlier)
        if found == mark and runs is not None:
            with clear_os_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                earlier.replace(path)
            log.info("%s is taken back from %s.", path, earlier)
            return runs
    return {}


def _read(path: Path) -> tuple[str, dict[Setting, TrainedRun] | None]:
    """Mark and runs of a document; no runs where it is damaged."""
    try:
        document = read_json(path, "The runs")
        runs = [TrainedRun.from_json(one) for one in document["runs"]]
        return str(document["mark"]), {one.setting: one for one in runs}
    except (InputError, KeyError, TypeError, ValueError):
        return "", None


def _aside(path: Path, aside: Path) -> None:
    with clear_os_errors(aside):
        aside.parent.mkdir(parents=True, exist_ok=True)
        path.replace(aside)


def main() -> None:
    """Run the stage for the workload named on the command line."""
    asked = workload_argument("accuracy")
    config = load_params(only=asked)
    board = board_of(config)
    if not isinstance(board, JetsonBoard):
        raise InputError(
            f"A {config.board.kind} board trains nothing.",
            "A board on which the fine-tuning process runs was expected.",
            "For example `make params EXPERIMENT=jetson`, with board.load.kind=finetune (docs/finetuning.md).",
        )
    name, _ = find_workload(config, asked)
    document = check_accuracy(config, name, board, RUNS / f"{name}.json", SUPERSEDED)
    level = logging.INFO if document["untouched"] else logging.WARNING
    log.log(level, "%s (%s): %s", name, document["provenance"], document["text"])


if __name__ == "__main__":
    sys.exit(run(main))
