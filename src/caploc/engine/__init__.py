"""The engine: answers requests under masks, many (mask, request) rows at a time.

It gives texts and log-probabilities, each by the first backend that can: which there are stands
here, who answers first, and who takes what that one cannot. The other modules are its parts.
"""

import json
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from caploc.engine.asks import INTACT, Answer, Ask, Engine, MaskNumbers, Source, Way, run_to_end
from caploc.engine.backends import PAGED, VLLM, PagedBackend, VllmBackend, missing_api, missing_vllm
from caploc.engine.decoding import AnswerCache, Decoder, Drafting, DraftOdds
from caploc.engine.encoding import (
    RequestEncoder,
    Settings,
    Span,
    Stops,
    TokenizedPrompt,
    chat_template,
    group_prompts,
)
from caploc.engine.packed import PackedModel
from caploc.engine.plain import (
    NOT_GREEDY,
    PaddedText,
    PaddingCheck,
    PendingScore,
    end_tokens,
    generate_padded,
    greedy_only,
    packed_model,
    score_padded,
)
from caploc.engine.planning import (
    BatchSizer,
    PlannedRow,
    PlannedWork,
    plan_batches,
    shared_prefixes,
)
from caploc.engine.reading import Scorer, SourceReader, TokenTree, merge_spans
from caploc.errors import BadOption, pick
from caploc.grid import Grid
from caploc.models.loading import CutModel
from caploc.models.substitutes import Substitute
from caploc.tasks.task import Generate, Request

__all__ = ["Answer", "Ask", "BatchEngine", "Engine", "Source", "chat_template"]

AUTO, PACKED, PLAIN = "auto", "packed", "plain"
# An engine to ask for, and the backends it stands for, in their order.
ENGINES: dict[str, tuple[str, ...]] = {
    AUTO: (PACKED, PAGED, PLAIN),
    PACKED: (PACKED, PLAIN),
    PAGED: (PAGED, PACKED, PLAIN),
    VLLM: (VLLM, PACKED, PLAIN),
}
GPU_ONLY = (PAGED,)  # which auto leaves out on a CPU, where attention without a mask is slow
SLOW = {PLAIN: ", transformers' generate on padded rows, which shares nothing and is slower"}


class Backend(Engine, Protocol):
    """An engine among several; what it refuses goes to the next."""

    @property
    def name(self) -> str: ...

    def refusal(self, ask: Ask) -> str | None:
        """Say why it cannot answer this, as the end of a sentence; None if it can."""


@runtime_checkable
class Expectant(Engine, Protocol):
    """An engine that can answer beforehand what will probably be asked."""

    def expect(self, asks: Sequence[Ask]) -> None:
        """Have these answered, where there is room, beside those that are asked next."""


def check_engine(name: str, elsewhere: str | None = None) -> None:
    """Refuse an engine that there is not, or that cannot be had here, before a model is loaded.

    `elsewhere` names the option by which other processes answer, if there is one. Raises
    UnknownName or BadOption.
    """
    first = pick(ENGINES, name, "engine")[0]
    if first == PACKED:
        return
    if elsewhere is not None:
        raise BadOption(
            f"--engine {name} answers in one process, and {elsewhere} has several; leave out "
            f"{elsewhere}, or take --engine {PACKED}."
        )
    if (missing := missing_api() if first == PAGED else missing_vllm()) is not None:
        raise BadOption(f"--engine {name} {missing}; install that, or take --engine {PACKED}.")


def route(backends: list[Backend], ask: Ask, why: str) -> tuple[int, str]:
    """Find the first backend that can answer, and say why; the last must refuse nothing."""
    refusals = list[str]()
    for number, backend in enumerate(backends):
        refusal = backend.refusal(ask)
        if refusal is None:
            return number, "; ".join(refusals) or why
        refusals.append(f"{backend.name} {refusal}")
    raise AssertionError(refusals)


def describe_way(way: Way) -> str:
    """Say who answers and why, in a line."""
    return f"Engine {way.engine}{SLOW.get(way.engine, '')}: {way.why}."


# Masks under which a prompt must be asked for its intact answer to be worth having first: all other
# rows wait for it, and where drafts do not hold it is no more than a sixteenth too much.
ENOUGH = 16
ALL, LATER = 10**6, 16  # most tokens of a first draft, and of one in a step, which pads its rows
LENGTHS = 1000  # of answers, which say how long the next will be
NOT_PACKED = "does not give this model's answers, whose attention it does not know"
PromptAsk = tuple[Ask, TokenizedPrompt]
Model = TypeVar("Model", bound=CutModel)


