"""The GPU's devfreq node: what may be written to its bounds and governor, and what they then read as.

Two kinds of kernel. On 4.9 the bounds are two numbers, checked against each other when written, so the order of two writes
matters. From 5.5 on they are requests to PM-QoS in kHz: never refused for crossing, merged with the requests of others (the
thermal cooling device), and a read gives what is in force, not what was written. The clock itself is moved by the machine.
"""

from __future__ import annotations

import errno
import re
from bisect import bisect_left
from collections.abc import Callable, Sequence

KHZ = 1000
UNLIMITED_KHZ = 2**31 - 1
"""PM-QoS's "no limit" (S32_MAX), and the largest request it takes."""

KERNEL_OF_JETPACK = {"5": "5.10", "6": "5.15", "7.2": "6.8"}

PODGOV = "nvhost_podgov"
_GOVERNORS = {
    "4.9": ("wmark_simple", PODGOV, "userspace", "performance", "simple_ondemand"),
    "5.10": ("wmark_simple", PODGOV, "userspace", "performance", "simple_ondemand"),
    "5.15": (PODGOV, "userspace", "performance", "simple_ondemand"),
    "6.8": (PODGOV, "userspace", "performance", "simple_ondemand"),
}
MONITOR_HZ = 204_000_000
"""Clock of the GPU's power management unit, which counts busy cycles."""

_NUMBER = re.compile(r"\s*(\d+)", re.ASCII)
_WORD = re.compile(r"\s*(\S{1,15})", re.ASCII)


def invalid() -> OSError:
    """The EINVAL a store gives back."""
    return OSError(errno.EINVAL, "Invalid argument")


def parse_number(text: str) -> int:
    """A store's ``sscanf("%lu")``: digits at the start count, what follows them does not.

    Raises:
        OSError: EINVAL, no digits at the start (a sign is none).
    """
    found = _NUMBER.match(text)
    if found is None:
        raise invalid()
    return int(found[1])


