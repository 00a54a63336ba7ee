"""Prompts as tokens: where the answer starts and where the subject stands."""

import pytest

from caploc.engine.encoding import RequestEncoder
from caploc.errors import BadData
from caploc.tasks.task import LogLikelihood
from papers.cnl.facts import FactPrompt
from papers.cnl.prompts import Encoder


@pytest.fixture(scope="module")
def encoder(neurons):
    return Encoder(neurons)


def test_the_answers_tokens_are_the_answer(neurons, encoder):
    encoded = encoder.encode(FactPrompt("capital of France is ", "France", "Paris", "Rome"))
    decode = neurons.tokenizer.decode
    assert decode(encoded.answer) == "Paris"
    assert decode(encoded.tokens[1:]) == "capital of France is Pari"
    assert decode([encoded.tokens[place] for place in encoded.subject]) == "France"
    assert encoded.start == len(encoded.tokens) - 5
    first = encoded.first()
    assert decode(first.answer) == "P" and decode(first.tokens[1:]) == "capital of France is "


def test_without_a_last_space_tokens_are_lm_evals(neurons, encoder):
    prompt = FactPrompt("capital of Peru?\nLima A\nRome B\n=", "Peru", "A")
    (span,) = RequestEncoder(neurons.model, neurons.tokenizer).spans(
        LogLikelihood(prompt.text, prompt.target)
    )
    encoded = encoder.encode(prompt)
    assert (encoded.tokens, encoded.answer) == (span.inputs, span.continuation)


def test_the_last_of_several_places_is_the_subjects(neurons, encoder):
    encoded = encoder.encode(FactPrompt("Rome. Rome is in ", "Rome", "Italy"))
    start = len(neurons.tokenizer("Rome. ").input_ids)
    assert encoded.subject == tuple(range(start, start + 4))


def test_a_prompt_beyond_the_window_is_refused(encoder):
    with pytest.raises(BadData, match="2048 at most together"):
        encoder.encode(FactPrompt("a" * 3000, None, "b"))
