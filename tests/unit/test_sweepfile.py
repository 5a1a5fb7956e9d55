"""Sweep CSVs: what is read, what is refused and where the message points."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.boards.recorded import RecordedBoard
from wattune.boards.sweepfile import Record, check_records, read_sweep, sweep_text, write_sweep
from wattune.core.errors import InputError
from wattune.core.settings import MAXN
from wattune.profiling.importing.sweep import import_sweep

HEADER = "board,workload,gpu_mhz,energy_j,time_s,setting,repeat,gpu_util_pct,layers,part,cpu_mhz,colour"
GOOD = (
    "orin,a,306,12.5,2,pinned,0,99,6,train,2201.6,red",
    "orin,a,612,10,1.5,pinned,0,80,6,train,2201.6,red",
    "orin,a,,15,1,maxn,0,70,6,train,,red",
)


def write(path: Path, *lines: str, header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_what_a_good_file_says(tmp_path: Path) -> None:
    sweep = read_sweep(write(tmp_path / "s.csv", *GOOD))
    (workload,) = sweep.workloads
    assert sweep.boards == ("orin",)
    assert sweep.warnings == ()
    assert workload.curve.settings == (306.0, 612.0, MAXN)
    assert workload.curve.oracle == 612.0
    assert workload.curve.saving_pct(612.0) == pytest.approx(100 / 3)
    assert workload.curve.slowdown_pct(612.0) == pytest.approx(50)
    assert workload.number("layers") == 6
    assert workload.text("part") == "train"
    assert workload.gpu_util_pct(1300.5) == 80  # the pinned clock nearest to the reference, not MAXN
    assert workload.rows[0].columns["colour"] == "red"


@pytest.mark.parametrize("name", ["s.csv", "s.csv.gz", "s.dat"])
def test_gzip_is_known_by_its_bytes(tmp_path: Path, name: str) -> None:
    plain = read_sweep(write(tmp_path / "plain.csv", *GOOD))
    (tmp_path / name).write_bytes(gzip.compress((tmp_path / "plain.csv").read_bytes()))
    assert sweep_text(read_sweep(tmp_path / name).rows) == sweep_text(plain.rows)


def test_a_byte_order_mark_and_windows_lines_are_fine(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_bytes(("\ufeff" + "\r\n".join([HEADER, *GOOD]) + "\r\n").encode())
    assert len(read_sweep(tmp_path / "s.csv").rows) == 3


def test_a_folder_is_read_together(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", *GOOD)
    (tmp_path / "2.csv.gz").write_bytes(
        gzip.compress("\n".join([HEADER, *(g.replace(",a,", ",b,") for g in GOOD)]).encode())
    )
    (tmp_path / "notes.txt").write_text("not a sweep")
    assert [w.id for w in read_sweep(tmp_path).workloads] == ["a", "b"]


def test_blank_times_stay_unknown(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", *(g.replace(",2,pinned", ",,pinned") for g in GOOD))
    (workload,) = read_sweep(path).workloads
    assert workload.curve.points[306.0].time_s is None
    assert workload.curve.slowdown_pct(306.0) is None
    assert workload.curve.slowdown_pct(612.0) == pytest.approx(50)


def test_without_a_repeat_column_equal_settings_are_averaged_and_said_so(tmp_path: Path) -> None:
    lines = ["o,a,306,10,2", "o,a,306,20,4", "o,a,612,9,1"]
    sweep = read_sweep(write(tmp_path / "s.csv", *lines, header="board,workload,gpu_mhz,energy_j,time_s"))
    assert sweep.workloads[0].curve.points[306.0].energy_j == 15
    assert sweep.workloads[0].curve.points[306.0].time_s == 3
    (warning,) = sweep.warnings
    assert "averaged" in warning
    assert "'a'" in warning
    assert "s.csv" in warning


def foreign(separator: str, decimal: str) -> str:
    """The good rows as a spreadsheet of another country writes them."""
    lines = [
        [f'"{field}"' if separator in field else field for field in line.split(",")]
        for line in (HEADER, *GOOD)
    ]
    return "\n".join(separator.join(field.replace(".", decimal) for field in line) for line in lines) + "\n"


@pytest.mark.parametrize("parts", [(3, 0), (2, 1), (1, 1, 1)])
def test_every_file_whose_rows_were_averaged_is_named(parts: tuple[int, ...], tmp_path: Path) -> None:
    """Each holds some of the rows of one setting, and the first all of the other."""
    header = "board,workload,gpu_mhz,energy_j,time_s"
    files = []
    for number, rows in enumerate(parts):
        lines = ["o,a,306,10,2"] * rows + (
            ["o,a,612,9,1"] if number == 0 else ["o,other,306,1,1", "o,other,612,1,1"]
        )
        files.append(write(tmp_path / f"{number}.csv", *lines, header=header))
    (warning, *_) = read_sweep(files).warnings
    for file, rows in zip(files, parts, strict=True):
        assert (str(file) in warning) == (rows > 0)
    assert ("have no column" in warning) == (parts[1] > 0)
    assert "(1 setting)" in warning


@pytest.mark.parametrize(("separator", "decimal"), [(";", "."), (";", ","), ("\t", "."), ("\t", ",")])
def test_tables_of_other_countries_say_the_same(separator: str, decimal: str, tmp_path: Path) -> None:
    plain = write(tmp_path / "plain.csv", *GOOD)
    other = tmp_path / "other.csv"
    other.write_text(foreign(separator, decimal))
    expected = sweep_text(read_sweep(plain).rows)
    assert sweep_text(read_sweep(other).rows) == expected
    import_sweep(other, tmp_path / "out.csv", where=["cpu_mhz=2201.6"])
    import_sweep(plain, tmp_path / "same.csv", where=["cpu_mhz=2201.6"])
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "same.csv").read_text()


def test_a_semicolon_table_may_have_commas_in_its_names(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("Takt, MHz;Energie, J;Zeit, s\n306;12,5;2\n612;10;1,5\n")
    report = import_sweep(
        source,
        tmp_path / "out.csv",
        maps=["gpu_mhz=Takt, MHz", "energy_j=Energie, J", "time_s=Zeit, s"],
        sets=["board=b", "workload=w"],
    )
    assert [(row.setting, row.energy_j, row.time_s) for row in report.sweep.rows] == [
        (306.0, 12.5, 2.0),
        (612.0, 10.0, 1.5),
    ]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        (("1,300", "12"), "gpu_mhz is '1,300'"),
        (("306", "1,250"), "energy_j is '1,250'"),
        (("1.300", "12,5"), "gpu_mhz is '1.300'"),
        (("1.300,5", "12,5"), "gpu_mhz is '1.300,5'"),
        (("1,300,500", "12,5"), "gpu_mhz is '1,300,500'"),
    ],
)
def test_a_number_that_may_be_a_thousand_times_another_is_refused(
    values: tuple[str, str], named: str, tmp_path: Path
) -> None:
    lines = [";".join(("b", "w", *values, "2")), "b;w;612;10;2"]
    path = write(tmp_path / "s.csv", *lines, header="board;workload;gpu_mhz;energy_j;time_s")
    with pytest.raises(InputError, match="line 2") as caught:
        read_sweep(path)
    assert named in str(caught.value)


def test_numbers_of_a_comma_table_stay_as_they_are(tmp_path: Path) -> None:
    """A text of its own with a comma is no number with decimals, nor a separator."""
    header = "board,workload,gpu_mhz,energy_j,time_s,note;of,mine"
    lines = ['b,w,306,10,2,"1,300",a;b', 'b,w,612,10,2,"12,5",a;b']
    rows = read_sweep(write(tmp_path / "s.csv", *lines, header=header)).rows
    assert [row.columns["note;of"] for row in rows] == ["1,300", "12,5"]


def test_repeats_are_kept_apart(tmp_path: Path) -> None:
    again = [g.replace(",pinned,0", ",pinned,1").replace("12.5", "13.5") for g in GOOD[:2]]
    (workload,) = read_sweep(write(tmp_path / "s.csv", *again, *GOOD)).workloads
    assert [row.repeat for row in workload.at(306.0)] == [0, 1]
    assert workload.curve.points[306.0].energy_j == 13


BAD_ROWS = {
    "negative energy": ("orin,a,408,-1,2,,0,,6,train,2201.6,", "energy_j is '-1'"),
    "zero energy": ("orin,a,408,0,2,,0,,6,train,2201.6,", "energy_j is '0'"),
    "NaN energy": ("orin,a,408,nan,2,,0,,6,train,2201.6,", "energy_j is 'nan'"),
    "infinite energy": ("orin,a,408,inf,2,,0,,6,train,2201.6,", "energy_j is 'inf'"),
    "energy that is a word": ("orin,a,408,much,2,,0,,6,train,2201.6,", "energy_j is 'much'"),
    "blank energy": ("orin,a,408,,2,,0,,6,train,2201.6,", "energy_j is blank"),
    "negative time": ("orin,a,408,1,-2,,0,,6,train,2201.6,", "time_s is '-2'"),
    "no time at all": ("orin,a,408,1,0,,0,,6,train,2201.6,", "time_s is '0'"),
    "blank clock": ("orin,a,,1,2,,0,,6,train,2201.6,", "gpu_mhz is blank"),
    "negative clock": ("orin,a,-408,1,2,,0,,6,train,2201.6,", "gpu_mhz is '-408'"),
    "clock in Hz": ("orin,a,408000000,1,2,,0,,6,train,2201.6,", "Hz are divided by 1000000"),
    "clock in kHz": ("orin,a,408000,1,2,,0,,6,train,2201.6,", "kHz by 1000"),
    "energy beyond all sense": ("orin,a,408,1e300,2,,0,,6,train,2201.6,", "energy_j is 1e+300"),
    "energy of nothing": ("orin,a,408,1e-300,2,,0,,6,train,2201.6,", "energy_j is 1e-300"),
    "time beyond all sense": ("orin,a,408,1,1e300,,0,,6,train,2201.6,", "time_s is 1e+300"),
    "time of nothing": ("orin,a,408,1,1e-300,,0,,6,train,2201.6,", "time_s is 1e-300"),
    "no board": (",a,408,1,2,,0,,6,train,2201.6,", "board is blank"),
    "no workload": ("orin,,408,1,2,,0,,6,train,2201.6,", "workload is blank"),
    "part": ("orin,a,408,1,2,,0,,6,test,2201.6,", "part is 'test'"),
    "utilisation": ("orin,a,408,1,2,,0,101,6,train,2201.6,", "gpu_util_pct is '101'"),
    "half a repeat": ("orin,a,408,1,2,,0.5,,6,train,2201.6,", "repeat is '0.5'"),
    "too few fields": ("orin,a,408,1", "4 fields"),
    "too many fields": ("orin,a,408,1,2,,0,,6,train,2201.6,red,blue", "13 fields"),
    "duplicate setting": ("orin,a,612,11,2,,0,,6,train,2201.6,", "a duplicate of"),
    "duplicate baseline": ("orin,a,1300.5,11,2,MAXN,0,,6,train,,", "a duplicate of"),
    "another description": ("orin,a,408,1,2,,0,,12,train,2201.6,", "layers is '12'"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_named_with_its_line(tmp_path: Path, case: str) -> None:
    line, words = BAD_ROWS[case]
    with pytest.raises(InputError) as caught:
        read_sweep(write(tmp_path / "s.csv", *GOOD, line))
    assert words in str(caught.value)
    assert f"{tmp_path / 's.csv'}, line 5" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("column", ["board", "workload", "gpu_mhz", "energy_j", "time_s"])
def test_a_missing_column_is_named(tmp_path: Path, column: str) -> None:
    names = HEADER.split(",")
    keep = [i for i, name in enumerate(names) if name != column]
    lines = [",".join(line.split(",")[i] for i in keep) for line in (HEADER, *GOOD)]
    with pytest.raises(InputError, match=f"lacks the column {column}"):
        read_sweep(write(tmp_path / "s.csv", *lines[1:], header=lines[0]))


def test_all_missing_columns_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="columns gpu_mhz, energy_j, time_s"):
        read_sweep(write(tmp_path / "s.csv", "a,b", header="board,workload"))


BAD_FILES = {
    "empty": (b"", "is empty"),
    "header alone": (HEADER.encode() + b"\n", "no rows"),
    "not text": (b"\x89PNG\r\n\x1a\n\xff\xfe", "not UTF-8"),
    "zero bytes": (b"board,workload\0", "not a text"),
    "half a gzip": (gzip.compress(("\n".join([HEADER, *GOOD])).encode())[:-20], "damaged gzip"),
    "open quote": ((HEADER + '\n"orin,a,306,1,1').encode(), "not CSV"),
    "column twice": (b"board,board,workload\n", "twice"),
    "another separator": (HEADER.replace(",", "|").encode() + b"\n1|2\n", "lacks the columns"),
    "a short line between semicolons": (
        HEADER.replace(",", ";").encode() + b"\n1;2\n",
        "texts with semicolons",
    ),
    "one clock only": (f"{HEADER}\n{GOOD[0]}\n{GOOD[2]}\n".encode(), r"one clock only \(306 MHz\)"),
    "no pinned clock": (f"{HEADER}\n{GOOD[2]}\n".encode(), "no pinned clock"),
    "several slices": (
        "\n".join([HEADER, *GOOD, "orin,a,408,11,2,,0,,6,train,1190.4,"]).encode(),
        "--keep cpu_mhz=max",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_bad_file(tmp_path: Path, case: str) -> None:
    data, words = BAD_FILES[case]
    (tmp_path / "s.csv").write_bytes(data)
    with pytest.raises(InputError, match=words) as caught:
        read_sweep(tmp_path / "s.csv")
    assert "s.csv" in str(caught.value)


@pytest.mark.parametrize(
    ("per_mhz", "hint"), [(1e6, "Hz are divided"), (1e3, "kHz by 1000"), (1e-3, "GHz are multiplied by 1000")]
)
def test_clocks_in_another_unit_are_refused_with_it(tmp_path: Path, per_mhz: float, hint: str) -> None:
    rows = [f"orin,a,{mhz * per_mhz:.10g},12.5,2,,0,99,6,train,2201.6,red" for mhz in (306, 612, 1300.5)]
    with pytest.raises(InputError, match=hint):
        read_sweep(write(tmp_path / "s.csv", *rows))


@pytest.mark.parametrize("numbered", [True, False])
def test_a_file_given_twice_is_read_once_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, numbered: bool
) -> None:
    """By the same name, another one, a link, and in its folder."""
    monkeypatch.chdir(tmp_path)
    rows = GOOD if numbered else [",".join(line.split(",")[:6] + line.split(",")[7:]) for line in GOOD]
    file = write(Path("s.csv"), *rows, header=HEADER if numbered else HEADER.replace("repeat,", ""))
    once = read_sweep(file)
    Path("soft").symlink_to("s.csv")
    Path("hard").hardlink_to("s.csv")
    for other in (file, tmp_path / "s.csv", Path("soft"), Path("hard"), Path()):
        both = read_sweep([file, other])
        assert sweep_text(both.rows) == sweep_text(once.rows)
        assert [w for w in both.warnings if "read once" in w] == list(both.warnings[:1])
        assert both.warnings[0].startswith("s.csv was given twice" if other in (file, Path()) else str(other))


def test_missing_file_and_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_sweep(tmp_path / "none.csv")
    with pytest.raises(InputError, match=r"holds no \.csv"):
        read_sweep(tmp_path)


def test_writing_is_canonical_and_lossless(tmp_path: Path) -> None:
    first = read_sweep(write(tmp_path / "s.csv", *reversed(GOOD)))
    assert write_sweep(first.rows, tmp_path / "out.csv")
    again = read_sweep(tmp_path / "out.csv")
    assert sweep_text(again.rows) == sweep_text(first.rows) == (tmp_path / "out.csv").read_text()
    assert "colour" in (tmp_path / "out.csv").read_text().splitlines()[0]
    assert not write_sweep(again.rows, tmp_path / "out.csv")  # unchanged: left alone
    assert write_sweep(again.rows, tmp_path / "out.csv.gz")
    assert sweep_text(read_sweep(tmp_path / "out.csv.gz").rows) == sweep_text(first.rows)


positive = st.floats(min_value=1e-6, max_value=1e12, allow_nan=False)
clock = st.floats(min_value=10.0, max_value=1e4, allow_nan=False)


@given(st.dictionaries(clock, st.tuples(positive, st.none() | positive), min_size=2, max_size=8))
def test_any_sweep_survives_writing_and_reading(points: dict[float, tuple[float, float | None]]) -> None:
    import csv
    import io

    records = [
        Record(
            {
                "board": "b, with comma",
                "workload": 'w "quoted"',
                "gpu_mhz": repr(mhz),
                "energy_j": repr(energy),
                "time_s": "" if time is None else repr(time),
            },
            f"line {mhz}",
        )
        for mhz, (energy, time) in points.items()
    ]
    before = check_records(records).workloads[0]
    lines = csv.DictReader(io.StringIO(sweep_text(before.rows)))
    after = check_records([Record(line, "again") for line in lines]).workloads[0]
    assert dict(after.curve.points) == dict(before.curve.points)
    assert (after.board, after.id) == (before.board, before.id)


def test_mixed_boards_in_the_pipeline_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "s.csv", *GOOD, *(g.replace("orin,", "xavier,") for g in GOOD))
    assert read_sweep(path).boards == ("orin", "xavier")
    with pytest.raises(InputError, match=r"2 boards: 'orin', 'xavier'.*BOARD="):
        RecordedBoard(path)
    assert RecordedBoard(path, "xavier").info.id == "xavier"
    with pytest.raises(InputError, match="'nano' is not in the sweep"):
        RecordedBoard(path, "nano")


def test_a_recorded_board_answers_with_the_rows_it_has(tmp_path: Path) -> None:
    board = RecordedBoard(write(tmp_path / "s.csv", *GOOD))
    (workload,) = board.workloads()
    assert board.info.provenance == "recorded"
    assert board.info.rails == "as recorded"
    assert board.info.power_mode == "unknown"
    assert board.measure(workload, 612.0, repeat=0).energy_j == 10
    assert board.measure(workload, MAXN, repeat=0).time_s == 1
    assert board.noise_free(workload, 612.0) is None
    with pytest.raises(InputError, match="no repeat 1"):
        board.measure(workload, 612.0, repeat=1)


def test_the_digest_follows_the_data_not_their_order(tmp_path: Path) -> None:
    one = RecordedBoard(write(tmp_path / "1.csv", *GOOD)).info.digest
    assert RecordedBoard(write(tmp_path / "2.csv", *reversed(GOOD))).info.digest == one
    assert (
        RecordedBoard(write(tmp_path / "3.csv", GOOD[0].replace("12.5", "12.6"), *GOOD[1:])).info.digest
        != one
    )
