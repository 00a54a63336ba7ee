"""The proof of weights that cannot be written: as strict as the other, and as harmless."""

import copy

import pytest
import torch
from test_proof import ForgetsMasks, UsesWeightsItself
from torch import nn

from caploc.errors import ModelRefused
from caploc.models import proof
from caploc.models.hooks import forward_as
from caploc.models.projections import find_projections
from caploc.models.proof import columns_zeroed, inputs_zeroed
from worlds.tiny import GROUPED, build, tiny


@pytest.fixture(autouse=True)
def unwritable(monkeypatch):
    """As if no weight could be set to zero."""
    monkeypatch.setattr(proof, "is_writable", lambda module: False)


def proved(model):
    proof.prove_heads(model, *find_projections(model))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "falcon, grouped", "deepseek_v3"])
def test_families_pass_and_are_left_as_they_were(name, dtype):
    model = tiny(name, dtype)
    before = copy.deepcopy(model.state_dict())
    proved(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("kind", [UsesWeightsItself, ForgetsMasks])
def test_a_cut_that_misses_its_row_fails(kind):
    model = build("llama", GROUPED)
    for layer in model.model.layers:
        layer.self_attn.o_proj.__class__ = kind
    with pytest.raises(ModelRefused):
        proved(model)


def test_both_roads_cut_the_same():
    model = build("llama", GROUPED).requires_grad_(False)
    projections, grid = find_projections(model)
    mask = torch.zeros(grid.size, dtype=torch.bool)
    mask[[0, 3, 6]] = True
    tokens = proof.random_tokens(model, 0)
    with columns_zeroed(projections, grid, mask):
        by_weights = proof.logits_of(model, tokens)
    with inputs_zeroed(projections, grid, mask):
        by_inputs = proof.logits_of(model, tokens)
    torch.testing.assert_close(by_weights, by_inputs, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(by_weights, proof.logits_of(model, tokens), atol=1e-2)


def test_a_function_that_stood_on_the_module_stands_there_again():
    module, ones = nn.Linear(2, 2), torch.ones(2)

    def hooked(mixed):
        return mixed + 1

    module.forward = hooked
    with forward_as(module, lambda mixed: mixed * 0):
        assert module(ones).tolist() == [0, 0]
    assert module.forward is hooked
