"""Stage `evaluate`: judge every policy on workloads it has not seen; write tables, metrics and figures."""

from __future__ import annotations

import sys
from pathlib import Path

from wattune.config import Config, load_params
from wattune.core.errors import IntegrityError
from wattune.core.governor import Governor, parse_governor
from wattune.io import read_text, write_json, write_text
from wattune.learning.judge import (
    CONFUSION_COLUMNS,
    CURVE_COLUMNS,
    POLICY_COLUMNS,
    confusion_rows,
    curve_rows,
    judge,
    policy_rows,
    summarise,
)
from wattune.learning.table import load_features
from wattune.stages._main import run
from wattune.stages._tables import csv_text
from wattune.stages.figures import write_figures
from wattune.stages.train import (
    FEATURES,
    GOVERNOR,
    LABEL_GOVERNOR,
    REGRET_GOVERNOR,
    regret_space,
    search_space,
)

REPORTS = Path("reports/evaluate")


def read_governor(path: Path) -> Governor:
    """Read and check the trained governor.

    Raises:
        InputError: it is missing.
        IntegrityError: it is damaged.
    """
    return parse_governor(read_text(path, "The governor", "Run `dvc repro train`."))


def evaluate(config: Config, root: Path) -> None:
    """Run the stage under a repository root."""
    conf, reports = config.evaluate, root / REPORTS
    labels, regret = read_governor(root / LABEL_GOVERNOR), read_governor(root / REGRET_GOVERNOR)
    ships = read_governor(root / GOVERNOR)
    if ships.digest not in (labels.digest, regret.digest):
        raise IntegrityError(
            f"{GOVERNOR} is neither {LABEL_GOVERNOR} nor {REGRET_GOVERNOR}.",
            "The champion of the two was expected.",
            "Run `dvc repro train`.",
        )
    judgement = judge(
        load_features(root / FEATURES),
        labels,
        search_space(config.train),
        published_util=conf.published_util,
        regret=(regret, regret_space(config.train)),
        ships=ships.policy,
        curve=config.train.features,
        probe=True,
    )
    metrics = summarise(judgement, resamples=conf.bootstrap_resamples, seed=conf.bootstrap_seed)
    write_text(reports / "policies.csv", csv_text(POLICY_COLUMNS, policy_rows(judgement)))
    write_text(reports / "curves.csv", csv_text(CURVE_COLUMNS, curve_rows(judgement)))
    write_text(reports / "confusion.csv", csv_text(CONFUSION_COLUMNS, confusion_rows(judgement)))
    write_json(reports / "metrics.json", metrics)
    write_figures(reports / "figures", judgement, metrics)


def main() -> None:
    """Run the stage in the current folder."""
    evaluate(load_params(), Path())


if __name__ == "__main__":
    sys.exit(run(main))
