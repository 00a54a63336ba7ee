"""Given texts, read: how likely they are under each mask, and what heads hand on over them.

Log-probabilities are those of many rows: each reads its tree of tokens once, after its mask's
prefix. What heads hand on over texts that stand in for them is read when it is asked for.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial, reduce
from weakref import WeakKeyDictionary

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn
from transformers import PreTrainedModel

from caploc.components import Grid
from caploc.engine.api import Ask, Source
from caploc.engine.asks import INTACT, NumberedMask
from caploc.engine.encoding import RequestEncoder, Span
from caploc.engine.passes import Chunk, IntactRecords, PackedModel
from caploc.engine.planning import BatchPlan, BatchSizer, PlannedRow, PlanStage
from caploc.engine.scores import ContinuationScore, sum_logprobs
from caploc.errors import BadData
from caploc.models.cutting import Projections, list_sites
from caploc.models.hooks import temporary_hooks
from caploc.models.loading import CutModel
from caploc.models.placement import input_device
from caploc.models.substitutes import LayerValues, Substitute


@dataclass(frozen=True, slots=True)
class Ending:
    """A span's own tokens, and the places in its tree whose predictions are scored."""

    span: int
    places: tuple[int, ...]
    tokens: tuple[int, ...]


@dataclass(eq=False)
class TokenTree:
    """Spans that begin alike, such as the choices of a question: each shared token stands once.

    `parents[i]` is the place of the token before token i (-1: none). Parents stand before their
    children.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)

    @property
    def depths(self) -> list[int]:
        """How many tokens stand before each on its branch."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
        return depths

    @property
    def stem(self) -> int:
        """Tokens before the first branch and before the first prediction that is scored."""
        straight = 0
        while straight < len(self.parents) and self.parents[straight] == straight - 1:
            straight += 1
        branches = min((p + 1 for p in self.parents[straight:]), default=straight)
        return min(straight, branches, *(ending.places[0] for ending in self.endings))

    def after(self, count: int) -> "TokenTree":
        """Return the tree without its first `count` tokens, which are part of its stem."""
        endings = [
            Ending(e.span, tuple(place - count for place in e.places), e.tokens)
            for e in self.endings
        ]
        parents = [max(parent - count, -1) for parent in self.parents[count:]]
        return TokenTree(self.tokens[count:], parents, endings)

    def ancestors(self) -> Bool[Tensor, "length length"] | None:
        """Return which tokens each token reads; None if the tree has no branches."""
        if all(parent == place - 1 for place, parent in enumerate(self.parents)):
            return None
        seen = np.eye(len(self.tokens), dtype=bool)
        for place, parent in enumerate(self.parents):
            if parent >= 0:
                seen[place] |= seen[parent]
        return torch.tensor(seen)


def merge_spans(spans: Sequence[Span]) -> list[TokenTree]:
    """Make one tree for each first token; spans that begin with the same tokens share them."""
    found: dict[int, TokenTree] = {}
    children: dict[tuple[int, int, int], int] = {}  # (first token, parent, token) -> place
    for number, span in enumerate(spans):
        root = span.inputs[0]
        tree = found.setdefault(root, TokenTree())
        path, parent = [], -1
        for token in span.inputs:
            place = children.setdefault((root, parent, token), len(tree.tokens))
            if place == len(tree.tokens):  # it stands nowhere yet
                tree.tokens.append(token)
                tree.parents.append(parent)
            path.append(place)
            parent = place
        places = tuple(path[-len(span.continuation) :])
        tree.endings.append(Ending(number, places, span.continuation))
    return list(found.values())


@dataclass(frozen=True, slots=True)
class ScoredRow:
    """A row's spans, each with its likelihood."""

    row: PlannedRow
    spans: list[tuple[int, ContinuationScore]]
    cost: float  # tokens run for it, in units of a pass through all layers


class Scorer:
    """Scores the rows of a plan."""

    def __init__(
        self,
        packed: PackedModel,
        plan: BatchPlan,
        trees: Sequence[TokenTree],
        masks: Sequence[NumberedMask],
    ) -> None:
        self.packed, self.plan, self.masks = packed, plan, masks
        self.own = [tree.after(plan.shared(number)) for number, tree in enumerate(trees)]
        self.depths = [tree.depths for tree in self.own]
        self.intact = IntactRecords(packed, plan, masks)

    def run(self) -> Iterator[list[ScoredRow]]:
        """Score every row once, a list for each pass."""
        for stage in self.plan.stages:
            self.begin(stage)
            queue = deque(stage.rows)
            while queue:
                yield self.score(*self.next_rows(queue))

    @torch.inference_mode()
    def begin(self, stage: PlanStage) -> None:
        chunks = []
        for prompt in stage.recorded:
            own, before = self.own[prompt], self.intact.prefix_segment(prompt)
            read, depths = [len(own.tokens) - 1], self.depths[prompt]
            chunks.append(
                Chunk(own.tokens, self.masks[INTACT], read, before, own.ancestors(), depths)
            )
        self.intact.record(stage.recorded, chunks)

    def next_rows(self, queue: deque[PlannedRow]) -> tuple[list[PlannedRow], int]:
        """Take the next rows that fit into one pass and start at one depth."""
        rows, start = [queue.popleft()], self.intact.start
        tokens, depth = len(self.own[rows[0].prompt].tokens), start(rows[0])
        while queue and start(queue[0]) == depth and len(rows) < self.plan.rows:
            tokens += len(self.own[queue[0].prompt].tokens)
            if tokens > self.plan.tokens:
                break
            rows.append(queue.popleft())
        return rows, depth

    @torch.inference_mode()
    def score(self, rows: Sequence[PlannedRow], start: int) -> list[ScoredRow]:
        chunks = []
        # for one pass: those of all trees together have no bound
        ancestors = {n: self.own[n].ancestors() for n in {row.prompt for row in rows}}
        for row, segment in zip(rows, self.intact.segments(rows), strict=True):
            tree, mask = self.own[row.prompt], self.masks[row.mask]
            chunk = Chunk(
                tree.tokens,
                mask,
                sorted({place for ending in tree.endings for place in ending.places}),
                segment,
                ancestors[row.prompt],
                self.depths[row.prompt],
                self.intact.records[row.prompt].residual[start] if start else None,
            )
            chunks.append(chunk)
        logits = self.packed.read(self.intact.table, chunks, start)
        scored, first = [], 0
        for row, chunk in zip(rows, chunks, strict=True):
            here = logits[first : first + len(chunk.read)]
            cost = self.intact.cost(len(chunk.tokens), start) + self.intact.pay()
            scored.append(ScoredRow(row, self._spans(row, chunk.read, here), cost))
            first += len(chunk.read)
        return scored

    def _spans(
        self, row: PlannedRow, read: Sequence[int], logits: Tensor
    ) -> list[tuple[int, ContinuationScore]]:
        """Return each span's result, from the logits at the places read."""
        at = {place: number for number, place in enumerate(read)}
        results = []
        for ending in self.own[row.prompt].endings:
            chosen = logits[[at[place] for place in ending.places]]
            wanted = torch.tensor(ending.tokens, device=logits.device)
            results.append((ending.span, sum_logprobs(chosen, wanted)))
        return results


