"""The house: params agree with conf/, dvc.yaml names what stages import, outputs are ignored by git."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml")
pytest.importorskip("hydra")

from wattune.config import compose  # noqa: E402

ROOT = Path(__file__).parents[2]
DVC = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES = (
    "protocol",
    "profile",
    "features",
    "accuracy",
    "train",
    "evaluate",
    "validate",
    "gate",
    "card",
    "report",
    "publish",
)


def test_params_agree_with_conf() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    assert params == compose(ROOT / "conf", params["experiment"]), "run `make params`"


def test_committed_params_are_the_default_experiment() -> None:
    committed = subprocess.run(
        ["git", "show", "HEAD:params.yaml"], cwd=ROOT, capture_output=True, check=False
    )
    if committed.returncode:
        pytest.skip("no git history")
    assert yaml.safe_load(committed.stdout)["experiment"] == "paper"


def test_the_stages_are_the_path_of_the_data() -> None:
    assert tuple(DVC["stages"]) == STAGES
    for name, stage in DVC["stages"].items():
        assert stage["desc"]
        assert stage["cmd"].startswith(f"python -m wattune.stages.{name}")


@pytest.mark.parametrize("stage", [s for s in STAGES if s not in ("protocol", "profile", "accuracy")])
def test_deps_cover_the_code_a_stage_imports(stage: str) -> None:
    """Import the stage's module with everything it uses lazily, and compare with what dvc.yaml watches."""
    deps = [ROOT / dep for dep in DVC["stages"][stage]["deps"] if dep.startswith("src/")]
    code = (ROOT / "src/wattune/stages" / f"{stage}.py").read_text()
    imported = set(re.findall(r"^\s*(?:from|import) (wattune[.\w]*)", code, re.MULTILINE))
    script = f"import sys\nfor name in {sorted(imported)!r}: __import__(name)\n" + (
        "print('\\n'.join(m.__file__ for n, m in sys.modules.items() if n.startswith('wattune') and m.__file__))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout.split()
    package = ROOT / "src/wattune"
    files = {Path(f) for f in loaded if not f.endswith("__init__.py")} | {package / "stages" / f"{stage}.py"}
    # The catalogue only checks names in the configuration; what it says of a workload is in features.csv.
    free = {package / "workloads/catalogue.py"}
    missing = sorted(
        str(f.relative_to(ROOT))
        for f in files - free
        if not any(f == dep or dep in f.parents for dep in deps)
    )
    assert not missing, f"add to the deps of {stage} in dvc.yaml: {missing}"


def test_every_out_is_ignored_by_git() -> None:
    outs: list[str] = []
    for stage in DVC["stages"].values():
        for out in stage.get("outs", []) + stage.get("metrics", []):
            outs.append(out if isinstance(out, str) else next(iter(out)))  # noqa: PERF401
    for out in (o.replace("${item.workload}", "bert-base-sst2") for o in outs):
        done = subprocess.run(["git", "check-ignore", "-q", out + "/x"], cwd=ROOT, check=False)
        done_file = subprocess.run(["git", "check-ignore", "-q", out], cwd=ROOT, check=False)
        assert 0 in (done.returncode, done_file.returncode), out


def test_makefile_is_short_and_says_what_it_does() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = re.findall(r"^([a-z][a-z-]*):", text, re.MULTILINE)
    assert len(targets) <= 16
    assert all(re.search(rf"^{t}:.*##", text, re.MULTILINE) for t in targets)


def test_nothing_unsafe_is_loaded() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(
            r"import (pickle|joblib|cloudpickle)|\b(eval|exec)\(|joblib\.load", path.read_text()
        ), path


def test_constraints_hold_no_addresses() -> None:
    text = (ROOT / "constraints.txt").read_text()
    assert not re.search(r"://|^-", text, re.MULTILINE)
    assert not re.search(r"^(torch|triton)==", text, re.MULTILINE)


@pytest.mark.parametrize("command", [["--help"], ["choose", "--help"]])
def test_front_door_imports_nothing_heavy(command: list[str]) -> None:
    script = (
        f"import sys\nfrom wattune.cli import main\ntry: main({command!r})\nexcept SystemExit: pass\n"
        "heavy = {'torch','mlflow','pandas','numpy','sklearn','omegaconf','hydra','yaml','matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
