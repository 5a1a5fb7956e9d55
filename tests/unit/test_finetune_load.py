"""The fine-tuning process as a load: what it reports, and everything it can do wrong."""

from __future__ import annotations

import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_worker import EPOCH, loss_of
from wattune.core.errors import BoardError, InputError
from wattune.profiling.finetune_load import FinetuneLoad, RunLostError, Trajectory
from wattune.workloads.build import build_named

FAKE = Path(__file__).parents[1] / "fake_worker.py"
WORKLOAD = build_named("bert-small-sst2")


def load_of(folder: Path, behaviour: str = "", **other: Any) -> FinetuneLoad:
    return FinetuneLoad(
        {"from_config": True, "path": "made-up", "device": "cpu", "precision": "fp32"}, {},
        block_s=0.2, start_s=10.0, stall_s=0.6, command=(sys.executable, str(FAKE), behaviour, str(folder)), **other,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def follow(load: FinetuneLoad) -> None:
    for _ in range(200):
        load.report()


def gone(pid: int) -> bool:
    until = time.monotonic() + 5
    while time.monotonic() < until:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.02)
    return False


def test_one_process_serves_many_runs_that_begin_anew(folder: Path) -> None:
    load = load_of(folder)
    try:
        load.start(WORKLOAD, 7)
        pid = load.pid
        assert load.answered.epoch.tokens == sum(EPOCH)
        assert load.answered.epoch.steps == len(EPOCH)
        digests = []
        for number in range(3):
            begun = load.begin(f"window {number}")
            reports = [load.report() for _ in range(4)]
            assert [r.steps for r in reports] == [load.block_steps * n for n in (1, 2, 3, 4)]
            assert begun < reports[0].t_s < reports[3].t_s <= time.monotonic()
            tokens = [n for r in reports for n in r.tokens]
            assert tokens == EPOCH[: len(tokens)]
            assert load.trajectory.losses == [loss_of(n) for n in range(len(tokens))]
            digests.append(load.facts()["losses"]["prefixes"]["8"])
            load.end()
            assert load.steps() is None
        assert len(set(digests)) == 1
        assert load.pid == pid
        # about four reports a block of 0.2 s, of steps of 10 ms
        assert 2 <= load.block_steps <= 6
    finally:
        load.stop()
    assert pid is not None
    assert gone(pid)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("die", r"ended with exit code 7; the end of its stderr: .*something terrible"),
        ("kill", "was killed by SIGKILL"),
        ("hang", r"said nothing for 0\.6 s"),
        ("garbage", r"said 'Downloading: 42%\|####', which is no answer"),
        ("half-block", "An answer 'block' was expected"),
        ("nan", "The loss of step 12 is nan"),
    ],
)
def test_a_lost_run_costs_that_run_only(folder: Path, kind: str, said: str) -> None:
    load = load_of(folder, f"{kind}@2")
    try:
        load.start(WORKLOAD, 7)
        pid = load.pid
        load.begin("one")
        with pytest.raises(RunLostError, match=said):
            follow(load)
        load.begin("two")  # a new process where the old one is gone
        reports = [load.report() for _ in range(6)]
        assert reports[0].tokens == tuple(EPOCH[: load.block_steps])
        assert (load.pid == pid) == (kind == "nan")
        assert pid is not None
        assert kind == "nan" or gone(pid)
    finally:
        load.stop()


def test_what_no_other_run_would_mend_ends_it(folder: Path) -> None:
    load = load_of(folder, "disk@2")
    try:
        load.start(WORKLOAD, 7)
        load.begin("one")
        with pytest.raises(BoardError, match="The disk is full") as failed:
            follow(load)
        assert not isinstance(failed.value, RunLostError)
        assert load.pid is None
    finally:
        load.stop()
    with pytest.raises(InputError, match="no such model"):
        load_of(folder, "no-model@0").start(WORKLOAD, 7)
    lost = load_of(folder / "other", "")  # its folder is missing: it ends in the trial
    with pytest.raises(BoardError, match="ended with exit code 1") as failed:
        lost.start(WORKLOAD, 7)
    assert not isinstance(failed.value, RunLostError)
    assert lost.pid is None


def test_out_of_memory_begins_the_run_anew_and_is_said(folder: Path) -> None:
    load = load_of(folder, "oom@2")
    try:
        load.start(WORKLOAD, 7)
        assert load.batch == (32, 1)
        load.begin("one")
        steps = [load.report().steps for _ in range(8)]
        assert any(b < a for a, b in itertools.pairwise(steps))
        facts = load.facts()
        assert (facts["batch_size"], facts["accumulation"]) == (16, 2)
        assert facts["changes"] == [{"batch_size": 16, "accumulation": 2, "why": "out of memory (made up)"}]
        assert load.trajectory.losses == [loss_of(n) for n in range(steps[-1])]
    finally:
        load.stop()


def test_a_wrong_setting_is_named_before_anything_starts(folder: Path) -> None:
    load = FinetuneLoad({"methd": "lora"}, {})
    with pytest.raises(InputError, match="Did you mean method"):
        load.check(WORKLOAD)
    one = FinetuneLoad({"method": "lora"}, {"BERT-small-SST2": {"rank": 4, "seed": 3}})
    spec = one.spec_of(WORKLOAD, 7)
    assert (spec["method"], spec["rank"], spec["seed"], spec["batch_size"]) == ("lora", 4, 3, 32)
    assert one.text != FinetuneLoad({"method": "full"}, {}).text
    with pytest.raises(InputError, match="no emulated board"):
        FinetuneLoad({}, {}, emulated=folder).check(WORKLOAD)


def test_digests_tell_one_bit() -> None:
    a, b = Trajectory([0.5, 0.25, 0.125, 1.0]), Trajectory([0.5, 0.25, 0.125, 1.0 + 2**-52])
    one, two = a.as_json(), b.as_json()
    assert one["prefixes"]["2"] == two["prefixes"]["2"]
    assert one["prefixes"]["4"] != two["prefixes"]["4"]
    assert set(one["prefixes"]) == {"1", "2", "4"}
    assert Trajectory([0.5, 0.25]).as_json()["digest"] == one["prefixes"]["2"]
    assert Trajectory().as_json()["digest"] is None


def test_an_emulated_board_that_cannot_take_steps_is_refused(folder: Path) -> None:
    from wattune.workloads.finetune.emulated import EmulatedDevice

    with pytest.raises(InputError, match="no emulated board"):
        EmulatedDevice(folder, "bert-small-sst2")
    (folder / "emulator").mkdir()
    (folder / "emulator/status.json").write_text('{"mode": "dir"}')
    with pytest.raises(BoardError, match="plain folder"):
        EmulatedDevice(folder, "bert-small-sst2")
    load = FinetuneLoad({"name_or_path": "some/checkpoint"}, {}, emulated=folder)
    (folder / "emulator/control").write_text("")
    load.check(WORKLOAD)  # the emulated board runs the catalogue's workload, whatever the checkpoint
