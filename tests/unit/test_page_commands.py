"""Every command of README.md and docs/ is one that exists: parsed by what would take it (`test_page_sessions.py` runs them)."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import shlex
import subprocess
from collections.abc import Iterator
from functools import cache

import pytest

import wattune
from not_run import NOT_RUN, STARTS, WITHOUT_END, left
from pages import ROOT, blocks, commands, page_blocks, page_commands, pages
from wattune.cli import build_parser

PAGES = pages()
BOARDS_OWN = {
    "tegrastats", "ssh", "systemctl", "apt-get", "nvpmodel", "jetson_clocks", "groupadd", "groupdel", "usermod", "udevadm", "visudo",
    "install", "journalctl",
}  # fmt: skip
"""Programs of a Jetson, of a system, of root."""

PLAIN = {
    "cd", "cp", "rm", "ln", "mkdir", "cat", "head", "grep", "sha256sum", "jq", "export", "unset", "pip", "git", ".", "test", "timeout",
    "kill", "wait", "sleep", "ls", "echo",
}  # fmt: skip
"""Other programs whose arguments are not looked at."""

BEFORE = ("sudo", "-n", "until", "while", "if", "then", "do", "done", "fi", "!")
"""What stands before a program."""


def simple(name: str) -> Iterator[list[str]]:
    """The simple commands of a line, without what is set before them, without sudo."""
    lexer = shlex.shlex(name, posix=True, punctuation_chars=";&|<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in [*lexer, ";"]:
        if set(word) <= set(";&|"):
            while words and (re.match(r"\w+=", words[0]) or words[0] in BEFORE):
                words.pop(0)
            if words:
                yield words
            words = []
        else:
            words.append(word)


def fault(words: list[str], rest: str) -> str:
    """What is wrong with a simple command, or nothing."""
    program = words[0].rsplit("/", 1)[-1] if "/" in words[0] else words[0]
    if program == "wattune":
        return parse_wattune(words[1:])
    if program == "make":
        return parse_make(tuple(words[1:]))
    if program == "dvc":
        return parse_dvc(words[1:])
    if program in ("python", "python3"):
        if words[1] == "-m":
            return "" if words[2] == "venv" or importlib.util.find_spec(words[2]) else f"no module {words[2]}"
        if words[1] == "-c":
            ast.parse(words[2])
        elif words[1] == "-":
            ast.parse(rest.split("\n", 1)[1].rsplit("\n", 1)[0])
        return ""
    missing = [w for w in words if w.startswith("packaging/") and not list(ROOT.glob(w))]
    if missing:
        return f"{missing} is not there"
    return "" if program in PLAIN | BOARDS_OWN else f"the program '{program}' is not known to this test"


def parse_wattune(arguments: list[str]) -> str:
    cut = [i for i, word in enumerate(arguments) if set(word) <= set("<>") or word == "2"]
    try:
        build_parser().parse_args(arguments[: cut[0]] if cut else arguments)
    except SystemExit as error:
        return "" if error.code == 0 else "wattune does not take it"
    return ""


@cache
def parse_make(arguments: tuple[str, ...]) -> str:
    text = (ROOT / "Makefile").read_text()
    for word in arguments:
        name, equals, value = word.partition("=")
        if not equals:
            if not re.search(rf"^{re.escape(name)}:", text, re.MULTILINE):
                return f"no target {name}"
        elif f"$({name})" not in text and f"$${{{name}:" not in text:
            return f"the Makefile does not use {name}"
        elif name == "EXPERIMENT" and not (ROOT / "conf/experiment" / f"{value}.yaml").is_file():
            return f"no experiment {value}"
    done = subprocess.run(["make", "-n", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stderr


def parse_dvc(arguments: list[str]) -> str:
    parser = pytest.importorskip("dvc.cli.parser")
    try:
        parser.get_main_parser().parse_args(arguments)
    except (SystemExit, parser.DvcParserError) as error:
        return f"dvc does not take it: {error!r}"
    return ""


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_taken_by_its_program(page: str) -> None:
    wrong = [
        f"{page}:{command.line}: {command.name}: {problem}"
        for command in page_commands(page)
        for words in simple(command.text.split("\n")[0] if "<<" in command.text else command.name)
        if (problem := fault(words, command.text))
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_not_run_is_on_a_page_and_its_test_exists() -> None:
    typed = {(page, command.name) for page in PAGES for command in page_commands(page)}
    for entry in NOT_RUN:
        assert any(n == entry.command and entry.page in ("", p) for p, n in typed), (
            f"no page says `{entry.command}` any more: take it out of tests/not_run.py"
        )
    for entry in STARTS:
        assert any(n.startswith(entry.command) for _, n in typed), entry.command
    for entry in (*NOT_RUN, *STARTS):
        assert entry.why
        if entry.test:
            path, _, function = entry.test.partition("::")
            assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), entry.test
        for words in simple(entry.instead):
            assert not fault(words, ""), entry.instead
    commands_of = [(entry.command, entry.page) for entry in NOT_RUN]
    assert len(set(commands_of)) == len(commands_of)


def test_what_needs_root_or_the_net_is_listed() -> None:
    """The sessions refuse these programs; a page that has a new one is told here, and not after a minute."""
    for page in PAGES:
        for command in page_commands(page):
            if left(page, command.name):
                continue
            programs = {words[0] for words in simple(command.name)}
            refused = programs & (BOARDS_OWN | {"pip"})
            assert not refused, f"{page}:{command.line}: {command.name}: list it in tests/not_run.py"


INLINE = re.compile(r"`((?:wattune|make|dvc|python -m wattune[\w.]*) [^`]*)`")


@pytest.mark.parametrize("page", PAGES)
def test_commands_named_in_a_sentence_exist(page: str) -> None:
    """Subcommand, options, target, module; what stands for something else (`DIR`, `...`) is let pass."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in page_blocks(page):
        text = text.replace(block.text, "")
    kinds = subcommands()
    wrong = []
    for said in INLINE.findall(re.sub(r"\s+", " ", text)):
        words = said.replace("...", "").split(" -- ")[0].split()
        if words[0] == "wattune" and not words[1].startswith("-"):
            name = " ".join(words[1:3]) if " ".join(words[1:3]) in kinds else words[1]
            options = {w.split("=")[0].strip("[](){},;'\"") for w in words if w.startswith(("-", "[-"))}
            known = kinds.get(name, set())
            if not known or options - known:
                wrong.append(f"{said}: {sorted(options - known) or 'no such command'}")
        elif words[0] == "make" and re.fullmatch(r"[a-z-]+", words[1]):
            if not re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE):
                wrong.append(f"{said}: no such target")
        elif words[0] == "python" and not importlib.util.find_spec(words[2]):
            wrong.append(f"{said}: no such module")
    assert not wrong, f"{page}: {wrong}"


