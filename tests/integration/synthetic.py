"""Synthetic feature tables: U-shaped curves whose optimum depends on depth and sequence length."""

from __future__ import annotations

import csv
import io
import random
from collections.abc import Iterable
from pathlib import Path

from wattune.learning.table import COLUMNS, FeatureTable, load_features

CLOCKS = (306.0, 408.0, 510.0, 612.0, 714.0, 816.0, 918.0, 1020.0, 1122.0, 1224.0, 1300.5)
MODELS = {  # id: family, layers, hidden, million parameters
    "bert-small": ("bert", 4, 512, 28.8),
    "bert-medium": ("bert", 8, 512, 41.4),
    "bert-base": ("bert", 12, 768, 109.5),
    "bert-large": ("bert", 24, 1024, 335.1),
    "deberta-v2-xlarge": ("deberta-v2", 24, 1536, 900.0),
    "pythia-31m": ("gpt-neox", 6, 256, 30.5),
    "pythia-70m": ("gpt-neox", 6, 512, 70.4),
    "pythia-410m": ("gpt-neox", 24, 1024, 405.3),
    "pythia-1b": ("gpt-neox", 16, 2048, 1011.8),
}
TRAIN_TASKS = {"sst2": 13.3, "qnli": 51.1, "mrpc": 53.2}
HELD_OUT_TASKS = {"cola": 11.3, "stsb": 27.8, "qqp": 29.0, "wnli": 37.1, "mnli": 40.0, "rte": 70.2}


def true_point(layers: float, seq_len: float, mhz: float | None) -> tuple[float, float]:
    """Noise-free energy (J) and time (s): work over clock plus a fixed part, and power that rises with the clock.

    The clock tree's power runs on during the fixed part, so a job with little work has its optimum lower.
    """
    work = 40.0 * layers * (1.0 + seq_len / 30.0)
    fixed = 900.0
    x = (1300.5 if mhz is None else mhz) / 1300.5
    if mhz is None and layers < 8:  # a starved GPU drifts down
        x = 0.62
    time_s = work / x + fixed
    busy = (work / x) / time_s
    power_w = 14.0 + 10.0 * x**2 + busy * 14.0 * x**3
    return time_s * power_w, time_s


def rows(
    *,
    seed: int = 0,
    repeats: int = 3,
    noise: float = 0.02,
    models: Iterable[str] = tuple(MODELS),
    held_out: bool = True,
    maxn: bool = True,
    noise_free: bool = True,
    time: bool = True,
    clocks: Iterable[float] = CLOCKS,
    provenance: str = "simulated",
) -> list[dict[str, object]]:
    """Rows of features.csv as dictionaries; `held_out=False` leaves the part blank everywhere."""
    tasks = [(task, length, "train" if held_out else "") for task, length in TRAIN_TASKS.items()]
    if held_out:
        tasks += [(task, length, "held_out") for task, length in HELD_OUT_TASKS.items()]
    table: list[dict[str, object]] = []
    settings: list[float | None] = [*clocks, *([None] if maxn else [])]
    for model in models:
        family, layers, hidden, params_m = MODELS[model]
        for task, seq_len, part in tasks:
            rng = random.Random(f"{seed}-{model}-{task}")
            util = round(100.0 * min(1.0, 0.2 + layers * seq_len / 600.0), 1)
            for mhz in settings:
                energy, seconds = true_point(layers, seq_len, mhz)
                for repeat in range(repeats):
                    measured = energy * (1.0 + rng.gauss(0.0, noise))
                    table.append(
                        dict.fromkeys(COLUMNS, "")
                        | {
                            "board": "jetson-agx-orin-64gb",
                            "provenance": provenance,
                            "power_mode": "MAXN",
                            "rails": "gpu_cpu",
                            "part": part,
                            "workload": f"{model}-{task}",
                            "model": model,
                            "task": task,
                            "family": family,
                            "layers": layers,
                            "hidden": hidden,
                            "params_m": params_m,
                            "seq_len": seq_len,
                            "batch_size": 32,
                            "precision": "fp16",
                            "setting": "maxn" if mhz is None else f"{mhz:g}",
                            "gpu_mhz": "" if mhz is None else mhz,
                            "repeat": repeat,
                            "energy_j": measured,
                            "time_s": seconds if time else "",
                            "power_w": measured / seconds if time else "",
                            "gpu_util_ref_pct": util,
                            "energy_noise_free_j": energy if noise_free else "",
                            "time_noise_free_s": seconds if noise_free and time else "",
                        }
                    )
    return table


def write(path: Path, table: Iterable[dict[str, object]], columns: Iterable[str] = COLUMNS) -> Path:
    """Write rows as features.csv."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(columns), extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(buffer.getvalue())
    return path


def load(path: Path, table: Iterable[dict[str, object]]) -> FeatureTable:
    """Write rows and read them back as the pipeline does."""
    return load_features(write(path, table))
