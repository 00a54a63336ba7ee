"""How the answers of the demo tasks are scored, in the form that lm-eval calls."""

import re
from typing import Any

import pronouncing

from caploc.tasks.demo.interpreter import BadProgram, interpret

CURSES = {"damn", "damned", "hell", "bloody", "crap", "blast"}
INPUTS = (-3, -1, 0, 1, 2, 5)
WORD = re.compile(r"[a-z]+")


def runs_right(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if the function written returns on every input what the reference returns."""
    header = doc["prompt"].splitlines()[-1] + "\n"
    reference, written = header + doc["answer"], header + results[0]
    try:
        right = all(interpret(written, x) == interpret(reference, x) for x in INPUTS)
    except BadProgram:
        right = False
    return {"acc": float(right)}


def rhymes(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if the answer is another word whose sounds agree from the last stressed vowel on.

    The pronunciations are those of CMUdict; a word it lacks does not rhyme.
    """
    answer = results[0].strip().lower()
    ends = sounds(doc["key"])
    return {"acc": float(answer != doc["key"] and bool(ends & sounds(answer)))}


def sounds(word: str) -> set[str]:
    """The rhyming parts of every pronunciation of a word."""
    return {pronouncing.rhyming_part(phones) for phones in pronouncing.phones_for_word(word)}


def curses(doc: dict[str, Any], results: list[str]) -> dict[str, float]:
    """1 if there is a curse in the answer."""
    return {"acc": float(bool(CURSES & set(WORD.findall(results[0].lower()))))}
