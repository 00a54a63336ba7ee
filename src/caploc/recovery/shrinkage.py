"""What the spread of all heads' estimates says about each: a prior, posteriors, and who is on top.

The prior is a mixture of normals around zero, of many widths and a point at zero, whose weights are
fitted to all estimates together (adaptive shrinkage: Stephens 2017, "False discovery rates: a new
deal"). Few strong heads among many idle ones make a prior with a sharp peak and heavy tails.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float
from scipy.special import ndtr

from caploc.designs import generator
from caploc.recovery.estimate import PerHead
from caploc.recovery.screening import Effects

STEPS = 200  # of expectation maximization
WIDER = np.array([0.5, 1.0, 2.0, 4.0])  # than the errors stated may true differences be
BEFOREHAND = np.array([1.0, 3.0, 2.0, 1.0])  # heads seen that each of these counts for
TOLERATED = 1.92  # half of the 95 % point of chi-squared with one degree of freedom
DRAWS = 1000  # from the posterior, for the chance to belong to the top
# Of a normal distribution nothing to speak of lies beyond so many standard deviations; so many
# halvings of what lies within find a quantile to a millionth of it.
FARTHEST, HALVINGS = 8.0, 24
NARROWEST = 1e-9  # spread of a point


@dataclass(frozen=True)
class Posterior:
    """Each head's effect given its estimate: a mixture of normals, one row a head.

    `resolution` is the spread of effects up to which the estimates of all heads look as they would
    if heads at the prior's point at zero had no effect at all.
    """

    weight: Float[np.ndarray, "heads parts"]
    centre: Float[np.ndarray, "heads parts"]
    spread: Float[np.ndarray, "heads parts"]
    resolution: float = 0.0

    def of(self, heads: Bool[np.ndarray, " all"]) -> "Posterior":
        parts = self.weight[heads], self.centre[heads], self.spread[heads]
        return Posterior(*parts, self.resolution)

    @property
    def mean(self) -> PerHead:
        return (self.weight * self.centre).sum(axis=1)

    @property
    def deviation(self) -> PerHead:
        """The standard deviation of the effect."""
        second = (self.weight * (self.centre**2 + self.spread**2)).sum(axis=1)
        return np.sqrt(np.maximum(second - self.mean**2, 0))

    def false_sign_rates(self) -> PerHead:
        """Share of heads that are not needed among those that are surely needed as much, or more.

        The mean, over them, of the probability that the effect is not below zero: the s-value of
        Stephens (2017).
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            beyond = ndtr(np.where(self.spread > 0, self.centre / self.spread, np.inf))
        doubt = (self.weight * beyond).sum(axis=1)
        order = np.argsort(doubt, kind="stable")
        rates = np.empty(len(doubt))
        rates[order] = np.cumsum(doubt[order]) / np.arange(1, len(doubt) + 1)
        return rates

    def interval(self, *, level: float = 0.95) -> Float[np.ndarray, "ends heads"]:
        """Ends of the interval that holds an effect with this probability, found by bisection.

        A head that is taken for idle may do as little as the estimates cannot tell from nothing.
        """
        spread = np.where(self.spread > 0, self.spread, max(self.resolution, NARROWEST))
        reach = FARTHEST * spread
        tails = np.array([(1 - level) / 2, (1 + level) / 2])[:, None]
        low = np.broadcast_to((self.centre - reach).min(axis=1), (2, len(spread)))
        high = np.broadcast_to((self.centre + reach).max(axis=1), (2, len(spread)))
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            below = (self.weight * ndtr((middle[:, :, None] - self.centre) / spread)).sum(axis=2)
            low, high = np.where(below < tails, middle, low), np.where(below < tails, high, middle)
        ends: np.ndarray = (low + high) / 2
        return ends

    def draws(self, count: int = DRAWS, *, seed: int = 0) -> Float[np.ndarray, "draws heads"]:
        """Effects drawn from the posterior, heads apart."""
        random = generator(seed)
        heads, parts = self.weight.shape
        head = np.arange(heads)
        # One sorted array for all heads: head h's cumulative weights lie between h and h + 1.
        ends = (self.weight.cumsum(axis=1) + head[:, None])[:, :-1]
        place = np.searchsorted(np.sort(ends.ravel()), random.random((count, heads)) + head)
        part = np.clip(place - head * (parts - 1), 0, parts - 1)
        normal = random.standard_normal((count, heads))
        return self.centre[head, part] + self.spread[head, part] * normal


