"""Fine-tuning jobs as documents: defaults, round trips, what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.core.errors import InputError
from wattune.workloads.catalogue import MODELS, TASKS
from wattune.workloads.finetune.spec import GLUE_COLUMNS, FinetuneSpec


def test_every_workload_of_the_catalogue_is_a_job_with_its_own_batch_precision_and_checkpoint() -> None:
    for model in MODELS.values():
        for task in TASKS.values():
            spec = FinetuneSpec.from_dict({"model": model.id.upper(), "task": task.id})
            assert spec.checkpoint == model.hf_id
            assert spec.examples_per_pass == model.batch_size
            assert spec.longest == (128 if task.id == "sst2" else 256)
            assert spec.task_kind == ("regression" if task.id == "stsb" else "classification")
            assert len(GLUE_COLUMNS[task.id]) == (2 if task.pair else 1)
            assert spec.name == f"{model.id}-{task.id}"
            assert spec.peak_rate == (1e-5 if model.family == "deberta-v2" else 2e-5)


def test_the_groups_event_log_scripts_are_the_defaults_of_adapters() -> None:
    for method in ("lora", "bitfit"):
        spec = FinetuneSpec.from_dict({"model": "deberta-v2-xlarge", "task": "qnli", "method": method})
        assert (spec.rank, spec.peak_rate) == (8, 1e-3)


def test_a_file_of_text_is_learnt_as_text_and_one_with_a_label_column_as_classes() -> None:
    text = FinetuneSpec(model="some/decoder", path="some/data")
    assert text.task_kind == "causal-lm"
    assert (
        FinetuneSpec(model="some/encoder", path="some/data", label_column="topic").task_kind
        == "classification"
    )
    assert text.examples_per_pass == 32


@given(
    batch=st.none() | st.integers(1, 512),
    rate=st.none() | st.floats(1e-7, 1.0),
    columns=st.lists(st.text("abc", min_size=1), max_size=2),
    method=st.sampled_from(("full", "lora", "bitfit")),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_job_survives_its_document(batch, rate, columns, method, seed) -> None:
    spec = FinetuneSpec(
        model="bert-base", task="sst2", batch_size=batch, learning_rate=rate, text_columns=tuple(columns), method=method,
        seed=seed, from_config=True, config={"num_hidden_layers": 2},
    )  # fmt: skip
    assert FinetuneSpec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"model": "bert-bse", "task": "sst2"}, "bert-base"),
        ({"model": "bert-base", "task": "sst3"}, "sst2"),
        ({"model": "bert-base"}, "wattune finetune bert-base sst2"),
        ({"task": "sst2"}, "--model"),
        ({"model": "bert-base", "task": "sst2", "bach_size": 3}, "batch_size"),
        ({"model": "bert-base", "task": "sst2", "batch_size": 0}, "from 1"),
        ({"model": "bert-base", "task": "sst2", "batch_size": True}, "int"),
        ({"model": "bert-base", "task": "sst2", "learning_rate": "fast"}, "float"),
        ({"model": "bert-base", "task": "sst2", "learning_rate": float("nan")}, "from 0"),
        ({"model": "bert-base", "task": "sst2", "method": "qlora"}, "lora"),
        ({"model": "bert-base", "task": "sst2", "precision": "fp8"}, "bf16"),
        ({"model": "bert-base", "task": "sst2", "held_out": 1.0}, "0.9"),
        ({"model": "bert-base", "task": "sst2", "config": {"num_hidden_layers": 1}}, "from_config"),
        ({"model": "bert-base", "task": "sst2", "text_columns": ["a", "b", "c"]}, "two"),
        ({"model": "/no/such/folder", "task": "sst2"}, "/no/such/folder"),
        ({"model": "bert-base", "path": "/no/such/file.csv"}, "/no/such/file.csv"),
        ({"model": "bert-base", "path": "made-up"}, "task"),
        (["bert-base"], "JSON object"),
    ],
)  # fmt: skip
def test_what_no_run_can_come_from_is_refused_in_words(document, says: str) -> None:
    with pytest.raises(InputError, match=says):
        FinetuneSpec.from_dict(document)


def test_a_hub_id_and_a_folder_are_told_apart(tmp_path: Path) -> None:
    assert FinetuneSpec(model="owner/name", task="sst2").check().checkpoint == "owner/name"
    assert FinetuneSpec(model=str(tmp_path), task="sst2").check().checkpoint == str(tmp_path)
    assert FinetuneSpec(model="owner/name", task="sst2").hub_data == "nyu-mll/glue"
    assert FinetuneSpec(model="owner/name", path="owner/data").hub_data == "owner/data"
    assert FinetuneSpec(model="owner/name", path=str(tmp_path)).hub_data == ""
