"""ACDC: the planted path is found, and the threshold's ends are everything and nothing."""

from dataclasses import replace

import numpy as np
import pytest
from test_circuit_attribution import plant_one_path
from test_circuit_runs import plain

from caploc.errors import BadOption, UnknownName
from caploc.neurons.circuits.acdc import discover
from caploc.neurons.circuits.circuit import outcomes, run_circuits
from caploc.neurons.circuits.graph import EdgeGrid, prune
from caploc.neurons.circuits.recording import zero_baseline

pytestmark = pytest.mark.slow  # whole studies


@pytest.mark.parametrize("ablation", ["zero", "corrupted"])
def test_the_only_path_that_matters_is_found(ablation, opened, pair):
    model = opened("llama", plant_one_path)
    # the token for which the clean prompt speaks most, so that leaving out the path costs
    gain = plain(model, pair.clean).log_softmax(0)
    if ablation == "corrupted":
        gain = gain - plain(model, pair.corrupted).log_softmax(0)
    asked = replace(pair, gold=int(gain.argmax()))
    found = discover(model, asked, ablation=ablation)
    assert set(model.grid.named(found)) == {"input>L0KV0.v", "L0H1>L1KV1.v", "L1H2>logits"}


def test_no_rise_that_counts_leaves_nothing_and_any_that_counts_everything(opened, pair):
    model = opened("gptj")
    assert not discover(model, pair, threshold=np.inf).any()
    every = np.ones(model.grid.size, bool)
    assert np.array_equal(discover(model, pair, threshold=-np.inf), prune(model.grid, every))


def test_what_is_left_loses_less_than_the_threshold_an_edge(opened, pair):
    model = opened("llama")
    found = discover(model, pair, threshold=0.05)
    circuits = np.stack([np.ones_like(found), found])
    runs = run_circuits(model, pair, circuits, baseline=zero_baseline(model, pair))
    full, left = (-each.log_probability for each in outcomes(runs, pair))
    assert 0 < found.sum() < found.size
    assert left - full < 0.05 * (~found).sum()


def test_mistakes_are_named(opened, pair):
    model = opened("llama")
    with pytest.raises(BadOption, match="for each of its 231,877 edges"):
        discover(replace(model, grid=EdgeGrid(24, 16, 16, False)), pair)
    with pytest.raises(UnknownName, match="no ablation 'mean'"):
        discover(model, pair, ablation="mean")
    with pytest.raises(BadOption, match="a rise of the loss"):
        discover(model, pair, threshold=float("nan"))
