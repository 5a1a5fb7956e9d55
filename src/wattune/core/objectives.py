"""Objectives: what is minimised over settings whose energy and time are known or predicted, and under which limit.

An answer always says what it costs in time, and one that cannot be had says so and names the nearest that can.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from wattune.core.curve import Point
from wattune.core.errors import InputError
from wattune.core.numbers import decimal_number
from wattune.core.settings import MAXN, Setting, setting_label, sort_settings

BATTERY = "battery"
OBJECTIVES = ("energy", "edp", "ed2p", "time", BATTERY)
LIMITS = {
    "max_slowdown_pct": ("energy",),
    "max_power_w": ("time",),
    "deadline_s": ("energy",),
    "battery_wh": (BATTERY,),
}
"""Limit -> the objectives it goes with."""

JOULES_PER_WH = 3600.0
_SLACK = 1e-9
"""Relative; a limit met up to rounding is met."""


@dataclass(frozen=True, slots=True)
class Objective:
    """What to minimise.

    Attributes:
        name: one of :data:`OBJECTIVES`.
        max_slowdown_pct: energy, with at most this much more time than the baseline (``maxn`` where it is known, else
            the fastest setting).
        max_power_w: time, with at most this mean power.
        deadline_s: energy, with the whole work done within this time.
        battery_wh: what the battery holds; the setting at which most units of work (epochs) fit into it.

    Raises:
        InputError: an unknown name, a limit that does not go with it, a limit that is no positive number, or a limit
            that the objective needs and does not have.
    """

    name: str = "energy"
    max_slowdown_pct: float | None = None
    max_power_w: float | None = None
    deadline_s: float | None = None
    battery_wh: float | None = None

    def __post_init__(self) -> None:
        if self.name not in OBJECTIVES:
            raise InputError(
                f"There is no objective '{self.name}'.", f"One of {', '.join(OBJECTIVES)} was expected."
            )
        for limit, names in LIMITS.items():
            value = getattr(self, limit)
            if value is None:
                continue
            if self.name not in names:
                raise InputError(
                    f"{limit} does not go with the objective '{self.name}'.",
                    f"It goes with {', '.join(names)}.",
                )
            from_0 = limit == "max_slowdown_pct"
            if not (math.isfinite(value) and (value > 0.0 or (from_0 and value == 0.0))):
                bound = "of at least 0" if from_0 else "above 0"
                raise InputError(f"{limit} is {value:g}.", f"A number {bound} was expected.")
        if self.name == BATTERY and self.battery_wh is None:
            raise InputError(
                "The objective 'battery' needs the battery.",
                "battery_wh, in watt-hours above 0, was expected.",
            )

    @property
    def needs_time(self) -> bool:
        """Whether it can only be answered where times are known."""
        return self.name in ("edp", "ed2p", "time") or self.limited in ("max_slowdown_pct", "deadline_s")

    @property
    def limited(self) -> str | None:
        """The limit that decides what is feasible; None without one (a battery limits the work, not the setting)."""
        given = [limit for limit in LIMITS if limit != "battery_wh" and getattr(self, limit) is not None]
        if len(given) > 1:
            raise InputError(f"{' and '.join(given)} were given.", "One limit was expected.")
        return given[0] if given else None

    @property
    def text(self) -> str:
        """As it is typed: :func:`parse_objective` reads it back."""
        given = [f"{limit}={value:g}" for limit in LIMITS if (value := getattr(self, limit)) is not None]
        return f"{self.name}:{','.join(given)}" if given else self.name

    @property
    def absolute(self) -> str | None:
        """The limit that speaks of joules, seconds or watts and not of a share; None without one."""
        return self.limited if self.limited in ("max_power_w", "deadline_s") else None


ENERGY = Objective()
SYNTAX = "energy, edp, ed2p, time, energy:max_slowdown_pct=10, energy:deadline_s=3600, time:max_power_w=20 or battery:battery_wh=50"


def add_objective_argument(parser: argparse.ArgumentParser, default: str | None = "energy") -> None:
    """Add ``--objective``."""
    parser.add_argument(
        "--objective",
        default=default,
        metavar="NAME[:LIMIT=VALUE]",
        help=f"what is minimised (default: energy): {SYNTAX}",
    )


def parse_objective(text: str) -> Objective:
    """An objective as it is typed: a name, and after a colon its limit, ``energy:max_slowdown_pct=10``.

    Raises:
        InputError: an unknown name or limit, a limit twice, a value that is no number, or a limit that does not go with the name.
    """
    name, colon, rest = text.strip().partition(":")
    limits: dict[str, float] = {}
    for part in rest.split(",") if colon else ():
        limit, equals, value = (piece.strip() for piece in part.partition("="))
        if limit not in LIMITS or not equals or limit in limits:
            raise InputError(
                f"'{part.strip()[:40]}' is no limit of an objective.",
                f"One of {', '.join(LIMITS)}, once, with a value, was expected.",
                f"For example: {SYNTAX}.",
            )
        try:
            limits[limit] = decimal_number(value)
        except ValueError:
            raise InputError(
                f"{limit} is '{value[:40]}'.", "A number was expected.", f"For example: {SYNTAX}."
            ) from None
    try:
        objective = Objective(name, **limits)
        _ = objective.limited  # refuses two limits at once
    except InputError as error:
        raise InputError(error.what, error.expected, f"For example: {SYNTAX}.") from None
    return objective


@dataclass(frozen=True, slots=True)
class Answer:
    """The setting an objective asks for.

    Attributes:
        setting: where the objective is least among the settings that keep the limit; the nearest to the limit where none does.
        energy_j: its energy.
        time_s: its time; None where unknown.
        saving_pct: against the baseline; None without one.
        slowdown_pct: against the baseline; None where a time is unknown.
        baseline: what it is compared with, ``maxn`` or the fastest setting.
        feasible: the limit is kept.
        reason: one sentence where it is not.
        epochs: how many units of work fit into the battery; None without one.
    """

    setting: Setting
    energy_j: float
    time_s: float | None
    saving_pct: float
    slowdown_pct: float | None
    baseline: Setting
    feasible: bool = True
    reason: str = ""
    epochs: float | None = None

    def document(self) -> dict[str, Any]:
        """The JSON shape scripts rely on."""
        return {
            "mhz": self.setting,
            "energy_j": self.energy_j,
            "time_s": self.time_s,
            "saving_pct": self.saving_pct,
            "slowdown_pct": self.slowdown_pct,
            "baseline": self.baseline,
            "feasible": self.feasible,
            "reason": self.reason,
            "epochs": self.epochs,
        }


def baseline_of(points: Mapping[Setting, Point]) -> Setting:
    """``maxn`` where it is known, else the fastest setting (the highest clock where times are unknown)."""
    if MAXN in points:
        return MAXN
    ordered = sort_settings(points)
    timed = {s: t for s in ordered if (t := points[s].time_s) is not None}
    return min(timed, key=lambda s: timed[s]) if len(timed) == len(ordered) else ordered[-1]


def cost_of(objective: Objective, point: Point) -> float:
    """What the objective minimises, at one setting.

    Raises:
        ValueError: it needs a time and there is none.
    """
    if objective.name in ("energy", BATTERY):
        return point.energy_j
    if point.time_s is None:
        raise ValueError(f"the objective '{objective.name}' needs a time")
    if objective.name == "time":
        return point.time_s
    return float(point.energy_j * point.time_s ** (1 if objective.name == "edp" else 2))


def choose(
    points: Mapping[Setting, Point],
    objective: Objective = ENERGY,
    held: Mapping[Setting, Point] | None = None,
) -> Answer:
    """The setting that an objective asks for; ties go to the faster setting.

    Args:
        points: setting -> energy and time of the same work; at least one.
        objective: what is minimised, and the limit.
        held: the energies and times that the limit is held against, where they are other than `points`.

    Raises:
        InputError: no settings, or the objective needs times that are missing.
    """
    if not points:
        raise InputError("There is no setting to choose from.", "At least one was expected.")
    limit = objective.limited
    timeless = [s for s, p in points.items() if p.time_s is None]
    if timeless and (objective.needs_time or limit):
        raise InputError(
            f"The objective '{objective.name}' needs times, and {_named(timeless[0])} has none.",
            "A time at every setting was expected.",
            "Choose the objective energy, or measure times too.",
        )
    held = points if held is None else held
    excess = _excess(held, objective, limit)
    allowed = [s for s in points if excess(s) <= _SLACK]
    if allowed:
        return _answer(points, _least(points, allowed, lambda s: cost_of(objective, points[s])), objective)
    nearest = _least(points, list(points), excess)
    assert limit is not None  # without a limit everything is allowed
    reached = _reached(held, nearest, limit)
    return replace(
        _answer(points, nearest, objective),
        feasible=False,
        reason=f"No setting keeps {limit} = {getattr(objective, limit):g}; the nearest is "
        f"{setting_label(nearest)} with {reached:.4g}.",
    )


def _named(setting: Setting) -> str:
    """A setting with its unit."""
    return setting if isinstance(setting, str) else f"{setting_label(setting)} MHz"


def keeps(points: Mapping[Setting, Point], setting: Setting, objective: Objective) -> bool:
    """Whether a setting keeps the objective's limit; True without one."""
    return _excess(points, objective, objective.limited)(setting) <= _SLACK


