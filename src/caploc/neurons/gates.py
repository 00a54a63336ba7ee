"""Gates: a factor on every neuron, through which one backward pass attributes to all of them.

With `g` the gates of a row, neuron i hands on `g_i a_i` at every position t (or at those chosen),
so that

    dF/dg_i = sum over t of a_it dF/da_it

is its gradient x activation, for every row of a batch at once: rows do not meet.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from caploc.models.cutting import Projections
from caploc.neurons.sites import parts


class Gates:
    """The gates of a batch: a tensor (rows, neurons of the site) for each site of some layers."""

    def __init__(
        self,
        projections: Projections,
        value: Float[Tensor, " rows"],
        *,
        layer: int | None = None,
        positions: Bool[Tensor, "rows time"] | None = None,
    ) -> None:
        """Open each row's gates to its `value`, in one layer or in all, at `positions` or at all.

        Gates of other layers are 1 and without a gradient.
        """
        self.positions = positions
        self.rows = len(value)
        self.sites = [
            (columns, module)
            for each, columns, module in parts(projections)
            if layer is None or each == layer
        ]
        self.values = [
            value[:, None].expand(-1, columns.stop - columns.start).clone().requires_grad_()
            for columns, _ in self.sites
        ]

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Multiply what the neurons hand on, in every forward pass inside the block."""
        with ExitStack() as hooks:
            for values, (_, module) in zip(self.values, self.sites, strict=True):
                handle = module.register_forward_pre_hook(self.hook(values))
                hooks.callback(handle.remove)
            yield

    def hook(self, values: Tensor) -> Any:
        """The factor of one site, as a hook."""

        def multiply(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            handed, *rest = args
            each = handed.reshape(self.rows, -1, handed.shape[-1])
            factor = values[:, None].to(each.dtype)
            if self.positions is not None:
                factor = torch.where(self.positions[..., None], factor, 1.0)
            return (each * factor).reshape(handed.shape), *rest

        return multiply

    def gradients(self, outcome: Float[Tensor, " rows"]) -> Float[Tensor, "rows neurons"]:
        """dF/dg of each row for the neurons of the gated sites, in their order, in float32."""
        found = torch.autograd.grad(outcome.sum(), self.values, allow_unused=True)
        return torch.cat(
            [
                torch.zeros_like(value) if each is None else each
                for value, each in zip(self.values, found, strict=True)
            ],
            dim=1,
        ).float()


@contextmanager
def activations(projections: Projections) -> Iterator[list[Tensor]]:
    """Inside the block, what the neurons of each site hand on in the last forward pass."""
    seen: list[Tensor] = []
    with ExitStack() as hooks:
        for _, _, module in parts(projections):
            handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
            hooks.callback(handle.remove)
        yield seen


def midpoints(steps: int) -> Sequence[float]:
    """The middles of equal parts of 0 to 1."""
    return [(step + 0.5) / steps for step in range(steps)]


def left_points(steps: int) -> Sequence[float]:
    """0, 1/steps ... (steps - 1)/steps, as knowledge neurons take them."""
    return [step / steps for step in range(steps)]


def right_points(steps: int) -> Sequence[float]:
    """1/steps ... 1."""
    return [(step + 1) / steps for step in range(steps)]


POINTS = {"midpoint": midpoints, "left": left_points, "right": right_points}
