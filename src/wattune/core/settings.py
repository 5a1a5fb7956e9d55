"""Settings: a pinned GPU clock in MHz, or ``"maxn"`` (clocks unpinned under the power mode found)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

from wattune.core.errors import InputError
from wattune.core.numbers import decimal_number

MAXN: Literal["maxn"] = "maxn"

Setting = float | Literal["maxn"]
"""A pinned clock in MHz, or ``"maxn"``. In JSON a number or the string, as design and scripts expect."""


def hz_to_mhz(hz: int) -> float:
    """Hz of a sysfs table entry in MHz, e.g. 1300500000 -> 1300.5."""
    return hz / 1e6


def setting_label(setting: Setting) -> str:
    """Text of a setting for file names, tables and figures: ``maxn``, ``612``, ``1300.5``."""
    return setting if isinstance(setting, str) else f"{setting:g}"


def parse_setting(text: str) -> Setting:
    """Inverse of :func:`setting_label`.

    Raises:
        InputError: the text is neither ``maxn`` nor a positive number.
    """
    if text.strip().lower() == MAXN:
        return MAXN
    try:
        mhz = decimal_number(text)
    except ValueError:
        mhz = math.nan
    if not (math.isfinite(mhz) and mhz > 0):
        raise InputError(
            f"'{text}' is not a clock setting.", "A positive number of MHz or 'maxn' was expected."
        )
    return mhz


def sort_settings(settings: Iterable[Setting]) -> list[Setting]:
    """Pinned clocks ascending, ``maxn`` last."""
    return sorted(settings, key=lambda s: math.inf if isinstance(s, str) else s)


class FrequencyTable(Sequence[float]):
    """The clocks a GPU can be pinned at, ascending, in MHz.

    Args:
        mhz: table entries; order does not matter, duplicates and non-positive values are refused.

    Raises:
        InputError: empty table, a duplicate or a value that is not a positive number.
    """

    __slots__ = ("_mhz",)

    def __init__(self, mhz: Iterable[float]) -> None:
        entries = sorted(float(m) for m in mhz)
        if (
            not entries
            or any(not (math.isfinite(m) and m > 0) for m in entries)
            or len(set(entries)) != len(entries)
        ):
            raise InputError(
                f"The clock table {entries} is not usable.", "Distinct positive clocks in MHz were expected."
            )
        self._mhz = tuple(entries)

    @classmethod
    def from_hz(cls, hz: Iterable[int]) -> FrequencyTable:
        """The table from devfreq's ``available_frequencies`` (Hz)."""
        return cls(hz_to_mhz(h) for h in hz)

    def __len__(self) -> int:
        return len(self._mhz)

    def __iter__(self) -> Iterator[float]:
        return iter(self._mhz)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]  # Sequence's overloads add nothing here
        return self._mhz[index]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FrequencyTable) and self._mhz == other._mhz

    def __hash__(self) -> int:
        return hash(self._mhz)

    def __repr__(self) -> str:
        return f"FrequencyTable({list(self._mhz)})"

    @property
    def top(self) -> float:
        """The highest clock, MHz."""
        return self._mhz[-1]

    def nearest(self, mhz: float) -> float:
        """The table entry nearest to `mhz` (ties: the lower one)."""
        return min(self._mhz, key=lambda m: (abs(m - mhz), m))

    def match(self, mhz: float, tolerance: float = 0.01) -> float:
        """The entry meant by `mhz`: tools print 1300, 1301 and 1300.5 for the same clock.

        Raises:
            InputError: no entry within `tolerance` (relative); the message names the nearest ones.
        """
        near = self.nearest(mhz)
        if abs(near - mhz) > tolerance * near:
            around = sorted(self._mhz, key=lambda m: abs(m - mhz))[:2]
            names = " and ".join(setting_label(m) for m in sorted(around))
            raise InputError(
                f"{setting_label(mhz)} MHz is not a clock of this board.",
                f"The nearest listed clocks are {names} MHz.",
            )
        return near
