"""The catalogue: models and nine GLUE tasks with their true shapes and sizes, each with its source.

Nine models are the paper's, four are later ones of other families.

Standard library only. With which batch size and precision the paper fine-tuned each model is not public;
`ModelSpec.defaults_source` says where each default comes from.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattune.core.errors import InputError
from wattune.core.features import FeatureValue

_BERT_MINIATURES = (
    "shape and name: google/bert_uncased_L-{layers}_H-{hidden}_A-{heads} cards, Turc et al., arXiv 1908.08962"
)
_BERT = "shape: Devlin et al., arXiv 1810.04805"
_PYTHIA = "shape: EleutherAI's config.json of the checkpoint (Biderman et al., arXiv 2304.01373)"
_QWEN = "shape: config.json of Qwen/Qwen2.5-0.5B (Qwen2.5 technical report, arXiv 2412.15115)"
_SMOL = "shape: config.json of {hf_id} (Allal et al., arXiv 2502.02737)"
_TINY = "shape: config.json of TinyLlama/TinyLlama-1.1B-Chat-v1.0 (Zhang et al., arXiv 2401.02385)"
_DEBERTA = "shape: config.json of microsoft/deberta-v2-xlarge (He et al., arXiv 2006.03654)"

_FROM_SCRIPTS = (
    "batch size and precision of the research group's published scripts (github.com/esainulab/slmdvfs)"
)
_SCRIPT_DEFAULT = "batch size by default in the group's training script; FP16 as in its BERT runs"
_OURS = "our assumption: batch 16 and BF16, as these models were pretrained; Pythia's token lengths, theirs not being published"
_FOR_MEMORY = "our assumption: half the script's default batch, for memory; FP16"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One pretrained model.

    Attributes:
        id: name in this project.
        family: the `model_type` of its Hugging Face configuration, with hyphens.
        hf_id: checkpoint on the Hugging Face hub.
        layers: transformer blocks.
        hidden: width of the hidden state.
        heads: attention heads.
        ffn: width of the feed-forward layer.
        vocab: rows of the token embedding.
        params: parameters of the pretrained model with its embeddings: with the pooler for BERT, with the
            untied output embedding for Pythia (which a sequence classifier drops).
        hf_config: what builds the real architecture, the content of a config.json.
        batch_size: examples per step by default.
        precision: ``fp32``, ``fp16`` or ``bf16`` by default.
        tokenizer: which of the published token lengths apply, ``bert`` or ``pythia``.
        source: where the shape comes from.
        defaults_source: where the default batch size and precision come from.
        classifier: what the sequence classifier adds to or takes from the pretrained model.
    """

    id: str
    family: str
    hf_id: str
    layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    params: int
    hf_config: Mapping[str, Any] = field(hash=False)
    batch_size: int
    precision: str
    tokenizer: str
    source: str
    defaults_source: str
    classifier: str

    @property
    def params_m(self) -> float:
        """Parameters in millions."""
        return self.params / 1e6


def family_of(model_type: str) -> str:
    """The family's name for a Hugging Face `model_type`: the same with hyphens, e.g. ``gpt-neox``."""
    return model_type.replace("_", "-")


def _shape(model_type: str, layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
    }


def _bert(
    name: str,
    hf_id: str,
    shape: tuple[int, int, int],
    params: int,
    batch_size: int,
    source: str,
    defaults: str,
) -> ModelSpec:
    layers, hidden, heads = shape
    ffn, vocab = 4 * hidden, 30522
    config = _shape("bert", layers, hidden, heads, ffn, vocab) | {
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-12,
        "pad_token_id": 0,
    }
    return ModelSpec(
        id=name,
        family="bert",
        hf_id=hf_id,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        params=params,
        hf_config=config,
        batch_size=batch_size,
        precision="fp16",
        tokenizer="bert",
        source=source.format(layers=layers, hidden=hidden, heads=heads),
        defaults_source=defaults,
        classifier="keeps the pooler, adds dropout and one linear layer",
    )


def _pythia(size: str, shape: tuple[int, int, int], params: int, batch_size: int, defaults: str) -> ModelSpec:
    layers, hidden, heads = shape
    ffn, vocab = 4 * hidden, 50304
    config = _shape("gpt_neox", layers, hidden, heads, ffn, vocab) | {
        "hidden_act": "gelu",
        "rotary_pct": 0.25,
        "rotary_emb_base": 10000,
        "use_parallel_residual": True,
        "tie_word_embeddings": False,
        "max_position_embeddings": 2048,
        "layer_norm_eps": 1e-5,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
        "use_cache": False,
    }
    return ModelSpec(
        id=f"pythia-{size}",
        family="gpt-neox",
        hf_id=f"EleutherAI/pythia-{size}",
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        params=params,
        hf_config=config,
        batch_size=batch_size,
        precision="fp16",
        tokenizer="pythia",
        source=_PYTHIA,
        defaults_source=defaults,
        classifier="drops the output embedding, adds one linear layer without bias",
    )


