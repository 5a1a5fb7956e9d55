"""Configuration: the schema of ``params.yaml`` as dataclasses, its compilation from ``conf/``, and its loading.

``conf/`` is the source, ``params.yaml`` is compiled from it (`make params`) and committed; stages see only the
dataclasses below. OmegaConf checks types and refuses unknown keys; ``__post_init__`` checks values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Dict, List, Optional  # noqa: UP035  # OmegaConf reads these at run time on Python 3.10

from wattune.core.errors import InputError
from wattune.core.features import FEATURES, PAPER_FEATURES

PARAMS = Path("params.yaml")
PARTS = ("train", "held_out")
PRECISIONS = ("fp32", "fp16", "bf16")
METHODS = ("full", "lora", "bitfit")
CHAMPION = "champion"
GATE_MODES = ("off", "dry_run", "enforce")
OBJECTIVES = ("energy",)
BOARDS = ("virtual", "recorded", "jetson")
LOADS = ("finetune", "command", "external", "emulated")
LIVE_KEYS = ("load", "live")
"""Parts of `board` that only a board on which something really runs has."""

LIVE_ONLY = (*LIVE_KEYS, "root")
"""With where its files lie: what says nothing of how another board was measured."""

METERS = ("steady", "whole-log")
BASELINES = ("verified", "left-pinned")
LEAVES = ("mean", "worst")
CRITERIA = ("gini", "entropy", "log_loss")


def _choice(default: str, allowed: Iterable[str], *, empty: bool = False) -> Any:
    """A key that takes one of some words, or none where it may stay empty."""
    return field(default=default, metadata={"allowed": tuple(allowed), "empty": empty})


def _above_0(default: Any) -> Any:
    """A key that takes a number above 0."""
    return field(default=default, metadata={"above": 0})


def _at_least_0(default: Any) -> Any:
    """A key that takes a number of at least 0."""
    return field(default=default, metadata={"at_least": 0})


def _check(section: str, conf: Any) -> None:
    """Hold a section against what its keys say they take; docs/reference.md is made of the same."""
    for key in fields(conf):
        value, asked = getattr(conf, key.name), key.metadata
        for word in value if isinstance(value, list) else [value]:
            if "allowed" in asked and word not in asked["allowed"] and (word or not asked.get("empty")):
                raise InputError(
                    f"{section}.{key.name} is '{word}'.",
                    f"One of {', '.join(asked['allowed'])} was expected.",
                )
        if value is None:  # a key that may be left open
            continue
        if "above" in asked and not value > asked["above"]:
            raise InputError(
                f"{section}.{key.name} is {value}.", f"A value above {asked['above']} was expected."
            )
        if "at_least" in asked and not value >= asked["at_least"]:
            raise InputError(
                f"{section}.{key.name} is {value}.", f"A value of at least {asked['at_least']} was expected."
            )


@dataclass
class LoadConf:
    """What a real board runs while it is measured (part of group ``board``; docs/measuring.md).

    Attributes:
        kind: ``finetune`` (this project's own fine-tuning process), ``command`` (a command line, started here), ``external`` (a
            loop that somebody runs already) or ``emulated`` (what `wattune emulate` runs by itself).
        command: with ``{model}``, ``{task}``, ``{batch_size}``, ``{precision}``, ``{max_length}``, ``{seed}`` and
            ``{steps_file}`` where those go.
        steps_file: where an external loop counts its steps.
        finetune: of ``finetune``: settings of every job, over what its workload says (docs/finetuning.md).
        jobs: of ``finetune``: workload id -> settings of that job alone.
        emulated_steps: of ``finetune``: the emulated board runs every step too, and a step takes as long as the slower of both.
    """

    kind: str = _choice("command", LOADS)
    command: str = ""
    steps_file: str = ""
    finetune: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    jobs: Dict[str, Any] = field(default_factory=dict)  # noqa: UP006
    emulated_steps: bool = False

    def __post_init__(self) -> None:
        """Check values."""
        _check("board.load", self)
        for name, job in self.jobs.items():
            if not isinstance(job, dict):
                raise InputError(f"board.load.jobs.{name} is {job!r}.", "Settings of a job were expected.")


@dataclass
class WindowConf:
    """When the window of a load that reports its steps ends (part of `live`; docs/measuring.md).

    Attributes:
        ci_pct: when half of the 95 % interval of energy per step is at most this share, percent.
        block_s: the interval is taken over blocks of whole steps that are at least so long.
        min_s: shortest window.
        max_s: longest window.
        min_steps: fewest steps.
        max_steps: most steps; 0: as many as `max_s` allows.
        min_blocks: fewest blocks, at least 3.
        full_epoch: measure as many steps as an epoch has, to check the extrapolation.
        epochs: passes over the data of the whole run, whose energy the certificate gives too.
    """

    ci_pct: float = _above_0(1.0)
    block_s: float = _above_0(1.0)
    min_s: float = _above_0(5.0)
    max_s: float = 120.0
    min_steps: int = _above_0(5)
    max_steps: int = 0
    min_blocks: int = 5
    full_epoch: bool = False
    epochs: int = _above_0(3)

    def __post_init__(self) -> None:
        """Check values."""
        _check("board.live.window", self)
        if self.max_s < self.min_s or (self.max_steps and self.max_steps < self.min_steps):
            raise InputError(
                f"board.live.window allows {self.min_s:g} to {self.max_s:g} s and {self.min_steps} to {self.max_steps} steps.",
                "Longest and most of at least the shortest and the fewest were expected (max_steps may be 0).",
            )
        if self.min_blocks < 3:
            raise InputError(
                f"board.live.window.min_blocks is {self.min_blocks}.",
                "At least 3 were expected: a line through two has no interval.",
            )


@dataclass
class LiveConf:
    """How a real board is measured (part of group ``board``).

    Attributes:
        hz: samples of the meter per second.
        warmup_steps: steps between a change of the clock and the window.
        min_window_s: shortest window; it goes on over more steps than `sweep.steps` where those take less. Of loads that count
            their steps; `window` is for those that report them.
        start_temp_c: a setting is begun at or below this temperature, where the board gets there; 0: begun at once.
        cool_down_s: how long that is waited for.
        max_temp_c: a board that is hotter before anything runs is not measured.
        start_s: how long the load may take to its first step.
        stall_s: how long it may take between any two steps.
        idle_s: length of the window in which the idle board is measured before the load is started; 0: not at all.
        attempts: how often a window that cannot be used is taken before its setting is given up.
        free_memory_mb: memory that must be free before the load is started.
        window: when the window of a load that reports its steps ends.
    """

    hz: float = _above_0(5.0)
    warmup_steps: int = _at_least_0(3)
    min_window_s: float = _above_0(10.0)
    start_temp_c: float = _at_least_0(50.0)
    cool_down_s: float = _at_least_0(120.0)
    max_temp_c: float = _above_0(80.0)
    start_s: float = _above_0(600.0)
    stall_s: float = _above_0(120.0)
    idle_s: float = _at_least_0(5.0)
    attempts: int = _above_0(3)
    free_memory_mb: int = _at_least_0(1024)
    window: WindowConf = field(default_factory=WindowConf)

    def __post_init__(self) -> None:
        """Check values."""
        _check("board.live", self)


@dataclass
class BoardConf:
    """Which board measures (group ``board``).

    Attributes:
        kind: ``virtual`` (a modelled board), ``recorded`` (a sweep file) or ``jetson`` (a real board, or an emulated one's tree).
        id: board id; for ``recorded`` may stay empty where the data hold one board only, for ``jetson`` to take the one found.
        constants: file of the modelled board, relative to the repository root.
        power_mode: power mode of the modelled board; empty for its default. For ``jetson`` the one that must be found; empty
            for any.
        data: sweep file of the recorded board, relative to the repository root.
        root: for ``jetson``: the tree with ``sys`` and ``proc``; empty for WATTUNE_ROOT, else the machine itself.
        load: what a real board runs.
        live: how a real board is measured.
    """

    kind: str = _choice("virtual", BOARDS)
    id: str = "jetson-agx-orin-64gb"
    constants: str = "src/wattune/boards/virtual/jetson-agx-orin-64gb.json"
    power_mode: str = ""
    data: str = "data/recorded/sweep.csv"
    root: str = ""
    load: LoadConf = field(default_factory=LoadConf)
    live: LiveConf = field(default_factory=LiveConf)

    def __post_init__(self) -> None:
        """Check values."""
        _check("board", self)


@dataclass
class WorkloadConf:
    """One workload (an entry of group ``workloads``).

    Attributes:
        model: model id of the catalogue.
        task: task id of the catalogue.
        part: ``train`` or ``held_out``.
        batch_size: examples per step.
        precision: ``fp32``, ``fp16`` or ``bf16``.
        max_length: longest sequence kept, tokens.
        method: ``full``, ``lora`` or ``bitfit``.
        tokens: length of every batch; 0 for the task's own lengths.
    """

    model: str = "???"
    task: str = "???"
    part: str = _choice("train", PARTS)
    batch_size: int = _above_0(32)
    precision: str = _choice("fp16", PRECISIONS)
    max_length: int = _above_0(256)
    method: str = _choice("full", METHODS)
    tokens: int = _at_least_0(0)

    def check(self, section: str) -> None:
        """Check values; `section` names the entry in messages."""
        from wattune.workloads.catalogue import find_model, find_task

        self.model, self.task = find_model(self.model).id, find_task(self.task).id
        _check(section, self)


@dataclass
class SweepConf:
    """The sweep's protocol (group ``sweep``).

    Attributes:
        clocks_mhz: pinned clocks; empty for all of the board's table.
        maxn: also measure with unpinned clocks.
        repeats: repeats per setting.
        steps: training steps in a measured window (a load that reports its steps ends it by `board.live.window`).
        seed: seed of batches and of modelled noise.
        protocol_version: raise it when the way of measuring changes; older cells are then not reused.
        meter: ``steady`` (the energy of training steps) or ``whole-log`` (the paper's: mean power over the whole log,
            set-up and evaluation included, times the training time; a modelled board's, one repeat).
        baseline: ``verified`` (MAXN with unpinned clocks) or ``left-pinned`` (with ``whole-log``: MAXN measured with the
            clock still pinned at 816 MHz, as a script that forgets to unpin it does).
    """

    clocks_mhz: List[float] = field(default_factory=list)  # noqa: UP006
    maxn: bool = True
    repeats: int = _above_0(3)
    steps: int = _above_0(200)
    seed: int = 42
    protocol_version: int = 1
    meter: str = _choice("steady", METERS)
    baseline: str = _choice("verified", BASELINES)

    def __post_init__(self) -> None:
        """Check values."""
        _check("sweep", self)
        if self.meter == "whole-log" and self.repeats != 1:
            raise InputError(
                f"sweep.repeats is {self.repeats} with sweep.meter=whole-log.",
                "1 was expected: the paper ran every setting once.",
                "Add sweep.repeats=1, or use experiment paper-protocol.",
            )
        if self.baseline == "left-pinned" and not (self.meter == "whole-log" and self.maxn):
            raise InputError(
                "sweep.baseline is left-pinned.",
                "That is how MAXN is measured with sweep.meter=whole-log and sweep.maxn=true.",
                "Use experiment paper-protocol.",
            )


@dataclass
class FeaturesConf:
    """Features that are measured (part of group ``sweep``).

    Attributes:
        reference_mhz: clock at which `gpu_util_ref_pct` is read; null: the highest one measured, whatever the board.
    """

    reference_mhz: Optional[float] = _above_0(1300.5)  # noqa: UP045

    def __post_init__(self) -> None:
        """Check values."""
        _check("features", self)


@dataclass
class AccuracyConf:
    """Whole runs that show whether the clock touches what is learnt (optional stage `accuracy`; docs/measuring.md).

    Attributes:
        workloads: ids of the workloads to look at; empty: none.
        clocks_mhz: pinned clocks to train at, beside unpinned ones; empty: the lowest and the highest of the sweep.
        steps: of every run; 0: as many as the `epochs` of the job have (1 where `board.load.finetune` says none).
    """

    workloads: List[str] = field(default_factory=list)  # noqa: UP006
    clocks_mhz: List[float] = field(default_factory=list)  # noqa: UP006
    steps: int = _at_least_0(0)

    def __post_init__(self) -> None:
        """Check values."""
        _check("accuracy", self)


@dataclass
class RegretConf:
    """The tree that learns from energy loss (part of group ``train``).

    Attributes:
        features: features the tree may use.
        max_leaves: most leaves, up to 8.
        min_samples_leaf: candidates: fewest training workloads in a leaf.
        prune_pct: candidates: mean loss, percent, that every leaf must pay for.
        tolerance_pct: loss, percent, up to which a faster clock is taken instead of the best one.
        leaf: what a leaf minimises, the ``mean`` or the ``worst`` loss of its rows.
        conformal_level: share of new workloads that a leaf's interval promises to hold.
        abstain: leave MAXN untouched where a loss is possible or the workload is too far from what was trained on.
        abstain_beyond: factor outside the training range from which on it is too far.
        tolerated_loss_pct: loss against MAXN that is no reason to leave it untouched.
        conformal_levels: levels to choose from inside the training folds, instead of `conformal_level`; empty: that one.
        abstain_beyonds: factors to choose from there, likewise.
        tell_apart: leaves whose clock may lose are told apart by what it saves, with at least this many workloads on either side;
            0: not at all.
    """

    features: List[str] = field(  # noqa: UP006
        default_factory=lambda: list(PAPER_FEATURES), metadata={"allowed": tuple(FEATURES)}
    )
    max_leaves: int = 8
    min_samples_leaf: List[int] = field(default_factory=lambda: [1, 2, 3])  # noqa: UP006
    prune_pct: List[float] = field(default_factory=lambda: [0.0, 0.02, 0.05, 0.1])  # noqa: UP006
    tolerance_pct: float = 0.5
    leaf: str = _choice("mean", LEAVES)
    conformal_level: float = 0.9
    abstain: bool = True
    abstain_beyond: float = 1.5
    tolerated_loss_pct: float = 0.0
    conformal_levels: List[float] = field(default_factory=list)  # noqa: UP006
    abstain_beyonds: List[float] = field(default_factory=list)  # noqa: UP006
    tell_apart: int = 0

    def __post_init__(self) -> None:
        """Check values."""
        _check("train.regret", self)
        if not self.features or not self.min_samples_leaf or min(self.min_samples_leaf) < 1:
            raise InputError(
                f"train.regret.features is {self.features}, min_samples_leaf {self.min_samples_leaf}.",
                "At least one feature, and a list of whole numbers of at least 1, were expected.",
            )
        if not self.prune_pct or min(self.prune_pct) < 0 or self.tolerance_pct < 0:
            raise InputError(
                f"train.regret.prune_pct is {self.prune_pct}, tolerance_pct {self.tolerance_pct}.",
                "Percentages of at least 0 were expected.",
            )
        if not 1 <= self.max_leaves <= 8:
            raise InputError(f"train.regret.max_leaves is {self.max_leaves}.", "1 to 8 was expected.")
        for level in (self.conformal_level, *self.conformal_levels):
            for beyond in (self.abstain_beyond, *self.abstain_beyonds):
                _conformal("train.regret", level, beyond)
        if not 0 <= self.tolerated_loss_pct < float("inf"):
            raise InputError(
                f"train.regret.tolerated_loss_pct is {self.tolerated_loss_pct}.",
                "A percentage of at least 0 was expected.",
            )
        if self.tell_apart < 0:
            raise InputError(
                f"train.regret.tell_apart is {self.tell_apart}.", "A number of workloads, or 0, was expected."
            )


def _conformal(section: str, level: float, beyond: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"{section}.conformal_level is {level}.", "A share between 0 and 1 was expected.")
    if not 1 <= beyond < float("inf"):
        raise InputError(f"{section}.abstain_beyond is {beyond}.", "A factor of at least 1 was expected.")


@dataclass
class TrainConf:
    """The label tree and its search (group ``train``).

    Attributes:
        features: features the tree may use.
        max_depth: candidates: most questions in a row.
        min_samples_leaf: candidates: fewest training workloads in a leaf.
        criterion: candidates: what a split is judged by, scikit-learn's names.
        seed: scikit-learn's random_state.
        abstain: as for the regret tree; its level and factor are used.
        apart: a feature whose equals are left out together when sizes are chosen and spreads found; empty: every workload by itself.
        regret: the tree that learns from energy loss.
    """

    features: List[str] = field(  # noqa: UP006
        default_factory=lambda: list(PAPER_FEATURES), metadata={"allowed": tuple(FEATURES)}
    )
    max_depth: List[int] = field(default_factory=lambda: [1, 2, 3, 4])  # noqa: UP006
    min_samples_leaf: List[int] = field(default_factory=lambda: [1, 2, 3])  # noqa: UP006
    criterion: List[str] = field(  # noqa: UP006
        default_factory=lambda: ["gini", "entropy"], metadata={"allowed": CRITERIA}
    )
    seed: int = 0
    abstain: bool = False
    apart: str = _choice("", FEATURES, empty=True)
    regret: RegretConf = field(default_factory=RegretConf)

    def __post_init__(self) -> None:
        """Check values."""
        _check("train", self)
        for label, grid in (("max_depth", self.max_depth), ("min_samples_leaf", self.min_samples_leaf)):
            if not grid or min(grid) < 1:
                raise InputError(
                    f"train.{label} is {grid}.", "A list of whole numbers of at least 1 was expected."
                )
        if not self.features or not self.criterion:
            raise InputError(
                "train.features or train.criterion is empty.", "At least one entry was expected."
            )


@dataclass
class EvaluateConf:
    """Evaluation.

    Attributes:
        published_util: also judge the variant of the printed rules with the utilisation rule.
        bootstrap_resamples: resamples of the intervals.
        bootstrap_seed: seed of the resamples.
    """

    published_util: bool = False
    bootstrap_resamples: int = _above_0(2000)
    bootstrap_seed: int = 0

    def __post_init__(self) -> None:
        """Check values."""
        _check("evaluate", self)


@dataclass
class GateConf:
    """Promotion rules (group ``gate``).

    Attributes:
        mode: ``enforce`` (all rules must hold before a champion changes), ``dry_run`` (rules are judged and recorded,
            nothing is promoted) or ``off`` (nothing is judged, nothing is promoted).
        policy: the policy judged: ``champion``, whichever ships, or its name, where another one may not.
        min_mean_saving_pct: bar for the mean saving against MAXN.
        min_worst_saving_pct: floor for the worst workload's saving.
        max_mean_regret_pct: ceiling for the mean regret.
        max_p95_regret_pct: ceiling for the regret's 95th percentile.
        max_depth: deepest tree a reader can follow.
    """

    mode: str = _choice("enforce", GATE_MODES)
    policy: str = _choice(CHAMPION, (CHAMPION, "mlg", "mlg-regret"))
    min_mean_saving_pct: float = 10.0
    min_worst_saving_pct: float = -0.5
    max_mean_regret_pct: float = _above_0(0.5)
    max_p95_regret_pct: float = _above_0(2.0)
    max_depth: int = 4

    def __post_init__(self) -> None:
        """Check values."""
        _check("gate", self)


@dataclass
class ObjectiveConf:
    """What is minimised (group ``objective``).

    Attributes:
        name: what policies learn to make least.
    """

    name: str = _choice("energy", OBJECTIVES)

    def __post_init__(self) -> None:
        """Check values."""
        _check("objective", self)


@dataclass
class Config:
    """The whole of ``params.yaml``.

    Attributes:
        experiment: name of the experiment it was compiled for.
        workload_ids: keys of `workloads`; the DVC matrix runs over it.
    """

    experiment: str = "paper"
    board: BoardConf = field(default_factory=BoardConf)
    workload_ids: List[str] = field(default_factory=list)  # noqa: UP006
    workloads: Dict[str, WorkloadConf] = field(default_factory=dict)  # noqa: UP006
    sweep: SweepConf = field(default_factory=SweepConf)
    features: FeaturesConf = field(default_factory=FeaturesConf)
    accuracy: AccuracyConf = field(default_factory=AccuracyConf)
    train: TrainConf = field(default_factory=TrainConf)
    evaluate: EvaluateConf = field(default_factory=EvaluateConf)
    gate: GateConf = field(default_factory=GateConf)
    objective: ObjectiveConf = field(default_factory=ObjectiveConf)

    def __post_init__(self) -> None:
        """Check the workloads, and that the two lists of them agree."""
        if sorted(self.workload_ids) != sorted(self.workloads):
            raise InputError(
                "workload_ids and the keys of workloads differ in params.yaml.",
                "They are compiled together from conf/.",
                "Run `make params`.",
            )
        named = self.accuracy.workloads
        if named and not (self.board.kind == "jetson" and self.board.load.kind == "finetune"):
            raise InputError(
                f"accuracy.workloads names {', '.join(named)}, and nothing is fine-tuned on this board.",
                "board.kind=jetson with board.load.kind=finetune was expected.",
                "Leave accuracy.workloads empty, or take an experiment that fine-tunes (`EXPERIMENT=emulated`).",
            )
        for name, workload in self.workloads.items():
            workload.check(f"workloads.{name}")
            if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
                raise InputError(
                    f"The workload id '{name}' cannot be used.", "Letters, digits, '-' and '_' were expected."
                )


def _one_line(error: BaseException) -> str:
    """Hydra's and OmegaConf's many-line messages as one sentence, their cause included."""
    text = str(error).split("Config search path")[0]
    noise = ("reference_type", "object_type", "Set the environment", "full_key")
    kept = [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith(noise)]
    cause = f" ({_one_line(error.__cause__)})" if error.__cause__ is not None else ""
    return " ".join(kept).rstrip(".") + cause


def to_config(document: Any) -> Config:
    """Check a plain document against the schema.

    Raises:
        InputError: a wrong type, an unknown key or a value out of bounds.
    """
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    try:
        merged = OmegaConf.merge(OmegaConf.structured(Config), document)
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise InputError(
            f"The configuration is not valid: {_one_line(error)}.",
            "Keys and types must be those of conf/ (see conf/README.md).",
            "Correct conf/ and run `make params`.",
        ) from error
    assert isinstance(config, Config)
    return config


def load_params(path: Path = PARAMS, only: str = "") -> Config:
    """Read and check ``params.yaml``.

    Args:
        path: the file.
        only: id of the one workload that is wanted; the others are neither checked nor returned (most of the time goes there). All
            are where there is none of that id.

    Raises:
        InputError: missing, not YAML, or not valid.
    """
    import yaml

    from wattune.io import read_text

    text = read_text(path, "The parameter file", "Run `make params` in the repository root.")
    try:
        document = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  # both are safe
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not YAML: {_one_line(error)}.", hint="Run `make params`.") from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is empty or not a mapping.", hint="Run `make params`.")
    workloads = document.get("workloads")
    if (
        only
        and isinstance(workloads, dict)
        and only in workloads
        and only in (document.get("workload_ids") or ())
    ):
        document |= {"workloads": {only: workloads[only]}, "workload_ids": [only]}
    return to_config(document)


def compose(conf_dir: Path, experiment: str, overrides: Optional[List[str]] = None) -> Dict[str, Any]:  # noqa: UP006,UP045
    """Compose ``conf/`` for an experiment with Hydra and check it.

    Args:
        conf_dir: the folder ``conf``.
        experiment: name of a file in ``conf/experiment``.
        overrides: Hydra overrides, e.g. ``["sweep.repeats=5"]``.

    Returns:
        Plain data, ready for ``params.yaml``.

    Raises:
        InputError: unknown experiment, group, key or type.
    """
    from hydra import compose as hydra_compose
    from hydra import initialize_config_dir
    from hydra.errors import HydraException
    from omegaconf import OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    if not (conf_dir / "config.yaml").is_file():
        raise InputError(
            f"There is no {conf_dir}/config.yaml.", hint="Run the command in the repository root."
        )
    try:
        with initialize_config_dir(str(conf_dir.resolve()), version_base="1.3"):
            composed = hydra_compose("config", overrides=[f"experiment={experiment}", *(overrides or [])])
            document = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise InputError(
            f"conf/ could not be composed: {_one_line(error)}.",
            "Groups, keys and types must be those of conf/ (see conf/README.md).",
            "Correct it and run `make params`.",
        ) from error
    config = to_config(document)
    for named in config.accuracy.workloads:
        if named not in config.workloads:
            raise InputError(
                f"accuracy.workloads names '{named}', and there is no such workload.",
                f"One of {', '.join(config.workload_ids)} was expected.",
                "Correct conf/ and run `make params`.",
            )
    assert isinstance(document, dict)
    if (
        document["board"]["kind"] != "jetson"
    ):  # nothing runs on the others: what would be measured how says nothing of them
        for name in LIVE_KEYS:
            del document["board"][name]
    for name, value in (
        ("tolerated_loss_pct", 0.0),
        ("conformal_levels", []),
        ("abstain_beyonds", []),
        ("tell_apart", 0),
    ):
        if document["train"]["regret"][name] == value:  # as for the keys of a workload below
            del document["train"]["regret"][name]
    usual = {"method": WorkloadConf.method, "tokens": WorkloadConf.tokens}
    for name, workload in document["workloads"].items():
        # What most workloads leave as it is stays out: a new key would have all of them measured anew.
        kept = {key: value for key, value in workload.items() if usual.get(key, ...) != value}
        document["workloads"][name] = kept
    return {str(key): value for key, value in document.items()}