class BatchEngine(Generic[Model]):
    """Answers asks on one model, each by the first of its backends that can."""

    def __init__(
        self,
        loaded: Model,
        batch_size: int | None = None,
        memory: int | None = None,
        backend: str = AUTO,
    ) -> None:
        """Answer with this model.

        `batch_size` caps the rows that run at a time, `memory` the bytes used beside the weights;
        `backend` is one of `ENGINES`.
        """
        self.loaded, self.grid = loaded, loaded.grid
        self.encoder = RequestEncoder(loaded.model, loaded.tokenizer)
        sizer = BatchSizer(loaded.model, batch_size, memory, loaded.team)
        self.packed = packed_model(loaded)
        self.sources = SourceReader(loaded, self.encoder, sizer)
        shared = loaded, self.encoder, sizer, self.packed, self.sources
        self.generation, self.likelihood = Generation(*shared), Likelihood(*shared)
        texts = self.encoder, sizer, self.generation.stopping, self.generation.greedy
        made: dict[str, Backend] = {
            PACKED: LocalBackend(PACKED, self.generation, self.likelihood),
            PLAIN: LocalBackend(PLAIN, self.generation, self.likelihood),
            PAGED: PagedBackend(loaded, *texts),
            VLLM: VllmBackend(loaded, *texts),
        }
        left_out = GPU_ONLY if backend == AUTO and loaded.device.type == "cpu" else ()
        names = pick(ENGINES, backend, "engine")
        self.backends = [made[name] for name in names if name not in left_out]
        self.why = "chosen by --engine auto" if backend == AUTO else "asked for"

    def shared_tokens(self, requests: Sequence[Request]) -> float:
        """Count tokens that a mask reads once for all of these requests, as a mean over requests.

        0 where rows are answered the plain way, which shares nothing.
        """
        if self.packed is None or not requests:
            return 0.0
        stems = [self.encoder.stem(request) for request in requests]
        groups = shared_prefixes(stems)
        return sum(length * len(members) for length, members in groups) / len(stems)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        last = time.perf_counter()
        for part in self.sources.portions(list(asks)):
            for backend, why, members in self._routed(part):
                way = Way(backend.name, why)
                for batch in filter(None, backend.answer(members)):
                    seconds = (time.perf_counter() - last) / len(batch)
                    read = self.sources.pay() / len(batch)
                    filled = partial(replace, seconds=seconds, way=way)
                    yield [filled(a, forward_tokens=a.forward_tokens + read) for a in batch]
                    last = time.perf_counter()

    def _routed(self, asks: Sequence[Ask]) -> Iterator[tuple[Backend, str, list[Ask]]]:
        """Yield asks by who answers them and why, those of the first backend first."""
        routes: dict[tuple[int, str], list[Ask]] = defaultdict(list)
        for ask in asks:
            routes[route(self.backends, ask, self.why)].append(ask)
        for number, why in sorted(routes):
            yield self.backends[number], why, routes[number, why]


@dataclass
class _AskAnswerer:
    """Answers one kind of ask: with packed rows where `packed` is given, else with padded ones."""

    loaded: CutModel
    encoder: RequestEncoder
    sizer: BatchSizer
    packed: PackedModel | None
    sources: SourceReader

    def too_long(self, tokens: int) -> str | None:
        """Say why packed rows cannot serve a row of so many tokens; None if they can."""
        if self.packed is None:
            return NOT_PACKED
        if tokens > self.packed.longest:
            return f"serves rows of {self.packed.longest:,} tokens at most, the model's window"
        return None

    def substitute(self, ask: Ask) -> Substitute | None:
        """Return what takes the place of the heads knocked out; None if that is zero."""
        return None if ask.source is None else self.sources.read(ask.source)


