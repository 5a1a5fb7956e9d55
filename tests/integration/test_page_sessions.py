"""The commands and the Python of README.md and docs/, run as `page_sessions.py` says; the tutorial in a file of its own, for speed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("dvc")
pytest.importorskip("mlflow")
from page_sessions import (
    AROUND,
    BOARD,
    SESSIONS,
    TORCH,
    TUTORIAL,
    group_lives,
    programs,
    runs_the_pipeline,
    script,
    shell,
    to_run,
    type_page,
)

from facts import write_facts
from not_run import NEEDS, NOT_RUN, left
from pages import ROOT, Block, commands, page_blocks, page_commands, pages
from wattune.stages.card import main as write_card
from wattune.tracking.publish import publish

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `make repro` leaves, small: a governor, its reports, and a registry that has it as champion."""
    folder = tmp_path_factory.mktemp("results")
    write_facts(folder, board=BOARD)
    write_card(folder)
    publish(folder, uri=f"sqlite:///{folder / 'mlflow.db'}")
    for name in ("dvc.yaml", "dvc.lock", "data"):
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return folder


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The tree of an emulated board, for commands that look for one."""
    root = tmp_path_factory.mktemp("board") / "tree"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "wattune", "emulate", str(root)]
    emulator = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert emulator.stdout
    assert any(line.startswith("ready") for line in emulator.stdout)
    yield root
    emulator.send_signal(signal.SIGTERM)
    emulator.wait(30)


@pytest.mark.parametrize("page", [page for page in SESSIONS if page != TUTORIAL])
def test_a_page_can_be_typed_from_top_to_bottom(
    page: str, results: Path, board: Path, tmp_path: Path
) -> None:
    type_page(page, tmp_path, None if runs_the_pipeline(page) else results, board)


SNIPPETS = [block for page in pages() for block in page_blocks(page) if block.language == "python"]


@pytest.mark.parametrize("block", SNIPPETS, ids=lambda block: f"{block.page}:{block.line}")
def test_python_on_a_page_runs(block: Block, results: Path, tmp_path: Path) -> None:
    """Where the pipeline has run, on a machine that is no board: it runs, and nothing happens to any clock."""
    if "WattuneCallback" in block.text and not TORCH:
        pytest.skip("transformers is not installed")
    root = tmp_path / "no board"
    root.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", AROUND + block.text],
        cwd=shutil.copytree(results / "models", tmp_path / "work/models").parent,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "WATTUNE_ROOT": str(root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_left_out_is_run_nowhere() -> None:
    """A command with an entry is replaced or left, and one without is run as it stands on the page."""
    for page in pages():
        for command in page_commands(page):
            entry = left(page, command.name)
            text = to_run(command)
            if entry is None and not command.name.startswith(tuple(NEEDS)):
                assert command.text in text or command.name in text
            elif entry in NOT_RUN:
                assert text.split("\n")[0] == entry.instead or not text


@pytest.mark.parametrize(
    ("typed", "ends"),
    [
        ("true\nfalse\necho never", 1),
        ("no-such-program\necho never", 127),
        ("cd nowhere\necho never", 1),
        ("pip install wattune\necho never", 97),
        ("sudo rm -r /nowhere\necho never", 97),
        ("sudo systemctl stop something\necho never", 97),
        ("x=1\ncd /\n[ $x$PWD = 1/ ]\nsleep 1000 &\necho last", 0),
    ],
)
def test_a_session_ends_with_its_first_fault_and_leaves_nothing_running(
    typed: str, ends: int, tmp_path: Path
) -> None:
    programs(tmp_path / "bin", tmp_path / "clone")
    text = script(commands(Block("p.md", 1, "shell", typed)), tmp_path)
    environment = {**os.environ, "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    text += f"\necho $$ > {tmp_path / 'group'}" if not ends else ""
    with shell(text, tmp_path, environment, tmp_path / "log") as code:
        said = (tmp_path / "log").read_text()
        assert code == bool(ends)
        assert "never" not in said
        assert (f"@@ ended with {ends}" in said) is bool(ends)
    if not ends:
        assert "last" in said
        assert not group_lives(int((tmp_path / "group").read_text()))
