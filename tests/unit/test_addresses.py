"""What `wattune pull` and `--governor` take for an address, and what they say of one that is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from wattune.cli import main

SCHEMES = {
    "file:///tmp/governor.json": "Name the path alone",
    "file:/tmp/governor.json": "Name the path alone",
    "FILE:///tmp/governor.json": "Name the path alone",
    "runs:/0123/model": "pull models:/NAME@champion",
    "s3://bucket/governor.json": "Copy the file to this machine",
    "gs://bucket/governor.json": "Copy the file to this machine",
    "ftp://host/governor.json": "Copy the file to this machine",
    "mlflow-artifacts:/0/1/governor.json": "Copy the file to this machine",
}


@pytest.mark.parametrize(
    "words", [["pull"], ["choose", "--model", "bert-base", "--task", "mnli", "--governor"]]
)
@pytest.mark.parametrize("address", SCHEMES)
def test_an_address_of_another_kind_is_called_one(
    address: str,
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, address]) == 2
    said = capsys.readouterr().err
    assert f"addresses with {address.partition(':')[0]}: are not supported" in said
    assert SCHEMES[address] in said
    assert "models:/NAME@ALIAS" in said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "words", [["pull"], ["choose", "--model", "bert-base", "--task", "mnli", "--governor"]]
)
def test_an_empty_address_is_none(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And not the folder one stands in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "governor.json").write_text("{}")
    assert main([*words, ""]) == 2
    assert "The address of the governor is empty." in capsys.readouterr().err


def test_a_file_whose_name_looks_like_an_address_is_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    Path("s3:/governor.json").write_text("{")
    assert main(["pull", "s3:/governor.json"]) == 4
    assert "not complete JSON" in capsys.readouterr().err
