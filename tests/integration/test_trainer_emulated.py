"""The Trainer's callback and the context manager over a served emulated board, in processes of their own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from facts import governor
from live_boards import Served, served
from wattune.boards.virtual.emulator import fuse
from wattune.core.governor import canonical_json

pytestmark = [
    pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not())),
    pytest.mark.long,
]
TESTS = Path(__file__).parents[1]
HAVE = all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers", "accelerate"))
trainer = pytest.mark.skipif(
    not HAVE, reason="torch, transformers and accelerate are not installed (extra `train`)"
)

LOOP = """
import json, os, sys, time
from pathlib import Path
import wattune
root = Path(sys.argv[1])
how = json.loads(sys.argv[2])
def steps(): return json.loads((root / "emulator/status.json").read_text())["steps"]
with wattune.govern(**how) as run:
    print("training", flush=True)
    seen = steps()
    until = time.monotonic() + float(sys.argv[3])
    probing = run.session.task
    while time.monotonic() < until:
        if probing is not None and not probing.working:
            until, probing = time.monotonic() + 4, None
        time.sleep(0.005)
        now = steps()
        if now != seen:
            run.step(now - seen)
            seen = now
print(json.dumps(run.receipt), flush=True)
"""


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Served]:
    with served(tmp_path / "board", workload="bert-small-wnli") as one:
        yield one


def environment(board: Served | None) -> dict[str, str]:
    found = {k: v for k, v in os.environ.items() if not k.startswith("WATTUNE_")}
    path = [str(TESTS.parent / "src"), found.get("PYTHONPATH", "")]
    found |= {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    return found if board is None else found | {"WATTUNE_ROOT": str(board.root)}


def start(board: Served | None, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *words],
        env=environment(board),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def train(board: Served | None, out: Path, **how: Any) -> dict[str, Any]:
    """A whole training with the Trainer; its document."""
    words = [f"{key}={json.dumps(value)}" for key, value in how.items()]
    _, said = (one := start(board, str(TESTS / "tiny_trainer.py"), str(out), *words)).communicate(timeout=300)
    assert one.returncode == 0, said
    document = json.loads(out.read_text())
    document["stderr"] = said
    return document


def loop(board: Served, seconds: float, **how: Any) -> dict[str, Any]:
    """A plain loop that follows the board's own steps; its receipt."""
    one = start(board, "-c", LOOP, str(board.root), json.dumps(how), str(seconds))
    out, said = one.communicate(timeout=seconds + 60)
    assert one.returncode == 0, said
    return json.loads(out.splitlines()[-1])


# --- the Trainer


@trainer
@pytest.mark.slow
def test_probing_leaves_the_loss_curve_as_it_is_to_the_last_bit(board: Served, tmp_path: Path) -> None:
    """Same seed with and without: every loss and the sum of all parameters agree exactly, and no step is lost."""
    steps = 120  # a busy machine's windows take longer, and the probe must end before the training does
    plain = train(None, tmp_path / "plain.json", plain=1, max_steps=steps)
    probed = train(
        board,
        tmp_path / "probed.json",
        probe=True,
        probe_window_s=0.5,
        steps=100_000,
        max_steps=steps,
        pause=0.35,
    )
    assert len(probed["losses"]) == steps
    assert probed["losses"] == plain["losses"]
    assert probed["digest"] == plain["digest"]
    receipt = probed["receipt"]
    assert receipt["probe"]["gave_up"] is None, receipt["notes"]
    assert len(receipt["probe"]["measured"]) >= 2
    assert receipt["steps"] == steps
    assert board.restored(0.5)


