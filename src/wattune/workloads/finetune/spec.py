"""What is fine-tuned on what, and how: one document that a worker, a command and a sweep share. Standard library only."""

from __future__ import annotations

import dataclasses
import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattune.core.errors import InputError
from wattune.io import is_folder, kind_of
from wattune.workloads.catalogue import (
    MODELS,
    TASKS,
    ModelSpec,
    TaskSpec,
    find_model,
    find_task,
    max_length_of,
)

KINDS = ("classification", "regression", "causal-lm")
METHODS = ("full", "lora", "bitfit")
PRECISIONS = ("fp32", "fp16", "bf16")
DEVICES = ("auto", "cpu", "cuda")

MADE_UP = "made-up"
"""Data set of sentences made up here, as long as the task's own (:mod:`wattune.workloads.finetune.madeup`)."""

DEFAULT_BATCH = 32
"""Examples per step where the catalogue says nothing: the default of the group's scripts (github.com/esainulab/slmdvfs)."""

_RATES = {"full": 2e-5, "lora": 1e-3, "bitfit": 1e-3}
"""Learning rates of the same scripts; DeBERTa's is below."""

_DEBERTA_RATE = 1e-5

GLUE = "nyu-mll/glue"

GLUE_COLUMNS: dict[str, tuple[str, ...]] = {
    "sst2": ("sentence",),
    "cola": ("sentence",),
    "mrpc": ("sentence1", "sentence2"),
    "stsb": ("sentence1", "sentence2"),
    "rte": ("sentence1", "sentence2"),
    "wnli": ("sentence1", "sentence2"),
    "qqp": ("question1", "question2"),
    "qnli": ("question", "sentence"),
    "mnli": ("premise", "hypothesis"),
}
"""Text columns of GLUE's configurations, from the card of huggingface.co/datasets/nyu-mll/glue; labels stand in ``label``."""


def looks_like_folder(name: str) -> bool:
    """Whether a model or data set is meant as a path of this machine, not as an id of the Hub."""
    return name.startswith(("/", "./", "../", "~")) or kind_of(Path(name).expanduser()) is not None


