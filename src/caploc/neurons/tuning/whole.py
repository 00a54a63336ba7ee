"""Train all weights of a model, and have it back as it was."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel


class TrainableWhole:
    """Every weight of a model, trainable as float32 copies whatever the model's dtype.

    In bfloat16 a step of a thousandth of a weight would round to nothing, and full tuning would
    look worse than it is.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        """Copy the weights and let their gradients flow to the copies."""
        self.weights = [each for each in model.parameters() if each.is_floating_point()]
        self.required = [weight.requires_grad for weight in self.weights]
        self.originals = [weight.detach().clone() for weight in self.weights]
        # copied: in float32 they would be the originals themselves
        self.copies = [nn.Parameter(each.to(torch.float32, copy=True)) for each in self.originals]
        self.handles: list[RemovableHandle] = []
        try:
            for weight, copy in zip(self.weights, self.copies, strict=True):
                weight.requires_grad_(True)
                self.handles.append(weight.register_post_accumulate_grad_hook(_handed_to(copy)))
        except BaseException:
            self.detach()
            raise

    def parameters(self) -> list[nn.Parameter]:
        """What an optimizer moves: the copies."""
        return self.copies

    @torch.no_grad()
    def settle(self) -> None:
        """Write the copies into the model, rounded to its dtype."""
        for weight, copy in zip(self.weights, self.copies, strict=True):
            weight.copy_(copy)

    @torch.no_grad()
    def detach(self) -> None:
        """The model's own weights return, bit for bit, and no gradient flows to them."""
        self._release()
        for weight, original in zip(self.weights, self.originals, strict=True):
            weight.copy_(original)

    @contextmanager
    def written(self) -> Iterator[None]:
        """The model holds the trained weights inside, and bit for bit its own after it."""
        try:
            self._release()
            self.settle()
            yield
        finally:
            self.detach()

    def _release(self) -> None:
        for handle in self.handles:
            handle.remove()
        self.handles = []
        for weight, required in zip(self.weights, self.required, strict=True):
            weight.requires_grad_(required)
            weight.grad = None


def _handed_to(copy: nn.Parameter) -> Callable[[Tensor], None]:
    def hand_over(weight: Tensor) -> None:
        assert weight.grad is not None
        gradient = weight.grad.float()
        copy.grad = gradient if copy.grad is None else copy.grad + gradient
        weight.grad = None

    return hand_over
