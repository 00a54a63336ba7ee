"""Contrasts in the wording that the demo model was trained on.

It answers its own wordings at the very start of a text and no others, so a rewording is what leaves
those intact: the order of summands, the order of wrong options.
"""

import random
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from caploc.errors import BadOption
from papers.cnl.contrasts import CONTRASTS, ITEMS, ContrastSet, Item, Pair, cross_items, distinct
from worlds.tasks.data import CAPITALS, ELEMENTS, LETTERS, word_quiz

PICK = "pick"
Subject = tuple[str, str]  # what is asked about, and the answer


def sums(items: int = ITEMS, *, seed: int = 0) -> list[ContrastSet]:
    """Draw contrasts of addition and subtraction (`47+38=`, `47-38=`), answers of two digits.

    The base item adds, the larger number first. It is reworded by swapping the numbers; there is no
    such rewording of subtraction, which is therefore never the base.
    """

    def two_numbers(rng: random.Random) -> Pair:
        high = rng.randrange(11, 99)
        return high, rng.randrange(1, min(high - 10, 99 - high) + 1)

    def ask(sign: str, numbers: Pair, swapped: bool) -> Item:
        high, low = numbers
        return Item(
            commonality={"+": "addition", "-": "subtraction"}[sign],
            content=f"{high}, {low}",
            wording="smaller first" if swapped else "larger first",
            prompt=f"{low}{sign}{high}=" if swapped else f"{high}{sign}{low}=",
            answer=str(high + low if sign == "+" else high - low),
            subject=str(high),
        )

    def draw(rng: random.Random) -> ContrastSet | None:
        content, partner = (two_numbers(rng) for _ in range(2))
        digits = [[len(str(each)) for each in pair] for pair in (content, partner)]
        if digits[0] != digits[1] or set(content) & set(partner):
            return None
        contrast = cross_items(ask, "+-", (content, partner), (False, True))
        # base and rewording have one answer, and no others may
        return contrast if len({each.answer for each in contrast.items}) == 4 else None

    return distinct(draw, items, seed)


def quizzes(
    facts: Sequence[Subject], question: str, items: int = ITEMS, *, seed: int = 0
) -> list[ContrastSet]:
    """Draw contrasts of two multiple choices: to know a fact, and to find an option named.

    `question` is what is asked about a fact, such as `capital of`. The content is the fact with its
    four options; a rewording orders the wrong ones differently. The letter of the answer is the
    same in all five items. Two contents have subjects and options of the same lengths, so items of
    one kind are equally long; those of the two kinds are not. Raises BadOption if there are fewer
    than 8 facts.
    """
    if len(facts) < 2 * len(LETTERS):
        raise BadOption(f"A quiz needs at least {2 * len(LETTERS)} facts; got {len(facts)}.")
    alike: dict[tuple[int, int], list[Subject]] = defaultdict(list)
    for fact in facts:
        alike[len(fact[0]), len(fact[1])].append(fact)

    def draw(rng: random.Random) -> ContrastSet | None:
        asked = rng.choice(facts)
        partners = [each for each in alike[len(asked[0]), len(asked[1])] if each != asked]
        if not partners:
            return None
        other_asked = rng.choice(partners)
        others = [each for each in facts if each not in (asked, other_asked)]
        drawn = rng.sample(others, 2 * (len(LETTERS) - 1))
        content, partner = [asked, *drawn[::2]], [other_asked, *drawn[1::2]]
        widths = [sum(len(option) for _, option in each) for each in (content, partner)]
        if widths[0] != widths[1]:
            return None
        place = rng.randrange(len(LETTERS))
        asked_for = rng.sample([question, PICK], 2)
        shift = rng.choice(range(1, len(LETTERS) - 1))

        def ask(kind: str, content: list[Subject], moved: int) -> Item:
            (subject, right), *wrong = content
            options = [option for _, option in [*wrong[moved:], *wrong[:moved]]]
            options.insert(place, right)
            asked_about = right if kind == PICK else subject
            return Item(
                commonality=kind,
                content=f"{subject}: {', '.join(sorted(options))}",
                wording="other order" if moved else "first order",
                prompt=word_quiz(kind, asked_about, options),
                answer=LETTERS[place],
                subject=asked_about,
            )

        return cross_items(ask, asked_for, (content, partner), (0, shift))

    return distinct(draw, items, seed)


# Importing this module adds them to those that commands know.
CONTRASTS |= {
    "demo/sums": sums,
    "demo/capitals": partial(quizzes, CAPITALS, "capital of"),
    "demo/elements": partial(quizzes, ELEMENTS, "symbol of"),
}
