"""The clock daemon's requests, answers, socket and client, without a board behind them."""

from __future__ import annotations

import contextlib
import errno
import grp
import json
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattune.boards.jetson.findings import GpuNode
from wattune.boards.jetson.sysfs import Sysfs
from wattune.core.errors import BoardError, InputError, IntegrityError, WattuneError
from wattune.governing import client, clockd
from wattune.governing.client import ClockdLease, find_daemon, open_lease, socket_places
from wattune.governing.lease import Lease

TABLE = (306_000_000, 612_000_000, 1_300_500_000)
NODE = "sys/devices/gpu/devfreq/17000000.gpu"
PACKAGING = Path(__file__).parents[2] / "packaging"


@pytest.fixture
def tree(tmp_path: Path) -> Sysfs:
    """A node in plain files, which take what is written."""
    folder = tmp_path / NODE
    folder.mkdir(parents=True)
    for name, hz in (("min_freq", TABLE[0]), ("max_freq", TABLE[-1])):
        (folder / name).write_text(f"{hz}\n")
    return Sysfs(tmp_path)


def node(read_only: str = "") -> GpuNode:
    return GpuNode(NODE, None, TABLE, TABLE[0], TABLE[-1], None, "nvhost_podgov", read_only)


# --- requests


@pytest.mark.parametrize(
    "request_",
    [{"do": "pin", "hz": 612_000_000}, {"do": "restore"}, {"do": "status"}],
)
def test_the_three_requests_are_taken(request_: dict[str, Any]) -> None:
    assert clockd.parse_request(json.dumps(request_).encode()) == request_


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.binary(max_size=200)
    | st.dictionaries(
        st.sampled_from(["do", "hz", "path"]), values | st.sampled_from(["pin", "restore", "status"])
    ).map(lambda document: json.dumps(document).encode())
)
def test_any_other_line_is_refused_and_what_is_taken_holds_a_word_and_a_number(line: bytes) -> None:
    try:
        request = clockd.parse_request(line)
    except InputError:
        return
    assert request["do"] in ("pin", "restore", "status")
    assert set(request) == ({"do", "hz"} if request["do"] == "pin" else {"do"})
    if request["do"] == "pin":
        assert type(request["hz"]) is int
        assert 0 < request["hz"] < 1 << 40


@pytest.mark.parametrize("line", [b"[" * 100_000, b"1" * 100_000, b'{"do":' * 20_000])
def test_deep_and_huge_json_is_refused(line: bytes) -> None:
    with pytest.raises(
        InputError, match=r"was refused.* One line was expected.* docs/permissions"
    ) as refused:
        clockd.parse_request(line)
    assert len(str(refused.value)) < 400  # it does not repeat the input


# --- the socket


