"""Fidelity against locators of which it is known what they are faithful to."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from caploc.errors import BadData
from caploc.neurons.model import NeuronGrid
from caploc.neurons.stats import plain_value
from papers.cnl.facts import Fact, FactPrompt
from papers.cnl.fidelity import ARMS, pair_wordings, wording_fidelity
from worlds.facts import demo_facts

pytestmark = pytest.mark.slow  # whole studies

GRID = NeuronGrid((40, 40))
FACTS = demo_facts("quiz", 12)


@dataclass
class Planted:
    """Locates two units by what `about` says of a prompt, and units that change at each call."""

    about: object
    noise: int = 0
    name = "planted"
    units = "units"
    grid = GRID
    calls: int = 0

    def locate(self, prompt: FactPrompt) -> np.ndarray:
        self.calls += 1
        chosen = np.zeros(GRID.size, dtype=bool)
        kept = np.random.default_rng(abs(self.about(prompt)) % 2**32).permutation(GRID.size)
        chosen[kept[:2]] = True
        chosen[kept[2 : 2 + self.noise]] = False
        rest = np.random.default_rng(self.calls).permutation(kept[2:])
        chosen[rest[: self.noise]] = True
        return chosen


def subject(prompt: FactPrompt) -> int:
    return int.from_bytes(prompt.subject.encode(), "big")


def relation(prompt: FactPrompt) -> int:
    return int.from_bytes(prompt.text[:6].encode(), "big")


def test_a_faithful_locator_has_fidelity_and_margin_of_one():
    found = wording_fidelity(Planted(subject), FACTS, seed=0)
    assert (
        found["arms"]["rewrites"]["iou"].mean == found["arms"]["rewrites"]["reference"].mean == 1.0
    )
    assert (
        found["arms"]["same_relation"]["iou"].mean < 0.2
        and found["arms"]["unrelated"]["iou"].mean < 0.2
    )
    margin = 1 - found["arms"]["same_relation"]["iou"].mean
    assert found["margin"]["iou"].mean == pytest.approx(margin) and margin > 0.8
    assert found["margin"]["iou"].low > 0


def test_a_locator_of_the_relation_has_fidelity_and_no_margin():
    found = wording_fidelity(Planted(relation), FACTS, seed=0)
    assert (
        found["arms"]["rewrites"]["iou"].mean == found["arms"]["same_relation"]["iou"].mean == 1.0
    )
    assert found["margin"]["iou"].mean == 0.0
    assert found["arms"]["unrelated"]["iou"].mean < 0.2


def test_random_sets_of_equal_size_overlap_by_chance():
    many = demo_facts("quiz")
    found = wording_fidelity(Planted(subject), many, seed=0)
    # 2 of 80 units, drawn within their layer of 40
    assert found["arms"]["random"]["reference"].low < 2 / 80 + 0.01
    assert found["arms"]["random"]["reference"].mean == pytest.approx(0.025, abs=0.02)


def test_empty_sets_are_missing_and_counted():
    class Empty(Planted):
        def locate(self, prompt):
            return np.zeros(GRID.size, dtype=bool)

    found = wording_fidelity(Empty(subject), FACTS, seed=0)
    assert found["missing"] == found["prompts"] == 12 * 6
    assert (
        np.isnan(found["arms"]["rewrites"]["iou"].mean)
        and found["arms"]["rewrites"]["iou"].items == 0
    )
    json.dumps(plain_value(found), allow_nan=False)


def test_facts_without_rewrites_are_counted_and_none_at_all_is_refused():
    bare = [Fact(f.name, f.relation, f.prompt) for f in FACTS]
    found = wording_fidelity(Planted(subject), [*FACTS[:6], *bare[6:]], seed=0)
    assert (found["facts"], found["without_rewrites"]) == (6, 6)
    with pytest.raises(BadData, match="No fact has a rewrite"):
        wording_fidelity(Planted(subject), bare, seed=0)


def test_partners_are_of_the_right_relation_and_the_same_number():
    for number, partners in pair_wordings(FACTS, 3):
        own, related, unrelated, random = (partners[arm] for arm in ARMS)
        assert random == own and own[0] == number != related[0]
        relations = [FACTS[fact].relation for fact, _ in (own, related, unrelated)]
        assert relations[0] == relations[1] != relations[2]
        assert own[1] == related[1] == unrelated[1]
    assert pair_wordings(FACTS, 3) == pair_wordings(FACTS, 3) != pair_wordings(FACTS, 4)
