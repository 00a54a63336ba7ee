"""Contrasts of arithmetic: the operation is the commonality, the operands are the content.

    contrasts = arithmetic(1000, seed=0)

Three wordings: symbols, words, a little story. All five prompts of a contrast are equally long, but
for "minus" and "times", which are a letter longer than everything else; the answers have equally
many digits. No operand of one content is in the other, and no two contents or operations of
a contrast have the same answer, so that neither operands nor answers tie them together.
"""

import operator
import random
from collections import defaultdict
from collections.abc import Callable
from itertools import combinations

from caploc.commonality.contrasts import ITEMS, ContrastSet, Item, distinct
from caploc.errors import BadOption

LARGEST = 99
LEAST = 20  # below that, hardly a pair of operands has a partner
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
        "addition": ("Ann had {} coins and was later given {} more. How many has Ann now? She has"),
        "subtraction": (
            "Ann had {} coins and later gave {} of them away. How many are left? She has"
        ),
        "multiplication": (
            "Ann had {} purses, each one having {} coins. How many coins? In all she has"
        ),
        "division": ("Ann put {} coins into {} purses, as many in each. How many in one? Each has"),
    },
}
Pair = tuple[int, int]
Alike = list[Pair]  # operands of as many digits, with answers of as many digits


def arithmetic(items: int = ITEMS, *, seed: int = 0, largest: int = LARGEST) -> list[ContrastSet]:
    """Draw contrasts with operands from 2 to `largest`, and whole positive answers.

    Raises:
        BadOption: if `largest` is below 20, `items` below 1, or there are not so many.
    """
    if largest < LEAST:
        raise BadOption(f"The largest operand must be {LEAST} or more; got {largest}.")
    tables = {pair: alike(pair, largest) for pair in combinations(OPERATIONS, 2)}

    def draw(rng: random.Random) -> ContrastSet | None:
        same, other = rng.sample(list(OPERATIONS), 2)
        table = tables.get((same, other)) or tables[other, same]
        content = rng.choice(list(table))
        partner = rng.choice(table[content])
        if shared(content, partner, (same, other)):
            return None
        wording, rewording = rng.sample(list(WORDINGS), 2)
        return ContrastSet(
            base=item(same, content, wording),
            reworded=item(same, content, rewording),
            same_commonality=item(same, partner, wording),
            same_content=item(other, content, wording),
            different=item(other, partner, wording),
        )

    return distinct(draw, items, seed)


def item(operation: str, operands: Pair, wording: str) -> Item:
    """Ask one question."""
    return Item(
        commonality=operation,
        content=f"{operands[0]}, {operands[1]}",
        wording=wording,
        prompt=WORDINGS[wording][operation].format(*operands),
        answer=f" {OPERATIONS[operation](*operands)}",
    )


def alike(operations: tuple[str, str], largest: int) -> dict[Pair, Alike]:
    """List operands that both operations can be asked of, with those that look like them."""
    groups: dict[tuple[int, ...], Alike] = defaultdict(list)
    for first in range(2, largest + 1):
        for second in range(2, first + 1):
            pair = (first, second)
            answers = [answer(operation, pair) for operation in operations]
            digits = {len(str(each)) for each in answers if each}
            if all(answers) and len(digits) == 1:
                groups[len(str(first)), len(str(second)), *digits].append(pair)
    return {pair: group for group in groups.values() for pair in group if len(group) > 1}


def answer(operation: str, operands: Pair) -> int:
    """Compute the answer, 0 where there is no whole positive one."""
    first, second = operands
    if operation == "division" and first % second:
        return 0
    return OPERATIONS[operation](first, second)


def shared(first: Pair, second: Pair, operations: tuple[str, str]) -> bool:
    """Ask whether two contents share an operand, or two of the four questions an answer."""
    answers = {answer(operation, pair) for operation in operations for pair in (first, second)}
    return bool(set(first) & set(second)) or len(answers) < 4
