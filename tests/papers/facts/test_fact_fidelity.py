"""Fidelity against locators of which it is known what they are faithful to."""

import json
from dataclasses import dataclass

import numpy as np
import pytest

from caploc.errors import BadData
from caploc.neurons.model import NeuronGrid
from caploc.neurons.sets import rank_correlation
from caploc.neurons.stats import plain_value
from papers.cnl.facts import Fact
from papers.cnl.fidelity import ARMS, compare_located, pair_wordings, peak, wording_fidelity
from worlds.facts import demo_facts

pytestmark = pytest.mark.slow  # whole studies

FACTS = demo_facts("quiz", 12)
SIZE, LAYERS = 80, 7


@dataclass
class Planted:
    """Locates what it is made with: two of 80 units in two layers, or effects of seven layers."""

    locate: object
    units: str = "units"
    grid: NeuronGrid = NeuronGrid((40, 40))
    name = "planted"


def units(about):
    """Two units by what `about` says of a prompt."""

    def locate(prompt):
        random = np.random.default_rng(about(prompt) % 2**32)
        return np.isin(np.arange(SIZE), random.permutation(SIZE)[:2])

    return Planted(locate)


def layers(where):
    """A profile that peaks in the layer that `where` says; None where it says none."""

    def locate(prompt):
        layer = where(prompt)
        return None if layer is None else -np.abs(np.arange(LAYERS) - layer + 0.25)

    return Planted(locate, "layers", NeuronGrid((1,) * LAYERS))


def subject(prompt):
    return int.from_bytes(prompt.subject.encode(), "big")


def relation(prompt):
    return int.from_bytes(prompt.text[:6].encode(), "big")


def length(prompt):
    return len(prompt.subject) % LAYERS


def found_by(locator, facts=FACTS):
    """Each measure's mean by arm, and all that is told."""
    found = wording_fidelity(locator, facts, seed=0)
    arms = found["arms"].items()
    return {arm: {name: each.mean for name, each in told.items()} for arm, told in arms}, found


def test_a_faithful_locator_has_fidelity_and_margin_of_one():
    means, found = found_by(units(subject))
    assert means["rewrites"]["iou"] == means["rewrites"]["reference"] == 1.0
    assert means["same_relation"]["iou"] < 0.2 and means["unrelated"]["iou"] < 0.2
    margin = found["margin"]["iou"]
    assert margin.mean == pytest.approx(1 - means["same_relation"]["iou"])
    assert margin.mean > 0.8 and margin.low > 0


def test_profiles_of_the_subject_agree_fully():
    means, found = found_by(layers(length))
    same, other = means["rewrites"], means["same_relation"]
    assert (same["agreement"], same["distance"]) == (1, 0)
    assert same["spearman"] == pytest.approx(1)
    margin = {name: each.mean for name, each in found["margin"].items()}
    assert margin["agreement"] == pytest.approx(1 - other["agreement"]) and margin["agreement"] > 0
    assert margin["distance"] == -other["distance"] < 0
    peaks = np.bincount([length(fact.prompt) for fact in FACTS], minlength=LAYERS).tolist()
    assert found["size"] is None and found["peaks"] == peaks


@pytest.mark.parametrize(
    ("locator", "measure"), [(units(relation), "iou"), (layers(lambda _: 2), "agreement")]
)
def test_a_locator_of_the_relation_has_fidelity_and_no_margin(locator, measure):
    means, found = found_by(locator)
    assert means["rewrites"][measure] == means["same_relation"][measure] == 1.0
    assert found["margin"][measure].mean == 0.0
    assert (means["unrelated"][measure] < 0.2) == (measure == "iou")  # there one layer is for all


def test_random_sets_and_layers_agree_by_chance():
    many = demo_facts("quiz")
    means, found = found_by(units(subject), many)
    # 2 of 80 units, drawn within their layer of 40
    assert found["arms"]["random"]["reference"].low < 2 / SIZE + 0.01
    assert means["random"]["reference"] == pytest.approx(2 / SIZE, abs=0.02)
    means, _ = found_by(layers(lambda _: 2), many)
    assert means["random"]["agreement"] == pytest.approx(1 / 7, abs=0.05)
    far = (2 + 1 + 0 + 1 + 2 + 3 + 4) / 7
    assert means["random"]["distance"] == pytest.approx(far, abs=0.2)


@pytest.mark.parametrize(
    "locator", [Planted(lambda _: np.zeros(SIZE, dtype=bool)), layers(lambda _: None)]
)
def test_what_is_not_located_is_missing_and_counted(locator):
    means, found = found_by(locator)
    assert found["missing"] == found["prompts"] == 12 * 6
    assert found["peaks"] is None
    assert all(np.isnan(mean) for mean in means["rewrites"].values())
    assert all(each.items == 0 for each in found["arms"]["rewrites"].values())
    json.dumps(plain_value(found), allow_nan=False)


def test_prompts_answered_wrongly_are_left_out_and_counted():
    wrong = {FACTS[0].prompt.text, FACTS[1].rewrites[0].text}
    _, found = found_by(layers(lambda prompt: None if prompt.text in wrong else 1))
    assert (found["facts"], found["prompts"], found["missing"]) == (12, 72, 2)
    assert found["arms"]["rewrites"]["agreement"].items == 11 == sum(found["peaks"])


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


def test_facts_without_rewrites_are_counted_and_none_at_all_is_refused():
    bare = [Fact(f.name, f.relation, f.prompt) for f in FACTS]
    found = wording_fidelity(units(subject), [*FACTS[:6], *bare[6:]], seed=0)
    assert (found["facts"], found["without_rewrites"]) == (6, 6)
    with pytest.raises(BadData, match="No fact has a rewrite"):
        wording_fidelity(units(subject), bare, seed=0)


def test_partners_are_of_the_right_relation_and_the_same_number():
    for number, partners in pair_wordings(FACTS, 3):
        own, related, unrelated, random = (partners[arm] for arm in ARMS)
        assert random == own and own[0] == number != related[0]
        relations = [FACTS[fact].relation for fact, _ in (own, related, unrelated)]
        assert relations[0] == relations[1] != relations[2]
        assert own[1] == related[1] == unrelated[1]
    assert pair_wordings(FACTS, 3) == pair_wordings(FACTS, 3) != pair_wordings(FACTS, 4)
