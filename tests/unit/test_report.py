"""The report page: every number is the pipeline's, no name breaks it, nothing is missing without being said."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("sklearn")
from reports import RECORDED, SMALL, write_reports
from synthetic import rows

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError, IntegrityError
from wattune.core.policies import POLICY_ORDER
from wattune.core.settings import setting_label
from wattune.core.tree import Leaf
from wattune.report.axes import ticks
from wattune.report.facts import PROFILES, VALIDATION, Work, pareto
from wattune.report.marks import MARKS, OTHER
from wattune.report.markup import exact, number, significant, tag
from wattune.report.workloads import _flat_spans, _Places
from wattune.stages.report import PAGE, main, read_facts

VOID = {"meta", "input", "br"}
SRC = Path(__file__).parents[2] / "src"


@dataclass
class Node:
    name: str
    attributes: dict[str, str | None]
    parent: Node | None
    children: list[Node | str] = field(default_factory=list)

    def walk(self) -> Iterator[Node]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def find(self, name: str, **attributes: str) -> list[Node]:
        wanted = {key.rstrip("_").replace("_", "-"): value for key, value in attributes.items()}
        return [
            node
            for node in self.walk()
            if node.name == name and all(node.attributes.get(k) == v for k, v in wanted.items())
        ]

    def near(self, attribute: str) -> str | None:
        """The attribute of this element or of the nearest one around it."""
        node: Node | None = self
        while node is not None:
            if attribute in node.attributes:
                return node.attributes[attribute]
            node = node.parent
        return None

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)


class Page(HTMLParser):
    """The page as a tree; elements that are not closed in order fail."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.at = Node("", {}, None)
        self.feed(text)
        self.close()
        assert self.at is self.root, f"<{self.at.name}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute twice in <{tag}>"
        node = Node(tag, dict(attrs), self.at)
        self.at.children.append(node)
        if tag not in VOID:
            self.at = node

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.at.children.append(Node(tag, dict(attrs), self.at))

    def handle_endtag(self, tag: str) -> None:
        assert self.at.name == tag, f"</{tag}> closes <{self.at.name}>"
        assert self.at.parent is not None
        self.at = self.at.parent

    def handle_data(self, data: str) -> None:
        self.at.children.append(data)


def made(root: Path) -> Node:
    main(root)
    return Page((root / PAGE).read_text()).root


def table_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], Node]:
    """A page of 12 held-out workloads, with everything."""
    root = tmp_path_factory.mktemp("full")
    metrics = write_reports(root)
    return root, metrics, made(root)


def shown(text: str) -> float:
    return float(text.replace("−", "-"))


def result_of(metrics: dict[str, Any], policy: str, group: str) -> dict[str, Any]:
    groups = metrics[policy]
    return groups["tasks"][group[5:]] if group.startswith("task ") else groups[group]


def check_metrics(metrics: dict[str, Any], page: Node) -> set[tuple[str, str, str]]:
    """Every number that names a figure of metrics.json is that figure; returns the figures seen."""
    seen = set()
    for node in page.walk():
        key, policy, group = (
            node.attributes.get("data-key"),
            node.near("data-policy"),
            node.near("data-group"),
        )
        if key is None or policy is None or group is None or "data-value" not in node.attributes:
            continue
        name, _, place = key.partition(".")
        value = result_of(metrics, policy, group)[name]
        value = value[int(place)] if place else value
        assert json.loads(node.attributes["data-value"] or "") == value, (policy, group, key)
        decimals = len(node.text.partition(".")[2])
        assert shown(node.text) == pytest.approx(value, abs=0.5001 * 10**-decimals), (policy, group, key)
        seen.add((policy, group, key))
    return seen


def test_every_figure_of_the_metrics_is_on_the_page_and_is_itself(
    full: tuple[Path, dict[str, Any], Node],
) -> None:
    _, metrics, page = full
    seen = check_metrics(metrics, page)
    wanted = set()
    for policy in (p for p in metrics if p != "_meta"):
        groups = [g for g in metrics[policy] if g != "tasks"] + [
            f"task {t}" for t in metrics[policy]["tasks"]
        ]
        for group in groups:
            for key, value in result_of(metrics, policy, group).items():
                keys = [f"{key}.{i}" for i in range(2)] if isinstance(value, list) else [key]
                wanted |= {(policy, group, k) for k in keys}
    assert seen == wanted
    assert len(wanted) > 500


