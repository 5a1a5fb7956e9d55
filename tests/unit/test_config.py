"""conf/ composes, and what is wrong in it is said in one sentence before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("hydra")

from wattune.config import Config, compose, load_params, to_config
from wattune.core.errors import InputError

ROOT = Path(__file__).parents[2]
CONF = ROOT / "conf"


@pytest.mark.parametrize("experiment", sorted(p.stem for p in (CONF / "experiment").glob("*.yaml")))
def test_every_experiment_composes(experiment: str) -> None:
    config = to_config(compose(CONF, experiment))
    assert config.experiment == experiment
    assert config.workload_ids == list(config.workloads)


@pytest.mark.parametrize(
    ("group", "option"),
    sorted(
        (folder.name, option.stem)
        for folder in CONF.iterdir()
        if folder.is_dir() and folder.name != "experiment"
        for option in folder.glob("*.yaml")
    ),
)
def test_every_option_composes(group: str, option: str) -> None:
    assert isinstance(to_config(compose(CONF, "paper", [f"{group}={option}"])), Config)


def test_the_paper_experiment_is_what_the_paper_did() -> None:
    config = to_config(compose(CONF, "paper"))
    parts = [w.part for w in config.workloads.values()]
    assert (parts.count("train"), parts.count("held_out")) == (27, 54)
    assert config.sweep.clocks_mhz == [306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224, 1300.5]
    assert config.sweep.maxn
    assert config.sweep.repeats == 3


BAD = {
    "unknown board": (["board=nano"], "nano"),
    "unknown experiment": (["experiment=papr"], "papr"),
    "unknown key": (["sweep.repeat=3"], "repeat"),
    "unknown key added": (["+sweep.repeat=3"], "repeat"),
    "wrong type": (["sweep.repeats=three"], "three"),
    "wrong type in a workload": (["workloads.bert-base-sst2.batch_size=many"], "many"),
    "unknown model": (["workloads.bert-base-sst2.model=bert-bas"], "bert-base"),
    "unknown task": (["workloads.bert-base-sst2.task=sst3"], "sst2"),
    "unknown part": (["workloads.bert-base-sst2.part=test"], "held_out"),
    "no repeats": (["sweep.repeats=0"], "above 0"),
    "unknown feature": (["train.features=[depth]"], "layers"),
    "too many leaves": (["train.regret.max_leaves=9"], "1 to 8"),
    "unknown leaf rule": (["train.regret.leaf=median"], "worst"),
    "a level of 1": (["train.regret.conformal_level=1.0"], "between 0 and 1"),
    "declining inside the range": (["train.regret.abstain_beyond=0.5"], "at least 1"),
    "declining inside the range, one of several": (["train.regret.abstain_beyonds=[3,0.5]"], "at least 1"),
    "a level that is no share": (["train.regret.conformal_levels=[0.9,98]"], "between 0 and 1"),
    "a tolerated gain": (["train.regret.tolerated_loss_pct=-1"], "at least 0"),
    "fewer than no workloads": (["train.regret.tell_apart=-1"], "A number of workloads"),
    "a negative price": (["train.regret.prune_pct=[-0.1]"], "at least 0"),
    "a feature of no tree": (["train.regret.features=[depth]"], "layers"),
    "unknown gate mode": (["gate.mode=on"], "enforce"),
    "unknown objective": (["objective.name=speed"], "energy"),
    "accuracy where nothing is trained": (["accuracy.workloads=[bert-base-sst2]"], "nothing is fine-tuned"),
    "accuracy of nobody": (["board=jetson", "accuracy.workloads=[bert-base]"], "there is no such workload"),
    "runs of less than no steps": (["accuracy.steps=-1"], "at least 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_configuration(case: str) -> None:
    overrides, names = BAD[case]
    with pytest.raises(InputError, match=names) as caught:
        compose(CONF, "paper", overrides)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_hand_edited_params_are_checked_again(tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_text("sweep:\n  repeats: 3\n  colour: red\n")
    with pytest.raises(InputError, match="colour"):
        load_params(path)
    path.write_text("sweep: [\n")
    with pytest.raises(InputError, match="not YAML"):
        load_params(path)
    path.write_text("")
    with pytest.raises(InputError, match="empty"):
        load_params(path)
    with pytest.raises(InputError, match="does not exist"):
        load_params(tmp_path / "none.yaml")


def test_one_workload_alone() -> None:
    """Only what is asked for is built, exactly as it is among all; another's fault does not matter then; an unknown id gives all."""
    everything = load_params(ROOT / "params.yaml")
    for name in ("bert-base-sst2", "pythia-1b-rte"):
        alone = load_params(ROOT / "params.yaml", name)
        assert alone.workloads == {name: everything.workloads[name]}
        assert (alone.board, alone.sweep) == (everything.board, everything.sweep)
    assert load_params(ROOT / "params.yaml", "nobody") == everything
