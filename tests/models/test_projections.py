"""Which modules are found as attention output projections, and which grid follows."""

import pytest
import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from caploc.errors import ModelRefused
from caploc.models.projections import find_projections, input_width, layer_part
from worlds.tiny import FAMILIES, GROUPED, MAMBA, SHAPE, build, tiny

each_family = pytest.mark.parametrize("name", FAMILIES)


@each_family
def test_the_grid_is_right(name):
    _, grid = find_projections(tiny(name))
    assert grid.heads_per_layer == FAMILIES[name].heads
    assert grid.group_sizes == FAMILIES[name].groups


@each_family
def test_the_projections_are_those_named_by_hand(name):
    model, family = tiny(name), FAMILIES[name]
    projections, _ = find_projections(model)
    for layer, heads in enumerate(family.heads):
        expected = model.get_submodule(family.naming.format(layer=layer)) if heads else None
        assert projections[layer] is expected


def test_a_model_without_attention_is_refused():
    with pytest.raises(ModelRefused, match="no attention output projections of the usual names"):
        find_projections(build("mamba", MAMBA))


def test_another_head_width_than_the_config_says_is_refused():
    model = build("llama", GROUPED)
    model.model.layers[1].self_attn.head_dim = 6
    with pytest.raises(ModelRefused, match="reads 32 values, but the model has 4 heads of 6"):
        find_projections(model)


def test_hidden_size_over_heads_is_the_last_resort():
    model = build("gpt2", {name: value for name, value in SHAPE.items() if "inter" not in name})
    for block in model.transformer.h:
        del block.attn.head_dim
    assert find_projections(model)[1].heads_per_layer == (4, 4)


@pytest.mark.parametrize("where", ["module", "config"])
def test_head_counts_may_differ_from_layer_to_layer(where):
    model = build("llama", {**GROUPED, "head_dim": 8, "num_key_value_heads": 4})
    attention = model.model.layers[1].self_attn
    attention.o_proj = nn.Linear(16, 32, bias=False)
    attention.num_key_value_groups = 2
    if where == "module":
        attention.num_heads = 2
    else:  # Llama's own config class wants a number, those of other models do not
        object.__setattr__(model.config, "num_attention_heads", [4, 2])
    grid = find_projections(model)[1]
    assert grid.heads_per_layer == (4, 2)
    assert grid.group_sizes == (1, 2)


def test_latent_attention_has_no_key_value_groups():
    model = build("deepseek_v3", FAMILIES["deepseek_v3"].config)
    for layer in model.model.layers:
        layer.self_attn.num_key_value_groups = 2  # of the cache; each head has a key and a value
    assert find_projections(model)[1].group_sizes == (1, 1)


@pytest.mark.parametrize("projection", [nn.Linear(3, 5), Conv1D(5, 3)])
def test_the_input_width_is_what_is_read(projection):
    assert projection(torch.ones(2, input_width(projection))).shape == (2, 5)


@pytest.mark.parametrize("shared", ["module", "weight"])
def test_layers_that_share_one_projection_are_refused(shared):
    model = build("llama", GROUPED)
    first, second = (layer.self_attn for layer in model.model.layers)
    if shared == "module":
        second.o_proj = first.o_proj
    else:
        second.o_proj.weight = first.o_proj.weight
    with pytest.raises(ModelRefused, match="share one attention output projection"):
        find_projections(model)


def test_heads_that_work_in_pairs_are_refused():
    with pytest.raises(ModelRefused, match="heads of a diffllama model work in pairs"):
        find_projections(build("diffllama", GROUPED))


def test_two_projections_in_one_layer_are_refused():
    model = build("llama", GROUPED)
    model.model.layers[1].attn = model.model.layers[0].self_attn
    with pytest.raises(ModelRefused, match="has 2 attention output projections"):
        find_projections(model)


class Packed(nn.Module):
    """A quantized projection of a class of its own, as GPTQ's kernels are: no plain weight."""

    def __init__(self, projection):
        super().__init__()
        self.in_features, self.out_features = projection.in_features, projection.out_features
        self.qweight = nn.Parameter(projection.weight.to(torch.int8), requires_grad=False)


def test_projections_of_quantized_classes_are_found_by_their_features():
    model = build("llama", GROUPED)
    plain, grid = find_projections(model)
    for layer in model.model.layers:
        layer.self_attn.o_proj = Packed(layer.self_attn.o_proj)
    found, same = find_projections(model)
    assert found == [layer.self_attn.o_proj for layer in model.model.layers] != plain
    assert same == grid


def test_the_part_of_a_layer_is_its_direct_child():
    model = tiny("llama")
    attention = model.model.layers[1].self_attn
    assert layer_part(model, "model.layers.1.self_attn.o_proj") is attention
    assert layer_part(model, "model.layers.1.self_attn") is model.model.layers[1]
