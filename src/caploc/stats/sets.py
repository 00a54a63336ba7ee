"""How much sets of neurons have in common: two, many, a dataset's subsets, several datasets.

    rates(first, second).largest     # |A & B| / max(|A|, |B|)
    group(sets)                      # many sets: what all share, pairs, votes
    commonality_set(sets)            # neurons found on (nearly) all subsets of a dataset
    within(sets)                     # how alike the sets of a dataset's subsets are
    across(found, splits)            # dataset by dataset

Of Commonality Neuron Localization (Huang et al., ICLR 2025, arXiv 2502.20992) an overlap rate of
96.42 % and an IoU of 95.95 % are published, without the formula of the first being known to us. For
two sets only division by the larger of them fits both figures: by the smaller, or as Dice's
coefficient, 96.42 % allows an IoU of 93.09 % at most. So `largest` is what we compare with it. That
commonality neurons are those located on independent data again and again is our reading.

Averaged over enough items any stable score gives the same set again and again, also for neurons
that are high on all text. So sets located on text of no capability, on answers put elsewhere, or by
how large activations are, are held against the located one, and taken out of it (`specific`). The
procedure is ours.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy import sparse

from caploc.designs import generator
from caploc.errors import BadData, BadOption
from caploc.stats.intervals import LEVEL, RESAMPLES, Interval, JsonRecord
from caploc.stats.threshold import Chosen, Sets, Unchecked, votes_needed

RATES = ("reference", "largest", "smallest", "dice", "iou")
COMPARED = "largest"  # the rate held against the published overlap rate
VOTES = tuple(tenths / 10 for tenths in range(1, 11))
Matrix = Float64[np.ndarray, "sets sets"]
Weights = Int[np.ndarray, "resamples sets"]


@dataclass(frozen=True)
class OverlapRates(JsonRecord):
    """Five rates of what two sets A and B have in common, each from 0 to 1, None if undefined.

    `reference` `|A & B| / |A|`; `largest` and `smallest` the same by the larger and the smaller
    set; `dice` `2 |A & B| / (|A| + |B|)`; `iou` `|A & B| / |A or B|`.
    """

    reference: float | None
    largest: float | None
    smallest: float | None
    dice: float | None
    iou: float | None


@dataclass(frozen=True)
class Vote(JsonRecord):
    """How many neurons are in at least `votes` of the sets, which is a share `least` of them.

    `share` is of all neurons, `share_of_union` of those in any set (None if there is none).
    """

    least: float
    votes: int
    count: int
    share: float
    share_of_union: float | None


@dataclass(frozen=True)
class Group(JsonRecord):
    """What many sets have in common.

    `iou` is `|in all| / |in any|`, which can only shrink as sets are added; `pairwise` holds the
    mean of each rate over the pairs of sets where it is defined (`reference`: over both orders),
    and `pairs` the number of pairs of which neither set is empty.
    """

    sets: int
    in_all: int
    in_any: int
    iou: float | None
    pairwise: OverlapRates
    pairs: int
    votes: tuple[Vote, ...]


def overlap_rates(first: Chosen, second: Chosen) -> OverlapRates:
    """Compute the five rates of two sets, the first being the reference."""
    in_common = np.count_nonzero(first & second)
    sizes = np.count_nonzero(first), np.count_nonzero(second)
    found = rates_of(*(np.array([count]) for count in (in_common, *sizes)))
    return OverlapRates(**{name: mean_defined(each) for name, each in found.items()})


def rate_matrices(sets: Sets) -> dict[str, Matrix]:
    """Compute each rate between every two sets; row A is the reference; NaN where undefined."""
    members = sparse.csr_array(sets, dtype=np.int32)
    in_common = (members @ members.T).toarray()
    sizes = in_common.diagonal()
    return rates_of(in_common, sizes[:, None], sizes[None, :])


def jaccards(first: Sets, second: Sets) -> Float64[np.ndarray, " sets"]:
    """Compute the IoU of each set with that in the same row of `second`; NaN if both are empty."""
    in_common = np.count_nonzero(first & second, axis=1)
    sizes = (np.count_nonzero(each, axis=1) for each in (first, second))
    return rates_of(in_common, *sizes)["iou"]


def rates_of(
    in_common: Int[np.ndarray, "..."], first: Int[np.ndarray, "..."], second: Int[np.ndarray, "..."]
) -> dict[str, Float64[np.ndarray, "..."]]:
    """Compute the five rates from counts that broadcast; NaN where the denominator is 0."""
    below = {
        "reference": first,
        "largest": np.maximum(first, second),
        "smallest": np.minimum(first, second),
        "dice": first + second,
        "iou": first + second - in_common,
    }
    above = {**dict.fromkeys(RATES, in_common), "dice": 2 * in_common}
    found = {}
    for name, counts in below.items():
        wide, counts = np.broadcast_arrays(above[name], counts)
        found[name] = np.divide(
            wide, counts, out=np.full(counts.shape, np.nan), where=counts > 0, dtype=float
        )
    return found


def group(sets: Sets) -> Group:
    """Tell what many sets have in common: all of them, pair by pair, and share by share.

    Raises:
        BadOption: if there is no set.
    """
    check_sets(sets, 1)
    votes = sets.sum(axis=0)
    in_all, in_any = (int(np.count_nonzero(votes >= each)) for each in (len(sets), 1))
    matrices = rate_matrices(sets)
    apart = ~np.eye(len(sets), dtype=bool)
    both_filled = ~np.isnan(matrices["smallest"]) & apart
    return Group(
        sets=len(sets),
        in_all=in_all,
        in_any=in_any,
        iou=in_all / in_any if in_any else None,
        pairwise=mean_rates(matrices, apart),
        pairs=int(both_filled.sum()) // 2,
        votes=tuple(vote(votes, len(sets), each) for each in VOTES),
    )


def vote(votes: Int[np.ndarray, " neurons"], sets: int, least: float) -> Vote:
    """Count the neurons that are in at least a share of the sets."""
    needed = votes_needed(least, sets)
    count, in_any = (int(np.count_nonzero(votes >= each)) for each in (needed, 1))
    of_union = count / in_any if in_any else None
    return Vote(least, needed, count, count / len(votes), of_union)


def mean_rates(matrices: dict[str, Matrix], wanted: Bool[np.ndarray, "sets sets"]) -> OverlapRates:
    """Average each rate over the entries wanted, where it is defined."""
    return OverlapRates(**{name: mean_defined(each[wanted]) for name, each in matrices.items()})


def mean_defined(values: Float64[np.ndarray, " entries"]) -> float | None:
    """Average the numbers that are not NaN; None if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def check_sets(sets: Sets, least: int) -> None:
    """Refuse too few sets.

    Raises:
        BadOption: if there are fewer than `least`.
    """
    if len(sets) < least:
        raise BadOption(f"At least {least} sets of neurons are needed; got {len(sets)}.")


