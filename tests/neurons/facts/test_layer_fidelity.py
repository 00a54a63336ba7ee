"""Fidelity of layers against profiles of which it is known where they peak."""

import json
from dataclasses import dataclass
from itertools import count

import numpy as np
import pytest

from caploc.errors import BadData
from caploc.neurons.demo_facts import demo_facts
from caploc.neurons.fidelity import (
    compare_profiles,
    layer_fidelity,
    peak,
)
from caploc.neurons.knowledge_neurons import Tracer, noise_level
from caploc.stats.sets import rank_correlation

pytestmark = pytest.mark.slow  # whole studies

FACTS = demo_facts("quiz", 12)
LAYERS = 7


@dataclass
class Planted:
    """A profile that peaks in the layer that `where` says."""

    where: object
    name = "planted"

    def profile(self, prompt):
        layer = self.where(prompt)
        if layer is None:
            return None
        return -np.abs(np.arange(LAYERS) - layer + 0.25)


def length(prompt) -> int:
    return len(prompt.subject) % LAYERS


def test_profiles_of_the_subject_agree_fully():
    found = layer_fidelity(Planted(length), FACTS, seed=0)
    for arm in (found.rewrites, found.same_prompt):
        assert (arm.agreement.mean, arm.distance.mean, arm.spearman.mean) == (
            1,
            0,
            pytest.approx(1),
        )
    assert found.modal_share.mean == 1.0
    margin = 1 - found.same_relation["agreement"].mean
    assert found.margin["agreement"].mean == pytest.approx(margin) and margin > 0
    assert found.margin["distance"].mean == -found.same_relation["distance"].mean < 0
    assert sum(found.peaks) == 12 and sum(found.rewrite_peaks) == 60
    assert found.peaks == tuple(np.bincount([length(f.prompt) for f in FACTS], minlength=LAYERS))


def test_one_layer_for_all_has_no_margin():
    found = layer_fidelity(Planted(lambda prompt: 2), FACTS, seed=0)
    assert found.rewrites["agreement"].mean == found.unrelated["agreement"].mean == 1.0
    assert found.margin["agreement"].mean == 0.0
    assert found.chance["agreement"].mean == pytest.approx(1 / 7)
    assert found.chance["distance"].mean == pytest.approx((2 + 1 + 0 + 1 + 2 + 3 + 4) / 7)


def test_profiles_that_move_at_random_agree_by_chance():
    moves = count()

    def anywhere(prompt):
        return int(np.random.default_rng(next(moves)).integers(LAYERS))

    found = layer_fidelity(Planted(anywhere), demo_facts("quiz"), seed=0)
    for arm in (found.rewrites, found.same_prompt, found.same_relation):
        assert arm.agreement.mean == pytest.approx(1 / 7, abs=0.05)
    assert found.modal_share.mean < 0.5


def test_prompts_answered_wrongly_are_left_out_and_counted():
    wrong = {FACTS[0].prompt.text, FACTS[1].rewrites[0].text}
    found = layer_fidelity(
        Planted(lambda prompt: None if prompt.text in wrong else 1), FACTS, seed=0
    )
    assert (found.facts, found.facts_wrong, found.prompts, found.wrong) == (11, 1, 72, 2)
    assert found.rewrites["agreement"].items == 11
    with pytest.raises(BadData, match="answers none of the 12 facts"):
        layer_fidelity(Planted(lambda prompt: None), FACTS, seed=0)


def test_two_profiles_are_compared():
    first = np.array([0.1, np.nan, 0.5, 0.2])
    second = np.array([0.3, 0.9, 0.2, 0.1])
    assert compare_profiles(first, second) == {
        "agreement": 0.0,
        "distance": 1.0,
        "spearman": pytest.approx(-0.5),
    }
    assert np.isnan(compare_profiles(first, None)["agreement"])
    assert peak(first) == 2 and rank_correlation(first, np.ones(4)) is None
    with pytest.raises(BadData, match="no layer with an effect"):
        peak(np.full(3, np.nan))


def test_causal_tracing_is_deterministic(neurons):
    facts = FACTS[:3]
    tracer = Tracer(neurons, noise_level(neurons, [f.prompt for f in facts]), draws=2)
    found = layer_fidelity(tracer, facts, seed=0)
    assert found.same_prompt["agreement"].low == 1.0 and found.same_prompt["distance"].high == 0.0
    assert found.layers == 6 and sum(found.peaks) == found.facts
    json.dumps(found.as_dict(), allow_nan=False)
