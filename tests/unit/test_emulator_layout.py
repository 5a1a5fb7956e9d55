"""The trees of the boards: the files of the fixture boards, what each gives, and what the faults do to them."""

from __future__ import annotations

import errno
import posixpath
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.boards.virtual.board import DEFAULT_CONSTANTS
from wattune.boards.virtual.constants import BoardFile, Rail, load_board_file
from wattune.boards.virtual.emulator import faults
from wattune.boards.virtual.emulator.boardtree import BoardTree
from wattune.boards.virtual.emulator.layout import build_tree
from wattune.boards.virtual.emulator.machine import Machine
from wattune.boards.virtual.emulator.tree import File, Link
from wattune.core.errors import InputError

ORIN_TABLE = "306000000 408000000 510000000 612000000 714000000 816000000 918000000 1020000000 1122000000 1224000000 1300500000\n"
XAVIER_TABLE = (
    "114750000 216750000 318750000 420750000 522750000 624750000 675750000 828750000 905250000 1032750000 1198500000 "
    "1236750000 1338750000 1377000000\n"
)
XAVIER_RAILS = {"1-0040": ("GPU", "CPU", "SOC"), "1-0041": ("CV", "VDDRQ", "SYS5V")}
F1_RAILS = {
    "VDD_GPU_SOC": (19864, 260),
    "VDD_CPU_CV": (19864, 80),
    "VIN_SYS_5V0": (5008, 920),
    "VDDQ_VDD2_1V8AO": (5008, 120),
}
BOUNDS = ("min_freq", "max_freq", "governor")


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def orin() -> BoardFile:
    return load_board_file(DEFAULT_CONSTANTS)


def xavier() -> BoardFile:
    """Xavier's files over Orin's physics: only names and tables matter here."""
    rails = tuple(
        Rail(label, chip, channel, 19.0, 5000, (), 0.0, None, label == "GPU")
        for chip, labels in XAVIER_RAILS.items()
        for channel, label in enumerate(labels, 1)
    )
    parts = {"GPU": ("gpu",), "CPU": ("cpu",), "VDDRQ": ("dram",), "SYS5V": ("sys",)}
    return replace(
        orin(),
        board="jetson-agx-xavier",
        soc="tegra194",
        clocks_hz=tuple(map(int, XAVIER_TABLE.split())),
        rails=tuple(replace(rail, parts=parts.get(rail.label, ())) for rail in rails),
    )


def running(file: BoardFile, jetpack: str, mode: str | None = None) -> tuple[Machine, BoardTree, Clock]:
    clock = Clock()
    machine = Machine(file, jetpack=jetpack, workload=None, clock=clock, power_mode=mode)
    return machine, build_tree(machine, clock=clock), clock


def resolve(tree: BoardTree, path: str) -> str:
    """The path behind all links, as the kernel follows them."""
    done = ""
    for part in path.split("/"):
        here = posixpath.normpath(posixpath.join(done, part))
        entry = tree.entry(here)
        if isinstance(entry, Link):
            here = resolve(tree, posixpath.normpath(posixpath.join(done, entry.target)))
        done = here
    return done


def file(tree: BoardTree, path: str) -> File:
    entry = tree.entry(resolve(tree, path))
    assert isinstance(entry, File), path
    return entry


def read(tree: BoardTree, path: str) -> str:
    return file(tree, path).read()


def write(tree: BoardTree, path: str, text: str) -> None:
    store = file(tree, path).write
    assert store is not None, path
    store(text)


def error_of(call, *args) -> int:
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the caller looks at the errno
        call(*args)
    assert caught.value.errno is not None
    return caught.value.errno


