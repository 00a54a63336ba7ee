"""From scores to a set of neurons: those far above the mean, or the best share.

The rule is `N = {neurons: A > mu + sigma sd}`. Of Commonality Neuron Localization (Huang et al.,
ICLR 2025, arXiv 2502.20992) it is public that sigma is 6. That mean and (population) standard
deviation are over all neurons of the model, that a score counts with its sign, and the shares of
`best` are our choices; each has its switch.

Moments of shards merge to what one pass gives, so a run can be resumed or shared. Batches of items
are joined by the formulas of Chan, Golub and LeVeque (1979), for one item Welford's (1962).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64

from caploc.components import Grid
from caploc.errors import BadData, BadOption

SIGMA = 6.0
SIGMAS = (3.0, 4.0, 5.0, 6.0, 8.0)
SETTINGS = ("sigma", "normalised", "absolute")
ARRAYS = ("items", "mean", "squares", "votes", "sizes", *SETTINGS)
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


def above(
    scores: Scores, sigma: float = SIGMA, *, grid: Grid[Any] | None = None, absolute: bool = False
) -> Chosen:
    """Choose neurons whose score is more than `sigma` standard deviations above the mean.

    Mean and standard deviation are over all neurons or, with a `grid`, over each layer's own.
    Scores that are all equal choose nothing. With `absolute` scores count without their sign.
    Raises BadData if a score is not finite, or there is none; BadOption if `sigma` is not positive,
    or the grid is another model's.
    """
    check_sigma(sigma)
    strength = strengths(scores, absolute)
    chosen = np.zeros(len(scores), dtype=bool)
    for block in blocks(len(scores), grid):
        chosen[block] = passing(strength[None, block], sigma)[0]
    return chosen


def best(scores: Scores, share: float, *, absolute: bool = False) -> Chosen:
    """Choose the best share of the neurons, rounded to a whole number and at least one.

    Of equal scores the lower column goes first, so that the size is exact. Raises BadData if a
    score is not finite, or there is none; BadOption if `share` is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise BadOption(
            f"The share of neurons to choose must be above 0 and at most 1; got {share:g}."
        )
    order = np.argsort(-strengths(scores, absolute), kind="stable")
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[order[: max(1, round(share * len(scores)))]] = True
    return chosen


def passing(rows: Float64[np.ndarray, "rows columns"], sigma: float) -> Sets:
    """Mark the scores above their row's `mean + sigma sd`.

    Each row is first moved to its first score and scaled to its widest distance from there, so that
    rounding of nearly equal, tiny or huge scores decides nothing.
    """
    peak = np.abs(rows).max(axis=1, keepdims=True)
    scaled = np.divide(rows, peak, out=np.zeros_like(rows), where=peak > 0)
    scaled -= scaled[:, :1].copy()
    reach = np.abs(scaled).max(axis=1, keepdims=True)
    np.divide(scaled, reach, out=scaled, where=reach > 0)
    cutoff = scaled.mean(axis=1, keepdims=True) + sigma * scaled.std(axis=1, keepdims=True)
    chosen: np.ndarray = (scaled > cutoff) & (reach > 0)
    return chosen


def strengths(scores: Scores, absolute: bool) -> Scores:
    """Take the scores as they count, with their sign or without; raises as `check_scores`."""
    check_scores(scores)
    return np.abs(scores) if absolute else scores


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


