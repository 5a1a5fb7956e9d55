"""Running without a board that is served: accounts, steps, choices, features, receipts, what a probe gives up on, explanations."""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts import governor
from live_boards import VirtualLive
from trees import golden
from wattune.benches.meter import VirtualBoard
from wattune.boards.jetson.discovery import discover
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError, IntegrityError
from wattune.core.explain import because, flips
from wattune.core.governor import Governor, canonical_json, document_digest, parse_governor
from wattune.core.objectives import parse_objective
from wattune.io import sha256_of
from wattune.profiling.certificate import judge_baseline, provenance_of
from wattune.profiling.meter import Meter
from wattune.running import run as run_module
from wattune.running.account import KEEP_S, Account, Totals
from wattune.running.choosing import Choice, by_governor, check_fits
from wattune.running.describe import Batches, model_features, parse_features
from wattune.running.probing import LEAST_STEPS, GaveUpError, LiveProbe, ProbeTask
from wattune.running.receipt import build_receipt, read_baseline, text_of
from wattune.running.session import Session
from wattune.running.steps import Edge, FileSteps, LoadSteps, Steps

BOARD = "jetson-agx-orin-64gb"


# --- the account


@pytest.mark.parametrize("part_s", [7.0, 1e9])
def test_parts_add_up_to_what_was_truly_spent(part_s: float) -> None:
    """Closed off every seven seconds under a load that comes and goes, or in one piece: the same energy, and memory does not grow."""
    board = VirtualBoard()
    meter = Meter(board.findings, clock=board.time, sleep=board.time.sleep, reader=board.read)
    meter.start()
    meter.run(3.0)
    account, before = Account(meter, part_s=part_s), board.true_j()
    for n in range(120):
        board.work(None if n % 5 == 4 else "bert-base-sst2")
        meter.run(1.0)
        account.tick(board.time())
    totals, after = account.close(), board.true_j()
    assert totals.duration_s == pytest.approx(120.0, abs=0.5)
    for name in ("gpu_cpu", "module"):
        joules, bound = totals.energy_j[name], totals.bound_j[name]
        assert joules is not None
        assert bound is not None
        assert abs(joules - (after[name] - before[name])) <= bound + 0.01 * joules
    assert sum(totals.clocks_s.values()) == pytest.approx(totals.duration_s, rel=1e-6)
    if part_s < 100:
        assert len(account.certificates) >= 15
        kept = meter.readings("VDD_GPU_SOC")
        assert kept[0].t_s >= board.time() - KEEP_S - 3.0
        with pytest.raises(InputError, match="too far back"):
            account.window(account.start_s, account.start_s + 5)


# --- steps


def test_steps_of_a_loop_that_starts_anew_go_on() -> None:
    steps = Steps()
    assert steps.done is None
    for count in (1, 2, 5, 1, 3):
        steps.add(count)
    assert steps.done == 5 + 3
    assert steps.anew == [(5, 1)]
    assert "went back from 5 to 1" in " ".join(steps.notes())
    assert [edge.steps for edge in steps.edges(0, math.inf)] == [1, 3]


def test_a_file_counts_steps_and_work_and_nonsense_counts_nothing(tmp_path: Path) -> None:
    path = tmp_path / "steps"
    steps = FileSteps(path)
    steps.poll()
    assert steps.done is None
    for text in ("4", '{"steps": 6, "work": 1000.5}', "half", '{"steps": 9, "work": "x"}'):
        path.write_text(text)
        steps.poll()
    assert steps.done == 9
    assert [(edge.steps, edge.work) for edge in steps.edges(0, math.inf)] == [(4, 4.0), (6, 1000.5), (9, 9.0)]
    assert "half" in steps.problem
    assert [("half" in note, "counted nothing" in note) for note in steps.notes()] == [(True, True)]


