"""Boards that train: in virtual time, as a live probe sees one, with the clock that is truly best; and served in real time."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from wattune.benches.meter import VirtualBoard
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
        self.held: float | None = None

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
        self.held = mhz
        self.board.pin(round(mhz * 1e6))

    def leave_alone(self) -> None:
        self.held = None
        self.board.pin(None)

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


class Served:
    """An emulated board whose whole tree is mounted, with a quick filter, as `wattune emulate` serves it.

    Args:
        root: an empty folder.
        workload: what it trains; None is idle.
    """

    def __init__(
        self, root: Path, *, workload: str | None = None, quick: bool = True, power_mode: str | None = None
    ) -> None:
        from trees import emulated_machine
        from wattune.boards.virtual.emulator import faults, fuse, serve

        self.root = root
        self.machine, self.tree = emulated_machine(power_mode=power_mode)
        if quick:
            self.machine.filter_samples = 64
        self.machine.railgated = False
        serve.Control(
            self.machine, self.tree, build_named, lambda text: faults.apply(text, self.machine, self.tree)
        )
        if workload is not None:
            self.machine.set_workload(build_named(workload))
        self.mount = fuse.Mount(self.tree, root, self.machine.lock)
        self.found = self.bounds

    @property
    def bounds(self) -> tuple[int, int]:
        return self.machine.devfreq.bounds_hz()

    def fault(self, text: str) -> None:
        from wattune.boards.virtual.emulator import faults

        faults.apply(text, self.machine, self.tree)

    def true_j(self) -> dict[str, float]:
        with self.machine.lock:
            self.machine.advance()
            return {
                name: sum(self.machine.true_energy_j[rail] for rail in labels)
                for name, labels in self.machine.rail_sets.items()
            }

    def pinned(self, mhz: float, seconds: float = 20.0) -> bool:
        """Whether the clock gets pinned there, within some seconds."""
        return self._soon(lambda: self.bounds == (mhz * 1e6, mhz * 1e6), seconds)

    def restored(self, seconds: float = 10.0) -> bool:
        """Whether bounds and lease files are as before, within some seconds."""
        return self._soon(
            lambda: self.bounds == self.found and not list(self.root.glob("run/wattune/*.json")), seconds
        )

    def _soon(self, holds: Callable[[], bool], seconds: float) -> bool:
        until = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True


@contextlib.contextmanager
def served(root: Path, **how: Any) -> Iterator[Served]:
    """A served board."""
    root.mkdir(parents=True, exist_ok=True)
    board = Served(root.resolve(), **how)
    try:
        yield board
    finally:
        board.mount.close()
