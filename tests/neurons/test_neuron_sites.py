"""Neurons of every family: found, proved, and cut as weights set to zero would cut them."""

import copy

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.models.cutting import knocked_out
from caploc.models.proof import columns_zeroed
from caploc.neurons.model import find_sites, prove, unread_weights
from worlds.tiny import ROUTED, WITH_NEURONS, count_hooks, random_tokens, tiny

WITHOUT = "nemotron_h, attention beside state spaces"  # its two layers have no feed-forward block


@pytest.mark.parametrize("name", WITH_NEURONS)
def test_every_family_passes_the_proof_and_is_left_as_it_was(name):
    model = tiny(name)
    before, hooks = copy.deepcopy(model.state_dict()), count_hooks(model)
    sites, grid = find_sites(model)
    prove(model, sites, grid)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert count_hooks(model) == hooks
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_a_row_equals_the_model_with_those_weights_zeroed(name):
    model, tokens = tiny(name), random_tokens(3, 7)
    sites, grid = find_sites(model)
    masks = torch.rand(3, grid.size, generator=torch.Generator().manual_seed(3)) < 0.2
    masks[0] = False
    cut, intact = logits(model, tokens, sites, grid, masks), model(input_ids=tokens).logits
    torch.testing.assert_close(cut[0], intact[0], atol=2e-5, rtol=1e-5)
    for row in (1, 2):
        with columns_zeroed(sites, grid, masks[row]):
            truth = model(input_ids=tokens).logits[row]
        assert (truth - intact[row]).abs().max() > 1e-3
        torch.testing.assert_close(cut[row], truth, atol=2e-5, rtol=1e-5)


def logits(model, tokens, sites, grid, masks):
    with torch.no_grad(), knocked_out(sites, grid, masks):
        return model(input_ids=tokens).logits


@pytest.mark.parametrize("name", ROUTED)
def test_models_with_routed_experts_are_refused(name):
    with pytest.raises(ModelRefused, match="routes tokens to experts, whose neurons are not"):
        find_sites(tiny(name))


def test_a_transposed_projection_is_read_the_right_way_round():
    sites, grid = find_sites(tiny("gpt2"))
    assert isinstance(sites[0], Conv1D) and grid.neurons_per_layer[0] == 128


def test_a_model_without_feed_forward_blocks_is_refused():
    with pytest.raises(ModelRefused, match="feed-forward output projections .* are not found"):
        find_sites(tiny(WITHOUT))


def test_an_attention_output_is_refused_by_the_proof():
    model = tiny("llama")
    sites, grid = find_sites(model)
    wrong = [layer.self_attn.o_proj for layer in model.model.layers]
    small = type(grid)((wrong[0].in_features,) * len(wrong))
    with pytest.raises(ModelRefused, match="depends on earlier positions"):
        prove(model, wrong, small)


def test_what_never_reaches_the_logits_is_refused_by_the_proof():
    model = tiny("llama")
    idle = [nn.Linear(48, 32) for _ in model.model.layers]
    for layer, module in zip(model.model.layers, idle, strict=True):
        layer.mlp.idle = module
    try:
        _, grid = find_sites(model)
        with pytest.raises((ModelRefused, IndexError)):
            prove(model, idle, grid)
    finally:
        for layer in model.model.layers:
            del layer.mlp.idle


UNREAD = {
    "lfm2, attention in one layer of three": ("conv in layers 0, 2",),
    "gpt2": (),
    "llama": (),
    "opt": (),
}


@pytest.mark.parametrize("name", UNREAD)
def test_matrices_that_no_neuron_reads_are_named(name):
    model = tiny(name)
    assert unread_weights(model, find_sites(model)[0]) == UNREAD[name]


def test_a_second_block_beside_the_one_that_is_found_is_named():
    model = copy.deepcopy(tiny("llama"))
    layer = model.model.layers[1]
    layer.memory = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 32))
    assert unread_weights(model, find_sites(model)[0]) == ("memory in layer 1",)


class OnlyForPrompts(nn.Linear):
    """Heeds hooks where a prompt is read, and not for single tokens."""

    def __call__(self, inside):
        if inside.shape[1] > 1:
            return super().__call__(inside)
        return nn.functional.linear(inside, self.weight)


def test_a_block_that_goes_another_way_for_single_tokens_is_refused():
    model = copy.deepcopy(tiny("llama"))
    sites, grid = find_sites(model)
    sites[1].__class__ = OnlyForPrompts
    with pytest.raises(ModelRefused, match="set to zero"):
        prove(model, sites, grid)
