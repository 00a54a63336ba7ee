"""Other ways to find heads, as searches: they plan rows and return what they found.

The rival methods are written after their descriptions, with the choices that favour them: those
that ask single heads ask only examples that the intact model gets right.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import fields, replace
from functools import partial
from math import ceil, log2

import numpy as np
from sklearn.linear_model import RidgeCV

from caploc import designs
from caploc.recovery import Estimate, Estimator, Measurements, fit_paper_lasso
from caploc.search import Found, Plan, Problem, Search, column_mask
from caploc.search.plan import intact_plan

MASKS = (100, 200, 400)  # that the paper's search tries
RATES = (0.01, 0.02, 0.05, 0.1)
PENALTIES = np.logspace(-3, 3, 25)  # that ridge regression chooses from, by leaving one mask out


def right(intact: dict[int, float]) -> list[int]:
    """The examples that the intact model gets right; all if it gets none."""
    return [example for example, outcome in intact.items() if outcome] or list(intact)


def halving(problem: Problem) -> Search:
    """Successive halving (Karnin et al., 2013) of single heads.

    Every round spends an equal part of the budget on the heads left, each alone, and drops the half
    that lost least; a head keeps what it lost in earlier rounds.
    """
    settings, heads = problem.settings, problem.heads
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    random = designs.generator(settings.seed)
    order = random.permutation(right(intact)).tolist()
    rounds = max(1, ceil(log2(heads / settings.top)))
    each = (settings.budget or 16 * heads) // rounds
    left, dropped = random.permutation(heads).tolist(), list[int]()  # chance breaks ties
    lost, used = np.zeros(heads), 0
    while len(left) > settings.top:
        examples = order[used : used + max(1, each // len(left))]
        used += len(examples)
        lost[left] += yield from losses(problem, left, examples, intact)
        left.sort(key=lambda column: lost[column])
        keep = max(settings.top, len(left) // 2)
        half = left[-keep:]
        dropped += left[:-keep]
        left = half
    ranking = [*dropped, *left][::-1]
    return Found(ranking[: settings.top], ranking, ranked(heads, ranking), Measurements.none(heads))


def losses(
    problem: Problem, columns: list[int], examples: list[int], intact: dict[int, float]
) -> Generator[Plan, Measurements, np.ndarray]:
    """The sum over examples of what each head alone takes; 0 where no example is left."""
    if not examples:
        return np.zeros(len(columns))
    masks = designs.singles(problem.heads)[columns]
    measured = yield Plan.crossed(problem.probe, masks, examples, "single heads")
    before = np.array([intact[int(example)] for example in measured.example])
    loss = np.nan_to_num(before - measured.outcome)
    return np.bincount(measured.mask, loss, minlength=len(columns))


def ranked(heads: int, ranking: Sequence[int]) -> Estimate:
    """An estimate that knows an order and no effects."""
    unknown = np.full(heads, np.nan)
    effect = np.zeros(heads)
    effect[list(ranking)] = np.arange(len(ranking)) - len(ranking)
    return Estimate("order", effect, unknown, unknown, unknown)


def least_squares(seen: Measurements, intact: dict[int, float], *, ridge: bool) -> Estimate:
    """Regression of the mask means on the masks, as COAR attributes to components.

    `ridge` False takes the solution of least norm, which is the ordinary one where masks outnumber
    heads. Effects are in units of the score.
    """
    scores = seen.mask_means()
    measured = ~np.isnan(scores)
    masks, scores = seen.masks[measured].astype(float), scores[measured]
    if ridge:
        effect = RidgeCV(PENALTIES).fit(masks, scores).coef_
    else:
        effect = np.linalg.lstsq(masks - masks.mean(axis=0), scores - scores.mean())[0]
    unknown = np.full(seen.masks.shape[1], np.nan)
    return Estimate("least squares", effect, unknown, unknown, unknown)


def regression(problem: Problem) -> Search:
    """Least squares with a ridge on random masks crossed with examples (Shah et al., 2024)."""
    return on_random_masks(problem, partial(least_squares, ridge=True))


def ordinary_regression(problem: Problem) -> Search:
    """The same without a ridge."""
    return on_random_masks(problem, partial(least_squares, ridge=False))


def on_random_masks(problem: Problem, estimator: Estimator) -> Search:
    """Masks that cut every head on its own with the chance of the settings, and one fit."""
    settings, heads = problem.settings, problem.heads
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    masks = designs.bernoulli(heads, settings.masks, rate=settings.rate, seed=settings.seed)
    seen = yield Plan.crossed(problem.probe, masks, problem.examples)
    estimate = estimator(seen, intact)
    return Found(estimate.needed(settings.top), estimate.order(), estimate, seen)


def css_searched(problem: Problem, struck: Sequence[int] = ()) -> Search:
    """css with the paper's search: fewer masks within more, every rate, the heads that hurt most.

    For every setting the heads found (but those struck) are knocked out together on the examples;
    those under which the score is lowest are kept.
    """
    settings, heads = problem.settings, problem.heads
    intact = (yield intact_plan(problem, problem.probe, problem.examples)).by_example()
    estimates = []
    for rate in RATES:
        masks = designs.stratified(heads, max(MASKS), rate=rate, seed=settings.seed)
        seen = yield Plan.crossed(problem.probe, masks, problem.examples)
        parts = [seen.where(seen.mask < count) for count in MASKS]
        estimates += [fit_paper_lasso(part, intact) for part in parts]
    sets = [
        [column for column in estimate.order() if column not in struck][: settings.top]
        for estimate in estimates
    ]
    best = estimates[(yield from hardest(problem, sets))]
    return Found(best.needed(settings.top), best.order(), best, Measurements.none(heads))


def thompson(problem: Problem, *, mended: bool = False) -> Search:
    """The search of the paper's code that its text does not mention, which mixes up its polarity.

    Every head has a Beta distribution, uniform at first. In each round (`masks` of them) a number
    is drawn from each, the share `rate` of heads with the largest are knocked out together on all
    examples, and the score s (0 to 1) is their reward: (s, 1 - s) is added to the two parameters of
    those, half of (1 - s, s) to those of the others. Heads are ranked by their means, the largest
    first. So it is led to what can best be spared, and names that; `mended` rewards 1 - s instead.
    """
    settings, heads = problem.settings, problem.heads
    random = designs.generator(settings.seed)
    first, second = np.ones(heads), np.ones(heads)
    size = designs.check_mask_size(heads, settings.rate)
    for _ in range(settings.masks):
        drawn = np.argsort(random.beta(first, second), kind="stable")[-size:]
        mask = column_mask(heads, drawn.tolist())
        measured = yield Plan.crossed(problem.probe, mask[None], problem.examples, "rounds")
        score = float(np.nanmean(measured.outcome))
        reward = 1 - score if mended else score
        first += np.where(mask, reward, (1 - reward) / 2)
        second += np.where(mask, 1 - reward, reward / 2)
    ranking = np.argsort(-first / (first + second), kind="stable").tolist()
    return Found(ranking[: settings.top], ranking, ranked(heads, ranking), Measurements.none(heads))


def best_of(problem: Problem, effects: Sequence[np.ndarray]) -> Search:
    """Of several sets of effects that cost no rows, the one whose strongest heads hurt most."""
    orders = [np.argsort(effect, kind="stable").tolist() for effect in effects]
    tops = [order[: problem.settings.top] for order in orders]
    best = (yield from hardest(problem, tops)) if len(tops) > 1 else 0
    unknown = np.full(problem.heads, np.nan)
    estimate = Estimate("gradients", effects[best], unknown, unknown, unknown)
    return Found(tops[best], orders[best], estimate, Measurements.none(problem.heads))


def hardest(problem: Problem, sets: Sequence[Sequence[int]]) -> Generator[Plan, Measurements, int]:
    """Which of the sets lowers the score most."""
    masks = np.stack([column_mask(problem.heads, columns) for columns in sets])
    measured = yield Plan.crossed(problem.probe, masks, problem.examples, "sets")
    return int(np.argmin(np.nan_to_num(measured.mask_means(), nan=np.inf)))


def without(
    search: Callable[[Problem], Search], struck: Sequence[int]
) -> Callable[[Problem], Search]:
    """A search that never hears of the struck heads."""

    def narrowed(problem: Problem) -> Search:
        kept = np.setdiff1d(np.arange(problem.heads), list(struck))
        inner = search(replace(problem, heads=len(kept)))
        measured = None
        while True:
            try:
                plan = next(inner) if measured is None else inner.send(measured)
            except StopIteration as end:
                return widened(end.value, kept, problem.heads)
            masks = np.zeros((len(plan.masks), problem.heads), dtype=bool)
            masks[:, kept] = plan.masks
            measured = replace((yield replace(plan, masks=masks)), masks=plan.masks)

    return narrowed


def widened(found: Found, kept: np.ndarray, heads: int) -> Found:
    """What was found among the kept heads, as columns of all; the others are unknown."""
    arrays = {}
    for field in fields(found.estimate):
        value = getattr(found.estimate, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = np.full(heads, np.nan)
            arrays[field.name][kept] = value
    return replace(
        found,
        chosen=kept[found.chosen].tolist(),
        ranking=kept[found.ranking].tolist(),
        estimate=replace(found.estimate, **arrays),
        seen=Measurements.none(heads),
    )
