"""Requests of nearly nothing, and options that others would mind."""

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.tasks.task import Generate, LogLikelihood, Rolling, options_json
from worlds.alone import START, around, responses, said, scored, words
from worlds.tiny import random_tokens, tiny

LIMIT = 4
FAMILIES = pytest.mark.parametrize("family", ["llama", "bloom"])  # packed, and the plain way
PROMPT = [7, 9, 12, 5]


def options(**more):
    return options_json({"until": [], "max_gen_toks": LIMIT, "do_sample": False} | more)


def engine_of(family):
    engine = BatchEngine(around(tiny(family)))
    assert (engine.packed is None) == (family == "bloom")
    return engine


def none(engine):
    return np.zeros(engine.grid.size, dtype=bool)


def texts(engine, requests):
    asks = [Ask((n, 0), request, none(engine)) for n, request in enumerate(requests)]
    got = responses(engine, asks)
    return [got[n, 0].text.strip() for n in range(len(requests))]


@FAMILIES
def test_an_empty_prompt_is_the_start_token(family):
    engine = engine_of(family)
    requests = [Generate(words(PROMPT), options()), Generate("", options())]
    expected = [said(engine.loaded, tokens, none(engine), LIMIT) for tokens in (PROMPT, [START])]
    assert texts(engine, requests) == [words(tokens) for tokens in expected]


@FAMILIES
@pytest.mark.parametrize("context", ["", "  ", "\n"])
@pytest.mark.parametrize("tokens", [[5], [5, 6, 9]])
def test_a_context_of_nothing_is_the_start_token(family, context, tokens):
    engine = engine_of(family)
    asks = [
        Ask((0, 0), LogLikelihood(context, f" {words(tokens)}"), none(engine)),
        Ask((1, 0), LogLikelihood(words(PROMPT), " w20 w21"), none(engine)),
    ]
    got = responses(engine, asks)
    for key, before, after in (((0, 0), [START], tokens), ((1, 0), PROMPT, [20, 21])):
        expected = scored(engine.loaded, before, after, none(engine))[0]
        assert got[key].logprob == pytest.approx(expected, abs=1e-4)


@FAMILIES
def test_an_empty_text_costs_nothing_and_is_certain(family):
    engine = engine_of(family)
    asks = [Ask((0, 0), Rolling(""), none(engine)), Ask((1, 0), Rolling("w05"), none(engine))]
    got = responses(engine, asks)
    assert (got[0, 0].logprob, got[0, 0].tokens) == (0.0, 0)
    expected = scored(engine.loaded, [START], [5], none(engine))[0]
    assert got[1, 0].logprob == pytest.approx(expected, abs=1e-4)


@FAMILIES
@pytest.mark.parametrize(
    "more",
    [{"use_cache": False}, {"pad_token_id": 3}, {"return_dict_in_generate": True},
     {"max_new_tokens": 2}, {"max_length": 3}],
    ids=str,
)  # fmt: skip
def test_options_that_change_no_greedy_answer_change_none(family, more):
    engine = engine_of(family)
    expected = words(said(engine.loaded, PROMPT, none(engine), LIMIT))
    assert texts(engine, [Generate(words(PROMPT), options(**more))]) == [expected]


@FAMILIES
def test_an_empty_stop_string_stops_nothing(family):
    engine = engine_of(family)
    expected = words(said(engine.loaded, PROMPT, none(engine), LIMIT))
    assert texts(engine, [Generate(words(PROMPT), options(until=[""]))]) == [expected]


@pytest.mark.parametrize("backend", ["packed", "plain"])
@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_short_rows_beside_long_ones_are_numbers_in_half_precision(name, backend):
    """Elsewhere a row of which everything is masked turns into NaN: unslothai/unsloth 9708."""
    engine = BatchEngine(around(tiny(name, torch.float16)), backend=backend)
    asks = [
        Ask((count, part), LogLikelihood(words(tokens[:count]), " w05"), mask)
        for count, tokens in zip((1, 2, 40), random_tokens(3, 40).tolist(), strict=True)
        for part, mask in enumerate((none(engine), ~none(engine)))
    ]
    assert all(np.isfinite(each.logprob) for each in responses(engine, asks).values())
