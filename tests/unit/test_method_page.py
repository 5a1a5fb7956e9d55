"""docs/method.md: the numbers it states are those of the code and of the default experiment, the modules it names are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from wattune.boards.virtual import model
from wattune.core import probe
from wattune.core.objectives import OBJECTIVES
from wattune.core.policies import POLICY_ORDER
from wattune.learning.regrettree import MAX_LEAVES
from wattune.learning.spread import reached_level
from wattune.profiling import windows

ROOT = Path(__file__).parents[2]
PAGE = " ".join((ROOT / "docs/method.md").read_text().split())
"""Line breaks are of no meaning."""


def test_modules_named_in_pages_exist() -> None:
    package = Path(model.__file__).parents[2]
    for page in (ROOT / "docs").glob("*.md"):
        named = set(re.findall(r"`((?:src/wattune/)?[a-z_]+(?:/[a-z_]+)+\.py)`", page.read_text()))
        ours = {name.removeprefix("src/wattune/") for name in named if page.name != "comparison.md"}
        assert not [name for name in ours if not (package / name).exists() and not (ROOT / name).exists()], (
            page.name
        )


def test_numbers_are_those_of_the_code() -> None:
    for text in (
        f"above {windows.GAP_PERIODS:g} sampling periods",
        f"Up to {windows.BRIDGE_PERIODS:g} periods, or {windows.BRIDGE_S:g} s",
        f"library of {probe.LIBRARY_SIZE} curves",
        f"family of {probe.FAMILY_SIZE} curves",
        f"with {probe.NOISE_DOF:g} degrees of freedom",
    ):
        assert text in PAGE, text
    assert probe.MAX_PROBES == 3
    assert probe.FAMILY_SHARE == 0.5
    assert MAX_LEAVES == 8
    assert (reached_level(19, 0.9), reached_level(18, 0.9)) == (0.9, 17 / 19)


def test_numbers_are_those_of_the_default_experiment() -> None:
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    if params["experiment"] != "paper":
        pytest.skip("params.yaml is another experiment's")
    train, regret = params["train"], params["train"]["regret"]
    grid = len(train["max_depth"]) * len(train["min_samples_leaf"]) * len(train["criterion"])
    prices = ", ".join(f"{price:g}" for price in regret["prune_pct"])
    sweep = params["sweep"]
    parts = [w["part"] for w in params["workloads"].values()]
    for text in (
        f"at {len(sweep['clocks_mhz'])} clocks and unpinned, {sweep['repeats']} repeats, {sweep['steps']} steps",
        f"{parts.count('train')} training workloads",
        f"{parts.count('held_out')} held-out ones",
        f"of these {grid} the one",
        f"`prune_pct` ({prices})",
        f"within {regret['tolerance_pct']:g} points",
        f"by more than the factor {regret['abstain_beyond']:g}",
        f"19 for {100 * regret['conformal_level']:g} %",
        f"{params['evaluate']['bootstrap_resamples']} resamples",
    ):
        assert text in PAGE, text


def test_every_policy_and_objective_is_defined() -> None:
    shown = set(re.findall(r"`([a-z0-9-]+)`", PAGE))
    assert set(POLICY_ORDER) - {"published-util", "oracle"} <= shown
    assert "| oracle |" in PAGE
    assert all(name.upper() in PAGE for name in OBJECTIVES if name.startswith("ed"))
