"""Asks that want text."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from caploc.engine import plain
from caploc.engine.asks import Ask
from caploc.engine.decoding import Decoder, Spoken
from caploc.engine.drafts import Drafting, Odds, Remembered
from caploc.engine.memory import BatchSizer
from caploc.engine.packed import PackedModel
from caploc.engine.padding import Padding
from caploc.engine.planning import Wanted, Work, plan
from caploc.engine.rows import Done, Masks, to_the_end
from caploc.engine.stops import Stops
from caploc.engine.suitability import end_tokens, greedy_only
from caploc.engine.wording import Prompt, Wording
from caploc.models.loading import CutModel
from caploc.tasks.requests import Generate, Generated

# Masks under which a prompt must be asked for its intact answer to be worth having first: all other
# rows wait for it, and where drafts do not hold it is no more than a sixteenth too much.
ENOUGH = 16
ALL, LATER = 10**6, 16  # most tokens of a first draft, and of one in a step, which pads its rows
Settings = tuple[tuple[str, ...], int, str]


class Generation:
    """Answers asks that want text; asks with the same stops, limit and options run together."""

    def __init__(
        self, loaded: CutModel, wording: Wording, sizer: BatchSizer, packed: PackedModel | None
    ) -> None:
        """Answer with packed rows where `packed` is given and the options allow it."""
        self.loaded, self.wording, self.sizer, self.packed = loaded, wording, sizer, packed
        self.stops: dict[Settings, Stops] = {}
        self.odds: dict[Settings, tuple[Odds, Odds]] = defaultdict(lambda: (Odds(ALL), Odds(LATER)))
        self.remembered = Remembered()
        self.padding = Padding(loaded, left=True)

    def answer(self, asks: Sequence[Ask]) -> Iterator[list[Done]]:
        """Answer every ask once."""
        groups: dict[Settings, list[tuple[Ask, Prompt]]] = defaultdict(list)
        for ask in asks:
            assert isinstance(ask.request, Generate)
            prompt = self.wording.prompt(ask.request)
            groups[prompt.stops, prompt.new_tokens, prompt.options].append((ask, prompt))
        for settings, members in groups.items():
            longest = self.longest(json.loads(settings[2]))
            fits = [len(prompt.tokens) + prompt.new_tokens <= longest for _, prompt in members]
            yield from self.packed_rows(
                settings, [m for m, fit in zip(members, fits, strict=True) if fit]
            )
            yield from self.plain_rows(
                settings, [m for m, fit in zip(members, fits, strict=True) if not fit]
            )

    def longest(self, options: dict[str, Any]) -> int:
        """The longest rows that packed rows can serve with these generation arguments."""
        if self.packed is None or not greedy_only(self.loaded.model, options):
            return 0
        return self.packed.longest

    def stopping(self, settings: Settings) -> Stops:
        """When answers end."""
        if settings not in self.stops:
            strings, limit, options = settings
            ends = end_tokens(self.loaded.model, json.loads(options))
            self.stops[settings] = Stops(self.loaded.tokenizer, strings, ends, limit)
        return self.stops[settings]

    def plain_rows(
        self, settings: Settings, members: list[tuple[Ask, Prompt]]
    ) -> Iterator[list[Done]]:
        """Answer with transformers' `generate`, longest prompts first."""
        stops = self.stopping(settings)

        def size(member: tuple[Ask, Prompt]) -> tuple[int, int]:
            return len(member[1].tokens) + stops.limit, 1

        def speak(part: Sequence[tuple[Ask, Prompt]]) -> list[list[int]]:
            batch = [plain.Speech(prompt, ask.knocked_out) for ask, prompt in part]
            return plain.speak(self.loaded, stops, batch)

        for alike in self.padding.groups(members, lambda member: member[1].tokens):
            for batch in self.sizer.batches(alike, size):
                said = self.sizer.run(speak, batch)
                yield [
                    self.done(ask, prompt, tokens, float(len(prompt.tokens) + len(tokens)))
                    for (ask, prompt), tokens in zip(batch, said, strict=True)
                ]

    def packed_rows(
        self, settings: Settings, members: list[tuple[Ask, Prompt]]
    ) -> Iterator[list[Done]]:
        """Answer with packed rows: the intact answers first, for drafts of the others."""
        masks, prompts = Masks(self.loaded.grid), dict[Prompt, int]()
        asked: dict[tuple[int, int], list[Ask]] = defaultdict(list)  # (prompt, mask)
        for ask, prompt in members:
            number = prompts.setdefault(prompt, len(prompts))
            asked[number, masks.number(ask.knocked_out)].append(ask)
        intact = masks.number(np.zeros(self.loaded.grid.size, dtype=bool))
        texts, pairs = list(prompts), list(asked)
        times = Counter(prompt for prompt, mask in pairs if mask != intact)
        first = {pair for pair in pairs if pair[1] == intact} | {
            (prompt, intact)
            for prompt, count in times.items()
            if count >= ENOUGH and not self.remembered.of(hash(texts[prompt])).root.next
        }
        order = sorted(first) + [pair for pair in pairs if pair not in first]
        rows = [Wanted(number, *pair) for number, pair in enumerate(order)]
        due = 0.0  # intact answers that nobody asked for are paid by the next row
        for batch in self.run(settings, texts, masks, rows, len(first)):
            done: list[Done] = []
            for spoken in batch:
                prompt, due = texts[spoken.wanted.prompt], due + spoken.cost
                askers = asked[spoken.wanted.prompt, spoken.wanted.mask]
                done += [self.done(a, prompt, spoken.tokens, due / len(askers)) for a in askers]
                due = 0.0 if askers else due
            yield done

    def run(
        self,
        settings: Settings,
        prompts: Sequence[Prompt],
        masks: Masks,
        rows: Sequence[Wanted],
        first: int,
    ) -> Iterator[list[Spoken]]:
        """Run rows of packed prompts to their end, so many of them before the others."""
        stops, packed = self.stopping(settings), self.packed
        assert packed is not None or not rows
        tokens, hashes = [prompt.tokens for prompt in prompts], list(map(hash, prompts))

        def decoder(still_open: Sequence[Wanted]) -> Decoder:
            assert packed is not None
            work = Work(
                stems=[text[:-1] for text in tokens],
                lengths=[len(text) for text in tokens],
                answers=stops.limit,
                cuts=[mask.cut for mask in masks.all],
                wanted=still_open,
                first=range(first),
            )
            planned = plan(work, self.sizer.sizes(drafted=LATER))
            return Decoder(
                packed,
                planned,
                tokens,
                masks.all,
                stops,
                Drafting(lambda prompt: self.remembered.of(hashes[prompt]), *self.odds[settings]),
            )

        return to_the_end(rows, decoder, self.sizer)

    def done(self, ask: Ask, prompt: Prompt, tokens: list[int], cost: float) -> Done:
        """An answer's text, cut at its first stop string."""
        said = Generated(self.wording.cut(tokens, prompt.stops), len(tokens))
        return Done(ask, said, cost, len(prompt.tokens) + len(tokens))
