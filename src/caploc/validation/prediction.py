"""Do the effects, added up, predict masks that they were not fitted to?"""

import numpy as np

from caploc import designs
from caploc.recovery import noise_ceiling
from caploc.result import Prediction, number
from caploc.search import Found
from caploc.validation.check import Check, scored_everywhere

MASKS = 30
EXAMPLES = 20
SHARE = 0.5  # of the masks that hold heads of the shortlist on purpose
FEWEST = 10  # masks with distinct predictions, below which R² means little


def predicted(check: Check, found: Found, rate: float) -> Prediction | None:
    """R² of the mask means on the sum of their heads' effects, beside its noise ceiling.

    Slope and intercept are fitted: effects are those of single heads, and several gone at once may
    cost less than their sum. The ceiling is the share of the variance that is not the noise of
    having so few examples. A high R² does not prove that effects add up: heads with no effect alone
    can still matter together. None if nothing is predicted, or nothing could be
    scored, or the scores do not differ.
    """
    effect = np.nan_to_num(found.estimate.effect)
    if not effect.any():
        return None
    masks = draw_masks(check, found, rate)
    outcomes = scored_everywhere(check.on_first(EXAMPLES).outcomes(masks, "held-out masks"))
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
