"""Log-probabilities of many rows: each reads its passage once, after its mask's prefix."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from caploc.engine.intact import Intact, KnockedOut, Meter
from caploc.engine.packed import Chunk, PackedModel
from caploc.engine.passages import Passage
from caploc.engine.plain import judged
from caploc.engine.planning import Plan, Stage, Wanted


@dataclass(frozen=True, slots=True)
class Judged:
    """A row's spans, each with its summed log-probability and whether it was the likeliest."""

    wanted: Wanted
    spans: list[tuple[int, float, bool]]
    cost: float  # tokens run for it, in units of a pass through all layers


class Scorer:
    """Scores the rows of a plan."""

    def __init__(
        self,
        packed: PackedModel,
        plan: Plan,
        passages: Sequence[Passage],
        masks: Sequence[KnockedOut],
    ) -> None:
        """Score with what the plan says."""
        self.packed, self.plan, self.masks = packed, plan, masks
        shared = [0 if n is None else len(plan.prefixes[n]) for n in plan.prefix]
        self.own = [p.after(count) for p, count in zip(passages, shared, strict=True)]
        self.depths = [passage.depths for passage in self.own]
        self.meter = Meter(packed.depth)
        self.intact = Intact(
            packed, plan.prefixes, plan.prefix_depths, plan.tokens, plan.rows, self.meter
        )

    def run(self) -> Iterator[list[Judged]]:
        """Score every row once, a list for each pass."""
        for stage in self.plan.stages:
            self.begin(stage)
            queue = deque(stage.rows)
            while queue:
                yield self.judge(*self.together(queue))

    @torch.inference_mode()
    def begin(self, stage: Stage) -> None:
        """Record what the stage starts from."""
        chunks = []
        for prompt in stage.recorded:
            number = self.plan.prefix[prompt]
            before = self.intact.prefix(number).segment if number is not None else None
            own = self.own[prompt]
            chunks.append(
                Chunk(
                    own.tokens,
                    self.intact.heads,
                    [len(own.tokens) - 1],
                    before,
                    own.tree(),
                    self.depths[prompt],
                )
            )
        self.intact.record(stage.recorded, chunks, stage.depths)

    def together(self, queue: deque[Wanted]) -> tuple[list[Wanted], int]:
        """The next rows that fit into one pass and start at one depth."""
        rows = [queue.popleft()]
        tokens, depth = self.length(rows[0]), self.start(rows[0])
        while queue and self.start(queue[0]) == depth and len(rows) < self.plan.rows:
            tokens += self.length(queue[0])
            if tokens > self.plan.tokens:
                break
            rows.append(queue.popleft())
        return rows, depth

    def length(self, row: Wanted) -> int:
        """The tokens that a row reads itself."""
        return len(self.own[row.prompt].tokens)

    def start(self, row: Wanted) -> int:
        """The depth at which a row can be started."""
        record = self.intact.records.get(row.prompt)
        return record.start(self.masks[row.mask].cut) if record else 0

    @torch.inference_mode()
    def judge(self, rows: Sequence[Wanted], start: int) -> list[Judged]:
        """Read rows in one pass."""
        chunks = []
        # for one pass: those of all passages together have no bound
        trees = {prompt: self.own[prompt].tree() for prompt in {row.prompt for row in rows}}
        segments = self.intact.segments(
            [(self.plan.prefix[row.prompt], self.masks[row.mask]) for row in rows]
        )
        for row, segment in zip(rows, segments, strict=True):
            passage, mask = self.own[row.prompt], self.masks[row.mask]
            residual = self.intact.records[row.prompt].residual[start] if start else None
            chunk = Chunk(
                passage.tokens,
                mask.heads,
                sorted({place for target in passage.targets for place in target.places}),
                segment,
                trees[row.prompt],
                self.depths[row.prompt],
                residual,
            )
            chunks.append(chunk)
        logits = self.packed.read(chunks, start)
        judged_rows, first = [], 0
        for row, chunk in zip(rows, chunks, strict=True):
            here = logits[first : first + len(chunk.read)]
            cost = self.meter.run(len(chunk.tokens), start) + self.meter.pay()
            judged_rows.append(Judged(row, self.spans(row, chunk.read, here), cost))
            first += len(chunk.read)
        return judged_rows

    def spans(
        self, row: Wanted, read: Sequence[int], logits: Tensor
    ) -> list[tuple[int, float, bool]]:
        """Each span's result, from the logits at the places read."""
        at = {place: number for number, place in enumerate(read)}
        results = []
        for target in self.own[row.prompt].targets:
            chosen = logits[[at[place] for place in target.places]]
            wanted = torch.tensor(target.tokens, device=logits.device)
            results.append((target.span, *judged(chosen, wanted)))
        return results
