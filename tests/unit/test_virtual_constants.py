from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from wattune.boards.virtual.board import DEFAULT_CONSTANTS, VirtualBoard
from wattune.boards.virtual.constants import (
    MAY_BE_ZERO,
    PARTS,
    SCHEMA_VERSION,
    UNITS,
    BoardFile,
    board_files,
    find_board_file,
    load_board_file,
    parse_board_file,
)
from wattune.core.errors import InputError

ORIN: dict[str, Any] = json.loads(DEFAULT_CONSTANTS.read_text())
MODES = ("MAXN", "MODE_15W", "MODE_30W", "MODE_50W")


@pytest.fixture
def document() -> dict[str, Any]:
    return copy.deepcopy(ORIN)


def refusal(document: Any) -> str:
    with pytest.raises(InputError) as caught:
        parse_board_file(document, "board.json")
    assert caught.value.exit_code == 2
    message = str(caught.value)
    assert message.startswith(caught.value.what)
    assert "expected" in message or "must be given" in message or "are read" in message
    return message


# --- the board that comes with the package


def test_orin_has_the_eleven_clocks_of_jetpack_6() -> None:
    file = load_board_file(DEFAULT_CONSTANTS)
    assert list(file.table) == [306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224, 1300.5]
    assert file.clocks_hz == tuple(round(mhz * 1e6) for mhz in file.table)
    assert (file.board, file.soc, file.power_mode) == ("jetson-agx-orin-64gb", "tegra234", "MAXN")


def test_every_board_that_comes_along_is_valid_and_named_as_its_file() -> None:
    files = board_files()
    assert "jetson-agx-orin-64gb" in files
    for name, path in files.items():
        file = load_board_file(path)
        assert file.board == name
        assert file.document["schema_version"] == SCHEMA_VERSION == 2
        assert file == find_board_file(name) == find_board_file(name.upper())
        assert file.calibrated == bool(file.calibrated_against)
        assert file.mode().gpu_max_hz >= file.clocks_hz[-1]


@pytest.mark.parametrize("board", list(board_files()))
def test_every_constant_names_its_source(board: str) -> None:
    sources = find_board_file(board).sources
    assert set(sources) == set(UNITS)
    kinds = ("datasheet", "public measurement", "fitted to", "prior", "driver", "public log")
    assert {name: s for name, s in sources.items() if not s.startswith(kinds)} == {}


def test_free_constants_are_the_ones_with_a_prior() -> None:
    file = load_board_file(DEFAULT_CONSTANTS)
    with_prior = {name for name, entry in ORIN["constants"].items() if "prior" in entry}
    assert set(file.priors) == with_prior
    assert {"efficiency_fp32", "launch_cost_s", "kernel_clocks", "leak_per_c"} <= with_prior
    assert not with_prior & {"flop_per_clock_fp32", "power_noise_rel", "ambient_c", "podgov_poll_s"}
    for name, prior in file.priors.items():
        entry = ORIN["constants"][name]["prior"]
        assert (prior.value, prior.log_sd) == (entry["value"], entry["log_sd"])
        # A fit more than four standard deviations from what was believed is no fit.
        assert abs(math.log(getattr(file.constants, name) / prior.value)) < 4 * prior.log_sd


def test_the_rails_of_orin() -> None:
    file = load_board_file(DEFAULT_CONSTANTS)
    assert [(r.label, r.chip, r.channel, r.parts, r.inside, r.gpu_cpu) for r in file.rails] == [
        ("VDD_GPU_SOC", "1-0040", 1, ("gpu",), None, True),
        ("VDD_CPU_CV", "1-0040", 2, ("cpu",), None, True),
        ("VIN_SYS_5V0", "1-0040", 3, ("sys", "dram"), None, False),
        ("VDDQ_VDD2_1V8AO", "1-0041", 2, ("dram",), "VIN_SYS_5V0", False),
    ]
    assert [r.label for r in file.module_rails] == ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"]
    assert sorted(part for r in file.module_rails for part in r.parts) == sorted(PARTS)


