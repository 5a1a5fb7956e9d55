"""MLflow's pages in a real browser: what a person finds on them after `publish`, as `make ui` serves them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("flask")

sys.path.insert(0, str(Path(__file__).parents[1]))
from browser import CHROMIUM, Browser
from facts import WORKLOADS, write_facts
from wattune.stages.card import main as write_card
from wattune.tracking.publish import publish

pytestmark = [
    pytest.mark.server,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (apt-get install chromium)"),
]

REPORT = "<!doctype html><title>Report</title><h1>What the report says</h1>\n"
FIGURES = Path(__file__).parents[2] / "docs/figures"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pages")
    write_facts(folder)
    write_card(folder)
    (folder / "reports/index.html").write_text(REPORT)
    shutil.copy(FIGURES / "policies.png", folder / "reports/evaluate/figures/policies.png")
    return folder


@pytest.fixture(scope="module")
def registration(root: Path) -> dict[str, Any]:
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    return publish(root)


@pytest.fixture(scope="module")
def comparison(root: Path, registration: dict[str, Any], free_port: int) -> Iterator[str]:
    """The address that `make ui` prints for the comparison."""
    served = subprocess.Popen(
        [sys.executable, "-m", "wattune.tracking.ui", "--port", str(free_port)],
        cwd=root,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert served.stdout is not None
        assert served.stdout.readline().startswith(f"MLflow is at http://127.0.0.1:{free_port} ")
        said = served.stdout.readline()
        assert said.startswith("Policies of wattune/test-board/simulated, side by side: ")
        yield said.split(": ", 1)[1].strip()
    finally:
        served.terminate()
        served.wait(timeout=30)


@pytest.fixture(scope="module")
def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def page(comparison: str, tmp_path: Path) -> Iterator[Browser]:
    """A browser that has been here before: MLflow's own greetings are put away."""
    running = Browser(tmp_path / "profile")
    try:
        running.open(comparison.split("#")[0])
        running.wait_for_text("Experiments")
        for key, value in (("fab.autoOpenedOnFirstLoad", "true"), ("panelOpen", "false")):
            running.run(f"localStorage.setItem('mlflow.assistant.{key}_v1', '{value}')")
        yield running
        assert running.errors == []
    finally:
        running.close()


def pictures(page: Browser) -> list[list[int]]:
    """Width and height of every picture in Markdown that has loaded."""
    script = "[...document.images].filter((i) => i.src.includes('get-artifact')).map((i) => [i.naturalWidth, i.naturalHeight])"
    found: list[list[int]] = page.run(script)
    return found


def wait_for_list(page: Browser, *names: str) -> None:
    """Wait until the list of runs shows these, from top to bottom, and no other."""
    page.wait_for(
        "JSON.stringify([...document.querySelectorAll('.ag-row a')].filter((a) => a.href.includes('/runs/'))"
        ".map((a) => [a.getBoundingClientRect().y, a.innerText.trim()]).sort(([a], [b]) => a - b)"
        f".map(([y, name]) => name)) === JSON.stringify({json.dumps(names)})"
    )


def test_the_comparison_opens_ready_to_read(page: Browser, comparison: str, tmp_path: Path) -> None:
    """One click from `make ui`: these policies and no other run, in order, headline charts with their values."""
    page.open(comparison)
    page.wait_for_text("Policies side by side", "3 matching runs")
    wait_for_list(page, "01 maxn", "05 mlg", "09 oracle")
    titles = ["mean_saving_pct", "mean_slowdown_pct", "mean_regret_pct"]
    seen = page.wait_for_text(*titles, "17.00", "19.00", "21.00")
    assert [seen.index(title) for title in titles] == sorted(seen.index(title) for title in titles)
    assert seen.index("mean_regret_pct") < seen.index("large")
    assert "leave-one-out" not in seen
    page.wait_for("document.querySelector('.parcoords, [class*=parcoord]') !== null")
    page.screenshot(tmp_path / "chart.png")


