"""A receipt in MLflow: known numbers become metrics, unknown ones are left out, the whole receipt is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("mlflow")
pytest.importorskip("flask")

from trees import emulated_machine
from wattune.benches.meter import findings_of
from wattune.core.errors import BoardError
from wattune.running.account import Totals
from wattune.running.choosing import Choice
from wattune.running.receipt import build_receipt
from wattune.running.session import Session
from wattune.tracking import runs
from wattune.tracking.store import connected

pytestmark = pytest.mark.server


def test_a_receipt_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    session = Session(findings_of(*emulated_machine()))
    totals = Totals(
        20.0, {"gpu_cpu": 300.0, "module": None}, {"gpu_cpu": 3.0, "module": None}, {"module": "a gap"}
    )
    receipt = build_receipt(
        session, totals, Choice(612.0, "mhz"), command=["python", "train.py"], exit_code=0
    )
    said = runs.ready()(receipt)
    assert store in said
    with connected(store) as address:
        from mlflow import MlflowClient

        client = MlflowClient(tracking_uri=address)
        experiment = client.get_experiment_by_name(runs.EXPERIMENT)
        assert experiment is not None
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.data.metrics["energy_j.gpu_cpu"] == 300.0
        assert run.data.metrics["mean_power_w.gpu_cpu"] == 15.0
        assert "energy_j.module" not in run.data.metrics
        assert run.info.run_name == "python train.py"
        folder = client.download_artifacts(run.info.run_id, "receipt.json", str(tmp_path))
    assert json.loads(Path(folder).read_text())["energy_j"] == receipt["energy_j"]


def test_a_server_that_is_down_is_said_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(BoardError, match="does not answer"):
        runs.ready()
