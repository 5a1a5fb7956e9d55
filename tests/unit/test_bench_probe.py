"""`wattune bench probe` on curves small enough to check by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattune.benches import probe as bench_probe
from wattune.core.curve import EnergyCurve, Point
from wattune.core.probe import STARTS
from wattune.core.settings import MAXN

CURVE = EnergyCurve(
    {
        **{
            100.0 * i: Point((0.3 + 0.7 * (i / 10) ** 2.5) * (8 / i + 0.2), 8 / i + 0.2) for i in range(2, 11)
        },
        MAXN: Point(1.2, 0.9),
    }
)


def test_the_default_starts_are_among_the_moved_ones() -> None:
    pairs = bench_probe.moved_starts()
    assert STARTS in pairs
    assert len(set(pairs)) == 16


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    for folder in (None, tmp_path):
        document = bench_probe.recorded(folder)
        assert set(document.values()) == {"absent"}
        assert {"training", "inference", *bench_probe.SOURCES} == set(document)


def test_a_curve_is_judged_with_and_without_noise() -> None:
    document = bench_probe.judge_curves({"a": CURVE}, seeds=3)
    only = document["workloads"]["a"]
    assert only["regret_pct"] == pytest.approx(CURVE.regret_pct(only["chosen_mhz"]), abs=1e-3)
    assert document["regret_pct"]["max"] == only["regret_pct"]
    assert document["starts_moved_regret_pct"]["pairs"] == 16
    assert document["noisy_regret_pct"]["seeds"] == 3


def test_own_energy_is_what_the_probes_cost_above_the_choice() -> None:
    (result,) = [
        bench_probe.probe_curve(CURVE, noise_rel=bench_probe.VIRTUAL_NOISE, seed="0|m-t", unit_steps=300)
    ]
    document = bench_probe.virtual({"m-t": (CURVE, 300)}, seeds=1)
    chosen = CURVE.energy_j(result.chosen)
    above = sum(CURVE.energy_j(mhz) / chosen - 1.0 for mhz in result.probes) / 300
    assert document["own_energy_pct"]["mean"] == pytest.approx(100 * above, abs=1e-3)
    assert document["own_energy_pct_by_task"]["t"] == document["own_energy_pct"]
    assert document["worst_saving_pct"] == pytest.approx(CURVE.saving_pct(result.chosen), abs=1e-3)


def test_with_a_prior_a_short_run_spends_nothing_and_a_long_one_little() -> None:
    bars = bench_probe.BARS["virtual"]
    prior = EnergyCurve({mhz: CURVE.points[mhz] for mhz in CURVE.clocks})
    short = bench_probe.virtual({"m-t": (CURVE, 20)}, seeds=2, priors={"m-t": prior}, known_noise_rel=0.02)
    assert (short["mean_probes"], short["probed_energy_pct"]["max"]) == (0.0, 0.0)
    assert short["regret_pct"] == short["prior_alone_regret_pct"]
    long = bench_probe.virtual({"m-t": (CURVE, 500)}, seeds=2, priors={"m-t": prior}, known_noise_rel=0.02)
    assert long["mean_probes"] >= 2.0
    assert 0.0 < long["probed_energy_pct"]["max"] <= bars["probed_energy_max"]


def test_without_a_feature_table_there_is_no_prior(tmp_path: Path) -> None:
    assert bench_probe.expected_curves(tmp_path) is None
