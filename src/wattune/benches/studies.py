"""`wattune bench studies`: how far the trees' results hang on the training set, its features, its noise and its baseline.

Everything rests on the feature table of a modelled board, whose noise-free energy is known: policies learn from measured or perturbed
curves of the training workloads, and are judged on the noise-free curves of the held-out ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattune.boards.virtual.board import VirtualBoard
from wattune.boards.virtual.constants import find_board_file
from wattune.config import PARAMS, Config, load_params
from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.features import Features
from wattune.core.governor import Governor
from wattune.core.policies import Fixed
from wattune.core.settings import MAXN, Setting
from wattune.core.stats import bootstrap_mean_ci95, mean, percentile
from wattune.io import read_json, read_text, write_json, write_text
from wattune.learning.export import train_governor, train_regret_governor
from wattune.learning.judge import fixed_clock
from wattune.learning.loocv import row_regret_pct
from wattune.learning.regretsearch import GROUPS, groups_out
from wattune.learning.table import FeatureTable, WorkloadRows, load_features, mean_curve
from wattune.stages._tables import fill
from wattune.stages.train import FEATURES, regret_space, search_space

SCHEMA_VERSION = 1
PAGE, RESULT = Path("docs/studies.md"), Path("docs/studies.json")
FIGURES = Path("docs/figures")
DECIMALS = 4

TRAINING_SIZES = (3, 6, 9, 12, 18, 24)
DRAWS = 8
"""Training sets drawn per size."""

NOISE_PCT = (0.5, 1.0, 2.0, 5.0)
NOISE_SEEDS = 6
REPEATS = 3

BASELINE_ERROR_PCT = (-25.0, -10.0, -5.0, -2.0, 2.0, 5.0, 10.0, 25.0)
"""MAXN measured wrong by so much: above 0 it reads too high, so that savings look too large."""

TREE = "mlg-regret-tree"
"""`mlg-regret` that never declines."""

ORDER = ("ffg", "mlg", TREE, "mlg-regret")
"""Policies in the order of tables."""

Choose = Callable[[Features], Setting]


@dataclass(frozen=True)
class Learned:
    """What was learned from one set of training workloads.

    Attributes:
        choices: policy -> its rule.
        declines: whether `mlg-regret` leaves MAXN untouched for these features.
        loo_regret_pct: policy -> loss found by leave-one-out when its size was chosen; None for a single workload.
        regret: the governor of `mlg-regret`.
    """

    choices: Mapping[str, Choose]
    declines: Callable[[Features], bool]
    loo_regret_pct: Mapping[str, float | None]
    regret: Governor


def learn(
    config: Config,
    table: FeatureTable,
    rows: Sequence[WorkloadRows],
    *,
    without: str = "",
    label: bool = True,
) -> Learned:
    """Learn every policy from `rows`.

    Args:
        config: the searches.
        table: where board and rails are named.
        rows: training workloads.
        without: a feature that no tree may ask for.
        label: also the label tree, which takes three times as long as the rest.
    """
    conf = config.train

    def kept(features: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(name for name in features if name != without)

    regret_search = regret_space(conf)
    trained = train_regret_governor(
        table, rows, replace(regret_search, features=kept(regret_search.features))
    )
    regret = trained.governor
    ffg = fixed_clock(rows)
    choices: dict[str, Choose] = {}
    losses: dict[str, float | None] = {}
    if ffg is not None:
        choices["ffg"] = Fixed(ffg).choose
        losses["ffg"] = _loo_ffg_pct(rows)
    if label:
        label_search = search_space(conf)
        told = train_governor(table, rows, replace(label_search, features=kept(label_search.features)))
        choices["mlg"] = lambda features: told.governor.decide(features).setting
        losses["mlg"] = told.search.best.loo_regret_pct
    choices[TREE] = lambda features: regret.tree.walk(regret.complete(features)[0])[0].setting
    losses[TREE] = trained.search.best.loo_regret_pct
    choices["mlg-regret"] = lambda features: regret.decide(features).setting
    return Learned(choices, lambda features: regret.decide(features).abstained, losses, regret)


def _loo_ffg_pct(rows: Sequence[WorkloadRows]) -> float | None:
    lost = []
    for out in rows if len(rows) > 1 else ():
        clock = fixed_clock([row for row in rows if row is not out])
        if clock is None:
            return None
        lost.append(row_regret_pct(out, clock))
    return mean(lost) if lost else None


def judged(learned: Learned, rows: Sequence[WorkloadRows]) -> dict[str, dict[str, Any]]:
    """Per policy its losses and savings on the judged curves of `rows`."""
    found: dict[str, dict[str, Any]] = {}
    for name, choose in learned.choices.items():
        settings = [row.nearest(choose(row.features)) for row in rows]
        pairs = list(zip(rows, settings, strict=True))
        savings = [row.judged.saving_pct(setting) for row, setting in pairs]
        known = [s for s in savings if s is not None]
        found[name] = {
            "regrets": [row.judged.regret_pct(setting) for row, setting in pairs],
            "worst_saving_pct": min(known) if len(known) == len(rows) else None,
            "mean_saving_pct": mean(known) if len(known) == len(rows) else None,
        }
    return found


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DECIMALS) + 0.0


def _over_runs(runs: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Per policy the mean loss over runs, its interval over runs, the worst run and the worst saving."""
    figures = {}
    for name in runs[0]:
        means = [mean(one[name]["regrets"]) for one in runs]
        low, high = bootstrap_mean_ci95(means) if len(means) > 1 else (None, None)
        savings = [one[name]["worst_saving_pct"] for one in runs]
        figures[name] = {
            "mean_regret_pct": _rounded(mean(means)),
            "ci95": None if low is None else [_rounded(low), _rounded(high)],
            "worst_run_pct": _rounded(max(means)),
            "p95_regret_pct": _rounded(mean([percentile(one[name]["regrets"], 95.0) for one in runs])),
            "worst_saving_pct": None if None in savings else _rounded(min(savings)),
        }
    return figures


