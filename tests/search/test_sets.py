from functools import cache

import numpy as np
import pytest
from driven import ELSEWHERE, FRESH, breaking, drive, inside, problem

from caploc import designs
from caploc.search import METHODS
from caploc.search.sets import AT_ONCE, EXCHANGING, POOL, exchanged, most_damaging
from caploc.search.state import SearchState
from worlds.simulate import Interaction, World

HEADS = 40


def searched(world, *others, ask=World.outcomes, **given):
    given = {"goal": "set", "top": 3, "elsewhere": [ELSEWHERE for _ in others]} | given
    return drive(
        METHODS["adaptive"].search(problem(world.heads, **given)),
        inside(world, *others, ask=ask),
    )


def backed_up(seed):
    """Head `a` is needed, unless `b` steps in; `c` and `d` matter a little less, each alone."""
    a, b, c, d = np.random.default_rng(seed).choice(HEADS, 4, replace=False).tolist()
    shifts = np.zeros(HEADS)
    shifts[a], shifts[[c, d]] = 1.2, 1.0
    return World(shifts, 2.5, seed, interactions=(Interaction((a, b), 4.0),)), (a, b, c, d)


@cache
def backed_up_run(seed, goal="set"):
    return searched(backed_up(seed)[0], seed=seed, goal=goal)


@pytest.mark.parametrize("seed", range(3))
def test_a_silent_backup_joins_the_set_though_it_does_nothing_alone(seed):
    world, (a, b, *_) = backed_up(seed)
    assert world.damage_of([b]) == pytest.approx(0)
    chosen = backed_up_run(seed).found.chosen
    assert len(chosen) == 3 and {a, b} <= set(chosen)
    assert world.damage_of(chosen) > world.damage_of(world.best_set(3)) - 0.03


def test_a_silent_backup_is_not_named_as_a_head_that_matters_alone():
    # Its interval alone leaves out 0 by luck once in twenty.
    named = [
        backed_up(seed)[1][1] in backed_up_run(seed, "heads").found.chosen for seed in range(3)
    ]
    assert sum(named) <= 1


def test_where_heads_do_not_interact_the_set_is_that_of_the_strongest():
    world = World.planted(HEADS, 3, drop=0.3, seed=2)
    found = searched(world).found
    assert set(found.chosen) == set(world.planted_heads)
    assert found.ranking[:3] == found.chosen
    assert found.diagnostics["goal"] == "set" and found.diagnostics["tied"] == []


def test_after_the_first_screen_the_heads_found_are_gone_in_every_mask():
    run = backed_up_run(0)
    (first,) = run.of("heads found so far")
    assert first.masks.sum() == AT_ONCE
    base = first.masks[0]
    rest = [plan for plan in run.after(first) if plan.what == "screen"]
    assert rest and all(plan.masks[:, base].all() for plan in rest)
    # Only examples that are still right without them are asked.
    right = [example for example, outcome in run.answers(first).by_example().items() if outcome]
    assert {e for plan in rest for e in plan.example.tolist()} <= set(right)


def test_the_set_and_the_strongest_alone_are_compared_on_fresh_examples():
    for seed in range(3):
        run, (a, b, *_) = backed_up_run(seed), backed_up(seed)[1]
        (compared,) = run.of("whole sets")
        assert len(compared.masks) in (1, 2, 3)  # fewer, if two ways lead to the same set
        assert {a, b} <= set(np.flatnonzero(compared.masks[0]))
        assert (compared.masks.sum(axis=1) == 3).all()
        assert set(compared.example.tolist()) <= set(FRESH)
        each = compared.example.reshape(len(compared.masks), -1)
        assert (each == each[0]).all()
        lowest = int(np.argmin(run.answers(compared).mask_means()))
        assert set(np.flatnonzero(compared.masks[lowest])) == set(run.found.chosen)


def test_random_sets_of_what_was_found_are_tried_before_the_comparison():
    run, (a, b, *_) = backed_up_run(0), backed_up(0)[1]
    (tried,) = run.of("sets of a pool")
    assert (tried.masks.sum(axis=1) == 3).all() and len(tried.masks) == len(tried.mask)
    pool = np.flatnonzero(tried.masks.any(axis=0))
    assert {a, b} <= set(pool) and len(pool) == POOL * 3
    assert np.ptp(tried.masks.sum(axis=0)[pool]) <= 1  # every head of the pool as often
    assert len(tried.mask) <= EXCHANGING * run.found.diagnostics["budget"]
    (compared,) = run.of("whole sets")
    assert any(plan is compared for plan in run.after(tried))