def test_the_power_modes_of_orin() -> None:
    file = load_board_file(DEFAULT_CONSTANTS)
    assert tuple(file.power_modes) == MODES
    assert [file.mode(name).id for name in MODES] == [0, 1, 2, 3]
    assert file.mode() == file.mode("maxn") == file.power_modes["MAXN"]
    assert (file.mode("MODE_30W").gpu_max_hz, file.mode("mode_30w").tpcs) == (612_000_000, 4)
    with pytest.raises(InputError, match=r"no power mode '45W'.*MAXN, MODE_15W, MODE_30W, MODE_50W"):
        file.mode("45W")


def test_an_unknown_board_names_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        find_board_file("jetson-tx1")
    assert "'jetson-tx1'" in str(caught.value)
    assert all(name in str(caught.value) for name in board_files())


# --- power modes scale


@pytest.mark.parametrize("name", MODES)
def test_a_mode_caps_the_table_and_scales_what_it_says(name: str) -> None:
    file = load_board_file(DEFAULT_CONSTANTS)
    mode, full = file.mode(name), file.mode()
    scaled = file.in_mode(name.lower())
    assert scaled.power_mode == name
    assert scaled.clocks_hz == tuple(hz for hz in file.clocks_hz if hz <= mode.gpu_max_hz)
    assert list(scaled.table) == [hz / 1e6 for hz in scaled.clocks_hz]
    tpcs, cpu, emc = (
        mode.tpcs / full.tpcs,
        mode.cpu_max_mhz / full.cpu_max_mhz,
        mode.emc_max_mhz / full.emc_max_mhz,
    )
    factors = {
        "flop_per_clock_fp32": tpcs,
        "flop_per_clock_half": tpcs,
        "bytes_per_clock": tpcs,
        "bandwidth_ceiling_byte_per_s": emc,
        "launch_cost_s": 1 / cpu,
        "host_gap_s": 1 / cpu,
        "cpu_base_w": cpu**2,
        "cpu_launch_w": cpu**2,
    }
    for constant in UNITS:
        expected = getattr(file.constants, constant) * factors.get(constant, 1.0)
        assert getattr(scaled.constants, constant) == pytest.approx(expected, rel=1e-12), constant


def test_known_answers_of_the_30_watt_mode() -> None:
    file = load_board_file(DEFAULT_CONSTANTS)
    scaled = file.in_mode("MODE_30W")
    assert list(scaled.table) == [306, 408, 510, 612]
    assert scaled.constants.flop_per_clock_fp32 == 2048.0  # half the TPCs
    assert scaled.constants.bandwidth_ceiling_byte_per_s == file.constants.bandwidth_ceiling_byte_per_s
    assert scaled.constants.launch_cost_s / file.constants.launch_cost_s == pytest.approx(2201.6 / 1728.0)
    assert len(file.in_mode("MODE_15W").table) == 2
    assert file.in_mode("MAXN") == file


# --- bad input


@pytest.mark.parametrize("name", list(UNITS))
def test_a_missing_constant_is_named(document: dict[str, Any], name: str) -> None:
    del document["constants"][name]
    assert f"board.json lacks the constant {name}." in refusal(document)


def test_all_missing_constants_are_named(document: dict[str, Any]) -> None:
    document["constants"] = {}
    message = refusal(document)
    assert all(name in message for name in UNITS)


def test_an_unknown_constant_is_named(document: dict[str, Any]) -> None:
    document["constants"]["fudge_bert_base"] = {"value": 1.0, "unit": "1", "source": "prior"}
    assert "unknown constant fudge_bert_base" in refusal(document)


@pytest.mark.parametrize("value", [-1.0, 0, "12", None, True, float("nan"), float("inf"), [], {}])
def test_a_constant_that_is_no_positive_number_is_named(document: dict[str, Any], value: Any) -> None:
    document["constants"]["static_w"]["value"] = value
    message = refusal(document)
    assert f"The constant static_w in board.json is {value!r}." in message


