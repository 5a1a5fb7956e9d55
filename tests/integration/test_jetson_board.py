"""A board measured live: over a mounted emulated board in real time, against what that truly spent."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("omegaconf")
from mounted import Emulated

from schemas import schema
from trees import golden, workstation
from wattune.boards.jetson.sysfs import Sysfs
from wattune.boards.virtual.emulator import faults, fuse
from wattune.config import Config, LiveConf, SweepConf, to_config
from wattune.core.errors import BoardError, InputError
from wattune.core.settings import MAXN
from wattune.governing import state
from wattune.governing.lease import Lease
from wattune.profiling import jetson
from wattune.profiling.cells import parse_cell
from wattune.profiling.jetson import JetsonBoard
from wattune.profiling.load import EmulatedLoad
from wattune.profiling.spans import drift
from wattune.profiling.sweep import SettingFailedError, sweep
from wattune.stages.features import features
from wattune.stages.profile import profile
from wattune.workloads.build import build_named

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.long
NAME = "bert-small-sst2"
WORKLOAD = build_named(NAME)
FULL = (306_000_000, 1_300_500_000)


def rules(**other: Any) -> LiveConf:
    quick: dict[str, Any] = {
        "hz": 20.0, "warmup_steps": 2, "min_window_s": 0.8, "start_temp_c": 0.0, "idle_s": 0.3, "start_s": 20.0, "stall_s": 5.0,
    }  # fmt: skip
    return LiveConf(**quick | other)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Emulated]]:
    if (why := fuse.why_not()) is not None:
        pytest.skip(why)
    made: list[Emulated] = []

    def build(**how: Any) -> Emulated:
        root = tmp_path.resolve() / f"board{len(made)}"
        root.mkdir()
        made.append(Emulated(root, **how))
        return made[-1]

    try:
        yield build
    finally:
        for one in made:
            one.mount.close()


@pytest.fixture
def emulated(make: Callable[..., Emulated]) -> Emulated:
    return make()


class Watched(EmulatedLoad):
    """The emulated load, with what was truly spent when each count was first seen, and a hook for mischief."""

    def __init__(self, emulated: Emulated, hook: Callable[[int], None] | None = None) -> None:
        super().__init__(emulated.root)
        self._emulated, self._hook = emulated, hook
        self.spent: dict[int, dict[str, float]] = {}
        self.seen_s: dict[int, float] = {}

    def steps(self) -> int | None:
        with self._emulated.machine.lock:
            spent, steps = self._emulated.true_j(), self._emulated.machine.steps_done
            self.spent.setdefault(steps, spent)
            self.seen_s.setdefault(steps, time.monotonic())
        if self._hook is not None:
            self._hook(steps)
        return steps


def board_of(
    emulated: Emulated, hook: Callable[[int], None] | None = None, **other: Any
) -> tuple[JetsonBoard, Watched]:
    load = Watched(emulated, hook)
    return JetsonBoard(Sysfs(emulated.root), load, rules(**other)), load


# --- right ------------------------------------------------------------------------------------------------------------


def test_energy_per_step_is_the_true_one_within_the_printed_bound(emulated: Emulated) -> None:
    board, load = board_of(emulated, min_window_s=1.8)
    with board:
        for setting in (612.0, MAXN):
            m = board.measure(WORKLOAD, setting, repeat=0, steps=10, seed=1)
            certificate = board.last_certificate()
            run = certificate["run"]
            spent = load.spent[run["first_step"] + run["steps"]]
            begun = load.spent[run["first_step"]]
            scale = WORKLOAD.steps_per_epoch / run["steps"]
            took_s = load.seen_s[run["first_step"] + run["steps"]] - load.seen_s[run["first_step"]]
            assert m.window_s == pytest.approx(
                took_s, abs=0.3 * took_s / run["steps"]
            )  # whole steps, none too many
            assert m.energy_module_j is not None
            for name, epoch_j in (("gpu_cpu", m.energy_j), ("module", m.energy_module_j)):
                true_j = spent[name] - begun[name]
                allowed = certificate["sets"][name]["bound_j"] + 0.02 * true_j
                assert epoch_j / scale == pytest.approx(true_j, abs=allowed)
                assert allowed < 0.12 * true_j
            assert m.window_steps == run["steps"] >= 10
            assert m.window_s is not None
            assert m.window_s >= 1.8
            assert m.time_s == pytest.approx(m.window_s * scale)
            if setting == MAXN:
                assert certificate["pin"] is None
                assert certificate["baseline"]["label"] == "MAXN"
                assert emulated.bounds == FULL
            else:
                assert certificate["pin"]["verified"] is True
                assert m.gpu_mhz_mean == pytest.approx(setting, rel=0.01)
                assert emulated.bounds == (round(setting * 1e6),) * 2
    assert emulated.bounds == FULL
    assert emulated.machine.workload_id is None


def test_another_mode_ends_the_table_and_gives_the_baseline_its_name(make: Callable[..., Emulated]) -> None:
    emulated = make(power_mode="MODE_30W")
    board, _ = board_of(emulated)
    assert board.info.power_mode == "MODE_30W"
    assert board.info.table.top == 612.0
    with pytest.raises(InputError, match="1300"):
        board.measure(WORKLOAD, 1300.5, repeat=0, steps=5, seed=1)
    board.measure(WORKLOAD, MAXN, repeat=0, steps=5, seed=1)
    assert board.last_certificate()["baseline"]["label"] == "maxn (MODE_30W)"
    with pytest.raises(BoardError, match="MAXN was expected"):
        JetsonBoard(Sysfs(emulated.root), EmulatedLoad(emulated.root), rules(), power_mode="MAXN")
    with pytest.raises(InputError, match="jetson-agx-xavier"):
        JetsonBoard(Sysfs(emulated.root), EmulatedLoad(emulated.root), rules(), board_id="jetson-agx-xavier")
    other = make()
    assert board_of(other)[0].info.digest != board.info.digest


# --- in the pipeline --------------------------------------------------------------------------------------------------


def config(emulated: Emulated, **sweeping: Any) -> Config:
    quick = rules()
    return to_config(
        {
            "board": {
                "kind": "jetson", "id": "", "root": str(emulated.root), "load": {"kind": "emulated"},
                "live": {name: getattr(quick, name) for name in ("hz", "warmup_steps", "min_window_s", "start_temp_c", "idle_s")},
            },
            "workload_ids": [NAME],
            "workloads": {NAME: {"model": "bert-small", "task": "sst2", "max_length": 256}},
            "sweep": {"clocks_mhz": [408.0, 816.0], "repeats": 1, "steps": 8, **sweeping},
        }
    )  # fmt: skip


def test_a_sweep_in_random_order_resumed_after_a_reboot_feeds_the_features(
    emulated: Emulated, tmp_path: Path
) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    conf = config(emulated)

    def run() -> Any:
        return profile(conf, NAME, tmp_path / "data/profiles", tmp_path / "data/superseded")

    first = run()
    assert set(first.measured) == {408.0, 816.0, MAXN}
    folder = tmp_path / "data/profiles" / NAME
    documents = {path.name: json.loads(path.read_text()) for path in folder.iterdir()}
    for document in documents.values():
        jsonschema.validate(document, schema("cell"))
        assert document["provenance"] == "simulated"
        (certificate,) = document["certificates"]
        jsonschema.validate(certificate, schema("certificate"))
        assert certificate["board"]["boot_id_start"] == emulated.machine.boot_id
        assert certificate["run"]["order_seed"] == f"42|{NAME}|order"
        assert certificate["sets"]["gpu_cpu"]["idle_w"] > 0
    (folder / "816.json").unlink()
    emulated.machine.reboot()
    emulated.machine.filter_samples = 64
    again = run()
    assert again.measured == (816.0,)
    boot = json.loads((folder / "816.json").read_text())["certificates"][0]["board"]["boot_id_start"]
    assert (
        boot == emulated.machine.boot_id != documents["816.json"]["certificates"][0]["board"]["boot_id_start"]
    )
    features(conf, tmp_path)
    lines = (tmp_path / "data/features/features.csv").read_text().splitlines()
    assert len(lines) == 4
    assert all("simulated" in line for line in lines[1:])
    _go_on_elsewhere(conf, tmp_path, lines)


def _go_on_elsewhere(conf: Config, work: Path, lines: list[str]) -> None:
    """What was measured feeds the features where no board is, and nothing that was measured otherwise does."""
    folder, table = work / "data/profiles" / NAME, work / "data/features/features.csv"
    laptop = replace(conf, board=replace(conf.board, root=str(workstation_in(work / "laptop"))))
    table.unlink()
    features(laptop, work)
    assert table.read_text().splitlines() == lines
    for wrong, said in (
        (replace(laptop, sweep=replace(laptop.sweep, steps=9)), "another protocol"),
        (replace(laptop, sweep=replace(laptop.sweep, clocks_mhz=[408.0, 700.0])), "does not fit"),
        (
            replace(laptop, board=replace(laptop.board, id="jetson-agx-xavier")),
            "jetson-agx-xavier was expected",
        ),
        (replace(laptop, board=replace(laptop.board, power_mode="MODE_30W")), "MODE_30W was expected"),
    ):
        with pytest.raises(InputError, match=said):
            features(wrong, work)
    cell = json.loads((folder / "408.json").read_text())
    whole = json.dumps(cell)
    (folder / "408.json").write_text(json.dumps(cell | {"power_mode": "MODE_15W"}))
    with pytest.raises(InputError, match="measured on different boards, or differently"):
        features(laptop, work)
    del cell["board_digest"], cell["table_mhz"]  # the older form
    assert parse_cell(json.dumps(cell)).measured_on is None
    (folder / "408.json").write_text(json.dumps(cell))
    with pytest.raises(BoardError, match="x86"):
        features(laptop, work)
    features(conf, work)  # the board is asked
    assert table.read_text().splitlines() == lines
    assert profile(conf, NAME, work / "data/profiles", work / "data/superseded").measured == ()
    assert json.loads((folder / "408.json").read_text()) == json.loads(
        whole
    )  # it has it now, without being measured anew
    features(laptop, work)
    for path in folder.iterdir():
        path.unlink()
    with pytest.raises(InputError, match="no cells of the expected workloads"):
        features(laptop, work)


def workstation_in(root: Path) -> Path:
    workstation(root)
    return root


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_killed_in_the_middle_the_clock_is_given_back_and_the_sweep_goes_on(
    emulated: Emulated, tmp_path: Path, number: int
) -> None:
    conf = config(emulated, clocks_mhz=[612.0], maxn=False, repeats=1)
    script = (
        "import sys\nfrom pathlib import Path\nsys.path[:0] = [sys.argv[1], sys.argv[2]]\n"
        "from wattune.config import load_params\nfrom wattune.stages._main import run\nfrom wattune.stages.profile import profile\n"
        "work = Path(sys.argv[3])\n"
        f"sys.exit(run(lambda: profile(load_params(work / 'p.yaml'), '{NAME}', work / 'c', work / 's')))\n"
    )
    from omegaconf import OmegaConf

    OmegaConf.save(OmegaConf.structured(conf), tmp_path / "p.yaml")
    process = subprocess.Popen(
        [sys.executable, "-c", script, str(ROOT / "src"), str(ROOT / "tests"), str(tmp_path)],
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 20
    while emulated.bounds != (612_000_000, 612_000_000):
        assert time.monotonic() < until
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(number)
    _, said = process.communicate(timeout=20)
    assert process.returncode == (130 if number == signal.SIGTERM else -9), said
    assert "Traceback" not in said
    until = time.monotonic() + 5
    while emulated.bounds != FULL:
        assert time.monotonic() < until
        time.sleep(0.02)
    if number == signal.SIGTERM:
        assert emulated.machine.workload_id is None
        return
    emulated.machine.set_workload(None)  # what a killed sweep leaves running is a load, no pin
    result = profile(conf, NAME, tmp_path / "c", tmp_path / "s")
    assert result.measured == (612.0,)


# --- windows that must not count ----------------------------------------------------------------------------------------


def test_a_throttled_window_is_taken_again_and_said_so(emulated: Emulated) -> None:
    hot: list[float] = []

    def hook(steps: int) -> None:
        """Half a second after the first pin it overheats, for more than a second."""
        if emulated.bounds == (816_000_000, 816_000_000) and not hot:
            hot.append(time.monotonic() + 0.8)
        now = time.monotonic()
        emulated.machine.thermal_cap_hz = 612_000_000 if hot and hot[0] < now < hot[0] + 1.3 else None

    board, _ = board_of(emulated, hook, min_window_s=2.0)
    with board:
        m = board.measure(WORKLOAD, 816.0, repeat=0, steps=10, seed=1)
    run = board.last_certificate()["run"]
    assert run["attempt"] == 2
    assert any("capped the clock" in reason for reason in run["discarded"])
    assert board.last_certificate()["invalid"] == []
    assert m.gpu_mhz_mean == pytest.approx(816, rel=0.01)
    assert emulated.bounds == FULL


def test_a_setting_that_always_fails_leaves_no_cell_and_the_others_theirs(
    emulated: Emulated, tmp_path: Path
) -> None:
    def hook(steps: int) -> None:
        if emulated.machine.devfreq.cur_hz == 1_020_000_000 and emulated.bounds[0] == emulated.bounds[1]:
            emulated.machine.overcurrent("oc3")

    board, _ = board_of(emulated, hook, attempts=1)
    settings = [510.0, 1020.0]
    with pytest.raises(BoardError, match=r"could not be measured at 1020: .*oc3.*") as failed:
        sweep(
            board, WORKLOAD, settings, SweepConf(repeats=1, steps=8), tmp_path / "cells", tmp_path / "aside"
        )
    assert not isinstance(failed.value, SettingFailedError)
    assert "1 settings" in str(failed.value)
    assert {path.name for path in (tmp_path / "cells").iterdir()} == {"510.json"}
    assert all(parse_cell(path.read_bytes()).certificates for path in (tmp_path / "cells").iterdir())
    assert emulated.bounds == FULL


def test_heat_that_stays_fails_the_setting_and_not_the_sweep(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Capped while the clock is to be moved: the pin cannot be written as asked, and nobody else is to blame."""
    monkeypatch.setattr(jetson, "COOL_POLL_S", 0.02)
    board, _ = board_of(emulated, attempts=2, cool_down_s=0.1)
    with board:
        board.measure(WORKLOAD, 408.0, repeat=0, steps=5, seed=1)
        emulated.machine.thermal_cap_hz = 510_000_000
        with pytest.raises(SettingFailedError, match="went on doing so"):
            board.measure(WORKLOAD, 1020.0, repeat=0, steps=5, seed=1)
        calls: list[str] = []

        def late() -> str:
            """The heat comes between the last look and the write."""
            calls.append(real() if len(calls) >= 2 else "")
            return calls[-1]

        real = board._throttled
        monkeypatch.setattr(board, "_throttled", late)
        with pytest.raises(SettingFailedError, match="while the clock was set"):
            board.measure(WORKLOAD, 1020.0, repeat=0, steps=5, seed=1)
        emulated.machine.thermal_cap_hz = None
        board.measure(WORKLOAD, 1020.0, repeat=0, steps=5, seed=1)
        assert emulated.bounds == (1_020_000_000, 1_020_000_000)
    assert emulated.bounds == FULL


