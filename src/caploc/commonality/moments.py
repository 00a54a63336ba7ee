"""Scores of many items as running figures: mean, variance, and votes, neuron by neuron.

    moments = Moments.empty(neurons)
    for batch in batches:                  # (items, neurons)
        moments = moments.added(batch)
    moments.mean, moments.variance, moments.votes

Shards merge to what one pass gives, so a run can be resumed or shared. Batches of items are joined
by the formulas of Chan, Golub and LeVeque (1979), which for one item are Welford's (1962).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64

from caploc.commonality.overlap import votes_needed
from caploc.commonality.threshold import SIGMA, Chosen, check_scores, check_sigma, passed
from caploc.errors import BadData, BadOption

SETTINGS = ("sigma", "normalised", "absolute")
ARRAYS = ("items", "mean", "squares", "votes", *SETTINGS)
Vector = Float64[np.ndarray, " neurons"]


@dataclass(frozen=True)
class Moments:
    """Running figures of `items` items.

    `mean` and `squares` (the sum of squared distances from the mean) are those of the items'
    scores, with their sign; `votes` counts the items in which a neuron's score lies more than
    `sigma` standard deviations above the mean of that item's scores, their sign dropped if
    `absolute`. If `normalised`, each item's scores are first divided by the sum of their absolute
    values, so that no item outweighs others; an item of zeros stays zero.
    """

    items: int
    mean: Vector
    squares: Vector
    votes: Int64[np.ndarray, " neurons"]
    sigma: float = SIGMA
    normalised: bool = False
    absolute: bool = False

    @classmethod
    def empty(
        cls,
        neurons: int,
        *,
        sigma: float = SIGMA,
        normalised: bool = False,
        absolute: bool = False,
    ) -> "Moments":
        """Begin with no items.

        Raises:
            BadOption: if `sigma` is not positive or there is no neuron.
        """
        check_sigma(sigma)
        if neurons < 1:
            raise BadOption(f"Scores are of 1 neuron or more; got {neurons}.")
        zeros, votes = np.zeros(neurons), np.zeros(neurons, dtype=np.int64)
        return cls(0, zeros, zeros.copy(), votes, float(sigma), normalised, absolute)

    def added(self, scores: Float[np.ndarray, "items neurons"]) -> "Moments":
        """Add items to those before.

        Raises:
            BadData: if a score is not finite, or the items have another number of neurons.
        """
        if scores.shape[1] != len(self.mean):
            raise BadData(
                f"The items have scores of {scores.shape[1]:,} neurons and those before of "
                f"{len(self.mean):,}; score all with one model."
            )
        if len(scores) == 0:
            return self
        rows = scores.astype(np.float64)
        check_scores(rows)
        chosen, _ = passed(np.abs(rows) if self.absolute else rows, self.sigma)
        if self.normalised:
            total = np.abs(rows).sum(axis=1, keepdims=True)
            np.divide(rows, total, out=rows, where=total > 0)
        mean = rows.mean(axis=0)
        rows -= mean
        squares = np.einsum("in,in->n", rows, rows)
        votes = chosen.sum(axis=0, dtype=np.int64)
        batch = replace(self, items=len(rows), mean=mean, squares=squares, votes=votes)
        return self.merged(batch)

    def merged(self, other: "Moments") -> "Moments":
        """Join the figures of both.

        Raises:
            BadOption: if the settings or the numbers of neurons differ.
        """
        self._check_alike(other)
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
        )

    @property
    def variance(self) -> Vector:
        """Variance between items (divided by items - 1); NaN below two items."""
        if self.items < 2:
            return np.full_like(self.mean, np.nan)
        return self.squares / (self.items - 1)

    @property
    def standard_error(self) -> Vector:
        """Standard error of the mean; NaN below two items."""
        errors: np.ndarray = np.sqrt(self.variance / max(self.items, 1))
        return errors

    def voted(self, least: float) -> Chosen:
        """Choose the neurons that pass in at least a share of the items.

        Raises:
            BadOption: if the share is not above 0 and at most 1. BadData: if there is no item.
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
        """Read what `as_arrays` gave, as `numpy.load` has it.

        Raises:
            BadData: if an array is missing or they do not fit together.
        """
        absent = [name for name in ARRAYS if name not in arrays]
        if absent:
            raise BadData(f"No running scores: {', '.join(absent)} missing; score the items anew.")
        mean, squares, votes = (np.asarray(arrays[name]) for name in ("mean", "squares", "votes"))
        if mean.ndim != 1 or not mean.shape == squares.shape == votes.shape:
            shapes = ", ".join(str(each.shape) for each in (mean, squares, votes))
            raise BadData(f"The running scores differ in shape ({shapes}); score the items anew.")
        sigma, *switches = (arrays[name].item() for name in SETTINGS)
        return cls(int(arrays["items"]), mean, squares, votes, sigma, *switches)

    def _check_alike(self, other: "Moments") -> None:
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
