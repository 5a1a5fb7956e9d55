"""`wattune bench probe`: what three measured clocks find, on others' recorded sweeps and on the virtual board's held-out workloads.

Every figure is given once more with the starting clocks moved, so that a lucky pair would show. Noise is drawn for energy
and time apart. The held-out workloads are probed three times over: `virtual` as the pipeline's probe does it, with the shipped tree's
leaf as prior and the noise that the training workloads' repeats show; `untrained` as on a board nobody trained for, by a reader that
knows the error of its readings; `untrained_unknown_noise` by one that does not.
"""

from __future__ import annotations

import math
import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wattune.core.curve import EnergyCurve, Point
from wattune.core.probe import MAX_PROBES, MAX_STEPS, STARTS, Probe, ProbeResult
from wattune.core.settings import MAXN
from wattune.core.stats import mean, percentile
from wattune.stages.validate import data_folder

ABSENT = "absent"
SHIFTS = (-0.05, 0.0, 0.05, 0.1)
"""How far each of the two starting places is moved; all pairs are tried."""

RECORDED_NOISE, RECORDED_SEEDS = 0.01, 200
VIRTUAL_NOISE, VIRTUAL_SEEDS = 0.02, 20
BARS = {
    "training": {"mean": 0.15, "max": 0.6, "noisy_mean": 0.4},
    "inference": {"mean": 0.6, "max": 2.0},
    "virtual": {"mean": 0.5, "p95": 2.0, "probed_energy_max": 1.0},
    "untrained": {"mean": 0.5, "p95": 2.0, "own_energy_mean": 1.0},
}
"""Percent of regret, and of one epoch's energy: all that probes take, or what they take beyond the same steps at the chosen clock."""

_FINE_TUNING_BASELINES = ("setting=MAXN (mode 0), nvhost_podgov governor", "setting=MAXN (mode 0), governor")
SOURCES: dict[str, tuple[str, str, dict[str, Sequence[str]]]] = {
    "orin_fine_tuning": (
        "training",
        "orin_agx_finetuning_energy.csv",
        {
            "maps": ("workload=model+workload",),
            "sets": ("board=jetson-agx-orin-64gb",),
            "maxn": _FINE_TUNING_BASELINES,
            "drop": (
                f"model=microsoft/deberta-v2-xlarge,workload=QNLI fine-tune,{_FINE_TUNING_BASELINES[0]}",
            ),
        },
    ),
    "xavier_training": (
        "training",
        "xavier_agx_training_grid.csv.gz",
        {"sets": ("board=jetson-agx-xavier",), "keep": ("cpu_mhz=max", "emc_mhz=max")},
    ),
    "orin_inference": (
        "inference",
        "orin_agx_inference_bert_yolo.csv.gz",
        {
            "maps": ("workload=model+workload",),
            "sets": ("board=jetson-agx-orin",),
            "keep": ("cpu_mhz=max",),
        },
    ),
}
"""Name -> the bar it is held against, its file, and how it becomes a sweep (docs/recorded.md)."""


def probe_curve(
    curve: EnergyCurve, *, noise_rel: float = 0.0, seed: str = "", starts: tuple[float, float] = STARTS,
    unit_steps: int | None = None, prior: EnergyCurve | None = None, known_noise_rel: float | None = None,
) -> ProbeResult:  # fmt: skip
    """Probe a known curve, each reading of energy and of time multiplied by noise of its own.

    Args:
        curve: the truth.
        noise_rel: standard deviation of the logarithm of that noise.
        seed: same seed, same noise.
        starts: where the first two clocks lie.
        unit_steps: training steps of one unit of the curve's work, which is then the whole run.
        prior: the curve expected beforehand.
        known_noise_rel: the noise that the probe is told.
    """
    rng = random.Random(seed)

    def noisy() -> float:
        return math.exp(rng.gauss(0.0, noise_rel)) if noise_rel else 1.0

    def measure(mhz: float) -> tuple[float, float | None]:
        point = curve.points[mhz]
        return point.energy_j * noisy(), None if point.time_s is None else point.time_s * noisy()

    return Probe(
        curve.clocks,
        measure,
        prior=prior,
        noise_rel=known_noise_rel,
        starts=starts,
        unit_steps=unit_steps,
        run_steps=unit_steps,
    ).run()


