"""Are the same neurons found again: on other samples of a dataset, and on other datasets?

    commonality_set(sets)            # neurons found on (nearly) all subsets of a dataset
    within(sets)                     # how alike the sets of a dataset's subsets are
    across(found, splits)            # dataset by dataset

That commonality neurons are those located on independent data again and again, and each summary
here, is our reading of Huang et al. (ICLR 2025, arXiv 2502.20992).

Averaged over enough items any stable score gives the same set again and again, also for neurons
that are high on all text. So sets located on text of no capability, on answers put elsewhere, or by
how large activations are, are held against the located one, and taken out of it (`specific`). The
procedure is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int

from caploc.commonality.intervals import LEVEL, Interval, MeanWithInterval
from caploc.commonality.overlap import (
    RATES,
    Matrix,
    OverlapRates,
    chance,
    check_sets,
    mean_rates,
    rate_matrices,
    rates,
    votes_needed,
)
from caploc.commonality.threshold import Chosen, Sets, Unchecked
from caploc.designs import generator
from caploc.errors import BadData
from caploc.grid import Grid
from caploc.sharing import Chance

RESAMPLES = 9_999
Weights = Int[np.ndarray, "resamples sets"]


@dataclass(frozen=True)
class Within(MeanWithInterval):
    """Tell how alike the sets found on subsets of one dataset are.

    `rates` holds for each rate the mean over pairs of subsets where it is defined, and an interval
    from resampling the subsets (pairs that share a subset are not independent); its `items` are
    the subsets. Two subsets make one pair: no interval. `sizes` are the sizes of the sets, `common`
    that of the intersection.
    """

    subsets: int
    sizes: tuple[int, ...]
    common: int
    rates: dict[str, Interval]


@dataclass(frozen=True)
class Overlaps(MeanWithInterval):
    """Each rate between every two datasets; row A, column B, A the reference; NaN if undefined.

    The diagonal is how alike the sets of a dataset's own subsets are, NaN where they are not known:
    that a set equals itself says nothing.
    """

    datasets: tuple[str, ...]
    rates: dict[str, Matrix]


def commonality_set(sets: Sets, least: float = 1.0) -> Chosen:
    """Choose the neurons in at least a share of the sets, by default in all.

    Raises:
        BadOption: if there is no set, or the share is not above 0 and at most 1.
    """
    check_sets(sets, 1)
    chosen: np.ndarray = sets.sum(axis=0) >= votes_needed(least, len(sets))
    return chosen


def within(sets: Sets, *, seed: int = 0) -> Within:
    """Tell how alike the sets found on subsets of one dataset are.

    Raises:
        BadOption: if there are fewer than two sets.
    """
    check_sets(sets, 2)
    weights = resampled(len(sets), seed)
    return Within(
        subsets=len(sets),
        sizes=tuple(int(each) for each in sets.sum(axis=1)),
        common=int(np.count_nonzero(sets.all(axis=0))),
        rates={name: pair_interval(each, weights) for name, each in rate_matrices(sets).items()},
    )


def across(
    found: Mapping[str, Unchecked], splits: Mapping[str, Unchecked] | None = None
) -> Overlaps:
    """Compute each rate between the sets of every two datasets, on the diagonal within each.

    `splits` holds, for datasets where they are known, the sets of two or more of its subsets.

    Raises:
        BadData: if there is no dataset, sets are of different models, or `splits` has a dataset
        that `found` has not. BadOption: if a dataset has only one subset.
    """
    splits = splits or {}
    check_datasets(found, splits)
    rates = rate_matrices(np.stack(list(found.values())))
    for place, dataset in enumerate(found):
        own = within_means(splits[dataset]) if dataset in splits else dict.fromkeys(RATES, np.nan)
        for name, matrix in rates.items():
            matrix[place, place] = own[name]
    return Overlaps(tuple(found), rates)


def within_means(sets: Sets) -> dict[str, float]:
    """Average each rate over the pairs of a dataset's sets; NaN where undefined."""
    check_sets(sets, 2)
    means = mean_rates(rate_matrices(sets), ~np.eye(len(sets), dtype=bool))
    return {name: np.nan if each is None else each for name, each in vars(means).items()}


def check_datasets(found: Mapping[str, Unchecked], splits: Mapping[str, Unchecked]) -> None:
    """Refuse sets that cannot be compared.

    Raises:
        BadData: if there is none, they are of different models, or `splits` has more datasets.
    """
    unknown = sorted(set(splits) - set(found))
    if unknown:
        raise BadData(
            f"There are subsets of {', '.join(unknown)} but no set; give both for a dataset."
        )
    widths = {sets.shape[-1] for sets in (*found.values(), *splits.values())}
    if len(widths) != 1:
        raise BadData(
            f"Sets can be compared within one model; got {len(found)} datasets with sets over "
            f"{' and '.join(f'{each:,}' for each in sorted(widths)) or 'no'} neurons."
        )