def test_intervals_in_the_drawings_are_those_of_the_metrics(full: tuple[Path, dict[str, Any], Node]) -> None:
    _, metrics, page = full
    texts = [n for n in page.find("text", class_="value") if n.near("data-group") == "all"]
    keys = {"mean_saving_pct": (1, "mean_saving_ci95"), "mean_slowdown_pct": (1, "mean_slowdown_ci95")}
    keys["mean_regret_pct"] = (2, "mean_regret_ci95")
    assert len(texts) == 3 * (len(metrics) - 1)
    for node in texts:
        key = node.find("tspan")[0].attributes["data-key"] or ""
        digits, interval = keys[key]
        result = metrics[node.attributes["data-policy"] or ""]["all"]
        values = [result[key], *result[interval]]
        assert node.text == "{} [{}, {}]".format(*(number(v, digits) for v in values))


def test_the_heat_maps_are_the_table_of_policies(full: tuple[Path, dict[str, Any], Node]) -> None:
    root, metrics, page = full
    table = {(r["policy"], r["workload"]): r for r in table_of(root / "reports/evaluate/policies.csv")}
    columns = []
    for heat in page.find("table", class_="heat"):
        column = heat.attributes["data-column"] or ""
        policies = [th.attributes["data-policy"] or "" for th in heat.find("th", scope="col")[1:]]
        lines = heat.find("tr", class_="work")
        assert [line.attributes["data-workload"] for line in lines] == list(
            dict.fromkeys(w for _, w in table)
        )
        for line in lines:
            for policy, cell in zip(policies, line.find("td"), strict=True):
                value = float(table[policy, line.attributes["data-workload"] or ""][column])
                assert json.loads(cell.attributes["data-value"] or "") == value
                decimals = len(cell.text.partition(".")[2])
                assert shown(cell.text) == pytest.approx(value, abs=0.5001 * 10**-decimals)
        columns.append((column, len(policies)))
    n = len(metrics) - 1
    assert columns == [("saving_pct", n - 1), ("regret_pct", n), ("slowdown_pct", n - 1)]


def test_values_and_choices_of_the_cards_are_those_of_the_tables(
    full: tuple[Path, dict[str, Any], Node],
) -> None:
    root, _, page = full
    curves: dict[str, list[dict[str, str]]] = {}
    for row in table_of(root / "reports/evaluate/curves.csv"):
        curves.setdefault(row["workload"], []).append(row)
    chosen: dict[tuple[str, str], list[str]] = {}
    for row in table_of(root / "reports/evaluate/policies.csv"):
        chosen.setdefault((row["workload"], row["setting"]), []).append(row["policy"])
    cards = page.find("article")
    assert [c.attributes["data-workload"] for c in cards] == list(curves)
    for card in cards:
        name = card.attributes["data-workload"] or ""
        lines = [[cell.text for cell in row.children] for row in card.find("tbody")[0].children]  # type: ignore[union-attr]
        for line, row in zip(lines, curves[name], strict=True):
            values = [significant(float(row[k])) for k in ("time_s", "power_w", "energy_j")]
            above = 100.0 * (float(row["rel_energy"]) - 1.0)
            assert line[:4] == [row["setting"], *values]
            assert shown(line[4]) == pytest.approx(above, abs=0.0052)
            assert sorted(filter(None, line[5].split(", "))) == sorted(chosen.get((name, row["setting"]), []))


