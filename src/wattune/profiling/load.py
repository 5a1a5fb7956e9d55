"""What runs while a real board is measured: somebody's training loop that counts its steps into a file.

The protocol is one file (docs/measuring.md): after every finished step the loop replaces it with the number of steps finished so
far, as text (``128``) or as a JSON object with ``steps``. Nothing else is asked of it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import IO, Protocol

from wattune.core.errors import BoardError, InputError
from wattune.core.workload import Workload

log = logging.getLogger(__name__)

PLACES = ("model", "task", "batch_size", "precision", "max_length", "steps_file", "seed")
"""What a command line may ask for in braces."""

STEPS_VARIABLE = "WATTUNE_STEPS_FILE"
END_S = 10.0
"""How long a load may take to end after SIGTERM."""

TAIL_BYTES = 4000
TAIL_LINES = 8

EMULATOR_STATUS, EMULATOR_CONTROL = "emulator/status.json", "emulator/control"

DIE_WITH_PARENT = (
    "import ctypes, os, signal, sys\n"
    "ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"  # PR_SET_PDEATHSIG: it must not outlive a sweep that was killed
    "if os.getppid() != int(sys.argv[1]): sys.exit(1)\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)


class Load(Protocol):
    """A training loop that is measured.

    Attributes:
        text: what it is, for people and for the fingerprint of cells.
        starts: whether it is started (and ended) here; then the board is idle before.
    """

    text: str
    starts: bool

    def check(self, workload: Workload) -> None:
        """Find out without starting it whether it could run.

        Raises:
            InputError: it is not described as it must be.
        """

    def start(self, workload: Workload, seed: int) -> None:
        """Have it run.

        Raises:
            InputError: it is not described as it must be.
            BoardError: it cannot be started.
        """

    def steps(self) -> int | None:
        """Steps finished so far; None where it has not said yet.

        Raises:
            BoardError: it ended, or what it says is no number.
        """

    def pause(self) -> bool:
        """Have it stand still, where it can; returns whether it does."""

    def resume(self) -> None:
        """Have it go on."""

    def stop(self) -> None:
        """End it, where it was started here. Never raises."""


def read_steps(path: Path) -> int | None:
    """The number of steps in a file; None where it is not there, or empty.

    Raises:
        BoardError: it holds neither a number nor a JSON object with ``steps``, or cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise BoardError(
            f"The steps file {path} could not be read: {reason}.",
            "A file with the number of finished steps was expected.",
            "See docs/measuring.md for what the training loop has to write.",
        ) from error
    if not text:
        return None
    try:
        said = json.loads(text)
        steps = said["steps"] if isinstance(said, dict) else said
        if type(steps) is not int or steps < 0:
            raise ValueError
    except (ValueError, KeyError, RecursionError) as error:
        raise BoardError(
            f"The steps file {path} says '{text[:40]}'.",
            "The number of finished steps was expected, alone or as `steps` of a JSON object.",
            "Have the training loop write a temporary file and rename it, so that no half of it is read.",
        ) from error
    return steps


def _workload_in(path: Path) -> str | None:
    """What a steps file says is trained; None where it says nothing of it."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    name = said.get("workload") if isinstance(said, dict) else None
    return name if isinstance(name, str) else None


class ExternalLoad:
    """A loop that somebody runs already; it is neither started nor ended here.

    Args:
        steps_file: where it counts.
    """

    starts = False

    def __init__(self, steps_file: Path) -> None:
        self.steps_file = steps_file
        self.text = "external"

    def check(self, workload: Workload) -> None:
        """See :class:`Load`; the file must be there, since the loop runs already."""
        if not self.steps_file.is_file():
            raise InputError(
                f"There is no steps file {self.steps_file}.",
                "With board.load.kind=external a training loop is expected to run already and to count its steps there.",
                "Start it, or name its file with board.load.steps_file=PATH.",
            )

    def start(self, workload: Workload, seed: int) -> None:
        """See :class:`Load`; it runs already, and where it says what it trains that must be the workload."""
        self.check(workload)
        said = _workload_in(self.steps_file)
        if said is not None and said.lower() not in (
            workload.id.lower(),
            f"{workload.model}-{workload.task}",
        ):
            raise BoardError(
                f"The loop that counts into {self.steps_file} trains '{said}'.",
                f"'{workload.id}' was expected.",
                "Start the right one and run the same command again; cells that were finished stay.",
            )

    def steps(self) -> int | None:
        """See :class:`Load`."""
        return read_steps(self.steps_file)

    def pause(self) -> bool:
        """See :class:`Load`; somebody else's loop is left alone."""
        return False

    def resume(self) -> None:
        """See :class:`Load`."""

    def stop(self) -> None:
        """See :class:`Load`."""


