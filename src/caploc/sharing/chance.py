"""Heads drawn at random instead of those found: what a count of shared heads must be held against.

Two kinds of chance: as many heads as a task has, from the whole grid; and, stricter, as many in
each of its layers. The heads of different tasks often lie in the same layers, and meet there more
often than heads of a whole grid would.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import reduce
from typing import Any

import numpy as np
from jaxtyping import Float, Int, Num
from scipy import stats

from caploc.errors import BadOption, UnknownName
from caploc.heads import Head, HeadGrid, Masks

SMALLEST = np.finfo(float).tiny  # chances below it are dropped: no sum of them shows
DRAWS = 9_999  # random sets of heads for each task; no p is below 1 / (1 + DRAWS)


@dataclass(frozen=True)
class Chance:
    """A count beside what random heads give.

    `p` is the chance that as many heads, drawn at random from the whole grid for each task, count
    at least as much, and `expected` their mean count; `p_in_layers` and `expected_in_layers` are
    the same for heads drawn so that each task keeps its number of heads in every layer.
    """

    count: int
    expected: float
    p: float
    expected_in_layers: float
    p_in_layers: float

    def as_dict(self) -> dict[str, Any]:
        """As files hold it."""
        return asdict(self)


@dataclass(frozen=True)
class Blocks:
    """Columns of a grid within which heads are drawn: all of them, or those of each layer."""

    grid: HeadGrid
    slices: list[slice]

    @classmethod
    def both(cls, grid: HeadGrid) -> "tuple[Blocks, Blocks]":
        """The whole grid as one block, and a block a layer."""
        layers = [columns for columns in grid.layer_slices if columns.stop > columns.start]
        return cls(grid, [slice(0, grid.size)]), cls(grid, layers)

    @property
    def sizes(self) -> list[int]:
        """Number of heads of each block."""
        return [columns.stop - columns.start for columns in self.slices]

    def counts(self, columns: Sequence[int]) -> list[int]:
        """How many of these heads lie in each block."""
        return [sum(block.start <= each < block.stop for each in columns) for block in self.slices]

    def draws(self, columns: Sequence[int], draws: int, random: np.random.Generator) -> Masks:
        """Random sets with as many heads in each block."""
        sets = np.zeros((draws, self.grid.size), dtype=bool)
        for block, size, count in zip(self.slices, self.sizes, self.counts(columns), strict=True):
            if count:
                first = np.broadcast_to(np.arange(size) < count, (draws, size))
                sets[:, block] = random.permuted(first, axis=1)
        return sets

    def reached(self, columns: Sequence[int]) -> Float[np.ndarray, " groups"]:
        """Chance that a random set like this has a head in each group.

        `1 - C(N - s, n) / C(N, n)` for a group of s of the block's N heads, n of them drawn.
        """
        size, count = (self.of_groups(values) for values in (self.sizes, self.counts(columns)))
        group = np.array([len(each) for each in self.grid.groups])
        chances: np.ndarray = 1 - stats.hypergeom.pmf(0, size, group, count)
        return chances

    def of_groups(self, values: Sequence[int]) -> Int[np.ndarray, " groups"]:
        """The value of each group's block."""
        ends = [block.stop for block in self.slices]
        firsts = [group[0] for group in self.grid.groups]
        chosen: np.ndarray = np.array(values)[np.searchsorted(ends, firsts, side="right")]
        return chosen

    def in_many(self, found: Sequence[Sequence[int]]) -> Float[np.ndarray, " tasks"]:
        """Mean number of heads in at least 1, 2 ... of random sets like these.

        A head of a block of N is in set i with chance `n_i / N`, in each set on its own.
        """
        expected = np.zeros(len(found))
        counts = zip(*(self.counts(columns) for columns in found), strict=True)
        for size, inside in zip(self.sizes, counts, strict=True):
            each = [np.array([1 - count / size, count / size]) for count in inside]
            chances = reduce(np.convolve, each)
            expected += size * np.cumsum(chances[::-1])[::-1][1:]
        return expected


def columns_of(
    found: Mapping[str, Sequence[Head] | Sequence[int]], grid: HeadGrid
) -> dict[str, list[int]]:
    """Each task's heads as columns, once each.

    Raises:
        UnknownName: if the grid has no such head.
    """
    return {
        task: sorted({column_of(head, grid) for head in heads}) for task, heads in found.items()
    }


def column_of(head: Head | int, grid: HeadGrid) -> int:
    """A head's column.

    Raises:
        UnknownName: if the grid has none such.
    """
    if isinstance(head, Head):
        return grid.column(head)
    if not 0 <= head < grid.size:
        raise UnknownName(f"There is no head in column {head}: columns are 0 to {grid.size - 1}.")
    return int(head)


def in_groups(sets: Masks, grid: HeadGrid) -> Int[np.ndarray, "masks groups"]:
    """How many heads of each set lie in each key-value group."""
    firsts = [group[0] for group in grid.groups]
    counts: np.ndarray = np.add.reduceat(sets, firsts, axis=1, dtype=np.int16)
    return counts


def permutation_p(value: float | int, drawn: Num[np.ndarray, " draws"]) -> float:
    """Compute a one-sided p by permutation: `(1 + draws that reach it) / (1 + draws)`, never 0.

    Phipson and Smyth (2010), "Permutation p-values should never be zero".
    """
    return float((1 + np.count_nonzero(drawn >= value)) / (1 + len(drawn)))


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


def check_draws(draws: int) -> None:
    """Refuse a number of draws that tells nothing.

    Raises:
        BadOption: if it is below 1.
    """
    if draws < 1:
        raise BadOption(f"The number of random draws must be 1 or more; got {draws}.")


def pairs_within(counts: Int[np.ndarray, "masks groups"]) -> Int[np.ndarray, " masks"]:
    """Pairs of heads of one group: `sum of c (c - 1) / 2` over groups with c heads each."""
    pairs: np.ndarray = (counts * (counts - 1) // 2).sum(axis=1)
    return pairs
