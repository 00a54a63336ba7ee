"""Neurons by name and by column."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caploc.errors import BadOption, UnknownName
from caploc.neurons.model import Neuron, NeuronGrid

counts = st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any)


@given(counts)
def test_columns_and_neurons_are_each_others_inverse(per_layer):
    grid = NeuronGrid(tuple(per_layer))
    neurons = [grid.component(column) for column in range(grid.size)]
    assert [grid.column(neuron) for neuron in neurons] == list(range(grid.size))
    assert neurons == sorted(neurons)
    assert [Neuron.parse(str(neuron)) for neuron in neurons] == neurons


@given(counts, st.data())
def test_a_set_is_named_and_read_again(per_layer, data):
    grid = NeuronGrid(tuple(per_layer))
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=grid.size, max_size=grid.size)))
    named = grid.named(chosen)
    assert np.array_equal(grid.mask(named), chosen)
    assert sum(grid.counts(chosen)) == len(named) == chosen.sum()


def test_what_does_not_exist_is_refused():
    grid = NeuronGrid((3, 0, 2))
    with pytest.raises(UnknownName, match="layer 0 has neurons N0 to N2"):
        grid.column(Neuron(0, 3))
    with pytest.raises(UnknownName, match="layer 1 has no feed-forward neurons"):
        grid.mask(["L1N0"])
    with pytest.raises(UnknownName, match="layers L0 to L2"):
        grid.mask(["L3N0"])
    with pytest.raises(BadOption, match="'H3' is not a neuron"):
        Neuron.parse("H3")
