"""The decoder layers of a model: note what goes into them, and start above the first of them."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from caploc.models.zeroing import forward_as

Residual = Float[Tensor, "tokens hidden"]
Residuals = Float[Tensor, "rows tokens hidden"]


class Stack:
    """The decoder layers, bottom up. Depth d is the residual stream that goes into layer d."""

    def __init__(self, layers: Sequence[nn.Module]) -> None:
        """Watch these layers."""
        self.layers = list(layers)
        self.in_tuple = False  # whether a layer's output is a tuple: seen while recording

    @contextmanager
    def recorded(self, depths: Sequence[int]) -> Iterator[dict[int, Residuals]]:
        """Inside the block, keep the residual stream of a forward pass at these depths."""
        kept: dict[int, Residuals] = {}
        with ExitStack() as hooks:
            for depth in depths:

                def note(
                    module: nn.Module,
                    args: tuple[Any, ...],
                    kwargs: dict[str, Any],
                    depth: int = depth,
                ) -> None:
                    # cloned: some layers add to their input in place
                    kept[depth] = _hidden(args, kwargs).clone()

                handle = self.layers[depth].register_forward_pre_hook(note, with_kwargs=True)
                hooks.callback(handle.remove)
            if self.layers:
                hooks.callback(self.layers[0].register_forward_hook(self.notice).remove)
            yield kept

    def notice(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """See in what form a layer hands on its output."""
        self.in_tuple = isinstance(output, tuple)

    @contextmanager
    def started(self, depth: int, residual: Residuals | None) -> Iterator[None]:
        """Inside the block, skip the layers below `depth`; `residual` goes into that layer.

        Whatever the model does outside its layers (embedding, rotary positions, final norm) is
        done as always.
        """
        if depth == 0 or residual is None:
            yield
            return
        skipped = self.layers[:depth]
        handed = (residual,) if self.in_tuple else residual
        with ExitStack() as back:
            for layer in skipped:
                back.enter_context(forward_as(layer, lambda *args, **kwargs: handed))
            yield


def _hidden(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    return hidden
