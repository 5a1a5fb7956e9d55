"""`wattune bench meter`: what our meter costs beside the readers people know, and how far its energy is off.

Run as a script this file is one reader that is timed: it then imports nothing but the standard library and what it times.
"""

from __future__ import annotations

import contextlib
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattune.boards.jetson.findings import Findings
    from wattune.boards.virtual.emulator.boardtree import BoardTree
    from wattune.boards.virtual.emulator.machine import Machine
    from wattune.core.errors import BoardError

BOARD, JETPACK, WORKLOAD = "jetson-agx-orin-64gb", "6", "bert-base-sst2"
CLIENTS = Path(".cache/envs/clients/bin/python")
"""The interpreter that has jetson-stats and Zeus (`make fetch-clients`), from the repository root."""

READ_HZ, READ_S, ROUNDS = 50.0, 2.0, 5
ERROR_LIMIT_PCT = 1.0
COST_LIMIT = 0.5
CODE_MA_UV = 40_000
"""An INA3221's code of the current is 40 uV over the shunt: this over the shunt in uOhm gives mA."""


def findings_of(machine: Machine, tree: BoardTree, root: Path = Path("/nonexistent")) -> Findings:
    """An emulated board as it would be found, without looking for it.

    Args:
        machine: the board.
        tree: its files.
        root: where they are served, if they are.
    """
    from wattune.boards.jetson.findings import Filter, Findings, GpuNode, PowerMode, RailChannel
    from wattune.boards.jetson.sysfs import Sysfs

    sets = machine.rail_sets
    rails = {}
    paths = [path for path, _ in tree.walk()]
    folders = {
        path.split("/")[-4]: path.rsplit("/", 1)[0]
        for path in paths
        if path.endswith("/samples") and "/hwmon/" in path
    }
    for rail in machine.file.rails:
        folder = folders[rail.chip]
        rails[rail.label] = RailChannel(
            rail.label, rail.chip, "ina3221", f"{folder}/in{rail.channel}_input", f"{folder}/curr{rail.channel}_input",
            None, 1e-3, CODE_MA_UV / rail.shunt_uohm,
        )  # fmt: skip
    thermal = "sys/devices/virtual/thermal"

    def text(path: str) -> str:
        entry = tree.entry(path)
        return entry.read().strip()  # type: ignore[union-attr]  # a file

    zones = {
        text(path).lower().split("-")[0].split("_")[0]: path.replace("/type", "/temp")
        for path in paths
        if path.startswith(f"{thermal}/thermal_zone") and path.endswith("/type")
    }
    cooling = {
        text(path): path.replace("/type", "/cur_state")
        for path in paths
        if path.startswith(f"{thermal}/cooling_device") and path.endswith("/type") and "devfreq" in text(path)
    }
    low, high = machine.devfreq.bounds_hz()
    return Findings(
        sysfs=Sysfs(root),
        board=machine.board,
        kind="jetson",
        soc=machine.file.soc,
        jetpack=machine.jetpack,
        gpu=GpuNode(
            tree.node, tree.gpu_device, machine.devfreq.table_hz, low, high, machine.devfreq.cur_hz,
            machine.devfreq.governor,
        ),
        rails=rails,
        gpu_cpu=sets["gpu_cpu"],
        module=sets["module"],
        filter=Filter(machine.filter_samples, round(machine.filter_samples * 0.84)),
        zones=zones,
        counters={
            path.rsplit("/", 1)[1].split("_")[0]: path for path in paths if path.endswith("_event_cnt")
        },
        cooling=cooling,
        power_mode=PowerMode(machine.power_mode, machine.power_modes[machine.power_mode].id),
        boot_id=machine.boot_id,
    )  # fmt: skip


