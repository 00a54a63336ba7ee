"""Interventions against plain cuts, and the verdict against planted answers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import FAMILIES

from caploc.errors import BadData, BadOption
from caploc.models.cutting import CutSite, replaced
from caploc.neurons.demo_facts import demo_facts
from caploc.neurons.knowledge_neurons import (
    KnowledgeNeurons,
    conditions_of,
    intervention_reliability,
    locate_facts,
    scaled_probabilities,
)
from caploc.stats.intervals import Interval

pytestmark = pytest.mark.slow  # whole studies

FACTS = demo_facts("statement", 6)
WITH_NEURONS = [name for name in FAMILIES if not name.startswith("nemotron_h")]


@pytest.fixture(scope="module")
def located(neurons):
    return locate_facts(KnowledgeNeurons(neurons), FACTS)


@pytest.mark.parametrize("name", WITH_NEURONS)
def test_scaled_neurons_are_those_of_a_plain_cut_at_the_last_position(as_tiny, asked, name):
    loaded, encoded = as_tiny(name), asked.first()
    sets = np.random.default_rng(0).random((3, loaded.grid.size)) < 0.3
    found = scaled_probabilities(loaded, encoded, sets, [0.0, 2.0])
    ids = torch.tensor([encoded.tokens])

    def plain(chosen, factor):
        def last_scaled(place: CutSite, handed):
            # experts read all tokens in one list
            each = handed.reshape(1, len(encoded.tokens), *handed.shape[-2:]).clone()
            each[:, -1] *= factor
            return each.reshape(handed.shape)

        mask = torch.from_numpy(chosen)[None]
        with torch.no_grad(), replaced(loaded.projections, loaded.grid, mask, last_scaled):
            logits = loaded.model(input_ids=ids, use_cache=False).logits[0, -1]
        return float(logits.softmax(-1)[encoded.answer[0]])

    nothing = np.zeros(loaded.grid.size, dtype=bool)
    truth = [plain(nothing, 1), *(plain(each, 0) for each in sets), *(plain(e, 2) for e in sets)]
    np.testing.assert_allclose(np.log(found), np.log(truth), atol=1e-3)
    assert len(set(np.round(np.log(truth), 1))) > 3


def test_located_neurons_do_more_than_random_ones(neurons, located):
    found = intervention_reliability(neurons, FACTS, located, seed=0)
    assert found.suppress.fact.located.high < 0
    assert abs(found.suppress.fact.random.mean) < 0.1 * abs(found.suppress.fact.located.mean)
    assert found.suppress.fact.gain.excess.low > 0
    assert found.conditions["suppress, fact: works"]
    assert found.conditions["suppress, fact: beats_random"]
    assert 0.9 < found.intact.mean <= 1 and found.draws == 20
    assert found.as_dict()["reliable"] is all(found.conditions.values())
    json.dumps(found.as_dict(), allow_nan=False)


def test_all_facts_with_one_set_cannot_beat_another_facts(neurons, located):
    same = np.repeat(located[:1], len(FACTS), axis=0)
    found = intervention_reliability(neurons, FACTS, same, seed=0, draws=5)
    assert found.suppress.fact.located == found.suppress.fact.other_fact
    assert (
        not found.conditions["suppress, fact: beats_other_fact"] and not found.as_dict()["reliable"]
    )


def test_facts_without_neurons_are_left_out_and_counted(neurons, located):
    sets = located.copy()
    sets[1] = False
    found = intervention_reliability(neurons, FACTS, sets, seed=0, draws=5)
    assert (found.facts, found.empty) == (5, 1)
    assert found.size == sets[[0, 2, 3, 4, 5]].sum() / 5
    with pytest.raises(BadData, match="for 0 of 6 facts"):
        intervention_reliability(neurons, FACTS, sets & False, seed=0, draws=5)


def test_one_relation_alone_has_no_unrelated_facts(neurons, located):
    capitals = [n for n, fact in enumerate(FACTS) if fact.relation == "capital of"]
    found = intervention_reliability(
        neurons, [FACTS[n] for n in capitals], located[capitals], seed=0, draws=5
    )
    assert found.suppress.unrelated.located.items == 0
    assert not found.conditions["suppress: spares_unrelated"]
    json.dumps(found.as_dict(), allow_nan=False)


def test_sets_of_another_model_or_other_facts_are_refused(neurons, located):
    with pytest.raises(BadOption, match="6 facts in 2,304 neurons"):
        intervention_reliability(neurons, FACTS, located[:, :10], seed=0)
    with pytest.raises(BadOption, match="at least 5 random draws"):
        intervention_reliability(neurons, FACTS, located, seed=0, draws=3)


def sure(value: float) -> Interval:
    return Interval(value, value - 0.1, value + 0.1, 9)


def test_the_verdict_asks_for_all_conditions(neurons, located):
    found = intervention_reliability(neurons, FACTS, located, seed=0, draws=5)

    def planted(sign):
        gain = replace(found.suppress.fact.gain, excess=sure(0.5))
        own = replace(found.suppress.fact, located=sure(0.7 * sign), random=sure(0.0), gain=gain)
        own = replace(own, other_fact=sure(0.1 * sign))
        spared = replace(own, located=sure(0.0))
        return replace(found.suppress, fact=own, rewrites=own, unrelated=spared)

    arms = {"suppress": planted(-1), "enhance": planted(1)}
    assert all(conditions_of(arms).values()) and len(conditions_of(arms)) == 14
    swapped = conditions_of({"suppress": planted(1), "enhance": planted(1)})
    assert {name for name, holds in swapped.items() if not holds} == {
        *(
            f"suppress, {place}: {what}"
            for place in ("fact", "rewrites")
            for what in ("works", "beats_other_fact")
        ),
        "suppress: spares_unrelated",
    }
    broad = planted(1)
    broad = replace(broad, unrelated=broad.fact)
    failed = conditions_of({"suppress": planted(-1), "enhance": broad})
    assert [name for name, holds in failed.items() if not holds] == ["enhance: spares_unrelated"]
