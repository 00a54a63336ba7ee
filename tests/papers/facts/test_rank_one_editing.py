"""Rank-one edits: the key gives the value, other keys stay, weights come back bit by bit."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf_shrinkage
from torch.nn.functional import kl_div

from caploc.errors import BadData
from caploc.models.proof import reads_first
from papers.cnl.editing import (
    Covariance,
    Descent,
    Editor,
    covariances,
    dense_projection,
    edited,
    write_contexts,
)
from papers.cnl.facts import FactPrompt
from papers.cnl.prompts import Encoder, FactAnswers
from worlds.facts import demo_facts, demo_texts

LAYERS = (0, 2, 4)


@pytest.fixture(scope="module")
def moments(neurons):
    return covariances(neurons, demo_texts(60), LAYERS)


@pytest.fixture(scope="module")
def fact():
    return demo_facts("statement", 8)[2]


@pytest.fixture(scope="module")
def edits(neurons, moments, fact):
    return Editor(neurons, moments).edits(fact.prompt)


def keys_of(loaded, layer: int, text: str) -> torch.Tensor:
    """What the layer's neurons hand on, from a plain pass: (tokens, neurons)."""
    kept = []
    handle = dense_projection(loaded, layer).register_forward_pre_hook(
        lambda _, args: kept.append(args[0][0].clone())
    )
    with torch.no_grad():
        loaded.model(input_ids=loaded.tokenizer(text, return_tensors="pt").input_ids)
    handle.remove()
    return kept[0]


def test_the_moments_are_those_of_all_keys_together(neurons, moments):
    for layer in LAYERS:
        keys = torch.cat([keys_of(neurons, layer, text) for text in demo_texts(60)]).double()
        assert moments[layer].positions == len(keys)
        torch.testing.assert_close(moments[layer].moments, keys.T @ keys / len(keys))


def test_solving_undoes_the_moments():
    random = torch.Generator().manual_seed(0)
    keys = torch.randn(50, 6, generator=random, dtype=torch.float64)
    covariance = Covariance(keys.T @ keys / 50, 50, 0.0)
    wanted = torch.arange(6.0)
    assert covariance.shrinkage == 0
    torch.testing.assert_close(
        covariance.solve(covariance.moments @ wanted.double()), wanted.double()
    )


@pytest.mark.parametrize("positions", [8, 60, 4000])
def test_few_positions_are_believed_less_as_ledoit_and_wolf_have_it(positions):
    """scikit-learn is the second implementation; one column in five is the sum of two others."""
    keys = np.random.default_rng(positions).normal(size=(positions, 20))
    keys[:, ::5] = keys[:, 1::5] + keys[:, 2::5]
    fourth = float(((keys**2).sum(1) ** 2).mean())
    moments = torch.from_numpy(keys.T @ keys / positions)
    expected = ledoit_wolf_shrinkage(keys, assume_centered=True)
    assert Covariance(moments, positions, fourth).shrinkage == pytest.approx(expected)


def test_neurons_that_never_fire_cannot_be_edited():
    with pytest.raises(BadData, match="texts are too few"):
        Covariance(torch.zeros(3, 3, dtype=torch.float64), 9, 0.0).solve(torch.ones(3))


def test_the_key_is_what_neurons_hand_on_at_the_subject(neurons, edits, fact):
    place = Encoder(neurons).encode(fact.prompt).subject[-1]
    for edit in edits:
        own = keys_of(neurons, edit.layer, fact.prompt.text)[place]
        torch.testing.assert_close(edit.key, own.double(), atol=1e-5, rtol=1e-4)


def test_edited_weights_give_the_value_for_the_key(neurons, edits):
    for edit in edits:
        weight = reads_first(dense_projection(neurons, edit.layer))
        before = edit.key @ weight.double()
        with edited(neurons, edit):
            after = edit.key @ weight.double()
        size = float(edit.value.norm())
        assert float((after - edit.value).norm()) < 1e-5 * size
        torch.testing.assert_close(before + edit.right, edit.value)
        assert float((before - edit.value).norm()) > 0.1 * size


def test_no_other_direction_moves_other_keys_less(neurons, edits, moments):
    for edit in edits:
        moved = edit.left @ moments[edit.layer].moments @ edit.left
        own = edit.key / edit.key.square().sum()  # the least change of the weights instead
        random = torch.randn(20, len(own), generator=torch.Generator().manual_seed(1)).double()
        for other in (own, *(each / (each @ edit.key) for each in random)):
            assert moved < other @ moments[edit.layer].moments @ other
        # in the root mean square a key of ordinary text moves by a fraction of what k* does
        assert float(moved.sqrt()) < 0.5


