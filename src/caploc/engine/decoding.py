"""Greedy answers to many rows at once: a row that is done leaves, and the next takes its slot.

Drafts say what an answer will probably be, and how far it pays to check them. A draft is checked by
reading it in one pass. What the model would have said anyway is kept, up to and including its first
disagreement, so that a draft never changes an answer.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from caploc.engine.asks import INTACT, NumberedMask
from caploc.engine.attention import KeySlots, LayerShared, Segment, SharedSegments
from caploc.engine.encoding import Stops
from caploc.engine.passes import Chunk, FedRow, IntactRecords, PackedModel
from caploc.engine.planning import (
    PASS,
    PASS_ELSEWHERE,
    BatchPlan,
    PlannedRow,
    PlanStage,
    shared_length,
)

PROBES = 16  # where drafts do not pay, one in so many is still made, to see if they do now
FIRST, GROWTH = 8, 3  # a first draft's tokens; while all are right, drafts grow by this factor
PRICE = 0.5  # of a token drafted, in tokens said: its share of a pass over a row's of a step


class Drafts:
    """What was said to each prompt, and how far other masks' answers began alike.

    An answer is the intact model's, or the first that was given. With S(i) the share of drafts that
    are right at least up to token i, drafting token i saves a step's share S(i) times and costs its
    share of a pass each time: a draft is worth its tokens as far as S(i) is at least the ratio of
    the two prices. S comes from how often token i was right when it was reached (Kaplan and Meier
    1958), so that short drafts teach about short ones only.
    """

    def __init__(self) -> None:
        self.answers: dict[tuple[int, ...], list[int]] = {}  # by prompt
        self.reached: list[int] = []
        self.right: list[int] = []
        self.asked = 0

    def saw(self, drafted: int, accepted: int) -> None:
        """Learn from one row: of `drafted` tokens the first `accepted` were right."""
        for place in range(min(accepted + 1, drafted)):
            if place == len(self.reached):
                self.reached.append(0)
                self.right.append(0)
            self.reached[place] += 1
            self.right[place] += place < accepted

    def length(self) -> int:
        """Choose how many tokens are worth drafting."""
        self.asked += 1
        holds = 1.0
        for place, (reached, right) in enumerate(zip(self.reached, self.right, strict=True)):
            holds *= (right + 1) / (reached + 1)
            if holds < PRICE:
                return place or int(self.asked % PROBES == 0)
        return GROWTH * len(self.reached) + FIRST


SECONDS = 0.5  # answers are handed on at least so often, so that little is lost if all is killed
REFILL = 8  # new rows are read when a slot in so many is free: several in one pass cost less


@dataclass(eq=False)
class RunningRow:
    """A row in a slot. `kept` is how many of its own tokens have keys in the slot."""

    row: PlannedRow
    segment: Segment | None
    kept: int
    cost: float  # tokens run for it, in units of a pass through all layers
    said: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DecodedRow:
    """A row's answer, up to the token that ended it, and the tokens run for it."""

    row: PlannedRow
    tokens: list[int]
    cost: float


