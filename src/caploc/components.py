"""Components: what of a model can be knocked out, and the column of each in a mask.

A grid lists the components of one kind, layer by layer. The kinds of `KINDS` are made of attention
heads: masks over them become masks over heads by `cut_mask`, which is what the model's cut is told.
Feed-forward neurons have a grid of their own (`neurons.model.NeuronGrid`).
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from caploc.errors import BadData, BadOption, CaplocError, StoreFailed, UnknownName, pick

Mask = Bool[np.ndarray, " components"] | Float[np.ndarray, " components"]  # True is knocked out
Masks = Bool[np.ndarray, "masks components"] | Float[np.ndarray, "masks components"]
C = TypeVar("C", bound="Component")
QUOTED = 60  # characters of a name that a sentence repeats

# Which effect of a component a number is: the change of the score
ALONE = "alone"  # with it, and no other, knocked out
AMONG = "among others"  # in the mean over masks that knock out others as well
WITHIN = "within the set"  # beyond that of all others named


@dataclass(frozen=True, order=True)
class Component:
    """One component of a model: its layer and its index within the layer, both from 0."""

    layer: int
    index: int = 0

    LETTER: ClassVar[str]
    KIND: ClassVar[str]  # as sentences name it; with an s where there are several
    PLURAL: ClassVar[str]
    EXAMPLE: ClassVar[str]

    def __str__(self) -> str:
        return f"L{self.layer}{self.LETTER}{self.index}"

    @classmethod
    def pattern(cls) -> str:
        """Return the regular expression of a name, its numbers in groups."""
        return rf"L(\d{{1,9}}){cls.LETTER}(\d{{1,9}})"

    @classmethod
    def read(cls, text: str) -> Self | None:
        """Read a name such as `L16H21`; None if the text is not of that form."""
        match = re.fullmatch(cls.pattern(), text.strip(), re.IGNORECASE)
        return cls(*(int(each) for each in match.groups() if each)) if match else None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a name such as `L16H21`; raises BadOption if the text is not of that form."""
        found = cls.read(text)
        if found is None:
            raise BadOption(
                f"{text[:QUOTED]!r} is not a {cls.KIND}; write layer and {cls.KIND} from 0, such "
                f"as {cls.EXAMPLE}."
            )
        return found


class Head(Component):
    """One attention head, written `L16H21`, or `16.21` as others write it."""

    LETTER, KIND, PLURAL, EXAMPLE = "H", "head", "attention heads", "L16H21"

    @classmethod
    def pattern(cls) -> str:
        """Return the pattern of both ways to write it."""
        return super().pattern() + r"|(\d{1,9})\.(\d{1,9})"


class KeyValueGroup(Component):
    """The query heads that read one key-value head, written `L16G2`."""

    LETTER, KIND, PLURAL, EXAMPLE = "G", "key-value group", "key-value groups", "L16G2"


class Layer(Component):
    """All attention heads of one layer, written `L16`."""

    LETTER, KIND, PLURAL, EXAMPLE = "", "layer", "attention layers", "L16"

    def __str__(self) -> str:
        return f"L{self.layer}"

    @classmethod
    def pattern(cls) -> str:
        """Return the pattern of a layer's number."""
        return r"L(\d{1,9})"


