"""Hold the virtual boards against published measurements and say how far off they are, whatever the answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.constants import BoardFile, find_board_file
from wattune.boards.virtual.model import leakage_factor, rail_powers_w, run_phase, steady_temperature_c
from wattune.core.errors import InputError
from wattune.core.settings import MAXN
from wattune.core.stats import mean
from wattune.core.workload import PhaseCost
from wattune.validation import published
from wattune.validation.calibrate import (
    Fit,
    Level,
    fit,
    log_ratios,
    orin_levels,
    predict,
    redrawn_priors,
)
from wattune.validation.datafiles import ABSENT, data_sources
from wattune.validation.source import Source
from wattune.workloads.build import build_named

Result = TypeVar("Result")

ORIN, XAVIER = published.ORIN, "jetson-agx-xavier"
REDRAWS = 6
PROCESSES = 2
IDENTIFIED_BELOW = 0.7
"""A constant counts as identified where the data shrink its spread to less than this share of the prior's."""

SAVING_OF = ("bert-base-mnli", "pythia-70m-sst2", "pythia-1b-rte")
"""Workloads whose best saving is followed through redrawn priors and other polling intervals."""

POLLS_MS = (25, 50, 100, 500)
"""Polling intervals of the demand-driven governor; the driver's is the first."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A demand on the model, fixed before any fit.

    Attributes:
        name: what is demanded.
        value: what was found; None where the source is absent.
        limit: the most it may be.
    """

    name: str
    value: float | None
    limit: float

    @property
    def passed(self) -> bool | None:
        """Whether it holds; None where nothing was there to judge."""
        return None if self.value is None else self.value <= self.limit


def errors_pct(file: BoardFile, source: Source) -> list[float]:
    """Errors of a curve's points after scaling prediction and measurement to the same geometric mean, signed, percent.

    A single point has no shape: its error is the absolute one.
    """
    ratios = log_ratios(file, source)
    middle = mean(ratios) if len(ratios) > 1 else 0.0
    return [100.0 * (math.exp(r - middle) - 1.0) for r in ratios]


def compare(file: BoardFile, source: Source) -> dict[str, Any]:
    """One source as the output has it: how far the model is off, and what choosing by it would cost."""
    errors = [abs(e) for e in errors_pct(file, source)]
    row: dict[str, Any] = {
        "n": len(errors),
        "mean_err_pct": mean(errors),
        "max_err_pct": max(errors),
        "left_out_max_err_pct": None,
        "predicted_mhz": None,
        "measured_mhz": None,
        "regret_pct": None,
        "level_err_pct": None,
        "used_for": source.used_for,
        "board": source.board,
        "quantity": source.quantity,
        "citation": source.citation,
        "assumed": list(source.assumed),
    }
    if source.steps is not None or source.quantity == "power":
        row["level_err_pct"] = 100.0 * (math.exp(mean(log_ratios(file, source))) - 1.0)
    if source.quantity == "energy" and len(errors) > 1:
        answers = predict(file, source)
        chosen = answers.index(min(answers))
        row["predicted_mhz"] = source.mhz[chosen]
        row["measured_mhz"] = source.mhz[source.measured.index(min(source.measured))]
        row["regret_pct"] = 100.0 * (source.measured[chosen] / min(source.measured) - 1.0)
    return row


def energy_of(time: Source, power: Source) -> Source | None:
    """The energy curve of a sweep that measured time and power; None where their clocks differ."""
    if time.mhz != power.mhz or len(time.mhz) < 2 or time.workload != power.workload:
        return None
    energy = tuple(t * w for t, w in zip(time.measured, power.measured, strict=True))
    return replace(
        power, name=time.name.replace("time", "energy"), quantity="energy", measured=energy, steps=time.steps
    )


def families(data: Path | None) -> dict[str, list[Source] | str]:
    """All sources by key of the output; energies are added to sweeps that measured time and power."""
    found: dict[str, list[Source] | str] = {s.name: [s] for s in published.published_sources()}
    larger = data_sources(data)
    for name, sources in larger.items():
        found[name] = sources
        power = larger.get(name.replace("_time", "_power"))
        if "_time" in name:
            pairs = (
                []
                if isinstance(sources, str) or isinstance(power, str) or power is None
                else zip(sources, power, strict=False)
            )
            energies = [e for e in (energy_of(t, p) for t, p in pairs) if e is not None]
            found[name.replace("_time", "_energy")] = energies or ABSENT
    return found


