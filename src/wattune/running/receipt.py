"""What a governed run cost, what was expected of it, and what it rests on: one document, and a few lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from wattune.core.errors import InputError
from wattune.core.features import is_number
from wattune.core.settings import MAXN, Setting, setting_label
from wattune.io import read_json, sha256_of
from wattune.profiling.windows import SHORT_S
from wattune.running.account import SETS, Totals
from wattune.running.choosing import Choice
from wattune.running.probing import ProbeTask
from wattune.running.session import Session
from wattune.terminal import Block, Column, Table, figures, rendered

SCHEMA_VERSION = 1


def read_baseline(path: Path) -> dict[str, Any]:
    """The receipt of an earlier run with the clocks left alone.

    Raises:
        InputError: missing, no receipt, damaged, of a run that failed, or of one whose clocks were not free.
    """
    document = read_json(path, "The baseline")
    good = (
        isinstance(document, dict)
        and isinstance(document.get("energy_j"), dict)
        and document.get("duration_s")
    )
    if not good:
        raise InputError(
            f"{path} is no receipt of `wattune run`.",
            "What `wattune run --mhz maxn --json FILE -- COMMAND` keeps was expected.",
            "Make one so.",
        )
    if document.get("setting") != MAXN or document.get("lowered"):
        raise InputError(
            f"{path} is the receipt of a run whose clock was held ({document.get('setting')} MHz).",
            "A baseline has its clocks left alone.",
            "Make one with `wattune run --mhz maxn --json FILE -- COMMAND`.",
        )
    for what in _damage(document):
        raise InputError(
            f"{path} is a damaged receipt: {what}.",
            "What `wattune run --mhz maxn --json FILE -- COMMAND` keeps was expected.",
            "Make it anew, and change nothing in it.",
        )
    if all(document["energy_j"][name] is None for name in SETS):
        raise InputError(
            f"{path} is the receipt of a run whose energy is unknown.",
            "A baseline whose energy was measured was expected.",
            "Its `unknown` says why; make it anew with `wattune run --mhz maxn --json FILE -- COMMAND`.",
        )
    if document.get("exit_code"):
        raise InputError(
            f"{path} is the receipt of a command that ended with exit code {document['exit_code']}.",
            "A baseline of a run that was finished was expected.",
            "Make one with `wattune run --mhz maxn --json FILE -- COMMAND`.",
        )
    if reasons := list(dict.fromkeys(_not_free(document["certificates"]))):
        raise InputError(
            f"{path} is the receipt of a run whose clocks were not seen to be free. {' '.join(reasons)}",
            "A baseline has its clocks left alone by everybody.",
            "See `wattune doctor` for who holds them, then make it anew with `wattune run --mhz maxn --json FILE -- COMMAND`.",
        )
    return dict(document)


def _damage(document: Mapping[str, Any]) -> Iterator[str]:
    """What cannot be in a receipt, in a few words each."""
    if document.get("schema_version") != SCHEMA_VERSION:
        yield f"schema_version is {document.get('schema_version')!r}, not {SCHEMA_VERSION}"
    numbers = {"duration_s": document["duration_s"], "time_s_per_step": document.get("time_s_per_step")}
    for group in ("energy_j", "energy_j_per_step"):
        values = document.get(group)
        if not isinstance(values, dict) or not set(SETS) <= set(values):
            yield f"{group} is {values!r:.40}"
            return
        numbers |= {f"{group}.{name}": values[name] for name in SETS}
    for name, value in numbers.items():
        if value is not None and not _above_zero(value):
            yield f"{name} is {value!r:.40}"
    code, certificates = document.get("exit_code"), document.get("certificates")
    if code is not None and type(code) is not int:
        yield f"exit_code is {code!r:.40}"
    if not isinstance(certificates, list) or not all(isinstance(one, dict) for one in certificates):
        yield "it has no certificates"
    elif document.get("certificate") != (sha256_of(certificates) if certificates else None):
        yield "its certificates are not those that its digest is of"


def _above_zero(value: object) -> bool:
    return is_number(value) and value > 0


def _not_free(certificates: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Why the clocks were not free, by the verdicts of a run's parts; nothing where all say that they were."""
    if not certificates:
        yield "Nothing was measured."
    for one in certificates:
        verdict = one.get("baseline")
        if not isinstance(verdict, dict):
            yield "Its certificates do not judge them."
        elif verdict.get("accepted") is not True:
            yield from map(str, verdict.get("reasons") or ["Its certificate refuses it."])


