"""Causal tracing (Meng et al. 2022): which feed-forward output brings a lost answer back.

The subject's embeddings are disturbed by noise, so that the answer is lost; then the undisturbed
feed-forward outputs of a window of consecutive layers around a layer are put back at one token. The
indirect effect is

    IE(token, layer) = P(answer | outputs put back) - P(answer | disturbed)

averaged over 10 draws of noise, the same for every token and layer; the answer is the first token
of the model's own undisturbed one. The noise is 3 standard deviations of subject embeddings.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from caploc.engine.plain import last_logits
from caploc.errors import BadData, BadOption
from caploc.models.cutting import Beside, Site, temporary_hooks
from caploc.models.projections import layer_part, module_name
from caploc.neurons.cutting import NeuronModel
from caploc.neurons.facts import Encoded, Encoder, FactPrompt
from caploc.neurons.sites import Experts
from caploc.stats.intervals import JsonRecord

DRAWS = 10
DEVIATIONS = 3.0
WINDOW = 10
DEPTH = 28  # layers of GPT-J, in which 10 are a window
ROWS = 160  # disturbed copies in a forward pass
Outputs = list[nn.Module | None]  # one for each layer; None where a layer has none


@dataclass(frozen=True)
class Trace(JsonRecord):
    """What putting outputs back did for one prompt.

    `effects` is IE in probability, a row for each token traced, a column for each layer, NaN where
    a window holds no output. `clean` and `disturbed` are the answer's probabilities with
    nothing put back. `right` says whether the model's own answer is the prompt's.
    """

    right: bool
    clean: float
    disturbed: float
    effects: Float64[np.ndarray, "tokens layers"]


PutBack = tuple[tuple[int, ...], int]  # outputs put back at one time: of which layers, at a token


def noise_level(
    loaded: NeuronModel, prompts: Sequence[FactPrompt], deviations: float = DEVIATIONS
) -> float:
    """Take so many standard deviations of all embedding values of the prompts' subject tokens.

    Raises:
        BadData: if no prompt has a subject.
    """
    encoder = Encoder(loaded)
    encoded = [encoder.encode(prompt) for prompt in prompts if prompt.subject is not None]
    tokens = [each.tokens[place] for each in encoded for place in each.subject]
    if not tokens:
        raise BadData("No prompt has a subject, so that there is nothing to disturb; give some.")
    embed: Any = loaded.model.get_input_embeddings()
    with torch.no_grad():
        values = embed(torch.tensor([tokens], device=loaded.model.device))
    return deviations * float(values.double().std())


@dataclass(frozen=True)
class Tracer:
    """Traces prompts of one model.

    `noise` is the standard deviation of the noise (see `noise_level`). `window` None is 10 layers
    where the model has as many as GPT-J (28) or more, and the same share of a shallower model
    (ours: in 6 layers a window of 10 would hold all of them). It runs from `window // 2` layers
    below the layer to one less above it, clipped to the model.

    Raises:
        BadOption: if the noise is not above 0, or the window or the draws are below 1.
    """

    loaded: NeuronModel
    noise: float
    window: int | None = None
    draws: int = DRAWS
    seed: int = 0

    name = "causal tracing"

    def __post_init__(self) -> None:
        if not self.noise > 0 or self.draws < 1 or (self.window is not None and self.window < 1):
            raise BadOption(
                f"The noise must be above 0, its draws and the window 1 or more; got {self.noise:g}"
                f", {self.draws} and {self.window}."
            )

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.loaded)

    @cached_property
    def outputs(self) -> Outputs:
        """Where each layer's feed-forward output comes out."""
        return [_output(self.loaded.model, site) for site in self.loaded.projections]

    @property
    def layers(self) -> int:
        return len(self.outputs)

    @property
    def width(self) -> int:
        """How many consecutive layers are put back together."""
        return self.window or min(WINDOW, max(1, round(self.layers * WINDOW / DEPTH)))

    def put_back(self, layer: int) -> tuple[int, ...]:
        """List the layers of the window around one."""
        below, above = self.width // 2, self.width - self.width // 2
        inside = range(max(0, layer - below), min(self.layers, layer + above))
        return tuple(each for each in inside if self.outputs[each] is not None)

    def trace(self, prompt: FactPrompt, *, whole: bool = True) -> Trace:
        """Trace the effects at every token, or (`whole` False) at the subject's last one only.

        Raises:
            BadData: if the prompt has no subject, or does not fit the model's window.
        """
        if prompt.subject is None:
            raise BadData(f"The prompt {prompt.text!r} has no subject to disturb; give one.")
        encoded = self.encoder.encode(prompt).first()
        tokens = range(len(encoded.tokens)) if whole else (encoded.subject[-1],)
        return self.trace_encoded(encoded, tuple(tokens))

    def trace_encoded(self, encoded: Encoded, tokens: tuple[int, ...]) -> Trace:
        """Trace the effects at some positions of a prompt of which one token is to come."""
        # drawn on the CPU, so that every device has the same noise
        generator = torch.Generator().manual_seed(self.seed)
        embed: Any = self.loaded.model.get_input_embeddings()
        shape = (self.draws, len(encoded.subject), embed.weight.shape[1])
        noise = self.noise * torch.randn(shape, generator=generator)
        run = _Run(self.loaded, encoded, self.outputs, noise)
        places = [(self.put_back(layer), token) for token in tokens for layer in range(self.layers)]
        disturbed, *restored = run.probabilities([((), 0), *places])
        effects = np.array(restored) - disturbed
        effects[[not layers for layers, _ in places]] = np.nan
        return Trace(
            right=run.top == encoded.answer[0],
            clean=run.clean,
            disturbed=disturbed,
            effects=effects.reshape(len(tokens), self.layers),
        )

    def profile(self, prompt: FactPrompt) -> Float64[np.ndarray, " layers"] | None:
        """Trace IE at the subject's last token, layer by layer; None if the answer is wrong."""
        found = self.trace(prompt, whole=False)
        return found.effects[0] if found.right else None


