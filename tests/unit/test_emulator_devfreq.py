"""The devfreq node's bounds and governors, against the rules of the kernel's documentation and driver."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.boards.virtual.emulator.devfreq import UNLIMITED_KHZ, Devfreq, parse_number

ORIN = [306, 408, 510, 612, 714, 816, 918, 1020, 1122, 1224]
TABLE = [mhz * 1_000_000 for mhz in ORIN] + [1_300_500_000]
NEW_KERNELS = ("5.10", "5.15", "6.8")


def make(kernel: str = "5.15", cap: int = TABLE[-1]) -> Devfreq:
    return Devfreq(TABLE, kernel=kernel, cap_hz=cap)


def refused(call, text: str) -> int:
    with pytest.raises(OSError, match=r"Invalid argument|No such file") as caught:
        call(text)
    return caught.value.errno


anything = st.one_of(
    st.sampled_from(TABLE), st.integers(0, 3 * TABLE[-1]), st.integers(0, UNLIMITED_KHZ * 1000)
)
writes = st.lists(st.tuples(st.sampled_from(["min", "max"]), anything), max_size=8)


def write(node: Devfreq, which: str, hz: int) -> None:
    (node.write_min if which == "min" else node.write_max)(f"{hz}\n")


@given(writes, st.sampled_from(NEW_KERNELS), st.integers(0, len(TABLE) - 1))
def test_since_5_5_no_number_is_refused_and_the_clock_stays_in_the_table(sequence, kernel, wish):
    node = make(kernel)
    for which, hz in sequence:
        write(node, which, hz)
    low, high = node.bounds_hz()
    assert low <= high <= TABLE[-1]
    assert low >= min(TABLE[0], high)
    assert (node.read_min(), node.read_max()) == (f"{low}\n", f"{high}\n")
    chosen = TABLE[node.clamp_index(wish)]
    assert chosen >= low
    # Rounded up to a clock: never more than the first clock at or above the maximum.
    assert chosen <= next(hz for hz in TABLE if hz >= high)


@given(st.sampled_from(TABLE), st.sampled_from(TABLE), st.sampled_from(NEW_KERNELS))
def test_since_5_5_the_maximum_wins_in_either_order(low, high, kernel):
    for order in (("min", "max"), ("max", "min")):
        node = make(kernel)
        for which in order:
            write(node, which, low if which == "min" else high)
        assert node.bounds_hz() == (min(low, high), high)


@given(st.sampled_from(TABLE), st.sampled_from(TABLE))
def test_a_minimum_held_back_by_the_maximum_is_not_forgotten(low, high):
    node = make()
    write(node, "min", low)
    write(node, "max", high)
    write(node, "max", 0)
    assert node.bounds_hz() == (low, TABLE[-1])


@pytest.mark.parametrize(
    ("which", "written", "read"),
    [("min", 612_000_999, 612_000_000), ("max", 611_999_001, 612_000_000), ("max", 612_000_000, 612_000_000)],
)
def test_since_5_5_requests_are_whole_khz(which, written, read):
    node = make()
    write(node, which, written)
    assert node.bounds_hz()[which == "max"] == read


def test_since_5_5_zero_lifts_a_bound():
    node = make()
    for which in ("min", "max"):
        write(node, which, 612_000_000)
        write(node, which, 0)
    assert node.bounds_hz() == (TABLE[0], TABLE[-1])


@given(writes)
def test_4_9_refuses_what_crosses_and_reads_what_was_written(sequence):
    node = make("4.9")
    low, high = TABLE[0], TABLE[-1]
    for which, hz in sequence:
        crosses = hz and (high and hz > high if which == "min" else low and hz < low)
        if crosses:
            assert refused(node.write_min if which == "min" else node.write_max, str(hz)) == errno.EINVAL
        else:
            write(node, which, hz)
            low, high = (hz, high) if which == "min" else (low, hz)
        assert (node.read_min(), node.read_max()) == (f"{low}\n", f"{high}\n")
        assert TABLE[node.clamp_index(0)] in TABLE


def test_4_9_needs_the_right_order():
    """Raising needs max first, lowering min first."""
    node = Devfreq([114750000, 318750000, 675750000, 1032750000], kernel="4.9", cap_hz=675750000)
    node.apply_power_mode(675750000, 318750000)
    assert refused(node.write_min, "1032750000") == errno.EINVAL
    node.write_max("1032750000\n")
    node.write_min("1032750000\n")
    assert refused(node.write_max, "114750000") == errno.EINVAL
    node.write_min("114750000\n")
    node.write_max("114750000\n")
    assert node.bounds_hz() == (114750000, 114750000)


@pytest.mark.parametrize("kernel", ["4.9", *NEW_KERNELS])
@pytest.mark.parametrize("text", ["", "\n", "fast", "-1", "+5", "\u0664", "x306000000"])
def test_what_is_no_number_is_invalid(kernel, text):
    node = make(kernel)
    before = node.bounds_hz()
    assert refused(node.write_min, text) == errno.EINVAL
    assert refused(node.write_max, text) == errno.EINVAL
    assert node.bounds_hz() == before


def test_a_store_stops_at_the_first_character_that_is_no_digit():
    assert parse_number(" 612000000 Hz\n") == 612000000


def test_a_request_beyond_32_bits_is_invalid():
    assert refused(make().write_max, str(2**42)) == errno.EINVAL


def test_the_thermal_cap_limits_what_is_read_and_is_no_request():
    node = make()
    write(node, "min", 918_000_000)
    node.thermal_cap_hz = 612_000_000
    assert node.bounds_hz() == (612_000_000, 612_000_000)
    write(node, "max", 1_020_000_000)
    assert node.read_max() == "612000000\n"
    node.thermal_cap_hz = None
    assert node.bounds_hz() == (918_000_000, 1_020_000_000)


def test_a_power_mode_sets_both_bounds_and_a_later_write_defeats_it():
    node = make()
    write(node, "min", 918_000_000)
    node.power_mode_cap_hz = 612_000_000
    assert node.bounds_hz() == (TABLE[0], 612_000_000)
    write(node, "max", TABLE[-1])
    assert node.bounds_hz() == (TABLE[0], TABLE[-1])
    node.reset()
    assert node.bounds_hz() == (TABLE[0], 612_000_000)


def test_a_bound_between_two_clocks_rounds_up():
    node = make()
    write(node, "max", 600_000_000)
    write(node, "min", 450_000_000)
    assert [TABLE[node.clamp_index(i)] for i in (0, len(TABLE) - 1)] == [510_000_000, 612_000_000]


def test_governors():
    node = make()
    seen: list[str] = []
    node.on_governor = seen.append
    assert node.read_governor() == "nvhost_podgov\n"
    assert node.available_governors == ("nvhost_podgov", "userspace", "performance", "simple_ondemand")
    for text in ("", "turbo", "nvhost_podgo", "wmark_simple"):
        assert refused(node.write_governor, text) == errno.EINVAL
    assert refused(node.write_set_freq, "408000000") == errno.ENOENT
    with pytest.raises(FileNotFoundError):
        node.read_set_freq()
    node.write_governor("userspace\n")
    assert (node.read_set_freq(), node.fixed_wish_hz()) == ("undefined\n", TABLE[0])
    node.write_set_freq("700000000\n")
    assert (node.read_set_freq(), node.fixed_wish_hz()) == ("700000000\n", 700_000_000)
    assert TABLE[node.index_for(node.fixed_wish_hz())] == 714_000_000
    node.write_governor("performance")
    assert node.fixed_wish_hz() == TABLE[-1]
    node.write_governor("userspace")
    assert node.read_set_freq() == "undefined\n"
    node.write_governor("nvhost_podgov")
    assert node.fixed_wish_hz() is None
    assert seen == ["userspace", "performance", "userspace", "nvhost_podgov"]


def test_podgov_can_be_told_a_clock_or_switched_off():
    node = make()
    node.request_enabled, node.request_hz = True, 510_000_000
    assert node.fixed_wish_hz() == 510_000_000
    node.request_enabled, node.scaling_enabled = False, False
    assert node.fixed_wish_hz() == TABLE[-1]


def test_every_write_that_may_move_the_clock_is_told():
    node, told = make(), []
    node.on_update = lambda: told.append(node.bounds_hz())
    write(node, "min", 510_000_000)
    write(node, "max", 510_000_000)
    node.write_governor("userspace")
    node.write_set_freq("510000000")
    assert told == [(510_000_000, TABLE[-1])] + 3 * [(510_000_000, 510_000_000)]


def test_trans_stat_is_the_kernels_table():
    node = Devfreq([306000000, 408000000], kernel="5.15", cap_hz=408000000)
    node.account(1.5)
    node.move_to(408000000)
    node.move_to(408000000)
    node.account(0.25)
    assert node.trans_stat() == (
        "     From  :   To\n"
        "           : 306000000 408000000   time(ms)\n"
        "  306000000:         0         1      1500\n"
        "* 408000000:         0         0       250\n"
        "Total transition : 1\n"
    )
    assert refused(node.write_trans_stat, "1") == errno.EINVAL
    node.write_trans_stat("0\n")
    assert node.trans_stat().endswith("Total transition : 0\n")


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 1)), max_size=5))
def test_counters_are_two_32_bit_numbers(spans):
    node = make()
    for seconds, busy in spans:
        node.account(seconds, busy)
    busy, total = map(int, node.counters().split())
    assert 0 <= busy < 2**32
    assert 0 <= total < 2**32
    node.reset_counters()
    assert node.counters() == "0 0\n"


@given(
    st.integers(max_value=-1),
    st.sampled_from(["4.9", "5.10", "5.15", "6.8"]),
    st.sampled_from(["", " ", "\t"]),
)
def test_no_store_takes_a_sign(value: int, kernel: str, before: str) -> None:
    """`sscanf("%lu")` takes none: EINVAL, and nothing has changed."""
    node = Devfreq((306_000_000, 612_000_000), kernel=kernel, cap_hz=612_000_000)
    found = node.bounds_hz()
    for store in (node.write_min, node.write_max):
        for text in (f"{before}{value}\n", f"{before}+{-value}\n"):
            with pytest.raises(OSError, match="Invalid argument"):
                store(text)
    assert node.bounds_hz() == found
