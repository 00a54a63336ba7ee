import json

import numpy as np
import pytest
from concluded import looked
from driven import ELSEWHERE, FRESH, breaking, drive, inside, problem

from caploc import designs
from caploc.search import METHODS
from caploc.search.state import SearchState
from caploc.search.summary import (
    incomplete_set,
    tell_universal,
    ties,
    unknown_elsewhere,
    write_notes,
)
from worlds.simulate import World


def found(world, *others, **given):
    given = {"top": 3, "elsewhere": [ELSEWHERE for _ in others]} | given
    search = METHODS["adaptive"].search(problem(world.heads, **given))
    return drive(search, inside(world, *others)).found


def state(**known):
    asked = problem(9, elsewhere=known.pop("elsewhere", ()))
    return SearchState(asked, designs.generator(0), {}, **known)


PLANTED = World.planted(24, 3, drop=0.4, seed=1)


def test_a_clear_result_on_enough_fresh_examples_needs_no_note():
    concluded = looked(checked=60)
    assert write_notes(state(), concluded, concluded.named) == []


def test_where_nothing_is_named_the_reader_learns_what_might_help():
    said = found(World(np.zeros(24), 1.5, 0), budget=500)
    assert said.notes[0] == (
        f"No head is needed beyond doubt (false discovery rate 5%) after "
        f"{said.diagnostics['rows']:,} rows: either nothing localizes here, or each head does "
        "little, which --goal set, --outcome logprob or a larger --budget may show."
    )


def test_fewer_heads_than_asked_for_are_owned_up_to():
    said = found(World.planted(24, 1, drop=0.4, seed=1), budget=1000)
    assert len(said.chosen) == 1
    assert said.notes[0].startswith(
        "Up to 3 heads may be named, and 1 of the first 3 is needed beyond doubt"
    )


def test_a_recall_short_of_what_was_wanted_is_said_with_what_more_rows_would_give():
    world = World(np.where(np.arange(24) < 6, 1.2, 0.0), 2.5, 3)
    said = found(world, budget=1800, recall=1.0)
    told = said.diagnostics
    assert len(said.chosen) == 3 and told["expected_recall"] < 1
    assert said.notes[0] == (
        f"The search ended at an expected recall of {told['expected_recall']:.0%}; twice "
        f"the rows would give about {told['forecast']['2']:.0%}."
    )


def test_heads_that_no_budget_would_tell_apart_are_said_to_be_tied():
    shifts = np.where(np.isin(np.arange(40), [3, 8, 20, 31]), 2.0, 0.0)
    concluded = looked(world=World(shifts, 2.5, 0), rows=6000, top=2, checked=0)
    assert ties(concluded).startswith(f"{len(concluded.tied)} heads at the border of the top 2")
    assert ties(looked()) == ""


def test_universal_heads_are_named():
    assert tell_universal({}) == []
    told = tell_universal({"L0H4": "words/copy", "L1H1": "words/upper"})
    assert told[0] == (
        "L0H4 breaks words/copy as well, and is left out: it takes half or more of up to 12 right "
        "answers there."
    )
    assert told[1].startswith("L1H1 breaks words/upper as well")


def test_without_another_task_the_reader_is_told_how_to_know_what_else_breaks():
    assert "2 heads break this task alone" in unknown_elsewhere(state(critical=[1, 2]))
    assert unknown_elsewhere(state(critical=[1, 2], elsewhere=[range(5)])) == ""
    assert unknown_elsewhere(state()) == ""


def test_a_set_that_is_not_full_is_said_to_be_so():
    concluded = looked()
    assert incomplete_set(concluded, [1, 2, 3, 4]) == ""
    wanted = "A set of up to 4 heads was sought, and the search ended with 2: with them gone"
    assert incomplete_set(concluded, [1, 2]).startswith(wanted)
    assert "the search ended with one: with it gone" in incomplete_set(concluded, [1])
    assert incomplete_set(concluded, []).startswith("No set of heads lowers the score")


def test_a_check_on_few_examples_or_on_used_ones_is_said_to_be_so():
    few = looked(checked=20)
    (said,) = write_notes(state(), few, few.named)
    assert said == "The shortlist was checked on few examples (20); its intervals are wide."
    used = found(PLANTED, fresh=(), budget=1000)
    assert "found on, and its effects may be overstated" in used.notes[-1]
    assert not used.diagnostics["fresh"] and found(PLANTED).diagnostics["fresh"]


def test_a_specific_set_is_not_told_that_no_single_head_is_sure():
    nothing = looked(checked=20)
    asked = SearchState(problem(9, goal="specific"), designs.generator(0), {})
    assert write_notes(asked, nothing, [1]) == []


@pytest.mark.parametrize("goal", ["heads", "set"])
def test_the_figures_can_be_written_to_a_file_and_add_up(goal):
    for world in (PLANTED, breaking(24, [4, 5]), World(np.zeros(24), 20.0, 0)):
        said = found(world, breaking(24, [5]), goal=goal, budget=600)
        told = json.loads(json.dumps(said.diagnostics, allow_nan=False))
        assert told["goal"] == goal and told["budget"] == 600 >= told["rows"] > 0
        assert told["stopped_by"] in ("recall", "budget")
        assert 0 <= told["expected_recall"] <= 1 and 0 < told["rate"] < 1
        assert told["checked_on"] <= len(FRESH) and told["scale"] > 0
        assert set(said.chosen) <= set(told["shortlist"])


def test_the_search_says_whether_it_stopped_because_it_knew_enough():
    assert found(PLANTED).diagnostics["stopped_by"] == "recall"
    assert found(World(np.zeros(24), 1.5, 0), budget=400).diagnostics["stopped_by"] == "budget"


def test_the_signal_stands_out_of_the_noise_where_heads_matter():
    loud = found(PLANTED, budget=1000, recall=1.0).diagnostics["signal_to_noise"]
    quiet = found(World(np.zeros(24), 1.5, 0), budget=400).diagnostics["signal_to_noise"]
    assert loud > 5 > 1.5 > quiet
