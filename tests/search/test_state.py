from math import log

import numpy as np
import pytest
from driven import answered, breaking, drive, inside, problem

from caploc import designs
from caploc.recovery import Measurements
from caploc.recovery.estimate import right_of
from caploc.recovery.screening import top_chances
from caploc.search.plan import intact_plan
from caploc.search.screen import Screen
from caploc.search.state import ALIVE, MOST, SearchState, expected_recall, retune
from worlds.simulate import World


def begun(world, **given):
    """An state and its screen in a world, before the first row."""
    asked = problem(world.heads, **{"top": 3} | given)
    intact = answered(intact_plan(asked, asked.examples), inside(world)).by_example()
    state = SearchState(asked, designs.generator(asked.settings.seed), intact)
    return state, Screen(asked, intact, state.random)


@pytest.mark.parametrize(
    ("heads", "budget", "rows"), [(64, None, 2000), (1024, None, 16384), (64, 128, 128)]
)
def test_without_a_budget_sixteen_rows_a_head_are_spent_at_most(heads, budget, rows):
    asked = problem(heads, budget=budget)
    assert SearchState(asked, designs.generator(0), {}).budget == rows


def test_only_what_is_right_is_asked_and_everything_if_outcomes_are_no_answers():
    assert right_of({3: 1.0, 4: 0.0, 5: 1.0}) == [3, 5]
    assert right_of({3: -0.1, 4: -2.0}) == [3, 4]


def test_screening_stops_once_the_top_is_known_well_enough():
    world = World.planted(64, 3, drop=0.4, seed=1)
    state, screen = begun(world)
    run = drive(state.screening(screen, 2000), inside(world))
    assert state.promised >= 0.85 and run.rows == state.spent < 1000
    patient, other = begun(world, recall=1.0)
    assert drive(patient.screening(other, 2000), inside(world)).rows > run.rows


def test_screening_spends_what_it_may_and_no_more():
    world = World(np.zeros(64), 1.5, 0)
    state, screen = begun(world)
    assert drive(state.screening(screen, 777), inside(world)).rows == state.spent == 777
    assert state.promised < 0.85


def test_rounds_grow_and_the_first_rows_draw_all_heads_evenly():
    world = World(np.zeros(200), 1.5, 0)
    state, screen = begun(world)
    plans = drive(state.screening(screen, 900), inside(world)).of("screen")
    sizes = [len(plan.mask) for plan in plans]
    assert sizes[:2] == [100, 100] and sizes == sorted(sizes[:-1]) + sizes[-1:]
    assert sizes[-2] > 120
    for plan in plans[:2]:
        assert np.ptp(plan.masks.sum(axis=0)) <= 1


def test_screening_ends_where_no_head_is_left_to_draw():
    world = breaking(4, range(4))
    state, screen = begun(world)
    drive(state.screening(screen, 2000), inside(world))
    assert sorted(state.critical) == [0, 1, 2, 3] and not screen.free.any()
    assert state.spent < 2000


def test_critical_heads_are_found_confirmed_alone_and_drawn_no_more():
    world = breaking(64, [5, 40])
    state, screen = begun(world)
    run = drive(state.screening(screen, 1500), inside(world))
    assert set(state.critical) == {5, 40} and state.universal == []
    tried = run.of("critical heads")
    assert sorted(plan.masks.nonzero()[1].tolist() for plan in tried) == [[5], [40]]
    assert all(len(plan.mask) == 12 for plan in tried)
    said = [plan.what for plan in run.plans]
    after = run.plans[len(said) - said[::-1].index("critical heads") :]
    assert after and not any(plan.masks[:, [5, 40]].any() for plan in after)


def test_a_suspect_that_does_no_harm_alone_is_cleared_for_good():
    """A head under which all is lost while screening, and nothing alone."""
    world = World(np.zeros(64), 20.0, 0)

    def answer(plan):
        lost = plan.masks[:, 9] & (plan.masks.sum(axis=1) > 1)
        return np.where(lost[plan.mask], 0.0, 1.0)

    state, screen = begun(world)
    run = drive(state.screening(screen, 1500), answer)
    assert state.cleared == [9] and state.critical == []
    assert len(run.of("critical heads")) == 1
    assert not screen.avoid[9]


def test_a_head_that_takes_half_of_another_task_is_universal():
    world = breaking(64, [5, 40])
    other, third = breaking(64, [40], seed=8), World(np.zeros(64), 3.0, 9)
    state, screen = begun(world, elsewhere=[[], range(24), range(24)])
    run = drive(state.screening(screen, 1500), inside(world, world, third, other))
    assert set(state.critical) == {5, 40} and state.universal == [40]
    assert {plan.task for plan in run.plans} == {0, 2, 3}


