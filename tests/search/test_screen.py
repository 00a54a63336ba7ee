import numpy as np
import pytest
from driven import answered, inside, problem
from hypothesis import given
from hypothesis import strategies as st

from caploc import designs
from caploc.recovery.estimate import Rows
from caploc.recovery.screening import screened
from caploc.search.plan import intact_plan
from caploc.search.screen import CAP, FOCUS, NOISE_RATIO, SPARE, Screen, best_group
from worlds.simulate import World


def screen_of(heads=40, *, examples=range(50), **given):
    settings = {name: given.pop(name) for name in ("top", "group", "shared") if name in given}
    asked = problem(heads, examples=examples, **settings)
    intact = dict.fromkeys(examples, 1.0)
    return Screen(asked, intact, designs.generator(3), **given)


def test_first_rows_each_have_a_mask_of_their_own_of_the_rates_size():
    plan = screen_of(rate=0.1).next_rows(200)
    assert plan.mask.tolist() == list(range(200)) and (plan.masks.sum(axis=1) == 4).all()
    assert np.ptp(plan.masks.sum(axis=0)) <= 1
    assert np.ptp(np.bincount(plan.example, minlength=50)) == 0


@given(rows=st.integers(1, 60), group=st.integers(1, 9))
def test_a_mask_is_used_for_as_many_rows_as_the_group_says(rows, group):
    plan = screen_of(group=group).next_rows(rows)
    used = np.bincount(plan.mask, minlength=len(plan.masks))
    assert len(plan.mask) == rows and len(plan.masks) == -(-rows // min(group, rows))
    assert used.min() >= 1 and used.max() <= group


def test_heads_to_avoid_are_never_drawn_and_the_base_always():
    avoid = np.zeros(40, dtype=bool)
    avoid[:10] = True
    for chances in (None, np.full(40, 0.1)):
        screen = screen_of(base=[20, 21], avoid=avoid, rate=0.1, chances=chances)
        plan = screen.next_rows(300)
        assert not plan.masks[:, :10].any() and plan.masks[:, [20, 21]].all()
        free = np.setdiff1d(np.arange(10, 40), [20, 21])
        assert plan.masks[:, free].any(axis=0).all()
        assert plan.masks[:, free].sum(axis=1).mean() == pytest.approx(4, abs=0.5)


def test_contenders_are_drawn_more_often_and_the_others_still():
    chances = np.zeros(40)
    chances[5], chances[10:18] = 1.0, 0.2
    screen = screen_of(rate=0.05, chances=chances)
    drawn = screen.draw_chances()
    even = (1 - FOCUS) * 2 / 40
    assert drawn[9] == pytest.approx(even)
    # Two heads a mask, a share of them dealt out by chance; head 5 is at the most it may be.
    assert drawn[12] == pytest.approx(even + FOCUS * 2 * 0.2 / 2.6)
    assert drawn[5] == CAP
    counts = screen.next_rows(1000).masks.sum(axis=0)
    assert np.abs(counts - 1000 * drawn).max() <= 1


def test_without_contenders_masks_are_drawn_evenly():
    screen = screen_of(rate=0.05, chances=np.zeros(40))
    assert screen.draw_chances() == pytest.approx(np.full(40, 0.05))


def test_a_small_model_has_a_head_in_every_mask():
    assert screen_of(heads=5).size == 1
    assert screen_of(heads=5, base=[0, 1, 2, 3, 4]).size == 0


def test_effects_are_those_of_free_heads_from_rows_without_heads_to_avoid():
    world = World.planted(40, 3, seed=2)
    screen = screen_of()
    screen.intact = answered(intact_plan(screen.problem, range(50)), inside(world)).by_example()
    screen.take(answered(screen.next_rows(600), inside(world)))
    screen.take(answered(screen.next_rows(400), inside(world)))
    everything = screened(Rows.of(screen.seen, screen.intact))
    assert np.array_equal(screen.effects().effect, everything.effect)
    screen.avoid[4] = True
    clean = screen.seen.where(~screen.seen.masks[:, 4][screen.seen.mask])
    assert 0 < len(clean.outcome) < 1000
    assert clean.round.tolist() == sorted(clean.round) and set(clean.round) == {0, 1}
    fewer = screened(Rows.of(clean, screen.intact))
    effects = screen.effects()
    assert np.isnan([effects.effect[4], effects.stderr[4]]).all()
    others = np.delete(np.arange(40), 4)
    assert np.array_equal(effects.effect[others], fewer.effect[others])
    assert np.array_equal(effects.stderr[others], fewer.stderr[others])


def test_a_look_finds_the_contenders_for_the_next_masks():
    world = World.planted(40, 3, drop=0.4, seed=2)
    screen = screen_of(top=3)
    screen.take(answered(screen.next_rows(800), inside(world)))
    chances = screen.look()
    assert chances is screen.chances
    assert chances.sum() == pytest.approx(3 + SPARE)
    assert (chances[world.planted_heads] > 0.95).all()
    screen.avoid[world.planted_heads[0]] = True
    assert screen.look()[world.planted_heads[0]] == 0


@given(shared=st.floats(0, 300))
def test_the_group_is_where_the_price_times_the_variance_is_least(shared):
    def product(group):
        return (1 + shared / group) * (NOISE_RATIO + group)

    best = best_group(shared)
    exact = max((shared * NOISE_RATIO) ** 0.5, 1.0)
    groups = np.arange(1, 200)
    least = product(groups).min()
    assert best == round(exact)
    # Rounding the root is not quite rounding the product.
    assert product(best) <= least * 1.01
    assert product(exact) <= least


def test_a_group_that_was_asked_for_is_used_whatever_the_price():
    assert screen_of(shared=50.0).group == best_group(50.0) > 1
    assert screen_of(shared=50.0, group=2).group == 2
    assert screen_of().group == 1
