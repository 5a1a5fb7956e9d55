"""The governor file: the policy that ships, as canonical JSON; read with checks, never trusted.

Format (``schema_version`` 1; JSON schema in ``wattune/schemas/governor.schema.json``)::

    {"schema_version": 1, "digest": sha256 of the file without this key, "board", "power_mode", "provenance",
     "objective", "policy", "baseline": "maxn" | null, "rails", "settings_hz": [306000000, ..., "maxn"],
     "features": [{"name", "unit", "kind", "range": [lo, hi], "default"} | {"name", "kind", "values", "default"}],
     "nodes": [{"feature", "threshold" | "category", "left", "right"} |
               {"setting_hz", "n", "expected_saving_pct", "saving_range_pct", "rel_energy", "rel_time"}],
     "training": {"fingerprint", "n_workloads", "hyper_parameters", ...}, "fallback_hz": "maxn"}

Optional: a leaf's ``rel_time_max`` (as `rel_time`, of the slowest of its training workloads; limits in time are held
against it), ``saving_interval_pct`` ([lo, hi] or null) and ``regret_bound_pct``, and at the top
``"abstain": {"beyond": 1.5, "tolerated_loss_pct": 0.5}`` (the latter 0 where it is missing). A governor that abstains leaves
MAXN untouched where a leaf's interval of the saving is unknown or includes a loss greater than the tolerated one, and where a
feature lies outside its training range by more than the factor `beyond`.

`rel_energy` and `rel_time` hold one entry per element of `settings_hz`: the mean over the leaf's training workloads,
relative to the baseline (``maxn`` where it was measured, else the least energy and its time).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError, IntegrityError
from wattune.core.features import FEATURES, Features, FeatureValue
from wattune.core.measurement import PROVENANCES
from wattune.core.objectives import ENERGY, Objective, answer_at, choose, keeps, scaled
from wattune.core.settings import MAXN, FrequencyTable, Setting, hz_to_mhz, setting_label
from wattune.core.tree import Leaf, Node, Split, Tree

SCHEMA_VERSION = 1
MAX_BYTES = 1_000_000
LOWEST_HZ, HIGHEST_HZ = 10_000_000, 5_000_000_000


def canonical_json(document: Any) -> str:
    """JSON with sorted keys, fixed separators and a newline at the end: the same data gives the same bytes."""
    return json.dumps(document, sort_keys=True, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def document_digest(document: Mapping[str, Any]) -> str:
    """SHA-256 over the canonical JSON of `document` without its ``digest`` key."""
    body = {key: value for key, value in document.items() if key != "digest"}
    return hashlib.sha256(canonical_json(body).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class FeatureRange:
    """A feature the governor asks for, with what its training rows covered.

    Attributes:
        low: least training value (numbers).
        high: greatest training value (numbers).
        values: categories seen in training.
        default: what is assumed where nobody gives a value (median or most frequent training value).
    """

    name: str
    unit: str
    kind: str
    low: float | None
    high: float | None
    values: tuple[str, ...]
    default: FeatureValue

    def covers(self, value: FeatureValue) -> bool:
        """Whether `value` lies inside what was trained on."""
        if self.kind == "category":
            return value in self.values
        if self.low is None or self.high is None or value is None:
            return False
        return self.low <= float(value) <= self.high

    def near(self, value: FeatureValue, beyond: float) -> bool:
        """Whether `value` lies inside the training range or outside by no more than the factor `beyond`."""
        if self.covers(value):
            return True
        if self.kind == "category" or self.low is None or self.high is None or value is None:
            return False
        return self.low / beyond <= float(value) <= self.high * beyond


@dataclass(frozen=True, slots=True)
class Decision:
    """A governor's answer for one workload.

    Attributes:
        setting: the clock in MHz or ``maxn``.
        rule: the path through the tree in words.
        expected_saving_pct: mean saving of the leaf against MAXN; None without a baseline.
        expected_slowdown_pct: mean slowdown of the leaf against MAXN; None where unknown.
        in_range: every feature lies inside the training range.
        out_of_range: names of the features that do not.
        abstained: the governor declined and `setting` is the safe default.
        assumed: feature -> value, for those nobody gave.
        reason: why it declined, one clause; empty where it did not.
        saving_interval_pct: the interval of the saving; None where unknown.
        feasible: the objective's limit is expected to be kept.
        limit_reason: one sentence where it is not, with the nearest setting to it, which is the one given.
        epochs: how many units of work the battery holds; None without one, and where no energy is known in joules.
    """

    setting: Setting
    rule: str
    expected_saving_pct: float | None
    expected_slowdown_pct: float | None
    in_range: bool
    out_of_range: tuple[str, ...]
    abstained: bool
    assumed: dict[str, FeatureValue] = field(default_factory=dict)
    reason: str = ""
    saving_interval_pct: tuple[float, float] | None = None
    feasible: bool = True
    limit_reason: str = ""
    epochs: float | None = None


@dataclass(frozen=True)
class Governor:
    """A checked governor.

    Attributes:
        settings: the settings its leaves may name, pinned clocks in MHz ascending, ``maxn`` last where measured.
        document: the JSON document it was read from.
        abstain_beyond: factor outside a training range at which it declines; None where it never declines.
        tolerated_loss_pct: loss against MAXN that a leaf's interval may include, percent.
    """

    board: str
    power_mode: str
    provenance: str
    objective: str
    policy: str
    baseline: str | None
    settings: tuple[Setting, ...]
    features: tuple[FeatureRange, ...]
    tree: Tree
    digest: str
    document: Mapping[str, Any]
    abstain_beyond: float | None = None
    tolerated_loss_pct: float = 0.0

    @property
    def table(self) -> FrequencyTable:
        """The clocks it may choose from."""
        return FrequencyTable(s for s in self.settings if not isinstance(s, str))

    def complete(
        self, given: Mapping[str, FeatureValue]
    ) -> tuple[dict[str, FeatureValue], dict[str, FeatureValue]]:
        """Fill features nobody gave with the training default.

        Returns:
            The full feature row, and the part that was assumed.
        """
        full: dict[str, FeatureValue] = {}
        assumed: dict[str, FeatureValue] = {}
        for feature in self.features:
            value = given.get(feature.name)
            if value is None:
                value = assumed[feature.name] = feature.default
            full[feature.name] = value
        return full, assumed

    def decide(self, given: Mapping[str, FeatureValue]) -> Decision:
        """Choose the setting for a workload described by `given` features; missing ones are assumed and listed."""
        full, assumed = self.complete(given)
        leaf, path = self.tree.walk(full)
        outside = tuple(f.name for f in self.features if not f.covers(full[f.name]))
        clock = setting_label(leaf.setting) + ("" if isinstance(leaf.setting, str) else " MHz")
        rule = f"{' and '.join(path) if path else 'always'} -> {clock}"
        reason = self._reason_to_abstain(full, leaf)
        if reason:
            known = 0.0 if self.baseline == MAXN else None
            return Decision(
                setting=MAXN,
                rule=f"{rule}, declined: {reason}",
                expected_saving_pct=known,
                expected_slowdown_pct=known,
                in_range=not outside,
                out_of_range=outside,
                abstained=True,
                assumed=assumed,
                reason=reason,
                saving_interval_pct=leaf.saving_interval_pct,
            )
        slowdown = None
        if self.baseline == MAXN:
            rel_time = leaf.rel_time[self.settings.index(leaf.setting)]
            slowdown = None if rel_time is None else 100.0 * (rel_time - 1.0)
        return Decision(
            setting=leaf.setting,
            rule=rule,
            expected_saving_pct=leaf.expected_saving_pct,
            expected_slowdown_pct=slowdown,
            in_range=not outside,
            out_of_range=outside,
            abstained=False,
            assumed=assumed,
            saving_interval_pct=leaf.saving_interval_pct,
        )

    def decide_for(
        self, given: Mapping[str, FeatureValue], objective: Objective, unit: Point | None = None
    ) -> Decision:
        """Choose the setting that an objective asks for, from the mean curves of the workload's leaf.

        A limit in time is held against the slowest training workload of the leaf at each setting, where the governor knows it:
        some of its workloads are slower than their mean. Least energy is the leaf's own answer, and stays so under a limit that
        its setting keeps. The governor declines as it does for energy; what an objective gives up in energy for time is no
        reason to decline.

        Args:
            given: features of the workload.
            objective: what is minimised, and the limit.
            unit: energy and time of one unit of work under the baseline (or of the least energy where there is no baseline); what
                limits in seconds and watts, and a battery, are counted in. An energy or time that nobody knows is ``nan`` or None.

        Raises:
            InputError: the objective needs times or `unit` and they are unknown.
        """
        plain = self.decide(given)
        if objective == ENERGY:
            return plain
        full, _ = self.complete(given)
        leaf, path = self.tree.walk(full)
        expected = self.expected_curve(given)
        if expected is None:
            raise _bad("its leaf knows no energies")
        points = self._in_units(expected.points, objective, unit)
        by_energy = objective.name in ("energy", "battery")
        held = points
        if objective.limited in ("max_slowdown_pct", "deadline_s") and leaf.rel_time_max:
            held = self._in_units(self._slowest(leaf), objective, unit)
        answer = choose(points, objective, held)
        if by_energy and leaf.setting in points and keeps(held, leaf.setting, objective):
            answer = answer_at(points, leaf.setting, objective)
        interval = self._shifted(leaf, answer.setting)
        risk = (
            by_energy and answer.feasible
        )  # the nearest to a limit that cannot be kept is no choice of energy
        asked = replace(leaf, setting=answer.setting, saving_interval_pct=interval)
        reason = self._reason_to_abstain(full, asked, risk)
        if reason and answer.setting != MAXN:
            kept = objective.limited is None or (MAXN in points and keeps(held, MAXN, objective))
            limit = "" if kept else "MAXN may not keep the limit."
            known = 0.0 if self.baseline == MAXN else None
            return replace(
                plain,
                setting=MAXN,
                rule=f"{' and '.join(path) if path else 'always'} -> {objective.text}, declined: {reason}",
                expected_saving_pct=known,
                expected_slowdown_pct=known,
                abstained=True,
                reason=reason,
                saving_interval_pct=interval,
                feasible=not limit,
                limit_reason=limit,
            )
        clock = setting_label(answer.setting) + ("" if isinstance(answer.setting, str) else " MHz")
        against_maxn = self.baseline == MAXN
        return replace(
            plain,
            setting=answer.setting,
            rule=f"{' and '.join(path) if path else 'always'} -> {clock} for {objective.text}",
            expected_saving_pct=answer.saving_pct if against_maxn else None,
            expected_slowdown_pct=answer.slowdown_pct if against_maxn else None,
            abstained=False,
            reason="",
            saving_interval_pct=interval,
            feasible=answer.feasible,
            limit_reason=answer.reason,
            epochs=answer.epochs if unit is not None and math.isfinite(unit.energy_j) else None,
        )

    def _in_units(
        self, points: Mapping[Setting, Point], objective: Objective, unit: Point | None
    ) -> dict[Setting, Point]:
        """The leaf's relative curve in joules and seconds as far as the objective needs them."""
        knows = (
            unit is not None and math.isfinite(unit.energy_j),
            unit is not None and unit.time_s is not None,
        )
        needs = (objective.absolute == "max_power_w", objective.absolute is not None)
        if any(need and not known for need, known in zip(needs, knows, strict=True)):
            what = "watts" if needs[0] else "seconds"
            raise InputError(
                f"'{objective.text}' speaks of {what}, and a governor knows shares of the baseline only.",
                "What one unit of the work takes at MAXN was expected.",
                f"Add --maxn-time-s{' and --maxn-energy-j' if needs[0] else ''}.",
            )
        energy_j = unit.energy_j if unit is not None and knows[0] else 1.0
        time_s = unit.time_s if unit is not None and knows[1] else 1.0
        return scaled(points, Point(energy_j, time_s))

    def _shifted(self, leaf: Leaf, setting: Setting) -> tuple[float, float] | None:
        """The leaf's interval of the saving, moved to another setting of it by the difference of the expected savings."""
        if leaf.saving_interval_pct is None or leaf.expected_saving_pct is None:
            return None
        energy = leaf.rel_energy[self.settings.index(setting)]
        if energy is None:
            return None
        by = 0.0 if setting == leaf.setting else 100.0 * (1.0 - energy) - leaf.expected_saving_pct
        return leaf.saving_interval_pct[0] + by, leaf.saving_interval_pct[1] + by

    def expected_curve(self, given: Mapping[str, FeatureValue]) -> EnergyCurve | None:
        """What the workload's leaf expects at every setting: mean energy and time relative to the baseline.

        Settings nobody measured are left out, times that are unknown are None; None where nothing is left.
        """
        leaf, _ = self.tree.walk(self.complete(given)[0])
        points: dict[Setting, Point] = {
            setting: Point(energy, time)
            for setting, energy, time in zip(self.settings, leaf.rel_energy, leaf.rel_time, strict=True)
            if energy is not None
        }
        return EnergyCurve(points) if points else None

    @property
    def knows_slowest(self) -> bool:
        """Whether limits in time are held against the slowest training workload of a leaf, not against their mean."""
        return all(bool(leaf.rel_time_max) for leaf in self.tree.nodes if isinstance(leaf, Leaf))

    def _slowest(self, leaf: Leaf) -> dict[Setting, Point]:
        """The leaf's mean energies with the times of its slowest training workload at each setting."""
        return {
            setting: Point(energy, time)
            for setting, energy, time in zip(self.settings, leaf.rel_energy, leaf.rel_time_max, strict=True)
            if energy is not None
        }

    def prior(self, given: Mapping[str, FeatureValue]) -> EnergyCurve | None:
        """What a probe of the workload may expect beforehand: the curve of its leaf over the clocks.

        None of work too far outside the training range, whose leaf was made by work of another kind, and of fewer than two clocks,
        which have no shape.
        """
        expected = self.expected_curve(given)
        if expected is None or self._far(self.complete(given)[0]) or len(expected.clocks) < 2:
            return None
        return EnergyCurve({clock: expected.points[clock] for clock in expected.clocks})

    def _far(self, full: Features) -> list[str]:
        """Features outside the training range by more than the factor at which it declines; none where it never does."""
        if self.abstain_beyond is None:
            return []
        return [f.name for f in self.features if not f.near(full[f.name], self.abstain_beyond)]

    def _reason_to_abstain(self, full: Features, leaf: Leaf, by_energy: bool = True) -> str:
        """Why MAXN is better left untouched; empty where the leaf's setting may be taken.

        Args:
            full: features of the workload.
            leaf: its leaf.
            by_energy: a possible loss of energy is a reason.
        """
        if self.abstain_beyond is None or leaf.setting == MAXN:
            return ""
        if far := self._far(full):
            return f"too far outside the training range: {', '.join(far)}"
        if self.baseline != MAXN or not by_energy:
            return ""  # without a baseline no saving is known, and none is promised
        if leaf.saving_interval_pct is None:
            return "how far its saving spreads is unknown"
        low, high = leaf.saving_interval_pct
        if low < -self.tolerated_loss_pct:
            return f"its saving may lie between {low:.1f} and {high:.1f} %, a loss included"
        return ""


