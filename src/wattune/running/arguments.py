"""What a training script asks for, checked before anything is trained: what no machine could do first, then what this board cannot."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any

from wattune.boards.jetson.findings import Findings
from wattune.core.errors import InputError
from wattune.core.features import is_number, shown
from wattune.core.governor import Governor
from wattune.core.objectives import ENERGY, Objective, parse_objective
from wattune.governing.lease import match_clock
from wattune.running.choosing import check_answerable, check_fits, default_governor, load_governor
from wattune.running.describe import model_features
from wattune.running.probing import WINDOW_S

PROBE_WINDOW_S = (0.2, 600.0)
"""Shortest and longest window of a probe, seconds."""


def check_names(function: Callable[..., Any], given: Mapping[str, Any], who: str, *, without: str) -> None:
    """Refuse arguments that a function does not take.

    Args:
        function: takes keywords.
        given: what somebody gives it.
        who: what it is called.
        without: an argument that is not theirs to give.

    Raises:
        InputError: the first one that is not known.
    """
    known = [name for name in inspect.signature(function).parameters if name != without]
    for name in given:
        if name not in known:
            raise InputError(f"{who} has no argument '{name}'.", f"It knows {', '.join(known)}.")


def check_kinds(model: object, **flags: object) -> None:
    """Refuse what is of another kind than it has to be.

    Args:
        model: what is trained, or None.
        flags: what is either true or false.

    Raises:
        InputError: a flag that is neither, a model that tells nothing.
    """
    for name, value in flags.items():
        if not isinstance(value, bool):
            raise InputError(f"{name} is {shown(value)}.", "True or False was expected.")
    if model is None or hasattr(model, "config") or callable(getattr(model, "parameters", None)):
        return
    if not model_features(model):
        raise InputError(
            f"model is {shown(model)}, which has neither a configuration nor parameters.",
            "What is trained was expected: a module of torch, or a model of transformers.",
            "Leave it out, and name its features: features={'layers': 12}.",
        )


def check_alone(
    *, objective: object, governor: object, mhz: object, probe: bool, steps: object, probe_window_s: object
) -> Objective:
    """What is wrong whatever the machine is; see :func:`wattune.govern` for the arguments.

    Returns:
        The objective.

    Raises:
        InputError: arguments that exclude each other, or a value that is none.
    """
    if mhz is not None and (probe or governor is not None):
        raise InputError(
            f"mhz was given beside {'probe' if probe else 'governor'}.",
            "One of them was expected.",
            "Leave mhz out to have a clock chosen.",
        )
    if mhz is not None and (not is_number(mhz) or mhz <= 0):
        raise InputError(f"mhz is {mhz!r}.", "A number of MHz was expected.", "For example mhz=612.")
    if steps is not None and (not isinstance(steps, Integral) or isinstance(steps, bool) or int(steps) < 1):
        raise InputError(f"steps is {steps!r}.", "A number of steps from 1 on was expected.")
    shortest, longest = PROBE_WINDOW_S
    if not is_number(probe_window_s) or not shortest <= probe_window_s <= longest:
        raise InputError(
            f"probe_window_s is {probe_window_s!r}.",
            f"Seconds from {shortest:g} to {longest:g} were expected.",
        )
    if governor is not None:
        if not isinstance(governor, (str, Path, Governor)) or not str(governor):
            raise InputError(f"governor is {governor!r}.", "A file or an address was expected.")
        if str(governor).startswith("models:"):
            from wattune.tracking.pull import check_address

            check_address(str(governor))
    if not isinstance(objective, str):
        raise InputError(f"objective is {objective!r}.", "Text was expected.", "For example 'energy'.")
    parsed = parse_objective(objective)
    if probe:
        check_probed(parsed)
    elif mhz is None:
        check_answerable(parsed)
    probing = {"steps": steps is not None, "probe_window_s": probe_window_s != WINDOW_S}
    way, unused = "a governor", {} if probe else probing
    if mhz is not None:
        way, unused = "mhz", {**probing, "objective": parsed != ENERGY}
    for name, given in unused.items():
        if given:
            raise InputError(
                f"{name} was given, and {way} does not look at it.",
                "Arguments that change something were expected.",
                f"Leave {name} out" + (", or say probe=True." if name in probing else ", or leave mhz out."),
            )
    return parsed


def check_probed(objective: Objective) -> None:
    """Refuse what single steps cannot answer.

    Raises:
        InputError: it speaks of a whole run.
    """
    if objective.name == "battery" or objective.limited == "deadline_s":
        raise InputError(
            f"The objective '{objective.text}' speaks of a whole run, and a probe knows single steps.",
            "energy, edp, ed2p, time, or a limit on slowdown or power was expected.",
        )


def check_on(
    findings: Findings,
    *,
    governor: str | Path | Governor | None,
    mhz: float | None,
    probe: bool,
    simulated_ok: bool,
) -> Governor | None:
    """What is wrong on this board, as far as it is known before there is a model.

    Args:
        findings: a Jetson.
        governor: as given; `mhz`, `probe` and `simulated_ok` likewise.
        mhz: see `governor`.
        probe: see `governor`.
        simulated_ok: see `governor`.

    Returns:
        The governor that is to be asked, checked; None where none is.

    Raises:
        InputError: no clock of this board, no governor.
        BoardError: the registry cannot be reached.
        IntegrityError: a governor that is damaged, for another board, or simulated on a real one.
    """
    if mhz is not None:
        if findings.gpu is not None:
            match_clock(mhz, findings.gpu.table_hz, 0)
        return None
    where = governor if governor is not None or probe else default_governor()
    if where is None and probe:
        return None
    if where is None:
        raise InputError(
            "Nothing says which clock to take.",
            "governor=, mhz=, probe=True, or a governor.json in the working directory was expected.",
            "Fetch one with `wattune pull`.",
        )
    loaded = where if isinstance(where, Governor) else load_governor(str(where))
    check_fits(loaded, findings, simulated_ok=simulated_ok)
    return loaded
