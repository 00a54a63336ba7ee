"""Tokens as pieces of text, and how likely each is to two models."""

import math
from collections.abc import Sequence
from typing import Any, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from caploc.engine.encoding import UNFINISHED

INTACT, KNOCKED_OUT = SIDES = ("intact", "knocked_out")
LIKELIEST = 5  # alternatives shown for each token
Event = dict[str, Any]  # what the page is sent, as JSON


class TokenOdds(TypedDict):
    """One token under both models; log-probabilities in nats, None where a model is broken."""

    intact: float | None
    knocked_out: float | None
    likeliest: dict[str, list[tuple[str, float | None]]]  # by side: tokens, their log-probability


def compare_odds(
    tokenizer: PreTrainedTokenizerBase,
    token: int,
    logprobs: dict[str, Float[Tensor, " vocabulary"]],
) -> TokenOdds:
    """Return the token's log-probability and the likeliest tokens, on each side."""
    return TokenOdds(
        intact=finite_or_none(float(logprobs[INTACT][token])),
        knocked_out=finite_or_none(float(logprobs[KNOCKED_OUT][token])),
        likeliest={side: list_likeliest(tokenizer, logprobs[side]) for side in SIDES},
    )


def list_likeliest(
    tokenizer: PreTrainedTokenizerBase, logprobs: Float[Tensor, " vocabulary"]
) -> list[tuple[str, float | None]]:
    """Return the tokens that come first, with their log-probabilities."""
    best = torch.topk(logprobs, min(LIKELIEST, len(logprobs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(decode_token(tokenizer, token), finite_or_none(value)) for token, value in pairs]


def finite_or_none(value: float) -> float | None:
    """Return a number as JSON can hold it."""
    return value if math.isfinite(value) else None


class Pieces:
    """Cuts a text into what each of its tokens adds, token by token.

    A token that leaves a character unfinished adds nothing; the one that completes it adds all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()) -> None:
        """Start after the tokens `before`."""
        self.tokenizer, self.tokens = tokenizer, list(before)
        self.shown = self.decoded()

    def add(self, token: int) -> str:
        """Return what the token adds to the text."""
        self.tokens.append(token)
        text = self.decoded()
        if text.endswith(UNFINISHED) and not self.shown.endswith(UNFINISHED):
            return ""
        # a tokenizer that rewrites what it has said (spaces before a comma) shows the token alone
        whole = text.startswith(self.shown)
        piece = text[len(self.shown) :] if whole else str(self.tokenizer.decode([token]))
        self.shown = text
        return piece

    def decoded(self) -> str:
        """Everything so far, special tokens by their names."""
        return str(self.tokenizer.decode(self.tokens, skip_special_tokens=False))


def cut_pieces(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int]) -> list[str]:
    """Return what each of the tokens adds to their text."""
    cut = Pieces(tokenizer)
    return [cut.add(token) for token in tokens]


def decode_token(tokenizer: PreTrainedTokenizerBase, token: int) -> str:
    """Return a token by itself, for a list of what else the model might have said."""
    return str(tokenizer.decode([token], skip_special_tokens=False))