@dataclass(frozen=True)
class Within(JsonRecord):
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
class Overlaps(JsonRecord):
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
    weights = resampled(len(sets), generator(seed))
    return Within(
        subsets=len(sets),
        sizes=tuple(int(each) for each in sets.sum(axis=1)),
        common=int(np.count_nonzero(sets.all(axis=0))),
        rates={name: pair_interval(each, weights) for name, each in rate_matrices(sets).items()},
    )


def rates_between(
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


def resampled(count: int, random: np.random.Generator) -> Weights:
    """Count each of so many in each of many samples of as many, drawn with replacement."""
    weights: np.ndarray = random.multinomial(count, np.full(count, 1 / count), RESAMPLES)
    return weights


def pair_interval(matrix: Matrix, weights: Weights) -> Interval:
    """Average the entries off the diagonal, with the percentiles of resamples.

    A set is not paired with itself, and a sample without a pair does not count.
    """
    apart = np.where(np.eye(len(matrix), dtype=bool), np.nan, matrix)
    found = entry_interval(apart, weights, weights)
    return Interval(found.mean, np.nan, np.nan, 2) if len(matrix) == 2 else found


def entry_interval(
    matrix: Float64[np.ndarray, "rows columns"], rows: Weights, columns: Weights
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
    tails = np.array([1 - LEVEL, 1 + LEVEL]) / 2
    low, high = np.quantile(sums[pairs > 0] / pairs[pairs > 0], tails)
    return Interval(float(matrix[known].mean()), float(low), float(high), len(matrix))


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
    table = np.full((len(own), len(others)), np.nan)
    for place, sets in enumerate(others.values()):
        each = rate_matrices(np.concatenate([own, sets]))[rate][: len(own), len(own) :]
        known = ~np.isnan(each).all(axis=1)
        table[known, place] = np.nanmean(each[known], axis=1)
    random = generator(seed)
    rows, columns = (resampled(count, random) for count in table.shape)
    return entry_interval(table, rows, columns)


@dataclass(frozen=True)
class Specific(JsonRecord):
    """The located neurons that no control has: `count` of `located`, a share of them.

    `share` is None if nothing was located; `controls` are the rates that the located set, the
    reference, has with each control's.
    """

    chosen: Chosen
    count: int
    located: int
    share: float | None
    controls: dict[str, OverlapRates]


def specific(located: Chosen, controls: Mapping[str, Unchecked]) -> Specific:
    """Hold a located set against each control's, and take all of theirs out of it.

    Raises:
        BadData: if a control's set is of another model.
    """
    for name, control in controls.items():
        if control.shape != located.shape:
            raise BadData(
                f"The set of the control {name!r} is over {len(control):,} neurons and the located "
                f"one over {len(located):,}; locate both in one model."
            )
    chosen = located & ~np.any([*controls.values(), np.zeros_like(located)], axis=0)
    count, before = int(np.count_nonzero(chosen)), int(np.count_nonzero(located))
    return Specific(
        chosen=chosen,
        count=count,
        located=before,
        share=count / before if before else None,
        controls={name: overlap_rates(located, each) for name, each in controls.items()},
    )
