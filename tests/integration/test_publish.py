"""Publishing to MLflow: found or created, never twice; champion and challenger; a store that is down or wiped."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("flask")

sys.path.insert(0, str(Path(__file__).parents[1]))
from mlflow import MlflowClient

from facts import write_facts
from wattune.cli import main
from wattune.core.errors import BoardError, InputError, IntegrityError
from wattune.core.governor import parse_governor
from wattune.stages.card import main as write_card
from wattune.stages.publish import main as publish_stage
from wattune.tracking.publish import Standing, crown, publish, reading_order
from wattune.tracking.receipts import read_lock
from wattune.tracking.results import REGISTRATION
from wattune.tracking.store import Server, repository_root, sqlite_file, tracking_uri

pytestmark = pytest.mark.server

SCHEMA = Path(__file__).parents[2] / "src/wattune/schemas/registration.schema.json"
PARAMS = Path(__file__).parents[2] / "params.yaml"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An MLflow server, as another machine would run it."""
    running = Server(tmp_path_factory.mktemp("server") / "mlflow.db")
    try:
        yield running.address()
    finally:
        running.stop()


@pytest.fixture
def client(server: str) -> MlflowClient:
    return MlflowClient(tracking_uri=server, registry_uri=server)


def prepare(root: Path, **facts: object) -> dict:
    document = write_facts(root, **facts)
    write_card(root)
    return document


def snapshot(root: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "mlflow.db" not in path.name
    }


def everything(db: Path) -> dict[str, list[tuple]]:
    """Every row of every table of a store."""
    with contextlib.closing(sqlite3.connect(db)) as connection:
        names = [
            name for (name,) in connection.execute("select name from sqlite_master where type = 'table'")
        ]
        return {name: connection.execute(f'select * from "{name}"').fetchall() for name in names}


def children(of: int) -> list[str]:
    """Command lines of live processes below `of`."""
    listed = subprocess.run(
        ["ps", "-eo", "pid=,ppid=,stat=,args="], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()]
    found, parents = [], {of}
    for pid, ppid, stat, args in rows:
        if int(ppid) in parents and not stat.startswith("Z"):
            parents.add(int(pid))
            found.append(args)
    return found


# --- a local SQLite store ---------------------------------------------------------------------------------------------


def test_local_store_twice_moved_and_wiped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One version and the same runs after publishing twice; portable locations; a wiped store comes back from files."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "a folder"
    prepare(root)
    first = publish(root)
    before = everything(root / "mlflow.db")
    assert publish(root) == first
    assert everything(root / "mlflow.db") == before
    assert not [args for args in children(os.getpid()) if str(root) in args]
    assert not list(root.glob("mlflow.db-*.log"))
    assert not (Path.cwd() / "mlruns").exists()

    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(first, json.loads(SCHEMA.read_text()))
    assert str(root) not in json.dumps(first)
    assert first["fingerprints_from"] == "dvc.lock"
    assert first["version"] == 1
    assert first["aliases"] == ["challenger", "champion"]
    assert list(first["runs"]) == ["maxn", "mlg", "oracle"]

    fingerprints = first["fingerprints"]
    (root / "mlflow.db").unlink()
    shutil.rmtree(root / "mlartifacts")
    moved = tmp_path / "moved"
    root.rename(moved)
    again = publish(moved)
    assert again["fingerprints"] == fingerprints
    assert (again["version"], again["aliases"], again["champion"]) == (1, first["aliases"], first["champion"])
    assert set(again["runs"].values()).isdisjoint(first["runs"].values())
    assert (moved / "mlflow.db").is_file()


