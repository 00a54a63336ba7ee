import numpy as np
from driven import SEARCHED, breaking, drive, inside, problem

from caploc.interactions import standing_in
from worlds.simulate import Interaction, World


def stand_ins(world, found, critical=(), rows=400):
    return drive(
        standing_in(problem(world.heads, recall=1.0), found, critical, rows), inside(world)
    )


def backed_up():
    """Head 5 does the work, 20 steps in for it; 9 works too and has no backup."""
    shifts = np.zeros(30)
    shifts[[5, 9]] = 1.0
    return World(shifts, 2.5, 3, interactions=(Interaction((5, 20), 4.0),))


def test_a_head_that_steps_in_is_found_once_the_found_heads_are_gone():
    run = stand_ins(backed_up(), [5, 9])
    assert run.found[0] == 20
    base = [set(np.flatnonzero(plan.masks[0])) for plan in run.of("found heads")]
    assert base == [{5}, {5, 9}]
    for plan in run.of("screen"):
        assert plan.masks[:, [5, 9]].all()


def test_hardly_anything_seems_to_step_in_where_nothing_is_backed_up():
    """Two standard errors are beyond doubt for one head in forty: for 29 of them, 0.7 a screen."""
    counts = [len(stand_ins(World(np.zeros(30), 1.5, seed), [4]).found) for seed in range(6)]
    assert sum(counts) < 6 * 29 / 40 + 3 * np.sqrt(6 * 29 / 40)


def test_the_screen_costs_what_it_may():
    run = stand_ins(backed_up(), [5, 9], rows=333)
    assert sum(len(plan.mask) for plan in run.of("screen")) == 333
    asked = {example for plan in run.plans for example in plan.example.tolist()}
    assert asked <= set(SEARCHED)


def test_a_found_head_that_leaves_nothing_right_is_not_left_out():
    """With head 7 gone nothing works: what steps in for it cannot be seen."""
    run = stand_ins(breaking(30, [7]), [7])
    assert run.found == [] and run.of("screen") == []
    both = stand_ins(World(np.where(np.arange(30) == 7, 9.0, backed_up().shifts), 2.5, 3), [7, 5])
    assert not any(plan.masks[:, 7].any() for plan in both.of("screen"))


def test_critical_heads_are_kept_out_of_the_screen():
    run = stand_ins(backed_up(), [5], critical=[20])
    assert not any(plan.masks[:, 20].any() for plan in run.of("screen"))
    assert 20 not in run.found