def test_f1_orin_jetpack_6_in_30_w(monkeypatch):
    machine, tree, _ = running(orin(), "6", "MODE_30W")
    monkeypatch.setattr(machine, "rail", F1_RAILS.__getitem__)
    device = "sys/devices/platform/bus@0/17000000.gpu"
    node = "sys/class/devfreq/17000000.gpu"
    first, second = (f"sys/bus/i2c/drivers/ina3221/1-004{n}/hwmon/hwmon{n + 3}" for n in (0, 1))
    assert resolve(tree, node) == f"{device}/devfreq/17000000.gpu"
    assert resolve(tree, f"{node}/device") == resolve(tree, "sys/devices/platform/gpu.0") == device
    for path, text in {
        "proc/device-tree/model": "NVIDIA Jetson AGX Orin Developer Kit\0",
        "proc/device-tree/compatible": "nvidia,p3737-0000+p3701-0005\0nvidia,p3701-0005\0nvidia,tegra234\0",
        f"{node}/available_frequencies": ORIN_TABLE,
        f"{node}/min_freq": "306000000\n",
        f"{node}/max_freq": "612000000\n",
        f"{node}/cur_freq": "306000000\n",
        f"{node}/governor": "nvhost_podgov\n",
        f"{node}/available_governors": "nvhost_podgov userspace performance simple_ondemand\n",
        f"{node}/device/of_node/name": "gpu\0",
        f"{node}/device/of_node/compatible": "nvidia,ga10b\0",
        f"{device}/devfreq_dev/max_freq": "612000000\n",
        f"{device}/load": "0\n",
        f"{device}/railgate_enable": "1\n",
        f"{device}/power/control": "auto\n",
        f"{device}/tpc_pg_mask": "240\n",
        f"{first}/name": "ina3221\n",
        f"{first}/in1_label": "VDD_GPU_SOC\n",
        f"{first}/in1_input": "19864\n",
        f"{first}/curr1_input": "260\n",
        f"{first}/in4_input": "520\n",
        f"{first}/in2_label": "VDD_CPU_CV\n",
        f"{first}/in2_input": "19864\n",
        f"{first}/curr2_input": "80\n",
        f"{first}/in3_label": "VIN_SYS_5V0\n",
        f"{first}/in3_input": "5008\n",
        f"{first}/curr3_input": "920\n",
        f"{first}/in7_label": "sum of shunt voltages\n",
        f"{first}/in7_input": "2520\n",
        f"{first}/curr4_input": "1260\n",
        f"{first}/shunt1_resistor": "2000\n",
        f"{first}/samples": "512\n",
        f"{first}/update_interval": "430\n",
        f"{second}/in2_label": "VDDQ_VDD2_1V8AO\n",
        f"{second}/in2_input": "5008\n",
        f"{second}/curr2_input": "120\n",
        "var/lib/nvpmodel/status": "pmode:0002 fmode:fan_mode_quiet\n",
    }.items():
        assert read(tree, path) == text, path
    for channel in (1, 3):
        for name in (f"in{channel}_input", f"curr{channel}_input", f"in{channel + 3}_input"):
            assert error_of(read, tree, f"{second}/{name}") == errno.ENODATA
        assert read(tree, f"{second}/in{channel}_enable") == "0\n"
        assert read(tree, f"{second}/curr{channel}_crit_alarm") == "0\n"
        with pytest.raises(FileNotFoundError):
            tree.entry(resolve(tree, second) + f"/in{channel}_label")
    assert resolve(tree, "sys/class/hwmon/hwmon3") == resolve(tree, first)
    conf = read(tree, "etc/nvpmodel.conf")
    assert "< POWER_MODEL ID=2 NAME=MODE_30W >" in conf
    assert "GPU MAX_FREQ 612000000\n" in conf
    assert "GPU MAX_FREQ -1\n" in conf
    assert read(tree, "etc/nv_tegra_release").startswith("# R36 (release), REVISION: 4.7, GCID: 42132812, ")


def test_f3_xavier():
    machine, tree, _ = running(xavier(), "5")
    machine.devfreq.apply_power_mode(675750000, 318750000)
    node = "sys/class/devfreq/17000000.gv11b"
    assert resolve(tree, node) == "sys/devices/17000000.gv11b/devfreq/17000000.gv11b"
    assert resolve(tree, "sys/devices/gpu.0") == "sys/devices/17000000.gv11b"
    assert read(tree, f"{node}/available_frequencies") == XAVIER_TABLE
    assert (read(tree, f"{node}/min_freq"), read(tree, f"{node}/max_freq")) == ("318750000\n", "675750000\n")
    assert read(tree, f"{node}/device/of_node/name") == "gv11b\0"
    assert read(tree, "proc/device-tree/compatible").split("\0")[-2] == "nvidia,tegra194"
    for number, (chip, labels) in enumerate(XAVIER_RAILS.items(), 3):
        hwmon = f"sys/bus/i2c/devices/{chip}/hwmon/hwmon{number}"
        assert [read(tree, f"{hwmon}/in{n}_label").strip() for n in (1, 2, 3)] == list(labels)


