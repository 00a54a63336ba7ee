"""Scores of neurons by workers: examples go out in pieces, and running figures come back.

Pieces depend on the examples alone and their figures are merged in one order, so that the result
depends neither on how many workers there are nor on which of them was first.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain, count
from math import ceil

import numpy as np

from caploc.engine.encoding import Span
from caploc.errors import CaplocError, RunFailed
from caploc.models.loading import LoadedModel
from caploc.models.neurons import NeuronGrid, NeuronModel, as_neurons
from caploc.progress import Progress, Silent
from caploc.stats.threshold import Moments
from caploc.workers.distributed import ModelReplica, WorkerRecipe, WorkerSupervisor
from caploc.workers.scheduling import ATTEMPTS, Patience, Work

# A lost worker costs a piece, and the last pieces end nearly together: examples at most, and the
# forward passes that they cost, a single one's apart.
PIECE, PASSES = 16, 512
Scoring = Callable[[Sequence[Span]], Moments]  # the running figures of some examples


@dataclass(frozen=True)
class ScoringRecipe(WorkerRecipe):
    """What a worker loads, and `prepare`, which makes of its model what scores examples.

    That is given the most rows of a batch, and the bytes beside the weights (None: measured).
    """

    prepare: Callable[[NeuronModel, int | None, int | None], Scoring] = field(kw_only=True)


@dataclass
class ScoringReplica(ModelReplica[NeuronGrid]):
    """A worker's model, which scores pieces."""

    recipe: ScoringRecipe
    score: Scoring = field(init=False, repr=False)

    def open(self, loaded: LoadedModel, memory: int | None) -> NeuronGrid:
        neurons = as_neurons(loaded, whole=False)
        self.score = self.recipe.prepare(neurons, self.recipe.batch_size, memory)
        return neurons.grid

    def answer(self, spans: Sequence[Span], _: float) -> Iterator[list[Moments] | CaplocError]:
        """Score every example of a piece; yield their figures."""
        try:
            yield [self.score(spans)]
        except CaplocError as error:
            yield error


def divide_stretch(spans: Sequence[Span], passes: float) -> list[list[Span]]:
    """Cut examples that cost so many passes into pieces of about equally many, longest first."""
    ordered = sorted(spans, key=lambda span: -len(span.inputs))
    most = max(1, min(PIECE, int(PASSES / passes)))
    parts = np.array_split(np.arange(len(ordered)), ceil(len(ordered) / most))
    return [[ordered[place] for place in part] for part in parts]


@dataclass(eq=False)
class ScoringPiece:
    """Examples that one worker scores.

    `failed` are the workers that did not manage; `figures` come once all examples are scored.
    """

    spans: list[Span]
    failed: tuple[int, ...] = ()
    figures: Moments | None = None


@dataclass
class HeldPiece:
    """A piece that a worker scores, since when, and its figures once they have come."""

    number: int
    piece: ScoringPiece
    heard: float
    figures: Moments | None = None


class PieceQueue(Work):
    """Which worker scores which piece, and what happens when one is lost or late. Pure."""

    def __init__(
        self,
        pieces: Iterable[ScoringPiece] = (),
        patience: Patience | None = None,
        numbers: "count[int] | None" = None,
        progress: Progress | None = None,
    ) -> None:
        """Take in pieces; what is given out is numbered on by `numbers`."""
        self.open, self.patience = deque(pieces), patience or Patience()
        self.numbers, self.progress = numbers or count(1), progress or Silent()
        self.held: dict[int, HeldPiece] = {}  # by worker
        self.failure: CaplocError | None = None

    @property
    def waiting(self) -> bool:
        return bool(self.open)

    def give(
        self, worker: int, present: Sequence[int], now: float
    ) -> tuple[int, list[Span]] | None:
        for piece in self.open:
            if worker not in piece.failed or not set(present) - set(piece.failed):
                self.open.remove(piece)
                self.held[worker] = HeldPiece(next(self.numbers), piece, now)
                return self.held[worker].number, piece.spans
        return None

    def take(self, worker: int, number: int, figures: Sequence[Moments], now: float) -> None:
        held = self.held.get(worker)
        if held is not None and held.number == number:
            (held.figures,) = figures
            self.gap = max(now - held.heard, self.gap or 0.0)

    def end(self, worker: int, number: int, now: float) -> None:
        held = self.held.get(worker)
        if held is None or held.number != number:
            return
        if held.figures is None:
            self.lose(worker, "figures were missing")
            return
        del self.held[worker]
        spans, held.piece.figures = held.piece.spans, held.figures
        self.progress.advance(len(spans), sum(len(span.inputs) for span in spans))

    def refuse(self, worker: int, refusal: CaplocError) -> None:
        if self.held.pop(worker, None) is not None:
            self.failure = refusal

    def lose(self, worker: int, why: str, *, blame: bool = True) -> None:
        """Take in that a worker has failed or gone: its piece is the next to be given out."""
        held = self.held.pop(worker, None)
        if held is None:
            return
        piece = held.piece
        if blame:
            piece.failed += (worker,)
        if len(piece.failed) >= ATTEMPTS:
            self.failure = RunFailed(
                f"{len(piece.failed)} workers in turn failed on the same {len(piece.spans)} "
                f"examples, the last one because {why}; what was scored is kept. Run the same "
                "command without --workers to see whether this process can score them."
            )
        self.open.appendleft(piece)


class ScoringWorkers(WorkerSupervisor[NeuronGrid]):
    """Scores examples with the workers of a pool."""

    def __init__(
        self,
        pool: object,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the workers as `WorkerSupervisor` does; `patience` is for those that hang."""
        self.patience, self.numbers = patience, count(1)
        super().__init__(pool, PieceQueue(), clock)

    def score(
        self, stretches: Sequence[Sequence[Span]], passes: float, progress: Progress
    ) -> Iterator[tuple[int, Moments]]:
        """Yield each stretch's number and figures as soon as all of its examples are scored.

        An example costs so many `passes`.

        Raises:
            UserError: if a worker refuses an example.
            RunFailed: if several workers fail on the same examples, or none is left.
        """
        pieces = {
            number: [ScoringPiece(part) for part in divide_stretch(spans, passes)]
            for number, spans in enumerate(stretches)
        }
        every = chain.from_iterable(pieces.values())
        progress.start("neuron scores", sum(map(len, stretches)))
        self.work = queue = PieceQueue(every, self.patience, self.numbers, progress)
        while pieces:
            self.turn()
            if queue.failure is not None:
                raise queue.failure
            self.feed()  # before figures are stored: the workers need not wait for it
            for number in list(pieces):
                figures = [each.figures for each in pieces[number] if each.figures is not None]
                if len(figures) == len(pieces[number]):
                    del pieces[number]
                    left = self.clock()
                    yield number, reduce(Moments.merged, figures)
                    queue.excuse(self.clock() - left)
