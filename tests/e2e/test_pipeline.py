"""The main job, from a clone: repro, repro again, publish twice, wipe, pull, choose; smoke, recorded and git-less runs."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dvc")
pytest.importorskip("mlflow")
pytestmark = pytest.mark.e2e

ROOT = Path(__file__).parents[2]


def copy_tree(target: Path) -> Path:
    """The working tree as a clone would have it (committed or not, ignored files left out)."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    return target


def commit(folder: Path) -> None:
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run([*git, "commit", "-qm", "clone"], cwd=folder, check=True)


def run(folder: Path, *command: str, code: int = 0, **env: str) -> str:
    """Run a command of the clone with its own source, and demand an exit code."""
    environment = {k: v for k, v in os.environ.items() if k not in ("MLFLOW_TRACKING_URI", "WATTUNE_DATA")}
    environment |= {"PYTHONPATH": str(folder / "src"), "HF_HUB_OFFLINE": "1", "DVC_NO_ANALYTICS": "1", **env}
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, (
        f"{command}: {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done.stdout + done.stderr


def ran(output: str) -> list[str]:
    return re.findall(r"Running stage '([^']+)'", output)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_tree(tmp_path_factory.mktemp("clone"))
    commit(folder)
    output = run(folder, "dvc", "repro")
    stages = ran(output)
    assert sum(s.startswith("profile@") for s in stages) == 81
    assert stages[-8:] == ["features", "train", "evaluate", "validate", "gate", "card", "report", "publish"]
    return folder


def registration(folder: Path) -> dict:
    return json.loads((folder / "reports/publish/registration.json").read_text())


def test_every_output_is_there_and_says_simulated(clone: Path) -> None:
    with (clone / "data/features/features.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 81 * 12 * 3
    assert {row["provenance"] for row in rows} == {"simulated"}
    metrics = json.loads((clone / "reports/evaluate/metrics.json").read_text())
    assert metrics["_meta"]["provenance"] == "simulated"
    assert metrics["_meta"]["n_workloads"] == 54
    assert metrics["_meta"]["n_training"] == 27
    assert metrics["maxn"]["all"]["mean_saving_pct"] == 0
    assert metrics["oracle"]["all"]["mean_regret_pct"] == 0
    for policy in ("ffg", "published", "mlg", "mlg-regret", "curve", "probe"):
        assert metrics[policy]["all"]["n"] == 54
        assert metrics[policy]["all"]["mean_saving_pct"] <= metrics["oracle"]["all"]["mean_saving_pct"]
    assert "simulated" in (clone / "models/model_card.md").read_text().lower()
    assert json.loads((clone / "models/governor.json").read_text())["provenance"] == "simulated"
    assert registration(clone)["model"] == "wattune-jetson-agx-orin-64gb-simulated"


def test_the_shapes_the_paper_found(clone: Path) -> None:
    """Large models save much against MAXN and have their optimum well below the top clock; small ones save less."""
    metrics = json.loads((clone / "reports/evaluate/metrics.json").read_text())
    oracle = metrics["oracle"]
    assert 15 < oracle["large"]["mean_saving_pct"] < 32
    assert oracle["small"]["mean_saving_pct"] < oracle["large"]["mean_saving_pct"]
    with (clone / "reports/evaluate/policies.csv").open() as file:
        optima = [
            r["setting"] for r in csv.DictReader(file) if r["policy"] == "oracle" and r["size"] == "large"
        ]
    assert optima
    assert all(o != "maxn" and 408 <= float(o) <= 1020 for o in optima)


def test_a_second_repro_runs_nothing(clone: Path) -> None:
    assert ran(run(clone, "dvc", "repro")) == []


def test_git_stays_clean_but_for_the_lock(clone: Path) -> None:
    status = subprocess.run(
        ["git", "status", "--porcelain"], cwd=clone, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    assert [line[3:] for line in status if line] in ([], ["dvc.lock"])


def test_publishing_again_makes_nothing_new(clone: Path) -> None:
    before = registration(clone)
    run(clone, "wattune", "publish")
    assert registration(clone) == before


def test_a_wiped_database_is_rebuilt_from_files(clone: Path) -> None:
    before = registration(clone)
    (clone / "mlflow.db").unlink()
    shutil.rmtree(clone / "mlartifacts")
    run(clone, "wattune", "publish")
    after = registration(clone)
    assert (after["model"], sorted(after["runs"]), after["aliases"]) == (
        before["model"],
        sorted(before["runs"]),
        before["aliases"],
    )
    assert ran(run(clone, "dvc", "repro")) in ([], ["publish"])


def test_pull_and_choose_without_site_packages(clone: Path, tmp_path: Path) -> None:
    alias = "champion" if "champion" in registration(clone)["aliases"] else "challenger"
    model = registration(clone)["model"]
    run(clone, "wattune", "pull", f"models:/{model}@{alias}", "-o", str(tmp_path / "governor.json"))
    choose = "import sys; sys.path.insert(0, sys.argv.pop(1)); from wattune.cli import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", choose, str(clone / "src"), "choose", "--model", "BERT-base", "--task", "MNLI",
         "--governor", str(tmp_path / "governor.json"), "--json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert answer["provenance"] == "simulated"
    assert answer["governor"] == json.loads((clone / "models/governor.json").read_text())["digest"]
    ships = json.loads((clone / "reports/train/champion.json").read_text())["champion"]
    with (clone / "reports/evaluate/policies.csv").open() as file:
        judged = next(
            r for r in csv.DictReader(file) if r["policy"] == ships and r["workload"] == "bert-base-mnli"
        )
    if "gpu_util_ref_pct" not in answer["rule"]:
        assert f"{answer['mhz']:g}" == judged["setting"]
    assert "gpu_util_ref_pct" in answer["assumed"]


def test_the_readme_shows_what_the_pipeline_printed(clone: Path) -> None:
    run(clone, "wattune.readme", "--check")


def test_changing_one_workload_profiles_that_workload_alone(clone: Path) -> None:
    run(clone, "wattune.stages.params", "--experiment", "paper", "workloads.bert-base-sst2.batch_size=64")
    stages = ran(run(clone, "dvc", "repro"))
    assert [s for s in stages if s.startswith("profile@")] == ["profile@bert-base-sst2"]
    run(clone, "wattune.stages.params", "--experiment", "paper")
    stages = ran(run(clone, "dvc", "repro"))
    assert [s for s in stages if s.startswith("profile@")] in ([], ["profile@bert-base-sst2"])


def test_a_clone_without_git_history(tmp_path: Path) -> None:
    """A downloaded archive: no .git at all."""
    folder = copy_tree(tmp_path / "archive")
    run(folder, "dvc", "config", "--local", "core.no_scm", "true")
    run(folder, "wattune.stages.params", "--experiment", "smoke")
    assert ran(run(folder, "dvc", "repro"))[-1] == "publish"
    assert ran(run(folder, "dvc", "repro")) == []


@pytest.mark.parametrize("baseline", [True, False])
def test_recorded_sweeps_run_from_features_to_publish(tmp_path: Path, baseline: bool) -> None:
    """With a MAXN row and features, and with neither: then savings are unknown and the governor is one clock."""
    folder = copy_tree(tmp_path / "clone")
    commit(folder)
    sweep = tmp_path / "others.csv"
    with sweep.open("w", newline="") as file:
        out = csv.writer(file)
        known = ["layers", "seq_len"] if baseline else []
        out.writerow(["board", "workload", "setting", "gpu_mhz", "energy_j", "time_s", *known])
        for index, best in enumerate((500, 600, 700, 800)):
            features = [4 + 4 * index, 10 * (index + 1)] if baseline else []
            for mhz in range(300, 1300, 100):
                energy = 100 + ((mhz - best) / 100) ** 2 * 3
                out.writerow(["some-board", f"w{index}", "", mhz, energy, 5000 / mhz, *features])
            if baseline:
                out.writerow(["some-board", f"w{index}", "maxn", "", 160, 4, *features])
    run(folder, "wattune.stages.params", "--experiment", "recorded", "--data", str(sweep))
    stages = ran(run(folder, "dvc", "repro"))
    assert stages == [
        "protocol",
        "features",
        "train",
        "evaluate",
        "validate",
        "gate",
        "card",
        "report",
        "publish",
    ]
    metrics = json.loads((folder / "reports/evaluate/metrics.json").read_text())
    assert metrics["_meta"]["provenance"] == "recorded"
    assert metrics["_meta"]["split"] == "leave_one_out"
    assert metrics["ffg"]["all"]["n"] == 4
    assert metrics["oracle"]["all"]["mean_saving_pct"] == (pytest.approx(37.5) if baseline else None)
    assert registration(folder)["model"] == "wattune-some-board-recorded"
    decision = json.loads((folder / "reports/gate/decision.json").read_text())
    assert decision["verdict"] == "rejected" or baseline
