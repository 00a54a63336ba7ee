"""What a screen and its shortlist say together: effects, errors, ranking, and how sure it is."""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from caploc.designs import generator
from caploc.recovery import Estimate
from caploc.recovery.screening import Effects, false_discovery_rates
from caploc.recovery.shrinkage import Posterior, shrink, top_chances
from caploc.search.screen import Screen
from caploc.search.shortlist import Shortlist

LEVEL = 0.05  # false discovery rate at which a head is named
GIVE_OR_TAKE = 0.25  # standard deviation of the factor between screened and single effects
LEAST_SCALE = 0.2
CLOSE = 0.02  # a head whose top chance lies farther from 0 and 1 is contested
OPEN = 0.1  # the same, for heads that count as tied
POINT = 0.01  # effects closer than this, in accuracy, are not worth telling apart
FACTORS = (2, 4)  # budgets of the forecast, as multiples of the rows at hand
FORECASTS = 200  # draws of the forecast


@dataclass(frozen=True)
class Conclusion:
    """Screen and shortlist together; `struck` heads are left out of the ranking."""

    screen: Screen
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
    def scale(self) -> tuple[float, float]:
        """What turns a screened effect into that of the head alone, and its standard error."""
        raw = self.screen.effects()
        expected = np.where(np.isfinite(raw.effect), shrink(raw.effect, raw.stderr).mean, np.nan)
        return scale(expected, self.alone)

    @cached_property
    def screened(self) -> Effects:
        """Of the screen, in units of single heads."""
        return self.screen.effects().scaled(self.scale[0])

    @cached_property
    def both(self) -> Effects:
        """The two estimates of a head, weighed by their precision; NaN for struck heads."""
        merged = joined(self.screened, self.alone)
        merged.effect[list(self.struck)] = np.nan
        return merged

    @cached_property
    def posterior(self) -> Posterior:
        """Of every head's effect."""
        return shrink(self.both.effect, self.both.stderr)

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
        raw, (factor, error) = self.screen.effects(), self.scale
        stderr = np.hypot(factor * raw.stderr, error * raw.effect)
        cautious = joined(replace(raw, effect=factor * raw.effect, stderr=stderr), self.alone)
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
        needed = (self.q < LEVEL) & (self.both.effect < 0) & (self.shortlist.needed(LEVEL) | ~tried)
        return [column for column in first if needed[column]]

    @property
    def expected_recall(self) -> float:
        """Share of the top heads that the ranking is expected to have right."""
        return float(np.mean(self.chances[self.ranking[: self.top]]))

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

    def estimate(self) -> Estimate:
        """Every head's effect: alone on fresh examples where it was, else from the screen."""
        alone, effect, half = self.checked, self.screened.effect, self.screened.half_width()
        tried = np.isfinite(alone.effect)
        return Estimate(
            "spike-slab",
            np.where(tried, alone.effect, effect),
            np.where(tried, alone.low, effect - half),
            np.where(tried, alone.high, effect + half),
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


def scale(screened: Float[np.ndarray, " heads"], alone: Effects) -> tuple[float, float]:
    """Effects alone, on all examples, as a multiple of expected ones among random others.

    The screen asks only examples that the model gets right, with other heads gone; the shortlist
    tells what a head does alone on any. Weighted least squares through zero over heads that have
    both, with the prior that the factor is 1, give or take a quarter; just 1 without a shortlist.
    """
    both = np.isfinite(screened) & np.isfinite(alone.stderr)
    if not both.any():
        return 1.0, 0.0
    x, y, weight = screened[both], alone.effect[both], 1 / alone.stderr[both] ** 2
    precision = float((weight * x**2).sum()) + 1 / GIVE_OR_TAKE**2
    fitted = (float((weight * x * y).sum()) + 1 / GIVE_OR_TAKE**2) / precision
    return max(fitted, LEAST_SCALE), precision**-0.5


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
