"""Planted neurons: transformers whose tasks hang on chosen feed-forward neurons, by their weights.

`write_planted_neurons` writes a Llama checkpoint put together by hand, a task for each capability
and the truth.

How it answers `warm ember item17`: "ember" says yes (1) in the lane of "warm", "ice" says no (-1).
Attention is uniform (the queries are zero), and one head takes the lane to the last position. There
every neuron planted for "warm" holds the lane's value, and adds it to the answer, times its own
strength; the strengths of a task's neurons sum to 1. "yes" is as loud as the answer, "no" as loud
as its opposite, and "unsure" as loud as the item's doubt, between 0.1 and 0.95. So the example is
right as long as the strengths that are left sum to more than the doubt: intact always, without all
of a task's neurons never. A neuron that is shared listens to the lanes of all tasks; one that
opposes speaks for the wrong answer.

All other neurons are louder than the planted ones and write noise, which moves only words that
never win. One large constant in the residual stream makes every norm a fixed scale.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float32
from transformers import LlamaConfig

from caploc.designs import generator
from caploc.errors import BadOption
from caploc.models.planted import (
    SPECIAL,
    Examples,
    HandmadeLlama,
    check_numbers,
    llama_config,
    planting_folder,
    write_task,
)

# What is asked, the words of which it is true, and those of which it is not.
WORDS = {
    "warm": ("ember fever desert stove", "ice snow glacier frost"),
    "large": ("whale ocean planet tower", "ant crumb seed atom"),
    "alive": ("oak tiger moss heron", "brick nail spoon lamp"),
    "sweet": ("honey syrup candy nectar", "vinegar salt chalk pepper"),
}
YES, NO, UNSURE = "yes", "no", "unsure"
ITEMS = 200  # even ones are asked in evaluation, odd ones in training
MOST_EXAMPLES = ITEMS // 2 * 8  # of a split: every word with every item
DOUBTS = (0.1, 0.95)  # of the first and the last item
PROMPT = 3  # tokens, over which uniform attention takes the mean
SPREAD = (0.85, 1.15)  # of the strengths of a task's neurons, before they are made to sum to 1

HEAD = 8  # values of a head
NOISE = 16
LOUD = 3.0  # what noise holds against what a planted neuron does
WHISPER = 0.02  # of the noise that heads, and neurons, add together, root mean square
SHARPNESS = 10.0  # logits of an answer of 1
STREAM = 1000.0  # the constant: all else changes the norm by less than 1e-4
# Places in the residual stream.
CONSTANT, ANSWER, DOUBT = 0, 1, 2
SAID = slice(3, 3 + len(WORDS))
HEARD = slice(SAID.stop, SAID.stop + len(WORDS))
HISS = slice(HEARD.stop, HEARD.stop + NOISE)
HUM = slice(HISS.stop, HISS.stop + NOISE)

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

    def check(self) -> None:
        """Refuse what cannot be planted.

        Raises:
            BadOption: naming the number that is wrong.
        """
        most = {"tasks": len(WORDS), "examples": MOST_EXAMPLES}
        check_numbers(self, most, zero=("shared", "opposing", "seed"))
        planted = self.tasks * (self.needed + self.opposing) + self.shared
        if planted > self.layers * self.width:
            raise BadOption(
                f"{planted} neurons are to be planted, and a model of {self.layers} layers with "
                f"{self.width} neurons each has {self.layers * self.width}; plant fewer, or ask "
                "for a larger model."
            )


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
        right: np.ndarray = np.array(self.doubts[task]) < self.left(task, cut)
        return right

    def accuracy(self, task: str, cut: Iterable[str] = ()) -> float:
        """Return the share of a task's examples answered rightly with these neurons cut."""
        return float(self.right(task, cut).mean())


def write_planted_neurons(folder: Path | str, plan: PlantedNeurons) -> NeuronTruth:
    """Write a planted model, a task for each capability and the truth into a folder.

    The tasks are `warm.yaml`, `large.yaml`, `alive.yaml` and `sweet.yaml`, as many as planned; they
    name their data by absolute path, so write anew rather than move the folder. A seed gives the
    same model on every machine.

    Raises:
        BadOption: if the plan cannot be, or the folder is a file or holds something else.
    """
    plan.check()
    place, random = planting_folder(folder, TRUTH), generator(plan.seed)
    names = list(WORDS)[: plan.tasks]
    data = {name: _examples(name, plan.examples, 0, random) for name in names}
    truth = _truth(plan, data, random)
    for name, examples in data.items():
        train = _examples(name, plan.examples, 1, random)
        files = {f"{name}_test": ("test", examples), f"{name}_train": ("train", train)}
        write_task(place, name, files)
    _PlantedNeurons(plan, truth, random).write(place)
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
    serving = plan.needed + plan.shared
    shared = {next(order): _drawn(random) / serving for _ in range(plan.shared)}
    needed, opposing = {}, {}
    for task in data:
        opposing[task] = {next(order): _drawn(random) / serving for _ in range(plan.opposing)}
        own = {next(order): _drawn(random) for _ in range(plan.needed)}
        rest = 1 + sum(opposing[task].values()) - sum(shared.values())
        total = sum(own.values())
        needed[task] = {name: value / total * rest for name, value in own.items()} | shared
    doubts = {task: tuple(_doubt(each["prompt"]) for each in data[task]) for task in data}
    return NeuronTruth(needed, opposing, tuple(shared), doubts)


def _drawn(random: np.random.Generator) -> float:
    return float(random.uniform(*SPREAD))


def _doubt(prompt: str) -> float:
    """Return the doubt of the item that a prompt ends with."""
    item = int(prompt.rpartition("item")[2])
    return DOUBTS[0] + (DOUBTS[1] - DOUBTS[0]) * item / (ITEMS - 1)


