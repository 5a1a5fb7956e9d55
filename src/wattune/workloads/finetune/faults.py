"""Faults of a run: memory that was short, losses that went wrong. Standard library only."""

from __future__ import annotations

_OOM_WORDS = (
    "out of memory",
    "can't allocate memory",
    "cannot allocate memory",
    "nvmapmemalloc",
    "cublas_status_alloc_failed",
    # what torch's allocator says on a Jetson that is out of memory: it asks NVML, which is not there
    "nvml_success == r internal assert failed",
)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory was short, by its kind or by the words of the allocators."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    text = str(error).lower()
    return isinstance(error, (RuntimeError, OSError)) and any(word in text for word in _OOM_WORDS)


class RunFailedError(Exception):
    """A run whose losses went wrong.

    Args:
        kind: ``nan`` or ``diverged``.
        what: one sentence.
    """

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(what)
        self.kind, self.what = kind, what
