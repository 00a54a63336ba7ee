"""How much each neuron contributes to each example's answer.

The paper's form, an extension of knowledge neurons (Dai et al. 2022) by integrated gradients
(Sundararajan et al. 2017), is `integrated`:

    Attr_li = a_li / S  sum over s = 1..S of dF(alpha_s a_l) / da_li

with S = 19 points on the way of one layer's activations from 0 to their values, other layers
untouched. `gradient` takes the last point alone, for all layers in one backward pass; `joint`
scales all layers together; `activation` and `logit` are baselines that need no gradient.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from caploc.engine.packed import DecoderStack
from caploc.errors import BadOption
from caploc.lookup import pick
from caploc.models.projections import decoder_layers
from caploc.neurons.batches import Batch
from caploc.neurons.gates import POINTS, Gates, activations
from caploc.neurons.loading import NeuronModel
from caploc.neurons.proof import read_weights
from caploc.neurons.sites import parts
from caploc.neurons.targets import TARGETS, gold_logprobs

STEPS = 19  # S of the paper
POSITIONS = ("all", "answer", "last")
Scores = Float64[Tensor, "rows neurons"]


@dataclass(frozen=True)
class Attribution:
    """What is attributed, and how.

    `positions` are all of an example's, those that predict its answer, or the prompt's last. `rule`
    is where the S points of an integral lie: the middles of equal parts, or their left or right
    ends.
    """

    method: str = "gradient"
    target: str = "logprob"
    positions: str = "all"
    steps: int = STEPS
    rule: str = "midpoint"

    def check(self) -> "Attribution":
        """Refuse what does not exist.

        Raises:
            UnknownName: for a method, target or rule that does not exist.
            BadOption: for positions that do not, or fewer than 1 step.
        """
        pick(METHODS, self.method, "neuron score")
        pick(TARGETS, self.target, "target")
        pick(POINTS, self.rule, "rule")
        if self.positions not in POSITIONS:
            raise BadOption(
                f"--positions must be one of {', '.join(POSITIONS)}; got {self.positions!r}."
            )
        if self.steps < 1:
            raise BadOption(f"--steps must be 1 or more; got {self.steps}.")
        return self

    @property
    def points(self) -> list[float]:
        """The points of an integral."""
        return list(POINTS[self.rule](self.steps))

    @property
    def copies(self) -> int:
        """How many times an example stands in one pass."""
        return self.steps if self.method in INTEGRATED else 1

    def where(self, batch: Batch) -> Bool[Tensor, "rows time"]:
        """The positions whose neurons count; padding never does."""
        chosen = {"answer": batch.predicting, "last": batch.last_of_prompt}
        return chosen.get(self.positions, batch.real)

    def gated(self, batch: Batch) -> Bool[Tensor, "rows time"] | None:
        """The positions that carry gates; None for all, since nothing depends on padding."""
        return None if self.positions == "all" else self.where(batch)

    def outcome(self, model: NeuronModel, batch: Batch) -> Float[Tensor, " rows"]:
        """F of each row."""
        return TARGETS[self.target](batch, gold_logprobs(model.model, batch))

    def scores(self, model: NeuronModel, batch: Batch) -> Scores:
        """Every neuron's contribution to every row's F."""
        found = METHODS[self.method](self, model, batch)
        return found.double()


def gradient(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Gradient x activation: one forward and one backward pass for all neurons."""
    ones = torch.ones(batch.size, device=batch.tokens.device)
    gates = Gates(model.projections, ones, positions=asked.gated(batch))
    with gates.applied(), torch.enable_grad():
        return gates.gradients(asked.outcome(model, batch))


def joint(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Integrated gradients with the neurons of all layers scaled together."""
    copies = batch.repeated(asked.steps)
    values = torch.tensor(asked.points, device=batch.tokens.device).repeat_interleave(batch.size)
    gates = Gates(model.projections, values, positions=asked.gated(copies))
    with gates.applied(), torch.enable_grad():
        found = gates.gradients(asked.outcome(model, copies))
    return found.unflatten(0, (asked.steps, batch.size)).mean(0)


def integrated(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Integrated gradients layer by layer, each started where its layer begins."""
    copies = batch.repeated(asked.steps)
    values = torch.tensor(asked.points, device=batch.tokens.device).repeat_interleave(batch.size)
    stack = DecoderStack(decoder_layers(model.model, model.projections))
    layers = [layer for layer, site in enumerate(model.projections) if site is not None]
    with torch.no_grad(), stack.recorded(layers if stack.layers else []) as residuals:
        asked.outcome(model, batch)
    found = []
    for layer in layers:
        gates = Gates(model.projections, values, layer=layer, positions=asked.gated(copies))
        residual = residuals[layer].repeat(asked.steps, 1, 1) if residuals else None
        with gates.applied(), torch.enable_grad(), stack.started(layer, residual):
            slopes = gates.gradients(asked.outcome(model, copies))
        found.append(slopes.unflatten(0, (asked.steps, batch.size)).mean(0))
    return torch.cat(found, dim=1)


@torch.no_grad()
def activation(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Mean size of a neuron's activation over the positions: no gold answer is looked at."""
    where = asked.where(batch)
    with activations(model.projections) as seen:
        asked.outcome(model, batch)
    sums = [
        (each.float().abs().reshape(*where.shape, -1) * where[..., None]).sum(1) for each in seen
    ]
    return torch.cat(sums, dim=1) / where.sum(1, keepdim=True)


@torch.no_grad()
def logit(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Direct effect on the gold tokens' logits: activation x (output weights . unembedding).

    Summed over the positions that predict the answer, whatever `positions` says; what later layers
    and the last norm make of it is left out.
    """
    with activations(model.projections) as seen:
        asked.outcome(model, batch)
    unembedding = model.model.get_output_embeddings().weight[batch.gold]
    found = []
    for (_, columns, module), handed in zip(parts(model.projections), seen, strict=True):
        each = handed.reshape(*batch.tokens.shape, -1)[batch.rows, batch.places]
        reads = read_weights(module).reshape(columns.stop - columns.start, -1)
        direct = (each * (unembedding.to(reads.dtype) @ reads.T)).float()
        found.append(direct.new_zeros(batch.size, direct.shape[1]).index_add(0, batch.rows, direct))
    return torch.cat(found, dim=1)


Method = Callable[[Attribution, NeuronModel, Batch], Tensor]
METHODS: dict[str, Method] = {
    "gradient": gradient,
    "integrated": integrated,
    "joint": joint,
    "activation": activation,
    "logit": logit,
}
INTEGRATED = ("integrated", "joint")
