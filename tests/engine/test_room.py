"""Slots with room for answers as long as expected: what is chosen, and rows that outgrow them."""

from bisect import bisect_right
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from alone import PAD, START, around, responses, said, words
from hypothesis import given, settings
from hypothesis import strategies as st
from test_planning import SIZES, separate, work_of
from tiny import random_tokens, tiny

from caploc.engine.api import Ask
from caploc.engine.asks import INTACT
from caploc.engine.attention import KeySlots
from caploc.engine.batch import BatchEngine
from caploc.engine.decoding import Decoder, DraftOdds
from caploc.engine.planning import BatchPlanner, plan_batches
from caploc.errors import OutOfMemory
from caploc.tasks.task import Generate, options_json

LONGEST, SHARED = 24, 18
STOPS = [[], [words([7])], [words([11]), words([30])]]
lengths = st.lists(st.integers(1, LONGEST), min_size=1, max_size=60)


def planner_of(work, sizes):
    stems = len(work.stems)
    return BatchPlanner(work, sizes, (), (None,) * stems)


@given(lengths, st.integers(0, 22), st.sampled_from([0.0, 24.0, 200.0, 1e5]), st.integers(3, 300))
def test_the_room_is_what_costs_a_row_least(seen, power, alone, own):
    """Against the formula, over every length that an answer may have."""
    work = replace(work_of(separate(30, own), cuts=[0] * 3, answers=LONGEST), seen=seen)
    sizes = replace(SIZES, memory=2**power, alone=alone)
    planner = planner_of(work, sizes)

    def cost(room):
        steps = sum(seen) / len(seen) * alone / planner.slots(room, False)
        longer = sum(length > room for length in seen)
        read_again = (longer + 1) / (len(seen) + 1) * (own + 1 + room)
        return steps + read_again * (room < LONGEST)

    room = planner.answer_room()
    assert room == LONGEST or room in seen
    if planner.slots(LONGEST, False) == SIZES.most_rows:
        assert room == LONGEST
    else:
        assert cost(room) <= cost(LONGEST)
        tried = np.quantile(seen, [0.5, 0.9, 1.0], method="higher")
        assert all(cost(room) <= cost(int(each)) * (1 + 1e-12) for each in tried)
        assert bisect_right(sorted(seen), room) >= len(seen) / 2


def test_nothing_seen_is_room_for_the_longest():
    work = work_of(separate(40), cuts=[0] * 3, answers=200)
    sizes = replace(SIZES, memory=2**17, alone=1e9)
    plan = plan_batches(work, sizes)
    assert plan.answers == 200
    short = plan_batches(replace(work, seen=[5] * 30), sizes)
    assert short.answers == 5 and short.slots > 2 * plan.slots
    assert plan_batches(replace(work, seen=[5] * 30), replace(sizes, memory=10**9)).answers == 200


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


def seeded(asks, seen, **limits):
    """An engine that has seen answers of these lengths."""
    engine = BatchEngine(loaded(), **limits)
    prompt = engine.encoder.prompt(asks[0].request)
    engine.backends[0].generation.seen[prompt.stops, prompt.new_tokens, prompt.options].extend(seen)
    return engine


class Watch:
    """The plans that ran, the rows of all steps, and the rows that outgrew their slots."""

    def __init__(self, monkeypatch):
        self.plans, self.fed, self.outgrown = [], 0, {}
        made, step = Decoder.__init__, Decoder.step

        def making(decoder, packed, plan, *given):
            self.plans.append(plan)
            made(decoder, packed, plan, *given)
            self.outgrown = decoder.outgrown

        def stepping(decoder):
            self.fed += len(decoder.running)
            assert all(row.kept < decoder.room.length for row in decoder.running)
            step(decoder)

        monkeypatch.setattr(Decoder, "__init__", making)
        monkeypatch.setattr(Decoder, "step", stepping)


@pytest.mark.usefixtures("short_prefixes")
@given(
    pairs=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 17)), min_size=1, max_size=24, unique=True
    ),
    stops=st.sampled_from(STOPS),
    limit=st.integers(2, LONGEST),
    seen=st.lists(st.integers(1, 8), max_size=40),
    memory=st.sampled_from([60_000, 200_000, 800_000, 10**9]),
    rows=st.sampled_from([None, 1, 3]),
)
@settings(max_examples=12, deadline=None)
def test_answers_are_those_of_plain_generation_whatever_the_room(
    pairs, stops, limit, seen, memory, rows
):
    asks = asks_of(pairs, stops, limit)
    seen = [min(length, limit) for length in seen]
    got = responses(seeded(asks, seen, memory=memory, batch_size=rows), asks)
    for n, (prompt, mask) in enumerate(pairs):
        answer = got[n, 0]
        assert (answer.text.strip(), answer.tokens) == expected(prompt, mask, stops, limit)


