"""The probe: measure at most three clocks, see which physical curves agree, and pick.

A seeded library of curves stands for what a GPU may do as its clock x (a share of the table's top clock) changes:

- time: a part that scales with 1/x and a part that does not, added or overlapping, ``((r/x)^p + 1)^(1/p)``;
- voltage: a floor up to a knee, then a straight rise to 1 at the top;
- energy: static power times time, power of a running clock x V^2 times time, and work at V^2 each.

Every curve is weighted by how well its *shape* meets the measured energies and times (their levels are free), under a noise
(Student's t) that the reader may know or not. The weighted curves give the prediction, its spread, and what is lost on average by
stopping here. The first two clocks lie apart, the third is where the most can be gained.

A curve expected beforehand (the workload's leaf in a tree) joins the library as a family of its own: itself, tilted and bent a
little at random. Before anything is measured, that family and the library weigh the same; the measurements decide. Standard library
only: a board runs this while it trains.
"""

from __future__ import annotations

import heapq
import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from wattune.core.curve import EnergyCurve, Point
from wattune.core.errors import InputError
from wattune.core.objectives import ENERGY, Objective, choose, cost_of, keeps
from wattune.core.settings import MAXN, FrequencyTable, Setting

LIBRARY_SIZE = 3000
LIBRARY_SEED = 1
KEPT = 120
"""Curves of greatest weight that a prediction is made of."""

EFFECTIVE = 20.0
"""Curves that a prediction rests on at least (inverse sum of squared weights): a library has gaps, and where few of its curves come
close, which of them comes closest is chance. What speaks for each is weakened until so many have a say."""

STARTS = (0.25, 0.6)
"""Where the first two clocks lie between the lowest clock worth asking (0) and the top clock (1).

On curves drawn from the library itself 0.2 to 0.3 with 0.6 to 0.7 lose about the same; within that, the recorded sweeps at hand were
looked at too, so their figures flatter a little. `wattune bench probe` moves both."""

LOWEST_SHARE = 0.2
"""A first probe goes to no clock below this share of the top clock, where a step takes five times as long."""

MAX_PROBES = 3
MAX_STEPS = 30
RUN_SHARE = 0.01
"""Part of a run that probing may take. Without a prior every probe has one step all the same: there is nothing else to go by."""

STOP_PCT = 0.02
"""Expected loss, percent, below which no further clock is measured where the length of the run is unknown."""

CURVE_REL = 0.0071
"""How far the nearest curve of the library lies from a real one, relative: what no curve has."""

NOISE_REL = 0.0071
"""Relative error of one reading where the reader does not know it; with :data:`CURVE_REL` together 1 %."""

NOISE_DOF = 4.0
"""How firmly (Student's t) the two are held."""

FAMILY_SIZE = 300
"""Curves made of a prior."""

FAMILY_REL = 0.02
"""Standard deviation of a family's tilt and bend: relative change of energy or time per e-fold of the clock, and per its square."""

FAMILY_SHARE = 0.5
"""What the family weighs before anything is measured; the library weighs the rest."""

DOUBT_ERRORS = 3.0
"""Standard errors of the difference by which a clock must beat the clocks left alone where a governor declined to name one.

A normal error is greater once in 740 times: whoever declines promises that no choice loses, and hundreds are made."""

EXPONENTS = {"edp": (1.0, 1.0), "ed2p": (1.0, 2.0), "time": (0.0, 1.0)}
"""Objective -> powers of energy and time in what it minimises; energy alone for those not named."""

Measure = Callable[[float], "tuple[float, float | None] | tuple[float, float | None, float]"]
"""Clock in MHz -> energy in joules and time in seconds of one unit of work; the time is None where nobody knows it. Where the work
itself is known only within a relative standard error, as steps on batches of differing length are, that comes third: energy and time
are then off by one and the same factor, and their ratio, the power, is not."""

Law = tuple[float, float, float, float, float, float, float]
"""Ratio r of the scaling to the constant part of time at the top clock, overlap p, knee (share of the top clock), voltage floor
(over the top's), and the shares of static power, clock power and work in the energy at the top clock."""


