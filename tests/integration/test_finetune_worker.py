"""The worker: its protocol, that runs repeat bit for bit, that it trains as a plain loop would, and its faults."""

from __future__ import annotations

import functools
import json
import math
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (make setup EXTRAS=train)")
pytest.importorskip("accelerate", reason="accelerate is not installed (make setup EXTRAS=train)")

from tiny import BERT, LLAMA, NEOX, environment, folder, rows, write_csv, write_jsonl  # noqa: E402
from wattune.core.errors import BoardError  # noqa: E402
from wattune.workloads.finetune import worker  # noqa: E402
from wattune.workloads.finetune.job import Job  # noqa: E402
from wattune.workloads.finetune.spec import FinetuneSpec  # noqa: E402

pytestmark = pytest.mark.long


class Worker:
    """A worker process and what it says."""

    def __init__(self, document: dict[str, Any], home: Path, **settings: Any) -> None:
        path = home / "job.json"
        path.write_text(json.dumps(document))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "wattune.workloads.finetune.worker", str(path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(home), **settings,
        )  # fmt: skip
        self.said: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.stderr: list[str] = []
        threading.Thread(target=self._listen, daemon=True).start()
        threading.Thread(target=lambda: self.stderr.extend(self.process.stderr or ()), daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.put(json.loads(line))  # nothing else may stand on stdout
        self.said.put(None)

    def do(self, **command: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next answer, which is of one of these kinds."""
        answer = self.said.get(timeout=120)
        assert answer is not None, "".join(self.stderr)
        assert answer["said"] in kinds, answer
        return answer

    def until(self, kind: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Answers up to one of that kind."""
        before: list[dict[str, Any]] = []
        while True:
            answer = self.said.get(timeout=120)
            assert answer is not None, "".join(self.stderr)
            if answer["said"] == kind:
                return answer, before
            before.append(answer)


@pytest.fixture
def tiny(tmp_path: Path) -> dict[str, Any]:
    return {
        "model": str(folder(tmp_path / "bert", BERT)),
        "path": str(write_csv(tmp_path / "data.csv", rows(100))),
        "text_columns": ["text"],
        "label_column": "label",
        "from_config": True,
        "held_out": 0.2,
        "batch_size": 8,
        "learning_rate": 1e-3,
        "epochs": 5,
        "device": "cpu",
    }


@pytest.fixture
def led(tiny: dict[str, Any], tmp_path: Path) -> Iterator[Worker]:
    made = Worker(tiny, tmp_path)
    yield made
    made.process.kill()
    made.process.wait()


def test_a_session_with_a_worker(led: Worker) -> None:
    ready = led.hear("ready")
    assert (ready["examples"], ready["steps_per_epoch"], len(ready["epoch_tokens"])) == (80, 10, 10)
    assert (ready["batch_size"], ready["accumulation"], ready["device"], ready["precision"]) == (
        8,
        1,
        "cpu",
        "fp32",
    )
    assert ready["features"]["family"] == "bert"

    losses = []
    for run, block in (("one", 5), ("two", 1)):
        led.do(do="start", run=run, block_steps=block)
        begun = led.hear("started")
        blocks = [led.hear("block") for _ in range(25 // block)]
        led.do(do="stop")
        stopped, more = led.until("stopped")
        assert [b["steps"] for b in blocks] == [block * (n + 1) for n in range(25 // block)]
        assert {a["run"] for a in (begun, *blocks, stopped)} == {run}
        times = [a["t"] for a in (begun, *blocks, *more, stopped)]
        assert times == sorted(times)
        assert begun["t"] > 0
        assert abs(time.monotonic() - stopped["t"]) < 60
        told = [t for b in blocks for t in b["tokens"]]
        assert told[:10] == ready["epoch_tokens"]
        assert told[10:20] != ready["epoch_tokens"]  # the next epoch is shuffled anew
        assert sum(told[10:20]) > 0
        losses.append([loss for b in (*blocks, *more) for loss in b["loss"]][:25])
        assert stopped["steps"] >= 25
        assert stopped["why"] == "asked"
    assert losses[0] == losses[1]

    led.do(do="evaluate")
    answer = led.hear("evaluated")
    assert answer["examples"] == 20
    assert 0.0 <= answer["accuracy"] <= 1.0

    # a pause holds the run between two steps
    led.do(do="start", run="three", block_steps=1)
    led.hear("started")
    last = led.hear("block")
    led.do(do="pause")
    time.sleep(1.0)
    while not led.said.empty():
        last = led.hear("block")
    time.sleep(0.5)
    assert led.said.empty()
    led.do(do="resume")
    after = led.hear("block")
    assert after["steps"] == last["steps"] + 1
    assert after["t"] - last["t"] > 0.5

    # what cannot be obeyed is refused, and the run goes on
    led.do(do="evaluate")
    led.process.stdin.write("no json\n[1]\n")
    led.process.stdin.flush()
    refusals = [led.until("refused")[0] for _ in range(3)]
    assert all(r["what"] for r in refusals)
    led.do(do="stop")
    led.until("stopped")
    led.do(do="dance")
    led.do(do="start", run="four", block_steps=0)
    led.until("refused")
    led.until("refused")
    led.do(do="quit")
    assert led.process.wait(timeout=30) == 0
    assert led.said.get(timeout=5) is None


def test_it_ends_with_its_parent_in_the_middle_of_a_run(tiny: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps(tiny))
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-m', 'wattune.workloads.finetune.worker', sys.argv[1]],"
        " stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
        "p.stdout.readline()\n"
        'p.stdin.write(\'{"do": "start", "run": "a", "block_steps": 1}\\n\'); p.stdin.flush()\n'
        "p.stdout.readline(); print(p.pid, flush=True); time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "job.json")], stdout=subprocess.PIPE, text=True, env=environment(tmp_path)
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    until = time.monotonic() + 20
    while time.monotonic() < until and Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":  # nobody waits for it
            break
        time.sleep(0.1)
    else:
        alive = Path(f"/proc/{pid}").exists()
        if alive:
            os.kill(pid, signal.SIGKILL)
        assert not alive


# --- in this process ------------------------------------------------------------------------------------------------


class Script:
    """A channel that plays commands and keeps answers."""

    def __init__(self, *commands: dict[str, Any]) -> None:
        self.commands = [*commands, worker.QUIT]
        self.said: list[dict[str, Any]] = []

    def say(self, answer: dict[str, Any]) -> None:
        self.said.append(json.loads(json.dumps(worker._plain(answer), allow_nan=False)))

    def refuse(self, what: str) -> None:
        self.say({"said": "refused", "what": what})

    def next(self) -> dict[str, Any]:
        return self.commands.pop(0)

    def poll(self) -> None:
        return None


def start(run: str = "a", block_steps: int = 1) -> dict[str, Any]:
    return {"do": "start", "run": run, "block_steps": block_steps}


def served(document: dict[str, Any], *commands: dict[str, Any]) -> tuple[int, list[dict[str, Any]]]:
    script = Script(*commands)
    return worker.serve(FinetuneSpec.from_dict(document), script), script.said  # type: ignore[arg-type]


def run_of(job: Job) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = []
    job.train("a", 1, said.append, lambda: None)
    return said


def losses_of(said: list[dict[str, Any]]) -> list[float]:
    return [loss for answer in said if answer["said"] == "block" for loss in answer["loss"]]


STILL = BERT | {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def test_it_trains_as_a_loop_written_by_hand_would(tiny: dict[str, Any], tmp_path: Path) -> None:
    """AdamW with decay on matrices only, clipping at 1, warm-up over 6 % of the planned steps, then linear to 0."""
    folder(tmp_path / "bert", STILL)
    job = Job(FinetuneSpec.from_dict(tiny | {"max_steps": 60, "epochs": 5}))
    ours = losses_of(run_of(job))
    job.restore()
    model = job.model.train()
    decay = [p for n, p in model.named_parameters() if not n.endswith("bias") and "LayerNorm" not in n]
    rest = [p for n, p in model.named_parameters() if n.endswith("bias") or "LayerNorm" in n]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}], lr=1e-3, eps=1e-8
    )
    theirs, step = [], 0
    order = job.order
    while len(theirs) < 60:
        for which in order:
            rate = step / 3 if step < 3 else max(0.0, (50 - step) / 47)
            for group in optimizer.param_groups:
                group["lr"] = 1e-3 * rate
            loss = model(**job.table.batch(which)).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            theirs.append(float(loss.detach()))
            step += 1
    assert ours == pytest.approx(theirs[:60], rel=1e-3)
    assert ours[:5] == pytest.approx(theirs[:5], rel=1e-5)


@pytest.mark.parametrize("method", ["full", "lora", "bitfit"])
def test_every_method_begins_anew_bit_for_bit_and_moves_only_what_it_trains(
    tiny: dict[str, Any], method: str
) -> None:
    if method == "lora":
        pytest.importorskip("peft", reason="peft is not installed")
    job = Job(
        FinetuneSpec.from_dict(tiny | {"method": method, "max_steps": 60, "epochs": 6, "learning_rate": 3e-3})
    )
    before = {name: value.detach().clone() for name, value in job.model.named_parameters()}
    first = losses_of(run_of(job))
    scored = job.evaluate()
    for name, value in job.model.named_parameters():
        assert torch.equal(value, before[name]) != value.requires_grad, name
    assert first == losses_of(run_of(job))
    assert scored == job.evaluate()
    job.restore()
    assert all(torch.equal(value, before[name]) for name, value in job.model.named_parameters())
    if method == "full":
        assert sum(first[-10:]) < 0.7 * sum(first[:10])
        assert scored["accuracy"] > 0.8


def test_another_seed_is_another_run(tiny: dict[str, Any]) -> None:
    runs = [
        losses_of(run_of(Job(FinetuneSpec.from_dict(tiny | {"max_steps": 3, "seed": seed}))))
        for seed in (1, 2)
    ]
    assert runs[0] != runs[1]


def test_decoders_learn_classes_and_text(tiny: dict[str, Any], tmp_path: Path) -> None:
    neox = str(folder(tmp_path / "neox", NEOX, pad=False))
    said = run_of(Job(FinetuneSpec.from_dict(tiny | {"model": neox, "max_steps": 40, "learning_rate": 3e-3})))
    losses = losses_of(said)
    assert sum(losses[-10:]) < sum(losses[:10])
    llama = str(folder(tmp_path / "llama", LLAMA))
    answers = ("rain", "steam")
    made = [{"prompt": row["text"], "completion": answers[row["label"]]} for row in rows(60)]
    asked = write_jsonl(tmp_path / "asked.jsonl", made)
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(row["text"] for row in rows(80)))
    for path in (asked, text):
        job = Job(
            FinetuneSpec.from_dict(
                {"model": llama, "path": str(path), "from_config": True, "batch_size": 8, "max_length": 16, "max_steps": 40,
                 "learning_rate": 1e-2, "held_out": 0.1, "epochs": 10, "device": "cpu"}
            )
        )  # fmt: skip
        losses = losses_of(run_of(job))
        assert sum(losses[-5:]) < 0.8 * sum(losses[:5])
        scored = job.evaluate()
        assert scored["accuracy"] is None
        assert math.isfinite(scored["loss"])


def test_values_are_learnt_too(tiny: dict[str, Any], tmp_path: Path) -> None:
    made = [{"text": row["text"], "label": float(3 * row["label"])} for row in rows(100)]
    path = str(write_csv(tmp_path / "values.csv", made))
    job = Job(
        FinetuneSpec.from_dict(
            tiny | {"path": path, "kind": "regression", "max_steps": 60, "learning_rate": 3e-3}
        )
    )
    run_of(job)
    scored = job.evaluate()
    assert scored["accuracy"] is None
    assert scored["pearson"] > 0.5


def test_made_up_sentences_need_no_file_at_all() -> None:
    config = {k: v for k, v in STILL.items() if k != "model_type"} | {
        "vocab_size": 300,
        "max_position_embeddings": 512,
    }
    job = Job(
        FinetuneSpec.from_dict(
            {"model": "bert-small", "task": "mrpc", "path": "made-up", "from_config": True, "config": config, "max_examples": 300,
             "batch_size": 16, "max_steps": 100, "learning_rate": 3e-3, "epochs": 6, "device": "cpu"}
        )
    )  # fmt: skip
    assert job.table.lengths.mean() == pytest.approx(53.25, rel=0.05)  # the task's published mean
    assert job.tokenizer_source == "the data's own words"
    run_of(job)
    assert job.evaluate()["accuracy"] > 0.7


def limited(job: Job, examples: int) -> None:
    """Let the model run out of memory on more examples than that."""
    forward = job.model.forward

    @functools.wraps(forward)  # the Trainer looks at its parameters
    def short(*args: Any, **inputs: Any) -> Any:
        if len(inputs["input_ids"]) > examples:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return forward(*args, **inputs)

    job.model.forward = short


def test_short_memory_halves_the_batch_and_keeps_the_steps(tiny: dict[str, Any], tmp_path: Path) -> None:
    folder(tmp_path / "bert", STILL)
    spec = FinetuneSpec.from_dict(tiny | {"max_steps": 12})
    whole = run_of(Job(spec))
    job = Job(spec)
    limited(job, 2)
    said = run_of(job)
    changes = [a for a in said if a["said"] == "changed"]
    assert [(a["batch_size"], a["accumulation"]) for a in changes] == [(4, 2), (2, 4)]
    assert "out of memory" in changes[0]["why"]
    assert [a["said"] for a in said].count("started") == 3
    # the same examples in each step, so nearly the same losses; the last step of an epoch has the rest
    assert losses_of(said) == pytest.approx(losses_of(whole), rel=2e-3)
    again = run_of(job)
    assert not [a for a in again if a["said"] == "changed"]
    assert losses_of(again) == losses_of(said)
    assert job.ready()["steps_per_epoch"] == 10


def test_one_example_that_does_not_fit_is_the_end(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(FinetuneSpec.from_dict(tiny))
    limited(job, 0)
    with pytest.raises(BoardError, match="Not even one"):
        run_of(job)
    assert job.batch_size == 1
    import wattune.workloads.finetune.job as module

    monkeypatch.setattr(module, "Job", lambda spec: job)
    code, said = served(tiny, start())
    assert code == 3
    assert (said[-1]["said"], said[-1]["kind"]) == ("failed", "oom")
    assert "lora" in said[-1]["hint"]


def test_a_loss_that_is_no_number_fails_the_run_and_the_worker_goes_on(
    tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Job(FinetuneSpec.from_dict(tiny | {"max_steps": 4}))
    import wattune.workloads.finetune.job as module

    monkeypatch.setattr(module, "Job", lambda spec: job)
    forward, calls = job.model.forward, []

    def broken(*args: Any, **inputs: Any) -> Any:
        made = forward(*args, **inputs)
        calls.append(1)
        if len(calls) == 3:
            made.loss = made.loss * float("nan")
        return made

    job.model.forward = broken
    code, said = served(tiny, start("bad"), start("good"))
    kinds = [(a["said"], a.get("run")) for a in said]
    assert kinds[:5] == [
        ("ready", None),
        ("started", "bad"),
        ("block", "bad"),
        ("block", "bad"),
        ("failed", "bad"),
    ]
    failed = said[4]
    assert failed["kind"] == "nan"
    assert failed["what"]
    assert failed["hint"]
    assert kinds[-1] == ("stopped", "good")
    assert said[-1]["why"] == "end"
    assert code == 0


@pytest.mark.parametrize(
    ("change", "kind", "code"),
    [
        ({"label_column": "class"}, "data", 2),
        ({"text_columns": ["body"]}, "data", 2),
        ({"labels": 3, "path": "BAD"}, "data", 2),
        ({"from_config": False}, "model", 2),
        ({"precision": "fp16"}, "model", 2),
    ],
)
def test_bad_input_is_answered_in_words(
    tiny: dict[str, Any], tmp_path: Path, change: dict, kind: str, code: int
) -> None:
    if change.get("path") == "BAD":
        change = change | {"path": str(write_csv(tmp_path / "bad.csv", [{"text": "x", "label": 7}]))}
    got, said = served(tiny | change)
    assert got == code
    assert len(said) == 1
    assert (said[0]["said"], said[0]["kind"]) == ("failed", kind)
    assert said[0]["what"]
    assert said[0]["expected"]


def test_a_full_disk_and_a_bug_are_told_apart(tiny: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device", "/tmp/x")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", full)
    code, said = served(tiny, start())
    assert (code, said[-1]["kind"]) == (3, "disk")
    assert "No space left" in said[-1]["what"]
    monkeypatch.setattr(tempfile, "TemporaryDirectory", lambda **_: 1 / 0)
    code, said = served(tiny, start())
    assert (code, said[-1]["kind"]) == (1, "bug")
    assert "ZeroDivisionError" in said[-1]["what"]


def test_evaluating_without_anything_to_evaluate_on_is_refused(tiny: dict[str, Any]) -> None:
    code, said = served(tiny | {"held_out": 0.0}, {"do": "evaluate"})
    assert code == 0
    assert said[-1]["said"] == "refused"
    assert "--held-out" in said[-1]["what"]


@pytest.mark.parametrize(("steps", "block_steps"), [(7, 3), (6, 3), (2, 5)])
def test_a_run_with_a_last_step_tells_all_of_its_steps(
    tiny: dict[str, Any], steps: int, block_steps: int
) -> None:
    code, said = served(tiny, start("a", block_steps) | {"max_steps": steps}, {"do": "evaluate"})
    assert code == 0
    assert [a["said"] for a in said[-2:]] == ["stopped", "evaluated"]
    assert (said[-2]["steps"], said[-2]["why"]) == (steps, "end")
    blocks = [a for a in said if a["said"] == "block"]
    assert sum(len(a["loss"]) for a in blocks) == blocks[-1]["steps"] == steps


@pytest.mark.parametrize("steps", [0, -1, 1.5, "7", True])
def test_a_last_step_that_is_none_is_refused(tiny: dict[str, Any], steps: Any) -> None:
    code, said = served(tiny, start() | {"max_steps": steps})
    assert code == 0
    assert said[-1]["said"] == "refused"
    assert "max_steps" in said[-1]["what"]


def test_the_watch_costs_little_and_one_that_costs_a_tenth_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wide bounds: the figure itself is for a quiet machine (`wattune bench window`)."""
    from wattune.workloads.finetune.overhead import callback_overhead
    from wattune.workloads.finetune.watch import StepWatch

    measured = callback_overhead(pairs=8)
    assert measured["in_calls_pct"] < 3.0
    assert measured["step_ms"] == pytest.approx(20.0, rel=0.6)
    own_step = StepWatch.step

    def slow(self: StepWatch) -> bool:
        until = time.thread_time() + measured["step_ms"] / 1e4
        while time.thread_time() < until:
            pass
        return own_step(self)

    monkeypatch.setattr(StepWatch, "step", slow)
    slower = callback_overhead(pairs=8)
    assert slower["in_calls_pct"] > 6.0
    assert 5.0 < slower["callback_overhead_pct"] < 20.0


def test_a_line_whose_loss_is_no_number_says_null_and_all_others_are_as_json_has_them() -> None:
    from wattune.workloads.finetune.worker import Channel

    out, into = os.pipe()
    channel = Channel(None, into)
    for answer in ({"loss": [0.1, float("nan")], "t": float("inf")}, {"loss": [0.1, 2e-45], "steps": 3}):
        channel.say(answer)
    os.close(into)
    with os.fdopen(out) as lines:
        assert [json.loads(line) for line in lines] == [
            {"loss": [0.1, None], "t": None},
            {"loss": [0.1, 2e-45], "steps": 3},
        ]
