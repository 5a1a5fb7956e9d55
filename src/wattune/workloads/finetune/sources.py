"""Where examples come from: GLUE, a data set of the Hub, a folder of `load_from_disk`, a file, or made-up sentences."""

from __future__ import annotations

import csv
import io
import json
import logging
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.errors import BoardError, InputError
from wattune.io import is_folder, kind_of, read_text
from wattune.workloads.finetune import hub, madeup
from wattune.workloads.finetune.spec import GLUE, GLUE_COLUMNS, MADE_UP, FinetuneSpec

log = logging.getLogger(__name__)

MOST_CLASSES = 1000
"""A label above this, and above the number of examples, is a slip: so many outputs would fill the memory."""

UNKNOWN = ("nan", "na", "n/a", "<na>", "null", "none", "nil", "?", "-")
"""What stands in files for a label that nobody knows."""

MANY_CLASSES = 20
"""With more examples than that, and half as many classes, it is said."""

_PROMPT_PAIRS = (
    ("prompt", "completion"),
    ("prompt", "response"),
    ("instruction", "output"),
    ("question", "answer"),
)
_TEXT_NAMES = ("text", "sentence", "content")
_VALIDATION_NAMES = ("validation", "validation_matched", "dev", "test")


@dataclass(frozen=True)
class Examples:
    """Examples as text.

    Attributes:
        first: texts, first sentences of pairs, or prompts.
        second: second sentences, or answers; None where there are none.
        labels: classes from 0, or values; None for text.
        n_labels: outputs of the classifier; 1 for values, 0 for text.
        source: where they come from.
        chats: conversations in place of `first` and `second`: lists of ``{"role", "content"}``.
    """

    first: list[str]
    second: list[str] | None
    labels: list[int] | list[float] | None
    n_labels: int
    source: str
    chats: list[list[dict[str, str]]] | None = None

    def __len__(self) -> int:
        return len(self.chats if self.chats is not None else self.first)

    def take(self, which: Sequence[int]) -> Examples:
        """Some of them, in the order given."""
        return Examples(
            [self.first[i] for i in which] if self.chats is None else [],
            None if self.second is None else [self.second[i] for i in which],
            None if self.labels is None else [self.labels[i] for i in which],
            self.n_labels,
            self.source,
            None if self.chats is None else [self.chats[i] for i in which],
        )


def load(spec: FinetuneSpec, tokenizer: str, specials: int) -> tuple[Examples, Examples | None]:
    """Training examples, and those to evaluate on where there are any.

    Args:
        spec: the job.
        tokenizer: which published lengths made-up sentences take, ``bert`` or ``pythia``.
        specials: tokens that the tokenizer adds to an example.

    Raises:
        InputError: no such data, columns that are not there, empty texts, labels out of range.
        BoardError: they are not in the cache and there is no network.
    """
    validation: Examples | None
    if spec.path == MADE_UP:
        train, validation = _made_up(spec, tokenizer, specials)
    else:
        splits = _splits(spec)
        train = _examples(spec, splits[0], _source(spec))
        validation = None if splits[1] is None else _examples(spec, splits[1], _source(spec), train.n_labels)
    if spec.max_examples is not None and spec.max_examples < len(train):
        train = train.take(range(spec.max_examples))
    if spec.held_out > 0.0 and (validation is None or not spec.validation_split):
        order = list(range(len(train)))
        random.Random(spec.seed).shuffle(order)
        cut = max(1, round(len(order) * spec.held_out))
        if cut >= len(order):
            raise InputError(
                f"{len(order)} examples leave none to train on when {spec.held_out:g} of them are held out.",
                "More examples, or a smaller share, were expected.",
            )
        validation, train = train.take(sorted(order[:cut])), train.take(sorted(order[cut:]))
    return train, validation


def _source(spec: FinetuneSpec) -> str:
    return spec.path or f"{GLUE}/{spec.job.glue if spec.job is not None else ''}"


def _made_up(spec: FinetuneSpec, tokenizer: str, specials: int) -> tuple[Examples, Examples]:
    job = spec.job
    assert job is not None
    rows = min(job.rows, spec.max_examples or job.rows)
    parts = []
    for count, seed in ((rows, 0), (min(rows, job.validation_rows), 1)):
        first, second, labels = madeup.sentences(job, tokenizer, count, seed, specials)
        if spec.task_kind == "causal-lm":
            parts.append(Examples(first, None, None, 0, MADE_UP))
        else:
            parts.append(Examples(first, second, labels, job.labels, MADE_UP))
    return parts[0], parts[1]


