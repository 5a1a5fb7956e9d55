"""Serving the emulator's tree, mounted and as a plain folder: what clients see, what is refused, what is left behind.

The board behind it is a stub without physics; run as a script, this file is the server of that stub.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes.util
import errno
import fcntl
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.emulator import fuse, plain, serve, supervisor, volatile
from wattune.boards.virtual.emulator.devfreq import Devfreq
from wattune.boards.virtual.emulator.tree import File, Tree
from wattune.core.errors import InputError, WattuneError
from wattune.core.workload import Workload
from wattune.governing.bounds import Bounds, read_bounds, write_bounds

SRC = Path(__file__).parents[2] / "src"
NODE = "sys/devices/gpu/devfreq/gpu"
TABLE = (306, 612, 1300)
CLOCKS = tuple(mhz * 1_000_000 for mhz in (306, 612, 1020, 1224))
TEXTS = ("9\n", "1234567890\n", "-42\n")


class StubDevfreq:
    def __init__(self) -> None:
        self.low, self.high = TABLE[0], TABLE[-1]

    @property
    def cur_hz(self) -> int:
        return self.high

    def bounds_hz(self) -> tuple[int, int]:
        return self.low, self.high

    def set_low(self, text: str) -> None:
        self.low = self._checked(text)

    def set_high(self, text: str) -> None:
        self.high = self._checked(text)

    def _checked(self, text: str) -> int:
        if text.strip() not in map(str, TABLE):
            raise OSError(errno.EINVAL, "Invalid argument")
        return int(text)


class StubMachine:
    """What serving needs of a board, and nothing else."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.file = SimpleNamespace(
            board="stub",
            module_rails=[
                SimpleNamespace(label="GPU", gpu_cpu=True),
                SimpleNamespace(label="SYS", gpu_cpu=False),
            ],
        )
        self.jetpack, self.power_mode, self.boot_id = "6", "MAXN", "0-0"
        self.devfreq = StubDevfreq()
        self.workload_id: str | None = "bert-base-sst2"
        self.steps_done = 0
        self.uptime_s = 0.0
        self.true_power_w = {"GPU": 4.0, "SYS": 3.0}
        self.true_energy_j = {"GPU": 0.0, "SYS": 0.0}
        self.faults: set[str] = set()

    def advance(self) -> None:
        self.steps_done += 1

    def set_workload(self, workload: Workload | None) -> None:
        self.workload_id = None if workload is None else workload.id


def stub() -> tuple[StubMachine, Tree, Callable[[str], Workload | None], Callable[[str], None]]:
    machine, tree = StubMachine(), Tree()
    devfreq, faults = machine.devfreq, machine.faults
    reads = iter(range(10**9))

    def rail() -> str:
        if "eio" in faults:
            raise OSError(errno.EIO, "Input/output error")
        return "19864\n"

    tree.add(f"{NODE}/min_freq", File(lambda: f"{devfreq.low}\n", devfreq.set_low))
    tree.add(f"{NODE}/max_freq", File(lambda: f"{devfreq.high}\n", devfreq.set_high))
    tree.add(f"{NODE}/cur_freq", File(lambda: f"{devfreq.cur_hz}\n"))
    tree.add(f"{NODE}/reads", File(lambda: f"{next(reads)}\n"))
    tree.add(f"{NODE}/changing", File(lambda: TEXTS[next(reads) % len(TEXTS)]))
    tree.add(f"{NODE}/stuck", File(lambda: "1\n", lambda text: None, hangs=lambda: "hang" in faults))
    tree.add("sys/devices/gpu/counters_reset", File(lambda: "0 0\n"))
    tree.link("sys/class/devfreq/gpu", NODE)
    tree.add("sys/class/hwmon/hwmon3/in1_input", File(rail))
    tree.add("proc/device-tree/model", File(lambda: "Stub board\0"))
    tree.add("etc/long", File(lambda: "line of text\n" * 20_000))

    def workload(name: str) -> Workload:
        if name != "bert-base-mnli":
            raise InputError(f"'{name}' is no workload.")
        return SimpleNamespace(id=name)  # type: ignore[return-value]

    def fault(text: str) -> None:
        if text == "clear":
            faults.clear()
            tree.show(NODE)
        elif text == "late":
            tree.hide(NODE)
        elif text in ("eio", "hang"):
            faults.add(text)
        else:
            raise InputError(f"There is no fault '{text}'.", "eio, hang, late or clear was expected.")

    return machine, tree, workload, fault


def main() -> int:
    logging.basicConfig(level="INFO", format="%(message)s", stream=sys.stderr)
    parser = argparse.ArgumentParser()
    serve.add_arguments(parser)
    try:
        return serve.run(parser.parse_args(), lambda args: stub())
    except WattuneError as error:
        sys.stderr.write(f"wattune: {error}\n")
        return error.exit_code


