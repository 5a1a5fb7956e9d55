"""Two hundred kills at random moments of pinning, moving and restoring: the clocks are restored every time."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import kills
from wattune.boards.virtual.emulator import fuse

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not())),
]


@pytest.mark.parametrize("jetpack", ["5", "6", "7.2"])
def test_two_hundred_kills_leave_the_clocks_restored(tmp_path: Path, jetpack: str) -> None:
    rng = random.Random(f"kills {jetpack}")
    with kills.mounted(tmp_path, jetpack=jetpack) as board:
        seen = [kills.kill_at_random(board, rng) for _ in range(67)]
    assert len(set(seen)) > 5, seen