def answer_at(points: Mapping[Setting, Point], setting: Setting, objective: Objective = ENERGY) -> Answer:
    """What a setting that somebody else picked means under an objective."""
    answer = _answer(points, setting, objective)
    if keeps(points, setting, objective):
        return answer
    limit = objective.limited or ""
    reached = _reached(points, setting, limit)
    return replace(
        answer,
        feasible=False,
        reason=f"{setting_label(setting)} does not keep {limit} = {getattr(objective, limit):g}: it has {reached:.4g}.",
    )


def scaled(points: Mapping[Setting, Point], unit: Point) -> dict[Setting, Point]:
    """Relative energies and times in the units of `unit`; a time is None where either is."""
    return {
        setting: Point(
            point.energy_j * unit.energy_j,
            None if point.time_s is None or unit.time_s is None else point.time_s * unit.time_s,
        )
        for setting, point in points.items()
    }


def _reached(points: Mapping[Setting, Point], setting: Setting, limit: str) -> float:
    """What a setting reaches of the quantity a limit speaks of."""
    point = points[setting]
    assert point.time_s is not None  # checked by choose()
    if limit == "max_power_w":
        return point.energy_j / point.time_s
    if limit == "deadline_s":
        return point.time_s
    base = points[baseline_of(points)].time_s
    assert base is not None
    return 100.0 * (point.time_s / base - 1.0)


