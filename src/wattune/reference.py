"""`python -m wattune.reference`: docs/reference.md, every command and every configuration key, from the code that takes them.

What an option or a key means is written where it is defined: in the parsers' help, in the docstrings and bounds of
`wattune.config`, in the comments at the head of the files of conf/ and at the targets of the Makefile. Nothing is laid out
by argparse itself, whose wording and wrapping differ between versions of Python.
"""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import logging
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattune.cli import build_parser
from wattune.config import BoardConf, Config, WorkloadConf, compose
from wattune.core.errors import InputError
from wattune.io import read_text, write_text
from wattune.stages._main import run

log = logging.getLogger(__name__)

PAGE = Path("docs/reference.md")
COMMAND = "python -m wattune.reference"
WIDTH = 100
UNITS = {"mhz": "MHz", "hz": "Hz", "s": "s", "pct": "%", "c": "°C", "mb": "MB"}
"""End of a key's name -> unit."""

TYPES = {
    "str": "text",
    "int": "whole number",
    "float": "number",
    "bool": "`true` or `false`",
    "List[str]": "list of texts",
    "List[int]": "list of whole numbers",
    "List[float]": "list of numbers",
    "Dict[str, Any]": "mapping",
    "Optional[float]": "number or `null`",
}

HEAD = f"""# Reference

Every command, every target of `make` and every configuration key, taken from the code: `{COMMAND}` writes this page from
help texts, docstrings and comments, which are the place to edit. What the exit codes mean is in [commands.md](commands.md).
"""


def page(root: Path = Path()) -> str:
    """The page of the code that runs and of the conf/ and Makefile of `root`."""
    parts = [HEAD, *_commands(), *_targets(root), *_configuration(root)]
    return "\n".join(parts).rstrip() + "\n"


# --- commands -------------------------------------------------------------------------------------------------------


def parsers(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str, argparse.ArgumentParser]]:
    """Every command that can be typed: its name, what it does, its parser."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            says = {choice.dest: choice.help or "" for choice in action._choices_actions}
            for name, sub in action.choices.items():
                inner = list(parsers(sub))
                if inner:
                    yield from ((f"{name} {below}", text, leaf) for below, text, leaf in inner)
                else:
                    yield name, sub.description or says.get(name, ""), sub


def _commands() -> list[str]:
    found = list(parsers(build_parser()))
    lines = ["## Commands", "", "| command | does |", "|---|---|"]
    lines += [f"| [`wattune {name}`](#wattune-{name.replace(' ', '-')}) | {_cell(text)} |" for name, text, _ in found]  # fmt: skip
    lines += ["", "`-h` shows the help of each; `wattune --version` prints the version.", ""]
    for name, text, parser in found:
        lines += [f"### `wattune {name}`", "", _sentence(text), ""]
        lines += ["```text", usage(f"wattune {name}", parser), "```", ""]
        rows = [_row(action) for action in _actions(parser)]
        if rows:
            lines += ["| argument | takes | default | meaning |", "|---|---|---|---|", *rows, ""]
    return lines


def _actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Positional ones first; without the help."""
    shown = [a for a in parser._actions if not isinstance(a, argparse._HelpAction)]
    return sorted(shown, key=lambda action: bool(action.option_strings))


def usage(name: str, parser: argparse.ArgumentParser) -> str:
    """One line of usage, wrapped at the same width everywhere."""
    groups = {id(a): group for group in parser._mutually_exclusive_groups for a in group._group_actions}
    words, done = [], set()
    options = [a for a in _actions(parser) if a.option_strings]
    positional = [a for a in _actions(parser) if not a.option_strings]
    for action in options:
        group = groups.get(id(action))
        if group is None:
            words.append(_piece(action, required=action.required))
        elif id(group) not in done:
            done.add(id(group))
            inside = " | ".join(_piece(one, required=True) for one in group._group_actions)
            words.append(f"({inside})" if group.required else f"[{inside}]")
    words += [_piece(action, required=True) for action in positional]
    lines, line = [], name
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = " " * (len(name) + 1) + word
        else:
            line += f" {word}"
    return "\n".join([*lines, line])


def _piece(action: argparse.Action, *, required: bool) -> str:
    """An argument as usage shows it."""
    value = _value(action)
    if not action.option_strings:
        forms = {"*": f"[{value} ...]", "+": f"{value} [{value} ...]", "?": f"[{value}]"}
        return forms.get(str(action.nargs), f"[{value} ...]" if action.nargs == argparse.REMAINDER else value)
    text = action.option_strings[0]
    if action.nargs != 0:
        text += f" {value}" + (f" [{value} ...]" if action.nargs == "+" else "")
    return text if required else f"[{text}]"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(str(choice) for choice in action.choices) + "}"
    return action.dest.upper() if action.option_strings else action.dest