def summary(values: Sequence[float]) -> dict[str, float]:
    """Mean, 95th percentile and greatest of some percentages."""
    return {
        "mean": round(mean(values), 3),
        "p95": round(percentile(values, 95.0), 3),
        "max": round(max(values), 3),
    }


def moved_starts() -> list[tuple[float, float]]:
    """Pairs of starting places around the default one, which is among them."""
    return [(round(STARTS[0] + a, 3), round(STARTS[1] + b, 3)) for a in SHIFTS for b in SHIFTS]


def _moved(regrets: Callable[[tuple[float, float]], list[float]]) -> dict[str, Any]:
    """Regret over all moved starts together, and the best and worst pair by mean."""
    by_start = {starts: regrets(starts) for starts in moved_starts()}
    means = {starts: mean(values) for starts, values in by_start.items()}
    worst, best = max(means, key=lambda s: means[s]), min(means, key=lambda s: means[s])
    return {
        "pairs": len(by_start),
        **summary([value for values in by_start.values() for value in values]),
        "best_pair": {"starts": list(best), "mean": round(means[best], 3)},
        "worst_pair": {"starts": list(worst), "mean": round(means[worst], 3)},
    }


def judge_curves(curves: Mapping[str, EnergyCurve], *, seeds: int = RECORDED_SEEDS) -> dict[str, Any]:
    """Regret on some curves: as recorded, with the starts moved, and under noise."""
    plain = {name: probe_curve(curve) for name, curve in curves.items()}
    regrets = {name: curves[name].regret_pct(result.chosen) for name, result in plain.items()}
    noisy = [
        curve.regret_pct(probe_curve(curve, noise_rel=RECORDED_NOISE, seed=f"{seed}|{name}").chosen)
        for name, curve in curves.items()
        for seed in range(seeds)
    ]
    return {
        "n": len(curves),
        "regret_pct": summary(list(regrets.values())),
        "starts_moved_regret_pct": _moved(
            lambda starts: [c.regret_pct(probe_curve(c, starts=starts).chosen) for c in curves.values()]
        ),
        "noisy_regret_pct": {"noise_rel": RECORDED_NOISE, "seeds": seeds, **summary(noisy)},
        "workloads": {
            name: {
                "oracle_mhz": curves[name].oracle,
                "chosen_mhz": result.chosen,
                "regret_pct": round(regrets[name], 3),
                "probes": list(result.probes),
                "steps": result.steps,
            }
            for name, result in plain.items()
        },
    }


def recorded_curves(folder: Path | None) -> dict[str, dict[str, EnergyCurve] | str]:
    """Curves of every source of :data:`SOURCES`, or the text ``absent``."""
    from wattune.profiling.importing.sweep import import_sweep

    found: dict[str, dict[str, EnergyCurve] | str] = {}
    for name, (_, file, rules) in SOURCES.items():
        if folder is None or not (folder / file).exists():
            found[name] = ABSENT
            continue
        with tempfile.TemporaryDirectory(prefix="wattune-bench-") as scratch:
            sweep = import_sweep(folder / file, Path(scratch) / "sweep.csv", **rules).sweep
        found[name] = {workload.id: workload.curve for workload in sweep.workloads}
    return found


def recorded(folder: Path | None, *, seeds: int = RECORDED_SEEDS) -> dict[str, Any]:
    """The probe on recorded sweeps, by source and by what they are held against."""
    by_source = recorded_curves(folder)
    document: dict[str, Any] = {name: ABSENT for name, curves in by_source.items() if isinstance(curves, str)}
    for kind in ("training", "inference"):
        curves = {
            f"{source}: {workload}": curve
            for source, of_source in by_source.items()
            if SOURCES[source][0] == kind and not isinstance(of_source, str)
            for workload, curve in of_source.items()
        }
        document[kind] = judge_curves(curves, seeds=seeds) if curves else ABSENT
    return document


