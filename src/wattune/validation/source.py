"""A published measurement the virtual board is held against."""

from __future__ import annotations

from dataclasses import dataclass, field

from wattune.core.workload import Workload


@dataclass(frozen=True, slots=True)
class Source:
    """A curve over GPU clocks measured by others.

    Attributes:
        name: key in the output, e.g. ``orin_deberta_qnli``.
        board: id of the modelled board it belongs to.
        used_for: ``calibration`` (the board's constants were fitted to it) or ``validation`` (they never saw it).
        quantity: ``energy`` (J) or ``time`` (s) or ``power`` (W).
        rails: rails that `measured` sums; empty for times.
        workload: what ran.
        mhz: GPU clocks, ascending; shape ``(n,)``.
        measured: values at them; shape ``(n,)``.
        steps: training steps (or forward passes) behind one measured value; None where unknown, so that only the shape of
            the curve can be compared.
        power_mode: power mode it was measured in; empty for the board's default.
        shape_sd: relative error we grant the shape of the curve (single runs, model error); weighs it in the calibration.
        level_sd: relative error we grant its level; None where only the shape calibrates.
        citation: where the values were published.
        assumed: what the publication does not say and we assumed.
    """

    name: str
    board: str
    used_for: str
    quantity: str
    rails: tuple[str, ...]
    workload: Workload
    mhz: tuple[float, ...]
    measured: tuple[float, ...]
    steps: float | None
    citation: str
    power_mode: str = ""
    shape_sd: float = 0.01
    level_sd: float | None = None
    assumed: tuple[str, ...] = field(default=())