def law_at(law: Law, x: float) -> tuple[float, float]:
    """Logarithms of a curve's energy and time at the clock x, both 0 at the top clock."""
    r, p, knee, floor, static, running, work = law
    time = (r / x + 1.0) / (r + 1.0) if p == 1.0 else (((r / x) ** p + 1.0) / (r**p + 1.0)) ** (1.0 / p)
    v = floor if x <= knee else floor + (1.0 - floor) * (x - knee) / (1.0 - knee)
    v *= v
    return math.log((static + running * x * v) * time + work * v), math.log(time)


@lru_cache(maxsize=2)
def library(size: int = LIBRARY_SIZE, seed: int = LIBRARY_SEED) -> tuple[Law, ...]:
    """The seeded curves, drawn when first asked for.

    The plain cases have weight of their own: a time that no clock changes, parts of time that simply add up, a voltage that
    never changes, no work apart from the power of a running clock.
    """
    rng = random.Random(seed)
    laws: list[Law] = []
    for _ in range(size):
        ratio = 0.01 if rng.random() < 0.1 else 0.1 * 200.0 ** rng.random()
        overlap = 1.0 if rng.random() < 0.4 else 8.0 ** rng.random()
        knee = rng.uniform(0.1, 0.85)
        floor = 1.0 if rng.random() < 0.1 else rng.uniform(0.5, 1.0)
        if rng.random() < 0.3:
            parts = [rng.expovariate(1.0) for _ in range(3)]
            static, running, work = (part / sum(parts) for part in parts)
        else:
            static = rng.uniform(0.0, 0.95)
            running, work = 1.0 - static, 0.0
        laws.append((ratio, overlap, knee, floor, static, running, work))
    return tuple(laws)


@lru_cache(maxsize=128)
def library_at(x: float) -> tuple[tuple[float, float], ...]:
    """Per curve of the library the logarithms of energy and time at the clock x; kept, for a table's clocks come again."""
    return tuple(law_at(law, x) for law in library())


def family(prior: EnergyCurve, table: Sequence[float]) -> tuple[tuple[tuple[float, float], ...], ...]:
    """Curves around a prior, the prior itself first: per curve the logarithms of energy and time at every clock of the table.

    Between and beyond the prior's clocks it is taken to be straight in logarithms. Where it has no times, every curve takes those of a
    curve of the library. A prior of fewer than two clocks has no shape, and no family.
    """
    clocks = prior.clocks
    if len(clocks) < 2:
        return ()
    energies = [math.log(prior.energy_j(mhz)) for mhz in clocks]
    told = [point.time_s for point in (prior.points[mhz] for mhz in clocks)]
    times = [math.log(t) for t in told if t is not None]
    known = len(times) == len(clocks)
    energy = [_straight(clocks, energies, mhz) for mhz in table]
    time = [_straight(clocks, times, mhz) for mhz in table] if known else []
    from_best = [math.log(mhz / prior.best_clock) for mhz in table]
    rng = random.Random(LIBRARY_SEED)
    curves = []
    for k in range(FAMILY_SIZE):
        tilt, bend, late = (rng.gauss(0.0, FAMILY_REL if k else 0.0) for _ in range(3))
        if not known:
            time = [law_at(library()[k], mhz / table[-1])[1] for mhz in table]
        curves.append(
            tuple(
                (e + tilt * z + bend * z * z, t + late * z)
                for e, t, z in zip(energy, time, from_best, strict=True)
            )
        )
    return tuple(curves)


def _straight(clocks: Sequence[float], values: Sequence[float], mhz: float) -> float:
    """The value at a clock, straight in the clock's logarithm between the neighbours, or beyond the last two."""
    right = min(max(1, bisect_left(clocks, mhz)), len(clocks) - 1)
    share = math.log(mhz / clocks[right - 1]) / math.log(clocks[right] / clocks[right - 1])
    return values[right - 1] + share * (values[right] - values[right - 1])


@dataclass(frozen=True, slots=True)
class Predicted:
    """What the probe thinks of one clock.

    Attributes:
        energy_j: energy of one unit of work.
        time_s: its time; None where no time was measured.
        spread_pct: standard deviation of the energy over the curves that agree with what was measured, percent.
        error_rel: relative standard error of what the objective minimises: that spread, the readings' noise, and what no curve has.
    """

    energy_j: float
    time_s: float | None
    spread_pct: float
    error_rel: float


