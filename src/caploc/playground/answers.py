"""Two answers to one prompt, intact and knocked out: written token by token, read, or talked."""

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import LogitsProcessorList, PreTrainedTokenizerBase

from caploc.components import Head, parse_components
from caploc.contents import Answers, read_file
from caploc.declaration import Allowed
from caploc.engine.batch import BatchEngine
from caploc.engine.encoding import UNFINISHED, Span, Stops, TokenizedPrompt, chat_template
from caploc.engine.scores import last_logits
from caploc.errors import BadOption
from caploc.finished import FinishedRun
from caploc.folder import ANSWERS, check_named
from caploc.models.generation import generating
from caploc.models.knockout import knockout
from caploc.models.loading import LoadedModel
from caploc.result import AnswerPair, number
from caploc.tasks.task import LogLikelihood, Rolling, Scored

INTACT, KNOCKED_OUT = SIDES = ("intact", "knocked_out")
LIKELIEST = 5  # alternatives shown for each token
Event = dict[str, Any]  # what the page is sent, as JSON


def compare_odds(
    tokenizer: PreTrainedTokenizerBase,
    token: int,
    logprobs: dict[str, Float[Tensor, " vocabulary"]],
) -> dict[str, Any]:
    """Return a token's log-probability on each side, and there the likeliest tokens with theirs.

    They are in nats, None where a model is broken.
    """

    def likeliest(side: str) -> list[tuple[str, float | None]]:
        best = torch.topk(logprobs[side], min(LIKELIEST, len(logprobs[side])))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(str(tokenizer.decode([token])), number(value)) for token, value in pairs]

    odds = {side: number(float(logprobs[side][token])) for side in SIDES}
    return {**odds, "likeliest": {side: likeliest(side) for side in SIDES}}


class Pieces:
    """Cuts a text into what each of its tokens adds, token by token.

    A token that leaves a character unfinished adds nothing; the one that completes it adds all.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, before: Sequence[int] = ()) -> None:
        self.tokenizer, self.tokens = tokenizer, list(before)
        self.shown = self.decoded()

    def add(self, token: int) -> str:
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


class Stream:
    """Reads a text bit by bit; `logits` are those of the token that would come next.

    The heads are knocked out during each reading and at no other time, so that streams of different
    heads may take turns on one model.
    """

    logits: Float[Tensor, "1 vocabulary"]  # in float32, whatever the model's dtype

    def __init__(self, loaded: LoadedModel, heads: Sequence[Head]) -> None:
        self.loaded, self.heads = loaded, tuple(heads)
        self.text: list[int] = []
        self.keys: Any = None
        self.last_only = "logits_to_keep" in inspect.signature(loaded.model.forward).parameters

    @torch.inference_mode()
    def read(self, tokens: Sequence[int]) -> None:
        self.text += tokens
        # a model that keeps no keys reads its text anew
        new = self.text if self.keys is None else tokens
        options: dict[str, Any] = {"logits_to_keep": 1} if self.last_only else {}
        here = self.loaded.model.device
        with knockout(self.loaded, self.heads):
            output = self.loaded.model(
                input_ids=torch.tensor([list(new)], device=here),
                attention_mask=torch.ones(1, len(self.text), dtype=torch.long, device=here),
                past_key_values=self.keys,
                use_cache=True,
                **options,
            )
        self.keys = getattr(output, "past_key_values", None)
        self.logits = output.logits[:, -1].to(torch.float32)

    def fork(self) -> "Stream":
        """Return a stream that has read the same and may read something else from here on."""
        other = copy(self)
        other.text, other.keys = list(self.text), deepcopy(self.keys)
        return other

    @property
    def logprobs(self) -> Float[Tensor, " vocabulary"]:
        """Log-probability, in nats, of every token that could come next."""
        return torch.log_softmax(self.logits[0], dim=-1)


@dataclass
class GrowingAnswer:
    """One side's answer so far, and both models reading it."""

    readers: dict[str, Stream]
    pieces: Pieces
    said: list[int] = field(default_factory=list)
    over: str = ""  # why it ended; empty while it goes on

    def read_last(self) -> None:
        for stream in self.readers.values():
            stream.read(self.said[-1:])


