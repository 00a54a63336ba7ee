"""Which rows are open; have them answered; store them; count what they took."""

import math
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np

from caploc.components import Grid, Mask, find_grid
from caploc.engine.api import Answer, Engine, Model_co, RowEngine, Way
from caploc.modes import Intervention, Sources, asks_of
from caploc.options import ZERO
from caploc.progress import Progress
from caploc.recovery import Measurements
from caploc.registries import PLAIN
from caploc.result import Score
from caploc.search import Plan
from caploc.store import Question, Row, Store, as_kept, pack, unpack
from caploc.tasks.task import Response, Scored, Task, responses_json

Result = TypeVar("Result")
Key = tuple[bytes, str]  # of a row: its packed mask, and its example's key
OpenRow = tuple[Key, tuple[Mask, int]]  # its key; its mask and example
ASKED_AT_ONCE = 20_000  # rows handed to the engine in one go, which it may reorder
SLOW = {PLAIN: ", which shares nothing between rows and is slower"}


@dataclass
class Cost:
    """What the rows of a run took, whether they were measured now or before."""

    rows: int = 0
    intact: int = 0  # of them, those with nothing knocked out
    forward_tokens: float = 0.0  # run, in units of a pass through all layers
    plain_tokens: int = 0  # of reading and saying every row alone
    seconds: float = 0.0
    stepped_in: set[Way] = field(default_factory=set)  # engines not asked first, and why

    def as_dict(self) -> dict[str, int | float]:
        return {
            "rows": self.rows,
            "forward_tokens": round(self.forward_tokens),
            "plain_tokens": self.plain_tokens,
            "seconds": round(self.seconds, 3),
        }

    def tell_ways(self, answers: Sequence[Answer], progress: Progress) -> None:
        """Tell, once each, which engine had to step in, and why."""
        for answer in answers:
            if (way := answer.way) is not None and way.why and way not in self.stepped_in:
                slow = SLOW.get(way.engine, "")
                progress.tell(f"Engine {way.engine}{slow}, answers: {way.why}.")
                self.stepped_in.add(way)

    def count(self, rows: Sequence[Row]) -> None:
        self.rows += len(rows)
        self.intact += sum(not len(unpack(row.mask)) for row in rows)
        self.forward_tokens += sum(row.tokens for row in rows)
        self.plain_tokens += sum(row.plain_tokens for row in rows)
        self.seconds += sum(row.seconds for row in rows)


class Meter:
    """Measures rows of one task on one model, through the store."""

    def __init__(  # noqa: PLR0913  (who answers, where rows are kept, what is asked)
        self,
        engine: Engine,
        store: Store,
        task: Task,
        question: Question,
        cost: Cost,
        sources: Sources | None = None,
        grid: Grid[Any] | None = None,
    ) -> None:
        """Read what the store holds of this question; without `sources` heads are zeroed.

        Masks are over the components of `grid`, or without it over what the engine cuts.
        """
        self.engine, self.store, self.task, self.cost = engine, store, task, cost
        self.sources, self.grid = sources, grid or engine.grid
        self.question = store.question_id(question)
        self.known = store.load(self.question)
        self.counted = set[Key]()

    def measure(self, plan: Plan, progress: Progress, what: str) -> list[Row]:
        """Return the plan's rows in its order; those the store has are not asked again."""
        keys, todo = self.planned(plan)
        new = set(keys) - self.counted  # a row that several stages ask for is one
        progress.start(what, len(new))
        progress.advance(len(new) - len(todo), 0)
        for first in range(0, len(todo), ASKED_AT_ONCE):
            self.ask(todo[first : first + ASKED_AT_ONCE], progress)
        self.cost.count([self.known[key] for key in new])
        self.counted.update(keys)
        # A stored row may have been another example's number: the data may have been reordered.
        return [
            replace(self.known[key], number=int(example))
            for key, example in zip(keys, plan.example, strict=True)
        ]

    def planned(self, plan: Plan) -> tuple[list[Key], list[OpenRow]]:
        """The keys of the plan's rows, in its order; and those that are not known, each once.

        Rows are kept by what is cut, so that a group's row is also that of its heads.
        """
        masks = self.grid.cut_mask(plan.masks)
        packed, examples = [pack(mask) for mask in masks], [*map(int, plan.example)]
        keys = [(packed[m], self.task.key(e)) for m, e in zip(plan.mask, examples, strict=True)]
        asked = zip(keys, plan.mask, examples, strict=True)
        rows = {key: (masks[mask], example) for key, mask, example in asked}
        return keys, [row for row in rows.items() if row[0] not in self.known]

    def ask(self, todo: Sequence[OpenRow], progress: Progress) -> None:
        """Have open rows answered, and store each the moment its batch ends."""
        waiting = [Waiting(key, example) for key, (_, example) in todo]
        asks = list(asks_of(self.task, self.sources, [row for _, row in todo]))
        for ask in asks:
            waiting[ask.key[0]].responses.append(None)
        for batch in self.engine.answer(asks):
            self.cost.tell_ways(batch, progress)
            done = list(self.rows([waiting[number] for number in self.filled(batch, waiting)]))
            self.known |= {(row.mask, row.example): row for row in done}
            self.store.add(self.question, done)
            progress.advance(len(done), sum(row.tokens for row in done))

    def filled(self, batch: Sequence[Answer], waiting: "list[Waiting]") -> Iterator[int]:
        """Take in a batch of answers; yield the rows that now have all of theirs."""
        for answer in batch:
            number, place = answer.key
            row = waiting[number]
            row.responses[place] = answer.response
            row.tokens += answer.forward_tokens
            row.plain_tokens += answer.plain_tokens
            row.seconds += answer.seconds
            if None not in row.responses:
                yield number

    def rows(self, filled: "Sequence[Waiting]") -> Iterator[Row]:
        """Score rows in their order; side by side where each takes a program's time to run."""
        if not self.task.metric.runs_code:
            yield from map(self.row, filled)
            return
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            yield from pool.map(self.row, filled)

    def row(self, waiting: "Waiting") -> Row:
        responses = tuple(response for response in waiting.responses if response is not None)
        broken = any(isinstance(r, Scored) and not math.isfinite(r.logprob) for r in responses)
        item = None if broken else as_kept(self.task.item(waiting.example, responses))
        return Row(
            *waiting.key,
            number=waiting.example,
            outcome=math.nan if broken else self.task.outcome(item),
            item=item,
            responses=responses_json(responses),
            tokens=waiting.tokens,
            plain_tokens=waiting.plain_tokens,
            seconds=waiting.seconds,
        )

    def score(self, rows: Sequence[Row]) -> Score:
        """Aggregate rows as the task does; those that could not be scored are left out."""
        scored = [row for row in rows if row.item is not None]
        return self.task.score([row.number for row in scored], [row.item for row in scored])

    def under(
        self, mask: Mask, examples: Sequence[int], progress: Progress, what: str
    ) -> list[Row]:
        return self.measure(Plan.crossed(self.task.name, mask[None], examples), progress, what)