def test_b21_a_reboot_in_a_window_ends_the_sweep_without_a_number(emulated: Emulated) -> None:
    """A boot lifts the pin silently; here it is one program on that goes on, as over a remote file system."""

    def hook(steps: int) -> None:
        if emulated.bounds == (714_000_000, 714_000_000):
            emulated.machine.reboot()

    board, _ = board_of(emulated, hook)
    with pytest.raises(BoardError, match="bounds of the GPU clock"):
        board.measure(WORKLOAD, 714.0, repeat=0, steps=8, seed=1)
    assert emulated.bounds == FULL


def test_b28_a_rail_that_fails_gives_no_energy_never_zero_nor_a_smaller_sum(emulated: Emulated) -> None:
    board, _ = board_of(emulated, attempts=1)
    faults.apply("rail-eio VIN_SYS_5V0", emulated.machine, emulated.tree)
    m = board.measure(WORKLOAD, 714.0, repeat=0, steps=5, seed=1)
    assert m.energy_module_j is None
    assert "EIO" in board.last_certificate()["sets"]["module"]["reason"]
    faults.apply("rail-eio VDD_CPU_CV", emulated.machine, emulated.tree)
    with pytest.raises(SettingFailedError, match=r"VDD_CPU_CV .*EIO"):
        board.measure(WORKLOAD, 714.0, repeat=1, steps=5, seed=1)


