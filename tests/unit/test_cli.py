"""The command line: JSON shapes, bad input, exit codes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wattune
from wattune.cli import _parse, main
from wattune.commands.extras import EXTRAS
from wattune.core.errors import InputError
from wattune.core.features import FEATURES, check_feature
from wattune.core.governor import FeatureRange, canonical_json, document_digest, governor_document
from wattune.core.settings import MAXN, parse_setting
from wattune.core.tree import Leaf, Split, Tree
from wattune.workloads.catalogue import MODELS, catalogue_features


@pytest.fixture
def governor(tmp_path: Path) -> Path:
    """Two leaves: up to 10 layers 510 MHz, above 816 MHz."""
    settings = (510.0, 816.0, MAXN)
    leaf = {"n": 3, "saving_range_pct": (1.0, 20.0)}
    tree = Tree(
        [
            Split("layers", 10.0, None, 1, 2),
            Leaf(
                510.0, expected_saving_pct=9.0, rel_energy=(0.91, 0.95, 1.0), rel_time=(1.4, 1.2, 1.0), **leaf
            ),
            Leaf(
                816.0, expected_saving_pct=20.0, rel_energy=(0.9, 0.8, 1.0), rel_time=(1.8, 1.3, 1.0), **leaf
            ),
        ]
    )
    features = (
        FeatureRange("layers", "layers", "number", 4.0, 24.0, (), 12.0),
        FeatureRange("gpu_util_ref_pct", "%", "number", 20.0, 99.0, (), 80.0),
        FeatureRange("seq_len", "tokens", "number", 13.0, 54.0, (), 40.0),
    )
    document = governor_document(
        board="jetson-agx-orin-64gb", power_mode="MAXN", provenance="simulated", objective="energy", policy="mlg",
        rails="gpu_cpu", baseline=MAXN, settings=settings, features=features, tree=tree, training={"n_workloads": 6},
    )  # fmt: skip
    path = tmp_path / "governor.json"
    path.write_text(canonical_json(document))
    return path


def ask(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_choose_answers_in_the_shape_scripts_rely_on(
    governor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = ask(capsys, "choose", "--model", "bert-base", "--task", "mnli", "--governor", str(governor))
    assert answer["mhz"] == 816.0
    assert answer["rule"] == "layers > 10 -> 816 MHz"
    assert answer["expected_saving_pct"] == 20.0
    assert answer["expected_slowdown_pct"] == pytest.approx(30.0)
    assert answer["in_range"] is True
    assert answer["abstained"] is False
    assert answer["assumed"] == {"gpu_util_ref_pct": 80.0}
    assert answer["provenance"] == "simulated"


def test_what_nobody_gave_is_listed_as_assumed(governor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "choose", "--seq-len", "300", "--governor", str(governor))
    assert answer["assumed"] == {"layers": 12.0, "gpu_util_ref_pct": 80.0}
    assert answer["in_range"] is False
    assert answer["out_of_range"] == ["seq_len"]


def test_features_from_a_file_and_flags_over_them(
    governor: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "features.json").write_text('{"layers": 4, "seq_len": 20, "gpu_util_ref_pct": 30}')
    given = ["--features", str(tmp_path / "features.json"), "--governor", str(governor)]
    answer = ask(capsys, "choose", *given)
    assert (answer["mhz"], answer["assumed"]) == (510.0, {})
    assert ask(capsys, "choose", *given, "--seq-len", "99")["in_range"] is False


def test_a_governor_that_declines_says_why(governor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(governor.read_text()) | {"abstain": {"beyond": 1.5}}
    for node, interval in zip(document["nodes"][1:], ([-2.0, 9.0], [15.0, 25.0]), strict=True):
        node["saving_interval_pct"] = interval
    document["digest"] = document_digest(document)
    governor.write_text(canonical_json(document))
    risky = ["--model", "pythia-31m", "--task", "mnli", "--governor", str(governor)]
    answer = ask(capsys, "choose", *risky)
    assert (answer["mhz"], answer["abstained"], answer["expected_saving_pct"]) == ("maxn", True, 0.0)
    assert answer["saving_interval_pct"] == [-2.0, 9.0]
    assert "-2.0 and 9.0 %, a loss included" in answer["reason"]
    assert main(["choose", *risky]) == 0
    assert "Declined, the clocks are left alone: its saving may lie" in capsys.readouterr().out
    sure = ask(capsys, "choose", "--model", "bert-base", "--task", "mnli", "--governor", str(governor))
    assert (sure["mhz"], sure["abstained"], sure["reason"]) == (816.0, False, "")
    far = ask(capsys, "choose", "--model", "bert-base", "--seq-len", "90", "--governor", str(governor))
    assert far["reason"] == "too far outside the training range: seq_len"


def test_explain_prints_the_tree_and_the_path(governor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "--model", "pythia-31m", "--task", "cola", "--governor", str(governor)]) == 0
    out = capsys.readouterr().out
    assert "layers <= 10\n|   -> 510 MHz" in out
    assert "This workload: layers <= 10 -> 510 MHz" in out
    assert "simulated" in out


LARGE = (
    "--model",
    "bert-base",
    "--task",
    "mnli",
)  # the leaf of 816 MHz: 510 takes 1.8 times as long as MAXN, 816 1.3 times


@pytest.mark.parametrize(
    ("objective", "mhz", "saving", "slowdown"),
    [
        ("energy", 816.0, 20.0, 30.0),
        ("energy:max_slowdown_pct=35", 816.0, 20.0, 30.0),
        ("energy:max_slowdown_pct=20", "maxn", 0.0, 0.0),
        ("edp", "maxn", 0.0, 0.0),  # 0.8 x 1.3 = 1.04
        ("time", "maxn", 0.0, 0.0),
        ("energy:deadline_s=140", 816.0, 20.0, 30.0),
        ("energy:deadline_s=110", "maxn", 0.0, 0.0),
        ("time:max_power_w=6.5", 816.0, 20.0, 30.0),  # 1000 J in 100 s at MAXN; 800 J in 130 s at 816
        ("battery:battery_wh=1", 816.0, 20.0, 30.0),
    ],
)
@pytest.mark.parametrize("command", ["choose", "explain"])
def test_every_objective_is_answered_from_the_leaf(
    governor: Path,
    capsys: pytest.CaptureFixture[str],
    command: str,
    objective: str,
    mhz: object,
    saving: float,
    slowdown: float,
) -> None:
    asked = (command, *LARGE, "--governor", str(governor), "--objective", objective)
    answer = ask(capsys, *asked, "--maxn-time-s", "100", "--maxn-energy-j", "1000")
    assert (answer["mhz"], answer["objective"], answer["feasible"]) == (mhz, objective, True)
    assert answer["expected_saving_pct"] == pytest.approx(saving, abs=1e-9)
    assert answer["expected_slowdown_pct"] == pytest.approx(slowdown, abs=1e-9)
    assert answer["epochs"] == (pytest.approx(4.5) if "battery" in objective else None)


@pytest.mark.parametrize(
    ("objective", "nearest", "says"),
    [("energy:deadline_s=50", "maxn", "deadline_s = 50"), ("time:max_power_w=3", 510.0, "max_power_w = 3")],
)
def test_a_limit_nothing_keeps_is_said_with_the_nearest(
    governor: Path, capsys: pytest.CaptureFixture[str], objective: str, nearest: object, says: str
) -> None:
    asked = [
        *LARGE,
        "--governor",
        str(governor),
        "--objective",
        objective,
        "--maxn-time-s",
        "100",
        "--maxn-energy-j",
        "1000",
    ]
    answer = ask(capsys, "choose", *asked)
    assert (answer["mhz"], answer["feasible"]) == (nearest, False)
    assert says in answer["limit_reason"]
    assert main(["choose", *asked]) == 0
    assert "The limit cannot be kept: No setting keeps" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--objective", "energy:deadline_s=50"], "Add --maxn-time-s."),
        (
            ["--objective", "time:max_power_w=5", "--maxn-time-s", "9"],
            "Add --maxn-time-s and --maxn-energy-j.",
        ),
        (["--objective", "speed"], "There is no objective 'speed'"),
        (["--maxn-time-s", "-3"], "--maxn-time-s is -3"),
    ],
)
def test_objectives_that_cannot_be_answered(
    governor: Path, capsys: pytest.CaptureFixture[str], more: list[str], says: str
) -> None:
    assert main(["choose", *LARGE, "--governor", str(governor), *more]) == 2
    assert says in capsys.readouterr().err


def test_an_objective_may_be_declined_too(governor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 510 MHz the leaf expects 10 points less than at 816: its interval moves down with it, and a loss comes in."""
    document = json.loads(governor.read_text()) | {"abstain": {"beyond": 1.5}}
    document["nodes"][2]["saving_interval_pct"] = [5.0, 25.0]
    document["nodes"][2]["rel_time"] = [1.1, 1.3, 1.0]
    document["digest"] = document_digest(document)
    governor.write_text(canonical_json(document))
    asked = ("choose", *LARGE, "--governor", str(governor))
    assert ask(capsys, *asked)["mhz"] == 816.0
    slow = ask(capsys, *asked, "--objective", "energy:max_slowdown_pct=20")
    assert (slow["mhz"], slow["abstained"]) == ("maxn", True)
    assert slow["saving_interval_pct"] == pytest.approx([-5.0, 15.0])
    assert ask(capsys, *asked, "--objective", "time")["mhz"] == "maxn"


