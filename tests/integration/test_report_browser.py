"""The report page in a real browser: no error in its console, filters and read-outs that work, no page wider than a phone."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sklearn")
from reports import write_reports
from synthetic import rows

from wattune.core.settings import setting_label
from wattune.stages.report import PAGE, main, read_facts

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium here (apt-get install chromium)"),
]

DRIVER = """
<script>
(async () => {
  const told = {};
  const shown = () => [...document.querySelectorAll(".card")].filter((card) => !card.hidden).map((card) => card.dataset.workload);
  const rows = () => [...document.querySelectorAll(".pane:first-child .heat .work")].filter((row) => row.checkVisibility()).length;
  const set = (name, value) => {
    const box = document.querySelector(`[data-filter=${name}]`);
    box.value = value;
    box.dispatchEvent(new Event("input", { bubbles: true }));
  };
  told.filters = !document.getElementById("filters").hidden;
  told.all = shown().length;
  set("size", "small");
  told.small = shown();
  told.rows = rows();
  set("task", "mnli");
  told.both = shown();
  told.said = document.querySelector("#filters output").textContent;
  document.querySelector("#filters button").click();
  await new Promise((done) => setTimeout(done, 50));
  told.reset = shown().length;
  set("text", "  BASE-r ");
  told.found = shown();
  set("text", "");

  const card = document.querySelector(".card");
  const drawing = card.querySelector("svg.curves");
  drawing.focus();
  told.focused = document.activeElement === drawing;
  const key = (name) => drawing.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true }));
  key("ArrowRight");
  key("ArrowRight");
  told.second = card.querySelector(".readout").textContent;
  const box = drawing.getBoundingClientRect();
  drawing.dispatchEvent(new PointerEvent("pointermove", { clientX: box.right, clientY: box.top + 9, bubbles: true }));
  told.last = card.querySelector(".readout").textContent;
  told.cursor = drawing.querySelectorAll(".cursor").length;
  key("Escape");
  told.resting = card.querySelector(".readout").textContent;

  const visible = () => [...document.querySelectorAll("#policies .pane")].filter((pane) => pane.checkVisibility()).length;
  told.panes = [visible()];
  document.querySelectorAll("#policies input")[1].click();
  told.panes.push(visible());

  location.hash = "#" + [...document.querySelectorAll(".card")].at(-1).id;
  await new Promise((done) => setTimeout(done, 50));
  told.unfolded = [...document.querySelectorAll("details.group")].at(-1).open;

  const frame = document.createElement("iframe");
  frame.width = 360;
  const loaded = new Promise((done) => { frame.onload = done; });
  frame.srcdoc = document.documentElement.outerHTML.replace(/<script>[^]*/, "");
  document.body.append(frame);
  await loaded;
  const inner = frame.contentDocument.documentElement;
  told.phone = [inner.clientWidth, inner.scrollWidth];
  frame.remove();
  document.body.dataset.told = JSON.stringify(told);
})();
</script>
"""


def browse(page: Path, profile: Path, *options: str) -> tuple[str, str]:
    """The page after its scripts ran, and what the console said."""
    command = [
        *(
            str(BROWSER),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--enable-logging=stderr",
        ),
        *(f"--user-data-dir={profile}", "--virtual-time-budget=3000", "--window-size=1200,900", *options),
        *("--dump-dom", page.as_uri()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    write_reports(folder, rows(models=["bert-base", "pythia-31m"]), regret=False)
    main(folder)
    return folder


def test_no_error_in_the_console(root: Path, tmp_path: Path) -> None:
    seen, console = browse(root / PAGE, tmp_path)
    assert console == ""
    assert 'tabindex="0"' in seen.split('class="curves"')[1].split(">")[0]  # the script ran


def test_another_script_is_refused_and_everything_is_there_without(root: Path, tmp_path: Path) -> None:
    copy = tmp_path / "changed.html"
    copy.write_text((root / PAGE).read_text().replace('"use strict";', '"use strict"; // changed'))
    seen, console = browse(copy, tmp_path / "profile")
    assert "Content Security Policy" in console
    (form,) = re.findall("<form[^>]*>", seen)
    assert " hidden" in form  # a filter that cannot work is not offered
    assert seen.count("<article") == 12
    assert seen.count("<details") > 12


def test_filters_read_outs_and_a_phone(root: Path, tmp_path: Path) -> None:
    text = (root / PAGE).read_text()
    driven = tmp_path / "driven.html"
    driven.write_text(re.sub(r"<meta http-equiv[^>]*>", "", text).replace("</body>", DRIVER + "</body>"))
    seen, console = browse(driven, tmp_path / "profile")
    assert console == ""
    found = re.search(r'data-told="([^"]*)"', seen)
    assert found, "the driver did not finish"
    told: dict[str, Any] = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
    facts = read_facts(root)
    small = [work.id for work in facts.works if work.size == "small"]
    assert told["filters"]
    assert (told["all"], told["reset"]) == (12, 12)
    assert told["small"] == small
    assert told["rows"] == len(small) == 6
    assert told["both"] == ["pythia-31m-mnli"]
    assert told["said"] == "1 of 12 workloads"
    assert told["found"] == ["bert-base-rte"]
    work = facts.works[0]
    second = work.curve.settings[1]
    assert told["focused"]
    assert told["second"].startswith(f"{setting_label(second)} MHz: ")
    assert f"{work.curve.regret_pct(second):.2f} % above the best" in told["second"]
    assert told["last"].startswith("maxn: ")
    assert "picked by maxn" in told["last"]
    assert told["cursor"] == 1
    assert told["resting"].startswith(f"best {setting_label(work.curve.oracle)}")
    assert told["panes"] == [1, 1]
    assert told["unfolded"]
    assert told["phone"][1] <= told["phone"][0] <= 360, "the page is wider than a phone"
