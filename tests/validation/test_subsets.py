"""A set beside its parts, on planted outcomes: a part is named only where it does more for sure."""

import numpy as np
import pytest

from caploc.components import Heads
from caploc.result import TriedSet
from caploc.validation.members import LEVEL, judge, picked, subsets_to_try

GRID = Heads((8, 8))
BREAKER, RESCUER, OTHER = 6, 2, 9
SEARCHED = [BREAKER, RESCUER, OTHER]


def rescued(mask, example):
    """Head 6 breaks every answer that was right (57 of 60) unless 2 is gone too."""
    return float(example % 20 != 3 and (not mask[BREAKER] or mask[RESCUER]))


def alone(mask, example):
    """Head 6 breaks half of the answers, 9 a further quarter; 2 is idle."""
    return float(not (mask[BREAKER] and example % 4 < 2) and not (mask[OTHER] and example % 4 == 2))


def by_heads(told):
    return {tuple(row.heads): row for row in told.tried}


def test_parts_are_beginnings_single_heads_and_all_but_each_the_smallest_first():
    assert subsets_to_try([4, 1, 7]) == [(4, 1, 7), (4,), (1,), (7,), (4, 1), (1, 7), (4, 7)]
    assert subsets_to_try([4, 1]) == [(4, 1), (4,), (1,)]
    for size in range(2, 8):
        every = subsets_to_try(range(size))
        assert len(every) == len(set(every)) <= 3 * size + 1
        assert every[0] == tuple(range(size)) and all(len(each) < size for each in every[1:])


@pytest.mark.parametrize("order", [SEARCHED, [RESCUER, OTHER, BREAKER]])
def test_a_head_that_does_more_without_its_rescuer_replaces_the_set(checking, order):
    found = judge(checking(rescued).check, order)
    assert found.named == [BREAKER]
    told = found.subsets
    assert told.found == [str(GRID.components[column]) for column in order]
    assert told.named == told.picked == ["L0H6"]
    assert told.p < LEVEL and told.fresh is True and told.examples == 60
    assert len(told.tried) == 7
    tried = by_heads(told)
    assert tried[("L0H6",)].drop == pytest.approx(0.95)
    assert tried[tuple(told.found)] == TriedSet(heads=told.found, drop=0, stderr=0)
    assert 0.02 < tried[("L0H6",)].stderr < 0.04
    assert told.note.startswith("Knocking out all 3 heads found (")
    assert "leaves 0.90 of 0.90; L0H6 alone leaves 0.00, so it is named instead" in told.note


def test_what_replaces_the_set_was_picked_on_other_examples_than_it_is_judged_on(checking):
    found = judge(checking(rescued).check, SEARCHED)
    assert found.examples == list(range(1, 60, 2))

    def there(mask, example):
        return 1.0 if example % 2 else rescued(mask, example)

    def elsewhere(mask, example):
        return rescued(mask, example) if example % 2 else 1.0

    for outcome in (there, elsewhere):
        kept = judge(checking(outcome).check, SEARCHED)
        assert kept.named == SEARCHED and kept.examples == []
    assert judge(checking(there).check, SEARCHED).subsets.picked == ["L0H6"]
    assert judge(checking(elsewhere).check, SEARCHED).subsets.picked is None


def test_a_set_that_does_more_than_its_parts_is_named_whole(checking):
    found = judge(checking(alone).check, SEARCHED)
    assert found.named == SEARCHED and found.examples == []
    assert found.subsets.found == found.subsets.named == ["L0H6", "L0H2", "L1H1"]
    assert found.subsets.note == (
        "No part of all 3 heads found (L0H6, L0H2, L1H1) does more than all of them beyond doubt."
    )
    tried = by_heads(found.subsets)
    assert tried[("L0H6", "L1H1")].drop == tried[("L0H6", "L0H2", "L1H1")].drop == 0.75


def test_a_part_that_does_as_much_does_not_replace_the_set(checking):
    """An idle head in the set may back up the others: only what does more for sure replaces it."""
    found = judge(checking(lambda mask, example: float(not mask[BREAKER])).check, SEARCHED)
    assert found.named == SEARCHED and found.subsets.picked is None


