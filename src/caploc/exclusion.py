"""Heads that a study leaves in: by name, of a file, or those known to break every task."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from caploc.components import GridOfHeads, Head, HeadFile, Heads, read_heads, write_heads
from caploc.errors import BadOption
from caploc.folder import make
from caploc.models.sources import ModelSource
from caploc.naming import cache_folder

UNIVERSAL = "universal"  # the word for the model's universal heads


def universal_file(fingerprint: str) -> Path:
    """Return where a model's universal heads are kept, among what caploc keeps of models."""
    return cache_folder() / "universal" / f"{fingerprint}.json"


def keep_universal(file: HeadFile) -> Path:
    """Keep a model's universal heads for `--exclude universal`; raises StoreFailed."""
    assert file.fingerprint is not None
    path = universal_file(file.fingerprint)
    make(path.parent)
    write_heads(path, file)
    return path


def resolve_excluded(
    given: Sequence[str],
    source: Callable[[], ModelSource],
    heads: Heads,
    grid: GridOfHeads[Any],
    top: int,
) -> tuple[str, ...]:
    """Resolve names of heads, paths of head files and `universal` into names of components.

    Left in is every component of the grid that holds one of these heads; `source` finds the
    model's files.

    Raises UserError for what is none of these, heads the model does not have, or if fewer than
    `top` heads are left.
    """
    found: list[Head] = []
    for each in given:
        if each == UNIVERSAL:
            found += read_universal(source()).heads
        elif each.endswith(".json"):
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


def read_universal(source: ModelSource) -> HeadFile:
    """Read the universal heads kept for a model; raises UserError if none are kept."""
    path = universal_file(source.fingerprint())
    if not path.exists():
        raise BadOption(
            f"--exclude universal: which heads of {source.name} are universal is not known yet; "
            "`caploc universal DIR DIR`, with finished runs of two tasks or more, finds and keeps "
            "them."
        )
    return read_heads(path)
