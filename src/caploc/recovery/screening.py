"""Every head's effect from rows whose masks were drawn at random, with errors that hold.

A sparse Bayesian fit explains what the strongest heads do; each head's effect is then estimated
from what the fit leaves (one step of Newton's method, as in the debiased Lasso). Because the masks
are drawn by us, the estimate needs no model of the network to be right on average.

The fit is `y = X b + noise` with each `b_j` zero but for a share `pi` (a spike at zero), and
`N(0, slab)` otherwise. The fully factorized approximation and its coordinate updates are those of
Carbonetto and Stephens (2012, "Scalable variational inference for Bayesian variable selection in
regression"); noise, slab and `pi` follow by expectation maximization.

What the spread of all heads' estimates says about each is a prior, posteriors, and who is on top.
The prior is a mixture of normals around zero, of many widths and a point at zero, whose weights are
fitted to all estimates together (adaptive shrinkage: Stephens 2017, "False discovery rates: a new
deal"). Few strong heads among many idle ones make a prior with a sharp peak and heavy tails.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import exp, log

import numpy as np
from jaxtyping import Bool, Float
from scipy import sparse, stats
from scipy.optimize import minimize
from scipy.special import ndtr

from caploc.designs import generator
from caploc.recovery.estimate import PerHead, PerRow, Rows

SWEEPS = 20  # coordinate sweeps between two updates of noise, slab and share
UPDATES = 15
SETTLED = 1e-5  # largest change of a coefficient, in standard deviations of y, to stop at
FIRST_SLAB = 0.1  # standard deviation of the slab to begin with, in standard deviations of y
EXPECTED = 10  # coefficients that are not zero, to begin with


Gram = Float[np.ndarray, "heads heads"]
PerPart = Float[np.ndarray, " parts"]  # of a mixture
ByPart = Float[np.ndarray, "heads parts"]


@dataclass
class Prior:
    """Variance of the noise and of the slab, and the share of coefficients in it."""

    noise: float
    slab: float
    share: float


def spike_and_slab(gram: Gram, moment: PerHead, total: float, rows: int) -> PerHead:
    """Posterior mean of the coefficients, from `X'X`, `X'y` and `y'y` of centred data."""
    scale = total / rows if rows and total else 1.0
    moment = moment / scale**0.5
    diagonal = np.diag(gram).copy()
    count = max(len(moment), 1)
    prior = Prior(1.0, FIRST_SLAB**2, min(EXPECTED / count, 0.5))
    chance = np.where(diagonal > 0, prior.share, 0.0)
    mean, fitted = np.zeros(len(moment)), np.zeros(len(moment))
    for _ in range(UPDATES):
        before = chance * mean
        ascend(gram, moment, prior, (chance, mean, fitted))
        posterior = chance * mean
        spread = prior.noise / (diagonal + prior.noise / prior.slab)
        second = chance * (spread + mean**2)
        misfit = rows - 2 * posterior @ moment + posterior @ fitted
        prior.noise = max((misfit + diagonal @ (second - posterior**2)) / rows, 0.2)
        prior.slab = float(np.clip(second.sum() / max(chance.sum(), 1e-9), 0.02**2, 4.0))
        prior.share = float(np.clip(chance.mean(), min(2 / count, 0.2), 0.2))
        if np.abs(posterior - before).max(initial=0) < SETTLED:
            break
    return chance * mean * scale**0.5


def ascend(gram: Gram, moment: PerHead, prior: Prior, state: tuple[PerHead, ...]) -> None:
    """Update chance of the slab, mean within it and `gram @ (chance * mean)`, in place."""
    chance, mean, fitted = state
    odds = log(prior.share / (1 - prior.share))
    diagonal = np.diag(gram).tolist()
    for _ in range(SWEEPS):
        largest = 0.0
        for column, own in enumerate(diagonal):
            if own <= 0:
                continue
            old = float(chance[column] * mean[column])
            spread = prior.noise / (own + prior.noise / prior.slab)
            new = spread / prior.noise * float(moment[column] - fitted[column] + own * old)
            evidence = odds + 0.5 * log(spread / prior.slab) + new * new / (2 * spread)
            inside = 1 / (1 + exp(-evidence)) if evidence > -50 else 0.0
            chance[column], mean[column] = inside, new
            change = inside * new - old
            if abs(change) > 1e-12:
                fitted += gram[:, column] * change
            largest = max(largest, abs(change))
        if largest < SETTLED:
            break


GIVE_OR_TAKE = 0.25  # standard deviation of the factor between first and single effects
LEAST_SCALE = 0.2

STRONGEST = 256  # heads that the sparse fit may use
FEWEST = 2.0  # cuts of a head below which its effect is not estimated


@dataclass(frozen=True)
class Effects:
    """Effect of each head and its standard error over examples; NaN where hardly measured.

    `freedom` are the degrees of freedom of the error, which is itself an estimate: with 50 cuts of
    a head, errors of four standard errors are twice as frequent as a normal distribution has it.
    None stands for very many.
    """

    effect: PerHead
    stderr: PerHead
    freedom: PerHead | None = None

    @classmethod
    def unknown(cls, heads: int) -> "Effects":
        return cls(np.full(heads, np.nan), np.full(heads, np.nan))

    @property
    def known_freedom(self) -> PerHead:
        """The degrees of freedom; infinite where they are very many."""
        return np.full(len(self.effect), np.inf) if self.freedom is None else self.freedom

    def p(self) -> PerHead:
        """Two-sided p of Student's t-test of no effect; NaN where it is unknown."""
        known = np.isfinite(self.effect) & (self.stderr > 0)
        t = np.abs(self.effect[known] / self.stderr[known])
        p = np.full(len(self.effect), np.nan)
        p[known] = 2 * stats.t.sf(t, self.known_freedom[known])
        return p

    def half_width(self) -> PerHead:
        """Half of the 95 % interval."""
        return stats.t.ppf(0.975, self.known_freedom) * self.stderr

    def only(self, heads: Bool[np.ndarray, " heads"]) -> "Effects":
        """Unknown for all other heads."""
        return replace(
            self,
            effect=np.where(heads, self.effect, np.nan),
            stderr=np.where(heads, self.stderr, np.nan),
        )