class Server:
    """A running server in a process of its own."""

    def __init__(
        self,
        directory: Path,
        *args: str,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
        program: tuple[str, ...] = (__file__,),
    ):
        self.directory = directory
        self.process = subprocess.Popen(
            [*prefix, sys.executable, *program, str(directory), *args],
            env={**os.environ, "PYTHONPATH": str(SRC), **(env or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.mode = self.process.stdout.readline()
        self.ready = self.process.stdout.readline()

    def path(self, name: str) -> Path:
        return self.directory / NODE / name

    @property
    def private(self) -> list[Path]:
        """Where the content of its mounted `run` lies."""
        return list(Path(tempfile.gettempdir()).glob(f"{supervisor.SOURCE}{self.process.pid}-*"))

    def status(self) -> dict[str, object]:
        return json.loads((self.directory / "emulator/status.json").read_text())

    def command(self, line: str) -> None:
        (self.directory / "emulator/control").write_text(f"{line}\n")

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Exit code and what was said on standard error, after a signal where one is given."""
        if number is not None:
            self.process.send_signal(number)
        _, said = self.process.communicate(timeout=10)
        assert "Traceback" not in said, said
        return self.process.returncode, said

    def __enter__(self) -> Server:
        assert self.ready == f"ready: {self.directory}\n", self.end(signal.SIGTERM)
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.communicate(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.communicate()


def shell(command: str, server: Server, timeout: float = 10) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", command],
        cwd=server.directory / NODE,
        env={**os.environ, "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(scope="session", params=["fuse", "fuse3"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment that chooses a libfuse; skips where it cannot mount."""
    if ctypes.util.find_library(request.param) is None:
        pytest.skip(f"lib{request.param} is not installed")
    env = {"FUSE_LIBRARY_NAME": request.param}
    server = Server(tmp_path_factory.mktemp("probe") / "m", "--mode", "fuse", env=env)
    code, said = server.end(signal.SIGTERM)
    if code:
        pytest.skip(f"FUSE cannot be mounted here: {said.strip()}")
    return env


@pytest.fixture
def mounted(library: dict[str, str], tmp_path: Path) -> Iterator[Server]:
    with Server(tmp_path / "m", "--mode", "fuse", env=library) as server:
        assert server.mode == "mode: fuse\n"
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Server]:
    """A plain one."""
    with Server(tmp_path / "m", "--mode", "dir") as server:
        assert server.mode == "mode: dir\n"
        yield server


def gone(directory: Path) -> bool:
    return supervisor.mount_source(directory) is None and not directory.exists()


# --- mounted


def test_a_shell_reads_and_writes_a_mounted_tree(mounted: Server, tmp_path: Path) -> None:
    done = shell(
        "echo 612 > max_freq && cat max_freq cur_freq && cat ../../../../class/devfreq/gpu/max_freq", mounted
    )
    assert (done.returncode, done.stdout) == (0, "612\n612\n612\n"), done.stderr
    done = shell("echo 7 > min_freq; cat min_freq", mounted)
    assert "Invalid argument" in done.stderr
    assert done.stdout == "306\n"
    done = shell("echo 7 > cur_freq", mounted)
    assert done.returncode != 0
    assert "Permission denied" in done.stderr
    for command in ("touch new", "mkdir new", "rm min_freq", "mv min_freq other", "ln -s a b"):
        done = shell(command, mounted)
        assert done.returncode != 0, command
        assert "ermi" in done.stderr, done.stderr  # "Permission denied" or "Operation not permitted"
    root = mounted.directory
    done = shell(f"ls -lR {root} && find {root} -type f | sort && find {root} -type l && df {root}", mounted)
    assert done.returncode == 0, done.stderr
    assert f"{root}/{NODE}/min_freq\n" in done.stdout
    assert "gpu -> ../../devices/gpu/devfreq/gpu" in done.stdout
    copy = tmp_path / "copy"
    done = shell(f"cp -r {root} {copy} && dd if=cur_freq bs=2 status=none && head -c 3 max_freq", mounted)
    assert (done.returncode, done.stdout) == (0, "612\n612"), done.stderr
    assert (copy / NODE / "max_freq").read_text() == "612\n"
    assert (copy / "etc/long").read_text() == "line of text\n" * 20_000
    assert (copy / "proc/device-tree/model").read_bytes() == b"Stub board\0"
    assert (copy / "sys/class/devfreq/gpu").readlink() == Path("../../devices/gpu/devfreq/gpu")
    assert mounted.path("max_freq").stat().st_size == 4096


@pytest.mark.skipif(os.geteuid() != 0, reason="about root")
def test_a_file_without_a_store_refuses_root(mounted: Server) -> None:
    for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_WRONLY | os.O_CREAT):
        with pytest.raises(PermissionError):
            os.open(mounted.path("cur_freq"), flags)
    with pytest.raises(PermissionError):
        os.truncate(mounted.path("cur_freq"), 0)


def test_content_is_computed_at_every_read_from_the_start(mounted: Server) -> None:
    handle = os.open(mounted.path("max_freq"), os.O_RDWR)
    try:
        assert os.pread(handle, 64, 0) == b"1300\n"
        assert os.write(handle, b"306\n") == 4
        assert os.pread(handle, 64, 0) == b"306\n"
        assert os.pread(handle, 64, 2) == b"6\n"
        with pytest.raises(OSError, match="Invalid argument"):
            os.pwrite(handle, b"\xff", 0)
    finally:
        os.close(handle)
    # Read byte by byte, a text is that of one moment.
    with mounted.path("changing").open("rb", buffering=0) as file:
        assert b"".join(iter(lambda: file.read(1), b"")).decode() in TEXTS


def test_faults_and_workloads_by_the_control_file(mounted: Server) -> None:
    rail = mounted.directory / "sys/class/hwmon/hwmon3/in1_input"
    assert rail.read_text() == "19864\n"
    mounted.command("fault eio")
    handle = os.open(rail, os.O_RDONLY)
    with pytest.raises(OSError, match="Input/output error"):
        os.read(handle, 64)
    os.close(handle)
    mounted.command("fault late")
    assert within(1, lambda: not mounted.path("min_freq").exists())
    assert list(mounted.path("min_freq").parents[1].iterdir()) == []
    mounted.command("fault clear\nworkload bert-base-mnli")
    assert within(1, lambda: mounted.path("min_freq").exists())
    assert mounted.status()["workload"] == "bert-base-mnli"
    mounted.command("workload idle")
    assert mounted.status()["workload"] is None
    for line in ("workload gpt-9", "fault nonsense", "dance", "quit now"):
        with pytest.raises(OSError, match="Invalid argument"):
            mounted.command(line)
        assert line.split()[-1] in str(mounted.status()["last_error"])
    status = mounted.status()
    assert (status["provenance"], status["board"], status["mode"]) == ("simulated", "stub", "fuse")
    assert status["true_power_w"] == {"gpu_cpu": 4.0, "module": 7.0, "GPU": 4.0, "SYS": 3.0}


def test_a_hanging_file_holds_up_nobody_else(mounted: Server) -> None:
    mounted.command("fault hang")
    stuck = [subprocess.Popen(["cat", mounted.path("stuck")], stderr=subprocess.DEVNULL) for _ in range(15)]
    writer = subprocess.Popen(["dd", f"of={mounted.path('stuck')}", "conv=notrunc"], stdin=subprocess.PIPE)
    assert writer.stdin is not None
    writer.stdin.write(b"1\n")
    writer.stdin.close()
    time.sleep(0.5)
    started = time.monotonic()
    assert shell("cat cur_freq; echo 612 > max_freq; cat max_freq", mounted, 2).stdout == "1300\n612\n"
    assert time.monotonic() - started < 1
    assert all(process.poll() is None for process in [*stuck, writer])
    started = time.monotonic()
    code, _ = mounted.end(signal.SIGTERM)
    assert code == 0
    assert time.monotonic() - started < 5
    for process in [*stuck, writer]:
        assert process.wait(timeout=2) != 0  # the emulator's end is an error to them, not a hang
    assert gone(mounted.directory)


def test_a_hang_ends_when_it_is_cleared(mounted: Server) -> None:
    mounted.command("fault hang")
    reader = subprocess.Popen(["cat", mounted.path("stuck")], stdout=subprocess.PIPE)
    time.sleep(0.2)
    assert reader.poll() is None
    mounted.command("fault clear")
    assert reader.communicate(timeout=2)[0] == b"1\n"


def test_eight_threads_of_readers_and_writers(mounted: Server) -> None:
    failures: list[str] = []
    counts = [0] * 8
    until = time.monotonic() + 2

    def work(number: int) -> None:
        try:
            while time.monotonic() < until:
                if number % 2:
                    mounted.path("max_freq").write_text(f"{TABLE[counts[number] % 3]}\n")
                elif int(mounted.path("max_freq").read_text()) not in TABLE:
                    failures.append("torn")
                assert len(list((mounted.directory / NODE).iterdir())) == 6
                counts[number] += 1
        except Exception as error:  # noqa: BLE001 - whatever it is, the test shall say it
            failures.append(repr(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert min(counts) > 10


# --- both


@pytest.fixture(params=["mounted", "folder"])
def served(request: pytest.FixtureRequest) -> Server:
    """A server of either kind (the mounted one with each libfuse there is)."""
    if request.param == "folder":
        return request.getfixturevalue("folder")
    return request.getfixturevalue("any_mounted")


@pytest.fixture
def any_mounted(tmp_path: Path) -> Iterator[Server]:
    """Mounted with the libfuse that is taken by itself."""
    with fuse_server(tmp_path / "m") as server:
        yield server


def fuse_server(directory: Path) -> Server:
    server = Server(directory, "--mode", "fuse")
    if not server.ready:
        pytest.skip(f"FUSE cannot be mounted here: {server.end()[1].strip()}")
    return server


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "SIGHUP", "quit"])
def test_stopping_leaves_nothing(served: Server, how: str) -> None:
    if how == "quit":
        served.command("quit")
    code, said = served.end(None if how == "quit" else getattr(signal, how))
    assert code == 0, said
    assert "True energy (simulated): gpu_cpu 0.000 J, module 0.000 J, GPU 0.000 J" in said
    assert gone(served.directory)


def test_a_shell_standing_in_the_tree_does_not_keep_it(served: Server) -> None:
    with subprocess.Popen(["sleep", "30"], cwd=served.directory / NODE) as sitter:
        try:
            assert served.end(signal.SIGTERM)[0] == 0
            assert supervisor.mount_source(served.directory) is None
        finally:
            sitter.kill()


@pytest.mark.parametrize("mode", ["fuse", "dir"])
def test_a_folder_that_was_there_stays_as_it_was(tmp_path: Path, mode: str) -> None:
    directory = tmp_path / "mine"
    directory.mkdir(mode=0o750)
    with fuse_server(directory) if mode == "fuse" else Server(directory, "--mode", mode) as server:
        assert server.end(signal.SIGTERM)[0] == 0
    assert list(directory.iterdir()) == []
    assert directory.stat().st_mode & 0o777 == 0o750
    with fuse_server(directory) if mode == "fuse" else Server(directory, "--mode", mode):
        pass  # and it can be used again


def test_a_killed_server_is_cleaned_up_after(served: Server) -> None:
    served.command("fault hang")
    stuck = subprocess.Popen(["cat", served.path("stuck")], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    time.sleep(0.2)
    code, _ = served.end(signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert within(3, lambda: gone(served.directory))
    stuck.communicate(timeout=2)  # nobody hangs on a server that is gone


def test_a_killed_server_without_its_supervisor_is_found_at_the_next_start(served: Server) -> None:
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    assert len(children) == 1
    os.kill(int(children[0]), signal.SIGKILL)
    served.end(signal.SIGKILL)
    mode = served.mode.split()[1]
    if mode == "fuse":
        with pytest.raises(OSError, match="endpoint is not connected"):
            served.directory.stat()
    else:
        assert served.path("max_freq").exists()
    with Server(served.directory, "--mode", mode) as again:
        assert again.path("max_freq").read_text() == "1300\n"
        code, said = again.end(signal.SIGTERM)
        assert code == 0
    kind = "mount" if mode == "fuse" else "tree"
    assert f"stale {kind} of an emulator that was killed (process {served.process.pid})" in said
    assert supervisor.mount_source(served.directory) is None
    assert list(served.directory.iterdir()) == []


def test_a_second_emulator_on_the_same_tree_is_refused(served: Server) -> None:
    for mode in ("fuse", "dir"):
        code, said = Server(served.directory, "--mode", mode).end()
        assert code == 3
        assert f"Another emulator (process {served.process.pid}) serves" in said
        assert said.count("\n") == 1
    assert served.path("max_freq").read_text() == "1300\n"


def test_a_fault_from_the_start(tmp_path: Path) -> None:
    with Server(tmp_path / "m", "--mode", "dir", "--fault", "late", "--fault", "eio") as server:
        assert not server.path("min_freq").exists()
        assert not (server.directory / "sys/class/hwmon/hwmon3/in1_input").exists()
    code, said = Server(tmp_path / "n", "--fault", "nonsense").end()
    assert code == 2
    assert "There is no fault 'nonsense'." in said
    assert not (tmp_path / "n").exists()


# --- the volatile folder

LOCK = """
import fcntl, sys
handle = open(sys.argv[1], "a")
try:
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    sys.exit(7)
"""


def lock_elsewhere(path: Path) -> int:
    """Exit code of another process that locks a file: 7 where somebody has it."""
    return subprocess.run([sys.executable, "-c", LOCK, path], check=False, timeout=10).returncode


def file_life(run: Path) -> None:
    """What lease files and locks need."""
    folder = run / "wattune/deep/deeper"
    folder.mkdir(parents=True)
    assert [p.name for p in run.iterdir()] == ["wattune"]
    path, temporary = folder / "lease.json", folder / ".lease.tmp"
    for text in ("old", "new and longer" * 30_000, "short"):
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        with pytest.raises(FileExistsError):
            os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        with os.fdopen(handle, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        with path.open("a+") as before:
            kept = before.tell()
            temporary.replace(path)
            assert os.fstat(before.fileno()).st_size == kept  # who has the old one open keeps it
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)
        assert path.read_text() == text
        assert path.stat().st_size == len(text)
        assert (path.stat().st_mode & 0o777, path.stat().st_uid) == (0o640, os.geteuid())
    with path.open("r+b") as both:
        both.seek(2)
        both.write(b"--")
        both.flush()
        assert os.pread(both.fileno(), 9, 0) == b"sh--t"
        both.truncate(3)
        assert os.fstat(both.fileno()).st_size == 3
    with path.open("a") as first, path.open("a") as second:
        for file in (first, second, first):
            file.write("+")
            file.flush()
    assert path.read_text() == "sh-+++"
    os.truncate(path, 2)
    path.write_text("anew")
    assert path.read_text() == "anew"
    path.chmod(0o600)
    os.utime(path, ns=(10**18, 10**18 + 7))
    assert (path.stat().st_mode & 0o777, path.stat().st_mtime_ns) == (0o600, 10**18 + 7)
    path.touch()
    assert abs(path.stat().st_mtime - time.time()) < 10
    assert path.stat().st_atime == pytest.approx(path.stat().st_mtime, abs=1)
    subprocess.run(["touch", "-m", "-d", "@1000", path], check=True)
    assert (path.stat().st_mtime, path.stat().st_atime > 10**9) == (1000, True)

    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        assert lock_elsewhere(path.with_suffix(".lock")) == 7
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert lock_elsewhere(path.with_suffix(".lock")) == 0

    with pytest.raises(OSError, match="not empty"):
        folder.rmdir()
    (folder.parent / "moved").mkdir()
    folder.rename(folder.parent / "moved/inside")
    assert sorted(p.name for p in folder.parent.rglob("*")) == ["inside", "lease.json", "lease.lock", "moved"]
    for name in ("lease.json", "lease.lock"):
        (folder.parent / "moved/inside" / name).unlink()
    for name in ("moved/inside", "moved"):
        (folder.parent / name).rmdir()
    with pytest.raises(FileNotFoundError):
        path.read_text()
    shutil.rmtree(run / "wattune")
    assert list(run.iterdir()) == []


def test_files_live_below_a_mounted_run(mounted: Server) -> None:
    file_life(mounted.directory / "run")
    assert [p.name for p in mounted.private] == [mounted.private[0].name]
    assert mounted.private[0].stat().st_mode & 0o777 == 0o700


def test_files_live_below_a_plain_run(folder: Server) -> None:
    file_life(folder.directory / "run")
    assert folder.private == []


def test_nothing_leads_out_of_a_mounted_run_and_nothing_else_is_writable(
    mounted: Server, tmp_path: Path
) -> None:
    root, run = mounted.directory, mounted.directory / "run"
    (run / "file").write_text("mine")
    for command in (
        f"touch {root}/new",
        f"mkdir {root}/new",
        f"ln -s /etc {run}/link",
        f"ln {run}/file {run}/other",
        f"mkfifo {run}/fifo",
        f"rmdir {run}",
        'python3 -c \'import os; os.rename("../run", "../run2")\'',
        f'cd {run}; python3 -c \'import os; os.rename("file", "../file")\'',
        f'cd {run}; python3 -c \'import os; os.rename("../etc/long", "long")\'',
        f'cd {run}; python3 -c \'import os; os.rename("file", "../etc/long")\'',
    ):
        done = shell(f"cd {root}/emulator; {command}", mounted)
        assert done.returncode != 0, command
        assert "ermi" in done.stderr, done.stderr
    assert [p.name for p in run.iterdir()] == ["file"]
    assert (root / "run/../etc/long").stat().st_size == len("line of text\n") * 20_000
    # Nor does a link that somebody puts behind it.
    (tmp_path / "precious").write_text("mine")
    behind = mounted.private[0] / "run"
    (behind / "out").symlink_to(tmp_path)
    (behind / "one").symlink_to(tmp_path / "precious")
    for path in ("out/precious", "one", "out/new"):
        with pytest.raises(OSError, match=r"\[Errno"):
            (run / path).write_text("theirs")
    with pytest.raises(OSError, match=r"\[Errno"):
        (run / "one").chmod(0)
    assert mounted.end(signal.SIGTERM)[0] == 0
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]
    assert (tmp_path / "precious").read_text() == "mine"
    assert (tmp_path / "precious").stat().st_mode & 0o777


@pytest.mark.skipif(os.geteuid() != 0, reason="about root")
def test_others_may_write_where_they_are_let(library: dict[str, str]) -> None:
    def nobody(command: str) -> int:
        who = {"user": 65534, "group": 65534, "extra_groups": []}
        return subprocess.run(["sh", "-c", command], cwd=run, check=False, **who).returncode  # type: ignore[call-overload]

    with tempfile.TemporaryDirectory() as parent:  # pytest's is closed to others
        Path(parent).chmod(0o755)
        with Server(Path(parent) / "m", "--mode", "fuse", env=library) as server:
            run = server.directory / "run"
            assert nobody("touch theirs 2>&-") != 0
            (run / "open").mkdir()
            (run / "open").chmod(0o777)
            assert nobody("cd open; umask 027; touch f; mkdir d") == 0
            found = {p.name: p.stat() for p in (run / "open").iterdir()}
    assert {name: (s.st_uid, s.st_gid, s.st_mode & 0o777) for name, s in found.items()} == {
        "f": (65534, 65534, 0o640),
        "d": (65534, 65534, 0o750),
    }


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_volatile_folder_ends_with_the_server(served: Server, number: signal.Signals) -> None:
    run = served.directory / "run"
    (run / "wattune/deep").mkdir(parents=True)
    (run / "wattune/deep/file").write_text("text")
    (run / "file").write_text("text")
    assert len(served.private) == (served.mode == "mode: fuse\n")
    with (run / "wattune/held").open("w"):  # somebody has one open
        code, said = served.end(number)
        assert code == (0 if number == signal.SIGTERM else -number)
        assert "Left in" not in said
        assert within(3, lambda: gone(served.directory) and not served.private)


def test_the_volatile_folder_of_a_killed_server_is_found_at_the_next_start(served: Server) -> None:
    (served.directory / "run/wattune").mkdir()
    (served.directory / "run/wattune/file").write_text("text")
    (child,) = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGKILL)
    served.end(signal.SIGKILL)
    assert len(served.private) == (served.mode == "mode: fuse\n")
    with Server(served.directory, "--mode", served.mode.split()[1]) as again:
        assert served.private == []
        assert list((again.directory / "run").iterdir()) == []


def test_private_folders_of_others_are_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("7-a", "7-b", "77-a"):
        (tmp_path / f"{supervisor.SOURCE}{name}").mkdir()
    (tmp_path / f"{supervisor.SOURCE}7-link").symlink_to(tmp_path / f"{supervisor.SOURCE}77-a")
    with supervisor.locked(tmp_path / f"{supervisor.SOURCE}7-b", 0):
        volatile.remove_left(7)
    left = sorted(p.name.removeprefix(supervisor.SOURCE) for p in tmp_path.iterdir())
    assert left == ["7-b", "7-link", "77-a"]


@contextlib.contextmanager
def board(directory: Path, mode: str) -> Iterator[Server]:
    """A real emulated board."""
    if mode == "fuse" and (reason := fuse.why_not()) is not None:
        pytest.skip(reason)
    program = ("-m", "wattune.cli", "emulate")
    with Server(directory, "--mode", mode, "--workload", "idle", program=program) as server:
        assert server.mode == f"mode: {mode}\n"
        yield server


@pytest.mark.parametrize("mode", ["fuse", "dir"])
def test_a_reboot_empties_the_volatile_folder(tmp_path: Path, mode: str) -> None:
    with board(tmp_path / "m", mode) as server:
        run, boot = server.directory / "run", server.directory / "proc/sys/kernel/random/boot_id"
        (run / "wattune").mkdir()
        (run / "wattune/lease.json").write_text("text")
        (run / "file").write_text("text")
        if mode == "dir":
            (run / "link").symlink_to(tmp_path)
        before = boot.read_text()
        server.command("fault reboot")
        assert within(2, lambda: list(run.iterdir()) == [] and boot.read_text() != before)
        assert within(1, lambda: not (run / "wattune").exists())
        (run / "wattune").mkdir()
        assert [p.name for p in run.iterdir()] == ["wattune"]
        assert server.end(signal.SIGTERM)[0] == 0
    assert list(tmp_path.iterdir()) == []


def test_a_lease_keeps_its_state_in_the_mounted_run(tmp_path: Path) -> None:
    from kills import Lease, Sysfs, node_of  # not for the script that this file is as well

    with board(tmp_path / "m", "fuse") as server:
        sysfs = Sysfs(server.directory)
        node = node_of(sysfs)
        with Lease(sysfs, node, 612) as lease:
            state_file = lease.state_file
            assert state_file is not None
            assert state_file.parent == server.directory / "run/wattune"
            assert json.loads(state_file.read_text())["saved_max_hz"] == node.max_hz
            assert lock_elsewhere(state_file.with_suffix(".lock")) == 7
            assert (server.directory / node.path / "max_freq").read_text() == "612000000\n"
        assert (server.directory / node.path / "max_freq").read_text() == f"{node.max_hz}\n"
        assert not state_file.exists()
        assert server.end(signal.SIGTERM)[0] == 0
    assert list(tmp_path.iterdir()) == []


# --- refusals


def refusal(directory: Path, *args: str, **kwargs: object) -> tuple[int, str]:
    server = Server(directory, *args, **kwargs)  # type: ignore[arg-type]
    code, said = server.end(signal.SIGTERM if server.ready else None)
    assert (server.mode, server.ready) == ("", "")
    assert said.startswith("wattune: ")
    assert said.count("\n") == 1, said
    return code, said


@pytest.mark.long
def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full/thing").write_text("mine")
    for directory, code, text in (
        (tmp_path / "file", 2, "is a file."),
        (tmp_path / "full", 2, "is not empty (it holds thing)."),
        (tmp_path / "no/such", 2, f"Make it first: `mkdir -p {tmp_path / 'no/such'}`."),
        (tmp_path / "file/below", 2, "is not a folder."),
        (Path("/proc"), 2, "is a mount point in use (proc)."),
        (Path("/"), 2, "is a mount point in use"),
        (Path("/proc/new"), 3, "cannot be used"),
    ):
        for mode in ("auto", "dir"):
            found, said = refusal(directory, "--mode", mode)
            assert (found, text in said) == (code, True), said
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "full", "thing"]


