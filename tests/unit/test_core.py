"""Settings, curves, traces and statistics."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.measurement import Trace
from wattune.core.settings import MAXN, FrequencyTable, parse_setting, setting_label, sort_settings
from wattune.core.stats import bootstrap_mean_ci95, percentile
from wattune.core.workload import size_class

ORIN_HZ = [306000000, 408000000, 510000000, 612000000, 714000000, 816000000, 918000000, 1020000000, 1122000000,
           1224000000, 1300500000]  # fmt: skip


class TestSettings:
    def test_labels_round_trip(self) -> None:
        for setting in (306.0, 1300.5, 114.75, MAXN):
            assert parse_setting(setting_label(setting)) == setting

    @pytest.mark.parametrize("text", ["", "fast", "-306", "0", "nan", "inf"])
    def test_not_a_setting(self, text: str) -> None:
        with pytest.raises(InputError, match="not a clock setting"):
            parse_setting(text)

    def test_order(self) -> None:
        assert sort_settings([MAXN, 1300.5, 306.0]) == [306.0, 1300.5, MAXN]

    def test_table_from_sysfs(self) -> None:
        table = FrequencyTable.from_hz(reversed(ORIN_HZ))
        assert table[0] == 306.0
        assert table.top == 1300.5
        assert len(table) == 11

    @pytest.mark.parametrize("shown", [1300, 1301, 1300.5, 1299])
    def test_tools_print_the_top_clock_differently(self, shown: float) -> None:
        assert FrequencyTable.from_hz(ORIN_HZ).match(shown) == 1300.5

    def test_unknown_clock_names_the_nearest(self) -> None:
        with pytest.raises(InputError, match="612 and 714 MHz"):
            FrequencyTable.from_hz(ORIN_HZ).match(650)

    @pytest.mark.parametrize("entries", [[], [306.0, 306.0], [0.0], [-1.0], [math.nan]])
    def test_unusable_tables(self, entries: list[float]) -> None:
        with pytest.raises(InputError, match="not usable"):
            FrequencyTable(entries)


# DeBERTa-v2-xlarge on SST-2, energy in J (github esainulab/slmdvfs@9e14047, src/plots/DeBERTa_Xlarge.py).
DEBERTA_SST2 = {
    306: 55292.41, 408: 47512.24, 510: 43025.92, 612: 41044.05, 714: 40927.33, 816: 40981.54, 918: 42053.11,
    1020: 44378.81, 1122: 46298.01, 1224: 49986.88, 1300.5: 52475.58, MAXN: 52317.17,
}  # fmt: skip


class TestCurve:
    curve = EnergyCurve({setting: Point(energy) for setting, energy in DEBERTA_SST2.items()})

    def test_published_curve(self) -> None:
        assert self.curve.oracle == 714
        assert self.curve.saving_pct(714) == pytest.approx(21.77, abs=0.005)
        assert self.curve.regret_pct(1300.5) == pytest.approx(28.2, abs=0.05)
        assert self.curve.slowdown_pct(714) is None

    def test_without_baseline_saving_is_unknown_not_zero(self) -> None:
        curve = EnergyCurve({306.0: Point(2.0, 3.0), 612.0: Point(1.0, 2.0)})
        assert curve.saving_pct(612.0) is None
        assert curve.slowdown_pct(612.0) is None

    def test_oracle_may_be_maxn_but_a_level_is_pinned(self) -> None:
        curve = EnergyCurve({306.0: Point(2.0), 612.0: Point(1.5), MAXN: Point(1.0)})
        assert curve.oracle == MAXN
        assert curve.best_clock == 612.0

    def test_ties_go_to_the_lower_clock(self) -> None:
        assert EnergyCurve({612.0: Point(1.0), 306.0: Point(1.0), MAXN: Point(1.0)}).oracle == 306.0

    @given(st.dictionaries(st.floats(100, 2000), st.floats(1e-3, 1e9), min_size=1))
    def test_no_regret_is_negative(self, energies: dict[float, float]) -> None:
        curve = EnergyCurve({mhz: Point(e) for mhz, e in energies.items()})
        assert all(curve.regret_pct(s) >= 0 for s in curve.settings)
        assert curve.regret_pct(curve.oracle) == 0


class TestTrace:
    def test_a_ramp_over_uneven_timestamps_is_exact(self) -> None:
        t = [0.0, 0.2, 0.7, 1.0, 4.0]
        trace = Trace(t, {"VDD_GPU_SOC": [10 * x for x in t], "VDD_CPU_CV": [2.0] * 5})
        assert trace.energy_j(["VDD_GPU_SOC"]) == pytest.approx(80.0)
        assert trace.energy_j(["VDD_GPU_SOC", "VDD_CPU_CV"]) == pytest.approx(88.0)

    def test_a_missing_rail_is_unknown_not_a_smaller_sum(self) -> None:
        trace = Trace([0.0, 1.0], {"VDD_GPU_SOC": [5.0, 5.0]})
        assert trace.energy_j(["VDD_GPU_SOC", "VDD_CPU_CV"]) is None

    def test_one_sample_is_no_energy(self) -> None:
        assert Trace([0.0], {"A": [5.0]}).energy_j(["A"]) is None


class TestStats:
    @given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.floats(0, 100))
    def test_percentile_equals_numpy(self, values: list[float], q: float) -> None:
        np = pytest.importorskip("numpy")
        assert percentile(values, q) == pytest.approx(float(np.percentile(values, q)), rel=1e-9, abs=1e-6)

    def test_bootstrap_covers_the_normal_interval(self) -> None:
        values = [float(i % 10) for i in range(200)]
        low, high = bootstrap_mean_ci95(values)
        half = 1.96 * 2.879 / math.sqrt(200)
        assert low == pytest.approx(4.5 - half, abs=0.08)
        assert high == pytest.approx(4.5 + half, abs=0.08)
        assert bootstrap_mean_ci95(values) == (low, high)

    def test_bootstrap_of_one_value_is_that_value(self) -> None:
        assert bootstrap_mean_ci95([3.0]) == (3.0, 3.0)


def test_size_classes() -> None:
    assert size_class("pythia-70m", 70.4) == "small"
    assert size_class("pythia-410m", 405.3) == "large"
    assert size_class("vit-b16", None) is None
    assert size_class(None, 14.0) == "small"