EVERY = [(prompt, mask) for prompt in range(5) for mask in range(18)]


@pytest.mark.parametrize(
    "stops", [*(pytest.param(s, marks=pytest.mark.slow) for s in STOPS[:2]), STOPS[2]]
)
@pytest.mark.usefixtures("short_prefixes")
def test_rows_that_outgrow_their_slots_are_planned_again_and_say_the_same(monkeypatch, stops):
    asks, memory = asks_of(EVERY, stops, LONGEST), 800_000
    before = responses(BatchEngine(loaded(), memory=10**9), asks)
    watch = Watch(monkeypatch)
    assert responses(seeded(asks, [3] * 50, memory=memory), asks) == before
    assert len(watch.outgrown) > 5
    assert watch.plans[0].answers == 3 and watch.plans[-1].answers == LONGEST
    assert watch.plans[0].slots > watch.plans[-1].slots
    assert len(watch.plans) == 2  # nobody is put back twice


def test_what_a_row_had_said_is_read_at_once_and_not_said_again(monkeypatch):
    asks = asks_of([(3, mask) for mask in range(1, 9)], [], LONGEST)
    monkeypatch.setattr(BatchPlanner, "answer_room", lambda one: 12 if one.work.seen else LONGEST)
    watch, engine = Watch(monkeypatch), seeded(asks, [12] * 50, memory=10**9)
    responses(engine, asks)
    assert len(watch.outgrown) == len(asks)
    assert watch.fed <= len(asks) * (LONGEST - 1)  # as if none had
    for odds in engine.backends[
        0
    ].generation.odds.values():  # what a row says again proves no draft right
        assert not odds[0].right or odds[0].right[0] < len(asks)


def test_no_draft_goes_beyond_its_rows_slot(monkeypatch):
    asks, watch = asks_of([(4, mask) for mask in range(12)], [], LONGEST), Watch(monkeypatch)
    monkeypatch.setattr(BatchPlanner, "answer_room", lambda one: 9 if one.work.seen else LONGEST)
    monkeypatch.setattr(DraftOdds, "length", lambda odds: 3)  # the last must be shorter
    engine = BatchEngine(loaded())
    truth = responses(engine, asks)
    assert responses(engine, asks) == truth  # all drafts are right now
    assert [plan.answers for plan in watch.plans] == [LONGEST, 9, LONGEST]


@pytest.mark.usefixtures("short_prefixes")
def test_intact_answers_come_first_and_tell_how_long_others_will_be(monkeypatch):
    """Where slots are short; where all rows have room there is one plan."""
    watch, asks = Watch(monkeypatch), asks_of(EVERY, STOPS[2], LONGEST)
    before = responses(BatchEngine(loaded(), memory=10**9), asks)
    assert [plan.answers for plan in watch.plans] == [LONGEST]
    watch.plans.clear()
    engine = BatchEngine(loaded(), memory=800_000)
    assert responses(engine, asks) == before
    intact, others, *_ = watch.plans
    assert {row.mask for stage in intact.stages for row in stage.rows} == {INTACT}
    assert intact.answers == LONGEST and len(others.stages) >= 1
    (seen,) = engine.backends[0].generation.seen.values()
    assert 5 < len(seen) <= len(EVERY)  # equal masks are asked once


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
    assert responses(seeded(asks, [4] * 50, memory=60_000), asks) == truth


def test_a_row_that_alone_does_not_fit_is_one_sentence_after_those_that_do(monkeypatch):
    pairs, stops = [(4, mask) for mask in range(18)], STOPS[2]
    asks = asks_of(pairs, stops, LONGEST)
    short = [n for n, pair in enumerate(pairs) if expected(*pair, stops, LONGEST)[1] <= 4]
    assert 0 < len(short) < len(pairs)
    Pool(monkeypatch, OWN + LONGEST - 1)
    engine, got = seeded(asks, [4] * 50, memory=60_000), []
    with pytest.raises(OutOfMemory, match="Not even one row fits"):
        for batch in engine.answer(asks):
            got += [answer.key[0] for answer in batch]
    assert set(short) <= set(got) and len(got) < len(pairs)
