"""Tuning rows equals tuning the whole model with gradient masks, and costs only the rows."""

import copy

import numpy as np
import pytest
import torch
from tiny import WITH_NEURONS, random_tokens, tiny

import caploc
from caploc.errors import BadOption, ModelRefused
from caploc.neurons.model import find_sites
from caploc.neurons.weights import TrainableRows
from worlds import DEMO

# Beside which input projections a family's output projection stands, written down by hand:
# (name of the layer's block, input projections, output projection, one weight transposed?)
BLOCKS = {
    "llama": ("model.layers.{}.mlp", ("gate_proj", "up_proj"), "down_proj"),
    "phi3": ("model.layers.{}.mlp", ("gate_up_proj",), "down_proj"),
    "gpt2": ("transformer.h.{}.mlp", ("c_fc",), "c_proj"),
    "gpt_neox": ("gpt_neox.layers.{}.mlp", ("dense_h_to_4h",), "dense_4h_to_h"),
    "opt": ("model.decoder.layers.{}", ("fc1",), "fc2"),
    "gptj": ("transformer.h.{}.mlp", ("fc_in",), "fc_out"),
    "falcon, alibi": ("transformer.h.{}.mlp", ("dense_h_to_4h",), "dense_4h_to_h"),
    "lfm2, attention in one layer of three": (
        "model.layers.{}.feed_forward",
        ("w1", "w3"),
        "w2",
    ),
}
STEPS = 20


def some_neurons(model, count=5, seed=0):
    size = find_sites(model)[1].size
    chosen = np.zeros(size, dtype=bool)
    chosen[np.random.default_rng(seed).choice(size, count, replace=False)] = True
    return chosen


