"""A first look at every head alone: how likely the right answers still are, and what that costs.

Whether an answer is still right tells little until many were asked; how likely the right answer is
tells much at once. A few examples a head are enough to see which heads can matter at all.
"""

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import ClassVar

import numpy as np
from jaxtyping import Float
from scipy.special import expit
from sklearn.linear_model import LogisticRegression

from caploc import designs
from caploc.recovery.estimate import PerExample
from caploc.recovery.screening import Effects, Posterior, spread_around
from caploc.search.plan import Asking, Plan, column_mask
from caploc.search.screen import First

MOST_LINKED = 400  # examples by which chances of right answers follow from likelihoods
MOST_EACH = 8  # examples that every head is tried on
BEYOND = 1.3  # times the rows that may be spent, so that every choice is right as often
# What the look says of a head is worth so many examples of the head alone, and half of it from
# `HALF` examples on; besides, any knockout disturbs answers a little, in shares of the score's
# range. Both as on two of SmolLM2's tasks.
WORTH, HALF = 35.0, 2.0
FLOOR = 0.006
# Made-up examples that keep the link sensible where the model gets all, or nothing, right: so
# unlikely an answer is not given, and a certain one is, or one that leads by so much.
UNLIKELY, CERTAIN, LEADING = -6.0, 0.0, 6.0
STRENGTH = 50.0  # inverse of the link's regularization
RATE = 0.04  # of the held-out masks by which the effects are judged in the end


@dataclass
class FirstLook(First):
    """Every head of a problem alone, beside `base`, on a few examples that the model gets right.

    `task` is the number of the task in plans; `before` holds the likelihoods of its right answers
    with `base` alone knocked out. `change` has, for each head and example asked, by how much the
    log-probability of the right answer (a mean over its tokens) or its margin over the likeliest
    other choice changed, in nats.
    """

    OPENING: ClassVar[str] = "likelihood"
    ESTIMATOR: ClassVar[str] = "likelihood"
    DOUBT: ClassVar[float] = 0.5

    task: int = 0
    before: dict[int, float] = field(default_factory=dict)
    change: Float[np.ndarray, "heads asked"] | None = None

    @property
    def size(self) -> int:
        """Heads in a mask that the effects should predict."""
        return max(1, round(RATE * self.problem.heads))

    @property
    def examples_each(self) -> tuple[int, int]:
        counts = [] if self.change is None else np.isfinite(self.change).sum(axis=1).tolist()
        looked = [count for count in counts if count] or [0]
        return min(looked), max(looked)

    def ask(self, rows: int, known: Sequence[int] = ()) -> Asking[None]:
        """Try every free head on as many of the right examples as so many rows buy, at least one.

        Before, the likelihoods of right answers to those and to the `known` examples are asked with
        nothing but the base gone; examples for which they could not be told are passed over.
        """
        assert self.problem.likelihood is not None
        heads, task = np.flatnonzero(self.free), self.problem.likelihood
        under = column_mask(self.problem.heads, self.base)
        count = int(np.clip(rows // max(len(heads), 1), 1, MOST_EACH))
        choices = self.problem.choices
        if kinds := len({choices.get(example) for example in self.right}):  # as many of each choice
            more, fewer = -(-count // kinds) * kinds, count // kinds * kinds
            affordable = more <= min(MOST_EACH, BEYOND * rows / max(len(heads), 1))
            count = more if affordable else fewer or count
        asked = balance(self.random.permutation(self.right).tolist(), choices)[:count]
        examples = list(dict.fromkeys([*asked, *known]))
        if not examples:
            return
        masks = designs.singles(self.problem.heads)[heads] | under
        each_alone = partial(Plan.crossed, masks, task=task, what="likelihood of right answers")
        plan = Plan.crossed(under[None], examples, task=task, what="intact likelihood")
        self.before = (yield plan).by_example()
        asked = [example for example in asked if example in self.before]
        if not asked or not len(heads):
            return
        self.seen = yield each_alone(asked)
        self.change = np.full((self.problem.heads, len(asked)), np.nan)
        likelihood = self.seen.outcome.reshape(len(heads), len(asked))
        self.change[heads] = likelihood - [self.before[example] for example in asked]

    def strongest(self, count: int) -> list[int]:
        """The heads without which right answers get least likely, the most needed first."""
        if self.change is None:
            return []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # a head without a single likelihood
            mean = np.nanmean(self.change, axis=1)
        order = np.argsort(np.nan_to_num(mean, nan=np.inf), kind="stable")[:count]
        return [int(column) for column in order if mean[column] < 0]

    def effects(self) -> Effects:
        """Expect an effect on the score from the changes; with its standard error.

        The chance of a right answer is a logistic function of its log-probability or margin, fitted
        to the intact model's answers; a head's effect is the mean change of that chance over all
        examples when each loses what an example asked has lost.
        """
        if self.change is None:
            return Effects.unknown(self.problem.heads)
        each = self.predict(self.change)
        count = np.isfinite(each).sum(axis=1)
        known, width = count > 0, self.reach()[1]
        effect = np.nansum(each, axis=1) / np.maximum(count, 1)
        worth = WORTH * count / (count + HALF)
        variance = (FLOOR * width) ** 2 + width * np.abs(effect) / np.maximum(worth, 1)
        return Effects(effect, np.sqrt(variance)).only(known)

    def reach(self) -> tuple[float, float]:
        values = np.array(list(self.intact.values()))
        return float(values.min()), float(np.ptp(values)) or 1.0

    def predict(self, change: Float[np.ndarray, "parts asked"]) -> Float[np.ndarray, "parts asked"]:
        """The expected change of the score if all examples changed as each one asked did."""
        if self.problem.likelihood == self.task:  # the likelihood is the outcome
            return change
        low, width = self.reach()
        both = [example for example in self.before if example in self.intact]
        likelihood = np.array([self.before[example] for example in both])
        share = (np.array([self.intact[example] for example in both]) - low) / width
        if np.ptp(list(self.intact.values())) == 0:
            share = np.full(len(both), min(max(low, 0.0), 1.0))
        slope, offset = linked(likelihood, share)
        base = expit(offset + slope * likelihood).mean()
        moved = offset + slope * (likelihood + change[:, :, None])  # parts x asked x known
        return width * (expit(moved).mean(axis=2) - base)

    def believe(self, first: Effects, alone: Effects) -> Posterior:
        """Take what heads do alone as spread around these estimates, by as much as it shows."""
        return spread_around(first, alone)


def balance(order: Sequence[int], choices: Mapping[int, int]) -> list[int]:
    """Put the examples in such an order that every choice is right as often as every other.

    A head that sways the model towards one choice does nothing but good where that one is right.
    """
    taken: Counter[int | None] = Counter()
    turns = []
    for example in order:
        choice = choices.get(example)
        turns.append(taken[choice])
        taken[choice] += 1
    return [example for _, example in sorted(zip(turns, order, strict=True), key=itemgetter(0))]


def linked(likelihood: PerExample, share: PerExample) -> tuple[float, float]:
    """Fit slope and offset of the logistic curve of outcomes, 0 to 1, over log-probabilities."""
    margins = (likelihood > 0).any()  # no log-probability is
    x = np.concatenate([likelihood, [UNLIKELY, LEADING if margins else CERTAIN]])
    y = np.concatenate([share, [0.0, 1.0]])
    fit = LogisticRegression(C=STRENGTH)
    fit.fit(
        np.concatenate([x, x])[:, None],
        np.repeat([1, 0], len(x)),
        sample_weight=np.concatenate([y, 1 - y]),
    )
    return float(fit.coef_[0, 0]), float(fit.intercept_[0])
