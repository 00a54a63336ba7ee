"""How a layer's neurons vary together over text: their second moments `E[k k^T]`.

A rank-one edit needs their inverse, to move one key while moving others as little as possible.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from caploc.engine.plain import last_logits
from caploc.errors import BadData, BadOption
from caploc.neurons.facts.encoding import Encoder
from caploc.neurons.loading import NeuronModel
from caploc.progress import Progress, Silent

# Shares of the moments' mean diagonal that are mixed in, the smallest that will do (ours).
SHRINKAGES = (0.0, 1e-6, 1e-4, 1e-2, 0.1, 1.0)
CONDITION = 1e10  # of the moments, above which more is mixed in


@dataclass(frozen=True)
class Covariance:
    """Uncentred second moments of the neurons of one layer, over the positions of some texts.

    With fewer positions than neurons, or neurons that move together, they have no inverse; then
    `(1 - s) C + s mean(diag C) I` takes their place, with `s` the `shrinkage`.
    """

    moments: Float[Tensor, "neurons neurons"]
    positions: int

    @cached_property
    def _factored(self) -> tuple[float, Tensor]:
        """The smallest shrinkage that will do, and Cholesky's factor."""
        level = self.moments.diagonal().mean()
        identity = torch.eye(len(self.moments), dtype=torch.float64, device=self.moments.device)
        for shrinkage in SHRINKAGES:
            mixed = (1 - shrinkage) * self.moments + shrinkage * level * identity
            factor, failed = torch.linalg.cholesky_ex(mixed)
            pivots = factor.diagonal()
            if not failed and bool((pivots.max() / pivots.min()) ** 2 < CONDITION):
                return shrinkage, factor
        raise BadData(
            "The neurons of a layer are silent on all of the texts, so that their covariance has "
            "no inverse; give other texts."
        )

    @property
    def shrinkage(self) -> float:
        """How much of the mean diagonal is mixed in."""
        return self._factored[0]

    def solve(self, key: Float[Tensor, " neurons"]) -> Float[Tensor, " neurons"]:
        """`C^-1 key`, in float64.

        Raises:
            BadData: if the neurons are silent on all of the texts.
        """
        factor = self._factored[1]
        column = key.to(factor.device, torch.float64)[:, None]
        return torch.cholesky_solve(column, factor)[:, 0]


def dense_projection(loaded: NeuronModel, layer: int) -> nn.Linear | Conv1D:
    """The layer's feed-forward output projection, which an edit changes.

    Raises:
        BadOption: if the model has no such layer, or the layer has no single projection.
    """
    layers = loaded.grid.layers
    if not 0 <= layer < layers:
        raise BadOption(f"There is no layer {layer}; the model has layers 0 to {layers - 1}.")
    site = loaded.projections[layer]
    if not isinstance(site, nn.Linear | Conv1D):
        raise BadOption(
            f"Layer {layer} has {'experts' if site is not None else 'no feed-forward neurons'}; a "
            "rank-one edit needs a layer with one feed-forward output projection."
        )
    return site


@torch.inference_mode()
def covariances(
    loaded: NeuronModel,
    texts: Sequence[str],
    layers: Sequence[int],
    *,
    progress: Progress | None = None,
) -> dict[int, Covariance]:
    """The second moments of some layers over all positions of the texts, each cut to the window.

    A layer's take `neurons^2 x 8` bytes.

    Raises:
        BadOption: if a layer cannot be edited.
        BadData: if there is no text.
    """
    if not texts:
        raise BadData("The covariance of neurons needs texts; give some, the more the better.")
    modules = {layer: dense_projection(loaded, layer) for layer in layers}
    encoder, shown = Encoder(loaded), progress or Silent()
    shown.start("covariance of neurons", len(texts))
    totals: dict[int, Tensor] = {}
    positions = 0
    with ExitStack() as hooks:
        for layer, module in modules.items():
            hook = _adding(totals, layer)
            hooks.callback(module.register_forward_pre_hook(hook).remove)
        for text in texts:
            tokens = encoder.wording.harness.tok_encode(text)[: encoder.longest]
            if tokens:
                last_logits(
                    loaded.model, torch.tensor([tokens], device=loaded.device), len(tokens) - 1
                )
            positions += len(tokens)
            shown.advance(1, len(tokens))
    return {layer: Covariance(totals[layer] / positions, positions) for layer in layers}


def _adding(totals: dict[int, Tensor], layer: int) -> Any:
    def add(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        keys = args[0].reshape(-1, args[0].shape[-1]).double()
        product = keys.T @ keys
        totals[layer] = totals[layer] + product if layer in totals else product

    return add
