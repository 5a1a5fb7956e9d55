"""Power of a desktop or server GPU, read by NVML where it answers; nothing is ever set.

Units by NVML's own documentation: millijoules (nvmlDeviceGetTotalEnergyConsumption, Volta and later) and milliwatts
(nvmlDeviceGetPowerUsage). On a Jetson NVML reads no power; its rails are in :mod:`wattune.boards.jetson`.
"""

from __future__ import annotations

import os
from typing import Any


class NvmlMeter:
    """Reads one GPU.

    Args:
        index: which; None for the first that CUDA_VISIBLE_DEVICES leaves visible.

    Attributes:
        why_not: why nothing can be read; empty where it can.
        name: of the GPU; empty where nothing can be read.
    """

    def __init__(self, index: int | None = None) -> None:
        self.why_not, self.name = "", ""
        self._nvml: Any = None
        try:
            import pynvml  # type: ignore[import-not-found,import-untyped,unused-ignore]
        except ImportError:
            self.why_not = "the package nvidia-ml-py is not installed (`pip install nvidia-ml-py`)"
            return
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(_first_visible() if index is None else index)
            name = pynvml.nvmlDeviceGetName(self._handle)
            self.name = name.decode() if isinstance(name, bytes) else str(name)
        except pynvml.NVMLError as error:
            self.why_not = f"NVML does not answer ({error})"
            return
        self._nvml = pynvml
        if self.energy_j() is None and self.power_w() is None:
            self.why_not = "NVML reads no power of this GPU"

    def energy_j(self) -> float | None:
        """Energy since the driver was loaded, joules; None where the GPU does not count it."""
        return self._read("nvmlDeviceGetTotalEnergyConsumption")

    def power_w(self) -> float | None:
        """Power now, watts; None where it cannot be read."""
        return self._read("nvmlDeviceGetPowerUsage")

    def _read(self, name: str) -> float | None:
        if self._nvml is None:
            return None
        try:
            return float(getattr(self._nvml, name)(self._handle)) / 1e3
        except self._nvml.NVMLError:
            return None


def _first_visible() -> int:
    first = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    return int(first) if first.isdigit() else 0
