"""Files: atomic, clear about faults."""

from __future__ import annotations

import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from wattune.core.errors import BoardError, InputError
from wattune.core.governor import canonical_json
from wattune.io import read_json, write_json, write_text


def test_canonical_json_is_stable_and_refuses_nan() -> None:
    assert canonical_json({"b": 1, "a": [1.5]}) == '{\n "a": [\n  1.5\n ],\n "b": 1\n}\n'
    with pytest.raises(ValueError, match="not JSON compliant"):
        canonical_json({"x": float("nan")})


def test_failed_write_keeps_the_old_file_and_leaves_nothing(tmp_path: Path) -> None:
    """A file size limit stands for a full disk: the kernel refuses in the middle of the write."""
    target = tmp_path / "cell.json"
    write_text(target, "old")
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_text(target, "x" * 10_000)
        except BoardError as error:
            os._exit(error.exit_code if "size limit" in str(error) else 99)
        os._exit(98)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["cell.json"]


def test_a_file_where_a_folder_is_needed(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(BoardError, match="a file stands where a folder is needed"):
        write_json(tmp_path / "data" / "x.json", {})


def test_reading_what_is_not_there_or_not_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist"):
        read_json(tmp_path / "no.json", "The file")
    (tmp_path / "half.json").write_text('{"a": ')
    with pytest.raises(InputError, match="not complete JSON"):
        read_json(tmp_path / "half.json", "The file")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        read_json(tmp_path / "binary", "The file")


def test_what_is_no_regular_file_is_written_into_and_never_replaced(tmp_path: Path) -> None:
    """Devices and pipes are somebody's: a rename over them would take them away for everybody."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_text(pipe, "hello\n")
        assert os.read(reader, 100) == b"hello\n"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(BoardError, match="disk is full"):
        write_text(full, "x")
    assert Path("/dev/full").is_char_device()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "pipe"]