class VirtualTime:
    """A clock that only sleeping moves, and what is to happen at which time.

    Args:
        now_s: where it starts.
    """

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s
        self._events: list[tuple[float, int, Callable[[], object]]] = []

    def __call__(self) -> float:
        """Seconds now."""
        return self.now_s

    def at(self, t_s: float, action: Callable[[], object]) -> None:
        """Have something happen at a time."""
        self._events.append((t_s, len(self._events), action))
        self._events.sort(reverse=True)

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        end = self.now_s + max(0.0, seconds)
        while self._events and self._events[-1][0] <= end:
            t_s, _, action = self._events.pop()
            self.now_s = max(self.now_s, t_s)
            action()
        self.now_s = max(self.now_s, end)


class VirtualBoard:
    """An emulated board in virtual time, read without being served.

    Attributes:
        time: its clock.
        machine: the board; `tree` its files; `findings` as found.
    """

    def __init__(self, *, jetpack: str = JETPACK, workload: str | None = WORKLOAD, seed: int = 0) -> None:
        from wattune.boards.virtual.constants import find_board_file
        from wattune.boards.virtual.emulator.layout import build_tree
        from wattune.boards.virtual.emulator.machine import Machine

        self.time = VirtualTime()
        self.machine = Machine(
            find_board_file(BOARD), jetpack=jetpack, workload=None, clock=self.time, seed=seed
        )
        self.tree = build_tree(self.machine, clock=self.time)
        self.findings = findings_of(self.machine, self.tree)
        if workload is not None:
            self.work(workload)

    def read(self, path: str) -> str:
        """A file's text.

        Raises:
            OSError: as the driver gives it.
        """
        entry = self.tree.entry(path)
        return entry.read()  # type: ignore[union-attr]  # a file

    def work(self, workload: str | None) -> None:
        """Run something else; None is idle."""
        from wattune.workloads.build import build_named

        self.machine.set_workload(None if workload is None else build_named(workload))

    def pin(self, hz: int | None) -> None:
        """Pin the clock; None unpins it."""
        self.machine.devfreq.write_max("0" if hz is None else str(hz))
        self.machine.devfreq.write_min("0" if hz is None else str(hz))

    def true_j(self) -> dict[str, float]:
        """Energy of each rail set that was really spent, since start."""
        self.machine.advance()
        return {
            name: sum(self.machine.true_energy_j[label] for label in labels)
            for name, labels in self.machine.rail_sets.items()
        }


def _steps(board: VirtualBoard, begin: float, seconds: float) -> None:
    """The load comes and goes, at changing clocks, every 3.7 s."""
    table = board.machine.devfreq.table_hz
    at, n = begin, 0
    while at < begin + seconds:

        def change(n: int = n) -> None:
            board.work(WORKLOAD if n % 2 == 0 else None)
            board.pin(table[-1 - n % len(table)])

        board.time.at(at, change)
        at, n = at + 3.7, n + 1


def _bursts(board: VirtualBoard, begin: float, seconds: float) -> None:
    """Bursts of work of 0.3 to 1.2 s between pauses of the same length."""
    rng = random.Random(1)
    at, busy = begin, True
    while at < begin + seconds:
        board.time.at(at, lambda busy=busy: board.work(WORKLOAD if busy else None))  # type: ignore[misc]
        at, busy = at + rng.uniform(0.3, 1.2), not busy


def _ramps(board: VirtualBoard, begin: float, seconds: float) -> None:
    """The clock goes up and down through the table, a step every 0.4 s."""
    table = board.machine.devfreq.table_hz
    order = [*table, *table[-2:0:-1]]
    board.time.at(begin, lambda: board.work(WORKLOAD))
    for n in range(int(seconds / 0.4)):
        board.time.at(begin + 0.4 * n, lambda n=n: board.pin(order[n % len(order)]))  # type: ignore[misc]


LOADS: dict[str, Callable[[VirtualBoard, float, float], None]] = {
    "steps": _steps,
    "bursts": _bursts,
    "ramps": _ramps,
}