@given(period_s=st.floats(0.12, 1.5), busy=st.floats(0.4, 0.85), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_rounds_are_counted_from_the_load(period_s: float, busy: float, seed: int) -> None:
    rng, now = random.Random(seed), [0.0]

    def load() -> float:
        inside = (now[0] % period_s) / period_s < busy
        return (97.0 if inside else 20.0) + rng.uniform(-3, 3)

    steps = LoadSteps(load, clock=lambda: now[0])
    while now[0] < 30.0:
        steps.poll()
        now[0] += 0.01
    assert steps.count is not None
    assert abs(steps.count - 30.0 / period_s) <= 2


def test_a_steady_load_has_no_rounds() -> None:
    now = [0.0]
    steps = LoadSteps(lambda: 99.0 + math.sin(now[0] * 9), clock=lambda: now[0])
    for _ in range(1000):
        steps.poll()
        now[0] += 0.01
    assert steps.count is None


# --- the probe


def test_a_run_too_short_is_not_probed_and_a_long_one_keeps_to_one_percent() -> None:
    live = VirtualLive("bert-small-wnli")
    with pytest.raises(GaveUpError, match="too short"):
        LiveProbe(live, live.table_mhz, live.meter.settle_s, run_steps=500).run()
    assert live.clocks == []
    live = VirtualLive("bert-small-wnli")
    probe = LiveProbe(live, live.table_mhz, live.meter.settle_s, run_steps=20_000)
    probe.run()
    one_step_late = len(probe.measured) * 12  # edges are looked at twice a second
    assert sum(one.steps for one in probe.measured) <= 200 + one_step_late


def test_a_run_too_short_for_two_steps_goes_by_what_was_expected() -> None:
    """The prior is a share of the baseline: it must not be held against joules, which would always beat or always lose."""
    for scale in (1e-6, 1.0, 1e6):
        live = VirtualLive("deberta-v2-xlarge-mnli")
        prior = EnergyCurve(
            {306.0: Point(9.0 * scale, 2.0), 612.0: Point(0.7 * scale, 1.4), 1300.5: Point(scale, 1.0)}
        )
        probe = LiveProbe(live, live.table_mhz, live.meter.settle_s, prior=prior, run_steps=300 * LEAST_STEPS)
        chosen = probe.run()
        assert not probe.measured
        assert chosen is not None
        assert abs(chosen - 612.0) < 110


def test_a_probe_that_is_given_up_leaves_the_governors_clock() -> None:
    class Here:
        """A session that cannot measure a step."""

        account = meter = steps = object()
        setting: Any = "maxn"

        def __init__(self) -> None:
            self.notes: list[str] = []

        def hold(self, mhz: float) -> None:
            self.setting = mhz

        def let_go(self) -> None:
            self.setting = "maxn"

        def note(self, text: str) -> None:
            self.notes.append(text)

    for otherwise in (714.0, None):
        task, session = ProbeTask(otherwise=otherwise), Here()
        task.end(session, GaveUpError("No steps were seen."))  # type: ignore[arg-type]
        assert session.setting == (otherwise or "maxn")
        assert task.gave_up
        assert ("governor's clock" in session.notes[0]) == (otherwise is not None)


def test_no_steps_is_given_up_without_touching_the_clock() -> None:
    live = VirtualLive("bert-small-wnli")
    live.board.work(None)
    with pytest.raises(GaveUpError, match="steps were seen within"):
        LiveProbe(live, live.table_mhz, live.meter.settle_s).run()
    assert live.clocks == []


def test_rounds_that_do_not_follow_the_clock_are_refused() -> None:
    """Counted in the load, three times as many at a clock of less than twice: no work behaves so."""

    class Strange(VirtualLive):
        def edges(self, t0_s: float, t1_s: float) -> list[Any]:
            factor = 3 if self.clocks and self.clocks[-1] > 900 else 1
            return [
                e._replace(steps=e.steps * factor, work=e.work * factor) for e in super().edges(t0_s, t1_s)
            ]

    live = Strange("bert-base-mrpc", says_work=False)
    with pytest.raises(GaveUpError, match="no steps that could be counted"):
        LiveProbe(live, live.table_mhz, live.meter.settle_s, rounds=True).run()


def test_a_timer_in_the_load_is_not_taken_for_steps() -> None:
    """Something interrupts a busy GPU twice a second, whatever its clock: by that count the lowest clock would be the cheapest."""

    class Timed(VirtualLive):
        def edges(self, t0_s: float, t1_s: float) -> list[Edge]:
            first, last = math.ceil(t0_s * 2), math.floor(t1_s * 2)
            return [Edge(n / 2, n, float(n)) for n in range(first, last + 1)]

    live = Timed("bert-large-mrpc", says_work=False)
    with pytest.raises(
        GaveUpError, match=r"no steps that could be counted: .* busy for \d+ % of the time at both"
    ):
        LiveProbe(live, live.table_mhz, live.meter.settle_s, rounds=True).run()


def test_the_baseline_wins_where_no_clock_beats_it() -> None:
    """A board whose power does not depend on the clock: the fastest way is the cheapest, and the clocks are left alone."""

    class Flat(VirtualLive):
        def window(self, t0_s: float, t1_s: float) -> Any:
            seen = super().window(t0_s, t1_s)
            fixed = {
                k: SimpleNamespace(labels=("x",), energy_j=40.0 * (t1_s - t0_s), reason="") for k in seen.sets
            }
            return SimpleNamespace(sets=fixed, util_pct=90.0)

    live = Flat("bert-base-mrpc")
    assert LiveProbe(live, live.table_mhz, live.meter.settle_s).run() in (None, 1300.5)


class Cheap(VirtualLive):
    """A board whose watts grow with the clock; left alone it takes `maxn_w`, at the highest clock."""

    maxn_w = 0.0

    def window(self, t0_s: float, t1_s: float) -> Any:
        seen = super().window(t0_s, t1_s)
        watts = self.maxn_w if self.held is None else 20.0 + 0.01 * self.held
        sets = {
            k: SimpleNamespace(labels=("x",), energy_j=watts * (t1_s - t0_s), reason="") for k in seen.sets
        }
        return SimpleNamespace(sets=sets, util_pct=90.0)


@pytest.mark.parametrize(
    ("more", "average", "shown"), [(1.012, True, False), (1.3, True, True), (0.9, False, False)]
)
def test_where_a_governor_declined_a_clock_has_to_be_shown_to_be_better(
    more: float, average: bool, shown: bool
) -> None:
    """One percent is better on average; a third is so beyond what noise explains. The clocks are left alone again to see."""
    found = {}
    for doubted in (False, True):
        live = Cheap("bert-base-mrpc")
        live.maxn_w = (20.0 + 0.01 * 1300.5) * more
        probe = LiveProbe(live, (1224.0, 1300.5), live.meter.settle_s, doubted=doubted)
        found[doubted] = probe.run() is not None
        again = probe.document()["baseline_again"]
        assert len(again) == (2 if doubted and average and not shown else 0)
        assert all(one["mhz"] == "maxn" for one in again)
    assert found == {False: average, True: shown}


# --- choosing


@pytest.fixture
def board() -> Any:
    from trees import emulated_machine
    from wattune.benches.meter import findings_of

    found = findings_of(*emulated_machine())
    found.kind, found.board = "jetson", BOARD
    return found


def sound(**how: Any) -> Governor:
    return parse_governor(canonical_json(governor(**{"board": BOARD, **how})))


def test_a_simulated_governor_is_refused_on_a_real_board_unless_told(board: Any) -> None:
    with pytest.raises(IntegrityError, match="simulated"):
        check_fits(sound(), board)
    check_fits(sound(), board, simulated_ok=True)
    check_fits(sound(provenance="measured"), board)
    with pytest.raises(IntegrityError, match="made for jetson-agx-xavier"):
        check_fits(sound(board="jetson-agx-xavier", provenance="measured"), board, simulated_ok=True)


def test_objectives_are_answered_from_the_leaf(board: Any) -> None:
    job = {"layers": 12.0, "family": "bert"}

    def choice(objective: str) -> Choice:
        return by_governor(sound(provenance="measured"), board, job, {}, objective=parse_objective(objective))

    assert choice("energy").setting == 816.0
    assert choice("energy").expected_saving_pct == 27.0
    limited = choice("energy:max_slowdown_pct=5")
    assert limited.setting == "maxn"  # every clock of the leaf takes a fifth longer
    with pytest.raises(InputError, match="relative energies"):
        choice("energy:deadline_s=100")


def test_what_was_declined_is_left_to_a_probe_with_what_is_known(board: Any) -> None:
    """A leaf that may lose is still a curve to begin with; out of range nothing is known. Either way a clock has to be shown."""
    raw = governor(board=BOARD, provenance="measured")
    raw["abstain"] = {"beyond": 1.5}
    for node in raw["nodes"]:
        if "setting_hz" in node:
            node["saving_interval_pct"] = [node["expected_saving_pct"] - 10.0, 30.0]
    raw["digest"] = document_digest(raw)
    policy = parse_governor(canonical_json(raw))
    sure, unsure, far = (
        by_governor(policy, board, {"layers": layers, "family": "bert"}, {}, probes=True)
        for layers in (12.0, 5.0, 90.0)
    )
    assert (sure.declined, sure.setting) == (False, 816.0)
    assert sure.prior is not None
    assert (unsure.declined, unsure.setting) == (far.declined, far.setting) == (True, "maxn")
    assert unsure.prior is not None
    assert "maxn" not in unsure.prior.points
    assert unsure.prior.best_clock == 816.0
    assert far.prior is None
    assert "shown to be better" in unsure.notes[-1]
    args = argparse.Namespace(
        objective="energy",
        mhz=None,
        governor="g",
        probe=True,
        simulated_ok=False,
        steps=None,
        probe_window=5.0,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "load_governor", lambda where: policy)
        for layers, doubted in ((12.0, False), (5.0, True)):
            job = {"layers": layers, "family": "bert"}
            _, task = run_module._decide(args, board, lambda g, job=job: (job, {}))
            assert task is not None
            assert task.doubted == doubted
            assert task.otherwise == (None if doubted else 816.0)


def test_a_clock_above_the_cap_becomes_the_highest_below_it_and_promises_nothing() -> None:
    from trees import emulated_machine
    from wattune.benches.meter import findings_of

    found = findings_of(*emulated_machine(power_mode="MODE_30W"))
    found.kind, found.board = "jetson", BOARD
    choice = by_governor(sound(provenance="measured"), found, {"layers": 12.0, "family": "bert"}, {})
    assert (choice.setting, choice.expected_saving_pct) == (612.0, None)
    assert any("cap of the power mode" in note for note in choice.notes)


# --- features


def test_features_of_a_model_and_its_batches() -> None:
    class Tensor:
        def __init__(self, rows: list[list[int]]) -> None:
            self.rows, self.shape = rows, (len(rows), len(rows[0]))

        def sum(self) -> int:
            return sum(map(sum, self.rows))

    parameters = [SimpleNamespace(numel=lambda: 3_000_000), SimpleNamespace(numel=lambda: 1_000_000)]
    config = SimpleNamespace(model_type="gpt_neox", num_hidden_layers=6, hidden_size=512)
    model = SimpleNamespace(config=config, parameters=lambda: parameters)
    assert model_features(model) == {"family": "gpt-neox", "layers": 6.0, "hidden": 512.0, "params_m": 4.0}
    batches = Batches(wanted=2)
    assert batches.features() == {}
    batches.look(
        {"input_ids": Tensor([[5, 6, 0], [7, 0, 0]]), "attention_mask": Tensor([[1, 1, 0], [1, 0, 0]])}
    )
    batches.look({"input_ids": Tensor([[5, 6, 1]])})
    batches.look({"input_ids": Tensor([[1] * 50])})  # enough was seen
    assert batches.features() == {"seq_len": 2.0, "batch_size": 2.0}


def test_feature_files() -> None:
    want = {"layers": 12.0, "family": "bert", "seq_len": None}
    assert parse_features("# mine\nlayers: 12\nfamily: 'bert'\n\nseq_len: ~\n", "f") == want
    assert parse_features('{"layers": 12}', "f") == {"layers": 12}
    for text in ("layers 12", "  layers: 12", "- a", "layers:\n  deep: 3", "{", "[1]"):
        with pytest.raises(InputError):
            parse_features(text, "f")


# --- receipts


def test_a_run_that_measured_nothing_says_so(board: Any) -> None:
    receipt = build_receipt(
        Session(board), None, Choice("maxn", "none"), command=["true"], exit_code=0, duration_s=1.0
    )
    assert receipt["energy_j"] == {"gpu_cpu": None, "module": None}
    assert json.loads(json.dumps(receipt)) == receipt
    assert "unknown: nothing was measured" in text_of(receipt)
    assert (receipt["provenance"], receipt["unknown"]["provenance"]) == (None, "nothing was measured")
    assert "none seen" not in text_of(receipt)
    assert "throttling  unknown" in text_of(receipt)


@pytest.mark.parametrize(
    ("cooling", "events", "said"),
    [
        ({}, {}, "unknown"),
        ({"gpu": None}, {"oc1": None}, "unknown"),
        ({"gpu": 0}, {}, "none seen"),
        ({"gpu": 0}, {"oc1": None}, "none seen (unknown: oc1)"),
        ({"gpu": None}, {"oc1": 2}, "oc1 (2 events)"),
    ],
)
def test_only_what_was_looked_at_was_not_seen(
    board: Any, cooling: dict[str, int | None], events: dict[str, int | None], said: str
) -> None:
    totals = Totals(10.0, {"gpu_cpu": 9.0, "module": 9.0}, cooling_max=cooling, events=events)
    text = text_of(build_receipt(Session(board), totals, Choice("maxn", "none")))
    assert (
        next(line for line in text.splitlines() if line.startswith("throttling"))
        .split(None, 1)[1]
        .startswith(said)
    )


@pytest.mark.parametrize(("seconds", "confidence"), [(4.9, "low"), (5.0, "usual")])
def test_a_short_run_is_of_low_confidence_and_says_so(board: Any, seconds: float, confidence: str) -> None:
    totals = Totals(seconds, {"gpu_cpu": 9.0, "module": 9.0})
    receipt = build_receipt(Session(board), totals, Choice("maxn", "none"))
    assert receipt["confidence"] == confidence
    assert ("confidence  low" in text_of(receipt)) == (confidence == "low")


def test_what_is_measured_stays_what_it_was_found_to_be_whatever_ends_meanwhile(tmp_path: Path) -> None:
    """An emulated tree whose emulator dies while something runs: nothing of it becomes a measurement."""
    root = golden("F1", tmp_path / "root")
    status = root / "emulator/status.json"
    status.parent.mkdir()
    status.write_text("{}")
    session = Session(discover(Sysfs(root)))
    status.unlink()
    totals = Totals(10.0, {"gpu_cpu": 9.0, "module": None})
    assert build_receipt(session, totals, Choice("maxn", "none"))["provenance"] == "simulated"
    assert provenance_of(session.findings) == "simulated"
    assert provenance_of(discover(Sysfs(root))) == "measured"


def test_a_clock_that_was_only_tried_is_no_choice(board: Any) -> None:
    session = Session(board)
    session.setting, session.undecided = 510.0, "the run ended before the probe was done"
    task = ProbeTask()
    task.gave_up = "The run ended before it was done."
    receipt = build_receipt(session, Totals(10.0), Choice("maxn", "probe", "measured clocks"), probe=task)
    assert (receipt["setting"], receipt["by"]) == ("maxn", "none")
    assert "510" not in text_of(receipt)
    assert "chosen by   none: undecided: the run ended" in text_of(receipt)
    session.undecided = ""  # given up, and the governor's clock held
    receipt = build_receipt(session, Totals(10.0), Choice("maxn", "probe", "measured clocks"), probe=task)
    assert (receipt["setting"], receipt["by"]) == (510.0, "governor")


def test_what_is_no_baseline_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    for text, said in (
        ("[1]", "no receipt"),
        ("{}", "no receipt"),
        ('{"energy_j": {}, "duration_s": 1, "setting": 612}', "was held"),
    ):
        path.write_text(text)
        with pytest.raises(InputError, match=said):
            read_baseline(path)


def sound_baseline(**how: Any) -> dict[str, Any]:
    certificates = how.pop("certificates", [{"baseline": {"accepted": True, "reasons": []}}])
    return {
        "schema_version": 1, "provenance": "measured", "setting": "maxn", "lowered": [], "exit_code": 0, "command": ["true"],
        "duration_s": 9.0, "energy_j": {"gpu_cpu": 90.0, "module": 120.0}, "energy_j_per_step": {"gpu_cpu": 1.5, "module": None},
        "time_s_per_step": 0.1, "certificates": certificates, "certificate": sha256_of(certificates) if certificates else None,
        "board": BOARD, "power_mode": "MAXN", **how,
    }  # fmt: skip


def test_a_sound_baseline_is_read(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(json.dumps(sound_baseline()))
    assert read_baseline(tmp_path / "b.json") == sound_baseline()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"exit_code": 3}, "exit code 3"),
        ({"exit_code": 130}, "exit code 130"),
        ({"exit_code": "0"}, "damaged"),
        ({"schema_version": 2}, "damaged"),
        ({"certificates": []}, "Nothing was measured"),
        ({"certificates": "x", "certificate": None}, "damaged"),
        ({"certificate": "0" * 64}, "damaged"),
        ({"certificates": [{"baseline": None}]}, "not seen to be free"),
        (
            {"certificates": [{"baseline": {"accepted": False, "reasons": ["Pinned at 408 MHz."]}}]},
            "not seen to be free. Pinned at 408 MHz",
        ),
        (
            {
                "certificates": [
                    {"baseline": {"accepted": True}},
                    {"baseline": {"accepted": False, "reasons": []}},
                ]
            },
            "not seen to be free",
        ),
        ({"energy_j": {"gpu_cpu": None, "module": None}}, "energy is unknown"),
        ({"energy_j": {"gpu_cpu": 5.0}}, "damaged"),
        ({"energy_j_per_step": None}, "damaged"),
    ],
)
def test_a_baseline_that_failed_or_was_not_free_or_is_damaged_is_refused(
    tmp_path: Path, how: dict[str, Any], said: str
) -> None:
    path = tmp_path / "b.json"
    path.write_text(json.dumps(sound_baseline(**how)))
    with pytest.raises(InputError, match=said) as caught:
        read_baseline(path)
    assert caught.value.hint


