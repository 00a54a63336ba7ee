"""Searches whose masks are all known beforehand: the paper's two designs, and every head alone."""

from caploc import designs
from caploc.heads import Masks
from caploc.recovery import ESTIMATORS, Measurements
from caploc.search.plan import Found, Plan, Problem, Search, intact_plan


def css(problem: Problem) -> Search:
    """Compressed sensing with stratified masks and the Lasso, as published."""
    settings = problem.settings
    masks = designs.stratified(
        problem.heads, settings.masks, rate=settings.rate, seed=settings.seed
    )
    return crossed(problem, masks, "lasso")


def csb(problem: Problem) -> Search:
    """Compressed sensing with Bernoulli masks and the Lasso, as published."""
    settings = problem.settings
    masks = designs.bernoulli(problem.heads, settings.masks, rate=settings.rate, seed=settings.seed)
    return crossed(problem, masks, "lasso")


def one_shot(problem: Problem) -> Search:
    """Every head alone, once."""
    return crossed(problem, designs.singles(problem.heads), "paired")


def crossed(problem: Problem, masks: Masks, usual: str) -> Search:
    """All masks at once, on all examples; the most negative effects are the heads found."""
    estimator = ESTIMATORS[problem.settings.estimator or usual]()
    intact = (yield intact_plan(problem, problem.examples)).by_example()
    seen = Measurements.none(problem.heads).joined((yield Plan.crossed(masks, problem.examples)))
    estimate = estimator.fit(seen, intact)
    top = problem.settings.top
    return Found(estimate.needed(top), estimate.order(), estimate, seen)
