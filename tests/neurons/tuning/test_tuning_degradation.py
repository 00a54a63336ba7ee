"""Noise of the size asked for, on the feed-forward weights alone, and gone afterwards."""

import pytest
import torch
from tiny import tiny

from caploc.errors import BadOption
from caploc.neurons.weights import degraded, feed_forward_weights

FAMILIES = ["llama", "phi3", "gpt2", "gpt_neox"]


@pytest.mark.parametrize("family", FAMILIES)
def test_noise_has_the_size_asked_for_and_goes(family, unchanged):
    model = unchanged(tiny(family))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    touched = {weight.data_ptr() for weight in feed_forward_weights(model)}
    with degraded(model, 0.5, seed=3):
        for name, value in model.state_dict().items():
            noise = value - before[name]
            if value.data_ptr() in touched:
                share = float(noise.std() / before[name].std())
                assert share == pytest.approx(0.5, rel=0.15), name
                assert abs(float(noise.mean())) < 0.1 * float(before[name].std()), name
            else:
                assert not noise.any(), name
    matrices = [name for name in before if "mlp" in name and before[name].ndim > 1]
    assert len(touched) == len(matrices)


def test_the_noise_is_the_seeds(unchanged):
    model = unchanged(tiny("llama"))
    states = []
    for seed in (1, 1, 2):
        with degraded(model, 0.5, seed):
            states.append(model.model.layers[0].mlp.up_proj.weight.clone())
    assert torch.equal(states[0], states[1]) and not torch.equal(states[0], states[2])


def test_no_noise_is_no_change(unchanged):
    model = unchanged(tiny("gpt2"))
    before = model.transformer.h[1].mlp.c_fc.weight.clone()
    with degraded(model, 0.0, 1):
        assert torch.equal(model.transformer.h[1].mlp.c_fc.weight, before)


def test_an_interrupted_block_leaves_nothing_changed(unchanged):
    model = unchanged(tiny("llama", torch.bfloat16))
    with pytest.raises(KeyboardInterrupt), degraded(model, 2.0, 1):
        raise KeyboardInterrupt


@pytest.mark.parametrize("noise", [-0.1, float("inf"), float("nan")])
def test_sizes_that_are_none_are_refused(noise):
    with pytest.raises(BadOption, match="0 or more"), degraded(tiny("llama"), noise, 0):
        pass