def test_f4_orin_jetpack_5():
    _, tree, _ = running(orin(), "5")
    node = "sys/class/devfreq/17000000.ga10b"
    assert read(tree, f"{node}/device/of_node/name") == "ga10b\0"
    hwmon = "sys/bus/i2c/drivers/ina3221/1-0041/hwmon/hwmon4"
    assert [read(tree, f"{hwmon}/in{n}_label") for n in (1, 2, 3)] == ["NC\n", "VDDQ_VDD2_1V8AO\n", "NC\n"]
    assert [read(tree, f"{hwmon}/{name}") for name in ("in1_input", "curr3_input")] == ["0\n", "0\n"]
    assert read(tree, "sys/class/thermal/thermal_zone0/type") == "CPU-therm\n"
    assert read(tree, "etc/nv_tegra_release").startswith("# R35 ")


@pytest.mark.parametrize(("jetpack", "there"), [("5", True), ("6", True), ("7.2", False)])
def test_podgovs_files_come_and_go(jetpack, there):
    machine, tree, _ = running(orin(), jetpack)
    device, node = tree.gpu_device, tree.node
    podgov = {"enable_3d_scaling", "user", "freq_request"}
    assert podgov & set(tree.children(device)) == (podgov if there else set())
    assert "userspace" not in tree.children(node)
    write(tree, f"{node}/governor", "userspace\n")
    assert not podgov & set(tree.children(device))
    assert read(tree, f"{node}/userspace/set_freq") == "undefined\n"
    write(tree, f"{node}/userspace/set_freq", "510000000\n")
    assert read(tree, f"{node}/cur_freq") == "510000000\n"
    machine.reboot()
    assert podgov & set(tree.children(device)) == (podgov if there else set())
    if there:
        write(tree, f"{device}/enable_3d_scaling", "0")
        assert read(tree, f"{node}/cur_freq") == "1300500000\n"
        write(tree, f"{device}/freq_request", "612000000")
        write(tree, f"{device}/user", "1")
        assert read(tree, f"{node}/cur_freq") == "612000000\n"


def layouts() -> list[tuple[str, str]]:
    found = [
        (path.name, jetpack)
        for path in sorted(DEFAULT_CONSTANTS.parent.glob("*.json"))
        for jetpack in ("5", "6", "7.2")
    ]
    return [(name, jetpack) for name, jetpack in found if "xavier" not in name or jetpack == "5"]


@pytest.mark.parametrize(("name", "jetpack"), layouts())
def test_every_file_reads_or_fails_as_foreseen_and_every_link_leads_somewhere(name, jetpack):
    board = load_board_file(DEFAULT_CONSTANTS.with_name(name))
    for mode in board.power_modes:
        _, tree, clock = running(board, jetpack, mode)
        clock.now += 5.0
        for path, entry in tree.walk():
            if isinstance(entry, Link):
                assert not posixpath.isabs(entry.target)
                assert not resolve(tree, path).startswith("..")
                continue
            try:
                text = entry.read()
            except OSError as error:
                foreseen = {
                    errno.ENODATA: "/hwmon/hwmon4/",
                    errno.EAGAIN: "/thermal/",
                    errno.EBUSY: "/cpufreq/policy",
                }
                assert foreseen[error.errno or 0] in path  # noqa: PT017 - most files do not raise
            else:
                assert text.endswith(("\n", "\0")), path


