"""Layers of heads and neurons: closed forms, every draw counted out, and planted agreement."""

import json
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from caploc.errors import BadData, BadOption
from caploc.heads import HeadGrid
from caploc.neurons.alignment import DRAWS, Placed, align, dealt, membership, spearman
from caploc.neurons.grid import NeuronGrid

HEADS, NEURONS = HeadGrid((2, 4, 0, 3)), NeuronGrid((5, 5, 6, 4))


def chosen(grid, counts):
    """The first so many parts of every layer."""
    found = np.zeros(grid.size, dtype=bool)
    for columns, count in zip(grid.layer_slices, counts, strict=True):
        found[columns.start : columns.start + count] = True
    return found


def layers_of(grid, mask):
    return np.repeat(np.arange(grid.layers), grid.per_layer)[mask]


def shares(layers):
    return np.bincount(layers, minlength=4) / len(layers)


heads_drawn = st.tuples(*(st.integers(0, size) for size in HEADS.per_layer)).filter(any)
neurons_drawn = st.tuples(*(st.integers(0, size) for size in NEURONS.per_layer)).filter(any)


@given(heads_drawn, neurons_drawn, st.booleans())
def test_figures_are_those_of_all_pairs(head_counts, neuron_counts, same_layer):
    heads, neurons = chosen(HEADS, head_counts), chosen(NEURONS, neuron_counts)
    found = align(Placed(HEADS, heads), Placed(NEURONS, neurons), same_layer=same_layer)
    pairs = [(h, n) for h in layers_of(HEADS, heads) for n in layers_of(NEURONS, neurons)]
    reads = [n >= h if same_layer else n > h for h, n in pairs]
    assert found.distance.value == pytest.approx(np.mean([n - h for h, n in pairs]))
    assert found.reading.value == pytest.approx(np.mean(reads))
    own, other = (shares(layers_of(*each)) for each in ((HEADS, heads), (NEURONS, neurons)))
    assert found.located.overlap.value == pytest.approx(1 - np.abs(own - other).sum() / 2)
    assert found.weighed is None
    for each in (found.distance, found.reading, found.located.overlap):
        assert each.low <= each.expected <= each.high or each.low == each.high
        assert 2 / (1 + DRAWS) <= each.p <= 1


def test_chance_is_that_of_every_set_of_as_many_heads():
    heads, neurons = chosen(HEADS, (1, 2, 0, 0)), chosen(NEURONS, (3, 1, 0, 2))
    found = align(Placed(HEADS, heads), Placed(NEURONS, neurons))
    own = np.repeat(np.arange(4), HEADS.per_layer)
    profile = shares(layers_of(NEURONS, neurons))
    every = [shares(own[list(each)]) for each in combinations(range(HEADS.size), 3)]
    overlaps = np.minimum(every, profile).sum(axis=1)
    distances = (profile - np.array(every)) @ np.arange(4)
    for told, exact in ((found.located.overlap, overlaps), (found.distance, distances)):
        assert told.expected == pytest.approx(exact.mean(), abs=4 * exact.std() / np.sqrt(DRAWS))
        sides = [(side * exact >= side * told.value - 1e-9).mean() for side in (1, -1)]
        assert told.p == pytest.approx(min(1, 2 * min(sides)), abs=0.03)


@given(st.lists(st.integers(0, 5), min_size=4, max_size=4), neurons_drawn)
def test_correlation_is_scipys(head_counts, neuron_counts):
    one, other = np.array(head_counts, dtype=float), np.array(neuron_counts, dtype=float)
    found = spearman(one[None], other)[0]
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(stats.spearmanr(one, other).statistic)


def test_heads_and_neurons_of_one_layer_are_beyond_chance():
    grid, wide = HeadGrid((8,) * 12), NeuronGrid((40,) * 12)
    counts = (0, 0, 0, 6, 0, 0, 0, 0, 1, 0, 0, 0)
    found = align(Placed(grid, chosen(grid, counts)), Placed(wide, chosen(wide, counts)))
    assert found.located.overlap.value == pytest.approx(1)
    assert found.located.spearman.value == pytest.approx(1)
    assert found.located.overlap.p < 0.001
    assert found.distance.value == pytest.approx(0)
    above = (*counts[2:], 0, 0)  # the heads lie two layers below
    found = align(Placed(grid, chosen(grid, above)), Placed(wide, chosen(wide, counts)))
    assert found.distance.value == pytest.approx(2)
    assert found.located.overlap.value == 0


