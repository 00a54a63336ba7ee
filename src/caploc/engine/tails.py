"""The last layer, for those tokens alone whose predictions are wanted.

Of the others it must only know keys and values. So the layer is called twice: with all tokens,
until attention has their keys and values, and with the tails of the rows, which then read them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Int
from torch import Tensor, nn

from caploc.models.zeroing import forward_as


class KeysKnown(Exception):
    """Attention has the keys and values of all tokens: nothing else of them is needed."""


@contextmanager
def narrowed(layer: nn.Module, tails: Int[Tensor, " tails"] | None) -> Iterator[None]:
    """Inside the block, `layer` gives its output for these tokens of the pass, and 0 for others.

    With None it does what it always does.
    """
    if tails is None:
        yield
        return
    usual = layer.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        hidden: Tensor = args[0] if args else kwargs["hidden_states"]
        try:
            return usual(*args, **kwargs)
        except KeysKnown:
            pass  # what follows is outside: the handler holds on to the first call's tensors
        count = hidden.shape[1]
        output = usual(
            *(part(value, tails, count) for value in args),
            **{name: part(value, tails, count) for name, value in kwargs.items()},
        )
        some: Tensor = output[0] if isinstance(output, tuple) else output
        every = some.new_zeros(hidden.shape)  # the layer may hand it on from another device
        every[:, tails.to(some.device)] = some
        return (every, *output[1:]) if isinstance(output, tuple) else every

    with forward_as(layer, forward):
        yield


def part(value: Any, chosen: Int[Tensor, " tails"], count: int) -> Any:
    """What a layer is handed for each of `count` tokens, for the chosen ones alone."""
    if isinstance(value, tuple):
        return tuple(part(one, chosen, count) for one in value)
    if not isinstance(value, Tensor):
        return value
    if value.shape[:2] == (1, count):
        return value[:, chosen.to(value.device)]  # wherever the layer before has left it
    return value[chosen.to(value.device)] if value.shape == (count,) else value
