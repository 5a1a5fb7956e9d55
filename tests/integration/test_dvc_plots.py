"""`dvc plots` without a network: the page brings its scripts along, and compares what a change did."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("dvc")

sys.path.insert(0, str(Path(__file__).parents[1]))
from browser import CHROMIUM, Browser

REPOSITORY = Path(__file__).parents[2]
POLICIES = "policy,saving_pct\nmaxn,0\nmaxn,0\nmlg,{0}\nmlg,{1}\n"
CURVES = "workload,gpu_mhz,rel_energy\na,,1.5\na,306,1.2\na,612,1.0\na,1020,1.3\n"


def run(root: Path, *command: str) -> str:
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with our plots' definitions and configuration, and small tables in two revisions."""
    folder = tmp_path / "repo"
    (folder / ".dvc").mkdir(parents=True)
    for name in ("config", "plots.html"):
        shutil.copy(REPOSITORY / ".dvc" / name, folder / ".dvc" / name)
    shutil.copytree(REPOSITORY / ".dvc/plots", folder / ".dvc/plots")
    import yaml

    ours = yaml.safe_load((REPOSITORY / "dvc.yaml").read_text())
    plots = [plot for plot in ours["plots"] if isinstance(plot, dict) and "confusion_of_levels" not in plot]
    (folder / "dvc.yaml").write_text(yaml.safe_dump({"plots": plots}))
    (folder / "reports/evaluate").mkdir(parents=True)
    (folder / "reports/evaluate/curves.csv").write_text(CURVES)
    (folder / "reports/evaluate/policies.csv").write_text(POLICIES.format(20, 24))
    git = ("git", "-c", "user.name=test", "-c", "user.email=test@example.org")
    run(folder, "git", "init", "-q")
    run(folder, *git, "add", "-A")
    run(folder, *git, "commit", "-qm", "first")
    (folder / "reports/evaluate/policies.csv").write_text(POLICIES.format(10, 14))
    return folder


@pytest.mark.long
@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (apt-get install chromium)")
def test_plots_of_two_revisions_without_a_network(root: Path, tmp_path: Path) -> None:
    run(root, sys.executable, "-m", "dvc", "plots", "diff", "HEAD", "-o", "page")
    page = Browser(tmp_path / "profile")
    try:
        page.open((root / "page/index.html").as_uri())
        page.wait_for("document.querySelectorAll('canvas').length === 2")
        drawn = "[...document.querySelectorAll('canvas')].map((c) => [c.width, c.height])"
        assert all(width > 600 and height > 50 for width, height in page.run(drawn))
        # The pixels' colours: both revisions are drawn, so more than axes and text are there.
        colours = (
            "[...document.querySelectorAll('canvas')].map((c) => { const d = c.getContext('2d').getImageData(0, 0, c.width,"
            " c.height).data; const s = new Set(); for (let i = 0; i < d.length; i += 4) if (Math.max(d[i], d[i+1], d[i+2])"
            " - Math.min(d[i], d[i+1], d[i+2]) > 80) s.add([d[i], d[i+1], d[i+2]].join()); return s.size; })"
        )
        assert all(number >= 1 for number in page.run(colours))
        assert page.errors == []
        page.screenshot(tmp_path / "plots.png")
    finally:
        page.close()


def test_the_frame_names_no_address_to_load_from_and_carries_the_licences() -> None:
    text = (REPOSITORY / ".dvc/plots.html").read_text()
    head = text[: text.index("<script>")]
    assert text.count("{plot_divs}") == 1
    assert "<script src" not in text
    assert "sourceMappingURL" not in text
    assert "Redistribution and use in source and binary forms" in head
    assert all(f"{name} " in head for name in ("vega", "vega-lite", "vega-embed", "d3"))
