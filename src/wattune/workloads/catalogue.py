"""The catalogue: nine models and nine GLUE tasks with their true shapes and sizes, each with its source.

Standard library only. Which model was fine-tuned with which batch size and precision in the paper is not public;
`ModelSpec.defaults_source` says where each default comes from.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Union

from wattune.core.errors import InputError

_BERT_MINIATURES = "shape and name: google/bert_uncased_L-{layers}_H-{hidden}_A-{heads} cards, Turc et al., arXiv 1908.08962"
_BERT = "shape: Devlin et al., arXiv 1810.04805"
_PYTHIA = "shape: EleutherAI's config.json of the checkpoint (Biderman et al., arXiv 2304.01373)"
_DEBERTA = "shape: config.json of microsoft/deberta-v2-xlarge (He et al., arXiv 2006.03654)"

_FROM_SCRIPTS = "batch size and precision of the research group's published scripts (github.com/esainulab/slmdvfs)"
_SCRIPT_DEFAULT = "batch size by default in the group's training script; FP16 as in its BERT runs"
_FOR_MEMORY = "our assumption: half the script's default batch, for memory; FP16"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One pretrained model.

    Attributes:
        id: name in this project.
        family: the `model_type` of its Hugging Face configuration.
        hf_id: checkpoint on the Hugging Face hub.
        layers: transformer blocks.
        hidden: width of the hidden state.
        heads: attention heads.
        ffn: width of the feed-forward layer.
        vocab: rows of the token embedding.
        params: parameters of the pretrained model with its embeddings: with the pooler for BERT, with the untied output
            embedding for Pythia (which a sequence classifier drops).
        hf_config: what builds the real architecture, for `transformers.AutoConfig.for_model(family, **hf_config)`.
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
    hf_config: Mapping[str, Any]
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


def _shape(layers: int, hidden: int, heads: int, ffn: int, vocab: int) -> dict[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "intermediate_size": ffn,
        "vocab_size": vocab,
    }


def _bert(
    name: str, hf_id: str, shape: tuple[int, int, int], params: int, batch_size: int, source: str, defaults: str
) -> ModelSpec:
    layers, hidden, heads = shape
    ffn, vocab = 4 * hidden, 30522
    config = _shape(layers, hidden, heads, ffn, vocab) | {
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
    config = _shape(layers, hidden, heads, ffn, vocab) | {
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
        family="gpt_neox",
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


_DEBERTA_V2_XLARGE = ModelSpec(
    id="deberta-v2-xlarge",
    family="deberta-v2",
    hf_id="microsoft/deberta-v2-xlarge",
    layers=24,
    hidden=1536,
    heads=24,
    ffn=6144,
    vocab=128100,
    params=0,
    hf_config=_shape(24, 1536, 24, 6144, 128100)
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
            "bert-base", "google-bert/bert-base-uncased", (12, 768, 12), 109_482_240, 128, _BERT, _FROM_SCRIPTS
        ),
        _bert(
            "bert-large", "google-bert/bert-large-uncased", (24, 1024, 16), 335_141_888, 32, _BERT, _FROM_SCRIPTS
        ),
        _DEBERTA_V2_XLARGE,
        _pythia("31m", (6, 256, 8), 30_494_720, 32, _SCRIPT_DEFAULT),
        _pythia("70m", (6, 512, 8), 70_426_624, 32, _SCRIPT_DEFAULT),
        _pythia("410m", (24, 1024, 16), 405_334_016, 32, _SCRIPT_DEFAULT),
        _pythia("1b", (16, 2048, 8), 1_011_781_632, 16, _FOR_MEMORY),
    )
}
"""The models, by id."""


def find_model(name: str) -> ModelSpec:
    return MODELS[name.lower()]