def family_row(rows: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Several curves of a family as one entry: the errors of all points, the worst regret."""
    if len(rows) == 1:
        return next(iter(rows.values()))
    n = sum(row["n"] for row in rows.values())
    first = next(iter(rows.values()))
    known = [row["regret_pct"] for row in rows.values() if row["regret_pct"] is not None]
    return {
        **first,
        "n": n,
        "mean_err_pct": sum(row["mean_err_pct"] * row["n"] for row in rows.values()) / n,
        "max_err_pct": max(row["max_err_pct"] for row in rows.values()),
        "predicted_mhz": None,
        "measured_mhz": None,
        "regret_pct": max(known, default=None),
        "level_err_pct": None,
        "curves": dict(rows),
    }


# --- refits -----------------------------------------------------------------------------------------------------------


def _left_out(job: tuple[BoardFile, list[Source], list[Level], int]) -> float:
    file, sources, levels, out = job
    workload = sources[out].workload.id
    without = fit(file, [s for s in sources if s.workload.id != workload], levels)
    return max(abs(e) for e in errors_pct(without.file, sources[out]))


def _redrawn(job: tuple[BoardFile, list[Source], list[Level], int]) -> dict[str, Any]:
    file, sources, levels, seed = job
    start = {name: getattr(file.constants, name) for name in file.priors}
    other = fit(file, sources, levels, prior_values=redrawn_priors(file, seed), start=start).file
    return {
        "curves": {
            s.name: {k: compare(other, s)[k] for k in ("max_err_pct", "predicted_mhz", "regret_pct")}
            for s in sources
        },
        "best_saving": {name: best_saving(other, name) for name in SAVING_OF},
    }


def _whole(job: tuple[BoardFile, list[Source], list[Level], int]) -> Fit:
    file, sources, levels, _ = job
    return fit(file, sources, levels)


def fitted_to(file: BoardFile, found: Mapping[str, list[Source] | str]) -> tuple[list[Source], list[Level]]:
    """The curves and levels a board is calibrated against, of those that are there."""
    curves = [
        s
        for s in _flat(found.values())
        if s.board == file.board and s.used_for == "calibration" and s.name in file.calibrated_against
    ]
    return curves, orin_levels() if file.board == ORIN else []


def refit(data: Path | None, board: str) -> tuple[BoardFile, Fit, list[str]]:
    """Calibrate a board that comes with the package anew.

    Returns:
        The board as it is, the fit, and the names of the curves.

    Raises:
        InputError: no such board, or a curve it is calibrated against is absent.
    """
    file = find_board_file(board)
    curves, levels = fitted_to(file, families(data))
    missing = sorted(set(file.calibrated_against).difference(s.name for s in curves))
    if missing or not curves:
        raise InputError(
            f"{file.board} cannot be refitted: {', '.join(missing) or 'the curves it would be fitted to'} are absent.",
            "The curves it is calibrated against were expected.",
            "Set WATTUNE_DATA to the folder of others' measurements that holds them.",
        )
    return file, fit(file, curves, levels), [s.name for s in curves]


def best_saving(file: BoardFile, name: str) -> dict[str, float | str]:
    """A workload's best setting on a board and what it saves against MAXN (rails ``gpu_cpu``)."""
    rows = {row["mhz"]: row["energy_j"] for row in VirtualBoard(file=file).predict(build_named(name))}
    best = min(rows, key=lambda s: rows[s])
    return {"mhz": best, "saving_pct": 100.0 * (1.0 - rows[best] / rows[MAXN])}


def _refits(sources: Sequence[Source], redraws: int) -> int:
    """How often :func:`calibration` refits a board."""
    return 1 + (len(sources) if len(sources) > 1 else 0) + redraws


def calibration(
    file: BoardFile,
    sources: Sequence[Source],
    levels: Sequence[Level],
    redraws: int,
    done: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Refit a board: each workload's curves left out in turn, its priors redrawn, what the data say of each constant.

    `done` is called after every refit.
    """
    base = (file, list(sources), list(levels))
    with ProcessPoolExecutor(PROCESSES) as pool:
        whole = pool.submit(_whole, (*base, 0))
        without = range(len(sources)) if len(sources) > 1 else ()
        left_out_jobs = pool.map(_left_out, [(*base, i) for i in without])
        drawn_jobs = pool.map(_redrawn, [(*base, seed) for seed in range(redraws)])
        fitted = whole.result()
        done()
        left_out = [_then(done, error) for error in left_out_jobs]
        drawn = [_then(done, redraw) for redraw in drawn_jobs]
    constants = {
        name: {
            "value": getattr(file.constants, name),
            "refitted": getattr(fitted.file.constants, name),
            "prior": asdict(prior),
            "pull_sd": fitted.pull[name],
            "posterior_over_prior": fitted.posterior_over_prior[name],
            "identified": fitted.posterior_over_prior[name] < IDENTIFIED_BELOW,
            "source": file.sources[name],
        }
        for name, prior in file.priors.items()
    }
    return {
        "against": [s.name for s in sources],
        "levels": {
            level.name: {
                "predicted_w": level.predict_w(file),
                "measured_w": level.measured_w,
                "citation": level.citation,
            }
            for level in levels
        },
        "left_out_max_err_pct": {s.name: e for s, e in zip(sources, left_out, strict=False)},
        "constants": constants,
        "redraws": drawn,
    }


def _then(done: Callable[[], None], result: Result) -> Result:
    done()
    return result


def polling(file: BoardFile) -> dict[str, Any]:
    """How the best saving against MAXN depends on the governor's polling interval, ms."""
    return {
        str(ms): {
            name: best_saving(replace(file, constants=replace(file.constants, podgov_poll_s=ms / 1e3)), name)
            for name in SAVING_OF
        }
        for ms in POLLS_MS
    }


# --- single figures ---------------------------------------------------------------------------------------------------


def figures(
    file: BoardFile, metrics: Mapping[str, Any] | None, optima: Sequence[float] | None
) -> dict[str, Any]:
    """The published single figures with the model's answers.

    Args:
        file: the AGX Orin.
        metrics: ``reports/evaluate/metrics.json`` of the virtual board; None where the pipeline has not run.
        optima: energy-optimal clocks of its held-out workloads, MHz.
    """
    answers: dict[str, float | list[float] | None] = {
        **_maxn_answers(file),
        **_board_answers(file),
        **_aggregate_answers(metrics, optima),
    }
    return {
        name: {
            "published": list(figure.value),
            "predicted": answers.get(name),
            "unit": figure.unit,
            "note": figure.note,
            "citation": figure.citation,
            "used_for": "validation" if figure.used else "left out",
        }
        for name, figure in published.published_figures().items()
    }


def _maxn_answers(file: BoardFile) -> dict[str, float | list[float] | None]:
    """MAXN scaled as its curve is: the model's MAXN times measured over predicted (geometric means of the curve)."""
    answers: dict[str, float | list[float] | None] = {}
    for source, name in zip(
        published.published_sources(),
        ("orin_deberta_qnli_maxn_j", "orin_deberta_sst2_maxn_j", "orin_pythia14m_qnli_maxn_j"),
        strict=True,
    ):
        joules = VirtualBoard(file=file).noise_free(source.workload, MAXN).energy_j
        answers[name] = joules / math.exp(mean(log_ratios(file, source)))
    return answers


def _board_answers(file: BoardFile) -> dict[str, float | list[float] | None]:
    c = file.constants
    idle_w = c.cpu_idle_w + c.sys_base_w
    slow = VirtualBoard(file=file, power_mode="MODE_30W").noise_free(published.deberta_qnli(), MAXN).time_s
    fast = VirtualBoard(file=file).noise_free(published.deberta_qnli(), MAXN).time_s
    answers: dict[str, float | list[float] | None] = {
        "orin_idle_maxn_w": next(x for x in orin_levels() if x.name == "idle_top_w").predict_w(file) + idle_w,
        "orin_idle_30w_w": c.gated_gpu_w + idle_w,
        "orin_30w_slowdown": slow / fast if slow and fast else None,
    }
    for mode in ("MAXN", "MODE_50W", "MODE_30W", "MODE_15W"):
        board = file if mode == "MAXN" else file.in_mode(mode)
        run = run_phase(board.constants, PhaseCost(1e13, 1e9, 10.0), "fp32", board.table.top)
        base_w = c.sys_base_w + run.gpu_w + run.cpu_w + run.dram_w
        temp_c = steady_temperature_c(c, base_w, run.leak_w)
        gpu_w = rail_powers_w(c, file.rails[:1], run, leakage_factor(c, temp_c))[0]
        answers[f"orin_stress_{mode.removeprefix('MODE_').lower()}_w"] = gpu_w
    return answers


def _aggregate_answers(
    metrics: Mapping[str, Any] | None, optima: Sequence[float] | None
) -> dict[str, float | list[float] | None]:
    if metrics is None:
        return {}
    mlg, ffg = metrics["mlg"], metrics["ffg"]
    span = [min(optima), max(optima)] if optima else None
    return {
        "paper_mean_saving_pct": mlg["all"]["mean_saving_pct"],
        "paper_best_saving_pct": mlg["all"]["max_saving_pct"],
        "paper_large_saving_pct": mlg["large"]["mean_saving_pct"] if mlg.get("large") else None,
        "paper_over_ffg_points": mlg["all"]["mean_saving_pct"] - ffg["all"]["mean_saving_pct"],
        "paper_optimum_mhz": span,
        "thesis_optimum_mhz": span,
    }


# --- all together -----------------------------------------------------------------------------------------------------


def validate(
    data: Path | None,
    *,
    metrics: Mapping[str, Any] | None = None,
    optima: Sequence[float] | None = None,
    redraws: int = REDRAWS,
    told: Callable[[int, int], None] = lambda _done, _of: None,
) -> dict[str, Any]:
    """Everything `wattune validate` says.

    Args:
        data: folder of others' measurements; None where there is none.
        metrics: see :func:`figures`.
        optima: see :func:`figures`.
        redraws: how often the priors are redrawn.
        told: called with how many refits are done, of how many.

    Returns:
        ``{"schema_version", "provenance", "sources", "figures", "calibration": {board: ...}, "polling", "bars"}``.
    """
    found = families(data)
    boards = {name: find_board_file(name) for name in {s.board for s in _flat(found.values())}}
    jobs = {name: (*fitted_to(file, found), redraws if name == ORIN else 0) for name, file in boards.items()}
    of, finished = sum(_refits(curves, n) for curves, _, n in jobs.values()), count(1)
    told(0, of)
    calibrations = {
        name: calibration(boards[name], *job, lambda: told(next(finished), of)) for name, job in jobs.items()
    }
    sources: dict[str, Any] = {}
    for key, entry in found.items():
        if isinstance(entry, str):
            sources[key] = entry
            continue
        rows = {}
        for source in entry:
            rows[source.name] = compare(boards[source.board], source)
            left_out = calibrations[source.board]["left_out_max_err_pct"].get(source.name)
            rows[source.name]["left_out_max_err_pct"] = left_out
        sources[key] = family_row(rows)
    document = {
        "schema_version": 1,
        "provenance": "simulated",
        "sources": sources,
        "figures": figures(boards[ORIN], metrics, optima),
        "calibration": dict(sorted(calibrations.items())),
        "polling": polling(boards[ORIN]),
        "bars": [{**asdict(bar), "passed": bar.passed} for bar in bars(sources)],
    }
    return rounded(document)


def rounded(value: Any) -> Any:
    """Six significant digits everywhere: what differs beyond them differs between machines."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(entry) for key, entry in value.items()}
    return [rounded(entry) for entry in value] if isinstance(value, list) else value


def _flat(entries: Iterable[list[Source] | str]) -> list[Source]:
    return [source for entry in entries if not isinstance(entry, str) for source in entry]


def bars(sources: Mapping[str, Any]) -> list[Bar]:
    """The demands on the model, judged."""
    orin = ("orin_deberta_qnli", "orin_deberta_sst2", "orin_pythia14m_qnli")
    found = []
    for name in orin:
        row = sources[name]
        found += [
            Bar(f"{name}: mean error, %", row["mean_err_pct"], 1.5),
            Bar(f"{name}: max error, %", row["max_err_pct"], 4.0),
            Bar(f"{name}: regret of the model's optimum, %", row["regret_pct"], 0.5),
            Bar(f"{name}: max error when left out, %", row["left_out_max_err_pct"], 8.0),
        ]
    found += [
        Bar(f"{name}: absolute energy per step, %", abs(sources[name]["level_err_pct"]), 15.0)
        for name in orin[:2]
    ]
    xavier = sources["xavier_training_time"]
    found.append(
        Bar("xavier_training_time: max error, %", None if xavier == ABSENT else xavier["max_err_pct"], 5.0)
    )
    return found
