"""The proof passes for every family, leaves the model alone, and fails where it should."""

import copy

import pytest
import torch
from torch import nn

from caploc.errors import ModelRefused
from caploc.models.projections import find_projections
from caploc.models.proof import prove_heads
from worlds.tiny import FAMILIES, GROUPED, SHAPE, build, count_hooks, tiny

EQUAL_WIDTHS = {**SHAPE, "num_key_value_heads": 4, "intermediate_size": 32}


def proved(model, naming=None):
    """Prove the projections found, or those of a name with `{layer}` in it."""
    projections, grid = find_projections(model)
    if naming is not None:
        names = [naming.format(layer=layer) for layer in range(len(projections))]
        projections = [model.get_submodule(name) for name in names]
    prove_heads(model, projections, grid)


BARE = {
    "qwen3_next, gated attention": "layer 0",
    "lfm2, attention in one layer of three": "layers 0, 2",
    "nemotron_h, attention beside state spaces": "layer 0",
    "recurrent_gemma": "layer 0",
}


QUICK = {"llama", "gpt2", "mixtral", "deepseek_v3", "qwen3_next, gated attention"}


def families():
    """Every family in both types, all but a few quick ones in bfloat16 slow."""
    for name in FAMILIES:
        yield pytest.param(name, torch.float32, id=name)
        slow = [] if name in QUICK else [pytest.mark.slow]
        yield pytest.param(name, torch.bfloat16, id=f"{name}, bfloat16", marks=slow)


@pytest.mark.parametrize(("name", "dtype"), [*families()])
def test_every_family_passes_and_layers_that_mix_tokens_without_heads_are_named(name, dtype):
    model = tiny(name, dtype)
    found = prove_heads(model, *find_projections(model))
    assert bool(found) == (name in BARE)
    assert not found or found[0].endswith(f"beside the heads (there are none in {BARE[name]})")


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3"])
def test_the_model_is_left_as_it_was(name):
    model = copy.deepcopy(tiny(name)).train()
    before = copy.deepcopy(dict(model.state_dict()) | dict(model.named_buffers()))
    hooks = count_hooks(model)
    proved(model)
    after = dict(model.state_dict()) | dict(model.named_buffers())
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert model.training
    assert count_hooks(model) == hooks


@pytest.mark.parametrize(
    "wrong",
    [
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.up_proj",
        "mlp.down_proj",
    ],
)
def test_any_other_linear_of_the_same_width_fails(wrong):
    model = build("llama", EQUAL_WIDTHS)
    proved(model)
    with pytest.raises(ModelRefused, match=f"model.layers.0.{wrong} is not an attention output"):
        proved(model, f"model.layers.{{layer}}.{wrong}")


@pytest.mark.parametrize("wrong", ["self_attention.query_key_value", "mlp.dense_h_to_4h"])
def test_other_linears_fail_in_parallel_blocks_too(wrong):
    name = "falcon, one key-value head"
    with pytest.raises(ModelRefused, match="is not an attention output"):
        proved(tiny(name), f"transformer.h.{{layer}}.{wrong}")


def test_one_wrong_layer_among_right_ones_fails():
    model = build("llama", EQUAL_WIDTHS)
    layers = model.model.layers
    with pytest.raises(ModelRefused, match="layers.1.mlp.down_proj is not an attention output"):
        wrong = [layers[0].self_attn.o_proj, layers[1].mlp.down_proj]
        prove_heads(model, wrong, find_projections(model)[1])


def test_a_layer_that_uses_the_weights_without_calling_the_module_fails():
    model = build("bloom", {**SHAPE, "pretraining_tp": 2, "slow_but_exact": True})
    with pytest.raises(ModelRefused, match="dense is not called in a forward pass"):
        proved(model)


class UsesWeightsItself(nn.Linear):
    """Calls hooks on a copy that is thrown away, like a fused kernel beside its module."""

    def __call__(self, mixed):
        super().__call__(mixed)
        return nn.functional.linear(mixed, self.weight)


class ForgetsMasks(nn.Linear):
    """Shuffles the rows of the batch before the hooks see them."""

    def __call__(self, mixed):
        return super().__call__(mixed.roll(1, dims=0)).roll(-1, dims=0)


