"""Our own reading beside that of jtop's service (jetson-stats), where it runs: a cross-check, never a source.

jetson-stats is optional (extra ``jetson``). Its client is imported only here and only when asked, its command line never
started; whatever it raises, or however long it hangs, becomes a reason. Its fields come and go with its versions, so each
is looked for and none is relied on.
"""

from __future__ import annotations

import importlib
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wattune.boards.jetson.findings import Findings

TRIES = 3
"""How often a refused connection is tried; the service may be starting."""

RETRY_S = 0.5
OFF_C = -100.0
"""Colder than any sensor: jtop gives -256 for one that is off."""


@dataclass(frozen=True, slots=True)
class Readings:
    """Our own reading of the moment; None where unknown.

    Attributes:
        rails_w: supply -> watts.
        gpu_mhz: clock of the GPU, MHz.
        gpu_util_pct: its load, percent.
        temps_c: zone (lower case) -> degrees Celsius.
    """

    rails_w: Mapping[str, float | None] = field(default_factory=dict)
    gpu_mhz: float | None = None
    gpu_util_pct: float | None = None
    temps_c: Mapping[str, float | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seen:
    """What jtop's client showed.

    Attributes:
        values: its ``gpu``, ``power`` and ``temperature`` as it gave them.
        version: of the client; None where it does not say.
        reasons: property -> why it could not be had.
    """

    values: Mapping[str, Any]
    version: str | None
    reasons: Mapping[str, str]


class JtopUnavailableError(Exception):
    """jtop showed nothing; the text says why and what to do."""

    def __init__(self, reason: str, version: str | None = None) -> None:
        super().__init__(reason)
        self.version = version


def ask_jtop(*, timeout_s: float = 10.0, interval_s: float = 1.0) -> Seen:
    """One reading of jtop's service.

    The service has one interval for all its clients, which the first of them sets: ask while nobody measures with it.

    Args:
        timeout_s: give up after this time.
        interval_s: interval asked for, seconds.

    Raises:
        JtopUnavailableError: not installed, no service, no permission, other versions, no answer in time.
    """
    done: list[Seen] = []
    failed: list[JtopUnavailableError] = []

    def work() -> None:
        try:
            done.append(_ask(interval_s, time.monotonic() + timeout_s))
        except JtopUnavailableError as error:
            failed.append(error)

    thread = threading.Thread(target=work, daemon=True, name="jtop")
    thread.start()
    thread.join(timeout_s)
    if failed:
        raise failed[0]
    if not done:
        raise JtopUnavailableError(f"jtop's service did not answer within {timeout_s:g} s")
    return done[0]


def cross_check(
    findings: Findings, readings: Readings, *, ask: Callable[[], Seen] = ask_jtop
) -> dict[str, Any]:
    """Compare our reading with jtop's; never fails.

    Both are of almost the same moment, not of the same: under a changing load they differ by what the load did meanwhile.

    Args:
        findings: the board; under another root than the machine's own jtop is not asked.
        readings: our reading.
        ask: reads jtop.

    Returns:
        ``available``, ``reason`` (why not), ``version`` of the client, ``rails_w``, ``gpu_mhz``, ``gpu_util_pct`` and ``temps_c``
        with ``{"ours", "jtop", "difference"}`` (jtop less ours; None where either is unknown), ``unknown`` (what jtop did not
        show, and why) and ``notes``.
    """
    if not findings.sysfs.is_machine:
        return _nothing("jtop reads the machine it runs on, not the tree given with --root", None)
    try:
        seen = ask()
    except JtopUnavailableError as error:
        return _nothing(str(error), error.version)
    unknown, notes = dict(seen.reasons), list[str]()
    rails = _rails(seen.values.get("power"), unknown)
    mhz, util = _gpu(seen.values.get("gpu"), findings, readings.gpu_mhz, unknown, notes)
    temps = _temperatures(seen.values.get("temperature"), unknown)
    return {
        "available": True,
        "reason": None,
        "version": seen.version,
        "rails_w": {
            name: _pair(readings.rails_w.get(name), rails.get(name))
            for name in dict.fromkeys([*readings.rails_w, *rails])
        },
        "gpu_mhz": _pair(readings.gpu_mhz, mhz),
        "gpu_util_pct": _pair(readings.gpu_util_pct, util),
        "temps_c": {
            zone: _pair(readings.temps_c.get(zone), temps.get(zone))
            for zone in dict.fromkeys([*readings.temps_c, *temps])
        },
        "unknown": unknown,
        "notes": notes,
    }


def _nothing(reason: str, version: str | None) -> dict[str, Any]:
    empty = _pair(None, None)
    return {
        "available": False,
        "reason": reason,
        "version": version,
        "rails_w": {},
        "gpu_mhz": empty,
        "gpu_util_pct": empty,
        "temps_c": {},
        "unknown": {},
        "notes": [],
    }


def _pair(ours: float | None, theirs: float | None) -> dict[str, float | None]:
    difference = None if ours is None or theirs is None else theirs - ours
    return {"ours": ours, "jtop": theirs, "difference": difference}


# --- asking ---------------------------------------------------------------------------------------------------------


def _ask(interval_s: float, deadline_s: float) -> Seen:
    client, version = _client()
    answer = _once(client, interval_s, version)
    for _ in range(TRIES - 1):
        if isinstance(answer, Seen) or not _may_pass(answer) or time.monotonic() + RETRY_S >= deadline_s:
            break
        time.sleep(RETRY_S)
        answer = _once(client, interval_s, version)
    if isinstance(answer, Seen):
        return answer
    raise JtopUnavailableError(_why(answer), version)


def _client() -> tuple[Any, str | None]:
    """The client's class and its version."""
    try:
        module: Any = importlib.import_module("jtop")
        client = module.jtop
    except ImportError as error:
        raise JtopUnavailableError(
            f"jetson-stats is not installed ({_text(error)}); `pip install 'wattune[jetson]'` does that"
        ) from None
    except (Exception, SystemExit) as error:  # noqa: BLE001  # an old release fails on import in many ways
        raise JtopUnavailableError(f"jetson-stats cannot be imported: {_text(error)}") from None
    told = getattr(module, "__version__", None)
    return client, told if isinstance(told, str) else None


def _once(client: Any, interval_s: float, version: str | None) -> Seen | BaseException:
    """What one connection shows, or what went wrong with it."""
    seen: Seen | None = None
    try:
        with client(interval=interval_s) as board:
            if not board.ok():
                return EOFError("jtop's service sent nothing")
            seen = _look(board, version)
    except (Exception, SystemExit) as error:  # noqa: BLE001  # the service may be anything, of any version
        if seen is None:
            return error
    # Hanging up may fail too; what was seen before stands.
    return seen if seen is not None else EOFError("jtop's service sent nothing")


def _look(board: Any, version: str | None) -> Seen:
    """Its properties, each for itself: one that fails must not take the others with it."""
    values: dict[str, Any] = {}
    reasons: dict[str, str] = {}

    def look(name: str) -> None:
        try:
            values[name] = _plain(getattr(board, name))
        except Exception as error:  # noqa: BLE001  # another version may fail with anything
            reasons[name] = f"jtop failed on it: {_text(error)}"

    for name in ("power", "gpu", "temperature"):
        look(name)
    return Seen(values, version, reasons)


def _may_pass(error: BaseException) -> bool:
    """Whether trying again may help: a broken connection, not a missing service or a wrong version."""
    return isinstance(error, (ConnectionError, EOFError)) or "connection" in _text(error).lower()


def _why(error: BaseException) -> str:
    text = _text(error)
    low = text.lower()
    if isinstance(error, FileNotFoundError) or "not active" in low:
        return (
            f"jtop's service was not reached ({text}); start it with `sudo systemctl start jtop`,"
            " in a container give `-v /run/jtop.sock:/run/jtop.sock`"
        )
    if isinstance(error, PermissionError) or "access jtop" in low:
        return (
            f"jtop's service may not be read ({text}); join its group with `sudo usermod -aG jtop $USER` and log in again,"
            " in a container give `--group-add` with the number of that group"
        )
    if "mismatch" in low:
        return f"jtop's client and service do not fit ({text}); install the same version of jetson-stats on both sides"
    if isinstance(error, KeyError):
        return f"jtop's client did not find {text}; its service is probably of another version"
    return f"jtop failed: {text}"


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


# --- reading what it said -------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """A copy that stays as it is; some of the client's properties are objects that only behave like a dict."""
    return dict(value) if not isinstance(value, Mapping) and hasattr(value, "keys") else value


def _number(value: object) -> float | None:
    """A finite number, else None; jtop mixes in texts and truth values."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if abs(value) < 1e15 else None


def _mapping(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _rails(power: object, unknown: dict[str, str]) -> dict[str, float | None]:
    """Watts by supply, from milliwatts. jtop's ``avg`` is no average and its ``tot`` may count a supply twice: both unused."""
    rails: dict[str, float | None] = {}
    for name, entry in _mapping(_mapping(power).get("rail")).items():
        online = _mapping(entry).get("online", True)
        milliwatts = _number(_mapping(entry).get("power")) if online else None
        rails[str(name)] = None if milliwatts is None else milliwatts / 1000.0
        if milliwatts is None:
            unknown[f"rails_w.{name}"] = "jtop shows no power for it"
    if not rails:
        unknown.setdefault("power", "jtop shows no rails")
    return rails


def _gpu(
    gpu: object, findings: Findings, ours_mhz: float | None, unknown: dict[str, str], notes: list[str]
) -> tuple[float | None, float | None]:
    """Clock in MHz and load in percent of the GPU that is ours."""
    entries = {str(name): entry for name, entry in _mapping(gpu).items() if isinstance(entry, Mapping)}
    if not entries:
        unknown.setdefault("gpu", "jtop shows no GPU")
        return None, None
    node = "" if findings.gpu is None else findings.gpu.path.rpartition("/")[2]
    name = next((n for n in entries if n and (n == node or n in node.split("."))), next(iter(entries)))
    if len(entries) > 1:
        notes.append(f"jtop shows the GPUs {', '.join(entries)}; {name} was compared")
    entry = entries[name]
    kilohertz = _number(_mapping(entry.get("freq")).get("cur"))
    util = _number(_mapping(entry.get("status")).get("load"))
    if kilohertz is None:
        unknown["gpu_mhz"] = "jtop shows no clock"
    if util is None:
        unknown["gpu_util_pct"] = "jtop shows no load"
    mhz = None if kilohertz is None else kilohertz / 1000.0
    if mhz is not None and ours_mhz and mhz > 0:
        for factor in (1000.0, 0.001):
            if abs(mhz * factor / ours_mhz - 1) < 0.02:
                notes.append(
                    f"jtop's clock is off by a factor of {1 / factor:g}, a known fault of some versions"
                )
                mhz *= factor
                break
    return mhz, util


def _temperatures(temperature: object, unknown: dict[str, str]) -> dict[str, float | None]:
    zones: dict[str, float | None] = {}
    for name, entry in _mapping(temperature).items():
        celsius = _number(entry.get("temp")) if isinstance(entry, Mapping) else _number(entry)
        online = _mapping(entry).get("online", True)
        zone = re.sub("-therm(al)?$", "", str(name).lower())
        zones[zone] = celsius if online and celsius is not None and celsius > OFF_C else None
    if not zones:
        unknown.setdefault("temperature", "jtop shows no temperatures")
    return zones