class PairedGeneration:
    """Both models answer greedily, as `generate(do_sample=False)` does; each reads both answers.

    `prompts` are what each side answers: one text, or in a talk each side's own.
    Penalties and other rules of the model's generation config decide what is said, as in
    `generate`; the probabilities shown are the model's own, before such rules.
    """

    def __init__(
        self,
        engine: BatchEngine[LoadedModel],
        prompts: Mapping[str, TokenizedPrompt],
        heads: tuple[Head, ...],
    ) -> None:
        self.engine, self.loaded, self.prompts, self.heads = engine, engine.loaded, prompts, heads
        self.answers: dict[str, GrowingAnswer] = {}
        prompt = prompts[INTACT]
        settings = (prompt.stops, prompt.new_tokens, prompt.options)
        self.stops: Stops = engine.encoder.stops(settings)
        self.rules = {side: generation_rules(self.loaded, prompts[side]) for side in SIDES}

    def events(self) -> Iterator[Event]:
        """Yield what each side says, a token at a time, and when and why it ends."""
        before = {side: self.prompts[side].tokens for side in SIDES}
        readers = dict.fromkeys(SIDES, self.read_prompt(before[INTACT]))
        if before[INTACT] != before[KNOCKED_OUT]:
            readers[KNOCKED_OUT] = self.read_prompt(before[KNOCKED_OUT])
        tokenizer = self.loaded.tokenizer
        self.answers = {
            side: GrowingAnswer(readers[side], Pieces(tokenizer, before[side])) for side in SIDES
        }
        yield {"event": "begin", "prompt_tokens": len(before[INTACT])}
        while speaking := [side for side in SIDES if not self.answers[side].over]:
            for side in speaking:
                yield self.extend(side)
            for side in speaking:
                if why := self.answers[side].over:
                    yield {"event": "end", "side": side, "why": why, "text": self.answer(side)}
            self.read_on()

    def read_prompt(self, tokens: Sequence[int]) -> dict[str, Stream]:
        """Return both models, having read a prompt."""
        streams = {INTACT: Stream(self.loaded, ()), KNOCKED_OUT: Stream(self.loaded, self.heads)}
        for stream in streams.values():
            stream.read(tokens)
        return streams

    def extend(self, side: str) -> Event:
        answer = self.answers[side]
        text: Any = torch.tensor(
            [[*self.prompts[side].tokens, *answer.said]], device=self.loaded.model.device
        )
        token = int(self.rules[side](text, answer.readers[side].logits.clone()).argmax())
        logprobs = {reader: stream.logprobs for reader, stream in answer.readers.items()}
        answer.said.append(token)
        if self.stops.over(answer.said):
            stopped = "stop string" if self.stops.stopped(answer.said) else "limit"
            answer.over = "end token" if token in self.stops.ends else stopped
        return {
            "event": "token",
            "side": side,
            "token": token,
            "text": answer.pieces.add(token),
            "ends": token in self.stops.ends,
            **compare_odds(self.loaded.tokenizer, token, logprobs),
        }

    def answer(self, side: str) -> str:
        """Return what a side has said, cut at its first stop string."""
        return self.engine.encoder.cut(self.answers[side].said, self.prompts[side].stops)

    def read_on(self) -> None:
        """Let both models read what was said last; from where the answers part, each on its own."""
        intact, knocked_out = self.answers[INTACT], self.answers[KNOCKED_OUT]
        if intact.readers is knocked_out.readers:
            if intact.said != knocked_out.said:
                forks = {side: stream.fork() for side, stream in intact.readers.items()}
                knocked_out.readers = forks
            elif not intact.over:
                intact.read_last()
                return
        for answer in (intact, knocked_out):
            if not answer.over:
                answer.read_last()


def generation_rules(loaded: LoadedModel, prompt: TokenizedPrompt) -> LogitsProcessorList:
    """Return what a task's options do to the logits before the likeliest token is taken."""
    found: list[LogitsProcessorList] = []

    def keep(model: Any, input_ids: Any, logits_processor: LogitsProcessorList, **_: Any) -> Any:
        found.append(logits_processor)
        return input_ids

    ids = torch.tensor([prompt.tokens], device=loaded.model.device)
    generator: Any = loaded.model
    own = {"max_new_tokens": prompt.new_tokens, "pad_token_id": loaded.tokenizer.pad_token_id}
    with generating(generator, json.loads(prompt.options) | own) as (config, rest):
        generator.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            generation_config=config,
            custom_generate=keep,
            **rest,
        )
    return found[0]


class PairedReading:
    """Reads the requests of one example with both models.

    After `events`, `responses` holds what each side answers, as the engine would.
    """

    def __init__(
        self,
        engine: BatchEngine[LoadedModel],
        requests: Sequence[LogLikelihood | Rolling],
        heads: tuple[Head, ...],
    ) -> None:
        self.engine, self.requests = engine, requests
        self.heads: dict[str, tuple[Head, ...]] = {INTACT: (), KNOCKED_OUT: heads}
        self.responses: dict[str, list[Scored]] = {side: [] for side in SIDES}

    def events(self) -> Iterator[Event]:
        """Yield the tokens of each text as they are read, then its log-probability on each side."""
        for place, request in enumerate(self.requests):
            yield {"event": "choice", "choice": place}
            totals = {side: Scored(0.0, True, 0) for side in SIDES}
            for span in self.engine.encoder.spans(request):
                yield self.read(span, totals)
            for side in SIDES:
                self.responses[side].append(totals[side])
            yield {
                "event": "read",
                "choice": place,
                **{side: number(totals[side].logprob) for side in SIDES},
            }

    def read(self, span: Span, totals: dict[str, Scored]) -> Event:
        """Read one span with both models and add what they find to the totals."""
        logprobs = {side: self.logprobs(side, span) for side in SIDES}
        wanted = torch.tensor(span.continuation)
        for side, found in logprobs.items():
            chosen = found.gather(1, wanted[:, None].to(found.device))
            before = totals[side]
            totals[side] = Scored(
                before.logprob + float(chosen.double().sum()),
                before.greedy and found.argmax(-1).tolist() == list(span.continuation),
                before.tokens + len(span.continuation),
            )
        tokenizer = self.engine.loaded.tokenizer
        context = span.inputs[: len(span.inputs) + 1 - len(span.continuation)]
        cut = Pieces(tokenizer, context)
        tokens = [
            {
                "token": token,
                "text": cut.add(token),
                **compare_odds(tokenizer, token, {side: logprobs[side][place] for side in SIDES}),
            }
            for place, token in enumerate(span.continuation)
        ]
        return {"event": "tokens", "tokens": tokens}

    @torch.inference_mode()
    def logprobs(self, side: str, span: Span) -> Float[Tensor, "tokens vocabulary"]:
        """Log-probabilities of whatever could stand where the span's continuation stands."""
        model = self.engine.loaded.model
        ids = torch.tensor([span.inputs], device=model.device)
        with knockout(self.engine.loaded, self.heads[side]):
            logits = last_logits(model, ids, len(span.inputs) - len(span.continuation))
        return torch.log_softmax(logits[0].float(), dim=-1)


