"""Tracking: MLflow and the model card; the only room that knows MLflow.

Telemetry is off before anything here can import mlflow.
"""

from __future__ import annotations

import os

for _name in ("MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"):
    os.environ.setdefault(_name, "true")
os.environ.setdefault("GIT_PYTHON_REFRESH", "quiet")
os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
