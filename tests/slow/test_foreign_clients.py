"""Programs nobody here wrote, on the emulated tree: they see what its files say, and its files say what the board spends.

jetson-stats (AGPL-3.0) and Zeus run in processes of their own, from an environment of their own that `make fetch-clients` makes
beforehand; nothing of theirs is imported here. Nothing here uses the network.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CLIENTS = ROOT / ".cache/envs/clients"
EMULATE = [sys.executable, "-m", "wattune.cli", "emulate"]
NAMESPACE = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"]

CURRENT_CODE_MA, BUS_CODE_MV = 20, 8
MODULE = ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0")
SETTLE_S = 4.0
"""More than nine time constants of the power monitors' filter."""
PINS_HZ = (408_000_000, 918_000_000)

AARCH64 = """\
import os, platform, sys

platform.machine = platform.processor = lambda: "aarch64"
if "JTOP_SERVICE" in os.environ:
    sys.base_prefix = "/run/jtop-settings"  # jetson-stats keeps its settings below this folder
"""
"""What the clients' interpreter is told of the processor; read at its start (sitecustomize)."""


# --- the emulator and its files ---------------------------------------------------------------------------------------


class Board:
    """An emulated board, looked at through its files only."""

    def __init__(self, tree: Path) -> None:
        self.tree = tree
        (node,) = (tree / "sys/class/devfreq").iterdir()
        self.node = node.resolve()
        self.device = (node / "device").resolve()
        self.rails: dict[str, tuple[Path, Path]] = {}
        for label in tree.glob("sys/class/hwmon/*/in[123]_label"):
            name, number, folder = label.read_text().strip(), label.name[2], label.parent.resolve()
            if name != "NC":
                self.rails[name] = (folder / f"in{number}_input", folder / f"curr{number}_input")
        self.zones = {
            re.split("[-_]", (zone / "type").read_text())[0]: zone.resolve() / "temp"
            for zone in tree.glob("sys/class/thermal/thermal_zone*")
        }

    def power_w(self, rail: str) -> float:
        millivolts, milliamperes = (int(path.read_text()) for path in self.rails[rail])
        return millivolts * milliamperes / 1e6

    def code_w(self, rail: str) -> float:
        """What one code of the current is worth."""
        return int(self.rails[rail][0].read_text()) * CURRENT_CODE_MA / 1e6

    def pin(self, hz: int) -> None:
        raising = hz >= int((self.node / "max_freq").read_text())
        bounds = ("max_freq", "min_freq") if raising else ("min_freq", "max_freq")
        for name in bounds:
            (self.node / name).write_text(f"{hz}\n")

    def unpin(self) -> None:
        for name in ("max_freq", "min_freq"):
            (self.node / name).write_text("0\n")

    def run(self, workload: str) -> None:
        (self.tree / "emulator/control").write_text(f"workload {workload}\n")

    def status(self) -> dict[str, Any]:
        return json.loads((self.tree / "emulator/status.json").read_text())


@contextlib.contextmanager
def emulated(folder: Path, jetpack: str, mode: str = "fuse") -> Iterator[Board]:
    """`wattune emulate`, started and stopped; skips where FUSE is asked for and cannot be had."""
    tree, log = folder / f"jetpack-{jetpack}-{mode}", folder / "emulator.log"
    command = [*EMULATE, str(tree), "--mode", mode, "--jetpack", jetpack]
    with log.open("w") as stderr:
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=ROOT)
    assert server.stdout is not None
    with server.stdout:
        lines = [server.stdout.readline(), server.stdout.readline()]
        if not lines[1] and server.wait(timeout=20) == 3 and mode == "fuse":
            pytest.skip(f"no FUSE here: {log.read_text().strip()}")
        try:
            assert lines == [f"mode: {mode}\n", f"ready: {tree}\n"], log.read_text()
            yield Board(tree)
        finally:
            server.terminate()
            code = server.wait(timeout=20)
    assert code == 0, log.read_text()
    assert not tree.exists()