def _bad(what: str) -> IntegrityError:
    return IntegrityError(
        f"The governor file was refused: {what}.",
        f"A complete governor.json of schema version {SCHEMA_VERSION} was expected.",
        "Fetch it again with `wattune pull`, or rebuild it with `make repro`.",
    )


def _number(value: object, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _bad(f"{name} is {value!r}, not a finite number")
    return float(value)


def _optional(value: object, name: str) -> float | None:
    return None if value is None else _number(value, name)


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str) or not value:
        raise _bad(f"'{key}' is missing or not a text")
    return value


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    if not isinstance(value, list):
        raise _bad(f"'{key}' is missing or not a list")
    return value


def _setting(value: object, allowed: Mapping[int | str, Setting] | None = None) -> Setting:
    if value == MAXN:
        setting: Setting = MAXN
    elif isinstance(value, int) and not isinstance(value, bool) and LOWEST_HZ <= value <= HIGHEST_HZ:
        setting = hz_to_mhz(value)
    else:
        raise _bad(f"{value!r} is not a clock in Hz")
    if allowed is not None and value not in allowed:
        raise _bad(f"a leaf names {value!r}, which is outside its own clock table")
    return setting


def _feature(entry: Any) -> FeatureRange:
    if not isinstance(entry, dict):
        raise _bad("a feature is not an object")
    name = _text(entry, "name")
    if name not in FEATURES:
        raise _bad(f"it asks for the unknown feature '{name}'")
    kind = FEATURES[name].kind
    if entry.get("kind") != kind:
        raise _bad(f"feature '{name}' is not of kind {kind}")
    default = entry.get("default")
    if kind == "category":
        values = _list(entry, "values")
        if not all(isinstance(v, str) for v in values) or default not in values:
            raise _bad(f"the values or the default of feature '{name}' are broken")
        return FeatureRange(name, "", kind, None, None, tuple(values), default)
    bounds = _list(entry, "range")
    if len(bounds) != 2:
        raise _bad(f"the range of feature '{name}' is broken")
    low, high = (_number(b, f"the range of '{name}'") for b in bounds)
    return FeatureRange(
        name, str(entry.get("unit", "")), kind, low, high, (), _number(default, f"default of '{name}'")
    )


