"""Lease files that cannot be believed: what `wattune restore` says of them, and the way back to a free clock."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trees
from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.sysfs import Sysfs
from wattune.cli import main
from wattune.core.errors import IntegrityError
from wattune.governing import damaged, state
from wattune.governing.bounds import Bounds

RECORD = {
    "schema_version": 1, "node": "", "boot_id": trees.BOOT_ID, "saved_min_hz": 306000000, "saved_max_hz": 612000000,
    "set_hz": [408000000], "cooling": [], "pid": 4711, "started": None, "program": "wattune pin", "detached": False,
}  # fmt: skip
CONF = "< POWER_MODEL ID=2 NAME=MODE_30W >\nGPU MIN_FREQ 0\nGPU MAX_FREQ {cap}\n"
NAME_ONLY = "< POWER_MODEL ID={id} NAME={name} >\n"


class Pinned:
    """An AGX Orin in MODE_30W as plain files, pinned at 408 MHz, and a lease file of it."""

    def __init__(self, root: Path, golden: str = "F1") -> None:
        self.root = trees.golden(golden, root)
        gpu = discover(Sysfs(root)).gpu
        assert gpu is not None
        self.node = gpu.path
        if golden == "F1":
            trees.put(root, "etc/nvpmodel.conf", CONF.format(cap=612000000))
        self.set(408000000, 408000000)
        folder = root / "run/wattune"
        folder.mkdir(parents=True)
        self.file = state.state_path(folder, self.node)
        self.text = json.dumps(RECORD | {"node": self.node}, sort_keys=True, indent=2) + "\n"

    def set(self, low: int, high: int) -> None:
        (self.root / self.node / "min_freq").write_text(f"{low}\n")
        (self.root / self.node / "max_freq").write_text(f"{high}\n")

    @property
    def bounds(self) -> tuple[int, int]:
        low, high = (int((self.root / self.node / name).read_text()) for name in ("min_freq", "max_freq"))
        return low, high

    def restore(self, *words: str) -> int:
        return main(["restore", "--root", str(self.root), *words])


@pytest.fixture
def pinned(tmp_path: Path) -> Pinned:
    return Pinned(tmp_path / "board")


DAMAGES: dict[str, Callable[[str], str]] = {
    "cut": lambda text: text[: text.index('"set_hz"')],
    "another version": lambda text: text.replace('"schema_version": 1', '"schema_version": 9'),
    "overwritten": lambda text: text.replace("408000000", "\0\0\0\0\0\0\0\0\0"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_without_a_word_nothing_moves_and_all_ways_are_named(
    pinned: Pinned, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned.file.write_text(DAMAGES[damage](pinned.text))
    assert pinned.restore() == 4
    said = capsys.readouterr()
    assert said.out == ""
    assert "by wattune pin, process 4711, bounds found 306 to 612 MHz" in said.err
    assert "The bounds read 408 to 408 MHz now." in said.err
    for way in (
        "--full-range",
        "--forget",
        f"echo 612000000 | sudo tee {pinned.root / pinned.node}/max_freq",
    ):
        assert way in said.err
    assert pinned.bounds == (408000000, 408000000)
    assert pinned.file.exists()


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_full_range_ends_at_the_power_modes_cap(
    pinned: Pinned, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trees.put(pinned.root, "etc/nvpmodel.conf", CONF.format(cap=510000000))
    pinned.file.write_text(DAMAGES[damage](pinned.text))
    assert pinned.restore("--full-range", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["damaged"]
    assert one["readable"]["saved_max_hz"] == 612000000
    assert (one["outcome"], one["removed"]) == ("restored", True)
    assert one["now"] == {"min_mhz": 306.0, "max_mhz": 510.0}
    assert pinned.bounds == (306000000, 510000000)
    assert not pinned.file.exists()
    assert pinned.restore() == 0


@pytest.mark.parametrize(("cap", "high"), [("2147483647", 1300500000), ("-1", 1300500000), ("1", 306000000)])
def test_a_cap_outside_the_table_is_brought_inside(pinned: Pinned, cap: str, high: int) -> None:
    trees.put(pinned.root, "etc/nvpmodel.conf", CONF.format(cap=cap))
    pinned.file.write_text("")
    assert pinned.restore("--full-range") == 0
    assert pinned.bounds == (306000000, high)


def test_an_unknown_cap_is_never_guessed(pinned: Pinned, capsys: pytest.CaptureFixture[str]) -> None:
    """Neither nvpmodel's file nor the mode's name nor the lease file says how far the clock may go."""
    trees.put(pinned.root, "etc/nvpmodel.conf", NAME_ONLY.format(id=2, name="MODE_30W"))
    for text in ("", pinned.text.replace("612000000", "612000001")[: pinned.text.index('"set_hz"')]):
        pinned.file.write_text(text)
        assert pinned.restore("--full-range") == 4
        said = capsys.readouterr().err
        assert "How far the power mode lets the clock go is unknown" in said
        assert "echo 1300500000 | sudo tee" in said
        assert pinned.bounds == (408000000, 408000000)
        assert pinned.file.exists()


def test_a_bound_readable_in_the_file_counts_where_the_board_says_nothing(pinned: Pinned) -> None:
    trees.put(pinned.root, "etc/nvpmodel.conf", NAME_ONLY.format(id=2, name="MODE_30W"))
    pinned.file.write_text(DAMAGES["cut"](pinned.text))
    assert pinned.restore("--full-range") == 0
    assert pinned.bounds == (306000000, 612000000)


def test_maxn_needs_no_file_to_say_so(tmp_path: Path) -> None:
    board = Pinned(tmp_path / "board", "agx-orin-jp7")
    trees.put(board.root, "etc/nvpmodel.conf", NAME_ONLY.format(id=0, name="MAXN"))
    board.file.write_text("{")
    assert board.restore("--full-range") == 0
    assert board.bounds == (306000000, 1300500000)


def test_a_damaged_file_does_not_keep_good_ones_from_being_restored(
    pinned: Pinned, capsys: pytest.CaptureFixture[str]
) -> None:
    pinned.file.write_text(pinned.text)
    (pinned.file.parent / "lease-0.gpu.json").write_text("garbage")
    assert pinned.restore() == 4
    said = capsys.readouterr()
    assert "again what they were" in said.out
    assert "Nothing in it can be read." in said.err
    assert pinned.bounds == (306000000, 612000000)
    assert pinned.restore("--full-range") == 3  # of no node of this board: not a reason to write
    assert pinned.restore("--forget") == 0
    assert not list(pinned.file.parent.glob("*.json"))


def test_forgetting_drops_the_file_and_leaves_the_bounds(pinned: Pinned) -> None:
    pinned.file.write_text("[]")
    assert pinned.restore("--forget") == 0
    assert pinned.bounds == (408000000, 408000000)
    assert not pinned.file.exists()


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "another user's"])
def test_of_what_is_no_file_of_ours_nothing_is_read(pinned: Pinned, kind: str) -> None:
    if kind == "link":
        (pinned.root / "elsewhere").write_text(pinned.text)
        pinned.file.symlink_to(pinned.root / "elsewhere")
    elif kind == "fifo":
        os.mkfifo(pinned.file)
    elif kind == "folder":
        pinned.file.mkdir()
    else:
        if os.geteuid():
            pytest.skip("about root")
        pinned.file.write_text(pinned.text)
        os.chown(pinned.file, 12345, 12345)
    with pytest.raises(IntegrityError, match="refused"):
        state.load(pinned.file, Sysfs(pinned.root))
    (one,) = damaged.damaged_files(Sysfs(pinned.root))
    assert one.readable == {}
    assert pinned.restore() == 4


def test_a_thor_is_not_written_here_either(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = trees.golden("F5", tmp_path / "thor")
    before = {path: path.read_bytes() for path in root.rglob("m??_freq")}
    (root / "run/wattune").mkdir(parents=True)
    (root / "run/wattune/lease-gpu-gpc-0.json").write_text("{")
    assert main(["restore", "--full-range", "--root", str(root)]) == 4
    assert "Reboot the board" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in root.rglob("m??_freq")} == before


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_any_damage_at_all_is_readable_as_it_stands_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    node = "sys/devices/gpu/devfreq/17000000.gpu"
    folder = tmp_path_factory.mktemp("t") / "run/wattune"
    folder.mkdir(parents=True)
    path = state.state_path(folder, node)
    text = bytearray(json.dumps(RECORD | {"node": node}, indent=2).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(1, 30))] = data.draw(st.binary(max_size=4))
        if not text:
            break
    path.write_bytes(bytes(text))
    whole: Any = RECORD | {"node": node}
    for one in damaged.damaged_files(Sysfs(folder.parents[1])):
        assert set(one.readable) <= set(whole)
        assert str(one)
        wanted = damaged.full_range(*_board(node), one.readable)
        assert wanted is None or wanted.bounds in (Bounds(306000000, hz) for hz in trees.ORIN_TABLE)


def _board(node: str) -> Any:
    from wattune.boards.jetson.findings import Findings, GpuNode

    gpu = GpuNode(node, None, trees.ORIN_TABLE, 408000000, 408000000, None, "nvhost_podgov")
    return Findings(Sysfs(Path("/nonexistent")), gpu=gpu), gpu


def test_a_pin_that_lost_its_file_is_seen_and_can_be_freed(
    pinned: Pinned, capsys: pytest.CaptureFixture[str]
) -> None:
    """Somebody removed the lease file and the pin was killed: nothing says what was found, but the bounds show the pin."""
    assert pinned.restore() == 0
    said = capsys.readouterr().out
    assert "the bounds are 408 to 408 MHz" in said
    assert f"wattune restore --full-range --root {pinned.root}" in said
    assert pinned.bounds == (408000000, 408000000)
    assert pinned.restore("--full-range") == 0
    assert pinned.bounds == (306000000, 612000000)
    capsys.readouterr()
    assert pinned.restore("--full-range") == 0
    assert capsys.readouterr().out == "Nothing to restore: no clock was left pinned.\n"


@pytest.mark.parametrize(
    "changed",
    [
        {"saved_min_hz": 612000000, "saved_max_hz": 306000000},
        {"saved_max_hz": 99_999_999_999},
        {"saved_max_hz": 0},
    ],
)
def test_bounds_that_no_board_has_are_damage(pinned: Pinned, changed: dict[str, int]) -> None:
    pinned.file.write_text(json.dumps(json.loads(pinned.text) | changed))
    assert pinned.restore() == 4
    assert pinned.bounds == (408000000, 408000000)
    assert pinned.restore("--full-range") == 0
    assert pinned.bounds == (306000000, 612000000)
