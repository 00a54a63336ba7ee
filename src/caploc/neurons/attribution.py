"""How much each neuron contributes to each example's answer.

The paper's form, an extension of knowledge neurons (Dai et al. 2022) by integrated gradients
(Sundararajan et al. 2017), is `integrated`:

    Attr_li = a_li / S  sum over s = 1..S of dF(alpha_s a_l) / da_li

with S = 19 points on the way of one layer's activations from 0 to their values, other layers
untouched. `gradient` takes the last point alone, for all layers in one backward pass; `activation`
is a baseline that needs no gradient.

F, the *target*, is one number for each example, higher is better. The paper's own is not known to
us; the mean log-probability of the gold answer is our default, and the probability of its first
token is what knowledge neurons use.

Gradients are taken with respect to *gates*, a factor on every neuron: with `g` the gates of a row,
neuron i hands on `g_i a_i` at every position t (or at those chosen), so that

    dF/dg_i = sum over t of a_it dF/da_it

is its gradient x activation, for every row of a batch at once: rows do not meet.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from caploc.engine.passes import DecoderStack
from caploc.models.cutting import Projections
from caploc.models.hooks import temporary_hooks
from caploc.models.placement import weights_wait
from caploc.models.projections import decoder_layers
from caploc.neurons.engine import Batch, checkpointed, gold_logprobs
from caploc.neurons.model import NeuronModel, list_projections
from caploc.neurons.options import POINTS, SCORES, TARGETS, Attribution

Scores = Float64[Tensor, "rows neurons"]


class Gates:
    """The gates of a batch: a tensor (rows, neurons of the site) for each site of some layers."""

    def __init__(
        self,
        projections: Projections,
        value: Float[Tensor, " rows"] | Float[Tensor, "rows neurons"],
        *,
        layer: int | None = None,
        positions: Bool[Tensor, "rows time"] | None = None,
    ) -> None:
        """Open each row's gates to its `value`, in one layer or in all, at `positions` or at all.

        A value is one for all neurons, or each neuron's own. Gates of other layers are 1 and
        without a gradient.
        """
        self.positions = positions
        self.rows = len(value)
        self.sites = [
            (columns, module)
            for each, columns, module in list_projections(projections)
            if layer is None or each == layer
        ]
        if value.ndim == 1:
            value = value[:, None].expand(-1, self.sites[-1][0].stop)
        self.values = [value[:, columns].clone().requires_grad_() for columns, _ in self.sites]

    def applied(self) -> AbstractContextManager[None]:
        """Multiply what the neurons hand on, in every forward pass inside the block."""
        return temporary_hooks(
            module.register_forward_pre_hook(self._multiplying(values))
            for values, (_, module) in zip(self.values, self.sites, strict=True)
        )

    def _multiplying(self, values: Tensor) -> Any:
        def multiply(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            handed, *rest = args
            each = handed.reshape(self.rows, -1, handed.shape[-1])
            factor = values[:, None].to(each)
            if self.positions is not None:
                factor = torch.where(self.positions[..., None].to(each.device), factor, 1.0)
            return (each * factor).reshape(handed.shape), *rest

        return multiply

    def gradients(self, outcome: Float[Tensor, " rows"]) -> Float[Tensor, "rows neurons"]:
        """Take dF/dg of each row for the neurons of the gated sites, in their order, in float32."""
        found = torch.autograd.grad(outcome.sum(), self.values, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(value) if each is None else each
                for value, each in zip(self.values, found, strict=True)
            ],
            dim=1,
        ).float()


@contextmanager
def record_activations(projections: Projections) -> Iterator[list[Tensor]]:
    """Note, inside the block, what the neurons of each site hand on in a forward pass."""
    seen: list[Tensor] = []
    noting = (
        module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
        for _, _, module in list_projections(projections)
    )
    with temporary_hooks(noting):
        yield seen


def mark_positions(asked: Attribution, batch: Batch) -> Bool[Tensor, "rows time"]:
    """Mark the positions whose neurons count; padding never does."""
    return batch.last_of_prompt if asked.positions == "last" else batch.real


def open_gates(
    asked: Attribution, model: NeuronModel, batch: Batch, value: Tensor, layer: int | None = None
) -> Gates:
    """Put gates on the positions that count; on padding too for all, where nothing sees it."""
    positions = None if asked.positions == "all" else mark_positions(asked, batch)
    return Gates(model.projections, value, layer=layer, positions=positions)


def measure_target(asked: Attribution, model: NeuronModel, batch: Batch) -> Float[Tensor, " rows"]:
    """Compute F of each example."""
    target: Tensor = TARGETS[asked.target](batch, gold_logprobs(model.model, batch))
    return target


def score_batch(asked: Attribution, model: NeuronModel, batch: Batch) -> Scores:
    """Score every neuron on each example."""
    # a weight that was fetched for a pass would stay until the way back has used it
    waits = weights_wait(model.model)
    lean = checkpointed(model.model, model.projections) if waits else nullcontext()
    with lean:
        scores: Tensor = SCORES[asked.method](asked, model, batch)
        return scores.double()


def gradient(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Multiply gradient and activation: one forward and one backward pass for all neurons."""
    ones = torch.ones(batch.size, device=batch.tokens.device)
    gates = open_gates(asked, model, batch, ones)
    with gates.applied(), torch.enable_grad():
        return gates.gradients(measure_target(asked, model, batch))


def integrated(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Integrate gradients layer by layer, each started where its layer begins."""
    stack = DecoderStack(decoder_layers(model.model, model.projections))
    layers = [layer for layer, site in enumerate(model.projections) if site is not None]
    with torch.no_grad(), stack.recorded(layers if stack.layers else []) as residuals:
        measure_target(asked, model, batch)
    found = []
    for layer in layers:
        residual = residuals[layer] if residuals else None

        def started(
            copies: int, layer: int = layer, residual: Tensor | None = residual
        ) -> AbstractContextManager[None]:
            return stack.started(layer, None if residual is None else residual.repeat(copies, 1, 1))

        found.append(_integrate(asked, model, batch, layer, started))
    return torch.cat(found, dim=1)


def _integrate(
    asked: Attribution,
    model: NeuronModel,
    batch: Batch,
    layer: int,
    started: Callable[[int], AbstractContextManager[None]],
) -> Tensor:
    """Average the gradients by the gates of a layer over the points of the integral.

    A pass reads the batch at as many points as fit; it is `started` with so many copies.
    """
    points = torch.arange(asked.steps, device=batch.tokens.device) + POINTS[asked.rule]
    total = torch.zeros((), device=batch.tokens.device)
    for part in (points / asked.steps).split(batch.at_once or asked.steps):
        copies = batch.repeated(len(part))
        gates = open_gates(asked, model, copies, part.repeat_interleave(batch.size), layer)
        with started(len(part)), gates.applied(), torch.enable_grad():
            slopes = gates.gradients(measure_target(asked, model, copies))
        total = total + slopes.unflatten(0, (len(part), batch.size)).sum(0)
    return total / asked.steps


@torch.no_grad()
def activation(asked: Attribution, model: NeuronModel, batch: Batch) -> Tensor:
    """Average the size of each activation over the positions: no gold answer is looked at."""
    where = mark_positions(asked, batch)
    with record_activations(model.projections) as seen:
        measure_target(asked, model, batch)
    sums = [
        (each.to(where.device).float().abs().reshape(*where.shape, -1) * where[..., None]).sum(1)
        for each in seen
    ]
    return torch.cat(sums, dim=1) / where.sum(1, keepdim=True)
