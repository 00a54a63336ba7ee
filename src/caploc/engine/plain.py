"""The plain way, for models and options that packed rows do not know: transformers' own calls.

Rows are padded into batches (`padding.py` says which), each under its own mask; nothing is shared,
and no row leaves before the last is done. It is also the second implementation that the packed
engine is tested against.
"""

import inspect
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor, distributed
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
)

from caploc.engine.stops import Stops
from caploc.engine.wording import Prompt
from caploc.models.cutting import knocked_out
from caploc.models.loading import CutModel


@dataclass(frozen=True)
class Speech:
    """A prompt to be continued under a mask. All rows of a batch share the prompt's settings."""

    prompt: Prompt
    mask: Bool[np.ndarray, " heads"]


@dataclass(frozen=True)
class Reading:
    """Tokens to be read under a mask, and the continuations to be scored at their end."""

    inputs: tuple[int, ...]
    mask: Bool[np.ndarray, " heads"]
    wanted: list[tuple[int, ...]]


class StopStrings(StoppingCriteria):
    """A row is done when one of the stop strings appears in what it has said."""

    def __init__(self, stops: Stops, start: int, rows: int) -> None:
        """Watch answers that begin at position `start`."""
        self.stops, self.start = stops, start
        self.done = torch.zeros(rows, dtype=torch.bool)

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        """Look at the last token of every row still speaking."""
        said = input_ids[:, self.start :].tolist()
        if len(said) != len(self.done):  # beams, which change places
            stopped = [self.stops.stopped(tokens) for tokens in said]
            return torch.tensor(stopped, device=input_ids.device)
        for row in (~self.done).nonzero().flatten().tolist():
            self.done[row] = self.stops.stopped(said[row])
        return self.done.to(input_ids.device)


class Told(LogitsProcessor):
    """Every process goes on from the leader's logits, so that none takes another of two alike."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """The leader's logits."""
        told = scores.contiguous()
        distributed.broadcast(told, 0)
        return told


@torch.inference_mode()
def speak(loaded: CutModel, stops: Stops, batch: Sequence[Speech]) -> list[list[int]]:
    """The tokens of each answer, up to the one that ended it."""
    model: Any = loaded.model
    pad = loaded.tokenizer.pad_token_id
    ids, attention = padded([row.prompt.tokens for row in batch], pad, left=True)
    longest = ids.shape[1]
    masks = torch.from_numpy(np.stack([row.mask for row in batch]))
    options = greedy(json.loads(batch[0].prompt.options))
    beams = options.get("num_beams") or model.generation_config.num_beams or 1
    with knocked_out(loaded.projections, loaded.grid, masks.repeat_interleave(beams, dim=0)):
        # ours last: what the task or the model says of them is answered by what the engine does
        own = {
            "input_ids": ids.to(loaded.device),
            "attention_mask": attention.to(loaded.device),
            "max_new_tokens": stops.limit,
            "logits_processor": LogitsProcessorList([Told()] if loaded.team else []),
            "stopping_criteria": StoppingCriteriaList([StopStrings(stops, longest, len(batch))]),
            "pad_token_id": pad,
            "use_cache": True,
            "return_dict_in_generate": False,
        }
        output = model.generate(**(options | own))
    return [ended(tokens, stops) for tokens in output[:, longest:].tolist()]


def padded(
    rows: Sequence[Sequence[int]], pad: int, *, left: bool
) -> tuple[Int[Tensor, "rows longest"], Int[Tensor, "rows longest"]]:
    """Tokens of unlike rows in one batch, and 1 where one of a row's own stands."""
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad, dtype=torch.long)
    own = torch.zeros_like(ids)
    for number, row in enumerate(rows):
        place = slice(longest - len(row), None) if left else slice(len(row))
        ids[number, place] = torch.tensor(list(row))
        own[number, place] = 1
    return ids, own


def greedy(options: dict[str, Any]) -> dict[str, Any]:
    """Generation arguments as `generate` takes them for greedy decoding."""
    unused = {"temperature", "top_p", "top_k", "do_sample"}
    return {k: v for k, v in options.items() if k not in unused} | {"do_sample": False}


def ended(tokens: Sequence[int], stops: Stops) -> list[int]:
    """An answer without the padding that followed while other rows went on."""
    for count in range(1, len(tokens) + 1):
        if stops.over(tokens[:count]):
            return list(tokens[:count])
    return list(tokens)


@torch.inference_mode()
def score(loaded: CutModel, batch: Sequence[Reading]) -> list[list[tuple[float, bool]]]:
    """Summed log-probability, and whether every token was the likeliest, for each continuation."""
    model = loaded.model
    first = min(len(row.inputs) - max(map(len, row.wanted)) for row in batch)
    # on the right: a causal model's earlier positions never see it
    ids, _ = padded([row.inputs for row in batch], 0, left=False)
    masks = torch.from_numpy(np.stack([row.mask for row in batch]))
    with knocked_out(loaded.projections, loaded.grid, masks):
        logits = last_logits(model, ids.to(loaded.device), first)
    results = []
    for number, row in enumerate(batch):
        end = len(row.inputs) - first
        wanted = [torch.tensor(tokens, device=logits.device) for tokens in row.wanted]
        results.append([judged(logits[number, end - len(w) : end], w) for w in wanted])
    return results


def judged(logits: Tensor, wanted: Tensor) -> tuple[float, bool]:
    """Summed log-probability of the tokens wanted, and whether each was the likeliest.

    In float32 whatever the model's dtype: in bfloat16 choices would tie.
    """
    read = torch.log_softmax(logits.float(), dim=-1)
    chosen = read.gather(1, wanted[:, None])
    return float(chosen.double().sum()), bool((read.argmax(-1) == wanted).all())


def last_logits(model: torch.nn.Module, ids: Tensor, first: int) -> Tensor:
    """Logits from position `first` on, without computing the others where the model allows it."""
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        positions = torch.arange(first, ids.shape[1])  # on the host: it fits any last device
        kept: Tensor = model(ids, use_cache=False, logits_to_keep=positions).logits
        return kept
    every: Tensor = model(ids, use_cache=False).logits
    return every[:, first:]
