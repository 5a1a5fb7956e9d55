"""governor.json: read with every check, whatever was done to it."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.core.errors import IntegrityError
from wattune.core.governor import (
    FeatureRange,
    canonical_json,
    document_digest,
    governor_document,
    parse_governor,
)
from wattune.core.settings import MAXN
from wattune.core.tree import Leaf, Split, Tree


def leaf(setting: float | str) -> Leaf:
    return Leaf(setting, 3, 10.0, (5.0, 15.0), (0.9, 0.95, 1.0), (1.3, 1.1, 1.0))  # type: ignore[arg-type]


DOCUMENT_TREE = Tree(
    [
        Split("family", None, "bert", 1, 2),
        leaf(510.0),
        Split("layers", 7.0, None, 3, 4),
        leaf(1300.5),
        leaf(MAXN),
    ]
)
ARGUMENTS: dict[str, Any] = {
    "board": "jetson-agx-orin-64gb", "power_mode": "MAXN", "provenance": "simulated", "objective": "energy", "policy": "mlg",
    "rails": "gpu_cpu", "baseline": MAXN, "settings": (510.0, 1300.5, MAXN),
    "features": (
        FeatureRange("family", "", "category", None, None, ("bert", "gpt-neox"), "bert"),
        FeatureRange("layers", "layers", "number", 4.0, 24.0, (), 12.0),
    ),
    "tree": DOCUMENT_TREE,
    "training": {"n_workloads": 9},
}  # fmt: skip
DOCUMENT = governor_document(**ARGUMENTS)
TEXT = canonical_json(DOCUMENT)


def test_round_trip_keeps_hz_exact() -> None:
    governor = parse_governor(TEXT)
    assert governor.settings == (510.0, 1300.5, MAXN)
    assert governor.document["settings_hz"] == [510000000, 1300500000, "maxn"]
    assert governor.digest == DOCUMENT["digest"]


def test_decisions_and_ranges() -> None:
    governor = parse_governor(TEXT)
    answer = governor.decide({"family": "gpt-neox", "layers": 7.0})
    assert (answer.setting, answer.in_range) == (1300.5, True)
    assert answer.rule == "family is not bert and layers <= 7 -> 1300.5 MHz"
    assert answer.expected_slowdown_pct == pytest.approx(10.0)
    assert governor.decide({"family": "gpt-neox", "layers": 7.0001}).setting == MAXN
    unknown = governor.decide({"family": "llama", "layers": 30.0})
    assert unknown.out_of_range == ("family", "layers")
    assert governor.decide({}).assumed == {"family": "bert", "layers": 12.0}


def test_a_governor_that_may_decline() -> None:
    """A leaf that may lose, one that cannot, and one that leaves MAXN untouched anyway."""
    risky = replace(leaf(510.0), saving_interval_pct=(-0.1, 12.0), regret_bound_pct=3.0)
    sure = replace(leaf(1300.5), saving_interval_pct=(0.0, 12.0))
    governor = parse_governor(
        canonical_json(
            governor_document(
                **{
                    **ARGUMENTS,
                    "tree": Tree([*DOCUMENT_TREE.nodes[:1], risky, DOCUMENT_TREE.nodes[2], sure, leaf(MAXN)]),
                },
                abstain_beyond=2.0,
            )
        )
    )
    assert governor.tree.leaves[0] == risky
    declined = governor.decide({"family": "bert", "layers": 12.0})
    assert (declined.setting, declined.abstained, declined.in_range) == (MAXN, True, True)
    assert "-0.1 and 12.0 %, a loss included" in declined.reason
    assert (declined.expected_saving_pct, declined.expected_slowdown_pct) == (0.0, 0.0)
    assert governor.decide({"family": "gpt-neox", "layers": 4.0}).setting == 1300.5
    assert governor.decide({"family": "gpt-neox", "layers": 2.0}).setting == 1300.5  # 4 / 2
    assert governor.decide({"family": "gpt-neox", "layers": 1.9}).reason.endswith(": layers")
    kept = governor.decide({"family": "gpt-neox", "layers": 99.0})
    assert (kept.setting, kept.abstained) == (MAXN, False)
    for tolerated, abstained in ((0.09, True), (0.1, False)):
        document = dict(governor.document) | {"abstain": {"beyond": 2.0, "tolerated_loss_pct": tolerated}}
        document["digest"] = document_digest(document)
        lenient = parse_governor(canonical_json(document))
        assert lenient.decide({"family": "bert", "layers": 12.0}).abstained is abstained


def refuse(change, says: str) -> None:  # type: ignore[no-untyped-def]
    """Apply a change, give the file a fresh digest, and demand that it is refused all the same."""
    document = json.loads(TEXT)
    change(document)
    document["digest"] = document_digest(document)
    with pytest.raises(IntegrityError, match=says) as caught:
        parse_governor(canonical_json(document))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema_version=2), "schema version"),
        (lambda d: d.update(settings_hz=[1300500000, 510000000, "maxn"]), "unsorted"),
        (lambda d: d.update(settings_hz=[510000000, 510000000, "maxn"]), "duplicates"),
        (lambda d: d.update(settings_hz=["maxn"]), "empty"),
        (lambda d: d["nodes"][1].update(setting_hz=99), "not a clock"),
        (lambda d: d["nodes"][1].update(setting_hz=612000000), "outside its own clock table"),
        (lambda d: d["nodes"][1].update(setting_hz=True), "not a clock"),
        (lambda d: d["nodes"][2].update(left=2), "points to node 2"),
        (lambda d: d["nodes"][2].update(left=0), "points to node 0"),
        (lambda d: d["nodes"][2].update(left=9), "points to node 9"),
        (lambda d: d["nodes"][2].update(left=1), "points to node 1"),
        (lambda d: d["nodes"][2].update(left=4), "reached twice or never"),
        (lambda d: d["nodes"].append(d["nodes"][1]), "reached twice or never"),
        (lambda d: d["nodes"][0].update(feature="hidden"), "not among its features"),
        (lambda d: d["features"][1].update(name="depth"), "unknown feature"),
        (lambda d: d["features"][1].pop("default"), "default"),
        (lambda d: d["nodes"][1].update(rel_energy=[1.0]), "does not match"),
        (lambda d: d["nodes"][1].update(n=0), "no training workloads"),
        (lambda d: d.update(nodes=[]), "no nodes"),
        (lambda d: d.update(provenance="guessed"), "provenance"),
        (lambda d: d.update(fallback_hz=510000000), "fallback"),
        (lambda d: d.update(baseline="best"), "baseline"),
        (lambda d: d.pop("board"), "'board'"),
        (lambda d: d.update(abstain={"beyond": 0.9}), "less than 1"),
        (lambda d: d.update(abstain=None), "abstention"),
        (lambda d: d.update(abstain={}), "abstention"),
        (lambda d: d.update(abstain={"beyond": 2, "tolerated_loss_pct": -1}), "less than 0"),
        (lambda d: d.update(abstain={"beyond": 2, "tolerated_loss_pct": "much"}), "tolerated_loss_pct"),
        (lambda d: d["nodes"][1].update(saving_interval_pct=[1.0]), "saving_interval_pct"),
        (lambda d: d["nodes"][1].update(saving_interval_pct=["a", 1.0]), "saving"),
        (lambda d: d["nodes"][1].update(regret_bound_pct="much"), "regret_bound_pct"),
    ],
)
def test_refused_even_with_a_matching_digest(change, says: str) -> None:  # type: ignore[no-untyped-def]
    refuse(change, says)


@pytest.mark.parametrize(
    "text", ["", "null", "[]", "{}", TEXT[:-30], TEXT.replace("0.9,", "NaN,", 1), "[" * 100_000]
)
def test_what_is_no_governor(text: str) -> None:
    with pytest.raises(IntegrityError):
        parse_governor(text)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(TEXT) - 1), st.characters(codec="ascii"))
def test_no_changed_character_gets_through(place: int, character: str) -> None:
    """The digest covers everything: a changed byte is refused, or changed nothing (white space between tokens)."""
    changed = TEXT[:place] + character + TEXT[place + 1 :]
    try:
        governor = parse_governor(changed)
    except IntegrityError:
        return
    assert governor.document == DOCUMENT


def test_the_schema_describes_the_file() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    from schemas import schema

    jsonschema.validate(json.loads(TEXT), schema("governor"))
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**json.loads(TEXT), "provenance": "guessed"}, schema("governor"))


def test_a_decision_takes_microseconds_and_the_largest_tree_is_small() -> None:
    """Eight leaves, twelve settings, five features, all that a leaf may carry; the bar is 50 us, tenfold here."""
    settings_ = (*(306.0 + 90.0 * i for i in range(11)), MAXN)
    names = ("layers", "hidden", "seq_len", "gpu_util_ref_pct")
    curve = tuple(round(0.71234 + 0.02345 * i, 5) for i in range(12))
    slowest = tuple(round(1.712 + 0.023 * i, 3) for i in range(12))
    full = Leaf(306.0, 3, 21.12345, (5.12345, 15.12345), curve, curve, (-5.12345, 25.12345), 3.12345, slowest)
    nodes: list[Split | Leaf] = [Split(names[i % 4], 10.0 + i, None, 2 * i + 1, 2 * i + 2) for i in range(7)]
    ranges = tuple(FeatureRange(n, "units", "number", 1.23456, 99.98765, (), 12.34567) for n in names)
    category = FeatureRange("family", "", "category", None, None, ("bert", "deberta-v2", "gpt-neox"), "bert")
    more = {"settings": settings_, "features": (category, *ranges), "tree": Tree([*nodes, *[full] * 8])}
    document = governor_document(**{**ARGUMENTS, **more, "abstain_beyond": 1.5})
    text = canonical_json(document)
    assert len(text.encode()) <= 8000
    governor = parse_governor(text)
    features = {"family": "bert", "layers": 12.0, "hidden": 13.0, "seq_len": 14.0, "gpu_util_ref_pct": 15.0}
    took = []
    for _ in range(300):
        begin = time.perf_counter()
        governor.decide(features)
        took.append(time.perf_counter() - begin)
    assert sorted(took)[150] <= 10 * 50e-6
