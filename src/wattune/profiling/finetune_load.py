"""A fine-tuning process as the load: one process and one model load for all settings of a workload, measured by its own reports.

The process (:mod:`wattune.workloads.finetune.worker`) is led by JSON lines. Each window is a run that begins anew from the same
state, with the same batches in the same order; its reports name the moment at which the device had finished a step, so edges are
exact.

What goes wrong is of two kinds. A run may be lost: the process died, hung, said what is no answer, or its loss went wrong. Then the
setting has no number, and the next one gets a new process where the old one is gone (`RunLostError`). Or the job cannot run at all
(no such model, a full disk, not one example fits): that ends the sweep.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import queue
import re
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from wattune.core.errors import BoardError, InputError, IntegrityError, WattuneError
from wattune.core.workload import Workload
from wattune.profiling.load import DIE_WITH_PARENT, EMULATOR_CONTROL, END_S, TAIL_BYTES, TAIL_LINES
from wattune.profiling.window_rule import Epoch

log = logging.getLogger(__name__)

Watch = Callable[[], None]
"""Called every now and then while something is waited for; what it raises ends the wait."""

WORKER = ("-m", "wattune.workloads.finetune.worker")
WATCH_S = 0.25
LONGEST_LINE = 64 * 2**20
SHOWN = 80

LEAVE_S = 2.0
"""How long a process that has said that it fails, or has closed its output, may take to end."""

TRIAL_STEPS, TRIAL_WARMUP = 8, 3
"""Steps of the run that finds out how long a step takes, and how many of them are not counted."""

REPORTS_PER_BLOCK = 4
"""Reports are made so often that a block of the rule spans several of them at any clock."""

MOST_BLOCK_STEPS = 50

EVALUATION_S = 7200.0
"""How long a validation split may take; nothing is said meanwhile."""

FACTS = (
    "name",
    "device",
    "precision",
    "params_m",
    "trainable_m",
    "examples",
    "model_load_s",
    "peak_memory_mb",
    "computes_with",
)
"""What the certificate keeps of the job."""

_ENDS = {"oom", "disk", "data", "model"}
"""Faults after which another run would meet the same."""


class RunLostError(BoardError):
    """A run gave nothing; another one may."""


@dataclass(frozen=True, slots=True)
class Report:
    """Some more steps are finished.

    Attributes:
        steps: steps finished since the run began.
        t_s: when, seconds on the monotonic clock of the system, the device having finished them.
        tokens: padded tokens of each.
        losses: of each.
    """

    steps: int
    t_s: float
    tokens: tuple[int, ...]
    losses: tuple[float, ...]


@dataclass(slots=True)
class Trajectory:
    """The losses of a run from its first step on, with digests by which runs of different length are compared.

    Attributes:
        losses: of every step.
    """

    losses: list[float] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """First and last loss and SHA-256 of the losses' bits: of all, and of the first 1, 2, 4, 8 ... steps."""
        if not self.losses:
            return {"steps": 0, "first": None, "last": None, "digest": None, "prefixes": {}}
        digest, prefixes = hashlib.sha256(), {}
        for number, loss in enumerate(self.losses, 1):
            digest.update(struct.pack("<d", loss))
            if number & (number - 1) == 0:
                prefixes[str(number)] = digest.hexdigest()[:16]
        return {
            "steps": len(self.losses), "first": self.losses[0], "last": self.losses[-1],
            "digest": digest.hexdigest()[:16], "prefixes": prefixes,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answered:
    """What the process said of the job when it was ready.

    Attributes:
        epoch: steps and padded tokens of one pass over the data.
        features: of the job, as the feature table names them.
        facts: what else the certificate keeps.
    """

    epoch: Epoch
    features: dict[str, Any]
    facts: dict[str, Any]


class FinetuneLoad:
    """The fine-tuning process of a workload.

    Args:
        settings: of every job, over what the workload says (see :class:`wattune.workloads.finetune.spec.FinetuneSpec`).
        jobs: workload id -> settings of that job alone.
        more: what else is known of a workload, e.g. its ``max_length``.
        block_s: shortest block of the stopping rule.
        start_s: how long the process may take until it is ready, and a run to its first report.
        stall_s: how long it may say nothing in a run.
        emulated: tree of the emulated board that takes part in every step; None where there is none.
        command: the process; the worker of this installation where not given.
    """

    starts = True

    def __init__(
        self,
        settings: Mapping[str, Any],
        jobs: Mapping[str, Mapping[str, Any]],
        *,
        more: Callable[[Workload], Mapping[str, object]] = lambda _: {},
        block_s: float = 1.0,
        start_s: float = 600.0,
        stall_s: float = 120.0,
        emulated: Path | None = None,
        command: Sequence[str] = (sys.executable, *WORKER),
    ) -> None:
        said = {"settings": dict(settings), "jobs": {name: dict(job) for name, job in jobs.items()}}
        self.text = f"finetune: {json.dumps(said, sort_keys=True)}" + (
            " (emulated steps)" if emulated else ""
        )
        self._settings, self._jobs, self._more = (
            dict(settings),
            {k.lower(): dict(v) for k, v in jobs.items()},
            more,
        )
        self._block_s, self._start_s, self._stall_s = block_s, start_s, stall_s
        self._emulated, self._command = emulated, tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._answers: queue.SimpleQueue[dict[str, Any] | str | None] = queue.SimpleQueue()
        self._tail = b""
        self._threads: list[threading.Thread] = []
        self._workload: Workload | None = None
        self._seed = 0
        self._answered: Answered | None = None
        self._run: str | None = None
        self._runs = 0
        self._steps = 0
        self.block_steps = 1
        self.changes: list[dict[str, Any]] = []
        self.batch: tuple[int, int] = (0, 0)
        self.trajectory = Trajectory()

    # --- the load

    @property
    def pid(self) -> int | None:
        """The process, which leads its group; None where none runs."""
        return None if self._process is None else self._process.pid

    @property
    def answered(self) -> Answered:
        """What the process said of the job."""
        assert self._answered is not None, "it was started"
        return self._answered

    @property
    def emulates(self) -> bool:
        """Whether an emulated board takes part in every step."""
        return self._emulated is not None

    def spec_of(self, workload: Workload, seed: int) -> dict[str, Any]:
        """The job of a workload, checked.

        Raises:
            InputError: a setting that no job has, or a value out of its range.
        """
        from wattune.workloads.finetune.spec import FinetuneSpec

        document: dict[str, Any] = {
            "model": workload.model, "task": workload.task, "batch_size": workload.batch_size,
            "precision": workload.precision, "seed": seed, **self._more(workload), **self._settings,
            **self._jobs.get(workload.id.lower(), {}),
        }  # fmt: skip
        if self._emulated is not None:
            document["emulated"] = str(self._emulated)
        return FinetuneSpec.from_dict(document).to_dict()

    def check(self, workload: Workload) -> None:
        """See :class:`wattune.profiling.load.Load`."""
        self.spec_of(workload, 0)
        if self._emulated is not None and not (self._emulated / EMULATOR_CONTROL).exists():
            raise InputError(
                f"There is no emulated board: {self._emulated / EMULATOR_CONTROL} is missing.",
                "With board.load.emulated_steps the tree of a running `wattune emulate DIR` was expected.",
                "Start one and name it: `WATTUNE_ROOT=DIR`, or board.root=DIR.",
            )

    def start(self, workload: Workload, seed: int) -> None:
        """Start the process, wait until model and data are loaded, and find out how long a step takes.

        Raises:
            InputError: the job is not described as it must be.
            BoardError: it cannot run.
        """
        self.stop()
        self.check(workload)
        self._workload, self._seed = workload, seed
        self._spawn()
        self._try_steps()

    def steps(self) -> int | None:
        """Steps finished in the present run; None where none runs."""
        return self._steps if self._run is not None else None

    def pause(self) -> bool:
        """Between runs the device has nothing to do, so there is nothing to pause."""
        return False

    def resume(self) -> None:
        """See :meth:`pause`."""

    def stop(self) -> None:
        """End the process: it is asked to, then told to. Never raises."""
        process, self._process, self._run = self._process, None, None
        if process is not None:
            with contextlib.suppress(OSError, ValueError):
                assert process.stdin is not None
                process.stdin.write(b'{"do":"stop"}\n{"do":"quit"}\n')
                process.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1.0)
            for number in (signal.SIGTERM, signal.SIGKILL):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(END_S)
            for thread in self._threads:
                thread.join(0.5)
            if not any(thread.is_alive() for thread in self._threads):
                for pipe in (process.stdout, process.stderr):
                    if pipe is not None:
                        pipe.close()
            if self._emulated is not None:
                with contextlib.suppress(OSError):
                    (self._emulated / EMULATOR_CONTROL).write_text("workload idle\n")
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.cleanup()
            self._folder = None

    # --- runs

    def begin(self, name: str, watch: Watch = lambda: None, *, steps: int | None = None) -> float:
        """Have a run begin anew; returns when it did, seconds on the monotonic clock.

        Args:
            name: of the run.
            watch: called while it is waited for.
            steps: its last step; None for one that goes on until :meth:`end`.

        Raises:
            RunLostError: it does not begin.
            BoardError: the job cannot run.
        """
        if self._process is None or self._process.poll() is not None:
            log.warning("The fine-tuning process is gone; a new one is started.")
            self.stop()
            self._spawn()
        self._begun(f"{name}, run {self._runs}", self.block_steps, steps)
        answer = self._next(self._start_s, watch)
        if answer["said"] != "started":
            raise self._odd(answer, "started")
        return float(answer["t"])

    def report(self, watch: Watch = lambda: None) -> Report:
        """The next steps of the present run, waited for.

        Where memory was short the process has begun the run anew with smaller batches: `changes` has it then, and the report's
        steps count from the new beginning.

        Raises:
            RunLostError: it died, hung, or its loss went wrong.
            BoardError: the job cannot run.
        """
        while True:
            answer = self._next(self._start_s if self._steps == 0 else self._stall_s, watch)
            if answer["said"] in ("changed", "started"):
                continue
            if answer["said"] != "block":
                raise self._odd(answer, "block")
            try:
                made = Report(
                    int(answer["steps"]), float(answer["t"]), tuple(int(n) for n in answer["tokens"]),
                    tuple(float(loss) for loss in answer["loss"]),
                )  # fmt: skip
                whole = (
                    made.steps == self._steps + len(made.tokens) and len(made.losses) == len(made.tokens) > 0
                )
            except (KeyError, TypeError, ValueError):
                whole = False
            if not whole:
                raise self._odd(answer, "block")
            self._steps = made.steps
            self.trajectory.losses += made.losses
            return made

    def end(self) -> None:
        """End the present run. Never raises: a process that does not obey is ended."""
        if self._run is None:
            return
        try:
            self._say({"do": "stop"})
            while self._next(self._stall_s, lambda: None)["said"] != "stopped":
                pass
        except WattuneError as error:
            log.warning("%s", error)
        self._run = None

    def evaluate(self, watch: Watch = lambda: None) -> dict[str, Any] | None:
        """What the model that the last run left knows of the validation split; None where there is none.

        Returns:
            ``accuracy``, ``pearson``, ``loss``, ``examples``.

        Raises:
            RunLostError: it died or hung.
        """
        self._say({"do": "evaluate"})
        answer = self._next(EVALUATION_S, watch, refused=True)
        if answer["said"] == "refused":
            return None
        if answer["said"] != "evaluated":
            raise self._odd(answer, "evaluated")
        return {name: answer.get(name) for name in ("accuracy", "pearson", "loss", "examples")}

    def facts(self) -> dict[str, Any]:
        """What the certificate keeps of the present run."""
        batch_size, accumulation = self.batch
        return {
            **self.answered.facts, "batch_size": batch_size, "accumulation": accumulation, "changes": list(self.changes),
            "block_steps": self.block_steps, "losses": self.trajectory.as_json(),
        }  # fmt: skip

    # --- the process

    def _spawn(self) -> None:
        assert self._workload is not None
        self._folder = tempfile.TemporaryDirectory(prefix="wattune-finetune-")
        spec = Path(self._folder.name) / "job.json"
        self._answers, self._tail = queue.SimpleQueue(), b""
        try:
            spec.write_text(json.dumps(self.spec_of(self._workload, self._seed)), encoding="utf-8")
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    "-c",
                    DIE_WITH_PARENT,
                    str(os.getpid()),
                    *self._command,
                    str(spec),
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "TMPDIR": self._folder.name},  # what it leaves behind goes with our own
            )
        except OSError as error:
            self.stop()
            raise BoardError(
                f"The fine-tuning process could not be started: {error.strerror}.",
                "Room for a temporary file and a process was expected.",
                "Free some space and run the same command again.",
            ) from error
        self._threads = [
            threading.Thread(target=target, args=arguments, daemon=True, name=f"finetune {name}")
            for name, target, arguments in (
                ("answers", _listen, (self._process.stdout, self._answers)),
                ("stderr", self._keep_tail, (self._process.stderr,)),
            )
        ]
        for thread in self._threads:
            thread.start()
        try:
            ready = self._next(self._start_s, lambda: None)
            if ready["said"] != "ready":
                raise self._odd(ready, "ready")
            tokens = [int(n) for n in ready["epoch_tokens"]]
            self._answered = Answered(
                Epoch(int(ready["steps_per_epoch"]), sum(tokens)),
                dict(ready["features"]),
                {name: ready.get(name) for name in FACTS},
            )  # fmt: skip
            self.batch, self.changes = (int(ready["batch_size"]), int(ready["accumulation"])), []
            if not tokens or len(tokens) != self._answered.epoch.steps:
                raise ValueError
        except RunLostError as error:  # a job that is not even ready will not be by trying again
            self.stop()
            raise BoardError(error.what, error.expected, error.hint) from error
        except (KeyError, TypeError, ValueError) as error:
            self.stop()
            raise BoardError(
                f"The fine-tuning process said of itself what is not complete ({type(error).__name__}).",
                "Its epoch's steps and their tokens were expected (docs/finetuning.md).",
                "Look at what it prints: `python -m wattune.workloads.finetune.worker job.json`.",
            ) from error
        except BaseException:
            self.stop()
            raise

    def _try_steps(self) -> None:
        """A short run that finds out how long a step takes, so that reports come neither too often nor too seldom.

        Raises:
            BoardError: not even this run works.
        """
        self.block_steps = 1
        try:
            self.begin("trial")
            stamps: list[float] = []
            while len(stamps) < TRIAL_STEPS:
                made = self.report()
                stamps = [*stamps, made.t_s] if made.steps > 1 else [made.t_s]  # it may begin anew
        except RunLostError as error:
            self.stop()
            raise BoardError(error.what, error.expected, error.hint) from error
        self.end()
        step_s = statistics.median(
            b - a for a, b in zip(stamps[TRIAL_WARMUP - 1 :], stamps[TRIAL_WARMUP:], strict=False)
        )
        wanted = self._block_s / REPORTS_PER_BLOCK / max(step_s, 1e-6)
        self.block_steps = max(1, min(MOST_BLOCK_STEPS, round(wanted)))

    def _begun(self, name: str, block_steps: int, steps: int | None) -> None:
        self._runs += 1
        self._run, self._steps, self.trajectory = name, 0, Trajectory()
        start = {"do": "start", "run": name, "block_steps": block_steps}
        self._say(start if steps is None else start | {"max_steps": steps})

    def _say(self, command: dict[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # it died: whoever waits for its answer learns how
            pass

    def _next(self, patience_s: float, watch: Watch, *, refused: bool = False) -> dict[str, Any]:
        """The next answer that belongs to the present run; that a command was refused only where that is asked for.

        Raises:
            RunLostError: it died, hung or said what is no answer.
            InputError: the job is not as it must be.
            BoardError: it cannot run here.
        """
        until = time.monotonic() + patience_s
        while True:
            try:
                answer = self._answers.get(timeout=WATCH_S)
            except queue.Empty:
                watch()
                if time.monotonic() < until:
                    continue
                said = self._said()
                self._kill()
                raise RunLostError(
                    f"The fine-tuning process said nothing for {patience_s:g} s{said} and was ended.",
                    "A report after every few steps was expected.",
                    "Where its steps take longer, raise board.live.stall_s (or start_s for loading).",
                ) from None
            watch()
            if answer is None:
                raise self._died()
            if isinstance(answer, str):
                said = answer[:SHOWN]
                self._kill()
                raise RunLostError(
                    f"The fine-tuning process said '{said}', which is no answer, and was ended.",
                    "JSON lines of its protocol were expected (docs/finetuning.md).",
                    "Something else prints on its standard output.",
                )
            if answer["said"] == "failed":
                self._failed(answer)
            run = answer.get("run")
            if run not in (None, self._run) or (answer["said"] == "refused" and not refused):
                continue  # of a run before this one
            if answer["said"] == "changed":
                self._changed(answer)
            return answer

    def _failed(self, answer: dict[str, Any]) -> None:
        """Raise what the process says went wrong."""
        texts = tuple(str(answer.get(name) or "") for name in ("what", "expected", "hint"))
        kind, loading = answer.get("kind"), self._run is None
        if kind in ("nan", "diverged"):
            self._run = None  # the process goes on
            raise RunLostError(*texts)
        code = self._code()
        self._kill()
        for fault in (InputError, IntegrityError):
            if code == fault.exit_code:
                raise fault(*texts)
        if kind in _ENDS or loading:
            raise BoardError(*texts)
        raise RunLostError(*texts)

    def _changed(self, answer: dict[str, Any]) -> None:
        self._steps, self.trajectory = 0, Trajectory()
        with contextlib.suppress(KeyError, TypeError, ValueError):
            self.batch = (int(answer["batch_size"]), int(answer["accumulation"]))
        change = {name: answer.get(name) for name in ("batch_size", "accumulation", "why")}
        self.changes.append(change)
        log.warning(
            "Memory was short: batches of %s now, %s of them a step. %s",
            change["batch_size"], change["accumulation"], change["why"] or "",
        )  # fmt: skip

    def _odd(self, answer: dict[str, Any], wanted: str) -> RunLostError:
        self._kill()
        return RunLostError(
            f"The fine-tuning process said '{str(answer)[:SHOWN]}' and was ended.",
            f"An answer '{wanted}' was expected (docs/finetuning.md).",
            "Take the worker of the same version.",
        )

    def _code(self) -> int | None:
        """Exit code of a process that is about to end; None where it does not."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self._process.wait(LEAVE_S)
        return None

    def _died(self) -> RunLostError:
        code = self._code()
        how = "closed its output"
        if code is not None:
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
        said = self._said()
        self._kill()
        return RunLostError(
            f"The fine-tuning process {how}{said or ' and said nothing'}.",
            "It was expected to train until it is told to stop.",
            "Look at its memory and at the system's log (`dmesg`), then run the same command again; finished settings stay.",
        )

    def _said(self) -> str:
        """The end of its stderr, as part of a sentence."""
        for thread in self._threads:
            thread.join(0.2)
        lines = [line.strip() for line in re.split(r"[\r\n]+", self._tail.decode("utf-8", "replace"))]
        kept = " | ".join([line for line in lines if line][-TAIL_LINES:])
        return f"; the end of its stderr: {kept}" if kept else ""

    def _kill(self) -> None:
        """End a process that can no longer be led, at once; the next run gets a new one."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self.stop()

    def _keep_tail(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed while we read
            while data := os.read(pipe.fileno(), 65536):
                self._tail = (self._tail + data)[-TAIL_BYTES:]


def _listen(pipe: IO[bytes], answers: queue.SimpleQueue[dict[str, Any] | str | None]) -> None:
    """Answers, line by line; what is none goes on as text, the end as None."""
    with contextlib.suppress(OSError, ValueError):
        while line := pipe.readline(LONGEST_LINE):
            try:
                answer = json.loads(line)
                if not isinstance(answer, dict) or not isinstance(answer.get("said"), str):
                    raise ValueError
            except (ValueError, RecursionError):
                answers.put(line.decode("utf-8", "replace").strip())
                continue
            answers.put(answer)
    answers.put(None)
