"""The published searches and their rivals: masks known beforehand, or one head after another.

The paper's own search for a setting, how many masks at which rate, is one of them. Each setting is
fitted on the same examples, the heads that it finds are knocked out together, and the setting whose
heads cost most is kept, still on those examples (arXiv 2603.03335, appendix A.1). A choice made and
judged on the same examples flatters itself; examples that had no part in it tell by how much. A
budget may not pay for all settings: then some are tried.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from math import ceil
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy import stats

from caploc import designs
from caploc.components import ALONE, Masks
from caploc.errors import BadOption
from caploc.recovery import CONFIDENCE, ESTIMATORS, fit_paired
from caploc.recovery.estimate import Estimate, Measurements, PerExample
from caploc.result import number
from caploc.search.plan import Asking, Found, Plan, Problem, Search, intact_plan

RATES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1)  # arXiv 2603.03335, appendix A.1, gives both ends
KEPT = 10  # one row of so many is kept for the check on fresh examples, of a budget
MOST_CHECKED = 300  # fresh examples that every set of heads is tried on, at most
IDLE_STEPS = (
    "{} of the {} heads lowered the score no further when greedy took them: it takes the lowest "
    "score of each round, of equal ones the head that costs most alone."
)
FIGURES = ("drop", "stderr", "held_out_drop", "held_out_stderr")

Draw = Callable[..., Masks]  # of `designs`: heads and masks, by rate and seed
Losses = Float[np.ndarray, " _"]  # of examples
LossesOfSets = Float[np.ndarray, "sets _"]


def random_masks(problem: Problem, draw: Draw) -> Search:
    """Draw random masks and fit the Lasso, as published; `draw` is of `designs`."""
    settings = problem.settings
    masks = draw_masks(problem, draw, settings.masks, settings.rate)
    return crossed(problem, masks, "lasso")


def draw_masks(problem: Problem, draw: Draw, count: int, rate: float) -> Masks:
    """Draw masks among the heads that may be knocked out.

    Leaving out masks that hold an excluded head would lose many of them, and the balance.
    """
    masks = draw(len(problem.eligible), count, rate=rate, seed=problem.settings.seed)
    return problem.over_all(masks)


def one_shot(problem: Problem) -> Search:
    """Knock out every head alone, once."""
    masks = problem.over_all(designs.singles(len(problem.eligible)))
    return crossed(problem, masks, "paired")


def crossed(problem: Problem, masks: Masks, usual: str) -> Search:
    """Ask all masks on all examples; the most negative effects are the heads found."""
    estimator = ESTIMATORS[problem.settings.estimator or usual]
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    seen = yield Plan.crossed(problem.probe, masks, problem.examples)
    estimate = estimator(seen, intact)
    if (masks.sum(axis=1) == 1).all():  # whichever estimator reads them
        estimate = replace(estimate, estimand=ALONE)
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


@dataclass(frozen=True)
class Choices:
    """Numbers of masks, and the masks of each rate; a setting with fewer uses the first of them."""

    counts: list[int]
    drawn: dict[float, Masks]

    @classmethod
    def published(cls, problem: Problem, draw: Draw) -> "Choices":
        """List all that the problem's settings name, each design once.

        Raises BadOption if a rate named is less than a head a mask.
        """
        settings = problem.settings
        counts = list(settings.mask_counts)
        drawn: dict[float, Masks] = {}
        for rate in rates_to_try(problem):
            masks = draw_masks(problem, draw, counts[-1], rate)
            if not any(np.array_equal(masks, other) for other in drawn.values()):
                drawn[rate] = masks
        return cls(counts, drawn)

    @property
    def settings(self) -> list[tuple[int, float]]:
        """Masks and rate of every setting, the fewest masks first."""
        return list(product(self.counts, self.drawn))

    def rows(self, examples: int) -> int:
        """The most rows that trying all of them takes: different masks, and a set a setting."""
        masks = {mask.tobytes() for drawn in self.drawn.values() for mask in drawn if mask.any()}
        return (len(masks) + len(self.settings)) * examples

    def thinner(self) -> Iterator["Choices"]:
        """Fewer and fewer settings: the largest numbers of masks go first, then rates.

        As long as several rates are left these are the middle ones of as many equal runs.
        """
        every = list(self.drawn)
        parts = [(self.counts[:kept], every) for kept in range(len(self.counts), 0, -1)]
        for kept in range(len(every) - 1, 1, -1):
            middle = [every[int((run + 0.5) * len(every) / kept)] for run in range(kept)]
            parts.append((self.counts[:1], middle))
        for counts, rates in parts:
            yield Choices(counts, {rate: self.drawn[rate][: counts[-1]] for rate in rates})

    def bought(self, problem: Problem) -> "Choices":
        """All of them, or the first thinner ones that nine tenths of the budget pay for.

        Raises BadOption if it does not pay for two rates with the fewest masks.
        """
        budget, examples = problem.settings.budget, len(problem.examples)
        if budget is None:
            return self
        needed = []
        for choices in self.thinner():
            needed.append(choices.rows(examples))
            if needed[-1] <= budget - budget // KEPT:
                return choices
        least = min(needed) + (min(needed) - 1) // (KEPT - 1)
        raise BadOption(
            f"--budget {budget} is too small: a search for the setting needs {least} rows or more "
            f"on {examples} examples; use fewer --examples, or css or csb with one setting."
        )


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


def check_choices(problem: Problem, draw: Draw) -> None:
    """Refuse, by a BadOption, settings that cannot be tried."""
    Choices.published(problem, draw).bought(problem)


def rows_of_choices(problem: Problem, draw: Draw) -> int:
    """Return the budget of a search for a setting; without one, the rows of all settings."""
    choices, checked = Choices.published(problem, draw), problem.fresh[:MOST_CHECKED]
    most = choices.rows(len(problem.examples)) + len(choices.settings) * len(checked)
    return problem.settings.budget or most


@dataclass
class Sheet:
    """Outcomes of masks on the same examples; each mask is asked once.

    `rows` counts all that was asked but the intact rows, which every method needs.
    """

    problem: Problem
    examples: Sequence[int]
    known: dict[bytes, PerExample] = field(default_factory=dict)
    rows: int = 0

    def begin(self) -> Asking[None]:
        """Ask what the intact model does."""
        measured = yield intact_plan(self.problem, self.problem.probe, self.examples)
        self.known[self.problem.empty().tobytes()] = measured.outcome

    def ask(self, masks: Masks, what: str) -> Asking[None]:
        """Have every mask measured on every example, unless it has been."""
        fresh = {mask.tobytes(): mask for mask in masks if mask.tobytes() not in self.known}
        if fresh:
            masks = np.stack(list(fresh.values()))
            measured = yield Plan.crossed(self.problem.probe, masks, self.examples, what)
            self.rows += len(measured.outcome)
            outcomes = measured.outcome.reshape(len(fresh), -1)
            self.known |= dict(zip(fresh, outcomes, strict=True))

    def measured(self, masks: Masks) -> Measurements:
        """The outcomes of masks that were asked, as an estimator takes them."""
        plan = Plan.crossed(self.problem.probe, masks, self.examples)
        outcome = np.concatenate([self.known[mask.tobytes()] for mask in masks])
        return Measurements(masks, plan.mask, plan.example, outcome)

    def without(
        self, sets: Sequence[Sequence[int]], what: str
    ) -> Asking[Float[np.ndarray, "sets examples"]]:
        """Every example's outcome with all heads of a set gone; NaN where it was not scored."""
        masks = self.problem.without_each(sets)
        yield from self.ask(masks, what)
        return np.stack([self.known[mask.tobytes()] for mask in masks])

    def losses(self, sets: Sequence[Sequence[int]]) -> Asking[LossesOfSets]:
        """What each example loses with all heads of a set gone; intact outcomes must be known."""
        left = yield from self.without(sets, "whole sets")
        return self.known[self.problem.empty().tobytes()] - left


