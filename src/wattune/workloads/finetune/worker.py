"""A fine-tuning job in a process of its own, led by JSON lines: ``python -m wattune.workloads.finetune.worker SPEC.json``.

Commands come on stdin, answers go to stdout, one JSON object a line; whatever else is printed goes to stderr.
docs/finetuning.md has the protocol. When stdin ends, so does the process.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import math
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from wattune.core.errors import InputError, IntegrityError, WattuneError
from wattune.io import read_json
from wattune.workloads.finetune import hub
from wattune.workloads.finetune.faults import MemoryShortError, RunFailedError, is_out_of_memory
from wattune.workloads.finetune.hub import first_line
from wattune.workloads.finetune.spec import FinetuneSpec

log = logging.getLogger(__name__)

LEAVE_S = 5.0
"""How long a step or a load may still take after stdin has ended."""

WRITE_ONE = "Write one with the settings of wattune.workloads.finetune.spec.FinetuneSpec as a JSON object (docs/finetuning.md)."
QUIT = {"do": "quit"}
_ENCODER = json.JSONEncoder(allow_nan=False)
_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG)


class Channel:
    """Commands in, answers out.

    Args:
        commands: where lines are read from; None for none.
        answers: file descriptor that lines are written to.
        leave: called when nobody listens any more: answers cannot be written, or `LEAVE_S` after the last command.
    """

    def __init__(
        self, commands: IO[bytes] | None, answers: int, leave: Callable[[int], Any] = os._exit
    ) -> None:
        self._answers, self._leave = answers, leave
        self._queue: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        if commands is not None:
            threading.Thread(target=self._listen, args=(commands,), daemon=True, name="commands").start()

    def _listen(self, commands: IO[bytes]) -> None:
        for line in commands:
            if not line.strip():
                continue
            try:
                command = json.loads(line)
                if not isinstance(command, dict) or not isinstance(command.get("do"), str):
                    raise ValueError('an object with "do" was expected')
            except (ValueError, RecursionError) as error:
                self.refuse(f"A line is no command ({error}).")
                continue
            self._queue.put(command)
            if command["do"] == "quit":
                break
        self._queue.put(QUIT)
        timer = threading.Timer(LEAVE_S, self._leave, (0,))
        timer.daemon = True
        timer.start()

    def say(self, answer: dict[str, Any]) -> None:
        """Answer with one line; where nobody reads it any more, leave."""
        try:
            line = _ENCODER.encode(answer)
        except ValueError:  # seldom: something is no finite number
            line = _ENCODER.encode(_plain(answer))
        data = (line + "\n").encode()
        try:
            while data:
                data = data[os.write(self._answers, data) :]
        except BrokenPipeError:
            self._leave(0)

    def refuse(self, what: str) -> None:
        """Answer a command that cannot be obeyed."""
        self.say({"said": "refused", "what": what})

    def next(self) -> dict[str, Any]:
        """The next command, waited for."""
        return self._queue.get()

    def poll(self) -> dict[str, Any] | None:
        """The next command where one has come."""
        return None if self._queue.empty() else self._queue.get()


def _plain(value: Any) -> Any:
    """A value as JSON can say it: what is no finite number is unknown."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value


class Obedience:
    """What to do after each step, as the commands that have come by then say.

    Args:
        channel: the commands.
        synchronize: waits for the device, so that a pause is one.
    """

    def __init__(self, channel: Channel, synchronize: Any) -> None:
        self._channel, self._synchronize = channel, synchronize
        self.then: dict[str, Any] | None = None
        """A command that came in the middle of a run and is obeyed after it."""

    def __call__(self) -> str | None:
        """Why the run ends, or None; waits while it is paused."""
        command = self._channel.poll()
        paused = False
        while command is not None:
            do = command["do"]
            if do in ("stop", "quit", "start"):
                self.then = None if do == "stop" else command
                return "asked"
            if do == "pause":
                if not paused:
                    self._synchronize()
                paused = True
            elif do == "resume":
                paused = False
            else:
                self._channel.refuse(f"'{do}' cannot be obeyed in the middle of a run.")
            command = self._channel.next() if paused else self._channel.poll()
        return None


