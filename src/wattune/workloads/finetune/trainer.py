"""The Trainer of transformers, set up for being measured: nothing saved, logged or evaluated, the order of batches our own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wattune.workloads.finetune.models import import_all
from wattune.workloads.finetune.tokens import StepOrder, TokenTable
from wattune.workloads.finetune.watch import StepWatch

ENDLESS_STEPS = 1_000_000_000
"""Training goes on over epochs until it is stopped."""


def losses_of(device: str) -> tuple[Callable[[Any], Any], Callable[[list[Any]], list[float]]]:
    """How the losses of passes are kept until a report, and how those kept are read then.

    On a GPU they stay there, for to read one is to wait for it; then they come in one piece. On a CPU there is nothing to
    wait for, and a number is cheaper than a tensor.
    """
    torch, _ = import_all()
    if device == "cpu":
        return torch.Tensor.item, list
    return torch.Tensor.detach, lambda losses: torch.stack(losses).tolist()


def make_trainer(
    model: Any,
    table: TokenTable,
    order: StepOrder,
    watch: StepWatch,
    *,
    folder: str,
    device: str,
    precision: str,
    learning_rate: float,
    weight_decay: float,
    warmup_steps: int,
    planned_steps: int,
    seed: int,
) -> Any:
    """A Trainer for one run.

    Args:
        model: what is trained.
        table: the examples.
        order: which of them make which step.
        watch: is told of every pass and step.
        folder: where the Trainer could write; nothing is written.
        device: ``cpu`` or ``cuda``.
        precision: ``fp32``, ``fp16`` or ``bf16``; the latter two as automatic mixed precision.
        learning_rate: peak.
        weight_decay: of AdamW.
        warmup_steps: over which the rate rises.
        planned_steps: at which it has fallen to 0.
        seed: of dropout.
    """
    torch, transformers = import_all()

    trainer_class, callback_class = transformers.Trainer, transformers.TrainerCallback

    class WatchedTrainer(trainer_class):  # type: ignore[misc,valid-type]
        """Tells the watch of every pass; batches and schedule are those of the job, not of an endless run."""

        def get_train_dataloader(self) -> Any:
            loader = torch.utils.data.DataLoader(
                range(len(table)), batch_sampler=order, collate_fn=table.batch, pin_memory=device == "cuda"
            )
            return self.accelerator.prepare(loader)

        def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
            self.lr_scheduler = transformers.get_linear_schedule_with_warmup(
                optimizer or self.optimizer, warmup_steps, planned_steps
            )
            self._created_lr_scheduler = True
            return self.lr_scheduler

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            tokens = inputs["input_ids"].numel()
            watch.launch(inputs["input_ids"].shape[1])
            loss = super().training_step(model, inputs, num_items_in_batch)
            watch.forward(loss, tokens)
            return loss

    class Watch(callback_class):  # type: ignore[misc,valid-type]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            watch.begin()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            if not watch.step():
                control.should_training_stop = True
            return control

    arguments = transformers.TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=max(1, -(-order.per_step // order.pieces)),
        gradient_accumulation_steps=order.pieces,
        learning_rate=learning_rate,
        weight_decay=weight_decay,
        max_grad_norm=1.0,
        max_steps=ENDLESS_STEPS,
        fp16=precision == "fp16",
        bf16=precision == "bf16",
        use_cpu=device == "cpu",
        seed=seed,
        logging_strategy="no",
        logging_nan_inf_filter=False,  # it would wait for the device at every step; the watch looks itself
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        remove_unused_columns=False,
        dataloader_pin_memory=device == "cuda",
    )
    trainer = WatchedTrainer(
        model=model, args=arguments, train_dataset=range(len(table)), callbacks=[Watch()]
    )
    if table.labels is not None:
        # Classifiers take the mean over a forward pass and ignore how many examples the whole step has, though their
        # signature lets the Trainer believe otherwise: accumulated gradients would be as many times too large.
        trainer.model_accepts_loss_kwargs = False
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer
