"""Which heads, and which key-value groups, several tasks share: counts beside chance."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from jaxtyping import Bool, Int

from caploc import designs
from caploc.heads import Head, HeadGrid
from caploc.search import column_mask
from caploc.sharing.chance import (
    DRAWS,
    Blocks,
    Chance,
    check_draws,
    columns_of,
    common_by_chance,
    in_groups,
    pairs_within,
    permutation_p,
)

FoundHeads = Mapping[str, Sequence[Head] | Sequence[int]]  # by task; columns or heads


@dataclass(frozen=True)
class Overlap:
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

    def as_dict(self) -> dict[str, Any]:
        """As files hold it."""
        return asdict(self)


@dataclass(frozen=True)
class Shared:
    """Heads found for `tasks` tasks or more, the tasks of each, and how many chance gives."""

    tasks: int
    heads: dict[str, list[str]]
    chance: Chance

    def as_dict(self) -> dict[str, Any]:
        """As files hold it."""
        return asdict(self)


@dataclass(frozen=True)
class JointOverlap:
    """Heads of one task that share a key-value group; `chance` counts pairs of such heads."""

    task: str
    groups: list[list[str]]
    chance: Chance

    def as_dict(self) -> dict[str, Any]:
        """As files hold it."""
        return asdict(self)


def overlaps(
    found: FoundHeads, grid: HeadGrid, *, draws: int = DRAWS, seed: int = 0
) -> list[Overlap]:
    """For each pair of tasks: heads and key-value groups in common, and how many chance gives.

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
        for blocks, sets in drawn:
            by_groups.append(float(blocks.reached(pair[0]) @ blocks.reached(pair[1])))
            meeting = (sets[first] & sets[second]).sum(axis=1)
            by_groups.append(permutation_p(int(both.sum()), meeting))
        rows.append(
            Overlap(
                first,
                second,
                heads=names(grid, sorted(set(pair[0]) & set(pair[1]))),
                groups=members(grid, both, masks[0] | masks[1]),
                head_chance=exact(grid, *pair),
                group_chance=Chance(int(both.sum()), *by_groups),
                reach_chance=exact(
                    grid_of_groups(grid), *(np.flatnonzero(each).tolist() for each in reached)
                ),
            )
        )
    return rows


def reached_by_chance(
    columns: Mapping[str, Sequence[int]], blocks: Blocks, draws: int, seed: int
) -> dict[str, Bool[np.ndarray, "draws groups"]]:
    """For each task, the groups that random sets like its own have a head in."""
    random = designs.generator(seed)
    return {
        task: in_groups(blocks.draws(heads, draws, random), blocks.grid) > 0
        for task, heads in columns.items()
    }


def exact(grid: HeadGrid, first: Sequence[int], second: Sequence[int]) -> Chance:
    """What two sets have in common, beside the exact chances."""
    count = len(set(first) & set(second))
    figures: list[float] = []
    for blocks in Blocks.both(grid):
        counts = blocks.counts(first), blocks.counts(second)
        figures += common_by_chance(count, blocks.sizes, *counts)
    return Chance(count, *figures)


def grid_of_groups(grid: HeadGrid) -> HeadGrid:
    """The key-value groups as a grid of their own, layer by layer."""
    sizes = grid.group_sizes or (1,) * grid.layers
    counts = zip(grid.heads_per_layer, sizes, strict=True)
    return HeadGrid(tuple(-(-heads // size) for heads, size in counts))


def shared(found: FoundHeads, grid: HeadGrid, *, draws: int = DRAWS, seed: int = 0) -> list[Shared]:
    """Heads found for at least 2, 3 ... tasks, for which of them, and how many chance gives.

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
    drawn = [uses_by_chance(columns, blocks, draws, seed) for blocks in kinds]
    expected = [blocks.in_many(list(columns.values())) for blocks in kinds]
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
    """How many tasks' random sets each head is in."""
    random = designs.generator(seed)
    uses = np.zeros((draws, blocks.grid.size), dtype=np.int16)
    for heads in columns.values():
        uses += blocks.draws(heads, draws, random)
    return uses


def together(
    found: FoundHeads, grid: HeadGrid, *, draws: int = DRAWS, seed: int = 0
) -> list[JointOverlap]:
    """For each task: pairs of its heads in one key-value group, and how many chance gives.

    The mean is `C(n, 2)` times the share of a block's pairs of heads that are of one group, summed
    over blocks; the p is by permutation.

    Raises:
        UnknownName: if the grid has no such head. BadOption: if `draws` is below 1.
    """
    check_draws(draws)
    rows = []
    for task, heads in columns_of(found, grid).items():
        mask = column_mask(grid.size, heads)
        inside = in_groups(mask[None], grid)
        count = int(pairs_within(inside)[0])
        figures = []
        for blocks in Blocks.both(grid):
            sets = blocks.draws(heads, draws, designs.generator(seed))
            figures += [pairs_by_chance(blocks, heads)]
            figures += [permutation_p(count, pairs_within(in_groups(sets, grid)))]
        groups = members(grid, inside[0] > 1, mask)
        rows.append(JointOverlap(task, groups, Chance(count, *figures)))
    return rows


def pairs_by_chance(blocks: Blocks, heads: Sequence[int]) -> float:
    """Mean number of pairs of one group among random heads."""
    total = 0.0
    size, count = (blocks.of_groups(each) for each in (blocks.sizes, blocks.counts(heads)))
    for group, heads_around, drawn in zip(blocks.grid.groups, size, count, strict=True):
        if len(group) > 1:
            total += comb(int(drawn), 2) * comb(len(group), 2) / comb(int(heads_around), 2)
    return total


def names(grid: HeadGrid, columns: Sequence[int]) -> list[str]:
    """The heads of these columns, by name."""
    heads = grid.heads
    return [str(heads[column]) for column in columns]


def members(
    grid: HeadGrid, wanted: Bool[np.ndarray, " groups"], mask: Bool[np.ndarray, " heads"]
) -> list[list[str]]:
    """For each group wanted, those of its heads that are in the mask."""
    return [
        names(grid, [column for column in group if mask[column]])
        for group, want in zip(grid.groups, wanted, strict=True)
        if want
    ]
