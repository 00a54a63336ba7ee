"""A model with heads knocked out, from what another framework's user says of it."""

from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from caploc.engine import BatchEngine
from caploc.errors import BadOption
from caploc.headfile import read_heads
from caploc.heads import Mask
from caploc.lookup import unknown
from caploc.models.loading import LoadedModel, load_model

LOADING = [
    name for name, each in signature(load_model).parameters.items()
    if each.kind is Parameter.KEYWORD_ONLY
]  # fmt: skip
REFUSED = "A batch has 1 row or more, a whole number; got {}. Without one it is sized by memory."


def open_engine(
    name: str, knockout: str | None, batch_size: Any, loading: Mapping[str, Any]
) -> tuple[BatchEngine[LoadedModel], Mask]:
    """Load a model: its engine, and the mask of the heads in the file `knockout` (none: no head).

    `loading` are arguments of `caploc.load_model`, `batch_size` caps the rows that run at a time.

    Raises:
        CaplocError: in one sentence, if an argument, the file or the model cannot be used.
    """
    for argument in loading:
        if argument not in LOADING:
            raise unknown(LOADING, argument, "argument of a caploc model beside knockout")
    rows = None if batch_size is None else parse_rows(batch_size)
    file = read_heads(knockout) if knockout else None
    loaded = load_model(name, **loading)
    if file is not None:
        file.check(loaded.grid)
    mask = loaded.grid.mask(file.heads if file else ())
    return BatchEngine(loaded, rows), mask


def parse_rows(batch_size: Any) -> int:
    """Return the most rows that run at a time, from a number or its digits.

    Raises:
        BadOption: if it is neither, or less than 1.
    """
    if not isinstance(batch_size, int | str) or isinstance(batch_size, bool):
        raise BadOption(REFUSED.format(batch_size))
    try:
        rows = int(batch_size)
    except ValueError:
        raise BadOption(REFUSED.format(batch_size)) from None
    if rows < 1:
        raise BadOption(REFUSED.format(batch_size))
    return rows