SHARE = 4  # of the memory beside the weights one part is for what stands in
Tokens = tuple[int, ...]
Key = tuple[tuple[Tokens, ...], bool]


class SourceReader:
    """Reads sources on the intact model, one text after another, and keeps the latest."""

    def __init__(self, loaded: CutModel, encoder: RequestEncoder, sizer: BatchSizer) -> None:
        self.loaded, self.encoder, self.sizer = loaded, encoder, sizer
        self.keys: WeakKeyDictionary[Source, Key] = WeakKeyDictionary()
        self.kept: OrderedDict[Key, Substitute] = OrderedDict()
        self.due = 0  # tokens read that no answer has paid for

    @cached_property
    def room(self) -> int:
        """The bytes that may be kept."""
        return self.sizer.budget() // SHARE

    def portions(self, asks: Sequence[Ask]) -> Iterator[list[Ask]]:
        """Part asks so that what their sources hand on fits into the room, each source whole."""
        part, taken, by_source = list[Ask](), 0, dict[Source, list[Ask]]()
        for ask in asks:
            if ask.source is None or not ask.knocked_out.any():
                part.append(ask)
            else:
                by_source.setdefault(ask.source, []).append(ask)
        for source, members in by_source.items():
            size = self.read(source).bytes
            if part and taken + size > self.room:
                yield part
                part, taken = [], 0
            part, taken = part + members, taken + size
        yield part

    def substitute(self, ask: Ask) -> Substitute | None:
        """Return what takes the place of the heads knocked out; None if that is zero."""
        return None if ask.source is None else self.read(ask.source)

    def read(self, source: Source) -> Substitute:
        """Return what heads hand on over a source."""
        if source not in self.keys:
            texts = tuple(self.encoder.context(text) for text in source.texts)
            self.keys[source] = texts, source.mean
        key = self.keys[source]
        if key not in self.kept:
            self.kept[key] = self._record(*key)
            while len(self.kept) > 1 and sum(each.bytes for each in self.kept.values()) > self.room:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]

    def pay(self) -> int:
        """Return how many tokens were read that were not paid for yet."""
        due, self.due = self.due, 0
        return due

    def _record(self, texts: tuple[Tokens, ...], mean: bool) -> Substitute:
        model = self.loaded.model, self.loaded.projections, self.loaded.grid
        self.due += sum(map(len, texts))
        return Substitute(mean_outputs(*model, texts) if mean else read_outputs(*model, texts[0]))


@torch.no_grad()
def read_outputs(
    model: PreTrainedModel, projections: Projections, grid: Grid, text: Tokens
) -> list[LayerValues | None]:
    """Return, on the host, what each layer's parts hand on at each token of a text."""
    seen: list[Tensor | None] = [None] * grid.layers

    def listen(layer: int, parts: int, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        seen[layer] = args[0].detach().reshape(len(text), parts, -1).cpu()

    listening = (
        projection.register_forward_pre_hook(partial(listen, layer, columns.stop - columns.start))
        for layer, columns, projection in list_sites(projections, grid)
    )
    with temporary_hooks(listening):
        ids = torch.tensor([list(text)], device=input_device(model))
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
    return seen


def mean_outputs(
    model: PreTrainedModel, projections: Projections, grid: Grid, texts: Sequence[Tokens]
) -> list[LayerValues | None]:
    """Return what each layer's parts hand on in the mean over all tokens of texts, as one entry.

    Raises BadData if there is no text, or a text has no token.
    """
    check_texts(texts)
    # sums in double precision: those of many tokens in half precision drift
    found = (read_outputs(model, projections, grid, text) for text in texts)
    sums = [[each if each is None else each.double().sum(0) for each in one] for one in found]
    count = sum(map(len, texts))
    return [
        None if each[0] is None else (reduce(torch.add, each) / count).float()[None]
        for each in zip(*sums, strict=True)
    ]


def check_texts(texts: Sequence[Sequence[int]]) -> None:
    """Refuse texts to take a head's place from that are none, or have no tokens."""
    if not texts or not all(map(len, texts)):
        raise BadData("The reference needs at least one text, and each at least one token.")
