"""The files that lie beside `result.json`, as far as commands rely on them."""

from typing import Any

from pydantic import RootModel

from caploc.result import (
    AnswerPair,
    Count,
    Document,
    Model,
    Name,
    Number,
    PartName,
    Record,
    RunCost,
    Score,
    Size,
    TaskComparison,
)


class RunFile(Record):
    """run.json."""

    study: dict[str, Any]
    command: str = ""
    versions: dict[str, str | None] | None = None


class Answers(RootModel[list[AnswerPair]]):
    """answers.json."""


class Studies(Document):
    """studies.json."""

    studies: list[Name]


class TaskScores(Document):
    """evaluation.json: tasks with the heads of the user's choice knocked out."""

    model: Name
    heads: list[PartName]
    tasks: list[TaskComparison]
    cost: RunCost = RunCost()
    command: str | None = None
    versions: dict[str, str | None] = {}


class Curve(Document):
    """curve.json: each task's scores with none, one, two and more of the heads knocked out."""

    heads: list[PartName]
    curves: dict[Name, list[Score]]
    cost: RunCost | None = None


class ContrastEffect(Record):
    """Two sets of heads, and what their joint loss does beyond that of each."""

    kind: Name
    first: list[PartName]
    second: list[PartName]
    effect: Number | None = None
    low: Number | None = None
    high: Number | None = None
    q: Number | None = None
    meaning: Name | None = None


class Interactions(Document):
    """interactions.json."""

    examples: Count | None = None
    interactions: list[ContrastEffect]
    summary: list[Name] = []


class Universal(Document):
    """universal.json."""

    model: Name
    universal: list[PartName] = []


class NeuronCounts(Record):
    """The neurons of each layer."""

    layers: Size
    neurons: list[Size]
    expert_widths: list[Size]
    expert_counts: list[Size]


class FoundNeuron(Record):
    """A neuron that a task names."""

    neuron: PartName


class FoundNeurons(Record):
    """A task's neurons, and those of its subsets."""

    task: Name
    neurons: list[FoundNeuron]
    subsets: list[list[PartName]]


class Neurons(Document):
    """neurons.json."""

    model: Model
    grid: NeuronCounts
    tasks: list[FoundNeurons]


class Arm(Record):
    """One way in which neurons were tuned."""

    arm: Name
    fit: dict[str, Any] | None = None


class Arms(Record):
    """The ways of one task."""

    arms: list[Arm]


class TuningOptions(Record):
    """How neurons were tuned."""

    recipe: dict[str, Any]
    noise: Number


class Enhancement(Document):
    """enhancement.json."""

    enhancing: TuningOptions
    tasks: dict[Name, Arms]
