"""A grid gives every part of a model that can be knocked out its column in a mask.

Parts are attention heads (`heads.HeadGrid`) or feed-forward neurons (`neurons.NeuronGrid`).
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, Generic, TypeVar

import numpy as np
from jaxtyping import Bool, Float

from caploc.errors import BadOption, UnknownName

Mask = Bool[np.ndarray, " parts"] | Float[np.ndarray, " parts"]  # True, or 1, is knocked out
Masks = Bool[np.ndarray, "masks parts"] | Float[np.ndarray, "masks parts"]
P = TypeVar("P", bound="Part")
QUOTED = 60  # characters of a name that a sentence repeats


@dataclass(frozen=True, order=True)
class Part:
    """One part of a model: its layer and its index within the layer, both from 0."""

    layer: int
    index: int

    LETTER: ClassVar[str]
    KIND: ClassVar[str]  # as sentences name it, and with `PLURAL` several
    PLURAL: ClassVar[str]
    EXAMPLE: ClassVar[str]

    def __str__(self) -> str:
        return f"L{self.layer}{self.LETTER}{self.index}"

    @classmethod
    def parse(cls: "type[P]", text: str) -> "P":
        """Read a name such as `L16H21`; raises BadOption if the text is not of that form."""
        match = re.fullmatch(rf"L(\d{{1,9}}){cls.LETTER}(\d{{1,9}})", text.strip(), re.IGNORECASE)
        if not match:
            raise BadOption(
                f"{text[:QUOTED]!r} is not a {cls.KIND}; write layer and {cls.KIND} from 0, such "
                f"as {cls.EXAMPLE}."
            )
        return cls(int(match[1]), int(match[2]))

    @classmethod
    def parse_all(cls: "type[P]", texts: str | Sequence[str]) -> "list[P]":
        """Read names between commas, of one text or several; each once, in their order."""
        joined = texts if isinstance(texts, str) else ",".join(texts)
        return list(dict.fromkeys(cls.parse(name) for name in joined.split(",") if name.strip()))


class Grid(ABC, Generic[P]):
    """The parts of a model, layer by layer; `column(part)` is a part's place in a mask."""

    PART: ClassVar[type[Part]]

    @property
    @abstractmethod
    def per_layer(self) -> tuple[int, ...]:
        """Number of parts of each layer; 0 for a layer that has none."""

    @property
    def size(self) -> int:
        """Number of parts, which is the width of a mask."""
        return sum(self.per_layer)

    @property
    def layers(self) -> int:
        """Number of layers, those without parts included."""
        return len(self.per_layer)

    @property
    def layer_slices(self) -> list[slice]:
        """The columns of each layer."""
        ends = list(accumulate(self.per_layer))
        return [slice(end - count, end) for end, count in zip(ends, self.per_layer, strict=True)]

    def column(self, part: P) -> int:
        """The part's place in a mask; raises UnknownName if the model has no such part."""
        kind, letter = part.KIND, part.LETTER
        if part.layer >= self.layers:
            raise UnknownName(
                f"There is no {kind} {part}: the model has layers L0 to L{self.layers - 1}."
            )
        count = self.per_layer[part.layer]
        if part.index >= count:
            has = f"{kind}s {letter}0 to {letter}{count - 1}" if count else f"no {part.PLURAL}"
            raise UnknownName(f"There is no {kind} {part}: layer {part.layer} has {has}.")
        return int(self.layer_slices[part.layer].start) + part.index

    def part(self, column: int) -> P:
        starts = [columns.start for columns in self.layer_slices]
        layer = int(np.searchsorted(starts, column, side="right")) - 1
        return self.PART(layer, int(column) - starts[layer])  # type: ignore[return-value]

    def mask(self, parts: Iterable[P | str]) -> Mask:
        """The mask that knocks out these parts; raises BadOption for what is no name of one."""
        knocked_out = np.zeros(self.size, dtype=bool)
        for each in parts:
            found = self.PART.parse(each) if isinstance(each, str) else each
            knocked_out[self.column(found)] = True  # type: ignore[arg-type]
        return knocked_out

    def named(self, knocked_out: Mask) -> list[P]:
        """The parts that a mask knocks out, by layer and index."""
        return [self.part(int(column)) for column in np.flatnonzero(knocked_out)]

    def counts(self, chosen: Mask) -> list[int]:
        """How many parts of a set lie in each layer."""
        return [int(chosen[columns].sum()) for columns in self.layer_slices]
