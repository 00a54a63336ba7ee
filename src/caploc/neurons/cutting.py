"""Neurons cut out of a model that answers: an engine whose masks are sets of neurons.

What a neuron hands on is replaced by zero, by its mean over reference examples, by what it handed
on in one of them, or by itself times a factor; in every position, of prompt and answer alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from caploc.engine import Answer, Ask, BatchEngine
from caploc.engine.wording import Span
from caploc.errors import BadOption
from caploc.grid import Grid
from caploc.models.cutting import Place, Replacement, replaced
from caploc.models.replacements import mean_replacement, record
from caploc.neurons.grid import Chosen
from caploc.neurons.loading import NeuronModel
from caploc.tasks.requests import Request

MODES = ("zero", "mean", "resample", "scale")


@dataclass(frozen=True)
class Mode:
    """What takes the place of what a cut neuron hands on.

    `factor` is that of `scale`, and nothing to the others.
    """

    name: str = "zero"
    factor: float = 0.0

    @classmethod
    def parse(cls, text: str) -> "Mode":
        """Read `zero`, `mean`, `resample` or `scale=0.5`.

        Raises:
            BadOption: if it is none of them.
        """
        name, equals, factor = text.partition("=")
        try:
            mode = cls(name, float(factor) if equals else 0.0)
        except ValueError:
            mode = cls("")
        if mode.name not in MODES or (mode.name == "scale") != bool(equals):
            raise BadOption(
                f"A neuron is cut by zero, mean, resample or scale=FACTOR; got {text!r}."
            )
        return mode

    def __str__(self) -> str:
        return f"scale={self.factor:g}" if self.name == "scale" else self.name


@dataclass(frozen=True)
class Cutter:
    """Replaces what neurons hand on, in a way that needs reference activations in two of four."""

    neurons: NeuronModel
    mode: Mode
    replacement: Replacement | None

    @classmethod
    def of(cls, neurons: NeuronModel, mode: Mode, reference: Sequence[Span], seed: int) -> "Cutter":
        """Record what the mode needs of the reference examples: prompts and gold answers."""
        if mode.name == "zero":
            return cls(neurons, mode, None)
        if mode.name == "scale":
            return cls(neurons, mode, lambda place, handed: handed * mode.factor)
        texts = [span.inputs for span in reference]
        outputs = record(
            neurons.model,
            neurons.projections,
            neurons.grid,
            texts,
            per_position=mode.name == "resample",
        )
        if mode.name == "mean":
            return cls(neurons, mode, mean_replacement(outputs, None))
        drawn = [None if v is None else _drawn(v, outputs.lengths, seed) for v in outputs.values]
        return cls(neurons, mode, _resampling(drawn))

    def cut(self, chosen: Chosen) -> AbstractContextManager[None]:
        """The neurons cut, for a block."""
        masks = torch.from_numpy(np.ascontiguousarray(chosen))[None]
        return replaced(self.neurons.projections, self.neurons.grid, masks, self.replacement)


def _drawn(values: Tensor, lengths: Tensor, seed: int) -> Tensor:
    """Of each neuron one value that it handed on at some position of some text, from the seed.

    One draw serves all positions: a text of another length has no position of the same meaning.
    """
    random = np.random.default_rng(seed)
    parts = values.shape[2]
    texts = random.integers(len(lengths), size=parts)
    places = random.integers(lengths.numpy()[texts])
    return values[texts, places, np.arange(parts)]


def _resampling(drawn: Sequence[Tensor | None]) -> Replacement:
    def sample(place: Place, handed: Tensor) -> Tensor:
        values = drawn[place.layer]
        assert values is not None, "a layer without neurons carries no hook"
        return values[place.inside].to(handed)

    return sample


@dataclass
class NeuronEngine:
    """Answers asks whose masks are sets of neurons, one set after another."""

    inner: BatchEngine[Any]
    cutter: Cutter
    grid: Grid = field(init=False)

    def __post_init__(self) -> None:
        self.grid = self.cutter.neurons.grid
        self.intact = np.zeros(self.inner.grid.size, dtype=bool)

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """Tokens that a set of neurons reads once for all of these requests, on average."""
        return self.inner.shared_tokens(requests)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; those of one set of neurons together."""
        sets: dict[bytes, list[Ask]] = {}
        for ask in asks:
            sets.setdefault(ask.knocked_out.tobytes(), []).append(ask)
        for members in sets.values():
            with self.cutter.cut(members[0].knocked_out):
                yield from self.inner.answer(
                    [replace(ask, knocked_out=self.intact) for ask in members]
                )


@dataclass
class WithoutNeurons:
    """Answers asks whose masks are heads, on a model that always lacks some neurons."""

    inner: BatchEngine[Any]
    cutter: Cutter
    chosen: Chosen

    @property
    def grid(self) -> Grid:
        """The heads."""
        return self.inner.grid

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """As the engine inside."""
        return self.inner.shared_tokens(requests)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once, the neurons cut throughout."""
        with self.cutter.cut(self.chosen):
            yield from self.inner.answer(asks)
