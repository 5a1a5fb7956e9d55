"""Operation cost: the committed table, the recount, other configurations, workloads built from it."""

from __future__ import annotations

import builtins
import json
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.core.errors import BoardError, InputError
from wattune.workloads import opcost
from wattune.workloads.adapters import RANK
from wattune.workloads.build import build_from_config, build_workload
from wattune.workloads.catalogue import MODELS, TASKS, max_length_of

# FLOPs of forward and backward at batch 8, length 128, counted independently with torch's FlopCounterMode.
ANCHORS = {
    "bert-small": 8.05e10,
    "bert-base": 5.36e11,
    "pythia-31m": 3.14e10,
    "pythia-70m": 1.21e11,
    "pythia-1b": 5.00e12,
}
MODEL_IDS = st.sampled_from(sorted(MODELS))
LLAMA = {
    "model_type": "llama",
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 256,
    "vocab_size": 1000,
    "torch_dtype": "bfloat16",
    "architectures": ["LlamaForCausalLM"],
}
GEMMA = LLAMA | {"model_type": "gemma", "num_key_value_heads": 1, "head_dim": 32}


@pytest.mark.parametrize("model", sorted(ANCHORS))
def test_flops_anchors(model):
    cost = opcost.step_cost(model, "fp32", 8, 128)
    assert cost.forward.flops + cost.backward.flops == pytest.approx(ANCHORS[model], rel=0.005)
    assert cost.backward.flops == pytest.approx(2 * cost.forward.flops, rel=0.01)


@pytest.mark.parametrize("model", sorted(MODELS))
def test_optimizer_moves_about_25_times_the_parameters(model):
    polynomials = opcost.polynomials(model, "fp32")
    cost = polynomials.step_cost(8, 128)
    assert 22 <= cost.optimizer.bytes / (4 * polynomials.params) <= 27
    assert cost.optimizer.flops == 0
    assert polynomials.step_cost(64, 256).optimizer == cost.optimizer


@given(MODEL_IDS, st.sampled_from(opcost.PRECISIONS), st.integers(1, 256), st.integers(1, 512))
def test_costs_are_positive_and_grow_with_batch_and_length(model, precision, batch, length):
    cost = opcost.step_cost(model, precision, batch, length).total
    wider = opcost.step_cost(model, precision, batch + 1, length).total
    longer = opcost.step_cost(model, precision, batch, length + 1).total
    assert 0 < cost.flops < min(wider.flops, longer.flops)
    assert 0 < cost.bytes < min(wider.bytes, longer.bytes)
    assert cost.launches == wider.launches == longer.launches > 0


@given(MODEL_IDS, st.integers(16, 256), st.integers(64, 512))
def test_half_precision_moves_less_and_launches_more(model, batch, length):
    full, half = (opcost.step_cost(model, precision, batch, length) for precision in ("fp32", "fp16"))
    assert half.total.flops == full.total.flops
    assert half.total.launches > full.total.launches
    assert half.forward.bytes + half.backward.bytes < full.forward.bytes + full.backward.bytes
    brain = opcost.step_cost(model, "bf16", batch, length)
    assert brain.optimizer == full.optimizer, "bf16 needs no gradient scaler"


def test_multi_tensor_launches_follow_atens_limits():
    assert opcost.multi_tensor_launches([10] * 110, 1) == 1
    assert opcost.multi_tensor_launches([10] * 111, 1) == 2
    assert opcost.multi_tensor_launches([10] * 37, 4) == 2
    assert opcost.multi_tensor_launches([65536 * 320], 2) == 1
    assert opcost.multi_tensor_launches([65536 * 320 + 1], 2) == 2
    assert opcost.multi_tensor_launches([65536 * 100] * 8, 2) == 3
    assert opcost.multi_tensor_launches([0, 0], 2) == 0


@pytest.mark.parametrize(("precision", "batch", "length"), [("fp8", 8, 8), ("fp32", 0, 8), ("fp32", 8, 0)])
def test_bad_arguments_are_refused(precision, batch, length):
    with pytest.raises(InputError):
        opcost.step_cost("bert-base", precision, batch, length)