def energy_errors(load: str, *, hz: float = 5.0, windows: int = 12, seed: int = 0) -> dict[str, Any]:
    """Our energy against the true one under a load, over windows of 10 to 25 s that begin anywhere.

    Returns:
        For each rail set the largest error as it is and outside the quantisation bound, %, and the largest bound, %; the same of
        a plain sum of power times interval ten times a second.
    """
    from wattune.profiling.meter import Meter

    rng = random.Random(f"{load}|{seed}")
    board = VirtualBoard(workload=None, seed=seed)
    start = board.time.now_s
    total_s = 60.0 + 20.0 * windows
    LOADS[load](board, start + 4.0, total_s)
    edges = []
    for _ in range(windows):
        t0 = start + rng.uniform(8.0, total_s - 40.0)
        edges.append((t0, t0 + rng.uniform(10.0, 25.0)))
    truth: dict[float, dict[str, float]] = {}
    plain: list[tuple[float, dict[str, float]]] = []
    for moment in {t for pair in edges for t in pair}:
        board.time.at(moment, lambda moment=moment: truth.__setitem__(moment, board.true_j()))  # type: ignore[misc]
    sets = board.machine.rail_sets

    def plain_reading() -> None:
        board.machine.advance()
        volts_amperes = {label: board.machine.rail(label) for label in sets["module"]}
        plain.append(
            (
                board.time.now_s,
                {
                    name: sum(v * a * 1e-6 for v, a in (volts_amperes[la] for la in labels))
                    for name, labels in sets.items()
                },
            )
        )

    for n in range(int(total_s * 10)):
        board.time.at(start + n / 10, plain_reading)
    meter = Meter(board.findings, hz=hz, clock=board.time, sleep=board.time.sleep, reader=board.read)
    meter.start()
    meter.run(total_s)
    meter.stop(tail=False)
    result: dict[str, Any] = {"windows": windows}
    for name in sets:
        raw, outside, bounds, others = [], [], [], []
        for t0, t1 in edges:
            window = meter.window(t0, t1).sets[name]
            true_j = truth[t1][name] - truth[t0][name]
            assert window.energy_j is not None, window.reason
            assert window.bound_j is not None
            off = abs(window.energy_j - true_j)
            raw.append(100 * off / true_j)
            outside.append(100 * max(0.0, off - window.bound_j) / true_j)
            bounds.append(100 * window.bound_j / true_j)
            inside = [powers[name] for t, powers in plain if t0 <= t <= t1]
            others.append(100 * abs(sum(inside) / 10 - true_j) / true_j)
        result[name] = {
            "max_error_pct": round(max(raw), 3),
            "mean_error_pct": round(sum(raw) / len(raw), 3),
            "max_error_outside_bound_pct": round(max(outside), 3),
            "max_bound_pct": round(max(bounds), 3),
            "plain_sum_max_error_pct": round(max(others), 3),
        }
    return result


# --- what a sample costs


def _read_ours(job: dict[str, Any]) -> Callable[[], object]:
    sys.path.insert(0, job["source"])
    from wattune.profiling.sampler import Sampler, plan_of

    sampler = Sampler(plan_of(job["plan"]))
    samples: list[object] = []
    return lambda: samples.append(sampler.sample())


def _read_by_text(job: dict[str, Any]) -> Callable[[], object]:
    """Each file by `Path.read_text`, the product of the two numbers: the way of Zeus's reader."""
    pairs = [(Path(v), Path(a)) for v, a in job["pairs"]]
    return lambda: [float(v.read_text().strip()) * float(a.read_text().strip()) / 1000 for v, a in pairs]


def _read_by_line(job: dict[str, Any]) -> Callable[[], object]:
    """Each file opened and its first line read: the way of jetson-stats' service."""

    def value(path: str) -> int:
        with open(path) as file:  # noqa: PTH123  # the way that is timed
            return int(file.readline())

    pairs = job["pairs"]
    return lambda: [value(v) * value(a) for v, a in pairs]


