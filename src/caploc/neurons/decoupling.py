"""Do the neurons located for an item follow what is asked, or with what content it is asked?

Every item of a set of contrasts (`caploc.commonality`) is located on its own; the sets of a base
item and of its partners are held against each other, for several locators side by side. Only
contrasts count of which the model answers all five items rightly: every gold token is the likeliest
one, given those before it. How neurons are chosen from a single item's scores, and all figures, are
ours.

    found = decouple(bench, draw_contrasts("demo/sums", 200))
    found.followed[0].effects.commonality
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64

from caploc.commonality import (
    ARMS,
    Balance,
    Contrast,
    Decoupling,
    Group,
    Interval,
    Item,
    Result,
    arithmetic,
    balance,
    decoupling,
    group,
    jaccards,
    kept,
    matched,
    mean_interval,
    paired_interval,
    quizzes,
    sentiment,
    sums,
)
from caploc.commonality.contrasts import ITEMS
from caploc.commonality.layers import blocks
from caploc.designs import generator
from caploc.errors import BadData, BadOption
from caploc.grid import Grid
from caploc.lookup import pick
from caploc.neurons.attribution import Attribution
from caploc.neurons.bench import NeuronBench
from caploc.neurons.items import Items, Locator, Packed, Sets, Sizes, Text, key
from caploc.progress import Progress, Silent
from caploc.tasks.demo.data import CAPITALS, ELEMENTS

BASE, MIXED = "base", "mixed"
EFFECTS = ("commonality", "individual", "content")
MEMBERS = 200  # items of a group, at most
STRETCH = 64  # contrasts whose sets are unpacked at a time
Similarity = Float64[np.ndarray, " contrasts"]
CONTRASTS: dict[str, Callable[[int, int], list[Contrast]]] = {
    "arithmetic": lambda items, seed: arithmetic(items, seed=seed),
    "sentiment": lambda items, seed: sentiment(items, seed=seed),
    "demo/sums": lambda items, seed: sums(items, seed=seed),
    "demo/capitals": lambda items, seed: quizzes(CAPITALS, "capital of", items, seed=seed),
    "demo/elements": lambda items, seed: quizzes(ELEMENTS, "symbol of", items, seed=seed),
}


def draw_contrasts(name: str, items: int = ITEMS, *, seed: int = 0) -> list[Contrast]:
    """Contrasts by the name of their set; those of `demo/` are in the demo model's wording.

    Raises:
        UnknownName: if there is no such set. BadOption: if there are not so many items.
    """
    return pick(CONTRASTS, name, "set of contrasts")(items, seed)


LOCATORS = tuple(Locator(Attribution(name)) for name in ("gradient", "integrated", "activation"))


@dataclass(frozen=True)
class Followed(Result):
    """What one locator's sets follow.

    `effects` compares the arms. A rewording keeps the answer, other content may not: `same_answer`
    is the mean IoU of base items with another item of the same commonality, wording and answer, and
    `beyond_answer` by how much a rewording's is above it, over base items that have such a one.
    `chance` is, by arm, the mean over contrasts of the IoU that sets as large in every layer have
    by chance (from the expected number in common). `groups` hold, by commonality, what many items'
    sets have in common, the same number of items in each; `mixed` are as many of all commonalities.
    """

    locator: str
    settings: dict[str, Any]
    sizes: Sizes
    effects: Decoupling
    same_answer: Interval
    beyond_answer: Interval
    chance: dict[str, float | None]
    groups: dict[str, Group]

    def row(self) -> dict[str, float | int | str | None]:
        """As one flat row of a table."""
        found: dict[str, float | int | str | None] = {
            "locator": self.locator,
            "items": self.effects.items,
            "neurons": self.sizes.mean,
        }
        effects = {each: getattr(self.effects, each) for each in EFFECTS}
        effects |= {"same answer": self.same_answer, "beyond answer": self.beyond_answer}
        for name, each in (self.effects.similarity | effects).items():
            figures = each.as_dict()
            found |= {name: figures["mean"]}
            found |= {f"{name} {bound}": figures[bound] for bound in ("low", "high")}
        return found


@dataclass(frozen=True)
class Decoupled(Result):
    """Contrasts, what the model knows of them, and what each locator's sets follow.

    `contrasts` were given, `alike` of them had items of equal lengths as far as that was asked, and
    of `right` all five items were answered rightly; those were located. `answered` is the share of
    items answered rightly, by arm, of all that were alike. `balance` is of the contrasts located,
    in tokens.
    """

    contrasts: int
    alike: int
    right: int
    answered: dict[str, float]
    balance: Balance
    followed: tuple[Followed, ...]

    def table(self) -> list[dict[str, float | int | str | None]]:
        """A flat row for each locator."""
        return [each.row() for each in self.followed]


def decouple(
    bench: NeuronBench,
    contrasts: Sequence[Contrast],
    locators: Sequence[Locator] = LOCATORS,
    *,
    within: int | None = None,
    progress: Progress | None = None,
    seed: int = 0,
) -> Decoupled:
    """Locate every item on its own, and tell what the sets follow.

    With `within` only contrasts count whose prompts differ by so many tokens at most, and whose
    answers have equally many.

    Raises:
        UserError: if a locator does not exist, or there is no contrast.
        BadData: if no contrast is left.
    """
    for locator in locators:
        locator.check()
    texts = Items(bench, progress or Silent())
    alike = alike_in(texts, contrasts, within)
    right, answered = answered_rightly(texts, alike)
    items, grid = [item for each in right for item in each.items], bench.neurons.grid
    return Decoupled(
        contrasts=len(contrasts),
        alike=len(alike),
        right=len(right),
        answered=answered,
        balance=balance(right, texts.length),
        followed=tuple(
            followed(texts.located(items, locator), right, locator, grid, seed=seed)
            for locator in locators
        ),
    )


def alike_in(items: Items, contrasts: Sequence[Contrast], within: int | None) -> list[Contrast]:
    """The contrasts whose items are equally long in tokens, up to `within`; all of them for None.

    Raises:
        BadOption: if there is no contrast. BadData: if none is left.
    """
    if not contrasts:
        raise BadOption("There is no contrast to locate; draw at least one.")
    if within is None:
        return list(contrasts)
    alike = matched(contrasts, items.length, within=within)
    if not alike:
        raise BadData(
            f"Of {len(contrasts)} contrasts none has items of equal lengths (within {within} "
            "tokens); allow prompts to differ by more, or draw other contrasts."
        )
    return alike


def answered_rightly(
    items: Items, alike: Sequence[Contrast]
) -> tuple[list[Contrast], dict[str, float]]:
    """The contrasts of which all five items are answered rightly, and by arm the share that is.

    Raises:
        BadData: if there is none.
    """
    passing = items.rightly([item for each in alike for item in each.items])
    answered = {
        arm: float(np.mean([passing[key(item)] for item in arm_items]))
        for arm, arm_items in by_arm(alike).items()
    }
    right = kept(alike, lambda item: passing[key(item)])
    if not right:
        told = ", ".join(f"{arm} {100 * share:.0f} %" for arm, share in answered.items())
        raise BadData(
            f"The model answers all five items of none of {len(alike)} contrasts (alone: {told}); "
            "draw more, or contrasts that it was trained for."
        )
    return right, answered


def by_arm(contrasts: Sequence[Contrast]) -> dict[str, list[Item]]:
    """The base items, and the partners of each arm."""
    partners = {arm: [each.partners[arm] for each in contrasts] for arm in ARMS}
    return {BASE: [each.base for each in contrasts]} | partners


def followed(
    found: Packed, contrasts: Sequence[Contrast], locator: Locator, grid: Grid, *, seed: int = 0
) -> Followed:
    """Compare the sets of the items of some contrasts.

    Raises:
        BadOption: if the grid is not that of so many neurons.
    """
    similarity, chance = compared(found, contrasts, grid)
    alike = same_answer(found, contrasts, seed)
    return Followed(
        locator=str(locator),
        settings={"attribution": asdict(locator.asked), "rule": asdict(locator.rule)},
        sizes=found.sizes,
        effects=decoupling(similarity, seed=seed),
        same_answer=mean_interval(alike, seed=seed),
        beyond_answer=paired_interval(similarity["SS"], alike, seed=seed),
        chance={arm: mean_known(each) for arm, each in chance.items()},
        groups={
            name: group(found.sets(members)) for name, members in grouped(contrasts, seed).items()
        },
    )


def same_answer(found: Packed, contrasts: Sequence[Contrast], seed: int) -> Similarity:
    """The IoU of each base item with another item of its commonality, wording and answer.

    That one is drawn from all contrasts; NaN where there is none with other content.
    """
    alike: dict[tuple[str, str, str], dict[Text, Item]] = defaultdict(dict)
    for each in contrasts:
        for item in each.items:
            alike[item.commonality, item.wording, item.answer][key(item)] = item
    random = generator(seed)
    similarity = np.full(len(contrasts), np.nan)
    for number, each in enumerate(contrasts):
        base = each.base
        members = alike[base.commonality, base.wording, base.answer].values()
        others = [item for item in members if item.content != base.content]
        if others:
            other = others[int(random.integers(len(others)))]
            similarity[number] = jaccards(found.sets([base]), found.sets([other]))[0]
    return similarity


def compared(
    found: Packed, contrasts: Sequence[Contrast], grid: Grid
) -> tuple[dict[str, Similarity], dict[str, Similarity]]:
    """The IoU of each base item's set with that of each partner, and that expected by chance."""
    parts: list[dict[str, tuple[Similarity, Similarity]]] = []
    for first in range(0, len(contrasts), STRETCH):
        some = by_arm(contrasts[first : first + STRETCH])
        base = found.sets(some[BASE])
        partners = {arm: found.sets(some[arm]) for arm in ARMS}
        parts.append(
            {arm: (jaccards(base, s), expected(base, s, grid)) for arm, s in partners.items()}
        )
    similarity, chance = (
        {arm: np.concatenate([each[arm][which] for each in parts]) for arm in ARMS}
        for which in (0, 1)
    )
    return similarity, chance