def test_somebody_else_who_sets_the_clock_is_not_fought(emulated: Emulated) -> None:
    def hook(steps: int) -> None:
        if emulated.bounds == (714_000_000, 714_000_000):
            for name in ("min_freq", "max_freq"):
                (emulated.root / "sys/class/devfreq/17000000.gpu" / name).write_text("408000000\n")

    board, _ = board_of(emulated, hook)
    with pytest.raises(BoardError, match="Somebody else"):
        board.measure(WORKLOAD, 714.0, repeat=0, steps=8, seed=1)
    assert emulated.bounds == (408_000_000, 408_000_000)
    assert emulated.machine.workload_id is None
    assert state.stale(Sysfs(emulated.root)) == []


def test_a_clock_left_pinned_is_no_baseline(emulated: Emulated) -> None:
    """Trap T1: an unpinned row whose clock something held."""
    pinned: list[int] = []

    def hook(steps: int) -> None:
        if not pinned:
            pinned.append(steps)
            for name in ("max_freq", "min_freq"):
                (emulated.root / "sys/class/devfreq/17000000.gpu" / name).write_text("816000000\n")

    board, _ = board_of(emulated, hook, attempts=1)
    with pytest.raises(SettingFailedError, match="pinned at 816 MHz"):
        board.measure(WORKLOAD, MAXN, repeat=0, steps=8, seed=1)


