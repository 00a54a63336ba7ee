"""Knowledge neurons (Dai et al. 2022): the neurons to which an answer owes its probability.

The score of neuron i of layer l for a prompt x and the first token y of its answer is the
integrated gradient of y's probability over the layer's activations a_l at the predicting position,
from 0 to their values, the other layers as they are:

    Attr_li = a_li / m  sum over k of dP_y(alpha_k a_l) / da_li

with m = 20 points, in the middles of equal parts (ours; Dai et al.: k / m for k = 0..m-1, here
`points="left"`). A layer's scores add up to P(a_l) - P(0).
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor, nn

from caploc.errors import BadOption
from caploc.lookup import pick
from caploc.models.loading import CutModel
from caploc.neurons.attribution import POINTS, integral_points
from caploc.neurons.facts.prompts import Encoded, Encoder, FactPrompt
from caploc.neurons.proof import NeuronModel
from caploc.neurons.sites import Chosen, NeuronGrid, parts

STEPS = 20
SHARE = 0.2  # of the largest score, to be chosen
COPIES = 256  # copies of a prompt in a forward pass
Sets = Bool[np.ndarray, "sets neurons"]


@dataclass(frozen=True)
class CopyGates:
    """Factors on a layer's neurons at the predicting position of the copies `rows`."""

    layer: int
    rows: slice
    values: Float[Tensor, "rows neurons"]


class PromptCopies:
    """One prompt, to be run in any number of copies, each with neurons scaled where it predicts.

    What stands before the predicting position is the same in every copy and is read once.
    """

    def __init__(self, loaded: CutModel, encoded: Encoded) -> None:
        """Read what all copies have in common, up to the answer's first token."""
        self.loaded, self.encoded = loaded, encoded.first()
        self.before = self._read_before()

    def log_probability(
        self, number: int, gates: Sequence[CopyGates] = ()
    ) -> Float[Tensor, " copies"]:
        """Compute the log-probability of the answer's first token in each copy, in float32.

        It has a gradient to the gates.
        """
        model, tokens = self.loaded.model, torch.tensor([self.encoded.tokens])
        where: dict[str, Any] = {"use_cache": False}
        read = tokens
        if self.before is not None:
            # a pass adds its own tokens to what it is given
            before = copy.deepcopy(self.before)
            before.batch_repeat_interleave(number)
            where = {"use_cache": True, "past_key_values": before}
            read = tokens[:, -1:]
        with self._gated(gates, number):
            logits = model(
                input_ids=read.expand(number, -1).to(model.device),
                attention_mask=torch.ones(number, tokens.shape[1], device=model.device).long(),
                **where,
            ).logits
        return logits[:, -1].float().log_softmax(-1)[:, self.encoded.answer[0]]

    @torch.no_grad()
    def _read_before(self) -> Any:
        """Keep keys and values before the predicting position; None where rows cannot be copied.

        State spaces and linear attention keep a state that transformers cannot repeat; there, every
        copy reads the whole prompt.
        """
        start = self.encoded.start
        if start < 1:
            return None
        tokens = torch.tensor([self.encoded.tokens[:start]], device=self.loaded.model.device)
        output = self.loaded.model(
            input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=True
        )
        before = getattr(output, "past_key_values", None)
        layers = getattr(before, "layers", ())
        repeats = [hasattr(layer, "batch_repeat_interleave") for layer in layers]
        return before if repeats and all(repeats) else None

    @contextmanager
    def _gated(self, gates: Sequence[CopyGates], number: int) -> Iterator[None]:
        """Multiply neurons, inside the block, by the gates at the last position."""
        starts = [columns.start for columns in self.loaded.grid.layer_slices]
        with ExitStack() as hooks:
            for layer, columns, module in parts(self.loaded.projections):
                inside = slice(columns.start - starts[layer], columns.stop - starts[layer])
                for gate in gates:
                    if gate.layer == layer:
                        hook = _scaling(gate.rows, gate.values[:, None, inside], number)
                        hooks.callback(module.register_forward_pre_hook(hook).remove)
            yield


def _scaling(rows: slice, values: Tensor, number: int) -> Any:
    def scale(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        handed, *rest = args
        each = handed.reshape(number, -1, handed.shape[-1])
        early, last = each[:, :-1], each[:, -1:]
        scaled = (last[rows].float() * values).to(each.dtype)
        last = torch.cat([last[: rows.start], scaled, last[rows.stop :]])
        return torch.cat([early, last], dim=1).reshape(handed.shape), *rest

    return scale


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
        copies = PromptCopies(self.loaded, self.encoder.encode(prompt))
        return attribute_neurons(copies, integral_points(self.points, self.steps))

    def locate(self, prompt: FactPrompt) -> Chosen:
        """Choose the neurons of a prompt; none where no score is above 0."""
        scores = self.score(prompt)
        largest = scores.max()
        chosen: Chosen = (scores >= self.share * largest) & (largest > 0)
        return chosen


def attribute_neurons(
    copies: PromptCopies, points: Sequence[float]
) -> Float64[np.ndarray, " neurons"]:
    """Integrate the gradients of all layers over the points, several layers to a pass.

    Each copy has one layer at one of the points and the others as they are; the gradient by its
    gate is already the activation times the gradient by the activation.
    """
    grid, steps = copies.loaded.grid, len(points)
    values = torch.tensor(points, device=copies.loaded.model.device)[:, None]
    layers = [layer for layer, width in enumerate(grid.per_layer) if width]
    together = max(1, COPIES // steps)
    scores = np.zeros(grid.size)
    for first in range(0, len(layers), together):
        gates = [
            CopyGates(
                layer,
                slice(place * steps, (place + 1) * steps),
                values.expand(-1, grid.per_layer[layer]).clone().requires_grad_(),
            )
            for place, layer in enumerate(layers[first : first + together])
        ]
        outcome = copies.log_probability(len(gates) * steps, gates).exp()
        found = torch.autograd.grad(outcome.sum(), [gate.values for gate in gates])
        for gate, gradient in zip(gates, found, strict=True):
            scores[grid.layer_slices[gate.layer]] = gradient.double().mean(0).cpu().numpy()
    return scores


@torch.no_grad()
def scaled_probabilities(
    copies: PromptCopies, sets: Sets, factors: Sequence[float]
) -> Float64[np.ndarray, " rows"]:
    """Compute P of the answer's first token: intact, then for each factor with each set scaled."""
    number = 1 + len(sets) * len(factors)
    gates = []
    for layer, columns in enumerate(copies.loaded.grid.layer_slices):
        chosen = sets[:, columns]
        if chosen.any():
            scaled = [np.where(chosen, factor, 1.0) for factor in factors]
            values = np.concatenate([np.ones((1, chosen.shape[1])), *scaled]).astype(np.float32)
            on_device = torch.from_numpy(values).to(copies.loaded.model.device)
            gates.append(CopyGates(layer, slice(0, number), on_device))
    likely = copies.log_probability(number, gates)
    probabilities: Float64[np.ndarray, " rows"] = likely.double().exp().cpu().numpy()
    return probabilities