def test_means_of_one_clock_for_everything(full: tuple[Path, dict[str, Any], Node]) -> None:
    root, _, page = full
    energies: dict[str, list[tuple[float, str]]] = {}
    base = {}
    for row in table_of(root / "reports/evaluate/curves.csv"):
        energies.setdefault(row["setting"], []).append((float(row["energy_j"]), row["workload"]))
        if row["setting"] == "maxn":
            base[row["workload"]] = float(row["energy_j"])
    dots = page.find("circle", class_="clock")
    assert {d.attributes["data-setting"] for d in dots} == set(energies)
    for dot in dots:
        saved = [100 * (1 - e / base[w]) for e, w in energies[dot.attributes["data-setting"] or ""]]
        assert float(dot.attributes["data-value"] or "") == pytest.approx(sum(saved) / len(saved), abs=1e-5)


def test_leaves_and_doubts_are_the_governors(full: tuple[Path, dict[str, Any], Node]) -> None:
    root, _, page = full
    facts = read_facts(root)
    assert [g.policy for g in facts.governors] == ["mlg", "mlg-regret"]
    for governor in facts.governors:
        (tree,) = [n for n in page.walk() if n.attributes.get("data-governor") == governor.policy]
        leaves = [n for n in tree.walk() if "data-leaf" in n.attributes]
        assert len(leaves) == len(governor.tree.leaves)
        assert (
            sum(int(re.search(r"held out: (\d+)", n.text)[1]) for n in leaves if "held out" in n.text) == 12
        )  # type: ignore[index]
        for node in leaves:
            leaf = governor.tree.nodes[int(node.attributes["data-leaf"] or "")]
            assert isinstance(leaf, Leaf)
            clock = setting_label(leaf.setting)
            assert node.text.startswith(clock if clock == "maxn" else f"{clock} MHz")
            assert f"{leaf.n} training workload" in node.text
            assert f"saving {number(leaf.expected_saving_pct)} %" in node.text
        (doubts,) = [n for n in page.walk() if n.attributes.get("data-doubts") == governor.policy]
        outside = {w.id for w in facts.works if not governor.decide(w.features).in_range}
        assert outside == {
            "bert-base-rte",
            "bert-base-cola",
            "pythia-31m-rte",
            "pythia-31m-cola",
        }  # the two ends of seq_len
        assert outside <= {a.text for a in doubts.find("a")}
        declined = sum(governor.decide(w.features).abstained for w in facts.works)
        assert (f"Declined {declined}" in doubts.text) == (governor.abstain_beyond is not None)


def test_simulated_is_shouted_and_only_then(full: tuple[Path, dict[str, Any], Node], tmp_path: Path) -> None:
    _, _, page = full
    (banner,) = page.find("p", class_="banner simulated")
    assert banner.text.startswith("SIMULATED")
    assert "simulated" in page.find("title")[0].text
    write_reports(tmp_path, rows(**SMALL, provenance="measured", noise_free=False), regret=False)
    page = made(tmp_path)
    assert not page.find("p", class_="banner simulated")
    assert "SIMULATED" not in page.find("body")[0].text
    assert page.find("p", class_="banner measured")


def test_the_same_data_give_the_same_bytes(full: tuple[Path, dict[str, Any], Node]) -> None:
    root, _, _ = full
    first = (root / PAGE).read_bytes()
    for seed in ("1", "2"):
        env = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(SRC)}
        (root / PAGE).unlink()
        subprocess.run(
            [sys.executable, "-m", "wattune.stages.report"],
            cwd=root,
            env=env,
            check=True,
            capture_output=True,
        )
        assert (root / PAGE).read_bytes() == first


