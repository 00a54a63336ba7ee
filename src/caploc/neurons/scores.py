"""Scores of many examples, a batch at a time: nothing of an example is kept but its figures."""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64

from caploc.commonality.moments import Moments
from caploc.engine.encoding import Span
from caploc.neurons.attribution import Attribution
from caploc.neurons.batches import Batch, Batcher
from caploc.neurons.loading import NeuronModel
from caploc.progress import Progress, Silent

Rows = Float64[np.ndarray, "examples neurons"]


def score_examples(
    model: NeuronModel,
    spans: Sequence[Span],
    asked: Attribution,
    *,
    progress: Progress | None = None,
    what: str = "neuron scores",
    batcher: Batcher | None = None,
) -> Iterator[tuple[list[int], Rows]]:
    """The numbers of some examples and every neuron's score for each, longest examples first.

    Raises:
        UserError: if `asked` does not exist.
        OutOfMemory: if a single example does not fit.
    """
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
    """Mean, variance and votes over the examples, joined to those of `moments` if given.

    Raises:
        UserError: if `asked` does not exist or a score is not finite.
    """
    total = moments or Moments.empty(model.grid.size)
    for _, rows in score_examples(model, spans, asked, progress=progress, what=what):
        total = total.added(rows)
    return total
