"""Tuning neurons equals tuning the whole model with gradient masks; every arm undoes itself."""

import copy

import numpy as np
import pytest
import torch
from test_tuning_batches import random_spans

import caploc
from caploc.errors import BadOption, ModelRefused, UnknownName
from caploc.neurons.model import find_sites
from caploc.neurons.options import RANDOM, TUNED, TuningRecipe
from caploc.neurons.training import find_best_rate, make_arms, make_lessons
from caploc.neurons.weights import tune_adapters, tune_everything, tune_neurons
from caploc.progress import Silent
from worlds import DEMO
from worlds.tiny import random_tokens, tiny

# Beside which input projections a family's output projection stands, written down by hand:
# (name of the layer's block, input projections, output projection)
BLOCKS = {
    "llama": ("model.layers.{}.mlp", ("gate_proj", "up_proj"), "down_proj"),
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
RECIPE = TuningRecipe(steps=4, batch_size=4, rates=(1e-3, 1e-2))
KINDS = ["llama", "gpt2", "gpt_neox"]


def some_neurons(model, count=5):
    size = find_sites(model)[1].size
    chosen = np.zeros(size, dtype=bool)
    chosen[np.random.default_rng(0).choice(size, count, replace=False)] = True
    return chosen


def optimize(model, parameters, settle=lambda: None, steps=20, rate=3e-3):
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0)
    for step in range(steps):
        optimizer.zero_grad()
        tokens = random_tokens(3, 9, seed=step)
        logits = model(input_ids=tokens, use_cache=False).logits[:, :-1].flatten(0, 1)
        torch.nn.functional.cross_entropy(logits.float(), tokens[:, 1:].flatten()).backward()
        optimizer.step()
        settle()
    return optimizer


def masked_tuning(model, family, chosen):
    """A copy of the model, all of its weights tuned with their gradients masked by hooks."""
    model, parameters = copy.deepcopy(model), []
    block, inputs, output = BLOCKS[family]
    for layer, columns in enumerate(find_sites(model)[1].layer_slices):
        own, around = torch.from_numpy(chosen[columns]), model.get_submodule(block.format(layer))
        for name in (*inputs, output):
            module = getattr(around, name)
            by_row = (name == output) == (family == "gpt2")
            masks = [(module.weight, own[:, None] if by_row else own[None, :])]
            if name != output:
                masks = [(module.weight, own[None, :] if family == "gpt2" else own[:, None])]
                masks += [(module.bias, own)] if hasattr(module.bias, "shape") else []
            for weight, mask in masks:
                weight.requires_grad_(True)
                weight.register_hook(lambda gradient, mask=mask: gradient * mask)
                parameters.append(weight)
    optimize(model, parameters)
    return model


@pytest.mark.parametrize("family", BLOCKS)
def test_tuning_neurons_equals_tuning_everything_with_gradient_masks(family, unchanged):
    model = unchanged(tiny(family))
    chosen, moved = some_neurons(model), 0.0
    expected = masked_tuning(model, family, chosen).state_dict()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with tune_neurons(model, chosen) as tunable:
        optimize(model, tunable.parameters, tunable.settle)
        for name, value in model.state_dict().items():
            assert torch.allclose(value, expected[name], rtol=0, atol=1e-6), name
            moved = max(moved, float((value - before[name]).abs().max()))
    assert moved > 0.01


def test_optimizer_state_is_as_large_as_the_selection():
    model = caploc.load_model(DEMO).model
    for count in (1, 70):
        with tune_neurons(model, some_neurons(model, count)) as tunable:
            optimizer = optimize(model, tunable.parameters, tunable.settle, steps=1)
            assert all(parameter.grad is None for parameter in model.parameters())
            states = [value for state in optimizer.state.values() for value in state.values()]
            # gate and up row and down column of 128 values each, two moments of AdamW for each
            assert sum(value.numel() for value in states if value.ndim) == count * 3 * 128 * 2


def test_full_tuning_is_plain_training_of_all_weights(unchanged):
    model = unchanged(tiny("llama"))
    plain = copy.deepcopy(model).requires_grad_(True)
    optimize(plain, list(plain.parameters()), steps=5)
    with tune_everything(model) as whole:
        optimize(model, whole.parameters, whole.settle, steps=5)
        for name, value in plain.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name


