"""Interventions against plain cuts, and the verdict against planted answers."""

import json

import numpy as np
import pytest
import torch

from caploc.errors import BadData
from caploc.models.cutting import knocked_out
from caploc.neurons.stats import plain_value
from papers.cnl.knowledge_neurons import (
    KnowledgeNeurons,
    intervention_reliability,
    scaled_probabilities,
)
from worlds.facts import demo_facts
from worlds.tiny import WITH_NEURONS

pytestmark = pytest.mark.slow  # whole studies

FACTS = demo_facts("statement", 6)


@pytest.fixture(scope="module")
def locator(neurons):
    """Knowledge neurons; each prompt is located once."""
    return Given(KnowledgeNeurons(neurons))


class Given(KnowledgeNeurons):
    """Locates what it is told to, or what it located before."""

    def __init__(self, inner, told=None):
        super().__init__(inner.loaded)
        self.__dict__ |= {"inner": inner, "told": told or (lambda number, found: found)}
        self.__dict__["known"] = getattr(inner, "known", {})

    def locate(self, prompt):
        number = [fact.prompt for fact in FACTS].index(prompt)
        if number not in self.known:
            self.known[number] = self.inner.locate(prompt)
        return self.told(number, self.known[number])


@pytest.mark.parametrize("name", WITH_NEURONS)
def test_scaled_neurons_are_those_of_a_plain_cut_at_the_last_position(as_tiny, asked, name):
    loaded, encoded = as_tiny(name), asked.first()
    sets = np.random.default_rng(0).random((3, loaded.grid.size)) < 0.3
    found = scaled_probabilities(loaded, encoded, sets, [0.0, 2.0])
    ids = torch.tensor([encoded.tokens])

    def plain(chosen, factor):
        def last_scaled(layer, handed):
            each = handed.reshape(1, len(encoded.tokens), *handed.shape[-2:]).clone()
            each[:, -1] *= factor
            return each.reshape(handed.shape)

        mask = torch.from_numpy(chosen)[None]
        with torch.no_grad(), knocked_out(loaded.projections, loaded.grid, mask, last_scaled):
            logits = loaded.model(input_ids=ids, use_cache=False).logits[0, -1]
        return float(logits.softmax(-1)[encoded.answer[0]])

    nothing = np.zeros(loaded.grid.size, dtype=bool)
    truth = [plain(nothing, 1), *(plain(each, 0) for each in sets), *(plain(e, 2) for e in sets)]
    np.testing.assert_allclose(np.log(found), np.log(truth), atol=1e-3)
    assert len(set(np.round(np.log(truth), 1))) > 3


def test_located_neurons_do_more_than_random_ones(locator):
    found = intervention_reliability(locator, FACTS, seed=0)
    own = found["suppress"]["fact"]
    assert own["located"].high < 0
    assert abs(own["random"].mean) < 0.1 * abs(own["located"].mean)
    assert 0.9 < found["intact"].mean <= 1 and found["draws"] == 20
    assert abs(found["suppress"]["unrelated"]["located"].mean) < abs(own["located"].mean)
    json.dumps(plain_value(found), allow_nan=False)


def test_all_facts_with_one_set_do_as_another_facts(locator):
    same = Given(locator, lambda number, found: locator.locate(FACTS[0].prompt))
    found = intervention_reliability(same, FACTS, seed=0, draws=5)
    assert found["suppress"]["fact"]["located"] == found["suppress"]["fact"]["other_fact"]


def test_facts_without_neurons_are_left_out_and_counted(locator):
    sets = [locator.locate(fact.prompt) for fact in FACTS]
    without = Given(locator, lambda number, found: found & (number != 1))
    found = intervention_reliability(without, FACTS, seed=0, draws=5)
    assert (found["facts"], found["empty"]) == (5, 1)
    assert found["size"] == sum(each.sum() for n, each in enumerate(sets) if n != 1) / 5
    with pytest.raises(BadData, match="for 0 of 6 facts"):
        nothing = Given(locator, lambda number, found: found & False)
        intervention_reliability(nothing, FACTS, seed=0, draws=5)
