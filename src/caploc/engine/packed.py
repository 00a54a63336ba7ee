"""The packed engine: rows of many masks end to end in a pass, what they share is read once."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from caploc.components import Grid
from caploc.engine.api import Answer, Ask, Source
from caploc.engine.asks import INTACT, MaskNumbers, run_to_end
from caploc.engine.decoding import Decoder, Drafts
from caploc.engine.encoding import (
    RequestEncoder,
    Settings,
    Span,
    TokenizedPrompt,
    group_prompts,
)
from caploc.engine.passes import PackedModel
from caploc.engine.planning import BatchSizer, PlannedRow, PlannedWork, plan_batches
from caploc.engine.reading import Scorer, SourceReader, TokenTree, merge_spans
from caploc.engine.scores import PendingScore
from caploc.engine.suitability import packed_model
from caploc.models.loading import CutModel
from caploc.tasks.task import Generate

# Masks under which a prompt must be asked for its intact answer to be worth having first: all other
# rows wait for it, and where drafts do not hold it is no more than a sixteenth too much.
ENOUGH = 16
NOT_PACKED = "does not give this model's answers, whose attention it does not know"
PromptAsk = tuple[Ask, TokenizedPrompt]


class PackedBackend:
    """Answers with packed rows, on a model that is shown to give the same answers so."""

    name = "packed"

    def __init__(
        self, loaded: CutModel, encoder: RequestEncoder, sizer: BatchSizer, sources: SourceReader
    ) -> None:
        self.grid: Grid = loaded.grid
        self.encoder = encoder
        self.model = packed_model(loaded)
        if self.model is not None:
            self.generation = Generation(self.model, encoder, sizer, sources)
            self.likelihood = Likelihood(self.model, encoder, sizer, sources)

    def refusal(self, ask: Ask) -> str | None:
        if self.model is None:
            return NOT_PACKED
        if isinstance(ask.request, Generate):
            prompt = self.encoder.prompt(ask.request)
            tokens = len(prompt.tokens) + prompt.new_tokens
        else:
            spans = self.encoder.spans(ask.request)
            tokens = max((len(span.inputs) for span in spans), default=0)
        if tokens > self.model.longest:
            return f"serves rows of {self.model.longest:,} tokens at most, the model's window"
        return None

    def answer(self, asks: Iterable[Ask]) -> Iterator[list[Answer]]:
        """Answer every ask once; those that want text first, since they need most memory."""
        asks = list(asks)
        yield from self.generation.answer([a for a in asks if isinstance(a.request, Generate)])
        yield from self.likelihood.answer([a for a in asks if not isinstance(a.request, Generate)])


@dataclass
class _RowRunner:
    """Answers one kind of ask with packed rows."""

    packed: PackedModel
    encoder: RequestEncoder
    sizer: BatchSizer
    sources: SourceReader


@dataclass
class Generation(_RowRunner):
    """Answers asks that want text; asks with the same stops and limit run together."""

    def __post_init__(self) -> None:
        self.drafts: dict[Settings, Drafts] = defaultdict(Drafts)

    def answer(self, asks: Sequence[Ask]) -> Iterator[list[Answer]]:
        for settings, members in group_prompts(self.encoder, asks).items():
            yield from self.run(settings, members)

    def run(self, settings: Settings, members: list[PromptAsk]) -> Iterator[list[Answer]]:
        """Answer the intact rows first, for drafts of the others."""
        masks, prompts = MaskNumbers(self.packed.loaded.grid), dict[TokenizedPrompt, int]()
        asked: dict[tuple[int, int], list[Ask]] = defaultdict(list)  # (prompt, mask)
        for ask, prompt in members:
            number = prompts.setdefault(prompt, len(prompts))
            asked[number, masks.number(ask.knocked_out, self.sources.substitute(ask))].append(ask)
        texts, pairs = list(prompts), list(asked)
        times = Counter(prompt for prompt, mask in pairs if mask != INTACT)
        drafts = self.drafts[settings]
        first = {pair for pair in pairs if pair[1] == INTACT} | {
            (prompt, INTACT)
            for prompt, count in times.items()
            if count >= ENOUGH and texts[prompt].tokens not in drafts.answers
        }
        order = sorted(first) + [pair for pair in pairs if pair not in first]
        rows = [PlannedRow(number, *pair) for number, pair in enumerate(order)]
        tokens = [text.tokens for text in texts]
        stops = self.encoder.stops(settings)
        work = PlannedWork(
            stems=[text[:-1] for text in tokens],
            lengths=[len(text) for text in tokens],
            answers=stops.limit,
            cuts=[mask.first_layer for mask in masks.all],
            wanted=rows,
            first=range(len(first)),
        )

        def make(rows: Sequence[PlannedRow]) -> Decoder:
            """Plan open rows, and be ready to run them."""
            plan = plan_batches(replace(work, wanted=rows), self.sizer.sizes())
            return Decoder(self.packed, plan, tokens, masks.all, stops, drafts)

        due = 0.0  # intact answers that nobody asked for are paid by the next row
        for batch in run_to_end(rows, make, self.sizer):
            answers: list[Answer] = []
            for decoded in batch:
                prompt, due = texts[decoded.row.prompt], due + decoded.cost
                askers = asked[decoded.row.prompt, decoded.row.mask]
                cost = due / max(1, len(askers))
                said = decoded.tokens
                answers += [self.encoder.answer(ask, prompt, said, cost) for ask in askers]
                due = 0.0 if askers else due
            yield answers


@dataclass
class Likelihood(_RowRunner):
    """Answers asks that want log-probabilities; those of one row of measurement share a tree."""

    def answer(self, asks: Sequence[Ask]) -> Iterator[list[Answer]]:
        pending = [PendingScore(ask, self.encoder) for ask in asks]
        # an empty text has nothing to be read
        yield [one.answer() for one in pending if not one.spans]
        rows: dict[tuple[int, bytes, Source | None], list[PendingScore]] = defaultdict(list)
        for one in pending:
            if one.spans:
                ask = one.ask
                rows[ask.key[0], ask.knocked_out.tobytes(), ask.source].append(one)
        yield from self.run(rows.values())

    def run(self, rows: Iterable[list[PendingScore]]) -> Iterator[list[Answer]]:
        """Answer with a tree of tokens for each row and mask."""
        masks, trees = MaskNumbers(self.packed.loaded.grid), list[TokenTree]()
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
            mask = masks.number(ask.knocked_out, self.sources.substitute(ask))
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
        work = PlannedWork(
            stems=[tree.tokens[: tree.stem] for tree in trees],
            lengths=[len(tree.tokens) for tree in trees],
            answers=0,
            cuts=[mask.first_layer for mask in masks.all],
            wanted=rows,
        )
        return Scorer(self.packed, plan_batches(work, self.sizer.sizes()), trees, masks.all)
