"""Is an effect the located neurons' own, or what any as many neurons would do?

The one number that any locator can be compared by, whatever its sets are made of. For an item,

    gain = (effect(located) - mean over draws effect(random)) / sd over draws effect(random)

in standard deviations of random draws of the same size. The definition is ours. Effects must be
given so that more is more: the loss of score when neurons are erased, the rise when enhanced.

Random sets are drawn so that draw i is the same however many are asked for. By default no draw
holds a located neuron, as far as there is room: where fewer others exist than must be drawn, they
are all taken and the rest is drawn from the located ones.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from caploc.commonality.intervals import Interval, MeanWithInterval, mean_interval, paired_interval
from caploc.commonality.threshold import Chosen, Scores, Sets, block_counts, blocks, strengths
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.sharing.chance import permutation_p

FEWEST = 5  # random draws from which a standard deviation is taken; 20 are better
Effects = Float64[np.ndarray, " items"]
DrawnEffects = Float64[np.ndarray, "draws items"]


def uniform(located: Chosen, draws: int, *, seed: int, excluding: bool = True) -> Sets:
    """Draw random sets of as many neurons, from the whole model.

    Raises:
        BadOption: if `draws` is below 1.
    """
    return draw_in_blocks(located, blocks(len(located), None), draws, seed, excluding)


def layer_matched(
    located: Chosen, grid: Grid[Any], draws: int, *, seed: int, excluding: bool = True
) -> Sets:
    """Draw random sets with as many neurons in each layer as the located set has.

    Raises:
        BadOption: if `draws` is below 1, or the grid is not that of so many neurons.
    """
    return draw_in_blocks(located, blocks(len(located), grid), draws, seed, excluding)


def bottom(
    scores: Scores, located: Chosen, *, absolute: bool = False, excluding: bool = True
) -> Chosen:
    """Choose as many neurons as located, those of the lowest scores.

    Of equal scores the lower column goes first. With signed scores the lowest are the most
    negative; with `absolute` those nearest to 0.

    Raises:
        BadData: if a score is not finite, or there is none.
    """
    last = located & excluding
    # Sorted by the last key first: outsiders before located ones, then by score, then by column.
    order = np.lexsort((strengths(scores, absolute), last))
    chosen = np.zeros(len(located), dtype=bool)
    chosen[order[: np.count_nonzero(located)]] = True
    return chosen


def draw_in_blocks(
    located: Chosen, slices: list[slice], draws: int, seed: int, excluding: bool
) -> Sets:
    """Draw random sets with as many neurons in each block as the located set has."""
    if draws < 1:
        raise BadOption(f"The number of random draws must be 1 or more; got {draws}.")
    sets = np.zeros((draws, len(located)), dtype=bool)
    counts = block_counts(located, slices)
    pools = [
        pool(located[block], count, excluding) for block, count in zip(slices, counts, strict=True)
    ]
    for number, chosen in enumerate(sets):
        random = np.random.Generator(np.random.PCG64([seed, number]))
        for block, (sure, columns, count) in zip(slices, pools, strict=True):
            inside = chosen[block]
            inside[sure] = True
            inside[random.choice(columns, size=count, replace=False)] = True
    return sets


def pool(located: Chosen, count: int, excluding: bool) -> tuple[np.ndarray, np.ndarray, int]:
    """Split a block: columns in every draw, columns to draw from, and how many to draw."""
    outside = np.flatnonzero(~located)
    if not excluding:
        return outside[:0], np.arange(len(located)), count
    if len(outside) >= count:
        return outside[:0], outside, count
    return outside, np.flatnonzero(located), count - len(outside)


@dataclass(frozen=True)
class Specificity(MeanWithInterval):
    """How much more the located neurons do than random ones.

    `gain` is the mean over items of each item's gain, in standard deviations, `items_undefined`
    the number of items left out because all draws did the same (or an effect is missing).
    `excess` is the mean over items of `effect(located) - mean effect(random)`, in the effect's own
    units. `pooled_gain` is the gain of the mean effects over items, which draws with equal effects
    on single items do not disturb; `p` the share of mean effects, the located one included, that
    reach it: `(1 + #(random >= located)) / (1 + draws)`. None where undefined.
    """

    gain: Interval
    items_undefined: int
    excess: Interval
    located: float | None
    random: float | None
    pooled_gain: float | None
    p: float | None
    draws: int
    per_item: Effects


def specificity(located: Effects, random: DrawnEffects, *, seed: int = 0) -> Specificity:
    """Hold the effects of located neurons against those of random draws on the same items.

    Raises:
        BadOption: if there are fewer than 5 draws. BadData: if an effect is infinite.
    """
    if len(random) < FEWEST:
        raise BadOption(
            f"A specificity gain needs at least {FEWEST} random draws; got {len(random)}."
        )
    each = gains(located, random)
    known = ~np.isnan(located) & ~np.isnan(random).any(axis=0)
    pooled = located[known].mean(keepdims=True) if known.any() else np.full(1, np.nan)
    drawn = random[:, known].mean(axis=1) if known.any() else np.full(len(random), np.nan)
    return Specificity(
        gain=mean_interval(each, seed=seed),
        items_undefined=int(np.isnan(each).sum()),
        excess=paired_interval(located, random.mean(axis=0), seed=seed),
        located=float(pooled[0]),
        random=float(drawn.mean()),
        pooled_gain=float(gains(pooled, drawn[:, None])[0]),
        p=permutation_p(float(pooled[0]), drawn) if known.any() else None,
        draws=len(random),
        per_item=each,
    )


def gains(located: Effects, random: DrawnEffects) -> Effects:
    """Compute the gain of each item; NaN where draws do not differ or an effect is missing.

    The standard deviation is that of a sample of draws (divided by draws - 1).
    """
    spread = np.where(np.ptp(random, axis=0) > 0, random.std(axis=0, ddof=1), np.nan)
    each: np.ndarray = (located - random.mean(axis=0)) / spread
    return each