def test_table_is_small_and_says_how_it_was_made():
    document = json.loads(opcost.TABLE.read_text(encoding="utf-8"))
    assert set(document["models"]) == set(MODELS)
    assert document["command"] == "wattune opcost --write"
    assert set(document["counted_with"]) == {"torch", "transformers"}
    assert opcost.TABLE.stat().st_size < 150_000


# --- workloads ---


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("task", sorted(TASKS))
def test_every_workload_builds_fast(model, task):
    spec = MODELS[model]
    start = time.perf_counter()
    workload = build_workload(
        model,
        task,
        batch_size=spec.batch_size,
        precision=spec.precision,
        max_length=max_length_of(TASKS[task]),
    )
    assert time.perf_counter() - start < 0.2
    assert workload.id == f"{model}-{task}"
    assert sum(b.share for b in workload.bins) == pytest.approx(1.0)
    assert (workload.steps_per_epoch - 1) * spec.batch_size < TASKS[task].rows
    assert workload.steps_per_epoch * spec.batch_size >= TASKS[task].rows
    assert workload.seq_len == pytest.approx(TASKS[task].lengths.mean_tokens(spec.tokenizer), rel=0.002)
    middle = workload.bins[len(workload.bins) // 2]
    assert middle.cost == opcost.step_cost(model, spec.precision, spec.batch_size, middle.tokens)


def test_names_are_normalised_and_may_be_given():
    assert build_workload("BERT-Base", "MNLI", batch_size=8, precision="fp16").id == "bert-base-mnli"
    assert build_workload("bert-base", "mnli", batch_size=8, precision="fp16", id="mine").id == "mine"


def test_truncation_shortens_the_mean():
    cut = build_workload("bert-base", "rte", batch_size=8, precision="fp16", max_length=64)
    assert max(b.tokens for b in cut.bins) == 64
    assert 40 < cut.seq_len < 60


@pytest.mark.parametrize(
    "bad",
    [{"batch_size": 0}, {"max_length": 0}, {"precision": "int8"}, {"task": "snli"}, {"model": "bert-huge"}],
)
def test_bad_workloads_are_refused(bad):
    good = {"model": "bert-base", "task": "mnli", "batch_size": 8, "precision": "fp16", "max_length": 128}
    arguments = good | bad
    with pytest.raises(InputError):
        build_workload(arguments.pop("model"), arguments.pop("task"), **arguments)


def test_building_needs_the_standard_library_only():
    code = (
        "import sys; from wattune.workloads.build import build_workload;"
        "build_workload('bert-base', 'mnli', batch_size=8, precision='fp16');"
        "heavy = {'torch', 'transformers', 'numpy', 'pandas', 'sklearn', 'mlflow'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# --- counting ---


def test_without_torch_the_message_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def refuse(name, *args, **kwargs):
        if name.split(".")[0] in {"torch", "transformers"}:
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(BoardError, match=r"make setup EXTRAS=train"):
        opcost.count_config(LLAMA, "fp32")


@pytest.fixture
def counting():
    pytest.importorskip("torch")
    pytest.importorskip("transformers")


@pytest.mark.long
@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("model", ["bert-small", "pythia-31m"])
def test_recount_agrees_with_the_committed_table(model):
    for precision in ("fp32", "fp16"):
        recounted = opcost.count_config(MODELS[model].hf_config, precision)
        committed = opcost.polynomials(model, precision)
        assert recounted.params == committed.params
        assert recounted.base_params == committed.base_params
        for batch, length in ((8, 128), (32, 48)):
            _agree(recounted.step_cost(batch, length), committed.step_cost(batch, length))


@pytest.mark.usefixtures("counting")
def test_recount_of_deberta_at_one_point():
    model, *_ = opcost._build(dict(MODELS["deberta-v2-xlarge"].hf_config), "DeBERTa", 2)
    forward, backward = opcost._count_step(model, "fp32", 3, 77, 2, "sequence classification", 2)
    committed = opcost.step_cost("deberta-v2-xlarge", "fp32", 3, 77)
    for counted, phase in ((forward, committed.forward), (backward, committed.backward)):
        assert counted[0] == phase.flops
        assert counted[1] == pytest.approx(phase.bytes, rel=0.02)
        assert counted[2] == pytest.approx(phase.launches, rel=0.02)


def _agree(counted, committed):
    for phase in opcost.PHASES:
        a, b = getattr(counted, phase), getattr(committed, phase)
        assert a.flops == b.flops
        assert a.bytes == pytest.approx(b.bytes, rel=0.02)
        assert a.launches == pytest.approx(b.launches, rel=0.02)


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("model", sorted(MODELS))
def test_the_architecture_has_the_catalogues_parameters(model):
    spec = MODELS[model]
    built, config, head, decoder, base = opcost._build(dict(spec.hf_config), model, 2)
    assert base == spec.params
    assert sum(p.numel() for p in built.parameters()) == opcost.polynomials(model, "fp32").params
    assert config.num_hidden_layers == spec.layers
    assert head == "sequence classification"
    assert decoder == (spec.family in {"gpt-neox", "llama", "qwen2"})


# --- fine-tuning methods ---

TINY_BERT = {
    "model_type": "bert",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}


def _tiny_bert_products(batch, length, *, layers=2, hidden=32, ffn=64):
    """FLOPs of the matrix products of one pass, by hand: per layer (weights, activations against activations), and the head."""
    weights = 2 * batch * length * (4 * hidden * hidden + 2 * hidden * ffn)
    attention = 2 * 2 * batch * length * length * hidden
    pooler, classifier = 2 * batch * hidden * hidden, 2 * batch * hidden * 2
    return layers * weights, layers * attention, pooler, classifier


@pytest.mark.usefixtures("counting")
def test_full_training_of_a_tiny_bert_by_hand():
    weights, attention, pooler, classifier = _tiny_bert_products(4, 24)
    cost = opcost.count_config(TINY_BERT, "fp32").step_cost(4, 24)
    assert cost.forward.flops == weights + attention + pooler + classifier
    assert cost.backward.flops == 2 * cost.forward.flops, "a gradient of each operand"


@pytest.mark.usefixtures("counting")
def test_bitfit_of_a_tiny_bert_by_hand():
    weights, attention, pooler, classifier = _tiny_bert_products(4, 24)
    counted = opcost.count_config(TINY_BERT, "fp32", method="bitfit")
    cost = counted.step_cost(4, 24)
    assert cost.forward.flops == weights + attention + pooler + classifier
    # Only the classifier's matrix has a gradient; the query, key and value products of the first layer carry none to the
    # embeddings, below which nothing is trained but the embeddings' LayerNorm bias, so that they do carry one to it.
    assert cost.backward.flops == weights + 2 * attention + pooler + 2 * classifier
    biases = 2 * (4 * 32 + 64 + 32 + 2 * 32) + 32 + 32  # layers, embeddings' norm, pooler
    assert counted.params == biases + 2 * 32 + 2
    full = opcost.count_config(TINY_BERT, "fp32")
    assert cost.optimizer.bytes / full.step_cost(4, 24).optimizer.bytes == pytest.approx(
        counted.params / full.params, rel=0.05
    )


@pytest.mark.usefixtures("counting")
def test_lora_of_a_tiny_bert_by_hand():
    pytest.importorskip("peft")
    weights, attention, pooler, classifier = _tiny_bert_products(4, 24)
    rank = RANK
    adapters = 2 * 2 * 2 * (2 * 4 * 24 * 32 * rank)  # layers, query and value, down and up
    counted = opcost.count_config(TINY_BERT, "fp32", method="lora")
    cost = counted.step_cost(4, 24)
    assert counted.params == 2 * 2 * 2 * 32 * rank + 2 * 32 + 2
    assert cost.forward.flops == weights + adapters + attention + pooler + classifier
    # Nothing below the first layer is trained: its query, key and value products, and what the adapters would hand down, pass
    # no gradient on, and its keys, which have no adapter, need none; of each adapter both matrices have one.
    first_qkv = 3 * 2 * 4 * 24 * 32 * 32
    handed_down = adapters / 4  # the lower matrices of the first layer
    first_keys = 2 * 4 * 24 * 24 * 32
    frozen = weights - first_qkv - first_keys
    assert cost.backward.flops == pytest.approx(
        frozen + 2 * adapters - handed_down + 2 * attention + pooler + 2 * classifier, rel=1e-9
    )


@pytest.mark.usefixtures("counting")
def test_grouped_query_attention_saves_weights_and_not_scores():
    def counted(kv_heads):
        return opcost.count_config(LLAMA | {"num_key_value_heads": kv_heads}, "fp32").step_cost(2, 64)

    full, grouped = counted(4), counted(2)
    saved = 2 * (2 * 64) * 2 * (128 * 32 * 2) * 2  # tokens, layers, two heads fewer, keys and values
    assert full.forward.flops - grouped.forward.flops == saved
    assert full.backward.flops - grouped.backward.flops == 2 * saved
    sums = grouped.backward.launches - full.backward.launches
    assert sums == 2 * 2, "in each layer the gradients of keys and of values are summed over their group"


@pytest.mark.long
@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    ("model", "method"), [("bert-small", "bitfit"), ("pythia-31m", "lora"), ("smollm2-135m", "lora")]
)
def test_recounted_methods_agree_with_the_committed_table(model, method):
    if method == "lora":
        pytest.importorskip("peft")
    recounted = opcost.count_config(MODELS[model].hf_config, "bf16", method=method)
    committed = opcost.polynomials(model, "bf16", method)
    assert recounted.params == committed.params
    _agree(recounted.step_cost(8, 128), committed.step_cost(8, 128))


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("precision", opcost.PRECISIONS)
def test_adapters_save_gradients_and_almost_the_whole_optimizer(model, precision):
    full = opcost.polynomials(model, precision)
    for method in opcost.methods_of(model)[1:]:
        other = opcost.polynomials(model, precision, method)
        cost, whole = other.step_cost(16, 128), full.step_cost(16, 128)
        assert other.params < 0.02 * full.params
        assert cost.optimizer.bytes < 0.03 * whole.optimizer.bytes
        assert 0.45 < cost.backward.flops / whole.backward.flops < 0.65, "no gradients of frozen matrices"
        assert cost.forward.flops >= whole.forward.flops


def test_bitfit_needs_biases():
    assert opcost.methods_of("smollm2-135m") == ("full", "lora")
    assert opcost.methods_of("qwen2.5-0.5b") == ("full", "lora", "bitfit"), (
        "its query, key and value have biases"
    )
    with pytest.raises(InputError, match="no biases"):
        opcost.polynomials("tinyllama-1.1b", "fp16", "bitfit")
    with pytest.raises(InputError, match="'qlora' is unknown"):
        opcost.step_cost("bert-base", "fp16", 8, 128, "qlora")


@pytest.mark.usefixtures("counting")
def test_bytes_and_flops_of_one_known_product():
    import torch

    left, right = torch.empty(8, 16, device="meta"), torch.empty(16, 4, device="meta")
    with opcost._tally_mode() as mode:
        (left @ right).t().view(4, 8)  # views cost nothing
    assert mode.tally.counts() == (2 * 8 * 16 * 4, 4 * (8 * 16 + 16 * 4 + 8 * 4), 1)


@pytest.mark.usefixtures("counting")
def test_a_lookup_reads_its_rows_and_not_the_table():
    import torch

    table, ids = torch.empty(1000, 64, device="meta"), torch.zeros(2, 8, dtype=torch.long, device="meta")
    with opcost._tally_mode() as mode:
        torch.nn.functional.embedding(ids, table)
    rows = 2 * 8 * 64 * 4
    assert mode.tally.counts() == (0, 2 * rows + 2 * 8 * 8, 1)


@pytest.mark.usefixtures("counting")
def test_autocast_casts_each_weight_once_and_back():
    import torch

    layer = torch.nn.Linear(32, 16, bias=False, device="meta")
    data = torch.empty(8, 32, device="meta")
    with opcost._tally_mode() as mode, opcost._gpu_mode(torch.float16):
        first, second = layer(data), layer(data)
        assert first.dtype == torch.float16
    weight, inputs, outputs = 32 * 16, 8 * 32, 8 * 16
    casts = 6 * weight + 2 * 6 * inputs  # the weight once, the inputs at each call
    products = 2 * 2 * (weight + inputs + outputs)
    assert mode.tally.counts() == (2 * 2 * 8 * 32 * 16, casts + products, 5)
    with opcost._tally_mode() as mode:
        (first.sum() + second.sum()).backward()
    assert layer.weight.grad.dtype == torch.float32


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "gemma"])
def test_any_configuration_can_be_counted(tmp_path, config):
    path = tmp_path / "tiny" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(config))
    counted = opcost.count_config(path, "bf16")
    assert (counted.family, counted.layers, counted.hidden) == (config["model_type"], 2, 128)
    assert counted.decoder
    heads, kv, ffn = 128, 32 * config["num_key_value_heads"], 256
    per_token = 2 * (128 * heads * 2 + 128 * kv * 2 + 3 * 128 * ffn)
    products = (
        2 * 64 * 2 * (per_token + 2 * 2 * 64 * heads) + 2 * 64 * 2 * 128 * 2
    )  # blocks, then the classifier
    forward = counted.step_cost(2, 64).forward
    assert forward.flops == pytest.approx(products, rel=0.01)
    workload = build_from_config(path, "mnli", batch_size=16, precision="bf16")
    assert (workload.id, workload.model, workload.family) == ("tiny-mnli", "tiny", config["model_type"])
    assert workload.params_m == pytest.approx(counted.base_params / 1e6)
    assert workload.seq_len == pytest.approx(TASKS["mnli"].lengths.mean_pythia, rel=0.01)


