"""Tables of CNL from planted results."""

import numpy as np
import pytest

from papers.cnl.erasing import STRUCK, WHOLE, universal_neurons
from papers.cnl.tables import list_tables
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


def sets(halves, separate):
    cohesion = {"same_kind": 0.5, "across_kinds": 0.25, "p": 0.01}
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


def erased(own, others, draws=()):
    """What tasks a and b lose by their own sets, and how much more than by others'."""
    more = {other: interval(own - lost) for other, lost in others.items()}
    nats = {"own": interval(own), "draws": list(draws), "more_than": more}
    return [{"task": name, "examples": 5, "lost": {"nats": nats}} for name in "ab"]


def erasure(whole, struck):
    stages = {WHOLE: {"count": 9, "tasks": whole}, STRUCK: {"count": 7, "tasks": struck}}
    return {
        "universal": ["L0N1"],
        "taken_by_universal": {"a": interval(0.4), "b": interval(0.1)},
        "stages": stages,
    }


def told(numbers):
    return list_tables({"preset": {"kinds": KINDS}} | numbers)


def tuned(gains):
    """One seed's result for task a, by arm and draws."""
    arms = []
    for arm, draws in gains.items():
        for draw, gain in enumerate(draws):
            changes = [
                {"task": "a", "measure": m, "before": 0.4, "after": 0.4 + gain,
                 "change": interval(gain)}
                for m in ("metric", "gold log-probability")
            ]  # fmt: skip
            fit = {"rate": 0.003, "at_edge": arm == "located"}
            arms.append({"arm": arm, "draw": draw, "neurons": 9, "fit": fit, "changes": changes})
    return {"0": {"a": {"arms": arms}}}


def test_only_what_was_measured_is_shown_and_every_table_is_whole():
    results = {"main": sets([0.7], True)}
    shown = told(results)
    assert [each.name for each in shown] == ["sets", "shared"]
    cells = shown[1].frame.map(str).values.tolist()
    assert cells == [["a", "0.50", "0.25"], ["b", "0.25", NOTHING]]
    alone = sets([0.7], None) | {"overlaps": None, "cohesion": None}
    assert [each.name for each in told({"main": alone})] == ["sets"]
    beyond = erased(2.0, {"c": 1.0})
    results["erasure"] = erasure(beyond, erased(2.0, {"c": 1.0}, [0.1, 0.3]))
    results["enhancement"] = tuned({"located": [0.5], "random": [0.1, 0.2]})
    erased_table, tuned_table = told(results)[2:]
    assert str(erased_table.frame["random in layers"][0]) == NOTHING
    rows = tuned_table.tidy()[["tuned", "draw", "at the grid's edge", "nats gained"]]
    assert rows.values.tolist() == [
        ["located", 0, "yes", 0.5], ["random", 0, "no", 0.1], ["random", 1, "no", 0.2]
    ]  # fmt: skip


def located_facts(own, related, *, measure="largest"):
    """What a way to locate facts found: how wordings agree, and with other facts."""
    arms = {"rewrites": own, "same_relation": related, "unrelated": 0.1, "random": 0.0}
    return {
        "facts": 20, "peaks": None, "size": 8.0 if measure == "largest" else None,
        "arms": {arm: {measure: interval(mean)} for arm, mean in arms.items()},
        "margin": {measure: interval(own - related)},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("own", "related", "located"),
    [
        (0.3, 0.1, "no"),
        (0.8, 0.1, "yes"),
        (0.65, 0.1, "open"),  # the interval holds .6
        (0.8, 0.75, "open"),  # not surely more than other facts
        (0.8, 0.95, "no"),  # other facts agree better
    ],
)
def test_facts_are_located_where_wordings_agree_and_other_facts_do_not(own, related, located):
    methods = {
        "neurons": located_facts(own, related),
        "tracing": located_facts(own, related, measure="agreement"),
    }
    (shown,) = told({"fidelity": {"words/facts": {"methods": methods}}})
    assert list(shown.frame["located by"]) == ["knowledge neurons", "causal tracing (ROME)"]
    assert list(shown.frame["neurons or edges"].map(str)) == ["8.0", NOTHING]
    assert list(shown.frame["located"]) == [located] * 2


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
    ("fact", "capability", "located"),
    [
        (0.3, 0.8, ["no", "yes"]),
        (0.85, 0.8, ["open", "yes"]),
        (None, 0.65, [NOTHING, "open"]),
    ],
)
def test_facts_and_capabilities_are_held_to_one_rule(fact, capability, located):
    (shown,) = told({"yardstick": {"gradient": [compared(fact, capability, 0.1)]}})
    (row,) = shown.frame.to_dict("records")
    assert [row["fact located"], row["capability located"]] == located
