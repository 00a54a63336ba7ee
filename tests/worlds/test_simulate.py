from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caploc.errors import BadOption, UnknownName
from caploc.search import column_mask
from worlds.simulate import KINDS, Interaction, World

SMALL = {
    name: replace(kind, large=min(kind.large, 6), tails=min(kind.tails, 12))
    for name, kind in KINDS.items()
}
EXAMPLES = 4000


def small(kind, seed=1):
    return World.of_kind(SMALL[kind], seed=seed, layers=8, width=8)


def mean_outcome(world, columns):
    masks = np.tile(column_mask(world.heads, columns), (EXAMPLES, 1))
    return world.outcomes(masks, np.arange(EXAMPLES)).mean()


def within(world, mean, accuracy):
    """Four standard errors: of the mean, and of the sample that the accuracy is taken over."""
    return abs(mean - accuracy) < 4 * np.sqrt(max(accuracy * (1 - accuracy), 1e-3) * 2 / EXAMPLES)


def drawn_rows(random, heads, count):
    return random.random((count, heads)) < 0.1, random.integers(0, 40, count)


@pytest.mark.parametrize("ask", [World.outcomes, World.logprobs, World.margins, World.luck])
@given(seed=st.integers(0, 99))
def test_a_row_has_the_same_outcome_whenever_and_beside_whatever_it_is_asked(ask, seed):
    random = np.random.default_rng(seed)
    masks, examples = drawn_rows(random, 64, 12)
    together = ask(small("strong"), masks, examples)
    world, order = small("strong"), random.permutation(12)
    assert (ask(world, masks[order], examples[order]) == together[order]).all()
    alone = [ask(world, masks[row, None], examples[row, None])[0] for row in range(12)]
    assert alone == together.tolist()


@given(seed=st.integers(0, 99))
def test_an_answer_is_likelier_than_not_exactly_where_it_is_right(seed):
    masks, examples = drawn_rows(np.random.default_rng(seed), 64, 50)
    world = small("inter")
    right = world.outcomes(masks, examples) == 1
    assert (right == (world.logprobs(masks, examples) > -np.log(2))).all()


def test_luck_is_uniform_and_that_of_like_rows_is_not_alike():
    world = small("strong")
    empty = np.zeros((5000, 64), dtype=bool)
    one, examples = empty.copy(), np.arange(5000)
    one[:, 7] = True
    scattered, _ = drawn_rows(np.random.default_rng(0), 64, 5000)
    lucks = [
        world.luck(empty, examples),
        world.luck(one, examples),
        world.luck(scattered, examples % 3),
        replace(world, seed=2).luck(empty, examples),
    ]
    for luck in lucks:
        assert stats.kstest(luck, "uniform").pvalue > 1e-3
    for other in (*lucks[1:], np.roll(lucks[0], 1)):
        # Four standard errors of a correlation of 5,000 pairs.
        assert abs(np.corrcoef(lucks[0], other)[0, 1]) < 4 / np.sqrt(5000)


def entangled_heads(world):
    """Single heads, pairs with a backup, and masks of many, by what they are."""
    pairs = [each.columns for each in world.interactions]
    strongest = int(np.argmax(np.where(world.common, world.shifts, 0)))
    return {
        "none": (),
        "the strongest": (strongest,),
        "universal": world.universal[:1],
        "saturating": pairs[0],
        "with a backup": pairs[2],
        "half of a pair": pairs[2][:1],
        "joint only": pairs[4],
        "group of four": pairs[-1],
        "many": tuple(range(20, 40)),
    }


def test_the_accuracy_is_the_mean_outcome_over_many_examples():
    world = small("inter")
    for name, columns in entangled_heads(world).items():
        accuracy = world.accuracy(column_mask(64, columns))
        assert within(world, mean_outcome(world, columns), accuracy), name


def test_the_accuracy_holds_for_unsteady_heads_without_varied_ones():
    world = World(np.linspace(0, 1, 8), 2.0, seed=3, unsteady=1.5)
    for columns in ((), (0,), (3, 5), tuple(range(8))):
        accuracy = world.accuracy(column_mask(8, columns))
        assert within(world, mean_outcome(world, columns), accuracy)


def test_without_interactions_and_damage_losses_of_margin_add_up():
    world = small("additive")
    masks, examples = drawn_rows(np.random.default_rng(4), 64, 40)
    empty = np.zeros_like(masks)
    lost = world.margins(empty, examples) - world.margins(masks, examples)
    alone = np.zeros(40)
    for column in range(64):
        single = empty.copy()
        single[:, column] = True
        taken = world.margins(empty, examples) - world.margins(single, examples)
        alone += np.where(masks[:, column], taken, 0)
    assert lost == pytest.approx(alone)


