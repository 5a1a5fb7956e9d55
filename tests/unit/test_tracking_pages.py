"""What MLflow's pages say, without a server."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("yaml")

sys.path.insert(0, str(Path(__file__).parents[1]))
from facts import write_facts
from wattune.core.policies import POLICY_ORDER
from wattune.tracking import pages
from wattune.tracking.results import Results, read_results

LINEAGE = [("git commit", "c" * 40), ("data, features.csv", "d" * 32)]


@pytest.fixture
def results(tmp_path: Path) -> Results:
    write_facts(tmp_path)
    return read_results(tmp_path)


def test_names_sort_as_the_tables_do() -> None:
    """Those nobody named come last, and ten policies are no surprise."""
    names = [pages.run_name(policy) for policy in (*POLICY_ORDER, "somebody-elses")]
    assert names == sorted(names)
    assert len({pages.run_color(policy) for policy in POLICY_ORDER}) == len(POLICY_ORDER)
    assert pages.run_color("somebody-elses") is None


def test_headlines_come_first_and_unknown_ones_are_absent(results: Results) -> None:
    known = pages.run_metrics(results.metrics["mlg"])
    assert list(known)[: len(pages.HEADLINES)] == list(pages.HEADLINES)
    assert known["ci95/mean_saving_high_pct"] == 19.0
    blank = {"all": results.metrics["mlg"]["all"] | {"mean_saving_pct": None, "mean_saving_ci95": None}}
    assert not [name for name in pages.run_metrics(blank) if "mean_saving" in name]


def test_every_chart_and_column_of_the_view_is_a_metric_that_is_logged(results: Results) -> None:
    state = json.loads(pages.policies_view("tags.policy = 'x'"))
    logged = set(pages.run_metrics(results.metrics["mlg"]))
    drawn = {chart["metricKey"] for chart in state["compareRunCharts"] if chart["type"] == "BAR"}
    assert drawn <= logged
    assert {column[9:-1] for column in state["selectedColumns"] if column.startswith("metrics.")} <= logged
    sections = {section["uuid"] for section in state["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in state["compareRunCharts"]} <= sections
    assert len({chart["uuid"] for chart in state["compareRunCharts"]}) == len(state["compareRunCharts"])


@pytest.mark.parametrize("longer", ["tree", "gate", "neither"])
def test_a_description_never_exceeds_mlflows_limit(
    results: Results, longer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit is named, and the lineage stays whatever else is long."""
    if longer == "gate":
        rule = results.decision["rules"][0]
        results = replace(results, decision=results.decision | {"rules": [rule] * 200})
    if longer == "tree":
        monkeypatch.setattr(pages, "tree_section", lambda results: "x" * 6000)
    text = pages.description(results, LINEAGE, "#/card", "![picture](somewhere)")
    assert len(text) <= pages.LONGEST_DESCRIPTION
    assert "c" * 40 in text
    assert ("Too long for here" in text) == (longer != "neither")
    if longer != "neither":
        assert f"Too long for here: the {longer}." in text


def test_a_view_that_did_not_change_keeps_its_bytes() -> None:
    first = pages.view_tag("Name", "{}", None, 5)
    assert pages.view_tag("Name", "{}", first, 9) == first
    changed = json.loads(pages.view_tag("Name", '{"a": 1}', first, 9))
    assert (changed["createdAt"], changed["updatedAt"]) == (5, 9)
    assert json.loads(pages.view_tag("Name", "{}", "somebody's own", 9))["createdAt"] == 9


def test_the_table_has_numbers_not_texts(results: Results) -> None:
    rows = list(pages.table_rows(results.rows, "mlg"))
    assert [row["workload"] for row in rows] == ["bert-base-cola", "bert-base-rte", "bert-small-cola"]
    assert rows[0]["saving_pct"] == pytest.approx(30.0)
    (row,) = pages.table_rows([results.rows[0] | {"slowdown_pct": ""}], "maxn")
    assert row["slowdown_pct"] is None
