"""Heads: the grid that gives each of a model's its column in a mask, and files that name some."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from caploc.errors import BadData, BadOption, CaplocError, StoreFailed
from caploc.grid import Grid, Mask, Masks, Part

__all__ = [
    "ALONE", "AMONG", "WITHIN", "Head", "HeadFile", "HeadGrid", "Mask", "Masks", "read_heads",
]  # fmt: skip

# Which effect of a head a number is: the change of the score
ALONE = "alone"  # with this head, and no other, knocked out
AMONG = "among others"  # in the mean over masks that knock out others as well
WITHIN = "within the set"  # beyond that of all other heads named


class Head(Part):
    """One attention head, written `L16H21`: layer and index within the layer, both from 0."""

    LETTER, KIND, PLURAL, EXAMPLE = "H", "head", "attention heads", "L16H21"


@dataclass(frozen=True)
class HeadGrid(Grid[Head]):
    """All heads of a model, layer by layer; `column(head)` is a head's place in a mask.

    `heads_per_layer` may differ from layer to layer; a layer without attention heads has 0.
    `group_sizes` says for each layer how many query heads share one key-value head (1: none do).
    """

    PART = Head

    heads_per_layer: tuple[int, ...]
    group_sizes: tuple[int, ...] = ()

    @property
    def per_layer(self) -> tuple[int, ...]:
        return self.heads_per_layer

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        """Every head, in the order of its column."""
        counts = enumerate(self.per_layer)
        return tuple(Head(layer, n) for layer, count in counts for n in range(count))

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

    def named_in(self, names: Iterable[str]) -> list[Head]:
        """The heads of these names, each checked to exist."""
        found = [Head.parse(name) for name in names]
        for head in found:
            self.column(head)
        return found


SCHEMA = 1
KIND = "caploc heads"  # tells the file from any other JSON that has a key "heads"
NAME = "heads.json"
MODE = "zero"  # what takes the place of a knocked-out head's output


@dataclass(frozen=True)
class HeadFile:
    """Heads of one model, and what a run said for them.

    `model` and `fingerprint` say which model they were found in; `grid` decides which models they
    can be knocked out of. `evidence` is a summary for people: free in form, empty if there is none.
    """

    heads: tuple[Head, ...]
    grid: HeadGrid
    model: str
    fingerprint: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        return [str(head) for head in self.heads]

    def check(self, grid: HeadGrid) -> None:
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


def write_heads(path: Path, file: HeadFile) -> None:
    """Write heads to a file; raises StoreFailed."""
    grid = {"layers": file.grid.layers, "heads": list(file.grid.heads_per_layer)}
    content = {
        "schema": SCHEMA,
        "kind": KIND,
        "model": {"name": file.model, "fingerprint": file.fingerprint},
        "grid": grid | {"group_sizes": list(file.grid.group_sizes)},
        "mode": MODE,
        "heads": file.names,
        "evidence": dict(file.evidence),
    }
    try:
        path.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as error:
        raise StoreFailed(
            f"{path} could not be written ({error.strerror}); free disk space or name another "
            "place."
        ) from error


def describe_grid(grid: HeadGrid) -> str:
    """A grid in a few words."""
    counts = set(grid.heads_per_layer)
    each = f"{counts.pop()} heads each" if len(counts) == 1 else f"{grid.size} heads in all"
    return f"{grid.layers} layers of {each}"


def _parsed(content: Any) -> HeadFile:
    if not isinstance(content, dict):
        raise ValueError("it is no JSON object")
    if content["kind"] != KIND or content["schema"] != SCHEMA:
        raise ValueError(f"kind {content['kind']!r}, schema {content['schema']!r}")
    if content["mode"] != MODE:
        raise ValueError(f"mode {content['mode']!r}, not {MODE!r}")
    names = content["heads"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its heads are no list of names")
    grid = HeadGrid(*(tuple(map(int, content["grid"][key])) for key in ("heads", "group_sizes")))
    model, heads = content["model"], tuple(grid.named_in(names))
    fingerprint, evidence = model["fingerprint"], dict(content["evidence"])
    return HeadFile(heads, grid, str(model["name"]), fingerprint, evidence)
