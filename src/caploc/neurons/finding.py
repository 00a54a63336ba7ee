"""Commonality neurons: those located again and again on independent examples of one capability.

Examples are dealt into disjoint subsets; each subset's mean scores give a set; the neurons in all
of them (or in a share of them) are the task's commonality set C(D).

Of an example's scores nothing is kept but its part in running figures. They lie in the run's
folder, a file for every stretch of examples, named by what was scored and how, so that a killed run
goes on and no rule but those that change the scores has them computed again.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import reduce
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64

from caploc.designs import generator
from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.neurons.attribution import score_batch
from caploc.neurons.cache import ArrayCache
from caploc.neurons.engine import Batch, Batcher
from caploc.neurons.model import Chosen, NeuronModel
from caploc.neurons.options import Attribution, Rule
from caploc.neurons.sets import Within, commonality_set, mean_rates, overlap_rates, within
from caploc.neurons.threshold import Moments
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
    """Yield the numbers of some examples and every neuron's score for each, longest ones first."""
    progress = progress or Silent()
    progress.start(what, len(spans))

    def work(batch: Batch) -> list[np.ndarray]:
        return list(score_batch(asked, model, batch).cpu().numpy())

    batcher = batcher or Batcher(model.model)
    for numbers, rows in batcher.run(spans, work, asked.copies):
        yield numbers, np.stack(rows)
        progress.advance(len(numbers), sum(len(spans[number].inputs) for number in numbers))


def accumulate(
    model: NeuronModel,
    spans: Sequence[Span],
    asked: Attribution,
    moments: Moments | None = None,
    **how: Any,
) -> Moments:
    """Add the examples' scores to `moments`: mean and variance.

    `how` are further arguments of `score_examples`.
    """
    total = moments or Moments.empty(model.grid.size)
    for _, rows in score_examples(model, spans, asked, **how):
        total = total.added(rows)
    return total


def score_cache(folder: Path) -> ArrayCache:
    """Open the running figures of a run's folder, by what was scored."""
    return ArrayCache(folder / "scores")


SIZES = (10, 30, 100, 300, 1000, 3000)  # examples of a subset at which the curve has a point
FEW = 0.2  # of the examples; a score that so few carry is one of these and not of the task
SPLITS = 10  # into halves
STRETCH = 500  # examples scored between two writes
Sets = Bool[np.ndarray, "subsets neurons"]


@dataclass(frozen=True)
class TaskNeurons:
    """What was found for one task.

    `moments` are over all examples, `subsets` the sets of each subset, `curve` what subsets of
    fewer examples give: (examples, mean overlap by the larger set, mean IoU; None where undefined).
    `halves` is the overlap of what two halves of the subsets choose, in each of some random splits.
    """

    task: str
    examples: int
    located: Chosen
    subsets: Sets
    moments: Moments
    curve: list[tuple[int, float | None, float | None]] = field(default_factory=list)
    halves: list[float] = field(default_factory=list)

    def within(self) -> Within:
        return within(self.subsets)

    @property
    def ordered(self) -> list[int]:
        """The columns of the located neurons, the highest score first."""
        columns = np.flatnonzero(self.located)
        order = np.argsort(-self.moments.mean[columns], kind="stable")
        return [int(column) for column in columns[order]]


def deal_subsets(task: str, spans: Sequence[Any], subsets: int) -> list[Sequence[Any]]:
    """Deal a task's examples into disjoint subsets, in the order given.

    Raises BadOption if there are fewer than two subsets, or not an example for each.
    """
    if subsets < 2:
        raise BadOption(f"--subsets must be 2 or more; got {subsets}.")
    size = len(spans) // subsets
    if not size:
        raise BadOption(
            f"Task {task} gives {len(spans)} examples to find neurons on, too few for "
            f"{subsets} subsets; take more --examples or fewer --subsets."
        )
    return [spans[number * size : (number + 1) * size] for number in range(subsets)]


def curve_steps(size: int) -> list[int]:
    """List the numbers of examples at which a subset's curve has a point."""
    return sorted({size, *(step for step in SIZES if step < size)})


def cut_stretches(spans: Sequence[Span]) -> list[Sequence[Span]]:
    """Cut a subset where its curve has a point, and every `STRETCH` examples between two."""
    ends = [0]
    for step in curve_steps(len(spans)):
        ends += [*range(ends[-1] + STRETCH, step, STRETCH), step]
    return [spans[start:end] for start, end in pairwise(ends)]


@dataclass(frozen=True)
class Finder:
    """Scores examples of one model and chooses among its neurons."""

    model: NeuronModel
    asked: Attribution
    rule: Rule
    cache: ArrayCache
    progress: Progress
    batcher: Batcher | None = None

    def find(
        self, task: str, spans: Sequence[Span], subsets: int, *, least: float = 1.0
    ) -> TaskNeurons:
        """Locate on each of some subsets, see `deal_subsets`, and on all of them."""
        dealt = deal_subsets(task, spans, subsets)
        steps = curve_steps(len(dealt[0]))
        running = [self.growing(task, part, steps) for part in dealt]
        sets = [np.stack(list(map(self.choose, each))) for each in zip(*running, strict=True)]
        parts = tuple(each[-1] for each in running)
        pairs = list(map(mean_rates, sets))
        curve = [(step, each.largest, each.iou) for step, each in zip(steps, pairs, strict=True)]
        located, total = commonality_set(sets[-1], least), reduce(Moments.merged, parts)
        halves, examples = self.halves(parts), subsets * steps[-1]
        return TaskNeurons(task, examples, located, sets[-1], total, curve, halves)

    def halves(self, parts: Sequence[Moments]) -> list[float]:
        """Deal the subsets into two halves, one left out of an odd number, and compare their sets.

        Gives each split's overlap by the larger set, where there is one.
        """
        random, half, found = generator(0), len(parts) // 2, []
        for _ in range(SPLITS):
            order = random.permutation(len(parts))
            one, other = (
                self.choose(reduce(Moments.merged, [parts[n] for n in side]))
                for side in (order[:half], order[half : 2 * half])
            )
            found.append(overlap_rates(one, other).largest)
        return [rate for rate in found if rate is not None]

    def growing(self, task: str, spans: Sequence[Span], steps: Sequence[int]) -> list[Moments]:
        """Accumulate the running figures after each number of examples."""
        total, found = self.rule.moments(self.model.grid.size), []
        for each in cut_stretches(spans):
            total = total.merged(self.stretch(task, each))
            found += [total] if total.items in steps else []
        return found

    def question(self, spans: Sequence[Span]) -> dict[str, Any]:
        """Say what the figures of some examples depend on."""
        return {
            "model": self.model.fingerprint,
            "dtype": self.model.dtype,
            "attribution": asdict(self.asked),
            "normalised": self.rule.normalised,
            "spans": [[list(span.inputs), list(span.continuation)] for span in spans],
        }

    def stretch(self, task: str, spans: Sequence[Span]) -> Moments:
        """Accumulate the figures of some examples, from the cache if they were scored before."""

        def score() -> Moments:
            how = {"progress": self.progress, "what": task, "batcher": self.batcher}
            empty = self.rule.moments(self.model.grid.size)
            return accumulate(self.model, spans, self.asked, empty, **how)

        return self.cache.recall(self.question(spans), score)

    def choose(self, moments: Moments) -> Chosen:
        return self.rule.choose(moments)
