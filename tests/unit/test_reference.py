"""docs/reference.md says what the code takes, whatever the Python and the terminal."""

from __future__ import annotations

import argparse
import dataclasses
import re
from pathlib import Path

import pytest

pytest.importorskip("hydra")
from wattune.cli import build_parser
from wattune.config import Config, LiveConf, to_config
from wattune.core.errors import InputError
from wattune.reference import COMMAND, PAGE, help_of, meanings, page, parsers, sections, takes, usage

ROOT = Path(__file__).parents[2]
COMMANDS = list(parsers(build_parser()))


def test_the_page_is_what_the_code_says() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == page(ROOT), f"run `{COMMAND}`"


@pytest.mark.parametrize(("columns", "tongue"), [("40", "C"), ("300", "de_DE.UTF-8")])
def test_no_terminal_changes_it(columns: str, tongue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LC_ALL", tongue)
    assert page(ROOT) == (ROOT / PAGE).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [name for name, _, _ in COMMANDS])
def test_every_option_says_what_it_means(name: str) -> None:
    """A default is no meaning, and a sentence ends no line of a table."""
    parser = next(parser for other, _, parser in COMMANDS if other == name)
    for action in parser._actions:
        says = help_of(action)
        assert says, f"{name}: {action.option_strings or action.dest} needs a help text"
        assert not says.startswith("default"), f"{name}: {action.option_strings}: {says}"
        assert "%(" not in says


@pytest.mark.parametrize("prefix", [prefix for prefix, _ in sections()])
def test_every_key_says_what_it_means(prefix: str) -> None:
    kind = dict(sections())[prefix]
    nested = {other.split(".")[-1] for other, _ in sections()} | {"workloads"}
    missing = {key.name for key in dataclasses.fields(kind)} - set(meanings(kind)) - nested
    assert not missing, f"{kind.__name__}: say under Attributes what {sorted(missing)} means"


def test_what_the_page_says_of_a_key_is_what_is_refused() -> None:
    """Every bound and every list of words that stands on the page is the one the loader holds a value against."""
    for prefix, kind in sections():
        if prefix == "workloads.ID":
            continue
        for key in dataclasses.fields(kind):
            wrong = {"allowed": "no such word", "above": 0, "at_least": -1}
            for asked in set(key.metadata) & set(wrong):
                value = [wrong[asked]] if str(key.type).startswith("List") else wrong[asked]
                document: dict = {key.name: value}
                for part in reversed(prefix.split(".")):
                    document = {part: document}
                with pytest.raises(InputError, match=rf"{re.escape(prefix)}\.{key.name} is") as caught:
                    to_config(document)
                assert str(key.metadata[asked][0] if asked == "allowed" else key.metadata[asked]) in str(
                    caught.value
                )


def test_words_bounds_and_types_are_told() -> None:
    keys = {key.name: key for key in dataclasses.fields(LiveConf)}
    assert takes(keys["hz"]) == "number above 0"
    assert takes(keys["idle_s"]) == "number of at least 0"
    assert takes(keys["attempts"]) == "whole number above 0"
    assert set(meanings(Config)) >= {"experiment", "workload_ids"}


def test_usage_has_groups_in_brackets_and_wraps_at_one_width() -> None:
    parser = argparse.ArgumentParser()
    one = parser.add_mutually_exclusive_group(required=True)
    one.add_argument("--a", metavar="A")
    one.add_argument("--b", action="store_true")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--c", type=int)
    other.add_argument("--d", choices=("x", "y"))
    parser.add_argument("--e", nargs="+", action="extend", metavar="E")
    parser.add_argument("name")
    parser.add_argument("more", nargs="*")
    assert usage("x", parser) == "x (--a A | --b) [--c C | --d {x,y}] [--e E [E ...]] name [more ...]"
    for number in range(20):
        parser.add_argument(f"--a-long-option-{number}", action="store_true")
    assert max(len(line) for line in usage("x", parser).split("\n")) <= 100
