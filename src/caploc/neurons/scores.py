"""Scores of many examples as running figures, kept in the run's folder, and the sets they give.

Nothing of an example is kept but its part in the figures. They lie in a file for every stretch of
examples, named by what was scored and how, so that a killed run goes on and no rule but those that
change the scores has them computed again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from caploc.cache import ArrayCache
from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.neurons.attribution import Attribution
from caploc.neurons.batches import Batch, Batcher
from caploc.neurons.proof import NeuronModel
from caploc.neurons.sites import Chosen
from caploc.progress import Progress, Silent
from caploc.stats.threshold import SIGMA, Moments, above, best

Rows = Float64[np.ndarray, "examples neurons"]


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

    @property
    def scoring(self) -> dict[str, Any]:
        """What of the rule changes the scores that are kept."""
        return {
            "sigma": self.sigma,
            "normalised": self.normalised,
            "absolute": self.absolute,
        }

    def moments(self, neurons: int) -> Moments:
        return Moments.empty(
            neurons, sigma=float(self.sigma), normalised=self.normalised, absolute=self.absolute
        )

    def choose(self, moments: Moments, grid: Grid) -> Chosen:
        if self.votes is not None:
            return moments.voted(self.votes)
        if self.share is not None:
            return best(moments.mean, self.share, absolute=self.absolute)
        layers = grid if self.per_layer else None
        return above(moments.mean, self.sigma, grid=layers, absolute=self.absolute)

    def __str__(self) -> str:
        if self.share is not None:
            return f"the best {100 * self.share:g} %"
        where = "of each layer" if self.per_layer else "of all neurons"
        if self.votes is not None:
            return f"{self.sigma:g} sigma {where} in {100 * self.votes:g} % of examples"
        return f"{self.sigma:g} sigma {where}"


def score_examples(
    model: NeuronModel,
    spans: Sequence[Span],
    asked: Attribution,
    *,
    progress: Progress | None = None,
    what: str = "neuron scores",
    batcher: Batcher | None = None,
) -> Iterator[tuple[list[int], Rows]]:
    """Yield the numbers of some examples and every neuron's score for each, longest ones first."""
    asked.check()
    progress = progress or Silent()
    progress.start(what, len(spans))

    def work(batch: Batch) -> list[np.ndarray]:
        return list(asked.scores(model, batch).cpu().numpy())

    for numbers, rows in (batcher or Batcher(model.model)).run(spans, work, asked.copies):
        yield numbers, np.stack(rows)
        progress.advance(len(numbers), sum(len(spans[number].inputs) for number in numbers))


def accumulate(
    model: NeuronModel,
    spans: Sequence[Span],
    asked: Attribution,
    moments: Moments | None = None,
    progress: Progress | None = None,
    what: str = "neuron scores",
) -> Moments:
    """Add the examples' scores to `moments`: mean, variance and votes."""
    total = moments or Moments.empty(model.grid.size)
    for _, rows in score_examples(model, spans, asked, progress=progress, what=what):
        total = total.added(rows)
    return total


def score_cache(folder: Path) -> ArrayCache[Moments]:
    """Open the running figures of a run's folder, by what was scored."""
    return ArrayCache(folder / "scores", Moments)
