"""A model with heads knocked out, from what another framework's user says of it."""

from collections.abc import Mapping
from contextlib import suppress
from inspect import Parameter, signature
from typing import Any

from caploc.engine import BatchEngine
from caploc.errors import BadOption, pick
from caploc.heads import Mask, read_heads
from caploc.models.loading import LoadedModel, load_model

LOADING = {
    name: each for name, each in signature(load_model).parameters.items()
    if each.kind is Parameter.KEYWORD_ONLY
}  # fmt: skip


def open_engine(
    name: str, knockout: str | None, batch_size: Any, loading: Mapping[str, Any]
) -> tuple[BatchEngine[LoadedModel], Mask]:
    """Load a model: its engine, and the mask of the heads in the file `knockout` (none: no head).

    `loading` are arguments of `caploc.load_model`, `batch_size` caps the rows that run at a time.
    Raises CaplocError in one sentence, if an argument, the file or the model cannot be used.
    """
    for argument in loading:
        pick(LOADING, argument, "argument of a caploc model beside knockout")
    rows = None
    if batch_size is not None:
        digits = isinstance(batch_size, int | str) and not isinstance(batch_size, bool)
        with suppress(ValueError):
            rows = int(batch_size) if digits else None
        if rows is None or rows < 1:
            raise BadOption(
                f"A batch has 1 row or more, a whole number; got {batch_size}. Without one it is "
                "sized by memory."
            )
    file = read_heads(knockout) if knockout else None
    loaded = load_model(name, **loading)
    if file is not None:
        file.check(loaded.grid)
    mask = loaded.grid.mask(file.heads if file else ())
    return BatchEngine(loaded, rows), mask
