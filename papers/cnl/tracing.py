"""Causal tracing (Meng et al. 2022): which feed-forward output brings a lost answer back?

The subject's embeddings are disturbed by noise, so that the answer is lost; then the undisturbed
feed-forward outputs of a window of consecutive layers around a layer are put back at one token. The
indirect effect is

    IE(token, layer) = P(answer | outputs put back) - P(answer | disturbed)

averaged over 10 draws of noise, the same for every token and layer; the answer is the first token
of the model's own undisturbed one. The noise is 3 standard deviations of subject embeddings.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from caploc.engine.scores import last_logits
from caploc.errors import BadData
from caploc.models.hooks import temporary_hooks
from caploc.models.projections import layer_part, module_name
from caploc.neurons.model import NeuronGrid, NeuronModel
from papers.cnl.facts import FactPrompt
from papers.cnl.prompts import Encoded, Encoder

DRAWS = 10
DEVIATIONS = 3.0
WINDOW = 10
DEPTH = 28  # layers of GPT-J, in which 10 are a window
ROWS = 160  # disturbed copies in a forward pass
PutBack = tuple[tuple[int, ...], int]  # outputs put back at one time: of which layers, at a token


@dataclass(frozen=True)
class Trace:
    """What putting outputs back did for one prompt.

    `effects` is IE in probability, NaN where a window holds no output; `disturbed` the answer's
    probability with nothing put back. `right` says whether the model's answer is the prompt's.
    """

    right: bool
    disturbed: float
    effects: Float64[np.ndarray, "tokens layers"]


def noise_level(loaded: NeuronModel, prompts: Sequence[FactPrompt]) -> float:
    """Take 3 standard deviations of the subjects' embeddings; raises BadData without a subject."""
    encoder = Encoder(loaded)
    encoded = [encoder.encode(prompt) for prompt in prompts if prompt.subject is not None]
    tokens = [each.tokens[place] for each in encoded for place in each.subject]
    if not tokens:
        raise BadData("No prompt has a subject, so that there is nothing to disturb; give some.")
    embed: Any = loaded.model.get_input_embeddings()
    with torch.no_grad():
        values = embed(torch.tensor([tokens], device=loaded.model.device))
    return DEVIATIONS * float(values.double().std())


