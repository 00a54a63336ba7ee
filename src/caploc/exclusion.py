"""Heads that a study leaves in: by name, or of a file."""

from collections.abc import Sequence
from typing import Any

from caploc.components import GridOfHeads, Head, Heads, read_heads
from caploc.errors import BadOption


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
