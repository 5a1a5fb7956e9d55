"""A training loop of one's own under a governed clock.

    with wattune.govern(model=model, probe=True) as run:
        for batch in loader:
            ...
            run.step()
    print(run.receipt["energy_j"])

On a machine that is no Jetson it does nothing, and says so once. Within `wattune run`, which governs already, it counts steps into
the steps file and leaves the clock alone.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import threading
from collections.abc import Mapping
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any

from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.findings import Findings
from wattune.boards.jetson.root import VARIABLE as ROOT_VARIABLE
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError
from wattune.core.features import FeatureValue, check_feature, is_number
from wattune.core.governor import Governor
from wattune.core.settings import MAXN, FrequencyTable, Setting, hz_to_mhz
from wattune.profiling.load import STEPS_VARIABLE
from wattune.profiling.preflight import settle_leases
from wattune.running.account import Totals
from wattune.running.arguments import check_alone, check_kinds, check_on
from wattune.running.choosing import Choice, by_governor, clock_of
from wattune.running.describe import Batches, model_features
from wattune.running.probing import START_S, WINDOW_S, ProbeTask
from wattune.running.receipt import build_receipt, for_people
from wattune.running.run import RUN_VARIABLE
from wattune.running.session import Ended, Session
from wattune.running.steps import Steps

log = logging.getLogger("wattune")

TIMEOUT_S = 2.0
UTIL_STEPS, UTIL_S = 3, 3.0
"""So many steps, and so long, are looked at for the load at the governor's reference clock."""

PATIENT_STEPS = 20
"""So many steps without a batch whose length could be seen, and the governor's default is taken."""

_said = threading.Event()


