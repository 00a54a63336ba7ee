"""Heads and groups that two tasks share, and the chance of that."""

import pytest

from caploc.components import Head, Heads
from papers.heads.overlaps import overlaps

GROUPED = Heads((8, 8, 0, 8), (4, 4, 1, 2))


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


def test_p_values_are_corrected_for_the_number_of_pairs():
    rows = overlaps(dict.fromkeys("abc", [Head(0, 1), Head(0, 3)]), Heads((4,)))
    assert [row.heads.p_in_layers for row in rows] == pytest.approx([1 / 6] * 3)
    assert [row.p_heads for row in rows] == pytest.approx([(1 + 1 / 2 + 1 / 3) / 6] * 3)