def expected(first: Sets, second: Sets, grid: Grid) -> Similarity:
    """The IoU of random sets with as many neurons in each layer, row by row; NaN if both are empty.

    It is taken from the expected number in common, `sum over layers a_l b_l / N_l`.
    """
    slices = blocks(first.shape[1], grid)
    counts = [
        np.stack([sets[:, columns].sum(axis=1) for columns in slices], axis=1)
        for sets in (first, second)
    ]
    sizes = np.array([columns.stop - columns.start for columns in slices])
    common = (counts[0] * counts[1] / sizes).sum(axis=1)
    union = counts[0].sum(axis=1) + counts[1].sum(axis=1) - common
    return np.divide(common, union, out=np.full(len(union), np.nan), where=union > 0)


def grouped(contrasts: Sequence[Contrast], seed: int) -> dict[str, list[Item]]:
    """Different items of each commonality, as many of each, and as many of all mixed.

    Rewordings of base items are left out: they have a content in common with them.
    """
    distinct: dict[str, dict[Text, Item]] = defaultdict(dict)
    for each in contrasts:
        for item in (each.base, each.same_commonality, each.same_content, each.different):
            distinct[item.commonality][key(item)] = item
    random = generator(seed)
    size = min(MEMBERS, *map(len, distinct.values()))
    groups = {name: some(list(distinct[name].values()), size, random) for name in sorted(distinct)}
    everything = [item for members in groups.values() for item in members]
    return groups | {MIXED: some(everything, size, random)}


def some(items: list[Item], size: int, random: np.random.Generator) -> list[Item]:
    """So many of the items, drawn at random."""
    return [items[place] for place in random.permutation(len(items))[:size]]


def mean_known(values: Similarity) -> float | None:
    """The mean of the values that are not missing; None if all are."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else None