@trainer
def test_energy_reaches_the_log_and_those_who_report_before_us(board: Served, tmp_path: Path) -> None:
    document = train(board, tmp_path / "r.json", mhz=612, max_steps=20, pause=0.2)
    entries = [entry for entry in document["log"] if "loss" in entry]
    assert all({"energy_j", "power_w", "energy_j_per_step", "gpu_mhz"} <= set(entry) for entry in entries)
    assert [entry["gpu_mhz"] for entry in entries] == [612.0] * len(entries)
    spent = [entry["energy_j"] for entry in entries]
    assert spent == sorted(spent)
    assert sum(entry["energy_j_per_step"] for entry in entries) == pytest.approx(spent[-1], rel=1e-6)
    last, receipt = (
        document["log"][-1],
        document["receipt"],
    )  # of the whole training, and not of what came since the entry before
    assert "train_runtime" in last
    assert last["energy_j_per_step"] == pytest.approx(receipt["energy_j_per_step"]["gpu_cpu"], rel=0.02)
    assert last["energy_module_j_per_step"] == pytest.approx(receipt["energy_j_per_step"]["module"], rel=0.02)
    assert last["power_w"] == pytest.approx(receipt["mean_power_w"]["gpu_cpu"], rel=0.02)
    assert last["gpu_mhz"] == receipt["gpu_mhz_mean"]
    epochs = [entry["energy_epoch_j"] for entry in document["log"] if "energy_epoch_j" in entry]
    assert len(epochs) == 2
    assert sum(epochs) == pytest.approx(document["receipt"]["energy_j"]["gpu_cpu"], rel=0.05)
    reported = [entry for entry in document["reported"] if "loss" in entry]
    assert [entry["energy_j"] for entry in reported] == spent
    assert board.restored(0.5)


@trainer
def test_a_governor_is_told_by_the_model_and_its_first_batches(board: Served, tmp_path: Path) -> None:
    (tmp_path / "g.json").write_text(canonical_json(governor(board="jetson-agx-orin-64gb")))
    document = train(board, tmp_path / "r.json", governor=str(tmp_path / "g.json"), max_steps=10, pause=0.1)
    receipt = document["receipt"]
    assert receipt["setting"] == 612.0  # two layers: the governor's first leaf
    assert receipt["features"]["family"] == "bert"
    assert receipt["features"]["layers"] == 2
    assert receipt["features"]["hidden"] == 32
    assert "Outside what the governor was trained on: layers." in receipt["notes"]


@trainer
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_trainer_killed_in_the_middle_is_restored(
    board: Served, tmp_path: Path, number: signal.Signals
) -> None:
    one = start(
        board,
        str(TESTS / "tiny_trainer.py"),
        str(tmp_path / "r.json"),
        "mhz=510",
        "max_steps=4000",
        "pause=0.05",
    )
    assert one.stdout is not None
    assert one.stdout.readline() == "training\n"
    assert board.pinned(510)
    time.sleep(0.5)
    one.send_signal(number)
    one.communicate(timeout=60)
    assert one.returncode not in (0, None)
    assert board.restored()


@trainer
@pytest.mark.parametrize(
    ("breaks", "how"),
    [
        ("data:ValueError", {"mhz": 510}),
        ("model:OutOfMemoryError", {"mhz": 510}),
        ("model:KeyboardInterrupt", {"mhz": 510}),
        ("end:SystemExit", {"mhz": 510}),
        ("end:KeyboardInterrupt", {"probe": True}),
    ],
)
def test_a_training_that_ends_by_an_exception_has_its_clock_back_at_once(
    board: Served, tmp_path: Path, breaks: str, how: dict[str, Any]
) -> None:
    """Whoever catches it: the program goes on, its clock is back, its receipt is there, and it may train again."""
    words = [
        f"{key}={json.dumps(value)}" for key, value in {**how, "breaks": breaks, "max_steps": 12}.items()
    ]
    one = start(board, str(TESTS / "tiny_trainer.py"), str(tmp_path / "r.json"), *words, "pause=0.2")
    assert one.stdout is not None
    assert one.stdout.readline() == "training\n"
    assert "probe" in how or board.pinned(510)
    assert f"caught {breaks.partition(':')[2]}\n" in iter(one.stdout.readline, "")
    assert board.restored(2.0)
    assert one.poll() is None
    _, said = one.communicate("on\n", timeout=120)
    assert one.returncode == 0, said
    document = json.loads((tmp_path / "r.json").read_text())
    assert (
        document["broken"]["steps"]
        in {"model": [5], "end": [6], "data": range(1, 12)}[breaks.partition(":")[0]]
    )
    assert document["broken"]["energy_j"]["gpu_cpu"] > 0
    assert document["receipt"]["steps"] == 12
    assert (document["broken"]["restored"], document["receipt"]["restored"]) == (True, True)
    assert board.restored(0.5)