def screened(rows: Rows) -> Effects:
    """The effect of every head, and its standard error.

    With residuals `u` of the sparse fit `b` and `x` centred within rounds (each round cuts a head
    with a chance of its own), the effect is `b + sum(w x u) / sum(w x x)`. Its variance is the sum
    over examples of `(sum over the example's rows of w x u)²`, over `sum(w x x)²`, since rows of
    one example are not independent; where a mask has several rows the same sum over masks is added,
    and that over single rows taken off (Cameron, Gelbach and Miller, 2011).
    """
    if rows.count < 2:
        return Effects.unknown(rows.cuts.shape[1])
    outcome = rows.residuals()
    return one_step(rows, outcome, fit_lasso(rows.cuts, outcome))


def means_apart(rows: Rows) -> Effects:
    """Difference of the mean residuals of rows with and without each head, nothing fitted."""
    heads = rows.cuts.shape[1]
    if rows.count < 2:
        return Effects.unknown(heads)
    return one_step(rows, rows.residuals(), np.zeros(heads))


def one_step(rows: Rows, outcome: PerRow, start: PerHead) -> Effects:
    """From a fit to every head's effect and standard error, as `screened` says."""
    design = Centred.of(rows)
    left = outcome - rows.cuts @ start
    left = left - design.round_means(left)
    power = design.power()
    estimated = power > FEWEST
    safe = np.where(estimated, power, 1.0)
    step = design.moment(left) / safe
    variance = design.clustered(left, step, rows.example)
    if len(np.unique(rows.mask)) < rows.count:
        single = design.clustered(left, step, np.arange(rows.count))
        both = variance + design.clustered(left, step, rows.mask) - single
        variance = np.maximum(both, variance)
    cuts = np.asarray(rows.cuts.sum(axis=0)).ravel()
    clusters = np.minimum(cuts, len(np.unique(rows.example)))
    found = Effects(start + step, np.sqrt(variance) / safe, np.maximum(clusters - 1, 1.0))
    return found.only(estimated)