# --- the studies -----------------------------------------------------------------------------------------------------


def learning_curve(
    config: Config, table: FeatureTable, sizes: Sequence[int] = TRAINING_SIZES, draws: int = DRAWS
) -> list[dict[str, Any]]:
    """Loss on the held-out workloads against the number of training workloads, drawn at random; last all of them."""
    rows = table.training
    found = []
    for size in [*(n for n in sizes if n < len(rows)), len(rows)]:
        runs, declined = [], []
        for draw in range(draws if size < len(rows) else 1):
            chosen = set(random.Random(f"{size}|{draw}").sample(range(len(rows)), size))
            learned = learn(config, table, [row for i, row in enumerate(rows) if i in chosen])
            runs.append(judged(learned, table.held_out))
            declined.append(sum(learned.declines(row.features) for row in table.held_out))
        found.append(
            {"n": size, "draws": len(runs), "declined": mean(declined), "policies": _over_runs(runs)}
        )
    return found


def ablation(config: Config, table: FeatureTable) -> list[dict[str, Any]]:
    """Loss with one feature kept from the trees at a time; first with all of them."""
    features = tuple(dict.fromkeys((*config.train.features, *config.train.regret.features)))
    found = []
    for without in ("", *features):
        learned = learn(config, table, table.training, without=without)
        held_out = judged(learned, table.held_out)
        for name in ("mlg", TREE):
            low, high = bootstrap_mean_ci95(held_out[name]["regrets"])
            found.append(
                {
                    "without": without or None,
                    "policy": name,
                    "loo_regret_pct": _rounded(learned.loo_regret_pct[name]),
                    "held_out_regret_pct": _rounded(mean(held_out[name]["regrets"])),
                    "ci95": [_rounded(low), _rounded(high)],
                }
            )
    return found