class Grid(ABC, Generic[C]):
    """The components of a model, layer by layer; `column` is a component's place in a mask."""

    COMPONENT: ClassVar[type[Component]]

    @property
    @abstractmethod
    def per_layer(self) -> tuple[int, ...]:
        """Number of components of each layer; 0 for a layer that has none."""

    @property
    def size(self) -> int:
        """Number of components, which is the width of a mask."""
        return sum(self.per_layer)

    @property
    def layers(self) -> int:
        """Number of layers, those without components included."""
        return len(self.per_layer)

    @property
    def layer_slices(self) -> list[slice]:
        """The columns of each layer."""
        ends = list(accumulate(self.per_layer))
        return [slice(end - count, end) for end, count in zip(ends, self.per_layer, strict=True)]

    @property
    def strata(self) -> list[slice]:
        """Columns from which random controls take as many as a set has there: those of a layer."""
        return self.layer_slices

    @property
    def groups(self) -> list[list[int]]:
        """The columns of components that share keys and values; here each is a group of its own."""
        return [[column] for column in range(self.size)]

    def group(self, component: C) -> int | None:
        """The number, in its layer, of the group that a component shares; None if it is alone."""
        return None

    @cached_property
    def components(self) -> tuple[C, ...]:
        """Every component, in the order of its column."""
        counts, make = enumerate(self.per_layer), self.COMPONENT
        return tuple(make(layer, n) for layer, count in counts for n in range(count))  # type: ignore[misc]

    def column(self, component: C) -> int:
        """The component's place in a mask; raises UnknownName if the model has no such one."""
        kind, letter = component.KIND, component.LETTER
        if component.layer >= self.layers:
            raise UnknownName(
                f"There is no {kind} {component}: the model has layers L0 to L{self.layers - 1}."
            )
        count = self.per_layer[component.layer]
        if component.index >= count:
            has = f"{kind}s {letter}0 to {letter}{count - 1}" if count else f"no {component.PLURAL}"
            raise UnknownName(f"There is no {kind} {component}: layer {component.layer} has {has}.")
        return int(self.layer_slices[component.layer].start) + component.index

    def component(self, column: int) -> C:
        starts = [columns.start for columns in self.layer_slices]
        layer = int(np.searchsorted(starts, column, side="right")) - 1
        return self.COMPONENT(layer, int(column) - starts[layer])  # type: ignore[return-value]

    def mask(self, components: Iterable[C | str]) -> Mask:
        """The mask that knocks out these components; raises BadOption for what names none."""
        knocked_out = np.zeros(self.size, dtype=bool)
        for each in components:
            found = self.COMPONENT.parse(each) if isinstance(each, str) else each
            knocked_out[self.column(found)] = True  # type: ignore[arg-type]
        return knocked_out

    def named(self, knocked_out: Mask) -> list[C]:
        """The components that a mask knocks out, by layer and index."""
        return [self.component(int(column)) for column in np.flatnonzero(knocked_out)]

    def columns(self, names: Iterable[str]) -> list[int]:
        """The columns of these names, in their order; raises UserError for what names none."""
        return [self.column(self.COMPONENT.parse(name)) for name in names]  # type: ignore[arg-type]

    def counts(self, chosen: Mask) -> list[int]:
        """How many components of a set lie in each layer."""
        return [int(chosen[columns].sum()) for columns in self.layer_slices]

    def cut_mask(self, knocked_out: Bool[np.ndarray, "*masks components"]) -> np.ndarray:
        """What the cut is told to knock out these components: a mask over what it can zero."""
        return knocked_out


class GridOfHeads(Grid[C]):
    """A grid whose components are made of attention heads, each head in one of them."""

    @classmethod
    @abstractmethod
    def of(cls, heads: "Heads") -> Self:
        """Make the grid of a model with these heads; raises BadOption if it has no such ones."""

    @property
    @abstractmethod
    def owners(self) -> Int[np.ndarray, " heads"]:
        """The column of each head's component."""

    def cut_mask(self, knocked_out: Bool[np.ndarray, "*masks components"]) -> np.ndarray:
        """The mask over heads that knocks out all heads of these components."""
        return knocked_out[..., self.owners]


