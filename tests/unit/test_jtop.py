"""jtop beside our own reading: whatever it raises or leaves out becomes a reason, never a crash and never a zero."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattune.boards.jetson import jtop as cross
from wattune.boards.jetson.findings import Findings, GpuNode
from wattune.boards.jetson.jtop import JtopUnavailableError, Readings, Seen, ask_jtop, cross_check
from wattune.boards.jetson.sysfs import Sysfs

HZ = 306_000_000
NODE = GpuNode("sys/devices/x/devfreq/17000000.gpu", "sys/devices/x", (HZ,), HZ, HZ, HZ, "")
MACHINE = Findings(Sysfs(), gpu=NODE)
OURS = Readings(
    rails_w={"VDD_GPU_SOC": 5.0, "VDD_CPU_CV": None}, gpu_mhz=612.0, gpu_util_pct=40.0, temps_c={"gpu": 41.0}
)
POWER = {
    "rail": {
        "VDD_GPU_SOC": {"volt": 19864, "curr": 260, "power": 5165, "avg": 1, "online": True},
        "VDD_CPU_CV": {"power": 1589, "online": True},
        "VDD_OFF": {"power": 0, "online": False},
    },
    "tot": {"power": 99999, "avg": 1},
}
GPU = {"gpu": {"type": "integrated", "status": {"load": 42.5}, "freq": {"cur": 611000, "max": 1300500}}}
TEMPERATURE = {"gpu": {"temp": 41.5, "online": True}, "CV0": {"temp": -256, "online": False}}


def seen(**values: Any) -> Seen:
    return Seen({"power": POWER, "gpu": GPU, "temperature": TEMPERATURE} | values, "7.2.2", {})


def checked(ours: Readings = OURS, findings: Findings = MACHINE, **values: Any) -> dict[str, Any]:
    return cross_check(findings, ours, ask=lambda: seen(**values))


class Like:
    """Behaves like a dict and is none, as some of the client's properties."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    def keys(self) -> Any:
        return self.data.keys()

    def __getitem__(self, key: str) -> Any:
        return self.data[key]


class Board:
    """What jtop's client is while connected."""

    power, gpu, temperature = POWER, Like(GPU), TEMPERATURE

    def ok(self) -> bool:
        return True


def install(monkeypatch: pytest.MonkeyPatch, *outcomes: Any) -> list[float]:
    """A module `jtop` whose connections give these outcomes in turn, the last for ever; returns the intervals asked for."""
    asked: list[float] = []

    class Client:
        def __init__(self, interval: float) -> None:
            asked.append(interval)

        def __enter__(self) -> Any:
            outcome = outcomes[min(len(asked), len(outcomes)) - 1]
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome() if callable(outcome) else outcome

        def __exit__(self, *_: object) -> None:
            pass

    module = ModuleType("jtop")
    module.jtop = Client  # type: ignore[attr-defined]
    module.__version__ = "7.2.2"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "jtop", module)
    monkeypatch.setattr(cross, "RETRY_S", 0.01)
    return asked


def test_differences_are_per_rail_and_clock_in_our_units() -> None:
    document = checked()
    assert document["available"]
    assert document["version"] == "7.2.2"
    assert document["rails_w"]["VDD_GPU_SOC"] == {
        "ours": 5.0,
        "jtop": 5.165,
        "difference": pytest.approx(0.165),
    }
    assert document["rails_w"]["VDD_CPU_CV"] == {"ours": None, "jtop": 1.589, "difference": None}
    assert document["gpu_mhz"] == {"ours": 612.0, "jtop": 611.0, "difference": -1.0}
    assert document["gpu_util_pct"] == {"ours": 40.0, "jtop": 42.5, "difference": 2.5}
    assert document["temps_c"]["gpu"]["difference"] == 0.5
    assert document["notes"] == []


def test_what_is_off_is_unknown_and_not_zero() -> None:
    document = checked()
    assert document["rails_w"]["VDD_OFF"]["jtop"] is None
    assert document["unknown"]["rails_w.VDD_OFF"]
    assert document["temps_c"]["cv0"]["jtop"] is None  # B57
    assert "tot" not in document["rails_w"]


def test_its_clock_in_another_unit_is_recognised_and_said() -> None:
    document = checked(gpu={"gpu": {"freq": {"cur": 612}, "status": {}}})
    assert document["gpu_mhz"]["jtop"] == pytest.approx(612)
    assert "factor of 0.001" in document["notes"][0]
    # Half the clock is no unit, but a difference to report.
    assert checked(gpu={"gpu": {"freq": {"cur": 306000}}})["gpu_mhz"]["difference"] == -306