def check_sigma(sigma: float) -> None:
    """Refuse a threshold that is none; raises BadOption if `sigma` is not a positive number."""
    if not 0 < sigma < np.inf:
        raise BadOption(
            f"sigma, the standard deviations above the mean, must be positive; got {sigma:g}."
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
    scores, with their sign; `votes` counts the items in which a neuron's score lies more than
    `sigma` standard deviations above the mean of that item's scores, their sign dropped if
    `absolute`. If `normalised`, each item's scores are first divided by the sum of their absolute
    values, so that no item outweighs others; an item of zeros stays zero. `sizes` holds the sum of
    the items' sizes (of all their scores without sign, as they are averaged), and that of squares.
    """

    items: int
    mean: Scores
    squares: Scores
    votes: Int64[np.ndarray, " neurons"]
    sigma: float = SIGMA
    normalised: bool = False
    absolute: bool = False
    sizes: Float64[np.ndarray, " 2"] = field(default_factory=lambda: np.zeros(2))

    @classmethod
    def empty(
        cls, neurons: int, *, sigma: float = SIGMA, normalised: bool = False, absolute: bool = False
    ) -> "Moments":
        """Begin with no items; raises BadOption if `sigma` is not positive or without neurons."""
        check_sigma(sigma)
        if neurons < 1:
            raise BadOption(f"Scores are of 1 neuron or more; got {neurons}.")
        zeros, votes = np.zeros(neurons), np.zeros(neurons, dtype=np.int64)
        return cls(0, zeros, zeros.copy(), votes, float(sigma), normalised, absolute)

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
        chosen = passing(np.abs(rows) if self.absolute else rows, self.sigma)
        if self.normalised:
            total = np.abs(rows).sum(axis=1, keepdims=True)
            np.divide(rows, total, out=rows, where=total > 0)
        each = np.abs(rows).sum(axis=1)
        sizes = np.array([each.sum(), (each**2).sum()])
        mean = rows.mean(axis=0)
        rows -= mean
        squares = np.einsum("in,in->n", rows, rows)
        votes = chosen.sum(axis=0, dtype=np.int64)
        batch = replace(self, items=len(rows), mean=mean, squares=squares, votes=votes, sizes=sizes)
        return self.merged(batch)

    def merged(self, other: "Moments") -> "Moments":
        """Join the figures of both; raises BadOption if settings or numbers of neurons differ."""
        if len(self.mean) != len(other.mean):
            raise BadOption(
                f"Scores of {len(self.mean):,} and of {len(other.mean):,} neurons cannot be "
                "merged; merge those of one model."
            )
        for name in SETTINGS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                raise BadOption(
                    f"Scores taken with {name} {mine} and {theirs} cannot be merged; "
                    "take them alike."
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
            votes=self.votes + other.votes,
            sizes=self.sizes + other.sizes,
        )

    @property
    def effective_items(self) -> float:
        """Count the items of equal size that weigh as unevenly (Kish's number); NaN for none."""
        total, squared = self.sizes
        return float(total**2 / squared) if squared > 0 else float("nan")

    @property
    def variance(self) -> Scores:
        """Variance between items (divided by items - 1); NaN below two items."""
        if self.items < 2:
            return np.full_like(self.mean, np.nan)
        return self.squares / (self.items - 1)

    @property
    def standard_error(self) -> Scores:
        """Standard error of the mean; NaN below two items."""
        errors: np.ndarray = np.sqrt(self.variance / max(self.items, 1))
        return errors

    def voted(self, least: float) -> Chosen:
        """Choose the neurons that pass in a share of the items.

        Raises BadOption if the share is not above 0 and at most 1; BadData if there is no item.
        """
        if self.items == 0:
            raise BadData("No item was scored, so no neuron has votes; score at least one item.")
        chosen: np.ndarray = self.votes >= votes_needed(least, self.items)
        return chosen

    def as_arrays(self) -> dict[str, np.ndarray]:
        """Give what `numpy.savez` takes; settings and counts are arrays without axes."""
        return {name: np.asarray(getattr(self, name)) for name in ARRAYS}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> "Moments":
        """Read what `as_arrays` gave, as `numpy.load` has it; raises BadData."""
        absent = [name for name in ARRAYS if name not in arrays]
        if absent:
            raise BadData(f"No running scores: {', '.join(absent)} missing; score the items anew.")
        mean, squares, votes = (np.asarray(arrays[name]) for name in ("mean", "squares", "votes"))
        if mean.ndim != 1 or not mean.shape == squares.shape == votes.shape:
            shapes = ", ".join(str(each.shape) for each in (mean, squares, votes))
            raise BadData(f"The running scores differ in shape ({shapes}); score the items anew.")
        settings = {name: arrays[name].item() for name in SETTINGS}
        sizes = np.asarray(arrays["sizes"])
        return cls(int(arrays["items"]), mean, squares, votes, **settings, sizes=sizes)
