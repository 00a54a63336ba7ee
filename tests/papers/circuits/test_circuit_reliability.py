"""Reliability of circuits: its arms on the demo model, its ends, and what it leaves out."""

import pytest

from caploc.errors import BadData
from caploc.neurons.stats import plain_value
from papers.cnl.circuits import ARMS, CircuitLocator, circuit_reliability
from papers.cnl.facts import Fact, FactPrompt
from worlds.facts import demo_counterparts

pytestmark = pytest.mark.slow  # whole studies


def fact(relation, subject, answer):
    return Fact(subject, relation, FactPrompt(f"{relation} {subject} is ", subject, answer))


FACTS = (
    fact("capital of", "Peru", "Lima"),
    fact("capital of", "Italy", "Rome"),
    fact("symbol of", "silver", "Ag"),
    fact("symbol of", "copper", "Cu"),
)
WRONG = fact("capital of", "Spain", "Berlin")
LONG = fact("symbol of", "phosphorus", "P")  # no other element has a name as long


@pytest.fixture(scope="module")
def locator(demo):
    return CircuitLocator(demo, demo_counterparts, share=0.1, steps=4)


@pytest.fixture(scope="module")
def result(locator):
    return circuit_reliability(locator, (*FACTS, WRONG, LONG), draws=6, seed=3)


def test_facts_that_cannot_be_studied_are_left_out_and_named(result):
    names = [each["fact"] for each in result["runs"] if each["arm"] == "random"]
    assert names == [name for name in ("Peru", "Italy", "silver", "copper") for _ in range(6)]
    assert (result["unknown"], result["unpaired"]) == (["Spain"], ["phosphorus"])


def test_the_ends_are_the_ends(result):
    arms = {arm["name"]: arm for arm in result["arms"]}
    assert tuple(arms) == ARMS
    assert arms["full"]["hits"][1] == 1 and arms["full"]["rank"] == 1
    assert arms["full"]["faithfulness"].mean == 1 and arms["empty"]["faithfulness"].mean == 0
    assert all(arm["facts"] == 4 for arm in arms.values())


def test_a_circuit_of_a_tenth_of_the_edges_keeps_the_fact_and_its_complement_does_not(result):
    arms = {arm["name"]: arm for arm in result["arms"]}
    assert arms["located"]["faithfulness"].mean > 0.6
    assert arms["complement"]["faithfulness"].mean < 0.2
    assert arms["random"]["faithfulness"].mean < 0.2


def test_a_circuit_of_all_edges_is_the_model_and_has_no_gain(demo):
    locator = CircuitLocator(demo, demo_counterparts, share=1.0, steps=1)
    result = circuit_reliability(locator, FACTS[:1], draws=5)
    arms = {arm["name"]: arm for arm in result["arms"]}
    assert arms["located"]["faithfulness"].mean == pytest.approx(1)
    assert arms["complement"]["faithfulness"].mean == pytest.approx(0, abs=1e-9)
    assert result["share_of_edges"] == 1
    # alone, a fact has no other beside it: missing, not 0
    missing = plain_value(result)["arms"][ARMS.index("same relation")]
    assert missing["facts"] == 0 and missing["rank"] is None
    assert missing["logit_difference"]["mean"] is None and missing["hits"]["1"] is None


def test_without_a_counterpart_there_is_no_circuit(locator):
    assert locator.locate(LONG.prompt) is None
    with pytest.raises(BadData, match="None of the 2 facts .* 1 have no counterpart"):
        circuit_reliability(locator, (WRONG, LONG))
