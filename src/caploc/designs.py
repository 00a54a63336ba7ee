"""Which heads each mask knocks out: pure functions of grid size, count, rate and seed.

Asking for more masks never changes the earlier ones, and a seed gives the same masks on every
machine (the bit generator is named, not NumPy's default of the day).
"""

from math import ceil

import numpy as np

from caploc.components import Mask, Masks
from caploc.errors import BadOption

CONTROLS = 1_000_003  # added to a study's seed for its controls, which must not repeat its masks


def generator(seed: int) -> np.random.Generator:
    """Return the random numbers of a seed."""
    return np.random.Generator(np.random.PCG64(seed))


def bernoulli(heads: int, masks: int, *, rate: float, seed: int) -> Masks:
    """Knock out each head with chance `rate` (CSB of the heads paper)."""
    return generator(seed).random((masks, heads)) < rate


def stratified(heads: int, masks: int, *, rate: float, seed: int) -> Masks:
    """Knock out exactly `int(rate * heads)` heads a mask, the least used so far (CSS).

    Ties are broken at random, so that all heads are measured about equally often. Raises BadOption
    if `rate` is too small for a single head.
    """
    each = check_mask_size(heads, rate)
    random = generator(seed)
    used = np.zeros(heads, dtype=int)
    knocked_out = np.zeros((masks, heads), dtype=bool)
    for mask in knocked_out:
        mask[np.lexsort((random.random(heads), used))[:each]] = True
        used += mask
    return knocked_out


def check_mask_size(heads: int, rate: float) -> int:
    """Heads in a mask at a rate, rounded down; raises BadOption if that is not a single head."""
    each = int(rate * heads)
    if each == 0:
        raise BadOption(
            f"--rate {rate:g} of {heads} heads is less than one head a mask; "
            f"use {ceil(10_000 / heads) / 10_000:.4f} or more."
        )
    return each


def singles(heads: int) -> Masks:
    """Make one mask for each head, knocking out it alone."""
    return np.eye(heads, dtype=bool)


def layer_matched_masks(
    mask: Mask, layer_slices: list[slice], draws: int, *, seed: int, avoid: Mask | None = None
) -> Masks:
    """Random masks with as many heads in each layer as `mask`, none of its own.

    Heads to `avoid` are drawn only where a layer has too few others; where it has too few even so,
    all of the others are drawn, and the rest from other layers.
    """
    random = generator(seed)
    avoid = mask if avoid is None else avoid
    controls = np.zeros((draws, mask.size), dtype=bool)
    for control in controls:
        for columns in layer_slices:
            others = np.flatnonzero(~mask[columns]) + columns.start
            count = min(int(mask[columns].sum()), others.size)
            order = random.permutation(others)
            control[order[np.argsort(avoid[order], kind="stable")][:count]] = True
        if missing := int(mask.sum() - control.sum()):
            order = random.permutation(np.flatnonzero(~mask & ~control))
            control[order[np.argsort(avoid[order], kind="stable")][:missing]] = True
    return controls


def draw_examples(size: int, count: int, *, seed: int) -> list[int]:
    """Draw `count` of `size` examples; more keep the first ones.

    Raises BadOption if there are not so many, or none is asked for.
    """
    if not 0 < count <= size:
        raise BadOption(f"--examples must lie between 1 and {size}, all there are; got {count}.")
    return [int(example) for example in generator(seed).permutation(size)[:count]]
