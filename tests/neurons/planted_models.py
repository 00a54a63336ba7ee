"""Planted models on disk, each written and loaded once."""

from functools import cached_property

import numpy as np
import torch

from caploc.declaration import ModelOptions
from caploc.engine.batch import BatchEngine
from caploc.neurons.finding import Finder, score_cache
from caploc.neurons.model import as_neurons
from caploc.neurons.options import Attribution, Rule
from caploc.neurons.study import load_source
from caploc.options import TaskOptions
from caploc.progress import Silent
from worlds.planted_neurons import WORDS, PlantedNeurons, write_planted_neurons

TWO = PlantedNeurons(tasks=2, needed=6, seed=5)
SHARING = PlantedNeurons(tasks=2, needed=6, shared=3, seed=6)


class Planted:
    """A planted model: its truth, its neurons, its tasks."""

    def __init__(self, folder, plan):
        self.folder, self.plan = folder, plan
        self.truth = write_planted_neurons(folder, plan)
        self.options = ModelOptions(str(folder), device="cpu")
        self.worded = {}

    @cached_property
    def engine(self):
        return BatchEngine(self.options.engine().loaded)

    @cached_property
    def neurons(self):
        return as_neurons(self.engine.loaded)

    @property
    def grid(self):
        return self.neurons.grid

    @property
    def tasks(self):
        """The task files."""
        return tuple(str(self.folder / f"{name}.yaml") for name in list(WORDS)[: self.plan.tasks])

    def source(self, task="warm", examples=100, seed=0):
        """A task's examples for finding and judging."""
        return load_source(
            self.options, str(self.folder / f"{task}.yaml"), TaskOptions(), examples, seed
        )

    def spans(self, task="warm", examples=100):
        """The finding examples as tokens."""
        if (task, examples) not in self.worded:
            found = self.source(task, examples).spans(self.engine.encoder)
            self.worded[task, examples] = found
        return self.worded[task, examples]

    def needed(self, task="warm"):
        """The neurons that a task hangs on, as a set."""
        return self.grid.mask(self.truth.needed[task])

    def names(self, chosen):
        return set(map(str, self.grid.named(chosen)))

    def find(self, folder, *, asked=None, rule=None, task="warm", examples=100, subsets=2):
        """What a finder finds."""
        finder = Finder(
            self.neurons,
            asked or Attribution(),
            rule or Rule(normalised=False),
            score_cache(folder),
            Silent(),
        )
        return finder.find(task, self.spans(task, examples), subsets)

    @torch.inference_mode()
    def logprobs(self, spans, cut=()):
        """Each gold answer's log-probability by a plain forward pass, weights edited by hand."""
        weights = self.engine.loaded.model.model.layers
        places = [tuple(map(int, name[1:].split("N"))) for name in cut]
        columns = [(weights[layer].mlp.down_proj.weight, index) for layer, index in places]
        before = [weight[:, index].clone() for weight, index in columns]
        try:
            for weight, index in columns:
                weight[:, index] = 0
            tokens = torch.tensor([span.inputs for span in spans])
            logits = self.engine.loaded.model(tokens).logits[:, -1]
        finally:
            for (weight, index), values in zip(columns, before, strict=True):
                weight[:, index] = values
        gold = torch.tensor([span.continuation[0] for span in spans])
        return logits.log_softmax(-1)[np.arange(len(gold)), gold].double().numpy()


class Planter:
    """Plants each plan once."""

    def __init__(self, folders):
        self.folders, self.made = folders, {}

    def __call__(self, plan):
        if plan not in self.made:
            self.made[plan] = Planted(self.folders.mktemp("planted") / "model", plan)
        return self.made[plan]
