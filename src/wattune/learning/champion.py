"""The champion: which of the interpretable policies ships, by a rule written down before anyone looks at the results.

Contenders are the trees that both searches chose, `mlg` and `mlg-regret`, each with its leave-one-out loss on the training workloads.
Of those within one standard error of the least loss the smaller tree ships: a difference that the draw of workloads explains
is no reason for more questions. Held-out workloads have no say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattune.core.governor import Governor
from wattune.learning.export import POLICY, REGRET_POLICY, Training, train_governor, train_regret_governor
from wattune.learning.loocv import SearchResult, SearchSpace
from wattune.learning.regretsearch import RegretSearch, RegretSpace
from wattune.learning.table import FeatureTable, WorkloadRows

RULE = (
    "least leave-one-out regret among the interpretable policies; "
    "of those within one standard error of it, the tree of fewest leaves"
)


@dataclass(frozen=True, slots=True)
class Contender:
    """A tree that may ship.

    Attributes:
        policy: its name.
        loo_regret_pct: mean energy lost on left-out training workloads; None for a single one.
        standard_error_pct: of that mean, over workloads; None below two.
        leaves: leaves of the tree.
        depth: questions on its longest path.
    """

    policy: str
    loo_regret_pct: float | None
    standard_error_pct: float | None
    leaves: int
    depth: int


@dataclass(frozen=True, slots=True)
class Choice:
    """The contender that ships, and why.

    Attributes:
        champion: its policy.
        bar_pct: loss up to which a smaller tree is preferred; None where no loss is known.
        reason: one sentence.
        contenders: all of them, in the order they were given.
    """

    champion: str
    bar_pct: float | None
    reason: str
    contenders: tuple[Contender, ...]


def choose_champion(contenders: Sequence[Contender]) -> Choice:
    """Apply :data:`RULE`; remaining ties go to the smaller loss, then the smaller depth, then the earlier contender.

    Args:
        contenders: at least one; a loss is known for all of them or for none.
    """
    known = [(c.loo_regret_pct, c) for c in contenders if c.loo_regret_pct is not None]
    if not known:
        least = min(contenders, key=lambda c: (c.leaves, c.depth))
        reason = (
            f"{least.policy} has the fewest leaves ({least.leaves}); no loss is known from a single workload"
        )
        return Choice(least.policy, None, reason, tuple(contenders))
    loss, best = min(known, key=lambda pair: pair[0])
    bar = loss + (best.standard_error_pct or 0.0)
    near = [c for value, c in known if value <= bar]
    won = min(near, key=lambda c: (c.leaves, c.loo_regret_pct or 0.0, c.depth))
    if won is best:
        reason = f"{won.policy} loses least ({loss:.3f} %), and no smaller tree loses up to {bar:.3f} %"
    else:
        reason = (
            f"{won.policy} loses {won.loo_regret_pct:.3f} % with {won.leaves} leaves, within one standard error of "
            f"{best.policy} ({loss:.3f} %, {best.leaves} leaves)"
        )
    return Choice(won.policy, bar, reason, tuple(contenders))


@dataclass(frozen=True)
class Trained:
    """Both trees, and which of them ships."""

    labels: Training[SearchResult]
    regret: Training[RegretSearch]
    choice: Choice

    @property
    def governors(self) -> tuple[Governor, Governor]:
        """Both governors, `mlg` first."""
        return self.labels.governor, self.regret.governor

    @property
    def document(self) -> dict[str, Any]:
        """The document of the governor that ships."""
        return self.labels.document if self.choice.champion == POLICY else self.regret.document

    @property
    def governor(self) -> Governor:
        """The governor that ships."""
        return self.labels.governor if self.choice.champion == POLICY else self.regret.governor


def train_champion(
    table: FeatureTable,
    rows: Sequence[WorkloadRows],
    space: SearchSpace,
    regret_space: RegretSpace,
    *,
    objective: str = "energy",
    reference_mhz: float | None = None,
) -> Trained:
    """Train both trees on `rows` (arguments as for :func:`train_governor`) and let the rule choose."""
    labels = train_governor(table, rows, space, objective=objective, reference_mhz=reference_mhz)
    regret = train_regret_governor(
        table, rows, regret_space, objective=objective, reference_mhz=reference_mhz
    )
    contenders = [
        Contender(policy, best.loo_regret_pct, best.standard_error_pct, len(tree.leaves), tree.depth)
        for policy, best, tree in (
            (POLICY, labels.search.best, labels.governor.tree),
            (REGRET_POLICY, regret.search.best, regret.governor.tree),
        )
    ]
    return Trained(labels, regret, choose_champion(contenders))
