"""The last layer is asked for the tokens whose predictions are wanted, and for no others."""

import numpy as np
import pytest
import torch
from alone import around, responses, scored, words
from test_families import PACKED
from tiny import GROUPED, build, random_tokens, tiny

from caploc.engine import Ask, BatchEngine
from caploc.engine.passes import select_tokens
from caploc.engine.suitability import packed_model
from caploc.tasks.task import Generate, LogLikelihood, options_json

LENGTHS = (9, 14, 14, 6)
ENDINGS = ([5, 6, 7], [5, 8], [40])


def masks_of(grid):
    """None, heads of the first layer, of the last, and of both."""
    drawn = np.zeros((4, grid.size), dtype=bool)
    drawn[[1, 3], 0] = drawn[[2, 3], -1] = True
    return drawn


def prompts():
    rows = random_tokens(len(LENGTHS), max(LENGTHS)).tolist()
    return [row[:length] for row, length in zip(rows, LENGTHS, strict=True)]


def choices(masks):
    rows = enumerate((mask, prompt) for mask in masks for prompt in prompts())
    return [
        Ask((row, n), LogLikelihood(words(prompt), f" {words(ending)}"), mask)
        for row, (mask, prompt) in rows
        for n, ending in enumerate(ENDINGS)
    ]


def agree(loaded, engine):
    """All choices are scored as one row at a time would."""
    asks, texts = choices(masks_of(loaded.grid)), prompts()
    got = responses(engine, asks)
    for ask in asks:
        row, ending = ask.key
        truth, _ = scored(loaded, texts[row % len(texts)], ENDINGS[ending], ask.knocked_out)
        assert got[ask.key].logprob == pytest.approx(truth, rel=1e-5, abs=1e-4)


def counted(layer):
    """A list that grows by the tokens of each call of the layer's feed-forward block."""
    seen = []
    layer.mlp.register_forward_pre_hook(lambda module, args: seen.append(args[0].shape[1]))
    return seen


@pytest.mark.parametrize("name", sorted(PACKED))
def test_every_packed_family_has_its_last_layer_narrowed(name):
    loaded = around(tiny(name))
    engine = BatchEngine(loaded)
    assert engine.packed.narrows
    agree(loaded, engine)


def test_the_last_layer_runs_the_endings_and_the_others_the_whole_passage():
    loaded = around(build("llama", GROUPED))
    engine = BatchEngine(loaded)
    first, last = (counted(loaded.model.model.layers[n]) for n in (0, -1))
    ask, *_ = choices(masks_of(loaded.grid)[1:2])
    responses(engine, [ask])
    assert first == [LENGTHS[0] + len(ENDINGS[0]) - 1] and last == [len(ENDINGS[0])]


def test_of_a_prompt_the_last_layer_runs_its_last_token():
    loaded = around(build("llama", GROUPED))
    engine = BatchEngine(loaded)
    first, last = (counted(loaded.model.model.layers[n]) for n in (0, -1))
    options = options_json({"until": [], "max_gen_toks": 3, "do_sample": False})
    mask = masks_of(loaded.grid)[1]
    asks = [Ask((n, 0), Generate(words(p), options), mask) for n, p in enumerate(prompts())]
    responses(engine, asks)
    rows = len(LENGTHS)
    assert first == [sum(LENGTHS), rows, rows] and last == [rows, rows, rows]


def test_a_model_that_must_see_all_tokens_to_the_end_is_packed_without():
    loaded = around(build("llama", GROUPED))
    whole = []
    loaded.model.model.register_forward_pre_hook(
        lambda module, args, kwargs: whole.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )

    def refuse(module, args):
        if args[0].shape[1] != whole[-1]:
            raise ValueError("where is the rest?")

    loaded.model.model.layers[-1].register_forward_pre_hook(refuse)
    loaded.model.model.layers[-1].mlp.register_forward_pre_hook(refuse)
    engine = BatchEngine(loaded)
    assert engine.packed is not None and not engine.packed.narrows
    agree(loaded, engine)


def test_a_model_whose_last_layer_says_something_else_of_fewer_tokens_is_packed_without():
    loaded = around(build("llama", GROUPED))
    mlp = loaded.model.model.layers[-1].mlp
    mlp.register_forward_hook(lambda module, args, output: output * (1 + args[0].shape[1] % 2))
    # even and odd numbers of tokens differ: neither packed rows nor narrow ones are the model's
    assert packed_model(loaded) is None
    mlp._forward_hooks.clear()
    assert packed_model(loaded).narrows


def test_what_a_layer_is_handed_for_each_token_is_narrowed_with_it():
    chosen = torch.tensor([1, 4])
    each = torch.arange(10).reshape(1, 5, 2)
    positions, other = torch.arange(5), torch.arange(20).reshape(4, 5)
    assert torch.equal(select_tokens(each, chosen, 5), each[:, [1, 4]])
    assert torch.equal(select_tokens(positions, chosen, 5), chosen)
    assert select_tokens(other, chosen, 5) is other and select_tokens(None, chosen, 5) is None
    both = select_tokens((each, (positions, "text")), chosen, 5)
    assert torch.equal(both[0], each[:, [1, 4]]) and torch.equal(both[1][0], chosen)
    assert both[1][1] == "text"