class Decoder:
    """Answers the rows of a plan; what drafts learn on the way outlives it."""

    def __init__(
        self,
        packed: PackedModel,
        plan: BatchPlan,
        prompts: Sequence[tuple[int, ...]],
        masks: Sequence[NumberedMask],
        stops: Stops,
        drafts: Drafts,
    ) -> None:
        self.packed, self.plan, self.masks, self.stops = packed, plan, masks, stops
        self.prompts, self.drafts = prompts, drafts
        self.own = [tokens[plan.shared(number) :] for number, tokens in enumerate(prompts)]
        self.intact = IntactRecords(packed, plan, masks)
        self.queue: deque[PlannedRow] = deque()
        asked = {row.prompt for stage in plan.stages for row in stage.rows}
        longest = max((len(self.own[prompt]) for prompt in asked), default=0) + stops.limit
        self.room = KeySlots(plan.slots, longest, packed.depth)
        self.alone = PASS.get(packed.device.type, PASS_ELSEWHERE)
        self.running: list[RunningRow | None] = []
        self.done: list[DecodedRow] = []
        self.segments = SharedSegments(packed.depth, packed.device, packed.model.dtype)
        self.sharing: tuple[list[int], list[LayerShared]] = [], []

    def run(self) -> Iterator[list[DecodedRow]]:
        """Answer every row once, in lists as they end."""
        stages, last = deque(self.plan.stages), time.monotonic()
        while stages or self.queue or self.running:
            if not self.queue and stages and not (stages[0].waits and self.running):
                self.begin(stages.popleft())
            if not self.admit():
                self.close_gaps()
                if self.running:
                    self.step()
                    self.close_gaps()
            if len(self.done) >= self.plan.slots or time.monotonic() - last > SECONDS:
                done, self.done = self.done, []
                yield done
                last = time.monotonic()
        yield self.done

    @torch.inference_mode()
    def begin(self, stage: PlanStage) -> None:
        """Record what the stage starts from, and queue its rows."""
        chunks = []
        for prompt in stage.recorded:
            said = self.said(prompt)[: self.stops.limit - 1]
            tokens, segment = (*self.own[prompt], *said), self.intact.prefix_segment(prompt)
            chunks.append(Chunk(tokens, self.masks[INTACT], [len(tokens) - 1], segment))
        self.intact.record(stage.recorded, chunks)
        self.queue.extend(stage.rows)

    def said(self, prompt: int) -> list[int]:
        """Return what was said to a prompt before, if anything, without the token that ended it."""
        return self.drafts.answers.get(self.prompts[prompt], [])

    # New rows

    def admit(self) -> bool:
        """Read prompts of new rows into free slots in one pass, if there are enough of both.

        False if there are not. One pass at a time: where drafts hold, rows end in the pass that
        opens them, and a long queue of such rows must not keep their answers back.
        """
        gaps = [slot for slot, row in enumerate(self.running) if row is None]
        free = gaps + list(range(len(self.running), self.plan.slots))
        if not self.queue or len(free) * REFILL < self.plan.slots:
            return False
        rows, drafts, start = self.next_rows(len(free))
        slots = free[: len(rows)]
        self.running += [None] * (max(slots) + 1 - len(self.running))
        self.open(rows, drafts, slots, start)
        return True

    def next_rows(self, most: int) -> tuple[list[PlannedRow], list[list[int]], int]:
        """Take the next rows that can be read in one pass; also drafts, and where all start."""
        rows: list[PlannedRow] = []
        drafts: list[list[int]] = []
        tokens, lost, depth = 0, 0.0, self.intact.start(self.queue[0])
        while self.queue and len(rows) < most:
            row = self.queue[0]
            deepest = self.intact.start(row)
            if deepest < depth:  # it cannot be started here
                break
            draft = self.first_draft(row, depth)
            length = len(self.own[row.prompt]) + len(draft)
            tokens += length
            lost += length * (deepest - depth) / self.packed.depth
            if rows and (tokens > self.plan.tokens or lost > self.alone):
                break
            rows.append(self.queue.popleft())
            drafts.append(draft)
        return rows, drafts, depth

    def first_draft(self, row: PlannedRow, start: int) -> list[int]:
        """Draft the whole answer; a row that starts above the bottom needs it recorded."""
        answer = self.said(row.prompt)
        if not answer:
            return []
        room = min(self.stops.limit - 1, self.plan.tokens - len(self.own[row.prompt]))
        draft = answer[: max(0, min(self.drafts.length(), room))]
        if start:
            recorded = self.intact.records[row.prompt].tokens[len(self.own[row.prompt]) :]
            draft = draft[: shared_length(draft, recorded)]
        return draft

    @torch.inference_mode()
    def open(
        self,
        rows: Sequence[PlannedRow],
        drafts: Sequence[list[int]],
        slots: Sequence[int],
        start: int,
    ) -> None:
        """Read prompts and first drafts in one pass, and say each row's first tokens."""
        chunks, opened = [], []
        self.join_segments()  # other rows will run, and what none of them reads is let go
        segments = self.intact.segments(rows)
        for row, draft, segment in zip(rows, drafts, segments, strict=True):
            own, residual = self.own[row.prompt], None
            tokens = (*own, *draft)
            if start:
                residual = self.intact.records[row.prompt].residual[start][: len(tokens)]
            read = range(len(own) - 1, len(tokens))
            chunks.append(Chunk(tokens, self.masks[row.mask], read, segment, residual=residual))
            cost = self.intact.cost(len(tokens), start) + self.intact.pay()
            opened.append(RunningRow(row, segment, len(own), cost, draft=draft))
        keeper = self.packed.into_slots(self.room, slots, chunks)
        logits = self.packed.read(self.intact.table, chunks, start, keeper)
        best = logits.argmax(-1).tolist()
        lengths = [len(chunk.tokens) for chunk in chunks]
        if start:  # the keys of the layers below are the intact model's
            alike: dict[tuple[int, int], list[int]] = {}
            for row, slot, length in zip(rows, slots, lengths, strict=True):
                alike.setdefault((row.prompt, length), []).append(slot)
            for (prompt, length), members in alike.items():
                segment = self.intact.records[prompt].segment
                self.room.share(start, members, segment.part(0, length))
        self.hear(opened, slots, best)

    # Running rows

    @torch.inference_mode()
    def step(self) -> None:
        """Feed each running row its last token, in one pass."""
        rows = [row for row in self.running if row is not None]
        fed = [
            FedRow(row.said[-1], self.masks[row.row.mask], row.kept, row.segment) for row in rows
        ]
        logits = self.packed.step(self.intact.table, self.room, fed, self.shared(rows))
        best = logits.argmax(-1).tolist()
        for row in rows:
            row.cost += self.intact.cost(1)
            row.kept += 1
            row.draft = []
        self.hear(rows, range(len(rows)), best)

    def shared(self, rows: Sequence[RunningRow]) -> list[LayerShared]:
        """Return the segments that rows read; looked up anew only when other rows run."""
        now = [id(row) for row in rows]
        if now != self.sharing[0]:
            self.join_segments()
            self.sharing = now, self.segments.readers([row.segment for row in rows])
        return self.sharing[1]

    def join_segments(self) -> None:
        """Join the segments of running rows, and those that are kept for rows to come."""
        self.sharing = [], []
        running = [row.segment for row in self.running if row is not None]
        self.segments.keep([*running, *self.intact.kept_segments()])

    def hear(
        self,
        rows: Sequence[RunningRow],
        slots: Sequence[int],
        best: Sequence[int],
    ) -> None:
        """Take in what each row would say after each token it was fed, as far as drafts held."""
        first = 0
        for row, slot in zip(rows, slots, strict=True):
            said = best[first : first + 1 + len(row.draft)]
            first += len(said)
            accepted = shared_length(row.draft, said)
            if row.draft:
                self.drafts.saw(len(row.draft), accepted)
            for token in said[: accepted + 1]:
                row.said.append(token)
                if over := self.stops.over(row.said):
                    break
            row.kept += accepted
            self.running[slot] = None if over else row
            if over:
                prompt = self.prompts[row.row.prompt]
                if row.row.mask == INTACT or prompt not in self.drafts.answers:
                    self.drafts.answers[prompt] = row.said[:-1]
                self.done.append(DecodedRow(row.row, row.said, row.cost + self.intact.pay()))

    @torch.inference_mode()
    def close_gaps(self) -> None:
        """Move the last rows into free slots, so that running rows stand without gaps."""
        gaps = [slot for slot, row in enumerate(self.running) if row is None]
        count = len(self.running) - len(gaps)
        targets = [slot for slot in gaps if slot < count]
        last = enumerate(self.running[count:], count)
        moved = {slot: row for slot, row in last if row is not None}
        if targets:
            places = self.packed.here(list(moved), targets)
            self.room.move(places[0], places[1], max(row.kept for row in moved.values()))
            for target, row in zip(targets, moved.values(), strict=True):
                self.running[target] = row
        del self.running[count:]