def test_nothing_is_loaded_from_anywhere(full: tuple[Path, dict[str, Any], Node]) -> None:
    root, _, page = full
    text = (root / PAGE).read_text()
    assert set(re.findall(r"https?://[^\s\"']+", text)) <= {
        "http://www.w3.org/2000/svg"
    }  # a name, nothing is fetched
    assert not re.search(r"@import|url\(|\bsrc=|<link|<iframe|<img|<object", text)
    for node in page.walk():
        assert not [a for a in node.attributes if a.startswith("on")], node.name
        href = node.attributes.get("href")
        assert href is None or href.startswith("#")
    (policy,) = page.find("meta", http_equiv="Content-Security-Policy")
    (script,) = page.find("script")
    digest = base64.b64encode(hashlib.sha256(script.text.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in (policy.attributes["content"] or "")
    assert (policy.attributes["content"] or "").startswith("default-src 'none'")


def test_links_and_labels_lead_somewhere(full: tuple[Path, dict[str, Any], Node]) -> None:
    _, _, page = full
    ids = [n.attributes["id"] for n in page.walk() if "id" in n.attributes]
    assert len(ids) == len(set(ids))
    wanted = {n.attributes["href"] for n in page.walk() if n.attributes.get("href")}
    assert wanted <= {f"#{i}" for i in ids}
    assert {n.attributes["for"] for n in page.find("label") if "for" in n.attributes} <= set(ids)
    assert all(
        n.attributes.get("aria-label") for n in page.walk() if n.attributes.get("role") in ("img", "region")
    )
    classes = {c for n in page.find("use") for c in (n.attributes["class"] or "").split()}
    assert classes <= {f"m{i}" for i in range(len(POLICY_ORDER) + 1)}


def test_the_paper_set_stays_small(tmp_path: Path) -> None:
    write_reports(tmp_path, rows())
    page = made(tmp_path)
    assert len(page.find("article")) == 54
    assert (tmp_path / PAGE).stat().st_size < 1_000_000


HOSTILE = """</script><script>alert(1)</script>"'&amp;<b>{}"""


def test_no_name_breaks_the_page(tmp_path: Path) -> None:
    table = rows(**SMALL)
    for row in table:
        row |= {
            "workload": f"{HOSTILE}{row['workload']}",
            "model": f"{HOSTILE}{row['model']}",
            "task": f"{HOSTILE}{row['task']}",
            "family": f"{HOSTILE}{row['family']}",
            "board": HOSTILE,
            "power_mode": HOSTILE,
            "rails": HOSTILE,
        }
    metrics = write_reports(tmp_path, table, verdict=HOSTILE)
    page = made(tmp_path)
    assert len(page.find("script")) == 1
    assert not [n for n in page.find("b") if "alert" in n.text and "Declined" not in n.text]
    assert {c.attributes["data-workload"] for c in page.find("article")} == {
        r["workload"] for r in table if r["part"] == "held_out"
    }
    assert HOSTILE in page.find("h1")[0].text
    assert HOSTILE in page.find("title")[0].text
    check_metrics(metrics, page)


@pytest.mark.parametrize(
    ("options", "says", "lacks"),
    [
        ({"maxn": False}, "no saving and no slowdown is known", "Saving against MAXN, %"),
        ({"time": False}, "energy cannot be held against time", "Slowdown against MAXN, %"),
        ({"maxn": False, "time": False}, "the source gives no times", "Slowdown against MAXN, %"),
        (RECORDED, "RECORDED BY OTHERS", "SIMULATED"),
        (RECORDED, "each workload was judged by one trained on all the others", "held out:"),
    ],
)
def test_what_is_missing_is_said(tmp_path: Path, options: dict[str, Any], says: str, lacks: str) -> None:
    metrics = write_reports(tmp_path, rows(**SMALL, **options), regret=False)
    page = made(tmp_path)
    body = page.find("body")[0].text
    assert says in body
    assert lacks not in body
    assert "nan" not in body.lower().split()
    assert "None" not in re.sub(r"None of the|None was|None ", "", body)
    check_metrics(metrics, page)


def test_one_workload_and_no_names(tmp_path: Path) -> None:
    table = rows(**SMALL)
    kept = "bert-base-mnli"
    table = [r for r in table if r["part"] == "train" or r["workload"] == kept]
    for row in table:
        row |= {
            "model": "",
            "task": "",
            "family": "",
            "layers": "",
            "seq_len": "",
            "params_m": "",
            "gpu_util_ref_pct": "",
        }
    metrics = write_reports(tmp_path, table)
    page = made(tmp_path)
    assert [c.attributes["data-workload"] for c in page.find("article")] == [kept]
    assert not page.find("form")
    check_metrics(metrics, page)


def test_policies_nobody_named_and_metrics_without_pairs(tmp_path: Path) -> None:
    def alter(metrics: dict[str, Any]) -> None:
        metrics["newcomer"] = metrics["mlg"]
        del metrics["_meta"]["pairs"]
        del metrics["oracle"]["small"]
        metrics["_meta"]["noise_floor_pct"] = None

    metrics = write_reports(tmp_path, regret=False, alter=alter)
    with pytest.raises(IntegrityError, match="different policies"):
        main(tmp_path)
    path = tmp_path / "reports/evaluate/policies.csv"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, *(f"newcomer,{x[4:]}" for x in lines if x.startswith("mlg,"))]) + "\n")
    page = made(tmp_path)
    check_metrics(metrics, page)
    names = [row.attributes["data-policy"] for row in page.find("table", class_="results")[0].find("tr")[1:]]
    assert names == ["maxn", "ffg", "published", "mlg", "oracle", "newcomer"]
    groups = {
        n.attributes["data-group"] for n in page.find("div", class_="pane") if "data-group" in n.attributes
    }
    assert "large" in groups
    assert "small" not in groups