def test_a_part_that_does_a_little_more_by_chance_does_not_replace_the_set(checking):
    """Of three more answers lost without head 2, two are among the 30 that judge."""

    def little(mask, example):
        more = not mask[RESCUER] and example in (8, 11, 31)
        return float(not mask[BREAKER] or not (example % 4 == 1 or more))

    found = judge(checking(little).check, SEARCHED)
    assert found.subsets.picked == ["L0H6"] and LEVEL < found.subsets.p < 0.2
    assert found.named == SEARCHED


def test_two_heads_replace_three_where_the_third_rescues(checking):
    def pair(mask, example):
        both = mask[BREAKER] and mask[OTHER]
        return float(not (both or (mask[BREAKER] and example % 3)) or mask[RESCUER])

    found = judge(checking(pair).check, SEARCHED)
    assert found.named == [BREAKER, OTHER]
    assert "L0H6 L1H1 without the others leave 0.00, so they are named" in found.subsets.note


def test_a_part_that_takes_nothing_from_the_intact_model_does_not_replace_the_set(checking):
    """Two of the heads raise the score together; less of a rise is no damage."""

    def raising(mask, example):
        return float(example % 3 == 0 or (mask[BREAKER] and mask[RESCUER]))

    found = judge(checking(raising).check, SEARCHED)
    assert found.subsets.p < LEVEL and found.named == SEARCHED


def test_measures_are_compared_too(checking):
    def logprob(mask, example):
        lost = 4.0 * (mask[BREAKER] and not mask[RESCUER]) + 0.5 * mask[OTHER]
        return -1.0 - 0.1 * (example % 7) - lost * (1 + 0.1 * (example % 5))

    found = judge(checking(logprob).check, SEARCHED)
    assert found.named == [BREAKER, OTHER] and found.subsets.p < 1e-6
    assert by_heads(found.subsets)[("L0H6", "L1H1")].drop == pytest.approx(4.5 * 1.2)


def test_one_head_costs_nothing_and_sets_are_asked_once(checking):
    built = checking(rescued)
    assert judge(built.check, [BREAKER]) is judge(built.check, []) is None
    assert built.engine.masks == set()
    judge(built.check, SEARCHED)
    assert built.check.meter.cost.rows == 8 * 60  # intact and seven sets
    judge(built.check, SEARCHED)
    assert built.check.meter.cost.rows == 8 * 60


def test_examples_that_the_search_saw_are_said_to_be(checking):
    for outcome in (rescued, alone):
        found = judge(checking(outcome, fresh=False).check, SEARCHED)
        assert found.subsets.fresh is False
        assert found.subsets.note.endswith("too few others are left.")


def test_answers_that_cannot_be_scored_are_left_out(checking):
    def holed(mask, example):
        return None if mask[BREAKER] and example % 3 == 0 else rescued(mask, example)

    found = judge(checking(holed).check, SEARCHED)
    assert found.named == [BREAKER]
    assert by_heads(found.subsets)[("L0H2",)].drop == 0
    nothing = judge(checking(lambda mask, example: None).check, SEARCHED)
    assert nothing.named == SEARCHED
    assert nothing.subsets.tried[0] == TriedSet(heads=["L0H6", "L0H2", "L1H1"])


def test_parts_that_are_alike_hardly_ever_replace_a_set():
    """Under luck alone at most one in twenty is replaced, though the best of seven is picked."""
    random = np.random.default_rng(0)
    replaced = 0
    for _ in range(400):
        outcomes = (random.random((7, 100)) < 0.5).astype(float)
        pick = picked(np.ones(100), outcomes)
        replaced += pick is not None and pick.replaces
    assert 5 <= replaced <= 400 * LEVEL + 3 * (400 * LEVEL) ** 0.5


def test_the_fewest_heads_are_picked_of_equals():
    outcomes = np.array([[1, 1, 1, 1], [0, 1, 0, 1], [0, 1, 0, 1], [0, 0, 1, 0]], dtype=float)
    pick = picked(np.ones(4), outcomes)
    assert pick.place == 1 and pick.left == (1, 1, 1) and not pick.replaces