def fit_lasso(cuts: sparse.csr_matrix, outcome: PerRow) -> PerHead:
    """The sparse fit on the heads that differ most; 0 for all others."""
    rows = len(outcome)
    share = np.asarray(cuts.mean(axis=0)).ravel()
    moment = cuts.T @ outcome - rows * share * outcome.mean()
    power = rows * share * (1 - share)
    z = np.abs(moment) / np.sqrt(np.maximum(power, 1e-9))
    chosen = np.sort(np.argsort(-z, kind="stable")[:STRONGEST])
    inside = cuts[:, chosen]
    gram = (inside.T @ inside).toarray() - rows * np.outer(share[chosen], share[chosen])
    total = float(((outcome - outcome.mean()) ** 2).sum())
    coefficients = np.zeros(cuts.shape[1])
    coefficients[chosen] = spike_and_slab(gram, moment[chosen], total, rows)
    return coefficients


@dataclass(frozen=True)
class Centred:
    """Cuts less their mean within each round, weighted, without making them dense."""

    cuts: sparse.csr_matrix
    weight: PerRow
    member: sparse.csr_matrix  # rounds x rows
    share: Float[np.ndarray, "rounds heads"]

    @classmethod
    def of(cls, rows: Rows) -> "Centred":
        member, weight = indicator(rows.round), rows.weight
        total = member @ weight
        share = (member @ rows.cuts.multiply(weight[:, None])).toarray() / total[:, None]
        return cls(rows.cuts, weight, member, share)

    def round_means(self, values: PerRow) -> PerRow:
        """The weighted mean of each row's round."""
        means = (self.member @ (self.weight * values)) / (self.member @ self.weight)
        return self.member.T @ means

    def power(self) -> PerHead:
        """`sum(w x x)` for each head."""
        total = self.member @ self.weight
        return (total[:, None] * self.share * (1 - self.share)).sum(axis=0)

    def moment(self, left: PerRow) -> PerHead:
        """`sum(w x u)` for each head; `u` has mean zero in every round."""
        return self.cuts.T @ (self.weight * left)

    @cached_property
    def cut_squares(self) -> sparse.csr_matrix:
        """`w x x` of a row that cuts the head less that of one that does not; 0 for the latter."""
        cuts = self.cuts.tocoo()
        of_row = self.member.tocsc().indices
        less = 1 - 2 * self.share[of_row[cuts.row], cuts.col]
        return sparse.csr_matrix((self.weight[cuts.row] * less, (cuts.row, cuts.col)), cuts.shape)

    def clustered(self, left: PerRow, step: PerHead, example: np.ndarray) -> PerHead:
        """Sum over examples of the squared sum over their rows of `w x (u - x step)`."""
        group = indicator(example)
        scaled = self.weight * left
        sums = (group @ self.cuts.multiply(scaled[:, None])).toarray()
        sums -= (group @ sparse.diags(scaled) @ self.member.T).toarray() @ self.share
        weights = (group @ sparse.diags(self.weight) @ self.member.T).toarray()
        sums -= ((group @ self.cut_squares).toarray() + weights @ self.share**2) * step
        count = max(group.shape[0], 2)
        return (sums**2).sum(axis=0) * count / (count - 1)


def indicator(group: np.ndarray) -> sparse.csr_matrix:
    """Groups x rows: 1 where a row belongs to a group."""
    _, place = np.unique(group, return_inverse=True)
    ones = np.ones(len(place))
    return sparse.csr_matrix((ones, (place, np.arange(len(place)))))


def false_discovery_rates(p: PerHead) -> PerHead:
    """The rate at which each head would be named (Benjamini and Hochberg, 1995); NaN stays NaN."""
    rates = np.full(len(p), np.nan)
    known = np.isfinite(p)
    if known.any():
        rates[known] = stats.false_discovery_control(p[known])
    return rates


