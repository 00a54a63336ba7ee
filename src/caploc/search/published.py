"""The published searches and their rivals: masks known beforehand, or one head after another."""

from collections.abc import Callable
from itertools import pairwise

import numpy as np

from caploc import designs
from caploc.heads import Masks
from caploc.recovery import ESTIMATORS, Estimate, Measurements, PairedDifferences
from caploc.search.plan import Found, Plan, Problem, Search, intact_plan


def random_masks(problem: Problem, draw: Callable[..., Masks]) -> Search:
    """Compressed sensing with random masks and the Lasso, as published; `draw` is of `designs`."""
    settings = problem.settings
    masks = draw(problem.heads, settings.masks, rate=settings.rate, seed=settings.seed)
    return crossed(problem, masks, "lasso")


def one_shot(problem: Problem) -> Search:
    """Every head alone, once."""
    return crossed(problem, designs.singles(problem.heads), "paired")


def crossed(problem: Problem, masks: Masks, usual: str) -> Search:
    """All masks at once, on all examples; the most negative effects are the heads found."""
    masks = problem.without_excluded(masks)
    estimator = ESTIMATORS[problem.settings.estimator or usual]()
    intact = (yield intact_plan(problem, problem.examples)).by_example()
    seen = Measurements.none(problem.heads).joined((yield Plan.crossed(masks, problem.examples)))
    estimate = estimator.fit(seen, intact)
    top = problem.settings.top
    return Found(estimate.needed(top), problem.rank(estimate.order()), estimate, seen)


def greedy(problem: Problem) -> Search:
    """Knock out every head alone, keep the one with the largest drop, repeat with it gone."""
    intact = (yield intact_plan(problem, problem.examples)).by_example()
    seen = Measurements.none(problem.heads)
    found: list[int] = []
    lowest: list[float] = []
    while len(found) < min(problem.settings.top, len(problem.eligible)):
        others = [column for column in problem.eligible if column not in found]
        masks = designs.singles(problem.heads)
        masks[:, found] = True
        measured = yield Plan.crossed(masks[others], problem.examples)
        seen = seen.joined(measured)
        # A mask that could not be scored is no candidate; the lowest column wins a tie.
        means = np.nan_to_num(measured.mask_means(), nan=np.inf)
        found.append(others[int(np.argmin(means))])
        lowest.append(float(means.min()))
    estimate = PairedDifferences().fit(seen, intact)
    chosen = found[: lowering(found, lowest, estimate)]
    rest = [column for column in estimate.order() if column not in chosen]
    return Found(chosen, problem.rank(chosen + rest), estimate, seen)


def lowering(found: list[int], lowest: list[float], estimate: Estimate) -> int:
    """How many of the heads found each lowered the score further."""
    if not found or not estimate.effect[found[0]] < 0:
        return 0
    falls = [after < before for before, after in pairwise(lowest)]
    return 1 + (falls.index(False) if False in falls else len(falls))


def rounds(problem: Problem) -> int:
    """Masks of all rounds: one round of heads after another, each one head shorter."""
    heads = len(problem.eligible)
    return sum(heads - found for found in range(min(problem.settings.top, heads)))
