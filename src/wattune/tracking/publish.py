"""Publishing: the pipeline's files projected onto MLflow runs and the model registry.

Runs are found by the fingerprint of their stage's ``dvc.lock`` entry and created only where missing, so publishing
again adds nothing, results restored from DVC's cache are found again, and a wiped database is rebuilt from files.
"""

from __future__ import annotations

import logging
import math
import re
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattune.core.errors import BoardError, InputError, WattuneError
from wattune.io import file_sha256
from wattune.tracking import pages
from wattune.tracking.pages import NOTE_TAG, run_metrics, run_name, story
from wattune.tracking.receipts import Receipt, git_tags, lock_md5, read_lock, receipt
from wattune.tracking.results import (
    DECISION,
    FEATURES,
    FIGURES,
    GOVERNOR,
    LOOCV,
    METRICS,
    MODEL_CARD,
    POLICIES,
    REPORT,
    TRAIN_METRICS,
    Results,
    policy_place,
    read_csv_rows,
    read_results,
)
from wattune.tracking.store import connected, require, tracking_uri

log = logging.getLogger(__name__)

SCHEMA_VERSION = 1
READING_ORDER = ("policies", "savings", "regret", "curves", "confusion")
REQUIREMENTS = ["mlflow>=3.10,<4", "pandas>=2.2"]
FINGERPRINT_TAG = "dvc.stage_fingerprint"
LAYOUT_TAG = "wattune.layout"
LAYOUT = "2"
"""Names and artifacts of runs. Runs of another layout are left alone, and new ones made beside them."""
REASON_TAG = "champion.reason"
LATER = "The files stay; publish later with `wattune publish`."


def model_name(board: str, provenance: str) -> str:
    """Name of the registered model: ``wattune-<board>-<provenance>``."""
    return f"wattune-{re.sub(r'[^A-Za-z0-9_.-]+', '-', board).strip('-.') or 'board'}-{provenance}"


@dataclass(frozen=True, slots=True)
class Standing:
    """What the comparison of two governors needs, as it is kept in the tags of a model version.

    Attributes:
        version: number of the model version.
        held_out_digest: digest of what it was judged on.
        mean_regret_pct: over all judged workloads.
        mean_saving_pct: likewise; None without a MAXN baseline.
    """

    version: str
    held_out_digest: str
    mean_regret_pct: float
    mean_saving_pct: float | None

    @classmethod
    def from_tags(cls, version: str, tags: Mapping[str, str]) -> Standing:
        """Read it back from tags; what is missing is as bad as can be, so that it blocks nobody."""
        saving = tags.get("mean_saving_pct", "")
        return cls(
            version=version,
            held_out_digest=tags.get("held_out_digest", ""),
            mean_regret_pct=float(tags.get("mean_regret_pct", "inf")),
            mean_saving_pct=float(saving) if saving else None,
        )


def crown(candidate: Standing, present: Standing | None, refusal: str | None) -> tuple[bool, str]:
    """Whether the candidate becomes champion, and why.

    Args:
        candidate: the version just published.
        present: the present champion, if there is one.
        refusal: why it cannot be champion whatever its figures; None where it can.
    """
    if present is not None and present.version == candidate.version and refusal is None:
        return True, f"version {candidate.version} is the champion already"
    if refusal is not None:
        return False, refusal
    if present is None:
        return True, "the gate said yes and there was no champion"
    if present.held_out_digest != candidate.held_out_digest:
        return True, (
            f"the gate said yes; champion version {present.version} was judged on other workloads, is not comparable "
            "and was replaced"
        )
    ours = (candidate.mean_regret_pct, -_or_least(candidate.mean_saving_pct))
    theirs = (present.mean_regret_pct, -_or_least(present.mean_saving_pct))
    figures = f"mean regret {present.mean_regret_pct:.3f} % against {candidate.mean_regret_pct:.3f} %"
    if theirs < ours:
        return False, f"champion version {present.version} is better on the same workloads ({figures})"
    return True, f"the gate said yes and champion version {present.version} is not better ({figures})"


def _or_least(value: float | None) -> float:
    return -math.inf if value is None else value


