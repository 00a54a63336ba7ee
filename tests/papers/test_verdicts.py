"""Each claim of CNL is judged by a rule over results: planted ones here."""

import numpy as np
import pytest

from papers.cnl.erasing import STRUCK, WHOLE, universal_neurons
from papers.cnl.tables import list_tables
from papers.cnl.verdicts import (
    Claim,
    judge_erasure,
    judge_facts,
    judge_reliability,
    judge_sets,
    judge_tuning,
    judge_yardstick,
)
from papers.exhibits import NOTHING

KINDS = {"a": "one", "a_twin": "one", "b": "two", "c": "three"}


def interval(mean, half=0.1):
    return {"mean": mean, "low": mean - half, "high": mean + half}


def task_sets(name, halves, *, separate):
    rates = {"largest": interval(0.5)}
    return {
        "task": name, "examples": 10, "neurons": [{"neuron": "L0N1"}], "halves": halves,
        "by_chance": 0.01, "separate": separate, "across": interval(0.1),
        "within": {"rates": rates},
    }  # fmt: skip


def sets(halves, separate, p=0.01):
    cohesion = {"same_kind": 0.5, "across_kinds": 0.25, "p": p}
    overlaps = {"datasets": ["a", "b"], "rates": {"largest": [[0.5, 0.25], [0.25, None]]}}
    tasks = [task_sets(n, halves, separate=separate) for n in "abc"]
    return {"tasks": tasks, "cohesion": cohesion, "overlaps": overlaps}


def test_neurons_that_most_capabilities_have_are_universal_and_twins_count_once():
    named = {"a": [1, 0], "a_twin": [1, 0], "b": [1, 0], "c": [0, 1]}
    found = {task: np.array(each, dtype=bool) for task, each in named.items()}
    assert universal_neurons(found, KINDS).tolist() == [True, False]
    found["b"] = np.array([0, 0], dtype=bool)  # now one capability of three, in two wordings
    assert not universal_neurons(found, KINDS).any()
    del found["c"]  # two capabilities have no majority to tell
    assert not universal_neurons(found, KINDS).any()


def erased(own, others, draws=(), score=0.5):
    """What tasks a and b lose by their own sets, and how much more than by others'."""
    task = {"score": interval(score), "nats": interval(own), "draws": list(draws), "examples": 5}
    more = {other: interval(own - lost) for other, lost in others.items()}
    return [task | {"task": name, "more_than": more} for name in "ab"]


def erasure(whole, struck):
    stages = {WHOLE: {"count": 9, "tasks": whole}, STRUCK: {"count": 7, "tasks": struck}}
    return {
        "universal": ["L0N1"],
        "taken_by_universal": {"a": interval(0.4), "b": interval(0.1)},
        "stages": stages,
    }


def test_a_claim_holds_if_all_of_its_parts_do():
    assert Claim("", parts=[True, True]).verdict == "holds"
    assert Claim("", parts=[True, False]).verdict == "holds in part"
    assert Claim("", parts=[False, False]).verdict == "does not hold"


def told(numbers):
    return list_tables({"preset": {"kinds": KINDS}} | numbers)


@pytest.mark.parametrize(
    ("halves", "separate", "p", "verdict"),
    [
        ([0.7, 0.8], True, 0.01, "holds"),
        ([0.7, 0.8], True, 0.06, "holds in part"),
        ([0.7, 0.8], False, 0.01, "holds in part"),
        ([0.5, 0.6], True, 0.01, "holds in part"),
        ([0.5, 0.6], None, 0.06, "does not hold"),
    ],
)
def test_sets_are_stable_by_halves_and_specific_by_other_tasks_and_twins(
    halves, separate, p, verdict
):
    claim = judge_sets(sets(halves, separate, p))
    assert claim.verdict == verdict
    assert claim.counts[2]["figures"].startswith("0.50; 0.25; p ")


BEYOND, LESS = erased(2.0, {"c": 1.0}), erased(2.0, {"c": 3.0})


@pytest.mark.parametrize(
    ("whole", "struck", "verdict"),
    [
        (BEYOND, erased(2.0, {"c": 1.0}, [0.1, 0.3]), "holds"),
        (LESS, erased(2.0, {"c": 1.0}, [0.1, 0.3]), "holds in part"),  # another's cost more
        (BEYOND, erased(2.0, {"c": 1.95}, [0.1, 0.3]), "holds in part"),  # not surely less
        (erased(2.0, {"c": 3.0}, score=0.1), erased(2.0, {"c": 3.0}, [2.5], 0.1), "does not hold"),
    ],
)
def test_neurons_are_needed_beyond_other_capabilities_of_equal_size_and_draws(
    whole, struck, verdict
):
    claim = judge_erasure(erasure(whole, struck))
    assert claim.verdict == verdict
    assert claim.counts[-1]["holds for"] == "1 of 2"  # what universal neurons alone take
    assert claim.counts[0]["figures"].endswith("whole sets, 9 neurons each")


def tuned(gains):
    """One seed's result for task a, by arm and draws."""
    arms = []
    for arm, draws in gains.items():
        for gain in draws:
            changes = [
                {"task": "a", "measure": m, "before": 0.4, "after": 0.4 + gain,
                 "change": interval(gain)}
                for m in ("metric", "gold log-probability")
            ]  # fmt: skip
            arms.append({"arm": arm, "fit": {"parameters": 1000}, "changes": changes})
    return {"0": {"a": {"arms": arms}}}


