"""Operation cost of a training step: FLOPs, bytes and kernel launches, counted on the real architecture.

The architecture is built by `transformers` on torch's meta device (shapes, no data) and one training step is
run on it: forward, backward, then gradient clipping and AdamW. Every aten operation that would launch a
kernel is counted. Counts are exact polynomials in batch size B and padded length L, `BASIS`; the committed
table `opcost_table.json` holds their coefficients, so that nobody needs torch to ask for a cost. `wattune
opcost --write` recounts it.

How it is counted:

* FLOPs: matrix products and convolutions, with the formulas of torch's own FLOP counter; a multiply-add is
  two.
* bytes: tensors read plus tensors written by each operation, each counted unfused. A broadcast tensor counts
  once; a lookup (embedding, gather) reads the rows it returns and not the table; what is overwritten is
  written only.
* launches: one for each operation that is not a view. Multi-tensor ("foreach") operations of the optimizer
  count the launches of ATen's multi-tensor-apply with its limits.
* fp16 and bf16 stand for automatic mixed precision: torch's CUDA autocast rules are applied to an fp32 model
  (casts of weights, once a step, and of activations are counted, with their gradients); fp16 adds the
  gradient scaler's unscaling. The optimizer works in fp32.
* Methods (`wattune.workloads.adapters`): ``full`` trains every parameter; ``lora`` adds low-rank matrices to the modules that
  PEFT adapts in the architecture (mostly the query and value projections); ``bitfit`` trains the biases. The latter two train the
  classifier's head as well and freeze the rest: autograd then computes no gradients of frozen matrices, nothing below the first
  trained layer, and the optimizer sees trained tensors only. Frozen weights stay fp32 and are cast at each use under autocast.
* The model trains (dropout as the fused kernel that GPUs use), attention is ``eager``, a padding mask is
  passed. The classifier has two outputs; their number makes no difference that matters.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, NoReturn

from wattune.core.errors import BoardError, InputError
from wattune.core.workload import PhaseCost, StepCost
from wattune.io import read_json, write_text
from wattune.workloads import adapters
from wattune.workloads.catalogue import MODELS, family_of, find_model

BASIS = ("1", "L", "L^2", "B", "BL", "BL^2")
"""Terms of a cost polynomial in batch size B and padded length L."""

PHASES = ("forward", "backward", "optimizer")
QUANTITIES = ("flops", "bytes", "launches")
PRECISIONS = ("fp32", "fp16", "bf16")
METHODS = ("full", "lora", "bitfit")
TABLE = Path(__file__).with_name("opcost_table.json")
COMMAND = "wattune opcost --write"

_SOLVE_AT = tuple((batch, length) for batch in (2, 3) for length in (16, 24, 40))
_VERIFY_AT = ((5, 57), (16, 128), (32, 200))

_CAUSAL = "causal language model"
_MASK_DIMS = {"deberta": (2,), "deberta-v2": (2,)}
_ANY_MASK = (4, 2, 0)
"""Dimensions of the padding masks to try: expanded and additive, as the tokenizer gives it, none.

Most models look at the values of a 2-D mask to expand it, and on the meta device there are no values."""

_MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors that one launch of ATen's multi-tensor-apply takes, by number of lists (MultiTensorApply.cuh)."""

_MAX_BLOCKS, _CHUNK = 320, 65536
"""Blocks of one such launch, and elements of one block (the same file)."""


@dataclass(frozen=True, slots=True)
class CostPolynomials:
    """Cost of a training step as polynomials in batch size and padded length.

    Attributes:
        coefficients: per phase and quantity the coefficients of `BASIS`.
        params: parameters that are trained, with the classifier.
        family: `model_type` of the configuration.
        layers: transformer blocks.
        hidden: width of the hidden state.
        base_params: parameters of the pretrained model with its embeddings.
        head: ``sequence classification`` or ``causal language model``, what was counted.
        decoder: whether the pretrained model is a causal language model.
    """

    coefficients: Mapping[str, Mapping[str, tuple[float, ...]]]
    params: int
    family: str
    layers: int
    hidden: int
    base_params: int
    head: str
    decoder: bool

    def step_cost(self, batch_size: int, seq_len: int) -> StepCost:
        """Cost of one step on a batch padded to `seq_len` tokens."""
        if batch_size < 1 or seq_len < 1:
            raise InputError(
                f"Batch size {batch_size} and length {seq_len} cannot be costed.", "Both must be at least 1."
            )
        terms = _terms(batch_size, seq_len)

        def phase(name: str) -> PhaseCost:
            rows = self.coefficients[name]
            return PhaseCost(
                *(
                    float(sum(c * t for c, t in zip(rows[quantity], terms, strict=True)))
                    for quantity in QUANTITIES
                )
            )

        return StepCost(*(phase(name) for name in PHASES))