class EmulatedLoad(ExternalLoad):
    """What an emulated board runs by itself (`wattune emulate`): told through its control file.

    Args:
        root: the emulated tree.
    """

    starts = True

    def __init__(self, root: Path) -> None:
        super().__init__(root / EMULATOR_STATUS)
        self.text = "emulated"
        self._control = root / EMULATOR_CONTROL
        self._name: str | None = None

    def check(self, workload: Workload) -> None:
        """See :class:`Load`; the tree must be an emulated one."""
        if not self._control.exists():
            raise InputError(
                f"There is no emulated board: {self._control} is missing.",
                "With board.load.kind=emulated the tree of a running `wattune emulate DIR` was expected.",
                "Start one and name it: `WATTUNE_ROOT=DIR`, or board.root=DIR.",
            )

    def start(self, workload: Workload, seed: int) -> None:
        """See :class:`Load`."""
        from wattune.workloads.build import build_named

        self.check(workload)
        name = f"{workload.model}-{workload.task}"
        if replace(build_named(name), id=workload.id) != workload:
            log.warning(
                "The emulated board trains %s with the catalogue's batch size, precision and lengths, which differ from"
                " those of '%s'.",
                name,
                workload.id,
            )
        self._say(name)
        self._name = name

    def pause(self) -> bool:
        """See :class:`Load`."""
        self._say("idle")
        return True

    def resume(self) -> None:
        """See :class:`Load`."""
        self._say(self._name or "idle")

    def stop(self) -> None:
        """See :class:`Load`."""
        if self._name is not None:
            self._name = None
            with contextlib.suppress(BoardError):
                self._say("idle")

    def _say(self, name: str) -> None:
        try:
            handle = os.open(self._control, os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.write(handle, f"workload {name}\n".encode())
            finally:
                os.close(handle)
        except OSError as error:
            raise BoardError(
                f"The emulated board does not run '{name}': {error.strerror}.",
                "A workload that `wattune emulate` knows was expected.",
                "Look at `last_error` in emulator/status.json.",
            ) from error


class CommandLoad:
    """A command line that trains without end and counts its steps; started once per workload, in a process group of its own.

    Args:
        command: with ``{model}``, ``{task}``, ``{batch_size}``, ``{precision}``, ``{max_length}``, ``{seed}`` and
            ``{steps_file}`` where those go. No shell reads it.
        more: what else is known of a workload, e.g. its ``max_length``.
    """

    starts = True

    def __init__(self, command: str, more: Callable[[Workload], Mapping[str, object]] = lambda _: {}) -> None:
        self.text = f"command: {command}"
        self._command, self._more = command, more
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._tail = b""
        self._listener: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """The process, which leads its group; None where none runs."""
        return None if self._process is None else self._process.pid

    def _words(self, workload: Workload, steps_file: str, seed: int) -> list[str]:
        try:
            words = shlex.split(self._command)
        except ValueError as error:
            raise InputError(
                f"board.load.command cannot be split into words: {error}.",
                "A command line was expected.",
                "Close its quotes.",
            ) from error
        if not words:
            raise InputError(
                "board.load.command is empty.",
                "The command that trains a workload was expected (docs/measuring.md).",
                "Write it into conf/board/jetson.yaml and run `make params EXPERIMENT=jetson`.",
            )
        values: dict[str, object] = {
            "model": workload.model, "task": workload.task, "batch_size": workload.batch_size, "precision": workload.precision,
            "seed": seed, "steps_file": steps_file, **self._more(workload),
        }  # fmt: skip

        def value(match: re.Match[str]) -> str:
            if match[1] not in values:
                raise InputError(
                    f"board.load.command asks for {match[0]}.",
                    f"One of {', '.join(f'{{{name}}}' for name in PLACES)} was expected.",
                    "Correct it and run the same command again.",
                )
            return str(values[match[1]])

        return [re.sub(r"\{([a-z_]+)\}", value, word) for word in words]

    def check(self, workload: Workload) -> None:
        """See :class:`Load`."""
        words = self._words(workload, "steps", 0)
        if shutil.which(words[0]) is None:
            raise InputError(
                f"There is no program '{words[0]}' (board.load.command).",
                "A program on the PATH, or the path of one, was expected.",
                "Correct board.load.command.",
            )

    def start(self, workload: Workload, seed: int) -> None:
        """See :class:`Load`."""
        self.stop()
        self.check(workload)
        self._folder = tempfile.TemporaryDirectory(prefix="wattune-load-")
        steps_file = Path(self._folder.name) / "steps"
        words = self._words(workload, str(steps_file), seed)
        self._tail = b""
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", DIE_WITH_PARENT, str(os.getpid()), *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, STEPS_VARIABLE: str(steps_file)},
            )
        except OSError as error:
            self.stop()
            raise BoardError(
                f"The load could not be started: {error.strerror}.",
                "board.load.command was expected to run.",
                "Try it by hand.",
            ) from error
        self._listener = threading.Thread(
            target=self._listen, args=(self._process.stderr,), daemon=True, name="load stderr"
        )
        self._listener.start()

    def _listen(self, pipe: IO[bytes]) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed while we read
            while data := os.read(pipe.fileno(), 65536):
                self._tail = (self._tail + data)[-TAIL_BYTES:]

    def steps(self) -> int | None:
        """See :class:`Load`."""
        process = self._process
        if process is None or self._folder is None:
            raise BoardError("The load does not run.", "It was expected to be started first.")
        if process.poll() is not None:
            if self._listener is not None:
                self._listener.join(0.5)
            code = process.returncode
            how = (
                f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            )
            tail = " | ".join(
                line.strip()
                for line in re.split(r"[\r\n]+", self._tail.decode("utf-8", "replace"))
                if line.strip()
            )
            said = " | ".join(tail.split(" | ")[-TAIL_LINES:])
            raise BoardError(
                f"The load {how}" + (f"; the end of its stderr: {said}." if said else " and said nothing."),
                "It was expected to train until it is ended.",
                "Correct board.load.command and run the same command again; cells that were finished stay.",
            )
        return read_steps(Path(self._folder.name) / "steps")

    def pause(self) -> bool:
        """See :class:`Load`."""
        return self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """See :class:`Load`."""
        self._signal(signal.SIGCONT)

    def stop(self) -> None:
        """See :class:`Load`: SIGTERM to its group, SIGKILL after a while."""
        process = self._process
        if process is not None:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            self._signal(signal.SIGKILL)  # also what its leader left behind
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_S)
            if self._listener is not None:
                self._listener.join(0.5)
            if process.stderr is not None and not (self._listener and self._listener.is_alive()):
                process.stderr.close()
            self._process = None
        if self._folder is not None:
            with contextlib.suppress(OSError):
                self._folder.cleanup()
            self._folder = None

    def _signal(self, number: int) -> bool:
        if self._process is None:
            return False
        try:
            os.killpg(self._process.pid, number)
        except (ProcessLookupError, PermissionError):
            return False
        return True


def write_steps(path: Path, steps: int) -> None:
    """What a training loop does after every step: replace the file with the number of steps finished.

    Args:
        path: the steps file.
        steps: how many were finished so far.

    Raises:
        OSError: it could not be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(f"{steps}\n", encoding="utf-8")
    temporary.replace(path)


def wait_for_first(load: Load, patience_s: float, *, poll_s: float = 0.05) -> int:
    """Wait until a load has counted at least one step here; returns its count.

    Raises:
        BoardError: it counts nothing for `patience_s`, or ended.
    """
    until = time.monotonic() + patience_s
    first: int | None = None
    while True:
        now = load.steps()
        if now is not None:
            if first is not None and now > first:
                return now
            first = now if first is None else min(first, now)
        if time.monotonic() > until:
            raise BoardError(
                f"The load finished no step within {patience_s:g} s.",
                "A training loop that counts its steps into the steps file was expected.",
                "See docs/measuring.md for what it has to write, or raise board.live.start_s.",
            )
        time.sleep(poll_s)