def test_the_socket_is_never_open_to_others_and_goes_away(tmp_path: Path) -> None:
    path = tmp_path / "run/clockd.sock"
    group = grp.getgrgid(os.getegid()).gr_name
    with clockd.listening(path, group):
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(BoardError, match="Another clock daemon"), clockd.listening(path, group):
            pass
        assert path.is_socket()
    assert not path.exists()
    with clockd.listening(path, "no-such-group"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_path_too_long_for_an_address_works_on_both_sides(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 120) / "clockd.sock"
    with clockd.listening(path, "no-such-group") as listener:
        client._connected(path).close()
        listener.accept()[0].close()
    assert not path.exists()


@pytest.mark.parametrize(("code", "words"), [(errno.ENOSPC, "no space left"), (errno.EACCES, "permission")])
def test_a_socket_that_cannot_be_made_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(BoardError, match=words), clockd.listening(tmp_path / "a/clockd.sock", "x"):
        pass


@pytest.mark.parametrize(("pid", "count"), [("1", "1"), ("", ""), ("x", "1")])
def test_what_systemd_handed_to_somebody_else_is_not_ours(
    monkeypatch: pytest.MonkeyPatch, pid: str, count: str
) -> None:
    monkeypatch.setenv("LISTEN_PID", pid)
    monkeypatch.setenv("LISTEN_FDS", count)
    assert clockd.listener_of_systemd() is None
    assert "LISTEN_FDS" not in os.environ  # nor our children's


@pytest.mark.parametrize("count", ["0", "2", "x"])
def test_a_wrong_number_of_sockets_is_refused(monkeypatch: pytest.MonkeyPatch, count: str) -> None:
    monkeypatch.setenv("LISTEN_PID", str(os.getpid()))
    monkeypatch.setenv("LISTEN_FDS", count)
    with pytest.raises(BoardError, match="cannot be listened at"):
        clockd.listener_of_systemd()


# --- which way


def test_the_daemon_of_the_machine_is_looked_for_in_a_place_of_roots_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.delenv("WATTUNE_CLOCKD", raising=False)
    assert socket_places(Sysfs()) == [Path("/run/wattune/clockd.sock")]
    assert socket_places(Sysfs(tmp_path))[0] == tmp_path / "run/wattune/clockd.sock"
    monkeypatch.setenv("WATTUNE_CLOCKD", "/elsewhere/sock")
    assert socket_places(Sysfs(tmp_path)) == [Path("/elsewhere/sock")]


@pytest.mark.parametrize(
    ("code", "words", "hint"),
    [
        (errno.EACCES, "may not be written by you", "sudo wattune clockd"),
        (errno.EROFS, "read-only file system", "-v /run/wattune:/run/wattune"),
    ],
)
def test_without_permission_the_daemon_is_taken_and_without_it_both_ways_are_named(
    tree: Sysfs, monkeypatch: pytest.MonkeyPatch, code: int, words: str, hint: str
) -> None:
    error = OSError(code, os.strerror(code), "/sys/x/min_freq")
    assert type(open_lease(tree, node(), 612)) is Lease
    monkeypatch.setattr(client, "why_not_writable", lambda *_: error)
    assert type(open_lease(tree, node("it is a Thor"), 612)) is Lease  # it says so when it is entered
    with pytest.raises(BoardError) as refused:
        open_lease(tree, node(), 612)
    assert words in refused.value.what
    assert hint in refused.value.hint
    with clockd.listening(tree.root / "run/wattune/clockd.sock", "x"):
        lease = open_lease(tree, node(), 612)
        assert isinstance(lease, ClockdLease)
        assert find_daemon(tree) == lease.path
    assert find_daemon(tree) is None


def test_a_node_that_is_gone_is_the_direct_leases_to_tell(tree: Sysfs) -> None:
    (tree.root / NODE / "min_freq").unlink()
    assert type(open_lease(tree, node(), 612)) is Lease


# --- a client and daemons that answer anything


@contextlib.contextmanager
def answering(tree: Sysfs, answer: Callable[[dict[str, Any]], bytes | None]) -> Iterator[ClockdLease]:
    """A lease whose daemon gives these answers; None hangs up."""
    path = tree.root / "run/wattune/clockd.sock"
    with clockd.listening(path, "x") as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, connection.makefile("rb") as lines, contextlib.suppress(OSError):
                for line in lines:
                    said = answer(json.loads(line))
                    if said is None:
                        return
                    connection.sendall(said)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield ClockdLease(tree, node(), 612, path=path)
        thread.join(5)


def good(request: dict[str, Any]) -> dict[str, Any]:
    if request["do"] == "pin":
        return {
            "ok": True, "hz": request["hz"], "node": NODE, "found_hz": [TABLE[0], TABLE[-1]],
            "state_file": "/x", "cooling": [], "notes": ["a note"],
        }  # fmt: skip
    return {"ok": True, "outcome": "restored", "text": "as before", "bounds_hz": [1, 2], "capped": False}


def line(document: object) -> bytes:
    return json.dumps(document).encode() + b"\n"


@pytest.mark.parametrize(
    "said",
    [
        None, b"", b"\n", b"no\n", b"[]\n", b"null\n", b"{}\n", b'{"ok": true}\n', b'{"ok": false}\n', b"[" * 90_000 + b"\n",
        b'{"ok": false, "exit_code": 9, "what": "x"}\n', b"\xff\n", b"x" * 200_000,
        line({**good({"do": "pin", "hz": 1}), "found_hz": "no"}), line({**good({"do": "pin", "hz": 1}), "node": "sys/other"}),
    ],
)  # fmt: skip
def test_a_daemon_that_answers_nonsense_is_a_clear_error(
    tree: Sysfs, monkeypatch: pytest.MonkeyPatch, said: bytes | None
) -> None:
    monkeypatch.setattr(client, "ANSWER_S", 0.5)
    with answering(tree, lambda _: said) as lease:
        with pytest.raises(BoardError) as refused:
            lease.__enter__()
        assert refused.value.what
        assert refused.value.hint
        assert lease._connection is None
        assert lease.ended


@pytest.mark.parametrize("kind", [InputError, BoardError, IntegrityError])
def test_a_refusal_is_raised_as_the_daemon_met_it(tree: Sysfs, kind: type[WattuneError]) -> None:
    refused = clockd._refused(kind("What.", "Expected.", "Hint."))
    with answering(tree, lambda _: line(refused)) as lease:
        with pytest.raises(kind) as error:
            lease.__enter__()
        assert (error.value.what, error.value.expected, error.value.hint) == ("What.", "Expected.", "Hint.")


def test_what_the_daemon_says_is_in_the_receipt(tree: Sysfs) -> None:
    with answering(tree, lambda request: line(good(request))) as lease:
        with lease:
            pass
        receipt = lease.receipt()
    assert receipt["found"] == {"min_mhz": 306.0, "max_mhz": 1300.5}
    assert (receipt["restored"], receipt["outcome_text"]) == (True, "as before")
    assert "a note" in [event["text"] for event in receipt["events"]]


def test_a_forked_child_hangs_up_and_its_parent_holds_on(tree: Sysfs) -> None:
    with answering(tree, lambda request: line(good(request))) as lease, lease:
        child = os.fork()
        if child == 0:
            os._exit(0 if lease._connection is None and lease.ended and not lease.check() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert lease._connection is not None
        assert not lease._hung_up()


def test_bounds_that_do_not_come_back_after_the_daemon_ended_are_an_error(
    tree: Sysfs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "WATCHDOG_S", 0.2)
    (tree.root / NODE / "max_freq").write_text("612000000\n")
    with answering(tree, lambda request: line(good(request)) if request["do"] == "pin" else None) as lease:
        with pytest.raises(BoardError) as error, lease:
            pass
        assert "The clock daemon has ended, and the bounds read 306 to 612 MHz" in error.value.what
        assert f"echo {TABLE[-1]} | sudo tee" in error.value.hint


def test_a_clock_of_no_table_is_refused_before_anybody_is_asked(tree: Sysfs) -> None:
    with pytest.raises(InputError, match="612"):
        ClockdLease(tree, node(), 700, path=tree.root / "none").__enter__()
    with pytest.raises(BoardError, match="does not listen"):
        ClockdLease(tree, node(), 612, path=tree.root / "none").__enter__()


# --- what is delivered


def test_the_unit_can_write_where_it_must_and_runs_only_what_is_roots() -> None:
    unit = (PACKAGING / "wattune-clockd.service").read_text()
    settings_ = [text for text in unit.splitlines() if text and not text.startswith(("#", "["))]
    assert "ProtectKernelTunables=yes" not in settings_  # /sys would be read-only
    assert not any(text.startswith(("PrivatePIDs", "ProtectProc", "RuntimeDirectory")) for text in settings_)
    assert "KillMode=control-group" in settings_  # `mixed` kills the watchdog at once
    assert "ReadWritePaths=/run/wattune" in settings_
    assert [text.split("=", 1)[1].split()[0] for text in settings_ if text.startswith("Exec")] == [
        "/opt/wattune/bin/wattune"
    ] * 2
    listens = (PACKAGING / "wattune-clockd.socket").read_text()
    assert f"ListenStream={socket_places(Sysfs())[0]}" in listens
    assert "SocketMode=0660" in listens
    assert f"SocketGroup={client.GROUP}" in listens


def test_sudo_gets_no_wildcard() -> None:
    rules = (PACKAGING / "wattune.sudoers").read_text()
    code = "\n".join(text for text in rules.splitlines() if not text.startswith("#"))
    assert not any(c in code for c in "*?[^")


def test_the_udev_rule_opens_two_files_of_gpu_nodes_only() -> None:
    (rule,) = (
        text for text in (PACKAGING / "60-wattune.rules").read_text().splitlines() if not text.startswith("#")
    )
    patterns = rule.split('KERNEL=="')[1].split('"')[0].split("|")
    matched = {
        name: any(fnmatch(name, pattern) for pattern in patterns)
        for name in (
            "17000000.gpu", "17000000.ga10b", "17000000.gv11b", "17000000.gp10b", "57000000.gpu",
            "gpu-gpc-0", "gpu-nvd-0", "bwmgr", "8188050000.vic", "15340000.vic",
        )
    }  # fmt: skip
    assert [name for name, yes in matched.items() if yes] == list(matched)[:5]
    files = {word.strip('",') for word in rule.split() if word.startswith("/sys%p/")}
    assert files == {"/sys%p/min_freq", "/sys%p/max_freq"}


def test_importing_the_daemon_needs_the_standard_library_only() -> None:
    code = (
        "import sys; import wattune.governing.clockd as c; import argparse; c.add_arguments(argparse.ArgumentParser());"
        "print({m.partition('.')[0] for m in sys.modules} - set(sys.stdlib_module_names) - {'__main__', 'wattune'})"
    )
    source = str(Path(client.__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "set()"


def test_a_client_names_itself_only_in_plain_characters(tmp_path: Path) -> None:
    here, there = socket.socketpair(socket.AF_UNIX)
    before = Path("/proc/self/comm").read_text()
    Path("/proc/self/comm").write_text("a\x1b[31m\nb\xff")
    try:
        peer = clockd._Peer(here)
    finally:
        Path("/proc/self/comm").write_text(before)
        there.close()
        here.close()
    assert peer.name.isprintable()
    assert peer.name.isascii()
    assert f"(process {os.getpid()})" in peer.name
