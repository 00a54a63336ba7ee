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


def opened(
    name: str, knockout: str | None, batch_size: int | None, loading: Mapping[str, Any]
) -> tuple[BatchEngine[LoadedModel], Mask]:
    """The engine of a model, and the mask of the heads in the file `knockout` (none: no head).

    `loading` are arguments of `caploc.load_model`, `batch_size` caps the rows that run at a time.

    Raises:
        CaplocError: in one sentence, if an argument, the file or the model cannot be used.
    """
    for argument in loading:
        if argument not in LOADING:
            raise unknown(LOADING, argument, "argument of a caploc model beside knockout")
    if batch_size is not None and int(batch_size) < 1:
        raise BadOption(f"A batch has 1 row or more; got {batch_size}.")
    file = read_heads(knockout) if knockout else None
    loaded = load_model(name, **loading)
    if file is not None:
        file.check(loaded.grid)
    mask = loaded.grid.mask(file.heads if file else ())
    return BatchEngine(loaded, None if batch_size is None else int(batch_size)), mask