def _terms(batch_size: int, seq_len: int) -> tuple[int, ...]:
    by_length = (1, seq_len, seq_len * seq_len)
    return by_length + tuple(batch_size * term for term in by_length)


# --- the committed table
# --------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    document = read_json(TABLE, "The operation-cost table", f"Make it with `{COMMAND}`.")
    assert isinstance(document, dict)
    return document


@functools.lru_cache(maxsize=256)
def polynomials(model_id: str, precision: str, method: str = "full") -> CostPolynomials:
    """Cost polynomials of a catalogue model from the committed table.

    Raises:
        InputError: unknown model, precision or method, or BitFit of a model without biases.
    """
    model = find_model(model_id)
    _check_precision(precision)
    _check_method(method)
    entry = _table()["models"][model.id]
    if method != "full":
        if method not in entry["methods"]:
            _refuse_bitfit(model.id)
        entry = entry["methods"][method]
    return CostPolynomials(
        coefficients={
            phase: {
                quantity: tuple(entry[precision][phase][quantity].get(term, 0) for term in BASIS)
                for quantity in QUANTITIES
            }
            for phase in PHASES
        },
        params=entry["trained_params"],
        family=model.family,
        layers=model.layers,
        hidden=model.hidden,
        base_params=model.params,
        head="sequence classification",
        decoder=model.tokenizer == "pythia",
    )


@functools.lru_cache(maxsize=8192)
def step_cost(model_id: str, precision: str, batch_size: int, seq_len: int, method: str = "full") -> StepCost:
    """Operation cost of one training step of a catalogue model.

    Args:
        model_id: id of the catalogue.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        batch_size: examples.
        seq_len: padded length of the batch, tokens.
        method: ``full``, ``lora`` or ``bitfit``.

    Raises:
        InputError: unknown model, precision or method, BitFit of a model without biases, or a size below 1.
    """
    return polynomials(model_id, precision, method).step_cost(batch_size, seq_len)


def methods_of(model_id: str) -> tuple[str, ...]:
    """Methods that a catalogue model can be fine-tuned with: BitFit needs biases."""
    return ("full", *(m for m in METHODS if m in _table()["models"][find_model(model_id).id]["methods"]))


def _check_method(method: str) -> None:
    if method not in METHODS:
        raise InputError(f"Method '{method}' is unknown.", f"One of {', '.join(METHODS)} was expected.")


def _refuse_bitfit(name: str) -> NoReturn:
    raise InputError(
        f"{name} has no biases, so that BitFit has nothing to train.", "full or lora was expected."
    )


def _check_precision(precision: str) -> None:
    if precision not in PRECISIONS:
        raise InputError(
            f"Precision '{precision}' is unknown.", f"One of {', '.join(PRECISIONS)} was expected."
        )


def table_document(models: Iterable[str] = tuple(MODELS)) -> dict[str, Any]:
    """Count the given models anew and return the table's document.

    Raises:
        BoardError: torch or transformers is missing.
    """
    torch, transformers = _import_torch()
    entries: dict[str, Any] = {}
    for model_id in models:
        config = MODELS[model_id].hf_config
        methods = [m for m in METHODS if m != "bitfit" or _has_biases(config)]
        by_method = {method: _method_entry(config, method) for method in methods}
        entries[model_id] = by_method.pop("full") | {"methods": by_method}
    return {
        "schema_version": 1,
        "command": COMMAND,
        "counted_with": {"torch": torch.__version__, "transformers": transformers.__version__},
        "basis": list(BASIS),
        "models": entries,
    }


