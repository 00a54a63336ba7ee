"""Knock out heads of a model, for a `with` block: the public way, and the engine's own."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.errors import BadOption
from caploc.headfile import HeadFile
from caploc.heads import Head, HeadGrid
from caploc.models.cutting import Projections, Replacement, knocked_out, replaced
from caploc.models.loading import LoadedModel
from caploc.models.projections import locate
from caploc.models.proof import prove
from caploc.models.replacements import (
    Positions,
    ReferenceOutputs,
    mean_replacement,
    record,
    resample_replacement,
)

__all__ = ["knocked_out", "knockout", "reference_outputs"]

# wider than what is allowed, so that a mistake meets a sentence and not a type checker
AnyModel: TypeAlias = LoadedModel | nn.Module
Heads: TypeAlias = Sequence[Head | str] | HeadFile | np.ndarray | Tensor
MODES = ("zero", "mean", "resample")
_proved: WeakKeyDictionary[PreTrainedModel, tuple[Projections, HeadGrid]] = WeakKeyDictionary()


@contextmanager
def knockout(
    model: AnyModel,
    heads: Heads,
    *,
    mode: str = "zero",
    reference: ReferenceOutputs | None = None,
    seed: int = 0,
) -> Iterator[None]:
    """Knock out heads inside the block, in every forward pass of this thread.

    `heads` are names such as "L2H3", or a boolean mask in which True is knocked out: one row of
    (heads,) for all rows of a batch, or (rows, heads), one for each; or what `read_heads` read from
    a file, which must be of a model with as many heads in each layer. `model` is a `LoadedModel` or
    a causal language model of transformers, whose heads are found and proved at its first use.

    A head's output is replaced by zero (`mode="zero"`), by its mean over the reference texts
    ("mean"; at each position if the reference was recorded per position, and the overall mean past
    its longest text), or by its output on a reference text at the same position ("resample"; the
    text is drawn from `seed` for each mask and head, and starts again where it ends). Blocks may be
    nested; on a head that both knock out, the inner one holds.

        with knockout(model, ["L2H3", "L0H1"]):
            model.generate(**inputs)

    Raises:
        UnknownName: if the model has no such head.
        BadOption: if a name, a mask's shape, the mode or the reference does not fit.
        ModelRefused: if the model's heads are not found or fail the proof.
        ModelBusy: in a forward pass from another thread.
    """
    causal, projections, grid = _parts(model)
    masks = _masks(grid, heads)
    with ExitStack() as stack:
        positions = Positions(causal)
        replacement = _replacement(grid, len(masks), mode, reference, positions, seed)
        if replacement is not None:
            stack.enter_context(positions.followed())
        stack.enter_context(replaced(projections, grid, masks, replacement))
        yield


def reference_outputs(
    model: AnyModel, texts: Sequence[str] | Sequence[Sequence[int]], *, per_position: bool = False
) -> ReferenceOutputs:
    """Record what every head hands on over reference texts, for `knockout`'s other modes.

    `texts` are strings (for a `LoadedModel`, which has a tokenizer) or lists of token ids.
    `per_position` keeps every token's values: needed for "resample", and for a mean at each
    position; it takes memory for texts x tokens x heads x head width numbers.

    Raises:
        BadData: if there is no text, or a text has no token.
        BadOption: if texts are strings and the model has no tokenizer.
    """
    causal, projections, grid = _parts(model)
    if all(isinstance(text, str) for text in texts) and texts:
        if not isinstance(model, LoadedModel):
            raise BadOption(
                "A model without its tokenizer cannot read texts; give lists of token ids, or load "
                "it with load_model."
            )
        texts = [model.tokenizer(text)["input_ids"] for text in texts]
    return record(causal, projections, grid, texts, per_position=per_position)  # type: ignore[arg-type]


def _parts(model: AnyModel) -> tuple[PreTrainedModel, Projections, HeadGrid]:
    if isinstance(model, LoadedModel):
        return model.model, model.projections, model.grid
    if not isinstance(model, PreTrainedModel):
        raise BadOption(
            f"{type(model).__name__} is no model to knock heads out of; give what load_model or "
            "transformers' from_pretrained returns, not compiled or wrapped."
        )
    if model not in _proved:
        projections, grid = locate(model)
        prove(model, projections, grid)
        _proved[model] = projections, grid
    return model, *_proved[model]


def _masks(grid: HeadGrid, heads: Heads) -> Bool[Tensor, "rows heads"]:
    if isinstance(heads, HeadFile):
        heads.check(grid)
        heads = heads.heads
    if not isinstance(heads, np.ndarray | Tensor):
        if isinstance(heads, str):
            raise BadOption(
                f"heads={heads!r} is one text; give a list, such as ['L2H3', 'L0H1'], or "
                "read_heads('heads.json')."
            )
        heads = grid.mask(heads)
    masks = torch.as_tensor(heads)
    if masks.dtype != torch.bool:
        raise BadOption(
            f"A mask must be boolean, True for a head that is knocked out; got {masks.dtype}."
        )
    return masks[None] if masks.ndim == 1 else masks


def _replacement(
    grid: HeadGrid,
    rows: int,
    mode: str,
    reference: ReferenceOutputs | None,
    positions: Positions,
    seed: int,
) -> Replacement | None:
    if mode not in MODES:
        raise BadOption(f"mode={mode!r} is none of {', '.join(MODES)}.")
    if mode == "zero":
        return None
    if reference is None:
        raise BadOption(
            f"mode={mode!r} needs reference=reference_outputs(model, texts, ...): what the heads "
            "hand on where they work."
        )
    if reference.grid != grid:
        raise BadOption("The reference was recorded on a model with other heads than this one.")
    if mode == "mean":
        return mean_replacement(reference, positions if reference.per_position else None)
    if not reference.per_position:
        raise BadOption(
            "mode='resample' needs reference_outputs(model, texts, per_position=True): the outputs "
            "themselves, not their mean alone."
        )
    return resample_replacement(reference, positions, rows, seed)