def without_rights() -> tuple[str, ...]:
    """Root without its capabilities: an ordinary user who may read this checkout."""
    prefix = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("root and setpriv are needed to give up rights")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("setpriv cannot drop capabilities here")
    return prefix


def test_a_folder_without_permission(tmp_path: Path) -> None:
    prefix = without_rights()
    theirs = tmp_path / "theirs"
    theirs.mkdir(mode=0o755)
    os.chown(theirs, 65534, 65534)
    for directory in (theirs, theirs / "new"):
        code, said = refusal(directory, "--mode", "dir", prefix=prefix)
        assert code == 3
        assert "cannot be used: Permission denied." in said
    assert list(theirs.iterdir()) == []


def test_where_fuse_cannot_be_mounted(tmp_path: Path) -> None:
    prefix = without_rights()
    directory = tmp_path / "m"
    code, said = refusal(directory, "--mode", "fuse", prefix=prefix)
    assert code == 3
    assert "The tree cannot be mounted:" in said
    assert "Say `--mode dir`" in said
    assert not directory.exists()
    with Server(directory, "--mode", "auto", prefix=prefix) as server:
        assert server.mode == "mode: dir\n"
        code, said = server.end(signal.SIGTERM)
        assert code == 0
        assert "FUSE is not used:" in said
        assert "A plain directory cannot refuse a write" in said


