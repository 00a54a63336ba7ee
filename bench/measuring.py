"""Time contenders on a workload, turn by turn, and compare what they answer."""

import gc
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean

import torch

from caploc.engine.api import Ask
from caploc.tasks.task import Generated, Scored
from contenders import Contender, Run, rows_of
from plain import Responses
from workloads import Workload

WARM_UP = 4  # rows
STANDARD = "rows"  # the contender whose answers the others are compared with


@dataclass
class Agreement:
    """How a contender's answers compare with the standard's, at worst over its repeats."""

    texts: int = 0  # compared
    equal: int = 0  # of them
    scores: int = 0  # log-probabilities compared
    difference: float = 0.0  # of two log-probabilities, the largest, in nats


@dataclass
class Timing:
    """One contender on one workload; lists have an entry for each repeat, in seconds."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    answer_tokens: int = 0  # generated, over all rows; 0 where the seconds are scaled
    forward_tokens: int = 0  # run through the model, by its own count, padding not counted
    scaled: str = ""
    agreement: Agreement | None = None

    def add(self, run: Run, standard: Responses | None) -> None:
        """Take in one repeat."""
        self.wall.append(round(run.seconds.wall, 4))
        self.cpu.append(round(run.seconds.cpu, 4))
        self.forward_tokens, self.scaled = run.forward_tokens, run.scaled
        spoken = [len(each.said) for each in run.responses.values() if isinstance(each, Generated)]
        self.answer_tokens = 0 if run.scaled else sum(spoken)
        if standard is not None:
            self.agreement = worse(self.agreement, compare(run.responses, standard))


@dataclass
class Character:
    """What generated answers look like; all None where nothing is generated.

    `as_intact` is the share of rows whose text is the intact model's in spite of the mask.
    """

    mean_tokens: float | None = None
    mean_tokens_intact: float | None = None
    as_intact: float | None = None

    @classmethod
    def of(cls, workload: Workload, intact: Responses, masked: Responses) -> "Character":
        """Compare each row with its example under no mask."""
        texts = {key: said for key, said in masked.items() if isinstance(said, Generated)}
        if not texts:
            return cls()
        before = [len(each.said) for each in intact.values() if isinstance(each, Generated)]
        same = [
            said == intact[row % workload.size.examples, choice]
            for (row, choice), said in texts.items()
        ]
        lengths = [len(each.said) for each in texts.values()]
        return cls(mean(lengths), mean(before), mean(same))


def measure(
    workload: Workload, contenders: Sequence[Contender], repeats: int, threads: int
) -> tuple[dict[str, Timing], Character]:
    """Every contender once, then every one again, so that a slow minute strikes them all.

    Who begins changes from repeat to repeat: what one leaves behind in memory and caches should
    not always meet the same other.
    """
    first, *others = sorted(contenders, key=lambda contender: contender.name != STANDARD)
    few = [ask for row in rows_of(workload.asks)[:WARM_UP] for ask in row]
    for contender in others:
        pinned(threads, contender, few)
    intact = pinned(threads, first, workload.intact).responses  # which warms the first one up
    timings = {contender.name: Timing() for contender in (first, *others)}
    expected: Responses = {}
    turns = [first, *others]
    for repeat in range(repeats):
        for contender in turns:
            run = pinned(threads, contender, workload.asks)
            expected = expected or run.responses
            timings[contender.name].add(run, expected if first.name == STANDARD else None)
            say(f"  {repeat + 1}/{repeats} {contender.name}: {run.seconds.wall:.1f} s {run.scaled}")
        turns = [*turns[1:], turns[0]]
    return timings, Character.of(workload, intact, expected)


def pinned(threads: int, contender: Contender, asks: Sequence[Ask]) -> Run:
    """Let a contender answer on so many threads, whatever the one before has set."""
    torch.set_num_threads(threads)
    gc.collect()
    run = contender.run(asks)
    if torch.get_num_threads() != threads:
        say(f"  {contender.name} used {torch.get_num_threads()} threads, not {threads}")
    return run


def compare(responses: Responses, standard: Responses) -> Agreement:
    """Answer by answer; a contender timed on fewer rows is compared on those."""
    found = Agreement()
    for key, said in responses.items():
        expected = standard[key]
        if isinstance(said, Generated) and isinstance(expected, Generated):
            found.texts += 1
            found.equal += said.text == expected.text
        elif isinstance(said, Scored) and isinstance(expected, Scored):
            found.scores += 1
            found.difference = max(found.difference, abs(said.logprob - expected.logprob))
        else:
            raise TypeError(f"{said} and {expected} answer different requests")
    return found


def worse(one: Agreement | None, other: Agreement) -> Agreement:
    """The lesser agreement of two repeats on the same rows."""
    if one is None:
        return other
    return Agreement(
        texts=other.texts,
        equal=min(one.equal, other.equal),
        scores=other.scores,
        difference=max(one.difference, other.difference),
    )


def say(line: str) -> None:
    """Progress, on standard error."""
    print(line, file=sys.stderr, flush=True)
