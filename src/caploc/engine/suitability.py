"""Proofs that an engine answers as plain transformers does, on random tokens, before it is used.

Packed rows must give the model's logits (`packed_model`), vLLM its log-probabilities
(`gives_plain_tokens`).
"""

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, product
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from caploc.components import Mask
from caploc.engine.asks import INTACT, MaskNumbers
from caploc.engine.attention import KeySlots, SharedSegments, Unsupported
from caploc.engine.passes import Chunk, FedRow, IntactRecords, PackedModel
from caploc.engine.planning import BatchPlan, PlannedRow
from caploc.models.cutting import knocked_out
from caploc.models.loading import CutModel
from caploc.models.projections import stated, text_config
from caploc.models.proof import masks_to_prove, root_mean_square, tolerance

LOG = logging.getLogger(__name__)
UNLIMITED = 10**9
# Rotary positions that depend on the longest row of a batch.
MOVING_ROTARY = frozenset({"dynamic", "longrope"})
LAYERS_KNOWN = frozenset({"full_attention", "sliding_attention"})
PREFIX, OWN, AGAIN = 4, (3, 5, 4), 2  # tokens of the proof: shared, each row's own, and of steps
# Rows and padding of plain batches that show what rounding does. In bfloat16 they differ from a row
# by itself by .03 to .14 of the logits' spread (SmolLM2, Gemma 3 270M), packed rows by up to 1.8
# times as much; rows whose mask is not heeded by .24 to 2.1.
SHAPES, ROUNDING = ((2, 3), (3, 8), (8, 24)), 2.5
Tokens = Sequence[int]
Shaped = Callable[[int, int], Tensor]


def packed_model(loaded: CutModel) -> PackedModel | None:
    """Make the model ready for packed rows, or return None if they would not give its answers.

    Shown on a few random tokens: rows of different lengths packed end to end, a shared prefix under
    each row's own mask, a start above the first layer and steps that go on from kept keys must give
    the logits of plain forward passes.
    """
    longest = longest_packed(loaded.model)
    if longest < PREFIX + max(OWN) + AGAIN:
        return None
    packed = PackedModel(loaded, longest)
    if packed.stack.layers and _serves(packed):
        return packed
    LOG.info("%s is served the plain way", loaded.name)
    return None