def _examples(task: str, count: int, odd: int, random: np.random.Generator) -> Examples:
    """Make examples, no two alike, their doubts spread evenly, about half of them true."""
    words = [(word, answer) for some, answer in zip(WORDS[task], (YES, NO), strict=True)
             for word in some.split()]  # fmt: skip
    left = [list(random.permutation(len(words))) for _ in range(ITEMS // 2)]
    examples = []
    for place in random.permutation(count):
        item = int(place) * (ITEMS // 2) // count
        word, answer = words[left[item].pop()]
        examples.append({"prompt": f"{task} {word} item{2 * item + odd}", "answer": answer})
    return examples


@dataclass(frozen=True)
class _PlantedNeurons(HandmadeLlama):
    """The weights and the vocabulary of a model with planted neurons."""

    plan: PlantedNeurons
    truth: NeuronTruth
    random: np.random.Generator

    @property
    def constant(self) -> float:
        return STREAM

    @cached_property
    def words(self) -> dict[str, int]:
        """The token of every word; those of the items come last."""
        words = [*SPECIAL.values(), YES, NO, UNSURE, *WORDS]
        words += [word for both in WORDS.values() for some in both for word in some.split()]
        words += [f"item{number}" for number in range(ITEMS)]
        return {word: token for token, word in enumerate(words)}

    @cached_property
    def config(self) -> LlamaConfig:
        return llama_config(
            self.words,
            self.plan.layers,
            self.plan.heads,
            places=HUM.stop,
            inner=self.plan.width,
            head_width=HEAD,
        )

    def layer(self, number: int) -> dict[str, np.ndarray]:
        return self.attention(number) | self.neurons(number)

    def embeddings(self) -> Float32[np.ndarray, "words hidden"]:
        """Make a row for each word: the constant, noise, and what the word means."""
        table = np.zeros((len(self.words), self.config.hidden_size), np.float32)
        table[:, CONSTANT] = STREAM
        table[:, HISS] = self.random.standard_normal((len(table), NOISE))
        for lane, (true, false) in enumerate(WORDS.values(), start=SAID.start):
            table[[self.words[word] for word in true.split()], lane] = 1
            table[[self.words[word] for word in false.split()], lane] = -1
        for number in range(ITEMS):
            table[self.words[f"item{number}"], DOUBT] = _doubt(f"item{number}")
        return table

    def readout(self) -> Float32[np.ndarray, "words hidden"]:
        """Make a row for each word: the answers, and noise for words that are none."""
        table = np.zeros((len(self.words), self.config.hidden_size), np.float32)
        table[:, HUM] = self.random.standard_normal((len(table), NOISE)) / np.sqrt(NOISE)
        for word, place, sign in ((YES, ANSWER, 1), (NO, ANSWER, -1), (UNSURE, DOUBT, 1)):
            table[self.words[word]] = 0
            table[self.words[word], place] = sign
        return table * np.float32(SHARPNESS)

    def attention(self, layer: int) -> dict[str, np.ndarray]:
        """Make a layer's heads: noise, and in the first what takes the lanes to the last word."""
        values = self.plan.heads * HEAD
        silent, reads = np.zeros((2, values, self.config.hidden_size), np.float32)
        writes = np.zeros((self.config.hidden_size, values), np.float32)
        reads[:, HISS] = self.random.standard_normal((values, NOISE)) / np.sqrt(NOISE)
        writes[HUM] = self.random.standard_normal((NOISE, values)) * self.share(values)
        if layer == 0:
            own = slice(0, len(WORDS))
            reads[own], writes[:, own] = 0, 0
            reads[own, SAID] = np.eye(len(WORDS))
            writes[HEARD, own] = np.eye(len(WORDS)) * PROMPT
        parts = zip("qkvo", (silent, silent, reads, writes), strict=True)
        return {f"self_attn.{letter}_proj": part for letter, part in parts}

    def share(self, parts: int) -> float:
        """Return what one of the noisy parts of a layer adds."""
        return float(WHISPER / np.sqrt(parts * self.plan.layers))

    def neurons(self, layer: int) -> dict[str, np.ndarray]:
        """Make a layer's neurons: noise; the planted ones are `relu(1) * lane * strength`."""
        width = self.plan.width
        gate, up, adds = np.zeros((3, width, self.config.hidden_size), np.float32)
        gate[:, HISS] = self.random.standard_normal((width, NOISE)) / np.sqrt(NOISE)
        up[:, HISS] = self.random.standard_normal((width, NOISE)) * LOUD / np.sqrt(NOISE)
        adds[:, HUM] = self.random.standard_normal((width, NOISE)) * self.share(width) / LOUD
        for name, (strength, lanes) in self.planted.items():
            where, _, index = name[1:].partition("N")
            if int(where) == layer:
                row = int(index)
                gate[row], up[row], adds[row] = 0, 0, 0
                gate[row, CONSTANT] = 1 / STREAM
                up[row, lanes] = 1
                adds[row, ANSWER] = strength
        return {"mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": adds.T}

    @cached_property
    def planted(self) -> dict[str, tuple[float, slice]]:
        """What every planted neuron adds to the answer, and the lanes that it listens to."""
        planted = {}
        for lane, task in enumerate(self.truth.needed, start=HEARD.start):
            for name, strength in self.truth.needed[task].items():
                lanes = HEARD if name in self.truth.shared else slice(lane, lane + 1)
                planted[name] = strength, lanes
            for name, strength in self.truth.opposing[task].items():
                planted[name] = -strength, slice(lane, lane + 1)
        return planted
