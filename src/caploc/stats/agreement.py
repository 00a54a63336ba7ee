"""What a dataset-by-dataset matrix says: of overlaps, or of effects of one dataset's neurons.

cohesion(matrix, datasets, kinds)    # alike within a kind, unlike across kinds?
agreement(overlaps, effects)         # do datasets that share neurons share effects?
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy import stats

from caploc.designs import generator
from caploc.errors import BadOption
from caploc.lookup import pick
from caploc.stats.intervals import LEVEL, JsonRecord
from caploc.stats.sets import Matrix, mean_defined, resampled

SHUFFLES = 9_999  # orders of datasets tried, where there are more
FEWEST = 3  # different datasets in a resample that has a correlation: two make one pair
ROUNDING = 1e-12  # two ways to add up the same entries may differ by this much
Codes = Int[np.ndarray, " sets"]
Rows = Float64[np.ndarray, "_ entries"]
Table = Float64[np.ndarray, "_ _"]  # square, once checked


@dataclass(frozen=True)
class Cohesion(JsonRecord):
    """Means over the entries of a dataset-by-dataset matrix, None where there is no such entry.

    `cohesion` is that of the diagonal, `separability` of all else (for overlaps, lower is better
    apart); `same_kind` of the entries off the diagonal whose two datasets are of one kind,
    `across_kinds` of those of two, `contrast` the first less the second. `p`: the share of all ways
    to deal the kinds out to the datasets, the true one included, with a contrast at least as large.
    """

    cohesion: float | None
    separability: float | None
    same_kind: float | None
    across_kinds: float | None
    contrast: float | None
    p: float | None


@dataclass(frozen=True)
class Correlation(JsonRecord):
    """A correlation, None where undefined.

    `low` and `high`: percentiles over resampled datasets (entries of one row are not independent);
    resamples of fewer than three different datasets do not count. `p`, two-sided, is Mantel's
    (1967): of the orders of one matrix's datasets, the true one included, the share that correlate
    at least as strongly.
    """

    value: float | None
    low: float | None
    high: float | None
    p: float | None


@dataclass(frozen=True)
class Agreement(JsonRecord):
    """Tell how two matrices of the same datasets go together, off the diagonal.

    `pairs` is the number of entries (A, B), A other than B, that both matrices have.
    """

    pairs: int
    pearson: Correlation
    spearman: Correlation


def cohesion(
    matrix: Table, datasets: Sequence[str], kinds: Mapping[str, str], *, seed: int = 0
) -> Cohesion:
    """Ask whether datasets are alike within a kind and unlike across kinds.

    Rows and columns are `datasets`; the matrix need not be symmetric, NaN entries are left out.

    Raises:
        BadOption: if the matrix is not square, or the datasets are not one a row.
        UnknownName: if a dataset has no kind.
    """
    check_square(matrix)
    if len(datasets) != len(matrix):
        raise BadOption(f"There are {len(matrix)} rows and {len(datasets)} datasets; name each.")
    named = [pick(kinds, dataset, "kind for the dataset") for dataset in datasets]
    codes = np.unique(named, return_inverse=True)[1]
    same_kind, across_kinds = kind_means(matrix, codes)
    both = same_kind is not None and across_kinds is not None
    return Cohesion(
        cohesion=mean_defined(matrix.diagonal()),
        separability=mean_defined(matrix[off_diagonal(matrix)]),
        same_kind=same_kind,
        across_kinds=across_kinds,
        contrast=kind_contrast(matrix, codes) if both else None,
        p=dealt_p(matrix, codes, seed) if both else None,
    )


def correlate_matrices(first: Table, second: Table, *, seed: int = 0) -> Agreement:
    """Tell how two matrices of the same datasets go together, off the diagonal.

    The matrices need not be symmetric; entries that are NaN in either are left out.

    Raises:
        BadOption: if they are not square and of one size.
    """
    check_square(first)
    if first.shape != second.shape:
        raise BadOption(
            f"Matrices of {len(first)} and {len(second)} datasets cannot be compared; "
            "give both for the same datasets."
        )
    both = off_diagonal(first) & ~np.isnan(first) & ~np.isnan(second)
    one, other = (np.where(both, each, np.nan) for each in (first, second))
    return Agreement(
        pairs=int(both.sum()),
        pearson=correlation(one, other, seed),
        spearman=correlation(rank_entries(one, both), rank_entries(other, both), seed),
    )


def rank_correlation(
    first: Float64[np.ndarray, " values"], second: Float64[np.ndarray, " values"]
) -> float | None:
    """Correlate the ranks of the values that both have (Spearman's); None where one is constant."""
    both = ~np.isnan(first) & ~np.isnan(second)
    one, other = first[both], second[both]
    if len(one) < 2 or np.ptp(one) == 0 or np.ptp(other) == 0:
        return None
    return float(stats.spearmanr(one, other).statistic)


def kind_means(matrix: Matrix, codes: Codes) -> list[float | None]:
    """Average the entries off the diagonal between datasets of one kind, and of two."""
    same = codes[:, None] == codes[None, :]
    return [mean_defined(matrix[off_diagonal(matrix) & each]) for each in (same, ~same)]


def kind_contrast(matrix: Matrix, codes: Codes) -> float:
    """Take the mean within kinds less the mean across them; NaN if either is missing."""
    same_kind, across_kinds = kind_means(matrix, codes)
    return np.nan if same_kind is None or across_kinds is None else same_kind - across_kinds


def dealt_p(matrix: Matrix, codes: Codes, seed: int) -> float:
    """Compute a one-sided p of the contrast among the ways to deal the kinds out."""
    contrasts = np.array([kind_contrast(matrix, codes[each]) for each in orders(len(codes), seed)])
    contrasts = contrasts[~np.isnan(contrasts)]
    return float((contrasts >= kind_contrast(matrix, codes) - ROUNDING).mean())


def correlation(first: Matrix, second: Matrix, seed: int) -> Correlation:
    """Correlate two matrices' entries off the diagonal, NaN ones left out in both."""
    apart = off_diagonal(first)
    one, other = first[apart][None], second[apart][None]
    value = float(correlations(one, other, np.ones_like(one))[0])
    if np.isnan(value):
        return Correlation(None, None, None, None)
    # Of three datasets every resample that counts holds the same entries: no interval.
    drawn = resampled(len(first), generator(seed))
    drawn = drawn[(drawn > 0).sum(axis=1) >= FEWEST].astype(float)
    often = (drawn[:, :, None] * drawn[:, None, :])[:, apart]
    low, high = quantiles(correlations(one, other, often)) if len(first) > FEWEST else (None, None)
    order = orders(len(first), seed)
    turned = first[order[:, :, None], order[:, None, :]][:, apart]
    chance = np.abs(correlations(turned, other, np.ones_like(turned)))
    reach = chance[~np.isnan(chance)] >= abs(value) - ROUNDING
    return Correlation(value, low, high, float(reach.mean()))


def correlations(first: Rows, second: Rows, weights: Rows) -> Float64[np.ndarray, " rows"]:
    """Correlate each row's entries (Pearson's), counted by their weights.

    NaN entries do not count; NaN where what is left does not vary. `second` may be one row for all.
    """
    known = ~(np.isnan(first) | np.isnan(second))
    weights = np.where(known, weights, 0.0)
    total = weights.sum(axis=1, keepdims=True)
    share = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    moved, spreads = [], []
    for values in (np.where(known, first, 0.0), np.where(known, second, 0.0)):
        away = values - (share * values).sum(axis=1, keepdims=True)
        spread = np.sqrt((share * away**2).sum(axis=1))
        spread[spread <= ROUNDING * np.abs(values).max(axis=1, initial=0.0)] = np.nan
        moved.append(away)
        spreads.append(spread)
    found: np.ndarray = (share * moved[0] * moved[1]).sum(axis=1) / (spreads[0] * spreads[1])
    return found.clip(-1.0, 1.0)


def quantiles(values: Float64[np.ndarray, " rows"]) -> tuple[float | None, float | None]:
    """Find the bounds between which the middle 95 % of numbers lie; None if all are NaN."""
    known = values[~np.isnan(values)]
    if len(known) == 0:
        return None, None
    low, high = np.quantile(known, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def rank_entries(matrix: Matrix, both: Bool[np.ndarray, "sets sets"]) -> Matrix:
    """Rank the entries that count, ties sharing theirs; NaN elsewhere."""
    ranks = np.full(matrix.shape, np.nan)
    ranks[both] = stats.rankdata(matrix[both])
    return ranks


def orders(count: int, seed: int) -> Int[np.ndarray, "orders sets"]:
    """List every order of so many datasets, or of too many the true one and random ones."""
    if factorial(count) <= SHUFFLES:
        return np.array(list(permutations(range(count))))
    rows = np.tile(np.arange(count), (SHUFFLES + 1, 1))
    rows[1:] = generator(seed).permuted(rows[1:], axis=1)
    return rows


def off_diagonal(matrix: Matrix) -> Bool[np.ndarray, "sets sets"]:
    """Mark the entries of two different datasets."""
    return ~np.eye(len(matrix), dtype=bool)


def check_square(matrix: Table) -> None:
    """Refuse a matrix that is not dataset by dataset.

    Raises:
        BadOption: if it has not as many rows as columns.
    """
    rows, columns = matrix.shape
    if rows != columns:
        raise BadOption(
            f"The matrix must have a row and a column for each dataset; got {rows} x {columns}."
        )
