"""Answers are the same whatever room there is for keys; what does not fit is said in a sentence."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.engine.api import Ask
from caploc.engine.attention import KeySlots
from caploc.engine.batch import BatchEngine
from caploc.errors import OutOfMemory
from caploc.tasks.task import Generate, options_json
from worlds.alone import PAD, START, around, responses, said, words
from worlds.tiny import random_tokens, tiny

LONGEST, SHARED = 24, 18
STOPS = [[], [words([7])], [words([11]), words([30])]]


@cache
def loaded():
    return around(tiny("llama"))


@cache
def prompts():
    """Three that share their beginning, and two of other lengths that share nothing."""
    shared, *own = random_tokens(6, SHARED).tolist()
    return [shared + part[:n] for part, n in zip(own, (2, 5, 3), strict=False)] + [
        own[3][:4],
        own[4][:11],
    ]


@cache
def masks():
    drawn = np.random.default_rng(3).random((18, loaded().grid.size)) < 0.3
    drawn[0] = False
    return drawn


@cache
def spoken(prompt, mask):
    """What plain greedy decoding says to a prompt under a mask, as far as any test asks."""
    return said(loaded(), prompts()[prompt], masks()[mask], LONGEST)


def expected(prompt, mask, stops, limit):
    """The text and the number of tokens, up to the limit or the first stop string."""
    tokens = spoken(prompt, mask)[:limit]
    over = {words([START]), *stops}
    ends = [n for n, token in enumerate(tokens, 1) if words([token]) in over]
    count = min(ends, default=len(tokens))
    kept = [token for token in tokens[:count] if words([token]) not in over]
    return words(token for token in kept if token != PAD), count


def asks_of(pairs, stops, limit):
    options = options_json({"until": stops, "max_gen_toks": limit, "do_sample": False})
    return [
        Ask((n, 0), Generate(words(prompts()[prompt]), options), masks()[mask])
        for n, (prompt, mask) in enumerate(pairs)
    ]


@pytest.mark.usefixtures("short_prefixes")
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 17)), min_size=1, max_size=24, unique=True
    ),
    stops=st.sampled_from(STOPS),
    limit=st.integers(2, LONGEST),
    memory=st.sampled_from([60_000, 200_000, 800_000, 10**9]),
    rows=st.sampled_from([None, 1, 3]),
)
@settings(max_examples=12, deadline=None)
def test_answers_are_those_of_plain_generation_whatever_the_room(pairs, stops, limit, memory, rows):
    asks = asks_of(pairs, stops, limit)
    got = responses(BatchEngine(loaded(), memory=memory, batch_size=rows), asks)
    for n, (prompt, mask) in enumerate(pairs):
        answer = got[n, 0]
        assert (answer.text.strip(), len(answer.said)) == expected(prompt, mask, stops, limit)


class Pool:
    """Memory for so many tokens' keys; more in one decoder's slots is too much."""

    def __init__(self, monkeypatch, most):
        made = KeySlots._room

        def taking(room, *given):
            if room.rows * room.length > most:
                raise torch.OutOfMemoryError("CUDA out of memory.")
            return made(room, *given)

        monkeypatch.setattr(KeySlots, "_room", taking)


OWN = 11  # tokens of the prompt asked below


@pytest.mark.parametrize("spare", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 40))])
def test_rows_get_through_a_pool_that_takes_one_at_its_longest(monkeypatch, spare):
    asks = asks_of([(4, mask) for mask in range(12)], [], LONGEST)
    truth = responses(BatchEngine(loaded()), asks)
    Pool(monkeypatch, OWN + LONGEST + spare)
    assert responses(BatchEngine(loaded(), memory=60_000), asks) == truth


def test_a_row_that_alone_does_not_fit_is_one_sentence(monkeypatch):
    Pool(monkeypatch, OWN + LONGEST - 1)
    with pytest.raises(OutOfMemory, match="Not even one row fits"):
        responses(BatchEngine(loaded(), memory=60_000), asks_of([(4, 1)], [], LONGEST))
