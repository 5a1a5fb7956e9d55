"""One fine-tuning job in one process: model and data are loaded once, and runs begin anew from the same state."""

from __future__ import annotations

import contextlib
import gc
import logging
import math
import os
import resource
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wattune.core.errors import InputError
from wattune.workloads.build import EVALUATION_BATCH
from wattune.workloads.finetune import features, models, sources
from wattune.workloads.finetune.emulated import EmulatedDevice
from wattune.workloads.finetune.faults import MemoryShortError, is_out_of_memory
from wattune.workloads.finetune.hub import first_line
from wattune.workloads.finetune.spec import FinetuneSpec
from wattune.workloads.finetune.tokens import StepOrder, TokenTable, epoch_tokens, specials_of, tokenise
from wattune.workloads.finetune.trainer import losses_of, make_trainer
from wattune.workloads.finetune.watch import StepWatch

log = logging.getLogger(__name__)

Say = Callable[[dict[str, Any]], None]


class Job:
    """Model and data of a job, loaded.

    Args:
        spec: the job, checked.

    Raises:
        InputError: model or data are not as they must be.
        BoardError: something is missing: a package, a GPU, the network.
        IntegrityError: the weights are a pickle.
    """

    def __init__(self, spec: FinetuneSpec) -> None:
        if spec.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when CUDA starts
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", "0")  # one GPU is measured
        self._torch, self._transformers = models.import_all()
        self.spec = spec
        self.device = models.pick_device(spec)
        self._emulated: EmulatedDevice | None = None
        if spec.emulated:
            self._emulated = EmulatedDevice(Path(spec.emulated), spec.name)
        self.precision = models.pick_precision(spec, self.device)
        begin = time.monotonic()
        checkpoint = models.open_checkpoint(spec)
        lengths = "pythia" if checkpoint.decoder else "bert"
        pairs = bool(spec.job and spec.job.pair)
        if checkpoint.tokenizer is None:
            specials = 0 if checkpoint.decoder else (3 if pairs else 2)
        else:
            specials = specials_of(checkpoint.tokenizer, pairs)
        train, validation = sources.load(spec, lengths, specials)
        self.tokenizer_source = checkpoint.name
        if checkpoint.tokenizer is None:
            checkpoint.tokenizer = models.own_tokenizer(train, checkpoint.config, decoder=checkpoint.decoder)
            self.tokenizer_source = "the data's own words"
        models.give_padding(checkpoint.tokenizer, decoder=checkpoint.decoder, name=checkpoint.name)
        self.n_labels = train.n_labels
        self._config = checkpoint.config
        causal = spec.task_kind == "causal-lm"
        text = checkpoint.config.get_text_config()
        typed = not causal and int(getattr(text, "type_vocab_size", 0) or 0) > 1

        def tokens(examples: sources.Examples) -> TokenTable:
            return tokenise(
                examples, checkpoint.tokenizer, longest=models.longest_of(spec, checkpoint),
                rows_of_vocabulary=int(text.vocab_size), causal=causal, typed=typed,
            )  # fmt: skip

        self.table = tokens(train)
        self.validation = None if validation is None else tokens(validation)
        self.model = models.load_model(spec, checkpoint, self.n_labels)
        self.model.to(self.device)
        self.batch_size, self.accumulation = spec.examples_per_pass, spec.accumulation
        if self.per_step > len(self.table):
            log.warning(
                "A step was to have %d examples, and there are %d: every step has all of them.",
                self.per_step, len(self.table),
            )  # fmt: skip
            self.batch_size = -(-len(self.table) // self.accumulation)
        self._snapshot = {
            name: value.detach().to("cpu", copy=True)
            for name, value in (*self.model.named_parameters(), *self.model.named_buffers())
            if value.requires_grad or not isinstance(value, self._torch.nn.Parameter)
        }
        self.synchronize()
        self.model_load_s = time.monotonic() - begin

    # --- what it is -------------------------------------------------------------------------------------------------

    @property
    def per_step(self) -> int:
        """Examples per optimizer step."""
        return self.spec.examples_per_pass * self.spec.accumulation

    @property
    def order(self) -> StepOrder:
        """The order of examples, from its beginning."""
        return StepOrder(len(self.table), self.per_step, self.accumulation, self.spec.seed)

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""
        if self.device == "cuda":
            self._torch.cuda.synchronize()
        if self._emulated is not None:
            self._emulated.wait()

    def peak_memory_mb(self) -> float:
        """The most memory so far, MB: of the GPU's allocator, or the process's resident memory."""
        if self.device == "cuda":
            return float(self._torch.cuda.max_memory_reserved()) / 1e6
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6

    def computes_with(self) -> str:
        """What bits of a result depend on beside the job: versions, and the device or how many threads."""
        torch = self._torch
        where = (
            torch.cuda.get_device_name() if self.device == "cuda" else f"{torch.get_num_threads()} threads"
        )
        return f"torch {torch.__version__}, transformers {self._transformers.__version__}, {where}"

    def ready(self) -> dict[str, Any]:
        """What the job is, for the ``ready`` answer."""
        parameters = list(self.model.parameters())
        tokens = epoch_tokens(self.table, self.order)
        return {
            "said": "ready",
            "name": self.spec.name,
            "device": self.device,
            "precision": self.precision,
            "batch_size": self.batch_size,
            "accumulation": self.accumulation,
            "params_m": sum(p.numel() for p in parameters) / 1e6,
            "trainable_m": sum(p.numel() for p in parameters if p.requires_grad) / 1e6,
            "examples": len(self.table),
            "steps_per_epoch": len(tokens),
            "epoch_tokens": tokens,
            "tokenizer": self.tokenizer_source,
            "features": features.of_config(self._config, self.spec)
            | {
                "seq_len": float(self.table.lengths.mean()),
                "batch_size": float(min(self.per_step, len(self.table))),
            },
            "model_load_s": self.model_load_s,
            "peak_memory_mb": self.peak_memory_mb(),
            "computes_with": self.computes_with(),
        }

    # --- runs -------------------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Bring the model back to the state it was loaded in."""
        torch = self._torch
        with torch.no_grad():
            for name, value in (*self.model.named_parameters(), *self.model.named_buffers()):
                if name in self._snapshot:
                    value.copy_(self._snapshot[name])
        self.model.zero_grad(set_to_none=True)

    def train(
        self,
        run: str,
        block_steps: int,
        say: Say,
        obey: Callable[[], str | None],
        *,
        max_steps: int | None = None,
    ) -> None:
        """One run, from the initial state until `obey` says why it ends; where memory is short it begins again in smaller pieces.

        Args:
            run: its name.
            block_steps: steps of a reported block.
            say: takes answers.
            obey: asked after every step.
            max_steps: the run's last step; that of the job where not given.

        Raises:
            wattune.workloads.finetune.faults.RunFailedError: a loss went wrong; another run can follow.
            wattune.workloads.finetune.faults.MemoryShortError: not even a batch of one fits.
        """
        while True:
            try:
                self._train(run, block_steps, say, obey, max_steps or self.spec.max_steps)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                fault = first_line(error)
            else:
                return
            self._free()
            if self.batch_size <= 1:
                raise MemoryShortError(
                    f"Not even one example at a time fits into memory: {fault}.",
                    "Room for the model, its gradients and AdamW's moments was expected.",
                    "Take a smaller model, method=lora, or a smaller max_length.",
                )
            self.batch_size, self.accumulation = -(-self.batch_size // 2), self.accumulation * 2
            why = f"out of memory ({fault})"
            log.warning(
                "%s: batches of %d, %d of them a step, from here on.", why, self.batch_size, self.accumulation
            )
            say(
                {
                    "said": "changed",
                    "run": run,
                    "batch_size": self.batch_size,
                    "accumulation": self.accumulation,
                    "why": why,
                }
            )

    def _train(
        self, run: str, block_steps: int, say: Say, obey: Callable[[], str | None], max_steps: int | None
    ) -> None:
        spec = self.spec
        self.restore()
        order = self.order
        planned = max(1, math.ceil(spec.epochs * math.ceil(len(self.table) / self.per_step)))
        keep, read = losses_of(self.device)
        watch = StepWatch(
            run, block_steps, say=say, obey=obey, synchronize=self.synchronize, keep=keep, read=read,
            max_steps=max_steps, launched=None if self._emulated is None else self._emulated.step,
        )  # fmt: skip
        with self._repeatable(), tempfile.TemporaryDirectory(prefix="wattune-finetune-") as folder:
            trainer = make_trainer(
                self.model, self.table, order, watch, folder=folder, device=self.device, precision=self.precision,
                learning_rate=spec.peak_rate, weight_decay=0.0 if spec.method == "bitfit" else spec.weight_decay,
                warmup_steps=math.ceil(spec.warmup_ratio * planned), planned_steps=planned, seed=spec.seed,
            )  # fmt: skip
            self._transformers.set_seed(spec.seed)
            try:
                if self._emulated is not None:
                    self._emulated.begin()
                trainer.train()
                watch.end()
            finally:
                del trainer
                self._free()
                if self._emulated is not None:
                    self._emulated.end()

    @contextlib.contextmanager
    def _repeatable(self) -> Iterator[None]:
        torch = self._torch
        before = torch.are_deterministic_algorithms_enabled()
        if self.spec.deterministic:
            torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(before)

    def _free(self) -> None:
        self.model.zero_grad(set_to_none=True)
        gc.collect()
        if self.device == "cuda":
            self._torch.cuda.empty_cache()

    # --- what it learnt ---------------------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, Any]:
        """The model as it is now on the validation split.

        Returns:
            ``accuracy`` (classes), ``pearson`` (values) or neither (text), mean ``loss``, and ``examples``.

        Raises:
            InputError: there is no validation split.
        """
        if self.validation is None:
            raise InputError(
                "There is nothing to evaluate on.",
                "A validation split was expected.",
                "Name one with validation_split, or keep some examples back with held_out (`--held-out 0.2`).",
            )
        import numpy as np

        torch, table = self._torch, self.validation
        half = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision)
        outputs, targets, losses = [], [], []
        self.model.train(False)
        with torch.no_grad(), torch.autocast(self.device, dtype=half, enabled=half is not None):
            for begin in range(0, len(table), EVALUATION_BATCH):
                which = range(begin, min(begin + EVALUATION_BATCH, len(table)))
                batch = {name: value.to(self.device) for name, value in table.batch(which).items()}
                made = self.model(**batch)
                losses += [float(made.loss)] * len(which)
                if table.labels is not None:
                    outputs.append(made.logits.float().cpu().numpy())
                    targets.append(batch["labels"].cpu().numpy())
        answer: dict[str, Any] = {
            "said": "evaluated",
            "accuracy": None,
            "pearson": None,
            "loss": sum(losses) / len(losses),
            "examples": len(table),
        }
        if table.labels is not None:
            logits, labels = np.concatenate(outputs), np.concatenate(targets)
            if self.n_labels == 1:
                value = float(np.corrcoef(logits[:, 0], labels)[0, 1])
                answer["pearson"] = value if math.isfinite(value) else None
            else:
                answer["accuracy"] = float((logits.argmax(axis=1) == labels).mean())
        return answer
