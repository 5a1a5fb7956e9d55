"""What a governor asks of a workload, from a file, or from the model and its first batches, whatever library they come from."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from wattune.core.errors import InputError
from wattune.core.features import FeatureValue
from wattune.core.numbers import decimal_number

LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
FAMILIES = {"gpt_neox": "gpt-neox", "deberta_v2": "deberta-v2"}
"""``model_type`` of a configuration -> our name, where it is not the same with ``-`` for ``_``."""


def parse_features(text: str, name: str) -> dict[str, Any]:
    """Feature values from a file: a JSON object, or YAML of the plainest kind, one ``name: value`` a line.

    Raises:
        InputError: neither of the two, nothing at all, or a name twice.
    """

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [key for key, _ in pairs]
        for key in names:
            if names.count(key) > 1:
                raise InputError(
                    f"The feature file {name} names '{key[:40]}' twice.",
                    "One value for each name was expected.",
                    "Leave one of them out.",
                )
        return dict(pairs)

    if text.lstrip()[:1] in ("{", "[", '"'):
        try:
            document = json.loads(text, object_pairs_hook=once)
        except (ValueError, RecursionError) as error:
            raise InputError(f"The feature file {name} is not complete JSON ({error}).") from error
        if not isinstance(document, dict):
            raise InputError(f"{name} is not a JSON object.", 'For example {"layers": 12, "seq_len": 40}.')
        return document
    found: list[tuple[str, Any]] = []
    for number, line in enumerate(text.splitlines(), 1):
        plain = line.split("#", 1)[0].rstrip()
        if not plain.strip() or plain.strip() == "---":
            continue
        key, colon, value = plain.partition(":")
        if not colon or key != key.strip() or not value.strip():
            raise InputError(
                f"Line {number} of the feature file {name} is '{line.strip()[:40]}'.",
                "A JSON object, or lines of `name: value`, were expected.",
                "For example `layers: 12`.",
            )
        found.append((key.strip("'\""), _value(value.strip())))
    if not found:
        raise InputError(
            f"The feature file {name} is empty.",
            "A JSON object, or lines of `name: value`, were expected.",
            "For example `layers: 12`.",
        )
    return once(found)


def _value(text: str) -> Any:
    if text in ("null", "~"):
        return None
    try:
        return decimal_number(text)
    except ValueError:
        return text.strip("'\"")


def model_features(model: Any) -> dict[str, FeatureValue]:
    """Family, layers, width and size of a model, as far as its configuration and parameters tell."""
    found: dict[str, FeatureValue] = {}
    config = getattr(model, "config", model)
    config = getattr(config, "text_config", None) or config
    kind = getattr(config, "model_type", None)
    if isinstance(kind, str) and kind:
        found["family"] = FAMILIES.get(kind, kind.replace("_", "-"))
    for name, places in (("layers", LAYERS), ("hidden", HIDDEN)):
        value = next((v for place in places if (v := _attribute(config, place)) is not None), None)
        if value is not None:
            found[name] = value
    parameters = getattr(getattr(model, "base_model", model), "parameters", None)
    if callable(parameters):
        count = sum(int(p.numel()) for p in parameters() if hasattr(p, "numel"))
        if count:
            found["params_m"] = count / 1e6
    return found


def _attribute(config: Any, name: str) -> float | None:
    value = config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)
    return float(value) if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


class Batches:
    """Batch size and mean length before padding, from the first batches a model sees.

    Args:
        wanted: how many batches are looked at.

    Attributes:
        seen: how many were.
    """

    def __init__(self, wanted: int = 4) -> None:
        self.wanted, self.seen = wanted, 0
        self._tokens = self._examples = 0.0
        self._largest = 0

    @property
    def enough(self) -> bool:
        """Whether nothing more needs to be looked at."""
        return self.seen >= self.wanted

    def look(self, batch: Mapping[str, Any]) -> None:
        """Take a batch into account: its ``attention_mask`` where it has one, else the shape of ``input_ids``."""
        ids, mask = batch.get("input_ids"), batch.get("attention_mask")
        shape = getattr(ids, "shape", None)
        if shape is None or len(shape) != 2 or self.enough:
            return
        examples, length = int(shape[0]), int(shape[1])
        tokens = float(examples * length)
        if mask is not None and tuple(getattr(mask, "shape", ())) == tuple(shape):
            tokens = float(mask.sum())
        if examples and math.isfinite(tokens):
            self._tokens += tokens
            self._examples += examples
            self._largest = max(self._largest, examples)
            self.seen += 1

    def features(self) -> dict[str, FeatureValue]:
        """What they say; empty where none was seen."""
        if not self.seen:
            return {}
        return {"seq_len": self._tokens / self._examples, "batch_size": float(self._largest)}
