"""A callback for transformers' Trainer: its clock governed, its energy in its log.

    trainer = Trainer(..., callbacks=[WattuneCallback(probe=True)])

It imports nothing of transformers (the Trainer calls its callbacks by name), and what governs only when one is made: scripts that
import it pay nothing.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from wattune.core.errors import BoardError

if TYPE_CHECKING:
    from wattune.running.account import Totals
    from wattune.running.loop import Governed

WATCH_S = 0.1
"""How often it is looked whether training still runs: a Trainer tells its callbacks of its end, but not of an exception."""

MISSES = 2
"""A generator that is left while its callers are looked at hides them; not twice in a row."""

TRAINING = ("train", "_inner_training_loop")


class WattuneCallback:
    """Governs and measures a Trainer's training; takes the arguments of :func:`wattune.govern`, the model apart.

    What it adds to the Trainer's log, hence to MLflow, TensorBoard or W&B: ``energy_j`` (since the beginning), ``energy_j_per_step``,
    ``power_w`` and ``gpu_mhz`` (since the last entry), ``energy_module_j_per_step``, and at the first entry after an epoch's end
    ``energy_epoch_j``. The last entry, that of the whole training, has the run's own figures instead, as the receipt has them: mean
    power and clock since the beginning, energy of a step without what came before the first. Evaluating and saving between two steps
    is in the energies: an entry after it has more energy per step, and so has the run. What is unknown is left out. Energies are of
    ``gpu_cpu``, the module's where the board has no such set.

    Where training ends by an exception, whichever it is and wherever it is caught, the clock is put back :data:`WATCH_S` later,
    by a thread that looks whether `train` is still being called; nothing of the Trainer is replaced.

    Attributes:
        run: what governs; None outside of training.
        receipt: of the last training; None before, and on a machine that is no Jetson.
    """

    def __init__(self, **how: Any) -> None:
        from wattune.running.arguments import check_names
        from wattune.running.loop import govern

        check_names(govern, how, "WattuneCallback", without="model")
        asked = govern(**how)  # what is wrong with them is refused now, not when training begins
        self._how = how if asked.governor is None else {**how, "governor": asked.governor}
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self.run: Governed | None = None
        self.receipt: dict[str, Any] | None = None
        self._logged: tuple[Totals | None, int] = (None, 0)
        self._epoch: Totals | None = None
        self._epoch_j: float | None = None

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Events of the Trainer that are of no interest here."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> WattuneCallback:
        """A callback of the same arguments; what runs stays with this one."""
        return _made(self._how)

    def __reduce__(self) -> tuple[Any, ...]:
        return _made, (self._how,)

    def close(self) -> None:
        """Put the clock back, where it is still held; afterwards the receipt is there.

        Raises:
            BoardError: it could not be put back.
        """
        with self._lock:
            run, self.run = self.run, None
            self._ended.set()
            if run is not None:
                self.receipt = run.stop()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin; see :meth:`wattune.running.loop.Governed.start` for what it raises."""
        self.close()
        if not getattr(state, "is_local_process_zero", True):
            return
        handler = sys._getframe(1).f_locals.get("self")
        self._go_first(handler)
        from wattune.running.loop import govern

        steps = getattr(state, "max_steps", 0) - getattr(state, "global_step", 0)
        how = {"steps": steps if steps > 0 and self._how.get("probe") else None, **self._how}
        self.run = govern(kwargs.get("model"), **how)
        self.run.start()
        self._logged, self._epoch, self._epoch_j = (None, 0), None, None
        self._watch(handler)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count."""
        if self.run is not None:
            self.run.step()

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """See what the epoch took."""
        totals = None if self.run is None else self.run.totals()
        if totals is not None:
            before, self._epoch = self._epoch, totals
            self._epoch_j = _less(totals, before, totals.main)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add what is known of the energy."""
        from wattune.running.receipt import per_step

        totals = None if self.run is None else self.run.totals()
        if totals is None or not isinstance(logs, dict) or any(name.startswith("eval_") for name in logs):
            return
        steps = int(getattr(state, "global_step", 0))
        (before, then), self._logged = self._logged, (totals, steps)
        if "train_runtime" in logs and self.run is not None and self.run.session is not None:
            added = {**_entries(totals, None, 0), **_whole(per_step(self.run.session, totals), totals.main)}
        else:
            added = _entries(totals, before, steps - then)
        if self._epoch_j is not None:
            added["energy_epoch_j"], self._epoch_j = self._epoch_j, None
        logs.update(added)
        history = getattr(state, "log_history", None)
        if history:
            history[-1].update(added)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Put the clock back; a clock that cannot be put back is said, for training is done and its result must not be lost."""
        with contextlib.suppress(BoardError):  # the lease has said it, with what to type
            self.close()

    def _go_first(self, handler: Any) -> None:
        """Stand before the callbacks that report, so that what is added to a log reaches them."""
        callbacks = getattr(handler, "callbacks", None)
        if isinstance(callbacks, list) and any(one is self for one in callbacks):
            handler.callbacks = [self, *(one for one in callbacks if one is not self)]

    def _watch(self, handler: Any) -> None:
        """Have the clock put back when the call that trains has ended, however it did."""
        run, thread = self.run, threading.get_ident()
        calls = [
            frame
            for frame in _callers(sys._getframe(1))
            if frame.f_code.co_name in TRAINING
            and getattr(frame.f_locals.get("self"), "callback_handler", None) is handler
        ]
        if run is None or run.session is None or not calls:
            return
        ended = self._ended = threading.Event()

        def watch(call: FrameType) -> None:
            misses = 0
            while misses < MISSES:
                if ended.wait(WATCH_S / MISSES):
                    return
                misses = 0 if _runs(call, thread) else misses + 1
            with self._lock, contextlib.suppress(BoardError):  # the lease has said it, with what to type
                if self.run is run:
                    self.close()

        # no daemon: a program that ends by the exception ends after the clock is back
        threading.Thread(target=watch, args=(calls.pop(),), name="wattune training").start()


def _runs(call: FrameType, thread: int) -> bool:
    """Whether a thread is within a call; not where the program is about to end."""
    inner = sys._current_frames().get(thread)
    return threading.main_thread().is_alive() and any(one is call for one in _callers(inner))


def _callers(frame: FrameType | None) -> Iterator[FrameType]:
    """A call and those around it, from the inside out."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _whole(each: Mapping[str, Any], main: str) -> dict[str, float]:
    """Energy of a step of the whole run, as the receipt has it; nothing for what is unknown."""
    joules = each["energy_j_per_step"]
    found = {"energy_j_per_step": joules[main], "energy_module_j_per_step": joules["module"]}
    return {name: value for name, value in found.items() if value is not None}