def _excess(
    points: Mapping[Setting, Point], objective: Objective, limit: str | None
) -> Callable[[Setting], float]:
    """How far a setting is beyond the limit, relative; 0 or less where it keeps it."""
    if limit is None:
        return lambda _: 0.0
    bound = float(getattr(objective, limit))
    if limit == "max_slowdown_pct":
        return lambda s: (100.0 + _reached(points, s, limit)) / (100.0 + bound) - 1.0
    return lambda s: _reached(points, s, limit) / bound - 1.0


def _least(
    points: Mapping[Setting, Point], settings: list[Setting], value: Callable[[Setting], float]
) -> Setting:
    def rank(setting: Setting) -> tuple[float, float, float]:
        time_s = points[setting].time_s
        speed = math.inf if isinstance(setting, str) else setting
        return value(setting), math.inf if time_s is None else time_s, -speed

    return min(settings, key=rank)


def _answer(points: Mapping[Setting, Point], setting: Setting, objective: Objective) -> Answer:
    base = baseline_of(points)
    here, there = points[setting], points[base]
    slowdown = None
    if here.time_s is not None and there.time_s is not None:
        slowdown = 100.0 * (here.time_s / there.time_s - 1.0)
    epochs = None if objective.battery_wh is None else objective.battery_wh * JOULES_PER_WH / here.energy_j
    return Answer(
        setting,
        here.energy_j,
        here.time_s,
        100.0 * (1.0 - here.energy_j / there.energy_j),
        slowdown,
        base,
        epochs=epochs,
    )


def pareto_front(points: Mapping[Setting, Point]) -> list[Setting]:
    """The settings that no other beats in both energy and time, fastest first.

    Settings without a time are left out; of settings equal in both, one is kept.
    """
    timed = [(p.time_s, p.energy_j, s) for s in sort_settings(points) if (p := points[s]).time_s is not None]
    front: list[Setting] = []
    least = math.inf
    for _, energy_j, setting in sorted(timed, key=lambda entry: entry[:2]):
        if energy_j < least:
            front.append(setting)
            least = energy_j
    return front
