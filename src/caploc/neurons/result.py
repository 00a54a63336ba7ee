"""What commands on neurons write: the one description of their files.

A number that is not known is NaN at hand and null in a file.
"""

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from pydantic import ConfigDict, Field

from caploc.neurons.chance import Chance, Excess
from caploc.neurons.model import Chosen, NeuronGrid
from caploc.neurons.options import LAYERS, LOCATED, RANDOM, Enhancing
from caploc.neurons.sets import Cohesion, Overlaps, Within
from caploc.neurons.stats import Interval, Known
from caploc.neurons.threshold import Sets
from caploc.result import ComponentName, Document, Name, Record, RunCost, Score, Size


class NeuronFile(Document):
    """A file of results, with the command that found them and the versions of what was used."""

    model_config = ConfigDict(strict=False)

    command: str
    versions: dict[str, str | None]

    def as_dict(self) -> dict[str, Any]:
        """Return what is written."""
        found: dict[str, Any] = json.loads(self.model_dump_json(by_alias=True))
        return found


@dataclass(frozen=True)
class ArmLoss:
    """What a task loses when an arm's neurons are erased, on the same examples.

    `score` is the task's own, with the neurons erased; `metric` and `logprob` are the mean over
    examples of outcome intact less outcome erased, and of log-probability (nats for each gold
    token) likewise: more is more lost.
    """

    arm: str
    draw: int
    score: float | None
    metric: Interval
    logprob: Interval


@dataclass(frozen=True)
class Erased:
    """One task's located neurons erased, and what one judging task loses.

    The excesses are None where no random neurons were drawn. `beats_...`: do the located neurons
    cost more log-probability than every draw of an arm? None if the arm was not measured.
    """

    judged: str
    examples: int
    intact: Score
    arms: list[ArmLoss]
    metric_specificity: Excess | None
    logprob_specificity: Excess | None
    beats_every_layer_matched_draw: bool | None
    beats_every_uniform_draw: bool | None

    @classmethod
    def of(
        cls,
        judged: str,
        examples: int,
        intact: Score,
        arms: list[ArmLoss],
        excess: tuple[Excess | None, Excess | None],
    ) -> "Erased":
        """Hold the located neurons against every draw; `excess` is by metric and logprob."""
        own = next(lost.logprob.mean for lost in arms if lost.arm == LOCATED)

        def beats(arm: str) -> bool | None:
            drawn = [own > lost.logprob.mean for lost in arms if lost.arm == arm]
            return all(drawn) if drawn else None

        return cls(judged, examples, intact, arms, *excess, beats(LAYERS), beats(RANDOM))

    @property
    def located(self) -> ArmLoss:
        return self.of_arm(LOCATED)[0]

    def of_arm(self, arm: str) -> list[ArmLoss]:
        return [lost for lost in self.arms if lost.arm == arm]


@dataclass(frozen=True)
class ErasedTask:
    """What is lost without one task's neurons: by the task itself, and by others."""

    task: str
    neurons: int
    own: Erased
    others: list[Erased]


class ErasureFile(NeuronFile):
    """erasure.json: `neurons` are those of the user's choice, None where the located are erased."""

    model: str
    neurons: list[str] | None
    tasks: list[ErasedTask]
    cost: RunCost


@dataclass(frozen=True)
class LocatedNeuron:
    """A neuron of a task: its mean score, and the standard error of that."""

    neuron: ComponentName
    score: float
    stderr: Known


@dataclass(frozen=True)
class TaskRecord:
    """A task's neurons, and the sets of its subsets.

    `curve` holds examples in a subset, mean overlap by the larger set and mean IoU; `halves` the
    overlap of random halves of the subsets, `by_chance` that of subsets of random neurons as many
    in each layer, `across` that with other tasks' subsets. `separate`: does the interval within
    lie above it? `erased` is what the task loses without its neurons.
    """

    task: Name
    examples: int
    effective_examples: Known
    neurons: list[LocatedNeuron]
    subsets: list[list[ComponentName]]
    share: float
    layers: list[int]
    within: Within
    curve: list[tuple[int, float | None, float | None]]
    halves: list[float]
    by_chance: float | None
    across: Interval | None
    separate: bool | None
    erased: Erased | None


