"""The locator: a prompt in, the edges that carry its answer out."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from caploc.engine.encoding import RequestEncoder
from caploc.errors import BadData
from caploc.models.loading import LoadedModel
from caploc.neurons.circuits.attribution import BATCH, STEPS, attribute
from caploc.neurons.circuits.circuit import strongest
from caploc.neurons.circuits.graph import EdgeGrid, Edges, prune
from caploc.neurons.circuits.opening import OpenModel, open_model
from caploc.neurons.circuits.pairs import Counterparts, find_pair
from caploc.neurons.circuits.recording import Pair
from caploc.neurons.facts.facts import Prompt


@dataclass(frozen=True)
class Keeping:
    """How circuits are found: steps of EAP-IG, and how many edges (or what share) are kept.

    With neither `edges` nor `share` 5,000 edges are kept. `batch` rows (steps, circuits) are run at
    a time; a model of billions of parameters may have memory for one or two.
    """

    edges: int | None = None
    share: float | None = None
    steps: int = STEPS
    batch: int = BATCH


@dataclass(frozen=True)
class CircuitLocator:
    """Finds the circuit of a prompt; `circuit_locator` makes one of a loaded model."""

    opened: OpenModel
    wording: RequestEncoder
    counterparts: Counterparts
    keeping: Keeping
    seed: int
    name: str = "circuit"
    units: str = "edges"

    @property
    def grid(self) -> EdgeGrid:
        """The columns of what is located."""
        return self.opened.grid

    def pair(self, prompt: Prompt) -> Pair | None:
        """The prompt's clean and corrupted tokens; None if no other subject is as long."""
        return find_pair(self.wording, prompt, self.counterparts, seed=self.seed)

    def scores(self, pair: Pair) -> Float64[np.ndarray, " edges"]:
        """What each edge does for the answer, in logits."""
        return attribute(self.opened, pair, steps=self.keeping.steps, batch=self.keeping.batch)

    def strongest(self, pair: Pair) -> Edges:
        """The edges kept for a pair, those that lead nowhere included."""
        keeping = self.keeping
        return strongest(self.scores(pair), edges=keeping.edges, share=keeping.share)

    def locate(self, prompt: Prompt) -> Edges:
        """The circuit of a prompt: the strongest edges, less those on no path to the logits.

        Raises:
            BadData: if there is no counterpart to corrupt the prompt with.
        """
        pair = self.pair(prompt)
        if pair is None:
            raise BadData(
                f"There is no other subject with as many tokens as {prompt.subject!r} and an "
                f"answer of its own for {prompt.text!r}; supply more counterparts, or leave the "
                "prompt out."
            )
        return prune(self.grid, self.strongest(pair))


def circuit_locator(
    loaded: LoadedModel,
    counterparts: Counterparts,
    *,
    keeping: Keeping | None = None,
    seed: int = 0,
) -> CircuitLocator:
    """Open a model and find circuits in it; the seed chooses among counterparts.

    Raises:
        ModelRefused: if its edges are not known or not all there is.
    """
    opened = open_model(loaded)
    wording = RequestEncoder(loaded.model, loaded.tokenizer)
    return CircuitLocator(opened, wording, counterparts, keeping or Keeping(), seed)