@dataclass(frozen=True)
class Tried:
    """One setting and what it found."""

    masks: int
    rate: float
    estimate: Estimate
    seen: Measurements
    heads: list[int]


def tuned(problem: Problem, draw: Draw) -> Search:
    """Fit every setting, keep the one whose heads cost most, and see what they cost elsewhere.

    Rates are asked one after another, each with the masks of its largest setting; a smaller one
    uses the first of them, which are those that it would have drawn alone.
    """
    offered = Choices.published(problem, draw)
    choices = offered.bought(problem)
    sheet = Sheet(problem, problem.examples)
    yield from sheet.begin()
    for rate, masks in choices.drawn.items():
        yield from sheet.ask(masks, f"masks of {100 * rate:.3g} % of the heads")
    tried = fit_settings(problem, choices, sheet)
    named = [tuple(sorted(setting.heads)) for setting in tried]  # whatever their order
    sets = list(dict.fromkeys(named))
    losses = yield from sheet.losses(sets)
    checked, budget = list(problem.fresh)[:MOST_CHECKED], problem.settings.budget
    if budget is not None:
        checked = checked[: max(budget - sheet.rows, 0) // len(sets)]
    fresh = Sheet(problem, checked)
    elsewhere = np.zeros((len(sets), 0))
    if fresh.examples:
        yield from fresh.begin()
        elsewhere = yield from fresh.losses(sets)
    told = {
        "offered": len(offered.settings),
        "budget": rows_of_choices(problem, draw),
        "rows": sheet.rows + fresh.rows,
        "chosen_on": len(sheet.examples),
        "checked_on": len(fresh.examples),
    }
    place = [sets.index(each) for each in named]
    return summarize_tuned(problem, tried, place, (losses, elsewhere), told)


def fit_settings(problem: Problem, choices: Choices, sheet: Sheet) -> list[Tried]:
    """Estimate from each setting's own masks, as `css` and `csb` do."""
    estimator = ESTIMATORS[problem.settings.estimator or "lasso"]
    intact = sheet.measured(problem.empty()[None]).by_example()
    tried = []
    for count, rate in choices.settings:
        seen = sheet.measured(choices.drawn[rate][:count])
        estimate = estimator(seen, intact)
        heads = estimate.needed(problem.settings.top)
        tried.append(Tried(count, rate, estimate, seen, heads))
    return tried


def summarize_tuned(
    problem: Problem,
    tried: Sequence[Tried],
    place: Sequence[int],
    losses: tuple[LossesOfSets, LossesOfSets],
    told: dict[str, Any],
) -> Found:
    """Put together what the search hands back: the chosen setting's fit, and figures of all.

    `place` is each setting's place among the different sets, and `losses` what these cost on the
    examples of the choice, and on fresh ones. Chosen is the setting whose heads cost most; of
    equals the one of the fewest masks, then of the lowest rate.
    """
    settings = [
        describe_setting(setting, losses[0][number], losses[1][number])
        for setting, number in zip(tried, place, strict=True)
    ]
    drops = [-np.inf if each["drop"] is None else each["drop"] for each in settings]
    chosen = int(np.argmax(drops))
    kept = tried[chosen]
    told |= {
        "settings": settings,
        "chosen": chosen,
        "masks": kept.masks,
        "rate": kept.rate,
        # heads were fitted to these examples, and the setting was chosen on them
        "optimism": excess(*(each[place[chosen]] for each in losses)),
    }
    heads = kept.heads if drops[chosen] > 0 else []
    ranking = problem.rank(kept.estimate.order())
    return Found(heads, ranking, kept.estimate, kept.seen, diagnostics=told, notes=notes(told))


def describe_setting(setting: Tried, losses: Losses, fresh: Losses) -> dict[str, Any]:
    """Tell a setting and what its heads cost; None for what is not known."""
    figures = map(number, (*mean_loss(losses), *mean_loss(fresh)))
    told = {"masks": setting.masks, "rate": setting.rate, "heads": setting.heads}
    return told | dict(zip(FIGURES, figures, strict=True))


def mean_loss(losses: Losses) -> tuple[float, float]:
    """Average the examples scored, with the standard error; NaN where there are too few."""
    scored = losses[np.isfinite(losses)]
    if not scored.size:
        return float("nan"), float("nan")
    error = scored.std(ddof=1) / scored.size**0.5 if scored.size > 1 else float("nan")
    return float(scored.mean()), float(error)


def excess(used: Losses, fresh: Losses) -> dict[str, float] | None:
    """Mean loss on the examples of the choice less that on fresh ones, with Welch's interval.

    None with fewer than two scored examples of either kind.
    """
    used, fresh = used[np.isfinite(used)], fresh[np.isfinite(fresh)]
    if min(used.size, fresh.size) < 2:
        return None
    value = float(used.mean() - fresh.mean())
    shares = np.array([values.var(ddof=1) / values.size for values in (used, fresh)])
    stderr, half = float(shares.sum() ** 0.5), 0.0
    if stderr > 0:
        freedom = shares.sum() ** 2 / (shares**2 / [used.size - 1, fresh.size - 1]).sum()
        half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * stderr
    return {"value": value, "stderr": stderr, "low": value - half, "high": value + half}


def notes(told: dict[str, Any]) -> list[str]:
    """Say what a reader should know of the choice, the weightiest first."""
    tried, surplus, sentences = told["settings"], told["optimism"], list[str]()
    best = tried[told["chosen"]]["drop"]
    if best is None or best <= 0:
        sentences.append(
            "No setting found heads that lower the score when knocked out together: none is named."
        )
    if surplus is not None and surplus["low"] > 0:
        sentences.append(
            f"The choice flatters itself: the heads named lower the score by {surplus['value']:.3f}"
            f" (95 % interval {surplus['low']:.3f} to {surplus['high']:.3f}) more where they were "
            "found and chosen than on fresh examples."
        )
    if not told["checked_on"]:
        sentences.append("No fresh examples were left to tell how much the choice flatters itself.")
    if len(tried) < told["offered"]:
        sentences.append(f"The budget bought {len(tried)} of {told['offered']} settings.")
    return sentences