@pytest.mark.parametrize("whole", [True, False])
def test_half_precision_keeps_small_steps(whole, unchanged):
    model = unchanged(tiny("llama", torch.bfloat16))
    with tune_everything(model) if whole else tune_neurons(model, some_neurons(model)) as tunable:
        before = [each.detach().clone() for each in tunable.parameters]
        optimize(model, tunable.parameters, tunable.settle, rate=1e-6, steps=3)
        # a step of 1e-6 is lost in bfloat16 weights of about 0.3
        moved = zip(before, tunable.parameters, strict=True)
        assert max(float((new.detach() - old).abs().max()) for old, new in moved) > 1e-6
        assert all(each.dtype == torch.bfloat16 for each in model.parameters())


@pytest.mark.parametrize("family", KINDS)
def test_adapters_have_the_neurons_parameters_and_their_ranks(family, unchanged):
    model = unchanged(tiny(family))
    chosen = some_neurons(model, 12)
    wanted = sum(each.numel() for each in tune_neurons(model, chosen).parameters)
    with tune_adapters(model, chosen, 0) as tunable:
        count = sum(each.numel() for each in tunable.parameters)
        assert abs(count - wanted) <= max(sum(each.weight.shape) for each in tunable.weights) / 2
        random = torch.Generator().manual_seed(0)
        tunable.settle([torch.randn(each.shape, generator=random) for each in tunable.parameters])
        for each in tunable.weights:
            rank = int(torch.linalg.matrix_rank(each.weight - each.original, rtol=1e-4))
            assert rank == len(each.parameters[0])


def test_every_arm_is_planned_and_has_as_many_neurons_as_located():
    model = tiny("llama")
    located, grid = some_neurons(model), find_sites(model)[1]
    found = make_arms(located, grid, draws=6)
    names = [arm.name for arm in found]
    assert names == [name for name in TUNED for _ in range(6 if name == RANDOM else 1)]
    drawn = {
        draws: [arm.chosen for arm in make_arms(located, grid, names=[RANDOM], draws=draws)]
        for draws in (5, 6)
    }
    assert all((chosen.sum(), (chosen & located).sum()) == (5, 0) for chosen in drawn[6])
    assert np.array_equal(drawn[5], drawn[6][:5])
    with pytest.raises(UnknownName, match="no arm 'randm'. Did you mean 'random'"):
        make_arms(located, grid, names=["randm"])
    with pytest.raises(BadOption, match="No neuron is chosen"):
        make_arms(located & False, grid)
    with pytest.raises(BadOption, match="95 neurons, and this one has 96"):
        make_arms(np.ones(95, dtype=bool), grid)


def logits(model):
    with torch.no_grad():
        return model(input_ids=random_tokens(2, 7), use_cache=False).logits


@pytest.mark.parametrize("family", KINDS)
def test_every_arm_changes_the_model_and_leaves_it_as_it_was(family, unchanged):
    model = unchanged(tiny(family))
    lessons, intact = make_lessons(random_spans(20), RECIPE), logits(model)
    for arm in make_arms(some_neurons(model), find_sites(model)[1]):
        with arm.open(model, 0) as tunable:
            tunable.settle()
            assert torch.equal(logits(model), intact), arm.name
            if arm.tunes:
                find_best_rate(model, tunable, lessons, RECIPE)
                assert float((logits(model) - intact).abs().max()) > 1e-3, arm.name


@pytest.mark.parametrize("name", ["located", "full", "lora"])
def test_an_interrupted_arm_leaves_the_model_as_it_was(name, unchanged):
    model = unchanged(tiny("gpt2"))
    (arm,) = make_arms(some_neurons(model), find_sites(model)[1], names=[name])

    class Impatient(Silent):
        def advance(self, rows, tokens):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), arm.open(model, 0) as tunable:
        lessons = make_lessons(random_spans(20), RECIPE)
        find_best_rate(model, tunable, lessons, RECIPE, progress=Impatient())


def test_a_block_without_a_projection_of_its_own_for_neurons_is_refused():
    model = tiny("phi3")
    with pytest.raises(ModelRefused, match="no projection from 32 values to its"):
        tune_neurons(model, some_neurons(model))
