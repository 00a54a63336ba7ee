"""Does a finding hold on what it has not seen: fresh examples, random heads, other tasks?

A task's score is told intact and with the chosen heads knocked out: with all of them, and with the
first 0, 1, 2 ...; and how often answers change though nothing else did, the same rows being asked
in other batches. In bfloat16 and float16 the last digits of a sum depend on the order of its terms,
and so on the batch that a row is in; where two answers are nearly tied, that decides between them.

On examples that the search never saw, everything is measured on the same ones: the chosen heads
together and each alone, random sets of other heads, and masks that the effects, added up, should
predict.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from caploc import designs
from caploc.components import Grid, Mask, Masks
from caploc.contents import Curve
from caploc.cost import Cost
from caploc.errors import BadOption
from caploc.measurement import Meter, outcomes_by_example
from caploc.progress import Progress
from caploc.recovery import falls_short, paired
from caploc.recovery.estimate import noise_ceiling
from caploc.result import (
    SCHEMA,
    Change,
    Controls,
    Failures,
    HeldOut,
    JointDrop,
    Noise,
    Prediction,
    RunCost,
    Score,
    Spread,
    TaskComparison,
    number,
)
from caploc.search import Found, Plan, column_mask
from caploc.store import Row
from caploc.tasks.task import Task


@dataclass(frozen=True)
class Check:
    """What is checked, on what.

    `fresh` tells whether no search saw the examples; of a task with few, those of a search must do.
    """

    meter: Meter
    grid: Grid[Any]
    examples: Sequence[int]
    fresh: bool
    draws: int
    seed: int
    progress: Progress

    def measure(self, masks: Masks, what: str) -> list[Row]:
        """Measure every mask on every example."""
        plan = Plan.crossed(self.meter.task.name, masks, self.examples)
        return self.meter.measure(plan, self.progress, what)

    def scores(self, masks: Masks, what: str) -> list[float | None]:
        rows = self.measure(masks, what)
        return [self.meter.score(each).score for each in by_mask(rows, len(self.examples))]

    def outcomes(self, masks: Masks, what: str) -> Float[np.ndarray, "masks examples"]:
        """Outcomes of every mask on every example; NaN where one could not be scored."""
        rows = self.measure(masks, what)
        values = np.array([row.outcome for row in rows], dtype=float)
        return values.reshape(len(masks), len(self.examples))

    def without(self, sets: Sequence[Sequence[int]], what: str) -> list["Outcomes"]:
        """Outcomes of every example without each of the sets."""
        return [*self.outcomes(np.stack([column_mask(self.grid.size, s) for s in sets]), what)]


def by_mask(rows: list[Row], examples: int) -> Iterator[list[Row]]:
    """Yield the rows of each mask, of a plan that crosses masks and so many examples."""
    for first in range(0, len(rows), examples):
        yield rows[first : first + examples]


def scored_everywhere(
    outcomes: Float[np.ndarray, "masks examples"],
) -> Float[np.ndarray, "masks scored"]:
    """Keep the examples that could be scored under every mask."""
    return outcomes[:, np.isfinite(outcomes).all(axis=0)]


Outcomes = Float[np.ndarray, " examples"]
Scored = Float[np.ndarray, " scored"]


def scored_both(before: Outcomes, after: Outcomes) -> tuple[Scored, Scored, bool]:
    """Keep the examples scored in both; tell whether all of these are right or wrong."""
    both = np.isfinite(before) & np.isfinite(after)
    before, after = before[both], after[both]
    return before, after, bool(np.isin([before, after], (0.0, 1.0)).all())


MARGIN = 0.03  # change of an accuracy that counts as none
LEVEL = 0.05  # chance that as large a fall, or rise, is called none


@dataclass(frozen=True)
class Comparison:
    """A task's rows with no head and with the chosen heads knocked out, on the same examples."""

    task: Task
    intact: Score
    knocked_out: Score
    intact_rows: list[Row]
    knocked_out_rows: list[Row]

    @property
    def change(self) -> Change | None:
        return measure_change(self.intact_rows, self.knocked_out_rows)

    def result(self, failures: Failures | None) -> TaskComparison:
        return TaskComparison(
            name=self.task.name,
            metric=self.task.metric,
            higher_is_better=self.task.higher_is_better,
            intact=self.intact,
            knocked_out=self.knocked_out,
            change=self.change,
            failures=failures,
        )


