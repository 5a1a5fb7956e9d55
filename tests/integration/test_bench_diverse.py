"""`wattune bench diverse` on a part of its workloads: families stay apart, figures add up, and the page shows what was saved."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("hydra")

from wattune.benches import diverse as bench
from wattune.benches.diverse import POLICIES, Campaign, Case
from wattune.boards.virtual.board import VirtualBoard
from wattune.cli import main
from wattune.config import compose, to_config
from wattune.core.features import COST_FEATURES
from wattune.stages.features import columns_of
from wattune.stages.profile import workload_of
from wattune.workloads.diverse import diverse

ROOT = Path(__file__).parents[2]
PART = 6
"""Every sixth workload, so that all models are there."""


@pytest.fixture(scope="module")
def campaign() -> Campaign:
    config = to_config(compose(ROOT / "conf", "diverse", ["board.power_mode=MODE_50W"]))
    kept = list(config.workloads)[::PART]
    config.workloads = {name: config.workloads[name] for name in kept}
    config.workload_ids = kept
    return bench.measure_config(config, ROOT)


@pytest.fixture(scope="module")
def cases(campaign: Campaign) -> list[Case]:
    return bench.judge_campaigns([campaign])


def test_the_experiment_composes_and_its_workloads_are_the_drawn_ones() -> None:
    config = to_config(compose(ROOT / "conf", "diverse"))
    jobs = {job.id: job for job in diverse()}
    assert set(config.workloads) == set(jobs)
    assert set(columns_of(config)) > set(COST_FEATURES)
    for name in list(jobs)[::40]:
        conf, job = config.workloads[name], jobs[name]
        assert (conf.method, conf.tokens, conf.part) == (job.method, job.tokens, job.part)
        assert workload_of(name, conf).bins[0].tokens == job.tokens


def test_usual_workloads_keep_their_parameters() -> None:
    """A key that most workloads leave as it is would have all of them measured anew."""
    document = compose(ROOT / "conf", "smoke")
    keys = {"model", "task", "part", "batch_size", "precision", "max_length"}
    assert all(set(workload) == keys for workload in document["workloads"].values())


def test_another_seed_draws_other_shapes_of_the_same_models() -> None:
    first, other = diverse(), diverse(seed=1)
    assert {job.model for job in first} == {job.model for job in other}
    assert len(other) == len(first) > 2 * len(set(first) & set(other))
    assert diverse(seed=1) == other


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["studies", "--seed", "1"], "goes with diverse"),
        (["diverse", "--seed", "-1"], "at least 0"),
        (["diverse", "--seed", "1", "--write"], "One of them"),
    ],
)
def test_a_seed_that_draws_nothing(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *argv]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.long
def test_features_are_in_the_table_and_known_beforehand(campaign: Campaign) -> None:
    for row in campaign.table.workloads:
        assert all(row.features[name] is not None for name in COST_FEATURES)
        assert row.features["power_mode"] == "MODE_50W"
    utils = [float(row.features["expected_util_pct"] or 0.0) for row in campaign.table.workloads]
    assert min(utils) < 30 < 95 < max(utils)


@pytest.mark.long
def test_whoever_chooses_for_a_family_has_not_seen_it(
    campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[set[object]] = []
    for name in ("train_governor", "train_regret_governor"):
        train = getattr(bench, name)

        def spy(table, rows, space, train=train, **more):
            seen.append({row.features["family"] for row in rows})
            assert space.apart == "family"
            return train(table, rows, space, **more)

        monkeypatch.setattr(bench, name, spy)
    judged: list[set[object]] = []
    fixed = bench._board_clock
    monkeypatch.setattr(bench, "_board_clock", lambda c, out: judged.append({out}) or fixed(c, out))
    bench.judge_campaigns([campaign])
    families = {row.features["family"] for row in campaign.table.workloads}
    assert [out | learned for out, learned in zip(judged, seen[::2], strict=True)] == [families] * len(
        families
    )
    assert all(not out & learned for out, learned in zip(judged, seen[::2], strict=True))
    assert seen[::2] == seen[1::2]


@pytest.mark.long
def test_choices_are_what_their_policies_say(cases: list[Case]) -> None:
    assert len(cases) == len(diverse()[::PART])
    for case in cases:
        choices = case.choices
        assert set(choices) == set(POLICIES)
        assert all(choice.regret_pct >= 0.0 for choice in choices.values())
        assert choices["oracle"].regret_pct == 0.0
        assert choices["maxn"].saving_pct == choices["maxn"].slowdown_pct == 0.0
        declined = choices["mlg-regret"].declined
        assert choices["mlg-regret"].setting == ("maxn" if declined else choices["mlg-regret-tree"].setting)
        assert choices["ffg"].setting in case.row.measured.clocks
        probing = choices[bench.PROBING]
        if not declined:
            assert probing == replace(choices["mlg-regret"], policy=bench.PROBING)
        assert probing.declined == (declined and probing.setting == "maxn")


@pytest.mark.long
def test_a_probe_is_paid_for_by_the_run_it_is_part_of(cases: list[Case]) -> None:
    """Whoever is probed pays for steps at MAXN and at every clock measured, one step in 70 at most; whoever is not pays nothing."""
    probed = [case for case in cases if case.choices[bench.PROBING].probed_pct is not None]
    assert 3 <= len(probed) <= sum(case.choices["mlg-regret"].declined for case in cases)
    for case in cases:
        choice, curve = case.choices[bench.PROBING], case.row.judged
        alone = curve.energy_j(choice.setting)
        spent = alone * (1.0 + (choice.probed_pct or 0.0) / 100.0)
        assert choice.saving_pct == pytest.approx(100.0 * (1.0 - spent / curve.energy_j("maxn")))
        assert choice.regret_pct == pytest.approx(100.0 * (spent / curve.energy_j(curve.oracle) - 1.0))
        if choice.setting == "maxn" and choice.probed_pct is not None:
            dearest = max(curve.energy_j(s) for s in curve.settings)
            assert choice.saving_pct == pytest.approx(-choice.probed_pct)
            assert choice.probed_pct <= 1.5 * (dearest / alone - 1.0)


@pytest.mark.long
def test_a_probe_saves_work_that_was_declined_and_loses_no_other(campaign: Campaign) -> None:
    """The rule, not the luck of one draw: governors that decline everything, ten draws of the noise."""
    kept, lost = 0, []
    (_, others), *_ = bench.folds(campaign.table.workloads, "family")
    space = bench.regret_space(campaign.config.train).with_caution(0.98, 3.0)
    governor = bench.train_regret_governor(campaign.table, others, space).governor
    for row in campaign.table.workloads:
        for draw in range(10):
            choice = bench.probe_declined(governor, row, f"{draw}|{row.id}")
            kept += not choice.declined
            lost.append(choice.saving_pct)
            if (
                (best := row.judged.saving_pct(row.judged.oracle)) is not None
                and best > 25
                and choice.probed_pct is not None
            ):
                assert not choice.declined
    assert min(lost) > -0.5
    assert kept > 50


@pytest.mark.long
def test_low_clocking_maxn_is_in_the_set(campaign: Campaign, cases: list[Case]) -> None:
    low = [case for case in cases if case.clocks_low]
    assert 3 <= len(low) < len(cases)
    board = VirtualBoard(power_mode="MODE_50W")
    conf = campaign.config.workloads[low[0].row.id]
    steady = board.steady(workload_of(low[0].row.id, conf), "maxn")
    assert steady.mhz_s / steady.time_s / board.info.table.top == pytest.approx(
        low[0].maxn_clock_share, rel=0.05
    )


@pytest.mark.long
def test_figures_of_the_part_and_their_bars(cases: list[Case]) -> None:
    found = bench.summarise(cases)
    means = {
        name: found["policies"][name]["mean_regret_pct"] for name in ("ffg", "mlg-regret-tree", "oracle")
    }
    assert means == pytest.approx(SEEDED, abs=1e-3)
    share = found["policies"][bench.PROBING]["mean_regret_pct"] / found["policies"]["ffg"]["mean_regret_pct"]
    first = found["bars"][0]
    assert first["value"] == pytest.approx(share, abs=1e-4)
    assert first["holds"] == (share <= 0.5)
    assert found["ok"] == all(bar["holds"] for bar in found["bars"])
    probe, plain = found["probe"], found["policies"]["mlg-regret"]
    assert probe["kept"] == plain["declined"] - found["policies"][bench.PROBING]["declined"]
    assert probe["kept"] <= probe["probed"] <= probe["declined"] == plain["declined"]
    for groups in found["kinds"].values():
        assert sum(group["n"] for group in groups.values()) == len(cases)
        mean = sum(group["n"] * group["ffg"] for group in groups.values()) / len(cases)
        assert mean == pytest.approx(means["ffg"], abs=1e-3)


SEEDED = {"ffg": 1.5528, "mlg-regret-tree": 0.535, "oracle": 0.0}
"""Mean regret of the part, percent."""


@pytest.mark.long
def test_declining_more_easily_never_loses_against_maxn_more_often(campaign: Campaign) -> None:
    easy, usual = bench.caution([campaign], [(0.98, 3.0), (0.6, 1e6)])
    assert easy["declined"] >= usual["declined"]
    assert easy["losses_beyond_half_pct"] <= usual["losses_beyond_half_pct"]


@pytest.mark.long
def test_counts_beat_shapes_and_more_workloads_lose_less(campaign: Campaign) -> None:
    found = {entry["features"]: entry["mean_regret_pct"] for entry in bench.ablation(campaign)}
    assert found["all"] < found["shape instead of counts"]
    few, many = bench.learning_curve(campaign, sizes=(3, 30), draws=2)
    assert many["mean_regret_pct"] < few["mean_regret_pct"]


@pytest.fixture(scope="module")
def document() -> dict:
    return json.loads((ROOT / bench.RESULT).read_text(encoding="utf-8"))


def test_the_page_shows_what_was_saved(document: dict) -> None:
    page = (ROOT / bench.PAGE).read_text(encoding="utf-8")
    for name, table in bench.tables(document).items():
        assert f"<!-- {name}:begin -->\n{table}\n<!-- {name}:end -->" in page
    assert document["model_digest"] == bench.digest(), "run `wattune bench diverse --write`"
    assert document["n_workloads"] == len(diverse())


def test_the_words_of_the_page_hold(document: dict) -> None:
    kinds = document["kinds"]

    def so(way: str, kind: str) -> str:
        return str(kinds[way][kind]["against_ffg"]["verdict"])

    assert so("expected utilisation", "0 to below 50 %") == so("batch", "1 to below 4 examples") == bench.PAYS
    assert (
        so("method", "lora")
        == so("method", "bitfit")
        == so("expected utilisation", "95 and more %")
        == bench.PAYS
    )
    assert so("method", "full") == so("precision", "fp32") == so("power mode", "MODE_15W") == bench.ENOUGH
    low = document["low_clocked"]
    assert (
        low["ffg"]["losses_beyond_half_pct"]
        > low["ffg"]["n"] / 2
        > 10 * low["mlg-regret"]["losses_beyond_half_pct"]
    )
    loses = {(c["level"], c["beyond"]): c["losses_beyond_half_pct"] for c in document["caution"]}
    assert loses[0.9, 3.0] > 0 == loses[0.98, 3.0]
    other = document["other_draw"]
    for draw in (document, other):
        assert all(bar["holds"] for bar in draw["bars"])
        assert draw["policies"][bench.PROBING]["losses_beyond_half_pct"] == 0
    assert (
        document["without_probe"]["share_of_ffg"] <= bench.FFG_SHARE < other["without_probe"]["share_of_ffg"]
    ), "without a probe the promise carries over, mean regret does not"
    assert other["seed"] == bench.OTHER_DRAW
    for draw in (document, other):
        assert draw["policies"]["mlg-regret"]["losses_beyond_half_pct"] == 0
        tree, ffg = (draw["policies"][p] for p in ("mlg-regret-tree", "ffg"))
        assert tree["mean_regret_pct"] < 0.5 * ffg["mean_regret_pct"]
        assert tree["losses_beyond_half_pct"] > 0
    lost = {e["features"]: e["mean_regret_pct"] for e in document["ablation"]}
    assert max(lost, key=lost.__getitem__) == "shape instead of counts"
    assert (
        max((f for f in lost if f.startswith("without")), key=lost.__getitem__) == "without expected_util_pct"
    )
    curve = {e["n"]: e["mean_regret_pct"] for e in document["learning_curve"]}
    ffg = kinds["power mode"]["MAXN"]["ffg"]
    assert all((loss < ffg) == (n >= 40) for n, loss in curve.items() if n != 10)