def _output(model: nn.Module, site: Site | None) -> nn.Module | None:
    """Find the part of the layer that holds a site, or the projection where it has no part."""
    first = site.modules[0] if isinstance(site, Beside) else site
    projection: nn.Module | None = first.module if isinstance(first, Experts) else first
    if projection is None:
        return None
    around = layer_part(model, module_name(model, projection))
    # OPT's feed-forward projections stand in the layer itself
    whole = any(
        isinstance(each, nn.ModuleList) and around in list(each) for each in model.modules()
    )
    return projection if whole else around


class _Run:
    """One prompt: its undisturbed outputs, and its answer's probability when some are put back."""

    @torch.inference_mode()
    def __init__(
        self, loaded: NeuronModel, encoded: Encoded, outputs: Outputs, noise: Tensor
    ) -> None:
        """Run the prompt undisturbed."""
        self.loaded, self.encoded, self.outputs = loaded, encoded, outputs
        self.noise = noise.to(loaded.model.device, loaded.model.dtype)
        self.ids = torch.tensor([encoded.tokens], device=loaded.model.device)
        self.kept: dict[int, Tensor] = {}
        keeping = (
            module.register_forward_hook(self._keeping(layer))
            for layer, module in enumerate(outputs)
            if module is not None
        )
        with temporary_hooks(keeping):
            likely = self._last(self.ids)[0]
        self.top = int(likely.argmax())
        self.clean = float(likely[self.top])

    @torch.inference_mode()
    def probabilities(self, places: Sequence[PutBack]) -> list[float]:
        """Average the answer's probability over the draws, each place put back by itself."""
        draws = len(self.noise)
        together = max(1, ROWS // draws)
        found: list[float] = []
        for first in range(0, len(places), together):
            some = places[first : first + together]
            with self._disturbed(len(some)), self._restored(some):
                likely = self._last(self.ids.expand(len(some) * draws, -1))
            found += likely[:, self.top].double().unflatten(0, (len(some), draws)).mean(1).tolist()
        return found

    def _last(self, ids: Tensor) -> Float[Tensor, "rows vocabulary"]:
        """Compute the probabilities of what comes after the prompt."""
        return last_logits(self.loaded.model, ids, ids.shape[1] - 1)[:, -1].float().softmax(-1)

    def _keeping(self, layer: int) -> Any:
        def keep(_: nn.Module, args: Any, output: Any) -> None:
            hidden = output[0] if isinstance(output, tuple | list) else output
            self.kept[layer] = hidden.reshape(-1, hidden.shape[-1]).clone()

        return keep

    def _disturbed(self, number: int) -> AbstractContextManager[None]:
        subject = torch.tensor(self.encoded.subject, device=self.ids.device, dtype=torch.long)

        def disturb(_: nn.Module, args: Any, output: Tensor) -> Tensor:
            changed = output.clone()
            changed[:, subject] += self.noise.repeat(number, 1, 1)
            return changed

        embed: Any = self.loaded.model.get_input_embeddings()
        return temporary_hooks([embed.register_forward_hook(disturb)])

    def _restored(self, places: Sequence[PutBack]) -> AbstractContextManager[None]:
        """Put the undisturbed outputs back, each place in its own block of rows."""
        wanted = [
            [(n, token) for n, (layers, token) in enumerate(places) if layer in layers]
            for layer in range(len(self.outputs))
        ]
        return temporary_hooks(
            module.register_forward_hook(self._putting_back(self.kept[layer], wanted[layer]))
            for layer, module in enumerate(self.outputs)
            if module is not None and wanted[layer]
        )

    def _putting_back(self, kept: Tensor, wanted: Sequence[tuple[int, int]]) -> Any:
        length, draws = self.ids.shape[1], len(self.noise)
        rows = torch.tensor([n * draws + draw for n, _ in wanted for draw in range(draws)])
        tokens = torch.tensor([token for _, token in wanted for _ in range(draws)])

        def put_back(_: nn.Module, args: Any, output: Any) -> Any:
            several = isinstance(output, tuple | list)
            hidden = output[0] if several else output
            # OPT hands its feed-forward block all rows' tokens in one list
            each = hidden.clone().view(-1, length, hidden.shape[-1])
            each[rows, tokens] = kept[tokens]
            changed = each.view(hidden.shape)
            return type(output)((changed, *output[1:])) if several else changed

        return put_back