def test_an_interaction_counts_once_all_of_its_heads_are_gone():
    three, two = Interaction((0, 1, 2), 2.0), Interaction((1, 3), -0.5)
    world = World(np.zeros(10), 1.0, 0, interactions=(three, two), damage=0.01)
    cut = [(), (0, 1), (0, 1, 2), (1, 3), (0, 1, 2, 3), (7, 8, 9)]
    joint = world.joint(np.array([column_mask(10, columns) for columns in cut]))
    # The damage is 0.01 times the square of the percentage of heads cut.
    assert joint.tolist() == pytest.approx([0, 4, 11, 3.5, 17.5, 9])


@pytest.mark.parametrize("kind", KINDS)
def test_a_world_has_what_its_kind_says(kind):
    counts = KINDS[kind]
    for seed in range(40):
        world = World.of_kind(kind, seed=seed)
        assert world.heads == 1024 and (~world.common).sum() == counts.universal
        assert all(column < 64 for column in world.universal)
        assert ((world.shifts[~world.common] >= 5) & (world.shifts[~world.common] <= 9)).all()
        strengths = counts.largest * counts.ratio ** np.arange(counts.large)
        strongest = np.argsort(np.where(world.common, -world.shifts, 0))[: counts.large]
        assert (strongest >= 128).all() or counts.large == 0
        # Each of the large heads is within a tenth of its strength; so are the sorted ones.
        found = world.shifts[strongest]
        assert (found >= 0.9 * strengths).all(), seed
        sizes = sorted(len(each.columns) for each in world.interactions)
        assert sizes == ([2] * 14 + [4] if counts.coupling else [])
        first = world.interactions[-1].columns[0] if sizes else 0
        assert first % 4 == 0 and (not sizes or world.interactions[-1].columns[3] == first + 3)


@pytest.mark.parametrize("kind", KINDS)
def test_the_intact_accuracy_is_that_of_the_kind(kind):
    # The logistic noise pulls it towards a half by a point.
    assert small(kind).accuracy(np.zeros(64, dtype=bool)) == pytest.approx(
        KINDS[kind].intact, abs=0.015
    )


def test_in_a_small_world_no_head_is_large_and_universal_at_once():
    for seed in range(100):
        world = small("fragile", seed)
        strongest = np.argsort(np.where(world.common, -world.shifts, 0))[:6]
        assert (world.shifts[strongest] > 1.6 * 0.8**5 * 0.9).all()


def test_in_a_null_world_no_single_head_matters():
    world = small("null")
    assert world.planted_heads == []
    assert np.abs(world.single_effects()).max() < 0.01


@given(heads=st.integers(5, 60), drop=st.floats(0.1, 0.6), seed=st.integers(0, 50))
def test_planted_heads_alone_cost_what_they_should(heads, drop, seed):
    world = World.planted(heads, 3, drop=drop, seed=seed)
    effects = world.single_effects()
    assert effects[world.planted_heads] == pytest.approx(np.full(3, -drop), abs=0.02)
    others = [column for column in range(heads) if column not in world.planted_heads]
    assert (effects[others] == 0).all()


def test_single_effects_and_damage_are_differences_of_the_accuracy():
    world = small("inter")
    intact = world.accuracy(np.zeros(64, dtype=bool))
    pair = list(world.interactions[2].columns)
    effects = world.single_effects()
    assert effects[pair[0]] == world.accuracy(column_mask(64, pair[:1])) - intact
    assert world.damage_of(pair) == intact - world.accuracy(column_mask(64, pair))
    # The second head of the pair is a silent backup of the first.
    assert world.damage_of(pair) > -effects[pair].sum() + 0.05


@pytest.mark.parametrize("seed", range(3))
def test_where_heads_interact_the_best_set_is_not_that_of_the_strongest_alone(seed):
    world = small("inter", seed)
    effects = np.where(world.common, world.single_effects(), 0)
    strongest = np.argsort(effects)[:5].tolist()
    best = world.best_set(5)
    assert len(set(best)) == 5 and world.common[best].all()
    assert world.damage_of(best) > world.damage_of(strongest) + 0.02


def test_an_unknown_kind_and_a_grid_too_small_are_refused():
    with pytest.raises(UnknownName, match="no kind of world 'stong'.*'strong'"):
        World.of_kind("stong", seed=0)
    with pytest.raises(BadOption, match="needs 93 heads.*8 x 8 heads leave 48"):
        World.of_kind("strong", seed=0, layers=8, width=8)
