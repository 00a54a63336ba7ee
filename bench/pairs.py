"""Clean and corrupted prompts of equal length, drawn from templates and word lists of our own.

The tasks are those of MIB's circuit track (Mueller et al., 2025, arXiv 2504.13151): indirect
objects with the two names swapped, sums of two-digit numbers against other numbers, and four
choices whose symbols are others. Each has one token as answer and one that the corrupted prompt
calls for. Questions of ARC (Clark et al., 2018) are read from a file: two choices change places.
"""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

NAMES = (  # given names common in English
    "Mary John Tom James Alice Paul Anna Peter Sarah Mark Laura David Emma Simon Kate Robert "
    "Jane Henry Lucy George Helen Frank Rose Jack Grace Adam Ruth Daniel Claire Michael"
).split()
PLACES = "store park school office garden station museum library market kitchen".split()
THINGS = "book drink letter ring ball key camera watch lamp ticket".split()
SCENES = (
    "When {a} and {b} went to the {place}, {giver} gave a {thing} to",
    "After {a} and {b} arrived at the {place}, {giver} handed a {thing} to",
    "While {a} and {b} were at the {place}, {giver} offered a {thing} to",
)
KINDS = {
    "fruit": "apple banana cherry grape lemon mango orange peach pear plum".split(),
    "animal": "cat cow dog fox goat horse lion pig sheep wolf".split(),
    "tool": "axe chisel drill hammer knife pliers rake saw shovel wrench".split(),
    "colour": "black blue brown green grey pink purple red white yellow".split(),
    "vehicle": "bike boat bus car plane ship taxi train tram truck".split(),
    "metal": "copper gold iron lead nickel silver steel tin zinc bronze".split(),
}
SYMBOLS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
CHOICES = 4
LONGEST = 300  # characters of a question of ARC and its choices
REPEATED = 1000  # pairs in a row that were drawn before, after which there are hardly others


@dataclass(frozen=True)
class Pair:
    """A prompt, the one that corrupts it, and the tokens that either calls for."""

    clean: list[int]
    corrupted: list[int]
    answer: int
    other: int


Texts = tuple[str, str, str, str]  # clean, corrupted, answer, other


def indirect_object(rng: random.Random) -> Texts:
    """Who gave is swapped, and with it who receives."""
    a, b = rng.sample(NAMES, 2)
    place, thing, scene = rng.choice(PLACES), rng.choice(THINGS), rng.choice(SCENES)
    clean, corrupted = (
        scene.format(a=a, b=b, giver=giver, place=place, thing=thing) for giver in (b, a)
    )
    return clean, corrupted, f" {a}", f" {b}"


def addition(rng: random.Random) -> Texts:
    """Two other numbers; sums have two digits and begin with unlike ones."""

    def draw() -> tuple[int, int]:
        first = rng.randint(10, 88)
        return first, rng.randint(10, 99 - first)

    (a, b), (c, d) = draw(), draw()
    shot = "14 + 25 = 39\n"
    return f"{shot}{a} + {b} =", f"{shot}{c} + {d} =", f" {a + b}", f" {c + d}"


def choice(rng: random.Random) -> Texts:
    """Which of four things is of a kind; the corrupted prompt has other symbols."""
    kind = rng.choice(list(KINDS))
    others = rng.sample([each for each in KINDS if each != kind], CHOICES - 1)
    right = rng.choice(KINDS[kind])
    options = [right, *(rng.choice(KINDS[each]) for each in others)]
    rng.shuffle(options)
    symbols = rng.sample(SYMBOLS, 2 * CHOICES)
    clean, corrupted = (
        f"Question: Which of these is a {kind}?\n"
        + "\n".join(f"{symbol}. {option}" for symbol, option in zip(part, options, strict=True))
        + "\nAnswer:"
        for part in (symbols[:CHOICES], symbols[CHOICES:])
    )
    place = options.index(right)
    return clean, corrupted, f" {symbols[place]}", f" {symbols[CHOICES + place]}"


@cache
def questions(path: Path) -> list[dict[str, Any]]:
    """Short questions of ARC with four choices, from JSON lines as the Hub's data set has them."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [
        row
        for row in rows
        if len(row["choices"]["text"]) == CHOICES
        and row["answerKey"] in row["choices"]["label"]
        and len(row["question"]) + sum(map(len, row["choices"]["text"])) <= LONGEST
    ]


def arc(path: Path, rng: random.Random) -> Texts:
    """A question; in the corrupted prompt the right choice and another change places."""
    row = rng.choice(questions(path))
    options, right = list(row["choices"]["text"]), row["choices"]["label"].index(row["answerKey"])
    wrong = rng.choice([place for place in range(CHOICES) if place != right])
    swapped = list(options)
    swapped[right], swapped[wrong] = options[wrong], options[right]
    clean, corrupted = (
        f"Question: {row['question']}\n"
        + "\n".join(f"{symbol}. {option}" for symbol, option in zip(SYMBOLS, each, strict=False))
        + "\nAnswer:"
        for each in (options, swapped)
    )
    return clean, corrupted, f" {SYMBOLS[right]}", f" {SYMBOLS[wrong]}"


TASKS: dict[str, Callable[[random.Random], Texts]] = {
    "ioi": indirect_object,
    "addition": addition,
    "choice": choice,
}


def draw(task: str, tokenizer: Any, seed: int = 0) -> Iterator[Pair]:
    """Draw different pairs until hardly any is new; those of unlike lengths are left out.

    Where a tokenizer splits the answer, what is asked is the first token in which it differs from
    the other; what stands before it joins both prompts.
    """
    rng, seen, again = random.Random(f"{task} {seed}"), set[str](), 0
    while again < REPEATED:
        clean, corrupted, *answers = TASKS[task](rng)
        again = again + 1 if clean in seen else 0
        if again:
            continue
        seen.add(clean)
        first, second = (tokenizer(text).input_ids for text in (clean, corrupted))
        right, wrong = (tokenizer(text, add_special_tokens=False).input_ids for text in answers)
        while right and wrong and right[0] == wrong[0]:
            token = right.pop(0)
            wrong.pop(0)
            first, second = [*first, token], [*second, token]
        if right and wrong and len(first) == len(second):
            yield Pair(first, second, right[0], wrong[0])
