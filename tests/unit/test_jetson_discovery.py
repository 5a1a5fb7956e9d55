"""Discovery of boards over golden trees, and the bug cases of its kinds: nodes, rails, power modes, identity."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trees
from wattune.boards.jetson import boards, discovery, powermode
from wattune.boards.jetson.discovery import (
    discover,
    gpu_load_pct,
    rail_sum_w,
    read_rails_w,
    temperatures_c,
)
from wattune.boards.jetson.findings import Findings, PowerMode, RailChannel
from wattune.boards.jetson.sysfs import Sysfs

TABLE = (306000000, 612000000)
INA = f"{trees.BUS}/ina3221"
NANO_PARTS = ("nvidia,p3768-0000+p3767-0005-super", "nvidia,tegra234")


def look(root: Path) -> Findings:
    return discover(Sysfs(root))


@pytest.fixture
def orin(tmp_path: Path) -> Path:
    return trees.golden("F1", tmp_path / "orin")


def make_board(root: Path, compatible: tuple[str, ...], *, mem_gb: int = 8, jetpack: str = "6") -> Path:
    root.mkdir(exist_ok=True)
    trees.identity(root, "Some board", compatible, jetpack, mem_gb)
    (root / "sys/class/devfreq").mkdir(parents=True, exist_ok=True)
    return root


def add_chip(root: Path, *rails: tuple[str, int], name: str = "1-0040", mv: int = 5000) -> None:
    """A chip whose rails draw so many mA at 5 V."""
    three = [(label, mv, ma) for label, ma in rails] + [None] * (3 - len(rails))
    trees.write_chip(root, trees.Chip(name, 3, tuple(three), 5000))  # type: ignore[arg-type]


def total_w(findings: Findings) -> float | None:
    return rail_sum_w(findings, findings.module, read_rails_w(findings)[0])


# --- golden trees -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("absolute", [False, True], ids=["relative", "absolute"])
@pytest.mark.parametrize("name", trees.GOLDEN)
def test_golden_tree(name: str, absolute: bool, tmp_path: Path) -> None:
    want = trees.GOLDEN[name]
    findings = look(trees.golden(name, tmp_path / "t", absolute_links=absolute))
    gpu = findings.gpu
    assert (findings.board, findings.kind, findings.model) == (want.board, "jetson", want.model)
    assert findings.jetpack is not None
    assert findings.jetpack.split(".")[0] == want.jetpack
    assert findings.kernel == trees.RELEASES[want.jetpack][1]
    assert findings.boot_id == trees.BOOT_ID
    assert gpu is not None
    assert (gpu.path, gpu.device) == (f"{want.device}/devfreq/{want.gpu}", want.device)
    assert (gpu.table_hz, gpu.min_hz, gpu.max_hz, gpu.cur_hz) == (
        want.table,
        want.min_hz,
        want.max_hz,
        want.min_hz,
    )
    assert (gpu.governor, gpu.read_only) == ("nvhost_podgov", "")
    assert gpu.usable_hz == tuple(hz for hz in want.table if want.min_hz <= hz <= want.max_hz)
    rails_w, reasons = read_rails_w(findings)
    assert set(rails_w) == {c[0] for chip in want.chips for c in chip.channels if c and c[0] != "NC"}
    assert reasons == {}
    assert rail_sum_w(findings, findings.gpu_cpu, rails_w) == pytest.approx(want.gpu_cpu_w)
    assert rail_sum_w(findings, findings.module, rails_w) == pytest.approx(want.module_w)
    assert temperatures_c(findings) == want.expected_temps
    assert gpu_load_pct(findings) == 13.7
    assert findings.power_mode == PowerMode(*want.mode)
    assert findings.filter.samples == (None if want.chips[0].iio else 512)
    assert set(findings.counters) == {"oc1", "oc2", "oc3"}
    assert list(findings.cooling) == [f"devfreq-{want.gpu}"]
    assert findings.problems == []


def test_f1_has_the_powers_of_the_fact_sheet(orin: Path) -> None:
    findings = look(orin)
    rails_w, _ = read_rails_w(findings)
    assert {k: round(v or 0, 3) for k, v in rails_w.items()} == {
        "VDD_GPU_SOC": 5.165, "VDD_CPU_CV": 1.589, "VIN_SYS_5V0": 4.607, "VDDQ_VDD2_1V8AO": 0.601,
    }  # fmt: skip
    assert round(total_w(findings) or 0, 3) == 11.361
    assert findings.rails["VDD_GPU_SOC"].code_ma == 20.0
    assert [hz / 1e6 for hz in findings.gpu.usable_hz] == [306, 408, 510, 612]  # type: ignore[arg-type]


@pytest.mark.parametrize("jetpack", ["5", "6", "7.2"])
def test_the_emulator_is_found_as_a_board_is(jetpack: str, tmp_path: Path) -> None:
    machine, tree = trees.emulated_machine(jetpack=jetpack, power_mode="MODE_30W")
    findings = look(trees.snapshot(tree, tmp_path / "t"))
    assert findings.board == "jetson-agx-orin-64gb"
    assert findings.gpu is not None
    assert findings.gpu.path == tree.node  # type: ignore[attr-defined]
    assert findings.gpu.table_hz == machine.devfreq.table_hz
    assert findings.gpu.max_hz == 612000000
    assert findings.power_mode == PowerMode("MODE_30W", 2)
    assert findings.boot_id == machine.boot_id
    assert set(findings.rails) == {rail.label for rail in machine.file.rails}
    assert findings.module is not None
    assert set(findings.module) == set(machine.rail_sets["module"])
    assert set(findings.gpu_cpu or ()) == set(machine.rail_sets["gpu_cpu"])
    assert {"cpu", "tj"} <= set(findings.zones)


def test_looking_reads_nothing_that_changes_the_board_and_writes_nothing(orin: Path) -> None:
    read: list[str] = []

    class Watched(Sysfs):
        def read(self, relative: str) -> str:
            read.append(relative)
            return super().read(relative)

        def write(self, relative: str, text: str) -> None:
            raise AssertionError(relative)

    findings = discover(Watched(orin))
    read_rails_w(findings)
    assert findings.gpu is not None
    assert not [path for path in read if path.endswith(("counters_reset", "counters", "trans_stat"))]


# --- the tree -----------------------------------------------------------------------------------------------------------


def test_links_never_lead_out_of_a_tree(tmp_path: Path) -> None:
    root = tmp_path / "t"
    trees.put(root, "sys/inside/file", "inside")
    trees.put(tmp_path, "outside/file", "outside")
    for number, target in enumerate(
        ("/sys/inside", "../../../../sys/inside", str(root / "sys/inside"), "../sys/inside")
    ):
        (root / f"sys/link{number}").symlink_to(target)
    (root / "sys/out").symlink_to(tmp_path / "outside")
    (root / "sys/loop").symlink_to("loop")
    sysfs = Sysfs(root)
    for number in range(4):
        assert sysfs.read(f"sys/link{number}/file") == "inside"
        assert sysfs.real(f"sys/link{number}/file") == "sys/inside/file"
    with pytest.raises(FileNotFoundError):
        sysfs.read("sys/out/file")
    with pytest.raises(OSError, match="symbolic links"):
        sysfs.read("sys/loop")
    assert not sysfs.exists("sys/loop")
    assert sysfs.real("sys/loop") == "sys/loop"
    assert (tmp_path / "outside/file").read_text() == "outside\n"


def test_a_time_limit_gives_the_same_answers(orin: Path) -> None:
    slow, fast = Sysfs(orin, timeout_s=5.0), Sysfs(orin)
    node = "sys/class/devfreq/17000000.gpu"
    assert slow.names(node) == fast.names(node)
    assert slow.read(f"{node}/available_frequencies") == fast.read(f"{node}/available_frequencies")
    slow.write(f"{node}/min_freq", "408000000")
    assert fast.read(f"{node}/min_freq") == "408000000"
    for call in (slow.read, fast.read):
        with pytest.raises(FileNotFoundError) as caught:
            call(f"{node}/nothing")
        assert str(caught.value.filename).endswith("17000000.gpu/nothing")
    for sysfs in (slow, fast):
        with pytest.raises(FileNotFoundError):
            sysfs.write(f"{node}/nothing", "1")
    assert not (orin / node / "nothing").exists()
    slow.close()


# --- frequency control and discovery ------------------------------------------------------------------------------------


def test_b11_thor_node_without_of_node_and_load(tmp_path: Path) -> None:
    findings = look(trees.golden("F5", tmp_path / "t"))
    assert findings.board == "jetson-agx-thor"
    assert findings.gpu is not None
    assert findings.gpu.path.endswith("gpu-gpc-0")
    assert (findings.gpu.min_hz, findings.gpu.max_hz) == (315000000, 1575000000)
    assert "hang" in findings.gpu.read_only
    assert gpu_load_pct(findings) is None
    assert total_w(findings) == pytest.approx(19.78)
    assert findings.sysfs.timeout_s is not None


def test_b12_a_late_node_is_found_and_its_absence_not_remembered(tmp_path: Path) -> None:
    root = trees.golden("F8", tmp_path / "t")
    assert look(root).gpu is None
    trees.golden("F1", tmp_path / "other")

    def appear() -> None:
        time.sleep(0.3)
        shutil.copytree(
            tmp_path / "other/sys/devices", root / "sys/devices", symlinks=True, dirs_exist_ok=True
        )
        trees.put_link(
            root, "sys/class/devfreq/17000000.gpu", trees.GOLDEN["F1"].device + "/devfreq/17000000.gpu"
        )

    thread = threading.Thread(target=appear)
    thread.start()
    findings = discover(Sysfs(root), retry_s=20.0)
    thread.join()
    assert findings.gpu is not None
    assert not [key for key in findings.errors if key.startswith("gpu")]
    assert findings.problems == []


def test_b12_waiting_ends_when_its_time_is_over(tmp_path: Path) -> None:
    started = time.monotonic()
    assert discover(Sysfs(trees.golden("F8", tmp_path / "t")), retry_s=0.3).gpu is None
    assert 0.3 <= time.monotonic() - started < 5


def test_b13_an_empty_class_is_said_with_what_was_looked_at_and_the_rest_stays(tmp_path: Path) -> None:
    findings = look(trees.golden("F8", tmp_path / "t"))
    assert findings.gpu is None
    assert "/sys/class/devfreq" in findings.errors["gpu"]
    assert "/sys/devices/gpu.0" in findings.errors["gpu"]
    assert any("CUDA" in problem for problem in findings.problems)
    assert total_w(findings) == pytest.approx(trees.AGX_MODULE_W)


@pytest.mark.parametrize(
    "device",
    [
        "sys/devices/gpu.0",
        "sys/devices/platform/gpu.0",
        "sys/devices/platform/bus@0/17000000.gpu",
        "sys/devices/17000000.ga10b",
    ],
)
def test_b13_b14_nodes_outside_the_class(device: str, tmp_path: Path) -> None:
    root = trees.golden("F8", tmp_path / "t")
    node = trees.gpu_node(root, device, "17000000.gpu", TABLE, *TABLE)
    trees.put(root, f"{device}/load", 500)
    findings = look(root)
    assert findings.gpu is not None
    assert (findings.gpu.path, findings.gpu.table_hz) == (node, TABLE)
    assert gpu_load_pct(findings) == 50.0


def test_the_node_behind_devfreq_dev_alone(tmp_path: Path) -> None:
    root = trees.golden("F8", tmp_path / "t")
    trees.gpu_node(root, "sys/devices/elsewhere", "x", TABLE, *TABLE)
    trees.put_link(root, "sys/devices/gpu.0/devfreq_dev", "sys/devices/elsewhere/devfreq/x")
    findings = look(root)
    assert findings.gpu is not None
    assert findings.gpu.path == "sys/devices/elsewhere/devfreq/x"


@given(address=st.integers(0, 2**40), name=st.sampled_from(["gpu", "ga10b", "gv11b", "gp10b"]))
@settings(max_examples=15)
def test_b15_no_address_is_expected(
    address: int, name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = trees.golden("F8", tmp_path_factory.mktemp("b15"))
    node = trees.gpu_node(
        root, f"sys/devices/platform/{address:x}.{name}", f"{address:x}.{name}", TABLE, *TABLE
    )
    trees.put_link(root, f"sys/class/devfreq/{address:x}.{name}", node)
    findings = look(root)
    assert findings.gpu is not None
    assert findings.gpu.path == node


def test_a_node_is_told_by_its_device_tree_entry_where_its_name_says_nothing(tmp_path: Path) -> None:
    for number, (file, text) in enumerate((("compatible", "vendor,x\0nvidia,ga10b\0"), ("name", "ga10b\0"))):
        root = trees.golden("F8", tmp_path / str(number))
        node = trees.gpu_node(root, "sys/devices/odd", "odd", TABLE, *TABLE)
        trees.put_link(root, "sys/class/devfreq/odd", node)
        trees.put_link(root, f"{node}/device", "sys/devices/odd")
        assert look(root).gpu is None
        trees.put(root, f"sys/devices/odd/of_node/{file}", text)
        findings = look(root)
        assert findings.gpu is not None
        assert findings.gpu.path == node


@pytest.mark.parametrize(
    "name",
    ["gpu-nvd-0", "8188050000.vic", "15340000.vic", "154c0000.nvenc", "15380000.nvjpg", "15880000.nvdla0", "bwmgr", "31b0000.emc",
     "2c60000.external-memory-controller", "13e00000.host1x", "ufshcd"],
)  # fmt: skip
def test_other_engines_are_never_taken_for_the_gpu(name: str, tmp_path: Path) -> None:
    root = trees.golden("F8", tmp_path / "t")
    node = trees.gpu_node(root, f"sys/devices/{name}", name, TABLE, *TABLE)
    trees.put_link(root, f"sys/class/devfreq/{name}", node)
    findings = look(root)
    assert findings.gpu is None
    assert name in findings.errors["gpu"]


def test_b16_b45_a_table_below_the_mode_s_clock_is_used_and_said(tmp_path: Path) -> None:
    root = make_board(tmp_path / "t", NANO_PARTS)
    node = trees.gpu_node(
        root, trees.ORIN6, "17000000.gpu", (306000000, 510000000, 624750000), 306000000, 624750000
    )
    trees.put_link(root, "sys/class/devfreq/17000000.gpu", node)
    trees.power_mode(root, "MAXN_SUPER", 2, others=(("15W", 0), ("25W", 1)))
    findings = look(root)
    assert findings.board == "jetson-orin-nano-8gb"
    assert findings.gpu is not None
    assert findings.gpu.table_hz[-1] == 624750000
    assert [w for w in findings.warnings if "firmware" in w and "624.75" in w and "1020" in w]
    trees.power_mode(root, "15W", 0, others=(("MAXN_SUPER", 2),))  # mode 0 is not MAXN on this board
    findings = look(root)
    assert findings.power_mode == PowerMode("15W", 0)
    assert not [w for w in findings.warnings if "firmware" in w]
    assert [w for w in findings.warnings if "not MAXN" in w]


@pytest.mark.parametrize("file", ["min_freq", "max_freq", "cur_freq", "available_frequencies"])
def test_b17_a_read_that_hangs_ends_in_time_and_harms_nothing_else(file: str, tmp_path: Path) -> None:
    root = trees.golden("F5", tmp_path / "t")
    stuck = root / "sys/class/devfreq/gpu-gpc-0" / file
    stuck.unlink()
    os.mkfifo(stuck)  # nobody writes: opening it never returns
    started = time.monotonic()
    findings = discover(Sysfs(root, timeout_s=0.5))
    assert time.monotonic() - started < 10
    assert findings.gpu is None
    assert file in findings.errors["gpu"]
    assert "no answer within 0.5 s" in findings.errors["gpu"]
    assert any("Reboot" in problem for problem in findings.problems)
    assert total_w(findings) == pytest.approx(19.78)
    assert temperatures_c(findings)["tj"] == 38.875
    findings.sysfs.close()


def test_b17_one_file_that_hangs_does_not_hold_up_the_next(tmp_path: Path) -> None:
    trees.put(tmp_path, "sys/good", "1")
    os.mkfifo(tmp_path / "sys/stuck")
    sysfs = Sysfs(tmp_path, timeout_s=0.3)
    for _ in range(2):
        with pytest.raises(TimeoutError):
            sysfs.read("sys/stuck")
        assert sysfs.read("sys/good") == "1"
    sysfs.close()


def test_b43_a_pinned_clock_is_told_by_its_bounds(orin: Path) -> None:
    node = orin / trees.ORIN6 / "devfreq/17000000.gpu"
    assert not [w for w in look(orin).warnings if "pinned" in w]
    (node / "min_freq").write_text("612000000\n")
    findings = look(orin)
    assert [w for w in findings.warnings if "pinned at 612 MHz" in w]
    assert findings.gpu is not None
    assert findings.gpu.usable_hz == (306000000, 408000000, 510000000, 612000000)


def test_a_cap_under_maxn_is_said(orin: Path) -> None:
    trees.power_mode(orin, "MAXN", 0)
    assert [w for w in look(orin).warnings if "not MAXN" in w and "612" in w]


def test_b56_nothing_of_the_memory_clock_is_needed(orin: Path) -> None:
    assert not (orin / "sys/kernel").exists()
    assert look(orin).problems == []


@pytest.mark.parametrize("file", ["min_freq", "max_freq"])
@pytest.mark.parametrize("text", ["", "abc", "-"])
def test_a_bound_that_is_no_number_makes_the_node_unusable(file: str, text: str, orin: Path) -> None:
    (orin / trees.ORIN6 / "devfreq/17000000.gpu" / file).write_text(text)
    findings = look(orin)
    assert findings.gpu is None
    assert file in findings.errors["gpu"]
    assert total_w(findings) == pytest.approx(trees.AGX_MODULE_W)


def test_a_gated_gpu_has_no_clock(orin: Path) -> None:
    (orin / trees.ORIN6 / "devfreq/17000000.gpu/cur_freq").write_text("0\n")
    findings = look(orin)
    assert findings.gpu is not None
    assert findings.gpu.cur_hz is None
    assert "powered off" in findings.errors["gpu_cur_freq"]


# --- power --------------------------------------------------------------------------------------------------------------


def test_b19_the_total_is_the_sum_of_three_and_not_the_last_rail(tmp_path: Path) -> None:
    root = make_board(tmp_path / "t", ("nvidia,p3701-0005", "nvidia,tegra234"), mem_gb=64)
    add_chip(root, ("VDD_GPU_SOC", 3205), ("VDD_CPU_CV", 4405), ("VIN_SYS_5V0", 4767), mv=1000)
    assert total_w(look(root)) == pytest.approx(12.377)


def test_b24_an_input_rail_is_the_total_and_nothing_is_added(tmp_path: Path) -> None:
    root = make_board(tmp_path / "t", ("nvidia,p3450-0000", "nvidia,tegra210"), jetpack="4")
    add_chip(root, ("POM_5V_IN", 800), ("POM_5V_GPU", 100), ("POM_5V_CPU", 180), name="6-0040")
    assert total_w(look(root)) == pytest.approx(4.0)


def test_b25_the_same_rails_whatever_the_driver_s_folders(tmp_path: Path) -> None:
    want = {"VDD_IN": 16.366848, "VDD_CPU_GPU_CV": 7.0896, "VDD_SOC": 3.119424}
    chip = trees.GOLDEN["orin-nx-16"].chips[0]
    flat = f"{INA}/1-0040/hwmon/hwmon4"
    for number, place in enumerate(
        (f"{INA}/1-0040/hwmon/hwmon4", f"{INA}x/1-0040/hwmon/hwmon2", f"{INA}x/1-0040/hwmon2",
         f"{INA}/1-0040/hwmon/hwmon4/hwmon4", f"{INA}/1-0040", "sys/class/hwmon/hwmon7")
    ):  # fmt: skip
        root = make_board(tmp_path / str(number), ("nvidia,p3767-0000", "nvidia,tegra234"))
        trees.write_chip(tmp_path / f"c{number}", chip)
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.move(tmp_path / f"c{number}" / flat, root / place)
        rails_w, reasons = read_rails_w(look(root))
        assert rails_w == pytest.approx(want), place
        assert reasons == {}


def test_b25_a_chip_reached_by_two_paths_is_one(tmp_path: Path) -> None:
    root = trees.golden("orin-nx-16", tmp_path / "t")
    folder = f"{INA}/1-0040/hwmon/hwmon4"
    trees.put_link(root, "sys/class/hwmon/hwmon4", folder)
    findings = look(root)
    assert {rail.chip for rail in findings.rails.values()} == {"1-0040"}
    assert not [key for key in findings.errors if key.startswith("rail ")]


def test_b26_a_combined_rail_keeps_its_name_and_is_no_gpu_power(tmp_path: Path) -> None:
    findings = look(trees.golden("F2", tmp_path / "t"))
    assert "VDD_CPU_GPU_CV" in findings.rails
    assert findings.gpu_cpu is None
    assert rail_sum_w(findings, findings.gpu_cpu, read_rails_w(findings)[0]) is None


def test_b26_an_unknown_board_has_no_total_and_says_so(tmp_path: Path) -> None:
    root = make_board(tmp_path / "t", ("nvidia,p9999-0001", "nvidia,tegra234"))
    add_chip(root, ("VDD_IN", 800), ("VDD_SYSTEM", 100), ("TOTAL", 900))
    findings = look(root)
    assert (findings.board, findings.kind, findings.module) == (None, "jetson", None)
    assert total_w(findings) is None
    assert [w for w in findings.warnings if "p9999-0001" in w]
    assert read_rails_w(findings)[0]["VDD_IN"] == 4.0


def test_b27_hwmon_gives_microwatts(tmp_path: Path) -> None:
    findings = look(trees.golden("F5", tmp_path / "t"))
    assert read_rails_w(findings)[0]["VIN"] == pytest.approx(19.78)


def test_a_negative_reading_keeps_its_sign_and_a_zero_is_a_reading(tmp_path: Path) -> None:
    root = trees.golden("F5", tmp_path / "t")
    current = root / trees.BUS / "ina3221/2-0040/hwmon/hwmon3/curr1_input"
    assert read_rails_w(look(root))[0]["VDD_GPU"] == 0.0
    current.write_text("-20\n")
    assert read_rails_w(look(root))[0]["VDD_GPU"] == pytest.approx(-0.38)


def test_b31_the_rails_inside_need_not_sum_to_the_input(tmp_path: Path) -> None:
    findings = look(trees.golden("F2", tmp_path / "t"))
    rails_w, _ = read_rails_w(findings)
    inside = sum(power or 0 for label, power in rails_w.items() if label != "VDD_IN")
    assert inside < (rails_w["VDD_IN"] or 0)
    assert findings.warnings == [w for w in findings.warnings if "rail" not in w.lower()]


def test_b32_without_monitors_there_is_a_reason_and_the_rest_works(orin: Path) -> None:
    shutil.rmtree(orin / trees.BUS)
    findings = look(orin)
    assert findings.rails == {}
    assert any("Power cannot be measured" in problem for problem in findings.problems)
    assert findings.gpu is not None
    assert total_w(findings) is None


@given(
    broken=st.sets(st.sampled_from(["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"])),
    how=st.sampled_from(["", "x", "gone", "nan", "1.5"]),
    file=st.sampled_from(["in", "curr"]),
)
@settings(max_examples=40)
def test_a_rail_without_a_reading_is_none_with_a_reason_and_never_a_smaller_sum(
    broken: set[str], how: str, file: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = trees.golden("F1", tmp_path_factory.mktemp("rails"))
    for label in (root / trees.BUS).rglob("in[123]_label"):
        if label.read_text().strip() in broken:
            path = label.parent / (label.name.replace("in", file).replace("_label", "_input"))
            path.unlink()
            if how != "gone":
                path.write_text(f"{how}\n" if how else "")
    findings = look(root)
    rails_w, reasons = read_rails_w(findings)
    assert len(rails_w) == 4
    assert {label for label, power in rails_w.items() if power is None} == broken == set(reasons)
    assert all(reasons.values())
    for labels, whole in ((findings.gpu_cpu, trees.AGX_W), (findings.module, trees.AGX_MODULE_W)):
        assert labels is not None
        got = rail_sum_w(findings, labels, rails_w)
        assert got is None if broken & set(labels) else got == pytest.approx(whole)


def test_a_required_rail_that_does_not_exist_makes_the_sum_unknown(orin: Path) -> None:
    for label in (orin / trees.BUS).rglob("in3_label"):
        label.unlink()
    findings = look(orin)
    assert total_w(findings) is None
    assert [w for w in findings.warnings if "VIN_SYS_5V0" in w]


def test_two_rails_of_one_name_are_not_added(orin: Path) -> None:
    add_chip(orin, ("VDD_GPU_SOC", 9999), name="2-0041")
    findings = look(orin)
    assert read_rails_w(findings)[0]["VDD_GPU_SOC"] == pytest.approx(5.16464)
    assert [w for w in findings.warnings if "VDD_GPU_SOC on 2-0041" in w]


@pytest.mark.parametrize(("samples", "word"), [(1, "spot value"), (512, "")])
def test_the_filter_is_read_and_an_unusual_one_said(samples: int, word: str, orin: Path) -> None:
    for path in (orin / trees.BUS).rglob("samples"):
        path.write_text(f"{samples}\n")
    findings = look(orin)
    assert (findings.filter.samples, findings.filter.update_interval_ms) == (samples, 430)
    assert bool([w for w in findings.warnings if "average" in w]) == bool(word)
    assert findings.filter.tau_s == pytest.approx(samples * 0.84e-3)


# --- load and temperature -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [("137", 13.7), ("0", 0.0), ("1000", 100.0), ("", None), ("1001", None), ("-1", None), ("x", None)],
)
def test_b34_b38_load_is_per_mille_or_unknown(text: str, want: float | None, orin: Path) -> None:
    (orin / trees.ORIN6 / "load").write_text(text)
    assert gpu_load_pct(look(orin)) == want


def test_b57_a_powered_off_zone_is_unknown(orin: Path) -> None:
    zones = {
        "GPU-therm": -256000,
        "tj-thermal": 41000,
        "CV1-therm": "",
        "PMIC-Die": 100000,
        "cpu-thermal": -5000,
    }
    shutil.rmtree(orin / "sys/class/thermal")
    trees.thermal(orin, zones)  # type: ignore[arg-type]
    assert temperatures_c(look(orin)) == {"gpu": None, "tj": 41.0, "cv1": None, "cpu": -5.0}


def test_a_cooling_device_at_work_is_said(orin: Path) -> None:
    (orin / "sys/class/thermal/cooling_device1/cur_state").write_text("2\n")
    findings = look(orin)
    assert list(findings.cooling) == ["devfreq-17000000.gpu"]
    assert [w for w in findings.warnings if "throttled for heat" in w]


# --- who it is ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compatible", "mem_gb", "want"),
    [
        (("nvidia,p3737-0000+p3701-0000", "nvidia,tegra234"), 64, "jetson-agx-orin-64gb"),
        (("nvidia,p3737-0000+p3701-0000", "nvidia,tegra234"), 32, "jetson-agx-orin-32gb"),
        (("nvidia,p3737-0000+p3701-0008", "nvidia,tegra234"), 64, "jetson-agx-orin-industrial"),
        (("nvidia,p3768-0000+p3767-0003", "nvidia,tegra234"), 8, "jetson-orin-nano-8gb"),
        (("nvidia,p3768-0000+p3767-0000-super", "nvidia,tegra234"), 16, "jetson-orin-nx-16gb"),
        (("nvidia,p2822-0000+p2888-0004", "nvidia,tegra194"), 32, "jetson-agx-xavier"),
        (("nvidia,galen", "nvidia,jetson-xavier", "nvidia,tegra194"), 32, "jetson-agx-xavier"),
        (("nvidia,jetson-xavier-nx", "nvidia,tegra194"), 8, "jetson-xavier-nx"),
        (("vendor,carrier", "nvidia,p3834-0008", "nvidia,tegra264"), 128, "jetson-agx-thor"),
        (("vendor,p3701-0005", "nvidia,tegra234"), 64, None),
        (("nvidia,p37010-0005", "nvidia,tegra234"), 64, None),
        (("nvidia,tegra999",), 8, None),
    ],
)  # fmt: skip
def test_boards_are_told_by_their_module(
    compatible: tuple[str, ...], mem_gb: int, want: str | None, tmp_path: Path
) -> None:
    findings = look(make_board(tmp_path / "t", compatible, mem_gb=mem_gb))
    assert (findings.board, findings.kind) == (want, "jetson")
    assert bool([w for w in findings.warnings if "32 and 64 GB" in w]) == ("p3701-0000" in compatible[0])


def test_the_devkit_module_is_left_unknown_where_nothing_tells_its_size() -> None:
    board, said = boards.identify(("nvidia,p3701-0000",), None, None)
    assert board is None
    assert "32 or 64 GB" in said
    board, said = boards.identify(("nvidia,p3701-0000",), None, 930_750_000)
    assert board is not None
    assert board.id == "jetson-agx-orin-32gb"


def test_every_board_has_rails_and_no_part_number_twice() -> None:
    parts = [part for board in boards.BOARDS for part in board.parts]
    assert len(parts) == len(set(parts))
    assert all(board.module and "VDDQ_VDD2_1V8AO" not in board.module for board in boards.BOARDS)


@pytest.mark.parametrize(
    ("text", "l4t", "jetpack"),
    [
        ("# R32 (release), REVISION: 7.4, GCID: 1", "32.7.4", "4"),
        ("# R35 (release), REVISION: 6.0, GCID: 1", "35.6.0", "5.1.4"),
        ("# R36 (release), REVISION: 4.3, GCID: 1", "36.4.3", "6.2"),
        ("# R36 (release), REVISION: 5.0, GCID: 1", "36.5.0", "6"),
        ("# R38 (release), REVISION: 4.0, GCID: 1", "38.4.0", "7.1"),
        ("# R99 (release), REVISION: 1.0, GCID: 1", "99.1.0", None),
        ("garbage", None, "6"),
        (None, None, "6"),
    ],
)
def test_b55_an_unknown_release_is_information_only(
    text: str | None, l4t: str | None, jetpack: str | None, orin: Path
) -> None:
    release = orin / "etc/nv_tegra_release"
    release.unlink()
    if text is not None:
        release.write_text(text + "\n")
    findings = look(orin)
    assert (findings.l4t, findings.jetpack) == (l4t, jetpack)
    assert findings.problems == []
    assert findings.gpu is not None


@pytest.mark.parametrize(
    ("build", "kind", "words"),
    [
        (trees.workstation, "x86", ("x86 machine with an NVIDIA card", "nvidia-smi")),
        (trees.raspberry_pi, "raspberry-pi", ("Raspberry Pi",)),
        (trees.spark, "dgx-spark", ("DGX Spark", "NVML")),
    ],
)
def test_other_machines_are_told_apart_and_no_jetson(
    build, kind: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    build(tmp_path)
    findings = look(tmp_path)
    assert (findings.board, findings.kind, findings.gpu, findings.rails) == (None, kind, None, {})
    (problem,) = findings.problems
    assert all(word in problem for word in (*words, "wattune emulate"))


def test_f9_a_container_that_hides_the_device_tree_is_a_jetson_of_unknown_name(tmp_path: Path) -> None:
    findings = look(trees.golden("F9", tmp_path / "t"))
    assert (findings.kind, findings.soc, findings.board) == ("jetson", "tegra234", None)
    assert findings.gpu is not None
    assert findings.gpu_cpu == ("VDD_GPU_SOC", "VDD_CPU_CV")
    assert findings.module is None
    assert any("systempaths=unconfined" in problem for problem in findings.problems)


@pytest.mark.parametrize("made", [False, True], ids=["missing", "empty"])
def test_a_missing_or_empty_sys_is_said(made: bool, tmp_path: Path) -> None:
    trees.put(tmp_path, "proc/sys/kernel/osrelease", "5.15.148-tegra")
    trees.put(tmp_path, ".dockerenv", "")
    if made:
        (tmp_path / "sys").mkdir()
    findings = look(tmp_path)
    assert any("missing or empty" in problem and "-v /sys:/sys" in problem for problem in findings.problems)


def test_an_empty_tree_is_looked_at_without_a_fault(tmp_path: Path) -> None:
    findings = look(tmp_path)
    assert (findings.kind, findings.board, findings.boot_id) == ("other", None, None)
    assert findings.problems


# --- nvpmodel and jetson_clocks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("NVPM WARN: patching tpc_pg_mask\nNV Power Mode: MAXN\n0\n", PowerMode("MAXN", 0)),
        ("NV Power Mode: MODE_30W\n2\n", PowerMode("MODE_30W", 2)),
        ("NV Fan Mode:quiet\nNV Power Mode: MODE_15W\n2\n", PowerMode("MODE_15W", 2)),
        ("NV Power Mode: 25W\nNVPM ERROR: something 17\n1\n", PowerMode("25W", 1)),
        ("NV Power Mode: MODE_30W\n", PowerMode("MODE_30W", None)),
        ("NVPM ERROR: no mode\n2\n", None),
        ("NV Power Mode:\n2\n", None),
        ("", None),
    ],
)
def test_b39_mode_is_the_named_line_and_id_the_number_alone(text: str, want: PowerMode | None) -> None:
    assert powermode.parse_query(text) == want


@given(
    mode=st.from_regex(r"[A-Z0-9_]{1,12}", fullmatch=True),
    number=st.integers(0, 99),
    order=st.booleans(),
    pad=st.sampled_from(["", " ", "  "]),
)
def test_b40_a_mode_of_one_s_own_in_any_order_of_attributes(
    mode: str, number: int, order: bool, pad: str
) -> None:
    attributes = [f"NAME={mode}", f"ID={number}"]
    text = f"<{pad}POWER_MODEL {' '.join(attributes if order else attributes[::-1])}{pad}>\nGPU MIN_FREQ 0\nGPU MAX_FREQ 612000000\n"
    conf = powermode.parse_conf(f"# a comment ID=77\n{text}< PM_CONFIG DEFAULT={number} >\n")
    assert (dict(conf.names), conf.default, dict(conf.gpu_max_hz)) == (
        {number: mode},
        number,
        {number: 612000000},
    )


def test_b40_uncapped_modes_and_paths_are_no_caps() -> None:
    conf = powermode.parse_conf(
        "< PARAM TYPE=CLOCK NAME=GPU >\nMAX_FREQ /sys/x\nGPU MAX_FREQ 5\n< POWER_MODEL NAME=A ID=0 >\nGPU MAX_FREQ -1\n"
        "< POWER_MODEL ID=1 NAME=B >\nGPU MAX_FREQ 2147483647\n< POWER_MODEL ID=2 NAME=C >\n"
    )
    assert dict(conf.gpu_max_hz) == {0: None, 1: None}
    assert dict(conf.names) == {0: "A", 1: "B", 2: "C"}


def test_b46_bounds_come_from_the_node_and_not_from_the_configuration(orin: Path) -> None:
    trees.put(orin, "etc/nvpmodel.conf", "< POWER_MODEL ID=2 NAME=MODE_30W >\nGPU MAX_FREQ 1300500000\n")
    findings = look(orin)
    assert findings.gpu is not None
    assert findings.gpu.max_hz == 612000000


@pytest.mark.parametrize("status", [None, "", "pmode:0007 fmode:quiet", "rubbish"])
def test_a_mode_that_the_files_do_not_say_is_unknown(
    status: str | None, orin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a tree elsewhere nvpmodel is never run: it would tell of another board."""
    monkeypatch.setattr(powermode, "query", lambda *_: pytest.fail("nvpmodel was run"))
    path = orin / "var/lib/nvpmodel/status"
    path.unlink()
    if status is not None:
        path.write_text(status)
    findings = look(orin)
    assert findings.power_mode is None
    assert findings.errors["power_mode"]
    assert [w for w in findings.warnings if "cannot be called MAXN" in w]