@pytest.mark.parametrize(
    ("file", "text", "error"),
    [
        ("reports/evaluate/curves.csv", None, InputError),
        ("reports/evaluate/curves.csv", "workload,setting\nx,612\n", IntegrityError),
        ("reports/evaluate/metrics.json", "{", InputError),
        ("models/governor.json", "{}", IntegrityError),
        ("models/governor-regret.json", "{}", IntegrityError),
        ("data/features/features.csv", "workload\nother\n", IntegrityError),
        (str(VALIDATION), "[", InputError),
        (str(PROFILES / "bert-base-mnli/612.json"), '{"repeats": ', InputError),
        (str(PROFILES / "bert-base-mnli/612.json"), "[]", InputError),
        (
            str(PROFILES / "bert-base-mnli/612.json"),
            '{"repeats": [], "certificates": [{"window": {}}]}',
            InputError,
        ),
    ],
)
def test_damaged_files_are_one_clear_sentence(
    tmp_path: Path, file: str, text: str | None, error: type
) -> None:
    write_reports(tmp_path)
    path = tmp_path / file
    if text is None:
        path.unlink()
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    with pytest.raises(error):
        main(tmp_path)
    assert not (tmp_path / PAGE).exists()


def test_curves_that_are_no_numbers_are_bad_input(tmp_path: Path) -> None:
    write_reports(tmp_path)
    path = tmp_path / "reports/evaluate/curves.csv"
    head, first, *others = path.read_text().splitlines()
    cells = first.split(",")
    cells[5] = "much"
    path.write_text("\n".join([head, ",".join(cells), *others]) + "\n")
    with pytest.raises(InputError, match="cannot be used"):
        main(tmp_path)


def curve_report(board: str, **changes: Any) -> dict[str, Any]:
    return {
        "board": board,
        "used_for": "calibration",
        "n": 11,
        "mean_err_pct": 0.5,
        "max_err_pct": 1.25,
        "left_out_max_err_pct": None,
        "predicted_mhz": 612.0,
        "measured_mhz": None,
        "regret_pct": 0.0,
        **changes,
    }


def test_validation_shows_this_boards_curves_and_failed_demands(tmp_path: Path) -> None:
    write_reports(tmp_path)
    board = "jetson-agx-orin-64gb"
    document = {
        "sources": {
            "orin_one": curve_report(board),
            "family": {
                "curves": {"orin_two": curve_report(board, max_err_pct=9.0), "other": curve_report("another")}
            },
            "gone": "absent",
        },
        "bars": [
            {"name": "orin_one: max error, %", "value": 1.25, "limit": 4.0, "passed": True},
            {"name": "orin_two: max error, %", "value": 9.0, "limit": 4.0, "passed": False},
            {"name": "other: max error, %", "value": 9.0, "limit": 4.0, "passed": False},
        ],
        "figures": {
            "idle": {
                "note": "idle <power>",
                "published": [5.0, 6.0],
                "predicted": None,
                "unit": "W",
                "used_for": "validation",
            }
        },
    }
    path = tmp_path / VALIDATION
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(document))
    (section,) = made(tmp_path).find("section", id="validation")
    assert "1 of 2 demands on these curves fail: orin_two: max error, %." in section.text
    assert "other" not in [th.text for th in section.find("th")]
    assert "1 further sources" in section.text
    assert "idle <power>" in section.text
    cells = {
        (n.attributes["data-curve"], n.attributes["data-key"]): n.text
        for n in section.walk()
        if "data-curve" in n.attributes
    }
    assert cells["orin_two", "max_err_pct"] == "9.00"
    assert cells["orin_one", "left_out_max_err_pct"] == "–"


