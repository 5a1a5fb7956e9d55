"""A modelled board in virtual time that trains, as a live probe sees it, and what the best clock for it truly is."""

from __future__ import annotations

import random

from wattune.bench_meter import VirtualBoard
from wattune.boards.virtual.board import VirtualBoard as Model
from wattune.boards.virtual.emulator.machine import STEPS_PER_SHUFFLE
from wattune.core.curve import EnergyCurve, Point
from wattune.core.settings import MAXN
from wattune.profiling.meter import Meter, Window
from wattune.running.steps import Edge
from wattune.workloads.build import build_named
from wattune.workloads.catalogue import MODELS, TASKS

TICK_S = 0.02


class VirtualLive:
    """See the module; edges of steps are seen as late as a file that is polled shows them."""

    def __init__(self, workload: str, *, seed: int = 0, says_work: bool = True) -> None:
        self._seed, self._says_work = seed, says_work
        self._tokens: list[int] = []
        self._counted = self._total = 0
        self.board = VirtualBoard(workload=workload, seed=seed)
        self.workload = build_named(workload)
        self.meter = Meter(
            self.board.findings, clock=self.board.time, sleep=self.board.time.sleep, reader=self.board.read
        )
        self.meter.start()
        self._edges: list[Edge] = []
        self.clocks: list[float] = []

    @property
    def table_mhz(self) -> tuple[float, ...]:
        return tuple(hz / 1e6 for hz in self.board.machine.devfreq.table_hz)

    def wait(self, seconds: float) -> None:
        begin = self.now()
        for n in range(int(seconds / TICK_S) + 1):
            self.board.time.at(begin + n * TICK_S, self._look)
        self.meter.run(seconds)

    def _look(self) -> None:
        self.board.machine.advance()
        done = self.board.machine.steps_done
        if not self._edges or self._edges[-1].steps != done:
            work = self._worked(done) if self._says_work else float(done)
            self._edges.append(Edge(self.board.time.now_s, done, work))

    def _worked(self, done: int) -> float:
        """Padded tokens of so many steps."""
        from wattune.boards.virtual.board import draw_batches

        while len(self._tokens) < done:  # as the emulator draws them, used from the end
            drawn = draw_batches(
                self.workload,
                STEPS_PER_SHUFFLE,
                f"{self._seed}|emulator|{len(self._tokens) // STEPS_PER_SHUFFLE}",
            )
            self._tokens += [self.workload.bins[b].tokens * self.workload.batch_size for b in reversed(drawn)]
        self._total += sum(self._tokens[self._counted : done])
        self._counted = done
        return float(self._total)

    def now(self) -> float:
        return self.board.time.now_s

    def edges(self, t0_s: float, t1_s: float) -> list[Edge]:
        return [edge for edge in self._edges if t0_s <= edge.t_s <= t1_s]

    def set_clock(self, mhz: float) -> None:
        self.clocks.append(mhz)
        self.board.pin(round(mhz * 1e6))

    def window(self, t0_s: float, t1_s: float) -> Window:
        return self.meter.window(t0_s, t1_s)

    def throttling(self) -> str:
        return ""

    def truth(self) -> EnergyCurve:
        model = Model()
        points = {}
        for setting in (*model.info.table, MAXN):
            exact = model.noise_free(self.workload, setting)
            assert exact is not None
            points[setting] = Point(exact.energy_j, exact.time_s)
        return EnergyCurve(points)


def drawn(seed: int) -> str:
    """A workload of the catalogue."""
    rng = random.Random(seed)
    return f"{rng.choice(sorted(MODELS))}-{rng.choice(sorted(TASKS))}"
