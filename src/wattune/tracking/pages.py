"""What people read in MLflow's pages: names, metrics, notes, saved views and the description of a model version.

MLflow shows Markdown in the notes of experiments and runs and in descriptions of models; links and pictures in it are
addresses relative to the page, so they hold on whatever host the server runs. A saved view is a tag of the experiment:
columns, filter and charts, one click away under `Views`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from wattune.core.policies import POLICY_ORDER
from wattune.tracking.card import PROVENANCE_WORDS, gate_section, number, table, tree_section, with_interval
from wattune.tracking.results import Results, policy_place

NOTE_TAG = "mlflow.note.content"
KIND_TAG = "mlflow.experimentKind"
TRAINING_KIND = "custom_model_development"
"""The experiment's kind for MLflow's pages: runs, metrics and models; not prompts and traces."""
COLOR_TAG = "mlflow.runColor"
VIEW_TAG = "mlflow.sharedViewState."
POLICIES_VIEW, SEARCH_VIEW = "wattune-policies", "wattune-search"
TABLE_FILE = "workloads.json"
CARD_FILE = "model_card.md"
REPORT_FILE = "report.html"
LONGEST_DESCRIPTION = 5000

HEADLINES = {
    "mean_saving_pct": "mean saving against MAXN, %",
    "mean_slowdown_pct": "mean slowdown against MAXN, %",
    "mean_regret_pct": "mean regret: energy above the best setting, %",
    "min_saving_pct": "saving of the worst workload, %",
    "max_saving_pct": "saving of the best workload, %",
    "p95_regret_pct": "regret, 95th percentile, %",
    "max_regret_pct": "regret of the worst workload, %",
}
"""The metrics of every policy, the ones to look at first."""
SIZES = ("large", "small")
SEARCH_HEADLINES = {
    "loo_regret_pct": "leave-one-out regret, %",
    "loo_accuracy": "leave-one-out accuracy",
    "leaves": "leaves of the tree",
    "depth": "depth of the tree",
}
HYPER_PARAMETERS = ("policy", "max_depth", "min_samples_leaf", "criterion", "prune_pct")
# Okabe and Ito's colours as the figures use them, in the order of the policies.
_COLORS = ("#777777", "#E69F00", "#009E73", "#56B4E9", "#D55E00", "#CC79A7", "#B8A800", "#000000", "#0072B2")
_TABLE_COLUMNS = ("workload", "setting", "oracle_setting")
_TABLE_NUMBERS = ("saving_pct", "slowdown_pct", "regret_pct", "energy_j", "time_s")


def run_name(policy: str) -> str:
    """Name of a policy's run: its place, then its name, so that any list of names is in the order of the tables."""
    return f"{policy_place(policy) + 1:02d} {policy}"


def run_color(policy: str) -> str | None:
    """The policy's colour in charts, the one of the figures; None for a policy that has none."""
    return _COLORS[policy_place(policy)] if policy in POLICY_ORDER else None


def run_metrics(groups: Mapping[str, Any]) -> dict[str, float]:
    """The metrics of a policy's run: the same names for every policy; unknown ones are left out.

    The headlines come first and have plain names. MLflow makes a section of its charts of what stands before a slash:
    ``large/`` and ``small/`` are the same figures by size of model, ``ci95/`` the ends of 95 % intervals.

    Args:
        groups: a policy's part of ``metrics.json``.
    """
    found = {}
    for prefix, result in [("", groups["all"])] + [(f"{size}/", groups.get(size, {})) for size in SIZES]:
        for name in HEADLINES:
            if result.get(name) is not None:
                found[prefix + name] = float(result[name])
        if "n" in result:
            found[f"{prefix}n_workloads"] = float(result["n"])
    for name in ("mean_saving", "mean_slowdown", "mean_regret"):
        low_high = groups["all"].get(f"{name}_ci95")
        if low_high is not None:
            found[f"ci95/{name}_low_pct"], found[f"ci95/{name}_high_pct"] = map(float, low_high)
    return found


def table_rows(rows: Sequence[Mapping[str, str]], policy: str) -> Iterator[dict[str, object]]:
    """What a policy did on every workload: what it picked, what was best, what that saved and cost."""
    for row in rows:
        if row["policy"] != policy:
            continue
        yield {name: row[name] for name in _TABLE_COLUMNS} | {
            name: float(row[name]) if row.get(name) else None for name in _TABLE_NUMBERS
        }


# --- addresses within MLflow's pages ---------------------------------------------------------------------------------


_FOR_MODELS = "workflowType=machine_learning"
"""Makes MLflow show runs and models; by itself it starts with pages about prompts and traces."""


def view_link(experiment_id: str, view: str, mode: str = "CHART") -> str:
    """Address of a saved view; `mode` is MLflow's: ``TABLE``, ``CHART`` or ``ARTIFACT``."""
    return f"#/experiments/{experiment_id}/runs?{_FOR_MODELS}&viewStateShareKey={view}&compareRunsMode={mode}"


def model_link(name: str) -> str:
    """Address of the page of a registered model."""
    return f"#/models/{quote(name)}?{_FOR_MODELS}"


