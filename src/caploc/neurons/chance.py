"""Random parts instead of those found: what a count, or an effect, must be held against.

Two kinds of chance: as many parts, drawn from the whole grid; and, stricter, as many in each layer,
since the parts of different tasks often lie in the same layers. The one number that any locator can
be compared by, whatever its sets are made of, is

    gain = (effect(located) - mean over draws effect(random)) / sd over draws effect(random)

in standard deviations of random draws of the same size. The definition is ours. Effects must be
given so that more is more: the loss of score when neurons are erased, the rise when enhanced.

Random sets are drawn so that draw i is the same however many are asked for. By default no draw
holds a located part, as far as there is room: where fewer others exist than must be drawn, they are
all taken and the rest is drawn from the located ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Float64, Num
from scipy import stats

from caploc.components import Grid
from caploc.errors import BadOption
from caploc.neurons.options import FEWEST
from caploc.neurons.stats import Interval, JsonRecord, paired_interval
from caploc.neurons.threshold import Chosen, Sets, blocks

SMALLEST = np.finfo(float).tiny  # chances below it are dropped: no sum of them shows
AnyGrid = Grid[Any]
Effects = Float64[np.ndarray, " items"]
DrawnEffects = Float64[np.ndarray, "draws items"]


@dataclass(frozen=True)
class Chance(JsonRecord):
    """A count beside what random parts give.

    `p` is the chance that as many parts, drawn at random from the whole grid for each task, count
    at least as much, and `expected` their mean count; `p_in_layers` and `expected_in_layers` are
    the same for parts drawn so that each task keeps its number in every layer.
    """

    count: int
    expected: float
    p: float
    expected_in_layers: float
    p_in_layers: float


def block_counts(chosen: Chosen, slices: Sequence[slice]) -> list[int]:
    """Count the chosen parts in each block."""
    return [int(np.count_nonzero(chosen[block])) for block in slices]


def count_shared(first: Chosen, second: Chosen, grid: AnyGrid) -> Chance:
    """Count the parts in common, beside what random sets of the same sizes give.

    Exact: hypergeometric over all parts, so that `|A| |B| / N` are expected; and, stricter, with as
    many parts of each set in every layer as it has, by convolution of the layers. A p below what a
    float can hold is 0. Raises BadOption if the grid is not that of so many parts.
    """
    count = int(np.count_nonzero(first & second))
    figures: list[float] = []
    for slices in (blocks(len(first), None), blocks(len(first), grid)):
        sizes = [block.stop - block.start for block in slices]
        counts = block_counts(first, slices), block_counts(second, slices)
        figures += common_by_chance(count, sizes, *counts)
    return Chance(count, *figures)


def common_by_chance(
    count: int, sizes: Sequence[int], first: Sequence[int], second: Sequence[int]
) -> tuple[float, float]:
    """Compute what two random sets have in common, drawn block by block: the mean, and a p.

    A block of `size` parts of which m are in the first set and n in the second shares k of them
    with chance `C(m, k) C(size - m, n - k) / C(size, n)`, hypergeometric; the sum over blocks is
    distributed as the convolution of these. The p is the chance of `count` or more. Chances too
    small for a float are left out before, or full layers of neurons would take minutes.
    """
    lowest, parts, mean = 0, [], 0.0
    for size, one, other in zip(sizes, first, second, strict=True):
        mean += one * other / size
        support = np.arange(max(0, one + other - size), min(one, other) + 1)
        chances = stats.hypergeom.pmf(support, size, one, other)
        kept = np.flatnonzero(chances > SMALLEST)
        lowest += int(support[kept[0]])
        parts.append(chances[kept[0] : kept[-1] + 1])
    total = reduce(np.convolve, parts)
    return mean, float(min(total[max(count - lowest, 0) :].sum(), 1.0))


def permutation_p(value: float | int, drawn: Num[np.ndarray, " draws"]) -> float:
    """Compute a one-sided p by permutation: `(1 + draws that reach it) / (1 + draws)`, never 0.

    Phipson and Smyth (2010), "Permutation p-values should never be zero".
    """
    return float((1 + np.count_nonzero(drawn >= value)) / (1 + len(drawn)))


def random_sets(
    located: Chosen, grid: AnyGrid | None, draws: int, *, seed: int, excluding: bool = True
) -> Sets:
    """Draw random sets with as many neurons in each layer of the grid as the located set has.

    Without a grid from the whole model. Raises BadOption if `draws` is below 1, or the grid is not
    that of so many neurons.
    """
    return draw_in_blocks(located, blocks(len(located), grid), draws, seed, excluding)


def draw_in_blocks(
    located: Chosen, slices: list[slice], draws: int, seed: int, excluding: bool
) -> Sets:
    """Draw random sets with as many neurons in each block as the located set has."""
    if draws < 1:
        raise BadOption(f"The number of random draws must be 1 or more; got {draws}.")
    sets = np.zeros((draws, len(located)), dtype=bool)
    pools = [pool(located[block], excluding) for block in slices]
    for number, chosen in enumerate(sets):
        random = np.random.Generator(np.random.PCG64([seed, number]))
        for block, (sure, columns, count) in zip(slices, pools, strict=True):
            inside = chosen[block]
            inside[sure] = True
            inside[random.choice(columns, size=count, replace=False)] = True
    return sets


def pool(located: Chosen, excluding: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Split a block: columns in every draw, columns to draw from, and how many to draw."""
    outside, count = np.flatnonzero(~located), int(np.count_nonzero(located))
    if not excluding:
        return outside[:0], np.arange(len(located)), count
    if len(outside) >= count:
        return outside[:0], outside, count
    return outside, np.flatnonzero(located), count - len(outside)


@dataclass(frozen=True)
class Excess(JsonRecord):
    """How much more the located neurons do than random ones on the same items.

    `excess` is the mean over items of `effect(located) - mean effect(random)`, in the effect's own
    units. `pooled_gain` is the gain of the mean effects over items; `p` the share of mean effects,
    the located one included, that reach it: `(1 + #(random >= located)) / (1 + draws)`. None where
    undefined. An item without an effect is in no mean.
    """

    excess: Interval
    pooled_gain: float | None
    p: float | None

    @classmethod
    def of(cls, located: Effects, random: DrawnEffects, *, seed: int = 0) -> "Excess":
        """Hold effects of located neurons against those of random draws.

        Raises BadOption if there are fewer than 5 draws; BadData if an effect is infinite.
        """
        if len(random) < FEWEST:
            raise BadOption(
                f"A specificity gain needs at least {FEWEST} random draws; got {len(random)}."
            )
        excess = paired_interval(located, random.mean(axis=0), seed=seed)
        known = ~np.isnan(located) & ~np.isnan(random).any(axis=0)
        if not known.any():
            return cls(excess, None, None)
        own, drawn = float(located[known].mean()), random[:, known].mean(axis=1)
        gain = (own - drawn.mean()) / drawn.std(ddof=1) if np.ptp(drawn) > 0 else None
        return cls(excess, gain, permutation_p(own, drawn))
