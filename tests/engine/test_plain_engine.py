"""The plain engine answers as the packed one does, and takes what that one refuses."""

import numpy as np
import pytest
import torch

from caploc.engine import check_engine
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.reading import Source
from caploc.errors import BadOption
from caploc.tasks.task import Generate, LogLikelihood, Scored, options_json
from worlds.alone import PAD, START, around, responses, said, scored, words
from worlds.tiny import GROUPED, SHAPE, build, random_tokens, tiny

STOP = "w07"
OPTIONS = options_json({"until": [STOP], "max_gen_toks": 6, "do_sample": False})


@pytest.fixture(scope="module")
def loaded():
    return around(build("llama", {**GROUPED, "max_position_embeddings": 256}))


def masks_of(grid, count=6):
    """No head, and half of them in random ways."""
    drawn = np.random.default_rng(0).random((count, grid.size)) < 0.5
    drawn[0] = False
    return drawn


def questions(loaded, examples=40, shared=40):
    """Prompts of unlike length after one prefix, under every mask; and choices of each."""
    generator = np.random.default_rng(1)
    prefix = generator.integers(2, 61, shared).tolist()
    asks = []
    for number in range(examples):
        own = generator.integers(2, 61, 1 + number % 5).tolist()
        text = words([*prefix, *own])
        for place, mask in enumerate(masks_of(loaded.grid)):
            key = place * examples + number
            asks.append(Ask((key, 0), Generate(text, OPTIONS), mask))
            for part, word in enumerate((" w11", " w12 w13"), 1):
                asks.append(Ask((key, part), LogLikelihood(text, word), mask))
    return asks


def same(got, truth, rel=1e-5):
    """How many responses are equal: log-probabilities to rounding, all else to the token."""
    return sum(alike(got[key], truth[key], rel) for key in truth)


def alike(one, other, rel):
    if not isinstance(other, Scored):
        return one == other
    near = one.logprob == pytest.approx(other.logprob, rel=rel, abs=rel)
    return near and (one.greedy, one.tokens) == (other.greedy, other.tokens)


def test_plain_gives_the_answers_of_packed(loaded):
    asks = questions(loaded, 12)
    packed, plain = BatchEngine(loaded), BatchEngine(loaded, backend="plain")
    truth = responses(packed, asks)
    found = [answer for batch in plain.answer(asks) for answer in batch]
    got = {answer.key: answer.response for answer in found}
    assert same(got, truth) == len(asks) == 216
    assert {answer.way.engine for answer in found} == {"plain"} and not found[0].way.why
    assert plain.packed is None
    assert len({got[key].text for key in got if key[1] == 0}) > 12  # masks do something


def test_what_packed_cannot_do_goes_to_plain_and_says_why(loaded):
    engine, mask = BatchEngine(loaded), masks_of(loaded.grid)[1]
    text = words(range(2, 12))
    engine.packed.longest = 20
    asks = [
        Ask((0, 0), Generate(words(range(2, 22)), OPTIONS), mask),
        Ask((1, 0), Generate(text, OPTIONS), mask, Source((Generate(text, OPTIONS),))),
    ]
    ways = [answer.way for batch in engine.answer(asks) for answer in batch]
    assert {(way.engine, way.why) for way in ways} == {
        ("plain", "packed serves rows of 20 tokens at most, the model's window"),
        ("packed", ""),
    }


DECODER = {**SHAPE, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4,
           "encoder_layers": 1, "decoder_ffn_dim": 48, "is_decoder": True,
           "is_encoder_decoder": False, "init_std": 0.3, "eos_token_id": 1}  # fmt: skip


def doge():
    model = build("doge", {**GROUPED, "keep_window_size": 16})
    for name, weight in model.named_parameters():
        if name.endswith(".A"):  # what decides which keys are kept: 0 before training
            torch.nn.init.normal_(weight, std=0.1)
    return model


# Decoders that padding would disturb: they ignore the attention mask, or carry or drop state by it.
DISTURBED = {
    "doge": doge,
    "recurrent_gemma": lambda: tiny("recurrent_gemma"),
    "bart": lambda: build("bart", DECODER),
    "blenderbot": lambda: build("blenderbot", DECODER),
}


@pytest.mark.parametrize("name", DISTURBED)
def test_rows_of_unlike_length_are_answered_as_alone(name):
    loaded = around(DISTURBED[name]())
    prompts = [random_tokens(1, length, seed=length)[0].tolist() for length in (6, 9, 20, 40)]
    mask = np.zeros(loaded.grid.size, dtype=bool)
    mask[0] = True
    options = options_json({"until": [], "max_gen_toks": 6, "do_sample": False})
    asks = [Ask((n, 0), Generate(words(p), options), mask) for n, p in enumerate(prompts)]
    asks += [
        Ask((100 + n, 0), LogLikelihood(words(p), " w05 w06 w07"), mask)
        for n, p in enumerate(prompts)
    ]
    engine = BatchEngine(loaded)
    assert engine.packed is None
    got = responses(engine, asks)
    for number, prompt in enumerate(prompts):
        alone = [token for token in said(loaded, prompt, mask, 6) if token not in (PAD, START)]
        assert got[number, 0].text.split() == [words([token]) for token in alone]
        expected, _ = scored(loaded, prompt, [5, 6, 7], mask)
        assert got[100 + number, 0].logprob == pytest.approx(expected, abs=1e-3)


def test_mistakes_are_told_before_a_model_is_loaded():
    with pytest.raises(BadOption, match="--workers has several; leave out --workers"):
        check_engine("plain", "--workers")
    check_engine("packed", "--workers")