def certificate(**changes: Any) -> dict[str, Any]:
    return {
        "window": {"duration_s": 20.0, "achieved_hz": 9.5, "longest_interval_s": 0.2},
        "filter": {"tau_s": 0.15},
        "rails": {"VDD_GPU_SOC": {"coverage_pct": 99.5}},
        "sets": {"gpu_cpu": {"gross_j": 200.0, "bound_j": 1.0}},
        "gaps": [],
        "own_cost": {"cpu_share": 0.002},
        "warnings": [],
        "pin": {"verified": True},
        "run": {"discarded": []},
        **changes,
    }


@pytest.mark.parametrize("provenance", ["measured", "simulated"])
def test_certificates_are_summed_up_from_the_cells(tmp_path: Path, provenance: str) -> None:
    write_reports(tmp_path, rows(**SMALL, provenance=provenance, noise_free=False), regret=False)
    page = made(tmp_path)
    assert "No certificates." in page.find("section", id="certificates")[0].text
    folder = tmp_path / PROFILES / "bert-base-mnli"
    folder.mkdir(parents=True)
    wide = certificate(
        sets={"gpu_cpu": {"gross_j": 50.0, "bound_j": 1.0}},
        pin=None,
        gaps=[{"bridged": False}, {"bridged": True}],
        run={"discarded": ["The cooling device capped the clock (state 2)."]},
    )
    (folder / "612.json").write_text(json.dumps({"repeats": [{}, {}], "certificates": [certificate(), wide]}))
    (folder / ".612.json.x.json").write_text("half")
    (section,) = made(tmp_path).find("section", id="certificates")
    lines = {row.find("th")[0].text: row.find("td")[0].text for row in section.find("tbody")[0].find("tr")}
    assert "1 cells, 2 values. 2 certificates" in section.text
    assert lines["resolution of gpu_cpu, % of its energy"] == "0.50 to 2.00"
    assert lines["gaps in the samples"] == "2, 1 of them not bridged"
    assert lines["pins seen under load"] == "1 of 1"
    assert "1 x The cooling device capped the clock" in section.text
    assert ("emulated board" in section.text) == (provenance == "simulated")


def test_a_gate_that_refuses_or_is_off_says_so(tmp_path: Path) -> None:
    failed = {
        "rule": "depth",
        "value": None,
        "comparison": "<=",
        "threshold": 4.0,
        "passed": False,
        "reason": "unknown",
    }
    write_reports(tmp_path, regret=False, verdict="rejected", promote=False, rules=[failed])
    text = made(tmp_path).find("body")[0].text
    assert "passes the gate: rejected" in text
    assert "The gate refuses it: depth: unknown." in text
    assert "It is not promoted." in text
    write_reports(tmp_path, regret=False, verdict="not judged", mode="off", promote=False, rules=[])
    assert "The gate is off: nothing was judged" in made(tmp_path).find("body")[0].text


# --- drawings ----------------------------------------------------------------------------------------------------------

energies = st.lists(st.floats(50.0, 150.0), min_size=2, max_size=12)


