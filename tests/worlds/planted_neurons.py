"""Planted neurons: Llamas whose tasks hang on chosen feed-forward neurons, by their weights.

`write_planted_neurons` writes a checkpoint, a task for each capability and the truth. What all
planted models have in common stands in `planted.HandmadeLlama`.

How `warm ember item17` is answered: "ember" says yes (1) in the lane of "warm", "ice" says no (-1),
and one head takes the lane to the last position. There every neuron planted for "warm" holds the
lane's value, and adds it to the answer, times its own strength; the strengths of a task's neurons
sum to 1. "yes" is as loud as the answer, "no" as loud as its opposite, and "unsure" as loud as the
item's doubt, between 0.1 and 0.95. So the example is right as long as the strengths that are left
sum to more than the doubt: intact always, without all of a task's neurons never. A neuron that is
shared listens to the lanes of all tasks; one that opposes speaks for the wrong answer. All other
neurons are louder than the planted ones.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32

from caploc.designs import generator
from worlds.planted import (
    CONSTANT,
    NOISE,
    PROMPT,
    UNSURE,
    Examples,
    HandmadeLlama,
    write_planted_task,
)

# What is asked, the words of which it is true, and those of which it is not.
WORDS = {
    "warm": ("ember fever desert stove", "ice snow glacier frost"),
    "large": ("whale ocean planet tower", "ant crumb seed atom"),
    "alive": ("oak tiger moss heron", "brick nail spoon lamp"),
    "sweet": ("honey syrup candy nectar", "vinegar salt chalk pepper"),
}
YES, NO = "yes", "no"
ITEMS = 200  # even ones are asked in evaluation, odd ones in training
DOUBTS = (0.1, 0.95)  # of the first and the last item
SPREAD = (0.85, 1.15)  # of the strengths of a task's neurons, before they are made to sum to 1
LOUD = 3.0  # what noise holds against what a planted neuron does
TRUTH = "neurons_truth.json"
Strengths = Mapping[str, float]


@dataclass(frozen=True)
class PlantedNeurons:
    """What to plant in a model of `layers` x `width` neurons, for so many `tasks` (1 to 4).

    Each task has `needed` neurons of its own and `opposing` ones; `shared` neurons serve all tasks.
    They are dealt out over the layers in turn. `examples` is the number of each task's evaluation
    examples, and that of its training examples.
    """

    layers: int = 4
    width: int = 512
    heads: int = 4
    tasks: int = 1
    needed: int = 5
    shared: int = 0
    opposing: int = 0
    examples: int = 200
    seed: int = 0


@dataclass(frozen=True)
class NeuronTruth:
    """Which neurons each task hangs on, written `L3N217`, and by what strength.

    `needed` has those a task has for itself and the `shared` ones, `opposing` those that speak
    against its answers. `doubts` has a number for each evaluation example of a task, in its order.
    """

    needed: Mapping[str, Strengths]
    opposing: Mapping[str, Strengths]
    shared: tuple[str, ...]
    doubts: Mapping[str, tuple[float, ...]]

    def left(self, task: str, cut: Iterable[str] = ()) -> float:
        """Sum the strengths of a task's neurons without some."""
        gone = set(cut)
        both = (self.needed[task], 1.0), (self.opposing[task], -1.0)
        kept = (s * v for side, s in both for name, v in side.items() if name not in gone)
        return sum(kept, 0.0)

    def right(self, task: str, cut: Iterable[str] = ()) -> Bool[np.ndarray, " examples"]:
        """Tell which of a task's evaluation examples are answered rightly with neurons cut."""
        return np.array(self.doubts[task]) < self.left(task, cut)

    def accuracy(self, task: str, cut: Iterable[str] = ()) -> float:
        """Return the share of a task's examples answered rightly with these neurons cut."""
        return float(self.right(task, cut).mean())


def write_planted_neurons(folder: Path | str, plan: PlantedNeurons) -> NeuronTruth:
    """Write a planted model, a task for each capability and the truth into a folder.

    The tasks are `warm.yaml`, `large.yaml`, `alive.yaml` and `sweet.yaml`, as many as planned; they
    name their data by absolute path, so write anew rather than move the folder. A seed gives the
    same model on every machine.
    """
    place, random = Path(folder).absolute(), generator(plan.seed)
    place.mkdir(parents=True, exist_ok=True)
    names = list(WORDS)[: plan.tasks]
    data = {name: _examples(name, plan.examples, 0, random) for name in names}
    truth = _truth(plan, data, random)
    for name, examples in data.items():
        train = _examples(name, plan.examples, 1, random)
        files = {f"{name}_test": ("test", examples), f"{name}_train": ("train", train)}
        write_planted_task(place, name, files)
    _NeuronsLlama(plan, truth, random).write(place)
    content = {**asdict(truth), "plan": asdict(plan)}
    (place / TRUTH).write_text(json.dumps(content, indent=2) + "\n")
    return truth


