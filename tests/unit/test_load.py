"""What is measured on a real board: loops that count their steps, and how they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wattune.core.errors import BoardError, InputError
from wattune.core.workload import Workload
from wattune.profiling.load import CommandLoad, ExternalLoad, read_steps, wait_for_first, write_steps
from wattune.workloads.build import build_named

SRC = Path(__file__).parents[2] / "src"
WORKLOAD: Workload = build_named("bert-small-sst2")
LOOP = """
import os, sys, time
path, more = sys.argv[1], sys.argv[2:]
sys.stderr.write("set up " + " ".join(more) + chr(10))
for step in range(10**9):
    with open(path + ".new", "w") as file: file.write(str(step))
    os.replace(path + ".new", path)
    time.sleep(0.01)
    if "die" in more and step == 20:
        sys.exit("CUDA out of memory")
    if "child" in more and step == 5:
        os.spawnvp(os.P_NOWAIT, "sleep", ["sleep", "123.5"])
"""


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Callable[..., CommandLoad]]:
    script = tmp_path / "loop with space.py"
    script.write_text(LOOP)
    made: list[CommandLoad] = []

    def make(more: str = "") -> CommandLoad:
        made.append(
            CommandLoad(f"{sys.executable} '{script}' {{steps_file}} {more}", lambda _: {"max_length": 64})
        )
        return made[-1]

    yield make
    for load in made:
        load.stop()


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


def gone(pid: int, patience_s: float = 5.0) -> bool:
    until = time.monotonic() + patience_s
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


@pytest.mark.parametrize(
    ("text", "steps"), [("12\n", 12), ("0", 0), ("", None), ("\n", None), ('{"steps": 7, "loss": 0.1}', 7)]
)
def test_a_count_is_read(tmp_path: Path, text: str, steps: int | None) -> None:
    (tmp_path / "steps").write_text(text)
    assert read_steps(tmp_path / "steps") == steps
    assert read_steps(tmp_path / "missing") is None


@pytest.mark.parametrize(
    "text",
    ["-1", "twelve", "1.5", "true", "[1]", '{"step": 1}', "1 2", "{", "null", "nan", "1e3", "[" * 9999],
)
def test_what_is_no_count_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "steps").write_text(text)
    with pytest.raises(BoardError, match=r"steps file .* says"):
        read_steps(tmp_path / "steps")


def test_what_we_write_is_what_we_read(tmp_path: Path) -> None:
    write_steps(tmp_path / "steps", 3)
    write_steps(tmp_path / "steps", 4)
    assert read_steps(tmp_path / "steps") == 4
    assert [path.name for path in tmp_path.iterdir()] == ["steps"]


def test_a_command_counts_and_is_ended_with_all_it_started(loop: Callable[..., CommandLoad]) -> None:
    load = loop("child")
    load.start(WORKLOAD, 1)
    pid = load.pid
    assert pid is not None
    assert wait_for_first(load, 20) > 0
    until = time.monotonic() + 10
    while (load.steps() or 0) < 10 and time.monotonic() < until:
        time.sleep(0.01)
    group = subprocess.run(["ps", "-o", "pid=", "-g", str(pid)], capture_output=True, text=True, check=False)
    members = [int(p) for p in group.stdout.split()] or [pid]
    load.stop()
    assert all(gone(member) for member in members)
    assert load.pid is None
    load.stop()


def test_it_stands_still_while_paused(loop: Callable[..., CommandLoad]) -> None:
    load = loop()
    load.start(WORKLOAD, 1)
    wait_for_first(load, 20)
    assert load.pause()
    time.sleep(0.05)
    count = load.steps()
    time.sleep(0.2)
    assert load.steps() == count
    load.resume()
    time.sleep(0.3)
    assert (load.steps() or 0) > (count or 0)
    load.pause()
    pid = load.pid
    load.stop()  # a stopped one is ended too
    assert pid is not None
    assert gone(pid)


def test_its_death_is_told_with_the_end_of_its_stderr(loop: Callable[..., CommandLoad]) -> None:
    load = loop("die {model} {task} {batch_size} {precision} {max_length} {seed}")
    load.start(WORKLOAD, 7)
    with pytest.raises(
        BoardError, match=r"exit code 1.*set up die bert-small sst2 32 fp16 64 7 \| CUDA out of memory"
    ):
        wait_for_first_forever(load)
    load = loop()
    load.start(WORKLOAD, 1)
    wait_for_first(load, 20)
    assert load.pid is not None
    os.kill(load.pid, signal.SIGKILL)
    with pytest.raises(BoardError, match="killed by SIGKILL"):
        wait_for_first_forever(load)


def wait_for_first_forever(load: CommandLoad) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        load.steps()
        time.sleep(0.01)


def test_it_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    script = (
        "import os, signal, sys\nfrom wattune.profiling.load import CommandLoad, wait_for_first\n"
        "from wattune.workloads.build import build_named\n"
        f"load = CommandLoad('{sys.executable} {tmp_path}/loop.py {{steps_file}}')\n"
        "load.start(build_named('bert-small-sst2'), 1)\nwait_for_first(load, 20)\nprint(load.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert gone(int(done.stdout))


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("train 'half", "words"),
        ("no-such-program-here {model}", "no program"),
        ("python {modell}", r"\{modell\}"),
    ],
)
def test_a_command_that_cannot_be_one_is_bad_input(command: str, why: str) -> None:
    with pytest.raises(InputError, match=why) as refused:
        CommandLoad(command).check(WORKLOAD)
    assert refused.value.hint


def test_other_braces_are_left_alone(loop: Callable[..., CommandLoad]) -> None:
    load = CommandLoad('echo {"a":1} {model}')
    assert load._words(WORKLOAD, "s", 1) == ["echo", "{a:1}", "bert-small"]


def test_an_external_loop_must_be_there_and_go_on(tmp_path: Path) -> None:
    load = ExternalLoad(tmp_path / "steps")
    with pytest.raises(InputError, match="no steps file"):
        load.check(WORKLOAD)
    write_steps(tmp_path / "steps", 5)
    load.start(WORKLOAD, 1)
    with pytest.raises(BoardError, match="no step within"):
        wait_for_first(load, 0.2)
    assert not load.pause()
    load.stop()
    assert load.steps() == 5


def test_an_external_loop_that_trains_something_else_is_refused(tmp_path: Path) -> None:
    load = ExternalLoad(tmp_path / "steps")
    (tmp_path / "steps").write_text('{"steps": 3, "workload": "bert-large-mnli"}')
    with pytest.raises(BoardError, match="trains 'bert-large-mnli'"):
        load.start(WORKLOAD, 1)
    (tmp_path / "steps").write_text('{"steps": 3, "workload": "BERT-small-sst2"}')
    load.start(WORKLOAD, 1)
