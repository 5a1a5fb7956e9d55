"""An hour of virtual minutes with faults at random: no sample is lost silently, every gap is in the certificate."""

from __future__ import annotations

import errno
import random
from dataclasses import dataclass

import pytest

from wattune.benches.meter import WORKLOAD, VirtualBoard
from wattune.profiling.certificate import certify
from wattune.profiling.meter import Meter

HZ, WINDOW_S = 5.0, 20.0
PERIOD_S = 1 / HZ
RAILS = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")


@dataclass
class Fault:
    begin_s: float
    end_s: float
    rails: tuple[str, ...]


class Soak:
    """Puts faults on a board and keeps account of them, apart from the meter's own."""

    def __init__(self, seed: int, seconds: float) -> None:
        self.rng = random.Random(seed)
        self.board = VirtualBoard(seed=seed)
        self.faults: list[Fault] = []
        self.slow: set[str] = set()
        self.start_s = self.board.time.now_s
        t = self.start_s + 5.0
        while t < self.start_s + seconds - 10.0:
            kind = self.rng.choice(("rail", "rail", "stall", "slow", "load", "clock"))
            t += self.rng.expovariate(1 / 12.0) + 6.0
            self.board.time.at(t, lambda kind=kind: self.happen(kind))
        self.edges = [self.start_s + n * WINDOW_S + 0.37 for n in range(int(seconds / WINDOW_S))]
        self.true_j: dict[float, dict[str, float]] = {}
        for edge in self.edges:
            self.board.time.at(edge, lambda edge=edge: self.true_j.__setitem__(edge, self.board.true_j()))

    def happen(self, kind: str) -> None:
        board, now, rng = self.board, self.board.time.now_s, self.rng
        if kind == "rail":
            length, rail = rng.uniform(0.05, 5.0), rng.choice(RAILS)
            board.tree.faults.rails[rail] = rng.choice(
                (errno.EIO, errno.ENODATA, errno.EAGAIN, errno.ETIMEDOUT)
            )
            board.time.at(now + length, lambda: board.tree.faults.rails.pop(rail, None))
            self.faults.append(Fault(now, now + length, (rail,)))
        elif kind == "stall":
            length = rng.uniform(0.05, 4.0)
            board.time.now_s += length
            self.faults.append(Fault(now, now + length, RAILS))
        elif kind == "slow":
            self.slow.add(rng.choice(RAILS))
        elif kind == "load":
            board.work(rng.choice((WORKLOAD, "pythia-70m-rte", None)))
        else:
            board.pin(rng.choice(board.machine.devfreq.table_hz))

    def read(self, path: str) -> str:
        """The tree, where now and then a read of a current takes long."""
        board = self.board
        for rail in self.slow:
            if path == board.findings.rails[rail].milliampere:
                self.slow.discard(rail)
                length = self.rng.uniform(0.05, 2.5)
                self.faults.append(Fault(board.time.now_s, board.time.now_s + length, RAILS))
                board.time.now_s += length
                break
        return board.read(path)


def soak(seed: int, seconds: float) -> tuple[int, int]:
    run = Soak(seed, seconds)
    board = run.board
    meter = Meter(board.findings, hz=HZ, clock=board.time, sleep=board.time.sleep, reader=run.read)
    meter.start()
    meter.run(seconds)
    meter.stop(tail=False)

    # Every sample that was due is accounted for: taken, missed; and each one taken is used, slow or a duplicate.
    due = int((board.time.now_s - run.start_s) / PERIOD_S + 1e-9)
    missed = sum(n for _, n in meter._missed_at)
    assert abs(meter.cost().samples + missed - due) <= 1
    assert meter.cost().samples == len(meter._stamps) + len(meter._slow_at) + len(meter._duplicates_at)
    for rail in RAILS:
        assert len(meter._points[rail]) + len(meter._failures[rail].t_s) == len(meter._stamps) + len(
            meter._slow_at
        )

    # Every fault long enough to cost a reading is a gap of its rails in the certificate, and no gap is without a fault.
    whole = meter.window(run.start_s + 1.0, board.time.now_s - 1.0)
    gaps = certify(meter, whole).document["gaps"]
    spans = [
        (whole.t0_s + g["start_s"], whole.t0_s + g["start_s"] + g["length_s"], set(g["rails"])) for g in gaps
    ]
    for fault in run.faults:
        if fault.end_s - fault.begin_s <= 2.5 * PERIOD_S or fault.end_s > whole.t1_s:
            continue
        for rail in fault.rails:
            assert any(
                rail in rails and begin <= fault.begin_s + 1e-3 and end >= fault.end_s - 1e-3
                for begin, end, rails in spans
            ), (fault, rail)
    for begin, end, rails in spans:
        for rail in rails:
            assert any(
                rail in f.rails and f.begin_s <= end and f.end_s >= begin - PERIOD_S for f in run.faults
            ), (begin, end, rail)

    # A window has either an energy that is right or none, with the reason.
    with_energy = without = 0
    for t0, t1 in zip(run.edges, run.edges[1:], strict=False):
        if t1 > board.time.now_s or t0 not in run.true_j or t1 not in run.true_j:
            continue
        window = meter.window(t0, t1)
        one = window.sets["module"]
        stalled = any(f.begin_s < edge < f.end_s for f in run.faults for edge in (t0, t1))
        lost = [g for g in window.gaps if not g.bridged]
        assert (one.energy_j is None) == bool(lost)
        if one.energy_j is None:
            assert one.reason
            without += 1
            continue
        with_energy += 1
        if stalled:  # what was true at the edge is not known: time stood still there
            continue
        true_j = run.true_j[t1]["module"] - run.true_j[t0]["module"]
        assert one.bound_j is not None
        bridged_s = sum(g.length_s * len(g.rails) / len(RAILS) for g in window.gaps)
        # A load that changes inside a bridged gap is not seen there; the filter still shows what is left of it after the gap.
        assert abs(
            one.energy_j - true_j
        ) <= one.bound_j + 0.01 * true_j + one.edge_j + 8.0 * bridged_s * bool(window.gaps)
        if not window.gaps:
            assert abs(one.energy_j - true_j) <= one.bound_j + 0.01 * true_j
    return with_energy, without


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_an_hour_loses_no_sample_silently(seed: int) -> None:
    with_energy, without = soak(seed, 3600.0)
    assert with_energy > 40
    assert without > 20


def test_five_minutes_lose_no_sample_silently() -> None:
    with_energy, without = soak(7, 300.0)
    assert with_energy
    assert without
