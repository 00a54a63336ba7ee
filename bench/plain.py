"""Answers as an expert gets them from transformers alone: padded batches, `generate`, one forward.

Nothing here knows a mask: whoever calls has cut the heads. The rivals of caploc share this code,
so that they differ in nothing but how they cut and batch.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate, takewhile
from typing import Any, ClassVar, TypeVar

import torch
from lm_eval.models.utils import normalize_gen_kwargs
from torch import Tensor
from transformers import (
    DynamicCache,
    PreTrainedTokenizerBase,
    StoppingCriteria,
    StoppingCriteriaList,
)

from caploc.components import Mask
from caploc.engine.api import Ask
from caploc.tasks.task import Generate, Generated, LogLikelihood, Response, Scored

Key = tuple[int, int]
Responses = dict[Key, Response]
Settings = tuple[tuple[str, ...], int]  # stop strings, most tokens of an answer


@dataclass(frozen=True)
class Prompt:
    """One row of a generation."""

    scored: ClassVar[int] = 1  # the last position says the answer's first token
    key: Key
    tokens: tuple[int, ...]
    mask: Mask
    settings: Settings


@dataclass
class Reading:
    """One row of a forward pass, and the continuations that it scores.

    Choices of a single token are all read off one pass, as lm-eval does.
    """

    tokens: tuple[int, ...]
    mask: Mask
    settings: Settings = ((), 0)
    wanted: list[tuple[Key, tuple[int, ...]]] = field(default_factory=list)

    @property
    def scored(self) -> int:
        """How many of the last positions are read."""
        return max(len(continuation) for _, continuation in self.wanted)


P = TypeVar("P", Prompt, Reading)


@dataclass(frozen=True)
class Past:
    """How many tokens of a batch's rows are read already, the same in each, and their cache."""

    length: int = 0
    cache: DynamicCache | None = None

    def copied(self, rows: int) -> DynamicCache | None:
        """A cache for so many rows, which a forward pass may write to."""
        if self.cache is None:
            return None
        cache = deepcopy(self.cache)
        cache.batch_repeat_interleave(rows)
        return cache


NOTHING = Past()


def prompts(tokenizer: PreTrainedTokenizerBase, asks: Iterable[Ask]) -> list[Prompt]:
    """The asks that want text, each distinct text encoded once, with the tokenizer's own start."""
    encode = lru_cache(None)(lambda text: tuple(tokenizer.encode(text)))
    settings = lru_cache(None)(settings_of)
    return [
        Prompt(ask.key, encode(ask.request.prompt), ask.knocked_out, settings(ask.request.options))
        for ask in asks
        if isinstance(ask.request, Generate)
    ]


def settings_of(options: str) -> Settings:
    """Stop strings and length limit, from lm-eval's generation arguments."""
    arguments = normalize_gen_kwargs(json.loads(options))
    return tuple(arguments["until"]), arguments["max_gen_toks"]


def readings(tokenizer: PreTrainedTokenizerBase, asks: Iterable[Ask]) -> list[Reading]:
    """The asks that want log-probabilities, as the fewest passes."""
    pair = lru_cache(None)(lambda request: context_and_continuation(tokenizer, request))
    found: dict[tuple[tuple[int, ...], bytes], Reading] = {}
    for ask in asks:
        if isinstance(ask.request, LogLikelihood):
            context, continuation = pair(ask.request)
            tokens = context + continuation[:-1]
            reading = found.setdefault(
                (tokens, ask.knocked_out.tobytes()), Reading(tokens, ask.knocked_out)
            )
            reading.wanted.append((ask.key, continuation))
    return list(found.values())


