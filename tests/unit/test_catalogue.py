"""The catalogue against published figures and against conf/."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wattune.core.errors import InputError
from wattune.core.workload import SMALL_MODELS
from wattune.workloads.catalogue import (
    HELD_OUT_TASKS,
    MODELS,
    PAPER_MODELS,
    TASKS,
    TRAINING_TASKS,
    catalogue_features,
    find_model,
    find_task,
    max_length_of,
)

CONF = Path(__file__).parents[2] / "conf" / "workloads" / "paper.yaml"

# Published or counted from the published shapes: reference totals, not read from the catalogue.
PARAMETERS = {
    "bert-small": 28_763_648,
    "bert-medium": 41_373_184,
    "bert-base": 109_482_240,
    "bert-large": 335_141_888,
    "deberta-v2-xlarge": 884_593_152,
    "smollm2-135m": 134_515_008,
    "smollm2-360m": 361_821_120,
    "tinyllama-1.1b": 1_100_048_384,
    "qwen2.5-0.5b": 494_032_768,
    "pythia-31m": 30_494_720,
    "pythia-70m": 70_426_624,
    "pythia-410m": 405_334_016,
    "pythia-1b": 1_011_781_632,
}


def test_nine_models_and_nine_tasks():
    assert set(MODELS) == set(PARAMETERS)
    assert len(PAPER_MODELS) == 9
    assert set(PAPER_MODELS) < set(MODELS)
    assert {*TRAINING_TASKS, *HELD_OUT_TASKS} == set(TASKS)
    assert len(TASKS) == 9
    assert set(MODELS) >= SMALL_MODELS


def test_parameters_are_the_published_totals():
    assert {name: spec.params for name, spec in MODELS.items()} == PARAMETERS


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith("bert")])
def test_bert_parameters_follow_from_the_shape(name):
    m = MODELS[name]
    embeddings = (m.vocab + 512 + 2) * m.hidden + 2 * m.hidden
    block = 4 * (m.hidden**2 + m.hidden) + 2 * m.hidden * m.ffn + m.ffn + m.hidden + 4 * m.hidden
    pooler = m.hidden**2 + m.hidden
    assert embeddings + m.layers * block + pooler == m.params


@pytest.mark.parametrize("name", [n for n in MODELS if n.startswith("pythia")])
def test_pythia_parameters_follow_from_the_shape(name):
    m = MODELS[name]
    block = 4 * (m.hidden**2 + m.hidden) + 2 * m.hidden * m.ffn + m.ffn + m.hidden + 4 * m.hidden
    assert 2 * m.vocab * m.hidden + m.layers * block + 2 * m.hidden == m.params


@pytest.mark.parametrize("name", [n for n in MODELS if n not in PAPER_MODELS])
def test_parameters_of_the_later_models_follow_from_the_shape(name):
    m = MODELS[name]
    config = m.hf_config
    keys = m.hidden // m.heads * config["num_key_value_heads"]
    biases = m.hidden + 2 * keys if m.family == "qwen2" else 0
    block = 2 * m.hidden**2 + 2 * m.hidden * keys + biases + 3 * m.hidden * m.ffn + 2 * m.hidden
    embeddings = m.vocab * m.hidden * (1 if config["tie_word_embeddings"] else 2)
    assert embeddings + m.layers * block + m.hidden == m.params


def test_shape_and_configuration_agree():
    for spec in MODELS.values():
        config = spec.hf_config
        assert (spec.layers, spec.hidden, spec.heads, spec.ffn, spec.vocab) == tuple(
            config[key]
            for key in (
                "num_hidden_layers",
                "hidden_size",
                "num_attention_heads",
                "intermediate_size",
                "vocab_size",
            )
        )
        assert spec.family == config["model_type"].replace("_", "-")
        json.dumps(dict(config))


def test_training_split_sizes():
    rows = {
        "cola": 8551,
        "sst2": 67349,
        "mrpc": 3668,
        "stsb": 5749,
        "qqp": 363846,
        "mnli": 392702,
        "qnli": 104743,
        "rte": 2490,
        "wnli": 635,
    }
    assert {name: task.rows for name, task in TASKS.items()} == rows
    assert {name for name, task in TASKS.items() if not task.pair} == {"sst2", "cola"}
    assert (TASKS["mnli"].labels, TASKS["stsb"].labels, TASKS["rte"].labels) == (3, 1, 2)
    assert {name for name, task in TASKS.items() if task.lengths.inferred} == {"qnli", "qqp", "mnli"}
    assert all(spec.source for spec in TASKS.values())


def test_conf_lists_models_times_tasks_with_the_catalogues_defaults():
    yaml = pytest.importorskip("yaml")
    expected = {
        f"{model.id}-{task}": {
            "model": model.id,
            "task": task,
            "part": part,
            "batch_size": model.batch_size,
            "precision": model.precision,
            "max_length": max_length_of(TASKS[task]),
        }
        for model in (MODELS[name] for name in PAPER_MODELS)
        for part, tasks in (("train", TRAINING_TASKS), ("held_out", HELD_OUT_TASKS))
        for task in tasks
    }
    assert yaml.safe_load(CONF.read_text(encoding="utf-8")) == expected


@pytest.mark.parametrize(
    ("find", "typed", "found"),
    [
        (find_model, "BERT-Base", "bert-base"),
        (find_model, " Pythia-1B ", "pythia-1b"),
        (find_task, "SST2", "sst2"),
    ],
)
def test_names_are_found_in_any_case(find, typed, found):
    assert find(typed).id == found


@pytest.mark.parametrize(
    ("find", "typed", "suggested"),
    [
        (find_model, "bert-bse", "bert-base"),
        (find_model, "pythia-1.4b", "pythia-1b"),
        (find_task, "sst-2", "sst2"),
    ],
)
def test_unknown_names_suggest_close_ones(find, typed, suggested):
    with pytest.raises(InputError, match=suggested) as caught:
        find(typed)
    assert suggested in caught.value.hint
    assert typed in caught.value.what


def test_features_known_without_measuring():
    assert catalogue_features("bert-base", "mnli") == {
        "family": "bert",
        "layers": 12.0,
        "hidden": 768.0,
        "params_m": 109.48224,
        "batch_size": 128.0,
        "seq_len": pytest.approx(40.0),
    }
    assert catalogue_features("pythia-70m", "sst2")["seq_len"] == 12.62
    assert catalogue_features(None, "sst2") == {"seq_len": 13.32}
    assert catalogue_features("bert-base", None, batch_size=8, seq_len=99)["seq_len"] == 99.0
    assert catalogue_features("bert-base", None, batch_size=8)["batch_size"] == 8.0
    assert "seq_len" not in catalogue_features("bert-base", None)
    assert catalogue_features(None, None) == {}
