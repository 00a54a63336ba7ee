"""What no search can find: tasks in which a knockout could show nothing."""

import numpy as np
from scipy import stats

from caploc.components import ALONE
from caploc.recovery.estimate import Estimate, Measurements, is_binary
from caploc.search.plan import Found, Problem

FEWEST_RIGHT = 10  # examples that the intact model must get right
NOTHING_SCORED = (
    "The model gives no right answer that reads the same in one pass, so there is nothing to scan. "
    "Use --outcome logprob, or --method one-shot."
)
ABOVE_CHANCE = 0.05  # largest p at which an intact score counts as better than guessing


def nothing_to_lose(problem: Problem, intact: dict[int, float]) -> str | None:
    """Say why no knockout could show anything, if so."""
    if not intact:
        return "None of the intact model's answers could be scored: there is nothing to compare."
    if not is_binary(intact):
        spread = np.ptp(list(intact.values()))
        return None if spread else "The intact model's outcomes do not differ: nothing to measure."
    right = int(sum(intact.values()))
    needed = min(FEWEST_RIGHT, len(intact))
    if right < needed:
        return (
            f"The intact model gets {right} of the {len(intact)} examples for the search right, "
            f"too few ({needed} are needed) for a knockout to take anything away. See "
            "whether it is asked as it should be (does the model begin its answers as yours "
            "begin?); use a task that it can do, more examples, or --outcome logprob."
        )
    if problem.chance:
        test = stats.binomtest(right, len(intact), problem.chance, alternative="greater")
        if test.pvalue > ABOVE_CHANCE:
            return (
                f"The intact model gets {right} of {len(intact)} examples right, no better than "
                f"guessing ({problem.chance:.0%}): the task is at chance, and heads cannot be told "
                "from noise. Use --outcome logprob, or a model that can do the task."
            )
    return None


def nothing_found(problem: Problem, why: str) -> Found:
    """Find no head, and give the reason."""
    unknown = np.full(problem.heads, np.nan)
    estimate = Estimate("paired", *(unknown,) * 4, estimand=ALONE)
    return Found([], estimate.order(), estimate, Measurements.none(problem.heads), notes=[why])
