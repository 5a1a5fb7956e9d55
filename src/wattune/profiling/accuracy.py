"""Does the clock touch what a model learns? Whole runs at several settings, from one beginning, held against each other bit for bit.

The paper (arXiv 2607.05933) fine-tunes at each of its clocks and finds the accuracy unchanged. Here the same seed, data, order and
software are used at every setting, so that on a device that computes the same twice nothing may differ: no loss of any step, and
nothing that the validation split says afterwards. Energy is not measured in these runs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from wattune.core.errors import InputError
from wattune.core.settings import MAXN, Setting, setting_label
from wattune.profiling.finetune_load import FinetuneLoad
from wattune.profiling.jetson import JetsonBoard


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """One whole run.

    Attributes:
        setting: the clock it was trained at, or ``maxn``.
        steps: optimizer steps.
        time_s: from the first step's beginning to the last one's end, with what was begun anew in smaller batches.
        losses: of every step: first, last, and digests of their bits.
        evaluation: ``accuracy`` (classes), ``pearson`` (values), ``loss`` and ``examples`` of the validation split; None where
            there is none.
        batch_size: examples per forward pass; `accumulation` passes a step.
        pin_held: whether the clock was seen to follow the pin; None for ``maxn``, and where nothing could be seen.
        computes_with: versions and device or threads of the process; None where it does not say.
    """

    setting: Setting
    steps: int
    time_s: float
    losses: Mapping[str, Any]
    evaluation: Mapping[str, Any] | None
    batch_size: int
    accumulation: int
    pin_held: bool | None
    computes_with: str | None

    def as_json(self) -> dict[str, Any]:
        """As a plain document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Any) -> TrainedRun:
        """Back again.

        Raises:
            ValueError: it is damaged.
        """
        try:
            run = cls(**document)
        except TypeError as error:
            raise ValueError(str(error)) from error
        whole = (
            (run.setting == MAXN or type(run.setting) is float)
            and type(run.steps) is type(run.batch_size) is type(run.accumulation) is int
            and isinstance(run.losses, Mapping)
            and isinstance(run.losses.get("digest"), str)
            and (run.evaluation is None or isinstance(run.evaluation, Mapping))
        )
        if not whole:
            raise ValueError("a value of another kind")
        return run


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the runs have to say together.

    Attributes:
        same_losses: whether every loss of every run is the same, bit for bit; None where runs cannot be compared.
        same_evaluation: whether the validation split says the same of every one; None as well where there is none.
        untouched: both; None where neither is known.
        text: one or two sentences.
    """

    same_losses: bool | None
    same_evaluation: bool | None
    untouched: bool | None
    text: str


def load_of(board: JetsonBoard) -> FinetuneLoad:
    """The fine-tuning process of a board.

    Raises:
        InputError: something else runs on it.
    """
    if not isinstance(board.load, FinetuneLoad):
        raise InputError(
            "What runs on the board is not this project's fine-tuning process, so nobody says its losses.",
            "board.load.kind=finetune was expected.",
            "Set it in conf/board/, or take the workload out of accuracy.workloads.",
        )
    return board.load


def computes_with(board: JetsonBoard) -> str | None:
    """What the running process computes with, as it says itself."""
    said = load_of(board).answered.facts.get("computes_with")
    return None if said is None else str(said)


def train_at(board: JetsonBoard, setting: Setting, steps: int) -> TrainedRun:
    """Train from the beginning at a setting and look at the model; the board is prepared.

    Raises:
        SettingFailedError: the board is too hot for the clock.
        BoardError: the run was lost, or the clock was.
    """
    load = load_of(board)
    board.hold(setting)
    began_s = load.begin(f"accuracy {setting_label(setting)}", board.watch, steps=steps)
    ended_s = began_s
    while (load.steps() or 0) < steps:
        ended_s = load.report(board.watch).t_s
    losses, (batch_size, accumulation) = load.trajectory.as_json(), load.batch
    load.end()
    evaluation = load.evaluate(board.watch)
    pin = board.pin()
    return TrainedRun(
        setting, steps, ended_s - began_s, losses, evaluation, batch_size, accumulation,
        None if pin is None else pin["verified"], computes_with(board),
    )  # fmt: skip


def compare_runs(runs: Sequence[TrainedRun]) -> Verdict:
    """Hold whole runs of one workload against each other."""
    labels = [setting_label(run.setting) for run in runs]
    if len(runs) < 2:
        return Verdict(None, None, None, "Fewer than two settings were run, so there is nothing to compare.")
    if len(sizes := {(run.batch_size, run.accumulation) for run in runs}) > 1:
        said = ", ".join(f"{batch} x {pieces}" for batch, pieces in sorted(sizes))
        return Verdict(
            None, None, None,
            f"Memory was short at times (batches of {said}), and sums in other pieces differ in their last bits: not comparable.",
        )  # fmt: skip
    if len(how := {str(run.computes_with) for run in runs}) > 1:
        return Verdict(
            None, None, None, f"The runs were made with different software or threads ({'; '.join(sorted(how))}): not comparable."
        )  # fmt: skip
    if len(counts := {run.steps for run in runs}) > 1:
        return Verdict(None, None, None, f"The runs have different steps ({sorted(counts)}): not comparable.")
    odd_losses = _odd(labels, [run.losses["digest"] for run in runs])
    said_of = [None if run.evaluation is None else tuple(sorted(run.evaluation.items())) for run in runs]
    known = all(one is not None for one in said_of)
    odd_evaluation = _odd(labels, said_of) if known else []
    text = f"The losses of all {runs[0].steps} steps are the same, bit for bit, at {', '.join(labels)}."
    if odd_losses:
        text = f"The losses of {runs[0].steps} steps differ: {_between(labels, odd_losses)}."
    if not known:
        text += " There is no validation split to look at."
    elif odd_evaluation:
        text += f" What the validation split says differs: {_between(labels, odd_evaluation)} ({_figures(labels, runs)})."
    else:
        text += f" The validation split says the same of all: {_of(runs[0].evaluation or {})}."
    if odd_losses:
        text += " `wattune finetune --check` tells whether the device computes the same twice at one clock."
    same_evaluation = not odd_evaluation if known else None
    return Verdict(not odd_losses, same_evaluation, not odd_losses and same_evaluation is not False, text)


def _between(labels: Sequence[str], odd: Sequence[str]) -> str:
    if len(labels) == 2:
        return f"{labels[0]} and {labels[1]} do not agree"
    return f"{', '.join(odd)} not as most of {', '.join(labels)}"


def _odd(labels: Sequence[str], values: Sequence[Any]) -> list[str]:
    """The settings whose value is not that of most."""
    usual = Counter(values).most_common(1)[0][0]
    return [label for label, value in zip(labels, values, strict=True) if value != usual]


def _of(evaluation: Mapping[str, Any]) -> str:
    for name, text in (
        ("accuracy", "accuracy {:.4f}"),
        ("pearson", "Pearson {:.4f}"),
        ("loss", "loss {:.6g}"),
    ):
        if evaluation.get(name) is not None:
            return text.format(evaluation[name]) + f" on {evaluation['examples']} examples"
    return "nothing"


def _figures(labels: Sequence[str], runs: Sequence[TrainedRun]) -> str:
    return "; ".join(f"{label}: {_of(run.evaluation or {})}" for label, run in zip(labels, runs, strict=True))
