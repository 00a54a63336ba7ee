import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.search import column_mask
from worlds.simulate import LARGE, LARGEST, RATIO, World

EXAMPLES = 4000


def small():
    return World.real(seed=1, layers=8, width=16)


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
    masks, examples = drawn_rows(random, 128, 12)
    together = ask(small(), masks, examples)
    world, order = small(), random.permutation(12)
    assert (ask(world, masks[order], examples[order]) == together[order]).all()
    alone = [ask(world, masks[row, None], examples[row, None])[0] for row in range(12)]
    assert alone == together.tolist()


@given(seed=st.integers(0, 99))
def test_an_answer_is_likelier_than_not_exactly_where_it_is_right(seed):
    masks, examples = drawn_rows(np.random.default_rng(seed), 128, 50)
    world = small()
    right = world.outcomes(masks, examples) == 1
    assert (right == (world.logprobs(masks, examples) > -np.log(2))).all()


def entangled_heads(world):
    """Single heads, pairs with a backup, and masks of many, by what they are."""
    pairs = [each.columns for each in world.interactions]
    return {
        "none": (),
        "the strongest": (int(np.argmax(world.shifts)),),
        "saturating": pairs[0],
        "with a backup": pairs[2],
        "half of a pair": pairs[2][:1],
        "joint only": pairs[4],
        "group of four": pairs[-1],
        "many": tuple(range(20, 40)),
    }


def test_the_accuracy_is_the_mean_outcome_over_many_examples():
    world = small()
    for name, columns in entangled_heads(world).items():
        accuracy = world.accuracy(column_mask(128, columns))
        assert within(world, mean_outcome(world, columns), accuracy), name


@pytest.mark.parametrize("seed", range(40))
def test_a_world_like_a_real_model_has_few_strong_heads_and_heads_that_act_together(seed):
    world = World.real(seed=seed, layers=32, width=32)
    strongest = np.argsort(-world.shifts)[:LARGE]
    assert world.heads == 1024 and (strongest >= 128).all()
    # Each of the large heads is within a tenth of its strength; so are the sorted ones.
    assert (world.shifts[strongest] >= 0.9 * LARGEST * RATIO ** np.arange(LARGE)).all()
    *pairs, four = (each.columns for each in world.interactions)
    assert len(pairs) == 14 and {len(pair) for pair in pairs} == {2}
    assert four == (*range(4 * (four[0] // 4), 4 * (four[0] // 4) + 4),)


@given(heads=st.integers(5, 60), drop=st.floats(0.1, 0.6), seed=st.integers(0, 50))
def test_planted_heads_alone_cost_what_they_should(heads, drop, seed):
    world = World.planted(heads, 3, drop=drop, seed=seed)
    effects = world.single_effects()
    assert effects[world.planted_heads] == pytest.approx(np.full(3, -drop), abs=0.02)
    others = [column for column in range(heads) if column not in world.planted_heads]
    assert (effects[others] == 0).all()
