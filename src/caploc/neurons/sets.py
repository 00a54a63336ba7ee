"""How much sets of neurons have in common: two, many, a dataset's subsets, several datasets.

Of Commonality Neuron Localization (Huang et al., ICLR 2025, arXiv 2502.20992) an overlap rate of
96.42 % and an IoU of 95.95 % are published, without the formula of the first being known to us. For
two sets only division by the larger of them fits both figures: by the smaller, or as Dice's
coefficient, 96.42 % allows an IoU of 93.09 % at most. So `largest` is what we compare with it. That
commonality neurons are those located on independent data again and again is our reading.

Averaged over enough items any stable score gives the same set again and again, also for neurons
that are high on all text. So sets are held against those of other tasks. The procedure is ours.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from math import factorial

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy import sparse, stats

from caploc.designs import generator
from caploc.neurons.stats import LEVEL, RESAMPLES, Interval, Known, Values
from caploc.neurons.threshold import Chosen, Sets, Unchecked, votes_needed

RATES = ("reference", "largest", "iou")
COMPARED = "largest"  # the rate held against the published overlap rate
TAILS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
Matrix = Float64[np.ndarray, "sets sets"]
Weights = Int[np.ndarray, "resamples sets"]


@dataclass(frozen=True)
class OverlapRates:
    """Three rates of what two sets A and B have in common, each from 0 to 1, None if undefined."""

    reference: float | None  # |A & B| / |A|
    largest: float | None  # the same by the larger set
    iou: float | None  # |A & B| / |A or B|


def overlap_rates(first: Chosen, second: Chosen) -> OverlapRates:
    """Compute the rates of two sets, the first being the reference."""
    counts = (np.atleast_1d(np.count_nonzero(each)) for each in (first & second, first, second))
    return OverlapRates(**{name: mean_defined(each) for name, each in rates_of(*counts).items()})


def rate_matrices(sets: Sets) -> dict[str, Matrix]:
    """Compute each rate between every two sets; row A is the reference; NaN where undefined."""
    members = sparse.csr_array(sets, dtype=np.int32)
    in_common = (members @ members.T).toarray()
    sizes = in_common.diagonal()
    return rates_of(in_common, sizes[:, None], sizes[None, :])


def rates_of(
    in_common: Int[np.ndarray, "..."], first: Int[np.ndarray, "..."], second: Int[np.ndarray, "..."]
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Compute the rates from counts that broadcast; NaN where the denominator is 0."""
    below = {
        "reference": first,
        "largest": np.maximum(first, second),
        "iou": first + second - in_common,
    }
    found = {}
    for name, counts in below.items():
        wide, counts = np.broadcast_arrays(in_common, counts)
        found[name] = np.divide(
            wide, counts, out=np.full(counts.shape, np.nan), where=counts > 0, dtype=float
        )
    return found


def mean_rates(sets: Sets) -> OverlapRates:
    """Average each rate over pairs of sets where it is defined (reference: over both orders)."""
    matrices = rate_matrices(sets)
    return OverlapRates(**{name: mean_defined(m[off_diagonal(m)]) for name, m in matrices.items()})


def mean_defined(values: Float64[np.ndarray, " entries"]) -> float | None:
    """Average the numbers that are not NaN; None if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


@dataclass(frozen=True)
class Within:
    """Tell how alike the sets found on subsets of one dataset are.

    `rates` holds for each rate the mean over pairs of subsets where it is defined, and an interval
    from resampling the subsets (pairs that share a subset are not independent); its `items` are
    the subsets. Two subsets make one pair: no interval.
    """

    subsets: int
    sizes: tuple[int, ...]  # of the sets
    common: int  # size of the intersection
    rates: dict[str, Interval]


@dataclass(frozen=True)
class Overlaps:
    """Each rate between every two datasets; row A, column B, A the reference; NaN if undefined.

    The diagonal is how alike the sets of a dataset's own subsets are: that a set equals itself says
    nothing.
    """

    datasets: tuple[str, ...]
    rates: dict[str, list[list[Known]]]


def commonality_set(sets: Sets, least: float = 1.0) -> Chosen:
    """Choose the neurons in a share of the sets, by default in all.

    Raises BadOption if the share is not above 0 and at most 1.
    """
    chosen: np.ndarray = sets.sum(axis=0) >= votes_needed(least, len(sets))
    return chosen


def within(sets: Sets, *, seed: int = 0) -> Within:
    """Tell how alike the sets of one dataset's subsets are."""
    weights = resampled(len(sets), generator(seed))
    return Within(
        subsets=len(sets),
        sizes=tuple(int(each) for each in sets.sum(axis=1)),
        common=int(np.count_nonzero(sets.all(axis=0))),
        rates={name: pair_interval(each, weights) for name, each in rate_matrices(sets).items()},
    )


