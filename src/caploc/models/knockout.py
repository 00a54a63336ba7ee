"""Knock out heads of a model, for a `with` block."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.components import Head, HeadFile, Heads
from caploc.errors import BadOption
from caploc.models.cutting import Projections, knocked_out
from caploc.models.guard import check_head
from caploc.models.loading import LoadedModel
from caploc.models.projections import find_projections
from caploc.models.proof import prove_heads

# wider than what is allowed, so that a mistake meets a sentence and not a type checker
AnyModel: TypeAlias = LoadedModel | nn.Module
KnockedOut: TypeAlias = Sequence[Head | str] | HeadFile | np.ndarray | Tensor
_proved: WeakKeyDictionary[PreTrainedModel, tuple[Projections, Heads]] = WeakKeyDictionary()


@contextmanager
def knockout(model: AnyModel, heads: KnockedOut) -> Iterator[None]:
    """Set heads to zero inside the block, in every forward pass of this thread.

    `heads` are names such as "L2H3", or a boolean mask in which True
    is knocked out: one row of (heads,) for all rows of a batch, or (rows, heads), one for each; or
    what `read_heads` read from a file, which must be of a model with as many heads in each layer.
    `model` is a `LoadedModel` or a causal language model of transformers, whose heads are found and
    proved at its first use. Blocks may be nested.

        with knockout(model, ["L2H3", "L0H1"]):
            model.generate(**inputs)

    Raises:
        UnknownName: if the model has no such head.
        BadOption: if a name or a mask's shape does not fit.
        ModelRefused: if the model's heads are not found or fail the proof.
        ModelBusy: in a forward pass from another thread.
    """
    projections, grid = _parts(model)
    with knocked_out(projections, grid, _masks(grid, heads)):
        yield


def _parts(model: AnyModel) -> tuple[Projections, Heads]:
    if isinstance(model, LoadedModel):
        return model.projections, model.grid
    if not isinstance(model, PreTrainedModel):
        raise BadOption(
            f"{type(model).__name__} is no model to knock heads out of; give what load_model or "
            "transformers' from_pretrained returns, not compiled or wrapped."
        )
    if model not in _proved:
        check_head(model.config._name_or_path or type(model).__name__, model)
        projections, grid = find_projections(model)
        prove_heads(model, projections, grid)
        _proved[model] = projections, grid
    return _proved[model]


def _masks(grid: Heads, heads: KnockedOut) -> Bool[Tensor, "rows heads"]:
    if isinstance(heads, HeadFile):
        heads.check(grid)
        heads = heads.heads
    if not isinstance(heads, np.ndarray | Tensor):
        if isinstance(heads, str):
            raise BadOption(
                f"heads={heads!r} is one text; give a list, such as ['L2H3', 'L0H1'], or "
                "read_heads('heads.json')."
            )
        return torch.from_numpy(grid.mask(heads))[None]
    masks = torch.as_tensor(heads)
    if masks.dtype != torch.bool:
        raise BadOption(
            f"A mask must be boolean, True for a head that is knocked out; got {masks.dtype}."
        )
    return masks[None] if masks.ndim == 1 else masks