def _read_zeus(job: dict[str, Any]) -> Callable[[], object]:
    from zeus.device.soc.jetson import VoltageCurrentProduct  # type: ignore[import-not-found,unused-ignore]

    rails = [VoltageCurrentProduct(Path(v), Path(a)) for v, a in job["pairs"]]
    return lambda: [rail.measure_power() for rail in rails]


def _read_jtop(job: dict[str, Any]) -> Callable[[], object]:
    from jtop.core.power import read_power_status  # type: ignore[import-not-found,unused-ignore]

    rails = [{"type": "INA3221", "volt": v, "curr": a} for v, a in job["pairs"]]
    return lambda: [read_power_status(rail) for rail in rails]


READERS: dict[str, Callable[[dict[str, Any]], Callable[[], object]]] = {
    "ours": _read_ours,
    "ours_rails_only": _read_ours,
    "like_zeus": _read_by_text,
    "like_jtop": _read_by_line,
    "zeus": _read_zeus,
    "jtop": _read_jtop,
}


def _time(job: dict[str, Any]) -> dict[str, float]:
    """CPU time per sample of a reader at its pace, without its start."""
    read = READERS[job["reader"]](job)
    read()
    n = int(job["seconds"] * job["hz"])
    cpu, begin = time.process_time(), time.monotonic()
    for tick in range(n):
        read()
        time.sleep(max(0.0, begin + (tick + 1) / job["hz"] - time.monotonic()))
    return {"cpu_us_per_sample": 1e6 * (time.process_time() - cpu) / n}


def reading_costs(seconds: float = READ_S, rounds: int = ROUNDS) -> dict[str, Any]:
    """CPU time per sample of each reader on one emulated tree.

    All readers read the voltages and currents of the module's rails fifty times a second, each in a process of its own, in turn;
    ours reads the clock, its bounds, the load and once a second the temperatures and counters as well.

    Returns:
        Microseconds for each reader (the least of the rounds), or why one was left out.

    Raises:
        BoardError: the emulated tree went away meanwhile.
    """
    from wattune.boards.virtual.constants import find_board_file
    from wattune.boards.virtual.emulator import fuse, plain
    from wattune.boards.virtual.emulator.layout import build_tree
    from wattune.boards.virtual.emulator.machine import Machine
    from wattune.profiling.meter import Meter
    from wattune.profiling.sampler import plan_text
    from wattune.workloads.build import build_named

    machine = Machine(find_board_file(BOARD), jetpack=JETPACK, workload=build_named(WORKLOAD))
    tree = build_tree(machine)
    why_not = fuse.why_not()
    with tempfile.TemporaryDirectory(prefix="wattune-bench-") as folder:
        root = Path(folder).resolve() / "board"
        root.mkdir()
        mount = None if why_not else fuse.Mount(tree, root, machine.lock)
        server = mount or plain.Mirror(tree, root, machine.lock, lambda *_: None)
        over = threading.Event()
        lost: list[str] = []

        def serve() -> None:
            while not over.wait(server.period_s):
                try:
                    server.poll()
                except OSError as error:
                    lost.append(error.strerror or str(error))
                    return
                machine.advance()

        server.poll()
        keeper = threading.Thread(target=serve, daemon=True)
        keeper.start()
        try:
            findings = findings_of(machine, tree, root)
            plan = Meter(findings, hz=READ_HZ).plan()
            rails_only = Meter(findings, hz=READ_HZ).plan(rails_only=True)
            pairs = plan.rails
            found: dict[str, Any] = {}
            python = CLIENTS if CLIENTS.exists() else Path(sys.executable)
            for name in READERS:
                if name in ("zeus", "jtop") and not CLIENTS.exists():
                    found[name] = {
                        "skipped": "jetson-stats and Zeus are not installed (`make fetch-clients`)"
                    }
            for _ in range(rounds):
                for name in READERS:
                    if "skipped" in found.get(name, {}):
                        continue
                    job = {
                        "reader": name, "seconds": seconds, "hz": READ_HZ, "pairs": pairs,
                        "plan": plan_text(rails_only if name == "ours_rails_only" else plan),
                        "source": str(Path(__file__).resolve().parents[2]),
                    }  # fmt: skip
                    done = _timed_reader(
                        [str(python), "-B", str(Path(__file__).resolve()), json.dumps(job)], lost
                    )
                    if why := lost or ([] if done is not None else ["no answer in time"]) or _why_gone(pairs):
                        raise _tree_gone(why)
                    assert done is not None
                    if done.returncode:
                        found[name] = {"skipped": (done.stderr.strip().splitlines() or ["it failed"])[-1]}
                        continue
                    cost = json.loads(done.stdout)["cpu_us_per_sample"]
                    least = min(cost, found.get(name, {}).get("cpu_us_per_sample", cost))
                    found[name] = {"cpu_us_per_sample": round(least, 1)}
        finally:
            over.set()
            keeper.join(5)
            with contextlib.suppress(OSError):  # it may be gone already, which has been said
                server.close()
    return {"mode": "fuse" if why_not is None else "dir", "readers": found}