def test_the_table_and_what_comparing_all_shows(page: Browser, comparison: str, tmp_path: Path) -> None:
    page.open(comparison.replace("=CHART", "=TABLE"))
    seen = page.wait_for_text("01 maxn", "09 oracle", "mean_saving_pct", "max_regret_pct")
    columns = page.run(
        "[...document.querySelectorAll('.ag-header-cell')].map((e) => [e.getBoundingClientRect().x, e.innerText.trim()])"
        ".filter(([x, name]) => name.endsWith('_pct')).sort(([a], [b]) => a - b).map(([x, name]) => name)"
    )
    assert columns[:3] == ["mean_saving_pct", "mean_slowdown_pct", "mean_regret_pct"]
    assert {"17", "19", "21"} <= set(seen.split())
    page.screenshot(tmp_path / "table.png")
    page.click_on(".ag-header-select-all")
    page.click_on("button", "Compare")
    seen = page.wait_for_text(
        "Comparing 3 Runs from 1 Experiment", "Parallel Coordinates Plot", "large/mean_saving_pct"
    )
    details = page.text()[page.text().index("Run Name:") :]
    assert details.index("01 maxn") < details.index("05 mlg") < details.index("09 oracle")
    page.wait_for_text("01 maxn 05 mlg 09 oracle policy")  # the axis of the parallel coordinates, in order
    page.screenshot(tmp_path / "compare.png")


def test_every_workload_side_by_side(page: Browser, comparison: str, tmp_path: Path) -> None:
    """MLflow's table view: a row per workload, a column per policy."""
    page.open(comparison.replace("=CHART", "=ARTIFACT"))
    seen = page.wait_for_text(
        "Table: workloads.json", "Group by: workload", "Compare: setting", WORKLOADS[0][0]
    )
    assert all(name in seen for name, *_ in WORKLOADS[:2])
    page.screenshot(tmp_path / "workloads.png")


def test_the_search_is_a_view_of_its_own(page: Browser, comparison: str, tmp_path: Path) -> None:
    page.open(comparison.replace("wattune-policies", "wattune-search"))
    page.wait_for_text("The search for the tree", "loo_regret_pct", "2 matching runs")
    wait_for_list(page, "tree 01", "tree 00")  # the one of least regret first
    page.screenshot(tmp_path / "search.png")


def test_the_experiment_says_where_to_click(
    page: Browser, comparison: str, registration: dict[str, Any]
) -> None:
    page.open(comparison)
    page.wait_for_text("Compare the policies", "the report page", "09 oracle")
    links = page.run("[...document.querySelectorAll('a')].map((a) => [a.innerText, a.getAttribute('href')])")
    named = dict(links)
    assert comparison.endswith(named["Compare the policies"])
    page.open(comparison.split("#")[0] + named["the report page"])
    page.wait_for_text("report.html", "model_card.md", "figures")
    frame = page.wait_for(
        "[...document.querySelectorAll('iframe')].map((f) => f.src || f.srcdoc).find(Boolean)"
    )
    assert frame
    page.open(comparison.split("#")[0] + named["the registered model"])
    page.wait_for_text(registration["model"], "Version 1", "challenger", "champion")


def test_a_run_tells_its_story(
    page: Browser, comparison: str, registration: dict[str, Any], tmp_path: Path
) -> None:
    page.open(f"{comparison.split('#')[0]}#/experiments/1/runs/{registration['runs']['mlg']}")
    seen = page.wait_for_text(
        "05 mlg", "Simulated: a modelled board", "mean_saving_pct", registration["model"]
    )
    assert "saving 17.0 [15.0, 19.0] % (worst 12.0 %)" in seen
    names = re.findall(r"^(?:large/|small/|ci95/)?(?:mean|min|max|p95)_\w+$", page.text(), re.MULTILINE)
    assert names[0] == "mean_saving_pct"
    page.screenshot(tmp_path / "run.png")


def test_the_model_page_shows_card_tree_gate_and_lineage(
    page: Browser, comparison: str, root: Path, registration: dict[str, Any], tmp_path: Path
) -> None:
    page.open(f"{comparison.split('#')[0]}#/models/{registration['model']}/versions/1")
    seen = page.wait_for_text("Governor mlg for test-board (simulated)", "Lineage", "@ champion", "The tree")
    lock = json.loads((root / "dvc.lock").read_text())
    governor = json.loads((root / "models/governor.json").read_text())
    for expected in (
        "SIMULATED",
        "layers <= 7.5",
        "-> 816 MHz",
        "verdict: accepted",
        "17 against 10",
        registration["fingerprints"]["evaluate"],
        registration["fingerprints"]["train"],
        lock["stages"]["features"]["outs"][0]["md5"],
        governor["digest"],
        "17.0 [15.0, 19.0]",
    ):
        assert expected in seen, expected
    deadline = time.monotonic() + 30
    while not any(width > 500 for width, _ in pictures(page)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert pictures(page)[0][0] > 500, "the picture did not load"
    page.screenshot(tmp_path / "model.png")
