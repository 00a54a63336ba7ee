"""Sets that break one task and spare others, on planted worlds that share heads."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from caploc.recovery import Measurements
from caploc.search import METHODS, Problem, Settings
from caploc.search.plan import OtherTask
from caploc.search.specific import GrownSet, frontier, narrow, weigh
from caploc.simulate import World

HEADS, SHARED, OWN = 64, (3, 40), (11, 25, 52)


def planted(*columns, seed):
    """A task that needs these heads alike, and hardly any luck."""
    world = World.planted(HEADS, 1, drop=0.2, seed=seed)
    shifts = np.zeros(HEADS)
    shifts[list(columns)] = world.shifts.max()
    return replace(world, shifts=shifts, noise=0.03)


WORLDS = [planted(*OWN, *SHARED, seed=1), planted(*SHARED, 8, seed=2)]


@dataclass
class Run:
    found: object
    rows: int


def search(worlds, *, twins=(), likelihood=True, **settings):
    count = len(worlds)
    beside = [
        OtherTask(n, range(100), n + count if likelihood else n, twin=n in twins)
        for n in range(1, count)
    ]
    problem = Problem(
        HEADS,
        range(100),
        Settings(goal="specific", **{"budget": 16 * HEADS, "top": 3} | settings),
        likelihood=count if likelihood else None,
        beside=beside,
    )
    asking, rows = METHODS["adaptive"].search(problem), 0
    plan = next(asking)
    while True:
        world = worlds[plan.task % count]
        ask = world.logprobs if plan.task >= count else world.outcomes
        outcome = ask(plan.masks[plan.mask], plan.example)
        rows += int(plan.masks[plan.mask].any(axis=1).sum())
        try:
            plan = asking.send(Measurements(plan.masks, plan.mask, plan.example, outcome))
        except StopIteration as end:
            return Run(end.value, rows)


@pytest.mark.parametrize("seed", range(4))
def test_heads_that_another_task_needs_are_left_out(seed):
    run = search(WORLDS, seed=seed)
    assert set(run.found.chosen) == set(OWN)
    assert run.rows <= 16 * HEADS
    assert run.found.diagnostics["candidates"][0] == sorted(OWN)


def test_with_nothing_in_common_the_most_damaging_set_is_found():
    alone = planted(8, 9, 10, seed=2)
    found = search([WORLDS[0], alone], top=5).found
    assert set(found.chosen) == {*OWN, *SHARED}


def test_a_twin_must_break_as_well():
    twin = planted(OWN[0], *SHARED, seed=3)
    found = search([*WORLDS, twin], twins=(2,), top=1).found
    assert found.chosen == [OWN[0]]


def test_outcomes_do_where_a_task_names_no_right_answers():
    found = search(WORLDS, likelihood=False, budget=100 * HEADS).found
    assert set(found.chosen) == set(OWN)


def test_when_every_head_is_shared_none_that_keeps_the_price_is_found():
    both = [planted(*SHARED, seed=1), planted(*SHARED, seed=2)]
    found = search(both).found
    assert not set(found.chosen) & set(SHARED)


def test_where_no_head_matters_none_is_found():
    idle = [planted(seed=1), planted(seed=2)]
    assert search(idle).found.chosen == []


def test_a_spared_task_that_the_model_cannot_do_has_nothing_to_lose():
    hopeless = replace(planted(*OWN, seed=2), mean=-50.0)
    assert set(search([WORLDS[0], hopeless], top=5).found.chosen) == {*OWN, *SHARED}


def test_a_pool_is_narrowed_to_the_best_within_each_limit():
    gain = np.array([0.5, 0.4, 0.3, 0.2, -0.1])
    lost = np.array([0.5, 0.0, 0.0, 0.0, 0.0])
    assert narrow(range(5), gain, lost, [0.01, np.inf], 3) == [1, 0, 2]


def test_evidence_of_both_kinds_is_weighed_by_its_precision():
    assert weigh([-0.1] * 20, []) == pytest.approx(-0.1)
    assert weigh([], [-1.0, 0.0] * 10) == pytest.approx(-0.5)
    assert -0.3 < weigh([-0.1, -0.1], [-1.0, 0.0] * 50) - -0.3 < 0.3
    assert weigh([], []) == 0.0


def test_sets_that_others_outdo_are_not_on_the_frontier():
    def made(column, damage, loss):
        return GrownSet((column,), 1, [[-damage] * 9, [-loss] * 9], [[], []])

    strong, gentle, worse = made(0, 0.5, 0.2), made(1, 0.2, 0.0), made(2, 0.1, 0.1)
    assert frontier([strong, gentle, worse]) == [strong, gentle]