@pytest.mark.parametrize("name", list(UNITS))
def test_only_what_may_be_nothing_may_be_zero_and_nothing_may_be_negative(
    document: dict[str, Any], name: str
) -> None:
    document["constants"][name]["value"] = -1e-9
    assert f"The constant {name} in board.json is -1e-09. A value above 0" in refusal(document)
    document["constants"][name]["value"] = 0
    if name in MAY_BE_ZERO:
        assert getattr(parse_board_file(document, "board.json").constants, name) == 0.0
    else:
        assert f"The constant {name} in board.json is 0." in refusal(document)


@pytest.mark.parametrize("name", list(UNITS))
def test_another_unit_is_refused(document: dict[str, Any], name: str) -> None:
    document["constants"][name]["unit"] = "mW/kHz"
    message = refusal(document)
    assert f"The constant {name} in board.json has the unit 'mW/kHz'." in message
    assert f"The unit {UNITS[name]!r} was expected." in message


@pytest.mark.parametrize("source", [" ", "", None, 3, ["prior"]])
def test_no_source_is_refused(document: dict[str, Any], source: Any) -> None:
    document["constants"]["static_w"]["source"] = source
    assert "The constant static_w in board.json names no source." in refusal(document)


@pytest.mark.parametrize(
    ("prior", "message"),
    [
        (None, "The prior of static_w"),
        (3.5, "The prior of static_w"),
        ([], "The prior of static_w"),
        ({"value": 3.5}, "The prior of static_w"),
        ({"value": 3.5, "sd": 0.3}, "The prior of static_w"),
        ({"value": 3.5, "log_sd": 0.3, "unit": "W"}, "The prior of static_w"),
        ({"value": 0, "log_sd": 0.3}, r"static_w (its prior)"),
        ({"value": -3.5, "log_sd": 0.3}, r"static_w (its prior)"),
        ({"value": 3.5, "log_sd": 0}, r"static_w (its prior)"),
        ({"value": 3.5, "log_sd": "wide"}, r"static_w (its prior)"),
        ({"value": float("nan"), "log_sd": 0.3}, r"static_w (its prior)"),
        ({"value": 3.5, "log_sd": float("inf")}, r"static_w (its prior)"),
    ],
)
def test_a_bad_prior_is_refused(document: dict[str, Any], prior: Any, message: str) -> None:
    document["constants"]["static_w"]["prior"] = prior
    assert message in refusal(document)