class Direct(threading.Thread):
    """Reads the files all the time; every reading carries the board's uptime, the clock that clients share with us."""

    SLOW_EVERY = 10

    def __init__(self, board: Board) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, float, dict[str, Any]]] = []
        self._uptime = board.tree / "proc/uptime"
        self._fast = {name: board.node / name for name in ("cur_freq", "min_freq", "max_freq", "governor")}
        self._fast["load"] = board.device / "load"
        self._slow: dict[str, Path] = {}
        for label, (volts, amperes) in board.rails.items():
            self._fast[f"{label} mA"] = amperes
            self._slow[f"{label} mV"] = volts
        self._slow |= {f"{zone} C": path for zone, path in board.zones.items()}
        self._over = threading.Event()

    def __enter__(self) -> Direct:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def now(self) -> float:
        return float(self._uptime.read_text().split()[0])

    def run(self) -> None:
        while not self._over.wait(0.005):
            begin = self.now()
            files = self._fast | (self._slow if len(self.samples) % self.SLOW_EVERY == 0 else {})
            values = {name: _read(path) for name, path in files.items()}
            self.samples.append((begin, self.now(), values))

    def moments(self, begin: float, end: float) -> list[dict[str, Any]]:
        """What was read, round by round, in that time and just before and after it."""
        samples = list(self.samples)
        inside = [i for i, (t0, t1, _) in enumerate(samples) if t1 >= begin and t0 <= end]
        return [values for _, _, values in samples[max(inside[0] - 1, 0) : inside[-1] + 2]]

    def between(self, begin: float, end: float, name: str) -> list[Any]:
        """Readings in that time, and the last one before and the first one after it."""
        having = [(t0, t1, values[name]) for t0, t1, values in list(self.samples) if name in values]
        inside = [i for i, (t0, t1, _) in enumerate(having) if t1 >= begin and t0 <= end]
        first = inside[0] if inside else next(i for i, (t0, _, _) in enumerate(having) if t0 > end)
        last = inside[-1] if inside else first - 1
        return [value for _, _, value in having[max(first - 1, 0) : last + 2]]