def joined(one: Effects, other: Effects) -> Effects:
    """Weigh two independent estimates of each head by their precision; NaN where neither is.

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


@dataclass(frozen=True)
class Scale:
    """How effects alone follow from first ones: `factor` times as large, errors `stretch` times."""

    factor: float = 1.0
    stretch: float = 1.0

    def apply(self, first: Effects) -> Effects:
        """First estimates in units of single heads."""
        stderr = self.stretch * self.factor * first.stderr
        return replace(first, effect=self.factor * first.effect, stderr=stderr)


def calibrate(first: Effects, alone: Effects, doubt: float) -> Scale:
    """How effects alone follow from first estimates, by heads that have both.

    A first estimate may ask only examples that the model gets right, with other heads gone, or not
    ask the score itself; the shortlist tells what a head does alone on any. The most probable
    factor and stretch, given the prior that the factor is 1, give or take a quarter, and the
    logarithm of the stretch 0, give or take `doubt`; both are just 1 without a shortlist.
    """
    both = np.isfinite(first.effect) & np.isfinite(alone.stderr)
    if not both.any():
        return Scale()
    x, s, y, error = (
        each[both] for each in (first.effect, first.stderr, alone.effect, alone.stderr)
    )

    def variance(factor: float, stretch: float) -> Float[np.ndarray, " both"]:
        return error**2 + (stretch * factor * s) ** 2

    def unlikely(values: Float[np.ndarray, " 2"]) -> float:
        factor, stretch = float(values[0]), float(np.exp(values[1]))
        spread = variance(factor, stretch)
        misfit = (np.log(spread) + (y - factor * x) ** 2 / spread).sum()
        unusual = ((factor - 1) / GIVE_OR_TAKE) ** 2 + (values[1] / doubt) ** 2
        return float(misfit + unusual) / 2

    best = minimize(unlikely, [1.0, 0.0], method="Nelder-Mead").x
    return Scale(max(float(best[0]), LEAST_SCALE), float(np.exp(best[1])))


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

    weight: ByPart
    centre: ByPart
    spread: ByPart
    resolution: float = 0.0

    def of(self, heads: Bool[np.ndarray, " all"]) -> "Posterior":
        parts = self.weight[heads], self.centre[heads], self.spread[heads]
        return Posterior(*parts, self.resolution)

    @property
    def mean(self) -> PerHead:
        return (self.weight * self.centre).sum(axis=1)

    @property
    def deviation(self) -> PerHead:
        second = (self.weight * (self.centre**2 + self.spread**2)).sum(axis=1)
        return np.sqrt(np.maximum(second - self.mean**2, 0))

    def false_sign_rates(self) -> PerHead:
        """Share of heads that are not needed among those that are surely needed as much, or more.

        The mean, over them, of the chance that the effect is not below zero (Stephens's s-value).
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


def measure_resolution(density: ByPart, share: PerPart, widths: PerPart) -> float:
    """Find the largest width that the point at zero may have, for all that the estimates say.

    The log-likelihood stays within `TOLERATED` of the best, as in a profile likelihood interval of
    95 %; it is at least the first width above zero, which no estimate excludes.
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


def ladder(effect: PerHead, stderr: PerHead) -> PerPart:
    """Widths of the prior's parts: zero, then from below the errors to beyond the effects."""
    low = float(np.median(stderr)) / 4
    high = max(2 * float(np.abs(effect).max()), 2 * low)
    return np.concatenate([[0.0], low * 2 ** np.arange(0, np.log2(high / low) + 0.5, 0.5)])


def likelihood(effect: PerHead, stderr: PerHead, widths: PerPart | ByPart) -> ByPart:
    """Density of each estimate under each part, up to a factor per head."""
    variance = stderr[:, None] ** 2 + widths**2
    log_density = -0.5 * (np.log(variance) + effect[:, None] ** 2 / variance)
    return np.exp(log_density - log_density.max(axis=1, keepdims=True))


def fitted_shares(density: ByPart, share: PerPart, extra: PerPart) -> PerPart:
    """Fit the shares of the parts that make the estimates likeliest, from a first guess at them.

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
