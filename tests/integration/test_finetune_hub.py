"""The cache, the network and their absence, against a stand-in for the Hub on this machine."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed (make setup EXTRAS=train)")
datasets = pytest.importorskip("datasets", reason="datasets is not installed (make setup EXTRAS=train)")

from hub_server import HubServer  # noqa: E402
from tiny import BERT, environment, folder, rows  # noqa: E402

pytestmark = pytest.mark.long
BERT_BASE = "google-bert/bert-base-uncased"


@pytest.fixture(scope="module")
def repos(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, dict]:
    base = tmp_path_factory.mktemp("repos")
    good = folder(base / "good", BERT, weights=True)
    (good / "pytorch_model.bin").write_bytes(b"also there")
    pickled = folder(base / "pickled", BERT)
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04")
    large = folder(base / "large", BERT)
    (large / "model.safetensors").write_bytes(
        bytes(24_000_000)
    )  # larger than what the client keeps in memory
    (base / "glue" / "sst2").mkdir(parents=True)
    (base / "glue" / "README.md").write_text("# a data set\n")
    made = datasets.Dataset.from_list([{"sentence": row["text"], "label": row["label"]} for row in rows(60)])
    made.to_parquet(str(base / "glue/sst2/train-00000-of-00001.parquet"))
    made.select(range(20)).to_parquet(str(base / "glue/sst2/validation-00000-of-00001.parquet"))
    return {BERT_BASE: good, "owner/pickled": pickled, "owner/large": large}, {"nyu-mll/glue": base / "glue"}


@pytest.fixture
def hub(repos: tuple[dict, dict]) -> Iterator[HubServer]:
    server = HubServer(*repos)
    yield server
    server.close()


def wattune(home: Path, endpoint: str, *words: str, **settings) -> subprocess.CompletedProcess[str]:
    env = environment(home) | {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "0"}
    for name in ("WATTUNE_KEEPS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"):
        env.pop(name, None)  # of a test in this process before
    return subprocess.run(
        [sys.executable, "-m", "wattune", *words], env=env, capture_output=True, text=True, check=False, timeout=120, **settings
    )  # fmt: skip


def test_what_was_fetched_trains_without_a_network(hub: HubServer, tmp_path: Path) -> None:
    done = wattune(tmp_path, hub.url, "fetch", "bert-base", "sst2", "--json")
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [one["name"] for one in said] == [BERT_BASE, "nyu-mll/glue"]
    assert all(one["size_mb"] > 0 and Path(one["folder"]).is_relative_to(tmp_path) for one in said)
    assert not any("pytorch_model.bin" in line for line in hub.asked)  # safetensors are there
    before = len(hub.asked)
    again = wattune(tmp_path, hub.url, "fetch", "bert-base", "sst2")
    assert again.returncode == 0
    assert not any("/resolve/" in line for line in hub.asked[before:])  # nothing is downloaded twice
    hub.close()
    trained = wattune(
        tmp_path, hub.url, "finetune", "bert-base", "sst2", "--steps", "7", "--batch-size", "8", "--json"
    )
    assert trained.returncode == 0, trained.stderr
    document = json.loads(trained.stdout)
    assert (document["examples"], document["evaluation"]["examples"]) == (60, 20)
    assert document["power_w"] is None
    assert document["power_reason"]


def test_a_model_alone_is_fetched(hub: HubServer, tmp_path: Path) -> None:
    done = wattune(tmp_path, hub.url, "fetch", "bert-base")
    assert done.returncode == 0, done.stderr
    assert "It loads without a network now." in done.stdout
    assert "Both" not in done.stdout
    assert not any("nyu-mll/glue" in line for line in hub.asked)


def test_a_download_that_broke_off_goes_on_where_it_stopped(hub: HubServer, tmp_path: Path) -> None:
    hub.cut_after = 15_000_000
    done = wattune(tmp_path, hub.url, "fetch", "owner/large", "sst2")
    if done.returncode:  # some clients try again by themselves
        assert done.returncode == 3
        assert "goes on where it stopped" in done.stderr
        assert "Traceback" not in done.stderr
        done = wattune(tmp_path, hub.url, "fetch", "owner/large", "sst2")
    assert done.returncode == 0, done.stderr
    assert hub.ranges, "the file was begun anew"
    assert all(0 < int(r.removeprefix("bytes=").split("-")[0]) <= 15_000_000 for r in hub.ranges)


def test_a_pickle_is_refused_before_it_is_downloaded(hub: HubServer, tmp_path: Path) -> None:
    done = wattune(tmp_path, hub.url, "fetch", "owner/pickled", "sst2")
    assert done.returncode == 4
    assert "--trust-pickle" in done.stderr
    assert not any("pytorch_model.bin" in line for line in hub.asked)


@pytest.mark.parametrize(
    ("words", "says"), [(("owner/none", "sst2"), "owner/none"), (("bert-base", "mnli"), "mnli")]
)
def test_what_the_hub_has_not_is_said(
    hub: HubServer, tmp_path: Path, words: tuple[str, str], says: str
) -> None:
    done = wattune(tmp_path, hub.url, "fetch", *words)
    assert done.returncode == 2
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_said_and_leaves_what_was_there(hub: HubServer, tmp_path: Path) -> None:
    done = wattune(
        tmp_path, hub.url, "fetch", "bert-base", "sst2",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )  # fmt: skip
    assert done.returncode == 3
    assert "could not be stored" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def deaf() -> Iterator[str]:
    """An address where connections are neither made nor refused: its queue is full."""
    with socket.socket() as server, contextlib.ExitStack() as stack:
        server.bind(("127.0.0.1", 0))
        server.listen(0)
        for _ in range(64):
            waiting = stack.enter_context(socket.socket())
            waiting.settimeout(0.2)
            try:
                waiting.connect(server.getsockname())
            except TimeoutError:
                break
        else:
            pytest.skip("this system's queues of connections do not fill up")
        yield "http://{}:{}".format(*server.getsockname())


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "deaf", "http://no-such-host.invalid"])
@pytest.mark.parametrize("command", ["fetch", "finetune", "worker"])
def test_without_a_network_it_is_said_at_once_what_to_type(
    tmp_path: Path, endpoint: str, command: str, request: pytest.FixtureRequest
) -> None:
    endpoint = request.getfixturevalue("deaf") if endpoint == "deaf" else endpoint
    (tmp_path / "job.json").write_text('{"model": "bert-base", "task": "sst2"}')
    begin = time.monotonic()
    assert wattune(tmp_path, endpoint, "--help").returncode == 0
    start_s = time.monotonic() - begin  # what a busy machine takes to start Python at all
    begin = time.monotonic()
    if command == "worker":
        env = environment(tmp_path) | {"HF_ENDPOINT": endpoint}
        done = subprocess.run(
            [sys.executable, "-m", "wattune.workloads.finetune.worker", str(tmp_path / "job.json")],
            env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        said = json.loads(done.stdout)
        assert (said["said"], said["kind"]) == ("failed", "model")
        text = said["hint"]
    else:
        done = wattune(tmp_path, endpoint, command, "bert-base", "sst2")
        text = done.stderr
    assert time.monotonic() - begin - start_s < 1.7
    assert done.returncode == 3
    assert "`wattune fetch bert-base sst2`" in text
    assert "Traceback" not in done.stderr