class Governed:
    """See the module; made by :func:`govern`.

    Attributes:
        governor: the one that is asked, checked; None where none is, and on a machine that is no Jetson.
        receipt: what it cost; None before the end, and where nothing was measured.
        session: what holds and measures; None where there is no board.
    """

    def __init__(
        self,
        *,
        model: Any,
        features: Mapping[str, FeatureValue],
        objective: str,
        governor: str | Path | Governor | None,
        mhz: float | None,
        probe: bool,
        steps: int | None,
        best_effort: bool,
        simulated_ok: bool,
        probe_window_s: float,
    ) -> None:
        check_kinds(model, probe=probe, best_effort=best_effort, simulated_ok=simulated_ok)
        self._objective = check_alone(
            objective=objective,
            governor=governor,
            mhz=mhz,
            probe=probe,
            steps=steps,
            probe_window_s=probe_window_s,
        )
        for name, value in features.items():
            check_feature(name, value)
        self._model = model
        self._given = {k: v if isinstance(v, str) else float(v) for k, v in features.items() if v is not None}
        self._objective_text = objective
        self._where, self._mhz, self._probe = governor, mhz, probe
        self._run_steps, self._window_s = steps, probe_window_s
        self._best_effort, self._simulated_ok = best_effort, simulated_ok
        self.governor: Governor | None = None
        self._choice: Choice
        self._task: ProbeTask | None
        self._asked = dict(self._given)
        self._begun = self._said_outside = False
        self._before = (0, 0.0)
        self._steps_file: Path | None = None
        self._anew()
        findings = _board()
        if findings.kind == "jetson" and not _within_run():
            with contextlib.suppress(BoardError) if best_effort else contextlib.nullcontext():
                self._check_on(findings)

    def _anew(self) -> None:
        """A run counts its own steps and is told by its own batches, whatever was run before with the same arguments."""
        self._given, self._choice, self._task = dict(self._asked), Choice(MAXN, "none"), None
        self._batches, self._steps = Batches(), Steps()
        self._hook: Any = None
        self._work, self._counts_work = 0.0, False
        self.session: Session | None = None
        self.receipt: dict[str, Any] | None = None

    def _check_on(self, findings: Findings) -> None:
        self.governor = check_on(
            findings,
            governor=self.governor or self._where,
            mhz=self._mhz,
            probe=self._probe,
            simulated_ok=self._simulated_ok,
        )

    # --- life

    def __enter__(self) -> Governed:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> Governed:
        """Begin; once more after the end, with a receipt of its own.

        Raises:
            InputError: it runs already.
            BoardError: the clock cannot be held (with `best_effort` it is left alone).
            IntegrityError: a governor that is damaged, for another board, or simulated on a real one.
        """
        if self._begun:
            raise InputError(
                "This run was begun already, and has not ended.",
                "One run at a time was expected.",
                "Leave its `with`, or call stop(), before it begins anew.",
            )
        self._before = (self._before[0] + (self._steps.count or 0), self._before[1] + self._steps.work)
        self._anew()
        given = os.environ.get(STEPS_VARIABLE)
        self._steps_file = Path(given) if given else None
        findings = _board()
        self._begin(findings)
        self._begun, self._said_outside = True, False
        return self

    def _begin(self, findings: Findings) -> None:
        if findings.kind != "jetson":
            if not _said.is_set():
                _said.set()
                log.warning("wattune: this machine is no Jetson: nothing is governed or measured here.")
            return
        if _within_run():
            self._open(findings, "left to `wattune run`")
            return
        try:
            self._govern(findings)
        except BoardError as error:
            if not self._best_effort:
                raise
            self._open(findings, "the clock could not be held")
            assert self.session is not None
            self.session.note(f"The clocks are left alone (best_effort): {error}")

    def _open(self, findings: Findings, rule: str) -> None:
        self._unhook()
        self._choice, self._task = Choice(MAXN, "none", rule), None
        self.session = Session(findings, steps=self._steps)
        self.session.start()
        self._look_at_batches()

    def _govern(self, findings: Findings) -> None:
        self._check_on(findings)
        notes = settle_leases(findings.sysfs)
        session = self.session = Session(findings, steps=self._steps)
        if self._mhz is not None:
            self._choice = Choice(self._mhz, "mhz", f"mhz={self._mhz:g}", self._objective_text)
            session.setting = self._mhz
        elif self._probe:
            self._task = ProbeTask(self._objective, None, self._run_steps, self._window_s, START_S)
            if self.governor is not None:
                self._choice = by_governor(
                    self.governor, findings, self._known(), {}, simulated_ok=self._simulated_ok, probes=True
                )
                self._task.prior, self._task.otherwise = self._choice.prior, clock_of(self._choice.setting)
                self._task.doubted = self._choice.declined
            self._choice = Choice(
                MAXN, "probe", "at most three clocks measured in the first steps", self._objective_text,
                governor=self._choice.governor, provenance=self._choice.provenance, notes=self._choice.notes,
            )  # fmt: skip
            session.task = self._task
            self._check_may_pin(session)
        else:
            assert self.governor is not None  # checked with the board
            missing = {f.name for f in self.governor.features} - set(self._known())
            if missing & {"gpu_util_ref_pct", "seq_len", "batch_size"}:
                session.setting = self._reference(findings) if "gpu_util_ref_pct" in missing else MAXN
                session.task = self._learn_or_say
            else:
                self._decide(findings)
                session.setting = self._choice.setting
        session.start()
        for text in [*notes, *self._choice.notes]:
            session.note(text)
        self._look_at_batches()

    def _check_may_pin(self, session: Session) -> None:
        """A probe pins later, in a thread; whether it may is found out now, while it can still be refused.

        Raises:
            BoardError: it may not.
        """
        session.hold(hz_to_mhz(min(session.node.usable_hz, default=0)) or 1.0)
        session.let_go()

    def stop(self) -> dict[str, Any] | None:
        """Put the clock back; returns the receipt, None where nothing was measured. Does its work once.

        Raises:
            BoardError: the clock could not be put back.
        """
        session = self.session
        self._unhook()
        self._begun = False
        if session is None or session.ended:
            return self.receipt
        try:
            session.stop()
        finally:
            self.receipt = build_receipt(session, session.totals, self._choice, probe=self._task)
            sys.stderr.write(for_people(self.receipt, sys.stderr) + "\n")
        return self.receipt

    # --- steps

    def step(self, steps: int = 1, *, work: float | None = None) -> None:
        """A training step is finished.

        Args:
            steps: how many.
            work: how much work they were, in any unit (padded tokens); counted from the model's inputs where not given.

        Outside of the run, before it begins and after its end, nothing is counted, and that is said once.

        Raises:
            InputError: no number.
        """
        if not isinstance(steps, Integral) or isinstance(steps, bool) or int(steps) < 0:
            raise InputError(
                f"steps is {steps!r:.40}.",
                "A number of steps was expected.",
                "For example step(), or step(4).",
            )
        if work is not None and not (is_number(work) and work >= 0):
            raise InputError(
                f"work is {work!r:.40}.", "A number from 0 on was expected.", "For example step(work=4096)."
            )
        if not self._begun:
            if not self._said_outside:
                self._said_outside = True
                log.warning(
                    "wattune: step() was called outside of the run, and is not counted: call it within"
                    " `with wattune.govern(...) as run:`."
                )
            return
        if not steps:
            return
        counted, self._work = self._work, 0.0
        if work is None and self._counts_work:
            self._counts_work = counted > 0  # inputs of another kind: every step is as good as another
            work = counted or None
        self._steps.finished(int(steps), work)
        if self._hook is not None and self.session is not None and not self._still_looking():
            self._unhook()
        if self._steps_file is not None:
            self._say_steps(work)

    def _say_steps(self, work: float | None) -> None:
        path = self._steps_file
        assert path is not None
        said: dict[str, Any] = {"steps": self._before[0] + (self._steps.count or 0)}
        if work is not None:
            said["work"] = self._before[1] + self._steps.work
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            temporary.write_text(json.dumps(said) + "\n", encoding="utf-8")
            temporary.replace(path)
        except OSError as error:
            log.warning("wattune: steps cannot be counted into %s: %s.", path, error.strerror)
            self._steps_file = None

    def totals(self) -> Totals | None:
        """What was spent so far; None where nothing is measured."""
        session = self.session
        return (
            None if session is None or session.account is None or session.ended else session.account.total()
        )

    # --- what it trains

    def _known(self) -> dict[str, FeatureValue]:
        known = model_features(self._model) if self._model is not None else {}
        return {**known, **self._batches.features(), **self._given}

    def _reference(self, findings: Findings) -> Setting:
        """The clock at which the governor's utilisation was read, as far as this board has it."""
        assert self.governor is not None
        training = self.governor.document.get("training")
        wanted = training.get("reference_mhz") if isinstance(training, Mapping) else None
        usable = findings.gpu.usable_hz if findings.gpu is not None else ()
        if not usable:
            return MAXN
        table = FrequencyTable.from_hz(usable)
        return table.nearest(float(wanted)) if isinstance(wanted, (int, float)) else table.top

    def _learn(self, session: Session) -> None:
        """The session's first task with a governor: see the first batches, and the load at the reference clock; then choose."""
        steps, begun = self._steps, None
        while True:
            session.wait(0.1)
            done = steps.done or 0
            if self._hook is not None and not self._batches.enough and done < PATIENT_STEPS:
                continue
            if "gpu_util_ref_pct" in self._given or session.account is None:
                break
            if begun is None and done >= 1:
                begun = (session.meter.mark("load", change=False) if session.meter else 0.0), done
            if begun is not None and done - begun[1] >= UTIL_STEPS:
                now_s = session.meter.mark("load", change=False) if session.meter else 0.0
                if now_s - begun[0] >= UTIL_S:
                    util = session.account.window(begun[0], now_s).util_pct
                    if util is not None:
                        self._given["gpu_util_ref_pct"] = util
                    break
        self._decide(session.findings)
        for text in self._choice.notes:
            session.note(text)
        if isinstance(self._choice.setting, str):
            session.let_go()
        else:
            session.hold(self._choice.setting)

    def _learn_or_say(self, session: Session) -> None:
        try:
            self._learn(session)
        except Ended:
            session.undecided = "the run ended before the governor had seen enough of it"
            session.note("The run ended before the governor had seen enough of it to choose.")
            raise

    def _decide(self, findings: Findings) -> None:
        assert self.governor is not None
        self._choice = by_governor(
            self.governor,
            findings,
            self._known(),
            {},
            objective=self._objective,
            simulated_ok=self._simulated_ok,
        )

    def _look_at_batches(self) -> None:
        register = getattr(self._model, "register_forward_pre_hook", None)
        if callable(register) and (self._still_looking() or self._steps_file is not None):
            self._counts_work = self._task is not None or self._steps_file is not None
            self._hook = register(self._look, with_kwargs=True)

    def _still_looking(self) -> bool:
        session = self.session
        if self._steps_file is not None:
            return True
        if self._task is not None:
            return session is not None and self._task.working
        return self.governor is not None and not self._batches.enough

    def _look(self, module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Before a forward pass: changes nothing, returns nothing."""
        if not getattr(module, "training", True):
            return
        batch = kwargs if "input_ids" in kwargs else {"input_ids": args[0]} if args else {}
        shape = tuple(getattr(batch.get("input_ids"), "shape", ()))
        if len(shape) == 2:
            self._work += float(shape[0]) * float(shape[1])
        if not self._batches.enough:
            self._batches.look(batch)

    def _unhook(self) -> None:
        hook, self._hook = self._hook, None
        if hook is not None:
            self._counts_work = False
            with contextlib.suppress(Exception):
                hook.remove()


def _board() -> Findings:
    return discover(Sysfs(Path(os.environ.get(ROOT_VARIABLE) or "/").absolute(), timeout_s=TIMEOUT_S))


def _within_run() -> bool:
    """Whether a `wattune run` holds the clock around us."""
    outer = os.environ.get(RUN_VARIABLE, "")
    return outer.isdigit() and Path(f"/proc/{outer}").exists()


def govern(
    model: Any = None,
    *,
    seq_len: float | None = None,
    batch_size: int | None = None,
    gpu_util_pct: float | None = None,
    features: Mapping[str, FeatureValue] | None = None,
    objective: str = "energy",
    governor: str | Path | Governor | None = None,
    mhz: float | None = None,
    probe: bool = False,
    steps: int | None = None,
    best_effort: bool = False,
    simulated_ok: bool = False,
    probe_window_s: float = WINDOW_S,
) -> Governed:
    """Govern a training loop; use it as a context manager, and call ``step()`` after every step.

    Args:
        model: what is trained; its configuration and first batches tell the features.
        seq_len: mean tokens per example before padding; seen in the first batches where not given.
        batch_size: examples per step.
        gpu_util_pct: load of the GPU at the governor's reference clock; measured in the first steps where not given.
        features: other feature values, by name.
        objective: ``energy``, ``edp``, ``energy:max_slowdown_pct=10`` ...
        governor: a file, an address, or one that was loaded; ``governor.json`` here, else ``models/governor.json``.
        mhz: hold this clock instead.
        probe: measure at most three clocks in the first steps instead, starting from the governor's where one is given.
        steps: of the whole run; the probe takes 1 % of them at most.
        best_effort: go on with the clocks left alone where they cannot be held.
        simulated_ok: take a simulated governor on a real board.
        probe_window_s: seconds per clock.

    What is wrong with them is said here and not when training begins, as far as it is known without the model: on any machine what is
    wrong by itself, on a Jetson also a clock that the board does not have and a governor that is missing, damaged or foreign.

    Raises:
        InputError: arguments that exclude each other, a value that is none, no clock of this board, no governor.
        BoardError: the registry cannot be reached (with `best_effort` the clocks are left alone then).
        IntegrityError: a governor that is damaged, for another board, or simulated on a real one.
    """
    if features is not None and not isinstance(features, Mapping):
        raise InputError(f"features is {features!r}.", "Values by name were expected, {'layers': 12}.")
    named = {"seq_len": seq_len, "batch_size": batch_size, "gpu_util_ref_pct": gpu_util_pct}
    every = {**(features or {}), **{name: value for name, value in named.items() if value is not None}}
    return Governed(
        model=model,
        features=every,
        objective=objective,
        governor=governor,
        mhz=mhz,
        probe=probe,
        steps=steps,
        best_effort=best_effort,
        simulated_ok=simulated_ok,
        probe_window_s=probe_window_s,
    )
