"""Knowledge neurons against the definition, one point and one layer at a time."""

from contextlib import ExitStack, contextmanager

import numpy as np
import pytest
import torch
from tiny import FAMILIES, build

from caploc.errors import BadData, BadOption, UnknownName
from caploc.neurons.facts.copies import Copies, Gate
from caploc.neurons.facts.demo import demo_facts
from caploc.neurons.facts.encoding import Encoded
from caploc.neurons.facts.facts import Prompt
from caploc.neurons.facts.knowledge_neurons import (
    KnowledgeNeurons,
    attributions,
    coarse,
    refine,
)
from caploc.neurons.facts.locators import Locator
from caploc.neurons.sites import parts

# one family has no feed-forward block in its two layers
WITH_NEURONS = [name for name in FAMILIES if not name.startswith("nemotron_h")]
LFM2 = "lfm2, attention in one layer of three"
FRANCE = Prompt("capital of France is ", "France", "Paris", "Rome")


@contextmanager
def changed(modules, change):
    """`change` of what the modules read at the last positions, for a plain forward pass."""
    handles = [module.register_forward_pre_hook(change) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def outcome(loaded, encoded: Encoded, whole: bool) -> torch.Tensor:
    """The probability, or mean log-probability, from a plain forward pass without a cache."""
    logits = loaded.model(input_ids=torch.tensor([encoded.tokens]), use_cache=False).logits[0]
    likely = logits[-len(encoded.answer) :].log_softmax(-1)
    chosen = likely[torch.arange(len(encoded.answer)), torch.tensor(encoded.answer)]
    return chosen.mean() if whole else chosen[0].exp()


def by_definition(loaded, encoded: Encoded, fractions, whole: bool) -> np.ndarray:
    """Each projection by itself: activations, then the gradient by them at every point."""
    count, scores = len(encoded.answer), np.zeros(loaded.grid.size)
    for wanted in range(loaded.grid.layers):
        mine = [(columns, m) for layer, columns, m in parts(loaded.projections) if layer == wanted]
        for fraction in fractions if mine else ():
            leaves = {}

            def scaling(place, fraction=fraction, leaves=leaves):
                def scale(_, args):
                    flat = args[0].reshape(-1, args[0].shape[-1])
                    leaf = (fraction * flat[-count:]).detach().requires_grad_()
                    leaves[place] = leaf, flat[-count:].detach()
                    return torch.cat([flat[:-count], leaf]).reshape(args[0].shape), *args[1:]

                return scale

            with ExitStack() as hooks:
                for place, (_, module) in enumerate(mine):
                    hooks.enter_context(changed([module], scaling(place)))
                value = outcome(loaded, encoded, whole)
            found = torch.autograd.grad(value, [leaves[place][0] for place in range(len(mine))])
            for place, ((columns, _), gradient) in enumerate(zip(mine, found, strict=True)):
                each = (gradient * leaves[place][1]).sum(0).double().numpy()
                scores[columns] += each / len(fractions)
    return scores


@pytest.mark.parametrize(
    ("name", "whole"),
    [*((name, False) for name in WITH_NEURONS), ("gpt2", True), ("mixtral", True), (LFM2, True)],
)
def test_all_layers_at_once_are_each_layer_by_definition(as_tiny, asked, name, whole):
    loaded = as_tiny(name)
    encoded = asked if whole else asked.first()
    fractions = [0.1, 0.5, 0.9]
    found = attributions(Copies(loaded, encoded), loaded.grid, torch.tensor(fractions), whole=whole)
    truth = by_definition(loaded, encoded, fractions, whole)
    assert np.abs(truth).max() > 0
    np.testing.assert_allclose(found, truth, atol=2e-4 * np.abs(truth).max())


def test_layers_in_several_passes_score_as_in_one(neurons, monkeypatch):
    locator = KnowledgeNeurons(neurons)
    together = locator.score(FRANCE)
    monkeypatch.setattr("caploc.neurons.facts.knowledge_neurons.COPIES", 41)
    np.testing.assert_allclose(locator.score(FRANCE), together, atol=1e-6)


@pytest.mark.parametrize("number", range(2))
def test_a_layers_scores_add_up_to_what_the_layer_is_worth(neurons, number):
    prompt = demo_facts("statement", 2)[number].prompt
    locator = KnowledgeNeurons(neurons, steps=200)
    scores, encoded = locator.score(prompt), locator.encoder.encode(prompt).first()
    with torch.no_grad():
        full = float(outcome(neurons, encoded, whole=False))
        for _, columns, module in parts(neurons.projections):

            def silence(_, args):
                return torch.cat([args[0][:, :-1], torch.zeros_like(args[0][:, -1:])], 1), *args[1:]

            with changed([module], silence):
                without = float(outcome(neurons, encoded, whole=False))
            assert scores[columns].sum() == pytest.approx(full - without, abs=2e-3)


def test_only_planted_neurons_score(as_tiny, asked):
    model = build("llama", FAMILIES["llama"].config, seed=4)
    planted = {0: [3, 40], 1: [17]}
    for layer, kept in planted.items():
        weight = model.model.layers[layer].mlp.down_proj.weight
        weight[:, [column for column in range(48) if column not in kept]] = 0
    loaded = as_tiny(model)
    fractions = torch.tensor([0.25, 0.75])
    scores = attributions(Copies(loaded, asked.first()), loaded.grid, fractions, whole=False)
    named = {(each.layer, each.index) for each in loaded.grid.named(scores != 0)}
    assert named == {(layer, column) for layer, kept in planted.items() for column in kept}


def test_left_points_tend_to_the_same_integral(neurons):
    middle, left = (
        KnowledgeNeurons(neurons, steps=400, points=points).score(FRANCE)
        for points in ("midpoint", "left")
    )
    coarser = KnowledgeNeurons(neurons, steps=20, points="left").score(FRANCE)
    size = np.abs(middle).max()
    assert np.abs(left - middle).max() < 0.01 * size
    assert np.abs(coarser - middle).max() > np.abs(left - middle).max()


def test_gates_of_one_leave_the_answer_as_it_is(neurons):
    copies = Copies(neurons, KnowledgeNeurons(neurons).encoder.encode(FRANCE))
    open_gate = Gate(2, slice(1, 3), torch.ones(2, 1, neurons.grid.per_layer[2]))
    with torch.no_grad():
        read = copies.log_probabilities(4, [open_gate])
        again = copies.log_probabilities(1)
    torch.testing.assert_close(read, again.expand(4, -1), atol=1e-4, rtol=0)


def test_the_coarse_set_is_a_share_of_the_largest():
    scores = np.array([0.5, 0.1, 0.099, -0.5, 0.0])
    assert coarse(scores, 0.2).tolist() == [True, True, False, False, False]
    assert not coarse(-np.abs(scores), 0.2).any() and not coarse(np.zeros(3), 0.2).any()


def test_a_locator_chooses_the_coarse_set_and_says_what_it_is(neurons):
    locator = KnowledgeNeurons(neurons, share=0.3)
    assert isinstance(locator, Locator) and locator.grid is neurons.grid
    scores = locator.score(FRANCE)
    assert locator.locate(FRANCE).tolist() == (scores >= 0.3 * scores.max()).tolist()


def votes(*counts: int, prompts: int = 10) -> np.ndarray:
    """A fact's coarse sets in which neuron i is in so many of the prompts."""
    return np.arange(prompts)[:, None] < np.array(counts)[None, :]


def test_refining_keeps_what_a_share_agrees_on():
    found = refine([votes(7, 6, 10), votes(8, 7, 0)], share=0.7, wanted=None)
    assert found.sets.tolist() == [[True, False, True], [True, True, False]]
    assert (found.mean, found.tries) == (2.0, 1)


def test_at_least_three_prompts_must_agree_whatever_the_share():
    found = refine([votes(2, 3, 4)], share=0.1, wanted=None)
    assert found.sets.tolist() == [[False, True, True]]


def test_the_share_moves_until_enough_are_kept():
    found = refine([votes(10, 6, 5, 4)])
    assert found.share == pytest.approx(0.6) and found.tries == 3 and found.settled
    assert found.mean == 2.0
    found = refine([votes(*[7] * 4, *[8] * 4)])
    assert found.share == pytest.approx(0.75) and found.mean == 4.0


def test_the_share_moves_six_times_at_most():
    found = refine([votes(10, 0)])
    assert (found.tries, found.settled) == (6, False)
    assert found.share == pytest.approx(0.45)
    assert refine([votes(*[10] * 6)]).share == pytest.approx(0.95)


def test_too_few_prompts_cannot_be_refined():
    with pytest.raises(BadData, match="3 prompts or more"):
        refine([votes(1, prompts=2)])


@pytest.mark.parametrize(
    "settings", [{"share": 0.0}, {"share": 1.1}, {"steps": 0}, {"answer": "last"}]
)
def test_settings_that_mean_nothing_are_refused(neurons, settings):
    with pytest.raises(BadOption):
        KnowledgeNeurons(neurons, **settings)


def test_an_unknown_rule_names_the_known_ones(neurons):
    with pytest.raises(UnknownName, match="midpoint"):
        KnowledgeNeurons(neurons, points="centre")