def test_a_load_that_is_started_anew_or_stalls(emulated: Emulated) -> None:
    board, load = board_of(emulated, attempts=1, stall_s=0.6)
    real, back = load.steps, [0]
    load.steps = lambda: (real() or 0) - back[0]  # type: ignore[method-assign]
    until = time.monotonic() + 1.6

    def hook(steps: int) -> None:
        if time.monotonic() > until:
            back[0] = 1000

    load._hook = hook
    with pytest.raises(SettingFailedError, match="went backwards"):
        board.measure(WORKLOAD, 816.0, repeat=0, steps=10_000, seed=1)
    board, load = board_of(emulated, lambda _: emulated.machine.set_workload(None), start_s=0.5)
    with pytest.raises(BoardError, match="no step within"):
        board.measure(WORKLOAD, 816.0, repeat=0, steps=5, seed=1)
    begun = time.monotonic()

    def stop_later(_: int) -> None:
        if time.monotonic() > begun + 1.5:
            emulated.machine.set_workload(None)

    board, load = board_of(emulated, stop_later, stall_s=0.6)
    with pytest.raises(BoardError, match="no step for"):
        board.measure(WORKLOAD, 816.0, repeat=0, steps=10_000, seed=1)
    assert emulated.bounds == FULL


# --- before it begins ---------------------------------------------------------------------------------------------------


