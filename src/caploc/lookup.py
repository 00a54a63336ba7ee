"""A name in a table, or the nearest names that exist."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, get_args

from caploc.errors import UnknownName

T = TypeVar("T")
LISTED = 20  # names beyond this would bury the sentence


def pick(table: Mapping[str, T], name: str, kind: str) -> T:
    """Return `table[name]`.

    Raises UnknownName, naming the nearest entry and what the table holds.
    """
    if name in table:
        return table[name]
    raise unknown(table, name, kind)


def nearest(names: Iterable[str], name: str) -> str | None:
    """The name that ends in another, or is spelled most like it, in whatever case; None if none is.

    `past` is short for `words/past`.
    """
    known = {each.lower(): each for each in names}
    whole = sorted(each for each in known if name and each.endswith(f"/{name.lower()}"))
    near = whole or get_close_matches(name.lower(), list(known), n=1)
    return known[near[0]] if near else None


def unknown(names: Iterable[str], name: str, kind: str, where: str = "") -> UnknownName:
    """Build the error for a name that is not among `names`; `where` says how to list them all."""
    known = sorted(names)
    near = nearest(known, name)
    hint = f" Did you mean {near!r}?" if near else ""
    listed = f" Known: {', '.join(known)}." if len(known) <= LISTED else ""
    return UnknownName(f"There is no {kind} {name!r}.{hint}{listed}{' ' + where if where else ''}")


def list_keys(kind: Any, place: Sequence[int | str]) -> list[str]:
    """List the keys that the tables at a place of a file may have, whose whole is of this model."""

    def model_in(annotation: Any) -> Any:
        if hasattr(annotation, "model_fields"):
            return annotation
        return next(filter(None, map(model_in, get_args(annotation))), None)

    for step in (*place, None):
        fields = {field.alias or name: field for name, field in kind.model_fields.items()}
        kind = model_in(fields[step].annotation) if step in fields else kind
    return list(fields)
