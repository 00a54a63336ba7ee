"""What a search is given, what it asks for, and what it hands back."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Int

from caploc.heads import Mask, Masks
from caploc.recovery import Estimate, Measurements
from caploc.search.settings import Settings


@dataclass(frozen=True)
class Plan:
    """Rows to measure next: row r is `masks[mask[r]]` on example `example[r]` of task `task`.

    Task 0 is the one that heads are searched for; then come those beside it, then the same with
    likelihoods as outcomes (`measurement.search` has their meters). `what` says what the rows are
    for.
    """

    masks: Masks
    mask: Int[np.ndarray, " rows"]
    example: Int[np.ndarray, " rows"]
    task: int = 0
    what: str = "masks"

    @classmethod
    def crossed(
        cls, masks: Masks, examples: Sequence[int], *, task: int = 0, what: str = "masks"
    ) -> "Plan":
        """Every mask on every example."""
        return cls(
            masks,
            np.repeat(np.arange(len(masks)), len(examples)),
            np.tile(np.asarray(examples, dtype=int), len(masks)),
            task,
            what,
        )

    @classmethod
    def scattered(cls, masks: Masks, examples: Int[np.ndarray, " rows"], what: str) -> "Plan":
        """Each mask on its own run of examples: as many for every mask as the division gives."""
        mask = np.arange(len(examples)) * len(masks) // max(len(examples), 1)
        return cls(masks, mask, examples, 0, what)


@dataclass(frozen=True)
class OtherTask:
    """A task that a specific set must spare or, a twin of the task, break as well.

    `number` is that of the task in plans, `likelihood` that of the same task with how likely the
    right answer is as its outcome (`number` itself: there is no such thing). `examples` are for the
    search; `choices` is as in `Problem`.
    """

    number: int
    examples: Sequence[int]
    likelihood: int
    twin: bool = False
    choices: Mapping[int, int] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Problem:
    """Among how many heads, on which examples.

    Heads are searched for on `examples`; on `fresh` ones, disjoint, the search checks what it
    found (validation has others). `elsewhere` holds some examples of each other task; `sides`
    those that the goal `specific` is about. `shared` is the price of reading what all prompts
    begin with, as a multiple of the rest of a row; `chance` the score of guessing. `likelihood`
    is the number, in plans, of the same task with how likely the right answer is as its outcome
    (0: it is the task itself); None if there is no such thing. `choices` has the number of each
    example's right choice where the model picks among some. `excluded` heads are never knocked
    out and never named. `watch` is told what an adaptive search concludes at each look.
    """

    heads: int
    examples: Sequence[int]
    settings: Settings
    fresh: Sequence[int] = ()
    elsewhere: Sequence[Sequence[int]] = ()
    shared: float = 0.0
    chance: float = 0.0
    likelihood: int | None = None
    sides: Sequence[OtherTask] = ()
    choices: Mapping[int, int] = field(default_factory=dict, hash=False)
    excluded: tuple[int, ...] = ()
    watch: Callable[[Any], None] | None = field(default=None, compare=False)

    def empty(self) -> Mask:
        """The mask that knocks out nothing."""
        return np.zeros(self.heads, dtype=bool)

    def without_each(self, sets: Sequence[Sequence[int]]) -> Masks:
        """A mask for each set of columns, which knocks it out."""
        return np.stack([column_mask(self.heads, each) for each in sets])

    @property
    def eligible(self) -> list[int]:
        """Columns of the heads that may be knocked out."""
        return [column for column in range(self.heads) if column not in self.excluded]

    def over_all(self, masks: Bool[np.ndarray, "masks eligible"]) -> Masks:
        """Masks over the eligible heads as masks over all, which knock out no excluded one."""
        whole = np.zeros((len(masks), self.heads), dtype=bool)
        whole[:, self.eligible] = masks
        return whole

    def rank(self, order: Sequence[int]) -> list[int]:
        """The order, excluded heads last."""
        return [column for column in order if column not in self.excluded] + list(self.excluded)


@dataclass(frozen=True)
class Found:
    """What a search found.

    `chosen` are the columns to name, the most needed first; `ranking` all columns in the order in
    which the search would name them. `critical` heads each break the task alone, and `universal`
    ones of them break another task too: `breaks_task` has its number. `diagnostics` holds what
    else there is to say, as `result.json` keeps it; `notes` are sentences for the reader.
    """

    chosen: list[int]
    ranking: list[int]
    estimate: Estimate
    seen: Measurements
    critical: list[int] = field(default_factory=list)
    universal: list[int] = field(default_factory=list)
    breaks_task: dict[int, int] = field(default_factory=dict)
    diagnostics: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


T = TypeVar("T")
Asking = Generator[Plan, Measurements, T]  # plans rows, is sent what they gave, returns a T
Search = Asking[Found]


def column_mask(heads: int, columns: Sequence[int]) -> Mask:
    """The mask that knocks out the heads of these columns."""
    mask = np.zeros(heads, dtype=bool)
    mask[list(columns)] = True
    return mask


def ask_once(plan: Plan) -> Asking[Measurements]:
    """Have the rows of one plan measured."""
    return (yield plan)


def opening_plan(heads: int, examples: Sequence[int]) -> Plan:
    """Plan the intact model's answers."""
    return Plan.crossed(np.zeros((1, heads), dtype=bool), examples, what="intact")


def intact_plan(problem: Problem, examples: Sequence[int], *, task: int = 0) -> Plan:
    """Examples with no head knocked out."""
    return Plan.crossed(problem.empty()[None], examples, task=task, what="intact")
