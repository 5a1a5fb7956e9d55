"""Pulling a governor: from a store, over HTTP from another environment, from a folder; and everything it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("flask")

sys.path.insert(0, str(Path(__file__).parents[1]))
from facts import governor, write_facts
from wattune.core.errors import BoardError, InputError, IntegrityError
from wattune.core.governor import canonical_json, parse_governor
from wattune.stages.card import main as write_card
from wattune.tracking.publish import publish
from wattune.tracking.pull import pull
from wattune.tracking.store import Server

pytestmark = pytest.mark.server

ROOT = Path(__file__).parents[2]
PULL_PYTHON = ROOT / ".cache/envs/pull/bin/python"
PULL = (
    "import sys\nfrom pathlib import Path\nfrom wattune.core.errors import WattuneError\n"
    "from wattune.tracking.pull import pull\n"
    "try:\n    print(pull(sys.argv[1] or None, Path('governor.json')))\n"
    "except WattuneError as error:\n    print(error, file=sys.stderr)\n    sys.exit(error.exit_code)\n"
)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A store with a champion for board `one` and only a challenger for board `two`, and its server's address."""
    store = tmp_path_factory.mktemp("store")
    server = Server(store / "mlflow.db")
    try:
        address = server.address()
        for board, promote in (("one", True), ("two", False)):
            root = tmp_path_factory.mktemp(board)
            write_facts(root, board=board, promote=promote)
            write_card(root)
            publish(root, uri=address)
        yield store, address
    finally:
        server.stop()