def held_out_curves() -> dict[str, tuple[EnergyCurve, int]]:
    """The virtual board's noise-free curves of its 54 held-out workloads, with the steps of an epoch."""
    from wattune.boards.virtual.board import VirtualBoard
    from wattune.workloads.build import build_workload
    from wattune.workloads.catalogue import HELD_OUT_TASKS, MODELS, PAPER_MODELS

    board = VirtualBoard()
    curves = {}
    for model in (MODELS[name] for name in PAPER_MODELS):
        for task in HELD_OUT_TASKS:
            workload = build_workload(model.id, task, batch_size=model.batch_size, precision=model.precision)
            points = {}
            for setting in (*board.info.table, MAXN):
                exact = board.noise_free(workload, setting)
                points[setting] = Point(exact.energy_j, exact.time_s)
            curves[workload.id] = EnergyCurve(points), workload.steps_per_epoch
    return curves


def expected_curves(root: Path) -> tuple[dict[str, EnergyCurve], float, str] | None:
    """What the tree that ships expects of every held-out workload, and the noise its training workloads show.

    Args:
        root: a repository whose pipeline has made the feature table.

    Returns:
        Workload -> curve, the relative noise of one reading and the tree's policy; None where there is no table.
    """
    from wattune.config import PARAMS, load_params
    from wattune.learning.champion import train_champion
    from wattune.learning.table import load_features, repeat_noise_rel
    from wattune.stages.train import FEATURES, regret_space, search_space

    if not (root / FEATURES).is_file() or not (root / PARAMS).is_file():
        return None
    train, table = load_params(root / PARAMS).train, load_features(root / FEATURES)
    trained = train_champion(table, table.training, search_space(train), regret_space(train))
    noise_rel = repeat_noise_rel(table.training)
    curves = {row.id: trained.governor.expected_curve(row.features) for row in table.held_out}
    known = {name: curve for name, curve in curves.items() if curve is not None}
    return None if noise_rel is None or not known else (known, noise_rel, trained.choice.champion)


def virtual(
    curves: Mapping[str, tuple[EnergyCurve, int]],
    *,
    seeds: int = VIRTUAL_SEEDS,
    priors: Mapping[str, EnergyCurve] | None = None,
    known_noise_rel: float | None = None,
    move_starts: bool = False,
) -> dict[str, Any]:
    """The probe on known curves under noise, with what it spends of one epoch, which is the whole run.

    `own_energy_pct` is what the probes' steps cost more than the same steps at the chosen clock: they are steps of the training, and
    none is repeated. `probed_energy_pct` is all the energy spent while probing.

    Args:
        curves: workload -> truth and training steps of an epoch.
        seeds: draws of noise per workload.
        priors: workload -> the curve expected beforehand; None: nobody expects anything.
        known_noise_rel: what the probe is told of the noise.
        move_starts: also give the regret with the starting clocks moved.
    """
    regrets, savings, own, probed, probes = [], [], [], [], []
    by_task: dict[str, list[float]] = {}

    def probe(name: str, seed: int, starts: tuple[float, float] = STARTS) -> ProbeResult:
        curve, steps = curves[name]
        return probe_curve(
            curve,
            noise_rel=VIRTUAL_NOISE,
            seed=f"{seed}|{name}",
            starts=starts,
            unit_steps=steps,
            prior=None if priors is None else priors[name],
            known_noise_rel=known_noise_rel,
        )

    for name, (curve, steps) in curves.items():
        for seed in range(seeds):
            result = probe(name, seed)
            per_probe = result.steps / max(1, len(result.probes)) / steps
            spent = per_probe * sum(curve.energy_j(mhz) for mhz in result.probes)
            chosen = curve.energy_j(result.chosen)
            regrets.append(curve.regret_pct(result.chosen))
            saving = curve.saving_pct(result.chosen)
            assert saving is not None  # the virtual board has its baseline
            savings.append(saving)
            probed.append(100.0 * spent / chosen)
            own.append(100.0 * (spent / chosen - result.steps / steps))
            probes.append(len(result.probes))
            by_task.setdefault(name.rsplit("-", 1)[-1], []).append(own[-1])
    document: dict[str, Any] = {
        "n": len(curves),
        "noise_rel": VIRTUAL_NOISE,
        "known_noise_rel": known_noise_rel,
        "seeds": seeds,
        "regret_pct": summary(regrets),
        "worst_saving_pct": round(min(savings), 3),
        "mean_probes": round(mean(probes), 2),
        "own_energy_pct": summary(own),
        "own_energy_pct_by_task": {task: summary(values) for task, values in by_task.items()},
        "probed_energy_pct": summary(probed),
    }
    if priors is not None:  # the first clock is the prior's then; the starting places do not decide
        unprobed = [c.regret_pct(priors[name].best_clock) for name, (c, _) in curves.items()]
        return {**document, "prior_alone_regret_pct": summary(unprobed)}
    if not move_starts:
        return document

    def moved(starts: tuple[float, float]) -> list[float]:
        return [curve.regret_pct(probe(name, 0, starts).chosen) for name, (curve, _) in curves.items()]

    return {**document, "starts_moved_regret_pct": _moved(moved)}