def test_of_a_pool_the_heads_that_do_most_beside_the_others_are_kept():
    """A backup counts here, since the head that it steps in for is often gone too."""
    world, (a, b, c, d) = backed_up(0)
    given = problem(HEADS, goal="set", top=4, budget=2000)
    examples = np.array(given.examples)
    outcomes = world.outcomes(np.zeros((len(examples), HEADS), dtype=bool), examples)
    intact = dict(zip(given.examples, outcomes.tolist(), strict=True))
    state = SearchState(given, designs.generator(0), intact)
    idle = [column for column in range(HEADS) if column not in (a, b, c, d)][:4]
    run = drive(exchanged(state, [*idle, d, b, a, c], 4), inside(world))
    assert set(run.found) == {a, b, c, d}
    assert run.rows == EXCHANGING * 2000 == state.spent


def test_a_pool_that_is_no_larger_than_the_set_is_the_set():
    given = problem(HEADS, goal="set", top=3, budget=2000)
    state = SearchState(given, designs.generator(0), dict.fromkeys(given.examples, 1.0))
    run = drive(exchanged(state, [5, 1, 7], 3), inside(World(np.zeros(HEADS), 3.0, 0)))
    assert run.found == [5, 1, 7] and run.plans == []


def test_every_head_of_the_set_is_measured_alone():
    run, (_, b, *_) = backed_up_run(0), backed_up(0)[1]
    (alone,) = run.of("shortlist alone")
    assert [row.nonzero()[0].tolist() for row in alone.masks] == [[c] for c in run.found.chosen]
    assert run.found.estimate.effect[b] == pytest.approx(0, abs=0.1)


def test_nothing_is_named_where_no_set_does_anything():
    found = searched(World(np.zeros(HEADS), 1.5, 0)).found
    assert found.chosen == []
    assert found.notes[0].startswith("No set of heads lowers the score of fresh examples")


def test_a_set_with_nothing_left_to_break_is_smaller_than_asked_for():
    """One head takes all there is: no other can take more."""
    world = breaking(HEADS, [7])
    found = searched(world, top=4).found
    assert found.chosen[:1] == [7] and found.critical == [7]


def test_universal_heads_are_no_part_of_the_set():
    world = World(
        np.where(np.arange(HEADS) == 7, 9.0, World.planted(HEADS, 3, seed=1).shifts), 3.0, 0
    )
    found = searched(world, breaking(HEADS, [7])).found
    assert found.universal == [7] and found.chosen and 7 not in found.chosen
    assert found.ranking[-1] == 7
    assert set(found.chosen) == set(np.flatnonzero(world.shifts)) - {7}
    critical = searched(world).found
    assert critical.chosen[0] == 7 and critical.universal == []


def test_continuous_outcomes_make_sets_too():
    world, (a, b, *_) = backed_up(1)
    chosen = searched(world, ask=World.logprobs).found.chosen
    assert {a, b} <= set(chosen)


@pytest.mark.parametrize("budget", [2 * HEADS, 120, 200, 300, 600])
def test_a_set_costs_no_more_rows_than_its_budget(budget):
    for world in (backed_up(0)[0], breaking(HEADS, [1, 2, 3]), World(np.zeros(HEADS), 1.5, 0)):
        run = searched(world, breaking(HEADS, [2]), budget=budget)
        assert run.rows == run.found.diagnostics["rows"] <= budget


def test_a_set_that_could_not_be_scored_is_none():
    world = World.planted(HEADS, 3, drop=0.4, seed=1)

    def answer(plan):
        outcomes = inside(world)(plan)
        return np.full(len(outcomes), np.nan) if plan.what == "whole sets" else outcomes

    run = drive(METHODS["adaptive"].search(problem(HEADS, goal="set", top=3)), answer)
    assert run.found.chosen == []


@pytest.mark.parametrize(("fresh", "named"), [(1, False), (4, False), (5, True)])
def test_a_few_lost_answers_are_no_proof_though_all_are_lost(fresh, named):
    """Two sets share the level of 5 %: half of `2 ** -fresh`, the mid-p of so many losses."""
    asked = problem(HEADS, goal="set", top=1, fresh=range(200, 200 + fresh))
    state = SearchState(asked, designs.generator(0), {})

    def answer(plan):
        return np.where(plan.masks[plan.mask, 7], 0.0, 1.0)

    found = drive(most_damaging(state, [[7], [8]]), answer).found
    assert found == ([7] if named else [])
