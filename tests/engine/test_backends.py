"""Other engines give the packed engine's answers, and no mask another's."""

import numpy as np
import pytest
import torch
from alone import around, responses, words
from tiny import GROUPED, build

from caploc.engine import Ask, BatchEngine, check_engine, describe_way
from caploc.engine import backends as paging
from caploc.engine.backends import missing_api
from caploc.engine.reading import Source
from caploc.errors import BadOption, UnknownName
from caploc.tasks.task import Generate, LogLikelihood, Scored, options_json

STOP = "w07"
OPTIONS = options_json({"until": [STOP], "max_gen_toks": 6, "do_sample": False})
pytestmark = pytest.mark.skipif(missing_api() is not None, reason="an older transformers")


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


@pytest.mark.parametrize("shares", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_paged_gives_the_answers_of_packed(loaded, shares):
    asks = questions(loaded)
    truth = responses(BatchEngine(loaded, backend="packed"), asks)
    engine = BatchEngine(loaded, backend="paged")
    engine.backends[0].shares = shares
    found = [answer for batch in engine.answer(asks) for answer in batch]
    got = {answer.key: answer.response for answer in found}
    assert same(got, truth) == len(asks) == 720
    said = {answer.way.engine for answer in found if hasattr(answer.response, "text")}
    assert said == {"paged"}
    texts = [answer for answer in found if answer.way.engine == "paged"]
    spared = sum(a.plain_tokens for a in texts) - sum(a.forward_tokens for a in texts)
    assert (spared > 240 * 20) == shares
    assert len({got[key].text for key in got if key[1] == 0}) > 12  # masks do something


def test_without_the_salt_answers_of_masks_mix(loaded, monkeypatch):
    asks = [ask for ask in questions(loaded) if ask.key[1] == 0]
    truth = responses(BatchEngine(loaded, backend="packed"), asks)
    engine = BatchEngine(loaded, backend="paged")
    assert engine.backends[0].trouble is None
    monkeypatch.setattr(paging, "salt_of", lambda mask: 0)
    assert same(responses(engine, asks), truth) < len(asks)
    unsalted = BatchEngine(loaded, backend="paged")
    assert "own predictions" in unsalted.backends[0].trouble  # the proof sees it


def test_amounts_are_taken_from_heads_in_part(loaded):
    asks = [ask for ask in questions(loaded, 8) if ask.key[1] == 0]
    halved = [Ask(ask.key, ask.request, ask.knocked_out * 0.5) for ask in asks]
    truth = responses(BatchEngine(loaded, backend="packed"), halved)
    assert responses(BatchEngine(loaded, backend="paged"), halved) == truth


def test_rows_beyond_a_sliding_window_are_right():
    loaded = around(build("mistral", {**GROUPED, "sliding_window": 12}))
    asks = [ask for ask in questions(loaded, 6, 24) if ask.key[1] == 0]
    plain = responses(BatchEngine(loaded), asks)
    engine = BatchEngine(loaded, backend="paged")
    found = [answer for batch in engine.answer(asks) for answer in batch]
    assert {answer.key: answer.response for answer in found} == plain
    assert {answer.way.engine for answer in found} == {"paged"}


def test_keys_make_room_for_others_and_answers_stay(loaded, monkeypatch):
    monkeypatch.setattr(paging, "MOST_KEYS", 1)
    asks = [ask for ask in questions(loaded, 12) if ask.key[1] == 0]
    truth = responses(BatchEngine(loaded, backend="packed"), asks)
    assert responses(BatchEngine(loaded, backend="paged"), asks) == truth


def test_what_an_engine_cannot_do_goes_to_the_next_and_says_why(loaded):
    engine = BatchEngine(loaded, backend="paged")
    mask = masks_of(loaded.grid)[1]
    text = words(range(2, 12))
    sampled = options_json({"until": [STOP], "max_gen_toks": 3, "repetition_penalty": 1.5})
    asks = [
        Ask((0, 0), LogLikelihood(text, " w11"), mask),
        Ask((1, 0), Generate(text, sampled), mask),
        Ask((2, 0), Generate(text, OPTIONS), mask, Source((Generate(text, OPTIONS),))),
        Ask((3, 0), Generate(text, OPTIONS), mask),
    ]
    ways = {answer.key[0]: answer.way for batch in engine.answer(asks) for answer in batch}
    assert [ways[number].engine for number in range(4)] == ["packed", "plain", "packed", "paged"]
    assert "log-probabilities" in ways[0].why and "to zero only" in ways[2].why
    assert "paged decodes greedily" in ways[1].why and "packed decodes greedily" in ways[1].why
    assert ways[3].why == "asked for"
    assert describe_way(ways[1]).startswith("Engine plain, transformers' generate")


def test_a_model_that_paged_does_not_know_goes_to_the_next():
    loaded = around(build("bloom", {}))
    engine = BatchEngine(loaded, backend="paged")
    ask = Ask((0, 0), Generate(words(range(2, 12)), OPTIONS), masks_of(loaded.grid)[1])
    ((answer,),) = engine.answer([ask])
    assert answer.way.engine == "plain"
    assert answer.way.why.startswith("paged ") and "; packed does not give" in answer.way.why


def test_mistakes_are_told_before_a_model_is_loaded(monkeypatch):
    with pytest.raises(UnknownName, match="no engine 'page'. Did you mean 'paged'"):
        check_engine("page")
    with pytest.raises(BadOption, match="--workers has several; leave out --workers"):
        check_engine("paged", "--workers")
    monkeypatch.setattr(paging, "cache_allocator", None)
    with pytest.raises(BadOption, match="needs transformers 5.23 or later, and .* is installed"):
        check_engine("paged")
    check_engine("auto", "--workers")


def test_attention_is_left_as_it_was(loaded):
    before = loaded.model.config._attn_implementation
    responses(BatchEngine(loaded, backend="paged"), questions(loaded, 1)[:1])
    assert loaded.model.config._attn_implementation == before
    assert not any(site._forward_pre_hooks for site in loaded.projections) or torch.is_tensor(
        loaded.model.lm_head.weight
    )
