"""What a first estimate of all heads and the shortlist alone say together, and how surely."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool

from caploc.designs import generator
from caploc.heads import ALONE, Mask
from caploc.recovery.estimate import Estimate, PerHead
from caploc.recovery.screening import Effects, Posterior, Scale, calibrate, joined, top_chances
from caploc.search.plan import column_mask
from caploc.search.screen import First
from caploc.search.state import Shortlist

LEVEL = 0.05  # false discovery rate at which a head is named
ENOUGH = 20  # examples of a head alone from which on they speak for themselves
CLOSE = 0.02  # a head whose top chance lies farther from 0 and 1 is open
TIED = 0.1  # the same, for heads that count as tied
POINT = 0.01  # effects closer than this, in units of the outcome, are not worth telling apart
FACTORS = (2, 4)  # budgets of the forecast, as multiples of the rows at hand
FORECASTS = 200  # draws of the forecast


@dataclass(frozen=True)
class Conclusion:
    """The first estimate and the shortlist together; `struck` heads are not ranked."""

    first: First
    shortlist: Shortlist
    struck: tuple[int, ...] = ()

    @property
    def top(self) -> int:
        return min(self.first.problem.settings.top, len(self.first.problem.eligible))

    @cached_property
    def alone(self) -> Effects:
        """The shortlist's effects, to be combined with the first estimate."""
        return self.shortlist.effects()

    @cached_property
    def checked(self) -> Estimate:
        """The same effects as they are told, with their intervals."""
        return self.shortlist.estimate()

    @cached_property
    def scale(self) -> Scale:
        """What turns a first estimate into the effect of the head alone."""
        raw = self.first.effects()
        nothing = Effects.unknown(len(raw.effect))
        posterior, known = self.first.believe(raw, nothing), np.isfinite(raw.effect)
        expected = Effects(posterior.mean, posterior.deviation).only(known)
        return calibrate(expected, self.alone, self.first.DOUBT)

    @cached_property
    def rescaled(self) -> Effects:
        """The first estimate, in units of single heads."""
        return self.scale.apply(self.first.effects())

    @cached_property
    def both(self) -> Effects:
        """The two estimates of a head, weighed by their precision; NaN for struck heads."""
        return joined(self.rescaled, self.alone).only(self.kept)

    @property
    def kept(self) -> Mask:
        return ~column_mask(self.first.problem.heads, self.struck)

    @cached_property
    def posterior(self) -> Posterior:
        return self.first.believe(self.rescaled.only(self.kept), self.alone.only(self.kept))

    @cached_property
    def chances(self) -> PerHead:
        """Of each head to belong to the top."""
        chances = np.zeros(len(self.kept))
        posterior = self.posterior.of(self.kept)
        chances[self.kept] = top_chances(posterior, self.top, seed=self.shortlist.rows)
        return chances

    @property
    def ranking(self) -> list[int]:
        """All columns: the named ones, then the others by the expected effect, struck ones last."""
        return [*self.named, *(c for c in self.by_mean if c not in self.named)]

    @cached_property
    def by_mean(self) -> list[int]:
        """All columns, by the expected effect; struck ones last."""
        mean = np.where(self.kept, self.posterior.mean, np.inf)
        return np.argsort(mean, kind="stable").tolist()

    @cached_property
    def q(self) -> PerHead:
        """Expected share of heads that are not needed, among those at least as surely needed."""
        return np.where(np.isfinite(self.both.effect), self.posterior.false_sign_rates(), np.nan)

    @cached_property
    def named(self) -> list[int]:
        """The top heads needed beyond doubt (by `q`, and a fall alone if tried), the most first.

        In a screen a head also shows what it does for others that are gone: a silent backup is
        needed there, and not alone.
        """
        best = self.top_heads
        tried = np.isfinite(self.checked.effect)
        high = self.bound(column_mask(len(self.kept), best))[1]
        below = (self.both.effect < 0) & (high < 0)
        needed = (self.q < LEVEL) & below & (self.shortlist.needed(LEVEL) | ~tried)
        named = [column for column in best if needed[column]]
        return sorted(named, key=lambda column: self.told[column])

    @cached_property
    def told(self) -> PerHead:
        """Every head's effect as told: of those tried on enough examples, what these say."""
        return np.where(self.tried, self.checked.effect, self.posterior.mean)

    @property
    def expected_recall(self) -> float:
        """Share of the top heads that the ranking is expected to have right."""
        return float(np.mean(self.chances[self.ranking[: self.top]]))

    @property
    def top_heads(self) -> list[int]:
        """Those of the largest expected effect, as many as are wanted."""
        return [column for column in self.by_mean[: self.top] if column not in self.struck]

    @property
    def open(self) -> list[int]:
        """Heads of which it is open whether they belong to the top, the most open first."""
        order = np.argsort(-self.chances * (1 - self.chances), kind="stable")
        unsure = (self.chances > CLOSE) & (self.chances < 1 - CLOSE)
        mattering = self.bound(unsure)[0] < -2 * POINT
        return [int(column) for column in order if unsure[column] and mattering[column]]

    @property
    def contested(self) -> list[int]:
        """Heads on the shortlist of which it is open whether they belong to the top."""
        return [c for c in self.shortlist.heads if CLOSE < self.chances[c] < 1 - CLOSE]

    @property
    def doubtful(self) -> list[int]:
        """Heads on the shortlist that are among the top but not yet named."""
        best = {*self.top_heads} & {*self.shortlist.heads} - {*self.named}
        return [c for c in self.by_mean if c in best and self.both.effect[c] < 0]

    @property
    def unconfirmed(self) -> list[int]:
        """Those of them that surely matter by all that was seen, and alone not yet for sure."""
        return [column for column in self.doubtful if self.q[column] < LEVEL]

    @property
    def untried(self) -> list[int]:
        """Heads among the top that were not knocked out alone: a screen flatters whom it picks."""
        return [column for column in self.top_heads if column not in self.shortlist.heads]

    @property
    def tied(self) -> list[int]:
        """Heads on both sides of the top's border that differ too little for any budget."""
        mean, last = self.posterior.mean, self.by_mean[self.top - 1]
        alike = [np.abs(effect - effect[last]) < POINT for effect in (mean, self.told)]
        near = (alike[0] | alike[1]) & (mean < -POINT / 2)
        open_ = (self.chances > TIED) & (self.chances < 1 - TIED)
        tied = [column for column in self.ranking if near[column] and open_[column]]
        return tied if 0 < sum(column in self.named for column in tied) < len(tied) else []

    def bound(self, heads: Mask) -> tuple[PerHead, PerHead]:
        """Ends of the intervals that hold these heads' effects alone with a probability of 95 %.

        Those of a head tried alone on enough examples, which are told whether it is asked for or
        not, are what these say and nothing else: likelihoods may mislead about several heads at
        once, and among others that are gone a head may do what it does not do alone. Others: NaN.
        """
        low, high = np.full(len(heads), np.nan), np.full(len(heads), np.nan)
        if heads.any():
            low[heads], high[heads] = self.posterior.of(heads).interval()
        tried = self.tried
        return np.where(tried, self.checked.low, low), np.where(tried, self.checked.high, high)

    @cached_property
    def tried(self) -> Bool[np.ndarray, " heads"]:
        """Heads that were knocked out alone on enough examples to be judged by these only."""
        asked = [self.shortlist.asked.get(column, 0) for column in range(len(self.kept))]
        return np.array(asked) >= ENOUGH

    def estimate(self) -> Estimate:
        """Every head's effect alone, by all that was seen of it; of a struck head, alone only."""
        alone, (low, high) = self.checked, self.bound(np.ones(len(self.kept), dtype=bool))
        known = np.isfinite(self.both.effect)
        return Estimate(
            self.first.ESTIMATOR,
            np.where(known & ~self.tried, self.posterior.mean, alone.effect),
            np.where(known, low, alone.low),
            np.where(known, high, alone.high),
            self.q,
            top_chance=self.chances,
            estimand=ALONE,
        )

    def forecast(self) -> dict[str, float]:
        """Tell the expected recall with two and four times the rows, by drawing what they show.

        A truth is drawn from the posterior, and around it what further rows would say of it.
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
        recall = {}
        for factor in FACTORS:
            fresh = error / np.sqrt(factor - 1)
            prior = 1 / np.maximum(spread, 1e-9) ** 2
            updated = (prior * mean + (truth + fresh * noise) / fresh**2) / (prior + 1 / fresh**2)
            chosen = np.argpartition(updated, top - 1, axis=1)[:, :top]
            hits = (best[:, :, None] == chosen[:, None, :]).sum(axis=(1, 2))
            recall[str(factor)] = float(hits.mean() / top)
        return recall