def latency_ms(curves: Iterable[EnergyCurve]) -> dict[str, float]:
    """Milliseconds that all decisions of one probing take together, measurements apart."""
    taken = []
    for curve in curves:
        begin = time.perf_counter()
        result = probe_curve(curve)
        taken.append(1e3 * (time.perf_counter() - begin) / len(result.probes))
    return {"per_decision_mean": round(mean(taken), 1), "per_decision_max": round(max(taken), 1)}


def _within(document: Mapping[str, Any]) -> dict[str, bool]:
    """Which bars hold; nothing on what is absent."""
    held = {}
    for kind in ("training", "inference"):
        found = document["recorded"][kind]
        if isinstance(found, str):
            continue
        bars = BARS[kind]
        held[f"{kind}_mean"] = found["regret_pct"]["mean"] <= bars["mean"]
        held[f"{kind}_max"] = found["regret_pct"]["max"] <= bars["max"]
        if "noisy_mean" in bars:
            held[f"{kind}_noisy_mean"] = found["noisy_regret_pct"]["mean"] <= bars["noisy_mean"]
    for kind in ("virtual", "untrained"):
        found = document[kind]
        if isinstance(found, str):
            continue
        bars = BARS[kind]
        held[f"{kind}_mean"] = found["regret_pct"]["mean"] <= bars["mean"]
        held[f"{kind}_p95"] = found["regret_pct"]["p95"] <= bars["p95"]
        for name in ("probed_energy", "own_energy"):
            for of in ("mean", "max"):
                if f"{name}_{of}" in bars:
                    held[f"{kind}_{name}_{of}"] = found[f"{name}_pct"][of] <= bars[f"{name}_{of}"]
    return held


def run(root: Path = Path()) -> dict[str, Any]:
    """The whole benchmark (some minutes); others' measurements are those of ``WATTUNE_DATA``, where it names any.

    Args:
        root: the repository whose feature table the prior's tree learns from.
    """
    curves, expected = held_out_curves(), expected_curves(root)
    if expected is None or set(expected[0]) != set(curves):
        informed: dict[str, Any] | str = ABSENT
    else:
        priors, noise_rel, policy = expected
        informed = {"prior": policy, **virtual(curves, priors=priors, known_noise_rel=noise_rel)}
    document: dict[str, Any] = {
        "max_probes": MAX_PROBES,
        "max_steps": MAX_STEPS,
        "starts": list(STARTS),
        "recorded": recorded(data_folder()),
        "virtual": informed,
        "untrained": virtual(curves, known_noise_rel=VIRTUAL_NOISE, move_starts=True),
        "untrained_unknown_noise": virtual(curves),
        "latency_ms": latency_ms([curve for curve, _ in curves.values()]),
        "bars": BARS,
    }
    held = _within(document)
    return {**document, "held": held, "ok": all(held.values())}
