"""Is a located set faithful to the fact? However a fact is worded, the same units must come out.

The idea is that of Huang et al. (ICLR 2025); its formula is not known to us, and this one is ours.
For a fact's prompt q and a rewrite r, with P the located set:

    reference |P(q) & P(r)| / |P(q)|,   largest (by the larger set),   iou

A high rate alone says little: it is held against prompts of other facts, and the *margin* is the
rate with the fact's own rewrites less that with rewrites of other facts of the same relation. Only
a margin clearly above 0 speaks for single facts being located; a high rate with no margin is what
the relation's, or the form's, prompts have in common.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from caploc.commonality.draws import layer_matched
from caploc.commonality.intervals import Interval, mean_interval
from caploc.commonality.overlap import Rates, rates
from caploc.commonality.result import Result
from caploc.neurons.facts.facts import Fact, check_names
from caploc.neurons.facts.locators import Locator, Pair, by_fact, pairs
from caploc.progress import Progress, Silent

MEASURES = ("reference", "largest", "iou")
Set = Bool[np.ndarray, " units"]


@dataclass(frozen=True)
class Overlap(Result):
    """Mean rates over facts, with their intervals (facts resampled)."""

    reference: Interval
    largest: Interval
    iou: Interval


@dataclass(frozen=True)
class Fidelity(Result):
    """How well a locator's sets agree between wordings of a fact, beside what other prompts give.

    `size` is the mean number of units located, `empty` how many prompts gave none (their rates are
    missing). `rewrites` compares a fact's prompt with its rewrites, `same_prompt` with itself
    located anew (1 unless the locator is random), `same_relation` and `unrelated` with rewrites of
    other facts, `random` with sets of the rewrites' size in each layer. `margin` is `rewrites` less
    `same_relation`, paired by fact; `per_fact` holds each fact's mean IoU with its rewrites, and
    `margin_per_fact` the margin of that.
    """

    locator: str
    units: str
    facts: int
    without_rewrites: int
    prompts: int
    size: float
    empty: int
    rewrites: Overlap
    same_prompt: Overlap
    same_relation: Overlap
    unrelated: Overlap
    random: Overlap
    margin: Overlap
    per_fact: Float64[np.ndarray, " facts"]
    margin_per_fact: Float64[np.ndarray, " facts"]


def fidelity(
    locator: Locator, facts: Sequence[Fact], *, seed: int, progress: Progress | None = None
) -> Fidelity:
    """Locate every prompt and rewrite, and every prompt once more, and compare.

    Raises:
        BadData: if there is no fact, two have one name, none has a rewrite, or a prompt cannot be
            located.
    """
    facts, shown = check_names(tuple(facts)), progress or Silent()
    compared = pairs(facts, seed)
    used = sorted({pair.fact for pair in compared})
    shown.start(f"{locator.name} of rewrites", sum(2 + len(facts[n].rewrites) for n in used))
    located = {number: _located(locator, facts[number], shown) for number in used}
    arms = {
        name: _arm(name, located, compared, locator, seed)
        for name in ("rewrites", "same_prompt", "same_relation", "unrelated", "random")
    }
    owners = [pair.fact for pair in compared]
    means = {
        name: {measure: by_fact(owners, values, len(facts)) for measure, values in arm.items()}
        for name, arm in arms.items()
    }
    margin = {
        measure: means["rewrites"][measure] - means["same_relation"][measure]
        for measure in MEASURES
    }
    sets = [each for found in located.values() for each in (found[0], *found[2:])]
    return Fidelity(
        locator=locator.name,
        units=locator.units,
        facts=len(used),
        without_rewrites=len(facts) - len(used),
        prompts=len(sets),
        size=float(np.mean([each.sum() for each in sets])),
        empty=sum(not each.any() for each in sets),
        **{name: _overlap(values, seed) for name, values in means.items()},
        margin=_overlap(margin, seed),
        per_fact=means["rewrites"]["iou"],
        margin_per_fact=margin["iou"],
    )


def _located(locator: Locator, fact: Fact, shown: Progress) -> list[Set]:
    """The sets of the prompt, of the prompt again, and of each rewrite."""
    found = []
    for prompt in (fact.prompt, fact.prompt, *fact.rewrites):
        found.append(locator.locate(prompt))
        shown.advance(1, 1)
    return found


def _arm(
    name: str, located: dict[int, list[Set]], compared: Sequence[Pair], locator: Locator, seed: int
) -> dict[str, list[float]]:
    """The rates of one kind of comparison, for each pair; NaN where there is none to compare."""
    other = OTHERS[name]
    found: dict[str, list[float]] = {measure: [] for measure in MEASURES}
    for number, pair in enumerate(compared):
        second = other(located, pair)
        if name == "random" and second is not None:
            draw = seed + number
            second = layer_matched(second, locator.grid, 1, seed=draw, excluding=False)[0]
        both = None if second is None else rates(located[pair.fact][0], second)
        for measure, values in found.items():
            values.append(_rate(both, measure))
    return found


def _rate(both: Rates | None, measure: str) -> float:
    value = None if both is None else getattr(both, measure)
    return np.nan if value is None else float(value)


def _numbered(located: dict[int, list[Set]], place: tuple[int, int] | None) -> Set | None:
    """A fact's rewrite's set: the first two of a fact are of its prompt."""
    return None if place is None else located[place[0]][2 + place[1]]


OTHERS: dict[str, Callable[[dict[int, list[Set]], Pair], Set | None]] = {
    "rewrites": lambda located, pair: located[pair.fact][2 + pair.rewrite],
    "same_prompt": lambda located, pair: located[pair.fact][1],
    "same_relation": lambda located, pair: _numbered(located, pair.related),
    "unrelated": lambda located, pair: _numbered(located, pair.unrelated),
    "random": lambda located, pair: located[pair.fact][2 + pair.rewrite],
}


def _overlap(values: dict[str, Float64[np.ndarray, " facts"]], seed: int) -> Overlap:
    return Overlap(**{name: mean_interval(each, seed=seed) for name, each in values.items()})