def test_the_model_says_the_new_answer_and_then_the_old_one_again(neurons, edits, fact):
    before = [parameter.clone() for parameter in neurons.model.parameters()]
    asker = FactAnswers(neurons)
    asked = [(fact.prompt, fact.prompt.other), (fact.prompt, fact.prompt.target)]
    for edit in edits:
        with edited(neurons, edit):
            new, old = asker.log_probabilities(asked)
            assert new > old
        assert asker.right(fact.prompt)
    for parameter, old in zip(neurons.model.parameters(), before, strict=True):
        assert torch.equal(parameter, old)


def test_layers_together_are_each_layer_alone(neurons, moments, edits, fact):
    for edit in edits:
        alone = Editor(neurons, {edit.layer: moments[edit.layer]})
        (found,) = alone.edits(fact.prompt)
        # Adam's first steps are as large for a tiny gradient, so that rounding grows
        assert found.loss == pytest.approx(edit.loss, abs=0.02)
        assert float((found.right - edit.right).norm()) < 0.05 * float(edit.right.norm())


def test_an_edit_after_contexts_holds_there_and_its_key_is_the_plain_one(neurons, moments, fact):
    contexts = write_contexts(neurons, 3, 0)
    assert contexts == write_contexts(neurons, 3, 0) and len(set(contexts)) > 1
    layer, asker = 2, FactAnswers(neurons)
    moments = {layer: moments[layer]}
    (plain,) = Editor(neurons, moments).edits(fact.prompt)
    (edit,) = Editor(neurons, moments, contexts=contexts).edits(fact.prompt)
    torch.testing.assert_close(edit.key, plain.key, atol=1e-5, rtol=1e-4)
    texts = [fact.prompt.text, *(f"{context}. {fact.prompt.text}" for context in contexts)]
    encoder, subject = Encoder(neurons), fact.prompt.subject
    places = [encoder.read(text, subject).subject[-1] for text in texts]
    keys = [keys_of(neurons, layer, text)[at] for text, at in zip(texts, places, strict=True)]
    solved = moments[layer].solve(torch.stack(keys).mean(0).double())
    torch.testing.assert_close(
        edit.left, solved / (keys[0].double() @ solved), atol=1e-5, rtol=1e-3
    )
    asked = [(replace(fact.prompt, text=text), fact.prompt.other) for text in texts]
    with edited(neurons, edit):
        after = asker.log_probabilities(asked)
    with edited(neurons, plain):
        assert after.mean() > asker.log_probabilities(asked).mean()
    assert edit.loss >= -after.mean() - 0.05  # the divergence and the decay are added


def test_the_loss_is_surprise_divergence_and_decay(neurons, moments, fact):
    """The last loss of a descent, computed again from plain passes with its result added."""
    prompt, layer = fact.prompt, 2
    how = Descent(steps=3, rate=0.1)
    (short,) = Editor(neurons, {layer: moments[layer]}, descent=how).edits(prompt)
    encoder = Encoder(neurons)
    essence = encoder.read(f"{prompt.subject} is a", prompt.subject)
    encoded = encoder.encode(prompt, prompt.other)
    module = dense_projection(neurons, layer)
    said = []
    for row, added in ((essence, False), (essence, True), (encoded, True)):

        def add(_, args, output, row=row, added=added):
            output = output.clone()
            output[0, row.subject[-1]] += added * short.right.float()
            return output

        handle = module.register_forward_hook(add)
        with torch.no_grad():
            logits = neurons.model(input_ids=torch.tensor([row.tokens])).logits[0]
        handle.remove()
        said.append(logits.log_softmax(-1))
    place = essence.subject[-1]
    divergence = kl_div(said[0][place], said[1][place], log_target=True, reduction="sum")
    answer = torch.tensor(encoded.answer)
    surprise = -said[2][encoded.start :].gather(1, answer[:, None]).mean()
    start = short.value - short.right
    decay = how.decay * short.right.norm() / start.norm() ** 2
    total = float(surprise + how.divergence * divergence + decay)
    assert short.loss == pytest.approx(total, rel=1e-3)


def test_what_cannot_be_edited_is_refused(neurons, moments):
    with pytest.raises(BadData, match="a subject and a new answer are needed"):
        Editor(neurons, moments).edits(FactPrompt("capital of Peru is ", "Peru", "Lima"))
