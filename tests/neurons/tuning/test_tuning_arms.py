"""Every arm tunes what it says, and leaves the model bit for bit as it was."""

import copy
from contextlib import nullcontext
from dataclasses import replace

import numpy as np
import peft
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_tuning_batches import random_spans
from tiny import random_tokens, tiny

from caploc.errors import BadOption, UnknownName
from caploc.neurons import weights as trainable
from caploc.neurons.model import find_sites
from caploc.neurons.training import (
    ARMS,
    RANDOM,
    TuningRecipe,
    find_best_rate,
    make_arms,
    make_lessons,
    parameter_count,
)
from caploc.neurons.weights import TrainableLora, TrainableWhole, ranks

RECIPE = TuningRecipe(steps=4, batch_size=4, warmup=1, rates=(1e-3, 1e-2), extensions=0)
KINDS = ["llama", "phi3", "gpt2", "gpt_neox"]


def planned(model, count=6, **options):
    grid = find_sites(model)[1]
    located = np.zeros(grid.size, dtype=bool)
    located[np.random.default_rng(0).choice(grid.size, count, replace=False)] = True
    return located, make_arms(located, grid, **options)


def logits(model):
    with torch.no_grad():
        return model(input_ids=random_tokens(2, 7), use_cache=False).logits


def test_every_arm_is_planned_and_has_as_many_neurons_as_located():
    model = tiny("llama")
    located, found = planned(model, draws=6)
    assert [arm.name for arm in found] == [
        name for name in ARMS for _ in range(6 if name == RANDOM else 1)
    ]
    assert [arm.draw for arm in found if arm.name == RANDOM] == [*range(6)]
    for arm in found:
        if arm.name == RANDOM:
            assert arm.chosen.sum() == located.sum() and not (arm.chosen & located).any()
    fewer = planned(model, draws=5)[1]
    assert all(
        any((arm.chosen == other.chosen).all() for other in found if other.name == arm.name)
        for arm in fewer
        if arm.name == RANDOM
    )


def hooks(model):
    """How many there are; transformers leaves some for what it records, which do nothing else."""
    return sum(len(module._forward_hooks) for module in model.modules())


@pytest.mark.parametrize("family", KINDS)
def test_every_arm_changes_the_model_and_leaves_it_as_it_was(family, unchanged):
    model = unchanged(tiny(family))
    given_lessons = make_lessons(random_spans(20), RECIPE)
    intact, before = logits(model), hooks(model)
    for arm in planned(model)[1]:
        if arm.draw:
            continue
        with arm.open(model, RECIPE) or nullcontext() as trainable:
            if arm.name == "none":
                assert trainable is None
                continue
            assert torch.equal(logits(model), intact), arm.name
            find_best_rate(model, trainable, given_lessons, RECIPE)
            attached = logits(model)
            with trainable.written():
                merged = logits(model)
                assert hooks(model) == before, arm.name
                assert not any(isinstance(each, lora_layers()) for each in model.modules())
        assert float((merged - intact).abs().max()) > 1e-3, arm.name
        assert torch.allclose(attached, merged, atol=1e-4 * float(intact.abs().max())), arm.name
        assert torch.equal(logits(model), intact), arm.name


def lora_layers():
    return peft.tuners.lora.LoraLayer


@pytest.mark.parametrize("name", ["located", "full", "lora"])
@pytest.mark.parametrize("when", ["training", "evaluating"])
def test_an_interrupted_arm_leaves_the_model_as_it_was(name, when, unchanged):
    model = unchanged(tiny("gpt2"))
    arm = planned(model, names=[name])[1][0]
    given_lessons = make_lessons(random_spans(20), RECIPE)

    class Impatient:
        def start(self, what, rows):
            pass

        def advance(self, rows, tokens):
            if when == "training":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), arm.open(model, RECIPE) as trainable:
        find_best_rate(model, trainable, given_lessons, RECIPE, progress=Impatient())
        with trainable.written():
            raise KeyboardInterrupt


def test_full_tuning_is_plain_training_of_all_weights(unchanged):
    model = unchanged(tiny("llama"))
    plain = copy.deepcopy(model).requires_grad_(True)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-3, weight_decay=0)
    whole = TrainableWhole(model)
    own = torch.optim.AdamW(whole.parameters(), lr=1e-3, weight_decay=0)
    for step in range(5):
        tokens = random_tokens(3, 8, seed=step)
        for each, moved in ((plain, optimizer), (model, own)):
            moved.zero_grad()
            each(input_ids=tokens, use_cache=False).logits.square().mean().backward()
            moved.step()
        whole.settle()
    with whole.written():
        for name, value in plain.state_dict().items():
            assert torch.equal(value, model.state_dict()[name]), name