@pytest.mark.parametrize("kind", [UsesWeightsItself, ForgetsMasks])
def test_a_cut_that_misses_its_row_fails(kind):
    model = build("llama", GROUPED)
    for layer in model.model.layers:
        layer.self_attn.o_proj.__class__ = kind
    with pytest.raises(
        ModelRefused, match="logits differ from those with their weights set to zero"
    ):
        proved(model)


def test_a_cut_in_one_layer_of_many_that_misses_fails_even_in_bfloat16():
    model = build("llama", {**GROUPED, "num_hidden_layers": 16}).to(torch.bfloat16)
    proved(model)
    model.model.layers[9].self_attn.o_proj.__class__ = UsesWeightsItself
    with pytest.raises(
        ModelRefused, match="logits differ from those with their weights set to zero"
    ):
        proved(model)


def test_attention_that_reaches_no_logit_fails():
    model = build("llama", GROUPED)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
    with pytest.raises(ModelRefused, match="leaves the logits as they are"):
        proved(model)


def test_a_model_that_is_never_twice_the_same_fails():
    model = build("llama", GROUPED)
    model.lm_head.register_forward_hook(lambda module, args, out: out + torch.rand(1))
    with pytest.raises(ModelRefused, match="from one run to the next"):
        proved(model)


def test_logits_that_are_no_numbers_fail():
    model = build("llama", GROUPED)
    model.lm_head.weight.fill_(float("nan"))
    with pytest.raises(ModelRefused):
        proved(model)


def test_the_weights_come_back_after_a_failed_proof():
    model = build("llama", GROUPED)
    model.model.layers[1].self_attn.o_proj.__class__ = UsesWeightsItself
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ModelRefused):
        proved(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


class Functional(nn.Linear):
    """Multiplies by its own weights where one token comes, past its hooks."""

    def __call__(self, mixed):
        if mixed.shape[1] > 1:
            return super().__call__(mixed)
        return nn.functional.linear(mixed, self.weight)


class HookedInVain(nn.Linear):
    """Calls hooks for one token too, and throws away what they made."""

    def __call__(self, mixed):
        if mixed.shape[1] > 1:
            return super().__call__(mixed)
        super().__call__(mixed)
        return nn.functional.linear(mixed, self.weight)


class ForgetsRows(nn.Linear):
    """Gives each single token the cut of the row before it."""

    def __call__(self, mixed):
        if mixed.shape[1] > 1:
            return super().__call__(mixed)
        return super().__call__(mixed.roll(1, dims=0)).roll(-1, dims=0)


@pytest.mark.parametrize("kind", [Functional, HookedInVain, ForgetsRows])
@pytest.mark.parametrize("layers", [[0, 1], [1]], ids=["every layer", "one layer"])
def test_attention_that_goes_another_way_for_single_tokens_fails(kind, layers):
    model = build("llama", GROUPED)
    for layer in layers:
        model.model.layers[layer].self_attn.o_proj.__class__ = kind
    with pytest.raises(ModelRefused, match="set to zero"):
        proved(model)


def test_a_model_whose_generate_fails_is_refused_in_a_sentence(monkeypatch):
    model = build("llama", GROUPED)

    def fail(*args, **kwargs):
        raise NotImplementedError("no cache here")

    monkeypatch.setattr(model, "generate", fail)
    with pytest.raises(ModelRefused, match="cannot write token by token.*no cache here"):
        proved(model)


class Convolving(nn.Module):
    """A feed-forward block that also takes something from the token before."""

    def __init__(self, block):
        super().__init__()
        self.block = block

    def forward(self, hidden):
        before = nn.functional.pad(hidden, (0, 0, 1, 0))[:, :-1]
        return self.block(hidden) + before


def test_a_mixer_in_the_place_of_a_feed_forward_block_is_seen():
    model = build("llama", GROUPED)
    model.model.layers[1].mlp = Convolving(model.model.layers[1].mlp)
    found = prove_heads(model, *find_projections(model))
    assert found == ("a part of LlamaForCausalLM beside the heads",)
