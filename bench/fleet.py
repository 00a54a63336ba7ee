"""A pool of made-up GPUs on a clock of its own, which the real scheduler feeds.

A GPU takes as long for a group of rows as an engine's passes would: what the rows of a prompt or of
a mask share is read once a group, a decode step costs the same for one row as for all slots, and
answers come in lists a second apart. Nothing sleeps: when all jobs wait, the clock goes on to what
happens next.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from math import ceil

import numpy as np

import simulator
from caploc.engine import Answer, Ask
from caploc.heads import HeadGrid
from caploc.recovery import Measurements
from caploc.search import METHODS, Plan, Settings
from caploc.tasks.task import Generate, Generated, LogLikelihood, Request
from caploc.workers.concurrency import ConcurrentJobs, SharedEngine
from caploc.workers.distributed import (
    AnswersCame,
    DistributedEngine,
    GroupEnded,
    ModelIdentity,
    WorkerEvent,
    WorkerJoined,
)
from driving import drive
from fixtures import World

CHARACTERS = 4.0  # of a token
LIST_SECONDS = 1.0  # between two lists of answers


@dataclass(frozen=True)
class Law:
    """How long a group takes: tokens read a second, seconds of a decode step, rows in a step.

    `spread` is the relative standard deviation of a GPU's speed, and of a group's seconds.
    """

    reading: float
    step: float
    slots: int
    answer: int = 100  # tokens
    start: float = 0.5  # seconds before the first token
    spread: float = 0.1

    def seconds(self, asks: Sequence[Ask]) -> float:
        """Seconds of a group: its prompts once by the intact model, half of each row again."""
        texts = {ask.request: len(prompt(ask.request)) / CHARACTERS for ask in asks}
        read = sum(texts.values()) + sum(texts[ask.request] for ask in asks) / 2
        said = sum(isinstance(ask.request, Generate) for ask in asks)
        steps = self.answer * max(1.0, said / self.slots) if said else 0.0
        return self.start + read / self.reading + steps * self.step

    @property
    def best(self) -> float:
        """Seconds of one generated row in a group of many, of prompts of 1,600 characters."""
        many = [
            Ask((n, 0), Generate(f"{n % 100:1600}", "{}"), np.zeros(1, bool)) for n in range(10_000)
        ]
        return self.seconds(many) / len(many)


# An H100 with an eight-billion-parameter model in bfloat16; eight of them with seventy billion.
# Reading at half of the card's peak; a step reads weights and keys once, and some is lost.
EIGHT, SEVENTY = Law(28_000.0, 0.02, 250), Law(24_000.0, 0.035, 400)


def prompt(request: Request) -> str:
    """The text that is read."""
    return request.prompt if isinstance(request, Generate) else getattr(request, "context", "")


@dataclass
class VirtualPool:
    """Workers that take as long as the law says, on a clock that goes on when nothing else can."""

    size: int
    law: Law
    heads: int
    now: float = 0.0
    barred: int = 0
    working: dict[int, float] = field(default_factory=dict)  # seconds with rows, by worker
    groups: int = 0
    rows: int = 0
    queue: list[tuple[float, int, WorkerEvent]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.order, self.random = count(), np.random.default_rng(0)
        self.speed = np.exp(self.law.spread * self.random.standard_normal(self.size + 1))

    def clock(self) -> float:
        """The time in seconds."""
        return self.now

    @property
    def expected(self) -> int:
        """All of them."""
        return self.size

    def refresh(self) -> None:
        """Have the workers join once."""
        for worker in range(len(self.working) + 1, self.size + 1):
            self.working[worker] = 0.0
            grid = HeadGrid((self.heads,), (1,))
            who = ModelIdentity("made up", "f", "float32", "none", grid, "0")
            self.push(0.0, WorkerJoined(worker, f"node {worker}", who))

    def push(self, seconds: float, event: WorkerEvent) -> None:
        """Have something happen so many seconds from now."""
        heappush(self.queue, (self.now + seconds, next(self.order), event))

    def give(self, worker: int, group: int, asks: Sequence[Ask]) -> None:
        """Answer a group in lists, evenly over the time that it takes."""
        luck = np.exp(self.law.spread * self.random.standard_normal())
        seconds = float(self.law.seconds(asks) * self.speed[worker] * luck)
        self.working[worker] += seconds
        self.groups, self.rows = self.groups + 1, self.rows + len(asks)
        lists = max(1, min(len(asks), int(seconds / LIST_SECONDS)))
        size = ceil(len(asks) / lists)
        answers = [Answer(ask.key, Generated("", 1), 0.0, 1.0, 1) for ask in asks]
        for first in range(0, len(asks), size):
            part = answers[first : first + size]
            share = min(1.0, (first + len(part)) / len(asks))
            self.push(seconds * share, AnswersCame(worker, group, part))
        self.push(seconds, GroupEnded(worker, group))

    def events(self, seconds: float) -> list[WorkerEvent]:
        """What happens first within so many seconds; all that happens then."""
        if not self.queue or self.queue[0][0] > self.now + seconds:
            self.now += seconds
            return []
        self.now, found = max(self.now, self.queue[0][0]), []
        while self.queue and self.queue[0][0] <= self.now:
            found.append(heappop(self.queue)[2])
        return found

    def shared_tokens(self, worker: int, requests: Sequence[Request]) -> float:
        """Nothing is shared."""
        return 0.0

    def dismiss(self, worker: int) -> None:
        """Nobody is lost here."""
        raise AssertionError(f"worker {worker} was dismissed at {self.now:.0f} s")

    def close(self) -> None:
        """Nothing is open."""


Replay = Sequence[Plan]  # the plans of a search, in turn


def asks_of(plan: Plan, task: str, length: int) -> Iterator[Ask]:
    """The asks of a plan's rows; likelihoods are of a right answer's tokens."""
    likely = "likelihood" in plan.what
    for row, (mask, example) in enumerate(zip(plan.mask, plan.example, strict=True)):
        text = f"{example:{length}} {task}, {plan.task}"
        request: Request = LogLikelihood(text, " 42") if likely else Generate(text, "{}")
        yield Ask((row, 0), request, plan.masks[mask])


def job_of(plans: Replay, task: str, length: int) -> Callable[[SharedEngine], int]:
    """A study that asks these plans one after another; it returns how many rows those were.

    As with a store, what was answered before is not asked again.
    """

    def job(engine: SharedEngine) -> int:
        known = set[tuple[Request, bytes]]()

        def unknown(plans: Sequence[Plan]) -> dict[tuple[Request, bytes], Ask]:
            asks = (ask for plan in plans for ask in asks_of(plan, task, length))
            found = {(ask.request, ask.knocked_out.tobytes()): ask for ask in asks}
            return {row: ask for row, ask in found.items() if row not in known}

        for plan in plans:
            new = unknown([plan])
            known.update(new)
            engine.expect([*unknown(plan.ahead).values()])
            assert sum(len(batch) for batch in engine.answer(new.values())) == len(new)
        return len(known)

    return job


def recorded(world: World, seed: int) -> Replay:
    """The plans of an adaptive search in a simulated world."""
    answer, plans = simulator.Simulated(world), list[Plan]()

    def keep(plan: Plan) -> Measurements:
        plans.append(plan)
        return answer(plan)

    settings = Settings(seed=seed)
    trial = simulator.Trial(
        "adaptive", "", METHODS["adaptive"].search, settings, simulator.FINDING, simulator.FRESH
    )
    drive(trial.search(simulator.problem_of(world, trial)), keep)
    return plans


def simulate(
    studies: Sequence[Replay], workers: int, law: Law, *, abreast: int, length: int = 1600
) -> dict[str, float]:
    """Run studies side by side, each of a task of its own; say how busy the workers were.

    Of the rows `asked` some were never wanted; `of_best` is told of `rows`, which were.
    """
    heads = studies[0][0].masks.shape[1]
    pool = VirtualPool(workers, law, heads)
    jobs = {
        f"study {n}": job_of(plans, f"task {n}", length) for n, plans in enumerate(studies)
    }  # fmt: skip
    rows = 0
    with DistributedEngine(pool, clock=pool.clock) as engine:
        for name, outcome in ConcurrentJobs(engine, jobs, abreast).run():
            if isinstance(outcome, BaseException):
                raise RuntimeError(name) from outcome
            rows += outcome
    return {
        "studies": len(studies),
        "workers": workers,
        "abreast": abreast,
        "beforehand": any(plan.ahead for plans in studies for plan in plans),
        "rows": rows,
        "asked": pool.rows,
        "groups": pool.groups,
        "seconds": round(pool.now, 1),
        "busy": round(sum(pool.working.values()) / (workers * pool.now), 4),
        "of_best": round(rows * law.best / (workers * pool.now), 4),
    }