def test_what_fuse_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "absent" in str(fuse.why_not(tmp_path / "none"))
    (tmp_path / "closed").mkdir()
    assert "could not be opened" in str(fuse.why_not(tmp_path / "closed"))
    device = tmp_path / "device"
    device.touch()
    monkeypatch.setitem(sys.modules, "mfusepy", None)
    assert "pip install mfusepy" in str(fuse.why_not(device))

    def no_library() -> None:
        raise OSError("Unable to find libfuse")

    monkeypatch.setattr(fuse, "_mfusepy", no_library)
    assert "libfuse" in str(fuse.why_not(device))
    monkeypatch.setattr(fuse, "_mfusepy", lambda: None)
    assert fuse.why_not(device) is None


# --- plain


def test_a_write_is_taken_soon(folder: Server) -> None:
    assert shell("echo 612 > max_freq", folder).returncode == 0
    assert within(0.3, lambda: folder.path("cur_freq").read_text() == "612\n")
    assert folder.path("max_freq").read_text() == "612\n"
    assert (folder.directory / "sys/class/devfreq/gpu").readlink() == Path("../../devices/gpu/devfreq/gpu")
    assert not (folder.directory / "sys/devices/gpu/counters_reset").exists()
    assert (folder.directory / "proc/device-tree/model").read_bytes() == b"Stub board\0"
    # A file put in the place of ours is a write too.
    other = folder.directory / "other"
    other.write_text("306\n")
    other.replace(folder.path("max_freq"))
    assert within(0.5, lambda: folder.path("cur_freq").read_text() == "306\n")


