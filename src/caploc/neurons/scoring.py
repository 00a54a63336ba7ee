"""Scores of neurons by workers: examples go out in pieces, and running figures come back.

Pieces depend on the examples alone and their figures are merged in one order, so that the result
depends neither on how many workers there are nor on which of them was first.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from math import ceil
from typing import Any

import numpy as np

from caploc.declaration import ModelOptions
from caploc.engine.encoding import Span
from caploc.models.loading import LoadedModel
from caploc.neurons.model import NeuronGrid, NeuronModel, as_neurons
from caploc.progress import Progress
from caploc.stats.threshold import Moments
from caploc.workers.distributed import ModelIdentity, ModelReplica, WorkerRecipe

# Of a piece: examples at most, and the forward passes that they cost, a single one's apart. A lost
# worker costs a piece, and the last pieces end nearly together.
PIECE, PASSES = 16, 512
Scoring = Callable[[Sequence[Span]], Moments]  # the running figures of some examples
Prepare = Callable[[NeuronModel, int | None, int | None], Scoring]


@dataclass(frozen=True)
class ScoringRecipe(WorkerRecipe):
    """What a worker loads, and `prepare`, which makes of its model what scores examples.

    That is given the most rows of a batch, and the bytes beside the weights (None: measured).
    """

    prepare: Prepare = field(kw_only=True)


@dataclass
class ScoringReplica(ModelReplica[NeuronGrid]):
    """A worker's model, which scores pieces."""

    recipe: ScoringRecipe
    scoring: Scoring = field(init=False, repr=False)

    def open(self, loaded: LoadedModel, memory: int | None) -> NeuronGrid:
        neurons = as_neurons(loaded, whole=False)
        self.scoring = self.recipe.prepare(neurons, self.recipe.batch_size, memory)
        self.uncovered = neurons.uncovered
        return neurons.grid

    def score(self, spans: Sequence[Span]) -> Moments:
        return self.scoring(spans)


def cut_pieces(spans: Sequence[Span], passes: int | float) -> list[list[Span]]:
    """Cut examples that cost so many passes into pieces of about equally many, longest first."""
    ordered = sorted(spans, key=lambda span: -len(span.inputs))
    most = max(1, min(PIECE, int(PASSES / passes)))
    parts = np.array_split(np.arange(len(ordered)), ceil(len(ordered) / most))
    return [[ordered[place] for place in part] for part in parts]


class ScoringWorkers:
    """Scores examples with the workers of a pool."""

    def __init__(self, pool: Any) -> None:
        """Wait for the first worker to have its model; raises as `DistributedEngine`."""
        self.pool = pool
        self.loaded: ModelIdentity[NeuronGrid] = pool.identify()

    def score(
        self, stretches: Sequence[Sequence[Span]], passes: int | float, progress: Progress
    ) -> Iterator[tuple[int, Moments]]:
        """Yield each stretch's number and figures as soon as all of its examples are scored.

        An example costs so many `passes`.
        """
        cut = [(n, piece) for n, each in enumerate(stretches) for piece in cut_pieces(each, passes)]
        left: dict[int, dict[int, Moments | None]] = {n: {} for n, _ in cut}
        for place, (number, _) in enumerate(cut):
            left[number][place] = None
        progress.start("neuron scores", sum(map(len, stretches)))
        for place, figures in self.pool.map("score", [piece for _, piece in cut]):
            number, piece = cut[place]
            left[number][place] = figures
            progress.advance(len(piece), sum(len(span.inputs) for span in piece))
            found = [each for each in left[number].values() if each is not None]
            if len(found) == len(left[number]):
                yield number, reduce(Moments.merged, found)

    def __enter__(self) -> "ScoringWorkers":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()


def start_workers(model: ModelOptions, prepare: Prepare) -> ScoringWorkers:
    """Start a model's workers to score neurons; `prepare` is that of `ScoringRecipe`."""
    from caploc.workers.ray_backend import WorkerPool

    assert model.workers is not None
    recipe = ScoringRecipe(model.loading(), model.batch_size, prepare=prepare)
    return ScoringWorkers(WorkerPool(model.workers, recipe, model.device, ScoringReplica))
