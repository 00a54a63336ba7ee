"""The finding on held-out examples: random heads, the same groups, together and alone."""

import numpy as np
import pytest

from caploc.components import Heads
from caploc.result import JointDrop
from caploc.search import column_mask
from caploc.validation import controls, describe_controls, held_out, joint_ratio

GROUPED = Heads((8, 8), (4, 1))


def margins(example):
    """Evenly spread between 0 and 1 over 60 examples."""
    return (example * 37 % 60 + 0.5) / 60


def additive(costs):
    """Right while the margin is larger than what the cut heads cost together."""
    return lambda mask, example: float(
        margins(example) > sum(c for h, c in costs.items() if mask[h])
    )


def test_heads_whose_losses_add_up_have_a_ratio_of_one(checking):
    told = joint_ratio(checking(additive({0: 0.2, 1: 0.3, 9: 0.1})).check, [0, 1, 9])
    assert told.joint_drop == pytest.approx(0.6, abs=0.02)
    assert told.sum_of_drops == pytest.approx(0.6, abs=0.05)
    assert told.ratio == pytest.approx(1, abs=0.06)
    assert told.low <= 1 <= told.high


def test_heads_that_do_the_same_work_have_a_ratio_below_one(checking):
    def chain(mask, example):
        return float(margins(example) > 0.4 * (mask[0] or mask[1]))

    told = joint_ratio(checking(chain).check, [0, 1])
    assert told.ratio == pytest.approx(0.5)
    assert told.high < 1


def test_a_score_that_is_all_lost_cannot_be_lost_twice(checking):
    told = joint_ratio(checking(additive({0: 0.9, 1: 0.9})).check, [0, 1])
    assert told.joint_drop == 1 and told.ratio < 0.6


def test_heads_that_stand_in_for_each_other_have_a_ratio_above_one(checking):
    def pair(mask, example):
        return float(margins(example) > 0.1 * (mask[0] or mask[1]) + 0.6 * (mask[0] and mask[1]))

    told = joint_ratio(checking(pair).check, [0, 1])
    assert told.ratio > 3 and told.low > 1


def test_heads_that_do_nothing_alone_have_a_joint_drop_and_no_ratio(checking):
    told = joint_ratio(
        checking(lambda mask, example: float(not (mask[0] and mask[1]))).check, [0, 1]
    )
    assert told == JointDrop(joint_drop=1.0, sum_of_drops=0.0)


def test_a_single_head_has_nothing_to_add_up(checking):
    assert joint_ratio(checking(additive({0: 0.5})).check, [0]) is None


def test_an_example_that_cannot_be_scored_is_left_out_of_all_sums(checking):
    plain = additive({0: 0.2, 1: 0.3})

    def outcome(mask, example):
        return None if example < 10 and mask[0] else plain(mask, example)

    known = checking(outcome).check
    told = joint_ratio(known, [0, 1])
    assert 0 < told.sum_of_drops < 1
    assert joint_ratio(checking(lambda mask, example: None).check, [0, 1]) is None


def test_the_interval_of_the_ratio_narrows_with_more_examples(checking):
    width = {}
    for count in (30, 480):
        told = joint_ratio(checking(additive({0: 0.2, 1: 0.3}), examples=count).check, [0, 1])
        width[count] = told.high - told.low
    assert width[480] < width[30] / 2


def test_random_controls_have_as_many_heads_in_each_layer_and_none_of_the_chosen(checking):
    made = checking(additive({0: 0.3, 9: 0.4}))
    chosen = column_mask(16, [0, 9])
    told = controls(made.check, chosen, chosen, 0.3)
    assert told.draws == len(told.scores) == 20
    assert set(told.scores) == {1.0} and told.mean == 1.0 and told.chosen == 0.3
    assert all(
        len([h for h in mask if h < 8]) == 1 and len(mask) == 2 for mask in made.engine.masks
    )
    assert not any({0, 9} & set(mask) for mask in made.engine.masks)
    assert told.same_groups is None


