"""Every family's answers against one row at a time, and whether packed rows serve it."""

from functools import cache

import numpy as np
import pytest

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.planning import shared_prefixes
from caploc.tasks.task import Generate, LogLikelihood, Rolling, options_json
from worlds.alone import PAD, START, around, responses, said, scored, words
from worlds.tiny import FAMILIES, random_tokens, tiny

PACKED = frozenset(
    {
        "llama",
        "mixtral",
        "qwen2",
        "qwen3, wide heads",
        "qwen3_moe",
        "phi3",
        "olmo2",
        "gpt_neox",
        "gpt2",
        "stablelm",
        "cohere",
        "opt",
        "phi",
        "gpt_bigcode",
        "gemma4_text, layers of unlike heads",
    }
)
LIMIT, WINDOW = 6, 64
OPTIONS = options_json({"until": [], "max_gen_toks": LIMIT, "do_sample": False})
SHARED, OWN = 12, (2, 5, 3)  # tokens of the prefix, and of each prompt's own part
# Float32 keeps 7 digits; a text of 64 tokens adds up some hundreds of nats.
NEAR = {"rel": 1e-5, "abs": 1e-4}

pytestmark = pytest.mark.usefixtures("short_prefixes")
each_family = pytest.mark.parametrize("name", FAMILIES)


@cache
def engine(name):
    return BatchEngine(around(tiny(name)))


def masks(grid):
    """None; one head of the first layer; one of the last; several."""
    drawn = np.zeros((4, grid.size), dtype=bool)
    drawn[1, 0] = drawn[2, -1] = True
    drawn[3, :: max(2, grid.size // 3)] = True
    return drawn


def texts():
    """Token ids of prompts that share a prefix."""
    shared, *own = random_tokens(1 + len(OWN), SHARED).tolist()
    return [shared + part[:count] for part, count in zip(own, OWN, strict=True)]


def spoken(tokens):
    """An answer as text, up to the end token and without padding tokens, and its length."""
    count = tokens.index(START) + 1 if START in tokens else len(tokens)
    return words(token for token in tokens[:count] if token not in (PAD, START)), count


@each_family
def test_packed_rows_serve_exactly_the_families_written_out(name):
    assert (engine(name).packed is not None) == (name in PACKED)


def test_the_prompts_share_a_prefix():
    assert [length for length, _ in shared_prefixes([p[:-1] for p in texts()])] == [SHARED]


@each_family
def test_texts_are_those_of_plain_generate(name):
    loaded, prompts = engine(name).loaded, texts()
    pairs = [(mask, prompt) for mask in masks(loaded.grid) for prompt in prompts]
    asks = [
        Ask((number, 0), Generate(words(prompt), OPTIONS), mask)
        for number, (mask, prompt) in enumerate(pairs)
    ]
    got = responses(engine(name), asks)
    for number, (mask, prompt) in enumerate(pairs):
        text, count = spoken(said(loaded, prompt, mask, LIMIT))
        assert (got[number, 0].text.strip(), len(got[number, 0].said)) == (text, count)


@each_family
def test_log_probabilities_of_choices_are_those_of_plain_forward_passes(name):
    loaded, contexts = engine(name).loaded, texts()[:2]
    choices = [[5, 6, 7], [5, 6, 8], [5, 9], [10]]
    asks = [
        Ask((row, part), LogLikelihood(words(context), " " + words(choice)), mask)
        for row, (mask, context) in enumerate(
            (mask, context) for mask in masks(loaded.grid) for context in contexts
        )
        for part, choice in enumerate(choices)
    ]
    got = responses(engine(name), asks)
    for ask in asks:
        row, part = ask.key
        context = contexts[row % len(contexts)]
        expected = scored(loaded, context, choices[part], ask.knocked_out)
        assert got[ask.key].logprob == pytest.approx(expected[0], **NEAR)
        assert got[ask.key].greedy == expected[1]
        assert got[ask.key].tokens == len(choices[part])


@each_family
def test_log_probabilities_of_texts_are_those_of_their_windows(name):
    loaded = engine(name).loaded
    short, long = random_tokens(2, WINDOW + 16, seed=3).tolist()
    short = short[:20]
    windows = {
        0: [([START], short)],
        1: [([START], long[:WINDOW]), (long[-WINDOW - 1 : WINDOW], long[WINDOW:])],
    }
    asks = [
        Ask((2 * number + text, 0), Rolling(words(tokens)), mask)
        for number, mask in enumerate(masks(loaded.grid))
        for text, tokens in enumerate((short, long))
    ]
    got = responses(engine(name), asks)
    for ask in asks:
        spans = windows[ask.key[0] % 2]
        expected = sum(scored(loaded, *span, ask.knocked_out)[0] for span in spans)
        assert got[ask.key].logprob == pytest.approx(expected, **NEAR)
