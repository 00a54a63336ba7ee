"""The published searches and their rivals: masks known beforehand, or one head after another.

The paper's own search for a setting, how many masks at which rate, is one of them. Each setting is
fitted on the same examples, the heads that it finds are knocked out together, and the setting whose
heads cost most is kept, still on those examples (arXiv 2603.03335, appendix A.1).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc import designs
from caploc.components import Masks
from caploc.errors import BadOption
from caploc.recovery import fit_paired, fit_paper_lasso
from caploc.recovery.estimate import Estimate, Estimator, Measurements
from caploc.registries import ESTIMATORS
from caploc.result import number
from caploc.search.plan import Found, Plan, Problem, Search, intact_plan

RATES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1)  # arXiv 2603.03335, appendix A.1, gives both ends
IDLE_STEPS = (
    "{} of the {} heads lowered the score no further when greedy took them: it takes the lowest "
    "score of each round, of equal ones the head that costs most alone."
)
NO_SETTING = "No setting found heads that lower the score when knocked out together: none is named."

Draw = Callable[..., Masks]  # of `designs`: heads and masks, by rate and seed
Losses = Float[np.ndarray, " examples"]


def random_masks(problem: Problem, draw: Draw) -> Search:
    """Draw random masks and fit them, by the Lasso as published; `draw` is of `designs`."""
    settings = problem.settings
    masks = draw_masks(problem, draw, settings.masks, settings.rate)
    return crossed(problem, masks, ESTIMATORS[settings.estimator or "lasso"])


def draw_masks(problem: Problem, draw: Draw, count: int, rate: float) -> Masks:
    """Draw masks among the heads that may be knocked out.

    Leaving out masks that hold an excluded head would lose many of them, and the balance.
    """
    masks = draw(len(problem.eligible), count, rate=rate, seed=problem.settings.seed)
    return problem.over_all(masks)


def one_shot(problem: Problem) -> Search:
    """Knock out every head alone, once."""
    masks = problem.over_all(designs.singles(len(problem.eligible)))
    return crossed(problem, masks, ESTIMATORS[problem.settings.estimator or "paired"])


def crossed(problem: Problem, masks: Masks, fit: Estimator) -> Search:
    """Ask all masks on all examples; the most negative effects are the heads found."""
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    seen = yield Plan.crossed(problem.probe, masks, problem.examples)
    estimate = fit(seen, intact)
    top = problem.settings.top
    return Found(estimate.needed(top), problem.rank(estimate.order()), estimate, seen)


def greedy(problem: Problem) -> Search:
    """Knock out every head alone, keep the one with the largest drop, repeat with it gone.

    As many heads as asked for are named, as published: a round's lowest score decides, also where
    it is not below that of the round before. `steps` tells what each head took.
    """
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    seen = Measurements.none(problem.heads)
    gone: list[int] = []
    alone = np.zeros(problem.heads)  # each head's score in the first round
    scores = [float(np.mean(list(intact.values()))) if intact else np.nan]
    while len(gone) < min(problem.settings.top, len(problem.eligible)):
        others = [column for column in problem.eligible if column not in gone]
        masks = designs.singles(problem.heads)
        masks[:, gone] = True
        measured = yield Plan.crossed(problem.probe, masks[others], problem.examples)
        seen = seen.joined(measured)
        # A mask that could not be scored is no candidate. Of equals, which there are once nothing
        # is left to lose, the head that costs most alone: the grid's order would say layer 0.
        means = np.nan_to_num(measured.mask_means(), nan=np.inf)
        if not gone:
            alone[others] = means
        best = int(np.lexsort((alone[others], means))[0])
        if means[best] == np.inf:
            break
        gone.append(others[best])
        scores.append(float(means[best]))
    estimate = fit_paired(seen, intact)
    rest = [column for column in estimate.order() if column not in gone]
    steps = [
        {"head": column, "score": score, "added": number(before - score)}
        for column, (before, score) in zip(gone, pairwise(scores), strict=True)
    ]
    idle = sum(step["added"] is not None and step["added"] <= 0 for step in steps)
    return Found(
        gone,
        problem.rank(gone + rest),
        estimate,
        seen,
        diagnostics={"steps": steps},
        notes=[IDLE_STEPS.format(idle, len(steps))] if idle else [],
    )


def rounds(problem: Problem) -> int:
    """Count the masks of all rounds: one round of heads after another, each one head shorter."""
    heads = len(problem.eligible)
    return sum(heads - gone for gone in range(min(problem.settings.top, heads)))


def draw_choices(problem: Problem, draw: Draw) -> dict[float, Masks]:
    """Draw the masks of every rate to try, as many as the largest setting takes.

    Each design is there once. Raises BadOption if a rate named is less than a head a mask.
    """
    most = problem.settings.mask_counts[-1]
    drawn: dict[float, Masks] = {}
    for rate in rates_to_try(problem):
        masks = draw_masks(problem, draw, most, rate)
        if not any(np.array_equal(masks, other) for other in drawn.values()):
            drawn[rate] = masks
    return drawn


def rates_to_try(problem: Problem) -> list[float]:
    """List the rates named, or the paper's, each a head a mask at least.

    Raises BadOption if a rate named is less than that.
    """
    heads = len(problem.eligible)
    lowest = ceil(10_000 / heads) / 10_000
    named = problem.settings.rates
    if named is None:
        return list(dict.fromkeys(max(rate, lowest) for rate in RATES))
    if int(named[0] * heads) == 0:
        raise BadOption(
            f"--rates {named[0]:g} of {heads} heads is less than one head a mask; "
            f"use {lowest:.4f} or more."
        )
    return list(named)


def count_choices(problem: Problem) -> int:
    """Count the masks of all settings at most, the heads found by each as one more."""
    counts, rates = problem.settings.mask_counts, rates_to_try(problem)
    return len(rates) * (counts[-1] + len(counts))


@dataclass(frozen=True)
class Tried:
    """One setting and what it found."""

    masks: int
    rate: float
    estimate: Estimate
    seen: Measurements
    heads: list[int]


def tuned(problem: Problem, draw: Draw) -> Search:
    """Fit every setting, and keep the one whose heads cost most together; none if none costs.

    Of equals it is the one of the fewest masks, then of the lowest rate. Rates are asked one after
    another, each with the masks of its largest setting; a smaller one uses the first of them, which
    are those that it would have drawn alone.
    """
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    tried = []
    for rate, masks in draw_choices(problem, draw).items():
        what = f"masks of {100 * rate:.3g} % of the heads"
        measured = yield Plan.crossed(problem.probe, masks, problem.examples, what)
        for count in problem.settings.mask_counts:
            seen = replace(measured.where(measured.mask < count), masks=masks[:count])
            estimate = fit_paper_lasso(seen, intact)
            heads = estimate.needed(problem.settings.top)
            tried.append(Tried(count, rate, estimate, seen, heads))
    tried.sort(key=lambda each: (each.masks, each.rate))
    masks = problem.without_each([each.heads for each in tried])
    measured = yield Plan.crossed(problem.probe, masks, problem.examples, "whole sets")
    before = np.array([intact.get(example, np.nan) for example in problem.examples])
    losses = before - measured.outcome.reshape(len(tried), -1)
    settings = [describe_setting(*each) for each in zip(tried, losses, strict=True)]
    drops = [-np.inf if each["drop"] is None else each["drop"] for each in settings]
    chosen = int(np.argmax(drops))
    kept = tried[chosen]
    told = {"settings": settings, "chosen": chosen, "masks": kept.masks, "rate": kept.rate}
    ranking, useful = problem.rank(kept.estimate.order()), drops[chosen] > 0
    return Found(
        kept.heads if useful else [],
        ranking,
        kept.estimate,
        kept.seen,
        diagnostics=told,
        notes=[] if useful else [NO_SETTING],
    )


def describe_setting(setting: Tried, losses: Losses) -> dict[str, Any]:
    """Tell a setting and what its heads cost, with its standard error; None if not known."""
    scored = losses[np.isfinite(losses)]
    drop = float(scored.mean()) if scored.size else np.nan
    error = float(scored.std(ddof=1)) / scored.size**0.5 if scored.size > 1 else np.nan
    told = {"masks": setting.masks, "rate": setting.rate, "heads": setting.heads}
    return told | {"drop": number(drop), "stderr": number(error)}
