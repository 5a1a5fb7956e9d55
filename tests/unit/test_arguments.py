"""What a training script asks for is refused when it asks, in a sentence, and not when it has loaded its model."""

from __future__ import annotations

import contextlib
import copy
import json
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import wattune
from facts import governor
from trees import golden
from wattune.core.errors import BoardError, InputError, IntegrityError, WattuneError
from wattune.core.governor import Governor, canonical_json

MAKERS = (wattune.govern, wattune.WattuneCallback)
BOARD = "jetson-agx-orin-64gb"


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No Jetson, and nothing in the working directory."""
    monkeypatch.setenv("WATTUNE_ROOT", str(tmp_path / "nothing"))
    monkeypatch.delenv("WATTUNE_RUN", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def jetson(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of a real AGX Orin."""
    monkeypatch.setenv("WATTUNE_ROOT", str(golden("F1", elsewhere / "root")))
    return elsewhere


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"mhz": 612, "probe": True}, "mhz was given beside probe"),
        ({"mhz": 612, "governor": "g.json"}, "mhz was given beside governor"),
        ({"mhz": 612, "steps": 9}, "steps was given, and mhz does not look at it"),
        ({"mhz": 612, "probe_window_s": 2.0}, "probe_window_s was given, and mhz"),
        ({"mhz": 612, "objective": "edp"}, "objective was given, and mhz"),
        ({"steps": 9}, "steps was given, and a governor does not look at it"),
        ({"mhz": "612"}, "mhz is '612'. A number of MHz was expected."),
        ({"mhz": -1}, "mhz is -1"),
        ({"mhz": math.nan}, "mhz is nan"),
        ({"mhz": True}, "mhz is True"),
        ({"objective": "fame"}, "no objective 'fame'"),
        ({"objective": None}, "objective is None. Text was expected."),
        ({"objective": "energy:max_slowdown_pct=much"}, "A number was expected"),
        ({"objective": "time:max_power_w=20"}, "cannot be answered from a governor"),
        ({"objective": "energy:deadline_s=9", "probe": True}, "speaks of a whole run"),
        ({"governor": 7}, "governor is 7"),
        ({"governor": ""}, "governor is ''"),
        ({"governor": "models:/a/b/c"}, "not the address of a registered model"),
        ({"steps": 0}, "steps is 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"probe_window_s": 0.1}, "Seconds from 0.2 to 600 were expected"),
        ({"seq_len": "long"}, "seq_len is 'long'. A number from 1 to 1000000 was expected"),
        ({"batch_size": -8}, "batch_size is -8"),
        ({"gpu_util_pct": 130}, "gpu_util_ref_pct is 130. A number from 0 to 100 was expected"),
        ({"features": {"depth": 3}}, "'depth' is not a feature"),
        ({"features": {"family": 3}}, "family is 3. A name was expected"),
        ({"features": {"layers": math.inf}}, "layers is inf"),
        ({"batch_size": 0}, "batch_size is 0. A number from 1 to 1000000 was expected"),
        ({"probe": "yes"}, "probe is 'yes'. True or False was expected"),
        ({"probe": 1}, "probe is 1"),
        ({"best_effort": None}, "best_effort is None"),
        ({"simulated_ok": "no"}, "simulated_ok is 'no'"),
        ({"features": [3]}, "Values by name were expected"),
    ],
)
def test_what_is_wrong_by_itself_is_refused_on_any_machine(
    elsewhere: Path, make: Any, how: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as caught:
        make(**how)
    assert said in str(caught.value)
    assert caught.value.expected


@pytest.mark.parametrize("model", [object(), "bert-base", 7, [], object])
def test_a_model_that_tells_nothing_is_none(elsewhere: Path, model: Any) -> None:
    with pytest.raises(InputError, match="has neither a configuration nor parameters"):
        wattune.govern(model)


def test_whatever_has_parameters_or_a_configuration_is_a_model(elsewhere: Path) -> None:
    class Module:
        def parameters(self) -> list[Any]:
            return []

    class Configured:
        config = None

    for model in (None, Module(), Configured(), {"num_hidden_layers": 12}):
        wattune.govern(model)


def test_an_argument_of_another_name_is_named_with_those_there_are(elsewhere: Path) -> None:
    with pytest.raises(InputError, match=r"no argument 'clock'\. It knows seq_len, .*mhz.*"):
        wattune.WattuneCallback(clock=612)
    with pytest.raises(InputError, match="no argument 'model'"):  # the Trainer gives it
        wattune.WattuneCallback(model=object())


@given(
    name=st.sampled_from(
        ("seq_len", "batch_size", "gpu_util_pct", "features", "objective", "governor", "mhz", "steps", "probe_window_s")
    ),
    value=st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.lists(st.integers())
    | st.dictionaries(st.text(max_size=3), st.integers()),
    probe=st.booleans(),
)  # fmt: skip
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_no_value_of_any_type_is_more_than_a_sentence(
    jetson: Path, name: str, value: Any, probe: bool
) -> None:
    with contextlib.suppress(WattuneError):
        wattune.govern(**{"probe": probe, name: value})


@pytest.mark.parametrize("make", MAKERS)
def test_elsewhere_nothing_is_looked_for(
    elsewhere: Path, make: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """No clock of no board, and no file: a script that is written on a laptop runs there."""
    make()
    make(mhz=601)
    make(governor="not-pulled-yet.json")
    make(probe=True, seq_len=40, batch_size=8)
    assert not caplog.records


@pytest.mark.parametrize("make", MAKERS)
def test_on_a_jetson_what_it_does_not_have_is_refused(
    jetson: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make(mhz=612)
    make(probe=True)
    with pytest.raises(InputError, match="612"):
        make(mhz=600)
    with pytest.raises(InputError, match="Nothing says which clock"):
        make()
    with pytest.raises(InputError, match="does not exist"):
        make(governor="nowhere.json", best_effort=True)
    where = jetson / "governor.json"
    where.write_text(canonical_json(governor(board="jetson-orin-nano-8gb")))
    for how in ({}, {"probe": True, "governor": where}):  # also the one that lies here
        with pytest.raises(IntegrityError, match="made for jetson-orin-nano-8gb"):
            make(**how)
    where.write_text(canonical_json(governor(board=BOARD)))
    with pytest.raises(IntegrityError, match="simulated"):
        make()
    make(simulated_ok=True)
    make(mhz=612)  # whatever lies here, it was not asked for
    where.write_text(where.read_text()[:-9])
    with pytest.raises(IntegrityError, match="not complete JSON"):
        make(simulated_ok=True)
    monkeypatch.setenv("WATTUNE_RUN", "1")  # who holds the clock is somebody else, and what to take is theirs
    make(simulated_ok=True)


def test_a_server_that_is_down_is_no_reason_to_stop_where_best_effort_was_asked_for(
    jetson: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(BoardError):
        wattune.govern(governor="models:/some@champion")
    wattune.govern(governor="models:/some@champion", best_effort=True)


def test_a_governor_is_read_once(jetson: Path) -> None:
    """What was checked is what is asked, however the file changes meanwhile."""
    where = jetson / "g.json"
    where.write_text(canonical_json(governor(board=BOARD, provenance="measured")))
    callback = wattune.WattuneCallback(governor=where)
    where.unlink()
    assert isinstance(callback._how["governor"], Governor)
    assert wattune.govern(**callback._how).governor is callback._how["governor"]


# --- while it runs


@pytest.mark.parametrize("steps", ["x", 1.5, -1, None, True, math.nan, [1]])
def test_no_number_of_steps_is_refused(elsewhere: Path, steps: Any) -> None:
    with wattune.govern() as run, pytest.raises(InputError, match="steps is"):
        run.step(steps)


@pytest.mark.parametrize("work", ["x", -1.0, math.nan, math.inf, True, [1]])
def test_no_amount_of_work_is_refused(elsewhere: Path, work: Any) -> None:
    with wattune.govern() as run, pytest.raises(InputError, match="work is"):
        run.step(work=work)


def test_steps_outside_of_a_run_are_not_counted_and_it_is_said_once(
    elsewhere: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = wattune.govern()
    run.step()
    run.step()
    with run:
        run.step(4)
        assert run._steps.done == 4
    said = [record.message for record in caplog.records if "outside of the run" in record.message]
    assert len(said) == 1
    run.step()
    run.step()
    assert run._steps.done == 4
    assert (
        len([r for r in caplog.records if "outside of the run" in r.message]) == 2
    )  # once more for the run that ended


def test_a_run_that_begins_anew_counts_its_own_steps(jetson: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The steps file goes on, for whoever reads it counts them all."""
    file = jetson / "steps"
    monkeypatch.setenv("WATTUNE_RUN", "1")
    monkeypatch.setenv("WATTUNE_STEPS_FILE", str(file))
    run, receipts = wattune.govern(), []
    for count in (3, 5, 2):
        with run:
            run.step(count, work=10.0 * count)
            with pytest.raises(InputError, match="begun already"):
                run.start()
        receipts.append(run.receipt)
    assert [receipt and receipt["steps"] for receipt in receipts] == [3, 5, 2]
    assert json.loads(file.read_text()) == {"steps": 10, "work": 100.0}


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_callback_is_copied_with_its_arguments_and_without_what_runs(jetson: Path, copied: Any) -> None:
    (jetson / "g.json").write_text(canonical_json(governor(board=BOARD, provenance="measured")))
    for how in ({"mhz": 612}, {"probe": True, "governor": "g.json"}, {"governor": "g.json", "seq_len": 40}):
        one = wattune.WattuneCallback(**how)
        other = copied(one)
        assert other is not one
        assert {**other._how, "governor": None} == {**one._how, "governor": None}
        governors = [made._how.get("governor") for made in (one, other)]
        assert len({g and canonical_json(g.document) for g in governors}) == 1
        assert (other.run, other.receipt) == (None, None)
        assert other._lock is not one._lock
