"""Which clock to hold: by hand, by a governor that fits the board, for any objective its leaf can answer."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattune.boards.jetson.findings import Findings
from wattune.core.curve import EnergyCurve
from wattune.core.errors import InputError, IntegrityError
from wattune.core.features import FeatureValue
from wattune.core.governor import Governor, parse_governor
from wattune.core.objectives import ENERGY, Objective
from wattune.core.settings import Setting, hz_to_mhz, setting_label
from wattune.io import is_file, read_data
from wattune.profiling.certificate import provenance_of

PLACES = (Path("governor.json"), Path("models/governor.json"))


def check_fits(governor: Governor, findings: Findings, *, simulated_ok: bool = False) -> list[str]:
    """Refuse a governor that is not for this board; returns what should be known of one that is.

    Args:
        governor: a checked one.
        findings: the board.
        simulated_ok: take a governor learnt on a modelled board for a real one.

    Raises:
        IntegrityError: it is for another board, or simulated and the board is real.
    """
    if findings.board is not None and governor.board != findings.board:
        raise IntegrityError(
            f"The governor was made for {governor.board}, and this board is {findings.board}.",
            "A governor of this board was expected: clocks and curves differ from board to board.",
            f"Pull another one, for example `wattune pull models:/wattune-{findings.board}-measured@champion`, or use --probe.",
        )
    if governor.provenance == "simulated" and provenance_of(findings) != "simulated" and not simulated_ok:
        raise IntegrityError(
            "The governor is simulated: it was learnt on a modelled board and has never been held against this one.",
            "A governor learnt from measurements was expected on a real board.",
            "Measure your board (docs/on-a-jetson.md), use --probe, or say --simulated-ok.",
        )
    notes = []
    mode = "unknown" if findings.power_mode is None else findings.power_mode.name
    if governor.power_mode.upper() != mode.upper():
        notes.append(
            f"The governor was learnt in power mode {governor.power_mode}, and the board is in {mode}: no saving is promised."
        )
    return notes


@dataclass(frozen=True, slots=True)
class Choice:
    """A setting and where it comes from.

    Attributes:
        setting: the clock, MHz, or ``maxn``.
        by: ``mhz``, ``governor``, ``probe`` or ``none``.
        rule: in words.
        expected_saving_pct: against ``maxn`` in the governor's power mode; None where unknown. `expected_slowdown_pct` likewise.
        governor: its digest; None without one. `provenance` likewise.
        features: what was known of the workload; `assumed` what was not.
        notes: sentences for people.
        prior: the leaf's mean energies over the clocks, for a probe; None without one, and where they say nothing: of work too far
            outside the training range, and where the leaf itself leaves the clocks alone.
        declined: the governor did not know.
    """

    setting: Setting
    by: str
    rule: str = ""
    objective: str = "energy"
    expected_saving_pct: float | None = None
    expected_slowdown_pct: float | None = None
    governor: str | None = None
    provenance: str | None = None
    features: Mapping[str, FeatureValue] = field(default_factory=dict)
    assumed: Mapping[str, FeatureValue] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    prior: EnergyCurve | None = None
    declined: bool = False

    def document(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "by": self.by, "rule": self.rule, "objective": self.objective, "governor": self.governor,
            "governor_provenance": self.provenance, "features": dict(self.features), "assumed": dict(self.assumed),
            "expected_saving_pct": self.expected_saving_pct, "expected_slowdown_pct": self.expected_slowdown_pct,
        }  # fmt: skip


def check_answerable(objective: Objective) -> None:
    """Refuse what no leaf of a governor can answer.

    Raises:
        InputError: it speaks of joules, watts or seconds.
    """
    if objective.absolute is not None or objective.name == "battery":
        raise InputError(
            f"'{objective.text}' cannot be answered from a governor, which knows relative energies and times only.",
            "energy, edp, ed2p or time, or energy:max_slowdown_pct=P was expected.",
            "Use --probe for a limit in watts or seconds.",
        )


def by_governor(
    governor: Governor,
    findings: Findings,
    given: Mapping[str, FeatureValue],
    assumed: Mapping[str, FeatureValue],
    *,
    objective: Objective = ENERGY,
    simulated_ok: bool = False,
    probes: bool = False,
) -> Choice:
    """What a governor says of a workload on this board.

    Args:
        governor: a checked one.
        findings: the board.
        given: what is known of the workload.
        assumed: of that, what nobody said.
        objective: what is minimised.
        simulated_ok: see :func:`check_fits`.
        probes: a probe follows.

    Raises:
        IntegrityError: see :func:`check_fits`.
        InputError: the objective cannot be answered from a leaf.
    """
    notes = check_fits(governor, findings, simulated_ok=simulated_ok)
    check_answerable(objective)
    decision = governor.decide_for(given, objective)
    setting, saving, slowdown = decision.setting, decision.expected_saving_pct, decision.expected_slowdown_pct
    if decision.limit_reason:
        notes.append(decision.limit_reason)
    if decision.abstained:
        then = "a clock has to be shown to be better" if probes else "the clocks are left alone"
        notes.append(f"The governor declined, {then}: {decision.reason}.")
    if not decision.in_range:
        notes.append(f"Outside what the governor was trained on: {', '.join(decision.out_of_range)}.")
    mode = "unknown" if findings.power_mode is None else findings.power_mode.name
    if governor.power_mode.upper() != mode.upper():
        saving = slowdown = None
    usable = [hz_to_mhz(hz) for hz in findings.gpu.usable_hz] if findings.gpu is not None else []
    if not isinstance(setting, str) and usable and setting > max(usable) * 1.005:
        notes.append(
            f"{setting_label(setting)} MHz lies above the cap of the power mode, so the highest clock below it is taken:"
            f" {setting_label(max(usable))} MHz."
        )
        setting, saving, slowdown = max(usable), None, None
    every = dict(assumed) | decision.assumed
    wanted = {feature.name for feature in governor.features}
    return Choice(
        setting=setting,
        by="governor",
        rule=decision.rule,
        objective=objective.text,
        expected_saving_pct=saving,
        expected_slowdown_pct=slowdown,
        governor=governor.digest,
        provenance=governor.provenance,
        features=dict(given),
        assumed={name: value for name, value in every.items() if name in wanted},
        notes=tuple(notes),
        prior=governor.prior(given) if decision.abstained or not isinstance(setting, str) else None,
        declined=decision.abstained,
    )


def clock_of(setting: Setting) -> float | None:
    """A setting's clock in MHz; None for ``maxn``."""
    return None if isinstance(setting, str) else setting


def load_governor(where: str) -> Governor:
    """A governor by path, or by address from a registry, with every check of its file.

    Raises:
        InputError: it is not there.
        BoardError: the registry cannot be reached.
        IntegrityError: it is damaged.
    """
    if not where or ":/" in where or where.startswith("models:"):
        from wattune.tracking.pull import pull

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "governor.json"
            pull(where, path)
            return parse_governor(path.read_bytes())
    return parse_governor(
        read_data(Path(where), "The governor file", "Fetch one with `wattune pull` or `make repro`.")
    )


def default_governor() -> str | None:
    """A governor file here: ``governor.json``, as `wattune pull` writes it, or ``models/governor.json``; None where there is none."""
    return next((str(path) for path in PLACES if is_file(path)), None)
