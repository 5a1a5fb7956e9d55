"""What a person at a terminal sees, in real children on a pseudo-terminal; and plain text wherever that is unfit."""

from __future__ import annotations

import csv
import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

pytest.importorskip("rich")
pytest.importorskip("yaml")

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
SOURCE = str(ROOT / "src")
MAIN = "import sys; from wattune.cli import main; sys.exit(main(sys.argv[1:]))"
WITHOUT_RICH = f"import sys; sys.modules['rich'] = None; {MAIN}"
RULE = "\N{BOX DRAWINGS LIGHT HORIZONTAL}" * 8
HIDE, SHOW = b"\x1b[?25l", b"\x1b[?25h"
SWEEP = """board,workload,gpu_mhz,setting,energy_j,time_s
orin,bert-base-qnli-long-name,306,,120.5,30
orin,bert-base-qnli-long-name,612,,100.25,18.5
orin,bert-base-qnli-long-name,,maxn,131.75,15.25
orin,gpt,306,,12.125,3.5
orin,gpt,612,,14.5,2
orin,gpt,,maxn,17.375,1.875
"""


@dataclass
class Ended:
    """A command that ended: its exit code, what its terminal was sent, and its stdout where that was a pipe."""

    code: int
    screen: bytes
    stdout: bytes

    @property
    def text(self) -> str:
        return plain(self.screen)


def plain(screen: bytes) -> str:
    """Without control sequences; lines as a pipe has them."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen.decode()).replace("\r\n", "\n")


def environment(**more: str) -> dict[str, str]:
    kept = {
        name: value
        for name, value in os.environ.items()
        if name not in ("NO_COLOR", "COLUMNS", "FORCE_COLOR", "WATTUNE_DATA")
    }
    return kept | {"TERM": "xterm-256color", "PYTHONPATH": SOURCE} | more


def in_terminal(
    words: Sequence[str],
    *,
    code: str = MAIN,
    columns: int = 100,
    env: Mapping[str, str] | None = None,
    piped: bool = False,
    watch: Callable[[bytes, int, subprocess.Popen[bytes]], None] | None = None,
) -> Ended:
    """Run python with `code` on a terminal of its own; with `piped` its stdout is a pipe. `watch` sees the screen as it grows."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    child = subprocess.Popen(
        [sys.executable, "-c", code, *words],
        stdin=theirs, stdout=subprocess.PIPE if piped else theirs, stderr=theirs, cwd=ROOT,
        env=environment(**(env or {})), preexec_fn=own_terminal,
    )  # fmt: skip
    os.close(theirs)
    screen = b""
    while True:
        try:
            chunk = os.read(ours, 65536)
        except OSError:  # the last who had it open has ended
            break
        if not chunk:
            break
        screen += chunk
        if watch is not None:
            watch(screen, ours, child)
    out = child.stdout.read() if child.stdout is not None else b""
    code_of = child.wait(60)
    os.close(ours)
    return Ended(code_of, screen, out)


def in_pipes(words: Sequence[str], **env: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", MAIN, *words],
        capture_output=True,
        cwd=ROOT,
        env=environment(**env),
        check=False,
    )


@pytest.fixture
def replay(tmp_path: Path) -> list[str]:
    path = tmp_path / "sweep.csv"
    path.write_text(SWEEP)
    return ["replay", str(path), "--policy", "oracle"]


def test_a_terminal_gets_a_table_and_a_pipe_what_it_always_got(replay: list[str]) -> None:
    piped = in_pipes(replay)
    shown = in_terminal(replay)
    assert (piped.returncode, shown.code) == (0, 0)
    assert piped.stdout.decode().splitlines()[:2] == [
        "workload                   oracle  chosen  regret %  saving %  slowdown %  board",
        "bert-base-qnli-long-name      612     612      0.00     23.91        21.3  orin",
    ]
    assert b"\x1b" not in piped.stdout + piped.stderr
    assert RULE in shown.text
    assert "recorded" in shown.text
    assert b"\x1b[1m" in shown.screen


@pytest.mark.parametrize(
    ("env", "code"),
    [({"TERM": "dumb"}, MAIN), ({"TERM": ""}, MAIN), ({}, WITHOUT_RICH)],
    ids=["dumb", "no TERM", "without rich"],
)
@pytest.mark.parametrize("command", ["replay", "doctor", "predict", "pareto"])
def test_where_there_can_be_no_table_it_is_plain(
    command: str, env: dict[str, str], code: str, replay: list[str]
) -> None:
    workload = ["--model", "bert-base", "--task", "mnli"]
    words = {"replay": replay, "pareto": ["pareto", "--virtual", *workload]}.get(command, [command])
    words = [*words, *workload] if command == "predict" else words
    shown = in_terminal(words, env=env, code=code)
    assert shown.screen.replace(b"\r\n", b"\n") == in_pipes(words).stdout
    assert shown.code == 0