def test_publishing_again_says_that_nothing_is_new(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """And the record keeps the reason; what is new, or cannot be compared, is said as the first time."""
    prepare(tmp_path, board="again")
    (tmp_path / "params.yaml").write_text(PARAMS.read_text())
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    caplog.set_level("INFO", logger="wattune")
    record = tmp_path / REGISTRATION
    said = []
    for damage in (None, None, "{", None):
        if damage is not None:
            record.write_text(damage)
        publish_stage(tmp_path)
        said.append(caplog.messages[-1])
    reason = "the gate said yes and there was no champion"
    assert [("no run and no version is new" in text) for text in said] == [False, True, False, True]
    assert all(text.endswith(reason) for text in said)
    assert json.loads(record.read_text())["champion"]["reason"] == reason


def test_a_killed_publisher_leaves_no_server(tmp_path: Path) -> None:
    """Not even SIGKILL strands the private server."""
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom wattune.tracking.store import connected\n"
        "with connected('sqlite:///' + sys.argv[1]) as address:\n    print(address, flush=True)\n    time.sleep(60)\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "mlflow.db")], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline().startswith("http://127.0.0.1:")
    child.kill()
    child.wait()
    child.stdout.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        listed = subprocess.run(
            ["ps", "-eo", "stat=,args="], capture_output=True, text=True, check=True
        ).stdout
        stray = [line for line in listed.splitlines() if str(tmp_path) in line and not line.startswith("Z")]
        if not stray:
            break
        time.sleep(0.1)
    assert stray == []


# --- a server over HTTP ----------------------------------------------------------------------------------------------


def test_runs_say_what_they_are(tmp_path: Path, server: str, client: MlflowClient) -> None:
    document = prepare(tmp_path, board="runs-board")
    registration = publish(tmp_path, uri=server)
    experiment = client.get_experiment_by_name("wattune/runs-board/simulated")
    assert experiment.artifact_location.startswith("mlflow-artifacts:")

    runs = {policy: client.get_run(run_id) for policy, run_id in registration["runs"].items()}
    names = {policy: set(run.data.metrics) for policy, run in runs.items()}
    assert names["maxn"] == names["oracle"]
    assert {"mean_saving_pct", "mean_regret_pct", "mean_slowdown_pct"} <= names["maxn"]
    mlg = runs["mlg"]
    assert mlg.data.metrics["mean_saving_pct"] == 17.0
    assert mlg.data.metrics["small/mean_saving_pct"] == -4.0
    assert mlg.data.metrics["ci95/mean_saving_low_pct"] == 15.0
    assert mlg.data.params == {
        "policy": "05 mlg",
        "evaluate.bootstrap_resamples": "2000",
        "train.max_depth": "[1, 2]",
    }
    tags = mlg.data.tags
    assert (tags["provenance"], tags["board"], tags["rails"], tags["power_mode"]) == (
        "simulated",
        "runs-board",
        "gpu_cpu",
        "MAXN",
    )
    assert tags["governor.digest"] == document["digest"]
    assert tags["dvc.stage_fingerprint"] == registration["fingerprints"]["evaluate"]
    assert tags["git.commit"] == tags["git.dirty"] == "unknown"
    assert "Simulated" in tags["mlflow.note.content"]
    lock = json.loads((tmp_path / "dvc.lock").read_text())
    assert mlg.inputs.dataset_inputs[0].dataset.digest == lock["stages"]["features"]["outs"][0]["md5"]
    figures = [Path(item.path).name for item in client.list_artifacts(mlg.info.run_id, "figures")]
    assert figures == ["01-policies.png", "02-curves-bert-base.png", "03-confusion.png"]
    assert mlg.info.run_name == "05 mlg"

    search = client.search_runs(
        [experiment.experiment_id], f"tags.`mlflow.parentRunId` = '{registration['search_run']}'"
    )
    assert {run.data.params["max_depth"]: run.data.metrics["loo_accuracy"] for run in search} == {
        "1": pytest.approx(0.6),
        "2": pytest.approx(0.7),
    }
    assert client.get_run(registration["search_run"]).data.metrics["leaves"] == 3


def test_a_committed_lock_stamps_its_commit_on_the_runs(
    tmp_path: Path, server: str, client: MlflowClient
) -> None:
    """During `dvc repro` the tree is dirty; once dvc.lock is committed, publishing again says from which commit."""
    prepare(tmp_path, board="git-board")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "dvc.yaml"], check=True)
    subprocess.run([*git, "commit", "-qm", "first"], check=True)
    first = publish(tmp_path, uri=server)
    assert client.get_run(first["runs"]["mlg"]).data.tags["git.dirty"] == "true"
    subprocess.run([*git, "add", "-A"], check=True)
    subprocess.run([*git, "commit", "-qm", "second"], check=True)
    assert publish(tmp_path, uri=server) == first
    tags = client.get_run(first["runs"]["mlg"]).data.tags
    version = client.get_model_version(first["model"], "1")
    head = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert (tags["git.dirty"], tags["git.commit"]) == ("false", head)
    assert (version.tags["git.dirty"], version.tags["git.commit"]) == ("false", head)
    assert f"`{head}`" in version.description


