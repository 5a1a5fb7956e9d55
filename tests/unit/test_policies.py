"""Policies and gate rules: pure, so checked against figures worked out by hand."""

from __future__ import annotations

import pytest

from wattune.core.curve import EnergyCurve, Point
from wattune.core.gate import Evidence, Thresholds, judge_rules, verdict
from wattune.core.policies import Fixed, Maxn, Published, best_fixed_clock
from wattune.core.settings import MAXN, FrequencyTable

ORIN = FrequencyTable([306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224, 1300.5])


class TestPublished:
    @pytest.mark.parametrize(
        ("seq_len", "shallow", "deep"),
        [
            (11.3, 510, 714),
            (27.8, 510, 714),
            (32.5, 510, 714),
            (37.1, 612, 714),
            (53.0, 612, 714),
            (70.2, 612, 816),
        ],
    )
    def test_the_printed_rules(self, seq_len: float, shallow: float, deep: float) -> None:
        """Mean lengths of CoLA, STS-B, WNLI, RTE and the two thresholds, on both sides of 7 layers."""
        policy = Published(ORIN)
        assert policy.choose({"layers": 7, "seq_len": seq_len}) == shallow
        assert policy.choose({"layers": 8, "seq_len": seq_len}) == deep

    def test_utilisation_is_a_named_variant(self) -> None:
        starved = {"layers": 6, "seq_len": 11.3, "gpu_util_ref_pct": 22.0}
        assert Published(ORIN).choose(starved) == 510
        assert Published(ORIN, with_util=True).choose(starved) == 1020
        assert Published(ORIN, with_util=True).name == "published-util"
        assert Published(ORIN, with_util=True).choose({**starved, "gpu_util_ref_pct": 22.1}) == 510

    def test_another_boards_table(self) -> None:
        xavier = FrequencyTable([114.75, 522.75, 675.75, 905.25, 1377.0])
        assert (
            Published(xavier).choose({"layers": 12, "seq_len": 60}) == 905.25
        )  # 816 lies nearer to it than to 675.75


class TestFixed:
    def test_least_mean_relative_energy_not_least_total(self) -> None:
        """A heavy workload must not outvote two light ones: energies are relative to each workload's optimum."""
        heavy = EnergyCurve({500.0: Point(1000.0), 700.0: Point(1050.0)})
        light = EnergyCurve({500.0: Point(1.2), 700.0: Point(1.0)})
        assert best_fixed_clock([heavy, light, light]) == 700.0
        assert best_fixed_clock([heavy]) == 500.0

    def test_ties_go_to_the_lower_clock_and_maxn_is_no_clock(self) -> None:
        curve = EnergyCurve({500.0: Point(2.0), 700.0: Point(2.0), MAXN: Point(1.0)})
        assert best_fixed_clock([curve]) == 500.0

    def test_only_shared_clocks_count(self) -> None:
        one, two = (
            EnergyCurve({500.0: Point(1), 600.0: Point(2)}),
            EnergyCurve({600.0: Point(1), 700.0: Point(2)}),
        )
        assert best_fixed_clock([one, two]) == 600.0
        with pytest.raises(ValueError, match="share no clock"):
            best_fixed_clock([EnergyCurve({500.0: Point(1)}), EnergyCurve({600.0: Point(1)})])


def test_constant_policies() -> None:
    assert Maxn().choose({}) == MAXN
    assert Fixed(612.0).choose({"layers": 24}) == 612.0


class TestGate:
    bars = Thresholds(
        min_mean_saving_pct=10.0,
        min_worst_saving_pct=-0.5,
        max_mean_regret_pct=0.5,
        max_p95_regret_pct=2.0,
        max_depth=4,
    )

    def rules(self, savings: list[float] | None, ffg: list[float] | None, depth: int = 3) -> list[bool]:
        judged = judge_rules(Evidence(savings, ffg, 0.4, 1.9, depth), self.bars, resamples=500, seed=0)
        return [rule.passed for rule in judged]

    def test_good(self) -> None:
        assert self.rules([20.0, 22.0, 24.0], [19.0, 21.0, 23.0]) == [True] * 8

    @pytest.mark.parametrize(
        ("savings", "ffg", "depth", "fails"),
        [
            ([9.0, 9.5, 9.9], [9.0, 9.5, 9.9], 3, [0]),
            ([90.0, -60.0, 5.0], [90.0, -60.0, 5.0], 3, [1, 3]),
            ([20.0, 21.0, 22.0], [20.5, 21.5, 22.5], 3, [2]),
            ([30.0] * 9 + [-0.6], [30.0] * 9 + [-0.6], 3, [3]),
            ([20.0, 21.0, 22.0], [20.0, 21.0, 22.0], 5, [6]),
        ],
    )
    def test_each_rule_can_fail(
        self, savings: list[float], ffg: list[float], depth: int, fails: list[int]
    ) -> None:
        assert [i for i, ok in enumerate(self.rules(savings, ffg, depth)) if not ok] == fails

    @pytest.mark.parametrize(
        ("mean_pct", "p95_pct", "fails"), [(0.51, 1.0, [4]), (0.2, 2.1, [5]), (0.5, 2.0, [])]
    )
    def test_regret_has_ceilings(self, mean_pct: float, p95_pct: float, fails: list[int]) -> None:
        evidence = Evidence([20.0, 22.0, 24.0], None, mean_pct, p95_pct, 3)
        judged = judge_rules(evidence, self.bars, resamples=100, seed=0)
        assert [i for i, rule in enumerate(judged) if i != 2 and not rule.passed] == fails

    def test_an_uncalibrated_board_is_refused_whatever_it_saves(self) -> None:
        evidence = Evidence([20.0, 22.0, 24.0], [19.0, 21.0, 23.0], 0.1, 0.5, 3, calibrated=False)
        judged = judge_rules(evidence, self.bars, resamples=100, seed=0)
        assert [rule.passed for rule in judged] == [*[True] * 7, False]
        assert "uncalibrated" in judged[-1].reason
        assert verdict("enforce", judged) == ("rejected", False)

    def test_worse_than_ffg_within_noise_passes(self) -> None:
        """The paired interval of the difference straddles 0."""
        assert self.rules([20.0, 24.0, 21.0, 25.0], [22.0, 22.5, 23.0, 24.0])[2]

    def test_an_unknown_value_never_passes_and_says_why(self) -> None:
        judged = judge_rules(Evidence(None, None, 0.1, 0.5, 2), self.bars, resamples=100, seed=0)
        assert [rule.passed for rule in judged] == [*[False] * 4, *[True] * 4]
        assert all(rule.value is None and "no MAXN baseline" in rule.reason for rule in judged[:4])

    def test_modes(self) -> None:
        good = judge_rules(
            Evidence([20.0, 21.0], [19.0, 20.0], 0.1, 0.5, 2), self.bars, resamples=100, seed=0
        )
        bad = judge_rules(Evidence([2.0, 3.0], [2.0, 3.0], 0.1, 0.5, 2), self.bars, resamples=100, seed=0)
        assert verdict("enforce", good) == ("accepted", True)
        assert verdict("enforce", bad) == ("rejected", False)
        assert verdict("dry_run", good) == ("accepted", False)
        assert verdict("dry_run", bad) == ("rejected", False)
        assert verdict("off", ()) == ("not judged", False)
