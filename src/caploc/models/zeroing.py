"""The same knockout by other roads than a mask: what a proof holds masks against."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from caploc.heads import HeadGrid
from caploc.models.cutting import Projections, standing
from caploc.models.sharding import local


@contextmanager
def weights_zeroed(
    projections: Projections, grid: HeadGrid, mask: Bool[Tensor, " heads"]
) -> Iterator[None]:
    """The same knockout by another road: the weight columns that read the heads are zero inside.

    On the way out the weights are, bit for bit, what they were.
    """
    saved: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        for module, cut in _cut_modules(projections, grid, mask):
            per_head = reads_first(module).unflatten(0, (len(cut), -1))
            here = cut.to(per_head.device)
            saved.append((per_head, here, per_head[here]))
            per_head[here] = 0
        yield
    finally:
        for per_head, here, before in saved:
            per_head[here] = before


@contextmanager
def inputs_zeroed(
    projections: Projections, grid: HeadGrid, mask: Bool[Tensor, " heads"]
) -> Iterator[None]:
    """`weights_zeroed` for weights that cannot be written: what they would multiply is zero.

    Inside a module's own `forward`, after all hooks, and for every row of the batch.
    """
    with ExitStack() as back:
        for module, cut in _cut_modules(projections, grid, mask):
            back.enter_context(forward_as(module, _without(module.forward, cut)))
        yield


def _without(forward: Callable[[Tensor], Tensor], cut: Bool[Tensor, " heads"]) -> Callable:
    def product(mixed: Float[Tensor, "... width"]) -> Float[Tensor, "... writes"]:
        return forward(mixed * _kept(cut, mixed))

    return product


def _kept(
    cut: Bool[Tensor, " heads"], mixed: Float[Tensor, "... width"]
) -> Float[Tensor, " width"]:
    return (~cut).repeat_interleave(mixed.shape[-1] // len(cut)).to(mixed)


def product_error(
    module: nn.Module, mixed: Float[Tensor, "... width"], cut: Bool[Tensor, " heads"]
) -> float:
    """How far a module is from a product with columns of weights, as a share of what heads add.

    What it makes of a one in a single place is that place's column; what heads add to its output
    must be the product of what they hand on and their columns.
    """
    forward: Callable[[Tensor], Tensor] = module.forward
    units = torch.eye(mixed.shape[-1], dtype=mixed.dtype, device=mixed.device)
    columns = (forward(units) - forward(torch.zeros_like(units[:1]))).float()
    kept = mixed * _kept(cut, mixed)
    added = (forward(mixed) - forward(kept)).float()
    product = (mixed - kept).float() @ columns.to(mixed.device)
    return float((added - product).norm() / added.norm())


@contextmanager
def forward_as(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Inside the block, `forward` takes the place of the module's own, whoever put that there."""
    # accelerate and transformers put functions of theirs on the instance, above the class's method
    before = vars(module).get("forward")
    module.forward = forward
    try:
        yield
    finally:
        if before is None:
            del module.forward
        else:
            module.forward = before


def _cut_modules(
    projections: Projections, grid: HeadGrid, mask: Bool[Tensor, " heads"]
) -> Iterator[tuple[nn.Module, Bool[Tensor, " held"]]]:
    """The modules that read a cut head, each with which of the heads that it holds are cut."""
    for projection, columns in zip(projections, grid.layer_slices, strict=True):
        for module, inside in standing(projection, columns):
            cut = mask[columns][inside]
            if bool(cut.any()):
                yield module, cut


def modules(projections: Projections, grid: HeadGrid) -> Iterator[nn.Module]:
    """Every module that reads heads."""
    for projection, columns in zip(projections, grid.layer_slices, strict=True):
        for module, _ in standing(projection, columns):
            yield module


def writable(module: nn.Module) -> bool:
    """Whether its weight is here and plain, so that columns of it can be set to zero."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor):
        return False
    here = local(weight.detach())
    return type(here) is Tensor and here.is_floating_point() and here.device.type != "meta"


def reads_first(projection: nn.Module) -> Float[Tensor, "reads writes"]:
    """A view of the projection's weight, as far as it is here, with what it reads as first axis."""
    weight: Tensor = local(projection.weight.detach())  # type: ignore[operator]
    return weight if isinstance(projection, Conv1D) else weight.T