@given(energies, st.one_of(st.none(), st.floats(50.0, 150.0)))
def test_the_shaded_zone_holds_the_flat_settings_and_no_other(
    values: list[float], maxn: float | None
) -> None:
    points: dict[Any, Point] = {300.0 + 100.0 * i: Point(v) for i, v in enumerate(values)}
    if maxn is not None:
        points["maxn"] = Point(maxn)
    work = Work("w", None, None, None, {}, {}, EnergyCurve(points), {}, {})
    x = _Places(work)
    spans = _flat_spans(work, x)
    assert all(a <= b + 1e-9 for a, b in spans)
    limit = 1.01 * min(p.energy_j for p in points.values())
    for setting, point in points.items():
        inside = any(a - 1e-9 <= x(setting) <= b + 1e-9 for a, b in spans)
        if abs(point.energy_j - limit) > 1e-6:
            assert inside == (point.energy_j < limit)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=20))
def test_the_front_is_what_none_beats(points: list[tuple[int, int]]) -> None:
    front = {points[i] for i in pareto([(float(a), float(b)) for a, b in points])}
    best = {p for p in points if not any(q != p and q[0] <= p[0] and q[1] <= p[1] for q in points)}
    assert front == best


@given(st.floats(-1e6, 1e6), st.floats(1e-3, 1e6), st.integers(2, 9))
def test_ticks_are_few_round_and_inside(low: float, span: float, most: int) -> None:
    found = ticks(low, low + span, most)
    assert 1 <= len(found) <= most
    assert all(low - 1e-6 * span <= t <= low + span + 1e-6 * span for t in found)
    assert found == sorted(set(found))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0"),
        (12.3456, "12.346"),
        (53414.12, "53414"),
        (0.04321, "0.0432"),
        (1e7, "10000000"),
    ],
)
def test_five_significant_digits(value: float | None, text: str) -> None:
    assert significant(value) == text


def test_markup_escapes_what_is_not_markup() -> None:
    inner = tag("b", "<&>")
    assert inner == "<b>&lt;&amp;&gt;</b>"
    assert (
        tag("p", inner, title='"x"', hidden=True, open=False)
        == '<p title="&quot;x&quot;" hidden><b>&lt;&amp;&gt;</b></p>'
    )
    assert number(-0.04) == "0.0"
    assert number(-1.26) == "−1.3"
    assert exact(23.090037) == "23.090037"


def test_every_policy_has_a_shape_of_its_own_and_the_names_of_the_figures() -> None:
    pytest.importorskip("matplotlib")
    from wattune.stages.figures import STYLES

    assert set(MARKS) == set(POLICY_ORDER)
    marks = [*MARKS.values(), OTHER]
    assert len({mark.path for mark in marks}) == len(marks)
    assert {name: mark.label for name, mark in MARKS.items()} == {
        name: style.label for name, style in STYLES.items()
    }


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_read_in_light_and_dark() -> None:
    """WCAG 2: text at least 4.5 to 1, graphics at least 3 to 1; shades rise steadily, so that they survive greyscale."""
    css = (SRC / "wattune/report/page.css").read_text()
    light, dark = re.findall(r":root\{color-scheme[^}]*\}|\{:root\{--[^}]*\}", css)[:2]
    inks = {"light": ("#10151a", "#fff"), "dark": ("#fff", "#0b0f13")}
    for name, block in (("light", light), ("dark", dark)):
        colours = dict(re.findall(r"--(\w+):(#[0-9a-f]{3,6})", block))
        paper = colours["paper"]
        for text in ("ink", "soft", "accent", "warn"):
            assert contrast(colours[text], paper) >= 4.5, (name, text)
        assert contrast(colours["soft"], colours["panel"]) >= 4.5
        assert contrast(colours["warn"], colours["warnback"]) >= 4.5
        assert contrast(colours["good"], colours["goodback"]) >= 4.5
        for i in range(8):
            assert contrast(colours[f"h{i}"], inks[name][i > 4]) >= 4.5, (name, i)
        for shade in ("l0", "l1"):
            assert contrast(colours[shade], inks[name][0]) >= 4.5, (name, shade)
        ramp = [luminance(colours[f"h{i}"]) for i in range(8)]
        assert ramp == sorted(ramp, reverse=name == "light")
        for policy, mark in {**MARKS, "other": OTHER}.items():
            assert contrast(mark.light if name == "light" else mark.dark, paper) >= 3.0, (name, policy)
