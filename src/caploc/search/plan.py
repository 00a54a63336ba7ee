"""What a search is given, what it asks for, and what it hands back."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Bool, Float, Int

from caploc.components import Mask, Masks
from caploc.options import Settings
from caploc.recovery import Estimate, Measurements


@dataclass(frozen=True)
class Plan:
    """Rows to measure next: row r is `masks[mask[r]]` on example `example[r]` of a probe.

    A probe is a task with what is read from it: its outcome (the probe has the task's name), or how
    strongly the model holds on to its right answer. `what` says what the rows are for.
    """

    probe: str
    masks: Masks
    mask: Int[np.ndarray, " rows"]
    example: Int[np.ndarray, " rows"]
    what: str = "masks"

    @classmethod
    def crossed(
        cls, probe: str, masks: Masks, examples: Sequence[int], what: str = "masks"
    ) -> "Plan":
        """Every mask on every example."""
        return cls(
            probe,
            masks,
            np.repeat(np.arange(len(masks)), len(examples)),
            np.tile(np.asarray(examples, dtype=int), len(masks)),
            what,
        )


@dataclass(frozen=True)
class OtherTask:
    """A task that a specific set must spare or, a twin of the task, break as well.

    `probe` and `signal` are probes of its outcome and of its signal (see `Problem`), the same where
    the outcome is its own signal. `examples` are for the search.
    """

    probe: str
    examples: Sequence[int]
    signal: str
    twin: bool = False


@dataclass(frozen=True)
class Problem:
    """Among how many heads, on which examples.

    Heads are searched for on `examples`; sets are compared on `fresh` ones, disjoint (the check
    has others). `elsewhere` holds some examples of other tasks, by probe; `sides` the tasks of the
    goal `specific`. `chance` is the score of guessing. `probe` is that of the task's
    outcome; `signal` that of how strongly the model holds on to its right answer, the same where
    the outcome says it (the default). `excluded` heads are never knocked out and never named.
    """

    heads: int
    examples: Sequence[int]
    settings: Settings
    fresh: Sequence[int] = ()
    elsewhere: Mapping[str, Sequence[int]] = field(default_factory=dict)
    chance: float = 0.0
    probe: str = "task"
    signal: str = "task"
    sides: Sequence[OtherTask] = ()
    excluded: tuple[int, ...] = ()

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
class ScanRecord:
    """What both stages of the default search asked, by column.

    Of `scanned` answers of each head `broken` are others than before; `lost` is the mean share of
    the right answer's probability that is gone, NaN where none was asked. `tried` are the columns
    of the trial, each on `tried_on` examples. `stability` is the mean overlap of the heads named on
    resampled examples; `sets` how many sets were tried jointly.
    """

    budget: int | None
    rows: int
    scanned: Int[np.ndarray, " heads"]
    broken: Int[np.ndarray, " heads"]
    lost: Float[np.ndarray, " heads"]
    tried: list[int]
    tried_on: int
    stability: float | None = None
    sets: int | None = None


@dataclass(frozen=True)
class Found:
    """What a search found.

    `chosen` are the columns to name, the most needed first; `ranking` all columns in the order in
    which the search would name them. `critical` heads each break the task alone; `universal` ones
    break another task too: `breaks_task` has its probe. `candidates` are the sets to judge against
    the price, the best first.
    `diagnostics` holds what a published method has to say, as `result.json` keeps it; `notes` are
    sentences for the reader.
    """

    chosen: list[int]
    ranking: list[int]
    estimate: Estimate
    seen: Measurements
    critical: list[int] = field(default_factory=list)
    universal: list[int] = field(default_factory=list)
    breaks_task: dict[int, str] = field(default_factory=dict)
    candidates: list[list[int]] = field(default_factory=list)
    stages: ScanRecord | None = None
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


def intact_plan(problem: Problem, probe: str, examples: Sequence[int]) -> Plan:
    """Examples with no head knocked out."""
    return Plan.crossed(probe, problem.empty()[None], examples, "intact")
