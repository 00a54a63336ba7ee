"""Searches: each plans rows, looks at what came back, plans again. They know no model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int

from caploc import designs
from caploc.errors import BadOption
from caploc.heads import Mask, Masks
from caploc.recovery import Estimate, Estimator, Measurements, PairedDifferences, PaperLasso

EMPTY = np.zeros(0, dtype=int)


@dataclass(frozen=True)
class Plan:
    """Rows to measure next: row r is `masks[mask[r]]` on example `example[r]`."""

    masks: Masks
    mask: Int[np.ndarray, " rows"]
    example: Int[np.ndarray, " rows"]

    @classmethod
    def crossed(cls, masks: Masks, examples: Sequence[int]) -> "Plan":
        """Every mask on every example."""
        return cls(
            masks,
            np.repeat(np.arange(len(masks)), len(examples)),
            np.tile(np.asarray(examples, dtype=int), len(masks)),
        )


@dataclass(frozen=True)
class Settings:
    """What a search may be told. Each uses what it needs."""

    masks: int = 100
    rate: float = 0.02
    top: int = 5
    seed: int = 0

    def check(self) -> None:
        """Refuse values that mean nothing.

        Raises:
            BadOption: with the value and what is allowed.
        """
        designs.check_rate(self.rate)
        if self.masks < 1:
            raise BadOption(f"--masks must be 1 or more; got {self.masks}.")
        if self.top < 1:
            raise BadOption(f"--top must be 1 or more; got {self.top}.")
        if self.seed < 0:
            raise BadOption(f"--seed must be 0 or more; got {self.seed}.")


@runtime_checkable
class Search(Protocol):
    """Plans rows; pure in what it was given and what it has seen."""

    def plan(self, seen: Measurements) -> Plan | None:
        """The rows to measure next; None when there is nothing left to ask."""
        ...

    def chosen(self, seen: Measurements, estimate: Estimate) -> list[int]:
        """Columns of the heads found, the first found first."""
        ...

    @property
    def rows(self) -> int:
        """How many rows the whole search will plan."""
        ...


class Designed:
    """All masks at once, on all examples: CSS, CSB and one-shot greedy."""

    def __init__(self, masks: Masks, examples: Sequence[int], settings: Settings) -> None:
        """Measure these masks on these examples."""
        self.masks, self.examples, self.top = masks, examples, settings.top

    def plan(self, seen: Measurements) -> Plan | None:
        """Everything first, then nothing."""
        return None if len(seen.masks) else Plan.crossed(self.masks, self.examples)

    def chosen(self, seen: Measurements, estimate: Estimate) -> list[int]:
        """The most negative effects."""
        return estimate.needed(self.top)

    @property
    def rows(self) -> int:
        """Masks times examples."""
        return len(self.masks) * len(self.examples)


class Greedy:
    """Knock out every head alone, keep the one with the largest drop, repeat with it gone."""

    def __init__(self, heads: int, examples: Sequence[int], settings: Settings) -> None:
        """Search among so many heads."""
        self.heads, self.examples = heads, examples
        self.top = min(settings.top, heads)

    def plan(self, seen: Measurements) -> Plan | None:
        """The next round: what was found so far, and each other head with it."""
        found = self.found(seen)
        if len(found) == self.top:
            return None
        masks = designs.singles(self.heads)
        masks[:, found] = True
        return Plan.crossed(np.delete(masks, found, axis=0), self.examples)

    def found(self, seen: Measurements) -> list[int]:
        """The head kept in each finished round; the lowest column wins a tie."""
        means = seen.mask_means()
        found: list[int] = []
        start = 0
        while start < len(seen.masks):
            end = start + self.heads - len(found)
            # A mask that could not be scored is no candidate.
            best = start + int(np.argmin(np.nan_to_num(means[start:end], nan=np.inf)))
            (new,) = set(np.flatnonzero(seen.masks[best]).tolist()) - set(found)
            found.append(new)
            start = end
        return found

    def chosen(self, seen: Measurements, estimate: Estimate) -> list[int]:
        """The heads in the order in which they were kept, as long as each lowered the score."""
        found = self.found(seen)
        if not found or not estimate.effect[found[0]] < 0:
            return []
        ends = np.cumsum([self.heads - number for number in range(len(found))])
        rounds = np.split(seen.mask_means(), ends[:-1])
        lowest = [float(np.nanmin(means)) for means in rounds]
        lowered = [1, *(after < before for before, after in zip(lowest, lowest[1:], strict=False))]
        return found[: lowered.index(False)] if False in lowered else found

    @property
    def rows(self) -> int:
        """One round of heads after another, each one head shorter."""
        rounds = sum(self.heads - found for found in range(self.top))
        return rounds * len(self.examples)


Planner = Callable[[int, Sequence[int], Settings], Search]


@dataclass(frozen=True)
class Method:
    """A way to find heads: what is measured, and what is made of it."""

    about: str
    search: Planner
    estimator: Callable[[], Estimator]
    draws_masks: bool = False  # uses --masks and --rate


def css(heads: int, examples: Sequence[int], settings: Settings) -> Search:
    """Compressed sensing with stratified masks, as published."""
    masks = designs.stratified(heads, settings.masks, rate=settings.rate, seed=settings.seed)
    return Designed(masks, examples, settings)


def csb(heads: int, examples: Sequence[int], settings: Settings) -> Search:
    """Compressed sensing with Bernoulli masks, as published."""
    masks = designs.bernoulli(heads, settings.masks, rate=settings.rate, seed=settings.seed)
    return Designed(masks, examples, settings)


def one_shot(heads: int, examples: Sequence[int], settings: Settings) -> Search:
    """Every head alone, once."""
    return Designed(designs.singles(heads), examples, settings)


METHODS = {
    "css": Method("stratified random masks and the Lasso (the paper's)", css, PaperLasso, True),
    "csb": Method("Bernoulli random masks and the Lasso (the paper's)", csb, PaperLasso, True),
    "one-shot": Method("every head alone, the largest drops", one_shot, PairedDifferences),
    "greedy": Method("every head alone, again after each one found", Greedy, PairedDifferences),
}


def column_mask(heads: int, columns: Sequence[int]) -> Mask:
    """The mask that knocks out the heads of these columns."""
    mask = np.zeros(heads, dtype=bool)
    mask[list(columns)] = True
    return mask
