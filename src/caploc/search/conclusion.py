"""What a first estimate of all heads and the shortlist alone say together, and how surely."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
from jaxtyping import Bool, Float
from scipy.optimize import minimize

from caploc.designs import generator
from caploc.recovery import Estimate, Measurements
from caploc.recovery.screening import Effects, false_discovery_rates
from caploc.recovery.shrinkage import Posterior, top_chances
from caploc.search.plan import Problem
from caploc.search.shortlist import Shortlist

LEVEL = 0.05  # false discovery rate at which a head is named
GIVE_OR_TAKE = 0.25  # standard deviation of the factor between first and single effects
LEAST_SCALE = 0.2
DISCORD = 0.3  # by which share single effects differ from the first estimates, as a first guess
DISCORD_SPREAD = 0.7  # standard deviation of its logarithm
DRAWS = 4000  # from the posterior, for the intervals
CLOSE = 0.02  # a head whose top chance lies farther from 0 and 1 is contested
OPEN = 0.1  # the same, for heads that count as tied
POINT = 0.01  # effects closer than this, in accuracy, are not worth telling apart
FACTORS = (2, 4)  # budgets of the forecast, as multiples of the rows at hand
FORECASTS = 200  # draws of the forecast


class First(Protocol):
    """A first estimate of every head: from masks of several heads, or from likelihoods."""

    problem: Problem
    seen: Measurements

    @property
    def size(self) -> int:
        """Heads in a mask."""
        ...

    @property
    def group(self) -> int:
        """Examples that one mask is used for."""
        ...

    def effects(self) -> Effects:
        """Each head's effect and its error; NaN where unknown."""
        ...

    def believe(self, found: Effects) -> Posterior:
        """What to believe of every head's effect, given estimates of this kind."""
        ...


@dataclass(frozen=True)
class Scale:
    """How effects alone follow from first estimates.

    They are `factor` times as large, give or take `error`, and each differs from that by `discord`
    of itself.
    """

    factor: float = 1.0
    error: float = 0.0
    discord: float = 0.0

    def apply(self, first: Effects, *, cautious: bool = False) -> Effects:
        """First estimates in units of single heads; a cautious error includes the factor's."""
        size = np.hypot(self.discord * self.factor, self.error if cautious else 0.0)
        stderr = np.hypot(self.factor * first.stderr, size * first.effect)
        return replace(first, effect=self.factor * first.effect, stderr=stderr)