# --- rows -----------------------------------------------------------------------------------------------------------


def _splits(spec: FinetuneSpec) -> tuple[Any, Any]:
    """Columns by name of the training and the validation split (None where there is none)."""
    if not spec.path:
        assert spec.job is not None
        validation = spec.validation_split or (
            "validation_matched" if spec.job.id == "mnli" else "validation"
        )
        return _of_hub(GLUE, spec.job.glue, spec.split, validation)
    path = Path(spec.path).expanduser()
    if is_folder(path):
        return _of_folder(path, spec)
    if path.suffix.lower() in (".csv", ".tsv", ".jsonl", ".json", ".txt"):
        rows = _of_file(path)
        other = None
        if spec.validation_split:
            other = _of_file(Path(spec.validation_split).expanduser())
        return rows, other
    return _of_hub(spec.path, spec.subset, spec.split, spec.validation_split)


def _import_datasets() -> Any:
    try:
        import datasets
    except ImportError as error:
        raise BoardError(
            "Reading this data set needs the package `datasets`, which is not installed.",
            "A .csv, .jsonl or .txt file needs it not.",
            "Install it with `make setup EXTRAS=train` or `pip install 'wattune[train]'`.",
        ) from error
    datasets.disable_progress_bars()
    return datasets


def _of_folder(path: Path, spec: FinetuneSpec) -> tuple[Any, Any]:
    datasets = _import_datasets()
    if all(kind_of(path / name) is None for name in ("dataset_dict.json", "state.json")):
        raise InputError(
            f"The folder {path} holds no data set.",
            "One written by `save_to_disk` was expected.",
            "Give such a folder, or a .csv, .jsonl or .txt file.",
        )
    try:
        found = datasets.load_from_disk(str(path))
    except OSError:
        raise
    except Exception as error:  # arrow raises many kinds on damaged files
        raise InputError(
            f"The data set in {path} could not be read: {hub.first_line(error)}.",
            "One written by `save_to_disk` was expected.",
            "Write it again.",
        ) from error
    if not isinstance(found, Mapping):
        return found, None
    return _pick(found, str(path), spec.split, spec.validation_split)


def _of_hub(repo: str, subset: str, split: str, validation: str) -> tuple[Any, Any]:
    found = hub.load_dataset(repo, subset)
    return _pick(found, repo, split, validation)


def _pick(found: Mapping[str, Any], name: str, split: str, validation: str) -> tuple[Any, Any]:
    for wanted in (split, validation):
        if wanted and wanted not in found:
            raise InputError(
                f"The data set {name} has no split '{wanted}'.",
                f"It has: {', '.join(found)}.",
                "Name one of them.",
            )
    other = validation or next((n for n in _VALIDATION_NAMES[:3] if n in found and n != split), "")
    return found[split], found[other] if other else None


def _of_file(path: Path) -> dict[str, list[Any]]:
    """Columns of a file; a .txt file has the one column ``text``, a paragraph each."""
    text = read_text(path, "The data file", "Check the path, or convert it: `iconv -f latin1 -t utf-8`.")
    text = text.removeprefix("\ufeff")  # as spreadsheets write it
    if not text.strip():
        raise InputError(f"The data file {path} is empty.", "Texts were expected in it.", "Name another one.")
    suffix = path.suffix.lower()
    if suffix == ".txt":
        return {"text": [part.strip() for part in text.split("\n\n") if part.strip()]}
    if suffix in (".csv", ".tsv"):
        reader = csv.DictReader(io.StringIO(text, newline=""), delimiter="\t" if suffix == ".tsv" else ",")
        rows: list[Any] = list(reader)
        names = list(reader.fieldnames or ())
        if len(names) == 1 and any(other in names[0] for other in ";\t|"):
            raise InputError(
                f"{path} has one column, '{names[0][:60]}'.",
                "Columns separated by commas (tabs in a .tsv) were expected.",
                "Save it with that separator.",
            )
        broken = next((n for n, row in enumerate(rows, 1) if None in row or None in row.values()), None)
        if broken is not None:
            raise InputError(
                f"Row {broken} of {path} has more or fewer fields than its header.", "Equally many were expected.",
                "Correct that row; texts with commas need quotes.",
            )  # fmt: skip
        return {name: [row[name] for row in rows] for name in reader.fieldnames or ()}
    return _of_json_lines(path, text)