def test_the_front_of_a_leaf(governor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (front,) = ask(capsys, "pareto", *LARGE, "--governor", str(governor))
    assert [entry["mhz"] for entry in front["front"]] == ["maxn", 816.0]  # 510 is slower and costs more
    assert [entry["rel_time"] for entry in front["front"]] == pytest.approx([1.0, 1.3])
    assert front["front"][1]["saving_pct"] == pytest.approx(20.0)
    assert front["front"][1]["energy_j"] is None  # a leaf knows shares only
    assert main(["pareto", *LARGE, "--governor", str(governor)]) == 0
    assert "+30.0" in capsys.readouterr().out


def test_the_front_of_the_virtual_board_and_its_answers(capsys: pytest.CaptureFixture[str]) -> None:
    (front,) = ask(capsys, "pareto", *LARGE, "--virtual")
    rows = ask(capsys, "predict", *LARGE)
    known = {row["mhz"]: row for row in rows}
    for entry in front["front"]:
        assert (entry["energy_j"], entry["time_s"]) == (
            known[entry["mhz"]]["energy_j"],
            known[entry["mhz"]]["time_s"],
        )
        assert not any(
            r["energy_j"] < entry["energy_j"] and r["time_s"] <= entry["time_s"]
            for r in rows
            if r["mhz"] != entry["mhz"]
        )
    document = ask(capsys, "predict", *LARGE, "--objective", "energy:max_slowdown_pct=25")
    assert document["settings"] == rows
    answer = document["answer"]
    allowed = [r for r in rows if r["time_s"] <= 1.25 * known["maxn"]["time_s"]]
    assert answer["mhz"] == min(allowed, key=lambda r: r["energy_j"])["mhz"]
    assert answer["slowdown_pct"] <= 25.0


def test_the_front_of_a_sweep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = tmp_path / "s.csv"
    sweep.write_text(
        "board,workload,gpu_mhz,energy_j,time_s,setting\n"
        "b,w,300,120,60,\nb,w,600,100,30,\nb,w,900,132,22,\nb,w,,160,20,maxn\nb,v,300,1,,\nb,v,600,2,,\n"
    )
    (front,) = ask(capsys, "pareto", "--sweep", str(sweep))
    assert front["provenance"] == "recorded"
    assert [entry["mhz"] for entry in front["front"]] == ["maxn", 900.0, 600.0]
    assert main(["pareto", "--sweep", str(sweep), "--virtual"]) == 2
    assert main(["pareto", "--virtual"]) == 2


def test_an_export_of_a_modelled_board_stays_simulated(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = tmp_path / "sweep.csv"
    sweep.write_text(
        "board,workload,gpu_mhz,energy_j,time_s,provenance\nb,w,600,10,2,simulated\nb,w,900,12,1,simulated\n"
    )
    (front,) = ask(capsys, "pareto", "--sweep", str(sweep))
    assert front["provenance"] == "simulated"


def _tampered(path: Path, change) -> None:  # type: ignore[no-untyped-def]
    document = json.loads(path.read_text())
    change(document)
    document["digest"] = document_digest(document)
    path.write_text(canonical_json(document))


def _cut(path: Path) -> None:
    path.write_text(path.read_text()[:-40])


def _set(key: str, value: object):  # type: ignore[no-untyped-def]
    return lambda path: _tampered(path, lambda d: d.update({key: value}))


def _node(index: int, key: str, value: object):  # type: ignore[no-untyped-def]
    return lambda path: _tampered(path, lambda d: d["nodes"][index].update({key: value}))


DAMAGE = {
    "truncated": (_cut, "not complete JSON"),
    "another schema version": (_set("schema_version", 2), "schema version is 2"),
    "a clock outside its table": (_node(1, "setting_hz", 612000000), "outside its own clock table"),
    "a cycle": (_node(0, "right", 0), "points to node 0"),
    "a shared child": (_node(0, "right", 1), "reached twice or never"),
    "a clock no board has": (_set("settings_hz", [510, 816000000, "maxn"]), "not a clock in Hz"),
    "an edit without a new digest": (
        lambda p: p.write_text(p.read_text().replace("816000000", "510000000", 1)),
        "digest",
    ),
}


@pytest.mark.parametrize("case", DAMAGE)
def test_a_damaged_governor_is_refused_with_exit_4(
    case: str, governor: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, says = DAMAGE[case]
    damage(governor)
    assert main(["choose", "--model", "bert-base", "--task", "mnli", "--governor", str(governor)]) == 4
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


BAD = {
    "unknown model": (["choose", "--model", "bert-bass", "--task", "mnli"], "bert-base"),
    "unknown task": (["choose", "--model", "bert-base", "--task", "mnlii"], "mnli"),
    "no workload": (["choose"], "--model bert-base"),
    "not a number": (["choose", "--seq-len", "nan"], "from 1 to"),
    "missing feature file": (["choose", "--features", "none.json"], "does not exist"),
    "missing governor": (
        ["choose", "--model", "bert-base", "--task", "mnli", "--governor", "none.json"],
        "wattune pull",
    ),
    "missing sweep": (["replay", "none.csv"], "none.csv"),
    "nothing to count": (["opcost"], "--write"),
    "impossible utilisation": (["choose", "--model", "bert-base", "--gpu-util", "1e308"], "from 0 to 100"),
    "no length": (["choose", "--model", "bert-base", "--seq-len", "0"], "from 1 to"),
    "missing config": (["predict", "--config", "none.json", "--task", "mnli"], "none.json"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_sentence_and_exit_2(
    case: str, governor: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(governor.parent)
    (governor.parent / "models").mkdir()
    governor.rename(governor.parent / "models/governor.json")
    argv, says = BAD[case]
    assert main(argv) == 2
    captured = capsys.readouterr()
    assert says in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("value", ["0", "-1", "many", "1" + "0" * 400])
@pytest.mark.parametrize("flag", ["--batch-size", "--max-length"])
def test_numbers_no_job_can_have(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["predict", "--model", "bert-base", "--task", "mnli", f"{flag}={value}"])
    assert caught.value.code == 2
    assert "whole number from 1 to" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["choose", "--features"], ["predict", "--task", "mnli", "--config"]])
def test_json_nested_without_end_is_bad_input(
    argv: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000)
    governor = ["--governor", str(tmp_path / "none.json")] if argv[0] == "choose" else []
    assert main([*argv, str(tmp_path / "deep.json"), *governor]) == 2


def test_a_governor_that_is_no_text_is_damaged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "g.json").write_bytes(bytes(range(128, 228)))
    assert (
        main(["choose", "--model", "bert-base", "--task", "mnli", "--governor", str(tmp_path / "g.json")])
        == 4
    )


def test_explain_as_json_has_the_tree(governor: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ask(capsys, "explain", "--model", "bert-base", "--task", "mnli", "--governor", str(governor))
    assert answer["mhz"] == 816.0
    assert answer["tree"][0] == "layers <= 10"


def test_a_feature_file_with_wrong_content(
    governor: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "f.json"
    for text, says in (
        ("[1]", "not a JSON object"),
        ('{"depth": 3}', "not a feature"),
        ('{"layers": "many"}', "layers in"),
        ('{"layers": NaN}', "A number from 1 to 10000 was expected: transformer blocks."),
        ("", "is empty"),
        (" \n# nothing\n---\n", "is empty"),
        ("layers: 12\nseq_len: 40\n'layers': 6\n", "names 'layers' twice"),
        ('{"layers": 12, "layers": 12}', "names 'layers' twice"),
        ("{", "not complete JSON"),
    ):
        path.write_text(text)
        assert main(["choose", "--features", str(path), "--governor", str(governor)]) == 2
        assert says in capsys.readouterr().err


OUT_OF_BOUNDS = [
    *(("gpu_util_ref_pct", value) for value in (400, -1, 100.5)),
    *(("seq_len", value) for value in (-5, 0, 2e6)),
    *(("batch_size", value) for value in (0, -8, 10**400)),
    *(("layers", value) for value in (-3, 0, 1e9)),
    *((name, -1) for name, spec in FEATURES.items() if spec.kind == "number"),
    *((name, 1e300) for name, spec in FEATURES.items() if spec.kind == "number"),
    *((name, value) for name, spec in FEATURES.items() if spec.kind == "category" for value in ("", 3)),
]
FLAGS = {"seq_len": "--seq-len", "gpu_util_ref_pct": "--gpu-util"}


@pytest.mark.parametrize(("name", "value"), OUT_OF_BOUNDS)
def test_a_feature_has_the_same_bounds_wherever_it_is_said(
    governor: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, value: object
) -> None:
    """In JSON, in lines, by a flag and in a script."""
    path = tmp_path / "f"
    texts = [json.dumps({name: value})]
    if isinstance(value, int | float) and value < 1e301 and FEATURES[name].kind == "number":
        texts.append(f"{name}: {value}\n")
    says = []
    for text in texts:
        path.write_text(text)
        assert main(["choose", "--features", str(path), "--governor", str(governor)]) == 2
        says.append(capsys.readouterr().err)
        assert f"{name} in {path} is " in says[-1]
        assert len(says[-1]) < 300
    expected = says[0].split(". ")[-1].removeprefix("wattune: ")
    if name in FLAGS:
        assert main(["choose", f"{FLAGS[name]}={value}", "--governor", str(governor)]) == 2
        assert expected in capsys.readouterr().err
    with pytest.raises(InputError) as caught:
        wattune.govern(features={name: value})
    assert str(caught.value).startswith(f"{name} is ")
    assert expected.strip() in str(caught.value)


def test_what_features_can_be_is_within_the_bounds() -> None:
    """Every value of the catalogue, and that nobody knows it."""
    for model in MODELS:
        for name, value in catalogue_features(model, "mnli").items():
            check_feature(name, value)
    for name in FEATURES:
        check_feature(name, None)


REPOSITORY = Path(__file__).parents[2]
SCRIPT = "import sys; sys.path.insert(0, sys.argv.pop(1)); from wattune.cli import main; sys.exit(main(sys.argv[1:]))"
BASE = (sys.executable, "-I", "-S", "-c", SCRIPT, str(REPOSITORY / "src"))
"""The command line as the base install has it: the standard library only."""


def test_answers_without_site_packages_and_with_a_closed_pipe(governor: Path) -> None:
    """The base install is the standard library only; `wattune ... | head -0` is no error."""
    command = [*BASE, "explain", "--model", "bert-base", "--task", "rte", "--governor", str(governor)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "816 MHz" in done.stdout
    read, write = os.pipe()
    os.close(read)
    piped = subprocess.run(command, stdout=write, stderr=subprocess.PIPE, text=True, check=False)
    os.close(write)
    assert "Traceback" not in piped.stderr


SWEEP = "board,workload,gpu_mhz,energy_j,time_s,setting\nb,w,{mhz},{j},20,\nb,w,600,100,30,\nb,v,300,1,1,\nb,v,600,2,1,\n"


@pytest.mark.parametrize(
    "words",
    [
        "replay mhz.csv",
        "replay j.csv",
        "pareto --sweep mhz.csv",
        "import sweep cpu.csv -o out.csv --keep cpu=max",
        "import sweep cpu.csv -o out.csv --where cpu=500",
        "import tegrastats t.log --interval-ms 1_000",
        "choose --seq-len 1_0",
        "choose --gpu-util 1_0",
        "choose --model bert-base --task rte --batch-size 1_6",
        "choose --features f.yaml",
        "choose --features f.json",
        "choose --model bert-base --maxn-time-s 1_0",
        "replay good.csv --objective energy:max_slowdown_pct=1_0",
        "pin 6_12",
        "run --probe --steps 1_000 -- true",
        "run --probe --probe-window 1_0 -- true",
        "bench diverse --seed 1_0",
    ],
)
def test_underscores_between_digits_are_no_number(
    words: str, governor: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """5_00 is 500 in Python, and 5.00 or 5,00 in a table of somebody who slipped."""
    monkeypatch.chdir(governor.parent)
    for name, values in {"good": (300, 120), "mhz": ("3_00", 120), "j": (300, "1_20")}.items():
        Path(f"{name}.csv").write_text(SWEEP.format(mhz=values[0], j=values[1]))
    Path("cpu.csv").write_text(
        "board,workload,gpu_mhz,energy_j,time_s,cpu\nb,w,300,1,1,5_00\nb,w,600,1,1,5_00\n"
    )
    Path("t.log").write_text("GR3D_FREQ 40%\n")
    Path("f.yaml").write_text("layers: 1_2\n")
    Path("f.json").write_text('{"layers": 1_2}')
    try:
        code = main([*words.split(), *(["--governor", str(governor)] if words.startswith("choose") else [])])
    except SystemExit as ended:
        code = int(str(ended.code))
    said = capsys.readouterr().err
    assert code == 2, said
    assert re.search(r"\d_\d|cpu=500|complete JSON", said)
    with pytest.raises(InputError):
        parse_setting("6_12")  # of `run --mhz`


READ_OTHERWISE = ("workloads/finetune/", "boards/virtual/emulator/")
"""The fine-tuning's own arguments, and what is typed into the emulator."""


def test_numbers_that_people_write_are_read_at_one_place() -> None:
    """Wherever text that may be no number is read, it is not by Python's own rules."""
    bare = re.compile(r"try:\n\s+(?:return|[\w\[\]]+ =) float\((?!getattr)|type=(?:float|int)\b")
    found = [
        name
        for path in (REPOSITORY / "src/wattune").rglob("*.py")
        if bare.search(path.read_text())
        and not (name := path.relative_to(REPOSITORY / "src/wattune").as_posix()).startswith(READ_OTHERWISE)
    ]
    assert found == []


def _encoded(words: list[str]) -> subprocess.CompletedProcess[bytes]:
    """A command whose terminal knows no letters but those of ASCII."""
    env = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(REPOSITORY / "src")}
    command = [sys.executable, "-m", "wattune.cli", *words]
    return subprocess.run(command, env=env, capture_output=True, check=False)


def test_letters_that_the_terminal_lacks_are_written_as_escapes(governor: Path, tmp_path: Path) -> None:
    """Ours (°C), those of names in files, and those of the file names themselves; JSON stays JSON."""
    log = tmp_path / "größe.log"
    log.write_text("RAM 1/2MB (lfb 1x4MB) CPU [5%@729] GR3D_FREQ 40% cpu@48C VDD_GPU_SOC 3000mW/3000mW\n" * 3)
    sweep = tmp_path / "s.csv"
    sweep.write_text(
        "board,workload,gpu_mhz,energy_j,time_s\nb,größe,300,2,2\nb,größe,600,3,1\n", encoding="utf-8"
    )
    nowhere = str(tmp_path / "größe.json")
    for words, code in (
        (["import", "tegrastats", str(log)], 0),
        (["replay", str(sweep), "--policy", "probe"], 0),
        (["pareto", "--sweep", str(sweep)], 0),
        (["choose", "--governor", nowhere], 2),
        (["pull", str(governor), "-o", nowhere], 0),
    ):
        done = _encoded(words)
        assert (done.returncode, b"Traceback" in done.stderr) == (code, False), done.stderr
    done = _encoded(["replay", str(sweep), "--policy", "probe", "--json"])
    assert json.loads(done.stdout)[0]["workload"] == "größe"
    done = _encoded(["replay", str(tmp_path / "s.csv"), "--policy", "probe"])
    assert b"gr\\xf6\\xdfe" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is absent")
@pytest.mark.parametrize(
    "words",
    ["-h", "--version", "choose -h", "bench -h", "import sweep -h", "predict --model bert-base --task rte"],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_that_cannot_be_written_is_one_sentence(words: str, unbuffered: str) -> None:
    """The parser's own answers, too."""
    command = [sys.executable, "-m", "wattune.cli", *words.split()]
    env = os.environ | {"PYTHONPATH": str(REPOSITORY / "src"), "PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, env=env, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        3,
        "wattune: The answer could not be written: No space left on device.\n",
    )


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        ("publish", "pipeline"),
        ("sweep bert-base-rte", "pipeline"),
        ("validate", "pipeline"),
        *((f"bench {name}", "pipeline") for name in ("policies", "probe", "paper-protocol", "window")),
        *((f"bench {name}", "pipeline") for name in ("studies", "diverse")),
        ("finetune bert-small sst2", "train"),
        ("finetune bert-small sst2 --data made-up --random-weights", "train"),
        ("fetch bert-small sst2", "train"),
    ],
)
def test_the_base_install_names_the_extra_that_a_command_needs(
    words: str, extra: str, tmp_path: Path
) -> None:
    """Before it asks for anything that only the extra could use: a model, data, a server."""
    done = subprocess.run([*BASE, *words.split()], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 3, done.stderr
    assert f"pip install 'wattune[{extra}]'" in done.stderr
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)


IMPORTED_AS = {
    "hydra-core": "hydra", "scikit-learn": "sklearn", "pyyaml": "yaml", "mlflow-skinny": "mlflow", "jetson-stats": "jtop",
}  # fmt: skip


def test_the_table_of_extras_is_that_of_pyproject() -> None:
    """A package that an extra brings and the table lacks would end in a traceback again."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    expected: dict[str, str] = {}
    for extra, packages in project["optional-dependencies"].items():
        for name in (re.split(r"[<>=;\s]", package)[0] for package in packages):
            if extra != "dev" and name != "ruamel.yaml.clib":  # which makes DVC faster, and nobody imports it
                expected.setdefault(IMPORTED_AS.get(name, name), extra)
    assert {module: extra for extra, modules in EXTRAS.items() for module in modules} == expected


def test_a_module_that_no_extra_brings_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("wattune.nowhere", "nobodys_package", "json.nowhere"):

        def fail(_: object, missing: str = missing) -> int:
            raise ModuleNotFoundError(name=missing)

        monkeypatch.setattr("wattune.cli._publish", fail)
        with pytest.raises(ModuleNotFoundError):
            main(["publish"])


def test_a_question_for_utilisation_is_answered_for_the_workload_and_not_by_the_median(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A tree that asks for utilisation alone would otherwise give every workload of the catalogue the same clock."""
    settings = (510.0, 714.0, MAXN)
    curve = {
        "rel_energy": (0.8, 0.8, 1.0),
        "rel_time": (1.4, 1.2, 1.0),
        "n": 3,
        "saving_range_pct": (1.0, 30.0),
    }
    tree = Tree(
        [
            Split("gpu_util_ref_pct", 53.0, None, 1, 2),
            Leaf(510.0, expected_saving_pct=20.0, **curve),
            Leaf(714.0, expected_saving_pct=20.0, **curve),
        ]
    )
    where = tmp_path / "governor.json"

    def clock(board: str, *words: str) -> tuple[float, float]:
        document = governor_document(
            board=board, power_mode="MAXN", provenance="simulated", objective="energy", policy="mlg", rails="gpu_cpu",
            baseline=MAXN, settings=settings, tree=tree, training={"n_workloads": 6, "reference_mhz": 1300.5},
            features=(FeatureRange("gpu_util_ref_pct", "%", "number", 20.0, 100.0, (), 93.7),),
        )  # fmt: skip
        where.write_text(canonical_json(document))
        answer = ask(capsys, "choose", *words, "--governor", str(where))
        return answer["mhz"], answer["assumed"].get("gpu_util_ref_pct")

    orin = "jetson-agx-orin-64gb"
    small, low = clock(orin, "--model", "pythia-31m", "--task", "sst2")
    large, high = clock(orin, "--model", "bert-base", "--task", "sst2")
    assert (small, large) == (510.0, 714.0)
    assert low < 40 < 95 < high
    more = clock(orin, "--model", "pythia-31m", "--task", "sst2", "--batch-size", "512")
    assert more[1] > low
    assert clock(orin, "--model", "pythia-31m", "--task", "sst2", "--gpu-util", "99") == (714.0, None)
    assert clock("jetson-of-nobody", "--model", "pythia-31m", "--task", "sst2") == (714.0, 93.7)


@pytest.mark.parametrize(
    "objective", ["edp", "ed2p", "time", "energy:max_slowdown_pct=10", "time:max_power_w=20"]
)
@pytest.mark.parametrize(("setting", "named"), [("600", "at 600 MHz."), ("maxn", "at maxn.")])
def test_a_workload_without_times_is_named(
    objective: str, setting: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["board,workload,setting,gpu_mhz,energy_j,time_s"]
    for workload in ("whole", "lacking"):
        for row in ("300", "600", "maxn"):
            time_s = "" if (workload, row) == ("lacking", setting) else "2"
            lines.append(
                f"b,{workload},{row if row == 'maxn' else ''},{row if row != 'maxn' else ''},10,{time_s}"
            )
    (tmp_path / "s.csv").write_text("\n".join(lines) + "\n")
    for policy in ("ffg", "oracle", "probe"):
        assert main(["replay", str(tmp_path / "s.csv"), "--policy", policy, "--objective", objective]) == 2
        said = capsys.readouterr().err
        assert f"'{objective}' needs times, and 'lacking' on board 'b' has none {named}" in said
        assert "column time_s" in said


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "bert-small", "--data", "made-up", "sst2"],
        ["finetune", "--method", "lora", "bert-small", "sst2"],
        ["fetch", "bert-small", "sst2", "--task-path", "x/y"],
        ["fetch", "bert-small", "--task-path", "x/y", "sst2"],
    ],
)
def test_a_task_may_stand_after_options(words: list[str]) -> None:
    args = _parse(words)
    assert (args.model, args.task) == ("bert-small", "sst2")


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "bert-small", "sst2", "--steps", "9", "mnli"],
        ["finetune", "bert-small", "--steps", "9", "sst2", "mnli"],
        ["finetune", "bert-small", "--stps=9"],
        ["choose", "--model", "bert-small", "sst2"],
    ],
)
def test_words_that_nothing_takes_are_named(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert "unrecognized arguments: " in capsys.readouterr().err


def test_memory_that_is_short_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(_: object) -> None:
        raise MemoryError

    monkeypatch.setattr("wattune.commands.predict.run_predict", short)
    assert main(["predict", "--model", "bert-base", "--task", "sst2"]) == 3
    assert capsys.readouterr().err.startswith("wattune: There is not enough memory.")