@dataclass(frozen=True)
class Heads(GridOfHeads[Head]):
    """All heads of a model.

    `heads_per_layer` may differ from layer to layer; a layer without attention heads has 0.
    `group_sizes` says for each layer how many query heads share one key-value head (1: none do).
    """

    COMPONENT = Head

    heads_per_layer: tuple[int, ...]
    group_sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, heads: "Heads") -> "Heads":
        """A model's heads are its own grid."""
        return heads

    @property
    def per_layer(self) -> tuple[int, ...]:
        return self.heads_per_layer

    @property
    def owners(self) -> Int[np.ndarray, " heads"]:
        return np.arange(self.size)

    def group(self, head: Head) -> int | None:
        """The key-value head that the head reads, counted within its layer; None if its own."""
        size = self.group_sizes[head.layer] if self.group_sizes else 1
        return head.index // size if size > 1 else None

    @property
    def groups(self) -> list[list[int]]:
        """The columns of the query heads that read each key-value head; single ones included."""
        found: list[list[int]] = []
        for columns, size in zip(
            self.layer_slices, self.group_sizes or (1,) * self.layers, strict=True
        ):
            inside = range(columns.start, columns.stop)
            found += [list(inside[first : first + size]) for first in range(0, len(inside), size)]
        return found

    def mask(self, components: Iterable[Component | str]) -> Mask:
        """The mask that knocks out these heads, and all heads of these groups and layers."""
        knocked_out = np.zeros(self.size, dtype=bool)
        for each in components:
            found = parse_component(each) if isinstance(each, str) else each
            kind = next((k for k in KINDS.values() if isinstance(found, k.COMPONENT)), None)
            if kind is None:
                raise BadOption(f"{found!r} names no head; write it as a text, such as 'L16H21'.")
            grid = kind.of(self)
            knocked_out |= grid.owners == grid.column(found)
        return knocked_out

    def named_in(self, names: Iterable[Component | str]) -> list[Head]:
        """The heads that the names stand for, each once; raises UnknownName for others."""
        found = (head for name in names for head in self.named(self.mask([name])))
        return list(dict.fromkeys(found))


