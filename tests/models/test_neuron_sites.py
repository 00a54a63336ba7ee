"""Neurons of every family: found, proved, and cut as weights set to zero would cut them."""

import copy

import pytest
import torch
from tiny import FAMILIES, count_hooks, random_tokens, tiny
from torch import nn
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.models.cutting import Beside, knocked_out
from caploc.models.neurons import Experts, count_neurons, find_sites, list_projections, prove
from caploc.models.proof import columns_zeroed

WITHOUT = "nemotron_h, attention beside state spaces"  # its two layers have no feed-forward block
NAMES = [name for name in FAMILIES if name != WITHOUT]
WIDTHS = {  # from the configs: intermediate width, or experts x width and what is shared
    "mixtral": (4 * 48, 4 * 48),
    "qwen3_moe": (4 * 24, 4 * 24),
    "deepseek_v3": (48, 4 * 24 + 24),
    "gpt_oss": (4 * 48, 4 * 48),
    "qwen3_next, gated attention": (4 * 24 + 24, 4 * 24 + 24),
    "recurrent_gemma": (24, 24),
    "lfm2, attention in one layer of three": (48, 48, 48),
}
WIDE = {"gpt2", "bloom", "gptj", "gpt_bigcode"} | {n for n in FAMILIES if n.startswith("falcon")}


@pytest.mark.parametrize("name", NAMES)
def test_every_family_has_the_neurons_of_its_config(name):
    _, grid = find_sites(tiny(name))
    expected = WIDTHS.get(name, (128, 128) if name in WIDE else (48, 48))
    assert grid.neurons_per_layer == expected


@pytest.mark.parametrize("name", NAMES)
def test_every_family_passes_the_proof_and_is_left_as_it_was(name):
    model = tiny(name)
    before, hooks = copy.deepcopy(model.state_dict()), count_hooks(model)
    sites, grid = find_sites(model)
    prove(model, sites, grid)
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert count_hooks(model) == hooks
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", ["llama", "gpt2", "opt", "mixtral", "gpt_oss", "deepseek_v3"])
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


def test_experts_stand_first_and_what_is_shared_follows():
    sites, grid = find_sites(tiny("deepseek_v3"))
    assert isinstance(sites[1], Beside)
    assert [type(module) for module in sites[1].modules] == [Experts, nn.Linear]
    assert sites[1].widths == (96, 24)
    assert [grid.expert(grid.part(column)) for column in (47, 48, 71, 72, 143, 144)] == [
        None, 0, 0, 1, 3, None,
    ]  # fmt: skip
    assert [columns for _, columns, _ in list_projections(sites)] == [
        slice(0, 48), slice(48, 144), slice(144, 168),
    ]  # fmt: skip
    assert sum(map(count_neurons, sites)) == grid.size


def test_a_transposed_projection_is_read_the_right_way_round():
    sites, _ = find_sites(tiny("gpt2"))
    assert isinstance(sites[0], Conv1D)
    assert count_neurons(sites[0]) == 128


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
