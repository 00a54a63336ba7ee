"""Knock out heads of a model, for a `with` block; what can take a head's place other than zero.

That is its mean over reference texts, or its output on one of them. The texts should resemble what
the model is asked, and hold none of the examples asked.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.components import Grid, Head, HeadFile, Heads
from caploc.errors import BadData, BadOption
from caploc.models.cutting import Projections, Replacement, knocked_out, list_sites
from caploc.models.guard import check_head
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import LoadedModel
from caploc.models.placement import input_device
from caploc.models.projections import find_projections
from caploc.models.proof import prove_heads
from caploc.models.substitutes import Substitutes

# wider than what is allowed, so that a mistake meets a sentence and not a type checker
AnyModel: TypeAlias = LoadedModel | nn.Module
KnockedOut: TypeAlias = Sequence[Head | str] | HeadFile | np.ndarray | Tensor
MODES = ("zero", "mean", "resample")
_proved: WeakKeyDictionary[PreTrainedModel, tuple[Projections, Heads]] = WeakKeyDictionary()


@contextmanager
def knockout(
    model: AnyModel,
    heads: KnockedOut,
    *,
    mode: str = "zero",
    reference: "ReferenceOutputs | None" = None,
    seed: int = 0,
) -> Iterator[None]:
    """Knock out heads inside the block, in every forward pass of this thread.

    `heads` are names such as "L2H3", or a boolean mask in which True
    is knocked out: one row of (heads,) for all rows of a batch, or (rows, heads), one for each; or
    what `read_heads` read from a file, which must be of a model with as many heads in each layer.
    `model` is a `LoadedModel` or a causal language model of transformers, whose heads are found and
    proved at its first use.

    A head's output is replaced by zero (`mode="zero"`), by its mean over the reference texts
    ("mean"; at each position if the reference was recorded per position, and the overall mean past
    its longest text), or by its output on a reference text at the same position ("resample"; the
    text is drawn from `seed` for each mask and head, and its last output holds where it ends).
    Blocks may be nested; on a head that both knock out, the inner one holds.

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
    positions = Positions(causal)
    replacement = _replacement(grid, len(masks), mode, reference, positions, seed)
    following = nullcontext() if replacement is None else positions.followed()
    with following, knocked_out(projections, grid, masks, replacement):
        yield


def reference_outputs(
    model: AnyModel, texts: Sequence[str] | Sequence[Sequence[int]], *, per_position: bool = False
) -> "ReferenceOutputs":
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
    return record_outputs(causal, projections, grid, texts, per_position=per_position)  # type: ignore[arg-type]


def _parts(model: AnyModel) -> tuple[PreTrainedModel, Projections, Heads]:
    if isinstance(model, LoadedModel):
        return model.model, model.projections, model.grid
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
    return model, *_proved[model]


def _masks(
    grid: Heads, heads: KnockedOut
) -> Bool[Tensor, "rows heads"] | Float[Tensor, "rows heads"]:
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


