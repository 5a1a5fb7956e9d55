"""How far a sweep is, and how long it will still take: a line on a terminal, a message per window of a live board elsewhere."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from wattune.core.measurement import Measurement
from wattune.core.settings import Setting, setting_label
from wattune.core.stats import mean
from wattune.core.workload import Workload
from wattune.profiling.cells import Cell
from wattune.terminal import Line, figures

log = logging.getLogger(__name__)


def duration_text(seconds: float) -> str:
    """E.g. ``45 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def left_text(seconds: float | None) -> str:
    """How long something will still take; None is not known."""
    if seconds is None:
        return "time left not known yet"
    return f"about {duration_text(seconds)} left" if seconds >= 1 else "less than 1 s left"


class Countdown:
    """Counts windows; the time one takes is corrected by those that were taken.

    Args:
        windows: how many there will be.
        seconds: what one is assumed to take, until the first was taken; `watts` likewise.
        watts: see `seconds`.
        told: called after every window with what it was; it is logged where nobody is to be told.
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
        told: Callable[[str, Countdown], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.windows, self.done = windows, 0
        self._seconds, self._watts = seconds, watts
        self._told = told
        self._clock, self._began = clock, clock()
        self._powers: list[float] = []

    @property
    def each_s(self) -> float:
        """Time of a window, as far as can be told."""
        return (self._clock() - self._began) / self.done if self.done else self._seconds

    @property
    def left_s(self) -> float:
        """Time left, as far as can be told."""
        return self.each_s * max(self.windows - self.done, 0)

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
        if self._told is not None:
            self._told(what, self)
            return
        left = (
            f"about {duration_text(self.left_s)} and {self.left_j / 1e3:.1f} kJ left"
            if self.done < self.windows
            else f"done in {duration_text(self._clock() - self._began)}"
        )
        log.info("[%d/%d] %s; %s.", self.done, self.windows, what, left)


class SweepProgress:
    """Where a sweep stands, on the line of a terminal.

    The time left is counted from what settings took in this sweep, or from the windows of a live board; settings of later
    workloads count as if none of them had been measured already.

    Args:
        line: where it is shown.
        settings: of all workloads together.
        provenance: of the board.
        clock: seconds, monotonic.
    """

    def __init__(
        self, line: Line, settings: int, provenance: str, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._line, self._provenance, self._clock = line, provenance, clock
        self._began = clock()
        self._settings, self._over = settings, 0
        self._workload: Workload | None = None
        self._of_this, self._done, self._missing = 0, 0, 0
        self._now, self._since, self._spent_s = "", self._began, 0.0
        self._measured = self._throttled = self._failed = 0
        self._last: tuple[str, ...] = ()
        self._countdown: Countdown | None = None
        self._per_setting = 1

    def workload(self, workload: Workload, settings: int, missing: int) -> None:
        """A workload begins.

        Args:
            workload: which.
            settings: how many it has.
            missing: how many of them must be measured.
        """
        self._over += self._of_this
        self._workload, self._of_this, self._done, self._missing = workload, settings, 0, missing
        self._countdown, self._last = None, ()
        self._draw()

    def begins(self, setting: Setting, windows: int) -> None:
        """A setting will be measured now, in so many windows."""
        self._since, self._per_setting = self._clock(), windows
        self._now = f"now {_name(setting)}"
        self._draw()

    def window(self, what: str, countdown: Countdown) -> None:
        """A live board took a window."""
        self._countdown, self._now = countdown, f"window {countdown.done}/{countdown.windows}: {what}"
        self._draw()

    def ended(self, setting: Setting, what: str, cell: Cell | None) -> None:
        """A setting is done.

        Args:
            setting: which.
            what: ``kept``, ``taken back``, ``measured`` or ``failed``.
            cell: what there is of it; None where it failed.
        """
        self._done, self._now = self._done + 1, ""
        if what in ("measured", "failed"):
            self._measured, self._missing = self._measured + 1, self._missing - 1
            self._spent_s += self._clock() - self._since
        self._failed += what == "failed"
        if cell is not None:
            self._throttled += was_throttled(cell)
            self._last = self._of(setting, cell.repeats)
        self._draw()

    @property
    def left_s(self) -> float | None:
        """Time left; None as long as nothing was measured."""
        later = self._settings - self._over - self._of_this
        if self._countdown is not None:
            return self._countdown.left_s + later * self._per_setting * self._countdown.each_s
        return self._spent_s / self._measured * (self._missing + later) if self._measured else None

    def parts(self) -> list[str]:
        """What the line says, the most important first."""
        left = self.left_s
        return [
            f"{self._workload.id if self._workload else ''} {self._done}/{self._of_this} settings".lstrip(),
            left_text(left),
            *([f"{self._failed} failed"] if self._failed else []),
            *([f"{self._throttled} throttled"] if self._throttled else []),
            f"{duration_text(self._clock() - self._began)} so far",
            self._provenance,
            *self._last,
            *([self._now] if self._now else []),
        ]

    def _of(self, setting: Setting, repeats: tuple[Measurement, ...]) -> tuple[str, ...]:
        assert self._workload is not None
        energy_j = mean([m.energy_j for m in repeats]) / self._workload.steps_per_epoch
        temps = [m.temp_c_max for m in repeats if m.temp_c_max is not None]
        return (
            f"{_name(setting)}: {figures([energy_j])[0]} J/step",
            f"{max(temps):.1f} \N{DEGREE SIGN}C" if temps else "temperature unknown",
        )

    def _draw(self) -> None:
        share = (self._over + self._done) / self._settings if self._settings else None
        self._line.show(share, self.parts())


def jobs_on(
    line: Line, what: str, *, clock: Callable[[], float] = time.monotonic
) -> Callable[[int, int], None]:
    """What shows on a line how many jobs are done, of how many, and how long the others will take.

    Args:
        line: where it is shown.
        what: what they are, e.g. ``refits``.
        clock: seconds, monotonic.
    """
    began = clock()

    def told(done: int, of: int) -> None:
        spent_s = clock() - began
        left = left_text(spent_s / done * (of - done) if done else None)
        line.show(
            done / of if of else None, [f"{done}/{of} {what}", left, f"{duration_text(spent_s)} so far"]
        )

    return told


def was_throttled(cell: Cell) -> bool:
    """Whether heat or current capped the clock in a window of it, be it one that was used or one that was not."""
    for certificate in cell.certificates:
        throttling = certificate.get("throttling") or {}
        if any(
            any((throttling.get(name) or {}).values())
            for name in ("cooling_state_max", "over_current_events")
        ):
            return True
        if any(
            "cooling device" in text or "over-current" in text
            for text in (certificate.get("run") or {}).get("discarded", ())
        ):
            return True
    return False


def _name(setting: Setting) -> str:
    return setting_label(setting) + ("" if isinstance(setting, str) else " MHz")