@dataclass(frozen=True)
class Chat:
    """A loaded model and the heads that it does without in its second answers."""

    loaded: LoadedModel
    heads: list[str]
    tokens: int
    templated: bool  # whether it is talked to in its chat template
    end: str  # a text that ends an answer: that of its line, where the task's answers have one
    broken: AnswerPair | None  # an example of the task, asked without one, that the heads decide

    @classmethod
    def of(
        cls, folder: Path, heads: str | None, tokens: int, allowed: Allowed, *, plain: bool = False
    ) -> "Chat":
        """Load a finished run's model; `heads` are names, if not those that the run found.

        A model with a chat template is talked to in it, unless `plain`; others continue the text.

        Raises:
            BadOption: if there is no head to knock out, or no token to say.
            UserError: if the folder holds no finished run, or its model has changed.
            UnknownName: if the model has no such head.
        """
        if tokens < 1:
            raise BadOption(f"--tokens must be 1 or more; got {tokens}.")
        run = FinishedRun.read(folder if heads else check_named(folder), allowed)
        names = list(map(str, parse_components(heads))) if heads else list(run.result.top)
        loaded = run.engine().loaded
        loaded.grid.mask(names)
        templated = not plain and loaded.tokenizer.chat_template is not None
        example, own = find_broken(run), set(names) == set(run.result.top)
        lined = not templated and example is not None and "\n" not in (example.intact or "")
        end = "\n" if lined else ""
        return cls(loaded, names, tokens, templated, end, example if own else None)

    def opening(self) -> str:
        """Say what is missing, and of a task that is asked otherwise than a chat, how it is."""
        said = (
            f"Without {', '.join(self.heads)}. An empty line (or /quit) ends it; \\n breaks a line."
        )
        if self.end:
            said += " Answers end with their line, as the task's do."
        if self.broken is None:
            return said
        text = (self.broken.prompt or "").replace("\n", "\\n")
        example = f"{text}\n(intact {self.broken.intact!r}, without {self.broken.knocked_out!r})"
        if not self.templated:
            return f"{said}\nAn example of the task, to begin with:\n{example}"
        return (
            f"{said}\nThe heads were found on plain text, and this talks in the model's chat "
            "template, where less of it may show. With --plain the model goes on with what is "
            f"typed, as in this example of the task:\n{example}"
        )

    def answer(self, text: str) -> Iterator[tuple[str, str]]:
        """Yield both answers to a text, each with its side's name."""
        tokenizer: Any = self.loaded.tokenizer
        if self.templated:
            text = chat_template(tokenizer)([{"role": "user", "content": text}])
        # a template writes the tokens that begin a text itself
        told = tokenizer(text, return_tensors="pt", add_special_tokens=not self.templated)
        prompt = told.to(self.loaded.device)
        model: Any = self.loaded.model
        cut = knockout(self.loaded, self.heads)
        ends: dict[str, Any] = {"stop_strings": [self.end], "tokenizer": tokenizer}
        for side, without in (("intact", nullcontext()), ("without", cut)):
            with without:
                said = model.generate(
                    **prompt,
                    max_new_tokens=self.tokens,
                    do_sample=False,
                    pad_token_id=tokenizer.pad_token_id,
                    **(ends if self.end else {}),
                )
            new = said[0, prompt["input_ids"].shape[1] :]
            yield side, tokenizer.decode(new, skip_special_tokens=True).strip()


def find_broken(run: FinishedRun) -> AnswerPair | None:
    """Find an example that was right, and is wrong without the run's heads.

    None where the task was asked in a chat template, or no such answer was kept.
    """
    path = run.folder / ANSWERS
    if run.study.options.chat_template or not path.exists():
        return None
    for pair in read_file(path, Answers).root:
        known = None not in (pair.prompt, pair.intact_outcome, pair.knocked_out_outcome)
        if known and pair.intact_outcome > pair.knocked_out_outcome:  # type: ignore[operator]
            return pair
    return None
