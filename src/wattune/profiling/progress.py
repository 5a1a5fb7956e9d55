"""How far a sweep is, and how long it will still take: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

log = logging.getLogger(__name__)

BAR = 24


def duration_text(seconds: float) -> str:
    """E.g. ``45 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


class Countdown:
    """Counts windows; the time one takes is corrected by those that were taken.

    Args:
        windows: how many there will be.
        seconds: what one is assumed to take, until the first was taken; `watts` likewise.
        stream: where the bar goes; standard error.
        clock: seconds, monotonic.

    Attributes:
        done: windows taken, of `windows`.
    """

    def __init__(
        self,
        windows: int,
        seconds: float,
        watts: float,
        *,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.windows, self.done = windows, 0
        self._seconds, self._watts = seconds, watts
        self._stream = sys.stderr if stream is None else stream
        self._clock, self._began = clock, clock()
        self._powers: list[float] = []

    @property
    def left_s(self) -> float:
        """Time left, as far as can be told."""
        each = (self._clock() - self._began) / self.done if self.done else self._seconds
        return each * max(self.windows - self.done, 0)

    @property
    def left_j(self) -> float:
        """Energy that will take, likewise."""
        watts = sum(self._powers) / len(self._powers) if self._powers else self._watts
        return watts * self.left_s

    def give_up(self, windows: int) -> None:
        """So many will not be taken."""
        self.windows = max(self.windows - windows, self.done)

    def window(self, what: str, power_w: float | None) -> None:
        """A window was taken.

        Args:
            what: e.g. ``612 MHz, repeat 1``.
            power_w: mean power in it, of the largest rail set known.
        """
        self.done += 1
        if power_w is not None:
            self._powers.append(power_w)
        left = (
            f"about {duration_text(self.left_s)} and {self.left_j / 1e3:.1f} kJ left"
            if self.done < self.windows
            else f"done in {duration_text(self._clock() - self._began)}"
        )
        if not self._stream.isatty():
            log.info("[%d/%d] %s; %s.", self.done, self.windows, what, left)
            return
        filled = round(BAR * self.done / self.windows)
        text = f"\r[{'#' * filled}{'.' * (BAR - filled)}] {self.done}/{self.windows} {what}; {left}\x1b[K"
        self._stream.write(text + ("\n" if self.done >= self.windows else ""))
        self._stream.flush()
