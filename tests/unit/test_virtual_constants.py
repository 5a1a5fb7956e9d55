from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from wattune.boards.virtual.board import DEFAULT_CONSTANTS, VirtualBoard
from wattune.boards.virtual.constants import UNITS, load_board_file, parse_board_file
from wattune.core.errors import InputError


@pytest.fixture
def document() -> dict[str, Any]:
    return copy.deepcopy(json.loads(DEFAULT_CONSTANTS.read_text()))


def test_orin_has_the_eleven_clocks_of_jetpack_6() -> None:
    table = load_board_file(DEFAULT_CONSTANTS).table
    assert list(table) == [306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224, 1300.5]


def test_every_constant_names_its_source() -> None:
    sources = load_board_file(DEFAULT_CONSTANTS).sources
    assert set(sources) == set(UNITS)
    kinds = ("datasheet", "public measurement", "fitted to", "prior", "driver")
    assert {name: s for name, s in sources.items() if not s.startswith(kinds)} == {}


@pytest.mark.parametrize("name", list(UNITS))
def test_a_missing_constant_is_named(document: dict[str, Any], name: str) -> None:
    del document["constants"][name]
    with pytest.raises(InputError, match=f"lacks the constant {name}"):
        parse_board_file(document, "board.json")


def test_an_unknown_constant_is_named(document: dict[str, Any]) -> None:
    document["constants"]["fudge_bert_base"] = {"value": 1.0, "unit": "1", "source": "prior"}
    with pytest.raises(InputError, match="unknown constant fudge_bert_base"):
        parse_board_file(document, "board.json")


@pytest.mark.parametrize("value", [-1.0, 0, "12", None, True, float("nan"), float("inf")])
def test_a_constant_that_is_no_positive_number_is_named(document: dict[str, Any], value: Any) -> None:
    document["constants"]["static_w"]["value"] = value
    with pytest.raises(InputError, match=r"The constant static_w in board\.json is"):
        parse_board_file(document, "board.json")


def test_no_noise_and_no_gap_may_be_asked_for(document: dict[str, Any]) -> None:
    for name in ("power_noise_rel", "time_noise_rel", "host_gap_s"):
        document["constants"][name]["value"] = 0
    constants = parse_board_file(document, "board.json").constants
    assert (constants.power_noise_rel, constants.time_noise_rel, constants.host_gap_s) == (0.0, 0.0, 0.0)


def test_another_unit_is_refused(document: dict[str, Any]) -> None:
    document["constants"]["launch_cost_s"]["unit"] = "us"
    with pytest.raises(InputError, match=r"launch_cost_s .* unit 'us'"):
        parse_board_file(document, "board.json")


def test_no_source_is_refused(document: dict[str, Any]) -> None:
    document["constants"]["static_w"]["source"] = " "
    with pytest.raises(InputError, match=r"static_w .* no source"):
        parse_board_file(document, "board.json")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 2}, "schema version 2"),
        ({"clocks_hz": []}, "clock table"),
        ({"clocks_hz": [306.5]}, "clocks_hz"),
        ({"board": ""}, "board"),
        ({"constants": []}, "constants"),
        ({"extra": 1}, "not a board constants file"),
    ],
)
def test_other_faults_are_named(document: dict[str, Any], change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_board_file({**document, **change}, "board.json")


def test_a_missing_or_torn_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        VirtualBoard(tmp_path / "none.json")
    torn = tmp_path / "torn.json"
    torn.write_text(DEFAULT_CONSTANTS.read_text()[:200])
    with pytest.raises(InputError, match="not complete JSON"):
        VirtualBoard(torn)


def test_the_digest_follows_the_content_and_not_the_layout(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    path.write_text(json.dumps(document))
    assert VirtualBoard(path).info.digest == VirtualBoard().info.digest
    document["constants"]["static_w"]["value"] *= 1.001
    path.write_text(json.dumps(document))
    assert VirtualBoard(path).info.digest != VirtualBoard().info.digest
