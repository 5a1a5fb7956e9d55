"""``wattune run``: a command under a governed clock, measured, with a receipt on stderr and its own exit code."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wattune.boards.jetson.discovery import discover, gpu_load_pct
from wattune.boards.jetson.findings import Findings
from wattune.boards.jetson.root import add_root_argument, sysfs_of
from wattune.core.errors import BoardError, InputError, WattuneError
from wattune.core.governor import Governor
from wattune.core.numbers import decimal_number, whole_number
from wattune.core.objectives import ENERGY, add_objective_argument, parse_objective
from wattune.core.settings import MAXN, Setting, parse_setting
from wattune.io import check_output, write_json
from wattune.profiling.load import STEPS_VARIABLE
from wattune.profiling.preflight import settle_leases
from wattune.running import process
from wattune.running.arguments import PROBE_WINDOW_S, check_probed
from wattune.running.choosing import Choice, by_governor, clock_of, default_governor, load_governor
from wattune.running.probing import START_S, WINDOW_S, ProbeTask
from wattune.running.receipt import build_receipt, for_people, read_baseline
from wattune.running.session import Session
from wattune.running.steps import FileSteps, LoadSteps, Steps

log = logging.getLogger("wattune")

RUN_VARIABLE = "WATTUNE_RUN"
"""Names the process that holds the clock, in the environment of the command."""

WORKLOAD = (
    "model", "task", "config", "data", "text_columns", "label_column", "kind", "batch_size", "precision", "method", "seq_len",
    "gpu_util", "features",
)  # fmt: skip
"""Arguments that describe a workload, which a governor alone looks at."""

RETRY_S = 1.0
FILE_FIRST_S = 20.0
"""How long the steps file is waited for before steps are looked for in the GPU's load."""