def test_a_refused_write_is_put_back(folder: Server) -> None:
    for name, text, reason in (
        ("min_freq", "7\n", "Invalid argument"),
        ("cur_freq", "7\n", "Permission denied"),
    ):
        before = folder.path(name).read_text()
        folder.path(name).write_text(text)
        assert within(1, lambda name=name, before=before: folder.path(name).read_text() == before)
        assert within(
            1, lambda name=name, reason=reason: folder.status()["last_error"] == f"{NODE}/{name}: {reason}"
        )
    folder.path("min_freq").write_text("")
    assert within(1, lambda: folder.path("min_freq").read_text() == "306\n")
    folder.path("min_freq").unlink()
    assert within(1, lambda: folder.path("min_freq").exists())
    folder.command("dance")
    assert within(1, lambda: "'dance' is not a command" in str(folder.status()["last_error"]))
    _, said = folder.end(signal.SIGTERM)
    assert f"A write to {NODE}/min_freq was put back: Invalid argument." in said
    assert f"A write to {NODE}/cur_freq was put back: Permission denied." in said


def test_files_at_fault_are_absent(folder: Server) -> None:
    rail = folder.directory / "sys/class/hwmon/hwmon3/in1_input"
    folder.command("fault eio\nfault late")
    assert within(10, lambda: not (folder.directory / NODE).exists())
    assert within(10, lambda: not rail.exists())
    folder.command("fault clear")
    assert within(10, rail.exists)
    folder.command("fault hang")  # what a plain folder cannot do is refused
    assert within(10, lambda: "cannot hang" in str(folder.status()["last_error"]))
    assert folder.path("stuck").exists()
    assert rail.read_text() == "19864\n"


