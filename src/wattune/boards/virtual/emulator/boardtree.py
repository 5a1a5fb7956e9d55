"""The tree of a board, and the faults in force on it."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

from wattune.boards.virtual.emulator.tree import Tree


@dataclass
class Faults:
    """Faults in force, and the names that can be given.

    Attributes:
        rails: rail -> errno its files fail with.
        hanging: files that hang; `can_hang` those that may.
        late_until: when the devfreq node appears, None where it is there.
    """

    rails: dict[str, int] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    can_hang: list[str] = field(default_factory=list)
    late_until: float | None = None

    def check_rail(self, label: str) -> None:
        """Fail as the rail's fault says.

        Raises:
            OSError: the rail is at fault.
        """
        if label in self.rails:
            raise OSError(self.rails[label], os.strerror(self.rails[label]))


class BoardTree(Tree):
    """A board's tree, with what the faults need to know of it.

    Attributes:
        faults: faults in force; the readers look there.
        gpu_device: folder of the GPU; `node` that of its devfreq node.
        late_paths: what is absent while the node is late.
    """

    def __init__(self, gpu_device: str, clock: Callable[[], float]) -> None:
        super().__init__()
        name = gpu_device.rsplit("/", 1)[-1]
        self.faults = Faults()
        self.gpu_device = gpu_device
        self.node = f"{gpu_device}/devfreq/{name}"
        self.late_paths = (f"{gpu_device}/devfreq", f"{gpu_device}/devfreq_dev", f"sys/class/devfreq/{name}")
        self.clock = clock

    # Sets are replaced, not changed: another thread may be looking through them.

    def hide(self, prefix: str) -> None:
        """See :meth:`Tree.hide`."""
        self._hidden = self._hidden | {prefix}

    def show(self, prefix: str) -> None:
        """See :meth:`Tree.show`."""
        self._hidden = self._hidden - {prefix}

    def hidden(self, path: str) -> bool:
        """See :meth:`Tree.hidden`; a late node appears once its time has come."""
        until = self.faults.late_until
        if until is not None and self.clock() >= until:
            self.appear()
        return super().hidden(path)

    def vanish(self, seconds: float) -> None:
        """Take the devfreq node away for some seconds."""
        self.faults.late_until = self.clock() + seconds
        for path in self.late_paths:
            self.hide(path)

    def appear(self) -> None:
        """Bring the devfreq node back."""
        self.faults.late_until = None
        for path in self.late_paths:
            self.show(path)