def _node(entry: Any, names: frozenset[str], allowed: Mapping[int | str, Setting]) -> Node:
    if not isinstance(entry, dict):
        raise _bad("a node is not an object")
    if "feature" in entry:
        feature = _text(entry, "feature")
        if feature not in names:
            raise _bad(f"a node asks for '{feature}', which is not among its features")
        left, right = entry.get("left"), entry.get("right")
        if not (type(left) is int and type(right) is int):
            raise _bad("a node's children are not whole numbers")
        if FEATURES[feature].kind == "category":
            return Split(feature, None, _text(entry, "category"), left, right)
        return Split(feature, _number(entry.get("threshold"), "a threshold"), None, left, right)
    curves: list[tuple[float | None, ...]] = []
    for key in ("rel_energy", "rel_time", "rel_time_max"):
        if key == "rel_time_max" and key not in entry:
            curves.append(())
            continue
        values = _list(entry, key)
        if len(values) != len(allowed):
            raise _bad(f"'{key}' of a leaf does not match its clock table")
        curves.append(tuple(_optional(v, key) for v in values))
    span = entry.get("saving_range_pct")
    if span is not None and not (isinstance(span, list) and len(span) == 2):
        raise _bad("'saving_range_pct' of a leaf is broken")
    interval = entry.get("saving_interval_pct")
    if interval is not None and not (isinstance(interval, list) and len(interval) == 2):
        raise _bad("'saving_interval_pct' of a leaf is broken")
    n = entry.get("n")
    if type(n) is not int or n < 1:
        raise _bad("a leaf has no training workloads")
    return Leaf(
        setting=_setting(entry.get("setting_hz"), allowed),
        n=n,
        expected_saving_pct=_optional(entry.get("expected_saving_pct"), "expected_saving_pct"),
        saving_range_pct=None if span is None else (_number(span[0], "saving"), _number(span[1], "saving")),
        rel_energy=curves[0],
        rel_time=curves[1],
        rel_time_max=curves[2],
        saving_interval_pct=None
        if interval is None
        else (_number(interval[0], "saving"), _number(interval[1], "saving")),
        regret_bound_pct=_optional(entry.get("regret_bound_pct"), "regret_bound_pct"),
    )


