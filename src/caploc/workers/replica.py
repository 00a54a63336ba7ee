"""A worker: one replica of the model, loaded and proved in its own process."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

import torch

from caploc.engine import Answer, BatchEngine
from caploc.engine.memory import SHARE
from caploc.errors import CaplocError
from caploc.models.loading import LoadedModel, load_model
from caploc.models.placement import free_memory
from caploc.tasks.requests import Request
from caploc.workers.bundle import Bundle
from caploc.workers.crew import Refusal
from caploc.workers.identity import Identity

Result = TypeVar("Result")


@dataclass(frozen=True)
class Recipe:
    """What a worker loads: `load_model`'s arguments, most rows of a batch, its CPU cores."""

    loading: dict[str, Any]
    batch_size: int | None = None
    cpus: int = 1


@dataclass
class Replica:
    """Answers bundles of asks. Errors raised on purpose come back as refusals."""

    recipe: Recipe
    engine: BatchEngine[LoadedModel] = field(init=False, repr=False)

    def load(self) -> tuple[Identity | Refusal, str]:
        """Load and prove the model; who it is, and the id of Ray's node that this runs on."""
        torch.set_num_threads(self.recipe.cpus)
        return refusing(self.loaded), own_node()

    def loaded(self) -> Identity:
        """The model's identity, once it is there."""
        loaded = load_model(**self.recipe.loading)
        self.engine = BatchEngine(loaded, self.recipe.batch_size, self.memory(loaded))
        return Identity(
            loaded.name,
            loaded.fingerprint,
            loaded.dtype,
            str(loaded.device),
            loaded.grid,
            version("caploc"),
        )

    def memory(self, loaded: LoadedModel) -> int | None:
        """Bytes to use beside the weights: on a CPU a part of what all its workers may use."""
        if loaded.device.type != "cpu":
            return None
        part = min(1.0, self.recipe.cpus / (os.cpu_count() or 1))
        return int(SHARE * part * free_memory(loaded.device))

    def answer(self, bundle: Bundle, seconds: float) -> Iterator[list[Answer] | Refusal]:
        """Answer every ask, in lists about so many seconds apart."""
        kept, since = list[Answer](), time.monotonic()
        try:
            for part in self.engine.answer(bundle.asks()):
                kept += part
                if time.monotonic() - since >= seconds:
                    yield kept
                    kept, since = [], time.monotonic()
        except CaplocError as error:
            yield Refusal.of(error)
            return
        yield kept

    def shared_tokens(self, requests: Sequence[Request]) -> float | Refusal:
        """`BatchEngine.shared_tokens`."""
        return refusing(lambda: self.engine.shared_tokens(requests))


def own_node() -> str:
    """Ray's id of the node that this process runs on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def refusing(work: Callable[[], Result]) -> Result | Refusal:
    """The work's result, or the error that it raised on purpose."""
    try:
        return work()
    except CaplocError as error:
        return Refusal.of(error)
