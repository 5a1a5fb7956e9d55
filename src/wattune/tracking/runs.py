"""The receipt of a governed run, logged to MLflow as a run of its own."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any

from wattune.core.errors import BoardError
from wattune.tracking.store import check_server, connected, require, sqlite_file, tracking_uri

EXPERIMENT = "wattune run"
_PARAMS = (
    "board",
    "power_mode",
    "provenance",
    "setting",
    "by",
    "objective",
    "governor",
    "certificate",
    "measured_against",
)
_METRICS = (
    "duration_s", "steps", "gpu_mhz_mean", "gpu_util_pct", "expected_saving_pct", "expected_slowdown_pct",
    "measured_saving_pct", "measured_slowdown_pct", "exit_code",
)  # fmt: skip


def ready() -> Callable[[dict[str, Any]], str]:
    """See that a receipt can be logged, before the run it will be about.

    Returns:
        What logs a receipt and says where.

    Raises:
        BoardError: MLflow is missing, or the server does not answer.
        InputError: the store's address is none.
    """
    store = tracking_uri()
    db = sqlite_file(store)
    require("mlflow", extra="pull")
    if db is None:
        check_server(store, "Start it, correct MLFLOW_TRACKING_URI, or leave --mlflow out.")
    else:
        require("sqlalchemy", "alembic", extra="pull")
    return lambda receipt: log_receipt(store, receipt)


def metrics_of(receipt: dict[str, Any]) -> dict[str, float]:
    """The numbers of a receipt that are known."""
    found = {name: receipt[name] for name in _METRICS}
    for group in ("energy_j", "mean_power_w", "energy_j_per_step"):
        found |= {f"{group}.{name}": value for name, value in receipt[group].items()}
    return {name: float(value) for name, value in found.items() if value is not None}


def log_receipt(store: str, receipt: dict[str, Any]) -> str:
    """Log a receipt; returns a sentence that says where.

    Raises:
        BoardError: the store does not take it.
    """
    with connected(store) as address:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        for noisy in ("mlflow", "alembic"):
            logging.getLogger(noisy).setLevel(logging.ERROR)
        try:
            client = MlflowClient(tracking_uri=address)
            experiment = client.get_experiment_by_name(EXPERIMENT)
            number = client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
            name = " ".join(receipt["command"] or ["run"])[:80]
            run = client.create_run(
                number, run_name=name, tags={"provenance": receipt["provenance"] or "unknown"}
            )
            for key in _PARAMS:
                client.log_param(run.info.run_id, key, str(receipt[key])[:500])
            for key, value in metrics_of(receipt).items():
                client.log_metric(run.info.run_id, key, value)
            client.set_tag(run.info.run_id, "receipt", json.dumps({**receipt, "certificates": None})[:5000])
            client.log_dict(run.info.run_id, receipt, "receipt.json")
            failed = receipt["exit_code"] not in (0, None)
            client.set_terminated(run.info.run_id, status="FAILED" if failed else "FINISHED")
        except (MlflowException, OSError) as error:
            text = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise BoardError(f"{store} did not take it: {text.rstrip('.')}.") from error
    return f"Logged to {store}, experiment '{EXPERIMENT}', run {run.info.run_id}."
