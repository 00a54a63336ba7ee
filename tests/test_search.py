import numpy as np
import pytest

from caploc import designs
from caploc.errors import BadOption
from caploc.recovery import Measurements
from caploc.search import METHODS, Greedy, Plan, Settings, column_mask
from caploc.simulate import World

EXAMPLES = list(range(60))


def finish(search, world):
    """Run a search to its end on planted outcomes; returns what it saw and its rounds."""
    seen, rounds = Measurements.none(world.heads), 0
    while (plan := search.plan(seen)) is not None:
        outcomes = world.outcomes(plan.masks[plan.mask], plan.example)
        seen = seen.joined(Measurements(plan.masks, plan.mask, plan.example, outcomes))
        rounds += 1
    return seen, rounds


def intact(world):
    outcomes = world.outcomes(
        np.zeros((len(EXAMPLES), world.heads), dtype=bool), np.array(EXAMPLES)
    )
    return dict(zip(EXAMPLES, outcomes.tolist(), strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_finds_planted_heads(name):
    world = World.planted(24, 3, drop=0.4, seed=1)
    method = METHODS[name]
    settings = Settings(masks=80, rate=0.1, top=3)
    search = method.search(world.heads, EXAMPLES, settings)
    seen, _ = finish(search, world)
    estimate = method.estimator().fit(seen, intact(world))
    assert set(search.chosen(seen, estimate)) == set(world.planted_heads)


@pytest.mark.parametrize("name", METHODS)
def test_a_search_plans_as_many_rows_as_it_says(name):
    world = World.planted(12, 2, seed=1)
    search = METHODS[name].search(12, EXAMPLES[:5], Settings(masks=7, rate=0.2, top=3))
    seen, _ = finish(search, world)
    assert len(seen.outcome) == search.rows


@pytest.mark.parametrize("name", METHODS)
def test_a_search_is_pure_in_what_it_has_seen(name):
    world = World.planted(12, 2, seed=1)
    settings = Settings(masks=7, rate=0.2, top=2)
    seen, _ = finish(METHODS[name].search(12, EXAMPLES[:5], settings), world)
    assert METHODS[name].search(12, EXAMPLES[:5], settings).plan(seen) is None


def test_greedy_conditions_on_what_it_found():
    """Heads 0 and 1 do the same work: alone neither matters, together they do."""

    class Backup(World):
        def outcomes(self, knocked_out, example):
            both = knocked_out[:, 0] & knocked_out[:, 1]
            alone = 0.2 * knocked_out[:, 0] + 0.1 * knocked_out[:, 2]
            return 1.0 - alone - 0.7 * both

    world = Backup(np.zeros(6), 0.0, 0)
    search = Greedy(6, EXAMPLES[:3], Settings(top=3))
    seen, rounds = finish(search, world)
    assert search.found(seen) == [0, 1, 2]
    assert rounds == 3
    # One-shot, which sees heads alone, would have taken head 2 before head 1.
    assert seen.mask_means()[:3].tolist() == pytest.approx([0.8, 1.0, 0.9])


def test_greedy_names_no_head_that_nothing_needs():
    needless = World(np.zeros(6), 9.0, 0)
    search = Greedy(6, EXAMPLES[:5], Settings(top=3))
    seen, _ = finish(search, needless)
    estimate = METHODS["greedy"].estimator().fit(seen, dict.fromkeys(EXAMPLES[:5], 1.0))
    assert search.chosen(seen, estimate) == []
    one = World(np.array([0.0, 0, 99, 0, 0, 0]), 9.0, 0)
    seen, _ = finish(search, one)
    estimate = METHODS["greedy"].estimator().fit(seen, dict.fromkeys(EXAMPLES[:5], 1.0))
    assert search.chosen(seen, estimate) == [2]


def test_greedy_stops_when_no_head_is_left():
    world = World.planted(3, 1, seed=0)
    seen, _ = finish(Greedy(3, EXAMPLES[:4], Settings(top=9)), world)
    assert sorted(Greedy(3, EXAMPLES[:4], Settings(top=9)).found(seen)) == [0, 1, 2]


def test_heads_that_do_not_hurt_are_not_chosen():
    world = World(np.zeros(20), 3.0, 0)
    search = METHODS["one-shot"].search(20, EXAMPLES, Settings())
    seen = Measurements(designs.singles(20), np.arange(20), np.zeros(20, dtype=int), np.ones(20))
    estimate = METHODS["one-shot"].estimator().fit(seen, {0: 1.0})
    assert search.chosen(seen, estimate) == []
    assert world.planted_heads == []


def test_crossed_plans_ask_every_mask_on_every_example():
    plan = Plan.crossed(np.eye(3, dtype=bool), [7, 9])
    pairs = set(zip(plan.mask.tolist(), plan.example.tolist(), strict=True))
    assert pairs == {(mask, example) for mask in range(3) for example in (7, 9)}


def test_a_mask_planned_twice_counts_twice():
    """As published: equal masks are separate measurements to the regression."""
    masks = np.array([[True, False], [True, False]])
    seen = Measurements(masks, np.array([0, 1]), np.array([0, 0]), np.array([0.5, 0.5]))
    assert seen.mask_means().tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(rate=0.0), "between 0 and 1"),
        (Settings(masks=0), "--masks must be 1 or more; got 0"),
        (Settings(top=0), "--top must be 1 or more; got 0"),
        (Settings(seed=-1), "--seed must be 0 or more; got -1"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings, said):
    with pytest.raises(BadOption, match=said):
        settings.check()


def test_column_masks():
    assert column_mask(4, [2, 0]).tolist() == [True, False, True, False]
    assert not column_mask(4, []).any()
