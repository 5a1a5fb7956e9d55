"""Features of a job before it starts: from its configuration and a sample of its tokenised data."""

from __future__ import annotations

import dataclasses
from typing import Any

from wattune.core.features import FeatureValue
from wattune.workloads import opcost
from wattune.workloads.catalogue import catalogue_features
from wattune.workloads.finetune import hub
from wattune.workloads.finetune.spec import FinetuneSpec

SAMPLE = 2000
"""Examples whose tokens are counted."""


def of_config(config: Any, spec: FinetuneSpec) -> dict[str, FeatureValue]:
    """Family, layers, hidden size and parameters, of the catalogue's entry or counted on the architecture.

    Args:
        config: of transformers, or the content of a config.json.
        spec: the job; a model of the catalogue whose shape is not changed keeps the catalogue's figures.
    """
    if spec.listed is not None and not spec.name_or_path and not spec.config:
        known = catalogue_features(spec.model)
        return {name: known[name] for name in ("family", "layers", "hidden", "params_m")}
    shape = opcost.shape_of(config if isinstance(config, dict) else config.to_dict())
    return {
        "family": shape.family,
        "layers": float(shape.layers),
        "hidden": float(shape.hidden),
        "params_m": shape.base_params / 1e6,
    }


def job_features(spec: FinetuneSpec) -> dict[str, FeatureValue]:
    """Features of a job, without loading its weights.

    Args:
        spec: the job, checked.

    Returns:
        Values by name, `seq_len` as the mean of the tokens of at most `SAMPLE` examples, cut at the job's longest.

    Raises:
        InputError: model or data are not as they must be.
        BoardError: something is missing: a package, the network.
    """
    from wattune.workloads.finetune import models, sources
    from wattune.workloads.finetune.tokens import specials_of, tokenise

    sampled = dataclasses.replace(spec, max_examples=min(SAMPLE, spec.max_examples or SAMPLE), held_out=0.0)
    checkpoint = models.open_checkpoint(sampled, weights=False)
    pairs = bool(spec.job and spec.job.pair)
    specials = 2 if checkpoint.tokenizer is None else specials_of(checkpoint.tokenizer, pairs)
    train, _ = sources.load(sampled, "pythia" if checkpoint.decoder else "bert", specials)
    if checkpoint.tokenizer is None:
        checkpoint.tokenizer = models.own_tokenizer(train, checkpoint.config, decoder=checkpoint.decoder)
    models.give_padding(checkpoint.tokenizer, decoder=checkpoint.decoder, name=checkpoint.name)
    table = tokenise(
        train, checkpoint.tokenizer, longest=models.longest_of(spec, checkpoint),
        rows_of_vocabulary=int(checkpoint.config.get_text_config().vocab_size),
        causal=spec.task_kind == "causal-lm", typed=False,
    )  # fmt: skip
    return of_config(checkpoint.config, spec) | {
        "seq_len": float(table.lengths.mean()),
        "batch_size": float(spec.examples_per_pass * spec.accumulation),
    }


def model_features(spec: FinetuneSpec) -> dict[str, FeatureValue]:
    """Features of a job's model alone; with a task of the catalogue also the published mean length of its examples.

    Raises:
        InputError: no such model.
        BoardError: something is missing: a package, the network.
    """
    folder = hub.model_folder(
        spec.checkpoint, revision=spec.revision, trust_pickle=True, weights=False, fetch=spec.fetch_words
    )
    config = hub.read_config(folder)
    found = of_config(config, spec)
    if spec.job is not None:
        decoder = opcost.shape_of(config).decoder
        found["seq_len"] = spec.job.lengths.mean_tokens("pythia" if decoder else "bert")
    return found
