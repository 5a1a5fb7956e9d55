"""An emulated board as a second device of a job: every real step also takes the time and the energy of that board's model.

The emulated board (`wattune emulate`) is told which workload trains, and at the beginning of every real step how long its sequences
are; it runs a step of that length at its present clock, and is idle until the next one. Waiting for the device then means waiting for
it too, so a step takes as long as the slower of the two. Standard library only.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from wattune.core.errors import BoardError, InputError

CONTROL, STEPS, STATUS = "emulator/control", "emulator/steps", "emulator/status.json"

POLL_S = 0.002
PATIENCE_S = 60.0
"""No step of any workload takes longer at any clock."""


class EmulatedDevice:
    """Runs steps on an emulated board.

    Args:
        root: its tree.
        workload: ``<model>-<task>`` of the catalogue.

    Raises:
        InputError: no tree of a running emulator.
        BoardError: one that cannot take commands at once.
    """

    def __init__(self, root: Path, workload: str) -> None:
        self._control, self._steps = root / CONTROL, root / STEPS
        self._workload, self._until = workload, 0
        try:
            mode = json.loads((root / STATUS).read_text(encoding="utf-8"))["mode"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"There is no emulated board in {root}.",
                "The tree of a running `wattune emulate DIR` was expected.",
                "Start one, and name its folder.",
            ) from error
        if mode != "fuse":
            raise BoardError(
                "The emulated board is served as a plain folder, which takes commands only now and then.",
                "A mounted one was expected.",
                "Start it with `wattune emulate DIR --mode fuse`.",
            )

    def begin(self) -> None:
        """A run begins: forget what was asked for, and be idle."""
        self._say(f"train {self._workload}")
        self._until = self._done()

    def step(self, length: int) -> None:
        """A real step on sequences of this padded length begins: have it run there too."""
        self._say(f"step {length}")
        self._until += 1

    def wait(self) -> None:
        """Wait until all steps asked for have been run.

        Raises:
            BoardError: they are not, for long.
        """
        done, moved_s = self._done(), time.monotonic()
        while done < self._until:
            time.sleep(POLL_S)
            before, done = done, self._done()
            now = time.monotonic()
            if done != before:
                moved_s = now
            elif now - moved_s > PATIENCE_S:
                raise BoardError(
                    f"The emulated board has run no step for {PATIENCE_S:g} s.",
                    "It was expected to run the steps that it was asked for.",
                    "Look at emulator/status.json in its tree: something else may have told it what to run.",
                )

    def end(self) -> None:
        """The run is over. Never raises."""
        try:
            self._say("workload idle")
        except BoardError:
            return

    def _say(self, command: str) -> None:
        try:
            self._control.write_text(f"{command}\n", encoding="utf-8")
        except OSError as error:
            raise BoardError(
                f"The emulated board does not obey '{command}': {error.strerror}.",
                "A running `wattune emulate DIR` that knows the workload was expected.",
                "Look at `last_error` in emulator/status.json in its tree.",
            ) from error

    def _done(self) -> int:
        try:
            return int(self._steps.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise BoardError(
                "The emulated board no longer says how many steps it has run.",
                "Its tree was expected to stay.",
                "Start it again, then run the same command again.",
            ) from error
