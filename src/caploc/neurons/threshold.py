"""From scores to a set of neurons: those far above the mean, or the best share.

The rule is `N = {neurons: A > mu + sigma sd}`. Of Commonality Neuron Localization (Huang et al.,
ICLR 2025, arXiv 2502.20992) it is public that sigma is 6. That mean and (population) standard
deviation are over all neurons of the model, that a score counts with its sign, and the shares of
`best` are our choices.

Moments of shards merge to what one pass gives, so a run can be resumed or shared. Batches of items
are joined by the formulas of Chan, Golub and LeVeque (1979), for one item Welford's (1962).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64

from caploc.components import Grid
from caploc.errors import BadData, BadOption

SIGMA = 6.0
ARRAYS = ("items", "mean", "squares", "sizes", "normalised")
Scores = Float64[np.ndarray, " neurons"]
Chosen = Bool[np.ndarray, " neurons"]  # True is chosen
Sets = Bool[np.ndarray, "sets neurons"]
Unchecked = Bool[np.ndarray, "*_"]  # a set or sets, whose width is still to be checked


def blocks(neurons: int, grid: Grid[Any] | None) -> list[slice]:
    """Take all columns as one block without a grid, else each layer's.

    Raises BadOption if the grid is not that of so many neurons.
    """
    if grid is None:
        return [slice(0, neurons)]
    if grid.size != neurons:
        raise BadOption(
            f"There are {neurons:,} columns and the grid has {grid.size:,} neurons; "
            "give the grid of the model that the columns are from."
        )
    return [columns for columns in grid.layer_slices if columns.stop > columns.start]


def above(scores: Scores, sigma: float = SIGMA) -> Chosen:
    """Choose neurons whose score is more than `sigma` standard deviations above the mean.

    Scores that are all equal choose nothing. They are first moved to the first one and scaled to
    the widest distance from there, so that rounding of nearly equal, tiny or huge scores decides
    nothing. Raises BadData if a score is not finite, or there is none; BadOption if `sigma` is not
    positive.
    """
    if not 0 < sigma < np.inf:
        raise BadOption(
            f"sigma, the standard deviations above the mean, must be positive; got {sigma:g}."
        )
    check_scores(scores)
    scaled = scores / (np.abs(scores).max() or 1.0)
    scaled = scaled - scaled[0]
    reach = np.abs(scaled).max()
    if reach == 0:
        return np.zeros(len(scores), dtype=bool)
    scaled = scaled / reach
    chosen: np.ndarray = scaled > scaled.mean() + sigma * scaled.std()
    return chosen


def best(scores: Scores, share: float) -> Chosen:
    """Choose the best share of the neurons, rounded to a whole number and at least one.

    Of equal scores the lower column goes first, so that the size is exact. Raises BadData if a
    score is not finite, or there is none; BadOption if `share` is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise BadOption(
            f"The share of neurons to choose must be above 0 and at most 1; got {share:g}."
        )
    check_scores(scores)
    order = np.argsort(-scores, kind="stable")
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[order[: max(1, round(share * len(scores)))]] = True
    return chosen


def check_scores(scores: Float64[np.ndarray, "..."]) -> None:
    """Refuse scores that cannot be compared; the last axis is neurons; raises BadData."""
    if scores.size == 0:
        raise BadData("There are no scores to choose neurons by; score at least one neuron.")
    finite = np.isfinite(scores)
    if not finite.all():
        column = int(np.argwhere(~finite)[0][-1])
        raise BadData(
            f"{np.count_nonzero(~finite):,} of {scores.size:,} scores are not finite (the first in "
            f"column {column}); compute the scores anew, in float32 if they overflowed."
        )


def votes_needed(least: float, sets: int) -> int:
    """Find the least whole number of sets that is a share `least` of them; raises BadOption."""
    if not 0 < least <= 1:
        raise BadOption(
            f"The share of sets that must agree is above 0 and at most 1; got {least:g}."
        )
    # 0.7 x 10 is a hair above 7 in floating point, and 7 of 10 sets are to be enough.
    return max(1, ceil(least * sets - 1e-9))


@dataclass(frozen=True)
class Moments:
    """Running figures of `items` items.

    `mean` and `squares` (the sum of squared distances from the mean) are those of the items'
    scores, with their sign. If `normalised`, each item's scores are first divided by the sum of
    their absolute values, so that no item outweighs others; an item of zeros stays zero. `sizes`
    holds the sum of the items' sizes (of all their scores without sign, as they are averaged), and
    that of squares.
    """

    items: int
    mean: Scores
    squares: Scores
    normalised: bool = False
    sizes: Float64[np.ndarray, " 2"] = field(default_factory=lambda: np.zeros(2))

    @classmethod
    def empty(cls, neurons: int, *, normalised: bool = False) -> "Moments":
        """Begin with no items."""
        return cls(0, np.zeros(neurons), np.zeros(neurons), normalised)

    def added(self, scores: Float[np.ndarray, "items neurons"]) -> "Moments":
        """Add items to those before; raises BadData."""
        if scores.shape[1] != len(self.mean):
            raise BadData(
                f"The items have scores of {scores.shape[1]:,} neurons and those before of "
                f"{len(self.mean):,}; score all with one model."
            )
        if len(scores) == 0:
            return self
        rows = scores.astype(np.float64)
        check_scores(rows)
        if self.normalised:
            total = np.abs(rows).sum(axis=1, keepdims=True)
            np.divide(rows, total, out=rows, where=total > 0)
        each = np.abs(rows).sum(axis=1)
        sizes = np.array([each.sum(), (each**2).sum()])
        mean = rows.mean(axis=0)
        rows -= mean
        squares = np.einsum("in,in->n", rows, rows)
        return self.merged(Moments(len(rows), mean, squares, self.normalised, sizes))

    def merged(self, other: "Moments") -> "Moments":
        """Join the figures of both; raises BadOption if they were not taken alike."""
        if (len(self.mean), self.normalised) != (len(other.mean), other.normalised):
            raise BadOption(
                "Scores of two models, or divided and as they are, cannot be merged; take them "
                "alike."
            )
        items = self.items + other.items
        if items == 0:
            return self
        apart = other.mean - self.mean
        share = other.items / items
        return replace(
            self,
            items=items,
            mean=self.mean + apart * share,
            squares=self.squares + other.squares + apart**2 * (self.items * share),
            sizes=self.sizes + other.sizes,
        )

    @property
    def effective_items(self) -> float:
        """Count the items of equal size that weigh as unevenly (Kish's number); NaN for none."""
        total, squared = self.sizes
        return float(total**2 / squared) if squared > 0 else float("nan")

    @property
    def standard_error(self) -> Scores:
        """Standard error of the mean; NaN below two items."""
        if self.items < 2:
            return np.full_like(self.mean, np.nan)
        errors: np.ndarray = np.sqrt(self.squares / (self.items - 1) / self.items)
        return errors

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Give what `numpy.savez` takes; settings and counts are arrays without axes."""
        return {name: np.asarray(getattr(self, name)) for name in ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> "Moments":
        """Read what `as_arrays` gave, as `numpy.load` has it; raises KeyError or ValueError."""
        items, mean, squares, sizes, normalised = (np.asarray(arrays[name]) for name in ARRAYS)
        return cls(items.item(), mean, squares, normalised.item(), sizes)
