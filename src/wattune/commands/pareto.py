"""`wattune pareto`: the settings that no other beats in both energy and time, from a governor's leaf, the virtual board or a sweep."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.commands.workload import add_workload_arguments, catalogue_workload, features_for
from wattune.core.curve import Point
from wattune.core.errors import InputError
from wattune.core.objectives import Answer, answer_at, baseline_of, pareto_front
from wattune.core.settings import Setting, setting_label
from wattune.terminal import Block, Column, Table, figures, rendered

log = logging.getLogger(__name__)

RELATIVE, PER_STEP, AS_RECORDED = "relative to the baseline", "per step", "as recorded"


@dataclass(frozen=True, slots=True)
class Front:
    """One workload's front.

    Attributes:
        workload: its name.
        board: the board's.
        source: where the curve comes from.
        provenance: ``measured``, ``recorded`` or ``simulated``.
        unit: what an energy and a time are of.
        baseline: what savings and slowdowns are against.
        answers: the settings of the front, fastest first.
        timeless: settings left out because their time is unknown.
    """

    workload: str
    board: str
    source: str
    provenance: str
    unit: str
    baseline: Setting
    answers: tuple[Answer, ...]
    timeless: int = 0

    def document(self) -> dict[str, Any]:
        """The JSON shape."""
        return {
            "workload": self.workload,
            "board": self.board,
            "source": self.source,
            "provenance": self.provenance,
            "unit": self.unit,
            "baseline": self.baseline,
            "front": [
                {
                    "mhz": a.setting,
                    "energy_j": a.energy_j if self.unit != RELATIVE else None,
                    "time_s": a.time_s if self.unit != RELATIVE else None,
                    "rel_energy": 1.0 - a.saving_pct / 100.0,
                    "rel_time": None if a.slowdown_pct is None else 1.0 + a.slowdown_pct / 100.0,
                    "saving_pct": a.saving_pct,
                    "slowdown_pct": a.slowdown_pct,
                }
                for a in self.answers
            ],
        }

    @property
    def title(self) -> str:
        """What it is about."""
        return f"{self.workload} on {self.board}, {self.source}, {self.provenance}; against {setting_label(self.baseline)}"

    def blocks(self) -> list[Block]:
        """The front for a terminal."""
        names = ["setting MHz"]
        cells = [[setting_label(a.setting) for a in self.answers]]
        if self.unit != RELATIVE:
            names += ["energy (J)", "time (s)"]
            cells += [figures([a.energy_j for a in self.answers]), figures([a.time_s for a in self.answers])]
        names += ["saving %", "slowdown %"]
        cells += [
            [f"{a.saving_pct:.1f}" for a in self.answers],
            ["unknown" if a.slowdown_pct is None else f"{a.slowdown_pct:+.1f}" for a in self.answers],
        ]
        columns = [Column(name, number=True) for name in names]
        rows = [list(row) for row in zip(*cells, strict=True)]
        return [Table(columns, rows, self.title), self._left_out()]

    def _left_out(self) -> str:
        return f"{self.timeless} settings have no time and are left out." if self.timeless else ""

    def text(self) -> str:
        """The front for people."""
        lines = [
            self.title,
            f"{'setting':>10} {'energy (J)':>12} {'time (s)':>10} {'saving %':>9} {'slowdown %':>11}",
        ]
        for a in self.answers:
            shown = self.unit != RELATIVE
            energy = f"{a.energy_j:.4g}" if shown else ""
            time = f"{a.time_s:.4g}" if shown and a.time_s is not None else ""
            slowdown = "unknown" if a.slowdown_pct is None else f"{a.slowdown_pct:+.1f}"
            lines.append(
                f"{setting_label(a.setting):>10} {energy:>12} {time:>10} {a.saving_pct:>9.1f} {slowdown:>11}"
            )
        return "\n".join([*lines, *([self._left_out()] if self.timeless else [])])


def front_of(
    points: Mapping[Setting, Point], *, workload: str, board: str, source: str, provenance: str, unit: str
) -> Front:
    """The front of one curve.

    Raises:
        InputError: no setting has a time.
    """
    front = pareto_front(points)
    if not front:
        raise InputError(
            f"'{workload}' has no times.",
            "Energy and time at every setting were expected.",
            "Measure times too.",
        )
    answers = tuple(answer_at(points, setting) for setting in front)
    timeless = sum(point.time_s is None for point in points.values())
    return Front(workload, board, source, provenance, unit, baseline_of(points), answers, timeless)


def recorded_fronts(paths: list[Path]) -> list[Front]:
    """The fronts of a recorded sweep's workloads; those without times are named and left out."""
    from wattune.boards.sweepfile import provenance_of, read_sweep

    sweep = read_sweep(paths)
    for sentence in sweep.warnings:
        log.warning("%s", sentence)
    fronts = []
    for workload in sweep.workloads:
        points = workload.curve.points
        if all(point.time_s is None for point in points.values()):
            log.warning("%s (%s) has no times and is left out.", workload.id, workload.board)
            continue
        fronts.append(
            front_of(
                points,
                workload=workload.id,
                board=workload.board,
                source="recorded sweep",
                provenance=provenance_of(workload.rows),
                unit=AS_RECORDED,
            )
        )
    if not fronts:
        raise InputError("No workload of the sweep has times.", "A column time_s was expected.")
    return fronts


def write(fronts: list[Front], as_json: bool) -> None:
    """Print the fronts."""
    if as_json:
        sys.stdout.write(json.dumps([front.document() for front in fronts], indent=2, allow_nan=False) + "\n")
    else:
        shown = rendered([block for front in fronts for block in front.blocks()], sys.stdout)
        sys.stdout.write((shown or "\n\n".join(front.text() for front in fronts)) + "\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `wattune pareto`."""
    add_workload_arguments(parser, objective=False)
    parser.add_argument(
        "--virtual",
        action="store_true",
        help="ask the virtual board (needs --model and --task), not a governor",
    )
    parser.add_argument(
        "--sweep", type=Path, nargs="+", metavar="SWEEP", help="recorded sweeps, or folders of them"
    )


def run(args: argparse.Namespace) -> int:
    """Handle ``wattune pareto``; returns the exit code."""
    if args.sweep is not None:
        if args.virtual:
            raise InputError("--sweep and --virtual were given.", "One of them was expected.")
        write(recorded_fronts(args.sweep), args.json)
        return 0
    if args.virtual:
        from wattune.boards.virtual.board import DEFAULT_CONSTANTS, VirtualBoard

        if args.model is None or args.task is None:
            raise InputError(
                "The virtual board needs a model and a task.", "--model and --task were expected."
            )
        workload = catalogue_workload(args)
        board = VirtualBoard(DEFAULT_CONSTANTS)
        points = {row["mhz"]: Point(row["energy_j"], row["time_s"]) for row in board.predict(workload)}
        front = front_of(
            points,
            workload=workload.id,
            board=board.info.id,
            source="virtual board, per step",
            provenance="simulated",
            unit=PER_STEP,
        )
    else:
        from wattune.running.choosing import load_governor

        governor = load_governor(args.governor)
        given, _ = features_for(args, governor)
        expected = governor.expected_curve(given)
        front = front_of(
            {} if expected is None else expected.points,
            workload="-".join(name.lower() for name in (args.model, args.task) if name) or "workload",
            board=governor.board,
            source=f"leaf of governor {governor.digest[:12]}",
            provenance=governor.provenance,
            unit=RELATIVE,
        )
    write([front], args.json)
    return 0
