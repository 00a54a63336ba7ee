"""Knowledge neurons against the definition, one point and one layer at a time."""

from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from caploc.neurons.model import list_projections
from papers.cnl.facts import FactPrompt
from papers.cnl.knowledge_neurons import KnowledgeNeurons
from papers.cnl.prompts import Encoded
from worlds.tiny import WITH_NEURONS

pytestmark = pytest.mark.slow

FRANCE = FactPrompt("capital of France is ", "France", "Paris", "Rome")


@contextmanager
def changed(modules, change):
    """`change` of what the modules read at the last positions, for a plain forward pass."""
    handles = [module.register_forward_pre_hook(change) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def outcome(loaded, encoded: Encoded) -> torch.Tensor:
    """The probability from a plain forward pass without a cache."""
    logits = loaded.model(input_ids=torch.tensor([encoded.tokens]), use_cache=False).logits[0]
    return logits[-1].softmax(-1)[encoded.answer[0]]


def by_definition(loaded, encoded: Encoded, fractions) -> np.ndarray:
    """Each projection by itself: activations, then the gradient by them at every point."""
    count, scores = len(encoded.answer), np.zeros(loaded.grid.size)
    for wanted in range(loaded.grid.layers):
        mine = [
            (columns, m)
            for layer, columns, m in list_projections(loaded.projections)
            if layer == wanted
        ]
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
                value = outcome(loaded, encoded)
            found = torch.autograd.grad(value, [leaves[place][0] for place in range(len(mine))])
            for place, ((columns, _), gradient) in enumerate(zip(mine, found, strict=True)):
                each = (gradient * leaves[place][1]).sum(0).double().numpy()
                scores[columns] += each / len(fractions)
    return scores


def scored(loaded, encoded, steps) -> np.ndarray:
    """The locator's scores of a prompt that is tokens already."""
    locator = KnowledgeNeurons(loaded, steps=steps)
    locator.__dict__["encoder"] = SimpleNamespace(encode=lambda _: encoded)
    return locator.score(FRANCE)


@pytest.mark.parametrize("name", WITH_NEURONS)
def test_all_layers_at_once_are_each_layer_by_definition(as_tiny, asked, name):
    loaded = as_tiny(name)
    found = scored(loaded, asked, 3)
    truth = by_definition(loaded, asked.first(), [1 / 6, 1 / 2, 5 / 6])
    assert np.abs(truth).max() > 0
    np.testing.assert_allclose(found, truth, atol=2e-4 * np.abs(truth).max())


def test_a_share_of_the_largest_is_chosen_and_nothing_where_none_is_above_zero(
    neurons, monkeypatch
):
    scores = np.zeros(neurons.grid.size)
    scores[:5] = 0.5, 0.1, 0.099, -0.5, 0.0
    for given, count in ((scores, 2), (-np.abs(scores), 0), (scores * 0, 0)):
        monkeypatch.setattr(KnowledgeNeurons, "score", lambda self, prompt, given=given: given)
        chosen = KnowledgeNeurons(neurons).locate(FRANCE)
        assert np.flatnonzero(chosen).tolist() == list(range(count))