def _serves(packed: PackedModel) -> bool:
    try:
        return gives_plain_logits(packed)
    # the ways in which a model can be built otherwise than packed rows suppose
    except (Unsupported, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        LOG.info("%s: packed rows failed: %s", packed.loaded.name, error)
        return False


def longest_packed(model: PreTrainedModel) -> int:
    """Find the longest row that packed rows can serve: none for some models, a window for others.

    Packed rows attend to everything before them, so that a row must fit a sliding window whole.
    """
    config: Any = text_config(model)
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - LAYERS_KNOWN or moves_rotary(model):
        return 0
    windows = [window for window in stated(config, "sliding_window") if window]
    used = getattr(config, "use_sliding_window", True) and kinds != {"full_attention"}
    return min(windows) if windows and used else UNLIMITED


def moves_rotary(model: PreTrainedModel) -> bool:
    """Tell whether a row's rotary positions depend on the longest row of its batch."""
    rotary = getattr(text_config(model), "rope_parameters", None) or {}
    # some models have a set of rotary parameters for each kind of layer
    every = [rotary, *(part for part in rotary.values() if isinstance(part, dict))]
    return any(part.get("rope_type") in MOVING_ROTARY for part in every)


@torch.inference_mode()
def gives_plain_logits(packed: PackedModel) -> bool:
    """Tell whether packed rows give the logits of plain forward passes.

    In two bytes a number, where real models' logits move with a batch's shape: nearly as well as
    plain passes of other shapes do.
    """
    generator = torch.Generator().manual_seed(0)
    vocabulary = text_config(packed.model).vocab_size

    def draw(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    prefix, own, again = draw(PREFIX), [draw(n) for n in OWN], [draw(AGAIN) for _ in OWN]
    # one head at each end, for what lies below and above a cut; and heads of every layer
    every = masks_to_prove(packed.loaded.grid, 0)[1].numpy()
    masks = [*(_one_head(packed, layer) for layer in (0, packed.depth - 1)), every]
    got = packed_logits(packed, prefix, own, again, masks)
    errors, allowed, rows = list[float](), tolerance(packed.model), list[Shaped]()
    for row, mask in enumerate(masks):
        tokens, heads = [*prefix, *own[row], *again[row]], torch.from_numpy(mask)
        rows.append(partial(plain_logits, packed.loaded, tokens, heads, 1 + AGAIN))
        errors.append(_relative_error(got[row].float().cpu(), rows[row](1, 0)))
    if max(errors) <= allowed or packed.model.dtype.itemsize > 2:
        return max(errors) <= allowed
    moved = [_relative_error(plain(*shape), plain(1, 0)) for plain in rows for shape in SHAPES]
    return max(errors) <= ROUNDING * max(moved)


@torch.inference_mode()
def plain_logits(
    loaded: CutModel, tokens: Tokens, heads: Tensor, count: int, rows: int = 1, padding: int = 0
) -> Float[Tensor, "said vocabulary"]:
    """Compute the last `count` logits of a text under a mask, in float32 on the host.

    It is read in a batch of so many such rows, with so much padding after each.
    """
    ids = torch.tensor([[*tokens, *[0] * padding]] * rows, device=loaded.device)
    read = (torch.arange(ids.shape[1], device=loaded.device) < len(tokens)).long().expand_as(ids)
    with knocked_out(loaded.projections, loaded.grid, heads.expand(rows, -1)):
        logits: Tensor = loaded.model(input_ids=ids, attention_mask=read, use_cache=False).logits
    return logits[0, len(tokens) - count : len(tokens)].float().cpu()


def _relative_error(found: Tensor, truth: Tensor) -> float:
    """Return the root mean square of an error as a share of how far the truth is spread."""
    error = float((found - truth).square().mean().sqrt() / truth.std())
    return error if math.isfinite(error) else math.inf


def _one_head(packed: PackedModel, layer: int) -> Mask:
    """Mask one head, in the first layer from `layer` on (or back) that has heads."""
    slices = packed.loaded.grid.layer_slices
    order = [*range(layer, packed.depth), *reversed(range(layer))]
    mask = np.zeros(packed.loaded.grid.size, dtype=bool)
    mask[next(slices[n].start for n in order if slices[n].stop > slices[n].start)] = True
    return mask


def packed_logits(
    packed: PackedModel,
    prefix: list[int],
    own: list[list[int]],
    again: list[list[int]],
    masks: list[Mask],
) -> list[Float[Tensor, "said vocabulary"]]:
    """Return each row's logits after its own last token, and after the token of each step."""
    numbers = MaskNumbers(packed.loaded.grid)
    rows = [PlannedRow(n, n, numbers.number(mask)) for n, mask in enumerate(masks)]
    shape = len(own), UNLIMITED, UNLIMITED
    plan = BatchPlan((tuple(prefix),), (0,) * len(own), True, (), *shape, smallest=True)
    intact = IntactRecords(packed, plan, numbers.all)
    before = intact.prefix_segment(0)
    recorded = [Chunk(tokens, numbers.all[INTACT], [len(tokens) - 1], before) for tokens in own]
    intact.record(range(len(own)), recorded)
    room = KeySlots(len(own), max(map(len, own)) + AGAIN, packed.depth)
    segments, first = intact.segments(rows), []
    for number, row in enumerate(rows):
        record, length, start = intact.records[number], len(own[number]), intact.start(row)
        chunk = Chunk(own[number], numbers.all[row.mask], [length - 1], segments[number])
        chunk.residual = record.residual.get(start)
        keeper = packed.into_slots(room, [number], [chunk])
        first.append(packed.read(intact.table, [chunk], start, keeper))
        room.share(start, [number], record.segment)
    reading = SharedSegments(packed.depth, packed.device, packed.model.dtype)
    reading.keep([*segments, before])
    shared = reading.readers(segments)
    more = []
    for turn in range(AGAIN):
        fed = [
            FedRow(again[n][turn], numbers.all[row.mask], len(own[n]) + turn, segments[n])
            for n, row in enumerate(rows)
        ]
        more.append(packed.step(intact.table, room, fed, shared))
    return [torch.cat(pair) for pair in zip(first, torch.stack(more, 1), strict=True)]


OWN_TOKENS, SAID_TOKENS = (3, 5), 3  # tokens of the proof: each prompt's own, and those said


@dataclass(frozen=True)
class Continued:
    """The tokens said after a prompt, and their log-probabilities where they were wanted."""

    tokens: list[int]
    logprobs: list[float]


# (prompts, masks, the number of each prompt's mask) -> what was said to each
Continues = Callable[[Sequence[tuple[int, ...]], MaskNumbers, Sequence[int]], list[Continued]]


def gives_plain_tokens(loaded: CutModel, continues: Continues, page: int) -> str | None:
    """Say why an engine does not give a model's own log-probabilities; None if it does.

    Shown on random tokens: prompts of different lengths after one prefix that fills a page of keys,
    each under no mask, and under two that cut half of the heads each. An error is held against what
    the cut changes, so that an engine that reads nothing of a prompt but its end cannot pass.
    """
    masks = MaskNumbers(loaded.grid)
    generator, config = np.random.default_rng(0), text_config(loaded.model)
    window = getattr(config, "max_position_embeddings", None) or page + 32
    length = max(1, min(page + 2, window - max(OWN_TOKENS) - SAID_TOKENS))
    prefix = generator.integers(config.vocab_size, size=length).tolist()
    half = np.arange(loaded.grid.size) % 2 == 0
    tails = [generator.integers(config.vocab_size, size=own).tolist() for own in OWN_TOKENS]
    cases = list(product((np.zeros_like(half), half, ~half), tails))
    numbers = [masks.number(mask) for mask, _ in cases]
    prompts = [(*prefix, *tail) for _, tail in cases]
    try:
        found = continues(prompts, masks, numbers)
    # the ways in which a model can be built otherwise than an engine supposes
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, KeyError) as error:
        return f"fails on this model ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
    first, errors = list[Tensor](), list[float]()  # the logits after each prompt
    for prompt, number, said in zip(prompts, numbers, found, strict=True):
        heads = masks.all[number].heads
        logits = plain_logits(loaded, [*prompt, *said.tokens[:-1]], heads, len(said.tokens))
        wanted = torch.tensor(said.tokens)[:, None]
        truth = logits.log_softmax(-1).gather(1, wanted)[:, 0]
        errors.append(root_mean_square(torch.tensor(said.logprobs) - truth))
        first.append(logits[0])
    intact, cut = first[: len(tails)], first[len(tails) :]
    moved = [root_mean_square(a - b) for a, b in zip(cut, cycle(intact), strict=False)]
    effect = max(0.0, *moved)
    if not max(errors) <= tolerance(loaded.model) * effect:
        return "does not give this model's own predictions, to rounding"
    return None
