"""Files that somebody names are written into folders that are there; hints work on the tree that the command worked on."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from wattune.boards.jetson.sysfs import Sysfs
from wattune.cli import main
from wattune.core.errors import InputError
from wattune.governing.bounds import Bounds, commands
from wattune.io import check_output

SOURCE = Path(__file__).parents[2] / "src/wattune"


@pytest.mark.parametrize(
    "words",
    [
        ["pull", "g.json", "-o"],
        ["import", "tegrastats", "g.json", "-o"],
        ["import", "sweep", "g.json", "-o"],
        ["sweep", "bert-base-rte", "--export"],
        ["validate", "--write-board"],
    ],
)
def test_a_folder_that_is_not_there_is_refused_and_not_made(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is read, asked for or measured, by every command that takes such a name."""
    monkeypatch.chdir(tmp_path)
    assert main([*words, "my runs/r.csv"]) == 2
    said = capsys.readouterr()
    assert "there is no folder my runs" in said.err
    assert "mkdir -p 'my runs'" in said.err
    assert list(tmp_path.iterdir()) == []
    assert main([*words, str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["pull", "g.json", "-o"],
        ["import", "tegrastats", "g.json", "-o"],
        ["import", "sweep", "g.json", "-o"],
        ["sweep", "bert-base-rte", "--export"],
        ["validate", "--write-board"],
        ["run", "--mhz", "maxn", "--json"],
    ],
)
def test_a_dash_is_no_name_of_a_file(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "-", *(["--", "true"] if words[0] == "run" else [])]) == 2
    assert "cannot be written to '-'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["in.csv", "./in.csv", "soft.csv", "hard.csv"])
@pytest.mark.parametrize("words", [["sweep"], ["tegrastats"], ["tegrastats", "--interval-ms", "1000"]])
def test_what_is_read_is_never_overwritten(
    words: list[str],
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By whatever name or link it goes."""
    monkeypatch.chdir(tmp_path)
    table = "board,workload,gpu_mhz,energy_j,time_s,mine\nb,w,600,8,1,x\nb,w,300,10,2,y\n"
    Path("in.csv").write_text(table)
    Path("soft.csv").symlink_to("in.csv")
    Path("hard.csv").hardlink_to("in.csv")
    for source, target in (("in.csv", name), (name, "in.csv")):
        assert main(["import", *words, source, "-o", target]) == 2
        assert "it is what the command reads" in capsys.readouterr().err
    assert Path("in.csv").read_text() == table


def test_a_receipt_never_replaces_the_baseline_it_is_held_against(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = tmp_path / "first.json"
    text = '{"energy_j": {"gpu_cpu": 1.0}, "duration_s": 10.0, "setting": "maxn"}'
    first.write_text(text)
    words = ["run", "--mhz", "612", "--baseline", str(first), "--json", str(first), "--", "true"]
    assert main(words) == 2
    assert "it is what the command reads" in capsys.readouterr().err
    assert first.read_text() == text


@pytest.mark.parametrize(
    "how", [[], ["--governor", "governor.json"], ["--governor", "other.json", "--features", "governor.json"]]
)
def test_a_receipt_never_replaces_what_chose_the_clock(
    how: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("governor.json").write_text("{}")
    assert main(["run", *how, "--json", "governor.json", "--", "true"]) == 2
    assert "it is what the command reads" in capsys.readouterr().err
    assert Path("governor.json").read_text() == "{}"


def test_a_log_from_standard_input_is_no_file_named_dash(tmp_path: Path) -> None:
    """The output is there already: it is compared with nothing."""
    old = tmp_path / "old.csv"
    old.write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "wattune", "import", "tegrastats", "-", "--interval-ms", "1000", "-o", str(old)],
        input="RAM 4412/7772MB (lfb 237x4MB) CPU [9%@1190] GR3D_FREQ 62%@306 VDD_IN 4067/4067\n" * 3,
        capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": str(SOURCE.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert old.read_text().count("4.067") == 3


def test_a_file_a_new_one_and_a_device_are_fine(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("")
    for path in (tmp_path / "old", tmp_path / "new", Path("/dev/null")):
        check_output(path, "The file")
    with pytest.raises(InputError):
        check_output(tmp_path / "old" / "below", "The file")


def test_what_to_type_names_the_tree(tmp_path: Path) -> None:
    assert Sysfs().typed("restore") == "wattune restore"
    root = tmp_path / "a board"
    assert shlex.split(Sysfs(root).typed("restore --force")) == [
        "wattune",
        "restore",
        "--force",
        "--root",
        str(root),
    ]


OTHERS_ROOMS = ("workloads/finetune", "boards/virtual/emulator")


def test_a_command_to_type_quotes_its_paths(tmp_path: Path) -> None:
    """So that a folder with a blank in its name is one word of it, and nobody writes as root where they did not mean to."""
    node = tmp_path / "bo ard/sys/gpu"
    node.mkdir(parents=True)
    typed = commands(Sysfs(tmp_path / "bo ard"), "sys/gpu", Bounds(306_000_000, 1_300_500_000))
    words = shlex.split(typed.replace(";", " ;"))
    assert [words[n + 1] for n, word in enumerate(words) if word == "tee"] == [
        str(node / "max_freq"),
        str(node / "min_freq"),
    ]
    bare = re.compile(
        r"""(?:\btee|\brm|\bmv|\bcd|\bmkdir -p|[^-]>|=')\s?'?\{(?!shlex|upper|lower|name|aside|control)\w+"""
    )
    for path in SOURCE.rglob("*.py"):
        if not path.relative_to(SOURCE).as_posix().startswith(OTHERS_ROOMS):
            hints = [line for line in path.read_text().splitlines() if "`" in line or "sudo" in line]
            assert not [line for line in hints if bare.search(line)], path


def test_no_hint_about_a_pin_forgets_the_tree() -> None:
    """Wherever a tree is at hand, what to type goes through :meth:`Sysfs.typed`."""
    for room in ("governing", "running", "boards/jetson", "profiling"):
        for path in (SOURCE / room).glob("*.py"):
            text = re.sub(r'"""(?s:.*?)"""|#.*|help="[^"]*"', "", path.read_text())
            assert not re.search(r"`(sudo )?wattune restore", text), path