def test_a_new_report_replaces_the_old_one_and_nothing_else(
    tmp_path: Path, server: str, client: MlflowClient
) -> None:
    """The report and the card may change while the evaluation stays: the runs stay, the newest page is theirs."""
    prepare(tmp_path, board="report-board")
    first = publish(tmp_path, uri=server)
    run_id = first["runs"]["mlg"]
    names = {item.path for item in client.list_artifacts(run_id)}
    assert {"figures", "model_card.md", "workloads.json"} <= names
    assert "report.html" not in names
    page = tmp_path / "reports/index.html"
    for text in ("<p>first", "<p>second"):
        page.write_text(text)
        assert publish(tmp_path, uri=server) == first
        assert Path(client.download_artifacts(run_id, "report.html", str(tmp_path))).read_text() == text
    experiment = client.get_experiment_by_name("wattune/report-board/simulated")
    assert "[the report page](#/experiments/" in experiment.tags["mlflow.note.content"]
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development"


def test_the_view_finds_the_policies_of_this_publication_alone(
    tmp_path: Path, server: str, client: MlflowClient
) -> None:
    prepare(tmp_path, board="view-board")
    publish(tmp_path, uri=server)
    prepare(tmp_path, board="view-board", regret=3.0)
    second = publish(tmp_path, uri=server)
    experiment = client.get_experiment_by_name("wattune/view-board/simulated")
    view = json.loads(experiment.tags["mlflow.sharedViewState.wattune-policies"])
    state = json.loads(view["state"])
    found = client.search_runs(
        [experiment.experiment_id], state["searchFilter"], order_by=[f"{state['orderByKey']} ASC"]
    )
    assert [run.info.run_id for run in found] == list(second["runs"].values())
    assert [run.info.run_name for run in found] == ["01 maxn", "05 mlg", "09 oracle"]
    search = json.loads(json.loads(experiment.tags["mlflow.sharedViewState.wattune-search"])["state"])
    assert len(client.search_runs([experiment.experiment_id], search["searchFilter"])) == 2


def test_files_that_no_lock_names_are_known_by_their_bytes(tmp_path: Path, server: str) -> None:
    prepare(tmp_path, board="lockless-board", lock=False)
    first = publish(tmp_path, uri=server)
    assert first["fingerprints_from"] == "files"
    assert publish(tmp_path, uri=server) == first
    path = tmp_path / "reports/evaluate/metrics.json"
    path.write_text(path.read_text().replace("0.25", "0.35"))
    assert publish(tmp_path, uri=server)["runs"]["mlg"] != first["runs"]["mlg"]


def test_a_lock_that_does_not_fit_the_files_is_not_believed(tmp_path: Path, server: str) -> None:
    prepare(tmp_path, board="stale-board")
    path = tmp_path / "reports/evaluate/metrics.json"
    path.write_text(path.read_text().replace("0.25", "0.35"))
    assert publish(tmp_path, uri=server)["fingerprints_from"] == "files"