class Devfreq:
    """Bounds, governor and statistics of the node.

    Args:
        table_hz: clocks of the GPU, ascending.
        kernel: ``4.9``, ``5.10``, ``5.15`` or ``6.8``.
        cap_hz: highest clock of the power mode at start.
        poll_ms: the governor's polling interval.

    Attributes:
        table_hz: as given.
        kernel: as given.
        poll_ms: polling interval now.
        governor: name of the governor.
        userspace_hz: clock asked for through ``userspace/set_freq``; None until written.
        scaling_enabled: podgov's ``enable_3d_scaling``.
        request_enabled: podgov's ``user``: while true, `request_hz` (its ``freq_request``) is what it wishes.
        thermal_cap_hz: limit of the thermal cooling device, None where it does not limit.
        cur_hz: the clock now; the machine changes it by :meth:`move_to`.
        on_governor: called with the name whenever the governor changes (its sysfs files come and go).
        on_update: called after a write that may move the clock: the kernel re-evaluates it at once, without waiting for a poll.
    """

    def __init__(self, table_hz: Sequence[int], *, kernel: str, cap_hz: int, poll_ms: int = 25) -> None:
        assert list(table_hz) == sorted(set(table_hz)), table_hz
        self.table_hz = tuple(table_hz)
        self.kernel = kernel
        self.available_governors = _GOVERNORS[kernel]
        self.on_governor: Callable[[str], None] | None = None
        self.on_update: Callable[[], None] | None = None
        self.thermal_cap_hz: int | None = None
        self.governor = PODGOV
        self._boot_poll_ms = poll_ms
        self._mode = (0, cap_hz)
        self.reset()

    def reset(self) -> None:
        """As after a boot: governor, bounds of the power mode, lowest clock, empty statistics."""
        self.poll_ms = self._boot_poll_ms
        self._set_governor(PODGOV)
        self.thermal_cap_hz = None
        self.cur_hz = self.table_hz[0]
        self.clear_trans_stat()
        self.reset_counters()
        self.apply_power_mode(self._mode[1], self._mode[0])

    # The power mode

    def apply_power_mode(self, cap_hz: int, floor_hz: int = 0) -> None:
        """Set both bounds as nvpmodel does: it writes the node's own files, so a later writer overrules it."""
        self._mode = (floor_hz, cap_hz)
        if self._checked:
            self._min, self._max = floor_hz or self.table_hz[0], cap_hz
        else:
            self._min, self._max = floor_hz // KHZ, -(-cap_hz // KHZ)

    @property
    def power_mode_cap_hz(self) -> int:
        """Highest clock of the power mode; setting it applies the mode anew (:meth:`apply_power_mode`)."""
        return self._mode[1]

    @power_mode_cap_hz.setter
    def power_mode_cap_hz(self, cap_hz: int) -> None:
        self.apply_power_mode(cap_hz)

    # The bounds: self._min and self._max are Hz on 4.9 and PM-QoS requests in kHz later

    @property
    def _checked(self) -> bool:
        return self.kernel == "4.9"

    def bounds_hz(self) -> tuple[int, int]:
        """The bounds in force; the upper one wins over the lower one.

        A maximum below the table is kept as it is, as the kernel does: the clock is then the table's lowest.
        """
        bottom, top = self.table_hz[0], self.table_hz[-1]
        low, high = (self._min, self._max) if self._checked else (self._min * KHZ, self._max * KHZ)
        high = min(top, high or top, self.thermal_cap_hz or top)
        return min(max(bottom, low), high), high

    def read_min(self) -> str:
        """``min_freq``."""
        return f"{self._min if self._checked else self.bounds_hz()[0]}\n"

    def read_max(self) -> str:
        """``max_freq``."""
        return f"{self._max if self._checked else self.bounds_hz()[1]}\n"

    def write_min(self, text: str) -> None:
        """Store of ``min_freq``; 0 is no minimum.

        Raises:
            OSError: EINVAL, not a number, or (4.9) above the maximum.
        """
        value = parse_number(text)
        if self._checked:
            if value and self._max and value > self._max:
                raise invalid()
            self._min = value
        else:
            self._min = _request(value // KHZ)
        self.update()

    def write_max(self, text: str) -> None:
        """Store of ``max_freq``; 0 is no maximum.

        Raises:
            OSError: EINVAL, not a number, or (4.9) below the minimum.
        """
        value = parse_number(text)
        if self._checked:
            if value and self._min and value < self._min:
                raise invalid()
            self._max = value
        else:
            self._max = _request(-(-value // KHZ)) if value else UNLIMITED_KHZ
        self.update()

    def update(self) -> None:
        """Tell the machine that something the clock depends on was written."""
        if self.on_update is not None:
            self.on_update()

    def clamp_index(self, index: int) -> int:
        """Index of the clock the driver sets for the governor's wish `index` (:meth:`index_for`)."""
        return self.index_for(self.table_hz[index])

    def index_for(self, wish_hz: int) -> int:
        """Index of the clock the driver sets for a wish in Hz.

        The wish is brought inside the bounds, then rounded up to a clock of the table: a maximum between two clocks lets
        the upper one run.
        """
        low, high = self.bounds_hz()
        return min(bisect_left(self.table_hz, min(max(wish_hz, low), high)), len(self.table_hz) - 1)

    # The governor

    def read_governor(self) -> str:
        """``governor``."""
        return f"{self.governor}\n"

    def write_governor(self, text: str) -> None:
        """Store of ``governor``.

        Raises:
            OSError: EINVAL, a governor the kernel does not have.
        """
        word = _WORD.match(text)
        if word is None or word[1] not in self.available_governors:
            raise invalid()
        if word[1] != self.governor:
            self._set_governor(word[1])
            self.update()

    def _set_governor(self, name: str) -> None:
        """A governor starts afresh: what was set in the files of the last one is lost."""
        self.governor = name
        self.userspace_hz: int | None = None
        self.scaling_enabled = True
        self.request_enabled = False
        self.request_hz = 0
        if self.on_governor is not None:
            self.on_governor(name)

    def fixed_wish_hz(self) -> int | None:
        """What a governor that ignores the load asks for, before the bounds; None: the load decides."""
        if self.governor == "performance":
            return self.table_hz[-1]
        if self.governor == "userspace":
            return self.cur_hz if self.userspace_hz is None else self.userspace_hz
        if self.governor == PODGOV and self.request_enabled:
            return self.request_hz
        if self.governor == PODGOV and not self.scaling_enabled:
            return self.table_hz[-1]
        return None

    def read_set_freq(self) -> str:
        """``userspace/set_freq``.

        Raises:
            OSError: ENOENT, another governor than ``userspace`` is in force.
        """
        self._need_userspace()
        return "undefined\n" if self.userspace_hz is None else f"{self.userspace_hz}\n"

    def write_set_freq(self, text: str) -> None:
        """Store of ``userspace/set_freq``.

        Raises:
            OSError: ENOENT, another governor is in force; EINVAL, not a number.
        """
        self._need_userspace()
        self.userspace_hz = parse_number(text)
        self.update()

    def _need_userspace(self) -> None:
        if self.governor != "userspace":
            raise OSError(errno.ENOENT, "No such file or directory")

    def write_polling_interval(self, text: str) -> None:
        """Store of ``polling_interval``, milliseconds."""
        self.poll_ms = parse_number(text)

    # Statistics

    def account(self, duration_s: float, busy: float = 0.0) -> None:
        """Count time spent at the clock now, and the share of it in which the GPU was busy."""
        self._spent_s[self.table_hz.index(self.cur_hz)] += duration_s
        self._total_s += duration_s
        self._busy_s += duration_s * busy

    def counters(self) -> str:
        """The GPU's ``counters``: busy and total cycles of its load monitor, 32 bits that wrap."""
        return f"{int(self._busy_s * MONITOR_HZ) % 2**32} {int(self._total_s * MONITOR_HZ) % 2**32}\n"

    def reset_counters(self) -> None:
        """What reading ``counters_reset`` does."""
        self._busy_s = self._total_s = 0.0

    def move_to(self, hz: int) -> None:
        """Change the clock; `hz` is a clock of the table."""
        if hz != self.cur_hz:
            self._moves[self.table_hz.index(self.cur_hz)][self.table_hz.index(hz)] += 1
            self.cur_hz = hz

    def clear_trans_stat(self) -> None:
        """Empty the statistics."""
        n = len(self.table_hz)
        self._spent_s = [0.0] * n
        self._moves = [[0] * n for _ in range(n)]

    def write_trans_stat(self, text: str) -> None:
        """Store of ``trans_stat`` (from 5.7 on): 0 empties it.

        Raises:
            OSError: EINVAL, anything else.
        """
        if text.strip() != "0":
            raise invalid()
        self.clear_trans_stat()

    def trans_stat(self) -> str:
        """``trans_stat``: the kernel's table of transitions and of milliseconds spent at each clock."""
        lines = [
            "     From  :   To",
            "           :" + "".join(f"{hz:10d}" for hz in self.table_hz) + "   time(ms)",
        ]
        for hz, moves, spent_s in zip(self.table_hz, self._moves, self._spent_s, strict=True):
            mark = "*" if hz == self.cur_hz else " "
            lines.append(
                f"{mark}{hz:10d}:" + "".join(f"{n:10d}" for n in moves) + f"{int(spent_s * 1e3):10d}"
            )
        lines.append(f"Total transition : {sum(map(sum, self._moves))}")
        return "\n".join(lines) + "\n"


def _request(khz: int) -> int:
    """A PM-QoS request, refused where it does not fit its 32 bits."""
    if khz > UNLIMITED_KHZ:
        raise invalid()
    return khz
