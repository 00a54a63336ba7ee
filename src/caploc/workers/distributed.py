"""Replicas of a model, and an engine whose rows they answer."""

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from itertools import groupby
from math import ceil
from typing import Any, Self

import torch

from caploc.components import Heads
from caploc.engine.api import Answer, Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.planning import SHARE
from caploc.errors import ModelRefused
from caploc.models.loading import LoadedModel, load_model
from caploc.models.placement import free_memory
from caploc.tasks.task import Request, prompt_of

ROWS = 200  # of a chunk at most: what a lost worker costs
CHUNKS, FEWEST = 4, 8  # chunks for each worker, so that all end together, but no smaller ones
LEAD = 200  # characters by which prompts with a common beginning are known; some fifty tokens


@dataclass(frozen=True)
class ModelIdentity:
    """What the driver, which holds no weights, knows of the model that a worker has loaded.

    `release` is the version of caploc that the worker runs.
    """

    name: str
    fingerprint: str
    dtype: str
    device: str
    grid: Heads
    release: str
    uncovered: tuple[str, ...] = ()

    def check_same(self, first: "ModelIdentity") -> None:
        """Refuse a worker whose answers would be another model's."""
        for what in ("fingerprint", "dtype", "grid", "release"):
            if getattr(self, what) != getattr(first, what):
                what = {"release": "version of caploc"}.get(what, what)
                raise ModelRefused(
                    f"A worker has another {what} of {self.name} than the first one; every node "
                    "needs the same files, the same versions and one --dtype."
                )


@dataclass(frozen=True)
class WorkerRecipe:
    """What a worker loads: `load_model`'s arguments, most rows of a batch, its CPU cores."""

    loading: dict[str, Any]
    batch_size: int | None = None
    cpus: int = 1


@dataclass
class Replica:
    """A worker's model, which answers asks."""

    recipe: WorkerRecipe
    engine: BatchEngine[LoadedModel] = field(init=False, repr=False)

    def load(self) -> ModelIdentity:
        """Load and prove the model; return which it is. Raises CaplocError if it is refused."""
        torch.set_num_threads(self.recipe.cpus)
        loaded, memory = load_model(**self.recipe.loading), None
        if loaded.device.type == "cpu":  # this worker's part of what all of them may use
            part = min(1.0, self.recipe.cpus / (os.cpu_count() or 1))
            memory = int(SHARE * part * free_memory(loaded.device))
        self.engine = BatchEngine(loaded, self.recipe.batch_size, memory)
        who = loaded.name, loaded.fingerprint, loaded.dtype, str(loaded.device)
        return ModelIdentity(*who, loaded.grid, version("caploc"), loaded.uncovered)

    def answer(self, asks: Sequence[Ask]) -> list[Answer]:
        # Ray's arrays are read-only, which torch warns of.
        own = [replace(ask, knocked_out=ask.knocked_out.copy()) for ask in asks]
        return [answer for batch in self.engine.answer(own) for answer in batch]


def cut_chunks(asks: Iterable[Ask], workers: int) -> list[list[Ask]]:
    """Cut asks into chunks of whole rows; rows that gain from being answered together stay so.

    Prompts that begin alike are read once for a mask: there the rows of one mask stay together. Of
    other prompts the part below a mask's first knocked-out layer is shared by all masks, and
    answers serve as drafts: there the rows of one prompt stay together. Long prompts come first, so
    that what is left at the end is short.
    """
    rows: dict[int, list[Ask]] = defaultdict(list)
    for ask in asks:
        rows[ask.key[0]].append(ask)
    prompts = {number: prompt_of(own[0].request) for number, own in rows.items()}
    masks = {number: own[0].knocked_out.tobytes() for number, own in rows.items()}
    alike: dict[str, set[str]] = defaultdict(set)
    for prompt in prompts.values():
        alike[prompt[:LEAD]].add(prompt)
    longest = {lead: max(map(len, each)) for lead, each in alike.items()}

    def block(number: int) -> Hashable:
        prompt, lead = prompts[number], prompts[number][:LEAD]
        return (lead, masks[number]) if len(alike[lead]) > 1 else (lead, prompt)

    def place(number: int) -> tuple[Any, ...]:
        return -longest[prompts[number][:LEAD]], block(number), prompts[number], masks[number]

    most = min(ROWS, max(FEWEST, ceil(len(rows) / (CHUNKS * workers))))
    chunks: list[list[int]] = [[]]
    for _, members in groupby(sorted(rows, key=place), key=block):
        own = list(members)
        for first in range(0, len(own), most):
            part = own[first : first + most]
            if len(chunks[-1]) + len(part) > most:
                chunks.append([])
            chunks[-1] += part
    return [[ask for number in chunk for ask in rows[number]] for chunk in chunks if chunk]


class DistributedEngine:
    """Answers asks with the workers of a pool; `grid` as `BatchEngine`'s."""

    def __init__(self, pool: Any, misfit: Callable[[Request], str | None]) -> None:
        """Wait for the first worker of a `ray_backend.WorkerPool` to have its model.

        `misfit` says why the model cannot read a request whole; None if it can. Raises UserError if
        a worker refuses the model; RunFailed if no worker comes up.
        """
        self.pool, self.misfit = pool, misfit
        self.loaded: ModelIdentity = pool.identify()

    @property
    def grid(self) -> Heads:
        return self.loaded.grid

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, a chunk at a time.

        Raises:
            UserError: if a worker refuses an ask.
            RunFailed: if several workers fail on the same rows, or none is left.
        """
        for _, answers in self.pool.map("answer", cut_chunks(asks, self.pool.size)):
            yield answers

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.close()
