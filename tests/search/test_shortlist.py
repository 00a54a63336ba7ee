import numpy as np
import pytest
from driven import FRESH, SEARCHED, drive, inside, problem, with_holes
from scipy.stats import norm

from caploc import designs
from caploc.recovery import fit_paired, matched_pairs
from caploc.search.state import Shortlist
from worlds.simulate import World

WORLD = World.planted(20, 3, drop=0.4, seed=1)
HEADS = [*WORLD.planted_heads, 0, 1]


def shortlist(heads=HEADS, **given):
    return Shortlist(problem(20, **given), list(heads), designs.generator(2))


def test_half_of_the_rows_go_to_all_heads_alike():
    listed = shortlist()
    run = drive(listed.even(200), inside(WORLD))
    assert run.rows == listed.rows == 100
    assert [plan.what for plan in run.plans] == ["intact", "shortlist alone"]
    asked = run.plans[1]
    assert (asked.masks == np.eye(20, dtype=bool)[HEADS]).all()
    assert listed.effects().freedom[HEADS].tolist() == [19] * 5 and listed.first == 20


def test_all_heads_see_the_same_fresh_examples_and_none_twice():
    listed = shortlist()
    drive(listed.more(HEADS, 30), inside(WORLD))
    drive(listed.more(HEADS[:2], 50), inside(WORLD))
    single = listed.seen.masks.argmax(axis=1)[listed.seen.mask]
    seen = [listed.seen.example[single == head].tolist() for head in HEADS]
    assert seen[0] == seen[1] and seen[0][:30] == seen[2] == seen[4]
    assert len(set(seen[0])) == 80 and set(seen[0]) <= set(FRESH)
    assert set(listed.intact) == set(seen[0])


def test_heads_that_join_later_see_the_examples_that_all_others_began_with():
    listed = shortlist(HEADS[:3])
    drive(listed.even(60), inside(WORLD))
    drive(listed.more(HEADS[:1], 15), inside(WORLD))
    run = drive(listed.join(HEADS[3:], 100), inside(WORLD))
    assert [plan.what for plan in run.plans] == ["shortlist alone"] and run.rows == 20
    assert listed.heads == HEADS
    single = listed.seen.masks.argmax(axis=1)[listed.seen.mask]
    seen = [listed.seen.example[single == head].tolist() for head in HEADS]
    assert seen[3] == seen[4] == seen[1] == seen[0][:10]


def test_as_few_examples_as_the_rows_buy_for_heads_that_join():
    listed = shortlist(HEADS[:3])
    drive(listed.even(60), inside(WORLD))
    assert drive(listed.join(HEADS[3:], 9), inside(WORLD)).rows == 8
    assert drive(listed.join([2], 0), inside(WORLD)).plans == []
    assert listed.heads == HEADS


def test_examples_run_out_quietly():
    listed = shortlist(fresh=range(300, 310))
    assert drive(listed.more(HEADS, 25), inside(WORLD)).rows == 50
    assert listed.unfinished(HEADS) == []
    assert drive(listed.more(HEADS, 25), inside(WORLD)).plans == []


def test_examples_that_some_heads_have_used_are_there_for_the_others():
    listed = shortlist(fresh=range(300, 340))
    drive(listed.more(HEADS[:1], 40), inside(WORLD))
    assert listed.unfinished(HEADS[:2]) == HEADS[1:2]
    run = drive(listed.more(HEADS[:2], 60), inside(WORLD))
    assert [plan.what for plan in run.plans] == ["shortlist alone"]  # the intact rows are known
    assert run.rows == 40 and run.plans[0].masks.sum() == 1
    single = listed.seen.masks.argmax(axis=1)[listed.seen.mask]
    seen = [listed.seen.example[single == head].tolist() for head in HEADS[:2]]
    assert seen[0] == seen[1]


def test_heads_that_have_gone_different_ways_go_on_from_where_they_are():
    listed = shortlist()
    drive(listed.more(HEADS[:1], 30), inside(WORLD))
    drive(listed.more(HEADS[1:2], 10), inside(WORLD))
    run = drive(listed.more(HEADS[:2], 25), inside(WORLD))
    assert [plan.what for plan in run.plans] == ["intact", "shortlist alone"]
    assert run.plans[0].example.tolist() == listed.order[30:55]
    assert run.plans[1].example.tolist() == listed.order[30:55] + listed.order[10:35]
    assert run.plans[1].mask.tolist() == [0] * 25 + [1] * 25


@pytest.mark.parametrize(("heads", "count"), [([], 5), (HEADS, 0), (HEADS, -3)])
def test_no_heads_or_no_examples_plan_no_rows(heads, count):
    listed = shortlist()
    assert drive(listed.more(heads, count), inside(WORLD)).plans == []
    assert listed.examples == 0 and listed.rows == 0


def test_without_fresh_examples_those_of_the_screen_must_do():
    listed = shortlist(fresh=())
    assert sorted(listed.order) == list(SEARCHED)


def test_effects_are_paired_differences_with_students_errors():
    listed = shortlist()
    drive(listed.more(HEADS, 60), inside(WORLD))
    found = listed.effects()
    reference = fit_paired(listed.seen, listed.intact)
    assert np.array_equal(found.effect, reference.effect, equal_nan=True)
    assert np.isnan(found.stderr[[h for h in range(20) if h not in HEADS]]).all()
    head = HEADS[0]
    outcomes = listed.seen.where(listed.seen.masks.argmax(axis=1)[listed.seen.mask] == head)
    differences = [o - listed.intact[e] for e, o in outcomes.by_example().items()]
    ends = matched_pairs(np.array(differences))
    assert found.stderr[head] == pytest.approx((ends[1] - ends[0]) / (2 * norm.ppf(0.975)))
    plain = np.std(differences, ddof=1) / np.sqrt(60)
    assert plain < found.stderr[head] < 1.2 * plain
    assert found.freedom[head] == 59


def test_no_error_is_nothing():
    """No answer of forty changed: the next one still may, as if one of 42 pairs had differed."""
    needless = World(np.zeros(20), 30.0, 0)
    listed = shortlist()
    drive(listed.more(HEADS, 40), inside(needless))
    found = listed.effects()
    assert (found.effect[HEADS] == 0).all()
    assert found.stderr[HEADS] == pytest.approx(np.full(5, 1 / 42), rel=0.05)


def test_examples_that_could_not_be_scored_do_not_count_as_asked():
    listed = shortlist()
    drive(listed.more(HEADS, 60), with_holes(inside(WORLD), 0.4))
    missing = np.isnan(listed.seen.outcome)
    compared = ~missing & np.isin(listed.seen.example, list(listed.intact))
    counted = (listed.effects().freedom[HEADS] + 1).sum()
    assert missing.any() and counted == compared.sum() < listed.rows
    assert np.isfinite(listed.effects().stderr[HEADS]).all()


def test_intervals_told_are_those_of_paired_differences():
    listed = shortlist()
    drive(listed.more(HEADS, 30), inside(WORLD))
    told, reference = listed.estimate(), fit_paired(listed.seen, listed.intact)
    assert (told.low[HEADS] == reference.low[HEADS]).all()
    assert (told.high[HEADS] == reference.high[HEADS]).all()


def test_before_any_row_nothing_is_known():
    assert np.isnan(shortlist().effects().effect).all()