def _truth(
    plan: PlantedNeurons, data: Mapping[str, Examples], random: np.random.Generator
) -> NeuronTruth:
    indices = [random.permutation(plan.width) for _ in range(plan.layers)]
    turns = random.permutation(plan.layers)
    order = (
        f"L{turns[number % plan.layers]}N{indices[turns[number % plan.layers]][turn]}"
        for turn in range(plan.width)
        for number in range(plan.layers)
    )

    def draw(count: int, share: int) -> dict[str, float]:
        return {next(order): float(random.uniform(*SPREAD)) / share for _ in range(count)}

    serving = plan.needed + plan.shared
    shared, needed, opposing = draw(plan.shared, serving), {}, {}
    for task in data:
        opposing[task] = draw(plan.opposing, serving)
        own = draw(plan.needed, 1)
        rest = 1 + sum(opposing[task].values()) - sum(shared.values())
        total = sum(own.values())
        needed[task] = {name: value / total * rest for name, value in own.items()} | shared
    doubts = {task: tuple(_doubt(each["prompt"]) for each in data[task]) for task in data}
    return NeuronTruth(needed, opposing, tuple(shared), doubts)


def _examples(task: str, count: int, odd: int, random: np.random.Generator) -> Examples:
    """Make examples, no two alike, doubts spread evenly, about half true; items are odd or even."""
    words = [(word, answer) for some, answer in zip(WORDS[task], (YES, NO), strict=True)
             for word in some.split()]  # fmt: skip
    left = [list(random.permutation(len(words))) for _ in range(ITEMS // 2)]
    examples = []
    for place in random.permutation(count):
        item = int(place) * (ITEMS // 2) // count
        word, answer = words[left[item].pop()]
        examples.append({"prompt": f"{task} {word} item{2 * item + odd}", "answer": answer})
    return examples


def _doubt(prompt: str) -> float:
    """Return the doubt of the item that a prompt ends with."""
    item = int(prompt.rpartition("item")[2])
    return DOUBTS[0] + (DOUBTS[1] - DOUBTS[0]) * item / (ITEMS - 1)


@dataclass(frozen=True)
class _NeuronsLlama(HandmadeLlama):
    """A model with planted neurons."""

    plan: PlantedNeurons
    truth: NeuronTruth
    answer, doubt = 1, 2  # places in the residual stream
    answers = (YES, answer, 1), (NO, answer, -1), (UNSURE, doubt, 1)
    said = slice(3, 3 + len(WORDS))  # the lanes, and below where a head takes them
    taken = slice(said.stop, said.stop + len(WORDS))
    heard = slice(taken.stop, taken.stop + NOISE)
    hummed = slice(heard.stop, heard.stop + NOISE)
    head_width = 8
    loudness = 0.02

    @property
    def vocabulary(self) -> Iterator[str]:
        yield from (YES, NO, UNSURE, *WORDS)
        yield from " ".join(some for both in WORDS.values() for some in both).split()
        yield from (f"item{number}" for number in range(ITEMS))

    @property
    def sizes(self) -> tuple[int, int]:
        return self.hummed.stop, self.plan.width

    def mean(self, table: Float32[np.ndarray, "words hidden"]) -> None:
        for lane, (true, false) in enumerate(WORDS.values(), start=self.said.start):
            table[[self.words[word] for word in true.split()], lane] = 1
            table[[self.words[word] for word in false.split()], lane] = -1
        for number in range(ITEMS):
            table[self.words[f"item{number}"], self.doubt] = _doubt(f"item{number}")

    def plant_heads(self, layer: int, reads: np.ndarray, writes: np.ndarray) -> None:
        if layer == 0:
            own = slice(0, len(WORDS))
            reads[own], writes[:, own] = 0, 0
            reads[own, self.said] = np.eye(len(WORDS))
            writes[self.taken, own] = np.eye(len(WORDS)) * PROMPT

    def plant_neurons(self, layer: int, gate: np.ndarray, up: np.ndarray, adds: np.ndarray) -> None:
        """Plant noise, and neurons that are `relu(1) * lane * strength`."""
        width = len(gate)
        gate[:, self.heard] = self.noise(width, NOISE) / np.sqrt(NOISE)
        up[:, self.heard] = self.noise(width, NOISE) * LOUD / np.sqrt(NOISE)
        adds[:, self.hummed] = self.noise(width, NOISE) * self.share(width) / LOUD
        for lane, task in enumerate(self.truth.needed, start=self.taken.start):
            needed = self.truth.needed[task].items()
            opposing = [(name, -strength) for name, strength in self.truth.opposing[task].items()]
            for name, strength in (*needed, *opposing):
                where, _, index = name[1:].partition("N")
                if int(where) == layer:
                    row = int(index)
                    gate[row], up[row], adds[row] = 0, 0, 0
                    gate[row, CONSTANT] = 1 / self.constant
                    up[row, self.taken if name in self.truth.shared else slice(lane, lane + 1)] = 1
                    adds[row, self.answer] = strength
