"""What of an answer is attributed to neurons: one number for each example, higher is better.

The paper's own target is not known to us; the mean log-probability of the gold answer is our
default, and the probability of its first token is what knowledge neurons use.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from caploc.neurons.batches import Batch


def mean_logprob(batch: Batch, logprobs: Float[Tensor, " predicted"]) -> Float[Tensor, " rows"]:
    """Mean log-probability of a gold token, in nats: minus the loss that tuning minimises."""
    totals, counts = _sums(batch, logprobs), _sums(batch, torch.ones_like(logprobs))
    return totals / counts


def summed_logprob(batch: Batch, logprobs: Float[Tensor, " predicted"]) -> Float[Tensor, " rows"]:
    """Log-probability of the whole answer, in nats."""
    return _sums(batch, logprobs)


def first_probability(
    batch: Batch, logprobs: Float[Tensor, " predicted"]
) -> Float[Tensor, " rows"]:
    """Probability of the answer's first token."""
    first = torch.ones_like(batch.rows, dtype=torch.bool)
    first[1:] = batch.rows[1:] != batch.rows[:-1]
    return logprobs[first].exp()


def _sums(batch: Batch, values: Float[Tensor, " predicted"]) -> Float[Tensor, " rows"]:
    return values.new_zeros(batch.size).index_add(0, batch.rows, values)


Target = Callable[[Batch, Tensor], Tensor]
TARGETS: dict[str, Target] = {
    "logprob": mean_logprob,
    "logprob-sum": summed_logprob,
    "probability": first_probability,
}


def gold_logprobs(model: PreTrainedModel, batch: Batch) -> Float[Tensor, " predicted"]:
    """The log-probability of every gold token, in nats, in float32 whatever the model's dtype."""
    attention = batch.real.long()
    given: dict[str, Any] = {"input_ids": batch.tokens, "attention_mask": attention}
    places = batch.places
    if "logits_to_keep" in inspect.signature(model.forward).parameters:
        needed, places = torch.unique(batch.places, return_inverse=True)
        given["logits_to_keep"] = needed
    logits = model(**given, use_cache=False).logits[batch.rows, places]
    return logits.float().log_softmax(-1).gather(1, batch.gold[:, None])[:, 0]
