"""Two answers to one prompt, intact and knocked out, token by token in step."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import LogitsProcessorList

from caploc.engine import BatchEngine
from caploc.engine.encoding import Stops, TokenizedPrompt
from caploc.engine.plain import greedy_options
from caploc.heads import Head
from caploc.models.loading import LoadedModel
from caploc.playground.lanes import Lane
from caploc.playground.odds import INTACT, KNOCKED_OUT, SIDES, Event, odds
from caploc.playground.pieces import Pieces


@dataclass
class Voice:
    """One side's answer so far, and both models reading it."""

    readers: dict[str, Lane]
    pieces: Pieces
    said: list[int] = field(default_factory=list)
    over: str = ""  # why it ended; empty while it goes on


class Duet:
    """Both models answer greedily, as `generate(do_sample=False)` does; each reads both answers.

    Penalties and other rules of the model's generation config decide what is said, as in
    `generate`; the probabilities shown are the model's own, before such rules.
    """

    def __init__(
        self, engine: BatchEngine[LoadedModel], prompt: TokenizedPrompt, heads: tuple[Head, ...]
    ) -> None:
        """Prepare; nothing is read yet."""
        self.engine, self.loaded, self.prompt, self.heads = engine, engine.loaded, prompt, heads
        self.voices: dict[str, Voice] = {}
        settings = (prompt.stops, prompt.new_tokens, prompt.options)
        self.stops: Stops = engine.generation.stopping(settings)
        self.rules = generation_rules(self.loaded, prompt)

    def events(self) -> Iterator[Event]:
        """What each side says, a token at a time, and when and why it ends."""
        lanes = {INTACT: Lane(self.loaded, ()), KNOCKED_OUT: Lane(self.loaded, self.heads)}
        for lane in lanes.values():
            lane.read(self.prompt.tokens)
        before, tokenizer = self.prompt.tokens, self.loaded.tokenizer
        self.voices = {side: Voice(lanes, Pieces(tokenizer, before)) for side in SIDES}
        yield {"event": "begin", "prompt_tokens": len(before)}
        while speaking := [side for side in SIDES if not self.voices[side].over]:
            for side in speaking:
                yield self.speak(side)
            for side in speaking:
                if self.voices[side].over:
                    yield self.ended(side)
            self.listen()

    def speak(self, side: str) -> Event:
        """Choose a side's next token."""
        voice = self.voices[side]
        text: Any = torch.tensor(
            [[*self.prompt.tokens, *voice.said]], device=self.loaded.model.device
        )
        token = int(self.rules(text, voice.readers[side].logits.clone()).argmax())
        logprobs = {reader: lane.logprobs for reader, lane in voice.readers.items()}
        voice.said.append(token)
        voice.over = self.reason(voice.said)
        return {
            "event": "token",
            "side": side,
            "token": token,
            "text": voice.pieces.add(token),
            "ends": token in self.stops.ends,
            **odds(self.loaded.tokenizer, token, logprobs),
        }

    def reason(self, said: list[int]) -> str:
        """Why an answer is over, empty if it is not."""
        if not self.stops.over(said):
            return ""
        if said[-1] in self.stops.ends:
            return "end token"
        return "stop string" if self.stops.stopped(said) else "limit"

    def ended(self, side: str) -> Event:
        """The whole answer of a side, cut at its first stop string."""
        return {
            "event": "end",
            "side": side,
            "why": self.voices[side].over,
            "text": self.answer(side),
        }

    def answer(self, side: str) -> str:
        """What a side has said, cut at its first stop string."""
        return self.engine.encoder.cut(self.voices[side].said, self.prompt.stops)

    def listen(self) -> None:
        """Let both models read what was said last; from where the answers part, each on its own."""
        intact, knocked_out = self.voices[INTACT], self.voices[KNOCKED_OUT]
        if intact.readers is knocked_out.readers:
            if intact.said != knocked_out.said:
                knocked_out.readers = {s: lane.fork() for s, lane in intact.readers.items()}
            elif not intact.over:
                hear(intact)
                return
        for voice in (intact, knocked_out):
            if not voice.over:
                hear(voice)


def hear(voice: Voice) -> None:
    """Both models read a voice's last token."""
    for lane in voice.readers.values():
        lane.read(voice.said[-1:])


def generation_rules(loaded: LoadedModel, prompt: TokenizedPrompt) -> LogitsProcessorList:
    """What `generate` would do to the logits before it takes the likeliest token."""
    found: list[LogitsProcessorList] = []

    def keep(model: Any, input_ids: Any, logits_processor: LogitsProcessorList, **_: Any) -> Any:
        found.append(logits_processor)
        return input_ids

    ids = torch.tensor([prompt.tokens], device=loaded.model.device)
    generator: Any = loaded.model
    generator.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=prompt.new_tokens,
        pad_token_id=loaded.tokenizer.pad_token_id,
        custom_generate=keep,
        **greedy_options(json.loads(prompt.options)),
    )
    return found[0]