@cache
def subcommands() -> dict[str, set[str]]:
    from wattune.reference import parsers

    found = {name: set(sub._option_string_actions) for name, _, sub in parsers(build_parser())}
    found["import"] = {"--json"}
    return found


@pytest.mark.parametrize("page", PAGES)
def test_python_on_the_pages_calls_what_there_is(page: str) -> None:
    """It parses, imports names that exist, and gives our functions arguments that they take."""
    for block in page_blocks(page):
        if block.language != "python":
            continue
        tree = ast.parse(block.text)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("wattune"):
                for name in node.names:
                    module = importlib.import_module(node.module or "")
                    assert hasattr(module, name.name), f"{page}:{block.line}: {name.name}"
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func).removeprefix("wattune.")
                if called in ("govern", "WattuneCallback"):
                    ours = getattr(wattune, called)
                    inspect.signature(ours).bind_partial(**{k.arg: None for k in node.keywords if k.arg})


# --- the reader of pages itself -------------------------------------------------------------------------------------

PAGE = """# A page

Text with `wattune doctor`.

    make repro        # a comment, with 'a quote
    wattune import sweep "in 1.csv" -o out.csv \\
      --set 'a=1 if b=#2' # done

- a list

    not code, but the list's own paragraph

      wattune restore

1. numbered

        wattune pin 612

Back.

```text
wattune nothing
```

~~~bash
$ python3 - <<'END'
print("# no comment")
END
wattune emulate /tmp/x &
~~~

    from wattune import govern    # Python
    with govern() as run:
        ...

    import wattune

    echo 'two
    lines'
"""


def test_no_block_and_no_command_is_missed() -> None:
    found = list(blocks("p.md", PAGE))
    shell = [c for b in found if b.language == "shell" for c in commands(b)]
    assert [c.name for c in shell] == [
        "make repro",
        "wattune import sweep \"in 1.csv\" -o out.csv --set 'a=1 if b=#2'",
        "wattune restore",
        "wattune pin 612",
        "python3 - <<'END' print(\"# no comment\") END",
        "wattune emulate /tmp/x &",
        "echo 'two lines'",
    ]
    assert [c.line for c in shell][:2] == [5, 6]
    lines = PAGE.split("\n")
    assert all(c.text.split("\n")[0] in lines[c.line - 1] for c in shell)
    assert [b.language for b in found if b.language != "shell"] == ["text", "python", "python"]


def test_every_indented_or_fenced_line_of_every_page_is_in_a_block() -> None:
    """By another way of counting: fences, and lines indented by four after a paragraph."""
    for page in PAGES:
        text = (ROOT / page).read_text(encoding="utf-8")
        fences = len(re.findall(r"^ {0,3}(```|~~~)", text, re.MULTILINE))
        found = page_blocks(page)
        assert fences % 2 == 0
        indented = re.findall(r"(?:^|\n)[^\s`>*+-][^\n]*\n\n(    \S[^\n]*)", text)
        lines = {line.strip() for block in found for line in block.text.split("\n")}
        assert {line.strip() for line in indented} <= lines, page
        assert len(found) >= fences // 2


WRONG = (
    "wattune docter", "make reppro", "make repro EXPERIMENT=papr", "make repro EXPERMENT=paper", "dvc repro --forced",
    "python -m wattune.nothing", "watune doctor", "wattune doctor && wattune pin", "cp packaging/nothing /etc", "sudo wattune pin",
)  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_command_is_found(name: str) -> None:
    assert any(fault(words, "") for words in simple(name))


def test_what_goes_on_without_end_is_not_what_runs_in_the_background() -> None:
    assert any(re.fullmatch(p, "wattune pin 612 --root /tmp/board") for p in WITHOUT_END)
    assert not any(re.fullmatch(p, "wattune emulate /tmp/board &") for p in WITHOUT_END)
    assert left("README.md", "make repro")
    assert left("docs/x.md", "make repro EXPERIMENT=smoke") is None