def _made(how: Mapping[str, Any]) -> WattuneCallback:
    return WattuneCallback(**how)


def _nothing(*_: Any, **__: Any) -> None:
    return None


def _less(totals: Totals, before: Totals | None, name: str) -> float | None:
    now, then = totals.energy_j[name], 0.0 if before is None else before.energy_j[name]
    return None if now is None or then is None else now - then


def _entries(totals: Totals, before: Totals | None, steps: int) -> dict[str, float]:
    """What a log gets; nothing for what is unknown."""
    main = totals.main
    seconds = totals.duration_s - (0.0 if before is None else before.duration_s)
    spent_j = _less(totals, before, main)
    found: dict[str, float | None] = {"energy_j": totals.energy_j[main]}
    if spent_j is not None and seconds > 0:
        found["power_w"] = spent_j / seconds
    if steps > 0:
        found["energy_j_per_step"] = None if spent_j is None else spent_j / steps
        module_j = _less(totals, before, "module")
        found["energy_module_j_per_step"] = None if module_j is None else module_j / steps
    earlier = {} if before is None else before.clocks_s
    clocks = {float(mhz): s - earlier.get(mhz, 0.0) for mhz, s in totals.clocks_s.items() if mhz != "unknown"}
    known_s = sum(clocks.values())
    if known_s > 0:
        found["gpu_mhz"] = sum(mhz * s for mhz, s in clocks.items()) / known_s
    return {name: value for name, value in found.items() if value is not None}