def test_full_tuning_in_half_precision_keeps_small_steps(unchanged):
    model = unchanged(tiny("llama", torch.bfloat16))
    whole = TrainableWhole(model)
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-4, weight_decay=0)
    tokens = random_tokens(3, 8)
    for _ in range(50):
        optimizer.zero_grad()
        model(input_ids=tokens, use_cache=False).logits.float()[..., 5].mean().backward()
        optimizer.step()
        whole.settle()
    gain = model.model.norm.weight
    with whole.written():
        # 50 steps of 1e-4 in weights of 1, where bfloat16's own steps are 0.0039 and more
        moved = (gain - 1).abs()
        assert float(moved.max()) > 0.0035
    assert torch.equal(gain, torch.ones_like(gain))


@given(costs=st.lists(st.integers(8, 64), min_size=1, max_size=12), wanted=st.integers(0, 5000))
def test_ranks_add_up_to_the_parameters_wanted(costs, wanted):
    found = ranks(costs, wanted)
    count = sum(rank * cost for rank, cost in zip(found, costs, strict=True))
    assert max(found) - min(found) <= 1 and max(found) > 0
    if wanted >= min(costs):
        assert abs(count - wanted) <= max(costs) / 2 + max(costs) - min(costs)
    if len(set(costs)) == 1 and wanted >= costs[0]:
        assert abs(count - wanted) <= costs[0] / 2


@pytest.mark.parametrize("trains", ["all", "output"])
@pytest.mark.parametrize("family", KINDS)
def test_adapters_have_the_located_neurons_parameters_and_their_ranks(family, trains, unchanged):
    model = unchanged(tiny(family))
    recipe = replace(RECIPE, trains=trains)
    located, (arm,) = planned(model, 12, names=["lora"])
    wanted = parameter_count(model, located, recipe)
    with arm.open(model, recipe) as trainable:
        count = sum(parameter.numel() for parameter in trainable.parameters())
        dearest = max(layer.in_features + layer.out_features for layer in trainable.layers.values())
        assert abs(count - wanted) <= dearest / 2
        with torch.no_grad():
            for parameter in trainable.parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(parameter.numel()))
        before = {name: base.weight.clone() for name, base in trainable.bases.items()}
        with trainable.written():
            for name, base in trainable.bases.items():
                change = base.weight - before[name]
                assert int(torch.linalg.matrix_rank(change, rtol=1e-4)) == trainable.targets[name]


def test_adapters_begin_as_the_seed_says_and_leave_the_global_generator_alone(unchanged):
    model = unchanged(tiny("llama"))
    starts = []
    for seed in (3, 3, 4):
        state = torch.get_rng_state()
        trainable = TrainableLora(model, 1000, "all", seed)
        assert torch.equal(torch.get_rng_state(), state)
        starts.append(torch.cat([each.detach().flatten() for each in trainable.parameters()]))
        trainable.detach()
    assert torch.equal(starts[0], starts[1]) and not torch.equal(starts[0], starts[2])


def test_adapters_of_a_half_precision_model_are_in_full_precision(unchanged):
    model = unchanged(tiny("llama", torch.bfloat16))
    trainable = TrainableLora(model, 1000, "all", 0)
    assert {each.dtype for each in trainable.parameters()} == {torch.float32}
    assert logits(model).dtype == torch.bfloat16
    trainable.detach()


def test_without_peft_one_sentence_says_what_to_install(monkeypatch, unchanged):
    monkeypatch.setattr(trainable, "peft", None)
    model = unchanged(tiny("llama"))
    with pytest.raises(BadOption, match=r"pip install 'caploc\[peft\]'"):
        planned(model, names=["lora"])
    assert len(planned(model, names=["located", "full"])[1]) == 2


def test_arms_that_cannot_be_are_refused():
    model = tiny("llama")
    grid = find_sites(model)[1]
    located = planned(model)[0]
    with pytest.raises(UnknownName, match="no arm 'randm'. Did you mean 'random'"):
        make_arms(located, grid, names=["randm"])
    with pytest.raises(BadOption, match="draws=4: a random arm needs 5"):
        make_arms(located, grid, names=[RANDOM], draws=4)
    with pytest.raises(BadOption, match="No neuron is chosen"):
        make_arms(np.zeros(grid.size, dtype=bool), grid, names=["located"])
