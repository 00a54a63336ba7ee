"""Which heads, and which key-value groups, several tasks share: counts beside chance."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import combinations

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from caploc import designs
from caploc.errors import BadOption, UnknownName
from caploc.heads import Head, HeadGrid, Masks
from caploc.search import column_mask
from caploc.stats.chance import Chance, count_shared, permutation_p
from caploc.stats.intervals import JsonRecord
from caploc.stats.threshold import blocks

DRAWS = 9_999  # random sets of heads for each task; no p is below 1 / (1 + DRAWS)
FoundHeads = Mapping[str, Sequence[Head] | Sequence[int]]  # by task; columns or heads


@dataclass(frozen=True)
class Blocks:
    """Columns of a grid within which heads are drawn: all of them, or those of each layer."""

    grid: HeadGrid
    slices: list[slice]

    @classmethod
    def both(cls, grid: HeadGrid) -> "tuple[Blocks, Blocks]":
        """Take the whole grid as one block, and a block a layer."""
        return cls(grid, blocks(grid.size, None)), cls(grid, blocks(grid.size, grid))

    @property
    def sizes(self) -> list[int]:
        """Number of heads of each block."""
        return [columns.stop - columns.start for columns in self.slices]

    def counts(self, columns: Sequence[int]) -> list[int]:
        """Count these heads in each block."""
        return [sum(block.start <= each < block.stop for each in columns) for block in self.slices]

    def draws(self, columns: Sequence[int], draws: int, random: np.random.Generator) -> Masks:
        """Draw random sets with as many heads in each block."""
        sets = np.zeros((draws, self.grid.size), dtype=bool)
        for block, size, count in zip(self.slices, self.sizes, self.counts(columns), strict=True):
            if count:
                first = np.broadcast_to(np.arange(size) < count, (draws, size))
                sets[:, block] = random.permuted(first, axis=1)
        return sets

    def reached(self, columns: Sequence[int]) -> Float[np.ndarray, " groups"]:
        """Compute the chance that a random set like this has a head in each group.

        `1 - C(N - s, n) / C(N, n)` for a group of s of the block's N heads, n of them drawn.
        """
        size, count = (self.of_groups(values) for values in (self.sizes, self.counts(columns)))
        group = np.array([len(each) for each in self.grid.groups])
        chances: np.ndarray = 1 - stats.hypergeom.pmf(0, size, group, count)
        return chances

    def of_groups(self, values: Sequence[int]) -> Int[np.ndarray, " groups"]:
        """Give each group the value of its block."""
        ends = [block.stop for block in self.slices]
        firsts = [group[0] for group in self.grid.groups]
        chosen: np.ndarray = np.array(values)[np.searchsorted(ends, firsts, side="right")]
        return chosen

    def in_many(self, found: Sequence[Sequence[int]]) -> Float[np.ndarray, " tasks"]:
        """Compute the mean number of heads in at least 1, 2 ... of random sets like these.

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
    """List each task's heads as columns, once each.

    Raises:
        UnknownName: if the grid has no such head.
    """
    return {
        task: sorted({column_of(head, grid) for head in heads}) for task, heads in found.items()
    }


def column_of(head: Head | int, grid: HeadGrid) -> int:
    """Return a head's column.

    Raises:
        UnknownName: if the grid has none such.
    """
    if isinstance(head, Head):
        return grid.column(head)
    if not 0 <= head < grid.size:
        raise UnknownName(f"There is no head in column {head}: columns are 0 to {grid.size - 1}.")
    return int(head)


def in_groups(sets: Masks, grid: HeadGrid) -> Int[np.ndarray, "masks groups"]:
    """Count the heads of each set in each key-value group."""
    firsts = [group[0] for group in grid.groups]
    counts: np.ndarray = np.add.reduceat(sets, firsts, axis=1, dtype=np.int16)
    return counts


def check_draws(draws: int) -> None:
    """Refuse a number of draws that tells nothing.

    Raises:
        BadOption: if it is below 1.
    """
    if draws < 1:
        raise BadOption(f"The number of random draws must be 1 or more; got {draws}.")


@dataclass(frozen=True)
class Overlap(JsonRecord):
    """What the heads of two tasks have in common.

    `groups` holds, for each key-value group in which both tasks have a head, the heads of either in
    it. Without shared key-value heads every head is a group of its own. `group_chance` draws heads;
    `reach_chance` draws groups, as many as each task's heads lie in, which is fair to tasks whose
    heads crowd into few groups and so can have few in common.
    """

    first: str
    second: str
    heads: list[str]
    groups: list[list[str]]
    head_chance: Chance
    group_chance: Chance
    reach_chance: Chance


@dataclass(frozen=True)
class Shared(JsonRecord):
    """Heads found for `tasks` tasks or more, the tasks of each, and how many chance gives."""

    tasks: int
    heads: dict[str, list[str]]
    chance: Chance