def _abstention(document: Mapping[str, Any]) -> tuple[float | None, float]:
    """Factor outside the range at which it declines (None: it never does), and the loss it tolerates in percent."""
    if "abstain" not in document:
        return None, 0.0
    rule = document["abstain"]
    beyond = _number(rule.get("beyond") if isinstance(rule, dict) else rule, "'beyond' of its abstention")
    if beyond < 1.0:
        raise _bad(f"it abstains beyond {beyond:g} times the training range, less than 1")
    tolerated = _number(rule.get("tolerated_loss_pct", 0.0), "'tolerated_loss_pct' of its abstention")
    if tolerated < 0.0:
        raise _bad(f"it tolerates a loss of {tolerated:g} %, less than 0")
    return beyond, tolerated


def parse_governor(text: str | bytes) -> Governor:
    """Read a governor file with every check that keeps a board safe.

    Raises:
        IntegrityError: truncated or no JSON, another schema version, wrong digest, clocks outside the table or
            outside sane bounds, unknown features, or a tree with a cycle.
    """
    if len(text) > MAX_BYTES:
        raise _bad(f"it is larger than {MAX_BYTES} bytes")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _bad("it is not complete JSON") from error
    if not isinstance(document, dict):
        raise _bad("it is not a JSON object")
    if document.get("schema_version") != SCHEMA_VERSION:
        raise _bad(f"its schema version is {document.get('schema_version')!r}")
    try:
        digest = document_digest(document)
    except ValueError as error:
        raise _bad("it holds numbers that are not finite") from error
    if document.get("digest") != digest:
        raise _bad("its digest does not match its content")
    provenance = _text(document, "provenance")
    if provenance not in PROVENANCES:
        raise _bad(f"its provenance is {provenance!r}")
    raw_settings = _list(document, "settings_hz")
    allowed: dict[int | str, Setting] = {
        value: _setting(value) for value in raw_settings if isinstance(value, (int, str))
    }
    settings = tuple(allowed.values())
    clocks = [s for s in settings if not isinstance(s, str)]
    if len(settings) != len(raw_settings) or not clocks or clocks != sorted(clocks):
        raise _bad("its clock table is empty, unsorted or has duplicates")
    baseline = document.get("baseline")
    if baseline not in (None, MAXN) or (baseline == MAXN and MAXN not in settings):
        raise _bad(f"its baseline is {baseline!r}")
    if document.get("fallback_hz") != MAXN:
        raise _bad("its fallback is not 'maxn'")
    features = tuple(_feature(entry) for entry in _list(document, "features"))
    names = frozenset(f.name for f in features)
    beyond, tolerated = _abstention(document)
    nodes = [_node(entry, names, allowed) for entry in _list(document, "nodes")]
    return Governor(
        board=_text(document, "board"),
        power_mode=_text(document, "power_mode"),
        provenance=provenance,
        objective=_text(document, "objective"),
        policy=_text(document, "policy"),
        baseline=baseline,
        settings=settings,
        features=features,
        tree=Tree(nodes),
        digest=digest,
        document=document,
        abstain_beyond=beyond,
        tolerated_loss_pct=tolerated,
    )


