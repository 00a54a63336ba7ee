"""Knowledge neurons (Dai et al. 2022): the neurons to which an answer owes its probability.

The score of neuron i of layer l for a prompt x and an answer y is the integrated gradient of the
answer's probability over the layer's activations a_l at the predicting position, from 0 to their
values, the other layers as they are:

    Attr_li = a_li / m  sum over k of dP_y(alpha_k a_l) / da_li

with m = 20 points, in the middles of equal parts (ours; Dai et al.: k / m for k = 0..m-1, here
`points="left"`). A layer's scores add up to P(a_l) - P(0).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from caploc.commonality.overlap import votes_needed
from caploc.commonality.result import Result
from caploc.errors import BadData, BadOption
from caploc.lookup import pick
from caploc.neurons.facts.copies import Copies, Gate
from caploc.neurons.facts.encoding import Encoder
from caploc.neurons.facts.facts import Prompt
from caploc.neurons.gates import POINTS
from caploc.neurons.grid import Chosen, NeuronGrid
from caploc.neurons.loading import NeuronModel

STEPS = 20
SHARE = 0.2  # of the largest score, to be in the coarse set
COPIES = 256  # copies of a prompt in a forward pass
ANSWERS = ("first", "whole")

LEAST = 3  # prompts that must agree, whatever the share
STEP = 0.05  # by which the share of prompts is moved
TRIES = 6
WANTED = (2.0, 5.0)  # neurons of a fact, on average


@dataclass(frozen=True)
class KnowledgeNeurons:
    """The locator: neurons that score at least `share` of the prompt's largest score.

    `answer` is `first` (the probability of the answer's first token, at the prompt's last position)
    or `whole` (ours: the mean log-probability of all its tokens, over all positions that predict
    one). `share` is 0.2 in Dai et al.'s program; 0.3 is in use too.

    Raises:
        UnknownName: if there are no such points.
        BadOption: if there is no such answer, a share outside (0, 1], or fewer than 1 step.
    """

    loaded: NeuronModel
    steps: int = STEPS
    points: str = "midpoint"
    answer: str = "first"
    share: float = SHARE

    name = "knowledge neurons"
    units = "neurons"

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        pick(POINTS, self.points, "rule for the points of an integral")
        if self.answer not in ANSWERS:
            raise BadOption(f"answer must be first or whole; got {self.answer!r}.")
        if not 0 < self.share <= 1 or self.steps < 1:
            raise BadOption(
                f"The share of the largest score must be above 0 and at most 1, and the steps 1 or "
                f"more; got {self.share:g} and {self.steps}."
            )

    @property
    def grid(self) -> NeuronGrid:
        """The neurons it chooses among."""
        return self.loaded.grid

    @cached_property
    def encoder(self) -> Encoder:
        """How the model reads prompts."""
        return Encoder(self.loaded)

    def score(self, prompt: Prompt) -> Float64[np.ndarray, " neurons"]:
        """Every neuron's attribution, in units of probability (`whole`: of log-probability).

        Raises:
            BadData: if the prompt does not fit the model's window.
        """
        encoded = self.encoder.encode(prompt)
        whole = self.answer == "whole"
        copies = Copies(self.loaded, encoded if whole else encoded.first())
        fractions = torch.tensor(POINTS[self.points](self.steps), device=self.loaded.model.device)
        return attributions(copies, self.grid, fractions, whole=whole)

    def locate(self, prompt: Prompt) -> Chosen:
        """The coarse set of a prompt; empty where no score is above 0.

        Raises:
            BadData: if the prompt does not fit the model's window.
        """
        return coarse(self.score(prompt), self.share)


def attributions(
    copies: Copies, grid: NeuronGrid, fractions: Tensor, *, whole: bool
) -> Float64[np.ndarray, " neurons"]:
    """Integrated gradients of all layers, several layers to a pass.

    Each copy has one layer at one of the points and the others as they are; the gradient by its
    gate is already the activation times the gradient by the activation.
    """
    steps = len(fractions)
    layers = [layer for layer, width in enumerate(grid.per_layer) if width]
    together = max(1, COPIES // steps)
    scores = np.zeros(grid.size)
    for first in range(0, len(layers), together):
        gates = [
            Gate(
                layer,
                slice(place * steps, (place + 1) * steps),
                fractions[:, None, None]
                .expand(-1, copies.positions, grid.per_layer[layer])
                .clone()
                .requires_grad_(),
            )
            for place, layer in enumerate(layers[first : first + together])
        ]
        read = copies.log_probabilities(len(gates) * steps, gates)
        outcome = read.mean(1) if whole else read[:, 0].exp()
        found = torch.autograd.grad(outcome.sum(), [gate.values for gate in gates])
        for gate, gradient in zip(gates, found, strict=True):
            scores[grid.layer_slices[gate.layer]] = gradient.double().mean(0).sum(0).cpu().numpy()
    return scores


def coarse(scores: Float64[np.ndarray, " neurons"], share: float) -> Chosen:
    """The neurons that score at least a share of the largest score; none if that is not above 0."""
    largest = scores.max()
    chosen: Chosen = (scores >= share * largest) & (largest > 0)
    return chosen


@dataclass(frozen=True)
class Refined(Result):
    """Each fact's neurons that enough of its prompts agree on.

    `share` is the share of prompts that was settled on, `mean` the number of neurons of a fact on
    average, `settled` whether that is within what was wanted; `sets` a row for each fact.
    """

    share: float
    mean: float
    settled: bool
    tries: int
    sets: Bool[np.ndarray, "facts neurons"]


def refine(
    coarse_sets: Sequence[Bool[np.ndarray, "prompts neurons"]],
    *,
    share: float = 0.7,
    wanted: tuple[float, float] | None = WANTED,
) -> Refined:
    """Keep what a share of a fact's prompts, and at least 3, agree on.

    The share is moved by 0.05, up to 6 times, until facts have the number of neurons wanted on
    average (2 to 5), as in Dai et al.'s program; with `wanted` None it stays as it is. The last
    share tried is the one used.

    Raises:
        BadData: if a fact has fewer than 3 prompts.
        BadOption: if the share is not above 0 and at most 1.
    """
    if not coarse_sets or min(map(len, coarse_sets)) < LEAST:
        raise BadData(
            f"To refine knowledge neurons every fact needs {LEAST} prompts or more, its rewrites "
            "included; give more rewrites, or use the coarse sets."
        )
    votes = [each.sum(axis=0) for each in coarse_sets]
    low, high = wanted or (0.0, np.inf)
    for tries in range(1, TRIES + 1):
        needed = [max(LEAST, votes_needed(share, len(each))) for each in coarse_sets]
        sets = np.stack([each >= least for each, least in zip(votes, needed, strict=True)])
        mean = float(sets.sum(axis=1).mean())
        moved = round(share - STEP if mean < low else share + STEP, 10)
        if low <= mean <= high or tries == TRIES or not 0 < moved <= 1:
            break
        share = moved
    return Refined(share, mean, low <= mean <= high, tries, sets)
