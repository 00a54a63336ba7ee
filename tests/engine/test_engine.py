"""The engine's answers on the demo model, however rows are batched."""

import itertools
import random

import numpy as np
import pytest
import torch

from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.passes import PackedModel
from caploc.engine.planning import BatchSizer
from caploc.errors import BadOption, OutOfMemory
from caploc.tasks.task import Generate, Generated, LogLikelihood, Rolling, options_json
from worlds.alone import answers

OPTIONS = options_json({"until": ["\n"], "max_gen_toks": 12, "do_sample": False})
PROMPTS = ["47+38=", "9-3=", "sort 72941=", "a rhyme for night:", "the pirate on the rain:"]


@pytest.fixture(scope="module")
def masks(loaded):
    drawn = np.random.default_rng(0).random((4, loaded.grid.size)) < 0.1
    drawn[0] = False
    return drawn


@pytest.fixture(scope="module")
def asks(masks):
    requests = [
        *(Generate(prompt, OPTIONS) for prompt in PROMPTS),
        *(LogLikelihood("capital of Peru is", text) for text in (" Lima", " Paris", " L")),
        LogLikelihood("", "The old king"),
        LogLikelihood("47+38= ", "85"),
        Rolling("The old king went to the castle."),
    ]
    pairs = enumerate(itertools.product(masks, requests))
    return [Ask((number, 0), request, mask) for number, (mask, request) in pairs]


def same(first, second):
    if isinstance(first, Generated):
        return first == second
    near = first.logprob == pytest.approx(second.logprob, abs=1e-4)
    said = [(each.greedy, each.tokens, each.instead) for each in (first, second)]
    return near and said[0] == said[1]


def test_answers_do_not_depend_on_how_rows_were_batched(loaded, asks):
    alone = answers(BatchEngine(loaded, 1), asks)
    shuffled = random.Random(0).sample(asks, len(asks))
    for size in (3, None):
        together = answers(BatchEngine(loaded, size), shuffled)
        assert together.keys() == alone.keys()
        assert all(same(together[key].response, alone[key].response) for key in alone)


@pytest.mark.parametrize("size", [1, 3])
def test_no_pass_has_more_rows_than_the_batch_size(loaded, asks, monkeypatch, size):
    rows, forward = [], PackedModel.forward

    def counting(packed, one):
        blocks = getattr(one.attention, "blocks", None)
        count = len(one.attention.places) if blocks is None else sum(b.rows for b in blocks)
        rows.append(count)
        return forward(packed, one)

    monkeypatch.setattr(PackedModel, "forward", counting)
    answers(BatchEngine(loaded, size), asks)
    assert max(rows[len(rows) // 10 :]) == size


def test_where_a_continuation_is_not_the_likeliest_what_is_instead_is_told(loaded, masks):
    """It begins as what the model goes on to say, up to where the continuation leaves it."""
    prompt = "capital of Peru is"
    options = options_json({"until": ["@@"], "max_gen_toks": 9, "do_sample": False})
    engine, told = BatchEngine(loaded), set()
    for number, mask in enumerate(masks):
        asked = [Ask((number, 0), Generate(prompt, options), mask)]
        (said,) = answers(engine, asked).values()
        whole = said.response.text
        for text in (whole, whole[:3], whole[:2] + "Q", " Qx"):
            asked = [Ask((number, 0), LogLikelihood(prompt, text), mask)]
            (scored,) = (answer.response for answer in answers(engine, asked).values())
            assert scored.greedy is (scored.instead == "") is whole.startswith(text)
            assert whole.startswith(scored.instead)
            told.add(scored.instead)
    assert len(told) > 2


def test_choices_that_differ_in_one_token_share_a_pass_but_masks_never_do(loaded, masks):
    requests = [LogLikelihood("capital of Peru is", f" {letter}") for letter in "LPQ"]
    asks = [
        Ask((m, part), request, mask)
        for m, mask in enumerate(masks[:2])
        for part, request in enumerate(requests)
    ]
    costs = {key: a.forward_tokens for key, a in answers(BatchEngine(loaded), asks).items()}
    # Read once for each mask: the start token and the context with its space.
    shares = [[costs[m, part] for part in range(3)] for m in range(2)]
    assert [sum(share) for share in shares] == pytest.approx([20, 20])


def test_an_answer_longer_than_the_window_is_refused(loaded):
    options = options_json({"until": [], "max_gen_toks": 4096, "do_sample": False})
    with pytest.raises(BadOption, match="4096 tokens, and the model's window is 2048"):
        answers(
            BatchEngine(loaded), [Ask((0, 0), Generate("a", options), np.zeros(96, dtype=bool))]
        )


def test_out_of_memory_halves_the_batch_and_loses_no_row(loaded):
    sizer = BatchSizer(loaded.model, 16)
    tried = []

    def work(batch):
        tried.append(len(batch))
        if len(batch) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return [2 * item for item in batch]

    assert sizer.run(work, list(range(16))) == [2 * item for item in range(16)]
    assert max(tried) == 16


def test_batches_after_out_of_memory_are_smaller(loaded, monkeypatch):
    monkeypatch.setattr("caploc.engine.planning.free_memory", lambda device: 2**24)
    sizer = BatchSizer(loaded.model)
    before = sizer.rows(50)

    def work(batch):
        if len(batch) >= before:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return batch

    sizer.run(work, list(range(before)))
    assert [len(b) for b in sizer.batches(list(range(before)), 50)][0] <= before / 2


def test_logits_that_are_kept_count(loaded, monkeypatch):
    monkeypatch.setattr("caploc.engine.planning.free_memory", lambda device: 2**28)
    sizer = BatchSizer(loaded.model)
    sizer.scored_bytes = 128_000 * 8  # a vocabulary of today's size
    assert 1 == sizer.rows(500, scored=500) < sizer.rows(500, scored=1)


def test_a_row_that_does_not_fit_alone_is_one_sentence(loaded):
    def work(batch):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemory, match="Not even one row fits.*--dtype"):
        BatchSizer(loaded.model, 4).run(work, [1, 2, 3])


def test_other_errors_are_not_taken_for_lack_of_memory(loaded):
    def work(batch):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        BatchSizer(loaded.model, 4).run(work, [1, 2])


def test_a_pass_on_a_cpu_is_shorter_for_larger_models_but_never_tiny(loaded, monkeypatch):
    sizer, tokens = BatchSizer(loaded.model), {}
    for parameters in (10**6, 10**8, 10**12):
        monkeypatch.setattr(loaded.model, "num_parameters", lambda n=parameters: n)
        tokens[parameters] = sizer.sizes().most_tokens
    assert tokens == {10**6: 2048, 10**8: 750, 10**12: 512}


def test_where_no_memory_is_left_to_halve_it_is_said(loaded, monkeypatch):
    monkeypatch.setattr("caploc.engine.planning.free_memory", lambda device: 2**10)
    sizer = BatchSizer(loaded.model)
    error = torch.OutOfMemoryError("CUDA out of memory.")
    with pytest.raises(OutOfMemory, match="Not even one row fits"):
        for _ in range(11):
            sizer.shrink(error, smallest=False)
