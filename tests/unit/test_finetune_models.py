"""Checkpoints, adapters and arithmetic: which parameters are trained, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make setup EXTRAS=train)")
pytest.importorskip("accelerate", reason="accelerate is not installed (make setup EXTRAS=train)")

from tiny import BERT, LLAMA, NEOX, folder, rows, write_csv  # noqa: E402
from wattune.core.errors import BoardError, InputError, IntegrityError  # noqa: E402
from wattune.workloads.finetune import models  # noqa: E402
from wattune.workloads.finetune.features import job_features, model_features  # noqa: E402
from wattune.workloads.finetune.job import Job  # noqa: E402
from wattune.workloads.finetune.spec import FinetuneSpec  # noqa: E402

CLASSES = {"label_column": "label", "text_columns": ("text",)}


@pytest.fixture
def data(tmp_path: Path) -> str:
    return str(write_csv(tmp_path / "data.csv", rows(40)))


def job(where: Path, data: str, **settings) -> Job:
    return Job(
        FinetuneSpec(
            **({"model": str(where), "path": data, "from_config": True, **CLASSES} | settings)
        ).check()
    )


def trained(model) -> dict[str, int]:
    return {name: p.numel() for name, p in model.named_parameters() if p.requires_grad}


def test_bitfit_trains_biases_and_the_new_head_and_nothing_else(tmp_path: Path, data: str) -> None:
    for config, head in (
        (BERT, ("classifier.weight",)),  # of the pretrained pooler the bias, as in the method's own code
        (NEOX, ("score.weight",)),
    ):
        model = job(folder(tmp_path / config["model_type"], config), data, method="bitfit").model
        names = set(trained(model))
        assert names == {n for n, _ in model.named_parameters() if n.endswith("bias")} | set(head)


def test_bitfit_of_a_model_without_biases_is_refused(tmp_path: Path, data: str) -> None:
    with pytest.raises(InputError, match="no biases"):
        job(folder(tmp_path / "llama", LLAMA), data, method="bitfit", kind="causal-lm", label_column="")


def test_lora_trains_two_matrices_of_its_rank_for_each_target_and_the_head(tmp_path: Path, data: str) -> None:
    pytest.importorskip("peft", reason="peft is not installed (make setup EXTRAS=train)")
    model = job(folder(tmp_path / "bert", BERT), data, method="lora", rank=4).model
    parts = trained(model)
    matrices = {name: n for name, n in parts.items() if "lora_" in name}
    # two layers, query and value: A is 4 x 32, B is 32 x 4
    assert len(matrices) == 8
    assert set(matrices.values()) == {4 * 32}
    assert sum(parts.values()) - sum(matrices.values()) == 2 * 32 + 2


def test_a_decoder_without_a_padding_token_pads_with_its_end_token(tmp_path: Path, data: str) -> None:
    made = job(folder(tmp_path / "neox", NEOX, pad=False), data)
    assert made.table.pad_id == 0
    assert made.model.config.pad_token_id == 0


def test_a_tokenizer_that_has_nothing_to_pad_with_is_refused(tmp_path: Path, data: str) -> None:
    with pytest.raises(InputError, match="no padding token and no end token"):
        job(folder(tmp_path / "neox", NEOX, pad=False, end=False), data)
    with pytest.raises(InputError, match="add_special_tokens"):
        job(folder(tmp_path / "bert", BERT, pad=False), data)


def test_weights_that_are_a_pickle_are_refused_unless_told(tmp_path: Path, data: str) -> None:
    where = folder(tmp_path / "bert", BERT, weights=True)
    from safetensors.torch import load_file

    state = load_file(where / "model.safetensors")
    (where / "model.safetensors").unlink()
    torch.save(state, where / "pytorch_model.bin")
    with pytest.raises(IntegrityError, match=r"pytorch_model\.bin.*--trust-pickle"):
        job(where, data, from_config=False)
    made = job(where, data, from_config=False, trust_pickle=True)
    assert torch.equal(
        made.model.bert.embeddings.word_embeddings.weight, state["embeddings.word_embeddings.weight"]
    )


def test_the_weights_of_a_checkpoint_are_taken_and_only_the_head_is_new(tmp_path: Path, data: str) -> None:
    where = folder(tmp_path / "bert", BERT, weights=True)
    from safetensors.torch import load_file

    state = load_file(where / "model.safetensors")
    one, two = (job(where, data, from_config=False, seed=seed).model for seed in (1, 2))
    for name, value in state.items():
        assert torch.equal(one.state_dict()[f"bert.{name}"], value), name
    assert not torch.equal(one.classifier.weight, two.classifier.weight)
    assert torch.equal(
        one.classifier.weight, job(where, data, from_config=False, seed=1).model.classifier.weight
    )


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        (lambda where: (where / "model.safetensors").write_bytes(b"\x00" * 100), "could not be loaded"),
        (lambda where: (where / "model.safetensors").unlink(), "no weights"),
        (lambda where: [p.unlink() for p in where.glob("token*")], "no tokenizer"),
        (lambda where: (where / "config.json").write_text('{"model_type": "no-such"}'), "no-such"),
        (lambda where: (where / "config.json").write_text("[]"), "JSON"),
        (lambda where: (where / "config.json").unlink(), "config.json"),
        (lambda where: (where / "tokenizer.json").write_text("{}"), "tokenizer"),
    ],
)
def test_a_damaged_checkpoint_is_refused_in_words(tmp_path: Path, data: str, broken, says: str) -> None:
    where = folder(tmp_path / "bert", BERT, weights=True)
    broken(where)
    with pytest.raises(InputError, match=says):
        job(where, data, from_config=False)


def test_a_model_without_the_head_that_is_needed_is_refused(tmp_path: Path, data: str) -> None:
    config = {
        "model_type": "t5",
        "vocab_size": 64,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 16,
        "num_layers": 1,
        "num_heads": 2,
    }
    with pytest.raises(InputError, match="causal language model"):
        job(folder(tmp_path / "t5", config), data, kind="causal-lm", label_column="")


@pytest.mark.parametrize("model_type", ["bert", "roberta", "electra", "roformer"])
def test_an_encoder_predicts_no_next_token(tmp_path: Path, data: str, model_type: str) -> None:
    where = folder(tmp_path / model_type, BERT | {"model_type": model_type})
    with pytest.raises(InputError, match=r"is an encoder.*--label-column"):
        job(where, data, kind="causal-lm", label_column="")
    with pytest.raises(InputError, match="is an encoder"):  # as an unlabelled file has it
        job(where, data, label_column="", text_columns=())


def test_arithmetic_is_what_the_device_can_do() -> None:
    spec = FinetuneSpec(model="bert-base", task="sst2")
    assert models.pick_precision(spec, "cpu") == "fp32"  # the catalogue says fp16
    assert models.pick_precision(dataclasses.replace(spec, precision="bf16"), "cpu") == "bf16"
    with pytest.raises(InputError, match="precision=auto"):
        models.pick_precision(dataclasses.replace(spec, precision="fp16"), "cpu")
    if not torch.cuda.is_available():
        with pytest.raises(BoardError, match="no GPU"):
            models.pick_device(dataclasses.replace(spec, device="cuda"))


def test_features_ahead_of_a_job_are_those_that_it_has_when_it_is_loaded(tmp_path: Path, data: str) -> None:
    where = folder(tmp_path / "bert", BERT, weights=True)
    made = job(where, data, from_config=False)
    ahead = job_features(made.spec)
    assert ahead == made.ready()["features"]
    assert (ahead["family"], ahead["layers"], ahead["hidden"]) == ("bert", 2.0, 32.0)
    base = sum(p.numel() for p in made.model.bert.parameters())
    assert ahead["params_m"] == pytest.approx(base / 1e6)
    assert model_features(dataclasses.replace(made.spec, task="mrpc"))["seq_len"] == 53.25


def test_longer_examples_are_cut_where_the_model_ends(tmp_path: Path) -> None:
    long = [{"text": " ".join(["water"] * 100), "label": n % 2} for n in range(4)]
    made = job(folder(tmp_path / "bert", BERT), str(write_csv(tmp_path / "long.csv", long)))
    assert made.table.lengths.tolist() == [64] * 4


def test_choose_takes_a_model_and_data_of_ones_own(tmp_path: Path, data: str) -> None:
    from wattune.cli import build_parser
    from wattune.commands.workload import given_features

    where = folder(tmp_path / "bert", BERT, weights=True)
    words = [
        "choose",
        "--config",
        str(where),
        "--data",
        data,
        "--text-columns",
        "text",
        "--label-column",
        "label",
    ]
    given, assumed = given_features(build_parser().parse_args(words))
    made = job(where, data, from_config=False)
    assert given == made.ready()["features"]
    assert assumed == {"batch_size": 32.0}
    for wrong in (["choose", "--data", data], [*words, "--model", "bert-base"]):
        with pytest.raises(InputError, match="One of --model and --config"):
            given_features(build_parser().parse_args(wrong))


def test_weights_of_another_shape_than_the_configuration_says_are_refused(tmp_path: Path, data: str) -> None:
    where = folder(tmp_path / "bert", BERT, weights=True)
    assert job(where, data, from_config=False).model.num_labels == 2  # its head alone is new
    path = where / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_size": 64, "intermediate_size": 128}))
    with pytest.raises(InputError, match="do not fit its config"):
        job(where, data, from_config=False)


def test_a_head_of_another_task_makes_room(tmp_path: Path) -> None:
    where = folder(tmp_path / "bert", BERT, weights=True)
    saved = job(where, str(write_csv(tmp_path / "two.csv", rows(20))), from_config=False).model
    saved.save_pretrained(where)
    three = [row | {"label": n % 3} for n, row in enumerate(rows(30))]
    again = job(where, str(write_csv(tmp_path / "three.csv", three)), from_config=False).model
    assert again.num_labels == 3
    assert torch.equal(
        again.bert.embeddings.word_embeddings.weight, saved.bert.embeddings.word_embeddings.weight
    )


def test_weights_that_are_absent_beside_the_head_are_named(
    tmp_path: Path, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = folder(tmp_path / "bert", BERT, weights=True)
    path = where / "config.json"
    layers = json.loads(path.read_text())["num_hidden_layers"]
    job(where, data, from_config=False)
    assert "begin at random" not in caplog.text
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": layers + 1}))
    job(where, data, from_config=False)
    assert "begin at random" in caplog.text


def test_a_batch_larger_than_the_data_is_said_and_counted_as_it_is(
    tmp_path: Path, data: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = job(folder(tmp_path / "bert", BERT), data, batch_size=1000)
    assert "1000 examples, and there are 40" in caplog.text
    ready = made.ready()
    assert (ready["batch_size"], ready["features"]["batch_size"]) == (40, 40.0)
    assert len(ready["epoch_tokens"]) == 1


def test_what_a_result_rests_on_is_said(tmp_path: Path, data: str) -> None:
    made = job(folder(tmp_path / "bert", BERT), data)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = made.ready()["computes_with"]
        torch.set_num_threads(2)
        two = made.ready()["computes_with"]
    finally:
        torch.set_num_threads(before)
    assert torch.__version__ in one
    assert one != two


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"model": "bert-base", "task": "sst2"}, "bert-base sst2"),
        ({"model": "owner/model", "task": "sst2"}, "owner/model sst2"),
        ({"model": "owner/model", "path": "owner/data", **CLASSES}, "owner/model owner/data"),
        ({"model": "owner/model", "path": "own.csv", **CLASSES}, "owner/model"),
        ({"model": "bert-base", "task": "sst2", "path": "made-up"}, "bert-base"),
    ],
)
def test_only_what_lies_on_the_hub_is_to_be_fetched(settings: dict, words: str) -> None:
    assert FinetuneSpec(**settings).fetch_words == words


@pytest.mark.parametrize("text", ["{", "[]", "3", '{"model_type": "bert", "hidden_size": "wide"}'])
def test_a_configuration_that_is_none_says_what_to_type(tmp_path: Path, data: str, text: str) -> None:
    where = folder(tmp_path / "bert", BERT)
    (where / "config.json").write_text(text)
    for ask in (
        lambda: job(where, data),
        lambda: model_features(FinetuneSpec(model=str(where), path=data, **CLASSES)),
    ):
        with pytest.raises(InputError) as refused:
            ask()
        assert refused.value.hint
