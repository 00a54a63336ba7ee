"""Universal heads leave every task's heads, and only they do."""

import pytest
from labs import planted, written

from caploc.heads import Head
from caploc.reproduce.preset import Preset
from caploc.reproduce.selection import (
    TRIED,
    idle,
    knowledge_heads,
    named_heads,
    universal_candidates,
    universal_heads,
)


def names(heads):
    return [str(head) for head in heads]


def shared(**fields):
    """L0H0 is found for both families; what it costs each is planted."""
    rankings = {"Add": ["L0H0", "L1H0", "L2H0"], "Sort": ["L3H0", "L0H0", "L4H0"]}
    return planted(rankings=rankings, **fields)


def test_a_head_that_every_family_needs_is_taken_out_and_the_next_follows():
    lab = shared(drops={label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")})
    model = lab.preset.models[0]
    assert names(universal_heads(lab, model)) == ["L0H0"]
    assert names(named_heads(lab, model, lab.preset.benchmarks[0])) == ["L1H0", "L2H0"]
    assert names(named_heads(lab, model, lab.preset.benchmarks[1])) == ["L3H0", "L4H0"]
    assert names(named_heads(lab, model, lab.preset.benchmarks[1], count=1)) == ["L3H0"]


def test_a_head_that_few_need_stays():
    lab = shared(drops={"Add": {"L0H0": 0.5}})
    model = lab.preset.models[0]
    assert names(universal_candidates(lab, model)) == ["L0H0"]
    assert universal_heads(lab, model) == []
    assert names(named_heads(lab, model, lab.preset.benchmarks[0])) == ["L0H0", "L1H0"]


def test_a_loss_that_may_be_chance_makes_no_head_universal():
    drops = {label: {"L0H0": 0.1} for label in ("Add", "Sort", "Gen")}
    unsure, sure = shared(drops=drops, stderr=0.05), shared(drops=drops, stderr=0.001)
    assert universal_heads(unsure, unsure.preset.models[0]) == []
    assert names(universal_heads(sure, sure.preset.models[0])) == ["L0H0"]


def test_a_head_of_twins_is_no_candidate():
    """Two benchmarks of one family need the same heads because they are the same task."""
    content = written()
    content["benchmark"][1] |= {"family": "math"}
    lab = shared(
        drops={label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")},
        preset=Preset.model_validate(content),
    )
    assert universal_candidates(lab, lab.preset.models[0]) == []


def test_a_head_beyond_the_first_is_no_candidate():
    lab = planted(rankings={"Add": ["L1H0", "L2H0", "L0H0"], "Sort": ["L3H0", "L4H0", "L0H0"]})
    assert universal_candidates(lab, lab.preset.models[0]) == []


def test_candidates_of_most_families_come_first():
    content = written(top=3)
    content["benchmark"].append(
        {"label": "Say", "task": "demo/rhyming", "group": "words", "localize": True}
    )
    rankings = {
        "Add": ["L0H1", "L0H0", "L1H0"],
        "Sort": ["L0H1", "L0H0", "L2H0"],
        "Say": ["L0H0", "L3H0", "L4H0"],
    }
    lab = planted(rankings=rankings, preset=Preset.model_validate(content))
    assert names(universal_candidates(lab, lab.preset.models[0])) == ["L0H0", "L0H1"]


def test_candidates_are_tried_on_few_examples_and_once():
    lab = shared(drops={label: {"L0H0": 0.5} for label in ("Add", "Sort", "Gen")})
    model = lab.preset.models[0]
    for _ in range(3):
        universal_heads(lab, model)
    assert lab.limits == [TRIED] * 3  # one candidate, three benchmarks


@pytest.mark.parametrize(("chosen", "expected"), [(99, []), (2, []), (1, ["L2H0"]), (0, ["L1H0"])])
def test_heads_that_the_search_would_not_name_are_idle(chosen, expected):
    lab = planted(chosen=chosen)
    found = idle(lab, lab.preset.models[0], lab.preset.benchmarks[0], "CSS")
    assert set(map(Head.parse, expected)) <= found
    assert bool(found) == bool(expected)


def test_knowledge_heads_are_those_of_two_subjects():
    content = written()
    for benchmark in content["benchmark"][:2]:
        benchmark |= {"group": "knowledge"}
    rankings = {"Add": ["L1H0", "L0H5"], "Sort": ["L0H5", "L2H0"]}
    lab = planted(rankings=rankings, preset=Preset.model_validate(content))
    assert names(knowledge_heads(lab, lab.preset.models[0])) == ["L0H5"]
