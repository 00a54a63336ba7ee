"""What is learned from: gold answers only, padding without effect, the same order for all."""

import numpy as np
import pytest
import torch

from caploc.engine.encoding import Span
from caploc.engine.plain import ScoredText, score_texts
from caploc.errors import BadData
from caploc.neurons.engine import Batch, gold_logprobs, gold_means
from caploc.neurons.training import split_validation
from worlds.tasks import data
from worlds.tiny import FAMILIES, VOCABULARY, tiny

DEVICE = torch.device("cpu")


def random_spans(count, seed=0, longest=9):
    random = np.random.default_rng(seed)
    spans = []
    for _ in range(count):
        length = int(random.integers(2, longest))
        answer = int(random.integers(1, length))
        tokens = random.integers(2, VOCABULARY, length + 1).tolist()
        spans.append(Span(tuple(tokens[:-1]), tuple(tokens[-answer:])))
    return spans


def alone(model, span):
    """The log-probabilities of a span's continuation, written the obvious way."""
    tokens = torch.tensor([[*span.inputs, span.continuation[-1]]])
    with torch.no_grad():
        logits = model(input_ids=tokens, use_cache=False).logits[0]
    first = tokens.shape[1] - len(span.continuation)
    return torch.stack(
        [
            torch.log_softmax(logits[place - 1].float(), dim=-1)[tokens[0, place]]
            for place in range(first, tokens.shape[1])
        ]
    )


@pytest.mark.parametrize("family", [name for name in FAMILIES if not name.startswith("nemotron")])
def test_padding_changes_nothing_and_only_answers_count(family):
    model, spans = tiny(family), random_spans(5)
    with torch.no_grad():
        together = gold_logprobs(model, Batch.of(spans, DEVICE))
    expected = torch.cat([alone(model, span) for span in spans])
    assert torch.allclose(together, expected, atol=2e-4, rtol=1e-4)


def test_gold_log_probabilities_are_the_engines(demo, spans_of):
    spans = [*spans_of(data.addition, "test", 20), *spans_of(data.code, "test", 5)]
    uncut = np.zeros(demo.grid.size, dtype=bool)
    expected = []
    for span in spans:
        ((score,),) = score_texts(
            demo, [ScoredText(span.inputs, (uncut, None), [span.continuation])]
        )
        expected.append(score.logprob / len(span.continuation))
    found = gold_means(demo.model, spans)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_one_example_cannot_be_split():
    with pytest.raises(BadData, match="give at least 2"):
        split_validation([Span((1,), (2,))], 0.2, 0)
