"""A real board behind the port: a load runs, a lease holds the clock, a meter counts the energy of a number of training steps.

    board = JetsonBoard(Sysfs(), CommandLoad("python train.py {model} {task} {steps_file}"), LiveConf())
    with board.session(workload, settings, protocol, folder):
        measurement = board.measure(workload, 612.0, repeat=0, steps=200, seed=42)
        board.last_certificate()

How one window is taken: the clock is set, the monitors' filter settles (five time constants), some steps warm up, and at the next
step's end the window begins; it ends at a step's end too, so that energy and time belong to whole steps; sampling goes on for
another five time constants. Energy and time are scaled to one epoch by the number of steps.

A load that counts its steps is looked at often, and its window has the number of steps that was asked for. One that reports them with
their times (:class:`wattune.profiling.finetune_load.FinetuneLoad`) begins anew for every window, which ends by the stopping rule
(:mod:`wattune.profiling.window_rule`); energy and time of an epoch are then extrapolated with its batches' lengths.

What becomes of a window that cannot be used (throttled, another clock seen, a gap, a drift, an unpinned run that is no baseline):
it is taken again, twice at most by default, and its reasons go into the certificate of the one that counts. Where none counts the
setting fails with `SettingFailedError` and leaves no cell: a cell without a number would have to be told apart everywhere, and one
with a number would be believed. The sweep goes on with the other settings, then fails and names it, so that an unattended night
loses one setting and not all; the next run measures what is missing. What will not pass by trying again ends the sweep at once:
the load died, or somebody else set the clock, who is not fought over it.
"""

from __future__ import annotations

import contextlib
import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from wattune.boards.base import BoardInfo
from wattune.boards.jetson.diagnosis import why_no_clock
from wattune.boards.jetson.discovery import discover, gpu_load_pct, temperatures_c
from wattune.boards.jetson.findings import Findings, GpuNode, PowerMode
from wattune.boards.jetson.powermode import find_power_mode
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError
from wattune.core.features import FeatureValue
from wattune.core.measurement import Measurement
from wattune.core.settings import MAXN, FrequencyTable, Setting, setting_label
from wattune.core.workload import Workload
from wattune.governing import state
from wattune.governing.lease import NEAR, Lease
from wattune.io import sha256_of
from wattune.profiling.cells import SweepProtocol
from wattune.profiling.certificate import certify, judge_baseline, provenance_of
from wattune.profiling.finetune_load import FinetuneLoad, RunLostError
from wattune.profiling.load import Load, wait_for_first
from wattune.profiling.meter import Meter, Window
from wattune.profiling.preflight import Preflight, preflight, refuse_unfit_clock, settle_leases
from wattune.profiling.progress import Countdown
from wattune.profiling.spans import Pace, Rules, drift, follow_counts, follow_reports
from wattune.profiling.sweep import SettingFailedError
from wattune.profiling.window_rule import Extrapolation

log = logging.getLogger(__name__)

LATE_NODE_S = 5.0
"""How long a GPU node that a driver makes late is waited for."""

CLOCK_SHARE, KNOWN_SHARE = 0.98, 0.9
"""Share of the window at the pinned clock, and of the time for which the clock is known, that a pinned window needs."""

OWN_FEATURES = ("family", "layers", "hidden", "params_m", "seq_len", "batch_size")
"""What a fine-tuning process knows of its job better than the catalogue."""

STILL_FALLING_C, STILL_FALLING_S = 0.5, 20.0
"""Waiting is given up where it brought less than this within this time: the board is as cool as it gets."""

COOL_POLL_S = 1.0


OpenLease = Callable[[Sysfs, GpuNode, float], Lease]
"""Makes a lease that is entered then: the tree, the node and a clock in MHz."""


@dataclass(frozen=True, slots=True)
class Taken:
    """One window.

    Attributes:
        window: what the meter saw; `certificate` what it rests on.
        steps: training steps in it.
        reasons: why it must not be used.
        extrapolation: to the epoch, where its batches' lengths are known.
    """

    window: Window
    certificate: dict[str, Any]
    steps: int
    reasons: tuple[str, ...]
    extrapolation: Extrapolation | None = None