LOOK_S = 0.2
"""How often it is looked whether the tree is still there while a reader runs."""
READER_LIMIT_S = 60.0


def _timed_reader(command: list[str], lost: list[str]) -> subprocess.CompletedProcess[str] | None:
    """Run a reader; None where the tree went away meanwhile (it is ended then) or it took far too long."""
    until = time.monotonic() + READER_LIMIT_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while process.poll() is None:  # it says one line: no pipe fills up
            if lost or time.monotonic() > until:
                process.kill()
                process.communicate()
                return None
            time.sleep(LOOK_S)
        out, err = process.communicate()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _why_gone(pairs: Sequence[Sequence[str]]) -> list[str]:
    """Why what the readers read is no longer there; empty where it is."""
    try:
        for path in (path for pair in pairs for path in pair):
            int(Path(path).read_text())
    except OSError as error:
        return [error.strerror or str(error)]
    except ValueError:
        return ["its files hold no numbers any more"]
    return []


def _tree_gone(lost: Sequence[str]) -> BoardError:
    from wattune.core.errors import BoardError

    return BoardError(
        f"The emulated board that the readers are timed on went away: {', '.join(lost)}.",
        "A tree that stays mounted until the end was expected.",
        "Type `wattune bench meter` again, and leave its mount alone.",
    )


def run() -> dict[str, Any]:
    """Cost and accuracy of the meter.

    Cost is compared like for like, the rails alone; what a whole sample costs (clock, its bounds, load and once a second temperatures
    and counters too, which the others do not read here) stands beside.

    Returns:
        CPU time per sample of each reader, our energy errors under steps, bursts and ramps, and whether all limits hold (`ok`).
    """
    costs = reading_costs()
    spent = {name: cost.get("cpu_us_per_sample") for name, cost in costs["readers"].items()}
    best = min(
        (us for name, us in spent.items() if us is not None and not name.startswith("ours")), default=None
    )

    def share(name: str) -> float | None:
        ours = spent[name]
        return round(ours / best, 3) if ours is not None and best else None

    errors = {load: energy_errors(load) for load in LOADS}
    worst = max(
        errors[load][name]["max_error_outside_bound_pct"] for load in errors for name in ("gpu_cpu", "module")
    )
    rails = share("ours_rails_only")
    return {
        "provenance": "simulated",
        "board": BOARD,
        "cost": costs,
        "cost_share_of_best_other": rails,
        "cost_share_of_best_other_whole_sample": share("ours"),
        "cost_limit": COST_LIMIT,
        "energy": errors,
        "max_error_outside_bound_pct": worst,
        "error_limit_pct": ERROR_LIMIT_PCT,
        "ok": rails is not None and rails <= COST_LIMIT and worst <= ERROR_LIMIT_PCT,
    }


if __name__ == "__main__":
    print(json.dumps(_time(json.loads(sys.argv[1]))))  # noqa: T201