def _row(action: argparse.Action) -> str:
    name = (
        ", ".join(f"`{option}`" for option in action.option_strings) or f"`{action.metavar or action.dest}`"
    )
    if action.nargs == 0:
        takes = ""
    elif action.choices is not None:
        takes = ", ".join(f"`{choice}`" for choice in action.choices)
    else:
        takes = f"`{_value(action)}`" if action.option_strings else ""
    if action.option_strings and (action.nargs == "+" or isinstance(action, argparse._AppendAction)):
        takes += ", repeatable"
    default = ""
    if action.required and action.option_strings:
        default = "needed"
    elif action.default not in (None, False, "", [], (), argparse.SUPPRESS):
        default = f"`{action.default}`"
    return f"| {name} | {_cell(takes)} | {default} | {_cell(help_of(action))} |"


def help_of(action: argparse.Action) -> str:
    """An argument's help, without the default that stands beside it."""
    text = re.sub(r"[;,]?\s*\(?default: %\(default\)[sg]\)?", "", action.help or "")
    return (text % {**vars(action), "prog": "wattune"}).strip()


# --- make -----------------------------------------------------------------------------------------------------------


def _targets(root: Path) -> list[str]:
    text = read_text(root / "Makefile", "The Makefile")
    found = re.findall(r"^([a-z][a-z-]*):.*?## (.*)$", text, re.MULTILINE)
    lines = ["## Targets of make", "", "| target | does |", "|---|---|"]
    return [*lines, *(f"| `make {name}` | {_cell(says)} |" for name, says in found), ""]


# --- configuration --------------------------------------------------------------------------------------------------


def sections() -> list[tuple[str, Any]]:
    """Where keys stand -> the dataclass that checks them; the whole of params.yaml, from the outside in."""
    found: list[tuple[str, Any]] = [("", Config)]
    for prefix, kind in found:  # grows while it is walked
        for key in dataclasses.fields(kind):
            inner = key.default_factory
            if inner is not dataclasses.MISSING and dataclasses.is_dataclass(inner):
                found.append((f"{prefix}.{key.name}".lstrip("."), inner))
    found.append(("workloads.ID", WorkloadConf))
    return sorted(found, key=lambda one: one[0].split(".") if one[0] else [])


def meanings(kind: Any) -> dict[str, str]:
    """Key -> what it means, from the ``Attributes:`` of a docstring."""
    text = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2]
    found: dict[str, str] = {}
    name = ""
    for line in textwrap.dedent(text).split("\n"):
        start = re.match(r"(\w+): (.*)", line)
        if start:
            name = start[1]
            found[name] = start[2]
        elif line.strip() and name:
            found[name] += f" {line.strip()}"
    return {key: says.replace("``", "`") for key, says in found.items()}


def unit_of(name: str) -> str:
    """The unit that a key's name ends with."""
    return UNITS.get(name.rsplit("_", 1)[-1], "")


def takes(key: dataclasses.Field[Any]) -> str:
    """What a key takes: its type, its words or its bound."""
    asked = key.metadata
    if "allowed" in asked:
        words = ", ".join(f"`{word}`" for word in asked["allowed"])
        if str(key.type).startswith("List"):
            return f"list of {words}"
        return f"{words} or empty" if asked.get("empty") else words
    kind = TYPES[str(key.type)]
    if "above" in asked:
        return kind.replace("number", f"number above {asked['above']}")
    return f"{kind} of at least {asked['at_least']}" if "at_least" in asked else kind


