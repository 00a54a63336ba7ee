"""Which models and which options packed rows can serve; all others go the plain way."""

import logging
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from caploc.engine.asks import INTACT, MaskNumbers
from caploc.engine.attention import KeySlots, Unsupported, shared_layers
from caploc.engine.packed import Chunk, FedRow, IntactRecords, PackedModel
from caploc.engine.plain import greedy_options, leaders_verdict
from caploc.engine.planning import BatchPlan, PlannedRow
from caploc.grid import Mask
from caploc.models.cutting import knocked_out
from caploc.models.loading import CutModel
from caploc.models.projections import stated, text_config
from caploc.models.proof import tolerance

LOG = logging.getLogger(__name__)
UNLIMITED = 10**9
# What a generation config may say beside what makes no difference to greedy decoding.
HARMLESS = frozenset(
    "bos_token_id cache_implementation do_sample eos_token_id max_length max_new_tokens "
    "output_attentions output_hidden_states pad_token_id return_dict_in_generate temperature top_k "
    "top_p min_p transformers_version use_cache _from_model_config".split()
)
# Rotary positions that depend on the longest row of a batch.
MOVING_ROTARY = frozenset({"dynamic", "longrope"})
LAYERS_KNOWN = frozenset({"full_attention", "sliding_attention"})
PREFIX, OWN, AGAIN = 4, (3, 5), 2  # tokens of the proof: shared, each row's own, a step's


def packed_model(loaded: CutModel) -> PackedModel | None:
    """Make the model ready for packed rows, or return None if they would not give its answers.

    Shown on a few random tokens: rows of different lengths packed end to end, a shared prefix under
    each row's own mask, a start above the first layer and steps that go on from kept keys must give
    the logits of plain forward passes; with a narrow last layer, or else with a whole one.
    """
    longest = longest_packed(loaded.model)
    if longest < PREFIX + max(OWN) + AGAIN:
        return None
    for narrows in (True, False):
        packed = PackedModel(loaded, longest, narrows=narrows)
        if packed.stack.layers and leaders_verdict(loaded, _serves(packed)):
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
    rotary = getattr(config, "rope_parameters", None) or {}
    # some models have a set of rotary parameters for each kind of layer
    every = [rotary, *(part for part in rotary.values() if isinstance(part, dict))]
    if kinds - LAYERS_KNOWN or any(part.get("rope_type") in MOVING_ROTARY for part in every):
        return 0
    windows = [window for window in stated(config, "sliding_window") if window]
    used = getattr(config, "use_sliding_window", True) and kinds != {"full_attention"}
    return min(windows) if windows and used else UNLIMITED


def greedy_only(model: PreTrainedModel, options: dict[str, Any]) -> bool:
    """Tell whether these arguments ask for the likeliest token each time and nothing else."""
    config = deepcopy(model.generation_config)
    unknown: Any = config.update(**greedy_options(options))
    said = {name for name, value in config.to_diff_dict().items() if value is not None}
    return not unknown and not said - HARMLESS


def end_tokens(model: PreTrainedModel, options: dict[str, Any]) -> list[int]:
    """List the tokens that end an answer."""
    ends: Any = options.get("eos_token_id", model.generation_config.eos_token_id)
    return [] if ends is None else list(ends) if isinstance(ends, list | tuple) else [int(ends)]


@torch.inference_mode()
def gives_plain_logits(packed: PackedModel, seed: int = 0) -> bool:
    """Tell whether packed rows give the logits of plain forward passes."""
    generator = torch.Generator().manual_seed(seed)
    vocabulary = text_config(packed.model).vocab_size

    def draw(count: int) -> list[int]:
        return torch.randint(vocabulary, (count,), generator=generator).tolist()

    prefix, own, again = draw(PREFIX), [draw(n) for n in OWN], [draw(AGAIN) for _ in OWN]
    masks = [_one_head(packed, layer) for layer in (0, packed.depth - 1)]
    got = packed_logits(packed, prefix, own, again, masks)
    allowed = tolerance(packed.model)
    for row, mask in enumerate(masks):
        tokens = torch.tensor([[*prefix, *own[row], *again[row]]], device=packed.device)
        with knocked_out(
            packed.loaded.projections, packed.loaded.grid, torch.from_numpy(mask[None])
        ):
            logits = packed.model(
                input_ids=tokens, attention_mask=torch.ones_like(tokens), use_cache=False
            ).logits[0]
        truth = logits[PREFIX + OWN[row] - 1 :].float()
        error = (got[row].float() - truth).square().mean().sqrt()
        if not error <= allowed * truth.std():
            return False
    return True


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
    """Return each row's logits after its own last token, and after each token of a step."""
    numbers, every = MaskNumbers(packed.loaded.grid), tuple(range(1, packed.depth))
    rows = [PlannedRow(n, n, numbers.number(mask)) for n, mask in enumerate(masks)]
    plan = BatchPlan(
        (tuple(prefix),), (0,) * len(own), every, (), len(own), UNLIMITED, UNLIMITED, smallest=True
    )
    intact = IntactRecords(packed, plan, numbers.all)
    before = intact.prefix_segment(0)
    recorded = [Chunk(tokens, numbers.all[INTACT], [len(tokens) - 1], before) for tokens in own]
    intact.record(range(len(own)), recorded, every)
    room = KeySlots(len(own), max(map(len, own)) + AGAIN, packed.depth)
    segments, first = intact.segments(rows), []
    for number, row in enumerate(rows):
        record, length, start = intact.records[number], len(own[number]), intact.start(row)
        chunk = Chunk(own[number], numbers.all[row.mask], [length - 1], segments[number])
        chunk.residual = record.residual.get(start)
        keeper = packed.into_slots(room, [number], [chunk])
        first.append(packed.read(intact.table, [chunk], start, keeper))
        room.share(start, [number], record.segment)
    fed = [
        FedRow(again[number], numbers.all[row.mask], len(own[number]), segments[number])
        for number, row in enumerate(rows)
    ]
    logits = packed.step(intact.table, room, fed, shared_layers(segments, packed.depth))
    more = logits.reshape(len(own), AGAIN, -1)
    return [torch.cat(pair) for pair in zip(first, more, strict=True)]