def with_noise(row: WorkloadRows, noise_pct: float, seed: str) -> WorkloadRows:
    """The workload measured anew: the noise-free curve, each of `REPEATS` repeats off by its own Gaussian error.

    Raises:
        InputError: its noise-free curve is not known.
    """
    true = row.noise_free
    if true is None:
        raise InputError(
            f"The noise-free energy of {row.id} is not known.",
            "The feature table of a modelled board was expected.",
            "Run `make params` and `dvc repro features`.",
        )
    rng = random.Random(f"{seed}|{row.id}")
    repeats = tuple(
        EnergyCurve(
            {
                s: Point(p.energy_j * max(0.05, rng.gauss(1.0, noise_pct / 100.0)), p.time_s)
                for s, p in true.points.items()
            }
        )
        for _ in range(REPEATS)
    )
    return replace(row, measured=mean_curve(repeats), repeats=repeats)


def noise(
    config: Config,
    table: FeatureTable,
    levels: Sequence[float] = NOISE_PCT,
    seeds: int = NOISE_SEEDS,
) -> list[dict[str, Any]]:
    """Loss against the noise of a single measurement, three repeats of each."""
    found = []
    for level in levels:
        runs, declined = [], []
        for seed in range(seeds):
            rows = [with_noise(row, level, f"{level}|{seed}") for row in table.training]
            learned = learn(config, table, rows)
            runs.append(judged(learned, table.held_out))
            declined.append(sum(learned.declines(row.features) for row in table.held_out))
        found.append(
            {
                "noise_pct": level,
                "seeds": seeds,
                "declined": mean(declined),
                "policies": _over_runs(runs),
            }
        )
    return found


def with_wrong_baseline(row: WorkloadRows, error_pct: float) -> WorkloadRows:
    """The workload with its MAXN energy read wrong by `error_pct`; what it is judged on stays right."""

    def wrong(curve: EnergyCurve) -> EnergyCurve:
        points = dict(curve.points)
        base = points[MAXN]
        points[MAXN] = Point(base.energy_j * (1.0 + error_pct / 100.0), base.time_s)
        return EnergyCurve(points)

    return replace(row, measured=wrong(row.measured), repeats=tuple(wrong(curve) for curve in row.repeats))


def baseline(
    config: Config, table: FeatureTable, errors: Sequence[float] = BASELINE_ERROR_PCT
) -> list[dict[str, Any]]:
    """What a wrong MAXN does to `mlg-regret`: its choices, its promises, its declining."""
    found = []
    for error in sorted({*errors, 0.0}):
        rows = [with_wrong_baseline(row, error) for row in table.training]
        learned = learn(config, table, rows, label=False)
        held_out = judged(learned, table.held_out)
        decisions = [learned.regret.decide(row.features) for row in table.held_out]
        promised = [d.expected_saving_pct for d in decisions if d.expected_saving_pct is not None]
        found.append(
            {
                "error_pct": error,
                "mean_regret_pct": _rounded(mean(held_out["mlg-regret"]["regrets"])),
                "tree_regret_pct": _rounded(mean(held_out[TREE]["regrets"])),
                "promised_saving_pct": _rounded(mean(promised)) if promised else None,
                "true_saving_pct": _rounded(held_out["mlg-regret"]["mean_saving_pct"]),
                "worst_saving_pct": _rounded(held_out["mlg-regret"]["worst_saving_pct"]),
                "declined": sum(d.abstained for d in decisions),
            }
        )
    return found


def left_out(config: Config, table: FeatureTable) -> dict[str, Any]:
    """Leave-one-out beside whole kinds left out, both trees; sizes as chosen by leave-one-out on all training workloads."""
    rows, labels, regrets = table.training, search_space(config.train), regret_space(config.train)
    label, regret = train_governor(table, rows, labels), train_regret_governor(table, rows, regrets)
    chosen, best = label.search.best.candidate, regret.search.best.candidate
    labels = replace(
        labels,
        max_depth=(chosen.max_depth,),
        min_samples_leaf=(chosen.min_samples_leaf,),
        criterion=(chosen.criterion,),
    )
    regrets = replace(regrets, min_samples_leaf=(best.min_samples_leaf,), prune_pct=(best.prune_pct,))
    learners: dict[str, tuple[float | None, Callable[[Sequence[WorkloadRows]], Governor]]] = {
        "mlg": (
            label.search.best.loo_regret_pct,
            lambda some: train_governor(table, some, labels).governor,
        ),
        "mlg-regret": (
            regret.search.best.loo_regret_pct,
            lambda some: train_regret_governor(table, some, regrets).governor,
        ),
    }
    return {
        name: {
            "loo_regret_pct": _rounded(loo),
            "kinds": {kind: groups_out(rows, kind, one) for kind in GROUPS},
        }
        for name, (loo, one) in learners.items()
    }


