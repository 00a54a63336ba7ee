"""Which heads each mask knocks out: pure functions of grid size, count, rate and seed.

Asking for more masks never changes the earlier ones, and a seed gives the same masks on every
machine (the bit generator is named, not NumPy's default of the day).
"""

import numpy as np

from caploc.errors import BadOption
from caploc.heads import Mask, Masks

CONTROLS = 1_000_003  # added to a study's seed for its controls, which must not repeat its masks


def generator(seed: int) -> np.random.Generator:
    """The random numbers of a seed."""
    return np.random.Generator(np.random.PCG64(seed))


def check_rate(rate: float) -> None:
    """Refuse a rate that is no share of the heads.

    Raises:
        BadOption: if `rate` is not strictly between 0 and 1.
    """
    if not 0 < rate < 1:
        raise BadOption(f"--rate is the share of heads in a mask, between 0 and 1; got {rate:g}.")


def bernoulli(heads: int, masks: int, *, rate: float, seed: int) -> Masks:
    """Knock out each head on its own with chance `rate` (CSB of the heads paper).

    Raises:
        BadOption: if `rate` is not strictly between 0 and 1.
    """
    check_rate(rate)
    return generator(seed).random((masks, heads)) < rate


def stratified(heads: int, masks: int, *, rate: float, seed: int) -> Masks:
    """Knock out exactly `int(rate * heads)` heads a mask, the least used so far (CSS).

    Ties are broken at random, so that all heads are measured about equally often.

    Raises:
        BadOption: if `rate` is not strictly between 0 and 1, or too small for a single head.
    """
    check_rate(rate)
    each = int(rate * heads)
    if each == 0:
        raise BadOption(
            f"--rate {rate:g} of {heads} heads is less than one head a mask; "
            f"use {1 / heads:.4f} or more."
        )
    random = generator(seed)
    used = np.zeros(heads, dtype=int)
    knocked_out = np.zeros((masks, heads), dtype=bool)
    for mask in knocked_out:
        chosen = np.lexsort((random.random(heads), used))[:each]
        mask[chosen] = True
        used[chosen] += 1
    return knocked_out


def singles(heads: int) -> Masks:
    """One mask for each head, knocking out it alone."""
    return np.eye(heads, dtype=bool)


def matched(mask: Mask, layer_slices: list[slice], draws: int, *, seed: int) -> Masks:
    """Random masks with as many heads in each layer as `mask`, none of its own.

    Where a layer has too few other heads, all of the others are drawn.
    """
    random = generator(seed)
    controls = np.zeros((draws, mask.size), dtype=bool)
    for control in controls:
        for columns in layer_slices:
            others = np.flatnonzero(~mask[columns]) + columns.start
            count = min(int(mask[columns].sum()), others.size)
            control[random.choice(others, size=count, replace=False)] = True
    return controls


def draw_examples(size: int, count: int, *, seed: int) -> list[int]:
    """`count` of `size` examples, drawn once; more examples keep the first ones.

    Raises:
        BadOption: if there are not so many, or none is asked for.
    """
    if not 0 < count <= size:
        raise BadOption(f"--examples must lie between 1 and {size}, all there are; got {count}.")
    return [int(example) for example in generator(seed).permutation(size)[:count]]
