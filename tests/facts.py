"""A small set of pipeline files that belong together, made by hand in milliseconds: for the card, publish and pull."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from pathlib import Path
from typing import Any

from wattune.core.governor import FeatureRange, canonical_json, governor_document
from wattune.core.tree import Leaf, Split, Tree

SETTINGS = (306.0, 612.0, 816.0, 1300.5, "maxn")
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010806000000"
    "1f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)
WORKLOADS = (  # workload, model, task, size; chosen, energy and time by maxn, by mlg and by the oracle
    ("bert-base-cola", "bert-base", "cola", "large", 816.0, (100.0, 10.0), (70.0, 13.0), (68.0, 13.5)),
    ("bert-base-rte", "bert-base", "rte", "large", 816.0, (200.0, 20.0), (150.0, 25.0), (150.0, 25.0)),
    ("bert-small-cola", "bert-small", "cola", "small", 612.0, (50.0, 5.0), (52.0, 7.0), (50.0, 5.0)),
)


def governor(
    board: str = "test-board",
    provenance: str = "simulated",
    *,
    shallow_mhz: float = 612.0,
    features: bool = True,
) -> dict[str, Any]:
    """A governor: one question on the layers, one on the family."""

    def leaf(setting: float, saving: float) -> Leaf:
        times = (*[1.2] * (len(SETTINGS) - 1), 1.0)
        return Leaf(setting, 3, saving, (saving - 1, saving + 1), (1.1, 0.8, 0.75, 0.95, 1.0), times)

    nodes = [
        Split("layers", 7.5, None, 1, 2),
        leaf(shallow_mhz, 3.0),
        Split("family", None, "bert", 3, 4),
        leaf(816.0, 27.0),
        leaf(1300.5, 5.0),
    ]
    return governor_document(
        board=board,
        power_mode="MAXN",
        provenance=provenance,
        objective="energy",
        policy="mlg",
        rails="gpu_cpu",
        baseline="maxn",
        settings=SETTINGS,
        features=(
            FeatureRange("family", "", "category", None, None, ("bert", "gpt-neox"), "bert"),
            FeatureRange("layers", "layers", "number", 4.0, 24.0, (), 12.0),
        ),
        tree=Tree(nodes),
        training={
            "fingerprint": "f" * 64,
            "n_workloads": 9,
            "hyper_parameters": {"max_depth": 2, "criterion": "gini"},
        },
    )


def _result(saving: float, regret: float, n: int, slowdown: float = 20.0) -> dict[str, Any]:
    return {
        "mean_saving_pct": saving,
        "mean_saving_ci95": [saving - 2, saving + 2],
        "max_saving_pct": saving + 5,
        "min_saving_pct": saving - 5,
        "mean_regret_pct": regret,
        "mean_regret_ci95": [regret - 0.5, regret + 0.5],
        "p95_regret_pct": regret + 1,
        "max_regret_pct": regret + 2,
        "mean_slowdown_pct": slowdown,
        "mean_slowdown_ci95": [slowdown - 1, slowdown + 1],
        "n": n,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def _policy_rows(board: str, provenance: str) -> list[dict[str, Any]]:
    rows = []
    for workload, model, task, size, chosen, maxn, mlg, best in WORKLOADS:
        oracle = "maxn" if best == maxn else f"{chosen:g}"
        for policy, setting, (energy, time) in (
            ("maxn", "maxn", maxn),
            ("mlg", f"{chosen:g}", mlg),
            ("oracle", oracle, best),
        ):
            rows.append(
                {
                    "policy": policy,
                    "board": board,
                    "provenance": provenance,
                    "split": "held_out",
                    "workload": workload,
                    "model": model,
                    "task": task,
                    "size": size,
                    "setting": setting,
                    "energy_j": energy,
                    "time_s": time,
                    "saving_pct": 100 * (1 - energy / maxn[0]),
                    "regret_pct": 100 * (energy / best[0] - 1),
                    "slowdown_pct": 100 * (time / maxn[1] - 1),
                    "oracle_setting": oracle,
                }
            )
    return rows


def write_facts(
    root: Path,
    *,
    board: str = "test-board",
    provenance: str = "simulated",
    shallow_mhz: float = 612.0,
    saving: float = 17.0,
    regret: float = 2.0,
    promote: bool = True,
    held_out: str = "a" * 64,
    lock: bool = True,
) -> dict[str, Any]:
    """Write every file the card and publishing read; returns the governor's document."""
    document = governor(board, provenance, shallow_mhz=shallow_mhz)
    digest = document["digest"]
    meta = {
        "schema_version": 1,
        "board": board,
        "provenance": provenance,
        "power_mode": "MAXN",
        "rails": "gpu_cpu",
        "objective": "energy",
        "baseline": "maxn",
        "split": "held_out",
        "judged_on": "noise-free energy of the modelled board",
        "n_workloads": 3,
        "n_training": 9,
        "held_out_digest": held_out,
        "noise_floor_pct": 0.25,
        "noise_floor_how": "setting of least measured energy",
        "ffg_mhz": 816.0,
        "governor_digest": digest,
    }
    mlg = {"all": _result(saving, regret, 3), "large": _result(27.5, 1.0, 2), "small": _result(-4.0, 4.0, 1)}
    metrics = {
        "_meta": meta,
        "oracle": {"all": _result(19.0, 0.0, 3), "tasks": {}},
        "maxn": {"all": _result(0.0, 21.0, 3, 0.0), "tasks": {}},
        "mlg": mlg | {"tasks": {"cola": _result(13.0, 3.0, 2), "rte": _result(25.0, 0.0, 1)}},
    }
    rule = {"rule": "mean saving against MAXN, %", "value": saving, "comparison": ">=", "threshold": 10.0}
    decision = {
        "schema_version": 1,
        "mode": "enforce",
        "verdict": "accepted" if promote else "rejected",
        "promote": promote,
        "policy": "mlg",
        "board": board,
        "provenance": provenance,
        "governor_digest": digest,
        "held_out_digest": held_out,
        "rules": [rule | {"passed": promote, "reason": f"{saving:g} against 10"}],
    }
    candidates = [
        {
            "candidate": index,
            "max_depth": depth,
            "min_samples_leaf": 1,
            "criterion": "gini",
            "loo_accuracy": 0.5 + 0.1 * depth,
            "loo_regret_pct": 3.0 - depth,
            "leaves": depth + 1,
            "depth": depth,
            "chosen": int(depth == 2),
        }
        for index, depth in enumerate((1, 2))
    ]
    train = {"loo_accuracy": 0.7, "loo_regret_pct": 1.0, "leaves": 3, "depth": 2}
    files = {
        "models/governor.json": canonical_json(document),
        "data/features/features.csv": "workload,setting,repeat,energy_j\nbert-base-sst2,306,0,12.5\nbert-base-sst2,maxn,0,\n",
        "reports/train/metrics.json": canonical_json(
            train | {"n_training": 9, "n_candidates": 2, "ffg_mhz": 816.0}
        ),
        "reports/train/loocv.csv": _table(candidates),
        "reports/evaluate/metrics.json": canonical_json(metrics),
        "reports/evaluate/policies.csv": _table(_policy_rows(board, provenance)),
        "reports/gate/decision.json": canonical_json(decision),
        "dvc.yaml": "stages: {}\n",
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    figures = root / "reports/evaluate/figures"
    figures.mkdir(exist_ok=True)
    for name in ("confusion", "curves-bert-base", "policies"):
        (figures / f"{name}.png").write_bytes(PNG)
    if lock:
        (root / "dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": _lock(files)}))
    return document


def _lock(files: dict[str, str]) -> dict[str, Any]:
    def entry(stage: str, params: dict[str, Any], *outs: str) -> dict[str, Any]:
        return {
            "cmd": f"python -m wattune.stages.{stage}",
            "params": {"params.yaml": params},
            "outs": [
                {"path": out, "hash": "md5", "md5": hashlib.md5(files[out].encode()).hexdigest()}
                for out in outs
            ],
        }

    evaluate = entry(
        "evaluate",
        {
            "evaluate": {"bootstrap_resamples": 2000},
            "train": {"max_depth": [1, 2]},
            "workloads": {"x": {"task": "rte"}},
        },
        "reports/evaluate/metrics.json",
        "reports/evaluate/policies.csv",
    )
    evaluate["outs"].append({"path": "reports/evaluate/figures", "hash": "md5", "md5": "0" * 32 + ".dir"})
    return {
        "features": entry("features", {}, "data/features/features.csv"),
        "train": entry("train", {"train": {"seed": 0}}, "models/governor.json", "reports/train/loocv.csv"),
        "evaluate": evaluate,
    }