@dataclass(slots=True)
class _Running:
    """What runs now.

    Attributes:
        workload: what is trained.
        pace: of its steps.
        idle: a window of the idle board before it; None where there was none.
        order_seed: of the order of settings; None outside a sweep. `repeats` how many windows a setting gets.
        countdown: tells how far the sweep is; None outside one.
        energies_j: setting -> energies of its repeats so far.
        start: how the present setting was begun.
    """

    workload: Workload
    pace: Pace = field(default_factory=Pace)
    idle: Window | None = None
    order_seed: str | None = None
    repeats: int = 1
    countdown: Countdown | None = None
    energies_j: dict[Setting, list[float]] = field(default_factory=dict)
    start: dict[str, Any] | None = None


class JetsonBoard:
    """A Jetson, or an emulated one's tree; a context manager that ends what it started and gives the clock back.

    Args:
        sysfs: its tree.
        load: what runs.
        rules: how to measure.
        board_id: the board that must be found; empty for any.
        power_mode: the mode that must be found; empty for any.
        open_lease: makes the lease on the clock; the node is written directly where not given.

    Raises:
        BoardError: no Jetson, no clock or no rails to measure, a clock that is pinned or throttled, or another board or mode.

    Attributes:
        findings: the board as found.
        preflight: of the last session; None before.
    """

    def __init__(
        self,
        sysfs: Sysfs,
        load: Load,
        rules: Rules,
        *,
        board_id: str = "",
        power_mode: str = "",
        open_lease: OpenLease | None = None,
    ) -> None:
        self.sysfs, self.load, self.rules = sysfs, load, rules
        self._direct, self._open_lease = open_lease is None, open_lease or Lease
        self.preflight: Preflight | None = None
        self.findings = discover(sysfs, retry_s=LATE_NODE_S)
        self._gpu = _fit_gpu(self.findings)
        self._info = self._identify(board_id, power_mode)
        self._energy_set = self._info.rails
        self._entered = False
        self._lease: Lease | None = None
        self._running: _Running | None = None
        self._setting: Setting | None = None
        self._certificate: dict[str, Any] = {}
        self._handlers: dict[int, Any] = {}

    # --- the port

    @property
    def info(self) -> BoardInfo:
        """See :class:`wattune.boards.base.Board`; `power_mode` is the one found, the table ends at its cap."""
        return self._info

    def noise_free(self, workload: Workload, setting: Setting) -> None:
        """Nobody knows."""
        return

    def order(self, workload: Workload, settings: Sequence[Setting], seed: int) -> list[Setting]:
        """The settings in random order, the same for a seed: heat and whatever else changes slowly must not follow the clock."""
        shuffled = list(settings)
        random.Random(_order_seed(workload, seed)).shuffle(shuffled)
        return shuffled

    def last_certificate(self) -> Mapping[str, Any]:
        """What the last measurement rests on."""
        return self._certificate

    def features(self) -> Mapping[str, FeatureValue]:
        """What the fine-tuning process says of its job; empty for other loads, and where an emulated board runs the catalogue's."""
        if not isinstance(self.load, FinetuneLoad) or self.load.emulates:
            return {}
        answered = self.load.answered
        return {name: answered.features[name] for name in OWN_FEATURES if name in answered.features} | {
            "precision": answered.facts["precision"]
        }

    @contextlib.contextmanager
    def session(
        self,
        workload: Workload,
        settings: Sequence[Setting],
        protocol: SweepProtocol,
        folder: Path,
        told: Callable[[str, Countdown], None] | None = None,
    ) -> Iterator[JetsonBoard]:
        """Check that the board is fit, start the load, and end everything afterwards; arguments as in :class:`LiveBoard`.

        Raises:
            InputError: the load is not described as it must be.
            BoardError: the board is unfit, or the load does not run.
        """
        notes = settle_leases(self.sysfs)
        with self:
            self._refuse_unfit(workload, settings)
            idle = self._measure_idle()
            rules, reports = self.rules, isinstance(self.load, FinetuneLoad)
            self.preflight = preflight(
                self.findings, settings, repeats=protocol.repeats, warmup_steps=rules.warmup_steps,
                steps=rules.window.min_steps if reports else protocol.steps,
                min_window_s=rules.window.min_s if reports else rules.min_window_s,
                max_temp_c=rules.max_temp_c, free_memory_mb=rules.free_memory_mb,
                folder=folder, idle=idle, notes=notes,
            )  # fmt: skip
            log.info("%s: %s", workload.id, self.preflight.text())
            self._start(workload, protocol.seed, idle)
            assert self._running is not None
            self._running.order_seed = _order_seed(workload, protocol.seed)
            self._running.repeats = protocol.repeats
            one = self.preflight
            self._running.countdown = Countdown(
                one.windows,
                one.estimated_s / one.windows,
                one.estimated_j / max(one.estimated_s, 1e-9),
                told=told,
            )
            yield self

    @contextlib.contextmanager
    def prepared(self, workload: Workload, settings: Sequence[Setting], seed: int) -> Iterator[JetsonBoard]:
        """Check that the board is fit and start the load, for runs that are not measured; everything is ended afterwards.

        Raises:
            InputError: the load is not described as it must be.
            BoardError: the board is unfit, or the load does not run.
        """
        settle_leases(self.sysfs)
        with self:
            self._refuse_unfit(workload, settings)
            self._start(workload, seed, None)
            yield self

    def hold(self, setting: Setting) -> None:
        """Hold a clock for what the load does next, or give it back for ``maxn``; inside :meth:`prepared`.

        Raises:
            SettingFailedError: the board is too hot for it.
            BoardError: it cannot be set.
        """
        self._cool_down()
        if why := self._hold(setting, anew=False):
            raise SettingFailedError(
                f"{_name(setting)[0].upper()}{_name(setting)[1:]} could not be held: {why}",
                "A board that has cooled down was expected.",
                "Give it air, or time, then run the same command again.",
            )

    def watch(self) -> None:
        """Look after the held clock; to be called while the load is waited for.

        Raises:
            BoardError: somebody else has set it.
        """
        self._watch()

    def pin(self) -> Mapping[str, Any] | None:
        """The receipt of the clock that is held; None for ``maxn``."""
        return None if self._lease is None else self._lease.receipt()["pins"][-1]

    def measure(
        self, workload: Workload, setting: Setting, *, repeat: int, steps: int, seed: int
    ) -> Measurement:
        """See :class:`wattune.boards.base.Board`; outside a session the load is started and ended for this one measurement.

        Raises:
            InputError: the clock is not in the table, or the load is not described as it must be.
            SettingFailedError: no window could be used.
            BoardError: the load ended, somebody else set the clock, or it cannot be set.
        """
        wanted = setting if isinstance(setting, str) else self._info.table.match(setting)
        if not self._entered:
            with self:
                return self.measure(workload, wanted, repeat=repeat, steps=steps, seed=seed)
        if self._running is None or self._running.workload != workload:
            self.load.check(workload)
            self._start(workload, seed, None)
        running = self._running
        assert running is not None
        discarded: list[str] = []
        for attempt in range(1, self.rules.attempts + 1):
            if wanted != self._setting or attempt > 1:
                running.start = self._cool_down()
            if why := self._hold(wanted, anew=attempt > 1):
                discarded.append(f"window {attempt}: {why}")
                continue
            try:
                taken = self._take(running, wanted, steps, repeat)
            except RunLostError as error:
                if running.countdown is not None:
                    running.countdown.give_up(running.repeats - repeat)
                raise SettingFailedError(
                    f"At {_name(wanted)} the run was lost: {error.what}", error.expected, error.hint
                ) from error
            name = _name(wanted)
            if not taken.reasons:
                return self._measurement(running, wanted, repeat, taken, attempt, discarded)
            discarded += [f"window {attempt}: {reason}" for reason in taken.reasons]
            log.warning("A window at %s is not used: %s", name, " ".join(taken.reasons))
        if running.countdown is not None:
            running.countdown.give_up(running.repeats - repeat)
        raise SettingFailedError(
            f"At {_name(wanted)} none of {self.rules.attempts} windows could be used ({' '.join(discarded)})",
            "A window at that clock, without throttling, gaps or drift, was expected.",
            "Look at `wattune doctor` and at what else runs on the board.",
        )

    # --- life

    def __enter__(self) -> JetsonBoard:
        if self._entered:
            raise RuntimeError("it is entered already")
        self._entered = True
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) == signal.SIG_DFL:  # nohup and others' handlers are respected
                    self._handlers[number] = signal.signal(number, _stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lease, self._lease = self._lease, None
        self._entered, self._running, self._setting = False, None, None
        try:
            if lease is not None:
                lease.__exit__(kind, error, trace)
        finally:
            self.load.stop()
            while self._handlers:
                number, before = self._handlers.popitem()
                signal.signal(number, before)

    def _look(self) -> None:
        """See the board again: a driver may have moved, and a stale pin was lifted."""
        self.findings = discover(self.sysfs, retry_s=LATE_NODE_S)
        self._gpu = _fit_gpu(self.findings)
        mode = _mode_name(self.findings.power_mode)
        if mode != self._info.power_mode:
            raise BoardError(
                f"The power mode was {self._info.power_mode} and is {mode} now.",
                "One mode throughout was expected.",
                "Run the same command again.",
            )

    def _refuse_unfit(self, workload: Workload, settings: Sequence[Setting]) -> None:
        self._look()
        pins = any(setting != MAXN for setting in settings)
        refuse_unfit_clock(self.findings, self._gpu, direct=self._direct, pins=pins)
        if not self._direct and pins:  # says now, and not after hours, where neither way to the clock is open
            self._open_lease(self.sysfs, self._gpu, next(s for s in settings if not isinstance(s, str)))
        self.load.check(workload)

    def _start(self, workload: Workload, seed: int, idle: Window | None) -> None:
        if self._running is not None:
            self.load.stop()
        self._running = self._setting = None
        self.load.start(workload, seed)
        if not isinstance(self.load, FinetuneLoad):  # that one has waited by itself
            wait_for_first(self.load, self.rules.start_s)
        self._running = _Running(workload, idle=idle)

    def _measure_idle(self) -> Window | None:
        """A window of the board before the load is started; None where it runs already, or none is wanted."""
        if not self.load.starts or self.rules.idle_s <= 0:
            return None
        with Meter(self.findings, hz=self.rules.hz, power_mode=lambda _: None) as meter:
            meter.mark("meter started")
            meter.settle()
            begin = meter.mark("idle begins", change=False)
            time.sleep(self.rules.idle_s)
            end = meter.mark("idle ends", change=False)
        return meter.window(begin, end)

    # --- identity

    def _identify(self, board_id: str, power_mode: str) -> BoardInfo:
        found, gpu = self.findings, self._gpu
        name, mode = found.board or "jetson-unknown", _mode_name(found.power_mode)
        if board_id and board_id.lower() != name:
            raise InputError(
                f"The board found is '{name}'.",
                f"'{board_id}' was expected (board.id).",
                "Set board.id to the one found, or leave it empty.",
            )
        if power_mode and power_mode.upper() != mode.upper():
            raise BoardError(
                f"The power mode is {mode}.",
                f"{power_mode} was expected (board.power_mode).",
                "Switch by hand (`sudo nvpmodel -m ID`, it may need a reboot), or set board.power_mode to the one found.",
            )
        low, high = self._bounds_of_the_mode()
        usable = [hz for hz in gpu.table_hz if low <= hz <= high]
        rails = found.energy_set or "module"
        labels = found.gpu_cpu or found.module or ()
        missing = [label for label in labels if label not in found.rails]
        if missing or not labels:
            raise BoardError(
                "Energy cannot be measured here: "
                + (
                    f"the rails {', '.join(missing)} were not found."
                    if missing
                    else "which rails to sum is unknown."
                ),
                "The rails of a known board were expected.",
                "Type `wattune doctor` to see what was found.",
            )
        provenance = provenance_of(found)
        rules = self.rules
        digest = sha256_of(
            {
                "board": name, "provenance": provenance, "power_mode": mode, "table_hz": list(gpu.table_hz), "bounds_hz": [low, high],
                "rails": {"energy": list(labels), "module": list(found.module or ())}, "load": self.load.text,
                "rules": [rules.hz, rules.warmup_steps, rules.min_window_s],
                **({"window": vars(rules.window)} if isinstance(self.load, FinetuneLoad) else {}),
            }
        )  # fmt: skip
        return BoardInfo(
            id=name,
            provenance=provenance,
            power_mode=mode,
            rails=rails,
            table=FrequencyTable.from_hz(usable),
            digest=digest,
        )

    def _bounds_of_the_mode(self) -> tuple[int, int]:
        """The bounds of the power mode: those found, or those that a dead holder saved before it pinned the clock."""
        gpu = self._gpu
        if len(gpu.table_hz) > 1 and gpu.min_hz == gpu.max_hz:
            for left in state.stale(self.sysfs):
                if left.record is not None and left.record.node == gpu.path:
                    return left.record.saved_min_hz, left.record.saved_max_hz
        refuse_unfit_clock(self.findings, gpu, direct=self._direct, pins=False)
        if not gpu.usable_hz:
            raise BoardError(
                "No clock of the GPU's table lies within its bounds.",
                "At least one was expected.",
                "Type `wattune doctor`.",
            )
        return gpu.min_hz, gpu.max_hz

    # --- the clock

    def _hold(self, setting: Setting, *, anew: bool) -> str:
        """Hold a clock; returns why not, where heat keeps it down just now.

        Raises:
            BoardError: it cannot be set for another reason.
        """
        if not isinstance(setting, str) and (hot := self._throttled()):
            return f"{hot} and went on doing so."
        try:
            self._set(setting, anew=anew)
        except BoardError:
            if not (hot := self._throttled()) or (self._lease is not None and self._lease.lost):
                raise
            self._setting = None
            self._release()  # what it holds is no longer known
            return f"{hot} while the clock was set."
        return ""

    def _throttled(self) -> str:
        """Which cooling device caps the clock now, as the start of a sentence; empty where none does."""
        for name, path in self.findings.cooling.items():
            with contextlib.suppress(OSError, ValueError):
                if number := int(self.sysfs.read(path)):
                    return f"The cooling device {name} capped the clock (state {number})"
        return ""

    def _set(self, setting: Setting, *, anew: bool) -> None:
        """Hold a clock, or give it back for ``maxn``; `anew` writes it again and forgets what was seen of the pin."""
        if isinstance(setting, str):
            self._release()
        elif self._lease is None:
            lease = self._open_lease(self.sysfs, self._gpu, setting)
            lease.__enter__()
            self._lease = lease
        elif anew or setting != self._setting:
            self._lease.move(setting)
        self._setting = setting

    def _release(self) -> None:
        lease, self._lease = self._lease, None
        if lease is None:
            return
        lease.__exit__(None, None, None)
        if lease.lost:
            raise _taken(lease)

    def _watch(self) -> None:
        """Look after the pin: whose the bounds are, and whether the clock follows."""
        lease = self._lease
        if lease is None:
            return
        if not lease.check() and lease.lost:
            raise _taken(lease)
        try:
            cur_hz = int(self.sysfs.read(f"{self._gpu.path}/cur_freq"))
        except (OSError, ValueError):
            cur_hz = None
        lease.observe(cur_hz, gpu_load_pct(self.findings))

    # --- a window

    def _take(self, running: _Running, setting: Setting, steps: int, repeat: int) -> Taken:
        pinned = not isinstance(setting, str)
        before = self.findings if pinned else discover(self.sysfs)
        with Meter(
            before, hz=self.rules.hz, power_mode=lambda found: find_power_mode(found.sysfs)[0]
        ) as meter:
            meter.mark("clock set")
            if isinstance(self.load, FinetuneLoad):
                span = follow_reports(
                    self.load, meter, f"{_name(setting)}, repeat {repeat}", rules=self.rules,
                    tau_s=self.findings.filter.tau_s, rails=self._energy_set, watch=self._watch,
                )  # fmt: skip
            else:
                span = follow_counts(
                    self.load, meter, steps, rules=self.rules, pace=running.pace, watch=self._watch
                )
            self._watch()
        training = None
        if isinstance(self.load, FinetuneLoad):
            training = self.load.facts()
            self.load.end()
        window = meter.window(span.begin_s, span.end_s)
        judgement = None
        if not pinned:
            after = discover(self.sysfs)
            judgement = judge_baseline(
                before,
                after,
                window.clocks_s,
                util_pct=window.util_pct,
                cooling=window.cooling_max,
                events=window.events,
            )
        one = window.sets[self._energy_set]
        energies = [*running.energies_j.get(setting, [])]
        done = max(span.last - span.first, 1)
        if one.energy_j is not None:
            energies.append(self._epoch_j(running, self._energy_set, one.energy_j, done, span.extrapolation))
        certificate = certify(
            meter, window, idle=running.idle, repeats_j=energies, baseline=judgement
        ).as_json()
        reasons = list(certificate["invalid"])
        pin = self.pin()
        if span.broken:
            reasons.append(span.broken)
        if one.energy_j is None:
            reasons.append(one.reason)
        elif not one.energy_j > 0:
            reasons.append(f"The energy of {self._energy_set} is {one.energy_j:g} J.")
        if pinned:
            assert not isinstance(setting, str)
            reasons += _clock_reasons(window, setting)
            if pin is not None and pin["verified"] is False:
                reasons.append(f"The pin did not hold: {pin['why']}.")
        reasons += [
            f"The cooling device {name} capped the clock (state {n})."
            for name, n in window.cooling_max.items()
            if n and pinned
        ]
        reasons += [
            f"The over-current counter {name} moved by {n}."
            for name, n in window.events.items()
            if n and pinned
        ]
        if not span.broken and (why := drift(span.edges)):
            reasons.append(why)
        certificate["pin"] = pin
        certificate["run"] = {
            "load": self.load.text, "workload": running.workload.id, "setting": setting, "repeat": repeat,
            "steps": done, "first_step": span.first, "window_s": round(window.duration_s, 6), "order_seed": running.order_seed,
            "start": running.start, "attempt": 0, "discarded": [],
        }  # fmt: skip
        if training is not None:
            certificate["training"] = training
            certificate["extrapolation"] = (
                None if span.extrapolation is None else span.extrapolation.as_json(self._energy_set)
            )
        return Taken(window, certificate, done, tuple(dict.fromkeys(reasons)), span.extrapolation)

    @staticmethod
    def _epoch_j(
        running: _Running, rails: str, window_j: float, steps: int, extrapolation: Extrapolation | None
    ) -> float:
        """Energy of an epoch: extrapolated where lengths are known, else in proportion to the steps."""
        if extrapolation is not None:
            return extrapolation.epoch_energy_j(rails)[0]
        return window_j * running.workload.steps_per_epoch / steps

    def _measurement(
        self,
        running: _Running,
        setting: Setting,
        repeat: int,
        taken: Taken,
        attempt: int,
        discarded: list[str],
    ) -> Measurement:
        window = taken.window
        scale = running.workload.steps_per_epoch / taken.steps
        energy_j, module_j = window.sets[self._energy_set].energy_j, window.sets["module"].energy_j
        assert energy_j is not None  # else it were not used
        reaches = taken.extrapolation
        epoch_j = self._epoch_j(running, self._energy_set, energy_j, taken.steps, reaches)
        epoch_module_j = None
        if module_j is not None and (reaches is None or all("module" in b.energy_j for b in reaches.blocks)):
            epoch_module_j = self._epoch_j(running, "module", module_j, taken.steps, reaches)
        running.energies_j.setdefault(setting, []).append(epoch_j)
        taken.certificate["run"] |= {"attempt": attempt, "discarded": discarded}
        self._certificate = taken.certificate
        if running.countdown is not None:
            power_w = (energy_j if module_j is None else module_j) / window.duration_s
            again = f" ({attempt - 1} before it not used)" if attempt > 1 else ""
            running.countdown.window(f"{_name(setting)}, repeat {repeat + 1}{again}", power_w)
        known = {float(name): s for name, s in window.clocks_s.items() if name != "unknown"}
        known_s = sum(known.values())
        return Measurement(
            setting=setting,
            repeat=repeat,
            energy_j=epoch_j,
            time_s=window.duration_s * scale if reaches is None else reaches.epoch_time_s(),
            energy_module_j=epoch_module_j,
            gpu_util_pct=window.util_pct,
            gpu_mhz_mean=sum(mhz * s for mhz, s in known.items()) / known_s if known_s > 0 else None,
            temp_c_max=_gpu_temperature(window.temps_max_c),
            window_steps=taken.steps,
            window_s=window.duration_s,
        )

    # --- heat

    def _cool_down(self) -> dict[str, Any]:
        """Let the board get to the common start temperature, where it does within the time allowed.

        The load stands still meanwhile where it can; where the temperature no longer falls more waiting is no use.
        """
        limit, allowed_s = self.rules.start_temp_c, self.rules.cool_down_s
        began = time.monotonic()
        first = now = self._temperature()

        def too_hot() -> bool:
            return limit > 0 and now is not None and now > limit

        if too_hot() or self._throttled():
            paused = self.load.pause()
            log.info(
                "The board is at %s; waiting for it to cool down.", "?" if now is None else f"{now:.1f} C"
            )
            try:
                lowest, lowest_at = now, began
                while (capped := bool(self._throttled())) or too_hot():
                    t = time.monotonic()
                    if t - began > allowed_s or (not capped and t - lowest_at > STILL_FALLING_S):
                        break
                    time.sleep(COOL_POLL_S)
                    now = self._temperature()
                    if now is not None and (lowest is None or now < lowest - STILL_FALLING_C):
                        lowest, lowest_at = now, time.monotonic()
            finally:
                if paused:
                    self.load.resume()
        return {
            "from_c": first, "to_c": now, "wanted_c": limit or None, "waited_s": round(time.monotonic() - began, 1),
            "reached": None if limit <= 0 or now is None else now <= limit,
        }  # fmt: skip

    def _temperature(self) -> float | None:
        return _gpu_temperature(temperatures_c(self.findings))


def _clock_reasons(window: Window, mhz: float) -> list[str]:
    """Why the clocks seen do not show that a pin held."""
    total_s = sum(window.clocks_s.values())
    known = {float(name): s for name, s in window.clocks_s.items() if name != "unknown"}
    known_s = sum(known.values())
    if known_s < KNOWN_SHARE * total_s or known_s <= 0:
        share = 100 * known_s / total_s if total_s else 0.0
        return [
            f"The clock was seen for {share:.0f} % of the window only, so nothing shows that the pin held."
        ]
    wrong = {seen: s for seen, s in known.items() if abs(seen - mhz) > NEAR * mhz}
    if sum(wrong.values()) <= (1 - CLOCK_SHARE) * known_s:
        return []
    seen = ", ".join(f"{setting_label(clock)} MHz for {s:.1f} s" for clock, s in wrong.items())
    return [f"The clock was pinned at {setting_label(mhz)} MHz, but seen at {seen}."]


def _fit_gpu(findings: Findings) -> GpuNode:
    """The GPU's node.

    Raises:
        BoardError: no Jetson, or no clock to be seen.
    """
    if findings.kind == "jetson" and findings.gpu is not None and findings.gpu.table_hz:
        return findings.gpu
    if findings.gpu is None:
        what, expected, hint = why_no_clock(findings)
        raise BoardError(f"Nothing can be measured here. {what}", expected, hint)
    why = findings.errors.get("gpu_available_frequencies", "it lists no clock")
    raise BoardError(
        f"This board cannot be measured: its list of clocks (available_frequencies) could not be read ({why}).",
        "The GPU's clocks were expected.",
        "Type `wattune doctor` to see everything.",
    )


def _gpu_temperature(temps_c: Mapping[str, float | None]) -> float | None:
    """The GPU's temperature; where its zone is off that of the hottest junction, else the highest known."""
    for zone in ("gpu", "tj"):
        if (celsius := temps_c.get(zone)) is not None:
            return celsius
    return max((c for c in temps_c.values() if c is not None), default=None)


def _mode_name(mode: PowerMode | None) -> str:
    return "unknown" if mode is None else mode.name


def _name(setting: Setting) -> str:
    return "unpinned clocks" if isinstance(setting, str) else f"{setting_label(setting)} MHz"


def _order_seed(workload: Workload, seed: int) -> str:
    return f"{seed}|{workload.id}|order"


def _taken(lease: Lease) -> BoardError:
    """The end of a sweep whose clock somebody took; not fought over."""
    error = lease.taken()
    return BoardError(error.what, error.expected, f"{error.hint.rstrip('.')}; finished cells stay.")


def _stop(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM and SIGHUP end us as Ctrl-C does: the clock is given back and the load ended on the way out."""
    raise KeyboardInterrupt
