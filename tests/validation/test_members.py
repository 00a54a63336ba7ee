"""What named heads do alone and within their set, on planted outcomes."""

import numpy as np
import pytest
from scipy import stats

from caploc.recovery import paired
from caploc.validation.members import confirm_members, effect_between, measure_members

FIRST, SECOND, IDLE = 6, 2, 9


def backed(mask, example):
    """Half of the answers need 6; the other half either 6 or 2. 9 does nothing."""
    if mask[FIRST] and mask[SECOND]:
        return 0.0
    return float(not mask[FIRST] or example % 2 == 1)


def test_a_backup_does_nothing_alone_and_half_within_the_set(checking):
    first, second = measure_members(checking(backed).check, [FIRST, SECOND])
    assert first.alone.effect == first.within.effect + 0.5 == pytest.approx(-0.5)
    assert second.alone.effect == 0.0 and second.within.effect == pytest.approx(-0.5)
    assert second.alone.low <= 0.0 <= second.alone.high and second.within.high < 0.0


def test_the_interval_is_the_paired_one_as_far_as_the_score_may_change(checking):
    """Without both nothing is right, without the first one half is: that half is all to lose."""
    check = checking(backed).check
    member = measure_members(check, [FIRST, SECOND])[1]
    with_both = np.zeros(len(check.examples))
    without = np.array([float(example % 2 == 1) for example in check.examples])
    expected = paired(with_both - without, binary=True)
    assert (member.within.effect, member.within.high) == (expected[0], expected[2])
    most = stats.binomtest(int(without.sum()), without.size).proportion_ci(method="wilson").high
    assert member.within.low == max(expected[1], -most) < -0.5


@pytest.mark.parametrize("right", [0.93, 0.7])
def test_where_all_is_lost_the_interval_holds_the_true_loss(right):
    random = np.random.default_rng(0)
    held = 0
    for _ in range(1000):
        before = (random.random(75) < right).astype(float)
        effect = effect_between(before, np.zeros(75))
        held += effect.low <= -right <= effect.high
    assert 0.93 < held / 1000 < 0.985


def test_a_single_heads_two_effects_are_one(checking):
    (member,) = measure_members(checking(backed).check, [FIRST])
    assert member.alone == member.within


def test_heads_that_add_nothing_are_dropped_and_backups_stay(checking):
    check = checking(backed).check
    assert confirm_members(check, [FIRST, IDLE, SECOND]) == [FIRST, SECOND]
    assert confirm_members(check, [IDLE]) == []
    assert confirm_members(check, []) == []


def test_two_that_each_break_everything_are_both_confirmed(checking):
    """Within the set neither adds anything: there is nothing left to lose."""

    def either(mask, _):
        return float(not (mask[FIRST] or mask[SECOND]))

    assert confirm_members(checking(either).check, [FIRST, IDLE, SECOND]) == [FIRST, SECOND]


def test_a_head_that_only_rescues_what_another_breaks_is_not_confirmed(checking):
    def rescued(mask, _):
        return float(not mask[FIRST] or mask[SECOND])

    assert confirm_members(checking(rescued).check, [SECOND, FIRST]) == [FIRST]


def test_two_that_cover_for_each_other_are_both_confirmed(checking):
    """Alone neither costs anything."""

    def both(mask, _):
        return float(not (mask[FIRST] and mask[SECOND]))

    assert confirm_members(checking(both).check, [FIRST, SECOND]) == [FIRST, SECOND]


def test_what_could_not_be_scored_is_nothing_known(checking):
    def unscored(mask, _):
        return float("nan") if mask.any() else 1.0

    check = checking(unscored).check
    (member,) = measure_members(check, [FIRST])
    nothing = {"effect": None, "low": None, "high": None}
    assert member.as_dict() == {"head": "L0H6", "alone": nothing, "within": nothing}
    assert measure_members(check, []) == []


def test_a_set_that_is_sure_is_kept_where_no_member_is(checking):
    """Each of three heads breaks three other answers of 27: too few alone, six or nine are sure."""

    def few_each(mask, example):
        broken = {0: FIRST, 1: SECOND, 2: 5}.get(example % 9)
        return float(broken is None or not mask[broken])

    check = checking(few_each, examples=27).check
    members = measure_members(check, [FIRST, SECOND, 5])
    assert not any(member.is_confirmed for member in members)
    kept = confirm_members(check, [FIRST, IDLE, SECOND, 5])
    assert len(kept) == 2 and set(kept) < {FIRST, SECOND, 5}
    assert confirm_members(check, [FIRST, IDLE]) == []