def _method_entry(config: Mapping[str, Any], method: str) -> dict[str, Any]:
    counted = {precision: count_config(config, precision, method=method) for precision in PRECISIONS}
    return {"trained_params": counted["fp32"].params} | {
        precision: {
            phase: {
                quantity: {term: c for term, c in zip(BASIS, row[quantity], strict=True) if c}
                for quantity in QUANTITIES
            }
            for phase, row in polynomial.coefficients.items()
        }
        for precision, polynomial in counted.items()
    }


def write_table(path: Path | None = None) -> Path:
    """Recount every model of the catalogue and write the table.

    Args:
        path: where; the committed table by default.

    Returns:
        The file written.

    Raises:
        BoardError: torch or transformers is missing, or the file cannot be written.
    """
    path = path or TABLE
    write_text(path, json.dumps(table_document(), indent=1, sort_keys=True) + "\n")
    _table.cache_clear()
    polynomials.cache_clear()
    step_cost.cache_clear()
    return path


# --- counting
# -------------------------------------------------------------------------------------------------------


def _import_torch() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise BoardError(
            "Counting operations needs torch and transformers, which are not installed.",
            "The catalogue's models need neither: their costs are in a table.",
            "Install them with `make setup EXTRAS=train` or `pip install 'wattune[train]'`.",
        ) from error
    if not transformers.utils.is_torch_available():
        raise BoardError(
            f"transformers {transformers.__version__} does not work with torch {torch.__version__}.",
            "A pair that works together was expected.",
            "Install an older transformers (for example `pip install 'transformers<5'`) or a newer torch.",
        )
    return torch, transformers


def _read_config(config: Path | str | Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    if isinstance(config, Mapping):
        document, name = dict(config), "this configuration"
    else:
        document = read_json(Path(config), "The Hugging Face configuration")
        name = str(config)
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise InputError(
            f"There is no Hugging Face model configuration in {name}.",
            'A JSON object with a "model_type" was expected.',
            "Give the config.json of a checkpoint.",
        )
    return document, name


_NOT_SHAPE = {"model_type", "dtype", "torch_dtype", "quantization_config", "architectures"}
_NOT_SHAPE |= {"id2label", "label2id", "num_labels", "problem_type"}


def _build(document: dict[str, Any], name: str, n_labels: int) -> tuple[Any, Any, str, bool, int]:
    """Model on the meta device, configuration, head, whether it is a decoder, pretrained parameters."""
    torch, transformers = _import_torch()
    model_type = document["model_type"]
    if model_type not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"transformers {transformers.__version__} knows no model type '{model_type}' ({name}).",
            "The model_type of an architecture that transformers can build was expected.",
            "Check the file, or install a newer transformers.",
        )
    settings = {key: value for key, value in document.items() if key not in _NOT_SHAPE}
    try:
        config = transformers.AutoConfig.for_model(model_type, **settings).get_text_config()
        if min(config.num_hidden_layers, config.hidden_size) < 1:  # what a governor asks for must be there
            raise ValueError("it has no layers or no width")
        config.num_labels = n_labels
        config.use_cache = False
        if getattr(config, "pad_token_id", None) is None:
            config.pad_token_id = 0
    except Exception as error:  # configuration classes raise anything on bad values
        raise _not_built(name, error) from error
    heads = (
        ("sequence classification", transformers.AutoModelForSequenceClassification),
        (_CAUSAL, transformers.AutoModelForCausalLM),
    )
    kind = type(config)
    decoder = kind in transformers.AutoModelForCausalLM._model_mapping
    decoder &= kind not in transformers.AutoModelForMaskedLM._model_mapping
    for head, auto_class in heads:
        if kind not in auto_class._model_mapping:
            continue
        try:
            with torch.device("meta"):
                model = auto_class.from_config(config, attn_implementation="eager").float()
                pretrained = transformers.AutoModelForCausalLM if decoder else transformers.AutoModel
                base = pretrained.from_config(config, attn_implementation="eager")
        except Exception as error:  # model classes raise anything on impossible shapes
            raise _not_built(name, error) from error
        return model.train(), config, head, decoder, sum(p.numel() for p in base.parameters())
    raise InputError(
        f"Model type '{model_type}' ({name}) is not a text model that transformers can train.",
        "One with a sequence classifier or a causal language model was expected.",
    )


