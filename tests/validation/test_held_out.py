"""The finding on held-out examples, and random heads."""

import numpy as np
import pytest

from caploc.search import column_mask
from caploc.validation import controls, held_out


def margins(example):
    """Evenly spread between 0 and 1 over 60 examples."""
    return (example * 37 % 60 + 0.5) / 60


def additive(costs):
    """Right while the margin is larger than what the cut heads cost together."""
    return lambda mask, example: float(
        margins(example) > sum(c for h, c in costs.items() if mask[h])
    )


def test_random_controls_have_as_many_heads_in_each_layer_and_none_of_the_chosen(checking):
    made = checking(additive({0: 0.3, 9: 0.4}))
    chosen = column_mask(16, [0, 9])
    told = controls(made.check, chosen, chosen, 0.3)
    assert len(told.scores) == 20
    assert set(told.scores) == {1.0} and told.mean == 1.0 and told.chosen == 0.3
    assert all(
        len([h for h in mask if h < 8]) == 1 and len(mask) == 2 for mask in made.engine.masks
    )
    assert not any({0, 9} & set(mask) for mask in made.engine.masks)


def test_controls_avoid_the_shortlist_where_they_can(checking):
    made = checking(additive({0: 0.3}))
    avoid = column_mask(16, [0, 1, 2, 3, 4, 5])
    controls(made.check, column_mask(16, [0]), avoid, 0.3)
    assert made.engine.masks <= {(6,), (7,)}


def test_no_control_is_drawn_twice(checking):
    made = checking(additive({0: 0.3}))
    told = controls(made.check, column_mask(16, [0]), column_mask(16, [0, 1, 2]), 0.3)
    assert made.engine.masks == {(head,) for head in range(3, 8)}  # the layer has no others
    assert len(told.scores) == 5


def test_without_draws_or_heads_there_are_no_controls(checking):
    made = checking(additive({}), draws=0)
    chosen, none = column_mask(16, [0]), column_mask(16, [])
    assert controls(made.check, chosen, chosen, 1.0) is None
    assert controls(checking(additive({})).check, none, none, 1.0) is None


def test_a_model_whose_heads_are_all_chosen_has_no_controls(checking):
    every = np.ones(16, dtype=bool)
    assert controls(checking(additive({})).check, every, every, 1.0) is None


def test_everything_is_measured_on_the_same_examples(checking, found):
    made = checking(additive({0: 0.2, 1: 0.3}), fresh=False)
    told, random = held_out(made.check, found([0, 1]))
    assert told.fresh is False and told.examples == random.examples == 60
    assert told.intact == 1.0 and told.knocked_out == pytest.approx(0.5)
    assert told.change.verdict == "changed"


def test_without_draws_the_drop_is_still_measured(checking, found):
    told, random = held_out(checking(additive({0: 0.3}), draws=0).check, found([0]))
    assert random is None
    assert told.knocked_out == pytest.approx(0.7)
