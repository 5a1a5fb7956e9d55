"""How far a sweep is: what is left is unknown at first, and corrected by what was taken."""

from __future__ import annotations

import logging

import pytest

from wattune.profiling.progress import Countdown, duration_text


def test_the_estimate_is_corrected_by_what_windows_take(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    count = Countdown(4, 10.0, 25.0, clock=lambda: now[0])
    assert (count.left_s, count.left_j) == (40.0, 1000.0)
    with caplog.at_level(logging.INFO, "wattune"):
        now[0] += 20
        count.window("612 MHz, repeat 1", 12.0)
        assert (count.left_s, count.left_j) == (60.0, 720.0)
        now[0] += 40
        count.window("612 MHz, repeat 2", None)
        assert count.left_s == 60.0
        count.window("maxn", 14.0)
        count.window("maxn", 14.0)
    assert count.left_s == 0.0
    assert "[1/4] 612 MHz, repeat 1; about 60 s and 0.7 kJ left." in caplog.messages
    assert caplog.messages[-1] == "[4/4] maxn; done in 60 s."


def test_who_is_told_of_windows_reads_no_messages_of_them(caplog: pytest.LogCaptureFixture) -> None:
    said: list[tuple[str, int]] = []
    count = Countdown(2, 10.0, 25.0, told=lambda what, who: said.append((what, who.done)))
    with caplog.at_level(logging.INFO, "wattune"):
        count.window("a", 1.0)
        count.window("b", 1.0)
    assert said == [("a", 1), ("b", 2)]
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (120, "2 min"), (7140, "119 min"), (12000, "3 h 20 min")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
