"""Choosing the label tree's hyper-parameters by leave-one-out over the training workloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from wattune.core.stats import mean, standard_error
from wattune.learning.folds import folds
from wattune.learning.labeltree import Candidate, Encoder, LabelTree, question_counts
from wattune.learning.table import WorkloadRows


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """What is searched.

    Attributes:
        features: features the tree may ask for.
        max_depth: depths tried.
        min_samples_leaf: leaf sizes tried.
        criterion: criteria tried; the earlier one wins a tie.
        seed: scikit-learn's random_state.
        level: level of the leaves' conformal intervals; None: leaves carry none.
        abstain_beyond: factor outside the training range beyond which the governor declines; None: it never does.
        apart: a feature whose equals are left out together; empty: every workload by itself.
    """

    features: tuple[str, ...]
    max_depth: tuple[int, ...]
    min_samples_leaf: tuple[int, ...]
    criterion: tuple[str, ...]
    seed: int = 0
    level: float | None = None
    abstain_beyond: float | None = None
    apart: str = ""

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All combinations, in a fixed order."""
        grid = product(self.max_depth, self.min_samples_leaf, self.criterion)
        return tuple(Candidate(depth, size, criterion) for depth, size, criterion in grid)


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """One candidate's score.

    Attributes:
        candidate: the hyper-parameters.
        predicted_mhz: the clock picked for each left-out row, in the rows' order; empty for a single row.
        loo_accuracy: share of left-out rows whose best clock was picked; None for a single row.
        loo_regret_pct: mean energy lost on the left-out rows' measured curves; None for a single row.
        standard_error_pct: its standard error over rows; None below two rows.
        leaves: leaves of the tree fitted on all rows, equal siblings merged.
        depth: its depth.
    """

    candidate: Candidate
    predicted_mhz: tuple[float, ...]
    loo_accuracy: float | None
    loo_regret_pct: float | None
    standard_error_pct: float | None
    leaves: int
    depth: int


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All candidates, and the place of the chosen one."""

    results: tuple[CandidateResult, ...]
    chosen: int

    @property
    def best(self) -> CandidateResult:
        """The chosen candidate."""
        return self.results[self.chosen]


def row_regret_pct(row: WorkloadRows, mhz: float) -> float:
    """Energy lost on a row's measured curve by the measured setting that stands for `mhz`, percent."""
    return row.measured.regret_pct(row.nearest(mhz))


def search(rows: Sequence[WorkloadRows], space: SearchSpace) -> SearchResult:
    """Score every candidate by leave-one-out and choose one.

    In every fold the label set, the medians and the categories come from the other rows alone. The highest
    accuracy wins; ties go to the simpler tree: fewer leaves of the tree fitted on all rows, then the smaller
    depth, then larger leaves, then the earlier criterion, then the smaller `max_depth`.

    Args:
        rows: the training workloads, at least one.
        space: the candidates.
    """
    candidates = space.candidates
    found: list[dict[str, float]] = [{} for _ in candidates]
    for left_out, others in folds(rows, space.apart):
        encoder = Encoder(others, space.features)
        for candidate, picked in zip(candidates, found, strict=True):
            tree = LabelTree(others, space.features, candidate, space.seed, encoder)
            picked |= {row.id: tree.predict(row.features) for row in left_out}
    predicted = [[picked[row.id] for row in rows if picked] for picked in found]
    encoder = Encoder(rows, space.features)
    results = []
    for candidate, picks in zip(candidates, predicted, strict=True):
        tree = LabelTree(rows, space.features, candidate, space.seed, encoder)
        leaves, depth = question_counts(tree.questions())
        pairs = list(zip(rows, picks, strict=False))
        lost = [row_regret_pct(row, mhz) for row, mhz in pairs]
        results.append(
            CandidateResult(
                candidate=candidate,
                predicted_mhz=tuple(picks),
                loo_accuracy=mean([float(row.label_mhz == mhz) for row, mhz in pairs]) if pairs else None,
                loo_regret_pct=mean(lost) if lost else None,
                standard_error_pct=standard_error(lost),
                leaves=leaves,
                depth=depth,
            )
        )

    def order(index: int) -> tuple[float, ...]:
        result = results[index]
        candidate = result.candidate
        return (
            -(result.loo_accuracy or 0.0),
            result.leaves,
            result.depth,
            -candidate.min_samples_leaf,
            space.criterion.index(candidate.criterion),
            candidate.max_depth,
        )

    return SearchResult(tuple(results), min(range(len(results)), key=order))