@dataclass(frozen=True)
class KeyValueGroups(GridOfHeads[KeyValueGroup]):
    """Query heads that read the same keys and values, one component each."""

    COMPONENT = KeyValueGroup

    heads: Heads

    @classmethod
    def of(cls, heads: Heads) -> "KeyValueGroups":
        if max(heads.group_sizes, default=1) < 2:
            raise BadOption(
                "This model has no key-value groups: each of its heads reads keys and values of "
                "its own. Name heads, such as L0H5, or take --components heads."
            )
        return cls(heads)

    @property
    def per_layer(self) -> tuple[int, ...]:
        sizes = zip(self.heads.heads_per_layer, self.heads.group_sizes, strict=True)
        return tuple(-(-count // size) for count, size in sizes)

    @property
    def owners(self) -> Int[np.ndarray, " heads"]:
        return np.repeat(np.arange(self.size), list(map(len, self.heads.groups)))


@dataclass(frozen=True)
class Layers(GridOfHeads[Layer]):
    """The attention layers: all heads of a layer, one component each."""

    COMPONENT = Layer

    heads: Heads

    @classmethod
    def of(cls, heads: Heads) -> "Layers":
        return cls(heads)

    @property
    def per_layer(self) -> tuple[int, ...]:
        return tuple(min(count, 1) for count in self.heads.heads_per_layer)

    @property
    def strata(self) -> list[slice]:
        """A layer has no other in its place, so that controls are any other layers."""
        return [slice(0, self.size)]

    @property
    def owners(self) -> Int[np.ndarray, " heads"]:
        return np.repeat(np.arange(self.size), [n for n in self.heads.heads_per_layer if n])


HEADS = "heads"  # the kind that is knocked out if nobody names one
KINDS: dict[str, type[GridOfHeads[Any]]] = {
    HEADS: Heads,
    "groups": KeyValueGroups,
    "layers": Layers,
}


def find_grid(kind: str, heads: Heads) -> GridOfHeads[Any]:
    """Return the grid of a kind of a model's components; raises UserError if there is none."""
    return pick(KINDS, kind, "kind of component").of(heads)


def parse_component(text: str) -> Component:
    """Read the name of a component of any of `KINDS`; raises BadOption if it is none."""
    for kind in KINDS.values():
        if found := kind.COMPONENT.read(text):
            return found
    made = [kind.COMPONENT for kind in KINDS.values()]
    *kinds, last = [each.KIND for each in made]
    *examples, other = [each.EXAMPLE for each in made]
    raise BadOption(
        f"{text[:QUOTED]!r} is not a {', '.join(kinds)} or {last}; count from 0, such as "
        f"{', '.join(examples)} or {other}."
    )


def parse_components(texts: str | Sequence[str]) -> list[Component]:
    """Read names between commas, of one text or several; each once, in their order."""
    joined = texts if isinstance(texts, str) else ",".join(texts)
    return list(dict.fromkeys(parse_component(n) for n in joined.split(",") if n.strip()))


SCHEMA = 1
FILE_KIND = "caploc heads"  # tells the file from any other JSON that has a key "heads"
NAME = "heads.json"
MODE = "zero"  # what takes the place of a knocked-out head's output


@dataclass(frozen=True)
class HeadFile:
    """Heads of one model.

    `model` and `fingerprint` say which model they were found in; `grid` decides which models they
    can be knocked out of.
    """

    heads: tuple[Head, ...]
    grid: Heads
    model: str
    fingerprint: str | None = None

    @property
    def names(self) -> list[str]:
        return [str(head) for head in self.heads]

    def check(self, grid: Heads) -> None:
        """Refuse a model with other numbers of heads in its layers; raises BadOption."""
        if self.grid.heads_per_layer != grid.heads_per_layer:
            raise BadOption(
                f"The heads were found in {self.model}, which has {describe_grid(self.grid)}, and "
                f"this model has {describe_grid(grid)}; use the file with the model it was made "
                "for."
            )


def read_heads(path: Path | str) -> HeadFile:
    """Read a file that `caploc export` or `write_heads` wrote; raises BadData if it is none."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "it is not valid JSON"
        raise BadData(
            f"{path} cannot be read as a file of heads ({said}); `caploc export DIR --as heads` "
            "writes one."
        ) from None
    try:
        return _parsed(content)
    except (CaplocError, KeyError, TypeError, ValueError, OverflowError) as error:
        said = str(error).rstrip(".") or type(error).__name__
        said = f"it has no {said}" if isinstance(error, KeyError) else said
        raise BadData(
            f"{path} is no file of heads of this version of caploc ({said}); `caploc "
            "export DIR --as heads` writes one."
        ) from None


def resolve_excluded(
    given: Sequence[str], heads: Heads, grid: GridOfHeads[Any], top: int
) -> tuple[str, ...]:
    """Resolve names of heads, and paths of head files, into names of components.

    Left in is every component of the grid that holds one of these heads.

    Raises UserError for what is none of these, heads the model does not have, or if fewer than
    `top` heads are left.
    """
    found: list[Head] = []
    for each in given:
        if each.endswith(".json"):
            file = read_heads(each)
            file.check(heads)
            found += heads.named_in(file.names)
        else:
            found += heads.named_in(each.split(","))
    columns = dict.fromkeys(grid.owners[heads.column(head)] for head in found)
    names = tuple(str(grid.component(column)) for column in columns)
    if grid.size - len(names) < top:
        raise BadOption(
            f"--exclude leaves {grid.size - len(names)} of {grid.size} {grid.COMPONENT.KIND}s, "
            f"fewer than the {top} to name (--top)."
        )
    return names


def write_heads(path: Path, file: HeadFile) -> None:
    """Write heads to a file; raises StoreFailed."""
    grid = {"layers": file.grid.layers, "heads": list(file.grid.heads_per_layer)}
    content = {
        "schema": SCHEMA,
        "kind": FILE_KIND,
        "model": {"name": file.model, "fingerprint": file.fingerprint},
        "grid": grid | {"group_sizes": list(file.grid.group_sizes)},
        "mode": MODE,
        "heads": file.names,
    }
    try:
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreFailed(
            f"{path} could not be written ({error.strerror}); free disk space or name another "
            "place."
        ) from error


def describe_grid(grid: Heads) -> str:
    """A grid in a few words."""
    counts = set(grid.heads_per_layer)
    each = f"{counts.pop()} heads each" if len(counts) == 1 else f"{grid.size} heads in all"
    return f"{grid.layers} layers of {each}"


def _parsed(content: Any) -> HeadFile:
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if content["kind"] != FILE_KIND or content["schema"] != SCHEMA:
        raise ValueError(f"kind {content['kind']!r}, schema {content['schema']!r}")
    if content["mode"] != MODE:
        raise ValueError(f"mode {content['mode']!r}, not {MODE!r}")
    names = content["heads"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its heads are no list of names")
    grid = Heads(*(tuple(map(int, content["grid"][key])) for key in ("heads", "group_sizes")))
    model, heads = content["model"], tuple(grid.named_in(names))
    return HeadFile(heads, grid, str(model["name"]), model["fingerprint"])