def run(root: Path = Path()) -> dict[str, Any]:
    """Run every study on the feature table under `root`.

    Raises:
        InputError: no parameters, no table, no held-out workloads, or no noise-free energy.
    """
    config, table = load_params(root / PARAMS), load_features(root / FEATURES)
    if not table.held_out or table.held_out[0].noise_free is None or len(table.training) < 2:
        raise InputError(
            "The feature table does not suit the studies.",
            "Training and held-out workloads of a modelled board, with noise-free energy, were expected.",
            "Run `make params` and `dvc repro features`.",
        )
    return {
        "schema_version": SCHEMA_VERSION,
        "board": table.board,
        "provenance": table.provenance,
        "power_mode": table.power_mode,
        "n_training": len(table.training),
        "n_held_out": len(table.held_out),
        "model_digest": digest(table.board),
        "left_out": left_out(config, table),
        "learning_curve": learning_curve(config, table),
        "ablation": ablation(config, table),
        "noise": noise(config, table),
        "baseline": baseline(config, table),
    }


def digest(board: str) -> str:
    """Digest of the modelled board that the figures rest on: the page must be made anew when it changes."""
    return VirtualBoard(file=find_board_file(board)).info.digest


# --- for people ------------------------------------------------------------------------------------------------------


def _with_interval(figures: Mapping[str, Any], key: str = "mean_regret_pct") -> str:
    interval = figures["ci95"]
    value = f"{figures[key]:.2f}"
    return value if interval is None else f"{value} [{interval[0]:.2f}, {interval[1]:.2f}]"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _by_policy(key: str, words: str, entries: Sequence[Mapping[str, Any]], n: int) -> list[str]:
    names = [name for name in ORDER if name in entries[0]["policies"]]
    head = [words, *(f"{name}, %" for name in names), f"mlg-regret declines, of {n}"]
    rows = [
        [
            f"{entry[key]:g}",
            *(_with_interval(entry["policies"][name]) for name in names),
            f"{entry['declined']:.1f}",
        ]
        for entry in entries
    ]
    return _table(head, rows)


def tables(document: Mapping[str, Any]) -> dict[str, str]:
    """The tables of the page, by the name of their place."""
    n = document["n_held_out"]
    source = f"{document['provenance'].capitalize()} (`{document['board']}`, {document['power_mode']})"
    out_rows = []
    for name, figures in sorted(document["left_out"].items()):
        row = [name, f"{figures['loo_regret_pct']:.2f}"]
        for kind in ("family", "task", "size"):
            one = figures["kinds"][kind]
            row.append(
                "unknown"
                if one is None
                else f"{one['mean_regret_pct']:.2f} (p95 {one['p95_regret_pct']:.2f}, declines {one['declined']})"
            )
        out_rows.append(row)
    ablated = [
        [
            one["without"] or "nothing",
            one["policy"],
            f"{one['loo_regret_pct']:.2f}",
            _with_interval(one, "held_out_regret_pct"),
        ]
        for one in document["ablation"]
    ]
    wrong = [
        [
            f"{one['error_pct']:+g}",
            f"{one['tree_regret_pct']:.2f}",
            f"{one['mean_regret_pct']:.2f}",
            f"{one['promised_saving_pct']:.1f}",
            f"{one['true_saving_pct']:.1f}",
            f"{one['worst_saving_pct']:.1f}",
            str(one["declined"]),
        ]
        for one in document["baseline"]
    ]
    return {
        "left-out": "\n".join(
            [
                f"{source}; {document['n_training']} training workloads, mean regret in % of their measured curves.",
                "",
                *_table(
                    ["policy", "one workload out", "one family out", "one task out", "one size class out"],
                    out_rows,
                ),
            ]
        ),
        "learning-curve": "\n".join(
            [
                f"Mean regret on {n} held-out workloads, 95 % interval over the training sets drawn.",
                "",
                *_by_policy("n", "training workloads", document["learning_curve"], n),
            ]
        ),
        "ablation": "\n".join(
            _table(["without", "policy", "leave-one-out, %", "held-out, %, 95 % interval"], ablated)
        ),
        "noise": "\n".join(
            [
                f"Mean regret on {n} held-out workloads, 95 % interval over {document['noise'][0]['seeds']} campaigns.",
                "",
                *_by_policy("noise_pct", "noise of one measurement, %", document["noise"], n),
            ]
        ),
        "baseline": "\n".join(
            _table(
                [
                    "MAXN read wrong by, %",
                    "tree, %",
                    "mlg-regret, %",
                    "saving promised, %",
                    "true, %",
                    "worst, %",
                    f"declines, of {n}",
                ],
                wrong,
            )
        ),
    }


