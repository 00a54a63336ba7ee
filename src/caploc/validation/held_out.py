"""The finding on examples that the search never saw, beside random heads.

Everything here is measured on the same examples: the chosen heads together and each alone, random
sets of other heads, and masks that the effects, added up, should predict.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from caploc import designs
from caploc.heads import Mask
from caploc.recovery.estimate import noise_ceiling
from caploc.result import Controls, HeldOut, JointDrop, Prediction, Spread, number
from caploc.search import Found, column_mask
from caploc.validation.comparison import Check, score_both, scored_everywhere

RESAMPLES = 2000  # of the bootstrap over examples
CONFIDENCE = 95.0
RANDOM, SAME_GROUPS = "random controls", "controls of the same groups"  # what rows are asked for


def held_out(check: Check, found: Found, rate: float) -> tuple[HeldOut, Controls | None]:
    """Everything that is checked on these examples."""
    chosen = column_mask(check.grid.size, found.chosen)
    compared = score_both(check.meter, chosen, check.examples, check.progress)
    shortlist = chosen.copy()
    shortlist[[*found.diagnostics.get("shortlist", []), *found.critical]] = True
    random = controls(check, chosen, shortlist, compared.knocked_out.score)
    return HeldOut(
        fresh=check.fresh,
        examples=len(check.examples),
        intact=compared.intact.score,
        knocked_out=compared.knocked_out.score,
        change=compared.change,
        together=joint_ratio(check, found.chosen),
        prediction=predicted(check, found, rate) if check.draws else None,
    ), random


def controls(check: Check, chosen: Mask, avoid: Mask, score: float | None) -> Controls | None:
    """Scores without random other heads, as many in each layer; None without draws or heads.

    Where query heads share key-value heads, further draws come from the same groups as the chosen
    heads: a group's heads often do related work. They hold fewer heads than are chosen where a
    group is chosen whole, and there may be few different ones; each is measured once.
    """
    if not check.draws or not chosen.any():
        return None
    masks = designs.layer_matched_masks(
        chosen, check.grid.layer_slices, check.draws, seed=check.seed, avoid=avoid
    )
    if not masks.any(axis=1).all():
        return None
    random = describe_controls(check.scores(masks, RANDOM), score)
    groups = [list(columns) for columns in check.grid.groups if len(columns) > 1]
    near = np.unique(designs.neighbours(chosen, groups, check.draws, seed=check.seed + 1), axis=0)
    same = None
    if len(near):
        scores = check.scores(near, SAME_GROUPS)
        same = describe_controls(scores, score).model_copy(update={"heads": int(near[0].sum())})
    return Controls(
        examples=len(check.examples), chosen=score, **random.as_dict(), same_groups=same
    )


def describe_controls(scores: list[float | None], chosen: float | None) -> Spread:
    """Scores of random draws, and how far the chosen heads' score lies below them."""
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
    """The drop of all chosen heads together over the sum of their drops alone.

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
    tail = (100 - CONFIDENCE) / 2
    low, high = np.percentile(ratios, [tail, 100 - tail]) if ratios.size else (np.nan, np.nan)
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
    """Random masks without critical heads; every other one with a chosen head in it."""
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
