"""A worker: one replica of the model, loaded and proved in its own process; what passes to it."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, TypeVar

import numpy as np
import torch

from caploc import errors
from caploc.engine import Answer, Ask, BatchEngine
from caploc.engine.memory import SHARE
from caploc.errors import CaplocError, ModelRefused
from caploc.heads import HeadGrid
from caploc.models.loading import LoadedModel, load_model
from caploc.models.placement import free_memory
from caploc.tasks.task import Request

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class AskBatch:
    """Asks as they travel: each text and each mask once, masks as bits.

    `asked` holds each ask's key and its places in `requests` and `masks`.
    """

    requests: tuple[Request, ...]
    masks: tuple[bytes, ...]  # packed bits, most significant first; 1 is knocked out
    parts: int  # of a mask
    asked: tuple[tuple[tuple[int, int], int, int], ...]

    @classmethod
    def of(cls, asks: Sequence[Ask]) -> "AskBatch":
        """Pack asks."""
        requests: dict[Request, int] = {}
        masks: dict[bytes, int] = {}
        asked = [
            (
                ask.key,
                requests.setdefault(ask.request, len(requests)),
                masks.setdefault(np.packbits(ask.knocked_out).tobytes(), len(masks)),
            )
            for ask in asks
        ]
        parts = asks[0].knocked_out.size if asks else 0
        return cls(tuple(requests), tuple(masks), parts, tuple(asked))

    def asks(self) -> list[Ask]:
        """Unpack the asks, in their order."""
        masks = [
            np.unpackbits(np.frombuffer(bits, np.uint8), count=self.parts).astype(bool)
            for bits in self.masks
        ]
        return [Ask(key, self.requests[text], masks[mask]) for key, text, mask in self.asked]


@dataclass(frozen=True)
class Refusal:
    """An error that a worker raised on purpose, as it travels: the name of its class, its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: CaplocError) -> "Refusal":
        """Pack an error."""
        return cls(type(error).__name__, str(error))

    def error(self) -> CaplocError:
        """Unpack the error."""
        found: CaplocError = getattr(errors, self.kind, CaplocError)(self.text)
        return found


@dataclass(frozen=True)
class ModelIdentity:
    """What the driver, which holds no weights, knows of the model that a worker has loaded.

    `release` is the version of caploc that the worker runs.
    """

    name: str
    fingerprint: str
    dtype: str
    device: str
    grid: HeadGrid
    release: str

    def check_same(self, first: "ModelIdentity", node: str) -> None:
        """Refuse a worker whose answers would be another model's.

        Raises:
            ModelRefused: if weights, config, dtype, heads or the version of caploc differ.
        """
        for what in ("fingerprint", "dtype", "grid", "release"):
            own, other = getattr(self, what), getattr(first, what)
            if own != other:
                said = "" if what == "grid" else f": {own}, not {other}"
                what = {"release": "version of caploc"}.get(what, what)
                raise ModelRefused(
                    f"The worker on {node} has another {what} of {self.name} than the first one"
                    f"{said}; every node needs the same files, the same versions and one --dtype."
                )


@dataclass(frozen=True)
class WorkerRecipe:
    """What a worker loads: `load_model`'s arguments, most rows of a batch, its CPU cores."""

    loading: dict[str, Any]
    batch_size: int | None = None
    cpus: int = 1


@dataclass
class Replica:
    """Answers batches of asks. Errors raised on purpose come back as refusals."""

    recipe: WorkerRecipe
    engine: BatchEngine[LoadedModel] = field(init=False, repr=False)

    def load(self) -> tuple[ModelIdentity | Refusal, str]:
        """Load and prove the model; return who it is, and the id of Ray's node that this is on."""
        torch.set_num_threads(self.recipe.cpus)
        return _refusing(self.loaded), own_node()

    def loaded(self) -> ModelIdentity:
        """Load the model, and return its identity."""
        loaded, memory = load_model(**self.recipe.loading), None
        if loaded.device.type == "cpu":  # this worker's part of what all of them may use
            part = min(1.0, self.recipe.cpus / (os.cpu_count() or 1))
            memory = int(SHARE * part * free_memory(loaded.device))
        self.engine = BatchEngine(loaded, self.recipe.batch_size, memory)
        device, release = str(loaded.device), version("caploc")
        return ModelIdentity(
            loaded.name, loaded.fingerprint, loaded.dtype, device, loaded.grid, release
        )

    def answer(self, batch: AskBatch, seconds: float) -> Iterator[list[Answer] | Refusal]:
        """Answer every ask, in lists about so many seconds apart."""
        kept, since = list[Answer](), time.monotonic()
        try:
            for part in self.engine.answer(batch.asks()):
                kept += part
                if time.monotonic() - since >= seconds:
                    yield kept
                    kept, since = [], time.monotonic()
        except CaplocError as error:
            yield Refusal.of(error)
            return
        yield kept

    def shared_tokens(self, requests: Sequence[Request]) -> float | Refusal:
        """Count shared tokens as `BatchEngine.shared_tokens` does."""
        return _refusing(lambda: self.engine.shared_tokens(requests))


def own_node() -> str:
    """Return Ray's id of the node that this process runs on."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def _refusing(work: Callable[[], Result]) -> Result | Refusal:
    """Return the work's result, or the error that it raised on purpose."""
    try:
        return work()
    except CaplocError as error:
        return Refusal.of(error)
