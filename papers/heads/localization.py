"""How localized a task is in a model, whether that depends on its size, and heads in common.

Localization strength is the share of its score that the task loses with the heads found knocked
out, less the share that general tasks lose: large where few heads carry this task and no other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy import stats

from caploc.components import Head, Heads
from caploc.designs import generator
from caploc.search import column_mask
from caploc.stats.chance import Chance, count_shared
from papers.heads.measured import WIDTH, Scored

ORDERS = 9_999  # tried, at most; with seven models or fewer those are all
ROUNDING = 1e-12  # of a correlation


@dataclass(frozen=True)
class Strength:
    """Localization strength, and its standard error over examples."""

    value: float
    stderr: float


@dataclass(frozen=True)
class Trend:
    """Whether localization grows or falls with the number of parameters.

    `rho` is Spearman's rank correlation (None where all strengths are equal), `p` its two-sided
    permutation p, and `least_p` the smallest that so many models can give.
    """

    rho: float | None
    p: float
    least_p: float


def localization(task: Scored, general: Scored) -> Strength | None:
    """Take the share of the task's score lost less that of the general one, of other examples.

    None where one of the intact scores is not clearly above chance: no share of it means anything.
    """
    own, elsewhere = task.share_lost(), general.share_lost()
    if own is None or elsewhere is None:
        return None
    return Strength(own[0] - elsewhere[0], float(np.hypot(own[1], elsewhere[1])))


def mean_strength(strengths: Sequence[Strength]) -> Strength:
    """Average the strengths of several tasks of a model.

    General examples are the same in all, so errors are averaged too: an upper bound.
    """
    values, errors = zip(*((each.value, each.stderr) for each in strengths), strict=True)
    return Strength(float(np.mean(values)), float(np.mean(errors)))


def trend(
    strengths: Mapping[str, Strength], parameters: Mapping[str, float], *, seed: int = 0
) -> Trend:
    """Compare three models or more by their number of parameters.

    Every order of the strengths is tried, or random ones with `p = (1 + orders as extreme) / (1 +
    orders)`.
    """
    figures = [[parameters[name] for name in strengths], [x.value for x in strengths.values()]]
    ranks = stats.rankdata(figures, axis=1)
    sizes, values = ranks - ranks.mean(axis=1, keepdims=True)
    if not sizes.any() or not values.any():
        return Trend(None, 1.0, 1.0)
    length = float(np.linalg.norm(sizes) * np.linalg.norm(values))
    tried = stats.permutation_test(
        (values,),
        lambda order, axis: (np.abs(order @ sizes) / length).round(9),
        permutation_type="pairings",
        vectorized=True,
        n_resamples=ORDERS,
        alternative="greater",
        random_state=generator(seed),
    )
    orders = tried.null_distribution
    least = float((orders >= orders.max() - ROUNDING).mean())
    return Trend(float(values @ sizes) / length, float(tried.pvalue), least)


def describe_trend(strengths: Mapping[str, Strength], parameters: Mapping[str, float]) -> str:
    """Say the trend with size, of ranks, and the change from the smallest model to the largest."""
    found = trend(strengths, parameters)
    order = sorted(strengths, key=lambda model: parameters[model])
    least, most = strengths[order[0]], strengths[order[-1]]
    rise, half = most.value - least.value, WIDTH * float(np.hypot(most.stderr, least.stderr))
    rho = "undefined" if found.rho is None else f"{found.rho:+.2f}"
    return (
        f"rank correlation with size {rho}, two-sided p {found.p:.3f} (not below "
        f"{found.least_p:.3f} with {len(order)} models); from {order[0]} to {order[-1]} "
        f"{rise:+.3f} (95 % interval {rise - half:+.3f} to {rise + half:+.3f})."
    )


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

    `p_heads` and `p_groups` are those in layers, corrected for the number of pairs by Holm's method
    (1979), which holds whatever pairs have to do with each other.
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
            pairs, heads, groups, correct_p(heads), correct_p(groups), strict=True
        )
    ]


def correct_p(chances: Sequence[Chance]) -> list[float]:
    """Correct the p values in layers for their number."""
    p = np.array([each.p_in_layers for each in chances])
    order = np.argsort(p, kind="stable")
    corrected = np.empty(len(p))
    factors = len(p) - np.arange(len(p))
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * factors), 1.0)
    return corrected.tolist()
