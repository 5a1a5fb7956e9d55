"""The commands of README.md and docs/, run: each page is a session in a clone of its own, on an emulated board.

A session is one shell, so that `cd`, `export` and `&` mean what they mean to a reader; its first command that does not end with 0
fails the page. Folders of the machine (`/tmp/...`, the home folder) are the session's own, programs that would change the
machine or fetch something are refused, and what a page takes for given (`train.py`, `my_sweep.csv`) lies there. What is not
run stands in `not_run.py`.
"""

from __future__ import annotations

import contextlib
import csv
import importlib.util
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import tiny
from not_run import NEEDS, WITHOUT_END, left
from pages import ROOT, Command, page_commands, pages

TESTS = Path(__file__).parents[1]
LIMIT_S = 600
BOARD = "jetson-agx-orin-64gb"
TORCH = importlib.util.find_spec("transformers") is not None
REFUSED = (
    "pip", "apt-get", "systemctl", "nvpmodel", "groupadd", "groupdel", "usermod", "udevadm", "visudo", "ssh", "curl", "wget",
    "docker", "reboot", "shutdown", "install",
)  # fmt: skip
CLOCKS = (306.0, 510.0, 714.0, 1020.0, 1300.5)
LINE = (
    "RAM 1000/62780MB (lfb 4x4MB) CPU [6%@729,off] GR3D_FREQ 12%@[{mhz},{mhz}] gpu@46C"
    " VDD_GPU_SOC {mw}mW/4067mW VDD_CPU_CV 1000mW/1000mW VIN_SYS_5V0 3000mW/3000mW"
)

TRAIN = """
import os, time
for step in range(1, 21):
    time.sleep(0.05)
    where = os.environ.get("WATTUNE_STEPS_FILE")
    if where:
        open(where + ".new", "w").write(str(step))
        os.replace(where + ".new", where)
"""

AROUND = """
class Trainer:
    def __init__(self, *_, callbacks): self.callbacks = callbacks
model, loader = None, [1, 2]
"""
"""What a snippet of Python on a page takes for given."""


# --- what a page takes for given ------------------------------------------------------------------------------------


def sweep(path: Path, board: str = "my-board") -> None:
    """Three workloads at five clocks and MAXN."""
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow(["board", "workload", "gpu_mhz", "energy_j", "time_s", "setting"])
        for index, best in enumerate((510, 714, 714)):
            for mhz in CLOCKS:
                out.writerow([board, f"w{index}", mhz, 100 + ((mhz - best) / 100) ** 2, 5000 / mhz, ""])
            out.writerow([board, f"w{index}", "", 150, 4, "maxn"])


def furnish(folder: Path, *, model: bool) -> None:
    """The files that pages speak of and no command of theirs makes."""
    (folder / "train.py").write_text(TRAIN)
    for name in ("my_sweep.csv", "my.csv"):
        sweep(folder / name, BOARD)
    (folder / "folder").mkdir()
    sweep(folder / "folder/one.csv")
    sweep(folder / "folder/two.csv", "another-board")
    lines = [LINE.format(mhz=1300 - index, mw=4000 + index) for index in range(20)]
    dated = [f"11-30-2026 14:00:{index:02d} {line}" for index, line in enumerate(lines)]
    for name, kept in (("LOG", dated), ("board.log", dated), ("old.log", lines)):
        (folder / name).write_text("\n".join(kept) + "\n")
    if model:
        tiny.folder(folder / "my-model", tiny.BERT, weights=True)
        rows = [{"review": row["text"], "stars": row["label"]} for row in tiny.rows(60)]
        tiny.write_csv(folder / "reviews.csv", rows)


SUDO = """while [ "${1#-}" != "$1" ]; do shift; done
[ "$1" = wattune ] && exec "$@"
echo "sudo $1: refused in a test" >&2; exit 97"""


def programs(folder: Path, clone: Path) -> None:
    """A `bin` with our programs, a sudo for `wattune` alone, and refusals; and a .venv that make takes for set up."""
    python = shlex.quote(sys.executable)
    ours = {name: f'exec {python} -m {name} "$@"' for name in ("wattune", "dvc", "mlflow")}
    ours |= dict.fromkeys(("python", "python3"), f'exec {python} "$@"')
    ours["until-stopped"] = f'exec {python} {shlex.quote(str(TESTS / "until_stopped.py"))} "$@"'
    refused = {name: f'echo "{name}: refused in a test" >&2; exit 97' for name in REFUSED}
    for where, texts in ((folder, {**ours, **refused, "sudo": SUDO}), (clone / ".venv/bin", ours)):
        where.mkdir(parents=True)
        for name, text in texts.items():
            (where / name).write_text(f"#!/bin/sh\n{text}\n")
            (where / name).chmod(0o755)
    (clone / ".venv/bin/activate").write_text(f"export PATH={shlex.quote(str(clone / '.venv/bin'))}:$PATH\n")
    for mark in (".pipeline", ".dev", ".test"):
        (clone / ".venv" / mark).touch()


