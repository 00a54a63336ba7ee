"""What a task's judging examples are worth without some heads, some neurons, and both."""

from dataclasses import dataclass, field

import numpy as np
import torch

from caploc.commonality import Result
from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.grid import Mask as Parts
from caploc.heads import Mask
from caploc.measurement import Meter, outcomes_by_example
from caploc.models.cutting import knocked_out
from caploc.models.loading import CutModel
from caploc.neurons.batches import Batch
from caploc.neurons.bench import NeuronBench
from caploc.neurons.cutting import Mode, NeuronEngine, WithoutNeurons
from caploc.neurons.examples import Source
from caploc.neurons.gates import activations
from caploc.neurons.grid import Chosen
from caploc.neurons.interaction import Joint, Outcomes, interactions, joint
from caploc.neurons.loading import NeuronModel
from caploc.neurons.shelf import digest
from caploc.neurons.sites import parts
from caploc.neurons.targets import gold_logprobs
from caploc.progress import Progress
from caploc.store import Row

OUTCOMES = ("metric", "logprob")
HEADS = "zero"  # how a finished run measures heads: its rows are not measured again
DRAWS = 5


@dataclass(frozen=True)
class Joining:
    """How neurons are cut (heads always to zero), with how many random draws, on what examples."""

    mode: Mode = field(default_factory=Mode)
    draws: int = DRAWS
    limit: int | None = None
    seed: int = 0

    def check(self) -> "Joining":
        """Refuse what means nothing.

        Raises:
            BadOption: for fewer than 5 draws, or a limit below 2.
        """
        if self.draws < DRAWS:
            raise BadOption(f"--draws must be {DRAWS} or more; got {self.draws}.")
        if self.limit is not None and self.limit < 2:
            raise BadOption(f"--limit must be 2 or more; got {self.limit}.")
        return self


@dataclass(frozen=True)
class Pairing(Result):
    """Some heads and some neurons knocked out, alone and both, on the same examples.

    `scores` are the task's own, by condition; `metric` and `logprob` what is lost, of the outcome
    by the task's metric and of log-probability (nats a gold token).
    """

    arm: str
    draw: int
    scores: dict[str, float | None]
    metric: Joint
    logprob: Joint


@dataclass(frozen=True)
class Conditions:
    """Measures one task's judging examples without some heads, some neurons, and both."""

    bench: NeuronBench
    source: Source
    asked: Joining
    progress: Progress
    cutting: dict[str, Meter]
    reference: list[Span]

    @classmethod
    def of(
        cls, bench: NeuronBench, source: Source, asked: Joining, progress: Progress
    ) -> "Conditions":
        """Prepare the cut, for which some modes need activations on the finding examples."""
        reference = source.spans(bench.wording) if asked.mode.needs_reference else []
        meters = {
            name: bench.meter(task, asked.mode, reference, asked.seed)
            for name, task in (("metric", source.judging), ("logprob", source.gold))
        }
        return cls(bench, source, asked, progress, meters, reference)

    @property
    def examples(self) -> list[int]:
        """The judging examples."""
        return self.source.judged(self.asked.limit)

    def meter(self, name: str, heads: Mask, neurons: Chosen) -> tuple[Meter, Parts]:
        """The meter of an outcome that cuts the neurons too, and the mask it is to be given."""
        cutting = self.cutting[name]
        if not heads.any():
            return cutting, neurons
        if not neurons.any():
            return self.bench.measuring(cutting.task, self.bench.engine, HEADS), heads
        engine = cutting.engine
        assert isinstance(engine, NeuronEngine), "what a bench measures sets of neurons with"
        without = WithoutNeurons(self.bench.engine, engine.cutter, neurons)
        told = digest(
            {
                "neurons": np.flatnonzero(neurons).tolist(),
                "mode": str(self.asked.mode),
                "seed": self.asked.seed if self.reference else None,
                "reference": [[span.inputs, span.continuation] for span in self.reference],
            }
        )
        return self.bench.measuring(cutting.task, without, f"heads, no neurons {told}"), heads

    def rows(self, name: str, heads: Mask, neurons: Chosen) -> tuple[Meter, list[Row]]:
        """The rows of one outcome without some heads and some neurons."""
        meter, mask = self.meter(name, heads, neurons)
        what = f"{meter.task.name}, heads and neurons"
        return meter, meter.under(mask, self.examples, self.progress, what)

    def outcomes(self, name: str, heads: Mask, neurons: Chosen) -> Outcomes:
        """Each example's outcome; NaN where there is none."""
        known = outcomes_by_example(self.rows(name, heads, neurons)[1])
        return np.array([known.get(example, np.nan) for example in self.examples])

    def score(self, heads: Mask, neurons: Chosen) -> float | None:
        """The task's own score."""
        meter, rows = self.rows("metric", heads, neurons)
        return meter.score(rows).score

    def measured(self, heads: Mask, neurons: Chosen) -> "Measured":
        """All conditions of some heads and some neurons."""
        no_heads, no_neurons = heads & False, neurons & False
        pairs = {
            "heads": (heads, no_neurons),
            "neurons": (no_heads, neurons),
            "both": (heads, neurons),
        }
        return Measured(
            {name: self.outcomes(name, no_heads, no_neurons) for name in OUTCOMES},
            {
                name: {each: self.outcomes(name, *pair) for each, pair in pairs.items()}
                for name in OUTCOMES
            },
            {each: self.score(*pair) for each, pair in pairs.items()},
        )


@dataclass(frozen=True)
class Measured:
    """Outcomes by name, intact and by condition, and the task's own score by condition."""

    intact: dict[str, Outcomes]
    cut: dict[str, dict[str, Outcomes]]
    scores: dict[str, float | None]

    def interactions(self, name: str) -> Outcomes:
        """The interaction of each example."""
        return interactions(self.intact[name], self.cut[name])

    def pairing(self, arm: str, draw: int, seed: int) -> Pairing:
        """What is lost."""
        metric, logprob = (joint(self.intact[name], self.cut[name], seed=seed) for name in OUTCOMES)
        return Pairing(arm, draw, self.scores, metric, logprob)


def reads_own_layer(heads: CutModel, neurons: NeuronModel, span: Span) -> bool:
    """Whether neurons read what the heads of their own layer write, shown by cutting all of those.

    Not so where attention and feed-forward blocks run side by side.
    """
    counts = zip(heads.grid.per_layer, neurons.grid.per_layer, strict=True)
    layer = next((layer for layer, each in enumerate(counts) if all(each)), None)
    if layer is None:
        return False
    sites = parts(neurons.projections)
    batch = Batch.of([span], heads.model.device)
    seen = []
    for columns in (slice(0), heads.grid.layer_slices[layer]):
        mask = torch.zeros(1, heads.grid.size, dtype=torch.bool)
        mask[0, columns] = True
        cut = knocked_out(heads.projections, heads.grid, mask)
        with torch.no_grad(), cut, activations(neurons.projections) as handed:
            gold_logprobs(heads.model, batch)
        inside = [place for place, (own, _, _) in enumerate(sites) if own == layer]
        seen.append([handed[place] for place in inside])
    return not all(map(torch.equal, *seen))