def score_both(
    meter: Meter, knocked_out: Mask, examples: Sequence[int], progress: Progress
) -> Comparison:
    """Score a task intact and under the mask, on these examples."""
    empty = np.zeros(knocked_out.shape, dtype=bool)
    intact = meter.under(empty, examples, progress, f"{meter.task.name}, intact")
    cut = meter.under(knocked_out, examples, progress, f"{meter.task.name}, knocked out")
    return Comparison(meter.task, meter.score(intact), meter.score(cut), intact, cut)


def measure_change(intact: Sequence[Row], knocked_out: Sequence[Row]) -> Change | None:
    """Mean change of the outcome over examples scored in both, with its 95 % interval.

    `low` and `high` are those of `paired`; they and `stderr` are None with a single example.
    `verdict` says whether the change is beyond doubt (`changed`), within `MARGIN` points of none
    for sure (`unchanged`: the whole interval lies inside, and so it does by a test of either side
    at `LEVEL`, which the interval's ends do not keep), or neither (`open`); outcomes that are not 0
    and 1 have no margin.
    """
    differences, binary = scored_differences(intact, knocked_out)
    if not differences.size:
        return None
    count = differences.size
    stderr = float(differences.std(ddof=1)) / count**0.5 if count > 1 else None
    mean, low, high, _ = paired(differences, binary=binary)
    p = [falls_short(side * differences, MARGIN, binary=binary) for side in (1, -1)]
    return Change(
        outcome=mean,
        stderr=stderr,
        low=number(low),
        high=number(high),
        margin=MARGIN if binary else None,
        verdict=judge_change(low, high, MARGIN if binary and max(p) <= LEVEL else 0.0),
        examples=count,
    )


def scored_differences(intact: Sequence[Row], knocked_out: Sequence[Row]) -> tuple[Scored, bool]:
    """What each example scored in both changed by, and whether all are right or wrong."""
    before, after = outcomes_by_example(intact), outcomes_by_example(knocked_out)
    differences = np.array([after[e] - before[e] for e in before if e in after], dtype=float)
    return differences, set(before.values()) | set(after.values()) <= {0.0, 1.0}


def judge_change(low: float, high: float, margin: float) -> str:
    """Say what an interval says: changed, unchanged (within the margin), or open."""
    if low > 0 or high < 0:
        return "changed" if max(-low, high) > margin else "unchanged"
    return "unchanged" if low >= -margin and high <= margin else "open"


def check_limit(limit: int | None) -> None:
    """Refuse a limit that leaves nothing; raises BadOption if it is below 1."""
    if limit is not None and limit < 1:
        raise BadOption(f"--limit must be 1 or more; got {limit}.")


DRAWN = 8  # times as many draws of controls as are wanted, of which the different ones are taken


def draw_curve(
    grid: Grid[Any],
    heads: Sequence[str],
    judged: Sequence[tuple[Meter, Sequence[int]]],
    progress: Progress,
) -> Curve:
    """Score each task with the first 0, 1, ... of the heads out, on the examples beside its meter.

    The cost is that of these rows, whether they were measured now or before. Raises RunFailed if
    the machine gives up; rows already measured are kept.
    """
    masks = np.stack([grid.mask(heads[:count]) for count in range(len(heads) + 1)])
    curves: dict[str, list[Score]] = {}
    cost = Cost()
    for meter, examples in judged:
        what = f"{meter.task.name}, curve"
        rows = meter.measure(Plan.crossed(meter.task.name, masks, examples), progress, what)
        curves[meter.task.name] = list(map(meter.score, by_mask(rows, len(examples))))
        cost.count(list({(row.mask, row.example): row for row in rows}.values()))  # each once
    counted = RunCost.model_validate(cost.as_dict())
    return Curve(schema=SCHEMA, heads=list(heads), curves=curves, cost=counted)


ROUNDED = ("bfloat16", "float16")  # number formats in which it is worth asking
REPEATED = 50  # rows