def clone(folder: Path) -> Path:
    """The working tree as a clone would have it, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "clone"]):
        subprocess.run([*git, *command], cwd=folder, check=True)
    return folder


# --- the session ----------------------------------------------------------------------------------------------------


def installed(what: str) -> bool:
    """Whether there is a module or a program of that name."""
    return importlib.util.find_spec(what) is not None or shutil.which(what) is not None


def to_run(command: Command) -> str:
    """What the session runs for a command of a page; nothing where it is only parsed."""
    name = command.name
    entry = left(command.page, name)
    if entry:
        name = entry.instead
    if not name or not all(installed(what) for form, what in NEEDS.items() if name.startswith(form)):
        return ""
    pattern = next((p for form, p in WITHOUT_END.items() if re.fullmatch(form, name)), "")
    if pattern:
        return f"until-stopped {shlex.quote(pattern)} {shlex.quote(name)}"
    text = entry.instead if entry else command.text
    started = re.match(r"wattune emulate (\S+).*&\s*(#.*)?$", text)
    if started:  # a reader takes longer to type the next line
        text += f"\nuntil [ -e {started[1]}/emulator/status.json ]; do sleep 0.1; done"
    return text


def script(typed: Iterable[Command], own: Path) -> str:
    """Commands as a shell script that says which one it is at, and stops at the first that fails."""
    lines = []
    for command in typed:
        text = to_run(command)
        if text:
            text = re.sub(r"(?<![\w.~])/(tmp|media)/", rf"{own}/\1/", text)
            lines.append(
                f"echo '@@ {command.page}:{command.line}'\n{text}\nrc=$?; [ $rc = 0 ] || {{ echo \"@@ ended with $rc\"; exit 1; }}"
            )
    return "\n".join(lines)


def runs_the_pipeline(page: str) -> bool:
    """Whether a session makes its own results, and starts without any."""
    return any(
        re.match(r"(\w+=\S+ )*(make repro|dvc repro$)", to_run(command)) for command in page_commands(page)
    )


@contextlib.contextmanager
def shell(text: str, folder: Path, environment: dict[str, str], log: Path) -> Iterator[int]:
    """Run a script; afterwards nothing that it started goes on."""
    with log.open("w") as out:
        bash = subprocess.Popen(
            ["bash", "-c", text], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield bash.wait(LIMIT_S)
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(bash.pid, number)
            ends = time.monotonic() + 10
            while time.monotonic() < ends and group_lives(bash.pid):
                time.sleep(0.05)
        bash.wait()


def group_lives(group: int) -> bool:
    """Whether a process group has a member that is no zombie."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


TUTORIAL = "docs/tutorial.md"
"""The page that runs the pipeline: half of the time of all."""

SESSIONS = [page for page in pages() if any(to_run(command) for command in page_commands(page))]


def type_page(page: str, folder: Path, results: Path | None = None, board: Path | None = None) -> None:
    """A page, typed from top to bottom.

    Args:
        page: which.
        folder: where the session's clone and all other folders of its are made.
        results: of a pipeline that has run before, unless the page runs it.
        board: the tree of an emulated board that commands find.
    """
    work = clone(folder / "clone")
    furnish(work, model=TORCH and "my-model" in (ROOT / page).read_text(encoding="utf-8"))
    if results:
        shutil.copytree(results, work, dirs_exist_ok=True)
    programs(folder / "bin", work)
    for name in ("home", "tmp", "media", "no board"):
        (folder / name).mkdir()
    hidden = (
        "MLFLOW_TRACKING_URI",
        "WATTUNE_DATA",
        "VIRTUAL_ENV",
        "MAKEFLAGS",
        "MAKELEVEL",
        "WATTUNE_STEPS_FILE",
    )
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    people = {
        f"GIT_{who}_{what}": "reader@example.org"
        for who in ("AUTHOR", "COMMITTER")
        for what in ("NAME", "EMAIL")
    }
    environment |= {
        "PATH": f"{folder / 'bin'}:{environment['PATH']}",
        "HOME": str(folder / "home"),
        "USER": "reader",
        "PYTHONPATH": str(work / "src"),
        "WATTUNE_ROOT": str(board or folder / "no board"),
        "HF_HUB_OFFLINE": "1",
        "DVC_NO_ANALYTICS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **people,
    }
    log = folder / "log"
    with shell(script(page_commands(page), folder), work, environment, log) as code:
        said = log.read_text(errors="replace")
        assert code == 0, f"{page}: " + "\n".join(said[said.rfind("@@ " + page) :].split("\n")[-40:])
        assert "Traceback" not in said, said[-3000:]