def _not_built(name: str, error: Exception) -> InputError:
    return InputError(
        f"No model can be built from {name}: {_first_line(error)}.",
        "A configuration whose values its architecture takes was expected.",
        "Save it again with `model.save_pretrained`.",
    )


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if lines and lines[0].endswith(":"):
        lines[0] = " ".join(lines[:2])
    return (lines[0] if lines else type(error).__name__).rstrip(".")


def _has_biases(config: Mapping[str, Any]) -> bool:
    model, _, head, *_ = _build(dict(config), "this configuration", 2)
    return _has_biases_to_train(model, causal=head == _CAUSAL)


def _has_biases_to_train(model: Any, *, causal: bool) -> bool:
    names = [name for name, _ in model.named_parameters()]
    return any(adapters.is_bias(name) and not adapters.in_head(name, causal=causal) for name in names)


def _adapt(model: Any, method: str, name: str, *, causal: bool) -> None:
    """Freeze what a method does not train, and add its adapters; in place."""
    if method == "full":
        return
    if method == "lora":
        torch, _ = _import_torch()
        peft = adapters.import_peft()
        settings = adapters.lora_settings(model.config.model_type)
        try:
            with torch.device("meta"):
                peft.inject_adapter_in_model(peft.LoraConfig(**settings), model)
        except ValueError as error:
            raise InputError(
                f"LoRA finds nothing to adapt in {name}: {_first_line(error)}.",
                f"Modules were expected as peft knows them: {settings['target_modules']}.",
            ) from error
        model.train()
    elif not _has_biases_to_train(model, causal=causal):
        _refuse_bitfit(name)
    for parameter, tensor in model.named_parameters():
        adapted = "lora_" in parameter if method == "lora" else adapters.is_bias(parameter)
        tensor.requires_grad_(adapted or adapters.in_head(parameter, causal=causal))


@dataclass(frozen=True, slots=True)
class Shape:
    """What a governor asks of an architecture.

    Attributes:
        family: `model_type` with hyphens.
        layers: transformer blocks.
        hidden: width of the hidden state.
        base_params: parameters of the pretrained model with its embeddings.
        decoder: whether the pretrained model is a causal language model.
    """

    family: str
    layers: int
    hidden: int
    base_params: int
    decoder: bool


def shape_of(config: Path | str | Mapping[str, Any]) -> Shape:
    """The shape of any Hugging Face configuration, built on the meta device; no operations are counted.

    Raises:
        InputError: not such a configuration, or a model type that transformers does not know.
        BoardError: torch or transformers is missing.
    """
    _, built, _, decoder, base_params = _build(*_read_config(config), 2)
    return Shape(
        family_of(built.model_type),
        int(built.num_hidden_layers),
        int(built.hidden_size),
        base_params,
        decoder,
    )


def count_config(
    config: Path | str | Mapping[str, Any], precision: str, n_labels: int = 2, method: str = "full"
) -> CostPolynomials:
    """Count any Hugging Face configuration as a sequence classifier, else as a causal language model.

    Args:
        config: a config.json, or its content.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        n_labels: outputs of the classifier.
        method: ``full``, ``lora`` or ``bitfit``.

    Returns:
        Exact cost polynomials.

    Raises:
        InputError: not such a configuration, a model type that transformers does not know, or an architecture
            whose operations depend on data (then shapes alone do not tell its cost).
        BoardError: torch or transformers is missing.
    """
    _check_precision(precision)
    _check_method(method)
    document, name = _read_config(config)
    model, built, head, decoder, base_params = _build(document, name, n_labels)
    _adapt(model, method, name, causal=head == _CAUSAL)
    optimizer = _count_optimizer(model, precision)

    def at(batch: int, length: int) -> dict[str, tuple[int, int, int]]:
        forward, backward = _count_step(model, precision, batch, length, n_labels, head, mask_dims)
        return {"forward": forward, "backward": backward}

    mask_dims = _usable_mask(model, precision, n_labels, head, name)
    solved_at = {point: at(*point) for point in _SOLVE_AT}
    coefficients: dict[str, dict[str, tuple[float, ...]]] = {
        "optimizer": {q: (v, 0, 0, 0, 0, 0) for q, v in zip(QUANTITIES, optimizer, strict=True)}
    }
    for phase in ("forward", "backward"):
        coefficients[phase] = {
            quantity: _solve([solved_at[point][phase][i] for point in _SOLVE_AT])
            for i, quantity in enumerate(QUANTITIES)
        }
    longest = getattr(built, "max_position_embeddings", None) or max(length for _, length in _VERIFY_AT)
    result = CostPolynomials(
        coefficients={phase: coefficients[phase] for phase in PHASES},
        params=sum(p.numel() for p in model.parameters() if p.requires_grad),
        family=family_of(built.model_type),
        layers=int(built.num_hidden_layers),
        hidden=int(built.hidden_size),
        base_params=base_params,
        head=head,
        decoder=decoder,
    )
    for batch, length in _VERIFY_AT:
        if length <= longest:
            _verify(result, at(batch, length), batch, length, name)
    return result


