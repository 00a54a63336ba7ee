"""Two answers to one prompt, intact and with heads knocked out, and the odds of every token."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedTokenizerBase
from transformers.generation.streamers import BaseStreamer

from caploc.components import Head
from caploc.engine.api import Ask
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import UNFINISHED, Span, Stops
from caploc.engine.plain import equally_long, generate
from caploc.engine.scores import last_logits
from caploc.models.knockout import knockout
from caploc.models.loading import LoadedModel
from caploc.result import number
from caploc.tasks.task import Generate, Generated, LogLikelihood, Request, Response, Rolling

INTACT, KNOCKED_OUT = SIDES = ("intact", "knocked_out")
LIKELIEST = 5  # alternatives shown for each token
ZEROED = "Here knocked-out heads hand on zero, which they did not in the run."
Shown = dict[str, Any]  # what the page is sent, as JSON
Logprobs = Float[Tensor, "tokens vocabulary"]  # in nats


@dataclass(frozen=True)
class BothSides:
    """A model that is asked twice: intact, and with heads knocked out."""

    engine: BatchEngine[LoadedModel]
    heads: tuple[Head, ...]

    def answer(self, requests: Mapping[str, Sequence[Request]]) -> dict[str, tuple[Response, ...]]:
        """Answer each side's requests, as the engine answers those of a run."""
        grid = self.engine.grid
        masks = {INTACT: grid.mask(()), KNOCKED_OUT: grid.mask(self.heads)}
        asks = [
            Ask((row, part), request, masks[side])
            for row, side in enumerate(SIDES)
            for part, request in enumerate(requests[side])
        ]
        found = {each.key: each.response for batch in self.engine.answer(asks) for each in batch}
        return {
            side: tuple(found[row, part] for part in range(len(requests[side])))
            for row, side in enumerate(SIDES)
        }

    def write(
        self, prompts: Mapping[str, Generate], tell: Callable[[dict[str, str]], None]
    ) -> dict[str, Generated]:
        """Answer each side's prompt; `tell` hears after every token what sides have said so far."""
        encoder, grid = self.engine.encoder, self.engine.grid
        read = {side: encoder.prompt(prompt) for side, prompt in prompts.items()}
        masks = {INTACT: grid.mask(()), KNOCKED_OUT: grid.mask(self.heads)}
        answers = {}
        # prompts differ where each side remembers what it said itself
        for sides in equally_long(SIDES, lambda side: read[side].tokens):
            prompt = read[sides[0]]
            stops = encoder.stops((prompt.stops, prompt.new_tokens))

            def hear(
                said: list[list[int]],
                sides: Sequence[str] = sides,
                ends: tuple[str, ...] = prompt.stops,
            ) -> None:
                cut = (encoder.cut(tokens, ends) for tokens in said)
                tell(dict(zip(sides, cut, strict=True)))

            rows = [(masks[side], None) for side in sides]
            texts = [read[side].tokens for side in sides]
            said = generate(self.engine.loaded, texts, rows, stops, Listener(stops, hear))
            for side, tokens in zip(sides, said, strict=True):
                ask = Ask((0, 0), prompts[side], masks[side])
                answer = encoder.answer(ask, read[side], tokens).response
                assert isinstance(answer, Generated)
                answers[side] = answer
        return answers

    def read(self, request: LogLikelihood | Rolling) -> list[Shown]:
        """Return of each token that a request scores how likely it is on both sides."""
        spans = self.engine.encoder.spans(request)
        return [token for span in spans for token in self.read_span(span)]

    def read_span(self, span: Span) -> Iterator[Shown]:
        tokenizer = self.engine.loaded.tokenizer
        logprobs = {
            INTACT: self.logprobs(span, ()),
            KNOCKED_OUT: self.logprobs(span, self.heads),
        }
        context = span.inputs[: len(span.inputs) + 1 - len(span.continuation)]
        pieces = cut_pieces(tokenizer, span.continuation, context)
        for place, (token, text) in enumerate(zip(span.continuation, pieces, strict=True)):
            yield {
                "token": token,
                "text": text,
                "special": token in tokenizer.all_special_ids,
                **{side: number(float(logprobs[side][place, token])) for side in SIDES},
                "likeliest": {
                    side: find_likeliest(tokenizer, logprobs[side][place]) for side in SIDES
                },
            }

    @torch.inference_mode()
    def logprobs(self, span: Span, heads: Sequence[Head]) -> Logprobs:
        """Log-probabilities of whatever could stand where the span's continuation stands."""
        loaded = self.engine.loaded
        ids = torch.tensor([span.inputs], device=loaded.model.device)
        with knockout(loaded, heads):
            logits = last_logits(loaded.model, ids, len(span.inputs) - len(span.continuation))
        return torch.log_softmax(logits[0].float(), dim=-1)


class Listener(BaseStreamer):
    """Hears what `generate` says: the prompts first, then a token of each row at a time."""

    def __init__(self, stops: Stops, hear: Callable[[list[list[int]]], None]) -> None:
        self.stops, self.hear, self.said = stops, hear, list[list[int]]()

    def put(self, value: Tensor) -> None:
        if not self.said:
            self.said = [[] for _ in value]
            return
        for said, token in zip(self.said, value.tolist(), strict=True):
            if not said or not self.stops.over(said):  # padding follows
                said.append(token)
        self.hear(self.said)

    def end(self) -> None:
        """All has been heard."""


def find_likeliest(
    tokenizer: PreTrainedTokenizerBase, logprobs: Float[Tensor, " vocabulary"]
) -> list[tuple[str, float | None]]:
    """Return the likeliest tokens with their log-probabilities, None where a model is broken."""
    best = torch.topk(logprobs, min(LIKELIEST, len(logprobs)))
    pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [(str(tokenizer.decode([token])), number(value)) for token, value in pairs]


def cut_pieces(
    tokenizer: PreTrainedTokenizerBase, tokens: Sequence[int], before: Sequence[int] = ()
) -> Iterator[str]:
    """Yield what each of the tokens adds to the text, special tokens by their names.

    A token that leaves a character unfinished adds nothing; the one that completes it adds all.
    """
    read = list(before)
    shown = str(tokenizer.decode(read, skip_special_tokens=False))
    for token in tokens:
        read.append(token)
        text = str(tokenizer.decode(read, skip_special_tokens=False))
        if text.endswith(UNFINISHED) and not shown.endswith(UNFINISHED):
            yield ""
            continue
        # a tokenizer that rewrites what it has said (spaces before a comma) shows the token alone
        whole = text.startswith(shown)
        yield text[len(shown) :] if whole else str(tokenizer.decode([token]))
        shown = text
