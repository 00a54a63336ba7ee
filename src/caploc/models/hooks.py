"""Hooks and forwards that are put on modules for a block and taken off after it."""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from caploc.errors import ModelBusy


def check_thread(owner: int) -> None:
    """Refuse a forward pass of another thread than the one that cuts."""
    if threading.get_ident() != owner:
        raise ModelBusy(
            "Another thread has knocked out heads of this model; wait until its block has ended, "
            "or load the model once for each thread."
        )


@contextmanager
def temporary_hooks(handles: Iterable[Any]) -> Iterator[None]:
    """Take hooks away after a block; each is registered as its handle is taken from `handles`."""
    with ExitStack() as hooks:
        for handle in handles:
            hooks.callback(handle.remove)
        yield


@contextmanager
def forward_as(module: nn.Module, forward: Callable) -> Iterator[None]:
    """Put `forward` in the place of the module's own, whoever put that there, for a block."""
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
