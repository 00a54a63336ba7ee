"""Rows of unlike length share a plain batch only where that changes no answer."""

import numpy as np
import pytest
import torch
from alone import PAD, START, around, responses, said, scored, words
from tiny import DISTURBED, GROUPED, SHAPE, build, random_tokens, tiny

from caploc.engine import Ask, BatchEngine
from caploc.engine.plain import FURTHER, PaddingCheck
from caploc.tasks.task import Generate, LogLikelihood, options_json

LIMIT = 6
OPTIONS = options_json({"until": [], "max_gen_toks": LIMIT, "do_sample": False})
LENGTHS = (6, 9, 20, 40)
DECODER = {**SHAPE, "d_model": 32, "decoder_layers": 2, "decoder_attention_heads": 4,
           "encoder_layers": 1, "decoder_ffn_dim": 48, "is_decoder": True,
           "is_encoder_decoder": False, "init_std": 0.3, "eos_token_id": 1}  # fmt: skip
DISTURBING = {
    # keeps the keys of 16 tokens: only rows beyond that are disturbed
    "doge": lambda: doge({**GROUPED, "keep_window_size": 16}),
    "recurrent_gemma": lambda: tiny("recurrent_gemma"),
    "bart": lambda: build("bart", DECODER),
    "blenderbot": lambda: build("blenderbot", DECODER),
}


def doge(config):
    model = build("doge", config)
    for name, weight in model.named_parameters():
        if name.endswith(".A"):  # what decides which keys are kept: 0 before training
            torch.nn.init.normal_(weight, std=0.1)
    return model


def prompts(lengths=LENGTHS):
    return [random_tokens(1, length, seed=length)[0].tolist() for length in lengths]


def asked(loaded):
    mask = np.zeros(loaded.grid.size, dtype=bool)
    mask[0] = True
    texts = [Ask((n, 0), Generate(words(p), OPTIONS), mask) for n, p in enumerate(prompts())]
    scores = [
        Ask((100 + n, 0), LogLikelihood(words(p), " w05 w06 w07"), mask)
        for n, p in enumerate(prompts())
    ]
    return mask, texts + scores


@pytest.mark.parametrize("name", DISTURBING)
def test_a_model_that_padding_disturbs_answers_as_it_does_alone(name):
    loaded = around(DISTURBING[name]())
    mask, asks = asked(loaded)
    engine = BatchEngine(loaded)
    assert engine.packed is None
    got = responses(engine, asks)
    for number, prompt in enumerate(prompts()):
        alone = [token for token in said(loaded, prompt, mask, LIMIT) if token not in (PAD, START)]
        assert got[number, 0].text.split() == [words([token]) for token in alone]
        expected, _ = scored(loaded, prompt, [5, 6, 7], mask)
        assert got[100 + number, 0].logprob == pytest.approx(expected, abs=1e-3)
    assert not engine.generation.padding.holds


def test_without_the_proof_they_would_not(monkeypatch):
    monkeypatch.setattr(PaddingCheck, "shown", lambda *told: True)
    loaded = around(DISTURBING["bart"]())
    mask, asks = asked(loaded)
    got = responses(BatchEngine(loaded), asks)
    alone = [words(said(loaded, prompt, mask, LIMIT)) for prompt in prompts()]
    assert [got[number, 0].text.strip() for number in range(len(alone))] != alone


@pytest.mark.parametrize("name", ["mistral", "falcon, alibi", "bloom"])
@pytest.mark.parametrize("left", [True, False])
def test_most_models_take_unlike_rows_together(name, left):
    assert name not in DISTURBED
    items = prompts()
    (together,) = PaddingCheck(around(tiny(name)), left=left).groups(items, lambda item: item)
    assert together == items[::-1]


def counted(monkeypatch, holds=lambda rows: True):
    shown = []

    def predict(padding, rows):
        shown.append([len(row) for row in rows])
        truth = torch.arange(20.0).reshape(1, 2, 10).expand(len(rows), -1, -1)
        return truth + (0 if holds(rows) or len(rows) == 1 else 1000 * torch.rand(len(rows), 2, 10))

    monkeypatch.setattr(PaddingCheck, "continued", predict)
    return shown


def sorted_into(padding, *lengths):
    groups = padding.groups([[3] * length for length in lengths], lambda item: item)
    return [[len(item) for item in group] for group in groups]


def test_it_is_shown_at_the_lengths_at_hand_and_again_at_longer_ones(monkeypatch):
    shown, padding = counted(monkeypatch), PaddingCheck(around(tiny("bloom")), left=True)
    assert sorted_into(padding, 8, 8) == [[8, 8]] and shown == []
    assert sorted_into(padding, 6, 10, 8) == [[10, 8, 6]] and shown == [[10, 8, 6], [8], [6]]
    sorted_into(padding, 10 * FURTHER, 10 * FURTHER - 4 * FURTHER)
    assert len(shown) == 3
    sorted_into(padding, 10 * FURTHER + 1, 10 * FURTHER)
    assert len(shown) == 5
    sorted_into(padding, 10, 1)  # more padding than was seen
    assert shown[5:] == [[10, 1], [1]]
    sorted_into(padding, *range(40, 100))
    assert shown[7:] == [[99, 98, 69, 40], [98], [69], [40]]


def test_what_fails_once_is_not_tried_again(monkeypatch):
    shown = counted(monkeypatch, holds=lambda rows: len(rows[0]) < 20)
    padding = PaddingCheck(around(tiny("bloom")), left=True)
    assert sorted_into(padding, 9, 7) == [[9, 7]]
    assert sorted_into(padding, 30, 7, 9, 30) == [[30, 30], [9], [7]]
    before = len(shown)
    assert sorted_into(padding, 9, 7) == [[9], [7]] and len(shown) == before


def test_a_proof_that_does_not_fit_into_memory_proves_nothing(monkeypatch):
    def full(padding, rows):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(PaddingCheck, "continued", full)
    assert sorted_into(PaddingCheck(around(tiny("bloom")), left=True), 9, 7) == [[9], [7]]


def test_nothing_asked_needs_no_proof():
    assert PaddingCheck(around(build("llama", GROUPED)), left=True).groups([], len) == []