@dataclass(frozen=True)
class ProbeResult:
    """What was measured, what was made of it, and what it took.

    Attributes:
        chosen: the clock, MHz.
        probes: clocks in the order they were measured.
        measured: what was read there.
        predicted: every clock of the table; empty where nothing was measured.
        expected_loss_pct: mean loss of the choice against the best clock, over the curves that agree.
        noise_rel: misfit of the curves to the measurements, relative: noise and what no curve has.
        steps: training steps that the probes took.
        energy_j: energy of these steps.
        extra_j: of it, what the same steps would not have cost at the chosen clock; negative where they were cheaper.
        stopped_early: fewer clocks were measured than allowed.
        why: one sentence on why it stopped.
        prior_kept: a prior was given, and its family still weighs at least half after the measurements.
        feasible: the objective's limit can be kept, as far as predicted.
        reason: one sentence where it cannot.
        objective: what was minimised.
        reading_error_rel: relative standard error of one reading of what is minimised.
    """

    chosen: float
    probes: tuple[float, ...]
    measured: tuple[Point, ...]
    predicted: dict[float, Predicted]
    expected_loss_pct: float
    noise_rel: float
    steps: int
    energy_j: float
    extra_j: float
    stopped_early: bool
    why: str
    prior_kept: bool = False
    feasible: bool = True
    reason: str = ""
    objective: Objective = ENERGY
    reading_error_rel: float = 0.0

    def beats(self, bases: Sequence[Point], errors: float = 0.0) -> bool:
        """Whether the chosen clock is better than the clocks left alone, as far as measured.

        Args:
            bases: readings, of the same unit of work as the probes', with the clocks left alone.
            errors: standard errors of the difference that must lie between the two: 0 asks which is better on average,
                :data:`DOUBT_ERRORS` for more than noise explains. A clock that was not measured is then never better.
        """
        if not self.probes:  # what was expected beforehand is a share, and no joules
            return errors == 0.0
        if not keeps({MAXN: bases[0]}, MAXN, self.objective):
            return True
        if not self.feasible:
            return False
        return self._margin(self.chosen, bases, errors) > 0.0

    def _margin(self, mhz: float, bases: Sequence[Point], errors: float) -> float:
        """By how much a clock is cheaper than the clocks left alone, relative, less so many standard errors."""
        there = self.predicted[mhz]
        cost = math.log(cost_of(self.objective, Point(there.energy_j, there.time_s)))
        base = sum(math.log(cost_of(self.objective, point)) for point in bases) / len(bases)
        return (
            base - cost - errors * math.hypot(self.reading_error_rel / math.sqrt(len(bases)), there.error_rel)
        )

    def shown_to_beat(self, base: Point, again: Callable[[], Point]) -> tuple[float | None, int]:
        """The clock that beats the clocks left alone by more than noise explains.

        Only a clock that was measured can be shown to: what curves say of one beyond the measured ones may all be wrong together.
        Where the chosen one was not measured, it is the best of those that were. While it is better on average and not shown to be,
        the clocks left alone are read again, :data:`MAX_PROBES` times in all: so the work runs where nothing is shown, and it costs
        nothing.

        Args:
            base: the first reading with the clocks left alone.
            again: reads once more.

        Returns:
            The clock, None where there is none, and how often the clocks left alone were read.
        """
        points: dict[Setting, Point] = {mhz: Point(p.energy_j, p.time_s) for mhz, p in self.predicted.items()}
        measured = [mhz for mhz in self.probes if keeps(points, mhz, self.objective)]
        if not measured:
            return None, 1
        best = min(measured, key=lambda mhz: (mhz != self.chosen, cost_of(self.objective, points[mhz])))
        at_best, bases = replace(self, chosen=best), [base]
        while not at_best.beats(bases, DOUBT_ERRORS):
            if len(bases) == MAX_PROBES or not at_best.beats(bases):
                return None, len(bases)
            bases.append(again())
        return best, len(bases)


@dataclass(frozen=True, slots=True)
class _Belief:
    """The curves that agree with what was measured.

    Attributes:
        weights: of the kept curves, summing to 1.
        energy: per kept curve the energy at every clock of the table.
        time: the same of time; empty where no time was measured.
        noise_rel: weighted misfit.
        prior_share: what the prior's family weighs.
    """

    weights: list[float]
    energy: list[list[float]]
    time: list[list[float]]
    noise_rel: float
    prior_share: float


@dataclass(frozen=True, slots=True)
class _Choice:
    index: int
    losses: list[float]
    feasible: bool = True
    reason: str = ""


