import numpy as np
from driven import drive, inside, problem

from caploc import designs
from caploc.recovery import ESTIMATORS, Measurements, PairedDifferences, PaperLasso
from caploc.search import METHODS
from caploc.simulate import World

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
        estimate = PaperLasso().fit(crossed, intact.by_example())
        assert np.array_equal(found.found.estimate.effect, estimate.effect, equal_nan=True)
        assert found.found.chosen == estimate.needed(3)


def test_one_shot_cuts_every_head_alone_and_compares_it_with_the_intact_model():
    found = run("one-shot")
    intact, alone = found.measured
    assert (alone.masks == np.eye(24, dtype=bool)).all()
    estimate = PairedDifferences().fit(alone, intact.by_example())
    assert np.array_equal(found.found.estimate.effect, estimate.effect)
    assert np.array_equal(found.found.estimate.q, estimate.q)


def test_another_estimator_sees_the_same_masks():
    usual = run("css")
    for name in ("logistic", "means", "spike-slab", "lasso-cv"):
        other = run("css", estimator=name)
        assert (other.plans[1].masks == usual.plans[1].masks).all()
        intact, crossed = other.measured
        estimate = ESTIMATORS[name]().fit(crossed, intact.by_example())
        assert other.found.estimate.estimator == name
        assert other.found.ranking == estimate.order()


def test_another_seed_draws_other_masks():
    assert (run("css").plans[1].masks != run("css", seed=7).plans[1].masks).any()


def test_what_was_seen_is_handed_back_without_the_intact_rows():
    found = run("css").found
    assert isinstance(found.seen, Measurements) and len(found.seen.outcome) == 40 * 30
