"""What every neuron command works on: a model as heads and as neurons, its store and scores."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from caploc.engine import BatchEngine, Engine
from caploc.engine.encoding import RequestEncoder, Span
from caploc.measurement import Cost, Meter
from caploc.models.loading import LoadedModel
from caploc.neurons.cutting import Cutter, Mode, NeuronEngine
from caploc.neurons.loading import NeuronModel, as_neurons
from caploc.neurons.shelf import Shelf, digest
from caploc.store import Question, Store
from caploc.tasks.task import Task


@dataclass
class NeuronBench:
    """A loaded model, found and proved as heads and as neurons."""

    engine: BatchEngine[LoadedModel]
    neurons: NeuronModel
    store: Store
    shelf: Shelf
    cost: Cost = field(default_factory=Cost)
    meters: dict[Question, Meter] = field(default_factory=dict)
    cutters: dict[str, Cutter] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: BatchEngine[LoadedModel], store: Store, folder: Path) -> "NeuronBench":
        """Find and prove the model's neurons.

        Raises:
            ModelRefused: if they are not found or fail the proof.
        """
        return cls(engine, as_neurons(engine.loaded), store, Shelf(folder))

    @property
    def wording(self) -> RequestEncoder:
        """How text becomes tokens."""
        return self.engine.encoder

    def meter(
        self,
        task: Task,
        mode: Mode | None = None,
        reference: Sequence[Span] = (),
        seed: int = 0,
    ) -> Meter:
        """The meter of a task whose masks are sets of neurons, cut by `mode` (None: zero).

        `reference` are the examples whose activations stand in, where the mode needs some.
        """
        mode = mode or Mode()
        told = f"neurons {mode}"
        if mode.needs_reference:
            spans = [[list(span.inputs), list(span.continuation)] for span in reference]
            told += f" of {digest({'spans': spans})}"
        if mode.name == "resample":
            told += f" seed {seed}"
        if told not in self.cutters:
            self.cutters[told] = Cutter.of(self.neurons, mode, reference, seed)
        return self.measuring(task, NeuronEngine(self.engine, self.cutters[told]), told)

    def measuring(self, task: Task, engine: Engine, mode: str) -> Meter:
        """The meter of a task on some engine; one a question, so that no row is counted twice."""
        loaded = self.engine.loaded
        question = Question(
            loaded.fingerprint, loaded.dtype, task.name, task.version, task.outcome_kind, mode
        )
        if question not in self.meters:
            self.meters[question] = Meter(engine, self.store, task, question, self.cost)
        return self.meters[question]
