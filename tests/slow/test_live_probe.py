"""The probe of a real run, on twenty modelled workloads it was not tried on, in virtual time."""

from __future__ import annotations

import sys

import pytest

from live_boards import VirtualLive, drawn
from wattune.core.settings import MAXN
from wattune.running.probing import LiveProbe

pytestmark = pytest.mark.slow

SEEDS = range(2000, 2020)


@pytest.mark.parametrize("says_work", [True, False])
def test_it_chooses_within_one_percent_of_the_best_in_eighteen_of_twenty(says_work: bool) -> None:
    """With the padded tokens of each step known, as the Trainer's callback has them, and with the steps alone; `maxn` is a choice."""
    regrets = []
    for seed in SEEDS:
        live = VirtualLive(drawn(seed), seed=seed, says_work=says_work)
        probe = LiveProbe(live, live.table_mhz, live.meter.settle_s)
        chosen = probe.run()
        regret = live.truth().regret_pct(MAXN if chosen is None else chosen)
        regrets.append(regret)
        sys.stdout.write(
            f"{seed} {live.workload.id}: {chosen} MHz, regret {regret:.2f} %, {sum(m.window_s for m in probe.measured):.0f} s\n"
        )
    assert sum(regret <= 1.0 for regret in regrets) >= 18, regrets
    sys.stdout.write(f"{sum(regret <= 1.0 for regret in regrets)} of {len(regrets)} within 1 %\n")
    assert max(regrets) < 10.0
