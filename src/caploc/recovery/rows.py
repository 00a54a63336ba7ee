"""Rows made ready for regression: a sparse matrix of cuts, and outcomes with difficulty removed."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int
from scipy import sparse

from caploc.recovery.estimate import Measurements, PerRow

CLIPPED = 0.02  # of the rows at each end, of outcomes that are not 0 and 1
SHRINK = 4.0  # rows that an example's mean is pulled towards its class by


@dataclass(frozen=True)
class Rows:
    """Scored rows: which heads each cuts, its mask, outcome, example, round, kind and weight.

    `kind` tells the intact model's right answers (1) from its wrong ones (0); outcomes that are not
    0 and 1 are all of kind 1. `weight` undoes an unequal use of the kinds: rows of a kind count as
    much as its share of the examples; its mean is 1.
    """

    cuts: sparse.csr_matrix
    mask: Int[np.ndarray, " rows"]
    outcome: PerRow
    example: Int[np.ndarray, " rows"]
    round: Int[np.ndarray, " rows"]
    kind: Int[np.ndarray, " rows"]
    weight: PerRow

    @classmethod
    def of(
        cls,
        seen: Measurements,
        intact: dict[int, float],
        without: Bool[np.ndarray, " heads"] | None = None,
    ) -> "Rows":
        """The scored rows of examples whose intact outcome is known.

        `without` marks heads whose rows are left out.
        """
        known = np.array([int(e) in intact for e in seen.example], dtype=bool)
        keep = known & ~np.isnan(seen.outcome)
        if without is not None and without.any():
            keep &= ~seen.touching(without)
        cuts = sparse.csr_matrix(seen.masks, dtype=np.float64)[seen.mask[keep]]
        example, outcome = seen.example[keep], seen.outcome[keep]
        before = kinds(intact)
        kind = np.array([before[int(e)] for e in example], dtype=int)
        share = np.bincount(list(before.values()), minlength=2) / max(len(before), 1)
        used = np.bincount(kind, minlength=2) / max(len(kind), 1)
        weight = np.divide(share, used, out=np.ones(2), where=used > 0)[kind]
        weight /= weight.mean() if len(weight) else 1.0
        return cls(cuts, seen.mask[keep], outcome, example, seen.round[keep], kind, weight)

    @property
    def count(self) -> int:
        """Number of rows."""
        return len(self.outcome)

    def residuals(self) -> PerRow:
        """Outcomes less the mean of their round and kind, less their example's difficulty.

        An example's difficulty is its mean over the *other* rows it appears in, pulled towards zero
        as by `SHRINK` rows: with its own row in the mean every effect would come out too small.
        """
        cell = 2 * self.round + self.kind
        left = self.outcome - group_means(self.outcome, cell)
        numbers, place = np.unique(self.example, return_inverse=True)
        rows = np.bincount(place, minlength=len(numbers))
        sums = np.bincount(place, left, minlength=len(numbers))
        left = left - (sums[place] - left) / (rows[place] - 1 + SHRINK)
        if not np.isin(self.outcome, (0.0, 1.0)).all():
            # A model that collapses has log-probabilities without bound; one row must not decide.
            left = np.clip(left, *np.quantile(left, [CLIPPED, 1 - CLIPPED]))
        return left - group_means(left, cell)


def kinds(intact: dict[int, float]) -> dict[int, int]:
    """1 for examples that the intact model gets right, 0 for others; all 1 unless 0/1 outcomes."""
    binary = is_binary(intact)
    return {example: int(outcome) if binary else 1 for example, outcome in intact.items()}


def is_binary(intact: dict[int, float]) -> bool:
    """Whether outcomes are right or wrong rather than a measure."""
    return all(outcome in (0.0, 1.0) for outcome in intact.values())


def group_means(values: PerRow, group: Int[np.ndarray, " rows"]) -> PerRow:
    """The mean of each row's group."""
    rows = np.bincount(group)
    means = np.bincount(group, values) / np.maximum(rows, 1)
    return means[group]
