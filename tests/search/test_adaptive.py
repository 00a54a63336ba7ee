from dataclasses import replace

import numpy as np
import pytest
from driven import (
    ELSEWHERE,
    FRESH,
    SEARCHED,
    breaking,
    drive,
    inside,
    problem,
    with_holes,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from caploc.recovery.estimate import is_binary
from caploc.search import METHODS
from caploc.search.settings import LEAST_BUDGET
from caploc.search.summary import nothing_to_lose
from worlds.simulate import KINDS, World


def searched(world, *others, answer=None, ask=World.outcomes, **given):
    given = {"top": 3, "elsewhere": [ELSEWHERE for _ in others]} | given
    search = METHODS["adaptive"].search(problem(world.heads, **given))
    return drive(search, answer or inside(world, *others, ask=ask))


@pytest.mark.parametrize("seed", range(3))
def test_planted_heads_are_found_with_a_fraction_of_the_rows_of_every_head_alone(seed):
    world = World.planted(64, 3, drop=0.3, seed=seed)
    run = searched(world, seed=seed)
    assert set(run.found.chosen) == set(world.planted_heads)
    # One-shot spends 6,400 rows on 100 examples.
    assert run.rows == run.found.diagnostics["rows"] < LEAST_BUDGET
    assert run.found.diagnostics["stopped_by"] == "recall"


@pytest.mark.parametrize("kind", ["strong", "inter", "lowbase"])
def test_the_strongest_heads_of_an_entangled_world_are_found(kind):
    few = replace(KINDS[kind], large=6, tails=12)
    world = World.of_kind(few, seed=3, layers=8, width=8)
    run = searched(world, breaking(64, world.universal), seed=1)
    effects = np.where(world.common, world.single_effects(), 0)
    strongest = np.argsort(effects)[:5].tolist()
    assert run.found.chosen and set(run.found.chosen) <= set(strongest)
    assert set(run.found.critical) >= set(run.found.universal) and run.found.universal
    assert set(run.found.universal) <= set(world.universal)


def test_heads_that_break_the_task_are_critical_and_those_that_break_another_universal():
    """Heads 7 and 20 break the task, 20 another one too, and 30 matters a little."""
    shifts = np.zeros(40)
    shifts[[7, 20, 30]] = 9.0, 9.0, 1.2
    world, other = World(shifts, 3.0, 1), breaking(40, [20, 33])
    found = searched(world, other, seed=2).found
    assert set(found.critical) == {7, 20} and found.universal == [20]
    # The task's own critical head is the most needed of all; the universal one is out of it.
    assert found.chosen[0] == 7 and set(found.chosen) == {7, 30}
    assert found.ranking[-1] == 20 and np.isnan(found.estimate.q[20])
    assert found.estimate.effect[7] < -0.8
    assert 7 in found.diagnostics["shortlist"] and 20 not in found.diagnostics["shortlist"]
    assert found.estimate.top_chance[20] == 0


def test_without_another_task_no_head_is_universal():
    world = breaking(40, [7, 20])
    found = searched(world).found
    assert set(found.critical) == {7, 20} == set(found.chosen) and found.universal == []


@pytest.mark.slow
def test_heads_are_rarely_named_in_a_world_where_none_matters():
    """At a false discovery rate of 5 %, one of twenty worlds is expected to name a head."""
    named = 0
    for seed in range(20):
        world = World(np.zeros(24), 1.5, seed)
        found = searched(world, seed=seed, budget=500).found
        named += bool(found.chosen)
        assert found.chosen or "No head is needed beyond doubt" in found.notes[0]
    assert named <= 3


def test_fresh_examples_are_asked_in_the_check_and_nowhere_else():
    world = breaking(40, [7])
    run = searched(world, breaking(40, [20]), seed=1)
    assert {"screen", "critical heads", "shortlist alone"} <= {plan.what for plan in run.plans}
    checking = False
    for plan in run.plans:
        asked = set(plan.example.tolist())
        checking |= bool(asked & set(FRESH))
        if plan.task:
            assert asked <= set(ELSEWHERE)
        elif checking:
            assert asked <= set(FRESH) and plan.what in ("intact", "shortlist alone")
        else:
            assert asked <= set(SEARCHED)
    assert checking


def test_a_screen_asks_only_what_the_intact_model_gets_right():
    world = World.planted(40, 3, drop=0.25, intact=0.5, seed=1)
    run = searched(world)
    right = {e for e, outcome in run.measured[0].by_example().items() if outcome}
    assert 60 < len(right) < 140
    for plan in run.of("screen"):
        assert set(plan.example.tolist()) <= right


def test_heads_at_the_border_are_checked_on_more_examples_than_clear_ones():
    shifts = np.zeros(40)
    shifts[:6] = 3.0, 2.5, 0.8, 0.75, 0.7, 0.65
    run = searched(World(shifts, 2.5, 1), recall=1.0)
    alone = run.of("shortlist alone")
    cut = np.concatenate([plan.masks[plan.mask] for plan in alone]).sum(axis=0)
    assert len(alone) > 1 and max(cut[2:6]) > 1.5 * max(cut[:2])
    assert cut[0] == len(alone[0].example) / len(alone[0].masks)


@pytest.mark.parametrize("seed", [2, 3])
def test_a_head_that_rises_to_the_top_untried_is_knocked_out_alone_too(seed):
    """As heads of the shortlist fall, others rise that only the screen speaks for."""
    world = World.of_kind("weak", seed=seed, layers=32, width=16)
    other = breaking(world.heads, world.universal)
    run = searched(world, other, top=10, seed=seed, budget=1500)
    first, *more = [set(np.nonzero(p.masks)[1].tolist()) for p in run.of("shortlist alone")]
    tried = first.union(*more)
    assert set(run.found.ranking[:10]) <= tried == set(run.found.diagnostics["shortlist"])
    assert len(tried) > len(first)


def test_intervals_of_chosen_heads_hold_the_truth():
    inside_, count = 0, 0
    for seed in range(8):
        world = World.planted(30, 3, drop=0.3, seed=seed)
        found = searched(world, seed=seed, budget=1200, recall=1.0).found
        truth, estimate = world.single_effects(), found.estimate
        low, high = estimate.low[found.chosen], estimate.high[found.chosen]
        inside_ += ((low <= truth[found.chosen]) & (truth[found.chosen] <= high)).sum()
        count += len(found.chosen)
    # Three standard errors of a coverage of 95 %.
    assert count > 20 and inside_ / count > 0.95 - 3 * np.sqrt(0.95 * 0.05 / count)


def test_continuous_outcomes_find_the_same_heads_with_fewer_rows():
    rows, binary = 0, 0
    for seed in range(3):
        world = World.planted(32, 3, drop=0.2, seed=seed)
        graded = searched(world, seed=seed, ask=World.logprobs)
        assert set(graded.found.chosen) == set(world.planted_heads)
        rows += graded.rows
        binary += searched(world, seed=seed).rows
    assert rows < binary


def test_with_a_shared_prompt_a_mask_is_used_for_several_examples():
    world = World.planted(40, 3, drop=0.3, seed=1)
    run = searched(world, shared=2.0)
    assert set(run.found.chosen) == set(world.planted_heads)
    assert run.found.diagnostics["group"] > 2
    for plan in run.of("screen"):
        assert len(plan.masks) == -(-len(plan.mask) // run.found.diagnostics["group"])


worlds = st.tuples(
    st.integers(1, 24),  # heads
    st.lists(st.integers(0, 23), max_size=5),  # critical ones
    st.integers(0, 50),  # seed
)


@given(
    drawn=worlds,
    rows_a_head=st.integers(2, 12),
    top=st.integers(1, 6),
    goal=st.sampled_from(["heads", "set"]),
    sizes=st.tuples(st.integers(1, 60), st.integers(0, 60), st.integers(0, 24)),
    holes=st.sampled_from([0.0, 0.3]),
    ask=st.sampled_from([World.outcomes, World.logprobs]),
)
@settings(max_examples=50)
def test_no_search_costs_more_than_its_budget_or_breaks(
    drawn, rows_a_head, top, goal, sizes, holes, ask
):
    heads, critical, seed = drawn
    shifts = np.random.default_rng(seed).exponential(0.4, heads)
    shifts[[column % heads for column in critical]] = 9.0
    world, other = World(shifts, 2.0, seed), breaking(heads, {c % heads for c in critical[:2]})
    examples, fresh, elsewhere = sizes
    run = searched(
        world,
        examples=range(examples),
        fresh=range(100, 100 + fresh),
        elsewhere=[range(elsewhere)],
        answer=with_holes(inside(world, other, ask=ask), holes, seed),
        budget=rows_a_head * heads,
        top=top,
        goal=goal,
        seed=seed,
    )
    assert run.rows <= rows_a_head * heads
    assert sorted(run.found.ranking) == list(range(heads))
    assert len(run.found.chosen) == len(set(run.found.chosen)) <= min(top, heads)
    assert not set(run.found.chosen) & set(run.found.universal)


HOPELESS = [
    ({}, 0.0, "None of the intact model's answers could be scored"),
    (dict.fromkeys(range(30), 0.0), 0.0, "gets 0 of the 30 examples for the search right, too few"),
    (
        {e: float(e < 9) for e in range(30)},
        0.0,
        "gets 9 of the 30 examples for the search right, too few",
    ),
    ({e: float(e < 60) for e in range(100)}, 0.55, "no better than guessing (55%)"),
    (dict.fromkeys(range(30), -0.7), 0.0, "outcomes do not differ: nothing to measure"),
]
HOPEFUL = [
    ({e: float(e < 10) for e in range(30)}, 0.0),
    ({e: float(e < 70) for e in range(100)}, 0.55),
    (dict.fromkeys(range(5), 1.0), 0.0),
    ({e: -0.1 * e for e in range(30)}, 0.5),
]


@pytest.mark.parametrize(("intact", "chance", "said"), HOPELESS, ids=[s for *_, s in HOPELESS])
def test_where_nothing_can_be_lost_the_reason_is_said(intact, chance, said):
    assert said in nothing_to_lose(problem(4, chance=chance), intact)


@pytest.mark.parametrize(("intact", "chance"), HOPEFUL)
def test_where_something_can_be_lost_the_search_goes_on(intact, chance):
    assert nothing_to_lose(problem(4, chance=chance), intact) is None


@pytest.mark.parametrize("goal", ["heads", "set"])
@pytest.mark.parametrize(("mean", "chance"), [(-9.0, 0.0), (0.0, 0.5)])
def test_a_task_the_model_cannot_do_costs_no_row_and_names_no_head(goal, mean, chance):
    run = searched(World(np.ones(20), mean, 0), goal=goal, chance=chance)
    assert run.rows == 0 and len(run.plans) == 1
    assert run.found.chosen == [] and run.found.ranking == list(range(20))
    assert np.isnan(run.found.estimate.effect).all()
    assert len(run.found.notes) == 1 and "--outcome logprob" in run.found.notes[0]


def test_graded_outcomes_are_not_refused_for_being_low():
    world = World.planted(40, 3, drop=0.3, intact=0.9, seed=1)
    low = replace(world, mean=-4.0)
    run = searched(low, ask=World.logprobs, chance=0.5)
    assert not is_binary(run.measured[0].by_example())
    assert set(run.found.chosen) == set(world.planted_heads)


@pytest.mark.slow  # whole searches
@settings(max_examples=6, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.integers(0, 99), st.sampled_from(["heads", "set"]))
def test_no_head_is_named_that_may_do_nothing_and_no_effect_exceeds_the_score(kind, seed, goal):
    """Alone: a set's members are judged within it, on fresh examples, after the search."""
    few = replace(KINDS[kind], large=6, tails=12)
    world = World.of_kind(few, seed=seed, layers=8, width=8)
    found = searched(world, seed=seed, goal=goal).found
    estimate = found.estimate
    known = np.isfinite(estimate.effect)
    assert (np.abs(estimate.effect[known]) <= 1).all()
    assert (estimate.low[known] <= estimate.effect[known]).all()
    assert (estimate.effect[known] <= estimate.high[known]).all()
    if goal == "heads":
        alone = [c for c in found.chosen if c not in found.critical]
        assert all(estimate.high[column] < 0 for column in alone), (kind, seed)
