"""Knowledge neurons (Dai et al. 2022): the neurons to which an answer owes its probability.

The score of neuron i of layer l for a prompt x and the first token y of its answer is the
integrated gradient of y's probability over the layer's activations a_l at the predicting position,
from 0 to their values, the other layers as they are:

    Attr_li = a_li / m  sum over k of dP_y(alpha_k a_l) / da_li

with m = 20 points, in the middles of equal parts (ours; Dai et al.: k / m for k = 0..m-1). A
layer's scores add up to P(a_l) - P(0).

*Reliability*: Dai et al. set the located neurons' activations at the predicting position to 0
(suppress) or twice their values (enhance) and watch the answer's probability. Here the same is done
to random neurons of the same layers and to those located for another fact, and watched on the fact,
on its rewrites and on unrelated facts. The arms are ours (the idea of
re-running each method's protocol is that of Huang et al., ICLR 2025).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float64
from tqdm import tqdm

from caploc.designs import generator
from caploc.errors import BadData
from caploc.neurons.attribution import Gates, score_batch
from caploc.neurons.chance import random_sets
from caploc.neurons.engine import Batch, gold_logprobs
from caploc.neurons.model import Chosen, NeuronGrid, NeuronModel
from caploc.neurons.options import Attribution
from caploc.neurons.stats import mean_interval
from papers.cnl.facts import Fact, FactPrompt
from papers.cnl.fidelity import are_related
from papers.cnl.prompts import Encoded, Encoder

STEPS = 20
SHARE = 0.2  # of the largest score, to be chosen; Dai et al.'s program has it, 0.3 is in use too
WATCHED = 5  # other facts' prompts watched for each fact
FACTORS = {"suppress": 0.0, "enhance": 2.0}
PLACES = ("fact", "rewrites", "unrelated")
Sets = Bool[np.ndarray, "sets neurons"]


@dataclass(frozen=True)
class KnowledgeNeurons:
    """The locator: neurons that score at least `share` of the prompt's largest score."""

    loaded: NeuronModel
    steps: int = STEPS
    share: float = SHARE

    name = "knowledge neurons"
    units = "neurons"

    @property
    def grid(self) -> NeuronGrid:
        return self.loaded.grid

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.loaded)

    def score(self, prompt: FactPrompt) -> Float64[np.ndarray, " neurons"]:
        """Attribute the probability of the answer's first token to every neuron."""
        asked = Attribution("integrated", "probability", "last", self.steps)
        batch = first_token(self.loaded, self.encoder.encode(prompt))
        return score_batch(asked, self.loaded, batch)[0].cpu().numpy()

    def locate(self, prompt: FactPrompt) -> Chosen:
        """Choose the neurons of a prompt; none where no score is above 0."""
        scores = self.score(prompt)
        return (scores >= self.share * scores.max()) & (scores.max() > 0)


def first_token(loaded: NeuronModel, encoded: Encoded) -> Batch:
    """Make a batch of one prompt, of whose answer only the first token is to come."""
    return Batch.of([encoded.first().span], loaded.model.device)


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
    return likely.double().exp().cpu().numpy()


def intervention_reliability(
    locator: KnowledgeNeurons, facts: Sequence[Fact], *, draws: int = 20, seed: int
) -> dict[str, Any]:
    """Intervene on each fact's neurons, on random ones and on another fact's.

    `suppress` and `enhance` say, for each place that is watched, the relative change (P' - P) / P
    of the answer's first token, mean over facts: with the `located` neurons, `random` ones
    (averaged over draws), and those of the `other_fact`. `intact` is P itself: where it is close to
    1, nothing can be enhanced. `size` is the mean number of neurons of a fact; `empty` facts, for
    which none were located, are left out.
    """
    found = [locator.locate(f.prompt) for f in tqdm(facts, locator.name, disable=None)]
    kept = [number for number, chosen in enumerate(found) if chosen.any()]
    if len(kept) < 2:
        raise BadData(
            f"{locator.name} are located for {len(kept)} of {len(facts)} facts; two are needed to "
            "hold one against another."
        )
    sets = np.stack(found)[kept]
    used = [facts[number] for number in kept]
    changes, intact = measure_changes(locator, used, sets, draws, seed)
    return {
        "locator": locator.name,
        "facts": len(kept),
        "empty": len(facts) - len(kept),
        "size": float(sets.sum(axis=1).mean()),
        "draws": draws,
        "intact": mean_interval(intact, seed=seed),
    } | {
        name: {place: average(changes[:, at, kind], seed) for at, place in enumerate(PLACES)}
        for kind, name in enumerate(FACTORS)
    }


def measure_changes(
    locator: KnowledgeNeurons, facts: Sequence[Fact], located: Sets, draws: int, seed: int
) -> tuple[Float64[np.ndarray, "facts places factors sets"], Float64[np.ndarray, " facts"]]:
    """Measure the relative change at each place by each intervention, and P of each fact's prompt.

    Sets are the located one, the other fact's, then the random ones. NaN where a fact has no prompt
    of a kind.
    """
    random, loaded, factors = generator(seed), locator.loaded, list(FACTORS.values())
    found = np.full((len(facts), len(PLACES), len(FACTORS), 2 + draws), np.nan)
    intact = np.empty(len(facts))
    for number, fact in enumerate(tqdm(facts, "interventions on neurons", disable=None)):
        others = [other for other in range(len(facts)) if other != number]
        other = others[int(random.integers(len(others)))]
        drawn = random_sets(located[number], loaded.grid, draws, seed=seed + number)
        sets = np.stack([located[number], located[other], *drawn])
        pool = [each for each in facts if are_related(fact, each) is False]
        unrelated = [pool[place].prompt for place in random.permutation(len(pool))[:WATCHED]]
        for place, asked in enumerate(((fact.prompt,), fact.rewrites, unrelated)):
            encoded = map(locator.encoder.encode, asked)
            likely = [scaled_probabilities(loaded, each, sets, factors) for each in encoded]
            if likely:
                changes = [each[1:].reshape(len(FACTORS), -1) / each[0] - 1 for each in likely]
                found[number, place] = np.mean(changes, axis=0)
            if PLACES[place] == "fact":
                intact[number] = likely[0][0]
    return found, intact


def average(changes: Float64[np.ndarray, "facts sets"], seed: int) -> dict[str, Any]:
    """Average columns over facts: the located set, the other fact's, then the random ones."""
    located, other, random = changes[:, 0], changes[:, 1], changes[:, 2:]
    return {
        "located": mean_interval(located, seed=seed),
        "random": mean_interval(random.mean(axis=1), seed=seed),
        "other_fact": mean_interval(other, seed=seed),
    }
