"""An emulated board mounted for other processes, and processes that hold its clock and get killed.

Run as a script this file is such a process: ``kills.py ROOT loop`` pins, moves and restores without end, ``kills.py ROOT die N``
does so once and kills itself with SIGKILL right before its N-th access to the board or to the lease file.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1] / "src"
if __name__ == "__main__":
    sys.path.insert(0, str(SOURCE))

from wattune.boards.jetson.findings import GpuNode  # noqa: E402
from wattune.boards.jetson.sysfs import Sysfs  # noqa: E402
from wattune.governing import lease as leasing  # noqa: E402
from wattune.governing import state  # noqa: E402
from wattune.governing.bounds import Bounds, read_bounds  # noqa: E402
from wattune.governing.lease import Lease  # noqa: E402

Script = str


class Mounted:
    """An idle emulated board whose ``sys`` is mounted below `root`; ``proc`` and ``run`` are ordinary folders."""

    def __init__(self, root: Path, *, jetpack: str = "6", power_mode: str | None = None) -> None:
        from trees import emulated_machine
        from wattune.boards.virtual.emulator import fuse
        from wattune.boards.virtual.emulator.tree import Tree

        self.root = root
        self.machine, tree = emulated_machine(jetpack=jetpack, power_mode=power_mode)
        self.tree: Any = tree
        below = Tree()
        for path, entry in tree.walk():
            if path.startswith("sys/"):
                below.add(path.removeprefix("sys/"), entry)
        boot = root / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text(f"{self.machine.boot_id}\n")
        (root / "run").mkdir()
        (root / "sys").mkdir()
        self.mount = fuse.Mount(below, root / "sys", self.machine.lock)
        self.sysfs = Sysfs(root)
        self.found = self.bounds

    @property
    def bounds(self) -> Bounds:
        """What is in force."""
        return Bounds(*self.machine.devfreq.bounds_hz())

    @property
    def lease_file(self) -> Path:
        """Where the lease file of its node lies."""
        return state.state_path(self.root / "run/wattune", self.tree.node)

    def node(self) -> GpuNode:
        """The node as discovery would find it."""
        return node_of(self.sysfs)

    def restored(self, seconds: float = 10.0) -> bool:
        """Whether bounds and lease file are as before, within some seconds."""
        deadline = time.monotonic() + seconds
        while self.bounds != self.found or self.lease_file.exists():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def run(self, script: Script, **kwargs: Any) -> subprocess.Popen[str]:
        """A process of ours with `root`, `sysfs`, `node`, `Lease` and `say` at hand; its first line has been read."""
        return self.start([sys.executable, "-c", PRELUDE + script, str(self.root)], **kwargs)

    def start(self, command: list[str], **kwargs: Any) -> subprocess.Popen[str]:
        """A process whose first line, ``go``, has been read."""
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": f"{SOURCE}{os.pathsep}{Path(__file__).parent}"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **kwargs,
        )
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first == "go\n", (first, process.communicate(timeout=10))
        return process


PRELUDE = """
import os, signal, sys, threading, time
from pathlib import Path
from kills import Lease, Sysfs, node_of
root = Path(sys.argv[1])
sysfs = Sysfs(root)
node = node_of(sysfs)
def say(text):
    sys.stdout.write(text + "\\n")
    sys.stdout.flush()
"""


def node_of(sysfs: Sysfs) -> GpuNode:
    """The one GPU node of an emulated board."""
    (name,) = (name for name in sysfs.names("sys/class/devfreq") if name.startswith("17000000."))
    path = sysfs.real(f"sys/class/devfreq/{name}")
    low, high = read_bounds(sysfs, path)
    table = tuple(sorted(map(int, sysfs.read(f"{path}/available_frequencies").split())))
    return GpuNode(path, sysfs.real(f"{path}/device"), table, low, high, None, sysfs.read(f"{path}/governor"))


@contextlib.contextmanager
def mounted(root: Path, **kwargs: Any) -> Iterator[Mounted]:
    """A mounted board."""
    board = Mounted(root, **kwargs)
    try:
        yield board
    finally:
        board.mount.close()


def kill_at_random(board: Mounted, rng: random.Random) -> str:
    """Kill a process that pins, moves and restores at a random moment; returns what the bounds were then."""
    process = board.start([sys.executable, __file__, str(board.root), "loop"])
    time.sleep(rng.uniform(0.0, 1.2))  # a watchdog's start takes a good part of a second on a slow machine
    process.send_signal(signal.SIGKILL)
    process.wait()
    then = str(board.bounds)
    assert board.restored(), f"killed at {then}: {board.bounds}, {process.communicate(timeout=10)}"
    process.communicate(timeout=10)
    return then


# --- the processes


def _loop(sysfs: Sysfs) -> None:
    node = node_of(sysfs)
    rng = random.Random(os.getpid())
    sys.stdout.write("go\n")
    sys.stdout.flush()
    while True:
        with Lease(sysfs, node, rng.choice(node.usable_hz)) as lease:
            for _ in range(rng.randrange(8)):
                lease.move(rng.choice(node.usable_hz))


def _die(sysfs: Sysfs, nth: int) -> None:
    """Kill ourselves before the n-th of everything that the world outside can see."""
    left = [nth]

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **kwargs)

        return count

    node = node_of(sysfs)
    for owner, name in (
        (Sysfs, "read"), (Sysfs, "write"), (os, "fsync"), (Path, "replace"), (Path, "unlink"),
        (leasing, "Watchdog"), (state.Lock, "take"), (state.Lock, "release"),
    ):  # fmt: skip
        setattr(owner, name, counted(getattr(owner, name)))
    sys.stdout.write("go\n")
    sys.stdout.flush()
    with Lease(sysfs, node, node.usable_hz[-2]) as lease:
        lease.move(node.usable_hz[0])
        lease.move(node.usable_hz[-1])
    sys.stdout.write(f"lived, with {nth - left[0]} accesses\n")


if __name__ == "__main__":
    if sys.argv[2] == "loop":
        _loop(Sysfs(Path(sys.argv[1])))
    else:
        _die(Sysfs(Path(sys.argv[1])), int(sys.argv[3]))
