import numpy as np
import pytest
from driven import drive, inside, problem

from caploc import designs
from caploc.components import ALONE, AMONG
from caploc.recovery import Measurements, fit_paired, fit_paper_lasso
from caploc.search import METHODS
from caploc.search.published import rounds
from worlds.simulate import World

WORLD = World.planted(24, 3, drop=0.4, seed=1)
GIVEN = {"masks": 40, "rate": 0.1, "top": 3, "seed": 6, "examples": range(30)}


def run(name, **given):
    return drive(METHODS[name].search(problem(24, **GIVEN | given)), inside(WORLD))


def test_the_papers_methods_draw_the_papers_masks_and_fit_the_papers_lasso():
    for name, draw in (("css", designs.stratified), ("csb", designs.bernoulli)):
        found = run(name)
        intact, crossed = found.measured
        assert (crossed.masks == draw(24, 40, rate=0.1, seed=6)).all()
        assert (crossed.example.reshape(40, 30) == np.arange(30)).all()
        estimate = fit_paper_lasso(crossed, intact.by_example())
        assert np.array_equal(found.found.estimate.effect, estimate.effect, equal_nan=True)
        assert found.found.chosen == estimate.needed(3)


def test_one_shot_cuts_every_head_alone_and_compares_it_with_the_intact_model():
    found = run("one-shot")
    intact, alone = found.measured
    assert (alone.masks == np.eye(24, dtype=bool)).all()
    estimate = fit_paired(alone, intact.by_example())
    assert np.array_equal(found.found.estimate.effect, estimate.effect)
    assert np.array_equal(found.found.estimate.q, estimate.q)


def test_effects_are_called_what_they_are():
    assert run("one-shot").found.estimate.estimand == ALONE
    assert run("css").found.estimate.estimand == AMONG


def test_another_seed_draws_other_masks():
    assert (run("css").plans[1].masks != run("css", seed=7).plans[1].masks).any()


def test_what_was_seen_is_handed_back_without_the_intact_rows():
    found = run("css").found
    assert isinstance(found.seen, Measurements) and len(found.seen.outcome) == 40 * 30


def greedy(heads, answer, **given):
    return drive(METHODS["greedy"].search(problem(heads, **given)), answer)


def backup(plan):
    """Heads 0 and 1 do the same work: alone neither matters much, together they do."""
    cut = plan.masks[plan.mask]
    alone = 0.2 * cut[:, 0] + 0.1 * cut[:, 2]
    return 1.0 - alone - 0.7 * (cut[:, 0] & cut[:, 1])


def test_greedy_conditions_on_what_it_found():
    run = greedy(6, backup, examples=range(3), top=3)
    assert run.found.chosen == [0, 1, 2]
    # One-shot, which sees heads alone, would have taken head 2 before head 1.
    assert run.found.seen.mask_means()[:3].tolist() == pytest.approx([0.8, 1.0, 0.9])


def test_each_round_keeps_what_was_found_out_and_tries_every_other_head():
    run = greedy(6, backup, examples=range(3), top=3)
    found = [[], [0], [0, 1]]
    for plan, out in zip(run.plans[1:], found, strict=True):
        assert plan.masks[:, out].all() and len(plan.masks) == 6 - len(out)
        others = [column for column in range(6) if column not in out]
        assert (plan.masks[:, others] == np.eye(len(others), dtype=bool)).all()


def test_effects_and_the_order_of_the_rest_are_those_of_heads_alone():
    found = greedy(6, backup, examples=range(3), top=2).found
    assert found.estimate.effect.tolist() == pytest.approx([-0.2, 0, -0.1, 0, 0, 0])
    assert found.ranking == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("heads", "top"), [(12, 3), (5, 5), (4, 9), (1, 1)])
def test_masks_of_all_rounds_are_counted_beforehand(heads, top):
    needed = World(np.full(heads, 0.5), 2.0, 0)
    run = greedy(heads, inside(needed), examples=range(4), top=top)
    assert run.rows == 4 * rounds(problem(heads, top=top))
    assert sum(range(heads, heads - min(heads, top), -1)) == rounds(problem(heads, top=top))


def test_greedy_picks_all_its_heads_and_says_what_each_added():
    """Head 4 takes all there is; of the others, which take nothing then, 5 costs most alone."""

    def answer(plan):
        cut = plan.masks[plan.mask]
        return (1.0 - 0.3 * cut[:, 5] - 0.1 * cut[:, 2]) * ~cut[:, 4]

    found = greedy(6, answer, examples=range(5), top=3).found
    assert found.chosen == found.ranking[:3] == [4, 5, 2]
    steps = found.diagnostics["steps"]
    assert [step["head"] for step in steps] == [4, 5, 2]
    assert [step["added"] for step in steps] == pytest.approx([1.0, 0.0, 0.0])
    (note,) = found.notes
    assert note.startswith("2 of the 3 heads lowered the score no further")


def test_greedy_picks_heads_where_every_knockout_helps():
    def answer(plan):
        return 0.5 + 0.1 * plan.masks[plan.mask].sum(axis=1)

    found = greedy(6, answer, examples=range(5), top=3).found
    assert len(found.chosen) == 3
    assert [step["added"] for step in found.diagnostics["steps"]] == pytest.approx([-0.1] * 3)


def test_greedy_stops_where_nothing_can_be_scored():
    def answer(plan):
        return np.where(plan.masks[plan.mask].sum(axis=1) > 1, np.nan, 0.5)

    assert len(greedy(6, answer, examples=range(5), top=3).found.chosen) == 1


def test_a_mask_that_could_not_be_scored_is_no_candidate():
    def answer(plan):
        cut = plan.masks[plan.mask]
        return np.where(cut[:, 0], np.nan, 1.0 - 0.1 * cut[:, 3])

    assert greedy(5, answer, examples=range(5), top=1).found.chosen == [3]
