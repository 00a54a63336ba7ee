"""Heads and groups that two tasks share, against closed forms and every subset tried."""

from itertools import combinations

import numpy as np
import pytest
from scipy import stats

from caploc.components import Head, Heads
from papers.heads.overlaps import overlaps

GROUPED = Heads((8, 8, 0, 8), (4, 4, 1, 2))
SMALL = Heads((4, 2), (2, 2))


def pairs(grid, **columns):
    """Overlaps of tasks whose heads are these columns."""
    found = {task: [grid.components[each] for each in those] for task, those in columns.items()}
    return overlaps(found, grid)


def every(size, count):
    """All sets of so many columns."""
    return [set(columns) for columns in combinations(range(size), count)]


def layered(grid, columns):
    """All sets with as many columns in each layer as these."""
    sets = [set()]
    for layer in grid.layer_slices:
        inside = range(layer.start, layer.stop)
        count = len(set(columns) & set(inside))
        sets = [one | set(more) for one in sets for more in combinations(inside, count)]
    return sets


def test_heads_and_groups_in_common_are_counted():
    found = {
        "math": [Head(0, 1), Head(1, 4), Head(3, 2)],
        "code": [Head(3, 3), Head(1, 4), Head(0, 5)],
        "rhyme": [],
    }
    first, *others = overlaps(found, GROUPED)
    assert (first.first, first.second, first.shared) == ("math", "code", ["L1H4"])
    # Heads 2 and 3 of the last layer are of one group, 1 and 5 of the first are not.
    assert (first.heads.count, first.groups.count) == (1, 2)
    assert [(each.first, each.second) for each in others] == [("math", "rhyme"), ("code", "rhyme")]
    for empty in others:
        assert empty.shared == [] and empty.heads.p == empty.groups.p == empty.p_heads == 1.0
        assert empty.heads.expected == empty.groups.expected_in_layers == 0.0


@pytest.mark.parametrize("common", [0, 1, 3, 5])
def test_chance_of_heads_in_common_is_hypergeometric(common):
    grid = Heads((32,) * 32, (4,) * 32)
    (row,) = pairs(grid, a=range(0, 500, 100), b=[*range(0, 100 * common, 100), 7, 8])
    table = [[common, 5 - common], [2, 1024 - 5 - 2]]
    fisher = stats.fisher_exact(table, alternative="greater").pvalue
    assert row.heads.p == pytest.approx(fisher)
    assert row.heads.expected == pytest.approx(5 * (common + 2) / 1024)


def test_exact_chances_are_those_of_trying_every_set():
    first, second = [0, 1, 4], [0, 5]
    (row,) = pairs(SMALL, a=first, b=second)
    both = {
        "": [(a, b) for a in every(6, 3) for b in every(6, 2)],
        "_in_layers": [(a, b) for a in layered(SMALL, first) for b in layered(SMALL, second)],
    }
    for kind, sets in both.items():
        heads = np.array([len(a & b) for a, b in sets])
        chance = row.heads.as_dict()
        assert chance["expected" + kind] == pytest.approx(heads.mean())
        assert chance["p" + kind] == pytest.approx((heads >= 1).mean())


def test_p_values_are_corrected_for_the_number_of_pairs():
    rows = pairs(Heads((4,)), a=[1, 3], b=[1, 3], c=[1, 3])
    assert [row.heads.p_in_layers for row in rows] == pytest.approx([1 / 6] * 3)
    assert [row.p_heads for row in rows] == pytest.approx([(1 + 1 / 2 + 1 / 3) / 6] * 3)
