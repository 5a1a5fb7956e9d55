"""What the pages tell a reader to type: the commands and the Python of README.md and docs/, in the order of each page.

A block of code is a fence, or lines indented by four. One with a language is of that language; one without is Python where it
parses as Python that imports something, and shell otherwise. So whatever nobody is meant to type stands in a fence that names
another language (```text), and no command can be missed.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELL = ("sh", "bash", "shell", "console")
LIST = re.compile(r"(\s*)([-*+]|\d+[.)])(\s+)")
FENCE = re.compile(r"\s{0,3}(`{3,}|~{3,})\s*([\w+-]*)")
HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")


@dataclass(frozen=True)
class Block:
    """A piece of code on a page; `line` is its first one, counted from 1."""

    page: str
    line: int
    language: str
    text: str


@dataclass(frozen=True)
class Command:
    """One command of a shell block, with its comment, as written."""

    page: str
    line: int
    text: str

    @property
    def name(self) -> str:
        """The command without comment and needless space: what a list can name it by."""
        return " ".join(uncommented(self.text).split())


def pages(root: Path = ROOT) -> list[str]:
    """README.md, what it sends contributors to, and every page of docs/."""
    docs = sorted(str(p.relative_to(root)) for p in (root / "docs").glob("*.md"))
    return ["README.md", "CONTRIBUTING.md", "conf/README.md", "data/README.md", *docs]


def blocks(page: str, text: str) -> Iterator[Block]:
    """The blocks of code of a page."""
    lines = text.split("\n")
    number, margin = 0, 0
    while number < len(lines):
        line = lines[number]
        fence = FENCE.match(line)
        if fence:
            end = number + 1
            while end < len(lines) and not lines[end].strip().startswith(fence[1]):
                end += 1
            body = "\n".join(lines[number + 1 : end])
            yield Block(page, number + 2, language_of(fence[2].lower(), body), body)
            number = end + 1
            continue
        blank_before = number == 0 or not lines[number - 1].strip()
        if line.strip() and blank_before and indent(line) >= 4 + margin:
            end = number
            while end < len(lines) and (not lines[end].strip() or indent(lines[end]) >= 4 + margin):
                end += 1
            body = "\n".join(part[4 + margin :] for part in lines[number:end]).rstrip()
            # A blank line inside may part a Python snippet from another: each is looked at by itself.
            if language_of("", body) == "shell":
                yield from parted(page, number + 1, body)
            else:
                yield Block(page, number + 1, "python", body)
            number = end
            continue
        if line.strip():
            item = LIST.match(line)
            if item:
                margin = len(item[0])
            elif indent(line) < margin:
                margin = 0
        number += 1


def parted(page: str, first: int, body: str) -> Iterator[Block]:
    """A block of several, parted by blank lines, where some are Python and some are not."""
    kinds = {language_of("", part) for part in body.split("\n\n")}
    if kinds == {"shell"} or any(HEREDOC.search(line) for line in body.split("\n")):
        yield Block(page, first, "shell", body)
        return
    line = first
    for part in body.split("\n\n"):
        yield Block(page, line, language_of("", part), part)
        line += part.count("\n") + 2


def indent(line: str) -> int:
    """Spaces a line begins with."""
    return len(line) - len(line.lstrip(" "))


def language_of(named: str, body: str) -> str:
    """``shell``, ``python`` or the name of something else."""
    if named:
        return "shell" if named in SHELL else "python" if named in ("python", "py") else named
    try:
        tree = ast.parse(body)
    except SyntaxError:
        return "shell"
    return "python" if any(isinstance(n, (ast.Import, ast.ImportFrom)) for n in ast.walk(tree)) else "shell"


def commands(block: Block) -> Iterator[Command]:
    """The commands of a shell block; continued lines, quotes over lines and here-documents stay together."""
    held: list[str] = []
    first, ends = block.line, ""
    for number, line in enumerate(block.text.split("\n"), block.line):
        text = re.sub(r"^\$ ", "", line) if not held else line
        if not held:
            if not text.strip() or text.lstrip().startswith("#"):
                continue
            first = number
        held.append(text)
        if ends:
            if line.strip() != ends:
                continue
            ends = ""
        else:
            heredoc = HEREDOC.search(text)
            if heredoc:
                ends = heredoc[2]
                continue
            if text.endswith("\\") or not closed("\n".join(held)):
                continue
        yield Command(block.page, first, "\n".join(held).rstrip())
        held = []
    if held:
        yield Command(block.page, first, "\n".join(held))


def closed(text: str) -> bool:
    """Whether every quote is closed."""
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return False
    return True


def uncommented(text: str) -> str:
    """A command without the comment at its end."""
    if HEREDOC.search(text):
        return text
    kept = []
    for line in text.split("\n"):
        cut = [m.start() for m in re.finditer(r"(?:^|\s)#", line) if closed(line[: m.start()])]
        kept.append(line[: cut[0]] if cut else line)
    return "\n".join(kept).replace("\\\n", " ")


def page_blocks(page: str, root: Path = ROOT) -> list[Block]:
    """The blocks of a page of this repository."""
    return list(blocks(page, (root / page).read_text(encoding="utf-8")))


def page_commands(page: str, root: Path = ROOT) -> list[Command]:
    """The commands of a page of this repository, in order."""
    return [c for b in page_blocks(page, root) if b.language == "shell" for c in commands(b)]
