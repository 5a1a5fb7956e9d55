"""Sweep files, importing, replay: what is wrong is named with its line, what is right comes out unchanged."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from wattune.boards.recorded import RecordedBoard
from wattune.boards.sweepfile import read_sweep, write_sweep
from wattune.cli import main
from wattune.core.errors import InputError
from wattune.core.settings import MAXN

HEADER = "board,workload,setting,gpu_mhz,energy_j,time_s"
GOOD = [
    "orin,a,,306,20,4", "orin,a,,612,10,3", "orin,a,,1300.5,15,2", "orin,a,maxn,,16,2",
    "orin,b,,306,30,", "orin,b,,612,21,", "orin,b,,1300.5,20,",
]  # fmt: skip


def sweep_file(folder: Path, lines: list[str], header: str = HEADER, name: str = "sweep.csv") -> Path:
    path = folder / name
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_reading_plain_gzip_and_folder_agree(tmp_path: Path) -> None:
    plain = sweep_file(tmp_path, GOOD)
    zipped = tmp_path / "more" / "sweep.csv.gz"
    zipped.parent.mkdir()
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_sweep(plain).rows[0].energy_j == 20
    curves = [{w.id: w.curve.points for w in read_sweep(p).workloads} for p in (plain, zipped, zipped.parent)]
    assert curves[0] == curves[1] == curves[2]
    assert curves[0]["a"][MAXN].energy_j == 16
    assert curves[0]["b"][612.0].time_s is None


def test_a_written_sweep_reads_back_equal(tmp_path: Path) -> None:
    first = read_sweep(sweep_file(tmp_path, [line + ",extra" for line in GOOD], HEADER + ",remark"))
    write_sweep(first.rows, tmp_path / "again.csv.gz")
    again = read_sweep(tmp_path / "again.csv.gz")
    assert [(r.workload, r.setting, r.energy_j, r.time_s) for r in again.rows] == [
        (r.workload, r.setting, r.energy_j, r.time_s) for r in first.rows
    ]
    assert {r.columns["remark"] for r in again.rows} == {"extra"}
    assert write_sweep(first.rows, tmp_path / "again.csv.gz") is False


def test_equal_settings_without_repeats_are_averaged_and_said(tmp_path: Path) -> None:
    sweep = read_sweep(sweep_file(tmp_path, [*GOOD, "orin,a,,612,12,5"]))
    point = next(w for w in sweep.workloads if w.id == "a").curve.points[612.0]
    assert (point.energy_j, point.time_s) == (11, 4)
    assert any("averaged" in sentence for sentence in sweep.warnings)


BAD = {
    "missing column": ("board,workload,gpu_mhz,time_s", ["orin,a,306,4"], "energy_j"),
    "negative energy": (HEADER, [*GOOD, "orin,c,,306,-1,4"], r"line 9.*-1|-1.*line 9"),
    "zero energy": (HEADER, [*GOOD, "orin,c,,306,0,4"], "energy_j"),
    "NaN energy": (HEADER, [*GOOD, "orin,c,,306,nan,4"], "nan"),
    "blank energy": (HEADER, [*GOOD, "orin,c,,306,,4"], "energy_j"),
    "negative time": (HEADER, [*GOOD, "orin,c,,306,1,-4"], "time_s"),
    "no clock": (HEADER, [*GOOD, "orin,c,,,1,4"], "gpu_mhz"),
    "duplicate setting": (
        HEADER + ",repeat",
        ["orin,a,,306,20,4,0", "orin,a,,612,10,3,0", "orin,a,,306,21,4,0"],
        "306",
    ),
    "one clock only": (HEADER, ["orin,a,,306,20,4", "orin,a,maxn,,20,4"], "'?a'?"),
    "no rows": (HEADER, [], "no rows"),
    "several slices": (
        HEADER + ",cpu_mhz",
        ["orin,a,,306,20,4,1000", "orin,a,,612,20,4,1000", "orin,a,,306,20,4,2000"],
        "--keep",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_sweeps(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header, lines, says = BAD[case]
    path = sweep_file(tmp_path, lines, header)
    with pytest.raises(InputError, match=says):
        read_sweep(path)
    assert main(["replay", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"\x1f\x8bbroken", b"\xff\xfe\x00a", b"\n\n"])
def test_what_is_no_table(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_bytes(content)
    with pytest.raises(InputError):
        read_sweep(path)


def test_an_empty_folder_and_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="csv"):
        read_sweep(tmp_path)
    with pytest.raises(InputError, match=r"none\.csv"):
        read_sweep(tmp_path / "none.csv")


class TestRecordedBoard:
    def test_mixed_boards_must_be_named(self, tmp_path: Path) -> None:
        path = sweep_file(tmp_path, [*GOOD, *(line.replace("orin", "nano", 1) for line in GOOD)])
        with pytest.raises(InputError, match=r"'nano', 'orin'.*BOARD="):
            RecordedBoard(path)
        with pytest.raises(InputError, match="'xavier' is not in"):
            RecordedBoard(path, "xavier")
        assert RecordedBoard(path, "nano").info.id == "nano"

    def test_an_export_of_a_modelled_board_stays_simulated(self, tmp_path: Path) -> None:
        path = sweep_file(tmp_path, [line + ",simulated" for line in GOOD], HEADER + ",provenance")
        assert RecordedBoard(path).info.provenance == "simulated"
        assert RecordedBoard(sweep_file(tmp_path, GOOD)).info.provenance == "recorded"


class TestReplay:
    def ask(self, capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict]:
        assert main(["replay", *argv, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    def test_json_shape_and_figures(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        a, b = self.ask(capsys, str(sweep_file(tmp_path, GOOD)), "--policy", "ffg")
        assert (a["workload"], a["board"], a["oracle_mhz"]) == ("a", "orin", 612.0)
        assert a["chosen_mhz"] == 1300.5  # the best clock of b
        assert a["regret_pct"] == pytest.approx(50.0)
        assert a["saving_pct"] == pytest.approx(6.25)
        assert (a["probes"], a["steps"]) == ([], 0)
        assert b["chosen_mhz"] == 612.0
        assert b["regret_pct"] == pytest.approx(5.0)
        assert b["saving_pct"] is None

    def test_boards_stay_apart(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        other = ["nano,a,,300,1,4", "nano,a,,600,2,3", "nano,b,,300,1,4", "nano,b,,600,2,3"]
        answers = self.ask(capsys, str(sweep_file(tmp_path, [*GOOD, *other])))
        assert {(r["board"], r["chosen_mhz"]) for r in answers} == {
            ("nano", 300.0),
            ("orin", 612.0),
            ("orin", 1300.5),
        }

    @pytest.mark.parametrize(
        ("policy", "says"),
        [
            ("curve", "learns from features"),
            ("fastest", "no policy"),
            ("mlg", "--governor"),
            ("mlg-regret", "--governor"),
        ],
    )
    def test_policies_that_cannot_answer(
        self, policy: str, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["replay", str(sweep_file(tmp_path, GOOD)), "--policy", policy]) == 2
        assert says in capsys.readouterr().err

    @pytest.mark.parametrize(
        ("policy", "objective", "chosen"),
        [
            ("oracle", "energy", 600.0),
            ("oracle", "edp", 900.0),
            ("oracle", "energy:max_slowdown_pct=10", 900.0),
            ("oracle", "energy:deadline_s=22", 900.0),
            ("oracle", "time:max_power_w=4", 600.0),
            ("ffg", "energy", 600.0),
            ("ffg", "energy:max_slowdown_pct=10", 900.0),
            ("maxn", "edp", "maxn"),
        ],
    )
    def test_objectives(
        self, policy: str, objective: str, chosen: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Two workloads of one shape, the second ten times the work: what one teaches fits the other."""
        shape = {"300": (120, 60), "600": (100, 30), "900": (132, 22), "": (160, 20)}
        lines = [
            f"orin,{name},{'' if mhz else 'maxn'},{mhz},{e * work},{t * work}"
            for name, work in (("a", 1), ("b", 10))
            for mhz, (e, t) in shape.items()
        ]
        asked = (str(sweep_file(tmp_path, lines)), "--policy", policy, "--objective", objective)
        first = self.ask(capsys, *asked)[0]
        assert first["chosen_mhz"] == chosen
        assert first["feasible"] is True
        expected = {"edp": 100 * (3200 / 2904 - 1)}.get(objective, 0.0) if policy == "maxn" else 0.0
        assert first["regret_pct"] == pytest.approx(expected)

    def test_a_fixed_rule_is_held_against_the_limit(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = ["orin,a,,300,120,60", "orin,a,,900,132,22", "orin,a,maxn,,160,20"]
        asked = [
            str(sweep_file(tmp_path, lines)),
            "--policy",
            "published",
            "--objective",
            "energy:deadline_s=30",
        ]
        (only,) = self.ask(capsys, *asked)
        assert (only["chosen_mhz"], only["feasible"]) == (300.0, False)
        assert main(["replay", *asked]) == 0
        assert "300 does not keep deadline_s = 30: it has 60" in capsys.readouterr().out
        assert main(["replay", *asked[:-1], "time:max_slowdown_pct=3"]) == 2

    def test_choices_that_break_the_limit_are_told_from_those_that_keep_it(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The printed rule stays at 300 MHz: in time on the short job, late on the long one."""
        shape = {"300": (120, 60), "900": (132, 22), "": (160, 20)}
        lines = [
            f"orin,{name},{'' if mhz else 'maxn'},{mhz},{e * work},{t * work}"
            for name, work in (("a", 1), ("b", 0.25))
            for mhz, (e, t) in shape.items()
        ]
        asked = [str(sweep_file(tmp_path, lines)), "--policy", "published", "--objective"]
        late, kept = self.ask(capsys, *asked, "energy:deadline_s=30")
        assert (late["feasible"], kept["feasible"]) == (False, True)
        assert main(["replay", *asked, "energy:deadline_s=30"]) == 0
        both = (late["regret_pct"] + kept["regret_pct"]) / 2
        said = f"mean regret {both:.2f} % (1 of 2 break the limit and count; without them {kept['regret_pct']:.2f} %)"
        assert said in capsys.readouterr().out
        assert main(["replay", *asked, "energy:deadline_s=1"]) == 0
        assert "(2 of 2 break the limit and count; without them unknown" in capsys.readouterr().out
        assert main(["replay", *asked, "energy"]) == 0
        assert "break the limit" not in capsys.readouterr().out

    def test_a_slowdown_without_maxn_says_against_what(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
    ) -> None:
        lines = [
            "orin,a,,300,120,60",
            "orin,a,,900,132,22",
            "orin,b,,300,120,60",
            "orin,b,,900,132,22",
            "orin,b,maxn,,160,20",
        ]
        asked = [str(sweep_file(tmp_path, lines)), "--policy", "oracle", "--objective"]
        with caplog.at_level("WARNING"):
            found = self.ask(capsys, *asked, "energy:max_slowdown_pct=5")
        assert [r["chosen_mhz"] for r in found] == [900.0, "maxn"]
        assert [m for m in caplog.messages if "fastest setting, 900 MHz" in m and m.startswith("a (orin)")]
        assert not [m for m in caplog.messages if m.startswith("b ")]
        caplog.clear()
        with caplog.at_level("WARNING"):
            self.ask(capsys, *asked, "energy")
        assert not caplog.messages

    def test_probe_measures_the_first_repeat_of_at_most_three_clocks(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        lines = []
        clocks = [210 + 90 * i for i in range(20)]
        for mhz in clocks:
            x = mhz / clocks[-1]
            time = 0.8 / x + 0.2
            for repeat, noise in enumerate((1.0, 1.02, 0.98)):
                lines.append(f"desktop,a,,{mhz},{(0.35 + 0.65 * x**2.5) * time * noise},{time},{repeat}")
        lines += ["desktop,b,,300,9,,0", "desktop,b,,900,5,,0"]
        (a, b) = self.ask(capsys, str(sweep_file(tmp_path, lines, HEADER + ",repeat")), "--policy", "probe")
        assert a["regret_pct"] < 1.0
        assert len(a["probes"]) <= 3
        assert set(a["probes"]) <= set(clocks)
        assert a["steps"] == 10 * len(a["probes"])
        assert a["saving_pct"] is None
        assert (b["chosen_mhz"], b["regret_pct"], sorted(b["probes"])) == (900.0, 0.0, [300.0, 900.0])

    def test_probe_prints_its_clocks(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["replay", str(sweep_file(tmp_path, GOOD)), "--policy", "probe"]) == 0
        assert "(probes, MHz)" in capsys.readouterr().out

    def test_probe_starts_at_the_leafs_clock(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from wattune.core.governor import canonical_json, governor_document
        from wattune.core.tree import Leaf, Tree

        clocks = (306.0, 408.0, 612.0, 918.0, 1300.5)
        tree = Tree([Leaf(408.0, 2, None, None, (1.2, 1.0, 1.1, 1.3, 1.6), (None,) * 5)])
        document = governor_document(
            board="orin", power_mode="MAXN", provenance="recorded", objective="energy", policy="mlg", rails="x",
            baseline=None, settings=clocks, features=(), tree=tree, training={},
        )  # fmt: skip
        (tmp_path / "governor.json").write_text(canonical_json(document))
        lines = [f"orin,a,,{m},{e},{1000 / m}" for m, e in zip(clocks, (13, 11, 12, 14, 17), strict=True)]
        (answer,) = self.ask(
            capsys, str(sweep_file(tmp_path, lines)), "--policy", "probe",
            "--governor", str(tmp_path / "governor.json"),
        )  # fmt: skip
        assert answer["probes"][0] == 408.0
        assert answer["chosen_mhz"] == 408.0

    def test_a_governor_of_another_board_is_refused(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from wattune.core.governor import canonical_json, governor_document
        from wattune.core.tree import Leaf, Tree

        tree = Tree([Leaf(612.0, 2, None, None, (1.0,), (None,))])
        document = governor_document(
            board="nano", power_mode="MAXN", provenance="recorded", objective="energy", policy="mlg", rails="x",
            baseline=None, settings=(612.0,), features=(), tree=tree, training={},
        )  # fmt: skip
        (tmp_path / "governor.json").write_text(canonical_json(document))
        argv = ["replay", str(sweep_file(tmp_path, GOOD)), "--governor", str(tmp_path / "governor.json")]
        assert main(argv) == 2
        assert "for board 'nano', the sweep holds 'orin'" in capsys.readouterr().err

    @pytest.mark.parametrize("policy", ["mlg", "mlg-regret"])
    def test_a_governor_goes_under_its_own_policy(
        self, policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from wattune.core.governor import canonical_json, governor_document
        from wattune.core.tree import Leaf, Tree

        tree = Tree([Leaf(612.0, 2, None, None, (1.0,), (None,))])
        document = governor_document(
            board="orin", power_mode="MAXN", provenance="recorded", objective="energy", policy=policy, rails="x",
            baseline=None, settings=(612.0,), features=(), tree=tree, training={},
        )  # fmt: skip
        (tmp_path / "governor.json").write_text(canonical_json(document))
        argv = [str(sweep_file(tmp_path, GOOD)), "--governor", str(tmp_path / "governor.json")]
        assert {r["chosen_mhz"] for r in self.ask(capsys, *argv)} == {612.0}
        other = {"mlg": "mlg-regret", "mlg-regret": "mlg"}[policy]
        assert main(["replay", *argv, "--policy", other]) == 2
        assert f"of policy '{policy}', not '{other}'" in capsys.readouterr().err

    def test_maxn_chosen_is_written_as_maxn(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = sweep_file(tmp_path, GOOD[:4])
        (answer,) = self.ask(capsys, str(path), "--policy", "maxn")
        assert (answer["chosen_mhz"], answer["saving_pct"], answer["slowdown_pct"]) == ("maxn", 0, 0)


class TestImport:
    def foreign(self, folder: Path) -> Path:
        path = folder / "foreign.csv"
        with path.open("w", newline="") as file:
            out = csv.writer(file)
            out.writerow(["net", "gpu", "cpu", "joule", "sec", "mode"])
            for cpu in (1000, 2000):
                for gpu, joule in ((300, 9), (600, 7), (900, 8)):
                    out.writerow(["vit", gpu, cpu, joule + cpu / 1000, 1000 / gpu, "pinned"])
            out.writerow(["vit", "", 2000, 12, 1, "free, default"])
        return path

    maps = (
        "--map",
        "workload=net",
        "gpu_mhz=gpu",
        "energy_j=joule",
        "time_s=sec",
        "cpu_mhz=cpu",
        "--set",
        "board=x",
    )

    def test_slice_and_baseline(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        out = tmp_path / "out.csv"
        source = str(self.foreign(tmp_path))
        argv = [
            "import",
            "sweep",
            source,
            "-o",
            str(out),
            *self.maps,
            "--keep",
            "cpu_mhz=max",
            "--maxn",
            "mode=free, default",
        ]
        assert main([*argv, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert report["n_in"] == 7
        assert report["n_out"] == 4
        (workload,) = read_sweep(out).workloads
        assert workload.curve.energy_j(600.0) == 9
        assert workload.curve.saving_pct(600.0) == pytest.approx(25.0)

    @pytest.mark.parametrize(
        ("extra", "says"),
        [
            (["--map", "workload=network"], "network"),
            (["--where", "mode=wild"], "wild"),
            (["--map", "workload"], "workload"),
        ],
    )
    def test_bad_rules(
        self, extra: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        argv = [
            "import",
            "sweep",
            str(self.foreign(tmp_path)),
            "-o",
            str(tmp_path / "out.csv"),
            *self.maps,
            *extra,
        ]
        assert main(argv) == 2
        assert says in capsys.readouterr().err
        assert not (tmp_path / "out.csv").exists()
