"""Items of which commonality and content are varied apart, to tell what located neurons follow.

An item has a commonality k (what is to be done: add, subtract ...), a content c (with what: the
operands) and a wording w. Each base item has four partners:

    SS  same k, same c, other w          SC  same k, other c, same w
    CD  other k, same c, same w          DD  other k, other c, same w

If neurons follow the commonality, the sets located for base and SC are as alike as those for base
and SS, and far more than for DD. The 2 x 2 design is ours: of the decoupling experiment of Huang et
al. (ICLR 2025, arXiv 2502.20992) it is public that it compares 1,000 samples, mostly mathematical.

The prompts of a contrast are equally long, but for
"minus" and "times", which are a letter longer than everything else, and so are the answers.
"""

import operator
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from caploc.errors import BadOption

ITEMS = 1000
ARMS = ("SS", "SC", "CD", "DD")
TRIES = 10_000  # draws in a row without a new base item, after which there is none
LARGEST = 99  # operand
OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "addition": operator.add,
    "subtraction": operator.sub,
    "multiplication": operator.mul,
    "division": operator.floordiv,
}
REQUEST = "give the result as a whole number."
SIGNS = {"addition": "+", "subtraction": "-", "multiplication": "*", "division": "/"}
WORDS = {"addition": "plus", "subtraction": "minus", "multiplication": "times", "division": "over"}
WORDINGS = {
    "symbols": {
        operation: f"Please work this out and {REQUEST} Here: {{}} {sign} {{}} ="
        for operation, sign in SIGNS.items()
    },
    "words": {
        operation: f"What is {{}} {word} {{}}? Please {REQUEST} The answer is"
        for operation, word in WORDS.items()
    },
    "story": {
        "addition": "Ann had {} coins and was later given {} more. How many has Ann now? She has",
        "subtraction": (
            "Ann had {} coins and later gave {} of them away. How many are left? She has"
        ),
        "multiplication": (
            "Ann had {} purses, each one having {} coins. How many coins? In all she has"
        ),
        "division": "Ann put {} coins into {} purses, as many in each. How many in one? Each has",
    },
}
ATTITUDES = ("positive", "negative")
FRAMES = {
    "plain": "Review: The {subject} was {word}. Sentiment:",
    "told": "I thought the {subject} was {word}. Opinion:",
    "heard": '"A {word} {subject}," she told us. Attitude:',
    "rated": "My word on the {subject}: {word}. Judgement:",
}
OPPOSITES = [  # as an attitude of each kind has it, equally long
    tuple(pair.split("/"))
    for pair in (
        "good/poor fine/weak great/awful super/lousy superb/dismal lovely/boring "
        "perfect/useless amazing/hateful pleasing/dreadful splendid/terrible "
        "excellent/appalling brilliant/atrocious wonderful/miserable"
    ).split()
]
SUBJECTS = (
    "film book play song meal game show tour menu shop "
    "hotel novel album movie diner drama phone radio wine "
    "series museum camera laptop burger guitar jacket ticket bakery "
    "concert musical theatre teacher account lecture holiday pudding "
    "keyboard sandwich computer festival campsite magazine painting workshop"
).split()

Pair = tuple[int, int]  # of operands


@dataclass(frozen=True)
class Item:
    """One text: `prompt` and `answer` joined; an answer after a blank holds the blank.

    `subject` is a part of the content as it stands in the prompt, for what disturbs it.
    """

    commonality: str
    content: str
    wording: str
    prompt: str
    answer: str
    subject: str | None = None


@dataclass(frozen=True)
class ContrastSet:
    """A base item and its partner of each arm."""

    base: Item
    partners: dict[str, Item]

    @property
    def items(self) -> tuple[Item, ...]:
        return (self.base, *self.partners.values())


def cross_items(
    ask: Callable[[str, Any, Any], Item],
    asked: Sequence[str],
    contents: tuple[Any, Any],
    wordings: tuple[Any, Any],
) -> ContrastSet:
    """Ask for two things, with two contents, in two wordings, the first of each in the base."""
    (same, other), (content, partner), (wording, rewording) = asked, contents, wordings
    partners = {
        "SS": ask(same, content, rewording),
        "SC": ask(same, partner, wording),
        "CD": ask(other, content, wording),
        "DD": ask(other, partner, wording),
    }
    return ContrastSet(ask(same, content, wording), partners)


