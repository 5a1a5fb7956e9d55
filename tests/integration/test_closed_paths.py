"""Paths that an ordinary user may not look at: every command that takes a path says so in a sentence, with exit code 3."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import others

pytestmark = pytest.mark.skipif(
    others.python() is None, reason="no Python that a user other than root may run"
)

SWEEP = "board,workload,gpu_mhz,energy_j,time_s\nb,w,300,10,2\nb,w,600,8,1\n"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A folder of theirs, with one in it that only root may enter and a file that only root may read."""
    with others.open_folder() as folder:
        closed = folder / "closed"
        closed.mkdir()
        for path in (closed / "s.csv", folder / "ok.csv", folder / "secret.csv"):
            path.write_text(SWEEP)
        (folder / "mixed").mkdir()
        (folder / "mixed/s.csv").symlink_to(closed / "s.csv")
        (folder / "board").mkdir()
        (folder / "secret.csv").chmod(0o600)
        closed.chmod(0o700)
        yield folder


def ask(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    python = others.python()
    assert python is not None
    return subprocess.run(
        [python, "-m", "wattune", *words],
        env=others.environment(WATTUNE_ROOT=str(place / "board")),
        cwd=place, capture_output=True, text=True, check=False, timeout=60, **others.as_nobody(),
    )  # fmt: skip


READS = (
    ["replay"],
    ["pareto", "--sweep"],
    ["replay", "ok.csv", "--policy", "probe", "--governor"],
    ["import", "sweep", "-o", "new.csv"],
    ["import", "tegrastats"],
    ["import", "jetson-clocks"],
    ["choose", "--governor"],
    ["explain", "--governor"],
    ["pull"],
    ["emulate", "made", "--constants"],
    ["predict", "--model", "bert-base", "--task", "mnli", "--constants"],
    ["doctor", "--root"],
    ["run", "--json", "r.json", "--baseline"],
)
WRITES = (
    ["pull", "ok.csv", "-o"],
    ["import", "sweep", "ok.csv", "-o"],
    ["import", "tegrastats", "ok.csv", "-o"],
    ["run", "--mhz", "maxn", "--json"],
    ["validate", "--write-board"],
)


@pytest.mark.parametrize("path", ["closed/s.csv", "secret.csv"])
@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_what_may_not_be_read(place: Path, words: list[str], path: str) -> None:
    if words[0] == "doctor" and path == "secret.csv":
        pytest.skip("no folder, and said to be none")
    done = ask(place, *words, path, *(["--", "true"] if words[0] == "run" else []))
    if "yaml" in done.stderr:
        pytest.skip("the Python at hand has no PyYAML")
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert path in done.stderr
    assert "Traceback" not in done.stderr
    assert "ermission" in done.stderr


@pytest.mark.parametrize("words", WRITES, ids=" ".join)
def test_what_may_not_be_written(place: Path, words: list[str]) -> None:
    done = ask(place, *words, "closed/new", *(["--", "true"] if words[0] == "run" else []))
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert "closed/new cannot be looked at: there is no permission." in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words", [["replay", "mixed"], ["replay", "closed"], ["pull", "closed"]], ids=" ".join
)
def test_a_folder_with_something_closed_in_it(place: Path, words: list[str]) -> None:
    done = ask(place, *words)
    assert done.returncode == 3, done.stderr
    assert "there is no permission" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_that_may_not_be_looked_at_is_one_that_may_not_be_run(place: Path) -> None:
    done = ask(place, "run", "--mhz", "maxn", "--", f"{place}/closed/cmd")
    assert done.returncode == 126, done.stderr
    assert "may not be run. Nothing was pinned." in done.stderr


@pytest.mark.parametrize("words", [["pull"], ["choose", "--model", "bert-base"]], ids=" ".join)
def test_a_working_directory_that_may_not_be_looked_at(place: Path, words: list[str]) -> None:
    """Root's, entered before the rights were taken away."""
    python = others.python()
    assert python is not None
    code = (
        "import os, sys; os.chdir(sys.argv[1]); os.setgroups([]); os.setgid(65534); os.setuid(65534);"
        "os.execve(sys.argv[2], sys.argv[2:], dict(os.environ))"
    )
    done = subprocess.run(
        [python, "-c", code, str(place / "closed"), python, "-m", "wattune", *words],
        env=others.environment(WATTUNE_ROOT=str(place / "board")),
        cwd="/", capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    assert "permission" in done.stderr
