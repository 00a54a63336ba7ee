"""Heads that break the task alone: found while screening, confirmed alone, set aside.

Such a head turns every mask that holds it into a failure and hides what the other heads of the mask
do.
"""

import numpy as np
from jaxtyping import Bool
from scipy import sparse

from caploc import designs
from caploc.heads import Mask
from caploc.recovery import Measurements
from caploc.recovery.estimate import PerHead, survived
from caploc.search.plan import Plan

SHARE = 0.6  # of what is left without the head, that the head takes, to be suspected
DEVIATIONS = 3.5  # by which it must do so, in standard errors
SUSPECTED = 1.5  # the same before a screen ends, when a head could not be told for sure so far
CUTS = 4  # of it, at least
TRIED_ALONE = 12  # right examples that a suspect is tried on alone
SURVIVORS = 3  # of them, at most, for the suspicion to hold
ELSEWHERE = 0.5  # share of another task's right answers that a universal head takes at least


def suspects(
    seen: Measurements, alive: Bool[np.ndarray, " rows"], known: Mask, doubt: float = DEVIATIONS
) -> list[int]:
    """Heads under which most of what works without them fails; the strongest first.

    The loss is judged against rows without the heads found so far, so that one such head does
    not hide the next; it is one of `doubt` standard errors or more. `known` heads are set aside
    from the start.
    """
    cuts = sparse.csr_matrix(seen.masks, dtype=np.float64)[seen.mask]
    aside = known.copy()
    found: list[int] = []
    while True:
        clean = np.asarray(cuts @ aside).ravel() == 0
        z = deviations(cuts[clean], alive[clean])
        z[aside] = 0
        worst = int(np.argmax(z))
        if z[worst] < doubt:
            return found
        found.append(worst)
        aside[worst] = True


def deviations(cuts: sparse.csr_matrix, alive: Bool[np.ndarray, " rows"]) -> PerHead:
    """By how many standard errors each head takes more than its share allows; 0 if it does not."""
    rows = len(alive)
    with_head = np.asarray(cuts.sum(axis=0)).ravel()
    right_with = np.asarray(cuts.T @ alive.astype(float)).ravel()
    without = np.maximum(rows - with_head, 1)
    rest = (alive.sum() - right_with) / without
    mean = right_with / np.maximum(with_head, 1)
    error = np.sqrt(np.maximum(rest * (1 - rest), 1e-9) / np.maximum(with_head, 1))
    strong = (with_head >= CUTS) & (mean < (1 - SHARE) * rest)
    found: np.ndarray = np.where(strong, (rest - mean) / error, 0.0)
    return found


def single_head_plan(heads: int, columns: list[int], examples: list[int], task: int = 0) -> Plan:
    """Each head by itself on every one of the examples."""
    masks = designs.singles(heads)[columns]
    return Plan.crossed(masks, examples, task=task, what="critical heads")


def broken(measured: Measurements, intact: dict[int, float], share: float) -> bool:
    """Whether at most `share` of the rows are still alive."""
    alive = survived(measured, intact)
    return bool(alive.sum() <= share * len(alive))