@given(
    st.sampled_from(BOUNDS), st.one_of(st.text(), st.integers().map(str), st.sampled_from(ORIN_TABLE.split()))
)
def test_a_written_text_is_refused_or_shows(name, text):
    _, tree, _ = running(orin(), "6")
    path = f"{tree.node}/{name}"
    before = [read(tree, f"{tree.node}/{bound}") for bound in BOUNDS]
    try:
        write(tree, path, text)
    except OSError as error:
        assert error.errno == errno.EINVAL  # noqa: PT017 - both outcomes are right
        assert [read(tree, f"{tree.node}/{bound}") for bound in BOUNDS] == before
        return
    if name == "governor":
        assert read(tree, path).strip() == text.split()[0]
        return
    digits = re.match(r"\s*([0-9]+)", text)
    assert digits is not None
    wish = int(digits[1])
    low, high = int(before[0]), int(before[1])
    got = int(read(tree, path))
    if name == "min_freq":
        assert got == min(max(low, wish // 1000 * 1000), high)
    else:
        assert got == (min(high, -(-wish // 1000) * 1000) if wish else high)


def test_files_without_a_store_take_no_writing():
    _, tree, _ = running(orin(), "6")
    for name in ("cur_freq", "available_frequencies", "available_governors", "target_freq"):
        assert file(tree, f"{tree.node}/{name}").write is None
    for name in ("load", "counters", "tpc_pg_mask"):
        assert file(tree, f"{tree.gpu_device}/{name}").write is None


def test_stores_beside_the_node():
    machine, tree, clock = running(orin(), "6")
    device = tree.gpu_device
    clock.now += 5.0
    assert read(tree, f"{device}/is_railgated") == "yes\n"
    write(tree, f"{device}/railgate_enable", "0\n")
    clock.now += 1.0
    assert read(tree, f"{device}/is_railgated") == "no\n"
    assert error_of(write, tree, f"{device}/power/control", "off") == errno.EINVAL
    write(tree, f"{device}/power/control", "on\n")
    assert machine.power_control == "on"
    assert read(tree, f"{device}/counters") != "0 0\n"
    assert read(tree, f"{device}/counters_reset") != "0 0\n"
    assert read(tree, f"{device}/counters") == "0 0\n"
    fan = "sys/class/hwmon/hwmon0/pwm1"
    write(tree, fan, "128\n")
    assert read(tree, fan) == "128\n"
    assert error_of(write, tree, fan, "256") == errno.EINVAL
    hwmon = "sys/class/hwmon/hwmon3"
    write(tree, f"{hwmon}/samples", "60\n")
    assert (read(tree, f"{hwmon}/samples"), read(tree, f"{hwmon}/update_interval")) == ("64\n", "54\n")
    write(tree, f"{hwmon}/in1_enable", "0\n")
    assert error_of(read, tree, f"{hwmon}/in1_input") == errno.ENODATA


@pytest.mark.parametrize(
    ("soc", "jetpack", "names"),
    [("tegra234", "4", "5, 6, 7.2"), ("tegra194", "6", "5"), ("tegra210", "5", "tegra234 or tegra194")],
)
def test_a_board_that_does_not_exist_is_refused(soc, jetpack, names):
    machine, _, _ = running(orin(), "5")
    machine.file, machine.jetpack = replace(machine.file, soc=soc), jetpack
    with pytest.raises(InputError) as caught:
        build_tree(machine)
    assert names in caught.value.expected


def test_faults_of_rails():
    machine, tree, _ = running(orin(), "6")
    hwmon = "sys/class/hwmon/hwmon3"
    faults.apply("rail-eio VDD_GPU_SOC", machine, tree)
    faults.apply("rail-enodata VDD_CPU_CV", machine, tree)
    assert (
        error_of(read, tree, f"{hwmon}/in1_input")
        == error_of(read, tree, f"{hwmon}/curr1_input")
        == errno.EIO
    )
    assert error_of(read, tree, f"{hwmon}/in2_input") == errno.ENODATA
    assert read(tree, f"{hwmon}/in3_input") != ""
    assert faults.in_force(machine, tree) == ["rail-eio VDD_GPU_SOC", "rail-enodata VDD_CPU_CV"]
    faults.apply("clear", machine, tree)
    assert read(tree, f"{hwmon}/in1_input") != ""
    assert faults.in_force(machine, tree) == []


@pytest.mark.parametrize("jetpack", ["5", "6"])
def test_a_late_node_appears_in_time(jetpack):
    machine, tree, clock = running(orin(), jetpack)
    faults.apply("late-node 20", machine, tree)
    assert tree.children("sys/class/devfreq") == []
    assert not {"devfreq", "devfreq_dev"} & set(tree.children(tree.gpu_device))
    clock.now += 19.0
    assert tree.children("sys/class/devfreq") == []
    clock.now += 1.5
    assert len(tree.children("sys/class/devfreq")) == 1
    assert read(tree, f"{tree.node}/governor") == "nvhost_podgov\n"
    faults.apply("late-node 20", machine, tree)
    faults.apply("clear", machine, tree)
    assert len(tree.children("sys/class/devfreq")) == 1


def test_a_file_hangs_alone():
    machine, tree, _ = running(orin(), "6")
    faults.apply("hang min_freq", machine, tree)
    hangs = {path for path, e in tree.walk() if isinstance(e, File) and e.hangs is not None and e.hangs()}
    assert hangs == {f"{tree.node}/min_freq"}
    faults.apply("clear", machine, tree)
    assert not any(e.hangs() for _, e in tree.walk() if isinstance(e, File) and e.hangs is not None)


def test_faults_that_the_machine_plays():
    machine, tree, _ = running(orin(), "6")
    zone = next(
        f"sys/class/thermal/{z}" for z in tree.children("sys/class/thermal") if z.startswith("cooling")
    )
    counter = "sys/class/hwmon/hwmon2/oc2_event_cnt"
    before = read(tree, "proc/sys/kernel/random/boot_id")
    faults.apply("thermal-cap 612000000", machine, tree)
    assert read(tree, f"{tree.node}/max_freq") == "612000000\n"
    assert int(read(tree, f"{zone}/cur_state")) > 0
    faults.apply("overheat 60", machine, tree)
    assert faults.in_force(machine, tree) == ["thermal-cap 612000000", "overheat 60"]
    faults.apply("clear", machine, tree)
    assert read(tree, f"{tree.node}/max_freq") == "1300500000\n"
    faults.apply("power-mode MODE_30W", machine, tree)
    assert read(tree, f"{tree.node}/max_freq") == "612000000\n"
    faults.apply("overcurrent", machine, tree)
    assert read(tree, counter) == "1\n"
    faults.apply("reboot", machine, tree)
    assert read(tree, counter) == "0\n"
    assert read(tree, "proc/sys/kernel/random/boot_id") != before


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "rail-eio"),
        ("meteor", "rail-eio"),
        ("rail-eio", "rail-eio LABEL"),
        ("clear all", "clear"),
        ("late-node 1 2", "late-node SECONDS"),
        ("rail-eio VDD_IN", "VIN_SYS_5V0"),
        ("hang model", "min_freq"),
        ("thermal-cap 600000000", "612000000"),
        ("power-mode 30W", "MODE_30W"),
        ("overcurrent oc9", "oc2"),
        ("late-node soon", "number"),
        ("late-node nan", "number"),
        ("overheat -1", "number"),
    ],
)
def test_an_unknown_fault_is_refused_with_the_names(text, names):
    machine, tree, _ = running(orin(), "6")
    with pytest.raises(InputError) as caught:
        faults.apply(text, machine, tree)
    assert names in caught.value.expected
    assert faults.in_force(machine, tree) == []


def test_the_cpus_that_are_on_follow_the_mode():
    _, tree, _ = running(orin(), "6", "MODE_30W")
    folder = "sys/devices/system/cpu"
    assert (read(tree, f"{folder}/online"), read(tree, f"{folder}/present")) == ("0-7\n", "0-11\n")
    assert read(tree, f"{folder}/cpu0/cpufreq/scaling_max_freq") == "1728000\n"
    assert read(tree, f"{folder}/cpu8/online") == "0\n"
    assert error_of(read, tree, f"{folder}/cpu8/cpufreq/scaling_cur_freq") == errno.EBUSY
