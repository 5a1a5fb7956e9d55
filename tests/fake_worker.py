"""A fine-tuning process without torch: the worker's protocol, real time, and the misbehaviour that is asked for.

    python fake_worker.py BEHAVIOUR FOLDER job.json

BEHAVIOUR is ``KIND@RUN`` (several with commas): in the RUN-th run of all processes (counted in FOLDER; 1 is the trial) KIND happens
after a few steps. Losses and lengths follow from the step's number alone.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

STEP_S = 0.01
AFTER = 12
"""Steps after which misbehaviour begins."""

EPOCH = [32 * random.Random(f"length {n}").randint(10, 60) for n in range(300)]


def loss_of(step: int) -> float:
    return 1.0 / (step + 1) + 0.001 * random.Random(f"loss {step}").random()


def say(**answer: Any) -> None:
    os.write(1, (json.dumps(answer) + "\n").encode())


def main() -> int:
    behaviour, folder = sys.argv[1], Path(sys.argv[2])
    wanted = {
        int(number): kind for kind, _, number in (one.partition("@") for one in behaviour.split(",") if one)
    }
    spec = json.loads(Path(sys.argv[3]).read_text())
    os.write(2, b"loading\n")
    tempfile.mkdtemp()  # as libraries do, and a process that is killed does not take it away
    if wanted.get(0) == "no-model":
        say(
            said="failed",
            run="",
            kind="model",
            what="There is no such model.",
            expected="One was expected.",
            hint="Name it.",
        )
        return 2
    commands: SimpleQueue[dict[str, Any]] = SimpleQueue()

    def listen() -> None:
        for line in sys.stdin:
            commands.put(json.loads(line))
        commands.put({"do": "quit"})

    threading.Thread(target=listen, daemon=True).start()
    kind = ""
    say(
        said="ready", name="fake", device="cpu", precision="fp32", batch_size=spec["batch_size"], accumulation=1, params_m=1.0,
        computes_with=os.environ.get("FAKE_COMPUTES_WITH", "fake"),
        trainable_m=1.0, examples=9600, steps_per_epoch=len(EPOCH), epoch_tokens=EPOCH, model_load_s=0.1, peak_memory_mb=10.0,
        features={"family": "bert", "layers": 2.0, "hidden": 64.0, "params_m": 1.0, "seq_len": 21.5, "batch_size": spec["batch_size"]},
    )  # fmt: skip
    while True:
        command = commands.get()
        if command["do"] == "quit":
            return 0
        if command["do"] == "evaluate":
            if wanted.get(0) == "no-validation":
                say(said="refused", what="There is nothing to evaluate on.")
            else:
                accuracy = 0.75 if kind == "other-score" else 0.8
                say(said="evaluated", accuracy=accuracy, pearson=None, loss=0.5, examples=100)
            continue
        if command["do"] != "start":
            continue
        counter = folder / "runs"
        number = int(counter.read_text()) + 1 if counter.exists() else 1
        counter.write_text(str(number))
        kind = wanted.get(number, "")
        run(command["run"], command["block_steps"], kind, commands, command.get("max_steps"))


def run(
    name: str, block_steps: int, kind: str, commands: SimpleQueue[dict[str, Any]], max_steps: int | None
) -> None:
    say(said="started", run=name, t=time.monotonic())
    step, tokens, losses = 0, [], []
    while True:
        try:
            command = commands.get_nowait()
        except Empty:
            command = {"do": ""}
        if command["do"] in ("stop", "quit"):
            say(said="stopped", run=name, steps=step, t=time.monotonic(), why="asked")
            if command["do"] == "quit":
                os._exit(0)
            return
        time.sleep(STEP_S)
        tokens.append(EPOCH[step % len(EPOCH)])
        losses.append(loss_of(step) + (1e-9 if kind == "other-loss" else 0.0))
        step += 1
        if kind and step == AFTER:
            if kind == "die":
                os.write(2, b"something terrible\n")
                os._exit(7)
            if kind == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "hang":
                time.sleep(3600)
            if kind == "garbage":
                os.write(1, b"Downloading: 42%|####\n")
            if kind == "half-block":
                say(said="block", run=name, steps=step, t=time.monotonic(), tokens=[1], loss=[])
            if kind == "nan":
                say(
                    said="failed",
                    run=name,
                    kind="nan",
                    what="The loss of step 12 is nan.",
                    expected="A number was.",
                    hint="Less.",
                )
                return
            if kind == "disk":
                say(
                    said="failed",
                    run=name,
                    kind="disk",
                    what="The disk is full.",
                    expected="Room was expected.",
                    hint="Free some.",
                )
                os._exit(3)
            if kind == "oom":
                say(said="changed", run=name, batch_size=16, accumulation=2, why="out of memory (made up)")
                say(said="started", run=name, t=time.monotonic())
                step, tokens, losses = 0, [], []
                kind = ""
                continue
        if len(tokens) >= block_steps or step == max_steps:
            say(said="block", run=name, steps=step, t=time.monotonic(), tokens=tokens, loss=losses)
            tokens, losses = [], []
        if step == max_steps:
            say(said="stopped", run=name, steps=step, t=time.monotonic(), why="end")
            return


if __name__ == "__main__":
    sys.exit(main())