@dataclass
class Generation(_AskAnswerer):
    """Answers asks that want text; asks with the same stops, limit and options run together."""

    def __post_init__(self) -> None:
        self.padding, self.remembered = PaddingCheck(self.loaded, left=True), AnswerCache()
        self.odds: dict[Settings, tuple[DraftOdds, DraftOdds]] = defaultdict(
            lambda: (DraftOdds(ALL), DraftOdds(LATER))
        )
        # lengths of the last answers
        self.seen: dict[Settings, deque[int]] = defaultdict(lambda: deque(maxlen=LENGTHS))
        self.stopping, self.greedy = cache(self._stopping), cache(self._greedy)

    def refusal(self, ask: Ask) -> str | None:
        assert isinstance(ask.request, Generate)
        prompt = self.encoder.prompt(ask.request)
        if not self.greedy(prompt.options):
            return NOT_GREEDY
        return self.too_long(len(prompt.tokens) + prompt.new_tokens)

    def _greedy(self, options: str) -> bool:
        """Tell whether these arguments, as JSON, ask for the likeliest token each time."""
        return greedy_only(self.loaded.model, json.loads(options))

    def answer(self, asks: Sequence[Ask], packs: bool) -> Iterator[list[Answer]]:
        rows = self.packed_rows if packs else self.plain_rows
        for settings, members in group_prompts(self.encoder, asks).items():
            yield from rows(settings, members)

    def _stopping(self, settings: Settings) -> Stops:
        strings, limit, options = settings
        ends = end_tokens(self.loaded.model, json.loads(options))
        return Stops(self.loaded.tokenizer, strings, ends, limit)

    def plain_rows(self, settings: Settings, members: list[PromptAsk]) -> Iterator[list[Answer]]:
        """Answer with transformers' `generate`, longest prompts first."""
        stops = self.stopping(settings)

        def size(member: PromptAsk) -> tuple[int, int]:
            return len(member[1].tokens) + stops.limit, 1

        def generate(part: Sequence[PromptAsk]) -> list[list[int]]:
            batch = [(prompt, ask.knocked_out, self.substitute(ask)) for ask, prompt in part]
            return generate_padded(self.loaded, stops, batch)

        for alike in self.padding.groups(members, lambda member: member[1].tokens):
            for batch in self.sizer.batches(alike, size):
                said = self.sizer.run(generate, batch)
                yield [
                    self.encoder.answer(ask, prompt, tokens)
                    for (ask, prompt), tokens in zip(batch, said, strict=True)
                ]

    def packed_rows(self, settings: Settings, members: list[PromptAsk]) -> Iterator[list[Answer]]:
        """Answer with packed rows: the intact answers first, for drafts of the others."""
        masks, prompts = MaskNumbers(self.loaded.grid), dict[TokenizedPrompt, int]()
        asked: dict[tuple[int, int], list[Ask]] = defaultdict(list)  # (prompt, mask)
        for ask, prompt in members:
            number = prompts.setdefault(prompt, len(prompts))
            asked[number, masks.number(ask.knocked_out, self.substitute(ask))].append(ask)
        texts, pairs = list(prompts), list(asked)
        times = Counter(prompt for prompt, mask in pairs if mask != INTACT)
        first = {pair for pair in pairs if pair[1] == INTACT} | {
            (prompt, INTACT)
            for prompt, count in times.items()
            if count >= ENOUGH and not self.remembered.of(hash(texts[prompt])).root.next
        }
        order = sorted(first) + [pair for pair in pairs if pair not in first]
        rows = [PlannedRow(number, *pair) for number, pair in enumerate(order)]
        tokens, hashes = [text.tokens for text in texts], list(map(hash, texts))
        work = PlannedWork(
            stems=[text[:-1] for text in tokens],
            lengths=[len(text) for text in tokens],
            answers=self.stopping(settings).limit,
            cuts=[mask.first_layer for mask in masks.all],
            wanted=rows,
            first=range(len(first)),
        )
        drafting = Drafting(lambda prompt: self.remembered.of(hashes[prompt]), *self.odds[settings])
        make = partial(self._decoder, settings, tokens, masks, work, drafting)
        due = 0.0  # intact answers that nobody asked for are paid by the next row
        for batch in run_to_end(rows, make, self.sizer):
            answers: list[Answer] = []
            for decoded in batch:
                self.seen[settings].append(len(decoded.tokens))
                prompt, due = texts[decoded.row.prompt], due + decoded.cost
                askers = asked[decoded.row.prompt, decoded.row.mask]
                cost = due / max(1, len(askers))
                said = decoded.tokens
                answers += [self.encoder.answer(ask, prompt, said, cost) for ask in askers]
                due = 0.0 if askers else due
            yield answers

    def _decoder(
        self,
        settings: Settings,
        prompts: Sequence[tuple[int, ...]],
        masks: MaskNumbers,
        work: PlannedWork,
        drafting: Drafting,
        rows: Sequence[PlannedRow],
    ) -> Decoder:
        """Plan open rows and be ready to run them; those not planned stay open.

        Rows that outgrew their slots are planned when no others are left, with room for the longest
        answer. Where slots are short and nothing was answered yet, the intact rows are planned
        alone: they tell how long answers are.
        """
        assert self.packed is not None
        sizes, seen = self.sizer.sizes(drafted=LATER), self.seen[settings]
        fresh = [row for row in rows if row.number not in drafting.outgrown]
        wanted = replace(work, wanted=fresh or rows, seen=seen if fresh else ())
        plan = plan_batches(wanted, sizes)
        short = plan.slots < min(sizes.most_rows, len(rows))
        if short and not seen and any(stage.waits for stage in plan.stages):
            plan = replace(plan, stages=plan.stages[:1])
        stops = self.stopping(settings)
        return Decoder(self.packed, plan, prompts, masks.all, stops, drafting)