@pytest.mark.usefixtures("counting")
def test_a_decoder_without_classifier_is_counted_as_a_language_model():
    counted = opcost.count_config(LLAMA | {"model_type": "granite"}, "fp32")
    assert counted.head == "causal language model"
    assert counted.step_cost(2, 64).forward.flops > 2 * 64 * 2 * 128 * 1000  # the logits alone


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "llama", ', "not complete JSON"),
        ("[1, 2]", "no Hugging Face model configuration"),
        ('{"hidden_size": 8}', "no Hugging Face model configuration"),
        ('{"model_type": "not-a-model"}', "no model type 'not-a-model'"),
        ('{"model_type": "vit"}', "not a text model"),
        ('{"model_type": "bert", "hidden_size": 100, "num_attention_heads": 7}', "can be built"),
        ('{"model_type": "bert", "hidden_size": "wide"}', "can be built"),
        ('{"model_type": "bert", "num_hidden_layers": -3}', "no layers"),
    ],
)
def test_bad_configurations_are_refused(tmp_path, text, said):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(InputError, match=said):
        opcost.count_config(path, "fp32")


def test_a_missing_configuration_is_named(tmp_path):
    with pytest.raises(InputError, match=r"absent\.json does not exist"):
        opcost.count_config(tmp_path / "absent.json", "fp32")


