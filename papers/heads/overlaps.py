"""What sets of heads have in common, and the chance that random sets have as much."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from caploc.components import Head, Heads
from caploc.neurons.chance import Chance, count_shared
from caploc.search import column_mask


def common_to_all(count: int, parts: int, sizes: Sequence[int]) -> float:
    """Compute the chance that random sets of these sizes all share `count` of the parts or more.

    Exact: what the sets so far share, m of N parts, shares k with the next of n with chance
    `C(m, k) C(N - m, n - k) / C(N, n)`.
    """
    shared = np.eye(parts + 1)[parts]
    for size in sizes:
        every = np.arange(parts + 1)
        shared = shared @ stats.hypergeom.pmf(every, parts, every[:, None], size)
    return float(min(shared[count:].sum(), 1.0))


@dataclass(frozen=True)
class Overlap:
    """What the heads of two tasks have in common, and of the key-value groups in which they lie.

    `p_heads` and `p_groups` are those in layers, as false discovery rates of all pairs
    (Benjamini-Yekutieli, which holds whatever pairs have to do with each other).
    """

    first: str
    second: str
    shared: list[str]
    heads: Chance
    groups: Chance
    p_heads: float
    p_groups: float


def overlaps(found: Mapping[str, Sequence[Head]], grid: Heads) -> list[Overlap]:
    """Hold what every two tasks share against what random sets of the same sizes share."""
    firsts = [group[0] for group in grid.groups]
    of_groups = Heads(tuple(grid.counts(column_mask(grid.size, firsts))))
    pairs = list(combinations(found, 2))
    sets = {task: grid.mask(heads) for task, heads in found.items()}
    reached = {task: np.add.reduceat(each, firsts, dtype=int) > 0 for task, each in sets.items()}
    heads = [count_shared(sets[one], sets[two], grid) for one, two in pairs]
    groups = [count_shared(reached[one], reached[two], of_groups) for one, two in pairs]
    return [
        Overlap(one, two, [str(head) for head in grid.named(sets[one] & sets[two])], *figures)
        for (one, two), *figures in zip(
            pairs, heads, groups, rates(heads), rates(groups), strict=True
        )
    ]


def rates(chances: Sequence[Chance]) -> list[float]:
    """Turn p values in layers into false discovery rates."""
    p = [each.p_in_layers for each in chances]
    return stats.false_discovery_control(p, method="by").tolist() if p else []