def loss_of(model, tokens):
    logits = model(input_ids=tokens, use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def optimize(model, parameters, steps=STEPS, rate=3e-3):
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(model, random_tokens(3, 9, seed=step)).backward()
        optimizer.step()
    return optimizer


def gradient_masks(model, family, chosen, trains):
    """For every parameter that may move, by name, which entries: from the family's row alone."""
    block, inputs, output = BLOCKS[family]
    grid = find_sites(model)[1]
    masks = {}
    for layer, columns in enumerate(grid.layer_slices):
        own = torch.from_numpy(chosen[columns])
        around = block.format(layer)
        masks[f"{around}.{output}.weight"] = own[:, None] if family == "gpt2" else own[None, :]
        for name in inputs if trains == "all" else ():
            rows = own.repeat(2) if family == "phi3" else own
            masks[f"{around}.{name}.weight"] = rows[None, :] if family == "gpt2" else rows[:, None]
            if hasattr(model.get_submodule(f"{around}.{name}").bias, "shape"):
                masks[f"{around}.{name}.bias"] = rows
    return masks


def masked_tuning(model, family, chosen, trains):
    """A copy of the model, all of its weights tuned with their gradients masked by hooks."""
    model = copy.deepcopy(model)
    masks = gradient_masks(model, family, chosen, trains)
    parameters = []
    for name, parameter in model.named_parameters():
        if name in masks:
            parameter.requires_grad_(True)
            parameter.register_hook(lambda gradient, mask=masks[name]: gradient * mask)
            parameters.append(parameter)
    optimize(model, parameters)
    return model


@pytest.mark.parametrize("trains", ["all", "output"])
@pytest.mark.parametrize("family", BLOCKS)
def test_tuning_rows_equals_tuning_everything_with_gradient_masks(family, trains):
    model = tiny(family)
    chosen = some_neurons(model)
    expected = masked_tuning(model, family, chosen, trains).state_dict()
    own = copy.deepcopy(model)
    with TrainableRows(own, chosen, trains) as rows:
        optimize(own, rows.parameters())
        rows.merge_()
    moved = 0.0
    for name, value in own.state_dict().items():
        assert torch.allclose(value, expected[name], rtol=0, atol=1e-6), name
        moved = max(moved, float((value - model.state_dict()[name]).abs().max()))
    assert moved > 0.01


def test_the_demo_model_is_tuned_like_any_llama():
    model = caploc.load_model(DEMO).model
    BLOCKS["demo"] = BLOCKS["llama"]
    chosen = some_neurons(model, 14)
    expected = masked_tuning(model, "demo", chosen, "all").state_dict()
    with TrainableRows(model, chosen) as rows:
        optimize(model, rows.parameters())
        rows.merge_()
    for name, value in model.state_dict().items():
        assert torch.allclose(value, expected[name], rtol=0, atol=1e-6), name


@pytest.mark.parametrize("family", WITH_NEURONS)
def test_nothing_changes_until_something_is_trained(family, unchanged):
    model = unchanged(tiny(family))
    tokens = random_tokens(2, 7)
    before = model(input_ids=tokens, use_cache=False).logits
    with TrainableRows(model, some_neurons(model)) as rows:
        assert torch.equal(model(input_ids=tokens, use_cache=False).logits, before)
        assert all(not change.any() for change in rows.parameters())


@pytest.mark.parametrize("family", WITH_NEURONS)
def test_attached_and_merged_say_the_same(family, unchanged):
    model = unchanged(tiny(family))
    tokens = random_tokens(2, 7)
    plain = model(input_ids=tokens, use_cache=False).logits
    with TrainableRows(model, some_neurons(model, 9)) as rows, torch.no_grad():
        for seed, change in enumerate(rows.parameters()):
            change += 0.1 * torch.randn(change.shape, generator=torch.Generator().manual_seed(seed))
        attached = model(input_ids=tokens, use_cache=False).logits
        with rows.written():
            merged = model(input_ids=tokens, use_cache=False).logits
    scale = float((merged - plain).abs().max())
    assert scale > 1e-3
    assert float((attached - merged).abs().max()) < 1e-4 * max(1, float(plain.abs().max()))


def test_optimizer_state_is_as_large_as_the_selection():
    model = caploc.load_model(DEMO).model
    sizes = {}
    for count in (1, 7, 70):
        with TrainableRows(model, some_neurons(model, count)) as rows:
            optimizer = optimize(model, rows.parameters(), steps=1)
            assert all(parameter.grad is None for parameter in model.parameters())
            sizes[count] = sum(
                value.numel()
                for state in optimizer.state.values()
                for value in state.values()
                if value.ndim
            )
    # gate and up row and down column of 128 values each, two moments of AdamW for each
    assert sizes == {count: count * 3 * 128 * 2 for count in sizes}


def test_an_interrupted_training_leaves_the_model_as_it_was(unchanged):
    model = unchanged(tiny("llama"))
    with pytest.raises(KeyboardInterrupt), TrainableRows(model, some_neurons(model)) as rows:
        optimize(model, rows.parameters(), steps=2)
        with rows.written():
            raise KeyboardInterrupt


def test_a_half_precision_model_is_trained_in_full_precision(unchanged):
    model = unchanged(tiny("llama", torch.bfloat16))
    with TrainableRows(model, some_neurons(model)) as rows:
        optimize(model, rows.parameters(), steps=3, rate=1e-6)
        # a step of 1e-6 is lost in bfloat16 weights of about 0.3
        assert all(change.dtype == torch.float32 for change in rows.parameters())
        assert any(float(change.detach().abs().max()) > 1e-6 for change in rows.parameters())
        assert all(value.dtype == torch.bfloat16 for value in rows.delta().values())


def test_a_fused_projection_with_its_halves_interleaved_is_refused():
    model = copy.deepcopy(tiny("phi3"))

    def interleaved(block, hidden):
        up = block.gate_up_proj(hidden)
        return block.down_proj(up[..., 1::2] * block.activation_fn(up[..., ::2]))

    for layer in model.model.layers:
        layer.mlp.forward = interleaved.__get__(layer.mlp)
    with pytest.raises(ModelRefused, match="not those of neuron i"):
        TrainableRows(model, some_neurons(model))
    TrainableRows(model, some_neurons(model), "output").detach()


@pytest.mark.parametrize(
    ("chosen", "trains", "message"),
    [
        (np.zeros(96, dtype=bool), "all", "No neuron is chosen"),
        (np.ones(95, dtype=bool), "all", "95 neurons, and this one has 96"),
    ],
)
def test_sets_that_cannot_be_tuned_are_refused(chosen, trains, message):
    with pytest.raises(BadOption, match=message):
        TrainableRows(tiny("llama"), chosen, trains)
