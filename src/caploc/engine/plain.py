"""The plain engine: transformers' own calls on rows of equal length, each under its own mask.

It shares nothing between rows and knows no trick: it is what the other engines are held against,
and it takes what they refuse. Only rows of one length share a batch, so that nothing is padded: in
some decoders padding changes what is said.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from caploc.components import Grid, Mask
from caploc.engine.api import Answer, Ask
from caploc.engine.encoding import (
    RequestEncoder,
    Settings,
    Stops,
    TokenizedPrompt,
    group_prompts,
)
from caploc.engine.planning import BatchSizer
from caploc.engine.reading import SourceReader
from caploc.engine.scores import ContinuationScore, PendingScore, last_logits, sum_logprobs
from caploc.models.cutting import knocked_out
from caploc.models.generation import generating
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import CutModel
from caploc.models.substitutes import Substitute, Substitutes, number_substitutes
from caploc.tasks.task import Generate

T = TypeVar("T")
Tokens = Sequence[int]
Cut = tuple[Mask, Substitute | None]  # what a row knocks out, and what takes its place if not zero


@dataclass
class PlainBackend:
    """Answers every ask by `generate` or a forward pass."""

    loaded: CutModel
    encoder: RequestEncoder
    sizer: BatchSizer
    sources: SourceReader
    name = "plain"

    @property
    def grid(self) -> Grid:
        return self.loaded.grid

    def refusal(self, ask: Ask) -> None:
        """It can answer whatever is asked."""

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        asks = list(asks)
        texts = [ask for ask in asks if isinstance(ask.request, Generate)]
        for settings, members in group_prompts(self.encoder, texts).items():
            yield from self.continue_prompts(settings, members)
        yield from self.score([ask for ask in asks if not isinstance(ask.request, Generate)])

    def continue_prompts(
        self, settings: Settings, members: Sequence[tuple[Ask, TokenizedPrompt]]
    ) -> Iterator[list[Answer]]:
        """Answer asks for text with the same stops and limit."""
        stops = self.encoder.stops(settings)

        def continued(part: Sequence[tuple[Ask, TokenizedPrompt]]) -> list[list[int]]:
            rows = [(ask.knocked_out, self.sources.substitute(ask)) for ask, _ in part]
            prompts = [prompt.tokens for _, prompt in part]
            return generate(self.loaded, prompts, rows, stops)

        for alike in equally_long(members, lambda member: member[1].tokens):
            for batch in self.sizer.batches(alike, len(alike[0][1].tokens) + stops.limit):
                said = self.sizer.run(continued, batch)
                yield [
                    self.encoder.answer(ask, prompt, tokens)
                    for (ask, prompt), tokens in zip(batch, said, strict=True)
                ]

    def score(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer asks for log-probabilities; what reads the same under one mask is read once."""
        texts: dict[Any, ScoredText] = {}
        for one in [PendingScore(ask, self.encoder) for ask in asks]:
            if not one.spans:  # an empty text has nothing to be read
                yield [one.answer()]
            cut = one.ask.knocked_out, self.sources.substitute(one.ask)
            for span in one.spans:
                key = span.inputs, cut[0].tobytes(), cut[1]
                text = texts.setdefault(key, ScoredText(span.inputs, cut))
                text.wanted.append(span.continuation)
                text.owners.append(one)
        for alike in equally_long(texts.values(), lambda text: text.inputs):
            scored = max(len(tokens) for text in alike for tokens in text.wanted)
            for batch in self.sizer.batches(alike, len(alike[0].inputs), scored):
                answers: list[Answer] = []
                results = self.sizer.run(partial(score_texts, self.loaded), batch)
                for text, scores in zip(batch, results, strict=True):
                    cost = len(text.inputs) / len(text.owners)
                    for owner, found in zip(text.owners, scores, strict=True):
                        answers += owner.take(found, cost)
                yield answers


@dataclass
class ScoredText:
    """Tokens to be read once, continuations to be scored at their end, and who asked for each."""

    inputs: tuple[int, ...]
    cut: Cut
    wanted: list[tuple[int, ...]] = field(default_factory=list)
    owners: list[PendingScore] = field(default_factory=list)