@pytest.fixture
def store(published: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store as the default one, moved to another place: no server, no absolute path in it may matter."""
    folder = tmp_path / "moved store"
    shutil.copytree(published[0], folder)
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{folder / 'mlflow.db'}")
    return folder


def governor_file(store: Path, board: str) -> Path:
    """The artifact of a board's only version."""
    found = [
        path
        for path in store.rglob("artifacts/governor.json")
        if json.loads(path.read_text())["board"] == board
    ]
    assert len(found) == 1
    return found[0]


def test_pull_over_http_from_another_folder_and_environment(
    published: tuple[Path, str], tmp_path: Path
) -> None:
    """With mlflow-skinny alone where that environment has been made, else with this one."""
    skinny = PULL_PYTHON.is_file()
    python = str(PULL_PYTHON) if skinny else sys.executable
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | {
        "MLFLOW_TRACKING_URI": published[1]
    }
    done = subprocess.run(
        [python, "-c", PULL, "models:/wattune-one-simulated@champion"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "wattune-one-simulated version 1 (challenger, champion)" in done.stdout
    assert (tmp_path / "governor.json").read_text() == canonical_json(governor("one"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["governor.json"]
    if skinny:
        missing = "import importlib.util as u; assert not any(map(u.find_spec, ('pandas', 'numpy', 'sklearn', 'torch')))"
        subprocess.run([python, "-c", missing], check=True)


@pytest.mark.parametrize(
    "uri",
    [
        "models:/wattune-one-simulated",
        "models:/wattune-one-simulated@champion",
        "models:/wattune-one-simulated/1",
    ],
)
def test_pull_from_a_moved_store_without_a_server(store: Path, uri: str) -> None:
    pulled = pull(uri, Path("new/folder/governor.json"))
    assert pulled.governor.digest == governor("one")["digest"]
    assert Path("new/folder/governor.json").read_text() == canonical_json(governor("one"))
    assert str(store) not in str(pulled)
    assert [path.name for path in Path().iterdir()] == ["new"]  # no mlruns, no database


def test_pull_over_http_in_this_process(published: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Several governors"):
        pull(published[1], tmp_path / "governor.json")
    assert not (tmp_path / "governor.json").exists()


def test_several_models_are_listed_unless_the_repository_names_its_own(store: Path) -> None:
    with pytest.raises(InputError, match="wattune-one-simulated, wattune-two-simulated"):
        pull()
    Path("dvc.yaml").touch()
    Path("models").mkdir()
    Path("models/governor.json").write_text(canonical_json(governor("one")))
    assert pull().governor.board == "one"
    assert Path("governor.json").is_file()


def test_no_champion_names_the_challenger_and_how_to_pull_it(store: Path) -> None:
    with pytest.raises(InputError, match="its challenger is version 1") as caught:
        pull("models:/wattune-two-simulated")
    command = "wattune pull models:/wattune-two-simulated@challenger"
    assert command in str(caught.value)
    assert pull(command.split()[-1]).governor.board == "two"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("models:/wattune-three-simulated@champion", "It has: wattune-one-simulated, wattune-two-simulated"),
        ("models:/wattune-one-simulated/7", "no version 7"),
        ("models:/wattune-one-simulated@nobody", "has no nobody"),
        ("models:/", "not the address"),
        ("models:/a/b/c", "not the address"),
        ("nowhere/at/all", "no governor at"),
    ],
)
def test_what_does_not_exist_is_said(store: Path, uri: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        pull(uri)
    assert not Path("governor.json").exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("612000000", "306000000"),
        lambda _: canonical_json(governor("one", shallow_mhz=306.0)),  # sound, but not the one registered
        lambda _: "",
    ],
    ids=["truncated", "edited", "exchanged", "empty"],
)
def test_a_damaged_artifact_is_refused_and_the_last_good_file_stays(store: Path, damage) -> None:
    good = canonical_json(governor("old"))
    Path("governor.json").write_text(good)
    path = governor_file(store, "one")
    path.write_text(damage(path.read_text()))
    with pytest.raises(IntegrityError):
        pull("models:/wattune-one-simulated@champion")
    assert Path("governor.json").read_text() == good


def test_a_damaged_artifact_on_a_server_is_refused(published: tuple[Path, str], tmp_path: Path) -> None:
    good = canonical_json(governor("old"))
    (tmp_path / "governor.json").write_text(good)
    path = governor_file(published[0], "two")
    sound = path.read_text()
    path.write_text(sound.replace("612000000", "306000000"))
    environment = os.environ | {"MLFLOW_TRACKING_URI": published[1]}
    try:
        done = subprocess.run(
            [sys.executable, "-c", PULL, "models:/wattune-two-simulated@challenger"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(sound)
    assert done.returncode == 4, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "governor.json").read_text() == good


def test_a_lost_artifact_is_said(store: Path) -> None:
    governor_file(store, "one").unlink()
    with pytest.raises(IntegrityError, match="is missing, although"):
        pull("models:/wattune-one-simulated@champion")


def test_a_version_that_wattune_did_not_register_is_refused(store: Path) -> None:
    from mlflow import MlflowClient

    uri = os.environ["MLFLOW_TRACKING_URI"]
    MlflowClient(tracking_uri=uri, registry_uri=uri).delete_model_version_tag(
        "wattune-one-simulated", "1", "governor.digest"
    )
    with pytest.raises(IntegrityError, match="Digest unknown was expected"):
        pull("models:/wattune-one-simulated@champion")


def test_a_server_that_is_down_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(BoardError, match="does not answer"):
        pull("models:/wattune-one-simulated@champion", tmp_path / "governor.json")
    assert time.monotonic() - start < 6


def test_nothing_published_makes_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="Nothing has been published"):
        pull()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_said(store: Path) -> None:
    Path("file").write_text("")
    with pytest.raises(BoardError, match="could not be written"):
        pull("models:/wattune-one-simulated@champion", Path("file/governor.json"))


# --- the standard library alone --------------------------------------------------------------------------------------


def bare(folder: Path, uri: str) -> subprocess.CompletedProcess[str]:
    """Pull with no package installed at all."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n{PULL}"
    return subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, uri], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("place", ["governor.json", "models/governor.json", "artifacts/governor.json"])
def test_a_folder_or_file_needs_no_package(tmp_path: Path, place: str) -> None:
    source, here = tmp_path / "source", tmp_path / "here"
    (source / place).parent.mkdir(parents=True)
    here.mkdir()
    (source / place).write_text(canonical_json(governor()))
    for uri in (source, source / place):
        done = bare(here, str(uri))
        assert done.returncode == 0, done.stderr
        assert parse_governor((here / "governor.json").read_bytes()).digest == governor()["digest"]
        (here / "governor.json").unlink()


def test_without_mlflow_the_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "mlflow.db").touch()
    done = bare(tmp_path, "models:/wattune-one-simulated@champion")
    assert done.returncode == 3
    assert "pip install 'wattune[pull]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text(canonical_json(governor())[:-50])
    done = bare(tmp_path, "bad.json")
    assert done.returncode == 4, done.stderr
    assert not (tmp_path / "governor.json").exists()