def fake_nvpmodel(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> Path:
    program = trees.put(folder, "nvpmodel", f"#!/bin/sh\necho run >> {folder}/runs\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(powermode.shutil, "which", lambda *_, **__: str(program))
    return folder / "runs"


def test_b41_a_hanging_nvpmodel_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_nvpmodel(monkeypatch, tmp_path, "exec sleep 60")
    started = time.monotonic()
    mode, reason = powermode.query(timeout_s=0.3)
    assert mode is None
    assert "0.3 s" in reason
    assert time.monotonic() - started < 10


def test_b42_nvpmodel_is_asked_once_with_nothing_to_say_yes_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = "read answer && echo 'NV Power Mode: WRONG'; echo \"NV Power Mode: $1_$LC_ALL\"; echo 3"
    runs = fake_nvpmodel(monkeypatch, tmp_path, script)
    assert powermode.query() == (PowerMode("-q_C", 3), "")
    assert runs.read_text() == "run\n"


@pytest.mark.parametrize("code", [0, 1])
def test_b22_b23_an_error_counts_whatever_the_exit_code(
    code: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text = "NVPM ERROR: Error writing 2 to /sys/devices/gpu.0/fbp_pg_mask: 19"
    fake_nvpmodel(monkeypatch, tmp_path, f"echo '{text}' >&2; exit {code}")
    mode, reason = powermode.query()
    assert mode is None
    assert text in reason
    assert powermode.query_failed(text)
    assert powermode.query_failed("failed to set power mode!")
    assert not powermode.query_failed("NVPM WARN: patching\nNV Power Mode: MAXN\n0")


def test_b44_an_absent_nvpmodel_is_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(powermode.shutil, "which", lambda *_, **__: None)
    assert powermode.query() == (None, "nvpmodel is not installed here")


def test_jetson_clocks_as_an_orin_and_a_thor_print_it() -> None:
    orin = powermode.parse_jetson_clocks(
        "SOC family:tegra234  Machine:NVIDIA Jetson AGX Orin Developer Kit\nOnline CPUs: 0-11\n"
        "cpu0:  Online=1 Governor=schedutil MinFreq=2201600 MaxFreq=2201600 CurrentFreq=2201600 IdleStates: WFI=0 c7=0 \n"
        "cpu10: Online=1 Governor=schedutil MinFreq=115200 MaxFreq=2201600 CurrentFreq=729600 IdleStates: WFI=0 c7=0 \n"
        "GPU MinFreq=1300500000 MaxFreq=1300500000 CurrentFreq=1300500000\nActive GPU TPCs: 8\n"
        "EMC MinFreq=204000000 MaxFreq=3199000000 CurrentFreq=3199000000 FreqOverride=1\n"
        "FAN Dynamic Speed Control=nvfancontrol hwmon0_pwm1=57\nNV Power Mode: MAXN\n"
    )
    assert (orin.soc, orin.machine, orin.active_tpcs, orin.power_mode) == (
        "tegra234",
        "NVIDIA Jetson AGX Orin Developer Kit",
        8,
        "MAXN",
    )
    assert orin.gpus == {"GPU": powermode.ClockRange(1300500000, 1300500000, 1300500000)}
    assert orin.gpus["GPU"].pinned
    assert orin.cpus == {
        0: powermode.ClockRange(2201600, 2201600, 2201600),
        10: powermode.ClockRange(115200, 2201600, 729600),
    }
    assert orin.emc == powermode.ClockRange(204000000, 3199000000, 3199000000)
    thor = powermode.parse_jetson_clocks(
        "gpu-gpc-0 MinFreq=315000000 MaxFreq=1575000000 CurrentFreq=315000000\n"
        "gpu-nvd-0 MinFreq=315000000 MaxFreq=1692000000 CurrentFreq=315000000\n"
    )
    assert set(thor.gpus) == {"gpu-gpc-0", "gpu-nvd-0"}
    assert not thor.gpus["gpu-gpc-0"].pinned
    assert (thor.soc, thor.emc, thor.active_tpcs, thor.power_mode) == (None, None, None, None)


@given(st.text(alphabet="NVPower Mode:<>=ID_GPUMAXFREQ0123456789\n ", max_size=200))
def test_parsers_take_any_text(text: str) -> None:
    powermode.parse_query(text)
    powermode.parse_conf(text)
    powermode.parse_status(text)
    powermode.parse_jetson_clocks(text)


def test_a_channel_with_nothing_to_read_has_a_reason(orin: Path) -> None:
    findings = look(orin)
    findings.rails = {"X": RailChannel("X", "1-0040", "ina238", None, None, None, 1e-6, None)}
    assert read_rails_w(findings) == (
        {"X": None},
        {"X": "its chip gives neither power nor voltage and current"},
    )
    assert discovery.rail_sum_w(findings, None, {}) is None


def test_an_answer_that_came_after_an_interruption_is_not_the_next_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}\n")
    sysfs = Sysfs(tmp_path, timeout_s=5.0)
    assert sysfs.read("a") == "a"
    with monkeypatch.context() as patch:

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr("wattune.boards.jetson.sysfs.select.poll", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sysfs.read("a")
    assert sysfs.read("b") == "b"
    sysfs.close()


@pytest.mark.parametrize("text", ["9" * 400, "٣٠٦", "1e9", "-306000000"])
def test_a_clock_that_is_none_is_unknown(tmp_path: Path, text: str) -> None:
    root = trees.golden("F1", tmp_path / "t")
    trees.put(root, f"{trees.ORIN6}/devfreq/17000000.gpu/cur_freq", text)
    findings = discover(Sysfs(root))
    assert findings.gpu is not None
    assert findings.gpu.cur_hz is None
    assert "is no clock" in findings.errors["gpu_cur_freq"]


@pytest.mark.parametrize("bound", ["min_freq", "max_freq"])
def test_a_bound_below_0_is_said_and_not_believed(bound: str, tmp_path: Path) -> None:
    root = trees.golden("F1", tmp_path / "t")
    gpu = discover(Sysfs(root)).gpu
    assert gpu is not None
    (root / gpu.path / bound).write_text("-5\n")
    findings = discover(Sysfs(root))
    assert findings.gpu is None
    assert f"{bound} of /{gpu.path} could not be read: '-5' is no clock" in findings.errors["gpu"]
    assert findings.rails


@pytest.mark.parametrize("name", [name for name, golden in trees.GOLDEN.items() if golden.gpu_cpu_w is None])
def test_a_board_without_the_set_gpu_cpu_says_why_and_which_set_counts(name: str, tmp_path: Path) -> None:
    findings = discover(Sysfs(trees.golden(name, tmp_path / "t")))
    if findings.board is None:
        return
    assert findings.gpu_cpu is None
    assert findings.energy_set == "module"
    assert "no rails of that set" in findings.errors["gpu_cpu"]
    assert "module's total" in findings.errors["gpu_cpu"]