def _configuration(root: Path) -> list[str]:
    conf = root / "conf"
    plain = flat(compose(conf, "paper"))
    options = list(_options(conf))
    lines = [
        "## Configuration",
        "",
        "Keys of `params.yaml`, which `make params` compiles from conf/ ([conf/README.md](../conf/README.md)). On the command line:",
        "`ARGS='KEY=VALUE'`; a key that the options in use do not name, with a plus: `ARGS='+KEY=VALUE'`. The default is that of",
        "the experiment `paper`; what another option of a group sets instead stands below the group's keys. An unknown key, a wrong",
        "type or a value out of bounds is refused (exit code 2).",
        "",
    ]
    groups: list[str] = []
    for prefix, kind in sections():
        group = prefix.split(".")[0]
        if groups and group != groups[-1]:
            lines += _option_rows(groups[-1], options, plain)
        groups.append(group)
        title = f"`{prefix}`" if prefix else "At the top"
        lines += [f"### {title}", "", _sentence((inspect.getdoc(kind) or "").split("\n")[0].replace("``", "`")), ""]  # fmt: skip
        lines += ["| key | default | unit | takes | meaning |", "|---|---|---|---|---|"]
        says = meanings(kind)
        for key in dataclasses.fields(kind):
            name = f"{prefix}.{key.name}".lstrip(".")
            if str(key.type) in TYPES or "allowed" in key.metadata:
                default = _default(key, plain.get(name, dataclasses.MISSING))
                lines.append(
                    f"| `{name}` | {_cell(default)} | {unit_of(key.name)} | {_cell(takes(key))} | {_cell(says.get(key.name, ''))} |"
                )
        lines.append("")
    lines += _option_rows(groups[-1], options, plain)
    lines += ["### `experiment`", "", "Named sets of options: `EXPERIMENT=NAME`.", ""]
    lines += ["| experiment | says |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(text)} |" for group, name, text, _ in options if group == "experiment"]
    return lines


def _default(key: dataclasses.Field[Any], plain: Any) -> str:
    if plain is not dataclasses.MISSING:
        value = plain
    elif key.default is not dataclasses.MISSING:
        value = key.default
    else:
        value = key.default_factory() if callable(key.default_factory) else None
    if value == "???":
        return "needed"
    if isinstance(value, list) and len(value) > 12:
        return f"{len(value)} of them"
    return f"`{_yaml(value)}`"


def _yaml(value: Any) -> str:
    """A value as conf/ writes it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ", ".join(_yaml(one) for one in value) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_yaml(one)}" for key, one in value.items()) + "}"
    return '""' if value == "" else str(value)


def _options(conf: Path) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Group, name, opening comment and keys of every option of conf/."""
    import yaml

    for path in sorted(conf.glob("*/*.yaml")):
        text = read_text(path, "The option")
        group, name = path.parent.name, path.stem
        document = yaml.safe_load(text) or {}
        document.pop("defaults", None)
        comment = []
        for line in text.split("\n"):
            if not line.startswith("#"):
                break
            # What is indented in a comment is typed by a reader, and no part of the sentence.
            if not line.startswith(("# @package", "#   ")):
                comment.append(line[1:].strip())
        whole = "# @package _global_" in text
        yield group, name, " ".join(comment), document if whole or group == "workloads" else {group: document}


def _option_rows(group: str, options: list[tuple[str, str, str, dict[str, Any]]], plain: dict[str, Any]) -> list[str]:  # fmt: skip
    found = [one for one in options if one[0] == group]
    if not found:
        return []
    lines = [f"| option of `{group}` | says | sets otherwise |", "|---|---|---|"]
    for _, name, text, document in found:
        if group == "workloads":
            changed = f"{len(document)} workloads"
        else:
            usual = {**_schema_defaults(group), **plain}
            changed = ", ".join(
                f"`{key}: {_yaml(value)}`"
                for key, value in flat(document).items()
                if usual.get(key, dataclasses.MISSING) != value
            )
        lines.append(f"| `{name}` | {_cell(text)} | {_cell(changed)} |")
    return [*lines, ""]


def _schema_defaults(group: str) -> dict[str, Any]:
    """Of parts that the experiment `paper` does not have."""
    return flat({"board": dataclasses.asdict(BoardConf())}) if group == "board" else {}


def flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value; empty mappings are values."""
    found: dict[str, Any] = {}
    for key, value in document.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and name != "workloads":
            found |= flat(value, f"{name}.")
        else:
            found[name] = value
    return found


# --- text -----------------------------------------------------------------------------------------------------------


def _cell(text: str) -> str:
    """Text as a table's cell holds it; what stands in backticks is left as it is, but for the bar."""
    pieces = re.split(r"(`[^`]*`)", " ".join(text.split()).replace("|", "\\|"))
    return "".join(piece if piece.startswith("`") else piece.replace("<", "\\<") for piece in pieces)


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def main() -> None:
    """Write the page, or with ``--check`` say whether it is stale."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write docs/reference.md from the code.")
    parser.add_argument("--check", action="store_true", help="exit 2 where the page differs from the code")
    check = parser.parse_args().check
    new = page()
    if check:
        if read_text(PAGE, "The page", f"Run `{COMMAND}`.") != new:
            raise InputError(f"{PAGE} is not what the code says.", "It is made from it.", f"Run `{COMMAND}`.")
        return
    write_text(PAGE, new)
    log.info("%s is up to date.", PAGE)


if __name__ == "__main__":
    sys.exit(run(main))