def artifact_link(experiment_id: str, run_id: str, path: str) -> str:
    """Address of the page that previews a run's artifact."""
    return f"#/experiments/{experiment_id}/runs/{run_id}/artifacts/{quote(path)}?{_FOR_MODELS}"


def picture(run_id: str, path: str, says: str) -> str:
    """Markdown that shows an artifact of a run as a picture."""
    return f"![{says}](get-artifact?path={quote(path, safe='')}&run_uuid={run_id})"


# --- notes -----------------------------------------------------------------------------------------------------------


def _figures_of(result: Mapping[str, Any]) -> str:
    saving, slowdown, regret = (
        with_interval(result.get(f"mean_{name}_pct"), result.get(f"mean_{name}_ci95"))
        for name in ("saving", "slowdown", "regret")
    )
    worst = number(result.get("min_saving_pct"))
    return f"saving **{saving} %** (worst {worst} %), slowdown **{slowdown} %**, regret **{regret} %**"


def _judged(results: Results) -> str:
    meta = results.meta
    return (
        f"{meta['n_workloads']} workloads ({str(meta['split']).replace('_', ' ')}, {meta['judged_on']}), power mode "
        f"{meta['power_mode']}, rails {meta['rails']}"
    )


def story(results: Results, policy: str, figure: str | None = None) -> str:
    """A few sentences on a policy for people who open its run.

    Args:
        results: what was found.
        policy: whose run it is.
        figure: address of the figure that compares all policies.
    """
    simulated = "**Simulated: a modelled board, no measurement.** " if _simulated(results) else ""
    text = (
        f"{simulated}`{policy}` on `{results.meta['board']}`: {_figures_of(results.metrics[policy]['all'])}. Means over "
        f"{_judged(results)}; brackets are 95 % intervals."
    )
    if policy == results.policy:
        text += f"\n\nThis is the governor `{results.governor.digest}`; its figures, card and report are under Artifacts."
    if figure is not None:
        text += f" [Beside the others]({figure})."
    return text


def _simulated(results: Results) -> bool:
    return str(results.meta["provenance"]) == "simulated"


def experiment_note(
    results: Results, experiment_id: str, run_id: str, model: str, figure: str | None, report: bool
) -> str:
    """The note of the experiment: where to click first, then what was found, last published first.

    Args:
        results: what was found.
        experiment_id: of the experiment.
        run_id: of the governor's run.
        model: name of the registered model.
        figure: path of an artifact of that run to show.
        report: whether that run has the report page.
    """
    links = [
        f"**[Compare the policies]({view_link(experiment_id, POLICIES_VIEW)})**",
        f"[as a table]({view_link(experiment_id, POLICIES_VIEW, 'TABLE')})",
        f"[the search for the tree]({view_link(experiment_id, SEARCH_VIEW)})",
        f"[the registered model]({model_link(model)})",
    ]
    if report:
        links.append(f"[the report page]({artifact_link(experiment_id, run_id, REPORT_FILE)})")
    parts = [
        " · ".join(links),
        f"> {PROVENANCE_WORDS[results.governor.provenance]}",
        f"Policies that pick a GPU clock on `{results.governor.board}`, one run each. Published last: {_judged(results)}.",
        _policies(results),
    ]
    if figure is not None:
        parts.append(picture(run_id, figure, "Savings, regret and slowdown of every policy"))
    return "\n\n".join(parts)


def _policies(results: Results) -> str:
    """The policies in few columns; the governor's own in bold."""
    rows = []
    for name, groups in results.metrics.items():
        own = groups["all"]
        rows.append(
            (
                f"**{name}**" if name == results.policy else name,
                with_interval(own.get("mean_saving_pct"), own.get("mean_saving_ci95")),
                with_interval(own.get("mean_slowdown_pct"), own.get("mean_slowdown_ci95")),
                number(own.get("mean_regret_pct"), 2),
                number(own.get("min_saving_pct")),
                number(own.get("max_regret_pct")),
            )
        )
    header = (
        "policy",
        "saving % [95 % interval]",
        "slowdown %",
        "regret %",
        "worst saving %",
        "worst regret %",
    )
    return table(header, rows)


# --- saved views -----------------------------------------------------------------------------------------------------


_COLUMN_PIXELS = 160  # the longest name of a headline fits


def _view(
    *,
    query: str,
    sort: str,
    columns: Sequence[str],
    charts: Sequence[dict[str, Any]],
    sections: Sequence[str],
) -> str:
    state = {
        "searchFilter": query,
        "orderByKey": sort,
        "orderByAsc": True,
        "startTime": "ALL",
        "lifecycleFilter": "Active",
        "modelVersionFilter": "All Runs",
        "datasetsFilter": [],
        "selectedColumns": list(columns),
        "columnOrder": list(columns),
        "columnWidths": dict.fromkeys(columns, _COLUMN_PIXELS),
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "compareRunSections": [
            {
                "uuid": name,
                "name": name,
                "display": name != "ci95",
                "isReordered": True,
                "deleted": False,
                "isGenerated": True,
            }
            for name in sections
        ],
        "compareRunCharts": [
            {"uuid": f"chart-{index}", "deleted": False, "isGenerated": False} | chart
            for index, chart in enumerate(charts)
        ],
    }
    return json.dumps(state, sort_keys=True)