def test_controls_avoid_the_shortlist_where_they_can(checking):
    made = checking(additive({0: 0.3}))
    avoid = column_mask(16, [0, 1, 2, 3, 4, 5])
    controls(made.check, column_mask(16, [0]), avoid, 0.3)
    assert made.engine.masks <= {(6,), (7,)}


def test_no_control_is_drawn_twice(checking):
    made = checking(additive({0: 0.3}))
    told = controls(made.check, column_mask(16, [0]), column_mask(16, [0, 1, 2]), 0.3)
    assert made.engine.masks == {(head,) for head in range(3, 8)}  # the layer has no others
    assert told.draws == len(told.scores) == 5


def test_controls_of_the_same_groups_come_from_them(checking):
    made = checking(additive({0: 0.3, 1: 0.2}), grid=GROUPED)
    chosen = column_mask(16, [0, 9])
    told = controls(made.check, chosen, chosen, 0.5).same_groups
    assert told.heads == 1  # head 9 has no group
    assert told.draws == 3  # each of heads 1, 2, 3, once
    assert min(told.scores) == pytest.approx(0.8)
    assert told.deviations == pytest.approx((told.mean - 0.5) / told.sd)
    told = controls(made.check, chosen, chosen, 0.5, critical=[1, 0]).same_groups
    assert told.draws == 2 and min(told.scores) == pytest.approx(1.0)  # 1 breaks the task itself


def test_a_group_that_is_chosen_whole_has_no_control(checking):
    chosen = column_mask(16, [0, 1, 2, 3])
    made = checking(additive({0: 0.3}), grid=GROUPED)
    assert controls(made.check, chosen, chosen, 0.7).same_groups is None


def test_a_layer_that_is_one_group_gives_no_second_control(checking):
    chosen = column_mask(16, [0, 9])
    made = checking(additive({0: 0.3, 9: 0.2}), grid=Heads((8, 8), (8, 8)))
    told = controls(made.check, chosen, chosen, 0.5)
    assert told.draws and told.same_groups is None


def test_without_draws_or_heads_there_are_no_controls(checking):
    made = checking(additive({}), draws=0)
    chosen, none = column_mask(16, [0]), column_mask(16, [])
    assert controls(made.check, chosen, chosen, 1.0) is None
    assert controls(checking(additive({})).check, none, none, 1.0) is None


def test_a_model_whose_heads_are_all_chosen_has_no_controls(checking):
    every = np.ones(16, dtype=bool)
    assert controls(checking(additive({})).check, every, every, 1.0) is None


def test_the_distance_is_in_standard_deviations_of_the_controls():
    told = describe_controls([0.8, 0.9, 1.0, None], 0.5)
    assert told.mean == pytest.approx(0.9) and told.sd == pytest.approx(0.1)
    assert told.deviations == pytest.approx(4) and told.draws == 4


@pytest.mark.parametrize("scores", [[0.91] * 20, [0.3] * 3])
def test_controls_that_are_all_alike_give_no_distance(scores):
    """Their mean has a rounding error, which is no spread."""
    told = describe_controls(scores, 0.2)
    assert told.sd == 0 and told.deviations is None


@pytest.mark.parametrize("scores", [[], [None], [0.5], [None, 0.5]])
def test_too_few_controls_have_no_spread(scores):
    told = describe_controls(scores, 0.2)
    assert told.sd is None and told.deviations is None
    assert told.mean == (0.5 if 0.5 in scores else None)


def test_everything_is_measured_on_the_same_examples(checking, found):
    made = checking(additive({0: 0.2, 1: 0.3}), fresh=False)
    told, random = held_out(made.check, found([0, 1], {0: -0.2, 1: -0.3}), 0.1)
    assert told.fresh is False and told.examples == random.examples == 60
    assert told.intact == 1.0 and told.knocked_out == pytest.approx(0.5)
    assert told.change.verdict == "changed"
    assert told.together.ratio == pytest.approx(1, abs=0.06)


def test_without_draws_the_drop_is_still_measured(checking, found):
    told, random = held_out(checking(additive({0: 0.3}), draws=0).check, found([0]), 0.1)
    assert random is None and told.prediction is None
    assert told.knocked_out == pytest.approx(0.7)