@trainer
def test_a_training_that_ends_the_program_has_its_clock_back_first(board: Served, tmp_path: Path) -> None:
    words = ["mhz=510", "max_steps=12", "pause=0.1", 'breaks="data:GeneratorExit"']
    one = start(board, str(TESTS / "tiny_trainer.py"), str(tmp_path / "r.json"), *words)
    _, said = one.communicate(timeout=120)
    assert one.returncode == 1
    assert "GeneratorExit" in said
    assert "chosen by   mhz: mhz=510" in said  # the receipt
    assert board.restored(0)


@trainer
def test_elsewhere_it_does_nothing_and_says_so_once(tmp_path: Path) -> None:
    document = train(None, tmp_path / "r.json", probe=True, max_steps=4)
    assert document["receipt"] is None
    assert document["stderr"].count("no Jetson") == 1
    assert not any("energy_j" in entry for entry in document["log"])


@trainer
def test_importing_the_callback_costs_little_beyond_transformers() -> None:
    """At most 50 ms, and nothing of transformers or torch of our own. The least of three counts."""
    code = (
        "import sys, time\nimport transformers.trainer_callback\nbefore = set(sys.modules)\nt = time.perf_counter()\n"
        "from wattune import WattuneCallback\nprint(time.perf_counter() - t)\n"
        "assert not {m for m in set(sys.modules) - before if m.split('.')[0] in ('torch', 'transformers', 'numpy', 'mlflow')}\n"
    )
    alone = "from wattune import WattuneCallback, govern; import sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    env = environment(None)
    subprocess.run([sys.executable, "-c", alone], check=True, env=env)
    spent = [
        float(
            subprocess.run(
                [sys.executable, "-c", code], check=True, env=env, capture_output=True, text=True
            ).stdout
        )
        for _ in range(3)
    ]
    assert min(spent) <= 0.05, spent


# --- a loop of one's own


def test_a_plain_loop_is_held_and_measured(board: Served) -> None:
    receipt = loop(board, 3, mhz=612)
    assert (receipt["setting"], receipt["restored"], receipt["steps"] > 3) == (612.0, True, True)
    assert receipt["energy_j"]["gpu_cpu"] > 5
    assert board.restored(0)


def test_a_plain_loop_probes(board: Served) -> None:
    receipt = loop(board, 120, probe=True, probe_window_s=0.25)
    assert receipt["probe"]["gave_up"] is None, receipt["notes"]
    assert len(receipt["probe"]["measured"]) >= 2
    assert receipt["measured_saving_pct"] > 0
    assert receipt["setting"] in (510.0, 612.0, 714.0, 816.0)


@pytest.mark.parametrize("how", [{"mhz": 510}, {"probe": True, "probe_window_s": 0.5}])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_loop_killed_in_the_middle_is_restored(
    board: Served, number: signal.Signals, how: dict[str, Any]
) -> None:
    """While a clock is held from the start, and while a probe's thread holds its first one."""
    one = start(board, "-c", LOOP, str(board.root), json.dumps(how), "60")
    assert one.stdout is not None
    assert one.stdout.readline() == "training\n"
    assert board.pinned(510, 30)
    one.send_signal(number)
    one.communicate(timeout=60)
    assert one.returncode == (1 if number == signal.SIGINT and one.returncode == 1 else -number)
    assert board.restored()


def test_within_wattune_run_it_counts_and_leaves_the_clock_alone(board: Served, tmp_path: Path) -> None:
    words = ["-m", "wattune", "run", "--mhz", "612", "--json", str(tmp_path / "r.json"), "--"]
    inner = [sys.executable, "-c", LOOP, str(board.root), json.dumps({"mhz": 918}), "3"]
    out, said = (one := start(board, *words, *inner)).communicate(timeout=60)
    assert one.returncode == 0, said
    receipt = json.loads(out.splitlines()[-1])
    assert (receipt["setting"], receipt["pins"]) == ("maxn", [])
    outer = json.loads((tmp_path / "r.json").read_text())
    assert (outer["setting"], outer["steps"]) == (612.0, receipt["steps"])