def _usable_mask(model: Any, precision: str, n_labels: int, head: str, name: str) -> int:
    """Dimensions of the first padding mask with which the model can be counted."""
    model_type = model.config.model_type
    faults: list[Exception] = []
    for dims in _MASK_DIMS.get(model_type, _ANY_MASK):
        try:
            _count_step(model, precision, 2, 8, n_labels, head, dims)
        except Exception as error:  # noqa: BLE001, PERF203  # models raise anything where they need values
            faults.append(error)
        else:
            return dims
    raise InputError(
        f"Model type '{model_type}' ({name}) cannot be counted: {_first_line(faults[0])}.",
        "An architecture whose operations follow from shapes alone was expected.",
    ) from faults[0]


def _verify(
    result: CostPolynomials, seen: Mapping[str, tuple[int, int, int]], batch: int, length: int, name: str
) -> None:
    cost = result.step_cost(batch, length)
    for phase, counted in seen.items():
        costed = getattr(cost, phase)
        for quantity, actual in zip(QUANTITIES, counted, strict=True):
            predicted = getattr(costed, quantity)
            if abs(predicted - actual) > 1e-9 * max(actual, 1):
                raise InputError(
                    f"The cost of {name} is not a polynomial in batch size and length: {phase} {quantity} at"
                    f" batch {batch}, length {length} is {actual}, not {predicted:.0f}.",
                    "An architecture with full attention was expected.",
                )


