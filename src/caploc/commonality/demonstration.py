"""Contrasts in the wording that the demo model was trained on, and answers.

    sums(1000, seed=0)                                  # `47+38=` and `47-38=`
    quizzes(CAPITALS, "capital of", 1000, seed=0)       # a fact asked, or an option named

The model answers its own wordings at the very start of a text and no others, so a rewording is what
leaves those intact: the order of summands, the order of wrong options.
"""

import random
from collections import defaultdict
from collections.abc import Sequence

from caploc.commonality.contrasts import ITEMS, ContrastSet, Item, distinct
from caploc.errors import BadOption

LETTERS = "ABCD"
PICK = "pick"
Fact = tuple[str, str]  # what is asked about, and the answer


def sums(items: int = ITEMS, *, seed: int = 0) -> list[ContrastSet]:
    """Draw contrasts of addition and subtraction, all answers of two digits.

    The base item adds, the larger number first. It is reworded by swapping the numbers; there is no
    such rewording of subtraction, which is therefore never the base.

    Raises:
        BadOption: if `items` is below 1, or there are not so many.
    """

    def draw(rng: random.Random) -> ContrastSet | None:
        content, partner = (two_numbers(rng) for _ in range(2))
        if lengths(content) != lengths(partner) or set(content) & set(partner):
            return None
        items = (
            summed("+", content),
            summed("+", content, swapped=True),
            summed("+", partner),
            summed("-", content),
            summed("-", partner),
        )
        answers = {each.answer for each in items}
        # Base and rewording have one answer, and no others may.
        return ContrastSet(*items) if len(answers) == 4 else None

    return distinct(draw, items, seed)


def two_numbers(rng: random.Random) -> tuple[int, int]:
    """Draw two numbers, the larger first, whose sum and difference have two digits."""
    high = rng.randrange(11, 99)
    return high, rng.randrange(1, min(high - 10, 99 - high) + 1)


def lengths(numbers: tuple[int, int]) -> tuple[int, ...]:
    """Count the digits of each."""
    return tuple(len(str(each)) for each in numbers)


def summed(sign: str, numbers: tuple[int, int], swapped: bool = False) -> Item:
    """Ask for a sum or a difference."""
    high, low = numbers
    return Item(
        commonality={"+": "addition", "-": "subtraction"}[sign],
        content=f"{high}, {low}",
        wording="smaller first" if swapped else "larger first",
        prompt=f"{low}{sign}{high}=" if swapped else f"{high}{sign}{low}=",
        answer=str(high + low if sign == "+" else high - low),
    )


def quizzes(
    facts: Sequence[Fact], question: str, items: int = ITEMS, *, seed: int = 0
) -> list[ContrastSet]:
    """Draw contrasts of two multiple choices: to know a fact, and to find an option named.

    `question` is what is asked about a fact, such as `capital of`. The content is the fact with its
    four options; a rewording orders the wrong ones differently. The letter of the answer is the
    same in all five items. Two contents have subjects and options of the same lengths, so items of
    one kind are equally long; those of the two kinds are not, see `contrasts.matched`.

    Raises:
        BadOption: if `items` is below 1, there are not so many, or there are fewer than 8 facts.
    """
    if len(facts) < 2 * len(LETTERS):
        raise BadOption(f"A quiz needs at least {2 * len(LETTERS)} facts; got {len(facts)}.")

    alike: dict[tuple[int, int], list[Fact]] = defaultdict(list)
    for fact in facts:
        alike[sizes(fact)].append(fact)

    def draw(rng: random.Random) -> ContrastSet | None:
        asked = rng.choice(facts)
        partners = [each for each in alike[sizes(asked)] if each != asked]
        if not partners:
            return None
        other_asked = rng.choice(partners)
        others = [each for each in facts if each not in (asked, other_asked)]
        drawn = rng.sample(others, 2 * (len(LETTERS) - 1))
        content, partner = [asked, *drawn[::2]], [other_asked, *drawn[1::2]]
        if width(content) != width(partner):
            return None
        place = rng.randrange(len(LETTERS))
        same, other = rng.sample([question, PICK], 2)
        return ContrastSet(
            base=quiz(same, content, place),
            reworded=quiz(same, reordered(content, rng), place, "other order"),
            same_commonality=quiz(same, partner, place),
            same_content=quiz(other, content, place),
            different=quiz(other, partner, place),
        )

    return distinct(draw, items, seed)


def sizes(fact: Fact) -> tuple[int, int]:
    """Measure subject and answer."""
    subject, right = fact
    return len(subject), len(right)


def width(content: Sequence[Fact]) -> int:
    """Measure all options together."""
    return sum(len(option) for _, option in content)


def reordered(content: Sequence[Fact], rng: random.Random) -> list[Fact]:
    """Put the wrong options of a fact in another order."""
    right, *wrong = content
    shift = rng.choice(range(1, len(wrong)))
    return [right, *wrong[shift:], *wrong[:shift]]


def quiz(question: str, content: Sequence[Fact], place: int, wording: str = "first order") -> Item:
    """Ask a question with the right option, that of the first fact, in this place."""
    (subject, right), *others = content
    options = [option for _, option in others]
    options.insert(place, right)
    listed = "".join(f"{each} {letter}\n" for letter, each in zip(LETTERS, options, strict=True))
    return Item(
        commonality=question,
        content=f"{subject}: {', '.join(sorted(options))}",
        wording=wording,
        prompt=f"{question} {right if question == PICK else subject}?\n{listed}=",
        answer=LETTERS[place],
    )