def test_the_gpu_that_is_ours_is_compared() -> None:
    other = {"freq": {"cur": 1}, "status": {"load": 1}}
    document = checked(gpu={"nvd": other, **GPU})
    assert document["gpu_mhz"]["jtop"] == 611
    assert "nvd, gpu" in document["notes"][0]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ({"power": {}}, "power"),  # B53
        ({"power": {"rail": {"VDD_IN": {}}}}, "rails_w.VDD_IN"),  # B53
        ({"power": None}, "power"),
        ({"power": {"rail": {"VDD_IN": {"power": "n/a"}}}}, "rails_w.VDD_IN"),
        ({"gpu": {}}, "gpu"),  # B11
        (
            {"gpu": {"gpu-gpc-0": {"freq": {"cur": 314000}, "status": {}}}},
            "gpu_util_pct",
        ),  # B11: Thor has no load
        ({"gpu": {"gpu": {"status": {"load": 3}}}}, "gpu_mhz"),
        ({"gpu": [1]}, "gpu"),
        ({"temperature": {}}, "temperature"),
    ],
)
def test_b50_b53_b54_fields_that_other_versions_lack(values: dict[str, Any], key: str) -> None:
    document = checked(**values)
    assert document["available"]
    assert document["unknown"][key]
    part = document.get({"gpu": "gpu_mhz"}.get(key, key))
    assert part is None or part["jtop"] is None


def test_another_root_is_not_asked(tmp_path: Path) -> None:
    def never() -> Seen:
        raise AssertionError

    document = cross_check(Findings(Sysfs(tmp_path)), OURS, ask=never)
    assert not document["available"]
    assert "--root" in document["reason"]


# --- what the client may raise ------------------------------------------------------------------------------------------


class ForeignError(Exception):
    """As the client's own exception: a message and more."""

    def __str__(self) -> str:
        return str(self.args[0])


@pytest.mark.parametrize(
    ("error", "says", "tries"),
    [
        (FileNotFoundError(2, "No such file or directory"), "-v /run/jtop.sock:/run/jtop.sock", 1),  # B48
        (ForeignError("The jtop.service is not active. Please run:\nsudo jtop --install-service"), "systemctl start jtop", 1),
        (ForeignError("I can't access jtop.service.\nPlease logout or reboot this board."), "usermod -aG jtop", 1),
        (PermissionError(13, "Permission denied"), "--group-add", 1),
        (ForeignError("Mismatch version jtop service: [4.3] and client: [7.2]"), "same version", 1),  # B50
        (KeyError("memory"), "another version", 1),  # B50
        (ForeignError("Error connection"), "Error connection", 3),  # B51
        (ConnectionRefusedError(111, "Connection refused"), "refused", 3),  # B51
        (ForeignError("Lost connection with jtop server"), "Lost connection", 3),
        (ProcessLookupError(3, "No such process"), "No such process", 1),  # B52
        (EOFError(), "EOFError", 3),
        (SystemExit(1), "failed: 1", 1),
        (ValueError(""), "ValueError", 1),
    ],
)  # fmt: skip
def test_b48_b50_b51_b52_whatever_it_raises_is_a_reason(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, says: str, tries: int
) -> None:
    asked = install(monkeypatch, error)
    document = cross_check(MACHINE, OURS)
    assert not document["available"]
    assert says in document["reason"]
    assert "\n" not in document["reason"]
    assert document["version"] == "7.2.2"
    assert len(asked) == tries
    assert document["rails_w"] == {}
    assert document["gpu_mhz"]["jtop"] is None


def test_b51_a_service_that_comes_up_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = install(monkeypatch, ForeignError("Error connection"), Board())
    document = cross_check(MACHINE, OURS)
    assert document["available"]
    assert document["rails_w"]["VDD_GPU_SOC"]["jtop"] == 5.165
    assert document["gpu_mhz"]["jtop"] == 611
    assert asked == [1.0, 1.0]


def test_not_installed_or_broken_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jtop", None)
    assert "wattune[jetson]" in cross_check(MACHINE, OURS)["reason"]
    monkeypatch.setitem(sys.modules, "jtop", ModuleType("jtop"))
    assert "cannot be imported" in cross_check(MACHINE, OURS)["reason"]


def test_one_property_that_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Half(Board):
        @property
        def gpu(self) -> Any:  # type: ignore[override]
            raise KeyError("load")  # B11

    install(monkeypatch, Half())
    document = cross_check(MACHINE, OURS)
    assert document["rails_w"]["VDD_GPU_SOC"]["jtop"] == 5.165
    assert "load" in document["unknown"]["gpu"]


def test_hanging_up_may_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Board())

    def fails(*_: object) -> None:
        raise ForeignError("Lost connection with jtop server")

    monkeypatch.setattr(sys.modules["jtop"].jtop, "__exit__", fails)
    assert cross_check(MACHINE, OURS)["available"]


def test_a_service_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    class Hangs(Board):
        def ok(self) -> bool:
            return release.wait(30)

    install(monkeypatch, Hangs())
    start = time.monotonic()
    with pytest.raises(JtopUnavailableError, match=r"did not answer within 0\.2 s"):
        ask_jtop(timeout_s=0.2)
    assert time.monotonic() - start < 5
    release.set()


# --- any schema ---------------------------------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["rail", "VDD_IN", "power", "online", "gpu", "freq", "cur", "status", "load", "temp"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING, ANYTHING, ANYTHING)
def test_no_schema_crashes_and_no_number_is_invented(power: Any, gpu: Any, temperature: Any) -> None:
    document = checked(power=power, gpu=gpu, temperature=temperature)
    assert document["available"]
    for group in ("rails_w", "temps_c"):
        for name, pair in document[group].items():
            source = repr(power if group == "rails_w" else temperature).lower()
            assert pair["jtop"] is None or repr(name).lower() in source
            assert (pair["difference"] is None) == (pair["ours"] is None or pair["jtop"] is None)