def session(board: JetsonBoard, tmp_path: Path) -> JetsonBoard:
    with board.session(WORKLOAD, [612.0, MAXN], SweepConf(repeats=2, steps=10), tmp_path) as ready:
        return ready


def test_preflight_says_what_will_be_measured_and_what_it_takes(emulated: Emulated, tmp_path: Path) -> None:
    board, _ = board_of(emulated)
    one = session(board, tmp_path).preflight
    assert one is not None
    assert one.windows == 4
    assert one.baseline == "MAXN"
    assert one.estimated_s == pytest.approx(4 * (10 * 64 * 0.84e-3 + 3 * 0.3 + 10 * 0.3))
    assert json.loads(json.dumps(one.as_json()))["settings"] == [612.0, "maxn"]
    assert "about 18 s" in one.text()
    assert "MAXN" in one.text()


def test_an_unfit_board_is_refused_before_anything_runs(emulated: Emulated, tmp_path: Path) -> None:
    board, _ = board_of(emulated, max_temp_c=20.0)
    with pytest.raises(BoardError, match="before anything runs"):
        session(board, tmp_path)
    board, _ = board_of(emulated, free_memory_mb=10**6)
    with pytest.raises(BoardError, match="MB of memory"):
        session(board, tmp_path)
    board, _ = board_of(emulated)
    emulated.machine.set_workload(WORKLOAD)
    with pytest.raises(BoardError, match="Something else runs on the GPU"):
        session(board, tmp_path)
    emulated.machine.set_workload(None)
    emulated.machine.thermal_cap_hz = 612_000_000
    with pytest.raises(BoardError, match="throttled"):
        session(board, tmp_path)
    emulated.machine.thermal_cap_hz = None
    emulated.machine.set_power_mode("MODE_30W")
    with pytest.raises(BoardError, match="MODE_30W now"):
        session(board, tmp_path)
    assert emulated.machine.workload_id is None