@dataclass(frozen=True)
class Conclusion:
    """The first estimate and the shortlist together; `struck` heads are not ranked."""

    screen: First
    shortlist: Shortlist
    struck: tuple[int, ...] = ()

    @property
    def top(self) -> int:
        """Number of heads wanted."""
        return min(self.screen.problem.settings.top, self.screen.problem.heads)

    @cached_property
    def alone(self) -> Effects:
        """Of the shortlist."""
        return self.shortlist.effects()

    @cached_property
    def checked(self) -> Estimate:
        """The shortlist's effects alone, with the intervals that are told."""
        return self.shortlist.estimate()

    @cached_property
    def scale(self) -> Scale:
        """What turns a first estimate into the effect of the head alone."""
        raw = self.screen.effects()
        posterior, known = self.screen.believe(raw), np.isfinite(raw.effect)
        expected = Effects(posterior.mean, posterior.deviation).only(known)
        return calibrate(expected, self.alone)

    @cached_property
    def screened(self) -> Effects:
        """The first estimate, in units of single heads."""
        return self.scale.apply(self.screen.effects())

    @cached_property
    def both(self) -> Effects:
        """The two estimates of a head, weighed by their precision; NaN for struck heads."""
        merged = joined(self.screened, self.alone)
        merged.effect[list(self.struck)] = np.nan
        return merged

    @cached_property
    def posterior(self) -> Posterior:
        """Of every head's effect."""
        return self.screen.believe(self.both)

    @cached_property
    def chances(self) -> Float[np.ndarray, " heads"]:
        """Of each head to belong to the top."""
        kept = np.ones(len(self.both.effect), dtype=bool)
        kept[list(self.struck)] = False
        chances = np.zeros(len(kept))
        chances[kept] = top_chances(self.posterior.of(kept), self.top, seed=self.shortlist.rows)
        return chances

    @cached_property
    def ranking(self) -> list[int]:
        """All columns, by the expected effect; struck ones last."""
        mean = self.posterior.mean.copy()
        mean[list(self.struck)] = np.inf
        return [int(column) for column in np.argsort(mean, kind="stable")]

    @cached_property
    def q(self) -> Float[np.ndarray, " heads"]:
        """False discovery rate at which a head would be named (Benjamini and Hochberg, 1995).

        Here the screen's error includes that of its unit, so that no head is named on a screen
        that the fresh examples do not bear out.
        """
        cautious = joined(self.scale.apply(self.screen.effects(), cautious=True), self.alone)
        cautious.effect[list(self.struck)] = np.nan
        return false_discovery_rates(cautious.p())

    @property
    def named(self) -> list[int]:
        """The top heads that are needed beyond doubt: by `q`, and by a fall alone if tried.

        In a screen a head also shows what it does for others that are gone: a silent backup is
        needed there, and not alone.
        """
        first = self.ranking[: self.top]
        tried = np.isfinite(self.checked.effect)
        below = (self.both.effect < 0) & (self.interval[1] < 0)
        needed = (self.q < LEVEL) & below & (self.shortlist.needed(LEVEL) | ~tried)
        return [column for column in first if needed[column]]

    @property
    def expected_recall(self) -> float:
        """Share of the top heads that the ranking is expected to have right."""
        return float(np.mean(self.chances[self.ranking[: self.top]]))

    @property
    def open(self) -> list[int]:
        """Heads of which it is open whether they belong to the top, the most open first."""
        doubt = self.chances * (1 - self.chances)
        order = [int(column) for column in np.argsort(-doubt, kind="stable")]
        return [c for c in order if CLOSE < self.chances[c] < 1 - CLOSE]

    @property
    def contested(self) -> list[int]:
        """Heads on the shortlist of which it is open whether they belong to the top."""
        chances = self.chances
        return [c for c in self.shortlist.heads if CLOSE < chances[c] < 1 - CLOSE]

    @property
    def doubtful(self) -> list[int]:
        """Heads on the shortlist that are among the top but not yet named."""
        first = [c for c in self.ranking[: self.top] if c in self.shortlist.heads]
        return [c for c in first if c not in self.named and self.both.effect[c] < 0]

    @property
    def untried(self) -> list[int]:
        """Heads among the top that were not knocked out alone: a screen flatters whom it picks."""
        first = [column for column in self.ranking[: self.top] if column not in self.struck]
        return [column for column in first if column not in self.shortlist.heads]

    @property
    def tied(self) -> list[int]:
        """Heads at the border of the top that differ too little for any budget."""
        mean = self.posterior.mean
        border = mean[self.ranking[self.top - 1]]
        near = (np.abs(mean - border) < POINT) & (mean < -POINT / 2)
        open_ = (self.chances > OPEN) & (self.chances < 1 - OPEN)
        tied = [column for column in self.ranking if near[column] and open_[column]]
        return tied if len(tied) > 1 else []

    @cached_property
    def interval(self) -> tuple[Float[np.ndarray, " heads"], Float[np.ndarray, " heads"]]:
        """Ends of the interval that holds a head's effect alone with a probability of 95 %."""
        drawn = self.posterior.draws(DRAWS, seed=self.shortlist.rows)
        low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
        return low, high

    def estimate(self) -> Estimate:
        """Every head's effect alone, by all that was seen of it; of a struck head, alone only."""
        alone, (low, high) = self.checked, self.interval
        known = np.isfinite(self.both.effect)
        return Estimate(
            "spike-slab",
            np.where(known, self.posterior.mean, alone.effect),
            np.where(known, low, alone.low),
            np.where(known, high, alone.high),
            self.q,
            top_chance=self.chances,
        )

    def forecast(self) -> dict[str, float]:
        """Expected recall with two and four times the rows, by drawing what they would show.

        A truth is drawn from the posterior, the further rows' estimates around it with the errors
        that so many rows have, and the heads are ranked by both together.
        """
        known: Bool[np.ndarray, " heads"] = np.isfinite(self.both.effect)
        top = min(self.top, int(known.sum()))
        if not top:
            return {str(factor): self.expected_recall for factor in FACTORS}
        mean, spread = self.posterior.mean[known], self.posterior.deviation[known]
        error = self.both.stderr[known]
        truth = self.posterior.draws(FORECASTS, seed=1)[:, known]
        noise = generator(2).standard_normal(truth.shape)
        best = np.argpartition(truth, top - 1, axis=1)[:, :top]
        found = {}
        for factor in FACTORS:
            fresh = error / np.sqrt(factor - 1)
            prior = 1 / np.maximum(spread, 1e-9) ** 2
            updated = (prior * mean + (truth + fresh * noise) / fresh**2) / (prior + 1 / fresh**2)
            chosen = np.argpartition(updated, top - 1, axis=1)[:, :top]
            hits = (best[:, :, None] == chosen[:, None, :]).sum(axis=(1, 2))
            found[str(factor)] = float(hits.mean() / top)
        return found


