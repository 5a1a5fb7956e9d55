"""What a person at a terminal sees: tables and one line of progress; the only module that knows rich.

Both need a terminal (``TERM`` set and not ``dumb``) and rich, which the extras bring. Without them there is no table and no line,
and the caller writes its plain text. ``NO_COLOR`` takes all styles away, ``COLUMNS`` sets the width.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

FALLBACK_COLUMNS = 80
LONGEST_WORD = 24
"""Words of a text that are longer are broken where room is short, in characters."""

GAP = 2
BAR, ROOM_FOR_BAR = 16, 120
"""Width of the bar, and of a terminal that has room for it."""

_TONES = {"NO": "bold red", "yes": "green", "absent": "dim", "unknown": "dim", "-": "dim"}
"""How a cell is set that says just this."""

_SIMULATED = re.compile(r"\bsimulated\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table.

    Attributes:
        name: its heading, with the unit.
        number: holds numbers: set to the right, and never folded.
    """

    name: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under headings; where there is no room, whole columns are left out from the last on, and named below.

    Attributes:
        columns: the headings, the most important first; no line of headings where all are empty.
        rows: texts, one for each column.
        title: what it is about; no line where empty.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """Lines under a title, each wrapped between words.

    Attributes:
        title: what they are about; no line where empty.
        lines: none, and the section is left out.
    """

    title: str
    lines: Sequence[str]


Block = str | Table | Section
"""A table, or text, which is wrapped between words."""


def draws(stream: TextIO | None) -> bool:
    """Whether tables and progress can be shown there."""
    try:
        terminal = stream is not None and stream.isatty()
    except (ValueError, OSError):  # closed, or the terminal is gone
        return False
    if not terminal or os.environ.get("TERM", "").lower() in ("", "dumb", "unknown"):
        return False
    try:
        import rich.live
        import rich.table  # noqa: F401
    except ImportError:
        return False
    return True


def figures(values: Sequence[float | None], digits: int = 4) -> list[str]:
    """Numbers of a column with the same decimals: so many that the smallest shows `digits` digits, and four at most."""
    sizes = [abs(value) for value in values if value]
    decimals = min(max(digits - 1 - math.floor(math.log10(min(sizes))), 0), 4) if sizes else 0
    return ["unknown" if value is None else f"{value:.{decimals}f}" for value in values]


def rendered(blocks: Sequence[Block], stream: TextIO | None) -> str | None:
    """Blocks as that terminal shows them, a blank line between; None where it shows plain text only.

    Args:
        blocks: in order; empty texts are left out.
        stream: standard output, or standard error.
    """
    if stream is None or not draws(stream):
        return None
    console = _console(stream)
    with console.capture() as shown:
        for number, block in enumerate(block for block in blocks if not _empty(block)):
            if number:
                console.print()
            if isinstance(block, Table):
                _print_table(block, console)
            elif isinstance(block, Section):
                if block.title:
                    _print_text(block.title, console, "bold")
                _print_text("\n".join(f"  {line}" for line in block.lines), console)
            else:
                _print_text(block, console)
    return shown.get().rstrip("\n")


class Line:
    """One line at the foot of a terminal, drawn anew in place; what is logged meanwhile goes above it. Elsewhere nothing.

    It is drawn when :meth:`show` is called and at no other time: a thread that redraws would disturb what is measured. The
    cursor stays visible, so that nothing is left behind whatever ends the process.
    A terminal that goes away ends the line, not the work.

    Args:
        stream: standard error where not given.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._live: Any = None
        self._console: Console | None = None
        self._turned: list[logging.StreamHandler[Any]] = []

    def __enter__(self) -> Line:
        if not draws(self._stream):
            return self
        from rich.live import Live

        self._console = console = _console(self._stream)
        self._live = Live(
            console=console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=True
        )
        try:
            with self._or_nothing():
                self._live.start()
                console.show_cursor(True)
            for handler in logging.getLogger().handlers:
                if isinstance(handler, logging.StreamHandler) and handler.stream is self._stream:
                    handler.setStream(sys.stderr)  # which leads above the line now
                    self._turned.append(handler)
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def show(self, share: float | None, parts: Sequence[str]) -> None:
        """Draw the line.

        Args:
            share: of the work that is done, 0 to 1; None draws no bar.
            parts: what it says, the most important first: those that find no room are left out whole.
        """
        live, console = self._live, self._console
        if live is None or console is None:
            return
        with self._or_nothing():
            live.update(_line(share, parts, console), refresh=True)

    @contextlib.contextmanager
    def _or_nothing(self) -> Iterator[None]:
        """Where the terminal is gone, go on without."""
        try:
            yield
        except OSError:
            self._end()

    def _end(self) -> None:
        live, self._live = self._live, None
        while self._turned:
            self._turned.pop().setStream(self._stream)
        if live is not None:
            with contextlib.suppress(OSError):
                live.stop()


def _console(stream: TextIO) -> Console:
    from rich.console import Console

    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        file=stream, force_terminal=True, color_system=None if plain else "auto", width=_columns(stream), highlight=False,
        markup=False, emoji=False, legacy_windows=False,
    )  # fmt: skip


def _columns(stream: TextIO) -> int:
    given = os.environ.get("COLUMNS", "")
    if given.isdigit() and int(given) > 0:
        return int(given)
    try:
        return os.get_terminal_size(stream.fileno()).columns or FALLBACK_COLUMNS
    except (OSError, ValueError):
        return FALLBACK_COLUMNS


def _clean(text: str) -> str:
    """One line without control characters: names come from files of others."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _toned(text: str, style: str = "") -> Text:
    from rich.text import Text

    toned = Text(text, style=style)
    toned.highlight_regex(_SIMULATED, "yellow")
    return toned


