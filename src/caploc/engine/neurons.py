"""How neurons are cut while a model answers, and what stands in for what they hand on.

That is zero, their mean over reference examples, what they handed on in one of them, or themselves
times a factor; in every position, of prompt and answer alike.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from caploc.designs import generator
from caploc.engine.asks import Answer, Ask
from caploc.engine.encoding import Span
from caploc.engine.engine import BatchEngine
from caploc.errors import BadData, BadOption
from caploc.models.cutting import CutSite, Replacement, knocked_out
from caploc.models.knockout import mean_replacement, record_outputs
from caploc.models.neurons import Chosen, NeuronGrid, NeuronModel
from caploc.tasks.task import Request

MODES = ("zero", "mean", "resample", "scale")


@dataclass(frozen=True)
class ErasureMode:
    """What takes the place of what a cut neuron hands on.

    `factor` is that of `scale`, and nothing to the others.
    """

    name: str = "zero"
    factor: float = 0.0

    @property
    def needs_reference(self) -> bool:
        """Whether what stands in comes from the activations on other examples."""
        return self.name in ("mean", "resample")

    @classmethod
    def parse(cls, text: str) -> "ErasureMode":
        """Read `zero`, `mean`, `resample` or `scale=0.5`.

        Raises BadOption if it is none of them.
        """
        name, equals, factor = text.partition("=")
        try:
            mode = cls(name, float(factor) if equals else 0.0)
        except ValueError:
            mode = cls("")
        known = mode.name in MODES and isfinite(mode.factor)
        if not known or (mode.name == "scale") != bool(equals):
            raise BadOption(
                f"A neuron is cut by zero, mean, resample or scale=FACTOR; got {text!r}."
            )
        return mode

    def __str__(self) -> str:
        # every figure of the factor: rows are told apart by it
        factor = repr(self.factor).removesuffix(".0")
        return f"scale={factor}" if self.name == "scale" else self.name


@dataclass(frozen=True)
class Cutter:
    """Replaces what neurons hand on, in a way that needs reference activations in two of four."""

    neurons: NeuronModel
    replacement: Replacement | None

    @classmethod
    def of(
        cls, neurons: NeuronModel, mode: ErasureMode, reference: Sequence[Span], seed: int
    ) -> "Cutter":
        """Record what the mode needs of the reference examples: prompts and gold answers."""
        if mode.name == "zero":
            return cls(neurons, None)
        if mode.name == "scale":
            return cls(neurons, lambda place, handed: handed * mode.factor)
        texts = [span.inputs for span in reference]
        if mode.name == "resample":
            drawn, slices = _draw(neurons, texts, seed), neurons.grid.layer_slices

            def sample(place: CutSite, handed: Tensor) -> Tensor:
                return drawn[slices[place.layer]][place.inside, None].to(handed)

            return cls(neurons, sample)
        outputs = record_outputs(
            neurons.model, neurons.projections, neurons.grid, texts, per_position=False
        )
        return cls(neurons, mean_replacement(outputs, None))

    def cut(self, chosen: Chosen) -> AbstractContextManager[None]:
        masks = torch.from_numpy(np.ascontiguousarray(chosen))[None]
        return knocked_out(self.neurons.projections, self.neurons.grid, masks, self.replacement)


def _draw(
    neurons: NeuronModel, texts: Sequence[Sequence[int]], seed: int
) -> Float[Tensor, " neurons"]:
    """Draw of each neuron one value that it handed on at some position of some text.

    One draw serves all positions: a text of another length has no position of the same meaning.
    Texts are run one by one, and nothing of them is kept but what was drawn.
    """
    if not texts or not all(len(text) for text in texts):
        raise BadData("The reference needs at least one text, and each at least one token.")
    random, lengths = generator(seed), np.array([len(text) for text in texts])
    chosen = random.integers(len(texts), size=neurons.grid.size)
    places = random.integers(lengths[chosen])
    drawn = torch.zeros(neurons.grid.size, dtype=neurons.model.dtype)
    for number in np.unique(chosen):
        outputs = record_outputs(
            neurons.model, neurons.projections, neurons.grid, [texts[number]], per_position=True
        )
        handed = [each[0, :, :, 0].cpu() for each in outputs.values if each is not None]
        columns = np.flatnonzero(chosen == number)
        drawn[columns] = torch.cat(handed, dim=1)[places[columns], columns].to(drawn.dtype)
    return drawn


@dataclass(frozen=True)
class NeuronEngine:
    """Answers asks whose masks are sets of neurons, one set after another."""

    inner: BatchEngine[Any]
    cutter: Cutter

    @property
    def grid(self) -> NeuronGrid:
        return self.cutter.neurons.grid

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """Count the tokens that a set of neurons reads once for all of these requests."""
        return self.inner.shared_tokens(requests)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; those of one set of neurons together."""
        intact = np.zeros(self.inner.grid.size, dtype=bool)
        sets: dict[bytes, list[Ask]] = {}
        for ask in asks:
            sets.setdefault(ask.knocked_out.tobytes(), []).append(ask)
        for members in sets.values():
            with self.cutter.cut(members[0].knocked_out):
                yield from self.inner.answer([replace(ask, knocked_out=intact) for ask in members])
