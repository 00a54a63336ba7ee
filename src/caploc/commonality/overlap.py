"""How much two sets of neurons, or many, have in common.

    rates(first, second).largest     # |A & B| / max(|A|, |B|)
    chance(first, second, grid)      # the count in common beside what random sets give
    group(sets)                      # many sets: what all share, pairs, votes

Of Commonality Neuron Localization (Huang et al., ICLR 2025, arXiv 2502.20992) an overlap rate of
96.42 % and an IoU of 95.95 % are published, without the formula of the first being known to us. For
two sets only division by the larger of them fits both figures: by the smaller, or as Dice's
coefficient, 96.42 % allows an IoU of 93.09 % at most. So `largest` is what we compare with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int
from scipy import sparse

from caploc.commonality.intervals import MeanWithInterval
from caploc.commonality.threshold import Chosen, Sets, block_counts, blocks
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.sharing.chance import Chance, common_by_chance

RATES = ("reference", "largest", "smallest", "dice", "iou")
COMPARED = "largest"  # the rate held against the published overlap rate
VOTES = tuple(tenths / 10 for tenths in range(1, 11))
Matrix = Float64[np.ndarray, "sets sets"]


@dataclass(frozen=True)
class OverlapRates(MeanWithInterval):
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
class Vote(MeanWithInterval):
    """How many neurons are in at least `votes` of the sets, which is a share `least` of them.

    `share` is of all neurons, `share_of_union` of those in any set (None if there is none).
    """

    least: float
    votes: int
    count: int
    share: float
    share_of_union: float | None


@dataclass(frozen=True)
class Group(MeanWithInterval):
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


def rates(first: Chosen, second: Chosen) -> OverlapRates:
    """Compute the five rates of two sets, the first being the reference."""
    in_common = np.count_nonzero(first & second)
    sizes = np.count_nonzero(first), np.count_nonzero(second)
    found = rates_of(*(np.array([count]) for count in (in_common, *sizes)))
    return OverlapRates(**{name: defined(each[0]) for name, each in found.items()})


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


def chance(first: Chosen, second: Chosen, grid: Grid[Any]) -> Chance:
    """Count the neurons in common, beside what random sets of the same sizes give.

    Exact: hypergeometric over all neurons, so that `|A| |B| / N` are expected; and, stricter, with
    as many neurons of each set in every layer as it has, by convolution of the layers. A p below
    what a float can hold is 0.

    Raises:
        BadOption: if the grid is not that of so many neurons.
    """
    count = int(np.count_nonzero(first & second))
    figures: list[float] = []
    for slices in (blocks(len(first), None), blocks(len(first), grid)):
        sizes = [block.stop - block.start for block in slices]
        counts = block_counts(first, slices), block_counts(second, slices)
        figures += common_by_chance(count, sizes, *counts)
    return Chance(count, *figures)


def group(sets: Sets, *, least: Sequence[float] = VOTES) -> Group:
    """Tell what many sets have in common: all of them, pair by pair, and share by share.

    Raises:
        BadOption: if there is no set, or a share of `least` is not above 0 and at most 1.
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
        votes=tuple(vote(votes, len(sets), each) for each in least),
    )


def vote(votes: Int[np.ndarray, " neurons"], sets: int, least: float) -> Vote:
    """Count the neurons that are in at least a share of the sets.

    Raises:
        BadOption: if the share is not above 0 and at most 1.
    """
    needed = votes_needed(least, sets)
    count, in_any = (int(np.count_nonzero(votes >= each)) for each in (needed, 1))
    of_union = count / in_any if in_any else None
    return Vote(least, needed, count, count / len(votes), of_union)


def votes_needed(least: float, sets: int) -> int:
    """Find the least whole number of sets that is a share `least` of them.

    Raises:
        BadOption: if the share is not above 0 and at most 1.
    """
    if not 0 < least <= 1:
        raise BadOption(
            f"The share of sets that must agree is above 0 and at most 1; got {least:g}."
        )
    # 0.7 x 10 is a hair above 7 in floating point, and 7 of 10 sets are to be enough.
    return max(1, ceil(least * sets - 1e-9))


def mean_rates(matrices: dict[str, Matrix], wanted: Bool[np.ndarray, "sets sets"]) -> OverlapRates:
    """Average each rate over the entries wanted, where it is defined."""
    return OverlapRates(**{name: mean_defined(each[wanted]) for name, each in matrices.items()})


def mean_defined(values: Float64[np.ndarray, " entries"]) -> float | None:
    """Average the numbers that are not NaN; None if there is none."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None


def defined(value: float) -> float | None:
    """Turn NaN into None."""
    return None if np.isnan(value) else float(value)


def check_sets(sets: Sets, least: int) -> None:
    """Refuse too few sets.

    Raises:
        BadOption: if there are fewer than `least`.
    """
    if len(sets) < least:
        raise BadOption(f"At least {least} sets of neurons are needed; got {len(sets)}.")
