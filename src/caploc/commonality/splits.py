"""Which items of a dataset neurons are located on: disjoint subsets, and answers put elsewhere."""

import numpy as np
from jaxtyping import Int

from caploc.designs import generator
from caploc.errors import BadOption


def disjoint(
    items: int, size: int, *, subsets: int = 2, seed: int = 0
) -> Int[np.ndarray, "subsets size"]:
    """Random disjoint subsets of `size` items each, as the numbers of the items.

    A larger size only adds items to each subset, so that a curve over sizes is of the same data.

    Raises:
        BadOption: if there are not so many items, or a number is below 1.
    """
    if min(items, size, subsets) < 1:
        raise BadOption(
            "Items, subsets and their size must each be 1 or more; "
            f"got {items}, {subsets} and {size}."
        )
    if subsets * size > items:
        raise BadOption(
            f"{subsets} subsets of {size} items need {subsets * size} items and there are {items}; "
            f"the largest size is {items // subsets}."
        )
    order = generator(seed).permutation(items)
    return np.stack([order[first::subsets][:size] for first in range(subsets)])


def misplaced(items: int, *, seed: int = 0) -> Int[np.ndarray, " items"]:
    """For each item, another whose answer it gets; each answer is used once, none by its own item.

    What is located on such items does not depend on knowing the answer: a control.

    Raises:
        BadOption: if there are fewer than two items.
    """
    if items < 2:
        raise BadOption(f"Answers can be exchanged among 2 items or more; got {items}.")
    order = generator(seed).permutation(items)
    donors = np.empty_like(order)
    # One cycle through all items in a random order: nobody is the one before itself.
    donors[order] = np.roll(order, 1)
    return donors
