"""Sets of heads: what breaks a task most together, and what does so and spares others."""

from dataclasses import replace

import numpy as np
import pytest
from driven import breaking, drive, inside, problem

from caploc.search import METHODS
from caploc.search.plan import OtherTask
from caploc.search.scan import scan_then_trial
from caploc.search.sets import CandidateSet, harm, most_damaging, posterior
from caploc.search.settings import KNOBS
from worlds.simulate import Interaction, World

HEADS, SHARED, OWN = 64, (3, 40), (11, 25, 52)
PAIR = (20, 33)  # heads that cover for each other


def planted(*columns, seed, drop=0.2):
    """A task that needs these heads alike, and hardly any luck."""
    world = World.planted(HEADS, 1, drop=drop, seed=seed)
    shifts = np.zeros(HEADS)
    shifts[list(columns)] = world.shifts.max()
    return replace(world, shifts=shifts, noise=0.03)


def with_backups(seed, *columns):
    """A task that needs these heads a little, and the pair: alone each costs next to nothing."""
    world = planted(*columns, seed=seed, drop=0.1)
    shifts = world.shifts.copy()
    shifts[list(PAIR)] = 0.15
    return replace(world, shifts=shifts, interactions=(Interaction(PAIR, 5.0),))


def searched(worlds, *, twins=(), goal="specific", signals=True, **settings):
    count = len(worlds)
    ending = ".likelihood" if signals else ""
    sides = [
        OtherTask(f"task{n}", range(100), f"task{n}{ending}", n in twins) for n in range(1, count)
    ]
    given = {"budget": 24 * HEADS, "top": 3} | settings
    asked = problem(HEADS, signal=f"task{ending}", sides=sides, goal=goal, **given)
    answer = inside(*worlds, ask=World.outcomes if signals else World.logprobs)
    return drive(METHODS["scan"].search(asked), answer), METHODS["scan"].most_rows(asked)


class TestTheMostDamagingSet:
    @pytest.mark.parametrize("seed", range(4))
    def test_a_pair_that_covers_for_each_other_is_found_where_single_heads_miss_it(self, seed):
        world = with_backups(seed, 5, 9)
        run, most = searched([world], goal="set", top=4, budget=None, seed=seed)
        assert set(PAIR) <= set(run.found.chosen)
        assert run.rows <= most
        alone = drive(
            scan_then_trial(problem(HEADS, signal="task.likelihood", top=4, seed=seed)),
            inside(world),
        ).found
        assert not set(PAIR) <= set(alone.chosen)

    def test_it_does_no_less_than_the_first_heads_of_one_shot(self):
        """On average over worlds: the set's own damage, against five heads that are first alone."""
        ours, theirs = [], []
        for seed in range(6):
            world = World.real(seed=seed, layers=8, width=16)
            asked = problem(world.heads, signal="task.likelihood", goal="set", seed=seed)
            ours.append(
                world.damage_of(drive(METHODS["scan"].search(asked), inside(world)).found.chosen)
            )
            one_shot = problem(world.heads, examples=range(60), seed=seed)
            found = drive(METHODS["one-shot"].search(one_shot), inside(world)).found
            theirs.append(world.damage_of(found.chosen))
        assert np.mean(ours) >= np.mean(theirs) - 0.01

    def test_a_head_that_breaks_another_task_too_is_in_no_set(self):
        world, other = planted(*OWN, SHARED[0], seed=1), breaking(HEADS, SHARED[:1])
        asked = problem(
            HEADS, signal="task.likelihood", goal="set", top=3, elsewhere={"task1": range(24)}
        )
        run = drive(METHODS["scan"].search(asked), inside(world, other))
        assert set(run.found.chosen) == set(OWN)
        assert run.found.universal == [SHARED[0]] and run.found.breaks_task == {SHARED[0]: "task1"}
        assert run.rows <= METHODS["scan"].most_rows(asked)

    def test_where_no_head_matters_nothing_is_named(self):
        run, _ = searched([planted(seed=3)], goal="set")
        assert run.found.chosen == []

    def test_the_set_that_leaves_least_is_chosen_on_fresh_examples(self):
        world = planted(*OWN, seed=1)
        sets = [(1, 2), OWN, OWN[:1]]
        search = most_damaging(problem(HEADS), sets, range(200, 260), 0.05)
        named, stable = drive(search, inside(world)).found
        assert named == OWN and stable == 1
        nothing = most_damaging(problem(HEADS), [(1, 2), (5,)], range(200, 260), 0.05)
        assert drive(nothing, inside(world)).found[0] == ()

    def test_effects_are_of_single_heads_on_examples_that_no_set_was_composed_on(self):
        run, _ = searched([planted(*OWN, seed=1)], goal="set", budget=None)
        composed = {e for plan in run.of("sets") for e in plan.example.tolist()}
        tried = {e for plan in run.of("trial") for e in plan.example.tolist()}
        assert tried and not composed & tried
        assert set(OWN) <= {*run.found.stages.tried}


