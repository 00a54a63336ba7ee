"""Blocks of columns within which neurons are counted and drawn: the whole model, or its layers."""

from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from caploc.errors import BadOption
from caploc.grid import Grid

Chosen = Bool[np.ndarray, " neurons"]  # True is chosen
Sets = Bool[np.ndarray, "sets neurons"]
Unchecked = Bool[np.ndarray, "*_"]  # a set or sets, whose width is still to be checked


def blocks(neurons: int, grid: Grid[Any] | None) -> list[slice]:
    """All columns as one block without a grid, else the columns of each layer that has any.

    Raises:
        BadOption: if the grid is not that of so many neurons.
    """
    if grid is None:
        return [slice(0, neurons)]
    if grid.size != neurons:
        raise BadOption(
            f"There are {neurons:,} columns and the grid has {grid.size:,} neurons; "
            "give the grid of the model that the columns are from."
        )
    return [columns for columns in grid.layer_slices if columns.stop > columns.start]


def block_counts(chosen: Chosen, slices: list[slice]) -> list[int]:
    """Number of chosen neurons in each block."""
    return [int(np.count_nonzero(chosen[block])) for block in slices]


def layer_counts(chosen: Chosen, grid: Grid[Any]) -> Int[np.ndarray, " layers"]:
    """Number of chosen neurons in every layer, 0 for a layer without neurons.

    Raises:
        BadOption: if the grid is not that of so many neurons.
    """
    blocks(len(chosen), grid)
    return np.array(block_counts(chosen, grid.layer_slices))