def test_a_prior_of_nothing_is_refused_even_where_the_constant_may_be_zero(document: dict[str, Any]) -> None:
    document["constants"]["leak_per_c"]["prior"]["value"] = 0
    assert "leak_per_c (its prior)" in refusal(document)


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c.pop("unit"),
        lambda c: c.pop("value"),
        lambda c: c.pop("source"),
        lambda c: c.update(note="x"),
    ],
)
def test_an_entry_has_exactly_its_keys(
    document: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> None:
    change(document["constants"]["podgov_poll_s"])
    assert "value, unit and source were expected" in refusal(document)


def set_rail(index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["rails"][index].update(values)


def set_mode(index: int, **values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document["power_modes"][index].update(values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_rail(0, parts=["gpu", "npu"]), "do not add up"),
        (set_rail(0, parts=[]), "do not add up"),  # nothing feeds the GPU
        (set_rail(1, parts=["gpu", "cpu"]), "do not add up"),  # two feed it
        (set_rail(1, label="VDD_GPU_SOC"), "do not add up"),
        (set_rail(3, inside=None), "do not add up"),  # DRAM counted twice
        (set_rail(3, inside="VDD_IN"), "do not add up"),
        (set_rail(3, parts=["dma"]), "do not add up"),
        (lambda d: d["rails"].pop(0), "do not add up"),
        (lambda d: [rail.update(gpu_cpu=False) for rail in d["rails"]], "do not add up"),
        (set_rail(0, label=""), "label in entry 1 of rails"),
        (set_rail(0, parts="gpu"), "parts in entry 1 of rails"),
        (set_rail(0, parts=[1]), "parts in entry 1 of rails"),
        (set_rail(2, bus_v=-5.0), "bus_v in entry 3 of rails"),
        (set_rail(2, bus_v=float("nan")), "bus_v in entry 3 of rails"),
        (set_rail(2, shunt_uohm=2000.5), "shunt_uohm in entry 3 of rails"),
        (set_rail(2, gpu_cpu=1), "gpu_cpu in entry 3 of rails"),
        (set_rail(2, base_w=None), "base_w in entry 3 of rails"),
        (set_rail(2, inside=5), "inside in entry 3 of rails"),
        (set_rail(2, extra=1), "Entry 3 of rails"),
        (lambda d: d["rails"][2].pop("chip"), "Entry 3 of rails"),
        (lambda d: d["rails"].append(None), "Entry 5 of rails"),
        (lambda d: d.update(rails=[]), "rails in board.json is empty"),
        (lambda d: d.update(rails={}), "rails in board.json is empty or not a list"),
        (lambda d: d.update(power_modes=[]), "power_modes in board.json is empty"),
        (lambda d: d.update(power_modes=None), "power_modes in board.json is empty or not a list"),
        (lambda d: d.update(power_mode="MODE_10W"), "has no power mode"),
        (lambda d: d["power_modes"].pop(0), "has no power mode"),
        (set_mode(0, name="MAXN_SUPER"), "has no power mode"),
        (set_mode(1, gpu_max_hz="612 MHz"), "gpu_max_hz in entry 2 of power_modes"),
        (set_mode(1, tpcs=-1), "tpcs in entry 2 of power_modes"),
        (set_mode(1, cpu_max_mhz=float("inf")), "cpu_max_mhz in entry 2 of power_modes"),
        (set_mode(1, source=""), "source in entry 2 of power_modes"),
        (lambda d: d["power_modes"][3].pop("emc_max_mhz"), "Entry 4 of power_modes"),
        (lambda d: d.update(calibration=None), "calibration in board.json"),
        (lambda d: d["calibration"].update(status="guessed"), "calibrated or uncalibrated"),
        (lambda d: d["calibration"].pop("against"), "against"),
        (lambda d: d["calibration"].update(against="orin_deberta_qnli"), "against"),
        (lambda d: d.update(clocks_hz=[]), "clock table"),
        (lambda d: d.update(clocks_hz=[306.5]), "clocks_hz"),
        (lambda d: d.update(clocks_hz=[True]), "clocks_hz"),
        (lambda d: d.update(clocks_hz=306000000), "clocks_hz"),
        (lambda d: d.update(clocks_hz=[306000000, 306000000]), "clock table"),
        (lambda d: d.update(clocks_hz=[0, 306000000]), "clock table"),
        (lambda d: d.update(board=""), "board in board.json is ''"),
        (lambda d: d.update(soc=None), "soc in board.json is None"),
        (lambda d: d.update(power_mode=0), "power_mode in board.json is 0"),
        (lambda d: d.update(constants=[]), "constants in board.json is not a mapping"),
        (lambda d: d.update(extra=1), "not a board constants file"),
        (lambda d: d.pop("soc"), "not a board constants file"),
        (lambda d: d.pop("schema_version"), "schema version None"),
        (lambda d: d.update(schema_version=1), "schema version 1. Version 2 was expected."),
        (lambda d: d.update(schema_version=3), "schema version 3. Version 2 was expected."),
        (lambda d: d.update(schema_version="2"), "schema version '2'"),
    ],
)
def test_other_faults_are_named(
    document: dict[str, Any], change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    change(document)
    assert message in refusal(document)


@pytest.mark.parametrize("document", [None, [], "x", 2, {}])
def test_what_is_no_mapping_is_refused(document: Any) -> None:
    assert "board.json" in refusal(document)


def test_a_default_mode_that_is_not_there_is_named(document: dict[str, Any]) -> None:
    document["power_mode"] = "MODE_10W"
    assert "no power mode 'MODE_10W'" in refusal(document)


def test_uncalibrated_is_said(document: dict[str, Any]) -> None:
    document["calibration"] = {"status": "uncalibrated", "against": []}
    file = parse_board_file(document, "board.json")
    assert (file.calibrated, file.calibrated_against) == (False, ())
    calibrated = load_board_file(DEFAULT_CONSTANTS)
    assert calibrated.calibrated
    assert calibrated.calibrated_against == tuple(ORIN["calibration"]["against"])


@pytest.mark.parametrize("name", [None, float("nan"), {}])
def test_what_a_board_is_calibrated_against_is_text(document: dict[str, Any], name: Any) -> None:
    document["calibration"]["against"] = [name]
    refusal(document)


@pytest.mark.parametrize(
    "change",
    [
        set_mode(0, tpcs=0),
        set_mode(1, tpcs=0),
        set_mode(0, cpu_max_mhz=0.0),
        set_mode(1, cpu_max_mhz=0.0),
        set_mode(0, emc_max_mhz=0.0),
        set_mode(1, emc_max_mhz=0.0),
        set_rail(0, bus_v=0.0),
        set_rail(0, shunt_uohm=0),
    ],
)
def test_what_would_be_divided_by_is_not_zero(
    document: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> None:
    change(document)
    refusal(document)


@pytest.mark.parametrize(
    "change",
    [
        set_rail(3, inside="VDDQ_VDD2_1V8AO"),  # in itself
        set_rail(3, inside="VDD_GPU_SOC"),  # DRAM does not hang on the GPU's rail
        set_rail(3, base_w=50.0),  # more than the rail around it carries
    ],
)
def test_a_rail_is_part_of_the_one_it_lies_in(
    document: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> None:
    change(document)
    refusal(document)


def test_the_rail_set_gpu_cpu_needs_a_rail_of_the_modules_sum(document: dict[str, Any]) -> None:
    for rail in document["rails"]:
        rail["gpu_cpu"] = rail["inside"] is not None
    refusal(document)


def test_two_modes_of_one_name_are_refused(document: dict[str, Any]) -> None:
    document["power_modes"][1]["name"] = "MODE_30W"
    refusal(document)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d["constants"]["static_w"].update(value=10**400),
        set_rail(0, bus_v=10**400),
        lambda d: d.update(clocks_hz=[10**400]),
    ],
)
def test_a_whole_number_beyond_a_float_is_bad_input(
    document: dict[str, Any], change: Callable[[dict[str, Any]], Any]
) -> None:
    change(document)
    refusal(document)


# --- whatever is done to the document


JUNK = st.sampled_from([None, -1, 0, "x", float("nan"), True, 10**400, [], {}])


def every_path(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    paths = [path] if path else []
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in children:
        paths += every_path(child, (*path, key))
    return paths


PATHS = every_path(ORIN)
TOP = [p for p in PATHS if len(p) <= 2]
where = st.one_of(st.sampled_from(PATHS), st.sampled_from(TOP))
mutations = st.lists(st.tuples(where, st.booleans(), JUNK), min_size=1, max_size=3)


def mutate(document: Any, path: tuple[Any, ...], delete: bool, junk: Any) -> None:
    """Delete or replace what lies at a path; nothing where an earlier mutation took it away."""
    *above, last = path
    try:
        for key in above:
            document = document[key]
        if delete:
            del document[last]
        else:
            document[last] = junk
    except (KeyError, IndexError, TypeError):
        return


def use(file: BoardFile) -> None:
    """What every command does with a board: all of its modes and their tables."""
    assert set(file.sources) == set(UNITS)
    assert file.mode().name in file.power_modes
    assert sorted(part for rail in file.module_rails for part in rail.parts) == sorted(PARTS)
    for name in UNITS:
        value = getattr(file.constants, name)
        assert math.isfinite(value)
        assert value > 0 or (name in MAY_BE_ZERO and value == 0)
    for mode in file.power_modes.values():
        if file.clocks_hz[0] <= mode.gpu_max_hz:
            assert file.in_mode(mode.name).clocks_hz[-1] <= mode.gpu_max_hz
        else:
            with pytest.raises(InputError):
                file.in_mode(mode.name)


@settings(max_examples=400, deadline=None)
@given(mutations)
def test_a_changed_document_is_read_or_refused_and_never_crashes(
    changes: list[tuple[tuple[Any, ...], bool, Any]],
) -> None:
    document = copy.deepcopy(ORIN)
    for path, delete, junk in changes:
        mutate(document, path, delete, copy.copy(junk))
    try:
        file = parse_board_file(document, "board.json")
    except InputError:
        return
    use(file)


def test_every_single_change_is_read_or_refused() -> None:
    """All paths, all replacements, one at a time; what is read must be usable."""
    read = set()
    for path in PATHS:
        for delete, junk in ((True, None), *((False, j) for j in (None, -1, "x", float("nan"), []))):
            document = copy.deepcopy(ORIN)
            mutate(document, path, delete, junk)
            try:
                file = parse_board_file(document, "board.json")
            except InputError:
                continue
            use(file)
            read.add((path[0], "deleted" if delete else repr(junk)))
    # Clocks, modes, an inner rail and priors may go and names may change; no number may become what is none.
    read = {pair for pair in read if pair[0] != "calibration"}  # its list of sources is free text
    assert read == {
        *((key, "deleted") for key in ("clocks_hz", "power_modes", "rails", "constants")),
        *((key, "'x'") for key in ("board", "soc", "power_modes", "rails", "constants")),
        ("rails", "None"),  # inside nothing, as most are
        ("rails", "[]"),  # no part on the inner rail
    }


# --- files


def test_a_missing_or_torn_file_is_bad_input(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        VirtualBoard(tmp_path / "none.json")
    torn = tmp_path / "torn.json"
    torn.write_text(DEFAULT_CONSTANTS.read_text()[:200])
    with pytest.raises(InputError, match="not complete JSON"):
        VirtualBoard(torn)
    with pytest.raises(InputError, match="does not exist"):
        load_board_file(tmp_path / "none.yaml")


@pytest.mark.parametrize("suffix", [".yaml", ".yml", ".YAML"])
def test_yaml_is_read_like_json(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"board{suffix}"
    path.write_text(yaml.safe_dump(ORIN))
    assert load_board_file(path) == load_board_file(DEFAULT_CONSTANTS)
    assert VirtualBoard(path).info.digest == VirtualBoard().info.digest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("board: [jetson", "is not YAML"),
        ("a: b: c", "is not YAML"),
        ("\t- x", "is not YAML"),
        ("!!python/object:os.system {}", "is not YAML"),
        ("? {a: 1}\n: 2", "is not YAML"),
        ("", "not a board constants file"),
        ("- 1\n- 2\n", "not a board constants file"),
        ("schema_version: 1\n", "schema version 1"),
    ],
)
def test_broken_yaml_is_bad_input(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "board.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        load_board_file(path)
    assert "board.yaml" in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("board: 2024-13-45\n", id="impossible date"),
        pytest.param("[" * 3000, id="deep nesting"),
        pytest.param("constant 1", id="a constant named 1"),
    ],
)
def test_what_yaml_can_say_besides_is_bad_input(tmp_path: Path, text: str) -> None:
    path = tmp_path / "board.yaml"
    if text == "constant 1":
        text = yaml.safe_dump({**ORIN, "constants": {**ORIN["constants"], 1: {"value": 1.0}}})
    path.write_text(text)
    with pytest.raises(InputError):
        load_board_file(path)


def test_the_digest_follows_the_content_and_not_the_layout(document: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "board.json"
    path.write_text(json.dumps(document))
    assert VirtualBoard(path).info.digest == VirtualBoard().info.digest
    document["constants"]["static_w"]["value"] *= 1.001
    path.write_text(json.dumps(document))
    assert VirtualBoard(path).info.digest != VirtualBoard().info.digest
