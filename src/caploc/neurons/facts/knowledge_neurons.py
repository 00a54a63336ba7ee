"""Knowledge neurons (Dai et al. 2022): the neurons to which an answer owes its probability.

The score of neuron i of layer l for a prompt x and the first token y of its answer is the
integrated gradient of y's probability over the layer's activations a_l at the predicting position,
from 0 to their values, the other layers as they are:

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

from caploc.engine.encoding import Span
from caploc.errors import BadOption
from caploc.lookup import pick
from caploc.neurons.attribution import POINTS, Attribution, Gates
from caploc.neurons.batches import Batch, gold_logprobs
from caploc.neurons.facts.prompts import Encoded, Encoder, FactPrompt
from caploc.neurons.proof import NeuronModel
from caploc.neurons.sites import Chosen, NeuronGrid

STEPS = 20
SHARE = 0.2  # of the largest score, to be chosen
Sets = Bool[np.ndarray, "sets neurons"]


@dataclass(frozen=True)
class KnowledgeNeurons:
    """The locator: neurons that score at least `share` of the prompt's largest score.

    `share` is 0.2 in Dai et al.'s program; 0.3 is in use too.

    Raises:
        UnknownName: if there are no such points.
        BadOption: for a share outside (0, 1], or fewer than 1 step.
    """

    loaded: NeuronModel
    steps: int = STEPS
    points: str = "midpoint"
    share: float = SHARE

    name = "knowledge neurons"
    units = "neurons"

    def __post_init__(self) -> None:
        pick(POINTS, self.points, "rule for the points of an integral")
        if not 0 < self.share <= 1 or self.steps < 1:
            raise BadOption(
                f"The share of the largest score must be above 0 and at most 1, and the steps 1 or "
                f"more; got {self.share:g} and {self.steps}."
            )

    @property
    def grid(self) -> NeuronGrid:
        return self.loaded.grid

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.loaded)

    def score(self, prompt: FactPrompt) -> Float64[np.ndarray, " neurons"]:
        """Attribute the probability of the answer's first token to every neuron."""
        asked = Attribution("integrated", "probability", "last", self.steps, self.points)
        batch = first_token(self.loaded, self.encoder.encode(prompt))
        return asked.scores(self.loaded, batch)[0].cpu().numpy()

    def locate(self, prompt: FactPrompt) -> Chosen:
        """Choose the neurons of a prompt; none where no score is above 0."""
        scores = self.score(prompt)
        largest = scores.max()
        chosen: Chosen = (scores >= self.share * largest) & (largest > 0)
        return chosen


def first_token(loaded: NeuronModel, encoded: Encoded) -> Batch:
    """Make a batch of one prompt, of whose answer only the first token is to come."""
    one = encoded.first()
    return Batch.of([Span(one.tokens, one.answer)], loaded.model.device)


@torch.no_grad()
def scaled_probabilities(
    loaded: NeuronModel, encoded: Encoded, sets: Sets, factors: Sequence[float]
) -> Float64[np.ndarray, " rows"]:
    """Compute P of the answer's first token: intact, then for each factor with each set scaled.

    Neurons are scaled where that token is predicted, and nowhere else.
    """
    scaled = [np.where(sets, factor, 1.0) for factor in factors]
    values = np.concatenate([np.ones((1, sets.shape[1])), *scaled]).astype(np.float32)
    batch = first_token(loaded, encoded).repeated(len(values))
    on_device = torch.from_numpy(values).to(batch.tokens.device)
    gates = Gates(loaded.projections, on_device, positions=batch.last_of_prompt)
    with gates.applied():
        likely = gold_logprobs(loaded.model, batch)
    probabilities: Float64[np.ndarray, " rows"] = likely.double().exp().cpu().numpy()
    return probabilities