def _read(path: Path) -> Any:
    """A file's number or text; None where it cannot be read.

    Not by `Path.read_text`: it answers EAGAIN, which a powered-off zone gives, with a TypeError.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 4096).decode().strip()
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return int(text) if text.lstrip("-").isdigit() else text


def say(text: str) -> None:
    """A figure for whoever runs with `-s`, or a log for whoever looks at a failure."""
    sys.stdout.write(f"{text}\n")


def distance(value: float, readings: list[Any]) -> float:
    """How far a value is from the nearest reading."""
    return min(abs(value - reading) for reading in readings)


# --- the clients ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python() -> str:
    """The clients' interpreter."""
    if not (CLIENTS / ".ready").exists():
        failed = CLIENTS.with_suffix(".failed")
        why = failed.read_text().strip() if failed.exists() else "run `make fetch-clients` first"
        pytest.skip(f"jetson-stats and Zeus were not fetched: {why}")
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a private mount namespace needs root and util-linux's unshare")
    probe = subprocess.run(
        [*NAMESPACE, "mount", "-t", "tmpfs", "none", "/run"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        pytest.skip(f"no private mount namespace here: {probe.stderr.strip()}")
    return str(CLIENTS / "bin/python")


@contextlib.contextmanager
def on_the_board(board: Board, folder: Path, script: str) -> Iterator[Iterator[dict[str, Any]]]:
    """Run a shell script where the board's files lie in /sys, /proc and /etc; yields the JSON lines it prints."""
    (folder / "sitecustomize.py").write_text(AARCH64)
    environment = {**os.environ, "PYTHONPATH": str(folder), "LC_ALL": "C.UTF-8"}
    command = [*NAMESPACE, "sh", str(HERE / "board_namespace.sh"), str(board.tree), "sh", "-euc", script]
    log = folder / "client.log"
    with log.open("w") as stderr:
        client = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, cwd=folder
        )
    try:
        assert client.stdout is not None
        yield (json.loads(line) for line in client.stdout)
        assert client.poll() in (None, 0), log.read_text()
    except BaseException:
        say(log.read_text())
        raise
    finally:
        client.kill()  # all processes of its namespace go with it
        client.wait()
        client.stdout.close()


def jtop_script(python: str) -> str:
    """jetson-stats' service as its systemd unit starts it, then its client."""
    return f"""
        JTOP_SERVICE=True {python} -m jtop --force &
        for second in $(seq 30); do [ ! -S /run/jtop.sock ] || break; sleep 1; done
        sleep 1
        exec {python} {HERE}/jtop_reader.py 0.5"""


@pytest.mark.parametrize(
    ("jetpack", "release", "gpu"),
    [
        ("5", ("35.4.1", "5.1.2"), "ga10b"),
        ("6", ("36.4.7", "6.2.1"), "gpu"),
        ("7.2", ("39.2.0", "7.2 GA"), "gpu"),
    ],
)
def test_jtop_sees_what_the_files_say(
    tmp_path: Path, python: str, jetpack: str, release: tuple[str, str], gpu: str
) -> None:
    """jetson-stats' own service and client recognise the board and agree with the files, pinned twice and idle."""
    socket_before = Path("/run/jtop.sock").exists()
    with emulated(tmp_path, jetpack) as board, on_the_board(board, tmp_path, jtop_script(python)) as lines:
        seen = next(lines)["board"]
        assert seen["hardware"]["Model"] == "NVIDIA Jetson AGX Orin Developer Kit"
        assert seen["hardware"]["Module"] == "NVIDIA Jetson AGX Orin (64GB ram)"
        assert seen["hardware"]["SoC"] == "tegra234"
        assert (seen["hardware"]["L4T"], seen["hardware"]["Jetpack"]) == release
        assert seen["cpu"]["Model"] == "Arm Cortex-A78AE"
        for state in (*PINS_HZ, None):
            if state is None:
                board.unpin()
                board.run("idle")
            else:
                board.pin(state)
            with Direct(board) as direct:
                settled = direct.now() + SETTLE_S
                updates = [
                    update for update, _ in zip(lines, range(24), strict=False) if update["uptime"] > settled
                ]
                time.sleep(0.5)
            assert len(updates) >= 10
            worst = [compare_jtop(update, direct, gpu, board) for update in updates]
            clocks = {update["gpu"][gpu]["freq"]["cur"] for update in updates}
            if state is not None:
                assert clocks == {state / 1000}
            else:
                assert {update["gpu"][gpu]["status"]["load"] for update in updates} == {0.0}
            say(
                f"JetPack {jetpack}, {'idle' if state is None else state}: {len(updates)} updates, "
                f"{len(direct.samples)} direct readings; furthest off: "
                + ", ".join(f"{name} {max(w[name] for w in worst):g}" for name in worst[0])
            )
    assert Path("/run/jtop.sock").exists() == socket_before


def compare_jtop(update: dict[str, Any], direct: Direct, gpu: str, board: Board) -> dict[str, float]:
    """Hold one update against what was read meanwhile; returns how far things were off at most."""
    begin = update["uptime"]
    window = (begin - 0.01, begin + 0.4)  # it takes some tenths of a second to collect an update
    assert list(update["gpu"]) == [gpu]
    clock, state = update["gpu"][gpu]["freq"], update["gpu"][gpu]["status"]
    for file, name in (("cur_freq", "cur"), ("min_freq", "min"), ("max_freq", "max")):
        assert clock[name] in {hz // 1000 for hz in direct.between(*window, file)}, (file, clock)
    assert {clock["governor"]} == set(direct.between(*window, "governor"))
    load_off = distance(state["load"] * 10, direct.between(*window, "load"))
    assert set(update["power"]["rail"]) == set(board.rails)
    theirs = update["power"]["rail"]
    # All rails together, against one moment: their currents swing with the phases of a step.
    moments = direct.moments(*window)
    current_off = min(
        max(abs(seen["curr"] - now[f"{rail} mA"]) for rail, seen in theirs.items()) for now in moments
    )
    voltage_off = max(
        distance(seen["volt"], direct.between(*window, f"{rail} mV")) for rail, seen in theirs.items()
    )
    power_off = max(
        distance(
            seen["power"] / (seen["volt"] * CURRENT_CODE_MA / 1e3),
            [now[f"{rail} mA"] / CURRENT_CODE_MA for now in moments],
        )
        for rail, seen in theirs.items()
    )
    assert set(update["temperature"]) == set(board.zones)
    temperature_off = 0.0
    for zone, seen in update["temperature"].items():
        ours = direct.between(*window, f"{zone} C")
        if seen["online"]:
            temperature_off = max(temperature_off, distance(seen["temp"] * 1e3, ours) / 1e3)
        else:
            assert ours == [None] * len(ours), zone
    assert voltage_off <= BUS_CODE_MV
    assert current_off <= CURRENT_CODE_MA
    assert power_off <= 1.01  # jtop rounds to whole milliwatts
    assert temperature_off <= 0.1
    assert load_off <= 10  # 1 %
    return {
        "load per mille": load_off, "mV": voltage_off, "mA": current_off, "codes of power": round(power_off, 3),
        "degrees": round(temperature_off, 3),
    }  # fmt: skip


@pytest.mark.parametrize("jetpack", ["5", "6", "7.2"])
def test_zeus_sees_the_same_rail_powers(tmp_path: Path, python: str, jetpack: str) -> None:
    """Zeus's Jetson reader finds the rails, reads their powers within one code, and integrates them to our energy."""
    rails = {"gpu": "VDD_GPU_SOC", "cpu": "VDD_CPU_CV"}
    with emulated(tmp_path, jetpack) as board:
        board.pin(PINS_HZ[1])
        time.sleep(SETTLE_S)
        with (
            Direct(board) as direct,
            on_the_board(board, tmp_path, f"{python} {HERE}/zeus_reader.py 8") as lines,
        ):
            found = next(lines)
            *powers, window = list(lines)
    assert found == {"reader": "Jetson", "rails": ["cpu_power_mw", "gpu_power_mw"]}
    assert len(powers) > 40
    for name, rail in rails.items():
        volts = direct.between(0, 1e9, f"{rail} mV")[0]
        code_w = volts * CURRENT_CODE_MA / 1e6
        furthest = max(
            distance(
                seen["power_mw"][f"{name}_power_mw"] / 1e3,
                [
                    volts * ma / 1e6
                    for ma in direct.between(seen["from"] - 0.01, seen["to"] + 0.01, f"{rail} mA")
                ],
            )
            for seen in powers
        )
        assert furthest <= code_w
        mean_w = window["energy_mj"][name] / 1e3 / (window["to"] - window["from"])
        ours_w = volts / 1e6 * statistics.mean(direct.between(window["from"], window["to"], f"{rail} mA"))
        say(
            f"JetPack {jetpack}, {rail}: {len(powers)} powers, furthest {furthest:.3f} W; mean {mean_w:.3f} W, ours {ours_w:.3f} W"
        )
        assert abs(mean_w - ours_w) <= code_w
    assert window["energy_mj"]["total"] is None  # Zeus knows no sum for this board


# --- a shell script and a meter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jetpack", "mode"),
    [("5", "fuse"), ("6", "fuse"), ("7.2", "fuse"), ("5", "dir"), ("6", "dir"), ("7.2", "dir")],
)
def test_a_script_pins_by_the_book(tmp_path: Path, jetpack: str, mode: str) -> None:
    """Find, save, write in order, read back, check, restore, in sh; a clock that is not in the table changes nothing."""
    clocks = ["306000000", "1300500000", "612000000", "918000000"]
    with emulated(tmp_path, jetpack, mode) as board:
        done = pin_by_the_book(board, *clocks)
        assert done.returncode == 0, done.stderr
        first, saved, *pinned, restored = done.stdout.splitlines()
        assert first == f"node /{board.node.relative_to(board.tree.resolve())}"
        assert saved == "saved 306000000 1300500000 nvhost_podgov"
        assert [line.rsplit(" load", 1)[0] for line in pinned] == [f"pinned {hz}" for hz in clocks]
        assert restored == saved.replace("saved", "restored")
        refused = pin_by_the_book(board, "612000000", "700000000")
        assert (refused.returncode, refused.stderr) == (1, "pin: 700000000 is not an available frequency\n")
        time.sleep(0.5)
        assert [(board.node / name).read_text() for name in ("min_freq", "max_freq")] == [
            "306000000\n",
            "1300500000\n",
        ]


def pin_by_the_book(board: Board, *clocks: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(HERE / "pin_by_the_book.sh"), str(board.tree), *clocks]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("hz", [*PINS_HZ, 1_300_500_000])
def test_a_meter_of_five_hertz_finds_the_true_energy(tmp_path: Path, hz: int) -> None:
    """The energy the emulator says it spent is what a trapezoid over the rail files gives.

    The monitors truncate to whole codes: a plain meter reads low, by up to a code per rail and by half of one on the average
    of all powers, which at low clocks is some per cent of the board. With half a code added to each reading, what remains is
    at most half a code per rail, or 2 % where that is more.
    """
    with emulated(tmp_path, "6") as board:
        board.pin(hz)
        time.sleep(SETTLE_S)
        begin = board.status()
        samples: list[tuple[float, dict[str, float]]] = []
        started = time.monotonic()
        while not samples or samples[-1][0] < started + 20.0:
            time.sleep(max(0.0, started + 0.2 * len(samples) - time.monotonic()))
            powers = {rail: board.power_w(rail) for rail in board.rails}
            samples.append((time.monotonic(), powers))
        end = board.status()
        code_w = {rail: board.code_w(rail) for rail in board.rails}
    assert end["steps"] > begin["steps"]
    assert end["bounds_hz"] == [hz, hz]
    seconds, sampled_s = end["uptime_s"] - begin["uptime_s"], samples[-1][0] - samples[0][0]
    true_j = {rail: joules - begin["true_energy_j"][rail] for rail, joules in end["true_energy_j"].items()}
    metered_j = {rail: trapezoid([(t, powers[rail]) for t, powers in samples]) for rail in board.rails}
    for rail in board.rails:
        metered_w, true_w = metered_j[rail] / sampled_s, true_j[rail] / seconds
        say(f"{hz / 1e6:g} MHz, {rail}: {metered_w:.3f} W, true {true_w:.3f} W, code {code_w[rail]:.3f} W")
        assert abs(metered_w - true_w) <= code_w[rail]
    assert true_j["module"] == pytest.approx(sum(true_j[rail] for rail in MODULE))
    plain_w = sum(metered_j[rail] for rail in MODULE) / sampled_s
    centred_w = plain_w + sum(code_w[rail] for rail in MODULE) / 2
    true_w = true_j["module"] / seconds
    say(
        f"{hz / 1e6:g} MHz, module: {len(samples)} samples, {plain_w:.3f} W, true {true_w:.3f} W ({plain_w / true_w - 1:+.2%}; "
        f"with half a code {centred_w / true_w - 1:+.2%})"
    )
    assert plain_w < true_w
    assert centred_w == pytest.approx(true_w, rel=0.02, abs=sum(code_w[rail] for rail in MODULE) / 2)


def trapezoid(samples: list[tuple[float, float]]) -> float:
    return sum((b[0] - a[0]) * (a[1] + b[1]) / 2 for a, b in itertools.pairwise(samples))
