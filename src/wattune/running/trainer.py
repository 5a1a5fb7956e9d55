"""A callback for transformers' Trainer: its clock governed, its energy in its log.

    trainer = Trainer(..., callbacks=[WattuneCallback(probe=True)])

It imports nothing of transformers (the Trainer calls its callbacks by name), and what governs only when one is made: scripts that
import it pay nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from wattune.core.errors import BoardError

if TYPE_CHECKING:
    from wattune.running.account import Totals
    from wattune.running.loop import Governed


class WattuneCallback:
    """Governs and measures a Trainer's training; takes the arguments of :func:`wattune.govern`, the model apart.

    What it adds to the Trainer's log, hence to MLflow, TensorBoard or W&B: ``energy_j`` (since the beginning), ``energy_j_per_step``,
    ``power_w`` and ``gpu_mhz`` (since the last entry), ``energy_module_j_per_step``, and at the first entry after an epoch's end
    ``energy_epoch_j``. What is unknown is left out. Energies are of ``gpu_cpu``, the module's where the board has no such set.

    Attributes:
        run: what governs; None outside of training.
        receipt: of the last training; None before, and on a machine that is no Jetson.
    """

    def __init__(self, **how: Any) -> None:
        from wattune.running.loop import govern

        govern(**how)  # bad arguments are refused now, not when training begins
        self._how = how
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

    def close(self) -> None:
        """Put the clock back, where training ended by an exception.

        Raises:
            BoardError: it could not be put back.
        """
        run, self.run = self.run, None
        if run is not None:
            self.receipt = run.stop()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin; see :meth:`wattune.running.loop.Governed.start` for what it raises."""
        self.close()
        if not getattr(state, "is_local_process_zero", True):
            return
        self._go_first()
        from wattune.running.loop import govern

        steps = getattr(state, "max_steps", 0) - getattr(state, "global_step", 0)
        how = {"steps": steps if steps > 0 else None, **self._how}
        self.run = govern(kwargs.get("model"), **how)
        self.run.start()
        self._logged, self._epoch, self._epoch_j = (None, 0), None, None

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
        totals = None if self.run is None else self.run.totals()
        if totals is None or not isinstance(logs, dict) or any(name.startswith("eval_") for name in logs):
            return
        steps = int(getattr(state, "global_step", 0))
        (before, then), self._logged = self._logged, (totals, steps)
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

    def _go_first(self) -> None:
        """Stand before the callbacks that report, so that what is added to a log reaches them."""
        handler = sys._getframe(2).f_locals.get("self")
        callbacks = getattr(handler, "callbacks", None)
        if handler is not None and isinstance(callbacks, list) and any(one is self for one in callbacks):
            handler.callbacks = [self, *(one for one in callbacks if one is not self)]


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
