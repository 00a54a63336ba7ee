"""What the files of runs on neurons look like, as far as commands rely on it."""

from typing import Any

from caploc.contents.forms import FileObject, Model, Name, Number, PartName, Size, Written


class NeuronCounts(FileObject):
    """The neurons of each layer."""

    layers: Size
    neurons: list[Size]
    expert_widths: list[Size]
    expert_counts: list[Size]


class FoundNeuron(FileObject):
    """A neuron that a task names."""

    neuron: PartName


class FoundNeurons(FileObject):
    """A task's neurons, and those of its subsets."""

    task: Name
    neurons: list[FoundNeuron]
    subsets: list[list[PartName]]


class Neurons(Written):
    """neurons.json."""

    model: Model
    grid: NeuronCounts
    tasks: list[FoundNeurons]


class Arm(FileObject):
    """One way in which neurons were tuned."""

    arm: Name
    fit: dict[str, Any] | None = None


class Arms(FileObject):
    """The ways of one task."""

    arms: list[Arm]


class EnhancementForm(FileObject):
    """How neurons were tuned."""

    recipe: dict[str, Any]
    noise: Number


class Enhancement(Written):
    """enhancement.json."""

    enhancing: EnhancementForm
    tasks: dict[Name, Arms]