def build_receipt(
    session: Session,
    totals: Totals | None,
    choice: Choice,
    *,
    command: Sequence[str] | None = None,
    exit_code: int | None = None,
    duration_s: float | None = None,
    probe: ProbeTask | None = None,
    baseline: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The document.

    Args:
        session: ended.
        totals: what was spent; None where nothing was measured.
        choice: where the clock came from.
        command: what ran, and `exit_code` what it ended with; None where it was no command.
        exit_code: see `command`.
        duration_s: how long it ran, where the meter does not say.
        probe: what was probed; None without.
        baseline: see :func:`read_baseline`.
        notes: sentences that go first.
    """
    found = session.findings
    steps = session.steps.done
    seconds = totals.duration_s if totals is not None else duration_s
    energy = totals.energy_j if totals is not None else dict.fromkeys(SETS)
    bound = totals.bound_j if totals is not None else dict.fromkeys(SETS)
    power = totals.mean_power_w if totals is not None else dict.fromkeys(SETS)
    certificates = session.account.certificates if session.account is not None else []
    pins = session.pins()
    each = per_step(session, totals)
    measured = totals is not None and any(energy[name] is not None for name in SETS)
    unknown = dict(totals.reasons) if totals is not None else dict.fromkeys(SETS, "nothing was measured")
    if totals is None:
        unknown["provenance"] = "nothing was measured"
    said = [*notes, *session.notes]
    if not pins and certificates and (why := list(dict.fromkeys(_not_free(certificates)))):
        said.append(
            f"The clocks were left alone, but were not seen to be free: this is no baseline. {' '.join(why)}"
        )
    setting, chosen = _decided(session, choice, probe)
    document = {
        "schema_version": SCHEMA_VERSION,
        "provenance": None if totals is None else session.provenance,
        "board": found.board,
        "power_mode": None if found.power_mode is None else found.power_mode.name,
        "command": None if command is None else list(command),
        "exit_code": exit_code,
        "setting": setting,
        **chosen,
        "duration_s": _round(seconds),
        "steps": steps,
        "steps_from": session.steps.source if steps else None,
        "energy_j": {name: _round(energy[name]) for name in SETS},
        "bound_j": {name: _round(bound[name]) for name in SETS},
        "mean_power_w": {name: _round(power[name]) for name in SETS},
        **each,
        "unknown": unknown,
        "confidence": None if not measured else "low" if (seconds or 0.0) < SHORT_S else "usual",
        "gpu_mhz_mean": None if totals is None else _round(totals.mhz_mean, 1),
        "seconds_at_mhz": {}
        if totals is None
        else {name: _round(s, 3) for name, s in totals.clocks_s.items()},
        "gpu_util_pct": None if totals is None else _round(totals.util_pct, 1),
        "throttling": {
            "cooling_state_max": {} if totals is None else totals.cooling_max,
            "over_current_events": {} if totals is None else totals.events,
        },
        "lowered": session.lowered,
        "measured_saving_pct": None,
        "measured_slowdown_pct": None,
        "measured_against": None,
        "pins": pins,
        "restored": all(pin["restored"] for pin in pins) if pins else None,
        "probe": None
        if probe is None or probe.probe is None
        else probe.probe.document() | {"gave_up": probe.gave_up or None},
        "certificate": sha256_of(certificates) if certificates else None,
        "certificates": certificates,
        "notes": said,
    }
    _against(document, baseline, probe, totals)
    return document


def _decided(session: Session, choice: Choice, probe: ProbeTask | None) -> tuple[Setting, dict[str, Any]]:
    """The setting that was chosen and where it came from; a clock on which something was only tried is no choice."""
    chosen = choice.document()
    if session.undecided:
        return MAXN, {**chosen, "by": "none", "rule": f"undecided: {session.undecided}"}
    if probe is not None and probe.gave_up:
        held = not isinstance(session.setting, str)
        rule = (
            "the probe was given up, and the governor's clock held"
            if held
            else "undecided: the probe was given up"
        )
        return session.setting, {**chosen, "by": "governor" if held else "none", "rule": rule}
    return session.setting, chosen


def per_step(session: Session, totals: Totals | None) -> dict[str, Any]:
    """Energy and time of a step: from the first one that was seen finished to the end, without what came before it."""
    steps, first = session.steps.done, session.first
    energy: dict[str, float | None] = dict.fromkeys(SETS)
    found: dict[str, Any] = {
        "energy_j_per_step": energy, "time_s_per_step": None, "per_step_over": None, "per_step_unknown": None,
    }  # fmt: skip
    if totals is None or first is None:
        found["per_step_unknown"] = "nothing was measured" if totals is None else "no steps were counted"
        return found
    before, then = first
    counted = (steps or 0) - then
    if counted < 1:
        found["per_step_unknown"] = f"all {then} steps were seen finished at once"
        return found
    for name in SETS:
        at, after = before.energy_j[name], totals.energy_j[name]
        energy[name] = None if at is None or after is None else _round((after - at) / counted, 6)
    found["time_s_per_step"] = _round((totals.duration_s - before.duration_s) / counted, 6)
    found["per_step_over"] = {"steps": counted, "from_s": _round(before.duration_s, 3)}
    return found


def _against(
    document: dict[str, Any], baseline: dict[str, Any] | None, probe: ProbeTask | None, totals: Totals | None
) -> None:
    """Fill in the measured saving, where there is something to measure it against."""
    steps = document["steps"]
    if baseline is not None and totals is not None:
        name = "gpu_cpu" if document["energy_j"]["gpu_cpu"] is not None else "module"
        ours, theirs = document["energy_j"][name], baseline["energy_j"].get(name)
        if ours is None or theirs is None:
            document["notes"].append(
                f"The energy of one of the two runs is unknown ({name}): no saving is given."
            )
            return
        each = (document["energy_j_per_step"][name], (baseline.get("energy_j_per_step") or {}).get(name))
        times = (document["time_s_per_step"], baseline.get("time_s_per_step"))
        by_step = all((*each, *times))
        if not by_step and document["exit_code"]:
            document["notes"].append(
                f"The command ended with exit code {document['exit_code']}, and steps were not counted in both: no saving is given."
            )
            return
        if not by_step and baseline.get("command") != document["command"]:
            document["notes"].append(
                "The baseline ran another command, and steps were not counted in both: no saving is given."
            )
            return
        if baseline.get("board") != document["board"] or baseline.get("power_mode") != document["power_mode"]:
            document["notes"].append(
                "The baseline was taken on another board or in another power mode: no saving is given."
            )
            return
        if baseline.get("provenance") != document["provenance"]:
            document["notes"].append(
                f"The baseline is {baseline.get('provenance')}, and this run {document['provenance']}: no saving is given."
            )
            return
        if not by_step:
            each, times = (ours, theirs), (document["duration_s"], baseline["duration_s"])
        document["measured_saving_pct"] = _round(100 * (1 - each[0] / each[1]), 2)
        document["measured_slowdown_pct"] = _round(100 * (times[0] / times[1] - 1), 2)
        document["measured_against"] = (
            f"a run with the clocks left alone, {'by step' if by_step else 'as a whole'} ({name})"
        )
        return
    if (
        probe is None
        or probe.held_from is None
        or probe.probe is None
        or probe.probe.baseline is None
        or totals is None
    ):
        return
    before, done = probe.held_from
    name, base = totals.main, probe.probe.baseline
    held_steps = (steps or 0) - done
    after, at = totals.energy_j[name], before.energy_j[name]
    if held_steps < 1 or after is None or at is None:
        return
    document["measured_saving_pct"] = _round(100 * (1 - (after - at) / held_steps / base.energy_j), 2)
    document["measured_slowdown_pct"] = _round(
        100 * ((totals.duration_s - before.duration_s) / held_steps / base.time_s - 1), 2
    )
    document["measured_against"] = (
        f"the window of {base.window_s:.1f} s before the clock was held, by step ({name})"
    )


def _round(value: float | None, digits: int = 4) -> float | None:
    return None if value is None else round(value, digits)


def for_people(d: dict[str, Any], stream: TextIO) -> str:
    """A receipt as that stream shows it."""
    return rendered(_blocks(d), stream) or text_of(d)


def text_of(d: dict[str, Any]) -> str:
    """A receipt for people, as plain text."""
    facts = [*_how(d), *((name, _energy(d, name)) for name in SETS), *_outcome(d)]
    return "\n".join([_heading(d), *(f"{name:<11} {text}" for name, text in facts)])


def _heading(d: dict[str, Any]) -> str:
    return f"{d['board'] or 'unknown board'}, power mode {d['power_mode'] or 'unknown'}, {d['provenance'] or 'nothing measured'}"


def _how(d: dict[str, Any]) -> list[tuple[str, str]]:
    """Which clock, why, and how long."""
    if isinstance(d["setting"], str) and not d["pins"]:
        clock = "left alone"
    else:
        clock = (
            "undecided, left alone at last"
            if d["by"] == "none"
            else "left alone at last"
            if isinstance(d["setting"], str)
            else f"{setting_label(d['setting'])} MHz"
        )
        last = d["pins"][-1] if d["pins"] else None
        if last is not None:
            clock += f", {'verified' if last['verified'] else 'unverified'}: {last['why']}; {last['outcome_text'] or 'not restored'}"
    steps = f", {d['steps']} steps (from the {d['steps_from']})" if d["steps"] else ""
    mean = "" if d["gpu_mhz_mean"] is None else f", mean clock {d['gpu_mhz_mean']:g} MHz"
    seconds = "unknown" if d["duration_s"] is None else format(d["duration_s"], ".2f") + " s"
    return [
        ("clock", clock),
        *([("chosen by", f"{d['by']}: {d['rule']}")] if d["rule"] else []),
        ("time", f"{seconds}{steps}{mean}"),
    ]


def _energy(d: dict[str, Any], name: str) -> str:
    """What a set of rails took."""
    joules, bound, each = d["energy_j"][name], d["bound_j"][name], d["energy_j_per_step"][name]
    if joules is None:
        return f"unknown: {d['unknown'].get(name, 'not measured')}"
    return (
        f"{joules:.2f} J, mean {d['mean_power_w'][name]:.3f} W"
        + ("" if bound is None else f", +-{bound:.2f} J by the codes")
        + ("" if each is None else f", {each:.4g} J a step")
    )


def _outcome(d: dict[str, Any]) -> list[tuple[str, str]]:
    """What it saved, and what it rests on."""
    looked = {**d["throttling"]["cooling_state_max"], **d["throttling"]["over_current_events"]}
    seen = (
        "unknown: no cooling device and no over-current counter was read"
        if all(n is None for n in looked.values())
        else "none seen"
        + (
            f" (unknown: {', '.join(missed)})"
            if (missed := [name for name, n in looked.items() if n is None])
            else ""
        )
    )
    capped = [f"{name} (state {n})" for name, n in d["throttling"]["cooling_state_max"].items() if n]
    capped += [f"{name} ({n} events)" for name, n in d["throttling"]["over_current_events"].items() if n]
    over = d["per_step_over"]
    each = (
        []
        if over is None
        else [
            (
                "a step",
                f"{d['time_s_per_step']:.4g} s; by the last {over['steps']} steps, without the {over['from_s']:.1f} s before",
            )
        ]
    )
    return [
        *each,
        ("saving", _saving(d)),
        ("throttling", ", ".join(capped) or seen),
        *([("confidence", f"low: shorter than {SHORT_S:g} s")] if d["confidence"] == "low" else []),
        *([("certificate", d["certificate"][:16])] if d["certificate"] else []),
        *(("note", text) for text in d["notes"]),
    ]


def _blocks(d: dict[str, Any]) -> list[Block]:
    """The same for a terminal: what was measured as a table of its own."""
    known = [name for name in SETS if d["energy_j"][name] is not None]
    unknown = [(name, _energy(d, name)) for name in SETS if name not in known]
    numbers = ["energy (J)", "mean power (W)", "bound by the codes (J)"]
    rows = [
        [
            name,
            f"{d['energy_j'][name]:.2f}",
            _figure(d["mean_power_w"][name], 3),
            _figure(d["bound_j"][name], 2),
        ]
        for name in known
    ]
    if d["per_step_over"] is not None:
        numbers.append("energy (J/step)")
        for row, each in zip(rows, figures([d["energy_j_per_step"][name] for name in known]), strict=True):
            row.append(each)
    columns = [Column("rails"), *(Column(name, number=True) for name in numbers)]
    facts = [*_how(d), *unknown, *_outcome(d)]
    return [Table([Column(""), Column("")], facts, _heading(d)), Table(columns, rows)]


def _figure(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def _saving(d: dict[str, Any]) -> str:
    parts = []
    if d["expected_saving_pct"] is not None:
        slow = d["expected_slowdown_pct"]
        time = "time unknown" if slow is None else f"{slow:+.1f} % time"
        parts.append(
            f"expected {d['expected_saving_pct']:.1f} % against MAXN, {time} ({d['governor_provenance']})"
        )
    if d["measured_saving_pct"] is not None:
        parts.append(
            f"measured {d['measured_saving_pct']:.1f} %, {d['measured_slowdown_pct']:+.1f} % time, against {d['measured_against']}"
        )
    return "; ".join(parts) or "unknown: no baseline (--baseline FILE, made with --mhz maxn --json FILE)"