def test_random_heads_are_called_unusual_as_rarely_as_p_says():
    random = np.random.default_rng(0)
    neurons = Placed(NEURONS, chosen(NEURONS, (1, 3, 0, 2)))
    ps = []
    for _ in range(120):
        mask = np.zeros(HEADS.size, dtype=bool)
        mask[random.choice(HEADS.size, 3, replace=False)] = True
        found = align(Placed(HEADS, mask), neurons)
        ps.append([found.distance.p, found.located.overlap.p])
    share = (np.array(ps) <= 0.2).mean(axis=0)
    assert (share <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / 120)).all()


def test_costs_and_scores_are_compared_where_both_are_known():
    costs = np.array([0.5, np.nan, 0.0, -0.25, 0.25, 0.0, 0.25, 0.0, 0.0])
    scores = np.zeros(NEURONS.size)
    scores[[0, 5, 6]] = 2.0, 1.0, -7.0
    heads = Placed(HEADS, chosen(HEADS, (1, 0, 0, 0)), costs)
    neurons = Placed(NEURONS, chosen(NEURONS, (1, 0, 0, 0)), scores)
    found = align(heads, neurons).weighed
    np.testing.assert_allclose(found.heads, [0.5, 0.25, 0, 0.25])
    np.testing.assert_allclose(found.neurons, [2 / 3, 1 / 3, 0, 0])
    assert found.overlap.value == pytest.approx(0.75)
    for missing in (np.zeros(HEADS.size), np.full(HEADS.size, np.nan), None):
        assert align(Placed(HEADS, heads.chosen, missing), neurons).weighed is None
    assert align(heads, Placed(NEURONS, neurons.chosen, -scores.clip(0))).weighed is None


def test_costs_are_dealt_out_to_heads_alike():
    own = membership(HEADS)
    costs = np.array([0.5, 0.2, 0.2, 0.1, 0, 0, 0, 0, 0])
    drawn = np.concatenate(list(dealt(costs, own, np.random.default_rng(0))))
    assert drawn.shape == (DRAWS, 4)
    np.testing.assert_allclose(drawn.sum(axis=1), 1)
    error = 4 * drawn.std(axis=0).max() / np.sqrt(DRAWS)
    np.testing.assert_allclose(drawn.mean(axis=0), own.mean(axis=0), atol=error)


def test_a_seed_gives_the_same_figures_and_files_hold_them():
    heads = Placed(HEADS, chosen(HEADS, (1, 1, 0, 1)), np.arange(9.0))
    neurons = Placed(NEURONS, chosen(NEURONS, (2, 0, 1, 0)), np.arange(20.0))
    told = [align(heads, neurons, seed=seed).as_dict() for seed in (3, 3, 4)]
    assert told[0] == told[1] != told[2]
    assert json.loads(json.dumps(told[0], allow_nan=False)) == told[0]
    assert sum(told[0]["located"]["heads"]) == pytest.approx(1)


def test_flat_profiles_have_no_correlation_but_all_else():
    heads = Placed(HeadGrid((2, 2)), np.array([True, False, True, False]))
    neurons = Placed(NeuronGrid((3, 3)), np.array([True, True, False, True, False, False]))
    found = align(heads, neurons).located
    assert found.spearman.as_dict() == dict.fromkeys(("value", "expected", "low", "high", "p"))
    assert found.overlap.value == pytest.approx(1 - (2 / 3 - 1 / 2))


def test_what_cannot_be_compared_is_refused():
    heads, neurons = chosen(HEADS, (1, 0, 0, 0)), chosen(NEURONS, (1, 0, 0, 0))
    with pytest.raises(BadOption, match="no located head"):
        align(Placed(HEADS, heads & False), Placed(NEURONS, neurons))
    with pytest.raises(BadOption, match="no located neuron"):
        align(Placed(HEADS, heads), Placed(NEURONS, neurons & False))
    with pytest.raises(BadData, match="4 layers and the neurons of one of 2"):
        align(Placed(HEADS, heads), Placed(NeuronGrid((1, 1)), np.ones(2, dtype=bool)))