def refusal_reason(results: Results, name: str) -> str | None:
    """Why the governor cannot be champion; None where nothing speaks against it."""
    decision = results.decision
    if results.governor.provenance == "simulated" and "simulated" not in name:
        return "a simulated governor cannot be champion of a model whose name does not say so"
    if decision["promote"]:
        return None
    failed = [f"{rule['rule']}: {rule['reason']}" for rule in decision["rules"] if rule["passed"] is False]
    why = f" ({'; '.join(failed)})" if failed else ""
    return f"not promoted: the gate's verdict is '{decision['verdict']}', in mode {decision['mode']}{why}"


def reading_order(figures: list[Path]) -> list[Path]:
    """Figures in the order a reader wants them: policies, savings, curves, confusion, then the rest by name."""

    def place(path: Path) -> tuple[int, str]:
        hits = [index for index, word in enumerate(READING_ORDER) if word in path.stem]
        return (min(hits, default=len(READING_ORDER)), path.as_posix())

    return sorted(figures, key=place)


def numbered(figures: list[Path]) -> dict[str, Path]:
    """Names that any list shows in this order: ``01-policies.png``, ``02-savings.png``."""
    return {f"{index:02d}-{figure.name}": figure for index, figure in enumerate(figures, start=1)}


class _Publisher:
    """One publication: a client of a reachable store, and what is to be projected onto it."""

    def __init__(self, address: str, root: Path, results: Results, params: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.ERROR)  # importing it has set another level
        self.client = MlflowClient(tracking_uri=address, registry_uri=address)
        self.root, self.results = root, results
        governor = results.governor
        self.experiment = f"wattune/{governor.board}/{governor.provenance}"
        self.model = model_name(governor.board, governor.provenance)
        self.stages = read_lock(root)
        self.evaluate = receipt(root, self.stages, "evaluate", [METRICS, POLICIES], params)
        self.train = receipt(root, self.stages, "train", [GOVERNOR, TRAIN_METRICS, LOOCV], params)
        self.data_digest = lock_md5(self.stages, "features", FEATURES) or file_sha256(root / FEATURES)[:32]
        self.git = git_tags(root)
        for item in (self.evaluate, self.train):
            if item.source == "files":
                log.warning(
                    "No entry of dvc.lock fits the files of stage '%s': its runs are known by the files' bytes.",
                    item.stage,
                )
        self.figures = numbered(reading_order(list((root / FIGURES).rglob("*.png"))))
        self.experiment_id = self._find_or_create_experiment()

    # --- runs -------------------------------------------------------------------------------------------------------

    def _find_or_create_experiment(self) -> str:
        experiment = self.client.get_experiment_by_name(self.experiment)
        if experiment is None:
            experiment_id = self.client.create_experiment(self.experiment)
            experiment = self.client.get_experiment(experiment_id)
        elif experiment.lifecycle_stage == "deleted":
            self.client.restore_experiment(experiment.experiment_id)
        location = str(experiment.artifact_location)
        if location.startswith(("/", "file:", "./")):
            raise BoardError(
                f"Experiment '{self.experiment}' keeps its artifacts in {location}, a folder of one machine.",
                "A location behind the server (mlflow-artifacts:) was expected, so that other machines can pull.",
                "Start the server with --serve-artifacts and --artifacts-destination, and rename that experiment.",
            )
        return str(experiment.experiment_id)

    def _tags(self, item: Receipt) -> dict[str, str]:
        meta, governor = self.results.meta, self.results.governor
        return {
            "board": governor.board,
            "provenance": governor.provenance,
            "power_mode": governor.power_mode,
            "rails": str(meta["rails"]),
            "objective": governor.objective,
            "held_out_digest": str(meta["held_out_digest"]),
            "data_digest": self.data_digest,
            "governor.digest": governor.digest,
            "dvc.stage": item.stage,
            FINGERPRINT_TAG: item.fingerprint,
            f"{FINGERPRINT_TAG}.source": item.source,
            LAYOUT_TAG: LAYOUT,
            "mlflow.source.name": f"python -m wattune.stages.{item.stage}",
            "mlflow.source.type": "LOCAL",
            **self.git,
        }

    def _query(self, item: Receipt, **tags: str) -> str:
        wanted = {FINGERPRINT_TAG: item.fingerprint, LAYOUT_TAG: LAYOUT} | tags
        return " and ".join(f"tags.`{name}` = '{value}'" for name, value in wanted.items())

    def _find_run(self, item: Receipt, **tags: str) -> str | None:
        query = f"{self._query(item, **tags)} and attributes.status = 'FINISHED'"
        found = self.client.search_runs([self.experiment_id], query, max_results=1)
        if not found:
            return None
        run = found[0]
        if self._now_committed(item, run.data.tags):
            for name, value in self.git.items():
                self.client.set_tag(run.info.run_id, name, value)
        return str(run.info.run_id)

    def _now_committed(self, item: Receipt, tags: Mapping[str, str]) -> bool:
        """During `dvc repro` the tree is dirty, for dvc.lock has just changed; once it is committed, that can be said."""
        return (
            item.source == "dvc.lock"
            and self.git["git.dirty"] == "false"
            and tags.get("git.dirty") != "false"
        )

    def _log_batch(self, run_id: str, metrics: Mapping[str, float], params: Mapping[str, str]) -> None:
        from mlflow.entities import Metric, Param

        now_ms = int(time.time() * 1000)
        self.client.log_batch(
            run_id,
            metrics=[Metric(name, value, now_ms, 0) for name, value in metrics.items()],
            params=[Param(name, value) for name, value in params.items()][:100],
        )

    def _dataset(self, context: str) -> Any:
        import pandas as pd
        from mlflow.data import from_pandas
        from mlflow.entities import Dataset, DatasetInput, InputTag

        frame = pd.read_csv(self.root / FEATURES)
        # Whole numbers become floats: a column of them may be blank in another table.
        frame = frame.astype(dict.fromkeys(frame.select_dtypes("integer").columns, "float64"))
        with warnings.catch_warnings():  # it weighs two kinds of sources and says so
            warnings.simplefilter("ignore")
            facts = from_pandas(
                frame, source=FEATURES.as_posix(), name="features", digest=self.data_digest
            ).to_dict()
        fields = {
            name: facts[name] for name in ("name", "digest", "source_type", "source", "schema", "profile")
        }
        return DatasetInput(Dataset(**fields), [InputTag("mlflow.data.context", context)])

    def _policy_run(self, policy: str) -> str:
        import pandas as pd

        item = self.evaluate
        found = self._find_run(item, policy=policy)
        if found is not None:
            return found
        tags = self._tags(item) | {"policy": policy}
        color = pages.run_color(policy)
        if color is not None:
            tags[pages.COLOR_TAG] = color
        run = self.client.create_run(self.experiment_id, tags=tags, run_name=run_name(policy))
        run_id = str(run.info.run_id)
        self._log_batch(
            run_id, run_metrics(self.results.metrics[policy]), {"policy": run_name(policy)} | item.params
        )
        self.client.log_inputs(run_id, [self._dataset("evaluation")])
        rows = pd.DataFrame(pages.table_rows(self.results.rows, policy))
        self.client.log_table(run_id, rows, pages.TABLE_FILE)
        shown = self.figures if policy == self.results.policy else dict(list(self.figures.items())[:1])
        with tempfile.TemporaryDirectory() as folder:
            for name, path in shown.items():
                (Path(folder) / name).write_bytes(path.read_bytes())
            self.client.log_artifacts(run_id, folder, "figures")
        if policy == self.results.policy:
            for path in (METRICS, POLICIES):
                self.client.log_artifact(run_id, str(self.root / path))
        figure = self._first_figure()
        link = None if figure is None else pages.artifact_link(self.experiment_id, run_id, figure)
        self.client.set_tag(run_id, NOTE_TAG, story(self.results, policy, link))
        self.client.set_terminated(run_id)
        return run_id

    def _picture(self, run_id: str) -> str | None:
        figure = self._first_figure()
        return (
            None
            if figure is None
            else pages.picture(run_id, figure, "Savings, regret and slowdown of every policy")
        )

    def _first_figure(self) -> str | None:
        return next((f"figures/{name}" for name in self.figures), None)

    def _search_run(self) -> str:
        item = self.train
        found = self._find_run(item, role="search")
        if found is not None:
            return found
        candidates = read_csv_rows(self.root / LOOCV, "The table of candidates")
        train = self.results.train
        note = (
            f"Leave-one-out search over {len(candidates)} trees on {train['n_training']} training workloads;"
            f" {self.results.policy} ships."
        )
        tags = self._tags(item) | {"role": "search", NOTE_TAG: note}
        run = self.client.create_run(self.experiment_id, tags=tags, run_name="leave-one-out search")
        run_id = str(run.info.run_id)
        figures = {name: float(train[name]) for name in pages.SEARCH_HEADLINES if train[name] is not None}
        self._log_batch(run_id, figures, item.params)
        self.client.log_inputs(run_id, [self._dataset("training")])
        for row in candidates:
            hyper = {name: row[name] for name in pages.HYPER_PARAMETERS if row.get(name)}
            tags = self._tags(item) | {
                "role": "candidate",
                "chosen": row["chosen"],
                "ships": row.get("ships", ""),
                "mlflow.parentRunId": run_id,
            }
            child = self.client.create_run(
                self.experiment_id, tags=tags, run_name=f"tree {int(row['candidate']):02d}"
            )
            child_id = str(child.info.run_id)
            scores = {name: float(row[name]) for name in pages.SEARCH_HEADLINES if row[name]}
            self._log_batch(child_id, scores, hyper)
            self.client.set_terminated(child_id)
        self.client.log_artifact(run_id, str(self.root / LOOCV))
        self.client.log_text(run_id, self.results.governor.tree.text() + "\n", "tree.txt")
        self.client.set_terminated(run_id)
        return run_id

    def runs(self) -> tuple[dict[str, str], str]:
        """Find or create the runs: one per policy, and the search."""
        # MLflow lists the newest run first: the search goes in first, the baseline last.
        search = self._search_run()
        runs = {policy: self._policy_run(policy) for policy in reversed(list(self.results.metrics))}
        return dict(sorted(runs.items(), key=lambda pair: policy_place(pair[0]))), search

    # --- what people see first --------------------------------------------------------------------------------------

    def front_page(self, run_id: str) -> None:
        """The experiment's note, tags and saved views, and the newest card and report beside the governor's run.

        Args:
            run_id: of the governor's run.
        """
        has_report = (self.root / REPORT).is_file()
        self._attach(run_id, MODEL_CARD, pages.CARD_FILE)
        if has_report:
            self._attach(run_id, REPORT, pages.REPORT_FILE)
        governor = self.results.governor
        note = pages.experiment_note(
            self.results, self.experiment_id, run_id, self.model, self._first_figure(), has_report
        )
        candidates = self._query(self.train, role="candidate")
        views = {
            pages.POLICIES_VIEW: ("Policies side by side", pages.policies_view(self._query(self.evaluate))),
            pages.SEARCH_VIEW: ("The search for the tree", pages.search_view(candidates)),
        }
        before = dict(self.client.get_experiment(self.experiment_id).tags)
        now_ms = int(time.time() * 1000)
        wanted = {
            "board": governor.board,
            "provenance": governor.provenance,
            "data_digest": self.data_digest,
            pages.KIND_TAG: pages.TRAINING_KIND,
            NOTE_TAG: note,
        } | {
            pages.VIEW_TAG + view: pages.view_tag(name, state, before.get(pages.VIEW_TAG + view), now_ms)
            for view, (name, state) in views.items()
        }
        for name, value in wanted.items():
            if before.get(name) != value:
                self.client.set_experiment_tag(self.experiment_id, name, value)

    def _attach(self, run_id: str, path: Path, name: str) -> None:
        """Log a file that may change while the run stays; once for the same bytes."""
        tag, digest = f"{name}.sha256", file_sha256(self.root / path)
        if self.client.get_run(run_id).data.tags.get(tag) == digest:
            return
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / name
            copy.write_bytes((self.root / path).read_bytes())
            self.client.log_artifact(run_id, str(copy))
        self.client.set_tag(run_id, tag, digest)

    # --- registry ---------------------------------------------------------------------------------------------------

    def _version_tags(self) -> dict[str, str]:
        governor, meta, all_ = (
            self.results.governor,
            self.results.meta,
            self.results.metrics[self.results.policy]["all"],
        )
        saving = all_.get("mean_saving_pct")
        return {
            "governor.digest": governor.digest,
            "held_out_digest": str(meta["held_out_digest"]),
            "gate.verdict": str(self.results.decision["verdict"]),
            "gate.mode": str(self.results.decision["mode"]),
            "data_digest": self.data_digest,
            "board": governor.board,
            "provenance": governor.provenance,
            "policy": governor.policy,
            "mean_regret_pct": repr(float(all_["mean_regret_pct"])),
            "mean_saving_pct": "" if saving is None else repr(float(saving)),
            FINGERPRINT_TAG: self.evaluate.fingerprint,
            f"{FINGERPRINT_TAG}.train": self.train.fingerprint,
            **self.git,
        }

    def _description(self, run_id: str, tags: Mapping[str, str]) -> str:
        meta = self.results.meta
        commit = tags["git.commit"] + (" and changes not committed" if tags["git.dirty"] == "true" else "")
        lineage = [
            ("git commit", commit),
            (f"{self.evaluate.source}, stage evaluate", self.evaluate.fingerprint),
            (f"{self.train.source}, stage train", self.train.fingerprint),
            ("data, features.csv", self.data_digest),
            ("held-out workloads", str(meta["held_out_digest"])),
            ("governor.json", self.results.governor.digest),
        ]
        link = pages.artifact_link(self.experiment_id, run_id, pages.CARD_FILE)
        return pages.description(self.results, lineage, link, self._picture(run_id))

    def _find_version(self, tags: Mapping[str, str]) -> str | None:
        identity = ("governor.digest", "held_out_digest", "gate.verdict")
        found = [
            int(version.version)
            for version in self.client.search_model_versions(f"name = '{self.model}'", max_results=1000)
            if all(version.tags.get(name) == tags[name] for name in identity)
        ]
        return str(max(found)) if found else None

    def version(self, run_id: str) -> str:
        """Find or create the model version of the governor, held-out digest and gate verdict."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.get_registered_model(self.model)
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            governor = self.results.governor
            tags = {"board": governor.board, "provenance": governor.provenance}
            self.client.create_registered_model(self.model, tags=tags)
        tags = self._version_tags()
        found = self._find_version(tags)
        if found is None:
            text = self._description(run_id, tags)
            with tempfile.TemporaryDirectory() as folder:
                save_pyfunc(Path(folder) / "model", self.root)
                logged = self.client.create_logged_model(
                    self.experiment_id, "governor", source_run_id=run_id, tags=tags
                )
                self.client.log_model_artifacts(logged.model_id, str(Path(folder) / "model"))
            self.client.finalize_logged_model(logged.model_id, "READY")
            created = self.client.create_model_version(
                self.model,
                logged.artifact_location,
                run_id=run_id,
                tags=tags,
                description=text,
                model_id=logged.model_id,
            )
            found = str(created.version)
        else:
            text = self._kept_description(found, run_id)
        if self.client.get_registered_model(self.model).description != text:
            self.client.update_registered_model(self.model, text)
        return found

    def _kept_description(self, version: str, run_id: str) -> str:
        """What a version that is there already says of itself: its first lineage, with the commit once there is one."""
        kept = self.client.get_model_version(self.model, version)
        tags = dict(kept.tags)
        if tags.get(FINGERPRINT_TAG) != self.evaluate.fingerprint:
            return str(
                kept.description
            )  # another evaluation of the same governor: what was judged first stands
        if "git.commit" not in tags or self._now_committed(self.evaluate, tags):
            tags |= self.git
            for name, value in self.git.items():
                self.client.set_model_version_tag(self.model, version, name, value)
        text = self._description(run_id, tags)
        if kept.description != text:
            self.client.update_model_version(self.model, version, text)
        return text

    def aliases(self, version: str) -> tuple[list[str], dict[str, str | None]]:
        """Move the aliases.

        Returns:
            The aliases of `version`, and the champion after it: its version and the reason.
        """
        self._alias("challenger", version)
        candidate = Standing.from_tags(version, self._version_tags())
        champion = self._aliased("champion")
        present, said = None, None
        if champion is not None:
            tags = dict(self.client.get_model_version(self.model, champion).tags)
            present, said = Standing.from_tags(champion, tags), tags.get(REASON_TAG)
        crowned, reason = crown(candidate, present, refusal_reason(self.results, self.model))
        if crowned and champion == version:
            reason = said or reason  # publishing again says the same again
        elif crowned:
            self.client.set_model_version_tag(self.model, version, REASON_TAG, reason)
            self._alias("champion", version)
            champion = version
        aliases = [name for name, at in (("challenger", version), ("champion", champion)) if at == version]
        return aliases, {"version": champion, "reason": reason}

    def _aliased(self, alias: str) -> str | None:
        version = self.client.get_registered_model(self.model).aliases.get(alias)
        return None if version is None else str(version)

    def _alias(self, alias: str, version: str) -> None:
        if self._aliased(alias) != version:
            self.client.set_registered_model_alias(self.model, alias, version)


def save_pyfunc(path: Path, root: Path) -> None:
    """Save the governor under `root` as an MLflow model from code: no pickle, and no Wattune needed to load it.

    Args:
        path: folder to make.
        root: the repository with ``models/governor.json`` and ``models/model_card.md``.
    """
    import shutil

    import mlflow.pyfunc
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, DataType, Schema

    import wattune
    from wattune.core.governor import parse_governor

    governor = parse_governor((root / GOVERNOR).read_bytes())
    kinds = {"number": DataType.double, "category": DataType.string}
    outputs = {
        "setting": DataType.string,
        "gpu_mhz": DataType.double,
        "expected_saving_pct": DataType.double,
        "expected_slowdown_pct": DataType.double,
        "rule": DataType.string,
        "in_range": DataType.boolean,
    }
    inputs = [ColSpec(kinds[f.kind], f.name, required=False) for f in governor.features]
    if (
        not inputs
    ):  # one leaf, learned from a sweep that knows no features; MLflow wants a column all the same
        inputs = [ColSpec(DataType.string, "workload", required=False)]
    signature = ModelSignature(
        inputs=Schema(inputs),
        outputs=Schema([ColSpec(kind, name, required=False) for name, kind in outputs.items()]),
    )
    example = {
        f.name: f.default if isinstance(f.default, str) else float(f.default or 0.0)
        for f in governor.features
    } or {"workload": "any"}
    package = Path(wattune.__file__).parent
    with tempfile.TemporaryDirectory() as folder:
        code = Path(folder) / "wattune"
        shutil.copytree(package / "core", code / "core", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(package / "__init__.py", code)
        mlflow.pyfunc.save_model(
            path=str(path),
            python_model=str(Path(__file__).with_name("pyfunc_model.py")),
            artifacts={
                "governor": str(root / GOVERNOR),
                "model_card": str(root / MODEL_CARD),
                "decision": str(root / DECISION),
            },
            code_paths=[str(code)],
            signature=signature,
            input_example=pd.DataFrame([example]),
            pip_requirements=REQUIREMENTS,
        )


def publish(root: Path, params: Mapping[str, Any] | None = None, uri: str | None = None) -> dict[str, Any]:
    """Publish the files under `root`: runs, model version, aliases. Doing it again changes nothing.

    Args:
        root: the repository.
        params: parameters to log where ``dvc.lock`` has none.
        uri: tracking store; by default as :func:`wattune.tracking.store.tracking_uri` says.

    Returns:
        The document of ``reports/publish/registration.json``.

    Raises:
        InputError: a file is missing or not readable.
        IntegrityError: the files do not belong together.
        BoardError: the store cannot be reached or refused; nothing on disk was changed.
    """
    results = read_results(root)
    for path in (FEATURES, LOOCV, MODEL_CARD):
        if not (root / path).is_file():
            raise InputError(
                f"{path} does not exist.", "The pipeline writes it before publishing.", "Run `dvc repro`."
            )
    if results.policy not in results.metrics:
        raise InputError(
            f"{METRICS} has no policy '{results.policy}'.", "The governor must be judged.", "Run `dvc repro`."
        )
    require("mlflow", "pandas", extra="pipeline")
    try:
        with connected(uri or tracking_uri(root)) as address:
            publisher = _Publisher(address, root, results, params or {})
            runs, search = publisher.runs()
            publisher.front_page(runs[results.policy])
            version = publisher.version(runs[results.policy])
            aliases, champion = publisher.aliases(version)
    except WattuneError:
        raise
    except Exception as error:
        from mlflow.exceptions import MlflowException

        if not isinstance(error, (MlflowException, OSError)):
            raise
        text = str(error).strip().splitlines() or [type(error).__name__]
        raise BoardError(
            f"MLflow could not take it: {text[0].rstrip('.')}.", "A working server was expected.", LATER
        ) from error
    return {
        "schema_version": SCHEMA_VERSION,
        "experiment": publisher.experiment,
        "fingerprints": {item.stage: item.fingerprint for item in (publisher.evaluate, publisher.train)},
        "fingerprints_from": "files"
        if "files" in (publisher.evaluate.source, publisher.train.source)
        else "dvc.lock",
        "runs": runs,
        "search_run": search,
        "model": publisher.model,
        "version": int(version),
        "aliases": aliases,
        "champion": {
            "version": None if champion["version"] is None else int(champion["version"]),
            "reason": champion["reason"],
        },
    }