@dataclass
class Probe:
    """Measures a few clocks of a table and picks one.

    Args:
        table_mhz: the clocks; order and spacing do not matter.
        measure: reads one clock.
        prior: a curve expected beforehand, e.g. of the workload's leaf in a tree, with times or without; its level does not matter.
            The first probe goes to its best clock, and a run too short to be probed within :data:`RUN_SHARE` is not probed.
        noise_rel: relative standard error of one reading, where the reader knows it (say from repeats); None where it does not.
        max_probes: clocks measured at most.
        objective: what is minimised.
        unit_steps: training steps in the unit of work that `measure` speaks of (an epoch); None where it speaks of the probe's own
            window.
        run_steps: training steps of the whole run; None where unknown.
        starts: see :data:`STARTS`.

    Raises:
        InputError: no clocks, a clock that is no positive number, less than one probe, or a noise that is no share.
    """

    table_mhz: Sequence[float]
    measure: Measure
    prior: EnergyCurve | None = None
    noise_rel: float | None = None
    max_probes: int = MAX_PROBES
    objective: Objective = ENERGY
    unit_steps: float | None = None
    run_steps: int | None = None
    starts: tuple[float, float] = STARTS
    _probed: list[int] = field(init=False, default_factory=list)
    _points: list[Point] = field(init=False, default_factory=list)
    _shared: list[float] = field(init=False, default_factory=list)
    _at_probes: list[list[tuple[float, float]]] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._table = tuple(FrequencyTable(self.table_mhz))
        if self.max_probes < 1:
            raise InputError(f"{self.max_probes} probes measure nothing.", "At least one was expected.")
        if self.noise_rel is not None and not 0.0 <= self.noise_rel < 1.0:
            raise InputError(
                f"The error of a reading is {self.noise_rel:g}.", "A share from 0 to below 1 was expected."
            )
        self._x = [mhz / self._table[-1] for mhz in self._table]
        self._laws = library()
        noise = NOISE_REL if self.noise_rel is None else self.noise_rel
        variance = CURVE_REL**2 + noise**2
        self._error_rel = math.sqrt(variance)
        self._trust = CURVE_REL**2 / variance
        self._family = () if self.prior is None else family(self.prior, self._table)
        expected = [e for e, _ in self._family[0]] if self._family else [0.0]
        self._dearest = math.exp(max(expected) - min(expected))
        shares = (1.0, 0.0) if not self._family else (1.0 - FAMILY_SHARE, FAMILY_SHARE)
        self._scores = [math.log(shares[0] / len(self._laws))] * len(self._laws)
        self._scores += [math.log(shares[1] / len(self._family)) for _ in self._family]

    @property
    def steps_all(self) -> int:
        """Training steps for all probes together: at most :data:`MAX_STEPS` and :data:`RUN_SHARE` of the run.

        With a prior that share is one of energy, were every step taken at the dearest clock the prior knows of.
        """
        if self.run_steps is None:
            return MAX_STEPS
        return min(MAX_STEPS, math.floor(RUN_SHARE * self.run_steps / self._dearest))

    @property
    def steps_each(self) -> int:
        """Training steps per probe, one at least."""
        return max(1, self.steps_all // self._allowed)

    @property
    def _allowed(self) -> int:
        """Clocks that may be measured; with a prior to go by, no more than the run has steps for, and two at least."""
        allowed = min(self.max_probes, len(self._table))
        return min(allowed, max(2, self.steps_all)) if self._family else allowed

    def run(self) -> ProbeResult:
        """Measure, and pick.

        Raises:
            InputError: a measurement is no positive number, or the objective needs times and there are none.
        """
        self._probed.clear()
        self._points.clear()
        self._shared.clear()
        self._at_probes.clear()
        allowed = self._allowed
        enough = min(2, allowed)  # one reading has no shape: it cannot contradict a prior
        if self._goes_unmeasured():
            return self._unmeasured()
        why = "all allowed clocks were measured"
        if len(self._table) == 1:
            why = "the table has one clock"
        index = self._next_start()
        while True:
            self._measure(index)
            belief = self._believe()
            choice = self._choose(belief)
            if len(self._probed) >= allowed:
                break
            candidate, gain_pct = self._promising(belief, choice)
            if len(self._probed) >= enough and not self._pays(choice, candidate, gain_pct):
                why = f"another clock would gain {gain_pct:.2g} % at most on average, less than it costs"
                break
            index = candidate if len(self._probed) >= 2 else self._next_start()
        return self._result(belief, choice, why, len(self._probed) < min(self.max_probes, len(self._table)))

    def _goes_unmeasured(self) -> bool:
        """A prior answers the objective, and two probes of one step would be more than :data:`RUN_SHARE` of the run."""
        if (
            not self._family
            or self.prior is None
            or self.steps_all >= min(2, len(self._table), self.max_probes)
        ):
            return False
        timeless = any(point.time_s is None for point in self.prior.points.values())
        relative = self.objective.limited in (None, "max_slowdown_pct")  # a prior has no level of its own
        return relative and not (self.objective.needs_time and timeless)

    def _unmeasured(self) -> ProbeResult:
        expected = self._family[0]
        energy, time = ([math.exp(values[which]) for values in expected] for which in (0, 1))
        belief = _Belief([1.0], [energy], [time], self._error_rel, 1.0)
        choice = self._choose(belief)
        why = f"{RUN_SHARE:.0%} of the run's energy is less than two steps: the clock expected beforehand is taken unmeasured"
        return self._result(belief, choice, why, early=True)

    def _logs(self, index: int) -> list[tuple[float, float]]:
        """Per curve, library first, the logarithms of energy and time at a clock of the table."""
        x = self._x[index]
        return [*library_at(x), *(curve[index] for curve in self._family)]

    def _curve(self, k: int) -> Sequence[tuple[float, float]]:
        """One curve's logarithms of energy and time at every clock of the table."""
        if k >= len(self._laws):
            return self._family[k - len(self._laws)]
        return [law_at(self._laws[k], x) for x in self._x]

    def _next_start(self) -> int:
        """Index of the first or second clock."""
        low = max(self._x[0], LOWEST_SHARE)
        places = [min(1.0, low + u * (1.0 - low)) for u in self.starts]
        if self.prior is None:
            place = places[len(self._probed)]
        elif not self._probed:
            place = self.prior.best_clock / self._table[-1]
        else:
            first = self._x[self._probed[0]]
            place = max(places, key=lambda x: abs(math.log(x / first)))
        rest = [i for i in range(len(self._table)) if i not in self._probed]
        return min(rest, key=lambda i: (abs(self._x[i] - place), i))

    def _measure(self, index: int) -> None:
        mhz = self._table[index]
        energy_j, time_s, *shared = self.measure(mhz)
        for name, value in (("energy", energy_j), ("time", time_s)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(
                    f"The {name} measured at {mhz:g} MHz is {value}.", "A number above 0 was expected."
                )
        if time_s is None and self.objective.needs_time:
            raise InputError(
                f"The objective '{self.objective.name}' needs times, and {mhz:g} MHz has none.",
                "A time with every energy was expected.",
                "Choose the objective energy, or measure times too.",
            )
        self._probed.append(index)
        self._points.append(Point(energy_j, time_s))
        self._shared.append(shared[0] if shared else 0.0)
        self._at_probes.append(self._logs(index))

    def _believe(self) -> _Belief:
        """Weigh the curves by their misfit to what was measured, keep the best ones and set their levels."""
        n = len(self._points)
        energies = [math.log(point.energy_j) for point in self._points]
        timed = [i for i, point in enumerate(self._points) if point.time_s is not None]
        times = [math.log(self._points[i].time_s or 1.0) for i in timed]
        freedom = n - 1 + max(0, len(timed) - 1)
        scale = NOISE_DOF * self._error_rel**2
        power = -0.5 * (NOISE_DOF + freedom)
        shared = [self._error_rel**2 / (self._error_rel**2 + 2.0 * rel**2) for rel in self._shared]
        split = len(timed) == n and any(self._shared)
        scored = []
        for k, against in enumerate(self._scores):
            here = [column[k] for column in self._at_probes]
            off = [e - h[0] for e, h in zip(energies, here, strict=True)]
            if split:
                late = [t - h[1] for t, h in zip(times, here, strict=True)]
                level, time_level, squares = _misfit(off, late, shared)
                scored.append((power * math.log1p(squares / scale) + against, k, level, time_level, squares))
                continue
            level = sum(off) / n
            squares = sum([(o - level) ** 2 for o in off])
            time_level = 0.0
            if timed:
                off = [t - here[i][1] for t, i in zip(times, timed, strict=True)]
                time_level = sum(off) / len(timed)
                squares += sum([(o - time_level) ** 2 for o in off])
            score = power * math.log1p(squares / scale) + against
            scored.append((score, k, level, time_level, squares))
        kept = heapq.nlargest(KEPT, scored)
        weights = _normal([entry[0] for entry in kept])
        heat = 1.0
        while 1.0 / sum([w * w for w in weights]) < EFFECTIVE:
            heat *= 1.3
            weights = _normal([entry[0] / heat for entry in kept])
        energy, time = [], []
        for _, k, level, time_level, _ in kept:
            values = self._curve(k)
            energy.append([math.exp(level + e) for e, _ in values])
            if timed:
                time.append([math.exp(time_level + t) for _, t in values])
        mean_squares = sum(w * entry[4] for w, entry in zip(weights, kept, strict=True))
        return _Belief(
            weights,
            energy,
            time,
            math.sqrt((scale + mean_squares) / (NOISE_DOF + max(freedom, 1))),
            sum(w for w, entry in zip(weights, kept, strict=True) if entry[1] >= len(self._laws)),
        )

    def _costs(self, belief: _Belief) -> list[list[float]]:
        """Per kept curve what the objective minimises at every clock, relative to that curve's best clock."""
        if belief.time and self.objective.name in ("edp", "ed2p", "time"):
            raw = [
                [cost_of(self.objective, Point(e, t)) for e, t in zip(energy, time, strict=True)]
                for energy, time in zip(belief.energy, belief.time, strict=True)
            ]
        else:
            raw = belief.energy
        return [[cost / least for cost in costs] for costs in raw for least in (min(costs),)]

    def _choose(self, belief: _Belief) -> _Choice:
        """The clock of least mean relative cost, measured clocks corrected by what was measured there."""
        costs = self._costs(belief)
        mean = _weighted(belief.weights, costs)
        predicted = self._predict(belief)
        by_energy = self.objective.name in ("energy", "battery")
        energies = _weighted(belief.weights, belief.energy)
        if by_energy:
            for index in self._probed:
                mean[index] *= predicted[self._table[index]].energy_j / energies[index]
        losses = [100.0 * (cost - 1.0) for cost in _weighted(belief.weights, costs)]
        if self.objective.limited is None:
            return _Choice(min(range(len(mean)), key=lambda i: (mean[i], -i)), losses)
        points: dict[Setting, Point] = {mhz: Point(p.energy_j, p.time_s) for mhz, p in predicted.items()}
        answer = choose(points, self.objective)
        assert not isinstance(answer.setting, str)  # a table holds clocks only
        return _Choice(self._table.index(answer.setting), losses, answer.feasible, answer.reason)

    def _promising(self, belief: _Belief, choice: _Choice) -> tuple[int, float]:
        """The clock not measured yet where most is gained on average, and that gain in percent."""
        rest = [i for i in range(len(self._table)) if i not in self._probed]
        if self.objective.limited is not None and choice.index in rest:
            return choice.index, max(STOP_PCT, choice.losses[choice.index])
        costs = self._costs(belief)
        best = min(self._probed, key=lambda i: choice.losses[i])
        gains = {
            i: sum(w * max(0.0, c[best] - c[i]) for w, c in zip(belief.weights, costs, strict=True))
            for i in rest
        }
        candidate = max(rest, key=lambda i: (gains[i], i))
        return candidate, choice.losses[choice.index]

    def _pays(self, choice: _Choice, candidate: int, gain_pct: float) -> bool:
        """Whether the loss that a further probe can take away is worth its steps at a worse clock."""
        if self.run_steps is None:
            return gain_pct >= STOP_PCT
        left = self.run_steps - self.steps_each * (len(self._probed) + 1)
        worse_pct = max(0.0, choice.losses[candidate] - choice.losses[choice.index])
        return gain_pct * left > worse_pct * self.steps_each

    def _predict(self, belief: _Belief) -> dict[float, Predicted]:
        """Every clock's energy and time; where one was measured, half way between the curves and the measurement."""
        energies = _weighted(belief.weights, belief.energy)
        times = _weighted(belief.weights, belief.time) if belief.time else []
        predicted = {}
        for i, mhz in enumerate(self._table):
            variance = sum(
                w * (e[i] / energies[i] - 1.0) ** 2
                for w, e in zip(belief.weights, belief.energy, strict=True)
            )
            energy_j, time_s = energies[i], times[i] if times else None
            if i in self._probed:
                at = self._probed.index(i)
                point = self._points[at]
                trust = self._trust * self._error_rel**2 / (self._error_rel**2 + self._shared[at] ** 2)
                energy_j *= (point.energy_j / energy_j) ** trust
                if time_s is not None and point.time_s is not None:
                    time_s *= (point.time_s / time_s) ** trust
            predicted[mhz] = Predicted(
                energy_j, time_s, 100.0 * math.sqrt(variance), self._error_of(belief, i)
            )
        return predicted

    def _result(self, belief: _Belief, choice: _Choice, why: str, early: bool) -> ProbeResult:
        predicted = self._predict(belief) if self._points else {}
        per_unit = 1.0 if self.unit_steps is None else self.steps_each / self.unit_steps
        chosen = self._table[choice.index]
        spent = per_unit * sum(point.energy_j for point in self._points)
        return ProbeResult(
            chosen=chosen,
            probes=tuple(self._table[i] for i in self._probed),
            measured=tuple(self._points),
            predicted=predicted,
            expected_loss_pct=choice.losses[choice.index],
            noise_rel=belief.noise_rel,
            steps=self.steps_each * len(self._probed),
            energy_j=spent,
            extra_j=spent - per_unit * len(self._points) * predicted[chosen].energy_j
            if self._points
            else 0.0,
            stopped_early=early,
            why=why,
            prior_kept=belief.prior_share >= 0.5,
            feasible=choice.feasible,
            reason=choice.reason,
            objective=self.objective,
            reading_error_rel=self._reading_error_rel(belief),
        )

    def _reading_error_rel(self, belief: _Belief) -> float:
        """Relative standard error of one reading of what the objective minimises; of the work, energy and time are off together."""
        powers = EXPONENTS.get(self.objective.name, (1.0, 0.0))
        noise = belief.noise_rel if self.noise_rel is None else self.noise_rel
        work = math.sqrt(sum(rel * rel for rel in self._shared) / max(1, len(self._shared)))
        return math.hypot(noise * math.hypot(*powers), work * sum(powers))

    def _error_of(self, belief: _Belief, index: int) -> float:
        """Relative standard error of what the objective minimises at a clock, as predicted."""
        powers = EXPONENTS.get(self.objective.name, (1.0, 0.0))
        own = CURVE_REL * math.hypot(*powers)
        level = math.hypot(self._reading_error_rel(belief), own) / math.sqrt(max(1, len(self._points)))
        costs = [
            energy[index] ** powers[0] * (belief.time[k][index] if belief.time else 1.0) ** powers[1]
            for k, energy in enumerate(belief.energy)
        ]
        mean = sum(w * c for w, c in zip(belief.weights, costs, strict=True))
        spread = sum(w * (c / mean - 1.0) ** 2 for w, c in zip(belief.weights, costs, strict=True))
        return math.hypot(level, math.sqrt(spread))


def _misfit(
    energy: Sequence[float], time: Sequence[float], shared: Sequence[float]
) -> tuple[float, float, float]:
    """Levels of energy and time, and the squares that remain, where both are off by a factor of their own at every clock.

    Turned by 45 degrees the errors are independent: the difference (power) has a reading's error alone, the sum that of the work too.

    Args:
        energy: logarithms of the measured energies, less the curve's.
        time: the same of the times.
        shared: what each clock's sum weighs: 1 where the work is known, 0 where it is not at all.
    """
    n, root = len(energy), math.sqrt(0.5)
    differences = [(e - t) * root for e, t in zip(energy, time, strict=True)]
    sums = [(e + t) * root for e, t in zip(energy, time, strict=True)]
    difference = sum(differences) / n
    total = sum([w * s for w, s in zip(shared, sums, strict=True)]) / sum(shared)
    squares = sum([(d - difference) ** 2 for d in differences])
    squares += sum([w * (s - total) ** 2 for w, s in zip(shared, sums, strict=True)])
    return (total + difference) * root, (total - difference) * root, squares


def _normal(scores: Sequence[float]) -> list[float]:
    """Weights that sum to 1, from logarithms."""
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    total = sum(weights)
    return [weight / total for weight in weights]


def _weighted(weights: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    return [
        sum([w * value for w, value in zip(weights, column, strict=True)])
        for column in zip(*rows, strict=True)
    ]
