"""Examples from files, and what is refused of them."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from tiny import rows, write_csv, write_jsonl
from wattune.core.errors import InputError
from wattune.workloads.catalogue import find_task
from wattune.workloads.finetune import madeup, sources
from wattune.workloads.finetune.spec import FinetuneSpec


def load(path: Path, **settings):
    return sources.load(FinetuneSpec(model="owner/name", path=str(path), **settings).check(), "bert", 2)


CLASSES = {"label_column": "label", "text_columns": ("text",)}


def test_a_csv_and_a_jsonl_of_the_same_rows_are_the_same_examples(tmp_path: Path) -> None:
    made = [*rows(20), {"text": 'a comma, a "quote"\nand a second line', "label": 1}]
    a, _ = load(write_csv(tmp_path / "a.csv", made), **CLASSES)
    b, _ = load(write_jsonl(tmp_path / "a.jsonl", made), **CLASSES)
    assert a.first == b.first == [row["text"] for row in made]
    assert a.labels == b.labels == [row["label"] for row in made]
    assert a.n_labels == 2


def test_separators_inside_a_text_do_not_cut_a_line_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        '{"text": "one\u2028two\x85three", "label": 0}\n{"text": "x", "label": 1}\n'
    )
    made, _ = load(tmp_path / "a.jsonl", **CLASSES)
    assert made.first == ["one\u2028two\x85three", "x"]


def test_a_file_as_spreadsheets_write_it_is_read(tmp_path: Path) -> None:
    plain = write_csv(tmp_path / "a.csv", rows(12))
    marked = tmp_path / "b.csv"
    marked.write_bytes(b"\xef\xbb\xbf" + plain.read_bytes())
    one, other = (load(path, **CLASSES)[0] for path in (marked, plain))
    assert (one.first, one.labels, one.n_labels) == (other.first, other.labels, other.n_labels)


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("a.csv", b"", "is empty"),
        ("a.jsonl", b"\n \n", "is empty"),
        ("a.csv", b"text;label\nfine;1\n", "separated by commas"),
        ("a.csv", "text,label\nh\u00e9,1\n".encode("latin-1"), "iconv"),
    ],
)
def test_files_of_another_kind_say_what_to_do(tmp_path: Path, name: str, data: bytes, says: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(InputError) as refused:
        load(tmp_path / name, **CLASSES)
    assert says in str(refused.value)


def test_names_of_classes_are_numbered_in_their_alphabetical_order(tmp_path: Path) -> None:
    made, _ = load(
        write_csv(tmp_path / "a.csv", [{"text": "x", "label": n} for n in ("sad", "glad", "sad")]), **CLASSES
    )
    assert (made.labels, made.n_labels) == ([1, 0, 1], 2)


@pytest.mark.parametrize(
    ("labels", "settings", "says"),
    [
        (["good", "", "bad"], {}, "Row 2 of .* no label"),
        (["good", " ", "bad"], {}, "Row 2 of .* no label"),
        (["0.5", "1.5", "2.5"], {}, "--kind regression"),
        (["1e3", "2", "3"], {}, "--kind regression"),
        (["0", "1", "1000000000"], {}, "Row 3 of .* has the label 1000000000 .* 3 examples"),
        (["0", "nan", "1"], {}, "Row 2 of .* no label .*'nan'"),
        (["0.0", "1.0", "NaN"], {}, "Row 3 of .* no label .*'NaN'"),
        (["1", "0", "<NA>"], {}, "Row 3 of .* no label"),
        (["1", "None", "0"], {}, "Row 2 of .* no label"),
        (["a", "b", "c"], {"text_columns": ("text", "label")}, "as a text and as the label"),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path: Path, labels, settings, says: str) -> None:
    made = [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)]
    with pytest.raises(InputError, match=says):
        load(write_csv(tmp_path / "a.csv", made), **(CLASSES | settings))


def test_a_class_of_its_own_for_every_example_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = [{"text": f"text {n}", "label": f"name {n}"} for n in range(30)]
    load(write_csv(tmp_path / "a.csv", made), **CLASSES)
    assert "30 classes in 30 examples" in caplog.text


def test_a_class_that_no_example_has_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stars = [{"text": "x", "label": n} for n in (1, 2, 5)]
    made, _ = load(write_csv(tmp_path / "a.csv", stars), **CLASSES)
    assert (made.labels, made.n_labels) == ([1, 2, 5], 6)
    assert "has class 0, 3, 4" in caplog.text


@pytest.mark.parametrize("labels", [["for", "none", "against"], ["n/a", "yes"], ["none", "1", "na", "x"]])
def test_words_that_may_be_unknown_are_classes_among_words(tmp_path: Path, labels: list[str]) -> None:
    made, _ = load(write_csv(tmp_path / "a.csv", [{"text": "x", "label": n} for n in labels]), **CLASSES)
    assert made.n_labels == len(labels)


def test_a_word_among_numbers_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    made, _ = load(
        write_csv(tmp_path / "a.csv", [{"text": "x", "label": n} for n in ("0", "1", "3+")]), **CLASSES
    )
    assert made.n_labels == 3
    assert "'3+' in row 3" in caplog.text


def test_held_out_examples_are_the_rest_of_the_same_ones_and_follow_from_the_seed(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", [{"text": f"text {n}", "label": n % 2} for n in range(50)])
    train, kept = load(path, held_out=0.2, **CLASSES)
    assert kept is not None
    assert len(kept) == 10
    assert sorted(train.first + kept.first) == sorted(f"text {n}" for n in range(50))
    again, _ = load(path, held_out=0.2, **CLASSES)
    other, _ = load(path, held_out=0.2, seed=7, **CLASSES)
    assert again.first == train.first != other.first


def test_paragraphs_of_a_text_and_columns_of_instructions_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one paragraph\nof two lines\n\n\nanother\n")
    text, _ = load(tmp_path / "a.txt")
    assert text.first == ["one paragraph\nof two lines", "another"]
    made = [{"instruction": "add", "input": "1 and 2", "output": "3"}, {"instruction": "b", "output": "c"}]
    asked, _ = load(write_jsonl(tmp_path / "a.jsonl", made))
    assert (asked.first, asked.second) == (["add\n1 and 2", "b"], ["3", "c"])


FAULTS = [
    ([{"text": "x", "label": 0}, {"text": " ", "label": 1}], {}, "row 2"),
    ([{"text": "x", "label": 0}, {"text": None, "label": 1}], {}, "row 2"),
    ([{"text": "x", "label": 0}, {"text": "y", "label": -1}], {}, "-1"),
    ([{"text": "x", "label": 0}, {"text": "y", "label": 5}], {"labels": 3}, "from 0 to 2"),
    ([{"text": "x", "label": 0}, {"text": "y", "label": 0.5}], {}, "kind=regression"),
    ([{"text": "x", "label": 0}, {"text": "y", "label": "b"}], {}, "label"),
    ([{"text": "x", "label": 0}, {"text": "y", "label": 0}], {}, "one class"),
    ([{"text": "x", "label": 0}, {"text": "y"}], {}, "None"),
    ([{"text": "x", "label": "a"}], {"kind": "regression"}, "number"),
    ([{"text": "x", "label": 1}], {"text_columns": ("body",)}, "text, label"),
    ([{"text": "x", "label": 1}], {"label_column": "class"}, "text, label"),
    (
        [{"messages": [{"role": "user", "content": "x"}]}],
        {"kind": "causal-lm", "text_columns": ()},
        "conversation",
    ),
]


@pytest.mark.parametrize(("made", "settings", "says"), FAULTS)
def test_bad_rows_are_named(tmp_path: Path, made, settings, says: str) -> None:
    with pytest.raises(InputError, match=says):
        load(write_jsonl(tmp_path / "a.jsonl", made), **(CLASSES | settings))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "", "is empty"),
        ("a.csv", "text,label\n", "no examples"),
        ("a.csv", "text,label\na,b,c\n", "Row 1"),
        ("a.csv", "text,label\na\n", "Row 1"),
        ("a.jsonl", '{"text": "a"\n', "Line 1"),
        ("a.jsonl", "[1]\n", "objects"),
        ("a.csv", b"text,label\n\xff\xfe,1\n", "UTF-8"),
    ],
)
def test_files_that_are_not_what_their_name_says_are_refused(
    tmp_path: Path, name: str, text, says: str
) -> None:
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError, match=says):
        load(tmp_path / name, **CLASSES)


def test_a_folder_without_a_data_set_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets", reason="the extra train is not installed")
    with pytest.raises(InputError, match="save_to_disk"):
        load(tmp_path, **CLASSES)


def test_a_folder_of_load_from_disk_is_read_and_a_missing_split_names_those_there(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="the extra train is not installed")
    made = datasets.Dataset.from_list(rows(12))
    datasets.DatasetDict({"train": made, "validation": made.select(range(5))}).save_to_disk(
        str(tmp_path / "d")
    )
    train, kept = load(tmp_path / "d", **CLASSES)
    assert len(train) == 12
    assert kept is not None
    assert len(kept) == 5
    with pytest.raises(InputError, match="train, validation"):
        load(tmp_path / "d", split="all", **CLASSES)


@pytest.mark.parametrize("name", ["sst2", "mrpc", "stsb", "mnli"])
def test_made_up_sentences_are_as_long_as_the_tasks_own(name: str) -> None:
    task = find_task(name)
    specials = 3 if task.pair else 2
    first, second, labels = madeup.sentences(task, "bert", 4000, 0, specials)
    words = [len(a.split()) + len(b.split()) for a, b in zip(first, second or [""] * 4000, strict=True)]
    assert fmean(words) + specials == pytest.approx(task.lengths.mean, rel=0.04)
    assert (second is not None) == task.pair
    assert first == madeup.sentences(task, "bert", 4000, 0, specials)[0]
    if task.labels > 1:
        assert set(labels) == set(range(task.labels))