def test_heads_are_tried_elsewhere_together_and_no_longer_than_it_is_open():
    """Head 40 breaks the second task and 5 the third, so that nothing is asked of the fourth."""
    others = breaking(64, [40], seed=8), breaking(64, [5], seed=9), World(np.zeros(64), 3.0, 9)
    state, _ = begun(breaking(64, [5, 40]), elsewhere=[range(24)] * 3)
    run = drive(state.find_universal([5, 40]), inside(breaking(64, [5, 40]), *others))
    tried = [(plan.task, plan.masks.nonzero()[1].tolist()) for plan in run.of("critical heads")]
    assert tried == [(1, [5, 40]), (2, [5])]
    assert [plan.task for plan in run.of("intact")] == [1, 2]
    assert run.found == [5, 40]


def test_to_be_universal_a_head_must_take_half_of_what_is_right_elsewhere():
    world = breaking(64, [5, 40])
    # Of right answers with margins around 2, the one takes about a tenth, the other three quarters.
    other = World(
        np.where(np.arange(64) == 5, 0.5, 0) + np.where(np.arange(64) == 40, 3.5, 0), 2.0, 3
    )
    state, screen = begun(world, elsewhere=[range(40)])
    drive(state.screening(screen, 1500), inside(world, other))
    assert set(state.critical) == {5, 40} and state.universal == [40]


def test_before_an_early_end_heads_that_may_be_critical_are_tried():
    """Too few rows to be sure that head 5 breaks everything, and nobody wants a high recall."""
    for seed in range(3):
        world = World(np.where(np.arange(100) == 5, 9.0, 0.8), 2.0, seed)
        state, screen = begun(world, recall=0.001, seed=seed)
        drive(state.screening(screen, 2000), inside(world))
        assert state.critical == [5] and state.spent < 1000


def test_a_task_that_nothing_is_right_in_tells_nothing_of_a_head():
    world, hopeless = breaking(64, [5]), World(np.zeros(64), -30.0, 0)
    state, screen = begun(world, elsewhere=[range(24)])
    drive(state.screening(screen, 1000), inside(world, hopeless))
    assert state.critical == [5] and state.universal == []


def test_the_rate_follows_what_is_left_alive():
    """A share a alive at a rate: each head costs -log(a) over their number."""
    _, screen = begun(World(np.zeros(100), 3.0, 0), goal="set")
    rows = screen.next_rows(200)
    for alive, rate in (
        (60, 0.04),
        (98, 0.08),
        (45, 0.04 * log(ALIVE) / log(90.5 / 201)),
        (0, 0.02),
    ):
        screen.rate = 0.04
        outcome = (np.arange(200) < 2 * alive).astype(float)
        screen.seen = Measurements(rows.masks, rows.mask, rows.example, outcome)
        retune(screen)
        assert screen.rate == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("goal", MOST)
def test_the_rate_never_leaves_less_than_a_head_nor_more_than_there_is_use_for(goal):
    _, screen = begun(World(np.zeros(40), 3.0, 0), goal=goal)
    rows = screen.next_rows(100)
    for outcome, last in ((0.0, 1 / 40), (1.0, MOST[goal])):
        screen.seen = Measurements(rows.masks, rows.mask, rows.example, np.full(100, outcome))
        for _ in range(10):
            retune(screen)
        assert screen.rate == last


def test_heads_set_aside_do_not_lower_the_rate():
    _, screen = begun(World(np.zeros(20), 3.0, 0), goal="set")
    rows = screen.next_rows(100)
    outcome = np.where(rows.masks[:, 3][rows.mask], 0.0, 1.0)
    screen.seen = Measurements(rows.masks, rows.mask, rows.example, outcome)
    screen.rate, screen.avoid[3] = 0.05, True
    retune(screen)
    assert screen.rate == pytest.approx(0.1)
    # Rows of nothing but heads set aside say nothing.
    screen.avoid[:] = True
    retune(screen)
    assert screen.rate == pytest.approx(0.1)


def test_masks_for_single_heads_stay_small_however_much_is_left():
    _, screen = begun(World(np.zeros(100), 3.0, 0), goal="heads")
    rows = screen.next_rows(100)
    screen.seen = Measurements(rows.masks, rows.mask, rows.example, np.ones(100))
    for _ in range(10):
        retune(screen)
    assert screen.rate == MOST["heads"] < MOST["set"]


def test_the_expected_recall_is_the_mean_chance_of_those_likeliest_on_top():
    world = World.planted(30, 3, drop=0.3, seed=1)
    _, screen = begun(world)
    screen.take(answered(screen.next_rows(300), inside(world)))
    chances = np.sort(top_chances(screen.posterior(), 3, seed=300))[-3:]
    assert expected_recall(screen) == pytest.approx(chances.mean())