def _bar(metric: str, section: str, title: str) -> dict[str, Any]:
    return {
        "type": "BAR",
        "metricKey": metric,
        "displayName": title,
        "metricSectionId": section,
        "runsCountToCompare": 20,
    }


def _parallel(params: Sequence[str], metrics: Sequence[str], section: str) -> dict[str, Any]:
    return {
        "type": "PARALLEL",
        "selectedParams": list(params),
        "selectedMetrics": list(metrics),
        "showAllRuns": False,
        "metricSectionId": section,
        "runsCountToCompare": 50,
    }


MAIN_SECTION = "Model metrics"
"""MLflow's own name of the section of metrics without a slash."""


def policies_view(query: str) -> str:
    """State of the view that compares the policies of one publication.

    Args:
        query: finds their runs.
    """
    names = list(HEADLINES)
    charts = [_bar(name, MAIN_SECTION, name) for name in names]
    charts.insert(3, _parallel(["policy"], names[:3], MAIN_SECTION))
    charts += [_bar(f"{size}/{name}", size, name) for size in SIZES for name in names]
    columns = [f"metrics.`{name}`" for name in HEADLINES] + ["attributes.`Models`"]
    sections = (MAIN_SECTION, *SIZES, "ci95")
    return _view(query=query, sort="params.`policy`", columns=columns, charts=charts, sections=sections)


def search_view(query: str) -> str:
    """State of the view of the leave-one-out search: hyper-parameters against regret.

    Args:
        query: finds its runs.
    """
    charts = [_parallel(HYPER_PARAMETERS[:3], ["loo_regret_pct"], MAIN_SECTION)]
    charts += [_bar(name, MAIN_SECTION, name) for name in SEARCH_HEADLINES]
    columns = [f"params.`{name}`" for name in HYPER_PARAMETERS]
    columns += [f"metrics.`{name}`" for name in SEARCH_HEADLINES] + ["tags.`chosen`", "tags.`ships`"]
    best_first = "metrics.`loo_regret_pct`"
    return _view(query=query, sort=best_first, columns=columns, charts=charts, sections=(MAIN_SECTION,))


def view_tag(name: str, state: str, before: str | None, now_ms: int) -> str:
    """The value of the tag that keeps a saved view; `before` itself where nothing changed.

    Args:
        name: shown in the list of views.
        state: of the view.
        before: the tag's present value.
        now_ms: the time, in milliseconds since 1970.
    """
    created_ms = now_ms
    if before is not None:
        try:
            old = json.loads(before)
            if (old["name"], old["state"]) == (name, state):
                return before
            created_ms = int(old["createdAt"])
        except (ValueError, KeyError, TypeError):
            pass  # somebody's own: replaced
    return json.dumps({"name": name, "createdAt": created_ms, "updatedAt": now_ms, "state": state})


# --- the registered model --------------------------------------------------------------------------------------------


def description(
    results: Results, lineage: Sequence[tuple[str, str]], card_link: str, shown: str | None
) -> str:
    """What the pages of a registered model and its version say: card in short, tree, gate, lineage.

    At most 5000 characters, MLflow's limit: parts that do not fit are named and found in the whole card.

    Args:
        results: what was found.
        lineage: names and values of where it came from.
        card_link: address of the whole card.
        shown: Markdown of a picture.
    """
    governor = results.governor
    figures = _figures_of(results.metrics[results.policy]["all"])
    head = [
        f"# Governor `{governor.policy}` for `{governor.board}` ({governor.provenance})",
        f"> {PROVENANCE_WORDS[governor.provenance]}",
        f"Gate: **{results.decision['verdict']}**. {figures[0].upper()}{figures[1:]}, over {_judged(results)}.",
    ]
    foot = f"[The whole card]({card_link}): intended use, results by task, where it is bad, limits, training."
    parts = {
        "Lineage": table(("", ""), [(name, f"`{value}`") for name, value in lineage]),
        "The tree": tree_section(results),
        "The gate": gate_section(results),
        "Policies": _policies(results),
        "Picture": shown or "",
    }
    order = ("Policies", "The tree", "The gate", "Lineage", "Picture")
    room = LONGEST_DESCRIPTION - len("\n\n".join([*head, foot])) - 200
    fits, left_out = set(), []
    for name, text in parts.items():  # the most telling first
        cost = len(f"\n\n## {name}\n\n{text}")
        if cost <= room:
            fits.add(name)
            room -= cost
        elif text:
            left_out.append(name.lower())
    body = [
        parts[name] if name == "Picture" else f"## {name}\n\n{parts[name]}"
        for name in order
        if name in fits and parts[name]
    ]
    if left_out:
        foot += f" Too long for here: {', '.join(left_out)}."
    return "\n\n".join([*head, *body, foot])