def equally_long(items: Iterable[T], tokens: Callable[[T], Tokens]) -> list[list[T]]:
    """Group items by how many tokens they read, the longest first."""
    ordered = sorted(items, key=lambda item: -len(tokens(item)))
    return [list(alike) for _, alike in groupby(ordered, key=lambda item: len(tokens(item)))]


@torch.inference_mode()
def generate(
    loaded: CutModel,
    prompts: Sequence[Tokens],
    rows: Sequence[Cut],
    stops: Stops,
    streamer: BaseStreamer | None = None,
) -> list[list[int]]:
    """Continue prompts of one length, each under its own cut, up to the token that ends each."""
    model: Any = loaded.model
    ids = torch.tensor(prompts, device=loaded.device)
    start = ids.shape[1]
    own = {"max_new_tokens": stops.limit, "pad_token_id": loaded.tokenizer.pad_token_id}
    with generating(model, **own) as config, cut_rows(loaded, rows):
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            stopping_criteria=StoppingCriteriaList([_StopStrings(stops, start)]),
            streamer=streamer,
        )
    return [stops.trim(tokens) for tokens in output[:, start:].tolist()]


class _StopStrings(StoppingCriteria):
    """Ends a row when one of the stop strings appears in what it has said."""

    def __init__(self, stops: Stops, start: int) -> None:
        self.stops, self.start = stops, start  # answers begin at position `start`

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        stopped = [self.stops.stopped(said) for said in input_ids[:, self.start :].tolist()]
        return torch.tensor(stopped, device=input_ids.device)


@torch.inference_mode()
def score_texts(loaded: CutModel, texts: Sequence[ScoredText]) -> list[list[ContinuationScore]]:
    """Score the continuations of texts of one length, each under its own cut."""
    ids = torch.tensor([text.inputs for text in texts], device=loaded.device)
    longest = max(len(tokens) for text in texts for tokens in text.wanted)
    with cut_rows(loaded, [text.cut for text in texts]):
        logits = last_logits(loaded.model, ids, ids.shape[1] - longest)
    return [
        [sum_logprobs(read[-len(w) :], torch.tensor(w, device=read.device)) for w in text.wanted]
        for text, read in zip(texts, logits, strict=True)
    ]


@contextmanager
def cut_rows(loaded: CutModel, rows: Sequence[Cut]) -> Iterator[None]:
    """Cut each row of a batch as it says, for a block."""
    masks = torch.from_numpy(np.stack([mask for mask, _ in rows]))
    numbers, substitutes = number_substitutes([substitute for _, substitute in rows])
    with ExitStack() as stack:
        replacement = None
        if substitutes.sources:
            replacement = _FromSources(substitutes, numbers[:, None])
            note, decoder = replacement.note, loaded.model.get_decoder()
            hook = decoder.register_forward_pre_hook(note, with_kwargs=True)
            stack.enter_context(temporary_hooks([hook]))
        stack.enter_context(knocked_out(loaded.projections, loaded.grid, masks, replacement))
        yield


@dataclass
class _FromSources:
    """Replaces by what each row's source hands on where the tokens of a pass stand in their texts.

    Rows of a batch are of one length, and a pass of one token goes on from the passes before it.
    """

    substitutes: Substitutes
    sources: Int[Tensor, "rows 1"]
    positions: range = range(0)

    def note(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        given = (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds"))
        tokens = next(each for each in given if isinstance(each, Tensor)).shape[1]
        first = self.positions.stop if tokens == 1 else 0
        self.positions = range(first, first + tokens)

    def __call__(
        self, layer: int, each: Float[Tensor, "rows tokens heads width"]
    ) -> Float[Tensor, "rows tokens heads width"]:
        where = torch.arange(self.positions.start, self.positions.stop, device=each.device)
        entries = self.substitutes.entries(self.sources.to(each.device), where)
        return self.substitutes.values(layer, each)[entries]