@dataclass(frozen=True)
class Tracer:
    """Traces prompts of one model.

    `noise` is the standard deviation of the noise (see `noise_level`). `window` None is 10 layers
    where the model has as many as GPT-J (28) or more, and the same share of a shallower model
    (ours: in 6 layers a window of 10 would hold all of them). It runs from `window // 2` layers
    below the layer to one less above it, clipped to the model.
    """

    loaded: NeuronModel
    noise: float
    window: int | None = None
    draws: int = DRAWS
    seed: int = 0

    name = "causal tracing"
    units = "layers"

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.loaded)

    @property
    def grid(self) -> NeuronGrid:
        return self.loaded.grid

    @cached_property
    def outputs(self) -> list[nn.Module | None]:
        """Where each layer's feed-forward output comes out; None where a layer has none."""
        return [feed_forward(self.loaded.model, site) for site in self.loaded.projections]

    @property
    def layers(self) -> int:
        return len(self.outputs)

    def put_back(self, layer: int) -> tuple[int, ...]:
        """List the layers of the window around one."""
        width = self.window or min(WINDOW, max(1, round(self.layers * WINDOW / DEPTH)))
        inside = range(max(0, layer - width // 2), min(self.layers, layer + width - width // 2))
        return tuple(each for each in inside if self.outputs[each] is not None)

    def trace(self, encoded: Encoded, tokens: tuple[int, ...]) -> Trace:
        """Trace the effects at some positions of a prompt of which one token is to come."""
        # drawn on the CPU, so that every device has the same noise
        generator = torch.Generator().manual_seed(self.seed)
        embed: Any = self.loaded.model.get_input_embeddings()
        shape = (self.draws, len(encoded.subject), embed.weight.shape[1])
        noise = self.noise * torch.randn(shape, generator=generator)
        run = DisturbedRun(self.loaded, encoded, self.outputs, noise)
        places = [(self.put_back(layer), token) for token in tokens for layer in range(self.layers)]
        disturbed, *restored = run.probabilities([((), 0), *places])
        effects = np.array(restored) - disturbed
        effects[[not layers for layers, _ in places]] = np.nan
        right = run.top == encoded.answer[0]
        return Trace(right, disturbed, effects.reshape(len(tokens), self.layers))

    def locate(self, prompt: FactPrompt) -> Float64[np.ndarray, " layers"] | None:
        """Trace IE at the subject's last token, layer by layer; None if the answer is wrong."""
        if prompt.subject is None:
            raise BadData(f"The prompt {prompt.text!r} has no subject to disturb; give one.")
        encoded = self.encoder.encode(prompt).first()
        found = self.trace(encoded, (encoded.subject[-1],))
        return found.effects[0] if found.right else None


def feed_forward(model: nn.Module, projection: nn.Module | None) -> nn.Module | None:
    """Find the part of the layer that holds a projection, or the projection if it has no part."""
    if projection is None:
        return None
    around = layer_part(model, module_name(model, projection))
    # OPT's feed-forward projections stand in the layer itself
    lists = (list(each) for each in model.modules() if isinstance(each, nn.ModuleList))
    return projection if any(around in layers for layers in lists) else around


class DisturbedRun:
    """One prompt: its undisturbed outputs, and its answer's probability when some are put back."""

    @torch.inference_mode()
    def __init__(
        self, loaded: NeuronModel, encoded: Encoded, outputs: list[nn.Module | None], noise: Tensor
    ) -> None:
        self.model, self.subject = loaded.model, list(encoded.subject)
        self.outputs = {n: module for n, module in enumerate(outputs) if module is not None}
        self.noise = noise.to(loaded.model.device, loaded.model.dtype)
        self.ids = torch.tensor([encoded.tokens], device=loaded.model.device)
        self.kept: dict[int, Tensor] = {}

        def keep(layer: int, _: nn.Module, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple | list) else output
            self.kept[layer] = hidden.reshape(-1, hidden.shape[-1]).clone()

        with self.hooked(keep, self.outputs):
            self.top = int(self.last(self.ids)[0].argmax())

    def hooked(self, hook: Any, layers: Sequence[int]) -> AbstractContextManager[None]:
        """Call a hook, its layer first, on the outputs of some layers."""
        return temporary_hooks(
            self.outputs[layer].register_forward_hook(partial(hook, layer)) for layer in layers
        )

    def last(self, ids: Tensor) -> Float[Tensor, "rows vocabulary"]:
        """Compute the probabilities of what comes after the prompt."""
        return last_logits(self.model, ids, ids.shape[1] - 1)[:, -1].float().softmax(-1)

    @torch.inference_mode()
    def probabilities(self, places: Sequence[PutBack]) -> list[float]:
        """Average the answer's probability over the draws, each place put back by itself."""
        draws, embed = len(self.noise), self.model.get_input_embeddings()
        together = max(1, ROWS // draws)
        found: list[float] = []
        for first in range(0, len(places), together):
            some = places[first : first + together]

            def disturb(_: nn.Module, args: Any, output: Tensor, count: int = len(some)) -> Tensor:
                changed = output.clone()
                changed[:, self.subject] += self.noise.repeat(count, 1, 1)
                return changed

            layers = [n for n in self.outputs if any(n in wanted for wanted, _ in some)]
            with ExitStack() as hooks:
                hooks.enter_context(temporary_hooks([embed.register_forward_hook(disturb)]))
                hooks.enter_context(self.hooked(partial(self.put_back, some), layers))
                likely = self.last(self.ids.expand(len(some) * draws, -1))
            found += likely[:, self.top].double().unflatten(0, (len(some), draws)).mean(1).tolist()
        return found

    def put_back(
        self, places: Sequence[PutBack], layer: int, _: nn.Module, args: Any, output: Any
    ) -> Any:
        """Put a layer's undisturbed output back, each place in its own block of rows."""
        draws = len(self.noise)
        wanted = [(n, token) for n, (layers, token) in enumerate(places) if layer in layers]
        rows = torch.tensor([n * draws + draw for n, _ in wanted for draw in range(draws)])
        tokens = torch.tensor([token for _, token in wanted for _ in range(draws)])
        several = isinstance(output, tuple | list)
        hidden = output[0] if several else output
        # OPT hands its feed-forward block all rows' tokens in one list
        each = hidden.clone().view(-1, self.ids.shape[1], hidden.shape[-1])
        each[rows, tokens] = self.kept[layer][tokens]
        changed = each.view(hidden.shape)
        return type(output)((changed, *output[1:])) if several else changed