@given(
    place=st.sampled_from(
        ["duration_s", "time_s_per_step", "energy_j.gpu_cpu", "energy_j.module", "energy_j_per_step.gpu_cpu"]
    ),
    value=st.floats(max_value=0.0) | st.just(math.nan) | st.just(math.inf) | st.text() | st.booleans() | st.lists(st.integers()),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_no_number_of_a_baseline_is_believed_that_cannot_be(place: str, value: Any) -> None:
    document = sound_baseline()
    *outer, name = place.split(".")
    (document[outer[0]] if outer else document)[name] = value
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "b.json"
        path.write_text(json.dumps(document))
        with pytest.raises(InputError, match=r"damaged|no receipt"):
            read_baseline(path)


@pytest.mark.parametrize(
    ("exit_code", "how", "said"),
    [
        (1, {}, "exit code 1"),
        (0, {"provenance": "simulated"}, "The baseline is simulated"),
        (0, {"energy_j": {"gpu_cpu": None, "module": 3.0}}, "unknown (gpu_cpu)"),
        (0, {"board": "jetson-agx-xavier"}, "another board"),
        (0, {"command": ["false"]}, "another command"),
        (0, {}, None),
    ],
)
def test_a_saving_is_given_of_like_and_finished_runs_and_else_it_is_said_why_not(
    board: Any, exit_code: int, how: dict[str, Any], said: str | None
) -> None:
    totals = Totals(10.0, {"gpu_cpu": 45.0, "module": 60.0})
    receipt = build_receipt(
        Session(board), totals, Choice(612.0, "mhz"), command=["true"], exit_code=exit_code,
        baseline=sound_baseline(power_mode=board.power_mode and board.power_mode.name, **how),
    )  # fmt: skip
    assert receipt["measured_saving_pct"] == (50.0 if said is None else None)
    assert said is None or any(said in note for note in receipt["notes"])


def test_bounds_that_were_others_for_a_time_are_not_free(board: Any) -> None:
    """Pinned and let go in the middle: before and after are alike, and most of the time the clock was free."""
    low, high = board.gpu.min_hz, board.gpu.max_hz
    free, held = (0.0, low, high), (3.0, 408_000_000, 408_000_000)
    how: dict[str, Any] = {"clocks_s": {"1300.5": 6.0, "408": 3.0}}
    assert judge_baseline(board, board, bounds_hz=(free, (1.0, None, None)), **how).accepted
    judged = judge_baseline(board, board, bounds_hz=(free, held, (6.0, low, high)), **how)
    assert not judged.accepted
    assert "408 to 408 MHz for a time" in " ".join(judged.reasons)


# --- explanations


@given(
    layers=st.floats(0.5, 60), family=st.sampled_from(["bert", "gpt-neox", "other"]), probe=st.floats(0.5, 60)
)
@settings(max_examples=200, deadline=None)
def test_flips_are_true_and_nothing_nearer_flips(layers: float, family: str, probe: float) -> None:
    policy = sound()
    job = {"layers": layers, "family": family}
    now = policy.decide(job).setting
    found = flips(policy, job)
    for flip in found:
        to = flip.to if flip.direction != "above" else math.nextafter(float(flip.to), math.inf)
        assert policy.decide({**job, flip.feature: to}).setting == flip.setting != now
    if policy.decide({**job, "layers": probe}).setting != now:
        side = [f for f in found if f.feature == "layers" and (f.direction == "above") == (probe > layers)]
        assert len(side) == 1
        assert abs(float(side[0].to) - layers) <= abs(probe - layers)


def test_the_path_is_told_with_what_the_workload_has() -> None:
    lines = because(sound(), {"layers": 12.0})
    assert lines == [
        "transformer blocks (layers: 12 layers) is above 7.5 layers",
        "architecture family of the model, e.g. bert (family: bert, assumed) is bert",
    ]


def test_the_last_good_governor_is_kept(tmp_path: Path) -> None:
    from wattune.tracking.pull import pull

    output, last = tmp_path / "g.json", tmp_path / "g.json.last"
    for number, board_id in enumerate(("one", "two", "two")):
        (tmp_path / "source.json").write_text(canonical_json(governor(board=board_id)))
        pull(str(tmp_path / "source.json"), output)
        assert last.exists() == (number > 0)
    assert parse_governor(last.read_bytes()).board == "one"
    (tmp_path / "source.json").write_text(canonical_json(governor(board="three")))

    def no(policy: Governor) -> None:
        raise IntegrityError(f"{policy.board} is not wanted.")

    with pytest.raises(IntegrityError):
        pull(str(tmp_path / "source.json"), output, no)
    assert parse_governor(output.read_bytes()).board == "two"
    output.write_text("{damaged")
    pull(str(tmp_path / "source.json"), output)
    assert parse_governor(last.read_bytes()).board == "one"  # what was damaged is no good one


def test_lazy_names() -> None:
    import wattune

    began = time.monotonic()
    assert wattune.govern.__name__ == "govern"
    assert time.monotonic() - began < 5
    with pytest.raises(AttributeError):
        _ = wattune.nothing