class LocatedModel(Record):
    """Whose neurons they are; `uncovered` are parts of it that no mask cuts."""

    name: Name
    fingerprint: Name
    uncovered: list[str] = []


class LocatedGrid(Record):
    """How many neurons each layer has."""

    layers: int
    neurons: list[Size]


class LocatedFile(NeuronFile):
    """neurons.json."""

    model: LocatedModel
    rule: str
    attribution: str
    grid_: LocatedGrid = Field(alias="grid")
    tasks: list[TaskRecord]
    overlaps: Overlaps | None
    cohesion: Cohesion | None

    @property
    def grid(self) -> NeuronGrid:
        return NeuronGrid(tuple(self.grid_.neurons))

    def sets(self) -> dict[str, tuple[Chosen, Sets]]:
        """Read each task's neurons, and those of its subsets."""
        grid = self.grid
        return {
            each.task: (
                grid.mask(row.neuron for row in each.neurons),
                np.stack([grid.mask(names) for names in each.subsets]),
            )
            for each in self.tasks
        }


@dataclass(frozen=True, kw_only=True)
class SharedNeurons(Chance):
    """What two tasks' neurons have in common, beside chance; the first few by name."""

    task: str
    other: str
    neurons: str


class OverlapFile(NeuronFile):
    """overlap.json."""

    datasets: tuple[str, ...]
    rates: dict[str, list[list[Known]]]
    cohesion: Cohesion
    pairs: list[SharedNeurons]


@dataclass(frozen=True)
class TuningFit:
    """What tuning an arm came to.

    `parameters` is the number of values trained. Losses are of the examples held out, in nats a
    token: `untuned_loss` before, `losses` at each rate (None where training diverged), of which
    `rate` is the best. `at_edge`: that is the lowest or highest of several, so that a better one
    may lie beyond.
    """

    parameters: int
    rate: float
    at_edge: bool
    untuned_loss: Known
    losses: dict[float, float | None]


@dataclass(frozen=True)
class TuningChange:
    """What an arm did to one task under one measure: mean outcome before and after.

    `change` is their difference with its paired bootstrap interval over the examples that have
    both outcomes.
    """

    task: str
    measure: str
    before: Known
    after: Known
    change: Interval


@dataclass(frozen=True)
class Tuned:
    """One arm: what was tuned (`fit` None: nothing), and what that changed.

    `neurons` is the number tuned, None where nothing is.
    """

    arm: str
    draw: int | None
    neurons: int | None
    fit: TuningFit | None
    changes: tuple[TuningChange, ...]


@dataclass(frozen=True)
class TuningControl:
    """The draws of random neurons on one task under one measure, beside the located neurons.

    `excess` is the located neurons' change less the mean of the draws' `changes`, by bootstrap over
    examples. `p` is one-sided: the share of changes, the located one included, that reach it, so
    with n draws never below 1 / (n + 1).
    """

    task: str
    measure: str
    located: Known
    changes: tuple[Known, ...]
    excess: Interval
    p: float | None


@dataclass(frozen=True)
class TuningResult:
    """All arms, and the located one held against the random ones.

    `trained_on` and `held_out` count the training examples that weights were fitted to and the
    learning rate was chosen by.
    """

    trained_on: int
    held_out: int
    arms: tuple[Tuned, ...]
    controls: tuple[TuningControl, ...]


class EnhancementFile(NeuronFile):
    """enhancement.json: what was asked, and each task's arms."""

    model: str
    enhancing: Enhancing
    tasks: dict[str, TuningResult]
