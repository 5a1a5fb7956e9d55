"""The registered model's code: MLflow stores this file and runs it when the model is loaded; nothing is pickled."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from wattune.core.governor import Governor, parse_governor
from wattune.core.settings import setting_label


class GovernorModel(PythonModel):
    """A governor as an MLflow model: one row of features in, one decision out."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read and check ``governor.json``."""
        self._governor = parse_governor(Path(context.artifacts["governor"]).read_bytes())

    def predict(self, context: PythonModelContext, model_input: pd.DataFrame) -> pd.DataFrame:
        """Decide for every row; a feature that is missing or blank is assumed as in `wattune choose`."""
        return pd.DataFrame([_decide(self._governor, row) for row in model_input.to_dict("records")])


def _decide(governor: Governor, row: Mapping[Any, Any]) -> dict[str, object]:
    given = {name: value for name, value in row.items() if isinstance(value, str) or pd.notna(value)}
    decision = governor.decide(given)
    pinned = None if isinstance(decision.setting, str) else decision.setting
    return {
        "setting": setting_label(decision.setting),
        "gpu_mhz": float("nan") if pinned is None else pinned,
        "expected_saving_pct": decision.expected_saving_pct,
        "expected_slowdown_pct": decision.expected_slowdown_pct,
        "rule": decision.rule,
        "in_range": decision.in_range,
    }


set_model(GovernorModel())
