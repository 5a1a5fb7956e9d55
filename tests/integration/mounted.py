"""An emulated board, mounted in this process."""

from __future__ import annotations

from pathlib import Path

from trees import emulated_machine
from wattune.boards.virtual.emulator import faults, fuse, serve
from wattune.workloads.build import build_named


class Emulated:
    """A mounted emulated board with a quick filter."""

    def __init__(self, root: Path, *, power_mode: str | None = None) -> None:
        self.root = root
        self.machine, self.tree = emulated_machine(power_mode=power_mode)
        self.machine.filter_samples = 64
        self.machine.railgated = False
        control = serve.Control(
            self.machine, self.tree, build_named, lambda text: faults.apply(text, self.machine, self.tree)
        )
        control.mode = "fuse"
        self.mount = fuse.Mount(self.tree, root, self.machine.lock)

    @property
    def bounds(self) -> tuple[int, int]:
        return self.machine.devfreq.bounds_hz()

    @property
    def boot_file(self) -> str:
        return (self.root / "proc/sys/kernel/random/boot_id").read_text().strip()

    def true_j(self) -> dict[str, float]:
        with self.machine.lock:
            self.machine.advance()
            return {
                name: sum(self.machine.true_energy_j[rail] for rail in labels)
                for name, labels in self.machine.rail_sets.items()
            }
