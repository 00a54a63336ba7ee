"""From scores to a set of neurons: those far above the mean, or the best share.

    located = above(scores)                  # more than 6 standard deviations above the mean
    located.chosen, located.count, located.share

The rule is `N = {neurons: A > mu + sigma sd}`. Of Commonality Neuron Localization (Huang et al.,
ICLR 2025, arXiv 2502.20992) it is public that sigma is 6. That mean and (population) standard
deviation are over all neurons of the model, that a score counts with its sign, and the shares of
`best` are our choices; each has its switch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy import stats

from caploc.commonality.intervals import MeanWithInterval
from caploc.errors import BadData, BadOption
from caploc.grid import Grid

SIGMA = 6.0
SIGMAS = (3.0, 4.0, 5.0, 6.0, 8.0)
SHARES = (0.0005, 0.0015, 0.005, 0.01)
Scores = Float64[np.ndarray, " neurons"]
Chosen = Bool[np.ndarray, " neurons"]  # True is chosen
Sets = Bool[np.ndarray, "sets neurons"]
Unchecked = Bool[np.ndarray, "*_"]  # a set or sets, whose width is still to be checked


def blocks(neurons: int, grid: Grid[Any] | None) -> list[slice]:
    """Take all columns as one block without a grid, else those of each layer that has any.

    Raises:
        BadOption: if the grid is not that of so many neurons.
    """
    if grid is None:
        return [slice(0, neurons)]
    if grid.size != neurons:
        raise BadOption(
            f"There are {neurons:,} columns and the grid has {grid.size:,} neurons; "
            "give the grid of the model that the columns are from."
        )
    return [columns for columns in grid.layer_slices if columns.stop > columns.start]


def block_counts(chosen: Chosen, slices: list[slice]) -> list[int]:
    """Count the chosen neurons in each block."""
    return [int(np.count_nonzero(chosen[block])) for block in slices]


def layer_counts(chosen: Chosen, grid: Grid[Any]) -> Int[np.ndarray, " layers"]:
    """Count the chosen neurons in every layer, 0 for a layer without neurons.

    Raises:
        BadOption: if the grid is not that of so many neurons.
    """
    blocks(len(chosen), grid)
    return np.array(block_counts(chosen, grid.layer_slices))


@dataclass(frozen=True)
class Located(MeanWithInterval):
    """The neurons that a rule chose.

    `level` is sigma, or the share asked for. `cutoffs`: the score that had to be exceeded, one for
    the model or one for each layer that has neurons (NaN where all scores are equal, so that
    nothing passes); of the rule `share`, the lowest score chosen. With `absolute` scores count
    without their sign. `share` is a share of all neurons, from 0 to 1.
    """

    rule: Literal["sigma", "share"]
    level: float
    absolute: bool
    chosen: Chosen
    count: int
    share: float
    cutoffs: tuple[float, ...]


@dataclass(frozen=True)
class ThresholdSweep(MeanWithInterval):
    """The sets of several sigmas and, to tell size from threshold, of several shares.

    `cantelli` and `gaussian` are, sigma by sigma, the largest share of neurons that could pass
    whatever the scores, and the share that would if they were normal.
    """

    by_sigma: tuple[Located, ...]
    by_share: tuple[Located, ...]
    cantelli: tuple[float, ...]
    gaussian: tuple[float, ...]


def above(
    scores: Scores, sigma: float = SIGMA, *, grid: Grid[Any] | None = None, absolute: bool = False
) -> Located:
    """Choose neurons whose score is more than `sigma` standard deviations above the mean.

    Mean and standard deviation are over all neurons or, with a `grid`, over each layer's own.
    Scores that are all equal choose nothing.

    Raises:
        BadData: if a score is not finite, or there is none.
        BadOption: if `sigma` is not positive, or the grid is another model's.
    """
    check_sigma(sigma)
    strength = strengths(scores, absolute)
    chosen, cutoffs = np.zeros(len(scores), dtype=bool), []
    for block in blocks(len(scores), grid):
        passing, cutoff = passed(strength[None, block], sigma)
        chosen[block] = passing[0]
        cutoffs.append(float(cutoff[0]))
    return located("sigma", sigma, absolute, chosen, cutoffs)


def best(scores: Scores, share: float, *, absolute: bool = False) -> Located:
    """Choose the best share of the neurons, rounded to a whole number and at least one.

    Of equal scores the lower column goes first, so that the size is exact.

    Raises:
        BadData: if a score is not finite, or there is none.
        BadOption: if `share` is not above 0 and at most 1.
    """
    if not 0 < share <= 1:
        raise BadOption(
            f"The share of neurons to choose must be above 0 and at most 1; got {share:g}."
        )
    strength = strengths(scores, absolute)
    size = max(1, round(share * len(scores)))
    columns = np.argsort(-strength, kind="stable")[:size]
    chosen = np.zeros(len(scores), dtype=bool)
    chosen[columns] = True
    return located("share", share, absolute, chosen, [float(strength[columns[-1]])])


def sweep(
    scores: Scores,
    *,
    sigmas: Sequence[float] = SIGMAS,
    shares: Sequence[float] = SHARES,
    grid: Grid[Any] | None = None,
    absolute: bool = False,
) -> ThresholdSweep:
    """Choose the sets of every sigma and of every share.

    Raises:
        BadData, BadOption: as `above` and `best`.
    """
    return ThresholdSweep(
        by_sigma=tuple(above(scores, each, grid=grid, absolute=absolute) for each in sigmas),
        by_share=tuple(best(scores, each, absolute=absolute) for each in shares),
        cantelli=tuple(cantelli(each) for each in sigmas),
        gaussian=tuple(gaussian(each) for each in sigmas),
    )


def cantelli(sigma: float) -> float:
    """Bound the share that can pass, whatever the distribution: `1 / (1 + sigma²)`.

    Cantelli's inequality; it holds for each block in which mean and deviation are taken.
    """
    check_sigma(sigma)
    return 1 / (1 + sigma**2)


def gaussian(sigma: float) -> float:
    """Compute the share that passes if scores are normal: the tail beyond `sigma`."""
    check_sigma(sigma)
    return float(stats.norm.sf(sigma))


def passed(
    rows: Float64[np.ndarray, "rows columns"], sigma: float
) -> tuple[Sets, Float64[np.ndarray, " rows"]]:
    """Mark the scores above their row's `mean + sigma sd`, and give that threshold.

    Each row is first moved to its first score and scaled to its widest distance from there, so that
    rounding of nearly equal, tiny or huge scores decides nothing; NaN where all are equal.
    """
    peak = np.abs(rows).max(axis=1, keepdims=True)
    scaled = np.divide(rows, peak, out=np.zeros_like(rows), where=peak > 0)
    first = scaled[:, :1].copy()
    scaled -= first
    reach = np.abs(scaled).max(axis=1, keepdims=True)
    varied = reach > 0
    np.divide(scaled, reach, out=scaled, where=varied)
    cutoff = scaled.mean(axis=1, keepdims=True) + sigma * scaled.std(axis=1, keepdims=True)
    chosen: np.ndarray = (scaled > cutoff) & varied
    with np.errstate(over="ignore"):  # a threshold beyond the largest float is infinite: none pass
        thresholds = np.where(varied, (cutoff * reach + first) * peak, np.nan)
    return chosen, thresholds[:, 0]


def strengths(scores: Scores, absolute: bool) -> Scores:
    """Take the scores as they count: with their sign, or without.

    Raises:
        BadData: if a score is not finite, or there is none.
    """
    check_scores(scores)
    return np.abs(scores) if absolute else scores


def check_scores(scores: Float64[np.ndarray, "..."]) -> None:
    """Refuse scores that cannot be compared; the last axis is neurons.

    Raises:
        BadData: if one is not finite, or there is none.
    """
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
    """Refuse a threshold that is none.

    Raises:
        BadOption: if `sigma` is not a positive number.
    """
    if not 0 < sigma < np.inf:
        raise BadOption(
            f"sigma, the standard deviations above the mean, must be positive; got {sigma:g}."
        )


def located(
    rule: Literal["sigma", "share"],
    level: float,
    absolute: bool,
    chosen: Chosen,
    cutoffs: Sequence[float],
) -> Located:
    """Describe a chosen set with its size."""
    count = int(np.count_nonzero(chosen))
    return Located(rule, float(level), absolute, chosen, count, count / len(chosen), tuple(cutoffs))
