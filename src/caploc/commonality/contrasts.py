"""Items of which commonality and content are varied apart, to tell what located neurons follow.

An item has a commonality k (what is to be done: add, subtract ...), a content c (with what: the
operands) and a wording w. Each base item has four partners:

    SS  same k, same c, other w          SC  same k, other c, same w
    CD  other k, same c, same w          DD  other k, other c, same w

If neurons follow the commonality, the sets located for base and SC are as alike as those for base
and SS, and far more than for DD. The 2 x 2 design is ours: of the decoupling experiment of Huang et
al. (ICLR 2025, arXiv 2502.20992) it is public that it compares 1,000 samples, mostly mathematical.

With J the mean IoU of the sets of base items and of an arm's partners,

    commonality effect = J_SC - J_DD      content effect = J_CD - J_DD
    individual effect  = J_SS - J_SC

That capabilities, and not single facts, can be located would show as a large first and a third near
0: rewording an item keeps no more neurons than putting other content into it. The effects are ours.
"""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from caploc.commonality.intervals import Interval, MeanWithInterval, mean_interval, paired_interval
from caploc.errors import BadData, BadOption

Similarity = Float64[np.ndarray, " items"]
ITEMS = 1000
ARMS = ("SS", "SC", "CD", "DD")
TRIES = 10_000  # draws in a row without a new base item, after which there is none


@dataclass(frozen=True)
class Item(MeanWithInterval):
    """One text: `prompt` and `answer` joined; an answer after a blank holds the blank."""

    commonality: str
    content: str
    wording: str
    prompt: str
    answer: str


@dataclass(frozen=True)
class ContrastSet(MeanWithInterval):
    """A base item and its four partners.

    `reworded` is SS, `same_commonality` SC, `same_content` CD, `different` DD.
    """

    base: Item
    reworded: Item
    same_commonality: Item
    same_content: Item
    different: Item

    @property
    def partners(self) -> dict[str, Item]:
        """The four partners by arm."""
        four = (self.reworded, self.same_commonality, self.same_content, self.different)
        return dict(zip(ARMS, four, strict=True))

    @property
    def items(self) -> tuple[Item, ...]:
        """All five items, the base first."""
        return (self.base, *self.partners.values())


@dataclass(frozen=True)
class Balance(MeanWithInterval):
    """Whether the arms differ in what they should not: lengths, in the unit of `length`.

    `prompt` and `answer` hold, for each arm, the mean over contrasts of the partner's length less
    the base's, `widest_prompt` and `widest_answer` the largest such difference without its sign.
    """

    contrasts: int
    prompt: dict[str, float]
    answer: dict[str, float]
    widest_prompt: dict[str, int]
    widest_answer: dict[str, int]


Draw = Callable[[random.Random], ContrastSet | None]  # None: what was drawn has no partners
Length = Callable[[str], int]  # characters, or the tokens of a model's tokenizer


def distinct(draw: Draw, items: int, seed: int) -> list[ContrastSet]:
    """Draw `items` contrasts whose base prompts differ; more begin with the same ones.

    Raises:
        BadOption: if `items` is below 1, or there are not so many.
    """
    if items < 1:
        raise BadOption(f"The number of base items must be 1 or more; got {items}.")
    rng = random.Random(seed)
    found: dict[str, ContrastSet] = {}
    vain = 0
    while len(found) < items:
        contrast = draw(rng)
        vain += 1
        if contrast and contrast.base.prompt not in found:
            found[contrast.base.prompt], vain = contrast, 0
        if vain == TRIES:
            raise BadOption(
                f"There are about {len(found):,} different base items; "
                f"ask for as many at most, not {items:,}."
            )
    return list(found.values())


def kept(contrasts: Iterable[ContrastSet], passes: Callable[[Item], bool]) -> list[ContrastSet]:
    """Keep the contrasts all five items of which pass: the model answers them rightly, say."""
    return [each for each in contrasts if all(passes(item) for item in each.items)]


def matched(
    contrasts: Iterable[ContrastSet], length: Length = len, *, within: int = 0
) -> list[ContrastSet]:
    """Keep contrasts whose answers have one length, and prompts within `within` of the base's.

    Sets are made to match in characters as well as they can; give a tokenizer's count to have them
    match in tokens.
    """

    def alike(contrast: ContrastSet) -> bool:
        prompt, answer = (length(text) for text in (contrast.base.prompt, contrast.base.answer))
        return all(
            abs(length(item.prompt) - prompt) <= within and length(item.answer) == answer
            for item in contrast.items
        )

    return [each for each in contrasts if alike(each)]


def balance(contrasts: Sequence[ContrastSet], length: Length = len) -> Balance:
    """Tell how far the partners' lengths are from the base items'.

    Raises:
        BadOption: if there is no contrast.
    """
    if not contrasts:
        raise BadOption("There is no contrast to balance; draw at least one.")
    prompts, answers = (differences(contrasts, length, part) for part in ("prompt", "answer"))
    return Balance(
        contrasts=len(contrasts),
        prompt={arm: sum(each) / len(each) for arm, each in prompts.items()},
        answer={arm: sum(each) / len(each) for arm, each in answers.items()},
        widest_prompt={arm: max(map(abs, each)) for arm, each in prompts.items()},
        widest_answer={arm: max(map(abs, each)) for arm, each in answers.items()},
    )


def differences(
    contrasts: Sequence[ContrastSet], length: Length, part: str
) -> dict[str, list[int]]:
    """Take, by arm, the length of each partner's prompt or answer less its base item's."""
    return {
        arm: [
            length(getattr(each.partners[arm], part)) - length(getattr(each.base, part))
            for each in contrasts
        ]
        for arm in ARMS
    }


@dataclass(frozen=True)
class Decoupling(MeanWithInterval):
    """Mean IoU of each arm, and the effects, with paired bootstrap intervals over base items.

    Only base items whose IoU is known in all four arms count; `items` is their number and
    `undefined` that of the others (no neuron located for either item of a pair).
    """

    items: int
    undefined: int
    similarity: dict[str, Interval]
    commonality: Interval
    individual: Interval
    content: Interval


def decoupling(similarity: Mapping[str, Similarity], *, seed: int = 0) -> Decoupling:
    """Compute the effects from each arm's IoU with the base, item by item (`jaccards`).

    Raises:
        BadData: if an arm is missing, there is another, or they differ in length.
    """
    if sorted(similarity) != sorted(ARMS):
        raise BadData(
            f"The arms must be {', '.join(ARMS)}; got {', '.join(sorted(similarity)) or 'none'}."
        )
    sizes = {arm: len(similarity[arm]) for arm in ARMS}
    if len(set(sizes.values())) > 1:
        told = ", ".join(f"{arm} {size}" for arm, size in sizes.items())
        raise BadData(f"Every arm needs one IoU a base item; got {told}.")
    table = np.stack([similarity[arm] for arm in ARMS])
    known = ~np.isnan(table).any(axis=0)
    arms = dict(zip(ARMS, table[:, known], strict=True))
    return Decoupling(
        items=int(known.sum()),
        undefined=int((~known).sum()),
        similarity={arm: mean_interval(each, seed=seed) for arm, each in arms.items()},
        commonality=paired_interval(arms["SC"], arms["DD"], seed=seed),
        individual=paired_interval(arms["SS"], arms["SC"], seed=seed),
        content=paired_interval(arms["CD"], arms["DD"], seed=seed),
    )