def _llama_like(
    name: str,
    model_type: str,
    hf_id: str,
    shape: tuple[int, int, int, int, int, int],
    params: int,
    source: str,
    **more: Any,
) -> ModelSpec:
    """A decoder with RMSNorm, rotary positions, a gated feed-forward layer and grouped-query attention.

    `shape` is layers, hidden, heads, key-value heads, ffn, vocab.
    """
    layers, hidden, heads, kv_heads, ffn, vocab = shape
    config = _shape(model_type, layers, hidden, heads, ffn, vocab) | {
        "num_key_value_heads": kv_heads,
        "hidden_act": "silu",
        "pad_token_id": 0,
        "use_cache": False,
        **more,
    }
    return ModelSpec(
        id=name,
        family=family_of(model_type),
        hf_id=hf_id,
        layers=layers,
        hidden=hidden,
        heads=heads,
        ffn=ffn,
        vocab=vocab,
        params=params,
        hf_config=config,
        batch_size=16,
        precision="bf16",
        tokenizer="pythia",
        source=source.format(hf_id=hf_id),
        defaults_source=_OURS,
        classifier="drops an untied output embedding, adds one linear layer without bias",
    )


_DEBERTA_V2_XLARGE = ModelSpec(
    id="deberta-v2-xlarge",
    family="deberta-v2",
    hf_id="microsoft/deberta-v2-xlarge",
    layers=24,
    hidden=1536,
    heads=24,
    ffn=6144,
    vocab=128100,
    params=884_593_152,
    hf_config=_shape("deberta-v2", 24, 1536, 24, 6144, 128100)
    | {
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.1,
        "attention_head_size": 64,
        "max_position_embeddings": 512,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
        "relative_attention": True,
        "max_relative_positions": -1,
        "position_buckets": 256,
        "pos_att_type": ["c2p", "p2c"],
        "share_att_key": True,
        "norm_rel_ebd": "layer_norm",
        "position_biased_input": False,
        "conv_kernel_size": 3,
        "conv_act": "gelu",
        "pad_token_id": 0,
    },
    batch_size=16,
    precision="fp32",
    tokenizer="bert",
    source=_DEBERTA,
    defaults_source=_FROM_SCRIPTS,
    classifier="adds a pooler with gelu, dropout and one linear layer",
)

MODELS: dict[str, ModelSpec] = {
    spec.id: spec
    for spec in (
        _bert(
            "bert-small",
            "google/bert_uncased_L-4_H-512_A-8",
            (4, 512, 8),
            28_763_648,
            32,
            _BERT_MINIATURES,
            _SCRIPT_DEFAULT,
        ),
        _bert(
            "bert-medium",
            "google/bert_uncased_L-8_H-512_A-8",
            (8, 512, 8),
            41_373_184,
            32,
            _BERT_MINIATURES,
            _SCRIPT_DEFAULT,
        ),
        _bert(
            "bert-base",
            "google-bert/bert-base-uncased",
            (12, 768, 12),
            109_482_240,
            128,
            _BERT,
            _FROM_SCRIPTS,
        ),
        _bert(
            "bert-large",
            "google-bert/bert-large-uncased",
            (24, 1024, 16),
            335_141_888,
            32,
            _BERT,
            _FROM_SCRIPTS,
        ),
        _DEBERTA_V2_XLARGE,
        _pythia("31m", (6, 256, 8), 30_494_720, 32, _SCRIPT_DEFAULT),
        _pythia("70m", (6, 512, 8), 70_426_624, 32, _SCRIPT_DEFAULT),
        _pythia("410m", (24, 1024, 16), 405_334_016, 32, _SCRIPT_DEFAULT),
        _pythia("1b", (16, 2048, 8), 1_011_781_632, 16, _FOR_MEMORY),
        _llama_like(
            "smollm2-135m",
            "llama",
            "HuggingFaceTB/SmolLM2-135M",
            (30, 576, 9, 3, 1536, 49152),
            134_515_008,
            _SMOL,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
        ),
        _llama_like(
            "smollm2-360m",
            "llama",
            "HuggingFaceTB/SmolLM2-360M",
            (32, 960, 15, 5, 2560, 49152),
            361_821_120,
            _SMOL,
            tie_word_embeddings=True,
            max_position_embeddings=8192,
            rms_norm_eps=1e-5,
        ),
        _llama_like(
            "tinyllama-1.1b",
            "llama",
            "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
            (22, 2048, 32, 4, 5632, 32000),
            1_100_048_384,
            _TINY,
            tie_word_embeddings=False,
            max_position_embeddings=2048,
            rms_norm_eps=1e-5,
        ),
        _llama_like(
            "qwen2.5-0.5b",
            "qwen2",
            "Qwen/Qwen2.5-0.5B",
            (24, 896, 14, 2, 4864, 151936),
            494_032_768,
            _QWEN,
            tie_word_embeddings=True,
            max_position_embeddings=32768,
            rms_norm_eps=1e-6,
        ),
    )
}
"""The models, by id."""

