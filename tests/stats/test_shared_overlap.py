"""Shared heads and groups, against closed forms, every subset tried, and rates under the null."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caploc.components import Head, Heads
from caploc.errors import BadOption, UnknownName
from caploc.stats.chance import Blocks, in_groups, overlaps, permutation_p, shared

GROUPED = Heads((8, 8, 0, 8), (4, 4, 1, 2))
PLAIN = Heads((6, 6))
SMALL = Heads((4, 2), (2, 2))


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


def groups_reached(grid, columns):
    return {number for number, group in enumerate(grid.groups) if set(group) & set(columns)}


def near(p, true, draws):
    """Whether a permutation p may come of a true one: within five standard errors."""
    return abs(p - true) <= 5 * (true * (1 - true) / draws) ** 0.5 + 2 / draws


class TestPairs:
    def test_heads_and_groups_in_common_are_named(self):
        found = {
            "math": [Head(0, 1), Head(1, 4), Head(3, 2)],
            "code": [Head(3, 3), Head(1, 4), Head(0, 5)],
            "rhyme": [],
        }
        first, *others = overlaps(found, GROUPED)
        assert (first.first, first.second) == ("math", "code")
        assert first.heads == ["L1H4"]
        # Heads 2 and 3 of the last layer are of one group, 1 and 5 of the first are not.
        assert first.groups == [["L1H4"], ["L3H2", "L3H3"]]
        assert (first.head_chance.count, first.reach_chance.count) == (1, 2)
        assert [(each.first, each.second) for each in others] == [
            ("math", "rhyme"),
            ("code", "rhyme"),
        ]
        for empty in others:
            assert empty.heads == [] and empty.head_chance.p == empty.reach_chance.p == 1.0
            assert empty.head_chance.expected == empty.reach_chance.expected_in_layers == 0.0

    def test_columns_and_heads_are_the_same_and_doubles_count_once(self):
        heads = {"a": [Head(0, 1), Head(3, 0)], "b": [Head(3, 0)]}
        columns = {"a": [16, 1, 1], "b": [16]}
        assert overlaps(heads, GROUPED) == overlaps(columns, GROUPED)

    @pytest.mark.parametrize("common", [0, 1, 3, 5])
    def test_chance_of_heads_in_common_is_hypergeometric(self, common):
        grid = Heads((32,) * 32, (4,) * 32)
        found = {"a": list(range(0, 500, 100)), "b": [*range(0, 100 * common, 100), 7, 8]}
        (row,) = overlaps(found, grid)
        size = common + 2
        table = [[common, 5 - common], [2, 1024 - 5 - 2]]
        fisher = stats.fisher_exact(table, alternative="greater").pvalue
        assert row.head_chance.p == pytest.approx(fisher)
        assert row.head_chance.expected == pytest.approx(5 * size / 1024)

    def test_exact_chances_are_those_of_trying_every_set(self):
        first, second = [0, 1, 4], [0, 5]
        (row,) = overlaps({"a": first, "b": second}, SMALL)
        both = {
            "": [(a, b) for a in every(6, 3) for b in every(6, 2)],
            "_in_layers": [(a, b) for a in layered(SMALL, first) for b in layered(SMALL, second)],
        }
        for kind, sets in both.items():
            heads = np.array([len(a & b) for a, b in sets])
            chance = row.head_chance.as_dict()
            assert chance["expected" + kind] == pytest.approx(heads.mean())
            assert chance["p" + kind] == pytest.approx((heads >= 1).mean())

    def test_without_groups_every_head_is_one(self):
        found = {"a": [0, 1, 2, 7, 8], "b": [1, 2, 3, 8], "c": [0, 11]}
        assert all(row.reach_chance == row.head_chance for row in overlaps(found, PLAIN))

    def test_drawing_groups_is_trying_every_set_of_as_many(self):
        """GROUPED has 2, 2 and 4 groups; a reaches 1, 0 and 2 of them, b reaches 1, 1 and 2."""
        found = {"a": [0, 1, 2, 16, 20, 21], "b": [3, 8, 17, 23]}
        (row,) = overlaps(found, GROUPED)
        assert row.reach_chance.count == 2
        a, b = groups_reached(GROUPED, found["a"]), groups_reached(GROUPED, found["b"])
        assert (a, b) == ({0, 4, 6}, {0, 2, 4, 7})
        grid = Heads((2, 2, 0, 4))
        both = {
            "": [len(one & b) for one in every(8, 3)],
            "_in_layers": [len(one & b) for one in layered(grid, a)],
        }
        for kind, counts in both.items():
            chance = row.reach_chance.as_dict()
            assert chance["expected" + kind] == pytest.approx(np.mean(counts))
            assert chance["p" + kind] == pytest.approx((np.array(counts) >= 2).mean())

    def test_tasks_that_keep_to_one_layer_meet_there_by_chance(self):
        grid = Heads((32,) * 32)
        layer = range(320, 330)
        (row,) = overlaps({"a": layer, "b": range(325, 335)}, grid)
        assert row.head_chance.p < 1e-6 and row.head_chance.p_in_layers > 0.1
        assert row.head_chance.expected_in_layers == pytest.approx(100 / 32)

    def test_p_is_never_zero(self):
        grid = Heads((32,) * 32, (8,) * 32)
        (row,) = overlaps({"a": range(10), "b": range(10)}, grid)
        assert 0 < row.head_chance.p < 1e-20 and 0 < row.reach_chance.p < 0.01


class TestManyTasks:
    def test_heads_of_several_tasks_are_named_with_these(self):
        found = {"a": [0, 1, 9], "b": [1, 9, 5], "c": [9, 1, 3]}
        two, three = shared(found, PLAIN, draws=99)
        assert (two.tasks, three.tasks) == (2, 3)
        assert two.heads == three.heads == {"L0H1": ["a", "b", "c"], "L1H3": ["a", "b", "c"]}
        two, three = shared(found | {"c": [5]}, PLAIN, draws=99)
        assert two.heads == {"L0H1": ["a", "b"], "L0H5": ["b", "c"], "L1H3": ["a", "b"]}
        assert three.heads == {} and three.chance.p == 1.0

    def test_two_tasks_are_the_hypergeometric_case(self):
        found = {"a": [0, 1, 2, 7, 8], "b": [1, 2, 3, 8]}
        (pair,) = overlaps(found, PLAIN)
        (two,) = shared(found, PLAIN, draws=19_999, seed=2)
        assert two.chance.count == 3
        assert two.chance.expected == pytest.approx(pair.head_chance.expected)
        assert two.chance.expected_in_layers == pytest.approx(pair.head_chance.expected_in_layers)
        assert near(two.chance.p, pair.head_chance.p, 19_999)
        assert near(two.chance.p_in_layers, pair.head_chance.p_in_layers, 19_999)

    def test_three_tasks_as_trying_every_set_has_it(self):
        found = {"a": [0, 1, 4], "b": [1, 5], "c": [1, 2, 3]}
        drawn = shared(found, SMALL, draws=19_999, seed=4)
        for kind, sets_of in (
            ("", lambda heads: every(6, len(heads))),
            ("_in_layers", lambda heads: layered(SMALL, heads)),
        ):
            first, second, third = (sets_of(heads) for heads in found.values())
            uses = np.array(
                [
                    [(column in a) + (column in b) + (column in c) for column in range(6)]
                    for a in first
                    for b in second
                    for c in third
                ]
            )
            for row in drawn:
                many = (uses >= row.tasks).sum(axis=1)
                chance = row.chance.as_dict()
                assert chance["expected" + kind] == pytest.approx(many.mean())
                assert near(chance["p" + kind], (many >= row.chance.count).mean(), 19_999)

    def test_fewer_than_two_tasks_share_nothing(self):
        assert shared({}, PLAIN) == overlaps({}, PLAIN) == []
        assert shared({"a": [1]}, PLAIN) == overlaps({"a": [1]}, PLAIN) == []


@given(
    columns=st.sets(st.integers(0, 23), max_size=12),
    seed=st.integers(0, 9),
)
def test_random_sets_keep_the_number_of_heads_of_every_block(columns, seed):
    whole, layers = Blocks.both(GROUPED)
    for blocks in (whole, layers):
        sets = blocks.draws(sorted(columns), 20, np.random.default_rng(seed))
        assert sets.shape == (20, 24)
        for block, count in zip(blocks.slices, blocks.counts(sorted(columns)), strict=True):
            assert (sets[:, block].sum(axis=1) == count).all()


def test_random_sets_are_uniform():
    """All 28 pairs of 8 heads come equally often, within a layer too."""
    for blocks in Blocks.both(Heads((8,))):
        sets = blocks.draws([2, 5], 14_000, np.random.default_rng(1))
        counts = np.unique(sets, axis=0, return_counts=True)[1]
        assert len(counts) == 28 and stats.chisquare(counts).pvalue > 0.001


def test_the_same_seed_gives_the_same_figures():
    found = {"a": [0, 1, 4, 9], "b": [1, 2, 9, 20]}
    one, same, other = (shared(found, GROUPED, draws=299, seed=seed) for seed in (5, 5, 6))
    assert one == same != other


@pytest.mark.slow
def test_under_the_null_small_p_are_no_more_frequent_than_they_say():
    """Tasks of random heads: P(p <= level) is at most the level for every count."""
    random = np.random.default_rng(8)
    grid = Heads((16,) * 4, (4,) * 4)
    ps = {"heads": [], "reach": [], "many": []}
    for _ in range(200):
        found = {name: random.choice(64, 8, replace=False).tolist() for name in "abc"}
        pair, *_ = overlaps(found, grid)
        ps["heads"].append(pair.head_chance.p)
        ps["reach"].append(pair.reach_chance.p)
        ps["many"].append(shared(found, grid, draws=99, seed=1)[0].chance.p)
    for name, values in ps.items():
        for level in (0.05, 0.2, 0.5):
            small = int((np.array(values) <= level).sum())
            test = stats.binomtest(small, 200, level + 0.01, alternative="greater")
            assert test.pvalue > 0.001, (name, level, small)


def test_heads_planted_in_one_group_stand_out():
    grid = Heads((32,) * 32, (4,) * 32)
    found = {"a": [400, 401, 402, 7, 900], "b": [403, 100, 650, 7]}
    (pair,) = overlaps(found, grid)
    assert pair.heads == ["L0H7"] and pair.groups == [
        ["L0H7"],
        ["L12H16", "L12H17", "L12H18", "L12H19"],
    ]
    assert pair.reach_chance.p < 0.02


def test_counts_of_groups_and_pairs():
    masks = np.zeros((2, 24), dtype=bool)
    masks[0, [0, 1, 3, 4, 16, 17]] = True
    counts = in_groups(masks, GROUPED)
    assert counts.tolist() == [[3, 1, 0, 0, 2, 0, 0, 0], [0] * 8]
    assert permutation_p(2, np.array([0, 1, 2, 3])) == 3 / 5
    assert permutation_p(9, np.array([0, 1])) == 1 / 3


def test_mistakes_are_refused():
    with pytest.raises(UnknownName, match="There is no head L2H0: layer 2 has no attention heads"):
        overlaps({"a": [Head(2, 0)], "b": []}, GROUPED)
    for wrong in (24, -1):
        with pytest.raises(UnknownName, match=f"no head in column {wrong}: columns are 0 to 23"):
            overlaps({"a": [wrong], "b": []}, GROUPED)
    with pytest.raises(BadOption, match="must be 1 or more; got 0"):
        shared({"a": [1], "b": [2]}, GROUPED, draws=0)
