"""docs/governor-format.md: the schema's fields, all of them, and code that does what the page says."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facts import governor
from schemas import schema
from wattune.core.governor import canonical_json, document_digest, parse_governor

PAGE = (Path(__file__).parents[2] / "docs/governor-format.md").read_text()
DOCUMENT = governor("jetson-agx-orin-64gb", "simulated")


def properties(node: Any, path: str = "") -> Iterator[str]:
    """Every property a schema allows, with its place: ``nodes[].threshold``."""
    for name, below in node.get("properties", {}).items():
        yield path + name
        yield from properties(below, f"{path}{name}.")
    for alternative in (*node.get("oneOf", ()), *node.get("anyOf", ())):
        yield from properties(alternative, path)
    if "items" in node:
        yield from properties(node["items"], f"{path.removesuffix('.')}[].")


def block(language: str) -> str:
    found = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    assert found, f"no block of {language}"
    return found.group(1)


def commands() -> list[str]:
    """Indented blocks of the page, one text each."""
    return [
        re.sub(r"(?m)^    ", "", b)
        for b in re.findall(r"(?:^    .*\n)+", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL), re.MULTILINE)
    ]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/governor.json").write_text(canonical_json(DOCUMENT))
    return tmp_path


def test_page_and_schema_name_the_same_fields() -> None:
    told: set[str] = set()
    for row in re.findall(r"(?m)^\| (`.*?) \|", PAGE):
        told |= set(re.findall(r"`([^`]+)`", row))
    assert told == set(properties(schema("governor")))


def test_what_the_code_writes_of_its_training_is_told() -> None:
    account = PAGE.split("### `training`")[1].split("\n## ")[0]
    source = (Path(__file__).parents[2] / "src/wattune/learning/export.py").read_text()
    written = {
        "conformal_level",
        "fingerprint",
        "hyper_parameters",
        "loo_accuracy",
        "loo_regret_pct",
        "n_workloads",
        "reference_mhz",
        "seed",
    }
    assert written == set(re.findall(r'"(\w+)": (?!best\.|space\.(?!seed))', source)) | {"conformal_level"}
    assert all(f"`{name}`" in account for name in written)


@pytest.mark.parametrize("change", [("", ""), ('"n": 3', '"n": 4')], ids=["whole", "edited"])
def test_the_digest_as_the_page_takes_it(folder: Path, change: tuple[str, str]) -> None:
    file = folder / "models/governor.json"
    file.write_text(file.read_text().replace(*change))
    ran = subprocess.run(
        [sys.executable, "-c", block("python")], cwd=folder, capture_output=True, text=True, check=True
    )
    assert ran.stdout.startswith("CHANGED" if change[0] else "digest holds")
    shell = subprocess.run(
        ["sh", "-c", commands()[0]], cwd=folder, capture_output=True, text=True, check=True
    )
    digests = re.findall(r"\b[0-9a-f]{64}\b", shell.stdout)
    assert (digests[0] == digests[1]) != bool(change[0])


def test_fields_nobody_knows_are_ignored() -> None:
    more = {**DOCUMENT, "digest": "", "novelty": [1]}
    more["digest"] = document_digest(more)
    assert (
        parse_governor(canonical_json(more)).tree.nodes == parse_governor(canonical_json(DOCUMENT)).tree.nodes
    )


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq is not installed")
def test_jq_walks_as_wattune_does(folder: Path) -> None:
    command = next(c for c in commands() if c.startswith("jq "))
    have = json.loads(command.split("'")[1])
    ran = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
    chosen = parse_governor(canonical_json(DOCUMENT)).decide(have).setting
    assert json.loads(ran.stdout) == (chosen if isinstance(chosen, str) else round(chosen * 1e6))


@pytest.fixture(scope="module")
def c_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page's C over the tree of `DOCUMENT`: a row of numbers per line on stdin, the clocks on stdout."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler is installed")
    names = [f["name"] for f in DOCUMENT["features"]]
    values = {f["name"]: f.get("values", []) for f in DOCUMENT["features"]}
    lines = []
    for node in DOCUMENT["nodes"]:
        if "feature" in node:
            category = values[node["feature"]].index(node["category"]) if "category" in node else -1
            lines.append(
                f"{{{names.index(node['feature'])}, {node.get('threshold', 0)}, {category}, {node['left']}, {node['right']}, 0}}"
            )
        else:
            hz = 0 if node["setting_hz"] == "maxn" else node["setting_hz"]
            lines.append(f"{{-1, 0, -1, 0, 0, {hz}LL}}")
    place = tmp_path_factory.mktemp("c")
    (place / "walk.c").write_text(
        f"#include <stdio.h>\n{block('c')}\n"
        f"int main(void) {{ static const struct node nodes[] = {{{', '.join(lines)}}}; double x[{len(names)}];\n"
        f'for (;;) {{ for (int i = 0; i < {len(names)}; i++) if (scanf("%lf", &x[i]) != 1) return 0;\n'
        f'printf("%lld\\n", setting_hz(nodes, {len(lines)}, x)); }} }}\n'
    )
    subprocess.run(
        [compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "-o", place / "walk", place / "walk.c"],
        check=True,
    )
    return place / "walk"


def test_c_walks_as_wattune_does(c_program: Path) -> None:
    rng = random.Random(0)
    rows, expected = [], []
    tree = parse_governor(canonical_json(DOCUMENT)).tree
    for _ in range(200):
        have: dict[str, Any] = {}
        numbers = []
        for feature in DOCUMENT["features"]:
            if feature["kind"] == "category":
                place = rng.randrange(len(feature["values"]))
                have[feature["name"]], number = feature["values"][place], float(place)
            else:
                number = have[feature["name"]] = rng.choice(
                    [*feature["range"], 7.5, rng.uniform(*feature["range"])]
                )
            numbers.append(repr(number))
        rows.append(" ".join(numbers))
        setting = tree.walk(have)[0].setting
        expected.append(0 if isinstance(setting, str) else round(setting * 1e6))
    ran = subprocess.run(
        [c_program], input="\n".join(rows) + "\n", capture_output=True, text=True, check=True
    )
    assert [int(hz) for hz in ran.stdout.split()] == expected
    assert len(set(expected)) == len(tree.leaves)