@dataclass
class Meters(Generic[Model_co]):
    """The meters of a loaded model, the store their rows go to, and what those cost so far.

    `components` is the kind, of `KINDS`, that masks are over; None leaves them over what the engine
    cuts, heads or neurons. `intervention` says what takes the place of heads that are knocked out.
    """

    engine: RowEngine[Model_co]
    store: Store
    components: str | None = None
    intervention: Intervention = field(default_factory=Intervention)
    cost: Cost = field(default_factory=Cost)
    known: dict[Question, Meter] = field(default_factory=dict)
    sources: dict[tuple[str, str, str], Sources | None] = field(default_factory=dict)

    @property
    def grid(self) -> Grid[Any]:
        """The grid that masks are over."""
        cut: Any = self.engine.loaded.grid
        return cut if self.components is None else find_grid(self.components, cut)

    def meter(self, task: Task) -> Meter:
        """Return the meter of a task; one a question, so that no row is counted twice."""
        loaded = self.engine.loaded
        what = task.name, task.version, task.metric.kind
        if what not in self.sources:
            self.sources[what] = self.intervention.sources(task)
        sources = self.sources[what]
        mode = ZERO if sources is None else sources.question
        question = Question(loaded.fingerprint, loaded.dtype, *what, mode)
        if question not in self.known:
            self.known[question] = Meter(
                self.engine, self.store, task, question, self.cost, sources, self.grid
            )
        return self.known[question]


@dataclass
class Waiting:
    """A row some of whose responses are still out; `key` is its mask's and its example's."""

    key: Key
    example: int
    responses: list[Response | None] = field(default_factory=list)
    tokens: float = 0.0
    plain_tokens: int = 0
    seconds: float = 0.0


def search(
    meters: Mapping[str, Meter], search: Generator[Plan, Measurements, Result], progress: Progress
) -> Result:
    """Let a search plan and look until it has found what it can; return what it found.

    `meters` are those of the probes that plans may name. Where they are of several tasks, a stage
    says which it asks.
    """
    several = len({meter.task.name for meter in meters.values()}) > 1
    try:
        plan = next(search)
        while True:
            meter = meters[plan.probe]
            what = f"{plan.what}, {meter.task.name}" if several else plan.what
            rows = meter.measure(plan, progress, what)
            plan = search.send(as_measurements(plan, rows))
    except StopIteration as end:
        result: Result = end.value
        return result


def as_measurements(plan: Plan, rows: Sequence[Row]) -> Measurements:
    """Turn a plan's rows into numbers."""
    outcomes = np.array([row.outcome for row in rows], dtype=float)
    kept = np.array([told_kept(row.item) for row in rows], dtype=float)
    return Measurements(plan.masks, plan.mask, plan.example, outcomes, kept)


def told_kept(item: Any) -> float:
    """Read from a signal's item whether the answer is still the same; NaN from any other item."""
    pair = isinstance(item, list) and len(item) == 2 and isinstance(item[1], bool)
    return float(item[1]) if pair else math.nan


def outcomes_by_example(rows: Sequence[Row]) -> dict[int, float]:
    """Map the scored examples of one mask's rows to their outcomes."""
    return {row.number: row.outcome for row in rows if not math.isnan(row.outcome)}
