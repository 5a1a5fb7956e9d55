"""Holding the GPU at a clock: saved before the first write, verified, put back whatever happens.

    with Lease(sysfs, node, 612) as lease:
        ...
        lease.observe(cur_hz, load_pct)  # as often as there is a reading
    print(lease.receipt())

The pin is min = max; governor, fan, power mode, rail-gating and memory clock are never touched, and no clock above the upper
bound found at the start is ever asked for. Not more than one lease per node: a second one is refused.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import logging
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from wattune.boards.jetson.findings import GpuNode
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError, WattuneError
from wattune.core.settings import FrequencyTable, hz_to_mhz, setting_label
from wattune.governing import state
from wattune.governing.bounds import (
    Bounds,
    Outcome,
    commands,
    fits,
    gpu_cooling,
    read_bounds,
    read_number,
    reason_of,
    refusal,
    same_bounds,
    throttled,
    write_bounds,
)
from wattune.governing.watchdog import Watchdog

log = logging.getLogger("wattune")

LOWEST_HZ = 1e5
"""A clock below this is meant in MHz."""

NEAR = 0.01
"""A measured clock within this share of the one asked for is that clock (its PLL gives 305 for 306, 1014 for 1020)."""

LOAD_SEEN_PCT = 5.0
FOLLOW_S = 0.3
"""The driver applies bounds at its next poll (25 ms); readings before that say nothing."""

RETRY_S = (0.1, 0.5)
"""Pauses before restoring is tried again."""

MISSES = 3
"""Readings under load of another clock, in a row, that refute a pin."""

LOCK_PATIENCE_S = 10.0
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

OTHERS = (
    "Stop other programs that set clocks (jetson_clocks, nvpmodel, jtop), then run the same command again."
)
"""What to do where the bounds are no longer ours."""

NOT_YET = "no load was seen yet, and the clock of an idle GPU says nothing"

Handler = Callable[[int, FrameType | None], Any]


@dataclass(slots=True)
class Pin:
    """A clock held, and what is known of it.

    Attributes:
        hz: the clock.
        since: when it was set, seconds (monotonic).
        verified: None until load was seen.
        why: what the judgement rests on.
        misses: readings under load of another clock, in a row.
    """

    hz: int
    since: float
    verified: bool | None = None
    why: str = NOT_YET
    misses: int = 0


def match_clock(clock: float, table_hz: Iterable[int], cap_hz: int) -> int:
    """The table's entry a clock means.

    Args:
        clock: MHz, or Hz from 100 000 on; 1300, 1301 and 1300.5 are one clock.
        table_hz: clocks of the board.
        cap_hz: the upper bound in force, 0 where there is none.

    Raises:
        InputError: no such clock; the message names the nearest.
        BoardError: it lies above the upper bound; the message names the highest usable one.
    """
    entries = {hz_to_mhz(hz): hz for hz in table_hz}
    table = FrequencyTable(entries)
    mhz = clock / 1e6 if clock >= LOWEST_HZ else clock
    if not 0 < mhz < 1e6:
        raise InputError(
            f"'{clock:g}' is no clock.", "A number of MHz was expected.", f"Type for example {table.top:g}."
        )
    found = table.match(mhz, NEAR)
    usable = [entry for entry, hz in entries.items() if not cap_hz or hz <= cap_hz]
    if found not in usable:
        hint = (
            f"Take {setting_label(max(usable))} MHz, or switch the power mode yourself."
            if usable
            else "Switch the power mode yourself."
        )
        raise BoardError(
            f"{setting_label(found)} MHz lies above the upper bound found"
            f" ({setting_label(cap_hz / 1e6)} MHz).",
            "A clock within that bound was expected: going over it would defeat the power mode.",
            hint,
        )
    return entries[found]


def refuse_read_only(node: GpuNode) -> None:
    """Refuse a node that must not be written, before anything else is judged.

    Raises:
        BoardError: it must not.
    """
    if node.read_only:
        raise BoardError(
            f"The GPU clock of this board is not pinned: {node.read_only.rstrip('.')}.",
            "A node that may be written was expected.",
            "Run without pinning: measuring and reading work.",
        )


class Lease:
    """A clock held on one node.

    Args:
        sysfs: the tree.
        node: the GPU's node.
        clock: MHz, or Hz from 100 000 on.
        cooling: state files of the GPU's cooling devices by type; looked for where None.
        throttled_ok: pin also while a cooling device limits the clock. The upper bound found is then that limit, and more
            cannot be restored.
        watchdog: start the process that restores after a SIGKILL. Only a tree that no other process can see does without.

    Attributes:
        saved: bounds found at the start; None before.
        lost: why the bounds are no longer ours; empty while they are.
        ended: why the lease has ended; empty while it holds.
        outcome: what became of restoring; None before.
        events: what happened, with seconds since the start.
        state_file: the lease file; None before.
        program: what the holder is called there.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        node: GpuNode,
        clock: float,
        *,
        cooling: Mapping[str, str] | None = None,
        throttled_ok: bool = False,
        watchdog: bool = True,
    ) -> None:
        # A copy of our own: a signal may come while somebody else is in the middle of using theirs.
        self.sysfs = sysfs if sysfs.timeout_s is None else sysfs.within(sysfs.timeout_s)
        self.node = node
        self._clock, self._throttled_ok, self._with_watchdog = clock, throttled_ok, watchdog
        self.program = state.own_name()
        self._cooling = None if cooling is None else tuple(cooling.values())
        self.saved: Bounds | None = None
        self.lost, self.ended = "", "it was not entered"
        self._lost_hint = OTHERS
        self.outcome: Outcome | None = None
        self.events: list[tuple[float, str]] = []
        self.pins: list[Pin] = []
        self.state_file: Path | None = None
        self._record: state.Record | None = None
        self._locks = state.Lock()
        self._watchdog: Watchdog | None = None
        self._capped = self._undo = False
        self._pid = os.getpid()
        self._started = time.monotonic()
        self._section_lock = threading.RLock()
        self._busy: int | None = None
        self._pending: list[int] = []
        self._handler: Handler = self._on_signal
        self._previous: dict[int, Any] = {}

    # --- what it tells

    @property
    def hz(self) -> int:
        """The clock held."""
        return self.pins[-1].hz

    @property
    def mhz(self) -> float:
        """The clock held, MHz."""
        return hz_to_mhz(self.hz)

    @property
    def verified(self) -> bool:
        """Whether the clock was seen under load, at every pin so far, and the bounds were always ours."""
        return bool(self.pins) and all(pin.verified for pin in self.pins) and not self.lost

    @property
    def why(self) -> str:
        """What `verified` rests on."""
        if not self.pins:
            return "nothing was pinned"
        worst = next((pin for pin in self.pins if not pin.verified), self.pins[-1])
        return self.lost or f"{setting_label(hz_to_mhz(worst.hz))} MHz: {worst.why}"

    @property
    def capped(self) -> bool:
        """Whether a cooling device limited the clock at any time while it was held."""
        return self._capped

    @property
    def unguarded(self) -> bool:
        """Whether the process that restores after a SIGKILL was started and runs no more."""
        return self._watchdog is not None and not self.ended and not self._watchdog.alive

    def receipt(self) -> dict[str, Any]:
        """What was found, set, seen and put back; clocks in MHz."""
        return {
            "node": self.node.path,
            "boot_id": None if self._record is None else self._record.boot_id,
            "found": None if self.saved is None else _in_mhz(self.saved),
            "set_mhz": hz_to_mhz(self.hz) if self.pins else None,
            "pins": [
                {"mhz": hz_to_mhz(pin.hz), "verified": pin.verified, "why": pin.why} for pin in self.pins
            ],
            "verified": self.verified,
            "why": self.why,
            "lost": self.lost or None,
            "capped": self._capped,
            "restored": None if self.outcome is None else self.outcome.kind == "restored",
            "outcome": None if self.outcome is None else self.outcome.kind,
            "outcome_text": None if self.outcome is None else self.outcome.text,
            "ended": self.ended or None,
            "events": [{"t_s": round(t, 3), "text": text} for t, text in self.events],
        }

    def _note(self, text: str, *, warn: bool = False) -> None:
        self.events.append((time.monotonic() - self._started, text))
        log.log(logging.WARNING if warn else logging.DEBUG, "wattune: %s", text)

    # --- entering

    def __enter__(self) -> Lease:
        if self.pins or self.outcome is not None:
            raise RuntimeError("a lease is entered once")
        refuse_read_only(self.node)
        if not self.node.table_hz:
            raise BoardError(
                "The board gives no table of clocks.",
                "available_frequencies of the GPU was expected to list them.",
                f"Type `{self.sysfs.typed('doctor')}` to see what was found.",
            )
        match_clock(self._clock, self.node.table_hz, 0)
        self._pid, self._started = os.getpid(), time.monotonic()
        with self._section():
            self.ended = ""
            _LIVE.add(self)
            self._install()
            try:
                self._begin()
            except BaseException:
                self._end("it failed to start")
                raise
        return self

    def _begin(self) -> None:
        try:
            self._probe()
        except OSError as error:
            raise refusal(error, self.node.path) from error
        folder = state.usable_folder(self.sysfs)
        self._locks = state.lock_node(self.sysfs, folder, self.node.path)
        self.state_file = state.state_path(folder, self.node.path)
        self._settle_old_leases(folder)
        try:
            found = read_bounds(self.sysfs, self.node.path)
        except OSError as error:
            raise refusal(error, self.node.path) from error
        hz = match_clock(self._clock, self.node.table_hz, found.max_hz)
        cooling = gpu_cooling(self.sysfs, self.node.path) if self._cooling is None else self._cooling
        self._cooling = cooling
        if throttled(self.sysfs, cooling):
            if not self._throttled_ok:
                raise BoardError(
                    f"The GPU is being throttled (its cooling device limits it to {found.max_hz / 1e6:g} MHz now), so"
                    " the bounds to restore later cannot be read.",
                    "A GPU that is not throttled was expected.",
                    "Let it cool down and run the same command again.",
                )
            self._capped = True
            text = f"Pinned while a cooling device limits the clock: no more than {found} can be restored."
            self._note(text, warn=True)
        if found.min_hz == found.max_hz:
            self._note(f"The clock was already pinned at the start, at {found.max_hz / 1e6:g} MHz.")
        if self._with_watchdog:
            self._watchdog = Watchdog(self.sysfs.root, self.state_file, self._locks.handles)
        record = state.Record(
            node=self.node.path,
            boot_id=state.boot_id(self.sysfs),
            saved_min_hz=found.min_hz,
            saved_max_hz=found.max_hz,
            set_hz=(hz,),
            cooling=cooling,
            pid=os.getpid(),
            started=state.process_start(os.getpid()),
            program=self.program,
        )
        state.save(self.state_file, record)
        self._record, self.saved = record, found
        atexit.register(self._at_exit)
        self._set(hz)

    def _settle_old_leases(self, folder: Path) -> None:
        """Deal with what an earlier holder left on this node, in any folder."""
        for path in {state.state_path(f, self.node.path) for f in (folder, *state.folders(self.sysfs))}:
            record = state.load(path, self.sysfs)
            if record is None:
                continue
            if state.another_boot(record, self.sysfs):
                state.remove(path)
                self._note("A lease file of an earlier boot was dropped; the boot has reset the clock.")
                continue
            if record.detached:
                raise BoardError(
                    f"The GPU clock was left pinned at {record.set_hz[-1] / 1e6:g} MHz on purpose ({path}).",
                    "A clock that is not pinned was expected.",
                    f"Type `{self.sysfs.typed('restore')}` first.",
                )
            outcome = record.put_back(self.sysfs)
            if outcome.kind == "failed":
                raise BoardError(
                    f"{record.holder} ended without restoring the GPU clock. {outcome.text}",
                    "The bounds it found were expected to be restored first.",
                    f"Type `{self.sysfs.typed('restore')}` to see more.",
                )
            state.remove(path)
            self._note(
                f"{record.holder} had ended without restoring the GPU clock. {outcome.text}", warn=True
            )

    def _probe(self) -> None:
        """Open the bounds for writing, which changes nothing, before anything is promised."""
        for name in ("min_freq", "max_freq"):
            path = self.sysfs.path(f"{self.node.path}/{name}")
            with contextlib.suppress(FileNotFoundError):  # a tree in memory
                os.close(os.open(path, os.O_WRONLY | os.O_CLOEXEC))

    def _set(self, hz: int) -> None:
        """Write, read back."""
        wanted = Bounds(hz, hz)
        try:
            write_bounds(self.sysfs, self.node.path, wanted)
            now = read_bounds(self.sysfs, self.node.path)
        except OSError as error:
            raise refusal(error, self.node.path) from error
        if not same_bounds(now, wanted):
            self._undo = True  # whatever holds them elsewhere, what was just written must not stay
            raise BoardError(
                f"The GPU clock could not be pinned at {hz / 1e6:g} MHz: its bounds read {now} after it was written.",
                "Both bounds were expected to read that clock.",
                "Another limit is in force (heat, the power mode, another tool): type"
                f" `{self.sysfs.typed('doctor')}` to see it.",
            )
        self.pins.append(Pin(hz, time.monotonic()))
        self._note(f"Pinned at {setting_label(hz_to_mhz(hz))} MHz; the bounds read so.")

    # --- while it is held

    def move(self, clock: float) -> int:
        """Pin at another clock, within the same lease.

        Args:
            clock: MHz, or Hz from 100 000 on.

        Returns:
            The clock, Hz.

        Raises:
            InputError: no such clock.
            BoardError: above the bound found at the start, the bounds are no longer ours, or they could not be written.
        """
        with self._section():
            self._must_hold()
            assert self.saved is not None
            assert self._record is not None
            assert self.state_file is not None
            hz = match_clock(clock, self.node.table_hz, self.saved.max_hz)
            if not self.check():
                raise self.taken()
            record = replace(self._record, set_hz=(self.hz, hz))
            state.save(self.state_file, record)
            self._record = record
            self._set(hz)
            self._record = replace(record, set_hz=(hz,))
            state.save(self.state_file, self._record)
            return hz

    def check(self) -> bool:
        """Whether the bounds are still ours. Where somebody else has changed them, `lost` says so from then on.

        A cooling device that limits the clock is no other writer: our request stands (`capped`).
        """
        with self._section():
            if self.ended:
                return False
            if self.lost:
                return False
            try:
                now = read_bounds(self.sysfs, self.node.path)
            except OSError as error:
                self._note(f"The bounds could not be read: {reason_of(error)}.", warn=True)
                if error.errno == errno.ENOENT:
                    self.lost = "The GPU's devfreq node went away."
                    f"Type `{self.sysfs.typed('doctor')}` to see whether it is back, then run the same"
                    " command again."
                return False
            wanted = Bounds(self.hz, self.hz)
            if same_bounds(now, wanted):
                return True
            if fits(now, wanted, capped=throttled(self.sysfs, self._cooling or ())):
                if not self._capped:
                    self._note(f"A cooling device limits the clock: the bounds read {now}.", warn=True)
                self._capped = True
                return True
            self.lost = f"Somebody else changed the bounds of the GPU clock: they read {now}, not {wanted}."
            self._note(self.lost, warn=True)
            return False

    def taken(self, what: str = "") -> BoardError:
        """The error for a clock that is no longer held here, with what to do about what took it.

        Args:
            what: how to say it; in the lease's own words where not given.
        """
        if not self.lost:
            why = self.ended or "its bounds cannot be read"
            return BoardError(
                f"The lease on the GPU clock does not hold: {why}.",
                "Bounds as set here were expected.",
                f"Type `{self.sysfs.typed('doctor')}` to see the clock's state.",
            )
        hint = self._lost_hint
        if self.outcome is not None and self.outcome.kind == "left" and self.saved is not None:
            by_hand = commands(self.sysfs, self.node.path, self.saved)
            hint += f" To set the bounds found at the start all the same, as root: {by_hand}"
        return BoardError(what or self.lost, "A clock that stays as it was set here was expected.", hint)

    def observe(self, cur_hz: int | None, load_pct: float | None) -> None:
        """Take a reading into account: under load it proves the clock, or refutes it.

        Args:
            cur_hz: the clock now; None where it could not be read.
            load_pct: the GPU's load, 0 to 100; None where unknown, which is no load seen.
        """
        if not cur_hz or load_pct is None or load_pct < LOAD_SEEN_PCT or self.ended:
            return
        with self._section():
            pin = self.pins[-1]
            if time.monotonic() - pin.since < FOLLOW_S or pin.verified is False:
                return
            seen = f"it read {cur_hz / 1e6:g} MHz at a load of {load_pct:.0f} %"
            if abs(cur_hz - pin.hz) <= NEAR * pin.hz:
                pin.misses = 0
                if pin.verified is None:
                    pin.verified, pin.why = True, seen
                return
            pin.misses += 1
            if pin.misses >= MISSES:
                pin.verified, pin.why = (
                    False,
                    seen + (", limited by a cooling device" if self._capped else ""),
                )
                self._note(f"Pinned at {pin.hz / 1e6:g} MHz, but {pin.why}.", warn=True)

    def verify(self, load_seen: bool) -> bool:
        """Check bounds and clock now.

        Args:
            load_seen: whether the GPU is busy at this moment; the clock is judged only then.

        Returns:
            Whether the clock is verified.

        Raises:
            BoardError: the bounds are no longer ours, or a busy GPU runs at another clock.
        """
        if not self.check():
            raise self.taken()
        if not load_seen:
            return bool(self.pins[-1].verified)
        with self._section():
            pin = self.pins[-1]
            deadline = time.monotonic() + 2 * FOLLOW_S
            while True:
                try:
                    cur_hz = read_number(self.sysfs, f"{self.node.path}/cur_freq")
                except OSError as error:
                    raise refusal(error, self.node.path) from error
                if abs(cur_hz - pin.hz) <= NEAR * pin.hz:
                    if pin.verified is None:
                        pin.verified, pin.why = True, f"it read {cur_hz / 1e6:g} MHz under load"
                    return bool(pin.verified)
                if time.monotonic() > deadline:
                    pin.verified, pin.why = False, f"it read {cur_hz / 1e6:g} MHz under load"
                    break
                time.sleep(0.02)
        raise BoardError(
            f"The GPU is pinned at {pin.hz / 1e6:g} MHz, but runs at {cur_hz / 1e6:g} MHz under load.",
            "The clock that was set was expected.",
            f"Something else governs it (heat, over-current, another tool): type `{self.sysfs.typed('doctor')}` to see it.",
        )

    def _must_hold(self) -> None:
        if self.ended:
            raise BoardError(
                f"The lease on the GPU clock has ended: {self.ended}.", "A lease that holds was expected."
            )

    # --- ending

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end("done" if kind is None else f"{kind.__name__} came")
        if kind is None and self.outcome is not None and self.outcome.kind == "failed":
            raise BoardError(
                self.outcome.text, "The bounds found at the start were expected.", self._by_hand()
            )

    def detach(self) -> None:
        """End the lease and leave the clock pinned; the lease file stands for `wattune restore`.

        Raises:
            BoardError: the file could not be written; the lease holds on.
        """
        with self._section():
            self._must_hold()
            assert self._record is not None
            assert self.state_file is not None
            self._record = state.detached(self._record)
            state.save(self.state_file, self._record)
            self.ended = "the pin was left on purpose"
            self._note("The pin is left standing.")
            self._let_go(detach=True)

    def _end(self, why: str) -> None:
        """Restore and let everything go; does its work once, and never raises."""
        with self._section():
            if self.ended or os.getpid() != self._pid:
                return
            self.ended = why
            if self._record is not None:
                self._restore()
            self._let_go()

    def _restore(self) -> None:
        assert self._record is not None
        assert self.state_file is not None
        record = self._record
        outcome = record.put_back(self.sysfs, force=self._undo)
        for pause in RETRY_S:
            if outcome.kind == "failed":
                time.sleep(pause)
                outcome = record.put_back(self.sysfs, force=self._undo)
        self.outcome = outcome
        if outcome.kind == "failed":
            self._note(f"{outcome.text} {self._by_hand()}", warn=True)
            return
        with contextlib.suppress(WattuneError):
            state.remove(self.state_file)
        if outcome.kind == "left":
            self._left(outcome, record.saved)
            return
        self._note(outcome.text)

    def _left(self, outcome: Outcome, saved: Bounds) -> None:
        """Bounds that somebody else set stay: said once, here where it was not seen before."""
        by_hand = commands(self.sysfs, self.node.path, saved)
        self._note(f"{outcome.text} To restore them all the same, as root: {by_hand}", warn=not self.lost)
        self.lost = self.lost or outcome.text

    def _by_hand(self) -> str:
        assert self.saved is not None
        by_hand = commands(self.sysfs, self.node.path, self.saved)
        return f"Type `{self.sysfs.typed('restore')}`, or as root: {by_hand}"

    def _let_go(self, *, detach: bool = False) -> None:
        if self._watchdog is not None:
            self._watchdog.dismiss(detach=detach)
        if self.outcome is not None and self.outcome.kind == "failed":
            self._locks.forget()  # the watchdog keeps them while it goes on trying
        else:
            self._locks.release()
        self.sysfs.close()
        atexit.unregister(self._at_exit)
        _LIVE.discard(self)
        self._uninstall()

    def _at_exit(self) -> None:
        self._end("the interpreter ended")

    # --- signals and forks

    @contextlib.contextmanager
    def _section(self) -> Iterator[None]:
        """Work that a signal must not interrupt: it is kept until the end, then honoured."""
        if not self._section_lock.acquire(timeout=LOCK_PATIENCE_S):
            raise BoardError(
                "The GPU clock's files do not answer.",
                "An answer within seconds was expected.",
                "Reboot the board.",
            )
        outer, self._busy = self._busy, threading.get_ident()
        try:
            yield
        finally:
            self._busy = outer
            self._section_lock.release()
            if outer is None and self._pending:
                number, self._pending = self._pending[0], []
                self._on_signal(number, None)

    def _install(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._note("Not in the main thread: signals are left to the watchdog.")
            return
        for number in SIGNALS:
            previous = _handler_beyond(signal.getsignal(number), number)
            if previous is not None and previous != signal.SIG_IGN:  # nohup is respected
                self._previous[number] = previous
                signal.signal(number, self._handler)

    def _uninstall(self) -> None:
        """Take the handlers away; outside of the main thread they stay, and pass on what comes."""
        for number, previous in self._previous.items():
            with contextlib.suppress(ValueError):  # not in the main thread: it then passes signals on
                if signal.getsignal(number) is self._handler:
                    signal.signal(number, previous)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._busy == threading.get_ident():
            self._pending.append(number)
            return
        with contextlib.suppress(BoardError):  # the files do not answer: the watchdog is left to it
            self._end(f"{signal.Signals(number).name} came")
        previous = self._previous.get(number, signal.SIG_DFL)
        if callable(previous):
            previous(number, frame)
        elif previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _forget_in_child(self) -> None:
        """A forked child holds nothing: its parent's end must be seen, and its own must change nothing."""
        self._section_lock, self._busy, self._pending = threading.RLock(), None, []
        self._locks.forget()
        if self._watchdog is not None:
            self._watchdog.forget()
        self.ended = "it belongs to the parent process"
        self._uninstall()


def _handler_beyond(handler: Any, number: int) -> Any:
    """A signal's handler, behind those that ended leases of other threads had to leave."""
    while isinstance(lease := getattr(handler, "__self__", None), Lease) and lease.ended:
        handler = lease._previous.get(number, signal.SIG_DFL)
    return handler


_LIVE: weakref.WeakSet[Lease] = weakref.WeakSet()


def _in_child() -> None:
    for lease in list(_LIVE):
        lease._forget_in_child()
    _LIVE.clear()


os.register_at_fork(after_in_child=_in_child)


def _in_mhz(bounds: Bounds) -> dict[str, float]:
    return {"min_mhz": hz_to_mhz(bounds.min_hz), "max_mhz": hz_to_mhz(bounds.max_hz)}