def calibrate(first: Effects, alone: Effects) -> Scale:
    """How effects alone follow from first estimates, by heads that have both.

    A first estimate may ask only examples that the model gets right, with other heads gone, or not
    ask the score itself; the shortlist tells what a head does alone on any. The most probable
    factor and discord, given the prior that the factor is 1, give or take a quarter; the factor is
    just 1 without a shortlist.
    """
    both = np.isfinite(first.effect) & np.isfinite(alone.stderr)
    if not both.any():
        return Scale()
    x, s, y, error = (
        each[both] for each in (first.effect, first.stderr, alone.effect, alone.stderr)
    )

    def variance(factor: float, discord: float) -> Float[np.ndarray, " both"]:
        total: np.ndarray = error**2 + (factor * s) ** 2 + (discord * factor * x) ** 2
        return total

    def unlikely(values: Float[np.ndarray, " 2"]) -> float:
        factor, discord = float(values[0]), float(np.exp(values[1]))
        spread = variance(factor, discord)
        misfit = (np.log(spread) + (y - factor * x) ** 2 / spread).sum() / 2
        doubt = ((factor - 1) / GIVE_OR_TAKE) ** 2
        doubt += ((values[1] - np.log(DISCORD)) / DISCORD_SPREAD) ** 2
        return float(misfit + doubt / 2)

    best = minimize(unlikely, [1.0, np.log(DISCORD)], method="Nelder-Mead").x
    factor, discord = max(float(best[0]), LEAST_SCALE), float(np.exp(best[1]))
    precision = float((x**2 / variance(factor, discord)).sum()) + 1 / GIVE_OR_TAKE**2
    return Scale(factor, precision**-0.5, discord)


def joined(one: Effects, other: Effects) -> Effects:
    """Two independent estimates of each head, weighed by their precision; NaN where neither is.

    Degrees of freedom as Welch (1947) and Satterthwaite join them. An error of 0 comes from
    outcomes that never differed: it is no estimate, not a perfect one.
    """
    precision = [
        np.divide(1.0, each.stderr**2, out=np.zeros(len(each.stderr)), where=each.stderr > 0)
        for each in (one, other)
    ]
    total = precision[0] + precision[1]
    summed = precision[0] * np.nan_to_num(one.effect) + precision[1] * np.nan_to_num(other.effect)
    known = total > 0
    safe = np.where(known, total, 1.0)
    each = zip(precision, (one, other), strict=True)
    lost = sum(weight**2 / effects.known_freedom for weight, effects in each)
    freedom = np.divide(safe**2, lost, out=np.full(len(safe), np.inf), where=lost > 0)
    return Effects(summed / safe, safe**-0.5, freedom).only(known)
