"""Every Markdown page of the project: its links lead somewhere, its pictures are there, and the index names it."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from wattune.cli import main

ROOT = Path(__file__).parents[2]
GENERATED = ("data/", "models/", "reports/")
"""Folders the pipeline fills: a link into them holds once it has run."""

IGNORED = {".venv", ".git", ".dvc", ".cache", "node_modules", "build", "models", "reports", "mlartifacts"}


def pages() -> list[Path]:
    found = (p.relative_to(ROOT) for p in ROOT.rglob("*.md"))
    return sorted(ROOT / p for p in found if not IGNORED & set(p.parts))


def prose(page: Path) -> str:
    """A page without what is code: fenced and indented blocks, and code in the line."""
    text = re.sub(r"(?ms)^```.*?^```\s*$", "", page.read_text(encoding="utf-8"))
    return re.sub(
        r"`[^`\n]*`",
        lambda code: code.group().replace("[", "").replace("]", ""),
        re.sub(r"(?m)^(?: {4}|\t).*$", "", text),
    )


def anchors(page: Path) -> set[str]:
    """What a heading can be reached by, as GitHub makes it: lower case, no punctuation, hyphens for spaces, repeats numbered."""
    found: set[str] = set()
    for heading in re.findall(
        r"(?m)^#{1,6} +(.+?) *#*$", re.sub(r"(?ms)^```.*?^```\s*$", "", page.read_text(encoding="utf-8"))
    ):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        plain = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        name, n = plain, 0
        while name in found:
            n += 1
            name = f"{plain}-{n}"
        found.add(name)
    return found


def links(page: Path) -> Iterator[str]:
    text = prose(page)
    yield from re.findall(r"\]\(\s*<?([^)>\s]+)>?(?:\s+\"[^\"]*\")?\s*\)", text)
    yield from re.findall(r"(?m)^\[[^\]]+\]:\s*(\S+)", text)
    yield from re.findall(r"(?:src|href)=\"([^\"]+)\"", text)


def broken(page: Path, root: Path) -> list[str]:
    """What is wrong with the links of a page, one sentence each; links to other sites are not followed."""
    wrong = []
    for link in links(page):
        if re.match(r"[a-z][a-z+.-]*:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page if not path else (page.parent / path).resolve()
        if not target.is_relative_to(root):
            wrong.append(f"{link} leads out of the project")
        elif not target.exists():
            if not str(target.relative_to(root)).startswith(GENERATED):
                wrong.append(f"{link} does not exist")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            wrong.append(f"{link}: no such heading")
    return wrong


@pytest.mark.parametrize("page", pages(), ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert not broken(page, ROOT)


def test_the_checker_sees_what_is_broken(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("# A `code` heading, twice\n\n## Same\n\n## Same\n")
    page = tmp_path / "a.md"
    page.write_text(
        "[b](b.md) [b](b.md#a-code-heading-twice) [s](b.md#same-1) [x](https://x.org/none) `[c](none.md)`\n\n    [i](none.md)\n"
        "```\n[f](none.md)\n```\n[1](none.md) ![2](none.png) [3](b.md#same-2) [4](../b.md) [5](#none)\n\n[6]: none2.md\n"
    )
    told = " ".join(broken(page, tmp_path))
    assert [told.count(w) for w in ("does not exist", "no such heading", "out of the project")] == [3, 2, 1]


def test_pictures_in_docs_are_used() -> None:
    used = {
        (page.parent / link).resolve() for page in pages() for link in links(page) if link.endswith(".png")
    }
    shown = subprocess.run(
        ["git", "ls-files", "docs/figures"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shown.returncode:
        pytest.skip("not a checkout")
    assert {(ROOT / name).resolve() for name in shown.stdout.split()} <= used


def test_the_index_names_every_page() -> None:
    index = ROOT / "docs/README.md"
    named = {(index.parent / link.partition("#")[0]).resolve() for link in links(index)}
    assert {p for p in pages() if p.parent == index.parent and p != index} <= named


SHOWN = re.compile(r"(?m)^    wattune ((?:pareto|predict) .*)\n\n```text\n((?s:.)*?)```")


@pytest.mark.parametrize(
    ("command", "output"),
    [(c, o) for page in pages() for c, o in SHOWN.findall(page.read_text(encoding="utf-8"))],
)
def test_what_the_model_prints_is_what_pages_show(
    command: str, output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == output