def measure_noise(
    intact: Sequence[Row], again: Meter, heads: int, seed: int, progress: Progress
) -> Noise | None:
    """Ask some of the intact rows once more, in another order; None if none could be scored."""
    scored = [row for row in intact if not math.isnan(row.outcome)]
    order = designs.generator(seed + designs.REPEATS).permutation(len(scored))[:REPEATED]
    first = [scored[number] for number in order]
    if not first:
        return None
    examples = [row.number for row in first]
    second = again.under(column_mask(heads, []), examples, progress, "noise of rounding")
    both = zip(first, second, strict=True)
    change = np.abs([one.outcome - other.outcome for one, other in both])
    change = change[np.isfinite(change)]
    if not len(change):
        return None
    return Noise(rows=len(change), changed=int((change > 0).sum()), floor=float(change.mean()))


def above_noise(found: Found, noise: Noise | None) -> Found:
    """Name no head whose effect is as small as what changes by rounding alone; say so."""
    if noise is None:
        return found
    kept = [c for c in found.chosen if abs(found.estimate.effect[c]) > noise.floor]
    if dropped := len(found.chosen) - len(kept):
        heads = "One head is" if dropped == 1 else f"{dropped} heads are"
        note = (
            f"{heads} not named for an effect no larger than what rounding does: asked again in "
            f"other batches, {noise.changed} of {noise.rows} intact answers changed. Use "
            "--dtype float32 to see smaller effects."
        )
        return replace(found, chosen=kept, notes=[note, *found.notes])
    return found


RESAMPLES = 2000  # of the bootstrap over examples
ENDS = 2.5, 97.5  # percentiles of its interval
RANDOM, SAME_GROUPS = "random controls", "controls of the same groups"  # what rows are asked for


def held_out(check: Check, found: Found, rate: float) -> tuple[HeldOut, Controls | None]:
    """Check everything that is checked on these examples."""
    chosen = column_mask(check.grid.size, found.chosen)
    compared = score_both(check.meter, chosen, check.examples, check.progress)
    shortlist = chosen.copy()
    shortlist[[*(found.stages.tried if found.stages else []), *found.critical]] = True
    random = controls(check, chosen, shortlist, compared.knocked_out.score, found.critical)
    return HeldOut(
        fresh=check.fresh,
        examples=len(check.examples),
        intact=compared.intact.score,
        knocked_out=compared.knocked_out.score,
        change=compared.change,
        together=joint_ratio(check, found.chosen),
        prediction=predicted(check, found, rate) if check.draws else None,
    ), random


def controls(
    check: Check, chosen: Mask, avoid: Mask, score: float | None, critical: Sequence[int] = ()
) -> Controls | None:
    """Scores without random other heads, as many in each layer; None without draws or heads.

    No draw is measured twice: of few heads in a layer there may be fewer than were asked for.
    Where query heads share key-value heads, further draws come from the same groups as the chosen
    heads: a group's heads often do related work. They hold fewer heads than are chosen where a
    group is chosen whole, and there may be few different ones; each is measured once. What is known
    to break the task alone (`critical`) is no control there either.
    """
    if not check.draws or not chosen.any():
        return None
    drawn = designs.layer_matched_masks(
        chosen, check.grid.strata, DRAWN * check.draws, seed=check.seed, avoid=avoid
    )
    _, first = np.unique(drawn, axis=0, return_index=True)
    masks = drawn[np.sort(first)[: check.draws]]
    if not masks.any(axis=1).all():
        return None
    random = describe_controls(check.scores(masks, RANDOM), score)
    struck = {*critical} - {*np.flatnonzero(chosen).tolist()}
    # where every group is a whole layer, the draws above are from the same groups
    layers = [list(range(each.start, each.stop)) for each in check.grid.layer_slices]
    within = [each for each in check.grid.groups if each not in layers]
    groups = [each for g in within if len(each := [c for c in g if c not in struck]) > 1]
    near = np.unique(designs.neighbours(chosen, groups, check.draws, seed=check.seed + 1), axis=0)
    same = None
    if len(near):
        scores = check.scores(near, SAME_GROUPS)
        same = describe_controls(scores, score).model_copy(update={"heads": int(near[0].sum())})
    return Controls(
        examples=len(check.examples), chosen=score, **random.as_dict(), same_groups=same
    )


