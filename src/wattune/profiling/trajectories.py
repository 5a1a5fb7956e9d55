"""What the runs of one workload have in common: the clock must touch neither the losses nor the batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattune.core.errors import BoardError
from wattune.core.settings import setting_label
from wattune.profiling.cells import Cell


@dataclass(frozen=True, slots=True)
class Losses:
    """The losses of several runs held against each other, bit for bit.

    Attributes:
        runs: how many were compared.
        steps: over so many first steps, the most that all of them have a digest of.
        different: settings whose losses differ from those of most runs.
    """

    runs: int
    steps: int
    different: tuple[str, ...]

    def text(self) -> str:
        """One sentence."""
        if not self.different:
            return f"The losses of the first {self.steps} steps are the same, bit for bit, in all {self.runs} runs."
        return (
            f"The losses of the first {self.steps} steps differ at {', '.join(self.different)}: the device does not compute the"
            " same twice, or something else than the clock changed."
        )


def compare_losses(cells: Sequence[Cell]) -> Losses | None:
    """Hold the losses of a workload's runs against each other; None with fewer than two runs that say them.

    Runs have different numbers of steps, so digests of the first 1, 2, 4, 8 ... steps are kept, and the longest that all have counts.
    """
    runs = [
        (setting_label(cell.setting), losses["prefixes"])
        for cell, training in _trainings(cells)
        if isinstance(losses := training.get("losses"), Mapping) and losses.get("prefixes")
    ]
    if len(runs) < 2:
        return None
    common = set.intersection(*(set(prefixes) for _, prefixes in runs))
    if not common:
        return None
    longest = max(common, key=int)
    usual = Counter(prefixes[longest] for _, prefixes in runs).most_common(1)[0][0]
    different = [label for label, prefixes in runs if prefixes[longest] != usual]
    return Losses(len(runs), int(longest), tuple(dict.fromkeys(different)))


def refuse_mixed_batches(cells: Sequence[Cell]) -> None:
    """Refuse settings that were measured with batches of different size, as when memory became short in the middle of a sweep.

    Raises:
        BoardError: they were.
    """
    sizes: dict[tuple[int, int], list[str]] = {}
    for cell, training in _trainings(cells):
        if isinstance(training.get("batch_size"), int):
            size = (training["batch_size"], int(training.get("accumulation") or 1))
            sizes.setdefault(size, []).append(setting_label(cell.setting))
    if len(sizes) < 2:
        return
    said = "; ".join(
        f"batches of {batch} ({pieces} a step) at {', '.join(dict.fromkeys(labels))}"
        for (batch, pieces), labels in sorted(sizes.items())
    )
    least = min(batch for batch, _ in sizes)
    raise BoardError(
        f"Workload '{cells[0].workload}' was measured with {said}: memory was short only at times.",
        "The same batches at every setting were expected.",
        f"Set board.load.jobs.{cells[0].workload}.batch_size={least} (and accumulation to match), or end what else uses memory,"
        " then run the same command again.",
    )


def _trainings(cells: Sequence[Cell]) -> Iterator[tuple[Cell, Mapping[str, Any]]]:
    for cell in cells:
        for certificate in cell.certificates:
            training = certificate.get("training")
            if isinstance(training, Mapping):
                yield cell, training