def test_a_kept_descriptor_sees_whole_values_only(folder: Server) -> None:
    handle = os.open(folder.path("changing"), os.O_RDONLY)
    seen: set[str] = set()
    try:
        begin = time.monotonic()
        while (spent := time.monotonic() - begin) < 2 or (len(seen) < len(TEXTS) and spent < 30):
            text = os.pread(handle, 64, 0).decode()
            assert text.rstrip("\n") + "\n" in TEXTS, repr(text)
            seen.add(text.strip())
    finally:
        os.close(handle)
    assert seen == {text.strip() for text in TEXTS}


def test_what_others_put_into_the_folder_is_left_and_said(folder: Server) -> None:
    (folder.directory / "notes").write_text("mine")
    code, said = folder.end(signal.SIGTERM)
    assert code == 0
    assert "since it was not made here: notes." in said
    assert [p.name for p in folder.directory.iterdir()] == ["notes"]


def test_cleaning_never_leaves_the_folder(tmp_path: Path) -> None:
    """A marker that somebody wrote, and a folder replaced by a link, lead nowhere."""
    (tmp_path / "precious").write_text("mine")
    directory = tmp_path / "m"
    directory.mkdir()
    (directory / "sys").symlink_to(tmp_path)
    paths = ["../precious", str(tmp_path / "precious"), "sys/precious", 7]
    (directory / supervisor.MARKER).write_text(json.dumps({"pid": 1, "paths": paths}))
    supervisor.remove_mirror(directory)
    assert (tmp_path / "precious").read_text() == "mine"
    assert [p.name for p in directory.iterdir()] == ["sys"]
    (directory / "run").symlink_to(tmp_path)
    (directory / supervisor.MARKER).write_text(json.dumps({"pid": 1, "paths": [], "run": True}))
    supervisor.remove_mirror(directory)
    supervisor.empty_folder(directory / "run")
    assert (tmp_path / "precious").read_text() == "mine"
    assert sorted(p.name for p in directory.iterdir()) == ["run", "sys"]


