import numpy as np
import pytest
from driven import drive, inside, problem

from caploc.search import METHODS
from caploc.search.greedy import rounds
from caploc.simulate import World


def greedy(heads, answer, **given):
    return drive(METHODS["greedy"].search(problem(heads, **given)), answer)


def backup(plan):
    """Heads 0 and 1 do the same work: alone neither matters much, together they do."""
    cut = plan.masks[plan.mask]
    alone = 0.2 * cut[:, 0] + 0.1 * cut[:, 2]
    return 1.0 - alone - 0.7 * (cut[:, 0] & cut[:, 1])


def test_greedy_conditions_on_what_it_found():
    run = greedy(6, backup, examples=range(3), top=3)
    assert run.found.chosen == [0, 1, 2]
    # One-shot, which sees heads alone, would have taken head 2 before head 1.
    assert run.found.seen.mask_means()[:3].tolist() == pytest.approx([0.8, 1.0, 0.9])


def test_each_round_keeps_what_was_found_out_and_tries_every_other_head():
    run = greedy(6, backup, examples=range(3), top=3)
    found = [[], [0], [0, 1]]
    for plan, out in zip(run.plans[1:], found, strict=True):
        assert plan.masks[:, out].all() and len(plan.masks) == 6 - len(out)
        others = [column for column in range(6) if column not in out]
        assert (plan.masks[:, others] == np.eye(len(others), dtype=bool)).all()


def test_effects_and_the_order_of_the_rest_are_those_of_heads_alone():
    found = greedy(6, backup, examples=range(3), top=2).found
    assert found.estimate.effect.tolist() == pytest.approx([-0.2, 0, -0.1, 0, 0, 0])
    assert found.ranking == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("heads", "top"), [(12, 3), (5, 5), (4, 9), (1, 1)])
def test_masks_of_all_rounds_are_counted_beforehand(heads, top):
    needed = World(np.full(heads, 0.5), 2.0, 0)
    run = greedy(heads, inside(needed), examples=range(4), top=top)
    assert run.rows == 4 * rounds(problem(heads, top=top))
    assert sum(range(heads, heads - min(heads, top), -1)) == rounds(problem(heads, top=top))


def test_greedy_names_no_head_that_nothing_needs():
    needless = World(np.zeros(6), 9.0, 0)
    assert greedy(6, inside(needless), examples=range(5), top=3).found.chosen == []


def test_greedy_stops_naming_where_a_further_head_lowers_nothing():
    """Head 4 alone does all there is to do."""

    def answer(plan):
        return 1.0 - plan.masks[plan.mask][:, 4]

    assert greedy(6, answer, examples=range(5), top=3).found.chosen == [4]


def test_a_mask_that_could_not_be_scored_is_no_candidate():
    def answer(plan):
        cut = plan.masks[plan.mask]
        return np.where(cut[:, 0], np.nan, 1.0 - 0.1 * cut[:, 3])

    assert greedy(5, answer, examples=range(5), top=1).found.chosen == [3]