def resampled(sets: int, seed: int) -> Weights:
    """Count each set in each of many samples of as many sets, drawn with replacement."""
    weights: np.ndarray = generator(seed).multinomial(sets, np.full(sets, 1 / sets), RESAMPLES)
    return weights


def pair_interval(matrix: Matrix, weights: Weights) -> Interval:
    """Average the entries off the diagonal, with the percentiles of resamples.

    Sets i and j of a sample, drawn `n_i` and `n_j` times, count `n_i n_j` times; a set is not
    paired with itself, and a sample without a pair does not count.
    """
    known = ~np.isnan(matrix) & ~np.eye(len(matrix), dtype=bool)
    if not known.any():
        return Interval(np.nan, np.nan, np.nan, len(matrix))
    mean = float(matrix[known].mean())
    if len(matrix) == 2:
        return Interval(mean, np.nan, np.nan, 2)
    pairs = weighted_sums(known.astype(float), weights)
    sums = weighted_sums(np.where(known, matrix, 0.0), weights)
    tails = np.array([1 - LEVEL, 1 + LEVEL]) / 2
    low, high = np.quantile(sums[pairs > 0] / pairs[pairs > 0], tails)
    return Interval(mean, float(low), float(high), len(matrix))


def weighted_sums(matrix: Matrix, weights: Weights) -> Float64[np.ndarray, " resamples"]:
    """Compute `sum over i, j of n_i n_j matrix_ij` of each resample."""
    sums: np.ndarray = np.einsum("ri,ri->r", weights @ matrix, weights)
    return sums


def between(own: Sets, others: Mapping[str, Unchecked], rate: str, *, seed: int = 0) -> Interval:
    """Tell how alike a dataset's subsets are to those of other datasets, by one rate.

    The mean over its subsets, the other datasets and their subsets; bounds are percentiles of
    resamples of its subsets and of the other datasets, which are what else might have been drawn.

    Raises:
        BadOption: if the dataset has no subset. BadData: if there is no other dataset.
    """
    check_sets(own, 1)
    if not others:
        raise BadData("There is no other dataset to compare with; name two or more.")
    table = np.stack([nan_mean(rate_to(own, sets, rate)) for sets in others.values()], axis=1)
    random = generator(seed)
    rows = random.multinomial(len(own), np.full(len(own), 1 / len(own)), RESAMPLES)
    columns = random.multinomial(len(others), np.full(len(others), 1 / len(others)), RESAMPLES)
    known = ~np.isnan(table)
    if not known.any():
        return Interval(np.nan, np.nan, np.nan, len(own))
    pairs = np.einsum("rs,st,rt->r", rows, known.astype(float), columns)
    sums = np.einsum("rs,st,rt->r", rows, np.where(known, table, 0.0), columns)
    tails = np.array([1 - LEVEL, 1 + LEVEL]) / 2
    low, high = np.quantile(sums[pairs > 0] / pairs[pairs > 0], tails)
    return Interval(float(table[known].mean()), float(low), float(high), len(own))


def rate_to(own: Sets, sets: Unchecked, rate: str) -> Float64[np.ndarray, "own other"]:
    """Compute one rate of each of a dataset's sets with each of another's."""
    both = rate_matrices(np.concatenate([own, sets]))[rate]
    apart: np.ndarray = both[: len(own), len(own) :]
    return apart


def nan_mean(matrix: Float64[np.ndarray, "sets other"]) -> Float64[np.ndarray, " sets"]:
    """Average each row where it is defined, NaN where it is nowhere."""
    known = ~np.isnan(matrix)
    sums, counts = np.where(known, matrix, 0.0).sum(axis=1), known.sum(axis=1)
    means: np.ndarray = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
    return means


@dataclass(frozen=True)
class Control(MeanWithInterval):
    """What the located set, the reference, has in common with that of one control."""

    rates: OverlapRates
    chance: Chance


@dataclass(frozen=True)
class Specific(MeanWithInterval):
    """The located neurons that no control has: `count` of `located`, a share of them.

    `share` is None if nothing was located.
    """

    chosen: Chosen
    count: int
    located: int
    share: float | None
    controls: dict[str, Control]


def specific(located: Chosen, controls: Mapping[str, Unchecked], grid: Grid[Any]) -> Specific:
    """Hold a located set against each control's, and take all of theirs out of it.

    Raises:
        BadData: if a control's set is of another model.
        BadOption: if the grid is not that of so many neurons.
    """
    for name, control in controls.items():
        if control.shape != located.shape:
            raise BadData(
                f"The set of the control {name!r} is over {len(control):,} neurons and the located "
                f"one over {len(located):,}; locate both in one model."
            )
    chosen = located.copy()
    for control in controls.values():
        chosen &= ~control
    count, before = int(np.count_nonzero(chosen)), int(np.count_nonzero(located))
    return Specific(
        chosen=chosen,
        count=count,
        located=before,
        share=count / before if before else None,
        controls={
            name: Control(rates(located, each), chance(located, each, grid))
            for name, each in controls.items()
        },
    )
