"""Sets of neurons to hold a located one against: random ones, the lowest scores, all the rest.

Draw i is the same however many are asked for. By default no draw holds a located neuron, as far as
there is room: where fewer others exist than must be drawn, they are all taken and the rest is drawn
from the located ones.
"""

from typing import Any

import numpy as np

from caploc.commonality.layers import Chosen, Sets, block_counts, blocks
from caploc.commonality.threshold import Scores, strengths
from caploc.errors import BadOption
from caploc.grid import Grid


def uniform(located: Chosen, draws: int, *, seed: int, excluding: bool = True) -> Sets:
    """Random sets of as many neurons, from the whole model.

    Raises:
        BadOption: if `draws` is below 1.
    """
    return draw_in_blocks(located, blocks(len(located), None), draws, seed, excluding)


def layer_matched(
    located: Chosen, grid: Grid[Any], draws: int, *, seed: int, excluding: bool = True
) -> Sets:
    """Random sets with as many neurons in each layer as the located set has.

    Raises:
        BadOption: if `draws` is below 1, or the grid is not that of so many neurons.
    """
    return draw_in_blocks(located, blocks(len(located), grid), draws, seed, excluding)


def bottom(
    scores: Scores, located: Chosen, *, absolute: bool = False, excluding: bool = True
) -> Chosen:
    """As many neurons as located, those of the lowest scores.

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


def complement(located: Chosen) -> Chosen:
    """All neurons but the located ones."""
    return ~located


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
    """Of one block: columns in every draw, columns to draw from, and how many to draw."""
    outside = np.flatnonzero(~located)
    if not excluding:
        return outside[:0], np.arange(len(located)), count
    if len(outside) >= count:
        return outside[:0], outside, count
    return outside, np.flatnonzero(located), count - len(outside)