def test_champion_and_challenger(tmp_path: Path, server: str, client: MlflowClient) -> None:
    """Rejected, promoted, a better champion stays, a better challenger wins, other workloads are not comparable."""
    board = {"board": "aliases-board"}
    name = "wattune-aliases-board-simulated"

    prepare(tmp_path, **board, promote=False, saving=5.0)
    rejected = publish(tmp_path, uri=server)
    assert (rejected["version"], rejected["aliases"], rejected["champion"]["version"]) == (
        1,
        ["challenger"],
        None,
    )
    assert "rejected" in rejected["champion"]["reason"]
    assert "5 against 10" in rejected["champion"]["reason"]

    prepare(tmp_path, **board, regret=2.0)
    promoted = publish(tmp_path, uri=server)
    assert (promoted["version"], promoted["aliases"]) == (2, ["challenger", "champion"])

    prepare(tmp_path, **board, regret=3.0, shallow_mhz=306.0)
    worse = publish(tmp_path, uri=server)
    assert (worse["version"], worse["aliases"], worse["champion"]["version"]) == (3, ["challenger"], 2)
    assert "better on the same workloads" in worse["champion"]["reason"]

    prepare(tmp_path, **board, regret=1.0, shallow_mhz=816.0)
    better = publish(tmp_path, uri=server)
    assert (better["version"], better["champion"]["version"]) == (4, 4)

    prepare(tmp_path, **board, regret=9.0, held_out="b" * 64, shallow_mhz=306.0)
    other = publish(tmp_path, uri=server)
    assert (other["version"], other["champion"]["version"]) == (5, 5)
    assert "not comparable" in other["champion"]["reason"]

    prepare(tmp_path, **board, regret=9.5, held_out="b" * 64, promote=False, shallow_mhz=612.0)
    kept = publish(tmp_path, uri=server)
    assert (kept["version"], kept["champion"]["version"]) == (6, 5)

    prepare(tmp_path, **board, regret=2.0)  # a revert to version 2's files
    assert publish(tmp_path, uri=server)["version"] == 2
    model = client.get_registered_model(name)
    assert len(client.search_model_versions(f"name = '{name}'")) == 6
    assert model.aliases["challenger"] == "2"


def test_the_registered_version_carries_the_card_and_its_standing(
    tmp_path: Path, server: str, client: MlflowClient
) -> None:
    document = prepare(tmp_path, board="card-board")
    registration = publish(tmp_path, uri=server)
    version = client.get_model_version_by_alias(registration["model"], "champion")
    assert version.tags["governor.digest"] == document["digest"]
    assert version.tags["held_out_digest"] == "a" * 64
    assert version.tags["gate.verdict"] == "accepted"
    assert version.tags["provenance"] == "simulated"
    assert (float(version.tags["mean_regret_pct"]), float(version.tags["mean_saving_pct"])) == (2.0, 17.0)
    assert version.run_id == registration["runs"]["mlg"]
    assert client.get_model_version_download_uri(version.name, version.version).startswith(
        "mlflow-artifacts:"
    )
    for description in (version.description, client.get_registered_model(version.name).description):
        assert description.startswith("# Governor `mlg` for `card-board` (simulated)")
        assert len(description) <= 5000