def context_and_continuation(
    tokenizer: PreTrainedTokenizerBase, request: LogLikelihood
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Their tokens, split where lm-eval splits: spaces that end a context open the continuation."""
    context = request.context.rstrip()
    whole = tokenizer.encode(request.context + request.continuation)
    before = tokenizer.encode(context)
    return tuple(before), tuple(whole[len(before) :])


def batches(rows: Sequence[P], size: int, *, one_mask: bool) -> Iterator[list[P]]:
    """Rows of equal settings, longest first; with `one_mask` all of a batch have the same mask."""
    groups: dict[tuple[Settings, bytes], list[P]] = {}
    for row in rows:
        mask = row.mask.tobytes() if one_mask else b""
        groups.setdefault((row.settings, mask), []).append(row)
    for group in groups.values():
        group.sort(key=lambda row: -len(row.tokens))
        yield from (group[start : start + size] for start in range(0, len(group), size))


def shared(rows: Sequence[Prompt | Reading]) -> tuple[int, ...]:
    """The tokens that all rows begin with, short of the first position that is read of any."""
    texts = [row.tokens for row in rows]
    pairs = zip(min(texts), max(texts), strict=False)  # all others stand between these two
    alike = tuple(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    return alike[: min(len(row.tokens) - row.scored for row in rows)]


@torch.inference_mode()
def prefilled(model: Any, tokens: Sequence[int]) -> Past:
    """Run the tokens through the model, for rows that go on from them."""
    if not tokens:
        return NOTHING
    cache = DynamicCache(config=model.config)
    model.base_model(input_ids=torch.tensor([tokens]).to(model.device), past_key_values=cache)
    return Past(len(tokens), cache)


@torch.inference_mode()
def generate(
    model: Any, tokenizer: PreTrainedTokenizerBase, batch: Sequence[Prompt], past: Past = NOTHING
) -> Responses:
    """Greedy answers of one batch, padded on the left, but after what is read already."""
    ids, attention = left_padded(tokenizer, batch, past.length)
    output: Tensor = model.generate(
        input_ids=ids.to(model.device),
        attention_mask=attention.to(model.device),
        past_key_values=past.copied(len(batch)),
        **arguments(tokenizer, batch[0].settings, ids.shape[1]),
    )
    return answers(tokenizer, batch, output[:, ids.shape[1] :])


def left_padded(
    tokenizer: PreTrainedTokenizerBase, batch: Sequence[Prompt], before: int = 0
) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask of shape (rows, longest prompt).

    The first `before` tokens of each row stand before its padding.
    """
    longest = max(len(row.tokens) for row in batch)
    ids = torch.full((len(batch), longest), int(tokenizer.pad_token_id))
    attention = torch.zeros_like(ids)
    for number, row in enumerate(batch):
        padded = slice(before, before + longest - len(row.tokens))
        ids[number, :before] = torch.tensor(row.tokens[:before])
        ids[number, padded.stop :] = torch.tensor(row.tokens[before:])
        attention[number] = 1
        attention[number, padded] = 0
    return ids, attention


def arguments(tokenizer: PreTrainedTokenizerBase, settings: Settings, start: int) -> dict[str, Any]:
    """What `generate` needs to stop at the stop strings, the cheapest exact way.

    A stop string of one character is in the answer once a token has it, so those tokens are made
    end tokens: a look-up on the device, where `stop_strings=` matches text at every step.
    """
    stops, limit = settings
    chosen: dict[str, Any] = {
        "max_new_tokens": limit,
        "do_sample": False,
        "eos_token_id": sorted(end_tokens(tokenizer, stops)),
        "pad_token_id": tokenizer.pad_token_id,
    }
    long = [stop for stop in stops if len(stop) > 1]
    if long:
        chosen["stopping_criteria"] = StoppingCriteriaList([LongStops(tokenizer, long, start)])
    return chosen


@lru_cache(None)
def end_tokens(tokenizer: PreTrainedTokenizerBase, stops: tuple[str, ...]) -> frozenset[int]:
    """The tokens that end an answer by themselves."""
    short = [stop for stop in stops if len(stop) == 1]
    with_stop = (token for stop in short for token in tokens_with(tokenizer, stop))
    return frozenset({int(tokenizer.eos_token_id), *with_stop})


@lru_cache(None)
def tokens_with(tokenizer: PreTrainedTokenizerBase, character: str) -> tuple[int, ...]:
    """The tokens whose text has the character."""
    texts = tokenizer.batch_decode([[token] for token in range(len(tokenizer))])
    return tuple(token for token, text in enumerate(texts) if character in text)


class LongStops(StoppingCriteria):
    """Stop strings of several characters: text is looked at only where the last token fits."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stops: list[str], start: int) -> None:
        """Watch answers that begin at position `start`."""
        self.tokenizer, self.stops, self.start = tokenizer, stops, start
        self.tail = max(len(stop.encode()) for stop in stops)  # at worst a token for each byte
        self.last = torch.tensor(sorted({t for s in stops for t in tokens_with(tokenizer, s[-1])}))
        self.done: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor | None, **_: Any) -> Tensor:
        """Which rows have said a stop string."""
        if self.done is None:
            self.done = torch.zeros(len(input_ids), dtype=torch.bool)
        said = input_ids[:, self.start :][:, -self.tail :].cpu()
        for row in (torch.isin(said[:, -1], self.last) & ~self.done).nonzero().flatten().tolist():
            text = self.tokenizer.decode(said[row])
            self.done[row] = any(stop in text for stop in self.stops)
        return self.done.to(input_ids.device)


def answers(tokenizer: PreTrainedTokenizerBase, batch: Sequence[Prompt], said: Tensor) -> Responses:
    """Texts up to the first stop string; `said` has the new tokens, whatever follows an end."""
    responses: Responses = {}
    for row, tokens in zip(batch, said.tolist(), strict=True):
        answer = spoken(tokens, end_tokens(tokenizer, row.settings[0]), tokenizer.pad_token_id)
        text = str(tokenizer.decode(answer, skip_special_tokens=True))
        for stop in row.settings[0]:
            text = text.split(stop)[0]
        responses[row.key] = Generated(text, tuple(answer))
    return responses


def spoken(tokens: list[int], ends: frozenset[int], pad: int) -> list[int]:
    """An answer's tokens up to its first end token, or to its first padding."""
    for number, token in enumerate(tokens):
        if token in ends:
            return tokens[: number + 1]
        if token == pad:
            return tokens[:number]
    return tokens


@torch.inference_mode()
def score(model: Any, batch: Sequence[Reading], past: Past = NOTHING) -> Responses:
    """Log-probabilities of one batch, padded on the right; logits only where they are read."""
    longest = max(len(row.tokens) for row in batch) - past.length
    ids = torch.zeros((len(batch), longest), dtype=torch.long)
    rows: list[int] = []
    positions: list[int] = []
    for number, row in enumerate(batch):
        end = len(row.tokens) - past.length
        ids[number, :end] = torch.tensor(row.tokens[past.length :])
        rows += [number] * row.scored
        positions += range(end - row.scored, end)
    cache = past.copied(len(batch))
    output = model.base_model(
        input_ids=ids.to(model.device), past_key_values=cache, use_cache=cache is not None
    )
    hidden = output.last_hidden_state
    read = torch.log_softmax(model.get_output_embeddings()(hidden[rows, positions]).float(), dim=-1)
    return scores(batch, read)


def scores(batch: Sequence[Reading], read: Tensor) -> Responses:
    """Sums over each continuation; `read` has a log-distribution for each scored token."""
    likeliest = read.argmax(-1).tolist()
    ends = accumulate(row.scored for row in batch)
    wanted = [
        (key, tokens, range(end - len(tokens), end))
        for row, end in zip(batch, ends, strict=True)
        for key, tokens in row.wanted
    ]
    places = [place for _, _, places in wanted for place in places]
    chosen = [token for _, tokens, _ in wanted for token in tokens]
    values = iter(read[places, chosen].double().tolist())
    return {
        key: Scored(
            sum(next(values) for _ in tokens),
            all(likeliest[p] == t for p, t in zip(places, tokens, strict=True)),
            len(tokens),
        )
        for key, tokens, places in wanted
    }
