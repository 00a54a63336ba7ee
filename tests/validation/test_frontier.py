"""Sets judged on fresh examples of the task to break and of those to spare."""

import pytest

from caploc.declaration import ModelOptions, Study, split_examples
from caploc.errors import BadOption
from caploc.options import Settings
from caploc.result import Effect, TaskEffect
from caploc.validation.frontier import (
    ONE_WORDING,
    Promise,
    frontier_note,
    judge_frontier,
)

OWN, SHARED, IDLE = 6, 2, 9


def needs(*columns):
    """Every answer needs all of these heads."""
    return lambda mask, example: float(not mask[list(columns)].any())


def hurt(column, one_in):
    """One answer in so many needs the head."""
    return lambda mask, example: float(not (mask[column] and example % one_in == 0))


def with_twin(one):
    """The set, as if a twin had been judged too."""
    twin = TaskEffect(task="twin", effect=Effect(effect=-0.5, low=-0.6, high=-0.4))
    return one.model_copy(update={"twins": [twin]})


def promised(checking, spared, price=0.02):
    return Promise(checking(needs(OWN, SHARED)).check, [], [checking(spared).check], price)


def test_the_first_set_that_breaks_the_task_and_spares_the_other_is_named(checking):
    promise = promised(checking, needs(SHARED), price=0.2)
    frontier, named = judge_frontier(promise, [[SHARED], [IDLE], [OWN, IDLE], [OWN]])
    assert named == [OWN, IDLE]
    assert [one.within for one in frontier.sets] == [False, True, True, True]
    assert frontier.sets[0].spared[0].effect.effect == -1.0
    assert frontier_note(frontier, named) == [ONE_WORDING]
    two = frontier.model_copy(update={"sets": [with_twin(each) for each in frontier.sets]})
    assert frontier_note(two, named) == []


def test_heads_that_add_nothing_leave_a_set_and_the_rest_is_judged(checking):
    promise = promised(checking, needs(SHARED), price=0.2)
    frontier, named = judge_frontier(promise, [[OWN, IDLE]], 1)
    whole, rest = frontier.sets
    assert named == [OWN] and rest.heads == [whole.heads[0]]
    assert rest.within and rest.breaks and rest.level == whole.level


def test_a_set_is_not_named_where_its_needed_heads_cost_too_much_alone(checking):
    """The idle head's absence rescues what the other task loses."""
    rescued = lambda mask, example: float(not mask[OWN] or mask[IDLE])  # noqa: E731
    promise = promised(checking, rescued, price=0.2)
    frontier, named = judge_frontier(promise, [[OWN, IDLE], [SHARED]], 2)
    assert [one.within for one in frontier.sets] == [True, True, False]
    assert frontier.sets[2].heads == ["L0H6"] and named == [SHARED]
    assert judge_frontier(promise, [[OWN, IDLE]], 1)[1] == []


def test_sets_that_break_the_task_and_others_are_told_and_not_named(checking):
    promise = promised(checking, needs(OWN, SHARED), price=0.02)
    frontier, named = judge_frontier(promise, [[IDLE], [OWN, SHARED], [SHARED]])
    assert not named and [one.breaks for one in frontier.sets] == [False, True, True]


def test_a_set_that_leaves_a_twin_as_it_was_is_not_named(checking):
    twin = checking(needs(SHARED)).check
    promise = Promise(checking(needs(OWN)).check, [twin], [checking(needs(IDLE)).check], 0.2)
    frontier, named = judge_frontier(promise, [[OWN], [OWN, SHARED]])
    assert named == [OWN, SHARED] and all(one.within for one in frontier.sets)


def test_later_sets_are_judged_more_strictly(checking):
    frontier, _ = judge_frontier(promised(checking, needs(SHARED)), [[OWN], [IDLE], [SHARED]])
    assert [one.level for one in frontier.sets] == [0.025, 0.0125, 0.00625]


def test_a_set_is_named_at_a_price_that_it_keeps(checking):
    spared = hurt(OWN, 10)  # one answer of ten is lost
    for price, within in ((0.3, True), (0.05, False)):
        frontier, named = judge_frontier(promised(checking, spared, price), [[OWN], [SHARED]])
        assert frontier.sets[0].within is within and (named == [OWN]) is within


def test_what_could_not_be_scored_keeps_no_price(checking):
    unknown = lambda mask, example: float("nan")  # noqa: E731
    frontier, named = judge_frontier(promised(checking, unknown), [[OWN]])
    assert not frontier.sets[0].within and not named


def test_a_loss_that_may_exceed_the_price_is_not_within(checking):
    promise = promised(checking, hurt(OWN, 20), price=0.05)  # loses just the price, on average
    frontier, named = judge_frontier(promise, [[OWN]])
    assert not frontier.sets[0].within and not named
    assert frontier_note(frontier, named) == []


@pytest.mark.parametrize(
    ("spare", "twins", "said"),
    [
        (("a",), (), "--spare a is the task"),
        (("b",), ("b",), "--spare b is the task to break, or its twin"),
        (("b",), ("a",), "--twin a is the task itself"),
    ],
)
def test_what_contradicts_itself_is_refused(spare, twins, said):
    with pytest.raises(BadOption, match=said):
        Study(ModelOptions("m"), "a", settings=Settings(goal="specific"), spare=spare, twins=twins)


@pytest.mark.parametrize("size", [1, 2, 30, 1000])
def test_no_example_is_searched_and_judged_where_there_are_two(size):
    searched, judged = split_examples(size, 0)
    assert searched and judged
    assert size == 1 or not set(searched) & set(judged)