def test_a_pin_is_told_from_one_a_dead_holder_left(emulated: Emulated, tmp_path: Path) -> None:
    sysfs = Sysfs(emulated.root)
    board, _ = board_of(emulated)
    pid = os.fork()
    if pid == 0:  # dies with the clock pinned and without a watchdog
        Lease(sysfs, board._gpu, 510, watchdog=False).__enter__()
        os._exit(0)
    os.waitpid(pid, 0)
    assert emulated.bounds == (510_000_000, 510_000_000)
    after, _ = board_of(emulated)
    assert after.info == board.info
    assert "ended without restoring" in session(after, tmp_path).preflight.text()  # type: ignore[union-attr]
    assert emulated.bounds == FULL
    for name in ("min_freq", "max_freq"):
        (emulated.root / "sys/class/devfreq/17000000.gpu" / name).write_text("1300500000\n")
    with pytest.raises(BoardError, match=r"pinned at 1300\.5 MHz already"):
        board_of(emulated)


@pytest.mark.parametrize(
    ("name", "why"), [("F6", "x86"), ("F7", "Raspberry Pi"), ("F8", "CUDA"), ("F5", "Thor")]
)
def test_what_is_no_board_to_measure_is_said(
    tmp_path: Path, name: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jetson, "LATE_NODE_S", 0.1)
    golden(name, tmp_path / "t")
    with pytest.raises(BoardError, match=why):
        session(JetsonBoard(Sysfs(tmp_path / "t"), EmulatedLoad(tmp_path / "t"), rules(idle_s=0.0)), tmp_path)


# --- heat, order, drift -------------------------------------------------------------------------------------------------


