"""From scores of many examples to a set of neurons."""

from dataclasses import dataclass
from math import inf
from typing import Any

from caploc.commonality import SIGMA, above, best
from caploc.commonality.moments import Moments
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.neurons.grid import Chosen


@dataclass(frozen=True)
class Rule:
    """Which neurons are chosen: by `sigma`, or a `share` of all, or `votes`.

    The paper's is sigma = 6: scores more than 6 standard deviations above the mean. That both are
    taken over all neurons, and the sign counts, is ours; `per_layer` and `absolute` change it.
    `votes` is the share of examples in which a neuron must pass the sigma of that example's own
    scores. `normalised` divides each example's scores by the sum of their sizes first.
    """

    sigma: float = SIGMA
    share: float | None = None
    votes: float | None = None
    per_layer: bool = False
    absolute: bool = False
    normalised: bool = False

    def check(self) -> "Rule":
        """Refuse what means nothing.

        Raises:
            BadOption: for numbers out of range, or two rules at once.
        """
        if not 0 < self.sigma < inf:
            raise BadOption(f"--sigma must be a number above 0; got {self.sigma:g}.")
        for name in ("share", "votes"):
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                raise BadOption(f"--{name} must be above 0 and at most 1; got {value:g}.")
        if self.share is not None and (self.votes is not None or self.per_layer):
            raise BadOption("--share chooses by rank over the whole model: no votes, no layers.")
        if self.votes is not None and self.per_layer:
            raise BadOption("--votes counts over the whole model: leave out --per-layer.")
        return self

    def moments(self, neurons: int) -> Moments:
        """Running figures for this rule, of no example yet."""
        return Moments.empty(
            neurons, sigma=float(self.sigma), normalised=self.normalised, absolute=self.absolute
        )

    def chosen(self, moments: Moments, grid: Grid) -> Chosen:
        """The set that these scores give."""
        if self.votes is not None:
            return moments.voted(self.votes)
        if self.share is not None:
            return best(moments.mean, self.share, absolute=self.absolute).chosen
        layers = grid if self.per_layer else None
        return above(moments.mean, self.sigma, grid=layers, absolute=self.absolute).chosen

    @property
    def scoring(self) -> dict[str, Any]:
        """What of the rule changes the scores that are kept."""
        return {
            "sigma": self.sigma,
            "normalised": self.normalised,
            "absolute": self.absolute,
        }

    def __str__(self) -> str:
        if self.share is not None:
            return f"the best {100 * self.share:g} %"
        where = "of each layer" if self.per_layer else "of all neurons"
        if self.votes is not None:
            return f"{self.sigma:g} sigma {where} in {100 * self.votes:g} % of examples"
        return f"{self.sigma:g} sigma {where}"