def overlaps(
    found: FoundHeads, grid: HeadGrid, *, draws: int = DRAWS, seed: int = 0
) -> list[Overlap]:
    """Find heads and key-value groups that two tasks share, pair by pair, beside what chance gives.

    Heads: exact, hypergeometric (`common_by_chance`). Groups, heads being drawn: the mean is `sum
    over groups of P(first has a head in it) P(second has)`, the p by permutation, both tasks' heads
    drawn anew. Groups, groups being drawn: exact again.

    Raises:
        UnknownName: if the grid has no such head. BadOption: if `draws` is below 1.
    """
    check_draws(draws)
    columns = columns_of(found, grid)
    drawn = [(kind, reached_by_chance(columns, kind, draws, seed)) for kind in Blocks.both(grid)]
    rows = []
    for first, second in combinations(columns, 2):
        pair = columns[first], columns[second]
        masks = np.stack([column_mask(grid.size, each) for each in pair])
        reached = in_groups(masks, grid) > 0
        both = reached[0] & reached[1]
        by_groups: list[float] = []
        for kind, sets in drawn:
            by_groups.append(float(kind.reached(pair[0]) @ kind.reached(pair[1])))
            meeting = (sets[first] & sets[second]).sum(axis=1)
            by_groups.append(permutation_p(int(both.sum()), meeting))
        rows.append(
            Overlap(
                first,
                second,
                heads=names(grid, sorted(set(pair[0]) & set(pair[1]))),
                groups=members(grid, both, masks[0] | masks[1]),
                head_chance=count_shared(masks[0], masks[1], grid),
                group_chance=Chance(int(both.sum()), *by_groups),
                reach_chance=count_shared(reached[0], reached[1], grid_of_groups(grid)),
            )
        )
    return rows


def reached_by_chance(
    columns: Mapping[str, Sequence[int]], blocks: Blocks, draws: int, seed: int
) -> dict[str, Bool[np.ndarray, "draws groups"]]:
    """Draw, for each task, the groups that random sets like its own have a head in."""
    random = designs.generator(seed)
    return {
        task: in_groups(blocks.draws(heads, draws, random), blocks.grid) > 0
        for task, heads in columns.items()
    }


def grid_of_groups(grid: HeadGrid) -> HeadGrid:
    """Make a grid of the key-value groups, layer by layer."""
    sizes = grid.group_sizes or (1,) * grid.layers
    counts = zip(grid.heads_per_layer, sizes, strict=True)
    return HeadGrid(tuple(-(-heads // size) for heads, size in counts))


def shared(found: FoundHeads, grid: HeadGrid, *, draws: int = DRAWS, seed: int = 0) -> list[Shared]:
    """List heads found for at least 2, 3 ... tasks, for which of them, beside what chance gives.

    The mean is exact (`Blocks.in_many`), the p by permutation, every task's heads drawn anew.

    Raises:
        UnknownName: if the grid has no such head. BadOption: if `draws` is below 1.
    """
    check_draws(draws)
    columns = columns_of(found, grid)
    if len(columns) < 2:
        return []
    tasks = {
        column: [task for task, heads in columns.items() if column in heads]
        for column in sorted(set().union(*columns.values()))
    }
    kinds = Blocks.both(grid)
    drawn = [uses_by_chance(columns, kind, draws, seed) for kind in kinds]
    expected = [kind.in_many(list(columns.values())) for kind in kinds]
    rows = []
    for least in range(2, len(columns) + 1):
        many = {column: named for column, named in tasks.items() if len(named) >= least}
        figures = []
        for mean, uses in zip(expected, drawn, strict=True):
            reached = (uses >= least).sum(axis=1)
            figures += [float(mean[least - 1]), permutation_p(len(many), reached)]
        heads = dict(zip(names(grid, list(many)), many.values(), strict=True))
        rows.append(Shared(least, heads, Chance(len(many), *figures)))
    return rows


def uses_by_chance(
    columns: Mapping[str, Sequence[int]], blocks: Blocks, draws: int, seed: int
) -> Int[np.ndarray, "draws heads"]:
    """Count the tasks' random sets that each head is in."""
    random = designs.generator(seed)
    uses = np.zeros((draws, blocks.grid.size), dtype=np.int16)
    for heads in columns.values():
        uses += blocks.draws(heads, draws, random)
    return uses


def names(grid: HeadGrid, columns: Sequence[int]) -> list[str]:
    """Name the heads of these columns."""
    heads = grid.heads
    return [str(heads[column]) for column in columns]


def members(
    grid: HeadGrid, wanted: Bool[np.ndarray, " groups"], mask: Bool[np.ndarray, " heads"]
) -> list[list[str]]:
    """Name, for each group wanted, those of its heads that are in the mask."""
    return [
        names(grid, [column for column in group if mask[column]])
        for group, want in zip(grid.groups, wanted, strict=True)
        if want
    ]