def test_the_model_loads_without_pickle_and_without_wattune(tmp_path: Path, server: str) -> None:
    """In a process that has MLflow and pandas and no Wattune; it answers as the governor does."""
    document = prepare(tmp_path, board="pyfunc-board")
    registration = publish(tmp_path, uri=server)
    code = """
import json, os, sys
sys.meta_path = [f for f in sys.meta_path if "editable" not in repr(f).lower()]
sys.path = [p for p in sys.path if not os.path.isdir(os.path.join(p, "wattune"))]
import importlib.util
assert importlib.util.find_spec("wattune") is None
import pandas as pd, mlflow
model = mlflow.pyfunc.load_model(f"models:/{sys.argv[1]}@champion")
rows = pd.DataFrame([
    {"family": "bert", "layers": 12.0}, {"family": "bert", "layers": 4.0}, {"family": "gpt-neox", "layers": 24.0},
    {"family": None, "layers": float("nan")},
])
answer = model.predict(rows)
import wattune
print(json.dumps([wattune.__file__, answer["gpu_mhz"].tolist(), answer["in_range"].tolist(), answer["rule"].tolist()]))
"""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "MLFLOW_TRACKING_URI": server,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        "no_proxy": "127.0.0.1",
    }
    done = subprocess.run(
        [sys.executable, "-c", code, registration["model"]],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    where, clocks, in_range, rules = json.loads(done.stdout.splitlines()[-1])
    assert not where.startswith(str(Path(__file__).parents[2]))
    governor = parse_governor(json.dumps(document))
    asked = [
        {"family": "bert", "layers": 12},
        {"family": "bert", "layers": 4},
        {"family": "gpt-neox", "layers": 24},
        {},
    ]
    decisions = [governor.decide(row) for row in asked]
    assert clocks == [d.setting for d in decisions] == [816.0, 612.0, 1300.5, 816.0]
    assert rules == [d.rule for d in decisions]
    assert all(in_range)


def test_an_experiment_in_a_local_folder_is_refused(
    tmp_path: Path, server: str, client: MlflowClient
) -> None:
    """Made by a server without proxied artifacts: another machine could not pull from it."""
    prepare(tmp_path, board="local-board")
    client.create_experiment("wattune/local-board/simulated", artifact_location=str(tmp_path / "artifacts"))
    with pytest.raises(BoardError, match="folder of one machine"):
        publish(tmp_path, uri=server)


# --- faults ----------------------------------------------------------------------------------------------------------


def test_server_down_leaves_the_files_and_says_how_to_go_on(tmp_path: Path) -> None:
    prepare(tmp_path)
    (tmp_path / "params.yaml").write_text("experiment: smoke\n")
    (tmp_path / "reports/publish").mkdir()
    (tmp_path / "reports/publish/registration.json").write_text("{}\n")
    before = snapshot(tmp_path)
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "wattune.stages.publish"],
        cwd=tmp_path,
        env=os.environ | {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert time.monotonic() - start < 10
    assert "http://127.0.0.1:9 does not answer" in done.stderr
    assert "wattune publish" in done.stderr
    assert "Traceback" not in done.stderr
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("content", [b"junk\n", b"SQLite format 3\0 and then nothing of the kind"])
@pytest.mark.parametrize(
    "words", [["publish"], ["pull"], ["choose", "--governor", "models:/wattune-one-simulated@champion"]]
)
def test_a_store_that_is_no_database_is_refused_by_all_in_the_same_words(
    words: list[str],
    content: bytes,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prepare(tmp_path)
    (tmp_path / "params.yaml").write_text(PARAMS.read_text())
    (tmp_path / "dvc.yaml").write_text("stages: {}\n")
    db = tmp_path / "my store.db"
    db.write_bytes(content)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{db}")
    monkeypatch.chdir(tmp_path)
    assert main(words) == IntegrityError.exit_code
    said = capsys.readouterr().err
    assert f"{db} is no SQLite database" in said
    assert f"`mv '{db}' '{db}.damaged'`) and type `wattune publish`" in said
    assert said.count("\n") == 1
    assert db.read_bytes() == content


def test_a_server_that_does_not_start_leaves_its_log(tmp_path: Path) -> None:
    """Here because the store is of another version of MLflow."""
    prepare(tmp_path)
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as connection:
        connection.execute("create table alembic_version (version_num text)")
        connection.execute("insert into alembic_version values ('of nobody')")
        connection.commit()
    with pytest.raises(BoardError, match="did not start") as caught:
        publish(tmp_path, uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    log = Path(str(caught.value).split("Its whole log is ")[1].split(". ")[0])
    assert log.is_file()


@pytest.mark.parametrize("where", [".", "conf"])
def test_what_is_advised_for_a_damaged_lock_mends_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`dvc repro` alone fails on the same file."""
    root = tmp_path / "my clone"
    (root / "conf").mkdir(parents=True)
    lock = root / "dvc.lock"
    lock.write_text("stages:\n  train: {cmd: python}\n")
    for words in (
        ["init", "-q"],
        ["add", "dvc.lock"],
        ["-c", "user.name=a", "-c", "user.email=b", "commit", "-qm", "c"],
    ):
        subprocess.run(["git", *words], cwd=root, check=True)  # fmt: skip
    lock.write_text("junk: [\n")
    monkeypatch.chdir(root / where)
    with pytest.raises(InputError, match=r"dvc.lock is not YAML.*and then `dvc repro`") as caught:
        read_lock(root)
    restore, remove = re.findall("`(git checkout [^`]+|rm [^`]+)`", str(caught.value))
    subprocess.run(restore, shell=True, check=True)
    assert read_lock(root) == {"train": {"cmd": "python"}}
    subprocess.run(remove, shell=True, check=True)
    assert read_lock(root) == {}


def test_files_of_two_runs_are_not_published(tmp_path: Path) -> None:
    prepare(tmp_path)
    path = tmp_path / "reports/gate/decision.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"governor_digest": "0" * 64}))
    with pytest.raises(IntegrityError, match="about governor"):
        publish(tmp_path, uri="http://127.0.0.1:9")


@pytest.mark.parametrize(
    "name", ["models/model_card.md", "reports/train/loocv.csv", "data/features/features.csv"]
)
def test_a_missing_file_is_named_before_any_server_is_asked(tmp_path: Path, name: str) -> None:
    prepare(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(InputError, match=Path(name).name):
        publish(tmp_path, uri="http://127.0.0.1:9")


@pytest.mark.parametrize(
    "uri", ["file:///tmp/mlruns", "sqlite:///:memory:", "postgresql://host/db", "mlruns"]
)
def test_other_stores_are_refused(uri: str) -> None:
    with pytest.raises(InputError, match="cannot be used"):
        sqlite_file(uri)


# --- rules without a server ------------------------------------------------------------------------------------------


def standing(
    version: str = "2", digest: str = "a", regret: float = 1.0, saving: float | None = 10.0
) -> Standing:
    return Standing(version, digest, regret, saving)


@pytest.mark.parametrize(
    ("present", "refusal", "crowned", "said"),
    [
        (None, None, True, "no champion"),
        (None, "the gate said no", False, "gate said no"),
        (standing("1", regret=0.5), None, False, "better"),
        (standing("1", regret=1.5), None, True, "not better"),
        (standing("1", regret=1.0, saving=11.0), None, False, "better"),
        (standing("1", regret=1.0, saving=9.0), None, True, "not better"),
        (standing("1", regret=1.0, saving=10.0), None, True, "not better"),
        (standing("1", regret=1.0, saving=None), None, True, "not better"),
        (standing("1", digest="b", regret=0.1), None, True, "not comparable"),
        (standing("2"), None, True, "already"),
        (standing("1", regret=1.5), "the gate said no", False, "gate said no"),
    ],
)
def test_who_becomes_champion(
    present: Standing | None, refusal: str | None, crowned: bool, said: str
) -> None:
    answer, reason = crown(standing(), present, refusal)
    assert answer is crowned
    assert said in reason


def test_a_champion_without_tags_blocks_nobody() -> None:
    assert Standing.from_tags("1", {}) == Standing("1", "", float("inf"), None)


def test_the_default_store_is_absolute_and_outlives_a_temporary_clone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    root = tmp_path / "repo"
    for folder in (root, root / ".dvc/tmp/exps/standalone/clone"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dvc.yaml").touch()
    (root / "sub").mkdir()
    expected = f"sqlite:///{root / 'mlflow.db'}"
    assert tracking_uri(root / "sub") == expected
    assert tracking_uri(root / ".dvc/tmp/exps/standalone/clone") == expected
    assert repository_root(root / ".dvc/tmp/exps/standalone/clone").name == "clone"
    assert sqlite_file(expected) == root / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host:5000")
    assert tracking_uri(root) == "http://host:5000"


def test_figures_come_in_reading_order() -> None:
    names = ["confusion.png", "curves-a.png", "zzz.png", "savings.png", "policies.png"]
    ordered = [path.name for path in reading_order([Path(name) for name in names])]
    assert ordered == ["policies.png", "savings.png", "curves-a.png", "confusion.png", "zzz.png"]


def test_a_simulated_governor_needs_a_model_that_says_so() -> None:
    from wattune.tracking.publish import refusal_reason

    results = SimpleNamespace(
        governor=SimpleNamespace(provenance="simulated"),
        decision={"promote": True, "rules": [], "verdict": "accepted", "mode": "enforce"},
    )
    assert refusal_reason(results, "wattune-board-simulated") is None
    assert "simulated" in str(refusal_reason(results, "wattune-board-measured"))
