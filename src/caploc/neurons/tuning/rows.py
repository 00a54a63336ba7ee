"""Train the weights of chosen neurons and nothing else, at the cost of these weights.

    with attach(model, chosen) as rows:
        optimizer = torch.optim.AdamW(rows.parameters(), lr=1e-3, weight_decay=0)
        ...
        rows.merge_()          # or rows.delta(), to keep the change apart

Every projection runs as it is and a hook adds what the change of the chosen rows or columns does:
`y = frozen(x) + change`. So gradients and optimizer state are as large as the selection, whatever
the model. The change is kept in float32; in a model of another dtype it is rounded when written.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from caploc.neurons.grid import Chosen
from caploc.neurons.tuning.weights import Share, Trains, shares


class TrainableRows:
    """The chosen neurons' weights of a model, trainable; made by `attach`.

    As a context manager it takes itself off the model at the end.
    """

    def __init__(self, model: PreTrainedModel, chosen: Chosen, trains: Trains) -> None:
        """Add the changes, zero at first, to what the projections write."""
        found = shares(model, chosen, trains)
        self.chosen, self.trains, self.shares = chosen, trains, found
        self.originals = {key: value for share in found for key, value in share.read().items()}
        self.changes = {
            key: nn.Parameter(torch.zeros_like(value, dtype=torch.float32))
            for key, value in self.originals.items()
        }
        self.handles: list[RemovableHandle] = []
        try:
            for share in found:
                self.handles.append(share.module.register_forward_hook(self._hook(share)))
        except BaseException:
            self.detach()
            raise

    def parameters(self) -> list[nn.Parameter]:
        """What an optimizer moves: the changes of the chosen rows and columns."""
        return list(self.changes.values())

    def settle(self) -> None:
        """Let what the optimizer moved take effect; it does at once."""

    def delta(self) -> dict[str, Tensor]:
        """The chosen neurons' weights as trained, neurons first, by the parameters' names.

        They have the model's dtype: they are exactly what `merge_` writes.
        """
        return {
            key: (value.float() + self.changes[key].detach()).to(value.dtype)
            for key, value in self.originals.items()
        }

    def detach(self) -> None:
        """Take the hooks away: the model is as it was before."""
        for handle in self.handles:
            handle.remove()
        self.handles = []

    def merge_(self) -> None:
        """Write the trained weights into the model for good, and detach."""
        trained = self.delta()
        self.detach()
        for share in self.shares:
            share.write(trained)

    @contextmanager
    def written(self) -> Iterator[None]:
        """The model holds the trained weights inside, and bit for bit its own after it."""
        try:
            self.merge_()
            yield
        finally:
            for share in self.shares:
                share.write(self.originals)

    def __enter__(self) -> "TrainableRows":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.detach()

    def _hook(self, share: Share) -> Callable[[Any, Any, Tensor], Tensor]:
        weight, *bias = (self.changes[key] for key in share.keys)

        def correct(
            _: Any, args: tuple[Tensor, ...], written: Float[Tensor, "*batch writes"]
        ) -> Float[Tensor, "*batch writes"]:
            change = weight.to(args[0].dtype)
            if not share.writes:
                return written + args[0][..., share.places] @ change
            own = functional.linear(args[0], change, *(each.to(change.dtype) for each in bias))
            return written.index_add(-1, share.places, own.to(written.dtype))

        return correct


def attach(model: PreTrainedModel, chosen: Chosen, trains: Trains = "all") -> TrainableRows:
    """Make the weights of the chosen neurons trainable; the model itself stays frozen.

    `trains` "all": a neuron's rows of the input projections, with biases, and its column of the
    output projection; "output": the column alone. That a neuron is all of these is our choice.

    Raises:
        BadOption: if no neuron is chosen, or the set is another model's.
        ModelRefused: if a chosen neuron is a routed expert's, the weights are quantised, or a
            block's input projections are not found.
    """
    return TrainableRows(model, chosen, trains)