def test_no_color_takes_the_styles_and_leaves_the_table(replay: list[str]) -> None:
    shown = in_terminal(replay, env={"NO_COLOR": "1"})
    assert RULE in shown.text
    assert b"\x1b" not in shown.screen
    assert in_terminal(replay, env={"NO_COLOR": ""}).screen.count(b"\x1b[1m")  # empty means nothing


def test_a_narrow_terminal_loses_whole_columns_and_names_them(replay: list[str]) -> None:
    for width in (60, 50, 40):
        for how in ({"columns": 200, "env": {"COLUMNS": str(width)}}, {"columns": width}):
            text = in_terminal(replay, **how).text  # type: ignore[arg-type]
            assert max(map(len, text.splitlines())) <= width
            assert "\N{HORIZONTAL ELLIPSIS}" not in text
            assert "gpt" in text
            for figures in (("612", "306"), ("23.91", "30.22"), ("+21.3", "+86.7")):
                there = [figure in text for figure in figures]
                assert all(there) or not any(there)  # of a column all or nothing
    assert "(No room for: " in text


def test_names_from_files_cannot_steer_the_terminal(replay: list[str]) -> None:
    path = Path(replay[1])
    path.write_text(SWEEP.replace("gpt", "g\x1b[2Jpt[red]x[/red]"))
    shown = in_terminal(replay)
    assert b"\x1b[2J" not in shown.screen
    assert "pt[red]x[/red]" in shown.text


@pytest.mark.parametrize("command", ["doctor", "replay", "validate", "predict", "pareto"])
def test_json_is_the_same_with_and_without_a_terminal(command: str, replay: list[str]) -> None:
    workload = ["--model", "bert-base", "--task", "mnli"]
    words = {
        "doctor": ["doctor"],
        "replay": replay,
        "validate": ["validate", "--redraws", "1"],
        "predict": ["predict", *workload],
        "pareto": ["pareto", "--virtual", *workload],
    }[command]
    words = [*words, "--json"]
    piped = in_pipes(words)
    beside = in_terminal(words, piped=True)
    assert (piped.returncode, beside.code) == (0, 0)
    assert beside.stdout == piped.stdout
    assert b"\x1b" not in beside.stdout
    if command != "validate":  # whose progress goes to stderr, which is the same terminal there
        assert in_terminal(words).screen.replace(b"\r\n", b"\n") == piped.stdout


def test_the_output_of_a_command_that_is_run_is_its_own(tmp_path: Path) -> None:
    words = ["run", "--root", str(tmp_path), "--best-effort", "--mhz", "maxn", "--", "printf", "a\\tb\\n"]
    (tmp_path / "sys").mkdir()
    (tmp_path / "proc").mkdir()
    piped, beside = in_pipes(words), in_terminal(words, piped=True)
    assert (piped.returncode, beside.code) == (0, 0)
    assert piped.stdout == beside.stdout == b"a\tb\n"
    assert b"throttling  unknown" in piped.stderr
    assert "throttling" in beside.text
    assert b"\x1b[1m" in beside.screen
    for hidden in (HIDE, b"\x1b[2K"):  # no line of progress over it
        assert hidden not in beside.screen


def test_a_sweep_says_where_it_stands_and_its_stdout_is_for_scripts(tmp_path: Path) -> None:
    names = ["bert-small-sst2", "pythia-70m-rte"]
    piped = in_pipes(["sweep", *names, "--into", str(tmp_path / "a")])
    beside = in_terminal(["sweep", *names, "--into", str(tmp_path / "b")], columns=160, piped=True)
    assert (piped.returncode, beside.code) == (0, 0)
    assert beside.stdout.decode().replace("/b/", "/a/") == piped.stdout.decode()
    assert piped.stderr.decode().splitlines() == [
        f"{name}: 12 settings measured, 0 there already." for name in names
    ]
    lines = re.split(r"[\r\n]+", beside.text)
    assert "bert-small-sst2 0/12 settings" in lines[0]
    assert "time left not known yet" in lines[0]
    second = next(line for line in lines if "pythia-70m-rte 6/12 settings" in line)
    for what in (" left", " so far", "simulated", " MHz: ", " J/step", "\N{DEGREE SIGN}C"):
        assert what in second
    assert not [line for line in lines if "about 0 s left" in line]
    table = beside.text[beside.text.rindex("Settings of least energy") :]
    assert "simulated" in table
    row = next(line for line in table.splitlines() if line.startswith("pythia-70m-rte"))
    assert row.split()[-2:] == ["12", "0"]
    for name in names:  # and what was measured does not depend on who looks
        for cell in (tmp_path / "a" / name).iterdir():
            assert cell.read_bytes() == (tmp_path / "b" / name / cell.name).read_bytes()


