"""What packed rows may serve, and that all else is answered as `generate` would."""

import copy
import gc

import numpy as np
import pytest
import torch
from torch import nn

from caploc.engine.api import Ask
from caploc.engine.attention import NAME
from caploc.engine.batch import BatchEngine
from caploc.engine.passes import PackedModel
from caploc.engine.suitability import (
    OWN,
    PREFIX,
    UNLIMITED,
    gives_plain_logits,
    longest_packed,
    packed_model,
)
from caploc.tasks.task import Generate, LogLikelihood, options_json
from worlds.alone import around, responses, said, scored, words
from worlds.tiny import GROUPED, build, random_tokens, tiny

LIMIT = 6


def model_with(**config):
    """A model of which only the config is looked at."""
    model = copy.copy(tiny("llama"))
    model.config = copy.deepcopy(model.config)
    for name, value in config.items():
        setattr(model.config, name, value)
    return model


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({}, UNLIMITED),
        ({"sliding_window": None}, UNLIMITED),
        ({"sliding_window": 32}, 32),
        ({"sliding_window": 32, "use_sliding_window": False}, UNLIMITED),
        ({"sliding_window": 32, "use_sliding_window": True}, 32),
        ({"sliding_window": 32, "layer_types": ["full_attention"] * 2}, UNLIMITED),
        ({"sliding_window": 32, "layer_types": ["full_attention", "sliding_attention"]}, 32),
        ({"layer_types": ["full_attention", "linear_attention"]}, 0),
        ({"layer_types": ["chunked_attention"]}, 0),
        ({"rope_parameters": {"rope_type": "default"}}, UNLIMITED),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, UNLIMITED),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 0),
        ({"rope_parameters": {"rope_type": "longrope"}}, 0),
        ({"rope_parameters": {"full_attention": {"rope_type": "dynamic"}}}, 0),
    ],
)
def test_rows_are_packed_up_to_the_length_at_which_all_attend_to_all(config, longest):
    assert longest_packed(model_with(**config)) == longest


@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_rows_beyond_a_sliding_window_go_to_the_plain_engine(family):
    window = {"sliding_window": 16}
    if family == "qwen2":
        window |= {"use_sliding_window": True, "max_window_layers": 1}
    loaded = around(build(family, {**GROUPED, **window}))
    engine = BatchEngine(loaded)
    assert engine.packed.longest == 16
    mask = np.zeros(loaded.grid.size, dtype=bool)
    mask[1] = True
    options = options_json({"until": [], "max_gen_toks": LIMIT, "do_sample": False})
    prompts = [random_tokens(1, length).tolist()[0] for length in (5, 9, 10, 11, 30)]
    asks = [Ask((n, 0), Generate(words(p), options), mask) for n, p in enumerate(prompts)]
    asks += [
        Ask((10 + n, 0), LogLikelihood(words(p), " w05 w06"), mask) for n, p in enumerate(prompts)
    ]
    got = responses(engine, asks)
    for number, prompt in enumerate(prompts):
        expected = words(said(loaded, prompt, mask, LIMIT)).split(" w01")[0]
        assert got[number, 0].text.split() == expected.replace("w00", "").split()
        logprob, _ = scored(loaded, prompt, [5, 6], mask)
        assert got[10 + number, 0].logprob == pytest.approx(logprob, abs=1e-3)


def test_a_window_too_short_for_the_proof_is_not_packed():
    assert packed_model(around(build("mistral", {**GROUPED, "sliding_window": 10}))) is None


def test_a_model_that_attends_otherwise_is_not_packed():
    """With the family's own window the logits of packed rows differ, and the proof says so."""
    loaded = around(build("mistral", {**GROUPED, "sliding_window": 5}))
    assert not gives_plain_logits(PackedModel(loaded, UNLIMITED))
    assert gives_plain_logits(PackedModel(around(tiny("llama")), UNLIMITED))


class Unsteady(nn.Module):
    """A layer of which a batch of several rows gets other values, as rounding may have it."""

    def __init__(self, layer, amount):
        super().__init__()
        self.layer, self.amount = layer, amount

    def forward(self, hidden, *args, **kwargs):
        said = self.layer(hidden, *args, **kwargs)
        single = len(hidden) == 1 and hidden.shape[1] > sum((PREFIX, OWN[0]))
        return said if single else said * (1 + self.amount * torch.sin(100 * said))


@pytest.mark.parametrize(("dtype", "packs"), [(torch.float32, False), (torch.bfloat16, True)])
def test_packed_rows_may_differ_as_much_as_plain_ones_do_by_rounding(dtype, packs):
    model = copy.deepcopy(tiny("llama")).to(dtype)
    layers = model.model.layers
    layers[0].mlp = Unsteady(layers[0].mlp, 0.3)
    assert gives_plain_logits(PackedModel(around(model), UNLIMITED)) == packs


# four that are packed, and one that fails the proof
@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt_neox", "qwen3_moe", "bloom"])
def test_the_proof_leaves_the_model_as_it_was(name):
    def hooks():
        gc.collect()  # the checks of shapes keep what was passed until then
        gc.freeze()
        return [len(module._forward_pre_hooks) for module in model.modules()]

    model = tiny(name)
    usual, before = model.config._attn_implementation, hooks()
    packed = packed_model(around(model))
    assert model.config._attn_implementation == usual
    assert not any("forward" in vars(module) for module in model.modules())
    del packed
    assert hooks() == before  # those of an engine that still lives may be there


def test_any_of_several_end_tokens_ends_an_answer():
    loaded = around(build("llama", GROUPED))
    mask = np.zeros(loaded.grid.size, dtype=bool)
    prompt = random_tokens(1, 6).tolist()[0]
    free = said(loaded, prompt, mask, LIMIT)
    loaded.model.generation_config.eos_token_id = [60, free[2]]
    options = options_json({"until": [], "max_gen_toks": LIMIT, "do_sample": False})
    got = responses(BatchEngine(loaded), [Ask((0, 0), Generate(words(prompt), options), mask)])
    assert len(got[0, 0].said) == free.index(free[2]) + 1


class PastHooksWhenPacked(nn.Linear):
    """Multiplies by its weights past its hooks where the model runs packed rows."""

    def __call__(self, mixed):
        if self.config._attn_implementation == NAME:
            return nn.functional.linear(mixed, self.weight)
        return super().__call__(mixed)


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_a_layer_that_bypasses_the_cut_in_packed_rows_alone_is_not_packed(layer):
    loaded = around(build("llama", {**GROUPED, "num_hidden_layers": 4}))
    assert packed_model(loaded) is not None
    projection = loaded.projections[layer]
    projection.__class__, projection.config = PastHooksWhenPacked, loaded.model.config
    assert packed_model(loaded) is None
