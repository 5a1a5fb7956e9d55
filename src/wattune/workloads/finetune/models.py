"""Models: tokenizer, weights, head, adapter, and in which arithmetic a device can train them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.errors import BoardError, InputError
from wattune.workloads import adapters
from wattune.workloads.finetune import hub
from wattune.workloads.finetune.sources import Examples
from wattune.workloads.finetune.spec import FinetuneSpec

log = logging.getLogger(__name__)

_OWN_NAMES = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
_OWN_SPECIALS = tuple(_OWN_NAMES.values())
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.txt",
    "spm.model",
    "tokenizer.model",
    "vocab.json",
)


def import_all() -> tuple[Any, Any]:
    """Import torch and transformers, kept offline.

    Raises:
        BoardError: one of what fine-tuning needs is missing, or they do not go together.
    """
    hub.keep_offline()
    try:
        import accelerate  # noqa: F401
        import torch
        import transformers
    except ImportError as error:
        raise BoardError(
            f"Fine-tuning needs torch, transformers and accelerate ({hub.first_line(error)}).",
            "The extra `train` was expected.",
            "Install it with `make setup EXTRAS=train` or `pip install 'wattune[train]'`; on a Jetson take JetPack's torch.",
        ) from error
    if not transformers.utils.is_torch_available():
        raise BoardError(
            f"transformers {transformers.__version__} does not work with torch {torch.__version__}.",
            "A pair that works together was expected.",
            "Install an older transformers (for example `pip install 'transformers<5'`) or a newer torch.",
        )
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


@dataclass
class Checkpoint:
    """Configuration and tokenizer of a checkpoint; no weights yet.

    Attributes:
        folder: where it lies; None where only the catalogue's shape is taken.
        config: of transformers.
        tokenizer: of transformers; None until it is made of the data's own words.
        name: what it is called.
    """

    folder: Path | None
    config: Any
    tokenizer: Any | None
    name: str

    @property
    def decoder(self) -> bool:
        """Whether the pretrained model predicts the next token."""
        _, transformers = import_all()
        kind = type(self.config)
        causal = kind in transformers.AutoModelForCausalLM._model_mapping
        return bool(causal and kind not in transformers.AutoModelForMaskedLM._model_mapping)


def open_checkpoint(spec: FinetuneSpec, *, weights: bool = True) -> Checkpoint:
    """Configuration and tokenizer of a job's checkpoint.

    Args:
        spec: the job.
        weights: whether they will be loaded too, and so must be there.

    Raises:
        InputError: not there, or nothing that transformers knows.
        IntegrityError: its weights are a pickle.
        BoardError: not in the cache and no network.
    """
    import_all()
    listed = spec.listed
    # The catalogue's own shape needs no file at all; its tokenizer is taken where the cache has it.
    if spec.needs_no_checkpoint:
        assert listed is not None
        folder = hub.cached_model(spec.checkpoint, spec.revision, weights=False)
        config = _config({**listed.hf_config, **spec.config}, spec.checkpoint)
        return Checkpoint(folder, config, _tokenizer(folder, spec) if folder else None, listed.id)
    folder = hub.model_folder(
        spec.checkpoint,
        revision=spec.revision,
        trust_pickle=spec.trust_pickle,
        weights=weights and not spec.from_config,
        fetch=spec.fetch_words,
    )
    document = hub.read_config(folder)
    config = _config({**document, **spec.config}, spec.checkpoint)
    has_tokenizer = any((folder / name).exists() for name in _TOKENIZER_FILES)
    if not has_tokenizer and not spec.from_config:
        raise InputError(
            f"There is no tokenizer in {spec.checkpoint}.",
            "tokenizer.json was expected beside the weights.",
            "Save it there with `tokenizer.save_pretrained`.",
        )
    return Checkpoint(folder, config, _tokenizer(folder, spec) if has_tokenizer else None, spec.checkpoint)


def _config(document: dict[str, Any], name: str) -> Any:
    _, transformers = import_all()
    kind = document.get("model_type")
    if not isinstance(kind, str) or kind not in transformers.CONFIG_MAPPING:
        raise InputError(
            f"transformers {transformers.__version__} knows no model type {kind!r} ({name}).",
            "The model_type of an architecture that it can build was expected.",
            "Check the configuration, or install a newer transformers.",
        )
    settings = {key: value for key, value in document.items() if key != "model_type"}
    try:
        return transformers.AutoConfig.for_model(kind, **settings)
    except Exception as error:  # configuration classes raise anything on bad values
        raise InputError(
            f"No model can be built from {name}: {hub.first_line(error)}.",
            "A configuration whose values its architecture takes was expected.",
            hub.SAVE_AGAIN,
        ) from error


def _tokenizer(folder: Path, spec: FinetuneSpec) -> Any:
    _, transformers = import_all()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except Exception as error:  # tokenizer classes raise many kinds on what they cannot read
        raise InputError(
            f"The tokenizer of {spec.checkpoint} could not be loaded: {hub.first_line(error)}.",
            "One that transformers can read was expected (some need the package sentencepiece or tiktoken).",
            "Save it again with `tokenizer.save_pretrained`.",
        ) from error
    return tokenizer


def give_padding(tokenizer: Any, *, decoder: bool, name: str) -> None:
    """A decoder's tokenizer without a padding token pads with its end token, which the mask hides; any other is refused.

    Raises:
        InputError: there is no token to pad with.
    """
    if tokenizer.pad_token_id is not None:
        return
    if decoder and tokenizer.eos_token_id is not None:
        tokenizer.pad_token = tokenizer.eos_token
        return
    raise InputError(
        f"The tokenizer of {name} has no padding token" + (" and no end token." if decoder else "."),
        "Batches of texts need one.",
        "Add it with `tokenizer.add_special_tokens({'pad_token': ...})`, save the tokenizer and give that folder.",
    )


def own_tokenizer(examples: Examples, config: Any, *, decoder: bool) -> Any:
    """A tokenizer of the data's own words, for random weights of an architecture whose tokenizer is not at hand.

    The most frequent words that fit the model's vocabulary get a token each, others share one; encoders get a token before
    and after each text, as BERT's do.
    """
    from collections import Counter

    import tokenizers
    import transformers

    counts: Counter[str] = Counter()
    splitter = tokenizers.pre_tokenizers.Whitespace()
    for text in (*examples.first, *(examples.second or ())):
        counts.update(word for word, _ in splitter.pre_tokenize_str(text.lower()))
    room = int(config.get_text_config().vocab_size) - len(_OWN_SPECIALS)
    words = sorted(counts, key=lambda word: (-counts[word], word))[: max(room, 0)]
    vocabulary = {word: number for number, word in enumerate([*_OWN_SPECIALS, *words])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, _OWN_NAMES["unk_token"]))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = splitter
    if not decoder:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
        )
    made_for_transformers = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **_OWN_NAMES)
    made_for_transformers.eos_token = _OWN_NAMES["sep_token"]
    return made_for_transformers


def longest_of(spec: FinetuneSpec, checkpoint: Checkpoint) -> int:
    """Longest sequence of a job: what it asks for, as far as the model has positions."""
    config = checkpoint.config.get_text_config()
    limits = [spec.longest]
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > 1:
        offset = (
            2 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
        )  # these count from the pad id on
        limits.append(positions - offset)
    return min(limits)


# --- weights ---------------------------------------------------------------------------------------------------------


def load_model(spec: FinetuneSpec, checkpoint: Checkpoint, n_labels: int) -> Any:
    """The model with its head and, where asked for, its adapter, in fp32 on the CPU.

    Raises:
        InputError: the architecture has no such head, the weights cannot be read, or the adapter does not fit.
        BoardError: peft is missing.
    """
    torch, transformers = import_all()
    causal = spec.task_kind == "causal-lm"
    auto = transformers.AutoModelForCausalLM if causal else transformers.AutoModelForSequenceClassification
    config = checkpoint.config
    tokenizer = checkpoint.tokenizer
    assert tokenizer is not None
    if type(config) not in auto._model_mapping:
        raise InputError(
            f"transformers has no {'causal language model' if causal else 'sequence classifier'} of type '{config.model_type}'.",
            "A text model with that head was expected.",
            f"Take another model, or another kind than {spec.task_kind}.",
        )
    if causal and type(config) in transformers.AutoModelForMaskedLM._model_mapping:
        raise InputError(
            f"{spec.checkpoint} is an encoder ('{config.model_type}'): it sees the whole text at once, so that there is no next token"
            " to predict.",
            "A decoder (Pythia, Qwen, SmolLM2, Llama ...) was expected for text without labels.",
            "Name the column of classes or values with label_column (`--label-column`), or take a decoder.",
        )
    text = config.get_text_config()
    if not causal:
        config.num_labels = n_labels
        config.problem_type = "regression" if n_labels == 1 else "single_label_classification"
    text.pad_token_id = config.pad_token_id = tokenizer.pad_token_id
    text.use_cache = config.use_cache = False
    transformers.set_seed(spec.seed)  # weights that the checkpoint lacks
    try:
        if spec.from_config:
            model = auto.from_config(config)
        else:
            assert checkpoint.folder is not None
            model, loaded = auto.from_pretrained(
                str(checkpoint.folder),
                config=config,
                local_files_only=True,
                use_safetensors=None if spec.trust_pickle else True,
                ignore_mismatched_sizes=not causal,  # the head of another task makes room for this one's
                torch_dtype=torch.float32,
                output_loading_info=True,
            )
            _refuse_other_shapes(spec, loaded, causal=causal)
    except OSError as error:
        if error.errno is not None:
            raise
        raise _not_loaded(spec, error) from error
    except InputError:
        raise
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # transformers and safetensors raise many kinds on damaged files
        raise _not_loaded(spec, error) from error
    return _adapted(spec, model.float())


def _refuse_other_shapes(spec: FinetuneSpec, loaded: dict[str, Any], *, causal: bool) -> None:
    """Only the head may be new: transformers makes all weights of another shape, and those that are absent, random without a word.

    Raises:
        InputError: others are of another shape, or most are absent.
    """
    other = sorted(
        name for name, *_ in loaded["mismatched_keys"] if not adapters.in_head(name, causal=causal)
    )
    if other:
        raise InputError(
            f"The weights of {spec.checkpoint} do not fit its config.json: {len(other)} have another shape, the first is {other[0]}.",
            "Weights and configuration of one model were expected.",
            hub.SAVE_AGAIN,
        )
    absent = sorted(
        name
        for name in loaded["missing_keys"]
        if not adapters.in_head(name, causal=causal)
        and "pooler" not in name  # what masked models are saved without
    )
    if absent:
        log.warning(
            "%s has no weights for %d parameters beside the head (the first is %s): they begin at random.",
            spec.checkpoint, len(absent), absent[0],
        )  # fmt: skip


def _not_loaded(spec: FinetuneSpec, error: BaseException) -> InputError:
    return InputError(
        f"The weights of {spec.checkpoint} could not be loaded: {hub.first_line(error)}.",
        "A whole checkpoint of that architecture was expected.",
        "Check its files, or fetch it again.",
    )


def _adapted(spec: FinetuneSpec, model: Any) -> Any:
    """Full fine-tuning trains everything; BitFit biases and the head; LoRA its own low-rank matrices and the head."""
    if spec.method == "full":
        return model
    causal = spec.task_kind == "causal-lm"
    if spec.method == "bitfit":
        trained = 0
        for name, parameter in model.named_parameters():
            bias = adapters.is_bias(name)
            parameter.requires_grad = bias or adapters.in_head(name, causal=causal)
            trained += bias and not adapters.in_head(name, causal=causal)
        if not trained:
            raise InputError(
                f"{spec.checkpoint} has no biases, so BitFit has nothing to train.",
                "A model with biases was expected (BERT, DeBERTa, Pythia have them; Llama's kind has not).",
                "Take LoRA or full fine-tuning (`--method lora`, `--method full`).",
            )
        return model
    peft = adapters.import_peft()
    try:
        return peft.get_peft_model(
            model,
            peft.LoraConfig(
                task_type=peft.TaskType.CAUSAL_LM if causal else peft.TaskType.SEQ_CLS,
                **adapters.lora_settings(model.config.model_type, spec.rank),
            ),
        )
    except ValueError as error:
        raise InputError(
            f"LoRA does not fit {spec.checkpoint}: {hub.first_line(error)}.",
            "An architecture that peft knows was expected.",
            "Take full fine-tuning (`--method full`).",
        ) from error


# --- device and arithmetic -------------------------------------------------------------------------------------------


def pick_device(spec: FinetuneSpec) -> str:
    """``cuda`` where torch has one, unless the job says otherwise.

    Raises:
        BoardError: the job wants a GPU that torch does not see.
    """
    torch, _ = import_all()
    if spec.device == "cpu":
        return "cpu"
    if torch.cuda.is_available():
        return "cuda"
    if spec.device == "cuda":
        raise BoardError(
            "torch sees no GPU.",
            "A CUDA device was expected.",
            "Check that `python -c 'import torch; print(torch.version.cuda)'` names a version; on a Jetson take JetPack's torch.",
        )
    return "cpu"


def pick_precision(spec: FinetuneSpec, device: str) -> str:
    """In which arithmetic is trained: as said, else the catalogue's where the device can, else its best.

    Raises:
        InputError: the device cannot do what the job says.
    """
    torch, _ = import_all()
    can = ["fp32"]
    if device == "cuda":
        can.insert(0, "fp16")
        if torch.cuda.is_bf16_supported():
            can.insert(0, "bf16")
    else:
        can.append("bf16")  # it works on a CPU, and most do it slowly
    wanted = spec.precision
    if wanted == "auto":
        return can[0]
    if wanted:
        if wanted not in can:
            raise InputError(
                f"This device ({device}) cannot train in {wanted}.",
                f"One of {', '.join(can)} was expected.",
                "Set precision=auto.",
            )
        return wanted
    listed = spec.listed.precision if spec.listed is not None else can[0]
    if listed not in can:
        log.warning(
            "The catalogue's %s is not for this device (%s): %s is trained in.", listed, device, can[0]
        )
        return can[0]
    return listed