class TestASetThatSpares:
    WORLDS = (planted(*OWN, *SHARED, seed=1), planted(*SHARED, 8, seed=2))

    @pytest.mark.parametrize("seed", range(4))
    def test_heads_that_another_task_needs_are_left_out(self, seed):
        run, most = searched(self.WORLDS, seed=seed)
        assert set(run.found.chosen) == set(OWN)
        assert run.found.candidates[0] == sorted(OWN)
        assert run.rows <= most

    def test_with_nothing_in_common_the_most_damaging_set_is_found(self):
        run, _ = searched([self.WORLDS[0], planted(8, 9, 10, seed=2)], top=5)
        assert set(run.found.chosen) == {*OWN, *SHARED}

    def test_a_twin_must_break_as_well(self):
        twin = planted(OWN[0], *SHARED, seed=3)
        run, _ = searched([*self.WORLDS, twin], twins=(2,), top=1)
        assert run.found.chosen == [OWN[0]]

    def test_a_measure_is_its_own_signal(self):
        run, _ = searched(self.WORLDS, signals=False)
        assert set(run.found.chosen) == set(OWN)

    def test_when_every_head_is_shared_none_that_breaks_the_price_leads(self):
        both = [planted(*SHARED, seed=1), planted(*SHARED, seed=2)]
        run, _ = searched(both)
        assert not set(run.found.chosen) & set(SHARED)

    def test_where_no_head_matters_none_is_found(self):
        run, _ = searched([planted(seed=1), planted(seed=2)])
        assert run.found.chosen == [] or max(planted(seed=1).damage_of(run.found.chosen), 0) < 0.02

    def test_a_spared_task_that_the_model_cannot_do_has_nothing_to_lose(self):
        hopeless = replace(planted(*OWN, seed=2), mean=-50.0)
        run, _ = searched([self.WORLDS[0], hopeless], top=5)
        assert set(run.found.chosen) == {*OWN, *SHARED}

    @pytest.mark.slow
    def test_where_strong_heads_cost_something_sets_of_others_are_found(self):
        worths = []
        for seed in range(20):
            worlds = costly(seed)
            chosen = searched(worlds, seed=seed, price=0.05, top=5)[0].found.chosen
            task, *spared = (world.damage_of(chosen) for world in worlds)
            worths.append(task - KNOBS.excess * max(0.0, max(spared) - 0.05))
        assert np.mean(worths) > 0.6


def costly(seed):
    """A task of which most heads, strong and weak, cost one to spare a part of what they do."""
    random = np.random.default_rng(seed)
    columns = random.choice(HEADS, 10, replace=False)
    strength = 0.85 ** np.arange(10)
    worlds = [planted(seed=100 * seed + place) for place in range(3)]
    most = World.planted(HEADS, 1, drop=0.3, seed=0).shifts.max()
    shifts = [np.zeros(HEADS) for _ in worlds]
    shifts[0][columns] = most * strength
    for column, share in zip(columns, random.uniform(0.1, 1, 10), strict=True):
        if random.random() < 0.6:
            shifts[1 + random.integers(2)][column] = share * shifts[0][column]
    return [replace(world, shifts=each) for world, each in zip(worlds, shifts, strict=True)]


class TestWhatIsKnown:
    def test_harm_is_what_is_lost_and_what_is_said_in_equal_parts(self):
        lost, kept = np.array([0.2, 0.2, 0.2]), np.array([1.0, 0.0, np.nan])
        assert harm(lost, kept) == pytest.approx([0.1, 0.6, 0.2])

    def test_few_examples_without_a_loss_do_not_show_that_none_is_lost(self):
        def error(count):
            return CandidateSet((1,), 1, [[0.0] * count]).losses()[0, 1]

        assert error(1) == KNOBS.unknown
        assert error(4) > 0.08 > error(16) > error(100)

    def test_what_a_set_loses_beyond_the_price_costs_more_than_it_gains(self):
        cheap = CandidateSet((1,), 1, [[0.3] * 50, [0.0] * 50])
        dear = CandidateSet((2,), 1, [[0.6] * 50, [0.2] * 50])
        assert cheap.worth(0.05) > dear.worth(0.05) and dear.worth(0.5) > cheap.worth(0.5)

    def test_without_sets_heads_are_what_they_seemed_alone(self):
        alone = np.array([0.2, 0.0]), np.array([0.04, 0.01])
        mean, covariance = posterior(alone, [], 0, [5, 7])
        assert mean.tolist() == [0.2, 0.0] and covariance.tolist() == [[0.04, 0], [0, 0.01]]

    def test_what_sets_lose_is_shared_out_among_their_heads(self):
        """The same as by the normal equations of the regression."""
        random = np.random.default_rng(0)
        truth = np.array([0.3, 0.1, 0.0, 0.2])
        pairs = [(0, 1), (1, 2), (2, 3), (0, 3), (0, 2), (1, 3)]
        lost = [random.normal(truth[list(pair)].sum(), 0.01, 60).tolist() for pair in pairs]
        tried = [CandidateSet(pair, 1, [each]) for pair, each in zip(pairs, lost, strict=True)]
        prior, variance = np.zeros(4), np.full(4, 0.05)
        mean, covariance = posterior((prior, variance), tried, 0, range(4))
        members = np.array([[c in pair for c in range(4)] for pair in pairs], dtype=float)
        change, error = np.array([each.losses()[0] for each in tried]).T
        precision = np.diag(1 / variance) + members.T @ np.diag(error**-2) @ members
        assert covariance == pytest.approx(np.linalg.inv(precision))
        assert mean == pytest.approx(np.linalg.solve(precision, members.T @ (change / error**2)))
        assert mean == pytest.approx(truth, abs=0.06)
