"""How far a sweep is: what is left is unknown at first, and corrected by what was taken."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from wattune.core.measurement import Measurement
from wattune.core.settings import Setting
from wattune.profiling.cells import Cell
from wattune.profiling.progress import Countdown, SweepProgress, duration_text, jobs_on
from wattune.workloads.build import build_named


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


class Shown:
    """Stands where the line of a terminal does."""

    def __init__(self) -> None:
        self.said: list[tuple[float | None, list[str]]] = []

    def show(self, share: float | None, parts: list[str]) -> None:
        self.said.append((share, list(parts)))


def cell(setting: Setting, *, certificates: tuple[dict[str, Any], ...] = ()) -> Cell:
    steps = WORKLOAD.steps_per_epoch
    repeats = tuple(
        Measurement(setting, n, (10.0 + 2 * n) * steps, 3.0 * steps, temp_c_max=t)
        for n, t in enumerate((41.25, None, 43.5))
    )
    return Cell(
        "f", "b", "measured", "MAXN", "gpu_cpu", WORKLOAD.id, setting, {}, repeats, None, certificates
    )


WORKLOAD = build_named("bert-base-sst2")
HOT = {
    "throttling": {"cooling_state_max": {"gpu": 2}, "over_current_events": {"oc1": 0}},
    "run": {"discarded": []},
}
COOL = {"throttling": {"cooling_state_max": {"gpu": 0}, "over_current_events": {}}, "run": {"discarded": []}}
RETRIED = {**COOL, "run": {"discarded": ["window 1: The cooling device gpu capped the clock (state 1)."]}}


def test_a_sweep_counts_what_is_done_left_failed_and_throttled() -> None:
    now, line = [0.0], Shown()
    sweep = SweepProgress(line, 8, "measured", clock=lambda: now[0])  # type: ignore[arg-type]
    sweep.workload(WORKLOAD, 4, 3)
    assert sweep.left_s is None
    assert line.said[-1] == (
        0.0,
        ["bert-base-sst2 0/4 settings", "time left not known yet", "0 s so far", "measured"],
    )
    sweep.ended(306.0, "kept", cell(306.0))
    assert sweep.left_s is None  # what was there tells nothing of how long measuring takes
    for mhz, took, what, found in (
        (612.0, 10.0, "measured", cell(612.0, certificates=(COOL, HOT))),
        (714.0, 20.0, "failed", None),
        ("maxn", 30.0, "measured", cell("maxn", certificates=(RETRIED,))),
    ):
        sweep.begins(mhz, 3)
        assert line.said[-1][1][-1] == (f"now {mhz:g} MHz" if isinstance(mhz, float) else "now maxn")
        now[0] += took
        sweep.ended(mhz, what, found)
    assert sweep.left_s == 20.0 * 4  # those of the other workload
    assert line.said[-1] == (
        0.5,
        [
            "bert-base-sst2 4/4 settings", "about 80 s left", "1 failed", "2 throttled", "60 s so far", "measured",
            "maxn: 12.00 J/step", "43.5 \N{DEGREE SIGN}C",
        ],
    )  # fmt: skip
    sweep.workload(WORKLOAD, 4, 4)
    assert not [part for part in line.said[-1][1] if "J/step" in part]  # that was the other workload's
    assert (line.said[-1][0], line.said[-1][1][0]) == (0.5, "bert-base-sst2 0/4 settings")


def test_a_live_board_is_counted_by_its_windows() -> None:
    now, line = [0.0], Shown()
    sweep = SweepProgress(line, 6, "simulated", clock=lambda: now[0])  # type: ignore[arg-type]
    sweep.workload(WORKLOAD, 3, 3)
    count = Countdown(9, 10.0, 25.0, told=sweep.window, clock=lambda: now[0])
    sweep.begins(612.0, 3)
    now[0] += 40.0
    count.window("612 MHz, repeat 1", 20.0)
    assert sweep.left_s == 40.0 * 8 + 40.0 * 3 * 3
    assert line.said[-1][1][-1] == "window 1/9: 612 MHz, repeat 1"


def test_jobs_are_counted_and_nothing_is_said_to_be_left_before_one_is_done() -> None:
    now, line = [0.0], Shown()
    told = jobs_on(line, "refits", clock=lambda: now[0])  # type: ignore[arg-type]
    told(0, 4)
    now[0] = 5.0
    told(1, 4)
    assert line.said == [
        (0.0, ["0/4 refits", "time left not known yet", "0 s so far"]),
        (0.25, ["1/4 refits", "about 15 s left", "5 s so far"]),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (89, "89 s"), (120, "2 min"), (7140, "119 min"), (12000, "3 h 20 min")],
)
def test_durations_are_short(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text
