"""A real Trainer on a tiny random BERT, with or without the callback: ``tiny_trainer.py OUT [KEY=VALUE ...]``.

Prints ``training`` when it begins, writes losses, log and receipt to OUT as JSON. Keys: those of the callback,
``plain=1`` for none, ``max_steps``, ``pause`` (seconds per step). With ``breaks="data:ValueError"`` (or ``model:``, ``end:``) the
first training ends by that exception before its twelfth step; it is caught, ``caught`` printed, and
a line on stdin begins the second one.
"""

import builtins
import json
import sys
import time
from pathlib import Path
from typing import Any


def main() -> None:
    import torch
    from torch.utils.data import Dataset
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        Trainer,
        TrainerCallback,
        TrainingArguments,
    )

    from wattune import WattuneCallback

    torch.set_num_threads(1)
    how: dict[str, Any] = {}
    for word in sys.argv[2:]:
        key, _, value = word.partition("=")
        how[key] = json.loads(value)
    plain, steps, pause = how.pop("plain", 0), how.pop("max_steps", 40), how.pop("pause", 0.0)
    out = Path(sys.argv[1])
    where, _, kind = how.pop("breaks", "").partition(":")
    left = {where: 6}

    def pass_by(place: str) -> None:
        left[place] = left.get(place, 0) - 1
        if place == where and left[place] == 0:
            raise {"OutOfMemoryError": torch.OutOfMemoryError}.get(kind) or getattr(builtins, kind)("broken")

    class Pairs(Dataset):
        def __len__(self) -> int:
            return 8 * steps // 2  # two epochs

        def __getitem__(self, at: int) -> dict[str, Any]:
            if at % 8 == 0:
                pass_by("data")
            rng = torch.Generator().manual_seed(at)
            length = 8 + at % 9
            ids = torch.randint(1, 100, (16,), generator=rng)
            mask = (torch.arange(16) < length).long()
            return {"input_ids": ids * mask, "attention_mask": mask, "labels": torch.tensor(at % 2)}

    class Pace(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            sys.stdout.write("training\n")
            sys.stdout.flush()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            time.sleep(pause)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            pass_by("end")

    reported: list[dict[str, float]] = []

    class Reporter(TrainerCallback):
        """Stands where MLflow's callback stands: before ours."""

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            reported.append(dict(logs))

    broken: dict[str, Any] | None = None
    torch.manual_seed(7)
    model = BertForSequenceClassification(
        BertConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=32,
        )
    )
    model.register_forward_pre_hook(lambda *_: pass_by("model"))
    ours = [] if plain else [WattuneCallback(**how)]
    arguments = TrainingArguments(
        output_dir=str(out.with_suffix(".d")), max_steps=steps, per_device_train_batch_size=8, logging_steps=1, report_to=[],
        save_strategy="no", disable_tqdm=True, seed=3, use_cpu=True,
    )  # fmt: skip
    trainer = Trainer(
        model=model, args=arguments, train_dataset=Pairs(), callbacks=[Reporter(), *ours, Pace()]
    )
    try:
        trainer.train()
    except (Exception, KeyboardInterrupt, SystemExit) as error:
        if not where:
            raise
        sys.stdout.write(f"caught {type(error).__name__}\n")
        sys.stdout.flush()
        sys.stdin.readline()
        ours[0].close()
        broken = ours[0].receipt
        trainer.train()
    digest = sum(float(p.detach().double().sum()) for p in model.parameters())
    document = {
        "losses": [entry["loss"] for entry in trainer.state.log_history if "loss" in entry],
        "digest": digest.hex(),
        "log": trainer.state.log_history,
        "reported": reported,
        "receipt": ours[0].receipt if ours else None,
        "broken": broken,
    }
    out.write_text(json.dumps(document))


if __name__ == "__main__":
    main()
