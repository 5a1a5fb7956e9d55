"""A clock held, watched and metered while something runs.

    session = Session(findings, setting=612.0)
    session.start()
    ...
    receipt = session.stop()

A thread of its own looks after it once a second: whose the bounds are (somebody else's change: hands off for good), whether the
clock follows, and whether heat or over-current throttles the board (then one clock lower, not more often than every ten seconds,
and never up again).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from wattune.boards.jetson.discovery import discover, gpu_load_pct
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.core.errors import BoardError, WattuneError
from wattune.core.settings import MAXN, Setting, hz_to_mhz, setting_label
from wattune.governing.client import open_lease
from wattune.governing.lease import Lease, match_clock
from wattune.profiling.certificate import Judgement, judge_baseline, provenance_of
from wattune.profiling.meter import Meter, Window
from wattune.running.account import Account, Totals
from wattune.running.steps import Steps

log = logging.getLogger("wattune")

LOOK_S = 1.0
LOWER_EVERY_S = 10.0
"""A lower clock needs time to cool the board before the next one is tried."""

JOIN_S = 5.0
METER_HZ = 5.0

OpenLease = Callable[..., Lease]


class Ended(Exception):  # noqa: N818  # no fault: the session was told to end
    """The session ends; what was being done is given up."""


class Session:
    """See the module.

    Args:
        findings: the board.
        setting: the clock to hold from the start, MHz; ``maxn`` leaves it alone.
        steps: where steps are learnt from.
        task: done first by the watching thread, e.g. a probe; it moves the clock.
        look_s: how often it looks after the board.
        lower_every_s: shortest time between two steps down.
        make_lease: makes the lease.

    Attributes:
        task: as given; may be set until it starts.
        notes: sentences for people, in order.
        lowered: each step down: when, from which clock, to which, why.
        meter: what measures; None where there are no rails.
        first: what was spent when a step was first seen to be finished, and how many were then; None before.
        provenance: of what is measured, as the board was found.
        totals: what was spent; None before the end, and where nothing was measured.
        undecided: why no clock was chosen where one was to be; empty where one was, or none was to be.
    """

    def __init__(
        self,
        findings: Findings,
        setting: Setting = MAXN,
        *,
        steps: Steps | None = None,
        task: Callable[[Session], None] | None = None,
        look_s: float = LOOK_S,
        lower_every_s: float = LOWER_EVERY_S,
        make_lease: OpenLease = open_lease,
    ) -> None:
        self.findings, self.setting = findings, setting
        self.steps = steps or Steps()
        self.notes: list[str] = []
        self.lowered: list[dict[str, Any]] = []
        self.meter: Meter | None = None
        self.account: Account | None = None
        self.first: tuple[Totals, int] | None = None
        self.probing = False
        self.provenance = provenance_of(findings)
        self.totals: Totals | None = None
        self.undecided = ""
        self.task, self._look_s, self._lower_every_s = task, look_s, lower_every_s
        self._make_lease = make_lease
        self._lease: Lease | None = None
        self._pins: list[dict[str, Any]] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._lowered_s = float("-inf")
        self._counters: dict[str, int] = {}
        self._said: set[str] = set()
        self._polled_s = self._looked_s = float("-inf")

    # --- life

    def start(self) -> None:
        """Hold the clock and begin to measure.

        Raises:
            InputError: no clock of the board.
            BoardError: it cannot be held.
        """
        if self.setting != MAXN:
            self.hold(self.setting)
        try:
            if self.findings.rails:
                self.meter = Meter(self.findings, hz=METER_HZ)
                self.meter.start()
                free = self.setting == MAXN and self.task is None
                self.account = Account(self.meter, judge=self._judge if free else None)
            else:
                self.note(
                    f"Energy is unknown: {self.findings.errors.get('rails', 'no power monitor was found')}."
                )
            self._read_counters()
            self._thread = threading.Thread(target=self._work, daemon=True, name="wattune session")
            self._thread.start()
        except BaseException:
            self.let_go()
            raise

    def stop(self) -> Totals | None:
        """Put the clock back and end measuring; returns what was spent, None where nothing was measured.

        Raises:
            BoardError: the clock could not be put back.
        """
        if not self.ended:
            self.steps.poll()
            self._see_first()
            for text in self.steps.notes():
                self.note(text)
        totals = self.totals = self._close()
        self._over.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_S)
        try:
            self.let_go()
        finally:
            if self.meter is not None:
                self.meter.stop(tail=False)
        return totals

    def _close(self) -> Totals | None:
        if self.account is None:
            return None
        try:
            return self.account.close()
        except WattuneError as error:
            self.note(str(error))
            return None

    def _judge(self, window: Window) -> Judgement:
        """Whether the clocks were free."""
        return judge_baseline(
            self.findings, discover(self.findings.sysfs), window.clocks_s, util_pct=window.util_pct,
            cooling=window.cooling_max, events=window.events, bounds_hz=window.bounds_hz,
        )  # fmt: skip

    def _see_first(self) -> None:
        """What was spent before the first step: loading and compiling."""
        if self.first is None and self.account is not None and (began := self.steps.began) is not None:
            with contextlib.suppress(WattuneError):
                self.first = (self.account.total(began[0]), began[1])

    @property
    def held(self) -> Lease | None:
        """The lease, while the clock is held."""
        return self._lease

    @property
    def ended(self) -> bool:
        """Whether it was told to end."""
        return self._over.is_set()

    def note(self, text: str, *, once: str = "") -> None:
        """Remember a sentence and log it.

        Args:
            text: the sentence.
            once: a name; of those with the same one only the first is taken.
        """
        if once:
            if once in self._said:
                return
            self._said.add(once)
        self.notes.append(text)
        log.warning("wattune: %s", text)

    # --- the clock

    @property
    def node(self) -> GpuNode:
        """The GPU's node.

        Raises:
            BoardError: there is none.
        """
        if self.findings.gpu is None:
            reason = self.findings.errors.get("gpu", "no devfreq node of a GPU was found")
            raise BoardError(
                f"There is no GPU clock to pin here: {reason}.",
                "A Jetson's GPU was expected.",
                f"Type `{self.findings.sysfs.typed('doctor')}` to see what was found.",
            )
        return self.findings.gpu

    def hold(self, mhz: float) -> None:
        """Pin at a clock, or move the pin there.

        Raises:
            InputError: no clock of the board.
            BoardError: it cannot be set, or somebody else changed it meanwhile.
        """
        if self._lease is None:
            node = self.node
            match_clock(mhz, node.table_hz, 0)
            lease = self._make_lease(self.findings.sysfs, node, mhz, cooling=self.findings.cooling or None)
            lease.__enter__()
            self._lease = lease
        else:
            self._lease.move(mhz)
        self.setting = self._lease.mhz

    def let_go(self) -> None:
        """Put the clock back, where it is held.

        Raises:
            BoardError: it could not be put back.
        """
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            lease.__exit__(None, None, None)
        finally:
            self._pins.append(lease.receipt())
            if not self.ended:
                self.setting = MAXN

    def pins(self) -> list[dict[str, Any]]:
        """Receipts of all leases, the present one last."""
        return self._pins if self._lease is None else [*self._pins, self._lease.receipt()]

    # --- the watching thread

    def _work(self) -> None:
        try:
            if self.task is not None:
                self.task(self)
            while True:
                self.wait(self._look_s)
        except Ended:
            return
        except WattuneError as error:
            self.note(f"{error}")
        except Exception as error:  # noqa: BLE001  # training goes on without us, and is told so
            self.note(f"Looking after the clock failed ({type(error).__name__}: {error}).")
        self.probing = False
        with contextlib.suppress(Ended):
            while True:
                self.wait(self._look_s)

    def wait(self, seconds: float, *, fine: bool = False) -> None:
        """Let time pass, looking after the board.

        Args:
            seconds: how long.
            fine: poll the steps as often as measuring needs.

        Raises:
            Ended: the session ends.
        """
        until = time.monotonic() + seconds
        while True:
            now = time.monotonic()
            if self._over.is_set():
                raise Ended
            pace_s = self.steps.poll_s if fine or self.steps.began is None else self.steps.rest_poll_s
            if pace_s is not None and now - self._polled_s >= pace_s * 0.9:
                self._polled_s = now
                self.steps.poll()
            self._see_first()
            if now - self._looked_s >= self._look_s:
                self._looked_s = now
                self.look()
            left = until - time.monotonic()
            if left <= 0:
                return
            self._over.wait(min(left, self._look_s, pace_s or self._look_s))

    def look(self) -> None:
        """Look after the board once."""
        if self.account is not None:
            self.account.tick(time.monotonic())
        lease = self._lease
        if lease is not None and not lease.ended and not lease.lost:
            if lease.unguarded:
                self.note(
                    "The process that puts the clock back where this one is killed has ended itself: a SIGKILL now would leave it"
                    f" pinned until `{self.findings.sysfs.typed('restore')}`.",
                    once="unguarded",
                )
            if not lease.check() and lease.lost:
                self.note(f"{lease.lost} It is left alone from now on.", once="lost")
                return
            load = gpu_load_pct(self.findings)
            with contextlib.suppress(OSError, ValueError):
                lease.observe(int(self.findings.sysfs.read(f"{lease.node.path}/cur_freq")), load)
        why = self.throttling()
        if why and not self.probing:
            self._lower(why)

    def throttling(self) -> str:
        """What throttles the board now, or did since the last look, in a few words; empty where nothing does."""
        for name, path in self.findings.cooling.items():
            with contextlib.suppress(OSError, ValueError):
                if state := int(self.findings.sysfs.read(path)):
                    return f"the cooling device {name} caps the clock (state {state})"
        before = self._counters
        self._read_counters()
        for name, count in self._counters.items():
            if count > before.get(name, count):
                return f"the over-current counter {name} moved"
        return ""

    def _read_counters(self) -> None:
        counts = dict(self._counters)
        for name, path in self.findings.counters.items():
            with contextlib.suppress(OSError, ValueError):
                counts[name] = int(self.findings.sysfs.read(path))
        self._counters = counts

    def _lower(self, why: str) -> None:
        """One clock lower, where it is ours and not too soon."""
        now, lease = time.monotonic(), self._lease
        if lease is None:
            self.note(
                f"The board throttles: {why}; the clock is not held, so nothing is done.", once="throttles"
            )
            return
        if lease.lost or now - self._lowered_s < self._lower_every_s:
            return
        here, limit = lease.hz, self._limit_hz(lease)
        below = [hz for hz in self._usable(lease) if hz < here and hz <= limit]
        if not below:
            self.note(f"The board throttles at its lowest clock: {why}.", once="lowest")
            return
        self._lowered_s = now
        try:
            lease.move(hz_to_mhz(below[-1]))
        except WattuneError as error:
            self.note(f"The board throttles ({why}), and the clock could not be lowered: {error}")
            return
        self.setting = lease.mhz
        step = {
            "t_s": None if self.account is None else round(now - self.account.start_s, 1),
            "from_mhz": hz_to_mhz(here),
            "to_mhz": lease.mhz,
            "why": why,
        }
        self.lowered.append(step)
        self.note(f"Lowered from {hz_to_mhz(here):g} to {setting_label(lease.mhz)} MHz: {why}.")

    def _limit_hz(self, lease: Lease) -> float:
        """The upper bound in force, which a cooling device may have lowered: nothing above it can be set now."""
        try:
            return int(self.findings.sysfs.read(f"{lease.node.path}/max_freq")) or float("inf")
        except (OSError, ValueError):
            return float("inf")

    def _usable(self, lease: Lease) -> Sequence[int]:
        cap = lease.saved.max_hz if lease.saved is not None else 0
        return [hz for hz in lease.node.table_hz if not cap or hz <= cap]
