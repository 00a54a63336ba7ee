"""Whether a search had better begin with likelihoods or with masks, where rows are few.

With less than `FEW_ROWS` rows a head, a look at likelihoods rests on two examples of each head at
most. It is then only worth its rows where a head of no account hardly moves a right answer's odds:
by .01 to .23 nats on six tasks of SmolLM2, by .26 and more where rows have luck.
"""

from collections.abc import Sequence

import numpy as np

from caploc import designs
from caploc.search.plan import Asking, Plan, Problem
from caploc.search.state import SearchState, right_of

FEW_ROWS, UNSTEADY = 8.5, 0.25
PROBED, PROBES = 32, 2  # heads at most, and examples, by which that is told
PROBING, FEWEST_PROBED = 0.1, 16  # share of the budget for it; fewer heads tell nothing
SMALLEST = 1e-9  # below 0, so that a certain answer has finite odds


def worth_a_look(state: SearchState) -> Asking[bool]:
    """Say whether to begin with likelihoods: where rows are few for the heads, a trial tells."""
    problem, opening = state.problem, state.problem.settings.opening
    few = state.budget < FEW_ROWS * len(problem.eligible)
    if opening != "auto" or not few or not problem.likelihood:  # 0: likelihood is the outcome
        return opening != "masks"
    right = state.random.permutation(right_of(state.intact))[:PROBES].tolist()
    count = min(PROBED, int(PROBING * state.budget) // len(right))
    heads = state.random.permutation(problem.eligible)[:count].tolist()
    if len(heads) < FEWEST_PROBED:
        return True
    state.unsteadiness = yield from measure_unsteadiness(problem, right, heads)
    state.spent += len(heads) * len(right)
    return not state.unsteadiness > UNSTEADY


def measure_unsteadiness(
    problem: Problem, right: Sequence[int], heads: Sequence[int]
) -> Asking[float]:
    """Measure by how many nats any head alone moves the odds of a right answer: the median.

    The heads, which should be random ones, are knocked out alone on the right examples; nearly all
    of them matter to none. NaN where the likelihoods could not be told.
    """
    assert problem.likelihood is not None
    empty, task = problem.empty()[None], problem.likelihood
    before = yield Plan.crossed(empty, right, task=task, what="intact likelihood")
    masks = designs.singles(problem.heads)[list(heads)]
    after = yield Plan.crossed(masks, right, task=task, what="trial of likelihoods")
    likelihood = np.concatenate([before.outcome, after.outcome]).reshape(-1, len(right))
    if (likelihood <= 0).all():  # log-probabilities; margins are odds already
        share = np.minimum(likelihood, -SMALLEST)
        likelihood = share - np.log(-np.expm1(share))
    return float(np.nanmedian(np.abs(likelihood[1:] - likelihood[0])))
