"""The model card: its facts, its warnings, and that it hides nothing."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from wattune.core.errors import InputError, IntegrityError
from wattune.stages.card import main
from wattune.tracking.card import model_card, negative_cases
from wattune.tracking.results import read_results

sys.path.insert(0, str(Path(__file__).parents[1]))
from facts import governor, write_facts


def card_of(root: Path, **facts: object) -> str:
    write_facts(root, **facts)
    main(root)
    return (root / "models/model_card.md").read_text()


def test_a_simulated_governor_says_so_before_anything_else(tmp_path: Path) -> None:
    lines = card_of(tmp_path).splitlines()
    assert lines[0] == "# Governor `mlg` for `test-board` (simulated)"
    assert "SIMULATED" in lines[2]
    assert "modelled board" in lines[2]


def test_a_measured_governor_carries_no_simulation_warning(tmp_path: Path) -> None:
    card = card_of(tmp_path, provenance="measured")
    assert "SIMULATED" not in card
    assert "Nothing here was measured" not in card


def test_slowdown_stands_beside_every_saving(tmp_path: Path) -> None:
    tables = [line for line in card_of(tmp_path).splitlines() if line.startswith("|") and "saving %" in line]
    assert len(tables) == 4  # policies, groups, negative cases, farthest from the best
    assert all("slowdown %" in line for line in tables)


def test_the_results_table_holds_every_policy_in_order_with_intervals(tmp_path: Path) -> None:
    rows = [
        line
        for line in card_of(tmp_path).splitlines()
        if line.startswith(("| `maxn`", "| `mlg`", "| `oracle`"))
    ]
    assert [row.split("`")[1] for row in rows] == ["maxn", "mlg", "oracle"]
    assert "17.0 [15.0, 19.0]" in rows[1]
    assert "20.0 [19.0, 21.0]" in rows[1]


def test_negative_cases_are_listed_worst_first(tmp_path: Path) -> None:
    card = card_of(tmp_path)
    assert "1 of the 3 workloads cost more energy than at MAXN" in card
    assert "| bert-small-cola | 612 | maxn | -4.0 | 40.0 | 4.0 |" in card
    results = read_results(tmp_path)
    assert [row["workload"] for row in negative_cases(results)] == ["bert-small-cola"]
    for row in results.rows:
        row["saving_pct"] = "1.0"
    assert "None of the 3 workloads costs more energy than at MAXN" in model_card(results)


def test_unknown_is_a_dash_never_zero(tmp_path: Path) -> None:
    write_facts(tmp_path)
    path = tmp_path / "reports/evaluate/metrics.json"
    metrics = json.loads(path.read_text())
    metrics["_meta"]["baseline"] = None
    metrics["_meta"]["noise_floor_pct"] = None
    for name in ("mean_saving_pct", "mean_saving_ci95", "min_saving_pct", "max_saving_pct"):
        metrics["mlg"]["all"][name] = None
    path.write_text(json.dumps(metrics))
    rows = list(csv.DictReader((tmp_path / "reports/evaluate/policies.csv").open()))
    with (tmp_path / "reports/evaluate/policies.csv").open("w") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | {"saving_pct": "", "slowdown_pct": ""} for row in rows)
    card = model_card(read_results(tmp_path))
    assert "| `mlg` | – | 20.0 [19.0, 21.0] | – | – |" in card
    assert "Without a MAXN baseline" in card
    assert "is not known" in card


def test_tree_gate_ranges_and_digest_are_there(tmp_path: Path) -> None:
    document = governor()
    card = card_of(tmp_path, promote=False)
    assert "layers <= 7.5\n|   -> 612 MHz" in card
    assert "verdict: **rejected**. It is not promoted: challenger only." in card
    assert "| mean saving against MAXN, % | 17 | >= 10 | **no** | 17 against 10 |" in card
    assert "4.0 to 24.0 layers" in card
    assert document["digest"] in card
    assert "a" * 64 in card


def test_the_same_facts_give_the_same_bytes(tmp_path: Path) -> None:
    assert card_of(tmp_path / "a") == card_of(tmp_path / "b")


def test_reports_of_another_governor_are_refused(tmp_path: Path) -> None:
    write_facts(tmp_path)
    (tmp_path / "models/governor.json").write_text(json.dumps(governor(shallow_mhz=306.0)))
    with pytest.raises(IntegrityError, match="about governor"):
        read_results(tmp_path)


def test_a_missing_report_is_named(tmp_path: Path) -> None:
    write_facts(tmp_path)
    (tmp_path / "reports/gate/decision.json").unlink()
    with pytest.raises(InputError, match=r"decision\.json does not exist"):
        main(tmp_path)
    assert not (tmp_path / "models/model_card.md").exists()