@pytest.mark.parametrize(
    "env", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}], ids=["dumb", "no colour"]
)
def test_a_sweep_is_quiet_or_without_colour(env: dict[str, str], tmp_path: Path) -> None:
    shown = in_terminal(["sweep", "bert-small-sst2", "--into", str(tmp_path)], env=env)
    assert shown.code == 0
    assert not re.search(rb"\x1b\[[0-9;]*m", shown.screen)
    quiet = "TERM" in env and env["TERM"] == "dumb"
    assert (b"\x1b" in shown.screen, "12 settings measured, 0 there" in shown.text) == (not quiet, quiet)


def test_ctrl_c_in_a_sweep_leaves_a_sane_terminal_and_what_was_measured(tmp_path: Path) -> None:
    names = ["bert-small-sst2", "bert-base-mnli", "pythia-1b-qqp"]
    pressed: list[int] = []

    def press(screen: bytes, terminal: int, child: subprocess.Popen[bytes]) -> None:
        if b"bert-base-mnli 4/12" in screen and not pressed:
            pressed.append(len(screen))
            os.write(terminal, b"\x03")

    cut = in_terminal(["sweep", *names, "--into", str(tmp_path)], watch=press)
    assert pressed
    assert cut.code == 130
    assert cut.text.rstrip().endswith("wattune: interrupted.")
    assert cut.screen.rindex(SHOW) > cut.screen.rindex(HIDE)
    assert "Traceback" not in cut.text
    assert len(list((tmp_path / names[0]).glob("*.json"))) == 12
    kept = {path.name: path.read_bytes() for path in (tmp_path / names[1]).glob("*.json")}
    assert 4 <= len(kept) < 12
    again = in_terminal(["sweep", *names, "--into", str(tmp_path)], columns=160)
    assert again.code == 0
    rows = [line.split() for line in again.text.splitlines() if line.startswith(tuple(names))]
    measured = {row[0]: (int(row[-2]), int(row[-1])) for row in rows}
    assert measured == {names[0]: (0, 12), names[1]: (12 - len(kept), len(kept)), names[2]: (12, 0)}
    for name, data in kept.items():
        assert (tmp_path / names[1] / name).read_bytes() == data


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_cursor_is_never_left_hidden(number: int, tmp_path: Path) -> None:
    def end(screen: bytes, terminal: int, child: subprocess.Popen[bytes]) -> None:
        if b"2/12" in screen and child.poll() is None:
            child.send_signal(number)

    ended = in_terminal(["sweep", "bert-base-mnli", "pythia-1b-qqp", "--into", str(tmp_path)], watch=end)
    assert ended.code == -number
    assert ended.screen.rindex(SHOW) > ended.screen.rindex(HIDE)


def test_a_reader_that_goes_away_is_met_quietly(replay: list[str]) -> None:
    path = Path(replay[1])
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        for n in range(3000):
            for mhz in (306, 612):
                writer.writerow(["orin", f"w{n}", mhz, "", 10 + n + mhz / 100, 5])
    ours, theirs = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", MAIN, *replay],
        cwd=ROOT,
        env=environment(),
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    assert os.read(ours, 8) == b"workload"
    os.close(ours)
    assert child.communicate(timeout=60)[1] == b""
    assert child.returncode == 0


LINE = """
import logging, sys, threading, time
from pathlib import Path
from wattune.terminal import Line
logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
real = sys.stderr
with Line() as line:
    line.show(0.0, ["first part", "second part"])
    assert threading.active_count() == 1, "nothing may draw while something is measured"
    logging.getLogger("wattune").warning("said %s", "x" * 30)
    line.show(0.5, ["a" * 30, "b" * 30, "c" * 30])
    if sys.argv[1] == "gone":
        Path(sys.argv[2]).touch()
        time.sleep(1)
        for n in range(3):
            line.show(0.9, ["c"])
assert sys.stderr is real
assert logging.getLogger().handlers[0].stream is real
Path(sys.argv[2] + ".done").touch()
if sys.argv[1] != "gone":
    logging.getLogger("wattune").warning("after")
"""


def test_messages_go_above_the_line_and_parts_without_room_are_left_out(tmp_path: Path) -> None:
    shown = in_terminal(["stays", str(tmp_path / "x")], code=LINE, columns=70)
    assert shown.code == 0, shown.text
    assert "said " + "x" * 30 + "\n" in shown.text
    assert re.search(rb"\x1b\[2Ksaid x+\r\n", shown.screen)  # on a line that was cleared for it
    assert shown.text.endswith("after\n")
    assert "a" * 30 + " \N{MIDDLE DOT} " + "b" * 30 in shown.text
    assert "c" not in shown.text.replace("second", "")


def test_a_terminal_that_goes_away_ends_the_line_and_not_the_work(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", LINE, "gone", str(tmp_path / "x")], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs,
        env=environment(), start_new_session=True,
    )  # fmt: skip
    os.close(theirs)
    until = time.monotonic() + 30
    while not (tmp_path / "x").exists() and time.monotonic() < until:
        time.sleep(0.02)
    os.close(ours)
    assert child.wait(30) == 0
    assert (tmp_path / "x.done").exists()
