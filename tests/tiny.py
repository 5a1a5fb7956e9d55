"""A tiny model with a tokenizer, and text of our own, for tests of fine-tuning."""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path
from typing import Any

KINDS = ("river", "engine")
WORDS = {
    "river": ["water", "bank", "stream", "flood", "bridge", "boat", "rain", "fish"],
    "engine": ["piston", "valve", "fuel", "gear", "oil", "spark", "wheel", "steam"],
}
FILLERS = [
    "the",
    "old",
    "a",
    "near",
    "under",
    "with",
    "and",
    "runs",
    "slow",
    "fast",
    "today",
    "again",
    "far",
    "from",
]


def rows(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Sentences about rivers (0) and engines (1)."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        label = draw.randrange(2)
        words = draw.choices(FILLERS, k=draw.randint(2, 9)) + draw.choices(
            WORDS[KINDS[label]], k=draw.randint(1, 3)
        )
        draw.shuffle(words)
        made.append({"text": " ".join(words), "label": label})
    return made


def write_csv(path: Path, made: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    return path


def write_jsonl(path: Path, made: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in made), encoding="utf-8")
    return path


BERT = {
    "model_type": "bert",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
}
NEOX = {
    "model_type": "gpt_neox",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
LLAMA = {
    "model_type": "llama",
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def folder(
    path: Path, config: dict[str, Any], *, pad: bool = True, end: bool = True, weights: bool = False
) -> Path:
    """A checkpoint's folder: config.json, a tokenizer of our words, and random weights where asked for."""
    import tokenizers
    import transformers

    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    words = sorted({*FILLERS, *WORDS["river"], *WORDS["engine"]})
    vocabulary = {
        word: number for number, word in enumerate(["[END]", "[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])
    }
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]"}
    if config["model_type"] == "bert":
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 3), ("[SEP]", 4)],
        )
        names |= {"cls_token": "[CLS]", "sep_token": "[SEP]"}
    if pad:
        names["pad_token"] = "[PAD]"
    if end:
        names["eos_token"] = "[END]"
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(path)
    if weights:
        transformers.set_seed(1)
        settings = transformers.AutoConfig.for_model(**config)
        auto = transformers.AutoModel if config["model_type"] == "bert" else transformers.AutoModelForCausalLM
        auto.from_config(settings).save_pretrained(path)
    return path


def environment(home: Path) -> dict[str, str]:
    """Of a process that has nothing in its cache."""
    return {
        **os.environ,
        "HF_HOME": str(home),
        "PYTHONPATH": str(Path(__file__).parents[1] / "src"),
        "OMP_NUM_THREADS": "1",
    }