def serve(spec: FinetuneSpec, channel: Channel) -> int:
    """Load a job and obey until told to quit; returns the exit code."""
    try:
        hub.check_at_hand(
            "" if spec.needs_no_checkpoint else spec.checkpoint, spec.hub_data, spec.fetch_words
        )
        from wattune.workloads.finetune.job import Job  # seconds of importing

        job = Job(spec)
        channel.say(job.ready())
    except Exception as error:  # noqa: BLE001  # whatever it is, the parent is told
        return _fail(channel, error, "") or 0
    command: dict[str, Any] | None = None
    while True:
        command = command or channel.next()
        do, run = command["do"], str(command.get("run", ""))
        following: dict[str, Any] | None = None
        if do == "quit":
            return 0
        try:
            if do == "start":
                following = _run(job, channel, command)
            elif do == "evaluate":
                try:
                    channel.say(job.evaluate())
                except InputError as error:
                    channel.refuse(str(error))
            elif do not in ("stop", "pause", "resume"):  # these come late without harm
                channel.refuse(f"'{do}' is no command.")
        except Exception as error:  # noqa: BLE001
            ended = _fail(channel, error, run)
            if ended is not None:
                return ended
        command = following


def _run(job: Any, channel: Channel, command: dict[str, Any]) -> dict[str, Any] | None:
    """Train as told; returns a command that came meanwhile and is still to be obeyed."""
    run, block_steps = command.get("run", ""), command.get("block_steps", 1)
    if not isinstance(run, str):
        channel.refuse(f"run is {run!r}; a text was expected.")
        return None
    if type(block_steps) is not int or block_steps < 1:
        channel.refuse(f"block_steps is {block_steps!r}; a whole number of at least 1 was expected.")
        return None
    max_steps = command.get("max_steps")
    if max_steps is not None and (type(max_steps) is not int or max_steps < 1):
        channel.refuse(f"max_steps is {max_steps!r}; a whole number of at least 1 was expected.")
        return None
    obey = Obedience(channel, job.synchronize)
    job.train(run, block_steps, channel.say, obey, max_steps=max_steps)
    return obey.then


def _fail(channel: Channel, error: Exception, run: str) -> int | None:
    """Tell the parent what failed; returns the exit code, or None where the job can go on."""
    answer: dict[str, Any] = {"said": "failed", "run": run, "expected": "", "hint": ""}
    code: int | None
    if isinstance(error, RunFailedError):
        code = None
        answer |= {
            "kind": error.kind,
            "what": error.what,
            "expected": "A loss that stays a number near where it began was expected.",
            "hint": "Lower learning_rate, or take another precision.",
        }
    elif isinstance(error, MemoryShortError) or is_out_of_memory(error):
        code = 3
        answer |= {
            "kind": "oom",
            "what": getattr(error, "what", f"Memory is short: {first_line(error)}."),
            "expected": getattr(error, "expected", "Room for the model was expected."),
            "hint": getattr(error, "hint", "Take a smaller model, or method=lora."),
        }
    elif isinstance(error, OSError) and error.errno in _DISK:
        code = 3
        answer |= {
            "kind": "disk",
            "what": f"{error.filename or 'A file'} could not be written: {error.strerror}.",
            "expected": "Room for temporary files and the cache was expected.",
            "hint": "Free some space (or set HF_HOME, TMPDIR) and run the same command again.",
        }
    elif isinstance(error, WattuneError):
        code = error.exit_code
        answer |= {
            "kind": _kind_of(error),
            "what": error.what,
            "expected": error.expected,
            "hint": error.hint,
        }
    else:
        traceback.print_exception(error)
        code = 1
        answer |= {"kind": "bug", "what": f"{type(error).__name__}: {first_line(error)}."}
    channel.say(answer)
    return code


def _kind_of(error: WattuneError) -> str:
    """``data`` where the fault lies in the data, else ``model``."""
    if isinstance(error, IntegrityError):
        return "model"
    if "disk is full" in error.what or "No space left" in error.what:
        return "disk"
    frame = error.__traceback__
    while frame is not None:
        if Path(frame.tb_frame.f_code.co_filename).name in ("sources.py", "tokens.py", "madeup.py"):
            return "data"
        frame = frame.tb_next
    return "model"


def main(argv: list[str] | None = None) -> int:
    """Run the worker; returns the exit code."""
    logging.basicConfig(
        level=os.environ.get("LOG_LEVEL", "INFO").upper(), format="%(message)s", stream=sys.stderr
    )
    answers = os.dup(1)
    os.dup2(2, 1)  # the protocol has stdout to itself
    words = sys.argv[1:] if argv is None else argv
    channel = Channel(sys.stdin.buffer, answers)
    try:
        if len(words) != 1:
            raise InputError(
                f"{len(words)} arguments were given.", "The file of one job was expected.",
                "For example `python -m wattune.workloads.finetune.worker job.json`.",
            )  # fmt: skip
        spec = FinetuneSpec.from_dict(read_json(Path(words[0]), "The job", WRITE_ONE))
    except WattuneError as error:
        return _fail(channel, error, "") or 0
    with contextlib.suppress(KeyboardInterrupt):
        return serve(spec, channel)
    return 130


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # torch's own threads and the listening one are not waited for