def _replacement(
    grid: Heads,
    rows: int,
    mode: str,
    reference: "ReferenceOutputs | None",
    positions: "Positions",
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


Values = Float[Tensor, "texts positions _ _"]


@dataclass(frozen=True, eq=False)
class ReferenceOutputs:
    """What every head hands to its output projection on reference texts.

    `means` has for each layer the mean over all tokens, shape (heads, width), or None for a layer
    without heads. If recorded per position, `values` has for each layer shape (texts, positions,
    heads, width) and `lengths` the texts' tokens; past a text's length its values are zero and
    count nowhere. Otherwise both are empty.
    """

    grid: Grid
    means: list[Float[Tensor, "_ _"] | None]
    values: list[Values | None] = field(default_factory=list)
    lengths: Int[Tensor, " texts"] = field(default_factory=lambda: torch.zeros(0, dtype=torch.long))

    @property
    def per_position(self) -> bool:
        return bool(self.values)

    def mean_at(self, layer: int) -> Float[Tensor, "positions layer_heads width"] | None:
        """Return the layer's mean at each position over texts that reach it, then the overall."""
        values, overall = self.values[layer], self.means[layer]
        if values is None or overall is None:
            return None
        reached = torch.arange(values.shape[1]) < self.lengths[:, None]
        counts = reached.sum(0)[:, None, None]
        return torch.cat([values.float().sum(0) / counts, overall[None]])


def check_texts(tokens: Sequence[Sequence[int]]) -> None:
    """Refuse reference texts that are none, or have no tokens."""
    if not tokens or not all(map(len, tokens)):
        raise BadData("The reference needs at least one text, and each at least one token.")


def record_outputs(
    model: PreTrainedModel,
    projections: Projections,
    grid: Grid,
    tokens: Sequence[Sequence[int]],
    *,
    per_position: bool,
) -> ReferenceOutputs:
    """Run each text by itself, and keep what every head hands on."""
    check_texts(tokens)
    totals: list[Tensor | None] = [None] * grid.layers
    texts: list[list[Tensor]] = [[] for _ in range(grid.layers)]
    for text in tokens:
        for layer, values in enumerate(_heads_outputs(model, projections, grid, text)):
            if values is not None:
                total = values.double().sum(0)  # a sum of many tokens in half precision drifts
                before = totals[layer]
                totals[layer] = total if before is None else before + total
                if per_position:
                    texts[layer].append(values)
    count = sum(len(text) for text in tokens)
    means = [None if total is None else (total / count).float() for total in totals]
    if not per_position:
        return ReferenceOutputs(grid, means)
    padded = [nn.utils.rnn.pad_sequence(t, batch_first=True) if t else None for t in texts]
    return ReferenceOutputs(grid, means, padded, torch.tensor([len(text) for text in tokens]))


@torch.no_grad()
def _heads_outputs(
    model: PreTrainedModel, projections: Projections, grid: Grid, text: Sequence[int]
) -> list[Float[Tensor, "positions _ _"] | None]:
    """Return, on the host, what each layer's heads hand on at each token of the text."""
    seen: list[Tensor | None] = [None] * grid.layers

    def listen(layer: int, heads: int, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[layer] = args[0].detach().reshape(len(text), heads, -1).cpu()

    listening = (
        projection.register_forward_pre_hook(partial(listen, layer, columns.stop - columns.start))
        for layer, columns, projection in list_sites(projections, grid)
    )
    with temporary_hooks(listening):
        ids = torch.tensor([list(text)], device=input_device(model))
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return seen


class Positions:
    """Knows where in its text each token of the forward pass under way stands, from 0."""

    def __init__(self, model: PreTrainedModel) -> None:
        # the decoder and not the model, so that a caller may leave out the language-model head
        self._decoder = model.get_decoder()
        self._signature = inspect.signature(self._decoder.forward)
        self._now: Int[Tensor, "rows tokens"] | None = None

    def followed(self) -> AbstractContextManager[None]:
        """Watch the model's forward passes, for a block."""
        note = self._decoder.register_forward_pre_hook(self._note, with_kwargs=True)
        return temporary_hooks([note])

    def now(self, like: Tensor) -> Int[Tensor, "rows tokens"]:
        """Return positions on the device of `like`; one row if the same for all of the batch."""
        if self._now is None:
            raise BadOption("A layer was run by itself; modes other than 'zero' need the model.")
        return self._now.to(like.device)

    def _note(self, module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        given = self._signature.bind_partial(*args, **kwargs).arguments
        given |= given.pop("kwargs", {})
        ids = given.get("input_ids")
        tokens = (ids if ids is not None else given["inputs_embeds"]).shape[1]
        mask, own, cache = (
            given.get(name) for name in ("attention_mask", "position_ids", "past_key_values")
        )
        # A model may number its positions otherwise than by token of the text (OPT starts at 2,
        # and without `position_ids` padding counts), so the padding mask comes first.
        if isinstance(mask, Tensor) and mask.ndim == 2:
            self._now = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, -tokens:]
        elif isinstance(own, Tensor) and own.ndim == 2:
            self._now = own
        else:
            past = int(cache.get_seq_length()) if cache is not None else 0
            self._now = torch.arange(past, past + tokens)[None]


def mean_replacement(reference: ReferenceOutputs, positions: Positions | None) -> Replacement:
    """Replace by each head's mean; with `positions` at the position, or overall past all texts."""
    tables = reference.means
    if positions is not None:
        tables = [reference.mean_at(layer) for layer in range(reference.grid.layers)]

    def mean(layer: int, per_head: Tensor) -> Tensor:
        table = _like(tables[layer], per_head)
        if positions is None:
            return table
        return _shaped(table[positions.now(table).clamp(max=len(table) - 1)], per_head)

    return mean


def resample_replacement(
    reference: ReferenceOutputs, positions: Positions, rows: int, seed: int
) -> Replacement:
    """Replace by the output, at the position or last, on a text drawn for each mask and head."""
    drawn = np.random.default_rng(seed).integers(
        len(reference.lengths), size=(rows, reference.grid.size)
    )
    slices = reference.grid.layer_slices

    def sample(layer: int, per_head: Tensor) -> Tensor:
        values = _like(reference.values[layer], per_head)
        texts = torch.from_numpy(drawn[:, slices[layer]])[:, None, :]
        last = reference.lengths[texts].to(values.device) - 1
        where = torch.minimum(positions.now(values)[..., None], last)
        heads = torch.arange(values.shape[2], device=values.device)
        return _shaped(values[texts.to(values.device), where, heads], per_head)

    return sample


def source_replacement(
    substitutes: Substitutes, sources: Int[Tensor, " rows"], positions: Positions
) -> Replacement:
    """Replace by what each row's source hands on at the positions of its tokens."""

    def substitute(layer: int, per_head: Tensor) -> Tensor:
        where = positions.now(per_head)
        entries = substitutes.entries(sources.to(where.device)[:, None], where)
        values = substitutes.values(layer, per_head)[entries]
        takes = substitutes.takes(entries)[..., None, None]
        return torch.where(_shaped(takes, per_head), _shaped(values, per_head), per_head)

    return substitute


def _like(values: Tensor | None, per_head: Tensor) -> Tensor:
    assert values is not None, "a layer without heads carries no hook"
    return values.to(per_head)


def _shaped(values: Tensor, per_head: Tensor) -> Tensor:
    """Make rows and tokens one axis where the projection sees them so."""
    if per_head.ndim == 4:
        return values
    rows = len(per_head) // values.shape[1]
    return values.expand(rows, *values.shape[1:]).flatten(0, 1)
