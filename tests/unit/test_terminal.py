"""Tables as a terminal shows them: whatever the width, no number is lost but with its column, and that is named."""

from __future__ import annotations

import io
import re

import pytest

pytest.importorskip("rich")

from hypothesis import given
from hypothesis import strategies as st

from wattune import terminal
from wattune.terminal import Column, Line, Section, Table, draws, figures, rendered


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(monkeypatch: pytest.MonkeyPatch, width: int, *blocks: terminal.Block) -> str:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("NO_COLOR", "1")
    text = rendered(blocks, Screen())
    assert text is not None
    return text


names = st.text("abcdefgh_-", min_size=1, max_size=40)
words = st.lists(names, min_size=1, max_size=6).map(" ".join)
numbers = st.floats(-1e6, 1e6).map(lambda x: f"{x:.3f}")


@given(st.data(), st.integers(15, 200))
def test_numbers_are_whole_or_their_column_is_named(data: st.DataObject, width: int) -> None:
    kinds = [False, *data.draw(st.lists(st.booleans(), min_size=1, max_size=7))]
    columns = [Column(f"{'number' if kind else 'text'}{n} %", number=kind) for n, kind in enumerate(kinds)]
    row = st.tuples(*(numbers if kind else words for kind in kinds))
    rows = data.draw(st.lists(row, min_size=1, max_size=5))
    with pytest.MonkeyPatch.context() as monkeypatch:
        text = shown(monkeypatch, width, Table(columns, rows, "a title"))
    table, _, left_out = text.partition("(No room for:")
    named = re.sub(r"\s+", " ", left_out)
    gone = [column.name in named for column in columns]
    assert gone == sorted(gone)  # the last ones
    assert not gone[0]
    for n, column in enumerate(columns):
        assert (column.name.split()[0] in table) != gone[n]
        for cell in (row[n] for row in rows):
            if column.number and not gone[n]:
                assert re.search(rf"(?<![\d.-]){re.escape(cell)}(?!\d)", table)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    least = sum(24 if not kind else 11 for kind in kinds[:1]) + 1
    if width >= least:
        assert max(map(len, text.splitlines())) <= width


def test_a_table_takes_no_more_room_than_it_needs_and_numbers_stand_to_the_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table([Column("name"), Column("energy (J)", number=True)], [["a", "1.50"], ["bb", "20.25"]])
    assert [line.rstrip() for line in shown(monkeypatch, 100, table).splitlines()] == [
        "name  energy (J)",
        "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 17,
        "a           1.50",
        "bb         20.25",
    ]


def test_what_is_empty_is_left_out_and_blocks_stand_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(
        monkeypatch,
        40,
        "",
        Section("Nothing", []),
        Section("Some", ["one", "two"]),
        "end",
        Table([Column("x")], []),
    )
    assert text == "Some\n  one\n  two\n\nend"


def test_text_is_wrapped_between_words_and_a_path_stays_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu"
    text = shown(monkeypatch, 30, Section("GPU", [f"the node is {path}, and it can be pinned"]))
    assert path + "," in text
    assert all(line.startswith("  ") for line in text.splitlines()[1:])


@pytest.mark.parametrize(
    ("values", "texts"),
    [
        ([20.7, 0.9720, None], ["20.7000", "0.9720", "unknown"]),
        ([18.149, 19.6], ["18.15", "19.60"]),
        ([552289.4, 4521.2], ["552289", "4521"]),
        ([0.0, None], ["0", "unknown"]),
        ([1e-9], ["0.0000"]),
        ([], []),
    ],
)
def test_figures_of_a_column_have_the_same_decimals(values: list[float | None], texts: list[str]) -> None:
    assert figures(values) == texts


@pytest.mark.parametrize("term", ["", "dumb", "unknown"])
def test_a_terminal_that_cannot_draw_gets_nothing(term: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", term)
    assert rendered(["text"], Screen()) is None
    screen = Screen()
    with Line(screen) as line:
        line.show(0.5, ["text"])
    assert screen.getvalue() == ""


def test_what_is_no_terminal_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    closed = Screen()
    closed.close()
    for stream in (None, io.StringIO()):
        assert not draws(stream)
        assert rendered(["text"], stream) is None


def test_an_ascii_terminal_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ascii(Screen):
        encoding = "ascii"

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "130")
    screen = Ascii()
    text = rendered([Table([Column("x"), Column("y", number=True)], [["a", "1"]], "title")], screen)
    assert text is not None
    assert text.isascii()
    with Line(screen) as line:
        line.show(0.5, ["one", "two"])
    assert screen.getvalue().isascii()
    assert "########........ one; two" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.getvalue())
