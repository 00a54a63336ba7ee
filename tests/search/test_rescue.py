"""What a search for rescuers finds on planted outcomes: one head breaks, another one mends."""

import numpy as np
import pytest
from driven import SEARCHED, drive, inside, problem

from caploc.interactions import BREAKS, FEW, MOST, TRIED, search_rescuers
from caploc.recovery.estimate import survived
from worlds.simulate import Interaction, World

HEADS = 30
BREAKER, RESCUER, HALF = 7, 3, 12


def rescuable():
    """Head 7 breaks nearly all; with 3 gone too it does nothing, with 12 half as much."""
    shifts = np.zeros(HEADS)
    shifts[[BREAKER, 20]] = 6.0, 1.4
    saved = Interaction((BREAKER, RESCUER), -6.0), Interaction((BREAKER, HALF), -4.0)
    return World(shifts, 4.0, 3, interactions=saved)


def asked(world, suspects, rows=None, **given):
    return drive(search_rescuers(problem(world.heads), suspects, rows), inside(world, **given))


def outcomes(world, columns, examples):
    masks = np.zeros((len(examples), world.heads), dtype=bool)
    masks[:, list(columns)] = True
    return world.outcomes(masks, np.array(examples))


def test_the_world_holds_the_rescue_that_it_should():
    world = rescuable()
    assert world.damage_of([BREAKER]) > 0.7
    assert world.damage_of([RESCUER]) == world.damage_of([BREAKER, RESCUER]) == 0


@pytest.mark.parametrize("ask", [World.outcomes, World.logprobs])
def test_the_head_whose_absence_mends_most_comes_first(ask):
    (found,) = asked(rescuable(), [BREAKER, 20], ask=ask).found
    assert found.breaker == BREAKER and found.rescuers[0] == RESCUER
    assert HALF in found.rescuers and len(found.rescuers) <= MOST
    assert 20 not in found.rescuers


def test_only_examples_that_the_head_alone_breaks_are_asked_about():
    world = rescuable()
    run = asked(world, [BREAKER])
    (found,), (pairs,) = run.found, run.of("pairs that may rescue")
    assert len(found.examples) == FEW and set(pairs.example.tolist()) == set(found.examples)
    assert set(found.examples) <= set(SEARCHED)
    assert (outcomes(world, [], found.examples) == 1).all()
    assert (outcomes(world, [BREAKER], found.examples) == 0).all()
    assert len(pairs.mask) == FEW * (HEADS - 1) and pairs.masks[:, BREAKER].all()


def test_a_head_that_takes_little_is_not_asked_about():
    world = rescuable()
    run = asked(world, [20])
    (alone,) = run.of("heads alone")
    assert len(alone.mask) == TRIED
    intact = dict.fromkeys(range(200), 1.0)
    assert 0 < (~survived(run.answers(alone), intact)).mean() < BREAKS
    assert run.found == [] and run.of("pairs that may rescue") == []


def test_where_nothing_rescues_nothing_is_handed_on():
    shifts = np.zeros(HEADS)
    shifts[BREAKER] = 9.0
    (found,) = asked(World(shifts, 4.0, 3), [BREAKER]).found
    assert found.rescuers == () and found.examples


def test_no_suspects_cost_nothing():
    run = asked(rescuable(), [])
    assert run.found == [] and run.rows == 0


@pytest.mark.parametrize(("rows", "few"), [(28, [0, 0]), (29, [1, 0]), (70, [1, 1]), (116, [2, 2])])
def test_a_budget_is_for_the_heads_that_break_most(rows, few):
    shifts = np.zeros(HEADS)
    shifts[[5, BREAKER]] = 3.0, 9.0
    run = asked(World(shifts, 4.0, 3), [5, BREAKER], rows)
    assert [each.breaker for each in run.found] == [BREAKER, 5]
    assert [len(each.examples) for each in run.found] == few
    assert sum(len(plan.mask) for plan in run.of("pairs that may rescue")) <= rows