@dataclass
class Likelihood(_AskAnswerer):
    """Answers asks that want log-probabilities; those of one row of measurement share a tree."""

    def __post_init__(self) -> None:
        self.padding = PaddingCheck(self.loaded, left=False)

    def refusal(self, ask: Ask) -> str | None:
        assert not isinstance(ask.request, Generate)
        spans = self.encoder.spans(ask.request)
        return self.too_long(max((len(span.inputs) for span in spans), default=0))

    def answer(self, asks: Sequence[Ask], packs: bool) -> Iterator[list[Answer]]:
        pending = [PendingScore(ask, self.encoder) for ask in asks]
        # an empty text has nothing to be read
        yield [one.answer() for one in pending if not one.spans]
        rows: dict[tuple[int, bytes, Source | None], list[PendingScore]] = defaultdict(list)
        for one in pending:
            if one.spans:
                ask = one.ask
                rows[ask.key[0], ask.knocked_out.tobytes(), ask.source].append(one)
        members = rows.values()
        yield from self.packed_rows(members) if packs else self.plain_rows(chain(*members))

    def packed_rows(self, rows: Iterable[list[PendingScore]]) -> Iterator[list[Answer]]:
        """Answer with packed rows, a tree of tokens for each row and mask."""
        masks, trees = MaskNumbers(self.loaded.grid), list[TokenTree]()
        known: dict[tuple[Span, ...], range] = {}
        asked: dict[tuple[int, int], list[list[PendingScore]]] = defaultdict(list)  # (tree, mask)
        for members in rows:
            spans = tuple(span for one in members for span in one.spans)
            owners = [one for one in members for _ in one.spans]
            if spans not in known:
                found = merge_spans(spans)
                known[spans] = range(len(trees), len(trees) + len(found))
                trees += found
            ask = members[0].ask
            mask = masks.number(ask.knocked_out, self.substitute(ask))
            for number in known[spans]:
                asked[number, mask].append(owners)
        planned = [PlannedRow(number, *pair) for number, pair in enumerate(asked)]
        for batch in run_to_end(planned, partial(self._scorer, trees, masks), self.sizer):
            answers: list[Answer] = []
            for scored in batch:
                readers = asked[scored.row.prompt, scored.row.mask]
                cost = scored.cost / len(readers) / len(scored.spans)
                for owners in readers:
                    for span, found in scored.spans:
                        answers += owners[span].take(found, cost)
            yield answers

    def _scorer(
        self, trees: Sequence[TokenTree], masks: MaskNumbers, rows: Sequence[PlannedRow]
    ) -> Scorer:
        """Plan rows of trees, and be ready to run them."""
        assert self.packed is not None
        work = PlannedWork(
            stems=[tree.tokens[: tree.stem] for tree in trees],
            lengths=[len(tree.tokens) for tree in trees],
            answers=0,
            cuts=[mask.first_layer for mask in masks.all],
            wanted=rows,
        )
        return Scorer(self.packed, plan_batches(work, self.sizer.sizes()), trees, masks.all)

    def plain_rows(self, pending: Iterable[PendingScore]) -> Iterator[list[Answer]]:
        """Answer with plain forward passes; spans that read the same under one mask share one."""
        texts: dict[Any, tuple[PaddedText, list[PendingScore]]] = {}
        for one in pending:
            mask, other = one.ask.knocked_out, self.substitute(one.ask)
            for span in one.spans:
                key = span.inputs, mask.tobytes(), other
                empty = PaddedText(span.inputs, mask, [], other), list[PendingScore]()
                text, owners = texts.setdefault(key, empty)
                text.wanted.append(span.continuation)
                owners.append(one)

        def size(pair: tuple[PaddedText, list[PendingScore]]) -> tuple[int, int]:
            return len(pair[0].inputs), max(map(len, pair[0].wanted))

        for alike in self.padding.groups(texts.values(), lambda pair: pair[0].inputs):
            for batch in self.sizer.batches(alike, size):
                results = self.sizer.run(partial(score_padded, self.loaded), [t for t, _ in batch])
                answers: list[Answer] = []
                for (text, owners), scores in zip(batch, results, strict=True):
                    cost = len(text.inputs) / len(owners)
                    for one, found in zip(owners, scores, strict=True):
                        answers += one.take(found, cost)
                yield answers


@dataclass(frozen=True)
class LocalBackend:
    """Packed rows, or transformers' own padded calls, by its name."""

    name: str
    generation: Generation
    likelihood: Likelihood

    @property
    def grid(self) -> Grid:
        return self.generation.loaded.grid

    def refusal(self, ask: Ask) -> str | None:
        if self.name == PLAIN:
            return None
        kind = self.generation if isinstance(ask.request, Generate) else self.likelihood
        return kind.refusal(ask)

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; those that want text first, since they need most memory."""
        asks = list(asks)
        texts = [ask for ask in asks if isinstance(ask.request, Generate)]
        yield from self.generation.answer(texts, self.name == PACKED)
        others = [ask for ask in asks if not isinstance(ask.request, Generate)]
        yield from self.likelihood.answer(others, self.name == PACKED)
