"""How likely a token is to each of two models, and what each would rather have said."""

import math
from typing import Any, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from caploc.playground.pieces import alone

INTACT, KNOCKED_OUT = SIDES = ("intact", "knocked_out")
LIKELIEST = 5  # alternatives shown for each token
Event = dict[str, Any]  # what the page is sent, as JSON


class Odds(TypedDict):
    """One token under both models; log-probabilities in nats, None where a model is broken."""

    intact: float | None
    knocked_out: float | None
    likeliest: dict[str, list[tuple[str, float | None]]]  # by side: tokens, their log-probability


def odds(
    tokenizer: PreTrainedTokenizerBase,
    token: int,
    logprobs: dict[str, Float[Tensor, " vocabulary"]],
) -> Odds:
    """The token's log-probability and the likeliest tokens, on each side."""
    return Odds(
        intact=known(float(logprobs[INTACT][token])),
        knocked_out=known(float(logprobs[KNOCKED_OUT][token])),
        likeliest={side: likeliest(tokenizer, logprobs[side]) for side in SIDES},
    )


def likeliest(
    tokenizer: PreTrainedTokenizerBase, logprobs: Float[Tensor, " vocabulary"]
) -> list[tuple[str, float | None]]:
    """The tokens that come first, with their log-probabilities."""
    best = torch.topk(logprobs, min(LIKELIEST, len(logprobs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(alone(tokenizer, token), known(value)) for token, value in pairs]


def known(value: float) -> float | None:
    """A number as JSON can hold it."""
    return value if math.isfinite(value) else None
