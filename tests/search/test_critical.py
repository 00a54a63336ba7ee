import numpy as np
import pytest
from driven import breaking
from scipy import sparse

from caploc import designs
from caploc.recovery import Measurements
from caploc.search.state import CUTS, broken, deviations, single_head_plan, suspects
from worlds.simulate import World


def screened(world, *, rows=400, size=3, seed=0, ask=World.outcomes):
    random = designs.generator(seed)
    masks = designs.scattered(np.ones(world.heads, dtype=bool), rows, size=size, random=random)
    example = designs.spread_examples(range(200), rows, random=random)
    outcome = ask(world, masks, example)
    return Measurements(masks, np.arange(rows), example, outcome)


NONE = np.zeros(40, dtype=bool)


def test_heads_that_break_everything_are_suspected_and_no_others():
    world = breaking(40, [4, 17, 30])
    seen = screened(world)
    assert set(suspects(seen, seen.outcome == 1, NONE)) == {4, 17, 30}
    harmless = screened(World.planted(40, 3, drop=0.3, seed=1))
    assert suspects(harmless, harmless.outcome == 1, NONE) == []


def test_one_head_that_breaks_everything_does_not_hide_the_next():
    """Head 4 is in most masks: taken all together, hardly anything is right with or without 17."""
    world = breaking(40, [4, 17])
    seen = screened(world, rows=1500)
    often = np.random.default_rng(0).random(1500) < 0.8
    seen.masks[often, 4] = True
    outcome = world.outcomes(seen.masks[seen.mask], seen.example)
    assert set(suspects(seen, outcome == 1, NONE)) == {4, 17}


def test_the_strongest_suspect_comes_first_and_known_heads_are_none():
    world = World(
        np.where(np.arange(40) == 4, 9.0, 0) + np.where(np.arange(40) == 9, 4.0, 0), 3.0, 1
    )
    seen = screened(world, rows=1500)
    alive = seen.outcome == 1
    assert suspects(seen, alive, NONE) == [4, 9]
    known = NONE.copy()
    known[4] = True
    assert suspects(seen, alive, known) == [9]


def test_deviations_are_binomial_standard_errors_below_the_rows_without_the_head():
    masks = np.zeros((40, 3), dtype=bool)
    masks[:9, 0], masks[9:29, 1], masks[29:32, 2] = True, True, True
    alive = np.ones(40, dtype=bool)
    alive[:8], alive[9:12], alive[29:32] = False, False, False
    found = deviations(sparse.csr_matrix(masks, dtype=float), alive)
    # 25 of the 31 rows without head 0 are right, and 1 of its 9.
    rest = 25 / 31
    assert found[0] == pytest.approx((rest - 1 / 9) / np.sqrt(rest * (1 - rest) / 9))
    # Head 1 takes less than its share; head 2 takes all, but of too few rows.
    assert found[1] == 0 and masks[:, 2].sum() < CUTS and found[2] == 0


def test_chance_alone_rarely_looks_like_a_critical_head():
    world = World(np.zeros(40), 1.0, 0)
    suspected = [suspects(s := screened(world, seed=n), s.outcome == 1, NONE) for n in range(30)]
    # Each head is cut 30 times: to lose 60 % of 69 % by bad luck takes five standard errors.
    assert sum(map(len, suspected)) == 0


def test_heads_are_tried_alone():
    plan = single_head_plan(6, [2, 4], [10, 11], task=3)
    assert [row.nonzero()[0].tolist() for row in plan.masks] == [[2], [4]]
    assert plan.mask.tolist() == [0, 0, 1, 1] and plan.example.tolist() == [10, 11, 10, 11]
    assert plan.task == 3


@pytest.mark.parametrize(
    ("right", "share", "said"), [(3, 0.25, True), (4, 0.25, False), (0, 0.0, True)]
)
def test_a_task_is_broken_if_at_most_a_share_is_still_right(right, share, said):
    outcome = np.array([1.0] * right + [0.0] * (12 - right))
    rows = Measurements(np.eye(1, dtype=bool), np.zeros(12, dtype=int), np.arange(12), outcome)
    assert broken(rows, dict.fromkeys(range(12), 1.0), share) is said