def shrink(effect: PerHead, stderr: PerHead) -> Posterior:
    """The posterior of every head's effect; without an estimate (NaN) a head has the prior."""
    known = np.isfinite(effect) & np.isfinite(stderr) & (stderr > 0)
    if not known.any():
        shape = (len(effect), 1)
        return Posterior(np.ones(shape), np.zeros(shape), np.zeros(shape))
    precision = np.where(known, 1 / np.where(known, stderr, 1.0) ** 2, 0.0)
    data = np.where(known, effect, 0.0)
    widths = ladder(effect[known], stderr[known])
    fit = np.where(known[:, None], likelihood(data, np.where(known, stderr, 1.0), widths), 1.0)
    # 10 heads more at zero, as Stephens (2017) has it, make the prior expect idle heads unless the
    # estimates speak against it.
    extra = np.zeros(len(widths))
    extra[0] = min(10.0, 0.1 * known.sum())
    share = fitted_shares(fit[known], np.full(len(widths), 1 / len(widths)), extra)
    spread = 1 / np.sqrt(precision[:, None] + 1 / np.maximum(widths, 1e-9) ** 2)
    spread = np.where(widths == 0, 0.0, spread)
    centre = spread**2 * precision[:, None] * data[:, None]
    weight = share * fit
    weight = weight / weight.sum(axis=1, keepdims=True)
    return Posterior(weight, centre, spread, measure_resolution(fit[known], share, widths))


def measure_resolution(
    density: Float[np.ndarray, "known parts"],
    share: Float[np.ndarray, " parts"],
    widths: Float[np.ndarray, " parts"],
) -> float:
    """The largest width that the point at zero may have, for all that the estimates say.

    It is so large while the log-likelihood stays within `TOLERATED` of the best, as in a profile
    likelihood interval of 95 %, and at least the first above zero, which no estimate excludes.
    """
    others = density[:, 1:] @ share[1:]
    fits = np.log(others[:, None] + share[0] * density).sum(axis=0)
    return float(widths[fits >= fits.max() - TOLERATED].max(initial=widths[1]))


def spread_around(expected: Effects, seen: Effects) -> Posterior:
    """The posterior of effects that lie around expected ones; where nothing is seen, the prior.

    An effect differs from what was expected by a mixture of normals, as wide as the expectation's
    error times `WIDER`, whose shares are fitted to all heads seen. Whatever contradicts a sharp
    expectation is so taken for an exception, and not pulled towards it.
    """
    known = np.isfinite(expected.effect)
    tried = known & np.isfinite(seen.effect) & (seen.stderr > 0)
    centre = np.where(known, expected.effect, 0.0)
    widths = np.where(known, expected.stderr, 0.0)[:, None] * WIDER
    data = np.where(tried, seen.effect - centre, 0.0)
    precision = np.where(tried, 1 / np.where(tried, seen.stderr, 1.0) ** 2, 0.0)
    density = likelihood(data, np.where(tried, seen.stderr, 1.0), widths)
    density = np.where(tried[:, None], density, 1.0)
    share = fitted_shares(density[tried], BEFOREHAND / BEFOREHAND.sum(), BEFOREHAND)
    spread = 1 / np.sqrt(precision[:, None] + 1 / np.maximum(widths, 1e-9) ** 2)
    weight = share * density
    moved = centre[:, None] + spread**2 * precision[:, None] * data[:, None]
    return Posterior(weight / weight.sum(axis=1, keepdims=True), moved, spread)


def ladder(
    effect: Float[np.ndarray, " known"], stderr: Float[np.ndarray, " known"]
) -> Float[np.ndarray, " parts"]:
    """Widths of the prior's parts: zero, then from below the errors to beyond the effects."""
    low = float(np.median(stderr)) / 4
    high = max(2 * float(np.abs(effect).max()), 2 * low)
    return np.concatenate([[0.0], low * 2 ** np.arange(0, np.log2(high / low) + 0.5, 0.5)])


def likelihood(
    effect: PerHead, stderr: PerHead, widths: Float[np.ndarray, "*of_heads parts"]
) -> Float[np.ndarray, "heads parts"]:
    """Density of each estimate under each part, up to a factor per head."""
    variance = stderr[:, None] ** 2 + widths**2
    log_density = -0.5 * (np.log(variance) + effect[:, None] ** 2 / variance)
    return np.exp(log_density - log_density.max(axis=1, keepdims=True))


def fitted_shares(
    density: Float[np.ndarray, "known parts"],
    share: Float[np.ndarray, " parts"],
    extra: Float[np.ndarray, " parts"],
) -> Float[np.ndarray, " parts"]:
    """Shares of the parts that make the estimates likeliest, from a first guess at them.

    `extra` is the number of heads that each part is given beside those with an estimate.
    """
    for _ in range(STEPS):
        each = share * density
        each /= each.sum(axis=1, keepdims=True)
        share = each.sum(axis=0) + extra
        share /= share.sum()
    return share


def top_chances(posterior: Posterior, top: int, *, seed: int = 0) -> PerHead:
    """Chance of each head to be among the `top` most needed (most negative effects)."""
    drawn = posterior.draws(seed=seed)
    top = min(top, drawn.shape[1])
    if top == drawn.shape[1]:
        return np.ones(top)
    # Idle heads are drawn as exactly 0: chance decides among equals, not the column's number.
    drawn = drawn + 1e-9 * generator(seed + 1).standard_normal(drawn.shape)
    lowest = np.argpartition(drawn, top - 1, axis=1)[:, :top]
    counts = np.bincount(lowest.ravel(), minlength=drawn.shape[1])
    return counts / len(drawn)
