"""Certificates of the emulated board are what their schema says, whatever went wrong while they were made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from schemas import schema
from wattune.benches.meter import VirtualBoard
from wattune.boards.jetson.findings import Filter
from wattune.boards.virtual.emulator import faults
from wattune.profiling.certificate import certify, judge_baseline
from wattune.profiling.meter import Meter, Window

SCHEMA = schema("certificate")


def certificate(
    *events: tuple[float, str],
    look: Callable[[VirtualBoard], None] = lambda board: None,
    baseline: bool = False,
    idle: bool = False,
    jetpack: str = "6",
) -> dict[str, Any]:
    """Twelve seconds of training in virtual time, with faults at their times."""
    board = VirtualBoard(jetpack=jetpack)
    look(board)
    start = board.time.now_s
    for at, text in events:
        board.time.at(start + at, lambda text=text: faults.apply(text, board.machine, board.tree))  # type: ignore[misc]

    def measure(seconds: float) -> tuple[Meter, Window]:
        clock = board.time
        meter = Meter(board.findings, clock=clock, sleep=clock.sleep, reader=board.read)
        meter.start()
        meter.run(seconds)
        meter.stop(tail=False)
        return meter, meter.window(clock() - 0.8 * seconds, clock() - 0.2)

    before = measure(5.0)[1] if idle else None
    meter, window = measure(15.0)
    found = board.findings
    judged = judge_baseline(found, found, window.clocks_s, util_pct=window.util_pct) if baseline else None
    repeats = [window.sets["gpu_cpu"].energy_j or 0.0] * 3
    return certify(meter, window, idle=before, repeats_j=repeats, baseline=judged).as_json()


def unknown_board(board: VirtualBoard) -> None:
    board.findings = replace(
        board.findings, board=None, soc=None, jetpack=None, gpu=None, module=None, gpu_cpu=None,
        filter=Filter(None, None), power_mode=None, boot_id=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    "made",
    [
        pytest.param(certificate, id="nothing wrong"),
        pytest.param(lambda: certificate(baseline=True, idle=True), id="baseline and idle"),
        pytest.param(lambda: certificate(jetpack="5"), id="JetPack 5"),
        pytest.param(lambda: certificate((6.0, "rail-eio VDD_GPU_SOC")), id="a rail fails"),
        pytest.param(
            lambda: certificate((6.0, "rail-enodata VDD_CPU_CV"), (6.7, "clear")),
            id="a rail fails for a moment",
        ),
        pytest.param(
            lambda: certificate((6.0, "overcurrent oc3"), (7.0, "thermal-cap 612000000")), id="throttled"
        ),
        pytest.param(lambda: certificate((6.0, "power-mode MODE_30W"), baseline=True), id="mode switched"),
        pytest.param(lambda: certificate((6.0, "late-node 3")), id="node gone"),
        pytest.param(lambda: certificate((6.0, "reboot")), id="reboot"),
        pytest.param(lambda: certificate(look=unknown_board, baseline=True), id="unknown board"),
    ],
)
def test_certificates_are_what_the_schema_says(made: Callable[[], dict[str, Any]]) -> None:
    jsonschema.validate(made(), SCHEMA)


def test_what_the_schema_is_for_is_refused() -> None:
    """Every entry is needed, none may be added, and an unknown energy has its reason."""
    whole = certificate((6.0, "rail-eio VDD_GPU_SOC"), baseline=True, idle=True)
    jsonschema.validate(whole, SCHEMA)
    assert whole["sets"]["gpu_cpu"]["gross_j"] is None

    def refused(document: dict[str, Any]) -> bool:
        return not jsonschema.Draft202012Validator(SCHEMA).is_valid(document)

    fixed = ("board", "versions", "window", "filter", "throttling", "repeats", "own_cost", "baseline")
    sections = [
        whole,
        *(whole[name] for name in fixed),
        whole["rails"]["VDD_CPU_CV"],
        *whole["sets"].values(),
    ]
    for section in sections:
        for name in list(section):
            kept = section.pop(name)
            assert refused(whole), name
            section[name] = kept
        section["and_more"] = 1
        assert refused(whole)
        del section["and_more"]
    for where in (whole["rails"]["VDD_GPU_SOC"], whole["sets"]["gpu_cpu"]):
        reason, where["reason"] = where["reason"], ""
        assert refused(whole)
        where["reason"] = reason
    assert not refused(whole)
    whole["rails"]["VDD_CPU_CV"]["reason"] = "why should it have one"
    assert refused(whole)
