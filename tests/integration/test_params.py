"""`make params`: compiled parameters, recorded sweeps taken in, and every wrong use said in one sentence."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("hydra")

from wattune.config import load_params, to_config
from wattune.core.errors import InputError
from wattune.stages.features import COLUMNS, features

ROOT = Path(__file__).parents[2]
HEADER = "board,workload,gpu_mhz,energy_j,time_s,setting,layers,gpu_util_pct,power_w"


def sweep(path: Path, *boards: str) -> Path:
    lines = [HEADER]
    for board in boards:
        for workload in ("a", "b"):
            lines += [
                f"{board},{workload},306,20.5,4,,6,97,5.5",
                f"{board},{workload},612,10,,,6,60,",
                f"{board},{workload},,16,2,maxn,6,,",
            ]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A repository root with nothing but conf/."""
    shutil.copytree(ROOT / "conf", tmp_path / "root" / "conf")
    return tmp_path / "root"


def params(folder: Path, *arguments: str, code: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "wattune.stages.params", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


def test_compiled_only_where_something_changed(folder: Path) -> None:
    params(folder, "--experiment", "smoke")
    before = (folder / "params.yaml").stat().st_mtime_ns
    assert load_params(folder / "params.yaml").experiment == "smoke"
    params(folder, "--experiment", "smoke")
    assert (folder / "params.yaml").stat().st_mtime_ns == before
    params(folder, "--experiment", "smoke", "sweep.repeats=5")
    assert load_params(folder / "params.yaml").sweep.repeats == 5


def test_drift_is_found(folder: Path) -> None:
    params(folder, "--experiment", "smoke")
    params(folder, "--check")
    text = (folder / "params.yaml").read_text()
    (folder / "params.yaml").write_text(text.replace("seed: 42", "seed: 43"))
    assert "make params" in params(folder, "--check", code=2)
    (folder / "params.yaml").unlink()
    assert "make params" in params(folder, "--check", code=2)


def test_a_recorded_sweep_is_checked_and_merged(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    sweep(data / "1.csv", "orin")
    params(folder, "--experiment", "recorded", "--data", str(data))
    merged = folder / "data/recorded/sweep.csv"
    before = merged.read_bytes()
    assert before.count(b"\n") == 1 + 6
    params(folder, "--experiment", "recorded")  # the sweep of before is still there
    assert merged.read_bytes() == before


WRONG = {
    "no data": (["--experiment", "recorded"], "DATA="),
    "data that are not there": (["--experiment", "recorded", "--data", "none.csv"], "none.csv"),
    "several boards": (["--experiment", "recorded", "--data", "two.csv"], "BOARD="),
    "another board": (["--experiment", "recorded", "--data", "two.csv", "--board", "nano"], "'nano'"),
    "data for a modelled board": (["--experiment", "smoke", "--data", "two.csv"], "EXPERIMENT=recorded"),
    "a board for a modelled board": (["--experiment", "smoke", "--board", "orin"], "EXPERIMENT=recorded"),
    "unknown experiment": (["--experiment", "papr"], "papr"),
    "unknown key": (["--experiment", "smoke", "sweep.repeat=3"], "repeat"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_use(folder: Path, case: str) -> None:
    arguments, words = WRONG[case]
    sweep(folder / "two.csv", "orin", "xavier")
    assert words in params(folder, *arguments, code=2)
    assert not (folder / "params.yaml").exists()
    assert not (folder / "data/recorded/sweep.csv").exists()


def test_features_of_a_recorded_sweep(folder: Path) -> None:
    sweep(folder / "two.csv", "orin", "xavier board 2")
    params(folder, "--experiment", "recorded", "--data", "two.csv", "--board", "xavier board 2")
    features(load_params(folder / "params.yaml"), folder)
    with (folder / "data/features/features.csv").open() as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    assert tuple(reader.fieldnames or ()) == COLUMNS
    assert len(rows) == 6
    assert {r["board"] for r in rows} == {"xavier board 2"}
    assert {r["provenance"] for r in rows} == {"recorded"}
    assert {(r["power_mode"], r["rails"]) for r in rows} == {("unknown", "as recorded")}
    assert {r["gpu_util_ref_pct"] for r in rows} == {"60"}  # at 612 MHz, the clock nearest to the reference
    low, high, maxn = rows[:3]
    assert (low["setting"], low["gpu_mhz"], low["energy_j"], low["power_w"]) == ("306", "306", "20.5", "5.5")
    assert (high["time_s"], high["power_w"]) == ("", "")  # unknown stays blank, never 0
    assert (maxn["setting"], maxn["gpu_mhz"], maxn["power_w"]) == ("maxn", "", "8")
    assert {r["energy_noise_free_j"] for r in rows} == {""}


@pytest.mark.parametrize(("reference", "util"), [("null", "60"), ("300", "97"), ("612", "60")])
def test_without_a_reference_clock_it_is_the_highest_one(folder: Path, reference: str, util: str) -> None:
    sweep(folder / "one.csv", "orin")
    params(folder, "--experiment", "recorded", "--data", "one.csv", f"features.reference_mhz={reference}")
    features(load_params(folder / "params.yaml"), folder)
    with (folder / "data/features/features.csv").open() as file:
        assert {r["gpu_util_ref_pct"] for r in csv.DictReader(file)} == {util}


@pytest.mark.parametrize("experiment", ["jetson", "xavier"])
def test_boards_whose_table_is_not_known_beforehand_have_no_fixed_reference(
    folder: Path, experiment: str
) -> None:
    params(folder, "--experiment", experiment)
    assert load_params(folder / "params.yaml").features.reference_mhz is None
    assert "reference_mhz" in params(folder, "--experiment", "smoke", "features.reference_mhz=0", code=2)


def test_features_without_workloads_or_without_a_sweep(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no workloads"):
        features(to_config({}), tmp_path)
    with pytest.raises(InputError, match=r"sweep\.csv does not exist"):
        features(to_config({"board": {"kind": "recorded", "id": ""}}), tmp_path)


def test_a_stage_says_what_it_did(tmp_path: Path) -> None:
    """Run as `python -m`, a module's logger is `__main__`: its messages must not be lost."""
    root = Path(__file__).parents[2]
    (tmp_path / "conf").symlink_to(root / "conf")
    command = [sys.executable, "-m", "wattune.stages.params", "--experiment", "smoke"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "experiment 'smoke', 9 workloads" in done.stderr
