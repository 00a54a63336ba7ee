"""What a study of located facts needs of a locator, and the pairs of prompts it compares.

A locator of sets (neurons, edges) and one of layers are all that the studies know; knowledge
neurons, causal tracing and circuits are some.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Bool, Float64

from caploc.designs import generator
from caploc.errors import BadData
from caploc.grid import Grid
from caploc.neurons.facts.facts import Fact, Prompt


@runtime_checkable
class Locator(Protocol):
    """Finds the set of units that a prompt's answer rests on."""

    @property
    def name(self) -> str:
        """Of the method, for a reader."""
        ...

    @property
    def units(self) -> str:
        """What the columns of a set are, in the plural."""
        ...

    @property
    def grid(self) -> Grid:
        """The columns, layer by layer; random sets are drawn within a layer."""
        ...

    def locate(self, prompt: Prompt) -> Bool[np.ndarray, " units"]:
        """The located units; the same for the same prompt."""
        ...


@runtime_checkable
class Profiler(Protocol):
    """Says how much a prompt's answer rests on each layer."""

    @property
    def name(self) -> str:
        """Of the method, for a reader."""
        ...

    def profile(self, prompt: Prompt) -> Float64[np.ndarray, " layers"] | None:
        """Each layer's effect (NaN where it has none); None where the prompt cannot be used."""
        ...


@dataclass(frozen=True)
class Pair:
    """A fact's prompt beside one of its own rewrites and rewrites of other facts, by number.

    `fact` and `rewrite` are numbers; `related` is a fact of the same relation and `unrelated` one
    of another, each with the number of one of its rewrites; None where there is none. That all are
    rewrites keeps differences of form out of the comparison.
    """

    fact: int
    rewrite: int
    related: tuple[int, int] | None
    unrelated: tuple[int, int] | None


def pairs(facts: Sequence[Fact], seed: int) -> list[Pair]:
    """One pair for each rewrite of each fact, its partners drawn at random.

    A partner's rewrite has the same number, counted round. A fact whose relation is not known has
    no related facts, and is unrelated only to facts of a known relation.

    Raises:
        BadData: if no fact has a rewrite.
    """
    random = generator(seed)
    usable = [number for number, fact in enumerate(facts) if fact.rewrites]
    if not usable:
        raise BadData("No fact has a rewrite to compare it with; give some.")

    def partner(fact: int, rewrite: int, same: bool) -> tuple[int, int] | None:
        pool = [
            other
            for other in usable
            if other != fact and related(facts[fact], facts[other]) is same
        ]
        if not pool:
            return None
        other = pool[int(random.integers(len(pool)))]
        return other, rewrite % len(facts[other].rewrites)

    return [
        Pair(fact, rewrite, partner(fact, rewrite, True), partner(fact, rewrite, False))
        for fact in usable
        for rewrite in range(len(facts[fact].rewrites))
    ]


def related(first: Fact, second: Fact) -> bool | None:
    """Whether two facts are of one relation; None where that of both is unknown."""
    if first.relation is None and second.relation is None:
        return None
    return first.relation == second.relation


def by_fact(
    owners: Sequence[int], values: Sequence[float], facts: int
) -> Float64[np.ndarray, " facts"]:
    """The mean of each fact's values that are not missing; NaN where it has none."""
    owned, given = np.asarray(owners, dtype=int), np.asarray(values, dtype=float)
    means = np.full(facts, np.nan)
    for fact in range(facts):
        known = given[(owned == fact) & ~np.isnan(given)]
        if len(known):
            means[fact] = known.mean()
    return means
