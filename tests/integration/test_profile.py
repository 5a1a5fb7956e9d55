"""Profiling: killed, resumed, superseded, taken back; nothing measured is lost and nothing half-written stays."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("omegaconf")
from schemas import schema
from wattune.config import Config, to_config
from wattune.core.errors import BoardError, InputError
from wattune.stages.features import features
from wattune.stages.profile import profile
from wattune.stages.protocol import protocol

ROOT = Path(__file__).parents[2]
NAME = "bert-small-sst2"


def config(**sweep: object) -> Config:
    conf = {"clocks_mhz": [306.0, 612.0, 1300.5], "repeats": 2, "steps": 20, **sweep}
    workload = {"model": "bert-small", "task": "sst2", "part": "train", "batch_size": 32, "max_length": 128}
    return to_config(
        {
            "board": {"constants": str(ROOT / "src/wattune/boards/virtual/jetson-agx-orin-64gb.json")},
            "workload_ids": [NAME],
            "workloads": {NAME: workload},
            "sweep": conf,
        }
    )


def cells(folder: Path) -> dict[str, int]:
    return {p.name: p.stat().st_mtime_ns for p in (folder / "data/profiles" / NAME).iterdir()}


def run(conf: Config, root: Path):  # type: ignore[no-untyped-def]
    return profile(conf, NAME, root / "data/profiles", root / "data/superseded")


def test_cells_are_what_the_schema_says(tmp_path: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    run(config(), tmp_path)
    assert set(cells(tmp_path)) == {"306.json", "612.json", "1300.5.json", "maxn.json"}
    for path in (tmp_path / "data/profiles" / NAME).iterdir():
        document = json.loads(path.read_text())
        jsonschema.validate(document, schema("cell"))
        assert document["provenance"] == "simulated"
        assert len(document["repeats"]) == 2


def test_a_second_run_measures_nothing(tmp_path: Path) -> None:
    assert len(run(config(), tmp_path).measured) == 4
    before = cells(tmp_path)
    assert run(config(), tmp_path).measured == ()
    assert cells(tmp_path) == before


def test_a_changed_protocol_reuses_nothing_loses_nothing_and_comes_back(tmp_path: Path) -> None:
    run(config(), tmp_path)
    first = {p.name: p.read_bytes() for p in (tmp_path / "data/profiles" / NAME).iterdir()}
    assert len(run(config(seed=43), tmp_path).measured) == 4
    assert len(list((tmp_path / "data/superseded").rglob("*.json"))) == 4
    back = run(config(), tmp_path)
    assert (len(back.taken_back), back.measured) == (4, ())
    assert {p.name: p.read_bytes() for p in (tmp_path / "data/profiles" / NAME).iterdir()} == first


def test_fewer_clocks_leave_no_orphan(tmp_path: Path) -> None:
    run(config(), tmp_path)
    run(config(clocks_mhz=[306.0, 612.0]), tmp_path)
    assert set(cells(tmp_path)) == {"306.json", "612.json", "maxn.json"}
    features(config(clocks_mhz=[306.0, 612.0]), tmp_path)


def test_a_damaged_cell_is_set_aside_and_measured_again(tmp_path: Path) -> None:
    run(config(), tmp_path)
    cell = tmp_path / "data/profiles" / NAME / "612.json"
    whole = cell.read_bytes()
    cell.write_bytes(whole[:100])
    assert run(config(), tmp_path).measured == (612.0,)
    assert cell.read_bytes() == whole
    assert [p.read_bytes() for p in (tmp_path / "data/superseded").rglob("612.json")] == [whole[:100]]


def test_clock_outside_the_table_and_unknown_workload(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="612 and 714 MHz"):
        run(config(clocks_mhz=[650.0]), tmp_path)
    with pytest.raises(InputError, match="Did you mean bert-small-sst2"):
        profile(config(), "bert-small-sst", tmp_path, tmp_path)
    conf = config()
    conf.board.id = "nano"
    with pytest.raises(InputError, match="no board 'nano'"):
        run(conf, tmp_path)


class TestFeatures:
    def test_missing_orphan_and_stale_cells_are_refused(self, tmp_path: Path) -> None:
        conf = config()
        with pytest.raises(InputError, match=r"306.json is missing.*dvc repro"):
            features(conf, tmp_path)
        run(conf, tmp_path)
        folder = tmp_path / "data/profiles" / NAME
        (folder / "999.json").write_text("{}")
        with pytest.raises(InputError, match=r"999.json is not a cell of this sweep"):
            features(conf, tmp_path)
        (folder / "999.json").unlink()
        with pytest.raises(InputError, match="another protocol"):
            features(config(steps=21), tmp_path)

    def test_folders_of_other_workloads_are_left_alone(self, tmp_path: Path) -> None:
        run(config(), tmp_path)
        other = tmp_path / "data/profiles/other-task"
        other.mkdir()
        (other / "x.json").write_text("{")
        features(config(), tmp_path)
        table = (tmp_path / "data/features/features.csv").read_text().splitlines()
        assert len(table) == 1 + 4 * 2


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import wattune.boards.virtual.board as board
import time
measure = board.VirtualBoard.measure
def slow(self, *a, **k):
    time.sleep(0.02)
    return measure(self, *a, **k)
board.VirtualBoard.measure = slow
from test_profile import config, run
print("go", flush=True)
run(config(), Path(sys.argv[2]))
"""


