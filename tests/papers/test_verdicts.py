"""Each claim of CNL is judged by a rule over results: planted ones here."""

import pytest

from papers.cnl.tables import list_tables
from papers.cnl.verdicts import (
    Claim,
    judge_erasure,
    judge_facts,
    judge_sets,
    judge_tuning,
    universal_neurons,
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


def test_neurons_that_most_capabilities_have_are_told_and_twins_count_once():
    named = {"a": "L0N1", "a_twin": "L0N1", "b": "L0N1", "c": "L0N2"}
    tasks = [task_sets(n, [0.7], separate=True) for n in named]
    for task in tasks:
        task["neurons"] = [{"neuron": named[task["task"]]}]
    assert universal_neurons(tasks, KINDS) == {"L0N1": 2}
    tasks[2]["neurons"] = [{"neuron": "L0N3"}]  # now one capability of three, in two wordings
    assert universal_neurons(tasks, KINDS) == {}
    assert universal_neurons(tasks[:3], KINDS) == {}  # two capabilities have no majority to tell


def loss(arm, draw, metric, logprob):
    losses = {"metric": interval(metric), "logprob": interval(logprob)}
    return {"arm": arm, "draw": draw, "score": 0.5, **losses}


def erased(task, own, drawn, others):
    """Own loss, the draws' losses in layers and as active, and what others lose."""
    arms = [loss("located", 0, *own)]
    for arm, losses in drawn.items():
        arms += [loss(arm, n, 0.0, each) for n, each in enumerate(losses)]
    intact = {"score": 0.9, "stderr": 0.01}
    beside = [{"judged": n, "arms": [loss("located", 0, *each)]} for n, each in others.items()]
    own_task = {"judged": task, "examples": 5, "intact": intact, "arms": arms}
    return {"task": task, "neurons": 3, "own": own_task, "others": beside}


DRAWN = {"random in layers": [0.1, 0.2], "random as active": [0.2, 0.3]}
TWIN = {"a_twin": (0.6, 9.0)}  # of the same capability, so it may lose as much


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
    claim = judge_sets(sets(halves, separate, p), KINDS)
    assert claim.verdict == verdict
    assert claim.counts[2]["figures"].startswith("0.50; 0.25; p ")


@pytest.mark.parametrize(
    ("own", "drawn", "others", "verdict"),
    [
        ((0.5, 2.0), DRAWN, {"b": (0.1, 0.5)} | TWIN, "holds"),
        ((0.5, 2.0), DRAWN, {"b": (0.9, 2.5)} | TWIN, "holds in part"),  # everything breaks
        ((0.1, 2.0), DRAWN, {"b": (0.1, 0.5)} | TWIN, "holds in part"),  # the score hardly falls
        ((0.5, 0.25), DRAWN, {"b": (0.9, 2.5)}, "does not hold"),  # a draw as active costs more
    ],
)
def test_neurons_are_needed_beyond_every_draw_and_not_by_other_capabilities(
    own, drawn, others, verdict
):
    erasure = {"tasks": [erased("a", own, drawn, others)]}
    assert judge_erasure(erasure, KINDS).verdict == verdict


@pytest.mark.parametrize(
    ("by_b", "by_twin", "holds_for", "verdict"),
    [
        (1.5, 9.0, "2 of 2", "holds"),  # its twin's neurons may cost more
        (2.5, 0.1, "1 of 2", "holds in part"),  # another capability's cost a more than its own
    ],
)
def test_another_capabilitys_neurons_are_the_control_of_each_task(
    by_b, by_twin, holds_for, verdict
):
    tasks = [
        erased("a", (0.5, 2.0), DRAWN, {"b": (0.1, 0.5)}),
        erased("a_twin", (0.5, 9.5), DRAWN, {"a": (0.5, by_twin), "b": (0.1, 0.5)}),
        erased("b", (0.5, 3.0), DRAWN, {"a": (0.1, by_b)}),
    ]
    claim = judge_erasure({"tasks": tasks}, KINDS)
    (row,) = [each for each in claim.counts if "any other capability" in each["what"]]
    assert (row["holds for"], claim.verdict) == (holds_for, verdict)


def test_what_no_other_capability_has_is_judged_by_itself():
    erasure = {"tasks": [erased("a", (0.5, 2.0), DRAWN, {"b": (0.9, 2.5)} | TWIN)]}
    erasure["tasks"][0]["own"]["arms"].append(loss("no other's", 0, 0.4, 1.5))
    for each in erasure["tasks"][0]["others"]:
        each["arms"].append(loss("no other's", 0, 0.05, 0.1))
    claim = judge_erasure(erasure, KINDS)
    assert claim.verdict == "holds in part"
    last = claim.counts[-1]
    assert (last["holds for"], last["figures"]) == ("1 of 1", "others lose 0.05 of their score")
    results = {"main": sets([0.7], True), "erasure": erasure}
    results["main"]["tasks"][0]["neurons"].append({"neuron": "L1N2"})
    shown = told(results)[-1]
    assert shown.name == "own"
    (row,) = shown.frame.to_dict("records")
    assert (row["task"], row["neurons"]) == ("a", 1)  # L0N1 is of every task
    assert str(row["score, by its twin"]) == str(row["score, by other capabilities"]) == "0.050"


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
    results["erasure"] = {"tasks": [erased("a", (0.5, 2.0), DRAWN, {"b": (0.1, 0.5)})]}
    results["enhancement"] = tuned({"located": [0.5], "random": [0.1, 0.2]})
    first, *shown = told(results)
    assert first.frame["claim"].nunique() == 3 and len(shown) == 4
    assert str(shown[2].frame["nats lost by its twin"][0]) == NOTHING
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
        ((0.3, 0.1), (0.5, 0.3), "holds"),
        ((0.7, 0.1), (0.5, 0.3), "holds in part"),  # neurons are located alike
        ((0.7, 0.65), (0.5, 0.3), "holds"),  # as alike as those of other facts
        ((0.7, 0.1), (0.9, 0.3), "does not hold"),
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
    assert set(first.frame["claim"]) == {"single facts are not located"}
    assert list(shown.frame["located by"]) == ["knowledge neurons", "causal tracing (ROME)"]
    assert list(shown.frame["neurons or edges"].map(str)) == ["8.0", NOTHING]