PAPER_MODELS = (
    *("bert-small", "bert-medium", "bert-base", "bert-large", "deberta-v2-xlarge"),
    *("pythia-31m", "pythia-70m", "pythia-410m", "pythia-1b"),
)
"""The nine of the paper's workloads (its exact checkpoints are not public)."""

_SIZES = "sizes: huggingface/datasets, datasets/glue/README.md"
_COUNTED = (
    "token lengths: counted on the public GLUE texts with the tokenizers of bert-base-uncased ([CLS] and"
    " [SEP] included) and of GPT-NeoX-20B (no special tokens)"
)
_INFERRED = (
    "token lengths inferred: mean estimated from the texts' bytes and the bytes per token of sibling tasks,"
    " shape borrowed from QNLI (whose ratio of mean to median fits this task's published median best,"
    " github.com/WoosukKwon/retraining-free-pruning issue 2)"
)


@dataclass(frozen=True, slots=True)
class LengthStats:
    """Published statistics of a task's token lengths.

    Attributes:
        mean: tokens per example with BERT's tokenizer, special tokens included.
        median: likewise.
        p95: 95th percentile.
        longest: longest example.
        shortest: shortest example; not published, an assumption that shapes the lower half only.
        longest_in_batch: pairs of a batch size and the mean length of the longest example of such batches.
        mean_pythia: tokens per example with the Pythia tokenizer, which adds no special tokens.
        inferred: the statistics are not counted on the training texts but inferred.
    """

    mean: float
    median: float
    p95: float
    longest: int
    shortest: int
    longest_in_batch: tuple[tuple[int, float], ...]
    mean_pythia: float
    inferred: bool = False

    def mean_tokens(self, tokenizer: str) -> float:
        """Mean tokens per example with the ``bert`` or the ``pythia`` tokenizer."""
        return self.mean_pythia if tokenizer == "pythia" else self.mean

    def scaled(self, factor: float) -> LengthStats:
        """The same shape at another mean, marked as inferred."""
        return LengthStats(
            mean=self.mean * factor,
            median=self.median * factor,
            p95=self.p95 * factor,
            longest=round(self.longest * factor),
            shortest=max(1, round(self.shortest * factor)),
            longest_in_batch=tuple((batch, value * factor) for batch, value in self.longest_in_batch),
            mean_pythia=self.mean_pythia * factor,
            inferred=True,
        )


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One GLUE task.

    Attributes:
        id: name in this project.
        glue: name of its configuration in the GLUE data set.
        rows: examples of the training split.
        validation_rows: examples of the validation split (MNLI: the matched one).
        labels: outputs of the classifier; 1 for regression.
        metric: GLUE's metric.
        pair: whether an example is a pair of sentences.
        lengths: token-length statistics of the training split.
        source: where the figures come from.
    """

    id: str
    glue: str
    rows: int
    validation_rows: int
    labels: int
    metric: str
    pair: bool
    lengths: LengthStats
    source: str


def _longest(*values: float) -> tuple[tuple[int, float], ...]:
    return tuple(zip((16, 32, 128, 256, 512), values, strict=True))


_QNLI_LENGTHS = LengthStats(
    # Means of the development and the test split, which are alike; the longest is that of the test split.
    mean=51.14,
    median=48,
    p95=86.5,
    longest=294,
    shortest=10,
    longest_in_batch=_longest(95, 105.5, 136, 151.5, 175.5),
    mean_pythia=48.61,
    inferred=True,
)

TASKS: dict[str, TaskSpec] = {
    spec.id: spec
    for spec in (
        TaskSpec(
            "sst2",
            "sst2",
            67_349,
            872,
            2,
            "accuracy",
            False,
            LengthStats(13.32, 10, 33, 66, 3, _longest(35, 40, 49, 52, 54), 12.62),
            f"{_SIZES}; {_COUNTED}",
        ),
        TaskSpec(
            "qnli",
            "qnli",
            104_743,
            5_463,
            2,
            "accuracy",
            True,
            _QNLI_LENGTHS,
            f"{_SIZES}; {_COUNTED}; training lengths inferred from the development and test splits",
        ),
        TaskSpec(
            "mrpc",
            "mrpc",
            3_668,
            408,
            2,
            "F1 / accuracy",
            True,
            LengthStats(53.25, 53, 74, 103, 15, _longest(76, 80, 87, 92, 95), 51.02),
            f"{_SIZES}; {_COUNTED}",
        ),
        TaskSpec(
            "cola",
            "cola",
            8_551,
            1_043,
            2,
            "Matthews correlation",
            False,
            LengthStats(11.33, 10, 20, 47, 4, _longest(21, 23, 28, 30, 32), 9.50),
            f"{_SIZES}; {_COUNTED}",
        ),
        TaskSpec(
            "stsb",
            "stsb",
            5_749,
            1_500,
            1,
            "Pearson / Spearman correlation",
            True,
            LengthStats(27.81, 23, 60, 125, 9, _longest(62, 71, 81, 86, 92), 25.80),
            f"{_SIZES}; {_COUNTED}",
        ),
        TaskSpec(
            "qqp",
            "qqp",
            363_846,
            40_430,
            2,
            "F1 / accuracy",
            True,
            _QNLI_LENGTHS.scaled(29 / 51.14),
            f"{_SIZES}; {_INFERRED}",
        ),
        TaskSpec(
            "wnli",
            "wnli",
            635,
            71,
            2,
            "accuracy",
            True,
            LengthStats(37.07, 32, 72, 108, 12, _longest(75, 81, 95, 101, 106), 34.15),
            f"{_SIZES}; {_COUNTED}",
        ),
        TaskSpec(
            "mnli",
            "mnli",
            392_702,
            9_815,
            3,
            "accuracy",
            True,
            _QNLI_LENGTHS.scaled(40 / 51.14),
            f"{_SIZES}; {_INFERRED}",
        ),
        TaskSpec(
            "rte",
            "rte",
            2_490,
            277,
            2,
            "accuracy",
            True,
            LengthStats(70.20, 56, 157, 289, 12, _longest(163, 187, 212, 228, 243), 68.77),
            f"{_SIZES}; {_COUNTED}",
        ),
    )
}
"""The GLUE tasks, by id."""

TRAINING_TASKS = ("sst2", "qnli", "mrpc")
"""Tasks that governors learn from (arXiv 2607.05933)."""

HELD_OUT_TASKS = ("cola", "stsb", "qqp", "wnli", "mnli", "rte")
"""Tasks that governors are judged on (the same)."""


def max_length_of(task: TaskSpec) -> int:
    """Longest sequence kept by default, tokens: 128 for SST-2, else 256, as in the group's scripts."""
    return 128 if task.id == "sst2" else 256