@pytest.mark.long
@pytest.mark.parametrize("kills", [8, pytest.param(80, marks=pytest.mark.slow)])
def test_killed_anywhere_it_goes_on_where_it_stopped(tmp_path: Path, kills: int) -> None:
    """SIGKILL at random moments: what is finished is never measured again, what is there is always whole."""
    rng = random.Random(kills)
    environment = {
        **os.environ,
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}:{ROOT / 'tests/integration'}",
    }
    seen: dict[str, int] = {}
    for _ in range(kills):
        command = [sys.executable, "-c", SCRIPT, str(Path(__file__).parent), str(tmp_path)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.3 / kills**0.5))
            process.send_signal(signal.SIGKILL)
        folder = tmp_path / "data/profiles" / NAME
        if folder.is_dir():
            now = {p.name: p.stat().st_mtime_ns for p in folder.glob("[!.]*")}
            for name in now:
                json.loads((folder / name).read_text())
            assert {name: now[name] for name in seen} == seen
            seen = now
    result = run(config(), tmp_path)
    assert {k: v for k, v in cells(tmp_path).items() if k in seen} == seen
    assert len(result.kept) == len(seen)
    assert len(cells(tmp_path)) == 4


@pytest.fixture
def mounted(tmp_path: Path):  # type: ignore[no-untyped-def]
    """Mounts a small or read-only file system where that is permitted."""
    folder = tmp_path / "mnt"
    folder.mkdir()
    made = []

    def mount(options: str) -> Path:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"mounting is not permitted here: {done.stderr.strip()}")
        made.append(folder)
        return folder

    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    yield mount
    for path in made:
        subprocess.run(["umount", "-l", str(path)], check=False)


def test_disk_full_in_the_middle_of_a_sweep(mounted) -> None:  # type: ignore[no-untyped-def]
    folder = mounted("size=12k")
    with pytest.raises(BoardError, match="the disk is full") as caught:
        profile(config(repeats=4), NAME, folder / "profiles", folder / "superseded")
    assert caught.value.exit_code == 3
    left = list((folder / "profiles" / NAME).iterdir())
    assert 0 < len(left) < 4
    assert all(p.suffix == ".json" and json.loads(p.read_text()) for p in left)


def test_read_only_data_folder(mounted) -> None:  # type: ignore[no-untyped-def]
    folder = mounted("ro")
    with pytest.raises(BoardError, match="the file system is read-only"):
        profile(config(), NAME, folder / "profiles", folder / "superseded")


def test_the_protocol_names_all_that_cells_rest_on_and_nothing_else() -> None:
    """Every field of board and sweep moves it, but for those that only a real board has; so does the board's file."""

    def of(**board: object) -> dict[str, object]:
        given = {"constants": str(ROOT / "src/wattune/boards/virtual/jetson-agx-orin-64gb.json"), **board}
        return protocol(to_config({"board": given}))

    assert protocol(config()) == protocol(config())
    assert (
        len(
            {
                json.dumps(protocol(config(**{k: v})))
                for k, v in {"repeats": 3, "steps": 21, "seed": 7}.items()
            }
        )
        == 3
    )
    assert of() == of(live={"hz": 7.0}, root="elsewhere")
    assert of() != of(power_mode="30W")
    xavier = of(constants=str(ROOT / "src/wattune/boards/virtual/jetson-agx-xavier.json"))
    assert of()["constants_sha256"] != xavier["constants_sha256"]
    assert of(kind="jetson") != of(kind="jetson", live={"hz": 7.0})
    with pytest.raises(InputError, match=r"nowhere\.json"):
        of(constants="nowhere.json")