def test_the_folder_taken_away_under_us(folder: Server) -> None:
    folder.directory.rename(folder.directory.with_name("elsewhere"))
    code, said = folder.end()
    assert code == 3
    assert "can no longer be served" in said


def test_unmounted_under_us(any_mounted: Server) -> None:
    supervisor.unmount(any_mounted.directory)
    code, said = any_mounted.end()
    assert code == 3
    assert "somebody else unmounted it" in said
    assert gone(any_mounted.directory)


class Shared:
    """A mirror in our own process, with one file that both sides write and hooks into the poll.

    Attributes:
        text: what the board holds; `taken` what was stored, in order.
        meanwhile: called once, while the next poll asks for the file's text.
    """

    def __init__(self, directory: Path) -> None:
        self.text, self.taken = "1\n", list[str]()
        self.meanwhile: Callable[[], object] = lambda: None
        tree = Tree()
        tree.add("sys/one", File(self.read, self.store))
        self.path = directory / "sys/one"
        self.mirror = plain.Mirror(tree, directory, threading.RLock(), lambda *_: None)
        self.mirror.poll()

    def read(self) -> str:
        hook, self.meanwhile = self.meanwhile, lambda: None
        hook()
        return self.text

    def store(self, text: str) -> None:
        word = text.split()[0]  # what follows may be left of a longer text
        self.taken.append(word)
        if word == "bad":
            raise OSError(errno.EINVAL, "Invalid argument")
        self.text = f"{min(int(word), 5)}\n"  # a bound that clamps

    def write(self, text: str) -> None:
        """As a client: into the file that is there, without emptying it."""
        handle = os.open(self.path, os.O_WRONLY)
        os.write(handle, f"{text}\n".encode())
        os.close(handle)


# What makes the poll write: nothing, a value taken as it is, one that is clamped, one that is refused, and the board itself.
@pytest.mark.parametrize("before", [None, "3", "7", "bad", "board"])
@pytest.mark.parametrize("moment", ["asked", "before the lease", "under the lease", "after"])
@pytest.mark.parametrize("last", ["1", "2", "5"])
def test_no_write_is_lost_whenever_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str | None, moment: str, last: str
) -> None:
    shared = Shared(tmp_path)
    client = threading.Thread(target=shared.write, args=(last,))
    if before == "board":
        shared.text = "5\n"
    elif before is not None:
        shared.write(before)
    shut, replace = plain._shut, plain._replace_in_place

    def late_shut(handle: int) -> bool:
        if moment == "before the lease" and not client.ident:
            client.start()
            client.join()
        return shut(handle)

    def slow_replace(handle: int, content: bytes) -> None:
        if moment == "under the lease" and not client.ident:
            client.start()
            client.join(0.02)  # it waits for us
        replace(handle, content)

    monkeypatch.setattr(plain, "_shut", late_shut)
    monkeypatch.setattr(plain, "_replace_in_place", slow_replace)
    if moment == "asked":
        shared.meanwhile = lambda: (client.start(), client.join())
    shared.mirror.poll()
    if not client.ident:  # nothing was rewritten, or the write comes afterwards
        client.start()
    client.join()
    assert shared.path.read_text().split()[0] == last
    for _ in range(3):
        shared.mirror.poll()
    assert (shared.taken[-1], shared.text) == (last, f"{last}\n")
    assert shared.path.read_text().rstrip() == last
    taken = list(shared.taken)
    shared.mirror.poll()
    assert shared.taken == taken