def _find(kind: str, name: str, known: Mapping[str, Any]) -> Any:
    key = str(name).strip().lower()
    if key in known:
        return known[key]
    close = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
    raise InputError(
        f"There is no {kind} '{name}' in the catalogue.",
        f"Known: {', '.join(known)}.",
        f"Did you mean {' or '.join(close)}?" if close else "",
    )


def find_model(name: str) -> ModelSpec:
    """The model of that id, in any case.

    Raises:
        InputError: unknown; names what is close.
    """
    spec: ModelSpec = _find("model", name, MODELS)
    return spec


def find_task(name: str) -> TaskSpec:
    """The task of that id, in any case.

    Raises:
        InputError: unknown; names what is close.
    """
    spec: TaskSpec = _find("task", name, TASKS)
    return spec


def catalogue_features(
    model: str | None = None,
    task: str | None = None,
    *,
    batch_size: float | None = None,
    seq_len: float | None = None,
) -> dict[str, FeatureValue]:
    """Features of a governor that are known without measuring.

    Args:
        model: model id; None leaves its features out.
        task: task id; None leaves `seq_len` out unless given.
        batch_size: examples per step; the model's default where None.
        seq_len: mean tokens per example; where None, the task's mean with the model's tokenizer (BERT's
            without a model).

    Returns:
        Values by feature name; what nobody knows is left out.

    Raises:
        InputError: unknown model or task.
    """
    found: dict[str, FeatureValue] = {}
    spec = find_model(model) if model is not None else None
    if spec is not None:
        found |= {"family": spec.family, "layers": float(spec.layers), "hidden": float(spec.hidden)}
        found["params_m"] = spec.params_m
        found["batch_size"] = float(spec.batch_size)
    if task is not None:
        found["seq_len"] = find_task(task).lengths.mean_tokens(spec.tokenizer if spec else "bert")
    if batch_size is not None:
        found["batch_size"] = float(batch_size)
    if seq_len is not None:
        found["seq_len"] = float(seq_len)
    return found