def _of_json_lines(path: Path, text: str) -> dict[str, list[Any]]:
    rows = []
    try:
        whole = json.loads(text) if path.suffix.lower() == ".json" else None
    except ValueError:
        whole = None
    for number, line in enumerate(text.split("\n") if whole is None else [], 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"Line {number} of {path} is not JSON ({error}).",
                "One JSON object on each line was expected.",
            ) from error
        rows.append(row)
    rows = rows if whole is None else whole
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise InputError(f"{path} holds something else than JSON objects.", "One on each line was expected.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    return {name: [row.get(name) for row in rows] for name in names}


# --- examples -------------------------------------------------------------------------------------------------------


def _names(rows: Any) -> list[str]:
    return list(rows.column_names if hasattr(rows, "column_names") else rows)


def _column(rows: Any, name: str, source: str) -> list[Any]:
    names = _names(rows)
    if name not in names:
        raise InputError(
            f"{source} has no column '{name}'.",
            f"It has: {', '.join(names) or 'none'}.",
            "Name the right ones with text_columns and label_column (`--text-columns`, `--label-column`).",
        )
    return list(rows[name])


def _text_columns(spec: FinetuneSpec, names: Sequence[str]) -> tuple[str, ...]:
    if spec.text_columns:
        return spec.text_columns
    if spec.job is not None and spec.task_kind != "causal-lm":
        return GLUE_COLUMNS[spec.job.id]
    if spec.task_kind == "causal-lm":
        for pair in _PROMPT_PAIRS:
            if set(pair) <= set(names):
                return pair
    return next(((name,) for name in _TEXT_NAMES if name in names), ("text",))


def _examples(spec: FinetuneSpec, rows: Any, source: str, n_labels: int | None = None) -> Examples:
    names = _names(rows)
    kind = spec.task_kind
    if kind == "causal-lm" and not spec.text_columns and "messages" in names:
        return Examples([], None, None, 0, source, _chats(rows["messages"], source))
    columns = _text_columns(spec, names)
    texts = [_texts(_column(rows, name, source), name, source) for name in columns]
    if not texts[0]:
        raise InputError(
            f"{source} holds no examples.", "At least one was expected.", "Check the file or the split."
        )
    if kind == "causal-lm":
        if columns[0] == "instruction" and "input" in names and not spec.text_columns:
            more = ["" if value is None else str(value) for value in rows["input"]]
            texts[0] = [f"{a}\n{b}" if b else a for a, b in zip(texts[0], more, strict=True)]
        made = Examples(texts[0], texts[1] if len(texts) > 1 else None, None, 0, source)
    else:
        label_name = spec.label_column or "label"
        if label_name in columns:
            raise InputError(
                f"Column '{label_name}' was named as a text and as the label.",
                "Two columns were expected.",
                "Name the right ones with text_columns and label_column (`--text-columns`, `--label-column`).",
            )
        labels = _column(rows, label_name, source)
        if kind == "regression":
            made = Examples(texts[0], _second(texts), _values(labels, label_name, source), 1, source)
        else:
            wanted = n_labels or spec.labels or (spec.job.labels if spec.job is not None else None)
            classes, count = _classes(labels, label_name, source, wanted)
            made = Examples(texts[0], _second(texts), classes, count, source)
    return made


def _second(texts: Sequence[list[str]]) -> list[str] | None:
    return texts[1] if len(texts) > 1 else None


def _texts(values: Iterable[Any], name: str, source: str) -> list[str]:
    texts = list(values)
    bad = [i for i, value in enumerate(texts) if not isinstance(value, str) or not value.strip()]
    if bad:
        raise InputError(
            f"{len(bad)} of {len(texts)} texts in column '{name}' of {source} are empty or no text; the first is row"
            f" {bad[0] + 1}.",
            "A text in every row was expected.",
            "Take those rows out, or name another column with text_columns (`--text-columns`).",
        )
    return texts


def _values(labels: Sequence[Any], name: str, source: str) -> list[float]:
    values = []
    for row, label in enumerate(labels, 1):
        try:
            value = float(label)
        except (TypeError, ValueError):
            value = math.nan
        if not math.isfinite(value):
            raise InputError(
                f"Row {row} of {source} has the value {label!r} in column '{name}'.", "A number was expected."
            )
        values.append(value)
    return values


def _classes(labels: Sequence[Any], name: str, source: str, wanted: int | None) -> tuple[list[int], int]:
    """Classes from 0, and how many there are; class names are numbered in alphabetical order."""
    if all(isinstance(label, str) and label.strip().lstrip("-").isdigit() for label in labels):
        labels = [int(label) for label in labels]
    if all(isinstance(label, str) for label in labels):
        for row, label in enumerate(labels, 1):
            if not label.strip():
                raise InputError(
                    f"Row {row} of {source} has no label in column '{name}'.",
                    "A label in every row was expected.",
                    "Take that row out, or label it.",
                )
        if _are_numbers(labels):
            raise InputError(
                f"Column '{name}' of {source} holds numbers such as {labels[0]}, and no classes.",
                "Whole numbers from 0, or names, were expected.",
                "For numbers to be predicted set kind=regression (`--kind regression`).",
            )
        _refuse_unknown(labels, name, source)
        known = {label: number for number, label in enumerate(sorted(set(labels)))}
        labels = [known[label] for label in labels]
    count = wanted if wanted is not None else max((v for v in labels if isinstance(v, int)), default=0) + 1
    if wanted is None and count > max(len(labels), MOST_CLASSES):
        row = labels.index(count - 1) + 1
        raise InputError(
            f"Row {row} of {source} has the label {count - 1} in column '{name}', and there are {len(labels)} examples.",
            "Classes numbered from 0 without gaps were expected.",
            "Correct the row or number the classes anew; for numbers to be predicted set kind=regression (`--kind regression`).",
        )
    for row, label in enumerate(labels, 1):
        if type(label) not in (int, bool) or not 0 <= int(label) < count:
            raise InputError(
                f"Row {row} of {source} has the label {label!r} in column '{name}'.",
                f"A class from 0 to {count - 1}, or names of classes throughout, was expected.",
                "Correct the row, or set how many classes there are (labels); for numbers to be predicted set kind=regression"
                " (`--kind regression`).",
            )
    if count < 2:
        raise InputError(
            f"Column '{name}' of {source} holds one class only.", "At least two were expected.",
            "Check the column, or set kind=regression (`--kind regression`).",
        )  # fmt: skip
    classes = [int(label) for label in labels]
    if wanted is None and len(classes) > MANY_CLASSES and len(set(classes)) > len(classes) / 2:
        log.warning(
            "Column '%s' of %s has %d classes in %d examples: nothing can be learnt of most of them. Is it the right column?",
            name, source, len(set(classes)), len(classes),
        )  # fmt: skip
    if wanted is None and (absent := sorted(set(range(count)) - set(classes))):
        log.warning(
            "No example in column '%s' of %s has class %s; the classifier gets %d outputs all the same. Number the classes from 0.",
            name, source, ", ".join(map(str, absent[:5])) + (" ..." if len(absent) > 5 else ""), count,
        )  # fmt: skip
    return classes, count


def _refuse_unknown(labels: Sequence[str], name: str, source: str) -> None:
    """Among numbers a text is no class: an unknown label as spreadsheets and pandas write it is refused, another one is told.

    Raises:
        InputError: an unknown label.
    """
    odd = [row for row, label in enumerate(labels) if not _are_numbers([label])]
    if len(odd) > len(labels) / 2:
        return
    for row in odd:
        if labels[row].strip().lower() in UNKNOWN:
            raise InputError(
                f"Row {row + 1} of {source} has no label in column '{name}' ('{labels[row].strip()}').",
                "A label in every row was expected.",
                "Take that row out, or label it.",
            )
    log.warning(
        "Column '%s' of %s holds numbers, and '%s' in row %d: each different one is taken for a class of its own.",
        name, source, labels[odd[0]], odd[0] + 1,
    )  # fmt: skip


def _are_numbers(labels: Sequence[str]) -> bool:
    """Whether all labels are numbers, written as texts."""
    try:
        return all(math.isfinite(float(label)) for label in labels)
    except ValueError:
        return False


def _chats(values: Iterable[Any], source: str) -> list[list[dict[str, str]]]:
    chats = []
    for row, value in enumerate(values, 1):
        good = isinstance(value, list) and len(value) > 1
        good = good and all(
            isinstance(m, Mapping) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str)
            for m in value
        )
        if not good or not value[-1]["content"].strip():
            raise InputError(
                f"Row {row} of {source} is no conversation.",
                'A list of {"role": .., "content": ..} that ends with an answer was expected in `messages`.',
            )
        chats.append([{"role": m["role"], "content": m["content"]} for m in value])
    return chats