def text(document: Mapping[str, Any]) -> str:
    """The result for people."""
    return "\n\n".join(f"{name}\n{body}" for name, body in tables(document).items())


def write(document: dict[str, Any], root: Path = Path()) -> None:
    """Save the document, refresh the page's tables and draw its figures.

    Raises:
        InputError: the page is missing or has no marks.
    """
    page = fill(read_text(root / PAGE, "The page"), tables(document), str(PAGE))
    draw(document, root / FIGURES)
    write_json(root / RESULT, document)
    write_text(root / PAGE, page)


def read(root: Path = Path()) -> dict[str, Any]:
    """The saved document."""
    document = read_json(root / RESULT, "The studies", "Run `wattune bench studies --write`.")
    assert isinstance(document, dict)
    return document


def draw(document: Mapping[str, Any], folder: Path) -> None:
    """Two figures: loss against the number of training workloads, and against noise."""
    from wattune.stages.figures import save_marked, set_margins, style, new_figure  # isort: skip

    lines = {"ffg": ("s", ":"), "mlg": ("o", "--"), TREE: ("D", "-")}
    words = {"ffg": "best fixed clock", "mlg": "label tree (mlg)", TREE: "regret tree (mlg-regret)"}
    for name, key, label in (
        ("learning_curve", "n", "training workloads"),
        ("noise", "noise_pct", "noise of one measurement (%), three repeats"),
    ):
        entries = document[name]
        with style():
            figure = new_figure(6.4, 3.4)
            axes = figure.subplots()
            for policy, (marker, line) in lines.items():
                x = [entry[key] for entry in entries]
                y = [entry["policies"][policy]["mean_regret_pct"] for entry in entries]
                spans = [
                    entry["policies"][policy]["ci95"] or [v, v] for entry, v in zip(entries, y, strict=True)
                ]
                below = [v - low for v, (low, _) in zip(y, spans, strict=True)]
                above = [high - v for v, (_, high) in zip(y, spans, strict=True)]
                axes.errorbar(
                    x,
                    y,
                    yerr=[below, above],
                    marker=marker,
                    linestyle=line,
                    color="#222222",
                    markerfacecolor="white" if policy == "ffg" else "#222222",
                    linewidth=1.0,
                    capsize=2,
                    label=words[policy],
                )
            axes.set_xlabel(label)
            axes.set_ylabel(f"mean regret on {document['n_held_out']} workloads (%)")
            axes.set_ylim(bottom=0.0)
            axes.legend(frameon=False)
            set_margins(figure, left=0.65, right=0.15, top=0.15, bottom=0.75)
            save_marked(
                figure,
                folder / f"studies-{name.replace('_', '-')}.png",
                board=document["board"],
                provenance=document["provenance"],
                footer=f"{document['board']} · {document['provenance']} · power mode {document['power_mode']} ·"
                " judged on noise-free energy · bars: 95 % interval over training sets",
            )