def test_a_write_of_what_the_file_says_is_one_too(tmp_path: Path) -> None:
    """A kernel keeps what was asked for, which the text does not show: 7 is held at 5, then 5 is asked for."""
    shared = Shared(tmp_path)
    shared.write("7")
    shared.mirror.poll()
    assert shared.path.read_text() == "5\n"
    shared.write("5")
    shared.mirror.poll()
    assert shared.taken == ["7", "5"]


@pytest.mark.parametrize("leases", [True, False])
def test_a_shared_file_stays_alive_while_somebody_keeps_it_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leases: bool
) -> None:
    """Also on a file system without leases, and what was written is still not overwritten once it was seen."""
    shared = Shared(tmp_path)
    if not leases:
        monkeypatch.setattr(plain.fcntl, "F_SETLEASE", 10**6)
    with shared.path.open("r+") as kept:
        for text in ("2\n", "3\n"):
            shared.text = text
            for _ in range(plain.LEFT_POLLS + 1):
                shared.mirror.poll()
            kept.seek(0)
            assert kept.read() == text
        shared.text, shared.meanwhile = "5\n", lambda: shared.write("4")
        for _ in range(plain.LEFT_POLLS + 2):
            shared.mirror.poll()
        assert (shared.text, shared.taken) == ("4\n", ["4"])


def test_writes_to_two_files_are_taken_in_their_order(tmp_path: Path) -> None:
    """Also where the first of them comes to a file just when it has been looked at."""
    taken: list[str] = []
    tree = Tree()
    for name in ("a", "b"):
        tree.add(f"sys/{name}", File(lambda: "0\n", taken.append))
    mirror = plain.Mirror(tree, tmp_path, threading.RLock(), lambda *_: None)
    mirror.poll()
    changed = mirror._changed

    def look(path: str, copy: plain._Copy) -> tuple[int, str] | None:
        found = changed(path, copy)
        if path == "sys/a" and not (tmp_path / "sys/b").read_text().startswith("2") and not taken:
            for name, text in (("a", "1"), ("b", "2")):
                (tmp_path / "sys" / name).write_text(text)
                time.sleep(0.02)  # more than a tick of the file system's clock
        return found

    mirror._changed = look  # type: ignore[method-assign]
    mirror.poll()
    assert taken == ["1", "2"]


@pytest.mark.long
def test_a_client_in_a_hurry_has_its_last_word(tmp_path: Path) -> None:
    """Pins and restores in quick succession beside the poller, as `wattune run` makes them."""
    devfreq = Devfreq(CLOCKS, kernel="5.15", cap_hz=CLOCKS[-1])
    tree = Tree()
    tree.add("sys/min_freq", File(devfreq.read_min, devfreq.write_min))
    tree.add("sys/slow", File(lambda: f"{time.sleep(0.01)}\n"))  # as a busy machine makes it
    tree.add("sys/max_freq", File(devfreq.read_max, devfreq.write_max))
    mirror = plain.Mirror(tree, tmp_path, threading.RLock(), lambda *_: None)
    mirror.poll()
    over = threading.Event()

    def serve_it() -> None:
        while not over.wait(mirror.period_s):
            mirror.poll()

    poller = threading.Thread(target=serve_it)
    poller.start()
    sysfs, found, rng = Sysfs(tmp_path), Bounds(CLOCKS[0], CLOCKS[-1]), random.Random(7)
    try:
        for _ in range(15):
            for hz in rng.choices(CLOCKS, k=4):
                for bounds in (Bounds(hz, hz), found):
                    write_bounds(sysfs, "sys", bounds)
                    assert read_bounds(sysfs, "sys") == bounds
                    time.sleep(rng.random() * rng.choice((0, 0.003, 0.02)))
            polls = mirror._polls
            assert within(30, lambda polls=polls: mirror._polls > polls + 2)
            assert (read_bounds(sysfs, "sys"), devfreq.bounds_hz()) == (found, found)
    finally:
        over.set()
        poller.join()


def test_text_changes_in_place(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("12345\n")
    for text in ("9\n", "1234567\n", "", "1\n"):
        handle = os.open(path, os.O_WRONLY)
        plain._replace_in_place(handle, text.encode())
        os.close(handle)
        assert path.read_text() == text


if __name__ == "__main__":
    sys.exit(main())


@pytest.mark.skipif(fuse.why_not() is not None, reason=str(fuse.why_not()))
def test_a_mount_in_our_own_process_leaves_sigpipe_ignored(tmp_path: Path) -> None:
    tree = Tree()
    tree.add("sys/one", File(lambda: "1\n"))
    mount = fuse.Mount(tree, tmp_path, threading.RLock())
    assert (tmp_path / "sys/one").read_text() == "1\n"
    mount.close()
    assert signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN
    reader, writer = os.pipe()
    os.close(reader)
    with pytest.raises(BrokenPipeError):  # and not the end of this process
        os.write(writer, b"x")
    os.close(writer)