def _solve(values: Sequence[int]) -> tuple[float, ...]:
    """Coefficients of `BASIS` through the counts at `_SOLVE_AT`, by exact elimination."""
    rows = [
        [Fraction(t) for t in _terms(*point)] + [Fraction(v)]
        for point, v in zip(_SOLVE_AT, values, strict=True)
    ]
    n = len(rows)
    for i in range(n):
        pivot = next(r for r in range(i, n) if rows[r][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [x / rows[i][i] for x in rows[i]]
        for r in range(n):
            if r != i and rows[r][i] != 0:
                factor = rows[r][i]
                rows[r] = [x - factor * y for x, y in zip(rows[r], rows[i], strict=True)]
    return tuple(int(row[-1]) if row[-1].denominator == 1 else float(row[-1]) for row in rows)


def multi_tensor_launches(numels: Sequence[int], lists: int) -> int:
    """Kernel launches of one multi-tensor operation.

    Args:
        numels: elements of the tensors of one list.
        lists: tensor lists the operation touches.

    Returns:
        Launches by the rule of ATen's multi_tensor_apply: one goes out when it is full of tensors or of
        blocks.
    """
    launches = tensors = blocks = 0
    limit = _MAX_TENSORS[min(lists, max(_MAX_TENSORS))]
    for numel in numels:
        if numel == 0:
            continue
        tensors += 1
        chunks = -(-numel // _CHUNK)
        for chunk in range(chunks):
            blocks += 1
            last = chunk == chunks - 1
            if (tensors == limit and last) or blocks == _MAX_BLOCKS:
                launches += 1
                blocks, tensors = 0, 0 if last else 1
    return launches + (1 if blocks else 0)


_VIEWS = {"aten::_unsafe_view", "aten::_reshape_alias", "aten::lift_fresh", "aten::alias", "aten::detach"}
_ALLOCATIONS = {
    "aten::empty",
    "aten::empty_like",
    "aten::empty_strided",
    "aten::new_empty",
    "aten::new_empty_strided",
}
_LOOKUPS = {"aten::embedding", "aten::gather", "aten::index_select", "aten::index"}
_OVERWRITES = {
    "aten::copy_",
    "aten::fill_",
    "aten::zero_",
    "aten::bernoulli_",
    "aten::normal_",
    "aten::uniform_",
}
_SCATTERS = {"aten::scatter_add_", "aten::index_add_", "aten::index_put_", "aten::_index_put_impl_"}


def _tensors(values: Any) -> list[Any]:
    """Meta tensors in arguments or results, in order."""
    import torch

    if isinstance(values, torch.Tensor):
        return [values] if values.device.type == "meta" else []
    if isinstance(values, (list, tuple)):
        return [tensor for value in values for tensor in _tensors(value)]
    if isinstance(values, dict):
        return _tensors(list(values.values()))
    return []


def _nbytes(tensor: Any) -> int:
    """Bytes behind a tensor; a dimension that was expanded (stride 0) counts once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= 1 if stride == 0 and size > 1 else size
    return int(elements * tensor.element_size())


def _bytes_of(name: str, inputs: list[Any], outputs: list[Any]) -> int:
    read = [_nbytes(tensor) for tensor in inputs]
    written = sum(_nbytes(tensor) for tensor in outputs)
    if name in _LOOKUPS:
        read[0] = written
    elif name in _OVERWRITES:
        read[0] = 0
    elif name in _SCATTERS:
        read[0] = written = _nbytes(inputs[-1])
    return sum(read) + written


class _Tally:
    """Counts of one phase."""

    def __init__(self) -> None:
        self.flops = self.bytes = self.launches = 0

    def see(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        """Count one aten operation."""
        from torch.utils.flop_counter import flop_registry

        name = func._schema.name
        if func.is_view or name in _VIEWS or name in _ALLOCATIONS:
            return
        inputs, outputs = _tensors(args) + _tensors(kwargs), _tensors(result)
        if not outputs and name.endswith("_") and "_foreach" in name:
            outputs = _tensors(args[0])  # in-place multi-tensor operations return nothing
        if not inputs and not outputs:
            return
        if func._overloadpacket in flop_registry:
            self.flops += int(flop_registry[func._overloadpacket](*args, **kwargs, out_val=result))
        self.bytes += _bytes_of(name, inputs, outputs)
        self.launches += _launches_of(name, args)

    def counts(self) -> tuple[int, int, int]:
        """FLOPs, bytes, launches."""
        return self.flops, self.bytes, self.launches


def _launches_of(name: str, args: Any) -> int:
    if "_foreach_" not in name:
        return 1
    lists = [found for arg in args if isinstance(arg, (list, tuple)) and (found := _tensors(arg))]
    if not lists:
        return 0
    if name == "aten::_foreach_norm":
        return multi_tensor_launches([t.numel() for t in lists[0]], 1) + 1  # and one that adds up the blocks
    in_place = name.endswith("_")
    depth = len(lists) + (0 if in_place else 1)
    return multi_tensor_launches([t.numel() for t in lists[0]], depth)


def _tally_mode() -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    class TallyMode(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.tally = _Tally()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            self.tally.see(func, args, kwargs or {}, result)
            return result

    return TallyMode()


# Functions that torch's CUDA autocast runs in half precision or in fp32 (documented in "Automatic Mixed
# Precision package", section "CUDA Op-Specific Behavior"), as far as text models use them.
_TO_HALF = {
    "linear",
    "matmul",
    "__matmul__",
    "__rmatmul__",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "einsum",
}
_TO_HALF |= {"conv1d", "conv2d", "conv3d"}
_TO_FP32 = {
    "layer_norm",
    "group_norm",
    "rms_norm",
    "pow",
    "__pow__",
    "rsqrt",
    "exp",
    "log",
    "log_softmax",
    "softplus",
}
_TO_FP32 |= {
    "cross_entropy",
    "nll_loss",
    "mse_loss",
    "binary_cross_entropy_with_logits",
    "norm",
    "cumsum",
    "sum",
    "prod",
}


def _gpu_mode(half: Any) -> Any:
    """What a GPU does and the meta device does not: fused dropout, and autocast where `half` is a dtype."""
    import torch
    from torch.overrides import TorchFunctionMode

    casts: dict[int, Any] = {}

    def cast(value: Any, dtype: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(cast(item, dtype) for item in value)
        if (
            not isinstance(value, torch.Tensor)
            or value.dtype not in {torch.float32, half}
            or value.dtype == dtype
        ):
            return value
        if value.device.type != "meta":
            return value
        if value.is_leaf and value.requires_grad:  # autocast casts each weight once a step
            return (
                casts.setdefault(id(value), value.to(dtype)) if id(value) not in casts else casts[id(value)]
            )
        return value.to(dtype)

    def cast_all(func: Callable[..., Any], args: Any, kwargs: Any, dtype: Any) -> Any:
        return func(*(cast(a, dtype) for a in args), **{key: cast(v, dtype) for key, v in kwargs.items()})

    def softmax(func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        tensor = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        wanted = kwargs.get("dtype")
        wanted = torch.float32 if wanted is None and half is not None else wanted
        if tensor.dtype == torch.float16 and wanted == torch.float32:
            return torch._softmax(tensor, dim, True)  # CUDA reads fp16 and writes fp32 in one kernel
        return func(*args, **(kwargs | {"dtype": wanted}))

    class GpuMode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            kwargs = kwargs or {}
            name = getattr(func, "__name__", "")
            if name == "dropout":
                tensor = args[0] if args else kwargs["input"]
                probability = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
                training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
                return (
                    torch.native_dropout(tensor, probability, True)[0] if training and probability else tensor
                )
            if name == "softmax":
                return softmax(func, args, kwargs)
            if half is not None and name in _TO_HALF:
                return cast_all(func, args, kwargs, half)
            if half is not None and name in _TO_FP32:
                return cast_all(func, args, kwargs, torch.float32)
            return func(*args, **kwargs)

    return GpuMode()


def _half(precision: str) -> Any:
    import torch

    return {"fp32": None, "fp16": torch.float16, "bf16": torch.bfloat16}[precision]


def _count_step(
    model: Any, precision: str, batch: int, length: int, n_labels: int, head: str, mask_dims: int
) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """Counts of the forward and the backward pass at one batch size and length."""
    import torch

    ids = torch.zeros(batch, length, dtype=torch.long, device="meta")
    if head == "causal language model":
        labels = ids
    else:
        dtype = torch.float32 if n_labels == 1 else torch.long
        labels = torch.zeros(batch, dtype=dtype, device="meta")
    mask = {
        4: lambda: torch.zeros(batch, 1, length, length, device="meta"),
        2: lambda: torch.ones(batch, length, dtype=torch.long, device="meta"),
        0: lambda: None,
    }[mask_dims]()
    model.config.problem_type = "regression" if n_labels == 1 else "single_label_classification"
    model.zero_grad(set_to_none=True)
    with _tally_mode() as forward, _gpu_mode(_half(precision)):
        loss = model(input_ids=ids, labels=labels, attention_mask=mask).loss
    with _tally_mode() as backward:
        loss.backward()
    return forward.tally.counts(), backward.tally.counts()


def _clip(torch: Any, grads: list[Any]) -> None:
    """The operations of `clip_grad_norm_(parameters, 1.0, foreach=True)`, which refuses the meta device."""
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(grads, 2.0)), 2.0)
    factor = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
    torch._foreach_mul_(grads, factor)


def _count_optimizer(model: Any, precision: str) -> tuple[int, int, int]:
    """Counts of gradient clipping at norm 1 and an AdamW step; for fp16 also of unscaling the gradients."""
    import torch

    trained = [p for p in model.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    optimizer = torch.optim.AdamW(trained, lr=2e-5, weight_decay=0.01, foreach=True)
    optimizer.step()  # makes the moments
    with _tally_mode() as mode:
        if precision == "fp16":
            found, scale = (torch.empty((), device="meta") for _ in range(2))
            torch._amp_foreach_non_finite_check_and_unscale_([p.grad for p in trained], found, scale)
        _clip(torch, [p.grad for p in trained])
        optimizer.step()
    model.zero_grad(set_to_none=True)
    return mode.tally.counts()