@pytest.mark.parametrize(
    ("rival", "drawn", "verdict"),
    [(0.1, 0.2, "holds"), (0.9, 0.2, "holds in part"), (0.9, 0.6, "does not hold")],
)
def test_tuning_is_judged_against_draws_and_against_other_arms(rival, drawn, verdict):
    gains = {"located": [0.5], "random": [0.1, drawn], "lora": [rival]}
    assert judge_tuning(tuned(gains)).verdict == verdict


def test_only_what_was_measured_is_judged_and_every_table_is_whole():
    results = {"main": sets([0.7], True)}
    first, *shown = told(results)
    assert set(first.frame["claim"]) == {"neurons of a capability are stable and specific"}
    assert [each.name for each in shown] == ["sets", "shared"]
    cells = shown[1].frame.map(str).values.tolist()
    assert cells == [["a", "0.50", "0.25"], ["b", "0.25", NOTHING]]
    alone = sets([0.7], None) | {"overlaps": None, "cohesion": None}
    assert [each.name for each in told({"main": alone})] == ["verdicts", "sets"]
    results["erasure"] = erasure(BEYOND, erased(2.0, {"c": 1.0}, [0.1, 0.3]))
    results["enhancement"] = tuned({"located": [0.5], "random": [0.1, 0.2]})
    first, *shown = told(results)
    assert first.frame["claim"].nunique() == 3 and len(shown) == 4
    assert str(shown[2].frame["random in layers"][0]) == NOTHING
    assert shown[2].chart is not None


def located_facts(own, related, *, measure="largest"):
    """What a way to locate facts found: how wordings agree, and with other facts."""
    arms = {"rewrites": own, "same_relation": related, "unrelated": 0.1, "random": 0.0}
    return {
        "facts": 20, "peaks": None, "size": 8.0 if measure == "largest" else None,
        "arms": {arm: {measure: interval(mean)} for arm, mean in arms.items()},
        "margin": {measure: interval(own - related)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("neurons", "tracing", "verdict"),
    [
        ((0.3, 0.1), (0.4, 0.3), "holds"),
        ((0.8, 0.1), (0.4, 0.3), "holds in part"),  # neurons are located alike
        ((0.65, 0.1), (0.4, 0.3), "holds in part"),  # open: the interval holds .6
        ((0.8, 0.95), (0.4, 0.3), "holds"),  # other facts agree better
        ((0.8, 0.1), (0.9, 0.3), "does not hold"),
    ],
)
def test_facts_are_located_where_wordings_agree_and_other_facts_do_not(neurons, tracing, verdict):
    methods = {
        "neurons": located_facts(*neurons),
        "tracing": located_facts(*tracing, measure="agreement"),
    }
    results = {"fidelity": {"words/facts": {"methods": methods}}}
    assert judge_facts(results["fidelity"]).verdict == verdict
    first, shown = told(results)
    assert set(first.frame["claim"]) == {"single facts are not located by the methods for them"}
    assert list(shown.frame["located by"]) == ["knowledge neurons", "causal tracing (ROME)"]
    assert list(shown.frame["neurons or edges"].map(str)) == ["8.0", NOTHING]


def compared(fact, capability, apart):
    """A row of the yardstick; without a fact, of a task."""
    row = {"capability": interval(capability), "apart": interval(apart)}
    row |= {"of": "facts", "words": "others", "prompts": 1, "demonstrations": "none"}
    nothing = {"mean": None, "low": None, "high": None}
    fact_margin = nothing if fact is None else interval(fact - capability)
    fact = nothing if fact is None else interval(fact)
    more = {"fact_margin": fact_margin, "capability_margin": interval(capability - apart)}
    return row | more | {"fact": fact, "rule": "6 sigma", "size": 5.0}


@pytest.mark.parametrize(
    ("fact", "capability", "verdict"),
    [
        (0.3, 0.8, "holds"),
        (0.85, 0.8, "holds in part"),  # open: not surely more than other facts
        (0.9, 0.3, "does not hold"),  # the other way round
        (0.3, 0.65, "holds in part"),  # open: the interval holds .6
        (None, 0.8, "holds"),
    ],
)
def test_facts_and_capabilities_are_judged_by_one_rule(fact, capability, verdict):
    rows = {"gradient": [compared(fact, capability, 0.1)]}
    assert judge_yardstick(rows).verdict == verdict
    first, shown = told({"yardstick": rows})
    assert shown.name == "yardstick" and first.frame["claim"].nunique() == 1


@pytest.mark.parametrize(("unrelated", "verdict"), [(-0.9, "holds"), (-0.1, "does not hold")])
def test_what_works_on_its_own_fact_alone_speaks_for_facts_being_located(unrelated, verdict):
    places = {
        "fact": {"located": interval(-0.9), "other_fact": interval(-0.2)},
        "unrelated": {"located": interval(unrelated), "other_fact": interval(-0.2)},
    }
    found = {"words/facts": {"methods": {"neurons": {"suppress": places}}}}
    assert judge_reliability(found).verdict == verdict