Draw = Callable[[random.Random], ContrastSet | None]  # None: what was drawn has no partners


def distinct(draw: Draw, items: int, seed: int) -> list[ContrastSet]:
    """Draw `items` contrasts whose base prompts differ; more begin with the same ones.

    Raises BadOption if `items` is below 1, or there are not so many. So does every set below.
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


def arithmetic(items: int = ITEMS, *, seed: int = 0) -> list[ContrastSet]:
    """Draw contrasts of operations on operands from 2 to 99, with whole positive answers.

    Three wordings: symbols, words, a little story. No operand of one content is in the other, and
    no two contents or operations of a contrast have the same answer, so that neither operands nor
    answers tie them together.
    """
    tables = {pair: _operands(pair) for pair in combinations(OPERATIONS, 2)}

    def ask(operation: str, operands: Pair, wording: str) -> Item:
        return Item(
            commonality=operation,
            content=f"{operands[0]}, {operands[1]}",
            wording=wording,
            prompt=WORDINGS[wording][operation].format(*operands),
            answer=f" {OPERATIONS[operation](*operands)}",
            subject=str(operands[0]),
        )

    def draw(rng: random.Random) -> ContrastSet | None:
        same, other = rng.sample(list(OPERATIONS), 2)
        table = tables.get((same, other)) or tables[other, same]
        content = rng.choice(list(table))
        partner = rng.choice(table[content])
        answers = {_answer(each, pair) for each in (same, other) for pair in (content, partner)}
        if set(content) & set(partner) or len(answers) < 4:
            return None
        wording, rewording = rng.sample(list(WORDINGS), 2)
        return cross_items(ask, (same, other), (content, partner), (wording, rewording))

    return distinct(draw, items, seed)


def _operands(operations: tuple[str, str]) -> dict[Pair, list[Pair]]:
    """List operands that both operations take, with those of as many digits, answers too."""
    groups: dict[tuple[int, ...], list[Pair]] = defaultdict(list)
    for first in range(2, LARGEST + 1):
        for second in range(2, first + 1):
            pair = (first, second)
            answers = [_answer(operation, pair) for operation in operations]
            digits = {len(str(each)) for each in answers if each}
            if all(answers) and len(digits) == 1:
                groups[len(str(first)), len(str(second)), *digits].append(pair)
    return {pair: group for group in groups.values() for pair in group if len(group) > 1}


def _answer(operation: str, operands: Pair) -> int:
    """Compute the answer, 0 where there is no whole positive one."""
    if operation == "division" and operands[0] % operands[1]:
        return 0
    return OPERATIONS[operation](*operands)


def sentiment(items: int = ITEMS, *, seed: int = 0) -> list[ContrastSet]:
    """Draw contrasts of reviews, positive and negative; the content is what is reviewed.

    A wording is a frame and a pair of opposite words of one length; a rewording changes both.
    """
    lengths = [len(first) for first, _ in OPPOSITES]
    wordings = list(product(FRAMES, range(len(OPPOSITES))))

    def ask(attitude: str, subject: str, wording: tuple[str, int]) -> Item:
        frame, place = wording
        word = OPPOSITES[place][ATTITUDES.index(attitude)]
        return Item(
            commonality=attitude,
            content=subject,
            wording=f"{frame}: {'/'.join(OPPOSITES[place])}",
            prompt=FRAMES[frame].format(subject=subject, word=word),
            answer=f" {attitude}",
            subject=subject,
        )

    def draw(rng: random.Random) -> ContrastSet | None:
        asked = rng.sample(ATTITUDES, 2)
        subject = rng.choice(SUBJECTS)
        frame, place = rng.choice(wordings)
        alike = [n for n, each in enumerate(lengths) if each == lengths[place] and n != place]
        partners = [each for each in SUBJECTS if len(each) == len(subject) and each != subject]
        rewording = rng.choice([each for each in FRAMES if each != frame]), rng.choice(alike)
        partner = rng.choice(partners)
        return cross_items(ask, asked, (subject, partner), ((frame, place), rewording))

    return distinct(draw, items, seed)


CONTRASTS: dict[str, Callable[..., list[ContrastSet]]] = {
    "arithmetic": arithmetic,
    "sentiment": sentiment,
}