@pytest.mark.usefixtures("counting")
def test_the_table_is_written_where_asked(tmp_path, monkeypatch):
    monkeypatch.setattr(opcost, "table_document", lambda: {"models": {}})
    before = opcost.TABLE.read_bytes()
    assert opcost.write_table(tmp_path / "table.json").read_text() == '{\n "models": {}\n}\n'
    assert opcost.TABLE.read_bytes() == before


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize("method", opcost.METHODS)
@pytest.mark.parametrize(
    "config",
    [
        TINY_BERT,
        {"model_type": "gpt_neox", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
         "vocab_size": 99},
        {"model_type": "xlm-roberta", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
         "vocab_size": 99},
        LLAMA,
    ],
    ids=lambda config: config["model_type"],
)  # fmt: skip
def test_what_is_counted_is_what_the_runner_trains(config, method):
    pytest.importorskip("peft")
    import transformers

    from wattune.workloads.finetune import models
    from wattune.workloads.finetune.spec import FinetuneSpec

    built = transformers.AutoConfig.for_model(**config, pad_token_id=0, num_labels=2)
    model = transformers.AutoModelForSequenceClassification.from_config(built)
    spec = FinetuneSpec(model="bert-base", task="sst2", method=method)
    if method == "bitfit" and config is LLAMA:
        for refuses in (
            lambda: models._adapted(spec, model),
            lambda: opcost.count_config(config, "fp32", method=method),
        ):
            with pytest.raises(InputError, match="no biases"):
                refuses()
        return
    trained = sum(p.numel() for p in models._adapted(spec, model).parameters() if p.requires_grad)
    assert trained == opcost.count_config(config, "fp32", method=method).params
