"""Log-probabilities of given texts, many (mask, text) rows in one forward pass."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from caploc.models.cutting import knocked_out
from caploc.models.loading import LoadedModel
from caploc.models.wording import Span


@dataclass
class Pass:
    """One row of a forward pass: tokens read under a mask, and whose continuations it scores.

    Choices that differ in their last token only share a pass.
    """

    inputs: tuple[int, ...]
    mask: Bool[np.ndarray, " heads"]
    wanted: list[tuple[int, Span]] = field(default_factory=list)  # (number of the ask, span)

    @property
    def scored(self) -> int:
        """How many of the last positions are read out."""
        return max(len(span.continuation) for _, span in self.wanted)


@dataclass(frozen=True, slots=True)
class Reading:
    """One span's result; `tokens` run for it, 0 where an earlier span shared the pass."""

    ask: int
    logprob: float
    greedy: bool
    tokens: int


@torch.inference_mode()
def score(loaded: LoadedModel, batch: Sequence[Pass]) -> list[Reading]:
    """Summed log-probability, and whether every token was the likeliest, for each span."""
    model = loaded.model
    longest = max(len(row.inputs) for row in batch)
    first = min(len(row.inputs) - row.scored for row in batch)
    ids = torch.zeros((len(batch), longest), dtype=torch.long)
    for number, row in enumerate(batch):
        # Padding on the right: a causal model's earlier positions never see it.
        ids[number, : len(row.inputs)] = torch.tensor(row.inputs)
    masks = torch.from_numpy(np.stack([row.mask for row in batch]))
    with knocked_out(loaded.projections, loaded.grid, masks):
        logits = last_logits(model, ids.to(model.device), first)
    results = []
    for number, row in enumerate(batch):
        end = len(row.inputs) - first
        # float32 whatever the model's dtype: in bfloat16 choices would tie.
        read = torch.log_softmax(logits[number, end - row.scored : end].float(), dim=-1)
        likeliest = read.argmax(-1).cpu()
        for index, (ask, span) in enumerate(row.wanted):
            tokens = torch.tensor(span.continuation)
            greedy = bool((likeliest[-len(tokens) :] == tokens).all())
            chosen = read[-len(tokens) :].gather(1, tokens[:, None].to(read.device))
            logprob = chosen.cpu().double().sum()
            cost = 0 if index else len(row.inputs)
            results.append(Reading(ask, float(logprob), greedy, cost))
    return results


def last_logits(model: torch.nn.Module, ids: Tensor, first: int) -> Tensor:
    """Logits from position `first` on, without computing the others where the model allows it."""
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        positions = torch.arange(first, ids.shape[1], device=ids.device)
        return model(ids, use_cache=False, logits_to_keep=positions).logits
    return model(ids, use_cache=False).logits[:, first:]