def describe_controls(scores: list[float | None], chosen: float | None) -> Spread:
    """Tell scores of random draws, and how far the chosen heads' score lies below them."""
    known = np.array([score for score in scores if score is not None], dtype=float)
    mean = float(known.mean()) if known.size else None
    deviation = float(known.std(ddof=1)) if known.size > 1 else None
    if known.size > 1 and np.ptp(known) == 0:  # not the rounding error of their mean
        deviation = 0.0
    far = None
    if mean is not None and deviation and chosen is not None:
        far = (mean - chosen) / deviation
    return Spread(draws=len(scores), scores=scores, mean=mean, sd=deviation, deviations=far)


def joint_ratio(check: Check, chosen: Sequence[int]) -> JointDrop | None:
    """Compare the drop of all chosen heads together with the sum of their drops alone.

    The interval is a bootstrap over examples, each drawn with all its outcomes. Below 1 the heads
    do the same work, or there is not enough score to lose; above 1 they stand in for each other.
    None with fewer than two heads; no ratio if their drops alone come to nothing.
    """
    if len(chosen) < 2:
        return None
    alone = designs.singles(check.grid.size)[list(chosen)]
    whole = column_mask(check.grid.size, chosen)
    masks = np.stack([np.zeros_like(whole), *alone, whole])
    outcomes = scored_everywhere(check.outcomes(masks, "chosen heads alone"))
    if not outcomes.shape[1]:
        return None
    joint, summed = outcomes[0] - outcomes[-1], (outcomes[0] - outcomes[1:-1]).sum(axis=0)
    drops = {"joint_drop": float(joint.mean()), "sum_of_drops": float(summed.mean())}
    if not summed.mean() > 0:
        return JointDrop(**drops, ratio=None, low=None, high=None)
    draw = designs.generator(check.seed).integers(0, len(joint), (RESAMPLES, len(joint)))
    below = summed[draw].mean(axis=1)
    ratios = joint[draw].mean(axis=1)[below > 0] / below[below > 0]
    low, high = np.percentile(ratios, ENDS) if ratios.size else (np.nan, np.nan)
    ratio = float(joint.mean() / summed.mean())
    return JointDrop(**drops, ratio=ratio, low=number(low), high=number(high))


MASKS = 30  # to predict
EXAMPLES = 20  # that they are on
SHARE = 0.5  # of the masks that hold heads of the shortlist on purpose
FEWEST = 10  # masks with distinct predictions, below which R² means little


def predicted(check: Check, found: Found, rate: float) -> Prediction | None:
    """R² of the mask means on the sum of their heads' effects, beside its noise ceiling.

    Slope and intercept are fitted: effects are those of single heads, and several gone at once may
    cost less than their sum. The ceiling is the share of the variance that is not the noise of
    having so few examples. A high R² does not prove that effects add up: heads with no effect alone
    can still matter together. None if nothing is predicted, every head breaks the task alone,
    nothing could be scored, or the scores do not differ.
    """
    effect = np.nan_to_num(found.estimate.effect)
    if not effect.any() or len(found.critical) == len(effect):
        return None
    masks = draw_masks(check, found, rate)
    few = replace(check, examples=list(check.examples)[:EXAMPLES])
    outcomes = scored_everywhere(few.outcomes(masks, "held-out masks"))
    if not outcomes.shape[1]:
        return None
    means, prediction = outcomes.mean(axis=1), masks @ effect
    if np.ptp(means) == 0 or len(np.unique(prediction)) < FEWEST:
        return None
    slope = float(np.cov(prediction, means)[0, 1] / prediction.var(ddof=1))
    return Prediction(
        r2=float(np.corrcoef(prediction, means)[0, 1] ** 2),
        ceiling=number(noise_ceiling(outcomes)),
        slope=slope,
        masks=len(masks),
        examples=outcomes.shape[1],
    )


def draw_masks(check: Check, found: Found, rate: float) -> np.ndarray:
    """Draw random masks without critical heads; every other one with a chosen head in it."""
    random = designs.generator(check.seed + 2)
    allowed = np.ones(check.grid.size, dtype=bool)
    allowed[found.critical] = False
    size = min(max(1, round(rate * check.grid.size)), int(allowed.sum()))
    masks = designs.scattered(allowed, MASKS, size=size, random=random)
    shown = [column for column in found.chosen if allowed[column]]
    for number_, mask in enumerate(masks[: int(SHARE * MASKS)]):
        if shown:
            mask[shown[number_ % len(shown)]] = True
    return masks