def rates_between(found: Mapping[str, Unchecked], splits: Mapping[str, Unchecked]) -> Overlaps:
    """Compute each rate between the sets of every two datasets, on the diagonal within each.

    `splits` holds of each dataset the sets of its subsets, two or more.
    """
    rates = rate_matrices(np.stack(list(found.values())))
    for place, dataset in enumerate(found):
        for name, own in rate_matrices(splits[dataset]).items():
            mean = mean_defined(own[off_diagonal(own)])
            rates[name][place, place] = np.nan if mean is None else mean
    return Overlaps(tuple(found), {name: matrix.tolist() for name, matrix in rates.items()})


def resampled(count: int, random: np.random.Generator) -> Weights:
    """Count each of so many in each of many samples of as many, drawn with replacement."""
    weights: np.ndarray = random.multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return weights


def pair_interval(matrix: Matrix, weights: Weights) -> Interval:
    """Average the entries off the diagonal, with the percentiles of resamples that have a pair."""
    found = entry_interval(np.where(off_diagonal(matrix), matrix, np.nan), weights, weights)
    return Interval(found.mean, np.nan, np.nan, 2) if len(matrix) == 2 else found


def entry_interval(
    matrix: Float64[np.ndarray, "rows columns"],
    rows: Int[np.ndarray, "resamples rows"],
    columns: Int[np.ndarray, "resamples columns"],
) -> Interval:
    """Average the entries that are known, with the percentiles of resamples of both axes.

    Entry i, j of a sample in which its row is drawn `n_i` and its column `m_j` times counts
    `n_i m_j` times.
    """
    known = ~np.isnan(matrix)
    if not known.any():
        return Interval(np.nan, np.nan, np.nan, len(matrix))
    pairs, sums = (
        np.einsum("rs,rs->r", rows @ each, columns)
        for each in (known.astype(float), np.where(known, matrix, 0.0))
    )
    low, high = np.quantile(sums[pairs > 0] / pairs[pairs > 0], TAILS)
    return Interval(float(matrix[known].mean()), float(low), float(high), len(matrix))


def between(own: Sets, others: Mapping[str, Unchecked], rate: str, *, seed: int = 0) -> Interval:
    """Tell how alike a dataset's subsets are to those of other datasets, by one rate.

    The mean over its subsets, the other datasets and their subsets; bounds are percentiles of
    resamples of its subsets and of the other datasets, which are what else might have been drawn.
    """
    table = np.full((len(own), len(others)), np.nan)
    for place, sets in enumerate(others.values()):
        each = rate_matrices(np.concatenate([own, sets]))[rate][: len(own), len(own) :]
        known = ~np.isnan(each).all(axis=1)
        table[known, place] = np.nanmean(each[known], axis=1)
    random = generator(seed)
    rows, columns = (resampled(count, random) for count in table.shape)
    return entry_interval(table, rows, columns)


SHUFFLES = 9_999  # orders of datasets tried, where there are more
ROUNDING = 1e-12  # two ways to add up the same entries may differ by this much
Codes = Int[np.ndarray, " sets"]
Table = Float64[np.ndarray, "_ _"]  # square, once checked


@dataclass(frozen=True)
class Cohesion:
    """Means over the entries of a dataset-by-dataset matrix, None where there is no such entry."""

    cohesion: float | None  # of the diagonal
    separability: float | None  # of all else; for overlaps, lower is better apart
    same_kind: float | None  # off the diagonal, of two datasets of one kind
    across_kinds: float | None  # of two kinds
    contrast: float | None  # the first less the second
    # The share of all ways to deal the kinds out to the datasets, the true one included, with a
    # contrast at least as large.
    p: float | None


def cohesion(
    matrix: Table, datasets: Sequence[str], kinds: Mapping[str, str], *, seed: int = 0
) -> Cohesion:
    """Ask whether datasets are alike within a kind and unlike across kinds.

    Rows and columns are `datasets`; the matrix need not be symmetric, NaN entries are left out.
    """
    codes = np.unique([kinds[dataset] for dataset in datasets], return_inverse=True)[1]
    same_kind, across_kinds = kind_means(matrix, codes)
    contrast = p = None
    if same_kind is not None and across_kinds is not None:
        contrast = same_kind - across_kinds
        dealt = [kind_means(matrix, codes[order]) for order in orders(len(codes), seed)]
        reached = [
            a - b >= contrast - ROUNDING for a, b in dealt if a is not None and b is not None
        ]
        p = float(np.mean(reached))
    return Cohesion(
        cohesion=mean_defined(matrix.diagonal()),
        separability=mean_defined(matrix[off_diagonal(matrix)]),
        same_kind=same_kind,
        across_kinds=across_kinds,
        contrast=contrast,
        p=p,
    )


def rank_correlation(first: Values, second: Values) -> float | None:
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
