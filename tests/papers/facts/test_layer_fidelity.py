"""Fidelity of layers against profiles of which it is known where they peak."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from caploc.errors import BadData
from caploc.neurons.model import NeuronGrid
from caploc.neurons.sets import rank_correlation
from papers.cnl.fidelity import compare_located, peak, wording_fidelity
from worlds.facts import demo_facts

pytestmark = pytest.mark.slow  # whole studies

FACTS = demo_facts("quiz", 12)
LAYERS = 7


@dataclass
class Planted:
    """A profile that peaks in the layer that `where` says."""

    where: object
    name = "planted"
    units = "layers"
    grid: ClassVar = NeuronGrid((1,) * LAYERS)

    def locate(self, prompt):
        layer = self.where(prompt)
        if layer is None:
            return None
        return -np.abs(np.arange(LAYERS) - layer + 0.25)


def length(prompt) -> int:
    return len(prompt.subject) % LAYERS


def test_profiles_of_the_subject_agree_fully():
    found = wording_fidelity(Planted(length), FACTS, seed=0)
    same, other = found["arms"]["rewrites"], found["arms"]["same_relation"]
    assert (same["agreement"].mean, same["distance"].mean) == (1, 0)
    assert same["spearman"].mean == pytest.approx(1)
    margin = 1 - other["agreement"].mean
    assert found["margin"]["agreement"].mean == pytest.approx(margin) and margin > 0
    assert found["margin"]["distance"].mean == -other["distance"].mean < 0
    assert found["size"] is None and sum(found["peaks"]) == 12
    assert (
        found["peaks"] == np.bincount([length(f.prompt) for f in FACTS], minlength=LAYERS).tolist()
    )


def test_one_layer_for_all_has_no_margin():
    found = wording_fidelity(Planted(lambda prompt: 2), demo_facts("quiz"), seed=0)
    agreed = {arm: each["agreement"].mean for arm, each in found["arms"].items()}
    assert agreed["rewrites"] == agreed["unrelated"] == 1.0
    assert found["margin"]["agreement"].mean == 0.0
    assert agreed["random"] == pytest.approx(1 / 7, abs=0.05)
    far = (2 + 1 + 0 + 1 + 2 + 3 + 4) / 7
    assert found["arms"]["random"]["distance"].mean == pytest.approx(far, abs=0.2)


def test_prompts_answered_wrongly_are_left_out_and_counted():
    wrong = {FACTS[0].prompt.text, FACTS[1].rewrites[0].text}
    found = wording_fidelity(
        Planted(lambda prompt: None if prompt.text in wrong else 1), FACTS, seed=0
    )
    assert (found["facts"], found["prompts"], found["missing"]) == (12, 72, 2)
    assert found["arms"]["rewrites"]["agreement"].items == 11 == sum(found["peaks"])
    nothing = wording_fidelity(Planted(lambda prompt: None), FACTS, seed=0)
    assert nothing["missing"] == 72 and nothing["peaks"] is None


def test_two_profiles_are_compared():
    first = np.array([0.1, np.nan, 0.5, 0.2])
    second = np.array([0.3, 0.9, 0.2, 0.1])
    assert compare_located(first, second) == {
        "agreement": 0.0,
        "distance": 1.0,
        "spearman": pytest.approx(-0.5),
    }
    assert compare_located(first, None) == {}
    assert peak(first) == 2 and rank_correlation(first, np.ones(4)) is None
    with pytest.raises(BadData, match="no layer with an effect"):
        peak(np.full(3, np.nan))
