"""Sets that break one task and spare others, on planted worlds that share heads."""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from caploc.errors import BadOption
from caploc.recovery import Measurements
from caploc.search import METHODS, Problem, Settings
from caploc.search.plan import OtherTask, column_mask
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
    sides = [
        OtherTask(n, range(100), n + count if likelihood else n, twin=n in twins)
        for n in range(1, count)
    ]
    problem = Problem(
        HEADS,
        range(100),
        Settings(goal="specific", **{"budget": 16 * HEADS, "top": 3} | settings),
        likelihood=count if likelihood else None,
        sides=sides,
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


def halved(seed):
    """A task, and one to spare that needs one of its heads wholly and of one half its output."""
    random = np.random.default_rng(seed)
    own, half, whole, other = (int(column) for column in random.choice(HEADS, 4, replace=False))
    spare = np.zeros(HEADS)
    spare[half] = 0.5
    beside = replace(planted(half, whole, other, seed=200 + seed), spare=spare)
    return [planted(own, half, whole, seed=100 + seed), beside]


def within_price(worlds, sets, price=0.02):
    """The most that any of the sets that truly keep the price truly takes."""
    masks = [column_mask(HEADS, each) for each in ((), *sets)]
    task, beside = (np.array([world.accuracy(mask) for mask in masks]) for world in worlds)
    keeps = beside[0] - beside <= price
    return (task[0] - task[keeps]).max()


def compare_amounts(seed):
    """What is found with amounts, and without, in as many rows."""
    worlds, budget = halved(seed), 16 * HEADS
    plain = search(worlds, seed=seed)
    run = search(worlds, seed=seed, amounts=(0.25, 0.5, 0.75))
    assert max(run.rows, plain.rows) <= budget and run.found.chosen
    told = run.found.diagnostics
    assert all(0 < amount <= 1 for each in told["scaled"] for amount in each.values())
    assert "scaled" not in plain.found.diagnostics
    found = within_price(worlds, [*told["candidates"], *told["scaled"]])
    return found, within_price(worlds, plain.found.diagnostics["candidates"])


def test_half_of_a_head_is_taken_where_a_spared_task_needs_the_other_half():
    found, plain = compare_amounts(0)
    assert found > plain + 0.1


@pytest.mark.slow
def test_with_amounts_the_frontier_is_as_good_in_18_of_20_worlds():
    pairs = [compare_amounts(seed) for seed in range(20)]
    assert sum(found >= plain - 0.005 for found, plain in pairs) >= 18
    assert sum(found > plain + 0.05 for found, plain in pairs) >= 12


@pytest.mark.parametrize(
    "amounts, goal, said",
    [
        ((0.5,), "set", "--amount is for --goal specific; got --goal set."),
        ((0.5, 0.25), "specific", "got 0.5, 0.25."),
        ((0.5, 1.0), "specific", "between 0 and 1"),
        (tuple(n / 100 for n in range(1, 12)), "specific", "9 amounts at most; got 11."),
    ],
)
def test_amounts_that_mean_nothing_are_refused(amounts, goal, said):
    with pytest.raises(BadOption, match=said):
        Settings(goal=goal, amounts=amounts).check()