FeaturesOf = Callable[[Governor], tuple[dict[str, Any], dict[str, Any]]]
Keep = Callable[[dict[str, Any]], str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``wattune run``, those of the workload apart."""
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--governor",
        metavar="PATH_OR_URI",
        help="the governor's file, or where it is registered; default: governor.json, else models/governor.json",
    )
    which.add_argument(
        "--mhz", metavar="N", help="a clock of the board's table; `maxn` leaves the clocks alone and measures"
    )
    parser.add_argument(
        "--probe",
        action="store_true",
        help="measure at most three clocks in the first steps and keep the best (with --governor: its curve first)",
    )
    parser.add_argument(
        "--steps",
        type=whole_number,
        metavar="N",
        help="steps of the whole run: the probe then takes 1 %% of them at most",
    )
    parser.add_argument(
        "--probe-window",
        type=decimal_number,
        default=WINDOW_S,
        metavar="S",
        help="seconds per clock (default: %(default)g)",
    )
    add_objective_argument(parser)
    parser.add_argument(
        "--best-effort", action="store_true", help="run with the clocks left alone where they cannot be held"
    )
    parser.add_argument(
        "--simulated-ok", action="store_true", help="take a simulated governor on a real board"
    )
    parser.add_argument(
        "--baseline",
        type=Path,
        metavar="FILE",
        help="receipt of a run with --mhz maxn: the saving is measured against it",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the receipt there")
    parser.add_argument("--mlflow", action="store_true", help="log the receipt to MLflow")
    add_root_argument(parser)
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what runs")


def run(
    args: argparse.Namespace,
    *,
    features_of: FeaturesOf,
    keep: Callable[[], Keep] | None = None,
) -> int:
    """Run a command; returns its exit code.

    Args:
        args: see :func:`add_arguments`.
        features_of: what is known of the workload where that governor asks, and of it what was assumed.
        keep: makes ready what `--mlflow` needs, and returns what logs a receipt and says where.

    Raises:
        InputError: no command, a clock that is none, an unknown objective, a governor that is missing.
        BoardError: no board, no permission, the clock is held by somebody else (with ``--best-effort`` the command runs all the same).
        IntegrityError: a governor that is damaged, for another board, or simulated on a real one.
    """
    environment = dict(os.environ)
    command = args.argv[1:] if args.argv[:1] == ["--"] else list(args.argv)
    if not command:
        raise InputError(
            "No command was given.",
            "What to run was expected after `--`.",
            "For example `wattune run -- python train.py`.",
        )
    try:
        process.check_command(command, environment)
    except process.NotStartedError as error:
        process.say(f"wattune: {error}")
        return error.exit_code
    if args.probe and args.mhz is not None:
        raise InputError("Both --probe and --mhz were given.", "One of the two was expected.")
    shortest, longest = PROBE_WINDOW_S
    if not shortest <= args.probe_window <= longest:
        raise InputError(
            f"--probe-window is {args.probe_window:g}.",
            f"Seconds from {shortest:g} to {longest:g} were expected.",
        )
    if args.steps is not None and args.steps < 1:
        raise InputError(f"--steps is {args.steps}.", "A number of steps from 1 on was expected.")
    parse_objective(args.objective)
    _refuse_unused(args)
    if args.json is not None:
        governor = args.governor or (default_governor() if args.mhz is None else None)
        check_output(
            args.json, "The receipt", args.baseline, args.features, Path(governor) if governor else None
        )
    baseline = None if args.baseline is None else read_baseline(args.baseline)
    log_it = keep() if args.mlflow and keep is not None else None
    with process.signals_kept(), _steps_file(environment) as steps_file:
        return _run(args, command, environment, steps_file, features_of, baseline, log_it)


def _refuse_unused(args: argparse.Namespace) -> None:
    """Refuse what would change nothing: somebody who types it believes that it does.

    Raises:
        InputError: an option that the way the clock is chosen does not look at.
    """
    probing = {"--steps": args.steps is not None, "--probe-window": args.probe_window != WINDOW_S}
    workload = {f"--{name.replace('_', '-')}": bool(getattr(args, name, None)) for name in WORKLOAD}
    if args.mhz is not None:
        way, unused = (
            "--mhz",
            {**probing, **workload, "--objective": parse_objective(args.objective) != ENERGY},
        )
        unused["--simulated-ok"] = args.simulated_ok
    elif not args.probe:
        way, unused = "a governor", probing
    elif args.governor is None:
        way, unused = "--probe without --governor", {**workload, "--simulated-ok": args.simulated_ok}
    else:
        return
    for option, given in unused.items():
        if given:
            raise InputError(
                f"{option} was given, and {way} does not look at it.",
                "Options that change something were expected.",
                f"Leave {option} out"
                + (
                    ", or add --probe."
                    if option in probing
                    else ", or take a governor (--governor PATH_OR_URI)."
                ),
            )


def _run(
    args: argparse.Namespace,
    command: list[str],
    environment: dict[str, str],
    steps_file: Path,
    features_of: FeaturesOf,
    baseline: dict[str, Any] | None,
    log_it: Keep | None,
) -> int:
    notes: list[str] = []
    spared = ""
    try:
        findings = _board(args)
        choice, task = _decide(args, findings, features_of)
        notes += settle_leases(findings.sysfs) if choice.setting != MAXN or task is not None else []
        steps: Steps = FileSteps(steps_file)
        session = Session(findings, choice.setting, steps=steps, task=task)
        if task is not None:
            _check_may_pin(session)
            task.find_steps = lambda: _find_steps(session)
        session.start()
    except BoardError as error:
        if not args.best_effort:
            raise
        process.say(f"wattune: {error} The command runs with the clocks left alone (--best-effort).")
        spared = f"The clocks were left alone (--best-effort): {error.what}"
        found = discover(sysfs_of(args))
        choice, task = Choice(MAXN, "none", "the clock could not be held"), None
        session = Session(found, MAXN, steps=FileSteps(steps_file))
        if found.kind == "jetson":
            session.start()
    notes = [*choice.notes, *notes]
    for text in notes:
        process.say(f"wattune: {text}")
    notes += [spared] if spared else []
    started_s = time.monotonic()
    left = False
    try:
        if (early := process.came_already()) is not None:
            process.say("wattune: interrupted before the command was started.")
            return process.BY_SIGNAL + early
        try:
            code, left = process.run_command(command, environment)
        except process.NotStartedError as error:
            process.say(f"wattune: {error} The clock is put back.")
            return error.exit_code
    finally:
        seconds = time.monotonic() - started_s
        try:
            session.stop()
        except BoardError as error:
            if not any(pin["outcome"] == "failed" for pin in session.pins()):  # else the lease has said it
                process.say(f"wattune: {error}")
    if left:
        session.note(
            "The command left processes behind that go on: the clock was put back when the command itself ended."
        )
    receipt = build_receipt(
        session,
        session.totals,
        choice,
        command=command,
        exit_code=code,
        duration_s=seconds,
        probe=task,
        baseline=baseline,
        notes=notes,
    )
    process.say(for_people(receipt, sys.stderr))
    _keep(args, receipt, log_it)
    return code


def _keep(args: argparse.Namespace, receipt: dict[str, Any], log_it: Keep | None) -> None:
    """Save the receipt; a fault is said and changes nothing else: the command has run."""
    if args.json is not None:
        try:
            write_json(args.json, receipt)
        except BoardError as error:
            process.say(f"wattune: The receipt was not kept. {error}")
    if log_it is not None:
        try:
            process.say(f"wattune: {log_it(receipt)}")
        except WattuneError as error:
            process.say(f"wattune: The receipt was not logged. {error}")


def _board(args: argparse.Namespace) -> Findings:
    """The board, fit to hold a clock on.

    Raises:
        BoardError: it is no Jetson, or another `wattune run` holds the clock around us.
    """
    outer = os.environ.get(RUN_VARIABLE, "")
    if outer.isdigit() and Path(f"/proc/{outer}").exists():
        raise BoardError(
            f"This runs inside another `wattune run` (process {outer}), which governs and measures already.",
            "One of them was expected.",
            "Leave the inner `wattune run` out, or give it --best-effort.",
        )
    findings = discover(sysfs_of(args), retry_s=RETRY_S)
    if findings.kind != "jetson":
        why = " ".join(findings.problems) or "this machine is no Jetson."
        raise BoardError(
            f"There is no board to govern: {why}",
            "" if findings.problems else "A Jetson was expected.",
            "Run the command with --best-effort to have it run all the same, or without `wattune run`.",
        )
    return findings


def _decide(
    args: argparse.Namespace, findings: Findings, features_of: FeaturesOf
) -> tuple[Choice, ProbeTask | None]:
    objective = parse_objective(args.objective)
    if args.mhz is not None:
        setting: Setting = MAXN if args.mhz.strip().lower() == MAXN else _mhz(args.mhz)
        by = "none" if setting == MAXN else "mhz"
        return Choice(
            setting, by, "clocks left alone" if by == "none" else f"--mhz {args.mhz}", args.objective
        ), None
    where = args.governor or (None if args.probe else default_governor())
    choice = None
    if where is not None:
        governor = load_governor(where)
        given, assumed = features_of(governor)
        choice = by_governor(
            governor, findings, given, assumed, objective=objective if not args.probe else parse_objective("energy"),
            simulated_ok=args.simulated_ok, probes=args.probe,
        )  # fmt: skip
    if args.probe:
        check_probed(objective)
        task = ProbeTask(
            objective, None if choice is None else choice.prior, args.steps, args.probe_window, START_S,
            None if choice is None else clock_of(choice.setting), choice is not None and choice.declined,
        )  # fmt: skip
        rule = "at most three clocks measured in the first steps"
        probed = Choice(
            MAXN, "probe", rule, args.objective,
            governor=None if choice is None else choice.governor, provenance=None if choice is None else choice.provenance,
            features={} if choice is None else choice.features, notes=() if choice is None else choice.notes,
        )  # fmt: skip
        return probed, task
    if choice is None:
        raise InputError(
            "Nothing says which clock to take.",
            "--governor PATH_OR_URI, --mhz N, --probe, or a governor.json here was expected.",
            "Fetch one with `wattune pull`, or try `wattune run --probe -- COMMAND`.",
        )
    return choice, None


def _mhz(text: str) -> float:
    setting = parse_setting(text)
    assert not isinstance(setting, str)
    return setting


def _check_may_pin(session: Session) -> None:
    """Find out before the command starts whether a probe could hold a clock at all.

    Raises:
        BoardError: it could not.
    """
    node = session.node
    session.hold(min(node.usable_hz, default=0) / 1e6 or 1.0)
    session.let_go()


def _find_steps(session: Session) -> Steps | None:
    """The steps file where the command writes one; else the GPU's load."""
    until = time.monotonic() + FILE_FIRST_S
    while session.steps.count is None and time.monotonic() < until:
        session.wait(0.2, fine=True)
    if session.steps.count is not None:
        return None
    session.note(
        f"No steps were counted into ${STEPS_VARIABLE} within {FILE_FIRST_S:g} s: they are looked for in the GPU's load."
        + (f" {session.steps.problem}" if session.steps.problem else "")
    )
    return LoadSteps(lambda: gpu_load_pct(session.findings))


@contextlib.contextmanager
def _steps_file(environment: dict[str, str]) -> Iterator[Path]:
    """A place where the command may count its steps, named in its environment."""
    environment[RUN_VARIABLE] = str(os.getpid())
    given = environment.get(STEPS_VARIABLE)
    if given:
        yield Path(given)
        return
    with tempfile.TemporaryDirectory(prefix="wattune-run-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "steps"
        environment[STEPS_VARIABLE] = str(path)
        yield path
