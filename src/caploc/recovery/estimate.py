"""What goes into an estimator, and what comes out."""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, Int

from caploc.heads import Masks


@dataclass(frozen=True)
class Measurements:
    """Outcomes of rows: row r measured `masks[mask[r]]` on example `example[r]`.

    A mask that was planned twice stands here twice. NaN marks an outcome that could not be scored.
    """

    masks: Masks
    mask: Int[np.ndarray, " rows"]
    example: Int[np.ndarray, " rows"]
    outcome: Float[np.ndarray, " rows"]

    @classmethod
    def none(cls, heads: int) -> "Measurements":
        """Nothing measured yet on a grid of so many heads."""
        empty = np.zeros(0, dtype=int)
        return cls(np.zeros((0, heads), dtype=bool), empty, empty, np.zeros(0))

    def joined(self, later: "Measurements") -> "Measurements":
        """These rows and later ones; the later masks are numbered on."""
        return Measurements(
            np.concatenate([self.masks, later.masks]),
            np.concatenate([self.mask, later.mask + len(self.masks)]),
            np.concatenate([self.example, later.example]),
            np.concatenate([self.outcome, later.outcome]),
        )

    def mask_means(self) -> Float[np.ndarray, " masks"]:
        """Mean outcome of each mask over its examples; NaN for a mask without rows."""
        scored = ~np.isnan(self.outcome)
        rows = np.bincount(self.mask[scored], minlength=len(self.masks))
        sums = np.bincount(self.mask[scored], self.outcome[scored], minlength=len(self.masks))
        means = np.full(len(self.masks), np.nan)
        np.divide(sums, rows, out=means, where=rows > 0)
        return means

    def by_example(self, mask: int) -> dict[int, float]:
        """The scored outcomes of one mask."""
        rows = (self.mask == mask) & ~np.isnan(self.outcome)
        pairs = zip(self.example[rows], self.outcome[rows], strict=True)
        return {int(example): float(outcome) for example, outcome in pairs}


@dataclass(frozen=True)
class Estimate:
    """The effect of every head, in units of the outcome; NaN where it was not estimated.

    `low` and `high` bound it with 95 % confidence; `q` is the false discovery rate at which the
    head would be named. All are NaN for an estimator that does not know.
    """

    estimator: str
    effect: Float[np.ndarray, " heads"]
    low: Float[np.ndarray, " heads"]
    high: Float[np.ndarray, " heads"]
    q: Float[np.ndarray, " heads"]
    r2_held_out: float = float("nan")

    def needed(self, top: int) -> list[int]:
        """Columns of the `top` most needed heads, most negative effect first; fewer if fewer are
        negative."""
        order = np.argsort(np.nan_to_num(self.effect, nan=0.0), kind="stable")
        return [int(column) for column in order[:top] if self.effect[column] < 0]


@runtime_checkable
class Estimator(Protocol):
    """Numbers only: no model, no task."""

    def fit(self, seen: Measurements, intact: dict[int, float]) -> Estimate:
        """Estimate every head's effect; `intact` holds the intact outcome of each example."""
        ...