def governor_document(
    *,
    board: str,
    power_mode: str,
    provenance: str,
    objective: str,
    policy: str,
    rails: str,
    baseline: str | None,
    settings: tuple[Setting, ...],
    features: tuple[FeatureRange, ...],
    tree: Tree,
    training: Mapping[str, Any],
    abstain_beyond: float | None = None,
    tolerated_loss_pct: float = 0.0,
) -> dict[str, Any]:
    """The JSON document of a governor, digest included; inverse of :func:`parse_governor`."""

    def hz(setting: Setting) -> int | str:
        return setting if isinstance(setting, str) else round(setting * 1e6)

    def feature(f: FeatureRange) -> dict[str, Any]:
        if f.kind == "category":
            return {"name": f.name, "kind": f.kind, "values": list(f.values), "default": f.default}
        return {
            "name": f.name,
            "unit": f.unit,
            "kind": f.kind,
            "range": [f.low, f.high],
            "default": f.default,
        }

    def node(n: Node) -> dict[str, Any]:
        if isinstance(n, Split):
            test = {"threshold": n.threshold} if n.category is None else {"category": n.category}
            return {"feature": n.feature, **test, "left": n.left, "right": n.right}
        return {
            "setting_hz": hz(n.setting),
            "n": n.n,
            "expected_saving_pct": n.expected_saving_pct,
            "saving_range_pct": None if n.saving_range_pct is None else list(n.saving_range_pct),
            "rel_energy": list(n.rel_energy),
            "rel_time": list(n.rel_time),
            **({"rel_time_max": list(n.rel_time_max)} if n.rel_time_max else {}),
            **spread(n),
        }

    def spread(leaf: Leaf) -> dict[str, Any]:
        if leaf.saving_interval_pct is None and leaf.regret_bound_pct is None:
            return {}  # a governor without spreads keeps its bytes
        interval = leaf.saving_interval_pct
        return {
            "saving_interval_pct": None if interval is None else list(interval),
            "regret_bound_pct": leaf.regret_bound_pct,
        }

    tolerated = {"tolerated_loss_pct": tolerated_loss_pct} if tolerated_loss_pct else {}
    document: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "board": board,
        "power_mode": power_mode,
        "provenance": provenance,
        "objective": objective,
        "policy": policy,
        "rails": rails,
        "baseline": baseline,
        "settings_hz": [hz(s) for s in settings],
        "features": [feature(f) for f in features],
        "nodes": [node(n) for n in tree.nodes],
        "training": dict(training),
        "fallback_hz": MAXN,
        **({} if abstain_beyond is None else {"abstain": {"beyond": abstain_beyond, **tolerated}}),
    }
    document["digest"] = document_digest(document)
    return document