def test_the_load_stands_still_while_the_board_cools(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heat goes after two looks; the load is idle meanwhile, and the wait is in the certificate."""
    seen: list[str | None] = []

    def sleep(seconds: float) -> None:
        if seconds == jetson.COOL_POLL_S:
            seen.append(emulated.machine.workload_id)
            emulated.machine.extra_heat_c = 30.0 if len(seen) < 2 else 0.0
            seconds = 0.01
        real(seconds)

    real = time.sleep
    board, _ = board_of(emulated, start_temp_c=50.0, cool_down_s=30.0)
    emulated.machine.extra_heat_c = 30.0
    monkeypatch.setattr(jetson.time, "sleep", sleep)
    board.measure(WORKLOAD, 612.0, repeat=0, steps=5, seed=1)
    start = board.last_certificate()["run"]["start"]
    assert seen == [None, None]
    assert start["from_c"] > 50 >= start["to_c"]
    assert start["reached"] is True


def test_waiting_ends_where_it_brings_nothing(emulated: Emulated, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jetson, "STILL_FALLING_S", 0.1)
    monkeypatch.setattr(jetson, "COOL_POLL_S", 0.02)
    board, _ = board_of(emulated, start_temp_c=5.0, cool_down_s=60.0)
    board.measure(WORKLOAD, 612.0, repeat=0, steps=5, seed=1)
    start = board.last_certificate()["run"]["start"]
    assert start["reached"] is False
    assert 0.1 <= start["waited_s"] < 5


def test_order_is_random_the_same_for_a_seed_and_another_for_another(emulated: Emulated) -> None:
    board, _ = board_of(emulated)
    settings = [*board.info.table, MAXN]
    orders = {seed: board.order(WORKLOAD, settings, seed) for seed in range(5)}
    assert all(sorted(map(str, order)) == sorted(map(str, settings)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 5
    assert orders[3] == board.order(WORKLOAD, settings, 3)
    assert settings not in orders.values()


def test_drift_is_a_lasting_change_of_the_step_time() -> None:
    def edges(times: list[float]) -> list[tuple[float, int]]:
        t, found = 0.0, [(0.0, 0)]
        for number, step in enumerate(times, 1):
            t += step
            found.append((t, number))
        return found

    assert drift(edges([0.1] * 40)) == ""
    assert "drifted" in drift(edges([0.1] * 20 + [0.13] * 20))
    assert drift(edges([0.1] * 20 + [0.105] * 20)) == ""
    assert drift(edges([0.05, 0.2] * 20)) == ""  # batches of other lengths
    assert drift(edges([0.1] * 3 + [0.2] * 3)) == ""  # too few to say


# --- configuration ------------------------------------------------------------------------------------------------------


def test_configuration_of_live_boards_compiles() -> None:
    pytest.importorskip("hydra")
    from wattune.config import compose

    real = to_config(compose(ROOT / "conf", "jetson"))
    assert (real.board.kind, real.board.load.kind) == ("jetson", "finetune")
    assert real.sweep.clocks_mhz == []
    emulated = to_config(compose(ROOT / "conf", "smoke", ["board=emulated"]))
    assert (emulated.board.load.kind, emulated.board.live.min_window_s) == ("emulated", 5.0)
    for key, value in (("hz", 0), ("attempts", 0), ("idle_s", -1)):
        with pytest.raises(InputError, match=key):
            to_config({"board": {"live": {key: value}}})
    with pytest.raises(InputError, match=r"board\.load\.kind"):
        to_config({"board": {"load": {"kind": "magic"}}})


def test_a_real_board_is_measured_steadily_only(tmp_path: Path) -> None:
    from wattune.stages.profile import board_of as stage_board

    conf = {
        "board": {"kind": "jetson", "root": str(tmp_path)},
        "sweep": {"meter": "whole-log", "repeats": 1},
    }
    with pytest.raises(InputError, match="steady"):
        stage_board(to_config(conf))
    with pytest.raises(InputError, match="not a folder"):
        stage_board(to_config({"board": {"kind": "jetson", "root": str(tmp_path / "none")}}))
