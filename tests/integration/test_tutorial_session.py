"""docs/tutorial.md, typed from a fresh clone to the end: sweep, pipeline, governor, board, pin, governed run (`page_sessions.py`)."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("dvc")
pytest.importorskip("mlflow")
from page_sessions import TUTORIAL, runs_the_pipeline, type_page

pytestmark = pytest.mark.long


def test_the_tutorial_can_be_typed_from_top_to_bottom(tmp_path: Path) -> None:
    assert runs_the_pipeline(TUTORIAL)
    type_page(TUTORIAL, tmp_path)