def _empty(block: Block) -> bool:
    return not (
        block.rows if isinstance(block, Table) else block.lines if isinstance(block, Section) else block
    )


def _print_text(text: str, console: Console, style: str = "") -> None:
    """Wrapped between words, the indent of a line kept; a word that is longer than a line stays whole."""
    for line in text.split("\n"):
        indent = " " * (len(line) - len(line.lstrip(" ")))
        wrapped = textwrap.wrap(
            _clean(line).strip(), console.width, initial_indent=indent, subsequent_indent=indent and indent + "  ",
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        for piece in wrapped or [""]:
            console.print(_toned(piece, style), soft_wrap=True)


def _print_table(table: Table, console: Console) -> None:
    from rich import box
    from rich.table import Table as Drawn

    cells = [[_clean(cell) for cell in row] for row in table.rows]
    widths = _widths(table.columns, cells, console.width)
    drawn = Drawn(
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, GAP - 1, 0, 0),
        header_style="bold",
        show_header=any(column.name for column in table.columns),
    )
    for column, width in zip(table.columns, widths, strict=False):
        drawn.add_column(
            column.name, width=width, justify="right" if column.number else "left", overflow="fold"
        )
    for row in cells:
        drawn.add_row(*(_toned(cell, _TONES.get(cell, "")) for cell in row[: len(widths)]))
    if table.title:
        _print_text(table.title, console, "bold")
    console.print(drawn)
    if left_out := [column.name for column in table.columns[len(widths) :]]:
        _print_text(f"(No room for: {', '.join(left_out)}.)", console)


def _widths(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> list[int]:
    """Widths of the columns that find room, the first in any case; numbers are never narrower than the longest of them."""
    from rich.cells import cell_len

    def longest(texts: Iterable[str]) -> int:
        return max(map(cell_len, texts), default=1)

    least, words, most = [], [], []
    for number, column in enumerate(columns):
        cells = [row[number] for row in rows]
        heading = longest(column.name.split())
        word = longest(cells if column.number else (word for cell in cells for word in cell.split()))
        least.append(max(heading, word if column.number else min(word, LONGEST_WORD)))
        words.append(max(heading, word))
        most.append(longest([column.name, *cells]))
    shown = len(columns)
    while shown > 1 and sum(least[:shown]) + GAP * shown - 1 > room:
        shown -= 1
    widths = least[:shown]
    spare = room - sum(widths) - GAP * shown + 1
    for wanted in (words, most):  # first whole words, then whole lines; the narrowest grows first
        while spare > 0 and (short := [n for n in range(shown) if widths[n] < wanted[n]]):
            widths[min(short, key=lambda n: widths[n])] += 1
            spare -= 1
    return widths


def _line(share: float | None, parts: Sequence[str], console: Console) -> RenderableType:
    """The parts that find room, and a bar before them on a wide terminal."""
    from rich.cells import cell_len
    from rich.text import Text

    between = " \N{MIDDLE DOT} " if console.encoding.startswith("utf") else "; "
    text, room = Text(no_wrap=True, overflow="crop"), console.width - 1
    if share is not None and console.width >= ROOM_FOR_BAR:
        full, empty = (
            ("\N{BOX DRAWINGS HEAVY HORIZONTAL}", "\N{BOX DRAWINGS LIGHT HORIZONTAL}")
            if console.encoding.startswith("utf")
            else ("#", ".")
        )
        filled = round(BAR * min(max(share, 0.0), 1.0))
        text.append(full * filled, "green").append(empty * (BAR - filled) + " ", "dim")
        room -= BAR + 1
    said = _clean(parts[0]) if parts else ""
    for part in map(_clean, parts[1:]):
        if cell_len(said + between + part) > room:
            break
        said += between + part
    text.append_text(_toned(said))
    return text
