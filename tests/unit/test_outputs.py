"""Files that somebody names are written into folders that are there; hints work on the tree that the command worked on."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from wattune.boards.jetson.sysfs import Sysfs
from wattune.cli import main
from wattune.core.errors import InputError
from wattune.io import check_output

SOURCE = Path(__file__).parents[2] / "src/wattune"


@pytest.mark.parametrize(
    "words",
    [
        ["pull", "g.json", "-o"],
        ["import", "tegrastats", "g.json", "-o"],
        ["import", "sweep", "g.json", "-o"],
        ["sweep", "bert-base-rte", "--export"],
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


def test_no_hint_about_a_pin_forgets_the_tree() -> None:
    """Wherever a tree is at hand, what to type goes through :meth:`Sysfs.typed`."""
    for room in ("governing", "running", "boards/jetson", "profiling"):
        for path in (SOURCE / room).glob("*.py"):
            text = re.sub(r'"""(?s:.*?)"""|#.*|help="[^"]*"', "", path.read_text())
            assert not re.search(r"`(sudo )?wattune restore", text), path