@dataclass(frozen=True)
class FinetuneSpec:
    """One fine-tuning job.

    What is empty or None takes the catalogue's value, else the default of the research group's scripts.

    Attributes:
        model: model id of the catalogue, an id of the Hub, or a local folder.
        task: task id of the catalogue; may stay empty where `path` names the data.
        name_or_path: the checkpoint where it is not the one that `model` names: an id of the Hub or a local folder.
        revision: of the checkpoint on the Hub.
        from_config: weights are random, and only the architecture (and, where there is one, the tokenizer) is taken.
        config: values of the Hugging Face configuration that replace the checkpoint's; with `from_config` only.
        trust_pickle: also load a checkpoint that has no safetensors.
        path: the data: a data set's id on the Hub, a folder of `load_from_disk`, a .csv, .tsv, .jsonl or .txt file, or ``made-up``;
            empty for the task's GLUE data.
        subset: configuration of a data set on the Hub that has several.
        split: what is trained on.
        validation_split: what is evaluated on; empty for ``validation`` (MNLI's matched one) where there is one.
        held_out: share of the training examples kept for evaluation, where there is no validation split.
        text_columns: one column, or the two of a sentence pair; for ``causal-lm`` the text, or prompt and answer.
        label_column: class or value.
        labels: outputs of the classifier; counted from the data where None.
        max_examples: train on the first so many.
        kind: ``classification``, ``regression`` or ``causal-lm``.
        method: ``full``, ``lora`` or ``bitfit``.
        rank: of LoRA.
        precision: ``fp32``, ``fp16``, ``bf16``, or ``auto`` for the best that the device can do; empty for the catalogue's where
            the device can do it.
        batch_size: examples per forward pass.
        accumulation: forward passes per step.
        max_length: longer examples are cut here, tokens.
        learning_rate: peak of the schedule.
        weight_decay: of AdamW; BitFit has none.
        warmup_ratio: share of the planned steps over which the rate rises.
        epochs: for which the schedule is planned; a run that is not stopped goes on after them at a rate of 0.
        max_steps: a run ends by itself after so many.
        seed: of weights that are not in the checkpoint, of dropout and of the order of examples.
        device: ``auto``, ``cpu`` or ``cuda``.
        deterministic: ask torch for kernels whose results repeat bit for bit.
        emulated: tree of a running `wattune emulate` that runs every step too, of the catalogue's workload
            (:mod:`wattune.workloads.finetune.emulated`); empty for none.
    """

    model: str = ""
    task: str = ""
    name_or_path: str = ""
    revision: str = ""
    from_config: bool = False
    config: Mapping[str, Any] = field(default_factory=dict, hash=False)
    trust_pickle: bool = False
    path: str = ""
    subset: str = ""
    split: str = "train"
    validation_split: str = ""
    held_out: float = 0.0
    text_columns: tuple[str, ...] = ()
    label_column: str = ""
    labels: int | None = None
    max_examples: int | None = None
    kind: str = ""
    method: str = "full"
    rank: int = 8
    precision: str = ""
    batch_size: int | None = None
    accumulation: int = 1
    max_length: int | None = None
    learning_rate: float | None = None
    weight_decay: float = 0.01
    warmup_ratio: float = 0.06
    epochs: float = 1.0
    max_steps: int | None = None
    seed: int = 42
    device: str = "auto"
    deterministic: bool = True
    emulated: str = ""

    @classmethod
    def from_dict(cls, document: Any) -> FinetuneSpec:
        """A job from a JSON object, checked.

        Raises:
            InputError: unknown keys, values of the wrong kind, or what :meth:`check` refuses.
        """
        if not isinstance(document, Mapping):
            raise InputError(
                "The job is not a JSON object.", 'For example {"model": "bert-base", "task": "sst2"}.'
            )
        known = {f.name: f for f in dataclasses.fields(cls)}
        values: dict[str, Any] = {}
        for key, value in document.items():
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                raise InputError(
                    f"'{key}' is no setting of a fine-tuning job.",
                    f"Known: {', '.join(known)}.",
                    f"Did you mean {close[0]}?" if close else "",
                )
            values[key] = _typed(key, str(known[key].type), value)
        return cls(**values).check()

    def to_dict(self) -> dict[str, Any]:
        """The job as a JSON object, from which :meth:`from_dict` makes the same."""
        document = dataclasses.asdict(self)
        document["config"] = dict(self.config)
        document["text_columns"] = list(self.text_columns)
        return document

    def check(self) -> FinetuneSpec:
        """Refuse what no run can come from, before anything is loaded; returns the job.

        Raises:
            InputError: unknown model or task, a folder or file that is not there, a value out of its range.
        """
        if not self.model and not self.name_or_path:
            raise InputError(
                "No model was named.",
                "A model of the catalogue, an id of the Hub or a folder was expected.",
                "For example `--model bert-base`.",
            )
        if not self.task and not self.path:
            raise InputError(
                "No data were named.",
                "A task of the catalogue, or a path, was expected.",
                "For example `wattune finetune bert-base sst2`, or `--data my.csv`.",
            )
        checkpoint = self.checkpoint
        if looks_like_folder(checkpoint) and not is_folder(Path(checkpoint).expanduser()):
            raise InputError(
                f"There is no folder {checkpoint}.",
                "A folder with config.json, a tokenizer and model.safetensors was expected.",
                "Give the folder, or an id of the Hub.",
            )
        _ = self.job  # refuses an unknown task
        if (
            self.path != MADE_UP
            and _is_file_name(self.path)
            and kind_of(Path(self.path).expanduser()) is None
        ):
            raise InputError(
                f"There is no data file {self.path}.",
                "A .csv, .tsv, .jsonl or .txt file, or a folder of load_from_disk, was expected.",
                "Check the path.",
            )
        if self.path == MADE_UP and self.job is None:
            raise InputError(
                "Made-up sentences need a task whose lengths they take.",
                f"One of {', '.join(TASKS)} was expected.",
                "Name one as the task.",
            )
        if self.emulated and (self.listed is None or self.job is None):
            raise InputError(
                "An emulated board runs workloads of the catalogue only.",
                "A model and a task of it were expected beside `emulated`.",
                "Name them; the checkpoint and the data may be others (name_or_path, path).",
            )
        if self.config and not self.from_config:
            raise InputError(
                "Values of the configuration were given for a checkpoint that has its own.",
                "They go with random weights only.",
                "Set from_config, or leave config out.",
            )
        for name, allowed in (
            ("kind", ("", *KINDS)),
            ("method", METHODS),
            ("precision", ("", "auto", *PRECISIONS)),
            ("device", DEVICES),
        ):
            value = getattr(self, name)
            if value not in allowed:
                raise InputError(
                    f"{name} is '{value}'.", f"One of {', '.join(a for a in allowed if a)} was expected."
                )
        for name, low, high in (
            ("batch_size", 1, 1_000_000),
            ("accumulation", 1, 100_000),
            ("max_length", 2, 1_000_000),
            ("rank", 1, 4096),
            ("labels", 1, 1_000_000),
            ("max_examples", 1, 1e12),
            ("max_steps", 1, 1e12),
            ("learning_rate", 0.0, 10.0),
            ("weight_decay", 0.0, 10.0),
            ("warmup_ratio", 0.0, 1.0),
            ("epochs", 1e-6, 1e6),
            ("held_out", 0.0, 0.9),
            ("seed", 0, 2**32 - 1),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise InputError(f"{name} is {value}.", f"A value from {low:g} to {high:g} was expected.")
        if len(self.text_columns) > 2:
            raise InputError(
                f"{len(self.text_columns)} text columns were named.", "One, or two for pairs, was expected."
            )
        return self

    @property
    def listed(self) -> ModelSpec | None:
        """The catalogue's entry of the model, None for others."""
        return MODELS.get(self.model.strip().lower())

    @property
    def job(self) -> TaskSpec | None:
        """The catalogue's entry of the task, None where data of one's own name no task.

        Raises:
            InputError: a task that the catalogue does not know.
        """
        return find_task(self.task) if self.task else None

    @property
    def checkpoint(self) -> str:
        """Id on the Hub, or folder, of weights, tokenizer and configuration.

        Raises:
            InputError: neither of the catalogue, nor an id of the Hub, nor a folder.
        """
        if self.name_or_path:
            return self.name_or_path
        if self.listed is not None:
            return self.listed.hf_id
        if "/" in self.model or looks_like_folder(self.model):
            return self.model
        return find_model(self.model).hf_id  # refuses it, and names what is close

    @property
    def needs_no_checkpoint(self) -> bool:
        """Whether the catalogue's shape with random weights is all that is needed of the model."""
        return self.from_config and self.listed is not None and not self.name_or_path

    @property
    def hub_data(self) -> str:
        """Id of the data set on the Hub that is needed; empty where the data are a file, a folder or made up."""
        if not self.path:
            return GLUE
        here = self.path == MADE_UP or _is_file_name(self.path) or looks_like_folder(self.path)
        return "" if here else self.path

    @property
    def fetch_words(self) -> str:
        """What to say after `wattune fetch` for what this job needs of the Hub."""
        model = self.model if self.listed is not None and not self.name_or_path else self.checkpoint
        data = (self.path or self.task) if self.hub_data else ""
        return f"{model} {data}".rstrip()

    @property
    def task_kind(self) -> str:
        """What is learnt: as said, else as the task has it, else a class where a label column is named, else text."""
        if self.kind:
            return self.kind
        if self.job is not None:
            return "regression" if self.job.labels == 1 else "classification"
        return "classification" if self.label_column else "causal-lm"

    @property
    def examples_per_pass(self) -> int:
        """Examples per forward pass."""
        if self.batch_size is not None:
            return self.batch_size
        return self.listed.batch_size if self.listed is not None else DEFAULT_BATCH

    @property
    def longest(self) -> int:
        """Longest sequence kept, tokens."""
        if self.max_length is not None:
            return self.max_length
        return max_length_of(self.job) if self.job is not None else 256

    @property
    def peak_rate(self) -> float:
        """Peak learning rate."""
        if self.learning_rate is not None:
            return self.learning_rate
        if self.method == "full" and self.listed is not None and self.listed.family == "deberta-v2":
            return _DEBERTA_RATE
        return _RATES[self.method]

    @property
    def name(self) -> str:
        """What it is called: model and data, without their folders."""
        model = self.listed.id if self.listed is not None else Path(self.model or self.name_or_path).name
        data = self.job.id if self.job is not None else Path(self.path).stem
        return f"{model}-{data}"


def _is_file_name(path: str) -> bool:
    return Path(path).suffix.lower() in (".csv", ".tsv", ".jsonl", ".json", ".txt") or path.startswith(
        ("/", "./", "../", "~")
    )


def _typed(key: str, kind: str, value: Any) -> Any:
    """A value as the field wants it."""
    if value is None and ("None" in kind or kind == "str"):
        return "" if kind == "str" else None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if kind.startswith("bool"):
        good = isinstance(value, bool)
    elif kind.startswith("int"):
        good = whole
    elif kind.startswith("float"):
        good = whole or isinstance(value, float)
    elif kind.startswith("tuple"):
        value = (value,) if isinstance(value, str) and value else value
        good = isinstance(value, (list, tuple)) and all(isinstance(v, str) and v for v in value)
        value = tuple(value) if good else value
    elif kind.startswith("Mapping"):
        good = isinstance(value, Mapping)
    else:
        value = os.fspath(value) if isinstance(value, os.PathLike) else value
        good = isinstance(value, str)
    if not good:
        raise InputError(f"{key} is {value!r}.", f"A value of kind {kind.split(' |')[0]} was expected.")
    return value
