"""What neurons fire on, against plain passes and planted outputs."""

import numpy as np
import pytest
import torch

from caploc.engine.encoding import Span
from caploc.models.proof import reads_first
from caploc.neurons.locating import activations_of, describe_neuron, write_token

TEXTS = ("47+38=85", "capital of Peru is Lima", "sort 3 1 2")


@pytest.fixture(scope="module")
def spans(neurons):
    ids = [neurons.tokenizer(text).input_ids for text in TEXTS]
    return [Span(tuple(each[:-1]), (each[-1],)) for each in ids]


@pytest.fixture(scope="module")
def plain(neurons, spans):
    """What layer 2's neurons hand on, text by text, by a hook of this test's own."""
    seen = []
    module = neurons.model.model.layers[2].mlp.down_proj
    hook = module.register_forward_pre_hook(lambda _, args: seen.append(args[0][0].numpy()))
    with torch.no_grad():
        for span in spans:
            neurons.model(torch.tensor([span.inputs]))
    hook.remove()
    return seen


def test_activations_of_texts_side_by_side_are_those_of_each_alone(neurons, spans, plain):
    start = neurons.grid.layer_slices[2].start
    found = activations_of(neurons, spans, [start + 5, start, start + 383])
    for rows, alone in zip(found, plain, strict=True):
        np.testing.assert_allclose(rows, alone[:, [5, 0, 383]].T, atol=1e-4)


def test_the_highest_token_comes_first_and_promoted_ones_by_the_unembedding(neurons, spans, plain):
    column = neurons.grid.layer_slices[2].start + 5
    values = [rows[0] for rows in activations_of(neurons, spans, [column])]
    found = describe_neuron(neurons, spans, column, values)
    flat = [(abs(v), t, span.inputs[t]) for span, row in zip(spans, plain, strict=True)
            for t, v in enumerate(row[:, 5]) if t]  # fmt: skip
    highest = max(flat)
    assert found["tokens"][0] == write_token(neurons.tokenizer, highest[2])
    assert abs(found["value"]) == pytest.approx(highest[0], rel=1e-4) and found["neuron"] == "L2N5"
    assert len(set(found["tokens"])) == len(found["tokens"])
    output = reads_first(neurons.model.model.layers[2].mlp.down_proj)[5]
    logits = neurons.model.get_output_embeddings().weight @ output * found["value"]
    assert found["promotes"][0] == write_token(neurons.tokenizer, int(logits.argmax()))
    assert found["demotes"][0] == write_token(neurons.tokenizer, int(logits.argmin()))
    assert found["context"].replace(" ", "␣").endswith(found["tokens"][0])
